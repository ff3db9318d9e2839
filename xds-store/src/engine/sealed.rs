//! Encrypts contents on their way into an engine, and decrypts them on their way out (ST49).

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::{Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};
use crate::checked;
use crate::key::stored;
use crate::record::{Local, RecordState};
use crate::seal::{self, Seal, SealNonce};

/// An engine that keeps the contents of some types sealed. The store above it sees them in the
/// clear.
///
/// A [`Backup`](crate::backup::Backup) of its view has them sealed, too: it reads the values as they
/// are stored.
pub struct SealedEngine {
    engine: Box<dyn Engine>,
    seal: Arc<Seal>,
    seed: [u8; 32],
    /// How many nonces there were.
    nonces: u64,
}

impl SealedEngine {
    /// Seals what the store writes into an engine. The seed has to be random, and another one with
    /// each start: the nonces follow from it.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, seal: Seal, seed: [u8; 32]) -> Self {
        Self { engine, seal: Arc::new(seal), seed, nonces: 0 }
    }

    fn next_nonce(&mut self) -> SealNonce {
        self.nonces += 1;
        let hash = blake3::keyed_hash(&self.seed, &self.nonces.to_be_bytes());
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// The value to store; `None` if it stays as it is.
    fn sealed(&mut self, stored_key: &[u8], value: &Bytes) -> Option<Bytes> {
        let key = stored::parse_state(stored_key)?;
        if !self.seal.covers(&key) {
            return None;
        }
        let (open, local): (RecordState, Local) = checked::decode_both(stored_key, value.clone()).ok()?;
        let seal = Arc::clone(&self.seal);
        let sealed = seal.seal(&key, open, &mut || self.next_nonce());
        Some(checked::encode_both(stored_key, &sealed, &local))
    }
}

impl Engine for SealedEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(SealedReader { reader: self.engine.reader(), seal: Arc::clone(&self.seal) })
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let mut sealed = batch.clone();
        for (key, value) in &mut sealed.writes {
            let replaced = value.as_ref().and_then(|value| self.sealed(key, value));
            *value = replaced.or_else(|| value.take());
        }
        self.engine.commit(&sealed)
    }

    /// With room for what sealing adds.
    fn limits(&self) -> EngineLimits {
        let limits = self.engine.limits();
        // An engine that takes very many operations has no narrow limit of their bytes.
        let all = ADDED_BYTES * limits.operations.min(MANY);
        EngineLimits {
            bytes: limits.bytes.saturating_sub(all),
            value_bytes: limits.value_bytes.saturating_sub(ADDED_BYTES),
            ..limits
        }
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        self.engine.changes(key)
    }
}

#[derive(Debug)]
struct SealedReader {
    reader: Arc<dyn Reader>,
    seal: Arc<Seal>,
}

impl Reader for SealedReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Ok(Box::new(SealedView { view: self.reader.view()?, seal: Arc::clone(&self.seal) }))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.reader.free_bytes()
    }
}

#[derive(Debug)]
struct SealedView {
    view: Box<dyn View>,
    seal: Arc<Seal>,
}

impl SealedView {
    fn open(&self, stored_key: &[u8], value: Value) -> Result<Value, EngineError> {
        let Some(key) = stored::parse_state(stored_key) else { return Ok(value) };
        // What is damaged is found by those who read it.
        if !seal::is_sealed(&value.bytes) || checked::verify(stored_key, &value.bytes).is_err() {
            return Ok(value);
        }
        let decoded = checked::decode_both::<RecordState, Local>(stored_key, value.bytes.clone());
        let Ok((state, local)) = decoded else { return Ok(value) };
        let open = self.seal.open(&key, state)?;
        Ok(Value { bytes: checked::encode_both(stored_key, &open, &local), ..value })
    }
}

impl View for SealedView {
    fn revision(&self) -> EngineRevision {
        self.view.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>, EngineError> {
        self.view.get(key)?.map(|value| self.open(key, value)).transpose()
    }

    fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let mut failed = None;
        self.view.range(from, to, &mut |key, value| match self.open(key, value) {
            Ok(value) => each(key, value),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Value)>, EngineError> {
        let last = self.view.last(from, to)?;
        last.map(|(key, value)| Ok((key.clone(), self.open(&key, value)?))).transpose()
    }

    fn range_stored(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.view.range_stored(from, to, each)
    }
}

impl fmt::Debug for SealedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedEngine").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// More than sealing adds to the contents of one record: ids of keys, nonces, tags.
const ADDED_BYTES: usize = 512;
const MANY: usize = 1_000;
