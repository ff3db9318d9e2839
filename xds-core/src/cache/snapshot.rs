//! Everything the cache holds, at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::RandomState;
use rpds::HashTrieMapSync;

use super::dropped::{Dropped, LastDropped};
use super::on_demand::LocatorStatus;
use super::other_names::OtherNames;
use super::transaction::{Change, VariantChange};
use crate::constraint::Constraints;
use crate::matching::{KeySetRule, SetError};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::references::{Reference, Target};
use crate::subscription::{ExcludedAuthorities, Locator};
use crate::variants::{Form, Variant, Variants};
use crate::xdstp::{self, XdstpName};

/// All types at one revision. Immutable, and it shares all that did not change with the snapshot
/// before it.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    revision: Revision,
    types: BTreeMap<TypeUrl, TypeSnapshot>,
    /// What it does not hold is unknown until a source says that it is absent.
    is_on_demand: bool,
    /// What no wildcard stands for.
    pub(crate) excluded: Option<ExcludedAuthorities>,
}

impl Snapshot {
    /// The commit that made it.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether a source has said what exists. Until then nothing counts as absent (G13).
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.revision > Revision::ZERO
    }

    /// Of a cache [on demand](super::Cache::on_demand). A stream at revision zero was not answered
    /// yet, so it begins later.
    pub(super) fn on_demand(excluded: Option<ExcludedAuthorities>) -> Self {
        Self { revision: Revision::ZERO.next(), is_on_demand: true, excluded, ..Self::default() }
    }

    /// Whether what it does not hold is unknown rather than absent.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }

    /// What the source said of a locator; `None` when it said nothing yet.
    #[must_use]
    pub fn locator_status(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        parameters: &Parameters,
    ) -> Option<&LocatorStatus> {
        let statuses = &self.of_type(type_url)?.statuses;
        if statuses.is_empty() {
            return None;
        }
        statuses.get(&Locator { name: name.clone(), parameters: parameters.clone() })
    }

    /// The resources of one type; `None` when none was ever committed.
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> Option<&TypeSnapshot> {
        self.types.get(type_url)
    }

    /// The variants of one resource.
    #[must_use]
    pub fn get(&self, type_url: &TypeUrl, name: &ResourceName) -> Option<&Variants> {
        self.of_type(type_url)?.get(name)
    }

    /// The types ever committed, in order, with their number of resources.
    pub fn counts(&self) -> impl Iterator<Item = (&TypeUrl, usize)> {
        self.types.iter().map(|(type_url, resources)| (type_url, resources.len()))
    }

    pub(super) fn edit(&mut self, revision: Revision) -> &mut BTreeMap<TypeUrl, TypeSnapshot> {
        self.revision = revision;
        &mut self.types
    }
}

/// The resources of one type at one revision.
#[derive(Debug, Clone)]
pub struct TypeSnapshot {
    present: NameMap<Variants>,
    /// How many variants all names have together.
    variants: usize,
    removed: NameMap<Vec<Removed>>,
    /// The sum of their weights.
    removals: usize,
    /// Removals at or before this revision are forgotten.
    remembers_since: Revision,
    /// Sum of the identities of all variants (T38), from when it was asked for first: of most types
    /// nobody asks for everything in SotW, nor does anybody of a client's cache.
    sum: OnceLock<u128>,
    keys: Arc<Keys>,
    /// Names that have a variant with a TTL.
    timed: NameMap<()>,
    /// The TTLs of all variants, each with the number of variants that have it.
    ttls: Arc<BTreeMap<Duration, usize>>,
    other_names: OtherNames,
    /// What names stopped naming, of those that are there or remembered (S33).
    dropped: NameMap<Arc<Dropped>>,
    /// Up to here that is forgotten of names that were neither.
    drops_since: Revision,
    /// What none of them names any more, and since when.
    pub(crate) last_dropped: LastDropped,
    /// Which resources name a cluster, a secret and so on, but for assignments that clusters name
    /// like themselves.
    naming: HashTrieMapSync<(Target, ResourceName), Arc<BTreeSet<ResourceName>>, RandomState>,
    /// What a source on demand said of what is asked for.
    statuses: HashTrieMapSync<Locator, LocatorStatus, RandomState>,
}

/// The keys that constraints of a type name, or named when they were removed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Keys {
    /// Each key with the number of variants that name it.
    uses: BTreeMap<Arc<str>, usize>,
    /// The commit that added or removed a key last.
    changed_at: Revision,
}

