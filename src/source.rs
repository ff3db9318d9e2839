//! Sources that are loaded as a whole, for control planes that embed the library.
//!
//! A program says how to [load](Load) all resources of a source. A [`Supervisor`] loads each of its
//! sources, commits what changed, and loads it again: from time to time, after a request, and after
//! an error. A failure never removes anything: the last good resources stay in use. Until each
//! source has been loaded once, no resource is absent (G13).
//!
//! The sources of this crate do not use it. The folder, Kubernetes and the durable store know what
//! changed, and commit that alone: a changed file costs a file, and not the folder. The folder waits
//! for files that are being written, Kubernetes tries again per watch, and the commit of a store is
//! durable before it is served, so that there is nothing to try again.
//!
//! ```
//! use std::time::Duration;
//!
//! use xds::source::{Load, LoadError, Supervisor};
//! use xds::{Cache, Resource};
//!
//! struct Registry;
//!
//! impl Load for Registry {
//!     async fn load(&mut self) -> Result<Vec<Resource>, LoadError> {
//!         // Query the registry here.
//!         Ok(vec![Resource::new("example.com/acme.Service", "shop", "payload")?])
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let cache = Cache::new();
//! let mut supervisor = Supervisor::new(&cache);
//! let reloads = supervisor.add("registry", Duration::from_secs(30), Registry);
//! tokio::spawn(supervisor.run());
//! // After an event that says that the registry has changed:
//! reloads.request();
//! # }
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use xds_core::{Cache, Resource, Source};
use xds_file::Reloads;

/// A source that is loaded as a whole, see [`Supervisor`].
pub trait Load: Send + 'static {
    /// All resources of the source. What it no longer brings is removed, so return an error, and not
    /// an empty list, if the resources are not known, or not all of them.
    ///
    /// No second load runs meanwhile. A load that may hang needs a timeout of its own: until it ends,
    /// the last good resources stay in use, and [`Reloads::longest_read`] shows for how long.
    ///
    /// # Errors
    /// Those of the program. The supervisor logs them, and tries again.
    fn load(&mut self) -> impl Future<Output = Result<Vec<Resource>, LoadError>> + Send;
}

/// Why a source could not be loaded. `?` makes it of any error.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// Loads sources into a cache, and loads them again, see the [module](self).
pub struct Supervisor {
    cache: Arc<Cache>,
    sources: Vec<Pin<Box<dyn Future<Output = Infallible> + Send>>>,
    /// The number of sources that were not loaded yet.
    missing: Arc<AtomicUsize>,
}

impl Supervisor {
    /// A supervisor for all sources of this cache: one for a cache, and none beside a durable store.
    /// Until each source has been loaded, the cache is [outdated](Cache::set_outdated): streams wait,
    /// and gRPC health reports that the server does not serve (G13).
    #[must_use]
    pub fn new(cache: &Arc<Cache>) -> Self {
        cache.set_outdated(true);
        Self { cache: Arc::clone(cache), sources: Vec::new(), missing: Arc::default() }
    }

    /// Adds a source. It is loaded at the start, again after the time `every`, and after
    /// [`Reloads::request`] on the returned value. Requests within 100 ms are one load.
    ///
    /// After an error it is loaded again after about half a second, then a second, and so on up to 8 s,
    /// each time shortened at random by up to a half. An error that repeats is logged once. Resources
    /// that the cache [refuses](xds_core::CommitError) are an error, too.
    ///
    /// The name is that of the source in the log, in metrics and in
    /// [`CommitOrigin`](xds_core::CommitOrigin). Two sources must not bring the same variant.
    pub fn add(&mut self, name: &str, every: Duration, source: impl Load) -> Arc<Reloads> {
        let reloads = Arc::new(Reloads::default());
        self.missing.fetch_add(1, Ordering::SeqCst);
        let supervised = Supervised {
            name: name.into(),
            writer: self.cache.source(name),
            source,
            every,
            reloads: Arc::clone(&reloads),
            cache: Arc::clone(&self.cache),
            missing: Arc::clone(&self.missing),
        };
        self.sources.push(Box::pin(supervised.run()));
        reloads
    }

