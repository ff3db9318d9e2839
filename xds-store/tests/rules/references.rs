use xds_core::{Access, NamePatterns};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused, WriteAccess};

use crate::driven::envoy::*;
use crate::driven::*;

fn referred(refused: &Refused) -> (Vec<(String, String)>, u64) {
    assert_eq!(refused.code, RefusalCode::FailedPrecondition, "{refused:?}");
    match &refused.violations[0].why {
        Some(proto::violation::Why::Referred(referred)) => {
            let by = |by: &proto::Reference| (by.source.clone().unwrap().name, by.field.clone());
            (referred.by.iter().map(by).collect(), referred.count)
        }
        why => panic!("{why:?}"),
    }
}

const FIELD: &str = "virtual_hosts.routes.route.cluster";

#[test]
fn sg4_a_cluster_that_routes_name_stays() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a", "a", "b"])])).unwrap();
    let before = server.engine_revision();
    let refused = server.commit(of([cluster("c"), delete_at(cluster_key("a"))])).unwrap_err();
    assert_eq!(referred(&refused), (vec![("web".to_owned(), FIELD.to_owned())], 1));
    assert_eq!(refused.violations[0].change, 1);
    assert_eq!(refused.violations[0].key, Some(cluster_key("a")));
    assert!(refused.message.contains(&format!("web ({FIELD}): remove that first")), "{refused:?}");
    // ST15.
    let dry_run = proto::CommitRequest { dry_run: true, ..of([delete_at(cluster_key("a"))]) };
    assert_eq!(server.code(dry_run), RefusalCode::FailedPrecondition);
    assert_eq!(server.engine_revision(), before);
    server.commit(of([routes("web", &["b"])])).unwrap();
    server.commit(of([delete_at(cluster_key("a"))])).unwrap();
}

#[test]
fn sg4_st10_a_route_and_its_cluster_go_together() {
    let mut server = Server::new();
    for change in [delete_at(routes_key("web")), routes("web", &["b"])] {
        server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
        server.commit(of([delete_at(cluster_key("a")), change])).unwrap();
    }
}

#[test]
fn sg4_a_target_stays_for_references_that_were_written_in_the_same_batch() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
    let answers = server.together([
        of([cluster("c")]),
        of([routes("web", &["b"])]),
        of([delete_at(cluster_key("b"))]),
        of([delete_at(cluster_key("a"))]),
    ]);
    assert_eq!(referred(answers[2].as_ref().unwrap_err()).1, 1);
    assert!(answers[3].is_ok(), "{answers:?}");
}

#[test]
fn sg2_a_target_exists_while_any_of_its_variants_does() {
    let mut server = Server::new();
    let variant = |when: &str| {
        let mut change = cluster("a");
        change.key.as_mut().unwrap().when = when.into();
        change
    };
    let delete = |when: &str| delete_at(proto::Key { when: when.into(), ..cluster_key("a") });
    server.commit(of([variant("env=prod"), variant("env!=prod"), routes("web", &["a"])])).unwrap();
    server.commit(of([delete("env=prod")])).unwrap();
    assert_eq!(referred(&server.commit(of([delete("env!=prod")])).unwrap_err()).1, 1);
    // Another variant takes its place.
    server.commit(of([delete("env!=prod"), cluster("a")])).unwrap();
    // Each variant of the referrer counts.
    server.commit(of([delete_at(routes_key("web"))])).unwrap();
    let variants = [routes_when("web", "env=prod", &["a"]), routes_when("web", "env!=prod", &["a"])];
    server.commit(of(variants)).unwrap();
    let refused = server.commit(of([delete_at(cluster_key("a"))])).unwrap_err();
    assert_eq!(referred(&refused).1, 2);
}

#[test]
fn sg2_a_quarantined_record_refers_by_its_content_and_by_what_is_served_in_its_place() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
    server.commit(of([routes("web", &["b"])])).unwrap();
    let quarantine = proto::change::Act::Quarantine(proto::Quarantine::default());
    let withheld = proto::Change { key: Some(routes_key("web")), act: Some(quarantine), condition: None };
    server.commit(of([withheld])).unwrap();
    for name in ["a", "b"] {
        assert_eq!(referred(&server.commit(of([delete_at(cluster_key(name))])).unwrap_err()).1, 1, "{name}");
    }
    // A server that loads the store knows that, too.
    let mut later = Server::on(server.engine.clone(), 2, server.now);
    for name in ["a", "b"] {
        assert_eq!(later.code(of([delete_at(cluster_key(name))])), RefusalCode::FailedPrecondition, "{name}");
    }
}

