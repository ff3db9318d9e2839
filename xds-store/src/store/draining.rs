//! The background work of deletions in progress: what they delete and clear, in paced steps (SG8).

use super::{Store, Writing};
use crate::commit::{Judged, Judging};
use crate::key::NameDigest;
use crate::log::LogEntry;
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;

/// One step of a deletion in progress.
enum Drained {
    Step(Box<Judged>),
    /// Its dependents stay: their fields cannot be cleared.
    Nothing,
    /// Not even one dependent fits into a batch.
    TooLarge,
}

impl Store {
    /// When the next step is due.
    pub(super) fn drain_due(&self) -> Option<i64> {
        self.index.next_drained().map(|_| self.drains_at.max(self.head.time))
    }

    /// Adds the step that is due to an empty batch.
    pub(super) fn add_drained(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) -> Result<(), ReadError> {
        if now < self.drains_at {
            return Ok(());
        }
        // Most deletions in progress have nothing left that goes with them.
        for _ in 0..LOOKED_AT {
            let Some(name) = self.index.next_drained() else { return Ok(()) };
            let judging = self.judging(writing, stored, now);
            if !judging.is_draining(name) {
                self.index.note_drained(name);
                continue;
            }
            self.drains_at = now.saturating_add(STEP_EVERY);
            let judging = self.judging(writing, stored, now);
            match self.drained(&judging, name)? {
                Drained::Step(judged) => {
                    let entry = LogEntry { identity: "drain".to_owned(), ..LogEntry::default() };
                    writing.add(*judged, entry, self.config.server);
                }
                Drained::Nothing => {
                    self.index.note_drained(name);
                    continue;
                }
                Drained::TooLarge => self.drains_at = now.saturating_add(TRIED_AGAIN),
            }
            return Ok(());
        }
        self.drains_at = now.saturating_add(STEP_EVERY);
        Ok(())
    }

    /// A step that fits into a batch.
    fn drained(&self, judging: &Judging<'_>, name: NameDigest) -> Result<Drained, ReadError> {
        let limits = &self.config.engine;
        let mut limit = STEP.min(limits.operations.saturating_sub(4)).max(1);
        loop {
            let Some(judged) = judging.drain(name, limit)? else { return Ok(Drained::Nothing) };
            let alone = Writing::new(self.head.clone(), None, 0);
            let (operations, bytes) = alone.size_with(&judged, 0);
            if operations <= limits.operations && bytes <= limits.bytes {
                return Ok(Drained::Step(Box::new(judged)));
            }
            if limit == 1 {
                return Ok(Drained::TooLarge);
            }
            limit = limit.div_ceil(2);
        }
    }
}

/// How many dependents go in a step, and how often there is one: 1,000 in a second.
const STEP: usize = 500;
const STEP_EVERY: i64 = SECOND / 2;
/// How many deletions in progress a step looks at.
const LOOKED_AT: usize = 1_000;
/// When a step is tried again that fits into no batch.
const TRIED_AGAIN: i64 = 60 * SECOND;
