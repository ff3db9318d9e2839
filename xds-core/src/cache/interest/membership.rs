//! Where a stream stands in the class of what it wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Watch;
use crate::cache::class::{Class, ClassMember};
use crate::cache::lock;
use crate::cache::snapshot::Snapshot;
use crate::cache::type_selection::TypeSelection;
use crate::cache::update::Update;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::{Locators, Subscription};
use crate::variants::Variant;

/// A stream's place in the class of what it wants of one type; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Membership {
    watch: Arc<Watch>,
    position: Position,
    /// With all parameters; the class has their projection.
    asked: TypeSelection,
    /// What a source on demand was told of.
    indexed: Locators,
    /// The keys of the type that the projection was made for.
    keys_at: Revision,
}

impl Watch {
    /// Joins the class of those who want the same. What was missed while not in it is found by
    /// comparing in full.
    pub(crate) fn join(self: &Arc<Self>, type_url: &TypeUrl, asked: TypeSelection) -> Membership {
        let cursor = Arc::new(AtomicU64::new(0));
        let ledger = self.ledger(type_url);
        let member = ClassMember { cursor: Arc::clone(&cursor), ledger };
        let mut interest = lock(&self.cache.interest);
        let (selection, keys_at) = self.project(type_url, &asked);
        let class = interest.join(type_url, selection, self.stream.id, member);
        drop(interest);
        let position = Position { class, cursor };
        let indexed = Locators::default();
        let mut membership = Membership { watch: Arc::clone(self), position, asked, indexed, keys_at };
        membership.share();
        membership
    }
}

impl Membership {
    /// Lets a source on demand know what is asked for, to the letter; others need not.
    pub(crate) fn index_subscription(&mut self, subscription: &Subscription) {
        let cache = &self.watch.cache;
        let mut interest = lock(&cache.interest);
        let Some(index) = &mut interest.subscriptions else { return };
        let indexed = subscription.locators();
        let type_url = &self.position.class.type_url;
        index.change(type_url, &self.watch.stream, &self.indexed, &indexed, &cache.on_demand_waker);
        self.indexed = indexed;
    }

    /// Moves to what is asked for now, of the same type, and keeps the cursor.
    pub(crate) fn select(&mut self, asked: TypeSelection) {
        if self.asked != asked {
            self.asked = asked;
            self.reselect();
        }
    }

    /// Follows a change of the keys that constraints of the type name: streams that were alike may
    /// no longer be. Whether there was one.
    pub(crate) fn refresh(&mut self, snapshot: &Snapshot) -> bool {
        let keys_at =
            snapshot.of_type(&self.position.class.type_url).map(|resources| resources.keys().changed_at());
        let has_changed = keys_at.is_some_and(|keys_at| keys_at > self.keys_at);
        if has_changed {
            self.reselect();
        }
        has_changed
    }

    fn reselect(&mut self) {
        let mut interest = lock(&self.watch.cache.interest);
        let (selection, keys_at) = self.watch.project(&self.position.class.type_url, &self.asked);
        if keys_at == self.keys_at && self.position.class.is_up_to_date(&self.position.cursor) {
            let newest = interest.revision.min(self.watch.seen_revision());
            self.position.cursor.fetch_max(newest.0, Ordering::Relaxed);
        }
        self.keys_at = keys_at;
        if selection != self.position.class.selection {
            self.position.class = interest.reselect(&self.position.class, &self.watch.stream, selection);
        }
        drop(interest);
        self.share();
    }

    /// Takes the strings of the index.
    fn share(&mut self) {
        if let (Some(_), Some(shared)) = (self.asked.single(), self.position.class.selection.single()) {
            let asked = std::mem::take(&mut self.asked);
            self.asked = asked.map(|_| shared.clone());
        }
    }

    /// What it wants, in the strings of the index where there is one set of parameters, for the
    /// subscription to share.
    pub(crate) fn asked(&self) -> &TypeSelection {
        &self.asked
    }

    /// The newest state of what it watches.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.watch.cache.snapshot()
    }

    /// The variants of a name that this subscription gets, each once.
    pub(crate) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        self.position.chosen(name, snapshot)
    }

    /// The revision up to which the stream was sent what it selects; zero before the first answer.
    pub(crate) fn cursor(&self) -> Revision {
        Revision(self.position.cursor.load(Ordering::Relaxed))
    }

    pub(crate) fn advance(&self, to: Revision) {
        self.position.cursor.fetch_max(to.0, Ordering::Relaxed);
    }

    /// Where it stands.
    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// What the stream has to learn to get from its cursor to the snapshot.
    ///
    /// `None` when the cache no longer knows: the stream missed more removals than are remembered.
    pub(crate) fn update(&self, snapshot: &Snapshot) -> Option<Arc<Update>> {
        // A snapshot is seen after its commit was marked, so who is up to date now is so at the
        // snapshot.
        if self.position.class.is_up_to_date(&self.position.cursor) {
            self.advance(snapshot.revision());
        }
        self.position.class.update(self.cursor(), snapshot)
    }

    /// An update that brings nothing, for who is not to move.
    pub(crate) fn no_update(&self) -> Arc<Update> {
        Arc::new(Update::new(self.cursor(), self.cursor()))
    }

    /// Everything the class selects.
    pub(crate) fn everything(&self, snapshot: &Snapshot) -> Arc<Update> {
        self.position
            .class
            .update(Revision::ZERO, snapshot)
            .expect("from the start no removal has to be known")
    }

    /// The sum of the identities of all variants the class selects (T38).
    pub(crate) fn sum(&self, snapshot: &Snapshot) -> u128 {
        self.position.class.sum(snapshot)
    }
}

/// Where a stream stands in its class, also for the other streams of its client to look at.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    class: Arc<Class>,
    cursor: Arc<AtomicU64>,
}

impl Position {
    /// Whether the class may have changed since the cursor; cheap, and true sometimes without need.
    pub(crate) fn is_behind(&self, snapshot: &Snapshot) -> bool {
        let cursor = Revision(self.cursor.load(Ordering::Relaxed));
        cursor < snapshot.revision() && cursor < Revision(self.class.touched_at.load(Ordering::Acquire))
    }

    /// The variants of a name that the class gets, each once.
    pub(crate) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        let resources = snapshot.of_type(&self.class.type_url);
        resources.map(|resources| self.class.selection.chosen(name, resources)).unwrap_or_default()
    }

    /// Whether the class follows a name.
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
            index.change(type_url, stream, &self.indexed, &Locators::default(), &cache.on_demand_waker);
        }
    }
}
