//! Whether a proxy can serve clients: its cache has resources, or an upstream answers.
//!
//! A proxy connects when a client subscribes, and a proxy that is not ready gets no clients. So
//! while the cache is empty and no stream is open, a probe connects to the upstream.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{sleep, timeout};
use tonic::{Code, Request};
use tracing::{debug, info, warn};
use xds_core::TypeUrl;
use xds_core::client::health::{Status, SyncState};

use super::{Proxy, ProxyHub};
use crate::codec::Frames;
use crate::transport::{Transport, TransportError};

/// Why a proxy cannot serve clients, or clients of one type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The cache is empty, and no upstream has answered since the start.
    #[error("no upstream has answered yet, and the cache has nothing to serve")]
    Unknown,
    /// The cache is empty, and no upstream answers.
    #[error("no upstream answers, and the cache has nothing to serve: {reason}")]
    Unreachable {
        /// Why the last server could not be reached.
        reason: String,
        /// When a probe failed first.
        since: SystemTime,
    },
    /// The upstream does not serve the type.
    #[error("the upstream does not serve the type: {status}")]
    Rejected {
        /// The status of the upstream.
        status: Status,
    },
    /// Clients subscribe to the type, and the upstream has not answered.
    #[error("the upstream has not answered yet")]
    Unanswered,
}

impl Proxy {
    /// Whether the proxy can serve clients; with a type, whether clients of this type. It can serve
    /// what is in its cache, also while the upstream is away. A type that has nothing in the cache,
    /// and to which no client subscribes, counts as available while an upstream answers.
    ///
    /// The first call starts a probe. While the cache is empty and no stream is open, the probe
    /// connects to the default servers in turn, and calls the health service: after 2 s if none
    /// answered, else after 10 s. A server without this service counts as one that answers.
    ///
    /// # Errors
    /// See [`NotReady`].
    pub fn readiness(&self, type_url: Option<&TypeUrl>) -> Result<(), NotReady> {
        let hub = &self.shared;
        let probe = hub.probe.get_or_init(|| Probe::start(hub));
        let has_content = hub.has_content(type_url);
        if let Some(type_url) = type_url {
            let upstreams = self.upstreams();
            let states = upstreams.iter().flat_map(|upstream| &upstream.types);
            let states: Vec<_> = states.filter(|(of, _)| of == type_url).map(|(_, state)| state).collect();
            // Clients choose the upstreams of --by-node: one that fails is not the type for all.
            if states.iter().any(|state| state.is_readable()) {
                return Ok(());
            }
            let rejected = states.iter().find_map(|state| match state {
                SyncState::Rejected(_, status) => Some(status.clone()),
                _ => None,
            });
            match rejected {
                Some(status) => return Err(NotReady::Rejected { status }),
                None if !states.is_empty() && !has_content => return Err(NotReady::Unanswered),
                None => {}
            }
        }
        if has_content || hub.is_connected() {
            return Ok(());
        }
        // The probe rests while the cache has other content.
        hub.failure().map_or_else(|| probe.result(), Err)
    }
}

impl ProxyHub {
    /// Whether the cache has resources of a type; with `None`, any.
    fn has_content(&self, type_url: Option<&TypeUrl>) -> bool {
        let snapshot = self.cache.snapshot();
        let is_meant = |of: &TypeUrl| type_url.is_none_or(|type_url| type_url == of);
        // Resources from the file are in the cache when the client of their route starts.
        snapshot.counts().any(|(of, names)| names > 0 && is_meant(of))
            || self.lock().machine.restored().iter().any(|restored| is_meant(&restored.id.type_url))
    }

    /// Whether a stream to an upstream is open and works.
    fn is_connected(&self) -> bool {
        let clients: Vec<_> = self.lock().clients.values().cloned().collect();
        clients.iter().any(|client| client.servers().iter().any(|server| server.is_connected))
    }

    /// Why a stream that clients need could not be opened.
    fn failure(&self) -> Option<NotReady> {
        let clients: Vec<_> = self.lock().clients.values().cloned().collect();
        let servers = clients.iter().flat_map(|client| client.servers());
        let mut failures = servers.filter_map(|server| Some((server.uri, server.failure?)));
        let (uri, failure) = failures.next()?;
        Some(NotReady::Unreachable { reason: format!("{uri}: {}", failure.reason), since: failure.since })
    }
}

