//! Who wants what: the index from names to selection classes, and what a class missed.
//!
//! Streams that select the same of a type form a selection class. A commit looks up the classes of each changed name,
//! writes the name into their logs and wakes their streams; nothing else is touched. A stream keeps a cursor, the
//! revision up to which it was sent everything, and asks its class for the [`Update`] from there: made once, shared by
//! all streams of the class at the same cursor.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;

use atomic_waker::AtomicWaker;

use super::snapshot::{Removed, Snapshot, TypeSnapshot};
use super::{Cache, lock};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::server::Body;
use crate::subscription::{self, Selection};
use crate::variants::{Variant, VariantSet};

/// One stream as the cache sees it: what it wants, and how to wake it.
#[derive(Debug)]
pub struct Watch {
    cache: Arc<Cache>,
    stream: Arc<Stream>,
}

impl Watch {
    pub(super) fn new(cache: Arc<Cache>) -> Arc<Self> {
        let id = lock(&cache.interest).next_stream_id();
        Arc::new(Self {
            cache,
            stream: Arc::new(Stream { id, woken: AtomicBool::new(false), waker: AtomicWaker::new() }),
        })
    }

    /// The cache it watches.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Waits until a commit concerned this stream since the last call returned. Needs no runtime; dropping the future
    /// loses nothing. One task at a time may wait.
    pub async fn woken(&self) {
        poll_fn(|cx| {
            self.stream.waker.register(cx.waker());
            // After registering: a commit in between is seen here or wakes us.
            if self.stream.woken.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Joins the class of a selection. What was missed while not in it is found by comparing in full.
    pub(crate) fn join(self: &Arc<Self>, type_url: &TypeUrl, selection: Selection) -> Membership {
        let cursor = Arc::new(AtomicU64::new(0));
        let member = Member { stream: Arc::clone(&self.stream), cursor: Arc::clone(&cursor) };
        let class = lock(&self.cache.interest).join(type_url, selection, member);
        Membership { watch: Arc::clone(self), class, cursor }
    }
}

/// A stream's place in the class of its selection of one type; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Membership {
    watch: Arc<Watch>,
    class: Arc<Class>,
    cursor: Arc<AtomicU64>,
}

impl Membership {
    /// Moves to another selection of the same type and keeps the cursor.
    pub(crate) fn select(&mut self, selection: Selection) {
        if self.class.selection != selection {
            let mut interest = lock(&self.watch.cache.interest);
            if self.class.is_up_to_date(&self.cursor) {
                self.cursor.fetch_max(interest.revision.0, Ordering::Relaxed);
            }
            self.class = interest.reselect(&self.class, &self.watch.stream, selection);
        }
    }

    /// The revision up to which the stream was sent what it selects; zero before the first answer.
    pub(crate) fn cursor(&self) -> Revision {
        Revision(self.cursor.load(Ordering::Relaxed))
    }

    pub(crate) fn advance(&self, to: Revision) {
        self.cursor.fetch_max(to.0, Ordering::Relaxed);
    }

    /// Whether the class may have changed since the cursor; cheap, and true sometimes without need.
    pub(crate) fn is_behind(&self, snapshot: &Snapshot) -> bool {
        let cursor = self.cursor();
        cursor < snapshot.revision() && cursor < Revision(self.class.touched_at.load(Ordering::Acquire))
    }

    /// What the stream has to learn to get from its cursor to the snapshot.
    ///
    /// `None` when the cache no longer knows: the stream missed more removals than are remembered.
    pub(crate) fn update(&self, snapshot: &Snapshot) -> Option<Arc<Update>> {
        self.class.update(self.cursor(), snapshot)
    }

    /// Everything the class selects.
    pub(crate) fn everything(&self, snapshot: &Snapshot) -> Arc<Update> {
        self.class.update(Revision::ZERO, snapshot).expect("from the start no removal has to be known")
    }

    /// The sum of the identities of all variants the class selects (T38).
    pub(crate) fn sum(&self, snapshot: &Snapshot) -> u128 {
        self.class.sum(snapshot)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.watch.cache.interest).leave(&self.class, &self.watch.stream);
    }
}

/// What the streams of a class at one cursor have to learn to be at another revision.
#[derive(Debug)]
pub(crate) struct Update {
    /// New and changed variants, by name.
    pub(crate) changed: Vec<Arc<Variant>>,
    /// What was removed, by name. From the start (cursor zero) it stays empty.
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

/// A stream that can be woken.
#[derive(Debug)]
pub(super) struct Stream {
    id: u64,
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl Stream {
    pub(super) fn wake(&self) {
        self.waker.wake();
    }
}

/// A name that a commit changed, and by how much the sum of identities moved.
#[derive(Debug, Clone)]
pub(super) struct ChangedName {
    pub(super) name: ResourceName,
    pub(super) shift: u128,
}

/// The index of all classes.
#[derive(Debug, Default)]
pub(super) struct Interest {
    revision: Revision,
    last_stream: u64,
    pub(super) types: BTreeMap<TypeUrl, TypeInterest>,
}

/// The classes of one type.
///
/// Names come from peers, so the tables are ordered: no choice of names makes a lookup slow.
#[derive(Debug, Default)]
pub(super) struct TypeInterest {
    by_name: BTreeMap<ResourceName, BTreeSet<ClassId>>,
    by_selection: BTreeMap<Selection, ClassId>,
    classes: BTreeMap<ClassId, Arc<Class>>,
    pub(super) last_class: ClassId,
}

type ClassId = u64;

/// The streams with one selection of one type.
#[derive(Debug)]
struct Class {
    id: ClassId,
    type_url: TypeUrl,
    selection: Selection,
    members: Mutex<BTreeMap<u64, Member>>,
    /// The last commit that concerned the class, or the one at which it was formed.
    touched_at: AtomicU64,
    log: Mutex<Log>,
    /// The newest updates, when more than one stream can use them.
    updates: Mutex<VecDeque<Arc<Update>>>,
    sum: Mutex<Sum>,
}

#[derive(Debug)]
struct Member {
    stream: Arc<Stream>,
    cursor: Arc<AtomicU64>,
}

/// The changes that concerned a class, oldest first.
#[derive(Debug)]
struct Log {
    /// The log holds every change after this revision.
    complete_after: Revision,
    entries: VecDeque<(Revision, ChangedName)>,
}

/// The sum of identities at one revision.
#[derive(Debug, Clone, Copy)]
struct Sum {
    at: Revision,
    value: u128,
}

impl Interest {
    fn next_stream_id(&mut self) -> u64 {
        self.last_stream += 1;
        self.last_stream
    }

