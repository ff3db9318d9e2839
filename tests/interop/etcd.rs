//! A real etcd.

use std::net::Ipv4Addr;
use std::process::Stdio;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::folder::Folder;
use crate::peers;
use crate::port::free_port;
use crate::wait::{SOON, until};

/// One member; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Etcd {
    pub(crate) port: u16,
    child: Child,
    _data: Folder,
}

impl Etcd {
    /// `None` if etcd is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let program = peers::find(peers::ETCD)?;
        let data = Folder::new();
        let (port, peers_port) = (free_port(), free_port());
        let address = |port: u16| format!("http://127.0.0.1:{port}");
        let child = Command::new(program)
            .arg("--data-dir")
            .arg(data.path().join("etcd"))
            .args(["--name", "one", "--log-level", "error"])
            .args(["--initial-cluster", &format!("one={}", address(peers_port))])
            .args(["--listen-client-urls", &address(port), "--advertise-client-urls", &address(port)])
            .args(["--listen-peer-urls", &address(peers_port)])
            .args(["--initial-advertise-peer-urls", &address(peers_port)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("etcd starts");
        let accepts = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok().map(drop);
        until("etcd accepts connections", SOON, accepts).await;
        Some(Self { port, child, _data: data })
    }

    /// Sends a signal.
    pub(crate) async fn signal(&self, signal: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await;
        assert!(sent.expect("there is such a command").success());
    }

    /// A store in it.
    pub(crate) fn store(&self) -> String {
        format!("etcd://127.0.0.1:{}/interop", self.port)
    }
}
