use std::collections::BTreeSet;

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use quickcheck::quickcheck;

use super::*;
use crate::resource::Resource;
use crate::variants::Variant;

/// A length-delimited field.
pub(crate) fn field(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.as_ref().len() as u64, &mut bytes);
    bytes.extend_from_slice(value.as_ref());
    bytes
}

/// A field at the end of a path of messages.
pub(crate) fn path(numbers: &[u32], value: impl AsRef<[u8]>) -> Vec<u8> {
    numbers.iter().rev().fold(value.as_ref().to_vec(), |value, number| field(*number, value))
}

fn any(message_name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    [field(1, format!("type.googleapis.com/{message_name}")), field(2, value)].concat()
}

/// The configuration of a secret that comes from a server.
fn sds(name: &str) -> Vec<u8> {
    [field(1, name), path(&[2, 3], "")].concat()
}

fn read(type_url: &str, payload: &[u8]) -> References {
    References::read(&type_url.into(), &"own".into(), payload)
}

/// The references as `type:name`, or `type:*` for any resource of the type.
fn shown(references: &References) -> String {
    let own = "own".into();
    let known = references.iter(&own).map(|(target, name)| format!("{target:?}:{}", name.as_str()));
    let unknown = ALL.iter().filter(|target| references.unknown().has(**target));
    let unknown = unknown.map(|target| format!("{target:?}:*"));
    if *references == References::Unknown {
        return "?".to_owned();
    }
    known.chain(unknown).collect::<Vec<_>>().join(" ")
}

/// The references of a listener with this network filter.
fn of_filter(message_name: &str, config: impl AsRef<[u8]>) -> String {
    let config = any(&format!("envoy.extensions.filters.network.{message_name}"), config);
    shown(&read(type_url::LISTENER, &path(&[3, 3, 4], config)))
}

const HCM: &str = "http_connection_manager.v3.HttpConnectionManager";

#[test]
fn each_type_has_the_number_of_its_rank() {
    for (rank, target) in (0..).zip(ALL) {
        assert_eq!(KnownType::of_rank(rank).rank, rank);
        assert_eq!(Target::of(target.type_url()), Some(target));
    }
}

#[test]
fn ranks_and_urls_of_targets_are_those_of_the_known_types() {
    for target in ALL {
        assert_eq!(KnownType::of(target.type_url()).rank, target as u8);
        assert_eq!(Target::of(target.type_url()), Some(target));
    }
    assert_eq!(Target::of("type.googleapis.com/acme.Thing"), None);
}

#[test]
fn s34_an_eds_cluster_names_its_assignment_by_service_name_or_its_own() {
    let cluster = |discovery_type, service_name: &str| {
        let eds_cluster_config = Some(EdsClusterConfig { service_name: service_name.into() });
        Cluster { discovery_type: Some(discovery_type), eds_cluster_config }.encode_to_vec()
    };
    let own: ResourceName = "own".into();
    let endpoints = |payload: &[u8]| read(type_url::CLUSTER, payload).endpoints(&own).cloned();
    assert_eq!(endpoints(&cluster(DISCOVERY_TYPE_EDS, "service")), Some("service".into()));
    assert_eq!(endpoints(&cluster(DISCOVERY_TYPE_EDS, "")), Some("own".into()));
    assert_eq!(endpoints(&cluster(0, "service")), None);
    assert_eq!(read(type_url::CLUSTER, &cluster(DISCOVERY_TYPE_EDS, "own")), References::OwnEndpoints);
    assert_eq!(shown(&read(type_url::CLUSTER, &cluster(DISCOVERY_TYPE_EDS, "s"))), "Assignment:s");
}

#[test]
fn s33_routes_name_clusters_each_once() {
    let routes = [
        field(1, "own"),
        path(&[2, 3, 2, 1], "c1"),
        path(&[2, 3, 2, 3, 1, 1], "c2"),
        path(&[2, 3, 2, 3, 1, 1], "c1"),
        path(&[2, 3, 2, 30, 1], "mirror"),
        path(&[2, 22, 1], "mirror-of-host"),
        path(&[13, 1], "mirror-of-all"),
    ]
    .concat();
    let named = "Cluster:c1 Cluster:c2 Cluster:mirror Cluster:mirror-of-all Cluster:mirror-of-host";
    assert_eq!(shown(&read(type_url::ROUTE_CONFIGURATION, &routes)), named);
    let host = [path(&[3, 2, 1], "c"), path(&[3, 2, 2], "x-header")].concat();
    assert_eq!(shown(&read(type_url::VIRTUAL_HOST, &host)), "Cluster:c Cluster:*");
    let vhds = [path(&[2, 3, 2, 1], "c"), path(&[9, 1], "")].concat();
    assert_eq!(shown(&read(type_url::ROUTE_CONFIGURATION, &vhds)), "Cluster:c VirtualHost:*");
}

