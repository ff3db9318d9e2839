//! Which streams are open, how to ask them what their clients have, and how to tell them to end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::timeout;
use xds_core::server::{TypeReport, Verdict};
use xds_core::{Access, ClientName, Parameters, TypeUrl, Watch, shortened};

use crate::observe::Event;
use crate::peer::Peer;
use crate::repeat_log::RepeatLog;
use crate::skim::Client;

/// All streams of a server.
#[derive(Debug, Default)]
pub(crate) struct StreamRegistry {
    streams: Mutex<Streams>,
    /// Once it is known over how long the streams are to end.
    stopping: OnceLock<Duration>,
    /// What their clients do that the log tells.
    repeat_log: Arc<RepeatLog>,
    /// How often something changed that a list of clients shows, but for counts.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, Arc<OpenStream>>,
    /// Those that said whose they are, by client: in order for who lists them, so that nobody sorts
    /// 10,000 for a page.
    of_clients: BTreeMap<Key, Vec<Arc<OpenStream>>>,
}

/// Whose streams are one client's: those of one id and cluster whose connections showed the same
/// identity. Who says the same of itself and shows another is another client, and without an id
/// each stream is one of its own (G6).
type Key = (ClientName, String, Option<u64>);

/// One stream.
///
/// What it is asked from outside waits here, and its task is woken by the one waker that it has
/// anyway: a channel each, looked at with every update, would cost more than the update.
#[derive(Debug)]
pub(crate) struct OpenStream {
    watch: Arc<Watch>,
    /// What it is for, for people.
    pub(crate) label: String,
    pub(crate) id: u64,
    pub(crate) opened_at: SystemTime,
    sent: AtomicU64,
    acked: AtomicU64,
    nacked: AtomicU64,
    has_report_requests: AtomicBool,
    /// Unknown before the first request.
    details: OnceLock<ClientDetails>,
    /// What a later request said, where the first one had no node.
    late_details: OnceLock<ClientDetails>,
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    last_nack: Option<LastNack>,
    report_requests: Vec<ReportSender>,
    has_ended: bool,
}

/// Where the answer goes.
pub(crate) type ReportSender = oneshot::Sender<Vec<TypeReport>>;

/// Whose stream it is.
#[derive(Debug)]
pub(crate) struct ClientDetails {
    pub(crate) client: ClientName,
    /// `node.user_agent_name`.
    pub(crate) user_agent: String,
    /// What it showed, beside what it says.
    pub(crate) peer: Peer,
    /// Derived from its node (T46), as far as they are shown.
    pub(crate) parameters: Parameters,
}

impl ClientDetails {
    /// Whose stream it is, as it is shown.
    pub(crate) fn of(client: &Client, access: Option<&Access>, peer: &Peer) -> Self {
        let parameters = match access {
            Some(access) => shown(&access.overlay(&client.parameters)),
            None => shown(&client.parameters),
        };
        Self { client: client.name(), user_agent: client.user_agent.clone(), peer: peer.clone(), parameters }
    }
}

/// As many parameters as fit, as they are logged and listed: a node may have megabytes of metadata.
fn shown(parameters: &Parameters) -> Parameters {
    let len: usize = parameters.iter().map(|(key, value)| key.len() + value.len()).sum();
    if len <= PARAMETERS_SHOWN_BYTES {
        return parameters.clone();
    }
    let short = parameters
        .iter()
        .map(|(key, value)| [key, value].map(|text| shortened(text, PARAMETER_SHOWN_BYTES).into_owned()));
    let fits = short.scan(0, |sum, [key, value]| {
        *sum += key.len() + value.len();
        (*sum <= PARAMETERS_SHOWN_BYTES).then_some((key, value))
    });
    fits.collect()
}

