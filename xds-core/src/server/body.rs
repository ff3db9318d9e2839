//! The resources of a response as bytes, made once and shared by every stream that sends the same.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::name::{ResourceName, TypeUrl};
use crate::variants::Variant;

/// A run of encoded fields of a discovery response, in slices that share memory with the cache.
#[derive(Default)]
pub struct Body {
    chunks: Vec<Bytes>,
    len: usize,
    resources: usize,
}

impl Body {
    /// The slices in order.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many resources it holds.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.resources
    }

    /// Entries of `DiscoveryResponse.resources`.
    pub(super) fn sotw<'a>(type_url: &TypeUrl, variants: impl Iterator<Item = &'a Arc<Variant>>) -> Self {
        let mut body = Builder::default();
        for variant in variants {
            body.resource(type_url, variant);
        }
        body.finish()
    }

    /// Entries of `DeltaDiscoveryResponse.resources` and `removed_resources`.
    pub(super) fn delta<'a>(
        type_url: &TypeUrl,
        variants: impl Iterator<Item = &'a Arc<Variant>>,
        removed: impl Iterator<Item = &'a ResourceName>,
    ) -> Self {
        let mut body = Builder::default();
        for variant in variants {
            body.named_resource(type_url, variant);
        }
        for name in removed {
            body.text(DELTA_REMOVED_RESOURCES, name.as_str());
        }
        body.finish()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("resources", &self.resources)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Writes small things into one buffer and large payloads as slices of their own.
#[derive(Debug, Default)]
struct Builder {
    buffer: BytesMut,
    body: Body,
}

impl Builder {
    /// An `Any` in the field that carries it: `resources` of a response, and `resource` of a `Resource`, are both 2.
    fn resource(&mut self, type_url: &TypeUrl, variant: &Variant) {
        self.length(RESOURCES, any_len(type_url, variant));
        self.text(ANY_TYPE_URL, type_url.as_str());
        self.length(ANY_VALUE, variant.payload().len());
        self.payload(variant.payload());
        self.body.resources += 1;
    }

    /// T24: a client that sent no locator is told the plain name.
    fn named_resource(&mut self, type_url: &TypeUrl, variant: &Variant) {
        let any = any_len(type_url, variant);
        let len = field_len(VERSION_TEXT_LEN) + field_len(any) + field_len(variant.name().as_str().len());
        self.length(RESOURCES, len);
        self.text(RESOURCE_VERSION, &variant.version().to_string());
        self.resource(type_url, variant);
        self.text(RESOURCE_NAME, variant.name().as_str());
    }

    fn payload(&mut self, payload: &Bytes) {
        if payload.len() < SHARED_FROM_BYTES {
            self.buffer.put_slice(payload);
        } else {
            self.flush();
            self.body.len += payload.len();
            self.body.chunks.push(payload.clone());
        }
    }

    fn text(&mut self, field: u32, text: &str) {
        self.length(field, text.len());
        self.buffer.put_slice(text.as_bytes());
    }

    fn length(&mut self, field: u32, len: usize) {
        put_length(&mut self.buffer, field, len);
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.body.len += self.buffer.len();
            self.body.chunks.push(self.buffer.split().freeze());
        }
    }

    fn finish(mut self) -> Body {
        self.flush();
        self.body
    }
}

/// The tag and the length of a length-delimited field.
fn put_length(buffer: &mut BytesMut, field: u32, len: usize) {
    encode_varint(u64::from(field << 3 | LENGTH_DELIMITED), buffer);
    encode_varint(len as u64, buffer);
}

/// Writes a string field, unless it is empty.
pub(super) fn put_text(buffer: &mut BytesMut, field: u32, text: &str) {
    if !text.is_empty() {
        put_length(buffer, field, text.len());
        buffer.put_slice(text.as_bytes());
    }
}

fn any_len(type_url: &TypeUrl, variant: &Variant) -> usize {
    field_len(type_url.as_str().len()) + field_len(variant.payload().len())
}

/// A length-delimited field with a number below 16.
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Payloads from this size on are slices of their own. Below it a slice costs the transport more (a frame each) than
/// the one copy that all streams of a class share.
const SHARED_FROM_BYTES: usize = 4096;

/// Length of a printed [`Version`](crate::Version).
const VERSION_TEXT_LEN: usize = 32;

const LENGTH_DELIMITED: u32 = 2;
const RESOURCES: u32 = 2;
const DELTA_REMOVED_RESOURCES: u32 = 6;
const RESOURCE_VERSION: u32 = 1;
const RESOURCE_NAME: u32 = 3;
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;
