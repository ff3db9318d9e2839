//! REST polling: discovery as JSON (S41). Polls use the cache and the stream machine that the
//! streams use.
//!
//! `POST /v3/discovery:clusters`, and the paths of the other types in [`SERVICES`], take a
//! `DiscoveryRequest` as proto3 JSON. Field names may be in `snake_case`, and unknown fields are
//! ignored. Without a `type_url`, the path decides the type. Names, wildcards, locators and
//! parameters from the node have the same meaning as in the first request of a stream. The nonce
//! and `error_detail` are ignored.
//!
//! | status | when |
//! | --- | --- |
//! | 200 | a `DiscoveryResponse` as proto3 JSON, without a nonce, which only streams need |
//! | 304 | the `version_info` of the request is the current version of the requested resources |
//! | 400 | the body is no `DiscoveryRequest` of the type, or no requested name is valid and readable for the client |
//! | 403 | the policy refuses the client; or a web page sent the request, perhaps of another site (DNS rebinding) |
//! | 408 | the body did not arrive within 30 s |
//! | 404, 405 | an unknown path; a method other than POST |
//! | 413 | more bytes, names or parameters than the limits allow |
//! | 500 | JSON cannot represent a resource. An answer without it would delete it, so the client gets none and keeps its resources |
//! | 503 | no source has committed yet (G13), or unread answers fill the budget; `Retry-After` says when to poll again |
//!
//! From 400 on, the body of the answer is `{"code": .., "message": ".."}` with a gRPC code. There
//! is no delta, no ADS, and no order between types: clients poll each type by itself.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tokio::net::TcpListener;
//! use xds::folder::Descriptors;
//! use xds::rest::{self, RestConfig};
//! use xds::{Cache, Server};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new();
//! let routes = rest::routes(Arc::clone(&cache), Arc::new(Descriptors::envoy()), RestConfig::default());
//! let listener = TcpListener::bind("127.0.0.1:18000").await?;
//! Server::new(cache).with_routes(routes).serve(listener, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, post};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt as _;
use xds_core::server::{Next, Protocol, Service, Stream};
use xds_core::{Access, Cache, Snapshot, TypeUrl, Version, Watch};
use xds_proto::service::SERVICES;
use xds_server::skim::{Client as StreamClient, Skimmer};
use xds_server::{Peer, ServerConfig, Stopping};

use crate::folder::Descriptors;
use answers::{Reservation, SharedAnswer};
use error::PollError;
use response::PollResponse;

pub use answers::Answers;

mod answers;
mod error;
mod json;
mod response;

/// Limits of polls, and how long they may wait.
#[derive(Debug, Clone)]
pub struct RestConfig {
    /// Limits and parameters, as for streams. Its timeouts do not apply: the server answers a poll
    /// at once, or after `hold`.
    pub server: ServerConfig,
    /// How long a poll waits for a change if its client has the current version; then it gets a
    /// 304. Default zero: Envoy gives up after its `request_timeout`, by default 1 s, and counts
    /// that as a failure. With a value below the timeout of all clients, polls become long polls,
    /// and clients get changes at once.
    pub hold: Duration,
    /// How long a poll waits for the first commit before it gets a 503 (G13). Default 500 ms, half
    /// of Envoy's default `request_timeout`.
    pub sync_wait: Duration,
    /// The largest answer. Default 64 MiB, twice what Envoy accepts. The server converts as many
    /// answers at a time as there are processors. Each answer is in memory as a whole until its
    /// clients have read it.
    pub answer_limit_bytes: usize,
    /// How long a client may take to read its answer; then the server drops the answer. Default 60
    /// s. A client does not wait longer than its own request timeout anyway.
    pub answer_timeout: Duration,
    /// The budget for the bytes of all requests and answers. Default 256 MiB. Polls of the same
    /// content share an answer.
    pub answers: Arc<Answers>,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            hold: Duration::ZERO,
            sync_wait: Duration::from_millis(500),
            answer_limit_bytes: 64 << 20,
            answer_timeout: Duration::from_secs(60),
            answers: Answers::new(256 << 20),
        }
    }
}

/// The paths, for [`Server::with_routes`](crate::Server::with_routes). The descriptors convert
/// resources to JSON.
pub fn routes(cache: Arc<Cache>, descriptors: Arc<Descriptors>, config: RestConfig) -> Router {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let (conversions, last_failure) = (Arc::new(Semaphore::new(processors)), Mutex::default());
    let state = Arc::new(RestState { cache, descriptors, config, conversions, last_failure });
    let paths = SERVICES.iter().filter_map(|row| Some((row.rest?, row.type_url)));
    let add = |router: Router, (path, type_url): (&str, &str)| {
        let endpoint = Endpoint { state: Arc::clone(&state), type_url: type_url.into() };
        router.route(path, post(poll).with_state(endpoint))
    };
    paths.fold(Router::new(), add)
}

