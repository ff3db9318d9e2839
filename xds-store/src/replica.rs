//! The machine that replicates: which peer is called when, and for what (SR).
//!
//! Events go in, actions come out; the caller performs them in order. The machine has no sockets, clock,
//! entropy or threads, and holds no entries: the store applies them (SR13), answers what a peer lacks
//! (SR11), and keeps what shall survive a restart.
//!
//! The caller tells the commits of its store ([`Event::Committed`]) before any peer can see them. So a
//! peer that has more entries of this node than the machine knows of proves that the store lost some
//! (SR28).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use xds_proto::xds::store::v1 as proto;

pub use crate::clock::Counters;
use crate::clock::{Clock, Position};
use crate::entry::Foreign;
use crate::phase::PeerPhases;
use crate::store::{Stopped, Ticket, ToFetch};
use crate::time::SECOND;
use known::Known;
pub use known::{NODES, ORIGINS};
use peer::{Call, Peer, State};
pub use round::{Gap, Malformed};

mod callee;
mod caller;
mod comparing;
mod fetching;
mod identity;
mod known;
mod peer;
mod removing;
mod round;
mod view;
mod waiting;

pub use comparing::Digests;
pub use identity::{IdLost, Refusal};
pub use view::PeerView;

/// What a node does to have the entries of all others.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    clock: Clock,
    /// By address.
    peers: BTreeMap<String, Peer>,
    /// SR57: addresses at which this node reached itself.
    own_addresses: BTreeSet<String>,
    known: Known,
    forgotten: BTreeSet<String>,
    /// SR15: origins whose next entry the store refuses, with its counter.
    stopped: BTreeMap<String, StoppedAt>,
    acks: waiting::Acks,
    nudged: waiting::Nudged,
    alarms: BTreeSet<Alarm>,
    id: identity::Id,
    snapshot: Snapshot,
    comparing: comparing::Comparing,
    /// The names that the store fetches.
    fetching: Vec<ToFetch>,
    /// The commits that wrote its policies.
    policies: Counters,
    /// What the store knows of the plans of the peers.
    peer_phases: PeerPhases,
    next_call: CallId,
    random: u64,
    now: i64,
    actions: Vec<Action>,
}

/// Settings of the machine, and what it starts from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplicaConfig {
    /// What a Hello says of this node, but for the clock.
    pub hello: proto::HelloRequest,
    /// How often it pulls from each peer, in nanoseconds, give or take a tenth (SR10). Default 5 s.
    pub pull_interval: i64,
    /// How many entries of each origin a round may have (SR12). Default 1,000.
    pub max_entries: u32,
    /// How many bytes a round may have. Default 16 MiB.
    pub max_bytes: u32,
    /// How often it compares its records with those of each peer, in nanoseconds, give or take a tenth (SR51);
    /// `None`: never. Default 24 h.
    pub compare_interval: Option<i64>,
    /// A number chosen at random, which spreads the calls of nodes that start together.
    pub seed: u64,
    /// The clocks that the store remembered ([`Store::known`](crate::store::Store::known)).
    pub known: Vec<(String, Counters)>,
    /// A new node of a cluster, which starts with a snapshot (SR19).
    pub is_joining: bool,
    /// The node has a new id, and takes a snapshot to see what peers lack (SR31).
    pub owes_reissue: bool,
}

impl ReplicaConfig {
    /// The defaults, with the ids of `hello`.
    #[must_use]
    pub fn new(hello: proto::HelloRequest, seed: u64) -> Self {
        let hello = proto::HelloRequest { protocol: PROTOCOL, lowest_protocol: PROTOCOL, ..hello };
        Self {
            hello,
            pull_interval: 5 * SECOND,
            max_entries: 1000,
            max_bytes: 16 << 20,
            compare_interval: Some(24 * 3600 * SECOND),
            seed,
            known: Vec::new(),
            is_joining: false,
            owes_reissue: false,
        }
    }

