//! Snapshots and new ids: what the writer does for them between the store and the peers.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::sync::oneshot;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Refused;
use xds_store::engine::View;
use xds_store::replica::{Event as ReplicaEvent, Failure, IdLost};
use xds_store::store::{Action, Event, Resynced, Staged, Ticket};

use super::Writer;
use crate::peers::{Answer, PageEnd};
use crate::replication::Taking;
use crate::standing::Condition;

impl Writer {
    /// What the store is for clients and readers (ST5, SR20, SR23), with the reason for people.
    pub(super) fn condition(&self) -> (Condition, Cow<'_, str>) {
        if let Some(reason) = self.store.read_only() {
            return (Condition::ReadOnly, reason.into());
        }
        if self.store.head().is_joining {
            return (Condition::Waiting, JOINING.into());
        }
        let Some(replication) = &self.replication else { return (Condition::Serving, "".into()) };
        let patience = replication.snapshot_patience;
        match replication.condition() {
            Some(Condition::Resyncing) => (
                Condition::Resyncing,
                "this node takes a snapshot: its peers have forgotten commits that it lacks".into(),
            ),
            Some(_) => (
                Condition::ReadOnly,
                format!(
                    "this node lacks commits, and no peer has given it a snapshot for {patience:?}: it retries"
                )
                .into(),
            ),
            None => (Condition::Serving, "".into()),
        }
    }

    /// SR19: a peer takes a snapshot. Of two nodes that take one from each other, that with the smaller id gives
    /// one, and takes the other's when that is done: if both replaced their records at once, each would drop what
    /// the other one takes.
    pub(super) fn give_snapshot(&self, request: &proto::SnapshotRequest, answer: Answer<Box<dyn View>>) {
        let Some(replication) = &self.replication else { return };
        let head = self.store.head();
        let waits = replication.unsynced_at.is_some() && head.node > request.node;
        let given = match replication.machine.check_caller(&request.node) {
            Err(refusal) => Err(refusal),
            // The sender is dropped, which its receiver sees.
            Ok(()) if waits || head.is_joining => return,
            Ok(()) => match self.reader.view() {
                Ok(view) => Ok(view),
                Err(_) => return,
            },
        };
        // The caller may have gone away.
        _ = answer.send(given);
    }

    /// SR19: takes a snapshot from a peer, which may wait so long before each page.
    pub(super) fn take_snapshot(
        &mut self,
        (address, wait): (String, Duration),
        must_replace: bool,
        actions: &mut VecDeque<Action>,
    ) {
        tracing::warn!(address, must_replace, "this node takes a snapshot from a peer");
        actions.extend(self.step(Event::BeginResync { must_replace, new_id: random_id() }));
        let head = self.store.head();
        let node = (head.node.clone(), head.region.clone());
        let is_resyncing = self.store.is_resyncing() && !self.store.head().is_joining;
        let Some(replication) = &mut self.replication else { return };
        replication.snapshots += 1;
        let number = replication.snapshots;
        replication.taking = Some(Taking { number, address: address.clone(), page: None });
        if is_resyncing {
            let now = replication.now();
            replication.unsynced_at.get_or_insert(now);
        }
        replication.calls.snapshot(number, (address, wait), node);
        self.send_standing();
    }

    pub(super) fn on_page(
        &mut self,
        (number, ticket): (u64, Ticket),
        page: proto::SnapshotResponse,
        answer: oneshot::Sender<PageEnd>,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(replication) = &mut self.replication else { return };
        // The sender of a late page is dropped.
        let Some(taking) = replication.taking.as_mut().filter(|taking| taking.number == number) else {
            return;
        };
        taking.page = Some((ticket, answer));
        let now = replication.now();
        replication.unsynced_at = replication.unsynced_at.map(|_| now);
        // SR20: a commit does not wait for the batch that merges a large snapshot.
        if page.is_last && self.store.staged_bytes() > MERGED_AT_ONCE_BYTES {
            self.queue.pause(Some(MERGING));
        }
        actions.extend(self.step(Event::Stage(ticket, page)));
    }

    pub(super) fn on_staged(
        &mut self,
        ticket: Ticket,
        staged: Result<Staged, Refused>,
        actions: &mut VecDeque<Action>,
    ) {
        self.queue.pause(None);
        let Some(replication) = &mut self.replication else { return };
        let Some(taking) = &mut replication.taking else { return };
        let Some((_, answer)) = taking.page.take_if(|(of, _)| *of == ticket) else { return };
        match staged {
            Ok(Staged::Merged(resynced)) => {
                _ = answer.send(PageEnd::Ended);
                (replication.taking, replication.snapshot_refused) = (None, None);
                replication.unsynced_at = None;
                self.on_resynced(&resynced, actions);
            }
            // The sender may have gone away, here and below.
            Ok(_) => _ = answer.send(PageEnd::Kept),
            Err(refused) => {
                _ = answer.send(PageEnd::Ended);
                let text = format!(
                    "the snapshot of the node at {} is not taken: {}",
                    taking.address, refused.message
                );
                tracing::error!("{text}");
                (replication.taking, replication.snapshot_refused) = (None, Some(text));
                self.replicate(ReplicaEvent::SnapshotEnded(Err(Failure::Unreachable)), actions);
            }
        }
    }

