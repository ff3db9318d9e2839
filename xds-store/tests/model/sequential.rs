//! A store that makes one commit after another: a map of records and a number.

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::store::Committed;

use crate::driven::{SECOND, change, content, only_if};

pub(crate) type RecordName = (&'static str, &'static str);

/// A record of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Record {
    pub(crate) payload: &'static str,
    pub(crate) incarnation: u64,
    pub(crate) generation: u64,
    /// As the store printed it.
    pub(crate) revision: String,
    pub(crate) is_deleted: bool,
    pub(crate) is_quarantined: bool,
    pub(crate) owners: BTreeSet<&'static str>,
    pub(crate) lease_ends: Option<i64>,
    /// When the lease ends by its state in the engine: after a restart that is earlier (ST40).
    pub(crate) stored_end: Option<i64>,
    /// The end of a record without a lease.
    pub(crate) expires_at: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) records: BTreeMap<RecordName, Record>,
    pub(crate) revision: u64,
    /// New records start above this incarnation.
    pub(crate) incarnation_floor: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) changes: Vec<(RecordName, Condition, Act)>,
    pub(crate) owner: &'static str,
    pub(crate) prune: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Condition {
    None,
    Absent,
    Exists,
    Revision(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act {
    Put(&'static str),
    PutLease(&'static str),
    /// With a time of expiry.
    PutUntil(&'static str, i64),
    Delete,
    Touch,
    Quarantine,
    Check,
}

/// The outcome of each change, then those of pruned records.
pub(crate) type Answer = Result<(Vec<proto::Outcome>, BTreeMap<RecordName, proto::Outcome>), RefusalCode>;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
/// The last two match different clients; the first one overlaps with both.
pub(crate) const WHENS: [&str; 3] = ["", "env=prod", "env!=prod"];
pub(crate) const PAYLOADS: [&str; 3] = ["1", "2", "3"];
pub(crate) const OWNERS: [&str; 3] = ["", "x", "y"];
pub(crate) const LEASE_SECONDS: i64 = 30;

pub(crate) struct Random(pub(crate) u64);

/// What the requests of a history have besides plain puts and deletes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kinds {
    /// Leases and touches; without them there are more deletes and quarantines.
    pub(crate) leases: bool,
    /// Quarantines beside leases.
    pub(crate) quarantines: bool,
    /// Records that expire.
    pub(crate) expiries: bool,
}

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(crate) fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    pub(crate) fn request(&mut self, model: &Model, kinds: Kinds, now: i64) -> Request {
        let mut changes: BTreeMap<RecordName, (Condition, Act)> = BTreeMap::new();
        for _ in 0..1 + self.below(3) {
            let name = (self.of(&NAMES), self.of(&WHENS));
            let record = model.records.get(&name);
            let condition = match self.below(8) {
                0 => Condition::Absent,
                1 => Condition::Exists,
                2 | 3 => Condition::Revision(
                    record
                        .map(|record| record.revision.clone())
                        .filter(|revision| !revision.is_empty())
                        .unwrap_or_else(|| "0".repeat(32)),
                ),
                _ => Condition::None,
            };
            let act = match self.below(12) {
                0..=4 => Act::Put(self.of(&PAYLOADS)),
                5 | 6 if kinds.leases => Act::PutLease(self.of(&PAYLOADS)),
                5..=7 => Act::Delete,
                8 if kinds.quarantines => Act::Quarantine,
                8 | 9 if kinds.leases => Act::Touch,
                8 | 9 => Act::Quarantine,
                10 => Act::Check,
                _ if kinds.expiries => Act::PutUntil(self.of(&PAYLOADS), now + LEASE_SECONDS * SECOND),
                _ => Act::Put(PAYLOADS[0]),
            };
            changes.insert(name, (condition, act));
        }
        let owner = self.of(&OWNERS);
        let prune = !owner.is_empty() && self.one_in(4);
        let changes = changes.into_iter().map(|(name, (condition, act))| (name, condition, act)).collect();
        Request { changes, owner, prune }
    }
}

impl Request {
    pub(crate) fn to_proto(&self) -> proto::CommitRequest {
        let changes = self.changes.iter().map(|((name, when), condition, act)| {
            let content = |payload: &str| Some(content(payload));
            let lease = Some(prost_types::Duration { seconds: LEASE_SECONDS, nanos: 0 });
            let put = |payload: &str| proto::Put { content: content(payload), ..Default::default() };
            let act = match act {
                Act::Put(payload) => proto::change::Act::Put(put(payload)),
                Act::PutLease(payload) => proto::change::Act::Put(proto::Put { lease, ..put(payload) }),
                Act::PutUntil(payload, end) => {
                    let expires_at = Some(prost_types::Timestamp { seconds: end / SECOND, nanos: 0 });
                    proto::change::Act::Put(proto::Put { expires_at, ..put(payload) })
                }
                Act::Delete => proto::change::Act::Delete(proto::Delete::default()),
                Act::Touch => proto::change::Act::Touch(proto::Touch {}),
                Act::Quarantine => proto::change::Act::Quarantine(proto::Quarantine::default()),
                Act::Check => proto::change::Act::Check(proto::Check {}),
            };
            let change = change(name, when, act);
            match condition {
                Condition::None => change,
                Condition::Absent => only_if(proto::condition::Is::Absent(true), change),
                Condition::Exists => only_if(proto::condition::Is::Exists(true), change),
                Condition::Revision(text) => only_if(proto::condition::Is::Revision(text.clone()), change),
            }
        });
        let (owner, prune) = (self.owner.to_owned(), self.prune);
        proto::CommitRequest { changes: changes.collect(), owner, prune, ..Default::default() }
    }
}

impl Model {
    pub(crate) fn live(&self, name: RecordName) -> Option<&Record> {
        self.records.get(&name).filter(|record| !record.is_deleted)
    }

    /// What the store has to answer; the model is changed if it accepts the commit.
    pub(crate) fn commit(&mut self, request: &Request, now: i64) -> Answer {
        for (name, condition, act) in &request.changes {
            let live = self.live(*name);
            let is_touch = *act == Act::Touch;
            let refusal = match (condition, live) {
                (_, None) if is_touch => Some(RefusalCode::NotFound),
                (_, Some(record)) if is_touch && record.lease_ends.is_none() => {
                    Some(RefusalCode::FailedPrecondition)
                }
                (Condition::Absent, Some(_)) => Some(RefusalCode::AlreadyExists),
                (Condition::Exists, None) => Some(RefusalCode::NotFound),
                (Condition::Revision(text), live) if live.is_none_or(|record| record.revision != *text) => {
                    Some(RefusalCode::Aborted)
                }
                _ => None,
            };
            if let Some(code) = refusal {
                return Err(code);
            }
        }
        // SG15.
        let is_foreign = request.changes.iter().any(|(name, _, act)| {
            let Some(record) = self.live(*name) else { return false };
            let is_put = |payload, has_lease, end| {
                let has_others = record.owners.iter().any(|owner| *owner != request.owner);
                has_others && (record.is_quarantined || !record.is_same(payload, has_lease, end))
            };
            match *act {
                Act::Put(payload) => is_put(payload, false, None),
                Act::PutLease(payload) => is_put(payload, true, None),
                Act::PutUntil(payload, end) => is_put(payload, false, Some(end)),
                Act::Delete => !record.owners.is_empty() && !record.owners.contains(request.owner),
                Act::Touch | Act::Quarantine | Act::Check => false,
            }
        });
        if is_foreign {
            return Err(RefusalCode::FailedPrecondition);
        }
        let mut after = self.clone();
        let mut changed = false;
        let outcomes = request.changes.iter().map(|(name, _, act)| {
            let (outcome, has_changed) = after.apply(*name, *act, request.owner, now);
            changed |= has_changed;
            outcome
        });
        let outcomes = outcomes.collect();
        let mut effects = BTreeMap::new();
        if request.prune {
            let named =
                |name| request.changes.iter().any(|(other, _, act)| *other == name && *act != Act::Check);
            let owned = self.records.iter().filter(|(name, record)| {
                !record.is_deleted && record.owners.contains(request.owner) && !named(**name)
            });
            for name in owned.map(|(name, _)| *name).collect::<Vec<_>>() {
                let (outcome, _) = after.apply(name, Act::Delete, request.owner, now);
                effects.insert(name, outcome);
                changed = true;
            }
        }
        let is_ambiguous = NAMES.iter().any(|name| {
            let live = |when| after.live((name, when)).is_some();
            live(WHENS[0]) && (live(WHENS[1]) || live(WHENS[2]))
        });
        if is_ambiguous {
            return Err(RefusalCode::FailedPrecondition);
        }
        after.revision += u64::from(changed || self.revision == 0);
        *self = after;
        Ok((outcomes, effects))
    }

    pub(crate) fn apply(
        &mut self,
        name: RecordName,
        act: Act,
        owner: &'static str,
        now: i64,
    ) -> (proto::Outcome, bool) {
        if act == Act::Check {
            return (proto::Outcome::Checked, false);
        }
        let known = self.records.contains_key(&name);
        let new = Record { incarnation: self.incarnation_floor, ..Record::default() };
        let record = self.records.entry(name).or_insert(new);
        let is_live = known && !record.is_deleted;
        let outcome = match act {
            Act::Put(payload) | Act::PutLease(payload) | Act::PutUntil(payload, _) => {
                let has_lease = matches!(act, Act::PutLease(_));
                let lease_ends = has_lease.then_some(now + LEASE_SECONDS * SECOND);
                let end = if let Act::PutUntil(_, end) = act { Some(end) } else { None };
                let is_same = record.is_same(payload, has_lease, end);
                let joins = !owner.is_empty() && !record.owners.contains(owner);
                if is_live && is_same && !record.is_quarantined {
                    if !joins {
                        if has_lease {
                            record.renew(now);
                        }
                        return (proto::Outcome::Unchanged, false);
                    }
                    record.owners.insert(owner);
                    record.set_lease(lease_ends);
                    return (proto::Outcome::Updated, true);
                }
                if !is_live {
                    *record = Record { incarnation: record.incarnation + 1, ..Record::default() };
                }
                record.payload = payload;
                record.generation += 1;
                record.is_quarantined = false;
                record.set_lease(lease_ends);
                record.expires_at = end;
                record.owners.extend((!owner.is_empty()).then_some(owner));
                if is_live { proto::Outcome::Updated } else { proto::Outcome::Created }
            }
            Act::Delete | Act::Quarantine | Act::Touch if !is_live => {
                if !known {
                    self.records.remove(&name);
                }
                return (proto::Outcome::Absent, false);
            }
            Act::Delete => {
                let was_owner = record.owners.remove(owner);
                if owner.is_empty() || record.owners.is_empty() {
                    record.is_deleted = true;
                    return (proto::Outcome::Deleted, true);
                }
                if was_owner {
                    record.set_lease(record.lease_ends);
                }
                return (proto::Outcome::Released, was_owner);
            }
            Act::Quarantine => {
                if record.is_quarantined {
                    return (proto::Outcome::Unchanged, false);
                }
                record.is_quarantined = true;
                record.set_lease(record.lease_ends);
                proto::Outcome::Quarantined
            }
            Act::Touch | Act::Check => {
                record.renew(now);
                return (proto::Outcome::Touched, false);
            }
        };
        (outcome, true)
    }

    /// The records that end until then: those that expire, or those whose leases end.
    pub(crate) fn ended(&mut self, now: i64, by_lease: bool) -> BTreeSet<RecordName> {
        let mut ended = BTreeSet::new();
        for (name, record) in &mut self.records {
            let end = if by_lease { record.lease_ends } else { record.expires_at };
            if !record.is_deleted && end.is_some_and(|end| end <= now) {
                record.is_deleted = true;
                ended.insert(*name);
            }
        }
        ended
    }

    /// The records that were changed since `before` have revisions that are not known yet.
    pub(crate) fn forget_revisions(&mut self, before: &Self) {
        for (name, record) in &mut self.records {
            let then = before.records.get(name).cloned().unwrap_or_default();
            // A renewal changes no revision.
            let (lease_ends, stored_end) = (record.lease_ends, record.stored_end);
            if *record != (Record { lease_ends, stored_end, ..then }) {
                record.revision.clear();
            }
        }
    }

    /// Notes the revisions of records that a commit answered.
    pub(crate) fn learn(&mut self, request: &Request, committed: &Committed) {
        let changed = request.changes.iter().map(|(name, ..)| *name);
        let results = committed.results.iter().map(|result| &result.record);
        let pruned = committed.effects.iter();
        let pruned = pruned.map(|effect| (name_of(&effect.key.to_proto()), &effect.result.record));
        for (name, record) in changed.zip(results).chain(pruned) {
            let known = self.records.get_mut(&name);
            if let (Some((revision, _)), Some(known)) = (record, known) {
                known.revision = revision.to_string();
            }
        }
    }
}

/// The answer as the model gives it.
pub(crate) fn answer_of(committed: &Committed) -> Answer {
    let outcomes = committed.results.iter().map(|result| result.outcome).collect();
    let effects = committed.effects.iter();
    let effects = effects.map(|effect| (name_of(&effect.key.to_proto()), effect.result.outcome));
    Ok((outcomes, effects.collect()))
}

impl Record {
    fn is_same(&self, payload: &str, has_lease: bool, end: Option<i64>) -> bool {
        self.payload == payload && self.lease_ends.is_some() == has_lease && self.expires_at == end
    }

    /// ST37.
    pub(crate) fn renew(&mut self, now: i64) {
        let Some(end) = self.stored_end else { return };
        if now - (end - LEASE_SECONDS * SECOND) >= LEASE_SECONDS * SECOND / 3 {
            self.set_lease(Some(now + LEASE_SECONDS * SECOND));
        }
    }

    pub(crate) fn set_lease(&mut self, end: Option<i64>) {
        (self.lease_ends, self.stored_end) = (end, end);
    }
}

pub(crate) fn name_of(key: &proto::Key) -> RecordName {
    let of = |all: &[&'static str], text: &str| *all.iter().find(|one| **one == text).unwrap();
    (of(&NAMES, &key.name), of(&WHENS, &key.when))
}
