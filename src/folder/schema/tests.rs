use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use jsonschema::Validator;

use super::super::document::read;
use super::super::format::FileFormat;
use super::super::{domains as domains_file, tree};
use super::*;

/// Compares a schema with how a folder reads the same text.
struct Both {
    validator: Validator,
    descriptors: Descriptors,
}

/// The types of Envoy, of the store, and of the examples. It takes seconds to make.
static BOTH: LazyLock<Both> = LazyLock::new(|| {
    let mut descriptors = Descriptors::envoy().with_store_types();
    let set = std::env::temp_dir().join(format!("xds-schema-{}.binpb", std::process::id()));
    let own = protox::compile(["v1.proto", "v2.proto"], ["examples/migrations/own-type"]).unwrap();
    fs::write(&set, prost::Message::encode_to_vec(&own)).unwrap();
    descriptors.add_file(&set).unwrap();
    fs::remove_file(&set).unwrap();
    let validator = jsonschema::validator_for(&document(&descriptors)).unwrap();
    Both { validator, descriptors }
});

impl Both {
    /// The errors of the schema, and those of the folder.
    fn errors(&self, format: FileFormat, text: &str) -> (Vec<String>, Vec<String>) {
        let read = read("a.yaml", format, text.as_bytes(), &self.descriptors, 1 << 20);
        let of_folder = read.err().unwrap_or_default().iter().map(ToString::to_string).collect();
        (errors(&self.validator, format, text), of_folder)
    }
}

fn errors(validator: &Validator, format: FileFormat, text: &str) -> Vec<String> {
    let documents = match format {
        FileFormat::Json => vec![tree::json(text)],
        FileFormat::Yaml | FileFormat::Protobuf => tree::yaml(text),
    };
    let of = |document: Result<tree::Node, tree::SyntaxError>| {
        let value = document.unwrap().to_json();
        let errors = validator.iter_errors(&value).map(|error| format!("{} {error}", error.instance_path()));
        errors.collect::<Vec<_>>()
    };
    documents.into_iter().flat_map(of).collect()
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn is_domains(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "domains.yaml")
}

#[test]
fn every_document_of_the_examples_has_the_form_of_the_schema() {
    let of_domains = jsonschema::validator_for(&domains()).unwrap();
    let mut seen = 0;
    for path in files(Path::new("examples")) {
        let text = || fs::read_to_string(&path).unwrap();
        let place = path.display().to_string();
        let Some(format) = FileFormat::of(&place).filter(|_| text().contains("@type")) else {
            if is_domains(&path) {
                assert_eq!(errors(&of_domains, FileFormat::Yaml, &text()), [""; 0], "{place}");
                seen += 1;
            }
            continue;
        };
        // A bootstrap of Envoy has packed messages, but is none.
        if !place.contains("envoy-") {
            assert_eq!(BOTH.errors(format, &text()), (Vec::new(), Vec::new()), "{place}");
            seen += 1;
        }
    }
    assert!(seen >= 13, "{seen}");
}

#[test]
fn every_document_of_the_page_about_folders_has_the_form_of_the_schema() {
    let of_domains = jsonschema::validator_for(&domains()).unwrap();
    let page = fs::read_to_string("docs/folder.md").unwrap();
    let files = page.split("```yaml (file: ").skip(1).map(|rest| rest.split("```").next().unwrap());
    let files: Vec<_> = files.map(|file| file.split_once(")\n").unwrap()).collect();
    assert!(files.len() >= 5, "{files:?}");
    for (name, text) in files {
        let found = match is_domains(Path::new(name)) {
            true => errors(&of_domains, FileFormat::Yaml, text),
            false => BOTH.errors(FileFormat::Yaml, text).0,
        };
        assert_eq!(found, [""; 0], "{name}");
    }
}

/// A cluster with these fields in flow style.
fn cluster(fields: &str) -> String {
    format!("{{'@type': {CLUSTER}, name: a, {fields}}}")
}

