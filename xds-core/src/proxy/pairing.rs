//! Matches downstream subscriptions with upstream subscriptions (T43, T43b).
//!
//! A downstream subscription is matched when it is new, and while it waits: when a variant came, or
//! an upstream subscription had its response. One that has a variant is not matched again, whatever
//! its new content, until a variant of the name goes. A hit costs one lookup.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use super::config::{Sharing, UpstreamKind};
use super::name::{DownstreamSubscription, Name, SubscriptionId, UpstreamSubscription};
use super::parameter_table::Number;
use super::route::{Route, RouteKind};
use super::{Key, Notice, Proxy};
use crate::cache::{LocatorStatus, Snapshot, Transaction};
use crate::code::Code;
use crate::name::TypeUrl;
use crate::parameters::Parameters;
use crate::subscription::{Locator, is_set};
use crate::variants::Variants;

/// How downstream subscriptions of a name get an upstream subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// All locators that a variant matches share an upstream subscription.
    Shared,
    /// Each has its own upstream subscription, whatever is in the cache.
    Direct,
}

impl Proxy {
    pub(super) fn mode(&self, key: &Key, name: &Name) -> Mode {
        let is_shared = matches!(self.config.upstream, UpstreamKind::Locators { .. })
            && self.config.sharing(&key.0) != Sharing::Off
            && !name.is_unshared
            && !name.is_eager
            && !self.is_on_side_stream(&self.shared_route(key), &key.0)
            && !is_set(key.1.as_str());
        if is_shared { Mode::Shared } else { Mode::Direct }
    }

    /// The shared client of the servers of a name.
    pub(super) fn shared_route(&self, key: &Key) -> Route {
        Route { authority: self.authorities.of(&key.1), kind: RouteKind::Shared }
    }

    /// The upstream subscription of a locator that relies on no other one.
    fn own_subscription(&self, key: &Key, is_unshared: bool, bound: &Parameters) -> (Route, Parameters) {
        let shared = self.shared_route(key);
        match &self.config.upstream {
            UpstreamKind::Node { keys } => {
                let projected = bound.project(|key| keys.contains(key));
                (self.stream_for(shared.with(RouteKind::Node(projected.clone())), &key.0), projected)
            }
            UpstreamKind::Locators { .. } if is_unshared => {
                (shared.with(RouteKind::Alone(bound.unbound())), bound.clone())
            }
            UpstreamKind::Locators { set_keys: Some(keys) } if is_set(key.1.as_str()) => {
                (self.stream_for(shared, &key.0), bound.project(|key| keys.contains(key)))
            }
            UpstreamKind::Locators { .. } => (self.stream_for(shared, &key.0), bound.clone()),
        }
    }

    /// The route for a type: its main stream, or its side stream.
    fn stream_for(&self, main: Route, type_url: &TypeUrl) -> Route {
        if self.is_on_side_stream(&main, type_url) { main.side_stream(type_url) } else { main }
    }

    /// A first stream subscribes to the locator. Returns whether nothing else has to be done.
    pub(super) fn subscribe(
        &mut self,
        now: Duration,
        key: &Key,
        bound: &Parameters,
        snapshot: &Snapshot,
    ) -> bool {
        let number = self.parameters.number(bound);
        if let Some(name) = self.names.get_mut(key) {
            if let Some(number) = number.filter(|number| name.has(*number)) {
                // Its last stream left and came back. The cache has forgotten which locators like it to report.
                name.match_again(number, true);
                self.await_further(key);
                return false;
            }
            if self.share(now, key, bound, snapshot) {
                return true;
            }
        }
        let number = self.parameters.hold(bound);
        let name = self.names.add(key);
        name.downstream.insert(number, DownstreamSubscription::new());
        name.to_match.insert(number);
        false
    }

    /// Handles the common case of a new downstream subscription: a cached variant matches, and
    /// stays subscribed upstream. Returns whether that was so.
    fn share(&mut self, now: Duration, key: &Key, bound: &Parameters, snapshot: &Snapshot) -> bool {
        if self.names.get(key).is_none_or(|name| self.mode(key, name) != Mode::Shared) {
            return false;
        }
        let variants = snapshot.get(&key.0, &key.1);
        let Some(variant) = variants.and_then(|variants| variants.resolve(bound)) else {
            return variants.is_none_or(Variants::is_empty) && self.join(now, key, bound);
        };
        self.counts.hits += 1;
        if let Sharing::Audit { one_in } = self.config.sharing(&key.0)
            && self.counts.hits.is_multiple_of(one_in.max(1).into())
        {
            self.audit(now, key, Arc::new((self.shared_route(key), bound.clone())));
        }
        let name = self.names.get_mut(key).expect("the name was read above");
        let Some(id) = name.cover(variant) else { return false };
        let subscription = name.upstream.get_mut(&id).expect("a cover is an upstream subscription");
        if subscription.users == 0 {
            return false;
        }
        subscription.users += 1;
        let number = self.parameters.hold(bound);
        self.names.get_mut(key).expect("the name was read above").sharing.insert(number, id);
        true
    }

