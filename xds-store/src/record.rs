//! What a record is: its state as stored and replicated, and the digests that identify it.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::key::RecordKey;

/// The state of a record: the message that is stored, and that nodes exchange.
pub type RecordState = proto::RecordState;

/// Identifies the state of a record: equal at all nodes that hold this state. Conditional writes
/// compare it. A touch does not change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordRevision(u128);

/// Identifies the creation of a key: another one after it was deleted and created again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(u128);

/// What the store keeps in memory of a record, to judge commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) revision: RecordRevision,
    pub(crate) uid: Uid,
    /// The store revision of its last change.
    pub(crate) changed_at: u64,
    pub(crate) incarnation: u64,
    pub(crate) generation: u64,
    /// Of the content, lease and stamp.
    pub(crate) content: Bytes,
    pub(crate) is_deleted: bool,
}

impl RecordRevision {
    /// The revision of a state.
    #[must_use]
    pub fn of(state: &RecordState) -> Self {
        let compared = RecordState {
            // `digest` stands for it.
            content: None,
            // A touch moves the expiry of a lease, and changes no revision.
            expires_at: state.expires_at.filter(|_| state.lease.is_none()),
            renewal: 0,
            renewed_by: String::new(),
            ..without_content(state)
        };
        Self(digest(&compared.encode_to_vec()))
    }

    /// The revision of its printed form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex(text).map(Self)
    }
}

impl Uid {
    /// The uid of an incarnation of a key.
    #[must_use]
    pub fn of(key: &RecordKey, incarnation: u64) -> Self {
        let identity = RecordState { key: Some(key.to_proto()), incarnation, ..RecordState::default() };
        Self(digest(&identity.encode_to_vec()))
    }

    /// The uid of its printed form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex(text).map(Self)
    }
}

/// The digest of content, lease and stamp, which is [`RecordState::digest`].
pub(crate) fn content_digest(state: &RecordState) -> Bytes {
    let digested = RecordState {
        content: state.content.clone(),
        lease: state.lease,
        mirror_of: state.mirror_of.clone(),
        ..RecordState::default()
    };
    Bytes::copy_from_slice(blake3::hash(&digested.encode_to_vec()).as_bytes())
}

fn without_content(state: &RecordState) -> RecordState {
    RecordState {
        key: state.key.clone(),
        incarnation: state.incarnation,
        lifecycle: state.lifecycle,
        created_at: state.created_at,
        generation: state.generation,
        content: None,
        digest: state.digest.clone(),
        is_sealed: state.is_sealed,
        expires_at: state.expires_at,
        lease: state.lease,
        renewal: state.renewal,
        renewed_by: state.renewed_by.clone(),
        quarantined: state.quarantined.clone(),
        origin: state.origin.clone(),
        mirror_of: state.mirror_of.clone(),
        owners: state.owners.clone(),
    }
}

impl Present {
    /// What is kept of a state that was committed at a store revision.
    pub(crate) fn of(key: &RecordKey, state: &RecordState, changed_at: u64) -> Self {
        Self {
            revision: RecordRevision::of(state),
            uid: Uid::of(key, state.incarnation),
            changed_at,
            incarnation: state.incarnation,
            generation: state.generation,
            content: state.digest.clone(),
            is_deleted: state.lifecycle() == proto::State::Deleted,
        }
    }
}

/// Maps of messages are ordered and fields follow their numbers, so equal messages have equal
/// encodings.
fn digest(encoded: &[u8]) -> u128 {
    let hash = blake3::hash(encoded);
    u128::from_be_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

fn parse_hex(text: &str) -> Option<u128> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

impl fmt::Display for RecordRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RecordRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
