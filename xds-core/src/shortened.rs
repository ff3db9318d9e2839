//! Shortens texts of peers for people.

use std::borrow::Cow;

use crate::hash::digest;

/// The text, if it has at most this many bytes; else its beginning, its length and a digest of the
/// whole, so that two long texts with the same beginning still differ. A limit below 64 counts as
/// 64.
///
/// Use it for every text of a peer that is stored, logged or shown.
///
/// ```
/// use xds_core::shortened;
///
/// assert_eq!(shortened("edge-1", 100), "edge-1");
/// let (one, other) = ("x".repeat(1_000_000) + "1", "x".repeat(1_000_000) + "2");
/// assert!(shortened(&one, 100).contains("..(1000001 bytes, ") && shortened(&one, 100).len() == 100);
/// assert_ne!(shortened(&one, 100), shortened(&other, 100));
/// ```
#[must_use]
pub fn shortened(text: &str, limit_bytes: usize) -> Cow<'_, str> {
    let limit_bytes = limit_bytes.max(SHORTEST);
    if text.len() <= limit_bytes {
        return text.into();
    }
    let digest = format!("{:032x}", digest(blake3::Hasher::new().update(text.as_bytes())));
    let end = format!("..({} bytes, {})", text.len(), &digest[..DIGITS]);
    let cut = (0..=limit_bytes - end.len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}{end}", &text[..cut]).into()
}

/// How many digits of the digest are shown.
const DIGITS: usize = 16;

/// Room for the length, the digest and a beginning.
const SHORTEST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_never_longer_than_the_limit() {
        for limit in [0, 64, 65, 66, 100] {
            for text in ["é".repeat(1000), "x".to_owned() + &"é".repeat(1000), "𝄞".repeat(100)] {
                let short = shortened(&text, limit);
                assert!(short.len() <= limit.max(SHORTEST) && short.contains("bytes, "), "{short}");
            }
        }
        assert_eq!(shortened(&"é".repeat(50), 100), "é".repeat(50));
    }
}
