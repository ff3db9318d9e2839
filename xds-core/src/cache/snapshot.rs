//! The content of the cache at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prost::{DecodeError, Message, Name};

use super::dropped::DroppedReferences;
use super::on_demand::LocatorStatus;
use super::other_names::OtherNames;
use super::referrers::Referrers;
use super::removals::Removals;
use super::transaction::{Change, CommitOrigin, VariantChange};
use super::ttls::Ttls;
use super::views::ViewId;
use crate::constraint::Constraints;
use crate::hash::{HashTrieMap, empty_map};
use crate::matching::{KeySetRule, SetError};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::references::Target;
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
    /// Where the last commit comes from.
    pub(super) origin: Arc<CommitOrigin>,
    /// Which streams see it.
    view: ViewId,
    /// The view equals the stable state again, because its candidate ended.
    has_ended: bool,
    /// A resource that is not in the cache is unknown until the source says that it is absent.
    is_on_demand: bool,
    /// See [`Cache::set_outdated`](super::Cache::set_outdated).
    pub(super) is_outdated: bool,
    /// The authorities whose names a wildcard does not select (C16).
    pub(crate) excluded: Option<ExcludedAuthorities>,
}

impl Snapshot {
    /// The revision of the commit that made this snapshot.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Where the last commit comes from.
    #[must_use]
    pub fn origin(&self) -> &CommitOrigin {
        &self.origin
    }

    /// Whether a source has committed, and knows what exists now. Until then no resource counts as
    /// absent (G13).
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.has_commit() && !self.is_outdated
    }

    pub(crate) fn has_commit(&self) -> bool {
        self.revision > Revision::ZERO
    }

    /// A snapshot with the same resources, at this revision.
    pub(super) fn up_to_date(&self, revision: Revision) -> Self {
        Self { revision, is_outdated: false, ..self.clone() }
    }

    /// The first snapshot of a cache [on demand](super::Cache::on_demand). Its revision is not
    /// zero, because a cursor of zero means that a stream had no response yet.
    pub(super) fn on_demand(excluded: Option<ExcludedAuthorities>) -> Self {
        Self { revision: Revision::ZERO.next(), is_on_demand: true, excluded, ..Self::default() }
    }

    /// The same state, at another revision.
    pub(super) fn at(self, revision: Revision) -> Self {
        Self { revision, ..self }
    }

    /// The same state, for another view.
    pub(super) fn of_view(self, view: ViewId) -> Self {
        Self { view, ..self }
    }

    pub(crate) fn view(&self) -> ViewId {
        self.view
    }

    /// Whether the view equals the stable state, so that a stream which was sent everything can
    /// return to it.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether a resource that is not in the cache is unknown rather than absent.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }

    /// Whether a wildcard leaves the name out.
    pub(crate) fn is_excluded(&self, name: &ResourceName) -> bool {
        self.excluded.as_ref().is_some_and(|excluded| excluded.contains(name))
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

    /// The message that clients with these parameters get. `None` if they match no variant, or if the
    /// variant is a [redirect](crate::Resource::redirect).
    ///
    /// # Errors
    /// The payload cannot be decoded as the message.
    pub fn get_message<M: Message + Name + Default>(
        &self,
        name: impl Into<ResourceName>,
        parameters: &Parameters,
    ) -> Result<Option<M>, DecodeError> {
        let variants = self.get(&TypeUrl::of::<M>(), &name.into());
        let variant = variants.and_then(|variants| variants.resolve(parameters));
        let message = variant.filter(|variant| !variant.is_redirect());
        message.map(|variant| M::decode(variant.payload().clone())).transpose()
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
    removals: Removals,
    /// The sum of the identities of all variants (T38).
    sum: u128,
    keys: Arc<Keys>,
    ttls: Ttls,
    other_names: OtherNames,
    dropped: DroppedReferences,
    referrers: Referrers,
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

    /// The same name, with the string that this type uses; `None` when no resource has it.
    pub(super) fn known_name(&self, name: &ResourceName) -> Option<ResourceName> {
        self.present.get_key_value(name).map(|(known, _)| known.clone())
    }

    /// The resources that name this one in any of their variants.
    pub(crate) fn referrers(
        &self,
        target: Target,
        name: &ResourceName,
    ) -> impl Iterator<Item = &ResourceName> + use<'_> {
        self.referrers.of(target, name)
    }

    /// Whether any variant of any resource names this one.
    pub(crate) fn has_referrer(&self, target: Target, name: &ResourceName) -> bool {
        let mut own =
            self.get(name).filter(|_| target == Target::Assignment).into_iter().flat_map(Variants::iter);
        self.referrers.has(target, name) || own.any(|own| own.endpoints() == Some(name))
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

    /// Why variants were removed.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&(ResourceName, Constraints), &Arc<str>)> {
        self.reasons.iter()
    }

    /// Why a variant was removed.
    pub(super) fn reason_of(&self, name: &ResourceName, constraints: &Constraints) -> Option<&Arc<str>> {
        self.reasons.get(&(name.clone(), constraints.clone()))
    }

    /// Takes the statuses of locators and the reasons of removals from another state.
    pub(super) fn answer_as(&mut self, other: &Self) {
        self.statuses = other.statuses.clone();
        self.reasons = Arc::clone(&other.reasons);
    }

    /// Whether the source of an on-demand cache set the status of any locator.
    pub(crate) fn has_statuses(&self) -> bool {
        !self.statuses.is_empty()
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
        let is_empty = self.present.is_empty() && self.statuses.is_empty() && self.reasons.is_empty();
        is_empty && self.removals.are_none()
    }

    /// Names whose last variant was removed and whose removal is remembered, in no particular
    /// order.
    pub(crate) fn removed_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.removals.names().filter(|name| !self.present.contains_key(*name))
    }

    pub(crate) fn removals(&self) -> &Removals {
        &self.removals
    }

    pub(crate) fn dropped(&self) -> &DroppedReferences {
        &self.dropped
    }

    pub(crate) fn ttls(&self) -> &Ttls {
        &self.ttls
    }

    pub(crate) fn other_names(&self) -> &OtherNames {
        &self.other_names
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
                Change::Put(mut resource) => {
                    if before.is_some_and(|before| before.version() == resource.version()) {
                        continue;
                    }
                    // A variant that comes back keeps its history, so that a stream which missed
                    // both the removal and the return can compare (S6, D12).
                    let removed_before = || self.removals.find(name, &constraints);
                    let former = before.map(|before| (before, None));
                    resource.references.date_sources(before.map(|before| &before.references), revision);
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
        let present = self.present.get(name);
        self.ttls.count(name, &removed, &inserted, present);
        self.referrers.note(name, &removed, &inserted, present);
        self.dropped.note(name, &removed, &inserted, revision);
        let forgotten = self.removals.note(name, removed, &inserted, revision);
        Keys::count(&mut self.keys, &forgotten, &inserted, revision);
        if has_aliases || XdstpName::is_new_style(name.as_str()) {
            self.note_other_names(name, revision);
        }
        Ok(changed)
    }

    /// Updates the other names of a resource that is present or whose removal is remembered.
    fn note_other_names(&mut self, name: &ResourceName, at: Revision) {
        let present = self.present.get(name).into_iter().flat_map(Variants::iter);
        let removed = self.removals.of(name).iter().map(|removed| &removed.variant);
        let mut variants = present.chain(removed).peekable();
        let is_known = variants.peek().is_some();
        let mut others: BTreeSet<_> = variants.flat_map(|variant| variant.aliases()).cloned().collect();
        others.extend(xdstp::glob_of(name).filter(|_| is_known));
        others.remove(name);
        let is_present = self.present.contains_key(name);
        self.other_names.set(name, &others, is_present, at);
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

    /// The same, with their variants.
    pub(crate) fn variants_selected_by<'s>(
        &'s self,
        listed: &'s ResourceName,
    ) -> impl Iterator<Item = (&'s ResourceName, &'s Variants)> {
        let of = |name: &'s ResourceName| Some((name, self.present.get(name)?));
        of(listed).into_iter().chain(self.other_names.members(listed).filter_map(of))
    }

    /// The shortest remaining time of a TTL; `None` when no variant has one. O(names with a TTL).
    pub(crate) fn shortest_remaining_ttl(&self, now: Duration) -> Option<Duration> {
        let variants = self.ttls.names().filter_map(|name| self.get(name));
        variants.flat_map(Variants::iter).filter_map(|variant| variant.remaining_ttl(now)).min()
    }

    /// Forgets the removals at or before the revision `until`, as part of a commit.
    pub(super) fn forget_removals(&mut self, until: Revision, commit: Revision) {
        let forgotten = self.removals.forget(until);
        for variant in &forgotten {
            let name = variant.name();
            if self.removals.of(name).is_empty() && !self.present.contains_key(name) {
                self.dropped.forget(name);
            }
        }
        Keys::count(&mut self.keys, &forgotten, &[], commit);
        for variant in forgotten {
            if !variant.aliases().is_empty() || XdstpName::is_new_style(variant.name().as_str()) {
                self.note_other_names(variant.name(), commit);
            }
        }
    }
}

