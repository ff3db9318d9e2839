//! The connection to one server: connects when the server is needed, passes requests and responses,
//! and reconnects after a failure.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http::uri::PathAndQuery;
use tokio::time::{sleep_until, timeout};
use tonic::{Request, Status};
use tracing::{debug, info, warn};
use xds_core::client::health;
use xds_core::client::{Client as Machine, Code, Effects, Protocol, Reason};

use crate::codec::Frames;
use crate::hub::Hub;
use crate::refused_types::RefusedTypes;
use crate::transport::{Transport, TransportError, first_cause};
use crate::trial::Trial;

/// How an attempt ended.
enum AttemptEnd {
    /// The server is no longer needed.
    Unneeded,
    /// C7
    Failed(StreamFailure),
}

struct StreamFailure {
    /// The status of the server, or of gRPC in its place; `None` if no stream was opened.
    status: Option<health::Status>,
    /// The same for people, or why no stream could be opened.
    reason: String,
}

impl StreamFailure {
    fn of(status: &Status) -> Self {
        // A status with a source is not from the server, but from the library in its place.
        let reason = match status.source() {
            Some(source) => format!("the connection was lost: {}", first_cause(source)),
            None => format!("{:?}: {}", status.code(), status.message()),
        };
        // G4: clients of a proxy get the text as the server wrote it.
        let status = health::Status { code: Code(status.code() as i32), message: status.message().into() };
        Self { status: Some(status), reason }
    }
}

/// Keeps the connection to one server until the client ends.
pub(crate) async fn run(hub: Arc<Hub>, server: usize, transport: Transport, protocol: Protocol) {
    let name = Arc::clone(transport.name());
    let mut refused = RefusedTypes::new(server, &name);
    while !hub.is_closed() {
        let Some(at) = hub.read(|machine| machine.connect_at(server)).flatten() else {
            hub.forget_failure(server);
            hub.recorder.left(&name);
            hub.signals(server).need.notified().await;
            continue;
        };
        let at = hub.start() + at;
        if at > tokio::time::Instant::now() {
            tokio::select! {
                () = hub.signals(server).need.notified() => {}
                () = sleep_until(at) => {}
            }
            continue;
        }
        hub.edit(|machine, _| machine.on_connecting(server));
        debug!(server = %name, "connecting");
        match attempt(&hub, server, &transport, protocol, &mut refused).await {
            AttemptEnd::Unneeded => {
                debug!(server = %name, "closed the stream: no watch needs this server any more");
                hub.forget_failure(server);
                hub.edit(|machine, now| machine.on_closed(now, server));
            }
            AttemptEnd::Failed(StreamFailure { status, reason }) => {
                let code = status.as_ref().map(|status| status.code);
                let jitter = hub.jitter();
                let has_failed = || hub.read(|machine| machine.has_failed(server)).unwrap_or_default();
                let had_failed = has_failed();
                hub.end(server, status, &reason, jitter);
                refused.follow(&hub);
                if has_failed() {
                    hub.note_failure(server, &reason);
                    warn!(server = %name, reason, "cannot reach the server; trying again");
                    hub.recorder.failed(&name, code, &reason);
                    hub.recorder.connected(&name, false);
                    if !had_failed {
                        hub.recorder.server_failure(&name);
                    }
                } else {
                    info!(server = %name, reason, "the stream ended; reconnecting");
                }
            }
        }
        // C15: another server may be needed now. Also, the transport sees that this stream has no
        // more requests; while it waits for one, it keeps the connection open.
        hub.look_for_requests();
    }
    hub.recorder.left(&name);
}

