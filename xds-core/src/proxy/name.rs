//! The downstream and upstream subscriptions of one name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Key;
use super::parameter_table::{Number, ParameterTable};
use super::route::Route;
use crate::cache::LocatorStatus;
use crate::client::WatchId;
use crate::constraint::Constraints;
use crate::hash::HashMap;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::variants::{Variant, Variants};

/// One name of one type; also a wildcard or a glob.
#[derive(Debug, Default)]
pub(super) struct Name {
    /// Downstream subscriptions that a variant matches, each with the upstream subscription that it
    /// relies on. Nearly all of them are here.
    pub(super) sharing: BTreeMap<Number, SubscriptionId>,
    /// All others.
    pub(super) downstream: BTreeMap<Number, DownstreamSubscription>,
    pub(super) upstream: BTreeMap<SubscriptionId, UpstreamSubscription>,
    /// Downstream subscriptions to match again, by age: they are new, ended, or waited long enough.
    pub(super) to_match: BTreeSet<Number>,
    /// Downstream subscriptions without an upstream subscription, because the name has too many; by
    /// age.
    pub(super) refused: BTreeSet<Number>,
    /// Upstream subscriptions that nothing may rely on any more, or whose end has come, or that got another answer
    /// since then. The others that nothing relies on linger as before.
    pub(super) released: Vec<SubscriptionId>,
    /// Any upstream subscription that lingers may have to end now.
    pub(super) checks_lingering: bool,
    /// The constraints of its variants when it was matched last.
    constraints: BTreeSet<Constraints>,
    /// The oldest upstream subscription for the variant with these constraints, as far as new
    /// downstream subscriptions needed it since the name was matched last.
    covers: BTreeMap<Constraints, SubscriptionId>,
    /// The keys in them.
    pub(super) keys: BTreeSet<Arc<str>>,
    /// All downstream subscriptions have to be matched again, because their routes may have
    /// changed.
    pub(super) is_stale: bool,
    /// T43c: each locator needs an upstream subscription and a stream of its own.
    pub(super) is_unshared: bool,
    /// An audit found variants that overlap, so each locator needs an upstream subscription of its
    /// own.
    pub(super) is_eager: bool,
}

/// The names of all types.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<TypeUrl, HashMap<ResourceName, Name>>);

impl Names {
    pub(super) fn get(&self, (type_url, name): &Key) -> Option<&Name> {
        self.0.get(type_url)?.get(name)
    }

    pub(super) fn get_mut(&mut self, (type_url, name): &Key) -> Option<&mut Name> {
        self.0.get_mut(type_url)?.get_mut(name)
    }

    /// The name; it is added if it is not there.
    pub(super) fn add(&mut self, (type_url, name): &Key) -> &mut Name {
        if !self.0.contains_key(type_url) {
            self.0.insert(type_url.clone(), HashMap::default());
        }
        let of_type = self.0.get_mut(type_url).expect("the type was inserted above");
        of_type.entry(name.clone()).or_default()
    }

    pub(super) fn remove(&mut self, (type_url, name): &Key) {
        let Some(of_type) = self.0.get_mut(type_url) else { return };
        of_type.remove(name);
        // Clients choose the types, so an unused one must not stay.
        if of_type.is_empty() {
            self.0.remove(type_url);
        }
    }

    pub(super) fn of_type<'s>(
        &'s self,
        type_url: &TypeUrl,
    ) -> impl Iterator<Item = (&'s ResourceName, &'s Name)> + use<'s> {
        self.0.get(type_url).into_iter().flatten()
    }

    pub(super) fn of_type_mut(
        &mut self,
        type_url: &TypeUrl,
    ) -> impl Iterator<Item = (&ResourceName, &mut Name)> {
        self.0.get_mut(type_url).into_iter().flatten()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceName, &Name)> {
        self.0.values().flatten()
    }
}

/// Identifies an upstream subscription of a name: the route, and the parameters. These are bound,
/// unless they are a projection of the parameters of the downstream subscriptions.
pub(super) type SubscriptionId = Arc<(Route, Parameters)>;

/// A locator that streams subscribe to.
#[derive(Debug, Default)]
pub(super) struct DownstreamSubscription {
    /// A stream subscribes to it.
    pub(super) is_subscribed: bool,
    /// The upstream subscription that brought its variant, or will bring it.
    pub(super) relies_on: Option<SubscriptionId>,
    /// The upstream subscription of another locator whose response it waits for, or waited for
    /// last.
    pub(super) joined: Option<SubscriptionId>,
    /// A variant matched it when it was matched last.
    pub(super) has_variant: bool,
    /// The status of the locator that the cache has.
    pub(super) reported: Option<LocatorStatus>,
}

