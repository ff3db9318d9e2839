//! New-style names.

use std::collections::BTreeMap;

use xds_core::{XdstpError, XdstpName, XdstpUrl};

/// Reads the name of a request, and reads it again in other spellings.
///
/// # Panics
/// When a property does not hold.
pub fn names_xdstp(raw: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(raw) else { return false };
    let url = text.parse::<XdstpUrl>();
    match XdstpName::of(text) {
        Ok(None) => {
            assert!(!text.starts_with("xdstp:"));
            assert_eq!(
                (text.parse::<XdstpName>(), url),
                (Err(XdstpError::NotXdstp), Err(XdstpError::NotXdstp))
            );
            false
        }
        Ok(Some(name)) => {
            let (authority, resource_type, id, context) = parts(text).expect("what is read has its parts");
            assert_eq!(
                (name.authority(), name.resource_type(), name.id()),
                (&*authority, &*resource_type, &*id)
            );
            assert_eq!(name.context(), &context);
            assert_eq!(url, Ok(XdstpUrl { name: name.clone(), alternative: None, entry: None }));
            check(&name);
            true
        }
        Err(error) => {
            let columns = 1..=text.chars().count() + 1;
            let column = error.column().expect("it is about a place");
            assert!(columns.contains(&column) && !error.to_string().is_empty(), "{error}");
            if let XdstpError::Directives { .. } = error {
                assert_eq!(text.chars().nth(column - 1), Some('#'), "the name before is good");
                let name = XdstpName::of(&text[..text.find('#').expect("a directive was found")]);
                if let Ok(url) = url {
                    assert_eq!(name, Ok(Some(url.name)));
                }
            } else {
                assert_eq!(url, Err(error), "a name is read the same where directives may follow");
            }
            false
        }
    }
}

fn check(name: &XdstpName) {
    let canonical = name.to_string();
    assert!(canonical.is_ascii() && canonical == name.canonical().as_str());
    assert_eq!(XdstpName::of(&canonical).as_ref(), Ok(&Some(name.clone())));
    let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let pairs =
        name.context().iter().rev().map(|(key, value)| format!("{}={}", escaped(key), escaped(value)));
    let written = format!(
        "xdstp://{}/{}/{}?{}",
        escaped(name.authority()),
        escaped(name.resource_type()),
        escaped(name.id()),
        pairs.collect::<Vec<_>>().join("&")
    );
    assert_eq!(XdstpName::of(&written).as_ref(), Ok(&Some(name.clone())), "{written}");

    let last = name.id().rsplit('/').next();
    assert_eq!(name.is_glob(), last == Some("*"));
    match name.glob() {
        None => assert!(name.is_glob(), "only a glob has none"),
        Some(glob) => {
            let glob = glob.as_str().parse::<XdstpName>().expect("a glob is a name");
            assert!(glob.is_glob());
            assert_eq!((glob.authority(), glob.resource_type()), (name.authority(), name.resource_type()));
            assert_eq!(glob.context(), name.context());
            let parent = &name.id()[..name.id().len() - last.map_or(0, str::len)];
            assert_eq!(glob.id().strip_suffix('*'), Some(parent));
        }
    }
}

type Parts = (String, String, String, BTreeMap<String, String>);

/// A second, independent reader of valid names.
fn parts(text: &str) -> Option<Parts> {
    let (path, context) = text.split_once('?').unwrap_or((text, ""));
    let mut segments = path.strip_prefix("xdstp://")?.split('/');
    let (authority, resource_type) = (segments.next()?, segments.next()?);
    let id = segments.collect::<Vec<_>>().join("/");
    let pairs = context.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let context = pairs.map(|(key, value)| Some((decoded(key)?, decoded(value)?))).collect::<Option<_>>()?;
    Some((decoded(authority)?, decoded(resource_type)?, decoded(&id)?, context))
}

pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        bytes.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        bytes.extend(piece[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

pub(crate) const WORDS: &[&[u8]] = &[
    b"xdstp:",
    b"xdstp://",
    b"xdstp://a/t/b",
    b"xdstp:///t",
    b"a",
    b"envoy.config.cluster.v3.Cluster",
    b"/",
    b"//",
    b"/*",
    b"*",
    b"?",
    b"?k=v",
    b"&",
    b"&l=w",
    b"=",
    b"#",
    b"#entry=x",
    b",alt=",
    b"xdstp%3A//b/t/c",
    b"%",
    b"%25",
    b"%2F",
    b"%2a",
    b"%3f",
    b"%41",
    b"%0a",
    b"%ff",
    b"%c3%a9",
    b"\xc3\xa9",
    b"[",
    b"]",
    b":",
    b" ",
    b"\n",
];
