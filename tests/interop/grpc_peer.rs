//! Real gRPC clients, which resolve `xds:///` names, and the gRPC servers that they call.
//!
//! Each is a small program in tests/interop/peers. All of them use the same lines on stdin and
//! stdout.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time;

use crate::peers;
use crate::wait::SOON;

/// One of the programs; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct GrpcPeer {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// The gRPC implementations with xDS that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// The C core, through Python.
    Core,
    Go,
    Js,
    /// tonic-xds.
    Rust,
}

/// Where a client reads its bootstrap.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bootstrap<'a> {
    /// In a file below this directory.
    File(&'a Path),
    /// In the environment itself.
    Inline,
}

impl GrpcPeer {
    /// A server that answers `name`, and its port. `None` if Python's gRPC is not installed.
    pub(crate) async fn server(name: &str) -> Option<(Self, u16)> {
        let mut peer = Self::start(Implementation::Core.command("server", name)?);
        let port = peer.line().await.parse().expect("the script prints its port");
        Some((peer, port))
    }

    /// A client of `target` with our server at `xds_port` in its bootstrap, and this node metadata.
    /// `None` if it is not installed.
    pub(crate) fn client(
        implementation: Implementation,
        bootstrap: Bootstrap<'_>,
        target: &str,
        xds_port: u16,
        metadata: &Value,
    ) -> Option<Self> {
        let mut command = implementation.command("client", target)?;
        let text = bootstrap_text(&implementation.uri(xds_port), &json!({"type": "insecure"}), metadata);
        match bootstrap {
            Bootstrap::File(scratch) => {
                let file = scratch.join("grpc-bootstrap.json");
                fs::write(&file, text).expect("the temporary directory is writable");
                command.env("GRPC_XDS_BOOTSTRAP", file)
            }
            Bootstrap::Inline => command.env("GRPC_XDS_BOOTSTRAP_CONFIG", text),
        };
        Some(Self::start(command))
    }

    /// The same with this bootstrap.
    pub(crate) fn client_of(implementation: Implementation, target: &str, bootstrap: &str) -> Option<Self> {
        let mut command = implementation.command("client", target)?;
        command.env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
        Some(Self::start(command))
    }

    /// The same with a server at `uri` and these channel credentials.
    pub(crate) fn client_with(
        implementation: Implementation,
        target: &str,
        uri: &str,
        credentials: &Value,
        metadata: &Value,
    ) -> Option<Self> {
        Self::client_of(implementation, target, &bootstrap_text(uri, credentials, metadata))
    }

    /// A client of the C core that uses resource errors (gRFC A88).
    pub(crate) fn client_with_data_errors(target: &str, xds_port: u16) -> Option<Self> {
        let mut command = Implementation::Core.command("client", target)?;
        let server = format!("127.0.0.1:{xds_port}");
        let text = bootstrap_text(&server, &json!({"type": "insecure"}), &json!({}));
        command.env("GRPC_XDS_BOOTSTRAP_CONFIG", text);
        command.env("GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING", "true");
        Some(Self::start(command))
    }

    /// One call: the answer or the error.
    pub(crate) async fn call(&mut self) -> Result<String, String> {
        self.input.write_all(b"call\n").await.expect("the program runs");
        let line = self.line().await;
        line.strip_prefix("ok ").map(str::to_owned).ok_or(line)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { _child: child, input, output }
    }

    async fn line(&mut self) -> String {
        let line =
            time::timeout(2 * SOON, self.output.next_line()).await.expect("the program answers in time");
        line.expect("its output is text").expect("the program has not ended")
    }
}

fn bootstrap_text(uri: &str, credentials: &Value, metadata: &Value) -> String {
    json!({
        "xds_servers": [{
            "server_uri": uri,
            "channel_creds": [credentials],
            "server_features": ["xds_v3"],
        }],
        "node": {"id": "interop", "locality": {"region": "here"}, "metadata": metadata},
    })
    .to_string()
}

impl Implementation {
    /// Those whose behaviour is compared in detail.
    pub(crate) const ALL: [Self; 3] = [Self::Core, Self::Go, Self::Js];

    /// Those of docs/grpc.md.
    pub(crate) const OF_PAGE: [Self; 4] = [Self::Core, Self::Go, Self::Js, Self::Rust];

    /// The address of our server in a bootstrap.
    pub(crate) fn uri(self, port: u16) -> String {
        let scheme = if self == Self::Rust { "http://" } else { "" };
        format!("{scheme}127.0.0.1:{port}")
    }

    /// The command for the program; `None` if it is not installed.
    fn command(self, role: &str, argument: &str) -> Option<Command> {
        let mut command = match self {
            Self::Core => python("peer.py")?,
            Self::Go => Command::new(peers::find(peers::GRPC_GO)?),
            Self::Rust => Command::new(peers::find(peers::GRPC_RUST)?),
            Self::Js => {
                let packages = peers::find(peers::GRPC_JS)?;
                let mut node = Command::new("node");
                node.arg(source("node/peer.js")).env("NODE_PATH", packages);
                node
            }
        };
        command.args([role, argument].map(OsStr::new));
        // Remove the variables of the environment that runs the tests.
        command.env_remove("GRPC_XDS_BOOTSTRAP").env_remove("GRPC_XDS_BOOTSTRAP_CONFIG");
        Some(command)
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "gRPC core",
            Self::Go => "grpc-go",
            Self::Js => "grpc-js",
            Self::Rust => "tonic-xds",
        })
    }
}

/// A program of tests/interop/peers/python; `None` if Python with the C core is not installed.
pub(crate) fn python(program: &str) -> Option<Command> {
    let mut python = Command::new(peers::find(peers::PYTHON)?);
    python.arg(source("python").join(program));
    Some(python)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/peers").join(name)
}
