//! A stored variant, and its encoding.

use std::time::Duration;

use bytes::Bytes;
use xds_core::client::{Accepted, Restored};
use xds_core::proxy::SetId;
use xds_core::{Constraints, ResourceName, TypeUrl, VariantId, XdstpName};

use super::sets::Proof;

/// A variant as it was received last.
///
/// Equal records may have constraints that were written differently; the file stores them as
/// received (T23).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its id.
    pub id: VariantId,
    /// The encoded message.
    pub payload: Bytes,
    /// Its version as the upstream wrote it; a reconnect sends it to the upstream.
    pub version: String,
    /// The URI of the server that sent it.
    pub origin: String,
    /// Its time to live after its receipt (S38). The time of the receipt is not stored, so a
    /// restored TTL starts again.
    pub ttl: Option<Duration>,
    /// Its other names (D24).
    pub aliases: Vec<ResourceName>,
}

impl Record {
    /// A record without TTL and aliases.
    #[must_use]
    pub fn new(id: VariantId, payload: Bytes, version: String, origin: String) -> Self {
        Self { id, payload, version, origin, ttl: None, aliases: Vec::new() }
    }
}

impl From<&Accepted> for Record {
    fn from(accepted: &Accepted) -> Self {
        Self {
            id: accepted.id(),
            payload: accepted.payload().clone(),
            version: accepted.version.as_ref().to_owned(),
            origin: accepted.server.as_ref().to_owned(),
            ttl: accepted.variant().ttl(),
            aliases: accepted.variant().aliases().to_vec(),
        }
    }
}

impl From<Record> for Restored {
    fn from(record: Record) -> Self {
        Self {
            id: record.id,
            payload: record.payload,
            version: record.version.into(),
            ttl: record.ttl,
            aliases: record.aliases,
        }
    }
}

/// The change in an entry of the file.
#[derive(Debug)]
pub(super) enum Change {
    Put(Record),
    Remove(VariantId),
    /// The set was complete, with these members.
    Prove(SetId, Proof),
    /// The set is no longer known to be complete.
    Void(SetId),
}

/// The subject of an entry. Sets are sorted after their members.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Variant(VariantId),
    Set(SetId),
}

impl Key {
    pub(super) fn type_url(&self) -> &TypeUrl {
        match self {
            Self::Variant(id) => &id.type_url,
            Self::Set(id) => &id.type_url,
        }
    }

    pub(super) fn name(&self) -> &ResourceName {
        match self {
            Self::Variant(id) => &id.name,
            Self::Set(id) => &id.name,
        }
    }
}

impl Change {
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Put(record) => Key::Variant(record.id.clone()),
            Self::Remove(id) => Key::Variant(id.clone()),
            Self::Prove(id, _) | Self::Void(id) => Key::Set(id.clone()),
        }
    }
}

/// The body of an entry. Fields can be added: older programs ignore unknown fields, so new fields
/// must not change the meaning of others. A body of an unknown kind is skipped.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// As received (T23), not the canonical form.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    #[prost(oneof = "Kind", tags = "4, 5, 6, 7")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "4")]
    Put(Content),
    #[prost(message, tag = "5")]
    Removed(Removed),
    #[prost(message, tag = "6")]
    Proved(ProvedSet),
    #[prost(message, tag = "7")]
    Voided(VoidedSet),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Content {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(string, tag = "3")]
    origin: String,
    #[prost(message, optional, tag = "4")]
    ttl: Option<prost_types::Duration>,
    #[prost(string, repeated, tag = "5")]
    aliases: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Removed {}

