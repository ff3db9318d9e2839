//! The changes that a stream needs to get from one revision to another.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use super::lock;
use super::rejected::RejectedOfType;
use super::removals::Removed;
use super::snapshot::TypeSnapshot;
use super::type_selection::{SelectionPart, TypeSelection};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision};
use crate::parameters::Parameters;
use crate::references::{NamedList, Target};
use crate::subscription::NameSet;
use crate::variants::{self, KeyedBy, Variant, Variants};
use crate::wire::{Body, ResourceKey};

/// The changes that the streams of a class need to get from one cursor to a newer revision.
///
/// With a cursor of zero, for the first response, nothing is replaced or removed. Only then there
/// are absent names and unmatched parameters.
#[derive(Debug)]
pub(crate) struct Update {
    /// New and changed variants, by name.
    pub(crate) changed: Vec<Arc<Variant>>,
    /// Variants that were removed and whose clients get another variant of the name instead (T31).
    /// Only for clients that subscribe by locator: by name the other variant is a change.
    pub(crate) replaced: Vec<Arc<Variant>>,
    /// Variants that were added after the cursor, and replaced or removed since. Only a stream that
    /// was sent such a variant ahead of its cursor has it.
    pub(crate) transient: Vec<Arc<Variant>>,
    /// Variants that were removed without another variant in their place, by name; also those that
    /// were added after the cursor.
    pub(crate) removed: Vec<Removed>,
    /// Names that a new subscription finds absent (D10).
    pub(crate) absent: Vec<ResourceName>,
    /// Names with variants, each with parameters that none of its variants matches (T35).
    pub(crate) unmatched: Vec<(ResourceName, Constraints)>,
    /// The cursor that it starts from; zero when it has everything.
    pub(crate) from: Revision,
    pub(super) to: Revision,
    /// A resource that is not in the cache is absent; false in a cache on demand.
    missing_is_absent: bool,
    pub(crate) made: Made,
}

/// What is made from an update for the first stream that needs it, and shared by the others.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The changed variants, encoded for SotW.
    pub(crate) sotw_body: OnceLock<Arc<Body>>,
    /// The changed variants and the removals, encoded for delta.
    pub(crate) delta_body: OnceLock<Arc<Body>>,
    /// The keys of all these resources, changes and removals alike, in order and each once.
    pub(crate) keys: OnceLock<Arc<[ResourceKey]>>,
    /// See [`Update::followers`].
    followers: OnceLock<NamedList>,
    /// See [`Update::divide`].
    divided: Mutex<VecDeque<(NameSet, Revision, [NameSet; 3])>>,
    /// See [`Update::spare`].
    spared: Mutex<Option<Spared>>,
}

/// An update without contents that clients rejected, and these contents.
#[derive(Debug, Clone)]
pub(crate) struct Spared {
    known: Arc<RejectedOfType>,
    pub(crate) update: Arc<Update>,
    pub(crate) left_out: Arc<[Arc<Variant>]>,
}

impl Update {
    pub(super) fn new(from: Revision, to: Revision) -> Self {
        Self {
            changed: Vec::new(),
            replaced: Vec::new(),
            transient: Vec::new(),
            removed: Vec::new(),
            absent: Vec::new(),
            unmatched: Vec::new(),
            from,
            to,
            missing_is_absent: true,
            made: Made::default(),
        }
    }

