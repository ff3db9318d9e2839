//! The index from names to selection classes, which tells a commit the streams that it affects.
//!
//! Streams with the same selection of a type form a selection class. A commit looks up the classes
//! of each changed name, records the name in the logs of the classes that it affects, and wakes
//! their streams. It touches nothing else. A stream has a cursor, the revision up to which it was
//! sent everything. It gets the [`Update`](super::update::Update) from its cursor from its class.
//! An update is made once, for all streams of the class with the same cursor.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::by_parameters::{ByParameters, Matching};
use super::class::{Class, ClassId, ClassMember};
use super::delivery::{ClientName, Ledger};
use super::id_set::IdSet;
use super::on_demand::SubscriptionIndex;
use super::snapshot::{Keys, NO_RESOURCES, Snapshot, TypeSnapshot};
use super::type_selection::TypeSelection;
use super::views::ViewId;
use super::{Cache, Changed, by_name, lock};
use crate::constraint::Constraints;
use crate::hash::HashMap;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::{self, Locator, NameSet, Selection};

pub(crate) use membership::{Membership, Position};

mod membership;

/// One stream as the cache sees it: its selections, and how to wake it.
#[derive(Debug)]
pub struct Watch {
    cache: Arc<Cache>,
    stream: Arc<RegisteredStream>,
    /// One ledger for each type that the stream ever subscribed to.
    ledgers: Mutex<Vec<Arc<Ledger>>>,
}

impl Watch {
    pub(super) fn new(cache: Arc<Cache>) -> Arc<Self> {
        let id = lock(&cache.interest).next_stream_id();
        let (client, woken, waker) = (OnceLock::new(), AtomicBool::new(false), AtomicWaker::new());
        let (view, is_lost, parameters) = (AtomicU32::new(0), AtomicBool::new(false), OnceLock::new());
        let (keeps_stable, has_joined) = (AtomicBool::new(false), AtomicBool::new(false));
        let stream = RegisteredStream {
            id,
            view,
            keeps_stable,
            has_joined,
            is_lost,
            client,
            parameters,
            woken,
            waker,
        };
        let stream = Arc::new(stream);
        Arc::new(Self { cache, stream, ledgers: Mutex::default() })
    }

    /// Sets the client of the stream, for [`Commit::applied`](super::Commit::applied). Call it
    /// before the stream handles its first request. The node of a stream does not change (G7), so
    /// only the first call has an effect.
    pub fn name_client(&self, name: ClientName) {
        _ = self.stream.client.set(name);
    }

    /// Sets the parameters that were derived from the node, by which an
    /// [audience](super::Audience) may choose the client. As
    /// [`name_client`](Self::name_client), before the first request.
    pub fn describe_client(&self, parameters: Parameters) {
        _ = self.stream.parameters.set(parameters);
    }

    /// The stream tries no candidate: it sees what is stable. For streams that end before they could
    /// answer, such as polls. Call it before the first request.
    pub fn keep_stable(&self) {
        self.stream.keeps_stable.store(true, Ordering::Relaxed);
    }

