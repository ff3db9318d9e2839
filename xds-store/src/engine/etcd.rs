//! Keys in etcd, which several servers share.
//!
//! etcd keeps each write of a key until it is compacted, and does so by itself only if
//! `--auto-compaction-retention` is set. This engine never compacts, because other programs may need
//! the history of their keys; of the history of its own keys it reads the last seconds.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::Streaming;

use super::{Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, Reader, Value, View};

pub use address::{AddressError, EtcdAddress};
pub use client::{AccessError, EtcdAccess};

use client::{Client, text_of};

mod address;
mod client;
mod wire;

/// An engine on the keys of etcd below a prefix.
///
/// A call takes at most 5 s, or that for each member of which the connection is lost. It blocks, and
/// must not be made by a thread that runs tasks of tokio. The runtime has to have threads of its own
/// that run them.
#[derive(Debug)]
pub struct EtcdEngine {
    etcd: Arc<Etcd>,
    /// The outcome of the last commit is unknown, or etcd was not reached.
    is_suspect: bool,
}

/// What engine, readers and views share.
#[derive(Debug)]
struct Etcd {
    runtime: Handle,
    client: Client,
    prefix: String,
    limits: EngineLimits,
}

impl EtcdEngine {
    /// The engine at an address. Nothing is sent yet.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn new(runtime: Handle, address: EtcdAddress, access: &EtcdAccess) -> Result<Self, AccessError> {
        let client = Client::new(&address, access)?;
        let etcd = Etcd { runtime, client, prefix: address.prefix, limits: address.limits };
        Ok(Self { etcd: Arc::new(etcd), is_suspect: false })
    }
}

impl Engine for EtcdEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(EtcdReader(Arc::clone(&self.etcd)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let etcd = &self.etcd;
        // ST43.
        etcd.limits.check(batch)?;
        if self.is_suspect {
            // While etcd cannot be reached this fails as Unavailable, instead of a transaction with
            // an unknown outcome.
            self.view()?;
        }
        let result = etcd.runtime.block_on(etcd.client.transact(&etcd.transaction(batch)));
        self.is_suspect = matches!(result, Err(EngineError::Unknown(_) | EngineError::Unavailable(_)));
        let response = result?;
        if response.succeeded { Ok(revision_of(response.header)) } else { Err(EngineError::Conflict) }
    }

    fn limits(&self) -> EngineLimits {
        self.etcd.limits
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        let key = self.etcd.key(key);
        Some(Box::new(EtcdChanges { etcd: Arc::clone(&self.etcd), key, stream: None }))
    }
}

impl Etcd {
    fn key(&self, key: &[u8]) -> Bytes {
        [self.prefix.as_bytes(), key].concat().into()
    }

    fn transaction(&self, batch: &Batch) -> wire::TxnRequest {
        let compare = batch.compares.iter().map(|(key, revision)| wire::Compare {
            target: wire::MOD_REVISION,
            key: self.key(key),
            mod_revision: Some(revision.map_or(0, signed)),
        });
        let success = batch.writes.iter().map(|(key, value)| {
            let key = self.key(key);
            let operation = match value {
                Some(value) => wire::Operation::Put(wire::PutRequest { key, value: value.clone() }),
                None => wire::Operation::DeleteRange(wire::DeleteRangeRequest { key }),
            };
            wire::RequestOp { request: Some(operation) }
        });
        wire::TxnRequest { compare: compare.collect(), success: success.collect() }
    }
}

#[derive(Debug)]
struct EtcdReader(Arc<Etcd>);

impl Reader for EtcdReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let etcd = &self.0;
        // This read is linearizable: its revision has each commit that was answered before.
        let request =
            wire::RangeRequest { key: etcd.key(b""), count_only: true, ..wire::RangeRequest::default() };
        let response = etcd.runtime.block_on(etcd.client.read(&request))?;
        Ok(Box::new(EtcdView { etcd: Arc::clone(etcd), revision: revision_of(response.header) }))
    }
}

/// Reads at one revision of etcd, from any member.
#[derive(Debug)]
struct EtcdView {
    etcd: Arc<Etcd>,
    revision: EngineRevision,
}

