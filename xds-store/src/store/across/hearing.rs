//! A node that became the writer of its region (SG22) lacks the blocks that only the one before had. It asks each other
//! node for its references (SG32). Until all of them have answered, or 5 minutes are over, it deletes no name of its
//! region.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::calls::Call;
use super::{RegionRequest, RegionResponse, Request, Unanswered, block_key};
use crate::blocks::{Block, BlockKey, BlockState};
use crate::commit::{Refused, TargetState};
use crate::key::RecordKey;
use crate::store::{Action, Store, Writing};
use crate::stored::Stored;
use crate::time::SECOND;

/// What a node that became the writer of its region has heard.
#[derive(Debug, Default)]
pub(in crate::store) struct Hearing {
    /// The nodes whose references are all durable here.
    heard: BTreeSet<String>,
    /// The others, with their regions, if these are known. None, if the node does not have to hear of any.
    unheard: BTreeMap<String, String>,
    /// Those of them whose answer is under way.
    asked: BTreeSet<String>,
    ask_at: i64,
}

impl Hearing {
    pub(in crate::store) fn unheard(&self) -> &BTreeMap<String, String> {
        &self.unheard
    }

    /// The batch with the answer of a node is durable, or it failed, and the node is asked again.
    pub(super) fn note(&mut self, request: &Request, is_durable: bool) {
        let Request::Listed { node, is_last, .. } = request else { return };
        if *is_last || !is_durable {
            self.asked.remove(node);
        }
        if *is_last && is_durable {
            self.heard.insert(node.clone());
        }
    }
}

impl Store {
    /// Notes which nodes the next batch has to wait for. If there is none any more, the batch says so.
    pub(in crate::store) fn find_unheard(&mut self, writing: &mut Writing) {
        // A node that joins does not know the others yet.
        if self.head.hears_until == 0 || self.head.is_joining || self.is_closed() {
            return;
        }
        let hearing = &self.across.hearing;
        // It may be gone for good, and what lacks its block is confirmed later.
        let is_over = !self.replicates() || self.head.hears_until <= self.running.length();
        let known = self.known().map(|(node, _)| (node, self.region_of(node)));
        let is_unheard = |(node, region): &(&str, &str)| {
            !hearing.heard.contains(*node) && !self.head.is_node(node) && *region != self.head.region
        };
        let known = known.filter(|node| !is_over && is_unheard(node));
        let unheard: BTreeMap<_, _> =
            known.map(|(node, region)| (node.to_owned(), region.to_owned())).collect();
        if unheard.is_empty() {
            writing.head.hears_until = 0;
        }
        self.across.hearing.unheard = unheard;
    }

    /// When to ask the next time.
    pub(super) fn hearing_due(&self) -> Option<i64> {
        (self.head.hears_until != 0).then(|| self.across.hearing.ask_at.max(self.head.time))
    }

    pub(super) fn call_unheard(&mut self, now: i64, actions: &mut Vec<Action>) {
        let hearing = &mut self.across.hearing;
        if self.head.hears_until == 0 || now < hearing.ask_at {
            return;
        }
        hearing.ask_at = now.saturating_add(ASK_EVERY);
        let next: Vec<_> =
            hearing.unheard.keys().filter(|node| !hearing.asked.contains(*node)).cloned().collect();
        for node in next {
            self.across.hearing.asked.insert(node.clone());
            let policies = self.index.policies().digest();
            self.call_list(node, policies, None, actions);
        }
    }

    fn call_list(
        &mut self,
        node: String,
        policies: Bytes,
        after: Option<proto::BlockedReference>,
        actions: &mut Vec<Action>,
    ) {
        let (region, caller) = (self.head.region.clone(), self.head.node.clone());
        let request = proto::ListReferencesRequest { region, node: caller, after };
        let request = RegionRequest::List(Box::new(request));
        let region = self.across.hearing.unheard.get(&node).cloned().unwrap_or_default();
        self.call((region, node.clone()), Call::List { node, policies }, request, actions);
    }

