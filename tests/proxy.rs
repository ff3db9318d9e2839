//! `xds proxy` in front of `xds serve`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use xds::client::last_good;

#[path = "proxy/cache_file.rs"]
mod cache_file;
#[path = "proxy/migration.rs"]
mod migration;
#[path = "proxy/partial.rs"]
mod partial;
#[path = "proxy/partial_client.rs"]
mod partial_client;

/// `xds serve` or `xds proxy` on a port that the system picks; killed when dropped.
struct Running {
    address: String,
    child: Child,
    /// The test reads this output, or the process would stop when the pipe is full.
    _lines: Receiver<String>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", arguments)
    }

    fn start_on(address: &str, arguments: &[&str]) -> Self {
        Self::start_by(xds(), &[arguments, &["--listen", address]].concat())
    }

    fn start_by(mut command: Command, arguments: &[&str]) -> Self {
        command.args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let listening = loop {
            let line = lines.recv_timeout(SOON).unwrap();
            if line.starts_with("listening on ") {
                break line;
            }
        };
        let address = listening.rsplit_once(' ').unwrap().1.to_owned();
        Self { address, child, _lines: lines }
    }

    /// The exit code and the JSON lines of `xds get` with these arguments.
    fn get(&self, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
        let mut command = xds();
        command.args(["get", "--server", &self.address, "--format", "json"]).args(arguments);
        if !arguments.contains(&"--timeout") {
            command.args(["--timeout", "3"]);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Status and body of a GET.
    fn http(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn status(&self) -> Value {
        let (code, body) = self.http("/proxy");
        assert_eq!(code, 200);
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn xds() -> Command {
    let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
    xds.current_dir(env!("CARGO_MANIFEST_DIR"));
    for variable in ["RUST_LOG", "GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG"] {
        xds.env_remove(variable);
    }
    xds
}

/// S31: in SotW a version belongs to a response, and the resources in each response depend on the
/// timing.
fn comparable(question: &[&str], got: (Option<i32>, Vec<Value>)) -> (Option<i32>, Vec<Value>) {
    let (code, mut lines) = got;
    if question.contains(&"--sotw") {
        lines.iter_mut().filter_map(Value::as_object_mut).for_each(|line| _ = line.remove("version"));
    }
    (code, lines)
}

fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(SOON, what, holds);
}

fn until_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// V26: constraints, versions and contents are the same behind two proxies, with any protocols.
/// Then the origin is killed. Then the second proxy is killed, too, and starts from its file.
#[test]
fn v26_a_chain_passes_everything_on_unchanged_and_outlives_its_origin() {
    let origin = Running::start(&["serve", "examples/variants"]);
    let first = Running::start(&["proxy", "--upstream", &origin.address, "--sotw"]);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("proxy-{}", std::process::id()));
    _ = fs::remove_file(&file);
    let upstream = first.address.clone();
    let arguments = ["proxy", "--upstream", &upstream, "--cache-file", file.to_str().unwrap()];
    let second = Running::start(&arguments);
    let questions: [&[&str]; 6] = [
        &["RDS", "web-routes", "env=prod", "version=v1"],
        &["RDS", "web-routes", "env=prod", "pod=7"],
        &["RDS", "web-routes", "env=test", "pod=8"],
        &["CDS", "*", "env=prod"],
        &["--sotw", "LDS", "*", "env=prod"],
        &["--sotw", "EDS", "prod-v1", "rest", "env=prod"],
    ];
    let answers: Vec<_> =
        questions.iter().map(|question| comparable(question, origin.get(question))).collect();
    for (question, answer) in questions.iter().zip(&answers) {
        assert_eq!(answer.0, Some(0), "{question:?}: {answer:?}");
        assert!(!answer.1.is_empty());
        assert_eq!(comparable(question, second.get(question)), *answer, "{question:?}");
    }
    assert_eq!(
        second.get(&["CDS", "nothing", "env=prod", "--timeout", "60"]).0,
        Some(3),
        "an absent resource is reported"
    );

    drop(origin);
    for (question, answer) in questions.iter().zip(&answers) {
        assert_eq!(comparable(question, second.get(question)), *answer, "{question:?}");
    }
    // A new locator waits, and does not get the answer that the resource is absent.
    let (code, lines) = second.get(&["CDS", "never-asked", "env=prod", "--timeout", "12"]);
    assert_eq!(
        (code, lines.iter().any(|line| line.to_string().contains("NOT_FOUND"))),
        (Some(1), false),
        "{lines:?}"
    );

    let address = second.address.clone();
    drop(second);
    drop(first);
    let second = Running::start_on(&address, &arguments);
    for (question, answer) in questions.iter().zip(&answers) {
        assert_eq!(comparable(question, second.get(question)), *answer, "from the file: {question:?}");
    }
    _ = fs::remove_file(&file);
}

#[test]
fn g4_a_type_that_the_upstream_refuses_harms_no_other() {
    for refusal in ["--not-served", "--refuse"] {
        let origin = Running::start(&["serve", "examples/variants", refusal, "SDS"]);
        let proxy = Running::start(&["proxy", "--upstream", &origin.address]);
        let (code, _) = proxy.get(&["SDS", "certificate", "--timeout", "10"]);
        assert_ne!(code, Some(3), "{refusal}: nobody says that there is none");
        until("clusters can be had", || proxy.get(&["CDS", "*", "env=prod"]).0 == Some(0));
        assert_eq!(proxy.http("/readyz/CDS").0, 200, "{refusal}");
        let (code, _) = proxy.get(&["SDS", "certificate", "--timeout", "10"]);
        assert_ne!(code, Some(3), "{refusal}");
        assert_eq!(proxy.get(&["CDS", "*", "env=prod"]).0, Some(0), "{refusal}");
    }
}

#[test]
fn it_tells_how_its_upstreams_stand() {
    let origin = Running::start(&["serve", "examples/variants"]);
    let proxy = Running::start(&["proxy", "--upstream", &origin.address]);
    until("it is ready", || proxy.http("/readyz") == (200, "ready\n".into()));
    let mut watch = xds();
    watch.args(["watch", "--server", &proxy.address, "CDS", "*", "env=prod"]);
    let mut watch = watch.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let cds = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    until("the type is synced", || proxy.status()["upstreams"][0]["types"][cds]["state"] == "synced");
    let status = proxy.status();
    assert_eq!(status["upstreams"][0]["servers"][0]["connected"], true, "{status:#}");
    assert_eq!(
        (&status["asked_by_clients"], &status["asked_upstream"]),
        (&1.into(), &1.into()),
        "{status:#}"
    );
    assert_eq!(proxy.http("/readyz/nonsense").0, 400);
    drop(origin);
    let server = || proxy.status()["upstreams"][0]["servers"][0].clone();
    until("the loss is reported", || server()["connected"] == false && !server()["failure"].is_null());
    until("the reason is reported", || server()["failure"]["reason"].as_str().unwrap().contains("refused"));
    let failure = server()["failure"].clone();
    assert!(failure["since_ms"].as_u64().unwrap() <= failure["last_at_ms"].as_u64().unwrap(), "{failure}");
    assert_eq!(server()["in_use"], true);
    assert_eq!((proxy.http("/readyz").0, proxy.http("/readyz/CDS").0), (200, 200), "it serves its cache");
    assert_eq!(proxy.http("/readyz/SDS").0, 503, "its cache has none, and no upstream answers");
    assert_eq!(proxy.status()["upstreams"][0]["types"][cds]["state"], "synced", "what is at hand is served");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// The second proxy sees the gRPC health of the first.
#[test]
fn who_can_serve_nobody_is_not_ready_and_a_proxy_without_clients_becomes_ready_by_itself() {
    let origin = Running::start(&["serve", "examples/variants"]);
    let address = origin.address.clone();
    drop(origin);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ready-{}", std::process::id()));
    _ = fs::remove_file(&file);
    let arguments = ["proxy", "--upstream", &address, "--cache-file", file.to_str().unwrap()];
    let first = Running::start(&arguments);
    let second = Running::start(&["proxy", "--upstream", &first.address]);
    until("the first says why", || first.http("/readyz").1.contains("refused"));
    assert_eq!((first.http("/readyz").0, first.http("/readyz/CDS").0), (503, 503));
    until("the second says why", || second.http("/readyz").1.contains("NOT_SERVING"));
    assert_eq!(second.http("/readyz").0, 503);

    let origin = Running::start_on(&address, &["serve", "examples/variants"]);
    // No client has subscribed.
    until("both are ready", || [&first, &second].map(|proxy| proxy.http("/readyz").0) == [200, 200]);
    assert_eq!((first.http("/readyz/CDS").0, first.http("/readyz/SDS").0), (200, 200));
    assert_eq!(first.get(&["CDS", "*", "env=prod"]).0, Some(0));
    // The file is written after the answers.
    let in_file = || last_good::read(fs::File::open(&file).ok()?).ok();
    until("the file has the clusters", || in_file().is_some_and(|found| !found.sets.is_empty()));
    drop(second);
    drop(first);
    drop(origin);
    // From its file it can serve clusters, and nothing else.
    let first = Running::start(&arguments);
    assert_eq!((first.http("/readyz").0, first.http("/readyz/CDS").0), (200, 200));
    assert_eq!(first.http("/readyz/SDS").0, 503);
    _ = fs::remove_file(&file);
}

#[test]
fn bad_input_is_exit_code_2_and_says_what_to_do() {
    let refused = |arguments: &[&str]| {
        let output = xds().arg("proxy").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&[]).contains("--upstream <URI>"));
    assert!(refused(&["--upstream", "dns://1.2.3.4/x"]).contains("dns://1.2.3.4/x"));
    assert!(
        refused(&["--upstream", "a:1", "--by-node", "env", "--wildcard-keys", "env"])
            .contains("cannot be used")
    );
    assert!(refused(&["--upstream", "a:1", "--linger", "soon"]).contains("30m"));
}

const SOON: Duration = Duration::from_secs(30);
