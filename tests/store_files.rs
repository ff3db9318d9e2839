//! `xds store backup`, `restore` and `check` as processes, on stores that no server has open.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use running::{Running, Scratch, xds};
use serde_json::Value;
use xds_store::engine::{Batch, Engine, RedbEngine};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

/// A folder for stores and backups.
struct Stores(Scratch);

impl Stores {
    /// With a store in `store`.
    fn with_store(test: &str) -> Self {
        let stores = Self(Scratch::new(&format!("store-files-{test}")));
        assert_eq!(run(&["store", "init", &stores.path("store")]).0, Some(0));
        stores
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name).to_str().unwrap().to_owned()
    }
}

/// The exit code, and the lines on standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = xds().args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn json(arguments: &[&str]) -> Value {
    let (code, text) = run(&[arguments, &["--format", "json"]].concat());
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn st45_st46_a_backup_is_restored_with_a_new_node_id() {
    let stores = Stores::with_store("restore");
    let (store, file, target) = (stores.path("store"), stores.path("file"), stores.path("target"));
    fs::write(&file, "an older backup").unwrap();
    let made = json(&["store", "backup", &file, "--store", &store]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let restored = json(&["store", "restore", &file, &target]);
    assert_eq!(restored["cluster"], made["cluster"]);
    assert_ne!(restored["node"], made["node"]);
    assert_ne!(restored["revision"], made["revision"], "it is the revision of another store");
    assert_eq!(names(&stores.0.0), ["file", "store", "target"]);
    assert_eq!(run(&["store", "check", &target]).0, Some(0));
    let other = json(&["store", "restore", &file, &stores.path("other"), "--new-cluster"]);
    assert_ne!(other["cluster"], made["cluster"]);
    let again = json(&["store", "backup", &file, "--store", &target, "--without-history"]);
    assert_eq!((&again["node"], &again["history"]), (&restored["node"], &Value::Bool(false)));
}

#[test]
fn sr31_a_copied_folder_gets_another_id_and_a_store_that_is_open_or_absent_does_not() {
    let stores = Stores::with_store("reid");
    let (store, copy) = (stores.path("store"), stores.path("copy"));
    fs::create_dir(&copy).unwrap();
    fs::copy(Path::new(&store).join("store.redb"), Path::new(&copy).join("store.redb")).unwrap();
    let renamed = json(&["store", "reid", &copy]);
    let formerly = renamed["former_nodes"][0].as_str().unwrap().to_owned();
    assert_ne!(renamed["node"], renamed["former_nodes"][0]);
    assert_eq!(run(&["store", "check", &copy]).0, Some(0));
    let (code, text) = run(&["store", "reid", &store]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&formerly), "the copy had the id of the original: {text}");
    let again = json(&["store", "reid", &copy]);
    assert_eq!(again["former_nodes"][1], renamed["node"]);
    let server = Running::start(&["serve", "--store", &store]);
    let (code, text) = run(&["store", "reid", &store]);
    assert!(code == Some(1) && text.contains("another process"), "{code:?}: {text}");
    drop(server);
    assert_eq!(run(&["store", "reid", &stores.path("none")]).0, Some(2));
}

#[test]
fn st46_a_file_that_is_no_whole_backup_makes_no_store() {
    let stores = Stores::with_store("cut");
    let (file, target) = (stores.path("file"), stores.path("target"));
    json(&["store", "backup", &file, "--store", &stores.path("store")]);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let (code, text) = run(&["store", "restore", &file, &target]);
    assert_eq!((code, text.contains("the backup is incomplete")), (Some(2), true), "{text}");
    assert_eq!(run(&["serve", "--store", &target]).0, Some(2), "there is no store");
    fs::write(&file, "cluster: a").unwrap();
    let (code, text) = run(&["store", "restore", &file, &target]);
    assert_eq!((code, text.contains("this is no backup of a store")), (Some(2), true), "{text}");
    assert_eq!(run(&["store", "check", &file]).0, Some(2));
    // The failed attempts left nothing, neither useless bytes nor what is in the way.
    assert_eq!(names(&stores.0.path("target")), [""; 0]);
    fs::write(&file, &whole).unwrap();
    assert_eq!(run(&["store", "restore", &file, &target]).0, Some(0));
    let (code, text) = run(&["store", "restore", &file, &target]);
    assert_eq!((code, text.contains("is not empty")), (Some(2), true), "{text}");
    assert_eq!(run(&["store", "restore", &stores.path("none"), &stores.path("x")]).0, Some(1));
}

