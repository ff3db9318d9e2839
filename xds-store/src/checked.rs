//! Stored values with a checksum (ST47).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Why a stored value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored value of {key:?} is damaged")]
pub struct Damaged {
    /// The key in the engine.
    pub key: Bytes,
}

/// A message with the checksum of itself and of its key, so that a value under another key is
/// damage, too.
pub(crate) fn encode(key: &[u8], message: &impl Message) -> Bytes {
    encode_both(key, message, &())
}

/// Two messages as one that has the fields of both.
pub(crate) fn encode_both(key: &[u8], one: &impl Message, other: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(CHECKSUM_BYTES + one.encoded_len() + other.encoded_len());
    bytes.put_u32(0);
    one.encode(&mut bytes).expect("the buffer grows");
    other.encode(&mut bytes).expect("the buffer grows");
    let checksum = checksum(key, &bytes[CHECKSUM_BYTES..]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_be_bytes());
    bytes.freeze()
}

/// Verifies the checksum of a stored value.
pub(crate) fn verify(key: &[u8], value: &[u8]) -> Result<(), Damaged> {
    let stored = value.split_first_chunk();
    match stored.filter(|(expected, message)| u32::from_be_bytes(**expected) == checksum(key, message)) {
        Some(_) => Ok(()),
        None => Err(Damaged { key: Bytes::copy_from_slice(key) }),
    }
}

/// The message of a stored value. Its bytes fields share the memory of the value.
pub(crate) fn decode<M: Message + Default>(key: &[u8], mut value: Bytes) -> Result<M, Damaged> {
    verify(key, &value)?;
    value.advance(CHECKSUM_BYTES);
    M::decode(value).map_err(|_| Damaged { key: Bytes::copy_from_slice(key) })
}

/// The messages of [`encode_both`]. Each of them ignores the fields of the other one.
pub(crate) fn decode_both<M: Message + Default, N: Message + Default>(
    key: &[u8],
    mut value: Bytes,
) -> Result<(M, N), Damaged> {
    verify(key, &value)?;
    value.advance(CHECKSUM_BYTES);
    let both = M::decode(value.clone()).and_then(|one| Ok((one, N::decode(value)?)));
    both.map_err(|_| Damaged { key: Bytes::copy_from_slice(key) })
}

fn checksum(key: &[u8], message: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(message);
    hasher.finalize()
}

pub(crate) const CHECKSUM_BYTES: usize = size_of::<u32>();

#[cfg(test)]
mod tests {
    use xds_proto::xds::store::v1 as proto;

    use super::*;

    #[test]
    fn st47_each_flipped_bit_and_another_key_are_damage() {
        let message = proto::Key { type_url: "t".into(), name: "n".into(), when: String::new() };
        let stored = encode(b"k", &message);
        assert_eq!(decode::<proto::Key>(b"k", stored.clone()), Ok(message));
        assert!(decode::<proto::Key>(b"j", stored.clone()).is_err());
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<proto::Key>(b"k", flipped.into()).is_err(), "bit {bit}");
        }
    }
}
