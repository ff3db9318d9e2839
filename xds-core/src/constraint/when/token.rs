//! Words and signs of the `when:` syntax.

use std::str::Chars;

use super::error::WhenError;

/// A byte position in the text.
pub(super) type Position = usize;

/// One word or sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    /// The text between double quotes, with its escapes resolved.
    Quoted(String),
    Open,
    Close,
    Comma,
    /// `||`
    Or,
    Not,
    /// `=` or `==`
    Equal,
    NotEqual,
    /// A character that starts no token.
    Other(char),
    End,
}

/// Splits the text into tokens.
pub(super) struct Tokens<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, rest: text }
    }

    /// The next token and where it starts. At the end of the text, it is always [`Token::End`].
    pub(super) fn next(&mut self) -> Result<(Position, Token<'a>), WhenError> {
        self.rest = self.rest.trim_ascii_start();
        let start = self.position();
        let mut chars = self.rest.chars();
        let token = match chars.next() {
            None => Token::End,
            Some('(') => Token::Open,
            Some(')') => Token::Close,
            Some(',') => Token::Comma,
            Some('|') if skip(&mut chars, '|') => Token::Or,
            Some('!') if skip(&mut chars, '=') => Token::NotEqual,
            Some('!') => Token::Not,
            Some('=') => {
                skip(&mut chars, '=');
                Token::Equal
            }
            Some('"') => Token::Quoted(self.quoted(&mut chars, start)?),
            Some(c) if is_bare(c) => {
                let end = self.rest.find(|c| !is_bare(c)).unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                chars = rest.chars();
                Token::Word(word)
            }
            Some(c) => Token::Other(c),
        };
        self.rest = chars.as_str();
        Ok((start, token))
    }

    /// The column of a position, in characters from 1.
    pub(super) fn column(&self, at: Position) -> usize {
        self.text[..at].chars().count() + 1
    }

    /// Whether the text has only white space.
    pub(super) fn is_blank(&self) -> bool {
        self.text.trim_ascii().is_empty()
    }

    fn position(&self) -> Position {
        self.text.len() - self.rest.len()
    }

    fn quoted(&self, chars: &mut Chars<'a>, start: Position) -> Result<String, WhenError> {
        let mut text = String::new();
        loop {
            let at = self.text.len() - chars.as_str().len();
            match chars.next() {
                None => return Err(WhenError::UnclosedQuote { column: self.column(start) }),
                Some('"') => return Ok(text),
                Some('\\') => {
                    let c = escaped(chars);
                    text.push(c.ok_or_else(|| WhenError::BadEscape { column: self.column(at) })?);
                }
                Some(c) if c < ' ' => return Err(WhenError::ControlCharacter { column: self.column(at) }),
                Some(c) => text.push(c),
            }
        }
    }
}

/// Whether a key or value needs no quotes.
pub(super) fn is_bare_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_bare)
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-')
}

/// Skips the character if it comes next.
fn skip(chars: &mut Chars<'_>, expected: char) -> bool {
    let found = chars.as_str().starts_with(expected);
    if found {
        chars.next();
    }
    found
}

/// The character of an escape of JSON; the backslash is already read.
fn escaped(chars: &mut Chars<'_>) -> Option<char> {
    Some(match chars.next()? {
        c @ ('"' | '\\' | '/') => c,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let first = utf16_unit(chars)?;
            let second = match first {
                // The first half of a surrogate pair: the second half must follow.
                0xd800..0xdc00 => (skip(chars, '\\') && skip(chars, 'u')).then(|| utf16_unit(chars))?,
                _ => None,
            };
            let units = [first].into_iter().chain(second);
            let mut decoded = char::decode_utf16(units);
            let c = decoded.next()?.ok()?;
            decoded.next().is_none().then_some(c)?
        }
        _ => return None,
    })
}

fn utf16_unit(chars: &mut Chars<'_>) -> Option<u16> {
    (0..4).try_fold(0, |unit, _| Some(unit << 4 | chars.next()?.to_digit(16)? as u16))
}
