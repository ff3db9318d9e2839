//! Settings of the machine, and what a new store is.

use std::sync::Arc;

use super::pass::STEP_EVERY;
use crate::commit::CommitLimits;
use crate::engine::EngineLimits;
use crate::phase::Schemas;
use crate::rules::FieldSource;
use crate::time::SECOND;

/// Settings of the machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Limits of one commit (ST42).
    pub commit: CommitLimits,
    /// What a batch may hold: of the engine.
    pub engine: EngineLimits,
    /// A number chosen at random for this run of the server, which differs from those of all other
    /// servers of the store (ST20).
    pub server: u64,
    /// How long revisions are kept, in nanoseconds (ST44). Default 7 days.
    pub history: i64,
    /// How many revisions are kept (ST44). Default 100,000.
    pub history_revisions: u64,
    /// How long deleted records are kept, in nanoseconds (SR25). In a store that replicates, this is time for
    /// which the node runs, and other nodes may need them for longer (SR26). Default 24 h.
    pub tombstones: i64,
    /// How many deleted records are kept (SR25). Beyond, those that were deleted first go before their time, once no
    /// kept revision and no other node needs them. Default 100,000.
    pub tombstone_limit: usize,
    /// How long an owner that is a record may be missing, in nanoseconds (SG17). Default 5 minutes.
    pub owner_grace: i64,
    /// How long names of this region are blocked for references of other regions that are not confirmed, in
    /// nanoseconds (SG31). A fifth of it is the time for their commits. Default 5 minutes.
    pub reference_block: i64,
    /// The most bytes of a snapshot that this node takes (SR20). At its end, merging it takes five times as much
    /// memory. Default 4 GiB.
    pub snapshot_bytes: u64,
    /// Whether other nodes get the entries of this store. Once they did, it stays so. Default: no.
    pub is_replicated: bool,
    /// The schema versions that this server knows (SV2). Default: all types are 1.0.
    pub schemas: Arc<Schemas>,
    /// Finds the fields of types that reference rules name (SG11). Default: only the fields that the
    /// built-in table reads.
    pub fields: FieldSource,
    /// The time between two steps of the background work of a plan, in nanoseconds (SV22). Default 0.1 s.
    pub pass_pause: i64,
}

impl Config {
    /// The defaults for an engine with these limits.
    #[must_use]
    pub fn new(engine: EngineLimits, server: u64) -> Self {
        Self {
            commit: CommitLimits::default(),
            engine,
            server,
            history: 7 * 24 * 3600 * SECOND,
            history_revisions: 100_000,
            tombstones: 24 * 3600 * SECOND,
            tombstone_limit: 100_000,
            owner_grace: 300 * SECOND,
            reference_block: 300 * SECOND,
            snapshot_bytes: 4 << 30,
            is_replicated: false,
            schemas: Arc::default(),
            fields: FieldSource::default(),
            pass_pause: STEP_EVERY,
        }
    }
}

/// The ids of a new store.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id of the node, chosen at random.
    pub node: String,
    /// The id of its cluster, chosen at random; nodes of one cluster have the same.
    pub cluster: String,
    /// The region of the node; empty without regions.
    pub region: String,
    /// Whether it is not the writer of its region: it accepts no writes of names that the region owns (SG22).
    pub is_replica: bool,
}
