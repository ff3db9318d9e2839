//! Mirrored writes: a change of one form changes the other one in the same commit (SV16, SV18).

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{ChangeResult, Effect, Judging, tombstone};
use super::owner;
use super::refused::Refused;
use crate::key::RecordKey;
use crate::phase::{Form, Phase, PhaseRecord, Plan};
use crate::record::{Present, RecordRevision, RecordState, Uid, content_digest};
use crate::stored::ReadError;
use crate::time;

/// The other form of a record that a commit changes.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) key: RecordKey,
    pub(super) form: Form,
    /// Its content, if the change puts one.
    pub(super) content: Option<proto::Content>,
    /// The form that the request names.
    pub(super) asked: Form,
    pub(super) mode: MirrorMode,
}

/// What a commit does to the other form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MirrorMode {
    /// Everything that it does to the leading one.
    Write,
    /// Only deletions.
    Delete,
}

impl Judging<'_> {
    /// Changes the other form as the leading one was changed, and gives the result for the form that the
    /// request names. The result of the form that the request does not name is an effect.
    pub(super) fn mirror(
        &self,
        leading: &RecordKey,
        mirror: &Mirror,
        mut result: ChangeResult,
        changed: &mut Changed,
        effects: &mut Vec<Effect>,
    ) -> Result<ChangeResult, Refused> {
        let live = |key| self.records.get(key).filter(|record| record.exists(self.now));
        let (before, other) = (live(leading), live(&mirror.key));
        let is_mirror = before.zip(other).is_some_and(|(before, other)| match mirror.form {
            Form::New => other.mirrors(before),
            Form::Old => before.mirrors(other),
        });
        let mirrored = match (changed.state(leading).cloned(), other) {
            (Some(state), other) if state.lifecycle() == proto::State::Deleted => match other {
                Some(other) => {
                    let other = tombstone(self.state(&mirror.key, other)?);
                    Some(changed.set(self, &mirror.key, other, proto::Outcome::Deleted))
                }
                None => None,
            },
            // SV19, SV20: the record is split until a server that knows the new form writes it.
            (Some(_) | None, _) if mirror.mode == MirrorMode::Delete => None,
            (Some(state), _) => match mirror.form {
                Form::New => self.write_new(mirror, &state, is_mirror, changed)?,
                Form::Old => self.write_old(mirror, leading, &state, &mut result, changed)?,
            },
            (None, other) => {
                let mirror_of_leading = other.filter(|_| is_mirror);
                if let Some(other) = mirror_of_leading.filter(|_| changed.is_renewed(leading)) {
                    self.renew(&mirror.key, other, changed)?;
                }
                // A put of the content that the old form has: the new form has it, too, unless it is
                // missing or outdated. A put of the new form may differ in what only the new form has.
                let is_done = mirror_of_leading.is_some() && mirror.asked == Form::Old;
                // SV24: so does a touch that renews a record of a heartbeat plan.
                let is_touched = mirror_of_leading.is_none()
                    && changed.is_renewed(leading)
                    && self.schemas.form(leading).is_some_and(|(plan, _)| plan.is_heartbeat());
                let converts = is_touched || (mirror.content.is_some() && !is_done);
                match before.filter(|_| converts) {
                    Some(before) => self.convert(mirror, leading, before, is_mirror, &mut result, changed)?,
                    None => None,
                }
            }
        };
        self.note_split(leading, mirror, mirrored.is_none(), changed);
        let is_changed = changed.state(leading).is_some();
        if mirror.asked != mirror.form {
            effects.extend(mirrored.map(|result| Effect { key: mirror.key.clone(), result }));
            return Ok(result);
        }
        let outcome = match result.outcome {
            proto::Outcome::Unchanged if mirrored.is_some() => proto::Outcome::Updated,
            outcome => outcome,
        };
        let of_leading = result.record;
        if is_changed {
            effects.push(Effect { key: leading.clone(), result });
        }
        let identity = |other: &Present| (other.revision, Uid::of(&mirror.key, other.incarnation));
        let record = match (mirrored, mirror.mode) {
            (Some(mirrored), MirrorMode::Write) => mirrored.record,
            (None, MirrorMode::Write) => other.filter(|_| is_mirror).map(identity).or(of_leading),
            // A reader of the old form gets the new one, converted.
            (_, MirrorMode::Delete) => of_leading,
        };
        Ok(ChangeResult { outcome, record, blocked_by: Vec::new() })
    }

    /// Writes the other form of a record that the commit does not change, but may renew.
    fn convert(
        &self,
        mirror: &Mirror,
        leading: &RecordKey,
        before: &Present,
        is_mirror: bool,
        result: &mut ChangeResult,
        changed: &mut Changed,
    ) -> Result<Option<ChangeResult>, Refused> {
        let renewed = changed.renewed.get(leading).map(|renewed| renewed.state.clone());
        let state = renewed.map_or_else(|| self.state(leading, before), Ok)?;
        match mirror.form {
            Form::New => self.write_new(mirror, &state, is_mirror, changed),
            Form::Old => {
                let written = self.write_old(mirror, leading, &state, result, changed)?;
                if written.is_some() {
                    // The record has a new version, which is renewed.
                    changed.renewed.remove(leading);
                }
                Ok(written)
            }
        }
    }

    /// SV23: a record that is split would be lost in F4, so neither the last pass nor the one that runs is
    /// clean.
    pub(super) fn note_split(
        &self,
        leading: &RecordKey,
        mirror: &Mirror,
        is_left: bool,
        changed: &mut Changed,
    ) {
        let Some((plan, Form::Old)) = self.schemas.form(leading) else { return };
        let is_alive = changed.state(leading).is_some_and(|state| state.lifecycle() != proto::State::Deleted);
        if is_alive && is_left && mirror.form == Form::New {
            self.spoil_pass(plan, changed);
        }
    }

    /// The same for a new record that ends before its old one: a server that does not know the new form
    /// renewed the lease of the old one alone.
    pub(super) fn note_lost(&self, key: &RecordKey, changed: &mut Changed) {
        let Some((plan, Form::New)) = self.schemas.form(key) else { return };
        let Some(old) = plan.other_key(key, Form::New).ok() else { return };
        let is_alive = self.records.get(&old).is_some_and(|old| old.exists(self.now));
        if is_alive && changed.state(key).is_some() && changed.state(&old).is_none() {
            self.spoil_pass(plan, changed);
        }
    }

    fn spoil_pass(&self, plan: &Plan, changed: &mut Changed) {
        let phases = self.records.index.phases();
        let Some(recorded) = phases.get(plan.number()).filter(|_| phases.phase(plan) == Phase::F3) else {
            return;
        };
        // The commit may split several records.
        let splits = recorded.splits + 1;
        let record = PhaseRecord { is_clean: false, splits, from: recorded.phase, ..recorded.clone() };
        self.write_record(&PhaseRecord::key(plan.number()), &record, changed);
    }

    /// Writes the old form of a new record that was written in F4, and stamps the new one (SV27).
    pub(super) fn write_old(
        &self,
        mirror: &Mirror,
        new_key: &RecordKey,
        new: &RecordState,
        of_new: &mut ChangeResult,
        changed: &mut Changed,
    ) -> Result<Option<ChangeResult>, Refused> {
        let Some((plan, _)) = self.schemas.form(new_key) else { return Ok(None) };
        let version = self.schemas.version(plan.type_url(Form::Old));
        let convert =
            |content: Option<&proto::Content>| plan.convert(content?, (&mirror.key, Form::Old), version).ok();
        let Some(content) = mirror.content.clone().or_else(|| convert(new.content.as_ref())) else {
            return Ok(None);
        };
        let present = self.records.get(&mirror.key);
        let live = present.filter(|record| record.exists(self.now));
        let mut old = RecordState {
            key: Some(mirror.key.to_proto()),
            content: Some(content),
            quarantined: new.quarantined.as_ref().map(|quarantined| proto::Quarantined {
                serve: convert(quarantined.serve.as_ref()),
                ..quarantined.clone()
            }),
            mirror_of: String::new(),
            ..new.clone()
        };
        self.keep_own(live, &mirror.key, &mut old)?;
        (old.incarnation, old.generation) = self.next_generation(live, present);
        old.digest = content_digest(&old);
        let mut stamped = RecordState { mirror_of: RecordRevision::of(&old).to_string(), ..new.clone() };
        stamped.digest = content_digest(&stamped);
        let outcome = match of_new.outcome {
            proto::Outcome::Unchanged | proto::Outcome::Touched => proto::Outcome::Updated,
            outcome => outcome,
        };
        *of_new = changed.set(self, new_key, stamped, outcome);
        let outcome = if live.is_some() { proto::Outcome::Updated } else { proto::Outcome::Created };
        Ok(Some(changed.set(self, &mirror.key, old, outcome)))
    }

    /// Removes the stamp of a new record whose old one ends (SV26).
    pub(super) fn unstamp(&self, old: &RecordKey, changed: &mut Changed) -> Result<(), Refused> {
        let Some((plan, Form::Old)) = self.schemas.form(old) else { return Ok(()) };
        let Some(new_key) = plan.other_key(old, Form::Old).ok() else { return Ok(()) };
        let ignores_old = self.records.index.phases().phase(plan).ignores_old();
        let live = self.records.get(&new_key).filter(|record| record.exists(self.now));
        let Some(new) = live.filter(|new| ignores_old && new.stamp.is_some()) else { return Ok(()) };
        if changed.state(&new_key).is_none() && new.expires_at.is_none_or(|end| end > self.now) {
            let mut state = RecordState { mirror_of: String::new(), ..self.state(&new_key, new)? };
            state.digest = content_digest(&state);
            changed.set(self, &new_key, state, proto::Outcome::Updated);
        }
        Ok(())
    }

    /// Writes the new form of a state of the old one, with its stamp. Whether that changes anything.
    pub(super) fn write_new(
        &self,
        mirror: &Mirror,
        old: &RecordState,
        is_mirror: bool,
        changed: &mut Changed,
    ) -> Result<Option<ChangeResult>, Refused> {
        let present = self.records.get(&mirror.key);
        let live = present.filter(|record| record.exists(self.now));
        let Some((plan, _)) = self.schemas.form(&mirror.key) else { return Ok(None) };
        let content = match (&mirror.content, live.filter(|_| is_mirror)) {
            (Some(content), _) => Some(content.clone()),
            // Owners, or a quarantine, change no content.
            (None, Some(new)) => self.state(&mirror.key, new)?.content,
            (None, None) => self.converted(plan, &mirror.key, old.content.as_ref()),
        };
        // SV11: a content that cannot be converted leaves the record split.
        let Some(content) = content else { return Ok(None) };
        let mut state = RecordState {
            key: Some(mirror.key.to_proto()),
            // SG9: what is being deleted is that in both forms.
            lifecycle: old.lifecycle,
            created_at: old.created_at,
            content: Some(content),
            expires_at: old.expires_at,
            lease: old.lease,
            renewal: old.renewal,
            renewed_by: old.renewed_by.clone(),
            quarantined: old.quarantined.as_ref().map(|quarantined| proto::Quarantined {
                serve: self.converted(plan, &mirror.key, quarantined.serve.as_ref()),
                ..quarantined.clone()
            }),
            origin: old.origin.clone(),
            // SV16: the revision that the old form has after this commit.
            mirror_of: RecordRevision::of(old).to_string(),
            owners: old.owners.clone(),
            ..RecordState::default()
        };
        self.keep_own(live, &mirror.key, &mut state)?;
        state.digest = content_digest(&state);
        if live.is_some_and(|live| is_mirror && live.content == state.digest[..]) {
            return Ok(None);
        }
        (state.incarnation, state.generation) = self.next_generation(live, present);
        let outcome = if live.is_some() { proto::Outcome::Updated } else { proto::Outcome::Created };
        Ok(Some(changed.set(self, &mirror.key, state, outcome)))
    }

    /// A form that follows the other one keeps what belongs to its incarnation, so that nodes that merge it
    /// keep what follows (SR37, SR42).
    fn keep_own(
        &self,
        live: Option<&Present>,
        key: &RecordKey,
        state: &mut RecordState,
    ) -> Result<(), ReadError> {
        let Some(live) = live else { return Ok(()) };
        let created_at = state.created_at.as_ref().map_or(live.created_at, time::from_proto);
        state.created_at = Some(time::to_proto(created_at.min(live.created_at)));
        if live.has_epochs {
            let mut owners = self.state(key, live)?.owners;
            owner::follow(&mut owners, &state.owners);
            state.owners = owners;
        }
        Ok(())
    }

    fn converted(
        &self,
        plan: &Plan,
        new: &RecordKey,
        old: Option<&proto::Content>,
    ) -> Option<proto::Content> {
        let version = self.schemas.form_version(new);
        plan.convert(old?, (new, Form::New), version).ok()
    }
}
