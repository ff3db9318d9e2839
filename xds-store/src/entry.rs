//! Entries: the commits of a node, as other nodes get them (SR6).

use xds_proto::xds::store::v1 as proto;

/// What another node has of the log of an origin.
#[derive(Debug, Clone, PartialEq)]
pub enum Foreign {
    /// One commit.
    Entry(proto::Entry),
    /// Numbers that hold nothing for this node (SR14).
    Skip(proto::Skip),
}
