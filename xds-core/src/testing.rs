//! A client in memory, for tests of control planes: without sockets, tasks and a clock of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::{Message, Name};
use xds_proto::envoy::service::discovery::v3::DeltaDiscoveryResponse;

use crate::cache::{Cache, Watch};
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::server::{DeltaRequest, Next, Protocol, Response, Service, Stream, StreamConfig};

/// A client with one delta stream to a cache. It ACKs each response, and keeps what it was sent.
///
/// The machine of the stream is that of the server, so the client gets what a client over a socket
/// would get, in the same order. It is sent everything that is due when it is looked at. Time stands
/// still unless [`advance`](Self::advance) moves it.
///
/// ```
/// use std::time::Duration;
/// use xds_core::testing::TestClient;
/// use xds_core::{Cache, Resource, Transaction};
///
/// # #[derive(Clone, PartialEq, prost::Message)]
/// # struct Cluster {
/// #     #[prost(string, tag = "1")]
/// #     name: String,
/// # }
/// # impl prost::Name for Cluster {
/// #     const NAME: &'static str = "Cluster";
/// #     const PACKAGE: &'static str = "envoy.config.cluster.v3";
/// # }
/// let cache = Cache::new();
/// let mut prod = TestClient::new(&cache, [("env", "prod")].into_iter().collect());
/// let mut test = TestClient::new(&cache, [("env", "test")].into_iter().collect());
/// prod.subscribe::<Cluster>("shop");
/// test.subscribe::<Cluster>("shop");
/// assert!(!prod.is_absent::<Cluster>("shop"), "there was no commit yet, so nobody knows");
///
/// let cluster = Cluster { name: "shop".into() };
/// let mut transaction = Transaction::new();
/// transaction.put(Resource::of(&cluster)?.with_constraints("env=prod".parse()?));
/// cache.commit(transaction)?;
/// assert_eq!(prod.get::<Cluster>("shop"), Some(cluster));
/// assert!(test.is_absent::<Cluster>("shop"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TestClient {
    watch: Arc<Watch>,
    stream: Stream,
    now: Duration,
    has: BTreeMap<(TypeUrl, ResourceName), Bytes>,
    absent: BTreeSet<(TypeUrl, ResourceName)>,
    /// The reason for which it rejects the next response.
    rejection: Option<String>,
}

impl TestClient {
    /// A client that subscribes by names, and gets these parameters from its node.
    #[must_use]
    pub fn new(cache: &Arc<Cache>, parameters: Parameters) -> Self {
        let watch = cache.watch();
        let config = StreamConfig::default();
        let mut stream = Stream::new(Arc::clone(&watch), Service::Aggregated, Protocol::Delta, config);
        stream.on_node(parameters);
        let (has, absent) = (BTreeMap::new(), BTreeSet::new());
        Self { watch, stream, now: Duration::ZERO, has, absent, rejection: None }
    }

    /// Subscribes to a resource; to all of the type by the name `*`.
    ///
    /// # Panics
    /// If the server ends the stream, also in the other methods.
    pub fn subscribe<M: Name>(&mut self, name: impl Into<ResourceName>) {
        let type_url = TypeUrl::of::<M>().as_str().to_owned();
        let subscribe = vec![name.into()].into();
        self.request(DeltaRequest { type_url, subscribe, ..DeltaRequest::default() });
    }

    /// Ends a subscription, and forgets the resource.
    pub fn unsubscribe<M: Name>(&mut self, name: impl Into<ResourceName>) {
        let (type_url, name) = (TypeUrl::of::<M>(), name.into());
        let (text, unsubscribe) = (type_url.as_str().to_owned(), vec![name.clone()].into());
        self.request(DeltaRequest { type_url: text, unsubscribe, ..DeltaRequest::default() });
        let key = (type_url, name);
        self.has.remove(&key);
        self.absent.remove(&key);
    }

    /// The message that the client has.
    ///
    /// # Panics
    /// If the payload is not of the type.
    pub fn get<M: Message + Name + Default>(&mut self, name: impl Into<ResourceName>) -> Option<M> {
        self.receive();
        let payload = self.has.get(&(TypeUrl::of::<M>(), name.into()))?;
        Some(M::decode(payload.clone()).expect("the payload is of its type"))
    }

    /// Whether the server said that the resource does not exist for this client.
    pub fn is_absent<M: Name>(&mut self, name: impl Into<ResourceName>) -> bool {
        self.receive();
        self.absent.contains(&(TypeUrl::of::<M>(), name.into()))
    }

    /// Rejects the next response with this reason, and keeps what it had.
    pub fn reject_next(&mut self, reason: &str) {
        self.rejection = Some(reason.to_owned());
    }

    /// Moves the time, such as over a TTL or over the time for which the server keeps a removed
    /// resource.
    pub fn advance(&mut self, by: Duration) {
        self.receive();
        self.now += by;
    }

    /// Takes every response that is due, as `get` and `is_absent` do: afterwards the commits before it
    /// are ACKed.
    pub fn receive(&mut self) {
        loop {
            match self.stream.next(self.now, &self.watch.snapshot()) {
                Next::Send(response) => self.take(&response),
                Next::Wait { .. } => return,
                Next::Close(error) => panic!("the server ends the stream: {error}"),
            }
        }
    }

