use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine;
use xds_store::key::RecordKey;
use xds_store::phase::Phase;
use xds_store::record::Uid;
use xds_store::rules::FieldSource;
use xds_store::store::{Event, Store};

use crate::driven::envoy::*;
use crate::driven::migrating::*;
use crate::driven::*;

const MINUTE: i64 = 60 * SECOND;

/// A record as an owner, in this incarnation.
fn owner(key: proto::Key, incarnation: u64) -> proto::ResourceOwner {
    let uid = Uid::of(&RecordKey::parse(&key).unwrap(), incarnation).to_string();
    proto::ResourceOwner { key: Some(key), uid, ..Default::default() }
}

fn owned(mut change: proto::Change, owners: &[proto::ResourceOwner]) -> proto::Change {
    if let Some(proto::change::Act::Put(put)) = &mut change.act {
        put.owners = owners.to_vec();
    }
    change
}

/// The thing `name`, which the first incarnation of these things owns.
fn thing(name: &str, owners: &[&str]) -> proto::Change {
    owned(put(name, "1"), &owners.iter().map(|name| owner(key(name, ""), 1)).collect::<Vec<_>>())
}

fn exists(server: &Server, name: &str) -> bool {
    server.store.exists(&RecordKey::parse(&key(name, "")).unwrap())
}

