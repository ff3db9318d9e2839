//! `--isolate file`: a file with an error keeps its last good content, and all other files are
//! served.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use xds::folder::{Folder, FolderErrors, Isolation, Loaded};
use xds::{Cache, TypeUrl};

use running::{Running, Scratch, http, xds};

#[path = "binary/running.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod running;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

fn cluster(name: &str, stat_name: &str) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\nalt_stat_name: \"{stat_name}\"\n")
}

fn variant(name: &str, when: &str) -> String {
    format!("{}when: '{when}'\n", cluster(name, "s"))
}

const BROKEN: &str = "nme: x\n";

/// A folder and the cache that it fills.
struct Isolated {
    scratch: Scratch,
    folder: Folder,
    cache: Arc<Cache>,
}

impl Isolated {
    fn new(test: &str, files: &[(&str, String)]) -> Self {
        let scratch = Scratch::new(&format!("isolate-{test}"));
        for (file, content) in files {
            scratch.write(file, content);
        }
        let folder = Folder::new(&scratch.0).with_isolation(Isolation::File);
        let mut isolated = Self { scratch, folder, cache: Cache::new() };
        isolated.load().unwrap();
        isolated
    }

    fn load(&mut self) -> Result<Loaded, FolderErrors> {
        self.folder.load(&self.cache, |_| {})
    }

