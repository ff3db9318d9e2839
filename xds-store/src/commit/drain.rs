//! Deletions that wait until nothing blocks them (SG7), and their end.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Effect, Judging, leave, tombstone};
use super::form::{Act, Draft};
use crate::key::{NameDigest, RecordKey};
use crate::record::{RecordState, named_owners};
use crate::rules::Acts;
use crate::stored::ReadError;

/// Deletions with `drain` that others block become deletions in progress. So may what such a record
/// names in turn, because it still refers to that.
pub(super) fn begin(judging: &Judging<'_>, draft: &Draft, changed: &mut Changed) {
    let mut names: BTreeMap<NameDigest, BTreeSet<RecordKey>> = BTreeMap::new();
    for change in &draft.changes {
        let is_deleted = changed.after.get(&change.key).is_some_and(|after| after.is_deleted());
        if matches!(change.act, Act::Delete { drain: true }) && is_deleted {
            names.entry(change.key.name_digest()).or_default().insert(change.key.clone());
        }
    }
    // A name that begins may block another one.
    loop {
        let begins = |keys: &BTreeSet<RecordKey>| {
            let Some(key) = keys.first() else { return false };
            is_blocked(judging, changed, key) && !survives(judging, changed, keys)
        };
        let next = names.iter().find(|(_, keys)| begins(keys)).map(|(name, _)| *name);
        let Some(keys) = next.and_then(|name| names.remove(&name)) else { return };
        // All variants of a name stay together: each may be the one of a client.
        for key in keys {
            let Some((state, _)) = changed.states.get(&key) else { continue };
            let mut state = RecordState { lifecycle: proto::State::Deleting.into(), ..state.clone() };
            // Nobody owns it any more, so no prune finds it.
            let owners: Vec<_> = named_owners(&state).map(str::to_owned).collect();
            for owner in owners {
                leave(&mut state, &owner);
            }
            changed.set(judging, &key, state, proto::Outcome::Deleting);
        }
    }
}

/// Deletes what was being deleted and is no longer blocked after the commit, and what that blocked in
/// turn.
pub(super) fn finish(judging: &Judging<'_>, changed: &mut Changed) -> Result<Vec<Effect>, ReadError> {
    let mut ended = Vec::new();
    let dropped: BTreeSet<_> = changed.referrers.targets().collect();
    for target in dropped {
        let deleting = judging.records.deleting(&changed.deleting, target);
        let deleting: BTreeSet<_> = deleting.cloned().collect();
        let Some(first) = deleting.first() else { continue };
        if is_blocked(judging, changed, first) {
            continue;
        }
        for key in deleting {
            let state = match (changed.states.get(&key), judging.records.get(&key)) {
                (Some((state, _)), _) => state.clone(),
                (None, Some(record)) => judging.state(&key, record)?,
                (None, None) => continue,
            };
            let result = changed.set(judging, &key, tombstone(state), proto::Outcome::Deleted);
            ended.push(Effect { key, result });
        }
    }
    Ok(ended)
}

/// Whether a record refers to the name of this key after the commit in a way that keeps it.
fn is_blocked(judging: &Judging<'_>, changed: &Changed, key: &RecordKey) -> bool {
    let mut referrers = judging.records.referrers(&changed.referrers, key.name_digest());
    referrers.any(|(_, acts)| acts.has(Acts::BLOCK))
}

/// SG2: whether the name has another variant than these after the commit.
fn survives(judging: &Judging<'_>, changed: &Changed, keys: &BTreeSet<RecordKey>) -> bool {
    let Some(key) = keys.first() else { return true };
    let (type_url, name) = (key.type_url(), key.name());
    let of = |constraints| {
        RecordKey::of(&VariantId { type_url: type_url.clone(), name: name.clone(), constraints })
    };
    let before = judging.records.variants(key.name_digest());
    let mut before = before.iter().map(|(_, constraints)| of(constraints.clone()));
    let first = of(xds_core::Constraints::NONE);
    let changes = changed.after.range(first..);
    let mut of_name = changes.take_while(|(other, _)| other.name_digest() == key.name_digest());
    before.any(|other| !keys.contains(&other) && !changed.after.contains_key(&other))
        || of_name.any(|(other, after)| !keys.contains(other) && !after.is_deleted())
}
