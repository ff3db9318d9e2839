//! Snapshots between the two machines of a node, as the writer of a server takes and gives them.

use std::collections::VecDeque;

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::Engine as _;
use xds_store::read::Reads;
use xds_store::replica::{self, CallId, Failure};
use xds_store::store::{self, Resynced, Staged, Ticket};

use super::SECOND;
use super::driver::{Answer, Output, Process, Request, Step};

/// What a process knows of snapshots.
#[derive(Debug, Default)]
pub(super) struct Resyncing {
    taking: Option<Taking>,
    /// SR20: the node serves nothing until a snapshot has come.
    is_unsynced: bool,
    /// When a new id is requested again, as the last one could not be written.
    pub(super) takes_id_at: Option<i64>,
}

#[derive(Debug)]
struct Taking {
    call: CallId,
    /// When the next page has to be there.
    until: i64,
    /// A page is on its way to the engine.
    is_staging: bool,
    pages: VecDeque<proto::SnapshotResponse>,
}

impl Resyncing {
    pub(super) fn due(&self) -> Option<i64> {
        self.taking.as_ref().filter(|taking| !taking.is_staging).map(|taking| taking.until)
    }
}

impl Process {
    /// SR19: of two nodes that take one from each other, that with the smaller id gives one.
    pub(super) fn give_snapshot(&self, request: &proto::SnapshotRequest) -> Vec<Answer> {
        let head = self.store.head();
        let waits = self.resyncing.is_unsynced && head.node > request.node;
        let refused = self.replica.check_caller(&request.node).err().map(Failure::Refused);
        let refused = refused.or_else(|| (waits || head.is_joining).then_some(Failure::Unreachable));
        if let Some(failure) = refused {
            return vec![Answer::Snapshot(Err(failure))];
        }
        let view = self.engine.view().unwrap();
        let (reads, mut pages) = (Reads::new(&*view).unwrap(), Vec::<proto::SnapshotResponse>::new());
        while pages.last().is_none_or(|page| !page.is_last) {
            let resume = pages.last().map_or("", |page| &page.resume);
            pages.push(reads.snapshot_in(&request.region, resume, PAGE_BYTES).unwrap());
        }
        pages.into_iter().map(|page| Answer::Snapshot(Ok(page))).collect()
    }

    pub(super) fn take_snapshot(&mut self, address: String, must_replace: bool, now: i64) {
        self.next += 1;
        let head = self.store.head();
        let new_id = self.new_id();
        let (node, region) = (head.node.clone(), head.region.clone());
        let request = proto::SnapshotRequest { node, region, ..Default::default() };
        self.resyncing.is_unsynced |= !head.is_joining && (must_replace || !head.owes_reissue);
        let call = CallId(CALLS + self.next);
        let until = now + PAGE_WAIT;
        self.resyncing.taking = Some(Taking { call, until, is_staging: false, pages: VecDeque::new() });
        self.steps.push_back(Step::Store(store::Event::BeginResync { must_replace, new_id }));
        self.outputs.push(Output::Call(call, address, Request::Snapshot(request)));
    }

    /// An id that no other node has. Those of a node that never lost its id sort like its first one.
    fn new_id(&self) -> String {
        let (head, server) = (self.store.head(), self.store.config().server);
        let first = head.former_nodes.first().unwrap_or(&head.node);
        format!("{first}.{}{server}-{}", self.place, self.next)
    }

    /// SR29.
    pub(super) fn take_id(&mut self) {
        self.next += 1;
        self.resyncing.takes_id_at = None;
        let take = store::Event::TakeId(Ticket(self.next), self.new_id());
        self.steps.push_back(Step::Store(take));
    }

    pub(super) fn on_took_id(&mut self, is_taken: bool) {
        self.resyncing.takes_id_at = (!is_taken).then_some(self.now + SECOND);
    }

