use xds_proto::xds::store::v1 as proto;
use xds_store::record::served;

use crate::driven::*;

fn serves(server: &Server, name: &str) -> Option<String> {
    let state = server.record(name, "")?;
    let payload = served(&state)?.payload.to_vec();
    Some(String::from_utf8(payload).unwrap())
}

#[test]
fn a_quarantined_generation_is_replaced_by_the_last_good_content() {
    let mut server = Server::new();
    server.commit(of([put("a", "good")])).unwrap();
    server.commit(of([put("a", "bad")])).unwrap();
    // A change of owners lies between the generations.
    server.commit(proto::CommitRequest { owner: "shop".into(), ..of([put("a", "bad")]) }).unwrap();
    assert_eq!(server.outcome(of([quarantine("a")])), proto::Outcome::Quarantined);
    assert_eq!(serves(&server, "a").as_deref(), Some("good"));
    assert_eq!(server.outcome(of([quarantine("a")])), proto::Outcome::Unchanged, "the first reason stays");
    // Of a generation that was quarantined itself, what was served in its place is good.
    server.commit(proto::CommitRequest { owner: "shop".into(), ..of([put("a", "worse")]) }).unwrap();
    assert_eq!(serves(&server, "a").as_deref(), Some("worse"));
    server.commit(of([quarantine("a")])).unwrap();
    assert_eq!(serves(&server, "a").as_deref(), Some("good"));
}

#[test]
fn st13_st14_a_put_ends_a_quarantine_even_with_the_same_content() {
    let mut server = Server::new();
    assert_eq!(server.outcome(of([quarantine("a")])), proto::Outcome::Absent);
    server.commit(of([put("a", "1")])).unwrap();
    server.commit(of([quarantine("a")])).unwrap();
    assert_eq!(serves(&server, "a"), None, "there is no content before the first");
    assert_eq!(server.outcome(of([put("a", "1")])), proto::Outcome::Updated);
    assert_eq!(serves(&server, "a").as_deref(), Some("1"));
    assert_eq!(server.record("a", "").unwrap().generation, 2);
}

#[test]
fn st67_a_quarantined_record_exists_and_is_deleted_by_a_delete() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.commit(of([quarantine("a")])).unwrap();
    let exists = proto::condition::Is::Exists(true);
    assert_eq!(server.outcome(of([only_if(exists, delete("a"))])), proto::Outcome::Deleted);
}

#[test]
fn a_quarantine_in_the_batch_of_its_put_finds_the_content_before() {
    let mut server = Server::new();
    server.commit(of([put("a", "good")])).unwrap();
    let reader = xds_store::engine::Engine::reader(&server.engine);
    // Both wait for the batch of another commit.
    let mut batches = Vec::new();
    for (number, change) in [put("x", "1"), put("a", "bad"), quarantine("a")].into_iter().enumerate() {
        let draft = xds_store::commit::Draft::parse(of([change]), "me".into()).unwrap();
        let event = xds_store::store::Event::Commit(xds_store::store::Ticket(100 + number as u64), draft);
        batches.extend(server.store.step(event, server.now, &*reader));
    }
    let [xds_store::store::Action::Write(batch)] = &batches[..] else { panic!("{batches:?}") };
    let written = xds_store::engine::Engine::commit(&mut server.engine, batch);
    server.step(xds_store::store::Event::Written(written));
    assert_eq!(serves(&server, "a").as_deref(), Some("good"));
}

#[test]
fn st44_the_content_before_is_served_although_its_entry_is_forgotten() {
    let mut server = Server::new();
    server.commit(of([put("a", "good")])).unwrap();
    server.wait(30 * 24 * 3600 * SECOND);
    assert_eq!(server.compact(None), 1);
    server.commit(of([put("a", "bad")])).unwrap();
    server.commit(of([quarantine("a")])).unwrap();
    assert_eq!(serves(&server, "a").as_deref(), Some("good"));
}
