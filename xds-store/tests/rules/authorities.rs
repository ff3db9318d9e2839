//! Which authorities may refer to which others (SG37).

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::authority::AUTHORITY_TYPE;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::region::POLICY_TYPE;
use xds_store::store::{Event, RegionRequest, Ticket};

use crate::driven::envoy::*;
use crate::driven::*;

fn authority(name: &str, imports: &[&str]) -> proto::Change {
    let imports = imports.iter().map(ToString::to_string).collect();
    put_at(key_of(AUTHORITY_TYPE, name), proto::Authority { imports }.encode_to_vec())
}

fn policy(prefix: &str, owner: &str, regions: &[&str]) -> proto::Change {
    let policy = proto::RegionPolicy {
        owner_region: owner.into(),
        regions: regions.iter().map(ToString::to_string).collect(),
        disabled: Vec::new(),
    };
    put_at(key_of(POLICY_TYPE, prefix), policy.encode_to_vec())
}

/// The cluster of an authority.
fn of_authority(name: &str) -> String {
    format!("xdstp://{name}/envoy.config.cluster.v3.Cluster/c")
}

/// Routes of an authority.
fn to(name: &str, clusters: &[&str]) -> proto::Change {
    let name = format!("xdstp://{name}/envoy.config.route.v3.RouteConfiguration/r");
    routes(&name, clusters)
}

fn with_clusters(server: &mut Server) {
    server.commit(of(["a", "b", "c"].map(|name| cluster(&of_authority(name))))).unwrap();
    server.commit(of([cluster("plain"), cluster("xdstp:///envoy.config.cluster.v3.Cluster/c")])).unwrap();
}

fn not_imported(refused: Refused) -> (RefusalCode, String, proto::MissingTarget) {
    let violation = refused.violations.into_iter().next().unwrap();
    match violation.why {
        Some(proto::violation::Why::MissingTarget(missing)) => (refused.code, violation.message, missing),
        why => panic!("{why:?}"),
    }
}

fn invalid(refused: Refused) -> (RefusalCode, String) {
    match refused.violations.into_iter().next().unwrap().why {
        Some(proto::violation::Why::Invalid(invalid)) => (refused.code, invalid.field),
        why => panic!("{why:?}"),
    }
}

#[test]
fn sg37_an_authority_refers_to_its_own_names_plain_names_and_those_that_it_imports() {
    let mut server = Server::new();
    with_clusters(&mut server);
    server.commit(of([authority("a", &["b"])])).unwrap();
    let all = [&of_authority("a"), &of_authority("b"), "plain", "xdstp:///envoy.config.cluster.v3.Cluster/c"];
    server.commit(of([to("a", &all)])).unwrap();
    // It holds over a restart. To allow missing targets does not allow this.
    server.restart();
    let other = of_authority("c");
    let request = proto::CommitRequest { allow_missing: true, ..of([to("a", &[&other])]) };
    let (code, message, missing) = not_imported(server.commit(request).unwrap_err());
    let target = Some(key_of(type_url::CLUSTER, &other));
    let field = "virtual_hosts.routes.route.cluster".to_owned();
    let expected = proto::MissingTarget { target, field, is_not_imported: true, is_deleting: false };
    assert_eq!((code, missing), (RefusalCode::FailedPrecondition, expected));
    assert!(message.ends_with("the authority a does not import c"), "{message}");
    // An authority without a record is not restricted, and neither are names without one.
    server
        .commit(of([to("b", &[&other, &of_authority("a")]), to("", &[&other]), routes("r", &[&other])]))
        .unwrap();
    // One commit imports it and refers to it.
    server.commit(of([to("a", &[&other]), authority("a", &["b", "c"])])).unwrap();
}

#[test]
fn sg37_sg12_references_that_are_older_stay_and_are_not_judged_again() {
    let mut server = Server::new();
    with_clusters(&mut server);
    let (b, c) = (of_authority("b"), of_authority("c"));
    server.commit(of([to("a", &[&b])])).unwrap();
    server.commit(of([authority("a", &[])])).unwrap();
    server.commit(of([to("a", &[&b, "plain"])])).unwrap();
    assert_eq!(server.code(of([to("a", &[&b, &c])])), RefusalCode::FailedPrecondition);
    server.commit(of([to("a", &[])])).unwrap();
    assert_eq!(server.code(of([to("a", &[&b])])), RefusalCode::FailedPrecondition);
    server.commit(of([delete_at(key_of(AUTHORITY_TYPE, "a"))])).unwrap();
    server.commit(of([to("a", &[&b])])).unwrap();
}

