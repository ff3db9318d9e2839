//! Keys in a file of redb: one sync for each batch.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::{BufMut, Bytes, BytesMut};
use redb::{
    Database, DatabaseError, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError,
};

use disk::Disk;
use guard::guarded;

pub use guard::is_guarded;

use super::{Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};

mod disk;
mod guard;

/// An engine on one file, which one process at a time can open (ST3).
///
/// After an error of the file system the library refuses everything. The engine then opens a copy
/// of the last durable state for readers. With a full disk, the next commit for which there is room
/// opens the file again (ST22). After any other error the engine stays
/// [`Broken`](EngineError::Broken) (ST21). Damaged pages are errors, also where the library panics (ST47).
#[derive(Debug)]
pub struct RedbEngine {
    disk: Disk,
    database: Shared,
    revision: EngineRevision,
    condition: Condition,
}

/// The database, with the readers; `None` after the engine was dropped, so that no reader keeps the
/// file locked.
type Shared = Arc<RwLock<Option<Database>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Writable,
    /// ST22: the database is a copy for readers.
    Full,
    /// ST21: the same, until the process restarts.
    Broken,
}

/// Why a file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open (ST3).
    #[error("another process has the store open")]
    Locked,
    /// The content is damaged, or is no store (ST47).
    #[error("the file is damaged, or is not a store")]
    Damaged(#[source] Box<redb::Error>),
    /// The system refused.
    #[error("the file cannot be opened")]
    Io(#[source] Box<redb::Error>),
}

impl RedbEngine {
    /// Creates the file, or opens it if it exists.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let disk = Disk::open(path).map_err(OpenError::of_io)?.ok_or(OpenError::Locked)?;
        Self::of(disk)
    }

    /// Opens the file for readers alone. Nothing is written to it, not even to finish what a crash
    /// interrupted. Commits are refused.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_unchanged(path: &Path) -> Result<Self, OpenError> {
        let disk = Disk::open(path).map_err(OpenError::of_io)?.ok_or(OpenError::Locked)?;
        let opened = disk.frozen().map_err(OpenError::of_io).and_then(open_on);
        let (revision, database) = opened.inspect_err(|_| disk.close())?;
        let database = Arc::new(RwLock::new(Some(database)));
        Ok(Self { disk, database, revision, condition: Condition::Broken })
    }

    /// The same as [`open`](Self::open) on something else than a file: for tests that inject faults.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn on_backend(backend: impl StorageBackend) -> Result<Self, OpenError> {
        Self::of(Disk::of(backend, None).map_err(OpenError::of_io)?)
    }

    fn of(disk: Disk) -> Result<Self, OpenError> {
        let opened = open_on(disk.clone()).inspect_err(|_| disk.close())?;
        let (revision, database) = opened;
        let database = Arc::new(RwLock::new(Some(database)));
        Ok(Self { disk, database, revision, condition: Condition::Writable })
    }

    /// Opens a copy of the last durable state for readers, after a write of this revision failed.
    /// `Ok` if that commit is durable nevertheless.
    fn on_failure(
        &mut self,
        revision: EngineRevision,
        error: redb::Error,
    ) -> Result<EngineRevision, EngineError> {
        let is_full = is_full(&error) && !self.disk.has_failed_sync();
        self.condition = if is_full { Condition::Full } else { Condition::Broken };
        // Views of the old database fail from now on, instead of reading pages of a later commit.
        close(&self.database);
        let frozen = self.disk.frozen().map_err(OpenError::of_io).and_then(open_on);
        let Ok((durable, database)) = frozen else {
            self.condition = Condition::Broken;
            return Err(broken(error));
        };
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database);
        if durable == revision {
            self.revision = revision;
            return Ok(revision);
        }
        Err(if is_full { EngineError::Full } else { broken(error) })
    }

    /// ST22: opens the file again if there is room for a batch.
    fn leave_full(&mut self, batch: &Batch) -> Result<(), EngineError> {
        // Pages that the batch touches are copied, and those of the library's own trees.
        let room = 2 * batch.bytes() + ROOM_BYTES;
        if let Err(error) = self.disk.probe(room) {
            let is_full = is_full_io(&error);
            return Err(if is_full { EngineError::Full } else { EngineError::Unavailable(Box::new(error)) });
        }
        match open_on(self.disk.clone()) {
            Ok((revision, database)) if revision == self.revision => {
                *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database);
                self.condition = Condition::Writable;
                Ok(())
            }
            Ok(_) => {
                self.condition = Condition::Broken;
                Err(EngineError::Broken("the file has another commit than the one that was read".into()))
            }
            Err(OpenError::Io(error)) if is_full(&error) && !self.disk.has_failed_sync() => {
                Err(EngineError::Full)
            }
            Err(error) => {
                self.condition = Condition::Broken;
                Err(EngineError::Broken(Box::new(error)))
            }
        }
    }

    fn try_commit(&self, batch: &Batch) -> Result<EngineRevision, CommitFailure> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let transaction = database.begin_write().map_err(redb::Error::from)?;
        let revision = next(self.revision);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, expected) in &batch.compares {
                let found = table.get(&**key)?.map(|value| revision_of(value.value()));
                if found != *expected {
                    return Err(CommitFailure::Conflict);
                }
            }
            let mut framed = BytesMut::new();
            for (key, bytes) in &batch.writes {
                match bytes {
                    Some(bytes) => {
                        framed.clear();
                        framed.put_u64(revision.0);
                        framed.put_slice(bytes);
                        table.insert(&**key, &*framed)?;
                    }
                    None => _ = table.remove(&**key)?,
                }
            }
            table.insert(REVISION, revision.0.to_be_bytes().as_slice())?;
        }
        transaction.commit()?;
        Ok(revision)
    }
}

