//! One machine, whose peers are played by the test.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::{Chain, Clock, Position};
use xds_store::entry::Foreign;
use xds_store::replica::*;
use xds_store::store::Ticket;

use crate::sim::SECOND;

pub(crate) struct One {
    pub(crate) replica: Replica,
    pub(crate) now: i64,
    /// What it told the store of the phases of the peers.
    pub(crate) phases: Vec<Action>,
}

pub(crate) fn hello(node: &str, boot: &str) -> proto::HelloRequest {
    let (node, boot) = (node.to_owned(), boot.to_owned());
    proto::HelloRequest {
        protocol: 1,
        lowest_protocol: 1,
        cluster: "c".into(),
        node,
        boot,
        ..Default::default()
    }
}

/// A position whose chain is that of a branch of the log.
pub(crate) fn position(counter: u64, branch: u8) -> Position {
    Position { counter, chain: Chain::from_wire(&[branch; 16]).unwrap() }
}

pub(crate) fn clock(counters: &[(&str, u64)]) -> Clock {
    let mut clock = Clock::default();
    counters.iter().for_each(|(origin, counter)| clock.set(origin, position(*counter, 1)));
    clock
}

pub(crate) fn entry(origin: &str, counter: u64) -> proto::Entry {
    proto::Entry { origin: origin.into(), counter, chain: vec![1; 16].into(), ..Default::default() }
}

pub(crate) fn skip(origin: &str, first: u64, last: u64) -> proto::Skip {
    proto::Skip { origin: origin.into(), first, last, chain: vec![1; 16].into(), region: String::new() }
}

pub(crate) fn last(counters: &[(&str, u64)]) -> proto::PullResponse {
    proto::PullResponse { is_last: true, clock: clock(counters).to_wire(), ..Default::default() }
}

pub(crate) fn counters(of: &[(&str, u64)]) -> Counters {
    of.iter().map(|(origin, counter)| ((*origin).to_owned(), *counter)).collect()
}

impl One {
    /// Node `me` with peers at these addresses, and the calls that it makes at once.
    pub(crate) fn start(addresses: &[&str]) -> (Self, Vec<CallId>) {
        Self::with(config(), &clock(&[]), addresses)
    }

    pub(crate) fn with(config: ReplicaConfig, clock: &Clock, addresses: &[&str]) -> (Self, Vec<CallId>) {
        let mut one = Self { replica: Replica::new(config, clock.clone(), 0), now: 0, phases: Vec::new() };
        let actions = one.peers(addresses);
        (one, hellos(&actions))
    }

    pub(crate) fn peers(&mut self, addresses: &[&str]) -> Vec<Action> {
        self.step(Event::Peers(addresses.iter().map(|address| (*address).to_owned()).collect()))
    }

    pub(crate) fn step(&mut self, event: Event) -> Vec<Action> {
        let actions = self.replica.step(event, self.now);
        let (told, rest) = actions.into_iter().partition(|action| matches!(action, Action::PeerPhases(_)));
        self.phases.extend::<Vec<_>>(told);
        rest
    }

    /// Lets time pass to the next thing that is due.
    pub(crate) fn wait(&mut self) -> Vec<Action> {
        self.now = self.replica.due().unwrap();
        self.step(Event::Due)
    }

