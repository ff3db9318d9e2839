//! Whether the newest content of a source is in use.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The state of a source that is read repeatedly and whose last good content stays in use: a
/// folder, certificates, a policy.
///
/// The reader of the source reports each result here, and monitoring reads it.
#[derive(Debug, Default)]
pub struct Reloads {
    state: Mutex<State>,
    requested: Notify,
    reads: Mutex<Reads>,
}

/// The reads in progress.
#[derive(Debug, Default)]
struct Reads {
    next: u64,
    open: BTreeMap<u64, (String, Instant)>,
}

/// A read in progress; it ends when this is dropped. Made by [`Reloads::reading`].
#[derive(Debug)]
pub struct Reading<'a> {
    reloads: &'a Reloads,
    number: u64,
}

/// Newest content that is not in use, because it has an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub mistake: String,
    /// When content with an error was first read; all content since then had one too.
    pub since: SystemTime,
    /// When content with an error was last read.
    pub last_at: SystemTime,
    /// How often content with an error was read since then. It may be the same content each time.
    pub count: u64,
}

#[derive(Debug, Default)]
struct State {
    good_at: Option<SystemTime>,
    /// The error in the newest content; `None` while that content is in use.
    refusal: Option<Refusal>,
    changes: u64,
    refusals: u64,
    /// The number of parts of the newest content that are not in use, while others are.
    isolated: usize,
    label: Box<str>,
}

impl State {
    /// Returns whether the error is new.
    fn refuse(&mut self, mistake: String) -> bool {
        let (last, now) = (self.refusal.take(), SystemTime::now());
        let is_new = last.as_ref().is_none_or(|last| last.mistake != mistake);
        self.refusals += u64::from(is_new);
        let (since, count) = last.map_or((now, 0), |last| (last.since, last.count));
        self.refusal = Some(Refusal { mistake, since, last_at: now, count: count + 1 });
        is_new
    }
}

impl Reloads {
    /// New content was read and is in use from now on.
    pub fn on_new(&self) {
        self.on_same();
        self.state().changes += 1;
    }

    /// The content that was read is already in use.
    pub fn on_same(&self) {
        let mut state = self.state();
        (state.good_at, state.refusal, state.isolated) = (Some(SystemTime::now()), None, 0);
    }

    /// The new content is in use except for this number of parts, such as files, which keep their
    /// last good state. `has_changed` says whether other content came into use.
    pub fn on_isolated(&self, parts: usize, mistake: String, has_changed: bool) {
        let mut state = self.state();
        state.refuse(mistake);
        (state.isolated, state.changes) = (parts, state.changes + u64::from(has_changed));
    }

    /// The number of parts of the newest content that are not in use, while others are.
    #[must_use]
    pub fn isolated(&self) -> usize {
        self.state().isolated
    }

    /// The content that was read is not usable. Returns whether the error is new.
    pub fn on_refused(&self, mistake: String) -> bool {
        let mut state = self.state();
        state.isolated = 0;
        state.refuse(mistake)
    }

    /// The newest content, if it is not in use because of an error.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.state().refusal.clone()
    }

    /// Sets the label of the content in use, such as a Git revision.
    pub fn set_label(&self, label: &str) {
        self.state().label = label.into();
    }

    /// The label of the content in use; empty if the source has none.
    #[must_use]
    pub fn label(&self) -> Box<str> {
        self.state().label.clone()
    }

    /// Requests an immediate read, because the source has changed.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    /// Waits for a requested read. For the reader of the source.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Waits until the next read is due: after this time, or when a read is requested.
    pub async fn due(&self, every: Duration) {
        // A timeout and a request are both reasons to read.
        _ = timeout(every, self.requested()).await;
    }

    /// Whether the newest content is in use, and not older content.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let state = self.state();
        state.good_at.is_some() && state.refusal.is_none()
    }

    /// When the source was last read and found valid, changed or not; `None` before the first time.
    #[must_use]
    pub fn good_at(&self) -> Option<SystemTime> {
        self.state().good_at
    }

    /// How often new content came into use, including the first.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// How often content was refused, counting each error once while it lasts.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.state().refusals
    }

    /// Notes that the read of a file starts; call it before the read. It reveals a file system that
    /// hangs.
    pub fn reading(&self, file: &str) -> Reading<'_> {
        let mut reads = self.reads();
        reads.next += 1;
        let number = reads.next;
        reads.open.insert(number, (file.to_owned(), Instant::now()));
        Reading { reloads: self, number }
    }

    /// The file with the longest read in progress, and its duration; `None` if nothing is being
    /// read.
    #[must_use]
    pub fn longest_read(&self) -> Option<(String, Duration)> {
        let reads = self.reads();
        let (file, since) = reads.open.values().min_by_key(|(_, since)| *since)?;
        Some((file.clone(), since.elapsed()))
    }

    /// Runs work that reads files on a blocking thread. If one read takes 10 s, as on a network
    /// file system that hangs, it logs a warning with the file, and another line when that read
    /// ends.
    ///
    /// # Errors
    /// If the work panics, or the runtime shuts down.
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
        // The data is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The read that the log has a warning of, while it is in progress.
#[derive(Debug, Default)]
struct Hanging(Option<String>);

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Hangs { file: String, age: Duration },
    Ended { file: String },
}

impl Hanging {
    /// The new lines, given the read that hangs now.
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
    /// Notes that this read has ended and the next one starts.
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

/// Even a slow disk answers sooner.
const STALLED: Duration = Duration::from_secs(10);

/// How often to check whether a read hangs.
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
        assert_eq!(start.elapsed(), every, "also after an earlier request");
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
        let refusal = reloads.refusal().unwrap();
        assert_eq!((&*refusal.mistake, refusal.count), ("line 2", 3));
        assert!(refusal.since <= refusal.last_at && Some(refusal.since) >= good_at);
        // Put back as it was.
        reloads.on_same();
        assert!(reloads.is_current() && reloads.good_at() >= good_at && reloads.refusal().is_none());
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
