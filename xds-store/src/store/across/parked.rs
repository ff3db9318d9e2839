//! Commits that wait for other regions. Other commits proceed meanwhile, and these are judged again before they are
//! written (SG31).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::calls::Call;
use super::{RegionRequest, RegionResponse, Unanswered};
use crate::blocks::{Block, BlockKey, BlockState};
use crate::commit::{Judged, Needs, RefusalCode, Refused};
use crate::key::{NameDigest, RecordKey};
use crate::store::{Action, Committed, Store, Ticket, Waiting};
use crate::time::{self, SECOND};

/// What other regions said about a commit so far.
#[derive(Debug, Default)]
pub(in crate::store) struct Asked {
    grants: Vec<Grant>,
    /// Regions that did not answer whether their references hold.
    pub(in crate::store) silent: BTreeSet<String>,
    has_checked: bool,
    /// SG31: when the commit has to be written.
    commit_by: Option<i64>,
}

/// Targets that a region has blocked for a commit.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) region: String,
    pub(super) id: Bytes,
    pub(super) references: Vec<proto::Reference>,
}

/// What a commit waits for.
#[derive(Debug)]
pub(in crate::store) enum Wait {
    /// Whether these references of other regions hold (SG34).
    Checks(Vec<BlockKey>),
    /// The blocks of what it refers to in each region (SG30).
    Blocks(BTreeMap<String, Vec<proto::Reference>>),
}

/// A commit that waits for other regions.
#[derive(Debug)]
pub(super) struct Parked {
    waiting: Waiting,
    /// The calls that were not answered yet, with their regions.
    open: BTreeMap<Ticket, String>,
    until: i64,
    /// Whether it waits for blocks, and not for the answers to checks.
    wants_blocks: bool,
    refused: Option<Refused>,
    silent: BTreeSet<String>,
}

impl Waiting {
    /// What the commit waits for now that it was judged; `None`: it is decided.
    pub(in crate::store) fn waits_for(
        &self,
        judged: &Result<Judged, Refused>,
        needs: &Needs,
        now: i64,
    ) -> Option<Wait> {
        if judged.is_ok() {
            let mut wanted: BTreeMap<String, Vec<proto::Reference>> = BTreeMap::new();
            for (region, reference) in
                needs.added.iter().filter(|(_, added)| self.asked.grant(added).is_none())
            {
                wanted.entry(region.clone()).or_default().push(reference.clone());
            }
            return (!wanted.is_empty() && !self.asked.is_late(now)).then_some(Wait::Blocks(wanted));
        }
        // SG31: a young block is not asked about.
        let may_be_gone = |block: &Block| block.state() != BlockState::Tentative || block.until <= now;
        let keys = needs.blocked.iter().filter(|(_, block)| may_be_gone(block)).map(|(key, _)| *key);
        let keys: Vec<_> = keys.collect();
        (!keys.is_empty() && !self.asked.has_checked).then_some(Wait::Checks(keys))
    }
}

impl Asked {
    /// Whether a commit that needed other regions comes too late.
    pub(in crate::store) fn is_late(&self, now: i64) -> bool {
        self.commit_by.is_some_and(|by| by < now)
    }

    /// The block of a reference that the commit adds.
    fn grant(&self, added: &proto::Reference) -> Option<(&Grant, &proto::Reference)> {
        let same = |one: &&proto::Reference| (&one.source, &one.target) == (&added.source, &added.target);
        self.grants.iter().find_map(|grant| Some((grant, grant.references.iter().find(same)?)))
    }

    /// The blocks that the commit needs, as this side keeps them.
    pub(in crate::store) fn own_blocks(&self, needs: &Needs, node: &str) -> Vec<(BlockKey, Block)> {
        let block = |added: &proto::Reference| {
            let (Grant { region, id, .. }, reference) = self.grant(added)?;
            let (reference, id, target_region) = (reference.clone(), id.clone(), region.clone());
            let key = BlockKey::of(&reference, &id)?;
            let state = BlockState::Tentative.into();
            Some((key, Block { reference, id, target_region, node: node.to_owned(), state, until: 0 }))
        };
        needs.added.iter().filter_map(|(_, added)| block(added)).collect()
    }
}

