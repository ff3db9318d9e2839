//! Errors of a `when:` text, with their column and a hint.

use std::fmt;
use std::sync::Arc;

use super::token::Token;

/// Why a text is not a valid condition. Columns count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError {
    /// A token that is not allowed here.
    #[error("column {column}: expected {expected}, found {found}{}", Suffix(*hint))]
    Unexpected {
        /// Where the token starts.
        column: usize,
        /// The tokens that are allowed here.
        expected: Expected,
        /// The token.
        found: FoundToken,
        /// The correction, for a common mistake.
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
    /// A backslash does not start an escape of JSON, or starts half of a surrogate pair.
    #[error("column {column}: not an escape of JSON; write `\\\\` for a backslash")]
    BadEscape {
        /// Where the backslash is.
        column: usize,
    },
    /// A character below U+0020 is in quotes without an escape.
    #[error("column {column}: write a control character in quotes as an escape, such as `\\n`")]
    ControlCharacter {
        /// Where the character is.
        column: usize,
    },
    /// W2: a key has a character below U+0020, which no receiver accepts.
    #[error("column {column}: key `{}` has a control character", key.escape_debug())]
    ControlCharacterInKey {
        /// Where the key starts.
        column: usize,
        /// Its text.
        key: Arc<str>,
    },
    /// T11: more than `limit` operators are nested.
    #[error("column {column}: operators are nested more than {limit} deep")]
    TooDeep {
        /// Where the first operator or parenthesis that is too deep starts.
        column: usize,
        /// [`Constraints::DEPTH_LIMIT`](crate::Constraints::DEPTH_LIMIT).
        limit: usize,
    },
    /// T11: there are more than `limit` conditions. Every value of a list counts as one.
    #[error("column {column}: more than {limit} conditions")]
    TooManyLeaves {
        /// Where the first condition above the limit starts.
        column: usize,
        /// [`Constraints::LEAF_LIMIT`](crate::Constraints::LEAF_LIMIT).
        limit: usize,
    },
}

impl WhenError {
    /// Where the error is, in characters from 1.
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

/// The tokens that are allowed at a place.
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
    /// An operator or the end, after a condition.
    Continuation,
    /// An operator or `)`, after a condition in parentheses.
    ContinuationOrClose,
    /// An operator, after a key.
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

/// The token that was found instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundToken {
    /// The end of the text.
    End,
    /// A word without quotes.
    Word(Arc<str>),
    /// The text between quotes.
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

/// The correction of a common mistake.
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
    /// A missing value.
    EmptyValue,
    /// An empty text.
    Always,
    /// A `)` without its `(`.
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
            // In parentheses, the parser would have accepted the `)`.
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
            Self::DoubleNot => "a double `!` has no effect; remove both",
            Self::DoubleQuotes => "use double quotes: `\"`",
            Self::Quote => "write a key or value with this character in double quotes",
            Self::QuoteConstant => "write a key of this name in double quotes",
            Self::EmptyValue => "write `\"\"` for the empty value",
            Self::Always => "write `true` to match every client",
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
