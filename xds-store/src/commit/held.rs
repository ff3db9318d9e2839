//! Deleted records that others still refer to (SR48): a deletion and a new reference may cross, if two nodes
//! make them at once (SG36).

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use super::forms::Forms;
use crate::index::{self, Pending, Records};
use crate::key::{NameDigest, RecordKey};
use crate::record::Present;
use crate::refs::ReferrerChanges;
use crate::rules::Acts;

/// The names of which other deleted records are served once a commit is done, with these records.
pub(crate) fn held(
    records: Records<'_>,
    commit: &Pending,
    referrers: &ReferrerChanges,
    now: i64,
) -> BTreeMap<NameDigest, BTreeSet<RecordKey>> {
    let forms = Forms { records, schemas: records.index.schemas(), now };
    let changed = commit.states.keys().flat_map(|key| forms.all(key).map(|form| form.name_digest()));
    let names: BTreeSet<NameDigest> = changed.chain(referrers.targets()).collect();
    let mut deleted: BTreeMap<NameDigest, Vec<&RecordKey>> = BTreeMap::new();
    for (key, state) in &commit.states {
        if state.lifecycle() == proto::State::Deleted {
            deleted.entry(key.name_digest()).or_default().push(key);
        }
    }
    let mut held = BTreeMap::new();
    for name in names {
        let of_commit = deleted.remove(&name).unwrap_or_default();
        let after = held_of(records, (commit, referrers), (name, &of_commit), now);
        let is_same = records.held(name).map_or(after.is_empty(), |before| *before == after);
        if !is_same {
            held.insert(name, after);
        }
    }
    held
}

/// The deleted records of a name that are served once a commit is done: no record of the name exists, and another
/// one refers to it by a field that blocks its deletion.
pub(crate) fn held_of(
    records: Records<'_>,
    (commit, referrers): (&Pending, &ReferrerChanges),
    (name, of_commit): (NameDigest, &[&RecordKey]),
    now: i64,
) -> BTreeSet<RecordKey> {
    let forms = Forms { records, schemas: records.index.schemas(), now };
    let keys: BTreeSet<_> = records.deleted(name).chain(of_commit.iter().copied()).collect();
    let Some(first) = keys.first() else { return BTreeSet::new() };
    let exists = forms.all(first).any(|form| records.exists_after(commit, form.name_digest()));
    let is_blocked = |form: RecordKey| {
        let mut referrers = records.referrers(referrers, form.name_digest());
        referrers.any(|(_, acts)| acts.has(Acts::BLOCK))
    };
    // Another resource may have its name as an alias since then.
    let claims = commit.aliases.get(&name).unwrap_or_else(|| records.claims(name));
    if exists || !claims.is_empty() || !forms.all(first).any(is_blocked) {
        return BTreeSet::new();
    }
    let present = |key: &RecordKey| commit.records.get(&key.record_digest()).or_else(|| records.get(key));
    let deleted = keys.iter().filter_map(|key| Some((*key, present(key)?)));
    // What ends by itself has no end that waits for others.
    let may_stay = |record: &Present| record.is_deleted() && !record.ends();
    let (_, withheld) = index::arrange(forms.schemas, deleted.clone().filter(|(_, record)| may_stay(record)));
    let kept = deleted.filter(|(key, record)| may_stay(record) && !withheld.contains_key(*key));
    kept.map(|(key, _)| key.clone()).collect()
}