/// The names of the things that own a thing.
fn owners(server: &Server, name: &str) -> Vec<String> {
    let state = server.record(name, "").unwrap();
    let present = state.owners.iter().filter(|owner| owner.is_present);
    let names = present.map(|owner| match owner.owner.clone().unwrap().who.unwrap() {
        proto::owner::Who::Resource(owner) => owner.key.unwrap().name,
        proto::owner::Who::Name(name) => name,
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn sg18_a_record_goes_with_its_last_owner() {
    let mut server = Server::new();
    server.commit(of([put("x", "1"), put("y", "1"), thing("a", &["x", "y"]), thing("b", &["a"])])).unwrap();
    assert_eq!(owners(&server, "a"), ["x", "y"]);
    server.commit(of([delete("x")])).unwrap();
    server.wait(SECOND);
    assert_eq!(owners(&server, "a"), ["y"]);
    let last = server.published.last().unwrap();
    assert_eq!((&*last.entry.identity, last.changed[0].1.generation), ("owners", 1));
    // And what it owns goes with it.
    server.commit(of([delete("y")])).unwrap();
    server.wait(SECOND);
    assert_eq!(server.store.counts().0, 0);
    let before = server.engine_revision();
    server.wait(10 * MINUTE);
    assert_eq!((server.engine_revision(), server.store.due()), (before, None));
}

#[test]
fn sg17_an_owner_is_not_checked_at_the_write_and_dropped_if_it_does_not_exist_in_time() {
    let mut server = Server::new();
    server.commit(of([thing("a", &["x"]), thing("b", &["y"])])).unwrap();
    server.wait(4 * MINUTE);
    assert!(exists(&server, "a") && exists(&server, "b"));
    server.commit(of([put("x", "1")])).unwrap();
    server.wait(2 * MINUTE);
    assert!(exists(&server, "a") && !exists(&server, "b"));
    // A server that starts gives its owners the same time.
    server.commit(of([thing("c", &["z"])])).unwrap();
    let mut later = Server::on(server.engine.clone(), 2, server.now);
    later.wait(4 * MINUTE);
    assert!(exists(&later, "c"));
    later.wait(2 * MINUTE);
    assert!(!exists(&later, "c") && exists(&later, "a"));
    // The time is a setting.
    let mut soon = Server::with(server.engine.clone(), later.now, |config| config.owner_grace = 10 * SECOND);
    soon.commit(of([thing("d", &["z"])])).unwrap();
    soon.wait(9 * SECOND);
    assert!(exists(&soon, "d"));
    soon.wait(2 * SECOND);
    assert!(!exists(&soon, "d"));
}

#[test]
fn sg18_an_owner_that_ended_while_no_server_ran_is_dropped_after_the_start() {
    let mut server = Server::new();
    server.commit(of([put("x", "1"), thing("a", &["x"])])).unwrap();
    server.commit(of([delete("x")])).unwrap();
    let mut later = Server::on(server.engine.clone(), 2, server.now);
    later.wait(SECOND);
    assert!(!exists(&later, "a"));
    // Another server of the store sees the deletion.
    let mut server = Server::new();
    server.commit(of([put("x", "1"), thing("a", &["x"])])).unwrap();
    let mut other = Server::on(server.engine.clone(), 2, server.now);
    other.wait(SECOND);
    server.commit(of([put("y", "1")])).unwrap();
    // The first one cannot go on after the deletion.
    server.fates.extend([Fate::Written, Fate::Unavailable]);
    server.commit(of([delete("x")])).unwrap();
    other.step(Event::Changed);
    other.wait(SECOND);
    assert!(!exists(&other, "a"));
}

#[test]
fn sg19_a_record_that_was_created_again_owns_nothing_of_its_predecessor() {
    let mut server = Server::new();
    server.commit(of([put("x", "1"), thing("a", &["x"])])).unwrap();
    server.commit(of([delete("x")])).unwrap();
    server.commit(of([put("x", "1")])).unwrap();
    server.wait(SECOND);
    assert!(!exists(&server, "a"));
    // A wrong uid is found out, too.
    server.commit(of([thing("a", &["x"])])).unwrap();
    server.wait(6 * MINUTE);
    assert!(!exists(&server, "a"));
    server.commit(of([owned(put("a", "1"), &[owner(key("x", ""), 2)])])).unwrap();
    server.wait(6 * MINUTE);
    assert!(exists(&server, "a"));
}

#[test]
fn sg18_a_record_stays_without_owners_if_its_last_one_says_so() {
    let mut server = Server::new();
    let unset = proto::ResourceOwner { unset_on_delete: true, ..owner(key("x", ""), 1) };
    server.commit(of([put("x", "1"), owned(put("a", "1"), &[unset])])).unwrap();
    server.commit(of([delete("x")])).unwrap();
    server.wait(6 * MINUTE);
    assert_eq!(owners(&server, "a"), [""; 0]);
    assert_eq!(server.record("a", "").unwrap().generation, 1);
}

#[test]
fn sg18_an_owner_that_has_to_refer_to_the_record_ends_with_the_reference() {
    let mut server = Server::with(Server::new().engine, SECOND, |config| {
        config.fields = FieldSource::new(|type_url, field| {
            (type_url == TYPE && field == "next").then(|| xds_core::FieldPath::new([1]))
        });
    });
    let on_delete = proto::OnDelete::Allow;
    let rule = Rule { type_url: TYPE, field: "next", target: TYPE, on_delete, external: &[], collect: false };
    let requires = proto::ResourceOwner { requires_reference: true, ..owner(key("x", ""), 1) };
    let naming = |name: &str| put_at(key("x", ""), path(&[1], name));
    server
        .commit(of([rule.put("next"), naming("a"), owned(put_at(key("a", ""), Vec::new()), &[requires])]))
        .unwrap();
    server.wait(6 * MINUTE);
    assert!(exists(&server, "a"));
    server.commit(of([naming("b")])).unwrap();
    server.wait(6 * MINUTE);
    assert!(!exists(&server, "a"));
}

#[test]
fn sg17_sg14_a_put_sets_the_resource_owners_and_a_named_owner_keeps_the_record_too() {
    let mut server = Server::new();
    let by = |changes: Vec<proto::Change>| proto::CommitRequest { owner: "shop".into(), ..of(changes) };
    server.commit(of([put("x", "1"), put("y", "1"), thing("a", &["x"])])).unwrap();
    // The same content joins, and has other owners from now on.
    assert_eq!(server.outcome(by(vec![thing("a", &["y"])])), proto::Outcome::Updated);
    assert_eq!(server.outcome(by(vec![thing("a", &["y"])])), proto::Outcome::Unchanged);
    assert_eq!(
        (owners(&server, "a"), server.record("a", "").unwrap().generation),
        (vec!["shop".into(), "y".into()], 1)
    );
    server.commit(of([delete("x"), delete("y")])).unwrap();
    server.wait(SECOND);
    assert_eq!(owners(&server, "a"), ["shop"]);
    // A named owner that leaves before the others ends nothing.
    server.commit(of([put("y", "1")])).unwrap();
    server.commit(by(vec![owned(put("a", "1"), &[owner(key("y", ""), 2)])])).unwrap();
    assert_eq!(server.outcome(by(vec![delete("a")])), proto::Outcome::Released);
    assert_eq!(owners(&server, "a"), ["y"]);
    assert_eq!(server.outcome(of([delete("a")])), proto::Outcome::Deleted);
}

#[test]
fn sg17_sg7_a_record_without_owners_that_is_blocked_waits() {
    let mut server = Server::new();
    let a = owned(cluster("a"), &[owner(key("x", ""), 1)]);
    server.commit(of([put("x", "1"), a, routes("web", &["a"])])).unwrap();
    server.commit(of([delete("x")])).unwrap();
    server.wait(SECOND);
    let a = RecordKey::parse(&cluster_key("a")).unwrap();
    assert!(server.store.exists(&a));
    assert_eq!(server.code(of([cluster("a")])), RefusalCode::FailedPrecondition);
    server.commit(of([delete_at(routes_key("web"))])).unwrap();
    assert!(!server.store.exists(&a));
}

#[test]
fn sg5_sg17_an_owner_keeps_what_would_be_collected() {
    let mut server = Server::new();
    let e = owned(endpoints("e"), &[owner(key("x", ""), 1)]);
    server.commit(of([put("x", "1"), eds_cluster("a", "e"), e])).unwrap();
    assert_eq!(server.commit(of([delete_at(cluster_key("a"))])).unwrap().effects, []);
}

#[test]
fn sg17_many_records_go_in_steps() {
    let mut server = Server::new();
    let many: Vec<_> = (0..250).map(|number| thing(&format!("a{number}"), &["x"])).collect();
    server.commit(of([many, vec![put("x", "1")]].concat())).unwrap();
    server.wait(SECOND);
    let begun = server.published.len();
    server.commit(of([delete("x")])).unwrap();
    server.wait(SECOND);
    let steps: Vec<_> = server.published[begun..].iter().map(|commit| commit.changed.len()).collect();
    assert_eq!(steps, [1, 100, 100, 50]);
    check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
}

#[test]
fn sg17_st42_owners_have_a_form_and_a_limit() {
    let mut server = Server::new();
    let good = owner(key("x", ""), 1);
    let bad = [
        proto::ResourceOwner { key: None, ..good.clone() },
        proto::ResourceOwner { uid: "x".into(), ..good.clone() },
        owner(key("a", ""), 1),
        owner(rule_key("r"), 1),
    ];
    for owner in bad {
        assert_eq!(server.code(of([owned(put("a", "1"), &[owner])])), RefusalCode::InvalidArgument);
    }
    let twice = [good.clone(), proto::ResourceOwner { unset_on_delete: true, ..good.clone() }];
    assert_eq!(server.code(of([owned(put("a", "1"), &twice)])), RefusalCode::InvalidArgument);
    let rule = owned(Rule::of_routes(proto::OnDelete::Allow).put("r"), &[good]);
    assert_eq!(server.code(of([rule])), RefusalCode::InvalidArgument);
    let many: Vec<_> = (0..33).map(|number| owner(key(&format!("x{number}"), ""), 1)).collect();
    assert_eq!(server.code(of([owned(put("a", "1"), &many)])), RefusalCode::ResourceExhausted);
    // Nothing of it was written.
    Store::load(&*server.engine.view().unwrap(), server.store.config().clone(), 0, |_| panic!()).unwrap();
}

#[test]
fn sg20_the_other_form_of_an_owner_that_is_migrated_stands_for_it() {
    let mut server = in_phase(Phase::F0);
    server.commit(of([put("ac", "1"), thing("x", &["ac"])])).unwrap();
    for number in 1..=5 {
        step(&mut server, number - 1, number).unwrap();
        server.wait(10 * MINUTE);
    }
    assert!(!exists(&server, "ac") && exists(&server, "x"));
    server.commit(of([delete_at(new_key("ac"))])).unwrap();
    server.wait(SECOND);
    assert!(!exists(&server, "x"));
}
