//! The index of the subscriptions of all streams.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use atomic_waker::AtomicWaker;

use super::OnDemandSubscription;
use crate::cache::id_set::IdSet;
use crate::cache::interest::RegisteredStream;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, NameSet, WILDCARD, difference};
use crate::xdstp::glob_of;

/// Which streams subscribe to which locator, with all parameters. Selection classes are not exact
/// enough for a source: they know only the parameters that choose between variants in the cache.
#[derive(Debug, Default)]
pub(in crate::cache) struct SubscriptionIndex {
    types: BTreeMap<TypeUrl, OfType>,
    /// Locators whose change was not read yet, each once, in the order of their first change.
    changed: Vec<(TypeUrl, Locator)>,
}

/// The subscriptions to one type.
///
/// Streams mostly list the same names. So streams are kept by their whole list, and a name has the
/// numbers of the lists that it is in: a stream that takes a list which is there costs no more for a
/// thousand names than for one.
#[derive(Debug, Default)]
struct OfType {
    lists: BTreeMap<u64, List>,
    by_names: BTreeMap<(Parameters, NameSet), u64>,
    last_list: u64,
    names: Listings,
}

/// The lists of each locator.
type Listings = BTreeMap<ResourceName, BTreeMap<Parameters, Listing>>;

/// The streams that subscribe to the same names with the same parameters.
type List = BTreeMap<u64, Arc<RegisteredStream>>;

/// The lists that one locator is in.
#[derive(Debug, Default)]
struct Listing {
    lists: IdSet,
    /// The locator is in [`SubscriptionIndex::changed`].
    is_queued: bool,
}

impl SubscriptionIndex {
    /// Replaces the locators of a stream.
    pub(in crate::cache) fn change(
        &mut self,
        type_url: &TypeUrl,
        stream: &Arc<RegisteredStream>,
        before: &Locators,
        after: &Locators,
        waker: &AtomicWaker,
    ) {
        if before.is_empty() && after.is_empty() {
            return;
        }
        let was_empty = self.changed.is_empty();
        let of_type = self.types.entry(type_url.clone()).or_default();
        let mut changed = |name: &ResourceName, parameters: &Parameters| {
            let locator = Locator { name: name.clone(), parameters: parameters.clone() };
            self.changed.push((type_url.clone(), locator));
        };
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
        if was_empty && !self.changed.is_empty() {
            waker.wake();
        }
    }

    /// The streams that subscribe to a locator.
    pub(in crate::cache) fn subscribers(
        &self,
        type_url: &TypeUrl,
        Locator { name, parameters }: &Locator,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        let of_type = self.types.get(type_url);
        let listing = of_type.and_then(|of_type| of_type.names.get(name)?.get(parameters));
        listing.into_iter().flat_map(move |listing| of_type.into_iter().flat_map(|all| all.streams(listing)))
    }

    /// The streams that select a variant: by its name, by its glob, or by the wildcard.
    pub(in crate::cache) fn subscribers_to(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        constraints: &Constraints,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        let names = [Some(name.clone()), glob_of(name), Some(ResourceName::from(WILDCARD))];
        let of_type = self.types.get(type_url);
        let of_names = names.into_iter().flatten().filter_map(move |name| of_type?.names.get(&name));
        let listings = of_names.flatten().filter(|(parameters, _)| constraints.matches(parameters));
        let streams = move |listing| of_type.into_iter().flat_map(move |all| all.streams(listing));
        listings.flat_map(move |(_, listing)| streams(listing))
    }

    /// The locators that gained their first subscription or lost their last one since the last call.
    pub(super) fn take(&mut self) -> Vec<OnDemandSubscription> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|(type_url, locator)| self.read(type_url, locator)).collect()
    }

    /// Whether [`take`](Self::take) has something to return.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn read(&mut self, type_url: TypeUrl, locator: Locator) -> OnDemandSubscription {
        let mut streams = 0;
        if let Some(of_type) = self.types.get_mut(&type_url) {
            streams = of_type.read(&locator);
            // Clients choose the types, so an unused one must not stay.
            if of_type.names.is_empty() {
                self.types.remove(&type_url);
            }
        }
        OnDemandSubscription { type_url, locator, streams }
    }
}

