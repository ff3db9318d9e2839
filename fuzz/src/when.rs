//! The `when:` syntax.

use xds_core::{Constraints, Formula};

use crate::constraints;

/// Reads constraints in the `when:` syntax, or reports the column of the error.
///
/// # Panics
/// When a property does not hold.
pub fn constraints_when(raw: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(raw) else { return false };
    match text.parse::<Constraints>() {
        Ok(read) => {
            let formula: Formula = text.parse().expect("both readers are one");
            assert_eq!(&formula, read.formula());
            assert_eq!(Constraints::from_formula(formula).as_ref(), Ok(&read), "the parser keeps the limits");
            constraints::check(&read);
            true
        }
        Err(error) => {
            let columns = 1..=text.chars().count() + 1;
            assert!(columns.contains(&error.column()) && !error.to_string().is_empty(), "{error}");
            false
        }
    }
}

pub(crate) const WORDS: &[&[u8]] = &[
    b"a",
    b"env",
    b"true",
    b"false",
    b" in (",
    b" notin (",
    b" in ",
    b"not",
    b"(",
    b")",
    b",",
    b"||",
    b"|",
    b"!",
    b"=",
    b"!=",
    b"==",
    b"\"\"",
    b"\"",
    b"\\u0041",
    b"\\ud83d\\ude00",
    b"\\ud800",
    b"\\n",
    b"\xc3\xa9",
    b" ",
    b"\n",
    b"&&",
    b"a=1",
    b"a!=\"b c\"",
    b"!(a,b)",
    b"((((((((",
    b"))))))))",
    b"!(!(!(!(",
];
