//! A client on one stream that ACKs every response at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use xds_core::server::{
    DeltaRequest, Next, Protocol, Request, Response, Service, SotwRequest, Stream, StreamConfig,
};
use xds_core::subscription::Requested;
use xds_core::{Cache, Nonce, Parameters, ResourceName, Watch};

pub(crate) struct Client {
    watch: Arc<Watch>,
    stream: Stream,
    type_url: &'static str,
}

impl Client {
    pub(crate) fn new(cache: &Arc<Cache>, protocol: Protocol, type_url: &'static str) -> Self {
        let (watch, config) = (cache.watch(), StreamConfig::default());
        let stream = Stream::new(Arc::clone(&watch), Service::Aggregated, protocol, config);
        Self { watch, stream, type_url }
    }

    /// A delta client whose node selects its variant.
    pub(crate) fn of_variant(cache: &Arc<Cache>, type_url: &'static str, variant: &str) -> Self {
        let mut client = Self::new(cache, Protocol::Delta, type_url);
        client.stream.on_node(Parameters::from_iter([("variant", variant)]));
        client
    }

    pub(crate) fn subscribe(mut self, names: Vec<ResourceName>) -> Self {
        self.request(names.into(), BTreeMap::new(), None);
        self
    }

    /// A client that has the resources that it subscribed to.
    pub(crate) fn caught_up(mut self) -> Self {
        self.catch_up();
        self.follow();
        self
    }

    /// Subscribes to the names of another stream, with their versions, which only delta can send.
    pub(crate) fn resume(&mut self, names: Vec<ResourceName>, versions: BTreeMap<ResourceName, String>) {
        self.request(names.into(), versions, None);
    }

    /// Calls the machine with the newest state.
    pub(crate) fn next(&mut self) -> Next {
        let snapshot = self.watch.cache().snapshot();
        self.stream.next(Duration::ZERO, &snapshot)
    }

    /// The next response; there must be one.
    pub(crate) fn response(&mut self) -> Response {
        match self.next() {
            Next::Send(response) => response,
            other => panic!("{other:?} is no response"),
        }
    }

    pub(crate) fn ack(&mut self, response: &Response) {
        self.request(Requested::default(), BTreeMap::new(), Some(response.nonce));
    }

    fn catch_up(&mut self) {
        while let Next::Send(response) = self.next() {
            self.ack(&response);
        }
    }

    /// Catches up if a commit woke the stream. Then it waits for the next wake-up, like a task.
    pub(crate) fn follow(&mut self) {
        if self.watch.poll_woken(&Context::from_waker(Waker::noop())).is_ready() {
            self.catch_up();
        }
    }

    fn request(
        &mut self,
        requested: Requested,
        versions: BTreeMap<ResourceName, String>,
        nonce: Option<Nonce>,
    ) {
        let type_url = self.type_url.to_owned();
        let request: Request = match self.stream.protocol() {
            Protocol::Sotw => {
                // An ACK repeats the names; its reader sees this without decoding them.
                let requested = nonce.is_none().then_some(requested);
                SotwRequest { type_url, response_nonce: nonce, requested, ..SotwRequest::default() }.into()
            }
            Protocol::Delta => DeltaRequest {
                type_url,
                subscribe: requested,
                initial_resource_versions: versions,
                response_nonce: nonce,
                ..DeltaRequest::default()
            }
            .into(),
        };
        self.stream.on_request(Duration::ZERO, request).unwrap();
    }
}
