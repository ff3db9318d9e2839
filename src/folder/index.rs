//! Knows which file provides which resources, and turns changed files into a transaction. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map};
use std::ops::Bound;

use xds_core::{CommitError, CommitOrigin, Resource, Transaction, TypeUrl, VariantId};

use super::document::ParsedResource;
use super::error::{FolderError, Position, Problem};
use super::format::FileFormat;
use super::scan::Stamp;

/// The files of the last good state.
///
/// Small on purpose, because a folder may have 100,000 files. Each file has its path, its stamp,
/// and the ids of its resources, whose text is shared with the cache. To find the file of a
/// resource takes a search: a second map would cost memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: BTreeMap<Box<str>, FileState>,
    resources: usize,
}

/// The state of one file.
#[derive(Debug)]
pub(super) struct FileState {
    stamp: Stamp,
    keys: Box<[ProvidedVariant]>,
}

#[derive(Debug)]
struct ProvidedVariant {
    id: VariantId,
    line: u32,
}

/// The content of a file that may have changed.
#[derive(Debug, Clone)]
pub(super) enum FileContent {
    /// The file does not exist.
    Missing,
    /// The resources of the file, and its stamp.
    Resources(Stamp, Vec<ParsedResource>),
}

/// Files that may have changed, in order.
pub(super) type Changes = Vec<(Box<str>, FileContent)>;

/// The result of a change. First commit the transaction, then [`Index::accept`] the files.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) transaction: Transaction,
    pub(super) files: PlannedFiles,
}

/// The new states of the changed files, in order. They are valid once the transaction is committed.
#[derive(Debug)]
pub(super) struct PlannedFiles {
    files: Vec<(Box<str>, Option<FileState>)>,
    resources: usize,
}

impl Index {
    /// Builds the transaction for changed files. The changes must not contain
    /// [`duplicates`](Self::duplicates).
    ///
    /// A resource may move from one of the changed files to another.
    pub(super) fn plan(&self, changes: Changes) -> Plan {
        let kept: HashSet<&VariantId> = provided(&changes).map(|(key, _)| key).collect();
        let mut removed: Vec<VariantId> = self.provided_before(&changes).cloned().collect();
        let resources = self.resources - removed.len() + kept.len();
        removed.retain(|key| !kept.contains(key));
        drop(kept);
        let mut transaction = Transaction::new();
        let listed = changes.iter().take(FILES_LISTED).map(|(file, _)| file.clone());
        *transaction.origin() = CommitOrigin {
            source: "folder".into(),
            files: listed.collect(),
            file_count: changes.len(),
            ..CommitOrigin::default()
        };
        for id in removed {
            transaction.remove(id);
        }
        // Each document has its own copy of the type URL. Share one copy: there may be 100,000
        // files.
        let mut types = BTreeSet::<TypeUrl>::new();
        let files = changes
            .into_iter()
            .map(|(file, found)| match found {
                FileContent::Missing => (file, None),
                FileContent::Resources(stamp, parsed) => {
                    let keys = parsed.iter().map(|ParsedResource { resource, line }| {
                        let mut id = resource.id().clone();
                        match types.get(&id.type_url) {
                            Some(known) => id.type_url = known.clone(),
                            None => _ = types.insert(id.type_url.clone()),
                        }
                        ProvidedVariant { id, line: *line }
                    });
                    let state = FileState { stamp, keys: keys.collect() };
                    parsed.into_iter().for_each(|parsed| transaction.put(parsed.resource));
                    (file, Some(state))
                }
            })
            .collect();
        Plan { transaction, files: PlannedFiles { files, resources } }
    }

    /// Whether no resource is left after the changes.
    pub(super) fn is_emptied_by(&self, changes: &Changes) -> bool {
        provided(changes).next().is_none() && self.provided_before(changes).count() == self.resources
    }

