//! What watchers see after a response is in the cache (P1, C9, C11).

use std::sync::Arc;

use super::Applier;
use crate::cache::{Snapshot, TypeSnapshot};
use crate::client::Protocol;
use crate::client::accepted::Accepted;
use crate::client::cache_changes::{CacheChanges, RemovalReason};
use crate::client::received::{Removal, ReportedError};
use crate::client::resource_failure::ResourceFailure;
use crate::client::resource_state::{ResourceState, ResourceStatus};
use crate::client::watched_type::StoredVariant;
use crate::client::{Touched, watch_id};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::resource::VariantId;
use crate::subscription::WILDCARD;
use crate::wire::CONTINUED;

/// Which states an event changes, among the watches whose parameters match the event.
#[derive(Clone, Copy)]
enum Affected<'s> {
    All,
    /// The states of watches that no variant matches.
    Unmatched(Option<&'s TypeSnapshot>),
}

impl Applier<'_> {
    /// Gives watchers the variants that match them now, and the errors of the response.
    pub(super) fn update_watchers(&mut self, snapshot: &Snapshot, errors: Vec<ReportedError>) {
        let mut changed_names = std::mem::take(&mut self.pending.changed_names);
        changed_names.dedup();
        for name in &changed_names {
            self.update_copies(name, snapshot);
        }
        for Removal { name, constraints } in std::mem::take(&mut self.pending.absent) {
            self.update_copies(&name, snapshot);
            let text =
                format!("{} reports that {:?} does not exist", self.sender().config.name, name.as_str());
            let (failure, policy) = (self.failure(Code::NOT_FOUND, text), self.sender().config.errors);
            let resources = snapshot.of_type(&self.watched.type_url);
            self.update_states(&name, constraints.as_ref(), Affected::Unmatched(resources), |state| {
                state.on_absence(Arc::clone(&failure), policy);
            });
        }
        // C9c: if the response removes a resource and also reports an error for it, the error
        // counts.
        for error in errors {
            self.apply_error(error);
        }
        for at in 0..self.applied.rejections.len() {
            let rejection = &self.applied.rejections[at];
            let Some(name) = rejection.name.clone() else { continue };
            let constraints =
                (!rejection.constraints.is_unconstrained()).then(|| rejection.constraints.clone());
            let mut failure = ResourceFailure::new(Code::INVALID_ARGUMENT, rejection.to_string(), self.now);
            failure.rejected_version = Some(Arc::clone(&self.head.version));
            let (failure, policy) = (Arc::new(failure), self.sender().config.errors);
            // C16: an invalid resource removes nothing if the authority of its name does not use
            // this server.
            if policy.fail_on_data_errors && self.serves_name(&name) {
                self.drop_variants(&name, constraints.as_ref());
            }
            self.update_states(&name, constraints.as_ref(), Affected::All, |state| {
                state.on_nack(Arc::clone(&failure), policy);
            });
        }
        self.mark_collections();
    }

    /// Applies an error that the server reported for a resource (C11, S37).
    fn apply_error(&mut self, error: ReportedError) {
        let ReportedError { name, constraints, code, message } = error;
        let constraints = (!constraints.is_unconstrained()).then_some(constraints);
        if name.as_str() == WILDCARD {
            self.pending.failed_wildcards.push(constraints.clone());
        }
        // G4: a proxy passes the message on to its clients unchanged.
        let text = if self.relay.is_some() { message } else { format!("{:?}: {message}", name.as_str()) };
        let failure = self.failure(code, text);
        if !self.serves_name(&name) {
            return;
        }
        // D28, C9b: a data error removes the variant from the cache, so a later watch gets no copy.
        if code.is_data_error() {
            self.drop_variants(&name, constraints.as_ref());
        }
        let policy = self.sender().config.errors;
        self.update_states(&name, constraints.as_ref(), Affected::All, |state| {
            state.on_error(Arc::clone(&failure), policy);
        });
    }

    /// Removes the variants of a name from the cache: all of them, or those that these constraints
    /// concern. Watchers may keep their copy.
    fn drop_variants(&mut self, name: &ResourceName, constraints: Option<&Constraints>) {
        let Some(named) = self.watched.names.get(name) else { return };
        // T36: the constraints of an error need not be those of a variant. A variant that is also
        // used by watches that the constraints do not match stays.
        let is_meant = |stored: &&StoredVariant| {
            constraints.is_none_or(|meant| {
                meant == stored.accepted.constraints() || self.is_used_only_by(stored, meant)
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
        let refused = changes.commit(self.cache, &self.watched.type_url, |_| false);
        let Some(named) = self.watched.names.get_mut(name) else { return };
        for ((name, constraints), _) in changes.removed {
            if let Ok(at) = named.position(&constraints) {
                named.variants.remove(at).forget_expiry(self.of_type, self.expiries);
            }
            let id = VariantId { type_url: self.watched.type_url.clone(), name, constraints };
            self.effects.accepted.retain(|accepted| accepted.id() != id);
            self.effects.removed.push(id);
        }
        debug_assert!(refused.is_empty(), "removals cannot make variants overlap");
    }

    /// Gives the watches of a name the variants that match them now. A name without a matching
    /// variant is no longer a member of a glob or wildcard.
    fn update_copies(&mut self, name: &ResourceName, snapshot: &Snapshot) {
        let resources = snapshot.of_type(&self.watched.type_url);
        let mut watching = Vec::new();
        self.watched.watching(name.as_str(), &mut watching);
        for at in watching {
            let entry = self.watched.entry(at);
            let stored = self.watched.resolve(name, &entry.parameters, resources);
            let is_new = stored.is_some_and(|stored| stored.last_response == self.head.number);
            let (accepted, server) =
                stored.map(|stored| (Arc::clone(&stored.accepted), stored.server)).unzip();
            let server = server.flatten();
            let has = |state: &ResourceState, accepted: &Arc<Accepted>| {
                state.copy.as_ref().is_some_and(|copy| Arc::ptr_eq(copy, accepted))
            };
            let entry = self.watched.entry_mut(at);
            let watch = watch_id(self.of_type, at);
            match (&mut entry.members, accepted) {
                // The server did not send it again, so its error stays.
                (None, Some(accepted)) if !is_new && has(&entry.state, &accepted) => {}
                (None, Some(accepted)) => {
                    entry.awaited = None;
                    let before = entry.state.view();
                    entry.state.on_resource(accepted);
                    entry.state.server = server;
                    if !before.is_same(&entry.state.view()) {
                        self.effects.touched.push(Touched { watch, member: None });
                    }
                }
                // Only a reported absence, an error or a timer takes the copy of a name away.
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
                        self.effects.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                    // P1.23: a new member ends an error of the whole glob.
                    let is_glob = entry.name.as_str() != WILDCARD;
                    if is_new && is_glob && entry.state.status == ResourceStatus::ReceivedError {
                        entry.state.status = ResourceStatus::Acked;
                        entry.state.error = None;
                        self.effects.touched.push(Touched { watch, member: None });
                    }
                }
                (Some(members), None) => {
                    // A member without a variant is dropped at once: A88 keeps copies of single
                    // names only.
                    if members.remove(name).is_some() {
                        self.effects.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                }
            }
        }
    }

    /// Changes the states of the watches of a name whose parameters match the constraints.
    fn update_states(
        &mut self,
        name: &ResourceName,
        constraints: Option<&Constraints>,
        affected: Affected<'_>,
        mut change: impl FnMut(&mut ResourceState),
    ) {
        let mut watching = Vec::new();
        self.watched.watching(name.as_str(), &mut watching);
        for at in watching {
            let entry = self.watched.entry(at);
            let is_meant = constraints.is_none_or(|constraints| constraints.matches(&entry.parameters));
            let is_spared = match affected {
                Affected::All => false,
                // X13: the removal of a glob means that it has no members, which is no error.
                Affected::Unmatched(_) if entry.is_collection() && entry.name == *name => true,
                // T35: the server did not know this subscription.
                Affected::Unmatched(_) if entry.subscribed_on & (1 << self.server) == 0 => true,
                Affected::Unmatched(resources) => {
                    self.head.late.contains(&watch_id(self.of_type, at))
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
                entry.awaited = None;
            }
            if is_touched {
                self.effects.touched.push(Touched { watch: watch_id(self.of_type, at), member });
            }
        }
    }

    /// Marks globs and wildcards as complete: those that the server knew when it made the response.
    fn mark_collections(&mut self) {
        // D32: the members are not complete while the server has more responses to send.
        let is_continued = self.sender().config.protocol == Protocol::Delta
            && self.head.version.as_bytes().last() == Some(&CONTINUED);
        if is_continued {
            return;
        }
        let bit = 1 << self.server;
        for at in self.watched.collections.clone() {
            let entry = self.watched.entry_mut(at);
            // C12: the response may be that to a name. Then the timer decides, if it still runs.
            if !self.head.is_for_collections && entry.state.status != ResourceStatus::Timeout {
                if let Some(awaited) = entry.awaited.as_mut().filter(|awaited| awaited.servers & bit != 0) {
                    awaited.is_perhaps_answered = true;
                }
                continue;
            }
            let is_decided = match entry.state.status {
                ResourceStatus::Acked => true,
                // S37: each response has the error of a wildcard again, until the wildcard is answered.
                ResourceStatus::ReceivedError if entry.is_wildcard() => {
                    let has_failed = |failed: &Option<Constraints>| {
                        failed.as_ref().is_none_or(|of| of.matches(&entry.parameters))
                    };
                    self.pending.failed_wildcards.iter().any(has_failed)
                }
                // P1.23: the error of an earlier stream ends with the answer on this one.
                ResourceStatus::ReceivedError => !entry.is_awaited_from(self.server),
                _ => false,
            };
            // The server made the response before it got this subscription (T35).
            let is_late = self.head.late.contains(&watch_id(self.of_type, at));
            if entry.subscribed_on & bit == 0 || is_decided || is_late {
                continue;
            }
            entry.awaited = None;
            entry.state.status = ResourceStatus::Acked;
            entry.state.error = None;
            self.effects.touched.push(Touched { watch: watch_id(self.of_type, at), member: None });
        }
    }
}
