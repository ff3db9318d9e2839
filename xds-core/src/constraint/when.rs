//! The `when:` syntax: constraints for people to write, similar to Kubernetes' label selectors.
//!
//! ```text
//! or     := and ('||' and)*
//! and    := unary (',' unary)*
//! unary  := '!'? ( '(' or ')' | 'true' | 'false' | key | key op value | key ('in'|'notin') '(' value (',' value)* ')' )
//! op     := '=' | '==' | '!='
//! ```
//!
//! A key alone matches if the key exists. `!=` and `notin` also match if the key is absent. Keys
//! and values of the characters `A-Z a-z 0-9 . _ / -` need no quotes. All others need double
//! quotes, with the escapes of JSON. A key named `true` or `false` also needs quotes, because these
//! words are the constants. `key=""` matches if the key exists with the empty value.
//!
//! ```
//! use xds_core::{Constraints, Parameters};
//!
//! let canary: Constraints = "env in (prod, canary), version != v1".parse()?;
//! assert!(canary.matches(&Parameters::from_iter([("env", "prod")])));
//! assert_eq!(canary.to_string(), "env in (prod,canary),version!=v1");
//!
//! let error = "env=prod && beta".parse::<Constraints>().unwrap_err();
//! assert_eq!(error.to_string(), "column 10: expected `,`, `||` or the end, found `&`; write `,` for \"and\"");
//! # Ok::<(), xds_core::when::WhenError>(())
//! ```

use std::str::FromStr;
use std::sync::Arc;

use super::{Constraints, Formula};
use token::{Position, Token, Tokens};

pub use error::{Expected, FoundToken, Hint, WhenError};

mod error;
mod print;
#[cfg(test)]
mod tests;
mod token;

/// Reads the `when:` syntax; see [`when`](self).
impl FromStr for Formula {
    type Err = WhenError;

    fn from_str(text: &str) -> Result<Self, WhenError> {
        let mut parser = Parser::new(text)?;
        let parsed = parser.or()?;
        if parser.token != Token::End {
            return Err(parser.not_continued());
        }
        Ok(parsed.formula)
    }
}

/// A parser with one token of look-ahead.
struct Parser<'a> {
    tokens: Tokens<'a>,
    token: Token<'a>,
    /// Where `token` starts.
    at: Position,
    /// Where the open parentheses start.
    open: Vec<Position>,
    leaves: usize,
    after: After,
}

/// The end of the last condition, which helps to explain a mistake.
#[derive(Clone, Copy)]
enum After {
    /// A key alone.
    Key,
    /// A key alone with the name `not`.
    Not,
    Constant,
    Other,
}

/// A formula, and how deep its operators are nested.
struct Parsed {
    formula: Formula,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, WhenError> {
        let mut tokens = Tokens::new(text);
        let (at, token) = tokens.next()?;
        Ok(Self { tokens, token, at, open: Vec::new(), leaves: 0, after: After::Other })
    }

    fn or(&mut self) -> Result<Parsed, WhenError> {
        let start = self.at;
        let mut parts = vec![self.and()?];
        while self.take(&Token::Or)? {
            parts.push(self.and()?);
        }
        self.joined(parts, Formula::Any, start)
    }

    fn and(&mut self) -> Result<Parsed, WhenError> {
        let start = self.at;
        let mut parts = vec![self.unary()?];
        while self.take(&Token::Comma)? {
            parts.push(self.unary()?);
        }
        self.joined(parts, Formula::All, start)
    }

    fn unary(&mut self) -> Result<Parsed, WhenError> {
        let start = self.at;
        if !self.take(&Token::Not)? {
            return self.primary();
        }
        let part = self.primary()?;
        self.operator(Formula::Not(Box::new(part.formula)), part.depth, start)
    }

    fn primary(&mut self) -> Result<Parsed, WhenError> {
        let start = self.at;
        self.after = After::Other;
        match self.advance()? {
            Token::Open => {
                // `Display` writes one pair for an operator, so no tree within T11 needs more.
                if self.open.len() == Constraints::DEPTH_LIMIT {
                    return Err(self.too_deep(start));
                }
                self.open.push(start);
                let inner = self.or()?;
                if !self.take(&Token::Close)? {
                    return Err(self.not_continued());
                }
                self.open.pop();
                self.after = After::Other;
                Ok(inner)
            }
            Token::Word("true") => self.constant(Formula::All(Vec::new()), start),
            Token::Word("false") => self.constant(Formula::Any(Vec::new()), start),
            Token::Word(key) => self.condition(key.into(), start),
            Token::Quoted(key) => self.condition(key.into(), start),
            token => Err(self.error(Expected::Condition, start, &token)),
        }
    }

    fn constant(&mut self, formula: Formula, start: Position) -> Result<Parsed, WhenError> {
        self.after = After::Constant;
        self.leaf(start)?;
        self.operator(formula, 0, start)
    }

