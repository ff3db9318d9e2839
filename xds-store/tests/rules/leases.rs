use prost_types::Timestamp;
use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::Engine;
use xds_store::store::{Action, Event, Ticket};

use crate::driven::*;

fn put_until(name: &str, seconds: i64) -> proto::CommitRequest {
    let expires_at = Some(Timestamp { seconds, nanos: 0 });
    let put = proto::Put { content: Some(content("1")), expires_at, ..Default::default() };
    of([change(name, "", proto::change::Act::Put(put))])
}

pub(crate) fn ended(server: &Server) -> Vec<(i64, String)> {
    let ended = server.published.iter().filter(|commit| commit.entry.identity == "expiry");
    ended.map(|commit| (commit.entry.time / SECOND, commit.entry.changes[0].key.name.clone())).collect()
}

#[test]
fn st36_a_record_is_absent_from_its_end_on_and_its_end_is_in_the_log_and_not_replicated() {
    let mut server = Server::new();
    server.commit(put_until("a", 10)).unwrap();
    assert_eq!(server.store.due(), Some(10 * SECOND));
    server.wait(8 * SECOND);
    assert!(server.record("a", "").is_some() && ended(&server).is_empty());
    server.wait(SECOND);
    assert_eq!(ended(&server), [(10, "a".to_owned())]);
    assert!(server.record("a", "").is_none());
    let entry = &server.published.last().unwrap().entry;
    assert_eq!((entry.counter, entry.changes[0].outcome()), (0, proto::Outcome::Expired));
    // The key can be created again, and is another one then (ST9, ST14).
    let again = only_if(proto::condition::Is::Absent(true), put("a", "2"));
    assert_eq!(server.outcome(of([again])), proto::Outcome::Created);
    assert_eq!(server.record("a", "").unwrap().incarnation, 2);
}

#[test]
fn st36_st39_variants_of_a_name_that_expire_and_end_with_a_lease_at_once_are_both_gone() {
    let mut server = Server::new();
    let put = |end: proto::Put| proto::change::Act::Put(proto::Put { content: Some(content("1")), ..end });
    let expires_at = Some(Timestamp { seconds: 31, nanos: 0 });
    let lease = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    let expiring = change("a", "env=prod", put(proto::Put { expires_at, ..Default::default() }));
    let leased = change("a", "env!=prod", put(proto::Put { lease, ..Default::default() }));
    server.commit(of([expiring, leased])).unwrap();
    server.wait(30 * SECOND);
    assert_eq!((server.store.counts(), server.store.due()), ((0, 2), None));
    assert_eq!(server.store.revision(), 3, "a commit for each, as only one of them is replicated");
    // The log names the states before.
    server.commit(of([put_when("a", "env=prod", "2"), put_when("a", "env!=prod", "2")])).unwrap();
    check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
}

#[test]
fn st36_the_clock_counts_even_before_the_end_is_in_the_log() {
    let mut server = Server::new();
    server.commit(put_until("a", 10)).unwrap();
    server.now = 20 * SECOND;
    assert_eq!(
        server.code(of([only_if(proto::condition::Is::Exists(true), put("a", "2"))])),
        RefusalCode::NotFound
    );
}

#[test]
fn st37_a_touch_renews_a_lease_and_changes_no_revision_and_makes_no_event() {
    let mut server = Server::new();
    let first = server.commit(of([put_lease("a", "1", 30)])).unwrap();
    // Before a third of the lease has passed, nothing is written (ST67).
    server.wait(9 * SECOND);
    let engine_revision = server.engine_revision();
    assert_eq!(server.outcome(of([touch("a")])), proto::Outcome::Touched);
    assert_eq!(server.engine_revision(), engine_revision);
    server.wait(11 * SECOND);
    let touched = server.commit(of([touch("a")])).unwrap();
    assert_eq!(touched.results[0].record, first.results[0].record);
    assert_eq!((touched.revision, server.published.len()), (1, 1));
    assert!(server.engine_revision() > engine_revision, "the renewal is durable");
    // 1 s at the start, and 20 s of waiting.
    server.wait(29 * SECOND);
    assert!(ended(&server).is_empty());
    server.wait(2 * SECOND);
    assert_eq!(ended(&server), [(51, "a".to_owned())]);
    assert_eq!(server.published.last().unwrap().entry.counter, 2, "other nodes get the end of a lease");
}