    /// Whether this node is the writer of a region.
    fn is_writer(&self) -> bool {
        !self.hello.region.is_empty() && !self.hello.is_replica
    }
}

/// Names a call of this node, between its action and its answers. Later calls have greater numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The addresses of the peers, from options or from DNS (SR2).
    Peers(Vec<String>),
    /// The nodes that are forgotten.
    Forgotten(BTreeSet<String>),
    /// The time of [`Replica::due`] has come.
    Due,
    /// A Hello of this node was answered.
    HelloAnswered(CallId, Result<proto::HelloResponse, Failure>),
    /// One message of the answer to a pull of this node came.
    PullPart(CallId, proto::PullResponse),
    /// A pull of this node failed, or its answer ended without a last message.
    PullFailed(CallId, Failure),
    /// A nudge of this node was answered.
    NudgeAnswered(CallId, Result<proto::NudgeResponse, Failure>),
    /// A peer calls Hello. With each call of a peer comes what [`Store::lacking`] finds forked for its clock.
    ///
    /// [`Store::lacking`]: crate::store::Store::lacking
    Hello(Ticket, proto::HelloRequest, Vec<String>),
    /// A peer pulls.
    Pull(Ticket, proto::PullRequest, Vec<String>),
    /// A peer nudges.
    Nudge(Ticket, proto::NudgeRequest, Vec<String>),
    /// A peer wants to read records (SR49, SR51): its id.
    Look(Ticket, String),
    /// An [`Action::CallDigest`] was answered, by the peer and by the store of this node.
    DigestAnswered(CallId, Result<Box<Digests>, Failure>),
    /// An [`Action::CallPeek`] was answered.
    PeekAnswered(CallId, Result<proto::PeekResponse, Failure>),
    /// The store has done what [`Action::Mend`] says, and so many records were other ones; `None` if it could not.
    Mended(CallId, Option<u64>),
    /// The names that the store fetches ([`Store::fetching`](crate::store::Store::fetching)), at the start and whenever
    /// these are others (SG27).
    Fetching(Vec<ToFetch>),
    /// The commits of policies that give the region of this node something
    /// ([`Policies::commits_for`](crate::region::Policies::commits_for)), at the start and whenever policies change.
    Policies(Counters),
    /// A commit of this node is durable: its position.
    Committed(Position),
    /// The store has done what [`Action::Apply`] says, as far as it could.
    Applied {
        /// Of the action.
        call: CallId,
        /// The durable clock.
        clock: Clock,
        /// The origins of which entries were not taken ([`Merged::stopped`](crate::store::Merged::stopped)).
        stopped: BTreeMap<String, Stopped>,
    },
    /// A commit is answered when so many peers have it durably (SR17).
    Await {
        /// Names the commit in the answer.
        ticket: Ticket,
        /// Its counter.
        counter: u64,
        /// How many peers.
        peers: usize,
        /// When to answer at the latest.
        until: i64,
    },
    /// The store has another id.
    Renamed {
        /// It.
        node: String,
        /// Its clock now.
        clock: Clock,
        /// Whether peers may lack what it wrote under the former one
        /// ([`Store::owes_reissue`](crate::store::Store::owes_reissue)).
        owes_reissue: bool,
    },
    /// A snapshot was taken, and the store has this clock; or it failed. If the store has another id then, that
    /// is reported before.
    SnapshotEnded(Result<Clock, Failure>),
}

