//! The calls that this node makes at its peers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::{Message as _, Name};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use xds_proto::google;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::peer_client::PeerClient;
use xds_store::engine::Reader;
use xds_store::key::RecordKey;
use xds_store::read::Reads;
use xds_store::replica::{CallId, Digests, Event, Failure, Refusal};
use xds_store::store::{RegionRequest, RegionResponse, Ticket, Unanswered};

use crate::peers::{PEEK_TIMEOUT, PageEnd, PeerConnection, PeerMessage, PeersConfig};
use crate::queue::{Message, Queue};
use crate::status::{of_engine, refused_by};

/// Makes calls, and reports their answers to the writer. When it is dropped, all calls end.
#[derive(Debug)]
pub(crate) struct Calls {
    config: PeersConfig,
    shared: Arc<Shared>,
    running: BTreeMap<CallId, AbortHandle>,
    snapshot: Option<AbortHandle>,
    /// Follows the addresses.
    addresses: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    queue: Arc<Queue>,
    reader: Arc<dyn Reader>,
    connections: Mutex<BTreeMap<String, PeerConnection>>,
    /// Why the last call to an address failed.
    errors: Mutex<BTreeMap<String, String>>,
}

impl Calls {
    pub(crate) fn new(config: PeersConfig, queue: Arc<Queue>, reader: Arc<dyn Reader>) -> Self {
        let (connections, errors) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { queue, reader, connections, errors });
        let addresses = follow(config.addresses.clone(), Arc::clone(&shared));
        let addresses = config.runtime.spawn(addresses);
        Self { config, shared, running: BTreeMap::new(), snapshot: None, addresses }
    }

    /// Calls Hello on a new connection.
    pub(crate) fn hello(&mut self, call: CallId, address: String, request: proto::HelloRequest) {
        let connecting = self.config.connector.connect(&address);
        let shared = Arc::clone(&self.shared);
        self.spawn(call, async move {
            let result = match connecting.await {
                Ok(connection) => {
                    let answer = client(connection.clone()).hello(request).await;
                    // Other calls use the connection once the peer has accepted this node (SR3).
                    lock(&shared.connections).insert(address.clone(), connection);
                    answer.map(tonic::Response::into_inner)
                }
                Err(reason) => Err(Status::unavailable(reason)),
            };
            let result = shared.noted(&address, result);
            shared.report(Event::HelloAnswered(call, result)).await;
        });
    }

    /// Pulls. Each part is read once the machine has taken the one before.
    pub(crate) fn pull(&mut self, call: CallId, address: String, request: proto::PullRequest) {
        let shared = Arc::clone(&self.shared);
        self.spawn(call, async move {
            if let Err(status) = shared.pull(call, &address, request).await {
                let failure = shared.failure(&address, &status);
                shared.report(Event::PullFailed(call, failure)).await;
            }
        });
    }

    /// Nudges.
    pub(crate) fn nudge(&mut self, call: CallId, address: String, request: proto::NudgeRequest) {
        let shared = Arc::clone(&self.shared);
        self.spawn(call, async move {
            let result = match shared.client(&address) {
                Ok(mut client) => client.nudge(request).await.map(tonic::Response::into_inner),
                Err(status) => Err(status),
            };
            let result = result.map_err(|status| shared.failure(&address, &status));
            shared.report(Event::NudgeAnswered(call, result)).await;
        });
    }

    /// Asks a peer for digests, and the store of this node for the same (SR51).
    pub(crate) fn digest(&mut self, call: CallId, address: String, request: proto::DigestRequest) {
        let shared = Arc::clone(&self.shared);
        self.spawn(call, async move {
            let result = shared.digests(&address, request).await.map(Box::new);
            let result = result.map_err(|status| shared.failure(&address, &status));
            shared.report(Event::DigestAnswered(call, result)).await;
        });
    }

    /// Asks a peer for the states of records.
    pub(crate) fn peek(&mut self, call: CallId, address: String, request: proto::PeekRequest) {
        let shared = Arc::clone(&self.shared);
        self.spawn(call, async move {
            let result = shared.peek(&address, request).await;
            let result = result.map_err(|status| shared.failure(&address, &status));
            shared.report(Event::PeekAnswered(call, result)).await;
        });
    }

    /// SR49: asks a node for a record that a reader here does not find. A peer that does not answer has nothing.
    pub(crate) fn peek_for(
        &self,
        (address, node): (String, String),
        request: proto::PeekRequest,
        answers: UnboundedSender<(String, proto::PeekResponse)>,
    ) {
        let shared = Arc::clone(&self.shared);
        self.config.runtime.spawn(async move {
            if let Ok(Ok(answer)) = timeout(PEEK_TIMEOUT, shared.peek(&address, request)).await {
                // The reader may have gone away.
                _ = answers.send((node, answer));
            }
        });
    }

    /// Calls a node of another region about references (SG30), and reports its answer, or that none came in time.
    pub(crate) fn region(&self, call: Ticket, address: String, request: RegionRequest) {
        let shared = Arc::clone(&self.shared);
        self.config.runtime.spawn(async move {
            let wait = match &request {
                RegionRequest::Check(_) => CHECK_WAIT,
                _ => REGION_WAIT,
            };
            let answer = timeout(wait, shared.region(&address, request)).await;
            let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer came in time")));
            let answer = answer.map_err(|status| {
                tracing::debug!(address, %status, "a call about references failed");
                refused_by(&status).map_or(Unanswered::Silent, Unanswered::Refused)
            });
            shared.queue.send(Message::Peer(PeerMessage::RegionAnswered(call, answer)));
        });
    }

    /// Takes a snapshot (SR19), and reports its pages, or that it came to no end.
    pub(crate) fn snapshot(
        &mut self,
        number: u64,
        (address, wait): (String, Duration),
        node: (String, String),
    ) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let Err(status) = shared.snapshot(number, (&address, wait), node).await else { return };
            let failure = shared.failure(&address, &status);
            shared.queue.send(Message::Peer(PeerMessage::SnapshotFailed(number, failure)));
        };
        self.end_snapshot();
        self.snapshot = Some(self.config.runtime.spawn(task).abort_handle());
    }

    pub(crate) fn end_snapshot(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            snapshot.abort();
        }
    }

    pub(crate) fn cancel(&mut self, call: CallId) {
        if let Some(running) = self.running.remove(&call) {
            running.abort();
        }
    }

    /// Why the last call to each address failed.
    pub(crate) fn errors(&self) -> BTreeMap<String, String> {
        lock(&self.shared.errors).clone()
    }

    pub(crate) fn note_error(&self, address: &str, reason: &str) {
        lock(&self.shared.errors).insert(address.to_owned(), reason.to_owned());
    }

    fn spawn(&mut self, call: CallId, task: impl Future<Output = ()> + Send + 'static) {
        self.running.retain(|_, running| !running.is_finished());
        self.running.insert(call, self.config.runtime.spawn(task).abort_handle());
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.addresses.abort();
        self.running.values().chain(&self.snapshot).for_each(AbortHandle::abort);
    }
}

