//! What one stream asks for of one type (S14-S23, D2, D16-D20).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::name::ResourceName;
use crate::parameters::Parameters;

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

/// A name as it is asked for: with the parameters that choose its variant (T2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// The name; `*` asks for every name (T28).
    pub name: ResourceName,
    /// All that counts for the choice: nothing is added from the node (T46).
    pub parameters: Parameters,
}

/// What one list of a request asks for: plain names and locators, which may be mixed (T2).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Names whose variant the parameters of the stream's node choose.
    pub names: Vec<ResourceName>,
    /// Names that bring parameters of their own.
    pub locators: Vec<Locator>,
}

/// What a subscription selects under one set of parameters.
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
    /// What was asked for by plain name, under the parameters of the node.
    plain: Group,
    derived: Parameters,
    /// What was asked for by locators, by their parameters.
    located: BTreeMap<Parameters, Group>,
    legacy: Legacy,
    knows_locators: bool,
}

/// What a request added to a subscription, and therefore has to be answered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Added {
    /// What was asked for, sorted; also what was there before and must be answered again.
    pub locators: Vec<Locator>,
    /// What is no longer asked for by itself while a wildcard stays, sorted; the client cannot know whether that covers
    /// it (D18).
    pub left: Vec<Locator>,
    /// A wildcard was not there before.
    pub wildcard: bool,
}

/// What is asked for under one set of parameters.
#[derive(Debug, Default, Clone)]
struct Group {
    names: NameSet,
    /// Asked for by `*` (S18, T28).
    wildcard: bool,
}

/// The wildcard that is meant by asking for nothing in particular (S19, D16). In delta naming something does not end it
/// (D17).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Legacy {
    /// No request yet that would decide it.
    #[default]
    Unasked,
    On,
    Off,
}

impl Asked {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.locators.is_empty()
    }

    /// All names in it, in no particular order.
    pub fn all_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.iter().chain(self.locators.iter().map(|locator| &locator.name))
    }
}

impl From<Vec<ResourceName>> for Asked {
    fn from(names: Vec<ResourceName>) -> Self {
        Self { names, locators: Vec::new() }
    }
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

