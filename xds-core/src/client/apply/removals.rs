//! What a response says is not there any more: by naming it, by a full state without it, by coming
//! from another server.

use std::collections::{BTreeMap, BTreeSet};

use super::Applier;
use crate::client::cache_changes::{RemovalReason, VariantKey};
use crate::client::received::{Removal, ReportedError};
use crate::client::resource_state::{ResourceState, ResourceStatus};
use crate::client::watched_type::StoredVariant;
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::glob_of;

impl Applier<'_> {
    /// D10, D11, T30b
    pub(super) fn apply_removals(&mut self, removed: Vec<Removal>) {
        let mut told: BTreeMap<ResourceName, Vec<Option<Constraints>>> = BTreeMap::new();
        for gone in removed {
            // D14: what is not known is ignored. P4.6: so is what a server says that was left.
            if !self.watched.names.contains_key(&gone.name) || !self.serves_name(&gone.name) {
                continue;
            }
            // D24: a name that is gone is no alias either.
            if gone.constraints.is_none() {
                self.orphans.extend(self.watched.remove_alias(&gone.name));
            }
            told.entry(gone.name.clone()).or_default().push(gone.constraints.clone());
            self.absent.push(gone);
        }
        for (name, told) in told {
            let Some(named) = self.watched.names.get(&name) else { continue };
            let is_removed = |stored: &&StoredVariant| self.is_removed(stored, &told);
            let key = |name: &ResourceName, stored: &StoredVariant| {
                (name.clone(), stored.accepted.constraints().clone())
            };
            let mut keys: Vec<VariantKey> =
                named.variants.iter().filter(is_removed).map(|stored| key(&name, stored)).collect();
            // X13: a glob that is removed has no members.
            let entries = named.entries.iter().map(|at| self.watched.entry(*at));
            let members =
                entries.filter_map(|entry| entry.members.as_ref()).flat_map(|members| members.keys());
            for member in members {
                let stored =
                    self.watched.names.get(member).map(|named| &named.variants[..]).unwrap_or_default();
                let unseen = stored.iter().filter(|stored| stored.last_response != self.response_number);
                keys.extend(unseen.map(|stored| key(member, stored)));
                self.absent.push(Removal { name: member.clone(), constraints: None });
            }
            self.changes.removed.extend(keys.into_iter().map(|key| (key, RemovalReason::Explicit)));
        }
    }

    /// Whether a variant is gone when all this is of its name. What came from another stream the
    /// server may know by other constraints, or it names the parameters that it has nothing for,
    /// those of each locator by themselves (T35): if one of its users has nothing, it is not what
    /// it was.
    fn is_removed(&self, stored: &StoredVariant, told: &[Option<Constraints>]) -> bool {
        let is_it = |gone: &Option<Constraints>| {
            gone.as_ref().is_none_or(|constraints| constraints == stored.accepted.constraints())
        };
        let is_old = stored.server != Some(self.server) || stored.last_response <= self.responses_before;
        // T43c: what is bound is known here by the parameters that it is for.
        let is_bound =
            stored.accepted.constraints().is_exact() && stored.last_response != self.response_number;
        let lacks =
            |constraints: &Constraints| self.users(stored).any(|parameters| constraints.matches(parameters));
        told.iter().any(is_it) || ((is_old || is_bound) && told.iter().flatten().any(lacks))
    }

    /// Whether a variant is used, and by nobody whose parameters none of these constraints match.
    pub(super) fn is_used_only_by<'m>(
        &self,
        stored: &StoredVariant,
        meant: impl Iterator<Item = &'m Constraints> + Clone,
    ) -> bool {
        let mut users = self.users(stored).peekable();
        users.peek().is_some() && users.all(|parameters| meant.clone().any(|meant| meant.matches(parameters)))
    }

    /// The parameters that a variant is watched with.
    fn users(&self, stored: &StoredVariant) -> impl Iterator<Item = &Parameters> {
        let mut watching = Vec::new();
        self.watched.watching(stored.accepted.name().as_str(), &mut watching);
        let constraints = stored.accepted.constraints().clone();
        let parameters = watching.into_iter().map(|at| &self.watched.entry(at).parameters);
        parameters.filter(move |parameters| constraints.matches(parameters))
    }

    /// S25: a full state names all there is. What is in it and not valid is there all the same
    /// (P1.6); so nothing is missing for certain while something cannot be told by name. What an
    /// error is told of is neither: that decides (S37, P1.15).
    pub(super) fn apply_absences(&mut self, errors: &[ReportedError]) {
        if self.applied.rejections.iter().any(|rejection| rejection.name.is_none()) {
            return;
        }
        let rejected: BTreeSet<_> =
            self.applied.rejections.iter().filter_map(|rejection| rejection.name.clone()).collect();
        let in_error: BTreeSet<_> = errors.iter().map(|error| error.name.clone()).collect();
        let is_in_error = |name: &ResourceName| {
            in_error.contains(name)
                || (!in_error.is_empty() && glob_of(name).is_some_and(|glob| in_error.contains(&glob)))
        };
        let bit = 1 << self.server;
        let (mut watching, mut gone) = (Vec::new(), BTreeSet::new());
        for (name, named) in &self.watched.names {
            let is_present = |stored: &StoredVariant| {
                stored.last_response == self.response_number
                    || self.changes.put.contains_key(&(name.clone(), stored.accepted.constraints().clone()))
            };
            let missing: Vec<_> = named.variants.iter().filter(|stored| !is_present(stored)).collect();
            if missing.is_empty() || rejected.contains(name) || is_in_error(name) {
                continue;
            }
            self.watched.watching(name.as_str(), &mut watching);
            let mut asked = watching.iter().map(|at| self.watched.entry(*at));
            if !asked.any(|entry| entry.subscribed_on & bit != 0 && self.serves(entry)) {
                continue;
            }
            for stored in missing {
                let key = (name.clone(), stored.accepted.constraints().clone());
                self.changes.removed.insert(key, RemovalReason::Missing);
            }
            gone.insert(name.clone());
        }
        // P1.7: of what was rejected there may be no variant, and its error is not what is wrong
        // with it any more. S37: nor is one that the server told and does not tell again. A variant
        // for other locators says nothing of these.
        let is_lost = |state: &ResourceState| match state.status {
            ResourceStatus::Nacked => true,
            ResourceStatus::ReceivedError => {
                state.error.as_ref().is_some_and(|error| error.code != Code::NOT_FOUND)
            }
            _ => false,
        };
        let told = self.watched.entries.iter().map(|(_, entry)| entry);
        let told = told.filter(|entry| entry.subscribed_on & bit != 0 && self.serves(entry));
        let states = told.flat_map(|entry| {
            let members = entry.members.iter().flat_map(|members| members.iter());
            members.chain(entry.members.is_none().then_some((&entry.name, &entry.state)))
        });
        let lost = states.filter(|(_, state)| is_lost(state)).map(|(name, _)| name);
        let lost = lost.filter(|name| !rejected.contains(*name) && !is_in_error(name));
        gone.extend(lost.cloned());
        self.absent.extend(gone.into_iter().map(|name| Removal { name, constraints: None }));
    }

    /// C15, T20: the variants of a name come from one server; those of another may not fit to them.
    pub(super) fn replace_other_servers(&mut self) {
        for (name, _) in self.new_variants.iter().map(|coming| &coming.key) {
            let Some(named) = self.watched.names.get(name) else { continue };
            // What a proxy restored is for those who did not come back yet, until they ask for it.
            let is_kept = |stored: &&StoredVariant| self.relay.is_some() && stored.server.is_none();
            let others = named.variants.iter().filter(|stored| stored.server != Some(self.server));
            for stored in others.filter(|stored| !is_kept(stored)) {
                let key = (name.clone(), stored.accepted.constraints().clone());
                if !self.changes.put.contains_key(&key) {
                    self.changes.removed.insert(key, RemovalReason::Replaced);
                }
            }
        }
    }
}
