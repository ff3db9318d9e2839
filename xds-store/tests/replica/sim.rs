//! Several nodes in virtual time. One number determines a run.
//!
//! The store of a node is a stub: of each origin the counter up to which it has the entries, and a floor.
//! It checks itself that nothing is applied with a gap.

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::{Chain, Clock, Position};
use xds_store::entry::Foreign;
use xds_store::replica::*;
use xds_store::store::Ticket;

use crate::random::Random;

pub(crate) const MS: i64 = 1_000_000;
pub(crate) const SECOND: i64 = 1000 * MS;
/// How long things go wrong.
const TROUBLE: i64 = 40 * SECOND;
/// How long the nodes may take until they are equal: the longest deadline, the longest back-off, and a few
/// rounds.
const HEALING: i64 = 50 * SECOND;

/// What a node keeps when it crashes.
#[derive(Default)]
struct Disk {
    clock: BTreeMap<usize, u64>,
    floors: BTreeMap<usize, u64>,
    known: BTreeMap<String, Counters>,
}

struct Node {
    replica: Option<Replica>,
    disk: Disk,
    boot: u64,
    /// The next time for which it waits.
    woken_at: Option<i64>,
    /// Its calls, with their peers, and whether they are nudges.
    calls: BTreeMap<CallId, (usize, bool)>,
    nudged_at: BTreeMap<usize, i64>,
    acks: BTreeMap<Ticket, (u64, usize, i64)>,
}

/// A call of a node: the caller, its boot and the number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Caller {
    node: usize,
    boot: u64,
    call: CallId,
}

#[derive(Debug, Clone)]
enum Request {
    Hello(proto::HelloRequest),
    Pull(proto::PullRequest),
    Nudge(proto::NudgeRequest),
    Snapshot,
}

#[derive(Debug, Clone)]
enum Answer {
    Hello(Result<proto::HelloResponse, Failure>),
    Part(proto::PullResponse),
    PullFailed(Failure),
    Nudge(Result<proto::NudgeResponse, Failure>),
    Snapshot(Option<(BTreeMap<usize, u64>, BTreeMap<usize, u64>)>),
}

#[derive(Debug)]
enum Happens {
    Due(usize),
    Arrives(Caller, usize, Request),
    Answered(Caller, Answer),
    Applies { node: usize, boot: u64, call: CallId, pieces: Vec<Foreign> },
    Commits(usize),
    Durable { node: usize, boot: u64, peers: usize },
    Crashes(usize),
    Starts(usize),
    Compacts(usize),
    Cuts(usize, usize, bool),
    Heals,
}

pub(crate) struct Sim {
    random: Random,
    now: i64,
    queue: BTreeMap<(i64, u64), Happens>,
    next: u64,
    nodes: Vec<Node>,
    /// Where requests and answers get lost, by sender and receiver.
    cut: BTreeSet<(usize, usize)>,
    loss: u64,
    slowness: u64,
    is_healed: bool,
    /// Calls of peers that were not answered yet.
    tickets: BTreeMap<(usize, Ticket), (Caller, Request)>,
    chains: Vec<Vec<Chain>>,
    peers: Vec<Vec<usize>>,
    pub(crate) trace: Vec<String>,
    pub(crate) calls: u64,
    pub(crate) snapshots: u64,
    pub(crate) acks: [u64; 2],
}

type Outcome = Result<(), String>;

