//! What is wrong in a `when:` text, where, and what may have been meant.

use std::fmt;
use std::sync::Arc;

use super::token::Token;

/// Why a text is no condition. Columns count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError {
    /// Something else belongs here.
    #[error("column {column}: expected {expected}, found {found}{}", Suffix(*hint))]
    Unexpected {
        /// Where it stands.
        column: usize,
        /// What may stand there.
        expected: Expected,
        /// What stands there.
        found: FoundToken,
        /// What may have been meant.
        hint: Option<Hint>,
    },
    /// The text ends inside quotes.
    #[error("column {column}: the quote that opens here is never closed")]
    UnclosedQuote {
        /// Where the quote opens.
        column: usize,
    },
    /// The text ends inside parentheses.
    #[error("column {column}: the parenthesis that opens here is never closed")]
    UnclosedParenthesis {
        /// Where the innermost one opens.
        column: usize,
    },
    /// A backslash is followed by none of the escapes of JSON, or by half of a surrogate pair.
    #[error("column {column}: no escape of JSON; a backslash itself is written `\\\\`")]
    BadEscape {
        /// Where the backslash stands.
        column: usize,
    },
    /// A character below U+0020 stands in quotes as it is.
    #[error("column {column}: a control character in quotes is written as an escape, such as `\\n`")]
    ControlCharacter {
        /// Where it stands.
        column: usize,
    },
    /// W2: a key holds a character below U+0020, which no receiver accepts.
    #[error("column {column}: key `{}` has a control character", key.escape_debug())]
    ControlCharacterInKey {
        /// Where the key starts.
        column: usize,
        /// Its text.
        key: Arc<str>,
    },
    /// T11: more than `limit` operators stand inside one another.
    #[error("column {column}: more than {limit} operators inside one another")]
    TooDeep {
        /// Where the operator or parenthesis that is one too many starts.
        column: usize,
        /// [`Constraints::DEPTH_LIMIT`](crate::Constraints::DEPTH_LIMIT).
        limit: usize,
    },
    /// T11: there are more than `limit` conditions; every value of a list is one.
    #[error("column {column}: more than {limit} conditions")]
    TooManyLeaves {
        /// Where the one too many starts.
        column: usize,
        /// [`Constraints::LEAF_LIMIT`](crate::Constraints::LEAF_LIMIT).
        limit: usize,
    },
}

impl WhenError {
    /// Where the offender stands, in characters from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        match self {
            Self::Unexpected { column, .. }
            | Self::UnclosedQuote { column }
            | Self::UnclosedParenthesis { column }
            | Self::BadEscape { column }
            | Self::ControlCharacter { column }
            | Self::ControlCharacterInKey { column, .. }
            | Self::TooDeep { column, .. }
            | Self::TooManyLeaves { column, .. } => *column,
        }
    }
}

/// What may stand at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// A condition, at the start and after an operator.
    Condition,
    /// A value, after `=` and in a list.
    Value,
    /// The list after `in` and `notin`.
    List,
    /// The next value of a list, or its end.
    ListEnd,
    /// What follows a condition.
    Continuation,
    /// What follows a condition in parentheses.
    ContinuationOrClose,
    /// What follows a key.
    ContinuationOfKey,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Condition => "a condition such as `key=value`",
            Self::Value => "a value",
            Self::List => "a list such as `(a,b)`",
            Self::ListEnd => "`,` or `)`",
            Self::Continuation => "`,`, `||` or the end",
            Self::ContinuationOrClose => "`,`, `||` or `)`",
            Self::ContinuationOfKey => "`=`, `!=`, `in`, `notin`, `,` or `||`",
        })
    }
}

/// What stands at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundToken {
    /// Nothing more.
    End,
    /// A bare word.
    Word(Arc<str>),
    /// Something in quotes, without them.
    Quoted(Arc<str>),
    /// A sign of the syntax.
    Sign(&'static str),
    /// A character that has no meaning outside quotes.
    Character(char),
}

