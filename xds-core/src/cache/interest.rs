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
use super::{Cache, ChangedNames, lock};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::server::Body;
use crate::subscription::{self, Selection};
use crate::variants::Variant;

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
    pub(crate) fn join(
        self: &Arc<Self>,
        type_url: &TypeUrl,
        selection: Selection,
        parameters: &Parameters,
    ) -> Membership {
        let cursor = Arc::new(AtomicU64::new(0));
        let member = Member { stream: Arc::clone(&self.stream), cursor: Arc::clone(&cursor) };
        let mut interest = lock(&self.cache.interest);
        let (projected, keys_at) = self.project(type_url, parameters);
        let class = interest.join(type_url, Wanted { selection, parameters: projected }, member);
        let parameters = parameters.clone();
        Membership { watch: Arc::clone(self), class, cursor, parameters, keys_at }
    }

    /// The parameters as far as they matter now, and since when that is so. Asked with the index locked, so that no
    /// commit comes in between.
    fn project(&self, type_url: &TypeUrl, parameters: &Parameters) -> (Parameters, Revision) {
        let snapshot = self.cache.snapshot();
        match snapshot.of_type(type_url).map(TypeSnapshot::keys) {
            Some(keys) => (keys.project(parameters), keys.changed_at()),
            None => (Parameters::new(), Revision::ZERO),
        }
    }
}

/// A stream's place in the class of its selection of one type; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Membership {
    watch: Arc<Watch>,
    class: Arc<Class>,
    cursor: Arc<AtomicU64>,
    /// All parameters of the subscription; those of the class are their projection.
    parameters: Parameters,
    /// The keys of the type that the projection was made for.
    keys_at: Revision,
}

impl Membership {
    /// Moves to another selection of the same type and keeps the cursor.
    pub(crate) fn select(&mut self, selection: Selection) {
        if self.class.wanted.selection != selection {
            self.reselect(Some(selection));
        }
    }

    /// Follows a change of the keys that constraints of the type name: streams that were alike may no longer be.
    pub(crate) fn refresh(&mut self, snapshot: &Snapshot) {
        let keys_at = snapshot.of_type(&self.class.type_url).map(|resources| resources.keys().changed_at());
        if keys_at.is_some_and(|keys_at| keys_at > self.keys_at) {
            self.reselect(None);
        }
    }

    fn reselect(&mut self, selection: Option<Selection>) {
        let mut interest = lock(&self.watch.cache.interest);
        let (parameters, keys_at) = self.watch.project(&self.class.type_url, &self.parameters);
        let selection = selection.unwrap_or_else(|| self.class.wanted.selection.clone());
        let wanted = Wanted { selection, parameters };
        if keys_at == self.keys_at && self.class.is_up_to_date(&self.cursor) {
            self.cursor.fetch_max(interest.revision.0, Ordering::Relaxed);
        }
        self.keys_at = keys_at;
        if wanted != self.class.wanted {
            self.class = interest.reselect(&self.class, &self.watch.stream, wanted);
        }
    }

    /// What it selects, in the strings of the index, for the subscription to share.
    pub(crate) fn selection(&self) -> &Selection {
        &self.class.wanted.selection
    }

    /// The variant of a name that this subscription gets.
    pub(crate) fn find(&self, name: &ResourceName, snapshot: &Snapshot) -> Option<Arc<Variant>> {
        snapshot.of_type(&self.class.type_url)?.find(name, &self.class.wanted.parameters).cloned()
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
        // A snapshot is seen after its commit was marked, so who is up to date now is so at the snapshot.
        if self.class.is_up_to_date(&self.cursor) {
            self.advance(snapshot.revision());
        }
        self.class.update(self.cursor(), snapshot)
    }

