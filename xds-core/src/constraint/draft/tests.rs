use super::super::Formula;
use super::*;
use crate::parameters::Parameters;

fn value(key: &str, value: &str) -> DraftCondition {
    DraftCondition::equals(&key.into(), &value.into(), false)
}

fn exists(key: &str) -> DraftCondition {
    DraftCondition::exists(&key.into(), false)
}

fn inverted(condition: DraftCondition) -> DraftCondition {
    DraftCondition { invert: true, ..condition }
}

fn and<const N: usize>(conditions: [DraftCondition; N]) -> DraftList {
    DraftList { conditions: conditions.into(), match_type: MatchType::And }
}

fn or<const N: usize>(conditions: [DraftCondition; N]) -> DraftList {
    DraftList { conditions: conditions.into(), match_type: MatchType::Or }
}

fn draft<const N: usize>(lists: [DraftList; N]) -> Draft {
    Draft { lists: lists.into() }
}

fn formula(text: &str) -> Formula {
    text.parse().unwrap()
}

#[test]
fn w6_nothing_is_unwrapped_reordered_or_left_out() {
    let given = draft([and([value("b", "1")]), or([]), and([]), or([inverted(exists("a"))])]);
    let expected = Formula::All(vec![
        Formula::All(vec![formula("b=1")]),
        Formula::Any(vec![]),
        Formula::All(vec![]),
        Formula::Any(vec![formula("!a")]),
    ]);
    assert_eq!(given.to_formula().unwrap(), expected);
}

#[test]
fn w7_an_unspecified_match_type_needs_one_condition() {
    let unspecified = |conditions: Vec<_>| DraftList { conditions, match_type: MatchType::Unspecified };
    let one = Draft { lists: vec![unspecified(vec![value("a", "1")])] };
    assert_eq!(one.to_formula(), draft([and([value("a", "1")])]).to_formula());
    let two = Draft { lists: vec![and([]), unspecified(vec![value("a", "1"), exists("b")])] };
    assert_eq!(two.to_formula(), Err(DraftError::UnspecifiedMatchType { list: 1, conditions: 2 }));
    let none = Draft { lists: vec![unspecified(vec![])] };
    assert_eq!(
        none.to_formula().unwrap_err().to_string(),
        "constraints[0]: match_type is needed to join 0 conditions"
    );
}

#[test]
fn w8_empty_lists() {
    let matches = |draft: Draft| Constraints::from_draft(&draft).unwrap().matches(&Parameters::new());
    assert!(matches(draft([])));
    assert!(matches(draft([and([])])));
    assert!(!matches(draft([or([])])));
    assert!(Constraints::from_draft(&draft([])).unwrap().is_unconstrained());
}

#[test]
fn w8_a_draft_keeps_the_rules_of_all_constraints() {
    let error = Constraints::from_draft(&draft([and([]), or([inverted(exists("a\n"))])])).unwrap_err();
    assert_eq!(error.to_string(), "and[1].or[0].not.key: key `a\\n` has a control character at byte 1");
}

#[test]
fn w9_formulas_of_a_drafts_shape() {
    let shaped = [
        ("a=1", draft([and([value("a", "1")])])),
        ("!a", draft([and([inverted(exists("a"))])])),
        ("a,b!=1", draft([and([exists("a"), inverted(value("b", "1"))])])),
        ("a||b", draft([or([exists("a"), exists("b")])])),
        ("a,(b||c)", draft([and([exists("a")]), or([exists("b"), exists("c")])])),
        ("true", draft([])),
        ("false", draft([or([])])),
    ];
    for (text, expected) in shaped {
        assert_eq!(Draft::of_shape(&formula(text)), Some(expected), "{text}");
    }
    for text in ["!(!a)", "a||(b,c)", "!(a,b)", "k notin (1,2)", "a,(b||(c,d))"] {
        assert_eq!(Draft::of_shape(&formula(text)), None, "{text}");
    }
}

