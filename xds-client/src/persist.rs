//! Writes accepted resources to the last-known-good file, on a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use xds_core::client::{Accepted, Effects};
use xds_core::proxy::{SetChange, SetId};
use xds_core::{ResourceName, TypeUrl, VariantId};

use crate::last_good::{FlushError, LastGood, Record};

/// The changes that are not in the file yet. Only the newest of each variant counts, so they are no
/// larger than the known resources.
#[derive(Default)]
pub(crate) struct Persist {
    pending: Mutex<Pending>,
    changed: Notify,
    /// The file lacks a change that could not be written.
    is_behind: AtomicBool,
    /// The number of failed writes.
    failures: AtomicU64,
}

#[derive(Default)]
struct Pending {
    changes: BTreeMap<VariantId, Option<Arc<Accepted>>>,
    /// Sets whose proofs must be removed from the file. They are written before the others.
    unkept: BTreeSet<(TypeUrl, ResourceName)>,
    /// Sets that became complete, or are no longer subscribed to.
    sets: BTreeMap<SetId, SetChange>,
    is_closed: bool,
}

impl Persist {
    /// Notes the effects of an event.
    pub(crate) fn note(&self, effects: &Effects) {
        if effects.accepted.is_empty() && effects.removed.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for id in &effects.removed {
            pending.changes.insert(id.clone(), None);
        }
        for accepted in &effects.accepted {
            pending.changes.insert(accepted.id(), Some(Arc::clone(accepted)));
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Notes changes of sets. Call it before anything else happens to their members.
    pub(crate) fn note_sets(&self, changes: Vec<SetChange>) {
        if changes.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            match change {
                SetChange::Complete(ref id) | SetChange::Left(ref id) => {
                    pending.sets.insert(id.clone(), change);
                }
                SetChange::Unkept { type_url, name } => {
                    pending.sets.retain(|id, _| (&id.type_url, &id.name) != (&type_url, &name));
                    pending.unkept.insert((type_url, name));
                }
            }
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Notes variants that the file must forget.
    pub(crate) fn note_dropped(&self, dropped: Vec<VariantId>) {
        if dropped.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.changes.extend(dropped.into_iter().map(|id| (id, None)));
        drop(pending);
        self.changed.notify_one();
    }

    /// Writes the rest, then ends the task.
    pub(crate) fn close(&self) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.changed.notify_one();
    }

    /// Whether the file lacks a change that could not be written, and the number of failed writes.
    pub(crate) fn trouble(&self) -> (bool, u64) {
        (self.is_behind.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Writes changes until it is closed.
    pub(crate) async fn run(self: Arc<Self>, mut file: LastGood) {
        // A file that the disk does not let this process write is tried again without a change, too.
        let mut retry = file.has_pending().then_some(FIRST_RETRY);
        loop {
            match retry {
                None => self.changed.notified().await,
                Some(after) => self.closed_or(Instant::now() + after).await,
            }
            let Pending { changes, unkept, sets, is_closed } = {
                let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                let is_closed = pending.is_closed;
                std::mem::replace(&mut *pending, Pending { is_closed, ..Pending::default() })
            };
            let written = spawn_blocking(move || {
                for (id, accepted) in changes {
                    match accepted {
                        Some(accepted) if accepted.variant().do_not_cache() => file.leave_out(id),
                        Some(accepted) => file.put(Record::from(&*accepted)),
                        None => file.remove(id),
                    }
                }
                let unkept = unkept.into_iter();
                unkept.for_each(|(type_url, name)| file.note_set(SetChange::Unkept { type_url, name }));
                sets.into_values().for_each(|change| file.note_set(change));
                let flushed = file.flush();
                (file, flushed)
            });
            let Ok((returned, flushed)) = written.await else { return };
            retry = self.note_flush(flushed, retry);
            if is_closed {
                return;
            }
            file = returned;
        }
    }

    /// Notes the result of a flush; returns the delay of the next try, if one is needed.
    fn note_flush(&self, flushed: Result<(), FlushError>, retry: Option<Duration>) -> Option<Duration> {
        let cause = |error: &FlushError| error.source().map(ToString::to_string).unwrap_or_default();
        match flushed {
            Err(error @ FlushError::Append { .. }) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                if !self.is_behind.swap(true, Ordering::Relaxed) {
                    warn!(
                        cause = cause(&error),
                        "{error}; trying again; until then, no wildcard is restored from this file"
                    );
                }
                return Some(retry.map_or(FIRST_RETRY, |last| (last * 2).min(LAST_RETRY)));
            }
            Err(error) => warn!(cause = cause(&error), "{error}"),
            Ok(()) => {}
        }
        if self.is_behind.swap(false, Ordering::Relaxed) {
            info!("the last-known-good file is writable again and complete");
        }
        None
    }

    /// Waits until this time or until it is closed. It does not wait for changes, because another
    /// write would fail too.
    async fn closed_or(&self, at: Instant) {
        loop {
            tokio::select! {
                () = sleep_until(at) => return,
                () = self.changed.notified() => {
                    if self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_closed {
                        return;
                    }
                }
            }
        }
    }
}

/// The delay after a failed flush. It doubles with each further failure, up to the last value.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