#[test]
fn st48_damage_is_listed_and_the_store_stays_as_it_is() {
    let stores = Stores::with_store("check");
    let store = stores.path("store");
    let (code, text) = run(&["store", "check", &store]);
    assert_eq!((code, text.contains("no damage")), (Some(0), true), "{text}");
    let file = stores.0.path("store/store.redb");
    let mut engine = RedbEngine::open(&file).unwrap();
    let writes =
        [b"l\0\0\0\0\0\0\0\x05", b"v\0\0\0\0\0\0\0\x05"].map(|key| (key[..].into(), Some("?".into())));
    engine.commit(&Batch { compares: Vec::new(), writes: writes.to_vec() }).unwrap();
    drop(engine);
    let before = fs::read(&file).unwrap();
    let (code, text) = run(&["store", "check", &store]);
    assert_eq!(code, Some(5), "{text}");
    for finding in ["the log lacks revisions 1 to 4", "is damaged", "is no key of a store", "4 findings"] {
        assert!(text.contains(finding), "{text}");
    }
    assert!(fs::read(&file).unwrap() == before, "the check changed the file");
    let (code, text) = run(&["store", "backup", &stores.path("file"), "--store", &store]);
    assert_eq!((code, text.contains("is damaged")), (Some(1), true), "{text}");
    assert_eq!(names(&stores.0.0), ["store"], "there is no part of a backup");
    assert_eq!(run(&["store", "check", &stores.path("none")]).0, Some(2));
}

/// Regression: exit code 101, and a backtrace.
#[test]
fn st47_a_damaged_page_has_the_same_message_and_code_in_each_command() {
    let stores = Stores::with_store("pages");
    let (store, file) = (stores.path("store"), stores.0.path("store/store.redb"));
    let mut engine = RedbEngine::open(&file).unwrap();
    // Of a later version of a record, which no start reads.
    let writes = (0..400).map(|key| (format!("z{key:03}").into(), Some("?".repeat(200).into())));
    engine.commit(&Batch { compares: Vec::new(), writes: writes.collect() }).unwrap();
    drop(engine);
    let whole = fs::read(&file).unwrap();
    // A server that can read all that its start needs ends at the address that another one has.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let mut damaged = [0; 3];
    for page in whole.chunks_exact(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        let mut bytes = whole.clone();
        bytes[page.0 * 4096..][..4096].fill(0);
        let commands: [&[&str]; 3] = [
            &["store", "check", &store],
            &["store", "backup", &stores.path("file"), "--store", &store],
            &["serve", "--store", &store, "--listen", &listen, "--admin", "none"],
        ];
        for (command, damaged) in commands.iter().zip(&mut damaged) {
            fs::write(&file, &bytes).unwrap();
            let (code, text) = run(command);
            assert!(!text.contains("panicked") && code != Some(101), "{command:?}, page {}: {text}", page.0);
            if text.contains("`xds store restore` makes a store from a backup") {
                assert_eq!(code, Some(1), "{text}");
                *damaged += 1;
            } else if command[0] == "store" {
                // `check` lists the keys above.
                assert!([Some(0), Some(5)].contains(&code), "{command:?}, page {}: {text}", page.0);
            }
        }
    }
    assert!(damaged.iter().all(|pages| *pages >= 3), "{damaged:?}");
}

