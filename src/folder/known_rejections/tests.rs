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