    /// The files that a load isolates, once per error.
    fn aside(&mut self) -> Vec<String> {
        let loaded = self.load().unwrap();
        loaded.isolated.iter().flatten().map(|error| error.file.to_string()).collect()
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        self.scratch.write(file, content);
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.scratch.path(file)).unwrap();
    }

    /// The served names, each with its stat names.
    fn served(&self) -> String {
        let snapshot = self.cache.snapshot();
        let resources = snapshot.of_type(&TypeUrl::from(CLUSTER)).unwrap();
        let shown = resources.iter().map(|(name, variants)| {
            let payload = String::from_utf8_lossy(variants.iter().next().unwrap().payload()).into_owned();
            let stat_name = payload.rsplit(|c: char| c.is_ascii_control()).next().unwrap().to_owned();
            format!("{name}={stat_name}")
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown.join(" ")
    }
}

#[test]
fn a_broken_file_keeps_its_last_good_content_while_the_others_go_on() {
    let files = [("a.yaml", cluster("a", "1")), ("b.yaml", cluster("b", "1"))];
    let mut folder = Isolated::new("goes-on", &files);
    folder.write("a.yaml", cluster("a", "2") + BROKEN);
    folder.write("b.yaml", cluster("b", "2"));
    folder.write("c.yaml", cluster("c", "2"));
    assert_eq!(folder.aside(), ["a.yaml"]);
    assert_eq!(folder.served(), "a=1 b=2 c=2");
    let reloads = Arc::clone(folder.folder.reloads());
    assert_eq!((reloads.isolated(), reloads.is_current()), (1, false));
    folder.write("a.yaml", cluster("a", "3"));
    assert_eq!(folder.aside(), [""; 0]);
    assert_eq!(folder.served(), "a=3 b=2 c=2");
    assert_eq!((reloads.isolated(), reloads.is_current()), (0, true));
}

#[test]
fn a_broken_file_that_is_deleted_takes_its_last_good_content_along_and_one_that_is_renamed_keeps_it() {
    let files = [("a.yaml", cluster("a", "1")), ("b.yaml", cluster("b", "1")), ("z.yaml", cluster("z", "1"))];
    let mut folder = Isolated::new("deleted", &files);
    folder.write("a.yaml", BROKEN);
    folder.write("b.yaml", BROKEN);
    assert_eq!(folder.aside(), ["a.yaml", "b.yaml"]);
    folder.remove("a.yaml");
    fs::rename(folder.scratch.path("b.yaml"), folder.scratch.path("c.yaml")).unwrap();
    assert_eq!(folder.aside(), ["c.yaml"]);
    assert_eq!(folder.served(), "b=1 z=1", "what is deleted goes, what is renamed does not");
    folder.write("c.yaml", cluster("b", "2"));
    assert_eq!(folder.aside(), [""; 0]);
    assert_eq!(folder.served(), "b=2 z=1");
    // A file that was never valid adds and removes nothing.
    folder.write("new.yaml", BROKEN);
    assert_eq!(folder.aside(), ["new.yaml"]);
    folder.remove("new.yaml");
    assert_eq!(folder.aside(), [""; 0]);
    assert_eq!(folder.served(), "b=2 z=1");
}

#[test]
fn what_cannot_be_looked_at_is_not_gone() {
    let mut folder = Isolated::new("unseen", &[("b.yaml", cluster("b", "1"))]);
    let elsewhere = Scratch::new("isolate-unseen-elsewhere");
    elsewhere.write("a.yaml", cluster("a", "1"));
    symlink(elsewhere.path("a.yaml"), folder.scratch.path("a.yaml")).unwrap();
    assert_eq!(folder.aside(), [""; 0]);
    elsewhere.write("moved", "");
    fs::remove_file(elsewhere.path("a.yaml")).unwrap();
    folder.write("b.yaml", cluster("b", "2"));
    assert_eq!(folder.aside(), ["a.yaml"]);
    assert_eq!(folder.served(), "a=1 b=2");
    folder.remove("a.yaml");
    assert_eq!(folder.aside(), [""; 0]);
    assert_eq!(folder.served(), "b=2");
}

/// Regression: when a link to a directory led nowhere, all resources below it were silently removed
/// from clients.
#[test]
fn a_directory_behind_a_link_that_leads_nowhere_is_not_gone() {
    let scratch = Scratch::new("unseen-directory");
    let elsewhere = Scratch::new("unseen-directory-elsewhere");
    scratch.write("b.yaml", cluster("b", "1"));
    elsewhere.write("a.yaml", cluster("a", "1"));
    symlink(&elsewhere.0, scratch.path("volume")).unwrap();
    symlink("nowhere", scratch.path("notes")).unwrap();
    for isolation in [Isolation::Folder, Isolation::File] {
        let (mut folder, cache) = (Folder::new(&scratch.0).with_isolation(isolation), Cache::new());
        folder.load(&cache, |_| {}).unwrap();
        let moved = elsewhere.0.with_extension("moved");
        fs::rename(&elsewhere.0, &moved).unwrap();
        let errors = match folder.load(&cache, |_| {}) {
            Ok(loaded) => loaded.isolated.unwrap(),
            Err(errors) => errors,
        };
        assert_eq!(errors.to_string(), "volume: cannot be read: there is no such file or folder");
        assert_eq!(cache.snapshot().of_type(&TypeUrl::from(CLUSTER)).unwrap().len(), 2, "{isolation:?}");
        fs::rename(&moved, &elsewhere.0).unwrap();
        assert!(folder.load(&cache, |_| {}).unwrap().isolated.is_none());
    }
}

#[test]
fn a_collision_is_the_error_of_the_new_content_and_of_two_new_files_that_of_the_later_path() {
    let mut folder = Isolated::new("collides", &[("m.yaml", cluster("m", "1"))]);
    // Both orders: a path before and a path after the file that has the resource.
    folder.write("a.yaml", cluster("m", "2"));
    folder.write("x.yaml", cluster("n", "x"));
    folder.write("y.yaml", cluster("n", "y"));
    assert_eq!(folder.aside(), ["a.yaml", "y.yaml"]);
    assert_eq!(folder.served(), "m=1 n=x");
    folder.remove("m.yaml");
    folder.remove("x.yaml");
    assert_eq!(folder.aside(), [""; 0]);
    assert_eq!(folder.served(), "m=2 n=y", "each takes over when the other is gone");
}

#[test]
fn t15_a_variant_that_overlaps_the_last_good_one_of_a_broken_file_is_in_conflict() {
    let files = [("b.yaml", variant("v", "env=prod")), ("z.yaml", cluster("z", "1"))];
    let mut folder = Isolated::new("overlaps", &files);
    folder.write("b.yaml", BROKEN);
    folder.write("a.yaml", variant("v", "env!=test"));
    folder.write("z.yaml", cluster("z", "2"));
    assert_eq!(folder.aside(), ["a.yaml", "b.yaml"]);
    assert_eq!(folder.served(), "v=s z=2");
    folder.write("b.yaml", variant("v", "env=test"));
    assert_eq!(folder.aside(), [""; 0]);
    let snapshot = folder.cache.snapshot();
    assert_eq!(snapshot.get(&CLUSTER.into(), &"v".into()).unwrap().len(), 2);
}

/// The resources of an invalid file are unknown. If the folder were served without it, clients would
/// drop these resources.
#[test]
fn g13_a_folder_with_a_file_that_was_never_good_says_nothing_at_the_start() {
    let scratch = Scratch::new("isolate-start");
    scratch.write("a.yaml", cluster("a", "1"));
    scratch.write("b.yaml", BROKEN);
    let (mut folder, cache) = (Folder::new(&scratch.0).with_isolation(Isolation::File), Cache::new());
    let errors = folder.load(&cache, |_| {}).unwrap_err().to_string();
    assert!(errors.contains("b.yaml:1:1: ") && errors.contains("only if all files are valid"), "{errors}");
    assert!(!cache.snapshot().is_synced());
    scratch.write("b.yaml", cluster("b", "1"));
    assert_eq!(folder.load(&cache, |_| {}).unwrap().commit.changed, 2);
}

#[test]
fn a_folder_that_would_be_emptied_stays_also_with_isolated_files() {
    let mut folder = Isolated::new("emptied", &[("a.yaml", cluster("a", "1"))]);
    folder.write("never-good.yaml", BROKEN);
    folder.remove("a.yaml");
    let errors = folder.load().unwrap_err().to_string();
    assert!(errors.contains("no resource in any"), "{errors}");
    assert_eq!(folder.served(), "a=1");
}

#[test]
fn a_server_logs_each_mistake_once_counts_isolated_files_and_follows_the_others() {
    let scratch = Scratch::new("isolate-serve");
    scratch.write("a.yaml", cluster("a", "1"));
    scratch.write("b.yaml", cluster("b", "1"));
    let server = Running::start(&["serve", scratch.text(), "--isolate", "file"]);
    scratch.write("a.yaml", cluster("a", "2") + BROKEN);
    server.logs("a.yaml:4:1: ");
    server.logs("files with errors keep their last good content; the others are served errors=1");
    let isolated = "xds_source_isolated_files{source=\"folder\"}";
    server.until_metric(isolated, 1.0);
    assert_eq!(server.metric("xds_source_last_reload_successful{source=\"folder\"}"), Some(0.0));
    scratch.write("c.yaml", cluster("c", "1"));
    server.logs("folder reloaded changed=1");
    let (code, got) = server.until_served(&["CDS", "a", "b", "c"]);
    assert_eq!(code, Some(0));
    assert!(got.contains("alt_stat_name: '1'") || got.contains("alt_stat_name: \"1\""), "{got}");
    assert!(http(&server.admin, &get("/readyz", &server.admin)).starts_with("HTTP/1.1 200"));
    scratch.write("a.yaml", cluster("a", "3"));
    let line = server.logs("the folder is good again");
    assert!(line.ends_with("paths=\"a.yaml\""), "{line}");
    server.until_metric(isolated, 0.0);
    // Followed by events, without a scan of the folder: a file waits for the one that it conflicts
    // with.
    scratch.write("z.yaml", cluster("b", "2"));
    server.logs("z.yaml:1:1: ");
    fs::remove_file(scratch.path("b.yaml")).unwrap();
    server.logs("the folder is good again");
    let (_, got) = server.get(&["CDS", "b"]);
    assert!(got.contains("alt_stat_name: '2'") || got.contains("alt_stat_name: \"2\""), "{got}");
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

#[test]
fn a_check_says_what_would_be_served() {
    let scratch = Scratch::new("isolate-check");
    scratch.write("a.yaml", cluster("a", "1"));
    scratch.write("b.yaml", cluster("a", "1"));
    scratch.write("c.yaml", BROKEN);
    scratch.write("d.yaml", cluster("d", "1"));
    let check = |options: &[&str]| {
        let output = xds().arg("check").arg(&scratch.0).args(options).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, served, errors) = check(&["--isolate", "file"]);
    assert_eq!(code, Some(2));
    assert!(served.contains("2 envoy.config.cluster.v3.Cluster"), "{served}");
    assert!(errors.contains("b.yaml:1:1: ") && errors.contains("c.yaml:1:1: "), "{errors}");
    assert!(errors.contains("2 files would keep the last good content"), "{errors}");
    let (code, report, _) = check(&["--isolate", "file", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (code, &report["summary"]["isolated"], &report["summary"]["resources"]),
        (Some(2), &2.into(), &2.into())
    );
    let (code, served, errors) = check(&[]);
    assert_eq!((code, &*served), (Some(2), ""), "the folder is one transaction");
    assert!(!errors.contains("would keep"), "{errors}");
}
