//! Reads of one type from a cache in the process, or the status to use instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Client;
use super::authority::Authority;
use super::health::{Generation, Health, Status, SyncState};
use crate::cache::{Cache, LocatorStatus, Snapshot, TypeSnapshot};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::payload::Payload;
use crate::resource::VariantId;
use crate::subscription::{WILDCARD, is_set};
use crate::variants::{Variant, Variants};
use crate::xdstp::XdstpName;

/// Reads resources of the type `T` as they were when the guard was made. A guard keeps the snapshot
/// of that moment in memory until it is dropped.
///
/// A guard has the route of its own type, and cannot be used for another type.
///
/// ```
/// use xds_core::Cache;
/// use xds_core::client::ReadGuard;
/// use xds_core::proxy::view::View;
/// # #[derive(Clone, PartialEq, prost::Message)]
/// # struct Cluster {}
/// # impl prost::Name for Cluster {
/// #     const NAME: &'static str = "Cluster";
/// #     const PACKAGE: &'static str = "envoy.config.cluster.v3";
/// # }
/// fn count_clusters(guard: &ReadGuard<Cluster>) {}
///
/// let view = View::new(&Cache::new());
/// count_clusters(&view.read::<Cluster>());
/// ```
///
/// ```compile_fail,E0308
/// # use xds_core::Cache;
/// # use xds_core::client::ReadGuard;
/// # use xds_core::proxy::view::View;
/// # #[derive(Clone, PartialEq, prost::Message)]
/// # struct Cluster {}
/// # impl prost::Name for Cluster {
/// #     const NAME: &'static str = "Cluster";
/// #     const PACKAGE: &'static str = "envoy.config.cluster.v3";
/// # }
/// # #[derive(Clone, PartialEq, prost::Message)]
/// # struct Listener {}
/// # impl prost::Name for Listener {
/// #     const NAME: &'static str = "Listener";
/// #     const PACKAGE: &'static str = "envoy.config.listener.v3";
/// # }
/// fn count_clusters(guard: &ReadGuard<Cluster>) {}
///
/// let view = View::new(&Cache::new());
/// count_clusters(&view.read::<Listener>());
/// ```
pub struct ReadGuard<T> {
    type_url: TypeUrl,
    snapshot: Arc<Snapshot>,
    /// The parameters of `get`.
    parameters: Parameters,
    routes: Routes,
    generation: Generation,
    _reader: Option<Reader>,
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
    guard: &'g ReadGuard<T>,
    /// The number of the authority; `None` if all names have the same servers.
    authority: Option<usize>,
}

/// A resource as it is in the cache. It dereferences to its message.
pub struct CachedResource<T> {
    value: Arc<T>,
    variant: Arc<Variant>,
}

/// Why a read has no resource. No error means that the resource is absent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The payload is not a message of the type. Other resources of the type are not affected.
    #[error("{} {name:?}: {error}", type_url.message_name())]
    Payload {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
        /// Why the payload cannot be decoded.
        error: prost::DecodeError,
    },
    /// X14: the payload only says where the resource is.
    #[error("{name:?} is a redirect")]
    Redirect {
        /// The name.
        name: ResourceName,
    },
    /// C16: other servers have the name. [`ReadGuard::route_of`] reads the names of an authority.
    #[error("{name:?} belongs to the authority {authority:?}, whose resources are read by themselves")]
    OtherAuthority {
        /// The name.
        name: ResourceName,
        /// Its authority; empty for an old-style name.
        authority: String,
    },
    /// G13: nobody subscribes to the name with these parameters, or the upstream has not answered,
    /// or not with a resource.
    #[error("{name:?}: {status}")]
    Unknown {
        /// The name.
        name: ResourceName,
        /// The error of the upstream, or UNAVAILABLE.
        status: Status,
    },
}

/// Whether the cached resources of a type may be read, or the status to use instead.
pub(crate) type Readable = Result<(), Status>;

