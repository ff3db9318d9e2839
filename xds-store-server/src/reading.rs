//! Reads of a running store, on threads that may block.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::View;
use xds_store::log::StoreRevision;
use xds_store::read::{ReadError, Reads};

use crate::handle::StoreHandle;
use crate::standing::{Condition, Standing};
use crate::status::{not_ready, of_engine, of_read};

/// Reads a running store.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) store: StoreHandle,
    threads: Arc<Semaphore>,
}

impl Reading {
    pub(crate) fn new(store: StoreHandle) -> Self {
        Self { store, threads: permits(THREADS) }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.store.standing().borrow().clone()
    }

    /// The printed form of a revision.
    pub(crate) fn printed(&self, revision: u64) -> String {
        printed(&self.standing(), revision)
    }

    /// Reads what this server has at present. Events of watches are read in the same way, and a view is
    /// never older than one before. So a read after an event answers nothing older (ST31).
    pub(crate) async fn local<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reads<'_>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let store = self.store.clone();
        self.blocking(move || store.view(), read).await
    }

    /// Reads at a level (ST25), and not before this server has the revision `at_least`.
    pub(crate) async fn at_level<T: Send + 'static>(
        &self,
        level: proto::ReadLevel,
        at_least: String,
        read: impl FnOnce(&Reads<'_>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if !at_least.is_empty() {
            self.wait_for(at_least).await?;
        }
        match level {
            proto::ReadLevel::Latest => {
                let view = self.store.latest_view().await.map_err(|error| of_engine(&error))?;
                self.blocking(move || Ok(view), read).await
            }
            proto::ReadLevel::Local | proto::ReadLevel::Unspecified => self.local(read).await,
        }
    }

    /// Waits until this server has a revision, at most [`AT_LEAST_WAIT`] (ST25).
    pub(crate) async fn wait_for(&self, revision: String) -> Result<u64, Status> {
        let mut standing = self.store.standing();
        let parsed = self.local(move |reads| Ok(reads.parse(&revision))).await?;
        let revision = parsed.map_err(|error| crate::status::invalid("revision", error.to_string()))?;
        let reached = standing.wait_for(|standing| standing.revision() >= revision);
        if timeout(AT_LEAST_WAIT, reached).await.is_ok_and(|reached| reached.is_ok()) {
            return Ok(revision);
        }
        let standing = self.standing();
        let message = format!("this server has no revision {} yet: try again", printed(&standing, revision));
        Err(not_ready(&standing, message))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        view: impl FnOnce() -> Result<Box<dyn View>, xds_store::engine::EngineError> + Send + 'static,
        read: impl FnOnce(&Reads<'_>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let standing = self.standing();
        if matches!(standing.condition, Condition::Resyncing | Condition::Loading) {
            return Err(not_ready(&standing, "the store is not ready: try again, or use another server"));
        }
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (schemas, fields) = (self.store.schemas(), self.store.fields());
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let view = view().map_err(|error| of_engine(&error))?;
            let reads = Reads::with_schemas(&*view, &schemas).map_err(|error| failed(&error, &standing))?;
            read(&reads.with_fields(fields))
        });
        match done.await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// A read that failed at a revision of this store.
pub(crate) fn failed(error: &ReadError, standing: &Standing) -> Status {
    of_read(error, |revision| printed(standing, revision))
}

/// The printed form of a revision of the store.
pub(crate) fn printed(standing: &Standing, revision: u64) -> String {
    StoreRevision::of(&standing.head, revision).to_string()
}

/// The present time, in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Reads at the same time; further ones wait.
const THREADS: usize = 8;

/// How long a read waits for the revision `at_least`.
const AT_LEAST_WAIT: Duration = Duration::from_secs(5);

/// Permits for a number of things at a time.
pub(crate) fn permits(limit: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)))
}
