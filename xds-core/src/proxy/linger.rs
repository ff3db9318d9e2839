//! Upstream subscriptions that no downstream subscription relies on. They stay for a while, because
//! a client that left may come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::ProxyConfig;
use super::name::{Name, SubscriptionId, UpstreamSubscription};
use super::pairing::Mode;
use super::route::RouteKind;
use super::{Key, Proxy};
use crate::hash::constant_hash;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::is_set;
use crate::variants::Variants;

/// The time when an upstream subscription ends that no downstream subscription relies on, with its
/// name and its id.
pub(super) type Idle = (Duration, Key, SubscriptionId);

/// Upstream subscriptions that no downstream subscription relies on.
#[derive(Debug, Default)]
pub(super) struct IdleSubscriptions {
    /// Each with the bytes that it keeps.
    by_end: BTreeMap<Idle, usize>,
    bytes: usize,
}

impl ProxyConfig {
    /// How long an upstream subscription stays. Times differ by up to a tenth, so that
    /// subscriptions which became unused together do not all end together.
    pub(super) fn lingers(&self, subscription: &SubscriptionId) -> Duration {
        let hash = constant_hash(subscription);
        let share = u32::try_from(hash % 201).unwrap_or(0);
        self.linger * (900 + share) / 1000
    }
}

impl Proxy {
    /// Notes how many bytes an unused upstream subscription keeps: its payload in the cache, its name and parameters,
    /// and what a subscription costs.
    pub(super) fn keep_idle(&mut self, idle: Idle) {
        let (_, (type_url, name), id) = &idle;
        let parameters = &id.1;
        let payload: usize = self.cache.read(|snapshot| {
            let len = |variants: &Variants| {
                variants.resolve(parameters).map_or(0, |variant| variant.payload().len())
            };
            match is_set(name.as_str()) {
                true => snapshot
                    .of_type(type_url)
                    .into_iter()
                    .flat_map(|of| of.iter())
                    .map(|(_, of)| len(of))
                    .sum(),
                false => snapshot.get(type_url, name).map_or(0, len),
            }
        });
        let bytes = IDLE_COST + locator_len(name, parameters) + payload;
        if self.idle.by_end.insert(idle, bytes).is_none() {
            self.idle.bytes += bytes;
        }
    }

    /// An unused upstream subscription ended, or is used again.
    pub(super) fn forget_idle(&mut self, idle: &Idle) {
        if let Some(bytes) = self.idle.by_end.remove(idle) {
            self.idle.bytes -= bytes;
        }
    }

    /// Ends unused upstream subscriptions while they keep too many bytes, first those that would
    /// have ended first.
    pub(super) fn end_idle(&mut self, now: Duration) {
        while self.idle.bytes > self.config.linger_bytes && self.end_first_idle(now) {}
    }

    /// When the next unused upstream subscription ends.
    pub(super) fn idle_deadline(&self) -> Option<Duration> {
        self.idle.by_end.first_key_value().map(|((ends_at, ..), _)| *ends_at)
    }

    /// Ends unused upstream subscriptions whose time has come, at most so many.
    pub(super) fn idle_timeout(&mut self, now: Duration, count: usize) {
        for _ in 0..count {
            if self.idle_deadline().is_none_or(|at| at > now) || !self.end_first_idle(now) {
                break;
            }
        }
    }

    /// Ends the unused upstream subscription that would have ended first. Returns whether there was one.
    fn end_first_idle(&mut self, now: Duration) -> bool {
        let Some(((_, key, id), bytes)) = self.idle.by_end.pop_first() else { return false };
        self.idle.bytes -= bytes;
        if let Some(name) = self.names.get_mut(&key)
            && let Some(subscription) = name.upstream.get_mut(&id)
        {
            subscription.ends_at = Some(now);
            name.released.push(id);
            self.pending.touched.insert(key);
        }
        true
    }

    /// Ends the unused upstream subscription of a name that would have ended first. Returns whether there was
    /// one.
    pub(super) fn make_room(&mut self, key: &Key, name: &mut Name) -> bool {
        let idle = name.upstream.iter().filter(|(_, subscription)| !subscription.is_audit);
        let idle = idle.filter_map(|(id, subscription)| Some((subscription.ends_at?, id)));
        let Some((ends_at, id)) = idle.min().map(|(ends_at, id)| (ends_at, id.clone())) else { return false };
        self.end(key, name, ends_at, id);
        true
    }

