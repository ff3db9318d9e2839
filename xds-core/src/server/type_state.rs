//! The state of one type on one stream, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use super::covering::{Coverage, has_as};
use super::encode::Encoding;
use super::holding::Holding;
use super::published::Published;
use super::refresh::TtlRefresh;
use super::request_names::RequestNames;
use super::responses::Responses;
use super::send_times::SendTimes;
use super::terms::Terms;
use super::waiting::Unknown;
use crate::cache::{Snapshot, TypeSelection, Watch};
use crate::name::{Revision, Version};
use crate::parameters::Parameters;
use crate::subscription::{Selection, Subscription};
use crate::variants::{KeyedBy, Variant};
use crate::wire::ResourceKey;

/// The state of one type on one stream.
#[derive(Debug)]
pub(super) struct TypeState {
    pub(super) terms: Terms,
    pub(super) subscription: Subscription,
    /// What the client has.
    pub(super) holding: Holding,
    /// The responses that were sent, with the client's ACKs and NACKs.
    pub(super) responses: Responses,
    /// SotW: the `version_info` of the last response; `None` before.
    pub(super) sent_version: Option<Version>,
    pub(super) names: RequestNames,
    pub(super) unknown: Unknown,
    pub(super) times: Times,
    pub(super) ttl_refresh: TtlRefresh,
    pub(super) published: Published,
    /// The revision of the last [`refresh`](Self::refresh).
    refreshed_at: Revision,
}

/// When something changed, and when it was sent.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Since when there are changes that were not sent (S33).
    pub(super) waiting_since: Option<Duration>,
    /// When each revision was sent.
    pub(super) send_times: SendTimes,
}

impl Times {
    /// Notes whether there are changes that were not sent.
    pub(super) fn note_changes(&mut self, now: Duration, has_changes: bool) {
        let since = self.waiting_since.unwrap_or(now);
        self.waiting_since = has_changes.then_some(since);
    }
}

impl TypeState {
    /// The state of a type that the client has just requested. `derived` are the parameters of
    /// plain names.
    pub(super) fn new(terms: Terms, derived: Parameters) -> Self {
        Self {
            terms,
            subscription: Subscription::new(derived),
            holding: Holding::default(),
            responses: Responses::default(),
            sent_version: None,
            names: RequestNames::default(),
            unknown: Unknown::default(),
            times: Times::default(),
            ttl_refresh: TtlRefresh::default(),
            published: Published::default(),
            refreshed_at: Revision::ZERO,
        }
    }

    /// Selects resources again after the subscription changed.
    ///
    /// Returns keys whose removal was withheld and that the client no longer subscribes to.
    pub(super) fn reselect(&mut self, watch: &Arc<Watch>) -> Vec<ResourceKey> {
        self.published.is_outdated = true;
        self.names.spelled.retain(|name, _| self.subscription.lists_name(name));
        let Some(selection) = TypeSelection::of(&self.subscription, self.terms.ttl, self.terms.scope.clone())
            .filter(|_| self.terms.is_served)
        else {
            self.holding.end();
            self.unknown.waiting.clear();
            self.responses.forget_rejected();
            return Vec::new();
        };
        // T25b: everything that was sent by name is sent again with constraints.
        if self.holding.select(selection, |selection| watch.join(&self.terms.type_url, selection)) {
            // T25: queued parts have the other form, and everything is sent again.
            self.responses.drop_queued();
            self.published.begin(watch.ledger(&self.terms.type_url));
        }
        if self.terms.is_on_demand
            && let Some(selection) = self.holding.selection_mut()
        {
            selection.index_subscription(&self.subscription);
        }
        if let Some(Selection::Names(names)) = self.holding.selection().and_then(|of| of.selection().single())
        {
            self.subscription.share(names);
        }
        self.forget_uncovered();
        let coverage = Coverage::new(&self.subscription, &self.terms, &self.holding);
        self.holding.retain(
            |key| coverage.has(key),
            |key, variant| has_as(key, variant, &self.subscription),
            self.subscription.is_wildcard(),
        )
    }

    /// Forgets the rejection of resources that the client no longer subscribes to.
    pub(super) fn forget_uncovered(&mut self) {
        let rejections = self.responses.rejections();
        if !rejections.is_empty() || rejections.are_uncertain() {
            let coverage = Coverage::new(&self.subscription, &self.terms, &self.holding);
            self.responses.rejections_mut().retain(|key| coverage.has(key));
        }
    }

    /// Whether the client ACKed everything that it was sent, and uses no other resources (S33).
    pub(super) fn is_clean(&self) -> bool {
        let responses = &self.responses;
        let rejections = responses.rejections();
        let is_open =
            !responses.in_flight().is_empty() || !rejections.is_empty() || rejections.are_uncertain();
        !is_open && !self.holding.has_removed()
    }

    /// Records the cursor if the state is clean (S33).
    pub(super) fn note_clean(&mut self) {
        if self.is_clean() {
            self.holding.note_clean();
        }
    }

    /// Updates the selection when the constraint keys that matter to it changed.
    pub(super) fn refresh(&mut self, snapshot: &Snapshot) {
        if snapshot.revision() == self.refreshed_at {
            return;
        }
        self.refreshed_at = snapshot.revision();
        self.published.is_outdated |= self.holding.refresh(snapshot);
    }

    /// How resources are encoded for the client.
    pub(super) fn encoding(&self) -> Encoding<'_> {
        Encoding { terms: &self.terms, keyed_by: self.keyed_by(), spelled: &self.names.spelled }
    }

    /// Whether the client gets resources by name alone or with constraints.
    pub(super) fn keyed_by(&self) -> KeyedBy {
        if self.subscription.knows_locators() { KeyedBy::Locator } else { KeyedBy::Name }
    }

    /// The key by which the client knows a variant.
    pub(super) fn key(&self, variant: &Variant) -> ResourceKey {
        variant.key(self.keyed_by())
    }

    /// Whether the first response was sent, or was found to be unnecessary.
    pub(super) fn is_answered(&self) -> bool {
        self.holding.cursor() > Revision::ZERO
    }

    /// Whether the client was not sent this variant yet.
    pub(super) fn is_unsent(&self, variant: &Arc<Variant>) -> bool {
        variant.changed_at > self.holding.cursor() && !self.holding.is_ahead_with(&self.key(variant), variant)
    }
}
