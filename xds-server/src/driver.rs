//! One task per stream. It gives requests to the machine and responses to the transport, and makes
//! no decisions.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tracing::debug;
use xds_core::server::{
    DeniedNames, Next, Protocol, Rejection, Response, Service, Stream, StreamError, Verdict,
};
use xds_core::{
    Access, Cache, ClientName, Revision, SkippedMetadata, Snapshot, TypeUrl, Variant, Watch, shortened,
};

use crate::client_groups::{ClientGroups, Membership};
use crate::config::ServerConfig;
use crate::connections::{jittered, random};
use crate::nack_log::{Found, Nack};
use crate::observe::Event;
use crate::peer::Peer;
use crate::repeat_log::Occurrence;
use crate::requests::{RequestError, Requests};
use crate::responses::{ResponseSlot, SlotState};
use crate::skim::{Client, Lists, SkimError, Skimmer};
use crate::stream_registry::{ClientDetails, Registration, StreamRegistry};

/// A stream with its machine: a future that is done when the client or the server ends the stream.
///
/// It does not use `select!`, which makes and drops a future for each branch with every poll. Most
/// events of a stream are updates and their ACKs, and the branches would cost more than those.
#[derive(Debug)]
pub(crate) struct Driver {
    service: Service,
    protocol: Protocol,
    machine: Stream,
    inbound: Requests<axum::body::Body>,
    /// The client may still send requests.
    is_open: bool,
    /// The machine may have something to send.
    is_due: bool,
    requests_in_a_row: usize,
    alarm: Alarm,
    clients: Arc<ClientGroups>,
    membership: Option<Membership>,
    skimmer: Skimmer,
    watch: Arc<Watch>,
    config: Arc<ServerConfig>,
    /// The start of the times of the machine.
    epoch: Instant,
    opened_at: Instant,
    /// When the stream reaches its maximal age (G14).
    ends_at: Option<Instant>,
    /// When the stream ends because the server shuts down.
    stops_at: Option<Instant>,
    peer: Peer,
    /// What the client may read; `None` before the first request, and without an authorizer.
    access: Option<Arc<Access>>,
    /// Metadata of the client that gives no parameter, as long as no constraints named it.
    skipped_metadata: Vec<SkippedMetadata>,
    /// The revision whose keys were compared with it.
    skipped_checked_at: Option<Revision>,
    /// The first request has arrived.
    has_begun: bool,
    /// When the authorizer is asked again.
    authorize_at: Option<Instant>,
    /// When the machine has to be called again.
    due_at: Option<Instant>,
    registration: Registration,
    /// A place among the streams that may be open at the same time (G9).
    _permit: OwnedSemaphorePermit,
    /// Dropped last: when the client receives the end of its stream, the place of the stream is
    /// already free.
    end_status: EndStatus,
}

/// What all streams of a server share.
#[derive(Debug)]
pub(crate) struct ServerParts {
    pub(crate) cache: Arc<Cache>,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) clients: Arc<ClientGroups>,
    pub(crate) registry: Arc<StreamRegistry>,
    pub(crate) lists: Arc<Lists>,
}

/// The status that ends the stream. It is sent even if the task panics.
#[derive(Debug)]
struct EndStatus {
    slot: Arc<ResponseSlot>,
    status: Option<Status>,
}

impl Drop for EndStatus {
    fn drop(&mut self) {
        let status = self.status.take();
        self.slot.end(status.unwrap_or_else(|| Status::unavailable("the stream ended")));
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Poll::Ready(status) = this.poll_status(cx) else { return Poll::Pending };
        let client = this.client();
        debug!(node = client.id, cluster = client.cluster, code = ?status.code(), "stream ended");
        let (service, protocol, after) = (&this.service, this.protocol, this.opened_at.elapsed());
        this.notify(Event::Ended { service, protocol, code: status.code(), after });
        this.end_status.status = Some(status);
        Poll::Ready(())
    }
}

