//! Aliases that nodes commit apart from each other for several resources (SR47).

use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::conflict::Kind;
use xds_store::commit::RefusalCode;

use xds_store::key::RecordKey;

use crate::driven::*;
use crate::journal::journal;
use crate::overlaps::{exchange, nodes};

/// What clients get: names with their aliases.
fn aliases(node: &Server) -> Vec<String> {
    let show = |(key, content): (&RecordKey, &proto::Content)| {
        format!("{} {:?}", key.name().as_str(), content.aliases)
    };
    node.contents().map(show).collect()
}

/// What clients get is equal at all nodes, before and after a restart.
fn assert_aliases(nodes: &mut [&mut Server], expected: &[&str]) {
    for node in nodes {
        assert_eq!(aliases(node), expected, "{}", node.store.head().node);
        node.restart();
        assert_eq!(aliases(node), expected, "after a restart");
    }
}

fn aliased(name: &str, payload: &str, aliases: &[&str]) -> proto::Change {
    let mut change = put(name, payload);
    let Some(proto::change::Act::Put(put)) = &mut change.act else { unreachable!() };
    let content = put.content.as_mut().unwrap();
    content.aliases = aliases.iter().map(ToString::to_string).collect();
    change
}

#[test]
fn sr47_of_resources_with_one_alias_that_of_the_higher_generation_has_it_at_all_nodes() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([aliased("of-a", "1", &["x", "y"])])).unwrap();
    b.commit(of([put("of-b", "1")])).unwrap();
    b.commit(of([aliased("of-b", "2", &["x", "z"])])).unwrap();
    c.commit(of([put("of-c", "1")])).unwrap();
    assert!(c.merge(a.entries_for(&c, 9)).is_empty());
    assert_eq!(aliases(&c), [r#"of-a ["x", "y"]"#, "of-c []"]);
    exchange(&mut [&mut c, &mut b, &mut a]);
    let all = [r#"of-a ["y"]"#, r#"of-b ["x", "z"]"#, "of-c []"];
    assert_aliases(&mut [&mut a, &mut b, &mut c], &all);
    for node in [&a, &b, &c] {
        let conflicts = journal(node);
        let is_of_alias = |(kind, name, ..): &(Kind, String, String, String)| {
            (*kind, &**name) == (Kind::Overlap, "of-a []")
        };
        assert!(!conflicts.is_empty() && conflicts.iter().all(is_of_alias), "{conflicts:?}");
    }
    // A commit may change them, and adds no conflict.
    c.commit(of([aliased("of-a", "2", &["x", "y"])])).unwrap();
    let refused = c.commit(of([aliased("of-c", "2", &["x"])])).unwrap_err();
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    c.commit(of([put("x", "1")])).unwrap_err();
    exchange(&mut [&mut a, &mut b, &mut c]);
    // SR47: of one generation the smaller digest counts.
    let digest = |name| a.record(name, "").unwrap().digest;
    let all = match digest("of-a") < digest("of-b") {
        true => [r#"of-a ["x", "y"]"#, r#"of-b ["z"]"#, "of-c []"],
        false => all,
    };
    assert_aliases(&mut [&mut a, &mut b, &mut c], &all);
    // Whoever is left has it.
    a.commit(of([aliased("of-b", "3", &["z"])])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &[r#"of-a ["x", "y"]"#, r#"of-b ["z"]"#, "of-c []"]);
    c.commit(of([delete("of-a")])).unwrap();
    c.commit(of([aliased("of-c", "2", &["x"])])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &[r#"of-b ["z"]"#, r#"of-c ["x"]"#]);
}

#[test]
fn sr47_a_resource_has_its_name_though_others_have_it_as_an_alias() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([aliased("of-a", "1", &["x"])])).unwrap();
    b.commit(of([put("x", "1")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &["of-a []", "x []"]);
    // The commit that created it again would be refused.
    b.commit(of([put("x", "2")])).unwrap();
    b.commit(of([delete("x")])).unwrap();
    b.commit(of([put("x", "3")])).unwrap_err();
    exchange(&mut [&mut c, &mut a, &mut b]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &[r#"of-a ["x"]"#]);
}

#[test]
fn sr47_a_variant_that_is_served_again_has_no_alias_of_another_resource() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put_when("of-a", "env=1", "1")])).unwrap();
    let mut overlapping = aliased("of-a", "1", &["x"]);
    overlapping.key.as_mut().unwrap().when = "env in (1, 2)".into();
    b.commit(of([overlapping])).unwrap();
    c.commit(of([put("of-c", "1")])).unwrap();
    for payload in ["2", "3"] {
        a.commit(of([put_when("of-a", "env=1", payload)])).unwrap();
        c.commit(of([aliased("of-c", payload, &["x"])])).unwrap();
    }
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &["of-a []", r#"of-c ["x"]"#]);
    a.commit(of([delete_when("of-a", "env=1")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &["of-a []", r#"of-c ["x"]"#]);
    b.commit(of([delete("of-c")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_aliases(&mut [&mut a, &mut b, &mut c], &[r#"of-a ["x"]"#]);
}
