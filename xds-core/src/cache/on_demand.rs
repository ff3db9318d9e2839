//! What the streams of a cache ask for, for a source that brings only what somebody wants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::interest::RegisteredStream;
use super::{Cache, lock};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, WILDCARD};
use crate::xdstp::glob_of;

/// One locator of one type, and how many ask for it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemandSubscription {
    /// The type.
    pub type_url: TypeUrl,
    /// The name with its parameters; `*` for everything. What streams ask for by plain name has the
    /// parameters that their node gives it (T46).
    pub locator: Locator,
    /// How many subscriptions there are to it; 0 when the last was given up.
    pub streams: usize,
}

/// What a source says of one locator that no variant in the cache answers, or not alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocatorStatus {
    /// What the cache holds is all there is: a name without a variant does not exist for these
    /// parameters, and beside the members that are there a wildcard or glob has none.
    Complete,
    /// The source cannot say. Who waits is told so, and keeps what it has.
    Failed {
        /// What kind of error it is.
        code: Code,
        /// Why, for people.
        message: Arc<str>,
    },
}

/// Reads what is asked for of a cache [on demand](Cache::on_demand). Made by [`Cache::on_demand_subscriptions`].
#[derive(Debug)]
pub struct OnDemandSubscriptions(Arc<Cache>);

impl OnDemandSubscriptions {
    /// What changed since the last call, each locator once, as it stands now: who is slow to look
    /// loses nothing and nothing queues.
    #[must_use]
    pub fn take(&self) -> Vec<OnDemandSubscription> {
        let mut interest = lock(&self.0.interest);
        let Some(subscriptions) = &mut interest.subscriptions else { return Vec::new() };
        subscriptions.take()
    }

    /// Ready when [`take`](Self::take) has something. One task at a time may wait.
    pub fn poll_changed(&self, cx: &Context<'_>) -> Poll<()> {
        // Before looking: what changes in between wakes.
        self.0.on_demand_waker.register(cx.waker());
        let interest = lock(&self.0.interest);
        let has_changed =
            interest.subscriptions.as_ref().is_some_and(|subscriptions| !subscriptions.changed.is_empty());
        if has_changed { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until [`take`](Self::take) has something. Needs no runtime; dropping the future loses
    /// nothing.
    pub async fn changed(&self) {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await;
    }
}

impl Cache {
    /// What is asked for of it; `None` unless it is filled [on demand](Self::on_demand). There may
    /// be one reader at a time.
    #[must_use]
    pub fn on_demand_subscriptions(self: &Arc<Self>) -> Option<OnDemandSubscriptions> {
        lock(&self.interest).subscriptions.as_ref()?;
        Some(OnDemandSubscriptions(Arc::clone(self)))
    }
}

/// Who asks for what, to the letter: unlike the classes, which know parameters only as far as they
/// choose a variant.
#[derive(Debug, Default)]
pub(super) struct SubscriptionIndex {
    types: BTreeMap<TypeUrl, OfType>,
    /// Each once, in the order of their first change.
    changed: Vec<(TypeUrl, Locator)>,
}

type OfType = BTreeMap<ResourceName, BTreeMap<Parameters, Subscribers>>;

/// Those who ask for one locator.
#[derive(Debug, Default)]
struct Subscribers {
    streams: Vec<Arc<RegisteredStream>>,
    /// That there are some, or none any more, was not read yet.
    is_changed: bool,
}

impl SubscriptionIndex {
    /// A stream asks for something else than before.
    pub(super) fn change(
        &mut self,
        type_url: &TypeUrl,
        stream: &Arc<RegisteredStream>,
        before: &Locators,
        after: &Locators,
        waker: &AtomicWaker,
    ) {
        if before.is_empty() && after.is_empty() {
            return;
        }
        let was_empty = self.changed.is_empty();
        let of_type = self.types.entry(type_url.clone()).or_default();
        for (parameters, names) in before.without(after).sets() {
            for name in names.iter() {
                let subscribers = of_type.get_mut(name).and_then(|of_name| of_name.get_mut(parameters));
                let subscribers = subscribers.expect("what is left was asked for");
                let at = subscribers.streams.iter().rposition(|other| Arc::ptr_eq(other, stream));
                subscribers.streams.swap_remove(at.expect("who leaves has asked"));
                if subscribers.streams.is_empty() {
                    note(subscribers, type_url, name, parameters, &mut self.changed);
                }
            }
        }
        for (parameters, names) in after.without(before).sets() {
            for name in names.iter() {
                let subscribers =
                    of_type.entry(name.clone()).or_default().entry(parameters.clone()).or_default();
                subscribers.streams.push(Arc::clone(stream));
                if subscribers.streams.len() == 1 {
                    note(subscribers, type_url, name, parameters, &mut self.changed);
                }
            }
        }
        if was_empty && !self.changed.is_empty() {
            waker.wake();
        }
    }

    /// The streams that ask for a locator.
    pub(super) fn subscribers(
        &self,
        type_url: &TypeUrl,
        Locator { name, parameters }: &Locator,
    ) -> &[Arc<RegisteredStream>] {
        let of_name = self.types.get(type_url).and_then(|of_type| of_type.get(name));
        of_name.and_then(|of_name| of_name.get(parameters)).map_or(&[], |subscribers| &subscribers.streams)
    }

    /// The streams that ask for a variant: by its name, its glob, or everything.
    pub(super) fn subscribers_to(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        constraints: &Constraints,
    ) -> impl Iterator<Item = &Arc<RegisteredStream>> {
        let names = [Some(name.clone()), glob_of(name), Some(ResourceName::from(WILDCARD))];
        let of_type = self.types.get(type_url);
        let of_names = names.into_iter().flatten().filter_map(move |name| of_type?.get(&name));
        let subscribers = of_names.flatten().filter(|(parameters, _)| constraints.matches(parameters));
        subscribers.flat_map(|(_, subscribers)| &subscribers.streams)
    }

    fn take(&mut self) -> Vec<OnDemandSubscription> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|(type_url, locator)| self.read(type_url, locator)).collect()
    }

    fn read(&mut self, type_url: TypeUrl, locator: Locator) -> OnDemandSubscription {
        let mut count = 0;
        if let Some(of_type) = self.types.get_mut(&type_url)
            && let Some(of_name) = of_type.get_mut(&locator.name)
            && let Some(subscribers) = of_name.get_mut(&locator.parameters)
        {
            (count, subscribers.is_changed) = (subscribers.streams.len(), false);
            if count == 0 {
                of_name.remove(&locator.parameters);
                if of_name.is_empty() {
                    of_type.remove(&locator.name);
                }
                // Clients name types as they like.
                if of_type.is_empty() {
                    self.types.remove(&type_url);
                }
            }
        }
        OnDemandSubscription { type_url, locator, streams: count }
    }
}

fn note(
    subscribers: &mut Subscribers,
    type_url: &TypeUrl,
    name: &ResourceName,
    parameters: &Parameters,
    changed: &mut Vec<(TypeUrl, Locator)>,
) {
    if !std::mem::replace(&mut subscribers.is_changed, true) {
        changed.push((type_url.clone(), Locator { name: name.clone(), parameters: parameters.clone() }));
    }
}
