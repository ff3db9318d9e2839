use xds_core::{Access, NamePatterns};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::{RefusalCode, WriteAccess};
use xds_store::engine::Engine;
use xds_store::key::RecordKey;
use xds_store::store::Event;

use crate::driven::envoy::*;
use crate::driven::*;

const BLOCK: proto::OnDelete = proto::OnDelete::Block;
const CASCADE: proto::OnDelete = proto::OnDelete::Cascade;
const UNSET: proto::OnDelete = proto::OnDelete::Unset;

/// A server with rules for the clusters of routes and for the routes of listeners.
fn with_rules(of_routes: proto::OnDelete, of_listeners: proto::OnDelete) -> Server {
    let mut server = Server::new();
    let rules = [Rule::of_routes(of_routes).put("routes"), Rule::of_listeners(of_listeners).put("listeners")];
    server.commit(of(rules)).unwrap();
    server
}

fn listener_key(name: &str) -> proto::Key {
    key_of(type_url::LISTENER, name)
}

fn exists(server: &Server, key: &proto::Key) -> bool {
    server.store.exists(&RecordKey::parse(key).unwrap())
}

/// What a commit did to records that it did not name.
fn effects(server: &mut Server, request: proto::CommitRequest) -> Vec<(String, proto::Outcome)> {
    let effects = server.commit(request).unwrap().effects;
    effects.iter().map(|effect| (effect.key.name().to_string(), effect.result.outcome)).collect()
}

fn deleted(names: &[&str]) -> Vec<(String, proto::Outcome)> {
    names.iter().map(|name| (name.to_string(), proto::Outcome::Deleted)).collect()
}

#[test]
fn sg5_a_cascade_deletes_the_referrers_of_a_target_and_theirs() {
    let mut server = with_rules(CASCADE, CASCADE);
    let request = of([cluster("a"), cluster("b"), routes("web", &["a", "b"]), listener("l", "web")]);
    server.commit(request).unwrap();
    let delete = || of([delete_at(cluster_key("a"))]);
    let dry_run = proto::CommitRequest { dry_run: true, ..delete() };
    assert_eq!(effects(&mut server, dry_run), deleted(&["web", "l"]));
    assert_eq!(effects(&mut server, delete()), deleted(&["web", "l"]));
    assert!(exists(&server, &cluster_key("b")) && !exists(&server, &listener_key("l")));
    // The whole closure is one commit.
    assert_eq!(server.published.last().unwrap().changed.len(), 3);
    let later = Server::on(server.engine.clone(), 2, server.now);
    assert_eq!(later.store.counts().0, 3);
}

#[test]
fn sg5_an_unset_clears_the_field_and_makes_a_new_generation() {
    let mut server = with_rules(UNSET, BLOCK);
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a", "b"]), routes("x", &["b"])])).unwrap();
    let delete = of([delete_at(cluster_key("a"))]);
    assert_eq!(effects(&mut server, delete), [("web".to_owned(), proto::Outcome::Unset)]);
    let web = server.published.last().unwrap().changed.iter().find(|(key, _)| key.name().as_str() == "web");
    let state = &web.unwrap().1;
    assert_eq!((state.generation, state.lifecycle()), (2, proto::State::Live));
    let expected = [path(&[1], "web"), path(&[2, 3, 2], ""), path(&[2, 3, 2, 1], "b")].concat();
    assert_eq!(state.content.as_ref().unwrap().payload, expected);
    // The rest of it still refers.
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("b"))])).len(), 2);
}

#[test]
fn sg5_an_unset_clears_what_is_served_in_place_of_a_quarantined_content_too() {
    let mut server = with_rules(UNSET, BLOCK);
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
    server.commit(of([routes("web", &["a", "b"])])).unwrap();
    let quarantine = proto::change::Act::Quarantine(proto::Quarantine::default());
    let withheld = proto::Change { key: Some(routes_key("web")), act: Some(quarantine), condition: None };
    server.commit(of([withheld])).unwrap();
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("a"))])).len(), 1);
    let (_, state) = server.published.last().unwrap().changed.last().unwrap();
    let serve = state.quarantined.as_ref().unwrap().serve.as_ref().unwrap();
    assert_eq!(serve.payload, [path(&[1], "web"), path(&[2, 3, 2], "")].concat());
}

