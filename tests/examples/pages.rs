//! The pages of the examples, run as written: with the ports of the page and its files, and with an
//! Envoy if one is installed.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::page;
use super::ports::Taken;
use super::run::Trial;

/// Each page, with the ports that its programs listen on.
const PAGES: [(&str, &[u16]); 4] = [
    ("examples/migrations/README.md", &[18000, 18001]),
    ("examples/proxy/README.md", &[21000, 21001, 21010, 21011, 21901, 21902, 21903]),
    ("examples/quickstart/README.md", &[18000, 18001, 8081, 8082, 9901, 10000]),
    ("examples/variants/README.md", &[18000, 18001, 8081, 8082, 8083, 8084, 9901, 9902]),
];

#[test]
fn each_page_does_what_it_says_on_its_ports() {
    let folders = fs::read_dir("examples").unwrap().map(|entry| entry.unwrap().path());
    let mut written: Vec<_> =
        folders.map(|folder| folder.join("README.md")).filter(|it| it.exists()).collect();
    written.sort();
    assert_eq!(written, PAGES.map(|(page, _)| PathBuf::from(page)));

    let peers =
        env::var_os("XDS_PEERS").map_or_else(|| fs::canonicalize("target/peers").ok(), |it| Some(it.into()));
    let peers = peers.filter(|peers| peers.join("envoy").exists());
    if peers.is_none() {
        let why = "SKIPPED: no target/peers/envoy for the examples; `cargo xtask peers` installs it";
        assert!(env::var_os("XDS_REQUIRE_PEERS").is_none_or(|value| value.is_empty()), "{why}");
        // Not `eprintln!`: the test harness swallows that when the test passes.
        writeln!(io::stderr(), "{why}").unwrap();
    }
    for (page, ports) in PAGES {
        let _ports = Taken::of(page, ports);
        let mut trial = Trial::new(page, None);
        if let Some(peers) = &peers {
            fs::create_dir_all(trial.folder.join("target")).unwrap();
            symlink(peers, trial.folder.join("target/peers")).unwrap();
        }
        let steps = page::steps(&fs::read_to_string(Path::new(page)).unwrap()).unwrap();
        for step in steps.iter().filter(|step| !step.needs_envoy || peers.is_some()) {
            trial.take(step).unwrap_or_else(|error| panic!("{page}, line {}: {error}", step.line));
        }
    }
}
