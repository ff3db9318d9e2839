//! On which stream upstream a question goes.

use std::sync::Arc;

use super::config::UpstreamKind;
use crate::cache::Cache;
use crate::client::Relay;
use crate::constraint::Constraints;
use crate::parameters::Parameters;

/// One client of the upstreams: each has streams of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// Everything that can be told apart by locators and constraints.
    Shared,
    /// To servers without TP2: for clients whose parameters are these, as far as the declared keys go. The node of its
    /// streams has to say them.
    Node(Parameters),
    /// What is only for exactly these parameters (T43c): two of its locators could not be told apart on one stream.
    Alone(Parameters),
}

impl Route {
    /// What a client for this route is told about the cache.
    #[must_use]
    pub fn relay(&self, cache: &Arc<Cache>, kind: &UpstreamKind) -> Relay {
        let stamp = match (self, kind) {
            (Self::Node(parameters), UpstreamKind::Node { keys }) => {
                let keys: Vec<_> = keys.iter().cloned().collect();
                Constraints::agreeing_with(parameters, &keys).ok()
            }
            (Self::Alone(parameters), _) => Some(Constraints::exactly(parameters)),
            (Self::Shared | Self::Node(_), _) => None,
        };
        Relay { cache: Arc::clone(cache), stamp }
    }
}
