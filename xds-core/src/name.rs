//! Type URLs, resource names, versions, nonces, revisions.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::hash::digest;
use crate::shortened::shortened;

/// The type of a resource as on the wire, such as
/// `type.googleapis.com/envoy.config.cluster.v3.Cluster`.
///
/// Any type can be served: the payload of an unknown type is opaque bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeUrl(Arc<str>);

impl TypeUrl {
    /// Takes the text as it is, without any normalisation.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The type of a message that knows its name: `type.googleapis.com/` and the name.
    #[must_use]
    pub fn of<M: prost::Name>() -> Self {
        Self::new(format!("type.googleapis.com/{}", M::full_name()))
    }

    /// The whole URL.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the protobuf message: the part after the last slash.
    #[must_use]
    pub fn message_name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }
}

/// The name of a resource: an opaque string, compared byte for byte (X1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// Takes the text as it is. [`Resource::new`](crate::Resource::new) checks whether it is a
    /// valid name.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Whether both share one text in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A content digest: 128 bits of BLAKE3, printed as 32 hex digits.
///
/// Equal content has equal versions in every process and on every replica; a version is never a
/// counter. So when a client moves to another server, that server sends no unchanged resource again
/// (S31, S32, D22).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub(crate) u128);

impl Version {
    /// The version of a payload.
    #[must_use]
    pub fn of_payload(payload: &[u8]) -> Self {
        Self(digest(blake3::Hasher::new().update(payload)))
    }

    /// The digest as a number.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0
    }

    /// Reads the printed form; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let version = u128::from_str_radix(text, 16).ok().map(Self)?;
        (version.digits() == *text.as_bytes()).then_some(version)
    }

    /// The printed form. It does not use the formatter, which takes ten times as long, because each
    /// response and each resource has a version.
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (two, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
            (two[0], two[1]) = (digit(byte >> 4), digit(byte & 15));
        }
        digits
    }
}

/// Identifies one response of one stream; a counter from 1 that never repeats within the stream
/// (S2, D7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u64);

impl Nonce {
    /// Any text that is not a nonce of our streams.
    pub const FOREIGN: Self = Self(0);

    /// Reads the nonce of a request; `None` when the field is empty.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { None } else { Some(text.parse().map_or(Self::FOREIGN, Self)) }
    }

    /// The printed form.
    pub(crate) fn text(self) -> String {
        self.0.to_string()
    }

    /// The length of the printed form in bytes.
    pub(crate) fn len(self) -> usize {
        self.0.checked_ilog10().unwrap_or_default() as usize + 1
    }

    pub(crate) fn nth(number: u64) -> Self {
        Self(number)
    }
}

/// Counts the commits of one cache that changed something. It is local and never sent.
///
/// Zero is a cache without a commit: no source has declared its resources yet (G13).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub(crate) u64);

impl Revision {
    /// Before the first commit.
    pub const ZERO: Self = Self(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Borrow<str> for TypeUrl {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for TypeUrl {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for TypeUrl {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// For logs and messages. It shortens long names: a client may subscribe to a name of megabytes.
impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&shortened(&self.0, NAME_SHOWN_BYTES), f)
    }
}

impl Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ResourceName {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for ResourceName {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.digits()).expect("hex digits are text"))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How many bytes of a name are shown in logs and messages.
const NAME_SHOWN_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d22_a_version_is_a_function_of_the_payload_alone() {
        assert_eq!(Version::of_payload(b"a").to_string(), "17762fddd969a453925d65717ac3eea2");
        assert_ne!(Version::of_payload(b"a"), Version::of_payload(b"b"));
    }

    #[test]
    fn s10_a_nonce_of_another_server_is_foreign_and_an_empty_one_is_none() {
        assert_eq!(Nonce::parse(""), None);
        assert_eq!(Nonce::parse("a1b2"), Some(Nonce::FOREIGN));
        assert_eq!(Nonce::parse(&Nonce::nth(7).to_string()), Some(Nonce::nth(7)));
    }
}
