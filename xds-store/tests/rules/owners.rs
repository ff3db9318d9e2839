use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::engine::Engine;
use xds_store::record::named_owners;
use xds_store::store::{Action, Event, Ticket};

use crate::driven::*;

fn by(owner: &str, changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { owner: owner.into(), ..of(changes) }
}

fn pruning(owner: &str, changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { prune: true, ..by(owner, changes) }
}

fn owners(server: &Server, name: &str) -> Vec<String> {
    let state = server.record(name, "");
    let mut owners: Vec<_> = state.iter().flat_map(|state| named_owners(state).map(str::to_owned)).collect();
    owners.sort();
    owners
}

#[test]
fn sr53_owners_are_kept_in_the_order_of_their_bytes() {
    let mut server = Server::new();
    for owner in ["folder", "shop", "web"] {
        server.commit(by(owner, [put("a", "1")])).unwrap();
    }
    // The length of a name comes before its text.
    let state = server.record("a", "").unwrap();
    assert_eq!(named_owners(&state).collect::<Vec<_>>(), ["web", "shop", "folder"]);
}

#[test]
fn sg14_a_commit_adds_its_owner_and_a_record_is_deleted_with_its_last_owner() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1")])).unwrap();
    // The same content joins: no new generation, but another revision.
    assert_eq!(server.outcome(by("ads", [put("a", "1")])), proto::Outcome::Updated);
    assert_eq!(owners(&server, "a"), ["ads", "shop"]);
    assert_eq!(server.record("a", "").unwrap().generation, 1);
    assert_eq!(server.outcome(by("ads", [put("a", "1")])), proto::Outcome::Unchanged);
    assert_eq!(server.outcome(by("ads", [delete("a")])), proto::Outcome::Released);
    assert_eq!(server.outcome(by("shop", [delete("a")])), proto::Outcome::Deleted);
}

#[test]
fn sg15_an_owner_that_takes_over_is_the_only_one() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1")])).unwrap();
    server.commit(proto::CommitRequest { take_over: true, ..by("ads", [put("a", "1")]) }).unwrap();
    assert_eq!(owners(&server, "a"), ["ads"]);
}

fn owned(refused: &Refused) -> Vec<(u32, Vec<String>)> {
    assert_eq!(refused.code, RefusalCode::FailedPrecondition, "{refused:?}");
    let of = |violation: &proto::Violation| match &violation.why {
        Some(proto::violation::Why::Owned(owned)) => (violation.change, owned.owners.clone()),
        why => panic!("{why:?}"),
    };
    refused.violations.iter().map(of).collect()
}

#[test]
fn sg15_only_its_owners_change_and_delete_a_record() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1"), put("b", "1"), put("c", "1")])).unwrap();
    server.commit(by("ads", [put("b", "1")])).unwrap();
    let before = server.engine_revision();
    // A joint owner may release, and may not change what the other one has.
    let refused = server.commit(by("ads", [put("a", "2"), put("b", "2"), delete("c")])).unwrap_err();
    let shop = vec!["shop".to_owned()];
    let both = vec!["ads".to_owned(), "shop".to_owned()];
    assert_eq!(owned(&refused), [(0, shop.clone()), (1, both), (2, shop)]);
    assert!(refused.message.ends_with("a belongs to shop"), "{refused:?}");
    for request in [of([put("a", "2")]), of([delete("a")]), by("ads", [delete("a")])] {
        assert_eq!(owned(&server.commit(request).unwrap_err()).len(), 1);
    }
    assert_eq!(server.engine_revision(), before);
    // The sole owner, a put of what is there, a touch and a quarantine.
    assert_eq!(server.outcome(of([put("a", "1")])), proto::Outcome::Unchanged);
    assert_eq!(server.outcome(by("shop", [put("a", "2")])), proto::Outcome::Updated);
    server.commit(by("shop", [put_lease("l", "1", 10)])).unwrap();
    assert_eq!(server.outcome(by("ads", [touch("l")])), proto::Outcome::Touched);
    assert_eq!(server.outcome(by("ads", [quarantine("a")])), proto::Outcome::Quarantined);
    // To end a quarantine is a change.
    assert_eq!(server.code(by("ads", [put("a", "2")])), RefusalCode::FailedPrecondition);
    assert_eq!(server.outcome(by("shop", [put("a", "2")])), proto::Outcome::Updated);
}

