//! What a batch gets of commits and of time: each is judged on what those before it leave (ST17).

use std::cell::RefCell;
use std::sync::Arc;

use super::{Committed, Store, Waiting, Writing};
use crate::commit::{self, Judging, Limit, Needs, RefusalCode, Refused};
use crate::index::Records;
use crate::log::{Head, LogEntry};
use crate::stored::{ReadError, Stored};

impl Store {
    /// Adds the ends of records whose time has come (ST36, ST39).
    pub(super) fn add_ended(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) -> Result<(), ReadError> {
        if now < self.ends_again_at {
            return Ok(());
        }
        let mut limit = (self.config.engine.operations.saturating_sub(3)).min(ENDED_AT_ONCE);
        // An expiry is not replicated, so each has a commit of its own.
        for with_lease in [false, true] {
            let ended = self.ended(with_lease, now, limit);
            limit -= ended.len();
            let mut ended = &ended[..];
            let mut renewed = Vec::new();
            let judged = loop {
                renewed.clear();
                let judging = self.judging(writing, stored, now);
                let judged = commit::expiry(&judging, ended, with_lease, &mut renewed)?;
                let Some(judged) = judged else { break None };
                // The rest ends with the next batches.
                if writing.size_with(&judged, 0).1 <= self.config.engine.bytes {
                    break Some(judged);
                }
                if ended.len() == 1 {
                    break Some(judged).filter(|_| writing.batch.writes.is_empty());
                }
                ended = &ended[..ended.len() / 2];
            };
            renewed.iter().for_each(|(key, state)| self.index.renew(key, state));
            if let Some(judged) = judged {
                let entry = LogEntry { identity: "expiry".to_owned(), ..LogEntry::default() };
                writing.add(judged, entry, self.config.server);
            }
        }
        Ok(())
    }

    /// Judges one commit and adds it to the batch. Gives it back if it has to wait for the next one.
    pub(super) fn add_commit(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        waiting: Waiting,
        now: i64,
    ) -> Option<Waiting> {
        let draft = &waiting.draft;
        let needs = Needs { silent: waiting.asked.silent.clone(), ..Needs::default() };
        let needs = RefCell::new(needs);
        let mut judging = self.judging(writing, stored, now);
        // ST15: a dry run asks no other region.
        judging.needs = (!draft.dry_run).then_some(&needs);
        if judging.has_to_wait(draft) {
            return Some(waiting);
        }
        let judged = judging.judge(draft);
        let needs = needs.take();
        if let Some(wait) = waiting.waits_for(&judged, &needs, now) {
            writing.parked.push((waiting, wait));
            return None;
        }
        let answer = match judged {
            Err(refused) => Err(refused),
            // SG40.
            Ok(_) if waiting.asked.is_late(now) => Err(Refused::whole(
                RefusalCode::Aborted,
                "the commit could not be written in the time that other regions gave it: retry",
            )),
            // ST15.
            Ok(judged) if draft.dry_run => {
                let alone = Writing::new(Head::default(), None, 0);
                let (operations, bytes) = alone.size_with(&judged, draft.message.len());
                self.check_size(operations, bytes).map(|()| Committed {
                    revision: writing.head.revision,
                    results: judged.results,
                    effects: judged.effects,
                    warnings: judged.warnings,
                })
            }
            Ok(judged) => {
                let (operations, bytes) = writing.size_with(&judged, draft.message.len());
                match self.check_size(operations, bytes) {
                    Ok(()) => {}
                    // It may fit into a batch of its own.
                    Err(_) if !writing.batch.writes.is_empty() => return Some(waiting),
                    Err(refused) => {
                        writing.commits.push((waiting, Err(refused)));
                        return None;
                    }
                }
                let entry = LogEntry {
                    identity: draft.identity.clone(),
                    owner: draft.owner.clone(),
                    message: draft.message.clone(),
                    rollout: draft.rollout.clone(),
                    ..LogEntry::default()
                };
                let committed = writing.add(judged, entry, self.config.server);
                // SG30: it is confirmed once it is durable.
                let own = waiting.asked.own_blocks(&needs, &self.head.node).into_iter();
                writing.pending.own_blocks.extend(own.map(|(key, block)| (key, Some(Arc::new(block)))));
                Ok(committed)
            }
        };
        writing.commits.push((waiting, answer));
        None
    }

    /// Stage 9: what the engine takes in one batch (ST43).
    pub(super) fn check_size(&self, operations: usize, bytes: usize) -> Result<(), Refused> {
        let limits = &self.config.engine;
        let of = |name, option, value, found| {
            let limit = Limit { name, option, value };
            if found > value { Err(Refused::limit(&limit, found)) } else { Ok(()) }
        };
        let option = limits.operations_option;
        of("operations of a batch of the engine", option, limits.operations, operations)?;
        of("bytes of a batch of the engine", limits.bytes_option, limits.bytes, bytes)
    }

    /// SG8: how many dependents end in one commit.
    pub(super) fn dependents(&self) -> usize {
        let of_engine = self.config.engine.operations.saturating_sub(4) / 2;
        DEPENDENTS.min(of_engine).min(self.config.commit.changes / 2)
    }

    pub(super) fn judging<'a>(
        &'a self,
        writing: &'a Writing,
        stored: &'a Stored<'a>,
        now: i64,
    ) -> Judging<'a> {
        Judging {
            records: Records { index: &self.index, batch: &writing.pending },
            stored,
            head: &writing.head,
            now,
            limits: self.config.commit,
            schemas: self.index.schemas(),
            rules: self.index.rules(),
            policies: self.index.policies(),
            authorities: self.index.authorities(),
            dependents: self.dependents(),
            server: self.config.server,
            peer_phases: &self.peer_phases,
            unheard: self.across.hearing.unheard(),
            needs: None,
        }
    }

    pub(super) fn forms<'a>(&'a self, records: Records<'a>) -> commit::Forms<'a> {
        commit::Forms { records, schemas: self.index.schemas(), now: self.head.time }
    }
}

/// A deletion with more dependents is one in progress.
const DEPENDENTS: usize = 1_000;
/// How many records end in one batch.
const ENDED_AT_ONCE: usize = 1_000;
