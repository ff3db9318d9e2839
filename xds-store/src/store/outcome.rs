//! What became of a batch that the engine was given.

use super::catch_up::Mark;
use super::refusing::{ROOM_AGAIN, with_causes};
use super::{Action, READ_AGAIN, Store, Unknown, Writing};
use crate::commit::Refused;
use crate::engine::{EngineError, EngineRevision, Reader};
use crate::log::Head;

impl Store {
    pub(super) fn on_written(
        &mut self,
        result: Result<EngineRevision, EngineError>,
        now: i64,
        reader: &dyn Reader,
        actions: &mut Vec<Action>,
    ) {
        let Some(writing) = self.writing.take() else { return };
        match result {
            Ok(revision) => self.finish(writing, revision, actions),
            // ST19: another server committed first. It may also be this one: a batch whose outcome
            // was unknown, and which was written again (ST20).
            Err(EngineError::Conflict) => {
                self.is_behind = true;
                self.writing = Some(writing);
                self.find_out(now, reader, actions);
            }
            Err(EngineError::Unknown(_)) => {
                self.is_cut_off = true;
                self.unknown.get_or_insert_with(|| Unknown::since(self.wall.shown()));
                self.writing = Some(writing);
                self.find_out(now, reader, actions);
            }
            // An earlier attempt may still be applied (ST20).
            Err(error @ (EngineError::Full | EngineError::Unavailable(_))) if self.unknown.is_some() => {
                if matches!(error, EngineError::Full) {
                    self.room_at = Some(now.saturating_add(ROOM_AGAIN));
                }
                if let Some(unknown) = &mut self.unknown {
                    unknown.read_at = Some(self.wall.shown().saturating_add(READ_AGAIN));
                }
                self.writing = Some(writing);
                self.give_up(actions);
            }
            Err(error) => {
                // Only the commit that is too large was refused.
                self.is_cut_off |= !matches!(error, EngineError::TooLarge { .. });
                self.try_later(now);
                if matches!(error, EngineError::Full) {
                    self.room_at = Some(now.saturating_add(ROOM_AGAIN));
                }
                if matches!(error, EngineError::Broken(_) | EngineError::Corrupt { .. }) {
                    self.read_only = Some(format!("a write failed: {}", with_causes(&error)));
                }
                self.refuse(writing, &Refused::of_engine(&error), actions);
            }
        }
    }

    /// The head that is durable now.
    pub(super) fn take_head(&mut self, head: Head) {
        if self.head.hears_until != head.hears_until {
            // What other regions might have referred to may end.
            self.index.drain_all();
        }
        self.head = head;
    }

    /// The batch is durable.
    pub(super) fn finish(&mut self, writing: Writing, revision: EngineRevision, actions: &mut Vec<Action>) {
        let Writing { head, pending, collected, published, deletion_floors, dropped_nodes, .. } = writing;
        let Writing { merged, commits, journaled, alone, requests, .. } = writing;
        self.journal.extend(journaled);
        self.head_revision = Some(revision);
        self.take_head(head);
        self.nodes.written();
        self.nodes.drop_all(&dropped_nodes);
        let mut answers_alone = Vec::new();
        if let Some(alone) = alone {
            self.finish_alone(alone, &mut answers_alone);
        }
        published.iter().for_each(|commit| self.origins.note(commit.revision, &commit.entry));
        let newest = published.last().map(|commit| Mark::of(commit.revision, &commit.entry));
        self.newest = newest.or(self.newest);
        self.origins.forget(self.head.floor);
        self.origins.forget_deletions(&deletion_floors);
        self.unknown = None;
        self.room_at = None;
        self.note_blocks(&pending);
        self.apply(pending, self.head.time);
        if !writing.fetching.is_empty() {
            self.leases_at = i64::MIN;
            self.index.note_fetching(writing.fetching);
        }
        collected.iter().for_each(|key| self.index.collect(key));
        self.end_outage();
        // ST16: nobody sees a commit before it is durable, and whoever is answered can read it.
        if !published.is_empty() {
            actions.push(Action::Publish(published));
        }
        actions.extend(answers_alone);
        commits.into_iter().for_each(|(waiting, answer)| self.answer(waiting, answer, actions));
        self.answer_requests(requests, None, actions);
        actions.extend(merged.into_iter().map(|(ticket, merged)| Action::Merged(ticket, Ok(merged))));
    }

    /// Nothing of the batch was applied, and its commits are not tried again.
    pub(super) fn refuse(&mut self, writing: Writing, refused: &Refused, actions: &mut Vec<Action>) {
        self.unknown = None;
        if writing.compacted {
            self.compaction.refuse(refused, actions);
        }
        if writing.alone.is_some() {
            self.refuse_alone(refused, actions);
        }
        let commits = writing.commits.into_iter().map(|(waiting, _)| waiting);
        commits.for_each(|waiting| self.answer(waiting, Err(refused.clone()), actions));
        self.answer_requests(writing.requests, Some(refused), actions);
        let merged = writing.merged.into_iter();
        actions.extend(merged.map(|(ticket, _)| Action::Merged(ticket, Err(refused.clone()))));
        self.refuse_entries(refused, actions);
    }
}
