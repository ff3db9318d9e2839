//! Properties of every formula, checked at all points of a small world (`world`).

use prost::Message;
use quickcheck::{Arbitrary, Gen, QuickCheck, Testable};
use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;

use super::draft::{Draft, DraftCondition, DraftList, DraftTest, MatchType};
use super::world::{AnyFormula, KEYS, below, points, rewritten, truth};
use super::{Constraints, Formula};

fn check(property: impl Testable) {
    QuickCheck::new().tests(10_000).quickcheck(property);
}

fn constraints(formula: &Formula) -> Constraints {
    Constraints::from_formula(formula.clone()).unwrap()
}

#[test]
fn t6_matching_is_the_truth_table() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        let truth = truth(&formula);
        let constraints = constraints(&formula);
        points().iter().enumerate().all(|(at, point)| constraints.matches(point) == (truth >> at & 1 == 1))
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn t21_rewriting_keeps_the_canonical_form() {
    fn holds(pair: Rewritten) -> bool {
        let (original, other) = (constraints(&pair.original), constraints(&pair.other));
        original == other && original.canon() == other.canon() && original.cmp(&other).is_eq()
    }
    check(holds as fn(Rewritten) -> bool);
}

#[test]
fn t21_equal_canonical_forms_mean_the_same() {
    fn holds(AnyFormula(one): AnyFormula, AnyFormula(other): AnyFormula) -> bool {
        constraints(&one).canon() != constraints(&other).canon() || truth(&one) == truth(&other)
    }
    check(holds as fn(AnyFormula, AnyFormula) -> bool);
}

#[test]
fn t21_a_rewritten_formula_with_another_leaf_is_equal_only_if_it_means_the_same() {
    fn holds(mut pair: Rewritten, leaf: usize) -> bool {
        let count = leaves(&pair.other).max(1);
        swap_leaf(&mut pair.other, &mut (leaf % count));
        let (original, other) = (constraints(&pair.original), constraints(&pair.other));
        original.canon() != other.canon() || truth(&pair.original) == truth(&pair.other)
    }
    check(holds as fn(Rewritten, usize) -> bool);
}

#[test]
fn t21_the_canonical_form_is_a_message_that_means_the_same() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        let canon = constraints(&formula).canon().to_vec();
        let again = Constraints::from_wire(&canon).unwrap();
        let encoded = DynamicParameterConstraints::from(again.formula()).encode_to_vec();
        // `Constraints::NONE` is encoded as an AND without operands here.
        truth(again.formula()) == truth(&formula)
            && again.canon() == canon
            && (encoded == canon || canon.is_empty())
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn t23_written_formulas_survive_the_wire() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        let sent = constraints(&formula);
        let received = Constraints::from_wire(sent.wire()).unwrap();
        let message = DynamicParameterConstraints::from(&formula);
        received.formula() == &formula
            && received == sent
            && received.wire() == sent.wire()
            && Constraints::from_proto(&message).unwrap().formula() == &formula
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn t9_any_bytes_are_read_as_a_decoder_reads_them_or_refused() {
    fn holds(AnyBytes(raw): AnyBytes) -> bool {
        let decoded = DynamicParameterConstraints::decode(&raw[..]);
        match (Constraints::from_wire(&raw), decoded) {
            (Ok(read), Ok(decoded)) => {
                let again = DynamicParameterConstraints::from(read.formula()).encode_to_vec();
                read.wire() == &raw
                    && Constraints::from_proto(&decoded).unwrap().formula() == read.formula()
                    && Constraints::from_wire(&again).unwrap().formula() == read.formula()
            }
            (Ok(_), Err(_)) => false,
            // They differ only in a type that the decoder dropped.
            (Err(_), Ok(decoded)) => decoded.r#type.is_none() || Constraints::from_proto(&decoded).is_err(),
            (Err(_), Err(_)) => true,
        }
    }
    check(holds as fn(AnyBytes) -> bool);
}

#[test]
fn w9_a_draft_comes_back_as_it_was() {
    fn holds(AnyDraft(draft): AnyDraft) -> bool {
        Draft::of_shape(&draft.to_formula().unwrap()) == Some(draft)
    }
    check(holds as fn(AnyDraft) -> bool);
}

#[test]
fn w9_a_draft_of_a_formulas_shape_means_the_same() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        Draft::of_shape(&formula)
            .is_none_or(|draft| constraints(&draft.to_formula().unwrap()) == constraints(&formula))
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn w10_a_draft_of_the_same_meaning_keeps_truth_and_keys() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        match Draft::of_meaning(&formula) {
            Ok(draft) => {
                let made = Constraints::from_draft(&draft).unwrap();
                truth(made.formula()) == truth(&formula) && made.keys() == constraints(&formula).keys()
            }
            // An OR of five ANDs of two makes 160 conditions, and no ten leaves make more.
            Err(_) => leaves(&formula) > 10,
        }
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn t22_what_is_printed_reads_back_equal() {
    fn holds(AnyFormula(formula): AnyFormula) -> bool {
        let written = constraints(&formula);
        written.to_string().parse() == Ok(written)
    }
    check(holds as fn(AnyFormula) -> bool);
}

