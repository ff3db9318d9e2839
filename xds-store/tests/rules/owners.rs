use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
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
    server.record(name, "").iter().flat_map(|state| named_owners(state).map(str::to_owned)).collect()
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
    assert_eq!(server.outcome(by("ads", [put("a", "2")])), proto::Outcome::Updated);
    assert_eq!(owners(&server, "a"), ["ads", "shop"], "a change of content keeps the owners");
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
    for (ticket, request) in (90..).zip([of([put("c", "1")]), of([delete("a")]), pruning("shop", [])]) {
        let draft = Draft::parse(request, "test".into()).unwrap();
        actions.extend(server.store.step(Event::Commit(Ticket(ticket), draft), server.now, &*reader));
    }
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let written = server.engine.commit(batch);
    server.step(Event::Written(written));
    let effects = &server.answers[&92].as_ref().unwrap().effects;
    assert_eq!(effects.iter().map(|effect| effect.key.to_proto()).collect::<Vec<_>>(), [key("b", "")]);
}
