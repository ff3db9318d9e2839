//! The subscriptions of all streams, for a source that loads only resources that streams subscribe
//! to.

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

/// One locator of one type, and how many streams subscribe to it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemandSubscription {
    /// The type.
    pub type_url: TypeUrl,
    /// The name with its parameters; the name `*` selects all resources. A subscription by plain
    /// name has the parameters that are derived from the node of its stream (T46).
    pub locator: Locator,
    /// How many streams subscribe to it; 0 after the last one has unsubscribed.
    pub streams: usize,
}

/// What a source says about one locator that no variant in the cache matches, or for which more
/// variants may exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocatorStatus {
    /// The cache contains everything that this locator selects. A name without a matching variant
    /// does not exist for these parameters. A wildcard or glob has no members besides those in the
    /// cache.
    Complete,
    /// The source cannot look it up. Clients that wait get this error and keep what they have.
    Failed {
        /// The kind of error.
        code: Code,
        /// The reason, for people.
        message: Arc<str>,
    },
}

/// Reads the subscriptions to a cache [on demand](Cache::on_demand). Made by
/// [`Cache::on_demand_subscriptions`].
#[derive(Debug)]
pub struct OnDemandSubscriptions(Arc<Cache>);

impl OnDemandSubscriptions {
    /// The locators that gained their first subscription or lost their last one since the last
    /// call, each once and with its current count. So a slow source misses nothing, and no queue
    /// grows.
    #[must_use]
    pub fn take(&self) -> Vec<OnDemandSubscription> {
        let mut interest = lock(&self.0.interest);
        let Some(subscriptions) = &mut interest.subscriptions else { return Vec::new() };
        subscriptions.take()
    }

    /// Ready when [`take`](Self::take) has something to return. One task at a time may wait.
    pub(crate) fn poll_changed(&self, cx: &Context<'_>) -> Poll<()> {
        // Register first: a change between the two steps then wakes this task.
        self.0.on_demand_waker.register(cx.waker());
        let interest = lock(&self.0.interest);
        let has_changed =
            interest.subscriptions.as_ref().is_some_and(|subscriptions| !subscriptions.changed.is_empty());
        if has_changed { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until [`take`](Self::take) has something to return. Needs no runtime; dropping the
    /// future loses nothing.
    pub async fn changed(&self) {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await;
    }
}

impl Cache {
    /// A reader of the subscriptions to this cache; `None` unless the cache is
    /// [on demand](Self::on_demand). Use one reader at a time.
    #[must_use]
    pub fn on_demand_subscriptions(self: &Arc<Self>) -> Option<OnDemandSubscriptions> {
        lock(&self.interest).subscriptions.as_ref()?;
        Some(OnDemandSubscriptions(Arc::clone(self)))
    }
}

/// Which streams subscribe to which locator, with all parameters. Selection classes are not exact
/// enough for a source: they know only the parameters that choose between variants in the cache.
#[derive(Debug, Default)]
pub(super) struct SubscriptionIndex {
    types: BTreeMap<TypeUrl, OfType>,
    /// Locators whose change was not read yet, each once, in the order of their first change.
    changed: Vec<(TypeUrl, Locator)>,
}

type OfType = BTreeMap<ResourceName, BTreeMap<Parameters, Subscribers>>;

/// The streams that subscribe to one locator.
#[derive(Debug, Default)]
struct Subscribers {
    streams: Vec<Arc<RegisteredStream>>,
    /// The locator is in [`SubscriptionIndex::changed`].
    is_queued: bool,
}

impl SubscriptionIndex {
    /// Replaces the locators of a stream.
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
                let subscribers = subscribers.expect("a locator that a stream leaves is in the index");
                let at = subscribers.streams.iter().rposition(|other| Arc::ptr_eq(other, stream));
                subscribers.streams.swap_remove(at.expect("a stream is listed at its locators"));
                if subscribers.streams.is_empty() {
                    queue_change(subscribers, type_url, name, parameters, &mut self.changed);
                }
            }
        }
        for (parameters, names) in after.without(before).sets() {
            for name in names.iter() {
                let subscribers =
                    of_type.entry(name.clone()).or_default().entry(parameters.clone()).or_default();
                subscribers.streams.push(Arc::clone(stream));
                if subscribers.streams.len() == 1 {
                    queue_change(subscribers, type_url, name, parameters, &mut self.changed);
                }
            }
        }
        if was_empty && !self.changed.is_empty() {
            waker.wake();
        }
    }

    /// The streams that subscribe to a locator.
    pub(super) fn subscribers(
        &self,
        type_url: &TypeUrl,
        Locator { name, parameters }: &Locator,
    ) -> &[Arc<RegisteredStream>] {
        let of_name = self.types.get(type_url).and_then(|of_type| of_type.get(name));
        of_name.and_then(|of_name| of_name.get(parameters)).map_or(&[], |subscribers| &subscribers.streams)
    }

    /// The streams that select a variant: by its name, by its glob, or by the wildcard.
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
            (count, subscribers.is_queued) = (subscribers.streams.len(), false);
            if count == 0 {
                of_name.remove(&locator.parameters);
                if of_name.is_empty() {
                    of_type.remove(&locator.name);
                }
                // Clients choose the types, so an unused one must not stay.
                if of_type.is_empty() {
                    self.types.remove(&type_url);
                }
            }
        }
        OnDemandSubscription { type_url, locator, streams: count }
    }
}

fn queue_change(
    subscribers: &mut Subscribers,
    type_url: &TypeUrl,
    name: &ResourceName,
    parameters: &Parameters,
    changed: &mut Vec<(TypeUrl, Locator)>,
) {
    if !std::mem::replace(&mut subscribers.is_queued, true) {
        changed.push((type_url.clone(), Locator { name: name.clone(), parameters: parameters.clone() }));
    }
}
