//! `cargo xtask dist`, with the binary of the tests instead of one with LTO, which takes minutes.
//!
//! The archive, the check sums and the bill of materials are right, and Debian's own dpkg installs
//! the package into an empty folder, keeps what an administrator changed, and removes it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", target_os = "linux"))]

#[path = "binary/running.rs"]
#[expect(dead_code, reason = "it serves other tests too")]
mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::running::Running;

#[test]
fn what_is_shipped_is_whole_and_installs() {
    if Command::new("dpkg").arg("--version").output().is_err() {
        println!("SKIPPED: no dpkg");
        return;
    }
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("packages-{}", std::process::id()));
    let mut dist = Command::new(env!("CARGO"));
    dist.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--",
        "dist",
        "--binary",
        env!("CARGO_BIN_EXE_xds"),
        "--out",
    ]);
    // To compress the binary of the tests, of 80 MB, would take most of the time.
    dist.arg(&out).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    succeeds(dist.env("DEBFULLNAME", "An Operator").env("DEBEMAIL", "operator@example.com"));
    succeeds(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));

    let archive = only(&out, ".tar.gz");
    let listed = succeeds(Command::new("tar").arg("-tvf").arg(&archive));
    for file in
        ["bin/xds\n", "man1/xds-serve.1.gz\n", "completions/xds\n", "/_xds\n", "/xds.fish\n", "/LICENSE\n"]
    {
        assert!(listed.contains(file), "{file} is not in\n{listed}");
    }
    // Nothing tells of the machine and the hour it was built on.
    let times: std::collections::BTreeSet<_> =
        listed.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert!(times.len() == 1 && listed.lines().all(|line| line.contains(" 0/0 ")), "{listed}");

    let bill: Value = serde_json::from_str(&fs::read_to_string(only(&out, ".cdx.json")).unwrap()).unwrap();
    let names: Vec<_> =
        bill["components"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    for name in ["tokio", "tikv-jemallocator", "kube", "xds-core"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    // A crate that only builds and tests use.
    assert!(!names.contains(&"protox") && !names.contains(&"criterion"), "{names:?}");

    let package = only(&out, ".deb");
    let maintainer = succeeds(Command::new("dpkg-deb").arg("--field").arg(&package).arg("Maintainer"));
    assert_eq!(maintainer, "An Operator <operator@example.com>\n");
    installs(&out.join("root"), &package);
    fs::remove_dir_all(out).unwrap();
}

fn installs(root: &Path, package: &Path) {
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = || {
        let mut dpkg = Command::new("dpkg");
        // There is no libc and no shell in that folder.
        dpkg.args(["--force-depends", "--force-script-chrootless", "--force-not-root"])
            .env("DEBIAN_FRONTEND", "noninteractive");
        dpkg.arg(format!("--root={}", root.display()));
        dpkg
    };
    succeeds(dpkg().arg("--install").arg(package));
    let [program, unit, config] =
        ["usr/bin/xds", "usr/lib/systemd/system/xds.service", "etc/xds/config.yaml"]
            .map(|path| root.join(path));
    let start = fs::read_to_string(&unit).unwrap();
    let start = start.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap().to_owned();
    assert_eq!(start, "/usr/bin/xds serve --config /etc/xds/config.yaml");

    // As the unit starts it, with the folder and the port of this test.
    let resources = root.join("etc/xds/resources");
    let examples = root.join("usr/share/doc/xds/examples/quickstart");
    for file in fs::read_dir(examples).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "yaml") {
            fs::copy(&file, resources.join(file.file_name().unwrap())).unwrap();
        }
    }
    let [resources, options] = [&resources, &config].map(|path| path.to_str().unwrap());
    let serve = ["serve", resources, "--config", options, "--log-format", "text"];
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    drop(Running::start_command(Command::new(&program), &[&serve[..], &ports].concat()));

    // What an administrator changed stays, over an upgrade and a removal.
    let changed = fs::read_to_string(&config).unwrap() + "names-limit: 77\n";
    fs::write(&config, &changed).unwrap();
    succeeds(dpkg().arg("--install").arg(package));
    assert_eq!(fs::read_to_string(&config).unwrap(), changed);
    succeeds(dpkg().args(["--remove", "xds"]));
    assert!(!program.exists() && !unit.exists());
    assert_eq!(fs::read_to_string(&config).unwrap(), changed);
}

/// The one file with this ending.
fn only(folder: &Path, ending: &str) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    let [path] = &found[..] else { panic!("not one {ending}: {found:?}") };
    path.clone()
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