impl Driver {
    pub(crate) fn new(
        server: &ServerParts,
        (service, protocol): (Service, Protocol),
        peer: Peer,
        inbound: Requests<axum::body::Body>,
        permit: OwnedSemaphorePermit,
    ) -> (Self, Arc<ResponseSlot>) {
        let ServerParts { cache, config, clients, registry, lists } = server;
        let watch = cache.watch();
        let label = label(&service, protocol);
        let type_url = match &service {
            Service::Aggregated => String::new(),
            Service::Single(type_url) => type_url.as_str().to_owned(),
        };
        let stream = config.stream.clone();
        let machine = Stream::new(Arc::clone(&watch), service.clone(), protocol, stream);
        let opened_at = Instant::now();
        let slot = Arc::<ResponseSlot>::default();
        let driver = Self {
            service,
            protocol,
            machine,
            inbound,
            is_open: true,
            is_due: false,
            requests_in_a_row: 0,
            alarm: Alarm::default(),
            clients: Arc::clone(clients),
            membership: None,
            skimmer: Skimmer::new(type_url)
                .with_parameters(config.parameters.clone(), peer.clone())
                .with_lists(Arc::clone(lists)),
            registration: registry.list(Arc::clone(&watch), label),
            watch,
            config: Arc::clone(config),
            epoch: Instant::from_std(cache.epoch(opened_at.into_std())),
            opened_at,
            ends_at: config
                .stream_age
                .map(|age| opened_at + jittered(age))
                .into_iter()
                .chain(peer.ends_at)
                .min(),
            peer,
            access: None,
            skipped_metadata: Vec::new(),
            skipped_checked_at: None,
            has_begun: false,
            authorize_at: config.authorizer.as_ref().map(|_| opened_at + jittered(config.authorize_every)),
            stops_at: None,
            due_at: None,
            _permit: permit,
            end_status: EndStatus { slot: Arc::clone(&slot), status: None },
        };
        driver.notify(Event::Accepted { service: &driver.service, protocol });
        (driver, slot)
    }

    /// Does everything that can be done now; ready with the status that ends the stream.
    fn poll_status(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        // When no request is available, the next one wakes the task.
        let mut may_read = true;
        loop {
            // Requests go before responses. After some requests in a row, a response gets its turn.
            if may_read && self.is_open && self.requests_in_a_row < REQUESTS_IN_A_ROW {
                match self.inbound.poll_next(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Err(status) = self.on_frame(&frame) {
                            return Poll::Ready(status);
                        }
                        self.requests_in_a_row += 1 + frame.len() / SMALL_REQUEST_BYTES;
                        self.is_due = true;
                        continue;
                    }
                    // The client has closed its side, and may still wait for responses.
                    Poll::Ready(None) => (self.is_open, self.is_due) = (false, true),
                    Poll::Ready(Some(Err(error))) => {
                        if matches!(error, RequestError::TooLarge { .. }) {
                            self.notify(Event::RequestTooLarge);
                        }
                        return Poll::Ready(error.into());
                    }
                    Poll::Pending => (may_read, self.requests_in_a_row) = (false, 0),
                }
            }
            self.is_due |= self.watch.poll_woken(cx).is_ready();
            // Check the reasons for a wake-up only after the wake-up was taken, or one may be
            // missed.
            if self.stops_at.is_none()
                && let Some(within) = self.registration.stops_within()
            {
                self.stops_at = Some(Instant::now() + within.mul_f64(random()));
            }
            if self.stops_at.is_some_and(|at| at <= Instant::now()) {
                // G14: the client reconnects to another server, or to this one after its restart.
                return Poll::Ready(Status::unavailable("the server is shutting down"));
            }
            // G11: a stream whose client reads nothing stays open, and still answers.
            self.send_reports();
            match self.end_status.slot.room(self.is_due, cx) {
                SlotState::Closed => return Poll::Ready(Status::cancelled("the client went away")),
                // The machine is called only when there is room, so that it sends the newest
                // content and nothing queues up.
                SlotState::Free if self.is_due => match self.next() {
                    (Next::Send(response), rest) => {
                        self.check_size(&response);
                        self.notify(Event::Sent(&response));
                        self.end_status.slot.put(response);
                        // Usually nothing else is due; then the driver needs no wake-up when there
                        // is room again.
                        if let Some(until) = rest {
                            self.wait(until);
                        }
                        continue;
                    }
                    (Next::Wait { .. }, _) if !self.is_open => return Poll::Ready(Status::ok("")),
                    (Next::Wait { until }, _) => self.wait(until),
                    (Next::Close(error), _) => return Poll::Ready(self.close(&error)),
                },
                SlotState::Free | SlotState::Taken => {}
            }
            if self.requests_in_a_row >= REQUESTS_IN_A_ROW {
                // Give other streams of this thread a turn.
                self.requests_in_a_row = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // While the transport has no room, the machine need not be called.
            let due_at = self.due_at.filter(|_| !self.is_due);
            let others = [self.ends_at, self.stops_at, self.authorize_at];
            let time = due_at.into_iter().chain(others.into_iter().flatten()).min();
            let Some(time) = time else { return Poll::Pending };
            if self.alarm.poll(time, cx).is_pending() {
                return Poll::Pending;
            }
            if self.ends_at == Some(time) {
                // G14: the client reconnects at once, perhaps to another server.
                return Poll::Ready(Status::ok("the stream reached its maximal age"));
            }
            if self.authorize_at == Some(time) {
                if let Err(status) = self.authorize_again() {
                    return Poll::Ready(status);
                }
                continue;
            }
            if self.stops_at != Some(time) {
                (self.is_due, self.due_at) = (true, None);
            }
        }
    }