/// The routes of a type.
pub(crate) enum Routes {
    /// All names have the same servers.
    One(Readable),
    /// The names of one list of servers.
    OfServers { names: ServedNames, readable: Readable },
    /// By the number of the authority. The first one is that of old-style names.
    OfAuthorities { numbers: Arc<BTreeMap<String, usize>>, routes: Vec<AuthorityRoute> },
    /// Of a subscription to these names. `limits`: not all that is cached may be read.
    OfSubscription { names: Arc<[ResourceName]>, limits: Option<ReadLimits> },
}

/// What a subscription may read while a server of its names rejects the type, or has not answered.
pub(crate) struct ReadLimits {
    /// The subscribed names whose servers have the type on no stream.
    pub(crate) unserved: BTreeMap<ResourceName, Status>,
    /// The cached variants that came from a server that has the type.
    pub(crate) confirmed: BTreeSet<VariantId>,
    /// The status of the first server that rejects the type, or has not answered.
    pub(crate) status: Status,
}

/// The names that one list of servers has (C16).
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedNames {
    /// The number of the list of servers of each authority; 0 for old-style names. Empty if there is one list.
    pub(crate) numbers: Arc<BTreeMap<String, usize>>,
    /// Whose names these are.
    pub(crate) number: usize,
}

/// Whether the names of an authority may be read, and the parameters of its clients.
pub(crate) struct AuthorityRoute {
    readable: Readable,
    parameters: Parameters,
}

/// Counts the guards on one generation.
#[derive(Debug)]
pub(crate) struct GenerationReaders {
    pub(crate) generation: Generation,
    count: AtomicUsize,
}

/// One guard on a generation.
struct Reader(Arc<GenerationReaders>);

impl Client {
    /// Reads one type from the cache, with the health of the servers in use: a type that the server
    /// rejects has its status, and one without a response has UNAVAILABLE. Without `parameters`,
    /// [`Resources::get`] takes those of the authority.
    ///
    /// The last server in use decides. Until it answers, the servers before it count (C15).
    #[must_use]
    pub fn read<T>(&self, type_url: TypeUrl, parameters: Option<&Parameters>) -> ReadGuard<T> {
        let route = |authority: &Authority| {
            let state = |server: &usize| self.servers[*server].health.as_ref()?.state(&type_url);
            let mut states = authority.in_use().iter().rev().filter_map(state);
            let decided = states.find(|state| !matches!(state, SyncState::Requested));
            AuthorityRoute {
                readable: readable(&type_url, decided),
                parameters: parameters.unwrap_or(&authority.config.parameters).clone(),
            }
        };
        let routes = self.servers.authorities.iter().map(route).collect();
        let routes = Routes::OfAuthorities { numbers: Arc::clone(&self.store.authority_numbers), routes };
        let in_use = self.servers.authorities[0].in_use().last();
        let health = in_use.and_then(|server| self.servers[*server].health.as_ref());
        let generation = health.map(Health::generation).unwrap_or_default();
        ReadGuard::new(type_url, self.store.cache.snapshot(), Parameters::new(), routes, generation)
    }
}

impl<T> ReadGuard<T> {
    /// A guard of a client that has ended: nothing can be read.
    #[must_use]
    pub fn ended(type_url: TypeUrl, cache: &Cache) -> Self {
        let route = Routes::One(Err(unavailable("the client has ended")));
        Self::new(type_url, cache.snapshot(), Parameters::new(), route, Generation::ZERO)
    }

    /// A guard without a count.
    pub(crate) fn new(
        type_url: TypeUrl,
        snapshot: Arc<Snapshot>,
        parameters: Parameters,
        routes: Routes,
        generation: Generation,
    ) -> Self {
        Self { type_url, snapshot, parameters, routes, generation, _reader: None, of: PhantomData }
    }

