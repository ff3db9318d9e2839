//! The subscription of one stream to one type (S14-S23, D2, D16-D20).

use std::collections::{BTreeMap, BTreeSet};

use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::XdstpName;

pub use excluded_authorities::ExcludedAuthorities;
pub use host_spaces::HostSpaces;
pub(crate) use host_spaces::UnaskedHosts;
pub use name_set::NameSet;

mod excluded_authorities;
mod host_spaces;
mod name_set;

/// A subscribed name with the parameters that choose its variant (T2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// The name; `*` subscribes to every name (T28).
    pub name: ResourceName,
    /// All parameters for the choice: the server adds none from the node (T46).
    pub parameters: Parameters,
}

impl Locator {
    fn new(name: &ResourceName, parameters: &Parameters) -> Self {
        Self { name: name.clone(), parameters: parameters.clone() }
    }
}

/// A set of locators: the subscribed names, grouped by their parameters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Locators(BTreeMap<Parameters, NameSet>);

impl Locators {
    /// All locators, ordered by parameters, then by name.
    pub fn iter(&self) -> impl Iterator<Item = Locator> {
        self.sets().flat_map(|(parameters, names)| names.iter().map(|name| Locator::new(name, parameters)))
    }

    /// The names for each set of parameters. No set of names is empty.
    pub fn sets(&self) -> impl Iterator<Item = (&Parameters, &NameSet)> {
        self.0.iter()
    }

    /// The names with these parameters.
    pub(crate) fn of(&self, parameters: &Parameters) -> Option<&NameSet> {
        self.0.get(parameters)
    }

    /// The names. A name with several parameter sets comes once for each of them.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.0.values().flatten()
    }

    /// How many locators there are.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(NameSet::len).sum()
    }

    /// Whether there is no locator.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a locator has this name, with any parameters.
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
            Some(known) => *known = std::mem::take(known).union(&names),
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

    /// Moves all locators out of `other`.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The same locators, their parameters [bound](Parameters::bound).
    pub(crate) fn bound(&self) -> Self {
        Self(self.0.iter().map(|(parameters, names)| (parameters.bound(), names.clone())).collect())
    }

    /// Removes the locators that pass, and returns them.
    pub(crate) fn take(&mut self, is_taken: impl Fn(&Locator) -> bool) -> Self {
        let mut taken = Self::default();
        self.retain(|parameters, names| {
            let passing = names.filter(|name| is_taken(&Locator::new(name, parameters)));
            let rest = names.without(&passing);
            taken.insert(parameters, passing);
            rest
        });
        taken
    }

    /// The locators that `other` does not have. O(both), except for sets that share memory.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let without = |(parameters, names): (&Parameters, &NameSet)| {
            let rest = other.0.get(parameters).map_or_else(|| names.clone(), |other| names.without(other));
            (!rest.is_empty()).then(|| (parameters.clone(), rest))
        };
        Self(self.0.iter().filter_map(without).collect())
    }

    /// Replaces each set of names by the names to keep.
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

/// The entries of one list of a request: plain names and locators, which may be mixed (T2).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Requested {
    /// Names whose variants are chosen by the parameters of the stream's node.
    pub names: NameSet,
    /// Names with parameters of their own.
    pub locators: Locators,
}

/// The resources that a subscription selects for one set of parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selection {
    /// Every resource of the type.
    All,
    /// The resources of these names.
    Names(NameSet),
    /// Every resource of the type that no excluded authority owns, and the resources of these
    /// names.
    AllBut(ExcludedAuthorities, NameSet),
    /// The virtual hosts of some route configurations, and the resources of these names.
    Spaces(HostSpaces, NameSet),
}

/// The subscription of one stream to one type.
#[derive(Debug, Default, Clone)]
pub struct Subscription {
    /// Plain names, whose variants `derived` chooses.
    by_name: Group,
    /// The parameters that were derived from the node (T46).
    derived: Parameters,
    /// Names of locators, by the parameters of the locators.
    by_locator: BTreeMap<Parameters, Group>,
    legacy: LegacyWildcard,
    /// Whether a request had a locator: the client then understands constraints (T24).
    knows_locators: bool,
    /// When a proxy has other servers for some authorities, no wildcard covers their names (C16).
    excluded: Option<ExcludedAuthorities>,
    /// VHDS: hosts that the client is sent without a subscription, with the derived parameters (D33).
    unasked: Option<UnaskedHosts>,
}