/// Why a call of this node failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// No answer came, or an error without a reason of this service.
    Unreachable,
    /// The peer refused.
    Refused(Refusal),
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Call Hello at an address.
    CallHello(CallId, String, proto::HelloRequest),
    /// Call Pull at an address, and report each message.
    CallPull(CallId, String, proto::PullRequest),
    /// Call Nudge at an address.
    CallNudge(CallId, String, proto::NudgeRequest),
    /// Call Digest at an address, and give the same request to the store of this node (SR51).
    CallDigest(CallId, String, proto::DigestRequest),
    /// Call Peek at an address.
    CallPeek(CallId, String, proto::PeekRequest),
    /// Give these states of a peer, with what the peer had, to the store
    /// ([`Event::Mend`](crate::store::Event::Mend)). It has to answer with [`Event::Mended`].
    Mend(CallId, Vec<proto::RecordState>, Option<Counters>),
    /// Tell the store that it has all of these names, and the incarnations above which new ones start
    /// ([`Event::Fetched`](crate::store::Event::Fetched)).
    Fetched(Vec<proto::Fetching>, u64),
    /// Give these copies of records to the store ([`Event::Remove`](crate::store::Event::Remove)): a node of the named
    /// region, which has all that this node has, does not hold them (SR51).
    Remove(String, Vec<proto::RecordDigest>),
    /// End a call. What it still answers has no effect.
    Cancel(CallId),
    /// Give this to the store, in the order of the actions, with the policies by which the peer left something out. The
    /// store leaves out what it has already. It has to answer with [`Event::Applied`].
    Apply(CallId, Vec<Foreign>, Counters),
    /// These were dropped: for the log of the server.
    Dropped(String, Vec<Gap>),
    /// Answer the Hello of a peer.
    AnswerHello(Ticket, Result<proto::HelloResponse, Refusal>),
    /// Answer the pull of a peer: with what it lacks, and the clocks of others that are known here (SR9).
    AnswerPull(Ticket, Result<BTreeMap<String, proto::Clock>, Refusal>),
    /// Answer a peer that reads records, or refuse it.
    AnswerLook(Ticket, Result<(), Refusal>),
    /// Answer the nudge of a peer.
    AnswerNudge(Ticket, Result<proto::NudgeResponse, Refusal>),
    /// Answer a commit that waits for peers.
    Acked {
        /// Of the event.
        ticket: Ticket,
        /// How many peers are known to have it durably.
        peers: usize,
        /// Whether these are as many as requested. Otherwise the time is over.
        is_enough: bool,
    },
    /// Tell the operator (ST72).
    Raise(Alarm),
    /// The alarm is over.
    End(Alarm),
    /// Give the store a new id (SR29), and report it by [`Event::Renamed`]. No calls run until then.
    TakeNewId(IdLost),
    /// Take a snapshot from an address (SR19), and report its end. No pulls run until then.
    TakeSnapshot {
        /// Where to take it.
        address: String,
        /// Whether it replaces the records.
        must_replace: bool,
        /// Another peer can give one, too, and was not tried yet: this one is not waited for for long.
        has_other: bool,
    },
    /// Keep the clock of a node over a restart (SR9), by
    /// [`Event::Remember`](crate::store::Event::Remember).
    Remember(String, Counters),
    /// Keep the region of a node, which it said, over a restart, by
    /// [`Event::OfRegion`](crate::store::Event::OfRegion).
    OfRegion(String, String),
    /// How far the plans of the peers are: at the start, and whenever one of them says something else, by
    /// [`Event::PeerPhases`](crate::store::Event::PeerPhases).
    PeerPhases(PeerPhases),
}

/// Where the entries of an origin wait (SR15).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoppedAt {
    /// The entry that cannot be applied.
    pub counter: u64,
    /// What is wrong with it, for people.
    pub reason: String,
    /// Since when it is known, in nanoseconds of the clock of this machine.
    pub since: i64,
}

