//! The two forms of a resource that is migrated, as readers see them (SV17, SV29, SV37).

use xds_proto::xds::store::v1 as proto;

use super::{Knows, Payload, ReadError, Reads, RecordVersion};
use crate::key::RecordKey;
use crate::phase::{ConvertError, Form, Phase, PhaseRecord, Plan};
use crate::record::{RecordRevision, RecordState, Uid};
use crate::schema::{MarkedVersion, ReadEffect, SchemaVersion, StoredForms, judge_read};

impl Reads<'_> {
    /// The record at the last revision, as a caller gets it; `None` if it is absent, deleted, or expired
    /// at `now`. While the resource is migrated, the answer may be its other form (SV6).
    ///
    /// # Errors
    /// See [`ReadError`]. SV6: the caller or the server does not know its version.
    pub fn read(
        &self,
        key: &RecordKey,
        now: i64,
        payload: Payload,
        knows: &Knows,
    ) -> Result<Option<proto::Record>, ReadError> {
        let at = self.head.revision;
        let alone = || match self.get(key, now)? {
            Some(version) => self.answer_to(&version, payload, knows).map(Some),
            None => Ok(None),
        };
        let Some((plan, form)) = self.schemas.form(key) else { return alone() };
        let (old_key, new_key) = match (form, self.phase(plan, at)?.shows_new()) {
            (Form::Old, false) => return alone(),
            // SV37.
            (Form::New, false) => return Ok(None),
            (Form::Old, true) => (Some(key.clone()), plan.other_key(key, form).ok()),
            (Form::New, true) => (plan.other_key(key, form).ok(), Some(key.clone())),
        };
        let live = |key: Option<&RecordKey>| match key {
            Some(key) => self.get(key, now),
            None => Ok(None),
        };
        // SV17: a stamped new record without an old one counts as absent.
        let Some(old) = live(old_key.as_ref())? else { return Ok(None) };
        let new = live(new_key.as_ref())?;
        let mirror = new.as_ref().filter(|new| is_mirror(&old.state, &new.state));
        let stored = stored_forms(&old.state, mirror.map(|new| &new.state));
        let (server, known) = (self.schemas.server_version(key), knows.version(key, self.schemas));
        let Some(effect) = judge_read(stored, server, known)? else { return Ok(None) };
        match (effect, mirror, new_key) {
            (ReadEffect::New(marked), Some(new), _) => self.answer_as(new, payload, marked.to_string()),
            // SV17: the old form is read and converted.
            (ReadEffect::Alone(_), _, Some(new_key))
                if known.major().min(server.major()) >= plan.new_version().major() =>
            {
                let converted = self.converted(plan, &old, new_key)?;
                let version = MarkedVersion::plain(plan.new_version()).to_string();
                let mut record = self.answer_as(&converted, payload, version)?;
                // Conditions of a write are judged on the old record.
                record.revision = RecordRevision::of(&old.state).to_string();
                record.uid = Uid::of(&old.key, old.state.incarnation).to_string();
                record.is_split = new.is_some();
                Ok(record)
            }
            (
                ReadEffect::Alone(marked)
                | ReadEffect::Old(marked)
                | ReadEffect::New(marked)
                | ReadEffect::ConvertedDown(marked),
                _,
                _,
            ) => self.answer_as(&old, payload, marked.to_string()),
        }
        .map(Some)
    }

    /// The new form of an old record.
    fn converted(
        &self,
        plan: &Plan,
        old: &RecordVersion,
        new: RecordKey,
    ) -> Result<RecordVersion, ConvertError> {
        let content = old.state.content.as_ref();
        let convert = |content| plan.convert(content, (&new, Form::New), plan.new_version());
        let content = content.map(convert).transpose()?;
        let state = RecordState { key: Some(new.to_proto()), content, ..old.state.clone() };
        Ok(RecordVersion { key: new, state, ..old.clone() })
    }

    /// The phase of a plan at a store revision.
    pub(super) fn phase(&self, plan: &Plan, at: u64) -> Result<Phase, ReadError> {
        let place = (plan.number(), at);
        if let Some(phase) = self.phases.borrow().get(&place) {
            return Ok(*phase);
        }
        let record = self.newest(&PhaseRecord::key(plan.number()), at)?;
        let record = record.and_then(|version| PhaseRecord::of_state(&version.state));
        let phase = record.and_then(|record| Phase::of_number(record.phase)).unwrap_or(Phase::F0);
        self.phases.borrow_mut().insert(place, phase);
        Ok(phase)
    }

    /// Whether lists and watches have a record at a store revision (SV29).
    pub(super) fn is_shown(&self, key: &RecordKey, state: &RecordState, at: u64) -> Result<bool, ReadError> {
        let Some((plan, Form::New)) = self.schemas.form(key) else { return Ok(true) };
        let old = plan.other_key(key, Form::New).ok();
        Ok(match old {
            Some(old) if self.phase(plan, at)?.shows_new() => {
                self.newest(&old, at)?.is_some_and(|old| is_mirror(&old.state, state))
            }
            Some(_) | None => false,
        })
    }

    /// What is stored of the resource of a record.
    pub(super) fn stored_of(&self, key: &RecordKey, state: &RecordState) -> Result<StoredForms, ReadError> {
        let alone = || StoredForms::Alone(version_of(state));
        let Some((plan, Form::Old)) = self.schemas.form(key) else { return Ok(alone()) };
        let at = self.head.revision;
        let Some(new) = plan.other_key(key, Form::Old).ok() else { return Ok(alone()) };
        if !self.phase(plan, at)?.shows_new() {
            return Ok(alone());
        }
        let new = self.newest(&new, at)?.filter(|new| is_mirror(state, &new.state));
        Ok(stored_forms(state, new.as_ref().map(|new| &new.state)))
    }

    /// Whether the new form of a plan is hidden at a store revision, and so has no events.
    pub(super) fn is_hidden(&self, key: &RecordKey, at: u64) -> Result<bool, ReadError> {
        match self.schemas.form(key) {
            Some((plan, Form::New)) => Ok(!self.phase(plan, at)?.shows_new()),
            Some((_, Form::Old)) | None => Ok(false),
        }
    }

    /// Whether a store revision shows or hides the new form of a plan.
    pub(super) fn changes_forms(&self, key: &RecordKey, at: u64) -> Result<bool, ReadError> {
        let number = PhaseRecord::plan(key);
        let Some(plan) = self.schemas.plans().iter().find(|plan| Some(plan.number()) == number) else {
            return Ok(false);
        };
        let before = self.phase(plan, at.saturating_sub(1))?;
        Ok(before.shows_new() != self.phase(plan, at)?.shows_new())
    }
}

/// Whether a new record exists and has the stamp of the old one (SV17).
fn is_mirror(old: &RecordState, new: &RecordState) -> bool {
    let is_deleted = [old, new].iter().any(|state| state.lifecycle() == proto::State::Deleted);
    !is_deleted && new.mirror_of == RecordRevision::of(old).to_string()
}

fn stored_forms(old: &RecordState, new: Option<&RecordState>) -> StoredForms {
    match new {
        Some(new) => StoredForms::Both { old: version_of(old), new: version_of(new) },
        None => StoredForms::Alone(version_of(old)),
    }
}

/// The schema version of a stored content.
fn version_of(state: &RecordState) -> SchemaVersion {
    SchemaVersion::of_stored(state.content.as_ref().map_or("", |content| &content.schema))
}