#[test]
fn s33_listeners_name_routes_clusters_secrets_and_extensions() {
    assert_eq!(of_filter(HCM, path(&[3, 2], "r")), "Routes:r");
    assert_eq!(of_filter(HCM, path(&[4, 2, 3, 2, 1], "c")), "Cluster:c");
    assert_eq!(of_filter(HCM, path(&[31, 5], "")), "Scope:*");
    assert_eq!(of_filter(HCM, path(&[31, 4, 1, 2], "r")), "Routes:r");
    assert_eq!(of_filter(HCM, field(5, [field(5, ""), field(1, "ext")].concat())), "Extension:ext");
    assert_eq!(of_filter("tcp_proxy.v3.TcpProxy", field(2, "c")), "Cluster:c");
    assert_eq!(of_filter("tcp_proxy.v3.TcpProxy", path(&[10, 1, 1], "c")), "Cluster:c");
    let tls = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    let context =
        [path(&[1, 6], sds("cert")), path(&[1, 7], sds("ca")), path(&[1, 8, 2], sds("ca2"))].concat();
    // Without a source it is a secret of the bootstrap.
    let static_secret = path(&[1, 6, 1], "static");
    let listener = path(&[3, 6, 3], any(tls, [context, static_secret, path(&[5], sds("keys"))].concat()));
    let named = "Secret:ca Secret:ca2 Secret:cert Secret:keys";
    assert_eq!(shown(&read(type_url::LISTENER, &listener)), named);
    let api = path(&[19, 1], any(&format!("envoy.extensions.filters.network.{HCM}"), path(&[3, 2], "r")));
    assert_eq!(shown(&read(type_url::LISTENER, &api)), "Routes:r");
}

#[test]
fn s33_an_extension_that_is_not_known_may_name_anything() {
    assert_eq!(of_filter("acme.v3.Proxy", "x"), "?");
    let filter = |name: &str, config: &[u8]| path(&[5, 4], any(name, config));
    let routes = path(&[3, 2], "r");
    let router = filter("envoy.extensions.filters.http.router.v3.Router", b"");
    let lua = filter("envoy.extensions.filters.http.lua.v3.Lua", b"");
    let authz = path(&[1, 1, 1], "authz");
    let authz = filter("envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", &authz);
    assert_eq!(of_filter(HCM, [routes.clone(), router, authz].concat()), "Cluster:authz Routes:r");
    assert_eq!(of_filter(HCM, [routes, lua].concat()), "?");
}

#[test]
fn s33_where_nothing_is_found_a_listener_or_routes_were_not_understood() {
    for type_url in [type_url::LISTENER, type_url::ROUTE_CONFIGURATION, type_url::VIRTUAL_HOST] {
        assert_eq!(read(type_url, &field(1, "own")), References::Unknown);
    }
    for type_url in [type_url::CLUSTER, type_url::CLUSTER_LOAD_ASSIGNMENT, type_url::SECRET, "acme.Thing"] {
        assert_eq!(read(type_url, &field(1, "own")), References::None);
    }
    assert_eq!(read(type_url::CLUSTER, &[0x0a, 0x7f]), References::Unknown);
}

#[test]
fn s33_clusters_name_secrets_and_other_clusters() {
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let socket = |secret: &str| field(3, any(tls, path(&[1, 6], sds(secret))));
    let aggregate = any("envoy.extensions.clusters.aggregate.v3.ClusterConfig", field(1, "c"));
    let cluster =
        [vec![0x10, 3], field(24, socket("s1")), path(&[43, 3], socket("s2")), path(&[38, 2], aggregate)]
            .concat();
    let references = read(type_url::CLUSTER, &cluster);
    assert_eq!(shown(&references), "Cluster:c Assignment:own Secret:s1 Secret:s2");
    assert_eq!(references.endpoints(&"own".into()), Some(&"own".into()));
    let leds = path(&[2, 8, 2], "collection");
    assert_eq!(shown(&read(type_url::CLUSTER_LOAD_ASSIGNMENT, &leds)), "Endpoint:*");
    let scope = [field(1, "own"), field(2, "r")].concat();
    assert_eq!(shown(&read(type_url::SCOPED_ROUTE_CONFIGURATION, &scope)), "Routes:r");
}