    /// The changed files that lose a resource which no other changed file has.
    pub(super) fn removing<'a>(&self, changes: &'a Changes) -> BTreeSet<&'a str> {
        let kept: HashSet<&VariantId> = provided(changes).map(|(key, _)| key).collect();
        let is_removing = |file: &&str| {
            self.files.get(*file).is_some_and(|state| state.keys.iter().any(|key| !kept.contains(&key.id)))
        };
        changes.iter().map(|(file, _)| &**file).filter(is_removing).collect()
    }

    /// Resources that two files provide after the changes. The error is an error of the file in
    /// which the resource is new, or else of the file with the later path.
    pub(super) fn duplicates(&self, changes: &Changes) -> Vec<FolderError> {
        let mut errors = Vec::new();
        let mut places = HashMap::new();
        for (key, place) in provided(changes) {
            match places.entry(key) {
                hash_map::Entry::Vacant(entry) => _ = entry.insert(place),
                hash_map::Entry::Occupied(mut entry) => {
                    let first = *entry.get();
                    if self.provides(place.0, key) && !self.provides(first.0, key) {
                        entry.insert(place);
                        errors.push(duplicate(key, first, place));
                    } else {
                        errors.push(duplicate(key, place, first));
                    }
                }
            }
        }
        // No other file has the resources that the changed files had before. Only new ones need a
        // search.
        for key in self.provided_before(changes) {
            places.remove(key);
        }
        if !places.is_empty() {
            let unchanged = self.files.iter().filter(|(file, _)| !contains(changes, file));
            for (file, state) in unchanged {
                for key in &state.keys {
                    if let Some(place) = places.get(&key.id) {
                        errors.push(duplicate(&key.id, *place, (file, key.line)));
                    }
                }
            }
        }
        errors
    }

    /// Whether a file provides the resource in the last good state.
    pub(super) fn provides(&self, file: &str, id: &VariantId) -> bool {
        self.files.get(file).is_some_and(|state| state.keys.iter().any(|key| key.id == *id))
    }

    /// Turns a refused transaction into an error of a file: of the blamed file, if it is known.
    pub(super) fn refused(
        &self,
        planned: &PlannedFiles,
        error: CommitError,
        blamed: Option<&str>,
    ) -> FolderError {
        let place = |id: &VariantId| {
            let unchanged = self.files.iter().filter(|(file, _)| !planned.contains(file));
            let before = || unchanged.into_iter().find_map(|(file, state)| place(file, state, id));
            planned.place(id).or_else(before)
        };
        let (here, other) = match &error {
            CommitError::Ambiguous { first, second, .. } | CommitError::KeySets { first, second, .. } => {
                match (place(second), place(first)) {
                    // The second variant comes from another source of the same cache.
                    (None, here) => (here, None),
                    places => places,
                }
            }
            CommitError::Unsatisfiable { id }
            | CommitError::TooComplex { id }
            | CommitError::Contradiction { id } => (place(id), None),
            _ => (None, None),
        };
        let is_blamed =
            |place: &Option<(Box<str>, u32)>| place.as_ref().is_some_and(|(file, _)| Some(&**file) == blamed);
        let (here, other) =
            if is_blamed(&other) && !is_blamed(&here) { (other, here) } else { (here, other) };
        let (file, line) = here.unzip();
        let file = file.or_else(|| blamed.map(Box::from)).unwrap_or_default();
        let is_text = FileFormat::of(&file) != Some(FileFormat::Protobuf);
        let at = line.filter(|_| is_text).map(|line| Position { line, column: 1 });
        FolderError { at, ..FolderError::new(&file, Problem::Commit { error: Box::new(error), other }) }
    }

    /// All files after these changes. `resource` has the resources of files that did not change.
    pub(super) fn contents_after(
        &self,
        changes: &Changes,
        resource: impl Fn(&VariantId) -> Option<Resource>,
    ) -> Changes {
        let mut files = changes.clone();
        let unchanged = self.files.iter().filter(|(file, _)| !contains(changes, file));
        files.extend(unchanged.map(|(file, state)| {
            let parsed = state
                .keys
                .iter()
                .filter_map(|key| Some(ParsedResource { resource: resource(&key.id)?, line: key.line }));
            (file.clone(), FileContent::Resources(state.stamp, parsed.collect()))
        }));
        files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        files
    }

    /// Accepts the files of a plan as the last good state.
    pub(super) fn accept(&mut self, planned: PlannedFiles) {
        if self.files.is_empty() {
            // Build the map at once, so that its nodes are full.
            let files = planned.files.into_iter().filter_map(|(file, state)| Some((file, state?)));
            self.files = files.collect();
            self.resources = planned.resources;
            return;
        }
        for (file, state) in planned.files {
            match state {
                Some(state) => _ = self.files.insert(file, state),
                None => _ = self.files.remove(&file),
            }
        }
        self.resources = planned.resources;
        debug_assert_eq!(self.resources, self.files.values().map(|state| state.keys.len()).sum::<usize>());
    }

    /// The files to read, in order: those whose stamps differ, and those to read `again`. Removed
    /// files have `None`.
    pub(super) fn differing(
        &self,
        stamps: Vec<(Box<str>, Stamp)>,
        again: &BTreeSet<Box<str>>,
    ) -> Vec<(Box<str>, Option<Stamp>)> {
        let is_there = |file: &str| stamps.binary_search_by(|(given, _)| (**given).cmp(file)).is_ok();
        let removed = self.files.keys().filter(|file| !is_there(file)).map(|file| (file.clone(), None));
        let mut differing: Vec<_> = removed.collect();
        let is_new = |(file, stamp): &(Box<str>, Stamp)| {
            again.contains(file) || self.files.get(file).is_none_or(|state| state.stamp != *stamp)
        };
        differing.extend(stamps.into_iter().filter(is_new).map(|(file, stamp)| (file, Some(stamp))));
        differing.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        differing
    }

    /// The resources of the changed files in the last good state.
    pub(super) fn provided_before(&self, changes: &Changes) -> impl Iterator<Item = &VariantId> {
        let states = changes.iter().filter_map(|(file, _)| self.files.get(file));
        states.flat_map(|state| &state.keys).map(|key| &key.id)
    }

    /// The resources of all files in the last good state.
    pub(super) fn ids(&self) -> impl Iterator<Item = &VariantId> {
        self.files.values().flat_map(|state| &state.keys).map(|key| &key.id)
    }

    pub(super) fn contains(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    /// Gives a file another path. Its resources stay, and it counts as changed.
    pub(super) fn rename(&mut self, from: &str, to: Box<str>) {
        if let Some(state) = self.files.remove(from) {
            self.files.insert(to, FileState { stamp: Stamp::default(), ..state });
        }
    }

    /// Whether the last good state has files below the path.
    pub(super) fn has_files_below(&self, directory: &str) -> bool {
        let start = format!("{directory}/");
        let mut after = self.files.range::<str, _>((Bound::Included(start.as_str()), Bound::Unbounded));
        after.next().is_some_and(|(file, _)| file.starts_with(&start))
    }

    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    pub(super) fn resources(&self) -> usize {
        self.resources
    }
}

