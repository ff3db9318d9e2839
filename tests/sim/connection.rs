//! One stream: the machine of its server, run in the way of the driver, and the messages in flight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use xds_core::server::{
    self, ClientGroup, DeltaRequest, Next, Protocol, Service, SotwRequest, Stream, StreamConfig,
};
use xds_core::subscription::Requested as List;
use xds_core::{Cache, ClientName, Nonce, Parameters, Snapshot, Watch};

use crate::content::Kind;
use crate::invariant::{self, Violation};
use crate::known::{Asked, Held, Key, Known, Rejects};
use crate::rejections::Rejections;
use crate::script::Profile;
use crate::wire::{Received, ReceivedError, ReceivedKey};

/// A stream between a client and a replica. In each direction messages arrive in order, or not at
/// all.
pub(crate) struct Connection {
    pub(crate) replica: usize,
    /// The replica is a proxy.
    pub(crate) is_relayed: bool,
    machine: Stream,
    pub(crate) watch: Arc<Watch>,
    /// The newest state of its replica that it saw.
    pub(crate) seen_at: usize,
    started: Duration,
    /// The machine has to be called for its next response.
    is_due: bool,
    until: Option<Duration>,
    window: usize,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) responses: VecDeque<Envelope>,
    /// The state of each type as the server knows it.
    pub(crate) seen: BTreeMap<Kind, Seen>,
    nonces: BTreeSet<String>,
    /// When the machine first saw each state of its replica.
    saw: BTreeMap<usize, Duration>,
}

/// A request in flight, with the data of the model.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) message: Message,
    /// The whole subscription of the type after the request.
    pub(crate) asked: BTreeSet<Asked>,
    /// The resources that the client has, in the first request.
    pub(crate) brought: BTreeMap<Key, Held>,
}

#[derive(Debug, Clone)]
pub(crate) enum Message {
    Sotw(SotwRequest),
    Delta(DeltaRequest),
}

/// A response in flight, with the data of the model.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    pub(crate) received: Received,
    /// The snapshot it was made from.
    pub(crate) sent_at: usize,
    /// The server had read a subscription of this client to routes.
    pub(crate) routes_asked: bool,
    /// The subscription when the response was made.
    pub(crate) asked: BTreeSet<Asked>,
    /// The first of its type on the stream.
    pub(crate) is_first: bool,
    /// The server read a subscription since the response before.
    pub(crate) answers: bool,
}

/// One type of a stream, as an observer at the server sees it. The observer applies each response
/// when it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) ideal: Known,
    /// Every subscription of the stream so far.
    pub(crate) ever_asked: BTreeSet<Asked>,
    /// The last request of the type, as the skimmer of the driver remembers it.
    last: Option<BTreeSet<Asked>>,
    /// The server read a subscription since the last response.
    pub(crate) has_asked: bool,
    /// The subscriptions that it read since then, without those that it knew.
    pub(crate) newly_asked: BTreeSet<Asked>,
    /// Names that a response removed, or of which it removed a variant, with the snapshot at that
    /// time.
    pub(crate) removed: BTreeMap<String, usize>,
    /// The errors of the newest response.
    pub(crate) errors: Vec<ReceivedError>,
    /// D18: names that the client gave up while it has a wildcard, until they are sent.
    pub(crate) given_up: BTreeSet<String>,
    pub(crate) is_answered: bool,
    /// What unanswered responses have, by nonce, with the time at which they were sent.
    pub(crate) unanswered: BTreeMap<Nonce, (Duration, BTreeSet<ReceivedKey>)>,
    /// What may be sent again because the client rejected it.
    pub(crate) rejections: Rejections,
    /// Names that a rollout changes, and how often they may be sent again since it began or ended. A
    /// stream goes from one candidate to the stable state, and from there to another candidate.
    pub(crate) tried: BTreeMap<String, u32>,
    /// The snapshot that the last response was made from.
    pub(crate) sent_at: usize,
    /// A cluster was sent since the last response (S34).
    pub(crate) is_endpoints_due: bool,
    /// What the client had then, and has not been there since. It is sent again when it comes back.
    pub(crate) endpoints_due: BTreeSet<String>,
}

