//! Comparing records with those of a peer (SR51): what was lost or damaged here comes from there.
//!
//! ```text
//! Digests ── some differ ──> Records ── a page has others ──> Peek ──> Waiting ── applied ──> Mending
//!    └─ all are equal: done     └─ the last page: done          ^                                │
//!                               └──────────── the next page ────┴── more keys of the page ───────┘
//! ```
//!
//! Entries keep flowing meanwhile, so most of what differs is under way. Therefore a state is merged once this node
//! has all entries that the peer had when it told the state. What such a merge changes was lost here, and is a
//! defect, unless policies explain it: they leave out entries between regions. It is also why no commit becomes visible
//! in part.

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::fetching;
use super::removing;
use super::round::read_clock;
use super::{Action, Alarm, CallId, Failure, Malformed, Replica, SECOND};
use crate::clock::{Clock, Counters, Position};
use crate::key::is_configuration;
use crate::number;
use crate::read::BUCKETS;
use crate::record::RecordState;

/// When this node compares, and what it does just now: one comparison at a time.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    /// By address; peers that have not answered a whole round yet are missing.
    due: BTreeMap<String, i64>,
    /// While names are fetched: when all other records are compared.
    rest_due: BTreeMap<String, i64>,
    running: Option<Comparison>,
    lacked: removing::Lacked,
}

#[derive(Debug)]
struct Comparison {
    address: String,
    step: Step,
    /// When it counts as failed, unless its step ends before.
    until: i64,
    /// How many records were lost here.
    lost: u64,
    /// The buckets that differ, once they are known.
    buckets: Vec<u32>,
    /// Of the page: the keys that are not peeked yet.
    keys: Vec<proto::Key>,
    /// The last key of the page, if there is a next one.
    after: Option<proto::Key>,
    /// It is about all records but the names that are fetched (SR51).
    is_rest: bool,
    /// The names that it fetches (SG27), or leaves out.
    fetching: Vec<proto::Fetching>,
    /// Those of them of which the peer has all.
    complete: Vec<proto::Fetching>,
    /// What the peer needs of each origin to give these names.
    needed: Counters,
    incarnation_floor: u64,
    /// What the peer has to have so that what it lacks counts; `None`: it counts in no case.
    proof: Option<Counters>,
    removing: removing::Removing,
}

#[derive(Debug)]
enum Step {
    Digests(CallId),
    Records(CallId),
    Peek(CallId, Vec<proto::Key>),
    /// The peer had these states when it had this clock.
    Waiting(Clock, Vec<RecordState>),
    Mending(CallId),
}

/// Both answers to one request: of this node, and of the peer.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "the caller of the machine makes it")]
pub struct Digests {
    /// Of this node. Of records, those up to the last one of the peer, if the peer has more.
    pub own: proto::DigestResponse,
    /// Of the peer.
    pub theirs: proto::DigestResponse,
}

impl Comparing {
    pub(super) fn due(&self) -> Option<i64> {
        match &self.running {
            Some(comparison) => Some(comparison.until),
            None => self.due.values().copied().min(),
        }
    }

    pub(super) fn lacked(&mut self) -> &mut removing::Lacked {
        &mut self.lacked
    }

    pub(super) fn fetches(&self) -> bool {
        self.running.as_ref().is_some_and(Comparison::fetches_names)
    }

    /// The peer of the comparison that runs, the names that it fetches, and what the peer needs for that.
    pub(super) fn running_with(&self) -> Option<(&str, &[proto::Fetching], &Counters)> {
        self.running.as_ref().map(|running| (&*running.address, &*running.fetching, &running.needed))
    }

    /// Moves the next comparison with a peer that has answered.
    pub(super) fn compare_at(&mut self, address: &str, at: i64) {
        self.due.get_mut(address).into_iter().for_each(|due| *due = at.min(*due));
    }

    /// The names of these peers are here.
    pub(super) fn end_rests(&mut self, are_fetched_at: impl Fn(&str) -> bool) {
        self.rest_due.retain(|address, _| are_fetched_at(address));
    }

    /// While names are fetched, all other records are compared earlier: what a node wrote that is forgotten now comes
    /// by that alone (SG26).
    pub(super) fn compare_rest_at(&mut self, at: i64) {
        self.rest_due.values_mut().for_each(|due| *due = at.min(*due));
    }

