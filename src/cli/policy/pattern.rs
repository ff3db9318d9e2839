//! Patterns that select identities for a rule.

use std::collections::BTreeMap;

/// A pattern for identities: `spiffe://example.org/env/{env}/*`, `{host}.example.org`, `*` for all
/// clients with a certificate, or `anonymous` for clients without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    Anonymous,
    Identity { parts: Vec<Part>, has_rest: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    /// One or more characters up to the next separator.
    Capture(String),
}

/// An error in a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum PatternError {
    #[error("is empty: write an identity, `*` for all identities, or `anonymous`")]
    Empty,
    #[error("{0:?} has an unmatched brace")]
    Brace(String),
    #[error("{0:?} has a `*` before its end")]
    Star(String),
    #[error("{text:?} has {{{name}}} twice")]
    Twice { text: String, name: String },
    #[error("{0:?} has two names in braces with nothing between them")]
    Adjacent(String),
}

/// Clients of the store's API with a token: `token:NAME`.
pub(super) use xds_store_server::TOKEN_PREFIX;

/// Clients without a certificate.
pub(super) const ANONYMOUS: &str = "anonymous";

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text == ANONYMOUS {
            return Ok(Self::Anonymous);
        }
        let (mut rest, has_rest) = text.strip_suffix('*').map_or((text, false), |rest| (rest, true));
        if rest.contains('*') {
            return Err(PatternError::Star(text.into()));
        }
        // Host names ignore case; names from certificates are in lower case here.
        let is_host = !text.contains("://") && !text.starts_with(TOKEN_PREFIX);
        let written = |text: &str| if is_host { text.to_ascii_lowercase() } else { text.to_owned() };
        let mut parts = Vec::new();
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| PatternError::Brace(text.into()))?;
            let name = name.to_owned();
            if parts.contains(&Part::Capture(name.clone())) {
                return Err(PatternError::Twice { text: text.into(), name });
            }
            if before.is_empty() && matches!(parts.last(), Some(Part::Capture(_))) {
                return Err(PatternError::Adjacent(text.into()));
            }
            parts.extend((!before.is_empty()).then(|| Part::Text(written(before))));
            parts.push(Part::Capture(name));
            rest = after;
        }
        if rest.contains('}') {
            return Err(PatternError::Brace(text.into()));
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(written(rest))));
        Ok(Self::Identity { parts, has_rest })
    }

    /// The names in braces, which capture text.
    pub(super) fn captures(&self) -> impl Iterator<Item = &str> {
        let parts = match self {
            Self::Anonymous => &[][..],
            Self::Identity { parts, .. } => parts,
        };
        parts.iter().filter_map(|part| match part {
            Part::Capture(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The captured text by name, if the pattern matches one of these identities. `names` is `None`
    /// for a client without a certificate.
    pub(super) fn find(&self, names: Option<&[String]>) -> Option<BTreeMap<&str, String>> {
        match (self, names) {
            (Self::Anonymous, None) => Some(BTreeMap::new()),
            (Self::Identity { parts, has_rest }, Some(names)) => {
                // Only `*` matches a certificate without a name.
                let all = *has_rest && parts.is_empty();
                let found = names.iter().find_map(|name| find(parts, *has_rest, name));
                found.or_else(|| all.then(BTreeMap::new))
            }
            _ => None,
        }
    }
}

impl Pattern {
    /// Whether each client that `other` matches is matched by this pattern too. If that is not
    /// certain, the answer is no.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let (Self::Identity { parts, has_rest }, Self::Identity { parts: others, has_rest: others_rest }) =
            (self, other)
        else {
            return self == other;
        };
        // The names of captures make no difference.
        let is_equal = |(part, other): (&Part, &Part)| match (part, other) {
            (Part::Capture(_), Part::Capture(_)) => true,
            (part, other) => part == other,
        };
        let is_same = parts.len() == others.len() && parts.iter().zip(others).all(is_equal);
        if (*has_rest && parts.is_empty()) || (is_same && (*has_rest || !others_rest)) {
            return true;
        }
        // A cheap condition first: a policy may have 100,000 rules.
        if !start(others).starts_with(start(parts)) {
            return false;
        }
        let Some(separator) = separator_of(others, *others_rest) else { return false };
        let (segments, others) = (segments(parts, separator), segments(others, separator));
        // Other captures end at a text, so what they match depends on the text.
        let ends_segment =
            |segment: &Vec<Atom>| segment.iter().rev().skip(1).all(|atom| *atom != Atom::Capture);
        if !segments.iter().all(ends_segment) {
            return false;
        }
        let Some((last, first)) = segments.split_last() else { return false };
        if *has_rest {
            others.len() > first.len()
                && first.iter().zip(&others).all(|(segment, other)| covers_all(segment, other))
                && covers_start(last, &others[first.len()])
        } else {
            !others_rest
                && segments.len() == others.len()
                && segments.iter().zip(&others).all(|(segment, other)| covers_all(segment, other))
        }
    }
}

/// A part of a segment: the text between two separators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Atom {
    Char(char),
    Capture,
}

/// The separator of all names that such a pattern matches; `None` if it is not certain.
fn separator_of(parts: &[Part], has_rest: bool) -> Option<char> {
    let has = |found: &str| parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains(found)));
    if has("://") {
        Some('/')
    } else if has("/") || has_rest {
        None
    } else {
        Some('.')
    }
}