/// What a stream rejected last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastNack {
    /// The type of the response.
    pub type_url: TypeUrl,
    /// The client's own words, up to 4 KiB of them.
    pub detail: Arc<str>,
    /// When it said so.
    pub at: SystemTime,
    /// Whether it ACKed a response of the same type since. In delta that may have been about other
    /// resources.
    pub is_followed_by_ack: bool,
}

/// How many responses of a stream there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseCounts {
    /// Given to the transport.
    pub sent: u64,
    /// Accepted by the client.
    pub acked: u64,
    /// Rejected by it.
    pub nacked: u64,
}

/// A stream's place in the roster; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Arc<StreamRegistry>,
    stream: Arc<OpenStream>,
}

impl StreamRegistry {
    pub(crate) fn list(self: &Arc<Self>, watch: Arc<Watch>, label: String) -> Registration {
        let mut streams = self.streams();
        streams.last_id += 1;
        let stream = Arc::new(OpenStream {
            watch,
            label,
            id: streams.last_id,
            opened_at: SystemTime::now(),
            sent: AtomicU64::default(),
            acked: AtomicU64::default(),
            nacked: AtomicU64::default(),
            has_report_requests: AtomicBool::default(),
            details: OnceLock::new(),
            late_details: OnceLock::new(),
            mailbox: Mutex::default(),
        });
        streams.streams.insert(stream.id, Arc::clone(&stream));
        Registration { registry: Arc::clone(self), stream }
    }

