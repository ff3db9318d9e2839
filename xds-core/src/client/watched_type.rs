//! One resource type: its watches, and the names, variants and aliases that servers sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::accepted::{Accepted, Decode};
use super::cache_changes::VariantKey;
use super::received::ReceivedResource;
use super::resource_state::ResourceState;
use crate::cache::TypeSnapshot;
use crate::constraint::Constraints;
use crate::hash::HashMap;
use crate::known_type::KnownType;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
pub(super) use crate::subscription::WILDCARD;
use crate::xdstp::{self, XdstpName};

/// One resource type.
pub(super) struct WatchedType {
    pub(super) type_url: TypeUrl,
    /// How the protocol serves the type.
    pub(super) known: &'static KnownType,
    /// Makes a payload usable for the program (C2); `None` if watchers use the bytes.
    pub(super) decode: Option<Decode>,
    /// Requests for the type are deferred, unless the stream already requested it.
    pub(super) is_deferred: bool,
    /// Everything of the type that is watched. [`WatchId`](super::WatchId) has its key as a number.
    pub(super) entries: Slab<WatchEntry>,
    /// How many entries have watchers, by the number of their authority.
    pub(super) watched: BTreeMap<usize, usize>,
    /// The numbers of the entries that are globs or wildcards.
    pub(super) collections: Vec<u32>,
    /// A proxy: members of wildcards and globs that exist, but whose variant it rejected, each with
    /// the number of the collection, and with the generation of the stream (T31, T45).
    pub(super) refused: BTreeMap<(u32, ResourceName), u64>,
    /// All names that are watched, have a variant in the cache, or have an alias.
    pub(super) names: ByName<NameRecord>,
    /// D24: watched names that are aliases, each with the name of its resource.
    pub(super) aliases: ByName<ResourceName>,
    /// The numbers of the configured authorities, by name.
    authorities: Arc<BTreeMap<String, usize>>,
}

/// A table by name. Its order is never visible outside of the client.
pub(super) type ByName<V> = HashMap<ResourceName, V>;

/// One watch: a name, a glob or the wildcard, with parameters (T2). Several watchers may share it.
#[derive(Debug)]
pub(super) struct WatchEntry {
    pub(super) name: ResourceName,
    pub(super) parameters: Parameters,
    /// The number of its authority.
    pub(super) authority: usize,
    /// How many watchers share it. When the last one leaves (C13), the entry stays until each
    /// server was sent the unsubscription.
    pub(super) watchers: usize,
    /// The servers that were sent a subscription to it on their open stream, as bits.
    pub(super) subscribed_on: u64,
    /// The servers that have it in [`TypeStream::dirty`](super::upstream::TypeStream::dirty), as
    /// bits.
    pub(super) dirty: u64,
    /// The answers that have not come yet (C5).
    pub(super) awaited: Option<Awaited>,
    /// The state of the named resource. For a glob or wildcard: of the whole collection.
    pub(super) state: ResourceState,
    /// For a glob or a wildcard: its members.
    pub(super) members: Option<Box<ByName<ResourceState>>>,
}

/// The servers that have not answered a watch yet, and its timer (C5).
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// When the resource counts as absent unless a server sends it or reports on it. `None` if that
    /// time has passed.
    pub(super) until: Option<Duration>,
    /// The servers that have to answer, as bits.
    pub(super) servers: u64,
    /// C12: a response came that may be the answer, or that to a name.
    pub(super) is_perhaps_answered: bool,
}

/// The record of one name.
#[derive(Debug, Default)]
pub(super) struct NameRecord {
    /// The numbers of the entries that watch exactly this name, in the order of their parameters: clients of a proxy
    /// may make up parameters without end.
    pub(super) entries: Vec<u32>,
    /// The variants that this client has in the cache, in the order of their constraints.
    pub(super) variants: Vec<StoredVariant>,
    /// D24: the aliases of this name that are watched.
    pub(super) aliases: Vec<ResourceName>,
}

