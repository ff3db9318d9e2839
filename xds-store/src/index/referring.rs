//! The records that refer to a target, and those of a name that are being deleted, as a commit leaves
//! them.

use std::sync::Arc;

use super::Records;
use crate::blocks::{Block, BlockKey};
use crate::key::{NameDigest, RecordKey};
use crate::refs::{ReferrerChanges, Referrers};
use crate::rules::Acts;

impl<'a> Records<'a> {
    /// The records that refer to a target once a commit is done, each once, with what its deletion does.
    /// The first one costs the same however many there are.
    pub(crate) fn referrers(
        self,
        commit: &'a ReferrerChanges,
        target: NameDigest,
    ) -> impl Iterator<Item = (&'a RecordKey, Acts)> {
        merged((&self.index.referrers, &self.batch.referrers), commit, target)
    }

    /// The references of other regions to a name (SG31).
    pub(crate) fn blocks(self, target: NameDigest) -> impl Iterator<Item = (BlockKey, &'a Arc<Block>)> {
        self.index.blocks.of(&self.batch.blocks, target)
    }

    /// Whether a copy of another region refers to a name, and that region keeps the name by itself.
    pub(crate) fn is_blocked_by(self, target: NameDigest, source: &RecordKey) -> bool {
        let Some(owner) = self.index.policies().owner_of(source) else { return false };
        let source = BlockKey::source(owner, source);
        self.index.blocks.of_source(&self.batch.blocks, target, source).next().is_some()
    }

    /// The records of a name that are being deleted once a commit is done.
    pub(crate) fn deleting(
        self,
        commit: &'a ReferrerChanges,
        name: NameDigest,
    ) -> impl Iterator<Item = &'a RecordKey> {
        merged((&self.index.deleting, &self.batch.deleting), commit, name).map(|(key, _)| key)
    }
}

fn merged<'a>(
    (durable, batch): (&'a Referrers, &'a ReferrerChanges),
    commit: &'a ReferrerChanges,
    target: NameDigest,
) -> impl Iterator<Item = (&'a RecordKey, Acts)> {
    let kept = durable.of(target).filter_map(move |(source, acts)| {
        let changed = commit.get(target, source).or_else(|| batch.get(target, source));
        changed.unwrap_or(Some(acts)).map(|acts| (source, acts))
    });
    let of_batch = batch.added(target).filter_map(move |(source, acts)| {
        let is_new = !durable.has(target, source);
        commit.get(target, source).unwrap_or(Some(acts)).filter(|_| is_new).map(|acts| (source, acts))
    });
    let of_commit = commit.added(target).filter(move |(source, _)| {
        !durable.has(target, source) && !matches!(batch.get(target, source), Some(Some(_)))
    });
    kept.chain(of_batch).chain(of_commit)
}
