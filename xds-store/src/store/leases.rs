//! The leases of nodes that are forgotten (SR33), and of names that a region owns (SG22), and times in which nobody
//! could renew leases (ST40).

use std::collections::BTreeSet;
use std::{iter, mem};

use super::Store;
use crate::key::RecordKey;
use crate::log::Head;
use crate::region::{Policies, Policy};
use crate::time::SECOND;

impl Store {
    /// ST40: when the machine was not called for some time, or the time jumped, clients could not renew leases, or
    /// could not know that they had to.
    pub(super) fn note_time(&mut self, shown: i64) -> i64 {
        let (shown_before, time_before) = (self.wall.shown(), self.wall.time());
        let now = self.wall.show(shown, self.head.time);
        let passed = shown.saturating_sub(shown_before).max(now.saturating_sub(time_before));
        if passed > PAUSE {
            self.index.restart_leases(now);
        }
        now
    }

    /// ST40: the engine takes writes again.
    pub(super) fn end_outage(&mut self) {
        if mem::take(&mut self.is_cut_off) {
            self.index.restart_leases(self.wall.time());
        }
    }

    /// The machine is called more often while leases may end, so that it notices when it was not. By the clock as it
    /// is.
    pub(super) fn watch_due(&self) -> Option<i64> {
        self.index.ends.next_lease().map(|_| self.wall.shown().saturating_add(WATCHED_EVERY))
    }

    /// Whether leases would have ended during an outage, so that a small write has to find out if it is over.
    pub(super) fn looks_for_engine(&self, now: i64) -> bool {
        let has_ended = self.index.ends.next_lease().is_some_and(|end| end <= now);
        self.is_cut_off && has_ended && self.room_at.is_none() && now >= self.ends_again_at
    }

    /// The records that end now by their date, or with their lease, at most so many.
    pub(super) fn ended(&self, with_lease: bool, now: i64, limit: usize) -> Vec<RecordKey> {
        let mut ended = self.index.ends.ended(now, with_lease).peekable();
        if !with_lease {
            return ended.take(limit).cloned().collect();
        }
        // ST40: their owners could not renew them.
        if self.is_cut_off || ended.peek().is_none() {
            return Vec::new();
        }
        let renewed = self.renewed_by_waiting();
        ended.filter(|key| !renewed.contains(*key)).take(limit).cloned().collect()
    }

    /// The records that commits change which wait: these came in time, so they are judged before a lease ends.
    fn renewed_by_waiting(&self) -> BTreeSet<RecordKey> {
        let drafts = self.waiting.iter().map(|waiting| &waiting.draft).filter(|draft| !draft.dry_run);
        let keys = drafts.flat_map(|draft| draft.changes.iter().map(|change| &change.key));
        // SV18: a touch of one form renews both.
        let other = |key: &RecordKey| {
            let (plan, form) = self.index.schemas().form(key)?;
            plan.other_key(key, form).ok()
        };
        keys.flat_map(|key| iter::once(key.clone()).chain(other(key))).collect()
    }

    /// Takes over the leases of forgotten nodes: they start again here, and end unless somebody renews them.
    ///
    /// One node does it, that with the smallest id: any node may be cut off from the one at which a client
    /// renews a lease, so the fewer end leases, the better. Nodes that know others may both do it; then the two
    /// deletions merge.
    pub(super) fn take_over_leases(&mut self, now: i64) {
        self.assign_leases(now);
        let is_forgotten = |node: &&str| self.index.forgotten().contains(node);
        let lessors: Vec<String> = self.index.lessors().filter(is_forgotten).map(str::to_owned).collect();
        if lessors.is_empty() || !self.is_smallest() {
            return;
        }
        lessors.iter().for_each(|node| self.index.take_over_leases(node, now));
    }

    /// SG22: only the writer of a region ends the leases of names that it owns. After a handover, the former one ends
    /// none of them, and they start again at the new one, when it has all of the names.
    fn assign_leases(&mut self, now: i64) {
        if !self.head.has_policies || now < self.leases_at {
            return;
        }
        // A lease may also come late, renewed by a node that was the writer.
        self.leases_at = now.saturating_add(ASSIGNED_EVERY);
        let Head { region, is_replica, node, .. } = &self.head;
        let ends_here = |policies: &Policies, key: &RecordKey| {
            let is_own = |policy: &Policy| {
                policy.owner() == region && !is_replica && policies.fetching_record(key).is_none()
            };
            policies.of(key).map(is_own)
        };
        self.index.assign_leases(node, ends_here, now);
    }

    /// Whether this node has the smallest id of those that it knows, but for forgotten ones.
    pub(super) fn is_smallest(&self) -> bool {
        let own = self.head.node.as_str();
        let forgotten = self.index.forgotten();
        let mut others = self.nodes.iter().map(|(node, _)| node).filter(|node| !forgotten.contains(node));
        !forgotten.contains(own) && others.all(|node| own < node)
    }
}

const ASSIGNED_EVERY: i64 = 60 * SECOND;
/// A longer time without a step of the machine is one in which clients could not renew leases. A client that renews the
/// shortest lease, of 5 s, each third of it has 3.3 s left when the time begins, so a shorter one ends no lease.
const PAUSE: i64 = 3 * SECOND;
/// How often the machine is called at least while there are leases: more often than [`PAUSE`], also on a busy machine.
const WATCHED_EVERY: i64 = SECOND;
