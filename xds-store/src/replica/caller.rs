//! What this node calls at its peers: Hello, then a pull each interval, and nudges beside them.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::peer::Session;
use super::round::{check_id, read_clock};
use super::{
    Action, Alarm, Call, CallId, DEADLINE, ENTRY_BYTES, Failure, IdLost, Malformed, NODES, NUDGE_AGAIN,
    NUDGE_EVERY, NUDGE_WAIT, Peer, Position, Refusal, Replica, State, Stopped, StoppedAt,
};
use crate::clock::Clock;
use crate::time;

impl Replica {
    /// SR10: one Hello or Pull at a time.
    pub(super) fn call_if_due(&mut self, address: &str) {
        let now = self.now;
        let peer = self.peers.get(address).expect("the address is of a peer");
        if !matches!(peer.state, State::Waiting { due } if due <= now) {
            return;
        }
        let (is_greeted, node) = (peer.is_greeted, peer.node().map(str::to_owned));
        let call = Call { id: self.new_call(), until: now.saturating_add(DEADLINE) };
        // SR3: Hello comes before anything else.
        let action = if is_greeted {
            let request = proto::PullRequest {
                clock: self.clock.to_wire(),
                max_entries: self.config.max_entries,
                max_bytes: self.config.max_bytes,
                node: self.node().to_owned(),
                region: self.region().to_owned(),
                knows: self.known.iter().map(|(node, _)| node.to_owned()).collect(),
            };
            Action::CallPull(call.id, address.to_owned(), request)
        } else {
            // Only who calls from now on can be another process than the one that answers.
            node.iter().for_each(|node| self.known.greets(node));
            Action::CallHello(call.id, address.to_owned(), self.hello())
        };
        let peer = self.peers.get_mut(address).expect("it is above");
        if is_greeted {
            peer.pull(call);
        } else {
            peer.state = State::Greeting(call);
        }
        self.actions.push(action);
    }

    pub(super) fn end_late_calls(&mut self, address: &str) {
        let Some(peer) = self.peers.get_mut(address) else { return };
        if let Some(call) = peer.nudge.call.take_if(|call| call.until <= self.now) {
            peer.nudge.not_before = self.now.saturating_add(NUDGE_AGAIN);
            self.actions.push(Action::Cancel(call.id));
        }
        if let Some(call) = peer.call().filter(|call| call.until <= self.now) {
            self.actions.push(Action::Cancel(call.id));
            self.fail(address);
        }
    }

    /// SR16: a peer is nudged after a commit that it may lack, and again while a commit waits for it (SR17).
    pub(super) fn wants_nudge(&self, peer: &Peer) -> bool {
        let Some(node) = peer.node().filter(|_| peer.is_greeted && self.id.is_kept()) else { return false };
        let confirmed = self.known.confirmed(node);
        let is_new = self.clock.get(self.node()).counter > confirmed.max(peer.nudge.told);
        peer.nudge.call.is_none() && (is_new || self.acks.until(confirmed).is_some())
    }

    pub(super) fn nudge_if_due(&mut self, address: &str) {
        let Some(peer) = self.peers.get(address).filter(|peer| self.wants_nudge(peer)) else { return };
        if peer.nudge.not_before > self.now {
            return;
        }
        let confirmed = peer.node().map_or(0, |node| self.known.confirmed(node));
        let wait = self.acks.until(confirmed).map(|until| (until - self.now).clamp(0, NUDGE_WAIT));
        let call = Call { id: self.new_call(), until: self.now.saturating_add(DEADLINE) };
        let told = self.clock.get(self.node()).counter;
        let peer = self.peers.get_mut(address).expect("it is above");
        (peer.nudge.call, peer.nudge.told) = (Some(call), told);
        peer.nudge.not_before = self.now.saturating_add(NUDGE_EVERY);
        let request = proto::NudgeRequest {
            clock: self.clock.to_wire(),
            wait: wait.map(time::length_to_proto),
            node: self.node().to_owned(),
        };
        self.actions.push(Action::CallNudge(call.id, address.to_owned(), request));
    }

