//! The gRPC service Peer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::peer_server::Peer;
use xds_store::commit::Refused;
use xds_store::engine::View;
use xds_store::key::RecordKey;
use xds_store::read::{Reads, SnapshotError};
use xds_store::replica::{PEERS, Refusal};
use xds_store::store::{RegionRequest, RegionResponse};

use crate::access::{Caller, Replicate};
use crate::handle::StoreHandle;
use crate::peers::{Answer, PeerMessage, Pulled};
use crate::queue::Message;
use crate::reading::{Reading, failed, permits};
use crate::service::taken;
use crate::status::{code_of, exceeds, invalid_key, lacks, with_detail, with_violations};

/// The service Peer of one running store.
#[derive(Debug)]
pub(crate) struct PeerService {
    store: StoreHandle,
    reading: Reading,
    pulls: Arc<Semaphore>,
    digests: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
}

impl PeerService {
    pub(crate) fn new(store: StoreHandle) -> Self {
        let reading = Reading::new(store.clone());
        let (pulls, digests, snapshots) = (permits(PEERS), permits(1), permits(SNAPSHOTS));
        Self { store, reading, pulls, digests, snapshots }
    }

    /// Gives a call to the machine, and waits for its answer.
    async fn ask<T>(&self, message: impl FnOnce(Answer<T>) -> PeerMessage) -> Result<T, Status> {
        let (sender, receiver) = oneshot::channel();
        self.store.send(Message::Peer(message(sender)));
        match receiver.await {
            Ok(answer) => answer.map_err(refused),
            Err(_) if self.store.peers().is_none() => {
                Err(Status::unimplemented("this server has no peers: it does not replicate"))
            }
            Err(_) => Err(Status::unavailable("the store cannot answer now: call again")),
        }
    }

    /// Gives a call of another region to the store, and waits until it is durable.
    async fn ask_region(&self, node: String, request: RegionRequest) -> Result<RegionResponse, Status> {
        // A forgotten node is refused (SR33).
        self.ask(|answer| PeerMessage::Look(node, answer)).await?;
        let (sender, receiver) = oneshot::channel();
        self.store.send(Message::Peer(PeerMessage::Region(request, sender)));
        match receiver.await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Refused { code, violations, message })) => {
                Err(with_violations(code_of(code), message, violations))
            }
            Err(_) => Err(Status::unavailable("the store cannot answer now: call again")),
        }
    }
}