    /// The same guard, counted among those of its generation.
    pub(crate) fn counted(self, readers: &Arc<GenerationReaders>) -> Self {
        readers.count.fetch_add(1, Ordering::Relaxed);
        Self { _reader: Some(Reader(Arc::clone(readers))), ..self }
    }

    /// The source for reads; always the same for one guard. With several authorities: of old-style
    /// names.
    #[must_use]
    pub fn route(&self) -> ReadRoute<'_, T> {
        match &self.routes {
            Routes::One(route) => self.at(route, None),
            Routes::OfServers { names, readable } => self.at(readable, Some(names.number)),
            Routes::OfSubscription { .. } => self.at(&Ok(()), None),
            Routes::OfAuthorities { routes, .. } => self.at(&routes[0].readable, Some(0)),
        }
    }

    /// The source for reads of new-style names of an authority (C16). If no servers are configured for
    /// it, there is nothing to read (X15).
    #[must_use]
    pub fn route_of(&self, authority: &str) -> ReadRoute<'_, T> {
        match &self.routes {
            Routes::One(_) | Routes::OfSubscription { .. } => self.route(),
            Routes::OfServers { names, .. } if names.numbers.get(authority) == Some(&names.number) => {
                self.route()
            }
            Routes::OfServers { .. } => {
                let message = format!("the view is not of the servers of the authority {authority:?}");
                ReadRoute::Upstream(unavailable(message))
            }
            Routes::OfAuthorities { numbers, routes } => match numbers.get(authority) {
                Some(number) => self.at(&routes[*number].readable, Some(*number)),
                None => {
                    let message = format!("the configuration has no servers for the authority {authority:?}");
                    ReadRoute::Upstream(unavailable(message))
                }
            },
        }
    }

    fn at(&self, route: &Readable, authority: Option<usize>) -> ReadRoute<'_, T> {
        match route {
            Ok(()) => ReadRoute::Cache(Resources { guard: self, authority }),
            Err(status) => ReadRoute::Upstream(status.clone()),
        }
    }

    /// The type that it reads.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// The generation that it reads; zero before the first Init.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

impl<T> Resources<'_, T>
where
    T: Payload,
{
    /// The resource with this name, for the parameters of the guard. `Ok(None)`: it is absent.
    ///
    /// Not every cache knows more than its variants: in that of a [`Client`](super::Client), a name
    /// without a watch, or whose watch has no response yet, counts as absent too.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn get(&self, name: &str) -> Result<Option<CachedResource<T>>, ReadError> {
        let parameters = match (&self.guard.routes, self.authority) {
            (Routes::OfAuthorities { routes, .. }, Some(authority)) => &routes[authority].parameters,
            _ => &self.guard.parameters,
        };
        self.get_with(name, parameters)
    }

    /// As [`get`](Self::get), for these parameters (T3).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn get_with(
        &self,
        name: &str,
        parameters: &Parameters,
    ) -> Result<Option<CachedResource<T>>, ReadError> {
        // X6: no resource can have an invalid name.
        let Ok(new_style) = XdstpName::of(name) else { return Ok(None) };
        let name: ResourceName =
            new_style.as_ref().map_or_else(|| name.into(), |name| name.to_string().into());
        self.check_authority(&name, new_style.as_ref().map_or("", XdstpName::authority))?;
        let snapshot = &self.guard.snapshot;
        // T43c: a resource may be for exactly these parameters.
        let bound = snapshot.is_on_demand().then(|| parameters.bound());
        let parameters = bound.as_ref().unwrap_or(parameters);
        if let Some(status) = self.limits().and_then(|limits| limits.unserved.get(&name)) {
            return Err(ReadError::Unknown { name, status: status.clone() });
        }
        if let Some(variant) = self.find(&name, parameters) {
            return match self.unconfirmed(&variant) {
                None => self.cached(variant).map(Some),
                Some(status) => Err(ReadError::Unknown { name, status }),
            };
        }
        if !snapshot.is_on_demand() {
            return Ok(None);
        }
        let status = match snapshot.locator_status(&self.guard.type_url, &name, parameters) {
            Some(LocatorStatus::Complete) => return Ok(None),
            Some(LocatorStatus::Failed { code, message }) => {
                Status { code: *code, message: Arc::clone(message) }
            }
            None => unavailable("nobody subscribes to it, or it has had no response yet"),
        };
        Err(ReadError::Unknown { name, status })
    }

    /// All variants of all names, in no particular order. Of a subscription: the resources that its
    /// names get with its parameters.
    pub fn iter(&self) -> impl Iterator<Item = Result<CachedResource<T>, ReadError>> {
        let variants = match &self.guard.routes {
            Routes::OfSubscription { names, .. } => self.selected_by(names),
            Routes::One(_) | Routes::OfServers { .. } | Routes::OfAuthorities { .. } => {
                let names = self.of_type().into_iter().flat_map(TypeSnapshot::iter);
                let own = names.filter(|(name, _)| self.has(name));
                own.flat_map(|(_, variants)| Variants::iter(variants)).cloned().collect()
            }
        };
        variants.into_iter().map(|variant| self.cached(variant))
    }

    fn cached(&self, variant: Arc<Variant>) -> Result<CachedResource<T>, ReadError> {
        if variant.is_redirect() {
            return Err(ReadError::Redirect { name: variant.name().clone() });
        }
        let value = T::of(&variant).map_err(|error| {
            let (type_url, name) = (self.guard.type_url.clone(), variant.name().clone());
            ReadError::Payload { type_url, name, error }
        })?;
        Ok(CachedResource { value, variant })
    }
}