/// A variant that was there until a commit removed it; remembered as long as a stream may not have
/// heard of it.
#[derive(Debug, Clone)]
pub(crate) struct Removed {
    /// The content it had last.
    pub(crate) variant: Arc<Variant>,
    /// The commit that removed it.
    pub(crate) at: Revision,
}

impl TypeSnapshot {
    /// The variants of one name.
    #[must_use]
    pub fn get(&self, name: &ResourceName) -> Option<&Variants> {
        self.present.get(name)
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present.size()
    }

    /// How many variants all names have together.
    #[must_use]
    pub fn variants(&self) -> usize {
        self.variants
    }

    /// Whether there is no resource of the type.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// All names with their variants, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, &Variants)> {
        self.present.iter()
    }

    /// The variants of a name that were removed after a revision.
    pub(crate) fn removed_after(
        &self,
        name: &ResourceName,
        revision: Revision,
    ) -> impl Iterator<Item = &Removed> {
        self.removed.get(name).into_iter().flatten().filter(move |removed| removed.at > revision)
    }

    /// Whether everything that was removed after a revision is still known.
    pub(crate) fn remembers(&self, revision: Revision) -> bool {
        revision >= self.remembers_since
    }

    /// The same name in the string that stands here; `None` when nothing has it.
    pub(super) fn known_name(&self, name: &ResourceName) -> Option<ResourceName> {
        self.present.get_key_value(name).map(|(known, _)| known.clone())
    }

    /// What the resource of a name named of a type until a commit after a revision (S33).
    pub(crate) fn dropped_after<'s>(
        &'s self,
        name: &ResourceName,
        revision: Revision,
        target: Target,
    ) -> impl Iterator<Item = Reference<'s>> + use<'s> {
        // Also of a name that is there: it may have gone and come back.
        let forgotten = (self.drops_since > revision).then_some(Reference::Any);
        let dropped = self.dropped.get(name).into_iter();
        forgotten.into_iter().chain(dropped.flat_map(move |dropped| dropped.since(revision, target)))
    }

    /// The resources, in whatever variant, that name this one.
    pub(crate) fn naming(
        &self,
        target: Target,
        name: &ResourceName,
    ) -> impl Iterator<Item = &ResourceName> + use<'_> {
        self.naming.get(&(target, name.clone())).into_iter().flat_map(|names| names.iter())
    }

    /// Whether a resource, in whatever variant, names one of another type.
    pub(crate) fn names(&self, target: Target, name: &ResourceName) -> bool {
        let mut own =
            self.get(name).filter(|_| target == Target::Assignment).into_iter().flat_map(Variants::iter);
        self.naming.contains_key(&(target, name.clone())) || own.any(|own| own.endpoints() == Some(name))
    }

    /// Notes what a source says of a locator; whether that is something else than before.
    pub(super) fn set_status(&mut self, locator: &Locator, status: Option<LocatorStatus>) -> bool {
        let is_new = self.statuses.get(locator) != status.as_ref();
        match status.filter(|_| is_new) {
            Some(status) => self.statuses.insert_mut(locator.clone(), status),
            None if is_new => _ = self.statuses.remove_mut(locator),
            None => {}
        }
        is_new
    }

    /// Whether nothing is known of the type, and nothing ever was there that a stream may have been
    /// sent.
    pub(super) fn is_blank(&self) -> bool {
        let never_removed = self.removed.is_empty() && self.remembers_since == Revision::ZERO;
        self.present.is_empty() && self.statuses.is_empty() && never_removed
    }

    fn note_naming(&mut self, name: &ResourceName, gone: &[Arc<Variant>], came: &[Arc<Variant>]) {
        // A new version mostly names what the one before did.
        if gone.iter().map(|variant| &variant.references).eq(came.iter().map(|variant| &variant.references)) {
            return;
        }
        let named = |variants: &[Arc<Variant>]| -> BTreeSet<_> {
            let references = variants.iter().flat_map(|variant| variant.references.iter(name));
            let others = references.filter(|(target, named)| *target != Target::Assignment || *named != name);
            others.map(|(target, named)| (target, named.clone())).collect()
        };
        let (gone, came) = (named(gone), named(came));
        let mut dropped: BTreeSet<_> = gone.difference(&came).collect();
        // A name may have very many variants: they are looked at only when one stopped naming
        // something.
        let still =
            self.present.get(name).filter(|_| !dropped.is_empty()).into_iter().flat_map(Variants::iter);
        for variant in still {
            dropped.retain(|(target, named)| !variant.references.has(name, *target, named));
        }
        for key in dropped {
            let mut names = self.naming.get(key).map(|names| BTreeSet::clone(names)).unwrap_or_default();
            names.remove(name);
            match names.is_empty() {
                true => _ = self.naming.remove_mut(key),
                false => self.naming.insert_mut(key.clone(), Arc::new(names)),
            }
        }
        for key in came {
            let names = self.naming.get(&key);
            if names.is_none_or(|names| !names.contains(name)) {
                let mut names = names.map(|names| BTreeSet::clone(names)).unwrap_or_default();
                names.insert(name.clone());
                self.naming.insert_mut(key, Arc::new(names));
            }
        }
    }

    /// Names of which that is known, in no particular order.
    pub(crate) fn dropping_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.dropped.keys()
    }

    /// Names that are gone and not forgotten, in no particular order.
    pub(crate) fn gone_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.removed.keys().filter(|name| !self.present.contains_key(*name))
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The sum of the identities of all variants.
    pub(crate) fn sum(&self) -> u128 {
        *self.sum.get_or_init(|| sum_of(self.present.values().flat_map(Variants::iter)))
    }

    /// Replaces and removes variants of one name, judged together. The constraints of those that
    /// changed, in the order of the changes.
    ///
    /// # Errors
    /// When what comes out may not be (T15, T17); nothing is changed then.
    pub(super) fn edit(
        &mut self,
        name: &ResourceName,
        changes: impl Iterator<Item = VariantChange>,
        revision: Revision,
        key_sets: KeySetRule,
    ) -> Result<Vec<Constraints>, SetError<Arc<Variant>>> {
        let nothing = Variants::default();
        let set = self.get(name).unwrap_or(&nothing);
        let (mut removed, mut inserted, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for VariantChange { constraints, change, .. } in changes {
            let before = set.get(&constraints);
            match change {
                Change::Put(resource) => {
                    if before.is_some_and(|before| before.version() == resource.version()) {
                        continue;
                    }
                    let removed_before = || self.remembered(name, &constraints);
                    let former = before.map(|before| (before, None));
                    let former = former
                        .or_else(|| removed_before().map(|removed| (&removed.variant, Some(removed.at))));
                    inserted.push(Arc::new(match former {
                        None => Variant::new(resource, revision, revision),
                        Some((former, removed_at)) => {
                            Variant::new(resource, revision, former.born_at).after(former, removed_at)
                        }
                    }));
                    removed.extend(before.cloned());
                }
                Change::Remove => match before {
                    Some(before) => removed.push(Arc::clone(before)),
                    None => continue,
                },
            }
            changed.push(constraints);
        }
        if changed.is_empty() {
            return Ok(changed);
        }
        match set.edit(&removed, &inserted, key_sets)? {
            Some(set) => self.present.insert_mut(name.clone(), set),
            None => _ = self.present.remove_mut(name),
        }
        self.variants = self.variants + inserted.len() - removed.len();
        if let Some(sum) = self.sum.get_mut() {
            *sum = sum.wrapping_sub(sum_of(&removed)).wrapping_add(sum_of(&inserted));
        }
        let has_aliases = removed.iter().chain(&inserted).any(|variant| !variant.aliases().is_empty());
        self.count_ttls(name, &removed, &inserted);
        self.note_naming(name, &removed, &inserted);
        if let Some(dropped) =
            Dropped::after(self.dropped.get(name).map(Arc::as_ref), &removed, &inserted, revision)
        {
            self.last_dropped.note(&dropped, revision);
            self.dropped.insert_mut(name.clone(), Arc::new(dropped));
        }
        let forgotten = self.remember(name, removed, &inserted, revision);
        self.count_keys(&forgotten, &inserted, revision);
        if has_aliases || XdstpName::is_new_style(name.as_str()) {
            self.name_others(name, revision);
        }
        Ok(changed)
    }

    /// Notes what a resource is asked for by, as long as it is there or its removal is remembered.
    fn name_others(&mut self, name: &ResourceName, at: Revision) {
        let present = self.present.get(name).into_iter().flat_map(Variants::iter);
        let removed = self.removed.get(name).into_iter().flatten().map(|removed| &removed.variant);
        let mut variants = present.chain(removed).peekable();
        let is_known = variants.peek().is_some();
        let mut others: BTreeSet<_> = variants.flat_map(|variant| variant.aliases()).cloned().collect();
        others.extend(xdstp::glob_of(name).filter(|_| is_known));
        others.remove(name);
        let is_present = self.present.contains_key(name);
        self.other_names.set(name, &others, is_present, at);
    }

    /// The names besides its own that a resource is asked for by.
    pub(crate) fn others_of(&self, name: &ResourceName) -> &[ResourceName] {
        self.other_names.of(name)
    }

    /// Other names that a resource gave up after a revision.
    pub(crate) fn former_others_of(
        &self,
        name: &ResourceName,
        since: Revision,
    ) -> impl Iterator<Item = &ResourceName> {
        self.other_names.former(name, since)
    }

    /// The resources that gave up other names.
    pub(crate) fn with_former_others(&self) -> impl Iterator<Item = &ResourceName> {
        self.other_names.with_former()
    }

    /// Whether any resource is asked for by another name.
    pub(crate) fn has_other_names(&self) -> bool {
        !self.other_names.is_empty()
    }

    /// The resources that are asked for by a name: the one that has it, and those that have it as
    /// an alias or are members of it.
    pub(crate) fn asked_by<'s>(&'s self, asked: &'s ResourceName) -> impl Iterator<Item = &'s ResourceName> {
        let members = self.other_names.members(asked);
        std::iter::once(asked).filter(|asked| self.present.contains_key(*asked)).chain(members)
    }

    /// Remembers what is gone, and that what came back is not; gives back what is neither there nor
    /// remembered.
    fn remember(
        &mut self,
        name: &ResourceName,
        gone: Vec<Arc<Variant>>,
        came: &[Arc<Variant>],
        at: Revision,
    ) -> Vec<Arc<Variant>> {
        // New content of what is there is nothing to remember.
        let is_there =
            gone.iter().map(|gone| gone.constraints()).eq(came.iter().map(|came| came.constraints()));
        if is_there && !self.removed.contains_key(name) {
            return gone;
        }
        let came: BTreeSet<_> = came.iter().map(|variant| variant.constraints()).collect();
        let came = |variant: &Variant| came.contains(variant.constraints());
        let removed = self.removed.get(name).cloned().unwrap_or_default();
        self.removals -= weight(&removed);
        let (returned, mut removed): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|removed| came(&removed.variant));
        let (mut forgotten, gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|variant| came(variant));
        forgotten.extend(returned.into_iter().map(|removed| removed.variant));
        removed.extend(gone.into_iter().map(|variant| Removed { variant, at }));
        self.removals += weight(&removed);
        match removed.is_empty() {
            true => _ = self.removed.remove_mut(name),
            false => self.removed.insert_mut(name.clone(), removed),
        }
        forgotten
    }

    /// Counts the keys that variants name, also those that are remembered: a stream that has to be
    /// told of a removal is still told apart by its keys.
    fn count_keys(&mut self, gone: &[Arc<Variant>], came: &[Arc<Variant>], revision: Revision) {
        let named = |variants: &[Arc<Variant>]| {
            variants.iter().flat_map(|variant| variant.constraints().keys().to_vec()).collect::<Vec<_>>()
        };
        let (gone, came) = (named(gone), named(came));
        if gone == came {
            return;
        }
        let keys = Arc::make_mut(&mut self.keys);
        let before: Vec<_> = keys.uses.keys().cloned().collect();
        for key in came {
            *keys.uses.entry(key).or_default() += 1;
        }
        for key in gone {
            let uses = keys.uses.get_mut(&key).expect("a key that a variant names is counted");
            *uses -= 1;
            if *uses == 0 {
                keys.uses.remove(&key);
            }
        }
        if !keys.uses.keys().eq(&before) {
            keys.changed_at = revision;
        }
    }

    fn count_ttls(&mut self, name: &ResourceName, gone: &[Arc<Variant>], came: &[Arc<Variant>]) {
        if gone.iter().chain(came).all(|variant| variant.ttl().is_none()) {
            return;
        }
        let ttls = Arc::make_mut(&mut self.ttls);
        for ttl in came.iter().filter_map(|variant| variant.ttl()) {
            *ttls.entry(ttl).or_default() += 1;
        }
        for ttl in gone.iter().filter_map(|variant| variant.ttl()) {
            let count = ttls.get_mut(&ttl).expect("the TTL of a variant is counted");
            *count -= 1;
            if *count == 0 {
                ttls.remove(&ttl);
            }
        }
        let is_timed = |variants: &Variants| variants.iter().any(|variant| variant.ttl().is_some());
        match self.present.get(name).is_some_and(is_timed) {
            true => self.timed.insert_mut(name.clone(), ()),
            false => _ = self.timed.remove_mut(name),
        }
    }

    /// The shortest TTL of all variants; `None` when none has one.
    pub(crate) fn shortest_ttl(&self) -> Option<Duration> {
        self.ttls.keys().next().copied()
    }

    /// The least that is left of a TTL; `None` when no variant has one. O(names with a TTL).
    pub(crate) fn shortest_ttl_left(&self, now: Duration) -> Option<Duration> {
        let variants = self.timed_names().filter_map(|name| self.get(name));
        variants.flat_map(Variants::iter).filter_map(|variant| variant.ttl_left(now)).min()
    }

    /// The names that have a variant with a TTL.
    pub(crate) fn timed_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.timed.keys()
    }

    /// The remembered removal of a variant.
    fn remembered(&self, name: &ResourceName, constraints: &Constraints) -> Option<&Removed> {
        self.removed.get(name)?.iter().find(|removed| removed.variant.constraints() == constraints)
    }

    /// How much the remembered removals weigh: one each, and one for each 4 KiB of payload.
    pub(super) fn remembered_removals(&self) -> usize {
        self.removals
    }

    /// Forgets the removals up to a revision, in a commit.
    pub(super) fn forget_removals(&mut self, until: Revision, commit: Revision) {
        let mut removed = empty_map();
        let mut forgotten = Vec::new();
        self.removals = 0;
        for (name, entries) in self.removed.iter() {
            let (kept, old): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(|entry| entry.at > until);
            forgotten.extend(old.into_iter().map(|entry| entry.variant));
            if !kept.is_empty() {
                self.removals += weight(&kept);
                removed.insert_mut(name.clone(), kept);
            }
        }
        for name in self.removed.keys() {
            if !removed.contains_key(name)
                && !self.present.contains_key(name)
                && let Some(dropped) = self.dropped.get(name)
            {
                self.drops_since = self.drops_since.max(dropped.last());
                self.dropped.remove_mut(name);
            }
        }
        self.removed = removed;
        self.remembers_since = self.remembers_since.max(until);
        self.count_keys(&forgotten, &[], commit);
        for variant in forgotten {
            if !variant.aliases().is_empty() || XdstpName::is_new_style(variant.name().as_str()) {
                self.name_others(variant.name(), commit);
            }
        }
    }
}

