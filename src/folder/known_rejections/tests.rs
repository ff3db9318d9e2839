use xds_core::PAYLOAD_LIMIT_BYTES;

use super::super::descriptors::Descriptors;
use super::super::document::read;
use super::super::format::FileFormat;

/// The errors of a resource, which begins on line 2.
fn errors(resource: &str) -> Vec<String> {
    let text = format!("\"@type\": type.googleapis.com/{resource}");
    let read = read("a.yaml", FileFormat::Yaml, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES);
    read.err().iter().flatten().map(ToString::to_string).collect()
}

/// The errors of routes with one virtual host with these fields.
fn errors_of_host(fields: &str) -> Vec<String> {
    errors(&format!(
        "envoy.config.route.v3.RouteConfiguration\nname: r\nvirtual_hosts:\n- name: v\n  domains: ['*']\n{fields}"
    ))
}

#[test]
fn a_regular_expression_that_re2_does_not_take_is_an_error_of_its_field() {
    let with = |regex: &str| {
        errors_of_host(&format!(
            "  routes:\n  - match: {{ safe_regex: {{ regex: '{regex}' }} }}\n    direct_response: {{ status: 200 }}"
        ))
    };
    assert_eq!(with("/users/{id}"), [""; 0]);
    assert_eq!(
        with("*.a"),
        ["a.yaml:7:35: envoy.config.route.v3.RouteConfiguration \"r\": \
          virtual_hosts[0].routes[0].match.safe_regex.regex: \"*.a\" is not a regular expression of RE2: \
          there is nothing before `*` that it could repeat (rule of Envoy)"]
    );
    assert!(with("")[0].ends_with("must have at least 1 character (rule string.min_len)"), "{:?}", with(""));
}

/// The reasons why a listener with these fields is refused, with their fields.
fn flaws_of_listener(fields: &str) -> Vec<String> {
    let resource = format!(
        "envoy.config.listener.v3.Listener\nname: l\naddress: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}\n{fields}"
    );
    let subject = "envoy.config.listener.v3.Listener \"l\": ";
    errors(&resource).iter().map(|error| error.split_once(subject).unwrap().1.to_owned()).collect()
}

const MATCHER: &str = r#"
filter_chain_matcher:
  matcher_tree:
    input:
      name: port
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.DestinationPortInput
    exact_match_map:
      map:
        "443":
          action:
            name: a
            typed_config: { "@type": type.googleapis.com/google.protobuf.StringValue, value: chain-a }
"#;

#[test]
fn a_listener_may_get_its_filter_chains_by_fcds_alone() {
    let fcds = "fcds_config: { config_source: { ads: {} } }";
    assert_eq!(flaws_of_listener(&format!("{fcds}{MATCHER}")), [""; 0]);
    assert_eq!(flaws_of_listener(fcds), ["fcds_config: needs a `filter_chain_matcher` (rule of Envoy)"]);
    assert_eq!(flaws_of_listener(""), ["filter_chains: must have at least 1 item (rule of Envoy)"]);
}

#[test]
fn filter_chains_have_different_names_if_a_matcher_selects_them() {
    let chains = "filter_chains: [{ name: a }, {}, { name: a, filter_chain_match: { destination_port: 1 } }]";
    assert_eq!(
        flaws_of_listener(&format!("{chains}{MATCHER}")),
        [
            "filter_chains[1]: needs a `name`, as the listener has a `filter_chain_matcher` (rule of Envoy)",
            "filter_chains[2]: has the `name` of filter_chains[0]; a matcher needs different names (rule of Envoy)",
        ]
    );
    let same_name = "filter_chains: [{ name: a }, { name: a, filter_chain_match: { destination_port: 1 } }]";
    assert_eq!(flaws_of_listener(same_name), [""; 0]);
}

#[test]
fn a_cluster_has_at_most_one_health_check_without_a_name() {
    let check =
        "{ timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {} }";
    let with = |checks: &str| {
        errors(&format!("envoy.config.cluster.v3.Cluster\nname: c\nhealth_checks: [{checks}]"))
    };
    assert_eq!(with(check), [""; 0]);
    assert_eq!(
        with(&format!("{check}, {check}")),
        [
            "a.yaml:3:16: envoy.config.cluster.v3.Cluster \"c\": health_checks: one of several has no name, and \
          Envoy takes only one like that (rule of Envoy)"
        ]
    );
}

