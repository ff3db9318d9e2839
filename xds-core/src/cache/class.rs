//! One selection class: the streams that want the same, what changed for them, and what they are
//! sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::delivery::Ledger;
use super::lock;
use super::snapshot::{Snapshot, TypeSnapshot};
use super::type_selection::TypeSelection;
use super::update::Update;
use crate::name::{ResourceName, Revision, TypeUrl};

/// The streams with one selection of one type.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) id: ClassId,
    pub(super) type_url: TypeUrl,
    pub(super) selection: TypeSelection,
    /// By the id of their stream.
    pub(super) members: Mutex<BTreeMap<u64, ClassMember>>,
    /// The last commit that concerned the class, or the one at which it was formed.
    pub(super) touched_at: AtomicU64,
    log: Mutex<Log>,
    /// The newest updates, when more than one stream can use them.
    updates: Mutex<VecDeque<Arc<Update>>>,
    sum: Mutex<Sum>,
}

pub(super) type ClassId = u64;

#[derive(Debug)]
pub(super) struct ClassMember {
    pub(super) cursor: Arc<AtomicU64>,
    pub(super) ledger: Arc<Ledger>,
}

/// The changes that concerned a class, oldest first.
#[derive(Debug)]
struct Log {
    /// The log holds every change after this revision.
    complete_after: Revision,
    entries: VecDeque<(Revision, ChangedName)>,
}

/// A name whose variant changed for a class, and by how much the sum of identities moved.
#[derive(Debug, Clone)]
struct ChangedName {
    name: ResourceName,
    /// `None` when nobody had asked for the sum.
    shift: Option<u128>,
}

/// The sum of identities at one revision; zero until somebody asks, which only SotW streams do.
#[derive(Debug, Clone, Copy)]
struct Sum {
    at: Revision,
    value: u128,
}

impl Class {
    pub(super) fn new(id: ClassId, type_url: TypeUrl, selection: TypeSelection, revision: Revision) -> Self {
        Self {
            id,
            type_url,
            selection,
            members: Mutex::default(),
            touched_at: AtomicU64::new(revision.0),
            log: Mutex::new(Log::new(revision)),
            updates: Mutex::default(),
            sum: Mutex::new(Sum { at: Revision::ZERO, value: 0 }),
        }
    }

    /// Whether a stream with this cursor missed nothing that concerned the class.
    pub(super) fn is_up_to_date(&self, cursor: &AtomicU64) -> bool {
        let cursor = cursor.load(Ordering::Relaxed);
        cursor > 0 && cursor >= self.touched_at.load(Ordering::Acquire)
    }

    /// Notes that a commit concerned the class; what its streams answer is added to those of
    /// others, with their ids.
    pub(super) fn touch(&self, revision: Revision, ledgers: &mut Vec<(u64, Arc<Ledger>)>) {
        let members = lock(&self.members);
        let before_this = revision.0 - 1;
        for (stream, member) in &*members {
            // Whoever missed nothing so far is one commit behind now, wherever its cursor stood: so
            // all of them share one update.
            if self.is_up_to_date(&member.cursor) && member.cursor.load(Ordering::Relaxed) < before_this {
                member.cursor.fetch_max(before_this, Ordering::Relaxed);
            }
            ledgers.push((*stream, Arc::clone(&member.ledger)));
        }
        self.touched_at.store(revision.0, Ordering::Release);
    }

    /// Notes that a name changed; whether it did for this class.
    pub(super) fn record(
        &self,
        name: &ResourceName,
        before: &TypeSnapshot,
        after: &TypeSnapshot,
        revision: Revision,
    ) -> bool {
        let Some(shift) = self.selection.shift(name, before, after) else { return false };
        // Whoever holds the lock is asking.
        let is_asked = self.sum.try_lock().map_or(true, |sum| sum.at > Revision::ZERO);
        let shift = is_asked.then(|| shift.sum());
        // Beyond the number of names a log is no cheaper than comparing all of them.
        let limit =
            if self.selection.is_wildcard() { LOG_LIMIT } else { self.selection.len().min(LOG_LIMIT) };
        // Nobody needs them any more, unless somebody is just making one.
        if let Ok(mut updates) = self.updates.try_lock() {
            updates.clear();
        }
        lock(&self.log).push(revision, ChangedName { name: name.clone(), shift }, limit);
        true
    }

    /// The changes in (from, to]; `None` when the log does not reach back that far.
    fn logged(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        lock(&self.log).between(from, to)
    }

    pub(super) fn update(&self, from: Revision, snapshot: &Snapshot) -> Option<Arc<Update>> {
        let to = snapshot.revision();
        // Held over the making, so that of many streams that wake together one makes it.
        let mut updates = lock(&self.updates);
        if let Some(known) = updates.iter().find(|update| (update.from, update.to) == (from, to)) {
            return Some(Arc::clone(known));
        }
        let update = Arc::new(self.make_update(from, snapshot)?);
        if lock(&self.members).len() > 1 {
            if updates.len() == UPDATES_KEPT {
                updates.pop_front();
            }
            updates.push_back(Arc::clone(&update));
        } else {
            updates.clear();
        }
        Some(update)
    }

