//! Names of the form `xdstp:`, and other names that only a wrapper gives.

use xds::Cache;
use xds::folder::Folder;

use super::{CLUSTER, Scratch, errors, load};

const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const ROUTE_NAME: &str = "xdstp://x/envoy.config.route.v3.RouteConfiguration/web/r";

#[test]
fn x4_a_new_style_name_is_one_name_however_it_is_spelled() {
    let scratch = Scratch::new("spelled");
    scratch.write("a.yaml", format!("\"@type\": {ROUTE}\nname: {ROUTE_NAME}?b=2&a=1\n"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    let canonical = format!("{ROUTE_NAME}?a=1&b=2");
    assert!(cache.snapshot().get(&ROUTE.into(), &canonical.as_str().into()).is_some());
    scratch.write("b.yaml", format!("\"@type\": {ROUTE}\nname: {canonical}\n"));
    assert_eq!(
        errors(load(&mut folder, &cache)),
        [format!(
            r#"b.yaml:1:1: envoy.config.route.v3.RouteConfiguration "{canonical}" is also in a.yaml, line 1"#
        )]
    );
}

#[test]
fn x2_x6_x11_x16_mistakes_with_new_style_names_have_their_places() {
    let scratch = Scratch::new("new-style");
    let name = "xdstp://x/envoy.config.cluster.v3.Cluster/a";
    scratch.write("a.yaml", format!("# first\n\"@type\": {CLUSTER}\nname: {name}\ntype: EDS\neds_cluster_config: {{eds_config: {{ads: {{}}}}}}\n"));
    scratch.write("b.yaml", format!("\"@type\": {CLUSTER}\nname: {ROUTE_NAME}\n"));
    scratch.write("c.yaml", format!("\"@type\": {CLUSTER}\nname: {name}%2\n"));
    let collection = "envoy.config.listener.v3.ListenerCollection";
    let entries = "[{inline_entry: {name: a}}, {inline_entry: {name: a}}]";
    scratch.write(
        "d.yaml",
        format!(
            "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: xdstp://x/{collection}/all\n\
             resource:\n  \"@type\": type.googleapis.com/{collection}\n  entries: {entries}\n"
        ),
    );
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    let expected = [
        format!(
            "a.yaml:2:1: cluster {name:?} gets endpoints by EDS, so with such a name it needs \
             eds_cluster_config.service_name"
        ),
        format!(
            "b.yaml:1:1: envoy.config.cluster.v3.Cluster {ROUTE_NAME:?}: the name is of type \
             \"envoy.config.route.v3.RouteConfiguration\", not \"envoy.config.cluster.v3.Cluster\""
        ),
        format!(
            "c.yaml:1:1: envoy.config.cluster.v3.Cluster \"{name}%2\": column 44: \"%2\" is not an escape; \
             write `%25` for a percent sign"
        ),
        format!("d.yaml:4:3: {collection} \"xdstp://x/{collection}/all\" has two entries named \"a\""),
    ];
    assert_eq!(found, expected);
}

#[test]
fn x14_a_wrapper_may_hold_a_locator_in_place_of_the_resource() {
    let scratch = Scratch::new("redirect");
    let redirect = |name: &str| {
        let locator = "type.googleapis.com/xds.core.v3.ResourceLocator";
        let target = "resource_type: envoy.config.route.v3.RouteConfiguration, authority: y, id: web/r";
        let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
        format!("\"@type\": {wrapper}\nname: {name}\nresource: {{\"@type\": {locator}, {target}}}\n")
    };
    scratch.write("a.yaml", redirect(ROUTE_NAME));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    let contents = folder.contents(|_| {});
    let (_, found) = contents.get(ROUTE, &ROUTE_NAME.into()).unwrap().iter().next().unwrap();
    let payload = contents.payload_json(&found.resource).unwrap();
    assert_eq!((&payload["authority"], &payload["id"]), (&"y".into(), &"web/r".into()));
    assert_eq!(contents.warnings(), []);
    scratch.write("a.yaml", redirect("xdstp://x/acme.Nothing/web/r"));
    let found = errors(load(&mut folder, &cache));
    assert!(found[0].contains("unknown `@type` \"type.googleapis.com/acme.Nothing\""), "{found:?}");
}

#[test]
fn d25_a_virtual_host_is_named_by_its_wrapper() {
    let scratch = Scratch::new("virtual-host");
    let host = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
    scratch.write(
        "a.yaml",
        format!(
            "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: web/a\naliases: [web/a.example]\n\
             resource: {{\"@type\": {host}, name: a, domains: [a.example]}}\n"
        ),
    );
    let cache = Cache::new();
    load(&mut Folder::new(&scratch.0), &cache).unwrap();
    assert!(cache.snapshot().get(&host.into(), &"web/a".into()).is_some());
}
