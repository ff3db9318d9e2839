//! What the writer does for the machine that replicates: both run on its thread, so a peer can see no
//! entry before the machine knows of it (SR28).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use xds_store::clock::{Clock, Position};
use xds_store::region::Policy;
use xds_store::replica::{Action as ReplicaAction, Event as ReplicaEvent, Failure};
use xds_store::store::{Action, Event, Merged, RegionRequest, RegionResponse, Ticket, Unanswered};

use super::Writer;
use crate::peers::{PeerMessage, Pulled};
use crate::queue::Acked;
use crate::replication::{Inbound, Replication, SNAPSHOT_WAIT, SNAPSHOT_WAIT_WITH_OTHERS, alarm_text};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Refused;
use xds_store::store::Committed;

impl Writer {
    /// Takes a message of a task or of the service of peers.
    pub(super) fn on_peer(&mut self, message: PeerMessage, actions: &mut VecDeque<Action>) {
        let ticket = self.next_ticket();
        // Without peers the senders of answers are dropped, which their receivers see.
        let Some(replication) = &mut self.replication else { return };
        let event = match message {
            PeerMessage::Event(event, _taken) => return self.replicate(event, actions),
            PeerMessage::Hello(request, answer) => {
                replication.inbound.insert(ticket, Inbound::Hello(answer));
                let forked = self.forked(&request.clock);
                ReplicaEvent::Hello(ticket, request, forked)
            }
            PeerMessage::Pull(request, answer) => {
                replication.inbound.insert(ticket, Inbound::Pull(request.clone(), answer));
                let forked = self.forked(&request.clock);
                ReplicaEvent::Pull(ticket, request, forked)
            }
            PeerMessage::Snapshot(request, answer) => return self.give_snapshot(&request, answer),
            PeerMessage::Page(number, page, answer) => {
                return self.on_page((number, ticket), page, answer, actions);
            }
            PeerMessage::SnapshotFailed(number, failure) => {
                return self.on_snapshot_failed(number, failure, actions);
            }
            PeerMessage::Nudge(request, answer) => {
                replication.inbound.insert(ticket, Inbound::Nudge(answer));
                let forked = self.forked(&request.clock);
                ReplicaEvent::Nudge(ticket, request, forked)
            }
            PeerMessage::Look(node, answer) => {
                replication.inbound.insert(ticket, Inbound::Look(answer));
                ReplicaEvent::Look(ticket, node)
            }
            PeerMessage::Peek(key, answers) => return replication.peek(&key, &answers),
            PeerMessage::Region(request, caller) => {
                replication.regions.insert(ticket, caller);
                return actions.extend(self.step(Event::Region(ticket, request)));
            }
            PeerMessage::RegionAnswered(call, answer) => {
                return actions.extend(self.step(Event::RegionAnswered(call, answer)));
            }
        };
        self.replicate(event, actions);
    }

    /// Gives an event to the machine, and does what it says.
    pub(super) fn replicate(&mut self, event: ReplicaEvent, actions: &mut VecDeque<Action>) {
        let Some(replication) = &mut self.replication else { return };
        replication.show_soon();
        let now = replication.now();
        for action in replication.machine.step(event, now) {
            self.perform(action, actions);
        }
    }

    /// Answers a node of another region.
    pub(super) fn answer_region(&mut self, ticket: Ticket, answer: Result<RegionResponse, Refused>) {
        let caller = self.replication.as_mut().and_then(|replication| replication.regions.remove(&ticket));
        // The caller may have gone away.
        _ = caller.map(|caller| caller.send(answer));
    }

    /// Calls another region for the store.
    pub(super) fn call_region(
        &mut self,
        call: Ticket,
        (region, node): (&str, &str),
        request: RegionRequest,
        actions: &mut VecDeque<Action>,
    ) {
        let replication = self.replication.as_ref();
        match replication.and_then(|replication| Some((replication, replication.address_of(region, node)?))) {
            Some((replication, address)) => replication.calls.region(call, address, request),
            None => actions.extend(self.step(Event::RegionAnswered(call, Err(Unanswered::Silent)))),
        }
    }

