//! What one stream asks for of one type (S14-S23, D2, D16-D20).

use std::collections::{BTreeMap, BTreeSet};

use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::XdstpName;

pub use excluded_authorities::ExcludedAuthorities;
pub use name_set::NameSet;

mod excluded_authorities;
mod name_set;

/// A name as it is asked for: with the parameters that choose its variant (T2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// The name; `*` asks for every name (T28).
    pub name: ResourceName,
    /// All that counts for the choice: nothing is added from the node (T46).
    pub parameters: Parameters,
}

/// Locators, each once: the names by the parameters that they are asked for with.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Locators(BTreeMap<Parameters, NameSet>);

impl Locators {
    /// All of them, by parameters, then by name.
    pub fn iter(&self) -> impl Iterator<Item = Locator> {
        self.sets().flat_map(|(parameters, names)| {
            names.iter().map(|name| Locator { name: name.clone(), parameters: parameters.clone() })
        })
    }

    /// The names under each set of parameters, none of them empty.
    pub fn sets(&self) -> impl Iterator<Item = (&Parameters, &NameSet)> {
        self.0.iter()
    }

    /// Their names; one that comes with several parameter sets more than once.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.0.values().flatten()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the name is among them, with whatever parameters.
    pub(crate) fn has_name(&self, name: &ResourceName) -> bool {
        self.0.values().any(|names| names.contains(name))
    }

    pub(crate) fn contains(&self, locator: &Locator) -> bool {
        self.0.get(&locator.parameters).is_some_and(|names| names.contains(&locator.name))
    }

    pub(crate) fn insert(&mut self, parameters: &Parameters, names: NameSet) {
        if names.is_empty() {
            return;
        }
        match self.0.get_mut(parameters) {
            Some(known) => *known = known.union(&names),
            None => _ = self.0.insert(parameters.clone(), names),
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        for (parameters, names) in other.0 {
            self.insert(&parameters, names);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Moves all out of another.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The same with bound parameters.
    pub(crate) fn bound(&self) -> Self {
        Self(self.0.iter().map(|(parameters, names)| (parameters.bound(), names.clone())).collect())
    }

    /// Takes out those that pass.
    pub(crate) fn take(&mut self, is_taken: impl Fn(&Locator) -> bool) -> Vec<Locator> {
        let taken: Vec<_> = self.iter().filter(is_taken).collect();
        if !taken.is_empty() {
            let left = self.iter().filter(|locator| {
                taken
                    .binary_search_by(|other| {
                        (&other.parameters, &other.name).cmp(&(&locator.parameters, &locator.name))
                    })
                    .is_err()
            });
            *self = left.collect();
        }
        taken
    }

    /// Those that are not among others. O(both), but for sets that are the same in memory.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let without = |(parameters, names): (&Parameters, &NameSet)| {
            let left = other.0.get(parameters).map_or_else(|| names.clone(), |other| names.without(other));
            (!left.is_empty()).then(|| (parameters.clone(), left))
        };
        Self(self.0.iter().filter_map(without).collect())
    }

    /// Replaces each set of names by what is kept of it.
    pub(crate) fn retain(&mut self, mut kept: impl FnMut(&Parameters, &NameSet) -> NameSet) {
        self.0.retain(|parameters, names| {
            *names = kept(parameters, names);
            !names.is_empty()
        });
    }
}

impl FromIterator<Locator> for Locators {
    fn from_iter<I: IntoIterator<Item = Locator>>(locators: I) -> Self {
        let mut sets = BTreeMap::<_, Vec<_>>::new();
        for Locator { name, parameters } in locators {
            sets.entry(parameters).or_default().push(name);
        }
        let set = |(parameters, names): (_, Vec<_>)| (parameters, names.into_iter().collect());
        Self(sets.into_iter().map(set).collect())
    }
}

/// What one list of a request asks for: plain names and locators, which may be mixed (T2).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Requested {
    /// Names whose variant the parameters of the stream's node choose.
    pub names: NameSet,
    /// Names that bring parameters of their own.
    pub locators: Locators,
}

/// What a subscription selects under one set of parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selection {
    /// Every resource of the type.
    All,
    /// The resources of these names.
    Names(NameSet),
    /// Every resource of the type but those excluded, and of these the ones of these names.
    AllBut(ExcludedAuthorities, NameSet),
}

