//! One step of a pass over the records of a plan (SV21).

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Judged, Judging, tombstone};
use super::mirror::{Mirror, MirrorMode};
use super::refused::Refused;
use crate::key::{RecordKey, stored};
use crate::phase::{Form, PassPosition, Phase, Plan};
use crate::record::RecordState;

/// What a step did.
#[derive(Debug)]
pub(crate) struct Copied {
    /// What it writes; `None` if nothing is to be written.
    pub(crate) judged: Option<Judged>,
    /// Where the pass goes on; `None` at its end.
    pub(crate) next: Option<PassPosition>,
    /// How many records it looked at.
    pub(crate) looked_at: usize,
    /// The records that it cannot convert, and why.
    pub(crate) failed: Vec<(RecordKey, String)>,
}

impl Judging<'_> {
    /// Looks at the next records of a plan, at most `limit`. In F3 it writes new records that are missing or
    /// outdated, and deletes those without an old one (SV21). Of a heartbeat plan it copies nothing (SV24).
    /// Below F4 it writes the old form of what was written in F4 (SV27). In F5 it removes old records (SV26),
    /// and in F0 new ones. The step is judged like a commit on the present state, so it never overwrites a
    /// newer write and never revives a deletion.
    ///
    /// # Errors
    /// The engine cannot be read, or the changes do not go together with other records.
    pub(crate) fn copy(&self, plan: &Plan, from: &PassPosition, limit: usize) -> Result<Copied, Refused> {
        let (keys, next) = self.keys(plan, from, limit)?;
        let mut changed = Changed::default();
        let (mut failed, mut bytes, mut next) = (Vec::new(), 0, next);
        let mut looked_at = 0;
        let phase = self.records.index.phases().phase(plan);
        let mut last = None;
        for key in keys {
            if bytes > STEP_BYTES {
                next = Some(PassPosition { after: last, ..from.clone() });
                break;
            }
            looked_at += 1;
            last = Some(key.clone());
            let live = |key: &RecordKey| self.records.get(key).filter(|record| record.exists(self.now));
            let (Some(record), other) = (live(&key), plan.other_key(&key, from.form)) else { continue };
            // SG22: the writer of its region converts a record. Until the copies show that, the pass is not clean.
            let mut elsewhere = Changed::default();
            let is_own = self.accepts(&key);
            let changed = if is_own { &mut changed } else { &mut elsewhere };
            let mirror =
                |key, form| Mirror { key, form, content: None, asked: form, mode: MirrorMode::Write };
            match (phase, from.form, other) {
                // SV26.
                (Phase::F5, Form::Old, _) => {
                    if record.expires_at.is_none() && record.lease.is_none() {
                        self.unstamp(&key, changed)?;
                        let state = tombstone(self.state(&key, record)?);
                        changed.set(self, &key, state, proto::Outcome::Deleted);
                    }
                }
                // SV27: in F0 the new form is gone, also for servers without the plan.
                (Phase::F0, Form::New, _) => {
                    if record.stamp.is_some() {
                        let state = tombstone(self.state(&key, record)?);
                        changed.set(self, &key, state, proto::Outcome::Deleted);
                    }
                }
                // SV24.
                (Phase::F2 | Phase::F3, Form::Old, _) if plan.is_heartbeat() => {}
                (Phase::F2 | Phase::F3, Form::New, _) if plan.is_heartbeat() && record.stamp.is_none() => {}
                (Phase::F2 | Phase::F3, Form::Old, Err(error)) => failed.push((key, error.to_string())),
                (Phase::F3, Form::Old, Ok(new)) => {
                    // A new record without a stamp is newer than the old one (SV17).
                    if live(&new).is_some_and(|new| new.mirrors(record) || new.stamp.is_none()) {
                        continue;
                    }
                    let state = self.state(&key, record)?;
                    match self.write_new(&mirror(new.clone(), Form::New), &state, false, changed)? {
                        Some(_) => bytes += state.encoded_len(),
                        // SV11.
                        None => failed.push((key, self.why_not(plan, &state, (&new, Form::New)))),
                    }
                }
                // SV27.
                (Phase::F2 | Phase::F3, Form::New, Ok(old)) if record.stamp.is_none() => {
                    let state = self.state(&key, record)?;
                    let mut of_new = changed.result(&key, proto::Outcome::Updated);
                    let mirror = mirror(old.clone(), Form::Old);
                    match self.write_old(&mirror, &key, &state, &mut of_new, changed)? {
                        Some(_) => bytes += state.encoded_len(),
                        None => failed.push((key, self.why_not(plan, &state, (&old, Form::Old)))),
                    }
                }
                (Phase::F3, Form::New, Ok(old)) if live(&old).is_none() => {
                    let state = tombstone(self.state(&key, record)?);
                    changed.set(self, &key, state, proto::Outcome::Deleted);
                }
                (Phase::F0 | Phase::F1 | Phase::F2 | Phase::F4, Form::Old, _) => {}
                (Phase::F1 | Phase::F2 | Phase::F3 | Phase::F4 | Phase::F5, Form::New, _) => {}
            }
            if !elsewhere.is_empty() {
                let why = "the writer of the region that owns it has not converted it yet";
                failed.extend(last.clone().map(|key| (key, why.to_owned())));
            }
        }
        let judged = match changed.is_empty() {
            true => None,
            false => {
                self.follow_references(None, &mut changed)?;
                Some(self.finish(changed, Vec::new(), Vec::new(), None)?)
            }
        };
        Ok(Copied { judged, next, looked_at, failed })
    }

    /// Leaves out the next record, which cannot be written. `None` if the engine cannot be read.
    pub(crate) fn skip(&self, plan: &Plan, from: &PassPosition, why: &str) -> Option<Copied> {
        let (keys, next) = self.keys(plan, from, 1).ok()?;
        let failed: Vec<_> = keys.into_iter().map(|key| (key, why.to_owned())).collect();
        Some(Copied { judged: None, next, looked_at: failed.len(), failed })
    }

    /// Why a record has no other form, for people.
    fn why_not(&self, plan: &Plan, state: &RecordState, other: (&RecordKey, Form)) -> String {
        let version = self.schemas.form_version(other.0);
        let converted = state.content.as_ref().map(|content| plan.convert(content, other, version));
        let error = converted.and_then(Result::err);
        error.map_or_else(|| "it has no content".to_owned(), |error| error.to_string())
    }

    /// The next keys of a form, and where the pass goes on behind them.
    pub(super) fn keys(
        &self,
        plan: &Plan,
        from: &PassPosition,
        limit: usize,
    ) -> Result<(BTreeSet<RecordKey>, Option<PassPosition>), Refused> {
        let (start, end) = stored::of_type(plan.type_url(from.form));
        let begin = from.after.as_ref().map_or(start, stored::after);
        let (mut keys, mut last, mut versions): (BTreeSet<_>, Option<RecordKey>, usize) = Default::default();
        let mut is_end = true;
        let mut each = |stored_key: &[u8]| {
            let Some((key, _)) = stored::parse_record(stored_key) else { return ControlFlow::Continue(()) };
            versions += 1;
            if last.as_ref() != Some(&key) {
                // Between two keys only: a key may have more versions than a step reads.
                if keys.len() >= limit || versions > VERSIONS_LIMIT {
                    is_end = false;
                    return ControlFlow::Break(());
                }
                if plan.form_of(&key) == Some(from.form) {
                    keys.insert(key.clone());
                }
                last = Some(key);
            }
            ControlFlow::Continue(())
        };
        self.range((&begin, &end), &mut each)?;
        // SV27: what F4 rewrote is taken back.
        let rewrites_back =
            plan.rewrites_references() && self.records.index.phases().phase(plan) == Phase::F2;
        let next = match (is_end, from.form) {
            (false, _) => Some(PassPosition { after: last, ..from.clone() }),
            (true, Form::Old) => Some(PassPosition { form: Form::New, ..PassPosition::default() }),
            (true, Form::New) => (rewrites_back && !from.is_rewriting).then(PassPosition::rewriting),
        };
        Ok((keys, next))
    }

    /// Calls `each` with the stored keys of a range.
    pub(super) fn range(
        &self,
        (from, to): (&Bytes, &Bytes),
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), Refused> {
        let view = self.stored.view()?;
        Ok(view.range(from, to, &mut |stored_key, _| each(stored_key))?)
    }
}

/// A step ends when it has read this much, so that commits do not wait for it.
pub(super) const STEP_BYTES: usize = 1 << 20;
/// A step ends after this many stored versions.
const VERSIONS_LIMIT: usize = 10_000;