    fn make_update(&self, from: Revision, snapshot: &Snapshot) -> Option<Update> {
        let to = snapshot.revision();
        let nothing = TypeSnapshot::default();
        let resources = snapshot.of_type(&self.type_url).unwrap_or(&nothing);
        if from > Revision::ZERO && !resources.remembers(from) {
            return None;
        }
        let logged = if from > Revision::ZERO { self.logged(from, to) } else { None };
        let logged = logged.map(|changes| changes.into_iter().map(|change| change.name).collect());
        let tells_absent = !snapshot.is_on_demand();
        Some(Update::make(&self.selection, logged.as_ref(), resources, from, to, tells_absent))
    }

    pub(super) fn sum(&self, snapshot: &Snapshot) -> u128 {
        let to = snapshot.revision();
        let Some(resources) = snapshot.of_type(&self.type_url) else { return 0 };
        if self.selection.is_unlimited() && resources.keys().is_empty() {
            return resources.sum();
        }
        let mut known = lock(&self.sum);
        if known.at > Revision::ZERO && known.at == to {
            return known.value;
        }
        let from_log =
            if known.at > Revision::ZERO && known.at < to { self.logged(known.at, to) } else { None };
        let add = |sum: u128, change: &ChangedName| Some(sum.wrapping_add(change.shift?));
        let followed = from_log.and_then(|changes| changes.iter().try_fold(known.value, add));
        let value = followed.unwrap_or_else(|| self.selection.sum(resources));
        *known = Sum { at: to, value };
        value
    }
}

impl Log {
    fn new(complete_after: Revision) -> Self {
        Self { complete_after, entries: VecDeque::new() }
    }

    /// Adds a change. Of more than `limit` the oldest are forgotten: nearly always every stream has
    /// long heard of them.
    fn push(&mut self, at: Revision, change: ChangedName, limit: usize) {
        if self.entries.len() >= limit
            && let Some((oldest, _)) = self.entries.front()
        {
            self.complete_after = *oldest;
            // Of half a commit nobody could make an update.
            while self.entries.front().is_some_and(|(at, _)| *at <= self.complete_after) {
                self.entries.pop_front();
            }
        }
        if at > self.complete_after {
            self.entries.push_back((at, change));
        }
    }

    /// The changes in (from, to]; `None` when some are forgotten.
    fn between(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        let newer = self.entries.iter().rev().take_while(|(at, _)| *at > from);
        let changes = newer.filter(|(at, _)| *at <= to).map(|(_, change)| change.clone());
        (from >= self.complete_after).then(|| changes.collect())
    }
}

/// Changes a class remembers at most; a stream that is further behind compares in full.
const LOG_LIMIT: usize = 4096;

/// Streams of one class are at the newest revision, or on the way to it from one of a few before.
const UPDATES_KEPT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn push(log: &mut Log, at: u64, names: &[&str]) {
        for name in names {
            log.push(Revision(at), ChangedName { name: (*name).into(), shift: None }, 3);
        }
    }

    fn between(log: &Log, from: u64, to: u64) -> Option<Vec<String>> {
        let names = |changes: Vec<ChangedName>| {
            changes.iter().map(|change| change.name.as_str().to_owned()).collect()
        };
        log.between(Revision(from), Revision(to)).map(names)
    }

    #[test]
    fn a_full_log_forgets_the_oldest_commits_so_a_stream_that_keeps_up_never_compares_all() {
        let mut log = Log::new(Revision(1));
        for at in 2..100 {
            push(&mut log, at, &["a"]);
            assert_eq!(between(&log, at - 1, at), Some(vec!["a".to_owned()]));
            let all = if at < 5 { at - 1 } else { 3 };
            assert_eq!(between(&log, at - all, at).unwrap().len(), all as usize);
            assert_eq!(between(&log, at - all - 1, at), None);
        }
    }

    #[test]
    fn of_a_commit_a_log_knows_all_changes_or_none() {
        let mut log = Log::new(Revision(1));
        push(&mut log, 2, &["a", "b"]);
        push(&mut log, 3, &["c", "d"]);
        assert_eq!(between(&log, 1, 3), None);
        assert_eq!(between(&log, 2, 3).unwrap(), ["d", "c"]);
        push(&mut log, 4, &["a", "b", "c", "d", "e"]);
        assert_eq!((between(&log, 3, 4), between(&log, 4, 4)), (None, Some(Vec::new())));
        push(&mut log, 5, &["a"]);
        assert_eq!(between(&log, 4, 5).unwrap(), ["a"]);
    }
}
