//! The clients of a variant, as rows of a table with a column per key.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use xds_core::Constraints;
use xds_core::matching::normal::{Normal, Test};
use xds_core::matching::value_set::ValueSet;

/// One alternative of the constraints of a variant: parameters match it if all cells hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// What each key has to be, in words: `prod or canary`, `not v1`, `absent`. Keys that do not
    /// matter are left out.
    pub cells: BTreeMap<Arc<str>, String>,
}

/// The constraints as rows: parameters that match any row match the constraints. `None` if that
/// takes more than 32 rows, or if the formula is too complex to compute them.
#[must_use]
pub fn rows(constraints: &Constraints) -> Option<Vec<Row>> {
    let normal = Normal::of(constraints.formula()).ok()?;
    let alternatives = normal.alternatives().filter(|all| all.len() <= ROWS_LIMIT)?;
    let cells = |tests: &[Test]| tests.iter().map(|(key, set)| (Arc::clone(key), cell(set))).collect();
    Some(alternatives.into_iter().map(|tests| Row { cells: cells(tests) }).collect())
}

fn cell(set: &ValueSet<Arc<str>>) -> String {
    let mut values = String::new();
    let (separator, is_any_other) = (if set.has_other() { ", " } else { " or " }, set.has_other());
    for (number, value) in set.values().iter().enumerate() {
        let separator = if number > 0 { separator } else { "" };
        // Quote values that look like our own words, or that are invisible.
        let is_plain = !value.is_empty()
            && !matches!(&**value, "any" | "absent" | "or" | "not")
            && value.chars().all(|c| c.is_ascii_alphanumeric() || "._/-:".contains(c));
        _ = if is_plain {
            write!(values, "{separator}{value}")
        } else {
            write!(values, "{separator}{value:?}")
        };
    }
    match (is_any_other, values.is_empty(), set.has_absent()) {
        (false, true, _) => "absent".into(),
        (false, false, false) => values,
        (false, false, true) => format!("{values} or absent"),
        (true, true, _) => "any".into(),
        (true, false, true) => format!("not {values}"),
        (true, false, false) => format!("any but {values}"),
    }
}

const ROWS_LIMIT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(when: &str) -> Option<Vec<String>> {
        let drawn = rows(&when.parse().unwrap())?;
        let cells = |row: &Row| {
            row.cells.iter().map(|(key, cell)| format!("{key}: {cell}")).collect::<Vec<_>>().join("; ")
        };
        Some(drawn.iter().map(cells).collect())
    }

    #[test]
    fn a_conjunction_is_a_row_and_a_key_is_a_column() {
        let cases: [(&str, &[&str]); 8] = [
            ("env=prod,version!=v1", &["env: prod; version: not v1"]),
            ("env in (prod,canary)", &["env: canary or prod"]),
            // Rows do not overlap: each client matches one of them.
            ("env=prod || zone=b", &["env: prod", "env: not prod; zone: b"]),
            ("beta,!canary", &["beta: any; canary: absent"]),
            ("env,env!=prod", &["env: any but prod"]),
            ("k=\"\"", &["k: \"\""]),
            ("k=absent", &["k: \"absent\""]),
            ("true", &[""]),
        ];
        for (when, expected) in cases {
            assert_eq!(drawn(when).unwrap(), expected, "{when}");
        }
        assert_eq!(drawn("a=1,a=2").unwrap(), [""; 0]);
    }

    #[test]
    fn what_takes_too_many_rows_is_not_drawn() {
        let either: Vec<_> = (0..=ROWS_LIMIT).map(|number| format!("k{number}=v")).collect();
        assert_eq!(drawn(&either.join(" || ")), None);
    }
}
