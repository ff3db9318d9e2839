//! The Debian package, made by Debian's own `dpkg-deb`.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::{Files, Layout};
use super::{DistError, read, write};
use crate::step::{output, step, workspace};

/// Builds the package in `out`; `root` is a folder to work in, which does not exist yet.
pub(super) fn build(files: &Files<'_>, root: &Path, out: &Path, time: u64) -> Result<PathBuf, DistError> {
    files.lay(&root.join("usr"), Layout::Debian)?;
    let licence = root.join("usr/share/doc/xds/LICENSE");
    fs::remove_file(&licence).map_err(DistError::file(&licence))?;
    write(&root.join("usr/share/doc/xds/copyright"), COPYRIGHT.as_bytes())?;
    // An administrator changes it, and an upgrade leaves it as it is then.
    write(
        &root.join("etc/xds/config.yaml"),
        read(&workspace().join("examples/deploy/config.yaml"))?.as_bytes(),
    )?;
    let resources = root.join("etc/xds/resources");
    fs::create_dir_all(&resources).map_err(DistError::file(&resources))?;

    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let (version, architecture) = (files.packages.version(), architecture.trim());
    write(
        &root.join("DEBIAN/control"),
        control(&version, architecture, &maintainer(), &glibc()?, size_kib(root)?).as_bytes(),
    )?;
    write(&root.join("DEBIAN/conffiles"), b"/etc/xds/config.yaml\n")?;
    for (name, script) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
        let path = root.join("DEBIAN").join(name);
        write(&path, script.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(DistError::file(&path))?;
    }
    let sums =
        r#"cd "$0" && find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums"#;
    step(Command::new("sh").args(["-c", sums]).arg(root))?;

    // Everyone may read everything, whatever the umask of the builder is.
    step(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(root))?;
    let package = out.join(format!("xds_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(root).arg(&package);
    step(build.env("SOURCE_DATE_EPOCH", time.to_string()))?;
    Ok(package)
}

fn control(version: &str, architecture: &str, maintainer: &str, glibc: &str, size_kib: u64) -> String {
    format!(
        "Package: xds\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {maintainer}\n\
         Installed-Size: {size_kib}\nDepends: libc6 (>= {glibc}), libgcc-s1\nSection: net\nPriority: optional\n\
         Description: xDS control plane\n \
         Serves a folder or a store of resources to Envoy and gRPC. One name may have\n \
         several contents; the parameters of a client select one.\n"
    )
}

/// Who answers for the package: the person who builds it, by the variables of Debian's own tools.
fn maintainer() -> String {
    let variable = |name| env::var(name).ok().filter(|text| !text.trim().is_empty());
    match (variable("DEBFULLNAME"), variable("DEBEMAIL")) {
        (Some(name), Some(address)) => format!("{name} <{address}>"),
        (None, Some(address)) => address,
        (_, None) => MAINTAINER.to_owned(),
    }
}

/// The version that the binary was linked with: a newer one has all that it needs.
fn glibc() -> Result<String, DistError> {
    let version =
        output(Command::new("dpkg-query").args(["-W", "-f", "${source:Upstream-Version}", "libc6"]))?;
    Ok(version.trim().to_owned())
}

fn size_kib(root: &Path) -> Result<u64, DistError> {
    let text = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(root))?;
    let size = text.split_whitespace().next().and_then(|size| size.parse().ok());
    size.ok_or_else(|| DistError::Refused(format!("not the output of du: {text:?}")))
}

/// The project has no address. `dpkg` wants one, and in `.invalid` (RFC 2606) nobody has one.
const MAINTAINER: &str = "The xds authors <xds@xds.invalid>";

const COPYRIGHT: &str = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: xds

Files: *
Copyright: the authors of xds
License: Apache-2.0
 On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.
Comment:
 The binary has parts that other people wrote: THIRD-PARTY-LICENCES.txt lists
 them with their licences, and xds.cdx.json with their versions.
";

// It does not start the service: there are no resources to serve yet. `DPKG_ROOT` is empty but for
// an installation into another folder, whose systemd does not run.
const POSTINST: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # After an upgrade: the new binary, if the service runs.
    if [ -n "$2" ]; then
        systemctl try-restart xds.service
    fi
fi
"#;

const PRERM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl disable --now xds.service
fi
"#;

const POSTRM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"#;