    /// Lets the machine do what is due.
    pub(super) fn replicate_if_due(&mut self, actions: &mut VecDeque<Action>) {
        self.report_forgotten(actions);
        self.report_fetching(actions);
        let Some(replication) = &mut self.replication else { return };
        let (writers, is_due) = (replication.show_if_due(), replication.due_in() == Some(0));
        for (region, node) in writers {
            actions.extend(self.step(Event::Writer { region, node }));
        }
        if is_due {
            self.replicate(ReplicaEvent::Due, actions);
            self.take_id_again(actions);
        }
        self.end_resync_if_in_sync(actions);
    }

    /// Tells the machine of commits that became durable.
    pub(super) fn report_committed(&mut self, actions: &mut VecDeque<Action>) {
        let head = self.store.head();
        let counter = head.counter;
        // A new id is reported first: its counters say nothing of the one before.
        let is_news = |of: &&mut Replication| of.told < counter && of.machine.node() == head.node;
        let Some(replication) = self.replication.as_mut().filter(is_news) else { return };
        replication.told = counter;
        let position: Position = self.store.clock().get(&self.store.head().node);
        self.replicate(ReplicaEvent::Committed(position), actions);
    }

    /// Tells the machine which nodes are forgotten (SR33), at the start and when that changes.
    fn report_forgotten(&mut self, actions: &mut VecDeque<Action>) {
        let Some(replication) = &mut self.replication else { return };
        if self.store.forgotten().eq(replication.forgotten.iter().map(String::as_str)) {
            return;
        }
        let forgotten: BTreeSet<String> = self.store.forgotten().map(str::to_owned).collect();
        replication.forgotten.clone_from(&forgotten);
        self.replicate(ReplicaEvent::Forgotten(forgotten), actions);
    }

    /// Tells the machine which names the store fetches (SG27), and of the policies, at the start and when that changes.
    fn report_fetching(&mut self, actions: &mut VecDeque<Action>) {
        let fetching = self.store.fetching();
        if let Some(replication) = &mut self.replication {
            let owners = || self.store.policies().iter().map(Policy::owner);
            if !owners().all(|owner| replication.owners.contains(owner)) {
                replication.owners = owners().map(str::to_owned).collect();
                replication.show_soon();
            }
        }
        let changes = self.store.policies().changes();
        if let Some(replication) = self.replication.as_mut().filter(|of| of.policies != changes) {
            replication.policies = changes;
            let commits = self.store.policies().commits_for(&self.store.head().region);
            self.replicate(ReplicaEvent::Policies(commits), actions);
        }
        let is_news = |of: &&mut Replication| of.fetching != fetching;
        let Some(replication) = self.replication.as_mut().filter(is_news) else { return };
        replication.fetching.clone_from(&fetching);
        self.replicate(ReplicaEvent::Fetching(fetching), actions);
    }

