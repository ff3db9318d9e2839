//! Which nodes may exchange entries, and whether the id of this one is still its own (SR28).

use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::peer_refused::Reason;

use super::peer::{Peer, Session};
use super::round::check_id;
use super::{Action, Alarm, Failure, Replica, SECOND, Snapshot, State};
use crate::clock::Clock;

/// Why a node refuses a call of another one (SR3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// They are of two clusters.
    #[error("the node is of another cluster")]
    OtherCluster,
    /// No protocol is spoken by both.
    #[error("no version of the protocol is spoken by both nodes")]
    NoCommonProtocol,
    /// The caller called itself (SR57).
    #[error("the node called itself")]
    Yourself,
    /// Another node has the id of the caller, or its entries differ from those that are known (SR55).
    #[error("two nodes have the id of the caller: it needs another one")]
    TwoNodes,
    /// The caller is forgotten.
    #[error("the node was forgotten: it needs another id")]
    Forgotten,
    /// There was no Hello yet.
    #[error("the node has to call Hello first")]
    NoHello,
    /// The callee is changing its id.
    #[error("the node is changing its id")]
    ChangingId,
    /// The callee knows as many nodes as it can.
    #[error("the node knows 256 nodes, and no more: forget those that are gone")]
    TooManyNodes,
    /// The request is none of this protocol.
    #[error("the request is malformed")]
    Malformed,
}

impl Refusal {
    /// Its form on the wire.
    #[must_use]
    pub fn to_wire(self) -> proto::PeerRefused {
        let reason = match self {
            Self::OtherCluster => Reason::OtherCluster,
            Self::NoCommonProtocol => Reason::NoCommonProtocol,
            Self::Yourself => Reason::Yourself,
            Self::TwoNodes => Reason::TwoNodes,
            Self::Forgotten => Reason::Forgotten,
            Self::NoHello => Reason::NoHello,
            Self::ChangingId => Reason::ChangingId,
            Self::TooManyNodes => Reason::TooManyNodes,
            Self::Malformed => Reason::Malformed,
        };
        proto::PeerRefused { reason: reason.into() }
    }

    /// The refusal of its form on the wire; `None` if this version does not know the reason.
    #[must_use]
    pub fn from_wire(refused: proto::PeerRefused) -> Option<Self> {
        match refused.reason() {
            Reason::Unspecified => None,
            Reason::OtherCluster => Some(Self::OtherCluster),
            Reason::NoCommonProtocol => Some(Self::NoCommonProtocol),
            Reason::Yourself => Some(Self::Yourself),
            Reason::TwoNodes => Some(Self::TwoNodes),
            Reason::Forgotten => Some(Self::Forgotten),
            Reason::NoHello => Some(Self::NoHello),
            Reason::ChangingId => Some(Self::ChangingId),
            Reason::TooManyNodes => Some(Self::TooManyNodes),
            Reason::Malformed => Some(Self::Malformed),
        }
    }
}

/// How a node found that its id is not its own, or that its store lost entries (SR28).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdLost {
    /// Another process said that it has this id.
    #[error("another process has it")]
    Twin,
    /// A peer has entries of this node that it does not have.
    #[error("a peer has commits of this node that it lacks")]
    Behind,
    /// The entries of this node differ from those at a peer.
    #[error("a peer has other commits of this node")]
    Forked,
    /// A peer said so (SR55).
    #[error("a peer says that another process has it")]
    Told,
}

/// The id of this node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Id {
    /// A new one was requested from the store, which has not reported it yet.
    is_changing: bool,
    changed_at: Option<i64>,
}

impl Id {
    pub(super) fn is_kept(&self) -> bool {
        !self.is_changing
    }
}

impl Replica {
    /// What this node says in a Hello.
    pub(super) fn hello(&self) -> proto::HelloRequest {
        proto::HelloRequest { clock: self.clock.to_wire(), ..self.config.hello.clone() }
    }

