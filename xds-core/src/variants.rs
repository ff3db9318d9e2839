//! All variants of one name, and which of them a subscription gets (T1-T5).

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use crate::access::NamePatterns;
use crate::constraint::{Constraints, Formula};
use crate::extras::{Extras, Ttl};
use crate::hash::digest;
use crate::matching::coverage::{Coverage, Domains};
use crate::matching::normal::{Normal, TooComplex};
use crate::matching::{Explanation, KeySetRule, SetError, VariantSet};
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::references::{NamedList, References, Target};
use crate::resource::{Resource, VariantId};
use crate::wire::ResourceKey;
use crate::xdstp;

/// One stored variant of a resource.
#[derive(Debug)]
pub struct Variant {
    name: ResourceName,
    constraints: Constraints,
    payload: Bytes,
    version: Version,
    /// The digest of name and version. It is stored because the first response to a stream with a
    /// list of its own, or with all of 100,000 resources, adds up that many of them.
    identity: u128,
    /// The revision of the commit that set this content.
    pub(crate) changed_at: Revision,
    /// The newest few states before this one, oldest first: the revision since which a state was in
    /// the cache, and its version, or `None` while the variant was removed. A stream with an older
    /// cursor uses it to find out whether the content differs from what it was sent (S6, D12).
    history: Box<[(Revision, Option<Version>)]>,
    /// The revision of the commit that first added the variant; a removal that is remembered does
    /// not reset it.
    pub(crate) born_at: Revision,
    /// The resources that the payload names (S33).
    pub(crate) references: References,
    /// The fields of the wrapper besides name, version and payload; `None` without any.
    extras: Option<Box<Extras>>,
    /// The value that the program made of the payload; empty in a server. In a box, because a cache
    /// has many variants, and few of them are read.
    decoded: OnceLock<Box<Decoded>>,
}

/// A payload as the program uses it. Only the typed layer knows the type behind `Any`.
pub type Decoded = Arc<dyn Any + Send + Sync>;

/// The key by which a client is sent resources (T24).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyedBy {
    /// The plain name, without constraints: the client subscribes by name.
    #[default]
    Name,
    /// The name with the constraints of the variant: the client subscribes by locator.
    Locator,
}

/// What is sent once more after these variants, each with the revision of the content that the client
/// had of it: in order, and each once.
pub(crate) fn followers<'v>(variants: impl Iterator<Item = (&'v Arc<Variant>, Revision)>) -> NamedList {
    let followers = variants.flat_map(|(variant, since)| variant.followers(since));
    let mut followers: Vec<_> = followers.map(|(target, name)| (target, name.clone())).collect();
    followers.sort_unstable();
    followers.dedup();
    followers
}

impl Variant {
    pub(crate) fn new(resource: Resource, changed_at: Revision, born_at: Revision) -> Self {
        let history = Box::default();
        let Resource { id, payload, version, references, extras } = resource;
        let VariantId { name, constraints, .. } = id;
        let identity = identity(&name, version);
        Self {
            name,
            constraints,
            payload,
            version,
            identity,
            changed_at,
            history,
            born_at,
            references,
            extras,
            decoded: OnceLock::new(),
        }
    }

    /// The resource that this variant was made from. It shares the payload.
    #[must_use]
    pub fn resource(&self, type_url: &TypeUrl) -> Resource {
        let (name, constraints) = (self.name.clone(), self.constraints.clone());
        let id = VariantId { type_url: type_url.clone(), name, constraints };
        let (references, extras) = (self.references.clone(), self.extras.clone());
        Resource { id, payload: self.payload.clone(), version: self.version, references, extras }
    }

    /// This variant with the history of the one that it replaces, which may have been removed
    /// meanwhile.
    pub(crate) fn after(self, before: &Self, removed_at: Option<Revision>) -> Self {
        let present = (before.changed_at, Some(before.version));
        let removed = removed_at.map(|at| (at, None));
        let history: Vec<_> = before.history.iter().copied().chain([present]).chain(removed).collect();
        let newest = history.len().saturating_sub(HISTORY_LIMIT);
        Self { history: history[newest..].into(), ..self }
    }

    /// Whether the content at a revision was another one (S6, D12). Content that changed and
    /// changed back does not differ. When the history does not reach back, it counts as different.
    pub(crate) fn differs_since(&self, revision: Revision) -> bool {
        self.version_at(revision) != Some(self.version)
    }

    /// The version at a revision; `None` if the variant did not exist, or the history does not
    /// reach back.
    pub(crate) fn version_at(&self, revision: Revision) -> Option<Version> {
        if self.changed_at <= revision {
            return Some(self.version);
        }
        self.history.iter().rev().find(|(at, _)| *at <= revision).and_then(|(_, version)| *version)
    }

    /// Whether the variant existed at a revision, with whatever content. When the history does not
    /// reach back, it counts as existing.
    pub(crate) fn existed_at(&self, revision: Revision) -> bool {
        let then = self.history.iter().rev().find(|(at, _)| *at <= revision);
        let is_older = self.history.first().is_none_or(|(at, _)| *at > revision);
        self.changed_at <= revision
            || then.is_some_and(|(_, version)| version.is_some())
            || (is_older && self.born_at <= revision)
    }

