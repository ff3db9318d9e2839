//! REST polling: discovery as JSON, from the same cache and by the same machine as the streams
//! (S41).
//!
//! `POST /v3/discovery:clusters`, and the paths of the other types in [`SERVICES`], take a
//! `DiscoveryRequest` as proto3 JSON. Names of fields may be in `snake_case`, unknown fields are
//! ignored, and no `type_url` means that of the path. Names, wildcards, locators and parameters
//! derived from the node mean what they mean in the first request of a stream; the nonce and
//! `error_detail` are not looked at.
//!
//! | status | when |
//! | --- | --- |
//! | 200 | a `DiscoveryResponse` as proto3 JSON, without a nonce: that names a response within a stream |
//! | 304 | the `version_info` of the request is that of what it selects |
//! | 400 | no `DiscoveryRequest` of the type, or a name that no resource can have |
//! | 403 | the client may not read this, or is a web page: of another site, perhaps, whose name points here (DNS rebinding) |
//! | 408 | the body did not come within 30 s |
//! | 404, 405 | another path, another method than POST |
//! | 413 | more bytes, names or parameters than allowed |
//! | 500 | a resource that JSON cannot carry. Left out it would count as deleted, so the client keeps what it has |
//! | 503 | no source has said yet what exists (G13), or unread answers fill the budget; `Retry-After` says when to ask again |
//!
//! From 400 on, the body of an answer about a request is `{"code": .., "message": ".."}` with a
//! code of gRPC. There is no delta and no ADS, and no order between types: each of them is polled
//! for itself.
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
use xds_core::server::{Next, Service, SotwStream};
use xds_core::{Access, Cache, Snapshot, TypeUrl, Version, Watch};
use xds_proto::service::SERVICES;
use xds_server::skim::{Client as StreamClient, Skimmer};
use xds_server::{Peer, ServerConfig, Stopping};

use crate::folder::Descriptors;
use answers::{SharedAnswer, Reservation};
use error::PollError;
use response::PollResponse;

pub use answers::Answers;

mod answers;
mod error;
mod json;
mod response;

/// What polls may ask for, and how long they are held.
#[derive(Debug, Clone)]
pub struct RestConfig {
    /// Limits and parameters, as for streams. Its waits do not matter here: a poll is answered at
    /// once or held.
    pub server: ServerConfig,
    /// How long a poll is held for a change when its client has the current version, instead of
    /// being answered 304. Default zero: Envoy gives up after its `request_timeout`, by default 1
    /// s, and takes that for a failure. Set it below the timeout of all clients, and they hear of
    /// changes at once.
    pub hold: Duration,
    /// How long a poll waits for the first commit, before it is answered 503 (G13). Default 500 ms,
    /// half of Envoy's default `request_timeout`.
    pub sync_wait: Duration,
    /// The largest answer. Default 64 MiB, twice what Envoy takes. As many answers as there are
    /// processors are made at a time, and each is whole in memory until its clients have read it.
    pub answer_limit_bytes: usize,
    /// How long a client may take to read its answer; then the answer is given up. Default 60 s: a
    /// client waits for the whole of it no longer than its own request timeout.
    pub answer_timeout: Duration,
    /// What requests and answers take in all. Default 256 MiB. Polls of the same content share an
    /// answer.
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

/// The paths, for [`Server::with_routes`](crate::Server::with_routes). Resources become JSON by
/// these descriptors.
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

/// What all paths share.
#[derive(Debug)]
struct RestState {
    cache: Arc<Cache>,
    descriptors: Arc<Descriptors>,
    config: RestConfig,
    conversions: Arc<Semaphore>,
    /// What was logged last of what is wrong with resources, and when; each poll of each client
    /// would say it again.
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
    // Browsers send it with each POST, and clients never do. The name in `Host` tells nothing:
    // Envoy sends that of a cluster.
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
    /// The body of a response; `None` when the client has what there is.
    async fn answer(
        &self,
        body: Body,
        peer: &Peer,
        stopping: Option<Stopping>,
    ) -> Result<Option<Arc<SharedAnswer>>, PollError> {
        let mut poll = {
            // An Envoy lists all its extensions in it; a held poll need not keep them.
            let (body, _reservation) = self.read(body).await?;
            Poll::new(&self.state, &self.type_url, peer, &body)?
        };
        let Some(snapshot) = poll.wait(&self.state.config, stopping).await? else { return Ok(None) };
        poll.authorize_again(&self.state.config.server, peer)?;
        let answer = poll.answer(&snapshot)?;
        let permit = Arc::clone(&self.state.conversions).acquire_owned().await;
        let state = Arc::clone(&self.state);
        // Some hundred milliseconds for 10,000 clusters.
        let converted = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let PollResponse { version, type_url, .. } = &answer;
            let wire = answer.wire();
            let key = (type_url.clone(), version.clone(), Version::of_payload(&wire));
            let RestConfig { answers, answer_limit_bytes, .. } = &state.config;
            let make =
                |reservation: &mut _| answer.to_json(wire, &state.descriptors, &snapshot, *answer_limit_bytes, reservation);
            answers.shared(key, make)
        });
        Ok(Some(converted.await??))
    }

    /// The body of a request, and the room that it takes.
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
            tracing::debug!(r#type, error = text, "refusing a poll");
            return;
        }
        let mut last = self.state.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Where polls fail in several ways, they take turns.
        if last.0 != text && last.1.is_none_or(|at| at.elapsed() >= FAILURES_APART) {
            tracing::error!(r#type, error = text, "cannot answer polls");
            *last = (text, Some(Instant::now()));
        }
    }
}

/// One request: a stream that ends with its first response. It is no stream of its client's group:
/// polls of several types have no order among them.
#[derive(Debug)]
struct Poll {
    machine: SotwStream,
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
        // Read as a stream reads it: of the names, the locators and the node nothing is decided
        // here.
        let frame = json::request_frame(body)?;
        let mut skimmer = Skimmer::new(type_url.as_str().to_owned(), Arc::clone(parameters));
        let mut request = skimmer.sotw(&frame)?;
        // S41: compared here; a machine that knew it would leave out what a stream need not be told
        // again.
        let version = std::mem::take(&mut request.version_info);
        let watch = state.cache.watch();
        let service = Service::Single(type_url.clone());
        let mut machine = SotwStream::new(Arc::clone(&watch), service, stream.clone());
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

    /// A poll may be held for longer than a policy, or the certificate of its client, lasts.
    fn authorize_again(&self, config: &ServerConfig, peer: &Peer) -> Result<(), PollError> {
        if authorize(config, peer, &self.client)? == self.access { Ok(()) } else { Err(PollError::OtherAccess) }
    }

    /// Waits for content that the client lacks. `None` when there is none.
    async fn wait(
        &mut self,
        config: &RestConfig,
        mut stopping: Option<Stopping>,
    ) -> Result<Option<Arc<Snapshot>>, PollError> {
        let start = Instant::now();
        loop {
            let snapshot = self.watch.cache().snapshot();
            let (until, or_else) = if !snapshot.is_synced() {
                // G13: what is unknown is not absent.
                (start + config.sync_wait, Err(PollError::NotSynced))
            } else if self.machine.version(&self.type_url, &snapshot).to_string() == self.version {
                // S41: held, not polled: a commit that concerns it wakes it.
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
            // S17, S26: nothing of what it asks for exists. A stream is not told that, but a poll
            // is always answered.
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

/// How soon another failure is logged.
const FAILURES_APART: Duration = Duration::from_secs(10);

/// How long the body of a request may take to come.
const BODY_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
