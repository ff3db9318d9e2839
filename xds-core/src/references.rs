//! Reads payloads at commit: the name of a resource in its payload, and the resources that it
//! names.
//!
//! Make before break has to know which resources a client still uses (S33). A table of fields lists
//! where names are, and one pass over the encoded payload reads them without decoding a message. If
//! the table does not know an extension, the extension may name any resource. A listener, a set of
//! routes or a virtual host without any reference counts as not understood: it may name any
//! resource, too. So a resource may count as used although it is not, but never the reverse.

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::Message;
use xds_proto::type_url;

use crate::known_type::KnownType;
use crate::name::{ResourceName, TypeUrl};
use crate::xdstp;
use sources::SourceOf;
use walk::{Cleared, Walk};

pub(crate) mod on_demand;
pub(crate) mod rename;
mod sources;
mod table;
mod walk;

/// The resources that one resource names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum References {
    #[default]
    None,
    /// The endpoints with its own name, as for most clusters. It has no list, because clusters are
    /// many.
    OwnEndpoints,
    /// It may name any resource of any type.
    Unknown,
    Some(Arc<NamedResources>),
}

/// The list of the resources that one resource names.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct NamedResources {
    /// The assignment with the endpoints of a cluster (S34). It is one of the `names`, too.
    endpoints: Option<ResourceName>,
    /// Sorted, each once.
    names: Box<[(Target, ResourceName)]>,
    /// The types of which it may name any resource.
    unknown: Targets,
    /// Where some of them come from.
    sources: Box<[SourceOf]>,
}

/// Names of resources with their types.
pub(crate) type NamedList = Vec<(Target, ResourceName)>;

/// A type whose resources name others or are named. Its number is its rank in the table of known
/// types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    Cluster,
    Assignment,
    Endpoint,
    Secret,
    Listener,
    Routes,
    Scope,
    VirtualHost,
    Runtime,
    Extension,
}

/// A set of types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Targets(u16);

/// A reference to a resource of a given type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference<'a> {
    Name(&'a ResourceName),
    /// It may refer to any resource of the type.
    Any,
}

impl References {
    /// The resources that a payload names.
    pub(crate) fn read(type_url: &TypeUrl, name: &ResourceName, payload: &[u8]) -> Self {
        let Some(target) = Target::of(type_url.as_str()) else { return Self::None };
        let Some(shape) = table::resource(target) else { return Self::None };
        let endpoints = if target == Target::Cluster { endpoints_of(name, payload) } else { None };
        let mut walk = Walk::default();
        walk.message(shape, payload);
        if walk.unknown.is_all() {
            walk.found.clear();
        }
        if walk.found.is_empty() && walk.unknown == Targets::NONE {
            return match endpoints {
                // It is unlikely that one of these names nothing. Others commonly do.
                None if matches!(target, Target::Listener | Target::Routes | Target::VirtualHost) => {
                    Self::Unknown
                }
                None => Self::None,
                Some(endpoints) if endpoints == *name => Self::OwnEndpoints,
                Some(_) => Self::named(endpoints, walk),
            };
        }
        if walk.unknown.is_all() && endpoints.is_none() && walk.sources.is_empty() {
            return Self::Unknown;
        }
        Self::named(endpoints, walk)
    }

    fn named(endpoints: Option<ResourceName>, walk: Walk<'_>) -> Self {
        let Walk { mut found, unknown, sources, .. } = walk;
        let sources = sources.iter().map(SourceOf::new).collect();
        found.extend(endpoints.iter().map(|name| (Target::Assignment, name.as_str())));
        let names = found.into_iter().map(|(target, name)| (target, xdstp::canonical(name)));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.dedup();
        Self::Some(Arc::new(NamedResources { endpoints, names: names.into(), unknown, sources }))
    }