type Parts = Pin<Box<dyn Stream<Item = Result<proto::PullResponse, Status>> + Send>>;
type Pages = Pin<Box<dyn Stream<Item = Result<proto::SnapshotResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for PeerService {
    type PullStream = Parts;
    type SnapshotStream = Pages;

    async fn hello(
        &self,
        request: Request<proto::HelloRequest>,
    ) -> Result<Response<proto::HelloResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_region(&caller, &request.region)?;
        self.ask(|answer| PeerMessage::Hello(request, answer)).await.map(Response::new)
    }

    async fn pull(&self, request: Request<proto::PullRequest>) -> Result<Response<Parts>, Status> {
        let (caller, request) = taken(request)?;
        check_region(&caller, &request.region)?;
        let permit = Arc::clone(&self.pulls).try_acquire_owned();
        let permit = permit.map_err(|_| exceeds("pulls", "", PEERS, PEERS + 1))?;
        let pulled = self.ask(|answer| PeerMessage::Pull(request, answer)).await?;
        Ok(Response::new(parts(self.store.clone(), pulled, permit)))
    }

    async fn nudge(
        &self,
        request: Request<proto::NudgeRequest>,
    ) -> Result<Response<proto::NudgeResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_replicate(&caller)?;
        self.ask(|answer| PeerMessage::Nudge(request, answer)).await.map(Response::new)
    }

    async fn snapshot(
        &self,
        request: Request<proto::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let (caller, request) = taken(request)?;
        check_region(&caller, &request.region)?;
        if !request.name_prefixes.is_empty() || !request.buckets.is_empty() {
            return Err(later("a part of a snapshot"));
        }
        let permit = Arc::clone(&self.snapshots).try_acquire_owned();
        let permit = permit.map_err(|_| exceeds("snapshots", "", SNAPSHOTS, SNAPSHOTS + 1))?;
        let resumed = (request.region.clone(), request.resume.clone());
        let view = self.ask(|answer| PeerMessage::Snapshot(request, answer)).await?;
        Ok(Response::new(pages(self.store.clone(), view, resumed, permit)))
    }

    async fn peek(
        &self,
        request: Request<proto::PeekRequest>,
    ) -> Result<Response<proto::PeekResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_region(&caller, &request.region)?;
        let count = request.keys.len();
        if count > PEEKED {
            return Err(exceeds("keys", "", PEEKED, count));
        }
        let key = |key| RecordKey::parse(&key).map_err(|error| invalid_key(key, &error));
        let keys: Vec<_> = request.keys.into_iter().map(key).collect::<Result<_, _>>()?;
        self.ask(|answer| PeerMessage::Look(request.node, answer)).await?;
        let standing = self.reading.standing();
        let (region, fetching) = (request.region, request.fetching);
        let read = move |reads: &Reads<'_>| {
            reads.peek_in((&region, &fetching), &keys).map_err(|error| failed(&error, &standing))
        };
        self.reading.local(read).await.map(Response::new)
    }

    async fn digest(
        &self,
        request: Request<proto::DigestRequest>,
    ) -> Result<Response<proto::DigestResponse>, Status> {
        let (caller, mut request) = taken(request)?;
        check_region(&caller, &request.region)?;
        // Each of them reads the whole store.
        let permit = Arc::clone(&self.digests).acquire_owned().await;
        self.ask(|answer| PeerMessage::Look(request.node.clone(), answer)).await?;
        let standing = self.reading.standing();
        // What a caller gets follows from the regions as they are.
        request.source_region.clone_from(&standing.head.region);
        let read = move |reads: &Reads<'_>| {
            let _permit = permit;
            reads.digest(&request, None, RECORDS).map_err(|error| failed(&error, &standing))
        };
        self.reading.local(read).await.map(Response::new)
    }

    async fn block_references(
        &self,
        request: Request<proto::BlockReferencesRequest>,
    ) -> Result<Response<proto::BlockReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_sources(&caller, &request.references)?;
        match self.ask_region(request.node.clone(), RegionRequest::Block(request)).await? {
            RegionResponse::Block(response) => Ok(Response::new(response)),
            _ => Err(another_kind()),
        }
    }

    async fn confirm_references(
        &self,
        request: Request<proto::ConfirmReferencesRequest>,
    ) -> Result<Response<proto::ConfirmReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_sources(&caller, &request.references)?;
        match self.ask_region(request.node.clone(), RegionRequest::Confirm(request)).await? {
            RegionResponse::Confirm(response) => Ok(Response::new(response)),
            _ => Err(another_kind()),
        }
    }

    async fn release_references(
        &self,
        request: Request<proto::ReleaseReferencesRequest>,
    ) -> Result<Response<proto::ReleaseReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_sources(&caller, &request.references)?;
        self.ask_region(request.node.clone(), RegionRequest::Release(request)).await?;
        Ok(Response::new(proto::ReleaseReferencesResponse {}))
    }

    async fn check_references(
        &self,
        request: Request<proto::CheckReferencesRequest>,
    ) -> Result<Response<proto::CheckReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_replicate(&caller)?;
        match self.ask_region(request.node.clone(), RegionRequest::Check(request)).await? {
            RegionResponse::Check(response) => Ok(Response::new(response)),
            _ => Err(another_kind()),
        }
    }

    async fn list_references(
        &self,
        request: Request<proto::ListReferencesRequest>,
    ) -> Result<Response<proto::ListReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        check_region(&caller, &request.region)?;
        match self.ask_region(request.node.clone(), RegionRequest::List(Box::new(request))).await? {
            RegionResponse::List(response) => Ok(Response::new(response)),
            _ => Err(another_kind()),
        }
    }
}

