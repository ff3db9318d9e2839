//! What an entry of another node makes of the records (SR13, SR15).

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Judged, Judging, has_rule, is_rule};
use super::form::CommitLimits;
use super::refused::Refused;
use crate::conflict;
use crate::key::RecordKey;
use crate::merge::merge;
use crate::record::{Local, RecordState};
use crate::stored::ReadError;

/// An entry that is merged.
pub(crate) struct MergedEntry {
    pub(crate) judged: Judged,
    /// The states of the entry that the records here do not get from it (SR7).
    pub(crate) originals: Vec<(RecordKey, RecordState)>,
}

impl Judging<'_> {
    /// Whether an entry with these states has to wait until the batch is durable: rules, and what they say
    /// of references, are those that are durable.
    pub(crate) fn has_to_wait_for_rules(&self, states: &[(RecordKey, RecordState)]) -> bool {
        let of_batch = &self.records.batch.states;
        has_rule(of_batch) || (!of_batch.is_empty() && states.iter().any(|(key, _)| is_rule(key)))
    }

    /// Merges states that another node wrote. None of them is refused.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn merge(&self, states: &[(RecordKey, RecordState)]) -> Result<MergedEntry, Refused> {
        let mut changed = Changed { is_merge: true, ..Changed::default() };
        let mut originals = Vec::new();
        for (key, incoming) in states {
            let before = self.records.get(key);
            let stored = before.map(|record| self.as_stored(key, record)).transpose()?;
            let deleted_by = stored.as_ref().and_then(|(_, local)| local.deleted_by.clone());
            let present = stored.and_then(of_others);
            let merged =
                present.as_ref().map_or_else(|| incoming.clone(), |present| merge(present, incoming));
            let is_changed = present.as_ref() != Some(&merged);
            if !is_changed || merged != *incoming {
                originals.push((key.clone(), incoming.clone()));
            }
            let lost = present.as_ref().and_then(|present| conflict::lost(present, incoming, &merged));
            changed.lost.extend(lost);
            if is_changed {
                // SR18, SG41: what a deleted record gets later is no deletion, and begins none.
                let lifecycle = |state: &RecordState| (state.lifecycle(), state.incarnation);
                if present.as_ref().map(lifecycle) == Some(lifecycle(&merged)) {
                    changed.deleted_by.extend(deleted_by.map(|by| (key.clone(), by)));
                }
                let existed = before.is_some_and(|record| record.exists(self.now));
                let outcome = outcome(existed, &merged);
                changed.decided(self, key, merged, outcome);
            }
        }
        let judged = self.unrefused(changed)?;
        Ok(MergedEntry { judged: Judged { is_replicated: false, ..judged }, originals })
    }

    /// Takes states that are decided: those of a snapshot, or those that this node gives to others once more. None
    /// of them is refused.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn take(&self, states: &[(RecordKey, RecordState)]) -> Result<Judged, Refused> {
        // SR47: variants of two nodes may overlap.
        let mut changed = Changed { is_merge: true, ..Changed::default() };
        for (key, state) in states {
            let existed = self.records.get(key).is_some_and(|record| record.exists(self.now));
            changed.decided(self, key, state.clone(), outcome(existed, state));
        }
        self.unrefused(changed)
    }

    /// The state of a record as other nodes have it, as far as the changes before leave it.
    pub(crate) fn present(&self, key: &RecordKey) -> Result<Option<RecordState>, ReadError> {
        let stored = self.records.get(key).map(|record| self.as_stored(key, record)).transpose()?;
        Ok(stored.and_then(of_others))
    }

    fn unrefused(&self, mut changed: Changed) -> Result<Judged, Refused> {
        let rules = self.rules_after(&changed);
        let unlimited = CommitLimits { changes: usize::MAX, ..self.limits };
        let judging = Judging { rules: rules.as_ref().unwrap_or(self.rules), limits: unlimited, ..*self };
        if rules.is_some() {
            judging.reread(self.rules, &mut changed)?;
        }
        judging.finish(changed, Vec::new(), Vec::new(), None)
    }
}

/// SR5, SR21: the state of a record as other nodes have it, where its date may not have ended it yet.
fn of_others((state, local): (RecordState, Local)) -> Option<RecordState> {
    match local.lifecycle_of_others() {
        proto::State::Unspecified => Some(state),
        proto::State::Deleted => None,
        lifecycle => Some(RecordState { lifecycle: lifecycle.into(), ..state }),
    }
}

fn outcome(existed: bool, merged: &RecordState) -> proto::Outcome {
    match merged.lifecycle() {
        proto::State::Deleted => proto::Outcome::Deleted,
        proto::State::Deleting => proto::Outcome::Deleting,
        _ if !existed => proto::Outcome::Created,
        _ if merged.quarantined.is_some() => proto::Outcome::Quarantined,
        _ => proto::Outcome::Updated,
    }
}
