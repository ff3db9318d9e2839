//! The on-demand subscriptions to one type.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::id_set::IdSet;
use crate::cache::interest::RegisteredStream;
use crate::cache::snapshot::Keys;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::{Locator, NameSet, difference, is_set};

mod listed;

/// The subscriptions to one type.
///
/// Streams mostly list the same names, and constraints use few of the keys that clients send. So streams form
/// *groups*, and a name has the numbers of its groups: a stream that joins a group costs no more for a thousand names
/// than for one. The source knows the locators that are *listed*: one for each name and [projected](Member::projected)
/// parameters, and more where it needs them.
///
/// "Whole" parameters are those of a stream, with all keys.
#[derive(Debug, Default)]
pub(super) struct OfType {
    /// The keys in which groups differ; `None`: in all.
    keys: Option<Keys>,
    groups: BTreeMap<GroupId, Group>,
    by_names: BTreeMap<(Parameters, NameSet), GroupId>,
    last_group: GroupId,
    last_member: MemberNumber,
    names: BTreeMap<ResourceName, BTreeMap<Parameters, Listing>>,
    /// By whole parameters.
    members: BTreeMap<Parameters, Member>,
    /// By projected parameters and name: what is listed besides one locator.
    newcomers: BTreeMap<Parameters, BTreeMap<ResourceName, Newcomers>>,
}

type GroupId = u64;

/// The streams with the same names, and with parameters that have equal values of the keys which constraints use: a
/// variant that matches one of them matches all.
#[derive(Debug)]
struct Group {
    projected: Parameters,
    names: NameSet,
    /// By the number of the member; none is empty.
    streams: BTreeMap<MemberNumber, (Parameters, Streams)>,
}

/// A lower number is older.
type MemberNumber = u64;

pub(super) type Streams = BTreeMap<u64, Arc<RegisteredStream>>;

/// The groups that have one name with the same projected parameters.
#[derive(Debug, Default)]
struct Listing {
    groups: IdSet,
    /// How many locators of these groups are listed. None only if there is no group.
    listed: usize,
}

/// The streams with the same whole parameters.
#[derive(Debug, Default)]
struct Member {
    number: MemberNumber,
    /// The parameters without the keys that no constraints use.
    projected: Parameters,
    groups: IdSet,
    /// The names with which it is listed, and what the source has read of that. Also those that it does not have
    /// any more, until the source has read that.
    listed: BTreeMap<ResourceName, Reading>,
}

/// What the source has read of a listed locator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Its state.
    Done,
    /// Nothing yet, so it need not know of a locator that is gone again.
    New,
    /// An older state.
    Changed,
}

/// Which members that join the groups of a name are listed, though another one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Newcomers {
    /// The next one.
    Next,
    /// All, and all that are there.
    All,
}