#[test]
fn s33_filters_within_filters_are_read() {
    let matcher = |action: Vec<u8>| path(&[2, 2, 1, 2, 2, 2], action);
    let authz = any("envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", path(&[3, 1, 2], "authz"));
    let execute = "envoy.extensions.filters.http.composite.v3.ExecuteFilterAction";
    let composite = field(2, any("envoy.extensions.filters.http.composite.v3.Composite", ""));
    let with_matcher = [field(3, matcher(any(execute, path(&[1, 2], authz)))), field(2, composite)];
    let filter = any("envoy.extensions.common.matching.v3.ExtensionWithMatcher", with_matcher.concat());
    assert_eq!(of_filter(HCM, path(&[5, 4], filter)), "Cluster:authz");
}

#[test]
fn messages_too_deep_may_name_anything() {
    let name = "envoy.config.route.v3.FilterConfig";
    let deep = (0..1000).fold(any(name, ""), |config, _| any(name, field(1, config)));
    let routes = [path(&[2, 3, 2, 1], "c"), path(&[16, 2], deep)].concat();
    assert_eq!(read(type_url::ROUTE_CONFIGURATION, &routes), References::Unknown);
}

#[test]
fn names_that_many_resources_have_are_stored_once() {
    let mut references = read(type_url::ROUTE_CONFIGURATION, &path(&[2, 3, 2, 1], "c"));
    let known = ResourceName::from("c");
    references.share(|_, name| (*name == known).then(|| known.clone()));
    let own = "own".into();
    let (_, shared) = references.iter(&own).next().unwrap();
    assert!(std::ptr::eq(shared.as_str(), known.as_str()));
}

#[test]
fn a_cluster_pays_little_for_what_it_names() {
    assert!(size_of::<References>() <= 16);
    assert!(size_of::<Variant>() <= 168, "{}", size_of::<Variant>());
}

/// The types that the fields of a message can name, with those of connection managers.
fn reach(shape: &'static table::Shape, found: &mut BTreeSet<Target>, depth: usize) {
    for (_, _, field) in shape {
        match field {
            table::Field::Name(target) | table::Field::AnyOf(target) | table::Field::AllFrom(target, _) => {
                _ = found.insert(*target);
            }
            table::Field::Message(shape) if depth < 12 => reach(shape, found, depth + 1),
            table::Field::Own(target, ..) => _ = found.insert(*target),
            table::Field::Message(_) | table::Field::Any => {}
        }
    }
}

#[test]
fn s33_removals_wait_for_all_types_that_can_name_what_is_gone() {
    for target in ALL {
        let mut found = BTreeSet::new();
        reach(table::resource(target).unwrap_or(&[]), &mut found, 0);
        if target == Target::Listener {
            let manager = format!("envoy.extensions.filters.network.{HCM}");
            reach(table::extension(&manager).unwrap(), &mut found, 0);
        }
        // A config source refers to all scopes or virtual hosts at once, and needs none of them.
        found.retain(|named| !matches!(named, Target::Scope | Target::VirtualHost));
        for named in found {
            let referrers = KnownType::of(named.type_url()).referrers;
            assert!(referrers.contains(&target.type_url()), "{target:?} names {named:?}");
        }
    }
}

quickcheck! {
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, target: usize) -> bool {
        let type_url = ALL[target % ALL.len()].type_url();
        _ = read(type_url, &bytes);
        true
    }

    fn no_damage_to_a_message_makes_the_reader_panic(damage: Vec<(usize, u8)>, length: usize) -> bool {
        let tls = any("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", path(&[1, 6], sds("s")));
        let hcm = any(&format!("envoy.extensions.filters.network.{HCM}"), path(&[4, 2, 3, 2, 3, 1, 1], "c"));
        let mut payload = [path(&[3, 3, 4], hcm), path(&[3, 6, 3], tls)].concat();
        for (at, byte) in damage {
            let at = at % payload.len();
            payload[at] = byte;
        }
        payload.truncate(length % (payload.len() + 1));
        _ = read(type_url::LISTENER, &payload);
        true
    }
}

