//! Keys in memory: for tests, and for programs that need no durability.

use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use rpds::RedBlackTreeMapSync;

use super::{Batch, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};

/// An engine that forgets everything when it and its readers are dropped.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    content: Arc<RwLock<Content>>,
}

/// A clone shares all that it does not change, so a view costs no copy of the keys.
#[derive(Debug, Default, Clone)]
struct Content {
    revision: EngineRevision,
    values: RedBlackTreeMapSync<Bytes, Value>,
}

impl Engine for MemoryEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(MemoryReader(Arc::clone(&self.content)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
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
        Ok(revision)
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits { operations: usize::MAX, bytes: usize::MAX, value_bytes: usize::MAX }
    }
}

#[derive(Debug)]
struct MemoryReader(Arc<RwLock<Content>>);

impl Reader for MemoryReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let content = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Box::new(MemoryView(content)))
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
}
