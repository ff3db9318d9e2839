//! What others know about one type of a stream.

use std::sync::Arc;

use super::holding::Holding;
use super::responses::Responses;
use crate::cache::{AckState, Ledger, Snapshot};

/// What others know about a type: programs that commit, and the other streams of the client.
#[derive(Debug)]
pub(super) struct Published {
    /// Where programs that commit read the ACKs and NACKs; `None` until the first subscription.
    ledger: Option<Arc<Ledger>>,
    /// Whether anything was retained when the ledger was last updated.
    was_retaining: bool,
    /// Whether the other streams of the client know an older selection than this one.
    pub(super) is_outdated: bool,
}

impl Default for Published {
    fn default() -> Self {
        Self { ledger: None, was_retaining: false, is_outdated: true }
    }
}

impl Published {
    /// The client subscribed, so from now on this ledger has its ACKs and NACKs.
    pub(super) fn begin(&mut self, ledger: Arc<Ledger>) {
        self.ledger = Some(ledger);
    }

    /// Updates the ledger, in which programs that commit see what the client has ACKed. Called when
    /// there is nothing more to send now, or nothing before the client has answered.
    pub(super) fn update(&mut self, holding: &Holding, responses: &mut Responses, snapshot: &Snapshot) {
        let Some(ledger) = &self.ledger else { return };
        responses.forget_brought();
        responses.reach(if holding.is_selecting() { holding.cursor() } else { snapshot.revision() });
        let is_retaining = holding.has_removed();
        if !responses.take_news() && !is_retaining && !self.was_retaining {
            debug_assert_eq!(ledger.ack_state(), ack_state(holding, responses));
            return;
        }
        self.was_retaining = is_retaining;
        ledger.update(ack_state(holding, responses));
    }
}

fn ack_state(holding: &Holding, responses: &Responses) -> AckState {
    if !holding.is_selecting() {
        // The client no longer subscribes to the type, and waits for nothing.
        return AckState { sent: responses.ack_state().sent, ..AckState::default() };
    }
    let mut ack_state = responses.ack_state();
    // S33: a withheld removal was not sent.
    holding.withheld_revisions().for_each(|removed_at| ack_state.withheld.add_one(removed_at));
    ack_state
}