    /// Gives the node of the client to the machine, and joins the group of the client (S33b).
    fn set_client(&mut self) {
        let Some(client) = self.skimmer.client() else { return };
        self.watch.name_client(client.name());
        let (parameters, honours_ttl) = (client.parameters.clone(), self.config.honours_ttl(client));
        self.watch.describe_client(parameters.clone());
        let (service, peer) = (&self.service, &self.peer);
        let machine = &mut self.machine;
        machine.on_node(parameters);
        if honours_ttl {
            machine.on_ttl_support();
        }
        self.membership = self.clients.join(service, client, peer, |group| machine.join(group));
    }

    /// Asks the authorizer, before anything else in the first request is used.
    fn authorize(&mut self) -> Result<(), Status> {
        let access =
            self.config.access(&self.peer, self.client()).inspect_err(|status| self.on_denied(status))?;
        if let Some(access) = &access {
            self.machine.on_access(Arc::clone(access));
        }
        self.access = access;
        Ok(())
    }

    /// Asks the authorizer again. If the access has changed, the stream ends, because a new access
    /// needs a new selection.
    fn authorize_again(&mut self) -> Result<(), Status> {
        self.authorize_at = Some(Instant::now() + self.config.authorize_every);
        // A client may omit its node (G6), so check whether the authorizer was asked, not whether
        // the client is known.
        if !self.has_begun {
            return Ok(());
        }
        let access =
            self.config.access(&self.peer, self.client()).inspect_err(|status| self.on_denied(status))?;
        if access == self.access {
            return Ok(());
        }
        Err(Status::unavailable("the access of this client has changed: reconnect"))
    }

    fn on_denied(&self, status: &Status) {
        self.log_once(Occurrence::Denied, status.message());
        self.notify(Event::Denied { code: status.code() });
    }

    fn on_frame(&mut self, frame: &[u8]) -> Result<(), Status> {
        let now = self.now();
        let was_known = self.skimmer.client().is_some();
        let request = self.skimmer.request(self.machine.protocol(), frame);
        let request = request.map_err(|error| self.on_unreadable(&error))?;
        let is_first = !self.has_begun;
        let client_is_new = !was_known && self.skimmer.client().is_some();
        if is_first {
            self.authorize()?;
            self.has_begun = true;
        } else if client_is_new && self.config.authorizer.is_some() {
            // The authorizer decided before the node was known.
            self.authorize_again()?;
        }
        if client_is_new {
            self.set_client();
        }
        if request.brings_resources() {
            self.registration.on_brought();
        }
        let nonce = request.response_nonce();
        let verdict = self.machine.on_request(now, request);
        let denied = self.machine.take_denied_names();
        if is_first {
            self.notify(Event::Opened);
        }
        if let Some(denied) = denied {
            self.on_denied_names(&denied);
        }
        // C20: the stream is listed from its first request on. Without a node it is listed as a
        // client of its own.
        if is_first || client_is_new {
            let details = ClientDetails::of(self.client(), self.access.as_deref(), &self.peer);
            let ClientName { id, cluster } = &details.client;
            let (node, cluster, identity) = (&**id, &**cluster, self.peer.name());
            let ClientDetails { parameters, user_agent, .. } = &details;
            debug!(node, cluster, identity, %parameters, user_agent, "stream opened");
            self.skipped_metadata.clone_from(&details.skipped_metadata);
            self.registration.name(details);
        }
        if self.skimmer.take_node_change() {
            debug!(
                node = self.client().id,
                "a request has another node than the first one, which is ignored"
            );
            self.notify(Event::NodeChanged);
        }
        match (nonce, verdict.map_err(|error| self.close(&error))?) {
            (_, Some(verdict)) => {
                self.notify(Event::Answered(&verdict));
                self.log_verdict(&verdict);
                self.note_rejection(&verdict);
            }
            // D5: a stale nonce blocks nothing, and is no verdict on any response.
            (Some(nonce), None) => {
                debug!(
                    node = self.client().id,
                    %nonce,
                    "stale nonce: no response with it waits for an ACK; the request is no ACK"
                );
                self.notify(Event::StaleNonce);
            }
            (None, None) => {}
        }
        self.end_rejections();
        Ok(())
    }

