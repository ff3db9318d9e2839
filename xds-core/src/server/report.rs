//! What a stream has of each type and what its client said about that, for people (C20).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::retained::Retained;
use super::stream::{Owed, Stream, TypeEntry};
use super::type_state::{TypeState, is_sent};
use crate::cache::Snapshot;
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::subscription;
use crate::variants::Variant;

/// What one stream asks for of one type, and how far each resource has come. By name.
#[derive(Debug, Clone)]
pub struct TypeReport {
    /// The type.
    pub type_url: TypeUrl,
    /// Each variant that the stream gets, and what it asks for and does not get.
    pub resources: Vec<ResourceReport>,
}

/// One resource of one stream.
#[derive(Debug, Clone)]
pub struct ResourceReport {
    /// The name that was asked for.
    pub name: ResourceName,
    /// Whom the variant is for; where there is none, the parameters that get nothing while others
    /// get something.
    pub constraints: Constraints,
    /// The newest content with its version as the stream is told it; `None` when there is no such
    /// resource.
    pub content: Option<(Arc<Variant>, Version)>,
    /// What the client has of that.
    pub status: ReportStatus,
}

/// What a client has of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportStatus {
    /// Not this content; perhaps an older one.
    NotSent,
    /// It was sent, and the client did not answer. However long that takes, its stream is kept
    /// (G11).
    Stale,
    /// It was sent, and ACKed.
    Synced,
    /// It was sent with a response that the client rejected.
    Rejected {
        /// The client's own words.
        detail: Arc<str>,
    },
}

impl<O: Owed> Stream<O> {
    /// How far the client is, given the newest snapshot. O(what it asks for).
    pub(super) fn report(&mut self, snapshot: &Snapshot) -> Vec<TypeReport> {
        let types = self.entries_mut().iter_mut().map(|entry| {
            let TypeEntry { state, owed } = entry;
            state.refresh(snapshot);
            let resources = snapshot.of_type(&state.type_url);
            // X12, D24: what is asked for may stand for other names.
            let requested = owed.names().flat_map(|name| resources.map(|of| of.asked_by(name)));
            let unanswered: BTreeSet<_> = requested.flatten().collect();
            state.report(|name| owed.owes_everything() || unanswered.contains(name), snapshot)
        });
        types.filter(|report| !report.resources.is_empty()).collect()
    }

    /// What the response of a type held that the client rejected last, as far as it is still the
    /// newest content.
    pub(super) fn rejected(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        let entry = self.of_type(type_url.as_str());
        entry.map(|entry| entry.state.rejected(snapshot)).unwrap_or_default()
    }
}

impl TypeState {
    fn report(&self, owes: impl Fn(&ResourceName) -> bool, snapshot: &Snapshot) -> TypeReport {
        let type_url = self.type_url.clone();
        let missing = |name: &ResourceName, constraints| {
            let (name, status) = (name.clone(), ReportStatus::NotSent);
            ResourceReport { name, constraints, content: None, status }
        };
        let Some(membership) = &self.membership else {
            // G4: who asks for a type that is not served is told so, and gets nothing.
            let selections: Vec<_> = self.subscription.selections().map(|(_, selection)| selection).collect();
            let names = selections.iter().flat_map(subscription::Selection::names);
            return TypeReport {
                type_url,
                resources: names.map(|name| missing(name, Constraints::NONE)).collect(),
            };
        };
        let everything = membership.everything(snapshot);
        let present = |variant: &Arc<Variant>, status| ResourceReport {
            name: variant.name().clone(),
            constraints: variant.constraints().clone(),
            content: Some((Arc::clone(variant), variant.version_in(self.form()))),
            status,
        };
        let selected = everything.changed.iter().map(|variant| {
            let is_sent = self.has_reached(variant) && !owes(variant.name());
            present(variant, if is_sent { self.answer_to(variant) } else { ReportStatus::NotSent })
        });
        // S33: what no longer exists and was not told to be gone is still what the client has.
        let withheld = self.retained.values().filter_map(|retained| match retained {
            Retained::Withheld { variant: Some(variant), .. } => {
                Some(present(variant, self.answer_to(variant)))
            }
            Retained::Withheld { variant: None, .. } | Retained::RemovalSent { .. } => None,
        });
        let absent = everything.absent.iter().filter(|name| !self.withholds(name));
        let absent = absent.map(|name| missing(name, Constraints::NONE));
        let unmatched = everything.unmatched.iter();
        let unmatched = unmatched.map(|(name, constraints)| missing(name, constraints.clone()));
        let mut resources: Vec<_> = selected.chain(withheld).chain(absent).chain(unmatched).collect();
        resources.sort_by(|one, other| one.name.cmp(&other.name));
        TypeReport { type_url, resources }
    }

    fn rejected(&self, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        let Some(membership) = &self.membership else { return Vec::new() };
        let everything = membership.everything(snapshot);
        let was_rejected = |variant: &&Arc<Variant>| {
            self.responses.was_rejected_last(&self.key(variant), variant.changed_at)
        };
        everything.changed.iter().filter(was_rejected).cloned().collect()
    }

    /// Whether the stream is as far as the commit that brought a content.
    fn has_reached(&self, variant: &Arc<Variant>) -> bool {
        let cursor = self.cursor();
        cursor > Revision::ZERO && (variant.changed_at <= cursor || is_sent(&self.sent_ahead, variant))
    }

    /// What the client said of what it was sent last of a variant.
    fn answer_to(&self, variant: &Variant) -> ReportStatus {
        let key = self.key(variant);
        if self.responses.are_in_flight_with(&key) {
            return ReportStatus::Stale;
        }
        match self.responses.complaint(&key) {
            Some(detail) => ReportStatus::Rejected { detail: Arc::clone(detail) },
            None => ReportStatus::Synced,
        }
    }
}

#[cfg(test)]
mod tests;
