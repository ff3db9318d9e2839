//! The background work of deletions in progress: what they delete and clear, in paced steps (SG8), and their end
//! if no commit here ends them (SG41).

use super::{Store, Writing};
use crate::commit::{Judged, Judging};
use crate::key::NameDigest;
use crate::log::LogEntry;
use crate::record::EntryId;
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;

impl Store {
    /// When the next step is due.
    pub(super) fn drain_due(&self) -> Option<i64> {
        self.index.drained().next().map(|_| self.drains_at.max(self.head.time))
    }

    /// Adds the step that is due to an empty batch: ends of deletions, or else dependents that go with them.
    pub(super) fn add_drained(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) -> Result<(), ReadError> {
        let names: Vec<NameDigest> = self.index.drained().take(LOOKED_AT).collect();
        if now < self.drains_at || names.is_empty() {
            return Ok(());
        }
        let is_cut = names.len() == LOOKED_AT;
        let (mut draining, mut idle, mut ended) = (Vec::new(), Vec::new(), 0);
        for name in names {
            let judging = self.judging(writing, stored, now);
            if judging.is_draining(name) {
                draining.push(name);
                continue;
            }
            // Otherwise the commit that removes what blocks a deletion ends it.
            let end = match self.replicates() && ended < STEP {
                true => judging.late_end(name, |by| self.finishes(by))?,
                false if ended < STEP => None,
                false => break,
            };
            match end {
                Some(judged) if self.fits(&judged, writing) => {
                    ended += judged.changes.len();
                    writing.add(judged, drain_entry(), self.config.server);
                }
                // It may fit into a batch of its own.
                Some(_) if ended > 0 => break,
                // A circle that fits into no batch can end once it changes.
                Some(_) | None => idle.push(name),
            }
        }
        if ended == 0 {
            let judging = self.judging(writing, stored, now);
            if let Some(judged) = self.drained(&judging, (&draining, writing), &mut idle)? {
                writing.add(judged, drain_entry(), self.config.server);
            }
        }
        idle.into_iter().for_each(|name| self.index.note_drained(name));
        if is_cut || !writing.batch.writes.is_empty() {
            self.drains_at = now.saturating_add(STEP_EVERY);
        }
        Ok(())
    }

    /// A step that fits into a batch. `idle` gets the names of which nothing goes: their dependents stay, because their
    /// fields cannot be cleared.
    fn drained(
        &self,
        judging: &Judging<'_>,
        (names, writing): (&[NameDigest], &Writing),
        idle: &mut Vec<NameDigest>,
    ) -> Result<Option<Judged>, ReadError> {
        let mut limit = STEP.min(self.config.engine.operations.saturating_sub(4)).max(1);
        loop {
            let mut without = Vec::new();
            let judged = judging.drain(names, limit, &mut without)?;
            if judged.as_ref().is_none_or(|judged| self.fits(judged, writing)) {
                idle.append(&mut without);
                return Ok(judged);
            }
            if limit == 1 {
                // Not even one dependent fits into a batch.
                let Some((first, others)) = names.split_first() else { return Ok(None) };
                idle.push(*first);
                return self.drained(judging, (others, writing), idle);
            }
            limit = limit.div_ceil(2);
        }
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

    fn fits(&self, judged: &Judged, writing: &Writing) -> bool {
        let (operations, bytes) = writing.size_with(judged, 0);
        operations <= self.config.engine.operations && bytes <= self.config.engine.bytes
    }
}

fn drain_entry() -> LogEntry {
    LogEntry { identity: "drain".to_owned(), ..LogEntry::default() }
}

/// How many dependents go in a step, and how often there is one: 1,000 in a second.
const STEP: usize = 500;
const STEP_EVERY: i64 = SECOND / 2;
/// How many deletions in progress a step looks at.
const LOOKED_AT: usize = 1_000;