    pub(super) fn take_id_again(&mut self, now: i64) {
        self.now = now;
        if self.resyncing.takes_id_at.is_some_and(|at| at <= now) {
            self.take_id();
        }
    }

    pub(super) fn on_page(&mut self, call: CallId, page: Result<proto::SnapshotResponse, Failure>, now: i64) {
        let Some(taking) = self.resyncing.taking.as_mut().filter(|taking| taking.call == call) else {
            return;
        };
        match page {
            Ok(page) => {
                taking.until = now + PAGE_WAIT;
                taking.pages.push_back(page);
                self.stage_next();
            }
            Err(failure) => self.fail(failure),
        }
    }

    /// SR20: it accepts no commits until a snapshot has come.
    pub(super) fn is_resyncing(&self) -> bool {
        self.resyncing.is_unsynced
    }

    fn stage_next(&mut self) {
        let Some(taking) = self.resyncing.taking.as_mut().filter(|taking| !taking.is_staging) else { return };
        let Some(page) = taking.pages.pop_front() else { return };
        taking.is_staging = true;
        self.steps.push_back(Step::Store(store::Event::Stage(Ticket(0), page)));
    }

    pub(super) fn on_staged(&mut self, staged: Result<Staged, Refused>) {
        let Some(taking) = &mut self.resyncing.taking else { return };
        taking.is_staging = false;
        match staged {
            Ok(Staged::Merged(resynced)) => self.on_resynced(resynced),
            Ok(_) => self.stage_next(),
            Err(refused) => {
                // A disk may be full; SR22: the snapshot could revive what was deleted.
                let codes = [RefusalCode::ResourceExhausted, RefusalCode::Unavailable];
                assert!(codes.contains(&refused.code), "{refused:?}");
                self.fail(Failure::Unreachable);
            }
        }
    }

    fn on_resynced(&mut self, resynced: Resynced) {
        (self.resyncing.taking, self.resyncing.is_unsynced) = (None, false);
        self.outputs.push(Output::Resynced(resynced));
        self.tell(replica::Event::SnapshotEnded(Ok(self.store.clock())));
    }

    /// SR23: the records stay as they are.
    fn fail(&mut self, failure: Failure) {
        let taking = self.resyncing.taking.take();
        self.outputs.extend(taking.map(|taking| Output::Cancel(taking.call)));
        self.tell(replica::Event::SnapshotEnded(Err(failure)));
    }

    pub(super) fn end_late_snapshot(&mut self, now: i64) {
        if self.resyncing.due().is_some_and(|until| until <= now) {
            self.fail(Failure::Unreachable);
        }
    }

    /// The replica hears of a new id before it hears of commits under it.
    pub(super) fn report_renamed(&mut self, actions: &[store::Action]) {
        let is_renamed = |action: &store::Action| match action {
            store::Action::Staged(_, Ok(Staged::Merged(resynced))) => resynced.has_replaced,
            store::Action::TookId(_, result) => result.is_ok(),
            _ => false,
        };
        if actions.iter().any(is_renamed) {
            let (head, clock) = (self.store.head(), self.store.clock());
            let (node, owes_reissue) = (head.node.clone(), head.owes_reissue);
            self.tell(replica::Event::Renamed { node, clock, owes_reissue });
        }
    }

    /// A node serves on if a peer came back that has the entries which it lacked.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        let resyncing = &mut self.resyncing;
        if self.steps.is_empty()
            && resyncing.taking.is_none()
            && resyncing.is_unsynced
            && self.replica.is_in_sync()
        {
            resyncing.is_unsynced = false;
            self.steps.push_back(Step::Store(store::Event::EndResync));
        }
        self.steps.pop_front()
    }
}

/// So that a snapshot has several pages.
const PAGE_BYTES: usize = 300;
const PAGE_WAIT: i64 = 10 * SECOND;
/// The calls of the replica have smaller numbers.
const CALLS: u64 = 1 << 40;
