//! Whether what is in use is what is there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// How a source fares that is read again and again, of which the last good state stays in use: a
/// folder, certificates, a policy.
///
/// Whoever reads the source says what came of it, and whoever watches the server asks.
#[derive(Debug, Default)]
pub struct Reloads {
    state: Mutex<State>,
    requested: Notify,
    reads: Mutex<Reads>,
}

/// The reads that go on now.
#[derive(Debug, Default)]
struct Reads {
    next: u64,
    open: BTreeMap<u64, (String, Instant)>,
}

/// A read that goes on until this is dropped. Made by [`Reloads::reading`].
#[derive(Debug)]
pub struct Reading<'a> {
    reloads: &'a Reloads,
    number: u64,
}

#[derive(Debug, Default)]
struct State {
    good_at: Option<SystemTime>,
    /// What is wrong with the newest content; `None` while that is in use.
    mistake: Option<String>,
    changes: u64,
    refusals: u64,
    /// Parts of the newest content that are not in use, while others are.
    isolated: usize,
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
        (state.good_at, state.mistake, state.isolated) = (Some(SystemTime::now()), None, 0);
    }

    /// What was read is in use but for these many parts, such as files, which keep what was good
    /// last; and whether other content came into use by it.
    pub fn on_isolated(&self, parts: usize, mistake: String, has_changed: bool) {
        self.on_refused(mistake);
        let mut state = self.state();
        (state.isolated, state.changes) = (parts, state.changes + u64::from(has_changed));
    }

    /// How many parts of the newest content are not in use while others are.
    #[must_use]
    pub fn isolated(&self) -> usize {
        self.state().isolated
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

    /// When the source was last looked at and found good, whether it had changed or not; `None`
    /// before the first time.
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

    /// Notes that a file is looked at or read, before it is. A file system that hangs is seen by
    /// this.
    pub fn reading(&self, file: &str) -> Reading<'_> {
        let mut reads = self.reads();
        reads.next += 1;
        let number = reads.next;
        reads.open.insert(number, (file.to_owned(), Instant::now()));
        Reading { reloads: self, number }
    }

    /// The file whose read goes on for longest now, and for how long; `None` while nothing is read.
    #[must_use]
    pub fn longest_read(&self) -> Option<(String, Duration)> {
        let reads = self.reads();
        let (file, since) = reads.open.values().min_by_key(|(_, since)| *since)?;
        Some((file.clone(), since.elapsed()))
    }

    /// Runs what reads files away from the threads that serve. When one of its reads takes 10 s, as
    /// on a network file system that hangs, the log has a warning with the file, and a line when
    /// that read ends.
    ///
    /// # Errors
    /// The work panicked, or the runtime shuts down.
    pub async fn blocking<T: Send + 'static>(
        &self,
        source: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        self.watch(source, STALLED, work).await
    }

    async fn watch<T: Send + 'static>(
        &self,
        source: &str,
        stalled: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let mut work = spawn_blocking(work);
        let mut hanging = Hanging::default();
        loop {
            let done = tokio::select! {
                done = &mut work => Some(done),
                () = sleep(stalled.min(LOOK_EVERY)) => None,
            };
            let now = self.longest_read().filter(|(_, age)| done.is_none() && *age >= stalled);
            for notice in hanging.look(now) {
                match notice {
                    Notice::Hangs { file, age } => {
                        let seconds = age.as_secs();
                        warn!(source, file, seconds, "a read hangs; changes are not followed until it ends");
                    }
                    Notice::Ended { file } => info!(source, file, "the read that hung has ended"),
                }
            }
            if let Some(done) = done {
                return done;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is in there is whole whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The read that the log was last warned of, while it goes on.
#[derive(Debug, Default)]
struct Hanging(Option<String>);

/// What the log is to say of a read.
#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Hangs { file: String, age: Duration },
    Ended { file: String },
}

impl Hanging {
    /// What is new, given the read that hangs now.
    fn look(&mut self, now: Option<(String, Duration)>) -> Vec<Notice> {
        if self.0.as_ref() == now.as_ref().map(|(file, _)| file) {
            return Vec::new();
        }
        let ended = self.0.take().map(|file| Notice::Ended { file });
        self.0 = now.as_ref().map(|(file, _)| file.clone());
        ended.into_iter().chain(now.map(|(file, age)| Notice::Hangs { file, age })).collect()
    }
}

impl Reading<'_> {
    /// That read ended, and the next one begins.
    pub fn next(&self, file: &str) {
        if let Some((name, since)) = self.reloads.reads().open.get_mut(&self.number) {
            file.clone_into(name);
            *since = Instant::now();
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.reloads.reads().open.remove(&self.number);
    }
}

/// A disk answers sooner, also a slow one.
const STALLED: Duration = Duration::from_secs(10);

/// How often to see whether a read hangs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_source_is_due_after_its_time_and_at_once_when_somebody_says_so() {
        let (reloads, every, start) =
            (Reloads::default(), Duration::from_secs(2), tokio::time::Instant::now());
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
        reloads.on_isolated(2, "file".into(), true);
        reloads.on_isolated(2, "file".into(), false);
        assert_eq!((reloads.changes(), reloads.refusals(), reloads.isolated()), (2, 4, 2));
        assert!(!reloads.is_current());
        reloads.on_same();
        assert!(reloads.is_current() && reloads.isolated() == 0);
    }

    #[test]
    fn a_read_that_hangs_is_logged_once_and_so_is_its_end() {
        let (mut hanging, age) = (Hanging::default(), Duration::from_secs(10));
        let read = |file: &str| Some((file.to_owned(), age));
        let hangs = |file: &str| Notice::Hangs { file: file.into(), age };
        let ended = |file: &str| Notice::Ended { file: file.into() };
        assert_eq!(hanging.look(None), []);
        assert_eq!(hanging.look(read("a.yaml")), [hangs("a.yaml")]);
        assert_eq!(hanging.look(read("a.yaml")), []);
        assert_eq!(hanging.look(read("b.yaml")), [ended("a.yaml"), hangs("b.yaml")]);
        assert_eq!(hanging.look(None), [ended("b.yaml")]);
    }

    #[tokio::test]
    async fn a_read_that_does_not_end_is_seen_from_outside_and_goes_when_it_ends() {
        let reloads = Arc::new(Reloads::default());
        let (end, ended) = mpsc::channel::<()>();
        let (begin, mut begun) = tokio::sync::oneshot::channel();
        let (of_work, of_watch) = (Arc::clone(&reloads), Arc::clone(&reloads));
        let work = move || {
            let reading = of_work.reading("a.yaml");
            reading.next("b.yaml");
            begin.send(()).unwrap();
            ended.recv().unwrap();
        };
        let watching =
            tokio::spawn(async move { of_watch.watch("folder", Duration::from_millis(1), work).await });
        (&mut begun).await.unwrap();
        assert_eq!(reloads.longest_read().unwrap().0, "b.yaml");
        end.send(()).unwrap();
        watching.await.unwrap().unwrap();
        assert_eq!(reloads.longest_read(), None);
    }
}
