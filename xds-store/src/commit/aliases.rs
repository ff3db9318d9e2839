//! A name or alias belongs to one resource of its type (D24, ST10). After a merge several may have it; then one of
//! them has it for clients (SR47).

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use super::refused::{RefusalCode, Violations};
use crate::index::{self, Claims, Pending, Records};
use crate::key::{NameDigest, RecordKey};
use crate::record::Present;

/// The records that a commit changes, by their names.
type Names<'a> = BTreeMap<NameDigest, Vec<(&'a RecordKey, &'a Present)>>;

/// Notes which resource has each alias that the commit changes. Without `may_overlap`, the commit must not give a
/// resource the name or an alias of another one. Two resources that both had it before may change.
pub(super) fn check(
    records: Records<'_>,
    (names, may_overlap): (&Names<'_>, bool),
    pending: &mut Pending,
    violations: &mut Violations,
    number: &impl Fn(&RecordKey) -> usize,
) {
    let after = claims_after(records, names);
    let changed = |key: &RecordKey| {
        let of_name = names.get(&key.name_digest())?;
        of_name.iter().find(|(changed, _)| *changed == key).map(|(_, record)| *record)
    };
    for (alias, claims) in &after {
        let is_named_so = exists(records, (names, pending), *alias);
        let records_after =
            claims.iter().filter_map(|key| Some((key, changed(key).or_else(|| records.get(key))?)));
        let holder = index::holder(*alias, is_named_so, records_after);
        let losers: BTreeSet<_> = claims.iter().filter(|key| Some(key.name_digest()) != holder).collect();
        for key in records.claims(*alias).union(claims) {
            note(records, pending, key, (*alias, losers.contains(key)));
        }
        if may_overlap || losers.is_empty() {
            continue;
        }
        let had = |name: NameDigest| match name == *alias {
            true => records.exists(name),
            false => records.claims(*alias).iter().any(|key| key.name_digest() == name),
        };
        let own = is_named_so.then_some(*alias);
        let all: BTreeSet<_> = claims.iter().map(RecordKey::name_digest).chain(own).collect();
        for name in all.into_iter().filter(|name| !had(*name)) {
            if let Some((key, _)) = names.get(&name).and_then(|changes| changes.first()) {
                taken(violations, key, number(key));
            }
        }
    }
    pending.aliases = after;
}

/// Of each alias that changes, or whose records do: the records that have it after the commit. So two resources can
/// exchange their names in one commit.
fn claims_after(records: Records<'_>, names: &Names<'_>) -> BTreeMap<NameDigest, Claims> {
    let mut after: BTreeMap<NameDigest, Claims> = BTreeMap::new();
    for (name, changes) in names {
        if !records.claims(*name).is_empty() {
            after.entry(*name).or_insert_with(|| records.claims(*name).clone());
        }
        for (key, record) in changes {
            let mut of = |alias: &NameDigest, has_it: bool| {
                let claims = after.entry(*alias).or_insert_with(|| records.claims(*alias).clone());
                if has_it {
                    claims.insert((*key).clone())
                } else {
                    claims.remove(*key)
                };
            };
            aliases(records.get(key)).iter().for_each(|alias| of(alias, false));
            aliases(Some(record)).iter().for_each(|alias| of(alias, true));
        }
    }
    after
}

/// Whether there is a resource of this name after the commit.
fn exists(records: Records<'_>, (names, pending): (&Names<'_>, &Pending), name: NameDigest) -> bool {
    match (pending.variants.get(&name), names.get(&name)) {
        (Some(variants), _) => !variants.is_empty(),
        (None, Some(changes)) if records.constrained(name).is_none() => {
            changes.iter().any(|(_, record)| !record.is_deleted())
        }
        (None, _) => records.exists(name),
    }
}

/// Notes whether clients get an alias of a record.
fn note(records: Records<'_>, pending: &mut Pending, key: &RecordKey, (alias, is_lost): (NameDigest, bool)) {
    if !is_lost && records.lost_aliases(key).is_none() && !pending.lost_aliases.contains_key(key) {
        return;
    }
    let before = || records.lost_aliases(key).cloned().unwrap_or_default();
    let lost = pending.lost_aliases.entry(key.clone()).or_insert_with(before);
    if is_lost {
        lost.insert(alias)
    } else {
        lost.remove(&alias)
    };
}

fn taken(violations: &mut Violations, key: &RecordKey, number: usize) {
    let message = format!("another resource has the name or an alias of {key:?}");
    let kind = "alias_taken".to_owned();
    let why = proto::AmbiguousVariants { other: None, witness: BTreeMap::new(), kind };
    let why = proto::violation::Why::Ambiguous(why);
    violations.add(RefusalCode::FailedPrecondition, (number, Some(key.to_proto())), message, why);
}

fn aliases(record: Option<&Present>) -> &[NameDigest] {
    record.filter(|record| !record.is_deleted()).map_or(&[], |record| &record.aliases)
}