impl OfType {
    /// One without streams. With `keys`, streams are grouped by their values of these keys.
    pub(super) fn new(keys: Option<Keys>) -> Self {
        Self { keys, ..Self::default() }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a stream. `changed` gets each locator that is listed from now on.
    pub(super) fn join(
        &mut self,
        stream: &Arc<RegisteredStream>,
        whole: &Parameters,
        names: &NameSet,
        changed: &mut Vec<Locator>,
    ) {
        let projected = self.projected(whole);
        let (id, is_new) = self.group(&projected, names);
        let member = self.members.entry(whole.clone()).or_insert_with(|| {
            self.last_member += 1;
            Member { number: self.last_member, projected, ..Member::default() }
        });
        let group = self.groups.get_mut(&id).expect("it was found above");
        let (_, streams) =
            group.streams.entry(member.number).or_insert_with(|| (whole.clone(), Streams::new()));
        let is_first = streams.is_empty();
        streams.insert(stream.id, Arc::clone(stream));
        if is_first {
            self.arrive(whole, names.as_slice(), is_new, changed);
            self.members.get_mut(whole).expect("it was found above").groups.insert(id);
        }
    }

    /// Removes a stream. `changed` gets each locator that is not listed any more, and each that is listed in its
    /// place.
    pub(super) fn leave(
        &mut self,
        stream: &RegisteredStream,
        whole: &Parameters,
        names: &NameSet,
        changed: &mut Vec<Locator>,
    ) {
        let (key, id) = self.of_stream(whole, names);
        let group = self.groups.get_mut(&id).expect("a group with a number exists");
        let number = self.members[whole].number;
        let (_, streams) = group.streams.get_mut(&number).expect("the stream is in its group");
        streams.remove(&stream.id);
        if !streams.is_empty() {
            return;
        }
        group.streams.remove(&number);
        if group.streams.is_empty() {
            self.groups.remove(&id);
            self.by_names.remove(&key);
            self.unindex(id, &key.0, names.as_slice());
        }
        self.members.get_mut(whole).expect("a stream is a member").groups.remove(id);
        self.depart(whole, names.as_slice(), changed);
    }

    /// Moves a stream from one group to another. If it is alone in its group, and the other one is new, this costs
    /// the names that differ: a stream that adds names one by one does not pay for all of them each time.
    pub(super) fn replace(
        &mut self,
        stream: &Arc<RegisteredStream>,
        whole: &Parameters,
        (before, after): (&NameSet, &NameSet),
        changed: &mut Vec<Locator>,
    ) {
        let (old, id) = self.of_stream(whole, before);
        let new = (old.0.clone(), after.clone());
        let streams = &self.groups[&id].streams;
        let is_alone = streams.len() == 1 && streams.values().all(|(_, of_member)| of_member.len() == 1);
        if !is_alone || self.by_names.contains_key(&new) {
            // In this order, a locator that is in both never leaves the index.
            self.join(stream, whole, after, changed);
            return self.leave(stream, whole, before, changed);
        }
        let projected = old.0.clone();
        self.by_names.remove(&old);
        self.by_names.insert(new, id);
        let (before, names) = (before.as_slice(), after.as_slice());
        let (added, removed) = (difference(names, before), difference(before, names));
        self.index(id, &projected, &added);
        self.arrive(whole, &added, true, changed);
        self.groups.get_mut(&id).expect("it was found above").names = after.clone();
        self.unindex(id, &projected, &removed);
        self.depart(whole, &removed, changed);
    }

    /// Constraints use other keys than before: groups are split and joined.
    pub(super) fn regroup(&mut self, keys: &Keys, changed: &mut Vec<Locator>) {
        let Some(before) = &mut self.keys else { return };
        if before.names().eq(keys.names()) {
            return;
        }
        *before = keys.clone();
        let (groups, newcomers) = (std::mem::take(&mut self.groups), std::mem::take(&mut self.newcomers));
        self.by_names.clear();
        self.names.clear();
        for (whole, member) in &mut self.members {
            (member.projected, member.groups) = (keys.project(whole), IdSet::default());
        }
        for group in groups.into_values() {
            let of_group = newcomers.get(&group.projected);
            let of_group = of_group.map(|of| common(of, group.names.as_slice())).unwrap_or_default();
            let mut parts = BTreeSet::new();
            for (number, (whole, streams)) in group.streams {
                let projected = self.projected(&whole);
                let (id, _) = self.group(&projected, &group.names);
                let is_new = parts.insert(id);
                for name in of_group.iter().filter(|_| is_new) {
                    let of_name = newcomers[&group.projected][name];
                    let now = self.newcomers.entry(projected.clone()).or_default();
                    let now = now.entry(name.clone()).or_insert(of_name);
                    *now = of_name.max(*now);
                }
                self.members.get_mut(&whole).expect("a stream is a member").groups.insert(id);
                let now = self.groups.get_mut(&id).expect("it was found above");
                now.streams.entry(number).or_insert_with(|| (whole, Streams::new())).1.extend(streams);
            }
        }
        self.list_regrouped(changed);
    }

    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// How many locators streams subscribe to.
    pub(super) fn locators(&self) -> usize {
        let of_member = |member: &Member| {
            let names = member.groups.iter().map(|id| &self.groups[&id].names);
            match member.groups.len() {
                0 | 1 => names.map(NameSet::len).sum(),
                _ => names.flatten().collect::<BTreeSet<_>>().len(),
            }
        };
        self.members.values().map(of_member).sum()
    }

    /// The streams that subscribe to a locator.
    pub(super) fn streams(&self, Locator { name, parameters }: &Locator) -> impl Iterator<Item = &Streams> {
        let streams = self.members.get(parameters).into_iter().flat_map(move |member| {
            let groups = member.groups.iter().map(|id| &self.groups[&id]);
            groups
                .filter(|group| group.names.contains(name))
                .filter_map(|group| group.streams.get(&member.number))
        });
        streams.map(|(_, streams)| streams)
    }

    /// The streams with a name, with their whole parameters.
    pub(super) fn streams_with<'s>(
        &'s self,
        name: &ResourceName,
    ) -> impl Iterator<Item = &'s (Parameters, Streams)> + use<'s> {
        let listings = self.names.get(name).into_iter().flat_map(BTreeMap::values);
        listings.flat_map(|listing| listing.groups.iter()).flat_map(|id| self.groups[&id].streams.values())
    }

