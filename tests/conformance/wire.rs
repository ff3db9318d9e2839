//! The two ways to run a script. Only this code uses the API of the server.

mod machines;
mod sockets;

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tonic::Code;
use xds::{CommitError, Transaction};
use xds_core::server::{Protocol, StreamConfig};
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::service::Service;

pub(crate) use machines::Machines;
pub(crate) use sockets::Sockets;

pub(crate) enum Request {
    Sotw(discovery::DiscoveryRequest),
    Delta(discovery::DeltaDiscoveryRequest),
}

pub(crate) enum Response {
    Sotw(discovery::DiscoveryResponse),
    Delta(discovery::DeltaDiscoveryResponse),
}

/// An event of a stream, seen by its client.
pub(crate) enum Event {
    Response(Response),
    /// The stream ended. The machines do not know the gRPC code of their error.
    Closed {
        code: Option<Code>,
        text: String,
    },
}

/// Streams to one cache, by their names in the script.
///
/// After each of these calls except `open`, all streams send what is due before the next call. So
/// both ways answer each request and send each commit separately, and a script has one outcome.
pub(crate) trait Wire {
    /// Sets limits and timeouts, before the first stream opens.
    fn configure(&mut self, config: StreamConfig);
    fn commit(&mut self, transaction: Transaction) -> Result<(), CommitError>;
    /// Opens a stream on the service of one type, or on the aggregated one.
    fn open(&mut self, name: &str, protocol: Protocol, service: Option<&'static Service>);
    fn send(&mut self, name: &str, request: Request);
    /// Lets time pass.
    fn pass(&mut self, time: Duration);
    /// The next event of a stream, which the script expects.
    fn receive(&mut self, name: &str) -> Option<Event>;
    /// The event that a stream has already, if any.
    fn receive_now(&mut self, name: &str) -> Option<Event>;
}

impl Request {
    fn encode(&self) -> Bytes {
        match self {
            Self::Sotw(request) => request.encode_to_vec(),
            Self::Delta(request) => request.encode_to_vec(),
        }
        .into()
    }

    /// The id of the node, if the request has one.
    fn node_id(&self) -> Option<&str> {
        let (Self::Sotw(discovery::DiscoveryRequest { node, .. })
        | Self::Delta(discovery::DeltaDiscoveryRequest { node, .. })) = self;
        node.as_ref().map(|node| node.id.as_str())
    }
}

impl Response {
    fn decode(protocol: Protocol, message: Bytes) -> Self {
        match protocol {
            Protocol::Sotw => Self::Sotw(Message::decode(message).unwrap()),
            Protocol::Delta => Self::Delta(Message::decode(message).unwrap()),
        }
    }

    pub(crate) fn type_url(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.type_url,
            Self::Delta(response) => &response.type_url,
        }
    }

    pub(crate) fn nonce(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.nonce,
            Self::Delta(response) => &response.nonce,
        }
    }

    /// `version_info` or `system_version_info`.
    pub(crate) fn version(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.version_info,
            Self::Delta(response) => &response.system_version_info,
        }
    }
}