    /// The peer is not used any more.
    pub(super) fn remove(&mut self, address: &str) -> Option<CallId> {
        self.due.remove(address);
        self.rest_due.remove(address);
        self.lacked.forget(address);
        let running = self.running.take_if(|comparison| comparison.address == address);
        running.and_then(|comparison| comparison.step.call())
    }
}

impl Comparison {
    fn fetches_names(&self) -> bool {
        !self.fetching.is_empty() && !self.is_rest
    }

    /// Whether it is about a record. Policies, and other configuration, go with the rest (SG27).
    fn is_about(&self, key: &proto::Key) -> bool {
        let is_fetched = || self.fetching.iter().any(|names| key.name.starts_with(&names.prefix));
        match self.is_rest {
            true => is_configuration(&key.type_url) || !is_fetched(),
            false => self.fetching.is_empty() || !is_configuration(&key.type_url),
        }
    }
}

impl Step {
    /// The call that runs.
    fn call(&self) -> Option<CallId> {
        match self {
            Self::Digests(call) | Self::Records(call) | Self::Peek(call, _) => Some(*call),
            Self::Waiting(..) | Self::Mending(_) => None,
        }
    }
}

impl Replica {
    /// SR51: a peer has answered a whole round. The first comparison is soon after the start.
    pub(super) fn compare_soon(&mut self, address: &str) {
        let is_fetching = !self.fetched_at(address).is_empty();
        let Some(interval) = self.config.compare_interval.or_else(|| is_fetching.then_some(FIRST)) else {
            return;
        };
        let is_running = self.comparing.running.as_ref().is_some_and(|running| running.address == address);
        if is_running {
            return;
        }
        if self.comparing.due.contains_key(address) {
            // A peer that was down is back.
            let soon = is_fetching.then(|| self.now.saturating_add(fetching::AGAIN));
            return soon.into_iter().for_each(|soon| self.comparing.compare_at(address, soon));
        }
        let wait = if is_fetching { 0 } else { self.jittered(FIRST.min(interval)) };
        let due = self.now.saturating_add(wait);
        self.comparing.due.insert(address.to_owned(), due);
    }

    /// Does what is due.
    pub(super) fn compare_if_due(&mut self) {
        let is_late = |comparison: &&Comparison| comparison.until <= self.now;
        if let Some(late) = self.comparing.running.as_ref().filter(is_late) {
            let address = late.address.clone();
            self.end_comparison_with(&address);
        }
        let Some(running) = &self.comparing.running else { return self.compare_next() };
        let (is_ready, fetches) = (self.has_all_of(running), running.fetches_names());
        let Some(Comparison { step: Step::Waiting(clock, states), address, .. }) =
            self.comparing.running.as_mut().filter(|_| is_ready)
        else {
            return;
        };
        let states = std::mem::take(states);
        let mut counters = clock.counters();
        // SR30: it never has these entries.
        for origin in self.peers.get(address).iter().flat_map(|peer| &peer.forked) {
            counters.insert(origin.clone(), self.clock.get(origin).counter);
        }
        // A fetch began only with a peer that has what it needs.
        let counters = Some(counters).filter(|_| !fetches);
        let call = self.new_call();
        self.enter(Step::Mending(call), LONGEST_MERGE);
        self.actions.push(Action::Mend(call, states, counters));
    }

    /// Whether this node has all entries that states wait for. Those of an origin of which it and the peer follow
    /// different logs never come (SR30), and those of a forgotten node of a third region neither, as the peer does not
    /// relay them (SG26): comparing is how their records do. Names that are fetched (SG27) wait for no third region,
    /// which may be out of reach.
    fn has_all_of(&self, comparison: &Comparison) -> bool {
        let Comparison { address, step: Step::Waiting(clock, _), .. } = comparison else {
            return false;
        };
        let Some(peer) = self.peers.get(address) else { return false };
        let counts = |origin: &str| {
            !peer.forked.contains(origin)
                && !self.forgotten.contains(origin)
                && (!comparison.fetches_names() || self.waits_for(peer, origin))
        };
        clock.iter().all(|(origin, at)| at.counter <= self.clock.get(origin).counter || !counts(origin))
    }

