//! Runs every test, those with foreign programs included.

use std::env;
use std::process::{Command, ExitCode};

use crate::peers;
use crate::step::{exit_code, step};

/// `cargo xtask kubernetes`: installs an API server, then runs the tests with it.
pub(crate) fn run_kubernetes() -> ExitCode {
    exit_code(peers::install_kubernetes().and_then(|peers| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // One after the other: each has an API server of its own.
        let test =
            ["test", "--features", "interop,kubernetes", "--test", "kubernetes", "--", "--test-threads", "1"];
        step(Command::new(&cargo).args(test).env("XDS_PEERS", &peers).env("XDS_REQUIRE_PEERS", "1"))
    }))
}

/// `cargo xtask test`: installs the peers, then runs all tests. The exit code is the exit code of
/// the failed step.
pub(crate) fn run() -> ExitCode {
    exit_code(peers::install().and_then(|peers| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        step(Command::new(&cargo).args(["test", "--workspace"]))?;
        for target in ["interop", "browser", "monitoring"] {
            let test = ["test", "--features", "interop", "--test", target];
            step(Command::new(&cargo).args(test).env("XDS_PEERS", &peers).env("XDS_REQUIRE_PEERS", "1"))?;
        }
        // Its other targets are the same without these features, and are in the workspace.
        let targets = ["--lib", "--test", "conformance", "--test", "engines", "--test", "etcd"];
        let store =
            [&["test", "--package", "xds-store", "--features", "conformance,etcd"], &targets[..]].concat();
        step(Command::new(&cargo).args(store).env("XDS_PEERS", &peers).env("XDS_REQUIRE_PEERS", "1"))
    }))
}
