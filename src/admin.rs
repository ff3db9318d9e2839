//! What people and their programs look at: an HTTP port apart from the one for clients.
//!
//! It answers GET and HEAD alone and changes nothing. Whoever reaches it may read all of it, so it
//! is for the loopback interface, or for a port behind a proxy that authenticates its users.
//! [`serve`] refuses requests that a web page of somebody else could have sent: see [`HostNames`].
//!
//! [`Admin`] makes the page and its API: what `docs/admin.md` of the repository describes. No
//! payload of a resource is in any answer, so no secret is either.
//!
//! ```no_run
//! use tokio::net::TcpListener;
//! use xds::admin::{self, Admin, HostNames};
//! use xds::{Cache, Server};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new();
//! // Made first, it tells of all commits.
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
use xds_server::{Authorizer, ClientList, Tls};

use recent::RecentCommits;
use sorted::SortedNames;
use sweep::Sweep;

mod answer;
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
mod sorted;
mod sweep;

/// The admin page and its API, for one cache and its server.
#[derive(Debug)]
pub struct Admin {
    cache: Arc<Cache>,
    commits: Commits,
    domains: Option<Provider<Domains>>,
    upstreams: Option<Provider<Value>>,
}

/// Where something comes from that is looked at when somebody asks.
#[derive(Clone)]
struct Provider<T>(Arc<dyn Fn() -> T + Send + Sync>);

impl Admin {
    /// Tells of this cache, and of its commits from now on.
    #[must_use]
    pub fn new(cache: &Arc<Cache>) -> Self {
        let commits = cache.commits(recent::COMMITS_KEPT);
        Self { cache: Arc::clone(cache), commits, domains: None, upstreams: None }
    }

    /// Judges gaps by what clients can have. Asked whenever they are looked for; it may read a
    /// file.
    #[must_use]
    pub fn with_domains(self, domains: impl Fn() -> Domains + Send + Sync + 'static) -> Self {
        Self { domains: Some(Provider(Arc::new(domains))), ..self }
    }

    /// Tells how the upstreams of a proxy stand, as JSON that this makes.
    #[must_use]
    pub fn with_upstreams(self, upstreams: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { upstreams: Some(Provider(Arc::new(upstreams))), ..self }
    }

    /// The paths, for [`serve`]: the page at `/`, the API below `/api/`.
    ///
    /// # Panics
    /// Outside of a tokio runtime, where a task follows the commits until the routes are dropped.
    pub fn routes(self, clients: ClientList) -> Router {
        let Self { cache, commits, domains, upstreams } = self;
        let state = Arc::new(AdminState {
            recent: RecentCommits::follow(commits),
            sweep: Sweep::new(domains),
            cache,
            clients,
            upstreams,
            names: SortedNames::default(),
            work: Arc::new(Semaphore::new(WORK_LIMIT)),
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
            .route("/api/events", get(events::events))
            .route("/api/{*rest}", get(overview::nothing))
            .with_state(state)
    }
}

/// What all paths look at.
#[derive(Debug)]
struct AdminState {
    cache: Arc<Cache>,
    clients: ClientList,
    upstreams: Option<Provider<Value>>,
    recent: RecentCommits,
    sweep: Sweep,
    names: SortedNames,
    /// Answers that take long are made by so many threads at a time.
    work: Arc<Semaphore>,
    event_streams: Arc<Semaphore>,
}

impl AdminState {
    /// Does what may take some milliseconds where it holds up no stream.
    async fn work<T: Send + 'static>(self: Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let permit = Arc::clone(&self.work).acquire_owned().await.expect("the semaphore is never closed");
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

/// The names under which the port may be asked for, beside IP addresses and `localhost`.
///
/// A page of another site may let its own name point to this machine and then read answers as if
/// they were its own (DNS rebinding). It cannot choose what stands in `Host`, so names that nobody
/// told of are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(BTreeSet<String>);

impl<S: Into<String>> FromIterator<S> for HostNames {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(|name| name.into().to_ascii_lowercase()).collect())
    }
}

/// Serves these routes over HTTP/1.1 until it is dropped, with all its connections.
///
/// At the same time there are 512 connections at most; for a further one the oldest ends. A client
/// has 10 s to say what it wants, and 10 s to read some of the answer.
///
/// With a door, only who it lets in.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    names: HostNames,
    remote_access: Option<RemoteAccess>,
) -> Infallible {
    listener::serve(listener, guard::guarded(routes, names), remote_access).await
}

/// Who is let in where other machines can connect: those with a certificate, whom the authorizer
/// lets [inspect](Authorizer::may_inspect).
#[derive(Debug, Clone)]
pub struct RemoteAccess {
    /// With what connections are greeted.
    pub tls: Arc<Tls>,
    /// Who says whether a peer may look.
    pub authorizer: Arc<dyn Authorizer>,
}

/// Threads that make answers at the same time.
const WORK_LIMIT: usize = 2;
