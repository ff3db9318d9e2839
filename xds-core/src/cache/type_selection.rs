//! The selection of a stream of one type, and the variants that it selects.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::snapshot::{Keys, TypeSnapshot};
use super::views::ViewId;
use crate::access::NamePatterns;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::{Selection, Subscription};
use crate::variants::{KeyedBy, Variant};

/// The selection of a stream of one type. Streams with equal selections form a class, after the
/// parameters that no constraints use are left out.
#[derive(Debug, Default, Clone)]
pub(crate) struct TypeSelection {
    pub(crate) keyed_by: KeyedBy,
    /// Whether the client is sent TTLs (S38).
    pub(crate) ttl: bool,
    /// The view that the stream sees. Streams of one class see the same.
    pub(super) view: ViewId,
    /// The names that the stream may read; `None` if it may read all names.
    scope: Option<NamePatterns>,
    /// It has a wildcard that does not select every name (C16, D33).
    has_exclusions: bool,
    /// Sorted; each set of parameters once. A subscription by name has a single part.
    parts: Vec<SelectionPart>,
    /// Used for many parts: a proxy may subscribe to each name with parameters of its own.
    index: OnceLock<PartIndex>,
}

/// Finds the parts that select a name, as positions in the list of parts.
#[derive(Debug, Default, Clone)]
struct PartIndex {
    wildcards: Vec<usize>,
    by_name: BTreeMap<ResourceName, Vec<usize>>,
}

/// The names that are selected with one set of parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SelectionPart {
    pub(crate) parameters: Parameters,
    pub(crate) selection: Selection,
}

/// The variants of a name that a selection has.
#[derive(Debug)]
enum Chosen<'r> {
    One(Option<&'r Arc<Variant>>),
    Many(Vec<&'r Arc<Variant>>),
}

impl<'r> Chosen<'r> {
    fn as_slice(&self) -> &[&'r Arc<Variant>] {
        match self {
            Self::One(variant) => variant.as_slice(),
            Self::Many(variants) => variants,
        }
    }

    /// The sum of the identities of the variants (T38).
    fn sum(&self, keyed_by: KeyedBy) -> u128 {
        let variants = self.as_slice().iter();
        variants.fold(0, |sum: u128, variant| sum.wrapping_add(variant.identity(keyed_by)))
    }
}

/// The variants of a name that a selection had before a commit, and those that it has after it.
#[derive(Debug)]
pub(super) struct Shift<'r> {
    keyed_by: KeyedBy,
    before: Chosen<'r>,
    after: Chosen<'r>,
}

impl Shift<'_> {
    /// The change of the sum of identities (T38).
    pub(super) fn sum(&self) -> u128 {
        self.after.sum(self.keyed_by).wrapping_sub(self.before.sum(self.keyed_by))
    }
}

impl PartialEq for TypeSelection {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for TypeSelection {}

impl PartialOrd for TypeSelection {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TypeSelection {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.view, self.keyed_by, self.ttl, &self.scope, &self.parts).cmp(&(
            other.view,
            other.keyed_by,
            other.ttl,
            &other.scope,
            &other.parts,
        ))
    }
}

impl PartIndex {
    fn of(parts: &[SelectionPart]) -> Self {
        let mut index = Self::default();
        for (at, part) in parts.iter().enumerate() {
            if part.selection.is_wildcard() {
                index.wildcards.push(at);
            }
            for name in part.selection.names() {
                index.by_name.entry(name.clone()).or_default().push(at);
            }
        }
        index
    }

    fn covering(&self, name: &ResourceName) -> impl Iterator<Item = usize> {
        self.wildcards.iter().chain(self.by_name.get(name).into_iter().flatten()).copied()
    }
}

impl TypeSelection {
    /// The selection of a subscription; `None` when the subscription is empty (S24).
    ///
    /// `scope` has the names that the stream may read.
    pub(crate) fn of(subscription: &Subscription, ttl: bool, scope: Option<NamePatterns>) -> Option<Self> {
        let keyed_by = if subscription.knows_locators() { KeyedBy::Locator } else { KeyedBy::Name };
        let parts = subscription.selections();
        let parts =
            parts.map(|(parameters, selection)| SelectionPart { parameters: parameters.clone(), selection });
        let selection = Self::new(keyed_by, ttl, scope, parts.collect());
        (!selection.parts.is_empty()).then_some(selection)
    }

