//! The manifest and the chart of `examples/deploy/kubernetes`, checked as far as possible without a
//! cluster and without Helm.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::{Scratch, refused};

const FOLDER: &str = "examples/deploy/kubernetes/";

fn read(file: &str) -> String {
    fs::read_to_string(format!("{FOLDER}{file}")).unwrap()
}

fn values() -> Value {
    serde_saphyr::from_str(&read("chart/values.yaml")).unwrap()
}

/// The documents of the chart, as Helm renders them. It knows what the templates use: values in a
/// line, a value that is a block, and conditions that are not nested.
fn rendered(values: &Value) -> Vec<Value> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "";
    let mut documents = Vec::new();
    for file in ["access.yaml", "policy.yaml", "server.yaml"] {
        let (mut out, mut is_left_out) = (String::new(), false);
        for line in read(&format!("chart/templates/{file}")).lines() {
            let action = line.trim().strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}"));
            match action.map(|action| action.split(' ').collect::<Vec<_>>()).as_deref() {
                Some(["end"]) => is_left_out = false,
                _ if is_left_out => {}
                Some(["if", name]) => is_left_out = !is_set(value(values, name)),
                Some([name, "|", "nindent", columns]) => {
                    let indent = " ".repeat(columns.parse().unwrap());
                    let block = text(value(values, name));
                    block.lines().for_each(|line| out += &format!("{indent}{line}\n"));
                }
                Some(other) => panic!("the test does not know {other:?}"),
                None => {
                    let mut parts = line.split("{{ ");
                    out += parts.next().unwrap();
                    for part in parts {
                        let (name, rest) = part.split_once(" }}").unwrap();
                        out += &(text(value(values, name)) + rest);
                    }
                    out += "\n";
                }
            }
        }
        documents.extend(serde_saphyr::from_multiple::<Value>(&out).unwrap());
    }
    documents
}

/// The value of `.Values.NAME`, or of the release.
fn value<'a>(values: &'a Value, name: &str) -> &'a Value {
    let name = name.strip_prefix(".Values.").unwrap_or(name);
    values.get(name).unwrap_or_else(|| panic!("the chart has no value {name}"))
}

/// The values with those of the release, and these changes.
fn with(changes: &[(&str, Value)]) -> Value {
    let mut values = values();
    values[".Release.Name"] = json!("xds");
    values[".Release.Namespace"] = json!("xds");
    for (name, value) in changes {
        values[*name] = value.clone();
    }
    values
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn the_manifest_is_what_the_chart_gives() {
    let manifest: Vec<Value> = serde_saphyr::from_multiple(&read("xds.yaml")).unwrap();
    assert_eq!(manifest, rendered(&with(&[])));
}

#[test]
fn rights_are_to_list_and_watch_what_the_options_read_and_nothing_else() {
    for (endpoints, config_maps, secrets) in
        [(true, "", ""), (false, "xds=serve", ""), (false, "", "xds=serve"), (true, "a=b", "c=d")]
    {
        let changes = [
            ("endpoints", json!(endpoints)),
            ("configMaps", json!(config_maps)),
            ("secrets", json!(secrets)),
        ];
        let documents = rendered(&with(&changes));
        let rules = of_kind(&documents, "ClusterRole")["rules"].as_array().unwrap().clone();
        let mut expected = BTreeSet::new();
        let args = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
        for arg in strings(args) {
            let option = arg.split('=').next().unwrap();
            expected.extend(match option {
                "--kubernetes-endpoints" => Some(("discovery.k8s.io", "endpointslices")),
                "--kubernetes-config-maps" => Some(("", "configmaps")),
                "--kubernetes-secrets" => Some(("", "secrets")),
                _ => None,
            });
        }
        let found = rules.iter().map(|rule| {
            assert_eq!(strings(&rule["verbs"]), ["list", "watch"]);
            let ([group], [resource]) = (&*strings(&rule["apiGroups"]), &*strings(&rule["resources"])) else {
                panic!("{rule}")
            };
            (group.to_owned().to_owned(), resource.to_owned().to_owned())
        });
        let expected: BTreeSet<_> =
            expected.into_iter().map(|(group, resource)| (group.to_owned(), resource.to_owned())).collect();
        assert_eq!(found.collect::<BTreeSet<_>>(), expected);
        let wanted =
            usize::from(endpoints) + [config_maps, secrets].iter().filter(|text| !text.is_empty()).count();
        assert_eq!(rules.len(), wanted);
    }
}

#[test]
fn the_server_has_mtls_probes_and_a_policy_that_is_valid() {
    let documents = rendered(&with(&[("secrets", json!("xds=serve"))]));
    let pod = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["tcpSocket"]["port"], container["ports"][0]["name"], "{probe}");
    }
    let args = strings(&container["args"]);
    // What the options read is mounted.
    let mounts = container["volumeMounts"].as_array().unwrap();
    for option in ["--listen-cert", "--listen-key", "--listen-client-ca", "--policy"] {
        let file = args.iter().find_map(|arg| arg.strip_prefix(option)?.strip_prefix('=')).unwrap();
        assert!(mounts.iter().any(|mount| file.starts_with(mount["mountPath"].as_str().unwrap())), "{file}");
    }
    let scratch = Scratch::new("kubernetes-policy");
    scratch.write("policy.yaml", of_kind(&documents, "ConfigMap")["data"]["policy.yaml"].as_str().unwrap());
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_xds"));
    let output = check.args(["check", "--policy"]).arg(scratch.0.join("policy.yaml")).output().unwrap();
    assert_eq!(refused(&output), (Some(0), String::new()));
    // The options exist only in a binary with the feature.
    if cfg!(feature = "kubernetes") {
        let mut print = std::process::Command::new(env!("CARGO_BIN_EXE_xds"));
        let output = print.args(args).arg("--print-config").output().unwrap();
        assert_eq!(refused(&output), (Some(0), String::new()));
    }
}

#[test]
#[cfg(feature = "kubernetes")]
fn a_namespace_without_anything_to_read_is_refused() {
    for option in ["--kubernetes-namespace", "--kubernetes-trusted-namespace"] {
        let mut serve = std::process::Command::new(env!("CARGO_BIN_EXE_xds"));
        let output = serve.args(["serve", "examples/quickstart", option, "shop"]).output().unwrap();
        let (code, error) = refused(&output);
        assert!(code == Some(2) && error.contains("--kubernetes-endpoints"), "{option}: {code:?} {error}");
    }
}
