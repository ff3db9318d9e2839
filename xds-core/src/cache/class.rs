//! One selection class: the streams with the same selection, the changes that affected them, and
//! the updates that they share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::audience::Chosen;
use super::delivery::Ledger;
use super::interest::RegisteredStream;
use super::lock;
use super::snapshot::{NO_RESOURCES, Snapshot, TypeSnapshot};
use super::type_selection::TypeSelection;
use super::update::Update;
use super::views::ViewId;
use crate::name::{ResourceName, Revision, TypeUrl};

/// The streams that have the same selection of one type.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) id: ClassId,
    pub(super) type_url: TypeUrl,
    pub(super) selection: TypeSelection,
    /// By the id of their stream.
    pub(super) members: Mutex<BTreeMap<u64, ClassMember>>,
    /// The last commit that affected the class, or the revision at which the class was formed.
    pub(super) touched_at: AtomicU64,
    log: Mutex<Log>,
    /// The newest updates, while the class has more than one stream to share them.
    updates: Mutex<VecDeque<Arc<Update>>>,
    sum: Mutex<Sum>,
}

pub(super) type ClassId = u64;

/// One stream in a class.
#[derive(Debug)]
pub(super) struct ClassMember {
    pub(super) cursor: Arc<AtomicU64>,
    pub(super) ledger: Arc<Ledger>,
}

/// The changes that affected a class, oldest first.
#[derive(Debug)]
struct Log {
    /// The log holds every change after this revision.
    complete_after: Revision,
    entries: VecDeque<(Revision, ChangedName)>,
}

/// A name whose variant changed for a class.
#[derive(Debug, Clone)]
struct ChangedName {
    name: ResourceName,
    /// The change of the sum of identities; `None` when no stream had used the sum before.
    shift: Option<u128>,
}