    fn compare_next(&mut self) {
        let Self { comparing, peers, now, .. } = self;
        let is_up =
            |address: &str| peers.get(address).is_some_and(|peer| peer.is_greeted && peer.failures == 0);
        let mut due =
            comparing.due.iter().filter(|(_, due)| **due <= *now).map(|(address, _)| address.clone());
        let Some(address) = due.find(|address| is_up(address)).filter(|_| self.may_call()) else {
            // Those that are down are compared after they are back.
            let (now, later) = (self.now, self.now.saturating_add(self.again()));
            self.comparing.due.values_mut().filter(|due| **due <= now).for_each(|due| *due = later);
            return;
        };
        let call = self.new_call();
        let (step, until) = (Step::Digests(call), self.now.saturating_add(LONGEST_CALL));
        let (buckets, keys) = (Vec::new(), Vec::new());
        let fetching = self.fetched_at(&address);
        let is_rest = !fetching.is_empty() && self.is_rest_due(&address);
        self.comparing.due.remove(&address);
        self.comparing.running = Some(Comparison {
            address: address.clone(),
            step,
            until,
            lost: 0,
            buckets,
            keys,
            after: None,
            is_rest,
            fetching,
            complete: Vec::new(),
            needed: self.needed_of(&address),
            incarnation_floor: 0,
            proof: None,
            removing: removing::Removing::default(),
        });
        let request = self.digest_request(&address);
        self.actions.push(Action::CallDigest(call, address, request));
    }

    /// SR51, SG27: a fetch may last as long as a region is away, and what comes by comparisons alone is not to wait for
    /// it: what a forgotten node wrote, also the policies that it changed.
    fn is_rest_due(&mut self, address: &str) -> bool {
        let first = self.now.saturating_add(fetching::AGAIN);
        *self.comparing.rest_due.entry(address.to_owned()).or_insert(first) <= self.now
    }

    /// A comparison with a peer is over. Between two of the rest is one of the names.
    fn note_rest(&mut self, address: &str, is_rest: bool) {
        if is_rest {
            let next = self.now.saturating_add(self.again().max(2 * fetching::AGAIN));
            self.comparing.rest_due.insert(address.to_owned(), next);
        }
    }

    /// Of the names that are fetched; otherwise of all records that the peer tells this node.
    fn digest_request(&self, address: &str) -> proto::DigestRequest {
        let session = self.peers.get(address).and_then(|peer| peer.session.as_ref());
        let running = self.comparing.running.as_ref().filter(|running| running.fetches_names());
        let fetching = running.map(|running| running.fetching.clone()).unwrap_or_default();
        proto::DigestRequest {
            node: self.node().to_owned(),
            region: self.region().to_owned(),
            source_region: session.map(|session| session.region.clone()).unwrap_or_default(),
            name_prefixes: fetching.iter().map(|names| names.prefix.clone()).collect(),
            fetching,
            ..Default::default()
        }
    }

    fn enter(&mut self, step: Step, length: i64) {
        let until = self.now.saturating_add(length);
        if let Some(comparison) = &mut self.comparing.running {
            (comparison.step, comparison.until) = (step, until);
        }
    }

    pub(super) fn on_digest_answered(&mut self, call: CallId, result: Result<Box<Digests>, Failure>) {
        let Some(comparison) = &mut self.comparing.running else { return };
        if !matches!(comparison.step, Step::Digests(of) | Step::Records(of) if of == call) {
            return;
        }
        let Ok(digests) = result else { return self.comparison_failed() };
        let Digests { own, theirs } = *digests;
        let is_first = matches!(comparison.step, Step::Digests(_));
        if is_first {
            let is_well = theirs.buckets.len() == BUCKETS && own.buckets.len() == BUCKETS;
            if !is_well || theirs.incarnation_floor > number::LAST_FLOOR {
                return self.comparison_is_malformed();
            }
            // SG27: what the peer lacks may be a deletion of what it has, which was left out here.
            let has_all = read_clock(&theirs.clock)
                .is_ok_and(|clock| comparison.needed.iter().all(|(of, at)| clock.get(of).counter >= *at));
            if comparison.fetches_names() && !has_all {
                return self.comparison_failed();
            }
            let differing = (0..).zip(own.buckets.iter().zip(&theirs.buckets));
            comparison.buckets =
                differing.filter(|(_, (own, theirs))| own != theirs).map(|(at, _)| at).collect();
            comparison.incarnation_floor = theirs.incarnation_floor;
            // SG27: what only this node has of names that it fetches may be a deletion.
            if comparison.fetches_names() {
                let is_complete = |names: &&proto::Fetching| theirs.complete.contains(&names.prefix);
                comparison.complete = comparison.fetching.iter().filter(is_complete).cloned().collect();
            } else {
                comparison.removing.begin(&theirs);
            }
            return if comparison.buckets.is_empty() { self.compared() } else { self.next_page() };
        }
        comparison.after = theirs.records.last().filter(|_| theirs.more).and_then(|last| last.key.clone());
        if theirs.more && comparison.after.is_none() {
            return self.comparison_is_malformed();
        }
        comparison.removing.note_own(&own.records, &theirs.records);
        let keys = differing(own.records, theirs.records);
        comparison.keys = keys.into_iter().filter(|key| comparison.is_about(key)).collect();
        self.next_keys();
    }

