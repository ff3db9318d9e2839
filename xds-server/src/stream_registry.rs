//! All open streams, how to ask them for reports, and how to end them at a shutdown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::timeout;
use xds_core::server::{Suspects, TypeReport, Verdict};
use xds_core::{
    Access, ClientName, Parameters, SkippedMetadata, TypeUrl, Variant, VariantId, Watch, shortened,
};

use crate::nack_log::NackLog;
use crate::observe::Event;
use crate::peer::Peer;
use crate::repeat_log::RepeatLog;
use crate::skim::Client;

/// All open streams of a server.
#[derive(Debug, Default)]
pub(crate) struct StreamRegistry {
    streams: Mutex<Streams>,
    /// Set when the shutdown begins: the time over which the streams end.
    stopping: OnceLock<Duration>,
    /// Repeated events of clients, for the log.
    repeat_log: Arc<RepeatLog>,
    /// The NACKs of all clients, for the log.
    nack_log: Arc<NackLog>,
    /// How often something changed that a list of clients shows; the counts of responses are not
    /// included.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, Arc<OpenStream>>,
    /// The streams that have had their first request, by client. The map is sorted, so that a page
    /// need not sort 10,000 clients.
    of_clients: BTreeMap<Key, Vec<Arc<OpenStream>>>,
}

/// Identifies a client: its id and cluster, and the identity of its connection. Streams that
/// declare the same node but have another identity are another client. A stream without a node id
/// is a client of its own (G6), with its number in the last field.
type Key = (ClientName, String, Option<u64>);

/// One open stream.
///
/// Requests for reports wait in the mailbox, and the existing waker of the stream wakes its task. A
/// channel per stream, polled with every update, would cost more than the update itself.
#[derive(Debug)]
pub(crate) struct OpenStream {
    watch: Arc<Watch>,
    /// Its service and protocol, for people.
    pub(crate) label: String,
    pub(crate) id: u64,
    pub(crate) opened_at: SystemTime,
    sent: AtomicU64,
    acked: AtomicU64,
    nacked: AtomicU64,
    /// Whether the client brought resources from another stream.
    has_brought: AtomicBool,
    has_report_requests: AtomicBool,
    /// Set by the first request.
    details: OnceLock<ClientDetails>,
    /// Set by the first request with a node, if the first request had none.
    late_details: OnceLock<ClientDetails>,
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    last_nack: Option<LastNack>,
    /// One for each type.
    standing_nacks: BTreeMap<TypeUrl, StandingNack>,
    report_requests: Vec<ReportSender>,
    has_ended: bool,
}

/// Where a stream sends its report.
pub(crate) type ReportSender = oneshot::Sender<Vec<TypeReport>>;

/// The client of a stream.
#[derive(Debug)]
pub(crate) struct ClientDetails {
    pub(crate) client: ClientName,
    /// `node.user_agent_name`.
    pub(crate) user_agent: String,
    /// The peer of its connection, which is verified.
    pub(crate) peer: Peer,
    /// Derived from its node (T46), shortened for logs and lists.
    pub(crate) parameters: Parameters,
    /// The metadata of its node that gives no parameter (T46), unless its access sets the
    /// parameter.
    pub(crate) skipped_metadata: Vec<SkippedMetadata>,
}

impl ClientDetails {
    /// The details of a client, shortened for logs and lists.
    pub(crate) fn of(client: &Client, access: Option<&Access>, peer: &Peer) -> Self {
        let mut skipped_metadata = client.skipped_metadata.clone();
        let parameters = match access {
            Some(access) => {
                let parameters = access.overlay(&client.parameters);
                skipped_metadata.retain(|skipped| parameters.get(&skipped.parameter).is_none());
                shown(&parameters)
            }
            None => shown(&client.parameters),
        };
        Self {
            client: client.name(),
            user_agent: client.user_agent.clone(),
            peer: peer.clone(),
            parameters,
            skipped_metadata,
        }
    }
}

/// As many parameters as fit into logs and lists: a node may have megabytes of metadata.
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

/// The last NACK of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastNack {
    /// The type of the response.
    pub type_url: TypeUrl,
    /// The error message of the client, up to 4 KiB of it.
    pub detail: Arc<str>,
    /// When the NACK arrived.
    pub at: SystemTime,
    /// Whether the client has ACKed a response of the same type since. In delta, that response may
    /// have been about other resources.
    pub is_followed_by_ack: bool,
}

/// What a client rejected, and what no later response has corrected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingNack {
    /// The type.
    pub type_url: TypeUrl,
    /// The first variants that the client rejects, or may mean, as far as they are still the newest content.
    pub variants: Arc<[VariantId]>,
    /// How many there are.
    pub variant_count: usize,
    /// Whether the client rejected each of them in a response of its own (S6c). Otherwise it means some of
    /// them, and names the bad ones only in its message.
    pub is_certain: bool,
    /// The last error message of the client about any of them, up to 4 KiB of it.
    pub detail: Arc<str>,
    /// When the client first rejected a response; since then all were rejected, or not corrected.
    pub since: SystemTime,
    /// When it last rejected one.
    pub last_at: SystemTime,
}

