//! Which want relies on which question (T43, T43b).
//!
//! A want is looked at again when it is new, and while it waits: when a variant came, when a
//! question was answered. Who has a variant is left alone, whatever becomes of its content, until
//! one of the name's variants goes. Who asks for what is at hand costs a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::{Sharing, UpstreamKind};
use super::name::{Name, SubscriptionId, UpstreamSubscription};
use super::orders::Order;
use super::route::Route;
use super::{Key, Notice, Proxy};
use crate::cache::{LocatorStatus, Transaction};
use crate::code::Code;
use crate::name::TypeUrl;
use crate::parameters::Parameters;
use crate::subscription::{Locator, is_set};
use crate::variants::{Variant, Variants};

/// How downstream subscriptions of a name get an upstream subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// By what the constraints of its variants match.
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
            && !self.is_on_side_stream(&Route::Shared, &key.0)
            && !is_set(key.1.as_str());
        if is_shared { Mode::Shared } else { Mode::Direct }
    }

    /// What a want is asked for with when it is asked for by itself.
    fn own_subscription(&self, key: &Key, is_unshared: bool, bound: &Parameters) -> SubscriptionId {
        Arc::new(match &self.config.upstream {
            UpstreamKind::Node { keys } => {
                let projected = bound.project(|key| keys.contains(key));
                (self.stream_for(Route::Node(projected.clone()), &key.0), projected)
            }
            UpstreamKind::Locators { .. } if is_unshared => (Route::Alone(bound.unbound()), bound.clone()),
            UpstreamKind::Locators { set_keys: Some(keys) } if is_set(key.1.as_str()) => {
                (self.stream_for(Route::Shared, &key.0), bound.project(|key| keys.contains(key)))
            }
            UpstreamKind::Locators { .. } => (self.stream_for(Route::Shared, &key.0), bound.clone()),
        })
    }

    /// The stream that a type is asked for on.
    fn stream_for(&self, main: Route, type_url: &TypeUrl) -> Route {
        if self.is_on_side_stream(&main, type_url) { main.side_stream(type_url) } else { main }
    }

    /// The common case of a new want: what is at hand is for it, and stays subscribed. Whether that
    /// was so.
    pub(super) fn share(&mut self, now: Duration, key: &Key, bound: &Parameters) -> bool {
        let (name, audit) = (&self.names[key], self.config.sharing(&key.0));
        if self.mode(key, name) != Mode::Shared {
            return false;
        }
        let snapshot = self.cache.snapshot();
        let variants = snapshot.get(&key.0, &key.1);
        let Some(variant) = variants.and_then(|variants| variants.resolve(bound)) else { return false };
        self.counts.hits += 1;
        if let Sharing::Audit { one_in } = audit
            && self.counts.hits.is_multiple_of(one_in.max(1).into())
        {
            self.audit(now, key, shared(bound));
        }
        let name = self.names.get_mut(key).expect("it was looked up above");
        // T43b: the same question for all who share a variant, the oldest. There are few.
        let is_cover = |(id, subscription): &(&SubscriptionId, &mut UpstreamSubscription)| {
            id.0 == Route::Shared && !subscription.is_audit && variant.constraints().matches(&id.1)
        };
        let covers = name.upstream.iter_mut().filter(is_cover);
        let oldest = covers.min_by_key(|(_, subscription)| subscription.number);
        let Some((id, subscription)) = oldest.filter(|(_, subscription)| subscription.users > 0) else {
            return false;
        };
        let downstream = name.downstream.get_mut(bound).expect("somebody asks for it");
        if downstream.relies_on.is_some() {
            return false;
        }
        subscription.users += 1;
        downstream.relies_on = Some(Arc::clone(id));
        downstream.has_variant = true;
        true
    }

    /// Nobody asks for it any more; whether nothing else has to be done.
    pub(super) fn unsubscribe(&mut self, key: &Key, bound: &Parameters) -> bool {
        let Some(name) = self.names.get_mut(key) else { return true };
        let Some(downstream) = name.downstream.get(bound) else { return true };
        let Some(subscription) = downstream.relies_on.as_ref().and_then(|id| name.upstream.get_mut(id))
        else {
            return false;
        };
        if downstream.reported.is_some() || subscription.users <= 1 {
            return false;
        }
        subscription.users -= 1;
        subscription.waiting.remove(&downstream.number);
        name.downstream.remove(bound);
        true
    }

    fn audit(&mut self, now: Duration, key: &Key, id: SubscriptionId) {
        let number = self.next_number();
        let name = self.names.get_mut(key).expect("it was looked up before");
        if name.upstream.contains_key(&id) {
            return;
        }
        self.counts.audited += 1;
        let ends_at = Some(now + AUDIT_TIME);
        let subscription =
            UpstreamSubscription { is_audit: true, ends_at, ..UpstreamSubscription::new(number) };
        name.upstream.insert(Arc::clone(&id), subscription);
        self.timers.insert((now + AUDIT_TIME, key.clone()));
        self.order(&id.0, Order::Watch { key: key.clone(), parameters: id.1.clone() });
    }

    pub(super) fn match_names(&mut self, now: Duration, mut keys: BTreeSet<Key>) {
        let mut transaction = Transaction::new();
        while !keys.is_empty() {
            for key in keys {
                self.match_name(now, &key, &mut transaction);
            }
            keys = self.end_idle(now);
        }
        if !transaction.is_empty() {
            self.cache.commit(transaction).expect("what is answered breaks no rule of variants");
        }
    }

    /// Looks at those wants of a name again that something may have changed for.
    fn match_name(&mut self, now: Duration, key: &Key, transaction: &mut Transaction) {
        let Some(mut name) = self.names.remove(key) else { return };
        let snapshot = self.cache.snapshot();
        let variants = snapshot.get(&key.0, &key.1);
        self.end_audits(now, key, &mut name, variants);
        name.follow(variants);
        let mut reviewed = Vec::new();
        loop {
            let taken = name.take_to_match();
            let wanted =
                taken.iter().filter(|(_, is_asked)| *is_asked).map(|(bound, _)| bound.clone()).collect();
            match self.mode(key, &name) {
                Mode::Shared => self.match_shared(now, key, &mut name, wanted, variants),
                Mode::Direct => self.match_direct(key, &mut name, wanted, variants),
            }
            reviewed.extend(taken);
            // Who was refused may ask when others went.
            if !self.drop_unused(now, key, &mut name, variants) || name.refused.is_empty() {
                break;
            }
            name.to_match.append(&mut name.refused);
        }
        self.report(key, &mut name, reviewed, transaction);
        if !name.downstream.is_empty() || !name.upstream.is_empty() {
            self.names.insert(key.clone(), name);
        }
    }

    /// An upstream that agrees sends what is at hand once more, or nothing. Where it has another
    /// variant for the same parameters, that evicts the one at hand (T34), and others lose theirs.
    fn end_audits(&mut self, now: Duration, key: &Key, name: &mut Name, variants: Option<&Variants>) {
        if name.upstream.values().all(|subscription| !subscription.is_audit) {
            return;
        }
        let resolves = |parameters| variants.is_some_and(|variants| variants.resolve(parameters).is_some());
        let is_lost =
            name.downstream.iter().any(|(bound, downstream)| downstream.has_variant && !resolves(bound));
        let mut is_eager = false;
        for (id, subscription) in name.upstream.iter_mut().filter(|(_, subscription)| subscription.is_audit) {
            let disagrees = is_lost || subscription.answer.is_some() || !resolves(&id.1);
            if disagrees || subscription.ends_at.is_some_and(|at| at <= now) {
                (subscription.is_audit, subscription.ends_at) = (false, None);
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
        wanted: Vec<Parameters>,
        variants: Option<&Variants>,
    ) {
        let is_set = is_set(key.1.as_str());
        for bound in wanted {
            let has_variant = !is_set && variants.is_some_and(|variants| variants.resolve(&bound).is_some());
            let id = self.own_subscription(key, name.is_unshared, &bound);
            self.rely(key, name, &bound, id, has_variant);
        }
    }

    fn match_shared(
        &mut self,
        now: Duration,
        key: &Key,
        name: &mut Name,
        wanted: Vec<Parameters>,
        variants: Option<&Variants>,
    ) {
        if wanted.is_empty() {
            return;
        }
        let resolve = |parameters: &Parameters| variants.and_then(|variants| variants.resolve(parameters));
        // T43b: one question for each variant, the oldest.
        let mut covers = BTreeMap::<*const Variant, SubscriptionId>::new();
        let is_shared = |(id, subscription): &(&SubscriptionId, &UpstreamSubscription)| {
            id.0 == Route::Shared && !subscription.is_audit
        };
        let mut asked: Vec<_> = name.upstream.iter().filter(is_shared).collect();
        asked.sort_unstable_by_key(|(_, subscription)| subscription.number);
        for (id, _) in asked {
            if let Some(variant) = resolve(&id.1) {
                covers.entry(Arc::as_ptr(variant)).or_insert_with(|| Arc::clone(id));
            }
        }
        let mut unmatched = Vec::new();
        for bound in wanted {
            match resolve(&bound) {
                Some(variant) => {
                    let id = covers.entry(Arc::as_ptr(variant)).or_insert_with(|| shared(&bound)).clone();
                    self.rely(key, name, &bound, id, true);
                }
                None => unmatched.push(bound),
            }
        }
        if unmatched.is_empty() {
            return;
        }
        let keys = name.keys.clone();
        let project = |parameters: &Parameters| parameters.project(|key| keys.contains(key));
        let mut pending: BTreeMap<_, _> =
            name.unanswered().map(|(id, _)| (project(&id.1), Arc::clone(id))).collect();
        let mut allowed = name.unanswered().count();
        let until = name.first_response_overdue(self.config.coalesce);
        let until = until.filter(|_| keys.is_empty()).unwrap_or(Duration::MAX);
        for bound in unmatched {
            let downstream = name.downstream.get_mut(&bound).expect("it is wanted");
            self.counts.requalified += u64::from(downstream.has_variant);
            let has_joined = downstream.joined.is_some();
            let own = shared(&bound);
            // T35: whom another's answer brought nothing for asks by itself, at once with all who
            // waited for it.
            let is_in_vain = downstream.joined.as_ref().and_then(|id| name.upstream.get(id));
            let is_in_vain = is_in_vain.is_some_and(|subscription| subscription.answer.is_some());
            let is_asked = is_in_vain || name.upstream.contains_key(&own);
            // While no keys are known, the first answer may be for all. Once they are, whose
            // parameters agree on them get the same.
            let joined = pending.get(&project(&bound)).filter(|_| !is_asked).cloned();
            let has_waited = has_joined && until <= now && allowed > 0;
            match joined {
                Some(id) if !has_waited => {
                    // Who may not ask now may when those who do have waited.
                    let again = if until > now { until } else { now + self.config.coalesce };
                    if until < Duration::MAX {
                        self.timers.insert((again, key.clone()));
                    }
                    let downstream = name.downstream.get_mut(&bound).expect("it is wanted");
                    self.counts.joined += u64::from(downstream.joined.replace(Arc::clone(&id)).is_none());
                    self.rely(key, name, &bound, id, false);
                }
                joined => {
                    allowed -= usize::from(joined.is_some());
                    if !is_asked {
                        pending.entry(project(&bound)).or_insert_with(|| Arc::clone(&own));
                    }
                    self.rely(key, name, &bound, own, false);
                }
            }
        }
    }

    /// Has a want rely on a question, which is asked if it was not.
    fn rely(
        &mut self,
        key: &Key,
        name: &mut Name,
        bound: &Parameters,
        id: SubscriptionId,
        has_variant: bool,
    ) {
        let downstream = name.downstream.get_mut(bound).expect("it is wanted");
        downstream.has_variant = has_variant;
        let number = downstream.number;
        if !name.upstream.contains_key(&id) {
            if name.upstream.len() >= self.config.upstream_subscriptions_limit && !self.make_room(key, name) {
                name.refused.insert(number, bound.clone());
                return;
            }
            let subscription = UpstreamSubscription::new(self.next_number());
            self.counts.misses += 1;
            name.upstream.insert(Arc::clone(&id), subscription);
            self.order(&id.0, Order::Watch { key: key.clone(), parameters: id.1.clone() });
        }
        let subscription = name.upstream.get_mut(&id).expect("it was asked above");
        subscription.users += 1;
        if !has_variant {
            subscription.waiting.insert(number, bound.clone());
        }
        // An audit ends all the same, and then is a question like others.
        if !subscription.is_audit
            && let Some(ends_at) = subscription.ends_at.take()
        {
            self.forget_idle(&(ends_at, key.clone(), id.clone()));
        }
        name.downstream.get_mut(bound).expect("it is wanted").relies_on = Some(id);
    }

    /// Has the cache say of each want what its own question was answered.
    fn report(
        &mut self,
        key: &Key,
        name: &mut Name,
        reviewed: Vec<(Parameters, bool)>,
        transaction: &mut Transaction,
    ) {
        for (bound, is_asked) in reviewed {
            let Some(downstream) = name.downstream.get(&bound) else { continue };
            let is_refused = is_asked && !downstream.has_variant && downstream.relies_on.is_none();
            let answer = match &downstream.relies_on {
                _ if !is_asked || downstream.has_variant => None,
                // T35: what is absent for one locator is so for no other.
                Some(id) if *id == self.own_subscription(key, name.is_unshared, &bound) => {
                    let answer = name.upstream.get(id).and_then(|subscription| subscription.answer.clone());
                    answer.or_else(|| self.refusal(&id.0, &key.0))
                }
                Some(_) => None,
                None => Some(LocatorStatus::Failed {
                    code: Code::RESOURCE_EXHAUSTED,
                    message: "too many parameter sets of this name are asked for".into(),
                }),
            };
            if answer != downstream.reported {
                self.counts.refused += u64::from(is_refused);
                let locator = Locator { name: key.1.clone(), parameters: bound.clone() };
                transaction.set_status(key.0.clone(), locator, answer.clone());
            }
            match name.downstream.get_mut(&bound) {
                Some(downstream) if is_asked => downstream.reported = answer,
                _ => drop(name.downstream.remove(&bound)),
            }
        }
    }
}

/// How long an upstream has to say that it does not agree.
const AUDIT_TIME: Duration = Duration::from_secs(5);

fn shared(bound: &Parameters) -> SubscriptionId {
    Arc::new((Route::Shared, bound.clone()))
}