    fn new(keyed_by: KeyedBy, ttl: bool, scope: Option<NamePatterns>, parts: Vec<SelectionPart>) -> Self {
        let mut merged = BTreeMap::<Parameters, Vec<Selection>>::new();
        for SelectionPart { parameters, selection } in parts {
            merged.entry(parameters).or_default().push(selection);
        }
        let merge =
            |(parameters, selections)| SelectionPart { parameters, selection: Selection::union(selections) };
        let parts: Vec<_> = merged.into_iter().map(merge).collect();
        let has_exclusions = parts.iter().any(|part| part.selection.is_limited_wildcard());
        let view = ViewId::STABLE;
        Self { keyed_by, ttl, view, scope, has_exclusions, parts, index: OnceLock::new() }
    }

    /// This selection in a view, without the parameters that no constraints use.
    pub(super) fn project(&self, keys: &Keys, view: ViewId) -> Self {
        let project = |part: &SelectionPart| SelectionPart {
            parameters: keys.project(&part.parameters),
            selection: part.selection.clone(),
        };
        let parts = self.parts.iter().map(project).collect();
        Self { view, ..Self::new(self.keyed_by, self.ttl, self.scope.clone(), parts) }
    }

    /// The selected names, if there is a single set of parameters.
    pub(crate) fn single(&self) -> Option<&Selection> {
        self.only_part().map(|part| &part.selection)
    }

    /// This selection with other names in its parts.
    pub(super) fn map(self, mut selection: impl FnMut(Selection) -> Selection) -> Self {
        let map = |part: SelectionPart| SelectionPart { selection: selection(part.selection), ..part };
        let parts = self.parts.into_iter().map(map).collect();
        Self { parts, index: OnceLock::new(), ..self }
    }

