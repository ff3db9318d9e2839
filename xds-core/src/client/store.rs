//! What a client watches and has: its types, with their watches, names and variants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::WatchId;
use super::accepted::Accepted;
use super::effects::Effects;
use super::preview::Refusal;
use super::watched_type::{StoredVariant, WatchEntry, WatchedType};
use crate::cache::{Cache, Transaction};
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;
use crate::subscription::Locator;

/// The types that a client watches, and the cache that it fills.
pub(super) struct Store {
    /// The valid resources that servers sent.
    pub(super) cache: Arc<Cache>,
    /// The types that are watched, declared or restored, and those in `free`.
    pub(super) types: Vec<WatchedType>,
    /// The index in `types` of each type.
    type_numbers: BTreeMap<TypeUrl, usize>,
    /// Numbers for the next types: a proxy does not choose its types, and its clients may make them up without end.
    free: Vec<usize>,
    /// The number of each configured authority, by its name.
    pub(super) authority_numbers: Arc<BTreeMap<String, usize>>,
    /// When clients of a proxy NACK the contents of a variant that they try, these contents are
    /// rejected from then on (C2). Accepting other contents of the variant removes the entry.
    pub(super) refused: BTreeMap<VariantId, Refusal>,
    /// S38: when TTLs end.
    pub(super) expiries: BTreeSet<Expiry>,
    /// Restored variants that other restored ones have replaced (T34). The effects of the next response
    /// list them as removed, so that the program forgets them too.
    pub(super) not_restored: Vec<VariantId>,
    /// How many responses were applied.
    pub(super) responses: u64,
}

/// When the TTL of a variant ends: time, number of the type, name and constraints.
pub(super) type Expiry = (Duration, usize, ResourceName, Constraints);

impl Store {
    pub(super) fn new(cache: Arc<Cache>, authority_numbers: BTreeMap<String, usize>) -> Self {
        Self {
            cache,
            types: Vec::new(),
            type_numbers: BTreeMap::new(),
            free: Vec::new(),
            authority_numbers: Arc::new(authority_numbers),
            refused: BTreeMap::new(),
            expiries: BTreeSet::new(),
            not_restored: Vec::new(),
            responses: 0,
        }
    }

    /// Reports the restored variants that others have replaced, unless a server has sent them since.
    pub(super) fn take_not_restored(&mut self, effects: &mut Effects) {
        if self.not_restored.is_empty() {
            return;
        }
        let snapshot = self.cache.snapshot();
        let is_gone = |id: &VariantId| {
            let variants = snapshot.get(&id.type_url, &id.name);
            variants.is_none_or(|variants| variants.get(&id.constraints).is_none())
        };
        effects.removed.extend(std::mem::take(&mut self.not_restored).into_iter().filter(is_gone));
    }

    pub(super) fn entry(&self, watch: WatchId) -> &WatchEntry {
        let (of_type, at) = watch.place();
        self.types[of_type].entry(at)
    }

    pub(super) fn entry_mut(&mut self, watch: WatchId) -> &mut WatchEntry {
        let (of_type, at) = watch.place();
        self.types[of_type].entry_mut(at)
    }

    /// The name of a watch, or the names of its members.
    pub(super) fn names_of(&self, watch: WatchId) -> Vec<ResourceName> {
        let (entry, aliases) = (self.entry(watch), &self.types[watch.place().0].aliases);
        match &entry.members {
            None => vec![aliases.get(&entry.name).unwrap_or(&entry.name).clone()],
            Some(members) => members.keys().cloned().collect(),
        }
    }

    /// The number of a type, if the type is known.
    pub(super) fn number_of(&self, type_url: &str) -> Option<usize> {
        self.type_numbers.get(type_url).copied()
    }

    /// The number of a type. A new type is added.
    pub(super) fn type_number(&mut self, type_url: &TypeUrl) -> usize {
        self.number_of(type_url.as_str()).unwrap_or_else(|| {
            let watched = WatchedType::new(type_url.clone(), Arc::clone(&self.authority_numbers));
            let number = self.free.pop().unwrap_or(self.types.len());
            match self.types.get_mut(number) {
                Some(free) => *free = watched,
                None => self.types.push(watched),
            }
            self.type_numbers.insert(type_url.clone(), number);
            number
        })
    }

    /// Forgets the types of which nothing is left. Returns their numbers.
    pub(super) fn forget_types(&mut self, is_open: impl Fn(usize) -> bool) -> Vec<usize> {
        let types = &self.types;
        let is_unused = |number: usize| types[number].is_unused() && !is_open(number);
        let forgotten: Vec<_> = self
            .type_numbers
            .extract_if(.., |_, number| is_unused(*number))
            .map(|(_, number)| number)
            .collect();
        self.free.extend(&forgotten);
        forgotten
    }