    /// Writes a commit into the logs of the classes it concerns; the streams to wake, in the order of their start.
    pub(super) fn mark(
        &mut self,
        revision: Revision,
        changed: &BTreeMap<TypeUrl, Vec<ChangedName>>,
    ) -> Vec<Arc<Stream>> {
        // G13: the first commit ends the time in which nothing was known, for everyone.
        let first_sync = self.revision == Revision::ZERO;
        self.revision = revision;
        let mut concerned = BTreeMap::<(&TypeUrl, ClassId), &Arc<Class>>::new();
        for (type_url, names) in changed {
            let Some((type_url, interest)) = self.types.get_key_value(type_url) else { continue };
            let wildcard = interest.by_selection.get(&Selection::All);
            for change in names {
                let by_name = interest.by_name.get(&change.name).into_iter().flatten();
                for id in by_name.chain(wildcard) {
                    let class = &interest.classes[id];
                    class.record(revision, change);
                    concerned.insert((type_url, *id), class);
                }
            }
        }
        if first_sync {
            for (type_url, interest) in &self.types {
                concerned.extend(interest.classes.iter().map(|(id, class)| ((type_url, *id), class)));
            }
        }
        let mut woken = BTreeMap::new();
        for class in concerned.into_values() {
            let members = lock(&class.members);
            for member in members.values() {
                // Whoever missed nothing so far is one commit behind now, wherever its cursor stood: so all of them
                // share one update.
                if class.is_up_to_date(&member.cursor) {
                    member.cursor.fetch_max(revision.0 - 1, Ordering::Relaxed);
                }
                member.stream.woken.store(true, Ordering::Release);
                woken.insert(member.stream.id, Arc::clone(&member.stream));
            }
            class.touched_at.store(revision.0, Ordering::Release);
        }
        woken.into_values().collect()
    }

    /// The oldest cursor of the streams that still have to hear of a change; `None` when there is none.
    pub(super) fn oldest_cursor(&self, type_url: &TypeUrl) -> Option<Revision> {
        let classes = self.types.get(type_url)?.classes.values();
        classes
            .filter_map(|class| {
                let members = lock(&class.members);
                let behind = members.values().filter(|member| !class.is_up_to_date(&member.cursor));
                behind.map(|member| member.cursor.load(Ordering::Relaxed)).filter(|cursor| *cursor > 0).min()
            })
            .min()
            .map(Revision)
    }

