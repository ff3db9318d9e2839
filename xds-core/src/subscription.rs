//! What one stream asks for of one type (S14-S23, D2, D16-D20).

use std::sync::Arc;

use crate::name::ResourceName;

/// A set of names, sorted, shared between the streams that ask for the same.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameSet(Arc<Vec<ResourceName>>);

impl NameSet {
    /// Whether the set holds the name.
    #[must_use]
    pub fn contains(&self, name: &ResourceName) -> bool {
        self.0.binary_search(name).is_ok()
    }

    /// The names in order.
    pub fn iter(&self) -> std::slice::Iter<'_, ResourceName> {
        self.0.iter()
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn edited(&self, add: &[ResourceName], remove: &[ResourceName]) -> Self {
        let mut names = Vec::with_capacity(self.len() + add.len());
        names.extend(self.iter().filter(|name| remove.binary_search(name).is_err()).cloned());
        names.extend_from_slice(add);
        names.into_iter().collect()
    }
}

impl FromIterator<ResourceName> for NameSet {
    fn from_iter<I: IntoIterator<Item = ResourceName>>(names: I) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        // S23: a name counts once.
        names.sort_unstable();
        names.dedup();
        Self(Arc::new(names))
    }
}

/// What a subscription selects; streams with equal selections of a type form a selection class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selection {
    /// Every resource of the type.
    All,
    /// The resources of these names.
    Names(NameSet),
}

/// The subscription of one stream to one type.
#[derive(Debug, Default, Clone)]
pub struct Subscription {
    names: NameSet,
    wildcard: Wildcard,
}

/// What a request added to a subscription, and therefore has to be answered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Added {
    /// Names asked for, sorted; also names that were there before and must be answered again.
    pub names: Vec<ResourceName>,
    /// The wildcard was not there before.
    pub wildcard: bool,
}

/// Whether a subscription includes everything.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Wildcard {
    /// No request yet.
    #[default]
    Unasked,
    /// Meant by asking for nothing in particular (S19, D16).
    Legacy,
    /// Asked for by `*` (S18).
    Explicit,
    /// Names only, or nothing.
    Off,
}

impl Selection {
    /// The names it lists, sorted; empty for everything.
    #[must_use]
    pub fn names(&self) -> &[ResourceName] {
        match self {
            Self::All => &[],
            Self::Names(names) => &names.0,
        }
    }

    /// The same selection, made of the strings of an older one where it has them.
    pub(crate) fn rebuilt(self, old: &Self, added: &[ResourceName], removed: &[ResourceName]) -> Self {
        match (self, old) {
            (Self::Names(_), Self::Names(old)) => Self::Names(old.edited(added, removed)),
            (Self::Names(_), Self::All) => Self::Names(added.iter().cloned().collect()),
            (Self::All, _) => Self::All,
        }
    }
}

impl Subscription {
    /// SotW: the names of a request are the whole subscription (S14).
    ///
    /// `legacy` says whether the type has the legacy wildcard (S21).
    pub fn replace(&mut self, names: Vec<ResourceName>, legacy: bool) -> Added {
        let had_wildcard = self.is_wildcard();
        self.wildcard = match self.wildcard {
            // S19, S20: an empty list is a wildcard until the first that is not empty.
            Wildcard::Unasked | Wildcard::Legacy if names.is_empty() && legacy => Wildcard::Legacy,
            Wildcard::Unasked if names.is_empty() => Wildcard::Unasked,
            _ if names.iter().any(|name| name.as_str() == WILDCARD) => Wildcard::Explicit,
            _ => Wildcard::Off,
        };
        let names: NameSet = names.into_iter().filter(|name| name.as_str() != WILDCARD).collect();
        let added = difference(&names.0, &self.names.0);
        self.names = names;
        Added { names: added, wildcard: self.is_wildcard() && !had_wildcard }
    }

    /// Delta: a request adds and removes (D2); lists that are empty change nothing.
    ///
    /// A name subscribed again, and a name unsubscribed while the wildcard stays, must be answered too (D9, D18).
    pub fn edit(
        &mut self,
        subscribe: Vec<ResourceName>,
        unsubscribe: Vec<ResourceName>,
        legacy: bool,
    ) -> Added {
        let had_wildcard = self.is_wildcard();
        let is_first = self.wildcard == Wildcard::Unasked;
        // D16: only a first request that names nothing at all means everything.
        if is_first {
            let is_legacy = legacy && subscribe.is_empty() && unsubscribe.is_empty();
            self.wildcard = if is_legacy { Wildcard::Legacy } else { Wildcard::Off };
        }
        // D3: a name in both lists is removed, then added.
        let unsubscribed: NameSet = unsubscribe.into_iter().collect();
        if unsubscribed.contains(&ResourceName::new(WILDCARD)) {
            self.wildcard = Wildcard::Off;
        }
        let mut answer: Vec<_> = if self.is_wildcard() {
            self.names.iter().filter(|n| unsubscribed.contains(n)).cloned().collect()
        } else {
            Vec::new()
        };
        let names_star = subscribe.iter().any(|name| name.as_str() == WILDCARD);
        if names_star {
            self.wildcard = Wildcard::Explicit;
        }
        let subscribe: Vec<_> = subscribe.into_iter().filter(|name| name.as_str() != WILDCARD).collect();
        answer.extend(subscribe.iter().cloned());
        answer.sort_unstable();
        answer.dedup();
        if !subscribe.is_empty() || !unsubscribed.is_empty() {
            self.names = self.names.edited(&subscribe, &unsubscribed.0);
        }
        Added { names: answer, wildcard: self.is_wildcard() && (names_star || !had_wildcard) }
    }

    /// Takes the strings that other streams share, for the same names.
    pub(crate) fn share(&mut self, names: &NameSet) {
        debug_assert_eq!(self.names, *names);
        self.names = names.clone();
    }

    /// Whether everything is asked for.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        matches!(self.wildcard, Wildcard::Legacy | Wildcard::Explicit)
    }

    /// Whether a resource of this name is asked for.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        self.is_wildcard() || self.names.contains(name)
    }

    /// The names asked for, without the wildcard.
    #[must_use]
    pub fn names(&self) -> &NameSet {
        &self.names
    }

    /// What it selects; `None` when nothing is asked for (S24).
    #[must_use]
    pub fn selection(&self) -> Option<Selection> {
        if self.is_wildcard() {
            Some(Selection::All)
        } else if self.names.is_empty() {
            None
        } else {
            Some(Selection::Names(self.names.clone()))
        }
    }
}

/// The names of one sorted list that are not in another, in order; O(both).
pub(crate) fn difference(names: &[ResourceName], without: &[ResourceName]) -> Vec<ResourceName> {
    let mut rest = without.iter().peekable();
    let is_new = |name: &&ResourceName| {
        while rest.next_if(|theirs| theirs < name).is_some() {}
        rest.peek() != Some(name)
    };
    names.iter().filter(is_new).cloned().collect()
}

/// The name that asks for everything (S18, D16).
const WILDCARD: &str = "*";

#[cfg(test)]
mod tests;