#[test]
fn sg37_fields_and_names_that_need_no_target_need_no_import() {
    let mut server = Server::new();
    with_clusters(&mut server);
    server.commit(of([authority("a", &[])])).unwrap();
    let name = of_authority("a");
    // The endpoints would go with the cluster.
    let endpoints = "xdstp://b/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    assert!(not_imported(server.commit(of([eds_cluster(&name, endpoints)])).unwrap_err()).2.is_not_imported);
    server.commit(of([aggregate(&name, &of_authority("b"))])).unwrap();
    let external = Rule { external: &["xdstp://b/*"], ..Rule::of_routes(proto::OnDelete::Block) };
    server.commit(of([external.put("rule")])).unwrap();
    server.commit(of([to("a", &[&of_authority("b")])])).unwrap();
}

#[test]
fn sg37_commits_of_one_batch_are_judged_on_the_authorities_before_them() {
    let mut server = Server::new();
    with_clusters(&mut server);
    let b = of_authority("b");
    let requests = vec![of([authority("a", &[])]), of([to("a", &[&b])])];
    let answers = server.together(requests);
    assert!(answers[0].is_ok() && answers[1].is_err(), "{answers:?}");
}

#[test]
fn sg37_a_circle_of_imports_is_refused_with_its_members() {
    let mut server = Server::new();
    server.commit(of([authority("a", &["b"]), authority("b", &["c"])])).unwrap();
    let refused = server.commit(of([authority("x", &["a"]), authority("c", &["x", "a"])])).unwrap_err();
    assert_eq!(refused.violations.len(), 3, "{refused:?}");
    assert_eq!((refused.violations[0].change, refused.violations[2].change), (1, 0));
    let message = &refused.violations[0].message;
    assert_eq!(message, "imports cannot be a circle: c > a > b > c");
    let field = (RefusalCode::FailedPrecondition, "put.content.payload.imports".to_owned());
    assert_eq!(invalid(refused), field);
    server.commit(of([authority("c", &[])])).unwrap();
}

#[test]
fn sg37_the_regions_of_an_authority_are_among_those_of_its_imports() {
    let mut server = Server::node_in("eu", "e1", false);
    server.commit(of([policy("xdstp://b/", "eu", &["us"]), policy("xdstp://b/own/", "eu", &[])])).unwrap();
    let lacking = |server: &mut Server, change| {
        let refused = server.commit(of([change])).unwrap_err();
        assert_eq!(invalid(refused.clone()).1, "put.content.payload.imports");
        refused.message
    };
    // Names of `a` are global.
    assert!(lacking(&mut server, authority("a", &["b"])).ends_with("none of b: all regions"));
    server.commit(of([policy("xdstp://a/", "eu", &["us"]), authority("a", &["b"])])).unwrap();
    // Names of `c` are in one region more, by the policy of some of them.
    server.commit(of([policy("xdstp://c", "us", &["eu"])])).unwrap();
    server.commit(of([policy("xdstp://d/", "eu", &[]), policy("xdstp://d/x/", "eu", &["ap"])])).unwrap();
    assert!(lacking(&mut server, authority("d", &["c"])).ends_with("none of c: ap"));
    server.commit(of([authority("c", &["a", "global"])])).unwrap();
    // A policy that breaks it is a warning.
    let committed = server.commit(of([policy("xdstp://b/", "eu", &[])])).unwrap();
    assert_eq!(committed.warnings.len(), 1, "{:?}", committed.warnings);
    assert!(committed.warnings[0].ends_with("none of b: us"), "{:?}", committed.warnings);
    assert_eq!(server.commit(of([policy("xdstp://e/", "eu", &[])])).unwrap().warnings, [""; 0]);
}

