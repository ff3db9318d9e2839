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

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text == "anonymous" {
            return Ok(Self::Anonymous);
        }
        let (mut rest, has_rest) = text.strip_suffix('*').map_or((text, false), |rest| (rest, true));
        if rest.contains('*') {
            return Err(PatternError::Star(text.into()));
        }
        // Host names ignore case; names from certificates are in lower case here.
        let is_host = !text.contains("://");
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
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "a{b", "a}b", "{a}{b}", "a*b", "{a}.{a}", "**"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
