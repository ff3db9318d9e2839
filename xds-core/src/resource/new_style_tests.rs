//! Resources whose name has a structure: new-style names (X), and virtual hosts (D25).

use bytes::Bytes;
use prost::Message;
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, ROUTE_CONFIGURATION, VIRTUAL_HOST};

use super::collection::{Collection, CollectionEntry, InlineEntry};
use super::{Resource, ResourceError};

/// The fields that are read.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(message, optional, tag = "3")]
    eds: Option<Eds>,
}

#[derive(Clone, PartialEq, Message)]
struct Eds {
    #[prost(string, tag = "2")]
    service_name: String,
}

fn named(name: &str) -> Bytes {
    Payload { name: name.into(), ..Payload::default() }.encode_to_vec().into()
}

fn new(type_url: &str, name: &str, payload: Bytes) -> Result<Resource, ResourceError> {
    Resource::new(type_url, name, payload)
}

fn refusal(type_url: &str, name: &str, payload: Bytes) -> String {
    new(type_url, name, payload).unwrap_err().to_string()
}

const ROUTE: &str = "xdstp://a/envoy.config.route.v3.RouteConfiguration/web/r";

#[test]
fn x1_x4_a_new_style_name_is_kept_in_its_canonical_text_and_any_other_as_it_is() {
    let canonical = format!("{ROUTE}?env=prod&zone=1");
    let spelled = canonical.replace("/web/r", "/%77eb/r").replace("env=prod&zone=1", "zone=1&env=prod");
    let resource = new(ROUTE_CONFIGURATION, &spelled, named(&spelled)).unwrap();
    assert_eq!(resource.name().as_str(), canonical);
    assert_eq!(resource.payload(), &named(&spelled), "the payload is unchanged");
    let resource = Resource::from_payload(ROUTE_CONFIGURATION, named(&spelled)).unwrap();
    assert_eq!(resource.name().as_str(), canonical);
    let old_style = "XDSTP://a/%77eb?zone=1&env=prod";
    assert_eq!(new(ROUTE_CONFIGURATION, old_style, named(old_style)).unwrap().name().as_str(), old_style);
}

#[test]
fn x4_d23_the_payload_may_spell_the_name_differently_but_not_have_another() {
    let spelled = ROUTE.replace("web", "%77eb");
    assert!(new(ROUTE_CONFIGURATION, ROUTE, named(&spelled)).is_ok());
    for other in [&*format!("{ROUTE}?env=prod"), "r", "xdstp://a"] {
        let error = new(ROUTE_CONFIGURATION, ROUTE, named(other)).unwrap_err();
        assert!(matches!(error, ResourceError::NameMismatch { .. }), "{error}");
    }
}