/// One connection with one stream.
async fn attempt(
    hub: &Arc<Hub>,
    server: usize,
    transport: &Transport,
    protocol: Protocol,
    refused: &mut RefusedTypes,
) -> AttemptEnd {
    let attempt = Arc::new(());
    let prepare = async {
        let channel = transport.connect().await?;
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(RESPONSE_LIMIT_BYTES);
        client.ready().await.map_err(|error| TransportError::Connect(error.into()))?;
        let name = Arc::clone(transport.name());
        let of = Arc::downgrade(&attempt);
        let mut request = Request::new(Requests { hub: Arc::clone(hub), server, name, of, is_open: false });
        transport.authenticate(&mut request).await?;
        Ok((client, request))
    };
    let stream = async {
        // C7: a server may answer slowly, but without this timeout nobody would notice that it is
        // unreachable.
        let prepared = timeout(OPEN_TIMEOUT, prepare).await;
        let (mut client, request) = prepared.map_err(|_| TransportError::TimedOut(OPEN_TIMEOUT))??;
        let path = match protocol {
            Protocol::Sotw => SOTW,
            Protocol::Delta => DELTA,
        };
        let other = hub.owner.path(protocol);
        let path =
            other.and_then(|path| path.parse().ok()).unwrap_or_else(|| PathAndQuery::from_static(path));
        let response = client.streaming(request, path, Frames).await.map_err(TransportError::Refused)?;
        Ok::<_, TransportError>(response.into_inner())
    };
    let responses = tokio::select! {
        responses = stream => responses,
        () = unneeded(hub, server, transport.name()) => return AttemptEnd::Unneeded,
    };
    let mut responses = match responses {
        Ok(responses) => responses,
        Err(TransportError::Refused(status)) => return AttemptEnd::Failed(StreamFailure::of(&status)),
        Err(error) => return AttemptEnd::Failed(StreamFailure { status: None, reason: error.with_cause() }),
    };
    loop {
        tokio::select! {
            message = responses.message() => {
                let frame = message.as_ref().ok().and_then(Option::as_ref);
                let mut trial = frame.and_then(|frame| Trial::begin(hub, server, frame));
                if let Some(trial) = &mut trial {
                    tokio::select! {
                        () = trial.finished() => {}
                        () = unneeded(hub, server, transport.name()) => return AttemptEnd::Unneeded,
                    }
                }
                if let Some(failure) = read(hub, (server, transport.name()), message, trial, refused) {
                    return AttemptEnd::Failed(failure);
                }
            }
            // C13: without a watch, the stream is closed.
            () = unneeded(hub, server, transport.name()) => return AttemptEnd::Unneeded,
        }
    }
}