    /// The resources that the payload of the resource `own` names, in order, also if another part of
    /// it may name any resource.
    pub(crate) fn names(&self, own: &ResourceName, type_url: &TypeUrl, payload: &[u8]) -> NamedList {
        if !self.unknown().is_all() {
            return self.iter(own).map(|(target, name)| (target, name.clone())).collect();
        }
        // The list was dropped, because the cache does not need it.
        let Some(target) = Target::of(type_url.as_str()) else { return Vec::new() };
        let Some(shape) = table::resource(target) else { return Vec::new() };
        let mut walk = Walk::default();
        walk.message(shape, payload);
        let endpoints = self.endpoints(own).map(|name| (Target::Assignment, name.clone()));
        let names = walk.found.into_iter().map(|(target, name)| (target, xdstp::canonical(name)));
        let mut names: NamedList = names.chain(endpoints).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The name of the assignment with the endpoints of the cluster `own`, if the cluster uses EDS
    /// (S34).
    pub(crate) fn endpoints<'a>(&'a self, own: &'a ResourceName) -> Option<&'a ResourceName> {
        match self {
            Self::None | Self::Unknown => None,
            Self::OwnEndpoints => Some(own),
            Self::Some(named) => named.endpoints.as_ref(),
        }
    }

    /// The resources that the resource `own` names, in order.
    pub(crate) fn iter<'a>(
        &'a self,
        own: &'a ResourceName,
    ) -> impl Iterator<Item = (Target, &'a ResourceName)> {
        let own = matches!(self, Self::OwnEndpoints).then_some((Target::Assignment, own));
        let named = match self {
            Self::Some(named) => &named.names[..],
            Self::None | Self::OwnEndpoints | Self::Unknown => &[],
        };
        own.into_iter().chain(named.iter().map(|(target, name)| (*target, name)))
    }

    /// The types of which it may name any resource.
    pub(crate) fn unknown(&self) -> Targets {
        match self {
            Self::None | Self::OwnEndpoints => Targets::NONE,
            Self::Unknown => Targets::ALL,
            Self::Some(named) => named.unknown,
        }
    }

    /// The resources of one type that the resource `own` names.
    pub(crate) fn of_type<'a>(
        &'a self,
        target: Target,
        own: &'a ResourceName,
    ) -> impl Iterator<Item = Reference<'a>> {
        let any = self.unknown().has(target).then_some(Reference::Any);
        let names = self.iter(own).filter(move |(of, _)| *of == target);
        any.into_iter().chain(names.map(|(_, name)| Reference::Name(name)))
    }

    /// How many resources it names.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None | Self::Unknown => 0,
            Self::OwnEndpoints => 1,
            Self::Some(named) => named.names.len(),
        }
    }

    /// Whether the resource `own` names this resource.
    pub(crate) fn has(&self, own: &ResourceName, target: Target, name: &ResourceName) -> bool {
        match self {
            Self::None | Self::Unknown => false,
            Self::OwnEndpoints => target == Target::Assignment && own == name,
            Self::Some(named) => {
                named.names.binary_search_by(|(of, named)| (of, named).cmp(&(&target, name))).is_ok()
            }
        }
    }

    /// Replaces its names by equal ones that `known` has, to share their strings. It changes
    /// nothing if the list is shared already.
    pub(crate) fn share(&mut self, known: impl Fn(Target, &ResourceName) -> Option<ResourceName>) {
        let Self::Some(named) = self else { return };
        let Some(named) = Arc::get_mut(named) else { return };
        for (target, name) in &mut named.names {
            if let Some(shared) = known(*target, name) {
                *name = shared;
            }
        }
    }
}

impl Target {
    /// The type; `None` when the table does not have it.
    pub(crate) fn of(type_url: &str) -> Option<Self> {
        ALL.get(usize::from(KnownType::of(type_url).rank)).copied()
    }

    /// The URL of the type.
    pub(crate) fn type_url(self) -> &'static str {
        KnownType::of_rank(self as u8).type_url
    }
}

impl Targets {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u16::MAX);

    pub(crate) fn has(self, target: Target) -> bool {
        self.0 & 1 << target as u16 != 0
    }

    pub(crate) fn add(&mut self, target: Target) {
        self.0 |= 1 << target as u16;
    }

    pub(crate) fn without(self, target: Target) -> Self {
        Self(self.0 & !(1 << target as u16))
    }

    /// Whether both have one of the types.
    pub(crate) fn meet(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0 |= others.0;
    }

    fn is_all(self) -> bool {
        self == Self::ALL
    }
}

/// The fields of a payload that name this resource, or any, such as `virtual_hosts.routes.route.cluster`,
/// each with the resource.
pub(crate) fn fields_that_name(
    type_url: &TypeUrl,
    name: &ResourceName,
    payload: &[u8],
    resource: Option<(Target, &ResourceName)>,
) -> BTreeSet<(String, Target, ResourceName)> {
    let Some(target) = Target::of(type_url.as_str()) else { return BTreeSet::new() };
    let Some(shape) = table::resource(target) else { return BTreeSet::new() };
    let mut fields = Walk::fields(shape, payload, resource);
    let endpoints = if target == Target::Cluster { endpoints_of(name, payload) } else { None };
    let is_sought = |endpoints: &ResourceName| {
        resource.is_none_or(|resource| resource == (Target::Assignment, endpoints))
    };
    if let Some(endpoints) = endpoints.filter(is_sought) {
        fields.insert((SERVICE_NAME.to_owned(), Target::Assignment, endpoints));
    }
    fields
}

