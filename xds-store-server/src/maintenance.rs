//! The gRPC service Maintenance.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::Stream;
use futures_util::stream::unfold;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::maintenance_server::Maintenance;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::backup::{Backup, BackupError, History};
use xds_store::commit::Draft;
use xds_store::forgotten::FORGOTTEN_TYPE;
use xds_store::key::RecordKey;
use xds_store::read::{ConflictsPage, ConflictsQuery, Reads};
use xds_store::record::PROBE_TYPE;

use crate::access::Caller;
use crate::config::ApiConfig;
use crate::listing::PAGE_BYTES;
use crate::peers::PeersStatus;
use crate::reading::{Reading, failed, permits, printed};
use crate::service::taken;
use crate::status::{exceeds, invalid, lacks, of_engine, of_refused, refusal};

/// The service Maintenance of one running store.
#[derive(Debug)]
pub(crate) struct MaintenanceService {
    reading: Reading,
    config: ApiConfig,
    backups: Arc<Semaphore>,
    probe: tokio::sync::Mutex<()>,
}

impl MaintenanceService {
    pub(crate) fn new(reading: Reading, config: ApiConfig) -> Self {
        Self { reading, config, backups: permits(BACKUPS), probe: tokio::sync::Mutex::default() }
    }

    /// ST59: writes, reads and deletes a record.
    async fn probe(&self, caller: &Caller) -> Result<prost_types::Duration, Status> {
        let _one_at_a_time = self.probe.lock().await;
        let began = Instant::now();
        let standing = self.reading.standing();
        let key = proto::Key { type_url: PROBE_TYPE.into(), name: "probe".into(), when: String::new() };
        let parsed = RecordKey::parse(&key).map_err(|error| Status::internal(error.to_string()))?;
        let content = proto::Content::default();
        let put = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
        self.commit(caller, &key, put, "probe").await?;
        let read = move |reads: &Reads<'_>| match reads.get(&parsed, 0) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Status::data_loss("the probe record was committed and cannot be read")),
            Err(error) => Err(failed(&error, &standing)),
        };
        self.reading.local(read).await?;
        self.commit(caller, &key, proto::change::Act::Delete(proto::Delete::default()), "probe").await?;
        prost_types::Duration::try_from(began.elapsed()).map_err(|error| Status::internal(error.to_string()))
    }

    async fn commit(
        &self,
        caller: &Caller,
        key: &proto::Key,
        act: proto::change::Act,
        message: &str,
    ) -> Result<(), Status> {
        let change = proto::Change { key: Some(key.clone()), condition: None, act: Some(act) };
        let request =
            proto::CommitRequest { changes: vec![change], message: message.into(), ..Default::default() };
        let refused = |refused| of_refused(refused, &self.reading.standing(), caller);
        let draft = Draft::parse(request, caller.client.identity()).map_err(refused)?;
        self.reading.store.commit(draft).await.map(|_| ()).map_err(refused)
    }
}

