//! The connected clients, for people and programs.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::ready;
use futures_util::stream::{self, StreamExt as _};
use xds_core::server::TypeReport;
use xds_core::{ClientName, Parameters, ResourceName, SkippedMetadata, TypeUrl};

use crate::stream_registry::{
    ClientDetails, LastNack, OpenStream, ResponseCounts, StandingNack, StreamRegistry,
};

/// The connected clients of one server. [`Server::clients`](crate::Server::clients) makes it before
/// the server starts.
#[derive(Debug, Clone)]
pub struct ClientList(Arc<StreamRegistry>);

/// One connected client: the streams of one node whose connections have the same identity. Its
/// details are those of its first stream.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    /// Its streams in the order of their opening; at least one.
    streams: Vec<ClientStream>,
}

/// One open stream that has had its first request.
#[derive(Debug, Clone)]
pub struct ClientStream(Arc<OpenStream>);

impl ClientList {
    pub(crate) fn new(registry: Arc<StreamRegistry>) -> Self {
        Self(registry)
    }

    /// The clients that have an open stream, sorted by id, cluster and identity. Each stream
    /// without a node id is a client of its own (G6); those are in the order of their opening. A
    /// list of 10,000 takes some milliseconds at most.
    #[must_use]
    pub fn list(&self) -> Vec<ConnectedClient> {
        let client = |streams: Vec<Arc<OpenStream>>| ConnectedClient {
            streams: streams.into_iter().map(ClientStream).collect(),
        };
        self.0.clients(|_| true).into_iter().map(client).collect()
    }

    /// How many streams have or subscribe to a resource that is meant, by its type, its name, and whether they
    /// subscribe to this name, and not only to a wildcard or glob. A stream that ends meanwhile, or does not answer
    /// within 5 s, counts, too.
    pub async fn with_resource(&self, is_it: impl Fn(&TypeUrl, &ResourceName, bool) -> bool) -> usize {
        let streams: Vec<_> = self.list().into_iter().flat_map(|client| client.streams).collect();
        let names = async |stream: ClientStream| match stream.report().await {
            Some(types) => types.iter().any(|of| {
                of.resources.iter().any(|resource| is_it(&of.type_url, &resource.name, resource.is_named))
            }),
            None => true,
        };
        let asked = stream::iter(streams.into_iter().map(names)).buffer_unordered(ASKED_AT_ONCE);
        asked.filter(|names| ready(*names)).count().await
    }

    /// How many streams are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.0.len()
    }

    /// A number that changes when a client connects, disconnects or rejects something. A page that
    /// shows the list can poll it.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }
}

impl ConnectedClient {
    /// The id and the cluster of its node.
    #[must_use]
    pub fn name(&self) -> &ClientName {
        &self.details().client
    }

    /// `node.user_agent_name`.
    #[must_use]
    pub fn user_agent(&self) -> &str {
        &self.details().user_agent
    }

    /// The parameters for its subscriptions by plain name, derived from its node (T46).
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.details().parameters
    }

    /// The metadata of its node that gives no parameter, because it is no string (T46).
    #[must_use]
    pub fn skipped_metadata(&self) -> &[SkippedMetadata] {
        &self.details().skipped_metadata
    }

    /// The first name in its certificate, which the server has verified; empty without a
    /// certificate.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.details().peer.name()
    }

    /// Its streams, at least one.
    #[must_use]
    pub fn streams(&self) -> &[ClientStream] {
        &self.streams
    }

    /// Its last NACK on any of its streams.
    #[must_use]
    pub fn last_nack(&self) -> Option<LastNack> {
        self.streams.iter().filter_map(ClientStream::last_nack).max_by_key(|nack| nack.at)
    }

    fn details(&self) -> &ClientDetails {
        self.streams[0].0.details().expect("a stream is listed under a client only after its details are set")
    }
}

impl ClientStream {
    /// A number that is unique among all streams of the server, ended streams too.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Its service and protocol for people, such as `ADS delta`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// When it was opened.
    #[must_use]
    pub fn opened_at(&self) -> SystemTime {
        self.0.opened_at
    }

    /// How many responses it has sent, and their ACKs and NACKs.
    #[must_use]
    pub fn counts(&self) -> ResponseCounts {
        self.0.counts()
    }

    /// Whether its client brought resources from an earlier stream. It may be sent nothing, because it
    /// has everything.
    #[must_use]
    pub fn has_brought_resources(&self) -> bool {
        self.0.has_brought()
    }

    /// The last NACK of its client.
    #[must_use]
    pub fn last_nack(&self) -> Option<LastNack> {
        self.0.last_nack()
    }

    /// What its client rejected of each type, and no later response has corrected.
    #[must_use]
    pub fn standing_nacks(&self) -> Vec<StandingNack> {
        self.0.standing_nacks()
    }

    /// The state of each type: the resources of the client, and whether it ACKed them. The cost for
    /// the stream is O(its subscriptions). `None` if the stream has ended or does not answer within
    /// 5 s.
    pub async fn report(&self) -> Option<Vec<TypeReport>> {
        self.0.report().await
    }
}

