//! The admin page and its API, on an HTTP port of their own.
//!
//! The page and its API accept only GET and HEAD, and change nothing. Everybody who can connect may read
//! everything, so bind it to the loopback interface, or put it behind a proxy that authenticates
//! its users. [`serve`] refuses requests that a web page of another site could have sent: see
//! [`HostNames`].
//!
//! [`Admin`] makes the page and its API, which `docs/admin.md` of the repository describes. No
//! answer contains the payload of a resource, so no answer contains a secret.
//!
//! ```no_run
//! use tokio::net::TcpListener;
//! use xds::admin::{self, Admin, HostNames};
//! use xds::{Cache, Server};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new();
//! // Made before the first commit, the page lists all commits.
//! let page = Admin::new(&cache);
//! let server = Server::new(cache);
//! let page = TcpListener::bind("127.0.0.1:18001").await.map(|listener| (listener, page.routes(server.clients())))?;
//! tokio::spawn(admin::serve(page.0, page.1, HostNames::default(), None));
//! server.serve(TcpListener::bind("127.0.0.1:18000").await?, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use xds_core::matching::coverage::Domains;
use xds_core::{Cache, Commits};
use xds_server::{Authorizer, ClientList, Rollouts, Tls};
use xds_store_server::StoreHandle;

use recent::RecentCommits;
pub use rollout::rollout_status;
use sorted::SortedNames;
use store::ShownStore;
use sweep::Sweep;
pub use troubles::{Severity, Trouble, Troubles};

mod activity;
mod answer;
mod client_troubles;
mod clients;
mod commits;
mod decide;
mod events;
mod gaps;
mod guard;
mod listener;
mod overview;
mod page;
mod query;
mod recent;
mod resources;
mod rollout;
mod sorted;
mod store;
mod store_record;
mod store_regions;
mod sweep;
mod troubles;
mod unread;

/// The admin page and its API, for one cache and its server.
#[derive(Debug)]
pub struct Admin {
    cache: Arc<Cache>,
    commits: Commits,
    domains: Option<Provider<Domains>>,
    upstreams: Option<Provider<Value>>,
    store: Option<ShownStore>,
    rollouts: Option<Arc<Rollouts>>,
    troubles: Troubles,
}

/// A function that computes a value on request.
#[derive(Clone)]
struct Provider<T>(Arc<dyn Fn() -> T + Send + Sync>);

impl Admin {
    /// A page about this cache and its commits from now on.
    #[must_use]
    pub fn new(cache: &Arc<Cache>) -> Self {
        let commits = cache.commits(recent::COMMITS_KEPT);
        let troubles = Troubles::default();
        let cache = Arc::clone(cache);
        Self { cache, commits, domains: None, upstreams: None, store: None, rollouts: None, troubles }
    }

    /// Limits gaps to the parameters that clients can have. The function is called for each search
    /// of gaps; it may read a file.
    #[must_use]
    pub fn with_domains(self, domains: impl Fn() -> Domains + Send + Sync + 'static) -> Self {
        Self { domains: Some(Provider(Arc::new(domains))), ..self }
    }

    /// Adds the state of a proxy's upstreams, as JSON.
    #[must_use]
    pub fn with_upstreams(self, upstreams: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { upstreams: Some(Provider(Arc::new(upstreams))), ..self }
    }

    /// Adds a durable store: its condition, its commits and the history of its records, without
    /// payloads. `size_bytes` is the size of its file, if it has one.
    #[must_use]
    pub fn with_store(
        self,
        handle: StoreHandle,
        size_bytes: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self { store: Some(ShownStore { handle, size_bytes: Box::new(size_bytes) }), ..self }
    }

    /// Adds the rollout that runs: its steps, and what the clients say that try the change.
    #[must_use]
    pub fn with_rollouts(self, rollouts: Arc<Rollouts>) -> Self {
        Self { rollouts: Some(rollouts), ..self }
    }