    fn request(&mut self, request: DeltaRequest) {
        if let Err(error) = self.stream.on_request(self.now, request) {
            panic!("the server ends the stream: {error}");
        }
    }

    fn take(&mut self, response: &Response) {
        let error_detail = self.rejection.take();
        if error_detail.is_none() {
            self.apply(response);
        }
        let type_url = response.type_url.as_str().to_owned();
        let response_nonce = Some(response.nonce);
        self.request(DeltaRequest { type_url, response_nonce, error_detail, ..DeltaRequest::default() });
    }

    fn apply(&mut self, response: &Response) {
        let mut bytes = response.head().to_vec();
        let chunks = response.bodies.iter().flat_map(|body| body.chunks());
        chunks.for_each(|chunk| bytes.extend_from_slice(chunk.as_ref()));
        let decoded = DeltaDiscoveryResponse::decode(bytes.as_slice()).expect("the server encodes responses");
        let key = |name: &str| (response.type_url.clone(), ResourceName::from(name));
        for resource in decoded.resources {
            // S39: without a payload it renews a TTL.
            if let Some(payload) = resource.resource {
                self.absent.remove(&key(&resource.name));
                self.has.insert(key(&resource.name), payload.value);
            }
        }
        for name in &decoded.removed_resources {
            self.has.remove(&key(name));
            self.absent.insert(key(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientOutcome, Outcome, Resource, Transaction, VariantId};

    /// A payload with the name in field 1.
    #[derive(Clone, PartialEq, Message)]
    struct Cluster {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "28")]
        alt_stat_name: String,
    }

    impl Name for Cluster {
        const NAME: &'static str = "Cluster";
        const PACKAGE: &'static str = "envoy.config.cluster.v3";
    }

    fn cluster(name: &str, alt_stat_name: &str) -> Cluster {
        Cluster { name: name.into(), alt_stat_name: alt_stat_name.into() }
    }

    fn put(cache: &Cache, name: &str, text: &str) -> crate::Commit {
        let mut transaction = Transaction::new();
        transaction.put(Resource::of(&cluster(name, text)).unwrap());
        cache.commit(transaction).unwrap()
    }

    fn client(cache: &Arc<Cache>) -> TestClient {
        let mut client = TestClient::new(cache, Parameters::new());
        client.subscribe::<Cluster>("a");
        client
    }

    #[test]
    fn a_client_has_what_was_committed_last() {
        let cache = Cache::new();
        let mut client = client(&cache);
        assert_eq!(client.get::<Cluster>("a"), None);
        put(&cache, "a", "1");
        assert_eq!(client.get::<Cluster>("a"), Some(cluster("a", "1")));
        put(&cache, "a", "2");
        put(&cache, "b", "1");
        assert_eq!(client.get::<Cluster>("a"), Some(cluster("a", "2")));
        assert_eq!(client.get::<Cluster>("b"), None, "it did not subscribe to b");
        client.subscribe::<Cluster>("*");
        assert_eq!(client.get::<Cluster>("b"), Some(cluster("b", "1")));
    }

    #[test]
    fn g13_a_resource_is_absent_only_after_the_first_commit() {
        let cache = Cache::new();
        let mut client = client(&cache);
        assert!(!client.is_absent::<Cluster>("a"));
        put(&cache, "b", "1");
        assert!(client.is_absent::<Cluster>("a"));
        put(&cache, "a", "1");
        assert!(!client.is_absent::<Cluster>("a"));
    }

    #[test]
    fn s33_a_removed_resource_goes_when_its_time_is_over() {
        let cache = Cache::new();
        let mut client = client(&cache);
        put(&cache, "a", "1");
        client.receive();
        let mut transaction = Transaction::new();
        transaction.remove(VariantId::unconstrained(TypeUrl::of::<Cluster>(), "a"));
        cache.commit(transaction).unwrap();
        client.advance(Duration::from_secs(60));
        assert_eq!(client.get::<Cluster>("a"), None);
        assert!(client.is_absent::<Cluster>("a"));
    }

    #[test]
    fn d4_a_rejected_response_is_not_used_and_its_commit_is_not_acked() {
        let cache = Cache::new();
        let mut client = client(&cache);
        put(&cache, "a", "1");
        client.receive();
        client.reject_next("bad");
        let commit = put(&cache, "a", "2");
        assert_eq!(client.get::<Cluster>("a"), Some(cluster("a", "1")));
        let outcomes = |commit: &crate::Commit| {
            let clients = commit.applied(|_| true).results();
            clients.into_iter().map(|ClientOutcome { outcome, .. }| outcome).collect::<Vec<_>>()
        };
        assert!(matches!(&outcomes(&commit)[..], [Outcome::Nacked { .. }]));
        let correction = put(&cache, "a", "3");
        assert_eq!(client.get::<Cluster>("a"), Some(cluster("a", "3")));
        assert_eq!(outcomes(&correction), [Outcome::Acked]);
    }

    #[test]
    fn after_the_end_of_a_subscription_nothing_comes() {
        let cache = Cache::new();
        let mut client = client(&cache);
        put(&cache, "a", "1");
        client.receive();
        client.unsubscribe::<Cluster>("a");
        put(&cache, "a", "2");
        assert_eq!(client.get::<Cluster>("a"), None);
    }
}
