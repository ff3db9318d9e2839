//! The seam to what keeps bytes: ordered keys, and batches that are written whole or not at all.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::seal::UnsealError;

#[cfg(feature = "etcd")]
pub use etcd::{AccessError, AddressError, EtcdAccess, EtcdAddress, EtcdEngine};
pub use memory::MemoryEngine;
#[cfg(feature = "redb")]
pub use redb::{OpenError, RedbEngine, is_guarded};
pub use sealed::SealedEngine;

#[cfg(feature = "etcd")]
mod etcd;
mod memory;
#[cfg(feature = "redb")]
mod redb;
mod sealed;

/// Ordered byte keys. A batch applies wholly or not at all, and is durable when
/// [`commit`](Self::commit) returns.
///
/// All calls block. The store calls them from its own threads only.
pub trait Engine: Debug + Send {
    /// Reads this engine from other threads while it commits.
    fn reader(&self) -> Arc<dyn Reader>;

    /// The content at one moment. Later commits do not change it.
    ///
    /// # Errors
    /// See [`EngineError`].
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        self.reader().view()
    }

    /// Writes a batch if all its comparisons hold.
    ///
    /// # Errors
    /// [`EngineError::Conflict`] if a comparison does not hold. After all errors but
    /// [`EngineError::Unknown`] and [`EngineError::Broken`] nothing has changed.
    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError>;

    /// What a batch may hold.
    fn limits(&self) -> EngineLimits;

    /// Waits for commits that write this key; `None` if no other process can commit.
    ///
    /// A store writes its head with each batch, and its log says what changed. So this reports only
    /// that there is something new, and the store reads the rest from a view.
    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>>;
}

/// Waits for commits of other processes, on a thread of its own.
pub trait Changes: Debug + Send {
    /// Whether the key may have been written since the last call, or before the first one. Blocks
    /// until that is so, at most for `timeout`. Commits of this process count as well.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`]: call it again later; what changed meanwhile is reported then.
    fn wait(&mut self, timeout: Duration) -> Result<bool, EngineError>;
}

/// Opens views of an engine, from any thread.
pub trait Reader: Debug + Send + Sync {
    /// The content after the last commit that is durable. Later commits do not change it.
    ///
    /// # Errors
    /// See [`EngineError`]. An engine on a file is [`Unavailable`](EngineError::Unavailable) after it
    /// was dropped.
    fn view(&self) -> Result<Box<dyn View>, EngineError>;

    /// How many bytes the disk has free; `None` if that is not known. Default: not known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

/// The content of an engine at one revision.
pub trait View: Debug + Send {
    /// At least the revision of the last commit in it, and less than that of any later one.
    fn revision(&self) -> EngineRevision;

    /// The value of a key.
    ///
    /// # Errors
    /// See [`EngineError`].
    fn get(&self, key: &[u8]) -> Result<Option<Value>, EngineError>;

    /// Calls `each` with the keys from `from` to below `to`, in order, until it breaks.
    ///
    /// # Errors
    /// See [`EngineError`].
    fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError>;

    /// As [`range`](Self::range), with the values as they are stored: sealed contents stay sealed
    /// (ST49).
    ///
    /// # Errors
    /// See [`EngineError`].
    fn range_stored(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.range(from, to, each)
    }

    /// The last key from `from` to below `to`. An engine that can find it without reading the keys
    /// before it does so.
    ///
    /// # Errors
    /// See [`EngineError`].
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Value)>, EngineError> {
        let mut last = None;
        self.range(from, to, &mut |key, value| {
            last = Some((Bytes::copy_from_slice(key), value));
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }
}

/// Grows with each commit. The numbers between those of two commits may belong to somebody else.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineRevision(pub u64);

/// A value with the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub bytes: Bytes,
    /// The last commit that wrote this key.
    pub revision: EngineRevision,
}

/// Writes that are applied together. Each key appears in at most one of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Keys with the revision of the commit that wrote them last; `None`: the key is absent.
    pub compares: Vec<(Bytes, Option<EngineRevision>)>,
    /// Keys and their new values; `None` deletes.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
}

impl Batch {
    /// The bytes of all keys and values, and 128 for each of them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let written = self.writes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len));
        let compared = self.compares.iter().map(|(key, _)| key.len());
        compared.chain(written).map(|bytes| bytes + OPERATION_BYTES).sum()
    }
}

/// What one batch may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Writes, and as many comparisons.
    pub operations: usize,
    /// See [`Batch::bytes`].
    pub bytes: usize,
    /// Bytes of one value.
    pub value_bytes: usize,
    /// What changes the limit of operations; empty if nothing does.
    pub operations_option: &'static str,
    /// The same of bytes.
    pub bytes_option: &'static str,
}

/// Without limits.
impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            operations: usize::MAX,
            bytes: usize::MAX,
            value_bytes: usize::MAX,
            operations_option: "",
            bytes_option: "",
        }
    }
}

impl EngineLimits {
    /// Whether a batch is within the limits.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`].
    pub fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let value_bytes = batch.writes.iter().filter_map(|(_, value)| value.as_ref().map(Bytes::len)).max();
        let operations = batch.compares.len().max(batch.writes.len());
        for (what, found, limit, option) in [
            ("operations", operations, self.operations, self.operations_option),
            ("bytes", batch.bytes(), self.bytes, self.bytes_option),
            ("bytes in one value", value_bytes.unwrap_or(0), self.value_bytes, ""),
        ] {
            if found > limit {
                return Err(EngineError::TooLarge { what, found, limit, option });
            }
        }
        Ok(())
    }
}

/// Why an engine refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A comparison does not hold. Nothing has changed.
    #[error("another writer was faster")]
    Conflict,
    /// The batch exceeds [`EngineLimits`]. Nothing has changed.
    #[error("the commit takes {found} {what}; the limit of the engine is {limit}{}", set_by(option))]
    TooLarge {
        /// What there is too much of: operations or bytes.
        what: &'static str,
        /// How much the batch has.
        found: usize,
        /// How much the engine takes.
        limit: usize,
        /// What changes the limit; empty if nothing does.
        option: &'static str,
    },
    /// There is no room. Nothing has changed, and a later commit may succeed (ST22).
    #[error("no space is left for the store")]
    Full,
    /// The engine did not report whether the batch was applied.
    #[error("the engine did not report whether the commit was applied")]
    Unknown(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine cannot be reached. Nothing has changed, and a later call may succeed.
    #[error("the engine cannot be reached")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine keeps the revision of the view no longer. Open another view.
    #[error("the engine keeps this revision no longer: read again")]
    Compacted,
    /// A sealed content cannot be opened (ST49).
    #[error(transparent)]
    Sealed(#[from] UnsealError),
    /// The engine cannot read what it stored (ST47).
    #[error("the stored value of {key:?} is damaged")]
    Corrupt {
        /// The key in the engine.
        key: Bytes,
    },
    /// The engine accepts no commits until it is opened again (ST21); readers go on. The batch is not
    /// visible now, and may be after that.
    #[error("the engine accepts no commits until it is opened again")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn set_by(option: &str) -> String {
    if option.is_empty() { String::new() } else { format!("; {option} changes it") }
}

/// What an engine may add to a key and its value.
pub(crate) const OPERATION_BYTES: usize = 128;
