//! What this store asks and tells other regions, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;

use super::parked::Grant;
use super::{REFERENCES_LIMIT, RegionRequest, RegionResponse, Request, Unanswered};
use crate::blocks::{Block, BlockKey, BlockState};
use crate::commit::ForeignOwner;
use crate::index::Pending;
use crate::store::{Action, Store, Ticket};
use crate::time::SECOND;

/// A call that was not answered yet.
#[derive(Debug)]
pub(super) enum Call {
    /// For a commit: whether its targets may be blocked, and when that was asked.
    Block(Ticket, Box<Grant>, i64),
    /// Whether references of other regions hold; for a commit, if it waits for that.
    Check(Vec<BlockKey>, Option<Ticket>),
    Confirm(Vec<BlockKey>),
    Release(Vec<BlockKey>),
    /// Whether owners of other regions exist (SG20).
    Owners(Vec<(ForeignOwner, proto::OwnerCheck)>),
    /// What refers to names of this region at a node, for these policies (SG32).
    List {
        node: String,
        policies: Bytes,
    },
    /// Nothing depends on the answer.
    Notice,
}

/// The times of blocks.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    by_time: BTreeSet<(i64, BlockKey)>,
    times: BTreeMap<BlockKey, i64>,
}

impl Schedule {
    /// The next time of a block; `None`: it has none any more.
    pub(super) fn set(&mut self, key: BlockKey, at: Option<i64>) {
        if let Some(before) = self.times.remove(&key) {
            self.by_time.remove(&(before, key));
        }
        if let Some(at) = at {
            self.times.insert(key, at);
            self.by_time.insert((at, key));
        }
    }

    fn first(&self) -> Option<i64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Those that are due, and their next time.
    fn take(&mut self, now: i64, again: i64) -> Vec<BlockKey> {
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now).take(REFERENCES_LIMIT);
        let due: Vec<_> = due.map(|(_, key)| *key).collect();
        due.iter().for_each(|key| self.set(*key, Some(again)));
        due
    }
}

impl Store {
    /// When the next call to another region is due, or the time of a commit that waits for one is over.
    pub(in crate::store) fn across_due(&self) -> Option<i64> {
        let calls = self.across.asks.first().into_iter().chain(self.across.tells.first());
        calls.chain(self.hearing_due()).map(|at| at.max(self.ends_again_at)).chain(self.parked_due()).min()
    }

    /// After a start: what is not confirmed is confirmed again (SG30), and what is gone is released again.
    pub(in crate::store) fn schedule_blocks(&mut self) {
        let all = Pending {
            blocks: self.index.blocks.iter().map(|(key, block)| (*key, Some(block.clone()))).collect(),
            own_blocks: self
                .index
                .own_blocks
                .iter()
                .map(|(key, block)| (*key, Some(block.clone())))
                .collect(),
            ..Pending::default()
        };
        self.note_blocks(&all);
    }

    /// SG32: a reference that exists never loses its block. Another node may be the writer of the target now, and may
    /// lack the block, so this node confirms the reference again.
    pub(in crate::store) fn on_writer(&mut self, region: String, node: String) {
        if self.across.writers.get(&region) == Some(&node) {
            return;
        }
        let of_region = |(_, block): &(&BlockKey, &Arc<Block>)| block.target_region == region;
        for (key, _) in self.index.own_blocks.iter().filter(of_region) {
            self.across.tells.set(*key, Some(self.head.time));
        }
        self.across.writers.insert(region, node);
    }

    /// Notes when to call other regions because of what a batch made durable.
    pub(in crate::store) fn note_blocks(&mut self, pending: &Pending) {
        for (key, block) in &pending.blocks {
            let is_deleting = self.index.deleting.of(key.target).next().is_some();
            let at = block.as_ref().and_then(|block| match block.state() {
                // SG35.
                _ if is_deleting => Some(self.head.time),
                // SG32.
                BlockState::Tentative => Some(block.until),
                BlockState::Confirmed | BlockState::Ended => None,
            });
            self.across.asks.set(*key, at);
        }
        for (key, block) in &pending.own_blocks {
            let is_told = block.as_ref().is_none_or(|block| block.state() == BlockState::Confirmed);
            self.across.tells.set(*key, (!is_told).then_some(self.head.time));
        }
        // SG35: what is being deleted since now.
        for name in pending.deleting.targets() {
            for (key, _) in self.index.blocks.of(&pending.blocks, name) {
                self.across.asks.set(key, Some(self.head.time));
            }
        }
    }

    /// Calls other regions, as far as that is due.
    pub(in crate::store) fn call_regions(&mut self, now: i64, actions: &mut Vec<Action>) {
        if self.read_only.is_some() || self.is_closed() || now < self.ends_again_at {
            return;
        }
        self.call_about_owners(actions);
        self.call_unheard(now, actions);
        let again = now.saturating_add(AGAIN);
        let mut asked: BTreeMap<(String, String), Vec<BlockKey>> = BTreeMap::new();
        for key in self.across.asks.take(now, again) {
            let Some(block) = self.index.blocks.get(&key) else {
                self.across.asks.set(key, None);
                continue;
            };
            let of = (block.reference.source_region.clone(), block.node.clone());
            asked.entry(of).or_default().push(key);
        }
        for (of, keys) in asked {
            self.call_check(of, keys, None, actions);
        }
        let mut told: BTreeMap<(String, Bytes, BlockState), Vec<BlockKey>> = BTreeMap::new();
        for key in self.across.tells.take(now, again) {
            let Some(block) = self.index.own_blocks.get(&key) else {
                self.across.tells.set(key, None);
                continue;
            };
            told.entry((block.target_region.clone(), block.id.clone(), block.state())).or_default().push(key);
        }
        for ((region, id, state), keys) in told {
            let blocks = keys.iter().filter_map(|key| self.index.own_blocks.get(key));
            let references = blocks.map(|block| block.reference.clone()).collect();
            let node = self.head.node.clone();
            let (call, request) = match state {
                BlockState::Ended => {
                    let request = proto::ReleaseReferencesRequest { id, references, node };
                    (Call::Release(keys), RegionRequest::Release(request))
                }
                BlockState::Tentative | BlockState::Confirmed => {
                    let request = proto::ConfirmReferencesRequest { id, references, node };
                    (Call::Confirm(keys), RegionRequest::Confirm(request))
                }
            };
            self.call((region, String::new()), call, request, actions);
        }
    }

