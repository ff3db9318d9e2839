//! The stream that an upstream subscription uses.

use std::fmt;
use std::sync::Arc;

use super::config::UpstreamKind;
use crate::cache::Cache;
use crate::client::Relay;
use crate::constraint::Constraints;
use crate::name::TypeUrl;
use crate::parameters::Parameters;

/// One client of the upstreams. Each route has a client with streams of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
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
    /// The cache that a client of this route fills, and the constraints that it adds.
    pub(super) fn relay(&self, cache: &Arc<Cache>, kind: &UpstreamKind) -> Relay {
        let stamp = match (self, kind) {
            (
                Self::Node(parameters) | Self::SideStream { of: Some(parameters), .. },
                UpstreamKind::Node { keys },
            ) => {
                let keys: Vec<_> = keys.iter().cloned().collect();
                Constraints::agreeing_with(parameters, &keys).ok()
            }
            (Self::Alone(parameters), _) => Some(Constraints::exactly(parameters)),
            (Self::Shared | Self::Node(_) | Self::SideStream { .. }, _) => None,
        };
        Relay { cache: Arc::clone(cache), stamp }
    }

    /// The parameters that the nodes of its streams have, for servers that select by node.
    #[must_use]
    pub fn node(&self) -> Option<&Parameters> {
        match self {
            Self::Node(parameters) | Self::SideStream { of: Some(parameters), .. } => Some(parameters),
            Self::Shared | Self::Alone(_) | Self::SideStream { of: None, .. } => None,
        }
    }

    /// The route of the main stream.
    pub(super) fn main(&self) -> Self {
        self.node().map_or(Self::Shared, |parameters| Self::Node(parameters.clone()))
    }

    /// The route of the side stream of a type.
    pub(super) fn side_stream(&self, type_url: &TypeUrl) -> Self {
        Self::SideStream { of: self.node().cloned(), type_url: type_url.clone() }
    }
}

/// For people: the kind of the route, and what sets it apart.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Node(parameters) => write!(f, "node {parameters}"),
            Self::Alone(parameters) => write!(f, "alone {parameters}"),
            Self::SideStream { of, type_url } => {
                write!(f, "aside {}", type_url.message_name())?;
                of.as_ref().map_or(Ok(()), |parameters| write!(f, " of node {parameters}"))
            }
        }
    }
}
