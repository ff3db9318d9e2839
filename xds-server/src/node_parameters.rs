//! How a client that subscribes by plain name gets parameters (T46).

use std::fmt;
use std::sync::Arc;

use prost::{DecodeError, Message as _};
use xds_core::{Derived, ParameterMapping, Parameters};
use xds_proto::envoy::config::core::v3::Node;

use crate::peer::Peer;

/// How a client that subscribes by plain name gets parameters (T46).
///
/// The default is the default of [`ParameterMapping`]: strings and bools at the top level of the
/// node's metadata.
///
/// ```
/// use xds_core::Parameters;
/// use xds_server::{NodeParameters, ServerConfig};
///
/// let parameters = NodeParameters::by(|node, peer| {
///     let zone = node.locality.as_ref().map_or("", |locality| &locality.zone);
///     // The name in a client certificate, which a node cannot forge.
///     [("zone", zone), ("identity", peer.name())].into_iter().collect()
/// });
/// let config = ServerConfig { parameters, ..ServerConfig::default() };
/// ```
#[derive(Clone)]
pub enum NodeParameters {
    /// From places in its node.
    Mapping(Arc<ParameterMapping>),
    /// By a function of the program, see [`by`](Self::by).
    Function(Arc<ParameterFunction>),
}

/// Gives a client its parameters.
pub type ParameterFunction = dyn Fn(&Node, &Peer) -> Parameters + Send + Sync;

impl NodeParameters {
    /// The parameters that this function gives for the node of a client and its peer.
    ///
    /// The function is called once per stream or poll, with the first node, on the task of the stream.
    /// It must not block. A client that sends no node has no parameters. The peer comes from the
    /// connection; a client declares its node without proof. To refuse a client, use an
    /// [`Authorizer`](crate::Authorizer), which sees the parameters.
    pub fn by(function: impl Fn(&Node, &Peer) -> Parameters + Send + Sync + 'static) -> Self {
        Self::Function(Arc::new(function))
    }

    /// The parameters for an encoded node.
    pub(crate) fn derive(&self, node: &[u8], peer: &Peer) -> Result<Derived, DecodeError> {
        match self {
            Self::Mapping(mapping) => mapping.derive(node),
            Self::Function(function) => {
                Ok(Derived { parameters: function(&Node::decode(node)?, peer), ..Derived::default() })
            }
        }
    }
}

impl Default for NodeParameters {
    fn default() -> Self {
        ParameterMapping::default().into()
    }
}

impl From<ParameterMapping> for NodeParameters {
    fn from(mapping: ParameterMapping) -> Self {
        Self::Mapping(Arc::new(mapping))
    }
}

impl fmt::Debug for NodeParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapping(mapping) => f.debug_tuple("Mapping").field(mapping).finish(),
            Self::Function(_) => f.debug_struct("Function").finish_non_exhaustive(),
        }
    }
}

#[cfg(test)]
mod tests {
    use xds_proto::envoy::config::core::v3::Locality;
    use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;

    use super::*;
    use crate::skim::Skimmer;

    #[test]
    fn t46_a_function_gives_parameters_for_the_first_node_and_the_peer() {
        let parameters = NodeParameters::by(|node, peer| {
            let zone = node.locality.as_ref().map_or("", |locality| &locality.zone);
            let address = peer.address.map_or_else(String::new, |address| address.ip().to_string());
            [("zone", zone), ("address", &address)].into_iter().collect()
        });
        let peer = Peer { address: Some(([10, 0, 0, 7], 1234).into()), ..Peer::default() };
        let mut skimmer = Skimmer::new("t".into()).with_parameters(parameters, peer);
        let mut read = |zone: &str| {
            let locality = Some(Locality { zone: zone.into(), ..Locality::default() });
            let node = Some(Node { locality, ..Node::default() });
            skimmer.sotw(&DiscoveryRequest { node, ..DiscoveryRequest::default() }.encode_to_vec()).unwrap();
            skimmer.client().unwrap().parameters.to_string()
        };
        assert_eq!(read("b"), r#"address="10.0.0.7", zone="b""#);
        assert_eq!(read("c"), r#"address="10.0.0.7", zone="b""#, "G7: later nodes are ignored");
    }

    #[test]
    fn bytes_that_are_no_node_reach_no_function() {
        let parameters = NodeParameters::by(|_, _| panic!("there is no node"));
        assert!(parameters.derive(&[0x0a, 0x7f], &Peer::default()).is_err());
    }
}
