//! References between regions. A node asks the region of a target to block it before a commit refers to it, and tells
//! that region what became of the commit (SG30, SG33). The region of the target asks whether references hold
//! (SG32, SG34, SG35). That of an owner says whether it exists (SG20). A node that became the writer of its region asks
//! all others what refers to its names (SG32).
//!
//! | event | what follows |
//! | --- | --- |
//! | [`Event::Region`](super::Event::Region) | blocks change with the next batch, which answers |
//! | [`Event::Writer`](super::Event::Writer) | all references to names of that region are confirmed once more |
//! | [`Event::RegionAnswered`](super::Event::RegionAnswered) | its commit is judged again, or a block changes |
//! | time | commits that waited too long are refused; what is due is asked and told again |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;

use super::{Action, Store, Ticket, Writing};
use crate::blocks::{Block, BlockChanges, BlockKey, BlockSide, BlockState};
use crate::checked;
use crate::commit::{Limit, RefusalCode, Refused, TargetState};
use crate::index::{Pending, Records};
use crate::key::RecordKey;
use crate::stored::Stored;
use crate::time;
use calls::{Call, Schedule};
use hearing::Hearing;
use older::Older;
use owners::ForeignOwners;
use parked::Parked;
pub(super) use parked::{Asked, Wait};

mod calls;
mod hearing;
mod older;
mod owners;
mod parked;

/// A call between nodes of two regions.
#[derive(Debug, Clone, PartialEq)]
pub enum RegionRequest {
    /// Commits of the caller are about to refer to these targets (SG30).
    Block(proto::BlockReferencesRequest),
    /// The commit is durable.
    Confirm(proto::ConfirmReferencesRequest),
    /// The commit came to nothing, or the references are gone (SG33).
    Release(proto::ReleaseReferencesRequest),
    /// Whether references of the callee hold (SG32, SG34, SG35).
    Check(proto::CheckReferencesRequest),
    /// What refers to names of the caller's region (SG32).
    List(Box<proto::ListReferencesRequest>),
}

/// The answer to a [`RegionRequest`], of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum RegionResponse {
    /// The targets are blocked.
    Block(proto::BlockReferencesResponse),
    /// The references hold until they are released.
    Confirm(proto::ConfirmReferencesResponse),
    /// The references hold nothing any more.
    Release,
    /// One answer for each reference.
    Check(proto::CheckReferencesResponse),
    /// A part of the references.
    List(proto::ListReferencesResponse),
}

/// Why a region did not do what it was asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Unanswered {
    /// It refuses.
    Refused(Refused),
    /// It cannot be reached, or it did not answer in time.
    Silent,
}

/// What a change of blocks answers once it is durable.
pub(super) type Answered = Option<(Ticket, Result<RegionResponse, Refused>)>;

/// A change of blocks that waits for the next batch. Repeating it changes nothing.
#[derive(Debug)]
pub(super) enum Request {
    Region(Ticket, RegionRequest),
    /// The region of the source says that a reference is gone, or that it holds.
    Gone(BlockKey),
    Holds(BlockKey),
    /// The node that made a block cannot say whether it is needed.
    OfWriter(BlockKey),
    /// The region of the target knows that a reference holds, or that it is gone.
    Confirmed(BlockKey),
    Released(BlockKey),
    /// References of a node to names of this region; whether these are the last ones.
    Listed {
        node: String,
        blocks: Vec<(BlockKey, Arc<Block>)>,
        is_last: bool,
    },
}

/// What a store has to do with other regions, beside what its engine has.
#[derive(Debug, Default)]
pub(super) struct Across {
    requests: VecDeque<Request>,
    /// The last call of this run.
    last_call: u64,
    calls: BTreeMap<Ticket, Call>,
    parked: BTreeMap<Ticket, Parked>,
    /// When regions are asked whether their references hold.
    asks: Schedule,
    /// When this node tells other regions whether its references hold or are gone.
    tells: Schedule,
    pub(super) owners: ForeignOwners,
    pub(super) older: Older,
    pub(super) hearing: Hearing,
    /// The writer of each region to which this node has confirmed its references, or will do so next.
    writers: BTreeMap<String, String>,
}

impl Across {
    /// Whether nobody waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.parked.is_empty() && self.requests.is_empty()
    }
}

