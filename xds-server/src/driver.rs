//! One task per stream: hands requests to the machine and its responses to the transport. It
//! decides nothing.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tracing::debug;
use xds_core::server::{
    DeltaRequest, DeltaStream, Next, Response, Service, SotwRequest, SotwStream, StreamError, TypeReport,
    Verdict,
};
use xds_core::{Access, Cache, ClientName, Snapshot, TypeUrl, Variant, Watch};

use crate::client_groups::{ClientGroups, Membership};
use crate::config::ServerConfig;
use crate::connections::{jittered, random};
use crate::responses::{ResponseSlot, SlotState};
use crate::observe::Event;
use crate::peer::Peer;
use crate::protocol::Protocol;
use crate::repeat_log::Occurrence;
use crate::requests::{RequestError, Requests};
use crate::stream_registry::{ClientDetails, Registration, StreamRegistry};
use crate::skim::{Client, Lists, SkimError, Skimmer};

/// A stream with its machine: a future that is done when the client or the server ends the stream.
///
/// Written out rather than with `select!`, which makes and drops a future for each branch whenever
/// it is polled: of all that happens to a stream most are updates and their ACKs, and the branches
/// cost more than those.
#[derive(Debug)]
pub(crate) struct Driver {
    service: Service,
    protocol: Protocol,
    machine: Machine,
    inbound: Requests<axum::body::Body>,
    /// The client may still say something.
    is_open: bool,
    /// The machine may have something to send.
    is_due: bool,
    requests_in_a_row: u32,
    alarm: Alarm,
    clients: Arc<ClientGroups>,
    membership: Option<Membership>,
    skimmer: Skimmer,
    watch: Arc<Watch>,
    config: Arc<ServerConfig>,
    /// From when the times of the machine count.
    epoch: Instant,
    opened_at: Instant,
    /// When it ends though nothing is wrong (G14).
    ends_at: Option<Instant>,
    /// When it ends because the server does.
    stops_at: Option<Instant>,
    peer: Peer,
    /// What its client may read; `None` before the first request, and where nobody is asked.
    access: Option<Arc<Access>>,
    /// The first request came.
    has_begun: bool,
    /// When that is asked again.
    authorize_at: Option<Instant>,
    /// When the machine has to be asked again.
    due_at: Option<Instant>,
    registration: Registration,
    /// Of those that may be at the same time (G9).
    _permit: OwnedSemaphorePermit,
    /// Dropped last: a client that is told of the end finds the place of its stream empty.
    end_status: EndStatus,
}

/// What a stream is of, and what it shares with the others.
pub(crate) struct ServerParts<'a> {
    pub(crate) cache: &'a Arc<Cache>,
    pub(crate) config: &'a Arc<ServerConfig>,
    pub(crate) clients: &'a Arc<ClientGroups>,
    pub(crate) registry: &'a Arc<StreamRegistry>,
    pub(crate) lists: &'a Arc<Lists>,
}

#[derive(Debug)]
enum Machine {
    Sotw(SotwStream),
    Delta(DeltaStream),
}

/// A request as the machine of its protocol takes it.
enum Request {
    Sotw(SotwRequest),
    Delta(DeltaRequest),
}

/// The status with which the transport ends the stream, also when the task ends by itself.
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

impl Machine {
    fn next(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        match self {
            Self::Sotw(stream) => stream.next(now, snapshot),
            Self::Delta(stream) => stream.next(now, snapshot),
        }
    }

    fn until_due(&mut self, now: Duration, snapshot: &Snapshot) -> Option<Option<Duration>> {
        match self {
            Self::Sotw(stream) => stream.until_due(now, snapshot),
            Self::Delta(stream) => stream.until_due(now, snapshot),
        }
    }

    fn report(&mut self, snapshot: &Snapshot) -> Vec<TypeReport> {
        match self {
            Self::Sotw(stream) => stream.report(snapshot),
            Self::Delta(stream) => stream.report(snapshot),
        }
    }

    fn rejected(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        match self {
            Self::Sotw(stream) => stream.rejected(type_url, snapshot),
            Self::Delta(stream) => stream.rejected(type_url, snapshot),
        }
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
        this.tell(Event::Ended { service, protocol, code: status.code(), after });
        this.end_status.status = Some(status);
        Poll::Ready(())
    }
}