#[test]
fn a_listener_of_udp_has_no_filter_chains_and_no_filters_of_tcp() {
    let udp = |fields: &str| {
        let address = "{ socket_address: { address: 127.0.0.1, port_value: 80, protocol: UDP } }";
        let resource = format!("envoy.config.listener.v3.Listener\nname: l\naddress: {address}\n{fields}");
        errors(&resource)
            .iter()
            .map(|error| error.split_once("\"l\": ").unwrap().1.to_owned())
            .collect::<Vec<_>>()
    };
    let none = "a listener with a UDP address has none, unless `udp_listener_config` has `quic_options` (rule of Envoy)";
    let quic = "udp_listener_config: { quic_options: {} }";
    let filter = |name: &str| {
        format!(
            "listener_filters: [{{ name: f, typed_config: {{ '@type': type.googleapis.com/envoy.extensions.filters.{name} }} }}]"
        )
    };
    let inspector = "listener.tls_inspector.v3.TlsInspector";
    assert_eq!(udp(""), [""; 0]);
    assert_eq!(udp("filter_chains: [{}]"), [format!("filter_chains: {none}")]);
    assert_eq!(udp("default_filter_chain: {}"), [format!("default_filter_chain: {none}")]);
    assert_eq!(udp(quic), ["filter_chains: must have at least 1 item (rule of Envoy)"]);
    assert_eq!(
        udp(&format!("filter_chains: [{{}}]\n{quic}")),
        ["filter_chains[0]: needs a `transport_socket` for QUIC (rule of Envoy)"]
    );
    assert_eq!(
        udp(
            "additional_addresses: [{ address: { socket_address: { address: 127.0.0.1, port_value: 81 } } }]"
        ),
        ["additional_addresses[0]: all addresses must be of TCP, or all of UDP (rule of Envoy)"]
    );
    assert_eq!(
        udp(&filter(inspector)),
        [format!(
            "listener_filters[0]: envoy.extensions.filters.{inspector} is no filter of listeners with a UDP \
                  address (rule of Envoy)"
        )]
    );
    let tcp = |fields: &str| flaws_of_listener(&format!("filter_chains: [{{}}]\n{fields}"));
    assert_eq!(tcp(&filter(inspector)), [""; 0]);
    let dns = "udp.udp_proxy.v3.UdpProxyConfig, stat_prefix: s, cluster: c";
    assert_eq!(
        tcp(&filter(dns)),
        [
            "listener_filters[0]: envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig is a filter of listeners with a \
          UDP address and without QUIC (rule of Envoy)"
        ]
    );
}

/// The reasons why filter chains with these conditions are refused.
fn flaws_of_chains(conditions: &[&str]) -> Vec<String> {
    let chains: Vec<_> = conditions.iter().map(|it| format!("{{ filter_chain_match: {it} }}")).collect();
    flaws_of_listener(&format!("filter_chains: [{}]", chains.join(", ")))
}

#[test]
fn filter_chains_that_match_the_same_connections_are_refused() {
    let net = |prefix: &str, length: u32| {
        format!("{{ prefix_ranges: [{{ address_prefix: '{prefix}', prefix_len: {length} }}] }}")
    };
    let overlapping = [
        (net("10.1.0.0", 8), net("10.2.0.0", 8), "`prefix_ranges` \"10.0.0.0/8\""),
        (net("2001:db8::1", 32), net("2001:0db8:1::", 32), "`prefix_ranges` \"2001:db8::/32\""),
        ("{ server_names: [a, b] }".into(), "{ server_names: [B, c] }".into(), "`server_names` \"b\""),
        ("{ server_names: ['*.a'] }".into(), "{ server_names: [.a] }".into(), "`server_names` \".a\""),
        (
            "{ source_ports: [1, 2], application_protocols: [h2] }".into(),
            "{ source_ports: [2, 3], application_protocols: [h2] }".into(),
            "`application_protocols` \"h2\" with `source_ports` \"2\"",
        ),
    ];
    for (first, second, both) in overlapping {
        let reason = format!(
            "filter_chains[1]: its `filter_chain_match` and that of filter_chains[0] overlap: both have {both} (rule of Envoy)"
        );
        assert_eq!(flaws_of_chains(&[&first, &second]), [reason]);
    }
    assert_eq!(
        flaws_of_chains(&["{ server_names: [a, A] }"]),
        ["filter_chains[0]: its `filter_chain_match` has `server_names` \"a\" twice (rule of Envoy)"]
    );
    assert_eq!(
        flaws_of_chains(&["{ source_type: ANY }", "{}"]),
        ["filter_chains[1]: has the same `filter_chain_match` as filter_chains[0] (rule of Envoy)"]
    );
}

