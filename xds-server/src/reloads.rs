//! Whether what is in use is what is there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::timeout;

/// How a source fares that is read again and again, of which the last good state stays in use: a folder, certificates, a policy.
///
/// Whoever reads the source says what came of it, and whoever watches the server asks.
#[derive(Debug, Default)]
pub struct Reloads {
    state: Mutex<State>,
    requested: Notify,
}

#[derive(Debug, Default)]
struct State {
    good_at: Option<SystemTime>,
    /// What is wrong with the newest content; `None` while that is in use.
    mistake: Option<String>,
    changes: u64,
    refusals: u64,
}

impl Reloads {
    /// What was read is in use from now on.
    pub fn on_new(&self) {
        self.on_same();
        self.state().changes += 1;
    }

    /// What was read is what is in use.
    pub fn on_same(&self) {
        let mut state = self.state();
        (state.good_at, state.mistake) = (Some(SystemTime::now()), None);
    }

    /// What was read cannot be used. Whether that is news: a mistake that stays is one.
    pub fn on_refused(&self, mistake: String) -> bool {
        let mut state = self.state();
        let is_new = state.mistake.as_ref() != Some(&mistake);
        state.refusals += u64::from(is_new);
        state.mistake = Some(mistake);
        is_new
    }

    /// Has the source read again now: somebody knows that it changed.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    /// Waits until somebody has the source read again. For the one who reads it.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Waits until the source is to be read again: after this time, or when somebody says so.
    pub async fn due(&self, every: Duration) {
        // Both ends are reasons to read.
        _ = timeout(every, self.requested()).await;
    }

    /// Whether the newest content is in use, rather than what was there before.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let state = self.state();
        state.good_at.is_some() && state.mistake.is_none()
    }

    /// When the source was last looked at and found good, whether it had changed or not; `None` before the first time.
    #[must_use]
    pub fn good_at(&self) -> Option<SystemTime> {
        self.state().good_at
    }

    /// How often other content came into use, the first one among it.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// How often content was refused.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.state().refusals
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is in there is whole whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_source_is_due_after_its_time_and_at_once_when_somebody_says_so() {
        let (reloads, every, start) = (Reloads::default(), Duration::from_secs(2), Instant::now());
        reloads.due(every).await;
        assert_eq!(start.elapsed(), every);
        reloads.request();
        reloads.due(every).await;
        assert_eq!(start.elapsed(), every, "also when it was said before");
    }

    #[test]
    fn a_mistake_that_stays_is_counted_once_and_what_was_good_stays_good() {
        let reloads = Reloads::default();
        assert!(!reloads.is_current() && reloads.good_at().is_none());
        reloads.on_new();
        let good_at = reloads.good_at();
        assert!(reloads.on_refused("line 1".into()) && !reloads.on_refused("line 1".into()));
        assert!(!reloads.is_current() && reloads.good_at() == good_at);
        assert!(reloads.on_refused("line 2".into()));
        // Put back as it was.
        reloads.on_same();
        assert!(reloads.is_current() && reloads.good_at() >= good_at);
        assert!(reloads.on_refused("line 2".into()), "it was good between");
        assert_eq!((reloads.changes(), reloads.refusals()), (1, 3));
    }
}
