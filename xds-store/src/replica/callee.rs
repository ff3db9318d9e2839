//! What peers call at this node.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::round::read_clock;
use super::{Action, IdLost, Refusal, Replica, SECOND};
use crate::clock::Clock;
use crate::store::Ticket;
use crate::time;

impl Replica {
    /// SR3: a peer says what it is, and hears what this node is.
    pub(super) fn on_hello(&mut self, ticket: Ticket, request: &proto::HelloRequest, forked: &[String]) {
        // SR58: a store that is being made learns the cluster. It is no node yet.
        if request.cluster.is_empty() && self.id.is_kept() {
            let protocol = self.protocol(request);
            let answer =
                protocol.map(|protocol| proto::HelloResponse { protocol, callee: Some(self.hello()) });
            let answer = answer.ok_or(Refusal::NoCommonProtocol);
            return self.actions.push(Action::AnswerHello(ticket, answer));
        }
        let answer = match self.refused_hello(request, forked) {
            Some(refusal) => Err(refusal),
            None => {
                self.on_called(&request.node, &request.address);
                let protocol = self.protocol(request).unwrap_or_default();
                Ok(proto::HelloResponse { protocol, callee: Some(self.hello()) })
            }
        };
        self.actions.push(Action::AnswerHello(ticket, answer));
    }

    fn refused_hello(&mut self, request: &proto::HelloRequest, forked: &[String]) -> Option<Refusal> {
        if !self.id.is_kept() {
            return Some(Refusal::ChangingId);
        }
        let refusal = self.refusal(request);
        // SR28: another process has this id. SR29: both of them take new ones.
        if refusal == Some(Refusal::TwoNodes) && request.node == self.node() {
            self.lose_id(IdLost::Twin);
        }
        if refusal.is_some() {
            return refusal;
        }
        let Ok(clock) = read_clock(&request.clock) else { return Some(Refusal::Malformed) };
        self.hear_forked(forked);
        if !self.hear_hello(request, &clock) {
            return Some(Refusal::TooManyNodes);
        }
        self.known.called(&request.node, &request.boot);
        // SR55: the log of the caller is not the one that nodes followed under its id.
        forked.contains(&request.node).then_some(Refusal::TwoNodes)
    }

    /// A peer pulls: its clock says what it has durably. The caller of the machine sends the entries.
    pub(super) fn on_pull(&mut self, ticket: Ticket, request: &proto::PullRequest, forked: &[String]) {
        let heard = self.hear_call(&request.node, &request.clock, forked);
        // SR26: a caller of an earlier version does not say which nodes it knows, else this one would be among them.
        if let Ok(clock) = &heard
            && request.knows.iter().any(|node| node == self.node())
        {
            self.count_on(&request.node, clock, request.knows.iter().map(String::as_str));
        }
        // SR9: nodes pass on the newest clocks of others.
        let answer = heard.map(|_| {
            let others = self.known.iter().filter(|(node, _)| *node != request.node);
            others
                .map(|(node, counters)| (node.to_owned(), proto::Clock { counters: counters.clone() }))
                .collect()
        });
        self.actions.push(Action::AnswerPull(ticket, answer));
    }

    /// A peer has something new. It is pulled, and the answer waits for that if the peer likes.
    pub(super) fn on_nudge(&mut self, ticket: Ticket, request: &proto::NudgeRequest, forked: &[String]) {
        let clock = match self.hear_call(&request.node, &request.clock, forked) {
            Ok(clock) => clock,
            Err(refusal) => return self.actions.push(Action::AnswerNudge(ticket, Err(refusal))),
        };
        if !self.clock.covers(&clock) {
            let of_node = self.peers.values_mut().filter(|peer| peer.node() == Some(&request.node));
            of_node.for_each(|peer| peer.pull_now(self.now));
        }
        let wait = request.wait.as_ref().map_or(0, time::length_from_proto).clamp(0, LONGEST_WAIT);
        let until = self.now.saturating_add(wait);
        if wait == 0 || !self.nudged.add(ticket, clock, until) {
            let (node, clock) = (self.node().to_owned(), self.clock.to_wire());
            self.actions.push(Action::AnswerNudge(ticket, Ok(proto::NudgeResponse { clock, node })));
        }
    }

    /// SR3: a caller was accepted by a Hello, now or before a restart.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check_caller(&self, node: &str) -> Result<(), Refusal> {
        if !self.id.is_kept() {
            return Err(Refusal::ChangingId);
        }
        match self.refusal_of_node(node) {
            Some(refusal) => Err(refusal),
            None if self.known.contains(node) => Ok(()),
            None => Err(Refusal::NoHello),
        }
    }

    /// SR3: takes the clock of a caller that was accepted by a Hello, now or before a restart.
    fn hear_call(
        &mut self,
        node: &str,
        clock: &BTreeMap<String, proto::Position>,
        forked: &[String],
    ) -> Result<Clock, Refusal> {
        self.check_caller(node)?;
        let clock = read_clock(clock).map_err(|_| Refusal::Malformed)?;
        self.hear_forked(forked);
        self.hear(node, &clock);
        self.on_called(node, "");
        if self.id.is_kept() { Ok(clock) } else { Err(Refusal::ChangingId) }
    }

    /// SR28: the entries of this node differ from those that a peer has.
    pub(super) fn hear_forked(&mut self, forked: &[String]) {
        if forked.iter().any(|origin| origin == self.node()) {
            self.lose_id(IdLost::Forked);
        }
    }

    /// SR59: a call of a peer ends the back-off towards it.
    fn on_called(&mut self, node: &str, address: &str) {
        for (at, peer) in &mut self.peers {
            // The node at an address that never answered is not known, but the caller may tell it.
            if peer.node() == Some(node) || at == address {
                peer.on_called(self.now);
            }
        }
    }
}

/// How long an answer to a nudge waits at most.
const LONGEST_WAIT: i64 = 60 * SECOND;
