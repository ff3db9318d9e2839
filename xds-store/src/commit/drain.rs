//! Deletions that wait until nothing blocks them (SG7), and their end (SG41).

use std::collections::{BTreeMap, BTreeSet};

use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Effect, Judged, Judging, tombstone};
use super::form::CommitLimits;
use super::owner;
use crate::key::{NameDigest, RecordKey};
use crate::record::{EntryId, RecordState};
use crate::stored::ReadError;

/// Deletions that may wait and that others block become deletions in progress. So may what such a record
/// names in turn, because it still refers to that.
pub(super) fn begin(judging: &Judging<'_>, changed: &mut Changed) {
    let mut names: BTreeMap<NameDigest, BTreeSet<RecordKey>> = BTreeMap::new();
    for key in &changed.may_wait {
        if changed.after.get(key).is_some_and(|after| after.is_deleted()) {
            // SV18, SV30: both forms of a resource go together.
            let forms = judging.forms().all(key).map(|form| form.name_digest());
            names.entry(forms.fold(key.name_digest(), Ord::min)).or_default().insert(key.clone());
        }
    }
    // A name that begins may block another one.
    loop {
        let begins = |keys: &BTreeSet<RecordKey>| {
            let Some(key) = keys.first() else { return false };
            ends_with(judging, changed, key).is_none() && !exists(judging, changed, key)
        };
        let next = names.iter().find(|(_, keys)| begins(keys)).map(|(name, _)| *name);
        let Some(keys) = next.and_then(|name| names.remove(&name)) else { return };
        // All variants of a resource stay together: each may be the one of a client.
        for key in keys {
            if let Some((state, _)) = changed.states.get(&key) {
                wait(judging, changed, &key, state.clone());
            }
        }
    }
}

/// A deletion becomes one in progress.
pub(super) fn wait(judging: &Judging<'_>, changed: &mut Changed, key: &RecordKey, state: RecordState) {
    let lifecycle = proto::State::Deleting.into();
    let mut state = RecordState { lifecycle, ..state };
    // Nobody owns it any more, so no prune finds it.
    owner::leave_all(&mut state);
    changed.set(judging, key, state, proto::Outcome::Deleting);
}

/// Deletes what was being deleted and is no longer blocked after the commit, and what that blocked in
/// turn.
pub(super) fn finish(judging: &Judging<'_>, changed: &mut Changed) -> Result<Vec<Effect>, ReadError> {
    let mut ended = Vec::new();
    let dropped: BTreeSet<_> = changed.referrers.targets().collect();
    for target in dropped {
        let Some(first) = judging.records.deleting(&changed.deleting, target).next().cloned() else {
            continue;
        };
        for key in ends_with(judging, changed, &first).unwrap_or_default() {
            let Some(state) = judging.state_after(&key, changed)? else { continue };
            let result = changed.set(judging, &key, tombstone(state), proto::Outcome::Deleted);
            ended.push(Effect { key, result });
        }
    }
    Ok(ended)
}

impl Judging<'_> {
    /// SG41: the end of a deletion in progress that nothing keeps, and that no commit ended: another node began it, or
    /// removed what blocked it. `None` if something keeps it, or if the entry that began it is not one of those that
    /// this node finishes.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn late_end(
        &self,
        name: NameDigest,
        finishes: impl Fn(Option<&EntryId>) -> bool,
    ) -> Result<Option<Judged>, ReadError> {
        let mut changed = Changed::default();
        let keys: Vec<_> = self.records.deleting(&changed.deleting, name).cloned().collect();
        let Some(ended) = keys.first().and_then(|first| ends_with(self, &changed, first)) else {
            return Ok(None);
        };
        let mut is_here = false;
        for key in &keys {
            let Some(record) = self.records.get(key) else { continue };
            // SG22: the writer of its region finishes what a region owns.
            is_here |= match self.policies.of(key) {
                Some(_) => self.accepts(key),
                None => finishes(self.as_stored(key, record)?.1.deleted_by.as_ref()),
            };
        }
        if !is_here {
            return Ok(None);
        }
        for key in ended {
            let Some(state) = self.state_after(&key, &changed)? else { continue };
            changed.set(self, &key, tombstone(state), proto::Outcome::Deleted);
        }
        self.follow_references(None, &mut changed)?;
        let unlimited = CommitLimits { changes: usize::MAX, ..self.limits };
        let judging = Judging { limits: unlimited, ..*self };
        // Removals make nothing ambiguous.
        Ok(judging.finish(changed, Vec::new(), Vec::new(), None).ok())
    }
}

/// The deletions in progress that can end together with that of this name: nothing else refers to one of
/// them after the commit in a way that keeps it. `None` if something does.
///
/// They are more than one name if they refer to each other in a circle, or have two forms.
fn ends_with(judging: &Judging<'_>, changed: &Changed, first: &RecordKey) -> Option<BTreeSet<RecordKey>> {
    let (mut seen, mut all): (BTreeSet<NameDigest>, BTreeSet<RecordKey>) = Default::default();
    let mut next: Vec<RecordKey> = judging.forms().all(first).collect();
    while let Some(target) = next.pop() {
        let name = target.name_digest();
        if !seen.insert(name) {
            continue;
        }
        // SG35: the region of the name ends it, once no other region holds it.
        let is_held = judging.may_be_referred(&target) || judging.records.blocks(name).next().is_some();
        if judging.elsewhere(&target).is_some() || is_held {
            return None;
        }
        all.extend(judging.records.deleting(&changed.deleting, name).cloned());
        for (source, acts) in judging.records.referrers(&changed.referrers, name) {
            if !acts.needs_target() {
                continue;
            }
            let after = changed.after.get(source).or_else(|| judging.records.get(source));
            if after.is_none_or(|record| !record.is_deleting()) {
                return None;
            }
            next.extend(judging.forms().all(source));
        }
        // They end in one commit.
        if all.len() > judging.limits.changes {
            return None;
        }
    }
    Some(all)
}

/// SG2, SV30: whether one of the names of the resource of a key has any variant after the commit.
pub(super) fn exists(judging: &Judging<'_>, changed: &Changed, key: &RecordKey) -> bool {
    judging.forms().all(key).any(|form| name_exists(judging, changed, &form))
}

fn name_exists(judging: &Judging<'_>, changed: &Changed, key: &RecordKey) -> bool {
    let (type_url, name) = (key.type_url(), key.name());
    let of = |constraints| {
        RecordKey::of(&VariantId { type_url: type_url.clone(), name: name.clone(), constraints })
    };
    let before = judging.records.variants(key.name_digest());
    let mut before = before.iter().map(|(_, constraints)| of(constraints.clone()));
    let first = of(xds_core::Constraints::NONE);
    let changes = changed.after.range(first..);
    let mut of_name = changes.take_while(|(other, _)| other.name_digest() == key.name_digest());
    before.any(|other| !changed.after.contains_key(&other)) || of_name.any(|(_, after)| !after.is_deleted())
}
