//! The resources of a client, by type, with its ACKs and NACKs, for people (C20).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::entries::TypeEntry;
use super::rejections::{Among, CountedRejection, RejectedAmong, RejectedOf};
use super::stream::Stream;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::subscription;
use crate::variants::Variant;
use crate::wire::ResourceKey;

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
        /// The message is about some of so many resources: 1 means this one, which was rejected alone (S6c).
        among: usize,
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

    /// What the client rejects of a type. O(rejected resources), and O(subscribed resources) after a
    /// NACK of a full state.
    pub fn rejected(&mut self, type_url: &TypeUrl, snapshot: &Snapshot) -> Suspects {
        self.enter(snapshot);
        let Some(TypeEntry { state, .. }) = self.entries.of_type(type_url.as_str()) else {
            return Suspects::default();
        };
        let rejections = state.responses.rejections();
        let mut rejected = state.newest_of(rejections.keys(), snapshot);
        if rejections.have_full_state() {
            let everything = state.holding.selection().map(|membership| membership.everything(snapshot));
            let all = everything.iter().flat_map(|all| &all.changed);
            let is_rejected = |variant: &&Arc<Variant>| state.is_rejected(variant);
            rejected.extend(all.filter(is_rejected).cloned());
        }
        Suspects { is_certain: rejections.are_certain(), variants: rejected }
    }

    /// Whether the client rejects anything of any type.
    #[must_use]
    pub fn has_rejections(&self) -> bool {
        self.entries.states().any(|state| !state.responses.rejections().is_empty())
    }

    /// Takes the rejections that count since the last call (S6f). Call it after [`next`](Self::next), if the
    /// stream [has any](Self::has_rejections).
    pub fn take_rejections(&mut self, snapshot: &Snapshot) -> Vec<Rejection> {
        let mut taken = Vec::new();
        for state in self.entries.states_mut().filter(|state| !state.responses.rejections().is_empty()) {
            for CountedRejection { of, is_found, detail } in state.responses.rejections_mut().take_counted() {
                let variants: Vec<_> = match &of {
                    RejectedOf::One(keys) | RejectedOf::Some(keys) => state.newest_of(keys, snapshot),
                    RejectedOf::FullState(Some(alone), _) => vec![Arc::clone(alone)],
                    RejectedOf::FullState(None, about) => {
                        let everything = state.holding.selection().map(|of| of.everything(snapshot));
                        let all = everything.iter().flat_map(|all| &all.changed);
                        all.filter(|variant| about.cover(variant.changed_at)).cloned().collect()
                    }
                };
                let is_alone = matches!(of, RejectedOf::One(_) | RejectedOf::FullState(Some(_), _));
                let type_url = state.terms.type_url.clone();
                let is_alone = is_alone && variants.len() == 1;
                taken.push(Rejection { type_url, variants, is_alone, is_found, detail });
            }
        }
        taken
    }
}

/// The resources that a client may mean when it rejects responses.
#[derive(Debug, Default)]
pub struct Suspects {
    /// The variants, as far as they are still the newest content.
    pub variants: Vec<Arc<Variant>>,
    /// Whether the client rejected each of them in a response of its own (S6c). Otherwise it means some of
    /// them.
    pub is_certain: bool,
}

/// A rejection that counts (S6f): the server has found out as much as it can.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The type.
    pub type_url: TypeUrl,
    /// What the client rejects, as far as it is still the newest content. If there are several variants,
    /// some of them.
    pub variants: Vec<Arc<Variant>>,
    /// Whether the client rejected the only variant in a response of its own, so that it means this one.
    pub is_alone: bool,
    /// Whether the client rejected it among others first, so that only parts showed it (S6c).
    pub is_found: bool,
    /// The client's error message.
    pub detail: Arc<str>,
}

impl TypeState {
    /// The variants under these keys, as far as the client was sent the newest content.
    pub(super) fn newest_of<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k ResourceKey>,
        snapshot: &Snapshot,
    ) -> Vec<Arc<Variant>> {
        let found = keys.into_iter().filter_map(|key| self.resolve(snapshot).with_key(key));
        found.filter(|variant| !self.is_unsent(variant)).cloned().collect()
    }

    fn is_rejected(&self, variant: &Variant) -> bool {
        self.responses.rejections().has(&self.key(variant), variant.changed_at)
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
        let in_full_state = match state.responses.rejections().have_full_state() {
            true => everything.changed.iter().filter(|variant| state.is_rejected(variant)).count(),
            false => 0,
        };
        let present = |variant: &Arc<Variant>, is_sent: bool| {
            let version = state.sent_version.filter(|_| is_sent);
            let version = version.unwrap_or_else(|| variant.version_for(state.keyed_by()));
            ResourceReport {
                name: variant.name().clone(),
                constraints: variant.constraints().clone(),
                content: Some((Arc::clone(variant), version)),
                status: if is_sent {
                    ReportStatus::of_sent(variant, state, in_full_state)
                } else {
                    ReportStatus::NotSent
                },
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
    /// The client's error message, with the number of resources that it may be about; `None` if the content
    /// was not rejected.
    #[must_use]
    pub fn rejection(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Rejected { detail, among: 0 | 1 } => Some(Cow::Borrowed(detail)),
            Self::Rejected { detail, among } => {
                let text = format!("about some of {among} resources that were rejected together: {detail}");
                Some(Cow::Owned(text))
            }
            Self::NotSent | Self::Stale | Self::Synced => None,
        }
    }

    /// `in_full_state` is how many resources a rejected full state may be about.
    fn of_sent(variant: &Variant, state: &TypeState, in_full_state: usize) -> Self {
        let (key, rejections) = (state.key(variant), state.responses.rejections());
        if state.responses.in_flight().has(&key) || rejections.is_waiting(&key) {
            return Self::Stale;
        }
        let Some(RejectedAmong { detail, among }) = rejections.detail(&key, variant.changed_at) else {
            return Self::Synced;
        };
        let among = match among {
            Among::One => 1,
            Among::These(names) => names,
            Among::FullState => in_full_state,
        };
        Self::Rejected { detail, among }
    }
}

#[cfg(test)]
mod tests;
