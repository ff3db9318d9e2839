//! What a record is: its state as stored and replicated, and the digests that identify it.

use std::fmt;

use bytes::Bytes;
use prost::Message;
use xds_core::Resource;
use xds_proto::xds::store::v1 as proto;

use crate::content;
use crate::key::{NameDigest, RecordKey};
use crate::log::{Head, StoredConflict};
use crate::refs::{self, Reference};
use crate::rules::Rules;
use crate::schema::SchemaVersion;
use crate::time;

/// The state of a record: the message that is stored, and that nodes exchange.
pub type RecordState = proto::RecordState;

/// What a store keeps with the state of a record. It is no part of the state: other nodes do not get
/// it, and no digest covers it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Local {
    /// When the state was committed here, in nanoseconds since 1970; 0 if that is not known.
    // The number is far above those of `RecordState`: both are stored as one message.
    #[prost(int64, tag = "1000")]
    pub(crate) committed_at: i64,
    /// If its date has ended the record here, by the clock of this node: the lifecycle that it has for
    /// other nodes (SR5). DELETED: a snapshot replaced the records and has none of this key, so other nodes get
    /// nothing of it (SR21). Otherwise 0.
    #[prost(enumeration = "proto::State", tag = "1001")]
    pub(crate) lifecycle_of_others: i32,
    /// Of a deleted record: the entry from which this store has the deletion (SR18). Of one that is being deleted:
    /// the entry that began it (SG41). None if other nodes do not get it, if the state came without its entry, and
    /// in states of an earlier version of this program.
    #[prost(message, optional, tag = "1002")]
    pub(crate) deleted_by: Option<EntryId>,
    /// Of a deleted record: [`Head::running`] when the state was committed here (SR26).
    #[prost(int64, tag = "1003")]
    pub(crate) running: i64,
    /// Of a state in the journal: what it lost to (SR44).
    #[prost(message, optional, tag = "1010")]
    pub(crate) conflict: Option<StoredConflict>,
}

/// An entry of a node.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct EntryId {
    #[prost(string, tag = "1")]
    pub(crate) origin: String,
    #[prost(uint64, tag = "2")]
    pub(crate) counter: u64,
}

/// The type of the records that a probe of the store writes (ST59). No client of xDS gets them.
pub const PROBE_TYPE: &str = "type.googleapis.com/xds.store.v1.Probe";

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
    /// The store revision of its last change.
    pub(crate) changed_at: u64,
    pub(crate) incarnation: u64,
    pub(crate) generation: u64,
    /// Of content, lease and stamp.
    pub(crate) content: [u8; 32],
    /// Of the content.
    pub(crate) schema: SchemaVersion,
    /// On the new form of a mirrored write: the revision of the old form.
    pub(crate) stamp: Option<Box<RecordRevision>>,
    /// Since when it is deleted, as far as this process can say: its start, if it was before. In a store that
    /// replicates, how long the node had run then (SR26).
    pub(crate) deleted_at: Option<i64>,
    pub(crate) is_quarantined: bool,
    /// Since when it is to be deleted once nothing blocks it (SG7), as far as this process can say.
    pub(crate) deleting_at: Option<i64>,
    pub(crate) created_at: i64,
    /// In nanoseconds since 1970.
    pub(crate) expires_at: Option<i64>,
    pub(crate) lease: Option<Lease>,
    /// Whether it has owners, or had some: their epochs stay as long as the incarnation (SR42).
    pub(crate) has_epochs: bool,
    /// The named owners, in the order of names.
    pub(crate) owners: Box<[Box<str>]>,
    /// The records that own it, in order (SG17).
    pub(crate) owned_by: Box<[RecordKey]>,
    /// The other names under which clients can request it (D24).
    pub(crate) aliases: Box<[NameDigest]>,
    /// The resources that it refers to, in order (SG1).
    pub(crate) references: Box<[Reference]>,
}

/// Where and when a state was committed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    /// The store revision.
    pub(crate) revision: u64,
    /// In nanoseconds since 1970.
    pub(crate) now: i64,
    /// The ids of this node.
    pub(crate) head: &'a Head,
}

/// The lease of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// In nanoseconds.
    pub(crate) length: i64,
    /// How often it was renewed.
    pub(crate) renewal: u64,
    /// When it ends by the state in the engine, which other servers read. Here it may end later
    /// (ST40).
    pub(crate) stored_end: i64,
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

    /// Its bytes, as digests cover them (SR53).
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
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
    Bytes::copy_from_slice(blake3::hash(&digested(state)).as_bytes())
}

/// What that digest covers.
pub(crate) fn digested(state: &RecordState) -> Vec<u8> {
    let digested = RecordState {
        content: state.content.clone(),
        lease: state.lease,
        mirror_of: state.mirror_of.clone(),
        ..RecordState::default()
    };
    digested.encode_to_vec()
}

