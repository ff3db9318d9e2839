//! Looks for damage in a store or a backup, and changes nothing (ST48).
//!
//! A start verifies only what it reads. This verifies everything that a store says twice: checksums,
//! the log beside the versions of records, digests beside contents, keys beside the keys in records,
//! and, in a store that never replicated, that no two variants of a name match the same parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::ops::ControlFlow;

use bytes::Bytes;
use xds_core::matching::SetError;
use xds_core::{Constraints, VariantSet};

use crate::backup::{BackupReader, ReadError};
use crate::blocks;
use crate::checked;
use crate::engine::View;
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry, StoredFetching, StoredNode, StoredOrigin};
use crate::number;
use crate::record::{self, Local, RecordState};
use crate::store::{LoadError, Store};

/// Checks a store. Calls `found` with each finding, in the order of keys.
///
/// # Errors
/// [`LoadError`] if there is no store that this version can read.
pub fn check_store(view: &dyn View, found: &mut dyn FnMut(Finding)) -> Result<Checked, LoadError> {
    let (head, _) = Store::read_head(view)?;
    let mut checker = Checker::new(&head, found);
    view.range(stored::ALL.0, stored::ALL.1, &mut |key, value| {
        if key != stored::HEAD {
            checker.add(key, value.bytes);
        }
        ControlFlow::Continue(())
    })?;
    Ok(checker.finish())
}

/// Checks a backup. Calls `found` with each finding, in the order of keys.
///
/// # Errors
/// [`ReadError`] if the backup is not whole. Then findings may be missing.
pub fn check_backup(backup: impl Read, found: &mut dyn FnMut(Finding)) -> Result<Checked, ReadError> {
    let reader = BackupReader::new(backup)?;
    let head = reader.header().head.clone();
    let mut checker = Checker::new(&head, found);
    for entry in reader {
        let (key, value) = entry?;
        checker.add(&key, value);
    }
    Ok(checker.finish())
}

/// What was checked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// The revision of the store.
    pub revision: u64,
    /// Revisions up to this one are forgotten.
    pub floor: u64,
    /// Records, deleted ones included.
    pub records: u64,
    /// States of records, former ones included.
    pub versions: u64,
    /// Entries of the log.
    pub log_entries: u64,
    /// What was found.
    pub findings: u64,
}

/// Something that a store never writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// ST47: a value has another checksum, or cannot be read.
    Damaged {
        /// The key in the engine.
        key: Bytes,
    },
    /// A key in the engine that this version does not know.
    UnknownKey {
        /// The key.
        key: Bytes,
    },
    /// The log lacks these revisions.
    LogGap {
        /// The first one.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The log, or a record, has a revision that the store does not have.
    Revision {
        /// The revision.
        revision: u64,
    },
    /// The commits of a node are not numbered in the order of the log.
    Counter {
        /// The store revision of the commit.
        revision: u64,
    },
    /// The log says that a commit changed a record, and its state is missing.
    NoState {
        /// The record.
        key: RecordKey,
        /// The store revision of the commit.
        revision: u64,
    },
    /// A record has a state of a commit that did not change it.
    NotLogged {
        /// The record.
        key: RecordKey,
        /// The store revision of the commit.
        revision: u64,
    },
    /// The log names another state as the one before than there is.
    Previous {
        /// The record.
        key: RecordKey,
        /// The store revision of the commit.
        revision: u64,
        /// The revision that the log names; 0 for none.
        named: u64,
    },
    /// The state of a record has another key, or one that no commit makes.
    WrongKey {
        /// The record.
        key: RecordKey,
        /// The store revision of the state.
        revision: u64,
    },
    /// The content of a state does not have the digest that the state has.
    Digest {
        /// The record.
        key: RecordKey,
        /// The store revision of the state.
        revision: u64,
    },
    /// SR62: a number of a state is so large that no other node takes it, as a peer of an earlier version wrote it.
    Number {
        /// The record.
        key: RecordKey,
        /// The store revision of the state.
        revision: u64,
        /// The field of the message.
        field: &'static str,
    },
    /// A state has a smaller generation than the one before.
    Generation {
        /// The record.
        key: RecordKey,
        /// The store revision of the state.
        revision: u64,
    },
    /// G16: variants of a name that cannot be served together. In a store that has replicated they are
    /// none (SR47).
    Ambiguous {
        /// One of them.
        key: RecordKey,
        /// Why, with the others.
        why: String,
    },
}

