//! The two ways to run a script: on the machines alone, and over sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::{Cache, Resource, Server, Transaction};
use xds_core::server::{DeltaStream, Next, Service, SotwStream, StreamConfig};
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_server::skim::Skimmer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

/// What a line asks for.
#[derive(Debug, Default, Clone)]
pub(crate) struct Request {
    pub(crate) names: Vec<String>,
    pub(crate) locators: Vec<discovery::ResourceLocator>,
    pub(crate) dropped_names: Vec<String>,
    pub(crate) dropped_locators: Vec<discovery::ResourceLocator>,
    pub(crate) held: Vec<(String, String)>,
}

pub(crate) enum Response {
    Sotw(discovery::DiscoveryResponse),
    Delta(discovery::DeltaDiscoveryResponse),
}

/// Streams to one cache, by the names that a script gives them.
pub(crate) trait Wire {
    fn cache(&self) -> &Cache;
    fn open(&mut self, name: &str, protocol: Protocol);
    fn send_sotw(&mut self, name: &str, request: discovery::DiscoveryRequest);
    fn send_delta(&mut self, name: &str, request: discovery::DeltaDiscoveryRequest);
    /// The next response, which is expected.
    fn receive(&mut self, name: &str) -> Option<Response>;
    /// A response that is due, if there is one.
    fn receive_now(&mut self, name: &str) -> Option<Response>;
}

/// The machines, without a server.
pub(crate) struct Machines {
    cache: Arc<Cache>,
    streams: BTreeMap<String, (Skimmer, Machine)>,
}

enum Machine {
    Sotw(SotwStream),
    Delta(DeltaStream),
}

impl Machines {
    pub(crate) fn new() -> Self {
        Self { cache: Cache::new(), streams: BTreeMap::new() }
    }
}

impl Wire for Machines {
    fn cache(&self) -> &Cache {
        &self.cache
    }

    fn open(&mut self, name: &str, protocol: Protocol) {
        let (watch, config) = (self.cache.watch(), StreamConfig::default());
        let machine = match protocol {
            Protocol::Sotw => Machine::Sotw(SotwStream::new(watch, Service::Aggregated, config)),
            Protocol::Delta => Machine::Delta(DeltaStream::new(watch, Service::Aggregated, config)),
        };
        self.streams.insert(name.to_owned(), (Skimmer::new(String::new(), Arc::default()), machine));
    }

    fn send_sotw(&mut self, name: &str, request: discovery::DiscoveryRequest) {
        let (skimmer, Machine::Sotw(stream)) = self.streams.get_mut(name).unwrap() else { panic!("{name}") };
        let is_new = skimmer.client().is_none();
        let request = skimmer.sotw(&request.encode_to_vec()).unwrap();
        if let Some(client) = skimmer.client().filter(|_| is_new) {
            stream.on_node(client.parameters.clone());
        }
        stream.on_request(Duration::ZERO, request).unwrap();
    }

    fn send_delta(&mut self, name: &str, request: discovery::DeltaDiscoveryRequest) {
        let (skimmer, Machine::Delta(stream)) = self.streams.get_mut(name).unwrap() else { panic!("{name}") };
        let is_new = skimmer.client().is_none();
        let request = skimmer.delta(&request.encode_to_vec()).unwrap();
        if let Some(client) = skimmer.client().filter(|_| is_new) {
            stream.on_node(client.parameters.clone());
        }
        stream.on_request(request).unwrap();
    }

    fn receive(&mut self, name: &str) -> Option<Response> {
        let snapshot = self.cache.snapshot();
        let (_, machine) = self.streams.get_mut(name).unwrap();
        let next = match machine {
            Machine::Sotw(stream) => stream.next(Duration::ZERO, &snapshot),
            Machine::Delta(stream) => stream.next(Duration::ZERO, &snapshot),
        };
        let response = match next {
            Next::Send(response) => response,
            Next::Wait { .. } => return None,
            Next::Close(error) => panic!("{name}: {error}"),
        };
        let chunks = response.bodies.iter().flat_map(|body| body.chunks());
        let bytes = chunks.fold(response.head().to_vec(), |bytes, chunk| [&bytes, chunk.as_ref()].concat());
        Some(match machine {
            Machine::Sotw(_) => Response::Sotw(Message::decode(bytes.as_slice()).unwrap()),
            Machine::Delta(_) => Response::Delta(Message::decode(bytes.as_slice()).unwrap()),
        })
    }