#[test]
fn sg5_a_put_of_the_commit_that_names_what_goes_is_not_undone() {
    let mut server = with_rules(CASCADE, CASCADE);
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
    let again = of([delete_at(cluster_key("a")), routes("web", &["a", "b"])]);
    assert_eq!(server.code(again), RefusalCode::FailedPrecondition);
    let other = of([delete_at(cluster_key("a")), routes("web", &["b"])]);
    assert_eq!(effects(&mut server, other), []);
}

#[test]
fn sg2_sg5_a_cascade_waits_for_the_last_variant_of_its_target() {
    let mut server = with_rules(CASCADE, CASCADE);
    let variant = |when: &str| proto::Key { when: when.into(), ..cluster_key("a") };
    let put = |when: &str| proto::Change { key: Some(variant(when)), ..cluster("a") };
    server.commit(of([put("env=prod"), put("env!=prod"), routes_when("web", "env=prod", &["a"])])).unwrap();
    assert_eq!(effects(&mut server, of([delete_at(variant("env=prod"))])), []);
    assert_eq!(effects(&mut server, of([delete_at(variant("env!=prod"))])), deleted(&["web"]));
}

#[test]
fn sg6_a_block_in_the_closure_refuses_the_whole_delete_and_names_the_chain() {
    let mut server = with_rules(CASCADE, BLOCK);
    server
        .commit(of([cluster("a"), routes("web", &["a"]), routes("x", &["a"]), listener("l", "web")]))
        .unwrap();
    let before = server.engine_revision();
    let refused = server.commit(of([cluster("b"), delete_at(cluster_key("a"))])).unwrap_err();
    assert_eq!((refused.code, refused.violations.len()), (RefusalCode::FailedPrecondition, 1));
    assert_eq!((refused.violations[0].change, &refused.violations[0].key), (1, &Some(cluster_key("a"))));
    let [routes, cluster] = [routes_key("web"), cluster_key("a")].map(|key| RecordKey::parse(&key).unwrap());
    let chain = format!("{routes:?} goes with {cluster:?}, {routes:?} is used by ");
    assert!(refused.message.starts_with(&chain), "{refused:?}");
    assert!(refused.message.contains("Listener l (filter_chains"), "{refused:?}");
    assert_eq!(server.engine_revision(), before);
    // With the blocker it goes.
    let both = of([delete_at(cluster_key("a")), delete_at(listener_key("l"))]);
    assert_eq!(effects(&mut server, both), deleted(&["web", "x"]));
}

/// Things that refer to each other: field 1 of a thing names another one.
fn with_things(on_delete: proto::OnDelete) -> Server {
    let mut server = Server::with(Server::new().engine, SECOND, |config| {
        config.fields = xds_store::rules::FieldSource::new(|type_url, field| {
            (type_url == TYPE && field == "next").then(|| xds_core::FieldPath::new([1]))
        });
    });
    let rule = Rule { type_url: TYPE, field: "next", target: TYPE, on_delete, external: &[], collect: false };
    server.commit(of([rule.put("next")])).unwrap();
    server
}

fn thing(name: &str, next: &str) -> proto::Change {
    put_at(key(name, ""), path(&[1], next))
}

#[test]
fn sg6_a_cascade_cycle_ends_and_a_block_cycle_goes_only_together() {
    let circle = || of([thing("a", "b"), thing("b", "c"), thing("c", "a"), thing("d", "d")]);
    let mut server = with_things(CASCADE);
    server.commit(circle()).unwrap();
    assert_eq!(effects(&mut server, of([delete("a")])), deleted(&["c", "b"]));
    assert_eq!(effects(&mut server, of([delete("d")])), []);
    assert_eq!(server.store.counts().0, 1);
    let mut server = with_things(BLOCK);
    server.commit(circle()).unwrap();
    assert_eq!(server.code(of([delete("a")])), RefusalCode::FailedPrecondition);
    assert_eq!(server.code(of([delete("a"), delete("b")])), RefusalCode::FailedPrecondition);
    server.commit(of([delete("a"), delete("b"), delete("c"), delete("d")])).unwrap();
    // Drained one after another, they go with the last one.
    server.commit(circle()).unwrap();
    for name in ["a", "b"] {
        let drained = server.commit(of([drain_at(key(name, ""))])).unwrap();
        assert_eq!(drained.results[0].outcome, proto::Outcome::Deleting);
    }
    let last = server.commit(of([drain_at(key("c", ""))])).unwrap();
    assert_eq!((last.results[0].outcome, last.effects.len()), (proto::Outcome::Deleted, 2));
}

