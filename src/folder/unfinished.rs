//! Decides which changed files wait, because a program may still be writing them. Half of a list of
//! resources can be valid, and would remove the other half from clients.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::Problem;
use super::index::{Changes, FileContent};
use super::scan::{self, PathKind, Stamp};
use super::{Folder, Isolation, watch};

/// What is known about files that may be half-written.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// Knows the files that programs are writing now; `None` if the folder is not watched.
    pub(super) writers: Option<Arc<watch::Changes>>,
    /// Whether a changed file may be half-written although no writer is known.
    pub(super) look_twice: bool,
    /// What the last look saw of the files that wait for a second one. `None` for a file that was
    /// gone.
    seen: BTreeMap<Box<str>, Option<Stamp>>,
    /// When the first file began to wait.
    since: Option<Instant>,
    /// Whether a program is writing a file that had an error before.
    had_errors: bool,
}

impl Unfinished {
    pub(super) fn awaits_second_look(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Whether files are left out of a load, so that its success does not mean that errors have ended.
    pub(super) fn may_hide_errors(&self) -> bool {
        self.had_errors || self.awaits_second_look()
    }

    /// Ends the wait: the next look is a first one.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
        self.since = None;
    }
}

impl Folder {
    /// Leaves out files that a program is writing. Their closing is a change of its own. Returns
    /// those that a failed load could not bring in.
    pub(super) fn leave_out_written(
        &mut self,
        changed: &mut Vec<(Box<str>, Option<Stamp>)>,
    ) -> BTreeSet<Box<str>> {
        let is_written =
            |(file, stamp): &mut (Box<str>, Option<Stamp>)| stamp.is_some() && self.is_being_written(file);
        let mut written: BTreeSet<_> = changed.extract_if(.., is_written).map(|(file, _)| file).collect();
        written.retain(|file| self.pending.contains(file));
        self.unfinished.had_errors = !written.is_empty();
        written
    }

    /// Takes files that may be half-written out of the changes, and those that cannot come without
    /// them. Returns the latter: the next load must read them again.
    pub(super) fn hold_unfinished(&mut self, changes: &mut Changes) -> BTreeSet<Box<str>> {
        // A writer may have come between the event and our read.
        let is_written = |(file, found): &(Box<str>, FileContent)| {
            !matches!(found, FileContent::Missing) && self.is_being_written(file)
        };
        let written: BTreeSet<_> =
            changes.iter().filter(|change| is_written(change)).map(|(file, _)| file.clone()).collect();
        changes.retain(|(file, _)| !written.contains(file));
        let had_errors: BTreeSet<_> = written.intersection(&self.pending).cloned().collect();
        self.unfinished.had_errors |= !had_errors.is_empty();
        if self.unfinished.look_twice {
            let unsettled = self.unsettled(changes);
            changes.retain(|(file, _)| !unsettled.contains(file));
            self.unfinished.seen.retain(|file, _| unsettled.contains(file));
            if unsettled.is_empty() {
                self.unfinished.forget();
            }
        }
        &self.hold_dependents(changes) | &had_errors
    }

    /// The files that wait for another look.
    fn unsettled(&mut self, changes: &Changes) -> BTreeSet<Box<str>> {
        let removing = self.index.removing(changes);
        if removing.is_empty() {
            return BTreeSet::new();
        }
        let look = |(file, found): &(Box<str>, FileContent)| {
            let stamp = match found {
                // A network file system may answer from memory until the file is opened. So the stamp
                // from before the read is not enough.
                _ if removing.contains(&**file) => match scan::look(&self.root.join(&**file)) {
                    Ok(PathKind::File(stamp)) => Some(stamp),
                    _ => None,
                },
                FileContent::Resources(stamp, _) => Some(*stamp),
                FileContent::Missing => None,
            };
            (file.clone(), stamp)
        };
        let seen: BTreeMap<_, _> = changes.iter().map(look).collect();
        let last = mem::replace(&mut self.unfinished.seen, seen);
        let waited = self.unfinished.since.get_or_insert_with(Instant::now).elapsed();
        let seen = &self.unfinished.seen;
        if self.isolation == Isolation::Folder && waited < TOGETHER_LIMIT {
            // The folder is one transaction, so the other files wait too.
            return if last == *seen { BTreeSet::new() } else { seen.keys().cloned().collect() };
        }
        let is_unsettled = |file: &&str| last.get(*file) != seen.get(*file);
        removing.into_iter().filter(is_unsettled).map(Box::from).collect()
    }

    /// Holds files with a resource that a waiting file has: it may be about to lose it.
    fn hold_dependents(&self, changes: &mut Changes) -> BTreeSet<Box<str>> {
        let mut held = BTreeSet::new();
        let has_writers = self.unfinished.writers.as_ref().is_some_and(|writers| writers.has_writers());
        if !has_writers && !self.unfinished.awaits_second_look() {
            return held;
        }
        loop {
            let waits = |file: &str| {
                held.contains(file) || self.unfinished.seen.contains_key(file) || self.is_being_written(file)
            };
            let dependents: BTreeSet<_> = self
                .index
                .duplicates(changes)
                .into_iter()
                .filter(|error| matches!(&error.problem, Problem::Duplicate { file, .. } if waits(file)))
                .map(|error| error.file)
                .collect();
            if dependents.is_empty() {
                return held;
            }
            changes.retain(|(file, _)| !dependents.contains(file));
            held.extend(dependents);
        }
    }

    fn is_being_written(&self, file: &str) -> bool {
        let writers = self.unfinished.writers.as_ref();
        writers.is_some_and(|writers| writers.is_being_written(&self.root.join(file)))
    }
}

/// So long the files of a folder wait for the ones that may be half-written. After that, only these
/// wait, because a program may write without end.
const TOGETHER_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
