//! Writes what was accepted to the last-known-good file, beside the streams.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::warn;
use xds_core::VariantId;
use xds_core::client::{Accepted, Outcome};

use crate::last_good::{LastGood, Record};

/// What the file does not have yet. The newest of each variant counts, so this is no larger than what is known.
#[derive(Default)]
pub(crate) struct Persist {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Default)]
struct Pending {
    changes: BTreeMap<VariantId, Option<Arc<Accepted>>>,
    records: BTreeMap<VariantId, Record>,
    is_closed: bool,
}

impl Persist {
    /// Takes what an event did.
    pub(crate) fn note(&self, outcome: &Outcome) {
        if outcome.accepted.is_empty() && outcome.removed.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for id in &outcome.removed {
            pending.changes.insert(id.clone(), None);
        }
        for accepted in &outcome.accepted {
            pending.changes.insert(accepted.id(), Some(Arc::clone(accepted)));
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Takes something that is no resource of its own.
    pub(crate) fn note_record(&self, record: Record) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.records.insert(record.id.clone(), record);
        drop(pending);
        self.changed.notify_one();
    }

    /// Has the rest written, and no more.
    pub(crate) fn close(&self) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.changed.notify_one();
    }

    /// Writes what comes until it is closed.
    pub(crate) async fn run(self: Arc<Self>, mut file: LastGood) {
        loop {
            self.changed.notified().await;
            let (changes, records, is_closed) = {
                let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                let records = std::mem::take(&mut pending.records);
                (std::mem::take(&mut pending.changes), records, pending.is_closed)
            };
            let written = spawn_blocking(move || {
                for (id, accepted) in changes {
                    match accepted.filter(|accepted| !accepted.variant().do_not_cache()) {
                        Some(accepted) => file.put(record(id, &accepted)),
                        None => file.remove(id),
                    }
                }
                records.into_values().for_each(|record| file.put(record));
                let flushed = if file.has_pending() { file.flush() } else { Ok(()) };
                if let Err(error) = flushed {
                    let cause =
                        std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    warn!(cause, "{error}");
                }
                file
            });
            match written.await {
                Ok(returned) if !is_closed => file = returned,
                Ok(_) | Err(_) => return,
            }
        }
    }
}

fn record(id: VariantId, accepted: &Accepted) -> Record {
    let (payload, version) = (accepted.payload().clone(), accepted.version.as_ref().to_owned());
    let mut record = Record::new(id, payload, version, accepted.server.as_ref().to_owned());
    record.ttl = accepted.variant().ttl();
    record.aliases = accepted.variant().aliases().to_vec();
    record
}