impl Store {
    /// A node of another region calls.
    pub(super) fn on_region(&mut self, ticket: Ticket, request: RegionRequest, actions: &mut Vec<Action>) {
        let answer = match request {
            RegionRequest::Check(_) | RegionRequest::List(_) if self.is_closed() => Err(closed()),
            RegionRequest::Check(request) => self.check_references(&request).map(RegionResponse::Check),
            RegionRequest::List(request) => self.list_references(&request).map(RegionResponse::List),
            request => return self.across.requests.push_back(Request::Region(ticket, request)),
        };
        actions.push(Action::AnswerRegion(ticket, answer));
    }

    /// Adds changes of blocks to the batch, before its commits: they are judged on them.
    pub(super) fn add_blocks(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        for request in mem::take(&mut self.across.requests) {
            let answer = match &request {
                Request::Region(ticket, request) => {
                    Some((*ticket, self.answer_region(request, writing, stored, now)))
                }
                Request::Gone(key) => self.change_block(writing, key, |_| None),
                Request::Holds(key) => {
                    self.change_block(writing, key, |block| Some(block.in_state(BlockState::Confirmed)))
                }
                Request::OfWriter(key) => {
                    let of_writer = |block: &Block| Block { node: String::new(), ..block.clone() };
                    self.change_block(writing, key, |block| Some(of_writer(block)))
                }
                Request::Confirmed(key) => {
                    let pending = writing.pending.own_blocks.get(key).cloned();
                    let block = pending.unwrap_or_else(|| self.index.own_blocks.get(key).cloned());
                    if let Some(block) = block.filter(|block| block.state() == BlockState::Tentative) {
                        let block = Arc::new(block.in_state(BlockState::Confirmed));
                        writing.pending.own_blocks.insert(*key, Some(block));
                    }
                    None
                }
                Request::Released(key) => {
                    if self.index.own_blocks.get(key).is_some_and(|block| block.state() == BlockState::Ended)
                    {
                        writing.pending.own_blocks.insert(*key, None);
                    }
                    None
                }
                Request::Listed { blocks, .. } => {
                    for (key, block) in blocks {
                        self.add_listed(writing, stored, (key, block), now);
                    }
                    None
                }
            };
            writing.requests.push((request, answer));
        }
    }

