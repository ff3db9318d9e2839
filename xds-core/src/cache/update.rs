//! What a stream has to learn to get from one revision to another.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use super::snapshot::{Removed, TypeSnapshot};
use super::type_selection::{SelectionPart, TypeSelection};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision};
use crate::parameters::Parameters;
use crate::variants::{Form, Variant, Variants};
use crate::wire::{Body, ResourceKey};

/// What the streams of a class at one cursor have to learn to be at another revision.
///
/// From the start (cursor zero) nothing is replaced or removed; only then names are absent and
/// parameters unmatched.
#[derive(Debug)]
pub(crate) struct Update {
    /// New and changed variants, by name.
    pub(crate) changed: Vec<Arc<Variant>>,
    /// What is gone while those who had it get another variant of the name (T31). Only to who knows
    /// locators: by name the other variant is a change.
    pub(crate) replaced: Vec<Arc<Variant>>,
    /// The same of what came and went since the cursor: only who was told of it ahead of the rest
    /// has it.
    pub(crate) passed: Vec<Arc<Variant>>,
    /// What is gone without another variant in its place, by name; also what came and went since
    /// the cursor.
    pub(crate) removed: Vec<Removed>,
    /// Names of which there is nothing for who asks for them anew (D10).
    pub(crate) absent: Vec<ResourceName>,
    /// Names of which there is something, with the parameters that it is not for (T35).
    pub(crate) unmatched: Vec<(ResourceName, Constraints)>,
    /// [`changed`](Self::changed) as it goes on the wire, for the protocol that asked first.
    pub(crate) sotw_body: OnceLock<Arc<Body>>,
    /// The same, with what is gone, in delta.
    pub(crate) delta_body: OnceLock<Arc<Body>>,
    /// The keys of all these resources, changes and removals alike.
    pub(crate) keys: OnceLock<Arc<BTreeSet<ResourceKey>>>,
    /// The endpoints of the clusters in [`changed`](Self::changed).
    endpoints: OnceLock<Box<[ResourceName]>>,
    /// The cursor it starts from; zero when it holds everything.
    pub(crate) from: Revision,
    pub(super) to: Revision,
    /// What is not there does not exist.
    tells_absent: bool,
}

impl Update {
    pub(super) fn new(from: Revision, to: Revision) -> Self {
        let (changed, replaced, removed) = (Vec::new(), Vec::new(), Vec::new());
        let (passed, absent, unmatched) = (Vec::new(), Vec::new(), Vec::new());
        let (sotw_body, delta_body, keys) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let endpoints = OnceLock::new();
        Self {
            changed,
            replaced,
            passed,
            removed,
            absent,
            unmatched,
            sotw_body,
            delta_body,
            keys,
            endpoints,
            from,
            to,
            tells_absent: true,
        }
    }

    /// Compares the names that changed, if these are known, else all.
    pub(super) fn make(
        selection: &TypeSelection,
        logged: Option<&BTreeSet<ResourceName>>,
        resources: &TypeSnapshot,
        from: Revision,
        to: Revision,
        tells_absent: bool,
    ) -> Self {
        let mut update = Self { tells_absent, ..Self::new(from, to) };
        let compare = |name: &ResourceName| {
            if selection.allows(name) {
                update.compare(name, selection, resources);
            }
        };
        match logged {
            Some(names) => names.iter().for_each(compare),
            None if selection.is_wildcard() => {
                let gone = (from > Revision::ZERO).then(|| resources.gone_names());
                let names = resources.iter().map(|(name, _)| name).chain(gone.into_iter().flatten());
                names.for_each(compare);
            }
            None => {
                let listed = selection.listed(resources);
                let former =
                    resources.with_former_others().filter(|name| listed.binary_search(name).is_err());
                listed.iter().chain(former).for_each(compare);
            }
        }
        if from == Revision::ZERO && tells_absent {
            update.find_absent(selection, resources);
        }
        if !tells_absent {
            // What is not there for a stream only the answers to its own locators say.
            update.unmatched.clear();
        }
        update.changed.sort_by(|a, b| a.name().cmp(b.name()));
        update.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        update.removed.sort_by(|a, b| a.variant.name().cmp(b.variant.name()));
        update.removed.dedup_by(|a, b| Arc::ptr_eq(&a.variant, &b.variant));
        update
    }

    /// The assignments of the clusters that it brings (S34).
    pub(crate) fn endpoints(&self) -> &[ResourceName] {
        let endpoints = || self.changed.iter().filter_map(|cluster| cluster.endpoints().cloned());
        self.endpoints.get_or_init(|| endpoints().collect())
    }

    /// D10: the names that are asked for and stand for nothing. X13: a glob without members is one
    /// of them.
    fn find_absent(&mut self, selection: &TypeSelection, resources: &TypeSnapshot) {
        for asked in selection.names().iter() {
            let mut named = selection.covering(asked).filter(|part| part.selection.lists(asked)).peekable();
            if named.peek().is_none() {
                continue;
            }
            let is_found = |part: &SelectionPart| {
                let members = resources.asked_by(asked).filter(|name| selection.allows(name));
                let variants = members.filter_map(|name| resources.get(name));
                let mut found = variants.filter_map(|variants| variants.resolve(&part.parameters));
                found.any(|variant| variant.goes_by(asked))
            };
            let is_absent = match selection.form {
                Form::Name => named.any(|part| !is_found(part)),
                // Who has nothing beside others is told by the parameters (T35).
                Form::Located => !selection.covering(asked).any(is_found),
            };
            if is_absent {
                self.absent.push(asked.clone());
            }
        }
    }