impl Connection {
    pub(crate) fn new(
        (profile, name): (&Profile, &str),
        kind: Option<Kind>,
        replica: usize,
        cache: &Arc<Cache>,
        group: Option<&ClientGroup>,
        now: Duration,
    ) -> Self {
        let service = kind.map_or(Service::Aggregated, |kind| Service::Single(kind.url().into()));
        let watch = cache.watch();
        watch.name_client(ClientName { id: name.into(), cluster: "".into() });
        watch.describe_client(profile.node.clone());
        let (of_machine, config) = (Arc::clone(&watch), StreamConfig::default());
        let mut machine = Stream::new(of_machine, service, profile.protocol, config);
        machine.on_node(profile.node.clone());
        group.into_iter().for_each(|group| machine.join(group));
        Self {
            replica,
            is_relayed: false,
            machine,
            watch,
            seen_at: 0,
            started: now,
            is_due: false,
            until: None,
            window: profile.window,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            seen: BTreeMap::new(),
            nonces: BTreeSet::new(),
            saw: BTreeMap::new(),
        }
    }

    /// The server reads one request.
    pub(crate) fn read(&mut self, now: Duration, node: &Parameters, read_at: usize) -> Result<(), Violation> {
        let Some(Request { kind, message, asked, brought }) = self.requests.pop_front() else {
            return Ok(());
        };
        let (protocol, since_start) = (self.machine.protocol(), now.saturating_sub(self.started));
        let seen = self.seen.entry(kind).or_insert_with(|| Seen::new(kind, protocol, node, brought, read_at));
        let is_repeated = seen.last.as_ref() == Some(&asked);
        let request: server::Request = match message {
            Message::Sotw(mut request) => {
                seen.has_asked |= !is_repeated;
                // The skimmer does the same.
                request.requested = request.requested.filter(|_| !is_repeated);
                if let Some(nonce) = request.response_nonce {
                    seen.answer(nonce, request.error_detail.is_none());
                }
                request.into()
            }
            Message::Delta(request) => {
                let has_lists = !request.subscribe.is_empty() || !request.unsubscribe.is_empty();
                seen.has_asked |= has_lists || seen.last.is_none();
                if let Some(nonce) = request.response_nonce {
                    seen.answer(nonce, request.error_detail.is_none());
                }
                request.into()
            }
        };
        // V25: with the first locator everything is sent again with constraints.
        let has_locators = |asked: &BTreeSet<Asked>| asked.iter().any(|(_, params)| params.is_some());
        let is_switch = has_locators(&asked) && !has_locators(&seen.ever_asked);
        if is_switch {
            seen.rejections.on_switch();
        }
        let known = seen.last.iter().flatten().filter(|_| !is_switch).collect::<BTreeSet<_>>();
        let newly_asked: Vec<_> = asked.iter().filter(|asked| !known.contains(asked)).cloned().collect();
        seen.rejections.on_asked(newly_asked.iter());
        seen.newly_asked.extend(newly_asked);
        let result = self.machine.on_request(since_start, request);
        if asked.iter().any(|(name, _)| name.is_none()) {
            let names = seen.ideal.asked.difference(&asked).filter_map(|(name, _)| name.clone());
            seen.given_up.extend(names);
        }
        seen.ideal.ask(asked.clone());
        seen.ever_asked.extend(asked.iter().cloned());
        seen.last = Some(asked);
        self.is_due = true;
        result
            .map(|_| ())
            .map_err(|error| Violation::new("stream", format!("the server ends the stream: {error}")))
    }

