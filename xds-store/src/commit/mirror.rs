//! Mirrored writes: a change of the old form changes the new one in the same commit (SV16, SV18).

use xds_proto::xds::store::v1 as proto;

use super::effect::{ChangeResult, Changed, Effect, Judging, tombstone};
use super::refused::Refused;
use crate::key::RecordKey;
use crate::phase::{Form, Plan};
use crate::record::{Present, RecordRevision, RecordState, Uid, content_digest};

/// The new form of a record that a commit changes.
pub(super) struct Mirror {
    pub(super) new: RecordKey,
    /// The content of the new form, if the change puts one.
    pub(super) content: Option<proto::Content>,
    /// The form that the request names.
    pub(super) asked: Form,
    /// The server does not know the new form.
    pub(super) is_below: bool,
}

impl Judging<'_> {
    /// Changes the new form as the old one was changed, and gives the result for the form that the
    /// request names. The result of the other form is an effect.
    pub(super) fn mirror(
        &self,
        old: &RecordKey,
        mirror: &Mirror,
        result: ChangeResult,
        changed: &mut Changed,
        effects: &mut Vec<Effect>,
    ) -> Result<ChangeResult, Refused> {
        let live = |key| self.records.get(key).filter(|record| record.exists(self.now));
        let (before, new) = (live(old), live(&mirror.new));
        let is_mirror = before.zip(new).is_some_and(|(before, new)| new.mirrors(before));
        let mirrored = match (changed.state(old).cloned(), new) {
            (Some(state), new) if state.lifecycle() == proto::State::Deleted => match new {
                Some(new) => {
                    let new = tombstone(self.state(&mirror.new, new)?);
                    Some(changed.set(self, &mirror.new, new, proto::Outcome::Deleted))
                }
                None => None,
            },
            // SV19, SV20: the record is split until a server that knows the new form writes it.
            (Some(_) | None, _) if mirror.is_below => None,
            (Some(state), _) => self.write_new(mirror, &state, is_mirror, changed)?,
            (None, new) => {
                let mirror_of_old = new.filter(|_| is_mirror);
                if let Some(new) = mirror_of_old.filter(|_| changed.is_renewed(old)) {
                    self.renew(&mirror.new, new, changed)?;
                }
                // A put of the content that the old form has: the new form has it, too, unless it is
                // missing or outdated. A put of the new form may differ in what only the new form has.
                let is_done = mirror_of_old.is_some() && mirror.asked == Form::Old;
                match before.filter(|_| mirror.content.is_some() && !is_done) {
                    Some(before) => self.write_new(mirror, &self.state(old, before)?, is_mirror, changed)?,
                    None => None,
                }
            }
        };
        let is_changed = changed.state(old).is_some();
        Ok(match mirror.asked {
            Form::Old => {
                effects.extend(mirrored.map(|result| Effect { key: mirror.new.clone(), result }));
                result
            }
            Form::New => {
                let outcome = match result.outcome {
                    proto::Outcome::Unchanged if mirrored.is_some() => proto::Outcome::Updated,
                    outcome => outcome,
                };
                let of_old = result.record;
                if is_changed {
                    effects.push(Effect { key: old.clone(), result });
                }
                let identity = |new: &Present| (new.revision, Uid::of(&mirror.new, new.incarnation));
                let record = match mirrored {
                    Some(mirrored) => mirrored.record,
                    None => new.filter(|_| is_mirror).map(identity).or(of_old),
                };
                ChangeResult { outcome, record }
            }
        })
    }

    /// Writes the new form of a state of the old one, with its stamp. Whether that changes anything.
    pub(super) fn write_new(
        &self,
        mirror: &Mirror,
        old: &RecordState,
        is_mirror: bool,
        changed: &mut Changed,
    ) -> Result<Option<ChangeResult>, Refused> {
        let present = self.records.get(&mirror.new);
        let live = present.filter(|record| record.exists(self.now));
        let Some((plan, _)) = self.schemas.form(&mirror.new) else { return Ok(None) };
        let content = match (&mirror.content, live.filter(|_| is_mirror)) {
            (Some(content), _) => Some(content.clone()),
            // Owners, or a quarantine, change no content.
            (None, Some(new)) => self.state(&mirror.new, new)?.content,
            (None, None) => self.converted(plan, &mirror.new, old.content.as_ref()),
        };
        // SV11: a content that cannot be converted leaves the record split.
        let Some(content) = content else { return Ok(None) };
        let mut state = RecordState {
            key: Some(mirror.new.to_proto()),
            lifecycle: proto::State::Live.into(),
            created_at: old.created_at,
            content: Some(content),
            expires_at: old.expires_at,
            lease: old.lease,
            renewal: old.renewal,
            renewed_by: old.renewed_by.clone(),
            quarantined: old.quarantined.as_ref().map(|quarantined| proto::Quarantined {
                serve: self.converted(plan, &mirror.new, quarantined.serve.as_ref()),
                ..quarantined.clone()
            }),
            origin: old.origin.clone(),
            // SV16: the revision that the old form has after this commit.
            mirror_of: RecordRevision::of(old).to_string(),
            owners: old.owners.clone(),
            ..RecordState::default()
        };
        state.digest = content_digest(&state);
        if live.is_some_and(|live| is_mirror && live.content == state.digest[..]) {
            return Ok(None);
        }
        (state.incarnation, state.generation) = self.next_generation(live, present);
        let outcome = if live.is_some() { proto::Outcome::Updated } else { proto::Outcome::Created };
        Ok(Some(changed.set(self, &mirror.new, state, outcome)))
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
