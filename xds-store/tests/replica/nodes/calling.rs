//! Calls between nodes of two regions, as the writer of a server makes and answers them (SG30 to SG35).

use std::collections::BTreeMap;

use xds_store::replica::{CallId, PeerView};
use xds_store::store::{self, RegionRequest, RegionResponse, Ticket, Unanswered};

use super::SECOND;
use super::driver::{Answer, Output, Process, Request, Step};

/// What a process knows of such calls.
#[derive(Debug, Default)]
pub(super) struct Calling {
    /// Calls that are not answered, and when that counts as silence.
    calls: BTreeMap<CallId, (Ticket, i64)>,
    /// The writer of each other region.
    writers: BTreeMap<String, String>,
}

impl Calling {
    pub(super) fn due(&self) -> Option<i64> {
        self.calls.values().map(|(_, until)| *until).min()
    }
}

impl Process {
    pub(super) fn call_region(&mut self, call: Ticket, (region, node): (&str, &str), request: RegionRequest) {
        let is_forgotten = self.store.forgotten().any(|forgotten| forgotten == node);
        let is_it = |peer: &PeerView| {
            let is_it = if node.is_empty() || is_forgotten { !peer.is_replica } else { peer.node == node };
            peer.is_up && (region.is_empty() || peer.region == region) && is_it
        };
        let Some(peer) = self.replica.peers().find(is_it) else {
            return self.region_answered(call, Err(Unanswered::Silent));
        };
        let wait = if matches!(request, RegionRequest::Check(_)) { SECOND } else { 10 * SECOND };
        let id = CallId(CALLS + call.0);
        self.calling.calls.insert(id, (call, self.now + wait));
        self.outputs.push(Output::Call(id, peer.address, Request::Region(request)));
    }

    fn region_answered(&mut self, call: Ticket, answer: Result<RegionResponse, Unanswered>) {
        self.steps.push_back(Step::Store(store::Event::RegionAnswered(call, answer)));
    }

    pub(super) fn on_region_answered(&mut self, id: CallId, answer: Result<RegionResponse, Unanswered>) {
        if let Some((call, _)) = self.calling.calls.remove(&id) {
            self.region_answered(call, answer);
        }
    }

    pub(super) fn end_late_region_calls(&mut self, now: i64) {
        let late: Vec<_> =
            self.calling.calls.iter().filter(|(_, (_, until))| *until <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.outputs.push(Output::Cancel(id));
            self.on_region_answered(id, Err(Unanswered::Silent));
        }
    }

    pub(super) fn called_by_region(&mut self, ticket: Ticket, request: RegionRequest) {
        let node = match &request {
            RegionRequest::Block(request) => &request.node,
            RegionRequest::Confirm(request) => &request.node,
            RegionRequest::Release(request) => &request.node,
            RegionRequest::Check(request) => &request.node,
            RegionRequest::List(request) => &request.node,
        };
        if self.replica.check_caller(node).is_err() {
            let answer = Answer::Region(Err(Unanswered::Silent));
            return self.outputs.push(Output::Answer(ticket, vec![answer]));
        }
        self.steps.push_back(Step::Store(store::Event::Region(ticket, request)));
    }

    /// The store hears of each writer of another region, first and whenever it is another node.
    pub(super) fn hear_of_writers(&mut self) {
        let own = self.replica.region().to_owned();
        let mut writers = BTreeMap::new();
        let is_writer = |peer: &PeerView| !peer.is_replica && !peer.node.is_empty() && peer.region != own;
        for peer in self.replica.peers().filter(is_writer) {
            writers.insert(peer.region, peer.node);
        }
        for (region, node) in &writers {
            if self.calling.writers.get(region) != Some(node) {
                let (region, node) = (region.clone(), node.clone());
                self.steps.push_back(Step::Store(store::Event::Writer { region, node }));
            }
        }
        self.calling.writers = writers;
    }
}

/// The calls of the replica, and those for snapshots, have smaller numbers.
const CALLS: u64 = 1 << 50;
