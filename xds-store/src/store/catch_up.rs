//! Several servers of one store: what others committed, and whether a batch was applied.

use std::collections::BTreeMap;

use super::refusing::with_causes;
use super::{Action, PATIENCE, Published, READ_AGAIN, Store, Unknown, Waiting};
use crate::checked::Damaged;
use crate::commit::{self, RefusalCode, Refused};
use crate::engine::{EngineError, Reader};
use crate::index::{Pending, Records};
use crate::key::{RecordKey, stored};
use crate::log::LogEntry;
use crate::record::{At, Present, resource_of};
use crate::refs::ReferrerChanges;
use crate::rules::Rules;
use crate::stored::{ReadError, Stored};

impl Store {
    /// Applies the entries of other servers (ST19).
    pub(super) fn catch_up(
        &mut self,
        stored: &Stored<'_>,
        now: i64,
        actions: &mut Vec<Action>,
    ) -> Result<(), ReadError> {
        let (head, head_revision) = stored.head()?;
        if head.node != self.head.node || head.revision < self.head.revision {
            self.read_only = Some("the store was replaced: restart the server".to_owned());
            return Ok(());
        }
        if head.floor > self.head.revision {
            // The log no longer says what changed.
            self.has_lost_log = true;
            return Ok(());
        }
        if let Some(newest) = self.newest.filter(|newest| newest.revision == self.head.revision)
            && let Some(entry) = stored.entry(newest.revision)?
            && Mark::of(newest.revision, &entry) != newest
        {
            // The log goes on from an older state than that of this server: etcd was restored from a snapshot.
            self.has_lost_log = true;
            return Ok(());
        }
        for revision in self.head.revision + 1..=head.revision {
            let entry = stored.entry(revision)?.ok_or(Damaged { key: stored::log(revision) })?;
            let published = self.apply_entry(stored, revision, entry, now)?;
            self.origins.note(revision, &published.entry);
            // If the next one cannot be read, this one is not applied again.
            self.head.revision = revision;
            self.newest = Some(Mark::of(revision, &published.entry));
            actions.push(Action::Publish(vec![published]));
        }
        // SV13, SV28: another server began a plan. A write of this one could miss a form.
        if let Some((number, name, phase)) = self.index.phases().lacking(self.index.schemas().plans()) {
            let plan =
                format!("the store is in phase F{phase} of plan {number}, {name}, which this server lacks");
            self.read_only = Some(plan);
        }
        // SG11: another server has descriptors that this one lacks.
        if let Some((key, reason)) = self.index.rules().lacking() {
            self.read_only = Some(format!("the reference rule {}: {reason}", key.name()));
        }
        self.forget_collected(stored, head.floor)?;
        self.origins.forget(head.floor);
        self.take_head(head);
        self.head_revision = Some(head_revision);
        self.is_behind = false;
        Ok(())
    }

    /// Forgets the deleted records that another server has forgotten, as far as they come first: the
    /// log does not say which ones, and a look at all of them would cost too much. The rest go with the
    /// next compaction of this server.
    fn forget_collected(&mut self, stored: &Stored<'_>, floor: u64) -> Result<(), ReadError> {
        let mut collected = Vec::new();
        for (_, key) in self.index.tombstones() {
            let Some(record) = self.index.get(key) else { continue };
            if record.changed_at > floor || stored.state_if_kept(key, record.changed_at)?.is_some() {
                break;
            }
            collected.push(key.clone());
        }
        collected.iter().for_each(|key| self.index.collect(key));
        Ok(())
    }

    fn apply_entry(
        &mut self,
        stored: &Stored<'_>,
        revision: u64,
        entry: LogEntry,
        now: i64,
    ) -> Result<Published, ReadError> {
        let damaged = || Damaged { key: stored::log(revision) };
        let mut changed = Vec::with_capacity(entry.changes.len());
        let (mut after, mut states) = (BTreeMap::new(), Vec::with_capacity(entry.changes.len()));
        let mut rules = None;
        for change in &entry.changes {
            let key = RecordKey::parse(&change.key).map_err(|_| damaged())?;
            let state = stored.state(&key, revision)?;
            if Rules::is_rule(&key) {
                rules.get_or_insert_with(|| self.index.rules().clone()).note(&key, &state);
            }
            states.push((key, state));
        }
        let of_commit = rules.as_ref().unwrap_or_else(|| self.index.rules());
        for (key, state) in states {
            let resource = resource_of(&key, &state);
            let at = At { revision, now, head: &self.head };
            let present = Present::of(&key, &state, resource.as_ref(), at, of_commit);
            after.insert(key.clone(), present);
            changed.push((key, state));
        }
        let nothing = Pending::default();
        let records = Records { index: &self.index, batch: &nothing };
        // The other server checked the same.
        let checked = commit::check_ambiguity(records, after, |_| 0, true);
        let mut pending = checked.map_err(|_| damaged())?;
        pending.states = changed.iter().cloned().collect();
        if self.head.is_replicated {
            let mut referrers = ReferrerChanges::default();
            for (key, _) in &changed {
                let of = |record: Option<&Present>| {
                    record.map(|record| record.references.clone()).unwrap_or_default()
                };
                let after = pending.records.get(&key.record_digest());
                referrers.replace(key, &of(self.index.get(key)), &of(after));
            }
            pending.held = commit::held(records, &pending, &referrers, now);
        }
        let state = |key: &RecordKey, record: &Present| stored.state(key, record.changed_at);
        let commit::Shown { states: shown, .. } = commit::shown(records, &pending, state)?;
        if let Some(rules) = &rules {
            commit::reread(stored, &self.index, (self.index.rules(), rules), |key, _, references| {
                pending.reread.insert(key, references);
            })?;
        }
        self.apply(pending, now);
        Ok(Published { revision, entry, changed, shown })
    }

