//! Encrypts the contents of some types, such as secrets, where they are stored (ST49, ST70).
//!
//! The engine and backups then have a *sealed* state: its payload is a [`SealedContent`], and all
//! other fields of its content are empty. Type, name, constraints, times and owners stay readable.
//! The cipher is XChaCha20-Poly1305, with the record key as associated data: a sealed content that is
//! moved to another record cannot be opened there.
//!
//! The first key of a [`SealKeys`] file seals, all keys open. So a key is replaced in two steps: put
//! the new one first, and remove the old one when no record needs it any more. What was sealed stays
//! as it is until it is written again.
//!
//! The digest of a sealed state is keyed, so that it does not show whether a secret is a guessed one.
//! An open state has the plain digest (SR53). So the record revision, and whether a put is UNCHANGED
//! (ST12), do not depend on the keys, and stay when keys are replaced.
//!
//! A [`SealedEngine`](crate::engine::SealedEngine) does all this on the way into an engine and out
//! of it.
//!
//! The nonce of each content is the caller's, because this crate has no entropy. It has to be
//! random.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use prost::Message;
use xds_core::TypeUrl;
use xds_proto::xds::store::v1 as proto;

use crate::checked;
use crate::key::RecordKey;
use crate::record::{self, RecordState};

/// Which contents are sealed, and by which keys.
#[derive(Debug, Clone)]
pub struct Seal {
    keys: SealKeys,
    types: BTreeSet<TypeUrl>,
}

/// The keys of a file, at least one: the first one seals, all open.
#[derive(Debug, Clone)]
pub struct SealKeys(Vec<SealKey>);

#[derive(Clone)]
struct SealKey {
    id: String,
    cipher: XChaCha20Poly1305,
    digest_key: [u8; 32],
}

/// The payload of a sealed content.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SealedContent {
    /// The id of the key.
    #[prost(string, tag = "1")]
    pub key_id: String,
    /// 24 bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub nonce: Bytes,
    /// The encrypted `Content`, with its tag.
    #[prost(bytes = "bytes", tag = "3")]
    pub ciphertext: Bytes,
}

/// A random number that is used once.
pub type SealNonce = [u8; 24];

/// Why a file has no seal keys. No error shows a part of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealKeysError {
    /// There is no key in it.
    #[error("there is no key: expected lines `ID BASE64`, with 32 bytes each")]
    Empty,
    /// A line is not an id and a key.
    #[error("line {line}: expected `ID BASE64`; an id has up to 64 letters, digits, `-`, `_` and `.`")]
    Malformed {
        /// From 1.
        line: usize,
    },
    /// The key is not 32 bytes in base64.
    #[error("line {line}: the key {id:?} is not 32 bytes in base64; make one by `openssl rand -base64 32`")]
    NotAKey {
        /// From 1.
        line: usize,
        /// The id of the key.
        id: String,
    },
    /// Two keys have one id.
    #[error("line {line}: the id {id:?} is used already")]
    Twice {
        /// From 1.
        line: usize,
        /// The id.
        id: String,
    },
}

/// Why a sealed content cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsealError {
    /// The key that sealed it is not there.
    #[error("{key:?} is sealed by the key {id:?}: give a file with this key (--seal-keys)")]
    NoKey {
        /// The record.
        key: RecordKey,
        /// The id of the key.
        id: String,
    },
    /// Another key with this id sealed it, or it is damaged.
    #[error("{key:?} is not what the seal key {id:?} sealed: it was changed, or the key is another one")]
    Changed {
        /// The record.
        key: RecordKey,
        /// The id of the key.
        id: String,
    },
}

impl SealKeys {
    /// The keys of a file: lines `ID BASE64`. Empty lines and lines with `#` first are skipped.
    ///
    /// # Errors
    /// See [`SealKeysError`].
    pub fn parse(text: &str) -> Result<Self, SealKeysError> {
        let mut keys: Vec<SealKey> = Vec::new();
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (id, key) = text.split_once(char::is_whitespace).ok_or(SealKeysError::Malformed { line })?;
            let may_be = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
            if id.len() > ID_LIMIT_BYTES || !id.chars().all(may_be) {
                return Err(SealKeysError::Malformed { line });
            }
            let id = id.to_owned();
            let key = STANDARD.decode(key.trim()).ok().and_then(|key| <[u8; 32]>::try_from(key).ok());
            let Some(key) = key else { return Err(SealKeysError::NotAKey { line, id }) };
            if keys.iter().any(|other| other.id == id) {
                return Err(SealKeysError::Twice { line, id });
            }
            keys.push(SealKey::new(id, &key));
        }
        if keys.is_empty() { Err(SealKeysError::Empty) } else { Ok(Self(keys)) }
    }
}

impl SealKey {
    fn new(id: String, key: &[u8; 32]) -> Self {
        let content_key = blake3::derive_key("xds-store 2026-11 sealed content", key);
        let digest_key = blake3::derive_key("xds-store 2026-11 digest of a sealed content", key);
        Self { id, cipher: XChaCha20Poly1305::new(&content_key.into()), digest_key }
    }

