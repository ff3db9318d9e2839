//! Writes a backup into an empty engine (ST46).

use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::backup::{BackupReader, ReadError};
use crate::checked;
use crate::engine::{Batch, Engine, EngineError, EngineLimits, EngineRevision, OPERATION_BYTES};
use crate::key::stored;
use crate::log::{Head, StoredOrigin};

/// Makes the store of a backup in an empty engine. Blocks until it is there.
///
/// Reads the whole backup twice: nothing is written before all of it is verified. Until the last
/// batch the engine has a head that no store can be loaded from, so what a crash leaves is not taken
/// for a store. The store gets a new node id (SR31): the revisions of the old one are those of
/// another store. Calls `progress` now and then.
///
/// # Errors
/// See [`RestoreError`]. After [`RestoreError::Engine`] the engine may have a part of the store,
/// which has to be removed before the next attempt.
pub fn restore(
    backup: &mut (impl Read + Seek),
    engine: &mut dyn Engine,
    ids: &NewIds,
    progress: &mut dyn FnMut(Progress),
) -> Result<Head, RestoreError> {
    let reader = rewound(backup)?;
    let (header, limits) = (reader.header().clone(), engine.limits());
    let mut entries_done = 0;
    let mut report = |step, entries_done| {
        progress(Progress { step, entries_done, entries: header.entries });
    };
    report(Step::Verify, 0);
    for entry in reader {
        let (key, value) = entry?;
        if value.len() > limits.value_bytes || size_of_write(&key, &value) > room(limits).bytes {
            return Err(RestoreError::TooLarge { key, found: value.len() });
        }
        entries_done += 1;
        if entries_done % REPORT_EVERY == 0 {
            report(Step::Verify, entries_done);
        }
    }
    let mut head = header.head.clone();
    head.former_nodes.push(std::mem::replace(&mut head.node, ids.node.clone()));
    // SR31: peers may lack what this store has. SR32: those of the old cluster get nothing of it.
    (head.owes_reissue, head.owes_log) = (ids.cluster.is_none(), false);
    head.hear_again();
    if let Some(cluster) = &ids.cluster {
        head.cluster.clone_from(cluster);
    }
    // The numbers of another origin. Those of the backup are complete up to here (SR9).
    let former = stored::origin(&header.head.node);
    let mut of_former = StoredOrigin {
        counter: std::mem::take(&mut head.counter),
        chain: std::mem::take(&mut head.chain),
        region: head.region.clone(),
        ..StoredOrigin::default()
    };
    let begun = begin(engine, &head)?;

    let batch = || Batch { compares: vec![(stored::HEAD.into(), Some(begun))], writes: Vec::new() };
    let (mut pending, mut pending_bytes) = (batch(), 0);
    let operations = room(limits).operations.min(BATCH_OPERATIONS);
    let bytes = room(limits).bytes.min(BATCH_BYTES);
    entries_done = 0;
    report(Step::Write, 0);
    for entry in rewound(backup)? {
        let (key, value) = entry?;
        if key == former {
            let stored: StoredOrigin = checked::decode(&key, value).map_err(ReadError::Value)?;
            let StoredOrigin { floor, floor_chain, deletion_floor, .. } = stored;
            of_former = StoredOrigin { floor, floor_chain, deletion_floor, ..of_former };
            entries_done += 1;
            continue;
        }
        // The nodes of the old cluster never say again what they have.
        if ids.cluster.is_some() && stored::parse_node(&key).is_some() {
            entries_done += 1;
            continue;
        }
        let size = size_of_write(&key, &value);
        let is_full = pending.writes.len() == operations || pending_bytes + size > bytes;
        if is_full && !pending.writes.is_empty() {
            engine.commit(&std::mem::replace(&mut pending, batch()))?;
            pending_bytes = 0;
            report(Step::Write, entries_done);
        }
        pending_bytes += size;
        pending.writes.push((key, Some(value)));
        entries_done += 1;
    }
    if of_former.counter > 0 {
        let value = checked::encode(&former, &of_former);
        pending.writes.push((former, Some(value)));
    }
    pending.writes.push((stored::HEAD.into(), Some(checked::encode(stored::HEAD, &head))));
    engine.commit(&pending)?;
    report(Step::Write, entries_done);
    Ok(head)
}

/// The ids of a restored store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewIds {
    /// The id of its node, chosen at random.
    pub node: String,
    /// The id of its cluster, chosen at random, if it shall be a new cluster, which nodes of the old
    /// one cannot join. `None`: that of the backup.
    pub cluster: Option<String>,
}

/// How far a restore is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What it does.
    pub step: Step,
    /// Entries of the backup that this step has finished with.
    pub entries_done: u64,
    /// All entries of the backup.
    pub entries: u64,
}

/// A step of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Verifies the backup.
    Verify,
    /// Writes it into the engine.
    Write,
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The backup cannot be used. Nothing was written, unless it changed during the restore.
    #[error(transparent)]
    Backup(#[from] ReadError),
    /// The engine is not empty. Nothing was written.
    #[error("the target is not empty{}", if *.is_incomplete { ": an earlier restore did not finish" } else { "" })]
    NotEmpty {
        /// Whether it has the remains of an earlier restore.
        is_incomplete: bool,
    },
    /// The engine takes no value of this size. Nothing was written.
    #[error("the value of {key:?} has {found} bytes, which the target does not take")]
    TooLarge {
        /// The key in the engine.
        key: Bytes,
        /// The size of the value.
        found: usize,
    },
    /// The engine refused. It may have a part of the store, which is not taken for a store.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The backup from its beginning.
fn rewound<R: Read + Seek>(backup: &mut R) -> Result<BackupReader<&mut R>, ReadError> {
    backup.seek(SeekFrom::Start(0)).map_err(ReadError::Io)?;
    BackupReader::new(backup)
}

/// Writes the head that marks the engine as incomplete.
fn begin(engine: &mut dyn Engine, head: &Head) -> Result<EngineRevision, RestoreError> {
    let view = engine.view()?;
    let mut is_empty = true;
    view.range(stored::ALL.0, stored::ALL.1, &mut |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    })?;
    if !is_empty {
        let found = view.get(stored::HEAD)?;
        let found = found.and_then(|value| checked::decode::<Head>(stored::HEAD, value.bytes).ok());
        return Err(RestoreError::NotEmpty { is_incomplete: found.is_some_and(|head| head.is_incomplete) });
    }
    let incomplete = Head { is_incomplete: true, ..head.clone() };
    let first = Batch {
        compares: vec![(stored::HEAD.into(), None)],
        writes: vec![(stored::HEAD.into(), Some(checked::encode(stored::HEAD, &incomplete)))],
    };
    engine.commit(&first).map_err(|error| match error {
        EngineError::Conflict => RestoreError::NotEmpty { is_incomplete: true },
        other => other.into(),
    })
}

/// What one batch takes beside the head, its comparison, and the origin that the store was before.
fn room(limits: EngineLimits) -> EngineLimits {
    EngineLimits {
        operations: limits.operations.saturating_sub(3),
        bytes: limits.bytes.saturating_sub(HEAD_BYTES),
        ..limits
    }
}

fn size_of_write(key: &Bytes, value: &Bytes) -> usize {
    key.len() + value.len() + OPERATION_BYTES
}

/// More than a head has with its key.
const HEAD_BYTES: usize = 4 << 10;

/// A batch has at most so many entries and bytes, unless a single entry has more.
const BATCH_OPERATIONS: usize = 4_096;
const BATCH_BYTES: usize = 8 << 20;

const REPORT_EVERY: u64 = 10_000;