#[test]
fn st45_a_server_writes_backups_and_keeps_the_newest() {
    let stores = Stores::with_store("scheduled");
    let (store, backups) = (stores.path("store"), stores.path("backups"));
    let every = ["--backup-dir", &backups, "--backup-every", "10ms", "--backup-keep", "2"];
    let server = Running::start(&[&["serve", "--store", &store][..], &every].concat());
    let folder = || fs::read_dir(&backups).ok()?.next()?.ok().map(|node| node.path());
    let written = || -> Vec<String> {
        let names = folder().into_iter().flat_map(|folder| names(&folder));
        names.filter(|name| name.ends_with(".backup")).collect()
    };
    // Names have seconds, so this takes a few of them.
    let (start, mut seen) = (Instant::now(), std::collections::BTreeSet::new());
    while seen.len() < 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "{seen:?}");
        seen.extend(written());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(server.metric("xds_store_last_backup_timestamp_seconds").unwrap() > 1e9);
    assert_eq!(server.metric("xds_store_backup_failures_total"), Some(0.0));
    drop(server);
    let kept = written();
    assert!((1..=3).contains(&kept.len()), "{kept:?}");
    assert!(kept.last() >= seen.last() && !kept.contains(seen.first().unwrap()), "{kept:?}, {seen:?}");
    let newest = folder().unwrap().join(kept.last().unwrap());
    // The server was killed, maybe while it wrote one.
    for name in names(&folder().unwrap()).iter().filter(|name| name.ends_with(".unfinished")) {
        fs::remove_file(folder().unwrap().join(name)).unwrap();
    }
    let unfinished = |name: &str, age_hours: u64| {
        fs::write(folder().unwrap().join(name), "half").unwrap();
        let file = fs::File::options().append(true).open(folder().unwrap().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_hours * 3600)).unwrap();
    };
    unfinished("2000.backup.unfinished", 2);
    // Another server of the store may be writing this one.
    unfinished("2001.backup.unfinished", 0);
    let kept = [&["2001.backup.unfinished".to_owned()][..], &kept].concat();
    let _server = Running::start(&["serve", "--store", &store, "--backup-dir", &backups]);
    let start = Instant::now();
    while names(&folder().unwrap()) != kept {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}, not {kept:?}", names(&folder().unwrap()));
        thread::sleep(Duration::from_millis(20));
    }
    json(&["store", "restore", newest.to_str().unwrap(), &stores.path("target")]);
}

#[test]
fn st45_a_backup_that_fails_is_counted_and_logged_and_affects_nothing_else() {
    let stores = Stores::with_store("failing");
    let (store, backups) = (stores.path("store"), stores.path("backups"));
    fs::write(&backups, "a file where the folder should be").unwrap();
    let server = Running::start(&["serve", "--store", &store, "--backup-dir", &backups]);
    let line = server.logs("the backup of the store failed");
    assert!(line.contains("cannot be written"), "{line}");
    server.until_metric("xds_store_backup_failures_total", 1.0);
    assert_eq!(server.metric("xds_store_last_backup_timestamp_seconds"), None);
    assert_eq!(server.metric("xds_ready"), Some(0.0), "it runs, and waits for the first commit");
}

#[test]
fn st4_a_store_of_the_newest_format_needs_no_upgrade() {
    let stores = Stores::with_store("upgrade");
    let store = stores.path("store");
    let before = fs::read(stores.0.path("store/store.redb")).unwrap();
    let (code, text) = run(&["store", "upgrade", &store]);
    assert_eq!((code, text.contains("format 1, which is the newest")), (Some(0), true), "{text}");
    assert!(fs::read(stores.0.path("store/store.redb")).unwrap() == before, "it changed the file");
    let _server = Running::start(&["serve", "--store", &store]);
    assert_eq!(run(&["store", "upgrade", &store]).0, Some(1));
    assert_eq!(run(&["store", "upgrade", &stores.path("none")]).0, Some(2));
}