#[test]
fn a_resource_says_what_it_names_and_in_which_fields() {
    let route = |cluster: &str| path(&[2, 3, 2, 1], cluster);
    let unknown = path(&[2, 3, 13, 2], any("acme.Filter", ""));
    let routes = [field(1, "r"), route("a"), route("b"), path(&[2, 22, 1], "a"), unknown].concat();
    let routes = Resource::new(type_url::ROUTE_CONFIGURATION, "r", routes).unwrap();
    // The cache has to assume that the unknown filter names anything.
    assert_eq!(routes.references, References::Unknown);
    let named: Vec<_> = routes.named_resources().collect();
    assert_eq!(named, [(type_url::CLUSTER, "a".into()), (type_url::CLUSTER, "b".into())]);
    let fields = |name: &str| routes.fields_that_name(type_url::CLUSTER, &name.into());
    let of_a = ["virtual_hosts.request_mirror_policies.cluster", "virtual_hosts.routes.route.cluster"];
    assert_eq!(fields("a"), of_a);
    assert_eq!(fields("c"), [""; 0]);
    assert_eq!(routes.fields_that_name(type_url::SECRET, &"a".into()), [""; 0]);
}

#[test]
fn fields_in_extensions_and_maps_have_their_names() {
    let fields = |payload: Vec<u8>, target, name: &str| {
        let payload = [field(1, "l"), payload].concat();
        let listener = Resource::new(type_url::LISTENER, "l", payload).unwrap();
        listener.fields_that_name(target, &name.into())
    };
    let filter = |config: Vec<u8>| {
        let hcm = any(&format!("envoy.extensions.filters.network.{HCM}"), config);
        path(&[3, 3, 4], hcm)
    };
    let rds = "filter_chains.filters.typed_config.rds.route_config_name";
    assert_eq!(fields(filter(path(&[3, 2], "r")), type_url::ROUTE_CONFIGURATION, "r"), [rds]);
    let ecds = filter(field(5, [field(5, ""), field(1, "e")].concat()));
    let name = "filter_chains.filters.typed_config.http_filters.name";
    assert_eq!(fields(ecds, type_url::TYPED_EXTENSION_CONFIG, "e"), [name]);
    let jwt =
        any("envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication", path(&[1, 2, 3, 1, 2], "c"));
    let provider =
        "filter_chains.filters.typed_config.http_filters.typed_config.providers.remote_jwks.http_uri.cluster";
    assert_eq!(fields(filter(path(&[5, 4], jwt)), type_url::CLUSTER, "c"), [provider]);
}

#[test]
fn the_endpoints_of_a_cluster_are_named_by_its_service_name() {
    let eds = Cluster { discovery_type: Some(DISCOVERY_TYPE_EDS), eds_cluster_config: None };
    let payload = [field(1, "c"), eds.encode_to_vec()].concat();
    let cluster = Resource::new(type_url::CLUSTER, "c", payload).unwrap();
    let endpoints = type_url::CLUSTER_LOAD_ASSIGNMENT;
    assert_eq!(cluster.named_resources().collect::<Vec<_>>(), [(endpoints, "c".into())]);
    assert_eq!(cluster.fields_that_name(endpoints, &"c".into()), ["eds_cluster_config.service_name"]);
}

#[test]
fn each_field_that_names_a_resource_can_be_looked_up_and_cleared() {
    let jwt =
        any("envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication", path(&[1, 2, 3, 1, 2], "c"));
    let hcm = [path(&[3, 2], "r"), path(&[5, 4], jwt), field(5, [field(5, ""), field(1, "e")].concat())];
    let hcm = any(&format!("envoy.extensions.filters.network.{HCM}"), hcm.concat());
    let listener = [field(1, "l"), path(&[3, 3, 4], hcm)].concat();
    let route = |cluster: &str| path(&[2, 3, 2, 1], cluster);
    let routes = [field(1, "l"), route("a"), route("b"), path(&[2, 22, 1], "a")].concat();
    let of = |type_url: &str, payload: Vec<u8>| Resource::new(type_url, "l", payload).unwrap();
    let mut count = 0;
    for (type_url, payload) in [(type_url::LISTENER, listener), (type_url::ROUTE_CONFIGURATION, routes)] {
        let resource = of(type_url, payload);
        let named = resource.names_by_field();
        for (field, target, name) in &named {
            assert_eq!(target_of_field(type_url, field), Some(*target), "{field}");
            let cleared = of(type_url, resource.payload_without(field, target, name).unwrap().to_vec());
            let mut rest = named.clone();
            rest.retain(|other| other != &(field.clone(), *target, name.clone()));
            assert_eq!(cleared.names_by_field(), rest);
            assert_eq!(cleared.payload_without(field, target, name), None);
            count += 1;
        }
    }
    assert_eq!(count, 6);
    assert_eq!(target_of_field(type_url::ROUTE_CONFIGURATION, "virtual_hosts.routes"), None);
    assert_eq!(target_of_field("t/acme.Thing", "name"), None);
    let service_name = target_of_field(type_url::CLUSTER, SERVICE_NAME);
    assert_eq!(service_name, Some(type_url::CLUSTER_LOAD_ASSIGNMENT));
}

