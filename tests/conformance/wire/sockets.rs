//! A server on the loopback interface, and gRPC clients of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Status, Streaming};
use xds::{Cache, CommitError, Server, ServerConfig, Transaction};
use xds_core::server::Protocol;
use xds_core::server::StreamConfig;
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::service::{ADS, ADS_DELTA, ADS_SOTW, Service};

use super::{Event, Request, Response, Wire};

/// A server with some streams, all run by the thread of the script.
pub(crate) struct Sockets {
    runtime: Runtime,
    cache: Arc<Cache>,
    config: ServerConfig,
    /// The connection to the server, which starts with the first stream.
    channel: Option<Channel>,
    streams: BTreeMap<String, Stream>,
    fences: usize,
}

struct Stream {
    protocol: Protocol,
    is_aggregated: bool,
    /// The first request has the node, so no other request may precede it.
    has_asked: bool,
    requests: mpsc::Sender<Bytes>,
    /// `None` when the stream has ended.
    responses: Option<Streaming<Bytes>>,
    inbox: VecDeque<Event>,
}

impl Sockets {
    pub(crate) fn new() -> Self {
        let mut sockets = Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            cache: Cache::new(),
            config: ServerConfig::default(),
            channel: None,
            streams: BTreeMap::new(),
            fences: 0,
        };
        sockets.configure(StreamConfig::default());
        sockets
    }

    fn channel(&mut self) -> Channel {
        let connect = || {
            let server = Server::new(Arc::clone(&self.cache)).with_config(self.config.clone());
            self.runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                tokio::spawn(server.serve(listener, std::future::pending()));
                Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
            })
        };
        self.channel.get_or_insert_with(connect).clone()
    }

    /// Waits until each stream has sent what is due.
    fn settle(&mut self) {
        let is_synced = self.cache.snapshot().is_synced();
        let mut is_sure = true;
        let is_live = |stream: &&mut Stream| stream.has_asked && stream.responses.is_some();
        for stream in self.streams.values_mut().filter(is_live) {
            if stream.is_aggregated && is_synced {
                self.fences += 1;
                let fence = format!("type.googleapis.com/script.fence{}", self.fences);
                self.runtime
                    .block_on(async { timeout(PATIENCE, stream.fence(&fence)).await.expect("a fence") });
            } else {
                is_sure = false;
            }
        }
        if !is_sure {
            self.runtime.block_on(async { sleep(MOMENT).await });
        }
    }
}

impl Wire for Sockets {
    fn configure(&mut self, config: StreamConfig) {
        self.config.stream = config;
        // Each fence is a subscription to a type of its own.
        self.config.stream.types_limit += 1000;
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), CommitError> {
        self.cache.commit(transaction)?;
        self.settle();
        Ok(())
    }

    fn open(&mut self, name: &str, protocol: Protocol, service: Option<&'static Service>) {
        let method = match (protocol, service) {
            (Protocol::Sotw, None) => Some(ADS_SOTW),
            (Protocol::Delta, None) => Some(ADS_DELTA),
            (Protocol::Sotw, Some(service)) => service.sotw,
            (Protocol::Delta, Some(service)) => service.delta,
        };
        let path = format!("/{}/{}", service.map_or(ADS, |of| of.service), method.unwrap_or("NoSuchMethod"));
        let path: PathAndQuery = path.parse().unwrap();
        let (sender, requests) = mpsc::channel(16);
        let mut client = tonic::client::Grpc::new(self.channel());
        let opened = self.runtime.block_on(async {
            client.ready().await.unwrap();
            let requests = ReceiverStream::new(requests).into_streaming_request();
            client.streaming(requests, path, Messages).await
        });
        let mut stream = Stream {
            protocol,
            is_aggregated: service.is_none(),
            has_asked: false,
            requests: sender,
            responses: None,
            inbox: VecDeque::new(),
        };
        match opened {
            Ok(response) => stream.responses = Some(response.into_inner()),
            Err(status) => stream.inbox.push_back(closed(&status)),
        }
        self.streams.insert(name.to_owned(), stream);
    }

    fn send(&mut self, name: &str, request: Request) {
        let stream = self.streams.get_mut(name).unwrap();
        stream.has_asked = true;
        self.runtime.block_on(stream.requests.send(request.encode())).unwrap();
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.runtime.block_on(async { sleep(time + MOMENT).await });
        self.settle();
    }

    fn receive(&mut self, name: &str) -> Option<Event> {
        let stream = self.streams.get_mut(name).unwrap();
        self.runtime.block_on(async { timeout(PATIENCE, stream.next()).await.ok() })
    }

    fn receive_now(&mut self, name: &str) -> Option<Event> {
        self.settle();
        let is_synced = self.cache.snapshot().is_synced();
        let stream = self.streams.get_mut(name).unwrap();
        if (stream.is_aggregated && is_synced) || stream.responses.is_none() {
            return stream.inbox.pop_front();
        }
        // Without a fence, wait a moment for messages on their way.
        self.runtime.block_on(async { timeout(MOMENT, stream.next()).await.ok() })
    }
}

impl Stream {
    /// Subscribes to all resources of a type that no other stream uses. A stream sends its types by
    /// rank, and types without a rank in the order of subscription. So everything that is due comes
    /// before the answer.
    async fn fence(&mut self, type_url: &str) {
        let type_url = type_url.to_owned();
        let request = match self.protocol {
            Protocol::Sotw => {
                let rest = discovery::DiscoveryRequest::default();
                Request::Sotw(discovery::DiscoveryRequest { type_url: type_url.clone(), ..rest })
            }
            Protocol::Delta => {
                let rest = discovery::DeltaDiscoveryRequest::default();
                Request::Delta(discovery::DeltaDiscoveryRequest { type_url: type_url.clone(), ..rest })
            }
        };
        // Fails if the stream has ended; the code below reads that.
        _ = self.requests.send(request.encode()).await;
        while self.responses.is_some() {
            match self.read().await {
                Event::Response(response) if response.type_url() == type_url => break,
                event => self.inbox.push_back(event),
            }
        }
    }

    async fn next(&mut self) -> Event {
        match self.inbox.pop_front() {
            Some(event) => event,
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Event {
        let Some(responses) = &mut self.responses else { return std::future::pending().await };
        let event = match responses.message().await {
            Ok(Some(message)) => return Event::Response(Response::decode(self.protocol, message)),
            Ok(None) => closed(&Status::ok("")),
            Err(status) => closed(&status),
        };
        self.responses = None;
        event
    }
}

fn closed(status: &Status) -> Event {
    Event::Closed { code: Some(status.code()), text: status.message().to_owned() }
}

/// Messages as their bytes, so that one client can call all methods.
struct Messages;

impl Codec for Messages {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The timeout for events that must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for events that must not come, if no fence is possible.
const MOMENT: Duration = Duration::from_millis(40);
