//! What a merge of two states of one key lost, for the journal of a node (SR44).
//!
//! A state does not say which states its writer saw. So only this is known to be lost:
//!
//! | kind | the states | the loser |
//! | --- | --- | --- |
//! | CONTENT | live, with different contents of one generation: each writer saw the one before | the greater digest |
//! | CREATION | the same of generation 1 | the greater digest |
//! | CREATION | different incarnations, of which the lower one is live | the lower incarnation |
//! | DELETION | one is deleted or being deleted, and lacks a content or an owner of the live one | the live one |
//!
//! Besides, a store finds variants that are withheld (OVERLAP, SR47), and deleted records that others refer
//! to (DANGLING, SR48). A snapshot that replaces the records drops changes (DROPPED, SR21). A change of a node outside
//! of the region that owns the name counts, and is in the journal, too (REGION, SG28). So is a policy whose names were
//! lost with the region that gave them (SG27).
//!
//! A later generation supersedes an earlier one, and a deletion supersedes what it has: then nothing
//! counts as lost. So if two nodes wrote different numbers of generations apart from each other, only
//! contents that meet one of the same number are found.
//!
//! A live record of a lower incarnation may also be one whose deletion has not arrived yet. To keep
//! such records out of the journal, callers merge the deletions of a round first, and do not ask about
//! states of a snapshot whose clock covers the present state.

use std::fmt;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::record::{RecordRevision, RecordState};
use crate::time;

/// A content that a merge lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// Identifies it. A journal has one entry for each id.
    pub id: ConflictId,
    /// For the journal, which sets the time.
    pub entry: proto::Conflict,
    /// The state with the content.
    pub loser: RecordState,
}

/// Equal whenever the same content is found to be lost: at another node, in another order, and when a
/// state arrives again. The states do not say whether they arrive for the first time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConflictId(u128);

/// What the merge of two states lost; `None` if nothing. The order of the two does not matter.
#[must_use]
pub fn lost(present: &RecordState, incoming: &RecordState, merged: &RecordState) -> Option<Conflict> {
    let (winner, loser) = if wins(present, merged) { (present, incoming) } else { (incoming, present) };
    if winner.incarnation != loser.incarnation {
        let is_lost = is_live(loser) && !ended_before(loser, winner) && !has_content_of(winner, loser);
        return is_lost.then(|| Conflict::creation(loser, winner, merged));
    }
    match (is_live(present), is_live(incoming)) {
        (true, true) => are_two_contents(winner, loser).then(|| Conflict::content(loser, winner, merged)),
        (true, false) => is_unseen(present, incoming).then(|| Conflict::deletion(present, merged)),
        (false, true) => is_unseen(incoming, present).then(|| Conflict::deletion(incoming, merged)),
        // Both writers wanted the end, and the record has no content that could be kept.
        (false, false) => None,
    }
}

impl Conflict {
    /// The id is that of the incarnation: its generations are lost together, and arrive one by one.
    fn creation(loser: &RecordState, winner: &RecordState, merged: &RecordState) -> Self {
        let id = ConflictId::of(&RecordState { generation: 0, digest: <_>::default(), ..identity(loser) });
        let detail = "the key was created twice".to_owned();
        Self::new(proto::conflict::Kind::Creation, id, (loser, merged), &winner.origin, detail)
    }

    fn content(loser: &RecordState, winner: &RecordState, merged: &RecordState) -> Self {
        let (kind, detail) = match loser.generation {
            0 | 1 => (proto::conflict::Kind::Creation, "the key was created twice".to_owned()),
            number => (proto::conflict::Kind::Content, format!("generation {number} was written twice")),
        };
        Self::new(kind, ConflictId::of(&identity(loser)), (loser, merged), &winner.origin, detail)
    }

    /// The state of a deletion does not say which node deleted.
    fn deletion(loser: &RecordState, merged: &RecordState) -> Self {
        let detail = format!("generation {} was written or joined beside a deletion", loser.generation);
        let id = ConflictId::of(&identity(loser));
        Self::new(proto::conflict::Kind::Deletion, id, (loser, merged), "", detail)
    }

    fn new(
        kind: proto::conflict::Kind,
        id: ConflictId,
        (loser, merged): (&RecordState, &RecordState),
        winner_origin: &str,
        detail: String,
    ) -> Self {
        let entry = proto::Conflict {
            kind: kind.into(),
            key: loser.key.clone(),
            at: None,
            winner_revision: RecordRevision::of(merged).to_string(),
            loser_revision: RecordRevision::of(loser).to_string(),
            winner_origin: winner_origin.to_owned(),
            loser_origin: loser.origin.clone(),
            loser: loser.content.clone(),
            detail,
        };
        Self { id, entry, loser: loser.clone() }
    }

    /// SR21: what this node had is not in the snapshot that replaced its records.
    pub(crate) fn dropped(loser: &RecordState, winner: Option<&RecordState>) -> Self {
        let detail = match winner {
            Some(_) => "the record was created again elsewhere, and what this node had of it is dropped",
            None => "the record was deleted elsewhere, and what this node had of it is dropped",
        };
        let kind = proto::conflict::Kind::Dropped;
        let origin = winner.map_or("", |winner| &winner.origin);
        let id = ConflictId::of_kind(kind, loser);
        Self::new(kind, id, (loser, winner.unwrap_or(loser)), origin, detail.to_owned())
    }

