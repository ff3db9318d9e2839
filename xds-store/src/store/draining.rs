//! The background work of deletions in progress: what they delete and clear, in paced steps (SG8), and their end
//! if no commit here ends them (SG41).

use super::{Store, Writing};
use crate::commit::{Judged, Judging};
use crate::key::NameDigest;
use crate::log::LogEntry;
use crate::record::EntryId;
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;

/// One step of a deletion in progress.
enum Drained {
    Step(Box<Judged>),
    /// Its dependents stay, because their fields cannot be cleared. Or something keeps it, or another node finishes
    /// it.
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
            let next = match judging.is_draining(name) {
                true => self.drained(&judging, name)?,
                false => self.finished(&judging, name)?,
            };
            match next {
                Drained::Step(judged) => {
                    self.drains_at = now.saturating_add(STEP_EVERY);
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
            if self.fits(&judged) {
                return Ok(Drained::Step(Box::new(judged)));
            }
            if limit == 1 {
                return Ok(Drained::TooLarge);
            }
            limit = limit.div_ceil(2);
        }
    }

    /// SG41: the end of a deletion that this node finishes, if nothing keeps the record.
    fn finished(&self, judging: &Judging<'_>, name: NameDigest) -> Result<Drained, ReadError> {
        // Otherwise the commit that removes what blocks a deletion ends it.
        if !self.replicates() {
            return Ok(Drained::Nothing);
        }
        Ok(match judging.late_end(name, |by| self.finishes(by))? {
            Some(judged) if self.fits(&judged) => Drained::Step(Box::new(judged)),
            // A circle that fits into no batch can end once it changes.
            Some(_) | None => Drained::Nothing,
        })
    }

    /// SG41: one node finishes a deletion, because others may have references to the record that have not arrived
    /// here. It is the one that began it. Without the entry, nobody else may know that either, so any node does; the
    /// ends merge.
    fn finishes(&self, by: Option<&EntryId>) -> bool {
        by.is_none_or(|by| {
            let is_forgotten = || self.index.forgotten().contains(&by.origin);
            self.head.is_node(&by.origin) || (is_forgotten() && self.is_smallest())
        })
    }

    fn fits(&self, judged: &Judged) -> bool {
        let alone = Writing::new(self.head.clone(), None, 0);
        let (operations, bytes) = alone.size_with(judged, 0);
        operations <= self.config.engine.operations && bytes <= self.config.engine.bytes
    }
}

/// How many dependents go in a step, and how often there is one: 1,000 in a second.
const STEP: usize = 500;
const STEP_EVERY: i64 = SECOND / 2;
/// How many deletions in progress a step looks at.
const LOOKED_AT: usize = 1_000;
/// When a step is tried again that fits into no batch.
const TRIED_AGAIN: i64 = 60 * SECOND;