fn name(node: usize) -> String {
    format!("n{node}")
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

impl Sim {
    /// Runs one seed to its end.
    pub(crate) fn run(seed: u64) -> (Self, Outcome) {
        let mut random = Random(seed);
        let count = 3 + random.below(3) as usize;
        let is_chain = random.chance(25);
        let others = |node: usize| (0..count).filter(move |other| *other != node);
        let near =
            |node: usize| others(node).filter(|other| !is_chain || other.abs_diff(node) == 1).collect();
        let node = |_| Node {
            replica: None,
            disk: Disk::default(),
            boot: 0,
            woken_at: None,
            calls: BTreeMap::new(),
            nudged_at: BTreeMap::new(),
            acks: BTreeMap::new(),
        };
        let mut sim = Self {
            now: 0,
            queue: BTreeMap::new(),
            next: 0,
            nodes: (0..count).map(node).collect(),
            cut: BTreeSet::new(),
            loss: [0, 2, 20][random.below(3) as usize],
            slowness: [5, 50, 900][random.below(3) as usize],
            is_healed: false,
            tickets: BTreeMap::new(),
            chains: vec![vec![Chain::default()]; count],
            peers: (0..count).map(near).collect(),
            trace: Vec::new(),
            calls: 0,
            snapshots: 0,
            acks: [0, 0],
            random,
        };
        let outcome = sim.play();
        (sim, outcome)
    }

    fn play(&mut self) -> Outcome {
        for node in 0..self.nodes.len() {
            let at = self.random.below(2000) as i64 * MS;
            self.at(at, Happens::Starts(node));
            for _ in 0..self.random.below(15) {
                let at = self.random.below(TROUBLE as u64) as i64;
                self.at(at, Happens::Commits(node));
            }
            for _ in 0..self.random.below(3) {
                let at = self.random.below(TROUBLE as u64) as i64;
                self.at(at, Happens::Crashes(node));
                let at = self.random.below(TROUBLE as u64) as i64;
                self.at(at, Happens::Compacts(node));
                let other = self.random.below(self.nodes.len() as u64) as usize;
                let (from, to) =
                    (self.random.below(TROUBLE as u64) as i64, self.random.below(40) as i64 * SECOND);
                self.at(from, Happens::Cuts(node, other, true));
                self.at((from + to).min(TROUBLE), Happens::Cuts(node, other, false));
            }
        }
        self.at(TROUBLE, Happens::Heals);
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > TROUBLE + HEALING {
                break;
            }
            self.now = at;
            self.trace.push(format!("{:>8} ms {event:?}", at / MS));
            self.happen(event)?;
            self.check()?;
        }
        let first = &self.nodes[0].disk.clock;
        match self.nodes.iter().find(|node| node.disk.clock != *first) {
            None => Ok(()),
            Some(node) => Err(format!("liveness: {:?} is not {first:?}", node.disk.clock)),
        }
    }

    fn at(&mut self, at: i64, event: Happens) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    fn delay(&mut self) -> i64 {
        let slowness = if self.is_healed { 20 } else { self.slowness };
        (1 + self.random.below(slowness) as i64) * MS
    }

    fn chain(&mut self, origin: usize, counter: u64) -> Chain {
        let chains = &mut self.chains[origin];
        while (chains.len() as u64) <= counter {
            let next = chains[chains.len() - 1].after(&name(origin), chains.len() as u64, []);
            chains.push(next);
        }
        chains[counter as usize]
    }

    fn clock_of(&mut self, counters: &BTreeMap<usize, u64>) -> Clock {
        let mut clock = Clock::default();
        for (origin, counter) in counters {
            let chain = self.chain(*origin, *counter);
            clock.set(&name(*origin), Position { counter: *counter, chain });
        }
        clock
    }

    fn clock(&mut self, node: usize) -> Clock {
        let counters = self.nodes[node].disk.clock.clone();
        self.clock_of(&counters)
    }

    fn happen(&mut self, event: Happens) -> Outcome {
        match event {
            Happens::Due(node) => {
                if self.nodes[node].woken_at == Some(self.now) {
                    self.nodes[node].woken_at = None;
                    self.step(node, Event::Due)?;
                }
            }
            Happens::Starts(node) => self.start(node)?,
            Happens::Crashes(node) => {
                let crashed = &mut self.nodes[node];
                if crashed.replica.take().is_some() {
                    crashed.calls.clear();
                    crashed.acks.clear();
                    let at = self.now + self.random.below(10_000) as i64 * MS;
                    self.at(at.min(TROUBLE), Happens::Starts(node));
                }
            }
            Happens::Commits(node) => {
                let boot = self.nodes[node].boot;
                let peers = self.random.below(3) as usize;
                let at = self.now + self.delay().min(50 * MS);
                self.at(at, Happens::Durable { node, boot, peers });
            }
            Happens::Durable { node, boot, peers } => {
                // A crash loses what was not durable.
                if self.is_running(node, boot) {
                    let own = self.nodes[node].disk.clock.entry(node).or_default();
                    *own += 1;
                    let counter = *own;
                    let chain = self.chain(node, counter);
                    self.step(node, Event::Committed(Position { counter, chain }))?;
                    let until = self.now + 5 * SECOND;
                    self.nodes[node].acks.insert(Ticket(counter), (counter, peers, until));
                    self.step(node, Event::Await { ticket: Ticket(counter), counter, peers, until })?;
                }
            }
            Happens::Compacts(node) => self.nodes[node].disk.floors = self.nodes[node].disk.clock.clone(),
            Happens::Cuts(from, to, true) => drop(self.cut.insert((from, to))),
            Happens::Cuts(from, to, false) => drop(self.cut.remove(&(from, to))),
            Happens::Heals => {
                self.is_healed = true;
                self.cut.clear();
            }
            Happens::Arrives(caller, callee, request) => self.arrive(caller, callee, request)?,
            Happens::Answered(caller, answer) => self.answered(caller, answer)?,
            Happens::Applies { node, boot, call, pieces } => {
                if self.is_running(node, boot) {
                    pieces.into_iter().try_for_each(|piece| self.apply(node, piece))?;
                    let clock = self.clock(node);
                    self.step(node, Event::Applied { call, clock, stopped: BTreeMap::new() })?;
                }
            }
        }
        Ok(())
    }

    fn is_running(&self, node: usize, boot: u64) -> bool {
        self.nodes[node].replica.is_some() && self.nodes[node].boot == boot
    }

    fn start(&mut self, node: usize) -> Outcome {
        let clock = self.clock(node);
        let started = &mut self.nodes[node];
        started.boot += 1;
        let hello = proto::HelloRequest {
            cluster: "c".into(),
            node: name(node),
            boot: started.boot.to_string(),
            address: name(node),
            ..Default::default()
        };
        let mut config = ReplicaConfig::new(hello, self.random.next());
        config.known = started.disk.known.clone().into_iter().collect();
        config.max_entries = 4;
        // These nodes have no records.
        config.compare_interval = None;
        started.replica = Some(Replica::new(config, clock, self.now));
        let peers = self.peers[node].iter().map(|peer| name(*peer)).collect();
        self.step(node, Event::Peers(peers))
    }

    fn apply(&mut self, node: usize, piece: Foreign) -> Outcome {
        let (origin, first, last) = match piece {
            Foreign::Entry(entry) => (number(&entry.origin), entry.counter, entry.counter),
            Foreign::Skip(skip) => (number(&skip.origin), skip.first, skip.last),
        };
        let at = self.nodes[node].disk.clock.entry(origin).or_default();
        if first > *at + 1 {
            return Err(format!("{} applies {first} of {} after {at}", name(node), name(origin)));
        }
        *at = last.max(*at);
        Ok(())
    }

    fn step(&mut self, node: usize, event: Event) -> Outcome {
        let Some(replica) = &mut self.nodes[node].replica else { return Ok(()) };
        let actions = replica.step(event, self.now);
        if let Some(due) = replica.due() {
            if due <= self.now {
                return Err(format!("{} is due at once, again", name(node)));
            }
            if self.nodes[node].woken_at.is_none_or(|at| at > due) {
                self.nodes[node].woken_at = Some(due);
                self.at(due, Happens::Due(node));
            }
        }
        actions.into_iter().try_for_each(|action| self.perform(node, action))
    }

    fn perform(&mut self, node: usize, action: Action) -> Outcome {
        self.trace.push(format!("{:>11} {}: {action:?}", "", name(node)));
        let boot = self.nodes[node].boot;
        match action {
            Action::CallHello(call, address, request) => {
                self.call(node, call, &address, Request::Hello(request))?;
            }
            Action::CallPull(call, address, request) => {
                self.call(node, call, &address, Request::Pull(request))?;
            }
            Action::CallNudge(call, address, request) => {
                let last = self.nodes[node].nudged_at.insert(number(&address), self.now);
                if last.is_some_and(|at| self.now < at + 50 * MS) {
                    return Err(format!("{} nudges {address} too often", name(node)));
                }
                self.call(node, call, &address, Request::Nudge(request))?;
            }
            Action::CallDigest(..) | Action::CallPeek(..) | Action::Mend(..) | Action::AnswerLook(..) => {
                return Err(format!("{} compares", name(node)));
            }
            Action::Cancel(call) => drop(self.nodes[node].calls.remove(&call)),
            Action::Apply(call, pieces, _) => {
                // Batches of the store are durable in their order.
                let at = self.now + 5 * MS;
                self.at(at, Happens::Applies { node, boot, call, pieces });
            }
            Action::AnswerHello(ticket, result) => {
                let (caller, _) = self.tickets.remove(&(node, ticket)).unwrap();
                self.answer(node, caller, vec![Answer::Hello(result.map_err(Failure::Refused))]);
            }
            Action::AnswerNudge(ticket, result) => {
                let (caller, _) = self.tickets.remove(&(node, ticket)).unwrap();
                self.answer(node, caller, vec![Answer::Nudge(result.map_err(Failure::Refused))]);
            }
            Action::AnswerPull(ticket, result) => {
                let (caller, request) = self.tickets.remove(&(node, ticket)).unwrap();
                let Request::Pull(request) = request else { panic!("{request:?} is no pull") };
                let parts = match result {
                    Ok(others) => self.parts(node, &request, others),
                    Err(refusal) => vec![Answer::PullFailed(Failure::Refused(refusal))],
                };
                self.answer(node, caller, parts);
            }
            Action::Acked { ticket, is_enough, .. } => {
                let (counter, peers, until) = self.nodes[node].acks.remove(&ticket).unwrap();
                let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
                let has = |(_, other): &(usize, &Node)| {
                    other.disk.clock.get(&node).is_some_and(|at| *at >= counter)
                };
                let holders = others.filter(has).count();
                self.acks[usize::from(is_enough)] += 1;
                if is_enough && holders < peers {
                    return Err(format!(
                        "{} acks {counter}: {holders} peers have it, not {peers}",
                        name(node)
                    ));
                }
                if !is_enough && self.now < until {
                    return Err(format!("{} gives {counter} up too early", name(node)));
                }
            }
            Action::Remember(of, counters) => drop(self.nodes[node].disk.known.insert(of, counters)),
            Action::TakeSnapshot { address, .. } => {
                self.snapshots += 1;
                let call = CallId(u64::MAX);
                self.call(node, call, &address, Request::Snapshot)?;
                // The driver has a deadline, too.
                let caller = Caller { node, boot, call };
                let at = self.now + 10 * SECOND;
                self.at(at, Happens::Answered(caller, Answer::Snapshot(None)));
            }
            Action::TakeNewId(why) => return Err(format!("{} loses its id: {why:?}", name(node))),
            Action::OfRegion(..) | Action::PeerPhases(_) => {}
            Action::Raise(alarm) => return Err(format!("{} raises {alarm:?}", name(node))),
            Action::Dropped(..) | Action::End(_) | Action::Fetched(..) | Action::Remove(..) => {}
        }
        Ok(())
    }

    fn call(&mut self, node: usize, call: CallId, address: &str, request: Request) -> Outcome {
        self.calls += 1;
        let callee = number(address);
        let is_nudge = matches!(request, Request::Nudge(_));
        // SR10: one call at a time, and one nudge.
        if self.nodes[node].calls.values().any(|running| *running == (callee, is_nudge)) {
            return Err(format!("{} calls {address} beside another call", name(node)));
        }
        self.nodes[node].calls.insert(call, (callee, is_nudge));
        let caller = Caller { node, boot: self.nodes[node].boot, call };
        if !self.is_lost(node, callee) {
            let at = self.now + self.delay();
            self.at(at, Happens::Arrives(caller, callee, request));
        }
        Ok(())
    }

    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        let loss = if self.is_healed { 0 } else { self.loss };
        self.random.chance(loss) || self.cut.contains(&(from, to))
    }

    fn arrive(&mut self, caller: Caller, callee: usize, request: Request) -> Outcome {
        self.next += 1;
        let ticket = Ticket(self.next);
        if self.nodes[callee].replica.is_none() {
            let answer = match request {
                Request::Hello(_) => Answer::Hello(Err(Failure::Unreachable)),
                Request::Pull(_) => Answer::PullFailed(Failure::Unreachable),
                Request::Nudge(_) => Answer::Nudge(Err(Failure::Unreachable)),
                Request::Snapshot => Answer::Snapshot(None),
            };
            self.answer(callee, caller, vec![answer]);
            return Ok(());
        }
        self.tickets.insert((callee, ticket), (caller, request.clone()));
        match request {
            Request::Hello(request) => self.step(callee, Event::Hello(ticket, request, Vec::new())),
            Request::Pull(request) => self.step(callee, Event::Pull(ticket, request, Vec::new())),
            Request::Nudge(request) => self.step(callee, Event::Nudge(ticket, request, Vec::new())),
            Request::Snapshot => {
                let Disk { clock, floors, .. } = &self.nodes[callee].disk;
                let answer = Answer::Snapshot(Some((clock.clone(), floors.clone())));
                self.answer(callee, caller, vec![answer]);
                Ok(())
            }
        }
    }

    /// SR11, SR12, SR14, SR18: what a node lacks, in messages of a few entries.
    fn parts(
        &mut self,
        node: usize,
        request: &proto::PullRequest,
        others: BTreeMap<String, proto::Clock>,
    ) -> Vec<Answer> {
        let mut last = proto::PullResponse { is_last: true, others, ..Default::default() };
        let (mut parts, mut part) = (Vec::new(), proto::PullResponse::default());
        let (clock, floors) = (self.nodes[node].disk.clock.clone(), self.nodes[node].disk.floors.clone());
        for (origin, counter) in clock {
            let floor = floors.get(&origin).copied().unwrap_or_default();
            let from = request.clock.get(&name(origin)).map_or(0, |at| at.counter);
            if from >= counter {
                continue;
            }
            if from < floor {
                last.out_of_sync.push(proto::OutOfSync { origin: name(origin), floor, must_replace: false });
                continue;
            }
            let to = counter.min(from + u64::from(request.max_entries));
            last.is_behind |= to < counter;
            for counter in from + 1..=to {
                let chain = self.chain(origin, counter).to_wire();
                let origin = name(origin);
                // A hole, which no correct node sends (SR14).
                if !self.is_healed && self.random.chance(2) {
                    continue;
                }
                if self.random.chance(10) {
                    part.skips.push(proto::Skip {
                        origin,
                        first: counter,
                        last: counter,
                        chain,
                        region: String::new(),
                    });
                } else {
                    part.entries.push(proto::Entry { origin, counter, chain, ..Default::default() });
                }
                if self.random.chance(30) {
                    parts.push(Answer::Part(std::mem::take(&mut part)));
                }
            }
        }
        parts.push(Answer::Part(part));
        last.clock = self.clock(node).to_wire();
        parts.push(Answer::Part(last));
        parts
    }

    /// Sends an answer, whose messages come in their order: not at all, in part, whole, or twice.
    fn answer(&mut self, from: usize, caller: Caller, parts: Vec<Answer>) {
        let copies = if !self.is_healed && self.random.chance(5) { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = self.now;
            for part in parts.clone() {
                if self.is_lost(from, caller.node) {
                    break;
                }
                at += self.delay();
                self.at(at, Happens::Answered(caller, part));
            }
        }
    }

    fn answered(&mut self, caller: Caller, answer: Answer) -> Outcome {
        let Caller { node, boot, call } = caller;
        if !self.is_running(node, boot) {
            return Ok(());
        }
        let is_more = matches!(&answer, Answer::Part(part) if !part.is_last);
        let is_running = if is_more {
            self.nodes[node].calls.contains_key(&call)
        } else {
            self.nodes[node].calls.remove(&call).is_some()
        };
        let event = match answer {
            Answer::Hello(result) => Event::HelloAnswered(call, result),
            Answer::Part(part) => Event::PullPart(call, part),
            Answer::PullFailed(failure) => Event::PullFailed(call, failure),
            Answer::Nudge(result) => Event::NudgeAnswered(call, result),
            Answer::Snapshot(_) if !is_running => return Ok(()),
            Answer::Snapshot(None) => Event::SnapshotEnded(Err(Failure::Unreachable)),
            Answer::Snapshot(Some((clock, floors))) => {
                let disk = &mut self.nodes[node].disk;
                for (origin, counter) in clock {
                    let at = disk.clock.entry(origin).or_default();
                    if *at < counter {
                        // The entries did not come with the snapshot.
                        (*at, _) = (counter, disk.floors.insert(origin, counter));
                    }
                }
                drop(floors);
                Event::SnapshotEnded(Ok(self.clock(node)))
            }
        };
        self.step(node, event)
    }

    /// What holds after each step.
    fn check(&self) -> Outcome {
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(replica) = &node.replica else { continue };
            for (origin, counter) in &node.disk.clock {
                let told = replica.clock().get(&name(*origin)).counter;
                if told > *counter {
                    return Err(format!("{} says {told} of {}, and has {counter}", name(at), name(*origin)));
                }
            }
            // SR9: what is known of a node is never more than it has.
            for (other, counters) in replica.known() {
                let theirs = &self.nodes[number(other)].disk.clock;
                let is_more = |(origin, counter): (&String, &u64)| {
                    *counter > theirs.get(&number(origin)).copied().unwrap_or_default()
                };
                if counters.iter().any(is_more) {
                    return Err(format!("{} knows more of {other} than it has: {counters:?}", name(at)));
                }
            }
        }
        Ok(())
    }
}
