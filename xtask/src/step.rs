//! Runs other programs, one step after the other.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
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
    #[error("go is missing; install Go 1.26 or newer")]
    NoGo,
    #[error("npm is missing; install Node.js 20 or newer (Debian: `apt-get install nodejs npm`)")]
    NoNode,
    #[error(
        "java or javac is missing; install a JDK 17 or newer (Debian: `apt-get install default-jdk-headless`)"
    )]
    NoJava,
    #[error("mvn is missing; install Maven 3.8 or newer (Debian: `apt-get install maven`)")]
    NoMaven,
    #[error(
        "chromium or chromedriver is missing, and only root may install them; as root (Debian): `apt-get install \
         chromium chromium-driver`"
    )]
    NoChromium,
    #[error(
        "prometheus is missing, and apt-get cannot download it; on Debian, as root: `apt-get update`, then again"
    )]
    NoPrometheus,
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Metadata(#[from] cargo_metadata::Error),
}

/// Prints a command and runs it. Fails if the command fails.
pub(crate) fn step(command: &mut Command) -> Result<(), StepError> {
    println!("==> {}", shown(command));
    let status = command.current_dir(workspace()).status().map_err(|source| start_error(command, source))?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: shown(command), status }) }
}

/// The output of a command.
pub(crate) fn output(command: &mut Command) -> Result<String, StepError> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| start_error(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(StepError::Failed { command: shown(command), status: output.status })
    }
}

/// Whether a command starts and succeeds.
pub(crate) fn quiet(command: &mut Command) -> bool {
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

pub(crate) fn exit_code(result: Result<(), StepError>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    match error {
        // A step that a signal ended has no exit code.
        StepError::Failed { status, .. } => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        StepError::Start { .. }
        | StepError::NoPython
        | StepError::NoVenv
        | StepError::NoGo
        | StepError::NoNode
        | StepError::NoJava
        | StepError::NoMaven
        | StepError::NoChromium
        | StepError::NoPrometheus
        | StepError::File { .. }
        | StepError::Metadata(_) => ExitCode::FAILURE,
    }
}

pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
}