/// The subscription of one stream to one type.
#[derive(Debug, Default, Clone)]
pub struct Subscription {
    /// What was asked for by plain name, under the parameters of the node.
    plain: Group,
    derived: Parameters,
    /// What was asked for by locators, by their parameters.
    located: BTreeMap<Parameters, Group>,
    legacy: LegacyWildcard,
    knows_locators: bool,
    /// What none of its wildcards stands for.
    excluded: Option<ExcludedAuthorities>,
}

/// What a request added to a subscription, and therefore has to be answered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Added {
    /// What was asked for; also what was there before and must be answered again.
    pub locators: Locators,
    /// What is no longer asked for by itself while a wildcard stays; the client cannot know whether
    /// that covers it (D18).
    pub left: Locators,
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

/// The wildcard that is meant by asking for nothing in particular (S19, D16). In delta naming
/// something does not end it (D17).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LegacyWildcard {
    /// No request yet that would decide it.
    #[default]
    Undecided,
    On,
    Off,
}

impl Requested {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.locators.is_empty()
    }

    /// Replaces sets of names that have to be looked into by what becomes of them: most have plain
    /// names only.
    pub(crate) fn edit_names(&mut self, mut edit: impl FnMut(&NameSet) -> NameSet) {
        let mut edited = |names: &NameSet| if names.is_plain() { names.clone() } else { edit(names) };
        self.names = edited(&self.names);
        self.locators.retain(|_, names| edited(names));
    }

    /// All names in it, in no particular order.
    pub fn all_names(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.iter().chain(self.locators.names())
    }
}

impl From<Vec<ResourceName>> for Requested {
    fn from(names: Vec<ResourceName>) -> Self {
        names.into_iter().collect::<NameSet>().into()
    }
}

impl From<NameSet> for Requested {
    fn from(names: NameSet) -> Self {
        Self { names, locators: Locators::default() }
    }
}

impl FromIterator<Locator> for Requested {
    fn from_iter<I: IntoIterator<Item = Locator>>(locators: I) -> Self {
        Self { names: NameSet::default(), locators: locators.into_iter().collect() }
    }
}

impl Selection {
    /// The names it lists, sorted; empty for everything.
    #[must_use]
    pub fn names(&self) -> &[ResourceName] {
        match self {
            Self::All => &[],
            Self::Names(names) | Self::AllBut(_, names) => names.as_slice(),
        }
    }

    /// Whether it is one of everything, or nearly.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Self::All | Self::AllBut(..))
    }

    /// Whether it includes a name.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(name),
            Self::AllBut(excluded, names) => names.contains(name) || !excluded.has(name),
        }
    }

    /// Whether it includes a name that is listed by itself.
    pub(crate) fn lists(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => false,
            Self::Names(names) | Self::AllBut(_, names) => names.contains(name),
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
        let names = selections.iter().flat_map(Self::names).cloned().collect();
        let excluded = selections.iter().find_map(|selection| match selection {
            Self::AllBut(excluded, _) => Some(excluded.clone()),
            Self::All | Self::Names(_) => None,
        });
        match excluded {
            Some(excluded) => Self::AllBut(excluded, names),
            None => Self::Names(names),
        }
    }

    /// The same selection, made of the strings of an older one where it has them.
    pub(crate) fn rebuilt(self, old: &Self, added: &[ResourceName], removed: &[ResourceName]) -> Self {
        match (self, old) {
            (Self::Names(_), Self::Names(old)) => Self::Names(old.edited(added, removed)),
            (Self::Names(_), Self::All) => Self::Names(added.iter().cloned().collect()),
            (new, _) => new,
        }
    }
}

impl Subscription {
    /// To nothing yet; plain names go by these parameters (T46).
    #[must_use]
    pub fn new(derived: Parameters) -> Self {
        Self { derived, ..Self::default() }
    }

    /// The same, whose wildcards do not stand for these names.
    #[must_use]
    pub fn without(self, excluded: Option<ExcludedAuthorities>) -> Self {
        Self { excluded, ..self }
    }