type Parts = Pin<Box<dyn Stream<Item = Result<proto::BackupResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    type BackupStream = Parts;

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        let (caller, request) = taken(request)?;
        if !caller.rights.operate && !caller.rights.inspect {
            return Err(lacks("inspect", None, "the status needs the right to inspect or to operate"));
        }
        let probe_time = match request.probe {
            true if !caller.rights.operate => {
                return Err(lacks("operate", None, "a probe writes, so it needs the right to operate"));
            }
            true => Some(self.probe(&caller).await?),
            false => None,
        };
        let standing = self.reading.standing();
        let head = &standing.head;
        let limits =
            [("watches", self.config.watches_limit), ("request_bytes", self.config.request_bytes_limit)];
        let limits = limits.map(|(name, limit)| (name.to_owned(), limit as u64));
        let source = self.config.additions.clone();
        let added = blocking(move || Ok(source.get())).await?;
        let alarm = self.reading.store.alarm().map(|alarm| alarm.to_string());
        let peers = self.reading.store.peers().map(|peers| (*peers).clone());
        let own = || BTreeMap::from([(head.node.clone(), head.counter)]);
        let alone = || PeersStatus { clock: own(), ..PeersStatus::default() };
        let PeersStatus { clock, peers, regions, fetching, awaited, alarms: of_peers, .. } =
            peers.unwrap_or_else(alone);
        let alarms = alarm.into_iter().chain(of_peers).chain(added.alarms);
        Ok(Response::new(proto::StatusResponse {
            condition: standing.condition.into(),
            reason: standing.reason.clone(),
            cluster: head.cluster.clone(),
            node: standing.head.node.clone(),
            region: head.region.clone(),
            is_replica: head.is_replica,
            engine: self.config.engine.clone(),
            build: self.config.build.clone(),
            format: head.format,
            revision: printed(&standing, standing.revision()),
            floor: printed(&standing, standing.head.floor),
            clock,
            peers,
            records: standing.records as u64,
            tombstones: standing.tombstones as u64,
            limits: limits.into(),
            probe_time,
            size_bytes: added.size_bytes.unwrap_or_default(),
            last_backup_at: added.last_backup_at.map(Into::into),
            alarms: alarms.map(|alarm| line(&alarm)).collect(),
            regions,
            fetching,
            awaited,
        }))
    }

    async fn compact(
        &self,
        request: Request<proto::CompactRequest>,
    ) -> Result<Response<proto::CompactResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_operate(&caller, "a compaction")?;
        if request.shrink {
            let message =
                "`shrink`: this server cannot return space of a store that it serves; leave it unset";
            return Err(Status::unimplemented(message));
        }
        let upto = match request.revision.is_empty() {
            true => None,
            false => {
                let parse = move |reads: &Reads<'_>| {
                    let upto = reads.parse(&request.revision);
                    let upto = upto.and_then(|upto| reads.check_written(upto).map(|()| upto));
                    upto.map_err(|error| invalid("revision", error.to_string()))
                };
                Some(self.reading.local(parse).await?)
            }
        };
        let before = self.reading.standing().head.floor;
        let refused = |refused| of_refused(refused, &self.reading.standing(), &caller);
        let floor = self.reading.store.compact(upto).await.map_err(refused)?;
        if upto.is_some_and(|upto| upto > floor) {
            return Err(keeps(&self.reading, floor));
        }
        Ok(Response::new(proto::CompactResponse {
            floor: self.reading.printed(floor),
            forgotten_revisions: floor.saturating_sub(before),
            freed_bytes: 0,
        }))
    }

    async fn backup(&self, request: Request<proto::BackupRequest>) -> Result<Response<Parts>, Status> {
        let (caller, request) = taken(request)?;
        check_operate(&caller, "a backup")?;
        let permit = Arc::clone(&self.backups).try_acquire_owned();
        let permit = permit.map_err(|_| exceeds("backups", "", BACKUPS, BACKUPS + 1))?;
        let history = if request.without_history { History::LeftOut } else { History::Whole };
        let store = self.reading.store.clone();
        let backup = blocking(move || {
            let view = store.view().map_err(|error| of_engine(&error))?;
            Backup::new(view, history).map_err(|error| of_backup(&error))
        });
        let backup = backup.await?;
        let revision = self.reading.printed(backup.header().head.revision);
        Ok(Response::new(parts(backup, permit, revision)))
    }

    async fn conflicts(
        &self,
        request: Request<proto::ConflictsRequest>,
    ) -> Result<Response<proto::ConflictsResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_operate(&caller, "the conflict journal")?;
        let before = match &*request.before {
            "" => None,
            text => Some(text.parse().map_err(|_| invalid("before", "before is not that of a page"))?),
        };
        let limit = match request.limit {
            0 => CONFLICTS_DEFAULT,
            limit => limit.min(CONFLICTS_LIMIT) as usize,
        };
        let standing = self.reading.standing();
        let page = move |reads: &Reads<'_>| {
            let may_read = &|key: &RecordKey| caller.may_read(key);
            let query = ConflictsQuery { before, may_read, limit, limit_bytes: PAGE_BYTES };
            reads.conflicts(query).map_err(|error| failed(&error, &standing))
        };
        let ConflictsPage { conflicts, next } = self.reading.local(page).await?;
        let next = next.map_or_else(String::new, |next| next.to_string());
        Ok(Response::new(proto::ConflictsResponse { conflicts, next }))
    }

    async fn forget(
        &self,
        request: Request<proto::ForgetRequest>,
    ) -> Result<Response<proto::ForgetResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_operate(&caller, "to forget a node")?;
        if request.node.is_empty() {
            return Err(invalid("node", "node is empty"));
        }
        let why = Why::Invalid(proto::Invalid { field: "node".to_owned() });
        if request.node == self.reading.standing().head.node {
            let message = "this is the node of this server: stop it first, and ask another node";
            return Err(refusal(Code::FailedPrecondition, message, None, why));
        }
        let proto::ForgetRequest { node, force } = request;
        let Some(forgetting) = self.reading.store.forgetting(&node).await else {
            return Err(refusal(Code::NotFound, format!("this store knows no node {node:?}"), None, why));
        };
        let refused = |message| Err(refusal(Code::FailedPrecondition, message, None, why));
        let answers = |peer: &proto::PeerStatus| peer.node == node && peer.is_up;
        if !force && self.reading.store.peers().is_some_and(|peers| peers.peers.iter().any(answers)) {
            return refused(format!("the node {node:?} answers: stop it first, or use --force"));
        }
        // What only the forgotten node has is lost.
        if !force && !forgetting.lacking.is_empty() {
            let lacking = forgetting.lacking.join(", ");
            return refused(format!("{lacking} lacks entries of {node:?}, which would be lost: use --force"));
        }
        let counter = forgetting.counter;
        let payload = proto::ForgottenNode { at: Some(SystemTime::now().into()), counter }.encode_to_vec();
        let content = Some(proto::Content { payload: payload.into(), ..Default::default() });
        let put = proto::change::Act::Put(proto::Put { content, ..Default::default() });
        let key = proto::Key { type_url: FORGOTTEN_TYPE.into(), name: node, when: String::new() };
        self.commit(&caller, &key, put, "forget").await?;
        // Deleted records are forgotten once the other nodes have the record.
        Ok(Response::new(proto::ForgetResponse { counter, freed_tombstones: 0 }))
    }
}

