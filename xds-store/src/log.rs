//! The log of a store: what each commit changed, and the head that the next one follows.

use prost::Message;
use xds_proto::xds::store::v1 as proto;

/// The state of the store as a whole. Each batch writes it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Head {
    /// The store revision of the last commit; 0 before the first.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// The format of all stored values (ST4).
    #[prost(uint32, tag = "2")]
    pub format: u32,
    /// The id of this node.
    #[prost(string, tag = "3")]
    pub node: String,
    /// The number of the last commit that this node made.
    #[prost(uint64, tag = "4")]
    pub counter: u64,
    /// ST41: the greatest time that was acted on, in nanoseconds since 1970.
    #[prost(int64, tag = "5")]
    pub time: i64,
    /// New keys start above this incarnation.
    #[prost(uint64, tag = "6")]
    pub incarnation_floor: u64,
    /// Revisions up to this one are forgotten.
    #[prost(uint64, tag = "7")]
    pub floor: u64,
}

/// One commit. It has keys only: the states of the records are stored under the same revision.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LogEntry {
    /// The node that made the commit, and its number there.
    #[prost(string, tag = "1")]
    pub origin: String,
    /// See [`origin`](Self::origin); 0 if it is not replicated.
    #[prost(uint64, tag = "2")]
    pub counter: u64,
    /// A digest over the entries of the origin.
    #[prost(bytes = "bytes", tag = "3")]
    pub chain: bytes::Bytes,
    /// When, in nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub time: i64,
    /// Who, by certificate or token.
    #[prost(string, tag = "5")]
    pub identity: String,
    /// The owner that it acted as.
    #[prost(string, tag = "6")]
    pub owner: String,
    /// For people.
    #[prost(string, tag = "7")]
    pub message: String,
    /// In the order of keys.
    #[prost(message, repeated, tag = "8")]
    pub changes: Vec<LogChange>,
}

/// One record that a commit changed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LogChange {
    /// The record.
    #[prost(message, required, tag = "1")]
    pub key: proto::Key,
    /// The store revision of its state before; 0 if there was none.
    #[prost(uint64, tag = "2")]
    pub previous: u64,
    /// What happened to it.
    #[prost(enumeration = "proto::Outcome", tag = "3")]
    pub outcome: i32,
}

/// The format that this version writes.
pub const FORMAT: u32 = 1;
