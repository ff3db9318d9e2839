//! The index of the subscriptions of all streams, with their whole parameters. Selection classes are not exact enough
//! for a source: they may have lost streams of which it has to know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atomic_waker::AtomicWaker;

use super::OnDemandSubscription;
use crate::cache::interest::RegisteredStream;
use crate::cache::snapshot::{Keys, Snapshot, TypeSnapshot};
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators};

use of_type::OfType;
use unread::Unread;

mod of_type;
mod unread;

/// Which streams subscribe to which locator, and which of them the source has to know.
#[derive(Debug, Default)]
pub(in crate::cache) struct SubscriptionIndex {
    /// The source knows one locator of those that get the same variants, and more where it asks for them. Otherwise
    /// it knows all.
    is_grouped: bool,
    types: BTreeMap<TypeUrl, OfType>,
    /// Locators whose change was not read yet, each once.
    unread: Unread,
}

impl SubscriptionIndex {
    pub(in crate::cache) fn grouped() -> Self {
        Self { is_grouped: true, ..Self::default() }
    }

    /// Replaces the locators of a stream. The snapshot is the newest stable one.
    pub(in crate::cache) fn change(
        &mut self,
        type_url: &TypeUrl,
        stream: &Arc<RegisteredStream>,
        (before, after): (&Locators, &Locators),
        snapshot: &Snapshot,
        waker: &AtomicWaker,
    ) {
        if before.is_empty() && after.is_empty() {
            return;
        }
        let keys = || self.is_grouped.then(|| keys_of(snapshot, type_url).cloned().unwrap_or_default());
        let of_type = self.types.entry(type_url.clone()).or_insert_with(|| OfType::new(keys()));
        let mut changed = Vec::new();
        for (parameters, names) in after.sets() {
            match before.of(parameters) {
                Some(left) if left == names => {}
                Some(left) => of_type.replace(stream, parameters, (left, names), &mut changed),
                None => of_type.join(stream, parameters, names, &mut changed),
            }
        }
        for (parameters, left) in before.sets() {
            if after.of(parameters).is_none() {
                of_type.leave(stream, parameters, left, &mut changed);
            }
        }
        // Clients choose the types, so an unused one must not stay.
        if of_type.is_unused() {
            self.types.remove(type_url);
        }
        self.report(stream.id, type_url, changed, waker);
    }

    /// Follows the keys that constraints use in the next snapshot.
    pub(in crate::cache) fn follow_keys(&mut self, next: &Snapshot, waker: &AtomicWaker) {
        let (none, mut changed) = (Keys::default(), Vec::new());
        for (type_url, of_type) in &mut self.types {
            let mut of_this = Vec::new();
            of_type.regroup(keys_of(next, type_url).unwrap_or(&none), &mut of_this);
            changed.push((type_url.clone(), of_this));
        }
        for (type_url, changed) in changed {
            self.report(unread::NO_STREAM, &type_url, changed, waker);
        }
    }

    fn report(&mut self, stream: u64, type_url: &TypeUrl, changed: Vec<Locator>, waker: &AtomicWaker) {
        let was_empty = self.unread.is_empty();
        self.unread
            .add(stream, type_url, changed, |type_url, locator| is_unread(&self.types, type_url, locator));
        if was_empty && !self.unread.is_empty() {
            waker.wake();
        }
    }

    /// The streams that subscribe to a locator.
    pub(in crate::cache) fn subscribers(
        &self,
        type_url: &TypeUrl,
        locator: &Locator,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        let of_type = self.types.get(type_url);
        of_type.into_iter().flat_map(|of_type| of_type.streams(locator)).flat_map(BTreeMap::values)
    }

    /// The streams that select a variant by one of these names.
    pub(in crate::cache) fn subscribers_to(
        &self,
        type_url: &TypeUrl,
        names: &BTreeSet<ResourceName>,
        constraints: &Constraints,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        let of_type = self.types.get(type_url);
        let with_name = move |name| of_type.into_iter().flat_map(move |of| of.streams_with(name));
        let streams = names.iter().flat_map(with_name);
        let matching = streams.filter(|(parameters, _)| constraints.matches(parameters));
        matching.flat_map(|(_, streams)| streams.values())
    }

    /// See [`OfType::list_all`].
    pub(super) fn list_all(&mut self, type_url: &TypeUrl, locator: &Locator) -> Vec<Parameters> {
        let of_type = self.types.get_mut(type_url);
        of_type.map(|of_type| of_type.list_all(&locator.parameters, &locator.name)).unwrap_or_default()
    }

    /// See [`OfType::list_further`].
    pub(super) fn list_further(
        &mut self,
        type_url: &TypeUrl,
        name: &ResourceName,
        count: usize,
    ) -> Vec<Parameters> {
        let of_type = self.types.get_mut(type_url);
        of_type.map(|of_type| of_type.list_further(name, count)).unwrap_or_default()
    }

    /// See [`OfType::has_further`].
    pub(super) fn has_further(&mut self, type_url: &TypeUrl, name: &ResourceName) -> bool {
        self.types.get_mut(type_url).is_some_and(|of_type| of_type.has_further(name))
    }

    /// How many locators streams subscribe to.
    pub(super) fn locators(&self) -> usize {
        self.types.values().map(OfType::locators).sum()
    }

    /// The listed locators that gained their first subscription or lost their last one since the last call,
    /// at most `limit` of them.
    pub(super) fn take(&mut self, limit: usize) -> Vec<OnDemandSubscription> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((type_url, locator)) = self.unread.pop()
        {
            if is_unread(&self.types, &type_url, &locator) {
                taken.push(self.read(type_url, locator));
            }
        }
        taken
    }

    /// Whether [`take`](Self::take) has something to return.
    pub(super) fn has_changed(&self) -> bool {
        !self.unread.is_empty()
    }

    fn read(&mut self, type_url: TypeUrl, locator: Locator) -> OnDemandSubscription {
        let mut streams = 0;
        if let Some(of_type) = self.types.get_mut(&type_url) {
            streams = of_type.read(&locator);
            if of_type.is_unused() {
                self.types.remove(&type_url);
            }
        }
        OnDemandSubscription { type_url, locator, streams }
    }
}

/// Whether the source has still to read the state of a locator that is to be read.
fn is_unread(types: &BTreeMap<TypeUrl, OfType>, type_url: &TypeUrl, locator: &Locator) -> bool {
    types.get(type_url).is_some_and(|of_type| of_type.is_unread(locator))
}

/// The keys that constraints of a type use.
fn keys_of<'s>(snapshot: &'s Snapshot, type_url: &TypeUrl) -> Option<&'s Keys> {
    snapshot.of_type(type_url).map(TypeSnapshot::keys)
}

#[cfg(test)]
mod tests;