    /// SotW: what a request lists is the whole subscription (S14).
    ///
    /// `legacy` says whether the type has the legacy wildcard (S21).
    pub fn replace(&mut self, asked: Requested, legacy: bool) -> Added {
        let before = self.clone();
        self.legacy = match self.legacy {
            // S19, S20: an empty list is a wildcard until the first that is not empty.
            LegacyWildcard::Undecided | LegacyWildcard::On if asked.is_empty() && legacy => {
                LegacyWildcard::On
            }
            LegacyWildcard::Undecided if asked.is_empty() => LegacyWildcard::Undecided,
            _ => LegacyWildcard::Off,
        };
        let (names, locators) = self.sorted_out(asked);
        self.plain = Group::of(names);
        self.located =
            locators.0.into_iter().map(|(parameters, names)| (parameters, Group::of(names))).collect();
        let mut added = Added::default();
        let nothing = NameSet::default();
        for (parameters, group) in self.groups() {
            let old = before.group(parameters, self.is_plain(group));
            let new = group.names.without(old.map_or(&nothing, |old| &old.names));
            added.locators.insert(parameters, new);
        }
        let wildcards_before: BTreeSet<_> = before.wildcards().collect();
        added.wildcard = self.wildcards().any(|parameters| !wildcards_before.contains(parameters));
        if (self.knows_locators || self.excluded.is_some()) && self.is_wildcard() {
            for (parameters, old) in before.groups() {
                let now = self.group(parameters, before.is_plain(old));
                added.left.insert(parameters, old.names.without(now.map_or(&nothing, |now| &now.names)));
            }
        }
        added
    }

    /// Delta: a request adds and removes (D2); lists that are empty change nothing.
    ///
    /// A name subscribed again, and a name unsubscribed while the wildcard stays, must be answered
    /// too (D9, D18). Other parameters are another locator (T33).
    pub fn edit(&mut self, subscribe: Requested, unsubscribe: Requested, legacy: bool) -> Added {
        let had_wildcard = self.is_wildcard();
        // D16: only a first request that names nothing at all means everything.
        if self.legacy == LegacyWildcard::Undecided {
            let is_legacy = legacy && subscribe.is_empty() && unsubscribe.is_empty();
            self.legacy = if is_legacy { LegacyWildcard::On } else { LegacyWildcard::Off };
        }
        let mut added = Added::default();
        // D3: what is in both lists is removed, then added.
        let (names, locators) = self.sorted_out(unsubscribe);
        if names.has_wildcard() {
            self.legacy = LegacyWildcard::Off;
        }
        added.left.insert(&self.derived, self.plain.remove(&names));
        for (parameters, names) in locators.sets() {
            if let Some(group) = self.located.get_mut(parameters) {
                added.left.insert(parameters, group.remove(names));
            }
        }
        // D19: nobody waits to hear of it.
        if !self.is_wildcard() {
            added.left.clear();
        }
        let (names, locators) = self.sorted_out(subscribe);
        added.wildcard = names.has_wildcard() || locators.0.values().any(NameSet::has_wildcard);
        added.locators.insert(&self.derived, self.plain.add(names));
        for (parameters, names) in locators.0 {
            let group = self.located.entry(parameters.clone()).or_default();
            // D30, T33b: answered anew, whatever was sent for it before.
            added.locators.insert(&parameters, group.add(names));
        }
        self.located.retain(|_, group| !group.is_empty());
        added.wildcard |= self.is_wildcard() && !had_wildcard;
        added
    }

    /// Something was asked for that cannot be: so it was not nothing, which would mean everything
    /// (S19, D16).
    pub(crate) fn end_legacy_wildcard(&mut self) {
        self.legacy = LegacyWildcard::Off;
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
        let mut excluded = None;
        let mut is_excluded = move || *excluded.get_or_insert_with(|| self.is_excluded(name));
        let mut covers = move |group: &Group| {
            group.names.contains(name) || (self.is_wildcard_group(group) && !is_excluded())
        };
        self.groups().filter(move |(_, group)| covers(group)).map(|(parameters, _)| parameters)
    }