#[test]
fn w10_constants_and_keys_that_make_no_difference_are_written() {
    let of = |text| Draft::of_meaning(&formula(text)).unwrap();
    let tautology = |key| or([exists(key), inverted(exists(key))]);
    assert_eq!(of("true"), draft([]));
    assert_eq!(of("false"), draft([or([])]));
    assert_eq!(of("true||k=1"), draft([tautology("k")]));
    assert_eq!(of("a||!a"), draft([tautology("a")]));
    assert_eq!(
        of("false,b,a"),
        draft([or([exists("a")]), or([inverted(exists("a"))]), tautology("b")]),
        "false with a key does without the empty list"
    );
    assert_eq!(
        of("k notin (1,2)"),
        draft([or([inverted(value("k", "1"))]), or([inverted(value("k", "2"))])])
    );
}

#[test]
fn w10_a_draft_that_would_explode_is_an_error() {
    let pairs = |count: usize| {
        let pair = |n| formula(&format!("a{n},b{n}"));
        Formula::Any((0..count).map(pair).collect())
    };
    assert_eq!(Draft::of_meaning(&pairs(7)).unwrap().lists.len(), 128);
    assert_eq!(Draft::of_meaning(&pairs(8)), Err(DraftTooLarge { limit: 1024 }));
    assert_eq!(Draft::of_meaning(&pairs(500)), Err(DraftTooLarge { limit: 1024 }));
}

#[test]
fn w10_parts_that_are_false_do_not_multiply() {
    let falsehoods = Formula::All(vec![Formula::Any(vec![]); 256]);
    assert_eq!(Draft::of_meaning(&Formula::Any(vec![falsehoods; 4])), Ok(draft([or([])])));
}

#[test]
fn v1_the_worked_mapping() {
    let given = draft([and([value("env", "prod"), inverted(exists("version"))])]);
    let constraints = Constraints::from_draft(&given).unwrap();
    assert_eq!(constraints.formula(), &Formula::All(vec![formula("env=prod,!version")]));
    assert_eq!(Draft::of_shape(constraints.formula()), Some(given));
    assert_eq!(constraints, "env=prod,!version".parse().unwrap());
    assert_eq!(constraints.keys(), ["env", "version"].map(Arc::from));
}

#[test]
fn v2_an_or_and_an_and() {
    let given = draft([or([value("a", "1"), value("b", "2")]), and([exists("c")])]);
    let constraints = Constraints::from_draft(&given).unwrap();
    assert_eq!(
        constraints.formula(),
        &Formula::All(vec![formula("a=1||b=2"), Formula::All(vec![formula("c")])])
    );
    let matches = |pairs: &[(&str, &str)]| constraints.matches(&pairs.iter().copied().collect());
    assert!(!matches(&[("a", "1")]));
    assert!(matches(&[("a", "1"), ("c", "")]));
    assert!(matches(&[("b", "2"), ("c", "x")]));
    assert!(!matches(&[]));
}

#[test]
fn v3_an_or_of_ands_needs_all_pairs() {
    let original = formula("(a=1,b=1)||(a=2,b=2)");
    let made = Draft::of_meaning(&original).unwrap();
    let pair =
        |first: (&str, &str), second: (&str, &str)| or([value(first.0, first.1), value(second.0, second.1)]);
    assert_eq!(
        made,
        draft([
            pair(("a", "1"), ("a", "2")),
            pair(("a", "1"), ("b", "2")),
            pair(("b", "1"), ("a", "2")),
            pair(("b", "1"), ("b", "2")),
        ])
    );
    let outcomes = [None, Some("1"), Some("2"), Some("other")];
    for (a, b) in outcomes.iter().flat_map(|a| outcomes.iter().map(move |b| (a, b))) {
        let pairs = [("a", *a), ("b", *b)].into_iter().filter_map(|(key, value)| Some((key, value?)));
        let point: Parameters = pairs.collect();
        assert_eq!(made.to_formula().unwrap().matches(&point), original.matches(&point), "{point:?}");
    }
}
