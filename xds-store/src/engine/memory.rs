//! Keys in memory: for tests, and for programs that need no durability.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use bytes::Bytes;

use super::{Batch, Engine, EngineError, EngineLimits, EngineRevision, Value, View};

/// An engine that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    content: Arc<Content>,
}

#[derive(Debug, Default, Clone)]
struct Content {
    revision: EngineRevision,
    values: BTreeMap<Bytes, Value>,
}

impl Engine for MemoryEngine {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Ok(Box::new(MemoryView(Arc::clone(&self.content))))
    }

    /// Copies all keys if a view is in use.
    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let revision_of = |key| self.content.values.get(key).map(|value| value.revision);
        if batch.compares.iter().any(|(key, revision)| revision_of(key) != *revision) {
            return Err(EngineError::Conflict);
        }
        let content = Arc::make_mut(&mut self.content);
        content.revision.0 += 1;
        for (key, bytes) in &batch.writes {
            match bytes {
                Some(bytes) => {
                    let value = Value { bytes: bytes.clone(), revision: content.revision };
                    content.values.insert(key.clone(), value);
                }
                None => _ = content.values.remove(key),
            }
        }
        Ok(content.revision)
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits { operations: usize::MAX, bytes: usize::MAX, value_bytes: usize::MAX }
    }
}

#[derive(Debug)]
struct MemoryView(Arc<Content>);

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