impl Shared {
    async fn pull(&self, call: CallId, address: &str, request: proto::PullRequest) -> Result<(), Status> {
        let mut parts = self.client(address)?.pull(request).await?.into_inner();
        loop {
            let part = parts.message().await?;
            let part = part.ok_or_else(|| Status::unavailable("the answer ended before its last message"))?;
            let is_last = part.is_last;
            if is_last {
                lock(&self.errors).remove(address);
            }
            self.report(Event::PullPart(call, part)).await;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn peek(&self, address: &str, request: proto::PeekRequest) -> Result<proto::PeekResponse, Status> {
        self.client(address)?.peek(request).await.map(tonic::Response::into_inner)
    }

    async fn region(&self, address: &str, request: RegionRequest) -> Result<RegionResponse, Status> {
        let mut client = self.client(address)?;
        Ok(match request {
            RegionRequest::Block(request) => {
                RegionResponse::Block(client.block_references(request).await?.into_inner())
            }
            RegionRequest::Confirm(request) => {
                RegionResponse::Confirm(client.confirm_references(request).await?.into_inner())
            }
            RegionRequest::Release(request) => {
                client.release_references(request).await?;
                RegionResponse::Release
            }
            RegionRequest::Check(request) => {
                RegionResponse::Check(client.check_references(request).await?.into_inner())
            }
            RegionRequest::List(request) => {
                RegionResponse::List(client.list_references(*request).await?.into_inner())
            }
        })
    }

    async fn digests(&self, address: &str, request: proto::DigestRequest) -> Result<Digests, Status> {
        let theirs = self.client(address)?.digest(request.clone()).await?.into_inner();
        let reader = Arc::clone(&self.reader);
        let last = theirs.records.last().filter(|_| theirs.more).and_then(|last| last.key.as_ref());
        let until = last.and_then(|key| RecordKey::parse(key).ok());
        let own = tokio::task::spawn_blocking(move || {
            let view = reader.view().map_err(|error| of_engine(&error))?;
            let digest = |reads: Reads<'_>| reads.digest(&request, until.as_ref(), usize::MAX);
            Reads::new(&*view).and_then(digest).map_err(|error| Status::internal(error.to_string()))
        });
        let own = own.await.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Digests { own, theirs })
    }

    /// SR19: a stream that broke goes on where it was, as long as the peer has that view.
    async fn snapshot(
        &self,
        number: u64,
        (address, wait): (&str, Duration),
        (node, region): (String, String),
    ) -> Result<(), Status> {
        let mut resume = String::new();
        let mut heard_at = Instant::now();
        loop {
            let request = proto::SnapshotRequest {
                resume: resume.clone(),
                node: node.clone(),
                region: region.clone(),
                ..proto::SnapshotRequest::default()
            };
            match self.pages(number, (address, wait), request, &mut resume, &mut heard_at).await {
                Ok(()) => return Ok(()),
                Err(status) if resume.is_empty() || heard_at.elapsed() > wait => return Err(status),
                Err(status) if !matches!(status.code(), Code::Unavailable | Code::Unknown) => {
                    return Err(status);
                }
                Err(_) => tokio::time::sleep(RESUME_AFTER).await,
            }
        }
    }

    async fn pages(
        &self,
        number: u64,
        (address, wait): (&str, Duration),
        request: proto::SnapshotRequest,
        resume: &mut String,
        heard_at: &mut Instant,
    ) -> Result<(), Status> {
        let late = |_| Status::deadline_exceeded(format!("no page of the snapshot came for {wait:?}"));
        let mut client = self.client(address)?;
        // Also for the answer as such: no pulls run meanwhile, and a link that hangs may do so for long.
        let pages = timeout(wait, client.snapshot(request)).await.map_err(late)?;
        let mut pages = pages?.into_inner();
        loop {
            let page = timeout(wait, pages.message()).await.map_err(late)??;
            let page = page.ok_or_else(|| Status::unavailable("the snapshot ended before its last page"))?;
            let goes_on = page.resume.clone();
            let (sender, ended) = oneshot::channel();
            self.queue.send(Message::Peer(PeerMessage::Page(number, page, sender)));
            if ended.await != Ok(PageEnd::Kept) {
                lock(&self.errors).remove(address);
                return Ok(());
            }
            *resume = goes_on;
            *heard_at = Instant::now();
        }
    }

    fn client(&self, address: &str) -> Result<Client, Status> {
        let connection = lock(&self.connections).get(address).cloned();
        connection.map(client).ok_or_else(|| Status::unavailable("there is no connection"))
    }

    /// Gives an event to the machine, and waits until it is taken.
    async fn report(&self, event: Event) {
        let (sender, taken) = oneshot::channel::<Infallible>();
        self.queue.send(Message::Peer(PeerMessage::Event(event, sender)));
        // Nothing is sent: the writer drops the sender.
        _ = taken.await;
    }

    /// Notes why a call failed, or that it did not.
    fn noted<T>(&self, address: &str, result: Result<T, Status>) -> Result<T, Failure> {
        match result {
            Ok(value) => {
                lock(&self.errors).remove(address);
                Ok(value)
            }
            Err(status) => Err(self.failure(address, &status)),
        }
    }

    fn failure(&self, address: &str, status: &Status) -> Failure {
        let reason = xds_core::shortened(status.message(), ERROR_LIMIT_BYTES).into_owned();
        tracing::debug!(address, code = ?status.code(), reason, "a call to a peer failed");
        lock(&self.errors).insert(address.to_owned(), reason);
        refusal(status).map_or(Failure::Unreachable, Failure::Refused)
    }
}

/// Reports the addresses of the peers, as often as they change.
async fn follow(mut addresses: watch::Receiver<Vec<String>>, shared: Arc<Shared>) {
    loop {
        let present = addresses.borrow_and_update().clone();
        lock(&shared.connections).retain(|address, _| present.contains(address));
        lock(&shared.errors).retain(|address, _| present.contains(address));
        shared.report(Event::Peers(present)).await;
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

type Client = PeerClient<InterceptedService<Channel, Authorization>>;

/// Adds the token to each call.
#[derive(Debug, Clone)]
struct Authorization(PeerConnection);

impl Interceptor for Authorization {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(authorization) = &self.0.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        Ok(request)
    }
}

fn client(connection: PeerConnection) -> Client {
    let channel = connection.channel.clone();
    PeerClient::with_interceptor(channel, Authorization(connection))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
}

/// The refusal in the details of a status.
fn refusal(status: &Status) -> Option<Refusal> {
    if status.code() != Code::FailedPrecondition {
        return None;
    }
    let details = google::rpc::Status::decode(status.details()).ok()?.details;
    let detail = details.iter().find(|detail| detail.type_url == proto::PeerRefused::type_url())?;
    Refusal::from_wire(proto::PeerRefused::decode(&*detail.value).ok()?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The largest message of an answer: one record, and what is around it.
const MESSAGE_LIMIT_BYTES: usize = 64 << 20;
const ERROR_LIMIT_BYTES: usize = 512;
/// How long another region may take to say whether its references hold (SG34), and to answer other calls.
const CHECK_WAIT: Duration = Duration::from_secs(1);
const REGION_WAIT: Duration = Duration::from_secs(10);
/// How long a snapshot may bring no page: the last peer that can give one, and others (SR19).
pub(crate) const SNAPSHOT_WAIT: Duration = Duration::from_secs(10);
pub(crate) const SNAPSHOT_WAIT_WITH_OTHERS: Duration = Duration::from_secs(2);
/// When a snapshot whose stream broke goes on.
const RESUME_AFTER: Duration = Duration::from_millis(500);
