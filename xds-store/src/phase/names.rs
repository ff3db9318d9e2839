//! Names of the two forms: which names a plan has, and the new name of an old one.

/// A set of names: one name, or all names with a beginning and an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameSet {
    /// One name.
    One(String),
    /// All names with this beginning and this end.
    Between(String, String),
}

/// The new name of an old one: what is before and behind the old name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameTemplate {
    before: String,
    behind: String,
}

impl NameSet {
    /// The set of a pattern: a name, or a beginning with `*` behind it.
    pub(super) fn parse(pattern: &str) -> Option<Self> {
        let set = match pattern.strip_suffix('*') {
            Some(before) => Self::Between(before.to_owned(), String::new()),
            None => Self::One(pattern.to_owned()),
        };
        let text = pattern.strip_suffix('*').unwrap_or(pattern);
        (!pattern.is_empty() && !text.contains('*') && !text.contains(char::is_control)).then_some(set)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Between(before, behind) => {
                name.len() >= before.len() + behind.len()
                    && name.starts_with(&**before)
                    && name.ends_with(&**behind)
            }
        }
    }

    /// Whether a name may be in both. It may say so although there is none.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(name), set) | (set, Self::One(name)) => set.contains(name),
            (Self::Between(before, behind), Self::Between(other_before, other_behind)) => {
                let begins = before.starts_with(&**other_before) || other_before.starts_with(&**before);
                begins && (behind.ends_with(&**other_behind) || other_behind.ends_with(&**behind))
            }
        }
    }
}

impl NameTemplate {
    /// A text with one `{name}` in it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (before, behind) = text.split_once(NAME)?;
        let has_braces = [before, behind].iter().any(|part| part.contains(['{', '}']));
        let is_text = !text.contains(char::is_control);
        (!has_braces && is_text).then(|| Self { before: before.to_owned(), behind: behind.to_owned() })
    }

    /// Whether the new name is the old one.
    pub(super) fn is_identity(&self) -> bool {
        self.before.is_empty() && self.behind.is_empty()
    }

    /// The new name.
    pub(super) fn up(&self, name: &str) -> String {
        format!("{}{name}{}", self.before, self.behind)
    }

    /// The old name; `None` if this is no new name.
    pub(super) fn down<'n>(&self, name: &'n str) -> Option<&'n str> {
        let name = name.strip_prefix(&*self.before)?.strip_suffix(&*self.behind)?;
        (!name.is_empty()).then_some(name)
    }

    /// The new names of a set of old ones.
    pub(super) fn up_all(&self, names: &NameSet) -> NameSet {
        match names {
            NameSet::One(name) => NameSet::One(self.up(name)),
            NameSet::Between(before, behind) => {
                NameSet::Between(format!("{}{before}", self.before), format!("{behind}{}", self.behind))
            }
        }
    }
}

/// What a template has in place of the old name.
const NAME: &str = "{name}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sv9_a_template_maps_names_there_and_back() {
        let template = NameTemplate::parse("xdstp://acme/t/{name}?v=2").unwrap();
        assert_eq!(template.up("a/b"), "xdstp://acme/t/a/b?v=2");
        assert_eq!(template.down("xdstp://acme/t/a/b?v=2"), Some("a/b"));
        for other in ["a/b", "xdstp://acme/t/?v=2", "xdstp://acme/t/a", "xdstp://acme/t?v=2"] {
            assert_eq!(template.down(other), None, "{other}");
        }
        for text in ["", "new", "{name}{name}", "{nam}", "a{name}}", "a\n{name}"] {
            assert_eq!(NameTemplate::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sv9_sets_of_names_that_may_overlap_are_found() {
        let set = |pattern: &str| NameSet::parse(pattern).unwrap();
        let template = NameTemplate::parse("new-{name}").unwrap();
        assert!(set("*").may_overlap(&set("a")) && set("a*").may_overlap(&set("ab*")));
        assert!(!set("a*").may_overlap(&set("b*")) && !set("a").may_overlap(&set("ab")));
        assert!(template.up_all(&set("*")).may_overlap(&set("n*")));
        assert!(!template.up_all(&set("shop-*")).may_overlap(&set("shop-*")));
        for pattern in ["", "a*b", "**", "a\n"] {
            assert_eq!(NameSet::parse(pattern), None, "{pattern:?}");
        }
    }
}
