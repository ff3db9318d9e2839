//! What the end of a target does to the records that refer to it: they go, too, or lose the field (SG5).

use std::collections::BTreeSet;

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::drain;
use super::effect::{Effect, Judged, Judging, tombstone};
use super::form::{Act, CommitLimits, Draft};
use super::mirror::Mirror;
use crate::key::{NameDigest, RecordKey};
use crate::number;
use crate::record::{RecordState, content_digest};
use crate::refs;
use crate::rules::Acts;
use crate::stored::ReadError;

/// Deletes the referrers of the names that the commit ends, and clears fields, until nothing is added.
/// Without a draft, time ends the names.
///
/// With too many dependents the names wait instead, and the store works on them in steps (SG8).
pub(super) fn cascade(
    judging: &Judging<'_>,
    draft: Option<&Draft>,
    changed: &mut Changed,
) -> Result<Vec<Effect>, ReadError> {
    let deleted = changed.states.iter().filter(|(_, (state, _))| state.lifecycle() == proto::State::Deleted);
    let mut gone: Vec<RecordKey> = deleted.map(|(key, _)| key.clone()).collect();
    let kept = draft.map(kept).unwrap_or_default();
    if are_many(judging, changed, &gone, &kept) {
        // What time ends is held by nothing.
        changed.may_wait.extend(gone.iter().filter(|_| draft.is_some()).cloned());
        // All variants of a name wait together.
        gone.retain(|key| dependents(judging, changed, key, &kept).next().is_some());
        for key in gone {
            let Some((state, _)) = changed.states.get(&key) else { continue };
            let state = if draft.is_some() { state.clone() } else { without_end(state) };
            drain::wait(judging, changed, &key, state);
        }
        return Ok(Vec::new());
    }
    // SG8: what has dependents in other regions waits for them.
    let (across, mut gone): (Vec<_>, Vec<_>) =
        gone.into_iter().partition(|key| draft.is_some() && has_dependents_elsewhere(judging, changed, key));
    for key in across {
        let Some((state, _)) = changed.states.get(&key) else { continue };
        let state = state.clone();
        drain::wait(judging, changed, &key, state);
    }
    let mut effects = Vec::new();
    while let Some(target) = gone.pop() {
        let found: Vec<_> = dependents(judging, changed, &target, &kept).collect();
        for (source, acts) in found {
            gone.extend(judging.end(&target, (source, acts), changed, &mut effects)?);
        }
    }
    Ok(effects)
}

