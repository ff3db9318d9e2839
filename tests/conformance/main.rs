//! Scripts of messages on the wire, one per rule or vector of the protocol. Each runs twice: on the
//! machines alone, and over sockets.
//!
//! | line | does |
//! | --- | --- |
//! | `server names_limit=2` | sets limits and timeouts of the server, before the first stream |
//! | `server unserved=X not_found=sotw` | sets how types are served: `config` in `script.rs` has all words |
//! | `commit X a=1 a[env=prod]=2 -b; Cluster c=1@eds` | changes the cache: type, then variants to put and to remove |
//! | `refuse X ..: text` | the same, but the cache refuses it with an error that contains the text |
//! | `commit X a{ttl=2s,aliases=x+y}=1` | the same, with extras of a wrapper; they follow the constraints |
//! | `open a delta env=prod` | opens an aggregated stream `a` (or `sotw`), with node metadata |
//! | `open a delta agent=envoy feature=f` | the same, with the user agent and features of the client |
//! | `open a sotw Cluster as envoy` | the same on the service of one type; streams with the same node after `as` belong to one client |
//! | `a> X +r?env=prod -s` | stream `a` subscribes; in SotW without signs, because each request lists all names |
//! | `a> X +r holding r s from b` | the same, with the versions of `r` and `s` that stream `b` was sent; `from text` is the text itself |
//! | `a> X * version=b` | the same, with the last `version_info` that `b` was sent; `version=text` is the text itself |
//! | `a> X r nonce=n1` | the same, with the nonce of the first response of the type; `nonce=text` is the text itself |
//! | `a> X node=env=test r` | the same, with a changed node |
//! | `a> none r` | a request without a type |
//! | `a< X r[env=prod]=A -r[env=test] -s` | expects the next response on `a`, and ACKs it; `a< nothing` expects none |
//! | `a<? X r=A` | the same, without an answer, until .. |
//! | `a> X ack`, `a> X nack why` | .. this; in SotW with the same list, unless another list precedes it |
//! | `a< closed INVALID_ARGUMENT text` | the stream has ended with this code and a message that contains the text |
//! | `version X a.n1 != a` | compares versions of responses (`=` or `!=`): here the first one of the type on `a`, and the last |
//! | `wait 2s` | lets time pass |
//!
//! `r` is a plain name and `r?env=prod` a locator; but `xdstp://a/X/r?k=v` is a name and
//! `xdstp://a/X/r??env=prod` a locator. `r=A` is a resource sent under its plain name, `r[when]=A`
//! one with constraints. `c=A@eds` is a cluster that gets its endpoints from EDS, `a(b)=A` has
//! another name in its payload, `a=x*9000` has this size, and `a=>x` redirects to `x`. A response
//! shows errors as `!r(NOT_FOUND)` and the extras of a wrapper as `r{ttl=5s,aliases=x+y}=A`; a
//! heartbeat has no `=A`. A SotW request has the newest nonce of its type unless it gives another;
//! a delta request has none. A response that the script does not expect fails it at its end.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rules;
mod script;
mod wire;

use std::panic::catch_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use script::Script;
use wire::{Machines, Sockets};

#[test]
fn sotw_on_the_machines() {
    on_the_machines("sotw");
}

#[test]
fn sotw_over_sockets() {
    over_sockets("sotw");
}

#[test]
fn delta_on_the_machines() {
    on_the_machines("delta");
}

#[test]
fn delta_over_sockets() {
    over_sockets("delta");
}

#[test]
fn order_on_the_machines() {
    on_the_machines("order");
}

#[test]
fn order_over_sockets() {
    over_sockets("order");
}

#[test]
fn errors_on_the_machines() {
    on_the_machines("errors");
}

#[test]
fn errors_over_sockets() {
    over_sockets("errors");
}

#[test]
fn ttl_on_the_machines() {
    on_the_machines("ttl");
}

#[test]
fn ttl_over_sockets() {
    over_sockets("ttl");
}

#[test]
fn names_on_the_machines() {
    on_the_machines("names");
}

#[test]
fn names_over_sockets() {
    over_sockets("names");
}

#[test]
fn tp2_on_the_machines() {
    on_the_machines("tp2");
}

#[test]
fn tp2_over_sockets() {
    over_sockets("tp2");
}

/// A script that passes for any responses proves nothing.
#[test]
fn every_expectation_can_fail() {
    for script in FOLDERS.iter().flat_map(|folder| scripts(folder)) {
        for spoilt in script.spoilt() {
            let holds = catch_unwind(|| spoilt.run(&mut Machines::new())).is_ok();
            assert!(!holds, "holds too: {}", spoilt.difference(&script));
        }
    }
}

fn on_the_machines(folder: &str) {
    for script in scripts(folder) {
        script.run(&mut Machines::new());
    }
}

/// A few scripts at a time: they mostly wait, and on a busy machine waits would take longer.
fn over_sockets(folder: &str) {
    let (scripts, next) = (scripts(folder), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    script.run(&mut Sockets::new());
                }
            });
        }
    });
}

fn scripts(folder: &str) -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(folder);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "scripts in {}", folder.display());
    paths.iter().map(|path| Script::read(path)).collect()
}

const FOLDERS: [&str; 7] = ["sotw", "delta", "order", "errors", "ttl", "names", "tp2"];
