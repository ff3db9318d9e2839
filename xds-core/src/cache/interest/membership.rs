//! The membership of a stream in a selection class, with its cursor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Watch;
use crate::cache::Cache;
use crate::cache::class::{Class, ClassMember};
use crate::cache::lock;
use crate::cache::snapshot::{NO_RESOURCES, Snapshot};
use crate::cache::type_selection::TypeSelection;
use crate::cache::update::Update;
use crate::cache::views::ViewId;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::{Locators, NameSet, Selection, Subscription};
use crate::variants::Variant;

/// The membership of a stream in the class of its selection of one type. Dropping it leaves the
/// class.
#[derive(Debug)]
pub(crate) struct Membership {
    watch: Arc<Watch>,
    position: Position,
    /// The selection with all parameters; the class has only those that constraints use.
    selection: TypeSelection,
    /// The locators of this stream in the subscription index; empty unless the cache is on demand.
    indexed: Locators,
    /// The revision of the keys that the selection of the class was made with.
    keys_at: Revision,
}

impl Watch {
    /// Joins the class with this selection. The cursor is zero, so the first update has all
    /// resources that the class selects.
    pub(crate) fn join(self: &Arc<Self>, type_url: &TypeUrl, selection: TypeSelection) -> Membership {
        let cursor = Arc::new(AtomicU64::new(0));
        let ledger = self.ledger(type_url);
        let member = ClassMember { cursor: Arc::clone(&cursor), ledger };
        let mut interest = lock(&self.cache.interest);
        let mut views = lock(&self.cache.views);
        // A stream that subscribes for the first time may be one of a candidate.
        if !self.stream.has_joined.swap(true, Ordering::Relaxed) {
            _ = views.place(&self.stream);
        }
        views.note_subscription(&member.ledger);
        drop(views);
        let state = self.cache.state(self.stream.view());
        let (projected, keys_at) = self.project(&selection, type_url, &state);
        let class = interest.join(type_url, projected, self.stream.id, member, state.revision());
        drop(interest);
        let position = Position { class, cursor };
        let indexed = Locators::default();
        let mut membership = Membership { watch: Arc::clone(self), position, selection, indexed, keys_at };
        membership.share();
        membership
    }
}

impl Membership {
    /// Reports the exact locators of a subscription to the source of a cache on demand.
    pub(crate) fn index_subscription(&mut self, subscription: &Subscription) {
        let cache = &self.watch.cache;
        let mut interest = lock(&cache.interest);
        let Some(index) = &mut interest.subscriptions else { return };
        let indexed = subscription.locators();
        let type_url = &self.position.class.type_url;
        let (change, stream) = ((&self.indexed, &indexed), &self.watch.stream);
        // The lock keeps the snapshot the newest one.
        cache.read(|stable| index.change(type_url, stream, change, stable, &cache.on_demand_waker));
        self.indexed = indexed;
    }

    /// Continues another membership of this stream, which stays for removals alone: a stream is in the
    /// index once.
    pub(crate) fn take_index_of(&mut self, former: &mut Self) {
        self.indexed = std::mem::take(&mut former.indexed);
    }

    /// Replaces the selection, of the same type, and keeps the cursor.
    pub(crate) fn select(&mut self, selection: TypeSelection) {
        if self.selection != selection {
            self.selection = selection;
            self.reselect(self.position.class.selection.view);
        }
    }

    /// Joins another class if constraints of the type use other keys than before: streams of one
    /// class may then differ in parameters that matter now. Also if the stream sees another view
    /// now. Returns whether the class changed.
    pub(crate) fn refresh(&mut self, snapshot: &Snapshot) -> bool {
        let keys_at =
            snapshot.of_type(&self.position.class.type_url).map(|resources| resources.keys().changed_at());
        let view = snapshot.view();
        let has_changed = view != self.position.class.selection.view
            || keys_at.is_some_and(|keys_at| keys_at > self.keys_at);
        // A commit after this snapshot woke only the streams of the classes at that time. The class
        // that this stream left may not select what the commit changed.
        if has_changed && self.reselect(view) > snapshot.revision() {
            self.watch.wake();
        }
        has_changed
    }

    /// Joins the class of the selection. Returns the revision of the newest commit before that.
    fn reselect(&mut self, view: ViewId) -> Revision {
        let mut interest = lock(&self.watch.cache.interest);
        let state = self.watch.cache.state(view);
        let class = &self.position.class;
        let (projected, keys_at) = self.watch.project(&self.selection, &class.type_url, &state);
        // A stream that changes its view had its cursor set when it was decided that it does.
        let stays = state.view() == class.selection.view && self.watch.stream.view() == state.view();
        if stays && keys_at == self.keys_at && class.is_up_to_date(&self.position.cursor) {
            self.position.cursor.fetch_max(state.revision().0, Ordering::Relaxed);
        }
        self.keys_at = keys_at;
        let joined_at = state.revision();
        if projected != class.selection {
            self.position.class = interest.reselect(class, &self.watch.stream, projected, joined_at);
        }
        drop(interest);
        self.share();
        joined_at
    }

    /// Replaces the strings of the selection by those of the index, so that they exist once.
    fn share(&mut self) {
        if let (Some(_), Some(shared)) = (self.selection.single(), self.position.class.selection.single()) {
            let selection = std::mem::take(&mut self.selection);
            self.selection = selection.map(|_| shared.clone());
        }
    }

