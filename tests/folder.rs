//! A folder of files as a source: loading, errors, and live reload.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "folder")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use xds::folder::{Folder, FolderErrors, Isolation, Label, Loaded, Problem};
use xds::{Cache, TypeUrl};
use xds_core::CommitOutcome;

#[path = "folder/beside.rs"]
mod beside;
#[path = "folder/live.rs"]
mod live;
#[path = "folder/new_style_names.rs"]
mod new_style_names;
#[path = "folder/variants.rs"]
mod variants;
#[path = "folder/wrappers.rs"]
mod wrappers;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A directory of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("folder-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A file with one cluster.
fn cluster(name: &str, stat_name: &str) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\nalt_stat_name: {stat_name}\n")
}

fn load(folder: &mut Folder, cache: &Cache) -> Result<Loaded, FolderErrors> {
    folder.load(cache, |_| {})
}

fn errors(result: Result<Loaded, FolderErrors>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

/// The payload of a cluster as text, in which its name and stat name can be found.
fn payload(cache: &Cache, name: &str) -> Option<String> {
    let snapshot = cache.snapshot();
    let variants = snapshot.get(&TypeUrl::from(CLUSTER), &name.into())?;
    Some(String::from_utf8_lossy(variants.iter().next()?.payload()).into_owned())
}

fn has(cache: &Cache, name: &str, stat_name: &str) -> bool {
    payload(cache, name).is_some_and(|payload| payload.contains(stat_name))
}

fn count(cache: &Cache) -> usize {
    cache.snapshot().counts().map(|(_, count)| count).sum()
}

fn revision(cache: &Cache) -> u64 {
    cache.snapshot().revision().to_string().parse().unwrap()
}

#[test]
fn files_of_all_kinds_are_found_at_any_depth_and_hidden_ones_are_not() {
    let scratch = Scratch::new("kinds");
    scratch.write("a.yaml", cluster("a", "s"));
    scratch.write("deep/er/b.yml", cluster("b", "s"));
    scratch.write("deep/c.json", format!("{{\"@type\": \"{CLUSTER}\", \"name\": \"c\"}}"));
    scratch.write("notes.txt", "not a resource");
    scratch.write(".hidden.yaml", cluster("hidden", "s"));
    scratch.write(".git/x.yaml", cluster("hidden", "s"));
    symlink("deep/er", scratch.path("a-link")).unwrap();
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    // The link shows the same resource under a second path.
    let twice = errors(load(&mut folder, &cache));
    assert_eq!(
        twice,
        [r#"deep/er/b.yml:1:1: envoy.config.cluster.v3.Cluster "b" is also in a-link/b.yml, line 1"#]
    );
    fs::remove_file(scratch.path("a-link")).unwrap();
    symlink("..", scratch.path("deep/loop")).unwrap();
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!((loaded.files, loaded.resources, loaded.commit.changed), (3, 3, 3));
}

#[test]
fn contents_are_refused_for_what_a_load_is_refused_for() {
    let variant = |when: &str| format!("---\n{}when: '{when}'\n", cluster("v", "s"));
    let folders: [&[String]; 9] = [
        &[cluster("a", "s"), cluster("b", "s")],
        &[cluster("a", "s"), cluster("a", "t")],
        &[variant("env=prod"), variant("env=test"), variant("env!=prod,env!=test")],
        &[variant("env=prod"), variant("env!=test")],
        &[variant("env=prod"), variant("zone=a")],
        &[variant("env=prod"), variant("env=prod")],
        &[variant("env=prod,!env")],
        &[cluster("a", "s") + "nme: x\n", cluster("b", "s")],
        &[],
    ];
    for (number, documents) in folders.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("contents-{number}"));
        fs::create_dir_all(&scratch.0).unwrap();
        for (file, document) in documents.iter().enumerate() {
            scratch.write(&format!("{file}.yaml"), document);
        }
        let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
        let contents = folder.contents(|_| {});
        match load(&mut folder, &cache) {
            Ok(loaded) => {
                assert_eq!(contents.errors(), None);
                assert_eq!((contents.files(), contents.resources()), (loaded.files, loaded.resources));
            }
            Err(errors) => assert_eq!(contents.errors(), Some(errors)),
        }
    }
}