    /// The troubles that the page shows above everything else. Sources may be added at any time;
    /// the [routes](Self::routes) add those about clients.
    #[must_use]
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// The paths, for [`serve`]: the page at `/`, the API below `/api/`.
    ///
    /// # Panics
    /// Outside of a tokio runtime: a task follows the commits until the routes are dropped.
    pub fn routes(self, clients: ClientList) -> Router {
        let Self { cache, commits, domains, upstreams, store, rollouts, troubles } = self;
        let recent = Arc::new(RecentCommits::follow(commits));
        client_troubles::add(&troubles, clients.clone(), &recent);
        let state = Arc::new(AdminState {
            recent,
            troubles,
            sweep: Sweep::new(domains),
            cache,
            clients,
            upstreams,
            store,
            rollouts,
            names: SortedNames::default(),
            work: Arc::new(Semaphore::new(WORK_LIMIT)),
            trouble_work: Arc::new(Semaphore::new(1)),
            event_streams: Arc::new(Semaphore::new(events::STREAMS_LIMIT)),
        });
        Router::new()
            .route("/", get(page::page))
            .route("/api/", get(overview::overview))
            .route("/api/clients", get(clients::list))
            .route("/api/clients/{id}", get(clients::one))
            .route("/api/types", get(resources::types))
            .route("/api/resources", get(resources::list))
            .route("/api/resources/{type}/{*name}", get(resources::one))
            .route("/api/decide", get(decide::decide))
            .route("/api/gaps", get(gaps::gaps))
            .route("/api/commits", get(commits::list))
            .route("/api/commits/{revision}", get(commits::one))
            .route("/api/upstreams", get(overview::upstreams))
            .route("/api/rollout", get(rollout::rollout))
            .route("/api/store", get(store::store))
            .route("/api/store/commits", get(store::commits))
            .route("/api/store/deletions", get(store_record::deletions))
            .route("/api/store/history/{type}/{*name}", get(store::record_history))
            .route("/api/store/records/{type}/{*name}", get(store_record::record))
            .route("/api/troubles", get(troubles::list))
            .route("/api/events", get(events::events))
            .route("/api/{*rest}", get(overview::nothing))
            .with_state(state)
    }
}

/// The state that all paths share.
#[derive(Debug)]
struct AdminState {
    cache: Arc<Cache>,
    clients: ClientList,
    upstreams: Option<Provider<Value>>,
    store: Option<ShownStore>,
    rollouts: Option<Arc<Rollouts>>,
    recent: Arc<RecentCommits>,
    troubles: Troubles,
    sweep: Sweep,
    names: SortedNames,
    /// Limits the threads that compute long answers at the same time.
    work: Arc<Semaphore>,
    trouble_work: Arc<Semaphore>,
    event_streams: Arc<Semaphore>,
}

impl AdminState {
    /// Runs work that may take some milliseconds on a thread that serves no stream.
    async fn work<T: Send + 'static>(self: Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let permits = Arc::clone(&self.work);
        self.work_within(permits, work).await
    }

    /// The same for the troubles. Other work may read a file system that hangs, and the page must
    /// say so.
    async fn trouble_work<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let permits = Arc::clone(&self.trouble_work);
        self.work_within(permits, work).await
    }

    async fn work_within<T: Send + 'static>(
        self: Arc<Self>,
        permits: Arc<Semaphore>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let permit = permits.acquire_owned().await.expect("the semaphore is never closed");
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&self)
        });
        match done.await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl<T> fmt::Debug for Provider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

/// The host names that the port accepts, in addition to IP addresses and `localhost`.
///
/// A web site may point its own name at this machine and then read answers as if they were its own
/// (DNS rebinding). Its page cannot change the `Host` header, so requests with an unknown `Host`
/// are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(BTreeSet<String>);

impl<S: Into<String>> FromIterator<S> for HostNames {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(|name| name.into().to_ascii_lowercase()).collect())
    }
}

/// Serves these routes over HTTP/1.1. Dropping the future ends all connections.
///
/// There are at most 512 connections at the same time; for one more, the oldest ends. A client has
/// 10 s to send a request, and may stop reading its answer for at most 10 s.
///
/// With `remote_access`, only clients that it allows may connect.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    names: HostNames,
    remote_access: Option<RemoteAccess>,
) -> Infallible {
    listener::serve(listener, guard::guarded(routes, None, names), remote_access, listener::Protocols::Http1)
        .await
}

/// As [`serve`], and serves `grpc` to requests with the content type of gRPC, over HTTP/2 (ST56).
///
/// `grpc` checks who calls: with `remote_access`, each client with a certificate may connect, and
/// [`RemoteAccess::authorizer`] judges each other request. The [`Peer`](xds_server::Peer) is in the
/// extensions of the request.
///
/// A connection with a call that `grpc` did not refuse as UNAUTHENTICATED, such as a watch, does
/// not end for a new one, as long as at most 384 connections have such calls.
///
/// A client of HTTP/2 that takes less than 16 KiB of an answer in 60 s loses that answer. If all
/// answers that wait for their clients take more than 256 MiB, those that have waited longest end
/// earlier. The other calls of their connections go on.
pub async fn serve_with_grpc(
    listener: TcpListener,
    routes: Router,
    grpc: Router,
    names: HostNames,
    remote_access: Option<RemoteAccess>,
) -> Infallible {
    let routes = guard::guarded(routes, Some(grpc), names);
    listener::serve(listener, routes, remote_access, listener::Protocols::WithGrpc).await
}

/// Which clients may connect if other machines can reach the port: clients with a certificate that
/// the authorizer lets [inspect](Authorizer::may_inspect).
#[derive(Debug, Clone)]
pub struct RemoteAccess {
    /// The TLS settings of the port.
    pub tls: Arc<Tls>,
    /// Decides whether a peer may inspect.
    pub authorizer: Arc<dyn Authorizer>,
}

/// Threads that compute answers at the same time.
const WORK_LIMIT: usize = 2;
