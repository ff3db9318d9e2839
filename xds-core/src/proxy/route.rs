//! The stream that an upstream subscription uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::config::UpstreamKind;
use crate::cache::Cache;
use crate::client::{ClientConfig, Relay, ServedNames};
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::xdstp::XdstpName;

/// One client of the upstreams. Each route has a client with streams of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Whose servers it has: the first authority, in the order of names, with these servers. `None`: the
    /// default servers, which also serve names without an authority.
    pub authority: Option<Arc<str>>,
    /// What the client is for.
    pub kind: RouteKind,
}

/// What the client of a [`Route`] is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// For all that locators and constraints distinguish.
    Shared,
    /// For servers without TP2, and for clients with these values of the declared keys. The node of
    /// its streams has these values.
    Node(Parameters),
    /// For resources of exactly these parameters (T43c). On one stream, two locators of such a
    /// resource could not be distinguished.
    Alone(Parameters),
    /// For a type that ends the main stream: a side stream with this type alone.
    SideStream {
        /// The [node](Self::Node) of the main stream; `None` for the shared stream.
        of: Option<Parameters>,
        /// The type.
        type_url: TypeUrl,
    },
}

impl Route {
    /// The shared client of the default servers.
    pub const SHARED: Self = Self { authority: None, kind: RouteKind::Shared };

    /// Whether it is a shared client, of any servers.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.kind == RouteKind::Shared
    }

    /// Whether its stream has all types but those with a side stream.
    #[must_use]
    pub fn is_main(&self) -> bool {
        matches!(self.kind, RouteKind::Shared | RouteKind::Node(_))
    }

    /// Another client of the same servers.
    pub(super) fn with(&self, kind: RouteKind) -> Self {
        Self { authority: self.authority.clone(), kind }
    }

    /// The cache that a client of this route fills, and the constraints that it adds.
    pub(super) fn relay(&self, cache: &Arc<Cache>, kind: &UpstreamKind) -> Relay {
        let stamp = match (&self.kind, kind) {
            (
                RouteKind::Node(parameters) | RouteKind::SideStream { of: Some(parameters), .. },
                UpstreamKind::Node { keys },
            ) => {
                let keys: Vec<_> = keys.iter().cloned().collect();
                Constraints::agreeing_with(parameters, &keys).ok()
            }
            (RouteKind::Alone(parameters), _) => Some(Constraints::exactly(parameters)),
            (RouteKind::Shared | RouteKind::Node(_) | RouteKind::SideStream { .. }, _) => None,
        };
        Relay { cache: Arc::clone(cache), stamp }
    }

    /// The parameters that the nodes of its streams have, for servers that select by node.
    #[must_use]
    pub fn node(&self) -> Option<&Parameters> {
        match &self.kind {
            RouteKind::Node(parameters) | RouteKind::SideStream { of: Some(parameters), .. } => {
                Some(parameters)
            }
            RouteKind::Shared | RouteKind::Alone(_) | RouteKind::SideStream { of: None, .. } => None,
        }
    }

    /// The route whose health has the type: of the main stream for a side stream, or itself.
    pub(super) fn of_health(&self) -> Self {
        match &self.kind {
            RouteKind::SideStream { of: None, .. } => self.with(RouteKind::Shared),
            RouteKind::SideStream { of: Some(node), .. } => self.with(RouteKind::Node(node.clone())),
            RouteKind::Shared | RouteKind::Node(_) | RouteKind::Alone(_) => self.clone(),
        }
    }

    /// The route of the side stream of a type.
    pub(super) fn side_stream(&self, type_url: &TypeUrl) -> Self {
        self.with(RouteKind::SideStream { of: self.node().cloned(), type_url: type_url.clone() })
    }

    /// The type of a side stream.
    #[must_use]
    pub fn side_stream_type(&self) -> Option<&TypeUrl> {
        match &self.kind {
            RouteKind::SideStream { type_url, .. } => Some(type_url),
            RouteKind::Shared | RouteKind::Node(_) | RouteKind::Alone(_) => None,
        }
    }
}

/// For people: the kind of the route, and what sets it apart.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RouteKind::Shared => f.write_str("shared"),
            RouteKind::Node(parameters) => write!(f, "node {parameters}"),
            RouteKind::Alone(parameters) => write!(f, "alone {parameters}"),
            RouteKind::SideStream { of, type_url } => {
                write!(f, "aside {}", type_url.message_name())?;
                of.as_ref().map_or(Ok(()), |parameters| write!(f, " of node {parameters}"))
            }
        }?;
        self.authority.as_ref().map_or(Ok(()), |authority| write!(f, " for authority {authority}"))
    }
}

/// Which servers the authorities of names have (C16). Those with equal servers share clients, so that the
/// streams and the states of types of one control plane do not depend on another one.
#[derive(Debug, Default)]
pub(super) struct Authorities(BTreeMap<String, Option<Arc<str>>>);

impl Authorities {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let mut known: Vec<(&[usize], Option<Arc<str>>)> = vec![(&config.default_authority.servers, None)];
        let mut first_of = |name: &String, servers| {
            let first = known.iter().find(|(known, _)| *known == servers).map(|(_, first)| first.clone());
            first.unwrap_or_else(|| {
                known.push((servers, Some(name.as_str().into())));
                Some(name.as_str().into())
            })
        };
        let authorities = config.authorities.iter();
        Self(authorities.map(|(name, of)| (name.clone(), first_of(name, &of.servers[..]))).collect())
    }

    /// The [authority](Route::authority) of the routes of a name.
    pub(super) fn of(&self, name: &ResourceName) -> Option<Arc<str>> {
        if self.0.is_empty() {
            return None;
        }
        let name = XdstpName::of(name.as_str()).ok().flatten()?;
        self.0.get(name.authority())?.clone()
    }

    /// As [`of`](Self::of), for all names of an authority; `None` if it has no servers.
    pub(super) fn of_authority(&self, authority: &str) -> Option<Option<Arc<str>>> {
        if self.0.is_empty() { Some(None) } else { self.0.get(authority).cloned() }
    }

    /// The names of the routes of an authority.
    pub(super) fn names_of(&self, authority: &Option<Arc<str>>) -> ServedNames {
        let all: Vec<_> = self.all().into_iter().collect();
        let number = |of: &Option<Arc<str>>| all.iter().position(|known| known == of).unwrap_or_default();
        let numbers = self.0.iter().map(|(name, of)| (name.clone(), number(of)));
        ServedNames { numbers: Arc::new(numbers.collect()), number: number(authority) }
    }

    /// The authorities of all shared routes.
    pub(super) fn all(&self) -> BTreeSet<Option<Arc<str>>> {
        self.0.values().cloned().chain([None]).collect()
    }
}
