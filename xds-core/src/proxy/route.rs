//! On which stream upstream a question goes.

use std::sync::Arc;

use super::config::UpstreamKind;
use crate::cache::Cache;
use crate::client::Relay;
use crate::constraint::Constraints;
use crate::name::TypeUrl;
use crate::parameters::Parameters;

/// One client of the upstreams: each has streams of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// Everything that can be told apart by locators and constraints.
    Shared,
    /// To servers without TP2: for clients whose parameters are these, as far as the declared keys
    /// go. The node of its streams has to say them.
    Node(Parameters),
    /// What is only for exactly these parameters (T43c): two of its locators could not be told
    /// apart on one stream.
    Alone(Parameters),
    /// A type that ends the main stream, on one of its own.
    SideStream {
        /// Of the main stream: its [node](Self::Node), or none for the shared one.
        of: Option<Parameters>,
        /// The type.
        type_url: TypeUrl,
    },
}

impl Route {
    /// What a client for this route is told about the cache.
    #[must_use]
    pub fn relay(&self, cache: &Arc<Cache>, kind: &UpstreamKind) -> Relay {
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

    /// What the nodes of its streams have to say, to servers that know their clients by that.
    #[must_use]
    pub fn node(&self) -> Option<&Parameters> {
        match self {
            Self::Node(parameters) | Self::SideStream { of: Some(parameters), .. } => Some(parameters),
            Self::Shared | Self::Alone(_) | Self::SideStream { of: None, .. } => None,
        }
    }

    /// The route whose stream everything of the same kind shares.
    pub(super) fn main(&self) -> Self {
        self.node().map_or(Self::Shared, |parameters| Self::Node(parameters.clone()))
    }

    /// The route of a type that the main stream cannot be asked for.
    pub(super) fn side_stream(&self, type_url: &TypeUrl) -> Self {
        Self::SideStream { of: self.node().cloned(), type_url: type_url.clone() }
    }
}
