//! Peers: the settings, what is sent between tasks and the writer, and what an operator sees.

use std::collections::BTreeMap;
use std::convert::Infallible;

use tokio::sync::oneshot;
use xds_proto::xds::store::v1 as proto;
use xds_store::replica::{Event, Refusal};

pub use config::{Connecting, PeerConnection, PeerConnector, PeersConfig};
pub(crate) use entries::Pulled;

mod config;
mod entries;

/// What tasks and services send to the writer.
#[derive(Debug)]
pub(crate) enum PeerMessage {
    /// A call of this node was answered, or there are other addresses. The sender waits until the machine
    /// has taken it.
    Event(Event, oneshot::Sender<Infallible>),
    /// A peer calls Hello.
    Hello(proto::HelloRequest, Answer<proto::HelloResponse>),
    /// A peer pulls.
    Pull(proto::PullRequest, Answer<Pulled>),
    /// A peer nudges.
    Nudge(proto::NudgeRequest, Answer<proto::NudgeResponse>),
}

/// Answers a peer.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// The peers of a store, as an operator sees them.
#[derive(Debug, Default, Clone)]
#[non_exhaustive]
pub struct PeersStatus {
    /// Of each origin, up to where this node has its entries.
    pub clock: BTreeMap<String, u64>,
    /// One for each address. A peer is down until its first answer.
    pub peers: Vec<proto::PeerStatus>,
    /// What an operator has to act on (ST72).
    pub alarms: Vec<String>,
}
