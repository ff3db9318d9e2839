//! Who is connected, for people and their programs.

use std::sync::Arc;
use std::time::SystemTime;

use xds_core::server::TypeReport;
use xds_core::{ClientName, Parameters};

use crate::stream_registry::{ClientDetails, LastNack, OpenStream, ResponseCounts, StreamRegistry};

/// The clients of one server; made by [`Server::clients`](crate::Server::clients) before it serves.
#[derive(Debug, Clone)]
pub struct ClientList(Arc<StreamRegistry>);

/// The streams of one node whose connections showed one identity, as its first stream describes it.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    /// Its streams, in the order in which they were opened; at least one.
    streams: Vec<ClientStream>,
}

/// One open stream whose client said who it is, or that it is nobody in particular.
#[derive(Debug, Clone)]
pub struct ClientStream(Arc<OpenStream>);

impl ClientList {
    pub(crate) fn new(registry: Arc<StreamRegistry>) -> Self {
        Self(registry)
    }

    /// The clients that have a stream now, by id, cluster and identity; those without an id are
    /// clients of their own (G6), in the order in which they came. 10,000 take some milliseconds at
    /// most.
    #[must_use]
    pub fn list(&self) -> Vec<ConnectedClient> {
        let client = |streams: Vec<Arc<OpenStream>>| ConnectedClient {
            streams: streams.into_iter().map(ClientStream).collect(),
        };
        self.0.clients(|_| true).into_iter().map(client).collect()
    }

    /// How many streams are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.0.len()
    }

    /// Another number whenever a client came, went or rejected something: for who shows them, and
    /// looks from time to time.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }
}

impl ConnectedClient {
    /// Who it says it is.
    #[must_use]
    pub fn name(&self) -> &ClientName {
        &self.details().client
    }

    /// `node.user_agent_name`.
    #[must_use]
    pub fn user_agent(&self) -> &str {
        &self.details().user_agent
    }

    /// What is derived from its node, for what it asks by name (T46).
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.details().parameters
    }

    /// What its connection showed, which it cannot just say; empty where it showed nothing.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.details().peer.name()
    }

    /// Its streams, at least one.
    #[must_use]
    pub fn streams(&self) -> &[ClientStream] {
        &self.streams
    }

    /// What it rejected last, on whichever stream.
    #[must_use]
    pub fn last_nack(&self) -> Option<LastNack> {
        self.streams.iter().filter_map(ClientStream::last_nack).max_by_key(|nack| nack.at)
    }

    fn details(&self) -> &ClientDetails {
        self.streams[0].0.details().expect("who is listed said who it is")
    }
}

impl ClientStream {
    /// A number that no other stream of the server has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// What it is for, as people say it: `ADS delta`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// When it was opened.
    #[must_use]
    pub fn opened_at(&self) -> SystemTime {
        self.0.opened_at
    }

    /// How many responses there were.
    #[must_use]
    pub fn counts(&self) -> ResponseCounts {
        self.0.counts()
    }

    /// What its client rejected last.
    #[must_use]
    pub fn last_nack(&self) -> Option<LastNack> {
        self.0.last_nack()
    }

    /// What its client has of each type, and what it said of that: costs the stream O(what it asks
    /// for). `None` when the stream ended meanwhile, or does not answer within 5 s.
    pub async fn report(&self) -> Option<Vec<TypeReport>> {
        self.0.report().await
    }
}

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
        ClientDetails { client, user_agent: "envoy".into(), parameters, peer }
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
        // The streams of one client are in the order in which they were opened, not in which they
        // said whose they are.
        let open: Vec<_> = registrations
            .into_iter()
            .rev()
            .map(|(registration, details)| {
                registration.name(details);
                registration
            })
            .collect();
        let list = ClientList::new(Arc::clone(&registry));
        let told = || -> Vec<_> {
            let streams =
                |client: &ConnectedClient| client.streams().iter().map(ClientStream::id).collect::<Vec<_>>();
            list.list().iter().map(|client| (client.identity().to_owned(), streams(client))).collect()
        };
        let (a, b) = ("spiffe://example.org/a".to_owned(), "spiffe://example.org/b".to_owned());
        assert_eq!(told(), [(String::new(), vec![3]), (a, vec![2, 4]), (b, vec![1])]);
        let mut open = open.into_iter();
        // Those of `a` and of nobody; the last stays.
        drop(open.by_ref().take(3).collect::<Vec<_>>());
        assert_eq!(told().len(), 1);
        drop(open);
        assert!(told().is_empty() && list.streams() == 0);
    }

    #[test]
    fn streams_of_one_node_are_one_client_and_the_nameless_are_alone() {
        let (registry, cache) = (Arc::<StreamRegistry>::default(), Cache::new());
        let streams = ["b", "", "a", "b", ""].map(|id| open(&registry, &cache, id));
        let unnamed = registry.list(cache.watch(), "ADS delta".into());
        let list = ClientList::new(Arc::clone(&registry));
        let told = |list: &ClientList| -> Vec<_> {
            list.list().iter().map(|client| (client.name().id.to_string(), client.streams().len())).collect()
        };
        assert_eq!(told(&list), [("".into(), 1), ("".into(), 1), ("a".into(), 1), ("b".into(), 2)]);
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
        stream.note(&Event::Answered(&Verdict::Nacked { type_url, nonce: nonce(), detail }));
        stream.note(&Event::Answered(&acked(&"example.com/a.Route".into())));
        let nack = list.list()[0].last_nack().unwrap();
        assert!(!nack.is_followed_by_ack && nack.type_url == clusters);
        stream.note(&Event::Answered(&acked(&clusters)));
        assert!(list.list()[0].last_nack().unwrap().is_followed_by_ack);
        let counts = list.list()[0].streams()[0].counts();
        assert_eq!(counts, ResponseCounts { sent: 0, acked: 2, nacked: 1 });
    }
}
