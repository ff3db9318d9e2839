//! What merges lost, for people (SR44).
//!
//! The states that lost are stored like those of records, so contents that are sealed stay sealed (ST49).

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;

use super::{Store, Writing};
use crate::checked::{self, Damaged};
use crate::conflict::{Conflict, ConflictId};
use crate::engine::View;
use crate::key::{RecordKey, stored};
use crate::log::StoredConflict;
use crate::record::Local;
use crate::stored::ReadError;

/// The conflicts that the engine has.
#[derive(Debug, Default)]
pub(super) struct Journal {
    ids: BTreeSet<ConflictId>,
    /// The oldest one first.
    entries: VecDeque<Journaled>,
}

#[derive(Debug)]
pub(super) struct Journaled {
    number: u64,
    key: RecordKey,
    id: ConflictId,
}

impl Journal {
    pub(super) fn load(view: &dyn View) -> Result<Self, ReadError> {
        let mut journal = Self::default();
        let mut failed: Option<Damaged> = None;
        let (from, to) = stored::CONFLICTS;
        // Only ids are read, so the contents may be sealed by a key that is not there.
        view.range_stored(from, to, &mut |stored_key, value| match parse(stored_key, value.bytes) {
            Ok(journaled) => {
                journal.add(journaled);
                ControlFlow::Continue(())
            }
            Err(damaged) => {
                failed = Some(damaged);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(journal), |damaged| Err(damaged.into()))
    }

    fn add(&mut self, journaled: Journaled) {
        self.ids.insert(journaled.id);
        self.entries.push_back(journaled);
        if self.entries.len() > KEPT
            && let Some(oldest) = self.entries.pop_front()
        {
            self.ids.remove(&oldest.id);
        }
    }

    /// Takes what a batch made durable.
    pub(super) fn extend(&mut self, journaled: Vec<Journaled>) {
        journaled.into_iter().for_each(|journaled| self.add(journaled));
    }
}

fn parse(stored_key: &[u8], value: Bytes) -> Result<Journaled, Damaged> {
    let damaged = || Damaged { key: Bytes::copy_from_slice(stored_key) };
    let (key, number) = stored::parse_conflict(stored_key).ok_or_else(damaged)?;
    let local: Local = checked::decode(stored_key, value)?;
    let id = local.conflict.and_then(|conflict| ConflictId::from_bytes(&conflict.id)).ok_or_else(damaged)?;
    Ok(Journaled { number, key, id })
}

impl Store {
    /// How many conflicts were journaled, those that are forgotten included (SR44).
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.head.conflicts
    }

    /// Adds what the commits of the batch lost to the journal, once for each content, and forgets the oldest.
    pub(super) fn add_conflicts(&self, writing: &mut Writing) {
        let mut seen = BTreeSet::new();
        for Conflict { id, entry, loser } in std::mem::take(&mut writing.lost) {
            let Some(key) = loser.key.as_ref().and_then(|key| RecordKey::parse(key).ok()) else { continue };
            if self.journal.ids.contains(&id) || !seen.insert(id) || seen.len() > KEPT {
                continue;
            }
            writing.head.conflicts += 1;
            let number = writing.head.conflicts;
            let conflict = StoredConflict {
                id: Bytes::copy_from_slice(&id.to_bytes()),
                kind: entry.kind,
                at: writing.head.time,
                winner_revision: entry.winner_revision,
                winner_origin: entry.winner_origin,
                detail: entry.detail,
            };
            let local = Local { conflict: Some(conflict), ..Local::default() };
            let at = stored::conflict(number, &key);
            let value = checked::encode_both(&at, &loser, &local);
            writing.write(at, value);
            let beyond = (self.journal.entries.len() + seen.len()).checked_sub(KEPT + 1);
            if let Some(oldest) = beyond.and_then(|beyond| self.journal.entries.get(beyond)) {
                writing.delete(stored::conflict(oldest.number, &oldest.key));
            }
            writing.journaled.push(Journaled { number, key, id });
        }
    }
}

/// How many conflicts are kept.
pub(crate) const KEPT: usize = 10_000;