    /// The state of the replica that the stream may see, and all states up to it. Clients that try
    /// something see another state than the others.
    pub(crate) fn seen_of<'h>(&self, history: &'h [Arc<Snapshot>]) -> (Arc<Snapshot>, &'h [Arc<Snapshot>]) {
        let seen = self.watch.snapshot();
        let at = history.iter().rposition(|state| Arc::ptr_eq(state, &seen));
        let at = at.expect("each state that is seen is remembered");
        (Arc::clone(&history[at]), &history[..=at])
    }

    /// Whether its driver looks at it again now.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_due && self.responses.len() < self.window
    }

    /// Sends one response if there is one and room for it.
    pub(crate) fn serve(
        &mut self,
        now: Duration,
        history: &[Arc<Snapshot>],
    ) -> Result<Option<Received>, Violation> {
        let (snapshot, history) = self.seen_of(history);
        self.seen_at = history.len() - 1;
        let snapshot = &*snapshot;
        let now = now.saturating_sub(self.started);
        self.is_due |= self.is_woken() || self.until.is_some_and(|until| until <= now);
        if !self.is_due || self.responses.len() >= self.window {
            return Ok(None);
        }
        self.saw.entry(history.len() - 1).or_insert(now);
        match self.machine.next(now, snapshot) {
            Next::Wait { until } => {
                if until.is_some_and(|until| until <= now) {
                    return Err(Violation::new("stream", format!("at {now:?} it waits until {until:?}")));
                }
                // A driver looks again, too: the stream left the view of a candidate, and may see another one.
                (self.is_due, self.until) = (self.is_woken(), until);
                Ok(None)
            }
            Next::Close(error) => {
                Err(Violation::new("stream", format!("the server ends the stream: {error}")))
            }
            Next::Send(response) => {
                let protocol = self.machine.protocol();
                let received = Received::of(&response, protocol);
                let received = received.map_err(|error| Violation::new("form", error))?;
                self.observe(now, received, snapshot, history).map(Some)
            }
        }
    }

    /// Checks a response when it is sent, and puts it in flight.
    fn observe(
        &mut self,
        now: Duration,
        received: Received,
        snapshot: &Snapshot,
        history: &[Arc<Snapshot>],
    ) -> Result<Received, Violation> {
        let kind = received.kind;
        invariant::identity::check(&received, &mut self.nonces, self.seen.get(&kind))?;
        let Some(seen) = self.seen.get_mut(&kind) else { return Ok(received) };
        let sent_at = history.len() - 1;
        let (before, is_relayed) = (seen.clone(), self.is_relayed);
        seen.ideal.take(&received, Rejects::Nothing, sent_at);
        let after = seen.ideal.clone();
        let sent = invariant::Sent {
            received: &received,
            before: &before,
            after: &after,
            snapshot,
            is_relayed,
            history,
        };
        invariant::check_sent(&sent, now)?;
        // The changes that it brings wait at most since the first state after the last response.
        let since = self.saw.range(before.sent_at + 1..).next().map_or(now, |(_, at)| *at);
        invariant::order::check_sent(&sent, &self.seen, since, now)?;
        let Some(seen) = self.seen.get_mut(&kind) else { return Ok(received) };
        seen.rejections.on_sent(&sent, now);
        let keys = received.keys();
        seen.unanswered.extend(Nonce::parse(&received.nonce).map(|nonce| (nonce, (now, keys))));
        let sent = received.names();
        // The answer to a new subscription to the same name may come first.
        let is_new = |name: &String| seen.newly_asked.iter().any(|(asked, _)| asked.as_ref() == Some(name));
        // D18: a part is no answer.
        let is_part = before.rejections.is_part(&received);
        seen.given_up.retain(|name| !sent.contains(name) || is_new(name) || is_part);
        seen.tried.retain(|name, times| {
            *times -= u32::from(sent.contains(name));
            *times > 0
        });
        // S6c: the answer to a subscription may come after a part.
        let is_first = before.rejections.is_part(&received) && !seen.rejections.owed.is_empty();
        // D10: the answer has each new name. D32: without any it ends what was announced.
        let is_end = received.names().is_empty()
            && seen.ideal.protocol == Protocol::Delta
            && seen.newly_asked.iter().any(|(name, _)| name.is_some());
        if !received.is_error_only() && !is_first && !is_end {
            // S34: a part, and a content that was left out before (S6d), are no answer to a new cluster.
            let is_part = before.rejections.is_part(&received) || received.names().len() == 1;
            (seen.has_asked, seen.is_endpoints_due) = (false, seen.is_endpoints_due && is_part);
            let is_there = |name: &String| snapshot.get(&kind.url().into(), &name.as_str().into()).is_some();
            seen.endpoints_due.retain(|name| !is_there(name));
            seen.newly_asked.clear();
            seen.is_answered = true;
        }
        let variants = received.removed_variants.iter().map(|(name, _)| name);
        seen.removed.extend(received.removed.iter().chain(variants).map(|name| (name.clone(), sent_at)));
        seen.sent_at = sent_at;
        seen.errors.clone_from(&received.errors);
        // D18, S6c: the answer for names that were given up may come after a part (seed 7355147).
        let names = received.names();
        let answers = before.has_asked || (!names.is_empty() && names.is_subset(&before.given_up));
        let asked = seen.ideal.asked.clone();
        let routes_asked = self.seen.get(&Kind::Route).is_some_and(|seen| !seen.ideal.asked.is_empty());
        self.responses.push_back(Envelope {
            received: received.clone(),
            sent_at,
            routes_asked,
            asked,
            is_first: !before.is_answered,
            answers,
        });
        Ok(received)
    }

    /// S34: a cluster was sent to this client, on this stream or another.
    pub(crate) fn on_clusters_sent(&mut self) {
        if let Some(seen) = self.seen.get_mut(&Kind::Endpoints) {
            seen.note_clusters_sent();
        }
    }

    /// A rollout of its server that changes these names began or ended.
    pub(crate) fn on_rollout(&mut self, names: &BTreeSet<(Kind, String)>) {
        for (kind, name) in names {
            self.seen.get_mut(kind).into_iter().for_each(|seen| _ = seen.tried.insert(name.clone(), 2));
        }
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty()
    }

    /// The time at which its server has something to do without an outside event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.until.map(|until| self.started + until)
    }

    /// Polls the wake-up like a driver.
    fn is_woken(&self) -> bool {
        let woken = pin!(self.watch.woken());
        woken.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }
}