/// The sum of identities (T38) at one revision. The revision is zero until a SotW stream uses the
/// sum; delta streams never do.
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

    /// Whether a stream with this cursor missed no commit that affected the class.
    pub(super) fn is_up_to_date(&self, cursor: &AtomicU64) -> bool {
        let cursor = cursor.load(Ordering::Relaxed);
        cursor > 0 && cursor >= self.touched_at.load(Ordering::Acquire)
    }

    /// Prepares the members that see the stable state, which is at this revision, and that a
    /// candidate [chose](Chosen), to leave this class. Returns their ledgers.
    pub(super) fn leave_to(&self, stable: Revision, chosen: &Chosen) -> Vec<Arc<Ledger>> {
        let members = lock(&self.members);
        let leaving = members.values().filter(|member| {
            let stream = member.ledger.stream();
            stream.view() == ViewId::STABLE && chosen.includes(stream)
        });
        let leave = |member: &ClassMember| {
            // It has everything up to here. Its cursor must not depend on this class any more. In the
            // class of a view that it left, its cursor was set before.
            if self.selection.view == ViewId::STABLE && self.is_up_to_date(&member.cursor) {
                member.cursor.fetch_max(stable.0, Ordering::Relaxed);
            }
            Arc::clone(&member.ledger)
        };
        leaving.map(leave).collect()
    }

    /// The streams of the class.
    pub(super) fn streams(&self) -> Vec<Arc<RegisteredStream>> {
        lock(&self.members).values().map(|member| Arc::clone(member.ledger.stream())).collect()
    }

    /// Notes that a commit affected the class. Adds the ledgers of its streams, with the ids of the
    /// streams, to those of other classes.
    pub(super) fn touch(&self, revision: Revision, ledgers: &mut Vec<(u64, Arc<Ledger>)>) {
        let members = lock(&self.members);
        let before_this = revision.0 - 1;
        for (stream, member) in &*members {
            // A stream that missed nothing so far is now one commit behind, however old its cursor
            // is. Equal cursors let all these streams share one update.
            // A stream that is about to leave for another view keeps its cursor: what is new there
            // may have an older revision.
            let stays = member.ledger.stream().view() == self.selection.view;
            if stays
                && self.is_up_to_date(&member.cursor)
                && member.cursor.load(Ordering::Relaxed) < before_this
            {
                member.cursor.fetch_max(before_this, Ordering::Relaxed);
            }
            ledgers.push((*stream, Arc::clone(&member.ledger)));
        }
        self.touched_at.store(revision.0, Ordering::Release);
    }

    /// Records a changed name in the log. Returns whether the change affects this class.
    pub(super) fn record(
        &self,
        name: &ResourceName,
        before: &TypeSnapshot,
        after: &TypeSnapshot,
        revision: Revision,
    ) -> bool {
        let Some(shift) = self.selection.shift(name, before, after) else { return false };
        // A stream that holds the lock is using the sum right now.
        let is_sum_used = self.sum.try_lock().map_or(true, |sum| sum.at > Revision::ZERO);
        let shift = is_sum_used.then(|| shift.sum());
        // A log longer than the list of names is no cheaper than comparing all of them.
        let limit =
            if self.selection.is_wildcard() { LOG_LIMIT } else { self.selection.len().min(LOG_LIMIT) };
        // Stored updates lead to an older revision. When the lock is taken, a stream is making one
        // and still needs it.
        if let Ok(mut updates) = self.updates.try_lock() {
            updates.clear();
        }
        lock(&self.log).push(revision, ChangedName { name: name.clone(), shift }, limit);
        true
    }

    /// The changes in (from, to]; `None` when the log has forgotten some of them.
    fn logged(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        lock(&self.log).between(from, to)
    }

    /// The update from a cursor to a snapshot. `None` when the cache has forgotten removals after
    /// the cursor.
    pub(super) fn update(&self, from: Revision, snapshot: &Snapshot) -> Option<Arc<Update>> {
        let to = snapshot.revision();
        // Locked while the update is made: of many streams that wake together, one makes it.
        let mut updates = lock(&self.updates);
        if let Some(known) = updates.iter().find(|update| (update.from, update.to) == (from, to)) {
            return Some(Arc::clone(known));
        }
        let update = Arc::new(self.make_update(from, snapshot)?);
        // The streams that try a candidate come one by one.
        if self.selection.view != ViewId::STABLE || lock(&self.members).len() > 1 {
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
        let resources = snapshot.of_type(&self.type_url).unwrap_or(&NO_RESOURCES);
        if from > Revision::ZERO && !resources.removals().are_known_since(from) {
            return None;
        }
        let logged = if from > Revision::ZERO { self.logged(from, to) } else { None };
        let logged = logged.map(|changes| changes.into_iter().map(|change| change.name).collect());
        let missing_is_absent = !snapshot.is_on_demand();
        Some(Update::make(&self.selection, logged.as_ref(), resources, from, to, missing_is_absent))
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

    /// Adds a change. Beyond `limit` changes the oldest commit is forgotten: nearly always every
    /// stream has seen it already.
    fn push(&mut self, at: Revision, change: ChangedName, limit: usize) {
        if self.entries.len() >= limit
            && let Some((oldest, _)) = self.entries.front()
        {
            self.complete_after = *oldest;
            // Forget whole commits: an update from half a commit would be incomplete.
            while self.entries.front().is_some_and(|(at, _)| *at <= self.complete_after) {
                self.entries.pop_front();
            }
        }
        if at > self.complete_after {
            self.entries.push_back((at, change));
        }
    }

    /// The changes in (from, to]; `None` when some of them are forgotten.
    fn between(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        let newer = self.entries.iter().rev().take_while(|(at, _)| *at > from);
        let changes = newer.filter(|(at, _)| *at <= to).map(|(_, change)| change.clone());
        (from >= self.complete_after).then(|| changes.collect())
    }
}

/// The largest number of changes that a class remembers. A stream that missed more of them compares
/// all its names.
const LOG_LIMIT: usize = 4096;

/// How many updates a class stores. Nearly all streams of a class have one of a few newest
/// cursors.
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