/// What an operator has to act on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Two processes answer with this id (SR28).
    Twins(String),
    /// Entries of an origin differ between this node and that at an address (SR28, SR30).
    Forked(String, String),
    /// The store refuses the next entry of an origin (SR15).
    Stopped(String),
    /// The node at an address refuses this one.
    Refused(String, Refusal),
    /// The node at an address answers what no node of this version does.
    Malformed(String, Malformed),
    /// Records here were not as at an address, though this node has all that the one there has, and no policy
    /// explains it. They are mended (SR51).
    Differed(String),
    /// The node at an address is a writer of the region of this node, which is one itself (SR34).
    TwoWriters(String),
    /// There are more addresses than are used.
    TooManyPeers,
    /// There are more nodes than are known here.
    TooManyNodes,
    /// The id of this node was lost, again within ten minutes: it keeps the id.
    IdLostAgain,
}

/// Whether records come as a snapshot (SR19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Snapshot {
    /// No entry can be applied before the first one.
    First,
    Taking {
        is_first: bool,
        /// SR31: it shows what peers lack.
        is_owed: bool,
    },
    NotNeeded,
}

impl Replica {
    /// A node whose store has this clock.
    #[must_use]
    pub fn new(config: ReplicaConfig, clock: Clock, now: i64) -> Self {
        let mut known = Known::default();
        for (node, counters) in &config.known {
            known.restore(node, counters.clone());
        }
        let snapshot = if config.is_joining { Snapshot::First } else { Snapshot::NotNeeded };
        Self {
            random: config.seed,
            config,
            clock,
            peers: BTreeMap::new(),
            own_addresses: BTreeSet::new(),
            known,
            forgotten: BTreeSet::new(),
            stopped: BTreeMap::new(),
            acks: waiting::Acks::default(),
            nudged: waiting::Nudged::default(),
            alarms: BTreeSet::new(),
            id: identity::Id::default(),
            snapshot,
            comparing: comparing::Comparing::default(),
            fetching: Vec::new(),
            policies: Counters::new(),
            peer_phases: PeerPhases::default(),
            next_call: CallId::default(),
            now,
            actions: Vec::new(),
        }
    }

    /// What to do about an event at this time, in nanoseconds.
    pub fn step(&mut self, event: Event, now: i64) -> Vec<Action> {
        self.now = now.max(self.now);
        match event {
            Event::Peers(addresses) => self.on_peers(&addresses),
            Event::Forgotten(nodes) => {
                nodes.iter().for_each(|node| self.known.forget(node));
                self.alarm(Alarm::TooManyNodes, false);
                self.comparing.compare_rest_at(self.now);
                self.forgotten = nodes;
                // SR34: it comes back with another id, if at all.
                let is_forgotten =
                    |peer: &Peer| peer.node().is_some_and(|node| self.forgotten.contains(node));
                let gone = self.peers.iter().filter(|(_, peer)| is_forgotten(peer));
                let gone: Vec<_> = gone.map(|(address, _)| Alarm::TwoWriters(address.clone())).collect();
                gone.into_iter().for_each(|alarm| self.alarm(alarm, false));
                self.tell_phases();
            }
            Event::Due => {}
            Event::HelloAnswered(call, result) => self.on_hello_answered(call, result),
            Event::PullPart(call, part) => self.on_pull_part(call, part),
            Event::PullFailed(call, failure) => self.on_failed(call, &failure),
            Event::NudgeAnswered(call, result) => self.on_nudge_answered(call, result),
            Event::Hello(ticket, request, forked) => self.on_hello(ticket, &request, &forked),
            Event::Pull(ticket, request, forked) => self.on_pull(ticket, &request, &forked),
            Event::Nudge(ticket, request, forked) => self.on_nudge(ticket, &request, &forked),
            Event::Look(ticket, node) => {
                let answer = self.check_caller(&node);
                self.actions.push(Action::AnswerLook(ticket, answer));
            }
            Event::DigestAnswered(call, result) => self.on_digest_answered(call, result),
            Event::PeekAnswered(call, result) => self.on_peek_answered(call, result),
            Event::Mended(call, lost) => self.on_mended(call, lost),
            Event::Fetching(fetching) => self.on_fetching(fetching),
            Event::Policies(commits) => self.policies = commits,
            Event::Committed(position) => self.clock.set(&self.config.hello.node, position),
            Event::Applied { call, clock, stopped } => self.on_applied(call, clock, stopped),
            Event::Await { ticket, counter, peers, until } => {
                self.acks.add(waiting::Ack { ticket, counter, peers, until });
            }
            Event::Renamed { node, clock, owes_reissue } => self.on_renamed(node, clock, owes_reissue),
            Event::SnapshotEnded(result) => self.on_snapshot_ended(result),
        }
        self.go_on();
        mem::take(&mut self.actions)
    }

