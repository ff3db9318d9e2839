//! What is stored of a variant, and as which message.

use std::time::Duration;

use bytes::Bytes;
use xds_core::client::Restored;
use xds_core::{Constraints, ResourceName, TypeUrl, VariantId, XdstpName};

/// One variant as it was last received.
///
/// Equal records may have constraints that were written differently; the file keeps them as received all the same (T23).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it is known by.
    pub id: VariantId,
    /// The encoded message.
    pub payload: Bytes,
    /// Its version, as the upstream wrote it: a reconnect hands it back.
    pub version: String,
    /// The URI of the server that it came from.
    pub origin: String,
    /// How long it is good after it was received (S38). When that was is not known any more, so whoever restores it counts
    /// from the start.
    pub ttl: Option<Duration>,
    /// Its other names (D24).
    pub aliases: Vec<ResourceName>,
}

impl Record {
    /// One without TTL and aliases.
    #[must_use]
    pub fn new(id: VariantId, payload: Bytes, version: String, origin: String) -> Self {
        Self { id, payload, version, origin, ttl: None, aliases: Vec::new() }
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

/// What an entry of the file says.
#[derive(Debug)]
pub(super) enum Change {
    Put(Record),
    Remove(VariantId),
}

impl Change {
    pub(super) fn id(&self) -> &VariantId {
        match self {
            Self::Put(record) => &record.id,
            Self::Remove(id) => id,
        }
    }
}

/// The body of an entry. Fields can be added: what an older program does not know it ignores, so they must not change
/// what the others mean. A body without a known kind is skipped.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// As received (T23), not the canonical form.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    #[prost(oneof = "Kind", tags = "4, 5")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "4")]
    Put(Content),
    #[prost(message, tag = "5")]
    Removed(Removed),
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

impl Entry {
    pub(super) fn put(record: &Record) -> Self {
        let content = Content {
            payload: record.payload.clone(),
            version: record.version.clone(),
            origin: record.origin.clone(),
            // A message of seconds cannot hold more than some hundred billion years, and that is as good as none.
            ttl: record.ttl.and_then(|ttl| ttl.try_into().ok()),
            aliases: record.aliases.iter().map(|alias| alias.as_str().to_owned()).collect(),
        };
        Self::new(&record.id, Kind::Put(content))
    }

    pub(super) fn removal(id: &VariantId) -> Self {
        Self::new(id, Kind::Removed(Removed {}))
    }

    /// What it says, if that can be read here.
    pub(super) fn into_change(self) -> Option<Change> {
        let type_url = TypeUrl::new(self.type_url);
        let name = ResourceName::new(self.name);
        if !can_be_named(&type_url, &name) {
            return None;
        }
        let constraints = Constraints::from_wire(&self.constraints).ok()?;
        let id = VariantId { type_url, name, constraints };
        Some(match self.kind? {
            Kind::Removed(Removed {}) => Change::Remove(id),
            Kind::Put(content) => Change::Put(Record {
                id,
                payload: content.payload,
                version: content.version,
                origin: content.origin,
                ttl: content.ttl.map(Duration::try_from).transpose().ok()?,
                aliases: content.aliases.into_iter().map(ResourceName::new).collect(),
            }),
        })
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

/// Whether a resource can have this name, by what is asked of names as such (W2, X2, X6).
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