#[test]
fn sg6_sg7_a_drain_cascades_at_once_and_waits_for_what_is_blocked() {
    let mut server = with_rules(CASCADE, BLOCK);
    server
        .commit(of([cluster("a"), routes("web", &["a"]), routes("x", &["a"]), listener("l", "web")]))
        .unwrap();
    let committed = server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    let result = &committed.results[0];
    assert_eq!((result.outcome, result.blocked_by.len()), (proto::Outcome::Deleting, 1));
    assert_eq!(result.blocked_by[0].source, Some(routes_key("web")));
    assert_eq!(result.blocked_by[0].on_delete(), CASCADE);
    let outcomes: Vec<_> = committed.effects.iter().map(|effect| effect.result.outcome).collect();
    assert_eq!(outcomes, [proto::Outcome::Deleting, proto::Outcome::Deleted]);
    // What waits is served, and the end of the last blocker ends both.
    assert!(exists(&server, &routes_key("web")) && exists(&server, &cluster_key("a")));
    let mut later = Server::on(server.engine.clone(), 2, server.now);
    assert_eq!(effects(&mut later, of([delete_at(listener_key("l"))])), deleted(&["web", "a"]));
    server.step(Event::Changed);
    assert_eq!(server.store.counts().0, 2);
}

#[test]
fn sg5_st39_the_end_of_a_lease_cascades_and_waits_for_nothing() {
    let mut server = with_rules(CASCADE, BLOCK);
    let mut leased = cluster("a");
    if let Some(proto::change::Act::Put(put)) = &mut leased.act {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    server.commit(of([leased, routes("web", &["a"]), routes("x", &["a"]), listener("l", "web")])).unwrap();
    server.wait(11 * SECOND);
    assert!(!exists(&server, &cluster_key("a")) && !exists(&server, &routes_key("x")));
    // It is blocked, and goes later.
    assert!(exists(&server, &routes_key("web")));
    assert_eq!(effects(&mut server, of([delete_at(listener_key("l"))])), deleted(&["web"]));
}

#[test]
fn sg5_st54_a_client_deletes_and_clears_only_what_it_may_write() {
    for on_delete in [CASCADE, UNSET] {
        let mut server = with_rules(on_delete, BLOCK);
        server.commit(of([cluster("a"), routes("web", &["a"]), routes("x", &["a"])])).unwrap();
        let names = Access::nothing().with_every_type(&["a", "x"].into_iter().collect::<NamePatterns>());
        let access = WriteAccess { records: names.clone(), configuration: false, read: names };
        let delete = || of([delete_at(cluster_key("a"))]);
        let refused = server.commit_with(&access, delete()).unwrap_err();
        assert_eq!(refused.code, RefusalCode::PermissionDenied);
        assert!(refused.message.contains("1 record") && !refused.message.contains("web"), "{refused:?}");
        let access = WriteAccess { records: Access::everything(), ..access };
        assert_eq!(server.commit_with(&access, delete()).unwrap().effects.len(), 2);
    }
}

#[test]
fn sg5_a_copy_of_another_store_cascades_nothing() {
    let mut server = with_rules(CASCADE, CASCADE);
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let copy = proto::CommitRequest { is_copy: true, ..of([delete_at(cluster_key("a"))]) };
    assert_eq!(effects(&mut server, copy), []);
    assert!(exists(&server, &routes_key("web")));
}

#[test]
fn sg5_sg16_a_prune_cascades() {
    let mut server = with_rules(CASCADE, CASCADE);
    let by_shop = |changes: Vec<proto::Change>| proto::CommitRequest { owner: "shop".into(), ..of(changes) };
    server.commit(by_shop(vec![cluster("a")])).unwrap();
    server.commit(of([routes("web", &["a"])])).unwrap();
    let prune = proto::CommitRequest { prune: true, ..by_shop(vec![cluster("b")]) };
    assert_eq!(effects(&mut server, prune), deleted(&["a", "web"]));
}

#[test]
fn sg11_a_cascade_that_can_end_at_a_block_is_accepted_with_a_warning_that_names_both() {
    let mut server = Server::new();
    let committed = server.commit(of([Rule::of_routes(CASCADE).put("routes")])).unwrap();
    assert_eq!(committed.warnings.len(), 1, "{committed:?}");
    assert!(
        committed.warnings[0].contains("the rule routes deletes")
            && committed.warnings[0].contains("listeners")
    );
    let committed = server.commit(of([Rule::of_listeners(BLOCK).put("listeners")])).unwrap();
    assert!(committed.warnings[0].ends_with("which the rule listeners can block"), "{committed:?}");
    assert_eq!(server.commit(of([cluster("a")])).unwrap().warnings, [""; 0]);
}

/// Routes that name one cluster.
fn many(count: usize) -> Vec<proto::Change> {
    let routes = (0..count).map(|number| routes(&format!("r{number:04}"), &["a"]));
    routes.chain([cluster("a")]).collect()
}

#[test]
fn sg8_a_deletion_with_more_than_1000_dependents_is_a_drain_in_paced_steps() {
    for on_delete in [CASCADE, UNSET] {
        let mut server = with_rules(on_delete, BLOCK);
        server.commit(of(many(1_000))).unwrap();
        let dry_run = proto::CommitRequest { dry_run: true, ..of([delete_at(cluster_key("a"))]) };
        assert_eq!(effects(&mut server, dry_run).len(), 1_000);
        server.commit(of(many(1_201))).unwrap();
        let begun = server.published.len();
        let committed = server.commit(of([delete_at(cluster_key("a"))])).unwrap();
        assert_eq!(committed.results[0].outcome, proto::Outcome::Deleting);
        assert_eq!((committed.effects.len(), committed.results[0].blocked_by.len()), (0, 20));
        server.wait(SECOND / 4);
        let step = server.published.last().unwrap();
        assert_eq!((&*step.entry.identity, step.changed.len()), ("drain", 500));
        // Commits go on, and the steps do not hurry.
        server.commit(of([put("x", "1")])).unwrap();
        assert_eq!(server.published.len(), begun + 3);
        server.wait(SECOND);
        assert!(!exists(&server, &cluster_key("a")));
        let steps: Vec<_> = server.published[begun..].iter().map(|commit| commit.changed.len()).collect();
        assert_eq!(steps, [1, 500, 1, 500, 202]);
        // Nothing is left to do.
        let before = server.engine_revision();
        server.wait(100 * SECOND);
        assert_eq!((server.engine_revision(), server.store.due()), (before, None));
    }
}

#[test]
fn sg8_a_drain_goes_on_after_a_crash_at_any_step_and_at_another_server() {
    let mut server = with_rules(CASCADE, BLOCK);
    server.commit(of([many(1_100), vec![listener("l", "r0003")]].concat())).unwrap();
    server.commit(of([delete_at(cluster_key("a"))])).unwrap();
    for number in 2..12 {
        server = Server::on(server.engine.clone(), number, server.now);
        // The step is not written, or written although nobody learns of it, and the server crashes.
        let fate = if number % 2 == 0 { Fate::Unavailable } else { Fate::WrittenUnknown };
        server.fates.push_back(fate);
        server.step(Event::Due);
        server.now += SECOND;
    }
    // One of them is blocked, and goes with what blocks it.
    assert!(exists(&server, &routes_key("r0003")) && exists(&server, &cluster_key("a")));
    assert_eq!(server.store.counts().0, 5);
    assert_eq!(effects(&mut server, of([delete_at(listener_key("l"))])), deleted(&["r0003", "a"]));
}

#[test]
fn sg8_a_cascade_over_10_000_records_finishes_wherever_it_is_killed() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for run in 1..=2 {
        let mut server = with_rules(CASCADE, CASCADE);
        server.commit(of(many(5_000))).unwrap();
        let listeners =
            (0..5_000).map(|number| listener(&format!("l{number}"), &format!("r{:04}", number / 2)));
        server.commit(of(listeners.collect::<Vec<_>>())).unwrap();
        server.commit(of([put("other", "1")])).unwrap();
        server.commit(of([delete_at(cluster_key("a"))])).unwrap();
        let (mut kills, mut left) = (0, server.store.counts().0);
        for number in 2.. {
            // xorshift
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if !exists(&server, &cluster_key("a")) {
                break;
            }
            assert!(number < 1_000, "run {run}: {} records are left", server.store.counts().0);
            let fate = match random % 4 {
                0 => Some(Fate::Unavailable),
                1 => Some(Fate::WrittenUnknown),
                _ => None,
            };
            server.fates.extend(fate);
            server.wait(i64::try_from(random / 4 % 4).unwrap() * SECOND / 4);
            if (random / 16).is_multiple_of(2) {
                kills += 1;
                server = Server::on(server.engine.clone(), number, server.now);
            }
            let now_left = server.store.counts().0;
            assert!(now_left <= left, "nothing comes back");
            left = now_left;
        }
        server.wait(5 * SECOND);
        assert!(kills >= 5, "run {run}: {kills} kills");
        // The two rules, and the record that nothing leads to.
        assert_eq!((server.store.counts().0, server.store.deleting_since()), (3, (0, None)), "run {run}");
        let findings = &mut |finding| panic!("{finding:?}");
        check_store(&*server.engine.view().unwrap(), findings).unwrap();
    }
}

