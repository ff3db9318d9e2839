//! Live reload: decides when to read the folder again, and which files.

use std::collections::{BTreeSet, HashSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, mem};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RemoveKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use xds_core::Cache;
use xds_file::Reloads;

use super::linter::Linter;
use super::{Folder, FolderErrors, Loaded, Reaction, scan};
use crate::source::finished;

impl Folder {
    /// Keeps the cache up to date with the folder until the future is dropped. Load the folder
    /// first.
    ///
    /// Follows writes in place, renames, replaced links (the `..data` of Kubernetes) and the
    /// replacement of the folder itself. Changes within 20 ms of each other are one commit, and no
    /// change waits longer than 250 ms. In addition, all stamps are compared every 30 s, because
    /// network file systems report no changes, and after
    /// [`Reloads::request`](xds_file::Reloads::request).
    ///
    /// An error in a file is logged, and the last good state stays in use until the file is
    /// corrected.
    pub async fn watch(mut self, cache: Arc<Cache>) -> Infallible {
        let changes = Arc::new(Changes::default());
        let mut reporter = Reporter::default();
        let mut watcher = None;
        let mut watched = None;
        let mut compared_at = Instant::now();
        let reloads = Arc::clone(self.reloads());
        let policy = self.warning_policy.clone();
        let is_linted = policy.reaction == Reaction::Report;
        let mut linter = Linter::new(Arc::clone(&self.standing_warnings), policy);
        if is_linted {
            self = self.lint(&mut linter, &cache).await;
        }
        loop {
            let (root, of_look) = (self.root().to_owned(), Arc::clone(&reloads));
            let identity = blocking(&reloads, move || {
                let _reading = of_look.reading("");
                Identity::of(&root)
            })
            .await;
            let pause = if watcher.is_some() { COMPARE_EVERY } else { COMPARE_UNWATCHED_EVERY };
            let is_due = compared_at.elapsed() >= pause;
            if watched != Some(identity) || (is_due && watcher.is_none()) {
                // First watch, then compare, so that no change is missed in between.
                let (root, changes_below) = (self.root().to_owned(), Arc::clone(&changes));
                let of_watcher = Arc::clone(&reloads);
                let made = blocking(&reloads, move || {
                    let _reading = of_watcher.reading("");
                    watch_root(&root, changes_below)
                });
                watcher = reporter.watcher(made.await);
                watched = Some(identity);
                changes.note_everything();
            } else if is_due {
                changes.note_everything();
            }
            tokio::select! {
                () = changes.ready() => {}
                () = reloads.requested() => {
                    changes.note_everything();
                    continue;
                }
                () = linter.due(), if is_linted => {
                    self = self.lint(&mut linter, &cache).await;
                    continue;
                }
                () = tokio::time::sleep(LOOK_AT_ROOT_EVERY) => continue,
            }
            let extent = changes.take();
            if matches!(extent, Extent::Everything) {
                compared_at = Instant::now();
            }
            let cache = Arc::clone(&cache);
            let result;
            (self, result) = blocking(&reloads, move || {
                let result = self.reload(&cache, extent);
                (self, result)
            })
            .await;
            // Isolated files are read again each time.
            if result.as_ref().is_ok_and(|loaded| {
                loaded.commit.changed > 0 || (loaded.files_read > 0 && loaded.isolated.is_none())
            }) {
                linter.on_content();
            }
            reporter.reloaded(result);
        }
    }

    /// Starts a check for warnings.
    async fn lint(self, linter: &mut Linter, cache: &Cache) -> Self {
        let (reloads, snapshot) = (Arc::clone(&self.reloads), cache.snapshot());
        let (folder, contents) = blocking(&reloads, move || {
            let contents = self.contents_after(&snapshot, &Vec::new());
            (self, contents)
        })
        .await;
        linter.check(contents);
        folder
    }

    fn reload(&mut self, cache: &Cache, extent: Extent) -> Result<Loaded, FolderErrors> {
        let root = self.root().canonicalize();
        match (extent, root) {
            (Extent::Paths(paths), Ok(root)) => {
                let files: Option<BTreeSet<Box<str>>> = paths
                    .iter()
                    .map(|path| below(path, &root).or_else(|| below(path, self.root())))
                    .collect();
                match files {
                    Some(files) => self.load_files(cache, files),
                    None => self.load(cache, |_| {}),
                }
            }
            (Extent::Everything | Extent::Paths(_), _) => self.load(cache, |_| {}),
        }
    }
}

/// The path of a file below a directory, in the form of the index; `None` for the directory itself
/// and for paths outside.
fn below(path: &Path, root: &Path) -> Option<Box<str>> {
    let parts: Option<Vec<&str>> = path.strip_prefix(root).ok()?.iter().map(|part| part.to_str()).collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join("/").into())
}

