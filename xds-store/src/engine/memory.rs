//! Keys in memory: for tests, and for programs that need no durability.

use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rpds::RedBlackTreeMapSync;

use super::{Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};

/// An engine that forgets everything when it and its readers are dropped. Clones have the same
/// content, as two servers have on one etcd.
#[derive(Debug, Default, Clone)]
pub struct MemoryEngine {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    content: Mutex<Content>,
    committed: Condvar,
}

/// A clone shares all that it does not change, so a view costs no copy of the keys.
#[derive(Debug, Default, Clone)]
struct Content {
    revision: EngineRevision,
    values: RedBlackTreeMapSync<Bytes, Value>,
}

impl Engine for MemoryEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(MemoryReader(Arc::clone(&self.shared)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let mut content = self.shared.content();
        let revision_of = |key| content.values.get(key).map(|value| value.revision);
        if batch.compares.iter().any(|(key, revision)| revision_of(key) != *revision) {
            return Err(EngineError::Conflict);
        }
        content.revision.0 += 1;
        let revision = content.revision;
        for (key, bytes) in &batch.writes {
            match bytes {
                Some(bytes) => {
                    content.values.insert_mut(key.clone(), Value { bytes: bytes.clone(), revision });
                }
                None => _ = content.values.remove_mut(key),
            }
        }
        self.shared.committed.notify_all();
        Ok(revision)
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits::default()
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        let key = Bytes::copy_from_slice(key);
        Some(Box::new(MemoryChanges { shared: Arc::clone(&self.shared), key, seen: None }))
    }
}

impl Shared {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct MemoryReader(Arc<Shared>);

impl Reader for MemoryReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Ok(Box::new(MemoryView(self.0.content().clone())))
    }
}

#[derive(Debug)]
struct MemoryView(Content);

impl View for MemoryView {
    fn revision(&self) -> EngineRevision {
        self.0.revision
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>, EngineError> {
        Ok(self.0.values.get(key).cloned())
    }

    fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if from < to {
            _ = self
                .0
                .values
                .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
                .try_for_each(|(key, value)| each(key, value.clone()));
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Value)>, EngineError> {
        if from >= to {
            return Ok(None);
        }
        let mut range = self.0.values.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        Ok(range.next_back().map(|(key, value)| (key.clone(), value.clone())))
    }
}

#[derive(Debug)]
struct MemoryChanges {
    shared: Arc<Shared>,
    key: Bytes,
    /// The revision that wrote the key last, as of the last call.
    seen: Option<EngineRevision>,
}

impl Changes for MemoryChanges {
    fn wait(&mut self, timeout: Duration) -> Result<bool, EngineError> {
        let written = |content: &Content| content.values.get(&self.key).map(|value| value.revision);
        let seen = self.seen;
        let (content, _) = self
            .shared
            .committed
            .wait_timeout_while(self.shared.content(), timeout, |content| written(content) == seen)
            .unwrap_or_else(PoisonError::into_inner);
        self.seen = written(&content);
        Ok(self.seen != seen)
    }
}