impl Driver {
    pub(crate) fn new(
        shared: &ServerParts<'_>,
        (service, protocol): (Service, Protocol),
        peer: Peer,
        inbound: Requests<axum::body::Body>,
        permit: OwnedSemaphorePermit,
    ) -> (Self, Arc<ResponseSlot>) {
        let ServerParts { cache, config, clients, registry, lists } = shared;
        let watch = cache.watch();
        let label = label(&service, protocol);
        let type_url = match &service {
            Service::Aggregated => String::new(),
            Service::Single(type_url) => type_url.as_str().to_owned(),
        };
        let stream = config.stream.clone();
        let (of_machine, of_service) = (Arc::clone(&watch), service.clone());
        let machine = match protocol {
            Protocol::Sotw => Machine::Sotw(SotwStream::new(of_machine, of_service, stream)),
            Protocol::Delta => Machine::Delta(DeltaStream::new(of_machine, of_service, stream)),
        };
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
            skimmer: Skimmer::new(type_url, Arc::clone(&config.parameters)).with_lists(Arc::clone(lists)),
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
            has_begun: false,
            authorize_at: config.authorizer.as_ref().map(|_| opened_at + jittered(config.authorize_every)),
            stops_at: None,
            due_at: None,
            _permit: permit,
            end_status: EndStatus { slot: Arc::clone(&slot), status: None },
        };
        driver.tell(Event::Accepted { service: &driver.service, protocol });
        (driver, slot)
    }

    /// Does all that can be done now; ready with the status that ends the stream.
    fn poll_status(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        // Once there is no request, the next one wakes the task.
        let mut may_read = true;
        loop {
            // Requests before pushes; after some in a row pushes get a turn.
            if may_read && self.is_open && self.requests_in_a_row < REQUESTS_IN_A_ROW {
                match self.inbound.poll_next(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Err(status) = self.on_frame(&frame) {
                            return Poll::Ready(status);
                        }
                        self.requests_in_a_row += 1;
                        self.is_due = true;
                        continue;
                    }
                    // The client has said all it will say, and may still wait for the answer.
                    Poll::Ready(None) => (self.is_open, self.is_due) = (false, true),
                    Poll::Ready(Some(Err(error))) => {
                        if matches!(error, RequestError::TooLarge { .. }) {
                            self.tell(Event::RequestTooLarge);
                        }
                        return Poll::Ready(error.into());
                    }
                    Poll::Pending => (may_read, self.requests_in_a_row) = (false, 0),
                }
            }
            self.is_due |= self.watch.poll_woken(cx).is_ready();
            // What is woken for is looked at after the wake-up was taken.
            if self.stops_at.is_none()
                && let Some(within) = self.registration.stops_within()
            {
                self.stops_at = Some(Instant::now() + within.mul_f64(random()));
            }
            if self.stops_at.is_some_and(|at| at <= Instant::now()) {
                // G14: the client comes back to another server, or to this one when it is up again.
                return Poll::Ready(Status::unavailable("the server is shutting down"));
            }
            // G11: also while a client reads nothing, whose stream is kept.
            self.report();
            match self.end_status.slot.room(self.is_due, cx) {
                SlotState::Closed => return Poll::Ready(Status::cancelled("the client went away")),
                // Asked only when there is room, so that what is sent is the newest and nothing
                // queues up.
                SlotState::Free if self.is_due => match self.next() {
                    (Next::Send(response), rest) => {
                        self.check_size(&response);
                        self.tell(Event::Sent(&response));
                        self.end_status.slot.put(response);
                        // Mostly nothing else is due, and then nobody has to say when there is room
                        // again.
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
                // Other streams of this thread get a turn too.
                self.requests_in_a_row = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // While the transport has no room there is nothing to be asked again for.
            let due_at = self.due_at.filter(|_| !self.is_due);
            let others = [self.ends_at, self.stops_at, self.authorize_at];
            let time = due_at.into_iter().chain(others.into_iter().flatten()).min();
            let Some(time) = time else { return Poll::Pending };
            if self.alarm.poll(time, cx).is_pending() {
                return Poll::Pending;
            }
            if self.ends_at == Some(time) {
                // G14: the client comes back at once, perhaps to another server.
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

    /// Tells the machine whose stream it is.
    fn introduce(&mut self) {
        let Some(client) = self.skimmer.client() else { return };
        self.watch.name_client(client.name());
        let (parameters, honours_ttl) = (client.parameters.clone(), self.config.honours_ttl(client));
        let (service, peer) = (&self.service, &self.peer);
        self.membership = match &mut self.machine {
            Machine::Sotw(stream) => {
                stream.on_node(parameters);
                if honours_ttl {
                    stream.on_ttl_support();
                }
                self.clients.join(service, client, peer, |group| stream.join(group))
            }
            Machine::Delta(stream) => {
                stream.on_node(parameters);
                if honours_ttl {
                    stream.on_ttl_support();
                }
                self.clients.join(service, client, peer, |group| stream.join(group))
            }
        };
    }

    /// Asks what the client may read, before anything of its first request is looked at.
    fn authorize(&mut self) -> Result<(), Status> {
        let access =
            self.config.access(&self.peer, self.client()).inspect_err(|status| self.on_denied(status))?;
        if let Some(access) = &access {
            match &mut self.machine {
                Machine::Sotw(stream) => stream.on_access(Arc::clone(access)),
                Machine::Delta(stream) => stream.on_access(Arc::clone(access)),
            }
        }
        self.access = access;
        Ok(())
    }

    /// Asks again. What is not the same any more begins with a new stream: what its client may read
    /// is a selection of its own.
    fn authorize_again(&mut self) -> Result<(), Status> {
        self.authorize_at = Some(Instant::now() + self.config.authorize_every);
        // A client need not say who it is (G6) to be served, so what counts is whether it was asked
        // about.
        if !self.has_begun {
            return Ok(());
        }
        let access =
            self.config.access(&self.peer, self.client()).inspect_err(|status| self.on_denied(status))?;
        if access == self.access {
            return Ok(());
        }
        Err(Status::unavailable("what this client may read has changed: connect again"))
    }

    fn on_denied(&self, status: &Status) {
        self.log_once(Occurrence::Denied, status.message());
        self.tell(Event::Denied { code: status.code() });
    }

    fn on_frame(&mut self, frame: &[u8]) -> Result<(), Status> {
        let now = self.now();
        let was_known = self.skimmer.client().is_some();
        let request = match &self.machine {
            Machine::Sotw(_) => self.skimmer.sotw(frame).map(Request::Sotw),
            Machine::Delta(_) => self.skimmer.delta(frame).map(Request::Delta),
        };
        let request = request.map_err(|error| self.on_unreadable(&error))?;
        let is_first = !self.has_begun;
        let is_introduced = !was_known && self.skimmer.client().is_some();
        if is_first {
            self.authorize()?;
            self.has_begun = true;
        } else if is_introduced && self.config.authorizer.is_some() {
            // The answer was about nobody in particular.
            self.authorize_again()?;
        }
        if is_introduced {
            self.introduce();
        }
        let (nonce, verdict) = match (&mut self.machine, request) {
            (Machine::Sotw(stream), Request::Sotw(request)) => {
                (request.response_nonce, stream.on_request(now, request))
            }
            (Machine::Delta(stream), Request::Delta(request)) => {
                (request.response_nonce, stream.on_request(request))
            }
            _ => unreachable!("a request is read as the machine has it"),
        };
        if is_first {
            self.tell(Event::Opened);
        }
        // C20: from the first request on the stream is listed, as that of nobody until a request
        // says whose it is.
        if is_first || is_introduced {
            let details = ClientDetails::of(self.client(), self.access.as_deref(), &self.peer);
            let ClientName { id, cluster } = &details.client;
            let (node, cluster, identity) = (&**id, &**cluster, self.peer.name());
            let ClientDetails { parameters, user_agent, .. } = &details;
            debug!(node, cluster, identity, %parameters, user_agent, "stream opened");
            self.registration.name(details);
        }
        if self.skimmer.take_node_change() {
            debug!(node = self.client().id, "a request brought another node, which changes nothing");
            self.tell(Event::NodeChanged);
        }
        match (nonce, verdict.map_err(|error| self.close(&error))?) {
            (_, Some(verdict)) => {
                self.tell(Event::Answered(&verdict));
                self.log(&verdict);
                self.tell_rejected(&verdict);
            }
            // D5: it blocks nothing and says nothing of any response.
            (Some(nonce), None) => {
                debug!(node = self.client().id, %nonce, "the nonce is not that of a response that waits");
                self.tell(Event::StaleNonce);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// G1: what it means cannot be known, so the stream ends.
    fn on_unreadable(&self, error: &SkimError) -> Status {
        self.tell(Event::Unreadable(error));
        let text = error.to_string();
        self.log_once(Occurrence::Refused, &text);
        match error {
            SkimError::TypeUrlTooLong { .. } => Status::resource_exhausted(text),
            SkimError::Malformed(_) | SkimError::NotUtf8 { .. } => Status::internal(text),
        }
    }

    /// Asks the machine again at this time, if nothing happens before.
    fn wait(&mut self, until: Option<Duration>) {
        (self.is_due, self.due_at) = (false, until.map(|until| self.epoch + until));
    }

    /// What to do now; after a response also until when nothing is due, unless something is.
    fn next(&mut self) -> (Next, Option<Option<Duration>>) {
        let (now, is_open, machine) = (self.now(), self.is_open, &mut self.machine);
        // Read after the last request was handed over, as the machines ask for.
        self.watch.read(|snapshot| {
            let next = machine.next(now, snapshot);
            let is_sent = matches!(next, Next::Send(_));
            let rest = if is_sent && is_open { machine.until_due(now, snapshot) } else { None };
            (next, rest)
        })
    }

    fn report(&mut self) {
        for asker in self.registration.take_report_requests() {
            let machine = &mut self.machine;
            let report = self.watch.cache().read(|snapshot| machine.report(snapshot));
            // Who asked may have given up.
            _ = asker.send(report);
        }
    }

    fn log(&self, verdict: &Verdict) {
        let id = &self.client().id;
        match verdict {
            Verdict::Acked { type_url, nonce } => {
                debug!(node = id, r#type = type_url.message_name(), %nonce, "ACK");
            }
            // G15: the words of the client are for people, and it may send many.
            Verdict::Nacked { type_url, nonce, detail } => {
                debug!(node = id, r#type = type_url.message_name(), %nonce, detail, "NACK");
                self.log_once(Occurrence::Nack(type_url.clone()), detail);
            }
        }
    }

    /// A client may do it as often as it likes.
    fn log_once(&self, what: Occurrence, detail: &str) {
        let key = (self.client().name(), self.peer.name().to_owned(), what);
        self.registration.repeat_log().on(key, detail);
    }

    fn tell_rejected(&self, verdict: &Verdict) {
        if let Verdict::Nacked { type_url, detail, .. } = verdict
            && self.config.observer.is_some()
        {
            let variants = self.watch.cache().read(|snapshot| self.machine.rejected(type_url, snapshot));
            self.tell(Event::Rejected { type_url, variants: &variants, detail });
        }
    }

    fn tell(&self, event: Event<'_>) {
        self.registration.note(&event);
        if let Some(observer) = &self.config.observer {
            observer.on_event(self.client(), event);
        }
    }

    /// G10: what cannot be parted is sent as it is, and most clients refuse it.
    fn check_size(&self, response: &Response) {
        let size_bytes: usize = response.bodies.iter().map(|body| body.len()).sum();
        if size_bytes > COMMON_LIMIT_BYTES {
            self.log_once(Occurrence::Large(response.type_url.clone()), &format!("{size_bytes} bytes"));
        }
    }

    fn close(&self, error: &StreamError) -> Status {
        self.tell(Event::Refused(error));
        self.log_once(Occurrence::Refused, &error.to_string());
        close_status(error)
    }

    /// Whose stream it is; nobody's in particular before the first request that says so.
    fn client(&self) -> &Client {
        static NOBODY: LazyLock<Client> = LazyLock::new(Client::default);
        self.skimmer.client().unwrap_or(&NOBODY)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

/// A time to wake up at.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready when the time has come. A time that is later than the one before does not change what
    /// was set: to be woken in vain costs less than to set it with every update.
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

/// What a stream is for.
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

/// The one place where a machine's error becomes a gRPC status.
fn close_status(error: &StreamError) -> Status {
    let text = error.to_string();
    match error {
        StreamError::TooManyNames { .. }
        | StreamError::TooManyParameters { .. }
        | StreamError::TooManyTypes { .. } => Status::resource_exhausted(text),
        StreamError::FellBehind { .. } => Status::unavailable(text),
        _ => Status::invalid_argument(text),
    }
}

/// What clients accept in one message unless they are told otherwise.
const COMMON_LIMIT_BYTES: usize = 4 << 20;

/// Requests read before a push gets its turn.
const REQUESTS_IN_A_ROW: u32 = 64;

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
