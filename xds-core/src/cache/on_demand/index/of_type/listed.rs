//! The locators of a type that the source knows: one of those that get the same variants, and more where it needs
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Listing, Newcomers, OfType, Reading, common};
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::Locator;

impl OfType {
    /// A member gets these names, before its group has them. `is_new`: the names may be new in the index, too.
    pub(super) fn arrive(
        &mut self,
        whole: &Parameters,
        names: &[ResourceName],
        is_new: bool,
        changed: &mut Vec<Locator>,
    ) {
        let member = &self.members[whole];
        let projected = member.projected.clone();
        // It comes back before the source has read that it had left: it is still listed.
        let mut back = common(&member.listed, names);
        back.retain(|name| !self.has(member, name));
        back.iter().for_each(|name| self.listing(name, &projected).listed += 1);
        let mut listed = Vec::new();
        if let Some(newcomers) = self.newcomers.get(&projected) {
            listed = common(newcomers, names);
        }
        if is_new {
            let is_first = |name: &&ResourceName| self.names[*name][&projected].listed == 0;
            let first: Vec<_> = names.iter().filter(is_first).cloned().collect();
            listed.extend(first);
        }
        for name in listed {
            self.end_next(&name, &projected);
            if !self.members[whole].listed.contains_key(&name) {
                self.list_new(whole, &name, changed);
            }
        }
    }

    /// A member does not have these names any more, but for those that another group of it has.
    pub(super) fn depart(&mut self, whole: &Parameters, names: &[ResourceName], changed: &mut Vec<Locator>) {
        let member = &self.members[whole];
        let projected = member.projected.clone();
        let mut gone = common(&member.listed, names);
        gone.retain(|name| !self.has(member, name));
        for name in gone {
            self.report_gone(whole, &name, changed);
            let listing = self.names.get_mut(&name).and_then(|of_name| of_name.get_mut(&projected));
            let Some(listing) = listing else { continue };
            listing.listed -= 1;
            if listing.listed > 0 {
                continue;
            }
            for next in self.unlisted(&name, &projected, 1) {
                self.list_new(&next, &name, changed);
            }
        }
        self.forget(whole);
    }

    /// Counts what is listed, and lists what has to be.
    pub(super) fn list_regrouped(&mut self, changed: &mut Vec<Locator>) {
        let mut listed = Vec::new();
        for member in self.members.values() {
            let names = member.listed.keys().filter(|name| self.has(member, name));
            listed.extend(names.map(|name| (name.clone(), member.projected.clone())));
        }
        for (name, projected) in listed {
            self.listing(&name, &projected).listed += 1;
        }
        let mut missing: Vec<(ResourceName, Parameters, usize)> = Vec::new();
        for (name, of_name) in &self.names {
            for (projected, listing) in of_name {
                let newcomers = self.newcomers.get(projected).and_then(|of| of.get(name));
                let count = match newcomers {
                    Some(Newcomers::All) => usize::MAX,
                    // The next one may have come from another group.
                    Some(Newcomers::Next) => 1,
                    None => usize::from(listing.listed == 0),
                };
                missing.push((name.clone(), projected.clone(), count));
            }
        }
        missing.retain(|(.., count)| *count > 0);
        for (name, projected, count) in missing {
            for whole in self.unlisted(&name, &projected, count) {
                self.list_new(&whole, &name, changed);
                if count == 1 {
                    self.end_next(&name, &projected);
                }
            }
        }
    }

    /// Lists all locators of a name whose projected parameters are those of this one, now and as they come. Returns
    /// their whole parameters.
    pub(in crate::cache::on_demand) fn list_all(
        &mut self,
        whole: &Parameters,
        name: &ResourceName,
    ) -> Vec<Parameters> {
        let Some(member) = self.members.get(whole).filter(|_| self.keys.is_some()) else { return Vec::new() };
        let projected = member.projected.clone();
        if self.names.get(name).is_none_or(|of_name| !of_name.contains_key(&projected)) {
            return Vec::new();
        }
        let newcomers = self.newcomers.entry(projected.clone()).or_default();
        if newcomers.insert(name.clone(), Newcomers::All) == Some(Newcomers::All) {
            return Vec::new();
        }
        let all = self.unlisted(name, &projected, usize::MAX);
        all.iter().for_each(|whole| self.list(whole, name));
        all
    }

    /// Lists so many further locators of a name. Returns their whole parameters. If there are not so many, the next
    /// one that comes is listed.
    pub(in crate::cache::on_demand) fn list_further(
        &mut self,
        name: &ResourceName,
        count: usize,
    ) -> Vec<Parameters> {
        let mut further = Vec::new();
        for projected in self.listings(name) {
            let unlisted = self.unlisted(name, &projected, count - further.len());
            unlisted.iter().for_each(|whole| self.list(whole, name));
            further.extend(unlisted);
        }
        if further.len() < count {
            self.list_next(name);
        }
        further
    }

