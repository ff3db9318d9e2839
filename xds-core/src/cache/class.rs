//! One selection class: the streams that want the same, what changed for them, and what they are sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::interest::Stream;
use super::lock;
use super::snapshot::{Removed, Snapshot, TypeSnapshot};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::server::Body;
use crate::subscription::Selection;
use crate::variants::Variant;

/// The streams with one selection of one type.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) id: ClassId,
    pub(super) type_url: TypeUrl,
    pub(super) wanted: Wanted,
    pub(super) members: Mutex<BTreeMap<u64, Member>>,
    /// The last commit that concerned the class, or the one at which it was formed.
    pub(super) touched_at: AtomicU64,
    log: Mutex<Log>,
    /// The newest updates, when more than one stream can use them.
    updates: Mutex<VecDeque<Arc<Update>>>,
    sum: Mutex<Sum>,
}

pub(super) type ClassId = u64;

/// What a stream wants of a type, as far as it matters: equal wants form a class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub(super) selection: Selection,
    /// Projected on the keys that constraints name.
    pub(super) parameters: Parameters,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) stream: Arc<Stream>,
    pub(super) cursor: Arc<AtomicU64>,
}

/// What the streams of a class at one cursor have to learn to be at another revision.
#[derive(Debug)]
pub(crate) struct Update {
    /// New and changed variants, by name.
    pub(crate) changed: Vec<Arc<Variant>>,
    /// What was removed, by name; also what came and went since the cursor. From the start (cursor zero) it is empty.
    pub(crate) removed: Vec<Removed>,
    /// Names without a resource, which a client that asks for them anew is told of (D10). Only from the start.
    pub(crate) absent: Vec<ResourceName>,
    /// [`changed`](Self::changed) as it goes on the wire, for the protocol that asked first.
    pub(crate) sotw_body: OnceLock<Arc<Body>>,
    /// The same, with what is gone, in delta.
    pub(crate) delta_body: OnceLock<Arc<Body>>,
    /// The cursor it starts from; zero when it holds everything.
    pub(crate) from: Revision,
    to: Revision,
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
    shift: u128,
}

/// The sum of identities at one revision.
#[derive(Debug, Clone, Copy)]
struct Sum {
    at: Revision,
    value: u128,
}

impl Class {
    pub(super) fn new(id: ClassId, type_url: TypeUrl, wanted: Wanted, revision: Revision) -> Self {
        Self {
            id,
            type_url,
            wanted,
            members: Mutex::default(),
            touched_at: AtomicU64::new(revision.0),
            log: Mutex::new(Log { complete_after: revision, entries: VecDeque::new() }),
            updates: Mutex::default(),
            sum: Mutex::new(Sum { at: Revision::ZERO, value: 0 }),
        }
    }

    /// Whether a stream with this cursor missed nothing that concerned the class.
    pub(super) fn is_up_to_date(&self, cursor: &AtomicU64) -> bool {
        let cursor = cursor.load(Ordering::Relaxed);
        cursor > 0 && cursor >= self.touched_at.load(Ordering::Acquire)
    }

    /// Notes that a name changed; whether it did for this class.
    pub(super) fn record(
        &self,
        name: &ResourceName,
        before: &TypeSnapshot,
        after: &TypeSnapshot,
        revision: Revision,
    ) -> bool {
        let parameters = &self.wanted.parameters;
        let (before, after) = (before.find(name, parameters), after.find(name, parameters));
        if before.map(|variant| variant.version()) == after.map(|variant| variant.version()) {
            // Not concerned, or V29: another variant with the same payload.
            return false;
        }
        let identity = |variant: Option<&Arc<Variant>>| variant.map_or(0, |variant| variant.identity());
        let shift = identity(after).wrapping_sub(identity(before));
        // Beyond the number of names a log is no cheaper than comparing all of them.
        let limit = match &self.wanted.selection {
            Selection::All => LOG_LIMIT,
            Selection::Names(names) => names.len().min(LOG_LIMIT),
        };
        // Nobody needs them any more, unless somebody is just making one.
        if let Ok(mut updates) = self.updates.try_lock() {
            updates.clear();
        }
        let mut log = lock(&self.log);
        if log.complete_after < revision && log.entries.len() >= limit {
            log.entries.clear();
            log.complete_after = revision;
        }
        if log.complete_after < revision {
            log.entries.push_back((revision, ChangedName { name: name.clone(), shift }));
        }
        true
    }

