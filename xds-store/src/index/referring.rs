//! The records that refer to a target, and those of a name that are being deleted, as a commit leaves
//! them.

use super::Records;
use crate::key::{NameDigest, RecordKey};
use crate::refs::{ReferrerChanges, Referrers};

impl<'a> Records<'a> {
    /// The records that refer to a target once a commit is done, each once. The first one costs the
    /// same however many there are.
    pub(crate) fn referrers(
        self,
        commit: &'a ReferrerChanges,
        target: NameDigest,
    ) -> impl Iterator<Item = &'a RecordKey> {
        merged((&self.index.referrers, &self.batch.referrers), commit, target)
    }

    /// The records of a name that are being deleted once a commit is done.
    pub(crate) fn deleting(
        self,
        commit: &'a ReferrerChanges,
        name: NameDigest,
    ) -> impl Iterator<Item = &'a RecordKey> {
        merged((&self.index.deleting, &self.batch.deleting), commit, name)
    }
}

fn merged<'a>(
    (durable, batch): (&'a Referrers, &'a ReferrerChanges),
    commit: &'a ReferrerChanges,
    target: NameDigest,
) -> impl Iterator<Item = &'a RecordKey> {
    let kept = durable.of(target).filter(move |source| {
        commit.get(target, source).or_else(|| batch.get(target, source)).unwrap_or(true)
    });
    let of_batch = batch
        .added(target)
        .filter(move |source| !durable.has(target, source) && commit.get(target, source).unwrap_or(true));
    let of_commit = commit
        .added(target)
        .filter(move |source| !durable.has(target, source) && batch.get(target, source) != Some(true));
    kept.chain(of_batch).chain(of_commit)
}