#[test]
fn sg37_sg11_an_authority_of_a_wrong_form_is_invalid() {
    let mut server = Server::new();
    let mut field = |change| {
        let (code, field) = invalid(server.commit(of([change])).unwrap_err());
        (code == RefusalCode::InvalidArgument).then_some(field)
    };
    let imports = Some("put.content.payload.imports".to_owned());
    for wrong in [&["a"][..], &["b", "b"], &[""], &["b/c"], &["%61"], &["b c"], &["xdstp://b"]] {
        assert_eq!(field(authority("a", wrong)), imports, "{wrong:?}");
    }
    let many: Vec<_> = (0..257).map(|number| format!("b{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| &**name).collect();
    assert_eq!(field(authority("a", &many)), imports);
    assert_eq!(field(authority("a/b", &[])), Some("key.name".to_owned()));
    let payload = Some("put.content.payload".to_owned());
    // A field of a later version.
    let later = [proto::Authority { imports: vec!["b".into()] }.encode_to_vec(), vec![16, 1]].concat();
    assert_eq!(field(put_at(key_of(AUTHORITY_TYPE, "a"), later)), payload);
    assert_eq!(field(put_at(key_of(AUTHORITY_TYPE, "a"), vec![255])), payload);
    let mut quarantined = authority("a", &[]);
    quarantined.act = Some(proto::change::Act::Quarantine(proto::Quarantine::default()));
    assert_eq!(field(quarantined), Some("quarantine".to_owned()));
}

#[test]
fn sg30_sg37_the_region_of_a_target_judges_the_import_too() {
    let mut server = Server::node_in("eu", "e1", false);
    server.commit(of([policy("xdstp://b/", "eu", &["us"])])).unwrap();
    server.commit(of([policy("xdstp://a/", "us", &[]), cluster(&of_authority("b"))])).unwrap();
    let source = routes_key("xdstp://a/envoy.config.route.v3.RouteConfiguration/r");
    let reference = proto::Reference {
        source: Some(source.clone()),
        target: Some(cluster_key(&of_authority("b"))),
        source_region: "us".into(),
        ..Default::default()
    };
    let request = proto::BlockReferencesRequest {
        id: vec![1; 16].into(),
        references: vec![reference],
        node: "u1".into(),
    };
    let ask = |server: &mut Server| {
        server.step(Event::Region(Ticket(0), RegionRequest::Block(request.clone())));
        server.region_answers.pop().unwrap()
    };
    server.commit(of([authority("a", &[])])).unwrap();
    let refused = ask(&mut server).unwrap_err();
    assert_eq!(refused.violations[0].key, Some(source));
    assert!(not_imported(refused).2.is_not_imported);
    server.commit(of([authority("a", &["b"])])).unwrap();
    assert!(ask(&mut server).is_ok());
}

#[test]
fn sg37_a_circle_that_two_nodes_make_at_once_does_not_count_until_it_ends() {
    let mut nodes = [Server::node("one"), Server::node("two")];
    with_clusters(&mut nodes[0]);
    let exchange = |nodes: &mut [Server; 2]| {
        for (from, to) in [(0, 1), (1, 0)] {
            let entries = nodes[from].entries_for(&nodes[to], 1_000);
            assert_eq!(nodes[to].merge(entries), BTreeMap::new());
        }
    };
    exchange(&mut nodes);
    nodes[0].commit(of([authority("a", &["b", "c"])])).unwrap();
    nodes[1].commit(of([authority("b", &["a"])])).unwrap();
    exchange(&mut nodes);
    let (b, c) = (of_authority("b"), of_authority("c"));
    for node in &mut nodes {
        assert_eq!(node.store.import_circles(), ["a > b > a"]);
        node.restart();
        assert_eq!(node.store.import_circles(), ["a > b > a"]);
        let (_, message, _) = not_imported(node.commit(of([to("a", &[&b])])).unwrap_err());
        assert!(message.ends_with("the imports a > b > a are a circle"), "{message}");
        // The other import counts.
        let dry_run = proto::CommitRequest { dry_run: true, ..of([to("a", &[&c])]) };
        node.commit(dry_run).unwrap();
        // The same once more is no registration.
        assert_eq!(node.outcome(of([authority("a", &["b", "c"])])), proto::Outcome::Unchanged);
        assert_eq!(node.code(of([authority("a", &["b"])])), RefusalCode::FailedPrecondition);
    }
    nodes[1].commit(of([authority("b", &[])])).unwrap();
    exchange(&mut nodes);
    assert_eq!(nodes.each_ref().map(|node| node.store.import_circles().len()), [0, 0]);
    nodes[0].commit(of([to("a", &[&b])])).unwrap();
}