/// The locators that a request added to a subscription or removed from it, and that the server must
/// answer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SubscriptionChange {
    /// Locators to answer: new ones, and ones that the client already had and subscribed to again.
    pub locators: Locators,
    /// Names that the client unsubscribed from while a wildcard stays. The client cannot know
    /// whether the wildcard covers them, so the server answers for each of them (S22, D18).
    pub unsubscribed: Locators,
    /// Whether the request added a wildcard.
    pub wildcard: bool,
}

/// The subscribed names for one set of parameters.
#[derive(Debug, Default, Clone)]
struct Group {
    names: NameSet,
    /// Whether `*` is subscribed (S18, T28).
    wildcard: bool,
}

/// The wildcard of a client that never named a resource (S19, D16). In delta it stays when the
/// client later subscribes to names (D17).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LegacyWildcard {
    /// No request has decided it yet.
    #[default]
    Undecided,
    On,
    Off,
}

impl Requested {
    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.locators.is_empty()
    }

    /// Replaces each set that has new-style or invalid names. Most sets have none and stay as they
    /// are.
    pub(crate) fn edit_names(&mut self, mut edit: impl FnMut(&NameSet) -> NameSet) {
        let mut edited = |names: &NameSet| if names.is_plain() { names.clone() } else { edit(names) };
        self.names = edited(&self.names);
        self.locators.retain(|_, names| edited(names));
    }

    /// All names of the list, in no particular order.
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
    /// The listed names, sorted; empty for [`Self::All`].
    #[must_use]
    pub fn names(&self) -> &[ResourceName] {
        match self {
            Self::All => &[],
            Self::Names(names) | Self::AllBut(_, names) | Self::Spaces(_, names) => names.as_slice(),
        }
    }

    /// Whether it selects resources that it does not list by name.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        match self {
            Self::All | Self::AllBut(..) | Self::Spaces(..) => true,
            Self::Names(_) => false,
        }
    }

    /// Whether it is a wildcard that does not select every name.
    pub(crate) fn is_limited_wildcard(&self) -> bool {
        self.is_wildcard() && *self != Self::All
    }

    /// Whether it includes a name.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(name),
            Self::AllBut(excluded, names) => names.contains(name) || !excluded.contains(name),
            Self::Spaces(spaces, names) => names.contains(name) || spaces.contains(name),
        }
    }

    /// Whether it lists the name; a wildcard that covers the name does not count.
    pub(crate) fn lists(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => false,
            Self::Names(names) | Self::AllBut(_, names) | Self::Spaces(_, names) => names.contains(name),
        }
    }

    /// The resources that at least one of the selections selects.
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
            Self::All | Self::Names(_) | Self::Spaces(..) => None,
        });
        if let Some(excluded) = excluded {
            return Self::AllBut(excluded, names);
        }
        let spaces = selections.iter().filter_map(|selection| match selection {
            Self::Spaces(spaces, _) => Some(spaces),
            Self::All | Self::AllBut(..) | Self::Names(_) => None,
        });
        match HostSpaces::union(spaces) {
            Some(spaces) => Self::Spaces(spaces, names),
            None => Self::Names(names),
        }
    }

    /// The same selection. Where an older one has the same names, it shares their strings.
    pub(crate) fn rebuilt(self, old: &Self, added: &[ResourceName], removed: &[ResourceName]) -> Self {
        match (self, old) {
            (Self::Names(_), Self::Names(old)) => Self::Names(old.edited(added, removed)),
            (Self::Names(_), Self::All) => Self::Names(added.iter().cloned().collect()),
            (new, _) => new,
        }
    }
}

impl Subscription {
    /// An empty subscription. For plain names, these parameters choose the variant (T46).
    #[must_use]
    pub fn new(derived: Parameters) -> Self {
        Self { derived, ..Self::default() }
    }

    /// The same subscription, whose wildcards do not cover names of these authorities.
    #[must_use]
    pub fn without(self, excluded: Option<ExcludedAuthorities>) -> Self {
        Self { excluded, ..self }
    }