impl Keys {
    /// Parameters without the keys that no constraint names: real nodes carry names and addresses
    /// of their own, so no two whole sets are equal.
    pub(crate) fn project(&self, parameters: &Parameters) -> Parameters {
        parameters.project(|key| self.uses.contains_key(key))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    pub(crate) fn changed_at(&self) -> Revision {
        self.changed_at
    }
}

impl Default for TypeSnapshot {
    fn default() -> Self {
        Self {
            present: empty_map(),
            variants: 0,
            removed: empty_map(),
            removals: 0,
            remembers_since: Revision::ZERO,
            sum: OnceLock::new(),
            keys: Arc::default(),
            timed: empty_map(),
            ttls: Arc::default(),
            other_names: OtherNames::default(),
            dropped: empty_map(),
            drops_since: Revision::ZERO,
            last_dropped: LastDropped::new(),
            naming: empty_map(),
            statuses: empty_map(),
        }
    }
}

fn weight(removed: &[Removed]) -> usize {
    removed.iter().map(|removed| 1 + removed.variant.payload().len() / 4096).sum()
}

/// What variants add to the version of a SotW response together (T38).
fn sum_of<'v>(variants: impl IntoIterator<Item = &'v Arc<Variant>>) -> u128 {
    variants.into_iter().fold(0, |sum, variant| sum.wrapping_add(variant.identity(Form::Name)))
}

pub(super) type NameMap<V> = HashTrieMapSync<ResourceName, V, RandomState>;

/// The keys of these maps come from the operator, not from peers, so a fixed seed does no harm and
/// needs no entropy.
pub(super) fn empty_map<K: Eq + Hash, V>() -> HashTrieMapSync<K, V, RandomState> {
    HashTrieMapSync::new_with_hasher_and_ptr_kind(RandomState::with_seeds(1, 2, 3, 4))
}