/// The state that all paths share.
#[derive(Debug)]
struct RestState {
    cache: Arc<Cache>,
    descriptors: Arc<Descriptors>,
    config: RestConfig,
    conversions: Arc<Semaphore>,
    /// The failure that was logged last, and when: without this, each poll of each client would log
    /// it again.
    last_failure: Mutex<(String, Option<Instant>)>,
}

/// The path of one type.
#[derive(Debug, Clone)]
struct Endpoint {
    state: Arc<RestState>,
    type_url: TypeUrl,
}

async fn poll(
    State(endpoint): State<Endpoint>,
    stopping: Option<Extension<Stopping>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // Browsers send `Origin` with each POST, xDS clients never do. `Host` does not help: Envoy
    // sends the name of a cluster in it.
    let answered = if headers.contains_key(header::ORIGIN) {
        Err(PollError::WebPage)
    } else {
        let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
        endpoint.answer(body, &peer, stopping.map(|Extension(stopping)| stopping)).await
    };
    let RestConfig { answers, answer_timeout, .. } = &endpoint.state.config;
    match answered {
        Ok(Some(answer)) => answer.respond(Arc::clone(answers), *answer_timeout),
        Ok(None) => StatusCode::NOT_MODIFIED.into_response(),
        Err(error) => {
            endpoint.log(&error);
            error.into_response()
        }
    }
}