    /// Whether it has the content of a variant from before under its constraints, and was not removed since.
    pub(crate) fn is_same_as(&self, before: &Self) -> bool {
        let was_removed =
            || self.history.iter().any(|(at, version)| *at > before.changed_at && version.is_none());
        let is_back = !self.differs_since(before.changed_at) && self.version == before.version;
        self.constraints == before.constraints && is_back && !was_removed()
    }

    /// Whether there was another content under its constraints before.
    pub(crate) fn has_changed(&self) -> bool {
        self.born_at < self.changed_at
    }

    /// The digest of name and version, which this variant adds to the version of a SotW response
    /// (T38).
    pub(crate) fn identity(&self, keyed_by: KeyedBy) -> u128 {
        match self.version_for(keyed_by) {
            version if version == self.version => self.identity,
            version => identity(&self.name, version),
        }
    }

    /// The version that a client is sent (T37). A client that subscribes by locator is sent the
    /// constraints too, so they are part of the content, and no two variants of a name have the
    /// same version. For a client that subscribes by name only the payload counts, so a change of
    /// constraints sends nothing.
    pub(crate) fn version_for(&self, keyed_by: KeyedBy) -> Version {
        if keyed_by == KeyedBy::Name || self.constraints.is_unconstrained() {
            return self.version;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.version.0.to_be_bytes());
        // The canonical constraints, not the bytes received: replicas that received the operands in
        // another order must agree (T22).
        let keys = self.constraints.keys().iter().map(|key| key.as_bytes());
        for part in std::iter::once(self.constraints.canon()).chain(keys) {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        Version(digest(&hasher))
    }

    /// Its type, name and constraints.
    pub(crate) fn id(&self, type_url: &TypeUrl) -> VariantId {
        let (name, constraints) = (self.name.clone(), self.constraints.clone());
        VariantId { type_url: type_url.clone(), name, constraints }
    }

    /// The name that clients subscribe to.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// The revision of the commit that set this content.
    #[must_use]
    pub fn changed_at(&self) -> Revision {
        self.changed_at
    }

    /// The constraints that the parameters of a client have to match.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// The key by which a client knows the variant.
    pub(crate) fn key(&self, keyed_by: KeyedBy) -> ResourceKey {
        // T43c: a variant for exactly one locator is sent without constraints, as it was received.
        let constraints = (keyed_by == KeyedBy::Locator).then(|| match self.constraints() {
            exact if exact.is_exact() => Constraints::NONE,
            constraints => constraints.clone(),
        });
        ResourceKey { name: self.name().clone(), constraints }
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The value that `decode` makes of the payload. The first value is kept as long as the variant,
    /// for all readers; a value of another type is made at each call.
    pub(crate) fn decoded<V>(&self, decode: impl Fn(&Bytes) -> V) -> V
    where
        V: Any + Clone + Send + Sync,
    {
        let kept = self.decoded.get_or_init(|| Box::new(Arc::new(decode(&self.payload))));
        kept.downcast_ref().cloned().unwrap_or_else(|| decode(&self.payload))
    }

    /// Keeps the value that was made of the payload when the variant arrived.
    pub(crate) fn keep_decoded(&self, decoded: Decoded) {
        // An unchanged variant may have one already: then that one stays.
        self.decoded.get_or_init(|| Box::new(decoded));
    }

    /// The name of the assignment with the endpoints of this cluster (S34).
    pub(crate) fn endpoints(&self) -> Option<&ResourceName> {
        self.references.endpoints(&self.name)
    }

    /// The resources that are sent once more after this variant, if the client had another content of it
    /// at a revision: the endpoints of a cluster (S34), and what it names by another source (S34b).
    pub(crate) fn followers(&self, since: Revision) -> impl Iterator<Item = (Target, &ResourceName)> {
        let endpoints = self.endpoints().map(|name| (Target::Assignment, name));
        endpoints.into_iter().chain(self.references.newly_sourced(since))
    }

    /// The time after which clients remove it, unless they receive it or a heartbeat again (S38).
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.extras.as_ref()?.ttl
    }

    /// The other names that clients can subscribe to (D24), sorted.
    #[must_use]
    pub fn aliases(&self) -> &[ResourceName] {
        self.extras.as_ref().map_or(&[], |extras| &extras.aliases)
    }

    /// Whether proxies must not keep a copy after its use (`cache_control`).
    #[must_use]
    pub fn do_not_cache(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.do_not_cache)
    }

