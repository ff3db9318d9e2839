//! A policy before it is used: `xds check --policy`, and what an identity may read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A directory of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    /// With a folder `config` of three clusters, one of them in two variants, and a listener.
    fn new(test: &str, policy: &str) -> Self {
        let name = format!("policy-{}-{test}", std::process::id());
        let scratch = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::create_dir_all(scratch.0.join("config")).unwrap();
        let cluster = |name: &str, when: &str| {
            format!(
                "---\n\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\n{when}"
            )
        };
        let text = [
            cluster("one", "when: env=prod\n"),
            cluster("one", "when: env!=prod\n"),
            cluster("shared/a", ""),
            cluster("two", ""),
        ];
        fs::write(scratch.0.join("config/clusters.yaml"), text.concat()).unwrap();
        let listener = "\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\nname: l\n\
                        address: {socket_address: {address: 127.0.0.1, port_value: 80}}\n\
                        filter_chains: [{}]\n";
        fs::write(scratch.0.join("config/listeners.yaml"), listener).unwrap();
        fs::write(scratch.0.join("policy.yaml"), policy).unwrap();
        scratch
    }

    /// The exit code, standard output and standard error.
    fn xds(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
        let output = command.current_dir(&self.0).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

const POLICY: &str = "\
rules:
- client: spiffe://example.org/env/{env}/sa/*
  parameters: { env: '{env}' }
  read:
  - types: [LDS]
  - types: [CDS]
    names: [one, 'shared/*']
- client: spiffe://example.org/ops/*
  inspect: true
  read: [{}]
";

const EDGE: &str = "spiffe://example.org/env/prod/sa/edge";

#[test]
fn a_check_of_a_policy_needs_no_folder_and_reports_errors_and_warnings() {
    let scratch = Scratch::new("check", POLICY);
    let (code, out, err) = scratch.xds(&["check", "--policy", "policy.yaml"]);
    assert_eq!((code, &*out, &*err), (Some(0), "policy.yaml: 2 rules\n", ""));
    let (code, out, _) = scratch.xds(&["check", "config", "--policy", "policy.yaml", "--strict"]);
    assert!(code == Some(0) && out.contains("policy.yaml: 2 rules") && out.contains("5 resources"), "{out}");

    let unreached = POLICY.to_owned() + "- client: spiffe://example.org/ops/me\n";
    fs::write(scratch.0.join("policy.yaml"), unreached).unwrap();
    let (code, _, err) = scratch.xds(&["check", "--policy", "policy.yaml"]);
    let warning =
        "policy.yaml:11:11: rule 3: no client gets to this rule: all its clients match rule 2 (line 8) first";
    assert_eq!((code, err), (Some(0), format!("warning: {warning}\npolicy.yaml: 1 warning\n")));
    let (code, _, err) = scratch.xds(&["check", "--policy", "policy.yaml", "--strict"]);
    assert!(code == Some(2) && err.contains("1 warning (errors, because of --strict)"), "{err}");
    let (_, out, _) = scratch.xds(&["check", "--policy", "policy.yaml", "--format", "json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["policy"]["warnings"][0]["kind"], "unreached-rule");
    assert_eq!(object["policy"]["warnings"][0]["line"], 11);
    assert!(object["summary"].is_null());

    fs::write(scratch.0.join("policy.yaml"), "rules:\n- client: a{b\n- client: c\n  reads: []\n").unwrap();
    let (code, out, err) = scratch.xds(&["check", "--policy", "policy.yaml"]);
    assert!(code == Some(2) && out.is_empty() && err.starts_with("error: policy.yaml:4:3: "), "{err}");
    fs::write(scratch.0.join("policy.yaml"), "rules:\n- client: a{b\n- client: '{c'\n").unwrap();
    let (code, _, err) = scratch.xds(&["check", "--policy", "policy.yaml"]);
    assert_eq!((code, err.lines().count()), (Some(2), 3), "{err}");
    let (code, _, err) = scratch.xds(&["check", "--policy", "nowhere.yaml"]);
    assert!(code == Some(1) && err.contains("cannot read the policy"), "{err}");
    assert_eq!(scratch.xds(&["check"]).0, Some(2), "without a folder and without a policy");
}

#[test]
fn what_an_identity_may_read_is_listed_by_type() {
    let scratch = Scratch::new("list", POLICY);
    let resolve = |identity: &str, rest: &[&str]| {
        let arguments = ["resolve", "config", "--as", identity, "--policy", "policy.yaml"];
        scratch.xds(&[&arguments, rest].concat())
    };
    let (code, out, err) = resolve(EDGE, &[]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert_eq!(
        out,
        "spiffe://example.org/env/prod/sa/edge\n  \
         rule     1, client: spiffe://example.org/env/{env}/sa/*, at policy.yaml:2\n  \
         forced   env=\"prod\"\n  \
         reads    envoy.config.cluster.v3.Cluster: 2 of 3: one, shared/a\n           \
         envoy.config.listener.v3.Listener: all 1\n"
    );
    let (_, out, _) = resolve("spiffe://example.org/ops/me", &[]);
    assert!(out.contains("inspect  CSDS") && out.contains("Cluster: all 3"), "{out}");
    let (code, out, _) = resolve("anonymous", &[]);
    assert_eq!(code, Some(3));
    assert!(out.contains("no rule of the policy matches clients without a certificate"), "{out}");
    assert!(out.contains("Cluster: none of 3"), "{out}");
    let (_, out, _) = resolve(EDGE, &["--format", "json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["rule"]["number"], 1);
    assert_eq!(object["reads"][0]["names"], serde_json::json!(["one", "shared/a"]));
}

#[test]
fn a_name_is_resolved_with_the_parameters_of_the_identity_or_denied_by_its_rule() {
    let scratch = Scratch::new("name", POLICY);
    let resolve = |name: &str, rest: &[&str]| {
        let arguments =
            ["resolve", "config", "CDS", name, "env=test", "--as", EDGE, "--policy", "policy.yaml"];
        scratch.xds(&[&arguments, rest].concat())
    };
    let (code, out, _) = resolve("one", &[]);
    assert_eq!(code, Some(0));
    // The client says env=test. The policy forces env=prod.
    assert!(out.contains("for env=\"prod\"") && out.contains("variant  env=prod\n"), "{out}");
    let (code, out, _) = resolve("two", &[]);
    assert_eq!(code, Some(3));
    let denied = "rule 1 does not let it read envoy.config.cluster.v3.Cluster \"two\"";
    assert!(out.contains(&format!("variant  none: {denied}")), "{out}");
    let (_, out, _) = resolve("two", &["--format", "json"]);
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&object["denied"], &object["variant"]), (&denied.into(), &serde_json::Value::Null));
    let (code, _, err) = scratch.xds(&["resolve", "config", "--as", EDGE]);
    assert!(code == Some(2) && err.contains("--policy"), "{err}");
}
