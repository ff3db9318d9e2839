//! Encoded parts of a response, made once and shared by all streams that send them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::fields::{put_field, put_length};
use crate::name::ResourceName;

/// A run of encoded fields of a discovery response, in slices that share memory with the cache.
#[derive(Default)]
pub struct Body {
    chunks: Vec<Bytes>,
    len: usize,
    resources: usize,
    /// Where it is split, if it is too large for one message.
    cuts: Vec<Cut>,
}

/// The end of a part that fits into one message. The resources of one name are never split (T39).
#[derive(Debug, Clone)]
struct Cut {
    chunks: usize,
    len: usize,
    resources: usize,
    /// The last name before the cut.
    until: ResourceName,
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

    /// How many resources it has.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.resources
    }

    /// The body in parts that each fit into one message (G10, D32). Each part except the last one
    /// comes with its last name.
    pub(crate) fn parts(self: &Arc<Self>) -> Vec<(Arc<Self>, Option<ResourceName>)> {
        if self.cuts.is_empty() {
            return vec![(Arc::clone(self), None)];
        }
        let (len, resources, chunks) = (self.len, self.resources, self.chunks.len());
        let ends = self.cuts.iter().map(|cut| (cut.chunks, cut.len, cut.resources, Some(cut.until.clone())));
        let mut from = (0, 0, 0);
        let part = |(to, len, resources, until): (usize, usize, usize, Option<ResourceName>)| {
            let chunks = self.chunks[from.0..to].to_vec();
            let part = Self { chunks, len: len - from.1, resources: resources - from.2, cuts: Vec::new() };
            from = (to, len, resources);
            (Arc::new(part), until)
        };
        ends.chain([(chunks, len, resources, None)]).map(part).collect()
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

/// Writes small fields into one buffer, and large payloads as slices of their own.
#[derive(Debug, Default)]
pub(crate) struct BodyWriter {
    buffer: Vec<u8>,
    /// How many bytes of small resources are still to come, about.
    expected: usize,
    body: Body,
    /// The name that was written last, in bodies that may be split.
    last_name: Option<ResourceName>,
}

impl BodyWriter {
    /// Reserves memory for names of about these lengths. Otherwise, the buffer would double many
    /// times: it would be copied, and memory of each size would be new to the process.
    pub(crate) fn reserve(&mut self, lens: impl Iterator<Item = usize>) {
        self.expected = lens.filter(|len| *len < SHARED_FROM_BYTES).sum();
        self.buffer.reserve(self.expected.min(PART_LIMIT_BYTES));
    }

    /// Call it before the next name is written, which needs about this many bytes. Starts a new
    /// part if the name does not fit into this one.
    pub(crate) fn part(&mut self, next_len: usize) {
        let written = self.body.len + self.buffer.len();
        let from = self.body.cuts.last().map_or(0, |cut| cut.len);
        if let Some(until) = self.last_name.clone()
            && written - from + next_len > PART_LIMIT_BYTES
        {
            self.flush();
            let Body { chunks, len, resources, .. } = &self.body;
            let cut = Cut { chunks: chunks.len(), len: *len, resources: *resources, until };
            self.body.cuts.push(cut);
            self.buffer.reserve(self.expected.min(PART_LIMIT_BYTES));
        }
        // Otherwise, the buffer would grow several times while the name is written. Larger payloads
        // are slices of their own, and need a buffer for the fields around them only.
        self.buffer.reserve(if next_len < SHARED_FROM_BYTES { next_len } else { SMALL_FIELDS_BYTES });
    }

    /// Writes the value of a field after its [length](Self::length). A large value becomes a slice
    /// of its own.
    pub(crate) fn payload(&mut self, payload: &Bytes) {
        if payload.len() < SHARED_FROM_BYTES {
            self.buffer.extend_from_slice(payload);
        } else {
            self.flush();
            self.body.len += payload.len();
            self.body.chunks.push(payload.clone());
        }
    }

    /// Writes a string.
    pub(crate) fn text(&mut self, field: u32, text: &str) {
        self.field(field, text.as_bytes());
    }

    /// Writes a string or a message.
    pub(crate) fn field(&mut self, field: u32, bytes: &[u8]) {
        put_field(&mut self.buffer, field, bytes);
    }

    /// Writes fields that are encoded already.
    pub(crate) fn encoded(&mut self, fields: &[u8]) {
        self.buffer.extend_from_slice(fields);
    }

    /// Counts a resource that was written.
    pub(crate) fn end_resource(&mut self) {
        self.body.resources += 1;
    }

    /// Ends the resources of a name. Before the next name, the body can be split.
    pub(crate) fn end_name(&mut self, name: &ResourceName) {
        self.last_name = Some(name.clone());
    }

    /// Writes the tag and the length of a length-delimited field.
    pub(crate) fn length(&mut self, field: u32, len: usize) {
        put_length(&mut self.buffer, field, len);
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.body.len += self.buffer.len();
            self.expected = self.expected.saturating_sub(self.buffer.len());
            // The reserved memory stays for what follows. A slice would keep all of it.
            let is_mostly_empty = self.buffer.len() < self.buffer.capacity() / 2;
            let chunk = if is_mostly_empty {
                let chunk = Bytes::copy_from_slice(&self.buffer);
                self.buffer.clear();
                chunk
            } else {
                std::mem::take(&mut self.buffer).into()
            };
            self.body.chunks.push(chunk);
        }
    }

    /// The finished body.
    pub(crate) fn finish(mut self) -> Body {
        self.flush();
        self.body
    }
}