/// Streams whose reports are in memory at the same time.
const ASKED_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use xds_core::server::Verdict;
    use xds_core::{Cache, Nonce, TypeUrl};

    use super::*;
    use crate::observe::Event;
    use crate::peer::{Identity, Peer};
    use crate::stream_registry::Registration;

    fn open(registry: &Arc<StreamRegistry>, cache: &Arc<Cache>, id: &str) -> Registration {
        let registration = registry.list(cache.watch(), "ADS delta".into());
        registration.name(details(id, Peer::default()));
        registration
    }

    fn details(id: &str, peer: Peer) -> ClientDetails {
        let client = ClientName { id: id.into(), cluster: "web".into() };
        let parameters = Parameters::from_iter([("env", "prod")]);
        let skipped_metadata = Vec::new();
        ClientDetails { client, user_agent: "envoy".into(), parameters, skipped_metadata, peer }
    }

    #[test]
    fn who_shows_another_identity_is_another_client_whatever_it_says_of_itself() {
        let (registry, cache) = (Arc::<StreamRegistry>::default(), Cache::new());
        let registrations = ["b", "a", "", "a"].map(|identity| {
            let names = vec![format!("spiffe://example.org/{identity}")];
            let identity = (!identity.is_empty()).then(|| Arc::new(Identity::new(names, SystemTime::now())));
            let registration = registry.list(cache.watch(), "ADS delta".into());
            (registration, details("n", Peer { identity, ..Peer::default() }))
        });
        // The streams of a client are in the order of their opening, even if a later stream sent
        // its first request earlier.
        let open: Vec<_> = registrations
            .into_iter()
            .rev()
            .map(|(registration, details)| {
                registration.name(details);
                registration
            })
            .collect();
        let list = ClientList::new(Arc::clone(&registry));
        let listed = || -> Vec<_> {
            let streams =
                |client: &ConnectedClient| client.streams().iter().map(ClientStream::id).collect::<Vec<_>>();
            list.list().iter().map(|client| (client.identity().to_owned(), streams(client))).collect()
        };
        let (a, b) = ("spiffe://example.org/a".to_owned(), "spiffe://example.org/b".to_owned());
        assert_eq!(listed(), [(String::new(), vec![3]), (a, vec![2, 4]), (b, vec![1])]);
        let mut open = open.into_iter();
        // The streams of `a` and the one without an identity end; the stream of `b` stays.
        drop(open.by_ref().take(3).collect::<Vec<_>>());
        assert_eq!(listed().len(), 1);
        drop(open);
        assert!(listed().is_empty() && list.streams() == 0);
    }

    #[test]
    fn streams_of_one_node_are_one_client_and_the_nameless_are_alone() {
        let (registry, cache) = (Arc::<StreamRegistry>::default(), Cache::new());
        let streams = ["b", "", "a", "b", ""].map(|id| open(&registry, &cache, id));
        let unnamed = registry.list(cache.watch(), "ADS delta".into());
        let list = ClientList::new(Arc::clone(&registry));
        let listed = |list: &ClientList| -> Vec<_> {
            list.list().iter().map(|client| (client.name().id.to_string(), client.streams().len())).collect()
        };
        assert_eq!(listed(&list), [("".into(), 1), ("".into(), 1), ("a".into(), 1), ("b".into(), 2)]);
        assert_eq!(list.list()[3].parameters(), &Parameters::from_iter([("env", "prod")]));
        let before = list.changes();
        drop((streams, unnamed));
        assert!(list.list().is_empty() && list.changes() != before);
    }

    #[test]
    fn c20_the_last_nack_is_told_until_the_stream_ends_and_whether_an_ack_followed() {
        let (registry, cache) = (Arc::<StreamRegistry>::default(), Cache::new());
        let stream = open(&registry, &cache, "a");
        let list = ClientList::new(registry);
        let (clusters, nonce) = (TypeUrl::from("example.com/a.Cluster"), || Nonce::FOREIGN);
        let acked = |type_url: &TypeUrl| Verdict::Acked { type_url: type_url.clone(), nonce: nonce() };
        let (type_url, detail) = (clusters.clone(), "no".to_owned());
        stream.note(&Event::Answered(&Verdict::Nacked {
            type_url,
            nonce: nonce(),
            detail,
            is_repeat: false,
        }));
        stream.note(&Event::Answered(&acked(&"example.com/a.Route".into())));
        let nack = list.list()[0].last_nack().unwrap();
        assert!(!nack.is_followed_by_ack && nack.type_url == clusters);
        stream.note(&Event::Answered(&acked(&clusters)));
        assert!(list.list()[0].last_nack().unwrap().is_followed_by_ack);
        let counts = list.list()[0].streams()[0].counts();
        assert_eq!(counts, ResponseCounts { sent: 0, acked: 2, nacked: 1 });
    }
}
