//! Who wants what: the index from names to selection classes, and what a class missed.
//!
//! Streams that want the same of a type form a selection class. A commit looks up the classes of
//! each changed name, writes the name into the logs of those it concerns and wakes their streams;
//! nothing else is touched. A stream keeps a cursor, the revision up to which it was sent
//! everything, and asks its class for the [`Update`](super::update::Update) from there: made once,
//! shared by all streams of the class at the same cursor.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::by_parameters::{ByParameters, Matching};
use super::class::{Class, ClassId, ClassMember};
use super::delivery::{ClientName, Ledger};
use super::on_demand::SubscriptionIndex;
use super::snapshot::{Keys, Snapshot, TypeSnapshot};
use super::type_selection::TypeSelection;
use super::{Cache, Changed, by_name, lock};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::{self, Locator, NameSet, Selection};

pub(crate) use membership::{Membership, Position};

mod membership;

/// One stream as the cache sees it: what it wants, and how to wake it.
#[derive(Debug)]
pub struct Watch {
    cache: Arc<Cache>,
    stream: Arc<RegisteredStream>,
    /// What it status_changes, of each type it ever asked for.
    ledgers: Mutex<Vec<Arc<Ledger>>>,
}

impl Watch {
    pub(super) fn new(cache: Arc<Cache>) -> Arc<Self> {
        let id = lock(&cache.interest).next_stream_id();
        let (client, woken, waker) = (OnceLock::new(), AtomicBool::new(false), AtomicWaker::new());
        let stream = Arc::new(RegisteredStream { id, client, woken, waker });
        Arc::new(Self { cache, stream, ledgers: Mutex::default() })
    }

    /// Says whose stream it is, for [`Commit::applied`](super::Commit::applied), before the first
    /// request is handed over. The node of a stream does not change (G7), so only the first call
    /// counts.
    pub fn name_client(&self, name: ClientName) {
        _ = self.stream.client.set(name);
    }

    /// The cache it watches.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(super) fn stream(&self) -> &Arc<RegisteredStream> {
        &self.stream
    }

    /// Waits until a commit concerned this stream since the last call returned. Needs no runtime;
    /// dropping the future loses nothing. One task at a time may wait.
    pub async fn woken(&self) {
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    /// The same for a future that is written out.
    pub fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        self.stream.waker.register(cx.waker());
        // After registering: a commit in between is seen here or wakes us. Read first, as most find
        // nothing and a write costs more.
        let is_woken = self.stream.woken.load(Ordering::Acquire);
        if is_woken && self.stream.woken.swap(false, Ordering::AcqRel) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Wakes the task of the stream though no commit did, for what else it has to see to.
    pub fn wake(&self) {
        self.stream.wake();
    }

    /// Where it stands what this stream status_changes of a type.
    pub(crate) fn ledger(&self, type_url: &TypeUrl) -> Arc<Ledger> {
        let mut ledgers = lock(&self.ledgers);
        if let Some(known) = ledgers.iter().find(|known| known.type_url() == type_url) {
            return Arc::clone(known);
        }
        let ledger = Arc::new(Ledger::new(Arc::clone(&self.stream), type_url.clone()));
        ledgers.push(Arc::clone(&ledger));
        ledger
    }

    /// What is asked for as far as it matters now, and since when that is so. Asked with the index
    /// locked, so that no commit comes in between.
    fn project(&self, type_url: &TypeUrl, asked: &TypeSelection) -> (TypeSelection, Revision) {
        let snapshot = self.cache.snapshot();
        match snapshot.of_type(type_url).map(TypeSnapshot::keys) {
            Some(keys) => (asked.project(keys), keys.changed_at()),
            None => (asked.project(&Keys::default()), Revision::ZERO),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for ledger in lock(&self.ledgers).iter() {
            ledger.end();
        }
    }
}

/// How much the streams of a cache ask for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// Streams, each as often as it asks for types.
    pub streams: usize,
    /// Classes of streams that want the same of a type.
    pub classes: usize,
    /// Names that are asked for, each in every type.
    pub names: usize,
}