#[test]
fn st37_the_same_put_renews_a_lease_as_a_touch_does() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 30)])).unwrap();
    server.wait(20 * SECOND);
    assert_eq!(server.outcome(of([put_lease("a", "1", 30)])), proto::Outcome::Unchanged);
    server.wait(20 * SECOND);
    assert!(ended(&server).is_empty());
    assert_eq!(server.store.revision(), 1);
}

#[test]
fn st37_a_put_renews_a_lease_also_if_it_adds_an_owner_or_takes_over() {
    for take_over in [false, true] {
        for owner in ["x", "y"] {
            let put = |owner: &str, take_over| {
                let owner = owner.to_owned();
                proto::CommitRequest { owner, take_over, ..of([put_lease("a", "1", 30)]) }
            };
            let mut server = Server::new();
            server.commit(put("x", false)).unwrap();
            server.wait(20 * SECOND);
            server.commit(put(owner, take_over)).unwrap();
            server.wait(29 * SECOND);
            assert_eq!(ended(&server), [], "{owner}, {take_over}");
            server.wait(2 * SECOND);
            assert_eq!(ended(&server), [(51, "a".to_owned())], "{owner}, {take_over}");
        }
    }
}

#[test]
fn st38_a_touch_of_nothing_is_not_found_and_one_without_a_lease_is_refused() {
    let mut server = Server::new();
    server.commit(of([put("a", "1"), put_lease("b", "1", 5)])).unwrap();
    assert_eq!(server.code(of([touch("c")])), RefusalCode::NotFound);
    assert_eq!(server.code(of([touch("a")])), RefusalCode::FailedPrecondition);
    server.commit(of([delete("b")])).unwrap();
    assert_eq!(server.code(of([touch("b")])), RefusalCode::NotFound);
}

#[test]
fn st40_leases_start_again_with_the_server() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 30)])).unwrap();
    let mut later = Server::on(server.engine.clone(), 2, 1_000 * SECOND);
    later.wait(29 * SECOND);
    assert_eq!(later.outcome(of([touch("a")])), proto::Outcome::Touched);
    later.wait(29 * SECOND);
    assert!(ended(&later).is_empty());
    later.wait(2 * SECOND);
    assert_eq!(ended(&later).len(), 1);
}

#[test]
fn st40_a_lease_that_started_again_does_not_end_early_with_a_change_of_its_owners_or_a_quarantine() {
    let with_owner = |owner: &str, changes| proto::CommitRequest { owner: owner.into(), ..of([changes]) };
    let mut server = Server::new();
    for name in ["a", "b", "c"] {
        server.commit(with_owner("x", put_lease(name, "1", 30))).unwrap();
        server.commit(with_owner("y", put_lease(name, "1", 30))).unwrap();
    }
    // The states in the engine have ends that passed while no server ran.
    let mut later = Server::on(server.engine.clone(), 2, 1_000 * SECOND);
    later.commit(with_owner("z", put_lease("a", "1", 30))).unwrap();
    assert_eq!(later.outcome(with_owner("x", delete("b"))), proto::Outcome::Released);
    assert_eq!(later.outcome(of([quarantine("c")])), proto::Outcome::Quarantined);
    later.wait(29 * SECOND);
    assert_eq!(ended(&later), []);
    later.wait(2 * SECOND);
    assert_eq!(ended(&later), [(1_030, "a".to_owned())], "one commit for all three");
}

#[test]
fn st39_a_lease_that_another_server_renewed_does_not_end() {
    let mut one = Server::new();
    one.commit(of([put_lease("a", "1", 30)])).unwrap();
    let mut two = Server::on(one.engine.clone(), 2, one.now);
    one.wait(20 * SECOND);
    one.commit(of([touch("a")])).unwrap();
    // The other server was not called meanwhile: it reads the state before it ends a lease.
    two.wait(35 * SECOND);
    assert!(ended(&two).is_empty());
    assert!(two.record("a", "").is_some());
    two.wait(30 * SECOND);
    assert_eq!(ended(&two).len(), 1);
}