/// The payload of a resource `own`, with the cluster `a` renamed.
fn renamed(type_url: &str, target: &str, payload: &[u8]) -> Option<Bytes> {
    let payload = Bytes::copy_from_slice(payload);
    let resource = Resource::new(type_url, "own", payload).unwrap();
    let renamed = resource.renamed_payload(target, &"a".into(), &"xdstp://x/T/new".into());
    let again = renamed.clone().map(|payload| Resource::new(type_url, "own", payload).unwrap());
    if let Some(again) = again {
        assert_eq!(again.fields_that_name(target, &"a".into()), [""; 0]);
        let fields = resource.fields_that_name(target, &"a".into());
        assert_eq!(again.fields_that_name(target, &"xdstp://x/T/new".into()), fields);
    }
    renamed
}

#[test]
fn a_name_is_replaced_where_a_payload_names_the_resource_and_nowhere_else() {
    let new = "xdstp://x/T/new";
    let routes = |cluster: &str| {
        // Unknown fields, a field that is no message, an empty message, and a weight.
        let weighted = [path(&[1, 1], cluster), path(&[1, 1], "b"), vec![3 << 3, 5]].concat();
        let route = path(&[2, 3, 2, 1], cluster);
        let unknown = [field(1000, "a"), vec![0xc0, 0x3e, 0x01], field(2, "")].concat();
        let filter = any("acme.Filter", field(1, "a"));
        let mirror = path(&[2, 22, 1], cluster);
        [field(1, "own"), route, unknown, path(&[2, 3, 2, 3], weighted), path(&[2, 3, 13, 2], filter), mirror]
            .concat()
    };
    let cluster = type_url::CLUSTER;
    assert_eq!(renamed(type_url::ROUTE_CONFIGURATION, cluster, &routes("a")).unwrap(), routes(new));
    assert_eq!(renamed(type_url::ROUTE_CONFIGURATION, cluster, &routes("c")), None);
    assert_eq!(renamed(type_url::ROUTE_CONFIGURATION, type_url::SECRET, &routes("a")), None);

    let listener = |name: &str| {
        let hcm = [path(&[3, 2], name), field(5, [field(5, ""), field(1, name)].concat())].concat();
        let tls = [path(&[1, 6], sds(name)), path(&[1, 6, 1], "a")].concat();
        let tls = any("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", tls);
        let hcm = any(&format!("envoy.extensions.filters.network.{HCM}"), hcm);
        [field(1, "own"), path(&[3, 3, 4], hcm), path(&[3, 6, 3], tls)].concat()
    };
    let of = |target: &str| renamed(type_url::LISTENER, target, &listener("a")).unwrap();
    let named = |target: &str, name: &str| {
        let listener = Resource::new(type_url::LISTENER, "own", of(target)).unwrap();
        listener.named_resources().any(|(of, named)| of == target && named.as_str() == name)
    };
    for target in [type_url::ROUTE_CONFIGURATION, type_url::TYPED_EXTENSION_CONFIG, type_url::SECRET] {
        assert!(named(target, new) && !named(target, "a"), "{target}");
    }
    // The secret without a source is one of the bootstrap.
    let secrets = of(type_url::SECRET);
    assert!(secrets.windows(3).any(|bytes| bytes == field(1, "a")));
}

#[test]
fn the_name_of_the_endpoints_of_a_cluster_is_replaced_or_added() {
    let cluster = |name: &str, config: Vec<u8>| [field(1, name), vec![2 << 3, 3], config].concat();
    let config = |name: &str| field(3, [field(1, "a"), field(2, name), field(9, "a")].concat());
    let endpoints = type_url::CLUSTER_LOAD_ASSIGNMENT;
    let new = "xdstp://x/T/new";
    let of_own = renamed(type_url::CLUSTER, endpoints, &cluster("own", config("a")));
    assert_eq!(of_own.unwrap(), cluster("own", config(new)));
    assert_eq!(renamed(type_url::CLUSTER, endpoints, &cluster("own", config("b"))), None);
    let own = Resource::new(type_url::CLUSTER, "a", cluster("a", Vec::new())).unwrap();
    let added = own.renamed_payload(endpoints, &"a".into(), &new.into()).unwrap();
    assert_eq!(added, [cluster("a", Vec::new()), path(&[3, 2], new)].concat());
}