    /// Removes an entry that has no watchers and no subscription on any server.
    pub(super) fn remove(&mut self, of_type: usize, at: u32) {
        let watched = &mut self.types[of_type];
        let real = watched.aliases.get(&watched.entry(at).name).cloned();
        let entry = watched.remove(at);
        let first = |of: u32| (of, ResourceName::from(""));
        let refused = watched.refused.extract_if(first(at)..first(at + 1), |_, _| true);
        let refused = refused.map(|((_, name), _)| name);
        let mut transaction = Transaction::new();
        for name in refused.collect::<Vec<_>>() {
            let locator = Locator { name, parameters: entry.parameters.clone() };
            transaction.set_status(watched.type_url.clone(), locator, None);
        }
        if !transaction.is_empty() {
            self.cache.commit(transaction).expect("a status of a locator breaks no rule of variants");
        }
        let names = match entry.members {
            None => std::iter::once(entry.name).chain(real).collect::<Vec<_>>(),
            Some(members) => members.into_keys().collect(),
        };
        self.drop_unwatched(of_type, &names);
    }

    /// T33: removes variants of these names that match no watch any more. D18, D20: a variant that
    /// another watch, such as a wildcard, matches stays.
    pub(super) fn drop_unwatched(&mut self, of_type: usize, names: &[ResourceName]) {
        let (mut removed, mut watching) = (Vec::new(), Vec::new());
        let watched = &mut self.types[of_type];
        for name in names {
            // Most names that clients make up have no variant.
            if watched.names.get(name).is_none_or(|named| named.variants.is_empty()) {
                watched.forget_if_empty(name);
                continue;
            }
            watched.watching(name.as_str(), &mut watching);
            let Some(named) = watched.names.get_mut(name) else { continue };
            let entries = &watched.entries;
            removed.extend(named.variants.extract_if(.., |stored| {
                let constraints = stored.accepted.constraints();
                !watching.iter().any(|at| constraints.matches(&entries[*at as usize].parameters))
            }));
            watched.forget_if_empty(name);
        }
        remove_from(&self.cache, removed.iter().map(|stored| stored.accepted.id()));
    }

    /// Removes copies that no server in use has confirmed. Returns the removed variants, and the servers
    /// that sent them, as bits.
    pub(super) fn drop_unconfirmed(
        &mut self,
        of_type: usize,
        copies: &[Arc<Accepted>],
    ) -> (Vec<VariantId>, u64) {
        let watched = &mut self.types[of_type];
        let (mut removed, mut senders) = (Vec::new(), 0);
        for copy in copies {
            let Some(named) = watched.names.get_mut(copy.name()) else { continue };
            let is_it = |stored: &StoredVariant| Arc::ptr_eq(&stored.accepted, copy);
            let Some(place) = named.variants.iter().position(is_it) else { continue };
            senders |= named.variants.remove(place).server.map_or(0, |server| 1 << server);
            watched.forget_if_empty(copy.name());
            removed.push(copy.id());
        }
        remove_from(&self.cache, removed.iter().cloned());
        (removed, senders)
    }

    /// Removes the variants of these names whose watches are all [refused](WatchEntry::is_refused). Returns the
    /// removed variants.
    pub(super) fn drop_refused(&mut self, of_type: usize, names: Vec<ResourceName>) -> Vec<VariantId> {
        let watched = &mut self.types[of_type];
        let (mut removed, mut watching) = (Vec::new(), Vec::new());
        for name in names {
            watched.watching(name.as_str(), &mut watching);
            let serving = watching.iter().map(|at| watched.entry(*at)).filter(|entry| !entry.is_refused());
            let serving: Vec<_> = serving.map(|entry| entry.parameters.clone()).collect();
            let Some(named) = watched.names.get_mut(&name) else { continue };
            let is_refused = |stored: &mut StoredVariant| {
                let constraints = stored.accepted.constraints();
                !serving.iter().any(|parameters| constraints.matches(parameters))
            };
            let before = removed.len();
            for stored in named.variants.extract_if(.., is_refused) {
                stored.forget_expiry(of_type, &mut self.expiries);
                removed.push(stored.accepted.id());
            }
            if removed.len() > before {
                watched.forget_if_empty(&name);
            }
        }
        remove_from(&self.cache, removed.iter().cloned());
        removed
    }
}

/// Removes variants from a cache.
pub(super) fn remove_from(cache: &Cache, ids: impl IntoIterator<Item = VariantId>) {
    let mut transaction = Transaction::new();
    ids.into_iter().for_each(|id| transaction.remove(id));
    if !transaction.is_empty() {
        cache.commit(transaction).expect("removals cannot make variants overlap");
    }
}
