//! Tests the pages of documentation: runs each command, uses each file, and compares the output.
//!
//! A block of a page is one of these. Any other block fails the test, so a page cannot have a
//! command that is not tested:
//!
//! | block | what the test does |
//! | --- | --- |
//! | `console` | runs each `$ COMMAND` in the folder of the page. The command must succeed, and print the lines below it, if there are any; `..` on a line means any lines, `...` in a line any text. A command with `&` at its end runs until the page ends, or until `$ kill -TERM %1`; the test waits for the lines below it, or for `listening on` |
//! | `yaml (file: NAME)`, or any other language | writes that file |
//! | `sh (terminal)` | one command, which runs until the page ends |
//! | `rust`, `rust,no_run` | the documentation of the crate must include the page, so that it compiles and runs the code |
//! | `text` | nothing: text has no commands |
//! | `sh (unrun: needs an Envoy)` | nothing; the header says why |
//!
//! Comments are for the test only: `<!-- until %1: TEXT -->` waits for a line of a background
//! command, `<!-- run: COMMAND -->` runs a command that the page assumes. The test replaces each
//! port of five digits on 127.0.0.1 by a free one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "docs/links.rs"]
mod links;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/run.rs"]
mod run;

/// Pages for reading, without commands for their readers.
const FOR_READING: [&str; 3] = ["docs/performance.md", "docs/protocol.md", "docs/proxy.md"];

/// Pages with commands.
fn pages() -> Vec<String> {
    all_pages().into_iter().filter(|page| !FOR_READING.contains(&page.as_str())).collect()
}

fn all_pages() -> Vec<String> {
    let below = |folder: &str| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let examples = below("examples").map(|folder| folder.join("README.md")).filter(|page| page.exists());
    let docs = below("docs").filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let top = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from);
    let mut all: Vec<_> = docs.chain(examples).chain(top).map(|page| page.display().to_string()).collect();
    all.sort();
    all
}

/// The errors of a page.
fn tried(page: &str) -> Vec<String> {
    let steps = match page::steps(&fs::read_to_string(page).unwrap()) {
        Ok(steps) => steps,
        Err(errors) => return errors.into_iter().map(|error| format!("{page}, {error}")).collect(),
    };
    let library = fs::read_to_string("src/lib.rs").unwrap();
    if steps.iter().any(|step| step.what == page::What::Rust) && !library.contains(&format!("../{page}")) {
        return vec![format!("{page}: src/lib.rs does not include it, so nobody compiles its code")];
    }
    let mut trial = run::Trial::new(page);
    // Stop after a failed step: the next ones might fail only because of it.
    let failed = steps.iter().find_map(|step| Some((step.line, trial.take(step).err()?)));
    failed.map(|(line, error)| format!("{page}, line {line}: {error}")).into_iter().collect()
}

#[test]
fn every_page_does_what_it_says() {
    assert!(Path::new("docs").exists(), "tests run at the top of their package");
    let trials: Vec<_> = pages().into_iter().map(|page| std::thread::spawn(move || tried(&page))).collect();
    let errors: Vec<_> = trials.into_iter().flat_map(|trial| trial.join().unwrap()).collect();
    assert!(errors.is_empty(), "\n{}", errors.join("\n\n"));
}

#[test]
fn every_link_leads_to_a_file_and_its_heading() {
    let errors: Vec<_> = all_pages().iter().flat_map(|page| links::broken(Path::new(page))).collect();
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn what_nobody_runs_is_refused_unless_it_says_why() {
    let error = |block: &str| page::steps(block).unwrap_err();
    assert!(error("a\n```sh\nxds serve\n```\n")[0].starts_with("line 2: nobody runs `sh`"));
    assert!(error("```\nxds serve\n```\n")[0].contains("nobody runs"));
    assert!(error("```text\n$ xds serve\n```\n")[0].contains("make it `console`"));
    assert!(error("```sh (unrun: )\nxds serve\n```\n")[0].contains("nobody runs"));
    assert_eq!(page::steps("```sh (unrun: needs an Envoy)\nxds serve\n```\n"), Ok(Vec::new()));
    assert_eq!(page::steps("```text\n  - a\n```\n"), Ok(Vec::new()));
}

#[test]
fn a_page_is_read_in_its_order() {
    let page = "1. Look:\n\n   ```console\n   $ ls \\\n     -a\n   .\n   $ xds serve config &\n   ```\n\
                <!-- until %1: changed -->\n```yaml (file: a/b.yaml)\na:\n  b\n```\n```sh (terminal)\nx \\\n  y\n```\n";
    let (command, name, text) = ("ls -a".into(), "a/b.yaml".into(), "a:\n  b\n".into());
    let start = |command: &str| page::What::Start { command: command.into(), expected: Vec::new() };
    let steps: Vec<_> = page::steps(page).unwrap().into_iter().map(|step| step.what).collect();
    let expected = [
        page::What::Run { command, expected: vec![".".into()] },
        start("xds serve config"),
        page::What::Until { job: 1, text: "changed".into() },
        page::What::File { name, text },
        start("x \\\n  y"),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn dots_stand_for_what_a_page_leaves_out() {
    let shows = |expected: &str, output: &str| {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        page::shows(&lines(expected), &lines(output))
    };
    for (expected, output) in
        [("a\n..\nd", "a\nb\nc\nd"), ("..", ""), ("a ... c", "a b b c"), ("v...", "v"), ("a", "a")]
    {
        assert!(shows(expected, output), "{expected:?} {output:?}");
    }
    for (expected, output) in [("a\n..\nd", "a\nb"), ("a", "a\nb"), ("a ... c", "a b"), ("", "a")] {
        assert!(!shows(expected, output), "{expected:?} {output:?}");
    }
}