    /// Whether it includes a name.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(name),
        }
    }

    /// What any of several selects.
    pub(crate) fn union(mut selections: Vec<Self>) -> Self {
        if selections.len() == 1 {
            return selections.remove(0);
        }
        if selections.contains(&Self::All) {
            return Self::All;
        }
        Self::Names(selections.iter().flat_map(Self::names).cloned().collect())
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
    /// To nothing yet; plain names go by these parameters (T46).
    #[must_use]
    pub fn new(derived: Parameters) -> Self {
        Self { derived, ..Self::default() }
    }

    /// SotW: what a request lists is the whole subscription (S14).
    ///
    /// `legacy` says whether the type has the legacy wildcard (S21).
    pub fn replace(&mut self, asked: Asked, legacy: bool) -> Added {
        let before = self.clone();
        self.legacy = match self.legacy {
            // S19, S20: an empty list is a wildcard until the first that is not empty.
            Legacy::Unasked | Legacy::On if asked.is_empty() && legacy => Legacy::On,
            Legacy::Unasked if asked.is_empty() => Legacy::Unasked,
            _ => Legacy::Off,
        };
        let (names, locators) = self.sorted_out(asked);
        self.plain = Group::of(names);
        self.located =
            locators.into_iter().map(|(parameters, names)| (parameters, Group::of(names))).collect();
        let mut added = Added::default();
        for (parameters, group) in self.groups() {
            let old = before.group(parameters, self.is_plain(group));
            let new = difference(&group.names.0, old.map_or(&[], |old| &old.names.0));
            added.locators.extend(located(new, parameters));
        }
        let wildcards_before: BTreeSet<_> = before.wildcards().collect();
        added.wildcard = self.wildcards().any(|parameters| !wildcards_before.contains(parameters));
        if self.knows_locators && self.is_wildcard() {
            for (parameters, old) in before.groups() {
                let now = self.group(parameters, before.is_plain(old));
                let left = difference(&old.names.0, now.map_or(&[], |now| &now.names.0));
                added.left.extend(located(left, parameters));
            }
        }
        added.sorted()
    }

    /// Delta: a request adds and removes (D2); lists that are empty change nothing.
    ///
    /// A name subscribed again, and a name unsubscribed while the wildcard stays, must be answered too (D9, D18). Other
    /// parameters are another locator (T33).
    pub fn edit(&mut self, subscribe: Asked, unsubscribe: Asked, legacy: bool) -> Added {
        let had_wildcard = self.is_wildcard();
        // D16: only a first request that names nothing at all means everything.
        if self.legacy == Legacy::Unasked {
            let is_legacy = legacy && subscribe.is_empty() && unsubscribe.is_empty();
            self.legacy = if is_legacy { Legacy::On } else { Legacy::Off };
        }
        let mut added = Added::default();
        // D3: what is in both lists is removed, then added.
        let (names, locators) = self.sorted_out(unsubscribe);
        if names.iter().any(is_wildcard) {
            self.legacy = Legacy::Off;
        }
        added.left.extend(located(self.plain.remove(names), &self.derived));
        for (parameters, names) in locators {
            if let Some(group) = self.located.get_mut(&parameters) {
                added.left.extend(located(group.remove(names), &parameters));
            }
        }
        // D19: nobody waits to hear of it.
        if !self.is_wildcard() {
            added.left.clear();
        }
        let (names, locators) = self.sorted_out(subscribe);
        added.wildcard = names.iter().chain(locators.values().flatten()).any(is_wildcard);
        added.locators.extend(located(self.plain.add(names), &self.derived));
        for (parameters, names) in locators {
            let group = self.located.entry(parameters.clone()).or_default();
            // D30, T33b: answered anew, whatever was sent for it before.
            added.locators.extend(located(group.add(names), &parameters));
        }
        self.located.retain(|_, group| !group.is_empty());
        added.wildcard |= self.is_wildcard() && !had_wildcard;
        added.sorted()
    }

    /// Something was asked for that cannot be: so it was not nothing, which would mean everything (S19, D16).
    pub(crate) fn end_legacy_wildcard(&mut self) {
        self.legacy = Legacy::Off;
    }

    /// Takes the strings that other streams share, for the same names.
    pub(crate) fn share(&mut self, names: &NameSet) {
        if self.plain.names == *names {
            self.plain.names = names.clone();
        }
    }

    /// Whether everything is asked for, under whatever parameters.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.wildcards().next().is_some()
    }

    /// Whether the client understands resources with constraints: it sent a locator (T24).
    #[must_use]
    pub fn knows_locators(&self) -> bool {
        self.knows_locators
    }

    /// Whether a resource of this name is asked for, under whatever parameters.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        self.covering(name).next().is_some()
    }

    /// The parameters with which a name is asked for.
    pub fn covering(&self, name: &ResourceName) -> impl Iterator<Item = &Parameters> {
        let covers = move |group: &Group| self.is_wildcard_group(group) || group.names.contains(name);
        self.groups().filter(move |(_, group)| covers(group)).map(|(parameters, _)| parameters)
    }

    /// Whether the name is asked for with these parameters.
    #[must_use]
    pub fn covers_locator(&self, locator: &Locator) -> bool {
        let covers = |group: &Group| self.is_wildcard_group(group) || group.names.contains(&locator.name);
        let is_plain = locator.parameters == self.derived;
        (is_plain && covers(&self.plain)) || self.located.get(&locator.parameters).is_some_and(covers)
    }

    /// Whether the name is asked for with these parameters and by itself, not by a wildcard.
    pub(crate) fn lists(&self, locator: &Locator) -> bool {
        let of_parameters = self.groups().filter(|(parameters, _)| **parameters == locator.parameters);
        of_parameters.map(|(_, group)| group).any(|group| group.names.contains(&locator.name))
    }

    /// Whether the name is asked for by itself, with whatever parameters.
    pub(crate) fn lists_name(&self, name: &ResourceName) -> bool {
        self.groups().any(|(_, group)| group.names.contains(name))
    }

    /// How many names are asked for, wildcards included; one that is asked for with several parameter sets counts for each.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups().map(|(_, group)| group.names.len() + usize::from(group.wildcard)).sum()
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selections().next().is_none()
    }

    /// What it selects, under each set of parameters; nothing when nothing is asked for (S24).
    pub fn selections(&self) -> impl Iterator<Item = (&Parameters, Selection)> {
        self.groups().filter_map(|(parameters, group)| {
            if self.is_wildcard_group(group) {
                Some((parameters, Selection::All))
            } else if group.names.is_empty() {
                None
            } else {
                Some((parameters, Selection::Names(group.names.clone())))
            }
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&Parameters, &Group)> {
        std::iter::once((&self.derived, &self.plain)).chain(&self.located)
    }

    fn group(&self, parameters: &Parameters, plain: bool) -> Option<&Group> {
        if plain { Some(&self.plain) } else { self.located.get(parameters) }
    }

    fn is_plain(&self, group: &Group) -> bool {
        std::ptr::eq(group, &self.plain)
    }

    fn is_wildcard_group(&self, group: &Group) -> bool {
        group.wildcard || (self.legacy == Legacy::On && self.is_plain(group))
    }

    /// The parameters of all wildcards.
    fn wildcards(&self) -> impl Iterator<Item = &Parameters> {
        self.groups().filter(|(_, group)| self.is_wildcard_group(group)).map(|(parameters, _)| parameters)
    }

    /// The plain names and the others by their parameters. T2: without parameters a locator is the plain name, where
    /// that has none either.
    fn sorted_out(&mut self, asked: Asked) -> (Vec<ResourceName>, BTreeMap<Parameters, Vec<ResourceName>>) {
        let Asked { mut names, locators } = asked;
        self.knows_locators |= !locators.is_empty();
        let mut located = BTreeMap::<_, Vec<_>>::new();
        for Locator { name, parameters } in locators {
            if parameters.is_empty() && self.derived.is_empty() {
                names.push(name);
            } else {
                located.entry(parameters).or_default().push(name);
            }
        }
        (names, located)
    }
}

impl Group {
    fn of(names: Vec<ResourceName>) -> Self {
        let wildcard = names.iter().any(is_wildcard);
        Self { names: names.into_iter().filter(|name| !is_wildcard(name)).collect(), wildcard }
    }

    /// Adds names, and gives them back without the wildcard.
    fn add(&mut self, names: Vec<ResourceName>) -> Vec<ResourceName> {
        let Self { names, wildcard } = Self::of(names);
        self.wildcard |= wildcard;
        if !names.is_empty() {
            self.names = self.names.edited(&names.0, &[]);
        }
        names.0.to_vec()
    }

    /// Removes names, and gives back those that were there.
    fn remove(&mut self, names: Vec<ResourceName>) -> Vec<ResourceName> {
        let Self { names, wildcard } = Self::of(names);
        self.wildcard &= !wildcard;
        let removed: Vec<_> = names.iter().filter(|name| self.names.contains(name)).cloned().collect();
        if !removed.is_empty() {
            self.names = self.names.edited(&[], &removed);
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.wildcard
    }
}

impl Added {
    fn sorted(mut self) -> Self {
        for list in [&mut self.locators, &mut self.left] {
            list.sort_unstable();
            list.dedup();
        }
        self
    }
}

fn located(names: Vec<ResourceName>, parameters: &Parameters) -> impl Iterator<Item = Locator> {
    names.into_iter().map(|name| Locator { name, parameters: parameters.clone() })
}

/// Whether a name is among locators.
pub(crate) fn has_name(locators: &BTreeSet<Locator>, name: &ResourceName) -> bool {
    let first = Locator { name: name.clone(), parameters: Parameters::new() };
    locators.range(first..).next().is_some_and(|locator| locator.name == *name)
}

fn is_wildcard(name: &ResourceName) -> bool {
    name.as_str() == WILDCARD
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
