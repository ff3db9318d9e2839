//! What a stream wants of a type, and which variants that are.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::snapshot::{Keys, TypeSnapshot};
use crate::access::NamePatterns;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::{Selection, Subscription};
use crate::variants::{Form, Variant};

/// What a stream wants of a type: equal wants, once their parameters are projected, form a class.
#[derive(Debug, Default, Clone)]
pub(crate) struct TypeSelection {
    pub(crate) form: Form,
    /// Whether the client is told of TTLs (S38).
    pub(crate) ttl: bool,
    /// The names that may be read, where that is not all; what others there are is nothing to it.
    scope: Option<NamePatterns>,
    /// A wildcard in it does not stand for every name.
    has_excluded: bool,
    /// Sorted; each set of parameters once. Whoever asks by name has a single one.
    parts: Vec<SelectionPart>,
    /// Where the parts are many: a proxy may ask for each name with parameters of its own.
    index: OnceLock<PartIndex>,
}

/// The parts by what they select, as places in the list.
#[derive(Debug, Default, Clone)]
struct PartIndex {
    wildcards: Vec<usize>,
    by_name: BTreeMap<ResourceName, Vec<usize>>,
}

/// What is wanted under one set of parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SelectionPart {
    pub(crate) parameters: Parameters,
    pub(crate) selection: Selection,
}

/// The variants of a name that somebody gets.
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
}

/// What somebody got of a name and what they get now.
#[derive(Debug)]
pub(super) struct Shift<'r> {
    form: Form,
    before: Chosen<'r>,
    after: Chosen<'r>,
}

