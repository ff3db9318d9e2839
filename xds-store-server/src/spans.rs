//! Spans of migrations for trace collectors: one for each plan, with one for each pass.

use std::collections::BTreeMap;

use tracing::field::Empty;
use tracing::{Span, debug_span};
use xds_store::phase::{Phase, Schemas};
use xds_store::store::{PassProgress, PlanProgress};

/// The open spans, by the number of the plan.
///
/// The span of a plan is open from F1 until the plan is done or back in F0, or until the server stops. The
/// collector gets it then, and those of its passes before.
#[derive(Debug, Default)]
pub(crate) struct MigrationSpans(BTreeMap<u32, PlanSpan>);

#[derive(Debug)]
struct PlanSpan {
    span: Span,
    phase: Phase,
    pass: Span,
    /// How the pass was when it was looked at the last time.
    last: PassProgress,
}

impl MigrationSpans {
    /// Looks at the progress of all plans after a step of the store.
    pub(crate) fn look(&mut self, plans: &[PlanProgress], schemas: &Schemas) {
        for progress in plans {
            if progress.phase == Phase::F0 || progress.done_at.is_some() {
                if let Some(mut plan) = self.0.remove(&progress.number) {
                    // A pass that ended together with the plan is part of it.
                    plan.look(progress);
                }
                continue;
            }
            let begin = || {
                let plan = schemas.plans().iter().find(|plan| plan.number() == progress.number);
                PlanSpan::begin(plan.map_or("", |plan| plan.name()), progress.phase)
            };
            self.0.entry(progress.number).or_insert_with(begin).look(progress);
        }
    }
}

impl PlanSpan {
    fn begin(name: &str, phase: Phase) -> Self {
        let span =
            debug_span!(target: TRACE_TARGET, parent: None, "store_migration", plan = name, phase = Empty);
        span.record("phase", phase.number());
        Self { span, phase, pass: Span::none(), last: PassProgress::default() }
    }

    fn look(&mut self, progress: &PlanProgress) {
        let pass = &progress.pass;
        if self.phase != progress.phase {
            self.span.record("phase", progress.phase.number());
            // A pass ends with its phase.
            (self.phase, self.pass, self.last) = (progress.phase, Span::none(), PassProgress::default());
        }
        let has_ended = pass.ended > self.last.ended;
        // In a phase that lasts for days, a clean pass follows another each minute.
        let repeats = self.last.is_clean && pass.is_clean;
        let is_running = !pass.is_over && pass.looked_at > 0;
        if self.pass.is_none() && !repeats && (is_running || has_ended) {
            let number = progress.phase.number();
            self.pass = debug_span!(
                target: TRACE_TARGET, parent: &self.span, "pass", phase = number,
                records = Empty, failed = Empty, clean = Empty, otel.status_code = Empty
            );
        }
        if has_ended {
            let span = std::mem::replace(&mut self.pass, Span::none());
            span.record("records", pass.looked_at)
                .record("failed", pass.failed)
                .record("clean", pass.is_clean);
            if pass.failed > 0 {
                span.record("otel.status_code", "ERROR");
            }
        }
        // The list of failures is long, and of no use here.
        self.last = PassProgress { failures: Vec::new(), ..pass.clone() };
    }
}

/// The target of the spans of the store, as that of commits to the cache.
pub(crate) const TRACE_TARGET: &str = "xds_commit";