#[test]
fn st37_a_renewal_beside_a_change_of_another_variant_is_kept() {
    let mut server = Server::new();
    let lease = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    let leased = proto::Put { content: Some(content("1")), lease, ..Default::default() };
    server.commit(of([change("a", "env=prod", proto::change::Act::Put(leased))])).unwrap();
    server.wait(20 * SECOND);
    let touched = change("a", "env=prod", proto::change::Act::Touch(proto::Touch {}));
    server.commit(of([touched, put_when("a", "env!=prod", "2")])).unwrap();
    server.wait(20 * SECOND);
    assert!(ended(&server).is_empty());
    // Without a lease it does not end, and nothing is due any more.
    server.commit(of([put_when("a", "env=prod", "3")])).unwrap();
    assert_eq!(server.store.due(), None);
    server.wait(60 * SECOND);
    assert!(server.record("a", "env=prod").is_some());
}

#[test]
fn st37_a_touch_after_a_restart_is_written_when_a_third_of_the_stored_lease_has_passed() {
    let mut one = Server::new();
    one.commit(of([put_lease("a", "1", 60)])).unwrap();
    one.wait(45 * SECOND);
    let mut restarted = Server::on(one.engine.clone(), 2, one.now);
    restarted.commit(of([touch("a")])).unwrap();
    one.wait(20 * SECOND);
    assert!(ended(&one).is_empty(), "the other server sees the renewal");
}

#[test]
fn st36_a_full_disk_is_not_asked_all_the_time() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 5)])).unwrap();
    server.fates.extend([Fate::Full, Fate::Full]);
    server.wait(14 * SECOND);
    // At 6 s the lease has ended. The store looks for room again at 16 s and 26 s (ST22).
    assert_eq!(server.fates.len(), 1);
    server.wait(10 * SECOND);
    assert_eq!((server.fates.len(), ended(&server)), (0, Vec::new()));
    // Nobody could renew it meanwhile, so it starts again at 26 s (ST40).
    server.wait(10 * SECOND);
    assert_eq!(ended(&server), [(31, "a".to_owned())]);
}

#[test]
fn st17_st37_a_renewal_waits_for_the_batch_that_changes_its_record() {
    for act in [delete("a"), quarantine("a")] {
        let mut server = Server::new();
        for owner in ["x", "y"] {
            let request = proto::CommitRequest { owner: owner.into(), ..of([put_lease("a", "1", 15)]) };
            server.commit(request).unwrap();
        }
        server.wait(7 * SECOND);
        // The other two wait while the first one is written.
        let (reader, mut actions) = (server.engine.reader(), Vec::new());
        let left = proto::CommitRequest { owner: "x".into(), ..of([act]) };
        for (ticket, request) in (90..).zip([of([put("c", "1")]), left, of([touch("a")])]) {
            let draft = Draft::parse(request, "test".into()).unwrap();
            actions.extend(server.store.step(Event::Commit(Ticket(ticket), draft), server.now, &*reader));
        }
        let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
        let written = server.engine.commit(batch);
        server.step(Event::Written(written));
        for ticket in 90..93 {
            assert!(server.answers[&ticket].is_ok(), "{:?}", server.answers[&ticket]);
        }
        // The lease began again.
        server.wait(14 * SECOND);
        assert_eq!(server.store.counts(), (2, 0));
    }
}

#[test]
fn sr40_st40_a_lease_with_the_length_of_another_node_ends_no_earlier_than_its_date_after_a_start() {
    let mut shortened = 0;
    for number in 0..8 {
        let (mut a, mut b) = (Server::node("a"), Server::node("b"));
        // The clock of B is ahead, so the date of A is the earlier one.
        b.now += 600 * SECOND;
        a.commit(of([put_lease("x", "of a", 60)])).unwrap();
        b.commit(of([put_lease("x", &format!("of b {number}"), 10)])).unwrap();
        assert!(a.merge(b.entries_for(&a, 9)).is_empty());
        let state = a.record("x", "").unwrap();
        shortened += u32::from(state.lease.unwrap().seconds == 10);
        assert_eq!(state.renewed_by, "a");
        a.wait(SECOND);
        a.restart();
        a.wait(58 * SECOND);
        assert!(a.record("x", "").is_some(), "it lives for the 60 s that its client was promised");
        a.wait(10 * SECOND);
        assert!(a.record("x", "").is_none() || shortened == 0);
    }
    assert!(shortened > 0, "of one generation the smaller digest counts, with its length");
}