    /// SR48: a deleted record is served, because a record refers to it.
    pub(crate) fn dangling(loser: &RecordState) -> Self {
        let detail = "a record still refers to it, and it is served until that ends".to_owned();
        let kind = proto::conflict::Kind::Dangling;
        Self::new(kind, ConflictId::of_kind(kind, loser), (loser, loser), "", detail)
    }

    /// SG28: a node outside of the region that owns the record has changed it.
    pub(crate) fn of_region(state: &RecordState, origin: &str, region: &str, owner: &str) -> Self {
        let detail = format!("a node of region {region:?} has changed it, and region {owner:?} owns it");
        let kind = proto::conflict::Kind::Region;
        Self::new(kind, ConflictId::of_kind(kind, state), (state, state), origin, detail)
    }

    /// SG27: what only a region had that gave names with a prefix, and of which all nodes are forgotten.
    pub(crate) fn of_lost_region(policy: &RecordState, prefix: &str, giver: &str) -> Self {
        let detail = format!(
            "all nodes of region {giver} are forgotten: names with {prefix} that only they had are lost"
        );
        let kind = proto::conflict::Kind::Region;
        Self::new(kind, ConflictId::of_kind(kind, policy), (policy, policy), "", detail)
    }

    /// SR47: a variant is withheld, because another one of its name is served.
    pub(crate) fn overlap(loser: &RecordState, winner: Option<&RecordState>) -> Self {
        let detail = match winner.and_then(|winner| winner.key.as_ref()) {
            Some(key) if key.when.is_empty() => "the variant for all clients is served instead".to_owned(),
            Some(key) => format!("the variant [{}] is served instead", key.when),
            None => "other variants are served instead".to_owned(),
        };
        let origin = winner.map_or("", |winner| &winner.origin);
        let kind = proto::conflict::Kind::Overlap;
        let merged = winner.unwrap_or(loser);
        Self::new(kind, ConflictId::of_kind(kind, loser), (loser, merged), origin, detail)
    }

    /// SR47: another resource has an alias of the record for clients.
    pub(crate) fn alias(loser: &RecordState) -> Self {
        let kind = proto::conflict::Kind::Overlap;
        let detail = "another resource has one of its aliases".to_owned();
        let origin = loser.origin.clone();
        Self::new(kind, ConflictId::of_kind(kind, loser), (loser, loser), &origin, detail)
    }
}

impl ConflictId {
    /// The same content may also be lost in another way.
    fn of_kind(kind: proto::conflict::Kind, state: &RecordState) -> Self {
        Self::of(&RecordState { lifecycle: -i32::from(kind), ..identity(state) })
    }

    /// Of its bytes; `None` if these are none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|bytes| Self(u128::from_be_bytes(bytes)))
    }

    /// The bytes that are stored.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    fn of(identity: &RecordState) -> Self {
        let hash = blake3::hash(&identity.encode_to_vec());
        Self(u128::from_be_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes")))
    }
}

/// Owners, quarantines and touches come and go with the same content.
fn identity(state: &RecordState) -> RecordState {
    RecordState {
        key: state.key.clone(),
        incarnation: state.incarnation,
        generation: state.generation,
        digest: state.digest.clone(),
        ..RecordState::default()
    }
}

/// Whether the merge kept the content of a state.
fn wins(state: &RecordState, merged: &RecordState) -> bool {
    (state.incarnation, state.generation, &state.digest)
        == (merged.incarnation, merged.generation, &merged.digest)
}

/// A number that this version does not know is an end, too, as in a merge (SR37).
fn is_live(state: &RecordState) -> bool {
    state.lifecycle <= proto::State::Live.into()
}

/// Whether both are of one generation, and a writer set something else. A stamp is set by no writer
/// (SV16). What is sealed cannot be compared with what is open.
fn are_two_contents(a: &RecordState, b: &RecordState) -> bool {
    let is_comparable = a.generation == b.generation && a.is_sealed == b.is_sealed;
    is_comparable && a.digest != b.digest && (&a.content, a.lease) != (&b.content, b.lease)
}

/// Whether a live state has a content or an owner that this deletion does not have. A touch is no
/// change (ST37), and a quarantine only withholds.
fn is_unseen(live: &RecordState, deletion: &RecordState) -> bool {
    let has_joined = |joined: &proto::OwnerState| {
        let seen = deletion.owners.iter().find(|seen| seen.owner == joined.owner);
        joined.is_present && seen.is_none_or(|seen| (seen.epoch, seen.is_present) < (joined.epoch, true))
    };
    live.generation > deletion.generation
        || are_two_contents(live, deletion)
        || live.owners.iter().any(has_joined)
}

/// Whether a record had expired when the other one was created. No deletion of it arrives (ST36), but
/// a lease ends with one (ST39).
fn ended_before(state: &RecordState, other: &RecordState) -> bool {
    let times = state.expires_at.as_ref().zip(other.created_at.as_ref());
    let has_ended = times.is_some_and(|(end, created)| time::from_proto(end) <= time::from_proto(created));
    state.lease.is_none() && has_ended
}

/// Whether a live record has what another creation of it had.
fn has_content_of(winner: &RecordState, loser: &RecordState) -> bool {
    is_live(winner) && (&winner.content, winner.lease) == (&loser.content, loser.lease)
}

impl fmt::Display for ConflictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ConflictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
