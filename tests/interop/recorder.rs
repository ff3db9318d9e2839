//! A server of ADS that forwards each stream to another one, and notes what clients are sent.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

use crate::holding::Holding;

/// It ends when dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Where clients connect.
    pub(crate) port: u16,
    streams: Streams,
    serving: JoinHandle<()>,
}

type Streams = Arc<Mutex<Vec<Recorded>>>;
type Recorded = Arc<Mutex<Holding>>;

impl Recorder {
    /// Between clients and the server at this port.
    pub(crate) async fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let streams = Streams::default();
        let forward = Forward { server, streams: Arc::clone(&streams) };
        let service = AggregatedDiscoveryServiceServer::new(forward);
        let serving = Server::builder().add_service(service);
        let serving = tokio::spawn(async {
            serving.serve_with_incoming(TcpIncoming::from(listener)).await.expect("the listener is open");
        });
        Self { port, streams, serving }
    }

    /// # Panics
    /// If a client was sent something unchanged, or nothing was sent at all.
    pub(crate) fn assert_nothing_unchanged(&self, what: &str) {
        let streams = lock(&self.streams);
        let holdings: Vec<_> = streams.iter().map(|holding| lock(holding)).collect();
        let sum = |count: fn(&Holding) -> usize| holdings.iter().map(|holding| count(holding)).sum::<usize>();
        let (responses, resources) = (sum(|it| it.responses), sum(|it| it.resources));
        let unchanged: Vec<_> = holdings.iter().flat_map(|holding| &holding.unchanged).collect();
        eprintln!(
            "{what}: {} streams, {responses} responses with {resources} resources; unchanged: {} in a full \
             state (S25), {} that clients need again (S15, S34, D9), {} others",
            holdings.len(),
            sum(|it| it.with_others),
            sum(|it| it.repeated),
            unchanged.len()
        );
        assert!(unchanged.is_empty(), "{what}: sent again unchanged: {unchanged:#?}");
        assert!(resources > 0, "{what}: nothing was recorded");
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Debug)]
struct Forward {
    server: u16,
    streams: Streams,
}

impl Forward {
    /// A connection of its own for each stream, as its client would have, and the record of the stream.
    fn open(&self) -> (AggregatedDiscoveryServiceClient<Channel>, Recorded) {
        let channel = Channel::from_shared(format!("http://127.0.0.1:{}", self.server)).expect("a URI");
        let stream = Recorded::default();
        lock(&self.streams).push(Arc::clone(&stream));
        (AggregatedDiscoveryServiceClient::new(channel.connect_lazy()), stream)
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Forward {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (mut server, stream) = self.open();
        let requests = recorded(requests.into_inner(), Arc::clone(&stream), Holding::on_sotw_request);
        let responses = server.stream_aggregated_resources(requests.map_while(Result::ok)).await?;
        Ok(Response::new(Box::pin(recorded(responses.into_inner(), stream, Holding::on_sotw_response))))
    }

    async fn delta_aggregated_resources(
        &self,
        requests: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (mut server, stream) = self.open();
        let requests = recorded(requests.into_inner(), Arc::clone(&stream), Holding::on_delta_request);
        let responses = server.delta_aggregated_resources(requests.map_while(Result::ok)).await?;
        Ok(Response::new(Box::pin(recorded(responses.into_inner(), stream, Holding::on_delta_response))))
    }
}

/// The messages of one direction. Each is noted before it goes on.
fn recorded<T>(
    messages: Streaming<T>,
    stream: Recorded,
    note: fn(&mut Holding, &T),
) -> impl Stream<Item = Result<T, Status>> {
    messages.map(move |message| {
        if let Ok(message) = &message {
            note(&mut lock(&stream), message);
        }
        message
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
