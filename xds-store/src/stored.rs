//! Reads what the engine has, when a commit is judged.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;

use crate::checked::{self, Damaged};
use crate::engine::{EngineError, Reader, View};
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry};
use crate::looks;
use crate::record::{Local, RecordState};
use crate::rules::{FieldSource, RULE_TYPE, Rules};
use crate::seal::UnsealError;

/// The durable content of the engine, opened when it is first needed.
pub(crate) struct Stored<'a> {
    reader: &'a dyn Reader,
    view: OnceCell<Box<dyn View>>,
}

/// Why the engine's content cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// ST21: the head is not there, so the rest need not be there either.
    #[error(
        "somebody removed the keys of the store from its engine, and clients keep what they have: restore a backup \
         before the restart"
    )]
    Removed,
}

impl<'a> Stored<'a> {
    pub(crate) fn new(reader: &'a dyn Reader) -> Self {
        Self { reader, view: OnceCell::new() }
    }

    pub(crate) fn view(&self) -> Result<&dyn View, EngineError> {
        looks::look();
        if let Some(view) = self.view.get() {
            return Ok(&**view);
        }
        let view = self.reader.view()?;
        Ok(&**self.view.get_or_init(|| view))
    }

    /// How many bytes the disk has free, if that is known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.reader.free_bytes()
    }

    /// The state of a record as of the store revision that changed it.
    pub(crate) fn state(&self, key: &RecordKey, changed_at: u64) -> Result<RecordState, ReadError> {
        self.version(key, changed_at).map(|(state, _)| state)
    }

    /// The same, with what the store keeps with it.
    pub(crate) fn version(
        &self,
        key: &RecordKey,
        changed_at: u64,
    ) -> Result<(RecordState, Local), ReadError> {
        let at = stored::record(key, changed_at);
        // The log or the index has this version, so its absence is damage.
        let value = self.view()?.get(&at)?.ok_or_else(|| Damaged { key: at.clone() })?;
        let (state, local): (RecordState, Local) = checked::decode_both(&at, value.bytes)?;
        // ST49: another server of the store has keys that this one lacks.
        if state.is_sealed {
            return Err(EngineError::from(UnsealError::without_keys(key, &state)).into());
        }
        Ok((state, local))
    }

    /// The same; `None` if the version is forgotten.
    pub(crate) fn state_if_kept(
        &self,
        key: &RecordKey,
        changed_at: u64,
    ) -> Result<Option<RecordState>, ReadError> {
        self.get(&stored::record(key, changed_at))
    }

    /// What the store keeps with a version, and how many bytes were read for that; `None` if the version is
    /// forgotten.
    pub(crate) fn local_if_kept(
        &self,
        key: &RecordKey,
        changed_at: u64,
    ) -> Result<Option<(Local, usize)>, ReadError> {
        let at = stored::record(key, changed_at);
        let Some(value) = self.view()?.get(&at)? else { return Ok(None) };
        let bytes = value.bytes.len();
        Ok(Some((checked::decode(&at, value.bytes)?, bytes)))
    }

    /// The entry of a store revision; `None` if it is forgotten.
    pub(crate) fn entry(&self, revision: u64) -> Result<Option<LogEntry>, ReadError> {
        self.get(&stored::log(revision))
    }

    /// The head with the revision of the engine that wrote it.
    pub(crate) fn head(&self) -> Result<(Head, crate::engine::EngineRevision), ReadError> {
        let value = self.view()?.get(stored::HEAD)?.ok_or(ReadError::Removed)?;
        Ok((checked::decode(stored::HEAD, value.bytes)?, value.revision))
    }

    fn get<M: Message + Default>(&self, key: &[u8]) -> Result<Option<M>, ReadError> {
        let value = self.view()?.get(key)?;
        Ok(value.map(|value| checked::decode(key, value.bytes)).transpose()?)
    }
}

/// The reference rules that an engine has.
pub(crate) fn rules(view: &dyn View, fields: FieldSource) -> Result<Rules, ReadError> {
    let mut newest = BTreeMap::new();
    let (from, to) = stored::of_type(RULE_TYPE);
    view.range(&from, &to, &mut |stored_key, value| {
        if let Some((key, _)) = stored::parse_record(stored_key) {
            newest.insert(key, (Bytes::copy_from_slice(stored_key), value.bytes));
        }
        ControlFlow::Continue(())
    })?;
    let mut rules = Rules::new(fields);
    for (key, (stored_key, value)) in newest {
        rules.note(&key, &checked::decode(&stored_key, value)?);
    }
    Ok(rules)
}
