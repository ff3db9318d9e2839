//! The content of the cache at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::dropped::{Dropped, LastDropped};
use super::on_demand::LocatorStatus;
use super::other_names::OtherNames;
use super::transaction::{Change, VariantChange};
use crate::constraint::Constraints;
use crate::hash::{HashTrieMap, empty_map};
use crate::matching::{KeySetRule, SetError};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::references::{Reference, Target};
use crate::subscription::{ExcludedAuthorities, Locator};
use crate::variants::{KeyedBy, Variant, Variants};
use crate::xdstp::{self, XdstpName};

/// All resources of all types at one revision. A snapshot is immutable. It shares everything that
/// did not change with the snapshot before it.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    revision: Revision,
    /// A commit copies the types that it changes, and shares the others.
    types: BTreeMap<TypeUrl, Arc<TypeSnapshot>>,
    /// A resource that is not in the cache is unknown until the source says that it is absent.
    is_on_demand: bool,
    /// The authorities whose names a wildcard does not select (C16).
    pub(crate) excluded: Option<ExcludedAuthorities>,
}

impl Snapshot {
    /// The revision of the commit that made this snapshot.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether a source has committed. Until then no resource counts as absent (G13).
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.revision > Revision::ZERO
    }

    /// The first snapshot of a cache [on demand](super::Cache::on_demand). Its revision is not
    /// zero, because a cursor of zero means that a stream had no response yet.
    pub(super) fn on_demand(excluded: Option<ExcludedAuthorities>) -> Self {
        Self { revision: Revision::ZERO.next(), is_on_demand: true, excluded, ..Self::default() }
    }

    /// Whether a resource that is not in the cache is unknown rather than absent.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }

    /// The status of a locator that the source set; `None` without one.
    #[must_use]
    pub(crate) fn locator_status(
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

    /// The resources of one type; `None` if the cache never had any.
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> Option<&TypeSnapshot> {
        self.types.get(type_url).map(Arc::as_ref)
    }

    /// The variants of one resource.
    #[must_use]
    pub fn get(&self, type_url: &TypeUrl, name: &ResourceName) -> Option<&Variants> {
        self.of_type(type_url)?.get(name)
    }

    /// Whether the constraints of a resource name the key. Those of resources that a commit removed
    /// count as long as the cache remembers the removal.
    #[must_use]
    pub fn is_key_named(&self, key: &str) -> bool {
        self.types.values().any(|resources| resources.keys.uses.contains_key(key))
    }

    /// All types that the cache ever had, in order, with their number of names.
    pub fn counts(&self) -> impl Iterator<Item = (&TypeUrl, usize)> {
        self.types.iter().map(|(type_url, resources)| (type_url, resources.len()))
    }

    pub(super) fn edit(&mut self, revision: Revision) -> &mut BTreeMap<TypeUrl, Arc<TypeSnapshot>> {
        self.revision = revision;
        &mut self.types
    }
}

/// The resources of one type at one revision.
#[derive(Debug, Clone)]
pub struct TypeSnapshot {
    present: NameMap<Variants>,
    /// The number of variants of all names.
    variants: usize,
    /// Variants that were removed, as long as a stream may not have seen the removal.
    removed: NameMap<Vec<Removed>>,
    /// The weight of all remembered removals.
    removals: usize,
    /// Removals at or before this revision are forgotten.
    remembers_since: Revision,
    /// The sum of the identities of all variants (T38).
    sum: u128,
    keys: Arc<Keys>,
    /// Names that have a variant with a TTL.
    timed: NameMap<()>,
    /// The TTLs of all variants, each with its number of variants.
    ttls: Arc<BTreeMap<Duration, usize>>,
    other_names: OtherNames,
    /// When a resource stops naming another one (S33), a client that has not ACKed this may still
    /// use it. So each name that is present, or whose removal is remembered, keeps the references
    /// that it dropped.
    dropped: NameMap<Arc<Dropped>>,
    /// Up to this revision, dropped references of other names are forgotten.
    drops_since: Revision,
    /// For each resource that was named, when a reference to it was dropped last.
    pub(crate) last_dropped: LastDropped,
    /// The names of the resources that reference a cluster, a secret and so on. A cluster that
    /// names the assignment with its own name is left out.
    referrers: HashTrieMap<(Target, ResourceName), Arc<BTreeSet<ResourceName>>>,
    /// The statuses of locators, in a cache on demand.
    statuses: HashTrieMap<Locator, LocatorStatus>,
    /// Why variants were removed, where their source says so.
    reasons: Arc<BTreeMap<(ResourceName, Constraints), Arc<str>>>,
}