impl Store {
    /// A commit waits for other regions.
    pub(in crate::store) fn park(
        &mut self,
        waiting: Waiting,
        wait: Wait,
        now: i64,
        actions: &mut Vec<Action>,
    ) {
        let (commit, mut open) = (waiting.ticket, BTreeMap::new());
        let (wants_blocks, until) = match &wait {
            Wait::Checks(_) => (false, now.saturating_add(CHECK_WAIT)),
            Wait::Blocks(_) => (true, now.saturating_add(BLOCK_WAIT)),
        };
        let mut parked = Parked {
            waiting,
            open: BTreeMap::new(),
            until,
            wants_blocks,
            refused: None,
            silent: BTreeSet::new(),
        };
        match wait {
            Wait::Checks(keys) => {
                let mut of: BTreeMap<(String, String), Vec<BlockKey>> = BTreeMap::new();
                for key in keys {
                    let Some(block) = self.index.blocks.get(&key) else { continue };
                    let node = (block.reference.source_region.clone(), block.node.clone());
                    of.entry(node).or_default().push(key);
                }
                for ((region, node), keys) in of {
                    for keys in keys.chunks(super::REFERENCES_LIMIT) {
                        let of = (region.clone(), node.clone());
                        let call = self.call_check(of, keys.to_vec(), Some(commit), actions);
                        open.insert(call, region.clone());
                    }
                }
            }
            Wait::Blocks(wanted) => {
                let commit_by = now.saturating_add(self.config.reference_block / COMMIT_WITHIN);
                parked.waiting.asked.commit_by.get_or_insert(commit_by);
                for (region, references) in wanted {
                    let id = self.block_id();
                    let grant =
                        Grant { region: region.clone(), id: id.clone(), references: references.clone() };
                    let node = self.head.node.clone();
                    let request =
                        RegionRequest::Block(proto::BlockReferencesRequest { id, references, node });
                    let call = Call::Block(commit, Box::new(grant), now);
                    let call = self.call((region.clone(), String::new()), call, request, actions);
                    open.insert(call, region);
                }
            }
        }
        parked.open = open;
        self.across.parked.insert(commit, parked);
    }

