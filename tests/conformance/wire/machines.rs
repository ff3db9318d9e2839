//! The machines of the server, without a server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use xds::{Cache, CommitError, ServerConfig, Transaction};
use xds_core::server::{self, ClientGroup, Next, Protocol, StreamConfig, StreamError};
use xds_proto::service::Service;
use xds_server::skim::{Client, Skimmer};

use super::{Event, Request, Response, Wire};

/// The machines of some streams, with a clock that the script controls.
pub(crate) struct Machines {
    cache: Arc<Cache>,
    config: StreamConfig,
    now: Duration,
    /// The groups of streams by the id of the node, as in the server.
    clients: BTreeMap<String, ClientGroup>,
    streams: BTreeMap<String, Stream>,
}

struct Stream {
    protocol: Protocol,
    /// S33b: an aggregated stream is a client of its own.
    is_aggregated: bool,
    skimmer: Skimmer,
    /// `None` when the stream has ended.
    machine: Option<server::Stream>,
    sent: VecDeque<Event>,
}

impl Machines {
    pub(crate) fn new() -> Self {
        Self {
            cache: Cache::new(),
            config: StreamConfig::default(),
            now: Duration::ZERO,
            clients: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Runs all streams until none has anything to send. One round more than seems necessary: a
    /// stream may learn in a round what another stream waits for.
    fn settle(&mut self) {
        let mut rounds = 2;
        while rounds > 0 {
            let streams = self.streams.values_mut();
            let sent =
                streams.filter_map(|stream| stream.settle(self.now, &self.cache).then_some(())).count();
            rounds = if sent > 0 { 2 } else { rounds - 1 };
        }
    }
}

impl Wire for Machines {
    fn configure(&mut self, config: StreamConfig) {
        self.config = config;
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), CommitError> {
        self.cache.commit(transaction)?;
        self.settle();
        Ok(())
    }

    fn open(&mut self, name: &str, protocol: Protocol, service: Option<&'static Service>) {
        let default_type = service.map_or("", |service| service.type_url);
        let method = service.map(|service| match protocol {
            Protocol::Sotw => service.sotw,
            Protocol::Delta => service.delta,
        });
        let service = service
            .map_or(server::Service::Aggregated, |service| server::Service::Single(service.type_url.into()));
        let (watch, config) = (self.cache.watch(), self.config.clone());
        let machine = server::Stream::new(watch, service, protocol, config);
        let mut stream = Stream {
            protocol,
            is_aggregated: default_type.is_empty(),
            skimmer: Skimmer::new(default_type.to_owned()),
            machine: Some(machine),
            sent: VecDeque::new(),
        };
        if method == Some(None) {
            // G5: the server handles this before the machine.
            stream.close(Some(Code::Unimplemented), String::new());
        }
        self.streams.insert(name.to_owned(), stream);
    }

    fn send(&mut self, name: &str, request: Request) {
        let group = request.node_id().map(|id| self.clients.entry(id.to_owned()).or_default().clone());
        let stream = self.streams.get_mut(name).unwrap();
        if let Err(error) = stream.take(self.now, &request, group.as_ref()) {
            stream.close(None, error.to_string());
        }
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    fn receive(&mut self, name: &str) -> Option<Event> {
        self.streams.get_mut(name).unwrap().sent.pop_front()
    }

    fn receive_now(&mut self, name: &str) -> Option<Event> {
        self.receive(name)
    }
}

impl Stream {
    fn take(
        &mut self,
        now: Duration,
        request: &Request,
        group: Option<&ClientGroup>,
    ) -> Result<(), StreamError> {
        let Self { skimmer, machine: Some(machine), is_aggregated, .. } = self else {
            panic!("the stream has ended")
        };
        let is_new = skimmer.client().is_none();
        let frame = request.encode();
        let request = skimmer.request(machine.protocol(), &frame).unwrap();
        if let (Some(client), Some(group), true) = (skimmer.client(), group, is_new) {
            machine.on_node(client.parameters.clone());
            if honours_ttl(client) {
                machine.on_ttl_support();
            }
            if !*is_aggregated {
                machine.join(group);
            }
        }
        machine.on_request(now, request)?;
        Ok(())
    }

    /// Sends what is due; returns whether there was anything.
    fn settle(&mut self, now: Duration, cache: &Cache) -> bool {
        let before = self.sent.len();
        while let Some(machine) = &mut self.machine {
            let snapshot = cache.snapshot();
            match machine.next(now, &snapshot) {
                Next::Send(response) => {
                    let chunks = response.bodies.iter().flat_map(|body| body.chunks());
                    let message = chunks
                        .fold(response.head().to_vec(), |bytes, chunk| [&bytes, chunk.as_ref()].concat());
                    let response = Response::decode(self.protocol, message.into());
                    self.sent.push_back(Event::Response(response));
                }
                Next::Wait { .. } => break,
                Next::Close(error) => self.close(None, error.to_string()),
            }
        }
        self.sent.len() > before
    }

    fn close(&mut self, code: Option<Code>, text: String) {
        self.machine = None;
        self.sent.push_back(Event::Closed { code, text });
    }
}

/// Whether the client honours a ttl, by the same rule as in the server.
fn honours_ttl(client: &Client) -> bool {
    client.supports_ttl || ServerConfig::default().ttl_user_agents.contains(&client.user_agent)
}