/// Identifies a directory, to detect that a path leads to another one. The default if the path
/// leads nowhere.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    /// A new directory may get the inode number of a removed one, so the number is not enough.
    created_at: Option<SystemTime>,
}

impl Identity {
    fn of(root: &Path) -> Self {
        fs::metadata(root).map_or_else(
            |_| Self::default(),
            |metadata| Self { inode: scan::inode(&metadata), created_at: metadata.created().ok() },
        )
    }
}

/// What to read again.
#[derive(Debug, Default, PartialEq, Eq)]
enum Extent {
    #[default]
    Everything,
    Paths(BTreeSet<PathBuf>),
}

/// Changes that the watcher reported and that are not read yet. Bounded: too many paths become
/// "everything".
#[derive(Debug, Default)]
struct Changes {
    batch: Mutex<Batch>,
    changed: Notify,
}

impl Changes {
    fn note(&self, event: notify::Result<notify::Event>) {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).note(Instant::now(), event);
        self.changed.notify_one();
    }

    fn note_everything(&self) {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).note_everything(Instant::now());
        self.changed.notify_one();
    }

    fn take(&self) -> Extent {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until there are changes and no more are coming.
    async fn ready(&self) {
        loop {
            let deadline = self.batch.lock().unwrap_or_else(PoisonError::into_inner).deadline();
            match deadline {
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(deadline.into()) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }
}

/// Changes that become one reload. The time is an argument.
#[derive(Debug, Default)]
struct Batch {
    /// The times of the first and the last event; `None` without changes.
    span: Option<(Instant, Instant)>,
    everything: bool,
    paths: BTreeSet<PathBuf>,
    /// Files that a program has started to write and not closed yet.
    writing: HashSet<PathBuf>,
}

impl Batch {
    fn note(&mut self, now: Instant, event: notify::Result<notify::Event>) {
        let event = match event {
            Ok(event) if event.need_rescan() => return self.note_everything(now),
            Ok(event) => event,
            Err(_) => return self.note_everything(now),
        };
        match event.kind {
            // Our own reads cause such events too.
            EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write) => return,
            EventKind::Create(CreateKind::Folder) | EventKind::Remove(RemoveKind::Folder) => {
                return self.note_everything(now);
            }
            EventKind::Access(_) => {
                for path in &event.paths {
                    self.writing.remove(path);
                }
            }
            EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_)) if CLOSING_IS_REPORTED => {
                // A link is complete when it is created.
                self.writing.extend(event.paths.iter().filter(|path| !path.is_symlink()).cloned());
            }
            EventKind::Any
            | EventKind::Create(_)
            | EventKind::Modify(_)
            | EventKind::Remove(_)
            | EventKind::Other => {}
        }
        self.paths.extend(event.paths);
        self.touch(now);
        if self.paths.len() > PATHS_LIMIT {
            self.note_everything(now);
        }
    }

    fn note_everything(&mut self, now: Instant) {
        self.everything = true;
        self.paths.clear();
        self.touch(now);
    }

    fn touch(&mut self, now: Instant) {
        let first = self.span.map_or(now, |(first, _)| first);
        self.span = Some((first, now));
    }

    /// When to reload: after a quiet moment if no file is being written, or at the latest after
    /// [`LONGEST_WAIT`].
    fn deadline(&self) -> Option<Instant> {
        let (first, last) = self.span?;
        let latest = first + LONGEST_WAIT;
        Some(if self.writing.is_empty() { latest.min(last + QUIET) } else { latest })
    }

    fn take(&mut self) -> Extent {
        let batch = mem::take(self);
        if batch.everything { Extent::Everything } else { Extent::Paths(batch.paths) }
    }
}

/// Logs reloads, and each error once, not at every reload that finds it again.
#[derive(Debug, Default)]
struct Reporter {
    errors: Option<FolderErrors>,
    is_unwatched: bool,
}

impl Reporter {
    fn reloaded(&mut self, result: Result<Loaded, FolderErrors>) {
        match result {
            Ok(loaded) => {
                let is_good_again = self.errors.is_some() && loaded.isolated.is_none();
                if is_good_again || loaded.commit.changed > 0 {
                    tracing::info!(
                        changed = loaded.commit.changed,
                        resources = loaded.resources,
                        files = loaded.files_read,
                        revision = %loaded.commit.revision,
                        label = Some(&*loaded.label).filter(|label| !label.is_empty()),
                        paths = paths(&loaded),
                        "{}",
                        if is_good_again { "the folder is good again" } else { "folder reloaded" }
                    );
                }
                match loaded.isolated {
                    Some(errors) => {
                        self.refused(
                            errors,
                            "files with errors keep their last good content; the others are served",
                        );
                    }
                    None => self.errors = None,
                }
            }
            Err(errors) => self.refused(errors, "the last good state of the folder stays in use"),
        }
    }

