//! Collects the changes that the system reports, until a reload takes them.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RemoveKind};
use tokio::sync::Notify;

/// What to read again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Extent {
    #[default]
    Everything,
    Paths(BTreeSet<PathBuf>),
}

/// Changes that the watcher reported and that are not read yet. Bounded: too many paths become
/// "everything".
#[derive(Debug, Default)]
pub(in crate::folder) struct Changes {
    batch: Mutex<Batch>,
    changed: Notify,
}

impl Changes {
    pub(in crate::folder) fn note(&self, event: notify::Result<notify::Event>) {
        self.batch().note(Instant::now(), event);
        self.changed.notify_one();
    }

    pub(super) fn note_everything(&self) {
        self.batch().note_everything(Instant::now());
        self.changed.notify_one();
    }

    pub(super) fn take(&self) -> Extent {
        self.batch().take(Instant::now())
    }

    /// The files that have been written for long, each once.
    pub(super) fn long_written(&self) -> Vec<PathBuf> {
        self.batch().long_written(Instant::now())
    }

    /// Whether a program is writing a file now. A link in the path is followed, because the events
    /// have the path of the file itself.
    pub(in crate::folder) fn is_being_written(&self, path: &Path) -> bool {
        let is_written = |path: PathBuf| self.batch().is_being_written(Instant::now(), &path);
        self.has_writers() && path.canonicalize().is_ok_and(is_written)
    }

    pub(in crate::folder) fn has_writers(&self) -> bool {
        !self.batch().writing.is_empty()
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are changes and no more are coming.
    pub(super) async fn ready(&self) {
        loop {
            let deadline = self.batch().deadline();
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
    writing: HashMap<PathBuf, Writing>,
}

/// A file that a program is writing.
#[derive(Debug)]
struct Writing {
    since: Instant,
    /// So long it counts as incomplete.
    until: Instant,
    is_reported: bool,
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
            EventKind::Modify(ModifyKind::Data(_)) if CLOSING_IS_REPORTED => {
                return self.note_writing(now, event.paths, WRITING_LIMIT);
            }
            // A link is complete when it is created.
            EventKind::Create(_)
                if CLOSING_IS_REPORTED && !event.paths.iter().any(|path| path.is_symlink()) =>
            {
                // A hard link is complete too, and nothing closes it. So do not wait for long.
                return self.note_writing(now, event.paths, LONGEST_WAIT);
            }
            // What is at the path now is another file, or nothing.
            EventKind::Access(_) | EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => {
                for path in &event.paths {
                    self.writing.remove(path);
                }
            }
            EventKind::Any | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Other => {}
        }
        self.paths.extend(event.paths);
        self.touch(now);
        if self.paths.len() > PATHS_LIMIT {
            self.note_everything(now);
        }
    }

    /// Notes files that are being written. They are no change yet: that comes with their closing.
    fn note_writing(&mut self, now: Instant, paths: Vec<PathBuf>, limit: Duration) {
        for path in paths {
            let new = Writing { since: now, until: now, is_reported: false };
            let writing = self.writing.entry(path).or_insert(new);
            writing.until = writing.until.max(now + limit);
        }
        if self.writing.len() > PATHS_LIMIT {
            self.writing.clear();
            self.note_everything(now);
        }
    }

    fn is_being_written(&self, now: Instant, path: &Path) -> bool {
        self.writing.get(path).is_some_and(|writing| now < writing.until)
    }

    /// The files that have been written for long, each once.
    fn long_written(&mut self, now: Instant) -> Vec<PathBuf> {
        let is_new = |writing: &Writing| !writing.is_reported && now >= writing.since + REPORT_WRITING_AFTER;
        let new = self.writing.iter_mut().filter(|(_, writing)| is_new(writing));
        let report = |(path, writing): (&PathBuf, &mut Writing)| {
            writing.is_reported = true;
            path.clone()
        };
        let mut paths: Vec<_> = new.map(report).collect();
        paths.sort();
        paths
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
    /// [`LONGEST_WAIT`]. Files that are being written are not part of it then. Each is a change when
    /// it is closed, or when it was not written for [`WRITING_LIMIT`].
    fn deadline(&self) -> Option<Instant> {
        let oldest = self.writing.values().map(|writing| writing.until).min();
        let Some((first, last)) = self.span else { return oldest };
        let latest = first + LONGEST_WAIT;
        Some(if self.writing.is_empty() { latest.min(last + QUIET) } else { latest })
    }

    fn take(&mut self, now: Instant) -> Extent {
        let (writing, complete) =
            mem::take(&mut self.writing).into_iter().partition(|(_, writing)| now < writing.until);
        self.writing = writing;
        let complete: HashMap<PathBuf, Writing> = complete;
        self.paths.extend(complete.into_keys());
        self.span = None;
        let (everything, mut paths) = (mem::take(&mut self.everything), mem::take(&mut self.paths));
        paths.retain(|path| !self.writing.contains_key(path));
        if everything { Extent::Everything } else { Extent::Paths(paths) }
    }
}

/// Changes closer together than this are one reload.
const QUIET: Duration = Duration::from_millis(20);

/// No change waits longer than this for others.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// A file that was not written for this long counts as complete although no program closed it: one
/// may keep it open for ever, and the report of its closing may be lost. A generator or a copy over
/// a slow network that is still at work writes more often.
const WRITING_LIMIT: Duration = Duration::from_secs(30);

/// When the log says that a file is still being written.
const REPORT_WRITING_AFTER: Duration = Duration::from_secs(10);

/// From this number of paths on, comparing all stamps does not cost more.
const PATHS_LIMIT: usize = 10_000;

/// Linux reports when a writer closes a file.
pub(super) const CLOSING_IS_REPORTED: bool = cfg!(target_os = "linux");

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
        assert_eq!(batch.take(start + QUIET), Extent::Paths(BTreeSet::from(["/d/a.yaml".into()])));
        assert_eq!(batch.deadline(), None);
    }

