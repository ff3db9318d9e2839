//! Calls between the nodes: they are slow, get lost, come twice, and overtake each other.

use xds_proto::xds::store::v1 as proto;
use xds_store::replica::CallId;
use xds_store::store::Ticket;

use super::driver::{Answer, Input, Request};
use super::{Caller, Happens, MS, Outcome, SECOND, START, Sim, name, number};

impl Sim {
    /// How long a batch or a message of a node takes.
    pub(super) fn delay(&mut self, node: usize) -> i64 {
        (1 + self.random.below(self.nodes[node].slowness) as i64) * MS
    }

    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        let is_whole = self.is_healed && self.core.contains(&from) && self.core.contains(&to);
        let has_losses = self.now >= START && !is_whole;
        self.cut.contains(&(from, to)) || (has_losses && self.random.chance(self.loss))
    }

    pub(super) fn call(&mut self, node: usize, call: CallId, address: &str, request: Request) -> Outcome {
        self.counts.calls += 1;
        let (callee, kind) = (number(address), Kind::of(&request));
        let (caller, now) = (&mut self.nodes[node], self.now);
        // SR10: one call at a time, and beside it one nudge, and one comparison with some peer.
        let is_second = |(at, running): &(usize, Kind)| {
            *running == kind
                && kind != Kind::Region
                && (*at == callee || matches!(kind, Kind::Comparison | Kind::Snapshot))
        };
        if caller.calls.values().any(is_second) {
            return Err(format!("{} calls {address} beside another call", name(node)));
        }
        caller.calls.insert(call, (callee, kind));
        let last = if kind == Kind::Nudge { caller.nudged_at.insert(callee, now) } else { None };
        // SR16
        if last.is_some_and(|at| now < at + 50 * MS) {
            return Err(format!("{} nudges {address} too often", name(node)));
        }
        let caller = Caller { node, boot: caller.boot, call };
        if kind == Kind::Comparison {
            // A connection that loses something breaks. The replica waits longer than for other calls.
            self.at(self.now + 10 * SECOND, Happens::Answered(caller, 0, request.unreachable()));
        }
        let copies = if self.is_troubled() && self.random.chance(5) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.is_lost(node, callee) {
                let at = self.now + self.delay(node);
                self.at(at, Happens::Arrives(caller, callee, request.clone()));
            }
        }
        Ok(())
    }

    pub(super) fn arrive(&mut self, caller: Caller, callee: usize, request: Request) -> Outcome {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.tickets.insert((callee, ticket), caller);
        if self.nodes[callee].process.is_none() {
            let answer = request.unreachable();
            self.answer(callee, ticket, vec![answer]);
            return Ok(());
        }
        self.input(callee, Input::Called(ticket, request))
    }

    /// Sends an answer, whose messages come in their order: not at all, in part, whole, or twice.
    pub(super) fn answer(&mut self, node: usize, ticket: Ticket, parts: Vec<Answer>) {
        let caller = self.tickets.remove(&(node, ticket)).unwrap();
        let parts: Vec<_> = parts.into_iter().flat_map(|part| self.in_pieces(part)).collect();
        let copies = if self.is_troubled() && self.random.chance(5) { 2 } else { 1 };
        for _ in 0..copies {
            self.next += 1;
            let (mut at, stream) = (self.now, self.next);
            for part in parts.clone() {
                if self.is_lost(node, caller.node) {
                    break;
                }
                at += self.delay(node);
                self.at(at, Happens::Answered(caller, stream, part));
            }
        }
    }

    /// The messages of a peer that sends smaller ones, and leaves out an entry sometimes, which no correct node
    /// does (SR14).
    fn in_pieces(&mut self, answer: Answer) -> Vec<Answer> {
        let Answer::Pull(Ok(mut last)) = answer else { return vec![answer] };
        let mut pieces = Vec::new();
        let entries = std::mem::take(&mut last.entries);
        for entry in entries {
            if self.is_troubled() && self.random.chance(2) {
                continue;
            }
            let mut left = entry.states.clone();
            let mut entry = entry;
            while left.len() > 1 && self.random.chance(30) {
                let rest = left.split_off(1);
                entry.states = std::mem::replace(&mut left, rest);
                entry.more = true;
                let rest = proto::Entry { more: false, ..entry.clone() };
                pieces.push(vec![std::mem::replace(&mut entry, rest)]);
            }
            entry.states = left;
            match pieces.last_mut() {
                Some(piece)
                    if !piece.last().is_some_and(|last: &proto::Entry| last.more)
                        && self.random.chance(60) =>
                {
                    piece.push(entry);
                }
                _ => pieces.push(vec![entry]),
            }
        }
        let mut messages = Vec::new();
        for entries in pieces {
            // A skip comes with the entry that follows it.
            let is_before = |skip: &mut proto::Skip| {
                entries.iter().any(|entry| entry.origin == skip.origin && skip.last < entry.counter)
            };
            let skips = last.skips.extract_if(.., is_before).collect();
            messages.push(proto::PullResponse { entries, skips, ..Default::default() });
        }
        messages.into_iter().chain([last]).map(|part| Answer::Pull(Ok(part))).collect()
    }

    pub(super) fn answered(&mut self, caller: Caller, stream: u64, answer: Answer) -> Outcome {
        let Caller { node, boot, call } = caller;
        if self.nodes[node].boot != boot || self.nodes[node].process.is_none() {
            return Ok(());
        }
        // The messages of one answer come in order, and a caller follows one of them.
        let has_parts = matches!(answer, Answer::Pull(_) | Answer::Snapshot(_));
        if has_parts && *self.nodes[node].streams.entry(call).or_insert(stream) != stream {
            return Ok(());
        }
        // A call ends with its last message. What comes then is of a copy of the request.
        let is_last = match &answer {
            Answer::Pull(Ok(part)) => part.is_last,
            Answer::Snapshot(Ok(page)) => page.is_last,
            _ => true,
        };
        if is_last {
            self.nodes[node].calls.remove(&call);
        }
        self.counts.peeks += u64::from(matches!(answer, Answer::Peek(Ok(_))));
        self.input(node, Input::Answered(call, answer))
    }
}

/// Of how many calls there may be one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Round,
    Nudge,
    Comparison,
    Snapshot,
    Region,
}

impl Kind {
    fn of(request: &Request) -> Self {
        match request {
            Request::Hello(_) | Request::Pull(_) => Self::Round,
            Request::Nudge(_) => Self::Nudge,
            Request::Digest(_) | Request::Peek(_) => Self::Comparison,
            Request::Snapshot(_) => Self::Snapshot,
            Request::Region(_) => Self::Region,
        }
    }
}