/// A listener whose filter has this configuration.
fn packed(config: &str) -> String {
    format!(
        "{{'@type': type.googleapis.com/envoy.config.listener.v3.Listener, name: a, \
         address: {{socket_address: {{address: 0.0.0.0, port_value: 80}}}}, \
         filter_chains: [{{filters: [{{name: f, typed_config: {config}}}]}}]}}"
    )
}

/// A wrapper with these fields.
fn wrapped(fields: &str) -> String {
    format!("{{'@type': {WRAPPER_URL}, {fields}}}")
}

#[test]
fn the_forms_that_proto3_json_allows_are_accepted() {
    let tcp = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    let inner = format!("resource: {{'@type': {CLUSTER}, name: a}}");
    let good = [
        cluster("connect_timeout: 1.5s, lb_policy: maglev, type: 0"),
        cluster("connectTimeout: 1s, lbPolicy: RING_HASH, connect_timeout: null"),
        cluster("per_connection_buffer_limit_bytes: '7', respect_dns_ttl: true, wait_for_warm_on_init: null"),
        cluster("common_lb_config: {healthy_panic_threshold: {value: '12.5'}}"),
        cluster("metadata: {filter_metadata: {a: {b: [1, null, {c: d}]}, c: {}}}"),
        cluster("preconnect_policy: {per_upstream_preconnect_ratio: 1.5}, when: 'env=prod,!version'"),
        cluster("when: {constraint: {key: env, value: prod}}"),
        cluster("when: {constraints: [{matchType: AND, constraints: [{key: a, exists: {}, invert: true}]}]}"),
        packed(&format!("{{'@type': {tcp}, stat_prefix: s, cluster: c}}")),
        packed("{'@type': example.com/google.protobuf.StringValue, value: s}"),
        packed("{'@type': type.googleapis.com/xds.type.v3.TypedStruct, type_url: t, value: {a: [1]}}"),
        packed("{'@type': type.googleapis.com/udpa.type.v1.TypedStruct, type_url: t, value: {a: [1]}}"),
        wrapped(&format!("name: a, ttl: 3s, aliases: [b], cacheControl: {{doNotCache: true}}, {inner}")),
        wrapped(&format!("resource_name: {{name: a}}, version: 3, when: env=prod, {inner}")),
        format!("{{version_info: 3, resources: [{}, {}]}}", cluster("when: a"), wrapped(&inner)),
        format!("{{'@type': {RESPONSE}, resources: null}}"),
        "{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: a, \
         typedPerFilterConfig: {f: {'@type': x/envoy.config.route.v3.FilterConfig, config: {}}}}"
            .to_owned(),
    ];
    let refused = good.iter().map(|text| (text, BOTH.errors(FileFormat::Yaml, text)));
    let refused: Vec<_> = refused.filter(|(_, errors)| *errors != (Vec::new(), Vec::new())).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn what_a_check_refuses_for_its_form_the_schema_refuses_too() {
    let inner = format!("resource: {{'@type': {CLUSTER}, name: a}}");
    let bad = [
        ("no document", "5".to_owned()),
        ("no type", "{name: a}".to_owned()),
        ("unknown field", cluster("conect_timeout: 1s")),
        ("unknown nested field", cluster("common_lb_config: {x: 1}")),
        (
            "@type in a field that is not packed",
            cluster(&format!("common_lb_config: {{'@type': {CLUSTER}}}")),
        ),
        ("number for a string", cluster("alt_stat_name: 5")),
        ("string for a boolean", cluster("ignore_health_on_host_removal: 'true'")),
        ("text for a number", cluster("per_connection_buffer_limit_bytes: many")),
        ("negative number", cluster("per_connection_buffer_limit_bytes: -1")),
        ("fraction", cluster("per_connection_buffer_limit_bytes: 1.5")),
        ("too large a number", cluster("per_connection_buffer_limit_bytes: 4294967296")),
        ("number for a duration", cluster("connect_timeout: 1")),
        ("duration without its unit", cluster("connect_timeout: '1'")),
        ("map for a list", cluster("health_checks: {}")),
        ("list for a map", cluster("common_lb_config: []")),
        ("null in a list", cluster("health_checks: [null]")),
        ("null in a map", cluster("typed_extension_protocol_options: {a: null}")),
        ("list for a struct", cluster("metadata: {filter_metadata: {a: []}}")),
        ("unknown enum name", cluster("lb_policy: RONUD_ROBIN")),
        ("boolean for an enum", cluster("lb_policy: true")),
        ("no base64", packed("{'@type': x/google.protobuf.BytesValue, value: '!'}")),
        (
            "unknown type",
            "{'@type': type.googleapis.com/envoy.config.cluster.v3.Clutser, name: a}".to_owned(),
        ),
        ("unknown package", "{'@type': type.googleapis.com/acme.Thing, name: a}".to_owned()),
        ("a package as a type", "{'@type': type.googleapis.com/envoy.config, name: a}".to_owned()),
        ("a type without a slash", "{'@type': envoy.config.cluster.v3.Cluster, name: a}".to_owned()),
        ("a type that is no string", "{'@type': 5, name: a}".to_owned()),
        ("unknown packed type", packed("{'@type': type.googleapis.com/acme.Thing}")),
        ("packed without a type", packed("{a: b}")),
        ("unknown packed field", packed(&format!("{{'@type': {CLUSTER}, nam: a}}"))),
        ("packed when", packed(&format!("{{'@type': {CLUSTER}, name: a, when: env=prod}}"))),
        ("packed string without its value", packed("{'@type': x/google.protobuf.StringValue}")),
        ("wrapper without a resource", wrapped("name: a")),
        ("unknown wrapper field", wrapped(&format!("name: a, tll: 3s, {inner}"))),
        ("unused wrapper field", wrapped(&format!("name: a, {inner}, resource_type: b"))),
        ("wrapper whose name is a number", wrapped(&format!("name: 5, {inner}"))),
        ("ttl that is no duration", wrapped(&format!("name: a, ttl: 3, {inner}"))),
        ("aliases that are no list", wrapped(&format!("name: a, aliases: b, {inner}"))),
        ("unknown field of a resource name", wrapped(&format!("resource_name: {{nam: a}}, {inner}"))),
        ("when that is a number", cluster("when: 5")),
        ("unknown field of when", cluster("when: {constrain: {key: a}}")),
        ("unknown field of the draft form", cluster("when: {constraints: [{match: AND}]}")),
        ("draft condition without a key", cluster("when: {constraints: [{constraints: [{value: a}]}]}")),
        ("draft condition without a test", cluster("when: {constraints: [{constraints: [{key: a}]}]}")),
        ("unknown field of a response", format!("{{resources: [{}], resource: 3}}", cluster("when: a"))),
        ("resources that are no list", "{resources: 5}".to_owned()),
        ("item without a type", "{resources: [{name: a}]}".to_owned()),
    ];
    for (what, text) in bad {
        let (of_schema, of_folder) = BOTH.errors(FileFormat::Yaml, &text);
        assert!(!of_folder.is_empty(), "the folder accepts: {what}: {text}");
        assert!(!of_schema.is_empty(), "the schema accepts: {what}: {text}; the folder: {of_folder:?}");
    }
}

#[test]
fn domains_are_refused_by_their_schema_as_by_a_check() {
    let schema = jsonschema::validator_for(&domains()).unwrap();
    let good = [
        "{}",
        "env: [prod, 'true', '']",
        "a: {values: [v1], absent: true}",
        "a: {other: true}",
        "a: {absent: true}",
    ];
    for text in good {
        assert_eq!(errors(&schema, FileFormat::Yaml, text), [""; 0], "{text}");
        assert!(domains_file::read("domains.yaml", text.as_bytes()).is_ok(), "{text}");
    }
    let bad = [
        "env: [1]",
        "env: []",
        "env: b",
        "env: [a, a]",
        "env: [null]",
        "a: {values: []}",
        "a: {absent: yes}",
        "a: {valeus: [x]}",
        "a: {absent: false}",
        "- env",
        "{'@type': x/y, name: [a]}",
    ];
    for text in bad {
        assert!(domains_file::read("domains.yaml", text.as_bytes()).is_err(), "{text}");
        assert!(!errors(&schema, FileFormat::Yaml, text).is_empty(), "{text}");
    }
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const WRAPPER_URL: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
