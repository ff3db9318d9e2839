use std::collections::BTreeSet;

use super::*;
use crate::hash::HashSet;

fn when(text: &str) -> Constraints {
    text.parse().unwrap()
}

fn formula(text: &str) -> Formula {
    text.parse().unwrap()
}

fn parameters<const N: usize>(pairs: [(&str, &str); N]) -> Parameters {
    pairs.into_iter().collect()
}

#[test]
fn t1_no_constraints_cost_a_pointer() {
    assert_eq!(size_of::<Constraints>(), size_of::<usize>());
    assert!(Constraints::NONE.0.is_none() && when("true").0.is_none());
}

#[test]
fn t5_parameters_nobody_asks_about_play_no_part() {
    assert!(when("env=prod").matches(&parameters([("env", "prod"), ("zone", "a")])));
    assert!(when("!version").matches(&parameters([("env", "prod")])));
}

#[test]
fn t6_leaves_follow_the_truth_table() {
    let absent = Parameters::new();
    let points = [absent, parameters([("k", "v")]), parameters([("k", "w")]), parameters([("k", "")])];
    let table = [
        ("k=v", [false, true, false, false]),
        ("k!=v", [true, false, true, true]),
        ("k", [false, true, true, true]),
        ("!k", [true, false, false, false]),
        (r#"k="""#, [false, false, false, true]),
        (r#"k!="""#, [true, true, true, false]),
    ];
    for (text, expected) in table {
        assert_eq!(points.each_ref().map(|point| when(text).matches(point)), expected, "{text}");
    }
}

#[test]
fn t7_an_empty_and_holds_and_an_empty_or_does_not() {
    let anyone = Parameters::new();
    assert!(Formula::All(vec![]).matches(&anyone));
    assert!(!Formula::Any(vec![]).matches(&anyone));
    assert!(!Formula::Not(Box::new(Formula::All(vec![]))).matches(&anyone));
    assert!(Constraints::NONE.matches(&anyone));
}

#[test]
fn t10_keys_and_values_compare_byte_for_byte() {
    let constraints = when(r#"env="Prod ""#);
    assert!(constraints.matches(&parameters([("env", "Prod ")])));
    for other in [("env", "prod "), ("env", "Prod"), ("Env", "Prod ")] {
        assert!(!constraints.matches(&parameters([other])), "{other:?}");
    }
    assert!(when(r#"""=x"#).matches(&parameters([("", "x")])), "the empty key is legal");
}

#[test]
fn t11_a_formula_keeps_the_limits_however_deep_it_is() {
    let nots = |count| (0..count).fold(formula("a"), |part, _| Formula::Not(Box::new(part)));
    assert!(Constraints::from_formula(nots(32)).is_ok());
    let error = Constraints::from_formula(nots(33)).unwrap_err();
    assert!(matches!(error, ConstraintError::TooDeep { limit: 32, .. }));
    assert_eq!(error.path().to_string(), ["not"; 32].join("."));
    assert!(Constraints::from_formula(nots(5000)).is_err());

    let leaves = |count| Formula::Any(vec![formula("a"); count]);
    assert!(Constraints::from_formula(leaves(1024)).is_ok());
    let error = Constraints::from_formula(leaves(1025)).unwrap_err();
    assert_eq!(error.to_string(), "or[1024]: more than 1024 conditions");
    let empty = Formula::Any(vec![Formula::All(vec![]); 1025]);
    assert!(Constraints::from_formula(empty).is_err(), "an empty list is a leaf");
}

#[test]
fn t12_keys_are_all_that_is_written() {
    let keys = |text| when(text).keys().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(keys("!version"), ["version"]);
    assert_eq!(keys("false,a=1"), ["a"]);
    assert_eq!(keys("true||!(b,a=1,!(a))"), ["a", "b"]);
    assert_eq!(keys("true"), [""; 0]);
    assert_ne!(when("false,a"), when("false,b"), "keys are part of the identity");
    assert!(!when("true||a").is_unconstrained(), "it names a key");
}

#[test]
fn t20_order_and_hash_go_by_identity() {
    let same = ["b,a", "a,b", "!(!a||!b)"].map(when);
    assert_eq!(same.iter().collect::<HashSet<_>>().len(), 1);
    assert_eq!(BTreeSet::from(same).len(), 1);
    let mut different = ["true", "true||b", "true||a", "false", "a", "a=1"].map(when).to_vec();
    different.sort();
    assert_eq!(different.iter().collect::<HashSet<_>>().len(), 6);
    assert_eq!(different[0], Constraints::NONE, "no canonical bytes come first");
}

#[test]
fn t21_canonical_forms() {
    let same = [
        ("!(!a)", "a"),
        ("!(a,b=1)", "!a||b!=1"),
        ("!(a||b)", "!a,!b"),
        ("(a,b),(c,a)", "c,b,a"),
        ("a||(b||a)", "b||a"),
        ("a,a", "a"),
        ("((a||a),b),c", "a,b,c"),
        ("true,a", "a"),
        ("false||a", "a"),
        ("k notin (1,2)", "k!=2,k!=1"),
        ("(a,b)||(b,a)", "a,b"),
        ("!true", "false"),
    ];
    for (text, simple) in same {
        assert_eq!(when(text), when(simple), "{text}");
    }
    // T22: the canonical form does not use absorption or complements.
    for (text, simple) in [("a||(a,b)", "a"), ("a||!a", "true"), ("a,!a", "false"), ("a,k=1", "k=1")] {
        assert_ne!(when(text).canon(), when(simple).canon(), "{text}");
    }
    assert_ne!(when(r#"k="""#), when("!k"), "the empty value is not an absent key");
    assert_ne!(when("k=1"), when("k!=1"));
}

#[test]
fn t21_canonical_bytes_are_pinned() {
    assert_eq!(when("true||k=v").canon(), b"");
    assert_eq!(when("false").canon(), b"\x12\x00");
    assert_eq!(when(r#""""#).canon(), b"\x0a\x02\x1a\x00");
    assert_eq!(when(r#"k="""#).canon(), b"\x0a\x05\x0a\x01k\x12\x00");
    // V1: sorted by encoding, so the condition comes before the negation.
    let canon =
        b"\x1a\x20\x0a\x0d\x0a\x0b\x0a\x03env\x12\x04prod\x0a\x0f\x22\x0d\x0a\x0b\x0a\x07version\x1a\x00";
    assert_eq!(when("!version,env=prod").canon(), canon);
}

#[test]
fn t23_received_bytes_are_kept() {
    // or[a, a], followed by a field that this version does not know.
    let raw = b"\x12\x12\x0a\x07\x0a\x05\x0a\x01a\x1a\x00\x0a\x07\x0a\x05\x0a\x01a\x1a\x00\x9a\x06\x01x";
    let constraints = Constraints::from_wire(raw).unwrap();
    assert_eq!(&constraints.wire()[..], raw);
    assert_eq!(constraints, when("a"));
    assert_eq!(constraints.to_string(), "a || a");

    let everyone = Constraints::from_wire(b"\x1a\x00").unwrap();
    assert_eq!(&everyone.wire()[..], b"\x1a\x00");
    assert!(everyone.is_unconstrained() && everyone == Constraints::NONE);
}

#[test]
fn t23_written_constraints_go_out_as_they_are_written() {
    let constraints = when("(b||a),!(!c)");
    assert_eq!(Constraints::from_wire(constraints.wire()).unwrap().formula(), constraints.formula());
    assert!(Constraints::NONE.wire().is_empty() && when("true").wire().is_empty());
}

#[test]
fn t35_agreement_on_keys_matches_just_the_same_projection() {
    let keys = ["version", "env", "zone"].map(Arc::from);
    let mine = parameters([("env", "prod"), ("zone", ""), ("pod", "7")]);
    let constraints = Constraints::agreeing_with(&mine, &keys).unwrap();
    assert_eq!(constraints.to_string(), r#"env=prod,!version,zone="""#);
    assert!(constraints.matches(&mine));
    assert!(!constraints.matches(&parameters([("env", "prod")])));
    assert_eq!(Constraints::agreeing_with(&mine, &[]).unwrap(), Constraints::NONE);
}

#[test]
fn v4_of_four_variants_every_client_gets_one() {
    let variants =
        ["env=prod,version=v1", "env=prod,version!=v1", "env!=prod,version=v1", "env!=prod,version!=v1"]
            .map(when);
    assert!(variants.iter().all(|variant| variant.keys() == variants[0].keys()));
    for env in [None, Some("prod"), Some("test"), Some("")] {
        for version in [None, Some("v1"), Some("v2"), Some("")] {
            let pairs = [("env", env), ("version", version)];
            let point = pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            assert_eq!(variants.iter().filter(|variant| variant.matches(&point)).count(), 1, "{point:?}");
        }
    }
    assert!(variants[3].matches(&Parameters::new()));
}

#[test]
fn v1_the_proto_form_is_the_tree() {
    let message = DynamicParameterConstraints::from(&formula("env=prod,!version"));
    let constraints = Constraints::from_proto(&message).unwrap();
    assert_eq!(constraints.formula(), &formula("env=prod,!version"));
    assert_eq!(constraints.wire(), &message.encode_to_vec());
    assert_eq!(Constraints::from_proto(&DynamicParameterConstraints::default()).unwrap(), Constraints::NONE);
}
