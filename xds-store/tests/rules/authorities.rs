//! Which authorities may refer to which others (SG37).

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_store::authority::AUTHORITY_TYPE;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::region::POLICY_TYPE;

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

fn invalid(refused: Refused) -> (RefusalCode, String) {
    match refused.violations.into_iter().next().unwrap().why {
        Some(proto::violation::Why::Invalid(invalid)) => (refused.code, invalid.field),
        why => panic!("{why:?}"),
    }
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
