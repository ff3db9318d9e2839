//! Merges two states of one record, wherever they come from: an entry, a snapshot, a peer that was
//! asked.
//!
//! The result depends on the two states alone. Nodes that merged the same states hold the same bytes,
//! in any order and with any repeats (SR35, SR43). For this, each part of a state has a total order,
//! and the first in it wins:
//!
//! | of | part | first | rule |
//! | --- | --- | --- | --- |
//! | the key | all of it | the higher incarnation | SR36 |
//! | the incarnation | `lifecycle` | DELETED, then the greater number | SR37 |
//! | | `created_at` | the earlier one | SR37 |
//! | | each owner | the higher epoch, then present | SR42 |
//! | | the generation | the higher one, with all parts below | SR38 |
//! | the generation | content, `digest`, `lease`, `mirror_of` | the smaller digest | SR39 |
//! | | `origin` | that of this content, then the smaller id | SR56 |
//! | | `written_by` | that of this content, then the greater epoch and counter, then the smaller bytes | SG42 |
//! | | `expires_at`, `renewal`, `renewed_by` | more renewals, the earlier end, the smaller id | SR40 |
//! | | `quarantined` | a quarantine, the earlier time, the smaller reason, the smaller digest | SR41 |
//!
//! The digest of a sealed content is keyed (ST49), so it cannot be compared with that of an open one:
//! callers open the states before. If one of two states of a generation is sealed nevertheless, the
//! open one counts with all its parts, because `is_sealed` is also that of the quarantine's content.
//!
//! Each state that a commit writes has to win over the state that it replaces, else other nodes keep
//! parts of the old one. So a commit that changes content, lease or stamp counts the generation up,
//! one that moves the end of a lease the renewals, one that adds or drops an owner its epoch, and one that
//! deletes a policy that of `written_by`.

use std::cmp::{Ordering, Reverse};

use prost::Message;
use prost_types::Timestamp;
use xds_proto::xds::store::v1 as proto;

use crate::record::{self, RecordState};

/// The state that two states of one key become. The owners of the result are in order, and each is
/// there once.
#[must_use]
pub fn merge(a: &RecordState, b: &RecordState) -> RecordState {
    debug_assert_eq!(a.key, b.key, "both states are of one key");
    let mut merged = match a.incarnation.cmp(&b.incarnation) {
        // SR36: owners and deletion are those of a creation, too.
        Ordering::Greater => a.clone(),
        Ordering::Less => b.clone(),
        Ordering::Equal => of_incarnation(a, b),
    };
    merge_owners(&mut merged.owners);
    merged
}

/// All fields are listed, so that none is added without a decision on how it merges.
fn of_incarnation(a: &RecordState, b: &RecordState) -> RecordState {
    // SR38: of different generations, the parts of a generation are those of the higher one.
    let of_generation = |order: Order| first(a, b, |a, b| by_generation(a, b).then_with(|| order(a, b)));
    let content = of_generation(by_content);
    let expiry = of_generation(by_expiry);
    RecordState {
        key: a.key.clone(),
        incarnation: a.incarnation,
        lifecycle: first(a, b, by_lifecycle).lifecycle,
        created_at: first(a, b, |a, b| by_time(a.created_at, b.created_at)).created_at,
        generation: content.generation,
        content: content.content.clone(),
        digest: content.digest.clone(),
        is_sealed: content.is_sealed,
        expires_at: expiry.expires_at,
        lease: content.lease,
        renewal: expiry.renewal,
        renewed_by: expiry.renewed_by.clone(),
        quarantined: of_generation(by_quarantine).quarantined.clone(),
        origin: of_generation(by_origin).origin.clone(),
        mirror_of: content.mirror_of.clone(),
        written_by: of_generation(by_writer).written_by.clone(),
        owners: [&a.owners[..], &b.owners].concat(),
    }
}

/// Which of two states comes first and wins.
type Order = fn(&RecordState, &RecordState) -> Ordering;

