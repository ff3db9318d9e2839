//! Bootstrap documents of clients.

use serde_json::{Map, Value, json};
use xds_client::bootstrap::{Bootstrap, CertificateProvider, ListenerTemplate, Server};
use xds_core::{Parameters, XdstpName};

use crate::names::decoded;

/// Reads a bootstrap document, and reads it again with unknown keys.
///
/// # Panics
/// When a property does not hold.
pub fn bootstrap_json(raw: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(raw) else { return false };
    let read = Bootstrap::from_json(text);
    let Ok(document) = serde_json::from_str::<Value>(text) else {
        let error = read.expect_err("invalid JSON is no bootstrap");
        assert!(error.to_string().starts_with("not JSON: "), "{error}");
        return false;
    };
    // The checks below use the printed document, because a number may lose its last digit in it.
    let printed = Bootstrap::from_json(&document.to_string());
    assert_eq!(printed.as_ref().err(), read.as_ref().err(), "printing changes nothing else");
    let read = printed;
    let mut extended = document.clone();
    extend(&mut extended);
    assert_eq!(Bootstrap::from_json(&extended.to_string()), read, "unknown keys say nothing");
    match read {
        Ok(read) => {
            check(&read, &document);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn check(read: &Bootstrap, document: &Value) {
    assert!(!read.servers.is_empty());
    check_servers(&read.servers, &document["xds_servers"]);
    assert_eq!(read.parameters, parameters(&document["dynamic_parameters"]));
    for text in TARGETS {
        let name = read.listener_name(None, text).expect("there always is a default");
        check_name(name.as_str(), read.client_listener_template.as_str(), text);
    }
    for (name, authority) in &read.authorities {
        let written = &document["authorities"][name];
        check_servers(&authority.servers, &written["xds_servers"]);
        assert_eq!(authority.parameters, parameters(&written["dynamic_parameters"]));
        for text in TARGETS {
            let listener = read.listener_name(Some(name), text).expect("the authority is there");
            let Some(template) = &authority.client_listener_template else {
                let listener = XdstpName::of(listener.as_str()).expect("the default is well formed");
                let listener = listener.expect("it is new style");
                assert_eq!((listener.authority(), listener.id()), (name.as_str(), text));
                continue;
            };
            let prefix = ListenerTemplate::of_authority(name);
            let prefix = prefix.as_str().strip_suffix("envoy.config.listener.v3.Listener/%s");
            let prefix = prefix.expect("that is how the default ends");
            assert!(listener.as_str().starts_with(prefix), "it is a name of this authority");
            check_name(listener.as_str(), template.as_str(), text);
        }
    }
    for provider in read.certificate_providers.values() {
        match provider {
            CertificateProvider::FileWatcher(files) => {
                assert!(files.ca_certificate_file.is_some() || files.identity.is_some());
            }
            other => panic!("{other:?} is to be checked too"),
        }
    }
}

/// Checks that a name is the template with the target in it.
fn check_name(name: &str, template: &str, target: &str) {
    let pieces: Vec<_> = template.split("%s").collect();
    if !XdstpName::is_new_style(template) {
        assert_eq!(name, pieces.join(target));
    } else if let [before, after] = pieces[..] {
        let escaped = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let escaped = escaped.expect("the rest of the template stays");
        assert!(escaped.is_ascii() && !escaped.contains(['?', '#', '[', ' ']), "{escaped}");
        assert_eq!(decoded(escaped).as_deref(), Some(target));
    }
}

fn check_servers(servers: &[Server], written: &Value) {
    assert_eq!(servers.len(), written.as_array().map_or(0, Vec::len), "none is skipped");
    for (server, written) in servers.iter().zip(written.as_array().into_iter().flatten()) {
        assert_eq!(Some(server.uri.as_str()), written["server_uri"].as_str());
        let endpoint = server.endpoint().expect("it was checked when it was read");
        assert_eq!(endpoint.is_tls(), server.credentials != Server::insecure("").credentials);
        let (scheme, rest) = endpoint.uri().split_once("://").expect("it has a scheme");
        assert!(["http", "https", "unix"].contains(&scheme) && !rest.is_empty());
        let again = Server { uri: endpoint.uri().to_owned(), ..server.clone() };
        // A relative path is not relative any more after slashes.
        if scheme != "unix" || rest.starts_with('/') {
            assert_eq!(again.endpoint(), Ok(endpoint), "the endpoint is a URI with the same meaning");
        }
    }
}

/// A second, independent reader of valid parameters.
fn parameters(written: &Value) -> Parameters {
    let pairs = written.as_object().into_iter().flatten();
    pairs.map(|(key, value)| (key.as_str(), value.as_str().expect("it was checked"))).collect()
}

/// Adds an unknown key to every object that is not a map.
fn extend(value: &mut Value) {
    match value {
        Value::Object(fields) => extend_object(fields),
        Value::Array(values) => values.iter_mut().for_each(extend),
        _ => {}
    }
}

fn extend_object(fields: &mut Map<String, Value>) {
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "metadata" | "dynamic_parameters" => {}
            "authorities" | "certificate_providers" => {
                value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(extend);
            }
            _ => extend(value),
        }
    }
    // No deeper than the other fields, because depth is limited.
    fields.insert("added next year".to_owned(), json!(1));
}

const TARGETS: [&str; 4] = ["a", "a b/[::1]:80", "%s", "\u{e9}?#%"];

pub(crate) const WORDS: &[&[u8]] = &[
    b"{}",
    b"[]",
    b"null",
    b"true",
    b"1",
    b"1e9",
    b"\"\"",
    b"\"a\"",
    b",",
    b":",
    b"\\u0001",
    b"\x7f",
    b"{\"a\":\"b\"}",
    b"\"xds_servers\":",
    b",{\"server_uri\":\"a:1\",\"channel_creds\":[{\"type\":\"insecure\"}]}",
    b"{\"type\":\"tls\",\"config\":{}},",
    b"\"server_uri\"",
    b"\"channel_creds\"",
    b"\"call_creds\":[],",
    b"\"jwt_token_file\"",
    b"\"google_default\"",
    b"\"insecure\"",
    b"\"tls\"",
    b"\"server_features\":[],",
    b"\"fail_on_data_errors\",",
    b"\"node\":{},",
    b"\"metadata\":{},",
    b"\"locality\":{},",
    b"\"authorities\":{},",
    b"\"a.example\":{},",
    b"\"dynamic_parameters\":{},",
    b"\"client_listener_resource_name_template\":\"xdstp:///\",",
    b"\"client_default_listener_resource_name_template\":\"%s\",",
    b"\"certificate_providers\":{},",
    b"\"certificate_file\":\"c\",",
    b"\"private_key_file\":\"k\",",
    b"\"refresh_interval\":\"1.5s\",",
    b"%s",
    b"dns:///",
    b"http://",
    b"https://",
    b"unix:",
    b"unix:///",
    b"ipv6:[::1]",
    b":443",
];
