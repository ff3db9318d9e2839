//! What snapshots make of the records of a node (SR20 to SR22).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::merge::merge;
use xds_store::read::Reads;
use xds_store::record::RecordState;
use xds_store::store::Resynced;

use super::super::Outcome;
use super::{Durable, History, key_of, may_be_gone, of};

impl History {
    /// A snapshot was taken: of others, the node has all that it covers. If it replaced the records, what the node
    /// had besides comes again in its own entries.
    pub(super) fn take_snapshot(
        &self,
        former: &str,
        durable: &mut Durable,
        reads: &Reads<'_>,
    ) -> Result<BTreeSet<RecordKey>, String> {
        let own = &reads.head().node;
        durable.has_taken = true;
        if former != own {
            durable.has_forgotten = true;
            durable.before = std::mem::take(&mut durable.states);
            durable.counters.clear();
        }
        let clock = reads.snapshot("", usize::MAX).unwrap().clock;
        let mut touched: BTreeSet<_> = durable.before.keys().cloned().collect();
        for (origin, at) in clock.iter().filter(|(origin, _)| *origin != own) {
            let had = of(&durable.counters, origin);
            let entries =
                self.log.get(origin).and_then(|log| log.get(had as usize..at.counter.max(had) as usize));
            let Some(entries) = entries else {
                return Err(format!("{own} has {at:?} of {origin}, which did not write it"));
            };
            for state in entries.iter().flat_map(|entry| &entry.states) {
                let key = key_of(state);
                let before = durable.states.remove(&key);
                let after = before.map_or_else(|| state.clone(), |before| merge(&before, state));
                durable.states.insert(key.clone(), after);
                touched.insert(key);
            }
            durable.counters.insert(origin.clone(), at.counter.max(had));
        }
        Ok(touched)
    }

    /// SR22: what a snapshot made of the records loses nothing that it does not name, and revives no deletion.
    pub(crate) fn resynced(&mut self, node: &str, resynced: &Resynced) -> Outcome {
        let durable = self.nodes.get_mut(node).unwrap();
        let before = std::mem::take(&mut durable.before);
        let durable = &self.nodes[node];
        for (key, before) in before {
            let after = durable.states.get(&key);
            let is_dropped = resynced.dropped.iter().any(|(dropped, _)| *dropped == key);
            let is_kept = after.is_some_and(|after| match after.incarnation.cmp(&before.incarnation) {
                Ordering::Less => false,
                Ordering::Equal => merge(&before, after) == *after,
                Ordering::Greater => true,
            });
            // What others wrote comes from them.
            let is_own = before.origin == node || durable.formers.contains(&before.origin);
            if is_own && !is_dropped && !is_kept && !may_be_gone(Some(&before)) {
                return Err(format!("{node} lost {before:?}, and has {after:?}: {resynced:?}"));
            }
            let is_back = |after: &RecordState| {
                let is_deleted = |state: &RecordState| state.lifecycle() == proto::State::Deleted;
                is_deleted(&before) && !is_deleted(after) && after.incarnation <= before.incarnation
            };
            if let Some(after) = after.filter(|after| is_back(after) && !is_dropped) {
                return Err(format!("{before:?} comes back at {node} as {after:?}"));
            }
        }
        Ok(())
    }
}
