//! The background check of owners that are records, in paced steps (SG17, SG18). Other regions are asked about theirs
//! (SG20).

use xds_proto::xds::store::v1 as proto;

use super::{Store, Writing};
use crate::commit::{Judged, Judging, Refused};
use crate::index::Pending;
use crate::key::RecordKey;
use crate::log::LogEntry;
use crate::region::Policies;
use crate::stored::Stored;
use crate::time::SECOND;

impl Store {
    /// Takes what a batch made durable at this time.
    pub(super) fn apply(&mut self, pending: Pending, now: i64) {
        let has_policies = pending.states.keys().any(Policies::is_policy);
        let has_strays = self.has_strays(&pending);
        let schemas = self.index.schemas();
        let deleted = pending.states.iter().filter(|(_, state)| state.lifecycle() == proto::State::Deleted);
        let other = |(key, _): (&RecordKey, _)| {
            let (plan, form) = schemas.form(key)?;
            plan.other_key(key, form).ok()
        };
        // SG20: an owner may have ended with its other form.
        let others: Vec<_> = deleted.filter_map(other).collect();
        self.index.apply(pending, now.saturating_add(self.config.owner_grace));
        others.iter().for_each(|owner| self.index.note_owner_ended(owner));
        if has_policies || has_strays {
            self.dropping.begin(self.index.policies());
        }
        if has_policies {
            self.leases_at = i64::MIN;
            self.begin_older();
            self.index.check_all_owners(now.saturating_add(self.config.owner_grace));
        }
    }

    /// When the next owners are checked.
    pub(super) fn owner_check_due(&self) -> Option<i64> {
        self.index.next_owner_check().map(|at| at.max(self.owners_at).max(self.head.time))
    }

    /// Adds the check that is due to an empty batch.
    pub(super) fn add_owner_checks(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        if now < self.owners_at {
            return;
        }
        let mut limit = STEP.min(self.config.engine.operations.saturating_sub(4)).max(1);
        let mut looked_at = 0;
        while looked_at < LOOKED_AT {
            let (keys, is_late) = self.index.owner_checks(now, limit);
            if keys.is_empty() {
                return;
            }
            self.owners_at = now.saturating_add(STEP_EVERY);
            let judging = self.judging(writing, stored, now);
            let foreign = judging.foreign_owners(&keys, is_late);
            match self.dropped(&judging, &keys, is_late).and_then(|dropped| Ok((dropped, foreign?))) {
                // They are checked once more when this is durable.
                Ok((Some(judged), _)) => {
                    let entry = LogEntry { identity: "owners".to_owned(), ..LogEntry::default() };
                    writing.add(judged, entry, self.config.server);
                    return;
                }
                Ok((None, foreign)) => {
                    self.index.note_owners_checked(&keys, is_late, now);
                    self.across.owners.dropped(&keys);
                    self.across.owners.ask(foreign);
                    looked_at += keys.len();
                }
                Err(_) if limit > 1 => limit = limit.div_ceil(2).min(keys.len()).max(1),
                Err(_) => {
                    self.owners_at = now.saturating_add(TRIED_AGAIN);
                    return;
                }
            }
        }
    }

    /// What a check drops, if that fits into a batch.
    fn dropped(
        &self,
        judging: &Judging<'_>,
        keys: &[RecordKey],
        is_late: bool,
    ) -> Result<Option<Judged>, Refused> {
        let Some(judged) = judging.drop_owners(keys, is_late, &self.across.owners.gone)? else {
            return Ok(None);
        };
        let alone = Writing::new(self.head.clone(), None, 0);
        let (operations, bytes) = alone.size_with(&judged, 0);
        self.check_size(operations, bytes).map(|()| Some(judged))
    }
}

/// How many records a step writes, and how often there is a step.
const STEP: usize = 100;
/// How many records a step looks at.
const LOOKED_AT: usize = 1_000;
const STEP_EVERY: i64 = SECOND / 10;
/// When a check is tried again that failed.
const TRIED_AGAIN: i64 = 60 * SECOND;
