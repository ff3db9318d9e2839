//! What holds after each step, and of each answer.

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Position;
use xds_store::record::RecordRevision;
use xds_store::store::{Committed, Ticket};

use super::driver::Acked;
use super::{Outcome, Sent, Sim};

impl Sim {
    /// A commit was answered with OK: it is durable at its node, and at as many peers as the answer says.
    pub(super) fn committed(
        &mut self,
        node: usize,
        ticket: Ticket,
        committed: &Committed,
        acked: Acked,
    ) -> Outcome {
        let id = self.id(node);
        let Sent { peers, until } = self.nodes[node].commits.remove(&ticket).unwrap();
        let Acked { counter, formers, peers: acked } = acked;
        self.note(|| format!("{id} answers {ticket:?}: {counter}, {acked:?}"));
        self.counts.committed += 1;
        if !self.is_exact() {
            return Ok(());
        }
        // SR31: the commit may be one under a former id.
        if formers != self.history.formers(&id) {
            return Ok(());
        }
        let has = |node: &usize| {
            let counters = self.history.counters(&self.id(*node));
            counters.get(&id).copied().unwrap_or_default() >= counter
        };
        if !has(&node) {
            return Err(format!("{id} answers {counter}, which is not durable"));
        }
        let states = self.history.written(&id);
        for result in committed.results.iter().filter(|result| is_write(result.outcome)) {
            let is_said = |(revision, _)| states.clone().any(|state| RecordRevision::of(state) == revision);
            if !result.record.is_none_or(is_said) {
                return Err(format!("{id} answers {result:?}, which no entry of it says"));
            }
        }
        let Some((said, is_enough)) = acked else { return Ok(()) };
        let holders = (0..self.nodes.len()).filter(|other| *other != node && has(other)).count();
        // SR17: a node that lost it (SR21) had it durably when it said so.
        let holders = holders + self.history.had_once(&id, counter);
        self.counts.acks[usize::from(is_enough)] += 1;
        // A node that wrote nothing waits for nothing.
        if (counter > 0 && holders < said) || is_enough != (said >= peers) {
            return Err(format!("{id} acks {counter} with {said} of {peers}: {holders} have it"));
        }
        if !is_enough && self.now < until {
            return Err(format!("{id} gives {counter} up too early"));
        }
        Ok(())
    }

    /// What holds after each step of a process.
    pub(super) fn check(&self, node: usize) -> Outcome {
        if !self.is_exact() {
            return Ok(());
        }
        let (id, process) = (self.id(node), self.nodes[node].process.as_ref().unwrap());
        let durable = self.history.counters(&id);
        for (who, clock) in [("store", &process.store.clock()), ("replica", process.replica.clock())] {
            let beyond = |(origin, at): &(&str, Position)| {
                at.counter > durable.get(*origin).copied().unwrap_or_default()
            };
            if let Some(beyond) = clock.iter().find(beyond) {
                return Err(format!("the {who} of {id} has {beyond:?}, which is not durable: {durable:?}"));
            }
        }
        // A peer that pulls now may get all that the store has.
        let own = [process.store.clock().get(&id), process.replica.clock().get(&id)];
        if own[0] != own[1] {
            return Err(format!("the replica of {id} has not heard of all commits: {own:?}"));
        }
        // SR9: what is known of a node is never more than it has.
        for (other, known) in process.replica.known() {
            let beyond = |(origin, at): &(&String, &u64)| **at > self.history.at_most(other, origin);
            if let Some(beyond) = known.iter().find(beyond) {
                let theirs = self.history.counters(other);
                return Err(format!("{id} knows {beyond:?} of {other}, which has {theirs:?}"));
            }
        }
        Ok(())
    }
}

/// Whether a change wrote the record that it names.
fn is_write(outcome: proto::Outcome) -> bool {
    matches!(outcome, proto::Outcome::Created | proto::Outcome::Updated)
}
