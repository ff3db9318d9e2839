use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::Engine;
use xds_store::key::RecordKey;
use xds_store::record::served;
use xds_store::store::{Action, Config, Event, Store, Ticket};

use crate::driven::envoy::*;
use crate::driven::*;

/// The state of a record as the engine has it.
fn state(server: &Server, key: &proto::Key) -> Option<proto::RecordState> {
    let (view, key) = (server.engine.view().unwrap(), RecordKey::parse(key).unwrap());
    let mut found = None;
    Store::load(&*view, Config::new(server.engine.limits(), 9), server.now, |loaded| {
        if loaded.key == key {
            found = Some(loaded.state);
        }
    })
    .unwrap();
    found
}

fn lifecycle(server: &Server, key: &proto::Key) -> proto::State {
    state(server, key).unwrap().lifecycle()
}

fn outcomes(server: &mut Server, request: proto::CommitRequest) -> (Vec<proto::Outcome>, Vec<String>) {
    let committed = server.commit(request).unwrap();
    let effects = committed.effects.iter().map(|effect| {
        assert_eq!(effect.result.outcome, proto::Outcome::Deleted, "{effect:?}");
        effect.key.name().to_string()
    });
    (committed.results.iter().map(|result| result.outcome).collect(), effects.collect())
}

#[test]
fn sg7_sg9_a_blocked_deletion_waits_and_the_record_is_served_meanwhile() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a"]), routes("old", &["a"])])).unwrap();
    let before = server.engine_revision();
    let dry_run = proto::CommitRequest { dry_run: true, ..of([drain_at(cluster_key("a"))]) };
    assert_eq!(server.outcome(dry_run), proto::Outcome::Deleting);
    assert_eq!(server.engine_revision(), before);
    let committed = server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    let result = &committed.results[0];
    assert_eq!((result.outcome, result.blocked_by.len()), (proto::Outcome::Deleting, 2));
    assert_eq!(result.blocked_by[0].field, "virtual_hosts.routes.route.cluster");
    let deleting = state(&server, &cluster_key("a")).unwrap();
    assert!(deleting.lifecycle() == proto::State::Deleting && served(&deleting).is_some());
    // It refuses puts and new references, also with `allow_missing`, and is not deleted without drain.
    assert_eq!(server.code(of([cluster("a")])), RefusalCode::FailedPrecondition);
    for allow_missing in [false, true] {
        let request = proto::CommitRequest { allow_missing, ..of([routes("new", &["a"])]) };
        let refused = server.commit(request).unwrap_err();
        let Some(proto::violation::Why::MissingTarget(missing)) = &refused.violations[0].why else {
            panic!("{refused:?}")
        };
        assert!(missing.is_deleting && refused.message.ends_with("which is being deleted"), "{refused:?}");
    }
    assert_eq!(server.code(of([delete_at(cluster_key("a"))])), RefusalCode::FailedPrecondition);
    // Again it changes nothing.
    let again = server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    assert_eq!((again.results[0].outcome, again.revision), (proto::Outcome::Deleting, committed.revision));
    // What refers to it may change in other ways.
    server.commit(of([routes("web", &["a", "b"])])).unwrap();
    assert_eq!(outcomes(&mut server, of([routes("web", &["b"])])).1, [""; 0]);
    assert_eq!(lifecycle(&server, &cluster_key("a")), proto::State::Deleting);
    // SG9: it goes with the last blocker, in the same commit, and may be created again.
    assert_eq!(outcomes(&mut server, of([delete_at(routes_key("old"))])).1, ["a"]);
    assert_eq!(lifecycle(&server, &cluster_key("a")), proto::State::Deleted);
    assert_eq!(server.outcome(of([cluster("a")])), proto::Outcome::Created);
}

#[test]
fn sg7_a_deletion_that_nothing_blocks_does_not_wait() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let both = of([drain_at(cluster_key("a")), drain_at(routes_key("web"))]);
    assert_eq!(outcomes(&mut server, both).0, [proto::Outcome::Deleted; 2]);
    assert_eq!(server.outcome(of([drain_at(cluster_key("a"))])), proto::Outcome::Absent);
}

#[test]
fn sg7_what_a_waiting_record_names_waits_too_and_all_go_with_the_root() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"]), listener("l", "web")])).unwrap();
    // The routes wait for the listener. Without drain, the cluster cannot go before them.
    let mixed = of([delete_at(cluster_key("a")), drain_at(routes_key("web"))]);
    assert_eq!(server.code(mixed), RefusalCode::FailedPrecondition);
    let both = of([drain_at(cluster_key("a")), drain_at(routes_key("web"))]);
    assert_eq!(outcomes(&mut server, both).0, [proto::Outcome::Deleting; 2]);
    let root = key_of(type_url::LISTENER, "l");
    assert_eq!(outcomes(&mut server, of([delete_at(root)])).1, ["web", "a"]);
    assert_eq!(server.store.counts().0, 0);
}

#[test]
fn sg7_a_deletion_begins_and_ends_in_one_commit_if_the_commit_removes_what_blocks_it() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"]), listener("l", "web")])).unwrap();
    server.commit(of([drain_at(routes_key("web"))])).unwrap();
    let root = key_of(type_url::LISTENER, "l");
    let (results, effects) = outcomes(&mut server, of([drain_at(cluster_key("a")), delete_at(root)]));
    assert_eq!((results, effects), (vec![proto::Outcome::Deleted; 2], vec!["web".to_owned()]));
    assert_eq!(server.store.counts().0, 0);
}