    /// The streams of each client whose id passes, in the order in which they were opened; clients
    /// by name.
    pub(crate) fn clients(&self, who: impl Fn(&str) -> bool) -> Vec<Vec<Arc<OpenStream>>> {
        let streams = self.streams();
        let clients = streams.of_clients.iter().filter(|((client, ..), _)| who(&client.id));
        clients.map(|(_, streams)| streams.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.streams().streams.len()
    }

    /// Another number whenever streams came, went, said whose they are, or rejected something.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells all streams to end, those that open later too: so many in a second, if that is done in
    /// time.
    pub(crate) fn stop(&self, within: Duration, per_second: usize) {
        let streams = self.streams();
        let time = Duration::from_secs_f64(streams.streams.len() as f64 / per_second.max(1) as f64);
        // A few need not be spread.
        let time = if time < SHORTEST_SPREAD { Duration::ZERO } else { time.min(within) };
        _ = self.stopping.set(time);
        for stream in streams.streams.values() {
            stream.watch.wake();
        }
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    /// Lists a stream with those of its client, as far as it is known.
    fn join_client(&mut self, stream: &Arc<OpenStream>) {
        let Some(key) = stream.key() else { return };
        let of_client = self.of_clients.entry(key).or_default();
        // What was opened first may say so last.
        let at = of_client.partition_point(|other| other.id < stream.id);
        of_client.insert(at, Arc::clone(stream));
    }

    fn leave_client(&mut self, stream: &OpenStream) {
        if let Some(key) = stream.key()
            && let Some(of_client) = self.of_clients.get_mut(&key)
        {
            if let Ok(at) = of_client.binary_search_by_key(&stream.id, |other| other.id) {
                of_client.remove(at);
            }
            if of_client.is_empty() {
                self.of_clients.remove(&key);
            }
        }
    }
}

impl OpenStream {
    /// Whose it is; `None` before the first request.
    pub(crate) fn details(&self) -> Option<&ClientDetails> {
        self.late_details.get().or_else(|| self.details.get())
    }

    fn key(&self) -> Option<Key> {
        let ClientDetails { client, peer, .. } = self.details()?;
        Some((client.clone(), peer.name().to_owned(), client.id.is_empty().then_some(self.id)))
    }

    /// Asks what its client has. It answers also when its client neither reads nor writes.
    pub(crate) fn ask(&self, ask: ReportSender) {
        let mut mailbox = self.mailbox();
        if mailbox.has_ended {
            return;
        }
        mailbox.report_requests.push(ask);
        drop(mailbox);
        self.has_report_requests.store(true, Ordering::Release);
        self.watch.wake();
    }

    /// What its client has; `None` when it ended, or does not come to answer.
    pub(crate) async fn report(&self) -> Option<Vec<TypeReport>> {
        let (answer, report) = oneshot::channel();
        self.ask(answer);
        timeout(REPORT_WAIT, report).await.ok()?.ok()
    }

    pub(crate) fn last_nack(&self) -> Option<LastNack> {
        // Few ever rejected anything: the others need no lock.
        if self.nacked.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.mailbox().last_nack.clone()
    }

    pub(crate) fn counts(&self) -> ResponseCounts {
        let [sent, acked, nacked] =
            [&self.sent, &self.acked, &self.nacked].map(|count| count.load(Ordering::Relaxed));
        ResponseCounts { sent, acked, nacked }
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Says whose stream it is: with the first request, and once more where that had no node and a
    /// later one has.
    pub(crate) fn name(&self, details: ClientDetails) {
        let mut streams = self.registry.streams();
        streams.leave_client(&self.stream);
        // G7: what is said after that counts for nothing.
        let of_request =
            if self.stream.details.get().is_none() { &self.stream.details } else { &self.stream.late_details };
        _ = of_request.set(details);
        streams.join_client(&self.stream);
        drop(streams);
        self.registry.changed();
    }

    /// Takes what happened on the stream into what is told of it.
    pub(crate) fn note(&self, event: &Event<'_>) {
        let stream = &self.stream;
        match event {
            Event::Sent(_) => _ = stream.sent.fetch_add(1, Ordering::Relaxed),
            Event::Answered(Verdict::Acked { type_url, .. }) => {
                stream.acked.fetch_add(1, Ordering::Relaxed);
                // Few streams ever rejected anything: the others need no lock.
                if stream.nacked.load(Ordering::Relaxed) > 0
                    && let Some(nack) = &mut stream.mailbox().last_nack
                    && nack.type_url == *type_url
                    && !nack.is_followed_by_ack
                {
                    nack.is_followed_by_ack = true;
                    self.registry.changed();
                }
            }
            Event::Answered(Verdict::Nacked { type_url, detail, .. }) => {
                let (type_url, detail) = (type_url.clone(), detail.as_str().into());
                let nack = LastNack { type_url, detail, at: SystemTime::now(), is_followed_by_ack: false };
                stream.mailbox().last_nack = Some(nack);
                stream.nacked.fetch_add(1, Ordering::Release);
                self.registry.changed();
            }
            _ => {}
        }
    }

    /// What clients do that the log tells.
    pub(crate) fn repeat_log(&self) -> &Arc<RepeatLog> {
        &self.registry.repeat_log
    }

    /// Within which time the stream has to end because the server does.
    pub(crate) fn stops_within(&self) -> Option<Duration> {
        self.registry.stopping.get().copied()
    }

    /// What it was asked since the last call.
    pub(crate) fn take_report_requests(&self) -> Vec<ReportSender> {
        if !self.stream.has_report_requests.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.stream.mailbox().report_requests)
    }
}

/// Of the parameters of one client, in all.
const PARAMETERS_SHOWN_BYTES: usize = 4096;
/// Of a key or a value, where not all of them fit.
const PARAMETER_SHOWN_BYTES: usize = 256;

/// Less is not worth a wait.
const SHORTEST_SPREAD: Duration = Duration::from_millis(100);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut streams = self.registry.streams();
        streams.streams.remove(&self.stream.id);
        streams.leave_client(&self.stream);
        drop(streams);
        self.registry.changed();
        // Nobody must wait for an answer that cannot come.
        let mut mailbox = self.stream.mailbox();
        mailbox.has_ended = true;
        mailbox.report_requests.clear();
    }
}

/// A stream's task answers at once unless the machine is overloaded.
const REPORT_WAIT: Duration = Duration::from_secs(5);
