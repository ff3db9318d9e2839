//! Runs every body with its corpus, and for some time with inputs that a mutator makes of it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use xds_fuzz::{BODIES, Body, Mutator};

#[test]
fn bootstrap_json() {
    run("bootstrap_json");
}

#[test]
fn client_delta() {
    run("client_delta");
}

#[test]
fn client_sotw() {
    run("client_sotw");
}

#[test]
fn constraints_wire() {
    run("constraints_wire");
}

#[test]
fn constraints_draft() {
    run("constraints_draft");
}

#[test]
fn constraints_when() {
    run("constraints_when");
}

#[test]
fn last_good_file() {
    run("last_good_file");
}

#[test]
fn names_xdstp() {
    run("names_xdstp");
}

#[test]
fn requests_delta() {
    run("requests_delta");
}

#[test]
fn requests_sotw() {
    run("requests_sotw");
}

#[test]
fn stream_delta() {
    run("stream_delta");
}

#[test]
fn stream_sotw() {
    run("stream_sotw");
}

#[test]
fn variant_sets() {
    run("variant_sets");
}

#[test]
fn a_mutator_repeats_itself() {
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed, &[b"word"], vec![b"input".to_vec()]);
        (0..1000).map(|_| mutator.next_input()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
}

/// Runs one body with its corpus, then with a mutator until the time is over.
fn run(name: &str) {
    let (_, body, words) = BODIES.iter().find(|(other, _, _)| *other == name).expect("it is listed");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has a corpus");
    for input in &corpus {
        call(*body, input);
    }

    let seed = setting("XDS_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(name));
    // Written directly, because captured output is lost when the stack overflows.
    let mut stderr = io::stderr();
    writeln!(stderr, "{name}: XDS_FUZZ_SEED={seed}").expect("stderr is there");
    let usual = if std::env::var_os("CI").is_some() { 10 } else { 1 };
    let seconds = setting("XDS_FUZZ_SECONDS").unwrap_or(usual);
    let (start, duration) = (Instant::now(), Duration::from_secs(seconds));
    let mut mutator = Mutator::new(seed, words, corpus);
    let (mut calls, mut accepted) = (0_u64, 0_u64);
    while start.elapsed() < duration {
        let input = mutator.next_input();
        calls += 1;
        if call(*body, &input) {
            accepted += 1;
            mutator.keep(input);
        }
    }
    writeln!(stderr, "{name}: {accepted} of {calls} inputs accepted").expect("stderr is there");
    assert!(calls == 0 || accepted > 0, "nothing of {calls} inputs was accepted, so nothing was tried");
}

fn call(body: Body, input: &[u8]) -> bool {
    let _report = Report(input);
    body(input)
}

/// Prints the input if the body panics.
struct Report<'a>(&'a [u8]);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("the input was {hex}, {:?}", String::from_utf8_lossy(self.0));
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// The files in the order of their names, so that a seed gives the same inputs on every machine.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut files: Vec<_> =
        entries.expect("the corpus can be listed").into_iter().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("a file of the corpus can be read")).collect()
}