    /// Compares the names that changed according to the log, or all selected names without a log.
    pub(super) fn make(
        selection: &TypeSelection,
        logged: Option<&BTreeSet<ResourceName>>,
        resources: &TypeSnapshot,
        from: Revision,
        to: Revision,
        missing_is_absent: bool,
    ) -> Self {
        let mut update = Self { missing_is_absent, ..Self::new(from, to) };
        if from == Revision::ZERO
            && let Some(part) = selection.plain_list(resources)
        {
            update.find_listed(part, selection, resources);
            return update;
        }
        let compare = |name: &ResourceName| {
            if selection.allows(name) {
                update.compare(name, selection, resources);
            }
        };
        match logged {
            Some(names) => names.iter().for_each(compare),
            None if selection.is_wildcard() => {
                let removed = (from > Revision::ZERO).then(|| resources.removed_names());
                let names = resources.iter().map(|(name, _)| name).chain(removed.into_iter().flatten());
                names.for_each(compare);
            }
            None => {
                let listed = selection.listed(resources);
                let former =
                    resources.other_names().with_former().filter(|name| listed.binary_search(name).is_err());
                listed.iter().chain(former).for_each(compare);
            }
        }
        if from == Revision::ZERO && missing_is_absent {
            update.find_absent(selection, resources);
        }
        if !missing_is_absent {
            // In a cache on demand, each stream reads the status of its own locators instead.
            update.unmatched.clear();
        }
        update.changed.sort_by(|a, b| a.name().cmp(b.name()));
        update.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        update.removed.sort_by(|a, b| a.variant.name().cmp(b.variant.name()));
        update.removed.dedup_by(|a, b| Arc::ptr_eq(&a.variant, &b.variant));
        update
    }

    /// Finds everything that a list of plain names selects, and the names that select nothing
    /// (D10). The names are in order, and each one is looked up once.
    fn find_listed(&mut self, part: &SelectionPart, selection: &TypeSelection, resources: &TypeSnapshot) {
        self.changed.reserve_exact(part.selection.names().len());
        for name in part.selection.names() {
            let variants = resources.get(name).filter(|_| selection.allows(name));
            match variants.and_then(|variants| variants.resolve(&part.parameters)) {
                Some(variant) => self.changed.push(Arc::clone(variant)),
                None if self.missing_is_absent => self.absent.push(name.clone()),
                None => {}
            }
        }
    }

    /// The resources that are sent once more after those in this update (S34, S34b), each once, in order.
    pub(crate) fn followers(&self) -> &[(Target, ResourceName)] {
        let changed = || self.changed.iter().map(|variant| (variant, self.from));
        self.made.followers.get_or_init(|| variants::followers(changed()))
    }

    /// Finds the listed names that select nothing (D10), among them globs without members (X13).
    fn find_absent(&mut self, selection: &TypeSelection, resources: &TypeSnapshot) {
        for listed in selection.names().iter() {
            let mut parts = selection.covering(listed).filter(|part| part.selection.lists(listed)).peekable();
            if parts.peek().is_none() {
                continue;
            }
            let is_found = |part: &SelectionPart| {
                let members = resources.selected_by(listed).filter(|name| selection.allows(name));
                let variants = members.filter_map(|name| resources.get(name));
                let mut found = variants.filter_map(|variants| variants.resolve(&part.parameters));
                found.any(|variant| variant.is_named(listed))
            };
            let is_absent = match selection.keyed_by {
                KeyedBy::Name => parts.any(|part| !is_found(part)),
                // T35: parameters without a variant, of a name that has variants for others, are
                // reported as unmatched instead.
                KeyedBy::Locator => !selection.covering(listed).any(is_found),
            };
            if is_absent {
                self.absent.push(listed.clone());
            }
        }
    }

    /// Divides names into those without a variant, those whose variant changed since a cursor, and
    /// the others. The names are some of the list of the class, and the update has everything that
    /// the class selects. `None` if a variant has the content of the cursor again.
    pub(crate) fn divide(&self, names: &NameSet, cursor: Revision) -> Option<[NameSet; 3]> {
        // The lock is held meanwhile: of many streams that wait for the same names, one divides them.
        let mut known = lock(&self.made.divided);
        let mut same = known.iter().filter(|(of, at, _)| of.is_same(names) && *at == cursor);
        if let Some((.., parts)) = same.next() {
            return Some(parts.clone());
        }
        let mut rest = self.changed.iter().peekable();
        let part_of = |name: &ResourceName| {
            let found = loop {
                let Some(variant) = rest.peek() else { return Some(0) };
                match variant.name().cmp(name) {
                    Ordering::Less => _ = rest.next(),
                    Ordering::Equal => break variant,
                    Ordering::Greater => return Some(0),
                }
            };
            match found.changed_at > cursor {
                true => found.differs_since(cursor).then_some(1),
                false => Some(2),
            }
        };
        let places: Vec<usize> = names.iter().map(part_of).collect::<Option<_>>()?;
        let parts = [0, 1, 2].map(|part| {
            let mut places = places.iter();
            names.filter(|_| places.next() == Some(&part))
        });
        if known.len() == DIVISIONS_KEPT {
            known.pop_front();
        }
        known.push_back((names.clone(), cursor, parts.clone()));
        Some(parts)
    }