#[test]
fn sg7_all_variants_of_a_name_wait_together() {
    let mut server = Server::new();
    let variant = |when: &str| proto::Key { when: when.into(), ..cluster_key("a") };
    let put = |when: &str| proto::Change { key: Some(variant(when)), ..cluster("a") };
    server.commit(of([put("env=prod"), put("env!=prod"), routes("web", &["a"])])).unwrap();
    // One of two goes at once: the name still exists (SG2).
    assert_eq!(server.outcome(of([drain_at(variant("env=prod"))])), proto::Outcome::Deleted);
    server.commit(of([put("env=prod")])).unwrap();
    let both = of([drain_at(variant("env=prod")), drain_at(variant("env!=prod"))]);
    assert_eq!(outcomes(&mut server, both).0, [proto::Outcome::Deleting; 2]);
    assert_eq!(outcomes(&mut server, of([delete_at(routes_key("web"))])).1, ["a", "a"]);
}

#[test]
fn sg7_sg15_only_an_owner_drains_and_nobody_owns_what_waits() {
    let mut server = Server::new();
    let by = |owner: &str, changes: Vec<proto::Change>| proto::CommitRequest {
        owner: owner.into(),
        ..of(changes)
    };
    server.commit(by("shop", vec![cluster("a")])).unwrap();
    server.commit(of([routes("web", &["a"])])).unwrap();
    assert_eq!(server.code(of([drain_at(cluster_key("a"))])), RefusalCode::FailedPrecondition);
    let taking = proto::CommitRequest { take_over: true, ..of([drain_at(cluster_key("a"))]) };
    assert_eq!(server.outcome(taking), proto::Outcome::Deleting);
    // A prune would be refused because of it otherwise.
    let prune = proto::CommitRequest { prune: true, ..by("shop", vec![cluster("b")]) };
    assert_eq!(server.commit(prune).unwrap().effects, []);
}

#[test]
fn sg8_a_deletion_goes_on_after_a_restart_and_at_another_server() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let mut other = Server::on(server.engine.clone(), 2, server.now);
    server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    other.step(Event::Changed);
    assert_eq!(other.code(of([routes("new", &["a"])])), RefusalCode::FailedPrecondition);
    let mut later = Server::on(server.engine.clone(), 3, server.now);
    assert_eq!(outcomes(&mut later, of([delete_at(routes_key("web"))])).1, ["a"]);
    other.step(Event::Changed);
    assert_eq!(other.outcome(of([cluster("a")])), proto::Outcome::Created);
}

#[test]
fn sg8_a_crash_in_the_commit_that_ends_a_deletion_halves_nothing() {
    for is_written in [false, true] {
        let mut server = Server::new();
        server.commit(of([eds_cluster("a", "e"), endpoints("e"), routes("web", &["a"])])).unwrap();
        server.commit(of([drain_at(cluster_key("a"))])).unwrap();
        let draft = Draft::parse(of([delete_at(routes_key("web"))]), "test".into()).unwrap();
        let reader = server.engine.reader();
        let actions = server.store.step(Event::Commit(Ticket(0), draft), server.now, &*reader);
        if let (true, [Action::Write(batch)]) = (is_written, &actions[..]) {
            server.engine.commit(batch).unwrap();
        }
        let mut later = Server::on(server.engine.clone(), 2, server.now);
        assert_eq!(later.store.counts().0, if is_written { 0 } else { 3 });
        later.commit(of([delete_at(routes_key("web"))])).unwrap();
        // The endpoints go with their cluster (SG5).
        assert_eq!(later.store.counts().0, 0);
    }
}

#[test]
fn sg7_st17_a_deletion_that_an_earlier_commit_of_the_batch_began_ends() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let answers = server.together([
        of([cluster("x")]),
        of([drain_at(cluster_key("a"))]),
        of([routes("new", &["a"])]),
        of([delete_at(routes_key("web"))]),
        of([cluster("a")]),
    ]);
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().err().map(|refused| refused.code)).collect();
    assert_eq!(codes, [None, None, Some(RefusalCode::FailedPrecondition), None, None]);
    assert_eq!(answers[3].as_ref().unwrap().effects.len(), 1);
}

#[test]
fn sg7_st39_a_deletion_ends_with_the_lease_of_its_last_blocker() {
    let mut server = Server::new();
    let mut leased = routes("web", &["a"]);
    if let Some(proto::change::Act::Put(put)) = &mut leased.act {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    server.commit(of([cluster("a"), leased])).unwrap();
    server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    server.wait(11 * SECOND);
    assert_eq!(server.store.counts().0, 0);
}

#[test]
fn sg10_the_store_says_since_when_the_oldest_deletion_waits() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), cluster("b"), routes("web", &["a", "b"])])).unwrap();
    assert_eq!(server.store.deleting_since(), (0, None));
    let since = server.now;
    server.commit(of([drain_at(cluster_key("a"))])).unwrap();
    server.wait(60 * SECOND);
    server.commit(of([drain_at(cluster_key("b"))])).unwrap();
    assert_eq!(server.store.deleting_since(), (2, Some(since)));
    let later = Server::on(server.engine.clone(), 2, server.now);
    assert_eq!(later.store.deleting_since(), (2, Some(since)));
    server.commit(of([delete_at(routes_key("web"))])).unwrap();
    assert_eq!(server.store.deleting_since(), (0, None));
}
