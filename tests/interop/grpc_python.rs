//! gRPC's C core by way of Python: a real client that resolves `xds:///` names.

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

/// One run of `grpc_peer.py`; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct GrpcPeer {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl GrpcPeer {
    /// A server that answers `name`, and its port. `None` when Python's gRPC is not installed.
    pub(crate) async fn server(name: &str) -> Option<(Self, u16)> {
        let mut peer = Self::start("server", name, None)?;
        let port = peer.line().await.parse().expect("the script prints its port");
        Some((peer, port))
    }

    /// A client of `target` with our server at `xds_port` in its bootstrap.
    pub(crate) fn client(scratch: &Path, target: &str, xds_port: u16) -> Option<Self> {
        Self::client_as(scratch, target, xds_port, &json!({}))
    }

    /// The same for a client that says `metadata` of itself.
    pub(crate) fn client_as(scratch: &Path, target: &str, xds_port: u16, metadata: &Value) -> Option<Self> {
        let bootstrap = json!({
            "xds_servers": [{
                "server_uri": format!("127.0.0.1:{xds_port}"),
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": {"id": "interop", "locality": {"region": "here"}, "metadata": metadata},
        });
        let file = scratch.join("grpc-bootstrap.json");
        fs::write(&file, bootstrap.to_string()).expect("the temporary directory is writable");
        Self::start("client", target, Some(file))
    }

    /// One call: the answer, or what went wrong.
    pub(crate) async fn call(&mut self) -> Result<String, String> {
        self.input.write_all(b"call\n").await.expect("the script runs");
        let line = self.line().await;
        line.strip_prefix("ok ").map(str::to_owned).ok_or(line)
    }

    fn start(role: &str, argument: &str, bootstrap: Option<PathBuf>) -> Option<Self> {
        let python = peers::find(peers::PYTHON)?;
        let mut command = Command::new(python);
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/grpc_peer.py"))
            .args([role, argument]);
        if let Some(file) = bootstrap {
            command.env("GRPC_XDS_BOOTSTRAP", file);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Some(Self { _child: child, input, output })
    }

    async fn line(&mut self) -> String {
        let line =
            time::timeout(2 * SOON, self.output.next_line()).await.expect("the script answers in time");
        line.expect("its output is text").expect("the script has not ended")
    }
}