    /// The same without some of the changes.
    pub(crate) fn without(&self, is_left_out: impl Fn(&Arc<Variant>) -> bool) -> Self {
        let changed = self.changed.iter().filter(|variant| !is_left_out(variant));
        Self {
            changed: changed.cloned().collect(),
            replaced: self.replaced.clone(),
            passed: self.passed.clone(),
            removed: self.removed.clone(),
            absent: self.absent.clone(),
            unmatched: self.unmatched.clone(),
            ..Self::new(self.from, self.to)
        }
    }

    /// Whether it brings a variant of this name.
    pub(crate) fn has_name(&self, name: &ResourceName) -> bool {
        self.changed.binary_search_by(|variant| variant.name().cmp(name)).is_ok()
    }

    /// Whether it brings the variant of a name that has these constraints.
    pub(crate) fn has(&self, name: &ResourceName, constraints: &Constraints) -> bool {
        let first = self.changed.partition_point(|variant| variant.name() < name);
        let mut of_name = self.changed[first..].iter().take_while(|variant| variant.name() == name);
        of_name.any(|variant| variant.constraints() == constraints)
    }

    /// Compares one name, which is asked for.
    fn compare(&mut self, name: &ResourceName, selection: &TypeSelection, resources: &TypeSnapshot) {
        match selection.form {
            // Nobody asks for it but by this name, so whether it is listed need not be looked up.
            Form::Name if !resources.has_other_names() && selection.only_part().is_some() => {
                let part = selection.only_part().expect("there is one");
                return self.compare_by_name(name, &part.parameters, resources);
            }
            Form::Name => {
                for part in selection.covering_any(name, resources) {
                    self.compare_by_name(name, &part.parameters, resources);
                }
            }
            Form::Located => self.compare_located(name, selection, resources),
        }
        self.compare_former(name, selection, resources);
    }

    /// D24: a resource is gone for who asked for it by an alias that it gave up, unless it is asked
    /// for otherwise.
    fn compare_former(&mut self, name: &ResourceName, selection: &TypeSelection, resources: &TypeSnapshot) {
        if self.from == Revision::ZERO {
            return;
        }
        let mut former = resources.former_others_of(name, self.from).peekable();
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

    /// D12: only what changed. T32: another variant than before is a change of the name.
    fn compare_by_name(&mut self, name: &ResourceName, parameters: &Parameters, resources: &TypeSnapshot) {
        let matching = |removed: &&Removed| removed.variant.constraints().matches(parameters);
        let mut removed = resources.removed_after(name, self.from).filter(matching);
        match resources.get(name).and_then(|variants| variants.resolve(parameters)) {
            // At most one variant matches at any time, so another one than before came after the
            // cursor. V29: when its payload is what the one before had at the cursor, nothing
            // changed for those who ask by name.
            Some(variant) if variant.differs_since(self.from) => {
                let before = removed.find_map(|removed| removed.variant.version_at(self.from));
                if before != Some(variant.version()) {
                    self.changed.push(Arc::clone(variant));
                }
            }
            Some(_) => {}
            None if self.from > Revision::ZERO => {
                // Of several the one that was there at the cursor.
                let last = removed.max_by_key(|removed| (removed.variant.was_there(self.from), removed.at));
                self.removed.extend(last.cloned());
            }
            None => {}
        }
    }

    fn compare_located(&mut self, name: &ResourceName, selection: &TypeSelection, resources: &TypeSnapshot) {
        let chosen = selection.chosen(name, resources);
        self.changed
            .extend(chosen.iter().filter(|variant| variant.differs_since(self.from)).copied().cloned());
        let variants = resources.get(name);
        if self.from == Revision::ZERO {
            let named = selection.covering(name).filter(|part| part.selection.lists(name));
            if let Some(variants) = variants.filter(|_| !chosen.is_empty()) {
                let unmatched = named.filter_map(|part| variants.unmatched(&part.parameters));
                let distinct: BTreeSet<_> = unmatched.collect();
                self.unmatched.extend(distinct.into_iter().map(|params| (name.clone(), params)));
            }
            return;
        }
        for removed in resources.removed_after(name, self.from) {
            let constraints = removed.variant.constraints();
            let had = |parameters: &Parameters| constraints.matches(parameters);
            let mut holders =
                selection.covering_any(name, resources).filter(|part| had(&part.parameters)).peekable();
            if holders.peek().is_none() {
                continue;
            }
            let now = |parameters: &Parameters| {
                variants.and_then(|variants: &Variants| variants.resolve(parameters))
            };
            // Who has nothing yet where that is unknown keeps it.
            let is_replaced = match self.tells_absent {
                true => holders.any(|part| now(&part.parameters).is_some()),
                false => holders.all(|part| now(&part.parameters).is_some()),
            };
            if is_replaced {
                let is_known = removed.variant.was_there(self.from);
                let list = if is_known { &mut self.replaced } else { &mut self.passed };
                list.push(Arc::clone(&removed.variant));
            } else {
                self.removed.push(removed.clone());
            }
        }
    }
}