    pub(super) fn on_hello_answered(&mut self, call: CallId, result: Result<proto::HelloResponse, Failure>) {
        let Some(address) = self.address_of(call) else { return };
        let callee = match result {
            Err(failure) => return self.on_failed(call, &failure),
            Ok(response) => response.callee.unwrap_or_default(),
        };
        match self.refusal(&callee) {
            None => {}
            Some(Refusal::Malformed) => return self.on_malformed(&address, Malformed::Missing),
            // SR57
            Some(Refusal::Yourself) => return self.leave_own_address(&address),
            // SR28: the twin of this node answered. Another node that runs twice still has entries of
            // others, so it is pulled from.
            Some(Refusal::TwoNodes) if callee.node == self.node() => return self.lose_id(IdLost::Twin),
            Some(Refusal::TwoNodes) => {}
            Some(refusal) => return self.on_refused(&address, refusal),
        }
        let clock = match read_clock(&callee.clock) {
            Ok(clock) => clock,
            Err(malformed) => return self.on_malformed(&address, malformed),
        };
        if !self.hear_hello(&callee, &clock) {
            return self.on_refused(&address, Refusal::TooManyNodes);
        }
        self.known.answered(&callee.node, &callee.boot, call, self.next_call);
        // The answer may be that of a process that was replaced meanwhile, and its role that of before (SG22).
        let is_late = self.known.has_another_called(&callee.node, &callee.boot);
        let Some(peer) = self.peers.get_mut(&address).filter(|_| self.id.is_kept()) else { return };
        if is_late {
            peer.state = State::Waiting { due: self.now };
            return;
        }
        if peer.node() != Some(&callee.node) {
            peer.phases = None;
        }
        let (node, boot) = (callee.node.clone(), callee.boot.clone());
        let proto::HelloRequest { region, is_replica, build, .. } = callee;
        let is_second = !is_replica && region == self.config.hello.region && self.config.is_writer();
        let session = Session { node, boot, region, is_replica, build, clock };
        (peer.session, peer.is_greeted) = (Some(session), true);
        peer.heard_at = Some(self.now);
        // The peer may have lost its log, so this node nudges it again.
        peer.nudge.told = 0;
        peer.state = State::Waiting { due: self.now };
        // SR34: both go on, and their writes are merged.
        self.alarm(Alarm::TwoWriters(address.clone()), is_second);
        self.compare_boots(&callee.node, &callee.boot);
        self.tell_phases();
        if self.snapshot == super::Snapshot::First {
            self.take_snapshot_if_needed(&address);
        }
    }

    pub(super) fn on_pull_part(&mut self, call: CallId, part: proto::PullResponse) {
        let Some(address) = self.address_of(call) else { return };
        let limit = self.config.max_bytes as usize + ENTRY_BYTES;
        let takes_parts = self.takes_parts(&address, part.is_fetching);
        let Some(Peer { state: State::Pulling(pulling), .. }) = self.peers.get_mut(&address) else { return };
        // SR10: the deadline is that of each message, so a large entry on a slow link arrives.
        pulling.call.until = self.now.saturating_add(DEADLINE);
        let proto::PullResponse { entries, skips, is_last, is_behind, clock, others, .. } = part;
        let proto::PullResponse { out_of_sync, forked, phases, schemas, node, is_fetching, .. } = part;
        let pieces = match pulling.round.part((&self.clock, takes_parts), entries, skips, limit) {
            Ok((pieces, gaps)) => {
                let gaps = Some(gaps).filter(|gaps| !gaps.is_empty());
                self.actions.extend(gaps.map(|gaps| Action::Dropped(address.clone(), gaps)));
                pieces
            }
            Err(malformed) => return self.on_malformed(&address, malformed),
        };
        let is_applying = !pieces.is_empty();
        pulling.applying += usize::from(is_applying);
        let is_torn = is_last && pulling.round.is_open();
        if let Some(peer) = self.peers.get_mut(&address) {
            // SV15: a peer has few plans.
            peer.phases = Some(phases.into_iter().take(PLANS).collect());
            self.tell_phases();
        }
        if is_applying {
            self.actions.push(Action::Apply(call, pieces, self.policies.clone()));
        }
        if is_torn {
            return self.on_malformed(&address, Malformed::Parts);
        }
        let Some(peer) = self.peers.get_mut(&address) else { return };
        if let Err(malformed) = peer.note(out_of_sync, forked) {
            return self.on_malformed(&address, malformed);
        }
        if !is_last {
            return;
        }
        if peer.leave_if_other(&node) {
            peer.pull_now(self.now);
            if let State::Pulling(pulling) = &mut peer.state {
                pulling.end = Some(false);
            }
            return self.finish_if_applied(&address);
        }
        peer.schemas = schemas.into_iter().take(PLANS).collect();
        // It has what it left out before, and this node takes that as left out now.
        if std::mem::replace(&mut peer.is_fetching, is_fetching) && !is_fetching {
            self.comparing.compare_at(&address, self.now);
        }
        match read_clock(&clock) {
            Ok(clock) => self.on_last_part(&address, is_behind, clock, others),
            Err(malformed) => self.on_malformed(&address, malformed),
        }
    }

