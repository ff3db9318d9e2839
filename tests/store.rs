//! `xds store init` and `xds serve --store` as processes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use running::{Running, http, xds};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

/// A folder for a store, which does not exist yet; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("xds-store-{}-{name}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        Self(folder)
    }

    fn with_store(name: &str) -> Self {
        let place = Self::new(name);
        assert_eq!(run(&["store", "init", place.text()]).0, Some(0));
        place
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The exit code, and the lines on standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = xds().args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn status_of(server: &Running, path: &str) -> String {
    let answer = http(
        &server.admin,
        &format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.admin),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    format!("{} {}", head.split(' ').nth(1).unwrap(), body.trim())
}

#[test]
fn st1_init_creates_a_store_for_its_user_alone_in_a_new_or_empty_folder_only() {
    let place = Place::new("init");
    let (code, text) = run(&["store", "init", place.text()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("a new store, node "), "{text}");
    let file = place.0.join("store.redb");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&file).unwrap();
    let (code, text) = run(&["store", "init", place.text()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is not empty"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn st1_the_rest_of_an_interrupted_init_is_no_store() {
    let place = Place::new("interrupted");
    fs::create_dir(&place.0).unwrap();
    fs::write(place.0.join("store.redb.new"), "half").unwrap();
    assert_eq!(run(&["serve", "--store", place.text()]).0, Some(2));
    assert_eq!(run(&["store", "init", place.text()]).0, Some(0));
}

#[test]
fn st2_a_folder_without_a_store_is_refused_with_the_command_that_makes_one() {
    let place = Place::new("missing");
    let (code, text) = run(&["serve", "--store", place.text()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&format!("`xds store init {}`", place.text())), "{text}");
    assert!(!place.0.exists());
}

#[test]
fn st3_a_second_process_is_refused() {
    let place = Place::with_store("second");
    let _first = Running::start(&["serve", "--store", place.text()]);
    let (code, text) = run(&["serve", "--store", place.text(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another process has the store"), "{text}");
}

#[test]
fn st47_a_damaged_store_is_not_served_and_the_remedies_are_named() {
    let place = Place::with_store("damaged");
    let file = place.0.join("store.redb");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() / 2;
    bytes[100..end].fill(0x5a);
    fs::write(&file, bytes).unwrap();
    let (code, text) = run(&["serve", "--store", place.text(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is damaged") && text.contains("xds store restore"), "{text}");
}

#[test]
fn st5_st59_a_store_without_a_commit_accepts_commits_and_is_not_ready_for_clients() {
    let place = Place::with_store("waiting");
    let mut server = Running::start(&["serve", "--store", place.text()]);
    let waiting = "503 the store has no commit yet: clients wait for the first one";
    assert_eq!(status_of(&server, "/readyz"), waiting);
    assert_eq!(status_of(&server, "/readyz/store"), "200 ready");
    server.terminate();
    assert!(server.ends_within(Duration::from_secs(20)).unwrap().success());
}

#[test]
fn a_store_in_memory_says_that_it_keeps_nothing() {
    let server = Running::start(&["serve", "--store", "memory:"]);
    server.logs("--store memory: keeps nothing");
}