#[test]
fn x2_x6_x12_a_name_that_nobody_can_ask_for_is_refused() {
    let cluster = "envoy.config.cluster.v3.Cluster";
    assert_eq!(
        refusal(CLUSTER, ROUTE, named(ROUTE)),
        format!(
            "{cluster} {ROUTE:?}: the name is of type \"envoy.config.route.v3.RouteConfiguration\", not {cluster:?}"
        )
    );
    assert_eq!(
        refusal(CLUSTER, "xdstp:/a", named("xdstp:/a")),
        format!(r#"{cluster} "xdstp:/a": column 7: expected `//` after `xdstp:`"#)
    );
    let glob = ROUTE.replace("web/r", "web/*");
    assert!(
        refusal(ROUTE_CONFIGURATION, &glob, named(&glob))
            .ends_with("is a glob, which no resource can be named")
    );
}

#[test]
fn x16_a_cluster_with_a_new_style_name_names_its_endpoints() {
    let name = format!("xdstp://a/{}/c", "envoy.config.cluster.v3.Cluster");
    let cluster = |discovery_type, service_name: &str| {
        let eds = Some(Eds { service_name: service_name.into() });
        let payload = Payload { name: name.clone(), discovery_type, eds }.encode_to_vec();
        new(CLUSTER, &name, payload.into())
    };
    let error = cluster(3, "").unwrap_err();
    assert_eq!(error, ResourceError::MissingServiceName { name: name.as_str().into() });
    assert!(cluster(0, "").is_ok(), "it gets its endpoints elsewhere");
    // X3, X4: it is found with any spelling that a client uses.
    let assignment = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/c";
    let spelled = assignment.replace("/c", "/%63") + "#alt=xdstp://b/acme.Thing";
    let endpoints = |service_name| {
        let cluster = cluster(3, service_name).unwrap();
        cluster.references().map(|(_, name)| name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(endpoints(&spelled), [assignment]);
    assert_eq!(endpoints("c"), ["c"]);
}

#[test]
fn x11_inline_entries_of_a_list_collection_have_names_of_their_own() {
    let message = "envoy.config.listener.v3.ListenerCollection";
    let (type_url, name) = (format!("type.googleapis.com/{message}"), format!("xdstp://a/{message}/all"));
    let collection = |names: &[&str]| {
        let inline = |name: &&str| CollectionEntry { inline: Some(InlineEntry { name: (*name).into() }) };
        let by_locator = CollectionEntry { inline: None };
        let entries = names.iter().map(inline).chain([by_locator.clone(), by_locator]).collect();
        Bytes::from(Collection { entries }.encode_to_vec())
    };
    assert!(new(&type_url, &name, collection(&["a", "b", "", ""])).is_ok(), "some are anonymous");
    assert_eq!(
        refusal(&type_url, &name, collection(&["a", "b", "a"])),
        format!(r#"{message} "{name}" has two entries named "a""#)
    );
    assert_eq!(
        refusal(&type_url, &name, collection(&["a b"])),
        format!(r#"{message} "{name}" has the entry "a b", which is not a valid name of an entry"#)
    );
    let broken = new(&type_url, &name, Bytes::from_static(&[0x0a, 0x7f])).unwrap_err();
    assert!(matches!(broken, ResourceError::Malformed { .. }), "{broken}");
    // A collection type whose name is not a new-style one is opaque.
    assert!(new("example.com/acme.StampCollection", "all", collection(&["a", "a"])).is_ok());
}

#[test]
fn d25_a_virtual_host_is_named_by_its_route_configuration_and_to_itself_without() {
    assert!(new(VIRTUAL_HOST, "web/a.example", named("a.example")).is_ok());
    assert!(new(VIRTUAL_HOST, "a/b/c", named("c")).is_ok(), "what follows the last slash");
    assert!(new(VIRTUAL_HOST, "web/a.example", named("web/a.example")).is_ok());
    for other in ["b.example", "", "web"] {
        let error = new(VIRTUAL_HOST, "web/a.example", named(other)).unwrap_err();
        assert!(matches!(error, ResourceError::NameMismatch { .. }), "{error}");
    }
    // D23: for other types the names must be equal.
    assert!(new(CLUSTER_LOAD_ASSIGNMENT, "web/a", named("a")).is_err());
}

#[test]
fn x14_a_redirect_has_a_new_style_name_of_its_type() {
    let redirect = |name: &str| {
        Resource::redirect(ROUTE_CONFIGURATION.into(), name.into(), Bytes::from_static(b"\x12\x01x"))
    };
    let resource = redirect(ROUTE).unwrap();
    assert_eq!(resource.type_url().as_str(), ROUTE_CONFIGURATION);
    assert_eq!(resource.payload_type(), "type.googleapis.com/xds.core.v3.ResourceLocator");
    let error = redirect("r").unwrap_err();
    assert!(matches!(error, ResourceError::OldStyleRedirect { .. }), "{error}");
    let error = redirect(&ROUTE.replace("route.v3", "route.v2")).unwrap_err();
    assert!(matches!(error, ResourceError::InvalidName { .. }), "{error}");
    // D22: a redirect differs from a payload with the same bytes.
    let thing = "xdstp://a/acme.Thing/x";
    let bytes = || Bytes::from_static(b"\x12\x01x");
    let payload = new("example.com/acme.Thing", thing, bytes()).unwrap();
    let redirect = Resource::redirect("example.com/acme.Thing".into(), thing.into(), bytes()).unwrap();
    assert_ne!(payload.version(), redirect.version());
    assert_eq!(payload.payload_type(), "example.com/acme.Thing");
}