    fn join(&mut self, type_url: &TypeUrl, selection: Selection, member: Member) -> Arc<Class> {
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.clone(), TypeInterest::default());
        }
        let interest = self.types.get_mut(type_url).expect("was inserted above");
        let class = match interest.by_selection.get(&selection) {
            Some(id) => Arc::clone(&interest.classes[id]),
            None => interest.form(type_url, selection, self.revision),
        };
        lock(&class.members).insert(member.stream.id, member);
        class
    }

    fn leave(&mut self, class: &Class, stream: &Stream) {
        let is_empty = {
            let mut members = lock(&class.members);
            members.remove(&stream.id);
            members.is_empty()
        };
        if is_empty && let Some(interest) = self.types.get_mut(&class.type_url) {
            interest.dissolve(class);
            if interest.classes.is_empty() {
                self.types.remove(&class.type_url);
            }
        }
    }

    fn reselect(&mut self, class: &Arc<Class>, stream: &Stream, selection: Selection) -> Arc<Class> {
        let is_alone = lock(&class.members).len() == 1;
        let interest =
            self.types.get_mut(&class.type_url).expect("a class with a member stands in the index");
        if is_alone && !interest.by_selection.contains_key(&selection) {
            // A stream that adds names one by one must not pay for all of them each time.
            return interest.alter(class, selection, self.revision);
        }
        let type_url = class.type_url.clone();
        let member = lock(&class.members).remove(&stream.id).expect("the stream is in the class it left");
        let joined = self.join(&type_url, selection, member);
        self.leave(class, stream);
        joined
    }
}

impl TypeInterest {
    fn form(&mut self, type_url: &TypeUrl, selection: Selection, revision: Revision) -> Arc<Class> {
        self.last_class += 1;
        let selection = self.interned(selection);
        let class = Arc::new(Class::new(self.last_class, type_url.clone(), selection, revision));
        self.index(&class, class.selection.names());
        class
    }

    /// Replaces a class by one with another selection, at the cost of the difference.
    fn alter(&mut self, old: &Class, selection: Selection, revision: Revision) -> Arc<Class> {
        self.by_selection.remove(&old.selection);
        let selection = self.interned(selection);
        let class = Arc::new(Class::new(old.id, old.type_url.clone(), selection, revision));
        std::mem::swap(&mut *lock(&class.members), &mut *lock(&old.members));
        let (before, after) = (old.selection.names(), class.selection.names());
        self.unindex(old.id, &subscription::difference(before, after));
        self.index(&class, &subscription::difference(after, before));
        class
    }

    fn dissolve(&mut self, class: &Class) {
        self.by_selection.remove(&class.selection);
        self.classes.remove(&class.id);
        self.unindex(class.id, class.selection.names());
    }

    fn index(&mut self, class: &Arc<Class>, names: &[ResourceName]) {
        for name in names {
            self.by_name.entry(name.clone()).or_default().insert(class.id);
        }
        self.by_selection.insert(class.selection.clone(), class.id);
        self.classes.insert(class.id, Arc::clone(class));
    }

    fn unindex(&mut self, id: ClassId, names: &[ResourceName]) {
        for name in names {
            if let Some(ids) = self.by_name.get_mut(name) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
    }

    /// The same selection with the strings that the index already holds.
    fn interned(&self, selection: Selection) -> Selection {
        let known = |name: &ResourceName| match self.by_name.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None => name.clone(),
        };
        match selection {
            Selection::All => Selection::All,
            Selection::Names(names) => Selection::Names(names.iter().map(known).collect()),
        }
    }
}

impl Class {
    fn new(id: ClassId, type_url: TypeUrl, selection: Selection, revision: Revision) -> Self {
        Self {
            id,
            type_url,
            selection,
            members: Mutex::default(),
            touched_at: AtomicU64::new(revision.0),
            log: Mutex::new(Log { complete_after: revision, entries: VecDeque::new() }),
            updates: Mutex::default(),
            sum: Mutex::new(Sum { at: Revision::ZERO, value: 0 }),
        }
    }

    /// Whether a stream with this cursor missed nothing that concerned the class.
    fn is_up_to_date(&self, cursor: &AtomicU64) -> bool {
        let cursor = cursor.load(Ordering::Relaxed);
        cursor > 0 && cursor >= self.touched_at.load(Ordering::Acquire)
    }