    fn receive_now(&mut self, name: &str) -> Option<Response> {
        self.receive(name)
    }
}

/// A server on the loopback interface, and gRPC clients of it.
pub(crate) struct Sockets {
    runtime: Runtime,
    cache: Arc<Cache>,
    channel: Channel,
    streams: BTreeMap<String, Stream>,
    /// How often somebody asked whether there is nothing more.
    fences: usize,
}

enum Stream {
    Sotw(mpsc::Sender<discovery::DiscoveryRequest>, Streaming<discovery::DiscoveryResponse>),
    Delta(mpsc::Sender<discovery::DeltaDiscoveryRequest>, Streaming<discovery::DeltaDiscoveryResponse>),
}

impl Sockets {
    pub(crate) fn new() -> Self {
        let (runtime, cache) = (Runtime::new().unwrap(), Cache::new());
        let server = Server::new(Arc::clone(&cache));
        let channel = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(server.serve(listener, std::future::pending()));
            Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
        });
        Self { runtime, cache, channel, streams: BTreeMap::new(), fences: 0 }
    }

    /// Asks for something of a type that no script uses.
    fn send_fence(&mut self, name: &str) {
        self.fences += 1;
        let fence = format!("fence{}", self.fences);
        let mut transaction = Transaction::new();
        transaction.put(Resource::new(FENCE.into(), fence.as_str().into(), Bytes::new()).unwrap());
        self.cache.commit(transaction).unwrap();
        match &self.streams[name] {
            Stream::Sotw(..) => self.send_sotw(
                name,
                discovery::DiscoveryRequest {
                    type_url: FENCE.to_owned(),
                    resource_names: vec![fence],
                    ..discovery::DiscoveryRequest::default()
                },
            ),
            Stream::Delta(..) => self.send_delta(
                name,
                discovery::DeltaDiscoveryRequest {
                    type_url: FENCE.to_owned(),
                    resource_names_subscribe: vec![fence],
                    ..discovery::DeltaDiscoveryRequest::default()
                },
            ),
        }
    }
}

impl Wire for Sockets {
    fn cache(&self) -> &Cache {
        &self.cache
    }

    fn open(&mut self, name: &str, protocol: Protocol) {
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel.clone());
        let stream = self.runtime.block_on(async {
            match protocol {
                Protocol::Sotw => {
                    let (sender, requests) = mpsc::channel(16);
                    let stream = client.stream_aggregated_resources(ReceiverStream::new(requests)).await;
                    Stream::Sotw(sender, stream.unwrap().into_inner())
                }
                Protocol::Delta => {
                    let (sender, requests) = mpsc::channel(16);
                    let stream = client.delta_aggregated_resources(ReceiverStream::new(requests)).await;
                    Stream::Delta(sender, stream.unwrap().into_inner())
                }
            }
        });
        self.streams.insert(name.to_owned(), stream);
    }

    fn send_sotw(&mut self, name: &str, request: discovery::DiscoveryRequest) {
        let Stream::Sotw(sender, _) = &self.streams[name] else { panic!("{name}") };
        self.runtime.block_on(sender.send(request)).unwrap();
    }

    fn send_delta(&mut self, name: &str, request: discovery::DeltaDiscoveryRequest) {
        let Stream::Delta(sender, _) = &self.streams[name] else { panic!("{name}") };
        self.runtime.block_on(sender.send(request)).unwrap();
    }

    fn receive(&mut self, name: &str) -> Option<Response> {
        let stream = self.streams.get_mut(name).unwrap();
        let next = async {
            match stream {
                Stream::Sotw(_, stream) => stream.message().await.unwrap().map(Response::Sotw),
                Stream::Delta(_, stream) => stream.message().await.unwrap().map(Response::Delta),
            }
        };
        let patience = Duration::from_secs(10);
        self.runtime.block_on(async { tokio::time::timeout(patience, next).await.ok().flatten() })
    }

    /// What is due is sent before the answer to a later request, or right after it, if its type has a later turn.
    fn receive_now(&mut self, name: &str) -> Option<Response> {
        for _ in 0..2 {
            self.send_fence(name);
            let response = self.receive(name).expect("a fence is answered");
            let (Response::Sotw(discovery::DiscoveryResponse { type_url, .. })
            | Response::Delta(discovery::DeltaDiscoveryResponse { type_url, .. })) = &response;
            if type_url != FENCE {
                return Some(response);
            }
        }
        None
    }
}

/// A type that no script uses.
const FENCE: &str = "type.googleapis.com/zzz.Fence";
