//! Stage 7: no client may match two variants, and no two resources may have one name (ST10).

use std::collections::BTreeMap;

use xds_core::Constraints;
use xds_core::matching::SetError;
use xds_proto::xds::store::v1 as proto;

use super::aliases;
use super::refused::{RefusalCode, Refused, Violations};
use crate::index::{self, Pending, Records};
use crate::key::{NameDigest, RecordKey};
use crate::phase::Schemas;
use crate::record::Present;

/// What the commit makes of these records; `number` is the change that a key belongs to. With `may_overlap`
/// variants of a name may overlap, and resources may have the same aliases, as after a merge. Some of them are not
/// served (SR47).
///
/// A change of a variant that stays costs the same however many variants the name has, and there is
/// no limit of their number. A new or removed one is compared with those that share values with it;
/// in a name of many variants it costs about a millisecond, because a part of up to 1,024 of them is
/// built again ([`VariantSet::edit`](xds_core::VariantSet::edit)).
pub(crate) fn check(
    records: Records<'_>,
    changed: BTreeMap<RecordKey, Present>,
    number: impl Fn(&RecordKey) -> usize,
    may_overlap: bool,
) -> Result<Pending, Refused> {
    let mut violations = Violations::default();
    let mut pending = Pending::default();
    let schemas = records.index.schemas();
    let mut names: BTreeMap<NameDigest, Vec<(&RecordKey, &Present)>> = BTreeMap::new();
    for (key, record) in &changed {
        names.entry(key.name_digest()).or_default().push((key, record));
    }
    for (name, changes) in &names {
        let (mut removed, mut inserted) = (Vec::new(), Vec::new());
        for (key, record) in changes {
            // The constraints of a put that replaces its own variant stay, and cost nothing.
            match (is_live(records.get(key)), !record.is_deleted()) {
                (true, false) => removed.push(schemas.selecting(key)),
                (false, true) => inserted.push(schemas.selecting(key)),
                (true, true) | (false, false) => {}
            }
        }
        if records.withheld(*name).is_some() {
            let after = after(records, changes);
            let error = if may_overlap { None } else { added_overlap(schemas, &inserted, &after) };
            match error {
                None => arrange(*name, schemas, after, &mut pending),
                Some(error) => add(&mut violations, (changes[0].0, schemas), error, &number),
            }
            continue;
        }
        // Without constraints there is one record of the name, which nothing can overlap with.
        let is_plain =
            records.constrained(*name).is_none() && inserted.iter().all(Constraints::is_unconstrained);
        if is_plain || (removed.is_empty() && inserted.is_empty()) {
            continue;
        }
        match index::edited(&records.variants(*name), &removed, &inserted) {
            Ok(variants) => _ = pending.variants.insert(*name, variants),
            Err(_) if may_overlap => arrange(*name, schemas, after(records, changes), &mut pending),
            Err(error) => add(&mut violations, (changes[0].0, schemas), error, &number),
        }
    }
    aliases::check(records, (&names, may_overlap), &mut pending, &mut violations, &number);
    violations.into_result()?;
    pending.records = changed.into_iter().map(|(key, record)| (key.record_digest(), record)).collect();
    Ok(pending)
}

/// The variants of a name that exist after the commit.
fn after<'a>(
    records: Records<'a>,
    changes: &[(&'a RecordKey, &'a Present)],
) -> BTreeMap<RecordKey, &'a Present> {
    let Some((of_name, _)) = changes.first() else { return BTreeMap::new() };
    let before = records.keys(of_name).into_iter();
    let mut after: BTreeMap<_, _> =
        before.filter_map(|key| records.get(&key).map(|record| (key, record))).collect();
    after.extend(changes.iter().map(|(key, record)| ((*key).clone(), *record)));
    after.retain(|_, record| !record.is_deleted());
    after
}

/// SR47: some variants of a name overlap, and others may. Which of them are served follows from all of them.
fn arrange(name: NameDigest, schemas: &Schemas, after: BTreeMap<RecordKey, &Present>, pending: &mut Pending) {
    let (served, withheld) = index::arrange(schemas, after.iter().map(|(key, record)| (key, *record)));
    pending.variants.insert(name, served);
    pending.withheld.insert(name, withheld);
}

/// Whether a new variant overlaps with one that exists, be it served or not. Those that overlap already do not
/// keep a commit from changing or deleting one of them.
fn added_overlap(
    schemas: &Schemas,
    inserted: &[Constraints],
    after: &BTreeMap<RecordKey, &Present>,
) -> Option<SetError<Constraints>> {
    let all: Vec<_> = after.keys().map(|key| schemas.selecting(key)).collect();
    let pairs = inserted.iter().flat_map(|new| all.iter().map(move |other| (other, new)));
    let mut pairs = pairs.filter(|(other, new)| other != new);
    pairs.find_map(|(other, new)| {
        index::edited(&index::Variants::new(), &[], &[other.clone(), new.clone()]).err()
    })
}

fn is_live(record: Option<&Present>) -> bool {
    record.is_some_and(|record| !record.is_deleted())
}

/// G16: the violation names both variants and parameters that both match.
fn add(
    violations: &mut Violations,
    (name, schemas): (&RecordKey, &Schemas),
    error: SetError<Constraints>,
    number: &impl Fn(&RecordKey) -> usize,
) {
    let key = |constraints| index::key_of(schemas, name, constraints);
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
        (_, Some(other)) => format!(
            "{one:?} and {other:?} must name the same keys; where KEY is missing, add `,(KEY || !KEY)` to the `when:`, \
             for all variants in one commit"
        ),
        (_, None) => format!("the constraints of {one:?} are too complex to check: simplify them"),
    };
    let other = other.map(|other| other.to_proto());
    let why = proto::AmbiguousVariants { other, witness, kind: kind.to_owned() };
    let why = proto::violation::Why::Ambiguous(why);
    violations.add(RefusalCode::FailedPrecondition, (number(&one), Some(one.to_proto())), message, why);
}
