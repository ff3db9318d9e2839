//! Everything that is known of one type: what is watched, and what was received.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::accepted::{Accepted, Decode};
use super::resource_state::ResourceState;
use crate::cache::TypeSnapshot;
use crate::constraint::Constraints;
use crate::hash::FixedState;
use crate::known_type::KnownType;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
pub(super) use crate::subscription::WILDCARD;
use crate::xdstp::{self, XdstpName};

/// One type.
pub(super) struct WatchedType {
    pub(super) type_url: TypeUrl,
    pub(super) known: &'static KnownType,
    pub(super) decode: Option<Decode>,
    /// Servers are not asked for it.
    pub(super) is_deferred: bool,
    pub(super) entries: Slab<WatchEntry>,
    /// Those of them that are globs or the wildcard.
    pub(super) collections: Vec<u32>,
    pub(super) names: ByName<NameRecord>,
    /// D24: names that are watched and turned out to be aliases, with the name of their resource.
    pub(super) aliases: ByName<ResourceName>,
    /// Numbers of the authorities that have servers, by name.
    authorities: Arc<BTreeMap<String, usize>>,
}

/// A table in memory only: nothing goes out in its order.
pub(super) type ByName<V> = HashMap<ResourceName, V, FixedState>;

/// One thing that is watched, by however many watchers: a name, a glob or everything, with its
/// parameters (T2).
#[derive(Debug)]
pub(super) struct WatchEntry {
    pub(super) name: ResourceName,
    pub(super) parameters: Parameters,
    /// The number of its authority.
    pub(super) authority: usize,
    pub(super) watchers: usize,
    /// The servers whose present stream was told of it, as bits.
    pub(super) subscribed_on: u64,
    /// The servers that have it in their list of what may have to change, as bits.
    pub(super) dirty: u64,
    /// When it counts as absent, if nothing comes (C5).
    pub(super) deadline: Option<Duration>,
    pub(super) state: ResourceState,
    /// For a glob or a wildcard: what it stands for.
    pub(super) members: Option<Box<ByName<ResourceState>>>,
}

/// What is known of one name.
#[derive(Debug, Default)]
pub(super) struct NameRecord {
    /// Who watches it.
    pub(super) entries: Vec<u32>,
    /// What the cache holds of it from here, in the order of constraints.
    pub(super) variants: Vec<StoredVariant>,
    /// D24: the watched names that turned out to be aliases of it.
    pub(super) aliases: Vec<ResourceName>,
}

/// A variant that the server says exists: one name and one set of constraints (T1, T29).
#[derive(Debug)]
pub(super) struct StoredVariant {
    pub(super) accepted: Arc<Accepted>,
    /// What the server called it last; for content that did not change newer than that of
    /// `accepted`.
    pub(super) version: Arc<str>,
    /// Who told it; `None` for what was restored.
    pub(super) server: Option<usize>,
    /// The response that held it last.
    pub(super) last_response: u64,
    /// When its TTL ends (S38).
    pub(super) expires: Option<Duration>,
}

impl WatchedType {
    pub(super) fn new(type_url: TypeUrl, authorities: Arc<BTreeMap<String, usize>>) -> Self {
        Self {
            authorities,
            known: KnownType::of(type_url.as_str()),
            type_url,
            decode: None,
            is_deferred: false,
            entries: Slab::new(),
            collections: Vec::new(),
            names: ByName::default(),
            aliases: ByName::default(),
        }
    }

    pub(super) fn entry(&self, at: u32) -> &WatchEntry {
        &self.entries[at as usize]
    }

    pub(super) fn entry_mut(&mut self, at: u32) -> &mut WatchEntry {
        &mut self.entries[at as usize]
    }

    pub(super) fn find(&self, name: &ResourceName, parameters: &Parameters) -> Option<u32> {
        let entries = &self.names.get(name)?.entries;
        entries.iter().copied().find(|at| self.entry(*at).parameters == *parameters)
    }

    pub(super) fn insert(&mut self, entry: WatchEntry) -> u32 {
        let (name, is_collection) = (entry.name.clone(), entry.is_collection());
        let at = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 things are watched");
        self.names.entry(name).or_default().entries.push(at);
        if is_collection {
            self.collections.push(at);
        }
        at
    }

