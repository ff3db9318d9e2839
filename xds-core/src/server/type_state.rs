//! The state of one type on one stream, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::covering::{Coverage, has_as};
use super::encode::{self, Encoding};
use super::holding::Holding;
use super::in_flight::ResponsePart;
use super::published::Published;
use super::refresh::TtlRefresh;
use super::rejections::{Answer, NackOf};
use super::request_names::RequestNames;
use super::response::{Response, Verdict};
use super::responses::Responses;
use super::send_times::SendTimes;
use super::terms::Terms;
use super::waiting::Unknown;
use crate::cache::{Snapshot, Spans, TypeSelection, ViewId, Watch};
use crate::name::{Nonce, ResourceName, Revision, Version};
use crate::parameters::Parameters;
use crate::protocol::Protocol;
use crate::subscription::{Selection, Subscription, WILDCARD};
use crate::variants::{KeyedBy, Variant};
use crate::wire::{Body, ResourceKey};

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

    /// Notes that all changes up to a revision were sent: what comes later begins to wait then.
    pub(super) fn note_sent(&mut self, revision: Revision, now: Duration) {
        self.send_times.note(revision, now);
        self.waiting_since = None;
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
        self.unknown.keep(|locator| self.subscription.lists(locator));
        // T25b: everything that was sent by name is sent again with constraints.
        if self.holding.select(selection, |selection| watch.join(&self.terms.type_url, selection)) {
            // T25: queued parts have the other form, and everything is sent again.
            self.responses.drop_queued();
            self.responses.drop_parts();
            self.published.begin(watch.ledger(&self.terms.type_url));
        }
        // Before the subscription is indexed, which keeps its names.
        if let Some(Selection::Names(names)) = self.holding.selection().and_then(|of| of.selection().single())
        {
            self.subscription.share(names);
        }
        if self.terms.is_on_demand
            && let Some(selection) = self.holding.selection_mut()
        {
            selection.index_subscription(&self.subscription);
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
        if !self.responses.rejections().is_empty() {
            let coverage = Coverage::new(&self.subscription, &self.terms, &self.holding);
            self.responses.rejections_mut().retain(|key| coverage.has(key));
        }
    }

    /// Whether the client ACKed everything that it was sent, and uses no other resources (S33).
    pub(super) fn is_clean(&self) -> bool {
        let responses = &self.responses;
        let is_open = !responses.in_flight().is_empty() || !responses.rejections().is_empty();
        !is_open && !self.holding.has_removed()
    }

    /// Records the cursor if the state is clean (S33).
    pub(super) fn note_clean(&mut self) {
        if self.is_clean() {
            self.holding.note_clean();
        }
    }

    /// The stream sees another view, so its selection is in another class.
    pub(super) fn enter(&mut self, snapshot: &Snapshot) {
        self.responses.enter(snapshot.view() != ViewId::STABLE);
        self.refreshed_at = Revision::ZERO;
        self.refresh(snapshot);
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
        let is_ahead = || self.holding.is_ahead_with(&self.key(variant), variant);
        variant.changed_at > self.holding.cursor() && !(self.holding.has_exceptions() && is_ahead())
    }

    /// Records a response and returns it: the body of resources, and bodies that go with it. G10,
    /// D32: a response that is too large for one message is sent in parts. A full state cannot be,
    /// as a part would delete the other resources (T39).
    pub(super) fn send(
        &mut self,
        now: Duration,
        nonce: Nonce,
        version: Version,
        (resources, mut besides): (Arc<Body>, Vec<Arc<Body>>),
        contents: ResponseContents,
        snapshot: &Snapshot,
    ) -> Response {
        besides.extend(self.wildcard_errors());
        self.sent_version = (self.terms.protocol == Protocol::Sotw).then_some(version);
        let is_whole = matches!(contents, ResponseContents::FullState);
        let mut parts = if is_whole { vec![(resources, None)] } else { resources.parts() };
        let (first, mut after) = parts.remove(0);
        let first_contents = after.as_ref().map(|until| contents.part(None, Some(until)));
        let (mut bodies, mut later_parts) = (vec![first], Vec::new());
        for (body, until) in parts {
            let (contents, brings) = (contents.part(after.as_ref(), until.as_ref()), Spans::default());
            later_parts.push(ResponsePart { version, bodies: vec![body], contents, brings });
            after = until;
        }
        later_parts.last_mut().map_or(&mut bodies, |last| &mut last.bodies).extend(besides);
        let has_parts = !later_parts.is_empty() || self.responses.rejections().are_announced();
        self.sent(now, nonce, first_contents.unwrap_or(contents), later_parts, snapshot);
        self.terms.response(nonce, version, bodies, has_parts)
    }

    /// G4: the type is not served, so that a wildcard cannot be answered.
    pub(super) fn fail_wildcard(&mut self) {
        let name = ResourceName::from(WILDCARD);
        let wildcard = Some(&name).filter(|_| self.subscription.is_wildcard());
        self.unknown.wildcard_failures = self.terms.unserved(wildcard.into_iter());
    }

    /// Why wildcards cannot be answered; `None` if they can.
    pub(super) fn wildcard_errors(&self) -> Option<Arc<Body>> {
        let failures = &self.unknown.wildcard_failures;
        (!failures.is_empty()).then(|| Arc::new(encode::errors(self.encoding(), failures.iter())))
    }

    /// Records a response and its later parts.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        later_parts: Vec<ResponsePart>,
        snapshot: &Snapshot,
    ) {
        if !self.responses.rejections().is_empty() {
            let mut responses = std::mem::take(&mut self.responses);
            let is_live = |key: &ResourceKey| self.resolve(snapshot).with_key(key).is_some();
            responses.leave_rejections(Some(nonce), &contents, now, is_live);
            for later in &later_parts {
                responses.leave_rejections(None, &later.contents, now, is_live);
            }
            self.responses = responses;
        }
        self.responses.sent(now, nonce, contents, later_parts, self.holding.cursor());
    }

    /// The next part of a response that was too large for one message (D32).
    pub(super) fn next_part(&mut self, now: Duration, nonce: Nonce) -> Option<Response> {
        let ResponsePart { version, bodies, .. } = self.responses.next_part(now, nonce)?;
        let has_parts = self.responses.in_flight().has_parts() || self.responses.rejections().are_announced();
        Some(self.terms.response(nonce, version, bodies, has_parts))
    }

    /// Records an ACK or NACK. `None` when the nonce is not one of a response that waits for its
    /// answer (D5), and no NACK of one that was ACKed while the client tries a candidate (S8d). An ACK causes no
    /// response. After a NACK parts of the response are sent again (S6c).
    pub(super) fn record_answer(
        &mut self,
        now: Duration,
        nonce: Nonce,
        error_detail: Option<String>,
    ) -> Option<Verdict> {
        let (type_url, known) = (self.terms.type_url.clone(), self.terms.known);
        let Some(detail) = error_detail else {
            let is_known = self.responses.on_ack(nonce, &known);
            return is_known.then_some(Verdict::Acked { type_url, nonce });
        };
        let is_first_answer = self.responses.in_flight().has_nonce(nonce);
        let of = self.responses.on_nack(&Answer { nonce, detail: &detail, now, conflicts: known.conflicts });
        if of.is_some() && !is_first_answer {
            // S8d: what counted as accepted may not be in use, and what it replaced may be (S33).
            self.holding.forget_clean();
        }
        self.forget_uncovered();
        let nacked = |of| Verdict::Nacked { type_url, nonce, detail, is_repeat: of == NackOf::Repeat };
        of.map(nacked)
    }

    /// S6d: takes the contents that were rejected alone since the last call.
    pub(super) fn take_found(&mut self) -> Vec<Arc<Variant>> {
        if self.responses.rejections().is_empty() {
            return Vec::new();
        }
        self.responses.rejections_mut().take_found()
    }

    /// S6d: lets the split of a rejected response wait for another client's of the same names.
    pub(super) fn decide_turns(&mut self, watch: &Arc<Watch>) {
        if !self.responses.rejections().is_empty() {
            let splits = watch.cache().first_splits();
            let type_url = &self.terms.type_url;
            self.responses.rejections_mut().decide_turns(|names| splits.begin(type_url, names, watch));
        }
    }

    /// S6d: these contents were left out of a response. Each is sent in a response of its own.
    /// `had` says whether the client has another content of the name.
    pub(super) fn send_last(
        &mut self,
        left_out: &[Arc<Variant>],
        had: impl Fn(&Self, &Arc<Variant>) -> bool,
    ) {
        if left_out.is_empty() {
            return;
        }
        let mut about = Spans::default();
        left_out.iter().for_each(|variant| about.add_one(variant.changed_at));
        let left_out = left_out.iter().map(|variant| (self.key(variant), had(self, variant))).collect();
        let is_announced = self.terms.protocol == Protocol::Delta;
        self.responses.rejections_mut().leave_for_later(left_out, about, is_announced);
    }

    /// S6f: decides which rejections count now.
    pub(super) fn settle(&mut self, now: Duration) {
        if !self.responses.rejections().is_empty() {
            let is_withholding = self.holding.withheld_revisions().next().is_some();
            self.responses.settle(now, is_withholding, self.terms.known.conflicts);
        }
    }
}