    /// A node said what refers to names of this region, or nothing.
    pub(super) fn on_listed(
        &mut self,
        (node, policies): (String, Bytes),
        answer: Result<RegionResponse, Unanswered>,
        actions: &mut Vec<Action>,
    ) {
        let blocks = match &answer {
            // Both have to mean the same names, and the node has to have looked at all its records for them (SG34).
            Ok(RegionResponse::List(response)) if response.policies == policies => {
                self.listed_blocks(&node, &response.references)
            }
            _ => None,
        };
        let (Some(blocks), Ok(RegionResponse::List(response))) = (blocks, answer) else {
            self.across.hearing.asked.remove(&node);
            return;
        };
        let is_last = !response.more;
        if let Some(last) = response.references.into_iter().next_back().filter(|_| !is_last) {
            self.call_list(node.clone(), policies, Some(last), actions);
        }
        self.across.requests.push_back(Request::Listed { node, blocks, is_last });
    }

    /// `None` if one of them cannot be read.
    fn listed_blocks(
        &self,
        node: &str,
        references: &[proto::BlockedReference],
    ) -> Option<Vec<(BlockKey, Arc<Block>)>> {
        let now = self.wall.time();
        let block = |listed: &proto::BlockedReference| {
            let reference = listed.reference.as_ref()?;
            let key = BlockKey::of(reference, &listed.id)?;
            // It may have been released after the answer was made, so each is asked about.
            let until = match reference.is_tentative {
                true => now.saturating_add(self.config.reference_block),
                false => now,
            };
            Some((key, self.new_block(reference, &listed.id, (node, BlockState::Tentative, until))))
        };
        references.iter().map(block).collect()
    }

    /// Adds a block that another node listed, unless it is there.
    pub(super) fn add_listed(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        (key, block): (&BlockKey, &Arc<Block>),
        now: i64,
    ) {
        let target = block.reference.target.as_ref().and_then(|target| RecordKey::parse(target).ok());
        let judging = self.judging(writing, stored, now);
        let is_missing = target.is_none_or(|target| judging.target_state(&target) == TargetState::Missing);
        if self.block_of(writing, key).is_none() && !is_missing {
            writing.pending.blocks.insert(*key, Some(Arc::clone(block)));
        }
    }

    /// The references of this node to names of a region, by what is durable here.
    pub(super) fn list_references(
        &self,
        request: &proto::ListReferencesRequest,
    ) -> Result<proto::ListReferencesResponse, Refused> {
        let mut references = Vec::new();
        let after = match &request.after {
            Some(after) => {
                Bound::Excluded(block_key(&after.reference.clone().unwrap_or_default(), &after.id)?)
            }
            // What is decided later was listed before, or its region was asked before it listed anything.
            None => {
                let grants = self.undecided_grants().filter(|grant| grant.region == request.region);
                references.extend(
                    grants.flat_map(|grant| grant.references.iter().map(|one| listed(&grant.id, one, true))),
                );
                Bound::Unbounded
            }
        };
        let behind = self.index.own_blocks.behind(after);
        let mut of_region = behind
            .map(|(_, block)| block)
            .filter(|block| block.target_region == request.region && block.state() != BlockState::Ended);
        let of_page = of_region.by_ref().take(PAGE);
        references.extend(of_page.map(|block| listed(&block.id, &block.reference, false)));
        let more = of_region.next().is_some();
        Ok(proto::ListReferencesResponse { references, more, policies: self.policies_of_list() })
    }

    /// For which policies the node has the blocks of all its references; none, if that is not so yet (SG34).
    fn policies_of_list(&self) -> Bytes {
        match self.has_blocks_of_all() {
            true => self.index.policies().digest(),
            false => Bytes::new(),
        }
    }
}

fn listed(id: &Bytes, reference: &proto::Reference, is_tentative: bool) -> proto::BlockedReference {
    let reference = proto::Reference { is_tentative, ..reference.clone() };
    proto::BlockedReference { id: id.clone(), reference: Some(reference) }
}

/// How often a node is asked that did not answer.
const ASK_EVERY: i64 = SECOND;
/// The references of an answer, beside those that are not decided.
const PAGE: usize = 1_000;
