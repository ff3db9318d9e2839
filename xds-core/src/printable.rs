//! Quotes texts of peers, so that they stay on one line and look like what they are.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with an escape, as in JSON, for each character that a terminal or a page does not print as itself: control
/// characters, separators of lines, characters without a width, and those that change the direction of what follows.
///
/// Use it for every text of a peer that is printed or logged.
///
/// ```
/// use xds_core::printable;
///
/// assert_eq!(printable("edge-1"), "edge-1");
/// assert_eq!(printable("a\n2026 INFO forged\x1b[2J\u{202e}"), r"a\n2026 INFO forged\u001b[2J\u202e");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// The same, but line breaks stay. For text of many lines whose parts are [`printable`], and for JSON, which means the
/// same after this.
///
/// ```
/// use xds_core::printable_lines;
///
/// assert_eq!(printable_lines("{\n  \"id\": \"a\u{202e}b\"\n}"), "{\n  \"id\": \"a\\u202eb\"\n}");
/// ```
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_hidden(c))
}

fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return text.into();
    }
    let mut printed = String::with_capacity(text.len() + ROOM);
    for c in text.chars() {
        match c {
            c if !is_meant(c) => printed.push(c),
            '\n' => printed.push_str("\\n"),
            '\r' => printed.push_str("\\r"),
            '\t' => printed.push_str("\\t"),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(printed, "\\u{unit:04x}")),
        }
    }
    printed.into()
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Room for some escapes.
const ROOM: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_escaped_and_all_else_stays() {
        for text in ["", "édge 1", "日本", "a\\n\"'", "𝄞"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(printable("\r\n\t\0\u{7f}\u{85}"), r"\r\n\t\u0000\u007f\u0085");
        assert_eq!(printable("a\u{2028}b\u{e0041}é"), r"a\u2028b\udb40\udc41é");
        assert_eq!(printable_lines("a\r\n\u{2028}b\n"), "a\\r\n\\u2028b\n");
    }
}