    /// Keeps of some locators those that are asked for.
    pub(crate) fn retain_covered(&self, locators: &mut Locators) {
        locators.retain(|parameters, names| {
            let plain = Some(&self.plain).filter(|_| *parameters == self.derived);
            let groups: Vec<_> = self.located.get(parameters).into_iter().chain(plain).collect();
            let is_wildcard = groups.iter().any(|group| self.is_wildcard_group(group));
            if (is_wildcard && self.excluded.is_none())
                || groups.iter().any(|group| group.names.is_same(names))
            {
                return names.clone();
            }
            let is_listed = |name: &ResourceName| groups.iter().any(|group| group.names.contains(name));
            names.filter(|name| is_listed(name) || (is_wildcard && !self.is_excluded(name)))
        });
    }

    /// Whether the name is asked for with these parameters.
    #[must_use]
    pub fn covers_locator(&self, locator: &Locator) -> bool {
        let covers = |group: &Group| {
            group.names.contains(&locator.name)
                || (self.is_wildcard_group(group) && !self.is_excluded(&locator.name))
        };
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

    /// How many names are asked for, wildcards included; one that is asked for with several
    /// parameter sets counts for each.
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
                let names = || group.names.clone();
                let of = self.excluded.clone().map(|excluded| Selection::AllBut(excluded, names()));
                Some((parameters, of.unwrap_or(Selection::All)))
            } else if group.names.is_empty() {
                None
            } else {
                Some((parameters, Selection::Names(group.names.clone())))
            }
        })
    }

    /// Everything that is asked for; wildcards, also those that are meant by naming nothing, by the
    /// name `*`.
    pub(crate) fn locators(&self) -> Locators {
        let mut locators = Locators::default();
        for (parameters, group) in self.groups() {
            locators.insert(parameters, group.names.clone());
            if self.is_wildcard_group(group) {
                locators.insert(parameters, std::iter::once(WILDCARD.into()).collect());
            }
        }
        locators
    }

    /// Whether a wildcard is asked for with these parameters.
    pub(crate) fn is_wildcard_under(&self, parameters: &Parameters) -> bool {
        self.wildcards().any(|of_wildcard| of_wildcard == parameters)
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
        group.wildcard || (self.legacy == LegacyWildcard::On && self.is_plain(group))
    }

    fn is_excluded(&self, name: &ResourceName) -> bool {
        self.excluded.as_ref().is_some_and(|excluded| excluded.has(name))
    }

    /// The parameters of all wildcards.
    pub(crate) fn wildcards(&self) -> impl Iterator<Item = &Parameters> {
        self.groups().filter(|(_, group)| self.is_wildcard_group(group)).map(|(parameters, _)| parameters)
    }

    /// The plain names and the others by their parameters. T2: without parameters a locator is the
    /// plain name, where that has none either.
    fn sorted_out(&mut self, asked: Requested) -> (NameSet, Locators) {
        let Requested { mut names, mut locators } = asked;
        self.knows_locators |= !locators.is_empty();
        if self.derived.is_empty()
            && let Some(plain) = locators.0.remove(&self.derived)
        {
            names = names.union(&plain);
        }
        (names, locators)
    }
}

impl Group {
    fn of(names: NameSet) -> Self {
        let wildcard = names.has_wildcard();
        let names = if wildcard { names.filter(|name| name.as_str() != WILDCARD) } else { names };
        Self { names, wildcard }
    }

    /// Adds names, and gives them back without the wildcard.
    fn add(&mut self, names: NameSet) -> NameSet {
        let Self { names, wildcard } = Self::of(names);
        self.wildcard |= wildcard;
        self.names = self.names.union(&names);
        names
    }

    /// Removes names, and gives back those that were there.
    fn remove(&mut self, names: &NameSet) -> NameSet {
        self.wildcard &= !names.has_wildcard();
        let removed = names.filter(|name| self.names.contains(name));
        if !removed.is_empty() {
            self.names = self.names.without(&removed);
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.wildcard
    }
}

/// Whether a resource can have the name (W2).
pub(crate) fn can_be(name: &str) -> bool {
    !name.is_empty() && !name.bytes().any(|byte| byte < b' ')
}

/// Whether a name stands for many resources: the wildcard, or a glob (X12).
pub(crate) fn is_set(name: &str) -> bool {
    name == WILDCARD || XdstpName::of(name).ok().flatten().is_some_and(|name| name.is_glob())
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
pub(crate) const WILDCARD: &str = "*";

#[cfg(test)]
mod tests;