/// The keys that constraints of a type use, those of remembered removals included.
#[derive(Debug, Default, Clone)]
pub(crate) struct Keys {
    /// Each key with the number of variants that use it.
    uses: BTreeMap<Arc<str>, usize>,
    /// The revision of the commit that added or removed a key last.
    changed_at: Revision,
}

/// A variant that a commit removed; remembered as long as a stream may not have seen the removal.
#[derive(Debug, Clone)]
pub(crate) struct Removed {
    /// The variant with its last content.
    pub(crate) variant: Arc<Variant>,
    /// The revision of the commit that removed it.
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

    /// The number of variants of all names.
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

    /// Whether all removals after a revision are remembered.
    pub(crate) fn remembers(&self, revision: Revision) -> bool {
        revision >= self.remembers_since
    }

    /// The same name, with the string that this type uses; `None` when no resource has it.
    pub(super) fn known_name(&self, name: &ResourceName) -> Option<ResourceName> {
        self.present.get_key_value(name).map(|(known, _)| known.clone())
    }

    /// The resources of a type to which the resource with this name dropped its references after a
    /// revision (S33).
    pub(crate) fn dropped_after<'s>(
        &'s self,
        name: &ResourceName,
        revision: Revision,
        target: Target,
    ) -> impl Iterator<Item = Reference<'s>> + use<'s> {
        // Also for a name that is present: it may have been removed and added again.
        let forgotten = (self.drops_since > revision).then_some(Reference::Any);
        let dropped = self.dropped.get(name).into_iter();
        forgotten.into_iter().chain(dropped.flat_map(move |dropped| dropped.since(revision, target)))
    }

    /// The resources that name this one in any of their variants.
    pub(crate) fn referrers(
        &self,
        target: Target,
        name: &ResourceName,
    ) -> impl Iterator<Item = &ResourceName> + use<'_> {
        self.referrers.get(&(target, name.clone())).into_iter().flat_map(|names| names.iter())
    }

    /// Whether any variant of any resource names this one.
    pub(crate) fn has_referrer(&self, target: Target, name: &ResourceName) -> bool {
        let mut own =
            self.get(name).filter(|_| target == Target::Assignment).into_iter().flat_map(Variants::iter);
        self.referrers.contains_key(&(target, name.clone())) || own.any(|own| own.endpoints() == Some(name))
    }

    /// Stores the status of a locator. Returns whether it changed.
    pub(super) fn set_status(&mut self, locator: &Locator, status: Option<LocatorStatus>) -> bool {
        let is_new = self.statuses.get(locator) != status.as_ref();
        match status.filter(|_| is_new) {
            Some(status) => self.statuses.insert_mut(locator.clone(), status),
            None if is_new => _ = self.statuses.remove_mut(locator),
            None => {}
        }
        is_new
    }

    /// Notes why variants are removed. Returns whether anything changed.
    pub(super) fn note_reasons(&mut self, changes: &[VariantChange]) -> bool {
        let mut has_changed = false;
        for VariantChange { name, constraints, change } in changes {
            match change {
                Change::RemoveBecause(reason) => {
                    let key = (name.clone(), constraints.clone());
                    // Those above the limit are removed without a reason.
                    if self.reasons.get(&key) != Some(reason) && self.reasons.len() < REASONS_LIMIT {
                        Arc::make_mut(&mut self.reasons).insert(key, Arc::clone(reason));
                        has_changed = true;
                    }
                }
                Change::Put(_) | Change::Remove if self.reasons.is_empty() => {}
                Change::Put(_) | Change::Remove => {
                    let key = (name.clone(), constraints.clone());
                    if self.reasons.contains_key(&key) {
                        Arc::make_mut(&mut self.reasons).remove(&key);
                        has_changed = true;
                    }
                }
            }
        }
        has_changed
    }

    /// Whether it says of any variant why it was removed.
    pub(crate) fn has_reasons(&self) -> bool {
        !self.reasons.is_empty()
    }

    /// Why the variant of a name that these parameters would select was removed.
    pub(crate) fn reason(&self, name: &ResourceName, parameters: &Parameters) -> Option<&Arc<str>> {
        let of_name = self.reasons.range((name.clone(), Constraints::NONE)..);
        let mut of_name = of_name.take_while(|((other, _), _)| other == name);
        of_name.find(|((_, constraints), _)| constraints.matches(parameters)).map(|(_, reason)| reason)
    }

    /// Whether the type has no content, and never had a resource that a stream may have been sent.
    pub(super) fn is_blank(&self) -> bool {
        let never_removed = self.removed.is_empty() && self.remembers_since == Revision::ZERO;
        self.present.is_empty() && self.statuses.is_empty() && self.reasons.is_empty() && never_removed
    }

    /// Updates [`referrers`](Self::referrers) after a commit replaced the variants `removed` of a
    /// name by the variants `inserted`.
    fn note_referrers(&mut self, name: &ResourceName, removed: &[Arc<Variant>], inserted: &[Arc<Variant>]) {
        // A new version usually names the same resources as the one before.
        let (before, after) = (removed.iter(), inserted.iter());
        if before.map(|variant| &variant.references).eq(after.map(|variant| &variant.references)) {
            return;
        }
        let named = |variants: &[Arc<Variant>]| -> BTreeSet<_> {
            let references = variants.iter().flat_map(|variant| variant.references.iter(name));
            let others = references.filter(|(target, named)| *target != Target::Assignment || *named != name);
            others.map(|(target, named)| (target, named.clone())).collect()
        };
        let (before, after) = (named(removed), named(inserted));
        let mut dropped: BTreeSet<_> = before.difference(&after).collect();
        // A name may have very many variants: read them only when a reference was dropped.
        let still =
            self.present.get(name).filter(|_| !dropped.is_empty()).into_iter().flat_map(Variants::iter);
        for variant in still {
            dropped.retain(|(target, named)| !variant.references.has(name, *target, named));
        }
        for key in dropped {
            let mut names = self.referrers.get(key).map(|names| BTreeSet::clone(names)).unwrap_or_default();
            names.remove(name);
            match names.is_empty() {
                true => _ = self.referrers.remove_mut(key),
                false => self.referrers.insert_mut(key.clone(), Arc::new(names)),
            }
        }
        for key in after {
            let names = self.referrers.get(&key);
            if names.is_none_or(|names| !names.contains(name)) {
                let mut names = names.map(|names| BTreeSet::clone(names)).unwrap_or_default();
                names.insert(name.clone());
                self.referrers.insert_mut(key, Arc::new(names));
            }
        }
    }

    /// The names with [dropped references](Self::dropped_after), in no particular order.
    pub(crate) fn names_with_dropped(&self) -> impl Iterator<Item = &ResourceName> {
        self.dropped.keys()
    }

    /// Names whose last variant was removed and whose removal is remembered, in no particular
    /// order.
    pub(crate) fn removed_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.removed.keys().filter(|name| !self.present.contains_key(*name))
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The sum of the identities of all variants.
    pub(crate) fn sum(&self) -> u128 {
        self.sum
    }

    /// Puts and removes variants of one name. Returns the constraints of the variants that changed,
    /// in the order of the changes.
    ///
    /// # Errors
    /// When the resulting set of variants breaks a rule (T15, T17). Then nothing is changed.
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
                    // A variant that comes back keeps its history, so that a stream which missed
                    // both the removal and the return can compare (S6, D12).
                    // A variant that comes back keeps its history, so that a stream which missed
                    // both the removal and the return can compare (S6, D12).
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
                Change::Remove | Change::RemoveBecause(_) => match before {
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
        self.sum = self.sum.wrapping_sub(sum_of(&removed)).wrapping_add(sum_of(&inserted));
        let has_aliases = removed.iter().chain(&inserted).any(|variant| !variant.aliases().is_empty());
        self.count_ttls(name, &removed, &inserted);
        self.note_referrers(name, &removed, &inserted);
        if let Some(dropped) =
            Dropped::after(self.dropped.get(name).map(Arc::as_ref), &removed, &inserted, revision)
        {
            self.last_dropped.note(&dropped, revision);
            self.dropped.insert_mut(name.clone(), Arc::new(dropped));
        }
        let forgotten = self.remember(name, removed, &inserted, revision);
        self.count_keys(&forgotten, &inserted, revision);
        if has_aliases || XdstpName::is_new_style(name.as_str()) {
            self.note_other_names(name, revision);
        }
        Ok(changed)
    }

    /// Updates the other names of a resource that is present or whose removal is remembered.
    fn note_other_names(&mut self, name: &ResourceName, at: Revision) {
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

    /// The other names of a resource, besides its own, that a subscription may use.
    pub(crate) fn other_names_of(&self, name: &ResourceName) -> &[ResourceName] {
        self.other_names.of(name)
    }

    /// Other names that a resource gave up after a revision.
    pub(crate) fn former_names_of(
        &self,
        name: &ResourceName,
        since: Revision,
    ) -> impl Iterator<Item = &ResourceName> {
        self.other_names.former(name, since)
    }

    /// The resources that gave up other names.
    pub(crate) fn with_former_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.other_names.with_former()
    }

    /// Whether any resource has other names, or gave up some.
    pub(crate) fn has_other_names(&self) -> bool {
        !self.other_names.is_empty()
    }

    /// The names of the resources that a subscription to `listed` selects: the resource with this
    /// name, and those that have it as an alias or are members of this glob.
    pub(crate) fn selected_by<'s>(
        &'s self,
        listed: &'s ResourceName,
    ) -> impl Iterator<Item = &'s ResourceName> {
        let members = self.other_names.members(listed);
        std::iter::once(listed).filter(|listed| self.present.contains_key(*listed)).chain(members)
    }

    /// Remembers the variants that a commit took away, and forgets remembered removals of variants
    /// that came back. Returns the variants that are neither present nor remembered any more.
    fn remember(
        &mut self,
        name: &ResourceName,
        removed: Vec<Arc<Variant>>,
        inserted: &[Arc<Variant>],
        at: Revision,
    ) -> Vec<Arc<Variant>> {
        // Variants that only got new content are not removed.
        let (before, after) = (removed.iter(), inserted.iter());
        let has_same_variants =
            before.map(|variant| variant.constraints()).eq(after.map(|variant| variant.constraints()));
        if has_same_variants && !self.removed.contains_key(name) {
            return removed;
        }
        let inserted: BTreeSet<_> = inserted.iter().map(|variant| variant.constraints()).collect();
        let is_present = |variant: &Variant| inserted.contains(variant.constraints());
        let known = self.removed.get(name).cloned().unwrap_or_default();
        self.removals -= weight(&known);
        let (returned, mut known): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|removed| is_present(&removed.variant));
        let (mut forgotten, removed): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|variant| is_present(variant));
        forgotten.extend(returned.into_iter().map(|removed| removed.variant));
        known.extend(removed.into_iter().map(|variant| Removed { variant, at }));
        self.removals += weight(&known);
        match known.is_empty() {
            true => _ = self.removed.remove_mut(name),
            false => self.removed.insert_mut(name.clone(), known),
        }
        forgotten
    }

    /// Counts the keys that constraints use, those of remembered removals included: which streams
    /// have to be sent a removal still depends on its keys.
    fn count_keys(&mut self, forgotten: &[Arc<Variant>], inserted: &[Arc<Variant>], revision: Revision) {
        let used = |variants: &[Arc<Variant>]| {
            variants.iter().flat_map(|variant| variant.constraints().keys().to_vec()).collect::<Vec<_>>()
        };
        let (unused, used) = (used(forgotten), used(inserted));
        if unused == used {
            return;
        }
        let keys = Arc::make_mut(&mut self.keys);
        let before: Vec<_> = keys.uses.keys().cloned().collect();
        for key in used {
            *keys.uses.entry(key).or_default() += 1;
        }
        for key in unused {
            let uses = keys.uses.get_mut(&key).expect("a key that constraints use is counted");
            *uses -= 1;
            if *uses == 0 {
                keys.uses.remove(&key);
            }
        }
        if !keys.uses.keys().eq(&before) {
            keys.changed_at = revision;
        }
    }

    fn count_ttls(&mut self, name: &ResourceName, removed: &[Arc<Variant>], inserted: &[Arc<Variant>]) {
        if removed.iter().chain(inserted).all(|variant| variant.ttl().is_none()) {
            return;
        }
        let ttls = Arc::make_mut(&mut self.ttls);
        for ttl in inserted.iter().filter_map(|variant| variant.ttl()) {
            *ttls.entry(ttl).or_default() += 1;
        }
        for ttl in removed.iter().filter_map(|variant| variant.ttl()) {
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

    /// The shortest remaining time of a TTL; `None` when no variant has one. O(names with a TTL).
    pub(crate) fn shortest_remaining_ttl(&self, now: Duration) -> Option<Duration> {
        let variants = self.timed_names().filter_map(|name| self.get(name));
        variants.flat_map(Variants::iter).filter_map(|variant| variant.remaining_ttl(now)).min()
    }

    /// The names that have a variant with a TTL.
    pub(crate) fn timed_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.timed.keys()
    }

    /// The remembered removal of a variant.
    fn remembered(&self, name: &ResourceName, constraints: &Constraints) -> Option<&Removed> {
        self.removed.get(name)?.iter().find(|removed| removed.variant.constraints() == constraints)
    }

    /// The weight of the remembered removals: one each, and one for each 4 KiB of payload.
    pub(super) fn remembered_removals(&self) -> usize {
        self.removals
    }

    /// Forgets the removals at or before the revision `until`, as part of a commit.
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
                self.note_other_names(variant.name(), commit);
            }
        }
    }
}

