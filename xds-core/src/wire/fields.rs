//! The fields of encoded messages, read without decoding them and written one by one.

use bytes::BufMut;
use prost::encoding::{encode_varint, encoded_len_varint};

/// The value of a field. If the field occurs several times, the last one counts.
pub(crate) fn text(message: &[u8], field: u32) -> Option<&[u8]> {
    let of_number = fields(message).map_while(|field| field).filter(|(number, _)| *number == field);
    of_number.map(|(_, value)| value).last()
}

/// The length-delimited fields of a message, with their numbers. At bytes that are not a field, it
/// returns `None` and ends.
pub(crate) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Option<(u32, &[u8])>> {
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            match next_field(&mut rest) {
                Some((_, None)) => {}
                Some((number, Some(value))) => return Some(Some((number, value))),
                None => {
                    rest = &[];
                    return Some(None);
                }
            }
        }
        None
    })
}

/// The number of the next field, and its value if it is length-delimited.
pub(crate) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
    let length = match key & 7 {
        0 => {
            varint(rest)?;
            0
        }
        1 => 8,
        5 => 4,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            let (value, after) = rest.split_at_checked(length)?;
            *rest = after;
            return Some((number, Some(value)));
        }
        // Groups: no message of Envoy has any.
        _ => return None,
    };
    *rest = rest.get(length..)?;
    Some((number, None))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *rest = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

/// What becomes of a field.
#[derive(Debug)]
pub(crate) enum Edit {
    Keep,
    Drop,
    Replace(Vec<u8>),
}

/// A copy of a message, with what `edit` makes of its length-delimited fields. `None` if nothing
/// changed, or if the bytes are not a message.
pub(crate) fn edited(message: &[u8], mut edit: impl FnMut(u32, &[u8]) -> Edit) -> Option<Vec<u8>> {
    let (mut rest, mut copy) = (message, Vec::with_capacity(message.len()));
    let mut has_changed = false;
    while !rest.is_empty() {
        let before = rest;
        let (number, value) = next_field(&mut rest)?;
        match value.map_or(Edit::Keep, |value| edit(number, value)) {
            Edit::Keep => copy.extend_from_slice(&before[..before.len() - rest.len()]),
            Edit::Drop => has_changed = true,
            Edit::Replace(value) => {
                put_field(&mut copy, number, &value);
                has_changed = true;
            }
        }
    }
    has_changed.then_some(copy)
}

/// Writes a string or a message.
pub(crate) fn put_field(buffer: &mut impl BufMut, field: u32, bytes: &[u8]) {
    put_length(buffer, field, bytes.len());
    buffer.put_slice(bytes);
}

/// Writes the tag and the length of a length-delimited field.
pub(crate) fn put_length(buffer: &mut impl BufMut, field: u32, len: usize) {
    encode_varint(u64::from(field << 3 | LENGTH_DELIMITED), buffer);
    encode_varint(len as u64, buffer);
}

/// The size of a length-delimited field whose number is below 16.
pub(crate) fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

const LENGTH_DELIMITED: u32 = 2;
