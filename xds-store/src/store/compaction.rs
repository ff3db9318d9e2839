//! Forgets old revisions step by step (ST44), and with them deleted records.

use super::{Action, Store, Ticket, Writing};
use crate::checked;
use crate::commit::Refused;
use crate::key::{RecordKey, stored};
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;

/// The compaction that runs or waits.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    requests: Vec<(Ticket, Option<u64>)>,
    /// Whether a batch of commits went first.
    has_waited: bool,
}

impl Compaction {
    pub(super) fn request(&mut self, ticket: Ticket, upto: Option<u64>) {
        self.requests.push((ticket, upto));
    }

    /// Whether the next batch is a step of it: every other batch while commits wait.
    pub(super) fn is_next(&mut self, is_idle: bool) -> bool {
        let is_next = !self.requests.is_empty() && (is_idle || self.has_waited);
        self.has_waited = !is_next;
        is_next
    }

    pub(super) fn refuse(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        let requests = std::mem::take(&mut self.requests);
        actions
            .extend(requests.into_iter().map(|(ticket, _)| Action::Compacted(ticket, Err(refused.clone()))));
    }

    fn answer(&mut self, floor: u64, actions: &mut Vec<Action>) {
        let requests = std::mem::take(&mut self.requests);
        actions.extend(requests.into_iter().map(|(ticket, _)| Action::Compacted(ticket, Ok(floor))));
    }
}

impl Store {
    /// Adds one step of the compaction that was requested; answers it if nothing is left to forget.
    pub(super) fn add_compaction(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        actions: &mut Vec<Action>,
    ) -> Result<(), ReadError> {
        if self.compaction.requests.is_empty() {
            return Ok(());
        }
        let upto = self.compaction.requests.iter().filter_map(|(_, upto)| *upto).max();
        let limit = self.config.engine.operations.saturating_sub(3).min(KEYS_OF_STEP);
        let forgettable = self.forgettable().min(self.head.revision);
        while writing.batch.writes.len() < limit {
            let revision = writing.head.floor + 1;
            if revision > forgettable {
                break;
            }
            let Some(entry) = stored.entry(revision)? else { break };
            let is_old = entry.logged_at() <= now.saturating_sub(self.config.history)
                || revision + self.config.history_revisions <= self.head.revision
                || upto.is_some_and(|upto| revision <= upto);
            // ST26: a list of the revision before may still be read.
            let is_listed = entry.logged_at() > now.saturating_sub(LISTED_FOR);
            let has_room = writing.batch.writes.is_empty()
                || writing.batch.writes.len() + entry.changes.len() + entry.originals.len() < limit;
            if !is_old || is_listed || !has_room {
                break;
            }
            for change in entry.changes.iter().filter(|change| change.previous > 0) {
                if let Ok(key) = RecordKey::parse(&change.key) {
                    writing.delete(stored::record(&key, change.previous));
                }
            }
            for key in &entry.originals {
                if let Ok(key) = RecordKey::parse(key) {
                    writing.delete(stored::original(revision, &key));
                }
            }
            writing.delete(stored::log(revision));
            writing.head.floor = revision;
        }
        self.drop_forgotten(writing);
        self.collect(writing, stored, now, limit)?;
        let mut of_origins = Vec::new();
        for (origin, of) in self.origins.without(writing.head.floor, &writing.deletion_floors) {
            let at = stored::origin(origin);
            of_origins.push((checked::encode(&at, &of), at));
        }
        of_origins.into_iter().for_each(|(value, at)| writing.write(at, value));
        writing.compacted = !writing.batch.writes.is_empty();
        if !writing.compacted {
            self.compaction.answer(self.head.floor, actions);
        }
        Ok(())
    }
}

/// The keys of one step, unless one commit alone has more.
const KEYS_OF_STEP: usize = 1_000;
/// How long the pages of a list can be read.
const LISTED_FOR: i64 = 5 * 60 * SECOND;