    /// A client that unsubscribed from what it rejected does not reject it any more.
    fn end_rejections(&self) {
        for type_url in self.registration.rejected_types() {
            if !self.machine.rejects(&type_url) {
                self.registration.on_corrected(&type_url);
            }
        }
    }

    /// G1: the meaning of the request is unknown, so the stream ends.
    fn on_unreadable(&self, error: &SkimError) -> Status {
        self.notify(Event::Unreadable(error));
        let text = error.to_string();
        self.log_once(Occurrence::Refused, &text);
        match error {
            SkimError::TypeUrlTooLong { .. } => Status::resource_exhausted(text),
            SkimError::Malformed(_) | SkimError::NotUtf8 { .. } => Status::internal(text),
        }
    }

    /// Calls the machine again at this time, unless something happens earlier.
    fn wait(&mut self, until: Option<Duration>) {
        (self.is_due, self.due_at) = (false, until.map(|until| self.epoch + until));
    }

    /// T46: a client may send a number long before a commit adds the key, and resources for others
    /// are sent to it then. So each commit that wakes the stream is checked.
    fn log_skipped_metadata(&mut self) {
        if self.skipped_metadata.is_empty() {
            return;
        }
        let revision = self.watch.read(Snapshot::revision);
        if self.skipped_checked_at.replace(revision) == Some(revision) {
            return;
        }
        let skipped = std::mem::take(&mut self.skipped_metadata);
        let is_named =
            |skipped: &SkippedMetadata, snapshot: &Snapshot| snapshot.is_key_named(&skipped.parameter);
        let (named, others) = self.watch.read(|snapshot| -> (Vec<_>, Vec<_>) {
            skipped.into_iter().partition(|skipped| is_named(skipped, snapshot))
        });
        self.skipped_metadata = others;
        let [first, more @ ..] = &*named else { return };
        let mut detail = format!("{} is {}: {}", first.path, first.found, first.cure());
        if !more.is_empty() {
            detail.push_str(&format!("; {} more, see the page of the client", more.len()));
        }
        self.log_once(Occurrence::SkippedMetadata, &detail);
    }

    /// What to do now. After a response it also returns until when nothing is due, or `None` if
    /// something is due now.
    fn next(&mut self) -> (Next, Option<Option<Duration>>) {
        self.log_skipped_metadata();
        let (now, is_open, machine) = (self.now(), self.is_open, &mut self.machine);
        // The machines need a snapshot that is read after the last request was handed to them.
        let next = self.watch.read(|snapshot| {
            let next = machine.next(now, snapshot);
            let is_sent = matches!(next, Next::Send(_));
            let rest = if is_sent && is_open { machine.until_due(now, snapshot) } else { None };
            (next, rest)
        });
        if self.machine.has_rejections() {
            self.report_rejections();
        }
        next
    }

    fn send_reports(&mut self) {
        for requester in self.registration.take_report_requests() {
            let machine = &mut self.machine;
            let report = self.watch.read(|snapshot| machine.report(snapshot));
            // The requester may have given up.
            _ = requester.send(report);
        }
    }

