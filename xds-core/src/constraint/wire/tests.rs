use super::super::{Constraints, Formula};
use super::*;

/// A length-delimited field. Its length takes one byte in these tests.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

fn condition(key: &str, value: &str) -> Vec<u8> {
    field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
}

fn reads_as(raw: &[u8]) -> String {
    Constraints::from_wire(raw).unwrap().to_string()
}

fn refusal(raw: &[u8]) -> String {
    Constraints::from_wire(raw).unwrap_err().to_string()
}

#[test]
fn t7_no_bytes_are_no_constraints() {
    assert_eq!(Constraints::from_wire(b"").unwrap(), Constraints::NONE);
}

#[test]
fn t8_a_message_without_type_is_refused_where_it_stands() {
    let list = [field(1, &condition("a", "1")), field(1, &field(4, b""))].concat();
    assert_eq!(
        refusal(&field(3, &list)),
        "and[1].not: neither a condition nor an operator that this version knows"
    );
    let untested = field(1, &field(1, b"env"));
    assert_eq!(refusal(&field(4, &untested)), "not: key `env` has neither `value` nor `exists`");
    assert_eq!(refusal(&field(1, b"")), "top level: key `` has neither `value` nor `exists`");
}

#[test]
fn t9_a_type_from_the_future_is_not_unconstrained() {
    let future = field(5, &condition("a", "1"));
    assert_eq!(refusal(&future), "top level: neither a condition nor an operator that this version knows");
    assert_eq!(
        refusal(&field(2, &field(1, &future))),
        "or[0]: neither a condition nor an operator that this version knows"
    );
    let untested = field(1, &[field(1, b"env"), field(4, b"^p")].concat());
    assert_eq!(refusal(&untested), "top level: key `env` has neither `value` nor `exists`");
}

#[test]
fn t9_the_last_type_wins_and_equal_types_are_merged() {
    let (a, b) = (condition("a", "1"), condition("b", "2"));
    let (or_a, or_b, and_b) = (field(2, &field(1, &a)), field(2, &field(1, &b)), field(3, &field(1, &b)));
    assert_eq!(reads_as(&[or_a.clone(), and_b.clone()].concat()), "b=2");
    assert_eq!(reads_as(&[or_a.clone(), or_b.clone()].concat()), "a=1 || b=2");
    assert_eq!(reads_as(&[or_a.clone(), and_b, or_b].concat()), "b=2", "a type in between starts anew");
    assert_eq!(reads_as(&[field(4, &or_a), field(4, &field(2, &field(1, &b)))].concat()), "!(a=1 || b=2)");
    assert_eq!(reads_as(&[a, field(1, &field(2, b"3"))].concat()), "a=3");
    assert_eq!(reads_as(&field(1, &[field(1, b"a"), field(2, b"1"), field(3, b"")].concat())), "a");
}

#[test]
fn t9_unknown_fields_beside_a_known_type_change_nothing() {
    let varint = [7 << 3, 1];
    let group = [8 << 3 | 3, 8 << 3 | 4];
    assert_eq!(reads_as(&[&varint[..], &condition("a", "1"), &group].concat()), "a=1");
    assert_eq!(reads_as(&field(3, &[&field(1, &condition("a", "1"))[..], &varint].concat())), "a=1");
}

#[test]
fn t23_no_group_is_deeper_than_the_parsers_of_those_who_get_the_bytes_allow() {
    // Once, each group started to count its levels at zero. So bytes were accepted, and sent on,
    // that no parser could decode.
    let group = |depth: usize| [vec![9 << 3 | 3; depth], vec![8 << 3, 1], vec![9 << 3 | 4; depth]].concat();
    let nested = |lists: usize, groups: usize| {
        let inner = [condition("a", "1"), group(groups)].concat();
        (0..lists).fold(inner, |part, _| long_field(3, &long_field(1, &part)))
    };
    let mut refused = 0;
    for (lists, groups) in (0..=32).step_by(8).flat_map(|lists| (30..101).map(move |groups| (lists, groups)))
    {
        let raw = nested(lists, groups);
        let decodes = <DynamicParameterConstraints as prost::Message>::decode(&raw[..]).is_ok();
        assert_eq!(Constraints::from_wire(&raw).is_ok(), decodes, "{lists} lists, {groups} groups");
        refused += usize::from(!decodes);
    }
    assert!(refused > 0);
}