/// Takes all entries of a store in the order of keys: the log comes before the records.
struct Checker<'f> {
    found: &'f mut dyn FnMut(Finding),
    checked: Checked,
    /// SR47: variants may overlap after a merge.
    is_replicated: bool,
    /// How many were journaled (SR44).
    conflicts: u64,
    /// The revision that the log must have next.
    next_log: u64,
    counters: BTreeMap<String, u64>,
    /// The revisions of snapshots of other nodes. One that replaced the records (SR21) may have older ones, and
    /// the logs of the origins begin again behind it.
    resyncs: BTreeSet<u64>,
    /// Per record: what the log has of it, the oldest first.
    log: BTreeMap<RecordKey, Vec<Logged>>,
    /// The last version, and its record.
    last: Option<LastState>,
    /// The variants of the present name.
    variants: Vec<RecordKey>,
}

#[derive(Debug, Clone, Copy)]
struct Logged {
    revision: u64,
    previous: u64,
}

struct LastState {
    key: RecordKey,
    revision: u64,
    /// Incarnation and generation.
    number: (u64, u64),
    is_deleted: bool,
}

impl<'f> Checker<'f> {
    fn new(head: &Head, found: &'f mut dyn FnMut(Finding)) -> Self {
        let (revision, floor) = (head.revision, head.floor);
        Self {
            found,
            checked: Checked { revision, floor, ..Checked::default() },
            is_replicated: head.is_replicated,
            conflicts: head.conflicts,
            next_log: floor + 1,
            resyncs: BTreeSet::new(),
            counters: BTreeMap::new(),
            log: BTreeMap::new(),
            last: None,
            variants: Vec::new(),
        }
    }