impl Seen {
    /// The resources that a client brings count as sent at the time of its first request: on this
    /// stream the server cannot know them earlier.
    fn new(
        kind: Kind,
        protocol: Protocol,
        node: &Parameters,
        mut held: BTreeMap<Key, Held>,
        read_at: usize,
    ) -> Self {
        held.values_mut().for_each(|held| held.sent_at = read_at);
        let ideal = Known { held, ..Known::new(kind, protocol, node) };
        Self {
            ideal,
            ever_asked: BTreeSet::new(),
            last: None,
            has_asked: false,
            newly_asked: BTreeSet::new(),
            removed: BTreeMap::new(),
            is_answered: false,
            unanswered: BTreeMap::new(),
            rejections: Rejections::default(),
            tried: BTreeMap::new(),
            errors: Vec::new(),
            given_up: BTreeSet::new(),
            sent_at: read_at,
            is_endpoints_due: false,
            endpoints_due: BTreeSet::new(),
        }
    }
}

impl Seen {
    fn note_clusters_sent(&mut self) {
        self.is_endpoints_due = true;
        self.rejections.owe_all();
        self.endpoints_due.extend(self.ideal.held.keys().map(|(name, _)| name.clone()));
    }

    /// The client sent an ACK or a NACK.
    fn answer(&mut self, nonce: Nonce, is_accepted: bool) {
        self.unanswered.remove(&nonce);
        self.rejections.on_answer(&self.ideal, nonce, is_accepted);
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |list: &List| {
            let plain = list.names.iter().map(ToString::to_string);
            let located =
                list.locators.iter().map(|locator| format!("{}?{}", locator.name, locator.parameters));
            plain.chain(located).collect::<Vec<_>>().join(" ")
        };
        write!(f, "{}", self.kind)?;
        match &self.message {
            Message::Sotw(SotwRequest { response_nonce, error_detail, requested, version_info, .. }) => {
                write!(f, " {{{}}}", requested.as_ref().map(names).unwrap_or_default())?;
                write!(f, " v{}", version_info.get(..6).unwrap_or(version_info))?;
                answer(f, *response_nonce, error_detail.is_some())
            }
            Message::Delta(request) => {
                write!(f, " +{{{}}} -{{{}}}", names(&request.subscribe), names(&request.unsubscribe))?;
                for (name, version) in &request.initial_resource_versions {
                    write!(f, " has {name}@{}", version.get(..6).unwrap_or(version))?;
                }
                answer(f, request.response_nonce, request.error_detail.is_some())
            }
        }
    }
}

fn answer(f: &mut fmt::Formatter<'_>, nonce: Option<Nonce>, is_error: bool) -> fmt::Result {
    match nonce {
        None => Ok(()),
        Some(nonce) if is_error => write!(f, " NACK n{nonce}"),
        Some(nonce) => write!(f, " n{nonce}"),
    }
}
