//! Leases that other nodes end (ST39, SR33).

use super::Index;
use crate::key::RecordKey;
use crate::record::{Present, RecordState};

impl Index {
    /// Notes who ends the lease of a record that changed, or that was loaded.
    pub(crate) fn note_lease(
        &mut self,
        key: &RecordKey,
        before: Option<&Present>,
        after: &Present,
        state: &RecordState,
    ) {
        let is_of_other =
            |record: &Present| record.lease.is_some() && record.expires_at.is_none() && !record.is_deleted();
        if before.is_some_and(is_of_other) {
            self.leases_of_others.values_mut().for_each(|keys| _ = keys.remove(key));
            self.leases_of_others.retain(|_, keys| !keys.is_empty());
        }
        if is_of_other(after) {
            self.leases_of_others.entry(state.renewed_by.as_str().into()).or_default().insert(key.clone());
        }
    }

    /// The other nodes that end leases.
    pub(crate) fn lessors(&self) -> impl Iterator<Item = &str> {
        self.leases_of_others.keys().map(|node| &**node)
    }

    /// Lets the leases that a node ended start again here.
    pub(crate) fn take_over_leases(&mut self, node: &str, now: i64) {
        for key in self.leases_of_others.remove(node).into_iter().flatten() {
            if let Some(record) = self.records.get_mut(&key.record_digest())
                && let Some(lease) = record.lease
            {
                let end = now.saturating_add(lease.length);
                record.expires_at = Some(end);
                self.ends.insert((end, key));
            }
        }
    }
}