impl<T> Resources<'_, T> {
    /// `None` if there never was a resource of the type.
    fn of_type(&self) -> Option<&TypeSnapshot> {
        self.guard.snapshot.of_type(&self.guard.type_url)
    }

    /// The variant that a name, or an alias (D24), gets with these parameters.
    fn find(&self, name: &ResourceName, parameters: &Parameters) -> Option<Arc<Variant>> {
        let selected = self.of_type()?.variants_selected_by(name);
        let mut found = selected.filter_map(|(_, variants)| variants.resolve(parameters));
        // A glob is not the name of a resource.
        found.find(|variant| variant.name() == name || variant.aliases().contains(name)).cloned()
    }

    /// Whether a name of a subscription has a resource that may be read, is absent, or has an error.
    pub(crate) fn is_answered(&self, name: &ResourceName) -> bool {
        let (snapshot, bound) = (&self.guard.snapshot, self.guard.parameters.bound());
        let is_found = || self.find(name, &bound).is_some_and(|variant| self.unconfirmed(&variant).is_none());
        snapshot.locator_status(&self.guard.type_url, name, &bound).is_some() || is_found()
    }

    /// The variants that a subscription to these names gets, each once.
    fn selected_by(&self, names: &[ResourceName]) -> Vec<Arc<Variant>> {
        let Some(resources) = self.of_type() else { return Vec::new() };
        let bound = self.guard.parameters.bound();
        // C16: a wildcard has no names of other authorities.
        let is_in_wildcard = |name: &ResourceName, listed: &ResourceName| {
            listed.as_str() == WILDCARD && !self.guard.snapshot.is_excluded(name)
        };
        let is_wanted = |variant: &Variant| {
            names.iter().any(|listed| is_in_wildcard(variant.name(), listed) || variant.is_named(listed))
        };
        let candidates: Vec<_> = if names.iter().any(|name| is_set(name.as_str())) {
            resources.iter().collect()
        } else {
            names.iter().flat_map(|name| resources.variants_selected_by(name)).collect()
        };
        let mut selected = BTreeMap::new();
        for (name, variants) in candidates {
            let variant = variants.resolve(&bound).filter(|variant| is_wanted(variant));
            if let Some(variant) = variant.filter(|variant| self.unconfirmed(variant).is_none()) {
                selected.insert(name, Arc::clone(variant));
            }
        }
        selected.into_values().collect()
    }

    fn limits(&self) -> Option<&ReadLimits> {
        match &self.guard.routes {
            Routes::OfSubscription { limits, .. } => limits.as_ref(),
            Routes::One(_) | Routes::OfServers { .. } | Routes::OfAuthorities { .. } => None,
        }
    }

    /// Why a variant in the cache may not be read: it is from before the upstream rejected the type.
    fn unconfirmed(&self, variant: &Variant) -> Option<Status> {
        let limits = self.limits()?;
        let is_confirmed = limits.confirmed.contains(&variant.id(&self.guard.type_url));
        (!is_confirmed).then(|| limits.status.clone())
    }

    /// Whether the name belongs to the authority.
    fn has(&self, name: &ResourceName) -> bool {
        let new_style = self.authority.and_then(|_| XdstpName::of(name.as_str()).ok().flatten());
        self.check_authority(name, new_style.as_ref().map_or("", XdstpName::authority)).is_ok()
    }

    fn check_authority(&self, name: &ResourceName, authority: &str) -> Result<(), ReadError> {
        let numbers = match &self.guard.routes {
            Routes::OfAuthorities { numbers, .. } => numbers,
            Routes::OfServers { names, .. } => &names.numbers,
            Routes::One(_) | Routes::OfSubscription { .. } => return Ok(()),
        };
        let Some(own) = self.authority else { return Ok(()) };
        let number = if XdstpName::is_new_style(name.as_str()) { numbers.get(authority) } else { Some(&0) };
        if number == Some(&own) {
            return Ok(());
        }
        Err(ReadError::OtherAuthority { name: name.clone(), authority: authority.to_owned() })
    }
}

