//! Sets files with errors aside, and serves all others: each file is a transaction of its own,
//! unless files conflict.
//!
//! The last good content of a file that is set aside stays in service. So if new content conflicts
//! with content in service, the file with the new content is set aside; of two files with new
//! content, the one with the later path is.

use std::collections::BTreeSet;

use xds_core::{Commit, CommitError, Transaction, VariantId};

use super::error::{FolderError, Problem};
use super::index::{Changes, FileContent, Index, Plan, PlannedFiles};

impl Index {
    /// Removes files with errors from the changes, adds an error for each, and commits the rest.
    /// Returns `None` if the cache refuses the commit and no changed file is the reason, or if no
    /// resource is left and the folder must not be empty; the last error is the reason.
    pub(super) fn commit_usable(
        &self,
        changes: &mut Changes,
        errors: &mut Vec<FolderError>,
        may_be_empty: bool,
        mut commit: impl FnMut(Transaction) -> Result<Commit, CommitError>,
    ) -> Option<(Commit, PlannedFiles)> {
        let broken: BTreeSet<_> = errors.iter().map(|error| error.file.clone()).collect();
        changes.retain(|(file, _)| !broken.contains(file));
        loop {
            self.set_aside_duplicates(changes, errors);
            if !may_be_empty && self.is_emptied_by(changes) {
                errors.push(FolderError::new("", Problem::NoResources));
                return None;
            }
            // The cache refuses a commit as a whole and names one conflict, so try again without the
            // file that is to blame, until a commit is accepted.
            let Plan { transaction, files } = self.plan(changes.clone());
            let error = match commit(transaction) {
                Ok(commit) => return Some((commit, files)),
                Err(error) => error,
            };
            let blamed = self.blamed(changes, &error);
            errors.push(self.refused(&files, error, blamed.as_deref()));
            let blamed = blamed?;
            changes.retain(|(file, _)| *file != blamed);
        }
    }

    /// Sets files with duplicates aside. When a file is set aside, its last content is in service
    /// again, so the other files are checked again.
    fn set_aside_duplicates(&self, changes: &mut Changes, errors: &mut Vec<FolderError>) {
        loop {
            let found = self.duplicates(changes);
            let blamed: BTreeSet<_> = found.iter().map(|error| error.file.clone()).collect();
            // A file that conflicts only with a file that is set aside itself may have no conflict
            // then.
            let is_sure = |error: &FolderError| match &error.problem {
                Problem::Duplicate { file, .. } => !blamed.contains(file),
                _ => true,
            };
            let (mut sure, unsure): (Vec<_>, Vec<_>) = found.into_iter().partition(is_sure);
            if sure.is_empty() {
                sure = unsure;
            }
            if sure.is_empty() {
                return;
            }
            changes.retain(|(file, _)| sure.iter().all(|error| error.file != *file));
            errors.append(&mut sure);
        }
    }

    /// The file whose new content is the reason for a refused transaction.
    fn blamed(&self, changes: &Changes, error: &CommitError) -> Option<Box<str>> {
        let is_meant = |id: &VariantId| concerns(error, id);
        let mut involved = None;
        for (file, found) in changes {
            let FileContent::Resources(_, parsed) = found else { continue };
            for id in parsed.iter().map(|parsed| parsed.resource.id()).filter(|id| is_meant(id)) {
                // Changes are in the order of paths, so the file with the last path wins.
                involved = involved.max(Some((!self.provides(file, id), file)));
            }
        }
        involved.map(|(_, file)| file.clone())
    }
}

