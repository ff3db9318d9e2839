//! `xds get` and `xds watch` against `xds serve`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A served folder, removed at the end.
struct Origin {
    folder: PathBuf,
    address: String,
    _server: Lines,
}

impl Origin {
    /// A folder with these files.
    fn serve(test: &str, files: &[(&str, &str)], arguments: &[&str]) -> Self {
        let folder = scratch(test);
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        let mut command = xds();
        command.arg("serve").arg(&folder).args(["--listen", "127.0.0.1:0", "--allow-empty"]).args(arguments);
        let server = Lines::of(&mut command);
        let line = server.until("listening on ");
        let address = line.rsplit_once(' ').unwrap().1.to_owned();
        Self { folder, address, _server: server }
    }

    /// A folder with the clusters a and b, and four variants of one route.
    fn usual(test: &str) -> Self {
        let routes = fs::read_to_string("examples/variants/routes.yaml").unwrap();
        Self::serve(test, &[("a.yaml", &cluster("a")), ("b.yaml", &cluster("b")), ("r.yaml", &routes)], &[])
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.folder.join(file)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = xds();
        command.args([arguments[0], "--server", &self.address]).args(&arguments[1..]);
        command
    }

    fn ask(&self, arguments: &[&str]) -> Answer {
        Answer::of(&mut self.command(arguments))
    }

    fn watch(&self, arguments: &[&str]) -> Lines {
        Lines::of(self.command(&["watch"]).args(arguments))
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn scratch(test: &str) -> PathBuf {
    let name = format!("watch-{}-{test}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

fn cluster(name: &str) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\n")
}

fn xds() -> Command {
    let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
    xds.current_dir(env!("CARGO_MANIFEST_DIR"));
    for variable in ["RUST_LOG", "GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG"] {
        xds.env_remove(variable);
    }
    xds
}

/// The result of a command that ends by itself.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    output: String,
    errors: String,
}

impl Answer {
    fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code(), output: text(stdout), errors: text(stderr) }
    }

