//! Calls of etcd's API, on one member after another.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::EtcdAddress;
use super::wire;
use crate::engine::EngineError;

/// What etcd requires of its clients.
#[derive(Default, Clone)]
pub struct EtcdAccess {
    /// A user and the password.
    pub user: Option<(String, String)>,
    /// Certificates in PEM, one of which signed those of the members; `None`: those that the system
    /// trusts.
    pub ca: Option<Vec<u8>>,
    /// A certificate of this client and its key, in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Why no calls can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Certificates are not used without TLS.
    #[error("certificates need an address that begins with etcds://")]
    NoTls,
    /// A member or a certificate cannot be used.
    #[error("the address or the certificates cannot be used")]
    Endpoint(#[source] Box<dyn Error + Send + Sync>),
}

/// The members of an etcd.
pub(super) struct Client {
    members: Vec<Member>,
    /// The member that answered last. One that fails is replaced by the next.
    current: AtomicUsize,
    user: Option<wire::AuthenticateRequest>,
}

struct Member {
    endpoint: Endpoint,
    /// `None` before the first call: a channel needs a runtime.
    channel: Mutex<Option<Channel>>,
    /// What stands for user and password; etcd forgets it after some minutes.
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not sent.
    NotSent(Box<dyn Error + Send + Sync>),
    /// It was refused, so nothing was changed.
    Refused(Status),
    /// It may have been applied.
    Unclear(Box<dyn Error + Send + Sync>),
}

impl fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(user, _)| user);
        f.debug_struct("EtcdAccess").field("user", &user).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members.iter().map(|member| member.endpoint.uri());
        f.debug_list().entries(members).finish()
    }
}

impl Client {
    pub(super) fn new(address: &EtcdAddress, access: &EtcdAccess) -> Result<Self, AccessError> {
        if !address.is_tls && (access.ca.is_some() || access.identity.is_some()) {
            return Err(AccessError::NoTls);
        }
        let scheme = if address.is_tls { "https" } else { "http" };
        let mut members = Vec::with_capacity(address.members.len());
        for member in &address.members {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(|error| AccessError::Endpoint(error.into()))?
                .connect_timeout(ATTEMPT)
                .tcp_nodelay(true)
                // A member that stopped answering is noticed, also by a watch.
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(ATTEMPT)
                .keep_alive_while_idle(true);
            let endpoint = match address.is_tls {
                true => {
                    endpoint.tls_config(access.tls()).map_err(|error| AccessError::Endpoint(error.into()))?
                }
                false => endpoint,
            };
            members.push(Member { endpoint, channel: Mutex::new(None), token: Mutex::new(None) });
        }
        let user = access.user.clone().map(|(name, password)| wire::AuthenticateRequest { name, password });
        Ok(Self { members, current: AtomicUsize::new(0), user })
    }

    /// Reads from the member that answered last, or from the next one that answers.
    pub(super) async fn read(
        &self,
        request: &wire::RangeRequest,
    ) -> Result<wire::RangeResponse, EngineError> {
        let attempts = async {
            let mut last: Option<Box<dyn Error + Send + Sync>> = None;
            // The first attempt notices a connection that was lost, so each member gets a second one.
            for number in self.in_turn().chain(self.in_turn()) {
                match timeout(ATTEMPT, self.call(number, RANGE, request)).await {
                    Ok(Ok(found)) => {
                        self.current.store(number, Ordering::Relaxed);
                        return Ok(found);
                    }
                    // A linearizable read waits until the member has the revision.
                    Ok(Err(Failure::Refused(status))) if is_future(&status) && request.serializable => {
                        let request = wire::RangeRequest { serializable: false, ..request.clone() };
                        match timeout(ATTEMPT, self.call(number, RANGE, &request)).await {
                            Ok(Ok(found)) => return Ok(found),
                            Ok(Err(Failure::Refused(status))) => return Err(refused(status)),
                            Ok(Err(Failure::NotSent(error) | Failure::Unclear(error))) => last = Some(error),
                            Err(elapsed) => last = Some(late(elapsed)),
                        }
                    }
                    Ok(Err(Failure::Refused(status))) => return Err(refused(status)),
                    Ok(Err(Failure::NotSent(error) | Failure::Unclear(error))) => last = Some(error),
                    Err(elapsed) => last = Some(late(elapsed)),
                }
            }
            Err(EngineError::Unavailable(last.unwrap_or_else(|| NO_MEMBERS.into())))
        };
        timeout(CALL, attempts).await.unwrap_or_else(|elapsed| Err(EngineError::Unavailable(late(elapsed))))
    }

    /// Sends a transaction, once to each member until it is sent.
    pub(super) async fn transact(
        &self,
        request: &wire::TxnRequest,
    ) -> Result<wire::TxnResponse, EngineError> {
        let mut last: Option<Box<dyn Error + Send + Sync>> = None;
        for number in self.in_turn() {
            let sent = timeout(CALL, self.call(number, TXN, request)).await;
            match sent.unwrap_or_else(|elapsed| Err(Failure::Unclear(late(elapsed)))) {
                Ok(response) => {
                    self.current.store(number, Ordering::Relaxed);
                    return Ok(response);
                }
                Err(Failure::Refused(status)) => return Err(refused(status)),
                Err(Failure::Unclear(error)) => {
                    self.leave(number);
                    return Err(EngineError::Unknown(error));
                }
                Err(Failure::NotSent(error)) => last = Some(error),
            }
        }
        Err(EngineError::Unavailable(last.unwrap_or_else(|| NO_MEMBERS.into())))
    }