    fn add(&mut self, key: &[u8], value: Bytes) {
        if let Some(revision) = stored::parse_log(key) {
            self.add_log(key, revision, value);
        } else if let Some((record, revision)) = stored::parse_record(key) {
            self.end_log();
            self.add_version(key, record, revision, value);
        } else if stored::parse_origin(key).is_some() {
            if checked::decode::<StoredOrigin>(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else if stored::parse_node(key).is_some() {
            if checked::decode::<StoredNode>(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else if stored::parse_fetching(key).is_some() {
            if checked::decode::<StoredFetching>(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else if stored::is_block(key) {
            if blocks::parse(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else if let Some((_, number)) = stored::parse_conflict(key) {
            let local = checked::decode::<Local>(key, value.clone());
            let is_whole = local.is_ok_and(|local| local.conflict.is_some());
            if !is_whole || number > self.conflicts || checked::decode::<RecordState>(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else if stored::parse_original(key).is_some() || stored::parse_staged(key).is_some() {
            if checked::decode::<RecordState>(key, value).is_err() {
                self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
            }
        } else {
            self.find(Finding::UnknownKey { key: Bytes::copy_from_slice(key) });
        }
    }

    fn add_log(&mut self, key: &[u8], revision: u64, value: Bytes) {
        self.checked.log_entries += 1;
        if revision > self.next_log {
            self.find(Finding::LogGap { first: self.next_log, last: revision - 1 });
        }
        if revision <= self.checked.floor || revision > self.checked.revision {
            self.find(Finding::Revision { revision });
        }
        self.next_log = self.next_log.max(revision.saturating_add(1));
        let Ok(entry) = checked::decode::<LogEntry>(key, value) else {
            return self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) });
        };
        if entry.is_resync() {
            self.counters.clear();
            self.resyncs.insert(revision);
        }
        let last = self.counters.insert(entry.origin, entry.counter);
        if entry.counter > 0 && last.is_some_and(|last| last >= entry.counter) {
            self.find(Finding::Counter { revision });
        }
        for change in entry.changes {
            match RecordKey::parse(&change.key) {
                Ok(record) => {
                    let logged = Logged { revision, previous: change.previous };
                    self.log.entry(record).or_default().push(logged);
                }
                Err(_) => self.find(Finding::Damaged { key: Bytes::copy_from_slice(key) }),
            }
        }
    }

    /// The log is complete: what follows are records, or nothing.
    fn end_log(&mut self) {
        let (first, last) = (self.next_log, self.checked.revision);
        if first <= last {
            self.find(Finding::LogGap { first, last });
            self.next_log = last + 1;
        }
    }

    fn add_version(&mut self, stored_key: &[u8], key: RecordKey, revision: u64, value: Bytes) {
        self.checked.versions += 1;
        let is_new_record = self.last.as_ref().is_none_or(|last| last.key != key);
        if is_new_record {
            self.checked.records += 1;
            self.end_record();
        }
        if revision > self.checked.revision {
            self.find(Finding::Revision { revision });
        }
        let before =
            self.last.as_ref().filter(|last| last.key == key).map(|last| (last.revision, last.number));
        self.check_logged(&key, revision, before.map(|(revision, _)| revision));
        let Ok(state) = checked::decode::<RecordState>(stored_key, value) else {
            let number = before.map_or((0, 0), |(_, number)| number);
            self.last = Some(LastState { key, revision, number, is_deleted: true });
            return self.find(Finding::Damaged { key: Bytes::copy_from_slice(stored_key) });
        };
        let canonical = RecordKey::parse(&key.to_proto());
        if state.key.as_ref() != Some(&key.to_proto()) || canonical.as_ref() != Ok(&key) {
            self.find(Finding::WrongKey { key: key.clone(), revision });
        }
        // The digest of a sealed content needs the keys.
        if state.content.is_some() && !state.is_sealed && record::content_digest(&state) != state.digest {
            self.find(Finding::Digest { key: key.clone(), revision });
        }
        if let Some(field) = number::out_of_range(&state) {
            self.find(Finding::Number { key: key.clone(), revision, field });
        }
        let number = (state.incarnation, state.generation);
        let is_replaced = self.resyncs.contains(&revision);
        if before.is_some_and(|(_, before)| before > number) && !is_replaced {
            self.find(Finding::Generation { key: key.clone(), revision });
        }
        let is_deleted = state.lifecycle() == xds_proto::xds::store::v1::State::Deleted;
        self.last = Some(LastState { key, revision, number, is_deleted });
    }

    /// Compares a version with what the log has of its record up to this revision.
    fn check_logged(&mut self, key: &RecordKey, revision: u64, before: Option<u64>) {
        let Some(of_record) = self.log.get_mut(key) else {
            if revision > self.checked.floor {
                self.find(Finding::NotLogged { key: key.clone(), revision });
            }
            return;
        };
        let later =
            of_record.iter().position(|logged| logged.revision >= revision).unwrap_or(of_record.len());
        let missing: Vec<_> = of_record.drain(..later).collect();
        let logged = of_record.first().copied().filter(|logged| logged.revision == revision);
        if logged.is_some() {
            of_record.remove(0);
        }
        for Logged { revision, .. } in missing {
            self.find(Finding::NoState { key: key.clone(), revision });
        }
        match logged {
            Some(Logged { previous, .. }) if previous != before.unwrap_or(0) => {
                self.find(Finding::Previous { key: key.clone(), revision, named: previous });
            }
            None if revision > self.checked.floor => {
                self.find(Finding::NotLogged { key: key.clone(), revision });
            }
            _ => {}
        }
    }

    /// All versions of the last record were added.
    fn end_record(&mut self) {
        let Some(LastState { key, is_deleted, .. }) = self.last.take() else { return };
        for Logged { revision, .. } in self.log.remove(&key).unwrap_or_default() {
            self.find(Finding::NoState { key: key.clone(), revision });
        }
        let is_same_name =
            |other: &RecordKey| (other.type_url(), other.name()) == (key.type_url(), key.name());
        if self.variants.first().is_some_and(|other| !is_same_name(other)) {
            self.end_name();
        }
        if !is_deleted {
            self.variants.push(key);
        }
    }

    /// All variants of a name were added.
    fn end_name(&mut self) {
        let variants = std::mem::take(&mut self.variants);
        if self.is_replicated {
            return;
        }
        // Keys that cannot be read were found before.
        let constraints = |key: &RecordKey| match key.to_proto().when {
            when if when.is_empty() => Some(Constraints::NONE),
            when => when.parse().ok(),
        };
        let members: Vec<_> = variants.iter().filter_map(|key| Some((constraints(key)?, key))).collect();
        let Err(error) = VariantSet::of(members.iter().map(|(constraints, key)| (constraints, *key))) else {
            return;
        };
        let (key, why) = match error {
            SetError::Overlap { first, second, witness } => {
                (first, format!("it and {second:?} both match {witness}"))
            }
            SetError::KeySets { first, second, .. } => (first, format!("{second:?} names other keys")),
            SetError::Unsatisfiable { variant } => (variant, "it matches nothing".to_owned()),
            SetError::TooComplex { variant, .. } => (variant, "it is too complex".to_owned()),
            other => (&variants[0], format!("{other:?}")),
        };
        let finding = Finding::Ambiguous { key: key.clone(), why };
        self.find(finding);
    }

    fn finish(mut self) -> Checked {
        self.end_log();
        self.end_record();
        self.end_name();
        for (key, logged) in std::mem::take(&mut self.log) {
            for Logged { revision, .. } in logged {
                self.find(Finding::NoState { key: key.clone(), revision });
            }
        }
        self.checked
    }

    fn find(&mut self, finding: Finding) {
        self.checked.findings += 1;
        (self.found)(finding);
    }
}

/// For people.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { key } => write!(f, "the stored value of {key:?} is damaged"),
            Self::UnknownKey { key } => write!(f, "{key:?} is no key of a store"),
            Self::LogGap { first, last } if first == last => write!(f, "the log lacks revision {first}"),
            Self::LogGap { first, last } => write!(f, "the log lacks revisions {first} to {last}"),
            Self::Revision { revision } => {
                write!(f, "there is a revision {revision}, which the store does not have")
            }
            Self::Counter { revision } => {
                write!(f, "the commit of revision {revision} is not numbered after the one before")
            }
            Self::NoState { key, revision } => {
                write!(f, "{key:?}: the state of revision {revision} is missing")
            }
            Self::NotLogged { key, revision } => {
                write!(f, "{key:?}: the log of revision {revision} does not name it")
            }
            Self::Previous { key, revision, named } => {
                write!(
                    f,
                    "{key:?}: the log of revision {revision} names {named} as the one before, which is wrong"
                )
            }
            Self::WrongKey { key, revision } => {
                write!(f, "{key:?}: the state of revision {revision} has a wrong key")
            }
            Self::Digest { key, revision } => {
                write!(f, "{key:?}: the content of revision {revision} does not have its digest")
            }
            Self::Number { key, revision, field } => {
                write!(
                    f,
                    "{key:?}: the {field} of revision {revision} is above {}, so no other node takes the record: \
                     restore a backup, or join this node again to one without it",
                    number::LAST
                )
            }
            Self::Generation { key, revision } => {
                write!(f, "{key:?}: revision {revision} has a smaller generation than the one before")
            }
            Self::Ambiguous { key, why } => write!(f, "{key:?}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