    /// One object per line.
    fn objects(&self) -> Vec<Value> {
        self.output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A running command, with the lines of both its outputs.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    _ = sender.send(line);
                }
            });
        }
        Self { child, lines }
    }

    /// Waits for a line that contains the text.
    fn until(&self, text: &str) -> String {
        self.until_any(&[text])
    }

    /// Waits for a line for each text, in any order.
    fn until_all(&self, texts: &[&str]) {
        let mut missing = texts.to_vec();
        while !missing.is_empty() {
            let line = self.until_any(&missing);
            missing.retain(|text| !line.contains(text));
        }
    }

    /// The next line.
    fn next(&self) -> String {
        self.lines.recv_timeout(LONG).unwrap()
    }

    fn until_any(&self, texts: &[&str]) -> String {
        let deadline = Instant::now() + LONG;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if texts.iter().any(|text| line.contains(text)) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with any of {texts:?} in {seen:#?}"),
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// An event of `xds watch` without its time, such as `2026-11-23T06:20:00.123456Z`.
fn without_time(line: &str) -> String {
    let (time, rest) = line.split_once(' ').unwrap();
    assert_time(time);
    rest.to_owned()
}

fn assert_time(time: &str) {
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn get_prints_resources_by_name_in_the_order_of_the_arguments() {
    let origin = Origin::usual("get");
    for protocol in ["--delta", "--sotw"] {
        let answer = origin.ask(&["get", "cds", "b", "a", protocol]);
        assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
        let lines: Vec<_> = answer.output.lines().collect();
        let [b, b_name, a, a_name] = lines[..] else { panic!("{answer:#?}") };
        assert!(
            b.starts_with("+ Cluster b  version ") && a.starts_with("+ Cluster a  version "),
            "{answer:#?}"
        );
        assert_eq!((b_name, a_name), ("  name: b", "  name: a"));
    }
}

#[test]
fn d10_what_does_not_exist_is_exit_code_3_after_what_does() {
    let origin = Origin::usual("missing");
    let answer = origin.ask(&["get", "Cluster", "nope", "a"]);
    assert_eq!(answer.code, Some(3));
    assert!(answer.output.starts_with("+ Cluster a  version "), "{answer:#?}");
    assert!(answer.errors.starts_with("error: Cluster nope: NOT_FOUND: "), "{answer:#?}");

    let answer = origin.ask(&["get", "cds", "nope", "a", "--format", "json"]);
    let events: Vec<_> =
        answer.objects().iter().map(|event| json!([event["event"], event["code"]])).collect();
    assert_eq!(events, [json!(["gone", "NOT_FOUND"]), json!(["changed", null])]);

    // In SotW a server may be silent about it, and silence is no answer.
    let answer = origin.ask(&["get", "rds", "nope", "--sotw", "--timeout", "1"]);
    assert_eq!((answer.code, &*answer.output), (Some(5), ""));
    assert_eq!(
        answer.errors,
        "error: no answer within 1 s about RouteConfiguration nope: it is not known whether it exists\n"
    );
}

#[test]
fn t3_parameters_and_metadata_select_variants() {
    let origin = Origin::usual("variants");
    let get = |more: &[&str]| {
        let answer = origin.ask(&[&["get", "rds", "web-routes", "--format", "json"], more].concat());
        let [object] = &answer.objects()[..] else { panic!("{answer:#?}") };
        let route = &object["resource"]["virtual_hosts"][0]["routes"][0]["route"];
        (route["cluster"].as_str().unwrap().to_owned(), object["constraints"].clone())
    };
    assert_eq!(get(&["env=prod", "version=v1"]), ("prod-v1".into(), json!("env=prod,version=v1")));
    assert_eq!(get(&["version=v1"]), ("rest-v1".into(), json!("env!=prod,version=v1")));
    let metadata = ["--metadata", "env=prod", "--metadata", "version=v2", "--sotw"];
    // A client that subscribes by plain name is not sent constraints.
    assert_eq!(get(&metadata), ("prod-rest".into(), json!(null)));
    assert_eq!(get(&["--name", "web-routes"]), ("rest".into(), json!(null)));
}

#[test]
fn the_wildcard_gets_everything_and_what_came_as_yaml_can_be_served() {
    let origin = Origin::usual("wildcard");
    let clusters = origin.ask(&["get", "cds", "*", "--format", "yaml"]);
    assert_eq!((clusters.code, &*clusters.errors), (Some(0), ""));
    let routes = origin.ask(&["get", "rds", "web-routes", "env=prod", "version=v1", "--format", "yaml"]);
    let files = [("all.yaml", &*clusters.output), ("r.yaml", &*routes.output)];
    let copy = Origin::serve("wildcard-copy", &files, &[]);
    let copied = copy.ask(&["get", "cds", "*", "--format", "yaml"]);
    assert_eq!(copied.output, clusters.output);
    // The document has its `when`.
    let copied = copy.ask(&["get", "rds", "web-routes", "env=prod", "version=v1", "--format", "yaml"]);
    assert_eq!(copied.output, routes.output);
    assert_eq!(copy.ask(&["get", "rds", "web-routes", "env=prod"]).code, Some(3));

    // Its name differs from the name in the payload, so it is in a wrapper.
    let host = "\"@type\": type.googleapis.com/envoy.config.route.v3.VirtualHost\nname: x\ndomains: [x]\n";
    let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
    let host = host.trim_end().replace('\n', "\n  ");
    let wrapped = format!("\"@type\": {wrapper}\nname: web/x\nwhen: env=prod\nresource:\n  {host}");
    let origin = Origin::serve("wrapped", &[("h.yaml", &wrapped)], &[]);
    let get = ["get", "vhds", "web/x", "env=prod", "--format", "yaml"];
    let answer = origin.ask(&get);
    assert!(
        answer.output.contains("name: web/x\n") && answer.output.contains("when: env=prod\n"),
        "{answer:#?}"
    );
    let copy = Origin::serve("wrapped-copy", &[("h.yaml", &*answer.output)], &[]);
    assert_eq!(copy.ask(&get).output, answer.output);

    // Without a name it is about all resources.
    assert_eq!(origin.ask(&["get", "cds"]).output, origin.ask(&["get", "cds", "*"]).output);

    let none = origin.ask(&["get", "sds", "*", "--sotw"]);
    assert_eq!((none.code, &*none.output, &*none.errors), (Some(0), "", "Secret *: no resources\n"));
}

#[test]
fn c8_c9_watch_tells_of_an_update_and_of_a_removal() {
    for protocol in ["--delta", "--sotw"] {
        let files = [("a.yaml", &*cluster("a")), ("b.yaml", &*cluster("b"))];
        let origin = Origin::serve(&format!("watch{protocol}"), &files, &["--removal-grace", "0s"]);
        let bootstrap = json!({
            "xds_servers": [{ "server_uri": origin.address, "channel_creds": [{ "type": "insecure" }] }],
        });
        let mut keeping = xds();
        keeping.args(["watch", "cds", "a", protocol]).env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap.to_string());
        let (watch, keeping) = (origin.watch(&["cds", "a", protocol]), Lines::of(&mut keeping));
        let first = without_time(&watch.until("+ Cluster a  version "));
        assert_eq!(without_time(&keeping.until("+ Cluster a  version ")), first);
        origin.write("a.yaml", &format!("{}connect_timeout: 3s\n", cluster("a")));
        let second = watch.until("+ Cluster a  version ");
        assert_ne!(first, without_time(&second));
        watch.until("  connect_timeout: 3s");
        origin.remove("a.yaml");
        watch.until("- Cluster a  gone: NOT_FOUND: ");
        // Without fail_on_data_errors a client keeps its resources.
        keeping.until("! Cluster a  NOT_FOUND: ");
        origin.write("a.yaml", &cluster("a"));
        watch.until("+ Cluster a  version ");
    }
}

#[test]
fn watch_shows_what_changed_between_two_versions() {
    let origin = Origin::serve("diff", &[("a.yaml", &cluster("a"))], &["--removal-grace", "0s"]);
    let watch = origin.watch(&["cds", "a", "--diff"]);
    watch.until("  name: a");
    origin.write("a.yaml", &format!("{}connect_timeout: 3s\nalt_stat_name: x\n", cluster("a")));
    watch.until("+ Cluster a  version ");
    for line in ["  @@ -1 +1,3 @@", "   name: a", "  +alt_stat_name: x", "  +connect_timeout: 3s"] {
        assert_eq!(watch.next(), line);
    }
    origin.write("a.yaml", &format!("{}connect_timeout: 4s\nalt_stat_name: x\n", cluster("a")));
    watch.until("+ Cluster a  version ");
    let lines = [
        "  @@ -1,3 +1,3 @@",
        "   name: a",
        "   alt_stat_name: x",
        "  -connect_timeout: 3s",
        "  +connect_timeout: 4s",
    ];
    for line in lines {
        assert_eq!(watch.next(), line);
    }
    // After a removal there is no last version.
    origin.remove("a.yaml");
    watch.until("- Cluster a  gone");
    origin.write("a.yaml", &cluster("a"));
    watch.until("+ Cluster a  version ");
    assert_eq!(watch.next(), "  name: a");
}

#[test]
fn watch_follows_the_members_of_a_wildcard() {
    let origin = Origin::usual("members");
    let watch = origin.watch(&["cds", "*", "--format", "json"]);
    let next = || {
        let event: Value = serde_json::from_str(&watch.until("{")).unwrap();
        [event["event"].clone(), event["name"].clone()]
    };
    assert_eq!([next(), next()], [["changed", "a"], ["changed", "b"]]);
    assert_eq!(next(), ["complete", "*"]);
    origin.write("c.yaml", &cluster("c"));
    assert_eq!(next(), ["changed", "c"]);
}

#[test]
fn x4_x12_a_server_is_asked_for_new_style_names_of_any_authority() {
    let eds = "envoy.config.endpoint.v3.ClusterLoadAssignment";
    let file = |name: &str| {
        format!("\"@type\": type.googleapis.com/{eds}\ncluster_name: xdstp://shop/{eds}/eu/{name}\n")
    };
    let origin = Origin::serve("xdstp", &[("a.yaml", &*file("a")), ("b.yaml", &*file("b"))], &[]);
    let get = |name: &str| {
        let answer =
            origin.ask(&["get", "eds", &format!("xdstp://shop/{eds}/eu/{name}"), "--format", "json"]);
        let name = |event: &Value| event["name"].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned();
        (answer.code, answer.objects().iter().map(name).collect::<Vec<_>>())
    };
    assert_eq!(get("%61"), (Some(0), vec!["%61".to_owned()]));
    assert_eq!(get("*"), (Some(0), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(get("c"), (Some(3), vec!["c".to_owned()]));
}

#[test]
fn in_json_every_line_is_an_event() {
    let origin = Origin::usual("json");
    let answer = origin.ask(&["watch", "--once", "cds", "a", "--format", "json"]);
    let [event] = &mut answer.objects()[..] else { panic!("{answer:#?}") };
    assert_eq!(answer.code, Some(0));
    assert_time(event["at"].take().as_str().unwrap());
    let version = event["version"].as_str().unwrap();
    let expected = json!({
        "at": null,
        "event": "changed",
        "type": CLUSTER,
        "name": "a",
        "version": version,
        "constraints": null,
        "generation": 1,
        "stale": false,
        "resource": { "@type": CLUSTER, "name": "a" },
    });
    assert_eq!(*event, expected);
}

#[test]
fn a_server_that_cannot_be_reached_is_exit_code_1_and_told_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap().to_string();
    drop(listener);
    let answer = Answer::of(xds().args(["get", "--server", &closed, "cds", "a", "--timeout", "1"]));
    assert_eq!((answer.code, &*answer.output), (Some(1), ""));
    let lines: Vec<_> = answer.errors.lines().collect();
    let [early, error] = lines[..] else { panic!("{answer:#?}") };
    assert!(early.starts_with(&format!("{closed} cannot be reached: ")), "{early}");
    assert!(early.ends_with("; trying again"), "{early}");
    assert!(error.starts_with(&format!("error: {closed} cannot be reached: cannot connect: ")), "{error}");

    let watch = Lines::of(xds().args(["watch", "--server", &closed, "cds", "a"]));
    // The two outputs may come in any order.
    watch.until_all(&["; trying again", "- Cluster a  gone: UNAVAILABLE: "]);
}

#[test]
fn c6_a_server_that_says_nothing_is_exit_code_5_and_never_absence_and_the_time_is_as_long_as_it_says() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    // Before it is asked, and after.
    for more in [&["--tls"][..], &[], &["--sotw"]] {
        for (name, mode) in [("a", "get"), ("*", "get"), ("a", "watch")] {
            let mut command = xds();
            command.args([mode, "--server", &silent, "cds", name, "--timeout", "2"]).args(more);
            let start = Instant::now();
            let answer = Answer::of(if mode == "watch" { command.arg("--once") } else { &mut command });
            let took = start.elapsed();
            assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(6), "{took:?}");
            assert_eq!(answer.code, Some(5), "{answer:#?}");
            let error = format!(
                "error: no answer within 2 s about Cluster {name}: it is not known whether it exists\n"
            );
            assert_eq!(answer.errors.replace("Cluster \"*\"", "Cluster *"), error);
        }
    }
}

#[test]
fn a_server_that_is_down_is_an_error_within_2_s_unless_the_command_is_to_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap().to_string();
    drop(listener);
    for command in [&["get"][..], &["watch", "--once"]] {
        let start = Instant::now();
        let answer =
            Answer::of(xds().args(command).args(["--server", &closed, "cds", "a", "--timeout", "60"]));
        assert_eq!(answer.code, Some(1), "{answer:#?}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let waiting = ["--server", &closed, "cds", "a", "--timeout", "3", "--wait"];
        let start = Instant::now();
        let answer = Answer::of(xds().args(command).args(waiting));
        assert!(answer.code == Some(1) && start.elapsed() >= Duration::from_secs(3), "{answer:#?}");
    }
}

/// Regression: the errors were those of the TLS library, and a hint about the admin port.
#[test]
fn mistakes_about_tls_are_errors_in_words_with_a_cure() {
    let folder = scratch("tls-mistakes");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    let (ca, key_file) = (folder.join("ca.pem"), folder.join("key.pem"));
    fs::write(&ca, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    let (ca, key_file) = (ca.to_str().unwrap(), key_file.to_str().unwrap());
    let file = [("a.yaml", &*cluster("a"))];
    let options = ["--listen-cert", ca, "--listen-key", key_file];
    let (secured, open) =
        (Origin::serve("tls-port", &file, &options), Origin::serve("plain-port", &file, &[]));
    let port = |origin: &Origin| origin.address.rsplit_once(':').unwrap().1.to_owned();
    let of = |uri: &str, more: &[&str]| {
        let answer =
            Answer::of(xds().args(["get", "cds", "a", "--timeout", "60", "--server", uri]).args(more));
        assert_eq!(answer.code, Some(1), "{answer:#?}");
        answer.errors.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let uri = format!("localhost:{}", port(&secured));
    let error = format!("error: {uri} cannot be reached: its port speaks TLS, and this client does not");
    let plain = of(&uri, &[]);
    assert!(
        plain.contains(&error) && plain.last().unwrap().starts_with("  hint: add --tls, or --ca FILE"),
        "{plain:?}"
    );
    let uri = format!("https://localhost:{}", port(&open));
    let error = format!("error: {uri} cannot be reached: its port does not speak TLS, and this client does");
    let to_plain = of(&uri, &["--ca", ca]);
    assert_eq!(to_plain[0], error);
    assert!(to_plain[1].starts_with("  hint: leave out https://"), "{to_plain:?}");
    let uri = format!("https://localhost:{}", port(&secured));
    let error = format!(
        "error: {uri} cannot be reached: its certificate is that of an authority, and not that of a server"
    );
    let of_authority = of(&uri, &["--ca", ca]);
    assert_eq!(of_authority[0], error);
    assert!(of_authority[1].ends_with("with basicConstraints=CA:FALSE"), "{of_authority:?}");
}

#[test]
fn a_refusal_ends_get_at_once() {
    let origin = Origin::serve("refused", &[("a.yaml", &cluster("a"))], &["--refuse", "SDS"]);
    let answer = origin.ask(&["get", "sds", "a", "--timeout", "3600"]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.errors.contains("cannot be reached: InvalidArgument: "), "{answer:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_delta_is_told_with_a_way_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let server = tokio::spawn(server.serve_with_incoming(incoming));
    let arguments = ["get", "--server", &address, "cds", "a", "--timeout", "3600"].map(str::to_owned);
    let ask = move |more: &[&str]| Answer::of(xds().args(&arguments).args(more));
    let (delta, sotw) = tokio::task::spawn_blocking(move || (ask(&[]), ask(&["--sotw"]))).await.unwrap();
    server.abort();
    assert_eq!((delta.code, sotw.code), (Some(1), Some(1)));
    assert!(delta.errors.contains("Unimplemented") && delta.errors.contains("try --sotw"), "{delta:#?}");
    assert!(sotw.errors.contains("Unimplemented") && !sotw.errors.contains("--sotw"), "{sotw:#?}");
}

#[test]
fn an_admin_port_as_server_gets_a_hint() {
    let store = scratch("admin-port").join("store");
    let store = store.to_str().unwrap();
    assert!(Answer::of(xds().args(["store", "init", store])).code == Some(0));
    let folder = scratch("admin-port-folder");
    for source in [&["--store", store][..], &[folder.to_str().unwrap(), "--allow-empty"]] {
        let mut command = xds();
        command.arg("serve").args(source).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let server = Lines::of(&mut command);
        let line = server.until("admin page on ");
        let admin = line.rsplit_once("://").unwrap().1.trim_end_matches('/');
        let answer = Answer::of(xds().args(["get", "--server", admin, "cds", "a", "--timeout", "1"]));
        assert_eq!(answer.code, Some(1), "{answer:#?}");
        assert!(answer.errors.contains("hint: is this an admin port?"), "{answer:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_mutual_where_there_is_a_certificate_to_show() {
    let folder = scratch("tls");
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (ca, key) = (folder.join("ca.pem"), folder.join("key.pem"));
    fs::write(&ca, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let identity = tonic::transport::Identity::from_pem(cert.pem(), signing_key.serialize_pem());
    let roots = tonic::transport::Certificate::from_pem(cert.pem());
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity).client_ca_root(roots);
    let mut server = tonic::transport::Server::builder().tls_config(tls).unwrap();
    let server = server.add_routes(tonic::service::Routes::default()).serve_with_incoming(incoming);
    let server = tokio::spawn(server);

    let get = move |files: &[&PathBuf]| {
        let options = ["--ca", "--cert", "--key"].into_iter().zip(files);
        let mut get = xds();
        get.args(["get", "--server", &address, "cds", "a", "--timeout", "2"]);
        options.for_each(|(option, file)| _ = get.arg(option).arg(file));
        Answer::of(&mut get)
    };
    let ask = move || (get(&[&ca, &ca, &key]), get(&[&ca]), get(&[]));
    let (mutual, one_sided, plain) = tokio::task::spawn_blocking(ask).await.unwrap();
    server.abort();
    fs::remove_dir_all(&folder).unwrap();
    // TLS to a server without xDS.
    assert!(mutual.errors.contains("Unimplemented"), "{mutual:#?}");
    assert!(plain.errors.contains("its port speaks TLS"), "{plain:#?}");
    assert!(!one_sided.errors.contains("speaks TLS"), "{one_sided:#?}");
    for refused in [one_sided, plain] {
        assert_eq!(refused.code, Some(1));
        assert!(!refused.errors.contains("Unimplemented"), "{refused:#?}");
    }
}

#[test]
fn c17_servers_and_parameters_come_from_a_bootstrap_document() {
    let origin = Origin::usual("bootstrap");
    let document = json!({
        "xds_servers": [{ "server_uri": origin.address, "channel_creds": [{ "type": "insecure" }] }],
        "node": { "id": "checkout-1", "metadata": { "env": "prod", "version": "v1" } },
    });
    let file = origin.folder.join("bootstrap.txt");
    fs::write(&file, document.to_string()).unwrap();
    let arguments = ["get", "rds", "web-routes"];
    let by_option = Answer::of(xds().args(arguments).arg("--bootstrap").arg(&file));
    let by_file = Answer::of(xds().args(arguments).env("GRPC_XDS_BOOTSTRAP", &file));
    let by_text = Answer::of(xds().args(arguments).env("GRPC_XDS_BOOTSTRAP_CONFIG", document.to_string()));
    for answer in [by_option, by_file, by_text] {
        assert_eq!(answer.code, Some(0), "{answer:#?}");
        assert!(answer.output.contains("cluster: prod-v1"), "{answer:#?}");
    }
    // The command line overrides the bootstrap document.
    let other = Answer::of(xds().args(arguments).args(["--metadata", "env=qa", "--bootstrap"]).arg(&file));
    assert!(other.output.contains("cluster: rest-v1"), "{other:#?}");
}

#[test]
fn bad_input_is_exit_code_2_and_says_what_to_do() {
    let refused = |arguments: &[&str]| {
        let answer = Answer::of(xds().args(arguments));
        assert_eq!(answer.code, Some(2), "{answer:#?}");
        answer.errors
    };
    let error = refused(&["get", "cds", "a"]);
    assert!(error.starts_with("error: no server: give --server HOST:PORT or --bootstrap FILE"), "{error}");
    let error = refused(&["get", "clutser", "a", "--server", "127.0.0.1:1"]);
    assert!(error.starts_with("error: no type is called \"clutser\"; use one of LDS, RDS, "), "{error}");
    let error = refused(&["watch", "cds", "--diff", "--format", "json", "--server", "127.0.0.1:1"]);
    assert_eq!(error, "error: --diff shows text: leave out --format\n");
    let error = refused(&["watch", "cds", "xdstp://a/b", "--server", "127.0.0.1:1"]);
    assert!(error.contains("xdstp://a/b"), "{error}");
    refused(&["watch", "cds", "a", "--server", "dns://1.2.3.4/x"]);
}

#[test]
fn a_type_that_nothing_describes_is_shown_as_bytes() {
    let origin = Origin::usual("unknown");
    let answer = origin.ask(&["get", "acme.Thing", "a"]);
    assert_eq!(answer.code, Some(3));
    assert!(answer.errors.starts_with("warning: no descriptor for acme.Thing; see --descriptors\n"));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let origin = Origin::usual("pipe");
    let mut command = origin.command(&["watch", "cds", "*"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.trim_end().ends_with(" = Cluster *  complete") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0);
    }
    drop(output);
    origin.write("c.yaml", &cluster("c"));
    let left = child.wait_with_output().unwrap();
    assert_eq!((left.status.code(), &*left.stderr), (Some(0), b"".as_slice()));
}

#[test]
fn c20_get_shows_what_a_connected_client_has() {
    let origin = Origin::usual("as-client");
    let mut client =
        origin.command(&["watch", "rds", "web-routes", "--node-id", "edge-1", "--node-cluster", "web"]);
    let client = Lines::of(client.args(["--metadata", "env=prod", "--metadata", "version=v1"]));
    let line = without_time(&client.until("+ RouteConfiguration web-routes  version "));
    let version = line.rsplit_once(' ').unwrap().1;

    // The server reads the ACK with a delay.
    let asked = ["get", "--as-client", "edge-1"];
    let ends = Instant::now() + LONG;
    let answer = loop {
        let answer = origin.ask(&asked);
        if answer.output.contains("ACKed") || Instant::now() > ends {
            break answer;
        }
    };
    let expected = format!("+ RouteConfiguration web-routes [env=prod,version=v1]  version {version}  ACKed");
    assert_eq!((answer.code, answer.output.lines().next()), (Some(0), Some(&*expected)), "{answer:#?}");
    assert!(answer.output.contains("\n  name: web-routes\n  virtual_hosts:\n"), "{answer:#?}");

    let answer = origin.ask(&[&asked[..], &["rds", "web-routes", "--format", "json"]].concat());
    let [object] = &answer.objects()[..] else { panic!("{answer:#?}") };
    assert_eq!(object["resource"]["name"], "web-routes");
    for (field, value) in
        [("client", "edge-1"), ("cluster", "web"), ("status", "SYNCED"), ("version", version)]
    {
        assert_eq!(object[field], value, "{object}");
    }
    let none = origin.ask(&[&asked[..], &["cds"]].concat());
    assert_eq!((none.code, &*none.output), (Some(0), ""));
    let none = origin.ask(&[&asked[..], &["rds", "other"]].concat());
    assert_eq!((none.code, &*none.errors), (Some(3), "error: other: the client does not subscribe to it\n"));
    let none = origin.ask(&["get", "--as-client", "edge-2"]);
    let error = "error: no client with the node id \"edge-2\" is connected to this server\n";
    assert_eq!((none.code, &*none.errors), (Some(3), error));
    let wrong = origin.ask(&[&asked[..], &["rds", "env=prod"]].concat());
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
}

#[test]
fn c20_in_sotw_a_client_and_the_server_show_the_same_version() {
    let origin = Origin::usual("as-client-sotw");
    let watch = ["rds", "web-routes", "--sotw", "--node-id", "edge-1", "--metadata", "env=prod"];
    let client = origin.watch(&watch);
    let line = without_time(&client.until("+ RouteConfiguration web-routes  version "));
    let version = line.rsplit_once(' ').unwrap().1;
    let answer = origin.ask(&["get", "--as-client", "edge-1", "rds", "--format", "json"]);
    let [object] = &answer.objects()[..] else { panic!("{answer:#?}") };
    assert_eq!(object["version"], version, "{object}");
}

#[test]
fn the_client_logs_when_asked() {
    let origin = Origin::usual("verbose");
    let answer = origin.ask(&["get", "cds", "a", "-v"]);
    assert!(answer.code == Some(0) && answer.errors.contains("connecting"), "{answer:#?}");
}