#[test]
fn sg4_a_server_knows_references_that_another_one_committed() {
    let mut one = Server::new();
    one.commit(of([cluster("a")])).unwrap();
    let mut two = Server::on(one.engine.clone(), 2, one.now);
    one.commit(of([routes("web", &["a"])])).unwrap();
    two.step(xds_store::store::Event::Changed);
    assert_eq!(referred(&two.commit(of([delete_at(cluster_key("a"))])).unwrap_err()).1, 1);
}

#[test]
fn sg4_st54_a_refusal_lists_twenty_referrers_that_the_client_may_read() {
    let mut server = Server::new();
    let many: Vec<_> = (0..30).map(|number| routes(&format!("web-{number:02}"), &["a"])).collect();
    let secret = (0..30).map(|number| routes(&format!("secret-{number:02}"), &["a"]));
    server.commit(of([vec![cluster("a")], many, secret.collect()].concat())).unwrap();
    let names = |patterns: &[&str]| {
        Access::nothing().with_every_type(&patterns.iter().copied().collect::<NamePatterns>())
    };
    let access = |read| WriteAccess { records: Access::everything(), configuration: false, read };
    let delete = || of([delete_at(cluster_key("a"))]);
    let (by, count) = referred(&server.commit_with(&access(names(&["web-*"])), delete()).unwrap_err());
    assert_eq!((by.len(), count), (20, 60));
    assert!(by.iter().all(|(name, field)| name.starts_with("web-") && field == FIELD), "{by:?}");
    let refused = server.commit_with(&access(Access::nothing()), delete()).unwrap_err();
    assert_eq!(referred(&refused), (Vec::new(), 60));
    assert!(refused.message.contains("is used by 60 records") && !refused.message.contains("secret"));
}

#[test]
fn sg4_st54_a_prune_that_is_refused_does_not_name_a_record_that_the_client_may_not_read() {
    let mut server = Server::new();
    server.commit(proto::CommitRequest { owner: "shop".into(), ..of([cluster("hidden")]) }).unwrap();
    server.commit(of([routes("web", &["hidden"])])).unwrap();
    let prune = proto::CommitRequest { owner: "shop".into(), prune: true, ..of([put("x", "1")]) };
    let read = Access::nothing();
    let access = WriteAccess { records: Access::everything(), configuration: false, read };
    let refused = server.commit_with(&access, prune.clone()).unwrap_err();
    assert_eq!(refused.violations[0].key, None);
    assert_eq!(refused.message, "a record of this owner is used by 1 record: remove that first");
    assert_eq!(server.commit(prune).unwrap_err().violations[0].key, Some(cluster_key("hidden")));
}

#[test]
fn sg1_a_copy_of_another_store_is_not_judged() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let copy = proto::CommitRequest { is_copy: true, ..of([delete_at(cluster_key("a"))]) };
    server.commit(copy).unwrap();
}

fn missing(refused: &Refused) -> Vec<(u32, String, String)> {
    assert_eq!(refused.code, RefusalCode::FailedPrecondition, "{refused:?}");
    let of = |violation: &proto::Violation| match &violation.why {
        Some(proto::violation::Why::MissingTarget(missing)) => {
            (violation.change, missing.target.clone().unwrap().name, missing.field.clone())
        }
        why => panic!("{why:?}"),
    };
    refused.violations.iter().map(of).collect()
}

#[test]
fn sg3_a_new_reference_leads_to_a_record_that_exists_after_the_commit() {
    let mut server = Server::new();
    let request = of([cluster("a"), routes("web", &["a", "b", "c"]), listener("l", "other")]);
    let refused = server.commit(request).unwrap_err();
    let rds = "filter_chains.filters.typed_config.rds.route_config_name";
    let expected = [(1, "b", FIELD), (1, "c", FIELD), (2, "other", rds)];
    let expected = expected.map(|(number, name, field)| (number, name.to_owned(), field.to_owned()));
    assert_eq!(missing(&refused), expected);
    assert!(refused.message.contains("allow missing targets"), "{refused:?}");
    assert_eq!(server.store.revision(), 0);
    // The order of changes has no meaning.
    server.commit(of([listener("l", "web"), routes("web", &["a"]), cluster("a")])).unwrap();
    // A target that goes with the commit does not exist after it.
    let refused = server.commit(of([delete_at(cluster_key("a")), routes("new", &["a"])])).unwrap_err();
    assert_eq!(refused.violations.len(), 2, "{refused:?}");
    assert!(matches!(refused.violations[0].why, Some(proto::violation::Why::MissingTarget(_))));
    assert!(matches!(refused.violations[1].why, Some(proto::violation::Why::Referred(_))));
}

