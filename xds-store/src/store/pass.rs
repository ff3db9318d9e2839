//! The background work of a plan: one pass after another, in paced steps (SV21, SV22, SV30, SV40).

use super::{Store, Writing};
use crate::commit::{Copied, Judging};
use crate::key::RecordKey;
use crate::log::LogEntry;
use crate::phase::{PassPosition, Phase, PhaseRecord, Plan};
use crate::stored::Stored;
use crate::time::SECOND;

/// How far the background work of a plan is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassProgress {
    /// The number of the plan.
    pub plan: u32,
    /// How many records the running or last pass has looked at; one of both forms counts twice.
    pub looked_at: u64,
    /// How many of them it could not convert. In F4: how many records keep an old name.
    pub failed: u64,
    /// The first 20 of these, and why.
    pub failures: Vec<(RecordKey, String)>,
    /// Whether the last whole pass wrote nothing and could convert everything.
    pub is_clean: bool,
    /// Whether it has ended. The next one begins by itself.
    pub is_over: bool,
    /// How many passes this server has ended in the phase.
    pub ended: u64,
}

/// The pass that runs, or the next one.
#[derive(Debug, Default)]
pub(super) struct Pass {
    progress: PassProgress,
    /// The number of its phase.
    phase: u32,
    position: PassPosition,
    has_written: bool,
    /// [`PhaseRecord::splits`] when it began.
    splits: u64,
    /// Whether the position is one that was recorded.
    is_resumed: bool,
    next_at: i64,
}

impl Store {
    /// How far the background work of the plans that have some in their phases is.
    #[must_use]
    pub fn passes(&self) -> Vec<PassProgress> {
        self.passes.values().map(|pass| pass.progress.clone()).collect()
    }

    /// When the next step of a copy is due.
    pub(super) fn pass_due(&self) -> Option<i64> {
        let copied = |plan: &&Plan| self.is_copied(plan);
        let plans = self.index.schemas().plans().iter().filter(copied);
        plans.map(|plan| self.passes.get(&plan.number()).map_or(self.head.time, |pass| pass.next_at)).min()
    }

    /// The engine refused a batch, so there is no step for some time.
    pub(super) fn delay_passes(&mut self, now: i64) {
        for pass in self.passes.values_mut() {
            pass.next_at = pass.next_at.max(now.saturating_add(SECOND));
        }
    }

    /// The next step of each pass is the first one.
    pub(super) fn restart_passes(&mut self) {
        for pass in self.passes.values_mut() {
            (pass.position, pass.progress.is_over) = (PassPosition::default(), true);
            pass.next_at = self.head.time;
        }
    }

    /// A server that does not know the new form copies nothing (SV19).
    fn is_copied(&self, plan: &Plan) -> bool {
        let is_known = self.index.schemas().knows(plan);
        let phases = self.index.phases();
        let phase = phases.phase(plan);
        match phase {
            // SV42: what these passes delete is what a peer that is far away reads.
            Phase::F0 | Phase::F5 if self.peer_phases.has_far(plan, phase) => false,
            Phase::F3 | Phase::F5 => is_known,
            Phase::F2 if !plan.has_way_back() => false,
            // SV27: the way back from F4.
            Phase::F2 => is_known && phases.get(plan.number()).is_some_and(|record| record.was_in_f4),
            // Nobody writes new records in F0, so one clean pass is enough. It only removes new records,
            // which a server below a ceiling can do, too.
            Phase::F0 => phases.get(plan.number()).is_some_and(|record| !record.is_clean),
            // SV30.
            Phase::F4 => is_known && plan.rewrites_references(),
            Phase::F1 => false,
        }
    }

    /// Adds the steps that are due to an empty batch.
    pub(super) fn add_copies(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        let schemas = std::sync::Arc::clone(self.index.schemas());
        for plan in schemas.plans() {
            if !self.is_copied(plan) {
                self.passes.remove(&plan.number());
                continue;
            }
            let recorded = self.index.phases().get(plan.number()).cloned().unwrap_or_default();
            // A pass counts only if it began in the phase.
            let pass = self.passes.remove(&plan.number()).filter(|pass| pass.phase == recorded.phase);
            let mut pass = pass.unwrap_or_else(|| Pass::resumed(plan, &recorded));
            if pass.next_at <= now && writing.batch.writes.is_empty() {
                self.add_copy(&mut pass, plan, &recorded, writing, stored, now);
            }
            self.passes.insert(plan.number(), pass);
        }
    }

