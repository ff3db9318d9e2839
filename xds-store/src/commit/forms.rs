//! The two forms of a resource that is migrated, as a commit finds them.

use xds_core::{Constraints, ResourceName, VariantId};

use crate::index::Records;
use crate::key::RecordKey;
use crate::phase::{ConvertError, Counts, Form, Phase, Plan, Schemas, Stamp};
use crate::record::Present;
use crate::schema::StoredForms;

/// Records, with the plans and phases that say which of them are one resource.
#[derive(Clone, Copy)]
pub(crate) struct Forms<'a> {
    pub(crate) records: Records<'a>,
    pub(crate) schemas: &'a Schemas,
    pub(crate) now: i64,
}

/// A key that a plan has, in the phase of the store.
pub(super) struct Side<'a> {
    pub(super) plan: &'a Plan,
    pub(super) phase: Phase,
    pub(super) form: Form,
    /// The key of the other form.
    pub(super) other: Result<RecordKey, ConvertError>,
}

impl<'a> Forms<'a> {
    /// The side of a plan that a key is on.
    pub(super) fn side(self, key: &RecordKey) -> Option<Side<'a>> {
        let (plan, form) = self.schemas.form(key)?;
        let (phase, other) = (self.records.index.phases().phase(plan), plan.other_key(key, form));
        Some(Side { plan, phase, form, other })
    }

    /// SV30: a key, and that of the other form once its plan has begun. References to either one lead to
    /// the same resource.
    pub(crate) fn all(self, key: &RecordKey) -> impl Iterator<Item = RecordKey> {
        let side = self.side(key).filter(|side| side.phase != Phase::F0);
        [key.clone()].into_iter().chain(side.and_then(|side| side.other.ok()))
    }

    /// The same for a name that a record refers to, without constraints. None, if it is that of a form that
    /// nobody sees yet (SV37), or no longer (SV29): clients would not find it.
    pub(super) fn named(self, type_url: &str, name: &ResourceName) -> Vec<RecordKey> {
        let constraints = Constraints::NONE;
        let key = RecordKey::of(&VariantId { type_url: type_url.into(), name: name.clone(), constraints });
        match self.side(&key).filter(|side| !side.plan.keeps_name()) {
            Some(
                Side { form: Form::New, phase: Phase::F1, .. }
                | Side { form: Form::Old, phase: Phase::F5, .. },
            ) => Vec::new(),
            Some(_) | None => self.all(&key).collect(),
        }
    }

    /// The record of a key that exists.
    pub(super) fn live(self, key: &RecordKey) -> Option<&'a Present> {
        self.records.get(key).filter(|record| record.exists(self.now))
    }

    /// The old and the new record of a resource, with their keys, if they exist.
    fn pair<'k>(self, key: &'k RecordKey, side: &'k Side<'_>) -> [Option<(&'k RecordKey, &'a Present)>; 2] {
        let other = side.other.as_ref().ok();
        let keys = match side.form {
            Form::Old => [Some(key), other],
            Form::New => [other, Some(key)],
        };
        keys.map(|key| key.and_then(|key| Some((key, self.live(key)?))))
    }

    /// Which record of a resource counts.
    fn counts(self, key: &RecordKey, side: &Side<'_>) -> Counts {
        let [old, new] = self.pair(key, side);
        let stamp = |new: &Present| match (&new.stamp, old) {
            (None, _) => Stamp::Missing,
            (Some(_), Some((_, old))) if new.mirrors(old) => Stamp::Current,
            (Some(_), Some(_) | None) => Stamp::Outdated,
        };
        Counts::of(side.phase, old.is_some(), new.map(|(_, new)| stamp(new)))
    }

    /// The form that a commit changes first; the other one follows it.
    pub(super) fn leading(self, key: &RecordKey, side: &Side<'_>) -> Form {
        match self.counts(key, side) {
            Counts::New => Form::New,
            Counts::Nothing if side.phase.ignores_old() => Form::New,
            Counts::Nothing | Counts::Old | Counts::Both => Form::Old,
        }
    }

    /// The record that a reader of a key sees, with its key. Conditions are judged on it.
    pub(super) fn seen(self, key: &RecordKey) -> Option<(RecordKey, &'a Present)> {
        let Some(side) = self.side(key) else { return self.live(key).map(|record| (key.clone(), record)) };
        // SV37.
        if side.form == Form::New && !side.phase.shows_new() {
            return None;
        }
        let [old, new] = self.pair(key, &side);
        let seen = match (self.counts(key, &side), side.form) {
            (Counts::Nothing, _) => None,
            (Counts::Old, _) | (Counts::Both, Form::Old) => old,
            (Counts::New, _) | (Counts::Both, Form::New) => new,
        };
        seen.map(|(key, record)| (key.clone(), record))
    }

    /// What is stored of a resource, as table W sees it.
    pub(super) fn stored(self, key: &RecordKey, side: Option<&Side<'_>>) -> StoredForms {
        let alone = |record: Option<&Present>| {
            record.map_or(StoredForms::Absent, |record| StoredForms::Alone(record.schema))
        };
        let Some(side) = side else { return alone(self.live(key)) };
        let [old, new] = self.pair(key, side).map(|record| record.map(|(_, record)| record));
        match (self.counts(key, side), old, new) {
            // SV8.
            (Counts::Both, Some(old), Some(new)) => StoredForms::Both { old: old.schema, new: new.schema },
            (Counts::Nothing, _, _) => StoredForms::Absent,
            (Counts::Old | Counts::Both, old, _) => alone(old),
            (Counts::New, _, new) => alone(new),
        }
    }
}
