//! A name that a client rejected in a response of its own (S6e, S6f).

use std::collections::BTreeSet;
use std::time::Duration;

use super::Nack;
use super::split::{SplitId, Standing};
use crate::name::Nonce;
use crate::wire::ResourceKey;

/// A name that the client rejected alone, until a later response corrects it.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) keys: BTreeSet<ResourceKey>,
    pub(super) nack: Nack,
    /// The split that found it; `None` if its response had no other name.
    pub(super) split: Option<SplitId>,
    /// The response that was rejected last.
    nonce: Nonce,
    /// When the client rejected it first, perhaps among others.
    pub(super) nacked_at: Duration,
    /// When the client rejected it last.
    rejected_at: Duration,
    resend: Resend,
    /// How long the next resend waits after the last rejection.
    back_off: Duration,
    /// Whether its revisions count as rejected (S6f).
    pub(super) counts: bool,
    /// Whether observers know that it counts.
    pub(super) is_reported: bool,
}

/// Whether a name is sent once more because there may be room for it now (S6e).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resend {
    None,
    At(Duration),
    /// In the response with this nonce.
    Sent(Nonce),
}

impl Alone {
    /// Rejected now, in the response with this nonce. `nacked_at` is when the client rejected it first.
    pub(super) fn new(
        keys: BTreeSet<ResourceKey>,
        nack: Nack,
        split: Option<SplitId>,
        nonce: Nonce,
        (nacked_at, now): (Duration, Duration),
    ) -> Self {
        Self {
            keys,
            nack,
            split,
            nonce,
            nacked_at,
            rejected_at: now,
            resend: Resend::None,
            back_off: BACK_OFF,
            counts: false,
            is_reported: false,
        }
    }

    /// S6e: a response that removed or changed something was answered. If it was sent after this name was
    /// rejected, there may be room now.
    pub(super) fn on_room(&mut self, nonce: Nonce) {
        if self.nonce < nonce && self.resend == Resend::None {
            self.resend = Resend::At(self.rejected_at + self.back_off);
        }
    }

    /// When it is sent once more.
    pub(super) fn resend_at(&self) -> Option<Duration> {
        match self.resend {
            Resend::At(at) => Some(at),
            Resend::None | Resend::Sent(_) => None,
        }
    }

    /// Whether there is something to send once more, and nothing newer waits.
    pub(super) fn may_be_resent(&self, standing: &impl Fn(&ResourceKey) -> Standing) -> bool {
        let mut is_live = false;
        for key in &self.keys {
            match standing(key) {
                Standing::Waits => return false,
                Standing::Live | Standing::Known => is_live = true,
                Standing::Removed | Standing::Gone => {}
            }
        }
        is_live
    }

    pub(super) fn on_resent(&mut self, nonce: Nonce) {
        self.resend = Resend::Sent(nonce);
        self.back_off = (self.back_off * 2).min(BACK_OFF_LIMIT);
    }

    /// Whether it is in the response with this nonce once more.
    pub(super) fn is_resent_in(&self, nonce: Nonce) -> bool {
        self.resend == Resend::Sent(nonce)
    }

    /// The client rejected it once more.
    pub(super) fn on_nack(&mut self, nonce: Nonce, detail: &str, now: Duration) {
        (self.nonce, self.rejected_at, self.resend) = (nonce, now, Resend::None);
        self.nack.detail = detail.into();
    }

    /// Forgets a resend that the client will not answer.
    pub(super) fn keep_resend(&mut self, is_in_flight: impl Fn(Nonce) -> bool) {
        if matches!(self.resend, Resend::Sent(nonce) if !is_in_flight(nonce)) {
            self.resend = Resend::None;
        }
    }

    /// Another response has the name, so no resend is due.
    pub(super) fn cancel_resend(&mut self) {
        if matches!(self.resend, Resend::At(_)) {
            self.resend = Resend::None;
        }
    }

    /// Whether a resend is due, or not answered yet.
    pub(super) fn is_resending(&self) -> bool {
        self.resend != Resend::None
    }

    /// Whether the response with this nonce was sent after the rejection.
    pub(super) fn is_older_than(&self, nonce: Nonce) -> bool {
        self.nonce < nonce
    }
}

/// S6e: how long the first resend waits after the rejection. Each further one waits twice as long, up
/// to [`BACK_OFF_LIMIT`].
pub(super) const BACK_OFF: Duration = Duration::from_secs(1);
pub(super) const BACK_OFF_LIMIT: Duration = Duration::from_secs(600);
