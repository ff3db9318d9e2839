//! Ceilings of a store: the highest version of a type that its servers write (SV33).

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::key::RecordKey;
use crate::record::RecordState;
use crate::schema::SchemaVersion;

/// A ceiling to set or to lift.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// The type.
    pub type_url: String,
    /// The highest version of the type that servers of the store write; `None`: what they know.
    pub version: Option<SchemaVersion>,
}

impl Ceiling {
    /// The key of the record of a type; `None` if that is no type.
    pub(crate) fn key(type_url: &str) -> Option<RecordKey> {
        let of = |type_url: &str, name: &str| {
            let key =
                proto::Key { type_url: type_url.to_owned(), name: name.to_owned(), when: String::new() };
            RecordKey::parse(&key).ok()
        };
        // The type is one if it has names.
        of(type_url, "name").and_then(|_| of(TYPE, type_url))
    }

    /// Before the keys of all ceilings.
    pub(crate) fn first() -> RecordKey {
        RecordKey::before_type(TYPE)
    }

    pub(crate) fn is_key(key: &RecordKey) -> bool {
        key.type_url().as_str() == TYPE
    }

    /// The payload of the record.
    pub(crate) fn payload(type_url: &str, version: SchemaVersion) -> Vec<u8> {
        proto::Knows { type_url: type_url.to_owned(), version: version.to_string() }.encode_to_vec()
    }

    /// The ceiling in a record; `None` if the record is of another type. A ceiling that cannot be read is of
    /// a later version of this program, and allows the first version only.
    pub(crate) fn of_record(key: &RecordKey, state: &RecordState) -> Option<Self> {
        if !Self::is_key(key) {
            return None;
        }
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted);
        let version = content.map(|content| {
            let stored = proto::Knows::decode(&*content.payload).unwrap_or_default();
            stored.version.parse().unwrap_or(SchemaVersion::FIRST)
        });
        Some(Self { type_url: key.name().as_str().to_owned(), version })
    }
}

const TYPE: &str = "type.googleapis.com/xds.store.v1.Ceiling";
