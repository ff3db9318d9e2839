//! All variants of one name, and which of them a subscription gets (T1-T5).

use std::sync::Arc;
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
use crate::references::References;
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
    /// The commit that brought this content.
    pub(crate) changed_at: Revision,
    /// What was there before, oldest first: since which commit, and nothing where it was removed.
    history: Box<[(Revision, Option<Version>)]>,
    /// The commit since which the name is there, its remembered removals not counted.
    pub(crate) born_at: Revision,
    /// What the payload names (S33).
    pub(crate) references: References,
    /// What goes with the payload; `None` when that is nothing.
    extras: Option<Box<Extras>>,
}

/// How a stream is sent resources (T24).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// Under their plain name, without constraints.
    #[default]
    Name,
    /// With their constraints, because the client sent a locator.
    Located,
}

impl Variant {
    pub(crate) fn new(resource: Resource, changed_at: Revision, born_at: Revision) -> Self {
        let history = Box::default();
        let Resource { id, payload, version, references, extras } = resource;
        let VariantId { name, constraints, .. } = id;
        Self { name, constraints, payload, version, changed_at, history, born_at, references, extras }
    }

    /// What was put to make it.
    pub(crate) fn resource(&self, type_url: &TypeUrl) -> Resource {
        let (name, constraints) = (self.name.clone(), self.constraints.clone());
        let id = VariantId { type_url: type_url.clone(), name, constraints };
        let (references, extras) = (self.references.clone(), self.extras.clone());
        Resource { id, payload: self.payload.clone(), version: self.version, references, extras }
    }

    /// The same in the place of another, which was removed meanwhile or not.
    pub(crate) fn after(self, before: &Self, removed_at: Option<Revision>) -> Self {
        let was_there = (before.changed_at, Some(before.version));
        let removed = removed_at.map(|at| (at, None));
        let history: Vec<_> = before.history.iter().copied().chain([was_there]).chain(removed).collect();
        let newest = history.len().saturating_sub(HISTORY_LIMIT);
        Self { history: history[newest..].into(), ..self }
    }

    /// Whether something else was there at a revision (S6, D12): what changed and changed back did
    /// not change. When nobody knows any more it did.
    pub(crate) fn differs_since(&self, revision: Revision) -> bool {
        self.version_at(revision) != Some(self.version)
    }

    /// What was there at a revision; `None` also when nobody knows any more.
    pub(crate) fn version_at(&self, revision: Revision) -> Option<Version> {
        if self.changed_at <= revision {
            return Some(self.version);
        }
        self.history.iter().rev().find(|(at, _)| *at <= revision).and_then(|(_, version)| *version)
    }

    /// Whether it was there at a revision, with whatever content. When nobody knows any more it
    /// was.
    pub(crate) fn was_there(&self, revision: Revision) -> bool {
        let then = self.history.iter().rev().find(|(at, _)| *at <= revision);
        let is_older = self.history.first().is_none_or(|(at, _)| *at > revision);
        self.changed_at <= revision
            || then.is_some_and(|(_, version)| version.is_some())
            || (is_older && self.born_at <= revision)
    }