/// A variant that this client has in the cache: one name and one set of constraints (T1, T29).
#[derive(Debug)]
pub(super) struct StoredVariant {
    /// The variant as watchers see it.
    pub(super) accepted: Arc<Accepted>,
    /// Its version in the newest response that had it. When a server sends the same content with a
    /// new version, `accepted` keeps the old version, so that watchers see no change.
    pub(super) version: Arc<str>,
    /// The server that sent it last; `None` for a restored variant.
    pub(super) server: Option<usize>,
    /// The number of the last response that had it; 0 if its server does not know that the client
    /// has it: it was restored, or its removal came with a rejected variant (T31).
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
            watched: BTreeMap::new(),
            collections: Vec::new(),
            refused: BTreeMap::new(),
            names: ByName::default(),
            aliases: ByName::default(),
        }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_unused(&self) -> bool {
        self.decode.is_none() && self.entries.is_empty() && self.names.is_empty() && self.aliases.is_empty()
    }

    pub(super) fn entry(&self, at: u32) -> &WatchEntry {
        &self.entries[at as usize]
    }

    pub(super) fn entry_mut(&mut self, at: u32) -> &mut WatchEntry {
        &mut self.entries[at as usize]
    }

    pub(super) fn find(&self, name: &ResourceName, parameters: &Parameters) -> Option<u32> {
        let entries = &self.names.get(name)?.entries;
        self.position(entries, parameters).ok().map(|place| entries[place])
    }

    /// The index of the entry with these parameters among those of a name, or the index where it belongs.
    fn position(&self, entries: &[u32], parameters: &Parameters) -> Result<usize, usize> {
        entries.binary_search_by(|at| self.entry(*at).parameters.cmp(parameters))
    }

    pub(super) fn insert(&mut self, entry: WatchEntry) -> u32 {
        let is_collection = entry.is_collection();
        let others = self.names.get(&entry.name).map(|named| &named.entries[..]).unwrap_or_default();
        let place = self.position(others, &entry.parameters).unwrap_or_else(|place| place);
        let name = entry.name.clone();
        let at = entry_number(self.entries.insert(entry));
        self.names.entry(name).or_default().entries.insert(place, at);
        if is_collection {
            self.collections.push(at);
        }
        at
    }

    pub(super) fn remove(&mut self, at: u32) -> WatchEntry {
        let entry = self.entry(at);
        let others = self.names.get(&entry.name).map(|named| &named.entries[..]).unwrap_or_default();
        let place = self.position(others, &entry.parameters);
        let entry = self.entries.remove(at as usize);
        if entry.is_collection() {
            self.collections.retain(|other| *other != at);
        }
        if let Some((named, place)) = self.names.get_mut(&entry.name).zip(place.ok()) {
            named.entries.remove(place);
            if named.entries.is_empty() {
                self.remove_alias(&entry.name);
                self.forget_if_empty(&entry.name);
            }
        }
        entry
    }

    /// The number of the authority that a name belongs to (C16). A name whose authority is not
    /// configured belongs to the authority of old-style names.
    pub(super) fn authority_of(&self, name: &str) -> usize {
        if self.authorities.is_empty() {
            return 0;
        }
        let name = XdstpName::of(name).ok().flatten();
        name.and_then(|name| self.authorities.get(name.authority())).copied().unwrap_or(0)
    }

    /// The aliases of a resource, without those of other authorities: the server of one authority has
    /// no effect on names of another one (C16).
    pub(super) fn own_aliases(&self, received: &ReceivedResource<'_>) -> Vec<ResourceName> {
        let authority = self.authority_of(&received.name);
        let is_own = |alias: &&ResourceName| self.authority_of(alias.as_str()) == authority;
        received.aliases.iter().filter(is_own).cloned().collect()
    }

    /// Records an alias (D24). Returns the resource that it was an alias of before.
    pub(super) fn add_alias(&mut self, alias: ResourceName, name: &ResourceName) -> Option<ResourceName> {
        if self.aliases.get(&alias) == Some(name) {
            return None;
        }
        let before = self.remove_alias(&alias);
        self.names.entry(name.clone()).or_default().aliases.push(alias.clone());
        self.aliases.insert(alias, name.clone());
        before
    }

    /// Removes an alias (D24). Returns the resource that it was an alias of.
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

    /// Finds the entries that watch a name: by the name itself, by an alias (D24), by a glob (X12)
    /// or by the wildcard (T28).
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
        // C16: the wildcard does not include names of other authorities.
        if name != WILDCARD && self.authority_of(name) == 0 {
            into.extend_from_slice(entries(WILDCARD));
        }
    }

    /// The keys of all variants of a name.
    pub(super) fn keys_of(&self, name: &ResourceName) -> Vec<VariantKey> {
        let variants = self.names.get(name).into_iter().flat_map(|named| &named.variants);
        variants.map(|stored| (name.clone(), stored.accepted.constraints().clone())).collect()
    }

    /// The variant of a name that matches the parameters (T3), if there is one (T4). If the name is
    /// an alias (D24), the variants are those of its resource.
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
    /// The index of the variant with these constraints, or the index where it belongs.
    pub(super) fn position(&self, constraints: &Constraints) -> Result<usize, usize> {
        self.variants.binary_search_by(|stored| stored.accepted.constraints().cmp(constraints))
    }
}

impl WatchEntry {
    pub(super) fn is_collection(&self) -> bool {
        self.members.is_some()
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.name.as_str() == WILDCARD
    }
}

/// The number of an entry, from its key in the slab.
pub(super) fn entry_number(key: usize) -> u32 {
    u32::try_from(key).expect("fewer than 2^32 things are watched")
}

/// When a TTL that starts now ends (S38). A TTL of more than 100 years never ends.
pub(super) fn expiry_of(ttl: Option<Duration>, now: Duration) -> Option<Duration> {
    ttl.filter(|ttl| *ttl < LONGEST_TTL).map(|ttl| now + ttl)
}

const LONGEST_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Up to this many variants of a name are searched one by one; more are searched in the index of
/// the snapshot.
const LINEAR_SEARCH_LIMIT: usize = 8;