#[test]
fn sg3_references_that_a_record_had_before_are_not_judged_again() {
    let mut server = Server::new();
    let request = of([cluster("a"), routes("web", &["a", "static"])]);
    let committed = server.commit(proto::CommitRequest { allow_missing: true, ..request }).unwrap();
    assert_eq!(committed.warnings.len(), 1, "{committed:?}");
    assert!(committed.warnings[0].contains(&format!("static ({FIELD}), which does not exist")));
    assert_eq!(server.commit(of([routes("web", &["static", "a", "a"])])).unwrap().warnings, [""; 0]);
    assert_eq!(missing(&server.commit(of([routes("web", &["static", "b"])])).unwrap_err()).len(), 1);
    // Another variant and another record have not had it.
    server.commit(of([delete_at(routes_key("web")), routes_when("web", "env=prod", &["a"])])).unwrap();
    let again = [routes_when("web", "env=prod", &["static"]), routes("other", &["static"])];
    assert_eq!(missing(&server.commit(of(again)).unwrap_err()).len(), 2);
}

#[test]
fn sg3_allowed_references_and_other_types_are_not_judged() {
    let mut server = Server::new();
    let eds = eds_cluster("a", "elsewhere");
    assert_eq!(server.commit(of([eds, put("x", "1")])).unwrap().warnings, [""; 0]);
}

#[test]
fn sg3_warnings_are_limited() {
    let mut server = Server::new();
    let names: Vec<_> = (0..500).map(|number| format!("c{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let request = proto::CommitRequest { allow_missing: true, ..of([routes("web", &names)]) };
    let warnings = server.commit(request).unwrap().warnings;
    assert_eq!(warnings.len(), 21);
    assert_eq!(warnings[20], "480 more references lead to what does not exist");
    let refused = server.commit(of([routes("other", &names)])).unwrap_err();
    assert_eq!(refused.violations.len(), 500);
}

#[test]
fn sg3_a_target_that_exists_until_an_earlier_commit_of_the_batch_is_missing() {
    let mut server = Server::new();
    server.commit(of([cluster("a")])).unwrap();
    let answers =
        server.together([of([cluster("c")]), of([delete_at(cluster_key("a"))]), of([routes("web", &["a"])])]);
    assert_eq!(missing(answers[2].as_ref().unwrap_err()).len(), 1);
    let answers = server.together([of([put("x", "1")]), of([cluster("a")]), of([routes("web", &["a"])])]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn st42_a_record_has_a_limit_of_references() {
    let names: Vec<_> = (0..10_001).map(|number| format!("{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut server = Server::new();
    let refused = server.commit(of([routes("web", &names)])).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceExhausted);
    assert!(refused.message.contains("references of a record: 10001 exceeds the limit of 10000"));
}

/// What a commit did to records that it did not name.
fn effects(server: &mut Server, request: proto::CommitRequest) -> Vec<(proto::Key, proto::Outcome)> {
    let effects = server.commit(request).unwrap().effects;
    effects.iter().map(|effect| (effect.key.to_proto(), effect.result.outcome)).collect()
}

fn exists(server: &Server, key: &proto::Key) -> bool {
    server.store.exists(&xds_store::key::RecordKey::parse(key).unwrap())
}

#[test]
fn sg5_endpoints_go_with_the_last_cluster_that_names_them() {
    let mut server = Server::new();
    server
        .commit(of([eds_cluster("a", "e"), eds_cluster("b", "e"), endpoints("e"), endpoints("x")]))
        .unwrap();
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("a"))])), []);
    // A cluster that names others now does not take them along.
    assert_eq!(effects(&mut server, of([eds_cluster("b", "x")])), []);
    server.commit(of([eds_cluster("b", "e")])).unwrap();
    let dry_run = proto::CommitRequest { dry_run: true, ..of([delete_at(cluster_key("b"))]) };
    let collected = [(endpoints_key("e"), proto::Outcome::Deleted)];
    assert_eq!(effects(&mut server, dry_run), collected);
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("b"))])), collected);
    assert!(!exists(&server, &endpoints_key("e")) && exists(&server, &endpoints_key("x")));
    // No cluster is deleted for lack of endpoints.
    server.commit(of([eds_cluster("c", "x")])).unwrap();
    assert_eq!(effects(&mut server, of([delete_at(endpoints_key("x"))])), []);
    assert!(exists(&server, &cluster_key("c")));
}