    /// Handles another common case: nothing is known of the name yet, and its first response is due.
    /// Returns whether the downstream subscription waits for it.
    fn join(&mut self, now: Duration, key: &Key, bound: &Parameters) -> bool {
        let Some(name) = self.names.get_mut(key) else { return false };
        // Where many upstream subscriptions wait, those to match are matched together.
        if !name.keys.is_empty() || name.upstream.len() > FEW || name.upstream.keys().any(|id| id.1 == *bound)
        {
            return false;
        }
        let pending = name.unanswered().last().filter(|(_, pending)| pending.ends_at.is_none());
        let Some((id, _)) = pending else { return false };
        let id = Arc::clone(id);
        if let Some(until) = name.first_response_overdue(self.config.coalesce) {
            let again = if until > now { until } else { now + self.config.coalesce };
            self.timers.insert((again, key.clone()));
        }
        self.counts.joined += 1;
        let (relies_on, joined) = (Some(Arc::clone(&id)), Some(Arc::clone(&id)));
        let number = self.parameters.hold(bound);
        let downstream = DownstreamSubscription { relies_on, joined, ..DownstreamSubscription::new() };
        name.downstream.insert(number, downstream);
        let subscription = name.upstream.get_mut(&id).expect("the id is of a subscription");
        subscription.users += 1;
        subscription.waiting.insert(number);
        true
    }

    /// Has locators that waited too long for the first response to another locator matched again, so that they get
    /// upstream subscriptions of their own: as many as are without a response now. If the upstream is slow, each round
    /// subscribes twice as often and waits twice as long, so a fleet does not subscribe all at once. Returns the time
    /// of the next round if it is not due yet.
    pub(super) fn match_overdue(&mut self, now: Duration, key: &Key) -> Option<Duration> {
        let name = self.names.get_mut(key).filter(|name| name.keys.is_empty())?;
        let due = name.first_response_overdue(self.config.coalesce)?;
        if due > now {
            return Some(due);
        }
        let count = name.unanswered().count();
        let pending = name.unanswered().next().map(|(id, _)| Arc::clone(id));
        let missing = count - name.match_joined(count, &self.parameters);
        let further = self.subscriptions.list_further(&key.0, &key.1, missing);
        self.counts.joined += further.len() as u64;
        self.names.get_mut(key)?.add_joined(further, pending.as_ref(), &mut self.parameters);
        None
    }

    /// While no variant of a name is known, the proxy has to know when locators wait that are not reported.
    pub(super) fn await_further(&mut self, key: &Key) {
        let name =
            self.names.get(key).filter(|name| name.keys.is_empty() && name.unanswered().next().is_some());
        if name.is_some() {
            self.pending.awaiting.push(key.clone());
        }
    }

    /// The index is read once for all names of an event: the streams use it at the same time, so each look
    /// may wait.
    pub(super) fn look_for_further(&mut self, now: Duration) {
        let awaiting = std::mem::take(&mut self.pending.awaiting);
        if awaiting.is_empty() {
            return;
        }
        let again = now + self.config.coalesce;
        let further = self.subscriptions.with_further(awaiting);
        self.timers.extend(further.into_iter().map(|key| (again, key)));
    }

    /// The cache reports all locators from now on that are like this one in the keys of constraints. Returns those
    /// that it has not reported yet.
    pub(super) fn list_all(&self, key: &Key, bound: &Parameters) -> Vec<Parameters> {
        let locator = Locator { name: key.1.clone(), parameters: bound.clone() };
        self.subscriptions.list_all(&key.0, &locator)
    }

