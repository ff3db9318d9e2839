//! Limits, timeouts and hooks of a server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;
use xds_core::Access;
use xds_core::server::StreamConfig;

use crate::authorize::{Authorizer, Denied};
use crate::node_parameters::NodeParameters;
use crate::observe::Observer;
use crate::peer::Peer;
use crate::readiness::Readiness;
use crate::skim::Client;

/// Limits, timeouts and hooks of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Limits and delays of each stream.
    pub stream: StreamConfig,
    /// How a client that subscribes by plain name gets parameters: from its node (T46). Default:
    /// the strings and bools at the top level of the node metadata.
    pub parameters: NodeParameters,
    /// The most streams at the same time (G9). A stream above the limit is closed with
    /// `RESOURCE_EXHAUSTED`. Default 100,000.
    pub streams_limit: usize,
    /// The most streams of one connection at the same time (G9), so that one connection cannot use
    /// all places. A proxy or a test tool may open the streams of many clients on one connection.
    /// HTTP/2 sends the limit to the client, so the client waits or opens another connection.
    /// Default 20,000.
    pub connection_streams_limit: u32,
    /// Values of `node.user_agent_name` of clients that remove a resource when its TTL ends,
    /// although they do not declare this feature (S38). Default: `envoy`.
    pub ttl_user_agents: BTreeSet<String>,
    /// The server closes a stream after this time, plus or minus 10 %. The client then reconnects
    /// (G14). Default: never.
    pub stream_age: Option<Duration>,
    /// Receives the events of all streams; [`add_observer`](Self::add_observer) adds one. Default:
    /// none.
    pub observer: Option<Arc<dyn Observer>>,
    /// Whether gRPC health reports the server, and each type, as serving after the first commit
    /// (G13), and whether new streams are taken. Default: always.
    pub readiness: Option<Arc<dyn Readiness>>,
    /// The largest request, in bytes (G9). A larger one closes its stream. Default 16 MiB: after a
    /// restart, a delta client with 100,000 resources sends their names and versions, which take 6
    /// MiB.
    pub request_limit_bytes: usize,
    /// The server sends an HTTP/2 ping after this time without traffic, and closes the connection
    /// if there is no answer within 20 s. Default 30 s.
    pub keepalive: Duration,
    /// Decides what each client may read. Default: every client may read everything.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// How often the [authorizer](Self::authorizer) is asked again for each open stream. Default 30
    /// s.
    pub authorize_every: Duration,
    /// The server sends GOAWAY to a connection after this time, plus or minus 10 %, and closes its
    /// streams. So clients spread over new servers (G14). Default: never.
    pub connection_age: Option<Duration>,
    /// The most TLS handshakes at the same time; more handshakes wait. One address can use a
    /// quarter of them. A handshake whose peer does not answer in time frees its place and goes on.
    /// Default 256.
    pub handshakes_limit: usize,
    /// The longest time for each of three steps: for the TLS ClientHello, for the rest of the
    /// handshake, and for the first bytes of HTTP. Default 10 s.
    pub handshake_timeout: Duration,
    /// The longest time until the first request of a stream, and from the first byte of any request
    /// to its last. When it is over, the stream is closed with `DEADLINE_EXCEEDED`. Default 30 s.
    pub request_timeout: Duration,
    /// The most bytes of incomplete requests of all clients together (G9). A request that exceeds
    /// it closes its stream with `RESOURCE_EXHAUSTED`. Default 1 GiB.
    pub partial_requests_limit_bytes: usize,
    /// The server sends GOAWAY to a connection after this time without an open request. Default 5
    /// min.
    pub idle_timeout: Duration,
    /// The most connections at the same time. At the limit, the server closes the connection that
    /// has had no request for the longest time to make room for a new one. If all connections have
    /// requests, the server refuses the new one. Choose a limit below the file descriptor limit of
    /// the process. Default 100,000.
    pub connections_limit: usize,
    /// The most connections of one address (IPv6: of one /64 network) at the same time; the server
    /// refuses more. Default: no limit, because many clients may share one address behind a gateway
    /// or load balancer.
    pub address_connections_limit: Option<usize>,
    /// How long the server takes to close all streams after the shutdown began. Default 5 s.
    pub drain: Duration,
    /// The most streams that the server closes per second during a shutdown, as far as
    /// [`drain`](Self::drain) allows. So their clients do not all reconnect to other servers at
    /// once. Default 1,000.
    pub drain_rate: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            stream: StreamConfig::default(),
            parameters: NodeParameters::default(),
            streams_limit: 100_000,
            connection_streams_limit: 20_000,
            ttl_user_agents: BTreeSet::from(["envoy".to_owned()]),
            stream_age: None,
            observer: None,
            readiness: None,
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
    /// Adds an observer, which receives each event after the observers that were added before.
    pub fn add_observer(&mut self, observer: Arc<impl Observer + 'static>) {
        self.observer = Some(match self.observer.take() {
            Some(before) => Arc::new(vec![before, observer as Arc<dyn Observer>]),
            None => observer,
        });
    }

    /// Whether responses to this client may carry TTLs (S38).
    pub(crate) fn honours_ttl(&self, client: &Client) -> bool {
        client.supports_ttl || self.ttl_user_agents.contains(&client.user_agent)
    }

    /// Whether new streams and polls are taken at present.
    ///
    /// # Errors
    /// `UNAVAILABLE` with the text of [`Readiness::refuses_streams`].
    pub fn takes_streams(&self) -> Result<(), Status> {
        let refusal = self.readiness.as_ref().and_then(|readiness| readiness.refuses_streams());
        refusal.map_or(Ok(()), |text| Err(Status::unavailable(text)))
    }

    /// What a client may read. `None` means everything: there is no authorizer.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` with the text of the [`Authorizer`]; `UNAUTHENTICATED` if the client
    /// certificate has expired since the handshake.
    pub fn access(&self, peer: &Peer, client: &Client) -> Result<Option<Arc<Access>>, Status> {
        let Some(authorizer) = &self.authorizer else { return Ok(None) };
        if has_expired(peer) {
            return Err(Status::unauthenticated(
                "the client certificate has expired: reconnect with a valid one",
            ));
        }
        let access = authorizer.authorize(peer, client);
        access.map(Some).map_err(|Denied(text)| Status::permission_denied(text))
    }

    /// Whether a peer may inspect the state of all clients. False if its certificate has expired
    /// since the handshake. Call it for each request, because streams and connections last long.
    #[must_use]
    pub fn may_inspect(&self, peer: &Peer) -> bool {
        let may = |authorizer: &Arc<dyn Authorizer>| !has_expired(peer) && authorizer.may_inspect(peer);
        self.authorizer.as_ref().is_none_or(may)
    }
}

fn has_expired(peer: &Peer) -> bool {
    peer.identity.as_ref().is_some_and(|identity| identity.has_expired())
}
