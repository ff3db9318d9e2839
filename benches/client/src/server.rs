//! A server that sends responses on order, and reads acknowledgements without answering them.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

use crate::Error;
use crate::control::{Order, SUBSCRIBED};
use crate::workload::{Kind, Workload};

/// Serves until its input ends: its address is the first line that it prints, and orders come line
/// by line.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn serve(workload: Workload) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (sender, orders) = channel(1);
    let script = Script::new(workload, orders);
    println!("{address}");
    let ordering = async move {
        let mut lines = BufReader::new(stdin()).lines();
        while let Some(line) = lines.next_line().await? {
            sender.send(Order::read(&line)?).await?;
        }
        Ok(())
    };
    let service = AggregatedDiscoveryServiceServer::new(Service(Mutex::new(Some(script))));
    // Large windows, so that no client waits for them.
    let mut server = tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::select! {
        served = server.add_service(service).serve_with_incoming(incoming) => Ok(served?),
        ended = ordering => ended,
    }
}

/// One stream gets the responses, because there is one client.
#[derive(Debug)]
struct Service(Mutex<Option<Script>>);

#[derive(Debug)]
struct Script {
    workload: Workload,
    /// Encoded before a client subscribes.
    resources: Vec<Bytes>,
    responses: u64,
    orders: Receiver<Order>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let script = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut script = script.ok_or_else(|| Status::resource_exhausted("there is one client"))?;
        let mut requests = requests.into_inner();
        let (sender, responses) = channel(1);
        tokio::spawn(async move {
            let mut is_subscribed = false;
            loop {
                tokio::select! {
                    request = requests.message() => {
                        let Ok(Some(request)) = request else { break };
                        if !is_subscribed && request.resource_names.len() == script.workload.resources {
                            is_subscribed = true;
                            println!("{SUBSCRIBED}");
                        }
                    }
                    Some(order) = script.orders.recv() => {
                        if sender.send(Ok(script.response(order))).await.is_err() {
                            break;
                        }
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

impl Script {
    fn new(workload: Workload, orders: Receiver<Order>) -> Self {
        let resources = (0..workload.resources).map(|index| workload.resource(index, 0)).collect();
        Self { workload, resources, responses: 0, orders }
    }

    fn response(&mut self, order: Order) -> DiscoveryResponse {
        let mut sent = 0..self.resources.len();
        if let Order::Change { index, revision } = order {
            self.resources[index] = self.workload.resource(index, revision);
            if self.workload.kind == Kind::LoadAssignment {
                sent = index..index + 1;
            }
        }
        self.responses += 1;
        let type_url = self.workload.kind.type_url();
        let any = |value: &Bytes| Any { type_url: type_url.into(), value: value.clone() };
        DiscoveryResponse {
            version_info: self.responses.to_string(),
            resources: self.resources[sent].iter().map(any).collect(),
            type_url: type_url.into(),
            nonce: self.responses.to_string(),
            ..DiscoveryResponse::default()
        }
    }
}

const WINDOW_BYTES: u32 = 16 << 20;