impl Shift<'_> {
    /// By how much the sum of identities moved.
    pub(super) fn sum(&self) -> u128 {
        let sum = |choice: &Chosen<'_>| {
            let variants = choice.as_slice().iter();
            variants.fold(0, |sum: u128, variant| sum.wrapping_add(variant.identity(self.form)))
        };
        sum(&self.after).wrapping_sub(sum(&self.before))
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
        (self.form, self.ttl, &self.scope, &self.parts).cmp(&(
            other.form,
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
    /// What a subscription asks for; `None` when that is nothing (S24).
    ///
    /// A `scope` is of the names that it may read.
    pub(crate) fn of(subscription: &Subscription, ttl: bool, scope: Option<NamePatterns>) -> Option<Self> {
        let form = if subscription.knows_locators() { Form::Located } else { Form::Name };
        let parts = subscription.selections();
        let parts =
            parts.map(|(parameters, selection)| SelectionPart { parameters: parameters.clone(), selection });
        let selection = Self::new(form, ttl, scope, parts.collect());
        (!selection.parts.is_empty()).then_some(selection)
    }

    fn new(form: Form, ttl: bool, scope: Option<NamePatterns>, parts: Vec<SelectionPart>) -> Self {
        let mut merged = BTreeMap::<Parameters, Vec<Selection>>::new();
        for SelectionPart { parameters, selection } in parts {
            merged.entry(parameters).or_default().push(selection);
        }
        let merge =
            |(parameters, of_them)| SelectionPart { parameters, selection: Selection::union(of_them) };
        let parts: Vec<_> = merged.into_iter().map(merge).collect();
        let has_excluded = parts.iter().any(|part| matches!(part.selection, Selection::AllBut(..)));
        Self { form, ttl, scope, has_excluded, parts, index: OnceLock::new() }
    }

    /// The same as far as the parameters matter.
    pub(super) fn project(&self, keys: &Keys) -> Self {
        let project = |part: &SelectionPart| SelectionPart {
            parameters: keys.project(&part.parameters),
            selection: part.selection.clone(),
        };
        Self::new(self.form, self.ttl, self.scope.clone(), self.parts.iter().map(project).collect())
    }

    /// The selection, where there is a single set of parameters.
    pub(crate) fn single(&self) -> Option<&Selection> {
        self.only_part().map(|part| &part.selection)
    }

    /// The same with other selections in its parts.
    pub(super) fn map(self, mut selection: impl FnMut(Selection) -> Selection) -> Self {
        let map = |part: SelectionPart| SelectionPart { selection: selection(part.selection), ..part };
        let parts = self.parts.into_iter().map(map).collect();
        Self { parts, index: OnceLock::new(), ..self }
    }

    /// Whether every name is wanted, under whatever parameters.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.parts.iter().any(|part| part.selection.is_wildcard())
    }

    /// Whether every name is wanted, and may be read.
    pub(super) fn is_unlimited(&self) -> bool {
        self.parts.iter().any(|part| part.selection == Selection::All) && self.scope.is_none()
    }

    /// Whether a resource may be read.
    pub(super) fn allows(&self, name: &ResourceName) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.matches(name))
            && (!self.has_excluded || self.covering(name).next().is_some())
    }

    /// The sets of parameters under which something is wanted, each once, in order.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameters> {
        self.parts.iter().map(|part| &part.parameters)
    }

    /// How many names are listed.
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

    /// The parts that ask for a resource by its name or another one; a part may come more than
    /// once.
    pub(super) fn covering_any<'w>(
        &'w self,
        name: &'w ResourceName,
        resources: &'w TypeSnapshot,
    ) -> impl Iterator<Item = &'w SelectionPart> {
        let others = resources.others_of(name).iter().flat_map(|other| self.covering(other));
        self.covering(name).chain(others)
    }

    /// The names listed and the resources that they stand for, each once, in order.
    pub(super) fn listed(&self, resources: &TypeSnapshot) -> Cow<'_, [ResourceName]> {
        let names = self.names();
        if !resources.has_other_names() {
            return names;
        }
        let members = names.iter().flat_map(|asked| resources.asked_by(asked));
        let listed: BTreeSet<_> = names.iter().chain(members).collect();
        listed.into_iter().cloned().collect()
    }

    /// The parts that ask by a name.
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

    /// The variants of a name that it gets, each once (T29).
    pub(super) fn chosen<'r>(
        &self,
        name: &ResourceName,
        resources: &'r TypeSnapshot,
    ) -> Vec<&'r Arc<Variant>> {
        let Some(variants) = resources.get(name).filter(|_| self.allows(name)) else { return Vec::new() };
        let resolve = |part: &SelectionPart| variants.resolve(&part.parameters);
        let mut chosen: Vec<_> = self.covering(name).filter_map(resolve).collect();
        for other in resources.others_of(name) {
            // D24: of the variants only those that have the alias.
            let found = self.covering(other).filter_map(resolve);
            chosen.extend(found.filter(|variant| variant.goes_by(other)));
        }
        if chosen.len() > 1 {
            chosen.sort_unstable_by_key(|variant| Arc::as_ptr(variant));
            chosen.dedup_by(|one, other| Arc::ptr_eq(one, other));
            chosen.sort_unstable_by(|one, other| one.constraints().cmp(other.constraints()));
        }
        chosen
    }

    /// The same without a list in the common case: the name is asked for, and nobody asks by other
    /// names.
    fn choose<'r>(&self, name: &ResourceName, is_plain: bool, resources: &'r TypeSnapshot) -> Chosen<'r> {
        match self.only_part() {
            Some(part) if is_plain => {
                debug_assert!(self.has_excluded || part.selection.covers(name), "{name} is asked for");
                let variants = resources.get(name).filter(|_| self.allows(name));
                Chosen::One(variants.and_then(|variants| variants.resolve(&part.parameters)))
            }
            _ => Chosen::Many(self.chosen(name, resources)),
        }
    }

    /// The part, where there is a single one.
    pub(super) fn only_part(&self) -> Option<&SelectionPart> {
        match self.parts.as_slice() {
            [part] => Some(part),
            _ => None,
        }
    }

    /// What a change of one name changes here; `None` when that is nothing.
    pub(super) fn shift<'r>(
        &self,
        name: &ResourceName,
        before: &'r TypeSnapshot,
        after: &'r TypeSnapshot,
    ) -> Option<Shift<'r>> {
        let is_plain = !before.has_other_names() && !after.has_other_names();
        let (before, after) = (self.choose(name, is_plain, before), self.choose(name, is_plain, after));
        // V29: by name, another variant with the same payload is no change.
        let is_same = |one: &Arc<Variant>, other: &Arc<Variant>| {
            one.version() == other.version()
                && (self.form == Form::Name || one.constraints() == other.constraints())
        };
        let (one, other) = (before.as_slice(), after.as_slice());
        let is_unchanged =
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other));
        (!is_unchanged).then_some(Shift { form: self.form, before, after })
    }

    /// The sum of the identities of all that it gets (T38).
    pub(super) fn sum(&self, resources: &TypeSnapshot) -> u128 {
        let of_name = |name: &ResourceName| {
            let chosen = self.chosen(name, resources).into_iter();
            chosen.fold(0, |sum: u128, variant| sum.wrapping_add(variant.identity(self.form)))
        };
        let add = |sum: u128, name: &ResourceName| sum.wrapping_add(of_name(name));
        if self.is_wildcard() {
            resources.iter().map(|(name, _)| name).fold(0, add)
        } else {
            self.listed(resources).iter().fold(0, add)
        }
    }
}

/// Up to this many parts are looked through one by one.
const FEW_PARTS: usize = 8;
