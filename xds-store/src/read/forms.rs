//! The two forms of a resource that is migrated, as readers see them (SV17, SV29, SV37).

use xds_proto::xds::store::v1 as proto;

use super::{Filter, Knows, Payload, ReadError, Reads, RecordVersion};
use crate::key::RecordKey;
use crate::phase::{ConvertError, Counts, Form, Phase, PhaseRecord, Plan, Stamp};
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
        let phase = self.phase(plan, at)?;
        let (old_key, new_key) = match (form, phase.shows_new()) {
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
        let (old, new) = (live(old_key.as_ref())?, live(new_key.as_ref())?);
        let stamp = new.as_ref().map(|new| Stamp::of(old.as_ref().map(|old| &old.state), &new.state));
        let counts = Counts::of(phase, old.is_some(), stamp);
        let version = |of: &Option<RecordVersion>| of.as_ref().map(|of| version_of(&of.state));
        let stored = match (counts, version(&old), version(&new)) {
            (Counts::Both, Some(old), Some(new)) => StoredForms::Both { old, new },
            (Counts::Old | Counts::Both, Some(old), _) => StoredForms::Alone(old),
            (Counts::New, _, Some(new)) => StoredForms::Alone(new),
            (Counts::Nothing | Counts::Old | Counts::Both | Counts::New, _, _) => StoredForms::Absent,
        };
        let (server, known) = (self.schemas.server_version(key), knows.version(key, self.schemas));
        let Some(effect) = judge_read(stored, server, known)? else { return Ok(None) };
        let record = match (effect, counts, old, new) {
            // SV25: the old form is never read from an old record that does not count.
            (ReadEffect::ConvertedDown(marked), Counts::New, _, Some(new)) => {
                let Some(old_key) = old_key else { return Ok(None) };
                let version = self.schemas.version(plan.type_url(Form::Old)).min(marked.version);
                let converted = converted(plan, &new, (old_key, Form::Old), version)?;
                let marked = MarkedVersion { version, ..marked };
                let record = self.answer_as(&converted, payload, marked.to_string())?;
                with_identity(record, &new)
            }
            (ReadEffect::New(marked), _, _, Some(new))
            | (ReadEffect::Alone(marked), Counts::New, _, Some(new)) => {
                self.answer_as(&new, payload, marked.to_string())?
            }
            // SV17: the old form is read and converted.
            (ReadEffect::Alone(_), Counts::Old, Some(old), new)
                if known.major().min(server.major()) >= plan.new_version().major() =>
            {
                let Some(new_key) = new_key else { return Ok(None) };
                let converted = converted(plan, &old, (new_key, Form::New), plan.new_version())?;
                let version = MarkedVersion::plain(plan.new_version()).to_string();
                let record = with_identity(self.answer_as(&converted, payload, version)?, &old);
                proto::Record { is_split: new.is_some(), ..record }
            }
            (ReadEffect::Alone(marked) | ReadEffect::Old(marked), _, Some(old), _) => {
                self.answer_as(&old, payload, marked.to_string())?
            }
            (
                ReadEffect::Alone(_) | ReadEffect::Old(_) | ReadEffect::New(_) | ReadEffect::ConvertedDown(_),
                _,
                _,
                _,
            ) => return Ok(None),
        };
        Ok(Some(record))
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
        Ok(match (self.schemas.form(key), self.counts(key, state, at)?) {
            (None, _) | (Some((_, Form::Old)), Counts::Old) | (Some(_), Counts::Both) => true,
            (Some((plan, Form::New)), Counts::New) => self.phase(plan, at)?.shows_new(),
            (Some(_), Counts::Nothing | Counts::Old | Counts::New) => false,
        })
    }

    /// Which record counts of the resource that a record is of, at a store revision.
    fn counts(&self, key: &RecordKey, state: &RecordState, at: u64) -> Result<Counts, ReadError> {
        let Some((plan, form)) = self.schemas.form(key) else { return Ok(Counts::Old) };
        let phase = self.phase(plan, at)?;
        let other = match plan.other_key(key, form).ok() {
            Some(other) if phase.shows_new() => self.newest(&other, at)?,
            Some(_) | None => None,
        };
        let live = |state: &RecordState| state.lifecycle() != proto::State::Deleted;
        let other = other.map(|other| other.state).filter(live);
        let own = Some(state.clone()).filter(live);
        let (old, new) = if form == Form::Old { (own, other) } else { (other, own) };
        let stamp = new.as_ref().map(|new| Stamp::of(old.as_ref(), new));
        Ok(Counts::of(phase, old.is_some(), stamp))
    }

    /// What is stored of the resource of a record.
    pub(super) fn stored_of(&self, key: &RecordKey, state: &RecordState) -> Result<StoredForms, ReadError> {
        let version = version_of(state);
        match (self.schemas.form(key), self.counts(key, state, self.head.revision)?) {
            // SV8.
            (Some((plan, Form::Old)), Counts::Both) => {
                Ok(StoredForms::Both { old: version, new: plan.new_version() })
            }
            (Some(_) | None, Counts::Nothing | Counts::Old | Counts::Both | Counts::New) => {
                Ok(StoredForms::Alone(version))
            }
        }
    }

    /// Whether a form of a plan is hidden at a store revision, and so has no events.
    pub(super) fn is_hidden(&self, key: &RecordKey, at: u64) -> Result<bool, ReadError> {
        match self.schemas.form(key) {
            Some((plan, Form::New)) => Ok(!self.phase(plan, at)?.shows_new()),
            Some((plan, Form::Old)) => Ok(self.phase(plan, at)?.ignores_old()),
            None => Ok(false),
        }
    }

    /// SV36: fails if a change of a store revision shows or hides a form of a plan that a filter can match.
    pub(super) fn check_forms(&self, key: &RecordKey, at: u64, filter: &Filter) -> Result<(), ReadError> {
        let number = PhaseRecord::plan(key);
        let plan = self.schemas.plans().iter().find(|plan| Some(plan.number()) == number);
        let can_match =
            |plan: &&Plan| [Form::Old, Form::New].iter().any(|form| filter.can_match(plan, *form));
        let Some(plan) = plan.filter(can_match) else { return Ok(()) };
        let (from, to) = (self.phase(plan, at.saturating_sub(1))?, self.phase(plan, at)?);
        let shown = |phase: Phase| (phase.shows_new(), phase.ignores_old());
        if shown(from) == shown(to) {
            return Ok(());
        }
        let (plan, from, to) = (plan.name().to_owned(), from.number(), to.number());
        Err(ReadError::FormsChanged { revision: at, plan, from, to })
    }
}

/// The other form of a record.
fn converted(
    plan: &Plan,
    of: &RecordVersion,
    (key, form): (RecordKey, Form),
    version: SchemaVersion,
) -> Result<RecordVersion, ConvertError> {
    let content = of.state.content.as_ref();
    let content = content.map(|content| plan.convert(content, (&key, form), version)).transpose()?;
    let state = RecordState { key: Some(key.to_proto()), content, ..of.state.clone() };
    Ok(RecordVersion { key, state, ..of.clone() })
}

/// A converted answer: conditions of a write are judged on the record that counts.
fn with_identity(record: proto::Record, of: &RecordVersion) -> proto::Record {
    proto::Record {
        revision: RecordRevision::of(&of.state).to_string(),
        uid: Uid::of(&of.key, of.state.incarnation).to_string(),
        ..record
    }
}

/// The schema version of a stored content.
fn version_of(state: &RecordState) -> SchemaVersion {
    SchemaVersion::of_stored(state.content.as_ref().map_or("", |content| &content.schema))
}