#[test]
fn filter_chains_that_differ_in_one_field_are_taken() {
    let net = |prefix: &str, length: u32| {
        format!("{{ prefix_ranges: [{{ address_prefix: '{prefix}', prefix_len: {length} }}] }}")
    };
    let taken = [
        (net("10.0.0.0", 8), net("10.0.0.0", 16)),
        (net("0.0.0.0", 0), "{}".into()),
        (net("0.0.0.0", 0), net("::", 0)),
        (net("::ffff:10.0.0.0", 104), net("10.0.0.0", 8)),
        ("{ server_names: ['*.a.b'] }".into(), "{ server_names: [x.a.b] }".into()),
        ("{ server_names: [a] }".into(), "{ server_names: [a], destination_port: 1 }".into()),
        ("{ source_type: ANY }".into(), "{ source_type: EXTERNAL }".into()),
        ("{ application_protocols: [H2] }".into(), "{ application_protocols: [h2] }".into()),
        ("{ transport_protocol: raw_buffer }".into(), "{}".into()),
    ];
    for (first, second) in taken {
        assert_eq!(flaws_of_chains(&[&first, &second]), [""; 0], "{first} {second}");
    }
    // Too many combinations to compare.
    let ports: Vec<_> = (1..300).map(|port| port.to_string()).collect();
    let names: Vec<_> = (1..300).map(|number| format!("n{number}")).collect();
    let many = format!("{{ source_ports: [{}], server_names: [{}] }}", ports.join(", "), names.join(", "));
    assert_eq!(flaws_of_chains(&[&many, "{ source_ports: [1], server_names: [n1] }"]), [""; 0]);
}

#[test]
fn headers_of_http_itself_and_unknown_commands_are_refused_wherever_headers_are_added() {
    let flaws = |fields: &str| {
        let errors = errors_of_host(fields);
        errors
            .iter()
            .map(|error| error.split_once("virtual_hosts[0].").unwrap().1.to_owned())
            .collect::<Vec<_>>()
    };
    let add = |field: &str, key: &str, value: &str| {
        format!("  {field}: [{{ header: {{ key: '{key}', value: '{value}' }} }}]")
    };
    for field in ["request_headers_to_add", "response_headers_to_add"] {
        assert_eq!(flaws(&add(field, "a", "%REQ(:path)% 100%%")), [""; 0]);
        for key in [":status", ":path", "Host"] {
            let reason = format!("{field}[0]: the header {key:?} cannot be changed (rule of Envoy)");
            assert_eq!(flaws(&add(field, key, "x")), [reason]);
        }
        assert_eq!(
            flaws(&add(field, "a", "%NONE%")),
            [format!(
                "{field}[0]: the value of the header \"a\" is not valid: there is no command `NONE` (rule of Envoy)"
            )]
        );
    }
    assert_eq!(
        flaws("  response_headers_to_remove: [a, ':status']"),
        ["response_headers_to_remove[1]: the header \":status\" cannot be removed (rule of Envoy)"]
    );
}

#[test]
fn a_header_mutation_may_remove_any_header_and_adds_no_header_of_http_itself() {
    let with = |mutation: &str| {
        errors(&format!(
            "envoy.config.core.v3.TypedExtensionConfig\nname: f\ntyped_config:\n               '@type': type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation\n               mutations: {{ request_mutations: [{mutation}] }}"
        ))
    };
    assert_eq!(with("{ remove: ':path' }"), [""; 0]);
    assert_eq!(
        with("{ append: { header: { key: ':path', value: x } } }"),
        ["a.yaml:5:59: envoy.config.core.v3.TypedExtensionConfig \"f\": \
          typed_config.mutations.request_mutations[0].append: the header \":path\" cannot be changed (rule of Envoy)"]
    );
}

#[test]
fn formats_of_access_logs_and_bodies_have_known_commands() {
    let with = |format: &str| {
        let fields = format!(
            "  routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200, body_format: {format} }} }}]"
        );
        let errors = errors_of_host(&fields);
        errors.iter().map(|error| error.split_once("body_format.").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(with("{ text_format_source: { inline_string: '%PROTOCOL% %METHOD%' } }"), [""; 0]);
    assert_eq!(with("{ json_format: { '%': { a: ['%PROTOCOL%', 5, null] } } }"), [""; 0]);
    let formatter =
        "{ name: f, typed_config: { '@type': type.googleapis.com/envoy.extensions.formatter.cel.v3.Cel } }";
    assert_eq!(with(&format!("{{ text_format: '%NONE%', formatters: [{formatter}] }}")), [""; 0]);
    let none = "there is no command `NONE` (rule of Envoy)";
    assert_eq!(with("{ text_format: '%NONE%' }"), [format!("text_format: {none}")]);
    assert_eq!(
        with("{ text_format_source: { inline_string: '%NONE%' } }"),
        [format!("text_format_source: {none}")]
    );
    assert_eq!(
        with("{ json_format: { a: { b: ['100%'] } } }"),
        ["json_format: `%` begins no command; a percent sign is written `%%` (rule of Envoy)"]
    );
}