    fn condition(&mut self, key: Arc<str>, start: Position) -> Result<Parsed, WhenError> {
        // W2: every receiver would refuse it.
        if key.contains(|c| c < ' ') {
            return Err(WhenError::ControlCharacterInKey { column: self.tokens.column(start), key });
        }
        if self.take(&Token::Equal)? {
            return self.equals(key, start);
        }
        if self.take(&Token::NotEqual)? {
            let equals = self.equals(key, start)?;
            return self.operator(Formula::Not(Box::new(equals.formula)), 0, start);
        }
        if self.take(&Token::Word("in"))? {
            return self.one_of(&key, start);
        }
        if self.take(&Token::Word("notin"))? {
            let list = self.one_of(&key, start)?;
            return self.operator(Formula::Not(Box::new(list.formula)), list.depth, start);
        }
        self.after = if matches!(&*key, "not" | "Not" | "NOT") { After::Not } else { After::Key };
        self.leaf(start)?;
        Ok(Parsed { formula: Formula::Exists { key }, depth: 0 })
    }

    fn equals(&mut self, key: Arc<str>, start: Position) -> Result<Parsed, WhenError> {
        self.leaf(start)?;
        let value = self.value()?;
        Ok(Parsed { formula: Formula::Equals { key, value }, depth: 0 })
    }

    fn one_of(&mut self, key: &Arc<str>, start: Position) -> Result<Parsed, WhenError> {
        if !self.take(&Token::Open)? {
            return Err(self.unexpected(Expected::List));
        }
        let mut parts = vec![self.equals(key.clone(), self.at)?];
        while self.take(&Token::Comma)? {
            parts.push(self.equals(key.clone(), self.at)?);
        }
        if !self.take(&Token::Close)? {
            return Err(self.unexpected(Expected::ListEnd));
        }
        self.joined(parts, Formula::Any, start)
    }

    fn value(&mut self) -> Result<Arc<str>, WhenError> {
        let start = self.at;
        match self.advance()? {
            Token::Word(value) => Ok(value.into()),
            Token::Quoted(value) => Ok(value.into()),
            token => Err(self.error(Expected::Value, start, &token)),
        }
    }

    /// Joins parts to a list. A single part stays as it is.
    fn joined(
        &self,
        mut parts: Vec<Parsed>,
        list: fn(Vec<Formula>) -> Formula,
        start: Position,
    ) -> Result<Parsed, WhenError> {
        if parts.len() == 1 {
            return Ok(parts.swap_remove(0));
        }
        let depth = parts.iter().map(|part| part.depth).max().unwrap_or(0);
        self.operator(list(parts.into_iter().map(|part| part.formula).collect()), depth, start)
    }

    /// Counts an operator above parts of this depth.
    fn operator(&self, formula: Formula, depth: usize, start: Position) -> Result<Parsed, WhenError> {
        if depth == Constraints::DEPTH_LIMIT {
            return Err(self.too_deep(start));
        }
        Ok(Parsed { formula, depth: depth + 1 })
    }

    fn leaf(&mut self, start: Position) -> Result<(), WhenError> {
        self.leaves += 1;
        if self.leaves > Constraints::LEAF_LIMIT {
            let column = self.tokens.column(start);
            return Err(WhenError::TooManyLeaves { column, limit: Constraints::LEAF_LIMIT });
        }
        Ok(())
    }

    fn take(&mut self, token: &Token<'_>) -> Result<bool, WhenError> {
        let found = self.token == *token;
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Takes the current token and reads the next one.
    fn advance(&mut self) -> Result<Token<'a>, WhenError> {
        let (at, token) = self.tokens.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn unexpected(&self, expected: Expected) -> WhenError {
        self.error(expected, self.at, &self.token)
    }

    /// The error for a token that cannot follow a whole condition.
    fn not_continued(&self) -> WhenError {
        match (self.after, self.open.last(), &self.token) {
            (_, Some(&open), Token::End) => {
                WhenError::UnclosedParenthesis { column: self.tokens.column(open) }
            }
            (After::Key | After::Not, _, _) => self.unexpected(Expected::ContinuationOfKey),
            (After::Constant | After::Other, Some(_), _) => self.unexpected(Expected::ContinuationOrClose),
            (After::Constant | After::Other, None, _) => self.unexpected(Expected::Continuation),
        }
    }

    fn error(&self, expected: Expected, at: Position, token: &Token<'_>) -> WhenError {
        let hint = match (self.after, token) {
            (After::Constant, Token::Equal | Token::NotEqual | Token::Word("in" | "notin")) => {
                Some(Hint::QuoteConstant)
            }
            (After::Not, Token::Word(_) | Token::Quoted(_) | Token::Open) => Some(Hint::Not),
            _ if self.tokens.is_blank() => Some(Hint::Always),
            _ => Hint::of(expected, token),
        };
        WhenError::Unexpected { column: self.tokens.column(at), expected, found: token.into(), hint }
    }

    fn too_deep(&self, start: Position) -> WhenError {
        WhenError::TooDeep { column: self.tokens.column(start), limit: Constraints::DEPTH_LIMIT }
    }
}
