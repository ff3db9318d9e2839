//! Percent escapes, both ways (X5, X6).

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use super::XdstpError;

/// A part of a text that knows its position.
pub(super) struct Piece<'a> {
    whole: &'a str,
    start: usize,
    end: usize,
}

impl<'a> Piece<'a> {
    pub(super) fn of(whole: &'a str) -> Self {
        Self { whole, start: 0, end: whole.len() }
    }

    fn text(&self) -> &'a str {
        &self.whole[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The rest after this prefix; `None` if the text does not start with it.
    pub(super) fn behind(&self, prefix: &str) -> Option<Self> {
        self.text().starts_with(prefix).then(|| Self { start: self.start + prefix.len(), ..*self })
    }

    /// The part before the first separator, and the part after it, if there is a separator.
    pub(super) fn split(&self, separator: char) -> (Self, Option<Self>) {
        match self.text().find(separator) {
            None => (Self { ..*self }, None),
            Some(at) => {
                let end = self.start + at;
                (Self { end, ..*self }, Some(Self { start: end + separator.len_utf8(), ..*self }))
            }
        }
    }

    pub(super) fn column(&self) -> usize {
        self.column_at(0)
    }

    pub(super) fn end_column(&self) -> usize {
        self.column_at(self.end - self.start)
    }

    fn column_at(&self, offset: usize) -> usize {
        self.whole[..self.start + offset].chars().count() + 1
    }

    /// The text without escapes.
    pub(super) fn decoded(&self) -> Result<Cow<'a, str>, XdstpError> {
        let text = self.text();
        let decoded = if text.contains('%') { Cow::Owned(self.unescaped()?) } else { Cow::Borrowed(text) };
        // W2. `Resource::new` refuses the same characters in an old-style name.
        if let Some((at, found)) = decoded.char_indices().find(|(_, c)| c.is_ascii_control()) {
            return Err(XdstpError::ControlCharacter { column: self.column_at(self.offset_of(at)), found });
        }
        Ok(decoded)
    }

    fn unescaped(&self) -> Result<String, XdstpError> {
        let text = self.text();
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, behind @ ..] = rest {
            let (byte, behind) = match first {
                b'%' => {
                    let (escape, behind) = behind.split_at_checked(2).unwrap_or_default();
                    let byte = byte_of(escape).ok_or_else(|| {
                        let offset = text.len() - rest.len();
                        let found = text[offset..].chars().take(3).collect();
                        XdstpError::BadEscape { column: self.column_at(offset), found }
                    })?;
                    (byte, behind)
                }
                byte => (*byte, behind),
            };
            bytes.push(byte);
            rest = behind;
        }
        String::from_utf8(bytes).map_err(|error| {
            let offset = self.offset_of(error.utf8_error().valid_up_to());
            let found = text[offset..].chars().take(3).collect();
            XdstpError::NotUtf8 { column: self.column_at(offset), found }
        })
    }

    /// The offset of a decoded byte in a text with valid escapes.
    fn offset_of(&self, decoded: usize) -> usize {
        let bytes = self.text().as_bytes();
        (0..decoded).fold(0, |offset, _| offset + if bytes[offset] == b'%' { 3 } else { 1 })
    }
}

/// The byte of two hex digits.
fn byte_of(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

/// Prints a text with escapes for the given characters, and for all characters that URIs exclude.
pub(super) struct Escaped<'a>(pub(super) &'a str, pub(super) &'static [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if is_of_uri(byte) && !self.1.contains(&byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// RFC 3986: characters that are never escaped.
pub(super) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// RFC 3986: characters that are allowed somewhere in a URI. Envoy does not escape the others; gRPC
/// refuses names with them.
fn is_of_uri(byte: u8) -> bool {
    is_unreserved(byte) || b"%:/?#[]@!$&'()*+,;=".contains(&byte)
}
