//! Keys in a file of redb: one sync for each batch.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::{BufMut, Bytes, BytesMut};
use redb::{
    Database, DatabaseError, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError,
};

use super::{Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};

/// An engine on one file, which one process at a time can open (ST3).
///
/// After an error of the file system it is [`Broken`](EngineError::Broken): a repeated sync may
/// report success although data is lost (ST21).
#[derive(Debug)]
pub struct RedbEngine {
    database: Shared,
    revision: EngineRevision,
}

/// The database, with the readers; `None` after the engine was dropped, so that no reader keeps the
/// file locked.
type Shared = Arc<RwLock<Option<Database>>>;

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
        Self::of(Database::builder().create(path).map_err(OpenError::from)?)
    }

    /// The same on something else than a file: for tests that inject faults.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn on_backend(backend: impl StorageBackend) -> Result<Self, OpenError> {
        Self::of(Database::builder().create_with_backend(backend).map_err(OpenError::from)?)
    }

    fn of(database: Database) -> Result<Self, OpenError> {
        let revision = (|| -> Result<EngineRevision, redb::Error> {
            let transaction = database.begin_read()?;
            match transaction.open_table(TABLE) {
                Ok(table) => Ok(last_revision(&table)?),
                // The first commit makes the table.
                Err(TableError::TableDoesNotExist(_)) => Ok(EngineRevision::default()),
                Err(error) => Err(error.into()),
            }
        })();
        let revision = revision.map_err(OpenError::of)?;
        Ok(Self { database: Arc::new(RwLock::new(Some(database))), revision })
    }

    fn try_commit(&self, batch: &Batch) -> Result<EngineRevision, CommitFailure> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let transaction = database.begin_write().map_err(redb::Error::from)?;
        let revision = EngineRevision(self.revision.0 + 1);
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
        transaction.commit().map_err(|error| CommitFailure::AtCommit(error.into()))?;
        Ok(revision)
    }
}

impl Engine for RedbEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(RedbReader(Arc::clone(&self.database)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        self.revision = self.try_commit(batch).map_err(|failure| match failure {
            CommitFailure::Conflict => EngineError::Conflict,
            CommitFailure::Before(error) | CommitFailure::AtCommit(error) if is_full(&error) => {
                EngineError::Full
            }
            CommitFailure::Before(error) => broken(error),
            CommitFailure::AtCommit(error) => EngineError::Unknown(Box::new(error)),
        })?;
        Ok(self.revision)
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits { operations: usize::MAX, bytes: usize::MAX, value_bytes: VALUE_LIMIT_BYTES }
    }

    /// ST3: no other process has the file open.
    fn changes(&self, _key: &[u8]) -> Option<Box<dyn Changes>> {
        None
    }
}

impl Drop for RedbEngine {
    fn drop(&mut self) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[derive(Debug)]
struct RedbReader(Shared);

impl Reader for RedbReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let database = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = database.as_ref() else {
            return Err(EngineError::Unavailable(Box::new(redb::Error::DatabaseClosed)));
        };
        let opened = (|| -> Result<_, redb::Error> {
            match database.begin_read()?.open_table(TABLE) {
                Ok(table) => Ok((last_revision(&table)?, Some(table))),
                // The first commit makes the table.
                Err(TableError::TableDoesNotExist(_)) => Ok((EngineRevision::default(), None)),
                Err(error) => Err(error.into()),
            }
        })();
        let (revision, table) = opened.map_err(broken)?;
        Ok(Box::new(RedbView { table, revision }))
    }
}

/// Why a batch was not written, or perhaps not.
#[derive(Debug)]
enum CommitFailure {
    Conflict,
    /// The transaction was dropped, so nothing was written.
    Before(redb::Error),
    AtCommit(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for CommitFailure {
    fn from(error: E) -> Self {
        Self::Before(error.into())
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
        let found = table.get(key).map_err(|error| broken(error.into()))?;
        Ok(found.map(|value| unframed(value.value())))
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
        let entries = table.range(from..to).map_err(|error| broken(error.into()))?;
        for entry in entries {
            let (key, value) = entry.map_err(|error| broken(error.into()))?;
            if each(key.value(), unframed(value.value())).is_break() {
                break;
            }
        }
        Ok(())
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
    fn of(error: redb::Error) -> Self {
        let is_damage = match &error {
            redb::Error::Corrupted(_) => true,
            redb::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        if is_damage { Self::Damaged(Box::new(error)) } else { Self::Io(Box::new(error)) }
    }
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
    let redb::Error::Io(error) = error else { return false };
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

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("store");
/// The revision of the last commit. No key of the store is empty.
const REVISION: &[u8] = b"";
const REVISION_BYTES: usize = size_of::<u64>();
/// The library takes up to 3 GiB.
const VALUE_LIMIT_BYTES: usize = 1 << 30;
