//! Prints formulas in the `when:` syntax.

use std::fmt::{self, Display, Write};

use super::super::Formula;
use super::token::is_bare_word;

/// Prints the `when:` syntax. The text reads back as a formula with the same canonical form and
/// keys. It does not show lists of one, nor a list inside a list of the same operator.
impl Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self, Place::Top)
    }
}

/// The surroundings of a formula, which decide whether it needs parentheses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No operator, parentheses, or a list joined by `||`.
    Top,
    /// A list joined by `,`.
    And,
    /// After `!`.
    Not,
}

fn print(f: &mut fmt::Formatter<'_>, formula: &Formula, place: Place) -> fmt::Result {
    match formula {
        Formula::Equals { key, value } => {
            PrintedKey(key).fmt(f)?;
            f.write_char('=')?;
            PrintedText(value).fmt(f)
        }
        Formula::Exists { key } => PrintedKey(key).fmt(f),
        Formula::Not(part) => print_not(f, part),
        Formula::All(parts) | Formula::Any(parts) if parts.len() == 1 => print(f, &parts[0], place),
        Formula::All(parts) if parts.is_empty() => f.write_str("true"),
        Formula::Any(parts) if parts.is_empty() => f.write_str("false"),
        Formula::All(parts) => print_list(f, parts, ",", Place::And, place == Place::Not),
        Formula::Any(parts) => match values_of_one_key(parts) {
            Some(key) => print_values(f, key, " in (", parts),
            None => print_list(f, parts, " || ", Place::Top, place != Place::Top),
        },
    }
}

fn print_not(f: &mut fmt::Formatter<'_>, part: &Formula) -> fmt::Result {
    match part {
        Formula::All(parts) | Formula::Any(parts) if parts.len() == 1 => return print_not(f, &parts[0]),
        Formula::Equals { key, value } => {
            PrintedKey(key).fmt(f)?;
            f.write_str("!=")?;
            return PrintedText(value).fmt(f);
        }
        Formula::Any(parts) => {
            if let Some(key) = values_of_one_key(parts) {
                return print_values(f, key, " notin (", parts);
            }
        }
        // The grammar does not allow `!!`.
        Formula::Not(inner) => {
            f.write_str("!(")?;
            print_not(f, inner)?;
            return f.write_char(')');
        }
        Formula::Exists { .. } | Formula::All(_) => {}
    }
    f.write_char('!')?;
    print(f, part, Place::Not)
}

fn print_list(
    f: &mut fmt::Formatter<'_>,
    parts: &[Formula],
    separator: &str,
    place: Place,
    parentheses: bool,
) -> fmt::Result {
    if parentheses {
        f.write_char('(')?;
    }
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            f.write_str(separator)?;
        }
        print(f, part, place)?;
    }
    if parentheses { f.write_char(')') } else { Ok(()) }
}

/// The key, if there are several parts and all of them compare the same key with a value.
fn values_of_one_key(parts: &[Formula]) -> Option<&str> {
    let [Formula::Equals { key: first, .. }, rest @ ..] = parts else { return None };
    let same = |part: &Formula| matches!(part, Formula::Equals { key, .. } if key == first);
    (!rest.is_empty() && rest.iter().all(same)).then_some(first)
}

fn print_values(f: &mut fmt::Formatter<'_>, key: &str, operator: &str, parts: &[Formula]) -> fmt::Result {
    PrintedKey(key).fmt(f)?;
    f.write_str(operator)?;
    let values = parts.iter().filter_map(|part| match part {
        Formula::Equals { value, .. } => Some(value),
        _ => None,
    });
    for (at, value) in values.enumerate() {
        if at > 0 {
            f.write_char(',')?;
        }
        PrintedText(value).fmt(f)?;
    }
    f.write_char(')')
}

/// A key, in quotes if it needs them or has the name of a constant.
struct PrintedKey<'a>(&'a str);

impl Display for PrintedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "true" | "false" => write!(f, "\"{}\"", self.0),
            key => PrintedText(key).fmt(f),
        }
    }
}

/// A key or value, in quotes if it needs them.
struct PrintedText<'a>(&'a str);

impl Display for PrintedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_bare_word(self.0) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}"),
                '\n' => f.write_str("\\n"),
                '\r' => f.write_str("\\r"),
                '\t' => f.write_str("\\t"),
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c)),
                c => f.write_char(c),
            }?;
        }
        f.write_char('"')
    }
}