    /// No stream subscribes to the locator any more. Returns whether nothing else has to be done.
    pub(super) fn unsubscribe(&mut self, key: &Key, bound: &Parameters) -> bool {
        let Some(number) = self.parameters.number(bound) else { return true };
        let Some(name) = self.names.get_mut(key) else { return true };
        if let Some(id) = name.sharing.remove(&number) {
            let subscription = name.upstream.get_mut(&id);
            if let Some(subscription) = subscription.filter(|subscription| subscription.users > 1) {
                subscription.users -= 1;
                self.parameters.release(number);
                return true;
            }
            name.sharing.insert(number, id);
        }
        !name.match_again(number, false)
    }

    fn audit(&mut self, now: Duration, key: &Key, id: SubscriptionId) {
        let number = self.parameters.next_number();
        let name = self.names.get_mut(key).expect("the name of the hit was read before");
        if name.upstream.contains_key(&id) {
            return;
        }
        self.counts.audited += 1;
        let ends_at = Some(now + AUDIT_TIME);
        let subscription =
            UpstreamSubscription { is_audit: true, ends_at, ..UpstreamSubscription::new(number) };
        name.upstream.insert(Arc::clone(&id), subscription);
        self.timers.insert((now + AUDIT_TIME, key.clone()));
        self.pending.begun.push((key.clone(), id));
    }

    /// Matches the names that an event touched.
    pub(super) fn match_touched(&mut self, now: Duration) {
        let mut transaction = Transaction::new();
        while !(self.pending.touched.is_empty() && self.pending.begun.is_empty()) {
            for key in std::mem::take(&mut self.pending.touched) {
                self.match_name(now, &key, &mut transaction);
            }
            for (key, id) in std::mem::take(&mut self.pending.begun) {
                self.watch(now, &key, &id);
            }
            self.end_idle(now);
        }
        if !transaction.is_empty() {
            self.cache.commit(transaction).expect("a status of a locator breaks no rule of variants");
        }
    }

    /// Matches those downstream subscriptions of a name again for which something may have changed.
    fn match_name(&mut self, now: Duration, key: &Key, transaction: &mut Transaction) {
        let Some(mut name) = self.names.get_mut(key).map(std::mem::take) else { return };
        let snapshot = self.cache.snapshot();
        let variants = snapshot.get(&key.0, &key.1);
        self.end_audits(now, key, &mut name, variants);
        name.follow(variants);
        let mut matched = Vec::new();
        loop {
            let taken = name.take_to_match();
            let to_match = taken.iter().filter(|(_, is_subscribed)| *is_subscribed);
            let to_match =
                to_match.map(|(number, _)| (*number, self.parameters.get(*number).clone())).collect();
            match self.mode(key, &name) {
                Mode::Shared => self.match_shared(now, key, &mut name, to_match, variants),
                Mode::Direct => self.match_direct(key, &mut name, to_match, variants),
            }
            matched.extend(taken);
            // A subscription that ended leaves room for those that were refused.
            if !self.drop_unused(now, key, &mut name, variants) || name.refused.is_empty() {
                break;
            }
            name.to_match.append(&mut name.refused);
        }
        self.report(key, &mut name, matched, transaction);
        if !name.to_match.is_empty() {
            self.pending.touched.insert(key.clone());
        }
        match self.names.get_mut(key) {
            Some(place) if !name.is_unused() => *place = name,
            _ => self.names.remove(key),
        }
    }

    /// An upstream that agrees sends the cached variant once more, or nothing. If it sends another
    /// variant that matches the same parameters, that one evicts the cached variant (T34), and
    /// other locators lose theirs.
    fn end_audits(&mut self, now: Duration, key: &Key, name: &mut Name, variants: Option<&Variants>) {
        if name.upstream.values().all(|subscription| !subscription.is_audit) {
            return;
        }
        let resolves = |parameters| variants.is_some_and(|variants| variants.resolve(parameters).is_some());
        let with_variant = name.downstream.iter().filter(|(_, downstream)| downstream.has_variant);
        let sharing = name.sharing.keys().map(|number| self.parameters.get(*number));
        let with_variant = with_variant.map(|(number, _)| self.parameters.get(*number));
        let is_lost = with_variant.chain(sharing).any(|bound| !resolves(bound));
        let mut is_eager = false;
        for (id, subscription) in name.upstream.iter_mut().filter(|(_, subscription)| subscription.is_audit) {
            let disagrees = is_lost || subscription.answer.is_some() || !resolves(&id.1);
            if disagrees || subscription.ends_at.is_some_and(|at| at <= now) {
                (subscription.is_audit, subscription.ends_at) = (false, None);
                name.released.push(Arc::clone(id));
                is_eager |= disagrees;
            }
        }
        if is_eager && !name.is_eager {
            self.counts.disagreed += 1;
            (name.is_eager, name.is_stale) = (true, true);
            let (type_url, name) = key.clone();
            self.notices.push(Notice::Overlapping { type_url, name });
        }
    }

