//! Which watchers have seen the resource that the benchmark waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Error;

/// Shared by all watchers of a client.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The number of watchers without a resource.
    unloaded: AtomicUsize,
    /// The revision of the expected change.
    expected: AtomicU64,
    reached: Notify,
}

/// The part of one watcher.
#[derive(Debug)]
pub(crate) struct Witness {
    index: usize,
    has_seen: bool,
    progress: Arc<Progress>,
}

impl Progress {
    pub(crate) fn new(watchers: usize) -> Arc<Self> {
        let (unloaded, expected) = (AtomicUsize::new(watchers), AtomicU64::new(0));
        Arc::new(Self { unloaded, expected, reached: Notify::new() })
    }

    pub(crate) fn witness(self: &Arc<Self>, index: usize) -> Witness {
        Witness { index, has_seen: false, progress: Arc::clone(self) }
    }

    pub(crate) fn expect(&self, index: usize, revision: u32) {
        self.expected.store(change(index, revision), Ordering::Relaxed);
    }

    /// Returns once every watcher has a resource, or a watcher has seen the expected change,
    /// whichever is next.
    pub(crate) async fn reached(&self) -> Result<(), Error> {
        Ok(tokio::time::timeout(PATIENCE, self.reached.notified()).await?)
    }
}

impl Witness {
    pub(crate) fn saw(&mut self, revision: u32) {
        let progress = &self.progress;
        let is_load = !std::mem::replace(&mut self.has_seen, true);
        let is_reached = if is_load {
            progress.unloaded.fetch_sub(1, Ordering::Relaxed) == 1
        } else {
            progress.expected.load(Ordering::Relaxed) == change(self.index, revision)
        };
        if is_reached {
            progress.reached.notify_one();
        }
    }
}

fn change(index: usize, revision: u32) -> u64 {
    (index as u64) << 32 | u64::from(revision)
}

/// The longest time of a step; after it, the run has failed.
const PATIENCE: Duration = Duration::from_secs(120);