    /// Answers a commit, at once or when so many peers have it (SR17).
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Committed, Refused>,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(caller) = self.callers.remove(&ticket) else { return };
        self.statistics.on_answer(&answer);
        self.statistics.on_stage(crate::statistics::Stage::Total, caller.since.elapsed());
        let acks = caller.acks;
        match (&mut self.replication, answer) {
            (Some(replication), Ok(committed)) if acks.peers > 0 => {
                let wait = i64::try_from(acks.timeout.as_nanos()).unwrap_or(i64::MAX);
                let until = replication.now().saturating_add(wait);
                replication.awaiting.insert(ticket, (caller, committed));
                // A commit that changed nothing may confirm one that peers lack yet.
                let counter = self.store.head().counter;
                self.replicate(ReplicaEvent::Await { ticket, counter, peers: acks.peers, until }, actions);
            }
            (_, answer) => {
                let acked = Acked { peers: 0, is_enough: acks.peers == 0 };
                caller.answer(answer.map(|committed| (committed, acked)));
            }
        }
    }

    /// The store has done what it could with entries.
    pub(super) fn on_merged(
        &mut self,
        ticket: Ticket,
        merged: Result<Merged, Refused>,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(replication) = &mut self.replication else { return };
        if let Some(call) = replication.mending.remove(&ticket) {
            let merged = merged.ok();
            if !replication.machine.is_fetching() {
                replication.mended += merged.as_ref().map_or(0, |merged| merged.mended);
            }
            let lost = merged.map(|merged| merged.lost);
            return self.replicate(ReplicaEvent::Mended(call, lost), actions);
        }
        let Some(call) = replication.applying.remove(&ticket) else { return };
        let stopped = match merged {
            Ok(merged) => merged.stopped,
            // The clock has not moved, so they come again with a later round.
            Err(refused) => {
                tracing::warn!("entries of peers were not applied: {}", refused.message);
                Default::default()
            }
        };
        self.replicate(ReplicaEvent::Applied { call, clock: self.store.clock(), stopped }, actions);
    }

    fn perform(&mut self, action: ReplicaAction, actions: &mut VecDeque<Action>) {
        let Some(replication) = &mut self.replication else { return };
        match action {
            ReplicaAction::CallHello(call, address, request) => {
                replication.calls.hello(call, address, request);
            }
            ReplicaAction::CallPull(call, address, request) => {
                // SR22: no node but one that nobody knew, such as one from a backup, lacks such deletions.
                let counters = replication.machine.counters_at(&address);
                if !counters.is_empty() && self.store.may_revive(&counters) {
                    replication
                        .calls
                        .note_error(&address, "it lacks deletions, and has to take a snapshot first");
                    return self.replicate(ReplicaEvent::PullFailed(call, Failure::Unreachable), actions);
                }
                replication.calls.pull(call, address, request);
            }
            ReplicaAction::CallNudge(call, address, request) => {
                replication.calls.nudge(call, address, request);
            }
            ReplicaAction::CallDigest(call, address, request) => {
                replication.calls.digest(call, address, request);
            }
            ReplicaAction::CallPeek(call, address, request) => replication.calls.peek(call, address, request),
            ReplicaAction::Mend(call, states, of_peer) => {
                let ticket = self.next_ticket();
                if let Some(replication) = &mut self.replication {
                    replication.mending.insert(ticket, call);
                }
                actions.extend(self.step(Event::Mend(ticket, states, of_peer)));
            }
            ReplicaAction::AnswerLook(ticket, answer) => {
                if let Some(Inbound::Look(caller)) = replication.inbound.remove(&ticket) {
                    _ = caller.send(answer);
                }
            }
            ReplicaAction::Remove(region, records) => {
                tracing::warn!(
                    "region {region} does not hold {} records of which there are copies here",
                    records.len()
                );
                actions.extend(self.step(Event::Remove(region, records)));
            }
            ReplicaAction::Fetched(names, incarnation_floor) => {
                actions.extend(self.step(Event::Fetched { names, incarnation_floor }));
            }
            ReplicaAction::Cancel(call) => replication.calls.cancel(call),
            ReplicaAction::Apply(call, entries, policies) => {
                let ticket = self.next_ticket();
                if let Some(replication) = &mut self.replication {
                    replication.applying.insert(ticket, call);
                }
                actions.extend(self.step(Event::Merge(ticket, entries, Some(policies))));
            }
            ReplicaAction::Dropped(address, gaps) => {
                for gap in gaps {
                    let (origin, expected, found) = (gap.origin, gap.expected, gap.found);
                    tracing::warn!(
                        address,
                        origin,
                        expected,
                        found,
                        "a peer left out entries: the rest was dropped"
                    );
                }
            }
            ReplicaAction::AnswerHello(ticket, answer) => {
                if let Some(Inbound::Hello(caller)) = replication.inbound.remove(&ticket) {
                    // The caller may have gone away, here and below.
                    _ = caller.send(answer);
                }
            }
            ReplicaAction::AnswerPull(ticket, answer) => {
                let Some(Inbound::Pull(request, caller)) = replication.inbound.remove(&ticket) else {
                    return;
                };
                match answer.map(|others| self.pulled(&request, others)) {
                    Ok(Some(pulled)) => _ = caller.send(Ok(pulled)),
                    // The engine cannot be read: the caller sees that the answer is missing.
                    Ok(None) => drop(caller),
                    Err(refusal) => _ = caller.send(Err(refusal)),
                }
            }
            ReplicaAction::AnswerNudge(ticket, answer) => {
                if let Some(Inbound::Nudge(caller)) = replication.inbound.remove(&ticket) {
                    _ = caller.send(answer);
                }
            }
            ReplicaAction::Acked { ticket, peers, is_enough } => {
                if let Some((caller, committed)) = replication.awaiting.remove(&ticket) {
                    caller.answer(Ok((committed, Acked { peers, is_enough })));
                }
            }
            ReplicaAction::Raise(alarm) => tracing::error!("{}", replication.alarm_text(&alarm)),
            ReplicaAction::End(alarm) => tracing::info!("no longer: {}", alarm_text(&alarm)),
            ReplicaAction::Remember(node, counters) => {
                actions.extend(self.step(Event::Remember(node, counters)));
            }
            ReplicaAction::PeerPhases(phases) => actions.extend(self.step(Event::PeerPhases(phases))),
            ReplicaAction::OfRegion(node, region) => {
                actions.extend(self.step(Event::OfRegion(node, region)));
            }
            ReplicaAction::TakeNewId(why) => {
                tracing::error!("the id of this node is lost: {why}; it takes another one");
                if let Some(replication) = &mut self.replication {
                    replication.id_lost = Some(why);
                }
                self.take_id(actions);
            }
            ReplicaAction::TakeSnapshot { address, must_replace, has_other } => {
                let wait = if has_other { SNAPSHOT_WAIT_WITH_OTHERS } else { SNAPSHOT_WAIT };
                self.take_snapshot((address, wait), must_replace, actions);
            }
        }
    }

    /// The origins whose entries a peer with this clock has otherwise.
    fn forked(&self, clock: &BTreeMap<String, proto::Position>) -> Vec<String> {
        // The machine refuses a clock that cannot be read.
        Clock::from_wire(clock).map_or_else(Vec::new, |clock| self.store.lacking(&clock, 0).forked)
    }

    /// What a caller with this clock lacks; `None` if the engine cannot be read.
    fn pulled(&self, request: &proto::PullRequest, others: BTreeMap<String, proto::Clock>) -> Option<Pulled> {
        let clock = Clock::from_wire(&request.clock)?;
        let limit = match request.max_entries {
            0 => ENTRIES,
            entries => entries.min(ENTRIES_LIMIT),
        };
        let room = match request.max_bytes {
            0 => BYTES,
            bytes => bytes.min(BYTES_LIMIT),
        };
        let lacking = self.store.lacking_in(&request.region, &clock, limit as usize);
        let view = self.reader.view().ok()?;
        // SV15: what the caller compares with its own. SV41: a node that joins has those of its snapshot then.
        let plans = self.store.plans().into_iter().filter(|_| !self.store.head().is_joining);
        let phases = plans.map(|plan| (plan.number, plan.phase.number())).collect();
        let callee = (self.store.head().node.clone(), &self.store.clock());
        let view = (view, request.region.clone());
        let plans = (phases, self.store.known_versions());
        Some(Pulled::new(view, lacking, callee, others, plans, room as usize))
    }
}

/// SR12: what a caller gets that does not say how much it takes, and the most that any caller gets.
const ENTRIES: u32 = 1_000;
const ENTRIES_LIMIT: u32 = 10_000;
const BYTES: u32 = 16 << 20;
const BYTES_LIMIT: u32 = 64 << 20;