/// The numbers of responses, ACKs and NACKs of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseCounts {
    /// Responses handed to the transport.
    pub sent: u64,
    /// Responses that the client ACKed.
    pub acked: u64,
    /// Responses that the client rejected.
    pub nacked: u64,
}

/// The entry of a stream in the registry; dropping it removes the stream.
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
            has_brought: AtomicBool::default(),
            has_report_requests: AtomicBool::default(),
            details: OnceLock::new(),
            late_details: OnceLock::new(),
            mailbox: Mutex::default(),
        });
        streams.streams.insert(stream.id, Arc::clone(&stream));
        Registration { registry: Arc::clone(self), stream }
    }

    /// The streams of each client whose node id `selects` accepts, in the order of their opening.
    /// The clients are sorted.
    pub(crate) fn clients(&self, selects: impl Fn(&str) -> bool) -> Vec<Vec<Arc<OpenStream>>> {
        let streams = self.streams();
        let clients = streams.of_clients.iter().filter(|((client, ..), _)| selects(&client.id));
        clients.map(|(_, streams)| streams.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.streams().streams.len()
    }

    /// A number that changes when a stream opens, ends, gets its client details, or rejects
    /// something.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all streams, also those that open later. At most `per_second` of them end in a second,
    /// if all can end within the time `within`.
    pub(crate) fn stop(&self, within: Duration, per_second: usize) {
        let streams = self.streams();
        let time = Duration::from_secs_f64(streams.streams.len() as f64 / per_second.max(1) as f64);
        // So few streams need no spreading.
        let time = if time < SHORTEST_SPREAD { Duration::ZERO } else { time.min(within) };
        _ = self.stopping.set(time);
        for stream in streams.streams.values() {
            stream.watch.wake();
        }
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    /// Adds a stream to its client, if the client is known.
    fn join_client(&mut self, stream: &Arc<OpenStream>) {
        let Some(key) = stream.key() else { return };
        let of_client = self.of_clients.entry(key).or_default();
        // The stream that opened first may send its first request last.
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
    /// Its client; `None` before the first request.
    pub(crate) fn details(&self) -> Option<&ClientDetails> {
        self.late_details.get().or_else(|| self.details.get())
    }

    fn key(&self) -> Option<Key> {
        let ClientDetails { client, peer, .. } = self.details()?;
        Some((client.clone(), peer.name().to_owned(), client.id.is_empty().then_some(self.id)))
    }

    /// Asks the stream for a report. The stream answers even if its client neither reads nor
    /// writes.
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

    /// The resources of its client. `None` if the stream has ended, or does not answer in time.
    pub(crate) async fn report(&self) -> Option<Vec<TypeReport>> {
        let (answer, report) = oneshot::channel();
        self.ask(answer);
        timeout(REPORT_WAIT, report).await.ok()?.ok()
    }

    pub(crate) fn last_nack(&self) -> Option<LastNack> {
        // Few clients ever reject anything; for the others no lock is needed.
        if self.nacked.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.mailbox().last_nack.clone()
    }

    pub(crate) fn standing_nacks(&self) -> Vec<StandingNack> {
        if self.nacked.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.mailbox().standing_nacks.values().cloned().collect()
    }

    pub(crate) fn counts(&self) -> ResponseCounts {
        let [sent, acked, nacked] =
            [&self.sent, &self.acked, &self.nacked].map(|count| count.load(Ordering::Relaxed));
        ResponseCounts { sent, acked, nacked }
    }

    pub(crate) fn has_brought(&self) -> bool {
        self.has_brought.load(Ordering::Relaxed)
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Sets the client of the stream: with the first request, and once more if the first request
    /// had no node and a later one has.
    pub(crate) fn name(&self, details: ClientDetails) {
        let mut streams = self.registry.streams();
        streams.leave_client(&self.stream);
        // G7: nodes of later requests are ignored.
        let of_request = if self.stream.details.get().is_none() {
            &self.stream.details
        } else {
            &self.stream.late_details
        };
        _ = of_request.set(details);
        streams.join_client(&self.stream);
        drop(streams);
        self.registry.changed();
    }

    /// Counts an event, and keeps the last NACK.
    pub(crate) fn note(&self, event: &Event<'_>) {
        let stream = &self.stream;
        match event {
            Event::Sent(_) => _ = stream.sent.fetch_add(1, Ordering::Relaxed),
            Event::Answered(Verdict::Acked { type_url, .. }) => {
                stream.acked.fetch_add(1, Ordering::Relaxed);
                // Few clients ever reject anything; for the others no lock is needed.
                if stream.nacked.load(Ordering::Relaxed) > 0
                    && let Some(nack) = &mut stream.mailbox().last_nack
                    && nack.type_url == *type_url
                    && !nack.is_followed_by_ack
                {
                    nack.is_followed_by_ack = true;
                    self.registry.changed();
                }
            }
            Event::Answered(Verdict::Nacked { type_url, detail, is_repeat, .. }) => {
                let (type_url, detail) = (type_url.clone(), detail.as_str().into());
                let nack = LastNack { type_url, detail, at: SystemTime::now(), is_followed_by_ack: false };
                stream.mailbox().last_nack = Some(nack);
                // S6c: the NACK of a part belongs to the first one.
                stream.nacked.fetch_add(u64::from(!is_repeat), Ordering::Release);
                self.registry.changed();
            }
            _ => {}
        }
    }

    /// What the client rejects of a type now. `detail` is its message, if it has just rejected a response.
    pub(crate) fn on_rejected(&self, type_url: &TypeUrl, suspects: &Suspects, detail: Option<&str>) {
        let (mut mailbox, now) = (self.stream.mailbox(), SystemTime::now());
        let id = |variant: &Arc<Variant>| {
            let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
            VariantId { type_url: type_url.clone(), name, constraints }
        };
        let new = || StandingNack {
            type_url: type_url.clone(),
            variants: [].into(),
            variant_count: 0,
            is_certain: false,
            detail: "".into(),
            since: now,
            last_at: now,
        };
        let nack = mailbox.standing_nacks.entry(type_url.clone()).or_insert_with(new);
        nack.variants = suspects.variants.iter().take(VARIANTS_SHOWN).map(id).collect();
        (nack.variant_count, nack.is_certain) = (suspects.variants.len(), suspects.is_certain);
        if let Some(detail) = detail {
            (nack.detail, nack.last_at) = (detail.into(), now);
        }
        drop(mailbox);
        self.registry.changed();
    }

    /// Whether the client rejected a response of the type that was not corrected.
    pub(crate) fn rejects(&self, type_url: &TypeUrl) -> bool {
        // Few clients ever reject anything; for the others no lock is needed.
        self.stream.nacked.load(Ordering::Relaxed) > 0
            && self.stream.mailbox().standing_nacks.contains_key(type_url)
    }

    /// The types of which the client rejected a response that was not corrected.
    pub(crate) fn rejected_types(&self) -> Vec<TypeUrl> {
        // Few clients ever reject anything; for the others no lock is needed.
        if self.stream.nacked.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.stream.mailbox().standing_nacks.keys().cloned().collect()
    }

    /// The client has resources from another stream.
    pub(crate) fn on_brought(&self) {
        self.stream.has_brought.store(true, Ordering::Relaxed);
    }

    /// The client accepted a correction of all that it had rejected of the type.
    pub(crate) fn on_corrected(&self, type_url: &TypeUrl) {
        self.stream.mailbox().standing_nacks.remove(type_url);
        self.registry.changed();
    }

    /// Repeated events of clients, for the log.
    pub(crate) fn repeat_log(&self) -> &Arc<RepeatLog> {
        &self.registry.repeat_log
    }

    /// The NACKs of all clients, for the log.
    pub(crate) fn nack_log(&self) -> &Arc<NackLog> {
        &self.registry.nack_log
    }

    /// The time within which the stream has to end, if the server shuts down.
    pub(crate) fn stops_within(&self) -> Option<Duration> {
        self.registry.stopping.get().copied()
    }

    /// The requests for reports since the last call.
    pub(crate) fn take_report_requests(&self) -> Vec<ReportSender> {
        if !self.stream.has_report_requests.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.stream.mailbox().report_requests)
    }
}

/// Variants of a rejected response that a list of clients names.
const VARIANTS_SHOWN: usize = 3;

/// The limit for all parameters of one client together.
const PARAMETERS_SHOWN_BYTES: usize = 4096;
/// The limit for one key or value, if not all parameters fit.
const PARAMETER_SHOWN_BYTES: usize = 256;

/// A shorter spread is not worth a wait.
const SHORTEST_SPREAD: Duration = Duration::from_millis(100);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut streams = self.registry.streams();
        streams.streams.remove(&self.stream.id);
        streams.leave_client(&self.stream);
        drop(streams);
        self.registry.changed();
        // Nobody may wait for a report that cannot come.
        let mut mailbox = self.stream.mailbox();
        mailbox.has_ended = true;
        mailbox.report_requests.clear();
    }
}

/// The task of a stream answers at once unless the machine is overloaded.
const REPORT_WAIT: Duration = Duration::from_secs(5);