impl Engine for RedbEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(RedbReader { database: Arc::clone(&self.database), disk: self.disk.clone() })
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        self.limits().check(batch)?;
        match self.condition {
            Condition::Writable => {}
            Condition::Full => self.leave_full(batch)?,
            Condition::Broken => return Err(EngineError::Broken("an earlier write failed".into())),
        }
        match guarded(|| self.try_commit(batch)) {
            Ok(revision) => {
                self.revision = revision;
                Ok(revision)
            }
            Err(CommitFailure::Conflict) => Err(EngineError::Conflict),
            Err(CommitFailure::Refused(error)) => self.on_failure(next(self.revision), error),
        }
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits { value_bytes: VALUE_LIMIT_BYTES, ..EngineLimits::default() }
    }

    /// ST3: no other process has the file open.
    fn changes(&self, _key: &[u8]) -> Option<Box<dyn Changes>> {
        None
    }
}

impl Drop for RedbEngine {
    fn drop(&mut self) {
        close(&self.database);
        self.disk.close();
    }
}

#[derive(Debug)]
struct RedbReader {
    database: Shared,
    disk: Disk,
}

impl Reader for RedbReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = database.as_ref() else {
            return Err(EngineError::Unavailable(Box::new(redb::Error::DatabaseClosed)));
        };
        let opened = guarded(|| -> Result<_, redb::Error> {
            match database.begin_read()?.open_table(TABLE) {
                Ok(table) => Ok((last_revision(&table)?, Some(table))),
                // The first commit makes the table.
                Err(TableError::TableDoesNotExist(_)) => Ok((EngineRevision::default(), None)),
                Err(error) => Err(error.into()),
            }
        });
        let (revision, table) = opened.map_err(|error| match error {
            redb::Error::Corrupted(_) => EngineError::Corrupt { key: Bytes::from_static(REVISION) },
            error => EngineError::Unavailable(Box::new(error)),
        })?;
        Ok(Box::new(RedbView { table, revision }))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.disk.free_bytes()
    }
}