impl Judging<'_> {
    /// Whether a deletion in progress has dependents that go with it, and that do not wait themselves.
    pub(crate) fn is_draining(&self, name: NameDigest) -> bool {
        let (changed, nothing) = (Changed::default(), BTreeSet::new());
        let mut deleting = self.records.deleting(&changed.deleting, name);
        deleting.next().is_some() && of_name(self, &changed, name, &nothing).next().is_some()
    }

    /// SG8: one step of deletions in progress, which ends at most `limit` dependents of these names; `None` if
    /// there is nothing to do. `idle` gets the names of which nothing goes.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn drain(
        &self,
        names: &[NameDigest],
        limit: usize,
        idle: &mut Vec<NameDigest>,
    ) -> Result<Option<Judged>, ReadError> {
        let (mut changed, nothing) = (Changed::default(), BTreeSet::new());
        let mut effects = Vec::new();
        for name in names {
            let before = effects.len();
            if before >= limit {
                break;
            }
            let Some(target) = self.records.deleting(&changed.deleting, *name).next().cloned() else {
                idle.push(*name);
                continue;
            };
            let found: Vec<_> = of_name(self, &changed, *name, &nothing).take(limit - before).collect();
            for (source, acts) in found {
                self.end(&target, (source, acts), &mut changed, &mut effects)?;
            }
            if effects.len() == before {
                idle.push(*name);
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        // What is blocked waits in its turn, and so does what has dependents itself.
        changed.may_wait.extend(changed.causes.keys().cloned());
        drain::begin(self, &mut changed);
        self.follow_references(None, &mut changed)?;
        let unlimited = CommitLimits { changes: usize::MAX, ..self.limits };
        let judging = Judging { limits: unlimited, ..*self };
        // Removals make nothing ambiguous.
        Ok(judging.finish(changed, Vec::new(), Vec::new(), None).ok())
    }

    /// Does to a referrer what the end of its target does. Gives its key if it goes, too.
    fn end(
        &self,
        target: &RecordKey,
        (source, acts): (RecordKey, Acts),
        changed: &mut Changed,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<RecordKey>, ReadError> {
        let Some(state) = self.state_after(&source, changed)? else { return Ok(None) };
        if !acts.has(Acts::CASCADE) {
            if let Some(state) = self.without(&source, state, target)? {
                let result = changed.set(self, &source, state, proto::Outcome::Unset);
                if let Some(mirror) = self.mirror_of(&source) {
                    self.note_split(&source, &mirror, true, changed);
                }
                effects.push(Effect { key: source, result });
            }
            return Ok(None);
        }
        let result = changed.set(self, &source, tombstone(state), proto::Outcome::Deleted);
        // SV18: deletions apply to both forms.
        if let Some(Mirror { key: other, .. }) = self.mirror_of(&source)
            && let Some(state) = self.state_after(&other, changed)?
        {
            let result = changed.set(self, &other, tombstone(state), proto::Outcome::Deleted);
            if changed.may_wait.contains(target) {
                changed.may_wait.insert(other.clone());
            }
            changed.causes.insert(other.clone(), target.clone());
            effects.push(Effect { key: other, result });
        }
        if changed.may_wait.contains(target) {
            changed.may_wait.insert(source.clone());
        }
        changed.causes.insert(source.clone(), target.clone());
        effects.push(Effect { key: source.clone(), result });
        Ok(Some(source))
    }

    /// The next generation of a record, which does not name a target in fields that are cleared; `None`
    /// if none can be.
    fn without(
        &self,
        source: &RecordKey,
        mut state: RecordState,
        target: &RecordKey,
    ) -> Result<Option<RecordState>, ReadError> {
        if !refs::clear(source, &mut state, target, self.rules) {
            return Ok(None);
        }
        state.generation = number::after(state.generation);
        state.origin.clone_from(&self.head.node);
        state.mirror_of.clear();
        state.digest = content_digest(&state);
        Ok(Some(state))
    }
}

/// A record whose time has come, and that stays for its dependents.
fn without_end(state: &RecordState) -> RecordState {
    let (renewed_by, renewal) = (String::new(), number::after(state.renewal));
    let mut state = RecordState { expires_at: None, lease: None, renewal, renewed_by, ..state.clone() };
    state.digest = content_digest(&state);
    state
}

/// Whether the names have more dependents than one commit ends, with theirs.
fn are_many(
    judging: &Judging<'_>,
    changed: &Changed,
    gone: &[RecordKey],
    kept: &BTreeSet<&RecordKey>,
) -> bool {
    let gone = gone.iter().filter(|target| dependents(judging, changed, target, kept).next().is_some());
    let mut next: Vec<_> = gone.flat_map(|key| names(judging, key)).collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = next.pop() {
        for (source, acts) in of_name(judging, changed, name, kept) {
            if acts.has(Acts::CASCADE) && !seen.contains(&source) {
                next.extend(names(judging, &source));
            }
            seen.insert(source);
            if seen.len() > judging.dependents {
                return true;
            }
        }
    }
    false
}

/// The referrers of a name that go with it, or lose a field. There are none while the name exists
/// (SG2). Referrers that are being deleted go by themselves.
fn dependents<'a>(
    judging: &'a Judging<'_>,
    changed: &'a Changed,
    target: &RecordKey,
    kept: &'a BTreeSet<&RecordKey>,
) -> impl Iterator<Item = (RecordKey, Acts)> + use<'a> {
    let names: Vec<_> = names(judging, target).collect();
    let found = names.into_iter().flat_map(move |name| of_name(judging, changed, name, kept));
    let mut found = found.peekable();
    let is_gone = found.peek().is_some() && !drain::exists(judging, changed, target);
    found.filter(move |_| is_gone)
}

/// Whether records of other regions go with a target, or lose a field, and none of another region keeps it.
fn has_dependents_elsewhere(judging: &Judging<'_>, changed: &Changed, target: &RecordKey) -> bool {
    let blocks = judging.blocks(target);
    let are_dependents = !blocks.is_empty() && blocks.iter().all(|(_, block)| block.goes_with_target());
    are_dependents && !drain::exists(judging, changed, target)
}

/// The names by which others refer to the resource of a key (SV30).
fn names(judging: &Judging<'_>, key: &RecordKey) -> impl Iterator<Item = NameDigest> {
    judging.forms().all(key).map(|form| form.name_digest())
}

fn of_name<'a>(
    judging: &'a Judging<'_>,
    changed: &'a Changed,
    name: NameDigest,
    kept: &'a BTreeSet<&RecordKey>,
) -> impl Iterator<Item = (RecordKey, Acts)> + 'a {
    let records = judging.records;
    let of_target = records.referrers(&changed.referrers, name);
    let ends = move |(source, acts): &(&RecordKey, Acts)| {
        let after = changed.after.get(source).or_else(|| records.get(source));
        let is_deleting = after.is_some_and(|record| record.is_deleting());
        // SG35: each region does this to what it owns.
        let is_here = || judging.elsewhere(source).is_none();
        acts.has(Acts::CASCADE.and(Acts::UNSET)) && !is_deleting && !kept.contains(source) && is_here()
    };
    of_target.filter(ends).map(|(source, acts)| (source.clone(), acts))
}

/// What the commit puts stays as it is put. If that names what goes, the commit is refused.
fn kept(draft: &Draft) -> BTreeSet<&RecordKey> {
    let puts = draft.changes.iter().filter(|change| matches!(change.act, Act::Put(_)));
    puts.map(|change| &change.key).collect()
}
