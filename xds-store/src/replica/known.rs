//! The nodes of the cluster, with the newest clock that is known of each (SR9).

use std::collections::{BTreeMap, BTreeSet};

use super::CallId;
use crate::clock::Counters;
use crate::time::SECOND;

/// The nodes that were heard, or of which another one told.
///
/// A clock only grows, so an older one is a lower bound: what an answer leaves out says nothing, and a
/// clock that was remembered some time ago is still true.
///
/// SR26: a deletion is forgotten by the clocks that came with the nodes that their node knew then. Without
/// them, a node that is not known here may have written before that clock what arrives after it.
#[derive(Debug, Default)]
pub(super) struct Known {
    nodes: BTreeMap<Box<str>, Node>,
    /// Up to where some node has the entries of each origin.
    newest: Counters,
}

#[derive(Debug, Default)]
struct Node {
    /// The newest clock, for what is missing here.
    heard: Counters,
    /// The newest clock that came with the nodes that are known there, which is remembered and passed on.
    counters: Counters,
    /// Up to where it has the entries of this node durably, as it said itself (SR17).
    confirmed: u64,
    /// When the store has to remember the clock; `None` if it has.
    remember_at: Option<i64>,
    remembered_at: Option<i64>,
    boots: Option<Boots>,
    /// Two of the processes that said Hello since this node did.
    called: BTreeSet<Box<str>>,
    is_twin: bool,
    /// The region that it said in this run.
    region: Box<str>,
}

/// The processes that answered for a node.
#[derive(Debug)]
struct Boots {
    last: Box<str>,
    /// The first call that was sent after the last answer.
    next_call: CallId,
    before: Option<Box<str>>,
}

impl Known {
    /// A node is known from now on. The answer is false if there is no room for it.
    pub(super) fn meet(&mut self, node: &str, now: i64) -> bool {
        if !self.nodes.contains_key(node) {
            if self.nodes.len() == NODES {
                return false;
            }
            // SR9: a node that is known has to be known after a restart, too.
            let new = Node { remember_at: Some(now), ..Node::default() };
            self.nodes.insert(node.into(), new);
        }
        true
    }