/// A locator that the proxy subscribes to upstream.
#[derive(Debug, Default)]
pub(super) struct UpstreamSubscription {
    /// `None` if the client refused it.
    pub(super) watch: Option<WatchId>,
    /// Since when the upstream can have sent a response; `None` while it is not connected.
    pub(super) sent_at: Option<Duration>,
    /// The upstream sent a resource, its absence, or an error.
    pub(super) is_answered: bool,
    /// The absence or the error that the upstream sent; `None` for a resource.
    pub(super) answer: Option<LocatorStatus>,
    /// How many downstream subscriptions rely on it.
    pub(super) users: usize,
    /// Those of them that no variant matched when they were matched last, by age.
    pub(super) waiting: BTreeSet<Number>,
    /// When it ends, if no downstream subscription relies on it until then.
    pub(super) ends_at: Option<Duration>,
    /// It serves only to compare the variant of the upstream with the cached one (audit).
    pub(super) is_audit: bool,
    /// Its age.
    pub(super) number: u64,
}

impl Name {
    /// Compares the variants with those of the last call, and notes which downstream subscriptions
    /// have to be matched again.
    ///
    /// A locator loses its variant only when a variant of the name goes. A variant that is added
    /// matters only to locators without a variant. They are matched again when the upstream
    /// subscription that they wait for has its response. If they wait for that of another locator,
    /// they are also matched again when the constraints have other keys than before.
    pub(super) fn follow(&mut self, variants: Option<&Variants>) {
        self.covers.clear();
        let now =
            || variants.into_iter().flat_map(Variants::iter).map(|variant| Variant::constraints(variant));
        let kept = now().filter(|constraints| self.constraints.contains(*constraints)).count();
        let is_shrunk = kept < self.constraints.len();
        let is_grown = now().count() > kept;
        self.checks_lingering |= is_shrunk || is_grown || self.is_stale;
        if is_shrunk || is_grown {
            self.constraints = now().cloned().collect();
            let keys: BTreeSet<_> = now().flat_map(Constraints::keys).cloned().collect();
            if self.keys != keys {
                self.keys = keys;
                self.match_all_waiting();
            }
            self.to_match.append(&mut self.refused);
        }
        if std::mem::take(&mut self.is_stale) || is_shrunk {
            let sharing = std::mem::take(&mut self.sharing);
            let sharing =
                sharing.into_iter().map(|(number, id)| (number, DownstreamSubscription::sharing(id)));
            self.downstream.extend(sharing);
            self.to_match.extend(self.downstream.keys());
        }
    }

    /// T43b: all locators that share a variant rely on the oldest upstream subscription for it.
    pub(super) fn cover(&mut self, variant: &Variant) -> Option<SubscriptionId> {
        let constraints = variant.constraints();
        if let Some(id) = self.covers.get(constraints) {
            return Some(Arc::clone(id));
        }
        let is_cover = |(id, subscription): &(&SubscriptionId, &UpstreamSubscription)| {
            id.0.is_shared() && !subscription.is_audit && constraints.matches(&id.1)
        };
        let covers = self.upstream.iter().filter(is_cover);
        let (id, _) = covers.min_by_key(|(_, subscription)| subscription.number)?;
        let id = Arc::clone(id);
        self.covers.insert(constraints.clone(), Arc::clone(&id));
        Some(id)
    }

