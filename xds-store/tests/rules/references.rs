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
    use xds_store::commit::Draft;
    use xds_store::engine::Engine;
    use xds_store::store::{Action, Event, Ticket};

    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"])])).unwrap();
    let (reader, mut actions) = (server.engine.reader(), Vec::new());
    let requests = [of([cluster("c")]), of([routes("web", &["b"])])];
    let deletes = [of([delete_at(cluster_key("b"))]), of([delete_at(cluster_key("a"))])];
    for (ticket, request) in (90..).zip(requests.into_iter().chain(deletes)) {
        let draft = Draft::parse(request, "test".into()).unwrap();
        actions.extend(server.store.step(Event::Commit(Ticket(ticket), draft), server.now, &*reader));
    }
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let written = server.engine.commit(batch);
    server.step(Event::Written(written));
    assert_eq!(referred(server.answers[&92].as_ref().unwrap_err()).1, 1);
    assert!(server.answers[&93].is_ok(), "{:?}", server.answers[&93]);
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