impl Endpoint {
    /// The body of a response; `None` if the client has the current version.
    async fn answer(
        &self,
        body: Body,
        peer: &Peer,
        stopping: Option<Stopping>,
    ) -> Result<Option<Arc<SharedAnswer>>, PollError> {
        let mut poll = {
            // The body of an Envoy lists all its extensions. Free it here: a waiting poll does not
            // need it.
            let (body, _reservation) = self.read(body).await?;
            Poll::new(&self.state, &self.type_url, peer, &body)?
        };
        let Some(snapshot) = poll.wait(&self.state.config, stopping).await? else { return Ok(None) };
        poll.authorize_again(&self.state.config.server, peer)?;
        let answer = poll.answer(&snapshot)?;
        let permit = Arc::clone(&self.state.conversions).acquire_owned().await;
        let state = Arc::clone(&self.state);
        // The conversion takes some hundred milliseconds for 10,000 clusters.
        let converted = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let PollResponse { version, type_url, .. } = &answer;
            let wire = answer.wire();
            let key = (type_url.clone(), version.clone(), Version::of_payload(&wire));
            let RestConfig { answers, answer_limit_bytes, .. } = &state.config;
            let make = |reservation: &mut _| {
                answer.to_json(wire, &state.descriptors, &snapshot, *answer_limit_bytes, reservation)
            };
            answers.shared(key, make)
        });
        Ok(Some(converted.await??))
    }

    /// The body of a request, and the reservation for its bytes.
    async fn read(&self, body: Body) -> Result<(Vec<u8>, Reservation), PollError> {
        let RestConfig { server, answers, .. } = &self.state.config;
        let (limit, mut reservation) = (server.request_limit_bytes, answers.new_reservation());
        let mut chunks = body.into_data_stream();
        let read = async {
            let mut body = Vec::new();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|error| PollError::Body(error.to_string()))?;
                if body.len() + chunk.len() > limit {
                    return Err(PollError::BodyTooLarge { limit });
                }
                body.extend_from_slice(&chunk);
                reservation.grow_to(body.len())?;
            }
            Ok(body)
        };
        let read = tokio::time::timeout(BODY_WAIT, read).await;
        Ok((read.map_err(|_| PollError::BodyTooLate { limit: BODY_WAIT })??, reservation))
    }

    fn log(&self, error: &PollError) {
        let (r#type, text) = (self.type_url.message_name(), error.text());
        if error.status() != StatusCode::INTERNAL_SERVER_ERROR {
            tracing::debug!(r#type, error = text, "a poll is refused");
            return;
        }
        let mut last = self.state.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        // If polls fail in several ways, the log shows them in turn.
        if last.0 != text && last.1.is_none_or(|at| at.elapsed() >= FAILURES_APART) {
            tracing::error!(
                r#type,
                error = text,
                "REST polls of this type get an error; clients keep their resources"
            );
            *last = (text, Some(Instant::now()));
        }
    }
}

/// One request: a stream that ends with its first response. It does not belong to the group of
/// streams of its client: there is no order between polls of several types.
#[derive(Debug)]
struct Poll {
    machine: Stream,
    watch: Arc<Watch>,
    type_url: TypeUrl,
    /// The version that the client has.
    version: String,
    client: StreamClient,
    access: Option<Arc<Access>>,
}

impl Poll {
    fn new(state: &RestState, type_url: &TypeUrl, peer: &Peer, body: &[u8]) -> Result<Self, PollError> {
        let ServerConfig { stream, parameters, .. } = &state.config.server;
        let taken = state.config.server.takes_streams();
        taken.map_err(|status| PollError::Refused(status.message().to_owned()))?;
        // Read the request as a stream does: names, locators and the node are interpreted in one
        // place.
        let frame = json::request_frame(body)?;
        let skimmer = Skimmer::new(type_url.as_str().to_owned());
        let mut skimmer = skimmer.with_parameters(parameters.clone(), peer.clone());
        let mut request = skimmer.sotw(&frame)?;
        // S41: compare the version here. If the machine knew it, the machine would leave out
        // resources that a stream need not get again.
        let version = std::mem::take(&mut request.version_info);
        let watch = state.cache.watch();
        watch.keep_stable();
        let service = Service::Single(type_url.clone());
        let mut machine = Stream::new(Arc::clone(&watch), service, Protocol::Sotw, stream.clone());
        machine.on_poll();
        let client = skimmer.client().cloned().unwrap_or_default();
        let access = authorize(&state.config.server, peer, &client)?;
        if let Some(access) = &access {
            machine.on_access(Arc::clone(access));
        }
        // T46.
        machine.on_node(client.parameters.clone());
        let names_something = request.requested.as_ref().is_some_and(|requested| !requested.is_empty());
        machine.on_request(Duration::ZERO, request)?;
        if names_something && !machine.is_subscribed(type_url) {
            return Err(PollError::NothingLeft);
        }
        Ok(Self { machine, watch, type_url: type_url.clone(), version, client, access })
    }

    /// While a poll waits, the policy may change and the certificate of its client may expire.
    fn authorize_again(&self, config: &ServerConfig, peer: &Peer) -> Result<(), PollError> {
        if authorize(config, peer, &self.client)? == self.access {
            Ok(())
        } else {
            Err(PollError::OtherAccess)
        }
    }

    /// Waits for content that the client does not have; `None` if none comes in time.
    async fn wait(
        &mut self,
        config: &RestConfig,
        mut stopping: Option<Stopping>,
    ) -> Result<Option<Arc<Snapshot>>, PollError> {
        let start = Instant::now();
        loop {
            let snapshot = self.watch.snapshot();
            let (until, or_else) = if !snapshot.is_synced() {
                // G13: before the first commit, resources are unknown, not absent.
                (start + config.sync_wait, Err(PollError::NotSynced))
            } else if self.machine.version(&self.type_url, &snapshot).to_string() == self.version {
                // S41: wait for a commit that affects the poll; the commit wakes it.
                (start + config.hold, Ok(None))
            } else {
                return Ok(Some(snapshot));
            };
            if until <= Instant::now() {
                return or_else;
            }
            let stopped = async {
                match &mut stopping {
                    Some(stopping) => stopping.begun().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.watch.woken() => {}
                () = sleep_until(until) => return or_else,
                () = stopped => return or_else,
            }
        }
    }

    fn answer(mut self, snapshot: &Snapshot) -> Result<PollResponse, PollError> {
        let (version, bodies) = match self.machine.next(Duration::ZERO, snapshot) {
            Next::Send(response) => (response.version, response.bodies),
            // S17, S26: no requested resource exists. A stream sends nothing then, but a poll
            // always gets an answer.
            Next::Wait { .. } => (self.machine.version(&self.type_url, snapshot), Vec::new()),
            Next::Close(error) => return Err(error.into()),
        };
        Ok(PollResponse { version: version.to_string(), type_url: self.type_url, bodies })
    }
}

fn authorize(
    config: &ServerConfig,
    peer: &Peer,
    client: &StreamClient,
) -> Result<Option<Arc<Access>>, PollError> {
    let access = config.access(peer, client);
    access.map_err(|status| PollError::Denied(status.message().to_owned()))
}

/// The shortest time between two failures in the log.
const FAILURES_APART: Duration = Duration::from_secs(10);

/// How long the body of a request may take to arrive.
const BODY_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
