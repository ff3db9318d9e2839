//! The files to install, below a prefix.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::{Compression, GzBuilder};

use super::packages::Packages;
use super::{DistError, licences, read, write};
use crate::step::{output, step, workspace};

/// What goes into each archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    pub(super) binary: &'a Path,
    pub(super) packages: &'a Packages,
    /// The software bill of materials.
    pub(super) bill: &'a Path,
}

/// Where some of them have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// What an administrator copies to `/usr/local`.
    Local,
    /// `/usr` of a Debian package.
    Debian,
}

impl Files<'_> {
    /// Writes them below `prefix`, which does not exist yet.
    pub(super) fn lay(&self, prefix: &Path, layout: Layout) -> Result<(), DistError> {
        let program = prefix.join("bin/xds");
        write(&program, &fs::read(self.binary).map_err(DistError::file(self.binary))?)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .map_err(DistError::file(&program))?;
        // A build with the profile `dist` has nothing to remove.
        step(Command::new("strip").arg(&program))?;

        let zsh = if layout == Layout::Debian { "vendor-completions" } else { "site-functions" };
        for (shell, path) in [
            ("bash", "share/bash-completion/completions/xds".to_owned()),
            ("fish", "share/fish/vendor_completions.d/xds.fish".to_owned()),
            ("zsh", format!("share/zsh/{zsh}/_xds")),
        ] {
            write(
                &prefix.join(path),
                output(Command::new(&program).args(["completions", shell]))?.as_bytes(),
            )?;
        }
        self.man_pages(&program, &prefix.join("share/man/man1"))?;

        let unit = read(&workspace().join("examples/deploy/xds.service"))?;
        let unit = if layout == Layout::Debian { packaged(&unit) } else { unit };
        write(&prefix.join("lib/systemd/system/xds.service"), unit.as_bytes())?;

        let documents = prefix.join("share/doc/xds");
        for name in ["README.md", "CHANGELOG.md", "LICENSE"] {
            write(&documents.join(name), read(&workspace().join(name))?.as_bytes())?;
        }
        write(&documents.join("THIRD-PARTY-LICENCES.txt"), licences::render(self.packages)?.as_bytes())?;
        write(&documents.join("xds.cdx.json"), read(self.bill)?.as_bytes())?;
        for path in examples()? {
            let source = workspace().join(&path);
            write(&documents.join(&path), &fs::read(&source).map_err(DistError::file(&source))?)?;
        }
        Ok(())
    }

    /// One page for each command, compressed as Debian wants them.
    fn man_pages(&self, program: &Path, folder: &Path) -> Result<(), DistError> {
        fs::create_dir_all(folder).map_err(DistError::file(folder))?;
        output(Command::new(program).arg("man-pages").arg(folder))?;
        for entry in fs::read_dir(folder).map_err(DistError::file(folder))? {
            let page = entry.map_err(DistError::file(folder))?.path();
            let text = fs::read(&page).map_err(DistError::file(&page))?;
            // Without a time, so that equal pages are equal files.
            let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
            packed.write_all(&text).map_err(DistError::file(&page))?;
            let packed = packed.finish().map_err(DistError::file(&page))?;
            write(&page.with_extension("1.gz"), &packed)?;
            fs::remove_file(&page).map_err(DistError::file(&page))?;
        }
        Ok(())
    }
}

/// The unit for a binary of a package, which has its own place and its own steps of installation.
fn packaged(unit: &str) -> String {
    let lines = unit.lines().skip_while(|line| line.starts_with('#'));
    lines.map(|line| line.replace("/usr/local/bin/xds", "/usr/bin/xds") + "\n").collect()
}

/// Those that need no source of ours.
fn examples() -> Result<Vec<PathBuf>, DistError> {
    let listed = output(Command::new("git").args(["ls-files", "examples"]).current_dir(workspace()))?;
    let of_programs = |line: &&str| line.ends_with(".rs") || line.contains("Dockerfile");
    Ok(listed.lines().filter(|line| !of_programs(line)).map(PathBuf::from).collect())
}