impl PlannedFiles {
    /// The file and line of a resource, if one of these files provides it.
    fn place(&self, id: &VariantId) -> Option<(Box<str>, u32)> {
        self.files.iter().find_map(|(file, state)| place(file, state.as_ref()?, id))
    }

    fn contains(&self, file: &str) -> bool {
        self.files.binary_search_by(|(changed, _)| (**changed).cmp(file)).is_ok()
    }
}

fn place(file: &str, state: &FileState, id: &VariantId) -> Option<(Box<str>, u32)> {
    state.keys.iter().find(|key| key.id == *id).map(|key| (file.into(), key.line))
}

fn contains(changes: &Changes, file: &str) -> bool {
    changes.binary_search_by(|(changed, _)| (**changed).cmp(file)).is_ok()
}

/// The resources in changed files, each with its file and line.
pub(super) fn provided(changes: &Changes) -> impl Iterator<Item = (&VariantId, (&str, u32))> {
    changes.iter().flat_map(|(file, found)| {
        let parsed = if let FileContent::Resources(_, parsed) = found { &**parsed } else { &[] };
        parsed.iter().map(|parsed| (parsed.resource.id(), (&**file, parsed.line)))
    })
}

fn duplicate(id: &VariantId, (file, line): (&str, u32), (other, other_line): (&str, u32)) -> FolderError {
    let problem = Problem::Duplicate { id: id.clone(), file: other.into(), line: other_line };
    // In a .pb file the line is the number of the resource.
    let at = (FileFormat::of(file) != Some(FileFormat::Protobuf)).then_some(Position { line, column: 1 });
    FolderError { at, ..FolderError::new(file, problem) }
}