/// A stream that can be woken.
#[derive(Debug)]
pub(super) struct RegisteredStream {
    pub(super) id: u64,
    /// Whose it is, once its first request came.
    client: OnceLock<ClientName>,
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl RegisteredStream {
    /// Whose it is; nobody's in particular before its first request.
    pub(super) fn client(&self) -> ClientName {
        self.client.get().cloned().unwrap_or_default()
    }

    /// Only after the new snapshot can be seen: a stream that wakes earlier would find nothing and
    /// sleep again.
    pub(super) fn wake(&self) {
        // Whoever set it first wakes the task, which has not looked since.
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// The index of all classes.
#[derive(Debug, Default)]
pub(super) struct Interest {
    revision: Revision,
    last_stream: u64,
    pub(super) types: BTreeMap<TypeUrl, TypeInterest>,
    /// For a source that brings what is asked for.
    pub(super) subscriptions: Option<SubscriptionIndex>,
}

/// The classes of one type.
///
/// Names come from peers, so the tables are ordered: no choice of names makes a lookup slow.
#[derive(Debug, Default)]
pub(super) struct TypeInterest {
    by_name: BTreeMap<ResourceName, BTreeSet<ClassId>>,
    by_selection: BTreeMap<TypeSelection, ClassId>,
    /// The classes that select everything.
    wildcards: BTreeSet<ClassId>,
    by_parameters: ByParameters,
    classes: BTreeMap<ClassId, Arc<Class>>,
    pub(super) last_class: ClassId,
}

impl Interest {
    /// Keeps book of what is asked for, from an empty cache at this revision on.
    pub(super) fn begin_on_demand(&mut self, revision: Revision) {
        (self.revision, self.subscriptions) = (revision, Some(SubscriptionIndex::default()));
    }

    /// The streams that wait for these answers.
    pub(super) fn subscribers_of(&self, status_changes: &[(TypeUrl, Locator)]) -> Vec<Arc<RegisteredStream>> {
        let Some(index) = &self.subscriptions else { return Vec::new() };
        let subscribers =
            status_changes.iter().flat_map(|(type_url, locator)| index.subscribers(type_url, locator));
        subscribers.cloned().collect()
    }

    /// The streams that a variant is for, where that is known to the letter.
    pub(super) fn subscribers_to(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        constraints: &Constraints,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        self.subscriptions.iter().flat_map(|index| index.subscribers_to(type_url, name, constraints))
    }

    fn next_stream_id(&mut self) -> u64 {
        self.last_stream += 1;
        self.last_stream
    }

    /// Writes a commit into the logs of the classes it concerns; what their streams answer, in the
    /// order of the start of these, those of one stream together.
    pub(super) fn mark(
        &mut self,
        current: &Snapshot,
        next: &Snapshot,
        changed: &Changed,
    ) -> Vec<Arc<Ledger>> {
        self.revision = next.revision();
        let nothing = TypeSnapshot::default();
        let mut concerned = Vec::<&Arc<Class>>::new();
        for (type_url, interest) in &self.types {
            let (before, after) = (current.of_type(type_url), next.of_type(type_url));
            let (before, after) = (before.unwrap_or(&nothing), after.unwrap_or(&nothing));
            // G13: the first commit ends the time in which nothing was known. And when other keys
            // count than before, each stream has to see which class it belongs to.
            let all = !current.is_synced() || before.keys().changed_at() != after.keys().changed_at();
            if all {
                concerned.extend(interest.classes.values());
            }
            let variants = changed.get(type_url).map_or(&[][..], Vec::as_slice);
            let touched = interest.record(variants, before, after, self.revision);
            if !all {
                concerned.extend(touched);
            }
        }
        let mut ledgers = Vec::new();
        for class in &concerned {
            class.touch(self.revision, &mut ledgers);
        }
        // The members of one class are in order.
        if concerned.len() > 1 {
            ledgers.sort_by_key(|(stream, _)| *stream);
        }
        ledgers.into_iter().map(|(_, ledger)| ledger).collect()
    }

    pub(super) fn watched(&self) -> Watched {
        self.watched_by_type().fold(Watched::default(), |all, (_, of_type)| Watched {
            streams: all.streams + of_type.streams,
            classes: all.classes + of_type.classes,
            names: all.names + of_type.names,
        })
    }

    pub(super) fn watched_by_type(&self) -> impl Iterator<Item = (&TypeUrl, Watched)> {
        self.types.iter().map(|(type_url, interest)| {
            let members = interest.classes.values().map(|class| lock(&class.members).len());
            let (streams, classes) = (members.sum(), interest.classes.len());
            (type_url, Watched { streams, classes, names: interest.by_name.len() })
        })
    }

    #[cfg(test)]
    pub(super) fn classes(&self) -> usize {
        self.types.values().map(|interest| interest.classes.len()).sum()
    }

    /// Whether any stream asks for the type.
    pub(super) fn has_streams(&self, type_url: &TypeUrl) -> bool {
        self.types.contains_key(type_url)
    }

    /// The oldest cursor of the streams that still have to hear of a change; `None` when there is
    /// none.
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
    ) -> Arc<Class> {
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.clone(), TypeInterest::default());
        }
        let interest = self.types.get_mut(type_url).expect("was inserted above");
        let class = match interest.by_selection.get(&selection) {
            Some(id) => Arc::clone(&interest.classes[id]),
            None => interest.form(type_url, selection, self.revision),
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
            interest.dissolve(class);
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
    ) -> Arc<Class> {
        let is_alone = lock(&class.members).len() == 1;
        let interest =
            self.types.get_mut(&class.type_url).expect("a class with a member stands in the index");
        if is_alone && !interest.by_selection.contains_key(&selection) {
            // A stream that adds names one by one must not pay for all of them each time.
            return interest.alter(class, selection, self.revision);
        }
        let type_url = class.type_url.clone();
        let member = lock(&class.members).remove(&stream.id).expect("the stream is in the class it left");
        let joined = self.join(&type_url, selection, stream.id, member);
        self.leave(class, stream);
        joined
    }
}

impl TypeInterest {
    /// Writes changed variants into the logs of the classes for which something else is there now;
    /// these, each once, in order.
    fn record(
        &self,
        changed: &[(ResourceName, Constraints)],
        before: &TypeSnapshot,
        after: &TypeSnapshot,
        revision: Revision,
    ) -> Vec<&Arc<Class>> {
        let mut touched = Vec::new();
        for (name, variants) in by_name(changed) {
            let others = before.others_of(name).iter().chain(after.others_of(name));
            let of_names = std::iter::once(name).chain(others).filter_map(|asked| self.by_name.get(asked));
            let asking: Vec<_> = of_names.chain(Some(&self.wildcards)).collect();
            let candidates = self.candidates(&asking, variants);
            debug_assert!(
                asking.iter().copied().flatten().all(|id| candidates.binary_search(id).is_ok()
                    || self.classes[id].selection.shift(name, before, after).is_none()),
                "no class is left out that gets something else of {name:?}"
            );
            let classes = candidates.iter().map(|id| &self.classes[id]);
            touched.extend(classes.filter(|class| class.record(name, before, after, revision)));
        }
        touched.sort_unstable_by_key(|class| class.id);
        touched.dedup_by_key(|class| class.id);
        touched
    }