    /// An update that brings nothing, for who is not to move.
    pub(crate) fn no_update(&self) -> Arc<Update> {
        Arc::new(Update::new(self.cursor(), self.cursor()))
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

/// A stream that can be woken.
#[derive(Debug)]
pub(super) struct Stream {
    id: u64,
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl Stream {
    /// Only after the new snapshot can be seen: a stream that wakes earlier would find nothing and sleep again.
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What a stream wants of a type, as far as it matters: equal wants form a class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    selection: Selection,
    /// Projected on the keys that constraints name.
    parameters: Parameters,
}

/// A name whose variant changed for a class, and by how much the sum of identities moved.
#[derive(Debug, Clone)]
struct ChangedName {
    name: ResourceName,
    shift: u128,
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
    by_wanted: BTreeMap<Wanted, ClassId>,
    /// The classes that select everything.
    wildcards: BTreeSet<ClassId>,
    classes: BTreeMap<ClassId, Arc<Class>>,
    pub(super) last_class: ClassId,
}

type ClassId = u64;

/// The streams with one selection of one type.
#[derive(Debug)]
struct Class {
    id: ClassId,
    type_url: TypeUrl,
    wanted: Wanted,
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
        current: &Snapshot,
        next: &Snapshot,
        changed: &ChangedNames,
    ) -> Vec<Arc<Stream>> {
        self.revision = next.revision();
        let nothing = TypeSnapshot::default();
        let mut concerned = Vec::<&Arc<Class>>::new();
        for (type_url, interest) in &self.types {
            let (before, after) = (current.of_type(type_url), next.of_type(type_url));
            let (before, after) = (before.unwrap_or(&nothing), after.unwrap_or(&nothing));
            // G13: the first commit ends the time in which nothing was known. And when other keys count than before,
            // each stream has to see which class it belongs to.
            let all = !current.is_synced() || before.keys().changed_at() != after.keys().changed_at();
            let mut touched = BTreeSet::new();
            for name in changed.get(type_url).into_iter().flatten() {
                let by_name = interest.by_name.get(name).into_iter().flatten();
                for id in by_name.chain(&interest.wildcards) {
                    if interest.classes[id].record(name, before, after, self.revision) {
                        touched.insert(id);
                    }
                }
            }
            if all {
                touched.extend(interest.classes.keys());
            }
            concerned.extend(touched.into_iter().map(|id| &interest.classes[id]));
        }
        let mut woken = BTreeMap::new();
        for class in concerned {
            let members = lock(&class.members);
            for member in members.values() {
                // Whoever missed nothing so far is one commit behind now, wherever its cursor stood: so all of them
                // share one update.
                if class.is_up_to_date(&member.cursor) {
                    member.cursor.fetch_max(self.revision.0 - 1, Ordering::Relaxed);
                }
                woken.insert(member.stream.id, Arc::clone(&member.stream));
            }
            class.touched_at.store(self.revision.0, Ordering::Release);
        }
        woken.into_values().collect()
    }

    #[cfg(test)]
    pub(super) fn classes(&self) -> usize {
        self.types.values().map(|interest| interest.classes.len()).sum()
    }

    /// Whether any stream asks for the type.
    pub(super) fn has_streams(&self, type_url: &TypeUrl) -> bool {
        self.types.contains_key(type_url)
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

    fn join(&mut self, type_url: &TypeUrl, wanted: Wanted, member: Member) -> Arc<Class> {
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.clone(), TypeInterest::default());
        }
        let interest = self.types.get_mut(type_url).expect("was inserted above");
        let class = match interest.by_wanted.get(&wanted) {
            Some(id) => Arc::clone(&interest.classes[id]),
            None => interest.form(type_url, wanted, self.revision),
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

    fn reselect(&mut self, class: &Arc<Class>, stream: &Stream, wanted: Wanted) -> Arc<Class> {
        let is_alone = lock(&class.members).len() == 1;
        let interest =
            self.types.get_mut(&class.type_url).expect("a class with a member stands in the index");
        if is_alone && !interest.by_wanted.contains_key(&wanted) {
            // A stream that adds names one by one must not pay for all of them each time.
            return interest.alter(class, wanted, self.revision);
        }
        let type_url = class.type_url.clone();
        let member = lock(&class.members).remove(&stream.id).expect("the stream is in the class it left");
        let joined = self.join(&type_url, wanted, member);
        self.leave(class, stream);
        joined
    }
}

impl TypeInterest {
    fn form(&mut self, type_url: &TypeUrl, wanted: Wanted, revision: Revision) -> Arc<Class> {
        self.last_class += 1;
        let selection = match wanted.selection {
            Selection::All => Selection::All,
            Selection::Names(names) => {
                Selection::Names(self.interned(names.iter().cloned().collect()).into_iter().collect())
            }
        };
        let wanted = Wanted { selection, parameters: wanted.parameters };
        let class = Arc::new(Class::new(self.last_class, type_url.clone(), wanted, revision));
        self.index(&class, class.wanted.selection.names());
        class
    }

    /// Replaces a class by one that wants something else, at the cost of the difference.
    fn alter(&mut self, old: &Class, wanted: Wanted, revision: Revision) -> Arc<Class> {
        self.by_wanted.remove(&old.wanted);
        self.wildcards.remove(&old.id);
        let (before, after) = (old.wanted.selection.names(), wanted.selection.names());
        let removed = subscription::difference(before, after);
        let added = self.interned(subscription::difference(after, before));
        let selection = wanted.selection.rebuilt(&old.wanted.selection, &added, &removed);
        let wanted = Wanted { selection, parameters: wanted.parameters };
        let class = Arc::new(Class::new(old.id, old.type_url.clone(), wanted, revision));
        std::mem::swap(&mut *lock(&class.members), &mut *lock(&old.members));
        self.unindex(old.id, &removed);
        self.index(&class, &added);
        class
    }

    fn dissolve(&mut self, class: &Class) {
        self.by_wanted.remove(&class.wanted);
        self.wildcards.remove(&class.id);
        self.classes.remove(&class.id);
        self.unindex(class.id, class.wanted.selection.names());
    }

    fn index(&mut self, class: &Arc<Class>, names: &[ResourceName]) {
        for name in names {
            self.by_name.entry(name.clone()).or_default().insert(class.id);
        }
        if class.wanted.selection == Selection::All {
            self.wildcards.insert(class.id);
        }
        self.by_wanted.insert(class.wanted.clone(), class.id);
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

    /// The same names with the strings that the index already holds.
    fn interned(&self, names: Vec<ResourceName>) -> Vec<ResourceName> {
        let known = |name| self.by_name.get_key_value(&name).map(|(known, _)| known.clone()).unwrap_or(name);
        names.into_iter().map(known).collect()
    }
}

impl Class {
    fn new(id: ClassId, type_url: TypeUrl, wanted: Wanted, revision: Revision) -> Self {
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
    fn is_up_to_date(&self, cursor: &AtomicU64) -> bool {
        let cursor = cursor.load(Ordering::Relaxed);
        cursor > 0 && cursor >= self.touched_at.load(Ordering::Acquire)
    }

    /// Notes that a name changed; whether it did for this class.
    fn record(
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

    fn sum(&self, snapshot: &Snapshot) -> u128 {
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
    fn new(from: Revision, to: Revision) -> Self {
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