#[test]
fn sg5_endpoints_stay_if_an_owner_keeps_them_or_the_commit_changes_them_or_the_client_may_not() {
    let mut server = Server::new();
    let restore = |server: &mut Server| {
        server.commit(of([eds_cluster("a", "e"), eds_cluster("b", "e"), endpoints("e")])).unwrap();
    };
    let both = || vec![delete_at(cluster_key("a")), delete_at(cluster_key("b"))];
    restore(&mut server);
    // Together with a put of the same content, which changes nothing.
    assert_eq!(effects(&mut server, of([both(), vec![endpoints("e")]].concat())), []);
    restore(&mut server);
    assert_eq!(effects(&mut server, of([both(), vec![eds_cluster("c", "e")]].concat())), []);
    server.commit(of([eds_cluster("c", "x")])).unwrap();
    restore(&mut server);
    let records = Access::nothing().with_every_type(&["a", "b"].into_iter().collect());
    let access = WriteAccess { records, configuration: false, read: Access::everything() };
    assert_eq!(server.commit_with(&access, of(both())).unwrap().effects, []);
    restore(&mut server);
    server.commit(proto::CommitRequest { owner: "eds".into(), ..of([endpoints("e")]) }).unwrap();
    assert_eq!(effects(&mut server, of(both())), []);
    restore(&mut server);
    let released = proto::CommitRequest { owner: "eds".into(), ..of([delete_at(endpoints_key("e"))]) };
    server.commit(released).unwrap();
    restore(&mut server);
    let copy = proto::CommitRequest { is_copy: true, ..of(both()) };
    assert_eq!(effects(&mut server, copy), []);
    assert!(exists(&server, &endpoints_key("e")));
}

#[test]
fn sg5_all_variants_of_a_target_are_collected_or_none() {
    let mut server = Server::new();
    let variant = |when: &str| {
        let mut change = endpoints("e");
        change.key.as_mut().unwrap().when = when.into();
        change
    };
    let all = || of([eds_cluster("a", "e"), variant("env=prod"), variant("env!=prod")]);
    server.commit(all()).unwrap();
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("a"))])).len(), 2);
    server.commit(all()).unwrap();
    server.commit(proto::CommitRequest { owner: "eds".into(), ..of([variant("env=prod")]) }).unwrap();
    assert_eq!(effects(&mut server, of([delete_at(cluster_key("a"))])), []);
}

#[test]
fn sg5_st39_endpoints_go_with_a_cluster_whose_lease_ends() {
    let mut server = Server::new();
    let mut leased = eds_cluster("a", "e");
    if let Some(proto::change::Act::Put(put)) = &mut leased.act {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    let request = of([leased, endpoints("e"), routes("web", &["a"])]);
    server.commit(request).unwrap();
    server.wait(11 * SECOND);
    // The end of a lease is not held by references.
    assert!(!exists(&server, &cluster_key("a")) && !exists(&server, &endpoints_key("e")));
    assert!(exists(&server, &routes_key("web")));
    let last = server.published.last().unwrap();
    assert_eq!((&*last.entry.identity, last.changed.len()), ("expiry", 2));
}

#[test]
fn sg5_st17_a_cluster_of_an_earlier_commit_of_the_batch_keeps_its_endpoints() {
    let mut server = Server::new();
    server.commit(of([eds_cluster("a", "e"), endpoints("e")])).unwrap();
    let answers = server.together([
        of([cluster("x")]),
        of([eds_cluster("b", "e")]),
        of([delete_at(cluster_key("a"))]),
        of([delete_at(cluster_key("b"))]),
    ]);
    let counts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().effects.len()).collect();
    assert_eq!(counts, [0, 0, 0, 1]);
}
