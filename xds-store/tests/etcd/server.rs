//! A real etcd, which can be stopped, paused and started again.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use prost::Message;
use tokio::runtime::{Handle, Runtime};
use tonic::transport::Endpoint;

/// The program, or `None` with a `SKIPPED` line on stderr; `cargo xtask peers` builds it.
fn program() -> Option<PathBuf> {
    let peers = env::var_os("XDS_PEERS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers"), PathBuf::from);
    let path = peers.join("bin/etcd");
    if path.exists() {
        return Some(path);
    }
    let why = format!("SKIPPED: {} is missing; `cargo xtask peers` installs it", path.display());
    assert!(env::var_os("XDS_REQUIRE_PEERS").is_none_or(|value| value.is_empty()), "{why}");
    // Not `eprintln!`: the test harness swallows that when the test passes.
    writeln!(io::stderr(), "{why}").expect("stderr is open");
    None
}

/// The members of one etcd.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    folder: PathBuf,
    runtime: Runtime,
}

pub(crate) struct Member {
    command: Command,
    process: Option<Child>,
    pub(crate) port: u16,
}

impl Cluster {
    /// Members with further options; `None` if etcd is not installed.
    pub(crate) fn start(size: usize, options: &[&str]) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let program = program()?;
        let name = format!("etcd-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        let scheme = if options.contains(&"--cert-file") { "https" } else { "http" };
        let ports: Vec<(u16, u16)> = (0..size).map(|_| free_ports()).collect();
        let peers = ports.iter().enumerate();
        let cluster: Vec<String> =
            peers.map(|(number, (_, peer))| format!("m{number}=http://127.0.0.1:{peer}")).collect();
        let members = ports.iter().enumerate().map(|(number, (port, peer))| {
            let (client, peer) = (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
            let mut command = Command::new(&program);
            command.args(["--name", &format!("m{number}"), "--log-level", "error"]);
            command.arg("--data-dir").arg(folder.join(format!("m{number}")));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster.join(",")]);
            // A leader that is lost is replaced soon.
            command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            command.args(options).stdout(Stdio::null()).stderr(Stdio::null());
            let mut member = Member { command, process: None, port: *port };
            member.start();
            member
        });
        let members = members.collect();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Some(Self { members, folder, runtime })
    }

    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// The address of all members.
    pub(crate) fn address(&self, prefix: &str) -> String {
        let members: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("etcd://{}/{prefix}", members.join(","))
    }

    /// Calls a method of etcd's API that the engine does not use.
    pub(crate) fn call(&self, path: &'static str, request: impl Message + 'static) {
        let endpoint = format!("http://127.0.0.1:{}", self.members[0].port);
        self.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(Endpoint::from_shared(endpoint).unwrap().connect_lazy());
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<_, Nothing>::default();
            let path = http::uri::PathAndQuery::from_static(path);
            grpc.unary(tonic::Request::new(request), path, codec).await.unwrap();
        });
    }
}

impl Member {
    pub(crate) fn start(&mut self) {
        self.process = Some(self.command.spawn().unwrap());
    }

    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops its execution, with all connections. A thread may answer until it has seen the signal.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
        let threads = format!("/proc/{}/task", self.process.as_ref().unwrap().id());
        let is_stopped = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, state)| state.starts_with(" T"))
        };
        let are_stopped = || fs::read_dir(&threads).unwrap().all(|thread| is_stopped(thread.unwrap()));
        while !are_stopped() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(process) = &mut member.process {
                _ = process.kill();
                _ = process.wait();
            }
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// Any message, unread.
#[derive(Clone, PartialEq, Message)]
struct Nothing {}

fn free_ports() -> (u16, u16) {
    let bound = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let [client, peer] = bound.map(|listener| listener.local_addr().unwrap().port());
    (client, peer)
}
