//! Servers that start while the disk is full: they serve, say so, and go on when there is room.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", target_os = "linux"))]

use std::fs;
use std::process::Command;
use std::time::Instant;

use running::{Running, SOON, Scratch};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

/// A server that cannot write a byte: a write beyond the largest file is an error, as on a full disk.
fn start_full(arguments: &[&str]) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -S -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_xds")]);
    Running::start_command(command, arguments)
}

fn make_room(server: &Running) {
    let pid = i32::try_from(server.child.id()).unwrap();
    rlimit::prlimit(pid, rlimit::Resource::FSIZE, Some((u64::MAX, u64::MAX)), None).unwrap();
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < SOON, "waited in vain: {what}");
    }
}

/// Regression: the server did not start.
#[test]
fn a_first_start_with_rollouts_serves_and_keeps_its_state_once_there_is_room() {
    let (folder, state) = (Scratch::new("full-rollout"), Scratch::new("full-rollout-state"));
    let cluster = |seconds: u32| {
        let head = "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\n";
        format!("{head}connect_timeout: {seconds}s\n")
    };
    folder.write("a.yaml", cluster(1));
    let server =
        start_full(&["serve", folder.text(), "--rollout", "1 clients", "--rollout-state", state.text()]);
    server.logs("cannot note the source of the state");
    until("the first state", || server.get(&["CDS", "a"]).1.contains("connect_timeout: 1s"));
    assert!(!state.path("source").exists() && !state.path("stable").exists());
    let is_told =
        || server.metric("xds_troubles{kind=\"rollout_not_stored\",severity=\"error\"}") == Some(1.0);
    until("the trouble", is_told);
    make_room(&server);
    let source = || fs::read_to_string(state.path("source")).unwrap_or_default();
    until("the stable state", || source().starts_with("folder ") && source().ends_with("\nstable\n"));
    assert!(state.path("stable").exists());
    until("the end of the trouble", || !is_told());
}
