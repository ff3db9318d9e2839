use std::fs;
use std::path::PathBuf;

use xds_core::{Cache, TypeUrl};

use super::*;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A folder that was loaded, and cannot be watched.
struct Polled {
    path: PathBuf,
    folder: Folder,
    cache: Arc<Cache>,
}

impl Polled {
    fn new(test: &str, isolation: Isolation, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("xds-unfinished-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Folder::new(&path).with_isolation(isolation);
        let mut polled = Self { path, folder, cache: Cache::new() };
        for (file, names) in files {
            polled.write(file, names);
        }
        polled.look();
        polled.folder.unfinished.look_twice = true;
        polled
    }

    /// Writes clusters of these names.
    fn write(&self, file: &str, names: &str) {
        let clusters =
            names.split_whitespace().map(|name| format!("- {{'@type': {CLUSTER}, name: {name}}}\n"));
        fs::write(self.path.join(file), format!("resources:\n{}", clusters.collect::<String>())).unwrap();
    }

    /// Compares all files; returns the names in the cache then.
    fn look(&mut self) -> String {
        self.folder.load(&self.cache, |_| {}).unwrap();
        let snapshot = self.cache.snapshot();
        let clusters = snapshot.of_type(&TypeUrl::from(CLUSTER)).into_iter().flat_map(|names| names.iter());
        let names: BTreeSet<_> = clusters.map(|(name, _)| name.as_str().to_owned()).collect();
        names.into_iter().collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn half_a_file_removes_nothing_until_two_looks_see_the_same() {
    let mut polled = Polled::new("half", Isolation::Folder, &[("a.yaml", "one two three"), ("b.yaml", "b")]);
    polled.write("a.yaml", "one");
    polled.write("b.yaml", "b new");
    assert_eq!(polled.look(), "b one three two");
    assert!(polled.folder.unfinished.awaits_second_look());
    polled.write("a.yaml", "one two");
    assert_eq!(polled.look(), "b one three two", "it is still being written");
    assert_eq!(polled.look(), "b new one two", "three was removed indeed");
    assert!(!polled.folder.unfinished.awaits_second_look());
}

#[test]
fn a_file_that_only_gains_resources_is_taken_at_once() {
    let mut polled = Polled::new("gains", Isolation::Folder, &[("a.yaml", "one")]);
    polled.write("a.yaml", "one two");
    assert_eq!(polled.look(), "one two");
    polled.write("a.yaml", "two");
    polled.write("b.yaml", "one");
    assert_eq!(polled.look(), "one two");
    assert!(!polled.folder.unfinished.awaits_second_look(), "one moved, so nothing was removed");
}

#[test]
fn files_that_come_one_after_another_are_looked_at_until_all_are_there() {
    let mut polled = Polled::new("files", Isolation::Folder, &[("a.yaml", "a"), ("b.yaml", "b")]);
    fs::remove_file(polled.path.join("a.yaml")).unwrap();
    fs::remove_file(polled.path.join("b.yaml")).unwrap();
    polled.write("c.yaml", "c");
    assert_eq!(polled.look(), "a b");
    polled.write("b.yaml", "b");
    assert_eq!(polled.look(), "a b", "the folder is one transaction, and it still changes");
    assert_eq!(polled.look(), "b c");
}

#[test]
fn with_isolation_other_files_go_on_and_a_name_waits_for_the_file_that_has_it() {
    let mut polled = Polled::new("isolated", Isolation::File, &[("a.yaml", "one two"), ("b.yaml", "b")]);
    polled.write("a.yaml", "");
    polled.write("b.yaml", "b two");
    polled.write("c.yaml", "c");
    assert_eq!(polled.look(), "b c one two");
    assert_eq!(polled.folder.pending.iter().map(|file| &**file).collect::<Vec<_>>(), ["b.yaml"]);
    assert_eq!(polled.look(), "b c two");
    assert!(polled.folder.pending.is_empty());
}

/// The first of two looks commits nothing, so it must not say that the errors have ended.
#[test]
fn an_error_stays_known_while_a_file_waits_for_its_second_look() {
    let mut polled = Polled::new("error", Isolation::Folder, &[("a.yaml", "one two"), ("b.yaml", "b")]);
    polled.write("c.yaml", "b");
    assert!(polled.folder.load(&polled.cache, |_| {}).is_err(), "b is in two files");
    polled.write("a.yaml", "one");
    polled.look();
    assert!(polled.folder.unfinished.awaits_second_look());
    assert!(polled.folder.reloads().refusal().is_some());
    assert!(polled.folder.load(&polled.cache, |_| {}).is_err());
    polled.write("c.yaml", "c");
    polled.look();
    assert_eq!(polled.look(), "b c one");
    assert!(polled.folder.reloads().refusal().is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn an_error_stays_known_while_its_file_is_written_again() {
    use notify::event::{DataChange, Event, EventKind, ModifyKind};

    let mut polled = Polled::new("written", Isolation::Folder, &[("a.yaml", "a"), ("b.yaml", "b")]);
    let writers = Arc::<watch::Changes>::default();
    polled.folder.unfinished.writers = Some(Arc::clone(&writers));
    fs::write(polled.path.join("a.yaml"), "resources: 5").unwrap();
    assert!(polled.folder.load(&polled.cache, |_| {}).is_err());
    let event = Event::new(EventKind::Modify(ModifyKind::Data(DataChange::Any)));
    writers.note(Ok(event.add_path(polled.path.canonicalize().unwrap().join("a.yaml"))));
    polled.write("b.yaml", "b other");
    assert_eq!(polled.look(), "a b other");
    assert!(polled.folder.reloads().refusal().is_some());
    assert!(polled.folder.pending.contains("a.yaml"));
}