impl Keys {
    /// The parameters without the keys that no constraints use. Real nodes have names and addresses
    /// of their own, so no two complete sets of parameters are equal.
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

/// In place of a type that has none. One for all, because an empty one takes nine allocations.
pub(super) static NO_RESOURCES: LazyLock<TypeSnapshot> = LazyLock::new(TypeSnapshot::default);

impl Default for TypeSnapshot {
    fn default() -> Self {
        Self {
            present: empty_map(),
            variants: 0,
            removed: empty_map(),
            removals: 0,
            remembers_since: Revision::ZERO,
            sum: 0,
            keys: Arc::default(),
            timed: empty_map(),
            ttls: Arc::default(),
            other_names: OtherNames::default(),
            dropped: empty_map(),
            drops_since: Revision::ZERO,
            last_dropped: LastDropped::new(),
            referrers: empty_map(),
            statuses: empty_map(),
            reasons: Arc::default(),
        }
    }
}

/// How many removals of a type have a reason.
const REASONS_LIMIT: usize = 1_000;

fn weight(removed: &[Removed]) -> usize {
    removed.iter().map(|removed| 1 + removed.variant.payload().len() / 4096).sum()
}

/// The sum of identities that these variants add to the version of a SotW response (T38).
fn sum_of<'v>(variants: impl IntoIterator<Item = &'v Arc<Variant>>) -> u128 {
    variants.into_iter().fold(0, |sum, variant| sum.wrapping_add(variant.identity(KeyedBy::Name)))
}

pub(super) type NameMap<V> = HashTrieMap<ResourceName, V>;