/// SR50: the right to be a node of this region.
fn check_region(caller: &Caller, region: &str) -> Result<(), Status> {
    check_replicate(caller)?;
    match &caller.rights.replicate {
        Replicate::Region(own) if own != region => {
            let message =
                format!("the right to replicate is for region {own:?}, and the node says {region:?}");
            Err(lacks("replicate", None, message))
        }
        Replicate::No | Replicate::Region(_) | Replicate::Any => Ok(()),
    }
}

/// SG30: a node speaks for the references of its own region.
fn check_sources(caller: &Caller, references: &[proto::Reference]) -> Result<(), Status> {
    check_replicate(caller)?;
    references.iter().try_for_each(|reference| check_region(caller, &reference.source_region))
}

fn check_replicate(caller: &Caller) -> Result<(), Status> {
    match &caller.rights.replicate {
        Replicate::No => Err(lacks("replicate", None, "calls between nodes need the right to replicate")),
        Replicate::Region(_) | Replicate::Any => Ok(()),
    }
}

fn refused(refusal: Refusal) -> Status {
    with_detail(Code::FailedPrecondition, refusal.to_string(), &refusal.to_wire())
}

/// The store answers each kind of call in its kind.
fn another_kind() -> Status {
    Status::internal("the answer is of another call")
}

fn later(call: &str) -> Status {
    Status::unimplemented(format!("this version does not answer {call}"))
}

/// The messages of an answer, which are read while the caller takes them.
fn parts(store: StoreHandle, pulled: Pulled, permit: OwnedSemaphorePermit) -> Parts {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut next = Some(pulled);
        while let Some(mut pulled) = next.take() {
            let read = tokio::task::spawn_blocking(move || (pulled.next(), pulled)).await;
            let Ok((part, pulled)) = read else { return };
            let standing = || store.standing().borrow().clone();
            let part = match part {
                Ok(None) => return,
                Ok(Some(part)) => Ok(part),
                Err(error) => Err(failed(&error, &standing())),
            };
            let is_error = part.is_err();
            // A peer that reads nothing would keep what the view has in the engine.
            let is_sent = timeout(PART_WAIT, sender.send(part)).await.is_ok_and(|sent| sent.is_ok());
            next = (is_sent && !is_error).then_some(pulled);
        }
    });
    Box::pin(unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))))
}

/// The pages of a snapshot, all of one view (SR19).
fn pages(
    store: StoreHandle,
    view: Box<dyn View>,
    (region, resume): (String, String),
    permit: OwnedSemaphorePermit,
) -> Pages {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let total = |store: &StoreHandle| {
            let standing = store.standing();
            let standing = standing.borrow();
            (standing.records + standing.tombstones) as u64
        };
        let mut next = Some((view, resume));
        while let Some((view, resume)) = next.take() {
            let region = region.clone();
            let read = tokio::task::spawn_blocking(move || (page(&*view, &region, &resume), view)).await;
            let Ok((page, view)) = read else { return };
            let page = match page {
                Ok(page) => Ok(proto::SnapshotResponse { records_total: total(&store), ..page }),
                Err(SnapshotError::Read(error)) => {
                    let standing = store.standing().borrow().clone();
                    Err(failed(&error, &standing))
                }
                Err(gone) => Err(Status::out_of_range(gone.to_string())),
            };
            let goes_on = page.as_ref().ok().filter(|page| !page.is_last).map(|page| page.resume.clone());
            let is_sent = timeout(PART_WAIT, sender.send(page)).await.is_ok_and(|sent| sent.is_ok());
            next = goes_on.filter(|_| is_sent).map(|resume| (view, resume));
        }
    });
    Box::pin(unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))))
}

fn page(view: &dyn View, region: &str, resume: &str) -> Result<proto::SnapshotResponse, SnapshotError> {
    Reads::new(view)?.snapshot_in(region, resume, PAGE_BYTES)
}

/// How many peers may take a snapshot at the same time.
const SNAPSHOTS: usize = 8;
/// The size of a page; one record may be larger.
const PAGE_BYTES: usize = 1 << 20;
/// The keys of a peek.
const PEEKED: usize = 100;
/// The records of a page of digests.
const RECORDS: usize = 10_000;
/// How long a peer may not read a message.
const PART_WAIT: Duration = Duration::from_secs(30);