    /// The cache that the stream reads.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(super) fn stream(&self) -> &Arc<RegisteredStream> {
        &self.stream
    }

    /// The number of the stream in its cache.
    pub(super) fn id(&self) -> u64 {
        self.stream.id
    }

    /// Whether the state that the stream saw is gone, so that nobody knows what its client lacks.
    pub(crate) fn is_lost(&self) -> bool {
        self.stream.is_lost.load(Ordering::Relaxed)
    }

    /// Waits for a commit that affects this stream, since the last call returned. Needs no runtime;
    /// dropping the future loses nothing. One task at a time may wait.
    pub async fn woken(&self) {
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    /// As [`woken`](Self::woken), for a future that is implemented by hand.
    pub fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        self.stream.waker.register(cx.waker());
        // The flag is read after the waker is registered: a commit between the two steps is either
        // seen here or wakes the task. The flag is rarely set, and a load costs less than a swap.
        let is_woken = self.stream.woken.load(Ordering::Acquire);
        if is_woken && self.stream.woken.swap(false, Ordering::AcqRel) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Wakes the task of the stream without a commit, for work of another kind.
    pub fn wake(&self) {
        self.stream.wake();
    }

    /// The ledgers of all types that the stream ever subscribed to.
    pub(super) fn ledgers(&self) -> Vec<Arc<Ledger>> {
        lock(&self.ledgers).clone()
    }

    /// The ledger of this stream for a type.
    pub(crate) fn ledger(&self, type_url: &TypeUrl) -> Arc<Ledger> {
        let mut ledgers = lock(&self.ledgers);
        if let Some(known) = ledgers.iter().find(|known| known.type_url() == type_url) {
            return Arc::clone(known);
        }
        let ledger = Arc::new(Ledger::new(Arc::clone(&self.stream), type_url.clone()));
        ledgers.push(Arc::clone(&ledger));
        ledger
    }

    /// The selection without the parameters that no constraints use now, and the revision at which
    /// the used keys changed last. The caller holds the lock of the index, so that no commit comes
    /// in between.
    fn project(
        &self,
        selection: &TypeSelection,
        type_url: &TypeUrl,
        state: &Snapshot,
    ) -> (TypeSelection, Revision) {
        match state.of_type(type_url).map(TypeSnapshot::keys) {
            Some(keys) => (selection.project(keys, state.view()), keys.changed_at()),
            None => (selection.project(&Keys::default(), state.view()), Revision::ZERO),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for ledger in lock(&self.ledgers).iter() {
            ledger.end();
        }
        if self.stream.view() != ViewId::STABLE {
            lock(&self.cache.views).leave(&self.stream);
        }
    }
}

/// How many streams, classes and names subscribe to a cache or to one type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Streams, each counted once per type that it subscribes to.
    pub streams: usize,
    /// Selection classes: streams with the same selection of a type.
    pub classes: usize,
    /// Names that streams list, each counted once per type.
    pub names: usize,
}

