//! Who is told what, once a response is in the cache (P1, C9, C11).

use std::sync::Arc;

use super::Applier;
use crate::cache::{Cache, Snapshot, TypeSnapshot};
use crate::client::Protocol;
use crate::client::accepted::Accepted;
use crate::client::cache_changes::{CacheChanges, RemovalReason};
use crate::client::received::ReportedError;
use crate::client::resource_failure::ResourceFailure;
use crate::client::resource_state::{ResourceState, ResourceStatus};
use crate::client::watched_type::StoredVariant;
use crate::client::{Effects, Touched, watch_id};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::resource::VariantId;
use crate::wire::CONTINUED;

/// Whose state an event changes, of those whose parameters it is about.
#[derive(Clone, Copy)]
enum Affected<'s> {
    All,
    /// Those for whom there is nothing.
    Unmatched(Option<&'s TypeSnapshot>),
}

impl Applier<'_> {
    /// Has watchers see what their parameters choose now, and hear why there is nothing.
    pub(super) fn update_watchers(
        &mut self,
        snapshot: &Snapshot,
        errors: Vec<ReportedError>,
        cache: &Cache,
        effects: &mut Effects,
    ) {
        let mut changed_names = std::mem::take(&mut self.changed_names);
        changed_names.dedup();
        for name in &changed_names {
            self.refresh(name, snapshot, effects);
        }
        for gone in std::mem::take(&mut self.absent) {
            self.refresh(&gone.name, snapshot, effects);
            let text = format!("{:?} does not exist, says {}", gone.name.as_str(), self.server_name);
            let (failure, policy) = (self.failure(Code::NOT_FOUND, text), self.policy);
            let resources = snapshot.of_type(&self.watched.type_url);
            self.update_states(
                &gone.name,
                gone.constraints.as_ref(),
                Affected::Unmatched(resources),
                effects,
                |state| {
                    state.on_absence(Arc::clone(&failure), policy);
                },
            );
        }
        // C9c: an error of what was also removed decides.
        for error in errors {
            self.apply_error(error, cache, effects);
        }
        for at in 0..self.applied.rejections.len() {
            let rejection = &self.applied.rejections[at];
            let Some(name) = rejection.name.clone() else { continue };
            let constraints =
                (!rejection.constraints.is_unconstrained()).then(|| rejection.constraints.clone());
            let mut failure = ResourceFailure::new(Code::INVALID_ARGUMENT, rejection.to_string(), self.now);
            failure.rejected_version = Some(Arc::clone(&self.version));
            let (failure, policy) = (Arc::new(failure), self.policy);
            // C16: what a server says of names that it is not asked for takes nothing away, however
            // wrong it is.
            if policy.fail_on_data_errors && self.serves_name(&name) {
                self.drop_variants(&name, constraints.as_ref(), cache, effects);
            }
            self.update_states(&name, constraints.as_ref(), Affected::All, effects, |state| {
                state.on_nack(Arc::clone(&failure), policy);
            });
        }
        self.mark_collections(effects);
    }

    /// C11, S37
    fn apply_error(&mut self, error: ReportedError, cache: &Cache, effects: &mut Effects) {
        let ReportedError { name, constraints, code, message } = error;
        let constraints = (!constraints.is_unconstrained()).then_some(constraints);
        // G4: a proxy hands it on as it came.
        let text = if self.relay.is_some() { message } else { format!("{:?}: {message}", name.as_str()) };
        let failure = self.failure(code, text);
        if !self.serves_name(&name) {
            return;
        }
        // D28, C9b: who asks for it from now on gets nothing.
        if code.is_data_error() {
            self.drop_variants(&name, constraints.as_ref(), cache, effects);
        }
        let policy = self.policy;
        self.update_states(&name, constraints.as_ref(), Affected::All, effects, |state| {
            state.on_error(Arc::clone(&failure), policy);
        });
    }

    fn drop_variants(
        &mut self,
        name: &ResourceName,
        constraints: Option<&Constraints>,
        cache: &Cache,
        effects: &mut Effects,
    ) {
        let Some(named) = self.watched.names.get(name) else { return };
        // T36: an error for some parameters names no variant; one that others use stays for them.
        let is_meant = |stored: &&StoredVariant| {
            constraints.is_none_or(|meant| {
                meant == stored.accepted.constraints() || self.is_used_only_by(stored, std::iter::once(meant))
            })
        };
        let mut changes = CacheChanges::default();
        for stored in named.variants.iter().filter(is_meant) {
            changes
                .removed
                .insert((name.clone(), stored.accepted.constraints().clone()), RemovalReason::Explicit);
        }
        if changes.removed.is_empty() {
            return;
        }
        let refused = changes.commit(cache, &self.watched.type_url, |_| false);
        let Some(named) = self.watched.names.get_mut(name) else { return };
        for ((name, constraints), _) in changes.removed {
            if let Ok(at) = named.position(&constraints) {
                self.ended_expiries.extend(named.variants.remove(at).expiry());
            }
            let id = VariantId { type_url: self.watched.type_url.clone(), name, constraints };
            effects.accepted.retain(|accepted| accepted.id() != id);
            effects.removed.push(id);
        }
        debug_assert!(refused.is_empty(), "taking variants away leaves no two that overlap");
    }

    /// Who watches a name sees what its parameters choose; members that are gone are gone.
    fn refresh(&mut self, name: &ResourceName, snapshot: &Snapshot, effects: &mut Effects) {
        let resources = snapshot.of_type(&self.watched.type_url);
        let mut watching = Vec::new();
        self.watched.watching(name.as_str(), &mut watching);
        for at in watching {
            let entry = self.watched.entry(at);
            let stored = self.watched.resolve(name, &entry.parameters, resources);
            let is_new = stored.is_some_and(|stored| stored.last_response == self.response_number);
            let (accepted, server) =
                stored.map(|stored| (Arc::clone(&stored.accepted), stored.server)).unzip();
            let server = server.flatten();
            let has = |state: &ResourceState, accepted: &Arc<Accepted>| {
                state.copy.as_ref().is_some_and(|copy| Arc::ptr_eq(copy, accepted))
            };
            let entry = self.watched.entry_mut(at);
            let watch = watch_id(self.of_type, at);
            match (&mut entry.members, accepted) {
                // What is wrong with it stands until something is said of it.
                (None, Some(accepted)) if !is_new && has(&entry.state, &accepted) => {}
                (None, Some(accepted)) => {
                    entry.deadline = None;
                    let before = entry.state.view();
                    entry.state.on_resource(accepted);
                    entry.state.server = server;
                    if !before.is_same(&entry.state.view()) {
                        effects.touched.push(Touched { watch, member: None });
                    }
                }
                // It stays as it is until something is said of it.
                (None, None) => {}
                (Some(members), Some(accepted)) => {
                    let member = members.entry(name.clone()).or_default();
                    if !is_new && has(member, &accepted) {
                        continue;
                    }
                    let before = member.view();
                    member.on_resource(accepted);
                    member.server = server;
                    if !before.is_same(&member.view()) {
                        effects.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                    // P1.23: an error of all of it stands until something of it comes.
                    if is_new && entry.state.status == ResourceStatus::ReceivedError {
                        entry.state.status = ResourceStatus::Acked;
                        entry.state.error = None;
                        effects.touched.push(Touched { watch, member: None });
                    }
                }
                (Some(members), None) => {
                    // What belongs to a set is what the server says, so nothing is kept (A88 speaks
                    // of single names).
                    if members.remove(name).is_some() {
                        effects.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                }
            }
        }
    }

    /// Changes the states of those who watch a name and whose parameters match.
    fn update_states(
        &mut self,
        name: &ResourceName,
        constraints: Option<&Constraints>,
        affected: Affected<'_>,
        effects: &mut Effects,
        mut change: impl FnMut(&mut ResourceState),
    ) {
        let mut watching = Vec::new();
        self.watched.watching(name.as_str(), &mut watching);
        for at in watching {
            let entry = self.watched.entry(at);
            let is_meant = constraints.is_none_or(|constraints| constraints.matches(&entry.parameters));
            let is_spared = match affected {
                Affected::All => false,
                // X13: of a glob this says that it has no members.
                Affected::Unmatched(_) if entry.is_collection() && entry.name == *name => true,
                Affected::Unmatched(resources) => {
                    self.late.contains(&watch_id(self.of_type, at))
                        || self.watched.resolve(name, &entry.parameters, resources).is_some()
                }
            };
            if !is_meant || is_spared || !self.serves(entry) {
                continue;
            }
            let entry = self.watched.entry_mut(at);
            let is_own = entry.name == *name;
            let (state, member) = match &mut entry.members {
                Some(members) if !is_own => match members.get_mut(name) {
                    Some(state) => (state, Some(name.clone())),
                    None => continue,
                },
                Some(_) | None => (&mut entry.state, None),
            };
            let before = state.view();
            change(state);
            state.server = Some(self.server);
            let is_touched = !before.is_same(&state.view());
            if member.is_none() {
                entry.deadline = None;
            }
            if is_touched {
                effects.touched.push(Touched { watch: watch_id(self.of_type, at), member });
            }
        }
    }

    /// A glob or wildcard is known once a response came that was made when the server knew of it.
    fn mark_collections(&mut self, effects: &mut Effects) {
        // D32: what is to come is known to be missing.
        if self.protocol == Protocol::Delta && self.version.as_bytes().last() == Some(&CONTINUED) {
            return;
        }
        let bit = 1 << self.server;
        for at in self.watched.collections.clone() {
            let entry = self.watched.entry_mut(at);
            let is_settled =
                matches!(entry.state.status, ResourceStatus::Acked | ResourceStatus::ReceivedError);
            if entry.subscribed_on & bit == 0 || is_settled {
                continue;
            }
            entry.deadline = None;
            entry.state.status = ResourceStatus::Acked;
            entry.state.error = None;
            effects.touched.push(Touched { watch: watch_id(self.of_type, at), member: None });
        }
    }
}