    fn projected(&self, whole: &Parameters) -> Parameters {
        match (self.members.get(whole), &self.keys) {
            (Some(member), _) => member.projected.clone(),
            (None, Some(keys)) => keys.project(whole),
            (None, None) => whole.clone(),
        }
    }

    /// The group with these names, and whether it is new.
    fn group(&mut self, projected: &Parameters, names: &NameSet) -> (GroupId, bool) {
        match self.by_names.entry((projected.clone(), names.clone())) {
            Entry::Occupied(known) => return (*known.get(), false),
            Entry::Vacant(new) => {
                self.last_group += 1;
                new.insert(self.last_group);
            }
        }
        let (projected, names) = (projected.clone(), names.clone());
        self.index(self.last_group, &projected, names.as_slice());
        self.groups.insert(self.last_group, Group { projected, names, streams: BTreeMap::new() });
        (self.last_group, true)
    }

    fn of_stream(&self, whole: &Parameters, names: &NameSet) -> ((Parameters, NameSet), GroupId) {
        let key = (self.members[whole].projected.clone(), names.clone());
        let id = *self.by_names.get(&key).expect("the group of a stream is in the index");
        (key, id)
    }

    /// Whether a member has a name.
    fn has(&self, member: &Member, name: &ResourceName) -> bool {
        member.groups.iter().any(|id| self.groups[&id].names.contains(name))
    }

    /// Adds a group to these names.
    fn index(&mut self, id: GroupId, projected: &Parameters, names: &[ResourceName]) {
        for name in names {
            let listing = self.names.entry(name.clone()).or_default().entry(projected.clone()).or_default();
            listing.groups.insert(id);
            // What exists for some parameters says nothing about others, whatever the keys of constraints.
            if self.keys.is_some() && is_set(name.as_str()) {
                let newcomers = self.newcomers.entry(projected.clone()).or_default();
                newcomers.insert(name.clone(), Newcomers::All);
            }
        }
    }

    fn unindex(&mut self, id: GroupId, projected: &Parameters, names: &[ResourceName]) {
        for name in names {
            let Entry::Occupied(mut of_name) = self.names.entry(name.clone()) else { continue };
            let Some(listing) = of_name.get_mut().get_mut(projected) else { continue };
            listing.groups.remove(id);
            if !listing.groups.is_empty() {
                continue;
            }
            of_name.get_mut().remove(projected);
            if of_name.get().is_empty() {
                of_name.remove();
            }
            if let Some(newcomers) = self.newcomers.get_mut(projected) {
                newcomers.remove(name);
                if newcomers.is_empty() {
                    self.newcomers.remove(projected);
                }
            }
        }
    }
}

/// The names that are in both, in order; costs the smaller one.
fn common<V>(some: &BTreeMap<ResourceName, V>, names: &[ResourceName]) -> Vec<ResourceName> {
    if some.len() < names.len() {
        some.keys().filter(|name| names.binary_search(name).is_ok()).cloned().collect()
    } else {
        names.iter().filter(|name| some.contains_key(*name)).cloned().collect()
    }
}
