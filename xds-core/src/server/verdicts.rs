//! What was sent of one type, what the client said about it, and how those who commit learn that.

use std::collections::BTreeSet;
use std::time::Duration;

use super::response::Verdict;
use super::responses::{ResponseContents, ResponsePart};
use super::retained::Retained;
use super::type_state::TypeState;
use crate::cache::{AckState, Membership, Snapshot};
use crate::name::{Nonce, Revision};
use crate::wire::ResourceKey;

impl TypeState {
    /// Notes a response and what it holds.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        snapshot: &Snapshot,
    ) {
        if self.responses.have_rejected_groups() {
            let mut responses = std::mem::take(&mut self.responses);
            responses.supersede(&contents, |key| self.is_live(key, snapshot));
            self.responses = responses;
        }
        self.responses.sent(now, nonce, contents, self.cursor());
    }

    /// The same for a response whose first part goes now.
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
            responses.supersede(contents, |key| self.is_live(key, snapshot));
        }
        responses.sent_first(now, nonce, contents, later_parts, self.cursor());
        self.responses = responses;
    }

    /// Up to which revision it was sent what it selects, or found to lack nothing.
    pub(super) fn cursor(&self) -> Revision {
        self.membership.as_ref().map_or(Revision::ZERO, Membership::cursor)
    }

    /// Lets those who commit know how far the client is. To be called when there is nothing more to
    /// send now, or not before the client has answered.
    pub(super) fn publish(&mut self, snapshot: &Snapshot) {
        let Some(ledger) = &self.ledger else { return };
        self.responses.forget_brought();
        let asks = self.membership.is_some();
        self.responses.reach(if asks { self.cursor() } else { snapshot.revision() });
        let is_held = !self.retained.is_empty();
        if !self.responses.take_news() && !is_held && !self.was_withholding {
            debug_assert_eq!(ledger.ack_state(), self.ack_state(snapshot));
            return;
        }
        self.was_withholding = is_held;
        ledger.update(self.ack_state(snapshot));
    }

    fn ack_state(&self, snapshot: &Snapshot) -> AckState {
        if self.membership.is_some() {
            let mut ack_state = self.responses.ack_state();
            // S33: what is held was not told.
            for retained in self.retained.values() {
                if let Retained::Withheld { removed_at, .. } = retained {
                    ack_state.pending.add_one(*removed_at);
                }
            }
            ack_state
        } else {
            // Nobody asks for it any more.
            AckState { sent: snapshot.revision(), ..AckState::default() }
        }
    }

    /// Books what the client says about a response; `None` when the nonce is not one that waits for
    /// its answer (D5). Neither an ACK nor a NACK causes a send (S6), but an ACK may leave
    /// something to be told again (D8).
    pub(super) fn book(
        &mut self,
        nonce: Nonce,
        error_detail: Option<String>,
    ) -> Option<(Verdict, BTreeSet<ResourceKey>)> {
        let type_url = self.type_url.clone();
        match error_detail {
            None => {
                let uncertain = self.responses.on_ack(nonce)?;
                Some((Verdict::Acked { type_url, nonce }, uncertain))
            }
            Some(detail) => {
                let is_known = self.responses.on_nack(nonce, &detail);
                self.forget_uncovered();
                is_known.then(|| (Verdict::Nacked { type_url, nonce, detail }, BTreeSet::new()))
            }
        }
    }
}