    /// T43b: the oldest upstream subscription for each variant that `resolve` finds.
    pub(super) fn covers_of<'v>(
        &self,
        resolve: impl Fn(&Parameters) -> Option<&'v Arc<Variant>>,
    ) -> BTreeMap<*const Variant, SubscriptionId> {
        let on_shared = self.upstream.iter().filter(|(id, of)| id.0.is_shared() && !of.is_audit);
        let mut on_shared: Vec<_> = on_shared.collect();
        on_shared.sort_unstable_by_key(|(_, subscription)| subscription.number);
        let mut covers = BTreeMap::new();
        for (id, _) in on_shared {
            if let Some(variant) = resolve(&id.1) {
                covers.entry(Arc::as_ptr(variant)).or_insert_with(|| Arc::clone(id));
            }
        }
        covers
    }

    /// Adds downstream subscriptions that waited for the response to an upstream subscription before the cache reported
    /// them.
    pub(super) fn add_joined(
        &mut self,
        all: Vec<Parameters>,
        joined: Option<&SubscriptionId>,
        table: &mut ParameterTable,
    ) {
        for bound in all {
            if table.number(&bound).is_some_and(|number| self.match_again(number, true)) {
                continue;
            }
            let number = table.hold(&bound);
            let joined = joined.cloned();
            self.downstream
                .insert(number, DownstreamSubscription { joined, ..DownstreamSubscription::new() });
            self.to_match.insert(number);
        }
    }

    /// Has a downstream subscription matched again, to which a stream subscribes or none does. Returns whether there
    /// is one.
    pub(super) fn match_again(&mut self, number: Number, is_subscribed: bool) -> bool {
        if let Some(id) = self.sharing.remove(&number) {
            self.downstream.insert(number, DownstreamSubscription::sharing(id));
        }
        let Some(downstream) = self.downstream.get_mut(&number) else { return false };
        downstream.is_subscribed = is_subscribed;
        self.to_match.insert(number);
        true
    }

    /// Whether streams subscribe to it with these parameters.
    pub(super) fn has(&self, number: Number) -> bool {
        self.sharing.contains_key(&number) || self.downstream.contains_key(&number)
    }

    /// An upstream subscription has another answer. If nothing relies on it, it may have to end.
    pub(super) fn look_at_unused(&mut self, id: &SubscriptionId) {
        if self.upstream.get(id).is_some_and(|subscription| subscription.users == 0) {
            self.released.push(Arc::clone(id));
        }
    }

    /// Whether nothing needs it any more.
    pub(super) fn is_unused(&self) -> bool {
        self.downstream.is_empty() && self.sharing.is_empty() && self.upstream.is_empty()
    }

    fn match_all_waiting(&mut self) {
        for subscription in self.upstream.values_mut() {
            self.to_match.append(&mut subscription.waiting);
        }
    }

    /// Takes the downstream subscriptions to match, oldest first, each with whether a stream still
    /// subscribes to it. Until they are matched they rely on no upstream subscription.
    pub(super) fn take_to_match(&mut self) -> Vec<(Number, bool)> {
        let mut taken = Vec::with_capacity(self.to_match.len());
        for number in std::mem::take(&mut self.to_match) {
            let Some(downstream) = self.downstream.get_mut(&number) else { continue };
            self.refused.remove(&number);
            if let Some(id) = downstream.relies_on.take()
                && let Some(subscription) = self.upstream.get_mut(&id)
            {
                subscription.users -= 1;
                subscription.waiting.remove(&number);
                if subscription.users == 0 {
                    self.released.push(id);
                }
            }
            taken.push((number, downstream.is_subscribed));
        }
        taken
    }

    /// Has locators that wait for the first response to another locator matched again, the oldest and at most so
    /// many. Returns how many.
    pub(super) fn match_joined(&mut self, count: usize, table: &ParameterTable) -> usize {
        let unanswered = self.upstream.iter().filter(|(_, subscription)| subscription.is_unanswered());
        let joined = unanswered.flat_map(|(id, subscription)| {
            subscription.waiting.iter().filter(|number| *table.get(**number) != id.1)
        });
        let mut joined: Vec<_> = joined.copied().collect();
        joined.sort_unstable();
        joined.truncate(count);
        self.to_match.extend(&joined);
        joined.len()
    }

    /// Upstream subscriptions of the shared stream that have no response yet.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (&SubscriptionId, &UpstreamSubscription)> {
        self.upstream.iter().filter(|(id, subscription)| id.0.is_shared() && subscription.is_unanswered())
    }

    /// When the first response is late; `None` while the upstream is not connected, because no
    /// upstream can respond then.
    pub(super) fn first_response_overdue(&self, coalesce: Duration) -> Option<Duration> {
        let sent_at: Option<Vec<_>> =
            self.unanswered().map(|(_, subscription)| subscription.sent_at).collect();
        let sent_at = sent_at?;
        let rounds = u32::try_from(sent_at.len()).unwrap_or(u32::MAX);
        Some(sent_at.into_iter().max()? + coalesce.saturating_mul(rounds))
    }

    /// An upstream subscription may have a response: the locators that wait for it are matched
    /// again.
    pub(super) fn match_waiting(&mut self, id: &SubscriptionId) {
        if let Some(subscription) = self.upstream.get_mut(id) {
            self.to_match.append(&mut subscription.waiting);
        }
    }
}

impl DownstreamSubscription {
    /// One that has a variant, and has to be matched again.
    pub(super) fn sharing(id: SubscriptionId) -> Self {
        Self { relies_on: Some(id), has_variant: true, ..Self::new() }
    }

    pub(super) fn new() -> Self {
        Self { is_subscribed: true, ..Self::default() }
    }
}

impl UpstreamSubscription {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    fn is_unanswered(&self) -> bool {
        !self.is_answered && !self.is_audit
    }
}