    /// Logs the new errors, and what the server does about them.
    fn refused(&mut self, errors: FolderErrors, meaning: &str) {
        if self.errors.as_ref() == Some(&errors) {
            return;
        }
        let known: BTreeSet<String> = self.errors.iter().flatten().map(ToString::to_string).collect();
        let new: Vec<_> =
            errors.iter().map(ToString::to_string).filter(|error| !known.contains(error)).collect();
        new.iter().take(ERRORS_LOGGED).for_each(|error| tracing::error!("{error}"));
        let more = new.len().saturating_sub(ERRORS_LOGGED);
        tracing::warn!(errors = errors.len(), not_shown = more, "{meaning}");
        self.errors = Some(errors);
    }

    fn watcher(&mut self, watcher: notify::Result<RecommendedWatcher>) -> Option<RecommendedWatcher> {
        match watcher {
            Ok(watcher) => {
                self.is_unwatched = false;
                Some(watcher)
            }
            Err(error) => {
                if !mem::replace(&mut self.is_unwatched, true) {
                    tracing::warn!(
                        %error,
                        "cannot watch the folder; comparing all files every {COMPARE_UNWATCHED_EVERY:?} instead"
                    );
                }
                None
            }
        }
    }
}

/// The paths of changed files, for the log.
fn paths(loaded: &Loaded) -> String {
    let mut text = loaded.paths.join(", ");
    if loaded.files_read > loaded.paths.len() {
        text.push_str(", ..");
    }
    text
}

fn watch_root(root: &Path, changes: Arc<Changes>) -> notify::Result<RecommendedWatcher> {
    // With the canonical path, the paths of events do not contain a link to the folder itself.
    let root = root.canonicalize().map_err(notify::Error::io)?;
    let mut watcher = notify::recommended_watcher(move |event| changes.note(event))?;
    watcher.watch(&root, RecursiveMode::Recursive)?;
    Ok(watcher)
}

/// Runs work that reads files on a thread that serves no clients.
async fn blocking<T: Send + 'static>(reloads: &Reloads, work: impl FnOnce() -> T + Send + 'static) -> T {
    finished(reloads.blocking("folder", work).await).await
}

/// Changes closer together than this are one reload.
const QUIET: Duration = Duration::from_millis(20);

/// No change waits longer than this.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// How often all stamps are compared, for file systems that report no changes.
const COMPARE_EVERY: Duration = Duration::from_secs(30);

/// The same while the folder cannot be watched.
const COMPARE_UNWATCHED_EVERY: Duration = Duration::from_secs(2);

/// How often to check whether the folder itself was replaced.
const LOOK_AT_ROOT_EVERY: Duration = Duration::from_secs(1);

/// From this number of paths on, comparing all stamps does not cost more.
const PATHS_LIMIT: usize = 10_000;

/// The most errors in the log at once; `xds check` shows all.
const ERRORS_LOGGED: usize = 100;

/// Linux reports when a writer closes a file.
const CLOSING_IS_REPORTED: bool = cfg!(target_os = "linux");

#[cfg(test)]
mod tests {
    use notify::Event;
    use notify::event::{DataChange, Flag, RenameMode};

    use super::*;

    const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const RENAMED: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    fn event(kind: EventKind, path: &str) -> notify::Result<Event> {
        Ok(Event::new(kind).add_path(path.into()))
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_rename_is_ripe_after_a_quiet_moment() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        batch.note(start, event(RENAMED, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + QUIET));
        assert_eq!(batch.take(), Extent::Paths(BTreeSet::from(["/d/a.yaml".into()])));
        assert_eq!(batch.deadline(), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_being_written_is_waited_for() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        batch.note(start, event(WRITTEN, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + LONGEST_WAIT));
        batch.note(start + ms(5), event(CLOSED, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + ms(5) + QUIET));
    }

    #[test]
    fn a_stream_of_changes_is_cut_after_the_longest_wait() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        for step in 0..100 {
            batch.note(start + ms(10 * step), event(RENAMED, &format!("/d/{step}.yaml")));
        }
        assert_eq!(batch.deadline(), Some(start + LONGEST_WAIT));
    }

    #[test]
    fn reading_a_file_is_no_change() {
        let mut batch = Batch::default();
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        batch.note(Instant::now(), event(opened, "/d/a.yaml"));
        assert_eq!(batch.deadline(), None);
    }

    #[test]
    fn lost_events_new_directories_and_floods_mean_everything() {
        let lost = Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan));
        let directory = event(EventKind::Create(CreateKind::Folder), "/d/sub");
        for event in [lost, directory, Err(notify::Error::generic("queue"))] {
            let mut batch = Batch::default();
            batch.note(Instant::now(), event);
            assert_eq!(batch.take(), Extent::Everything);
        }
        let mut flood = Batch::default();
        for number in 0..=PATHS_LIMIT {
            flood.note(Instant::now(), event(RENAMED, &format!("/d/{number}.yaml")));
        }
        assert_eq!(flood.take(), Extent::Everything);
    }
}