    /// SR61: the highest protocol that both speak.
    pub(super) fn protocol(&self, other: &proto::HelloRequest) -> Option<u32> {
        let own = &self.config.hello;
        let highest = own.protocol.min(other.protocol);
        (highest >= own.lowest_protocol.max(other.lowest_protocol)).then_some(highest)
    }

    /// SR3: why this node exchanges nothing with one that says this of itself.
    pub(super) fn refusal(&self, other: &proto::HelloRequest) -> Option<Refusal> {
        let own = &self.config.hello;
        if check_id(&other.node).is_err() {
            Some(Refusal::Malformed)
        } else if other.cluster != own.cluster {
            Some(Refusal::OtherCluster)
        } else if self.protocol(other).is_none() {
            Some(Refusal::NoCommonProtocol)
        } else if other.node == own.node {
            // SR57: with an equal boot this node reached itself.
            Some(if other.boot == own.boot { Refusal::Yourself } else { Refusal::TwoNodes })
        } else {
            self.refusal_of_node(&other.node)
        }
    }

    pub(super) fn refusal_of_node(&self, node: &str) -> Option<Refusal> {
        if self.forgotten.contains(node) {
            Some(Refusal::Forgotten)
        } else if self.known.is_twin(node) {
            // SR55: both of them hear it here, so that no log goes on under this id.
            Some(Refusal::TwoNodes)
        } else {
            None
        }
    }

    /// Takes the clock of a node that says it itself. The answer is whether the node is known now.
    pub(super) fn hear(&mut self, node: &str, clock: &Clock) -> bool {
        let own = clock.get(self.node());
        let here = self.clock.get(self.node());
        // SR28: these are proofs, however late the message came: the own counter only grows, and the
        // chain at a counter does not change. A peer that has less than this node proves nothing.
        if own.counter > here.counter {
            self.lose_id(IdLost::Behind);
        } else if own.counter == here.counter && own.chain != here.chain {
            self.lose_id(IdLost::Forked);
        }
        let is_known = self.meet(node);
        self.known.hear(node, counters(clock));
        self.known.is_alive(node, self.now);
        if self.id.is_kept() {
            self.known.confirm(node, own.counter);
        }
        is_known
    }

    /// Takes what a node says of itself in a Hello. The answer is whether the node is known now.
    pub(super) fn hear_hello(&mut self, hello: &proto::HelloRequest, clock: &Clock) -> bool {
        self.known.is_now_another(&hello.formerly);
        // SG22: it may have another role since its start, and none of the calls of this node may have failed meanwhile.
        self.compare_boots(&hello.node, &hello.boot);
        let is_known = self.hear(&hello.node, clock);
        if self.known.is_of_region(&hello.node, &hello.region) {
            self.actions.push(Action::OfRegion(hello.node.clone(), hello.region.clone()));
        }
        is_known
    }

