//! The subscriptions of all streams, for a source that loads only resources that streams subscribe
//! to.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Cache, lock};
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::Locator;

pub(super) use index::SubscriptionIndex;

mod index;

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
        self.take_some(usize::MAX)
    }

    /// The same, for at most so many locators. The streams take turns. If some are left,
    /// [`changed`](Self::changed) is ready at once.
    #[must_use]
    pub fn take_some(&self, limit: usize) -> Vec<OnDemandSubscription> {
        self.index(|index| index.take(limit)).unwrap_or_default()
    }

    /// Reports each locator of a name whose parameters have the same values as those of this one in the keys that
    /// constraints use: those that are not reported yet, which it returns, and those that come.
    pub(crate) fn list_all(&self, type_url: &TypeUrl, locator: &Locator) -> Vec<Parameters> {
        self.index(|index| index.list_all(type_url, locator)).unwrap_or_default()
    }

    /// Reports so many further locators of a name, which it returns. If there are not so many, the next one that
    /// comes is reported.
    pub(crate) fn list_further(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        count: usize,
    ) -> Vec<Parameters> {
        self.index(|index| index.list_further(type_url, name, count)).unwrap_or_default()
    }

    /// Whether streams subscribe to locators of a name that are not reported. If not, the next one that comes is.
    pub(crate) fn has_further(&self, type_url: &TypeUrl, name: &ResourceName) -> bool {
        self.index(|index| index.has_further(type_url, name)).unwrap_or_default()
    }

    /// Those of these names that [have further](Self::has_further) locators.
    pub(crate) fn with_further(
        &self,
        mut names: Vec<(TypeUrl, ResourceName)>,
    ) -> Vec<(TypeUrl, ResourceName)> {
        self.index(|index| names.retain(|(type_url, name)| index.has_further(type_url, name)));
        names
    }

    /// How many locators streams subscribe to, whether they are reported or not.
    pub(crate) fn locators(&self) -> usize {
        self.index(|index| index.locators()).unwrap_or_default()
    }

    fn index<R>(&self, look: impl FnOnce(&mut SubscriptionIndex) -> R) -> Option<R> {
        lock(&self.0.interest).subscriptions.as_mut().map(look)
    }

    /// Ready when [`take`](Self::take) has something to return. One task at a time may wait.
    pub(crate) fn poll_changed(&self, cx: &Context<'_>) -> Poll<()> {
        // Register first: a change between the two steps then wakes this task.
        self.0.on_demand_waker.register(cx.waker());
        let has_changed = self.index(|index| index.has_changed()) == Some(true);
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
