//! Tokens of pages.

use std::fmt::Write;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Filter, ReadError, Reads};
use crate::checked;
use crate::key::RecordKey;

/// Where a list goes on. Users get it as an opaque text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    /// The store revision of all pages.
    pub revision: u64,
    /// The last key of the page before.
    pub after: RecordKey,
    filter: [u8; 16],
}

/// Why a token is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is not a token that this store made.
    #[error("page_token is not a token of this store")]
    Malformed,
    /// The filter is another one than that of the first page.
    #[error("page_token belongs to another filter")]
    OtherFilter,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Encoded {
    /// The printed store revision, by which tokens of other stores are recognised.
    #[prost(string, tag = "1")]
    revision: String,
    #[prost(message, optional, tag = "2")]
    after: Option<proto::Key>,
    #[prost(bytes = "vec", tag = "3")]
    filter: Vec<u8>,
}

impl PageToken {
    /// The token of the page behind a key.
    #[must_use]
    pub fn new(revision: u64, after: RecordKey, filter: &Filter) -> Self {
        Self { revision, after, filter: filter.digest() }
    }

    /// The opaque text.
    #[must_use]
    pub fn to_text(&self, reads: &Reads<'_>) -> String {
        let encoded = Encoded {
            revision: reads.printed(self.revision),
            after: Some(self.after.to_proto()),
            filter: self.filter.to_vec(),
        };
        to_hex(&checked::encode(PURPOSE, &encoded))
    }

    /// Reads an opaque text.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn parse(text: &str, reads: &Reads<'_>, filter: &Filter) -> Result<Self, TokenError> {
        let malformed = TokenError::Malformed;
        let bytes = from_hex(text).ok_or(malformed)?;
        let encoded: Encoded = checked::decode(PURPOSE, bytes.into()).map_err(|_| malformed)?;
        let revision = match reads.parse(&encoded.revision) {
            Ok(revision) if revision <= reads.head().revision => revision,
            Ok(_) | Err(ReadError::Revision(_)) => return Err(malformed),
            Err(_) => return Err(malformed),
        };
        let after = RecordKey::parse(&encoded.after.unwrap_or_default()).map_err(|_| malformed)?;
        if encoded.filter != filter.digest() {
            return Err(TokenError::OtherFilter);
        }
        Ok(Self { revision, after, filter: filter.digest() })
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text grows");
        text
    })
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Part of the checksum, so that no other text is taken for a token.
const PURPOSE: &[u8] = b"page_token";
