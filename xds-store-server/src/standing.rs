//! The condition of a running store.

pub use xds_proto::xds::store::v1::status_response::Condition;

/// What a running store does at present. The writer sends a new one after each batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Whether the store serves and accepts commits.
    pub condition: Condition,
    /// Why the store accepts no commits, for people; empty while it accepts them.
    pub reason: String,
    /// The node id of the store.
    pub node: String,
    /// The store revision of the last durable commit; 0 before the first.
    pub revision: u64,
    /// Revisions up to this one are forgotten.
    pub floor: u64,
}

impl Standing {
    /// Whether commits are accepted: a store that waits for its first commit accepts it (ST5).
    #[must_use]
    pub fn accepts_commits(&self) -> bool {
        matches!(self.condition, Condition::Serving | Condition::Waiting)
    }
}