    /// This update without some of the changed variants.
    pub(crate) fn without(&self, is_left_out: impl Fn(&Arc<Variant>) -> bool) -> Self {
        let changed = self.changed.iter().filter(|variant| !is_left_out(variant));
        Self {
            changed: changed.cloned().collect(),
            replaced: self.replaced.clone(),
            transient: self.transient.clone(),
            removed: self.removed.clone(),
            absent: self.absent.clone(),
            unmatched: self.unmatched.clone(),
            ..Self::new(self.from, self.to)
        }
    }

    /// S6d: this update without contents that clients rejected alone; `None` if it has none of them. T31:
    /// what takes the place of another variant is not left out.
    pub(crate) fn spare(&self, known: &Arc<RejectedOfType>) -> Option<Spared> {
        let mut spared = lock(&self.made.spared);
        if let Some(spared) = spared.as_ref().filter(|spared| Arc::ptr_eq(&spared.known, known)) {
            return Some(spared.clone()).filter(|spared| !spared.left_out.is_empty());
        }
        let is_single = |variant: &&Arc<Variant>| {
            let name = variant.name();
            let is_left = |of: &Arc<Variant>| of.name() == name;
            self.of_name(name).len() == 1
                && !self.replaced.iter().any(is_left)
                && !self.removed.iter().any(|removed| is_left(&removed.variant))
                && !self.unmatched.iter().any(|(of, _)| of == name)
        };
        let found = known.found(|name, constraints| {
            self.of_name(name).iter().find(|variant| variant.constraints() == constraints)
        });
        let left_out: Arc<[_]> = found.filter(is_single).take(LEFT_OUT_LIMIT).cloned().collect();
        let is_left_out = |variant: &Arc<Variant>| left_out.iter().any(|left| Arc::ptr_eq(left, variant));
        let update = Arc::new(self.without(is_left_out));
        let made = spared.insert(Spared { known: Arc::clone(known), update, left_out });
        Some(made.clone()).filter(|spared| !spared.left_out.is_empty())
    }

    /// The changed variants of a name.
    fn of_name(&self, name: &ResourceName) -> &[Arc<Variant>] {
        let first = self.changed.partition_point(|variant| variant.name() < name);
        let count = self.changed[first..].iter().take_while(|variant| variant.name() == name).count();
        &self.changed[first..first + count]
    }

    /// Whether a variant of this name changed.
    pub(crate) fn has_name(&self, name: &ResourceName) -> bool {
        self.changed.binary_search_by(|variant| variant.name().cmp(name)).is_ok()
    }

    /// Whether the variant with this name and these constraints changed.
    pub(crate) fn has(&self, name: &ResourceName, constraints: &Constraints) -> bool {
        self.of_name(name).iter().any(|variant| variant.constraints() == constraints)
    }

    /// Compares one selected name.
    fn compare(&mut self, name: &ResourceName, selection: &TypeSelection, resources: &TypeSnapshot) {
        match selection.keyed_by {
            // Without other names only this name selects the resource, so it needs no look-up.
            KeyedBy::Name if resources.other_names().are_none() && selection.only_part().is_some() => {
                let part = selection.only_part().expect("there is one");
                return self.compare_by_name(name, &part.parameters, resources);
            }
            KeyedBy::Name => {
                for part in selection.covering_any(name, resources) {
                    self.compare_by_name(name, &part.parameters, resources);
                }
            }
            KeyedBy::Locator => self.compare_by_locator(name, selection, resources),
        }
        self.compare_former(name, selection, resources);
    }