/// Gives one response to the machine. Returns the failure if there is none.
fn read(
    hub: &Hub,
    (server, name): (usize, &str),
    message: Result<Option<Bytes>, Status>,
    trial: Option<Trial<'_>>,
    refused: &mut RefusedTypes,
) -> Option<StreamFailure> {
    let frame = match message {
        Ok(Some(frame)) => frame,
        Ok(None) => {
            let reason = "the server ended the stream";
            let status = health::Status { code: Code(0), message: reason.into() };
            return Some(StreamFailure { status: Some(status), reason: reason.to_owned() });
        }
        Err(status) => return Some(StreamFailure::of(&status)),
    };
    let respond = |machine: &mut Machine, now| match machine.on_response(now, server, &frame) {
        Ok(effects) => (Ok(()), effects),
        Err(error) => (Err(error), Effects::default()),
    };
    let (read, effects) = match trial {
        Some(trial) => trial.conclude(respond)?,
        None => hub.change(respond)?,
    };
    let applied = read.map(|()| effects.response);
    if applied.is_ok() {
        hub.on_connected(server, name);
    }
    match applied {
        // C3
        Err(error) => warn!(server = name, %error, "ignored an unreadable response"),
        Ok(None) => warn!(server = name, "ignored a response: the client has no subscription of its type"),
        Ok(Some(applied)) => {
            for rejection in &applied.rejections {
                let r#type = applied.type_url.message_name();
                warn!(server = name, r#type, "sent a NACK to the server: {rejection}");
            }
            if applied.unwatched > 0 {
                debug!(
                    server = name,
                    r#type = applied.type_url.message_name(),
                    unwatched = applied.unwatched,
                    "ignored resources that nobody watches"
                );
            }
            let type_url = applied.type_url.as_str();
            // An error without content does not count as a resource.
            let resources =
                applied.rejections.iter().filter(|rejection| rejection.reason != Reason::EmptyError);
            hub.recorder.updates(name, type_url, applied.valid, resources.count());
            if applied.valid == 0 || !refused.is_empty() {
                refused.follow(hub);
            }
            hub.look_for_requests();
        }
    }
    None
}

/// Returns when the server is no longer needed.
async fn unneeded(hub: &Hub, server: usize, name: &str) {
    while hub.read(|machine| machine.is_needed(server)) == Some(true) {
        hub.signals(server).need.notified().await;
        // P1.21: watchers are notified that the error is over even if a delta server has nothing to
        // send (D21).
        if hub.read(|machine| machine.is_connected(server)) == Some(true) {
            hub.on_connected(server, name);
        }
    }
}

/// The requests of one stream. The transport takes the next one when it has room, so nothing queues
/// up. It does so for the first time when the stream is open on a working connection (P5.4).
struct Requests {
    hub: Arc<Hub>,
    server: usize,
    name: Arc<str>,
    /// Dropped when the attempt is over. The transport may still ask for a request then, which must
    /// neither open a stream nor take a request of the next stream.
    of: Weak<()>,
    is_open: bool,
}

impl Requests {
    fn is_over(&self) -> bool {
        self.of.strong_count() == 0
    }
}

impl Stream for Requests {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_over() {
            return Poll::Ready(None);
        }
        let server = self.server;
        let opens = !std::mem::replace(&mut self.is_open, true);
        let request = self.hub.edit(|machine, now| {
            // Check again: meanwhile another thread may have reported the end to the machine, and
            // the next stream may wait here.
            if self.is_over() {
                return None;
            }
            // Register before the check, so that no change is missed.
            self.hub.signals(server).requests.register(cx.waker());
            if opens {
                machine.on_open(now, server);
            }
            machine.next_request(now, server)
        });
        if opens {
            self.hub.recorder.opened(&self.name);
            // After a failure, only a response shows that the server works.
            if self.hub.read(|machine| machine.is_connected(server)) == Some(true) {
                self.hub.on_connected(server, &self.name);
            }
        }
        match request.flatten() {
            Some(request) => Poll::Ready(Some(request)),
            None if self.hub.is_closed() || self.is_over() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

const SOTW: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The time limit for everything up to an open stream: name resolution, TLS, credentials.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// G10: a full state may be much larger than 4 MiB, the default limit of gRPC. No configuration is
/// larger than this limit.
const RESPONSE_LIMIT_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use xds_core::client::{ClientConfig, ServerConfig};

    use super::*;
    use crate::metrics::NoRecorder;
    use crate::owner::Own;

    /// The text for clients of a proxy repeated the code, in the words of the gRPC library.
    #[test]
    fn g4_the_status_of_a_server_is_kept_unchanged_and_the_reason_is_for_people() {
        let failure = StreamFailure::of(&Status::unimplemented("no such type"));
        let status = health::Status { code: Code::UNIMPLEMENTED, message: "no such type".into() };
        assert_eq!(failure.status, Some(status));
        assert_eq!(failure.reason, "Unimplemented: no such type");
    }

    /// The transport may ask for a request after the attempt was abandoned. For the machine that
    /// would be an open stream, and it would not connect again.
    #[tokio::test]
    async fn an_attempt_that_is_over_opens_nothing() {
        let server =
            ServerConfig { name: "origin".into(), protocol: Protocol::Delta, errors: Default::default() };
        let machine = Machine::new(ClientConfig::new(Bytes::new(), server));
        let (hub, _handle) = Hub::new(Box::new(Own::new(machine)), 1, Arc::new(NoRecorder), None);
        hub.watch(&"example.com/acme.Thing".into(), "a", None).unwrap().unwrap();
        hub.edit(|machine, _| machine.on_connecting(0));
        let attempt = Arc::new(());
        let of = Arc::downgrade(&attempt);
        let requests = || Requests {
            hub: Arc::clone(&hub),
            server: 0,
            name: "origin".into(),
            of: of.clone(),
            is_open: false,
        };
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut requests()).poll_next(&mut context), Poll::Ready(Some(_))));
        drop(attempt);
        hub.edit(|machine, now| machine.on_closed(now, 0));
        assert_eq!(Pin::new(&mut requests()).poll_next(&mut context), Poll::Ready(None));
        assert!(hub.read(|machine| machine.connect_at(0)).flatten().is_some());
    }
}
