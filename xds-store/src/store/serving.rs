//! What clients of xDS get of the records (SV29): the forms that the phase serves.

use std::borrow::Cow;
use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::{Loaded, Published, Store};
use crate::commit::hidden;
use crate::content;
use crate::index::Index;
use crate::key::RecordKey;
use crate::phase::{Counts, Form, Phase, PhaseRecord, Plan, Schemas, Stamp};
use crate::record::{RecordState, served};

impl Store {
    /// The records that a commit changes for clients of xDS, with their states. A record that is migrated
    /// is there in each form that the phase serves, also if the store has the old one only.
    #[must_use]
    pub fn served<'p>(&self, commit: &'p Published) -> Cow<'p, [(RecordKey, RecordState)]> {
        let schemas = self.index.schemas();
        let changed = with_shown(commit);
        if schemas.plans().is_empty() {
            return changed;
        }
        let mut changes = Vec::with_capacity(changed.len());
        for (key, state) in &*changed {
            let Some((plan, form)) = schemas.form(key) else {
                changes.push((key.clone(), state.clone()));
                continue;
            };
            let phase = self.index.phases().phase(plan);
            // SV34: a server that does not know the new form does not serve it.
            let shows_new = phase.shows_new() && schemas.knows(plan);
            let other = plan.other_key(key, form).ok();
            if let (Some(other), true, false) = (&other, shows_new, phase.ignores_old()) {
                // Both forms are shown once.
                if form == Form::Old || state_in(&changed, other).is_none() {
                    let keys = if form == Form::Old { (key, other) } else { (other, key) };
                    changes.extend(self.both_forms(plan, keys, &changed));
                }
                continue;
            }
            match form {
                Form::New => {
                    // SV25: in F4 nobody reads the old record.
                    let old = other.filter(|_| phase == Phase::F4);
                    let old = old.map(|old| converted(plan, (old, Form::Old), state, schemas));
                    changes.extend(old.map(|(key, state)| (self.beside(plan, key), state)));
                    changes.extend(shows_new.then(|| (key.clone(), state.clone())));
                }
                Form::Old if phase.ignores_old() => {}
                Form::Old => changes.push((self.beside(plan, key.clone()), state.clone())),
            }
        }
        Cow::Owned(changes)
    }

    /// SV17: what clients get of a resource in F2 and F3. The record that counts is served in both forms; a merge may
    /// have changed the other one.
    fn both_forms(
        &self,
        plan: &Plan,
        (old_key, new_key): (&RecordKey, &RecordKey),
        changed: &[(RecordKey, RecordState)],
    ) -> Vec<(RecordKey, RecordState)> {
        let (old, new) = (state_in(changed, old_key), state_in(changed, new_key));
        let as_other = |key: &RecordKey, form, of: &RecordState| {
            converted(plan, (key.clone(), form), of, self.index.schemas())
        };
        let own = |key: &RecordKey, state: &RecordState| (key.clone(), state.clone());
        let [old, new] = match counts(&self.index, plan, old_key, Form::Old) {
            Counts::Both => [old.map(|old| own(old_key, old)), new.map(|new| own(new_key, new))],
            Counts::Old => {
                [old.map(|old| own(old_key, old)), old.map(|old| as_other(new_key, Form::New, old))]
            }
            Counts::New => {
                [new.map(|new| as_other(old_key, Form::Old, new)), new.map(|new| own(new_key, new))]
            }
            Counts::Nothing => {
                let ended = |key: &RecordKey| {
                    let state = hidden(old.or(new)?.clone());
                    Some((key.clone(), RecordState { key: Some(key.to_proto()), ..state }))
                };
                [ended(old_key), ended(new_key)]
            }
        };
        let old = old.map(|(key, state)| (self.beside(plan, key), state));
        old.into_iter().chain(new).collect()
    }

    fn beside(&self, plan: &Plan, old: RecordKey) -> RecordKey {
        beside(&self.index, self.index.schemas(), plan, old)
    }

    /// Whether a commit shows or hides forms of records that it did not change.
    #[must_use]
    pub fn changes_forms(&self, commit: &Published) -> bool {
        let records = commit.changed.iter().filter(|(key, _)| PhaseRecord::plan(key).is_some());
        let mut records = records.filter_map(|(_, state)| PhaseRecord::of_state(state));
        records.any(|record| record.changes_forms())
    }

    /// Whether a key belongs to the store: the record exists, or it is a form of another one.
    #[must_use]
    pub fn has(&self, key: &RecordKey) -> bool {
        let schemas = self.index.schemas();
        self.exists(key)
            || self.index.is_held(key)
            || schemas.form(key).is_some()
            || schemas.stored_key(key.clone()) != *key
    }

    /// Whether clients of xDS get something for a key.
    #[must_use]
    pub fn serves(&self, key: &RecordKey) -> bool {
        let schemas = self.index.schemas();
        let old = schemas.stored_key(key.clone());
        let is_beside = old != *key && !self.exists(key);
        let stored = if is_beside { &old } else { key };
        if self.index.is_held(stored) {
            return true;
        }
        if self.index.is_withheld(stored) {
            return false;
        }
        let Some((plan, form)) = schemas.form(stored) else { return self.exists(key) };
        let phase = self.index.phases().phase(plan);
        let is_served = match form {
            Form::Old => phase != Phase::F5 && self.beside(plan, stored.clone()) == *key,
            Form::New => phase.shows_new() && schemas.knows(plan),
        };
        is_served && counts(&self.index, plan, stored, form) != Counts::Nothing
    }
}