    fn add_copy(
        &self,
        pass: &mut Pass,
        plan: &Plan,
        recorded: &PhaseRecord,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) {
        if pass.progress.is_over {
            (pass.progress.looked_at, pass.progress.failed) = (0, 0);
            pass.progress.failures.clear();
            (pass.has_written, pass.is_resumed, pass.progress.is_over) = (false, false, false);
            pass.splits = recorded.splits;
        }
        pass.next_at = now.saturating_add(self.config.pass_pause);
        let judging = self.judging(writing, stored, now);
        let limit = STEP.min(self.config.engine.operations.saturating_sub(4)).max(1);
        let Some(mut copied) = self.copied(&judging, plan, &pass.position, limit) else {
            // The engine cannot be read. The pass looks again later.
            pass.next_at = now.saturating_add(SECOND);
            return;
        };
        pass.progress.looked_at += copied.looked_at as u64;
        pass.progress.failed += copied.failed.len() as u64;
        let room = FAILURES.saturating_sub(pass.progress.failures.len());
        pass.progress.failures.extend(copied.failed.into_iter().take(room));
        pass.has_written |= copied.judged.is_some();
        let next = copied.next.take();
        let is_end = next.is_none();
        if is_end {
            pass.progress.ended += 1;
            let is_whole = !pass.is_resumed && pass.splits == recorded.splits;
            pass.progress.is_clean = !pass.has_written && pass.progress.failed == 0 && is_whole;
            // SV40.
            let is_done = !pass.has_written && is_whole;
            pass.next_at = now.saturating_add(if is_done { PASS_EVERY } else { self.config.pass_pause });
        }
        // SV22: a step that writes records its position, and a pass that ends records that.
        let record = PhaseRecord {
            from: recorded.phase,
            pass: next.as_ref().filter(|_| copied.judged.is_some()).map(PassPosition::to_proto),
            is_clean: if is_end { pass.progress.is_clean } else { recorded.is_clean },
            // SV13: the next plan may begin.
            done_at: match pass.phase == Phase::F5.number() && is_end && pass.progress.is_clean {
                true if recorded.done_at == 0 => now,
                true | false => recorded.done_at,
            },
            ..recorded.clone()
        };
        let is_news = copied.judged.is_some()
            || (is_end && (recorded.is_clean != record.is_clean || recorded.pass.is_some()));
        if is_news && let Ok(judged) = judging.with_record(copied.judged, plan.number(), &record) {
            let entry = LogEntry { identity: "migration".to_owned(), ..LogEntry::default() };
            writing.add(judged, entry, self.config.server);
        }
        pass.progress.is_over = is_end;
        pass.position = next.unwrap_or_default();
    }

    /// What a step does. If its changes do not fit together or into a batch, it has fewer of them; one that
    /// does not fit alone is left out.
    fn copied(
        &self,
        judging: &Judging<'_>,
        plan: &Plan,
        from: &PassPosition,
        limit: usize,
    ) -> Option<Copied> {
        let mut limit = limit;
        // SV30: in F4 a pass has no other part.
        let rewriting = PassPosition::rewriting();
        let is_f4 = self.index.phases().phase(plan) == Phase::F4;
        let from = if is_f4 && !from.is_rewriting { &rewriting } else { from };
        loop {
            let copied = match from.is_rewriting {
                true => judging.rewrite(plan, from, limit),
                false => judging.copy(plan, from, limit),
            };
            let fits = |copied: &Copied| {
                let alone = Writing::new(self.head.clone(), None, 0);
                let size = copied.judged.as_ref().map(|judged| alone.size_with(judged, RECORD_BYTES));
                let limits = &self.config.engine;
                // The record of the plan is one more operation.
                size.is_none_or(|(operations, bytes)| operations < limits.operations && bytes <= limits.bytes)
            };
            match copied {
                Ok(copied) if fits(&copied) => return Some(copied),
                Ok(_) if limit == 1 => {
                    return judging.skip(plan, from, "its two forms are larger than a batch of the engine");
                }
                Ok(_) => limit = limit.div_ceil(2),
                Err(_) if limit > 1 => limit = 1,
                Err(refused) => return judging.skip(plan, from, &refused.message),
            }
        }
    }
}

impl Pass {
    pub(super) fn progress(&self) -> &PassProgress {
        &self.progress
    }

    pub(super) fn is_of(&self, phase: Phase) -> bool {
        self.phase == phase.number()
    }

    /// Goes on where the last server stopped.
    fn resumed(plan: &Plan, recorded: &PhaseRecord) -> Self {
        let position = recorded.pass.as_ref().and_then(PassPosition::of_proto);
        let is_resumed = position.is_some();
        let progress =
            PassProgress { plan: plan.number(), is_clean: recorded.is_clean, ..PassProgress::default() };
        let (phase, position) = (recorded.phase, position.unwrap_or_default());
        Self { progress, phase, position, is_resumed, splits: recorded.splits, ..Self::default() }
    }
}

/// How many records a step looks at.
const STEP: usize = 100;
/// SV22: how often there is a step: 1,000 records in a second.
pub(super) const STEP_EVERY: i64 = SECOND / 10;
/// When the next pass begins after one that wrote nothing.
const PASS_EVERY: i64 = 60 * SECOND;
/// The failures of a pass that are listed.
const FAILURES: usize = 20;
/// More than the record of a plan takes, with what is around it.
const RECORD_BYTES: usize = 16 << 10;
