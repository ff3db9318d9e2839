//! Stage 7: no client may match two variants, and no two resources may have one name (ST10).

use std::collections::{BTreeMap, BTreeSet};

use xds_core::matching::SetError;
use xds_core::{Constraints, VariantId};
use xds_proto::xds::store::v1 as proto;

use super::refused::{RefusalCode, Refused, Violations};
use crate::index::{NameRecords, Pending, Records};
use crate::key::{NameDigest, RecordKey};
use crate::record::Present;

/// What the commit makes of these records; `number` is the change that a key belongs to.
pub(crate) fn check<'a>(
    records: Records<'_>,
    changed: &'a BTreeMap<RecordKey, Present>,
    number: impl Fn(&RecordKey) -> usize,
) -> Result<Pending, Refused> {
    let mut violations = Violations::default();
    let mut pending = Pending::default();
    let mut names: BTreeMap<NameDigest, Vec<(&'a RecordKey, &'a Present)>> = BTreeMap::new();
    for (key, record) in changed {
        names.entry(key.name_digest()).or_default().push((key, record));
    }
    let mut edited = BTreeMap::new();
    for (name, changes) in &names {
        let mut after = records.name(*name).cloned().unwrap_or_default();
        let (mut removed, mut inserted) = (Vec::new(), Vec::new());
        for (key, record) in changes {
            let was_there = after.get(key.when()).is_some_and(|record| !record.is_deleted());
            // The constraints of a put that replaces its own variant stay, and cost nothing.
            match (was_there, record.is_deleted()) {
                (true, true) => removed.push(key.id().constraints),
                (false, false) => inserted.push(key.id().constraints),
                (true, false) | (false, true) => {}
            }
            after.set((*record).clone());
        }
        if let Err(error) = edit(&mut after, &removed, &inserted) {
            add(&mut violations, changes[0].0, error, &number);
        }
        edited.insert(*name, after);
    }
    check_aliases(records, &names, &edited, &mut pending, &mut violations, &number);
    violations.into_result()?;
    for (name, after) in edited {
        pending.set_name(name, after);
    }
    Ok(pending)
}

fn edit(
    after: &mut NameRecords,
    removed: &[Constraints],
    inserted: &[Constraints],
) -> Result<(), SetError<Constraints>> {
    if removed.is_empty() && inserted.is_empty() { Ok(()) } else { after.edit(removed, inserted) }
}

/// G16: the violation names both variants and parameters that both match.
fn add(
    violations: &mut Violations,
    name: &RecordKey,
    error: SetError<Constraints>,
    number: &impl Fn(&RecordKey) -> usize,
) {
    let key = |constraints: Constraints| {
        RecordKey::of(&VariantId { type_url: name.type_url(), name: name.name(), constraints })
    };
    let (one, other, witness, kind) = match error {
        SetError::Overlap { first, second, witness } => {
            let witness = witness.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            (key(second), Some(key(first)), witness, "overlap")
        }
        SetError::KeySets { first, second, .. } => {
            (key(second), Some(key(first)), BTreeMap::new(), "key_sets")
        }
        SetError::Unsatisfiable { variant } => (key(variant), None, BTreeMap::new(), "unsatisfiable"),
        SetError::TooComplex { variant, .. } => (key(variant), None, BTreeMap::new(), "too_complex"),
        _ => (name.clone(), None, BTreeMap::new(), ""),
    };
    let message = match (kind, &other) {
        ("overlap", Some(other)) => {
            let shown: Vec<_> = witness.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let shown = if shown.is_empty() { "all clients".to_owned() } else { shown.join(",") };
            format!("{one:?} and {other:?} both match {shown}")
        }
        (_, Some(other)) => format!("{one:?} and {other:?} must name the same keys"),
        (_, None) => format!("the constraints of {one:?} are too complex to check: simplify them"),
    };
    let other = other.map(|other| other.to_proto());
    let why = proto::AmbiguousVariants { other, witness, kind: kind.to_owned() };
    let why = proto::violation::Why::Ambiguous(why);
    violations.add(RefusalCode::FailedPrecondition, (number(&one), Some(one.to_proto())), message, why);
}

/// D24: a name or alias belongs to one resource of its type.
fn check_aliases(
    records: Records<'_>,
    names: &BTreeMap<NameDigest, Vec<(&RecordKey, &Present)>>,
    edited: &BTreeMap<NameDigest, NameRecords>,
    pending: &mut Pending,
    violations: &mut Violations,
    number: &impl Fn(&RecordKey) -> usize,
) {
    let aliases = |records: Option<&NameRecords>| -> BTreeSet<NameDigest> {
        let live = records.into_iter().flat_map(NameRecords::iter).filter(|record| !record.is_deleted());
        live.flat_map(|record| record.aliases.iter().copied()).collect()
    };
    // First what is given up, so that two resources can exchange their names in one commit.
    let mut owner_after: BTreeMap<NameDigest, Option<NameDigest>> = BTreeMap::new();
    for (name, after) in edited {
        for alias in aliases(records.name(*name)).difference(&aliases(Some(after))) {
            owner_after.insert(*alias, None);
        }
    }
    for (name, after) in edited {
        let key = names[name][0].0;
        let taken = |violations: &mut Violations| {
            let message = format!("another resource has the name or an alias of {key:?}");
            let kind = "alias_taken".to_owned();
            let why = proto::AmbiguousVariants { other: None, witness: BTreeMap::new(), kind };
            let why = proto::violation::Why::Ambiguous(why);
            let at = (number(key), Some(key.to_proto()));
            violations.add(RefusalCode::FailedPrecondition, at, message, why);
        };
        let owner = |alias: &NameDigest, owner_after: &BTreeMap<NameDigest, Option<NameDigest>>| {
            owner_after.get(alias).copied().unwrap_or_else(|| records.alias(*alias))
        };
        for alias in aliases(Some(after)) {
            let exists = edited.get(&alias).or_else(|| records.name(alias)).is_some_and(NameRecords::exists);
            let is_other = |other: NameDigest| other != *name;
            if (exists && is_other(alias)) || owner(&alias, &owner_after).is_some_and(is_other) {
                taken(violations);
            } else {
                owner_after.insert(alias, Some(*name));
            }
        }
        if after.exists() && owner(name, &owner_after).is_some_and(|other| other != *name) {
            taken(violations);
        }
    }
    for (alias, name) in owner_after {
        pending.set_alias(alias, name);
    }
}
