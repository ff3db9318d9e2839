//! Scripts of what goes over the wire, one per vector of the protocol, each run twice: on the machines alone and over
//! sockets.
//!
//! | line | does |
//! | --- | --- |
//! | `commit X a=1 a[env=prod]=2 -b` | changes the cache: type, then variants to put and to remove |
//! | `refuse X ..: text` | the same, and the cache refuses it with an error that holds the text |
//! | `open a delta env=prod` | opens stream `a` (or `sotw`), with node metadata |
//! | `a> X +r?env=prod -s` | stream `a` asks; in SotW without signs, as all of them are listed each time |
//! | `a> X +r?env=prod holding r from b` | the same, with the version that stream `b` was sent of `r` |
//! | `a< X r[env=prod]=A -r[env=test] -s` | the next response on `a`, which is then ACKed; `a< nothing` when there is none |
//!
//! `r` is a plain name and `r?env=prod` a locator; `r=A` is told under the plain name, `r[when]=A` with constraints.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rules;
mod script;
mod wire;

use std::path::Path;

use script::Script;
use wire::{Machines, Sockets};

#[test]
fn tp2_on_the_machines() {
    for script in scripts("tp2") {
        script.run(&mut Machines::new());
    }
}

#[test]
fn tp2_over_sockets() {
    for script in scripts("tp2") {
        script.run(&mut Sockets::new());
    }
}

fn scripts(folder: &str) -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(folder);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "scripts in {}", folder.display());
    paths.iter().map(|path| Script::read(path)).collect()
}
