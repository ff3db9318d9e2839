//! The resources of a client, by type, with its ACKs and NACKs, for people (C20).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::entries::TypeEntry;
use super::stream::Stream;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::subscription;
use crate::variants::Variant;

/// The resources of one type to which a stream subscribes, sorted by name, each with its status.
#[derive(Debug, Clone)]
pub struct TypeReport {
    /// The type.
    pub type_url: TypeUrl,
    /// The variants that the stream gets, and the subscribed names that have none.
    pub resources: Vec<ResourceReport>,
}

/// One resource of one stream.
#[derive(Debug, Clone)]
pub struct ResourceReport {
    /// The name of the resource.
    pub name: ResourceName,
    /// The constraints of the variant. If there is none: which parameters get nothing, while other
    /// parameters get a variant.
    pub constraints: Constraints,
    /// The newest content, with its version as the stream gets it; `None` if there is no such
    /// resource. In SotW all content that was sent has the version of the last response of the type.
    /// Content that was not sent has the version that a delta client would get.
    pub content: Option<(Arc<Variant>, Version)>,
    /// Whether the client has this content.
    pub status: ReportStatus,
    /// Whether the client subscribes to this name, and not only to a wildcard, a glob or another name of
    /// the resource.
    pub is_named: bool,
}

/// Whether a client has the newest content of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportStatus {
    /// The content was not sent. The client may have an older one.
    NotSent,
    /// The content was sent, and the client did not answer. The stream is kept, however long that
    /// takes (G11).
    Stale,
    /// The content was sent and ACKed.
    Synced,
    /// The content was sent in a response that the client rejected.
    Rejected {
        /// The client's error message.
        detail: Arc<str>,
    },
}

impl Stream {
    /// The status of each resource of each type (C20), given the newest snapshot. Changes nothing.
    /// O(subscribed resources).
    pub fn report(&mut self, snapshot: &Snapshot) -> Vec<TypeReport> {
        self.enter(snapshot);
        let types = self.entries.iter_mut().map(|entry| {
            let TypeEntry { state, owed } = entry;
            state.refresh(snapshot);
            let resources = snapshot.of_type(&state.terms.type_url);
            // X12, D24: a subscribed glob or alias covers other names.
            let requested = owed.locators.names().flat_map(|name| resources.map(|of| of.selected_by(name)));
            let unanswered: BTreeSet<_> = requested.flatten().collect();
            TypeReport::of(state, |name| owed.everything || unanswered.contains(name), snapshot)
        });
        types.filter(|report| !report.resources.is_empty()).collect()
    }

    /// Whether the client rejected a response of a type that no later response corrected (D8).
    #[must_use]
    pub fn rejects(&self, type_url: &TypeUrl) -> bool {
        self.entries
            .of_type(type_url.as_str())
            .is_some_and(|entry| !entry.state.responses.rejections().is_empty())
    }

    /// The resources of the newest rejected response of a type, as far as they are still the
    /// newest. Call it when [a request](Self::on_request) was a NACK. O(subscribed resources).
    pub fn rejected(&mut self, type_url: &TypeUrl, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        self.enter(snapshot);
        let Some(TypeEntry { state, .. }) = self.entries.of_type(type_url.as_str()) else {
            return Vec::new();
        };
        let everything = state.holding.selection().map(|membership| membership.everything(snapshot));
        let was_rejected = |variant: &&Arc<Variant>| {
            state.responses.rejections().newest_has(&state.key(variant), variant.changed_at)
        };
        everything.iter().flat_map(|all| &all.changed).filter(was_rejected).cloned().collect()
    }

    /// Takes the only resource of the response of a type that was rejected last; `None` if the
    /// client may mean another one too, or without
    /// [`attributes_nacks`](super::StreamConfig::attributes_nacks).
    pub fn take_rejected_alone(&mut self, type_url: &TypeUrl) -> Option<Arc<Variant>> {
        self.entries.of_type_mut(type_url.as_str())?.state.responses.rejections_mut().take_alone()
    }
}

impl TypeReport {
    /// `owes` says whether the server owes an answer for a name.
    fn of(state: &TypeState, owes: impl Fn(&ResourceName) -> bool, snapshot: &Snapshot) -> Self {
        let type_url = state.terms.type_url.clone();
        let is_named = |name: &ResourceName| state.subscription.lists_name(name);
        let missing = |name: &ResourceName, constraints| {
            let (name, status, is_named) = (name.clone(), ReportStatus::NotSent, is_named(name));
            ResourceReport { name, constraints, content: None, status, is_named }
        };
        let Some(membership) = state.holding.selection() else {
            // G4: a client that subscribes to a type that is not served gets errors and no
            // resources.
            let selections: Vec<_> =
                state.subscription.selections().map(|(_, selection)| selection).collect();
            let names = selections.iter().flat_map(subscription::Selection::names);
            return Self {
                type_url,
                resources: names.map(|name| missing(name, Constraints::NONE)).collect(),
            };
        };
        let everything = membership.everything(snapshot);
        let present = |variant: &Arc<Variant>, is_sent: bool| {
            let version = state.sent_version.filter(|_| is_sent);
            let version = version.unwrap_or_else(|| variant.version_for(state.keyed_by()));
            ResourceReport {
                name: variant.name().clone(),
                constraints: variant.constraints().clone(),
                content: Some((Arc::clone(variant), version)),
                status: if is_sent { ReportStatus::of_sent(variant, state) } else { ReportStatus::NotSent },
                is_named: is_named(variant.name()),
            }
        };
        let is_sent = |variant: &Arc<Variant>| {
            state.is_answered() && !state.is_unsent(variant) && !owes(variant.name())
        };
        let selected = everything.changed.iter().map(|variant| present(variant, is_sent(variant)));
        // S33: the client still has a removed resource whose removal is withheld.
        let withheld = state.holding.withheld().map(|variant| present(variant, true));
        let absent = everything.absent.iter().filter(|name| !state.holding.withholds(name));
        let absent = absent.map(|name| missing(name, Constraints::NONE));
        let unmatched = everything.unmatched.iter();
        let unmatched = unmatched.map(|(name, constraints)| missing(name, constraints.clone()));
        let mut resources: Vec<_> = selected.chain(withheld).chain(absent).chain(unmatched).collect();
        resources.sort_by(|one, other| one.name.cmp(&other.name));
        Self { type_url, resources }
    }
}

impl ReportStatus {
    fn of_sent(variant: &Variant, state: &TypeState) -> Self {
        let key = state.key(variant);
        if state.responses.in_flight().has(&key) {
            return Self::Stale;
        }
        match state.responses.rejections().detail(&key) {
            Some(detail) => Self::Rejected { detail: Arc::clone(detail) },
            None => Self::Synced,
        }
    }
}

#[cfg(test)]
mod tests;