    /// The changes in (from, to]; `None` when the log does not reach back that far.
    fn logged(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        let log = lock(&self.log);
        let newer = log.entries.iter().rev().take_while(|(at, _)| *at > from);
        let wanted = newer.filter(|(at, _)| *at <= to).map(|(_, change)| change.clone());
        (from >= log.complete_after).then(|| wanted.collect())
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
        let mut update = Update::new(from, to);
        let nothing = TypeSnapshot::default();
        let resources = snapshot.of_type(&self.type_url).unwrap_or(&nothing);
        if from > Revision::ZERO && !resources.remembers(from) {
            return None;
        }
        let mut compare = |name: &ResourceName| update.compare(name, resources, &self.wanted.parameters);
        match (&self.wanted.selection, self.logged(from, to)) {
            (_, Some(changes)) if from > Revision::ZERO => {
                let names: BTreeSet<_> = changes.iter().map(|change| &change.name).collect();
                names.into_iter().for_each(compare);
            }
            (Selection::Names(names), _) => names.iter().for_each(compare),
            (Selection::All, _) => {
                resources.iter().for_each(|(name, _)| compare(name));
                if from > Revision::ZERO {
                    resources.gone_names().for_each(compare);
                }
                update.changed.sort_unstable_by(|a, b| a.name().cmp(b.name()));
                update.removed.sort_unstable_by(|a, b| a.variant.name().cmp(b.variant.name()));
                // Nobody asked for these by name.
                update.absent.clear();
            }
        }
        Some(update)
    }

    pub(super) fn sum(&self, snapshot: &Snapshot) -> u128 {
        let to = snapshot.revision();
        let Some(resources) = snapshot.of_type(&self.type_url) else { return 0 };
        let Wanted { selection, parameters } = &self.wanted;
        if *selection == Selection::All && resources.keys().is_empty() {
            return resources.sum();
        }
        let mut known = lock(&self.sum);
        if known.at > Revision::ZERO && known.at == to {
            return known.value;
        }
        let from_log =
            if known.at > Revision::ZERO && known.at < to { self.logged(known.at, to) } else { None };
        let value = match from_log {
            Some(changes) => changes.iter().fold(known.value, |sum, change| sum.wrapping_add(change.shift)),
            None => {
                let add = |sum: u128, variant: &Arc<Variant>| sum.wrapping_add(variant.identity());
                match selection {
                    Selection::All => {
                        resources.iter().filter_map(|(_, variants)| variants.resolve(parameters)).fold(0, add)
                    }
                    Selection::Names(names) => {
                        names.iter().filter_map(|name| resources.find(name, parameters)).fold(0, add)
                    }
                }
            }
        };
        *known = Sum { at: to, value };
        value
    }
}

impl Update {
    pub(super) fn new(from: Revision, to: Revision) -> Self {
        let (changed, removed, absent) = (Vec::new(), Vec::new(), Vec::new());
        let (sotw_body, delta_body) = (OnceLock::new(), OnceLock::new());
        Self { changed, removed, absent, sotw_body, delta_body, from, to }
    }

    /// Whether it brings a variant of this name.
    pub(crate) fn has(&self, name: &ResourceName) -> bool {
        self.changed.binary_search_by(|variant| variant.name().cmp(name)).is_ok()
    }

    fn compare(&mut self, name: &ResourceName, resources: &TypeSnapshot, parameters: &Parameters) {
        let mut removed = resources.removed_after(name, parameters, self.from);
        match resources.find(name, parameters) {
            // At most one variant matches at any time, so another one than before came after the cursor. V29: when its
            // payload is that of the one before, nothing changed for those who ask by name.
            Some(variant) if variant.changed_at > self.from => {
                let before = removed.find(|removed| removed.variant.born_at <= self.from);
                if before.is_none_or(|before| before.variant.version() != variant.version()) {
                    self.changed.push(Arc::clone(variant));
                }
            }
            Some(_) => {}
            None if self.from == Revision::ZERO => self.absent.push(name.clone()),
            None => self.removed.extend(removed.max_by_key(|removed| removed.at).cloned()),
        }
    }
}

/// Changes a class remembers at most; a stream that is further behind compares in full.
const LOG_LIMIT: usize = 4096;

/// Streams of one class are at the newest revision, or on the way to it from one of a few before.
const UPDATES_KEPT: usize = 4;
