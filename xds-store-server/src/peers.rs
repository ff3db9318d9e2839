//! Peers: the settings, what is sent between tasks and the writer, and what an operator sees.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Refused;
use xds_store::engine::View;
use xds_store::replica::{Event, Failure, Refusal};
use xds_store::store::{RegionRequest, RegionResponse, Ticket, Unanswered};

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
    /// A peer, which has this id, wants to read records.
    Look(String, Answer<()>),
    /// A reader wants what peers have (SR49). The answers follow, each with the id of its node.
    Peek(proto::Key, UnboundedSender<(String, proto::PeekResponse)>),
    /// A node of another region calls about references (SG30).
    Region(RegionRequest, oneshot::Sender<Result<RegionResponse, Refused>>),
    /// Another region answered such a call of this node, or did not.
    RegionAnswered(Ticket, Result<RegionResponse, Unanswered>),
    /// A peer takes a snapshot.
    Snapshot(proto::SnapshotRequest, Answer<Box<dyn View>>),
    /// A page of the snapshot that this node takes, with its number. The sender waits until it is durable.
    Page(u64, proto::SnapshotResponse, oneshot::Sender<PageEnd>),
    /// The snapshot with this number came to no end.
    SnapshotFailed(u64, Failure),
}

/// What became of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageEnd {
    Kept,
    /// It was the last one, or no page is taken any more.
    Ended,
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
    /// Of each region whose writer is known: its node, and its address.
    pub writers: BTreeMap<String, (String, String)>,
    /// The other regions, in the order of their names (SG29).
    pub regions: Vec<proto::RegionStatus>,
    /// The prefixes of names that this node is still fetching (SG27).
    pub fetching: Vec<String>,
    /// What each of them waits for, for people.
    pub awaited: BTreeMap<String, String>,
    /// How many records a comparison with a peer has mended since the start (SR51).
    pub mended: u64,
    /// What an operator has to act on (ST72).
    pub alarms: Vec<String>,
}

/// How long a read waits for the answers of peers (SR49).
pub(crate) const PEEK_TIMEOUT: Duration = Duration::from_secs(1);
