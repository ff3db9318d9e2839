//! One address that this node pulls from: which call runs, and when the next one is due.

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use super::CallId;
use super::known::ORIGINS;
use super::round::{Malformed, Round};
use crate::clock::Clock;
use crate::time::SECOND;

/// One address.
///
/// ```text
/// Waiting ── due ──> Greeting ── accepted ──> Waiting, due now
///    │                   └─ failed ──> Waiting, backing off
///    └── due, greeted ──> Pulling ── applied ──> Waiting
/// ```
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: State,
    /// The node that answered the last Hello.
    pub(super) session: Option<Session>,
    /// Whether that Hello counts. Otherwise the next call is a Hello.
    pub(super) is_greeted: bool,
    /// Calls that failed in a row.
    pub(super) failures: u32,
    /// A whole round was answered since the last failure.
    pub(super) has_answered: bool,
    /// The origins that it could not serve in the last round (SR18).
    pub(super) out_of_sync: BTreeMap<String, proto::OutOfSync>,
    /// The origins whose chains differed in the last round.
    pub(super) forked: BTreeSet<String>,
    pub(super) nudge: Nudge,
    /// The phases of its plans, as its node said last, also if it is down now (SV42).
    pub(super) phases: Option<BTreeMap<u32, u32>>,
    /// The versions that it knows (SG38).
    pub(super) schemas: Vec<proto::Knows>,
    /// When this node last asked it for a snapshot. `None`: not since this node took one.
    pub(super) asked_at: Option<i64>,
    /// It was fetching names in its last round (SG27).
    pub(super) is_fetching: bool,
    /// When it answered last.
    pub(super) heard_at: Option<i64>,
    /// Since when it has entries that are missing here.
    pub(super) behind_since: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) node: String,
    pub(super) boot: String,
    pub(super) region: String,
    /// It is not the writer of its region.
    pub(super) is_replica: bool,
    pub(super) build: String,
    /// Its newest clock.
    pub(super) clock: Clock,
}

#[derive(Debug)]
pub(super) enum State {
    Waiting { due: i64 },
    Greeting(Call),
    Pulling(Box<Pulling>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) id: CallId,
    /// When it counts as failed.
    pub(super) until: i64,
}

#[derive(Debug)]
pub(super) struct Pulling {
    pub(super) call: Call,
    pub(super) round: Round,
    /// How many times the store was given entries that it has not answered yet.
    pub(super) applying: usize,
    /// The store applied something of this round.
    pub(super) has_moved: bool,
    /// The last message came, and whether there is more.
    pub(super) end: Option<bool>,
    /// The peer nudged meanwhile, so this round may lack what it has.
    pub(super) again: bool,
}

/// The calls that ask the peer to pull. They run beside rounds: two nodes that wait for each other's
/// entries (SR17) could not pull them otherwise.
#[derive(Debug, Default)]
pub(super) struct Nudge {
    pub(super) call: Option<Call>,
    /// The own counter that the last one told.
    pub(super) told: u64,
    pub(super) not_before: i64,
}

impl Peer {
    /// The region of its node; empty before it is known.
    pub(super) fn region(&self) -> &str {
        self.session.as_ref().map_or("", |session| &session.region)
    }

    pub(super) fn new(now: i64) -> Self {
        Self {
            state: State::Waiting { due: now },
            session: None,
            is_greeted: false,
            failures: 0,
            has_answered: false,
            out_of_sync: BTreeMap::new(),
            forked: BTreeSet::new(),
            nudge: Nudge::default(),
            phases: None,
            schemas: Vec::new(),
            asked_at: None,
            is_fetching: false,
            heard_at: None,
            behind_since: None,
        }
    }

    /// The node behind the address, if it answered.
    pub(super) fn node(&self) -> Option<&str> {
        self.session.as_ref().map(|session| &*session.node)
    }

    /// The call to it, which is a Hello or a Pull (SR10: one at a time).
    pub(super) fn call(&self) -> Option<Call> {
        match &self.state {
            State::Waiting { .. } => None,
            State::Greeting(call) => Some(*call),
            // After the last message only the store is waited for.
            State::Pulling(pulling) => pulling.end.is_none().then_some(pulling.call),
        }
    }

    /// SR3: another node answers at the address. It is greeted next, before its clock counts. An earlier version does
    /// not say which node it is.
    pub(super) fn leave_if_other(&mut self, node: &str) -> bool {
        let is_other = !node.is_empty() && self.node() != Some(node);
        self.is_greeted &= !is_other;
        is_other
    }

    /// When the state changes by itself.
    pub(super) fn due(&self) -> Option<i64> {
        match self.state {
            State::Waiting { due } => Some(due),
            _ => self.call().map(|call| call.until),
        }
    }

    /// SR10, SR59: waits longer after each failure in a row; the answer is for how long.
    pub(super) fn fail(&mut self) -> i64 {
        self.failures = self.failures.saturating_add(1);
        self.has_answered = false;
        // It may be another node, or another process, when it answers again.
        self.is_greeted = false;
        (SECOND << (self.failures - 1).min(4)).min(BACK_OFF)
    }

    /// What it cannot serve, as a message of the round says.
    pub(super) fn note(
        &mut self,
        out_of_sync: Vec<proto::OutOfSync>,
        forked: Vec<String>,
    ) -> Result<(), Malformed> {
        if self.out_of_sync.len() + out_of_sync.len() + self.forked.len() + forked.len() > ORIGINS {
            return Err(Malformed::TooLarge);
        }
        self.out_of_sync.extend(out_of_sync.into_iter().map(|origin| (origin.origin.clone(), origin)));
        self.forked.extend(forked);
        Ok(())
    }

    /// What it left out counts as missing.
    pub(super) fn has_left_entries(&self) -> bool {
        matches!(&self.state, State::Pulling(pulling) if pulling.round.has_left())
    }

    /// Begins a round.
    pub(super) fn pull(&mut self, call: Call) {
        self.out_of_sync.clear();
        self.forked.clear();
        self.state = State::Pulling(Box::new(Pulling::new(call)));
    }

    /// The peer called. SR59: this ends the back-off.
    pub(super) fn on_called(&mut self, now: i64) {
        if self.failures > 0 {
            self.failures = 0;
            self.pull_now(now);
        }
    }

    /// SR10: the peer nudged.
    pub(super) fn pull_now(&mut self, now: i64) {
        match &mut self.state {
            State::Waiting { due } => *due = (*due).min(now),
            State::Greeting(_) => {}
            State::Pulling(pulling) => pulling.again = true,
        }
    }
}

impl Pulling {
    fn new(call: Call) -> Self {
        let round = Round::default();
        Self { call, round, applying: 0, has_moved: false, end: None, again: false }
    }

    /// SR12: whether to pull again at once. An answer that moved nothing would come again.
    pub(super) fn is_behind(&self) -> bool {
        self.again || (self.end == Some(true) && self.has_moved)
    }
}

/// The longest time between two calls to a failing peer (SR59).
const BACK_OFF: i64 = 15 * SECOND;