    fn end(&mut self, key: &Key, name: &mut Name, ends_at: Duration, id: SubscriptionId) {
        let subscription = name.upstream.remove(&id);
        self.leave_room(key, &id);
        let watch = subscription.and_then(|subscription| subscription.watch);
        self.pending.ended.extend(watch.map(|watch| (id.0.clone(), watch)));
        self.forget_idle(&(ends_at, key.clone(), id));
    }

    /// Ends unused upstream subscriptions for variants that a used one covers at once; others
    /// linger. Returns whether there is more room than before.
    pub(super) fn drop_unused(
        &mut self,
        now: Duration,
        key: &Key,
        name: &mut Name,
        variants: Option<&Variants>,
    ) -> bool {
        let has_room = self.drop_released(now, key, name, variants);
        #[cfg(test)]
        {
            let lingering = |name: &Name| name.upstream.values().filter(|of| of.ends_at.is_some()).count();
            let before = (name.upstream.len(), lingering(name));
            name.checks_lingering = true;
            self.drop_released(now, key, name, variants);
            assert_eq!((name.upstream.len(), lingering(name)), before, "all were looked at that had to");
        }
        has_room
    }

    /// Looks at those that linger already only if they may have to end now: a name may have very many.
    fn drop_released(
        &mut self,
        now: Duration,
        key: &Key,
        name: &mut Name,
        variants: Option<&Variants>,
    ) -> bool {
        let is_unused =
            |subscription: &UpstreamSubscription| subscription.users == 0 && !subscription.is_audit;
        let mut unused = std::mem::take(&mut name.released);
        if std::mem::take(&mut name.checks_lingering) {
            unused = name.upstream.keys().cloned().collect();
        }
        unused.retain(|id| name.upstream.get(id).is_some_and(is_unused));
        if unused.is_empty() {
            return false;
        }
        let resolve =
            |id: &SubscriptionId| variants.and_then(|variants| variants.resolve(&id.1)).map(Arc::as_ptr);
        let is_shared = self.mode(key, name) == Mode::Shared;
        let used = name.upstream.iter().filter(|(_, of)| is_shared && of.users > 0).map(|(id, _)| id);
        let covered: BTreeSet<_> = used.filter_map(resolve).collect();
        let mut has_room = false;
        for id in unused {
            // It may be in the list twice.
            let Some(subscription) = name.upstream.get(&id) else { continue };
            has_room |= subscription.ends_at.is_none();
            let is_redundant = is_shared && resolve(&id).is_some_and(|variant| covered.contains(&variant));
            let is_on_side_stream = self.is_on_side_stream(&id.0.of_health(), &key.0);
            // The subscriptions of this name use other routes now.
            let is_stale = match &id.0.kind {
                RouteKind::Shared => name.is_unshared || is_on_side_stream,
                RouteKind::Node(_) => is_on_side_stream,
                RouteKind::SideStream { .. } => !is_on_side_stream,
                RouteKind::Alone(_) => !name.is_unshared,
            };
            let subscription = name.upstream.get_mut(&id).expect("the subscription was unused above");
            // It keeps nothing for a client that comes back: there is no resource.
            let is_empty = subscription.answer.is_some() && !is_set(key.1.as_str()) && resolve(&id).is_none();
            let ends_at_once = is_redundant || is_stale || is_empty;
            let lingers = id.0.is_main() && !ends_at_once;
            let begins = subscription.ends_at.is_none();
            let ends_at = *subscription.ends_at.get_or_insert_with(|| match lingers {
                true => now + self.config.lingers(&id),
                false => now,
            });
            if ends_at <= now || ends_at_once {
                // Resources of a side stream stay until the main stream has a response.
                if is_stale && id.0.side_stream_type().is_some() {
                    name.upstream.remove(&id);
                    self.leave_room(key, &id);
                    self.forget_idle(&(ends_at, key.clone(), id.clone()));
                    let side_stream = self.upstreams.get_mut(&id.0);
                    side_stream.into_iter().for_each(|upstream| upstream.is_retiring = true);
                    continue;
                }
                self.end(key, name, ends_at, id);
                has_room = true;
            } else if begins {
                self.keep_idle((ends_at, key.clone(), id));
            }
        }
        has_room
    }
}

/// How many bytes of text a locator has.
pub(super) fn locator_len(name: &ResourceName, parameters: &Parameters) -> usize {
    let pairs = parameters.own().map(|(key, value)| key.len() + value.len());
    name.as_str().len() + pairs.sum::<usize>()
}

/// The memory of an unused upstream subscription besides its payload and its texts, about.
pub(super) const IDLE_COST: usize = 2048;
