//! ST40: leases after a time in which nobody could renew them.

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::{Engine, EngineError, Reader, View};
use xds_store::store::{Action, Event, Ticket};

use crate::driven::*;
use crate::leases::ended;

#[test]
fn st40_after_an_outage_of_the_engine_leases_start_again() {
    for fate in [Fate::Full, Fate::Unavailable] {
        let mut server = Server::new();
        server.commit(of([put_lease("a", "1", 30), put_lease("b", "1", 30)])).unwrap();
        server.wait(20 * SECOND);
        server.fates.extend([fate; 1_000]);
        for _ in 0..4 {
            assert!(server.commit(of([touch("a")])).is_err());
            server.wait(15 * SECOND);
        }
        assert_eq!(ended(&server), []);
        // The owner of A is the first one that comes back.
        server.fates.clear();
        assert_eq!(server.outcome(of([touch("a")])), proto::Outcome::Touched);
        server.wait(29 * SECOND);
        assert_eq!(ended(&server), [], "{fate:?}");
        assert_eq!(server.outcome(of([touch("b")])), proto::Outcome::Touched);
        server.wait(29 * SECOND);
        assert_eq!(ended(&server), [(111, "a".to_owned())], "{fate:?}");
    }
}

#[test]
fn st40_the_store_finds_out_by_itself_that_an_outage_is_over_and_then_leases_start_again() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 30)])).unwrap();
    server.fates.extend([Fate::Unavailable; 21]);
    assert_eq!(server.code(of([put("b", "1")])), RefusalCode::Unavailable);
    // It looks each second once the lease should have ended, at 31 s.
    server.wait(45 * SECOND);
    assert_eq!(server.fates.len(), 4);
    server.wait(34 * SECOND);
    assert_eq!((server.fates.len(), ended(&server)), (0, Vec::new()));
    server.wait(2 * SECOND);
    assert_eq!(ended(&server), [(81, "a".to_owned())]);
}

#[test]
fn st40_st20_leases_start_again_after_a_time_in_which_an_outcome_was_unknown() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 5)])).unwrap();
    server.wait(4 * SECOND);
    server.fates.extend([Fate::LostUnknown, Fate::Full, Fate::Full, Fate::Full]);
    server.request(of([put("b", "1")])).unwrap();
    server.wait(4 * SECOND);
    assert_eq!((server.fates.len(), server.store.revision(), ended(&server)), (0, 2, Vec::new()));
}

/// An engine that cannot be read.
#[derive(Debug)]
struct Unreadable;

impl Reader for Unreadable {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Err(EngineError::Unavailable("no route".into()))
    }
}

#[test]
fn st40_st19_leases_start_again_if_the_log_of_a_faster_server_could_not_be_read() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 5)])).unwrap();
    server.wait(4 * SECOND);
    let draft = Draft::parse(of([put("b", "1")]), "test".into()).unwrap();
    let reader = server.engine.reader();
    let actions = server.store.step(Event::Commit(Ticket(90), draft), server.now, &*reader);
    assert!(matches!(actions[..], [Action::Write(_)]), "{actions:?}");
    let conflict = Event::Written(Err(EngineError::Conflict));
    assert!(server.store.step(conflict, server.now, &Unreadable).is_empty());
    server.wait(4 * SECOND);
    assert_eq!((server.store.revision(), ended(&server)), (2, Vec::new()));
}

#[test]
fn st40_leases_start_again_after_a_pause_of_the_server_and_a_jump_of_the_clock() {
    for seconds in [10, 100, 10_000] {
        let mut server = Server::new();
        server.commit(of([put_lease("a", "1", 30), put_lease("b", "1", 30)])).unwrap();
        server.wait(25 * SECOND);
        server.now += seconds * SECOND;
        server.commit(of([touch("a")])).unwrap();
        server.wait(29 * SECOND);
        assert_eq!(ended(&server), [], "{seconds}");
        server.wait(SECOND);
        assert_eq!(ended(&server).len(), 1, "{seconds}: both at once");
    }
}

#[test]
fn st40_leases_start_again_after_a_jump_of_the_clock_of_another_server_of_the_store() {
    let mut one = Server::new();
    one.commit(of([put_lease("a", "1", 30)])).unwrap();
    let mut two = Server::on(one.engine.clone(), 2, one.now);
    two.now += 1_000 * SECOND;
    two.commit(of([put("b", "1")])).unwrap();
    one.step(Event::Changed);
    one.wait(28 * SECOND);
    assert_eq!(ended(&one), []);
}

#[test]
fn st40_a_touch_that_waited_for_a_write_comes_before_the_end_of_its_lease() {
    let mut server = Server::new();
    server.commit(of([put_lease("a", "1", 5), put_lease("b", "1", 5)])).unwrap();
    server.wait(4 * SECOND);
    // A write takes 2 s.
    let reader = server.engine.reader();
    let draft = |request| Draft::parse(request, "test".into()).unwrap();
    let event = Event::Commit(Ticket(90), draft(of([put("c", "1")])));
    let actions = server.store.step(event, server.now, &*reader);
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let written = server.engine.commit(batch);
    server.now += 2 * SECOND;
    let event = Event::Commit(Ticket(91), draft(of([touch("a")])));
    assert!(server.store.step(event, server.now, &*reader).is_empty());
    server.step(Event::Written(written));
    server.wait(4 * SECOND);
    assert!(server.answers[&91].is_ok(), "{:?}", server.answers[&91]);
    assert_eq!(ended(&server), [(7, "b".to_owned())]);
}