    fn on_last_part(
        &mut self,
        address: &str,
        is_behind: bool,
        clock: Clock,
        others: BTreeMap<String, proto::Clock>,
    ) {
        if others.len() > NODES || others.keys().any(|node| check_id(node).is_err()) {
            return self.on_malformed(address, Malformed::TooLarge);
        }
        let Some(peer) = self.peers.get_mut(address) else { return };
        let State::Pulling(pulling) = &mut peer.state else { return };
        pulling.end = Some(is_behind);
        (peer.failures, peer.has_answered) = (0, true);
        peer.heard_at = Some(self.now);
        let forked = peer.forked.clone();
        let node = peer.session.as_mut().map(|session| {
            session.clock = clock.clone();
            session.node.clone()
        });
        self.tell_phases();
        self.end_alarms(|alarm| match alarm {
            Alarm::Refused(at, _) | Alarm::Malformed(at, _) => at == address,
            Alarm::Forked(at, origin) => at == address && !forked.contains(origin),
            _ => false,
        });
        for origin in &forked {
            self.alarm(Alarm::Forked(address.to_owned(), origin.clone()), true);
        }
        self.hear_forked(&forked.into_iter().collect::<Vec<_>>());
        if let Some(node) = node.filter(|_| self.id.is_kept()) {
            self.hear(&node, &clock);
            self.count_on(&node, &clock, others.keys().map(String::as_str));
        }
        // SR9: what others know. SR26: the peer knows all nodes that came with these clocks.
        for (node, theirs) in &others {
            let clock = theirs.counters.iter().map(|(origin, counter)| (origin.as_str(), *counter));
            self.known.count_on(node, clock, self.now);
        }
        let is_fetching = self.peers.get(address).is_some_and(|peer| peer.is_fetching);
        if self.takes_parts(address, is_fetching)
            && let Some(peer) = self.peers.get_mut(address)
            && peer.has_left_entries()
        {
            peer.pull_now(self.now);
        }
        self.look_behind();
        self.take_snapshot_if_needed(address);
        self.compare_soon(address);
        self.finish_if_applied(address);
    }

    /// The store applied entries, or stopped at some.
    pub(super) fn on_applied(&mut self, call: CallId, clock: Clock, stopped: BTreeMap<String, Stopped>) {
        let has_moved = !self.clock.covers(&clock);
        self.set_clock(clock);
        self.look_behind();
        let of_call = |peer: &Peer| matches!(&peer.state, State::Pulling(pulling) if pulling.call.id == call);
        let address = self.peers.iter().find(|(_, peer)| of_call(peer)).map(|(address, _)| address.clone());
        for (origin, stopped) in stopped {
            let pulling = address.as_ref().and_then(|address| self.peers.get_mut(address));
            // The next round tries again, also with other peers, which may have other entries.
            if let Some(Peer { state: State::Pulling(pulling), forked, .. }) = pulling {
                match stopped {
                    Stopped::Policies => pulling.round.leave(&origin),
                    _ => pulling.round.drop_rest(&origin),
                }
                if let Stopped::Forked { .. } = stopped {
                    forked.insert(origin.clone());
                }
            }
            let (counter, reason) = match stopped {
                // SR14: an entry before it was not written. SG25: the peer is asked once more.
                Stopped::Gap { .. } | Stopped::Policies => continue,
                // SR28: others have entries of this node that its store does not have.
                Stopped::Own { .. } => {
                    self.lose_id(IdLost::Behind);
                    continue;
                }
                // SR54
                Stopped::Forked { counter } => (counter, None),
                // SR15
                Stopped::Invalid { counter, reason } => (counter, Some(reason)),
            };
            // It is tried again in each round.
            let before = self.stopped.get(&origin).filter(|before| before.counter == counter);
            let since = before.map_or(self.now, |before| before.since);
            let at = StoppedAt { counter, reason: reason.clone().unwrap_or_default(), since };
            self.stopped.insert(origin.clone(), at);
            match (reason, &address) {
                (None, Some(address)) => self.alarm(Alarm::Forked(address.clone(), origin), true),
                (None, None) => {}
                (Some(_), _) => self.alarm(Alarm::Stopped(origin), true),
            }
        }
        let Some(address) = address else { return };
        if let Some(Peer { state: State::Pulling(pulling), .. }) = self.peers.get_mut(&address) {
            pulling.applying -= 1;
            pulling.has_moved |= has_moved;
        }
        self.finish_if_applied(&address);
    }

