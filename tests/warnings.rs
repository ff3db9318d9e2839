//! The warnings of `xds check` in `xds serve`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::process::Output;

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

use running::{Running, Scratch, xds};

/// A cluster without a condition.
const CLUSTER: &str = "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\n";

/// Clusters for some clients only.
const GAP: &str =
    "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nwhen: env=prod\nname: gap\n";

/// A route configuration that names one cluster.
fn routes(cluster: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: r\n\
         virtual_hosts:\n- name: v\n  domains: ['*']\n  \
         routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]\n"
    )
}

fn until(serving: &Running, kind: &str, count: f64) {
    serving.until_metric(&format!("xds_source_warnings{{source=\"folder\",kind=\"{kind}\"}}"), count);
}

#[test]
fn a_server_logs_each_warning_once_and_its_end_and_counts_them() {
    let scratch = Scratch::new("serve-warnings");
    scratch.write("a.yaml", CLUSTER);
    scratch.write("routes.yaml", routes("b"));
    let serving = Running::start(&["serve", scratch.text()]);
    let line = serving.logs("WARN");
    assert!(line.contains("routes.yaml:1: envoy.config.route.v3.RouteConfiguration \"r\": names "), "{line}");
    assert!(line.contains("Cluster \"b\", which is not in this folder"), "{line}");
    assert!(line.contains("kind=\"missing-reference\" hint=\"did you mean"), "{line}");
    until(&serving, "missing-reference", 1.0);
    until(&serving, "gap", 0.0);
    // Another warning. The first one stays, and is not logged again.
    scratch.write("b.yaml", GAP);
    let line = serving.logs("WARN");
    assert!(line.contains("no variant for"), "{line}");
    until(&serving, "gap", 1.0);
    scratch.write("routes.yaml", routes("a"));
    let line = serving.logs("the warning has ended: ");
    assert!(line.contains("INFO") && line.contains("Cluster \"b\""), "{line}");
    until(&serving, "missing-reference", 0.0);
    until(&serving, "gap", 1.0);
}

#[test]
fn a_change_of_the_domains_changes_the_warnings() {
    let scratch = Scratch::new("serve-domains");
    scratch.write("a.yaml", GAP);
    let serving = Running::start(&["serve", scratch.text()]);
    until(&serving, "gap", 1.0);
    scratch.write("domains.yaml", "env: [prod]\n");
    until(&serving, "gap", 0.0);
}

#[test]
fn allowed_warnings_are_ignored() {
    let scratch = Scratch::new("serve-allow");
    scratch.write("routes.yaml", routes("b"));
    scratch.write("b.yaml", GAP);
    let serving = Running::start(&["serve", scratch.text(), "--allow", "missing-reference"]);
    until(&serving, "gap", 1.0);
    until(&serving, "missing-reference", 0.0);
}

/// Standard error of a command that refuses the folder.
fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_strict_server_starts_without_a_warning_and_refuses_a_reload_with_one() {
    let scratch = Scratch::new("serve-strict");
    scratch.write("a.yaml", CLUSTER);
    scratch.write("routes.yaml", routes("b"));
    let strict = |command| refused(xds().args([command, scratch.text(), "--strict"]).output().unwrap());
    let (served, checked) = (strict("serve"), strict("check"));
    assert_eq!(served, checked);
    assert!(served.contains("1 warning (errors, because of --strict)"), "{served}");

    scratch.write("routes.yaml", routes("a"));
    let serving = Running::start(&["serve", scratch.text(), "--strict"]);
    until(&serving, "missing-reference", 0.0);
    scratch.write("routes.yaml", routes("b"));
    let line = serving.logs("ERROR");
    assert!(line.contains("Cluster \"b\", which is not in this folder (--strict refuses"), "{line}");
    serving.logs("the last good state of the folder stays in use");
    // The content with the warning is not in use.
    until(&serving, "missing-reference", 0.0);
    scratch.write("routes.yaml", routes("a"));
    serving.logs("the folder is good again");
}

#[test]
fn strict_and_isolated_files_exclude_each_other() {
    let scratch = Scratch::new("strict-isolate");
    scratch.write("a.yaml", CLUSTER);
    let arguments = ["serve", scratch.text(), "--strict", "--isolate", "file"];
    let text = refused(xds().args(arguments).output().unwrap());
    assert!(text.contains("--strict and --isolate file exclude each other"), "{text}");
}