/// How many changed files the origin of a commit lists.
const FILES_LISTED: usize = 20;

#[cfg(test)]
mod tests {
    use xds_core::Cache;

    use super::*;

    const THING: &str = "example.com/acme.Thing";

    fn thing(name: &str, payload: &'static str) -> Resource {
        Resource::new(THING, name, payload.as_bytes()).unwrap()
    }

    /// A file with one resource per name, from line 1 on.
    fn file(names: &[&str]) -> FileContent {
        let parsed = (1..).zip(names).map(|(line, name)| ParsedResource { resource: thing(name, "x"), line });
        FileContent::Resources(Stamp::default(), parsed.collect())
    }

    fn changes(files: Vec<(&str, FileContent)>) -> Changes {
        files.into_iter().map(|(name, found)| (name.into(), found)).collect()
    }

    /// Plans, commits and accepts; returns how many resources the commit changed.
    fn apply(index: &mut Index, cache: &Cache, files: Vec<(&str, FileContent)>) -> usize {
        let plan = index.plan(changes(files));
        index.accept(plan.files);
        cache.commit(plan.transaction).unwrap().changed
    }

    fn duplicates(index: &Index, files: Vec<(&str, FileContent)>) -> Vec<String> {
        index.duplicates(&changes(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_change_touches_only_what_differs() {
        let (mut index, cache) = (Index::default(), Cache::new());
        assert_eq!(
            apply(&mut index, &cache, vec![("a.yaml", file(&["a", "b"])), ("c.yaml", file(&["c"]))]),
            3
        );
        assert_eq!(apply(&mut index, &cache, vec![("a.yaml", file(&["a", "d"]))]), 2);
        assert_eq!(apply(&mut index, &cache, vec![("c.yaml", FileContent::Missing)]), 1);
        assert_eq!(index.resources(), 2);
    }

    #[test]
    fn a_key_may_move_between_files_of_one_change() {
        let (mut index, cache) = (Index::default(), Cache::new());
        apply(&mut index, &cache, vec![("a.yaml", file(&["a", "b"])), ("z.yaml", file(&["z"]))]);
        let moved = vec![("a.yaml", file(&["z"])), ("z.yaml", file(&["a", "b"]))];
        assert_eq!(apply(&mut index, &cache, moved), 0);
    }

    #[test]
    fn two_places_with_one_key_are_both_named() {
        let (mut index, cache) = (Index::default(), Cache::new());
        let both = duplicates(&index, vec![("a.yaml", file(&["x", "y"])), ("b.pb", file(&["y"]))]);
        assert_eq!(both, [r#"b.pb: acme.Thing "y" is also in a.yaml, line 2"#]);
        apply(&mut index, &cache, vec![("a.yaml", file(&["x", "y"]))]);
        let later = duplicates(&index, vec![("b.yaml", file(&["q", "y"]))]);
        assert_eq!(later, [r#"b.yaml:2:1: acme.Thing "y" is also in a.yaml, line 2"#]);
        let moved = duplicates(&index, vec![("a.yaml", file(&["x"])), ("b.yaml", file(&["q", "y"]))]);
        assert_eq!(moved, [""; 0]);
    }

    #[test]
    fn a_folder_is_emptied_only_when_nothing_else_is_left() {
        let (mut index, cache) = (Index::default(), Cache::new());
        assert!(index.is_emptied_by(&changes(vec![("a.yaml", file(&[]))])));
        apply(&mut index, &cache, vec![("a.yaml", file(&["a"]))]);
        assert!(index.is_emptied_by(&changes(vec![("a.yaml", FileContent::Missing)])));
        assert!(!index.is_emptied_by(&changes(vec![("b.yaml", FileContent::Missing)])));
        assert!(
            !index.is_emptied_by(&changes(vec![("a.yaml", FileContent::Missing), ("b.yaml", file(&["b"]))]))
        );
    }

    #[test]
    fn a_directory_is_known_by_the_files_below_it() {
        let (mut index, cache) = (Index::default(), Cache::new());
        apply(&mut index, &cache, vec![("sub/a.yaml", file(&["a"])), ("sub.yaml", file(&["b"]))]);
        assert!(index.has_files_below("sub"));
        assert!(!index.has_files_below("su"));
    }
}