    /// SotW: the list of a request is the whole subscription (S14).
    ///
    /// `legacy` says whether the type has the legacy wildcard (S21).
    pub fn replace(&mut self, requested: Requested, legacy: bool) -> SubscriptionChange {
        let before = self.clone();
        self.legacy = match self.legacy {
            // S19, S20: an empty list is a wildcard, until the client sends a list with names.
            LegacyWildcard::Undecided | LegacyWildcard::On if requested.is_empty() && legacy => {
                LegacyWildcard::On
            }
            LegacyWildcard::Undecided if requested.is_empty() => LegacyWildcard::Undecided,
            _ => LegacyWildcard::Off,
        };
        let (names, locators) = self.split(requested);
        self.by_name = Group::of(names);
        self.by_locator =
            locators.0.into_iter().map(|(parameters, names)| (parameters, Group::of(names))).collect();
        let mut change = SubscriptionChange::default();
        let nothing = NameSet::default();
        for (parameters, group) in self.groups() {
            let old = before.group(parameters, self.is_by_name(group));
            let new = group.names.without(old.map_or(&nothing, |old| &old.names));
            change.locators.insert(parameters, new);
        }
        let wildcards_before: BTreeSet<_> = before.wildcards().collect();
        change.wildcard = self.wildcards().any(|parameters| !wildcards_before.contains(parameters));
        // S22: a wildcard covers a name that the list no longer has, except when the wildcard has
        // other parameters or excludes the authority of the name.
        if (self.knows_locators || self.excluded.is_some()) && self.is_wildcard() {
            for (parameters, old) in before.groups() {
                let now = self.group(parameters, before.is_by_name(old));
                change
                    .unsubscribed
                    .insert(parameters, old.names.without(now.map_or(&nothing, |now| &now.names)));
            }
        }
        change
    }

    /// Delta: a request adds and removes names (D2). An empty list changes nothing.
    ///
    /// The server must also answer a name that is subscribed again (D9), and a name that is
    /// unsubscribed while the wildcard stays (D18). The same name with other parameters is another
    /// locator (T33).
    pub fn edit(&mut self, subscribe: Requested, unsubscribe: Requested, legacy: bool) -> SubscriptionChange {
        let had_wildcard = self.is_wildcard();
        // D16: only a first request without any name subscribes to everything.
        if self.legacy == LegacyWildcard::Undecided {
            let is_legacy = legacy && subscribe.is_empty() && unsubscribe.is_empty();
            self.legacy = if is_legacy { LegacyWildcard::On } else { LegacyWildcard::Off };
        }
        let mut change = SubscriptionChange::default();
        // D3: a name in both lists is removed, then added.
        let (names, locators) = self.split(unsubscribe);
        if names.has_wildcard() {
            self.legacy = LegacyWildcard::Off;
        }
        change.unsubscribed.insert(&self.derived, self.by_name.remove(&names));
        for (parameters, names) in locators.sets() {
            if let Some(group) = self.by_locator.get_mut(parameters) {
                change.unsubscribed.insert(parameters, group.remove(names));
            }
        }
        // D19: without a wildcard the client expects no answer to an unsubscription.
        if !self.is_wildcard() {
            change.unsubscribed.clear();
        }
        let (names, locators) = self.split(subscribe);
        change.wildcard = names.has_wildcard() || locators.0.values().any(NameSet::has_wildcard);
        change.locators.insert(&self.derived, self.by_name.add(names));
        for (parameters, names) in locators.0 {
            let group = self.by_locator.entry(parameters.clone()).or_default();
            // D30, T33b: the server answers a subscribed locator again, even if it was sent before.
            change.locators.insert(&parameters, group.add(names));
        }
        self.by_locator.retain(|_, group| !group.is_empty());
        change.wildcard |= self.is_wildcard() && !had_wildcard;
        change
    }

    /// Ends the legacy wildcard. When a request has invalid names, they are taken out. But the request
    /// was not empty, so it does not subscribe to everything (S19, D16).
    pub(crate) fn end_legacy_wildcard(&mut self) {
        self.legacy = LegacyWildcard::Off;
    }

    /// Replaces equal names by `names`, whose strings other streams share.
    pub(crate) fn share(&mut self, names: &NameSet) {
        if self.by_name.names == *names {
            self.by_name.names = names.clone();
        }
    }

