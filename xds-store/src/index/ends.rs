//! When records end (ST36, ST39).

use std::collections::BTreeSet;

use crate::key::RecordKey;
use crate::record::Present;

/// When records end, with their keys: the first one first.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Those that end by their date.
    dates: BTreeSet<(i64, RecordKey)>,
    /// Those whose leases this node ends.
    leases: BTreeSet<(i64, RecordKey)>,
}

impl Ends {
    /// Adds a record, if it has an end.
    pub(crate) fn add(&mut self, key: &RecordKey, record: &Present) {
        if let Some(end) = record.expires_at {
            self.of(record.lease.is_some()).insert((end, key.clone()));
        }
    }

    /// Removes a record, whose end did not change since it was added.
    pub(crate) fn remove(&mut self, key: &RecordKey, record: &Present) {
        if let Some(end) = record.expires_at {
            self.of(record.lease.is_some()).remove(&(end, key.clone()));
        }
    }

    /// When the next record ends by its date.
    pub(crate) fn next_date(&self) -> Option<i64> {
        self.dates.first().map(|(end, _)| *end)
    }

    /// When the next lease ends.
    pub(crate) fn next_lease(&self) -> Option<i64> {
        self.leases.first().map(|(end, _)| *end)
    }

    /// The records whose leases this node ends.
    pub(crate) fn leased(&self) -> impl Iterator<Item = &RecordKey> {
        self.leases.iter().map(|(_, key)| key)
    }

    /// The records that have ended by their date, or with their lease.
    pub(crate) fn ended(&self, now: i64, with_lease: bool) -> impl Iterator<Item = &RecordKey> {
        let ends = if with_lease { &self.leases } else { &self.dates };
        ends.iter().take_while(move |(end, _)| *end <= now).map(|(_, key)| key)
    }

    fn of(&mut self, with_lease: bool) -> &mut BTreeSet<(i64, RecordKey)> {
        if with_lease { &mut self.leases } else { &mut self.dates }
    }
}