    pub(super) fn remove(&mut self, at: u32) -> WatchEntry {
        let entry = self.entries.remove(at as usize);
        if entry.is_collection() {
            self.collections.retain(|other| *other != at);
        }
        if let Some(named) = self.names.get_mut(&entry.name) {
            named.entries.retain(|other| *other != at);
            if named.entries.is_empty() {
                self.remove_alias(&entry.name);
                self.forget_if_empty(&entry.name);
            }
        }
        entry
    }

    /// The number of the authority that a name belongs to (C16). What none is configured for may be
    /// told by those who are asked for old-style names.
    pub(super) fn authority_of(&self, name: &str) -> usize {
        if self.authorities.is_empty() {
            return 0;
        }
        let name = XdstpName::of(name).ok().flatten();
        name.and_then(|name| self.authorities.get(name.authority())).copied().unwrap_or(0)
    }

    /// D24; the resource that it was an alias of before.
    pub(super) fn add_alias(&mut self, alias: ResourceName, name: &ResourceName) -> Option<ResourceName> {
        if self.aliases.get(&alias) == Some(name) {
            return None;
        }
        let before = self.remove_alias(&alias);
        self.names.entry(name.clone()).or_default().aliases.push(alias.clone());
        self.aliases.insert(alias, name.clone());
        before
    }

    /// The resource that it was an alias of.
    pub(super) fn remove_alias(&mut self, alias: &ResourceName) -> Option<ResourceName> {
        let name = self.aliases.remove(alias)?;
        if let Some(named) = self.names.get_mut(&name) {
            named.aliases.retain(|other| other != alias);
        }
        self.forget_if_empty(&name);
        Some(name)
    }

    pub(super) fn forget_if_empty(&mut self, name: &ResourceName) {
        let is_empty = |named: &NameRecord| {
            named.entries.is_empty() && named.variants.is_empty() && named.aliases.is_empty()
        };
        if self.names.get(name).is_some_and(is_empty) {
            self.names.remove(name);
        }
    }

    /// Who watches a name by itself, by an alias (D24), by a glob (X12) or by the wildcard (T28).
    pub(super) fn watching(&self, name: &str, into: &mut Vec<u32>) {
        into.clear();
        let entries = |name: &str| self.names.get(name).map(|named| &named.entries[..]).unwrap_or_default();
        if let Some(named) = self.names.get(name) {
            into.extend_from_slice(&named.entries);
            for alias in &named.aliases {
                into.extend_from_slice(entries(alias.as_str()));
            }
        }
        if XdstpName::is_new_style(name)
            && let Some(glob) = xdstp::glob_of(&ResourceName::new(name))
        {
            into.extend_from_slice(entries(glob.as_str()));
        }
        // C16: the wildcard is not for what other authorities have.
        if name != WILDCARD && self.authority_of(name) == 0 {
            into.extend_from_slice(entries(WILDCARD));
        }
    }

    /// What the parameters choose of a name (T3), if anything (T4), or of the resource that it is
    /// an alias of (D24).
    pub(super) fn resolve(
        &self,
        name: &ResourceName,
        parameters: &Parameters,
        snapshot: Option<&TypeSnapshot>,
    ) -> Option<&StoredVariant> {
        let own = self.names.get(name).filter(|named| !named.variants.is_empty());
        let (name, named) = match own {
            Some(named) => (name, named),
            None => {
                let real = self.aliases.get(name)?;
                (real, self.names.get(real)?)
            }
        };
        if named.variants.len() <= LINEAR_SEARCH_LIMIT {
            return named.variants.iter().find(|stored| stored.accepted.constraints().matches(parameters));
        }
        let chosen = snapshot?.get(name)?.resolve(parameters)?;
        named.position(chosen.constraints()).ok().map(|at| &named.variants[at])
    }
}

impl NameRecord {
    pub(super) fn position(&self, constraints: &Constraints) -> Result<usize, usize> {
        self.variants.binary_search_by(|stored| stored.accepted.constraints().cmp(constraints))
    }
}

impl WatchEntry {
    pub(super) fn is_collection(&self) -> bool {
        self.members.is_some()
    }
}

/// When a TTL ends that is told now (S38). One that no program lives to see is none.
pub(super) fn expiry_of(ttl: Option<Duration>, now: Duration) -> Option<Duration> {
    ttl.filter(|ttl| *ttl < LONGEST_TTL).map(|ttl| now + ttl)
}

const LONGEST_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Up to so many variants are looked through one by one.
const LINEAR_SEARCH_LIMIT: usize = 8;