/// The type of the resources that a field of a type names, as the built-in table has it; `None` if
/// it does not have the field. `field` has the names of fields from the top of the payload, joined
/// by dots, as [`Resource::fields_that_name`](crate::Resource::fields_that_name) gives them.
#[must_use]
pub fn target_of_field(type_url: &str, field: &str) -> Option<&'static str> {
    let source = Target::of(type_url)?;
    if source == Target::Cluster && field == SERVICE_NAME {
        return Some(Target::Assignment.type_url());
    }
    let path: Vec<_> = field.split('.').collect();
    let shape = table::resource(source).filter(|_| path.len() <= walk::DEPTH_LIMIT)?;
    walk::target_of(shape, &path).map(Target::type_url)
}

/// A copy of a payload that does not name a resource in this field; `None` if it does not do that,
/// or if the field cannot be cleared: a cluster without the name of its endpoints has its own.
pub(crate) fn without_name(
    type_url: &TypeUrl,
    payload: &[u8],
    field: &str,
    (target, name): (Target, &ResourceName),
) -> Option<Vec<u8>> {
    let shape = table::resource(Target::of(type_url.as_str())?)?;
    Cleared { field, target, name }.message(shape, payload, &mut Vec::new())
}

/// The names by which a client subscribes on demand to the hosts of a virtual host (D25): `<route
/// configuration>/<domain>`, for domains without a wildcard.
pub(crate) fn hosts_of(type_url: &TypeUrl, name: &ResourceName, payload: &[u8]) -> Vec<ResourceName> {
    let prefix = name.as_str().rsplit_once('/').map(|(prefix, _)| prefix);
    let Some(prefix) = prefix.filter(|_| type_url.as_str() == type_url::VIRTUAL_HOST) else {
        return Vec::new();
    };
    let domains = VirtualHost::decode(payload).map(|host| host.domains).unwrap_or_default();
    let exact = domains.iter().filter(|domain| !domain.is_empty() && !domain.contains('*'));
    let names = exact.map(|domain| ResourceName::new(format!("{prefix}/{domain}")));
    names.filter(|host| host != name).collect()
}

/// The name in field 1 of a payload; empty if there is none.
pub(crate) fn payload_name(payload: &[u8]) -> Result<String, ()> {
    PayloadName::decode(payload).map(|message| message.name).map_err(|_| ())
}

fn endpoints_of(name: &ResourceName, payload: &[u8]) -> Option<ResourceName> {
    let cluster = Cluster::decode(payload).ok()?;
    if cluster.discovery_type != Some(DISCOVERY_TYPE_EDS) {
        return None;
    }
    let service_name = cluster.eds_cluster_config.map(|config| config.service_name).unwrap_or_default();
    if service_name.is_empty() { Some(name.clone()) } else { Some(xdstp::canonical(&service_name)) }
}

/// The field of `envoy.config.route.v3.VirtualHost` with its domains.
#[derive(Clone, PartialEq, Message)]
struct VirtualHost {
    #[prost(string, repeated, tag = "2")]
    domains: Vec<String>,
}

/// The field that all types with a name in their payload have in common.
#[derive(Clone, PartialEq, Message)]
struct PayloadName {
    #[prost(string, tag = "1")]
    name: String,
}

/// The fields of `envoy.config.cluster.v3.Cluster` that give the name of its endpoints.
#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(int32, optional, tag = "2")]
    discovery_type: Option<i32>,
    #[prost(message, optional, tag = "3")]
    eds_cluster_config: Option<EdsClusterConfig>,
}

/// The field of `envoy.config.cluster.v3.Cluster.EdsClusterConfig` with that name.
#[derive(Clone, PartialEq, Message)]
struct EdsClusterConfig {
    #[prost(string, tag = "2")]
    service_name: String,
}

/// The field of a cluster with the name of its endpoints, if it is not that of the cluster.
const SERVICE_NAME: &str = "eds_cluster_config.service_name";

/// `EDS` in `envoy.config.cluster.v3.Cluster.DiscoveryType`.
const DISCOVERY_TYPE_EDS: i32 = 3;

/// All types, each at the index of its rank.
const ALL: [Target; 10] = [
    Target::Cluster,
    Target::Assignment,
    Target::Endpoint,
    Target::Secret,
    Target::Listener,
    Target::Routes,
    Target::Scope,
    Target::VirtualHost,
    Target::Runtime,
    Target::Extension,
];

#[cfg(test)]
pub(crate) mod tests;
