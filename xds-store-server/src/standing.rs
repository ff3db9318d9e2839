//! The condition of a running store.

use std::time::SystemTime;

use xds_store::log::{Head, StoreRevision};
use xds_store::phase::PhaseGap;
use xds_store::store::PlanProgress;

pub use xds_proto::xds::store::v1::status_response::Condition;

/// What a running store does at present. The writer sends a new one after each
/// batch, and after each step of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Whether the store serves and accepts commits.
    pub condition: Condition,
    /// Why the store accepts no commits, for people; empty while it accepts them.
    pub reason: String,
    /// The store as a whole after the last durable commit.
    pub head: Head,
    /// How many records exist.
    pub records: usize,
    /// How many records are deleted and not forgotten yet.
    pub tombstones: usize,
    /// How far each plan is, in the order of their numbers.
    pub plans: Vec<PlanProgress>,
    /// How many records are being deleted, and wait for others (SG7).
    pub deleting: usize,
    /// Since when the one that has waited the longest does (SG10).
    pub deleting_since: Option<SystemTime>,
    /// Imports of authorities that are a circle, such as `a > b > a`: they do not count for new references (SG37).
    pub import_circles: Vec<String>,
    /// Plans that are more than one phase further here than at a peer, or less far: writes of their names are refused
    /// (SV42).
    pub phase_gaps: Vec<PhaseGap>,
}

impl Standing {
    /// The store revision of the last durable commit; 0 before the first.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.head.revision
    }

    /// The same as users see it (ST30).
    #[must_use]
    pub fn revision_text(&self) -> String {
        StoreRevision::of(&self.head, self.head.revision).to_string()
    }

    /// Whether commits are accepted: a store that waits for its first commit accepts it, and one that waits
    /// for its first snapshot does not (ST5).
    #[must_use]
    pub fn accepts_commits(&self) -> bool {
        match self.condition {
            Condition::Waiting => !self.head.is_joining,
            condition => condition == Condition::Serving,
        }
    }
}