    fn match_direct(
        &mut self,
        key: &Key,
        name: &mut Name,
        to_match: Vec<(Number, Parameters)>,
        variants: Option<&Variants>,
    ) {
        let is_set = is_set(key.1.as_str());
        for (number, bound) in to_match {
            let has_variant = !is_set && variants.is_some_and(|variants| variants.resolve(&bound).is_some());
            let id = self.own_subscription(key, name.is_unshared, &bound);
            self.rely(key, name, number, Arc::new(id), has_variant);
        }
    }

    /// A locator that a variant matches relies on the oldest upstream subscription for this
    /// variant. Any other locator joins a pending upstream subscription whose response may match
    /// it, or gets its own.
    fn match_shared(
        &mut self,
        now: Duration,
        key: &Key,
        name: &mut Name,
        to_match: Vec<(Number, Parameters)>,
        variants: Option<&Variants>,
    ) {
        if to_match.is_empty() {
            return;
        }
        let resolve = |parameters: &Parameters| variants.and_then(|variants| variants.resolve(parameters));
        let route = self.shared_route(key);
        let shared = |bound: &Parameters| SubscriptionId::new((route.clone(), bound.clone()));
        // T43b: hits rely on the oldest upstream subscription for their variant.
        let mut covers = None;
        let mut unmatched = Vec::new();
        for (number, bound) in to_match {
            match resolve(&bound) {
                Some(variant) => {
                    let covers = covers.get_or_insert_with(|| name.covers_of(resolve));
                    let id = covers.entry(Arc::as_ptr(variant)).or_insert_with(|| shared(&bound)).clone();
                    self.rely(key, name, number, id, true);
                }
                None => unmatched.push((number, bound)),
            }
        }
        if unmatched.is_empty() {
            return;
        }
        // The others: with equal values of the keys in constraints they have the same variant, so
        // one pending upstream subscription is enough for them.
        let keys = name.keys.clone();
        let project = |parameters: &Parameters| parameters.project(|key| keys.contains(key));
        let mut pending: BTreeMap<_, _> =
            name.unanswered().map(|(id, _)| (project(&id.1), Arc::clone(id))).collect();
        let mut allowed = name.unanswered().count();
        let until = name.first_response_overdue(self.config.coalesce);
        let until = until.filter(|_| keys.is_empty()).unwrap_or(Duration::MAX);
        for (number, bound) in unmatched {
            let downstream =
                name.downstream.get_mut(&number).expect("the locator to match has a subscription");
            self.counts.requalified += u64::from(downstream.has_variant);
            let has_joined = downstream.joined.is_some();
            let own = shared(&bound);
            // T35: a locator for which another one's response brought nothing gets its own upstream
            // subscription, at once with all others that waited for that response.
            let is_in_vain = downstream.joined.as_ref().and_then(|id| name.upstream.get(id));
            let is_in_vain = is_in_vain.is_some_and(|subscription| subscription.answer.is_some());
            let subscribes_alone = is_in_vain || name.upstream.contains_key(&own);
            // While no keys are known, the first response may match all locators. Once keys are
            // known, locators with equal values of these keys get the same variant.
            let projected = project(&bound);
            let joined = pending.get(&projected).filter(|_| !subscribes_alone).cloned();
            let has_waited = has_joined && until <= now && allowed > 0;
            match joined {
                Some(id) if !has_waited => {
                    // A locator that may not subscribe now may do so when those that subscribed
                    // have waited.
                    let again = if until > now { until } else { now + self.config.coalesce };
                    if until < Duration::MAX {
                        self.timers.insert((again, key.clone()));
                    }
                    let downstream =
                        name.downstream.get_mut(&number).expect("the locator to match has a subscription");
                    self.counts.joined += u64::from(downstream.joined.replace(Arc::clone(&id)).is_none());
                    self.rely(key, name, number, id, false);
                }
                joined => {
                    allowed -= usize::from(joined.is_some());
                    if !subscribes_alone {
                        pending.entry(projected).or_insert_with(|| Arc::clone(&own));
                    }
                    self.rely(key, name, number, own, false);
                }
            }
        }
    }

