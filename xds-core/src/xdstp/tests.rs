use quickcheck::{Arbitrary, Gen, QuickCheck};
use xds_proto::type_url::{CLUSTER, LISTENER};

use super::*;

#[track_caller]
fn name(text: &str) -> XdstpName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn canonical(text: &str) -> String {
    name(text).to_string()
}

#[track_caller]
fn refusal(text: &str) -> String {
    XdstpName::of(text).expect_err(text).to_string()
}

#[test]
fn x1_what_does_not_start_with_xdstp_is_opaque() {
    for text in ["", "a", "xdstp", "XDSTP://a/t/b", "http://a/t/b", " xdstp://a/t/b", "%zz", "a#b"] {
        assert_eq!(XdstpName::of(text), Ok(None), "{text}");
    }
    assert_eq!("a".parse::<XdstpName>(), Err(XdstpError::NotXdstp));
}

#[test]
fn x2_a_name_has_an_authority_a_type_an_id_and_parameters() {
    let read = name("xdstp://a.example:80/acme.Thing/b/c?k=v&l=");
    assert_eq!((read.authority(), read.resource_type(), read.id()), ("a.example:80", "acme.Thing", "b/c"));
    let context = [("k", "v"), ("l", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(read.context(), &BTreeMap::from(context));
}

#[test]
fn x2_authority_and_id_may_be_empty() {
    let read = name("xdstp:///t");
    assert_eq!((read.authority(), read.resource_type(), read.id()), ("", "t", ""));
    assert_eq!(name("xdstp:///t/"), read);
    assert_eq!(canonical("xdstp:///t/?k=v"), "xdstp:///t?k=v");
    assert_eq!(canonical("xdstp:///t//a//"), "xdstp:///t//a//");
}

#[test]
fn x2_a_name_of_another_type_than_the_request_is_refused() {
    let read = name("xdstp:///envoy.config.cluster.v3.Cluster/a");
    assert_eq!(read.check_type(&CLUSTER.into()), Ok(()));
    let error = read.check_type(&LISTENER.into()).unwrap_err();
    let expected = "the name is of type \"envoy.config.cluster.v3.Cluster\", \
        not \"envoy.config.listener.v3.Listener\"";
    assert_eq!((error.to_string().as_str(), error.column()), (expected, None));
}

#[test]
fn x3_directives_are_not_part_of_a_name_that_is_asked_for() {
    assert_eq!(
        refusal("xdstp://a/t/b?k=v#entry=x"),
        "column 18: directives are for clients; a name ends before the `#`"
    );
    assert_eq!(XdstpName::of("xdstp://a/t/b#"), Err(XdstpError::Directives { column: 14 }));
}

#[test]
fn x4_the_order_of_parameters_does_not_matter() {
    assert_eq!(name("xdstp://a/t/b?x=1&y=2"), name("xdstp://a/t/b?y=2&x=1"));
    assert_eq!(canonical("xdstp://a/t/b?y=2&x=1"), "xdstp://a/t/b?x=1&y=2");
    // Sorted by key, not by text: `=` is greater than `-`.
    assert_eq!(canonical("xdstp://a/t/b?k-=1&k=2"), "xdstp://a/t/b?k=2&k-=1");
}

#[test]
fn x4_of_a_parameter_given_twice_the_last_counts() {
    assert_eq!(canonical("xdstp://a/t/b?x=1&%78=2&x=0"), "xdstp://a/t/b?x=0");
}

#[test]
fn x4_empty_pieces_of_the_parameters_say_nothing() {
    assert_eq!(canonical("xdstp://a/t/b?"), "xdstp://a/t/b");
    assert_eq!(canonical("xdstp://a/t/b?&x&&y=&"), "xdstp://a/t/b?x=&y=");
    assert_eq!(canonical("xdstp://a/t/b?=v"), "xdstp://a/t/b?=v");
}

#[test]
fn x4_parts_are_compared_without_their_escapes() {
    assert_eq!(name("xdstp://%61/%74/%62%2fc?%6b=%76"), name("xdstp://a/t/b/c?k=v"));
    // The same text in another part is another name.
    assert_ne!(name("xdstp://a/t/b%3Fk=v"), name("xdstp://a/t/b?k=v"));
    assert_ne!(name("xdstp://a%2Ft/t/b"), name("xdstp://a/t/t/b"));
}

#[test]
fn x5_each_part_is_escaped_as_envoy_does() {
    let every = "%25%2F%3A%3F%23%5B%5D%40%21%24%26%27%28%29%2A%2B%2C%3B%3D";
    assert_eq!(
        canonical(&format!("xdstp://{every}/t/{every}?{every}={every}")),
        "xdstp://%25%2F:%3F%23[]@!$&'()*+,;=/t/%25/%3A%3F%23%5B%5D@!$&'()*+,;=\
            ?%25/:?%23%5B%5D@!$%26'()*+,;%3D=%25/:?%23%5B%5D@!$%26'()*+,;%3D"
    );
    // Characters that URIs exclude: gRPC refuses names with them.
    assert_eq!(canonical("xdstp://a/t/b c~\u{e9}|?k=\"^"), "xdstp://a/t/b%20c~%C3%A9%7C?k=%22%5E");
    assert_eq!(canonical("xdstp://a/t/b?k=v=w"), "xdstp://a/t/b?k=v%3Dw");
}

#[test]
fn x6_a_malformed_escape_is_told_with_its_place() {
    assert_eq!(
        refusal("xdstp://a/t/b%zz"),
        "column 14: \"%zz\" is not an escape; write `%25` for a percent sign"
    );
    for (text, column) in [
        ("xdstp://%/t/b", 9),
        ("xdstp://a/t%2/b", 12),
        ("xdstp://a/t/\u{e9}%", 14),
        ("xdstp://a/t/b?%+1=v", 15),
        ("xdstp://a/t/b?k=%2", 17),
        ("xdstp://a/t/b?k=%\u{e9}0", 17),
    ] {
        let error = XdstpName::of(text).unwrap_err();
        assert!(matches!(error, XdstpError::BadEscape { .. }), "{text}: {error}");
        assert_eq!(error.column(), Some(column), "{text}");
    }
}

#[test]
fn x6_escapes_that_are_no_text_are_malformed() {
    assert_eq!(refusal("xdstp://a/t/%41%FFb"), "column 16: the escapes from \"%FF\" on are not UTF-8");
    assert_eq!(
        XdstpName::of("xdstp://a/t/b?\u{e9}%41=%c3"),
        Err(XdstpError::NotUtf8 { column: 20, found: "%c3".into() })
    );
    assert_eq!(name("xdstp://a/t/%C3%a9").id(), "\u{e9}");
}

#[test]
fn x6_a_name_without_a_type_is_malformed() {
    assert_eq!(refusal("xdstp://a"), "column 10: the type is missing: `xdstp://authority/type/id`");
    for (text, column) in [("xdstp://", 9), ("xdstp:///", 10), ("xdstp://a//b", 11), ("xdstp://a?k=v/w", 10)]
    {
        assert_eq!(XdstpName::of(text), Err(XdstpError::MissingType { column }), "{text}");
    }
    assert_eq!(refusal("xdstp://a/t%2Fu/b"), "column 11: \"t/u\" is not the name of a message");
}

#[test]
fn x6_the_scheme_alone_is_malformed() {
    for text in ["xdstp:", "xdstp:a/t/b", "xdstp:/t/b"] {
        assert_eq!(refusal(text), "column 7: expected `//` after `xdstp:`");
    }
}

#[test]
fn w2_control_characters_are_refused_plain_and_escaped() {
    assert_eq!(refusal("xdstp://a/t/b\n"), "column 14: '\\n' is a control character");
    for (text, column) in [
        ("xdstp://%00/t/b", 9),
        ("xdstp://a/%1Ft/b", 11),
        ("xdstp://a/t/%41%7fb", 16),
        ("xdstp://a/t/b?\t", 15),
        ("xdstp://a/t/b?k=\u{e9}%0D", 18),
    ] {
        let error = XdstpName::of(text).unwrap_err();
        assert!(matches!(error, XdstpError::ControlCharacter { .. }), "{text}: {error}");
        assert_eq!(error.column(), Some(column), "{text}");
    }
}

#[test]
fn x8_all_parameters_count() {
    let texts = ["xdstp://a/t/b", "xdstp://a/t/b?x=1", "xdstp://a/t/b?x=2", "xdstp://a/t/b?x=1&y=2"];
    for (at, text) in texts.iter().enumerate() {
        assert!(texts[at + 1..].iter().all(|other| name(other) != name(text)), "{text}");
    }
}

#[test]
fn x9_each_directive_is_taken_once() {
    let url: XdstpUrl =
        "xdstp://a/t/b?k=v#entry=x.%79/z,alt=xdstp://c/t/d%23entry=e%2Calt=f".parse().unwrap();
    assert_eq!(url.name, name("xdstp://a/t/b?k=v"));
    assert_eq!(url.entry.as_deref(), Some("x.y/z"));
    let alternative: XdstpUrl = url.alternative.unwrap().parse().unwrap();
    assert_eq!((alternative.entry.as_deref(), alternative.alternative.as_deref()), (Some("e"), Some("f")));

    let plain: XdstpUrl = "xdstp://a/t/b".parse().unwrap();
    assert_eq!(plain, XdstpUrl { name: name("xdstp://a/t/b"), alternative: None, entry: None });
}

#[test]
fn x9_an_unknown_or_repeated_directive_is_an_error() {
    let refusal = |text: &str| text.parse::<XdstpUrl>().expect_err(text).to_string();
    let unknown = |column: usize, found: &str| {
        format!("column {column}: {found:?} is not a directive; the directives are `alt=` and `entry=`")
    };
    assert_eq!(refusal("xdstp://a/t/b#"), unknown(15, ""));
    assert_eq!(refusal("xdstp://a/t/b#entry=x,Alt=y"), unknown(23, "Alt"));
    assert_eq!(refusal("xdstp://a/t/b#alt"), unknown(15, "alt"));
    assert_eq!(refusal("xdstp://a/t/b#entry=x,entry=x"), "column 23: directive `entry` is given twice");
    assert_eq!(refusal("xdstp://a/t/b#alt=x,alt=y"), "column 21: directive `alt` is given twice");
    assert_eq!(refusal("xdstp://a/t/b#entry="), "column 21: \"\" is not a valid name of an entry");
    assert_eq!(refusal("xdstp://a/t/b#entry=x%2Cy"), "column 21: \"x,y\" is not a valid name of an entry");
    assert_eq!(refusal("xdstp://a/t/b#alt="), "column 19: the URL of `alt` is missing");
}

#[test]
fn x12_a_glob_ends_in_a_segment_that_is_a_star() {
    for text in ["xdstp://a/t/*", "xdstp://a/t/b/*?k=v", "xdstp://a/t/b%2F%2A", "xdstp://a/t//*"] {
        let glob = name(text);
        assert!(glob.is_glob(), "{text}");
        assert_eq!(glob.glob(), None, "{text}: a glob is no member of itself");
    }
    for text in ["xdstp://a/t", "xdstp://a/t/b*", "xdstp://a/t/**", "xdstp://a/t/*/", "xdstp://a/t/b?k=*"] {
        assert!(!name(text).is_glob(), "{text}");
    }
}

#[test]
fn x12_a_member_is_one_segment_below_its_glob_and_has_its_parameters() {
    let glob = |text: &str| name(text).glob().unwrap().to_string();
    assert_eq!(glob("xdstp://a/t/b"), "xdstp://a/t/*");
    assert_eq!(glob("xdstp://a/t"), "xdstp://a/t/*");
    assert_eq!(glob("xdstp://a/t/b/c?y=2&x=1"), "xdstp://a/t/b/*?x=1&y=2");
    assert_eq!(glob("xdstp://a/t/b/"), "xdstp://a/t/b/*");
    assert_eq!(glob("xdstp://a/t/*/b"), "xdstp://a/t/*/*");
    assert_eq!(glob("xdstp://a/t/b%3A%2Fc"), "xdstp://a/t/b%3A/*");
}

/// Names of few letters, so that equal parts are common, with characters that need an escape in
/// some part.
impl Arbitrary for XdstpName {
    fn arbitrary(g: &mut Gen) -> Self {
        let context = (0..usize::arbitrary(g) % 4).map(|_| (text(g), text(g))).collect();
        let resource_type = if bool::arbitrary(g) { "t".into() } else { "acme.Thing-_~".into() };
        Self { authority: text(g), resource_type, id: text(g), context }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let Self { authority, resource_type, id, context } = self.clone();
        let parts = (authority, id, context).shrink();
        let is_text = |text: &String| !text.contains(|c: char| c.is_ascii_control());
        let names = parts.map(move |(authority, id, context)| {
            let resource_type = resource_type.clone();
            Self { authority, resource_type, id, context }
        });
        Box::new(names.filter(move |name| {
            let of_context = name.context.iter().all(|(key, value)| is_text(key) && is_text(value));
            is_text(&name.authority) && is_text(&name.id) && of_context
        }))
    }
}

fn text(g: &mut Gen) -> String {
    let letters: Vec<char> = "ab*/%?#:[]&=,+ ~\u{e9}\u{1f600}".chars().collect();
    (0..usize::arbitrary(g) % 5).filter_map(|_| g.choose(&letters)).collect()
}

/// The same name, written in an unusual way.
fn written(name: &XdstpName) -> String {
    let escaped = |text: &str| text.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
    let pair = |(key, value): (&String, &String)| format!("&{}={}", escaped(key), escaped(value));
    let context: String = name.context.iter().rev().map(pair).collect();
    // `?&` has no parameter, and of a key that occurs twice the first value does not count.
    let first = name.context.keys().next_back().map(|key| format!("&{}=other", escaped(key)));
    let (authority, resource_type, id) =
        (escaped(&name.authority), escaped(&name.resource_type), escaped(&name.id));
    format!("xdstp://{authority}/{resource_type}/{id}?{}{context}", first.unwrap_or_default())
}

#[test]
fn x4_what_is_printed_reads_as_the_same_name() {
    fn prop(name: XdstpName) -> bool {
        let text = name.to_string();
        let read = XdstpName::of(&text).ok().flatten();
        read.as_ref() == Some(&name) && read.is_some_and(|read| read.to_string() == text)
    }
    QuickCheck::new().tests(10_000).quickcheck(prop as fn(XdstpName) -> bool);
}

#[test]
fn x4_however_a_name_is_written_its_canonical_text_is_one() {
    fn prop(name: XdstpName) -> bool {
        let written = written(&name);
        XdstpName::of(&written).is_ok_and(|read| read.as_ref() == Some(&name))
            && canonical(&written) == name.to_string()
    }
    QuickCheck::new().tests(10_000).quickcheck(prop as fn(XdstpName) -> bool);
}

#[test]
fn x4_canonical_texts_are_equal_when_all_parts_are() {
    fn prop(left: XdstpName, right: XdstpName, parts: (bool, bool, bool, bool)) -> bool {
        let mut other = left.clone();
        let (authority, resource_type, id, context) = parts;
        if authority {
            other.authority = right.authority;
        }
        if resource_type {
            other.resource_type = right.resource_type;
        }
        if id {
            other.id = right.id;
        }
        if context {
            other.context = right.context;
        }
        (left.canonical() == other.canonical()) == (left == other)
    }
    QuickCheck::new()
        .tests(10_000)
        .quickcheck(prop as fn(XdstpName, XdstpName, (bool, bool, bool, bool)) -> bool);
}

#[test]
fn x12_the_glob_of_a_name_is_a_glob_that_differs_in_the_last_segment() {
    fn prop(member: XdstpName) -> bool {
        let Some(glob) = member.glob() else { return member.is_glob() };
        let read = name(glob.as_str());
        let segments =
            |name: &XdstpName| name.id.split('/').rev().skip(1).map(str::to_owned).collect::<Vec<_>>();
        let parents = segments(&read) == segments(&member);
        let rest = XdstpName { id: member.id.clone(), ..read.clone() } == member;
        read.is_glob() && read.canonical() == glob && parents && rest
    }
    QuickCheck::new().tests(10_000).quickcheck(prop as fn(XdstpName) -> bool);
}
