//! The two forms of a resource that is migrated, as a commit finds them.

use std::borrow::Cow;

use crate::index::Records;
use crate::key::RecordKey;
use crate::phase::{ConvertError, Form, Phase, Plan};
use crate::record::Present;
use crate::schema::{Schemas, StoredForms};

/// Records, with the plans and phases that say which of them are one resource.
#[derive(Clone, Copy)]
pub(super) struct Forms<'a> {
    pub(super) records: Records<'a>,
    pub(super) schemas: &'a Schemas,
    pub(super) now: i64,
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

    /// The record of a key that exists.
    pub(super) fn live(self, key: &RecordKey) -> Option<&'a Present> {
        self.records.get(key).filter(|record| record.exists(self.now))
    }

    /// The record that a reader of a key sees, with its key. Conditions are judged on it.
    pub(super) fn seen<'k>(self, key: &'k RecordKey) -> Option<(Cow<'k, RecordKey>, &'a Present)> {
        let own = || self.live(key).map(|record| (Cow::Borrowed(key), record));
        let Some(side) = self.side(key) else { return own() };
        match side.form {
            Form::Old => own(),
            // SV37.
            Form::New if !side.phase.shows_new() => None,
            // SV17: a new record whose stamp is outdated does not count.
            Form::New => {
                let old = side.other.ok()?;
                let record = self.live(&old)?;
                let new = own().filter(|(_, new)| new.mirrors(record));
                new.or(Some((Cow::Owned(old), record)))
            }
        }
    }

    /// What is stored of a resource, as table W sees it.
    pub(super) fn stored(self, key: &RecordKey, side: Option<&Side<'_>>) -> StoredForms {
        let alone = |record: Option<&Present>| {
            record.map_or(StoredForms::Absent, |record| StoredForms::Alone(record.schema))
        };
        let Some(side) = side else { return alone(self.live(key)) };
        let other = side.other.as_ref().ok();
        let (old, new) = match side.form {
            Form::Old => (Some(key), other),
            Form::New => (other, Some(key)),
        };
        let old = old.and_then(|old| self.live(old));
        // SV8: in F1 nobody sees the new form.
        let new = new.filter(|_| side.phase.shows_new()).and_then(|new| self.live(new));
        match (old, new) {
            (Some(old), Some(new)) if new.mirrors(old) => {
                StoredForms::Both { old: old.schema, new: new.schema }
            }
            // SV17: a stamped new record without an old one counts as absent.
            (old, _) => alone(old),
        }
    }
}