#[test]
fn errors_of_all_files_are_reported_at_once_and_the_last_good_state_stays() {
    let scratch = Scratch::new("errors");
    scratch.write("a.yaml", cluster("a", "first"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    scratch.write("a.yaml", cluster("a", "second"));
    scratch.write("b.yaml", format!("{}nme: x\n", cluster("b", "s")));
    scratch.write("c.json", "{");
    scratch.write("d.yaml", cluster("a", "third"));
    let found = errors(load(&mut folder, &cache));
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found[0].starts_with(r#"b.yaml:4:1: envoy.config.cluster.v3.Cluster "b": no field `nme`"#),
        "{found:#?}"
    );
    assert!(found[1].starts_with("c.json:1:1: EOF"), "{found:#?}");
    assert!(
        found[2].starts_with("d.yaml:1:1: ") && found[2].ends_with("is also in a.yaml, line 1"),
        "{found:#?}"
    );
    assert!(has(&cache, "a", "first"));
    scratch.write("b.yaml", cluster("b", "s"));
    fs::remove_file(scratch.path("c.json")).unwrap();
    fs::remove_file(scratch.path("d.yaml")).unwrap();
    // Correcting the other files also brings in the valid change of a.yaml.
    assert_eq!(load(&mut folder, &cache).unwrap().commit.changed, 2);
    assert!(has(&cache, "a", "second"));
}

#[test]
fn only_changed_files_are_read_again() {
    let scratch = Scratch::new("stamps");
    for number in 0..100 {
        scratch.write(&format!("{number}.yaml"), cluster(&format!("c{number}"), "s"));
    }
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let mut seen = Vec::new();
    let loaded = folder.load(&cache, |progress| seen.push((progress.files_read, progress.files))).unwrap();
    assert_eq!(loaded.files_read, 100);
    assert_eq!(seen, (1..=100).map(|number| (number, 100)).collect::<Vec<_>>());
    assert_eq!(load(&mut folder, &cache).unwrap().files_read, 0);
    scratch.write("7.yaml", cluster("c7", "other"));
    fs::remove_file(scratch.path("8.yaml")).unwrap();
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!((loaded.files_read, loaded.commit.changed, loaded.resources), (2, 2, 99));
}

#[tokio::test]
async fn a_commit_names_the_files_that_changed_and_the_label_of_the_content() {
    let (scratch, cache) = (Scratch::new("label"), Cache::new());
    for name in ["a", "b"] {
        scratch.write(&format!("{name}.yaml"), cluster(name, "one"));
    }
    let file = scratch.0.join(".label");
    let mut folder = Folder::new(&scratch.0).with_label(Label::File(file.clone()));
    let mut commits = cache.commits(8);
    let mut origin = async || {
        let (CommitOutcome::Committed { origin, .. } | CommitOutcome::Refused { origin, .. }) =
            commits.next().await.unwrap().outcome
        else {
            panic!("there are no others")
        };
        let files: Vec<_> = origin.files.iter().map(|file| file.to_string()).collect();
        (files, origin.file_count, origin.label.to_string())
    };
    // A label that cannot be read refuses nothing.
    load(&mut folder, &cache).unwrap();
    assert_eq!(origin().await, (vec!["a.yaml".into(), "b.yaml".into()], 2, String::new()));
    fs::write(&file, "1a2b3c\nmore").unwrap();
    scratch.write("b.yaml", cluster("b", "two"));
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!(origin().await, (vec!["b.yaml".into()], 1, "1a2b3c".into()));
    assert_eq!((&*loaded.label, &*folder.reloads().label()), ("1a2b3c", "1a2b3c"));
}

#[test]
fn a_folder_without_resources_is_refused_at_the_start_and_later() {
    let scratch = Scratch::new("empty");
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let problem =
        |result: Result<Loaded, FolderErrors>| result.unwrap_err().iter().next().unwrap().problem.clone();
    assert_eq!(problem(load(&mut folder, &cache)), Problem::NoResources);
    scratch.write("a.yaml", cluster("a", "s"));
    load(&mut folder, &cache).unwrap();
    scratch.write("a.yaml", "resources: []");
    assert_eq!(problem(load(&mut folder, &cache)), Problem::NoResources);
    assert!(has(&cache, "a", "s"));
    let mut relaxed = Folder::new(&scratch.0).allow_empty();
    assert_eq!(load(&mut relaxed, &Cache::new()).unwrap().resources, 0);
}

#[test]
fn what_cannot_be_read_is_the_environments_fault() {
    let scratch = Scratch::new("unreadable");
    let missing = load(&mut Folder::new(scratch.path("missing")), &Cache::new()).unwrap_err();
    assert!(missing.are_environment());
    symlink("nowhere", scratch.path("a.yaml")).unwrap();
    let dangling = load(&mut Folder::new(&scratch.0), &Cache::new()).unwrap_err();
    assert_eq!(dangling.to_string(), "a.yaml: cannot be read: there is no such file or folder");
    assert!(dangling.are_environment());
    scratch.write("b.yaml", "a: [");
    assert!(!load(&mut Folder::new(&scratch.0), &Cache::new()).unwrap_err().are_environment());
}

/// Regression: a comparison of stamps ended the error of a file that it had not read.
#[test]
fn an_error_ends_only_when_its_file_was_read_and_is_right() {
    for isolation in [Isolation::Folder, Isolation::File] {
        let scratch = Scratch::new(&format!("not-read-{isolation:?}"));
        scratch.write("a.yaml", cluster("a", "x"));
        let (mut folder, cache) = (Folder::new(&scratch.0).with_isolation(isolation), Cache::new());
        load(&mut folder, &cache).unwrap();
        let file = scratch.path("a.yaml");
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        let write = |content: &str, modified| {
            fs::write(&file, content).unwrap();
            fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
        };
        let has_error = |folder: &mut Folder| match load(folder, &cache) {
            Ok(loaded) => loaded.isolated.is_some(),
            Err(_) => true,
        };
        write(&cluster("a", "x").replace("name", "nmae"), modified + Duration::from_secs(1));
        assert!(has_error(&mut folder));
        // With the stamp of the good content, nothing seems to have changed.
        write(&cluster("a", "x").replace("name", "nmae"), modified);
        for _ in 0..2 {
            assert!(has_error(&mut folder), "{isolation:?}");
            assert!(!folder.reloads().is_current());
        }
        write(&cluster("a", "x"), modified);
        assert!(!has_error(&mut folder) && folder.reloads().is_current());
        assert_eq!(load(&mut folder, &cache).unwrap().files_read, 0);
    }
}

/// Runs this test again in other processes, in which hash maps have other seeds.
#[test]
fn d22_maps_give_one_version_in_20_processes() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if std::env::var_os("XDS_PRINT_VERSION").is_some() {
        let scratch = Scratch::new("maps");
        fs::copy(golden.join("maps.yaml"), scratch.path("maps.yaml")).unwrap();
        let cache = Cache::new();
        load(&mut Folder::new(&scratch.0), &cache).unwrap();
        let snapshot = cache.snapshot();
        let variants = snapshot.get(&CLUSTER.into(), &"maps".into()).unwrap();
        println!("version {}", variants.iter().next().unwrap().version());
        return;
    }
    let expected = fs::read_to_string(golden.join("maps.version")).unwrap();
    for _ in 0..20 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "d22_maps_give_one_version_in_20_processes", "--nocapture"])
            .env("XDS_PRINT_VERSION", "1")
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let (_, version) = output.split_once("version ").expect("the process prints a version");
        assert_eq!(version.split_whitespace().next(), expected.split_whitespace().next());
    }
}
