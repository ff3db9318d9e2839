use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde_json::json;
use xds_core::XdstpName;
use xds_proto::envoy::config::core::v3::Locality;

use super::*;

const FULL: &str = include_str!("full.json");

/// A document with one server, and these keys.
fn with(more: Value) -> String {
    let mut document =
        json!({ "xds_servers": [{ "server_uri": "xds:1", "channel_creds": [{ "type": "insecure" }] }] });
    let Value::Object(more) = more else { panic!("{more} is not an object") };
    document.as_object_mut().unwrap().extend(more);
    document.to_string()
}

/// A document with one server that has these keys in place of its own.
fn with_server(more: Value) -> String {
    let mut server = json!({ "server_uri": "xds:1", "channel_creds": [{ "type": "insecure" }] });
    let Value::Object(more) = more else { panic!("{more} is not an object") };
    server.as_object_mut().unwrap().extend(more);
    with(json!({ "xds_servers": [server] }))
}

#[track_caller]
fn read(text: &str) -> Bootstrap {
    Bootstrap::from_json(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[track_caller]
fn refusal(text: &str) -> String {
    match Bootstrap::from_json(text) {
        Ok(read) => panic!("{read:?} of {text}"),
        Err(error) => error.to_string(),
    }
}

fn value(kind: Kind) -> prost_types::Value {
    prost_types::Value { kind: Some(kind) }
}

fn metadata<const N: usize>(fields: [(&str, Kind); N]) -> Struct {
    Struct { fields: fields.map(|(key, kind)| (key.to_owned(), value(kind))).into() }
}

#[test]
fn c17_a_whole_document_is_read() {
    let first = Server {
        uri: "dns:///xds-1.example:443".to_owned(),
        credentials: ChannelCredentials::Tls(TlsFiles {
            ca_certificate_file: Some("/etc/xds/ca.pem".into()),
            identity: Some(IdentityFiles {
                certificate_file: "/etc/xds/client.pem".into(),
                private_key_file: "/etc/xds/client-key.pem".into(),
            }),
            refresh_interval: Duration::from_millis(30_500),
        }),
        call_credentials: vec![CallCredentials::JwtTokenFile("/var/run/token".into())],
        features: ServerFeatures { fail_on_data_errors: true, resource_timer_is_transient_error: false },
    };
    let second = Server {
        features: ServerFeatures { fail_on_data_errors: false, resource_timer_is_transient_error: true },
        ..Server::insecure("http://127.0.0.1:18000")
    };
    let weights = [Kind::NumberValue(1.0), Kind::NumberValue(2.5), Kind::NullValue(0)];
    let canary = metadata([("share", Kind::NumberValue(0.1)), ("on", Kind::BoolValue(true))]);
    let node = Node {
        id: "checkout-7".to_owned(),
        cluster: "checkout".to_owned(),
        locality: Some(Locality { region: "eu".into(), zone: "b".into(), sub_zone: "rack-3".into() }),
        metadata: Some(metadata([
            ("env", Kind::StringValue("prod".to_owned())),
            ("weights", Kind::ListValue(ListValue { values: weights.map(value).into() })),
            ("canary", Kind::StructValue(canary)),
        ])),
        ..Node::default()
    };
    let authority = Authority {
        servers: vec![Server::insecure("unix:/run/xds.sock")],
        client_listener_template: Some(ListenerTemplate::new(
            "xdstp://xds.example/envoy.config.listener.v3.Listener/client/%s",
        )),
        parameters: Parameters::from_iter([("version", "v2"), ("zone", "")]),
        fallback_on_reachability_only: true,
    };
    let workload =
        TlsFiles { ca_certificate_file: Some("/etc/workload/ca.pem".into()), ..TlsFiles::default() };
    let expected = Bootstrap {
        servers: vec![first, second],
        node,
        authorities: BTreeMap::from([
            (String::new(), Authority::default()),
            ("xds.example".to_owned(), authority),
        ]),
        parameters: Parameters::from_iter([("env", "prod")]),
        client_listener_template: ListenerTemplate::new("client/%s"),
        server_listener_template: Some(ListenerTemplate::new("grpc/server?address=%s")),
        certificate_providers: BTreeMap::from([(
            "workload".to_owned(),
            CertificateProvider::FileWatcher(workload),
        )]),
    };
    assert_eq!(read(FULL), expected);
    assert_eq!(FULL.parse(), Ok(expected));
}

#[test]
fn c17_what_is_not_said_has_its_default() {
    let expected = Bootstrap::to_server("xds:1");
    assert_eq!(read(&with(json!({}))), expected);
    let nothing = json!({
        "node": null,
        "authorities": null,
        "dynamic_parameters": null,
        "client_default_listener_resource_name_template": "",
        "server_listener_resource_name_template": "",
        "certificate_providers": {},
    });
    assert_eq!(read(&with(nothing)), expected, "null and empty are absent");
    let nothing = json!({ "call_creds": null, "server_features": [] });
    assert_eq!(read(&with_server(nothing)), expected);

    let tls = read(&with_server(json!({ "channel_creds": [{ "type": "tls" }] })));
    let expected =
        TlsFiles { ca_certificate_file: None, identity: None, refresh_interval: Duration::from_secs(600) };
    assert_eq!(tls.servers[0].credentials, ChannelCredentials::Tls(expected));
}

#[test]
fn c17_the_first_supported_credentials_win_whatever_follows() {
    let credentials =
        json!([{ "type": "alts", "config": 1 }, { "type": "insecure" }, { "type": "tls", "config": 1 }, 2]);
    let read = read(&with_server(json!({ "channel_creds": credentials })));
    assert_eq!(read.servers[0].credentials, ChannelCredentials::Insecure);
}

#[test]
fn c17_unknown_keys_and_features_are_ignored() {
    let unknown = json!([null, {}, "ignore_resource_deletion"]);
    let more = json!({ "server_features": unknown, "added_next_year": unknown });
    assert_eq!(read(&with_server(more)), Bootstrap::to_server("xds:1"));
}

#[test]
fn p7_the_file_wins_and_the_text_does_not_replace_a_wrong_one() {
    let full = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bootstrap/full.json");
    let wrong = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let text = with(json!({}));
    let from = |file: &str, text: &str| {
        let variables = BTreeMap::from([("GRPC_XDS_BOOTSTRAP", file), ("GRPC_XDS_BOOTSTRAP_CONFIG", text)]);
        Bootstrap::from_variables(|variable| variables.get(variable).map(OsString::from))
    };
    assert_eq!(from(full, &text), Ok(read(FULL)));
    assert_eq!(from("", &text), Ok(Bootstrap::to_server("xds:1")));
    assert_eq!(from("", ""), Err(BootstrapError::NotSet));
    assert_eq!(Bootstrap::from_variables(|_| None), Err(BootstrapError::NotSet));

    let refusal = |file, text| from(file, text).unwrap_err().to_string();
    assert_eq!(refusal("/no/such/file", &text), "/no/such/file cannot be read: entity not found");
    assert_eq!(refusal(wrong, &text), format!("{wrong}: not JSON: expected value at line 1 column 2"));
    assert_eq!(refusal("", "{}"), "GRPC_XDS_BOOTSTRAP_CONFIG: xds_servers: missing or empty");
    assert_eq!(
        refusal("", ""),
        "no bootstrap: set GRPC_XDS_BOOTSTRAP to the path of a file, or GRPC_XDS_BOOTSTRAP_CONFIG to its text"
    );
}

#[cfg(unix)]
#[test]
fn p7_a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let variable = |name: &str| (name == TEXT_VARIABLE).then(|| OsString::from_vec(vec![0xff]));
    assert_eq!(Bootstrap::from_variables(variable), Err(BootstrapError::VariableNotUtf8));
}

#[test]
fn p7_what_is_no_json_is_refused_with_line_and_column() {
    let error = Bootstrap::from_json("{\n  \"node\": {,").unwrap_err();
    let reason = "key must be a string at line 2 column 12".to_owned();
    assert_eq!(error, BootstrapError::Syntax { line: 2, column: 12, reason });
    assert_eq!(error.to_string(), "not JSON: key must be a string at line 2 column 12");
    assert_eq!(refusal("{} {}"), "not JSON: trailing characters at line 1 column 4");
    assert_eq!(refusal(&"[".repeat(1000)), "not JSON: recursion limit exceeded at line 1 column 128");
}

#[test]
fn c17_a_wrong_value_is_named_with_its_path() {
    for (document, expected) in [
        (json!([]), "the document: expected an object, found an array"),
        (json!({}), "xds_servers: missing or empty"),
        (json!({ "xds_servers": [] }), "xds_servers: missing or empty"),
        (json!({ "xds_servers": "a:1" }), "xds_servers: expected an array, found a string"),
        (json!({ "xds_servers": [null] }), "xds_servers[0]: expected an object, found null"),
        (json!({ "xds_servers": [{}] }), "xds_servers[0].server_uri: missing or empty"),
        (json!({ "xds_servers": [{ "server_uri": "" }] }), "xds_servers[0].server_uri: missing or empty"),
        (
            json!({ "xds_servers": [{ "server_uri": "a:1" }] }),
            "xds_servers[0].channel_creds: missing or empty",
        ),
    ] {
        assert_eq!(refusal(&document.to_string()), expected, "{document}");
    }
    for (more, expected) in [
        (json!({ "node": "a" }), "node: expected an object, found a string"),
        (json!({ "node": { "id": 1 } }), "node.id: expected a string, found a number"),
        (
            json!({ "node": { "locality": { "region": 1 } } }),
            "node.locality.region: expected a string, found a number",
        ),
        (json!({ "node": { "metadata": [] } }), "node.metadata: expected an object, found an array"),
        (json!({ "authorities": [] }), "authorities: expected an object, found an array"),
        (json!({ "authorities": { "a": null } }), "authorities.a: expected an object, found null"),
        (
            json!({ "authorities": { "a.example": { "xds_servers": [{ "server_uri": true }] } } }),
            "authorities[\"a.example\"].xds_servers[0].server_uri: expected a string, found a bool",
        ),
        (
            json!({ "authorities": { "": { "fallback_on_reachability_only": "true" } } }),
            "authorities[\"\"].fallback_on_reachability_only: expected a bool, found a string",
        ),
        (
            json!({ "server_listener_resource_name_template": {} }),
            "server_listener_resource_name_template: expected a string, found an object",
        ),
    ] {
        assert_eq!(refusal(&with(more.clone())), expected, "{more}");
    }
}

#[test]
fn c17_a_server_without_supported_credentials_is_refused_with_what_it_has() {
    let creds = |types: Value| with_server(json!({ "channel_creds": types }));
    assert_eq!(
        refusal(&creds(json!([{ "type": "google_default" }, { "type": "alts" }]))),
        "xds_servers[0].channel_creds: none of the types [\"google_default\", \"alts\"] is supported"
    );
    assert_eq!(refusal(&creds(json!([]))), "xds_servers[0].channel_creds: none of the types [] is supported");
    assert_eq!(refusal(&creds(json!([{}]))), "xds_servers[0].channel_creds[0].type: missing or empty");
    assert_eq!(
        refusal(&creds(json!([{ "type": "tls", "config": [] }]))),
        "xds_servers[0].channel_creds[0].config: expected an object, found an array"
    );
}

#[test]
fn p7_a_certificate_and_its_key_go_together() {
    let config =
        |config: Value| with_server(json!({ "channel_creds": [{ "type": "tls", "config": config }] }));
    assert_eq!(
        refusal(&config(json!({ "certificate_file": "c" }))),
        "xds_servers[0].channel_creds[0].config.private_key_file: missing or empty, \
        but certificate_file needs it"
    );
    assert_eq!(
        refusal(&config(json!({ "private_key_file": "k", "certificate_file": "" }))),
        "xds_servers[0].channel_creds[0].config.certificate_file: missing or empty, \
        but private_key_file needs it"
    );
}

#[test]
fn p7_an_interval_is_a_duration_above_zero_as_protobuf_writes_it() {
    let interval = |text: &str| {
        let config = json!({ "refresh_interval": text });
        with_server(json!({ "channel_creds": [{ "type": "tls", "config": config }] }))
    };
    for (text, expected) in [
        ("1s", Duration::from_secs(1)),
        ("1.5s", Duration::from_millis(1500)),
        ("0.000000001s", Duration::from_nanos(1)),
        ("315576000000s", Duration::from_secs(315_576_000_000)),
    ] {
        let files = TlsFiles { refresh_interval: expected, ..TlsFiles::default() };
        assert_eq!(read(&interval(text)).servers[0].credentials, ChannelCredentials::Tls(files), "{text}");
    }
    for text in [
        "0s",
        "-1s",
        "+1s",
        "1",
        "s",
        ".5s",
        "1.s",
        "1m",
        "1 s",
        "1.0000000001s",
        "1e3s",
        "315576000001s",
        "99999999999999999999s",
        "0.000s",
    ] {
        let path = "xds_servers[0].channel_creds[0].config.refresh_interval";
        let expected = format!("{path}: {text:?} is not a duration above zero, such as \"600s\" or \"1.5s\"");
        assert_eq!(refusal(&interval(text)), expected);
    }
}

#[test]
fn p7_call_credentials_of_known_types_must_be_right() {
    for (creds, expected) in [
        (json!({}), "xds_servers[0].call_creds: expected an array, found an object"),
        (json!([{ "config": {} }]), "xds_servers[0].call_creds[0].type: missing or empty"),
        (json!([{ "type": "jwt_token_file" }]), "xds_servers[0].call_creds[0].config: missing or empty"),
        (
            json!([{ "type": "other" }, { "type": "jwt_token_file", "config": {} }]),
            "xds_servers[0].call_creds[1].config.jwt_token_file: missing or empty",
        ),
    ] {
        assert_eq!(refusal(&with_server(json!({ "call_creds": creds }))), expected);
    }
}

#[test]
fn p7_a_file_watcher_must_watch_something() {
    let provider = |provider: Value| with(json!({ "certificate_providers": { "p": provider } }));
    for (wrong, expected) in [
        (json!({}), "certificate_providers.p.plugin_name: missing or empty"),
        (json!({ "plugin_name": "file_watcher" }), "certificate_providers.p.config: missing or empty"),
        (
            json!({ "plugin_name": "file_watcher", "config": {} }),
            "certificate_providers.p.config: neither a certificate_file nor a ca_certificate_file",
        ),
    ] {
        assert_eq!(refusal(&provider(wrong)), expected);
    }
}

#[test]
fn p3_parameters_of_the_top_level_and_of_an_authority_are_not_merged() {
    let read = read(&with(json!({
        "dynamic_parameters": { "env": "prod" },
        "authorities": { "a": { "dynamic_parameters": { "zone": "b" } }, "b": {} },
    })));
    assert_eq!(read.parameters, Parameters::from_iter([("env", "prod")]));
    assert_eq!(read.authorities["a"].parameters, Parameters::from_iter([("zone", "b")]));
    assert_eq!(read.authorities["b"].parameters, Parameters::new());
}

#[test]
fn p3_a_parameter_that_is_no_string_is_refused() {
    for (value, found) in [(json!(1), "a number"), (json!(true), "a bool"), (json!(null), "null")] {
        assert_eq!(
            refusal(&with(json!({ "dynamic_parameters": { "env": value } }))),
            format!("dynamic_parameters.env: expected a string, found {found}")
        );
    }
    assert_eq!(
        refusal(&with(json!({ "authorities": { "a": { "dynamic_parameters": ["env"] } } }))),
        "authorities.a.dynamic_parameters: expected an object, found an array"
    );
}

#[test]
fn w2_an_authority_or_a_key_of_parameters_with_control_characters_is_refused() {
    assert_eq!(
        refusal(&with(json!({ "authorities": { "\u{7f}": {} } }))),
        "authorities[\"\\u{7f}\"]: the key has control characters"
    );
    assert_eq!(
        refusal(&with(json!({ "dynamic_parameters": { "a\u{1f}b": "c" } }))),
        "dynamic_parameters[\"a\\u{1f}b\"]: the key has control characters"
    );
    let read = read(&with(json!({ "dynamic_parameters": { "a b": "\n", "\u{7f}": "" } })));
    assert_eq!(read.parameters, Parameters::from_iter([("a b", "\n"), ("\u{7f}", "")]));
}

#[test]
fn c18_a_target_is_escaped_only_in_new_style_names() {
    let name = |template: &str, target: &str| ListenerTemplate::new(template).name_of(target).to_string();
    assert_eq!(name("%s", "a b/[::1]:80"), "a b/[::1]:80");
    assert_eq!(name("server?%s,%s", "a"), "server?a,a");
    assert_eq!(name("one for all", "a"), "one for all");
    assert_eq!(name("%s", "%s"), "%s", "what is put in is not looked at again");
    assert_eq!(name("xdstp://a/t/%s", "a b/[::1]:80%?#é"), "xdstp://a/t/a%20b/%5B::1%5D:80%25%3F%23%C3%A9");
    assert_eq!(name("xdstp:///t/x/%s", "%s"), "xdstp:///t/x/%25s");
}

#[test]
fn c18_the_listener_of_a_target_is_that_of_its_authority() {
    let read = read(FULL);
    let name = |authority, target| read.listener_name(authority, target).map(|name| name.to_string());
    let expected = |text: &str| Some(text.to_owned());
    assert_eq!(name(None, "a:80"), expected("client/a:80"));
    assert_eq!(
        name(Some("xds.example"), "a b"),
        expected("xdstp://xds.example/envoy.config.listener.v3.Listener/client/a%20b")
    );
    assert_eq!(name(Some(""), "a"), expected("xdstp:///envoy.config.listener.v3.Listener/a"));
    assert_eq!(name(Some("other"), "a"), None);
    assert_eq!(Bootstrap::to_server("a:1").listener_name(None, "b"), Some("b".into()));
}

#[test]
fn c18_the_default_template_makes_names_of_its_authority() {
    for authority in ["", "a.example:443", "a/b?c#d%e", "[::1]", "%s"] {
        for target in ["a", "a b/c", "[::1]:80", "50%s?k=v#e"] {
            let name = ListenerTemplate::of_authority(authority).name_of(target);
            let name = XdstpName::of(name.as_str()).unwrap().unwrap();
            let parts = (name.authority(), name.resource_type(), name.id());
            assert_eq!(parts, (authority, "envoy.config.listener.v3.Listener", target));
        }
    }
}

#[test]
fn c18_a_template_of_another_authority_is_refused() {
    let template = |authority: &str, template: &str| {
        with(json!({ "authorities": { authority: { "client_listener_resource_name_template": template } } }))
    };
    for wrong in
        ["%s", "xdstp://a.example", "xdstp://a.example.org/%s", "xdstp://b/%s", "XDSTP://a.example/%s"]
    {
        let path = "authorities[\"a.example\"].client_listener_resource_name_template";
        let expected = format!("{path}: {wrong:?} does not start with \"xdstp://a.example/\"");
        assert_eq!(refusal(&template("a.example", wrong)), expected);
    }
    read(&template("a.example", "xdstp://a.example/%s"));
    read(&template("", "xdstp:///t/%s"));
}

#[test]
fn c17_the_uri_of_a_server_is_a_target_of_grpc_or_a_url() {
    let tls = ChannelCredentials::Tls(TlsFiles::default());
    let endpoint = |text: &str, credentials: &ChannelCredentials| {
        let server = Server { credentials: credentials.clone(), ..Server::insecure(text) };
        server.endpoint().unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    for (text, address) in [
        ("127.0.0.1:18000", "127.0.0.1:18000"),
        ("localhost:18000", "localhost:18000"),
        ("dns:53", "dns:53"),
        ("xds.example", "xds.example:443"),
        ("[::1]:18000", "[::1]:18000"),
        ("[::1]", "[::1]:443"),
        ("dns:xds.example:1", "xds.example:1"),
        ("dns:///xds.example:1", "xds.example:1"),
        ("dns:///xds.example", "xds.example:443"),
        ("DNS:///xds.example:1", "xds.example:1"),
        ("passthrough:///xds.example:1", "xds.example:1"),
        ("ipv4:192.0.2.1:1", "192.0.2.1:1"),
        ("ipv6:[2001:db8::1]:1", "[2001:db8::1]:1"),
        ("ipv6:[2001:db8::1]", "[2001:db8::1]:443"),
        ("http://127.0.0.1:18000", "127.0.0.1:18000"),
        ("http://127.0.0.1:18000/", "127.0.0.1:18000"),
        ("http://xds.example", "xds.example"),
    ] {
        let insecure = endpoint(text, &ChannelCredentials::Insecure);
        assert_eq!((insecure.uri(), insecure.is_tls()), (format!("http://{address}").as_str(), false));
        let secure = endpoint(text, &tls);
        assert_eq!((secure.uri(), secure.is_tls()), (format!("https://{address}").as_str(), true));
        tonic::transport::Endpoint::from_shared(secure.uri().to_owned()).unwrap();
    }
    assert_eq!(endpoint("https://xds.example:1", &tls).uri(), "https://xds.example:1");
    for (text, expected) in [
        ("unix:/run/xds.sock", "unix:///run/xds.sock"),
        ("unix:///run/xds.sock", "unix:///run/xds.sock"),
        ("unix:xds.sock", "unix://xds.sock"),
    ] {
        let endpoint = endpoint(text, &ChannelCredentials::Insecure);
        assert_eq!((endpoint.uri(), endpoint.is_tls()), (expected, false));
        tonic::transport::Endpoint::from_shared(expected.to_owned()).unwrap();
    }
}

#[test]
fn c17_a_uri_that_leads_nowhere_is_refused_when_it_is_read() {
    let refused = |uri: &str, credentials: &str| {
        refusal(&with_server(json!({ "server_uri": uri, "channel_creds": [{ "type": credentials }] })))
    };
    for uri in [
        "xds:server",
        "xds:///server",
        "unix-abstract:a",
        "vsock:1:2",
        "ftp://a:1",
        "::1",
        "google-c2p:///a",
        "a:b",
    ] {
        let expected = format!(
            "xds_servers[0].server_uri: the scheme of {uri:?} is not supported; \
            use dns, ipv4, ipv6, passthrough, http, https or unix"
        );
        assert_eq!(refused(uri, "insecure"), expected);
    }
    for uri in [
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a b:1",
        "user@a:1",
        "a/b",
        "http://",
        "http:///",
        "http:a:1",
        "http://a:1/b",
        "http://a?b",
        "http://a:1//",
        "dns://192.0.2.1/a:1",
        "ipv4:192.0.2.1:1,192.0.2.2:1",
        "ipv6:::1",
        "é:1",
        "[::1",
        "dns:///",
        "\n",
    ] {
        let expected = format!("xds_servers[0].server_uri: {uri:?} is not one host with a port");
        assert_eq!(refused(uri, "insecure"), expected);
    }
    for uri in ["unix:///", "unix://a/b", "unix:////a"] {
        let expected = format!("xds_servers[0].server_uri: {uri:?} does not have the path of a socket");
        assert_eq!(refused(uri, "insecure"), expected);
    }
    assert_eq!(
        refused("https://a:1", "insecure"),
        "xds_servers[0].server_uri: \"https://a:1\" requires TLS, but its credentials are insecure"
    );
    assert_eq!(
        refused("unix:/a", "tls"),
        "xds_servers[0].server_uri: \"unix:/a\" is a Unix socket, which does not support TLS"
    );
}