/// Why a batch was not written, or perhaps not.
#[derive(Debug)]
enum CommitFailure {
    Conflict,
    Refused(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for CommitFailure {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

#[derive(Debug)]
struct RedbView {
    /// `None` before the first commit.
    table: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    revision: EngineRevision,
}

impl View for RedbView {
    fn revision(&self) -> EngineRevision {
        self.revision
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>, EngineError> {
        let Some(table) = &self.table else { return Ok(None) };
        let found = guarded(|| Ok(table.get(key)?.map(|value| unframed(value.value()))));
        found.map_err(|error| unreadable(error, key))
    }

    fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let Some(table) = &self.table else { return Ok(()) };
        if from >= to {
            return Ok(());
        }
        let mut entries = guarded(|| table.range(from..to)).map_err(|error| unreadable(error, from))?;
        loop {
            let next = guarded(|| match entries.next().transpose()? {
                Some((key, value)) => {
                    _ = key.value();
                    Ok(Some((unframed(value.value()), key)))
                }
                None => Ok(None),
            });
            let Some((value, key)) = next.map_err(|error| unreadable(error, from))? else { break };
            if each(key.value(), value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Value)>, EngineError> {
        let Some(table) = self.table.as_ref().filter(|_| from < to) else { return Ok(None) };
        let last = guarded(|| {
            let last = table.range(from..to)?.next_back().transpose()?;
            Ok(last.map(|(key, value)| (Bytes::copy_from_slice(key.value()), unframed(value.value()))))
        });
        last.map_err(|error| unreadable(error, from))
    }
}

impl From<DatabaseError> for OpenError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::Locked,
            other => Self::of(other.into()),
        }
    }
}

impl OpenError {
    fn of_io(error: std::io::Error) -> Self {
        Self::of(redb::Error::Io(error))
    }

    fn of(error: redb::Error) -> Self {
        let is_damage = match &error {
            redb::Error::Corrupted(_) => true,
            redb::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        if is_damage { Self::Damaged(Box::new(error)) } else { Self::Io(Box::new(error)) }
    }
}

fn next(revision: EngineRevision) -> EngineRevision {
    EngineRevision(revision.0 + 1)
}

/// A database on a backend, with the revision of its last commit.
fn open_on(backend: impl StorageBackend) -> Result<(EngineRevision, Database), OpenError> {
    let mut builder = Database::builder();
    let database = guarded(|| builder.set_cache_size(CACHE_BYTES).create_with_backend(backend))?;
    let revision = guarded(|| -> Result<EngineRevision, redb::Error> {
        match database.begin_read()?.open_table(TABLE) {
            Ok(table) => Ok(last_revision(&table)?),
            // The first commit makes the table.
            Err(TableError::TableDoesNotExist(_)) => Ok(EngineRevision::default()),
            Err(error) => Err(error.into()),
        }
    });
    match revision {
        Ok(revision) => Ok((revision, database)),
        Err(error) => {
            close(&RwLock::new(Some(database)));
            Err(OpenError::of(error))
        }
    }
}

/// Closes a database, which writes to its file.
fn close(database: &RwLock<Option<Database>>) {
    let database = database.write().unwrap_or_else(PoisonError::into_inner).take();
    // What is damaged is not written, and what was committed is durable.
    _ = guarded(move || {
        drop(database);
        Ok::<_, StorageError>(())
    });
}

fn last_revision(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
) -> Result<EngineRevision, StorageError> {
    Ok(table.get(REVISION)?.map_or_else(EngineRevision::default, |value| revision_of(value.value())))
}

/// A stored value begins with the revision that wrote it.
fn revision_of(framed: &[u8]) -> EngineRevision {
    EngineRevision(framed.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
}

fn unframed(framed: &[u8]) -> Value {
    let bytes = framed.get(REVISION_BYTES..).unwrap_or_default();
    Value { bytes: Bytes::copy_from_slice(bytes), revision: revision_of(framed) }
}

fn is_full(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(error) if is_full_io(error))
}

fn is_full_io(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge
    )
}

fn broken(error: redb::Error) -> EngineError {
    EngineError::Broken(Box::new(error))
}

/// Why a view cannot read. After the engine opened the file again, another view can.
fn unreadable(error: StorageError, key: &[u8]) -> EngineError {
    match error {
        StorageError::DatabaseClosed | StorageError::PreviousIo => EngineError::Compacted,
        StorageError::Corrupted(_) => EngineError::Corrupt { key: Bytes::copy_from_slice(key) },
        error => EngineError::Unavailable(Box::new(error)),
    }
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("store");
/// The revision of the last commit. No key of the store is empty.
const REVISION: &[u8] = b"";
const REVISION_BYTES: usize = size_of::<u64>();
/// The library takes up to 3 GiB.
const VALUE_LIMIT_BYTES: usize = 1 << 30;
/// Of the library, for pages; the store keeps in memory what it reads often.
const CACHE_BYTES: usize = 64 << 20;
/// What a small commit takes at most: the file grows at least by this.
const ROOM_BYTES: usize = 1 << 20;
