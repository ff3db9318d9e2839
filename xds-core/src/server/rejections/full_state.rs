//! A rejected full state (S6b, S6e).

use std::sync::Arc;
use std::time::Duration;

use super::Nack;
use super::alone::{BACK_OFF, BACK_OFF_LIMIT};
use crate::variants::Variant;

/// The rejection of a full state, until the client ACKs one. The next full state has the rejected
/// resources again (S6b).
#[derive(Debug)]
pub(super) struct FullStateNack {
    pub(super) nack: Nack,
    /// The only resource that was new in it, if that is known.
    pub(super) alone: Option<Arc<Variant>>,
    pub(super) nacked_at: Duration,
    repeat: Repeat,
    /// How long a further repeat waits.
    back_off: Duration,
    /// Whether its revisions count as rejected (S6f).
    pub(super) counts: bool,
    /// Whether observers know that it counts.
    pub(super) is_reported: bool,
}

/// Whether the full state is sent once more, since it removed or changed something (S6e).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    None,
    At(Duration),
    Sent,
}

impl FullStateNack {
    /// Rejected now. `before` is an earlier rejection that no ACK has ended.
    pub(super) fn new(
        mut nack: Nack,
        alone: Option<Arc<Variant>>,
        makes_room: bool,
        before: Option<Self>,
        now: Duration,
    ) -> Self {
        let (mut at, mut back_off) = (now, BACK_OFF);
        if let Some(before) = before {
            nack.about.extend(&before.nack.about);
            at = now + before.back_off.saturating_sub(BACK_OFF);
            back_off = before.back_off;
        }
        let nack = nack.of_content(alone.as_deref());
        let repeat = if makes_room { Repeat::At(at) } else { Repeat::None };
        Self { nack, alone, nacked_at: now, repeat, back_off, counts: false, is_reported: false }
    }

    /// When the full state is sent once more.
    pub(super) fn repeat_at(&self) -> Option<Duration> {
        match self.repeat {
            Repeat::At(at) => Some(at),
            Repeat::None | Repeat::Sent => None,
        }
    }

    /// A full state is sent, for whatever reason: it repeats this one.
    pub(super) fn on_sent(&mut self, now: Duration) {
        let Repeat::At(at) = self.repeat else { return };
        if at <= now {
            self.back_off = (self.back_off * 2).min(BACK_OFF_LIMIT);
        }
        self.repeat = Repeat::Sent;
    }

    /// Whether a repeat is due, or not answered yet.
    pub(super) fn is_repeating(&self) -> bool {
        self.repeat != Repeat::None
    }
}