    fn log_verdict(&self, verdict: &Verdict) {
        let id = &self.client().id;
        match verdict {
            Verdict::Acked { type_url, nonce } => {
                debug!(node = id, r#type = type_url.message_name(), %nonce, "ACK");
            }
            Verdict::Nacked { type_url, nonce, detail, is_repeat } => {
                debug!(node = id, r#type = type_url.message_name(), %nonce, detail, is_repeat, "NACK");
            }
        }
    }

    /// A client can repeat the event as often as it likes, so repetitions are summed up.
    fn log_once(&self, what: Occurrence, detail: &str) {
        let key = (self.client().name(), self.peer.name().to_owned(), what);
        self.registration.repeat_log().on(key, detail);
    }

    fn on_denied_names(&self, denied: &DeniedNames) {
        // G15: a client chooses the names and their number.
        let reason = shortened(&denied.reason, REASON_LIMIT_BYTES);
        let more = denied.count - 1;
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        self.log_once(Occurrence::NamesDenied(denied.type_url.clone()), &format!("{reason}{more}"));
        self.notify(Event::NamesDenied(denied));
    }

    /// Keeps what the client rejects for the page, and logs a NACK that is no repeat (S6c).
    fn note_rejection(&mut self, verdict: &Verdict) {
        let (Verdict::Nacked { type_url, .. } | Verdict::Acked { type_url, .. }) = verdict;
        let detail = match verdict {
            Verdict::Nacked { detail, .. } => Some(&**detail),
            Verdict::Acked { .. } => None,
        };
        if detail.is_none() && !self.registration.rejects(type_url) {
            return;
        }
        let machine = &mut self.machine;
        let suspects = self.watch.read(|snapshot| machine.rejected(type_url, snapshot));
        self.registration.on_rejected(type_url, &suspects, detail);
        if let Verdict::Nacked { detail, is_repeat: false, .. } = verdict {
            self.log_nack(type_url, &suspects.variants, detail, Found::InResponse);
        }
    }

    /// S6f: reports the rejections that count now.
    fn report_rejections(&mut self) {
        let machine = &mut self.machine;
        let rejections = self.watch.read(|snapshot| machine.take_rejections(snapshot));
        for Rejection { type_url, variants, is_alone, is_found, detail } in &rejections {
            if *is_found {
                let found = if *is_alone { Found::Alone } else { Found::Together };
                self.log_nack(type_url, variants, detail, found);
            }
            let (alone, peer) = (variants.first().filter(|_| *is_alone), &self.peer);
            self.notify(Event::Rejected { type_url, variants, alone, peer, detail });
        }
    }

    /// G15: the message of the client is only logged, and it may send many.
    fn log_nack(&self, type_url: &TypeUrl, variants: &[Arc<Variant>], detail: &str, found: Found) {
        let (client, identity) = (&self.client().name(), self.peer.name());
        self.registration.nack_log().on(Nack { client, identity, type_url, variants, detail, found });
    }

    fn notify(&self, event: Event<'_>) {
        self.registration.note(&event);
        if let Some(observer) = &self.config.observer {
            observer.on_event(self.client(), event);
        }
    }

    /// G10: a resource that cannot be split is sent as it is. Most clients refuse a message of this
    /// size.
    fn check_size(&self, response: &Response) {
        let size_bytes: usize = response.bodies.iter().map(|body| body.len()).sum();
        if size_bytes > COMMON_LIMIT_BYTES {
            self.log_once(Occurrence::Large(response.type_url.clone()), &format!("{size_bytes} bytes"));
        }
    }

    fn close(&self, error: &StreamError) -> Status {
        self.notify(Event::Refused(error));
        self.log_once(Occurrence::Refused, &error.to_string());
        close_status(error)
    }

    /// The client of the stream; an empty one before the first request with a node.
    fn client(&self) -> &Client {
        static NOBODY: LazyLock<Client> = LazyLock::new(Client::default);
        self.skimmer.client().unwrap_or(&NOBODY)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

/// A timer for the task.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready when the time has come. A later time than before does not reset the timer: an
    /// unnecessary wake-up costs less than a reset with every update.
    fn poll(&mut self, time: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(time)));
        if sleep.deadline() > time {
            sleep.as_mut().reset(time);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= time {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(time);
        }
        Poll::Pending
    }
}

/// The service and protocol of a stream, for people.
fn label(service: &Service, protocol: Protocol) -> String {
    let protocol = match protocol {
        Protocol::Sotw => "SotW",
        Protocol::Delta => "delta",
    };
    match service {
        Service::Aggregated => format!("ADS {protocol}"),
        Service::Single(type_url) => format!("{} {protocol}", type_url.message_name()),
    }
}

/// Maps an error of the machine to a gRPC status. All such errors are mapped here.
///
/// A client of gRPC's C core takes 8 KiB of metadata, and a text outside of ASCII has three times its bytes there.
fn close_status(error: &StreamError) -> Status {
    let text = shortened(&error.to_string(), STATUS_TEXT_LIMIT).into_owned();
    match error {
        StreamError::TooManyNames { .. }
        | StreamError::TooManyParameters { .. }
        | StreamError::TooManyTypes { .. } => Status::resource_exhausted(text),
        StreamError::FellBehind { .. } | StreamError::TooManyRoutesAway { .. } => Status::unavailable(text),
        _ => Status::invalid_argument(text),
    }
}

/// How long the message of a status may be.
const STATUS_TEXT_LIMIT: usize = 1200;
/// The default message limit of gRPC clients.
const COMMON_LIMIT_BYTES: usize = 4 << 20;

/// Requests in a row before a response, and other streams of the thread, get their turn.
const REQUESTS_IN_A_ROW: usize = 64;

/// A longer request counts as several: its names are work.
const SMALL_REQUEST_BYTES: usize = 1024;

/// The longest reason for a denied name in the log.
const REASON_LIMIT_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g14_the_maximal_age_is_spread_by_a_tenth() {
        let age = Duration::from_secs(100);
        for _ in 0..100 {
            let jittered = jittered(age).as_secs();
            assert!((90..=110).contains(&jittered), "{jittered}");
        }
    }
}