/// A stream that commits can wake.
#[derive(Debug)]
pub(super) struct RegisteredStream {
    pub(super) id: u64,
    /// The number of the view that it sees. Its classes follow when it runs.
    pub(super) view: AtomicU32,
    /// It tries no candidate.
    pub(super) keeps_stable: AtomicBool,
    /// Whether it ever subscribed to anything.
    has_joined: AtomicBool,
    /// Its view is gone, so nobody knows what it lacks.
    pub(super) is_lost: AtomicBool,
    /// The client of the stream; set before its first request is handled.
    client: OnceLock<ClientName>,
    parameters: OnceLock<Parameters>,
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl RegisteredStream {
    /// The client of the stream; without a name before the first request.
    pub(super) fn client(&self) -> ClientName {
        self.client.get().cloned().unwrap_or_default()
    }

    /// The parameters that were derived from its node.
    pub(super) fn parameters(&self) -> Parameters {
        self.parameters.get().cloned().unwrap_or_default()
    }

    pub(super) fn view(&self) -> ViewId {
        ViewId(self.view.load(Ordering::SeqCst))
    }

    /// Call this only after the new snapshot is visible: a stream that wakes earlier would find
    /// nothing new and sleep again.
    pub(super) fn wake(&self) {
        // When the flag was set already, the task was woken and has not run since.
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// The index of all classes.
#[derive(Debug, Default)]
pub(super) struct Interest {
    last_stream: u64,
    pub(super) types: BTreeMap<TypeUrl, TypeInterest>,
    /// The exact locators of all streams; only in a cache on demand.
    pub(super) subscriptions: Option<SubscriptionIndex>,
}

/// The classes of one type.
///
/// Selections come from peers, so their map is ordered: no choice of them makes a look-up slow.
#[derive(Debug, Default)]
pub(super) struct TypeInterest {
    /// Names come from peers too, but this table is seeded. A client that subscribes looks up each
    /// of its names here. In an ordered map, each look-up would read the texts of some 17 other
    /// names among 100,000.
    by_name: HashMap<ResourceName, IdSet>,
    by_selection: BTreeMap<TypeSelection, ClassId>,
    /// The classes with a wildcard.
    wildcards: IdSet,
    by_parameters: ByParameters,
    classes: BTreeMap<ClassId, Arc<Class>>,
    pub(super) last_class: ClassId,
}

impl Interest {
    /// The index of a cache on demand.
    pub(super) fn on_demand(subscriptions: SubscriptionIndex) -> Self {
        Self { subscriptions: Some(subscriptions), ..Self::default() }
    }

    /// The streams that subscribe to these locators, whose status changed.
    pub(super) fn subscribers_of(&self, status_changes: &[(TypeUrl, Locator)]) -> Vec<Arc<RegisteredStream>> {
        let Some(index) = &self.subscriptions else { return Vec::new() };
        let subscribers =
            status_changes.iter().flat_map(|(type_url, locator)| index.subscribers(type_url, locator));
        subscribers.cloned().collect()
    }

    fn next_stream_id(&mut self) -> u64 {
        self.last_stream += 1;
        self.last_stream
    }

    /// Records a commit to a view in the logs of the classes that it affects. Returns the ledgers of their
    /// streams, in the order in which the streams began; those of one stream are adjacent.
    pub(super) fn mark(&self, current: &Snapshot, next: &Snapshot, changed: &Changed) -> Vec<Arc<Ledger>> {
        let (view, revision) = (next.view(), next.revision());
        let mut affected = Vec::<&Arc<Class>>::new();
        for (type_url, interest) in &self.types {
            let [before, after] =
                [current, next].map(|snapshot| snapshot.of_type(type_url).unwrap_or(&NO_RESOURCES));
            // The first commit affects all classes: from now on a missing resource is absent (G13). So
            // does the end of a time in which the source lacked changes.
            // A change of the used keys affects all classes too: each stream has to find the class
            // that it belongs to now.
            let has_begun = current.has_commit() && current.is_synced() == next.is_synced();
            let all = !has_begun || before.keys().changed_at() != after.keys().changed_at();
            if all {
                affected.extend(interest.classes().filter(|class| class.selection.view == view));
            }
            let variants = changed.get(type_url).map_or(&[][..], Vec::as_slice);
            let touched = interest.record(variants, (before, after), view, revision);
            if !all {
                affected.extend(touched);
            }
        }
        let mut ledgers = Vec::new();
        for class in &affected {
            class.touch(revision, &mut ledgers);
        }
        // The members of a single class are in order already.
        if affected.len() > 1 {
            ledgers.sort_by_key(|(stream, _)| *stream);
        }
        ledgers.into_iter().map(|(_, ledger)| ledger).collect()
    }

    pub(super) fn subscription_counts(&self) -> SubscriptionCounts {
        self.subscription_counts_by_type().fold(SubscriptionCounts::default(), |all, (_, of_type)| {
            SubscriptionCounts {
                streams: all.streams + of_type.streams,
                classes: all.classes + of_type.classes,
                names: all.names + of_type.names,
            }
        })
    }

    pub(super) fn subscription_counts_by_type(&self) -> impl Iterator<Item = (&TypeUrl, SubscriptionCounts)> {
        self.types.iter().map(|(type_url, interest)| {
            let members = interest.classes.values().map(|class| lock(&class.members).len());
            let (streams, classes) = (members.sum(), interest.classes.len());
            (type_url, SubscriptionCounts { streams, classes, names: interest.by_name.len() })
        })
    }

    #[cfg(test)]
    pub(super) fn classes(&self) -> usize {
        self.types.values().map(|interest| interest.classes.len()).sum()
    }

    /// Whether any stream subscribes to the type.
    pub(super) fn has_streams(&self, type_url: &TypeUrl) -> bool {
        self.types.contains_key(type_url)
    }

    /// The oldest cursor of the streams that missed a change; `None` when no stream did.
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

    fn join(
        &mut self,
        type_url: &TypeUrl,
        selection: TypeSelection,
        stream: u64,
        member: ClassMember,
        revision: Revision,
    ) -> Arc<Class> {
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.clone(), TypeInterest::default());
        }
        let interest = self.types.get_mut(type_url).expect("the type was inserted above");
        let class = match interest.by_selection.get(&selection) {
            Some(id) => Arc::clone(&interest.classes[id]),
            None => interest.add_class(type_url, selection, revision),
        };
        lock(&class.members).insert(stream, member);
        class
    }

    fn leave(&mut self, class: &Class, stream: &RegisteredStream) {
        let is_empty = {
            let mut members = lock(&class.members);
            members.remove(&stream.id);
            members.is_empty()
        };
        if is_empty && let Some(interest) = self.types.get_mut(&class.type_url) {
            interest.remove_class(class);
            if interest.classes.is_empty() {
                self.types.remove(&class.type_url);
            }
        }
    }

    fn reselect(
        &mut self,
        class: &Arc<Class>,
        stream: &RegisteredStream,
        selection: TypeSelection,
        revision: Revision,
    ) -> Arc<Class> {
        let is_alone = lock(&class.members).len() == 1;
        let interest = self.types.get_mut(&class.type_url).expect("a class with a member is in the index");
        if is_alone && !interest.by_selection.contains_key(&selection) {
            // Replace the class of a stream that is alone in it, at the cost of the changed names.
            // So a stream that adds names one by one does not pay for all of them each time.
            return interest.replace_class(class, selection, revision);
        }
        let type_url = class.type_url.clone();
        let member = lock(&class.members).remove(&stream.id).expect("the stream is in the class it left");
        let joined = self.join(&type_url, selection, stream.id, member, revision);
        self.leave(class, stream);
        joined
    }
}

impl TypeInterest {
    /// The classes that may select a resource, by its name or by another one; each once.
    pub(super) fn selecting(&self, name: &ResourceName, resources: &TypeSnapshot) -> Vec<&Arc<Class>> {
        let names = std::iter::once(name).chain(resources.other_names().of(name));
        let of_names = names.filter_map(|listed| self.by_name.get(listed));
        let ids: BTreeSet<_> = of_names.chain(Some(&self.wildcards)).flat_map(IdSet::iter).collect();
        ids.into_iter().map(|id| &self.classes[&id]).collect()
    }