    /// Asks a node of a region whether its references hold.
    pub(super) fn call_check(
        &mut self,
        of: (String, String),
        keys: Vec<BlockKey>,
        commit: Option<Ticket>,
        actions: &mut Vec<Action>,
    ) -> Ticket {
        let blocks = keys.iter().filter_map(|key| self.index.blocks.get(key));
        let (references, ids) = blocks.map(|block| (block.reference.clone(), block.id.clone())).unzip();
        let node = self.head.node.clone();
        let policies = self.index.policies().digest();
        let request = proto::CheckReferencesRequest { references, ids, owners: Vec::new(), node, policies };
        self.call(of, Call::Check(keys, commit), RegionRequest::Check(request), actions)
    }

    pub(super) fn call(
        &mut self,
        (region, node): (String, String),
        call: Call,
        request: RegionRequest,
        actions: &mut Vec<Action>,
    ) -> Ticket {
        self.across.last_call += 1;
        let ticket = Ticket(self.across.last_call);
        self.across.calls.insert(ticket, call);
        actions.push(Action::CallRegion { call: ticket, region, node, request });
        ticket
    }

    /// Another region answered, or did not.
    pub(in crate::store) fn on_region_answered(
        &mut self,
        call: Ticket,
        answer: Result<RegionResponse, Unanswered>,
        actions: &mut Vec<Action>,
    ) {
        let requests = &mut self.across.requests;
        match (self.across.calls.remove(&call), answer) {
            (Some(Call::Block(commit, grant, at)), answer) => {
                self.on_block((commit, *grant, at), call, answer, actions);
            }
            (Some(Call::Check(keys, commit)), answer) => {
                let is_silent = !self.on_check(&keys, answer);
                commit.into_iter().for_each(|commit| self.on_checked(commit, call, is_silent));
            }
            (Some(Call::Owners(asked)), answer) => self.on_owners(asked, answer),
            (Some(Call::List { node, policies }), answer) => {
                self.on_listed((node, policies), answer, actions);
            }
            (Some(Call::Confirm(keys)), Ok(RegionResponse::Confirm(_))) => {
                for key in &keys {
                    let block = self.index.own_blocks.get(key);
                    if block.is_some_and(|block| block.state() == BlockState::Confirmed) {
                        self.across.tells.set(*key, None);
                    }
                }
                requests.extend(keys.into_iter().map(Request::Confirmed));
            }
            (Some(Call::Release(keys)), Ok(RegionResponse::Release)) => {
                requests.extend(keys.into_iter().map(Request::Released));
            }
            // What has to be told is told again.
            (Some(Call::Confirm(_) | Call::Release(_) | Call::Notice) | None, _) => {}
        }
    }

    /// Takes what a region says of its references. Whether it said something.
    fn on_check(&mut self, keys: &[BlockKey], answer: Result<RegionResponse, Unanswered>) -> bool {
        let Ok(RegionResponse::Check(response)) = answer else { return false };
        if response.references.len() != keys.len() {
            return false;
        }
        for (key, answer) in keys.iter().zip(response.references()) {
            match answer {
                Answer::Gone => self.across.requests.push_back(Request::Gone(*key)),
                Answer::Holds => {
                    let is_tentative = |block: &Block| block.state() == BlockState::Tentative;
                    if self.index.blocks.get(key).is_some_and(|block| is_tentative(block)) {
                        self.across.requests.push_back(Request::Holds(*key));
                    }
                }
                // It stays, and the writer of its region is asked next.
                Answer::Unknown => {
                    if self.index.blocks.get(key).is_some_and(|block| !block.node.is_empty()) {
                        self.across.requests.push_back(Request::OfWriter(*key));
                    }
                }
                // It stays, and its region is asked again.
                Answer::Pending | Answer::Unspecified => {}
            }
        }
        true
    }

    /// Releases what a region blocked for a commit that comes to nothing (SG33). If that is lost, the region asks.
    pub(super) fn call_release(
        &mut self,
        region: String,
        (id, references): (Bytes, Vec<proto::Reference>),
        actions: &mut Vec<Action>,
    ) {
        let node = self.head.node.clone();
        let request = proto::ReleaseReferencesRequest { id, references, node };
        self.call((region, String::new()), Call::Notice, RegionRequest::Release(request), actions);
    }

    /// Nothing waits for the answers of a commit any more.
    pub(super) fn forget_calls(&mut self, calls: impl IntoIterator<Item = Ticket>) {
        for call in calls {
            if let Some(Call::Check(_, commit)) = self.across.calls.get_mut(&call) {
                _ = mem::take(commit);
            }
        }
    }
}

/// When a region is asked or told again.
pub(super) const AGAIN: i64 = 5 * SECOND;