    /// Whether it has a wildcard, with whatever parameters.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.parts.iter().any(|part| part.selection.is_wildcard())
    }

    /// Whether it has a wildcard for every name, and the stream may read every name.
    pub(super) fn is_unlimited(&self) -> bool {
        self.parts.iter().any(|part| part.selection == Selection::All) && self.scope.is_none()
    }

    /// Whether the stream may read a resource, and no wildcard excludes it.
    pub(super) fn allows(&self, name: &ResourceName) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.matches(name))
            && (!self.has_exclusions || self.covering(name).next().is_some())
    }

    /// The sets of parameters of all parts, each once, in order.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameters> {
        self.parts.iter().map(|part| &part.parameters)
    }

    /// The number of listed names.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.selection.names().len()).sum()
    }

    /// The names listed, each once, in order.
    pub(super) fn names(&self) -> Cow<'_, [ResourceName]> {
        match self.parts.as_slice() {
            [part] => part.selection.names().into(),
            parts => {
                let names: BTreeSet<_> = parts.iter().flat_map(|part| part.selection.names()).collect();
                names.into_iter().cloned().collect()
            }
        }
    }

    /// The parts that select a resource by its own name or by another one; a part may come more
    /// than once.
    pub(super) fn covering_any<'w>(
        &'w self,
        name: &'w ResourceName,
        resources: &'w TypeSnapshot,
    ) -> impl Iterator<Item = &'w SelectionPart> {
        let others = resources.other_names().of(name).iter().flat_map(|other| self.covering(other));
        self.covering(name).chain(others)
    }

    /// The listed names and the names of the resources that they select, each once, in order.
    pub(super) fn listed(&self, resources: &TypeSnapshot) -> Cow<'_, [ResourceName]> {
        let names = self.names();
        if resources.other_names().are_none() {
            return names;
        }
        let members = names.iter().flat_map(|listed| resources.selected_by(listed));
        let listed: BTreeSet<_> = names.iter().chain(members).collect();
        listed.into_iter().cloned().collect()
    }

    /// The parts that select a name.
    pub(super) fn covering(&self, name: &ResourceName) -> impl Iterator<Item = &SelectionPart> {
        let (few, many) = if self.parts.len() <= FEW_PARTS {
            (self.parts.as_slice(), None)
        } else {
            (&[][..], Some(self.index.get_or_init(|| PartIndex::of(&self.parts))))
        };
        let places = many.into_iter().flat_map(move |index| index.covering(name));
        let many = places.map(|at| &self.parts[at]);
        few.iter().chain(many).filter(move |part| part.selection.covers(name))
    }

    /// The selected variants of a name, each once (T29).
    pub(super) fn chosen<'r>(
        &self,
        name: &ResourceName,
        resources: &'r TypeSnapshot,
    ) -> Vec<&'r Arc<Variant>> {
        let Some(variants) = resources.get(name).filter(|_| self.allows(name)) else { return Vec::new() };
        let resolve = |part: &SelectionPart| variants.resolve(&part.parameters);
        let mut chosen: Vec<_> = self.covering(name).filter_map(resolve).collect();
        for other in resources.other_names().of(name) {
            // D24: only those variants that have the alias.
            let found = self.covering(other).filter_map(resolve);
            chosen.extend(found.filter(|variant| variant.is_named(other)));
        }
        if chosen.len() > 1 {
            chosen.sort_unstable_by_key(|variant| Arc::as_ptr(variant));
            chosen.dedup_by(|one, other| Arc::ptr_eq(one, other));
            chosen.sort_unstable_by(|one, other| one.constraints().cmp(other.constraints()));
        }
        chosen
    }

    /// As [`chosen`](Self::chosen), without a list in the common case: a single part, and a type
    /// without other names.
    fn choose<'r>(&self, name: &ResourceName, is_plain: bool, resources: &'r TypeSnapshot) -> Chosen<'r> {
        match self.only_part() {
            Some(part) if is_plain => {
                debug_assert!(self.has_exclusions || part.selection.covers(name), "{name} is selected");
                let variants = resources.get(name).filter(|_| self.allows(name));
                Chosen::One(variants.and_then(|variants| variants.resolve(&part.parameters)))
            }
            _ => Chosen::Many(self.chosen(name, resources)),
        }
    }

    /// The part, if there is a single one.
    pub(super) fn only_part(&self) -> Option<&SelectionPart> {
        match self.parts.as_slice() {
            [part] => Some(part),
            _ => None,
        }
    }

    /// The part, if there is a single one, and it is a list of names that each select at most the
    /// resource of this name. Clients mostly subscribe like this.
    pub(super) fn plain_list(&self, resources: &TypeSnapshot) -> Option<&SelectionPart> {
        let is_plain = self.keyed_by == KeyedBy::Name && resources.other_names().are_none();
        self.only_part().filter(|part| is_plain && matches!(part.selection, Selection::Names(_)))
    }

    /// The effect of a change of one name on this selection; `None` without an effect.
    pub(super) fn shift<'r>(
        &self,
        name: &ResourceName,
        before: &'r TypeSnapshot,
        after: &'r TypeSnapshot,
    ) -> Option<Shift<'r>> {
        let is_plain = before.other_names().are_none() && after.other_names().are_none();
        let (before, after) = (self.choose(name, is_plain, before), self.choose(name, is_plain, after));
        // V29: for a subscription by name, another variant with the same payload is no change.
        let is_same = |one: &Arc<Variant>, other: &Arc<Variant>| {
            one.version() == other.version()
                && (self.keyed_by == KeyedBy::Name || one.constraints() == other.constraints())
        };
        let (one, other) = (before.as_slice(), after.as_slice());
        let is_unchanged =
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other));
        (!is_unchanged).then_some(Shift { keyed_by: self.keyed_by, before, after })
    }

    /// The sum of the identities of all selected variants (T38).
    pub(super) fn sum(&self, resources: &TypeSnapshot) -> u128 {
        let is_plain = resources.other_names().are_none();
        let of_name = |name: &ResourceName| self.choose(name, is_plain, resources).sum(self.keyed_by);
        let add = |sum: u128, name: &ResourceName| sum.wrapping_add(of_name(name));
        if self.is_wildcard() {
            resources.iter().map(|(name, _)| name).fold(0, add)
        } else {
            self.listed(resources).iter().fold(0, add)
        }
    }
}

/// Up to this number of parts, a linear search is faster than an index.
const FEW_PARTS: usize = 8;
