use xds_core::VariantId;

use xds_core::PAYLOAD_LIMIT_BYTES;

use super::*;

fn yaml(text: &str) -> Result<Vec<ParsedResource>, Vec<FolderError>> {
    read("f.yaml", FileFormat::Yaml, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES)
}

fn json(text: &str) -> Result<Vec<ParsedResource>, Vec<FolderError>> {
    read("f.json", FileFormat::Json, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES)
}

/// Names and lines of what was read.
fn found(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<(String, u32)> {
    let parsed = result.unwrap();
    parsed.iter().map(|parsed| (parsed.resource.name().to_string(), parsed.line)).collect()
}

fn errors(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

const CLUSTER: &str = r#""@type": type.googleapis.com/envoy.config.cluster.v3.Cluster"#;

#[test]
fn a_document_is_a_response_a_resource_or_a_wrapper() {
    let text = format!(
        "version_info: v1\nresources:\n- {CLUSTER}\n  name: a\n- {WRAPPED}\n  name: b\n  resource:\n    {CLUSTER}\n    \
             name: b\n---\n{CLUSTER}\nname: c\n---\n# nothing\n---\n{WRAPPED}\nname: d\nresource: {{{CLUSTER}, name: d}}\n",
    );
    let expected = [("a", 3), ("b", 8), ("c", 11), ("d", 18)].map(|(name, line)| (name.to_owned(), line));
    assert_eq!(found(yaml(&text)), expected);
}

#[test]
fn json_knows_its_lines_too() {
    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let text = format!(
        "{{\"resources\": [\n  {{\"@type\": {cluster:?}, \"name\": \"a\",\n   \"connectTimeout\": \"1s\"}},\n\n  \
             {{\"name\": \"b\", \"@type\": {cluster:?}}}\n]}}"
    );
    assert_eq!(found(json(&text)), [("a".to_owned(), 2), ("b".to_owned(), 5)]);
    let text = text.replace("\"1s\"", "true");
    assert_eq!(
        errors(json(&text)),
        [
            "f.json:3:22: envoy.config.cluster.v3.Cluster \"a\": connectTimeout: the boolean true: invalid type: \
              boolean `true`, expected a duration in seconds, such as \"5s\" or \"0.25s\""
        ]
    );
    assert_eq!(errors(json("{\n \"a\" 1}")), ["f.json:2:6: expected `:`"]);
}

#[test]
fn snake_and_camel_case_give_equal_payloads() {
    let snake = yaml(&format!("{CLUSTER}\nname: a\nconnect_timeout: 5s\n")).unwrap();
    let camel = yaml(&format!("name: a\nconnectTimeout: 5.0s\n{CLUSTER}\n")).unwrap();
    assert_eq!(snake[0].resource.version(), camel[0].resource.version());
}

#[test]
fn what_envoy_reads_besides_proto3_json_is_read() {
    let read = |policy: &str| {
        let text = format!("{CLUSTER}\nname: a\nlb_policy: {policy}\n");
        yaml(&text).unwrap()[0].resource.version()
    };
    assert_eq!(read("random"), read("RANDOM"));
    // An `Any` without a type, where it has a meaning.
    let routes = |config: &str| {
        let url = "type.googleapis.com/envoy.config.route.v3";
        yaml(&format!(
            "\"@type\": {url}.RouteConfiguration\nname: r\ntyped_per_filter_config: {{f: {config}}}\n"
        ))
    };
    let filter = "\"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig";
    assert!(routes(&format!("{{{filter}, config: {{}}}}")).is_ok());
    assert!(routes(&format!("{{{filter}, config: {{a: b}}}}")).is_err());
    assert!(routes("{}").is_err());
}

#[test]
fn all_mistakes_are_found_with_their_places() {
    let text = format!(
        "resources:
- {CLUSTER}
  name: a
  lb_policy: ROUND_ROBN
  conect_timeout: 5s
  load_assignment: {{cluster_name: a, endpoints: [{{priority: -1}}, {{lb_endpoints: 3}}]}}
- {CLUSTER}
- name: b
- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Clustr
- {CLUSTER}
  name: c
  type: EDS
  clusterType: {{name: x}}
  connect_timeout: 1s
  connectTimeout: 1s
- {CLUSTER}
  name: 5
extra: 1
---
[]
---
{CLUSTER}
name: [
"
    );
    let cluster = "envoy.config.cluster.v3.Cluster";
    let expected = [
        format!(
            "f.yaml:4:14: {cluster} \"a\": lb_policy: no value \"ROUND_ROBN\" in {cluster}.LbPolicy, perhaps \
                 `ROUND_ROBIN`"
        ),
        format!(
            "f.yaml:5:3: {cluster} \"a\": no field `conect_timeout` in {cluster}, perhaps `connect_timeout`"
        ),
        format!(
            "f.yaml:6:61: {cluster} \"a\": load_assignment.endpoints[0].priority: expected an integer from 0 to \
                 4294967295, found the number -1"
        ),
        format!(
            "f.yaml:6:81: {cluster} \"a\": load_assignment.endpoints[1].lb_endpoints: expected a list, found the \
                 number 3"
        ),
        format!("f.yaml:7:3: {cluster}: name: must have at least 1 character (rule string.min_len)"),
        "f.yaml:8:3: missing `@type`".to_owned(),
        format!(
            "f.yaml:9:12: {cluster}: unknown `@type` \"type.googleapis.com/{clustr}\", perhaps \
                 `type.googleapis.com/{cluster}`",
            clustr = cluster.replace("Cluster", "Clustr")
        )
        .replacen(": envoy.config.cluster.v3.Cluster:", ": envoy.config.cluster.v3.Clustr:", 1),
        format!(
            "f.yaml:13:3: {cluster} \"c\": clusterType: `type` is given already; `cluster_discovery_type` allows only \
                 one of its fields"
        ),
        format!("f.yaml:15:3: {cluster} \"c\": connectTimeout: given twice"),
        format!(
            "f.yaml:17:9: {cluster}: name: expected a string (quote it if it looks like a number), found the \
                 number 5"
        ),
        "f.yaml:18:1: no field `extra` in envoy.service.discovery.v3.DiscoveryResponse".to_owned(),
        "f.yaml:20:1: expected a resource with `@type`, or a map with `resources`".to_owned(),
    ];
    let found = errors(yaml(&text));
    assert_eq!(found[..expected.len()], expected);
    // The last error is in the words of the parser.
    assert_eq!(found.len(), expected.len() + 1);
    assert!(found[expected.len()].starts_with("f.yaml:23:7: "), "{found:?}");
}

#[test]
fn a_mistake_in_an_any_within_the_resource_has_its_line_and_field() {
    let text = format!(
        "{CLUSTER}\nname: a\ntyped_extension_protocol_options:\n  http:\n    http2: 1\n    \"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n"
    );
    assert_eq!(
        errors(yaml(&text)),
        [
            "f.yaml:5:5: envoy.config.cluster.v3.Cluster \"a\": typed_extension_protocol_options[\"http\"]: no field \
              `http2` in envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        ]
    );
}

#[test]
fn what_a_wrapper_does_not_have_is_refused_rather_than_ignored() {
    let text = format!("{WRAPPED}\nname: a\nversion: x\nalias: [b]\n");
    assert_eq!(
        errors(yaml(&text)),
        [
            "f.yaml:4:1: envoy.service.discovery.v3.Resource \"a\": no field `alias` in \
                 envoy.service.discovery.v3.Resource, perhaps `aliases`",
            "f.yaml:1:1: envoy.service.discovery.v3.Resource \"a\": missing `resource`",
        ]
    );
}

#[test]
fn forms_that_are_not_proto3_json_are_refused_though_envoy_takes_them() {
    let refused = [
        ("health_checks: { timeout: 1s }", "health_checks: expected a list, found a map"),
        ("respect_dns_ttl: yes", "respect_dns_ttl: expected true or false, found the string \"yes\""),
        ("respect_dns_ttl: on", "respect_dns_ttl: expected true or false, found the string \"on\""),
        ("respect_dns_ttl: 'true'", "respect_dns_ttl: expected true or false, found the string \"true\""),
        (
            "connect_timeout: { seconds: 5 }",
            "connect_timeout: a map: invalid type: map, expected a duration in seconds, such as \"5s\" or \"0.25s\"",
        ),
        (
            "per_connection_buffer_limit_bytes: { value: 5 }",
            "per_connection_buffer_limit_bytes: expected an integer from 0 to 4294967295, found a map",
        ),
    ];
    for (field, reason) in refused {
        let errors = errors(yaml(&format!("{CLUSTER}\nname: a\n{field}\n")));
        assert!(errors[0].ends_with(reason), "{errors:?}");
    }
}

#[test]
fn an_unknown_extension_may_be_of_the_contrib_build_of_envoy() {
    let unknown =
        |message: &str| errors(yaml(&format!("\"@type\": type.googleapis.com/{message}\nname: a\n")));
    let golang = "envoy.extensions.filters.http.golang.v3alpha.Config";
    let start = |message: &str| {
        format!("f.yaml:1:10: {message} \"a\": unknown `@type` \"type.googleapis.com/{message}\"")
    };
    assert_eq!(
        unknown(golang),
        [start(golang) + " (--descriptors adds types, such as those of the contrib build of Envoy)"]
    );
    assert_eq!(unknown("acme.Thing"), [start("acme.Thing") + " (--descriptors adds types)"]);
}

#[test]
fn an_error_says_which_form_names_a_resource_whose_payload_has_no_name() {
    let without_name =
        |message: &str| errors(yaml(&format!("\"@type\": type.googleapis.com/{message}\nname: a\n")));
    let filter = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";
    assert_eq!(
        without_name("envoy.config.listener.v3.FilterChain"),
        ["f.yaml:1:1: envoy.config.listener.v3.FilterChain without a name: its name is in a wrapper, \
          envoy.service.discovery.v3.Resource with `name` and `resource`"]
    );
    assert_eq!(
        without_name(filter),
        [format!(
            "f.yaml:1:1: {filter} without a name: ECDS serves envoy.config.core.v3.TypedExtensionConfig, which has \
             `name` and `typed_config`"
        )]
    );
    let secret = "envoy.extensions.transport_sockets.tls.v3.Secret";
    let nameless = errors(yaml(&format!("\"@type\": type.googleapis.com/{secret}\n")));
    assert_eq!(nameless, [format!("f.yaml:1:1: {secret} without a name")]);
}

#[test]
fn a_wrapper_names_what_has_no_name_of_its_own_and_cannot_rename_the_rest() {
    let endpoint = "{\"@type\": type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint}";
    assert_eq!(found(yaml(&format!("{WRAPPED}\nname: e\nresource: {endpoint}"))), [("e".to_owned(), 3)]);
    assert_eq!(
        errors(yaml(&format!("{WRAPPED}\nname: a\nresource: {{{CLUSTER}, name: b}}"))),
        [r#"f.yaml:3:11: envoy.config.cluster.v3.Cluster "a" has a payload named "b""#]
    );
}

#[test]
fn bytes_that_are_not_text_and_files_that_are_empty_are_refused() {
    let read = |content: &[u8]| {
        errors(read("f.yaml", FileFormat::Yaml, content, &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES))
    };
    assert_eq!(read(b"a: 1\nb: \xff"), ["f.yaml:2:4: the file is not UTF-8"]);
    assert_eq!(
        read(b" \n"),
        ["f.yaml: the file is empty; for a file without resources write `resources: []`"]
    );
    assert_eq!(found(yaml("resources: []")), []);
}

#[test]
fn deep_nesting_is_an_error_and_no_crash() {
    let deep = format!("{CLUSTER}\nname: {}", "[".repeat(100_000));
    assert_eq!(yaml(&deep).unwrap_err().len(), 1);
    let deep = format!("{{\"name\": {}", "[".repeat(100_000));
    assert_eq!(json(&deep).unwrap_err().len(), 1);
}

#[test]
fn two_hundred_levels_are_read_and_one_more_is_an_error() {
    // The document is a map; a debug build reads as deep.
    let nested = |levels: usize| format!("a: {}1{}", "{x: ".repeat(levels - 1), "}".repeat(levels - 1));
    let found = |levels: usize| errors(yaml(&nested(levels)));
    assert_eq!(found(200), errors(yaml("a: 1")), "it is no resource");
    let too_deep = found(201);
    assert!(
        too_deep.len() == 1 && too_deep[0].ends_with("the values are nested more than 200 levels deep"),
        "{too_deep:?}"
    );
}

#[test]
fn aliases_do_not_make_much_of_a_small_file() {
    // Each document alone repeats some thousand values.
    let level = |of: usize| format!("a{of}: &a{of} [{}]\n", vec![format!("*a{}", of - 1); 9].join(","));
    let anchors = "a: &a {x: [1, 2]}\nb: *a\n";
    assert_eq!(errors(yaml(&vec![anchors; 1000].join("---\n"))).len(), 1000, "they are no resources");
    let bomb = format!("a0: &a0 [x,x,x,x,x,x,x,x,x]\n{}", (1..4).map(level).collect::<String>());
    let found = errors(yaml(&vec![bomb; 40].join("---\n")));
    assert!(found.iter().any(|error| error.contains("alias")), "{found:?}");
}

#[test]
fn null_is_a_field_not_given_and_anchors_are_followed() {
    let text = format!("{CLUSTER}\nname: &n a\nconnect_timeout: null\nalt_stat_name: *n\n");
    let expected = format!("{CLUSTER}\nname: a\nalt_stat_name: a\n");
    assert_eq!(yaml(&text).unwrap()[0].resource.payload(), yaml(&expected).unwrap()[0].resource.payload());
}

#[test]
fn only_true_and_false_are_booleans() {
    let text = format!("{CLUSTER}\nname: no\nignore_health_on_host_removal: yes\n");
    assert_eq!(
        errors(yaml(&text)),
        [
            "f.yaml:3:32: envoy.config.cluster.v3.Cluster \"no\": ignore_health_on_host_removal: expected true or \
              false, found the string \"yes\""
        ]
    );
}

const WRAPPED: &str = r#""@type": type.googleapis.com/envoy.service.discovery.v3.Resource"#;

/// Names and constraints of what was read.
fn audiences(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<String> {
    let parsed = result.unwrap();
    let show = |id: &VariantId| format!("{} [{}]", id.name, id.constraints);
    parsed.iter().map(|parsed| show(parsed.resource.id())).collect()
}

#[test]
fn t1_when_may_stand_beside_type_wherever_a_resource_stands_and_is_not_in_the_payload() {
    let text = format!(
        "resources:\n- {CLUSTER}\n  name: a\n  when: env=prod\n- {WRAPPED}\n  when: '!b'\n  name: b\n  resource: \
             {{{CLUSTER}, name: b}}\n- {WRAPPED}\n  name: c\n  resource: {{when: \"c\", {CLUSTER}, name: c}}\n---\n\
             {CLUSTER}\nname: d\nwhen:  # oh!\n  env in (x, y),\n  !d\n"
    );
    assert_eq!(audiences(yaml(&text)), ["a [env=prod]", "b [!b]", "c [c]", "d [env in (x,y),!d]"]);
    let bare = yaml(&format!("{CLUSTER}\nname: a\n")).unwrap();
    assert_eq!(yaml(&text).unwrap()[0].resource.payload(), bare[0].resource.payload());
    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let text = format!("{{\"@type\": {cluster:?}, \"name\": \"a\", \"when\": \"!a\"}}");
    assert_eq!(audiences(json(&text)), ["a [!a]"]);
}

#[test]
fn what_yaml_takes_for_a_tag_is_refused_rather_than_taken_for_its_opposite() {
    for when in ["! beta", "!beta", "\n  ! beta", "!(a)"] {
        let found = errors(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n")));
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("in quotes, as it begins with `!`, found a YAML tag"), "{found:?}");
    }
}

#[test]
fn a_resource_has_its_constraints_from_one_place_and_in_one_of_three_forms() {
    let subject = r#"envoy.config.cluster.v3.Cluster "a": when"#;
    let twice = format!("{WRAPPED}\nname: a\nwhen: x\nresource: {{{CLUSTER}, name: a, when: x}}\n");
    assert_eq!(errors(yaml(&twice)).len(), 1);
    assert!(errors(yaml(&twice))[0].ends_with(&format!("{subject}: given twice")));
    let twice = format!(
        "{{\n{}, \"name\": \"a\",\n\"when\": \"x\",\n\"when\": \"y\"}}",
        CLUSTER.replace("type.g", "\"type.g") + "\""
    );
    assert_eq!(errors(json(&twice)), [format!("f.json:4:1: {subject}: given twice")]);
    for when in [
        "\"env=prod,!version\"",
        "{and_constraints: {constraints: [{constraint: {key: env, value: prod}}, {notConstraints: {constraint: {key: \
             version, exists: {}}}}]}}",
        "{constraints: [{constraints: [{key: env, value: prod}, {key: version, exists: {}, invert: true}], \
             match_type: AND}]}",
    ] {
        assert_eq!(
            audiences(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n"))),
            ["a [env=prod,!version]"]
        );
    }
    let expected = r#"expected a string such as "env=prod,!version", or a map, found"#;
    for (when, found) in
        [("5", "the number 5"), ("[a]", "a list"), ("", "nothing"), ("true", "the boolean true")]
    {
        let found_errors = errors(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n")));
        assert_eq!(found_errors.len(), 1);
        assert!(found_errors[0].ends_with(&format!("{subject}: {expected} {found}")), "{found_errors:?}");
    }
}

#[test]
fn t8_the_resource_name_of_a_wrapper_has_constraints_in_proto_json() {
    let wrapper = |resource_name: &str| {
        yaml(&format!("{WRAPPED}\nresource_name: {resource_name}\nresource: {{{CLUSTER}, name: a}}\n"))
    };
    let both = "{name: a, dynamicParameterConstraints: {and_constraints: {constraints: [{constraint: {key: env, value: \
                    prod}}, {not_constraints: {constraint: {key: version, exists: {}}}}]}}}";
    assert_eq!(audiences(wrapper(both)), ["a [env=prod,!version]"]);
    assert_eq!(found(wrapper("{name: a}")), [("a".to_owned(), 3)]);
    let subject = "envoy.service.discovery.v3.Resource \"a\": resource_name";
    assert_eq!(
        errors(wrapper("{name: a, dynamic_parameter_constraints: {constraint: {key: env}}}")),
        [format!(
            "f.yaml:2:57: {subject}.dynamic_parameter_constraints: top level: key `env` has neither `value` nor \
                 `exists`"
        )]
    );
    assert_eq!(
        errors(wrapper("{name: a, constraints: {}}")),
        [format!(
            "f.yaml:2:26: {subject}: no field `constraints` in envoy.service.discovery.v3.ResourceName"
        )]
    );
    assert_eq!(errors(wrapper("{name: a}\nname: a")), [format!("f.yaml:2:23: {subject}.name: given twice")]);
    assert!(errors(wrapper(&format!("{both}\nwhen: x")))[0].ends_with("when: given twice"));
}

#[test]
fn t8_a_wrapper_in_a_pb_file_keeps_its_constraints() {
    use xds_proto::Any;
    use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints as constraints;
    use xds_proto::envoy::service::discovery::v3::{
        DiscoveryResponse, DynamicParameterConstraints, Resource as Wrapper, ResourceName,
    };

    let read_pb = |constraint: constraints::SingleConstraint| {
        let cluster = yaml(&format!("{CLUSTER}\nname: a\n")).unwrap();
        let value = cluster[0].resource.payload().clone();
        let constraints =
            DynamicParameterConstraints { r#type: Some(constraints::Type::Constraint(constraint)) };
        let name = ResourceName { name: "a".into(), dynamic_parameter_constraints: Some(constraints) };
        let wrapper = Wrapper {
            resource_name: Some(name),
            resource: Some(Any { type_url: xds_proto::type_url::CLUSTER.into(), value }),
            ..Wrapper::default()
        };
        let wrapper =
            Any { type_url: format!("type.googleapis.com/{WRAPPER}"), value: wrapper.encode_to_vec().into() };
        let response = DiscoveryResponse { resources: vec![wrapper], ..DiscoveryResponse::default() };
        read(
            "f.pb",
            FileFormat::Protobuf,
            &response.encode_to_vec(),
            &Descriptors::envoy(),
            PAYLOAD_LIMIT_BYTES,
        )
    };
    let value = constraints::single_constraint::ConstraintType::Value("prod".into());
    let constraint = constraints::SingleConstraint { key: "env".into(), constraint_type: Some(value) };
    assert_eq!(audiences(read_pb(constraint.clone())), ["a [env=prod]"]);
    assert_eq!(
        errors(read_pb(constraints::SingleConstraint { constraint_type: None, ..constraint })),
        [
            "f.pb: envoy.config.cluster.v3.Cluster \"a\": resource_name.dynamic_parameter_constraints: top level: key \
                 `env` has neither `value` nor `exists`"
        ]
    );
}

#[test]
fn a_pb_file_is_a_response_whose_payloads_are_kept_byte_for_byte() {
    use xds_proto::Any;
    use xds_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource as Wrapper};
    use xds_proto::type_url;

    let cluster = |name: &str| {
        let payload = yaml(&format!("{CLUSTER}\nname: {name}\nlb_policy: RANDOM\n")).unwrap()[0]
            .resource
            .payload()
            .clone();
        Any { type_url: type_url::CLUSTER.into(), value: payload }
    };
    let wrapper = Wrapper { name: "b".into(), resource: Some(cluster("b")), ..Wrapper::default() };
    let wrapper =
        Any { type_url: format!("type.googleapis.com/{WRAPPER}"), value: wrapper.encode_to_vec().into() };
    let mut response =
        DiscoveryResponse { resources: vec![cluster("a"), wrapper], ..DiscoveryResponse::default() };
    let read = |response: &DiscoveryResponse| {
        read(
            "f.pb",
            FileFormat::Protobuf,
            &response.encode_to_vec(),
            &Descriptors::envoy(),
            PAYLOAD_LIMIT_BYTES,
        )
    };
    assert_eq!(found(read(&response)), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(read(&response).unwrap()[0].resource.payload(), &cluster("a").value);
    response.resources[0].value = (&b"\x0a\x01a\x2a\x01"[..]).into();
    let broken = errors(read(&response));
    assert!(broken[0].starts_with("f.pb: envoy.config.cluster.v3.Cluster: "), "{broken:?}");
}

#[test]
fn a_pb_file_is_checked_by_the_rules_of_its_messages_too() {
    let descriptors = Descriptors::envoy();
    let url = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
    // A route configuration "r" with a virtual host "v" without domains.
    let payload = b"\x0a\x01r\x12\x03\x0a\x01v";
    let any = [b"\x0a\x3c", url.as_bytes(), b"\x12\x08", payload].concat();
    assert_eq!(url.len(), 0x3c);
    let response = [b"\x12", [u8::try_from(any.len()).unwrap()].as_slice(), &any].concat();
    let read = read("f.pb", FileFormat::Protobuf, &response, &descriptors, PAYLOAD_LIMIT_BYTES);
    assert_eq!(
        errors(read),
        [
            "f.pb: envoy.config.route.v3.RouteConfiguration: virtual_hosts[0].domains: must have at least 1 item (rule \
          repeated.min_items)"
        ]
    );
}

#[test]
fn messages_packed_in_each_other_without_end_do_not_overflow_the_stack() {
    use prost_reflect::prost_types::Any;

    let type_url = "type.googleapis.com/google.protobuf.Any".to_owned();
    let mut any = Any { type_url: type_url.clone(), value: Vec::new() };
    for _ in 0..5_000 {
        any = Any { type_url: type_url.clone(), value: any.encode_to_vec() };
    }
    let config = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
    // The fields `name` and `typed_config`.
    let packed = any.encode_to_vec();
    let mut payload = b"\x0a\x01a\x12".to_vec();
    prost::encoding::encode_varint(packed.len() as u64, &mut payload);
    payload.extend(packed);
    let resource = Any { type_url: config.to_owned(), value: payload }.encode_to_vec();
    let mut response = b"\x12".to_vec();
    prost::encoding::encode_varint(resource.len() as u64, &mut response);
    response.extend(resource);
    let read = read("f.pb", FileFormat::Protobuf, &response, &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES);
    assert_eq!(found(read), [("a".to_owned(), 1)]);
}

#[test]
fn what_is_nearly_right_is_told_the_right_way() {
    for (text, told) in [
        (
            "'@type': envoy.config.cluster.v3.Cluster\nname: a",
            "perhaps `type.googleapis.com/envoy.config.cluster.v3.Cluster`",
        ),
        ("resource: {name: a}", "a list of resources at the top of a file is `resources`"),
        (
            &format!("{CLUSTER}\nname: a\nconnect_timeout: 5"),
            "expected a duration in seconds, such as \"5s\"",
        ),
    ] {
        let errors = errors(yaml(text));
        assert!(errors[0].contains(told), "{errors:?}");
    }
    let errors = errors(yaml(&format!("{CLUSTER}\nname: a\nname: b")));
    assert_eq!(errors, ["f.yaml:3:1: duplicate mapping key: name"]);
}
