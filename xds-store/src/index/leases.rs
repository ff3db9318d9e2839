//! Leases that other nodes end (ST39, SR33, SG22).

use super::Index;
use crate::key::RecordKey;
use crate::record::{Present, RecordState};
use crate::region::Policies;

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
            self.start_lease(&key, now);
        }
    }

    /// Lets all leases that this node ends start again. None ends before the date that it had (ST40).
    pub(crate) fn restart_leases(&mut self, now: i64) {
        let keys: Vec<_> = self.ends.leased().cloned().collect();
        keys.iter().for_each(|key| self.start_lease(key, now));
    }

    fn start_lease(&mut self, key: &RecordKey, now: i64) {
        if let Some(record) = self.records.get_mut(&key.record_digest())
            && let Some(lease) = record.lease
        {
            self.ends.remove(key, record);
            record.expires_at = record.expires_at.max(Some(now.saturating_add(lease.length)));
            self.ends.add(key, record);
        }
    }

    /// Decides which leases this node ends. `ends_here`: whether it ends that of a record; `None`: if it has renewed
    /// it last. What it ends from now on starts again.
    pub(crate) fn assign_leases(
        &mut self,
        own: &str,
        ends_here: impl Fn(&Policies, &RecordKey) -> Option<bool>,
        now: i64,
    ) {
        let is_of_other = |key: &&RecordKey| ends_here(&self.policies, key) == Some(false);
        let given_up: Vec<_> = self.ends.leased().filter(is_of_other).cloned().collect();
        let mut taken = Vec::new();
        for (node, keys) in &self.leases_of_others {
            let is_own = |key: &&RecordKey| ends_here(&self.policies, key).unwrap_or(**node == *own);
            taken.extend(keys.iter().filter(is_own).map(|key| (node.clone(), key.clone())));
        }
        for key in given_up {
            if let Some(record) = self.records.get_mut(&key.record_digest()) {
                self.ends.remove(&key, record);
                record.expires_at = None;
            }
            self.leases_of_others.entry(own.into()).or_default().insert(key);
        }
        for (node, key) in taken {
            self.leases_of_others.get_mut(&node).into_iter().for_each(|keys| _ = keys.remove(&key));
            self.start_lease(&key, now);
        }
        self.leases_of_others.retain(|_, keys| !keys.is_empty());
    }
}