#[test]
fn sg15_who_takes_over_changes_and_deletes_records_of_others() {
    let mut server = Server::new();
    let taking = |request| proto::CommitRequest { take_over: true, ..request };
    server.commit(by("shop", [put("a", "1"), put("b", "1")])).unwrap();
    server.commit(taking(by("ads", [put("a", "2")]))).unwrap();
    assert_eq!(owners(&server, "a"), ["ads"]);
    // Without an owner, the owners stay.
    assert_eq!(server.outcome(taking(of([put("a", "3")]))), proto::Outcome::Updated);
    assert_eq!(owners(&server, "a"), ["ads"]);
    assert_eq!(server.outcome(taking(of([delete("a")]))), proto::Outcome::Deleted);
    assert_eq!(server.outcome(taking(by("ads", [delete("b")]))), proto::Outcome::Deleted);
}

#[test]
fn sg15_st60_one_of_the_owners_changes_a_record_if_it_says_so() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1"), put("b", "1")])).unwrap();
    server.commit(by("folder", [put("a", "1")])).unwrap();
    let mut sharing = |changes: [proto::Change; 1]| {
        let draft = Draft::parse(by("folder", changes), "test".into()).unwrap();
        let ticket = server.draft(draft.as_one_of_the_owners());
        server.answers.remove(&ticket).unwrap()
    };
    assert_eq!(sharing([put("a", "2")]).unwrap().results[0].outcome, proto::Outcome::Updated);
    assert_eq!(owned(&sharing([put("b", "2")]).unwrap_err()).len(), 1);
    assert_eq!(owners(&server, "a"), ["folder", "shop"]);
}

#[test]
fn sg15_st8_owners_come_after_conditions_and_before_ambiguity() {
    let mut server = Server::new();
    server.commit(by("shop", [put_when("a", "env=prod", "1"), put("b", "1")])).unwrap();
    let ambiguous = put("a", "1");
    let absent = only_if(proto::condition::Is::Absent(true), put("b", "2"));
    assert_eq!(server.code(of([ambiguous.clone(), put("b", "2"), absent])), RefusalCode::InvalidArgument);
    assert_eq!(owned(&server.commit(of([ambiguous, put("b", "2")])).unwrap_err()).len(), 1);
    let absent = only_if(proto::condition::Is::Absent(true), put("b", "2"));
    assert_eq!(server.code(of([absent])), RefusalCode::AlreadyExists);
}

#[test]
fn sg15_an_owner_of_an_earlier_commit_of_the_batch_counts() {
    let mut server = Server::new();
    let requests = [of([put("x", "1")]), by("shop", [put("a", "1")]), by("ads", [put("a", "2")])];
    let answers = server.together(requests);
    assert_eq!(owned(answers[2].as_ref().unwrap_err()), [(0, vec!["shop".to_owned()])]);
}

#[test]
fn sg16_a_prune_releases_what_the_owner_has_and_the_commit_does_not_put() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1"), put("b", "1"), put("c", "1")])).unwrap();
    server.commit(by("ads", [put("b", "1"), put("x", "1")])).unwrap();
    let pruned = server.commit(pruning("shop", [put("c", "1")])).unwrap();
    let effects: Vec<_> =
        pruned.effects.iter().map(|effect| (effect.key.name().to_string(), effect.result.outcome)).collect();
    let expected = [("a".to_owned(), proto::Outcome::Deleted), ("b".to_owned(), proto::Outcome::Released)];
    assert_eq!(effects, expected);
    // Again it changes nothing.
    let again = server.commit(pruning("shop", [put("c", "1")])).unwrap();
    assert_eq!((again.revision, again.effects.len()), (pruned.revision, 0));
    // A server that loads the store has the owners, too.
    let mut later = Server::on(server.engine.clone(), 2, server.now);
    assert_eq!(later.commit(pruning("shop", [])).unwrap().effects.len(), 1);
}

#[test]
fn sg16_st17_a_prune_leaves_out_what_another_commit_of_its_batch_deleted() {
    let mut server = Server::new();
    server.commit(by("shop", [put("a", "1"), put("b", "1")])).unwrap();
    // The other two wait while the first one is written.
    let (reader, mut actions) = (server.engine.reader(), Vec::new());
    for (ticket, request) in (90..).zip([of([put("c", "1")]), by("shop", [delete("a")]), pruning("shop", [])])
    {
        let draft = Draft::parse(request, "test".into()).unwrap();
        actions.extend(server.store.step(Event::Commit(Ticket(ticket), draft), server.now, &*reader));
    }
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let written = server.engine.commit(batch);
    server.step(Event::Written(written));
    let effects = &server.answers[&92].as_ref().unwrap().effects;
    assert_eq!(effects.iter().map(|effect| effect.key.to_proto()).collect::<Vec<_>>(), [key("b", "")]);
}
