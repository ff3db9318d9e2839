//! Targets that go with their last referrer (SG5).

use std::collections::BTreeSet;

use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Effect, Judging, tombstone};
use super::form::{Act, Draft};
use crate::key::{NameDigest, RecordKey};
use crate::refs;
use crate::rules::{Acts, Named};
use crate::stored::ReadError;

/// Deletes the targets whose last referrer goes with the commit, and what they refer to in turn.
/// Without a draft, time ends the referrers.
///
/// A target stays if an owner keeps it, if the commit itself changes it, or if the client may not write
/// it.
pub(super) fn collect(
    judging: &Judging<'_>,
    draft: Option<&Draft>,
    changed: &mut Changed,
) -> Result<Vec<Effect>, ReadError> {
    let mut effects = Vec::new();
    let deleted = changed.states.iter().filter(|(_, (state, _))| state.lifecycle() == proto::State::Deleted);
    let mut gone: Vec<RecordKey> = deleted.map(|(key, _)| key.clone()).collect();
    let kept = draft.map(kept).unwrap_or_default();
    while let Some(source) = gone.pop() {
        let Some((state, _)) = changed.states.get(&source) else { continue };
        let resources: Vec<_> = refs::resources(&source, state).collect();
        let named = resources.iter().flat_map(|resource| judging.rules.named(resource));
        for Named { type_url: of_type, name, .. } in named.filter(|named| named.acts.has(Acts::COLLECT)) {
            let targets = judging.forms().named(of_type, &name);
            let keeps = |acts: Acts| acts.needs_target() || acts.has(Acts::COLLECT);
            let is_in_use = |target: &RecordKey| {
                let name = target.name_digest();
                let mut referrers = judging.records.referrers(&changed.referrers, name);
                let is_held = judging.elsewhere(target).is_some() || judging.is_blocked(target);
                kept.contains(&name) || is_held || referrers.any(|(_, acts)| keeps(acts))
            };
            if targets.iter().any(is_in_use) {
                continue;
            }
            let variants = |target: &RecordKey| {
                let (type_url, name) = (target.type_url(), target.name());
                let of =
                    |constraints| VariantId { type_url: type_url.clone(), name: name.clone(), constraints };
                let variants = judging.records.variants(target.name_digest());
                variants
                    .iter()
                    .map(|(_, constraints)| RecordKey::of(&of(constraints.clone())))
                    .collect::<Vec<_>>()
            };
            let keys: BTreeSet<_> = targets.iter().flat_map(variants).collect();
            let may_go = |key: &RecordKey| match (changed.after.get(key), judging.records.get(key)) {
                (Some(after), _) => after.is_deleted(),
                (None, Some(record)) => !record.has_owner() && draft.is_none_or(|draft| draft.may_write(key)),
                (None, None) => true,
            };
            // SG2: a target is all of its variants.
            if !keys.iter().all(may_go) {
                continue;
            }
            for key in keys {
                let Some(record) = judging.records.get(&key) else { continue };
                if changed.after.contains_key(&key) {
                    continue;
                }
                let state = tombstone(judging.state(&key, record)?);
                let result = changed.set(judging, &key, state, proto::Outcome::Deleted);
                effects.push(Effect { key: key.clone(), result });
                gone.push(key);
            }
        }
    }
    Ok(effects)
}

/// The names that the commit changes and does not delete.
fn kept(draft: &Draft) -> BTreeSet<NameDigest> {
    let changes = draft.changes.iter().filter(|change| match change.act {
        Act::Put(_) | Act::Touch | Act::Quarantine(_) => true,
        Act::Delete { .. } | Act::Check | Act::Phase(..) | Act::Ceiling(_) => false,
    });
    changes.map(|change| change.key.name_digest()).collect()
}
