//! `xds schema`: what it accepts and refuses, the command does too.

use std::process::Command;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::Scratch;

fn schema(files: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_xds")).args(["schema", files]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn validator(files: &str) -> Validator {
    let schema = schema(files);
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn a_policy_has_the_form_of_its_schema_or_is_refused() {
    let (validator, scratch) = (validator("policy"), Scratch::new("schema-policy"));
    let rule = |fields: Value| {
        let mut rule = json!({ "client": "spiffe://example.com/ns/{ns}" });
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "rules": [rule] })
    };
    let cases = [
        (
            true,
            rule(json!({ "read": [{ "types": ["CDS"], "names": ["a*"] }], "parameters": { "env": "{ns}" } })),
        ),
        (
            true,
            rule(
                json!({ "read": [{}], "inspect": true, "operate": true, "owner": "{ns}", "replicate": "*" }),
            ),
        ),
        (true, rule(json!({ "write": [{ "names": ["{ns}/*"] }], "parameters": null }))),
        (false, rule(json!({ "read": [{ "types": ["CDS"], "names": null }] }))),
        (false, rule(json!({ "write": [{ "names": ["{ns}/*"], "types": null }] }))),
        (false, json!({})),
        (false, json!({ "rules": [] })),
        (false, json!({ "rules": [{ "read": [] }] })),
        (false, json!({ "rules": [], "rule": [] })),
        (false, rule(json!({ "reads": [{ "types": ["CDS"] }] }))),
        (false, rule(json!({ "read": [{ "type": ["CDS"] }] }))),
        (false, rule(json!({ "read": { "types": ["CDS"] } }))),
        (false, rule(json!({ "inspect": "maybe" }))),
        (false, rule(json!({ "parameters": { "env": ["a"] } }))),
    ];
    for (good, policy) in cases {
        scratch.write("policy.yaml", policy.to_string());
        let file = scratch.0.join("policy.yaml");
        let check =
            Command::new(env!("CARGO_BIN_EXE_xds")).args(["check", "--policy"]).arg(file).output().unwrap();
        assert_eq!(check.status.success(), good, "{policy}: {check:?}");
        assert_eq!(validator.is_valid(&policy), good, "{policy}");
    }
}

#[test]
fn a_file_of_options_has_the_form_of_its_schema_or_is_refused() {
    let (validator, scratch) = (validator("options"), Scratch::new("schema-options"));
    let cases = [
        (true, json!({ "folder": ".", "names-limit": 10000, "allow-empty": true, "param": ["a=node.id"] })),
        (true, json!({ "listen": "127.0.0.1:0", "isolate": "file", "param": "a=node.id" })),
        (true, json!({})),
        (false, json!({ "name-limit": 10000 })),
        (false, json!({ "allow-empty": "yes" })),
        (false, json!({ "param": [] })),
        (false, json!({ "names-limit": [1, 2] })),
        (false, json!({ "names-limit": { "a": 1 } })),
        (false, json!({ "isolate": "files" })),
        (false, json!({ "config": "other.yaml" })),
        (false, json!({ "names-limit": null })),
    ];
    for (good, options) in cases {
        scratch.write("config.yaml", options.to_string());
        let mut xds = scratch.xds("serve");
        // It reads the file, and prints the options without serving.
        let printed =
            xds.arg("--print-config").arg("--config").arg(scratch.0.join("config.yaml")).output().unwrap();
        assert_eq!(printed.status.success(), good, "{options}: {printed:?}");
        assert_eq!(validator.is_valid(&options), good, "{options}");
    }
}

#[test]
fn the_example_of_a_deployment_has_the_form_of_its_schema() {
    let example = std::fs::read_to_string("examples/deploy/config.yaml").unwrap();
    let options: Value = serde_saphyr::from_str(&example).unwrap();
    assert!(options.as_object().unwrap().len() > 3, "{options}");
    assert!(validator("options").is_valid(&options), "{options}");
}

#[test]
fn types_of_your_own_are_in_the_schema() {
    let scratch = Scratch::new("schema-own");
    let set = protox::compile(["v1.proto"], ["examples/migrations/own-type"]).unwrap();
    scratch.write("own.binpb", prost::Message::encode_to_vec(&set));
    let set = scratch.0.join("own.binpb");
    let output =
        Command::new(env!("CARGO_BIN_EXE_xds")).args(["schema", "--descriptors"]).arg(set).output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["$defs"]["acme.v1.Thing"]["type"], json!(["object", "null"]));
}