    /// SR26: a node that was heard said its clock together with the nodes that it knows.
    pub(super) fn count_on<'n>(&mut self, node: &str, clock: &Clock, knows: impl Iterator<Item = &'n str>) {
        // Without room for one of them (SR9), nothing is counted on.
        let others: Vec<_> = knows.filter(|other| self.may_be_known(other)).collect();
        if others.into_iter().all(|other| self.meet(other)) {
            self.known.count_on(node, counters(clock), self.now);
        }
    }

    fn may_be_known(&self, node: &str) -> bool {
        node != self.node() && !self.forgotten.contains(node) && check_id(node).is_ok()
    }

    /// A node is known from now on, as itself or another one says. The answer is false if it cannot be.
    pub(super) fn meet(&mut self, node: &str) -> bool {
        if !self.may_be_known(node) {
            return false;
        }
        let is_known = self.known.meet(node, self.now);
        if !is_known {
            self.alarm(Alarm::TooManyNodes, true);
        }
        is_known
    }

    /// SR29: a node that finds its id lost takes a new one at once, and goes on.
    ///
    /// A peer that is wrong costs one id each ten minutes.
    pub(super) fn lose_id(&mut self, why: IdLost) {
        if !self.id.is_kept() {
            return;
        }
        if self.id.changed_at.is_some_and(|at| self.now < at.saturating_add(KEEP_ID)) {
            return self.alarm(Alarm::IdLostAgain, true);
        }
        self.id.is_changing = true;
        self.actions.push(Action::TakeNewId(why));
        let addresses: Vec<_> = self.peers.keys().cloned().collect();
        addresses.iter().for_each(|address| self.restart(address));
    }

    /// The store has another id, so all peers get a Hello.
    pub(super) fn on_renamed(&mut self, node: String, clock: Clock, owes_reissue: bool) {
        self.config.owes_reissue = owes_reissue;
        if let Snapshot::Taking { is_owed, .. } = &mut self.snapshot {
            *is_owed = false;
        }
        let former = std::mem::replace(&mut self.config.hello.node, node);
        self.config.hello.formerly.push(former);
        self.clock = clock;
        self.id = Id { is_changing: false, changed_at: Some(self.now) };
        self.known.unconfirm();
        // What was committed under the former id reaches the peers under this one (SR31).
        self.acks.end();
        self.known.forget(&self.config.hello.node);
        self.alarm(Alarm::IdLostAgain, false);
    }

    /// Ends the calls to a peer, and begins anew.
    fn restart(&mut self, address: &str) {
        let Some(peer) = self.peers.get_mut(address) else { return };
        let calls = peer.call().into_iter().chain(peer.nudge.call);
        self.actions.extend(calls.map(|call| Action::Cancel(call.id)));
        *peer = Peer::new(self.now);
    }

    /// SR28: a node that answers with two boots may run twice. Another Hello to each of its addresses
    /// finds out, or finds the new process at all of them.
    pub(super) fn compare_boots(&mut self, node: &str, boot: &str) {
        if self.known.is_twin(node) {
            return self.alarm(Alarm::Twins(node.to_owned()), true);
        }
        for peer in self.peers.values_mut() {
            let is_other = |session: &Session| session.node == node && session.boot != boot;
            if peer.session.as_ref().is_some_and(is_other) {
                peer.is_greeted = false;
                peer.pull_now(self.now);
            }
        }
    }

    /// SR57: this address is not called again until the list of addresses changes.
    pub(super) fn leave_own_address(&mut self, address: &str) {
        self.remove_peer(address);
        self.own_addresses.insert(address.to_owned());
    }

    /// SR19: a node that no answering peer can serve takes a snapshot from `address`, which just answered.
    pub(super) fn take_snapshot_if_needed(&mut self, address: &str) {
        let is_first = self.snapshot == Snapshot::First;
        let Some(peer) = self.peers.get(address).filter(|_| self.may_call()) else { return };
        // A peer that was not reached yet may be able to serve. One that does not answer is not waited for.
        let is_open = self.peers.values().any(|peer| !peer.has_answered && peer.failures == 0);
        let is_lacking = |(origin, at): (&String, &proto::OutOfSync)| {
            self.clock.get(origin).counter < at.floor && self.is_unserved(origin)
        };
        let unserved = peer.out_of_sync.iter().any(is_lacking);
        let is_owed = self.config.owes_reissue;
        if !is_first && !is_owed && (is_open || !unserved) {
            return;
        }
        let must_replace = peer.out_of_sync.values().any(|origin| origin.must_replace);
        // A snapshot of another region has a part of the records: it cannot replace all of them.
        if must_replace && peer.region() != self.region() {
            return;
        }
        // One that hangs, or is refused, costs its time once, as long as others can give one.
        let may_give = |other: &Peer| {
            // A node that joins has time for one that was not heard yet.
            let is_known = match &other.session {
                Some(session) => session.region == peer.region(),
                None => is_first,
            };
            let is_asked = is_first || is_owed || other.out_of_sync.iter().any(is_lacking);
            other.failures == 0 && is_known && is_asked
        };
        let mut others = self.peers.iter().filter(|(at, other)| *at != address && may_give(other));
        let before = others.clone().filter(|(_, other)| other.asked_at < peer.asked_at);
        if let Some((other, peer)) = before.min_by_key(|(_, other)| other.asked_at) {
            // Otherwise its next answer comes here.
            if peer.has_answered {
                self.take_snapshot_if_needed(&other.clone());
            }
            return;
        }
        let has_other = others.any(|(_, other)| other.asked_at.is_none());
        self.snapshot = Snapshot::Taking { is_first, is_owed };
        let address = address.to_owned();
        self.peers.entry(address.clone()).and_modify(|peer| peer.asked_at = Some(self.now));
        self.actions.push(Action::TakeSnapshot { address, must_replace, has_other });
        let pulling = |peer: &&mut Peer| !matches!(peer.state, State::Waiting { .. });
        for peer in self.peers.values_mut().filter(pulling) {
            self.actions.extend(peer.call().map(|call| Action::Cancel(call.id)));
            peer.state = State::Waiting { due: self.now };
        }
    }

    /// Whether no peer that answers serves the next entries of an origin.
    pub(super) fn is_unserved(&self, origin: &str) -> bool {
        let here = self.clock.get(origin).counter;
        // SG26: a peer of another region serves the origins of that region only, and has the clocks of others
        // besides. A peer of another region that says OUT_OF_SYNC shows the region of the origin.
        let own = self.region();
        let is_of_other = |peer: &&Peer| peer.region() != own && peer.out_of_sync.contains_key(origin);
        let shown = self.peers.values().find(is_of_other).map(Peer::region);
        let region = shown.or_else(|| self.known.region(origin));
        let serves = |peer: &Peer| {
            let is_of_origin = peer.node() == Some(origin) || region == Some(peer.region());
            if peer.region() != own && !is_of_origin {
                return false;
            }
            // An origin that a peer does not know is not one that it serves.
            let has_more = |clock: &Clock| clock.get(origin).counter > here;
            let is_up = peer.has_answered && !peer.out_of_sync.contains_key(origin);
            // The origin itself has its entries, though its last answer may have been before them.
            let has_some = |session: &Session| session.node == origin || has_more(&session.clock);
            is_up && peer.session.as_ref().is_some_and(has_some)
        };
        !self.peers.values().any(serves)
    }

    pub(super) fn on_snapshot_ended(&mut self, result: Result<Clock, Failure>) {
        let Snapshot::Taking { is_first, is_owed } = self.snapshot else { return };
        self.config.owes_reissue &= !is_owed || result.is_err();
        self.snapshot = if is_first && result.is_err() { Snapshot::First } else { Snapshot::NotNeeded };
        // The next rounds say again who can serve what.
        for peer in self.peers.values_mut() {
            peer.has_answered = false;
            peer.out_of_sync.clear();
            // A first snapshot is taken after a Hello.
            peer.is_greeted &= self.snapshot == Snapshot::NotNeeded;
            peer.asked_at = peer.asked_at.filter(|_| result.is_err());
        }
        // A first one does not come again.
        let has_helped =
            is_first && result.is_ok() || result.as_ref().is_ok_and(|clock| !self.clock.covers(clock));
        if let Ok(clock) = result {
            self.set_clock(clock);
        }
        // One that failed, or did not help, is not repeated at once.
        let wait = if has_helped { 0 } else { self.config.pull_interval };
        let due = self.now.saturating_add(self.jittered(wait));
        self.peers.values_mut().for_each(|peer| peer.state = State::Waiting { due });
    }
}

fn counters(clock: &Clock) -> impl Iterator<Item = (&str, u64)> + Clone {
    clock.iter().map(|(origin, at)| (origin, at.counter))
}

/// How long an id is kept at least.
const KEEP_ID: i64 = 600 * SECOND;
