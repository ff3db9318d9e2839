//! The draft form of TP2.

use xds_core::draft::{Draft, DraftCondition, DraftError, DraftList, DraftTest, MatchType};
use xds_core::{ConstraintError, Constraints, Parameters};

use crate::constraints;

/// Builds a draft from the bytes, because drafts have no encoding of ours, and checks it.
///
/// # Panics
/// When a property does not hold.
pub fn constraints_draft(raw: &[u8]) -> bool {
    let draft = built(raw);
    let conditions = || draft.lists.iter().flat_map(|list| &list.conditions);
    match Constraints::from_draft(&draft) {
        Ok(read) => {
            for parameters in POINTS {
                let parameters: Parameters = parameters.iter().copied().collect();
                assert_eq!(read.matches(&parameters), holds(&draft, &parameters), "{draft:?} {parameters:?}");
            }
            // W9: the conversion back. By W7, an unspecified match type with one item means AND.
            let mut specified = draft.clone();
            for list in &mut specified.lists {
                if list.match_type == MatchType::Unspecified {
                    list.match_type = MatchType::And;
                }
            }
            assert_eq!(Draft::of_shape(read.formula()), Some(specified));
            constraints::check(&read);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            match error {
                DraftError::UnspecifiedMatchType { list, conditions } => {
                    let list = &draft.lists[list];
                    assert_eq!(
                        (list.match_type, list.conditions.len()),
                        (MatchType::Unspecified, conditions)
                    );
                    assert_ne!(conditions, 1);
                }
                DraftError::Invalid(ConstraintError::ControlCharacter { key, .. }) => {
                    assert!(conditions().any(|condition| condition.key == key) && key.contains(|c| c < ' '));
                }
                DraftError::Invalid(ConstraintError::TooManyLeaves { limit, .. }) => {
                    assert!(conditions().count() + draft.lists.len() > limit);
                }
                error => panic!("{error}: a draft has no such fault"),
            }
            false
        }
    }
}

/// A second, independent evaluation of drafts, by their definition (T6, W7, W8).
fn holds(draft: &Draft, parameters: &Parameters) -> bool {
    let condition = |condition: &DraftCondition| {
        let value = parameters.get(&condition.key);
        condition.invert
            != match &condition.test {
                DraftTest::Value(expected) => value == Some(expected),
                DraftTest::Exists => value.is_some(),
            }
    };
    draft.lists.iter().all(|list| match list.match_type {
        MatchType::And | MatchType::Unspecified => list.conditions.iter().all(condition),
        MatchType::Or => list.conditions.iter().any(condition),
    })
}

/// Each byte adds a list or a condition; some conditions take their key from the following bytes.
fn built(raw: &[u8]) -> Draft {
    let mut draft = Draft::default();
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        let pick = usize::from(byte >> 3);
        let test = match byte & 3 {
            0 => {
                let match_type = [MatchType::And, MatchType::Or, MatchType::Unspecified][pick % 3];
                draft.lists.push(DraftList { conditions: Vec::new(), match_type });
                continue;
            }
            1 => DraftTest::Exists,
            _ => DraftTest::Value(VALUES[pick / KEYS.len() % VALUES.len()].into()),
        };
        let key = match byte & 3 {
            3 => bytes.by_ref().take(pick % 8).map(char::from).collect::<String>().into(),
            _ => KEYS[pick % KEYS.len()].into(),
        };
        let condition = DraftCondition { key, test, invert: byte & 4 != 0 };
        if let Some(list) = draft.lists.last_mut() {
            list.conditions.push(condition);
        }
    }
    draft
}

const KEYS: [&str; 4] = ["env", "", "true", "a b"];
const VALUES: [&str; 3] = ["", "x", "\n"];

const POINTS: &[&[(&str, &str)]] = &[
    &[],
    &[("env", "")],
    &[("env", "x"), ("", "x")],
    &[("env", "fresh"), ("true", "\n")],
    &[("", ""), ("true", "x"), ("a b", "fresh")],
    &[("env", "x"), ("", "fresh"), ("true", ""), ("a b", "\n")],
];

/// Lists of each kind, conditions of each kind, and a key from bytes.
pub(crate) const WORDS: &[&[u8]] = &[
    b"\x00",
    b"\x08",
    b"\x10",
    b"\x01",
    b"\x05",
    b"\x02",
    b"\x22",
    b"\x26",
    b"\x2a",
    b"\x0ba",
    b"\x0b\n",
    b"\x0b\xe9",
];