#[test]
fn t11_depth_is_bounded_before_the_stack_is() {
    let nots = |count| (0..count).fold(condition("a", "1"), |part, _| long_field(4, &part));
    assert!(Constraints::from_wire(&nots(32)).is_ok());
    assert!(matches!(Constraints::from_wire(&nots(33)), Err(ConstraintError::TooDeep { limit: 32, .. })));
    assert!(Constraints::from_wire(&nots(10_000)).is_err());
    let lists = |count| (0..count).fold(condition("a", "1"), |part, _| long_field(3, &long_field(1, &part)));
    assert!(Constraints::from_wire(&lists(32)).is_ok());
    assert!(matches!(Constraints::from_wire(&lists(33)), Err(ConstraintError::TooDeep { .. })));
}

#[test]
fn t11_leaves_are_bounded_before_memory_is() {
    let list = |count, operand: &[u8]| long_field(3, &field(1, operand).repeat(count));
    assert!(Constraints::from_wire(&list(1024, &condition("a", "1"))).is_ok());
    assert_eq!(refusal(&list(1025, &condition("a", "1"))), "and[1024]: more than 1024 conditions");
    assert_eq!(refusal(&list(1025, &field(2, b""))), "and[1024]: more than 1024 conditions");
    assert_eq!(refusal(&list(1_000_000, b"")), format!("and[{OPERAND_LIMIT}]: more than 1024 conditions"));
}

#[test]
fn w2_a_draft_encoded_message_is_refused() {
    // DynamicParameterConstraints {constraints: [{constraints: [{key: env, value: prod}],
    // match_type: AND}]} of the draft.
    let single = field(1, &[field(1, b"env"), field(2, b"prod")].concat());
    let list = field(1, &[&single[..], &[2 << 3, 1]].concat());
    assert_eq!(refusal(&list), "top level: malformed message");
    assert_eq!(
        refusal(&field(1, &single)),
        "key: key `\\n\\u{3}env\\u{12}\\u{4}prod` has a control character at byte 0"
    );
    let deep = field(3, &field(1, &field(4, &condition("a\u{1f}", "1"))));
    assert!(refusal(&deep).starts_with("and[0].not.key: "));
    assert_eq!(reads_as(&condition("a", "\n")), "a=\"\\n\"", "values may hold anything");
}

#[test]
fn malformed_bytes_are_refused_with_their_place() {
    let whole = field(3, &field(1, &condition("a", "1")));
    for end in 1..whole.len() {
        assert!(Constraints::from_wire(&whole[..end]).is_err(), "cut at {end}");
    }
    assert_eq!(
        refusal(&field(4, &field(1, &field(1, b"\xff")))),
        "not.key: malformed message",
        "keys are UTF-8"
    );
    assert_eq!(refusal(&field(1, &field(2, b"\xff"))), "value: malformed message");
    assert_eq!(refusal(&[3 << 3, 0]), "top level: malformed message", "the type of a field is given");
    assert_eq!(refusal(&field(3, &field(1, b"\xff"))), "and[0]: malformed message");
}

#[test]
fn reading_agrees_with_the_decoder_on_a_plain_tree() {
    let formula: Formula = "a=1,(b||!c)".parse().unwrap();
    let message = DynamicParameterConstraints::from(&formula);
    assert_eq!(read(&prost::Message::encode_to_vec(&message)).unwrap(), message);
}

fn long_field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut encoded);
    encoded.extend_from_slice(content);
    encoded
}