    /// Whether streams subscribe to locators of the name that are not listed. If not, the next one that comes is
    /// listed.
    pub(in crate::cache::on_demand) fn has_further(&mut self, name: &ResourceName) -> bool {
        let listings = self.listings(name);
        let has_further = listings.iter().any(|projected| !self.unlisted(name, projected, 1).is_empty());
        if !has_further {
            self.list_next(name);
        }
        has_further
    }

    fn list_next(&mut self, name: &ResourceName) {
        for projected in self.listings(name) {
            self.newcomers.entry(projected).or_default().insert(name.clone(), Newcomers::Next);
        }
    }

    /// The next member with the name is listed.
    fn end_next(&mut self, name: &ResourceName, projected: &Parameters) {
        if let Some(newcomers) = self.newcomers.get_mut(projected)
            && newcomers.get(name) == Some(&Newcomers::Next)
        {
            newcomers.remove(name);
        }
    }

    /// The projected parameters of a name of which not each newcomer is listed.
    fn listings(&self, name: &ResourceName) -> Vec<Parameters> {
        let is_whole = |projected: &&Parameters| {
            self.newcomers.get(*projected).is_none_or(|of| !of.contains_key(name)) && self.keys.is_some()
        };
        let of_name = self.names.get(name).into_iter().flat_map(BTreeMap::keys);
        of_name.filter(is_whole).cloned().collect()
    }

    /// Up to so many members with a name that are not listed with it.
    fn unlisted(&self, name: &ResourceName, projected: &Parameters, count: usize) -> Vec<Parameters> {
        let listing = self.names.get(name).and_then(|of_name| of_name.get(projected));
        let groups = listing.into_iter().flat_map(|listing| listing.groups.iter());
        let members = groups.flat_map(|id| self.groups[&id].streams.values()).map(|(whole, _)| whole);
        let mut found = BTreeSet::new();
        let unlisted = members.filter(|whole| !self.members[*whole].listed.contains_key(name));
        unlisted.filter(|whole| found.insert(*whole)).take(count).cloned().collect()
    }

    /// The source reads that the state of a locator changed. Returns how many streams subscribe to it.
    pub(in crate::cache::on_demand) fn read(&mut self, locator: &Locator) -> usize {
        let streams = self.streams(locator).map(BTreeMap::len).sum();
        let Some(member) = self.members.get_mut(&locator.parameters) else { return 0 };
        match streams {
            0 => _ = member.listed.remove(&locator.name),
            _ => _ = member.listed.insert(locator.name.clone(), Reading::Done),
        }
        self.forget(&locator.parameters);
        streams
    }

    fn forget(&mut self, whole: &Parameters) {
        if self.members.get(whole).is_some_and(|member| member.groups.is_empty() && member.listed.is_empty())
        {
            self.members.remove(whole);
        }
    }

    fn listing(&mut self, name: &ResourceName, projected: &Parameters) -> &mut Listing {
        let listing = self.names.get_mut(name).and_then(|of_name| of_name.get_mut(projected));
        listing.expect("a name of a member is in the index")
    }

    fn list(&mut self, whole: &Parameters, name: &ResourceName) {
        let member = self.members.get_mut(whole).expect("a stream is a member");
        member.listed.insert(name.clone(), Reading::Done);
        let projected = member.projected.clone();
        self.listing(name, &projected).listed += 1;
    }

    /// Lists a locator of which the source has to read.
    fn list_new(&mut self, whole: &Parameters, name: &ResourceName, changed: &mut Vec<Locator>) {
        self.list(whole, name);
        let member = self.members.get_mut(whole).expect("a stream is a member");
        member.listed.insert(name.clone(), Reading::New);
        changed.push(Locator { name: name.clone(), parameters: whole.clone() });
    }

    /// Nobody subscribes to a listed locator any more.
    fn report_gone(&mut self, whole: &Parameters, name: &ResourceName, changed: &mut Vec<Locator>) {
        let member = self.members.get_mut(whole).expect("a stream is a member");
        let reading = member.listed.get_mut(name).expect("the locator is listed");
        match reading {
            Reading::New => _ = member.listed.remove(name),
            Reading::Done => {
                *reading = Reading::Changed;
                changed.push(Locator { name: name.clone(), parameters: whole.clone() });
            }
            Reading::Changed => {}
        }
    }

    /// Whether the source has to read the state of a locator.
    pub(in crate::cache::on_demand) fn is_unread(&self, locator: &Locator) -> bool {
        let member = self.members.get(&locator.parameters);
        let reading = member.and_then(|member| member.listed.get(&locator.name));
        reading.is_some_and(|reading| *reading != Reading::Done)
    }
}
