//! What clients of xDS get of the records (SV29): the forms that the phase serves.

use std::borrow::Cow;

use xds_proto::xds::store::v1 as proto;

use super::{Loaded, Published, Store};
use crate::content;
use crate::index::Index;
use crate::key::RecordKey;
use crate::phase::{Form, PhaseRecord, Plan};
use crate::record::{RecordState, served};
use crate::schema::Schemas;

impl Store {
    /// The records that a commit changes for clients of xDS, with their states. A record that is migrated
    /// is there in each form that the phase serves, also if the store has the old one only.
    #[must_use]
    pub fn served<'p>(&self, commit: &'p Published) -> Cow<'p, [(RecordKey, RecordState)]> {
        let schemas = &self.config.schemas;
        if schemas.plans().is_empty() {
            return Cow::Borrowed(&commit.changed);
        }
        let mut changes = Vec::with_capacity(commit.changed.len());
        for (key, state) in &commit.changed {
            let Some((plan, form)) = schemas.form(key) else {
                changes.push((key.clone(), state.clone()));
                continue;
            };
            let serves_new = serves_new(&self.index, schemas, plan);
            match form {
                Form::New if serves_new => changes.push((key.clone(), state.clone())),
                Form::New => {}
                Form::Old => {
                    let new = plan.other_key(key, form).ok().filter(|_| serves_new);
                    let is_there =
                        |new: &RecordKey| commit.changed.binary_search_by(|(key, _)| key.cmp(new)).is_ok();
                    // A server that does not know the new form wrote the old one alone.
                    let new = new.filter(|new| !is_there(new));
                    changes.extend(new.map(|new| converted(plan, new, state)));
                    changes.push((key.clone(), state.clone()));
                }
            }
        }
        Cow::Owned(changes)
    }

    /// Whether a commit shows or hides forms of records that it did not change.
    #[must_use]
    pub fn changes_forms(&self, commit: &Published) -> bool {
        let records = commit.changed.iter().filter(|(key, _)| PhaseRecord::plan(key).is_some());
        let mut records = records.filter_map(|(_, state)| PhaseRecord::of_state(state));
        records.any(|record| record.changes_forms())
    }

    /// Whether a key belongs to the store: the record exists, or it is the new form of another one.
    #[must_use]
    pub fn has(&self, key: &RecordKey) -> bool {
        self.exists(key) || matches!(self.config.schemas.form(key), Some((_, Form::New)))
    }

    /// Whether clients of xDS get something for a key.
    #[must_use]
    pub fn serves(&self, key: &RecordKey) -> bool {
        match self.config.schemas.form(key) {
            Some((plan, Form::New)) => {
                let is_served = serves_new(&self.index, &self.config.schemas, plan);
                // SV17: without an old one, the new record does not count.
                is_served && plan.other_key(key, Form::New).is_ok_and(|old| self.exists(&old))
            }
            Some((_, Form::Old)) | None => self.exists(key),
        }
    }
}

/// The records of plans, which a load gives to its caller when it knows the phases.
pub(super) fn loaded(index: &Index, schemas: &Schemas, records: Vec<Loaded>, each: &mut impl FnMut(Loaded)) {
    for record in records {
        let Some((plan, form)) = schemas.form(&record.key) else { continue };
        let other = plan.other_key(&record.key, form).ok();
        let serves_new = serves_new(index, schemas, plan);
        let mirror = other.as_ref().is_some_and(|other| {
            let (own, other) = (index.get(&record.key), index.get(other));
            let (old, new) = match form {
                Form::Old => (own, other),
                Form::New => (other, own),
            };
            old.zip(new).is_some_and(|(old, new)| !new.is_deleted() && new.mirrors(old))
        });
        match (form, other) {
            (Form::New, _) if serves_new && mirror => each(record),
            (Form::New, _) => {}
            (Form::Old, Some(new)) if serves_new && !mirror => {
                let (key, state) = converted(plan, new, &record.state);
                let resource = served(&state).map(|content| content::resource(&key.id(), content));
                each(Loaded { key, state, resource });
                each(record);
            }
            (Form::Old, _) => each(record),
        }
    }
}

fn serves_new(index: &Index, schemas: &Schemas, plan: &Plan) -> bool {
    // SV34: a server that does not know the new form does not serve it.
    let is_known = schemas.pair_version(plan).major() >= plan.new_version().major();
    is_known && index.phases().phase(plan).shows_new()
}

/// SV29: an old record without a new one that counts is served in both forms. One that cannot be
/// converted is not served in the new one (SV11).
fn converted(plan: &Plan, new: RecordKey, old: &RecordState) -> (RecordKey, RecordState) {
    let convert =
        |content: Option<&proto::Content>| plan.convert(content?, (&new, Form::New), plan.new_version()).ok();
    let content = convert(old.content.as_ref());
    let quarantined = old.quarantined.as_ref().map(|quarantined| proto::Quarantined {
        serve: convert(quarantined.serve.as_ref()),
        ..quarantined.clone()
    });
    let state = RecordState { key: Some(new.to_proto()), content, quarantined, ..old.clone() };
    (new, state)
}