    /// An id that no other block has: it follows from the number of this run, which is random, and that of the call.
    pub(super) fn block_id(&self) -> Bytes {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.head.node.as_bytes()).update(&self.config.server.to_be_bytes());
        hasher.update(&self.across.last_call.to_be_bytes());
        Bytes::copy_from_slice(&hasher.finalize().as_bytes()[..ID_BYTES])
    }

    /// A region blocked the targets of a commit, or did not.
    pub(super) fn on_block(
        &mut self,
        (commit, grant, asked_at): (Ticket, Grant, i64),
        call: Ticket,
        answer: Result<RegionResponse, Unanswered>,
        actions: &mut Vec<Action>,
    ) {
        let parked = self.across.parked.get_mut(&commit);
        let parked = parked.and_then(|parked| parked.open.remove(&call).map(|_| parked));
        match (parked, answer) {
            (Some(parked), Ok(RegionResponse::Block(response))) => {
                let holds_for = response.holds_for.as_ref().map(time::length_from_proto);
                let by = holds_for.map(|length| asked_at.saturating_add(length / COMMIT_WITHIN));
                let asked = &mut parked.waiting.asked;
                asked.commit_by = asked.commit_by.into_iter().chain(by).min();
                asked.grants.push(grant);
            }
            // It came too late.
            (None, Ok(RegionResponse::Block(_))) => {
                self.call_release(grant.region, (grant.id, grant.references), actions);
            }
            (Some(parked), Err(Unanswered::Refused(refused))) => {
                let refused = refused.across(&grant.region, &parked.waiting.draft);
                parked.refused.get_or_insert(refused);
            }
            (Some(parked), _) => _ = parked.silent.insert(grant.region),
            (None, _) => {}
        }
    }

    /// A region said whether its references hold, or did not.
    pub(super) fn on_checked(&mut self, commit: Ticket, call: Ticket, is_silent: bool) {
        let Some(parked) = self.across.parked.get_mut(&commit) else { return };
        let region = parked.open.remove(&call).filter(|_| is_silent);
        parked.silent.extend(region);
    }

    pub(super) fn parked_due(&self) -> Option<i64> {
        self.across.parked.values().map(|parked| parked.until).min()
    }

    /// Goes on with commits that have their answers, or whose time is over.
    pub(in crate::store) fn end_parked(&mut self, now: i64, actions: &mut Vec<Action>) {
        let is_over = |parked: &Parked| parked.open.is_empty() || parked.until <= now;
        let over = self.across.parked.iter().filter(|(_, parked)| is_over(parked));
        let over: Vec<Ticket> = over.map(|(ticket, _)| *ticket).collect();
        for ticket in over.into_iter().rev() {
            let Some(mut parked) = self.across.parked.remove(&ticket) else { continue };
            parked.silent.extend(parked.open.values().cloned());
            self.forget_calls(parked.open.into_keys());
            let Parked { mut waiting, wants_blocks, refused, silent, .. } = parked;
            if !wants_blocks {
                waiting.asked.has_checked = true;
                waiting.asked.silent.extend(silent);
            } else if let Some(refused) = refused.or_else(|| no_answer(&silent)) {
                self.answer(waiting, Err(refused), actions);
                continue;
            }
            self.waiting.push_front(waiting);
        }
    }

    /// The store takes no commits at present.
    pub(in crate::store) fn refuse_parked(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        for parked in mem::take(&mut self.across.parked).into_values() {
            self.forget_calls(parked.open.into_keys());
            self.answer(parked.waiting, Err(refused.clone()), actions);
        }
    }

    /// Answers a commit. If it is refused, what other regions blocked for it is released (SG33), unless it may be
    /// durable all the same.
    pub(in crate::store) fn answer(
        &mut self,
        waiting: Waiting,
        answer: Result<Committed, Refused>,
        actions: &mut Vec<Action>,
    ) {
        if answer.as_ref().is_err_and(|refused| refused.code != RefusalCode::Unknown) {
            for Grant { region, id, references } in waiting.asked.grants {
                self.call_release(region, (id, references), actions);
            }
        }
        actions.push(Action::Answer(waiting.ticket, answer));
    }

    /// The references that commits may create which are not decided yet.
    pub(super) fn undecided(&self) -> BTreeSet<(RecordKey, NameDigest)> {
        let key = |key: &Option<proto::Key>| RecordKey::parse(key.as_ref()?).ok();
        let pair = |one: &proto::Reference| Some((key(&one.source)?, key(&one.target)?.name_digest()));
        self.undecided_grants().flat_map(|grant| &grant.references).filter_map(pair).collect()
    }

    /// What other regions blocked, or may have blocked, for such commits.
    pub(super) fn undecided_grants(&self) -> impl Iterator<Item = &Grant> {
        let parked = &self.across.parked;
        let asked = self.across.calls.values().filter_map(|call| match call {
            Call::Block(commit, grant, _) if parked.contains_key(commit) => Some(&**grant),
            _ => None,
        });
        let writing = self.writing.iter().flat_map(|writing| &writing.commits).map(|(waiting, _)| waiting);
        let commits = parked.values().map(|parked| &parked.waiting).chain(&self.waiting).chain(writing);
        asked.chain(commits.flat_map(|waiting| &waiting.asked.grants))
    }
}

/// SG30: a region that is silent refuses the commit.
fn no_answer(silent: &BTreeSet<String>) -> Option<Refused> {
    let first = silent.first()?;
    let message = format!("region {first} does not answer whether its resources may be referred to: retry");
    let referred = proto::Referred { silent_regions: silent.iter().cloned().collect(), ..Default::default() };
    let why = Some(proto::violation::Why::Referred(referred));
    let violation = proto::Violation { message: message.clone(), why, ..Default::default() };
    Some(Refused { code: RefusalCode::Unavailable, violations: vec![violation], message })
}

/// How long a commit waits for whether references hold (SG34), and for blocks.
const CHECK_WAIT: i64 = SECOND;
const BLOCK_WAIT: i64 = 10 * SECOND;
/// Of the time for which a block holds, the commit has this part (SG31).
const COMMIT_WITHIN: i64 = 5;
const ID_BYTES: usize = 16;