    fn seal(&self, key: &RecordKey, content: &proto::Content, nonce: SealNonce) -> proto::Content {
        let (plain, of_record) = (content.encode_to_vec(), associated(key));
        let payload = Payload { msg: &plain, aad: &of_record };
        let ciphertext = self.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = SealedContent {
            key_id: self.id.clone(),
            nonce: Bytes::copy_from_slice(&nonce),
            ciphertext: ciphertext.expect("a content is far below the limit of the cipher").into(),
        };
        proto::Content { payload: sealed.encode_to_vec().into(), ..proto::Content::default() }
    }

    fn open(&self, key: &RecordKey, sealed: &SealedContent) -> Option<proto::Content> {
        let nonce = SealNonce::try_from(&*sealed.nonce).ok()?;
        let of_record = associated(key);
        let payload = Payload { msg: &sealed.ciphertext, aad: &of_record };
        let plain = self.cipher.decrypt(&XNonce::from(nonce), payload).ok()?;
        proto::Content::decode(&*plain).ok()
    }

    /// What is stored for a digest.
    fn keyed(&self, digest: &[u8]) -> Bytes {
        Bytes::copy_from_slice(blake3::keyed_hash(&self.digest_key, digest).as_bytes())
    }

    fn changed(&self, key: &RecordKey) -> UnsealError {
        UnsealError::Changed { key: key.clone(), id: self.id.clone() }
    }
}

impl Seal {
    /// Seals contents of these types. Contents of other types that were sealed before are opened all
    /// the same.
    #[must_use]
    pub fn new(keys: SealKeys, types: impl IntoIterator<Item = TypeUrl>) -> Self {
        Self { keys, types: types.into_iter().collect() }
    }

    /// Whether the contents of a record are to be sealed.
    #[must_use]
    pub fn covers(&self, key: &RecordKey) -> bool {
        self.types.contains(&key.type_url())
    }

    /// The state to store: its content, and what is served in place of a quarantined one, sealed by
    /// the first key. `nonce` gives another random number with each call.
    #[must_use]
    pub fn seal(
        &self,
        key: &RecordKey,
        mut open: RecordState,
        nonce: &mut dyn FnMut() -> SealNonce,
    ) -> RecordState {
        if open.content.is_none() {
            return open;
        }
        let by = &self.keys.0[0];
        contents(&mut open).for_each(|content| *content = by.seal(key, content, nonce()));
        open.digest = by.keyed(&open.digest);
        open.is_sealed = true;
        open
    }

    /// The state with its contents in the clear; one that is not sealed, as it is.
    ///
    /// # Errors
    /// See [`UnsealError`].
    pub fn open(&self, key: &RecordKey, mut sealed: RecordState) -> Result<RecordState, UnsealError> {
        if !sealed.is_sealed {
            return Ok(sealed);
        }
        let mut used = None;
        for content in contents(&mut sealed) {
            let of_payload = SealedContent::decode(&*content.payload).unwrap_or_default();
            let by = self.keys.0.iter().find(|key| key.id == of_payload.key_id);
            let by = by.ok_or_else(|| UnsealError::no_key(key, &of_payload.key_id))?;
            *content = by.open(key, &of_payload).ok_or_else(|| by.changed(key))?;
            used.get_or_insert(by);
        }
        let digest = record::content_digest(&sealed);
        match used {
            Some(by) if by.keyed(&digest) != sealed.digest => return Err(by.changed(key)),
            _ => sealed.digest = digest,
        }
        sealed.is_sealed = false;
        Ok(sealed)
    }
}

impl UnsealError {
    /// The error of a sealed state where there are no keys.
    pub(crate) fn without_keys(key: &RecordKey, sealed: &RecordState) -> Self {
        let payload = sealed.content.as_ref().map(|content| &*content.payload).unwrap_or_default();
        Self::no_key(key, &SealedContent::decode(payload).unwrap_or_default().key_id)
    }

    fn no_key(key: &RecordKey, id: &str) -> Self {
        // An id that is not one of ours may be anything.
        Self::NoKey { key: key.clone(), id: id.chars().take(ID_LIMIT_BYTES).collect() }
    }
}

/// The contents of a state that are secret.
fn contents(state: &mut RecordState) -> impl Iterator<Item = &mut proto::Content> {
    let served = state.quarantined.as_mut().and_then(|quarantined| quarantined.serve.as_mut());
    state.content.as_mut().into_iter().chain(served)
}

/// Whether a stored record is sealed, without decoding it. False for what is no record.
pub(crate) fn is_sealed(value: &[u8]) -> bool {
    let Some((_, mut fields)) = value.split_first_chunk::<{ checked::CHECKSUM_BYTES }>() else {
        return false;
    };
    while let Ok((tag, wire_type)) = prost::encoding::decode_key(&mut fields) {
        if tag == IS_SEALED {
            return fields.first() == Some(&1);
        }
        let context = prost::encoding::DecodeContext::default();
        if prost::encoding::skip_field(wire_type, tag, &mut fields, context).is_err() {
            return false;
        }
    }
    false
}

/// The associated data of a record.
fn associated(key: &RecordKey) -> Vec<u8> {
    key.to_proto().encode_to_vec()
}

/// The number of the field `is_sealed` of a `RecordState`.
const IS_SEALED: u32 = 8;

/// The longest id of a key.
const ID_LIMIT_BYTES: usize = 64;

/// Without the key.
impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
