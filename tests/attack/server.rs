//! `xds serve`, its folder and its limits.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{CertificateParams, KeyPair};

/// The settings of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setup {
    Plain,
    Tls,
    /// The limit of file descriptors.
    Descriptors(usize),
    /// The folder also has 20 MB of endpoints.
    Large,
    /// The port is that of `xds proxy` in front of the server.
    Proxy,
    /// The folder is applied to a store.
    Store,
}

/// A server and its folder, both removed at the end.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Its certificate, in PEM.
    pub(crate) certificate: Option<String>,
    pub(crate) folder: PathBuf,
    content: usize,
    running: Child,
    /// The server behind the proxy.
    behind: Option<Child>,
    log_lines: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start(test: &str, setup: Setup) -> Self {
        let name = format!("attack-{}-{}", std::process::id(), test.replace([' ', ','], "-"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(folder.join("config")).unwrap();
        write(&folder, 0);
        for number in (0..LARGE_NAMES).filter(|_| matches!(setup, Setup::Large)) {
            let text = format!(
                "\"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment\ncluster_name: large-{number}\n\
                 endpoints:\n- lb_endpoints:\n  - endpoint:\n      address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}\n      hostname: {}\n",
                "x".repeat(LARGE_BYTES)
            );
            fs::write(folder.join(format!("config/large-{number}.yaml")), text).unwrap();
        }
        let mut command = match setup {
            Setup::Descriptors(limit) => {
                let mut limited = Command::new("bash");
                limited.args([
                    "-c",
                    &format!("ulimit -n {limit} && exec \"$0\" \"$@\""),
                    env!("CARGO_BIN_EXE_xds"),
                ]);
                limited
            }
            Setup::Plain | Setup::Tls | Setup::Large | Setup::Proxy | Setup::Store => {
                Command::new(env!("CARGO_BIN_EXE_xds"))
            }
        };
        command.arg("serve").arg(folder.join("config")).args(["--listen", "127.0.0.1:0", "--admin"]);
        command.arg(if matches!(setup, Setup::Store) { "127.0.0.1:0" } else { "none" });
        if matches!(setup, Setup::Store) {
            let store = folder.join("store");
            let init = Command::new(env!("CARGO_BIN_EXE_xds")).args(["store", "init"]).arg(&store).output();
            assert!(init.unwrap().status.success());
            command.arg("--store").arg(&store);
        }
        let mut certificate = None;
        if matches!(setup, Setup::Tls) {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            fs::write(folder.join("server.pem"), &pem).unwrap();
            fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
            command.arg("--listen-cert").arg(folder.join("server.pem"));
            command.arg("--listen-key").arg(folder.join("server.key"));
            certificate = Some(pem);
        }
        let mut running = start(&mut command);
        let mut address = listening(&mut running);
        let mut behind = None;
        if matches!(setup, Setup::Proxy) {
            let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
            command.args(["proxy", "--upstream", &format!("http://{address}")]);
            command.args(["--listen", "127.0.0.1:0", "--admin", "none"]);
            behind = Some(std::mem::replace(&mut running, start(&mut command)));
            address = listening(&mut running);
            let mut log = behind.as_mut().and_then(|behind| behind.stderr.take()).unwrap();
            std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        }
        let log_lines = Arc::<AtomicUsize>::default();
        let (counted, log) = (Arc::clone(&log_lines), BufReader::new(running.stderr.take().unwrap()).lines());
        std::thread::spawn(move || {
            for line in log.map_while(Result::ok) {
                if counted.fetch_add(1, Ordering::Relaxed) < 20 {
                    println!("  {line}");
                }
            }
        });
        Self { address, certificate, folder, content: 0, running, behind, log_lines }
    }

    /// The content of its one cluster.
    pub(crate) fn content(&self) -> String {
        self.content.to_string()
    }

    /// Changes the content of the cluster.
    pub(crate) fn change(&mut self) -> String {
        self.content += 1;
        write(&self.folder, self.content);
        self.content()
    }

    pub(crate) fn log_lines(&self) -> usize {
        self.log_lines.load(Ordering::Relaxed)
    }

    /// The memory of the server.
    pub(crate) fn resident_mb(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the server runs");
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for running in std::iter::once(&mut self.running).chain(&mut self.behind) {
            _ = running.kill();
            _ = running.wait();
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn start(command: &mut Command) -> Child {
    command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn listening(running: &mut Child) -> SocketAddr {
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
    address.expect("the server starts")
}

/// Names of large endpoints, `large-0` and so on, and the size of each: below the 4 MiB of one
/// resource.
pub(crate) const LARGE_NAMES: usize = 6;
const LARGE_BYTES: usize = 3_500_000;

/// Writes by a rename, so that the server never reads a part of the file.
fn write(folder: &Path, content: usize) {
    let text = format!(
        "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: witnessed\nalt_stat_name: \"{content}\"\n"
    );
    fs::write(folder.join("written"), text).unwrap();
    fs::rename(folder.join("written"), folder.join("config/clusters.yaml")).unwrap();
}