#[test]
fn sg8_dependents_of_dependents_go_in_steps_too() {
    let mut server = with_rules(CASCADE, CASCADE);
    let listeners: Vec<_> = (0..1_100).map(|number| listener(&format!("l{number}"), "r0000")).collect();
    server.commit(of([many(2), listeners].concat())).unwrap();
    assert_eq!(server.outcome(of([delete_at(cluster_key("a"))])), proto::Outcome::Deleting);
    server.wait(5 * SECOND);
    assert_eq!((server.store.counts().0, server.store.due()), (2, None));
}

#[test]
fn sg8_sg12_a_new_rule_holds_for_a_deletion_in_progress() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    server.wait(SECOND);
    assert!(exists(&server, &cluster_key("a")));
    server.commit(of([Rule::of_routes(CASCADE).put("r")])).unwrap();
    server.wait(SECOND);
    assert!(!exists(&server, &routes_key("web")) && !exists(&server, &cluster_key("a")));
    // Or it allows what blocked.
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    assert_eq!(effects(&mut server, of([Rule::of_routes(proto::OnDelete::Allow).put("r")])), deleted(&["a"]));
}

#[test]
fn sg8_st39_a_lease_with_many_dependents_ends_as_a_drain() {
    let mut server = with_rules(CASCADE, BLOCK);
    let mut all = many(1_001);
    if let Some(proto::change::Act::Put(put)) = all.last_mut().and_then(|change| change.act.as_mut()) {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    server.commit(of(all)).unwrap();
    server.wait(10 * SECOND + SECOND / 4);
    assert!(exists(&server, &cluster_key("a")));
    check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
    server.wait(2 * SECOND);
    assert_eq!((server.store.counts().0, server.store.due()), (2, None));
}

#[test]
fn sg5_sg8_a_field_that_cannot_be_cleared_blocks() {
    let mut server = Server::with(Server::new().engine, SECOND, |config| {
        config.fields = xds_store::rules::FieldSource::new(|type_url, field| {
            let is_name = type_url == type_url::ROUTE_CONFIGURATION && field == "name";
            is_name.then(|| xds_core::FieldPath::new([1]))
        });
    });
    // Routes without their name are no resource.
    let rule = Rule { field: "name", target: TYPE, ..Rule::of_routes(UNSET) };
    server.commit(of([rule.put("names"), put("web", "1"), routes("web", &[])])).unwrap();
    let refused = server.commit(of([delete("web")])).unwrap_err();
    assert!(refused.message.ends_with("web (name): remove that first"), "{refused:?}");
    let drained = server.commit(of([drain_at(key("web", ""))])).unwrap();
    assert_eq!(drained.results[0].outcome, proto::Outcome::Deleting);
    server.wait(SECOND);
    assert_eq!(server.store.due(), None);
    assert_eq!(effects(&mut server, of([delete_at(routes_key("web"))])), deleted(&["web"]));
}

#[test]
fn sg7_sg8_all_variants_of_a_name_with_many_dependents_wait_together() {
    let mut server = with_rules(CASCADE, BLOCK);
    let variant = |when: &str| proto::Key { when: when.into(), ..cluster_key("a") };
    let put = |when: &str| proto::Change { key: Some(variant(when)), ..cluster("a") };
    let mut all = many(1_001);
    all.pop();
    server.commit(of([all, vec![put("env=prod"), put("env!=prod")]].concat())).unwrap();
    let both = of([delete_at(variant("env=prod")), delete_at(variant("env!=prod"))]);
    let outcomes: Vec<_> = server.commit(both).unwrap().results.iter().map(|result| result.outcome).collect();
    assert_eq!(outcomes, [proto::Outcome::Deleting; 2]);
    server.wait(5 * SECOND);
    assert_eq!(server.store.counts().0, 2);
}