    fn next_page(&mut self) {
        let call = self.new_call();
        self.enter(Step::Records(call), LONGEST_CALL);
        let Some(comparison) = &self.comparing.running else { return };
        let request = proto::DigestRequest {
            records_of: comparison.buckets.clone(),
            after: comparison.after.clone(),
            ..self.digest_request(&comparison.address)
        };
        self.actions.push(Action::CallDigest(call, comparison.address.clone(), request));
    }

    /// Peeks the next keys of the page; without any, goes on with the next page.
    fn next_keys(&mut self) {
        let Some(comparison) = &mut self.comparing.running else { return };
        if comparison.keys.is_empty() {
            return if comparison.after.is_some() { self.next_page() } else { self.compared() };
        }
        let count = comparison.keys.len().min(PEEKED);
        let keys: Vec<_> = comparison.keys.drain(..count).collect();
        let address = comparison.address.clone();
        let call = self.new_call();
        self.enter(Step::Peek(call, keys.clone()), LONGEST_CALL);
        let proof = self.proof_for(&address);
        let Some(running) = &mut self.comparing.running else { return };
        running.proof = proof.filter(|_| !running.fetches_names());
        let fetching = running.fetching.iter().filter(|_| running.fetches_names());
        let fetching = fetching.map(|names| names.prefix.clone()).collect();
        let (node, region) = (self.node().to_owned(), self.region().to_owned());
        let request = proto::PeekRequest { keys, node, region, fetching };
        self.actions.push(Action::CallPeek(call, address, request));
    }

