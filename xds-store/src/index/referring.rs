//! The records that refer to a target, and those of a name that are being deleted, as a commit leaves
//! them.

use super::Records;
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