    /// When to call [`step`](Self::step) with [`Event::Due`], unless something else happens before.
    #[must_use]
    pub fn due(&self) -> Option<i64> {
        let calls = self.peers.values().filter_map(|peer| match peer.state {
            State::Waiting { .. } if !self.may_call() => None,
            _ => peer.due(),
        });
        let nudges = self.peers.values().filter_map(|peer| match peer.nudge.call {
            Some(call) => Some(call.until),
            None => self.wants_nudge(peer).then_some(peer.nudge.not_before),
        });
        let compared = self.comparing.due().filter(|_| self.may_call());
        calls
            .chain(nudges)
            .chain(compared)
            .chain(self.known.due())
            .chain(self.acks.due())
            .chain(self.nudged.due())
            .min()
    }

    /// The id of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.config.hello.node
    }

    /// The region of this node.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.config.hello.region
    }

    /// The durable clock of this node.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How many peers there are, which is the most that a commit can wait for (SR17).
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The nodes that are known, with their newest clocks (SR9).
    pub fn known(&self) -> impl Iterator<Item = (&str, &Counters)> {
        self.known.iter()
    }

    /// Up to where a node has the entries of an origin, as it said last.
    #[must_use]
    pub fn heard(&self, node: &str, origin: &str) -> u64 {
        self.known.heard(node).and_then(|heard| heard.get(origin)).copied().unwrap_or_default()
    }

    /// Whether a peer has answered a round, and all that it cannot serve is here or comes from another one. Forgotten
    /// nodes do not count (SR33): if no other peer is left, nobody can give this node more.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let is_left = |peer: &&Peer| peer.node().is_none_or(|node| !self.forgotten.contains(node));
        let left = || self.peers.values().filter(is_left);
        let answered = || left().filter(|peer| peer.has_answered);
        let is_here = |(origin, at): (&String, &proto::OutOfSync)| {
            self.clock.get(origin).counter >= at.floor || !self.is_unserved(origin)
        };
        let has_heard = answered().next().is_some() || left().next().is_none();
        has_heard && answered().all(|peer| peer.out_of_sync.iter().all(is_here))
    }

    /// Where the entries of an origin wait, if they do.
    #[must_use]
    pub fn stopped_at(&self, origin: &str) -> Option<&StoppedAt> {
        self.stopped.get(origin)
    }

    /// What an operator has to act on.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.iter()
    }

    /// SR2: each address is a peer, at most 64.
    fn on_peers(&mut self, addresses: &[String]) {
        let all: BTreeSet<_> = addresses.iter().collect();
        self.alarm(Alarm::TooManyPeers, all.len() > PEERS);
        let used: BTreeSet<String> = all.into_iter().take(PEERS).cloned().collect();
        let is_same = used.iter().eq(self.peers.keys().chain(&self.own_addresses).collect::<BTreeSet<_>>());
        if !is_same {
            self.own_addresses.clear();
        }
        let gone: Vec<_> = self.peers.keys().filter(|address| !used.contains(*address)).cloned().collect();
        gone.iter().for_each(|address| self.remove_peer(address));
        for address in used {
            if !self.own_addresses.contains(&address) {
                self.peers.entry(address).or_insert_with(|| Peer::new(self.now));
            }
        }
        self.tell_phases();
    }

    /// SV42: the store compares the phases of the peers with its own.
    fn tell_phases(&mut self) {
        let mut phases = PeerPhases::default();
        for (address, peer) in &self.peers {
            // SR33: one that is forgotten comes back with another id.
            let node = peer.node().unwrap_or(address);
            if !self.forgotten.contains(node) {
                phases.insert(node, peer.failures == 0, peer.phases.clone());
            }
        }
        if phases != self.peer_phases {
            self.peer_phases = phases.clone();
            self.actions.push(Action::PeerPhases(phases));
        }
    }

    fn remove_peer(&mut self, address: &str) {
        let Some(peer) = self.peers.remove(address) else { return };
        let calls = peer.call().into_iter().chain(peer.nudge.call).map(|call| call.id);
        let calls = calls.chain(self.comparing.remove(address));
        self.actions.extend(calls.map(Action::Cancel));
        self.end_alarms(|alarm| alarm.address() == Some(address));
        self.tell_phases();
    }

    /// Does what is due.
    fn go_on(&mut self) {
        self.answer_waiting();
        let remember = self.known.take_news(self.now);
        self.actions.extend(remember.into_iter().map(|(node, counters)| Action::Remember(node, counters)));
        let addresses: Vec<_> = self.peers.keys().cloned().collect();
        for address in addresses {
            self.end_late_calls(&address);
            if self.may_call() {
                self.call_if_due(&address);
            }
            if self.id.is_kept() {
                self.nudge_if_due(&address);
            }
        }
        if self.may_call() {
            self.compare_if_due();
        }
    }

    fn may_call(&self) -> bool {
        self.id.is_kept() && !matches!(self.snapshot, Snapshot::Taking { .. })
    }

    fn new_call(&mut self) -> CallId {
        let call = self.next_call;
        self.next_call.0 += 1;
        call
    }

    /// SR10: a time, give or take a tenth, so that nodes do not call at the same moment.
    fn jittered(&mut self, length: i64) -> i64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let spread = (length / 5).max(1);
        length - length / 10 + i64::try_from(mixed >> 1).unwrap_or_default() % spread
    }

    /// Raises or ends an alarm.
    fn alarm(&mut self, alarm: Alarm, is_raised: bool) {
        if !is_raised {
            if self.alarms.remove(&alarm) {
                self.actions.push(Action::End(alarm));
            }
        } else if self.alarms.len() < ALARMS && self.alarms.insert(alarm.clone()) {
            self.actions.push(Action::Raise(alarm));
        }
    }

    fn end_alarms(&mut self, is_over: impl Fn(&Alarm) -> bool) {
        let over: Vec<_> = self.alarms.iter().filter(|alarm| is_over(alarm)).cloned().collect();
        over.into_iter().for_each(|alarm| self.alarm(alarm, false));
    }
}

impl Alarm {
    /// The peer that it is about.
    fn address(&self) -> Option<&str> {
        match self {
            Self::Forked(address, _)
            | Self::Refused(address, _)
            | Self::Malformed(address, _)
            | Self::Differed(address)
            | Self::TwoWriters(address) => Some(address),
            _ => None,
        }
    }
}

/// The protocol of this version (SR3).
pub const PROTOCOL: u32 = 1;
/// How many addresses are pulled from.
pub const PEERS: usize = 64;
/// How many alarms are kept.
const ALARMS: usize = 256;
/// SR10: how long a call may bring nothing.
const DEADLINE: i64 = 10 * SECOND;
/// SR16: how often a peer is nudged.
const NUDGE_EVERY: i64 = SECOND / 20;
/// How long after a nudge that failed, or did not help, the next one may be.
const NUDGE_AGAIN: i64 = SECOND;
/// How long a nudge waits for entries. The next nudge names what is committed meanwhile.
const NUDGE_WAIT: i64 = 5 * SECOND;
/// The largest entry, which comes alone in its round.
const ENTRY_BYTES: usize = 64 << 20;