    /// ST20: finds out whether the batch that is being written was applied.
    pub(super) fn find_out(&mut self, now: i64, reader: &dyn Reader, actions: &mut Vec<Action>) {
        let Some(writing) = self.writing.take() else { return };
        let stored = Stored::new(reader);
        let found = stored.head().and_then(|(head, revision)| {
            let first = self.head.revision + 1;
            let entry = if head.revision >= first { stored.entry(first)? } else { None };
            Ok((head, revision, entry))
        });
        match found {
            Ok((head, revision, entry)) => {
                let is_ours =
                    |entry: &LogEntry| (entry.server, entry.batch) == (self.config.server, writing.number);
                // A batch may have no entry, such as one of blocks (SG34). No other server writes to a store that
                // replicates.
                let has_entry = !writing.published.is_empty();
                let is_alone =
                    (writing.alone.is_some() || self.replicates() && !has_entry) && head == writing.head;
                let is_applied = is_alone && Some(revision) != self.head_revision;
                if is_applied || has_entry && entry.as_ref().is_some_and(is_ours) {
                    let is_last = head == writing.head;
                    self.finish(writing, revision, actions);
                    self.is_behind = !is_last;
                } else if Some(revision) == self.head_revision {
                    // It may still be on its way. Written again on the same condition, it is applied
                    // once at most.
                    actions.push(Action::Write(writing.batch.clone()));
                    self.unknown.get_or_insert_with(|| Unknown::since(self.wall.shown())).read_at = None;
                    self.writing = Some(writing);
                    self.give_up(actions);
                } else if head.floor > self.head.revision && self.unknown.is_some() {
                    // The log no longer says whether it was applied.
                    self.is_behind = true;
                    self.refuse(writing, &unknown_outcome(), actions);
                } else {
                    // Its condition can never hold any more. Entries of peers come again with another round.
                    let refused = Refused::whole(RefusalCode::Aborted, "another batch was written first");
                    let merged = writing.merged.into_iter();
                    actions.extend(merged.map(|(ticket, _)| Action::Merged(ticket, Err(refused.clone()))));
                    if writing.alone.is_some() {
                        self.refuse_alone(&refused, actions);
                    }
                    self.request_again(writing.requests);
                    self.begin_older();
                    self.try_again(writing.commits.into_iter().map(|(waiting, _)| waiting), now, actions);
                    self.is_behind = true;
                    self.unknown = None;
                }
            }
            Err(error) => {
                self.is_cut_off = true;
                if matches!(error, ReadError::Removed) && self.unknown.is_none() {
                    // ST21: the engine refused the batch, because its condition did not hold.
                    self.read_only = Some(with_causes(&error));
                    return self.refuse(writing, &Refused::from(error), actions);
                }
                let can_recover = !matches!(
                    error,
                    ReadError::Damaged(_)
                        | ReadError::Removed
                        | ReadError::Engine(EngineError::Broken(_) | EngineError::Corrupt { .. })
                );
                let unknown = self.unknown.get_or_insert_with(|| Unknown::since(self.wall.shown()));
                unknown.read_at = Some(self.wall.shown().saturating_add(READ_AGAIN));
                self.writing = Some(writing);
                if !can_recover {
                    unknown.until = self.wall.shown();
                    self.read_only = Some(with_causes(&error));
                }
                self.give_up(actions);
            }
        }
    }

    /// Answers `UNKNOWN` when the time for finding out has passed.
    pub(super) fn give_up(&mut self, actions: &mut Vec<Action>) {
        if self.unknown.as_ref().is_none_or(|unknown| self.wall.shown() < unknown.until) {
            return;
        }
        let Some(writing) = self.writing.take() else { return };
        // The batch is not written once more by an action of this step.
        actions.retain(|action| !matches!(action, Action::Write(_)));
        self.is_behind = true;
        self.refuse(writing, &unknown_outcome(), actions);
    }

    /// Judges commits again on what other servers left; those that waited too long are refused
    /// (ST19).
    pub(super) fn try_again(
        &mut self,
        commits: impl DoubleEndedIterator<Item = Waiting>,
        now: i64,
        actions: &mut Vec<Action>,
    ) {
        for waiting in commits.rev() {
            if now.saturating_sub(waiting.since) >= PATIENCE {
                let message = "other servers of the store were faster for 10 s: retry";
                let refused = Refused::whole(RefusalCode::Aborted, message);
                self.answer(waiting, Err(refused), actions);
            } else {
                self.waiting.push_front(waiting);
            }
        }
    }
}

/// Which batch made a revision. Another history of the store has another one there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    revision: u64,
    server: u64,
    batch: u64,
}

impl Mark {
    pub(super) fn of(revision: u64, entry: &LogEntry) -> Self {
        Self { revision, server: entry.server, batch: entry.batch }
    }
}

/// ST20.
fn unknown_outcome() -> Refused {
    let message = "the engine did not report whether the commit was applied: read before you retry";
    Refused::whole(RefusalCode::Unknown, message)
}
