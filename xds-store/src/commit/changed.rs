//! The records that a commit changes, while it is judged.

use std::collections::BTreeMap;

use xds_core::Resource;
use xds_proto::xds::store::v1 as proto;

use super::effect::{ChangeResult, Judging};
use crate::content;
use crate::index::Renewed;
use crate::key::RecordKey;
use crate::record::{Present, RecordState, Uid, served};
use crate::refs::ReferrerChanges;

/// The changes of one commit while it is judged.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) states: BTreeMap<RecordKey, (RecordState, proto::Outcome)>,
    pub(super) after: BTreeMap<RecordKey, Present>,
    pub(super) referrers: ReferrerChanges,
    pub(super) renewed: BTreeMap<RecordKey, Renewed>,
}

impl Changed {
    /// Notes the new state of a record.
    pub(super) fn set(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
    ) -> ChangeResult {
        let resource = served(&state).and_then(|content| content::resource(&key.id(), content).ok());
        self.with_resource(judging, key, state, outcome, resource.as_ref())
    }

    /// The same, with the resource that clients get.
    pub(super) fn with_resource(
        &mut self,
        judging: &Judging<'_>,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
        resource: Option<&Resource>,
    ) -> ChangeResult {
        // The commit gets the next revision, or none if it is refused.
        let record = Present::of(key, &state, resource, (judging.head.revision + 1, judging.now));
        let result = ChangeResult {
            outcome,
            record: (!record.is_deleted()).then(|| (record.revision, Uid::of(key, record.incarnation))),
        };
        let before = judging.records.get(key).map_or(&[][..], |before| &before.references);
        self.referrers.replace(key, before, &record.references);
        self.after.insert(key.clone(), record);
        self.states.insert(key.clone(), (state, outcome));
        result
    }
}
