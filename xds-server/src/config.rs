//! What a server accepts of whom, and how patient it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;
use xds_core::server::StreamConfig;
use xds_core::{Access, ParameterMapping};

use crate::authorize::{Authorizer, Denied};
use crate::observe::Observer;
use crate::peer::Peer;
use crate::skim::Client;

/// What a server accepts, and how patient it is.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Limits and waits of each stream.
    pub stream: StreamConfig,
    /// How clients that ask by name get parameters: from their node (T46). Default: the strings and
    /// bools at the top level of its metadata.
    pub parameters: Arc<ParameterMapping>,
    /// Streams at the same time (G9). Default 100,000; another one is ended with
    /// `RESOURCE_EXHAUSTED`.
    pub streams_limit: usize,
    /// Streams of one connection at the same time (G9), so that none takes the places of all.
    /// Default 20,000: a proxy or a test tool may bring many clients over one. HTTP/2 tells clients
    /// of it, so that they wait, or open another connection.
    pub connection_streams_limit: u32,
    /// Values of `node.user_agent_name` of clients that remove a resource when its TTL ends though
    /// they do not say so (S38). Default: `envoy`.
    pub ttl_user_agents: BTreeSet<String>,
    /// After this time, a tenth more or less, a stream is ended and its client comes back (G14).
    /// Default: never.
    pub stream_age: Option<Duration>,
    /// Is told what happens on streams; [`add_observer`](Self::add_observer) adds one. Default:
    /// nobody.
    pub observer: Option<Arc<dyn Observer>>,
    /// The largest request (G9). Default 16 MiB: 100,000 names with their versions, as a delta
    /// client brings them back after a restart, take 6 MiB. A larger one ends its stream.
    pub request_limit_bytes: usize,
    /// After this time without traffic a connection is probed, and dropped when nothing comes back
    /// within 20 s. Default 30 s.
    pub keepalive: Duration,
    /// Who may read what. Default: everybody may read everything.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// How often it is asked again of each stream. Default 30 s.
    pub authorize_every: Duration,
    /// After this time, a tenth more or less, a connection is asked to leave (GOAWAY) and its
    /// streams end, so that clients spread over new servers (G14). Default: never.
    pub connection_age: Option<Duration>,
    /// TLS handshakes that have their turn at the same time; others wait. One address has a quarter
    /// of the turns, and who lets the server wait loses its turn. Default 256.
    pub handshakes_limit: usize,
    /// How long a peer may take for its TLS ClientHello, for the rest of its handshake, and to
    /// begin with HTTP: for each of them. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long a stream may be without its first request, and how long a request may take from its
    /// first byte to its last; then the stream ends with `DEADLINE_EXCEEDED`. Default 30 s.
    pub request_timeout: Duration,
    /// How much of all requests may have come and wait for the rest (G9). Default 1 GiB; a request
    /// that would take more ends its stream with `RESOURCE_EXHAUSTED`.
    pub partial_requests_limit_bytes: usize,
    /// After this time without an open stream or request a connection is asked to leave. Default 5
    /// min.
    pub idle_timeout: Duration,
    /// Connections at the same time. The oldest one without a request ends for a new one; when all
    /// have requests no new one is taken. Set it below the limit of descriptors of the process.
    /// Default 100,000.
    pub connections_limit: usize,
    /// Connections of one address (of IPv6: of a /64 network) at the same time; more are not taken.
    /// Default: no limit, as many clients may come from one address, by a gateway or a load
    /// balancer.
    pub address_connections_limit: Option<usize>,
    /// How long streams may take to end after the shutdown began. Default 5 s.
    pub drain: Duration,
    /// How many streams are ended in a second then, at most, so that their clients do not come back
    /// to other servers all at once; as [`drain`](Self::drain) allows. Default 1,000.
    pub drain_rate: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            stream: StreamConfig::default(),
            parameters: Arc::default(),
            streams_limit: 100_000,
            connection_streams_limit: 20_000,
            ttl_user_agents: BTreeSet::from(["envoy".to_owned()]),
            stream_age: None,
            observer: None,
            request_limit_bytes: 16 << 20,
            keepalive: Duration::from_secs(30),
            authorizer: None,
            authorize_every: Duration::from_secs(30),
            connection_age: None,
            handshakes_limit: 256,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            partial_requests_limit_bytes: 1 << 30,
            idle_timeout: Duration::from_secs(300),
            connections_limit: 100_000,
            address_connections_limit: None,
            drain: Duration::from_secs(5),
            drain_rate: 1000,
        }
    }
}

impl ServerConfig {
    /// Tells one more of what happens on streams, after those that are there.
    pub fn add_observer(&mut self, observer: Arc<impl Observer + 'static>) {
        self.observer = Some(match self.observer.take() {
            Some(before) => Arc::new(vec![before, observer as Arc<dyn Observer>]),
            None => observer,
        });
    }

    /// Whether a client may be told of TTLs (S38).
    pub(crate) fn honours_ttl(&self, client: &Client) -> bool {
        client.supports_ttl || self.ttl_user_agents.contains(&client.user_agent)
    }

    /// What a client may read; `None` is everything, as nobody was asked.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` with the words of the [`Authorizer`], `UNAUTHENTICATED` when the
    /// certificate of the peer has expired since it was shown.
    pub fn access(&self, peer: &Peer, client: &Client) -> Result<Option<Arc<Access>>, Status> {
        let Some(authorizer) = &self.authorizer else { return Ok(None) };
        if has_expired(peer) {
            return Err(Status::unauthenticated(
                "the certificate of this client has expired: connect with a newer one",
            ));
        }
        let access = authorizer.authorize(peer, client);
        access.map(Some).map_err(|Denied(text)| Status::permission_denied(text))
    }

    /// Whether a peer may look at what all clients have; not with a certificate that has expired
    /// since it was shown. To be asked with each request, as streams and connections last.
    #[must_use]
    pub fn may_inspect(&self, peer: &Peer) -> bool {
        let may = |authorizer: &Arc<dyn Authorizer>| !has_expired(peer) && authorizer.may_inspect(peer);
        self.authorizer.as_ref().is_none_or(may)
    }
}

fn has_expired(peer: &Peer) -> bool {
    peer.identity.as_ref().is_some_and(|identity| identity.has_expired())
}