    /// Loads the sources, each on a task of its own, until the future is dropped. On a task that nobody
    /// joins, the panic of a source ends all sources in silence: run it beside the server, for example
    /// with `tokio::select!`.
    ///
    /// # Panics
    /// If a source panics.
    pub async fn run(self) -> Infallible {
        if self.sources.is_empty() {
            self.cache.set_outdated(false);
        }
        let mut tasks: JoinSet<_> = self.sources.into_iter().collect();
        match tasks.join_next().await {
            Some(ended) => finished(ended).await,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("sources", &self.sources.len()).finish_non_exhaustive()
    }
}

/// One source and what it needs.
struct Supervised<L> {
    name: Box<str>,
    writer: Source,
    source: L,
    every: Duration,
    reloads: Arc<Reloads>,
    cache: Arc<Cache>,
    missing: Arc<AtomicUsize>,
}

impl<L: Load> Supervised<L> {
    async fn run(mut self) -> Infallible {
        // `None` while there is no error.
        let mut backoff: Option<Backoff> = None;
        loop {
            let result;
            (self, result) = self.load().await;
            let wait = match result {
                Ok(has_changed) => {
                    self.on_loaded(has_changed);
                    if backoff.take().is_some() {
                        info!(source = self.name, "the source is loaded again");
                    }
                    self.every
                }
                Err(error) => {
                    let error = chain(&*error);
                    if self.reloads.on_refused(error.clone()) {
                        warn!(
                            source = self.name,
                            error, "cannot load the source; its last good state stays in use"
                        );
                    }
                    backoff.get_or_insert_default().next_wait()
                }
            };
            self.reloads.due(wait).await;
            // Changes that belong together are one load.
            sleep(TOGETHER).await;
            _ = timeout(Duration::ZERO, self.reloads.requested()).await;
        }
    }

    /// Returns whether the cache has other content.
    async fn load(mut self) -> (Self, Result<bool, LoadError>) {
        let loaded = {
            let _reading = self.reloads.reading(&self.name);
            self.source.load().await
        };
        let all = match loaded {
            Ok(all) => all,
            Err(error) => return (self, Err(error)),
        };
        // A large commit must not delay the streams.
        let commit = spawn_blocking(move || {
            let committed = self.writer.set(all);
            (self, committed)
        });
        let (this, committed) = finished(commit.await).await;
        (this, committed.map(|commit| commit.changed > 0).map_err(Into::into))
    }

    fn on_loaded(&self, has_changed: bool) {
        let is_first = self.reloads.good_at().is_none();
        if is_first || has_changed {
            self.reloads.on_new();
        } else {
            self.reloads.on_same();
        }
        // G13: with the last source it is known what exists.
        if is_first && self.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.cache.set_outdated(false);
        }
    }
}

/// How long to wait after errors in a row.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST_WAIT)
    }
}

impl Backoff {
    /// How long to wait after one more error: at least half of a time that doubles, so that many
    /// servers do not come back to what they read at the same moment.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST_WAIT);
        let random = (RandomState::new().hash_one(0) % 1001) as f64 / 1000.0;
        wait.mul_f64(0.5 + random / 2.0)
    }
}

/// The result of a task, whose panic is passed on.
pub(crate) async fn finished<T>(task: Result<T, JoinError>) -> T {
    match task.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => panic::resume_unwind(panic),
        // A task is cancelled only if the runtime shuts down.
        Err(Err(_cancelled)) => std::future::pending().await,
    }
}

/// An error with its causes; those that repeat the one before are left out.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let (mut last, mut cause) = (text.clone(), error.source());
    while let Some(error) = cause {
        let own = error.to_string();
        if !last.contains(&own) {
            text = format!("{text}: {own}");
        }
        (last, cause) = (own, error.source());
    }
    text
}

/// How long requests are collected after the first one.
const TOGETHER: Duration = Duration::from_millis(100);

/// How long to wait after the first error, and at most. What was away for a minute is read again a
/// few seconds after it is back.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests;
