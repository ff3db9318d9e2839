//! Keys of records, and the keys under which the engine has everything.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use xds_core::when::WhenError;
use xds_core::{Constraints, ResourceName, TypeUrl, VariantId, XdstpError, XdstpName};
use xds_proto::xds::store::v1 as proto;

/// The encoded key of a record: type, name and the canonical text of its constraints.
///
/// Equal keys have equal bytes. Their order is that of type, name and text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Bytes);

/// Why a message is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A type or a name that is empty or has control characters (G8).
    #[error("{part} is empty or has control characters")]
    Invalid {
        /// `type_url` or `name`.
        part: &'static str,
    },
    /// The `when:` text cannot be read.
    #[error("when: {0}")]
    When(#[from] WhenError),
    /// A new-style name that cannot be read (X2).
    #[error("name: {0}")]
    Name(#[from] XdstpError),
    /// A part is longer than its limit (ST42).
    #[error("{part} of {found} bytes exceeds the limit of {limit}")]
    TooLong {
        /// `type_url`, `name` or `when`.
        part: &'static str,
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl RecordKey {
    /// The key of a message from outside.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn parse(key: &proto::Key) -> Result<Self, KeyError> {
        parse_id(key).map(|id| Self::of(&id))
    }

    /// The key of a variant.
    #[must_use]
    pub fn of(id: &VariantId) -> Self {
        let (type_url, name) = (id.type_url.as_str(), id.name.as_str());
        let when = canonical_text(&id.constraints);
        let mut bytes = BytesMut::with_capacity(type_url.len() + name.len() + when.len() + 2);
        // No part has control characters, so a zero byte separates them and keeps their order.
        for (part, end) in [(type_url, Some(0)), (name, Some(0)), (&*when, None)] {
            bytes.put_slice(part.as_bytes());
            end.into_iter().for_each(|end| bytes.put_u8(end));
        }
        Self(bytes.freeze())
    }

    /// Comes before all keys, and is none.
    pub(crate) fn before_all() -> Self {
        Self(Bytes::new())
    }

    /// Whether its type begins with this text.
    pub(crate) fn starts_with(&self, text: &str) -> bool {
        self.0.starts_with(text.as_bytes())
    }

    /// Whether it has this type.
    pub(crate) fn has_type(&self, type_url: &str) -> bool {
        self.parts()[0] == type_url
    }

    /// Comes before all keys of a type, and is none.
    pub(crate) fn before_type(type_url: &'static str) -> Self {
        Self(Bytes::from_static(type_url.as_bytes()))
    }

    /// The type, name and constraints.
    ///
    /// # Panics
    /// Never: the text of a key was read when the key was made.
    #[must_use]
    pub fn id(&self) -> VariantId {
        let [type_url, name, when] = self.parts();
        let constraints = if when.is_empty() { Ok(Constraints::NONE) } else { when.parse() };
        let constraints = constraints.expect("the text of a key can be read");
        VariantId { type_url: type_url.into(), name: name.into(), constraints }
    }

    /// The text of its constraints; empty without any.
    pub(crate) fn when(&self) -> &str {
        self.parts()[2]
    }

    /// Whether both are variants of one name.
    pub(crate) fn is_of_name_of(&self, other: &Self) -> bool {
        self.parts()[..2] == other.parts()[..2]
    }

    /// A digest of type and name, which all variants of a name share.
    pub(crate) fn name_digest(&self) -> NameDigest {
        let [type_url, name, _] = self.parts();
        NameDigest::of(type_url, name)
    }

    /// A digest of all of it.
    pub(crate) fn record_digest(&self) -> RecordDigest {
        let when = self.when();
        let when = if when.is_empty() { 0 } else { first_bytes(&blake3::hash(when.as_bytes())) };
        RecordDigest { name: self.name_digest(), when }
    }

    /// A digest of all of it, as a record of a region.
    pub(crate) fn digest_in(&self, region: &str) -> u128 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(region.as_bytes()).update(&[0]).update(&self.0);
        first_bytes(&hasher.finalize())
    }

    /// The key as a message.
    #[must_use]
    pub fn to_proto(&self) -> proto::Key {
        let [type_url, name, when] = self.parts().map(str::to_owned);
        proto::Key { type_url, name, when }
    }

    /// The type.
    #[must_use]
    pub fn type_url(&self) -> TypeUrl {
        self.parts()[0].into()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> ResourceName {
        self.parts()[1].into()
    }

    /// The type and the name.
    pub(crate) fn type_and_name(&self) -> (&str, &str) {
        let [type_url, name, _] = self.parts();
        (type_url, name)
    }

    fn parts(&self) -> [&str; 3] {
        let text = std::str::from_utf8(&self.0).expect("keys are made of texts");
        let mut parts = text.splitn(3, '\0');
        [(); 3].map(|()| parts.next().unwrap_or_default())
    }

    /// `None` if these bytes are not a key in its one form, which is damage.
    fn from_stored(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let is_key = text.matches('\0').count() == 2;
        let key = is_key.then(|| Self(Bytes::copy_from_slice(bytes)))?;
        (key.when().is_empty() || key.when().parse::<Constraints>().is_ok()).then_some(key)
    }
}

/// The type of the records that are region policies (ST55). Their names are beginnings of names (SG21).
pub const POLICY_TYPE: &str = "type.googleapis.com/xds.store.v1.RegionPolicy";

/// Whether records of this type are configuration of the store (ST55).
#[must_use]
pub fn is_configuration(type_url: &str) -> bool {
    let message = type_url.rsplit_once('/').map_or(type_url, |(_, message)| message);
    message.starts_with("xds.store.v1.")
}

/// Type, name and constraints of a message from outside.
pub(crate) fn parse_id(key: &proto::Key) -> Result<VariantId, KeyError> {
    let parts = [
        ("type_url", &key.type_url, NAME_LIMIT_BYTES),
        ("name", &key.name, NAME_LIMIT_BYTES),
        ("when", &key.when, WHEN_LIMIT_BYTES),
    ];
    for (part, text, limit) in parts {
        if text.len() > limit {
            return Err(KeyError::TooLong { part, found: text.len(), limit });
        }
        if part != "when" && (text.is_empty() || text.contains(char::is_control)) {
            return Err(KeyError::Invalid { part });
        }
    }
    let constraints = if key.when.is_empty() { Constraints::NONE } else { key.when.parse()? };
    // X4: equal new-style names may be spelled differently. The beginning of such a name is none.
    let of_xdstp = if key.type_url == POLICY_TYPE { None } else { XdstpName::of(&key.name)? };
    let name = of_xdstp.map_or_else(|| (&*key.name).into(), |name| name.canonical());
    Ok(VariantId { type_url: (&*key.type_url).into(), name, constraints })
}

/// Identifies a record. All records of a name lie together in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordDigest {
    name: NameDigest,
    /// 0 without constraints.
    when: u128,
}

impl RecordDigest {
    /// The record of a name that has no constraints.
    pub(crate) fn unconstrained(name: NameDigest) -> Self {
        Self { name, when: 0 }
    }

    /// That of its name.
    pub(crate) fn name(&self) -> NameDigest {
        self.name
    }
}

/// Identifies a type and a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameDigest(u128);

impl NameDigest {
    pub(crate) fn of(type_url: &str, name: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(type_url.as_bytes()).update(&[0]).update(name.as_bytes());
        Self(first_bytes(&hasher.finalize()))
    }
}

fn first_bytes(hash: &blake3::Hash) -> u128 {
    u128::from_be_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// The longest type URL or name.
pub(crate) const NAME_LIMIT_BYTES: usize = 4 << 10;
/// The longest text of constraints.
const WHEN_LIMIT_BYTES: usize = 16 << 10;

/// The text of the canonical form (T21), in which the order of operands is no choice of the writer;
/// empty without constraints.
fn canonical_text(constraints: &Constraints) -> String {
    if constraints.is_unconstrained() {
        return String::new();
    }
    // A key of a branch that folds to a constant is in the constraints (T12), but not in their form.
    let canonical =
        Constraints::from_wire(constraints.canon()).ok().filter(|canonical| canonical == constraints);
    canonical.as_ref().unwrap_or(constraints).to_string()
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [type_url, name, when] = self.parts();
        write!(f, "{type_url} {name}")?;
        if when.is_empty() { Ok(()) } else { write!(f, " [{when}]") }
    }
}

/// The keys in the engine. Their first byte is the kind of what they hold.
pub(crate) mod stored {
    use super::*;

    /// The [`Head`](crate::log::Head).
    pub(crate) const HEAD: &[u8] = b"h";
    /// The first and the end of all keys.
    pub(crate) const ALL: (&[u8], &[u8]) = (b"a", b"{");
    /// The first and the end of the references of other regions to names of this one (SG31).
    pub(crate) const BLOCKS: (&[u8], &[u8]) = (b"bt", b"bu");
    /// The first and the end of the references of this region to names of others.
    pub(crate) const OWN_BLOCKS: (&[u8], &[u8]) = (b"bs", b"bt");
    /// The first and the end of what the store keeps of origins.
    pub(crate) const ORIGINS: (&[u8], &[u8]) = (b"c", b"d");
    /// The first and the end of the prefixes whose names the store fetches (SG27).
    pub(crate) const FETCHING: (&[u8], &[u8]) = (b"f", b"g");
    /// The first and the end of the journal of conflicts.
    pub(crate) const CONFLICTS: (&[u8], &[u8]) = (b"j", b"k");
    /// The first and the end of all log entries.
    pub(crate) const LOG: (&[u8], &[u8]) = (b"l", b"m");
    /// The first and the end of the states that other nodes wrote, where the merged ones differ.
    pub(crate) const ORIGINALS: (&[u8], &[u8]) = (b"o", b"p");
    /// The first and the end of the nodes that are known, of what belongs to this store alone.
    pub(crate) const NODES: (&[u8], &[u8]) = (b"pn", b"po");
    /// The first and the end of the records of a snapshot that is being taken, of what belongs to this store alone.
    pub(crate) const STAGED: (&[u8], &[u8]) = (b"ps", b"pt");
    /// The first and the end of all record versions.
    pub(crate) const RECORDS: (&[u8], &[u8]) = (b"v", b"w");

    /// A reference between regions, behind one of these: its target, its source, and its id.
    pub(crate) fn block(from: &[u8], target: NameDigest, source: u128, id: u128) -> Bytes {
        let numbers = [target.0, source, id].map(u128::to_be_bytes);
        [from, &numbers.concat()].concat().into()
    }

    /// Whether a key is that of a reference between regions.
    pub(crate) fn is_block(stored: &[u8]) -> bool {
        [BLOCKS, OWN_BLOCKS].iter().any(|(from, _)| stored.starts_with(from))
    }

    /// What the store keeps of the log of an origin.
    pub(crate) fn origin(node: &str) -> Bytes {
        [ORIGINS.0, node.as_bytes()].concat().into()
    }

    /// The id of an origin; `None` for other keys.
    pub(crate) fn parse_origin(stored: &[u8]) -> Option<&str> {
        std::str::from_utf8(stored.strip_prefix(ORIGINS.0)?).ok()
    }

    /// What the store keeps of names that it fetches.
    pub(crate) fn fetching(prefix: &str) -> Bytes {
        [FETCHING.0, prefix.as_bytes()].concat().into()
    }

    /// The prefix of such names; `None` for other keys.
    pub(crate) fn parse_fetching(stored: &[u8]) -> Option<&str> {
        std::str::from_utf8(stored.strip_prefix(FETCHING.0)?).ok()
    }

    /// What the store keeps of another node.
    pub(crate) fn node(id: &str) -> Bytes {
        [NODES.0, id.as_bytes()].concat().into()
    }

    /// The id of a node; `None` for other keys.
    pub(crate) fn parse_node(stored: &[u8]) -> Option<&str> {
        std::str::from_utf8(stored.strip_prefix(NODES.0)?).ok()
    }

    /// The entry of a store revision.
    pub(crate) fn log(revision: u64) -> Bytes {
        let mut key = BytesMut::with_capacity(1 + REVISION_BYTES);
        key.put_u8(b'l');
        key.put_u64(revision);
        key.freeze()
    }

    /// The state of a record as another node wrote it (SR7), in the entry of a store revision.
    pub(crate) fn original(revision: u64, key: &RecordKey) -> Bytes {
        [ORIGINALS.0, &revision.to_be_bytes(), &key.0].concat().into()
    }

    /// The key and the store revision of a state that another node wrote; `None` for other keys.
    pub(crate) fn parse_original(stored: &[u8]) -> Option<(RecordKey, u64)> {
        let (revision, key) = stored.strip_prefix(ORIGINALS.0)?.split_first_chunk::<REVISION_BYTES>()?;
        Some((RecordKey::from_stored(key)?, u64::from_be_bytes(*revision)))
    }

    /// A state that lost, with its number in the journal.
    pub(crate) fn conflict(number: u64, key: &RecordKey) -> Bytes {
        [CONFLICTS.0, &number.to_be_bytes(), &key.0].concat().into()
    }

    /// Before the states with this number or a later one in the journal.
    pub(crate) fn conflicts_from(number: u64) -> Bytes {
        [CONFLICTS.0, &number.to_be_bytes()].concat().into()
    }

    /// The key and the number of a state in the journal; `None` for other keys.
    pub(crate) fn parse_conflict(stored: &[u8]) -> Option<(RecordKey, u64)> {
        let (number, key) = stored.strip_prefix(CONFLICTS.0)?.split_first_chunk::<REVISION_BYTES>()?;
        Some((RecordKey::from_stored(key)?, u64::from_be_bytes(*number)))
    }

    /// A record of a snapshot that is being taken (SR20).
    pub(crate) fn staged(key: &RecordKey) -> Bytes {
        [STAGED.0, &key.0].concat().into()
    }

    /// The key of such a record; `None` for other keys.
    pub(crate) fn parse_staged(stored: &[u8]) -> Option<RecordKey> {
        RecordKey::from_stored(stored.strip_prefix(STAGED.0)?)
    }

    /// The record whose state is stored; `None` for other keys.
    pub(crate) fn parse_state(stored: &[u8]) -> Option<RecordKey> {
        let versioned = parse_record(stored).or_else(|| parse_original(stored));
        let versioned = versioned.or_else(|| parse_conflict(stored)).map(|(key, _)| key);
        versioned.or_else(|| parse_staged(stored))
    }

    /// A record as of a store revision. All versions of a record lie together, the oldest first.
    pub(crate) fn record(key: &RecordKey, revision: u64) -> Bytes {
        let mut bytes = BytesMut::with_capacity(2 + key.0.len() + REVISION_BYTES);
        bytes.put_u8(b'v');
        bytes.put_slice(&key.0);
        // Below all that a text continues with, so that the versions of another key never lie
        // between those of this one.
        bytes.put_u8(0);
        bytes.put_u64(revision);
        bytes.freeze()
    }

    /// The key and the revision of a record version; `None` if it is damaged.
    pub(crate) fn parse_record(stored: &[u8]) -> Option<(RecordKey, u64)> {
        let rest = stored.strip_prefix(b"v")?;
        let (rest, revision) = rest.split_last_chunk::<REVISION_BYTES>()?;
        Some((RecordKey::from_stored(rest.strip_suffix(&[0])?)?, u64::from_be_bytes(*revision)))
    }

    /// Behind all versions of a record, and before all keys that follow it.
    pub(crate) fn after(key: &RecordKey) -> Bytes {
        let mut bytes = BytesMut::from(&*record(key, u64::MAX));
        bytes.put_u8(0);
        bytes.freeze()
    }

    /// The range of the records of a type.
    pub(crate) fn of_type(type_url: &str) -> (Bytes, Bytes) {
        let mut from = BytesMut::from(RECORDS.0);
        from.put_slice(type_url.as_bytes());
        from.put_u8(0);
        let to = end_of(&from);
        (from.freeze(), to)
    }

    /// Behind all keys that begin with this prefix, whose last byte is below 255.
    pub(crate) fn end_of(prefix: &[u8]) -> Bytes {
        let mut end = prefix.to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end.into()
    }

    /// The revision of a log entry; `None` if it is damaged.
    pub(crate) fn parse_log(stored: &[u8]) -> Option<u64> {
        stored.strip_prefix(b"l")?.try_into().ok().map(u64::from_be_bytes)
    }

    const REVISION_BYTES: usize = size_of::<u64>();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, when: &str) -> RecordKey {
        let key = proto::Key { type_url: "t/T".into(), name: name.into(), when: when.into() };
        RecordKey::parse(&key).unwrap()
    }

    #[test]
    fn constraints_that_are_equal_make_one_key() {
        assert_eq!(key("n", "b=1,a=2"), key("n", "a=2,  b=1"));
        assert_eq!(key("n", "a=2,b=1").to_proto().when, "a=2,b=1");
        assert_ne!(key("n", ""), key("n", "a"));
    }

    #[test]
    fn versions_of_one_record_lie_together_whatever_other_names_begin_like_it() {
        let (short, long) = (key("n", ""), key("n2", ""));
        let when = key("n", "a=1");
        let mut keys = [&short, &when, &long].map(|key| [9, 1 << 40].map(|at| stored::record(key, at)));
        let expected = keys.clone();
        keys.as_flattened_mut().sort();
        assert_eq!(keys, expected);
        assert_eq!(stored::parse_record(&keys[1][1]), Some((when, 1 << 40)));
    }

    #[test]
    fn g8_names_that_cannot_exist_are_refused() {
        for name in ["", "a\0b", "a\n"] {
            let key = proto::Key { type_url: "t".into(), name: name.into(), when: String::new() };
            assert_eq!(RecordKey::parse(&key), Err(KeyError::Invalid { part: "name" }));
        }
    }
}
