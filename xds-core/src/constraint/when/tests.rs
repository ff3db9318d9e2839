use super::super::{Constraints, Formula};
use super::*;

fn equals(key: &str, value: &str) -> Formula {
    Formula::Equals { key: key.into(), value: value.into() }
}

fn exists(key: &str) -> Formula {
    Formula::Exists { key: key.into() }
}

fn not(part: Formula) -> Formula {
    Formula::Not(Box::new(part))
}

#[track_caller]
fn reads(text: &str, expected: &Formula) {
    assert_eq!(text.parse().as_ref(), Ok(expected), "{text}");
}

fn refusal(text: &str) -> String {
    text.parse::<Formula>().expect_err(text).to_string()
}

#[test]
fn conditions_read_as_written() {
    reads("env=prod", &equals("env", "prod"));
    reads("env==prod", &equals("env", "prod"));
    reads("env!=prod", &not(equals("env", "prod")));
    reads("beta", &exists("beta"));
    reads("!beta", &not(exists("beta")));
    reads("!env=prod", &not(equals("env", "prod")));
    reads("!env!=prod", &not(not(equals("env", "prod"))));
    reads("env in (a,b)", &Formula::Any(vec![equals("env", "a"), equals("env", "b")]));
    reads("env notin (a,b)", &not(Formula::Any(vec![equals("env", "a"), equals("env", "b")])));
    reads("env in (a)", &equals("env", "a"));
    reads("app.kubernetes.io/name=-_1", &equals("app.kubernetes.io/name", "-_1"));
}

#[test]
fn and_binds_closer_than_or() {
    let or_last = Formula::Any(vec![Formula::All(vec![exists("a"), exists("b")]), exists("c")]);
    reads("a,b||c", &or_last);
    reads(" a ,\tb\n||\r\nc ", &or_last);
    reads("(a,b)||(c)", &or_last);
    reads("a,(b||c)", &Formula::All(vec![exists("a"), Formula::Any(vec![exists("b"), exists("c")])]));
    reads("!(a,b),c", &Formula::All(vec![not(Formula::All(vec![exists("a"), exists("b")])), exists("c")]));
}

#[test]
fn constants_are_bare_words_in_the_place_of_a_key() {
    reads("true", &Formula::All(vec![]));
    reads("!false", &not(Formula::Any(vec![])));
    reads("\"true\"", &exists("true"));
    reads("a=true", &equals("a", "true"));
    reads(
        "\"false\" in (true,false)",
        &Formula::Any(vec![equals("false", "true"), equals("false", "false")]),
    );
    reads("in in (in,notin)", &Formula::Any(vec![equals("in", "in"), equals("in", "notin")]));
}