impl From<&Token<'_>> for FoundToken {
    fn from(token: &Token<'_>) -> Self {
        match token {
            Token::Word(word) => Self::Word((*word).into()),
            Token::Quoted(text) => Self::Quoted(text.as_str().into()),
            Token::Open => Self::Sign("("),
            Token::Close => Self::Sign(")"),
            Token::Comma => Self::Sign(","),
            Token::Or => Self::Sign("||"),
            Token::Not => Self::Sign("!"),
            Token::Equal => Self::Sign("="),
            Token::NotEqual => Self::Sign("!="),
            Token::Other(c) => Self::Character(*c),
            Token::End => Self::End,
        }
    }
}

impl fmt::Display for FoundToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("the end"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Quoted(text) => write!(f, "{text:?}"),
            Self::Sign(sign) => write!(f, "`{sign}`"),
            Self::Character(c) => write!(f, "`{}`", c.escape_debug()),
        }
    }
}

/// What to write instead, for common mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// `&&`, `&` or `and` for `,`.
    And,
    /// `|` or `or` for `||`.
    Or,
    /// `not` for `!`.
    Not,
    /// `not in` for `notin`.
    NotIn,
    /// Upper case in `in` or `notin`.
    LowerCase,
    /// `!!`.
    DoubleNot,
    /// Single quotes or back ticks.
    DoubleQuotes,
    /// A character that only quotes can hold.
    Quote,
    /// A constant in the place of a key.
    QuoteConstant,
    /// No value at all.
    EmptyValue,
    /// No text at all.
    Always,
    /// A `)` too many.
    NothingOpen,
}

impl Hint {
    pub(super) fn of(expected: Expected, found: &Token<'_>) -> Option<Self> {
        use Expected::{Condition, Continuation, ContinuationOfKey, ContinuationOrClose, Value};
        Some(match (found, expected) {
            (Token::Other('&'), _) => Self::And,
            (Token::Other('|'), _) => Self::Or,
            (Token::Other('\'' | '`' | '‘' | '’' | '“' | '”'), _) => Self::DoubleQuotes,
            (Token::Other(_), _) => Self::Quote,
            (Token::Word("and" | "And" | "AND"), Continuation | ContinuationOfKey | ContinuationOrClose) => {
                Self::And
            }
            (Token::Word("or" | "Or" | "OR"), Continuation | ContinuationOfKey | ContinuationOrClose) => {
                Self::Or
            }
            (Token::Word("not" | "Not" | "NOT"), ContinuationOfKey) => Self::NotIn,
            (Token::Word("In" | "IN" | "NotIn" | "NOTIN"), ContinuationOfKey) => Self::LowerCase,
            (Token::Not, Condition) => Self::DoubleNot,
            (Token::End | Token::Comma | Token::Or | Token::Close, Value) => Self::EmptyValue,
            // In parentheses or behind a key in them, it would have been taken.
            (Token::Close, Continuation | ContinuationOfKey) => Self::NothingOpen,
            _ => return None,
        })
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::And => "write `,` for \"and\"",
            Self::Or => "write `||` for \"or\"",
            Self::Not => "write `!` for \"not\"",
            Self::NotIn => "write `notin` in one word",
            Self::LowerCase => "write `in` and `notin` in lower case",
            Self::DoubleNot => "a double `!` says nothing: leave out both",
            Self::DoubleQuotes => "quotes are double: `\"`",
            Self::Quote => "write a key or value with this character in double quotes",
            Self::QuoteConstant => "write a key of this name in double quotes",
            Self::EmptyValue => "write `\"\"` for the empty value",
            Self::Always => "write `true` for everyone",
            Self::NothingOpen => "no parenthesis is open",
        })
    }
}

/// A hint as the end of a message.
struct Suffix(Option<Hint>);

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}
