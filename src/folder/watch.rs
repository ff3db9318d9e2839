//! Live reload: decides when to read the folder again, and which files.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, mem};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use xds_core::Cache;
use xds_file::Reloads;

use self::batch::{CLOSING_IS_REPORTED, Extent};
use super::format::FileFormat;
use super::linter::Linter;
use super::{Folder, FolderErrors, Loaded, Reaction, scan};
use crate::source::finished;

pub(super) use self::batch::Changes;

mod batch;

impl Folder {
    /// Keeps the cache up to date with the folder until the future is dropped. Load the folder
    /// first.
    ///
    /// Follows writes in place, renames, replaced links (the `..data` of Kubernetes) and the
    /// replacement of the folder itself. Changes within 20 ms of each other are one commit, and no
    /// change waits for others longer than 250 ms. In addition, all stamps are compared every 30 s,
    /// because network file systems report no changes, and after
    /// [`Reloads::request`](xds_file::Reloads::request).
    ///
    /// A file that a program is still writing keeps its last good content until the program closes
    /// it, or does not write for 30 s. Where the system does not report that, resources are removed
    /// only if two looks, a second apart, see the same files.
    ///
    /// An error in a file is logged, and the last good state stays in use until the file is
    /// corrected.
    pub async fn watch(mut self, cache: Arc<Cache>) -> Infallible {
        let changes = Arc::new(Changes::default());
        let mut reporter = Reporter::default();
        self.unfinished.writers = Some(Arc::clone(&changes));
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
            for path in changes.long_written().iter().filter(|path| has_resources(path, self.root())) {
                let path = path.display();
                tracing::warn!(%path, "a program keeps this file open for writing; its last good content stays in use");
            }
            let (root, of_look) = (self.root().to_owned(), Arc::clone(&reloads));
            let identity = blocking(&reloads, move || {
                let _reading = of_look.reading("");
                Identity::of(&root)
            })
            .await;
            let pause = if self.unfinished.awaits_second_look() {
                LOOK_AGAIN_AFTER
            } else if watcher.is_some() {
                COMPARE_EVERY
            } else {
                COMPARE_UNWATCHED_EVERY
            };
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
            // The next look shows whether the errors have ended.
            if !(self.unfinished.may_hide_errors() && result.is_ok() && reporter.errors.is_some()) {
                reporter.reloaded(result);
            }
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
        // The system said that these files are complete. What a comparison finds may be incomplete.
        self.unfinished.look_twice = extent == Extent::Everything || !CLOSING_IS_REPORTED;
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

/// Whether a path is that of a file with resources. If it is not below the root, which may be a link,
/// its last part decides.
fn has_resources(path: &Path, root: &Path) -> bool {
    let last = || Some(path.file_name()?.to_str()?.into());
    let is_read = |file: Box<str>| {
        FileFormat::of(&file).is_some() && !file.split('/').any(|part| part.starts_with('.'))
    };
    below(path, root).or_else(last).is_some_and(is_read)
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

/// How often all stamps are compared, for file systems that report no changes.
const COMPARE_EVERY: Duration = Duration::from_secs(30);

/// The same while the folder cannot be watched.
const COMPARE_UNWATCHED_EVERY: Duration = Duration::from_secs(2);

/// When to look again before resources are removed.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often to check whether the folder itself was replaced.
const LOOK_AT_ROOT_EVERY: Duration = Duration::from_secs(1);

/// The most errors in the log at once; `xds check` shows all.
const ERRORS_LOGGED: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_files_with_resources_and_no_hidden_ones() {
        let named = |path: &str| has_resources(Path::new(path), Path::new("/etc/.xds"));
        assert!(named("/etc/.xds/a.yaml") && named("/etc/.xds/sub/a.pb") && named("/real/a.json"));
        assert!(!named("/etc/.xds/.a.yaml") && !named("/etc/.xds/..data/a.yaml") && !named("/real/a.txt"));
    }
}
