//! Reads of one type from the cache, or the status to use instead.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Present;
use crate::cache::TypeSnapshot;
use crate::client::Code;
use crate::client::health::{Generation, Status, SyncState};
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::variants::{Variant, Variants};

/// A type of resource, for [`View::read`](super::View::read).
pub trait Typed {
    /// Its type URL, as on the wire.
    const TYPE_URL: &'static str;
}

/// Reads resources of the type `T` as they were when the guard was made. A guard keeps the snapshot
/// of that moment in memory until it is dropped.
///
/// A guard has the route of its own type, and cannot be used for another type.
///
/// ```
/// # use xds_core::{Cache, proxy::view::{ReadGuard, Typed, View}};
/// struct Clusters;
/// impl Typed for Clusters {
///     const TYPE_URL: &'static str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// }
/// fn count_clusters(guard: &ReadGuard<Clusters>) {}
///
/// let view = View::new(&Cache::new());
/// count_clusters(&view.read::<Clusters>());
/// ```
///
/// ```compile_fail,E0308
/// # use xds_core::{Cache, proxy::view::{ReadGuard, Typed, View}};
/// # struct Clusters;
/// # impl Typed for Clusters {
/// #     const TYPE_URL: &'static str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// # }
/// struct Listeners;
/// impl Typed for Listeners {
///     const TYPE_URL: &'static str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// }
/// fn count_clusters(guard: &ReadGuard<Clusters>) {}
///
/// let view = View::new(&Cache::new());
/// count_clusters(&view.read::<Listeners>());
/// ```
pub struct ReadGuard<T> {
    present: Arc<Present>,
    of: PhantomData<fn() -> T>,
}

/// The source for reads of a type.
pub enum ReadRoute<'g, T> {
    /// These resources. While the type has no response on a new stream, they are of an earlier
    /// generation.
    Cache(Resources<'g, T>),
    /// The cache cannot answer: the type is rejected, or has had no response yet. A program may
    /// read from the upstream by a stream of its own. Otherwise this status is the answer: the
    /// original status of a rejected type, or UNAVAILABLE.
    Upstream(Status),
}

/// The resources of the type `T` at one moment.
pub struct Resources<'g, T> {
    /// `None` if there never was one.
    resources: Option<&'g TypeSnapshot>,
    of: PhantomData<fn() -> T>,
}

impl<T: Typed> ReadGuard<T> {
    pub(super) fn new(present: Arc<Present>) -> Self {
        present.readers.count.fetch_add(1, Ordering::Relaxed);
        Self { present, of: PhantomData }
    }

    /// The source for reads; always the same for one guard.
    #[must_use]
    pub fn route(&self) -> ReadRoute<'_, T> {
        match self.present.states.get_key_value(T::TYPE_URL) {
            Some((_, SyncState::Rejected(_, status))) => ReadRoute::Upstream(status.clone()),
            Some((type_url, SyncState::Synced(_) | SyncState::Stale(_))) => ReadRoute::Cache(Resources {
                resources: self.present.snapshot.of_type(type_url),
                of: PhantomData,
            }),
            // G13: before a response of the upstream, an empty cache does not mean absence.
            Some((_, SyncState::Requested)) | None => {
                let message = format!("the upstream has sent no response for {} yet", T::TYPE_URL).into();
                ReadRoute::Upstream(Status { code: Code::UNAVAILABLE, message })
            }
        }
    }
}

impl<T> ReadGuard<T> {
    /// The generation that it reads; zero before the first Init.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.present.generation()
    }
}

impl<T> Drop for ReadGuard<T> {
    fn drop(&mut self) {
        self.present.readers.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'g, T> Resources<'g, T> {
    /// The variant of a name that these parameters get (T3).
    #[must_use]
    pub fn get(&self, name: &ResourceName, parameters: &Parameters) -> Option<&'g Arc<Variant>> {
        self.resources?.get(name)?.resolve(parameters)
    }

    /// All names with their variants, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&'g ResourceName, &'g Variants)> + use<'g, T> {
        self.resources.into_iter().flat_map(TypeSnapshot::iter)
    }
}

impl<T> fmt::Debug for ReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ReadRoute<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(resources) => f.debug_tuple("Cache").field(resources).finish(),
            Self::Upstream(status) => f.debug_tuple("Upstream").field(status).finish(),
        }
    }
}

impl<T> fmt::Debug for Resources<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resources").field("names", &self.iter().count()).finish_non_exhaustive()
    }
}