    fn only(path: &str) -> Extent {
        Extent::Paths(BTreeSet::from([path.into()]))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_being_written_is_no_change_until_it_is_closed() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        batch.note(start, event(WRITTEN, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + WRITING_LIMIT));
        // Other files go on meanwhile, after a moment in which the file may be closed.
        batch.note(start + ms(5), event(RENAMED, "/d/b.yaml"));
        assert_eq!(batch.deadline(), Some(start + ms(5) + LONGEST_WAIT));
        assert_eq!(batch.take(start + ms(300)), only("/d/b.yaml"));
        batch.note(start + ms(9_000), event(CLOSED, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + ms(9_000) + QUIET));
        assert_eq!(batch.take(start + ms(9_100)), only("/d/a.yaml"));
        assert_eq!(batch.deadline(), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_nobody_closes_is_complete_30_s_after_the_last_write() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        batch.note(start, event(WRITTEN, "/d/a.yaml"));
        batch.note(start + ms(20_000), event(WRITTEN, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + ms(50_000)));
        assert!(batch.is_being_written(start + ms(49_999), Path::new("/d/a.yaml")));
        assert_eq!(batch.long_written(start + ms(9_999)), [""; 0].map(PathBuf::from));
        assert_eq!(batch.long_written(start + ms(10_000)), [PathBuf::from("/d/a.yaml")]);
        assert_eq!(batch.long_written(start + ms(20_000)), [""; 0].map(PathBuf::from), "once");
        assert_eq!(batch.take(start + ms(50_000)), only("/d/a.yaml"));
        assert!(!batch.is_being_written(start + ms(50_000), Path::new("/d/a.yaml")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_replaced_or_created_without_a_write_is_not_waited_for() {
        let (mut batch, start) = (Batch::default(), Instant::now());
        batch.note(start, event(WRITTEN, "/d/a.yaml"));
        batch.note(start, event(RENAMED, "/d/a.yaml"));
        assert_eq!(batch.deadline(), Some(start + QUIET));
        assert_eq!(batch.take(start + QUIET), only("/d/a.yaml"));
        batch.note(start, event(EventKind::Create(CreateKind::File), "/d/hard-link.yaml"));
        assert_eq!(batch.deadline(), Some(start + LONGEST_WAIT));
        assert_eq!(batch.take(start + LONGEST_WAIT), only("/d/hard-link.yaml"));
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
            assert_eq!(batch.take(Instant::now()), Extent::Everything);
        }
        let mut flood = Batch::default();
        for number in 0..=PATHS_LIMIT {
            flood.note(Instant::now(), event(RENAMED, &format!("/d/{number}.yaml")));
        }
        assert_eq!(flood.take(Instant::now()), Extent::Everything);
    }
}
