//! Stage 6: named owners protect their records (SG15). What becomes of owners.

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::owner::Who;

use super::effect::Judging;
use super::form::{Act, Draft};
use super::refused::{RefusalCode, Refused, Violations};
use crate::number;
use crate::record::{RecordState, named_owners};

/// Refuses changes of records that belong to others. Touches and quarantines need no ownership.
pub(super) fn check(judging: &Judging<'_>, draft: &Draft) -> Result<(), Refused> {
    let mut violations = Violations::default();
    if draft.take_over || draft.is_copy {
        return Ok(());
    }
    for (number, change) in draft.changes.iter().enumerate() {
        let key = &change.key;
        let record = judging.records.get(key).filter(|record| record.exists(judging.now));
        let Some(record) = record.filter(|record| !record.owners.is_empty()) else { continue };
        let is_owner = |name: &str| name == draft.owner;
        let is_foreign = match &change.act {
            // A put of what is there joins the owners, and changes nothing for them.
            Act::Put(put) => {
                let has_others = record.owners.iter().any(|name| !is_owner(name));
                let shares = draft.is_sharing && record.owners.iter().any(|name| is_owner(name));
                has_others
                    && !shares
                    && !judging.is_same(&judging.content_of(key, put, Some(record)), put, record)
            }
            Act::Delete { .. } => !record.owners.iter().any(|name| is_owner(name)),
            Act::Touch | Act::Quarantine(_) | Act::Check | Act::Phase(..) | Act::Ceiling(_) => false,
        };
        if is_foreign {
            let owners: Vec<_> = record.owners.iter().map(ToString::to_string).collect();
            let message = format!("{key:?} belongs to {}", owners.join(", "));
            let why = proto::violation::Why::Owned(proto::OwnedByOthers { owners });
            let at = (number, Some(key.to_proto()));
            violations.add(RefusalCode::FailedPrecondition, at, message, why);
        }
    }
    violations.into_result()
}

/// Adds the owner of a commit (SG14); with `take_over` it becomes the only named one (SG15). Whether
/// anything changed.
pub(super) fn join(state: &mut RecordState, draft: &Draft) -> bool {
    if draft.owner.is_empty() {
        return false;
    }
    let mut has_changed = false;
    if draft.take_over {
        let others: Vec<String> =
            named_owners(state).filter(|name| *name != draft.owner).map(str::to_owned).collect();
        for other in others {
            has_changed |= leave(state, &other);
        }
    }
    has_changed | set(state, Who::Name(draft.owner.clone()), true)
}

pub(super) fn leave(state: &mut RecordState, owner: &str) -> bool {
    set(state, Who::Name(owner.to_owned()), false)
}

/// Makes these records the only ones that own a record. Whether anything changed.
pub(super) fn set_resources(state: &mut RecordState, owners: &[proto::ResourceOwner]) -> bool {
    let mut has_changed = false;
    for found in &mut state.owners {
        let Some(Who::Resource(owner)) = found.owner.as_ref().and_then(|owner| owner.who.as_ref()) else {
            continue;
        };
        if found.is_present && !owners.contains(owner) {
            (found.is_present, found.epoch) = (false, number::after(found.epoch));
            has_changed = true;
        }
    }
    for owner in owners {
        has_changed |= set(state, Who::Resource(owner.clone()), true);
    }
    has_changed
}

/// Lets the owners of a record be those of its other form.
pub(super) fn follow(owners: &mut Vec<proto::OwnerState>, other: &[proto::OwnerState]) {
    for owner in owners.iter_mut() {
        let is_present = other.iter().any(|other| other.is_present && other.owner == owner.owner);
        if owner.is_present != is_present {
            (owner.is_present, owner.epoch) = (is_present, number::after(owner.epoch));
        }
    }
    for other in other.iter().filter(|other| other.is_present) {
        if !owners.iter().any(|owner| owner.owner == other.owner) {
            owners.push(other.clone());
        }
    }
    sort(owners);
}

/// Nobody owns the record any more.
pub(super) fn leave_all(state: &mut RecordState) {
    for owner in state.owners.iter_mut().filter(|owner| owner.is_present) {
        (owner.is_present, owner.epoch) = (false, number::after(owner.epoch));
    }
}

/// Whether anybody owns the record.
pub(super) fn has_any(state: &RecordState) -> bool {
    state.owners.iter().any(|owner| owner.is_present)
}

/// Whether this changed anything. The list stays in the order of the encoded owners (SR53), so that equal
/// states have equal bytes.
fn set(state: &mut RecordState, who: Who, is_present: bool) -> bool {
    let owner = Some(proto::Owner { who: Some(who) });
    match state.owners.iter_mut().find(|found| found.owner == owner) {
        Some(found) if found.is_present == is_present => false,
        Some(found) => {
            found.is_present = is_present;
            found.epoch = number::after(found.epoch);
            true
        }
        None if is_present => {
            state.owners.push(proto::OwnerState { owner, epoch: 1, is_present });
            sort(&mut state.owners);
            true
        }
        None => false,
    }
}

/// SR53.
fn sort(owners: &mut [proto::OwnerState]) {
    owners.sort_by_cached_key(|owner| owner.owner.as_ref().map(Message::encode_to_vec));
}