    fn record(&self, revision: Revision, change: &ChangedName) {
        // Beyond the number of names a log is no cheaper than comparing all of them.
        let limit = match &self.selection {
            Selection::All => LOG_LIMIT,
            Selection::Names(names) => names.len().min(LOG_LIMIT),
        };
        let mut log = lock(&self.log);
        if log.complete_after == revision {
            return;
        }
        if log.entries.len() >= limit {
            log.entries.clear();
            log.complete_after = revision;
            return;
        }
        log.entries.push_back((revision, change.clone()));
    }

    /// The changes in (from, to]; `None` when the log does not reach back that far.
    fn logged(&self, from: Revision, to: Revision) -> Option<Vec<ChangedName>> {
        let log = lock(&self.log);
        let newer = log.entries.iter().rev().take_while(|(at, _)| *at > from);
        let wanted = newer.filter(|(at, _)| *at <= to).map(|(_, change)| change.clone());
        (from >= log.complete_after).then(|| wanted.collect())
    }

    fn update(&self, from: Revision, snapshot: &Snapshot) -> Option<Arc<Update>> {
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
        let mut update = Update {
            changed: Vec::new(),
            removed: Vec::new(),
            absent: Vec::new(),
            sotw_body: OnceLock::new(),
            delta_body: OnceLock::new(),
            from,
            to,
        };
        let nothing = TypeSnapshot::default();
        let resources = snapshot.of_type(&self.type_url).unwrap_or(&nothing);
        if from > Revision::ZERO && !resources.remembers(from) {
            return None;
        }
        match (&self.selection, self.logged(from, to)) {
            (_, Some(changes)) if from > Revision::ZERO => {
                let names: BTreeSet<_> = changes.iter().map(|change| &change.name).collect();
                names.into_iter().for_each(|name| update.compare(name, resources));
            }
            (Selection::Names(names), _) => names.iter().for_each(|name| update.compare(name, resources)),
            (Selection::All, _) => {
                let all = resources.iter().map(|(_, variants)| VariantSet::resolve(variants));
                update.changed.extend(all.filter(|variant| variant.changed_at > from).cloned());
                update.changed.sort_unstable_by(|a, b| a.name().cmp(b.name()));
                if from > Revision::ZERO {
                    update.removed.extend(resources.removed_after(from).cloned());
                    update.removed.sort_unstable_by(|a, b| a.variant.name().cmp(b.variant.name()));
                }
            }
        }
        Some(update)
    }

    fn sum(&self, snapshot: &Snapshot) -> u128 {
        let to = snapshot.revision();
        let Some(resources) = snapshot.of_type(&self.type_url) else { return 0 };
        let Selection::Names(names) = &self.selection else { return resources.sum() };
        let mut known = lock(&self.sum);
        if known.at > Revision::ZERO && known.at == to {
            return known.value;
        }
        let from_log =
            if known.at > Revision::ZERO && known.at < to { self.logged(known.at, to) } else { None };
        let value = match from_log {
            Some(changes) => changes.iter().fold(known.value, |sum, change| sum.wrapping_add(change.shift)),
            None => names
                .iter()
                .filter_map(|name| resources.get(name))
                .fold(0, |sum: u128, variants| sum.wrapping_add(variants.resolve().identity())),
        };
        *known = Sum { at: to, value };
        value
    }
}

impl Update {
    /// Whether it brings a variant of this name.
    pub(crate) fn has(&self, name: &ResourceName) -> bool {
        self.changed.binary_search_by(|variant| variant.name().cmp(name)).is_ok()
    }

    fn compare(&mut self, name: &ResourceName, resources: &TypeSnapshot) {
        match resources.get(name).map(VariantSet::resolve) {
            Some(variant) if variant.changed_at > self.from => self.changed.push(Arc::clone(variant)),
            Some(_) => {}
            None if self.from == Revision::ZERO => self.absent.push(name.clone()),
            None => {
                let removed = resources.removed(name).filter(|removed| removed.at > self.from);
                self.removed.extend(removed.cloned());
            }
        }
    }
}

/// Changes a class remembers at most; a stream that is further behind compares in full.
const LOG_LIMIT: usize = 4096;

/// Streams of one class are at the newest revision, or on the way to it from one of a few before.
const UPDATES_KEPT: usize = 4;