    /// All classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = &Arc<Class>> {
        self.classes.values()
    }

    /// Records changed variants in the logs of the classes that they affect. Returns these classes,
    /// each once, in order.
    fn record<'s>(
        &'s self,
        changed: &'s [(ResourceName, Constraints)],
        (before, after): (&'s TypeSnapshot, &'s TypeSnapshot),
        view: ViewId,
        revision: Revision,
    ) -> Vec<&'s Arc<Class>> {
        let mut touched = Vec::new();
        for (name, candidates) in self.candidates_of(changed, (before, after), Some(view)) {
            touched
                .extend(candidates.into_iter().filter(|class| class.record(name, before, after, revision)));
        }
        touched.sort_unstable_by_key(|class| class.id);
        touched.dedup_by_key(|class| class.id);
        touched
    }

    /// The classes of all views that changed variants affect, for each name.
    pub(super) fn affected<'s>(
        &'s self,
        changed: &'s [(ResourceName, Constraints)],
        (before, after): (&'s TypeSnapshot, &'s TypeSnapshot),
    ) -> Vec<(&'s ResourceName, Vec<&'s Arc<Class>>)> {
        let candidates = self.candidates_of(changed, (before, after), None);
        let affected = candidates.map(|(name, mut classes)| {
            classes.retain(|class| class.selection.shift(name, before, after).is_some());
            (name, classes)
        });
        affected.collect()
    }

    /// The classes of one view, or of all, that changed variants may affect, for each name.
    fn candidates_of<'s>(
        &'s self,
        changed: &'s [(ResourceName, Constraints)],
        (before, after): (&'s TypeSnapshot, &'s TypeSnapshot),
        view: Option<ViewId>,
    ) -> impl Iterator<Item = (&'s ResourceName, Vec<&'s Arc<Class>>)> {
        let is_seen = move |class: &Class| view.is_none_or(|view| class.selection.view == view);
        let of_name = move |(name, variants): (&'s ResourceName, &'s [(ResourceName, Constraints)])| {
            let others = before.other_names().of(name).iter().chain(after.other_names().of(name));
            let of_names = std::iter::once(name).chain(others).filter_map(|listed| self.by_name.get(listed));
            let selecting: Vec<_> = of_names.chain(Some(&self.wildcards)).collect();
            let candidates = self.candidates(&selecting, variants);
            debug_assert!(
                selecting.iter().flat_map(|classes| classes.iter()).all(|id| candidates
                    .binary_search(&id)
                    .is_ok()
                    || !is_seen(&self.classes[&id])
                    || self.classes[&id].selection.shift(name, before, after).is_none()),
                "the candidates include each class that a change of {name:?} affects"
            );
            let classes = candidates.iter().map(|id| &self.classes[id]);
            (name, classes.filter(|class| is_seen(class)).collect())
        };
        by_name(changed).map(of_name)
    }

    /// The classes that select a name and that some of its changed variants can match; each once,
    /// in order.
    fn candidates(&self, selecting: &[&IdSet], variants: &[(ResourceName, Constraints)]) -> Vec<ClassId> {
        let count = selecting.iter().map(|classes| classes.len()).sum();
        // An affected class both selects the name and matches a changed variant. So the search can
        // begin with either list, and one of them may be much shorter.
        let mut candidates: Vec<_> = match self.matching(variants, count) {
            Some(matching) => {
                matching.iter().filter(|id| selecting.iter().any(|classes| classes.contains(*id))).collect()
            }
            None => selecting.iter().flat_map(|classes| classes.iter()).collect(),
        };
        // A class may have a wildcard and list the name under other parameters.
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }

    /// The classes that can match one of the variants, whatever names they select; `None` when
    /// there are `limit` or more.
    fn matching(&self, variants: &[(ResourceName, Constraints)], limit: usize) -> Option<Matching<'_>> {
        if variants.len() >= limit {
            return None;
        }
        let mut all = Matching::default();
        for (_, constraints) in variants {
            all = all.and(self.by_parameters.matching(constraints.formula())?);
            if all.len() >= limit {
                return None;
            }
        }
        Some(all)
    }

    fn add_class(&mut self, type_url: &TypeUrl, selection: TypeSelection, revision: Revision) -> Arc<Class> {
        self.last_class += 1;
        let id = self.last_class;
        let selection = selection.map(|selection| match selection {
            Selection::All => Selection::All,
            Selection::Names(names) => Selection::Names(self.index_names(id, names)),
            Selection::AllBut(excluded, names) => Selection::AllBut(excluded, self.index_names(id, names)),
            Selection::Spaces(spaces, names) => Selection::Spaces(spaces, self.index_names(id, names)),
        });
        let class = Arc::new(Class::new(id, type_url.clone(), selection, revision));
        self.by_parameters.insert(class.id, &class.selection);
        self.index(&class);
        class
    }

    /// Replaces a class by one with another selection. Costs O(names that differ).
    fn replace_class(&mut self, old: &Class, selection: TypeSelection, revision: Revision) -> Arc<Class> {
        self.by_selection.remove(&old.selection);
        self.wildcards.remove(old.id);
        let (before, after) = (old.selection.names(), selection.names());
        let removed = subscription::difference(&before, &after);
        let added = subscription::difference(&after, &before).into_iter().collect();
        let added = self.index_names(old.id, added);
        let selection = match (selection.single(), old.selection.single()) {
            (Some(_), Some(old)) => {
                selection.map(|selection| selection.rebuilt(old, added.as_slice(), &removed))
            }
            _ => selection,
        };
        let class = Arc::new(Class::new(old.id, old.type_url.clone(), selection, revision));
        std::mem::swap(&mut *lock(&class.members), &mut *lock(&old.members));
        self.unindex(old.id, &removed);
        self.by_parameters.replace(old.id, &old.selection, &class.selection);
        self.index(&class);
        class
    }

    fn remove_class(&mut self, class: &Class) {
        self.by_selection.remove(&class.selection);
        self.wildcards.remove(class.id);
        self.classes.remove(&class.id);
        self.unindex(class.id, &class.selection.names());
        self.by_parameters.remove(class.id, &class.selection);
    }

    /// Adds a class whose names are in the index already.
    fn index(&mut self, class: &Arc<Class>) {
        if class.selection.is_wildcard() {
            self.wildcards.insert(class.id);
        }
        self.by_selection.insert(class.selection.clone(), class.id);
        self.classes.insert(class.id, Arc::clone(class));
    }

    /// Adds a class to these names. Returns the same names, with the strings of the index where it
    /// has them.
    fn index_names(&mut self, id: ClassId, names: NameSet) -> NameSet {
        let mut is_same = true;
        for name in &names {
            match self.by_name.entry(name.clone()) {
                Entry::Occupied(mut known) => {
                    is_same &= known.key().is_same(name);
                    known.get_mut().insert(id);
                }
                Entry::Vacant(new) => _ = new.insert(IdSet::One(id)),
            }
        }
        // A set that uses these strings already is shared with other classes: keep it.
        if is_same {
            return names;
        }
        let known = |name: &ResourceName| self.by_name.get_key_value(name).map(|(known, _)| known.clone());
        names.iter().filter_map(known).collect()
    }

    fn unindex(&mut self, id: ClassId, names: &[ResourceName]) {
        for name in names {
            if let Some(ids) = self.by_name.get_mut(name) {
                ids.remove(id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        // A table gives no memory back by itself. Most of its names have left since it grew, so this
        // costs no more than their leaving.
        if self.by_name.capacity() > 8 * self.by_name.len().max(SMALL_TABLE) {
            self.by_name.shrink_to(2 * self.by_name.len());
        }
    }
}

/// A table of names for so many is not made smaller.
const SMALL_TABLE: usize = 128;

#[cfg(test)]
mod tests;
