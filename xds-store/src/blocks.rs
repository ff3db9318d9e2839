//! References from one region to names of another one, which keep these from deletion (SG30).
//!
//! Both sides keep each block: the region of the target knows what keeps it (SG31), and that of the source what it has
//! to confirm and to release (SG33). A block has an id of its own, so a late message about an earlier one never affects
//! the present one.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::checked::{self, Damaged};
use crate::engine::View;
use crate::key::{NameDigest, RecordKey, stored};
use crate::stored::ReadError;

/// A block as one side has it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Block {
    /// Source, field, target, what the end of the target does, and the region of the source. The keys are opaque:
    /// nobody needs the schema of the other side (SG35).
    #[prost(message, required, tag = "1")]
    pub(crate) reference: proto::Reference,
    /// Chosen by the region of the source, for all references of a commit into one region.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) id: Bytes,
    /// The region of the target.
    #[prost(string, tag = "3")]
    pub(crate) target_region: String,
    /// The node of the source, which made the block; empty: the writer of its region.
    #[prost(string, tag = "4")]
    pub(crate) node: String,
    #[prost(enumeration = "BlockState", tag = "5")]
    pub(crate) state: i32,
    /// While it is tentative: until when, in nanoseconds since 1970.
    #[prost(int64, tag = "6")]
    pub(crate) until: i64,
}

/// How far the protocol has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum BlockState {
    /// At the target: the commit may come to nothing. At the source: it is durable, and the target does not know that.
    Tentative = 0,
    /// Both know that the reference exists.
    Confirmed = 1,
    /// At the source: the reference is gone, and the target does not know that.
    Ended = 2,
}

/// Identifies a block of one reference. All blocks of a target lie together in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockKey {
    pub(crate) target: NameDigest,
    /// Of region and record.
    pub(crate) source: u128,
    pub(crate) id: u128,
}

/// Which blocks a store has: those of its names, or those of its references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSide {
    Target,
    Source,
}

/// The blocks of one side.
#[derive(Debug, Default)]
pub(crate) struct Blocks(BTreeMap<BlockKey, Arc<Block>>);

/// Blocks that a batch changes; `None`: it drops them.
pub(crate) type BlockChanges = BTreeMap<BlockKey, Option<Arc<Block>>>;

impl BlockKey {
    /// The block of a reference; `None` if source, target or id cannot be read.
    pub(crate) fn of(reference: &proto::Reference, id: &[u8]) -> Option<Self> {
        let key = |key: &Option<proto::Key>| RecordKey::parse(key.as_ref()?).ok();
        let (source, target) = (key(&reference.source)?, key(&reference.target)?);
        let (target, source) = (target.name_digest(), Self::source(&reference.source_region, &source));
        Some(Self { target, source, id: id.try_into().map(u128::from_be_bytes).ok()? })
    }

    /// A digest of a record of a region.
    pub(crate) fn source(region: &str, source: &RecordKey) -> u128 {
        source.digest_in(region)
    }

    /// Its key in the engine.
    pub(crate) fn stored(&self, side: BlockSide) -> Bytes {
        stored::block(side.range().0, self.target, self.source, self.id)
    }
}

impl BlockSide {
    fn range(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::Target => stored::BLOCKS,
            Self::Source => stored::OWN_BLOCKS,
        }
    }
}

impl Block {
    /// The record that refers to the target; `None` if its key cannot be read here.
    pub(crate) fn source(&self) -> Option<RecordKey> {
        self.reference.source.as_ref().and_then(|source| RecordKey::parse(source).ok())
    }

    /// Whether the source goes with the target, or loses the field.
    pub(crate) fn goes_with_target(&self) -> bool {
        matches!(self.reference.on_delete(), proto::OnDelete::Cascade | proto::OnDelete::Unset)
    }

    /// The reference as clients see it.
    pub(crate) fn to_proto(&self) -> proto::Reference {
        let is_tentative = self.state() == BlockState::Tentative;
        proto::Reference { is_tentative, ..self.reference.clone() }
    }

    pub(crate) fn in_state(&self, state: BlockState) -> Self {
        Self { state: state.into(), until: 0, ..self.clone() }
    }
}

impl Blocks {
    pub(crate) fn load(view: &dyn View, side: BlockSide) -> Result<Self, ReadError> {
        let mut blocks = BTreeMap::new();
        let mut failed: Option<Damaged> = None;
        let (from, to) = side.range();
        view.range(from, to, &mut |at, value| {
            match parse(at, value.bytes) {
                Ok((key, block)) => _ = blocks.insert(key, Arc::new(block)),
                Err(damaged) => failed = Some(damaged),
            }
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failed.map_or(Ok(Self(blocks)), |damaged| Err(damaged.into()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&BlockKey, &Arc<Block>)> {
        self.0.iter()
    }

    /// Those behind a key, in order.
    pub(crate) fn behind(&self, key: Bound<BlockKey>) -> impl Iterator<Item = (&BlockKey, &Arc<Block>)> {
        self.0.range((key, Bound::Unbounded))
    }

    pub(crate) fn get(&self, key: &BlockKey) -> Option<&Arc<Block>> {
        self.0.get(key)
    }

    pub(crate) fn apply(&mut self, changes: BlockChanges) {
        for (key, block) in changes {
            match block {
                Some(block) => _ = self.0.insert(key, block),
                None => _ = self.0.remove(&key),
            }
        }
    }

    /// Those of a target once some changes are done.
    pub(crate) fn of<'a>(
        &'a self,
        changes: &'a BlockChanges,
        target: NameDigest,
    ) -> impl Iterator<Item = (BlockKey, &'a Arc<Block>)> {
        self.between(changes, target, 0..=u128::MAX)
    }

    /// Those of a target that are of one record.
    pub(crate) fn of_source<'a>(
        &'a self,
        changes: &'a BlockChanges,
        target: NameDigest,
        source: u128,
    ) -> impl Iterator<Item = (BlockKey, &'a Arc<Block>)> {
        self.between(changes, target, source..=source)
    }

    fn between<'a>(
        &'a self,
        changes: &'a BlockChanges,
        target: NameDigest,
        sources: RangeInclusive<u128>,
    ) -> impl Iterator<Item = (BlockKey, &'a Arc<Block>)> {
        let (first, last) = (*sources.start(), *sources.end());
        let range =
            BlockKey { target, source: first, id: 0 }..=BlockKey { target, source: last, id: u128::MAX };
        let kept = self.0.range(range.clone()).filter(|(key, _)| !changes.contains_key(key));
        let changed = changes.range(range).filter_map(|(key, block)| Some((key, block.as_ref()?)));
        kept.chain(changed).map(|(key, block)| (*key, block))
    }
}

/// A stored block.
pub(crate) fn parse(at: &[u8], value: Bytes) -> Result<(BlockKey, Block), Damaged> {
    let damaged = || Damaged { key: Bytes::copy_from_slice(at) };
    let block: Block = checked::decode(at, value)?;
    let key = BlockKey::of(&block.reference, &block.id).ok_or_else(damaged)?;
    let is_key = [BlockSide::Target, BlockSide::Source].iter().any(|side| *key.stored(*side) == *at);
    if is_key { Ok((key, block)) } else { Err(damaged()) }
}