/// Whether an error is about this variant.
pub(crate) fn concerns(error: &CommitError, id: &VariantId) -> bool {
    match error {
        CommitError::Ambiguous { first, second, .. } | CommitError::KeySets { first, second, .. } => {
            id == first || id == second
        }
        CommitError::Unsatisfiable { id: meant }
        | CommitError::TooComplex { id: meant }
        | CommitError::Contradiction { id: meant } => id == meant,
        CommitError::AliasTaken { type_url, first, second, .. } => {
            id.type_url == *type_url && (id.name == *first || id.name == *second)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use xds_core::{Cache, Resource};

    use super::super::document::ParsedResource;
    use super::super::scan::Stamp;
    use super::*;

    /// A file with resources `name` or `name when`, one per line from line 1.
    fn file(resources: &[&str]) -> FileContent {
        let parsed = (1..).zip(resources).map(|(line, text)| {
            let (name, condition) = text.split_once(' ').unwrap_or((text, ""));
            let made = Resource::new("example.com/acme.Thing", name, "x").unwrap();
            let made = match condition {
                "" => made,
                condition => made.with_constraints(condition.parse().unwrap()),
            };
            ParsedResource { resource: made, line }
        });
        FileContent::Resources(Stamp::default(), parsed.collect())
    }

    /// Commits the changes; returns the errors of the files that were set aside.
    fn apply(index: &mut Index, cache: &Cache, files: Vec<(&str, FileContent)>) -> Vec<String> {
        let mut changes: Changes = files.into_iter().map(|(name, found)| (name.into(), found)).collect();
        let mut errors = Vec::new();
        let commit = |transaction| cache.commit(transaction);
        let done = index.commit_usable(&mut changes, &mut errors, false, commit);
        index.accept(done.unwrap().1);
        errors.iter().map(ToString::to_string).collect()
    }

    fn names(cache: &Cache) -> Vec<String> {
        let snapshot = cache.snapshot();
        let resources = snapshot.of_type(&"example.com/acme.Thing".into()).unwrap();
        let mut names: Vec<_> = resources.iter().map(|(name, _)| name.as_str().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn of_two_new_files_that_collide_the_one_with_the_later_path_is_set_aside() {
        let (mut index, cache) = (Index::default(), Cache::new());
        let files = vec![("a", file(&["x"])), ("b", file(&["x", "y"])), ("c", file(&["y", "z"]))];
        // c does not conflict with served content.
        assert_eq!(apply(&mut index, &cache, files), [r#"b:1:1: acme.Thing "x" is also in a, line 1"#]);
        assert_eq!(names(&cache), ["x", "y", "z"]);
        let variants = vec![("d", file(&["v k=1"])), ("e", file(&["v k!=2"])), ("f", file(&["w"]))];
        let errors = apply(&mut index, &cache, variants);
        assert!(errors.len() == 1 && errors[0].starts_with("e:1:1: acme.Thing \"v\": "), "{errors:?}");
        assert!(errors[0].ends_with("; the first is in d, line 1"), "{errors:?}");
        assert_eq!(names(&cache), ["v", "w", "x", "y", "z"]);
    }

    #[test]
    fn what_is_in_service_stays_whatever_its_path_and_new_content_in_conflict_is_set_aside() {
        let (mut index, cache) = (Index::default(), Cache::new());
        assert_eq!(apply(&mut index, &cache, vec![("b", file(&["x", "v k=1"]))]), [""; 0]);
        let errors = apply(&mut index, &cache, vec![("a", file(&["x", "q"])), ("c", file(&["v k!=2"]))]);
        assert_eq!(errors.len(), 2);
        assert!(errors[0].starts_with("a:1:1: ") && errors[1].starts_with("c:1:1: "), "{errors:?}");
        assert_eq!(names(&cache), ["v", "x"]);
        // b changes too, and keeps the resource that a also has.
        let both = vec![("a", file(&["x"])), ("b", file(&["x", "y"]))];
        assert_eq!(apply(&mut index, &cache, both), [r#"a:1:1: acme.Thing "x" is also in b, line 1"#]);
        assert_eq!(names(&cache), ["x", "y"]);
    }

    #[test]
    fn a_name_does_not_move_away_from_a_file_that_is_set_aside() {
        let (mut index, cache) = (Index::default(), Cache::new());
        apply(&mut index, &cache, vec![("a", file(&["x"])), ("m", file(&["y"]))]);
        // y moves from m to z, but m conflicts with a. So m keeps its last content, and z cannot
        // have y yet.
        let moved = vec![("m", file(&["x"])), ("z", file(&["y", "q"]))];
        let errors = apply(&mut index, &cache, moved);
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!(names(&cache), ["x", "y"]);
        assert_eq!(
            apply(&mut index, &cache, vec![("m", FileContent::Missing), ("z", file(&["y", "q"]))]),
            [""; 0]
        );
        assert_eq!(names(&cache), ["q", "x", "y"]);
    }
}
