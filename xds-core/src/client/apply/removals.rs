//! Removals by a response: it names them, it is a full state without them, or its variants replace
//! those of another server.

use std::collections::{BTreeMap, BTreeSet};

use super::Applier;
use crate::client::cache_changes::{RemovalReason, VariantKey};
use crate::client::received::{Removal, ReportedError};
use crate::client::rejection::Rejection;
use crate::client::resource_state::{ResourceState, ResourceStatus};
use crate::client::watched_type::StoredVariant;
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::glob_of;

impl Applier<'_> {
    /// Removes the names and variants that the response lists as removed (D10, D11, T30b).
    pub(super) fn apply_removals(&mut self, removals: Vec<Removal>) {
        let mut by_name: BTreeMap<ResourceName, Vec<Option<Constraints>>> = BTreeMap::new();
        for removal in removals {
            // D14: the removal of an unknown name is ignored. P4.6: so is a removal by a server
            // that the authority of the name no longer uses.
            if !self.watched.names.contains_key(&removal.name) || !self.serves_name(&removal.name) {
                continue;
            }
            // D24: a name without any variant is not an alias either.
            if removal.constraints.is_none() {
                self.pending.orphans.extend(self.watched.remove_alias(&removal.name));
            }
            by_name.entry(removal.name.clone()).or_default().push(removal.constraints.clone());
            self.pending.absent.push(removal);
        }
        for (name, removals) in by_name {
            let Some(named) = self.watched.names.get(&name) else { continue };
            let is_removed = |stored: &&StoredVariant| self.is_removed(stored, &removals);
            let (kept, removed): (Vec<_>, Vec<_>) =
                named.variants.iter().filter(is_removed).partition(|stored| self.is_kept(stored));
            let kept: Vec<_> = kept.iter().map(|stored| stored.accepted.constraints().clone()).collect();
            let key = |name: &ResourceName, stored: &StoredVariant| {
                (name.clone(), stored.accepted.constraints().clone())
            };
            let mut keys: Vec<VariantKey> = removed.into_iter().map(|stored| key(&name, stored)).collect();
            // X13: the removal of a glob means that it has no members.
            let entries = named.entries.iter().map(|at| self.watched.entry(*at));
            let members =
                entries.filter_map(|entry| entry.members.as_ref()).flat_map(|members| members.keys());
            for member in members {
                let stored =
                    self.watched.names.get(member).map(|named| &named.variants[..]).unwrap_or_default();
                let unseen = stored.iter().filter(|stored| stored.last_response != self.head.number);
                keys.extend(unseen.map(|stored| key(member, stored)));
                self.pending.absent.push(Removal { name: member.clone(), constraints: None });
            }
            self.changes.removed.extend(keys.into_iter().map(|key| (key, RemovalReason::Explicit)));
            let named = self.watched.names.get_mut(&name);
            for stored in named.into_iter().flat_map(|named| &mut named.variants) {
                // The server does not know that the client has it.
                if kept.contains(stored.accepted.constraints()) {
                    stored.last_response = 0;
                }
            }
        }
    }

    /// P1.6, T31: whether a removed variant stays, because each watch that uses it would get a
    /// variant of this response that is rejected.
    fn is_kept(&self, stored: &StoredVariant) -> bool {
        let name = stored.accepted.name();
        let of_name = |rejection: &&Rejection| rejection.name.as_ref() == Some(name);
        let rejected: Vec<_> = self.applied.rejections.iter().filter(of_name).collect();
        let is_rejected =
            |parameters: &Parameters| rejected.iter().any(|of| of.constraints.matches(parameters));
        !rejected.is_empty() && self.users(stored).all(is_rejected)
    }

    /// Whether these removals of its name remove a variant.
    ///
    /// The constraints of a removal may differ from those of the variant: the server may have other
    /// constraints for a variant that came on another stream, or it removes the parameters of each
    /// locator that has no resource (T35). If such a removal matches the parameters of one watch
    /// that uses the variant, the variant no longer exists as it was, and is removed.
    fn is_removed(&self, stored: &StoredVariant, removals: &[Option<Constraints>]) -> bool {
        let is_it = |removed: &Option<Constraints>| {
            removed.as_ref().is_none_or(|constraints| constraints == stored.accepted.constraints())
        };
        let is_old =
            stored.server != Some(self.server) || stored.last_response <= self.sender().responses_before;
        // T43c: the client gave a bound variant constraints of its own, which the server does not
        // know.
        let is_bound = stored.accepted.constraints().is_exact() && stored.last_response != self.head.number;
        let lacks =
            |constraints: &Constraints| self.users(stored).any(|parameters| constraints.matches(parameters));
        removals.iter().any(is_it) || ((is_old || is_bound) && removals.iter().flatten().any(lacks))
    }

    /// Whether a variant is used, and these constraints match the parameters of every watch that
    /// uses it.
    pub(super) fn is_used_only_by(&self, stored: &StoredVariant, constraints: &Constraints) -> bool {
        let mut users = self.users(stored).peekable();
        users.peek().is_some() && users.all(|parameters| constraints.matches(parameters))
    }

    /// The parameters of the watches that use a variant.
    fn users(&self, stored: &StoredVariant) -> impl Iterator<Item = &Parameters> {
        let mut watching = Vec::new();
        self.watched.watching(stored.accepted.name().as_str(), &mut watching);
        let constraints = stored.accepted.constraints().clone();
        let parameters = watching.into_iter().map(|at| &self.watched.entry(at).parameters);
        parameters.filter(move |parameters| constraints.matches(parameters))
    }

    /// S25: removes the variants that a full state does not have.
    ///
    /// An invalid resource of the response exists all the same (P1.6). If the name of one is
    /// unknown, any of the missing names could be it, so nothing is removed. A name with an error
    /// in `resource_errors` is left to that error (S37, P1.15).
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
        let (mut watching, mut absent) = (Vec::new(), BTreeSet::new());
        for (name, named) in &self.watched.names {
            let is_present = |stored: &StoredVariant| {
                stored.last_response == self.head.number
                    || self.changes.put.contains_key(&(name.clone(), stored.accepted.constraints().clone()))
            };
            let missing: Vec<_> = named.variants.iter().filter(|stored| !is_present(stored)).collect();
            if missing.is_empty() || rejected.contains(name) || is_in_error(name) {
                continue;
            }
            self.watched.watching(name.as_str(), &mut watching);
            let mut entries = watching.iter().map(|at| self.watched.entry(*at));
            if !entries.any(|entry| entry.subscribed_on & bit != 0 && self.serves(entry)) {
                continue;
            }
            for stored in missing {
                let key = (name.clone(), stored.accepted.constraints().clone());
                self.changes.removed.insert(key, RemovalReason::Missing);
            }
            absent.insert(name.clone());
        }
        // The error of a watch may be out of date, although no variant is missing for it. P1.7: a
        // rejected resource that is not in this response was deleted. S37: an error that this
        // response does not repeat is over. A variant for other locators does not change this.
        let has_old_error = |state: &ResourceState| match state.status {
            ResourceStatus::Nacked => true,
            ResourceStatus::ReceivedError => {
                state.error.as_ref().is_some_and(|error| error.code != Code::NOT_FOUND)
            }
            _ => false,
        };
        let entries = self.watched.entries.iter().map(|(_, entry)| entry);
        let subscribed = entries.filter(|entry| entry.subscribed_on & bit != 0 && self.serves(entry));
        let states = subscribed.flat_map(|entry| {
            let members = entry.members.iter().flat_map(|members| members.iter());
            members.chain(entry.members.is_none().then_some((&entry.name, &entry.state)))
        });
        let outdated = states.filter(|(_, state)| has_old_error(state)).map(|(name, _)| name);
        let outdated = outdated.filter(|name| !rejected.contains(*name) && !is_in_error(name));
        absent.extend(outdated.cloned());
        self.pending.absent.extend(absent.into_iter().map(|name| Removal { name, constraints: None }));
    }

    /// C15, T20: removes the variants of other servers from the names that the response has. All
    /// variants of a name must come from one server, because those of two servers may overlap.
    pub(super) fn replace_other_servers(&mut self) {
        for (name, _) in self.pending.new_variants.iter().map(|new| &new.key) {
            let Some(named) = self.watched.names.get(name) else { continue };
            // A proxy keeps a restored variant until the clients it is for have subscribed again.
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