    fn on_resynced(&mut self, resynced: &Resynced, actions: &mut VecDeque<Action>) {
        let (replaced, reissued) = (resynced.has_replaced, resynced.reissued);
        tracing::info!(replaced, reissued, "a snapshot was taken");
        for (key, state) in &resynced.dropped {
            tracing::warn!(
                ?key,
                generation = state.generation,
                "a change is lost: the record was deleted elsewhere"
            );
        }
        if resynced.has_replaced {
            self.report_renamed(actions);
        }
        self.report_committed(actions);
        self.replicate(ReplicaEvent::SnapshotEnded(Ok(self.store.clock())), actions);
        self.send_standing();
    }

    /// SR23: the records stay as they are, and the machine tries again.
    pub(super) fn on_snapshot_failed(
        &mut self,
        number: u64,
        failure: Failure,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(replication) = &mut self.replication else { return };
        if replication.taking.take_if(|taking| taking.number == number).is_some() {
            self.replicate(ReplicaEvent::SnapshotEnded(Err(failure)), actions);
            self.send_standing();
        }
    }

    /// Serves on if a peer came back that has the entries which this node lacked.
    pub(super) fn end_resync_if_in_sync(&mut self, actions: &mut VecDeque<Action>) {
        let Some(replication) = &mut self.replication else { return };
        if replication.taking.is_some() || replication.unsynced_at.is_none() {
            return;
        }
        if replication.machine.is_in_sync() {
            (replication.unsynced_at, replication.snapshot_refused) = (None, None);
            actions.extend(self.step(Event::EndResync));
        }
        self.send_standing();
    }

    /// SR29: a node whose id is lost takes another one at once.
    pub(super) fn take_id(&mut self, actions: &mut VecDeque<Action>) {
        let ticket = self.next_ticket();
        if let Some(replication) = &mut self.replication {
            replication.takes_id = Some(None);
        }
        actions.extend(self.step(Event::TakeId(ticket, random_id())));
    }

    pub(super) fn on_took_id(&mut self, took: Result<(), Refused>, actions: &mut VecDeque<Action>) {
        match took {
            Ok(()) => self.report_renamed(actions),
            Err(refused) => {
                tracing::error!("the new id cannot be written: {}", refused.message);
                let Some(replication) = &mut self.replication else { return };
                let again_at = replication.now().saturating_add(ID_AGAIN);
                replication.takes_id = Some(Some(again_at));
            }
        }
    }

    pub(super) fn take_id_again(&mut self, actions: &mut VecDeque<Action>) {
        let Some(replication) = &self.replication else { return };
        if replication.takes_id.flatten().is_some_and(|at| at <= replication.now()) {
            self.take_id(actions);
        }
    }

    fn report_renamed(&mut self, actions: &mut VecDeque<Action>) {
        let head = self.store.head();
        let (node, owes_reissue, clock) = (head.node.clone(), head.owes_reissue, self.store.clock());
        let former = head.former_nodes.last().cloned().unwrap_or_default();
        let Some(replication) = &mut self.replication else { return };
        (replication.takes_id, replication.told) = (None, head.counter);
        let (cause, cure) = match replication.id_lost.take() {
            Some(IdLost::Twin | IdLost::Told) => (
                "another process has it",
                "stop that process, or give its store an id of its own with `xds store reid`",
            ),
            Some(IdLost::Behind | IdLost::Forked) => (
                "peers have commits of that id which this store does not have",
                "look whether another store had it, the disk lost data, or an older copy of the store was put in place",
            ),
            None => (
                "it was away for longer than its peers remember deletions, and took a snapshot",
                "nothing is to be done; see `xds store conflicts` for changes that were dropped",
            ),
        };
        let text = format!(
            "the id of this node was {former} and is {node} now: {cause}; {cure}. This is shown until a restart"
        );
        tracing::warn!(former, node, "this node has another id: {cause}; {cure}");
        replication.renamed = Some(text);
        self.replicate(ReplicaEvent::Renamed { node, clock, owes_reissue }, actions);
        self.send_standing();
    }
}

/// 128 random bits: the keys of a hash map are made from the entropy of the system.
fn random_id() -> String {
    let state = RandomState::new();
    format!("{:016x}{:016x}", state.hash_one(0), state.hash_one(1))
}

/// SR24.
pub(super) const JOINING: &str = "this node waits for the first snapshot of its peers";

/// A snapshot that is larger is merged for half a second and more: 300 MB take 7 to 15 s.
const MERGED_AT_ONCE_BYTES: u64 = 16 << 20;
const MERGING: &str =
    "this node merges a large snapshot of a peer: try again in a few seconds, or at another node";

/// When a new id is requested again after that failed.
const ID_AGAIN: i64 = 1_000_000_000;
