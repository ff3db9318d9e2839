//! The records that others own, and when to find out whether their owners still do (SG17, SG18).

use std::collections::{BTreeMap, BTreeSet};

use super::Index;
use crate::key::RecordKey;
use crate::record::Present;
use crate::refs;

/// Which records own which, and what has to be checked.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Owners, each with a record that it owns.
    owned: BTreeSet<(RecordKey, RecordKey)>,
    /// Records one of whose owners ended, or may have ended before this server started.
    ended: BTreeSet<RecordKey>,
    /// Records whose owners must all exist from this time on.
    late: BTreeSet<(i64, RecordKey)>,
    /// Those of them that are checked again and again, as other regions have their owners.
    again: BTreeMap<RecordKey, i64>,
}

impl Ownership {
    /// A record changed. Its owners, and what it owns, are checked at once if an owner ended, and
    /// otherwise at this time.
    pub(super) fn note(&mut self, key: &RecordKey, before: Option<&Present>, after: &Present, check_at: i64) {
        let of = |record: Option<&Present>| {
            let owners = record.filter(|record| !record.is_deleted()).map(|record| &record.owned_by);
            owners.map_or(&[][..], |owners| &owners[..]).to_vec()
        };
        let (owners_before, owners_after) = (of(before), of(Some(after)));
        for owner in owners_before.iter().filter(|owner| !owners_after.contains(owner)) {
            self.owned.remove(&(owner.clone(), key.clone()));
        }
        for owner in &owners_after {
            self.owned.insert((owner.clone(), key.clone()));
        }
        let is_same = before.is_some_and(|before| before.incarnation == after.incarnation);
        // Each content may have other owners, also ones of the same keys.
        if !owners_after.is_empty() {
            self.late.insert((check_at, key.clone()));
        }
        if after.is_deleted() || !is_same {
            self.ended.extend(self.of_owner(key).cloned().collect::<Vec<_>>());
        } else if let Some(before) = before
            && before.references != after.references
        {
            // The ownership may end with the reference.
            let is_in = |references, owned: &RecordKey| refs::find(references, owned.name_digest()).is_some();
            let owned = self.of_owner(key);
            let lost =
                owned.filter(|owned| is_in(&before.references, owned) && !is_in(&after.references, owned));
            let lost: Vec<_> = lost.map(|owned| (check_at, owned.clone())).collect();
            self.late.extend(lost);
        }
    }

    /// All owners are checked.
    pub(super) fn note_start(&mut self) {
        self.ended.extend(self.owned.iter().map(|(_, owned)| owned.clone()));
    }

    fn of_owner(&self, owner: &RecordKey) -> impl Iterator<Item = &RecordKey> {
        let from = (owner.clone(), RecordKey::before_all());
        self.owned.range(from..).take_while(move |(of, _)| of == owner).map(|(_, owned)| owned)
    }
}

impl Index {
    /// When owners have to be checked; `None` if that is done.
    pub(crate) fn next_owner_check(&self) -> Option<i64> {
        let at_once = (!self.ownership.ended.is_empty()).then_some(i64::MIN);
        at_once.or_else(|| self.ownership.late.first().map(|(at, _)| *at))
    }

    /// Records whose owners have to be checked, at most `limit`, in order, and whether all of the owners must
    /// exist by now.
    pub(crate) fn owner_checks(&self, now: i64, limit: usize) -> (Vec<RecordKey>, bool) {
        let Ownership { ended, late, .. } = &self.ownership;
        if !ended.is_empty() {
            return (ended.iter().take(limit).cloned().collect(), false);
        }
        let due = late.iter().take_while(|(at, _)| *at <= now);
        let keys: BTreeSet<_> = due.take(limit).map(|(_, key)| key.clone()).collect();
        (keys.into_iter().collect(), true)
    }

    /// The records that a record owns.
    pub(crate) fn owned_by(&self, owner: &RecordKey) -> impl Iterator<Item = &RecordKey> {
        self.ownership.of_owner(owner)
    }

    /// A record may have ended as an owner.
    pub(crate) fn note_owner_ended(&mut self, owner: &RecordKey) {
        let owned: Vec<_> = self.owned_by(owner).cloned().collect();
        self.ownership.ended.extend(owned);
    }

    /// The owners of a record must exist at this time.
    pub(crate) fn check_owners(&mut self, owned: RecordKey, at: i64) {
        let Ownership { late, again, .. } = &mut self.ownership;
        if let Some(before) = again.insert(owned.clone(), at) {
            late.remove(&(before, owned.clone()));
        }
        late.insert((at, owned));
    }

    /// Other regions may own the records, or their owners, than before.
    pub(crate) fn check_all_owners(&mut self, at: i64) {
        let Ownership { owned, late, .. } = &mut self.ownership;
        late.extend(owned.iter().map(|(_, owned)| (at, owned.clone())));
    }

    /// The owners of these records exist.
    pub(crate) fn note_owners_checked(&mut self, keys: &[RecordKey], is_late: bool, now: i64) {
        let Ownership { ended, late, again, .. } = &mut self.ownership;
        if is_late {
            // They are the first ones.
            while let Some((at, key)) = late.first()
                && *at <= now
                && keys.binary_search(key).is_ok()
            {
                if again.get(key) == Some(at) {
                    again.remove(key);
                }
                late.pop_first();
            }
        } else {
            keys.iter().for_each(|key| _ = ended.remove(key));
        }
    }
}