    /// Whether a wildcard is subscribed, with any parameters, or the client is sent hosts without a
    /// subscription.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.wildcards().next().is_some()
    }

    /// Whether the client understands resources with constraints: it sent a locator (T24).
    #[must_use]
    pub fn knows_locators(&self) -> bool {
        self.knows_locators
    }

    /// Whether plain names have these parameters (T46).
    pub(crate) fn derives(&self, parameters: &Parameters) -> bool {
        self.derived == *parameters
    }

    /// Whether the name is subscribed, by itself or by a wildcard, with any parameters.
    #[must_use]
    pub fn covers(&self, name: &ResourceName) -> bool {
        self.covering(name).next().is_some()
    }

    /// The parameters with which a name is subscribed, by itself or by a wildcard.
    pub fn covering(&self, name: &ResourceName) -> impl Iterator<Item = &Parameters> {
        let mut excluded = None;
        let mut is_excluded = move || *excluded.get_or_insert_with(|| self.is_excluded(name));
        let mut covers = move |group: &Group| {
            group.names.contains(name)
                || (self.is_wildcard_group(group) && !is_excluded())
                || (self.is_by_name(group) && self.has_unasked(name))
        };
        self.groups().filter(move |(_, group)| covers(group)).map(|(parameters, _)| parameters)
    }

    /// Keeps the locators that are subscribed, by themselves or by a wildcard.
    pub(crate) fn retain_covered(&self, locators: &mut Locators) {
        locators.retain(|parameters, names| {
            let plain = Some(&self.by_name).filter(|_| *parameters == self.derived);
            let groups: Vec<_> = self.by_locator.get(parameters).into_iter().chain(plain).collect();
            let is_wildcard = groups.iter().any(|group| self.is_wildcard_group(group));
            if (is_wildcard && self.excluded.is_none())
                || groups.iter().any(|group| group.names.is_same(names))
            {
                return names.clone();
            }
            let is_listed = |name: &ResourceName| groups.iter().any(|group| group.names.contains(name));
            let is_unasked = |name: &ResourceName| *parameters == self.derived && self.has_unasked(name);
            names.filter(|name| {
                is_listed(name) || (is_wildcard && !self.is_excluded(name)) || is_unasked(name)
            })
        });
    }

    /// Whether the locator is subscribed by itself; a wildcard does not count.
    pub(crate) fn lists(&self, locator: &Locator) -> bool {
        let of_parameters = self.groups().filter(|(parameters, _)| **parameters == locator.parameters);
        of_parameters.map(|(_, group)| group).any(|group| group.names.contains(&locator.name))
    }

    /// Whether the name is subscribed by itself, with any parameters.
    pub(crate) fn lists_name(&self, name: &ResourceName) -> bool {
        self.groups().any(|(_, group)| group.names.contains(name))
    }

    /// How many names are subscribed, wildcards included. A name with several parameter sets counts
    /// once for each of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups().map(|(_, group)| group.names.len() + usize::from(group.wildcard)).sum()
    }

    /// Whether nothing is subscribed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selections().next().is_none()
    }

    /// The selection for each set of parameters; none when nothing is subscribed (S24).
    pub fn selections(&self) -> impl Iterator<Item = (&Parameters, Selection)> {
        self.groups().filter_map(|(parameters, group)| {
            if self.is_wildcard_group(group) {
                let names = || group.names.clone();
                let of = self.excluded.clone().map(|excluded| Selection::AllBut(excluded, names()));
                Some((parameters, of.unwrap_or(Selection::All)))
            } else if let Some(UnaskedHosts::Of(spaces)) = self.unasked_of(group) {
                Some((parameters, Selection::Spaces(spaces.clone(), group.names.clone())))
            } else if group.names.is_empty() {
                None
            } else {
                Some((parameters, Selection::Names(group.names.clone())))
            }
        })
    }

    /// All subscribed locators. A wildcard, also the legacy one, has the name `*`. So have hosts that the
    /// client did not subscribe to: only a source that was asked for everything knows all of them.
    pub(crate) fn locators(&self) -> Locators {
        let mut locators = Locators::default();
        for (parameters, group) in self.groups() {
            locators.insert(parameters, group.names.clone());
            if self.needs_everything(group) {
                locators.insert(parameters, std::iter::once(WILDCARD.into()).collect());
            }
        }
        locators
    }

    /// The same locators. Names that are all those of a group share its list in memory.
    pub(crate) fn sharing(&self, mut locators: Locators) -> Locators {
        locators.retain(|parameters, names| {
            let same = self.groups().find(|(of, group)| *of == parameters && group.names == *names);
            same.map_or_else(|| names.clone(), |(_, group)| group.names.clone())
        });
        locators
    }

    /// The names of these locators, if they are plain, and everything is subscribed by plain names.
    pub(crate) fn plain_part<'l>(&self, locators: &'l Locators) -> Option<&'l NameSet> {
        let is_plain = self.by_locator.is_empty() && !self.is_wildcard();
        let mut sets = locators.sets().filter(|_| is_plain);
        let (_, names) = sets.next().filter(|(parameters, _)| **parameters == self.derived)?;
        sets.next().is_none().then_some(names)
    }

    /// Whether these locators are all that is subscribed, by plain names. Compares no names: false also
    /// for an equal list at another place in memory.
    pub(crate) fn is_list(&self, locators: &Locators) -> bool {
        self.plain_part(locators).is_some_and(|names| names.is_same(&self.by_name.names))
    }

    /// The locators of these plain names.
    pub(crate) fn plain(&self, names: NameSet) -> Locators {
        let mut locators = Locators::default();
        locators.insert(&self.derived, names);
        locators
    }

    /// The names that are subscribed with the parameters of the node.
    pub(crate) fn plain_names(&self) -> &NameSet {
        &self.by_name.names
    }

    /// Whether a wildcard is subscribed with these parameters.
    pub(crate) fn is_wildcard_under(&self, parameters: &Parameters) -> bool {
        self.wildcards().any(|of_wildcard| of_wildcard == parameters)
    }

    fn groups(&self) -> impl Iterator<Item = (&Parameters, &Group)> {
        std::iter::once((&self.derived, &self.by_name)).chain(&self.by_locator)
    }

    fn group(&self, parameters: &Parameters, by_name: bool) -> Option<&Group> {
        if by_name { Some(&self.by_name) } else { self.by_locator.get(parameters) }
    }

    fn is_by_name(&self, group: &Group) -> bool {
        std::ptr::eq(group, &self.by_name)
    }

    fn is_wildcard_group(&self, group: &Group) -> bool {
        let is_implied =
            || self.legacy == LegacyWildcard::On || matches!(self.unasked, Some(UnaskedHosts::All));
        group.wildcard || (self.is_by_name(group) && is_implied())
    }

    fn is_excluded(&self, name: &ResourceName) -> bool {
        self.excluded.as_ref().is_some_and(|excluded| excluded.contains(name))
    }

    /// The parameters of all wildcards, and of hosts that the client did not subscribe to.
    pub(crate) fn wildcards(&self) -> impl Iterator<Item = &Parameters> {
        self.groups().filter(|(_, group)| self.needs_everything(group)).map(|(parameters, _)| parameters)
    }

    /// D33: sets which hosts the client is sent without a subscription.
    pub(crate) fn send_unasked(&mut self, unasked: Option<UnaskedHosts>) {
        self.unasked = unasked;
    }

    /// Which hosts the client is sent without a subscription; `None` without any.
    pub(crate) fn unasked(&self) -> Option<&UnaskedHosts> {
        self.unasked.as_ref()
    }

    /// Whether the client is sent a host of this name although it may not have subscribed to it.
    fn has_unasked(&self, name: &ResourceName) -> bool {
        self.unasked.as_ref().is_some_and(|unasked| unasked.contains(name))
    }

    fn unasked_of(&self, group: &Group) -> Option<&UnaskedHosts> {
        self.unasked.as_ref().filter(|_| self.is_by_name(group))
    }

    /// Whether the resources of a group are known only when all resources of the type are.
    fn needs_everything(&self, group: &Group) -> bool {
        self.is_wildcard_group(group) || self.unasked_of(group).is_some()
    }

    /// Splits a list into plain names and locators. T2: a locator without parameters is the plain
    /// name, if the node has no parameters either.
    fn split(&mut self, requested: Requested) -> (NameSet, Locators) {
        let Requested { mut names, mut locators } = requested;
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

    /// Adds names, and returns them without the wildcard.
    fn add(&mut self, names: NameSet) -> NameSet {
        let Self { names, wildcard } = Self::of(names);
        self.wildcard |= wildcard;
        self.names = std::mem::take(&mut self.names).union(&names);
        names
    }

    /// Removes names, and returns those that were subscribed.
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

/// The name that subscribes to every resource of the type (S18, D16).
pub(crate) const WILDCARD: &str = "*";

#[cfg(test)]
mod tests;