/// Payloads of at least this size are slices of their own. For a smaller payload, the transport's
/// cost of a slice (a frame each) is higher than that of the one copy that all streams of a class
/// share.
const SHARED_FROM_BYTES: usize = 4096;

/// The fields around a payload, with a name of the usual length.
const SMALL_FIELDS_BYTES: usize = 256;

/// The most bytes of a part, unless a single name has more (G10): the 4 MiB that peers commonly
/// accept, minus the room for the other fields of the response.
const PART_LIMIT_BYTES: usize = (4 << 20) - (32 << 10);

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffer grew four times for an update of one name.
    #[test]
    fn the_buffer_does_not_grow_while_a_name_of_the_announced_length_is_written() {
        let mut writer = BodyWriter::default();
        writer.part(1000);
        let buffer = writer.buffer.as_ptr();
        for _ in 0..100 {
            writer.encoded(&[0; 10]);
        }
        assert_eq!(writer.buffer.as_ptr(), buffer);
    }

    /// Regression: the fields before the first large payload took the memory for all others away.
    #[test]
    fn reserved_memory_is_left_for_what_follows_a_large_payload() {
        let mut writer = BodyWriter::default();
        writer.reserve([5000, 100, 100, 100].into_iter());
        let buffer = writer.buffer.as_ptr();
        writer.part(5000);
        writer.encoded(&[0; 20]);
        writer.payload(&vec![0; 5000].into());
        for _ in 0..30 {
            writer.encoded(&[0; 10]);
        }
        assert_eq!(writer.buffer.as_ptr(), buffer);
    }

    /// Regression: the first part of a large body kept memory for all parts.
    #[test]
    fn a_part_keeps_memory_for_its_own_bytes_only() {
        let mut writer = BodyWriter::default();
        writer.reserve(std::iter::repeat_n(1000, 100_000));
        assert!(writer.buffer.capacity() <= PART_LIMIT_BYTES);
        for at in 0..9000 {
            writer.part(1000);
            writer.encoded(&[0; 1000]);
            writer.end_name(&format!("{at}").as_str().into());
            assert!(writer.buffer.capacity() <= PART_LIMIT_BYTES);
        }
        let body = writer.finish();
        assert_eq!((body.chunks.len(), body.len), (3, 9_000_000));
    }
}