/// The content that clients get: that of the record, or what is served in place of a quarantined
/// one. `None` for deleted records, and where nothing is served.
#[must_use]
pub fn served(state: &RecordState) -> Option<&proto::Content> {
    match (&state.quarantined, state.lifecycle()) {
        (_, proto::State::Deleted) => None,
        (Some(quarantined), _) => quarantined.serve.as_ref(),
        (None, _) => state.content.as_ref(),
    }
}

/// The resource that clients get for a record in this state; `None` if nothing is served.
pub(crate) fn resource_of(key: &RecordKey, state: &RecordState) -> Option<Resource> {
    served(state).and_then(|content| content::resource(&key.id(), content).ok())
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
        written_by: state.written_by.clone(),
    }
}

impl Present {
    /// What is kept of a state that was committed. `resource` is what clients get.
    pub(crate) fn of(
        key: &RecordKey,
        state: &RecordState,
        resource: Option<&Resource>,
        At { revision, now, head }: At<'_>,
        rules: &Rules,
    ) -> Self {
        let type_url = key.type_url();
        let aliases = resource.map_or(&[][..], Resource::aliases);
        let aliases = aliases.iter().map(|alias| NameDigest::of(type_url.as_str(), alias.as_str()));
        let mut owners: Box<[Box<str>]> = named_owners(state).map(Into::into).collect();
        owners.sort_unstable();
        Self {
            revision: RecordRevision::of(state),
            changed_at: revision,
            incarnation: state.incarnation,
            generation: state.generation,
            content: state.digest.first_chunk().copied().unwrap_or_default(),
            schema: SchemaVersion::of_stored(state.content.as_ref().map_or("", |content| &content.schema)),
            deleted_at: (state.lifecycle() == proto::State::Deleted).then_some(if head.is_replicated {
                head.running
            } else {
                now
            }),
            stamp: RecordRevision::parse(&state.mirror_of).map(Box::new),
            is_quarantined: state.quarantined.is_some(),
            deleting_at: (state.lifecycle() == proto::State::Deleting).then_some(now),
            created_at: state.created_at.as_ref().map(time::from_proto).unwrap_or_default(),
            // ST39: the node that renewed a lease last ends it.
            expires_at: if state.lease.is_some() && !head.is_node(&state.renewed_by) {
                None
            } else {
                state.expires_at.as_ref().map(time::from_proto)
            },
            lease: state.lease.as_ref().map(|length| Lease {
                length: time::length_from_proto(length),
                renewal: state.renewal,
                stored_end: state.expires_at.as_ref().map(time::from_proto).unwrap_or_default(),
            }),
            has_epochs: !state.owners.is_empty(),
            owners,
            owned_by: resource_owners(state).filter_map(owner_key).collect(),
            aliases: aliases.collect(),
            references: refs::named_by(key, state, resource, rules),
        }
    }

    /// Whether the record exists at this time (ST9, ST36).
    ///
    /// A lease ends by a deletion in the log and not by the clock (ST39).
    pub(crate) fn exists(&self, now: i64) -> bool {
        let has_ended = self.lease.is_none() && self.expires_at.is_some_and(|end| end <= now);
        !self.is_deleted() && !has_ended
    }

    /// Whether this is the new form of an old one in its present state (SV17).
    pub(crate) fn mirrors(&self, old: &Self) -> bool {
        self.stamp.as_deref() == Some(&old.revision)
    }

    /// Whether it ends by its date or with its lease.
    pub(crate) fn ends(&self) -> bool {
        self.lease.is_some() || self.expires_at.is_some()
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.deleting_at.is_some()
    }

    pub(crate) fn has_owner(&self) -> bool {
        !self.owners.is_empty() || !self.owned_by.is_empty()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted_at.is_some()
    }
}

/// The named owners of a record.
pub fn named_owners(state: &RecordState) -> impl Iterator<Item = &str> {
    let present = state.owners.iter().filter(|owner| owner.is_present);
    present.filter_map(|owner| match owner.owner.as_ref()?.who.as_ref()? {
        proto::owner::Who::Name(name) => Some(&**name),
        proto::owner::Who::Resource(_) => None,
    })
}

/// The records that own a record.
pub fn resource_owners(state: &RecordState) -> impl Iterator<Item = &proto::ResourceOwner> {
    let present = state.owners.iter().filter(|owner| owner.is_present);
    present.filter_map(|owner| match owner.owner.as_ref()?.who.as_ref()? {
        proto::owner::Who::Name(_) => None,
        proto::owner::Who::Resource(owner) => Some(owner),
    })
}

/// The key of an owner; it was read when the owner was put.
pub(crate) fn owner_key(owner: &proto::ResourceOwner) -> Option<RecordKey> {
    RecordKey::parse(owner.key.as_ref()?).ok()
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