    /// D24: when a resource gives up an alias, it is removed for clients that subscribe to the
    /// alias, unless they select it by another name.
    fn compare_former(&mut self, name: &ResourceName, selection: &TypeSelection, resources: &TypeSnapshot) {
        if self.from == Revision::ZERO {
            return;
        }
        let mut former = resources.other_names().former(name, self.from).peekable();
        if former.peek().is_none() || !selection.chosen(name, resources).is_empty() {
            return;
        }
        for other in former {
            let variants = resources.get(name);
            let lost = selection.covering(other).filter_map(|part| variants?.resolve(&part.parameters));
            let lost: Vec<_> = lost.cloned().collect();
            self.removed.extend(lost.into_iter().map(|variant| Removed { variant, at: self.to }));
        }
    }

    /// Compares one name for clients that subscribe by name. D12: only changes are sent. T32:
    /// another variant than before is a change of the name.
    fn compare_by_name(&mut self, name: &ResourceName, parameters: &Parameters, resources: &TypeSnapshot) {
        let matching = |removed: &&Removed| removed.variant.constraints().matches(parameters);
        let mut removed = resources.removals().after(name, self.from).filter(matching);
        match resources.get(name).and_then(|variants| variants.resolve(parameters)) {
            // At most one variant matches at any time, so a variant that took the place of another
            // one did so after the cursor. V29: when it has the payload that the other one had at
            // the cursor, nothing changed for clients that subscribe by name.
            Some(variant) if variant.differs_since(self.from) => {
                let before = removed.find_map(|removed| removed.variant.version_at(self.from));
                if before != Some(variant.version()) {
                    self.changed.push(Arc::clone(variant));
                }
            }
            Some(_) => {}
            None if self.from > Revision::ZERO => {
                // Of several removed variants, take the one that existed at the cursor.
                let last = removed.max_by_key(|removed| (removed.variant.existed_at(self.from), removed.at));
                self.removed.extend(last.cloned());
            }
            None => {}
        }
    }

    /// Compares one name for clients that subscribe by locator.
    fn compare_by_locator(
        &mut self,
        name: &ResourceName,
        selection: &TypeSelection,
        resources: &TypeSnapshot,
    ) {
        let chosen = selection.chosen(name, resources);
        self.changed
            .extend(chosen.iter().filter(|variant| variant.differs_since(self.from)).copied().cloned());
        let variants = resources.get(name);
        if self.from == Revision::ZERO {
            let parts = selection.covering(name).filter(|part| part.selection.lists(name));
            if let Some(variants) = variants.filter(|_| !chosen.is_empty()) {
                let unmatched = parts.filter_map(|part| variants.unmatched(&part.parameters));
                let distinct: BTreeSet<_> = unmatched.collect();
                self.unmatched.extend(distinct.into_iter().map(|params| (name.clone(), params)));
            }
            return;
        }
        for removed in resources.removals().after(name, self.from) {
            let constraints = removed.variant.constraints();
            let had = |parameters: &Parameters| constraints.matches(parameters);
            // The parts of the selection that had the removed variant.
            let mut holders =
                selection.covering_any(name, resources).filter(|part| had(&part.parameters)).peekable();
            if holders.peek().is_none() {
                continue;
            }
            let now = |parameters: &Parameters| {
                variants.and_then(|variants: &Variants| variants.resolve(parameters))
            };
            // On demand, parameters without a variant keep the removed one while it is unknown
            // whether another one exists.
            let is_replaced = match self.missing_is_absent {
                true => holders.any(|part| now(&part.parameters).is_some()),
                false => holders.all(|part| now(&part.parameters).is_some()),
            };
            if is_replaced {
                let is_known = removed.variant.existed_at(self.from);
                let list = if is_known { &mut self.replaced } else { &mut self.transient };
                list.push(Arc::clone(&removed.variant));
            } else {
                self.removed.push(removed.clone());
            }
        }
    }
}

/// S6d: how many contents are left out of one response. A client may reject many, and the others must not
/// get all of these one by one.
pub(crate) const LEFT_OUT_LIMIT: usize = 16;

/// How many divisions an update keeps. The streams of a class mostly wait for the same names.
const DIVISIONS_KEPT: usize = 8;