fn segments(parts: &[Part], separator: char) -> Vec<Vec<Atom>> {
    let mut segments = vec![Vec::new()];
    for part in parts {
        match part {
            Part::Capture(_) => segments.last_mut().expect("never empty").push(Atom::Capture),
            Part::Text(text) => {
                for char in text.chars() {
                    if char == separator {
                        segments.push(Vec::new());
                    } else {
                        segments.last_mut().expect("never empty").push(Atom::Char(char));
                    }
                }
            }
        }
    }
    segments
}

/// The text before the first capture.
fn start(parts: &[Part]) -> &str {
    match parts.first() {
        Some(Part::Text(text)) => text,
        _ => "",
    }
}

/// Whether a segment, whose only capture is at its end, matches all that the other one matches.
fn covers_all(segment: &[Atom], other: &[Atom]) -> bool {
    match segment.split_last() {
        Some((Atom::Capture, text)) => other.starts_with(text) && other.len() > text.len(),
        _ => segment == other,
    }
}

/// The same for the start of a segment, when anything may follow.
fn covers_start(segment: &[Atom], other: &[Atom]) -> bool {
    match segment.split_last() {
        Some((Atom::Capture, text)) => other.starts_with(text) && other.len() > text.len(),
        _ => other.starts_with(segment),
    }
}