/// The last attempt to reach an upstream; `None` before the first one has ended.
#[derive(Debug, Default)]
pub(super) struct Probe(Mutex<Option<Result<(), Unreached>>>);

/// No upstream could be reached.
#[derive(Debug, Clone)]
struct Unreached {
    reason: String,
    since: SystemTime,
}

impl Probe {
    fn start(hub: &Arc<ProxyHub>) -> Arc<Self> {
        let (probe, settings) = (Arc::<Self>::default(), &hub.settings);
        let transport = |server: &crate::bootstrap::Server| {
            Transport::new(server.clone(), settings.connector.clone(), settings.credentials.clone()).ok()
        };
        // The proxy has not started with an invalid server.
        let transports = settings.bootstrap.servers.iter().filter_map(transport).collect();
        hub.runtime.spawn(Arc::clone(&probe).run(Arc::downgrade(hub), transports));
        probe
    }

    fn result(&self) -> Result<(), NotReady> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            None => Err(NotReady::Unknown),
            Some(Ok(())) => Ok(()),
            Some(Err(Unreached { reason, since })) => {
                Err(NotReady::Unreachable { reason: reason.clone(), since: *since })
            }
        }
    }

    /// Logs the first failure, and its end.
    fn keep(&self, reached: Result<(), String>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.take().and_then(Result::err);
        match &reached {
            Err(reason) if before.is_none() => {
                warn!(reason, "not ready: no upstream answers, and the cache is empty; trying again");
            }
            Ok(()) if before.is_some() => info!("ready: an upstream answers"),
            _ => {}
        }
        let since = before.map_or_else(SystemTime::now, |before| before.since);
        *last = Some(reached.map_err(|reason| Unreached { reason, since }));
    }

    /// Runs until the proxy is dropped.
    async fn run(self: Arc<Self>, hub: Weak<ProxyHub>, transports: Vec<Transport>) {
        loop {
            let is_needed = {
                let Some(hub) = hub.upgrade().filter(|hub| !hub.lock().is_closed) else { return };
                if hub.is_connected() {
                    // Otherwise an old failure would count once the stream is not needed any more.
                    *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(()));
                }
                !hub.has_content(None) && !hub.is_connected()
            };
            let mut pause = PAUSE_AFTER_FAILURE;
            if is_needed {
                let reached = reach(&transports).await;
                if reached.is_ok() {
                    pause = PAUSE_AFTER_SUCCESS;
                }
                self.keep(reached);
            }
            sleep(pause).await;
        }
    }
}

/// Whether one of the servers answers; the reason of the last one if none does.
async fn reach(transports: &[Transport]) -> Result<(), String> {
    let mut reason = "no server is configured".to_owned();
    for transport in transports {
        let answered = timeout(PROBE_TIMEOUT, check(transport)).await;
        match answered.unwrap_or(Err(TransportError::TimedOut(PROBE_TIMEOUT))) {
            Ok(()) => return Ok(()),
            Err(error) => reason = format!("{}: {}", transport.name(), error.with_cause()),
        }
        debug!(reason, "the probe did not reach an upstream");
    }
    Err(reason)
}

async fn check(transport: &Transport) -> Result<(), TransportError> {
    let channel = transport.connect().await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| TransportError::Connect(error.into()))?;
    // An empty request asks about the server as a whole.
    let mut request = Request::new(Bytes::new());
    transport.authenticate(&mut request).await?;
    match client.unary(request, PathAndQuery::from_static(HEALTH_CHECK), Frames).await {
        Ok(response) => match HealthCheckResponse::decode(response.into_inner()) {
            Ok(HealthCheckResponse { status: NOT_SERVING }) => {
                Err(TransportError::Refused(tonic::Status::unavailable("its health is NOT_SERVING")))
            }
            _ => Ok(()),
        },
        // The server answers: it has no health service, or keeps it for others.
        Err(status) if ANSWERS.contains(&status.code()) => Ok(()),
        Err(status) => Err(TransportError::Refused(status)),
    }
}

/// The answer of `grpc.health.v1.Health`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// `ServingStatus::NOT_SERVING` of that service.
const NOT_SERVING: i32 = 2;

/// Codes that a server answers, and not gRPC in its place.
const ANSWERS: [Code; 4] =
    [Code::Unimplemented, Code::NotFound, Code::PermissionDenied, Code::Unauthenticated];

const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(2);
const PAUSE_AFTER_SUCCESS: Duration = Duration::from_secs(10);
