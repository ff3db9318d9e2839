//! The records that a commit changes, while it is judged.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::Resource;
use xds_proto::xds::store::v1 as proto;

use super::effect::{ChangeResult, Judging};
use super::refused::{RefusalCode, Refused};
use crate::conflict::Conflict;
use crate::index::Renewed;
use crate::key::RecordKey;
use crate::number;
use crate::record::{At, EntryId, Present, RecordState, Uid, resource_of};
use crate::refs::{Reference, ReferrerChanges};
use crate::region::Policies;

/// The changes of one commit while it is judged.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) states: BTreeMap<RecordKey, (RecordState, proto::Outcome)>,
    pub(super) after: BTreeMap<RecordKey, Present>,
    pub(super) referrers: ReferrerChanges,
    /// The records that are being deleted, by the names of both of their forms.
    pub(super) deleting: ReferrerChanges,
    pub(super) renewed: BTreeMap<RecordKey, Renewed>,
    /// Records that their dates have ended, with the lifecycles that they have for other nodes (SR5).
    pub(super) ended_by_date: BTreeMap<RecordKey, proto::State>,
    /// Records that were deleted before, with the entries of their deletions.
    pub(super) deleted_by: BTreeMap<RecordKey, EntryId>,
    /// Deletions that may become deletions in progress (SG7).
    pub(super) may_wait: BTreeSet<RecordKey>,
    /// The targets with which further records go.
    pub(super) causes: BTreeMap<RecordKey, RecordKey>,
    /// The references of records before the commit, where a changed rule makes them other ones.
    pub(super) reread: BTreeMap<RecordKey, Box<[Reference]>>,
    /// Whether it is a merge, after which variants of a name may overlap (SR47).
    pub(super) is_merge: bool,
    /// What a merge lost (SR44).
    pub(super) lost: Vec<Conflict>,
}

impl Changed {
    /// The new state of a record; `None` if it did not change.
    pub(super) fn state(&self, key: &RecordKey) -> Option<&RecordState> {
        self.states.get(key).map(|(state, _)| state)
    }

    /// Whether no record changed.
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether the lease of a record is renewed.
    pub(super) fn is_renewed(&self, key: &RecordKey) -> bool {
        self.renewed.contains_key(key)
    }

    /// Makes renewals of leases changes of their own: other nodes get them, and what they got before stays
    /// as it is (SR4, SR7).
    pub(super) fn log_renewals(&mut self, judging: &Judging<'_>) {
        for (key, renewed) in std::mem::take(&mut self.renewed) {
            if !self.after.contains_key(&key) {
                self.set(judging, &key, renewed.state, proto::Outcome::Touched);
            }
        }
    }

    /// Notes the new state of a record.
    pub(super) fn set(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
    ) -> ChangeResult {
        let resource = resource_of(key, &state);
        self.with_resource(judging, key, state, outcome, resource.as_ref())
    }

    /// The same, with the resource that clients get.
    pub(super) fn with_resource(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        mut state: RecordState,
        outcome: proto::Outcome,
        resource: Option<&Resource>,
    ) -> ChangeResult {
        // SR39: another content, lease or stamp is another generation, or nodes that merge could keep the
        // one before.
        if let Some(before) = judging.records.get(key)
            && (before.incarnation, before.generation) == (state.incarnation, state.generation)
            && state.digest[..] != before.content
        {
            state.generation = number::after(state.generation);
            state.origin.clone_from(&judging.head.node);
        }
        if Policies::is_policy(key) {
            state.written_by = Some(judging.next_commit(state.written_by.as_ref()));
        }
        self.note(judging, key, state, outcome, resource)
    }

    /// Notes a state that is decided already: that of another node, or of a merge, or one whose references are
    /// only read again. Its generation stays as it is.
    pub(super) fn decided(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
    ) -> ChangeResult {
        let resource = resource_of(key, &state);
        self.note(judging, key, state, outcome, resource.as_ref())
    }

    /// SR62: a change after the last number would lose every merge. A deletion needs no later one.
    pub(super) fn check_numbers(&self) -> Result<(), Refused> {
        for (key, (state, _)) in &self.states {
            let is_deleted = state.lifecycle() == proto::State::Deleted;
            let used_up =
                number::used_up(state).filter(|_| !(is_deleted && number::out_of_range(state).is_none()));
            if let Some(used_up) = used_up {
                return Err(Refused::whole(RefusalCode::FailedPrecondition, format!("{key:?}: {used_up}")));
            }
        }
        Ok(())
    }

    fn note(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
        resource: Option<&Resource>,
    ) -> ChangeResult {
        // The commit gets the next revision, or none if it is refused.
        let at = At { revision: judging.head.revision + 1, now: judging.now, head: judging.head };
        let record = Present::of(key, &state, resource, at, judging.rules);
        // A deletion that becomes one in progress, or ends, is noted twice.
        let before = self.after.get(key).or_else(|| judging.records.get(key));
        let reread = self.reread.get(key).filter(|_| !self.after.contains_key(key));
        let references =
            reread.or_else(|| before.map(|before| &before.references)).map_or(&[][..], |all| &all[..]);
        self.referrers.replace(key, references, &record.references);
        let names = |record: &Present| judging.records.index.deleting_names(key, record);
        self.deleting.replace(key, &before.map(names).unwrap_or_default(), &names(&record));
        self.after.insert(key.clone(), record);
        self.states.insert(key.clone(), (state, outcome));
        self.result(key, outcome)
    }

    /// What happened to a record that the commit changes.
    pub(super) fn result(&self, key: &RecordKey, outcome: proto::Outcome) -> ChangeResult {
        let record = self.after.get(key).filter(|record| !record.is_deleted());
        let record = record.map(|record| (record.revision, Uid::of(key, record.incarnation)));
        ChangeResult { outcome, record, blocked_by: Vec::new() }
    }
}