    /// SR12: the next round asks with the clock that this one has led to.
    fn finish_if_applied(&mut self, address: &str) {
        let interval = self.jittered(self.config.pull_interval);
        let Some(peer) = self.peers.get_mut(address) else { return };
        let State::Pulling(pulling) = &peer.state else { return };
        if pulling.end.is_some() && pulling.applying == 0 {
            let wait = if pulling.is_behind() { 0 } else { interval };
            peer.state = State::Waiting { due: self.now.saturating_add(wait) };
        }
    }

    /// SR9: the clock of the store, which never goes back.
    pub(super) fn set_clock(&mut self, clock: Clock) {
        let here: Vec<(String, Position)> =
            clock.iter().map(|(origin, at)| (origin.to_owned(), at)).collect();
        for (origin, at) in here {
            if at.counter >= self.clock.get(&origin).counter {
                self.clock.set(&origin, at);
            }
        }
        let Self { stopped, clock, .. } = self;
        let is_over = |(origin, at): &(&String, &StoppedAt)| clock.get(origin).counter >= at.counter;
        let over: Vec<_> = stopped.iter().filter(is_over).map(|(origin, _)| origin.clone()).collect();
        for origin in over {
            self.stopped.remove(&origin);
            self.alarm(Alarm::Stopped(origin), false);
        }
    }

    pub(super) fn on_nudge_answered(&mut self, call: CallId, result: Result<proto::NudgeResponse, Failure>) {
        let is_of_call = |peer: &Peer| peer.nudge.call.is_some_and(|nudge| nudge.id == call);
        let Some(peer) = self.peers.values_mut().find(|peer| is_of_call(peer)) else { return };
        peer.nudge.call = None;
        let node = peer.node().unwrap_or_default().to_owned();
        if result.as_ref().is_ok_and(|response| peer.leave_if_other(&response.node)) {
            return peer.pull_now(self.now);
        }
        let Ok(Ok(clock)) = result.map(|response| read_clock(&response.clock)) else {
            // SR16: a nudge that is lost costs one interval.
            peer.nudge.not_before = self.now.saturating_add(NUDGE_AGAIN);
            return;
        };
        if clock.get(&self.config.hello.node).counter < peer.nudge.told {
            // It did not get there in time, so commits that wait for it ask again.
            peer.nudge.not_before = peer.nudge.not_before.max(self.now.saturating_add(NUDGE_AGAIN));
        }
        self.hear(&node, &clock);
    }

    pub(super) fn on_failed(&mut self, call: CallId, failure: &Failure) {
        let Some(address) = self.address_of(call) else { return };
        match failure {
            Failure::Unreachable => self.fail(&address),
            Failure::Refused(refusal) => self.on_refused(&address, *refusal),
        }
    }

    fn on_refused(&mut self, address: &str, refusal: Refusal) {
        match refusal {
            // SR55: the peer found two nodes with this id.
            Refusal::TwoNodes => self.lose_id(IdLost::Told),
            // SR57
            Refusal::Yourself => return self.leave_own_address(address),
            // These end by themselves.
            Refusal::NoHello | Refusal::ChangingId => {}
            _ => self.alarm(Alarm::Refused(address.to_owned(), refusal), true),
        }
        self.fail(address);
    }

    fn on_malformed(&mut self, address: &str, malformed: Malformed) {
        let call = self.peers.get(address).and_then(Peer::call);
        self.actions.extend(call.map(|call| Action::Cancel(call.id)));
        self.alarm(Alarm::Malformed(address.to_owned(), malformed), true);
        self.fail(address);
    }

    /// SR10: a failing peer delays no other; it is called again after the back-off.
    fn fail(&mut self, address: &str) {
        let Some(peer) = self.peers.get_mut(address) else { return };
        let wait = peer.fail();
        let due = self.now.saturating_add(self.jittered(wait));
        if let Some(peer) = self.peers.get_mut(address) {
            peer.state = State::Waiting { due };
        }
        // The calls of a comparison may take minutes. They go the same way.
        self.end_comparison_with(address);
        self.tell_phases();
    }

    /// The peer that a Hello or a Pull goes to; `None` if the call has ended.
    fn address_of(&self, call: CallId) -> Option<String> {
        let is_of_call = |peer: &Peer| peer.call().is_some_and(|running| running.id == call);
        self.peers.iter().find(|(_, peer)| is_of_call(peer)).map(|(address, _)| address.clone())
    }
}

/// More plans than a node has.
const PLANS: usize = 1_000;