impl OfType {
    /// Adds a stream to a list. `changed` gets each locator that was in no list.
    fn join(
        &mut self,
        stream: &Arc<RegisteredStream>,
        parameters: &Parameters,
        names: &NameSet,
        changed: &mut impl FnMut(&ResourceName, &Parameters),
    ) {
        let key = (parameters.clone(), names.clone());
        let id = match self.by_names.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.last_list += 1;
                new.insert(self.last_list);
                index(&mut self.names, self.last_list, parameters, names.as_slice(), changed);
                self.last_list
            }
        };
        self.lists.entry(id).or_default().insert(stream.id, Arc::clone(stream));
    }

    /// Takes a stream out of its list. `changed` gets each locator that is in no list any more.
    fn leave(
        &mut self,
        stream: &RegisteredStream,
        parameters: &Parameters,
        names: &NameSet,
        changed: &mut impl FnMut(&ResourceName, &Parameters),
    ) {
        let (key, id) = self.list(parameters, names);
        let list = self.lists.get_mut(&id).expect("a list with a number has streams");
        list.remove(&stream.id);
        if list.is_empty() {
            self.lists.remove(&id);
            self.by_names.remove(&key);
            unindex(&mut self.names, id, parameters, names.as_slice(), changed);
        }
    }

    /// Moves a stream from one list to another. If nobody else has either of them, this costs the
    /// names that differ: a stream that adds names one by one does not pay for all of them each time.
    fn replace(
        &mut self,
        stream: &Arc<RegisteredStream>,
        parameters: &Parameters,
        (before, after): (&NameSet, &NameSet),
        changed: &mut impl FnMut(&ResourceName, &Parameters),
    ) {
        let (old, id) = self.list(parameters, before);
        let new = (parameters.clone(), after.clone());
        if self.lists[&id].len() > 1 || self.by_names.contains_key(&new) {
            // In this order, a locator that is in both never leaves the index.
            self.join(stream, parameters, after, changed);
            return self.leave(stream, parameters, before, changed);
        }
        self.by_names.remove(&old);
        self.by_names.insert(new, id);
        let (before, after) = (before.as_slice(), after.as_slice());
        index(&mut self.names, id, parameters, &difference(after, before), changed);
        unindex(&mut self.names, id, parameters, &difference(before, after), changed);
    }

    fn list(&self, parameters: &Parameters, names: &NameSet) -> ((Parameters, NameSet), u64) {
        let key = (parameters.clone(), names.clone());
        let id = *self.by_names.get(&key).expect("the list of a stream is in the index");
        (key, id)
    }

    fn streams(&self, listing: &Listing) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        listing.lists.iter().flat_map(|id| self.lists[&id].values())
    }

    /// How many streams subscribe to a locator whose change was queued. Forgets it if there is none.
    fn read(&mut self, Locator { name, parameters }: &Locator) -> usize {
        let Some(of_name) = self.names.get_mut(name) else { return 0 };
        let Some(listing) = of_name.get_mut(parameters) else { return 0 };
        listing.is_queued = false;
        let streams = listing.lists.iter().map(|id| self.lists[&id].len()).sum();
        if streams == 0 {
            of_name.remove(parameters);
            if of_name.is_empty() {
                self.names.remove(name);
            }
        }
        streams
    }
}

fn index(
    listings: &mut Listings,
    id: u64,
    parameters: &Parameters,
    names: &[ResourceName],
    changed: &mut impl FnMut(&ResourceName, &Parameters),
) {
    for name in names {
        let listing = listings.entry(name.clone()).or_default().entry(parameters.clone()).or_default();
        if listing.lists.is_empty() && !std::mem::replace(&mut listing.is_queued, true) {
            changed(name, parameters);
        }
        listing.lists.insert(id);
    }
}

fn unindex(
    listings: &mut Listings,
    id: u64,
    parameters: &Parameters,
    names: &[ResourceName],
    changed: &mut impl FnMut(&ResourceName, &Parameters),
) {
    for name in names {
        let listing = listings.get_mut(name).and_then(|of_name| of_name.get_mut(parameters));
        let listing = listing.expect("a locator that a list has is in the index");
        listing.lists.remove(id);
        if listing.lists.is_empty() && !std::mem::replace(&mut listing.is_queued, true) {
            changed(name, parameters);
        }
    }
}

#[cfg(test)]
mod tests;
