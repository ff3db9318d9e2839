//! The responses that were sent for one type, the client's ACKs and NACKs, and the ledger in which
//! programs that commit read them.

use std::time::Duration;

use super::response::Verdict;
use super::responses::{ResponseContents, ResponsePart};
use super::type_state::TypeState;
use crate::cache::{AckState, Snapshot};
use crate::name::{Nonce, Revision};

impl TypeState {
    /// Records a response and its contents.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        snapshot: &Snapshot,
    ) {
        if self.responses.rejections().have_groups() {
            let mut responses = std::mem::take(&mut self.responses);
            responses
                .rejections_mut()
                .supersede(&contents, |key| self.resolve(snapshot).with_key(key).is_some());
            self.responses = responses;
        }
        self.responses.sent(now, nonce, contents, self.cursor());
    }

    /// Records a response in parts, of which the first is sent now.
    pub(super) fn sent_first(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        later_parts: Vec<ResponsePart>,
        snapshot: &Snapshot,
    ) {
        let mut responses = std::mem::take(&mut self.responses);
        for contents in std::iter::once(&contents).chain(later_parts.iter().map(|part| &part.contents)) {
            responses
                .rejections_mut()
                .supersede(contents, |key| self.resolve(snapshot).with_key(key).is_some());
        }
        responses.sent_first(now, nonce, contents, later_parts, self.cursor());
        self.responses = responses;
    }

    /// The revision up to which the client was sent its selection, or needed nothing.
    pub(super) fn cursor(&self) -> Revision {
        self.holding.cursor()
    }

    /// Updates the ledger, in which programs that commit see what the client has ACKed. Called when
    /// there is nothing more to send now, or nothing before the client has answered.
    pub(super) fn publish(&mut self, snapshot: &Snapshot) {
        let Some(ledger) = &self.published.ledger else { return };
        self.responses.forget_brought();
        let asks = self.holding.is_selecting();
        self.responses.reach(if asks { self.cursor() } else { snapshot.revision() });
        let is_retaining = self.holding.has_removed();
        if !self.responses.take_news() && !is_retaining && !self.published.was_retaining {
            debug_assert_eq!(ledger.ack_state(), self.ack_state(snapshot));
            return;
        }
        self.published.was_retaining = is_retaining;
        ledger.update(self.ack_state(snapshot));
    }

    fn ack_state(&self, snapshot: &Snapshot) -> AckState {
        if self.holding.is_selecting() {
            let mut ack_state = self.responses.ack_state();
            // S33: a withheld removal was not sent.
            for removed_at in self.holding.withheld_revisions() {
                ack_state.pending.add_one(removed_at);
            }
            ack_state
        } else {
            // The client no longer subscribes to the type.
            AckState { sent: snapshot.revision(), ..AckState::default() }
        }
    }

    /// Records an ACK or NACK. `None` when the nonce is not one of a response that waits for its
    /// answer (D5). Neither an ACK nor a NACK causes a response (S6), but after an ACK some
    /// resources may have to be sent again (D8).
    pub(super) fn record_answer(&mut self, nonce: Nonce, error_detail: Option<String>) -> Option<Verdict> {
        let type_url = self.terms.type_url.clone();
        match error_detail {
            None => self
                .responses
                .on_ack(nonce, self.terms.protocol)
                .then_some(Verdict::Acked { type_url, nonce }),
            Some(detail) => {
                let is_known = self.responses.on_nack(nonce, &detail);
                self.forget_uncovered();
                is_known.then_some(Verdict::Nacked { type_url, nonce, detail })
            }
        }
    }
}