    /// Digest of name and version: what this variant adds to the version of a SotW response (T38).
    ///
    /// Not stored: it is asked for when the variant comes and goes, and 100,000 resources would
    /// each pay for it.
    pub(crate) fn identity(&self, form: Form) -> u128 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.version_in(form).0.to_be_bytes()).update(self.name.as_str().as_bytes());
        digest(&hasher)
    }

    /// The version as it is sent (T37): to a client that is sent the constraints they are part of
    /// the content, so no two variants of a name have the same. By name only the payload counts,
    /// and a change of constraints sends nothing.
    pub(crate) fn version_in(&self, form: Form) -> Version {
        if form == Form::Name || self.constraints.is_unconstrained() {
            return self.version;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.version.0.to_be_bytes());
        // The canonical form, not the bytes received: replicas that saw another order of operands
        // agree (T22).
        let keys = self.constraints.keys().iter().map(|key| key.as_bytes());
        for part in std::iter::once(self.constraints.canon()).chain(keys) {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        Version(digest(&hasher))
    }

    /// The name clients ask for.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// Whom it is for.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// The key by which a client of this form knows the variant.
    pub(crate) fn key(&self, form: Form) -> ResourceKey {
        // T43c: what is for one locator alone goes out as it came.
        let constraints = (form == Form::Located).then(|| match self.constraints() {
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

    /// The assignment that holds the endpoints of this cluster (S34).
    pub(crate) fn endpoints(&self) -> Option<&ResourceName> {
        self.references.endpoints(&self.name)
    }

    /// After which time clients remove it unless they hear of it again (S38).
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.extras.as_ref()?.ttl
    }

    /// The other names under which it can be asked for (D24), sorted.
    #[must_use]
    pub fn aliases(&self) -> &[ResourceName] {
        self.extras.as_ref().map_or(&[], |extras| &extras.aliases)
    }

    /// Whether no copy of it may be kept beyond its use (`cache_control`).
    #[must_use]
    pub fn do_not_cache(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.do_not_cache)
    }

    /// The type of the payload, which for a redirect is not that of its resource (X14).
    pub(crate) fn payload_type<'a>(&self, type_url: &'a TypeUrl) -> &'a str {
        Extras::payload_type(self.extras.as_deref(), type_url)
    }

    /// Whether the payload only says where the resource stands (X14).
    pub(crate) fn is_redirect(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.is_redirect)
    }

    /// Whether it is asked for by this name, which is its own, an alias, or a glob (X12).
    pub(crate) fn goes_by(&self, asked: &ResourceName) -> bool {
        self.name == *asked
            || self.aliases().contains(asked)
            || xdstp::glob_of(&self.name).as_ref() == Some(asked)
    }

    /// Whether this goes with its payload.
    pub(crate) fn has_extras(&self, extras: Option<&Extras>) -> bool {
        self.extras.as_deref() == extras
    }

    /// What goes on the wire beside name, version and payload.
    pub(crate) fn extra_fields(&self, ttl: Ttl, scope: Option<&NamePatterns>) -> impl Iterator<Item = Bytes> {
        self.extras.iter().flat_map(move |extras| extras.wire(ttl, scope))
    }

    /// What is left of its TTL.
    pub(crate) fn ttl_left(&self, now: Duration) -> Option<Duration> {
        self.extras.as_ref()?.left(now)
    }

    /// Its server lets it live until then.
    pub(crate) fn extend(&self, until: Option<Duration>) {
        if let Some(lease) = self.extras.as_ref().and_then(|extras| extras.lease.as_ref()) {
            lease.extend(until);
        }
    }

    /// The digest of the payload and what goes with it.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }
}

/// The variants of one name: whatever the parameters of a subscription, at most one matches.
#[derive(Debug, Default, Clone)]
pub struct Variants(VariantSet<Arc<Variant>>);

impl Variants {
    /// The set without some of its variants and with others; `None` when nothing is left.
    ///
    /// # Errors
    /// See [`SetError`]; judged is what comes out (T16).
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

    /// The variant that a subscription with these parameters gets (T3); `None` when none is for it
    /// (T4).
    #[must_use]
    pub fn resolve(&self, parameters: &Parameters) -> Option<&Arc<Variant>> {
        self.0.resolve(parameters)
    }

    /// The variant that these parameters get, and the tests on the way.
    #[must_use]
    pub fn explain(&self, parameters: &Parameters) -> Explanation<'_, Arc<Variant>> {
        self.0.explain(parameters)
    }

    /// Whether each of the parameters with keys as in `domains` has a variant; at most `limit` gaps
    /// are listed.
    ///
    /// # Errors
    /// When a variant takes too long to judge.
    pub fn coverage(
        &self,
        domains: &Domains,
        limit: usize,
    ) -> Result<Coverage<'_, Arc<Variant>>, TooComplex> {
        self.0.coverage(domains, &Formula::All(Vec::new()), limit)
    }

    /// What says to a client of other variants that none is for these parameters (T35); `None` when
    /// one is.
    pub(crate) fn unmatched(&self, parameters: &Parameters) -> Option<Constraints> {
        if self.resolve(parameters).is_some() {
            return None;
        }
        // There is one set of keys, unless that rule was relaxed.
        let keys: Vec<_> = self.0.key_sets().flat_map(|(keys, _)| keys).cloned().collect();
        Constraints::agreeing_with(parameters, &keys).ok()
    }

    /// The variants that match some of the parameters that the constraints match.
    ///
    /// # Errors
    /// When the constraints take too long to judge.
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
        // Whatever they match, it alone does.
        let sample = Normal::of(constraints.formula()).ok()?.sample()?;
        self.resolve(&sample).filter(is_it)
    }
}

/// Up to this many variants are looked through faster than constraints are normalised.
const FEW: usize = 16;

/// How many states before its own a variant remembers.
const HISTORY_LIMIT: usize = 3;