#[test]
fn t22_any_key_and_value_are_printed_so_that_they_read_back() {
    fn holds(key: String, value: String) -> bool {
        let key = key.replace(|c| c < ' ', "");
        let condition = Formula::Equals { key: key.into(), value: value.into() };
        condition.to_string().parse() == Ok(condition)
    }
    check(holds as fn(String, String) -> bool);
}

#[test]
fn t11_any_text_is_read_or_refused_at_a_column() {
    fn holds(AnyText(text): AnyText) -> bool {
        match text.parse::<Constraints>() {
            Ok(read) => Constraints::from_formula(read.formula().clone()).as_ref() == Ok(&read),
            Err(error) => (1..=text.chars().count() + 1).contains(&error.column()),
        }
    }
    check(holds as fn(AnyText) -> bool);
}

#[test]
fn t11_any_unicode_is_read_or_refused() {
    fn holds(text: String) -> bool {
        text.parse::<Formula>().is_ok_and(|formula| formula.to_string().parse() == Ok(formula))
            || text.parse::<Formula>().is_err()
    }
    check(holds as fn(String) -> bool);
}

fn leaves(formula: &Formula) -> usize {
    match formula {
        Formula::Equals { .. } | Formula::Exists { .. } => 1,
        Formula::All(parts) | Formula::Any(parts) => parts.iter().map(leaves).sum(),
        Formula::Not(part) => leaves(part),
    }
}

/// Makes another condition out of one leaf, counted from the left.
fn swap_leaf(formula: &mut Formula, left: &mut usize) -> bool {
    match formula {
        Formula::Equals { .. } | Formula::Exists { .. } if *left > 0 => {
            *left -= 1;
            false
        }
        Formula::Equals { key, .. } => {
            *formula = Formula::Exists { key: key.clone() };
            true
        }
        Formula::Exists { key } => {
            *formula = Formula::Equals { key: key.clone(), value: "x".into() };
            true
        }
        Formula::All(parts) | Formula::Any(parts) => parts.iter_mut().any(|part| swap_leaf(part, left)),
        Formula::Not(part) => swap_leaf(part, left),
    }
}

/// A formula and another way to write it.
#[derive(Debug, Clone)]
struct Rewritten {
    original: Formula,
    other: Formula,
}

impl Arbitrary for Rewritten {
    fn arbitrary(g: &mut Gen) -> Self {
        let AnyFormula(original) = AnyFormula::arbitrary(g);
        let other = rewritten(&original, g);
        Self { original, other }
    }
}

/// A message with some bytes changed, cut, repeated or inserted; sometimes random bytes only.
#[derive(Debug, Clone)]
struct AnyBytes(Vec<u8>);

impl Arbitrary for AnyBytes {
    fn arbitrary(g: &mut Gen) -> Self {
        if below(g, 4) == 0 {
            return Self(Vec::arbitrary(g));
        }
        let mut raw = constraints(&AnyFormula::arbitrary(g).0).wire().to_vec();
        if below(g, 4) == 0 {
            raw.extend_from_slice(constraints(&AnyFormula::arbitrary(g).0).wire());
        }
        for _ in 0..below(g, 3) {
            let at = below(g, raw.len() + 1);
            match below(g, 4) {
                0 => raw.truncate(at),
                1 => raw.insert(at, u8::arbitrary(g)),
                // A tag of the message, or a small length.
                2 => raw.insert(at, [0x0a, 0x12, 0x1a, 0x22, 0x00, 0x02][below(g, 6)]),
                _ => {
                    if let Some(byte) = raw.get_mut(at) {
                        *byte = u8::arbitrary(g) % 0x30;
                    }
                }
            }
        }
        Self(raw)
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().map(Self))
    }
}

/// A draft whose match types are all given.
#[derive(Debug, Clone)]
struct AnyDraft(Draft);

impl Arbitrary for AnyDraft {
    fn arbitrary(g: &mut Gen) -> Self {
        let condition = |g: &mut Gen| DraftCondition {
            key: (*g.choose(&KEYS).unwrap()).into(),
            test: if bool::arbitrary(g) { DraftTest::Exists } else { DraftTest::Value("x".into()) },
            invert: bool::arbitrary(g),
        };
        let list = |g: &mut Gen| DraftList {
            conditions: (0..below(g, 4)).map(|_| condition(g)).collect(),
            match_type: if bool::arbitrary(g) { MatchType::And } else { MatchType::Or },
        };
        Self(Draft { lists: (0..below(g, 4)).map(|_| list(g)).collect() })
    }
}

/// Words and signs of the syntax in any order.
#[derive(Debug, Clone)]
struct AnyText(String);

impl Arbitrary for AnyText {
    fn arbitrary(g: &mut Gen) -> Self {
        let pieces = [
            "a", "true", "in", "notin", "not", "(", ")", ",", "||", "|", "!", "=", "!=", "==", "\"", "\\u",
            "é", "\"b c\"", "\"\\n\"", " ", "&&", "a=1", "b in (", "\0",
        ];
        Self((0..below(g, 12)).map(|_| *g.choose(&pieces).unwrap()).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().map(Self))
    }
}
