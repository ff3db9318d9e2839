//! References that are older than the policy of their target (SG34): another region owns the target since a policy was
//! made, or handed it over. So each change of policies begins a walk over the references of this region, in paced
//! steps, and so does a start after a walk that came to no end, or of a node that became the writer of its region.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use crate::blocks::{Block, BlockKey, BlockState};
use crate::commit::Judging;
use crate::key::{RecordKey, stored};
use crate::read;
use crate::record::Present;
use crate::refs;
use crate::store::{Store, Writing};
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;

/// A walk over the blocks of this side, and then over the records of this region.
#[derive(Debug, Default)]
pub(in crate::store) struct Older {
    /// `None`: there is nothing to do.
    next: Option<Next>,
    at: i64,
    /// A walk that changes something is followed by another one: its batches may be lost.
    has_changed: bool,
}

#[derive(Debug, Clone)]
enum Next {
    Blocks(Option<BlockKey>),
    Records(Bytes),
}

impl Older {
    pub(in crate::store) fn delay(&mut self, until: i64) {
        self.at = self.at.max(until);
    }
}

impl Store {
    /// Policies were read, or have changed.
    pub(in crate::store) fn begin_older(&mut self) {
        let is_done = self.has_blocks_of_all();
        let older = &mut self.across.older;
        (older.next, older.has_changed) = ((!is_done).then_some(Next::Blocks(None)), false);
    }

    /// For which policies each reference of this node has its block; none, if it makes none.
    pub(super) fn policies_of_blocks(&self) -> Bytes {
        let policies = self.index.policies();
        let is_writer = !self.head.region.is_empty() && !self.head.is_replica;
        if is_writer && !policies.is_empty() { policies.digest() } else { Bytes::new() }
    }

    /// Whether the references of this node have their blocks.
    pub(super) fn has_blocks_of_all(&self) -> bool {
        self.head.blocked_by == self.policies_of_blocks()
    }

    /// When the next step is due.
    pub(in crate::store) fn older_due(&self) -> Option<i64> {
        self.across.older.next.as_ref().map(|_| self.across.older.at.max(self.head.time))
    }

    /// Adds the step that is due to an empty batch.
    pub(in crate::store) fn add_older(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        let Some(next) = self.across.older.next.clone().filter(|_| self.across.older.at <= now) else {
            return;
        };
        let end = self.policies_of_blocks();
        self.across.older.at = now.saturating_add(STEP_EVERY);
        let next = match next {
            _ if end.is_empty() => None,
            Next::Blocks(after) => Some(self.end_stale(writing, after)),
            Next::Records(from) => match self.block_older(writing, stored, &from, now) {
                Ok(next) => next.map(Next::Records),
                Err(_) => return self.across.older.delay(now.saturating_add(TRIED_AGAIN)),
            },
        };
        let older = &mut self.across.older;
        older.has_changed |= !writing.pending.own_blocks.is_empty();
        older.next = match next {
            None if std::mem::take(&mut older.has_changed) => Some(Next::Blocks(None)),
            None => {
                writing.head.blocked_by = end;
                None
            }
            next => next,
        };
    }

    /// Ends blocks of targets that another region owns now. That region gets new ones.
    fn end_stale(&self, writing: &mut Writing, after: Option<BlockKey>) -> Next {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (looked_at, (key, block)) in self.index.own_blocks.behind(behind).enumerate() {
            let target = block.reference.target.as_ref().and_then(|target| RecordKey::parse(target).ok());
            let owner = target.as_ref().and_then(|target| self.index.policies().owner_of(target));
            if block.state() != BlockState::Ended && owner != Some(&*block.target_region) {
                let block = Arc::new(block.in_state(BlockState::Ended));
                writing.pending.own_blocks.insert(*key, Some(block));
            }
            if writing.pending.own_blocks.len() >= STEP || looked_at >= LOOKED_AT {
                return Next::Blocks(Some(*key));
            }
        }
        Next::Records(Bytes::from_static(stored::RECORDS.0))
    }

    /// Makes blocks for references of the next records, and says where the walk goes on. They are confirmed once they
    /// are durable (SG30).
    fn block_older(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        from: &Bytes,
        now: i64,
    ) -> Result<Option<Bytes>, ReadError> {
        self.across.last_call += 1;
        let id = self.block_id();
        let (keys, mut next) = self.with_references(stored, from)?;
        let mut made = Vec::new();
        for key in keys {
            if made.len() >= STEP {
                next = Some(stored::record(&key, 0));
                break;
            }
            made.extend(self.older_of(&self.judging(writing, stored, now), &key, &id)?);
        }
        for (key, block) in made {
            writing.pending.own_blocks.insert(key, Some(Arc::new(block)));
        }
        Ok(next)
    }

    /// The next records of this region that refer to something, and where the walk goes on.
    fn with_references(
        &self,
        stored: &Stored<'_>,
        from: &Bytes,
    ) -> Result<(Vec<RecordKey>, Option<Bytes>), ReadError> {
        let (mut keys, mut next, mut looked_at) = (Vec::new(), None, 0);
        let is_own = |key: &RecordKey| self.index.policies().owner_of(key) == Some(&*self.head.region);
        stored.view()?.range(from, stored::RECORDS.1, &mut |at, _| {
            let Some((key, revision)) = stored::parse_record(at) else { return ControlFlow::Continue(()) };
            looked_at += 1;
            let record = self.index.get(&key).filter(|record| record.changed_at == revision);
            let needs = |record: &Present| {
                !record.is_deleted() && record.references.iter().any(|one| one.acts.needs_target())
            };
            if record.is_some_and(needs) && is_own(&key) {
                keys.push(key);
            }
            if keys.len() >= STEP || looked_at >= LOOKED_AT {
                next = Some([at, &[0]].concat().into());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok((keys, next))
    }

    /// The blocks that a record lacks.
    fn older_of(
        &self,
        judging: &Judging<'_>,
        key: &RecordKey,
        id: &Bytes,
    ) -> Result<Vec<(BlockKey, Block)>, ReadError> {
        let Some(record) = judging.records.get(key) else { return Ok(Vec::new()) };
        let state = judging.state(key, record)?;
        let mut made = Vec::new();
        for resource in refs::resources(key, &state) {
            for (target, field) in judging.needed_elsewhere(&resource) {
                let Some(region) = judging.elsewhere(&target) else { continue };
                let source = BlockKey::source(&self.head.region, key);
                let own = &self.index.own_blocks;
                let mut present =
                    own.of_source(&judging.records.batch.own_blocks, target.name_digest(), source);
                if present
                    .any(|(_, block)| block.state() != BlockState::Ended && block.target_region == region)
                {
                    continue;
                }
                let source_region = self.head.region.clone();
                let reference = proto::Reference { source_region, ..read::reference(key, &target, field) };
                let at = BlockKey::of(&reference, id);
                let block = Block {
                    reference,
                    id: id.clone(),
                    target_region: region.to_owned(),
                    node: self.head.node.clone(),
                    state: BlockState::Tentative.into(),
                    until: 0,
                };
                made.extend(at.map(|at| (at, block)));
            }
        }
        Ok(made)
    }
}

/// How many blocks a step makes or ends, and how often there is a step.
const STEP: usize = 500;
const STEP_EVERY: i64 = SECOND / 10;
/// How many versions of records, or blocks, a step looks at.
const LOOKED_AT: usize = 10_000;
/// When a step is tried again that failed.
const TRIED_AGAIN: i64 = 60 * SECOND;
