//! Runs every test, those with foreign programs included.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

use cargo_metadata::MetadataCommand;

use crate::peers;
use crate::step::{StepError, exit_code, step, workspace};

/// `cargo xtask kubernetes`: installs an API server, then runs the tests with it.
pub(crate) fn run_kubernetes() -> ExitCode {
    exit_code(peers::install_kubernetes().and_then(|peers| {
        // One after the other: each has an API server of its own.
        step(cargo("test").args(["--test", KUBERNETES]).envs(requiring(&peers)).env("RUST_TEST_THREADS", "1"))
    }))
}

/// `cargo xtask test`: installs the peers, then runs all tests. The exit code is the exit code of
/// the failed step.
pub(crate) fn run() -> ExitCode {
    exit_code(peers::install().and_then(|peers| {
        let test = || {
            let mut test = cargo("test");
            test.envs(requiring(&peers));
            test
        };
        let others: Vec<_> = other_targets()?.into_iter().flat_map(|name| ["--test".into(), name]).collect();
        // Some tests run the examples. With named targets, `cargo test` does not build them.
        step(cargo("build").arg("--examples"))?;
        step(test().args(["--lib", "--bins"]).args(others))?;
        step(test().arg("--doc"))?;
        step(test().args(["--test", INTEROP]))
    }))
}

/// A command of cargo for the whole workspace. With all features each time, so that nothing is built twice.
fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([command, "--workspace", "--all-features"]);
    cargo
}

/// The variables with which a test fails if a foreign program is missing.
fn requiring(peers: &Path) -> [(&'static str, &OsStr); 2] {
    [("XDS_PEERS", peers.as_os_str()), ("XDS_REQUIRE_PEERS", OsStr::new("1"))]
}

/// The test targets of the workspace, but for those that have a command of their own.
fn other_targets() -> Result<BTreeSet<String>, StepError> {
    let metadata = MetadataCommand::new().no_deps().current_dir(workspace()).exec()?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    let tests = targets.filter(cargo_metadata::Target::is_test).map(|target| target.name);
    Ok(tests.filter(|name| ![INTEROP, KUBERNETES].contains(&&**name)).collect())
}

const INTEROP: &str = "interop";
const KUBERNETES: &str = "kubernetes";
