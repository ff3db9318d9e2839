//! `cargo xtask dist`: what is shipped, for the system it runs on.
//!
//! | module | makes |
//! | --- | --- |
//! | [`packages`] | the list of the packages in the binary |
//! | [`licences`] | the texts of their licences |
//! | [`sbom`] | the software bill of materials |
//! | [`tree`] | the files to install, below a prefix |
//! | [`deb`] | the Debian package |
//!
//! The archives depend only on the binary and the commit: their entries are sorted, and have the
//! time of the commit, or that of `SOURCE_DATE_EPOCH`.

mod deb;
mod licences;
mod packages;
mod sbom;
mod tree;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{StepError, output, step, workspace};
use packages::Packages;

/// What to package, and where the files go.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Package this binary, rather than build one with the profile and the feature `dist`
    ///
    /// It must run on this system, because it writes its own completions and man pages.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where the files go [default: the folder `packages` in the target folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Why nothing is shipped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DistError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cargo does not say what the workspace is made of: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    #[error("the bill of materials: {0}")]
    Sbom(String),
    #[error("{0}")]
    Refused(String),
}

impl DistError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File { path: path.to_owned(), source }
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<(), DistError> {
        let packages = Packages::read()?;
        let out = self.out.unwrap_or_else(|| packages.target_folder().join("packages"));
        let binary = match self.binary {
            Some(binary) => binary,
            None => build(&packages)?,
        };
        // Of an earlier run; only what this program makes.
        let work = out.join("work");
        if work.exists() {
            fs::remove_dir_all(&work).map_err(DistError::file(&work))?;
        }
        fs::create_dir_all(&work).map_err(DistError::file(&work))?;

        let (version, system) = (packages.version(), packages.host());
        let time = time_of_commit()?;
        let bill = out.join(format!("xds-{version}.cdx.json"));
        write(&bill, sbom::render(&packages)?.as_bytes())?;
        let files = tree::Files { binary: &binary, packages: &packages, bill: &bill };

        let name = format!("xds-{version}-{system}");
        let archive = out.join(format!("{name}.tar.gz"));
        files.lay(&work.join(&name), tree::Layout::Local)?;
        tar(&work, &name, time, &archive)?;
        let package = deb::build(&files, &work.join("deb"), &out, time)?;

        let made = [archive, package, bill];
        let sums = sums(&out, &made)?;
        fs::remove_dir_all(&work).map_err(DistError::file(&work))?;
        for path in made.iter().chain([&sums]) {
            let bytes = fs::metadata(path).map_err(DistError::file(path))?.len();
            println!("{bytes:>10}  {}", path.display());
        }
        Ok(())
    }
}

/// Builds the binary, and returns its path.
fn build(packages: &Packages) -> Result<PathBuf, DistError> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let options = ["build", "--locked", "--profile", "dist", "--features", "dist", "--bin", "xds"];
    step(Command::new(cargo).args(options))?;
    Ok(packages.target_folder().join("dist/xds"))
}

/// In seconds since 1970.
fn time_of_commit() -> Result<u64, DistError> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(workspace()))?,
    };
    text.trim().parse().map_err(|_| DistError::Refused(format!("not a time in seconds: {text:?}")))
}

/// Packs the folder `name` of `parent`.
fn tar(parent: &Path, name: &str, time: u64, archive: &Path) -> Result<(), DistError> {
    let owner = ["--owner=0", "--group=0", "--numeric-owner", "--format=gnu", "--sort=name", MODE];
    let mut tar = Command::new("tar");
    tar.args(owner).arg(format!("--mtime=@{time}")).arg("--use-compress-program=gzip -n");
    step(tar.arg("-cf").arg(archive).arg("-C").arg(parent).arg(name))?;
    Ok(())
}

/// Everyone may read everything, whatever the umask of the builder is.
const MODE: &str = "--mode=u=rwX,go=rX";

/// Writes `SHA256SUMS`, which `sha256sum -c` reads.
fn sums(out: &Path, made: &[PathBuf]) -> Result<PathBuf, DistError> {
    let names = made.iter().filter_map(|path| path.file_name());
    let text = output(Command::new("sha256sum").args(names).current_dir(out))?;
    let path = out.join("SHA256SUMS");
    write(&path, text.as_bytes())?;
    Ok(path)
}

/// Writes a file, and the folders above it.
fn write(path: &Path, bytes: &[u8]) -> Result<(), DistError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(DistError::file(folder))?;
    }
    fs::write(path, bytes).map_err(DistError::file(path))
}

fn read(path: &Path) -> Result<String, DistError> {
    fs::read_to_string(path).map_err(DistError::file(path))
}
