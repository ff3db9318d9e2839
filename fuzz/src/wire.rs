//! Encoded constraints.

use prost::Message;
use xds_core::{ConstraintError, Constraints};
use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;

use crate::constraints;

/// Reads an encoded `DynamicParameterConstraints`. The reader returns the same as any protobuf
/// parser, or an error (T8, T9, T11).
///
/// # Panics
/// When a property does not hold.
pub fn constraints_wire(raw: &[u8]) -> bool {
    let decoded = DynamicParameterConstraints::decode(raw);
    match Constraints::from_wire(raw) {
        Ok(read) => {
            let decoded = decoded.expect("accepted constraints decode");
            let again = Constraints::from_proto(&decoded).expect("the two readers have the same rules");
            assert_eq!(again.formula(), read.formula());
            assert_eq!(&read.wire()[..], raw);
            constraints::check(&read);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let decoded = decoded.map(|decoded| (Constraints::from_proto(&decoded), decoded));
            match (error, decoded) {
                // The decoder dropped a type of a later version.
                (ConstraintError::Untyped { .. }, Ok((Ok(again), decoded))) => {
                    assert!(decoded.r#type.is_none() && again.is_unconstrained());
                }
                // A field that a later one replaces counts too, because it takes memory while it is
                // read.
                (ConstraintError::TooDeep { .. } | ConstraintError::TooManyLeaves { .. }, _) => {}
                (error, Ok((Ok(_), _))) => panic!("{error}: but it decodes to accepted constraints"),
                (_, Ok((Err(_), _)) | Err(_)) => {}
            }
            false
        }
    }
}

/// Tags with lengths, and whole conditions.
pub(crate) const WORDS: &[&[u8]] = &[
    b"\x0a\x00",
    b"\x12\x00",
    b"\x1a\x00",
    b"\x22\x00",
    b"\x0a\x01k",
    b"\x12\x01v",
    b"\x0a\x05\x0a\x01k\x1a\x00",
    b"\x0a\x07\x0a\x05\x0a\x01k\x1a\x00",
    b"\x0a\x06\x0a\x01k\x12\x01v",
    b"\x22\x07\x0a\x05\x0a\x01k\x1a\x00",
    b"\x12\x09\x0a\x07\x0a\x05\x0a\x01k\x1a\x00",
    // Unknown fields: a varint, text, a group.
    b"\x38\x01",
    b"\x2a\x01x",
    b"\x4b\x4c",
    b"\x4b",
    b"\x80",
    b"\xff",
];