    /// The type of the payload. For a redirect it is not the type of the resource (X14).
    pub(crate) fn payload_type<'a>(&self, type_url: &'a TypeUrl) -> &'a str {
        Extras::payload_type(self.extras.as_deref(), type_url)
    }

    /// Whether the payload only says where the resource is (X14).
    pub(crate) fn is_redirect(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.is_redirect)
    }

    /// Whether a subscription to this name selects it: its own name, an alias, or its glob (X12).
    pub(crate) fn is_named(&self, listed: &ResourceName) -> bool {
        self.name == *listed
            || self.aliases().contains(listed)
            || xdstp::glob_of(&self.name).as_ref() == Some(listed)
    }

    /// Whether its extra fields are equal to these.
    pub(crate) fn has_extras(&self, extras: Option<&Extras>) -> bool {
        self.extras.as_deref() == extras
    }

    /// The encoded fields of the wrapper besides name, version and payload.
    pub(crate) fn extra_fields(&self, ttl: Ttl, scope: Option<&NamePatterns>) -> impl Iterator<Item = Bytes> {
        self.extras.iter().flat_map(move |extras| extras.wire(ttl, scope))
    }

    /// The remaining time of its TTL.
    pub(crate) fn remaining_ttl(&self, now: Duration) -> Option<Duration> {
        self.extras.as_ref()?.remaining_ttl(now)
    }

    /// Sets the end of its TTL, which its server extended; `None` means for ever.
    pub(crate) fn extend(&self, until: Option<Duration>) {
        if let Some(lease) = self.extras.as_ref().and_then(|extras| extras.lease.as_ref()) {
            lease.extend(until);
        }
    }

    /// The digest of the payload and the extra fields.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }
}

/// The variants of one name. At most one matches the parameters of any subscription.
#[derive(Debug, Default, Clone)]
pub struct Variants(VariantSet<Arc<Variant>>);

impl Variants {
    /// The set after these removals and insertions; `None` when it is empty.
    ///
    /// # Errors
    /// See [`SetError`]. The rules hold for the resulting set (T16).
    pub(crate) fn edit(
        &self,
        removals: &[Arc<Variant>],
        insertions: &[Arc<Variant>],
        key_sets: KeySetRule,
    ) -> Result<Option<Self>, SetError<Arc<Variant>>> {
        if let [only] = insertions
            && only.constraints == Constraints::NONE
            && self.0.len() == removals.len()
        {
            return Ok(Some(Self(VariantSet::everyone(Arc::clone(only)))));
        }
        let removed = removals.iter().map(|variant| variant.constraints.formula());
        let inserted = insertions.iter().map(|variant| ((&variant.constraints).into(), Arc::clone(variant)));
        let set = self.0.edit(removed, inserted, key_sets)?;
        Ok((!set.is_empty()).then_some(Self(set)))
    }

    /// The variant that matches these parameters (T3); `None` when none matches (T4).
    #[must_use]
    pub fn resolve(&self, parameters: &Parameters) -> Option<&Arc<Variant>> {
        self.0.resolve(parameters)
    }

    /// The variant that matches these parameters, with the tests that led to it.
    #[must_use]
    pub fn explain(&self, parameters: &Parameters) -> Explanation<'_, Arc<Variant>> {
        self.0.explain(parameters)
    }

    /// Whether all parameters over these `domains` have a matching variant. Lists at most `limit`
    /// gaps.
    ///
    /// # Errors
    /// When the constraints of a variant are too complex.
    pub fn coverage(
        &self,
        domains: &Domains,
        limit: usize,
    ) -> Result<Coverage<'_, Arc<Variant>>, TooComplex> {
        self.0.coverage(domains, &Formula::All(Vec::new()), limit)
    }

    /// Constraints that tell a client that no variant matches these parameters (T35), although
    /// there are variants for others; `None` when one matches.
    pub(crate) fn unmatched(&self, parameters: &Parameters) -> Option<Constraints> {
        if self.resolve(parameters).is_some() {
            return None;
        }
        // There is a single set of keys, unless the rule was relaxed (T34).
        let keys: Vec<_> = self.0.key_sets().flat_map(|(keys, _)| keys).cloned().collect();
        Constraints::agreeing_with(parameters, &keys).ok()
    }

    /// The variants that match some parameters which these constraints match too.
    ///
    /// # Errors
    /// When the constraints are too complex.
    pub(crate) fn meeting(&self, constraints: &Constraints) -> Result<Vec<Arc<Variant>>, TooComplex> {
        let met = self.0.reachable(constraints.formula())?;
        Ok(met.into_iter().map(|(variant, _)| Arc::clone(variant)).collect())
    }

    /// How many variants there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no variant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All variants, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Variant>> {
        self.0.iter().map(|(_, variant)| variant)
    }

    /// The variant with exactly these constraints.
    #[must_use]
    pub fn get(&self, constraints: &Constraints) -> Option<&Arc<Variant>> {
        let is_it = |variant: &&Arc<Variant>| variant.constraints == *constraints;
        if self.len() <= FEW {
            return self.iter().find(is_it);
        }
        // Only one variant can match parameters that these constraints match: find it and compare.
        let sample = Normal::of(constraints.formula()).ok()?.sample()?;
        self.resolve(&sample).filter(is_it)
    }
}

/// The digest of a name and a version.
fn identity(name: &ResourceName, version: Version) -> u128 {
    digest(blake3::Hasher::new().update(&version.0.to_be_bytes()).update(name.as_str().as_bytes()))
}

/// Up to this number of variants, a linear search is faster than normalising the constraints.
const FEW: usize = 16;

/// The number of earlier states that a variant remembers.
const HISTORY_LIMIT: usize = 3;
