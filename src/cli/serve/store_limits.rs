//! The limits of a durable store.

use std::time::Duration;

use clap::Args;
use xds_store_server::StoreConfig;

use super::{count, wait};

#[derive(Debug, Args)]
pub(super) struct StoreLimits {
    /// How many commits may wait; more are refused with RESOURCE_EXHAUSTED. Together they may have
    /// 64 MiB
    #[arg(long, value_name = "COMMITS", default_value = "1000", value_parser = count)]
    commit_queue_limit: usize,
    /// The most changes of one commit
    #[arg(long, value_name = "CHANGES", default_value = "10000", value_parser = count)]
    commit_changes_limit: usize,
    /// The most bytes of one commit
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = count)]
    commit_bytes_limit: usize,
    /// How long old revisions are kept, for history and rollback: a number with ms, s, m or h
    ///
    /// Those of the last 5 minutes are always kept.
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = wait)]
    history: Duration,
    /// How many old revisions are kept
    #[arg(long, value_name = "REVISIONS", default_value = "100000", value_parser = count)]
    history_revisions: usize,
    /// How long deleted records are remembered: a number with ms, s, m or h
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = wait)]
    tombstone_ttl: Duration,
    /// How many deleted records are remembered
    ///
    /// Beyond, those that were deleted first are forgotten before `--tombstone-ttl`, once they are older than the
    /// history and all other nodes have the deletion.
    #[arg(long, value_name = "RECORDS", default_value = "100000", value_parser = count)]
    tombstone_limit: usize,
    /// How long a record may have an owner that does not exist, if the owner is a record: a number with
    /// ms, s, m or h
    ///
    /// After this time such an owner is dropped. A record is deleted with its last owner.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = wait)]
    owner_grace: Duration,
    /// How long a resource is kept for a commit of another region that refers to it: a number with ms, s,
    /// m or h
    ///
    /// A fifth of it is the time that such a commit may take. If the other region does not say in time that the
    /// commit is done, it is asked.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = wait)]
    reference_block: Duration,
    /// The most bytes of a snapshot that this node takes of a peer. Merging it takes five times as much memory
    #[arg(long, value_name = "BYTES", default_value = "4294967296", value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_bytes_limit: u64,
}

impl StoreLimits {
    pub(super) fn apply(&self, config: &mut StoreConfig) {
        config.queue_commits = self.commit_queue_limit;
        config.commit.changes = self.commit_changes_limit;
        config.commit.bytes = self.commit_bytes_limit;
        config.history = self.history;
        config.history_revisions = self.history_revisions as u64;
        config.tombstones = self.tombstone_ttl;
        config.tombstone_limit = self.tombstone_limit;
        config.owner_grace = self.owner_grace;
        config.reference_block = self.reference_block;
        config.snapshot_bytes = self.snapshot_bytes_limit;
    }
}