/// ST26, SR60: a compaction up to a certain revision stopped at what the store keeps for now.
fn keeps(reading: &Reading, floor: u64) -> Status {
    let forgotten = match floor {
        0 => "no revision is forgotten".to_owned(),
        floor => format!("revisions up to {} are forgotten", reading.printed(floor)),
    };
    let message = format!(
        "{forgotten}; the store keeps the next one for now: it was current in the last 5 minutes, or a node that was \
         heard in the last 24 hours lacks it"
    );
    let why = Why::Invalid(proto::Invalid { field: "revision".to_owned() });
    refusal(Code::FailedPrecondition, message, None, why)
}

/// ST72: one line for each alarm, whatever its text quotes.
fn line(text: &str) -> String {
    let words = text.split(|letter: char| letter.is_whitespace() || letter.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    xds_core::shortened(&line, ALARM_LIMIT_BYTES).into_owned()
}

fn check_operate(caller: &Caller, what: &str) -> Result<(), Status> {
    if caller.rights.operate {
        return Ok(());
    }
    Err(lacks("operate", None, format!("{what} needs the right to operate")))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn of_backup(error: &BackupError) -> Status {
    match error {
        BackupError::Damaged(damaged) => Status::data_loss(damaged.to_string()),
        BackupError::Engine(error) => of_engine(error),
        error => Status::internal(error.to_string()),
    }
}

/// The parts of a backup, which are read while the client takes them.
fn parts(backup: Backup, permit: OwnedSemaphorePermit, revision: String) -> Parts {
    let records = backup.header().records;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let (mut backup, mut patience) = (Some(backup), PART_WAIT);
        while let Some(mut read) = backup.take() {
            let next = blocking(move || Ok((read.next(), read))).await;
            let (part, read) = match next {
                Ok((Some(part), read)) => (part.map_err(|error| of_backup(&error)), read),
                Ok((None, _)) => return,
                Err(status) => {
                    _ = sender.send(Err(status)).await;
                    return;
                }
            };
            let is_error = part.is_err();
            // ST45: a client that reads nothing, or little, would keep what the view has in the engine.
            let began = tokio::time::Instant::now();
            let is_sent = timeout(patience, sender.send(part)).await.is_ok_and(|sent| sent.is_ok());
            patience = (patience + PART_TIME).saturating_sub(began.elapsed()).min(PART_WAIT);
            backup = (is_sent && !is_error).then_some(read);
        }
    });
    Box::pin(unfold(Some(receiver), move |receiver| {
        let revision = revision.clone();
        async move {
            let mut receiver = receiver?;
            let Some(part) = receiver.recv().await else {
                return Some((Err(Status::aborted(TOO_SLOW)), None));
            };
            let part = part.map(|part| proto::BackupResponse {
                data: part.data,
                records_done: part.entries_done.min(records),
                records,
                revision: part.digest.map_or_else(String::new, |_| revision),
                digest: part.digest.map_or_else(Default::default, |digest| digest.to_vec().into()),
            });
            let goes_on = part.as_ref().is_ok_and(|part| part.digest.is_empty());
            Some((part, goes_on.then_some(receiver)))
        }
    }))
}