    pub(super) fn on_peek_answered(&mut self, call: CallId, result: Result<proto::PeekResponse, Failure>) {
        let Some(comparison) = &mut self.comparing.running else { return };
        let Step::Peek(of, requested) = &mut comparison.step else { return };
        if *of != call {
            return;
        }
        let Ok(answer) = result else { return self.comparison_failed() };
        let done = answer.keys_done as usize;
        let is_requested =
            |state: &RecordState| state.key.as_ref().is_some_and(|key| requested.contains(key));
        let is_well = (1..=requested.len()).contains(&done) && answer.records.iter().all(is_requested);
        let (true, Ok(clock)) = (is_well, read_clock(&answer.clock)) else {
            return self.comparison_is_malformed();
        };
        comparison.keys.extend(requested.drain(done..));
        let has = |(origin, counter): (&String, &u64)| {
            *counter <= clock.get(origin).counter || self.forgotten.contains(origin)
        };
        let is_proof = comparison.proof.as_ref().is_some_and(|needed| needed.iter().all(has));
        // What it has comes here without its commits.
        self.known.hear_of(clock.iter().map(|(origin, at)| (origin, at.counter)));
        comparison.removing.note_lacked(requested, &answer.records, is_proof);
        if answer.records.is_empty() {
            return self.next_keys();
        }
        let address = comparison.address.clone();
        // One comparison runs at a time, so that those with other peers do not wait for a region that is away.
        let is_of_peer = |origin: &str| {
            let peer = self.peers.get(&address);
            peer.is_some_and(|peer| peer.region() == self.region() || peer.node() == Some(origin))
        };
        let is_coming = |(origin, at): (&str, Position)| {
            at.counter <= self.clock.get(origin).counter || is_of_peer(origin) || !self.is_unserved(origin)
        };
        let wait = if clock.iter().all(is_coming) { LONGEST_WAIT } else { UNSERVED_WAIT };
        self.enter(Step::Waiting(clock, answer.records), wait);
        // What the peer has more of comes with the next round.
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.pull_now(self.now);
        }
    }

    /// SR51: what a peer of another region has to have of each origin so that what it lacks counts: all that this node
    /// has, and all that other nodes are known to have, as this one may have a record by a comparison with them,
    /// without the commit that made it.
    fn proof_for(&self, address: &str) -> Option<Counters> {
        self.peers.get(address).filter(|peer| peer.region() != self.region())?;
        let mut counters = self.known.newest().clone();
        for (origin, at) in self.clock.iter() {
            let newest = counters.entry(origin.to_owned()).or_default();
            *newest = at.counter.max(*newest);
        }
        Some(counters)
    }

    /// The store has merged the states, and so many records were lost; `None` if it could not.
    pub(super) fn on_mended(&mut self, call: CallId, lost: Option<u64>) {
        let Some(comparison) = &mut self.comparing.running else { return };
        if !matches!(comparison.step, Step::Mending(of) if of == call) {
            return;
        }
        let Some(lost) = lost else { return self.comparison_failed() };
        comparison.lost += lost;
        let address = comparison.address.clone();
        if lost > 0 && !comparison.fetches_names() {
            self.alarm(Alarm::Differed(address), true);
        }
        self.next_keys();
    }

    /// All of it was compared.
    fn compared(&mut self) {
        let Some(compared) = self.comparing.running.take() else { return };
        let fetches_names = compared.fetches_names();
        let Comparison { address, lost, complete, incarnation_floor, removing, is_rest, .. } = compared;
        self.note_rest(&address, is_rest);
        let is_lacking = self.remove_lacked(&address, removing);
        if lost == 0 && !fetches_names {
            self.alarm(Alarm::Differed(address.clone()), false);
        }
        let again = is_lacking.then(|| self.again());
        let interval = self.compared_again(&address).into_iter().chain(again).min();
        if !complete.is_empty() {
            self.actions.push(Action::Fetched(complete, incarnation_floor));
        }
        let due = interval.map(|interval| self.now.saturating_add(self.jittered(interval)));
        self.comparing.due.insert(address, due.unwrap_or(i64::MAX));
    }

    fn comparison_failed(&mut self) {
        if let Some(Comparison { address, is_rest, .. }) = self.comparing.running.take() {
            self.note_rest(&address, is_rest);
            self.try_again(&address);
        }
    }

    fn comparison_is_malformed(&mut self) {
        if let Some(Comparison { address, .. }) = &self.comparing.running {
            self.alarm(Alarm::Malformed(address.clone(), Malformed::Missing), true);
        }
        self.comparison_failed();
    }

    /// A peer does not answer.
    pub(super) fn end_comparison_with(&mut self, address: &str) {
        if let Some(ended) = self.comparing.running.take_if(|comparison| comparison.address == address) {
            self.actions.extend(ended.step.call().map(Action::Cancel));
            self.note_rest(address, ended.is_rest);
            self.try_again(address);
        }
    }

    fn try_again(&mut self, address: &str) {
        let again = self.compared_again(address).map_or(AGAIN, |interval| interval.min(AGAIN));
        let due = self.now.saturating_add(self.jittered(again));
        self.comparing.due.insert(address.to_owned(), due);
    }

    fn again(&self) -> i64 {
        self.config.compare_interval.map_or(AGAIN, |interval| interval.min(AGAIN))
    }
}

/// The keys of records that one side lacks or has otherwise. The peer may have the deletion of what only this node
/// has.
fn differing(own: Vec<proto::RecordDigest>, theirs: Vec<proto::RecordDigest>) -> Vec<proto::Key> {
    let by_key = |record: proto::RecordDigest| {
        let key = record.key.unwrap_or_default();
        (key.encode_to_vec(), (key, record.revision))
    };
    let mut left: BTreeMap<_, _> = own.into_iter().map(by_key).collect();
    let mut keys = Vec::new();
    for (encoded, (key, revision)) in theirs.into_iter().map(by_key) {
        if left.remove(&encoded).is_none_or(|(_, here)| here != revision) {
            keys.push(key);
        }
    }
    keys.extend(left.into_values().map(|(key, _)| key));
    keys
}

/// After the first whole round with a peer, what is under way gets time to arrive.
const FIRST: i64 = 10 * SECOND;
/// After a comparison that failed.
const AGAIN: i64 = 600 * SECOND;
/// A peer reads its whole store for an answer.
const LONGEST_CALL: i64 = 300 * SECOND;
/// How long entries may take that a peer has. An origin that stopped here (SR15) does not arrive.
const LONGEST_WAIT: i64 = 60 * SECOND;
/// How long for entries that no peer which answers has for this node: it may be back soon.
const UNSERVED_WAIT: i64 = 10 * SECOND;
const LONGEST_MERGE: i64 = 300 * SECOND;
/// Keys of a peek, as the service allows.
const PEEKED: usize = 100;
