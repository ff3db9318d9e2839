//! The alert rules and the dashboard of `examples/deploy`, with Debian's Prometheus.
//!
//! `cargo xtask test` installs it and runs this; without it each test says `SKIPPED`.
//! `tests/cli/deploy.rs` has the tests that need no Prometheus.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;

#[path = "interop/peers.rs"]
#[expect(dead_code, reason = "it has the programs of other tests too")]
mod peers;

/// A process, killed at its end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// `xds serve` or `xds proxy`, with the addresses of its two ports.
struct Running {
    _process: Process,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
        command.args(arguments).args(["--listen", "127.0.0.1:0"]).env_remove("RUST_LOG");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut after = |start: &str| -> SocketAddr {
            let line = lines.find_map(|line| line.strip_prefix(start).map(str::to_owned)).unwrap();
            line.trim_end_matches('/').parse().unwrap()
        };
        let (address, admin) = (after("listening on "), after("admin page on http://"));
        thread::spawn(move || lines.for_each(drop));
        Self { _process: Process(child), address, admin }
    }
}

/// A folder of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let name = format!("monitoring-{}-{test}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(path.join("config")).unwrap();
        Self(path)
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A running Prometheus that scrapes each second.
struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

impl Prometheus {
    fn start(program: &Path, scratch: &Scratch, targets: &[(&str, SocketAddr)]) -> Self {
        let rules = Path::new(DEPLOY).join("alerts.yaml").canonicalize().unwrap();
        let mut config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\nscrape_configs:\n",
            rules.display()
        );
        for (job, target) in targets {
            config += &format!("- {{ job_name: {job}, static_configs: [{{ targets: ['{target}'] }}] }}\n");
        }
        fs::write(scratch.0.join("prometheus.yaml"), config).unwrap();
        // Prometheus does not report the port that the system chose, so choose one for it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", scratch.path("prometheus.yaml")))
            .arg(format!("--storage.tsdb.path={}", scratch.path("data")))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error"])
            .spawn()
            .unwrap();
        Self { _process: Process(child), address }
    }

    /// The result of a query; an error as text.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer =
            self.get(&format!("/api/v1/query?query={encoded}")).map_err(|error| error.to_string())?;
        match answer["data"]["result"].as_array() {
            Some(result) => Ok(result.clone()),
            None => Err(answer["error"].to_string()),
        }
    }

    fn get(&self, path: &str) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(self.address)?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        serde_json::from_str(body).map_err(std::io::Error::other)
    }

    /// Queries until the result has this number of elements.
    fn until(&self, expression: &str, count: usize) {
        let deadline = Instant::now() + LONG;
        loop {
            let result = self.query(expression);
            if result.as_ref().is_ok_and(|result| result.len() == count) {
                return;
            }
            assert!(Instant::now() < deadline, "{expression}: {result:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_slice(&fs::read(Path::new(DEPLOY).join("dashboard.json")).unwrap()).unwrap()
}

/// The queries of the dashboard, for all jobs and instances, each with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panel = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let title = panel["title"].as_str().unwrap().to_owned();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    let annotations = dashboard["annotations"]["list"].as_array().unwrap().iter();
    let of_annotation = annotations.map(|annotation| {
        (annotation["name"].as_str().unwrap().to_owned(), annotation["expr"].as_str().unwrap().to_owned())
    });
    let filled = |(title, query): (String, String)| {
        let query = query.replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "10s");
        (title, query)
    };
    of_panel.chain(of_annotation).map(filled).collect()
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires_when_it_should_and_only_then() {
    let Some(promtool) = peers::find("bin/promtool") else { return };
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output = Command::new(&promtool).args(arguments).current_dir(DEPLOY).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("SUCCESS"), "{arguments:?}: {text}");
    }
}

#[test]
fn the_queries_of_the_dashboard_have_results_and_a_refused_folder_raises_its_alert() {
    let Some(prometheus) = peers::find("bin/prometheus") else { return };
    let scratch = Scratch::new("prometheus");
    let (key, params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    fs::write(scratch.0.join("server.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(scratch.0.join("server.key"), key.serialize_pem()).unwrap();
    let cluster = scratch.0.join("config/clusters.yaml");
    fs::write(&cluster, cluster_file("1s")).unwrap();
    let (cert, key) = (scratch.path("server.pem"), scratch.path("server.key"));
    let secured =
        Running::start(&["serve", "examples/variants", "--listen-cert", &cert, "--listen-key", &key]);
    let origin = Running::start(&["serve", &scratch.path("config")]);
    let (upstream, file) = (origin.address.to_string(), scratch.path("cache"));
    let proxy = Running::start(&["proxy", "--upstream", &upstream, "--cache-file", &file]);
    let targets = [("xds-secured", secured.admin), ("xds", origin.admin), ("xds-proxy", proxy.admin)];
    let watch = |server: SocketAddr| {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        xds.args(["watch", "--server", &server.to_string(), "CDS", "*"]).env_remove("RUST_LOG");
        let mut child = xds.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("+ Cluster"), "{first}");
        Process(child)
    };
    let _clients = [watch(origin.address), watch(proxy.address)];
    let prometheus = Prometheus::start(&prometheus, &scratch, &targets);
    // A commit with clients, while both are scraped.
    prometheus.until("xds_build_info", 3);
    fs::write(&cluster, cluster_file("2s")).unwrap();
    prometheus.until("xds_propagation_seconds_count > 0", 2);
    prometheus.until("rate(process_cpu_seconds_total[10s])", 3);

    let mut empty = BTreeSet::new();
    for (title, query) in queries() {
        match prometheus.query(&query) {
            Ok(result) if result.is_empty() => _ = empty.insert(title),
            Ok(_) => {}
            Err(error) => panic!("{title}: {query}: {error}"),
        }
    }
    assert_eq!(empty, NOTHING_YET.map(str::to_owned).into());

    fs::write(&cluster, "nme: x").unwrap();
    prometheus.until("xds_source_last_reload_successful{source=\"folder\"} == 0", 1);
    prometheus.until("ALERTS{alertname=\"XdsSourceRefused\", alertstate=\"pending\"}", 1);
    let groups = prometheus.get("/api/v1/rules").unwrap();
    let rules = groups["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 20 && rules.iter().all(|rule| rule["health"] == "ok"), "{groups:#}");
}

fn cluster_file(timeout: &str) -> String {
    format!(
        "'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\nconnect_timeout: {timeout}\n"
    )
}

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/deploy");
/// Panels whose metrics have no value before something happens, or without warnings.
const NOTHING_YET: [&str; 2] = ["Restarts", "Troubles"];
/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(60);