fn find<'p>(parts: &'p [Part], has_rest: bool, name: &str) -> Option<BTreeMap<&'p str, String>> {
    // A capture is one part of a path, or of a host name.
    let separator = if name.contains("://") { '/' } else { '.' };
    let (mut found, mut rest) = (BTreeMap::new(), name);
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Text(text) => rest = rest.strip_prefix(text.as_str())?,
            Part::Capture(name) => {
                let mut end = rest.find(separator).unwrap_or(rest.len());
                if let Some(Part::Text(next)) = parts.get(at + 1) {
                    // The text after the capture may begin before the separator.
                    end = rest[..].find(next.as_str()).filter(|next| *next <= end)?;
                }
                if end == 0 {
                    return None;
                }
                found.insert(name.as_str(), rest[..end].to_owned());
                rest = &rest[end..];
            }
        }
    }
    (rest.is_empty() || has_rest).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, name: &str) -> Option<String> {
        let pattern = Pattern::parse(pattern).unwrap();
        let found = pattern.find(Some(&[name.to_owned()]))?;
        Some(found.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_name_in_braces_stands_for_one_part_of_a_path_or_host() {
        assert_eq!(
            find("spiffe://t/env/{env}/sa/{sa}", "spiffe://t/env/prod/sa/web").unwrap(),
            "env=prod sa=web"
        );
        assert_eq!(find("spiffe://t/{env}-{zone}", "spiffe://t/prod-a").unwrap(), "env=prod zone=a");
        assert_eq!(find("{host}.prod.example.org", "a1.prod.example.org").unwrap(), "host=a1");
        assert_eq!(find("{Host}.Prod.example.ORG", "a1.prod.example.org").unwrap(), "Host=a1");
        assert_eq!(find("spiffe://t/env/{env}/*", "spiffe://t/env/prod/sa/web").unwrap(), "env=prod");
        for (pattern, name) in [
            ("spiffe://t/env/{env}", "spiffe://t/env/prod/sa"),
            ("spiffe://t/env/{env}", "spiffe://t/env/"),
            ("spiffe://t/env/{env}/sa", "spiffe://t/env/a/b/sa"),
            ("{host}.example.org", "a.b.example.org"),
            ("{host}.example.org", ".example.org"),
            ("spiffe://t/a", "spiffe://t/ab"),
            ("spiffe://t/A", "spiffe://t/a"),
            ("spiffe://t/a/*", "spiffe://t/b/a/"),
        ] {
            assert_eq!(find(pattern, name), None, "{pattern} {name}");
        }
    }

    #[test]
    fn all_and_nobody_in_particular() {
        let (all, anonymous) = (Pattern::parse("*").unwrap(), Pattern::parse("anonymous").unwrap());
        assert!(all.find(Some(&[])).is_some() && all.find(Some(&["x".into()])).is_some());
        assert!(all.find(None).is_none(), "only `anonymous` matches clients without a certificate");
        assert!(anonymous.find(None).is_some() && anonymous.find(Some(&[])).is_none());
        assert!(Pattern::parse("a*").unwrap().find(Some(&[])).is_none());
    }

    #[test]
    fn a_pattern_covers_what_is_surely_more_special() {
        let covers =
            |one: &str, other: &str| Pattern::parse(one).unwrap().covers(&Pattern::parse(other).unwrap());
        for (one, other) in [
            ("*", "spiffe://t/{x}"),
            ("*", "*"),
            ("anonymous", "anonymous"),
            ("spiffe://t/env/{a}/*", "spiffe://t/env/prod/sa/web"),
            ("spiffe://t/env/{a}/*", "spiffe://t/env/{b}/sa/{c}"),
            ("spiffe://t/*", "spiffe://t/a*"),
            ("spiffe://t/{a}*", "spiffe://t/b-{c}"),
            ("spiffe://t/{a}-{b}", "spiffe://t/{x}-{y}"),
            ("spiffe://t/sa-{a}", "spiffe://t/sa-b{c}d"),
            ("{host}.example.org", "a.example.org"),
            ("{host}.Example.org", "a-{x}.example.org"),
        ] {
            assert!(covers(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("anonymous", "*"),
            ("*", "anonymous"),
            ("spiffe://t/env/{a}/*", "spiffe://t/env/*"),
            ("spiffe://t/env/{a}", "spiffe://t/env/prod/sa"),
            ("spiffe://t/a", "spiffe://t/{x}"),
            ("spiffe://t/a/", "spiffe://t/a/*"),
            ("spiffe://t/sa-{a}", "spiffe://t/sa-"),
            ("spiffe://t/{a}", "spiffe://t/a*"),
            ("{host}.example.org", "a.b.example.org"),
            ("{host}*", "a*"),
        ] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    /// Pieces of patterns and of names.
    const PIECES: [&str; 8] = ["a", "b", "/", ".", "{x}", "a://", "-", "ab"];

    #[test]
    fn a_name_that_a_covered_pattern_matches_is_matched_by_the_covering_one() {
        fn holds(one: Vec<u8>, other: Vec<u8>, name: Vec<u8>, rests: (bool, bool)) -> bool {
            let text = |pieces: &[u8]| {
                let pieces = pieces.iter().take(6).enumerate();
                let piece = |(number, piece): (usize, &u8)| {
                    PIECES[*piece as usize % PIECES.len()].replace('x', &number.to_string())
                };
                pieces.map(piece).collect::<String>()
            };
            let pattern = |pieces: &[u8], has_rest| {
                Pattern::parse(&(text(pieces) + if has_rest { "*" } else { "" })).ok()
            };
            let (Some(one), Some(other)) = (pattern(&one, rests.0), pattern(&other, rests.1)) else {
                return true;
            };
            let name = [text(&name).replace(['{', '}'], "")];
            !one.covers(&other) || other.find(Some(&name)).is_none() || one.find(Some(&name)).is_some()
        }
        quickcheck::QuickCheck::new()
            .tests(20_000)
            .quickcheck(holds as fn(Vec<u8>, Vec<u8>, Vec<u8>, (bool, bool)) -> bool);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "a{b", "a}b", "{a}{b}", "a*b", "{a}.{a}", "**"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