    /// Waits until a call of this kind is made.
    pub(crate) fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Action) -> Option<T>) -> T {
        (0..100).find_map(|_| self.wait().iter().find_map(&mut wanted)).unwrap()
    }

    /// A peer answers a Hello; what follows.
    pub(crate) fn greet(
        &mut self,
        call: CallId,
        node: &str,
        boot: &str,
        counters: &[(&str, u64)],
    ) -> Vec<Action> {
        let callee = proto::HelloRequest { clock: clock(counters).to_wire(), ..hello(node, boot) };
        self.step(Event::HelloAnswered(call, Ok(proto::HelloResponse { protocol: 1, callee: Some(callee) })))
    }

    /// Node `me` with one peer `p` at address `a`, which it pulls from.
    pub(crate) fn pulling(counters: &[(&str, u64)]) -> (Self, CallId) {
        let (mut one, calls) = Self::start(&["a"]);
        let actions = one.greet(calls[0], "p", "1", counters);
        let pull = pulls(&actions)[0].0;
        (one, pull)
    }

    pub(crate) fn part(&mut self, call: CallId, entries: Vec<proto::Entry>) -> Vec<Action> {
        self.step(Event::PullPart(call, proto::PullResponse { entries, ..Default::default() }))
    }

    pub(crate) fn applied(&mut self, call: CallId, counters: &[(&str, u64)]) -> Vec<Action> {
        self.step(Event::Applied { call, clock: clock(counters), stopped: BTreeMap::new() })
    }

    /// A peer pulls with this clock, and knows this node alone.
    pub(crate) fn pulled(&mut self, node: &str, counters: &[(&str, u64)]) -> Vec<Action> {
        self.pulled_knowing(node, counters, &["me"])
    }

    pub(crate) fn pulled_knowing(
        &mut self,
        node: &str,
        counters: &[(&str, u64)],
        knows: &[&str],
    ) -> Vec<Action> {
        let request = proto::PullRequest {
            node: node.into(),
            clock: clock(counters).to_wire(),
            knows: knows.iter().map(|&node| node.into()).collect(),
            ..Default::default()
        };
        self.step(Event::Pull(Ticket(7), request, Vec::new()))
    }

    /// A peer says Hello.
    pub(crate) fn greeted(&mut self, hello: proto::HelloRequest) -> Vec<Action> {
        self.step(Event::Hello(Ticket(8), hello, Vec::new()))
    }

    pub(crate) fn commit(&mut self, counter: u64) -> Vec<Action> {
        self.step(Event::Committed(position(counter, 1)))
    }
}

pub(crate) fn config() -> ReplicaConfig {
    let hello = proto::HelloRequest { address: "me:1".into(), ..hello("me", "1") };
    let mut config = ReplicaConfig::new(hello, 1);
    config.compare_interval = None;
    config
}

pub(crate) fn hellos(actions: &[Action]) -> Vec<CallId> {
    let of = |action: &Action| if let Action::CallHello(call, ..) = action { Some(*call) } else { None };
    actions.iter().filter_map(of).collect()
}

pub(crate) fn a_pull(action: &Action) -> Option<(CallId, BTreeMap<String, proto::Position>)> {
    let Action::CallPull(call, _, request) = action else { return None };
    Some((*call, request.clock.clone()))
}

pub(crate) fn pulls(actions: &[Action]) -> Vec<(CallId, BTreeMap<String, proto::Position>)> {
    actions.iter().filter_map(a_pull).collect()
}

pub(crate) fn nudge(action: &Action) -> Option<(CallId, bool)> {
    let Action::CallNudge(call, _, request) = action else { return None };
    Some((*call, request.wait.is_some()))
}

pub(crate) fn nudges(actions: &[Action]) -> Vec<(CallId, bool)> {
    actions.iter().filter_map(nudge).collect()
}

/// What the store was given, as origins with ranges of counters.
pub(crate) fn given(actions: &[Action]) -> Vec<(String, u64, u64)> {
    let pieces = actions.iter().filter_map(|action| match action {
        Action::Apply(_, pieces, _) => Some(pieces),
        _ => None,
    });
    let range = |piece: &Foreign| match piece {
        Foreign::Entry(entry) => (entry.origin.clone(), entry.counter, entry.counter),
        Foreign::Skip(skip) => (skip.origin.clone(), skip.first, skip.last),
    };
    pieces.flatten().map(range).collect()
}

/// The answer to a Hello of a peer.
pub(crate) fn refused(actions: &[Action]) -> Option<Refusal> {
    let answer = actions.iter().find_map(|action| match action {
        Action::AnswerHello(_, answer) => Some(answer.as_ref().err().copied()),
        _ => None,
    });
    answer.unwrap()
}

pub(crate) const INTERVAL: std::ops::RangeInclusive<i64> = 5 * SECOND - SECOND / 2..=5 * SECOND + SECOND / 2;
