//! The `xds` binary: its output, its errors, and how it ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

#[path = "cli/admin.rs"]
mod admin;
#[path = "cli/config.rs"]
mod config;
#[path = "cli/deploy.rs"]
mod deploy;
#[path = "cli/kubernetes.rs"]
mod kubernetes;
#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/metadata.rs"]
mod metadata;
#[path = "cli/schema.rs"]
mod schema;
#[path = "cli/security.rs"]
mod security;

/// A directory of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A directory with one valid cluster in a.yaml.
    fn with_cluster(test: &str) -> Self {
        let scratch = Self::new(test);
        scratch.write("a.yaml", cluster("a"));
        scratch
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.0.join(file), content).unwrap();
    }

    fn xds(&self, command: &str) -> Command {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        xds.arg(command).arg(&self.0).env_remove("RUST_LOG");
        xds
    }

    /// Serves the folder on a port of the system's choice.
    fn serve(&self, arguments: &[&str]) -> Serving {
        Serving::start(self.xds("serve").args(["--listen", "127.0.0.1:0"]).args(arguments))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn cluster(name: &str) -> String {
    format!("\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\n")
}

/// A running server, with the lines of both its outputs.
struct Serving {
    child: Child,
    lines: Receiver<String>,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
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

    /// Waits for a line that contains the text, and returns it with the lines before it.
    fn until(&self, text: &str) -> Vec<String> {
        let deadline = Instant::now() + LONG;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with {text:?} in {seen:#?}"),
            }
            if seen.last().is_some_and(|line| line.contains(text)) {
                return seen;
            }
        }
    }

    fn address(&self) -> SocketAddr {
        let lines = self.until("listening on ");
        let (_, address) = lines.last().unwrap().split_once("listening on ").unwrap();
        address.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Exit code and standard error of a command that ends by itself.
fn refused(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn serve_prints_what_it_loaded_and_then_where_it_listens() {
    let scratch = Scratch::with_cluster("prints");
    scratch.write("b.yaml", cluster("b"));
    let serving = scratch.serve(&[]);
    let lines = serving.until("listening on ");
    assert!(lines[0].ends_with("2 resources in 2 files"), "{lines:#?}");
    assert_eq!(lines[1].trim(), "2 envoy.config.cluster.v3.Cluster");
    assert_eq!(lines.len(), 3);
}

#[test]
fn in_json_every_line_is_an_object() {
    let scratch = Scratch::with_cluster("json");
    let mut serving = scratch.serve(&["--log-format", "json"]);
    let mut lines = serving.until("listening on 127.0.0.1:");
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
    lines.extend(serving.lines.iter());
    for line in lines {
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["level"], "INFO", "{line}");
    }
}

#[test]
fn s41_serve_answers_polls_and_holds_them_when_told_to() {
    let scratch = Scratch::with_cluster("rest");
    let poll = |address: SocketAddr, body: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let (path, length) = ("/v3/discovery:clusters", body.len());
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let serving = scratch.serve(&["--rest-hold", "60"]);
    let address = serving.address();
    let first = poll(address, "{}");
    let (head, body) = first.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["resources"][0]["name"], "a");

    let request = serde_json::json!({ "version_info": body["versionInfo"] }).to_string();
    let held = thread::spawn(move || poll(address, &request));
    scratch.write("b.yaml", cluster("b"));
    let second = held.join().unwrap();
    assert!(second.starts_with("HTTP/1.1 200") && second.contains("\"b\""), "{second}");
}

#[test]
fn sigterm_and_sigint_end_it_with_code_0() {
    for signal in ["-TERM", "-INT"] {
        let scratch = Scratch::with_cluster(&format!("signal{signal}"));
        let mut serving = scratch.serve(&[]);
        TcpStream::connect(serving.address()).unwrap();
        serving.signal(signal);
        assert_eq!(serving.exit_code(), Some(0));
    }
}

#[test]
fn mistakes_while_serving_are_logged_once_and_when_mended_too() {
    let scratch = Scratch::with_cluster("mistake");
    let serving = scratch.serve(&[]);
    serving.address();
    scratch.write("b.yaml", cluster("b").replace("name", "nam"));
    let lines = serving.until("the last good state of the folder stays");
    let errors = lines.iter().filter(|line| line.contains("ERROR")).collect::<Vec<_>>();
    assert_eq!(errors.len(), 1, "{lines:#?}");
    assert!(errors[0].contains("b.yaml:2:1: envoy.config.cluster.v3.Cluster: no field `nam`"), "{lines:#?}");
    let check = refused(&scratch.xds("check").output().unwrap());
    assert_eq!(check.0, Some(2));
    assert!(check.1.contains("b.yaml:2:1: "), "{check:?}");
    // The same error again is not logged. The next good reload brings in all pending files.
    scratch.write("c.yaml", cluster("c"));
    fs::rename(scratch.0.join("c.yaml"), scratch.0.join("d.yaml")).unwrap();
    scratch.write("b.yaml", cluster("b"));
    let lines = serving.until("the folder is good again");
    assert!(!lines.iter().any(|line| line.contains("ERROR")), "{lines:#?}");
    scratch.write("e.yaml", cluster("e"));
    let lines = serving.until("resources=4");
    assert!(lines.last().unwrap().contains("changed=1"), "{lines:#?}");
}

#[test]
fn bad_content_is_refused_with_code_2_and_all_its_places() {
    let scratch = Scratch::with_cluster("content");
    scratch.write("again.yaml", cluster("a"));
    scratch.write("bytes.yaml", b"name: \xff");
    scratch.write("field.yaml", cluster("f") + "nme: x\n");
    scratch.write("nameless.yaml", cluster("\"\""));
    scratch.write("type.json", r#"{"@type": "type.googleapis.com/acme.Thing"}"#);
    scratch.write("value.yaml", cluster("v") + "connect_timeout: soon\n");
    for command in ["serve", "check"] {
        let (code, text) = refused(&scratch.xds(command).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        let cluster = "envoy.config.cluster.v3.Cluster";
        let expected = [
            format!(r#"error: again.yaml:1:1: {cluster} "a" is also in a.yaml, line 1"#),
            "error: bytes.yaml:1:7: the file is not UTF-8".to_owned(),
            format!(r#"error: field.yaml:3:1: {cluster} "f": no field `nme` in {cluster}, perhaps `name`"#),
            format!("error: nameless.yaml:2:7: {cluster} \"\": name: must have at least 1 character (rule string.min_len)"),
            "error: type.json:1:11: acme.Thing: unknown `@type` \"type.googleapis.com/acme.Thing\" (--descriptors \
             adds types)"
                .to_owned(),
            format!(
                r#"error: value.yaml:3:18: {cluster} "v": connect_timeout: the string "soon": expected a duration in seconds, such as "5s" or "0.25s""#
            ),
            format!("{}: 6 errors", scratch.0.display()),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn t15_variants_are_counted_and_those_that_overlap_have_code_2_and_both_places() {
    let scratch = Scratch::with_cluster("variants");
    scratch.write("b.yaml", format!("{}when: env=prod\n---\n{0}when: env!=prod\n", cluster("b")));
    let output = scratch.xds("check").output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    assert!(lines[0].ends_with("3 resources in 2 files"), "{lines:#?}");
    assert_eq!(lines[1], "3 envoy.config.cluster.v3.Cluster of 2 names");
    let serving = scratch.serve(&[]);
    serving.address();
    scratch.write("c.yaml", cluster("a") + "when: env=prod\n");
    let expected = r#"c.yaml:1:1: envoy.config.cluster.v3.Cluster "a": [no constraints] and [env=prod] both match env="prod"; the first is in a.yaml, line 1; if the first is for all other clients, give it `when: 'env!=prod'`"#;
    let (code, text) = refused(&scratch.xds("check").output().unwrap());
    assert_eq!(code, Some(2));
    assert_eq!(text.lines().next(), Some(&*format!("error: {expected}")));
    let lines = serving.until("the last good state of the folder stays");
    assert!(lines.iter().any(|line| line.contains("c.yaml:1:1: ")), "{lines:#?}");
    scratch.write("a.yaml", cluster("a") + "when: env!=prod\n");
    serving.until("the folder is good again");
}

/// The output of a command as JSON, and its exit code.
fn json(command: &mut Command) -> (serde_json::Value, Option<i32>) {
    let output = command.args(["--format", "json"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "", "everything is in the object");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

#[test]
fn t15_check_reports_every_name_whose_variants_do_not_go_together() {
    let scratch = Scratch::with_cluster("names");
    scratch.write("b.yaml", cluster("a") + "when: env=prod\n");
    scratch.write("c.yaml", format!("{}when: env=prod\n---\n{0}when: version=v1,env=test\n", cluster("c")));
    scratch.write("d.yaml", cluster("d") + "when: env=prod,!env\n");
    let (code, text) = refused(&scratch.xds("check").output().unwrap());
    assert_eq!(code, Some(2));
    let places: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("error: ")?.split(": ").next()).collect();
    assert_eq!(places, ["b.yaml:1:1", "c.yaml:5:1", "d.yaml:1:1"]);
    assert!(text.ends_with(": 3 errors\n"), "{text}");
    let (object, code) = json(&mut scratch.xds("check"));
    assert_eq!(code, Some(2));
    assert_eq!(object["errors"][0]["file"], "b.yaml");
    assert_eq!(object["errors"][0]["witness"], serde_json::json!({"env": "prod"}));
    assert_eq!((&object["errors"][1]["line"], &object["summary"]["errors"]), (&5.into(), &3.into()));
    // The first error is the one that a server reports.
    let (code, served) = refused(&scratch.xds("serve").output().unwrap());
    assert_eq!((code, served.lines().next()), (Some(2), text.lines().next()));
}

#[test]
fn t18_warnings_have_places_and_proofs_and_are_errors_only_when_asked() {
    let scratch = Scratch::new("warnings");
    scratch.write("a.yaml", format!("{}when: env=prod\n---\n{0}when: env=test\n", cluster("a")));
    scratch.write("domains.yaml", "env: [prod, qa]\n");
    let output = scratch.xds("check").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let name = r#"envoy.config.cluster.v3.Cluster "a""#;
    let expected = [
        format!(r#"warning: a.yaml:1: {name}: no variant for (env="qa")"#),
        "  hint: a variant with `when: 'env=qa'` fills the first of these".into(),
        format!("warning: a.yaml:5: {name} [env=test]: no client that domains.yaml allows gets this variant"),
        "  hint: if there will be such clients, add their values to domains.yaml".into(),
        format!("{}: 2 warnings", scratch.0.display()),
    ];
    assert_eq!(
        (output.status.code(), text.lines().collect::<Vec<_>>()),
        (Some(0), expected.iter().map(|line| &**line).collect())
    );
    assert!(String::from_utf8(output.stdout).unwrap().contains("2 resources in 2 files"));

    let strict =
        |arguments: &[&str]| scratch.xds("check").arg("--strict").args(arguments).status().unwrap().code();
    assert_eq!(strict(&[]), Some(2));
    assert_eq!(strict(&["--allow", "gap"]), Some(2));
    assert_eq!(strict(&["--allow", "gap,dead-variant"]), Some(0));

    let (object, code) = json(&mut scratch.xds("check"));
    assert_eq!(code, Some(0));
    let warning = serde_json::json!({
        "kind": "gap",
        "type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "a",
        "when": null,
        "places": [{"file": "a.yaml", "line": 1}, {"file": "a.yaml", "line": 5}],
        "witnesses": [{"parameters": {"env": "qa"}, "absent": [], "any": []}],
        "reference": null,
        "message": format!(r#"{name}: no variant for (env="qa")"#),
        "hint": "a variant with `when: 'env=qa'` fills the first of these",
    });
    assert_eq!(object["warnings"][0], warning);
    assert_eq!(object["warnings"][1]["when"], "env=test");
    assert_eq!(object["summary"]["types"][0]["variants"], 2);
}

#[test]
fn broken_domains_are_refused_and_change_nothing_that_is_served() {
    let scratch = Scratch::with_cluster("domains");
    scratch.write("domains.yaml", "env: [prod]\n");
    let serving = scratch.serve(&[]);
    serving.until("listening on ");
    scratch.write("domains.yaml", "env: [prod, prod]\n");
    let lines = serving.until("the last good state of the folder stays");
    let expected = "domains.yaml:1:13: env[1]: \"prod\" is listed already";
    assert!(lines.iter().any(|line| line.contains(expected)), "{lines:#?}");
    let (code, text) = refused(&scratch.xds("check").output().unwrap());
    assert_eq!((code, text.lines().next()), (Some(2), Some(&*format!("error: {expected}"))));
    scratch.write("domains.yaml", "env: [prod, test]\n");
    serving.until("the folder is good again");
    scratch.write("domains.json", "{}");
    let lines = serving.until("the last good state of the folder stays");
    let expected =
        "domains.yaml: domains.json lists the values of clients already; keep only one of these files";
    assert!(lines.iter().any(|line| line.contains(expected)), "{lines:#?}");
}

/// The variants of TP2's example.
fn resolve(arguments: &[&str]) -> Command {
    let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
    xds.current_dir(env!("CARGO_MANIFEST_DIR")).args(["resolve", "examples/variants"]).args(arguments);
    xds
}

#[test]
fn t3_resolve_tells_the_variant_and_what_decided() {
    let output = resolve(&["rds", "web-routes", "version=v2", "env=prod", "pod=a"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("  digest  ")).collect();
    assert_eq!(
        lines,
        [
            r#"envoy.config.route.v3.RouteConfiguration "web-routes" for env="prod", pod="a", version="v2""#,
            "  variant  env=prod,version!=v1",
            "  place    routes.yaml:12",
            r#"  because  env is "prod", which some variant names"#,
            r#"           version is "v2", which no variant names"#,
            "  unused   pod: made no difference",
        ]
    );
    assert_eq!(output.status.code(), Some(0));
    let arguments = ["RouteConfiguration", "web-routes", "env=prod", "version=v1", "--payload"];
    let (object, code) = json(&mut resolve(&arguments));
    assert_eq!(code, Some(0));
    let variant = &object["variant"];
    assert_eq!((&variant["when"], &variant["place"]["line"]), (&"env=prod,version=v1".into(), &2.into()));
    assert_eq!(variant["payload"]["virtual_hosts"][0]["routes"][0]["route"]["cluster"], "prod-v1");
    assert_eq!(object["tests"][0], serde_json::json!({"key": "env", "value": "prod", "named": true}));
    // A listener contains a message within a message; the output shows its type.
    let (object, _) = json(&mut resolve(&["lds", "web", "--payload"]));
    assert_eq!(object["variant"]["when"], serde_json::Value::Null);
    let filter = &object["variant"]["payload"]["filter_chains"][0]["filters"][0]["typed_config"];
    assert_eq!(filter["rds"]["route_config_name"], "web-routes");
}

#[test]
fn t4_resolve_tells_why_nothing_matches_with_code_3() {
    let scratch = Scratch::new("resolve");
    scratch.write("a.yaml", format!("{}when: env=prod,!beta\n---\n{0}when: env=test,beta\n", cluster("a")));
    let output = scratch.xds("resolve").args(["Cluster", "a", "env=prod", "beta="]).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>(),
        [
            r#"envoy.config.cluster.v3.Cluster "a" for beta="", env="prod""#,
            "  variant  none: for such clients the resource does not exist",
            r#"  because  env is "prod", which some variant names"#,
            r#"           beta is "", which no variant names"#,
            "  nearest  env=prod,!beta at a.yaml:1",
            r#"             needs !beta, but beta is """#,
            r#"             matches env="prod""#,
            "  nearest  env=test,beta at a.yaml:5",
            r#"             needs env=test, but env is "prod""#,
            r#"             matches beta="", env="test""#,
        ]
    );
    assert_eq!(output.status.code(), Some(3));
    let (object, code) = json(scratch.xds("resolve").args(["cds", "a", "env=prod", "beta="]));
    assert_eq!((code, &object["variant"]), (Some(3), &serde_json::Value::Null));
    assert_eq!(object["nearest"][0]["fails"], serde_json::json!({"!beta": ""}));
    assert_eq!(object["nearest"][0]["witness"], serde_json::json!({"env": "prod"}));
}

#[test]
fn x4_resolve_and_check_know_a_name_by_any_spelling() {
    let scratch = Scratch::new("spelling");
    let name = |service: &str, last: &str| format!("xdstp://x/envoy.config.{service}/{last}");
    let assignment = |last| name("endpoint.v3.ClusterLoadAssignment", last);
    let eds = format!("{{service_name: {}, eds_config: {{ads: {{}}}}}}", assignment("%63#alt=xdstp://y/a"));
    let cluster = cluster(&name("cluster.v3.Cluster", "c"));
    scratch.write("a.yaml", format!("{cluster}type: EDS\neds_cluster_config: {eds}\n"));
    let type_url = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    scratch.write("b.yaml", format!("\"@type\": {type_url}\ncluster_name: {}\n", assignment("c")));
    let output = scratch.xds("check").arg("--strict").output().unwrap();
    assert_eq!(refused(&output), (Some(0), String::new()));
    let resolved = scratch.xds("resolve").args(["EDS", &assignment("%63")]).output().unwrap();
    assert_eq!(refused(&resolved), (Some(0), String::new()));
}

#[test]
fn resolve_helps_with_words_it_does_not_know() {
    let error = |command: &mut Command| refused(&command.output().unwrap());
    let (code, text) = error(&mut resolve(&["eds", "prod-v2"]));
    assert_eq!(code, Some(3));
    assert!(
        text.contains(r#"no envoy.config.endpoint.v3.ClusterLoadAssignment "prod-v2", perhaps "prod-v1""#),
        "{text}"
    );
    let (code, text) = error(&mut resolve(&["eds", "web-routes"]));
    assert_eq!(code, Some(3));
    assert!(text.contains("resource of type envoy.config.route.v3.RouteConfiguration"), "{text}");
    let (code, text) = error(&mut resolve(&["routes", "web-routes"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("RouteConfiguration (RDS)"), "{text}");
    let (code, text) = error(&mut resolve(&["rds", "web-routes", "env"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("expected KEY=VALUE"), "{text}");
    let scratch = Scratch::new("resolve-broken");
    scratch.write("a.yaml", "name: a\n");
    let (code, text) = error(scratch.xds("resolve").args(["cds", "a"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("a.yaml:1:1: "), "{text}");
}

#[test]
fn t48_check_tells_which_clients_each_way_to_bring_in_a_key_leaves_out() {
    let scratch = Scratch::new("new-key");
    scratch.write("domains.yaml", "env: [prod, test]\nversion: { values: [v1, v2], absent: true }\n");
    let witnesses = |whens: &[&str]| {
        let document = |when: &&str| format!("---\n{}when: '{when}'\n", cluster("a"));
        scratch.write("a.yaml", whens.iter().map(document).collect::<String>());
        let (object, code) = json(&mut scratch.xds("check"));
        assert_eq!(code, Some(0), "{object:#}");
        let kinds = object["warnings"].as_array().unwrap().iter().map(|warning| warning["kind"].clone());
        assert!(kinds.clone().all(|kind| kind == "gap"), "{object:#}");
        object["warnings"][0]["witnesses"].clone()
    };
    let none = serde_json::Value::Null;
    let rest = "env!=prod,version || env!=prod,!version";
    // Before the migration, and after it if the clients send the key first.
    assert_eq!(witnesses(&["env=prod", "env!=prod"]), none);
    assert_eq!(witnesses(&["env=prod,version=v1", "env=prod,version!=v1", rest]), none);
    // If the server is first (T19), clients that do not send the key yet need a variant of their
    // own.
    let witness = |parameters: serde_json::Value, absent: &[&str]| serde_json::json!([{ "parameters": parameters, "absent": absent, "any": [] }]);
    assert_eq!(
        witnesses(&["env=prod,version=v1", "env=prod,version=v2", rest]),
        witness(serde_json::json!({"env": "prod"}), &["version"])
    );
    assert_eq!(
        witnesses(&["env=prod,version=v1", "env=prod,!version", rest]),
        witness(serde_json::json!({"env": "prod", "version": "v2"}), &[])
    );
    assert_eq!(witnesses(&["env=prod,version=v1", "env=prod,version=v2", "env=prod,!version", rest]), none);
    // T12: one variant was not changed.
    scratch.write("b.yaml", cluster("a") + "when: env=qa\n");
    assert_eq!(json(&mut scratch.xds("check")).1, Some(2));
}

#[test]
fn the_examples_have_no_warnings() {
    for example in ["quickstart", "variants", "proxy/config"] {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        xds.current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["check", "--strict"])
            .arg(format!("examples/{example}"));
        let output = xds.output().unwrap();
        assert_eq!(refused(&output), (Some(0), String::new()));
    }
}

#[test]
fn a_folder_without_resources_is_refused_unless_allowed() {
    let scratch = Scratch::new("empty");
    for command in ["serve", "check"] {
        let (code, text) = refused(&scratch.xds(command).output().unwrap());
        assert_eq!(code, Some(2));
        assert!(text.contains("no resource in any"), "{text}");
    }
    assert!(scratch.xds("check").arg("--allow-empty").status().unwrap().success());
    scratch.serve(&["--allow-empty"]).address();
}

#[test]
fn a_change_that_leaves_no_resource_is_refused_unless_allowed() {
    let scratch = Scratch::with_cluster("emptied");
    let serving = scratch.serve(&[]);
    serving.address();
    fs::remove_file(scratch.0.join("a.yaml")).unwrap();
    serving.until("no resource in any");
    scratch.write("a.yaml", cluster("a"));
    serving.until("the folder is good again");
}

#[test]
fn what_the_machine_refuses_has_code_1() {
    let scratch = Scratch::with_cluster("environment");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, text) = refused(&scratch.xds("serve").args(["--listen", &address]).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(text.starts_with(&format!("error: cannot listen on {address}: ")), "{text}");
    let missing = scratch.0.join("missing");
    for command in ["serve", "check"] {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        let (code, text) = refused(&xds.arg(command).arg(&missing).output().unwrap());
        assert_eq!(code, Some(1));
        assert!(text.starts_with(&format!("error: {}: cannot be read", missing.display())), "{text}");
    }
    let (code, text) = refused(&scratch.xds("check").arg("--descriptors").arg(&missing).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(text.contains("missing: cannot be read"), "{text}");
}

#[test]
fn wrong_arguments_and_wrong_descriptors_have_code_2() {
    let scratch = Scratch::with_cluster("arguments");
    let (code, text) = refused(&scratch.xds("serve").args(["--listen", "somewhere"]).output().unwrap());
    assert_eq!(code, Some(2));
    assert!(text.contains("--listen"), "{text}");
    let descriptors = scratch.0.join("a.yaml");
    let (code, text) = refused(&scratch.xds("check").arg("--descriptors").arg(descriptors).output().unwrap());
    assert_eq!(code, Some(2));
    assert!(text.contains("a.yaml: not a usable FileDescriptorSet"), "{text}");
}

#[test]
fn help_and_completions_name_every_command() {
    let xds = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_xds")).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    for text in [xds(&["--help"]), xds(&["-h"]), xds(&["completions", "bash"]), xds(&["completions", "fish"])]
    {
        for command in ["serve", "check", "resolve", "schema", "get", "watch", "completions", "man-pages"] {
            assert!(text.contains(command), "{text}");
        }
    }
    assert!(xds(&["--help"]).contains("What a folder may hold"));
    assert!(xds(&["--help"]).contains("when: env=prod,!version"));
}