impl<T> CachedResource<T> {
    /// The name of the resource.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        self.variant.name()
    }

    /// The constraints of this variant; none for a resource that matches every client.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        self.variant.constraints()
    }

    /// The variant as it is in the cache.
    #[must_use]
    pub fn variant(&self) -> &Arc<Variant> {
        &self.variant
    }

    /// The message, shared by all readers of the variant.
    #[must_use]
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Deref for CachedResource<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Clone for CachedResource<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), variant: Arc::clone(&self.variant) }
    }
}

impl ServedNames {
    pub(crate) fn has(&self, name: &ResourceName) -> bool {
        if self.numbers.is_empty() {
            return true;
        }
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        let number = new_style.map_or(Some(&0), |name| self.numbers.get(name.authority()));
        number == Some(&self.number)
    }
}

impl GenerationReaders {
    pub(crate) fn new(generation: Generation) -> Self {
        Self { generation, count: AtomicUsize::new(0) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for ReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard")
            .field("type_url", &self.type_url)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
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
        let names = self.of_type().map_or(0, TypeSnapshot::len);
        f.debug_struct("Resources").field("names", &names).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for CachedResource<T>
where
    T: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedResource")
            .field("value", &self.value)
            .field("constraints", self.constraints())
            .finish_non_exhaustive()
    }
}

/// Whether the resources of a type with this state may be read.
pub(crate) fn readable(type_url: &TypeUrl, state: Option<&SyncState>) -> Readable {
    match state {
        Some(SyncState::Synced(_) | SyncState::Stale(_)) => Ok(()),
        Some(SyncState::Rejected(_, status)) => Err(status.clone()),
        // G13: before a response of the upstream, an empty cache does not mean absence.
        Some(SyncState::Requested) | None => {
            Err(unavailable(format!("the upstream has sent no response for {type_url} yet")))
        }
    }
}

fn unavailable(message: impl Into<Arc<str>>) -> Status {
    Status { code: Code::UNAVAILABLE, message: message.into() }
}