/// The state of a record that is among these, which are in the order of keys.
fn state_in<'c>(changed: &'c [(RecordKey, RecordState)], key: &RecordKey) -> Option<&'c RecordState> {
    let at = changed.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
    Some(&changed[at].1)
}

/// The changed records with their states as clients get them, in the order of keys (SR47).
fn with_shown(commit: &Published) -> Cow<'_, [(RecordKey, RecordState)]> {
    if commit.shown.is_empty() {
        return Cow::Borrowed(&commit.changed);
    }
    let mut changed: BTreeMap<_, _> = commit.changed.iter().map(|(key, state)| (key, state)).collect();
    changed.extend(&commit.shown);
    Cow::Owned(changed.into_iter().map(|(key, state)| (key.clone(), state.clone())).collect())
}

/// The records of plans, which a load gives to its caller when it knows the phases.
pub(super) fn loaded(index: &Index, schemas: &Schemas, records: Vec<Loaded>, each: &mut impl FnMut(Loaded)) {
    for record in records {
        let Some((plan, form)) = schemas.form(&record.key) else { continue };
        let phase = index.phases().phase(plan);
        let is_counted = match counts(index, plan, &record.key, form) {
            // Of a resource that does not exist, the old form says so, unless nobody reads it.
            Counts::Nothing => (form == Form::Old) != phase.ignores_old(),
            Counts::Old => form == Form::Old,
            Counts::Both => true,
            Counts::New => form == Form::New,
        };
        if !is_counted {
            continue;
        }
        let shows = |form| match form {
            Form::Old => phase != Phase::F5,
            Form::New => phase.shows_new() && schemas.knows(plan),
        };
        let is_alone = counts(index, plan, &record.key, form) != Counts::Both;
        let other_form = if form == Form::Old { Form::New } else { Form::Old };
        let other = plan.other_key(&record.key, form).ok().filter(|_| is_alone && shows(other_form));
        if let Some(other) = other {
            let (key, state) = converted(plan, (other, other_form), record.for_clients(), schemas);
            let key = if other_form == Form::Old { beside(index, schemas, plan, key) } else { key };
            let resource = served(&state).map(|content| content::resource(&key.id(), content));
            each(Loaded { key, state, shown: None, resource });
        }
        if shows(form) {
            let key = match form {
                Form::Old => beside(index, schemas, plan, record.key.clone()),
                Form::New => record.key.clone(),
            };
            let resource = match key == record.key {
                true => record.resource,
                false => served(record.for_clients()).map(|content| content::resource(&key.id(), content)),
            };
            each(Loaded { key, resource, ..record });
        }
    }
}

/// SV31: the key under which clients get an old form. If both forms have the same type and name, their
/// constraints match different clients.
fn beside(index: &Index, schemas: &Schemas, plan: &Plan, old: RecordKey) -> RecordKey {
    let has_both = index.phases().phase(plan).shows_new() && schemas.knows(plan);
    let key = if has_both { plan.key_beside(&old) } else { None };
    key.unwrap_or(old)
}

/// Which record counts of the resource of a key.
fn counts(index: &Index, plan: &Plan, key: &RecordKey, form: Form) -> Counts {
    let live = |key: &RecordKey| index.get(key).filter(|record| !record.is_deleted());
    let other = plan.other_key(key, form).ok();
    let (own, other) = (live(key), other.as_ref().and_then(live));
    let (old, new) = if form == Form::Old { (own, other) } else { (other, own) };
    let stamp = new.map(|new| match (&new.stamp, old) {
        (None, _) => Stamp::Missing,
        (Some(_), Some(old)) if new.mirrors(old) => Stamp::Current,
        (Some(_), Some(_) | None) => Stamp::Outdated,
    });
    Counts::of(index.phases().phase(plan), old.is_some(), stamp)
}

/// SV29: a record is served in both forms, also if only one of them counts. One that cannot be converted is
/// not served in the other form (SV11).
fn converted(
    plan: &Plan,
    (key, form): (RecordKey, Form),
    of: &RecordState,
    schemas: &Schemas,
) -> (RecordKey, RecordState) {
    let version = match form {
        Form::Old => schemas.version(plan.type_url(Form::Old)),
        Form::New => plan.new_version(),
    };
    let convert = |content: Option<&proto::Content>| plan.convert(content?, (&key, form), version).ok();
    let content = convert(of.content.as_ref());
    let quarantined = of.quarantined.as_ref().map(|quarantined| proto::Quarantined {
        serve: convert(quarantined.serve.as_ref()),
        ..quarantined.clone()
    });
    let state = RecordState { key: Some(key.to_proto()), content, quarantined, ..of.clone() };
    (key, state)
}