    /// The selection. If it has a single set of parameters, it uses the strings of the index, which
    /// the subscription can share.
    pub(crate) fn selection(&self) -> &TypeSelection {
        &self.selection
    }

    /// The newest state that the stream sees.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.watch.cache.state(self.position.class.selection.view)
    }

    /// The variants of a name that this stream selects, each once.
    pub(crate) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        self.position.chosen(name, snapshot)
    }

    /// The revision up to which the stream was sent everything that it selects; zero before the
    /// first response.
    pub(crate) fn cursor(&self) -> Revision {
        self.position.cursor()
    }

    pub(crate) fn advance(&self, to: Revision) {
        self.position.cursor.fetch_max(to.0, Ordering::Relaxed);
    }

    /// Takes the cursor back to a revision before the candidate that the stream tries now.
    pub(crate) fn go_back(&self, to: Revision) {
        self.position.cursor.fetch_min(to.0, Ordering::Relaxed);
    }

    /// The class and the cursor.
    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// The changes from the cursor of the stream to the snapshot.
    ///
    /// `None` when the stream missed removals that the cache has forgotten.
    pub(crate) fn update(&self, snapshot: &Snapshot) -> Option<Arc<Update>> {
        // A commit is recorded in the classes before its snapshot is visible. So a stream that is
        // up to date now is up to date at this snapshot.
        if self.watch.stream.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        if self.position.class.is_up_to_date(&self.position.cursor) {
            self.advance(snapshot.revision());
        }
        self.position.class.update(self.cursor(), snapshot)
    }

    /// An update without changes, for a stream that must not advance.
    pub(crate) fn no_update(&self) -> Arc<Update> {
        Arc::new(Update::new(self.cursor(), self.cursor()))
    }

    /// Everything the class selects.
    pub(crate) fn everything(&self, snapshot: &Snapshot) -> Arc<Update> {
        self.position.everything(snapshot)
    }

    /// Whether the class selects these names and nothing else, and each of them at most the resource of
    /// this name.
    pub(crate) fn is_list_of(&self, names: &NameSet, snapshot: &Snapshot) -> bool {
        let class = &self.position.class;
        let resources = snapshot.of_type(&class.type_url).unwrap_or(&NO_RESOURCES);
        // The class may also know newer keys than the snapshot.
        let is_current = snapshot.view() == class.selection.view
            && snapshot.of_type(&class.type_url).is_none_or(|of| of.keys().changed_at() == self.keys_at);
        let part = class.selection.plain_list(resources).filter(|_| is_current);
        part.is_some_and(
            |part| matches!(&part.selection, Selection::Names(selected) if selected.is_same(names)),
        )
    }

    /// The sum of the identities of all variants the class selects (T38).
    pub(crate) fn sum(&self, snapshot: &Snapshot) -> u128 {
        self.position.class.sum(snapshot)
    }
}

/// The class and the cursor of a stream. The other streams of its client read them too.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    class: Arc<Class>,
    cursor: Arc<AtomicU64>,
}

impl Position {
    /// Whether a commit after the cursor may have affected the class. Cheap; sometimes true without
    /// a change.
    pub(crate) fn is_behind(&self, snapshot: &Snapshot) -> bool {
        let cursor = Revision(self.cursor.load(Ordering::Relaxed));
        cursor < snapshot.revision() && cursor < Revision(self.class.touched_at.load(Ordering::Acquire))
    }

    /// The revision up to which the stream was sent everything; zero before the first response.
    pub(crate) fn cursor(&self) -> Revision {
        Revision(self.cursor.load(Ordering::Relaxed))
    }

    /// Everything that the class selects.
    pub(crate) fn everything(&self, snapshot: &Snapshot) -> Arc<Update> {
        let everything = self.class.update(Revision::ZERO, snapshot);
        everything.expect("an update from revision zero needs no removals")
    }

    /// The same in the state that its stream sees, for another stream of its client, which sees `snapshot`. A stream
    /// that subscribes to nothing sees no candidate.
    pub(crate) fn everything_seen(&self, snapshot: &Snapshot, cache: &Cache) -> Arc<Update> {
        let view = self.class.selection.view;
        if view == snapshot.view() { self.everything(snapshot) } else { self.everything(&cache.state(view)) }
    }

    /// Whether the class has other streams, too.
    pub(crate) fn is_shared(&self) -> bool {
        lock(&self.class.members).len() > 1
    }

    /// The variants of a name that the class selects, each once.
    pub(crate) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        let resources = snapshot.of_type(&self.class.type_url);
        resources.map(|resources| self.class.selection.chosen(name, resources)).unwrap_or_default()
    }

    /// Whether the class selects a name.
    pub(crate) fn covers(&self, name: &ResourceName) -> bool {
        self.class.selection.covering(name).next().is_some()
    }
}

impl PartialEq for Position {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.class, &other.class) && Arc::ptr_eq(&self.cursor, &other.cursor)
    }
}

impl Eq for Position {}

impl Drop for Membership {
    fn drop(&mut self) {
        let cache = &self.watch.cache;
        let mut interest = lock(&cache.interest);
        interest.leave(&self.position.class, &self.watch.stream);
        if let Some(index) = &mut interest.subscriptions {
            let (type_url, stream) = (&self.position.class.type_url, &self.watch.stream);
            let change = (&self.indexed, &Locators::default());
            cache.read(|stable| index.change(type_url, stream, change, stable, &cache.on_demand_waker));
        }
    }
}