    /// A node that is known has at least this.
    pub(super) fn hear<'c>(&mut self, node: &str, clock: impl Iterator<Item = (&'c str, u64)> + Clone) {
        self.hear_of(clock.clone());
        if let Some(known) = self.nodes.get_mut(node) {
            raise(&mut known.heard, clock);
        }
    }

    /// A node that is known has at least this, and all nodes that it knew then are known here.
    pub(super) fn count_on<'c>(
        &mut self,
        node: &str,
        clock: impl Iterator<Item = (&'c str, u64)> + Clone,
        now: i64,
    ) {
        self.hear_of(clock.clone());
        let Some(known) = self.nodes.get_mut(node) else { return };
        raise(&mut known.heard, clock.clone());
        if raise(&mut known.counters, clock) {
            let pace = known.remembered_at.map_or(now, |at| now.max(at.saturating_add(REMEMBER_EVERY)));
            known.remember_at.get_or_insert(pace);
        }
    }

    /// What the store remembered of a node.
    pub(super) fn restore(&mut self, node: &str, counters: Counters) {
        self.hear_of(counters.iter().map(|(origin, counter)| (origin.as_str(), *counter)));
        let heard = counters.clone();
        self.nodes.insert(node.into(), Node { heard, counters, ..Node::default() });
    }

    /// A node says its region. Whether that is news.
    pub(super) fn is_of_region(&mut self, node: &str, region: &str) -> bool {
        let changed = self.nodes.get_mut(node).filter(|node| *node.region != *region);
        changed.map(|node| node.region = region.into()).is_some()
    }

    /// The region that a node has said in this run.
    pub(super) fn region(&self, node: &str) -> Option<&str> {
        self.nodes.get(node).map(|node| &*node.region).filter(|region| !region.is_empty())
    }

    pub(super) fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
        self.newest.remove(node);
    }

    pub(super) fn contains(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Up to where a node has the entries of each origin, as was heard last.
    pub(super) fn heard(&self, node: &str) -> Option<&Counters> {
        self.nodes.get(node).map(|node| &node.heard)
    }

    /// Up to where some node has the entries of each origin. The node may be forgotten now.
    pub(super) fn newest(&self) -> &Counters {
        &self.newest
    }

    /// Some node has at least this.
    pub(super) fn hear_of<'c>(&mut self, clock: impl Iterator<Item = (&'c str, u64)>) {
        raise(&mut self.newest, clock);
    }

    /// The nodes, with the clocks that count.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Counters)> {
        self.nodes.iter().map(|(id, node)| (&**id, &node.counters))
    }

    /// A node said itself up to where it has the entries of this one.
    pub(super) fn confirm(&mut self, node: &str, counter: u64) {
        if let Some(known) = self.nodes.get_mut(node) {
            known.confirmed = known.confirmed.max(counter);
        }
    }

    /// A node called or answered. SR60: the store keeps what the node lacks, so it has to know now and then,
    /// also if the clock is the same.
    pub(super) fn is_alive(&mut self, node: &str, now: i64) {
        if let Some(known) = self.nodes.get_mut(node)
            && known.remembered_at.is_none_or(|at| at.saturating_add(ALIVE_EVERY) <= now)
        {
            known.remember_at = Some(now);
        }
    }

    /// Up to where a node has the entries of this one durably.
    pub(super) fn confirmed(&self, node: &str) -> u64 {
        self.nodes.get(node).map_or(0, |known| known.confirmed)
    }

    /// Up to where nodes have the entries of this one durably, those with the most first.
    pub(super) fn all_confirmed(&self) -> Vec<u64> {
        let mut confirmed: Vec<_> = self.nodes.values().map(|node| node.confirmed).collect();
        confirmed.sort_unstable_by(|one, other| other.cmp(one));
        confirmed
    }

    /// SR17: a node that had these ids is one node, so what it said under them counts no more.
    pub(super) fn is_now_another(&mut self, formerly: &[String]) {
        for former in formerly {
            if let Some(known) = self.nodes.get_mut(&**former) {
                known.confirmed = 0;
            }
        }
    }

    /// This node has another id, whose entries nobody has yet.
    pub(super) fn unconfirm(&mut self) {
        self.nodes.values_mut().for_each(|node| node.confirmed = 0);
    }

    /// A process answered `call` for a node; `next` is the number of the next call.
    ///
    /// SR28: if an earlier process answers a call that was sent after another one had answered, both run:
    /// a process that was restarted does not come back.
    pub(super) fn answered(&mut self, node: &str, boot: &str, call: CallId, next: CallId) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        let Some(boots) = &mut known.boots else {
            known.boots = Some(Boots { last: boot.into(), next_call: next, before: None });
            return;
        };
        if *boots.last == *boot {
            boots.next_call = next;
        } else if call >= boots.next_call {
            known.is_twin |= boots.before.as_deref() == Some(boot);
            boots.before = Some(std::mem::replace(&mut boots.last, boot.into()));
            boots.next_call = next;
        }
    }

    /// This node says Hello to a node.
    pub(super) fn greets(&mut self, node: &str) {
        self.nodes.get_mut(node).into_iter().for_each(|known| known.called.clear());
    }

    /// A process of a node says Hello.
    pub(super) fn called(&mut self, node: &str, boot: &str) {
        if let Some(known) = self.nodes.get_mut(node).filter(|known| known.called.len() < 2) {
            known.called.insert(boot.into());
        }
    }

    /// Whether another process than the one that answers has said Hello meanwhile.
    pub(super) fn has_another_called(&mut self, node: &str, boot: &str) -> bool {
        let called = self.nodes.get_mut(node).map(|known| std::mem::take(&mut known.called));
        called.into_iter().flatten().any(|called| *called != *boot)
    }

    /// Whether two processes answer for a node.
    pub(super) fn is_twin(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|known| known.is_twin)
    }

    /// When the store has to remember a clock.
    pub(super) fn due(&self) -> Option<i64> {
        self.nodes.values().filter_map(|node| node.remember_at).min()
    }

    /// The clocks that the store has to remember now.
    pub(super) fn take_news(&mut self, now: i64) -> Vec<(String, Counters)> {
        let due = self.nodes.iter_mut().filter(|(_, node)| node.remember_at.is_some_and(|at| at <= now));
        due.map(|(id, node)| {
            (node.remember_at, node.remembered_at) = (None, Some(now));
            (id.to_string(), node.counters.clone())
        })
        .collect()
    }
}

/// The answer is whether the counters grew.
fn raise<'c>(counters: &mut Counters, clock: impl Iterator<Item = (&'c str, u64)>) -> bool {
    let mut has_grown = false;
    for (origin, counter) in clock {
        let room = counters.len() < ORIGINS;
        match counters.get_mut(origin) {
            Some(at) if *at >= counter => continue,
            Some(at) => *at = counter,
            None if room => drop(counters.insert(origin.to_owned(), counter)),
            None => continue,
        }
        has_grown = true;
    }
    has_grown
}

/// How many nodes are known; former ids and forgotten nodes count until they are forgotten.
pub const NODES: usize = 256;
/// How many origins a clock of another node may have.
pub const ORIGINS: usize = 4096;
/// How often the clock of a node is remembered.
const REMEMBER_EVERY: i64 = 60 * SECOND;
/// How often a node is remembered whose clock is the same.
const ALIVE_EVERY: i64 = 600 * SECOND;
