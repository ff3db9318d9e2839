//! Keeps [`StandingWarnings`] up to date while a folder is watched.

use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::{JoinHandle, spawn_blocking};

use super::contents::Contents;
use super::lint::{KnownReferences, Warning};
use super::standing::{Difference, StandingWarnings, WarningPolicy};

/// Checks the content in use, one check at a time, on a thread that serves no clients.
#[derive(Debug)]
pub(super) struct Linter {
    standing: Arc<StandingWarnings>,
    policy: WarningPolicy,
    schedule: Schedule,
    running: Option<JoinHandle<Checked>>,
    known: KnownReferences,
}

/// The result of a check.
#[derive(Debug)]
struct Checked {
    warnings: Vec<Warning>,
    known: KnownReferences,
    took: Duration,
}

impl Linter {
    pub(super) fn new(standing: Arc<StandingWarnings>, policy: WarningPolicy) -> Self {
        let (schedule, known) = (Schedule::default(), KnownReferences::default());
        Self { standing, policy, schedule, running: None, known }
    }

    /// Other content is in use, or `domains.yaml` changed.
    pub(super) fn on_content(&mut self) {
        self.schedule.on_content(Instant::now());
    }

    /// Waits until the next check is due, which is never while one runs.
    pub(super) async fn due(&mut self) {
        loop {
            if let Some(running) = &mut self.running {
                let checked = running.await;
                self.running = None;
                // It fails only if the runtime shuts down, or by a defect: then the next check tries again.
                if let Ok(checked) = checked {
                    self.on_checked(checked);
                }
                continue;
            }
            match self.schedule.deadline() {
                Some(at) => return tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        }
    }

    /// Starts a check of this content.
    pub(super) fn check(&mut self, contents: Contents) {
        self.schedule.on_start();
        let (mut known, policy) = (mem::take(&mut self.known), self.policy.clone());
        self.running = Some(spawn_blocking(move || {
            let started_at = Instant::now();
            let mut warnings = contents.warnings_with(&mut known);
            policy.retain(&mut warnings);
            Checked { warnings, known, took: started_at.elapsed() }
        }));
    }

    fn on_checked(&mut self, checked: Checked) {
        let Checked { warnings, known, took } = checked;
        self.known = known;
        self.schedule.on_end(Instant::now(), took);
        tracing::debug!(warnings = warnings.len(), ?took, "checked the folder for warnings");
        log(&self.standing.replace(SystemTime::now(), warnings));
    }
}

fn log(difference: &Difference) {
    let Difference { new, ended, new_not_shown, ended_not_shown } = difference;
    for warning in new {
        let (kind, hint) = (warning.kind(), warning.hint());
        let place = warning.locations.first().map_or_else(String::new, |location| format!("{location}: "));
        tracing::warn!(kind, hint, "{place}{warning}");
    }
    for warning in ended {
        tracing::info!(kind = warning.kind(), "the warning has ended: {warning}");
    }
    if *new_not_shown > 0 || *ended_not_shown > 0 {
        tracing::warn!(
            new = new_not_shown,
            ended = ended_not_shown,
            "more warnings began or ended than the log shows; `xds check` lists all"
        );
    }
}

/// When to check. The time is an argument.
#[derive(Debug, Default)]
struct Schedule {
    /// The times of the first and the last change that no check has seen.
    span: Option<(Instant, Instant)>,
    not_before: Option<Instant>,
}

impl Schedule {
    fn on_content(&mut self, now: Instant) {
        let first = self.span.map_or(now, |(first, _)| first);
        self.span = Some((first, now));
    }

    /// A check starts, of the newest content.
    fn on_start(&mut self) {
        self.span = None;
    }

    fn on_end(&mut self, now: Instant, took: Duration) {
        self.not_before = Some(now + took * PAUSE_FACTOR);
    }

    fn deadline(&self) -> Option<Instant> {
        let (first, last) = self.span?;
        let ripe = (last + QUIET).min(first + LONGEST_WAIT);
        Some(self.not_before.map_or(ripe, |not_before| ripe.max(not_before)))
    }
}

/// A check starts after this time without changes.
const QUIET: Duration = Duration::from_secs(1);

/// A check waits no longer than this for the end of changes.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The pause after a check is this many times as long as the check, so that checks use at most a
/// tenth of one core.
const PAUSE_FACTOR: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_waits_for_the_end_of_changes_but_not_for_ever() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.deadline(), None);
        schedule.on_content(start);
        assert_eq!(schedule.deadline(), Some(start + QUIET));
        for step in 1..=100 {
            schedule.on_content(start + step * Duration::from_millis(500));
        }
        assert_eq!(schedule.deadline(), Some(start + LONGEST_WAIT));
        schedule.on_start();
        assert_eq!(schedule.deadline(), None);
    }

    #[test]
    fn a_long_check_is_followed_by_a_longer_pause() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        schedule.on_end(start, Duration::from_secs(3));
        schedule.on_content(start);
        assert_eq!(schedule.deadline(), Some(start + Duration::from_secs(27)));
    }
}