    /// A watch of a key whose start a member has confirmed.
    pub(super) async fn watch(&self, key: Bytes) -> Result<Streaming<wire::WatchResponse>, EngineError> {
        let number = self.in_turn().next().unwrap_or_default();
        let create_request = Some(wire::WatchCreateRequest { key });
        let connecting = async {
            let request = self.request(number, wire::WatchRequest { create_request }).await?;
            // The stream of requests stays open, or etcd ends that of responses.
            let request = request.map(|first| tokio_stream::once(first).chain(tokio_stream::pending()));
            let mut grpc = self.grpc(number).await?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let stream = grpc.streaming(request, path, ProstCodec::default()).await.map_err(Failure::of)?;
            let mut stream: Streaming<wire::WatchResponse> = stream.into_inner();
            match stream.message().await.map_err(Failure::of)? {
                Some(first) if first.created && !first.canceled => Ok(stream),
                _ => Err(Failure::Unclear("etcd did not start the watch".into())),
            }
        };
        let connected = timeout(ATTEMPT, connecting).await;
        connected.unwrap_or_else(|elapsed| Err(Failure::Unclear(late(elapsed)))).map_err(|failure| {
            self.leave(number);
            match failure {
                Failure::NotSent(error) | Failure::Unclear(error) => EngineError::Unavailable(error),
                Failure::Refused(status) => refused(status),
            }
        })
    }

    /// The members, that which answered last first.
    fn in_turn(&self) -> impl Iterator<Item = usize> {
        let first = self.current.load(Ordering::Relaxed);
        (0..self.members.len()).map(move |number| (first + number) % self.members.len())
    }

    /// Begins with the next member from now on.
    fn leave(&self, number: usize) {
        self.current.store((number + 1) % self.members.len().max(1), Ordering::Relaxed);
    }

    async fn call<Q, R>(&self, number: usize, path: &'static str, message: &Q) -> Result<R, Failure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut has_new_token = false;
        loop {
            let request = self.request(number, message.clone()).await?;
            let mut grpc = self.grpc(number).await?;
            let path = PathAndQuery::from_static(path);
            match grpc.unary(request, path, ProstCodec::default()).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if is_stale_token(&status) && self.user.is_some() && !has_new_token => {
                    has_new_token = true;
                    *lock(&self.members[number].token) = None;
                }
                Err(status) => return Err(Failure::of(status)),
            }
        }
    }

    /// A request with the token of the user, which may have to be got first.
    async fn request<Q>(&self, number: usize, message: Q) -> Result<Request<Q>, Failure> {
        let mut request = Request::new(message);
        // A member without a leader refuses instead of answering from its old state.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(user) = &self.user {
            let known = lock(&self.members[number].token).clone();
            let token = match known {
                Some(token) => token,
                None => self.authenticate(number, user).await?,
            };
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    async fn authenticate(
        &self,
        number: usize,
        user: &wire::AuthenticateRequest,
    ) -> Result<MetadataValue<Ascii>, Failure> {
        let mut grpc = self.grpc(number).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let answer = grpc.unary(Request::new(user.clone()), path, ProstCodec::default()).await;
        let answer: wire::AuthenticateResponse = match answer.map_err(Failure::of) {
            Ok(answer) => answer.into_inner(),
            // What was to be authenticated is not sent.
            Err(Failure::Unclear(error)) => return Err(Failure::NotSent(error)),
            Err(failure) => return Err(failure),
        };
        let token =
            answer.token.parse().map_err(|_| Failure::NotSent("the token of etcd is no text".into()))?;
        *lock(&self.members[number].token) = Some(MetadataValue::clone(&token));
        Ok(token)
    }

    async fn grpc(&self, number: usize) -> Result<Grpc<Channel>, Failure> {
        let member = &self.members[number];
        let channel = lock(&member.channel).get_or_insert_with(|| member.endpoint.connect_lazy()).clone();
        // A page of a range is as large as the engine asks.
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Failure::NotSent(error.into()))?;
        Ok(grpc)
    }
}

impl EtcdAccess {
    fn tls(&self) -> ClientTlsConfig {
        let tls = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match &self.identity {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        }
    }
}

impl Failure {
    fn of(status: Status) -> Self {
        let mut source = status.source();
        while let Some(error) = source {
            if error.is::<ConnectError>() {
                return Self::NotSent(text_of(&status));
            }
            source = error.source();
        }
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Unauthenticated
            | Code::Unimplemented => Self::Refused(status),
            _ => Self::Unclear(text_of(&status)),
        }
    }
}

/// Why etcd refused. Its errors differ by their texts.
fn refused(status: Status) -> EngineError {
    let has = |text| status.message().contains(text);
    if has("required revision has been compacted") {
        EngineError::Compacted
    } else if has("database space exceeded") {
        EngineError::Full
    } else {
        EngineError::Unavailable(text_of(&status))
    }
}

/// What etcd says, or why the connection failed.
pub(super) fn text_of(status: &Status) -> Box<dyn Error + Send + Sync> {
    let mut cause: Option<&dyn Error> = status.source();
    while let Some(next) = cause.and_then(Error::source) {
        cause = Some(next);
    }
    match (cause.map(ToString::to_string), status.message()) {
        (Some(cause), text) if text.is_empty() || text == cause => cause.into(),
        (Some(cause), text) => format!("{text}: {cause}").into(),
        (None, text) => text.into(),
    }
}

fn late(_: Elapsed) -> Box<dyn Error + Send + Sync> {
    "etcd does not answer".into()
}

fn is_future(status: &Status) -> bool {
    status.message().contains("required revision is a future revision")
}

fn is_stale_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains("revision of auth store is old")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const NO_MEMBERS: &str = "the address has no members";
/// Of a whole call, with attempts at several members.
const CALL: Duration = Duration::from_secs(5);
/// Of one attempt to read, or to connect.
const ATTEMPT: Duration = Duration::from_secs(2);
/// An idle connection is tried so often.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