impl Keys {
    /// Counts the keys that constraints use, those of remembered removals included: which streams
    /// have to be sent a removal still depends on its keys.
    fn count(
        keys: &mut Arc<Self>,
        forgotten: &[Arc<Variant>],
        inserted: &[Arc<Variant>],
        revision: Revision,
    ) {
        let used = |variants: &[Arc<Variant>]| {
            variants.iter().flat_map(|variant| variant.constraints().keys().to_vec()).collect::<Vec<_>>()
        };
        let (unused, used) = (used(forgotten), used(inserted));
        if unused == used {
            return;
        }
        let keys = Arc::make_mut(keys);
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

    /// The parameters without the keys that no constraints use. Real nodes have names and addresses
    /// of their own, so no two complete sets of parameters are equal.
    pub(crate) fn project(&self, parameters: &Parameters) -> Parameters {
        parameters.project(|key| self.uses.contains_key(key))
    }

    /// The keys, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.uses.keys()
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
            removals: Removals::default(),
            sum: 0,
            keys: Arc::default(),
            ttls: Ttls::default(),
            other_names: OtherNames::default(),
            dropped: DroppedReferences::default(),
            referrers: Referrers::default(),
            statuses: empty_map(),
            reasons: Arc::default(),
        }
    }
}

/// How many removals of a type have a reason.
const REASONS_LIMIT: usize = 1_000;

/// The sum of identities that these variants add to the version of a SotW response (T38).
fn sum_of<'v>(variants: impl IntoIterator<Item = &'v Arc<Variant>>) -> u128 {
    variants.into_iter().fold(0, |sum, variant| sum.wrapping_add(variant.identity(KeyedBy::Name)))
}

pub(super) type NameMap<V> = HashTrieMap<ResourceName, V>;