impl EtcdView {
    fn read(&self, request: wire::RangeRequest) -> Result<wire::RangeResponse, EngineError> {
        let revision = signed(self.revision);
        let request = wire::RangeRequest { revision, serializable: true, ..request };
        self.etcd.runtime.block_on(self.etcd.client.read(&request))
    }

    /// The key without the prefix.
    fn found(&self, found: wire::KeyValue) -> (Bytes, Value) {
        let value = Value { bytes: found.value, revision: revision(found.mod_revision) };
        (found.key.slice(self.etcd.prefix.len()..), value)
    }
}

impl View for EtcdView {
    fn revision(&self) -> EngineRevision {
        self.revision
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>, EngineError> {
        let request = wire::RangeRequest { key: self.etcd.key(key), ..wire::RangeRequest::default() };
        Ok(self.read(request)?.kvs.pop().map(|found| self.found(found).1))
    }

    fn range(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], Value) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if from >= to {
            return Ok(());
        }
        let (mut key, range_end) = (self.etcd.key(from), self.etcd.key(to));
        let mut limit = FIRST_PAGE;
        loop {
            let range_end = range_end.clone();
            let response =
                self.read(wire::RangeRequest { key, range_end, limit, ..wire::RangeRequest::default() })?;
            let (mut read, mut bytes, mut last) = (0, 1, Bytes::new());
            for found in response.kvs {
                (read, bytes) = (read + 1, bytes + found.key.len() + found.value.len());
                last = found.key.clone();
                let (key, value) = self.found(found);
                if each(&key, value).is_break() {
                    return Ok(());
                }
            }
            if read == 0 || !response.more {
                return Ok(());
            }
            // The least key above the last one.
            key = [&*last, &[0]].concat().into();
            limit = i64::try_from(PAGE_BYTES * read / bytes).unwrap_or(PAGE).clamp(1, PAGE);
        }
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Value)>, EngineError> {
        if from >= to {
            return Ok(None);
        }
        let request = wire::RangeRequest {
            key: self.etcd.key(from),
            range_end: self.etcd.key(to),
            limit: 1,
            sort_order: wire::DESCENDING,
            ..wire::RangeRequest::default()
        };
        Ok(self.read(request)?.kvs.pop().map(|found| self.found(found)))
    }
}

/// A watch of one key.
struct EtcdChanges {
    etcd: Arc<Etcd>,
    key: Bytes,
    /// `None` before the first call and after an error.
    stream: Option<Streaming<wire::WatchResponse>>,
}

impl fmt::Debug for EtcdChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdChanges").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Changes for EtcdChanges {
    fn wait(&mut self, wait: Duration) -> Result<bool, EngineError> {
        let etcd = Arc::clone(&self.etcd);
        etcd.runtime.block_on(async {
            let Some(stream) = &mut self.stream else {
                self.stream = Some(etcd.client.watch(self.key.clone()).await?);
                // What changed before the watch began is not in it.
                return Ok(true);
            };
            match timeout(wait, stream.message()).await {
                Err(_elapsed) => Ok(false),
                Ok(Ok(Some(message))) if !message.canceled => Ok(!message.events.is_empty()),
                Ok(ended) => {
                    self.stream = None;
                    let error =
                        ended.err().map_or_else(|| "etcd ended the watch".into(), |status| text_of(&status));
                    Err(EngineError::Unavailable(error))
                }
            }
        })
    }
}

fn revision_of(header: Option<wire::ResponseHeader>) -> EngineRevision {
    revision(header.map_or(0, |header| header.revision))
}

/// etcd's revisions are above zero.
fn revision(of: i64) -> EngineRevision {
    EngineRevision(u64::try_from(of).unwrap_or_default())
}

fn signed(revision: EngineRevision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Keys of the first page of a range, of which each may be as large as a batch.
const FIRST_PAGE: i64 = 16;
/// Keys and bytes of a later page, of which each counts as large as the average of the last one.
const PAGE: i64 = 5_000;
const PAGE_BYTES: usize = 2 << 20;