    /// Makes a downstream subscription rely on an upstream subscription, and subscribes upstream if
    /// needed.
    fn rely(&mut self, key: &Key, name: &mut Name, number: Number, id: SubscriptionId, has_variant: bool) {
        let downstream = name.downstream.get_mut(&number).expect("the locator to match has a subscription");
        downstream.has_variant = has_variant;
        if !name.upstream.contains_key(&id) {
            if name.upstream.len() >= self.config.upstream_subscriptions_limit && !self.make_room(key, name) {
                name.refused.insert(number);
                return;
            }
            let subscription = UpstreamSubscription::new(self.parameters.next_number());
            self.counts.misses += 1;
            name.upstream.insert(Arc::clone(&id), subscription);
            self.pending.begun.push((key.clone(), Arc::clone(&id)));
        }
        let subscription = name.upstream.get_mut(&id).expect("the subscription was inserted above");
        subscription.users += 1;
        if !has_variant {
            subscription.waiting.insert(number);
        }
        // An audit ends all the same. From then on it is an upstream subscription like others.
        if !subscription.is_audit
            && let Some(ends_at) = subscription.ends_at.take()
        {
            // Others for its variant are not needed beside it.
            name.checks_lingering |= has_variant;
            self.forget_idle(&(ends_at, key.clone(), id.clone()));
        }
        let downstream = name.downstream.get_mut(&number).expect("the locator to match has a subscription");
        downstream.relies_on = Some(id);
    }

    /// Sets the status of each locator in the cache, from the response to its own upstream
    /// subscription.
    fn report(
        &mut self,
        key: &Key,
        name: &mut Name,
        matched: Vec<(Number, bool)>,
        transaction: &mut Transaction,
    ) {
        let is_direct = self.mode(key, name) == Mode::Direct;
        let mut others = Vec::new();
        for (number, is_subscribed) in matched {
            let Some(downstream) = name.downstream.get(&number) else { continue };
            let is_refused = is_subscribed && !downstream.has_variant && downstream.relies_on.is_none();
            let answer = match &downstream.relies_on {
                _ if !is_subscribed || downstream.has_variant => None,
                // T35: absence for one locator says nothing about other locators.
                Some(id)
                    if **id == self.own_subscription(key, name.is_unshared, self.parameters.get(number)) =>
                {
                    let answer = name.upstream.get(id).and_then(|subscription| subscription.answer.clone());
                    answer.or_else(|| self.refusal(&id.0, &key.0))
                }
                Some(_) => None,
                None => Some(LocatorStatus::Failed {
                    code: Code::RESOURCE_EXHAUSTED,
                    message:
                        "the proxy has the highest number of upstream subscriptions that it allows for this \
                              name; it still serves cached variants"
                            .into(),
                }),
            };
            // S37: when a refused type is tried again, the error stays until there is an answer: without it a wildcard
            // would be complete.
            let is_wanted = is_subscribed && !downstream.has_variant;
            let standing = || downstream.reported.clone().filter(|of| is_wanted && is_refusal(of));
            let answer = answer.or_else(standing);
            if answer != downstream.reported {
                self.counts.refused += u64::from(is_refused);
                let parameters = self.parameters.get(number).clone();
                let locator = Locator { name: key.1.clone(), parameters };
                transaction.set_status(key.0.clone(), locator, answer.clone());
            }
            // Others that are like it in the keys of constraints need an upstream subscription of their own now.
            if is_subscribed && (answer.is_some() || is_direct) {
                let all = self.list_all(key, self.parameters.get(number));
                others.push((all, downstream.relies_on.clone()));
            }
            let Entry::Occupied(mut entry) = name.downstream.entry(number) else { continue };
            match &mut *entry.get_mut() {
                DownstreamSubscription { has_variant: true, relies_on: Some(_), .. } if is_subscribed => {
                    name.sharing.extend(entry.remove().relies_on.map(|id| (number, id)));
                }
                downstream if is_subscribed => downstream.reported = answer,
                _ => {
                    entry.remove();
                    self.parameters.release(number);
                }
            }
        }
        for (all, joined) in others {
            self.counts.joined += all.len() as u64;
            name.add_joined(all, joined.as_ref(), &mut self.parameters);
        }
    }
}

/// G4: whether a status says that the type is not served.
fn is_refusal(status: &LocatorStatus) -> bool {
    matches!(status, LocatorStatus::Failed { code: Code::UNIMPLEMENTED, .. })
}

/// How long an upstream has to send another variant during an audit.
const AUDIT_TIME: Duration = Duration::from_secs(5);

/// Up to so many upstream subscriptions of a name are looked through for each new subscription.
const FEW: usize = 8;
