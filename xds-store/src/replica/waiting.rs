//! What waits for entries: commits of this node, until peers have them durably (SR17), and nudges of
//! peers, until this node has theirs.

use xds_proto::xds::store::v1 as proto;

use super::{Action, Replica};
use crate::clock::Clock;
use crate::store::Ticket;

/// A commit of this node.
#[derive(Debug)]
pub(super) struct Ack {
    pub(super) ticket: Ticket,
    pub(super) counter: u64,
    pub(super) peers: usize,
    pub(super) until: i64,
}

/// Commits that wait for peers.
#[derive(Debug, Default)]
pub(super) struct Acks(Vec<Ack>);

/// Nudges of peers that wait until this node has what they have.
#[derive(Debug, Default)]
pub(super) struct Nudged(Vec<(Ticket, Clock, i64)>);

impl Acks {
    pub(super) fn add(&mut self, ack: Ack) {
        self.0.push(ack);
    }

    /// Ends all waits at the next step.
    pub(super) fn end(&mut self) {
        self.0.iter_mut().for_each(|ack| ack.until = i64::MIN);
    }

    pub(super) fn due(&self) -> Option<i64> {
        self.0.iter().map(|ack| ack.until).min()
    }

    /// Until when a commit waits that a node does not have, which has the entries up to `confirmed`.
    pub(super) fn until(&self, confirmed: u64) -> Option<i64> {
        self.0.iter().filter(|ack| ack.counter > confirmed).map(|ack| ack.until).max()
    }
}

impl Nudged {
    /// Whether there is room for one more.
    pub(super) fn add(&mut self, ticket: Ticket, clock: Clock, until: i64) -> bool {
        let has_room = self.0.len() < NUDGED;
        if has_room {
            self.0.push((ticket, clock, until));
        }
        has_room
    }

    pub(super) fn due(&self) -> Option<i64> {
        self.0.iter().map(|(_, _, until)| *until).min()
    }
}

impl Replica {
    /// Answers those whose entries are durable, or whose time is over.
    pub(super) fn answer_waiting(&mut self) {
        let node = self.node().to_owned();
        let Self { acks, nudged, known, clock, stopped, now, actions, .. } = self;
        let confirmed = if acks.0.is_empty() { Vec::new() } else { known.all_confirmed() };
        let mut room = ACKS;
        acks.0.retain(|ack| {
            // SR17: the peers said themselves that they have it.
            let peers = confirmed.partition_point(|counter| *counter >= ack.counter);
            let is_enough = peers >= ack.peers;
            room = room.saturating_sub(1);
            if is_enough || ack.until <= *now || room == 0 {
                actions.push(Action::Acked { ticket: ack.ticket, peers, is_enough });
                return false;
            }
            true
        });
        let mut wire = None;
        nudged.0.retain(|(ticket, theirs, until)| {
            // SR15: an origin that stopped here is not waited for.
            let mut lacking = theirs.iter().filter(|(origin, at)| at.counter > clock.get(origin).counter);
            let is_here = lacking.all(|(origin, _)| stopped.contains_key(origin));
            if is_here || *until <= *now {
                let clock = wire.get_or_insert_with(|| clock.to_wire()).clone();
                let node = node.clone();
                actions.push(Action::AnswerNudge(*ticket, Ok(proto::NudgeResponse { clock, node })));
                return false;
            }
            true
        });
    }
}

/// How many commits wait; others are answered at once.
const ACKS: usize = 10_000;
/// How many nudges of peers may wait; others are answered at once.
const NUDGED: usize = 1000;
