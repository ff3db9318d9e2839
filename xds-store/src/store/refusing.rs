//! What the store answers if it takes no commits, or cannot write them.

use std::{iter, mem};

use super::{Action, Store, Waiting};
use crate::commit::{RefusalCode, Refused};
use crate::engine::EngineError;
use crate::stored::ReadError;
use crate::time::SECOND;

impl Store {
    /// The store accepts no commits.
    pub(super) fn refuse_all(&mut self, actions: &mut Vec<Action>) {
        let refused = self.read_only.as_deref().map_or_else(
            || Refused::whole(RefusalCode::Unavailable, "this server reads the store again: retry"),
            Refused::read_only,
        );
        self.refuse_waiting(&refused, actions);
        self.refuse_parked(&refused, actions);
        self.refuse_alone(&refused, actions);
        self.compaction.refuse(&refused, actions);
    }

    /// SR20: commits are made on the records that the snapshot leaves. SR33: one that only forgets nodes is made at
    /// once, as it may be about those that this node waits for.
    pub(super) fn refuse_closed(&mut self, actions: &mut Vec<Action>) {
        let message = match self.head.is_joining {
            true => "this node waits for the first snapshot of its peers (ST5): retry",
            false => "this node takes a snapshot from a peer: retry, or commit at another node",
        };
        let refused = Refused::whole(RefusalCode::Unavailable, message);
        let is_made = |waiting: &Waiting| !self.head.is_joining && waiting.draft.only_forgets();
        let (made, others) = mem::take(&mut self.waiting).into_iter().partition(is_made);
        self.waiting = others;
        self.refuse_commits(&refused, actions);
        self.waiting = made;
        self.refuse_parked(&refused, actions);
        self.compaction.refuse(&refused, actions);
        if self.head.is_joining {
            self.refuse_entries(&refused, actions);
        }
    }

    /// What waits for a batch.
    fn refuse_waiting(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        self.refuse_commits(refused, actions);
        self.refuse_entries(refused, actions);
    }

    fn refuse_commits(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        let waiting = mem::take(&mut self.waiting).into_iter();
        waiting.for_each(|waiting| self.answer(waiting, Err(refused.clone()), actions));
        self.refuse_requests(refused, actions);
    }

    /// What went alone is not tried again.
    pub(super) fn refuse_alone(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        // What failed may be the end of an earlier snapshot. One whose first page has not come goes on.
        if self.staging.as_ref().is_some_and(|staging| staging.page.is_some()) {
            self.refuse_page(refused, actions);
        }
        let id = self.take_id.take();
        actions.extend(id.map(|(ticket, _)| Action::TookId(ticket, Err(refused.clone()))));
    }

    /// The engine refused, so nothing is written without a request for some time.
    pub(super) fn try_later(&mut self, now: i64) {
        self.ends_again_at = now.saturating_add(ENDS_AGAIN);
        self.delay_passes(now);
        self.drains_at = self.drains_at.max(now.saturating_add(ENDS_AGAIN));
        self.owners_at = self.owners_at.max(now.saturating_add(ENDS_AGAIN));
        self.dropping.delay(now.saturating_add(ENDS_AGAIN));
        // The batch may have been the last step, which says that the walk is done.
        self.begin_older();
        self.across.older.delay(now.saturating_add(ENDS_AGAIN));
        self.room_at = self.room_at.map(|_| now.saturating_add(ROOM_AGAIN));
    }

    /// The engine cannot be read, so nothing can be judged. Damage makes the store read-only; after
    /// anything else a later commit may succeed.
    pub(super) fn on_unreadable(&mut self, error: ReadError, now: i64, actions: &mut Vec<Action>) {
        self.is_cut_off = true;
        self.try_later(now);
        let is_lasting = matches!(
            error,
            ReadError::Damaged(_) | ReadError::Removed | ReadError::Engine(EngineError::Broken(_))
        );
        if is_lasting {
            self.read_only = Some(with_causes(&error));
        }
        let mut refused = Refused::from(error);
        if refused.code == RefusalCode::Unknown {
            // Nothing was written.
            refused.code = RefusalCode::Unavailable;
        }
        self.refuse_waiting(&refused, actions);
        self.compaction.refuse(&refused, actions);
    }
}

/// An error with its causes, for people.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// How long records do not end after a batch was refused, so that a full disk is not asked all the
/// time.
const ENDS_AGAIN: i64 = SECOND;
/// When to look for room again after a disk was full.
pub(super) const ROOM_AGAIN: i64 = 10 * SECOND;