#[derive(Clone, PartialEq, prost::Message)]
struct ProvedSet {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<Pair>,
    #[prost(uint64, tag = "2")]
    count: u64,
    /// 16 bytes.
    #[prost(bytes = "bytes", tag = "3")]
    digest: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct VoidedSet {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

impl Entry {
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Put(record) => Self::put(record),
            Change::Remove(id) => Self::new(id, Kind::Removed(Removed {})),
            Change::Prove(id, Proof { count, sum }) => {
                let digest = Bytes::copy_from_slice(&sum.to_le_bytes());
                Self::of_set(id, Kind::Proved(ProvedSet { parameters: pairs(id), count: *count, digest }))
            }
            Change::Void(id) => Self::of_set(id, Kind::Voided(VoidedSet { parameters: pairs(id) })),
        }
    }

    pub(super) fn put(record: &Record) -> Self {
        let content = Content {
            payload: record.payload.clone(),
            version: record.version.clone(),
            origin: record.origin.clone(),
            // The message cannot hold more than some hundred billion years; a longer TTL is as good
            // as none.
            ttl: record.ttl.and_then(|ttl| ttl.try_into().ok()),
            aliases: record.aliases.iter().map(|alias| alias.as_str().to_owned()).collect(),
        };
        Self::new(&record.id, Kind::Put(content))
    }

    /// Whether it marks a complete wildcard in the former format, which has no proof.
    pub(super) fn is_unproved_set(&self) -> bool {
        self.name == "*" && matches!(self.kind, Some(Kind::Put(_)))
    }

    /// The change in it, if it is readable.
    pub(super) fn into_change(self) -> Option<Change> {
        let type_url = TypeUrl::new(self.type_url);
        let name = ResourceName::new(self.name);
        let kind = self.kind?;
        if let Kind::Proved(ProvedSet { parameters, .. }) | Kind::Voided(VoidedSet { parameters }) = &kind {
            let parameters = parameters.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
            let id = SetId { type_url, name, parameters: parameters.collect() };
            return Some(match kind {
                Kind::Proved(ProvedSet { count, digest, .. }) => {
                    let sum = u128::from_le_bytes(digest.as_ref().try_into().ok()?);
                    Change::Prove(id, Proof { count, sum })
                }
                _ => Change::Void(id),
            });
        }
        if !can_be_named(&type_url, &name) {
            return None;
        }
        let constraints = Constraints::from_wire(&self.constraints).ok()?;
        let id = VariantId { type_url, name, constraints };
        match kind {
            Kind::Put(content) => Some(Change::Put(Record {
                id,
                payload: content.payload,
                version: content.version,
                origin: content.origin,
                ttl: content.ttl.map(Duration::try_from).transpose().ok()?,
                aliases: content.aliases.into_iter().map(ResourceName::new).collect(),
            })),
            Kind::Removed(Removed {}) => Some(Change::Remove(id)),
            Kind::Proved(_) | Kind::Voided(_) => None,
        }
    }

    fn of_set(id: &SetId, kind: Kind) -> Self {
        Self {
            type_url: id.type_url.as_str().to_owned(),
            name: id.name.as_str().to_owned(),
            constraints: Bytes::new(),
            kind: Some(kind),
        }
    }

    fn new(id: &VariantId, kind: Kind) -> Self {
        Self {
            type_url: id.type_url.as_str().to_owned(),
            name: id.name.as_str().to_owned(),
            constraints: id.constraints.wire().clone(),
            kind: Some(kind),
        }
    }
}

fn pairs(id: &SetId) -> Vec<Pair> {
    let pair = |(key, value): (&std::sync::Arc<str>, &std::sync::Arc<str>)| Pair {
        key: key.as_ref().to_owned(),
        value: value.as_ref().to_owned(),
    };
    id.parameters.iter().map(pair).collect()
}

/// Whether a resource can have this name (W2, X2, X6).
fn can_be_named(type_url: &TypeUrl, name: &ResourceName) -> bool {
    let text = name.as_str();
    !type_url.message_name().is_empty()
        && !text.is_empty()
        && !text.contains(|c: char| c.is_ascii_control())
        && match XdstpName::of(text) {
            Ok(None) => true,
            Ok(Some(new_style)) => new_style.check_type(type_url).is_ok() && !new_style.is_glob(),
            Err(_) => false,
        }
}