fn first<'s>(
    a: &'s RecordState,
    b: &'s RecordState,
    order: impl Fn(&RecordState, &RecordState) -> Ordering,
) -> &'s RecordState {
    if order(a, b).is_le() { a } else { b }
}

/// SR37. A number that this version does not know never ends a deletion.
fn by_lifecycle(a: &RecordState, b: &RecordState) -> Ordering {
    let lateness = |state: &RecordState| (state.lifecycle() == proto::State::Deleted, state.lifecycle);
    lateness(b).cmp(&lateness(a))
}

/// SR38. `is_sealed` belongs to all contents of a generation, so it is decided with it.
fn by_generation(a: &RecordState, b: &RecordState) -> Ordering {
    b.generation.cmp(&a.generation).then(a.is_sealed.cmp(&b.is_sealed))
}

/// SR39. Content, lease and stamp are those of one writer.
fn by_content(a: &RecordState, b: &RecordState) -> Ordering {
    a.digest.cmp(&b.digest).then_with(|| {
        if (&a.content, a.lease, &a.mirror_of) == (&b.content, b.lease, &b.mirror_of) {
            return Ordering::Equal;
        }
        // SR43: a content that was sealed twice has one digest and, with two nonces, two ciphertexts.
        let is_missing = a.content.is_none().cmp(&b.content.is_none());
        is_missing.then_with(|| record::digested(a).cmp(&record::digested(b)))
    })
}

/// SR56. The tie of SR39 is none here: the origin does not follow a nonce.
fn by_origin(a: &RecordState, b: &RecordState) -> Ordering {
    a.digest.cmp(&b.digest).then_with(|| a.origin.cmp(&b.origin))
}

/// SG42. A commit that deletes a policy makes no generation, and counts as its epoch is a later one. Counters of two
/// nodes say nothing about that.
fn by_writer(a: &RecordState, b: &RecordState) -> Ordering {
    let order = |state: &RecordState| {
        let written_by = state.written_by.as_ref();
        (Reverse(written_by.map(|by| (by.epoch, by.counter))), written_by.map(Message::encode_to_vec))
    };
    by_origin(a, b).then_with(|| order(a).cmp(&order(b)))
}

/// SR40. Also of two contents: the renewals are those of the generation.
fn by_expiry(a: &RecordState, b: &RecordState) -> Ordering {
    let renewals = b.renewal.cmp(&a.renewal);
    renewals.then(by_time(a.expires_at, b.expires_at)).then_with(|| a.renewed_by.cmp(&b.renewed_by))
}

/// SR41. Also of two contents: only a new generation ends a quarantine (SR46).
fn by_quarantine(a: &RecordState, b: &RecordState) -> Ordering {
    let (a, b) = match (&a.quarantined, &b.quarantined) {
        (Some(a), Some(b)) => (a, b),
        (a, b) => return a.is_none().cmp(&b.is_none()),
    };
    by_time(a.at, b.at).then_with(|| a.reason.cmp(&b.reason)).then_with(|| {
        if a.serve == b.serve {
            return Ordering::Equal;
        }
        // SR53: the digest is that of a state with only this content.
        let digest = |quarantined: &proto::Quarantined| {
            let content = quarantined.serve.clone();
            record::content_digest(&RecordState { content, ..RecordState::default() })
        };
        digest(a).cmp(&digest(b))
    })
}

/// The earlier one; none is the latest. Seconds and nanoseconds are compared, as times far away have no
/// number of nanoseconds.
fn by_time(a: Option<Timestamp>, b: Option<Timestamp>) -> Ordering {
    let order = |time: Option<Timestamp>| (time.is_none(), time.map(|time| (time.seconds, time.nanos)));
    order(a).cmp(&order(b))
}

/// SR42, and the order of SR53: an owner is what its encoded bytes are.
fn merge_owners(owners: &mut Vec<proto::OwnerState>) {
    owners.sort_by_cached_key(|state| {
        let owner = state.owner.as_ref().map(Message::encode_to_vec);
        (owner, Reverse((state.epoch, state.is_present)))
    });
    owners.dedup_by(|later, first| later.owner == first.owner);
}