/// The conflicts of a page, unless the request says another number, and the most of them.
const CONFLICTS_DEFAULT: usize = 50;
const CONFLICTS_LIMIT: u32 = 1_000;

/// The longest line of an alarm.
const ALARM_LIMIT_BYTES: usize = 1024;

/// How long a client may not read a part, and may be behind the time of all parts.
const PART_WAIT: Duration = Duration::from_secs(60);
/// The time for each part.
const PART_TIME: Duration = Duration::from_secs(4);
const TOO_SLOW: &str = "the client read less than 256 KiB of the backup a second: let the server write one \
                        (`xds serve --backup-dir`), and copy that";

/// The most backups at a time: each one keeps a view of the engine, and the engine keeps all that
/// the view has.
const BACKUPS: usize = 2;

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use xds_store::engine::{Engine as _, MemoryEngine};
    use xds_store::store::{Identity, Store};

    use super::*;
    use crate::config::StoreConfig;
    use crate::handle::StoreHandle;

    /// The bytes that a client gets which waits before each part, and the error.
    async fn read_slowly(store: &StoreHandle, pause: Duration) -> (usize, Option<Status>) {
        let backup = Backup::new(store.view().unwrap(), History::Whole).unwrap();
        let permit = permits(1).try_acquire_owned().unwrap();
        let (mut parts, mut bytes) = (parts(backup, permit, String::new()), 0);
        loop {
            tokio::time::sleep(pause).await;
            match parts.next().await {
                None => return (bytes, None),
                Some(Err(status)) => return (bytes, Some(status)),
                Some(Ok(part)) => bytes += part.data.len(),
            }
        }
    }

    /// The backup has a view of the engine, which keeps all that commits replace meanwhile.
    #[tokio::test(start_paused = true)]
    async fn st45_a_client_that_reads_a_backup_too_slowly_is_not_waited_for() {
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init(&Identity::default())).unwrap();
        let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
        for number in 0..80_u8 {
            // It cannot be compressed.
            let mut payload = vec![0; 500_000];
            blake3::Hasher::new().update(&[number]).finalize_xof().fill(&mut payload);
            let key = proto::Key { type_url: "t/T".into(), name: number.to_string(), when: String::new() };
            let content = proto::Content { payload: payload.into(), ..Default::default() };
            let put = proto::Put { content: Some(content), ..Default::default() };
            let act = Some(proto::change::Act::Put(put));
            let changes = vec![proto::Change { key: Some(key), act, condition: None }];
            let request = proto::CommitRequest { changes, ..Default::default() };
            store.commit(Draft::parse(request, "token:me".into()).unwrap()).await.unwrap();
        }
        let (bytes, error) = read_slowly(&store, Duration::from_secs(3)).await;
        assert!(bytes > 40_000_000 && error.is_none(), "{bytes} {error:?}");
        // 60 s and 4 s for each part are over after about 10 parts.
        let (bytes, error) = read_slowly(&store, Duration::from_secs(10)).await;
        assert!((8..16).contains(&(bytes >> 20)), "{bytes}");
        assert_eq!(error.unwrap().message(), TOO_SLOW);
        // Each part comes within 60 s.
        let (bytes, error) = read_slowly(&store, Duration::from_secs(59)).await;
        assert!(bytes >> 20 <= 3 && error.is_some(), "{bytes}");
    }
}