    /// Of classes that ask for a name those that some of its variants can be for; each once, in
    /// order.
    fn candidates(
        &self,
        asking: &[&BTreeSet<ClassId>],
        variants: &[(ResourceName, Constraints)],
    ) -> Vec<ClassId> {
        let count = asking.iter().map(|classes| classes.len()).sum();
        // Only who gets a variant, or had it, gets something else; so there are two ways to these,
        // and one may be much shorter.
        let mut candidates: Vec<_> = match self.matching(variants, count) {
            Some(matching) => {
                matching.iter().filter(|id| asking.iter().any(|classes| classes.contains(id))).collect()
            }
            None => asking.iter().copied().flatten().copied().collect(),
        };
        // A class may ask for everything and, under other parameters, for the name.
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }

    /// The classes that variants can be for, whatever these ask for, unless there are as many as
    /// `limit`.
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

    fn form(&mut self, type_url: &TypeUrl, selection: TypeSelection, revision: Revision) -> Arc<Class> {
        self.last_class += 1;
        let selection = selection.map(|selection| match selection {
            Selection::All => Selection::All,
            Selection::Names(names) => Selection::Names(self.interned(names)),
            Selection::AllBut(excluded, names) => Selection::AllBut(excluded, self.interned(names)),
        });
        let class = Arc::new(Class::new(self.last_class, type_url.clone(), selection, revision));
        self.by_parameters.insert(class.id, &class.selection);
        self.index(&class, &class.selection.names());
        class
    }

    /// Replaces a class by one that wants something else, at the cost of the difference.
    fn alter(&mut self, old: &Class, selection: TypeSelection, revision: Revision) -> Arc<Class> {
        self.by_selection.remove(&old.selection);
        self.wildcards.remove(&old.id);
        let (before, after) = (old.selection.names(), selection.names());
        let removed = subscription::difference(&before, &after);
        let added = self.interned(subscription::difference(&after, &before).into_iter().collect());
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
        self.index(&class, added.as_slice());
        class
    }

    fn dissolve(&mut self, class: &Class) {
        self.by_selection.remove(&class.selection);
        self.wildcards.remove(&class.id);
        self.classes.remove(&class.id);
        self.unindex(class.id, &class.selection.names());
        self.by_parameters.remove(class.id, &class.selection);
    }

    fn index(&mut self, class: &Arc<Class>, names: &[ResourceName]) {
        for name in names {
            self.by_name.entry(name.clone()).or_default().insert(class.id);
        }
        if class.selection.is_wildcard() {
            self.wildcards.insert(class.id);
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

    /// The same names with the strings that the index already holds.
    fn interned(&self, names: NameSet) -> NameSet {
        let known = |name: &ResourceName| self.by_name.get_key_value(name).map(|(known, _)| known.clone());
        // A set that has these strings already is the one that other classes share.
        let known: Vec<_> = names.iter().map(known).collect();
        let is_same = |(name, known): (&ResourceName, &Option<ResourceName>)| {
            known.as_ref().is_none_or(|known| known.is_same(name))
        };
        if names.iter().zip(&known).all(is_same) {
            return names;
        }
        let known = names.iter().zip(known).map(|(name, known)| known.unwrap_or_else(|| name.clone()));
        known.collect()
    }
}

#[cfg(test)]
mod tests;
