//! Subscriptions of the program that the proxy runs in.

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;
use xds_core::client::ReadGuard;
use xds_core::proxy::{LocalStream, LocalSubscription, SubscribeError};
use xds_core::{Cache, Parameters, Raw, ResourceType, TypeUrl};

use super::Proxy;

/// A subscription of the program to some names of one type. Dropping it ends the subscription.
///
/// It reads what a client on a stream would have: also a type that the upstream rejects beside
/// others, and that the proxy gets on a stream of its own. It keeps the proxy alive.
///
/// ```no_run
/// use xds_client::proxy::Proxy;
/// use xds_client::{Parameters, ReadRoute};
/// # #[derive(Clone, PartialEq, prost::Message)]
/// # struct Secret {}
/// # impl prost::Name for Secret {
/// #     const NAME: &'static str = "Secret";
/// #     const PACKAGE: &'static str = "envoy.extensions.transport_sockets.tls.v3";
/// # }
///
/// # async fn run(proxy: Proxy) -> Result<(), Box<dyn std::error::Error>> {
/// let secrets = proxy.subscribe::<Secret>(["web"], Parameters::new())?;
/// secrets.ready().await;
/// match secrets.read().route() {
///     ReadRoute::Cache(secrets) => println!("{:?}", secrets.get("web")?),
///     ReadRoute::Upstream(status) => println!("the control plane has no secrets: {status}"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it ends the subscription"]
pub struct Subscription<T> {
    proxy: Proxy,
    local: LocalSubscription,
    stream: AbortHandle,
    of: PhantomData<fn() -> T>,
}

impl Proxy {
    /// Subscribes to names, globs (X12) or the wildcard (`*`) of one type, as a client with these
    /// parameters would. The subscription is shared with clients, and stays upstream for
    /// [`ProxyConfig::linger`](super::ProxyConfig::linger) after it ended.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub fn subscribe<'n, T>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Parameters,
    ) -> Result<Subscription<T>, SubscribeError>
    where
        T: ResourceType,
    {
        self.start_subscription(TypeUrl::of::<T>(), names, parameters)
    }

    /// As [`subscribe`](Self::subscribe), for any type, as bytes.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub fn subscribe_raw<'n>(
        &self,
        type_url: &TypeUrl,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Parameters,
    ) -> Result<Subscription<Raw>, SubscribeError> {
        self.start_subscription(type_url.clone(), names, parameters)
    }

    fn start_subscription<'n, T>(
        &self,
        type_url: TypeUrl,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Parameters,
    ) -> Result<Subscription<T>, SubscribeError> {
        let local = LocalSubscription::new(type_url, names, parameters)?;
        let (cache, start) = (Arc::clone(&self.shared.cache), self.shared.start);
        let stream = LocalStream::new(start.elapsed(), &cache, local.clone())?;
        let task = self.shared.runtime.spawn(keep(stream, cache, start, local.clone()));
        Ok(Subscription { proxy: self.clone(), local, stream: task.abort_handle(), of: PhantomData })
    }
}

impl<T> Subscription<T> {
    /// Waits until each name has a resource, is absent, or has an error of the upstream.
    ///
    /// An upstream that is away, or is silent, has said nothing: use a timeout.
    pub async fn ready(&self) {
        loop {
            let mut event = pin!(self.proxy.shared.event.notified());
            // Before the look, so that no event is missed.
            event.as_mut().enable();
            if self.is_ready() {
                return;
            }
            event.await;
        }
    }

    /// Whether [`ready`](Self::ready) would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.proxy.shared.lock().machine.is_answered(&self.local)
    }

    /// Reads its names as they are now, with its parameters. All reads of the guard are of one
    /// moment. It locks the proxy for a short time.
    #[must_use]
    pub fn read(&self) -> ReadGuard<T> {
        self.proxy.shared.lock().machine.read(&self.local)
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.stream.abort();
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("local", &self.local).finish_non_exhaustive()
    }
}

/// Drives the stream of a subscription until the task is aborted.
async fn keep(mut stream: LocalStream, cache: Arc<Cache>, start: Instant, local: LocalSubscription) {
    loop {
        match stream.work(start.elapsed()) {
            Ok(until) => {
                let due = async {
                    match until {
                        Some(until) => sleep_until(start + until).await,
                        None => std::future::pending().await,
                    }
                };
                let watch = Arc::clone(stream.watch());
                tokio::select! {
                    () = watch.woken() => {}
                    () = due => {}
                }
            }
            // As a client does, it connects again.
            Err(error) => {
                warn!("a subscription of the program starts again: {error}");
                sleep(PAUSE).await;
                match LocalStream::new(start.elapsed(), &cache, local.clone()) {
                    Ok(next) => stream = next,
                    Err(error) => warn!("a subscription of the program has ended: {error}"),
                }
            }
        }
    }
}

/// Between two streams of one subscription.
const PAUSE: Duration = Duration::from_secs(1);