    fn block_of<'a>(&'a self, writing: &'a Writing, key: &BlockKey) -> Option<&'a Arc<Block>> {
        match writing.pending.blocks.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.index.blocks.get(key),
        }
    }

    fn change_block(
        &self,
        writing: &mut Writing,
        key: &BlockKey,
        change: impl FnOnce(&Block) -> Option<Block>,
    ) -> Answered {
        if let Some(block) = self.block_of(writing, key) {
            let after = change(block).map(Arc::new);
            if after.as_ref() != Some(block) {
                writing.pending.blocks.insert(*key, after);
            }
        }
        None
    }

    fn answer_region(
        &self,
        request: &RegionRequest,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) -> Result<RegionResponse, Refused> {
        Ok(match request {
            RegionRequest::Block(request) => {
                check_size(request.references.len())?;
                let judging = self.judging(writing, stored, now);
                judging.check_blocks(&request.references)?;
                let until = now.saturating_add(self.config.reference_block);
                for reference in &request.references {
                    let key = block_key(reference, &request.id)?;
                    if self.block_of(writing, &key).is_none() {
                        let state = BlockState::Tentative;
                        let block = self.new_block(reference, &request.id, (&request.node, state, until));
                        writing.pending.blocks.insert(key, Some(block));
                    }
                }
                let holds_for = Some(time::length_to_proto(self.config.reference_block));
                RegionResponse::Block(proto::BlockReferencesResponse { holds_for })
            }
            RegionRequest::Confirm(request) => {
                check_size(request.references.len())?;
                let mut missing = Vec::new();
                for reference in &request.references {
                    let key = block_key(reference, &request.id)?;
                    let target = reference.target.as_ref().and_then(|target| RecordKey::parse(target).ok());
                    let judging = self.judging(writing, stored, now);
                    if target.is_none_or(|target| judging.target_state(&target) == TargetState::Missing) {
                        missing.extend(reference.target.clone());
                        continue;
                    }
                    // Either this store lost the block of what exists, or a release came first, and nobody will tell
                    // that again. The source knows, so it is asked.
                    let (state, until) = match self.block_of(writing, &key).map(|block| block.state()) {
                        None => (BlockState::Tentative, now),
                        Some(BlockState::Tentative) => (BlockState::Confirmed, 0),
                        Some(BlockState::Confirmed | BlockState::Ended) => continue,
                    };
                    let block = self.new_block(reference, &request.id, (&request.node, state, until));
                    writing.pending.blocks.insert(key, Some(block));
                }
                RegionResponse::Confirm(proto::ConfirmReferencesResponse { missing })
            }
            RegionRequest::Release(request) => {
                check_size(request.references.len())?;
                if request.references.is_empty() {
                    let message = "references: name those of the block that are released";
                    return Err(Refused::whole(RefusalCode::InvalidArgument, message));
                }
                for reference in &request.references {
                    let key = block_key(reference, &request.id)?;
                    self.change_block(writing, &key, |_| None);
                }
                RegionResponse::Release
            }
            RegionRequest::Check(request) => RegionResponse::Check(self.check_references(request)?),
            RegionRequest::List(request) => RegionResponse::List(self.list_references(request)?),
        })
    }

    fn new_block(
        &self,
        reference: &proto::Reference,
        id: &Bytes,
        (node, state, until): (&str, BlockState, i64),
    ) -> Arc<Block> {
        let reference = proto::Reference { is_tentative: false, is_missing: false, ..reference.clone() };
        let (id, target_region) = (id.clone(), self.head.region.clone());
        Arc::new(Block { reference, id, target_region, node: node.to_owned(), state: state.into(), until })
    }

    /// Whether references of this region hold, by what is durable here (SG32).
    fn check_references(
        &self,
        request: &proto::CheckReferencesRequest,
    ) -> Result<proto::CheckReferencesResponse, Refused> {
        check_size(request.references.len() + request.owners.len())?;
        let undecided = self.undecided();
        let answer = |(number, reference): (usize, &proto::Reference)| {
            let key = |key: &Option<proto::Key>| RecordKey::parse(key.as_ref()?).ok();
            let (Some(source), Some(target)) = (key(&reference.source), key(&reference.target)) else {
                return Answer::Unknown;
            };
            let nothing = Pending::default();
            let records = Records { index: &self.index, batch: &nothing };
            let forms = self.forms(records).all(&target).map(|form| form.name_digest());
            let mut holds = forms.flat_map(|name| records.index.referrers.acts(name, &source));
            let answer = match holds.any(|acts| acts.needs_target()) {
                true => {
                    let is_same = request.policies == self.index.policies().digest();
                    let caller = Some(self.region_of(&request.node));
                    let caller = caller.filter(|region| is_same && !region.is_empty());
                    self.answer_block(reference, &target, request.ids.get(number), caller)
                }
                false => Answer::Gone,
            };
            let is_undecided = || undecided.contains(&(source, target.name_digest()));
            if answer == Answer::Gone && is_undecided() { Answer::Pending } else { answer }
        };
        let references = request.references.iter().enumerate();
        let references = references.map(|reference| answer(reference).into()).collect();
        let owners = request.owners.iter().map(|check| self.answer_owner(check).into()).collect();
        Ok(proto::CheckReferencesResponse { references, owners })
    }

    /// Whether a reference that exists needs the block with this id. Without an id, it may be each block of it.
    ///
    /// Without the block, a node that is not the writer of its region any more does not know: the writer may have the
    /// record by another block, or makes one when it has looked at all its records (SG34). `caller` is the region that
    /// asks, if it has the same policies.
    fn answer_block(
        &self,
        reference: &proto::Reference,
        target: &RecordKey,
        id: Option<&Bytes>,
        caller: Option<&str>,
    ) -> Answer {
        let own = &self.index.own_blocks;
        let Some(key) = id.and_then(|id| BlockKey::of(reference, id)) else { return Answer::Holds };
        let nothing = BlockChanges::new();
        let blocks = own.of_source(&nothing, key.target, key.source);
        let present: BTreeMap<_, _> = blocks.map(|(key, block)| (key, block.state())).collect();
        if present.get(&key).is_some_and(|state| *state != BlockState::Ended) {
            return Answer::Holds;
        }
        // The record lost this reference meanwhile, and has it again by another block.
        let other = present.into_values().filter(|state| *state != BlockState::Ended).max();
        match other {
            Some(BlockState::Confirmed) => Answer::Gone,
            Some(_) => Answer::Pending,
            None if self.head.is_replica => Answer::Unknown,
            None if !self.has_blocks_of_all() => Answer::Pending,
            None => match caller {
                // The region that asks does not own the target any more, and both know that.
                Some(caller) if self.index.policies().owner_of(target) != Some(caller) => Answer::Gone,
                _ => Answer::Holds,
            },
        }
    }

    /// Adds what the batch made of references between regions, in whatever way.
    pub(super) fn write_blocks(&self, writing: &mut Writing) {
        self.end_blocks(writing);
        let pending = &writing.pending;
        let sides = [(BlockSide::Target, &pending.blocks), (BlockSide::Source, &pending.own_blocks)];
        let mut writes = Vec::new();
        for (side, changes) in sides {
            for (key, block) in changes {
                let at = key.stored(side);
                let value = block.as_ref().map(|block| checked::encode(&at, &**block));
                writes.push((at, value));
            }
        }
        for (at, value) in writes {
            match value {
                Some(value) => writing.write(at, value),
                None => writing.delete(at),
            }
        }
    }

    /// SG33: a record that drops a reference releases it.
    fn end_blocks(&self, writing: &mut Writing) {
        let mut ended = BTreeSet::new();
        for (target, source) in writing.pending.referrers.ended() {
            let source = BlockKey::source(&self.head.region, source);
            let blocks = self.index.own_blocks.of_source(&writing.pending.own_blocks, target, source);
            let blocks = blocks.filter(|(_, block)| block.state() != BlockState::Ended);
            ended.extend(blocks.map(|(key, _)| key));
        }
        for key in ended {
            let pending = writing.pending.own_blocks.get(&key).and_then(Option::as_ref);
            let Some(block) = pending.or_else(|| self.index.own_blocks.get(&key)) else { continue };
            let block = Arc::new(block.in_state(BlockState::Ended));
            writing.pending.own_blocks.insert(key, Some(block));
        }
    }

    /// Answers changes of blocks, which are durable, or were refused.
    pub(super) fn answer_requests(
        &mut self,
        requests: Vec<(Request, Answered)>,
        refused: Option<&Refused>,
        actions: &mut Vec<Action>,
    ) {
        for (request, _) in &requests {
            self.across.hearing.note(request, refused.is_none());
        }
        for (ticket, answer) in requests.into_iter().filter_map(|(_, answer)| answer) {
            let answer = refused.map_or(answer, |refused| Err(refused.clone()));
            actions.push(Action::AnswerRegion(ticket, answer));
        }
    }

    /// The store takes no batch at present.
    pub(super) fn refuse_requests(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        for request in mem::take(&mut self.across.requests) {
            self.across.hearing.note(&request, false);
            if let Request::Region(ticket, _) = request {
                actions.push(Action::AnswerRegion(ticket, Err(refused.clone())));
            }
        }
    }

    /// The batch was not applied: what does not depend on an answer comes again.
    pub(super) fn request_again(&mut self, requests: Vec<(Request, Answered)>) {
        self.across.requests.extend(requests.into_iter().map(|(request, _)| request));
    }
}

fn block_key(reference: &proto::Reference, id: &[u8]) -> Result<BlockKey, Refused> {
    let malformed =
        || Refused::whole(RefusalCode::InvalidArgument, "a reference or the id of a block is malformed");
    BlockKey::of(reference, id).ok_or_else(malformed)
}

fn check_size(references: usize) -> Result<(), Refused> {
    let limit = Limit { name: "references of a call", option: "", value: REFERENCES_LIMIT };
    if references > REFERENCES_LIMIT { Err(Refused::limit(&limit, references)) } else { Ok(()) }
}

/// The records are not those that this node shall serve (SR20).
fn closed() -> Refused {
    Refused::whole(RefusalCode::Unavailable, "this node takes a snapshot from a peer")
}

/// References of one call.
const REFERENCES_LIMIT: usize = 10_000;