#[test]
fn quotes_hold_what_json_holds() {
    reads(r#"k="""#, &equals("k", ""));
    reads(r#"""=x"#, &equals("", "x"));
    reads(r#""a b"="c,d""#, &equals("a b", "c,d"));
    reads(r#"k="\"\\\/\b\f\n\r\té😀€""#, &equals("k", "\"\\/\u{8}\u{c}\n\r\té😀€"));
    reads(r#"k="\u00e9\uD83D\ude00\u0000""#, &equals("k", "é😀\0"));
    for escape in
        [r"\x", r"\u12", r"\u12g4", r"\ud83d", r"\ud83d\n", r"\ud83dA", r"\ud83d\u0041", r"\ude00", r"\+"]
    {
        let error = format!("k=\"é{escape}\"").parse::<Formula>().unwrap_err();
        assert_eq!(error, WhenError::BadEscape { column: 5 }, "{escape}");
    }
    assert_eq!("k=\"a\nb\"".parse::<Formula>(), Err(WhenError::ControlCharacter { column: 5 }));
}

#[test]
fn w2_a_key_with_a_control_character_is_refused() {
    assert_eq!(refusal(r#"a,"b\n"=1"#), r"column 3: key `b\n` has a control character");
}

#[test]
fn errors_point_at_the_column_and_say_what_belongs_there() {
    let refused = [
        (
            "",
            "column 1: expected a condition such as `key=value`, found the end; write `true` to match every client",
        ),
        ("a,", "column 3: expected a condition such as `key=value`, found the end"),
        ("a,,b", "column 3: expected a condition such as `key=value`, found `,`"),
        ("a b", "column 3: expected `=`, `!=`, `in`, `notin`, `,` or `||`, found `b`"),
        ("a=1 b", "column 5: expected `,`, `||` or the end, found `b`"),
        ("(a=1 b)", "column 6: expected `,`, `||` or `)`, found `b`"),
        ("a=1 \"é\"", "column 5: expected `,`, `||` or the end, found \"é\""),
        ("a in b", "column 6: expected a list such as `(a,b)`, found `b`"),
        ("a in (b", "column 8: expected `,` or `)`, found the end"),
        ("a in (b c)", "column 9: expected `,` or `)`, found `c`"),
        ("\"é\"=(", "column 5: expected a value, found `(`"),
        ("a,((b)", "column 3: the parenthesis that opens here is never closed"),
        ("a,\"b", "column 3: the quote that opens here is never closed"),
        ("a=b=c", "column 4: expected `,`, `||` or the end, found `=`"),
    ];
    for (text, expected) in refused {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn errors_guess_what_was_meant() {
    let refused = [
        ("a&&b", 2, Hint::And),
        ("a=1&b", 4, Hint::And),
        ("a=1 and b", 5, Hint::And),
        ("(a or b)", 4, Hint::Or),
        ("a|b", 2, Hint::Or),
        ("not a=1", 5, Hint::Not),
        ("NOT (a)", 5, Hint::Not),
        ("a not in (1)", 3, Hint::NotIn),
        ("a IN (1)", 3, Hint::LowerCase),
        ("!!a", 2, Hint::DoubleNot),
        ("a='b'", 3, Hint::DoubleQuotes),
        ("a=“b”", 3, Hint::DoubleQuotes),
        ("a=é", 3, Hint::Quote),
        ("a=b:c", 4, Hint::Quote),
        ("true=1", 5, Hint::QuoteConstant),
        ("false in (a)", 7, Hint::QuoteConstant),
        ("a=", 3, Hint::EmptyValue),
        ("a=,b", 3, Hint::EmptyValue),
        ("a in ()", 7, Hint::EmptyValue),
        ("   ", 4, Hint::Always),
        ("a)", 2, Hint::NothingOpen),
    ];
    for (text, at, meant) in refused {
        match text.parse::<Formula>() {
            Err(WhenError::Unexpected { column, hint, .. }) => {
                assert_eq!((column, hint), (at, Some(meant)), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn t11_limits_hold_while_reading() {
    let nested = |count: usize| format!("{}a{}", "!(".repeat(count), ")".repeat(count));
    assert!(nested(32).parse::<Formula>().is_ok());
    assert_eq!(nested(33).parse::<Formula>(), Err(WhenError::TooDeep { column: 66, limit: 32 }));
    assert!(nested(1_000_000).parse::<Formula>().is_err());
    assert_eq!("(".repeat(1_000_000).parse::<Formula>(), Err(WhenError::TooDeep { column: 33, limit: 32 }));
    let lists = |count: usize| format!("{}a{}", "b,(c||".repeat(count), ")".repeat(count));
    assert!(lists(16).parse::<Formula>().is_ok());
    assert_eq!(lists(17).parse::<Formula>(), Err(WhenError::TooDeep { column: 4, limit: 32 }));

    let list = |count: usize| format!("k in ({})", vec!["v"; count].join(","));
    assert!(list(1024).parse::<Formula>().is_ok());
    assert_eq!(list(1025).parse::<Formula>(), Err(WhenError::TooManyLeaves { column: 2055, limit: 1024 }));
    assert!(vec!["true"; 1025].join(",").parse::<Formula>().is_err(), "a constant is an empty list");
}

#[test]
fn printing_is_what_one_would_write() {
    let unchanged = [
        "env=prod,version!=v1",
        "env in (prod,canary)",
        "env notin (prod,canary),beta",
        "a,b || c",
        "(a || b),c",
        "!(a,b)",
        "!(a || b)",
        "!(!a)",
        "!(!(a,b))",
        "!true || false",
        r#"k="",""="a b","true"=true"#,
        r#""\"\\"="\n\r\t\u0000\u007fé""#,
    ];
    for text in unchanged {
        assert_eq!(text.parse::<Constraints>().unwrap().to_string(), text);
    }
    let one =
        Formula::All(vec![Formula::Any(vec![exists("a"), Formula::Any(vec![exists("b"), exists("c")])])]);
    assert_eq!(one.to_string(), "a || b || c", "lists of one and lists in lists are not shown");
    assert_eq!(Constraints::NONE.to_string(), "true");
    assert_eq!(format!("{:?}", Constraints::NONE), "Constraints(true)");
}
