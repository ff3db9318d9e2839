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
//!
//! `tests/examples.rs` runs the pages of `examples/` once more, with the ports that are written
//! there. Only that test runs the commands, files and comments of these pages that say
//! `needs an Envoy`, as in `console (needs an Envoy)` and `sh (terminal, needs an Envoy)`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "docs/links.rs"]
mod links;
#[path = "docs/page.rs"]
mod page;
#[path = "binary/port.rs"]
mod port;
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
    let is_example = page.starts_with("examples/");
    if let Some(step) = steps.iter().find(|step| step.needs_envoy && !is_example) {
        return vec![format!(
            "{page}, line {}: tests/examples.rs, which has an Envoy, does not run it",
            step.line
        )];
    }
    let mut trial = run::Trial::new(page, Some(run::FreePorts::new()));
    // Stop after a failed step: the next ones might fail only because of it.
    let mut steps = steps.iter().filter(|step| !step.needs_envoy);
    let failed = steps.find_map(|step| Some((step.line, trial.take(step).err()?)));
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
    let steps = page::steps(page).unwrap();
    assert!(steps.iter().all(|step| !step.needs_envoy));
    let steps: Vec<_> = steps.into_iter().map(|step| step.what).collect();
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
fn a_block_and_a_comment_may_need_an_envoy() {
    let page = "```console (needs an Envoy)\n$ curl a\nb\n```\n```sh (terminal, needs an Envoy)\nenvoy\n```\n\
                <!-- run, needs an Envoy: kill -TERM %1 -->\n<!-- until %1, needs an Envoy: c -->\n";
    let steps = page::steps(page).unwrap();
    assert!(steps.iter().all(|step| step.needs_envoy));
    let expected = [
        page::What::Run { command: "curl a".into(), expected: vec!["b".into()] },
        page::What::Start { command: "envoy".into(), expected: Vec::new() },
        page::What::Run { command: "kill -TERM %1".into(), expected: Vec::new() },
        page::What::Until { job: 1, text: "c".into() },
    ];
    assert_eq!(steps.into_iter().map(|step| step.what).collect::<Vec<_>>(), expected);
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
