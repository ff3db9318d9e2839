use std::ops::ControlFlow;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::engine::{Batch, Engine, MemoryEngine, Value};
use xds_store::store::{Event, Store};

use crate::driven::*;

fn two() -> (Server, Server) {
    let one = Server::new();
    let two = Server::on(one.engine.clone(), 2, one.now);
    (one, two)
}

#[test]
fn st19_a_commit_is_judged_again_on_what_another_server_left() {
    let (mut one, mut two) = two();
    let first = one.commit(of([put("a", "1")])).unwrap();
    let revision = first.results[0].record.unwrap().0.to_string();
    // The other server has not read it yet.
    let update = only_if(proto::condition::Is::Revision(revision), put("a", "2"));
    assert_eq!(two.commit(of([update.clone()])).unwrap().revision, 2);
    assert_eq!(two.published.iter().map(|commit| commit.revision).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(one.code(of([update])), RefusalCode::Aborted);
    assert_eq!(one.store.revision(), 2);
}

#[test]
fn st19_entries_of_another_server_are_applied_when_the_engine_reports_them() {
    let (mut one, mut two) = two();
    let changes = [put_when("a", "env=prod", "1"), put_when("a", "env!=prod", "2")];
    one.commit(of(changes)).unwrap();
    one.commit(of([delete("b"), put("c", "1")])).unwrap();
    two.step(Event::Changed);
    assert_eq!(two.published.iter().map(|commit| commit.changed.len()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(two.store.counts(), one.store.counts());
    assert_eq!(two.code(of([put_when("a", "env=staging", "3")])), RefusalCode::FailedPrecondition);
}

#[test]
fn st19_a_deleted_record_that_another_server_forgot_is_forgotten() {
    let week = 7 * 24 * 3600 * SECOND;
    let (mut one, mut two) = two();
    one.commit(of([put("a", "1"), put("b", "1"), put("c", "1")])).unwrap();
    one.commit(of([delete("a")])).unwrap();
    one.commit(of([delete("b")])).unwrap();
    two.step(Event::Changed);
    // A server that is started now finds the deleted records in the order of keys.
    let mut later = Server::on(one.engine.clone(), 3, one.now);
    one.commit(of([put("b", "2")])).unwrap();
    one.commit(of([delete("b")])).unwrap();
    two.step(Event::Changed);
    later.step(Event::Changed);
    one.wait(week + SECOND);
    one.compact(None);
    assert_eq!(one.store.counts(), (1, 0));
    for server in [&mut two, &mut later] {
        server.step(Event::Changed);
        assert_eq!(server.store.counts(), one.store.counts());
    }
    two.commit(of([put("a", "1"), put("b", "1")])).unwrap();
    assert_clean(&two);
}

#[test]
fn st19_a_server_that_fell_behind_the_log_says_so_and_refuses() {
    let (mut one, mut two) = two();
    one.commit(of([put("a", "1")])).unwrap();
    one.commit(of([put("a", "2")])).unwrap();
    one.wait(8 * 24 * 3600 * SECOND);
    one.compact(None);
    assert_eq!(two.code(of([put("b", "1")])), RefusalCode::Unavailable);
    assert!(two.store.has_lost_log() && two.store.is_idle() && two.published.is_empty());
    // It is not due, so a program that cannot load it again yet is not called all the time.
    assert_eq!((two.store.due(), two.store.read_only()), (None, None));
    assert_eq!(two.code(of([put("b", "1")])), RefusalCode::Unavailable);
}

/// Somebody removes all keys of the store.
fn empty(engine: &MemoryEngine) {
    let mut keys = Vec::new();
    let each = &mut |key: &[u8], _: Value| {
        keys.push((Bytes::copy_from_slice(key), None));
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"", b"\xff", each).unwrap();
    engine.clone().commit(&Batch { compares: Vec::new(), writes: keys }).unwrap();
}

#[test]
fn st21_a_store_whose_keys_were_removed_is_read_only_and_says_so() {
    // The engine reports it, or the next commit finds it.
    for is_reported in [true, false] {
        let mut server = Server::new();
        server.commit(of([put("a", "1")])).unwrap();
        empty(&server.engine);
        if is_reported {
            server.step(Event::Changed);
            assert!(server.store.read_only().is_some());
        }
        let refused = server.commit(of([put("b", "1")])).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Unavailable);
        let reason = server.store.read_only().unwrap();
        assert!(reason.contains("removed the keys") && reason.contains("restore a backup"), "{reason}");
        assert!(refused.message.contains(reason), "{refused:?}");
        // Clients keep what they have, and nothing is written to what may be the store of somebody else.
        let key = put("a", "1").key.unwrap();
        assert!(server.has_client(&key));
        assert!(server.engine.view().unwrap().get(Store::head_key()).unwrap().is_none());
        assert_eq!((server.store.due(), server.store.is_idle()), (None, true));
    }
}

#[test]
fn st21_a_commit_whose_outcome_is_not_known_when_the_keys_are_removed_is_unknown() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.fates.push_back(Fate::LostUnknown);
    empty(&server.engine);
    assert_eq!(server.code(of([put("b", "1")])), RefusalCode::Unknown);
    assert!(server.store.read_only().is_some());
    assert_eq!(server.code(of([put("a", "1")])), RefusalCode::Unavailable);
}

#[test]
fn st48_a_record_that_is_created_where_another_server_forgot_a_deleted_one_has_no_state_before() {
    let (mut one, mut two) = two();
    one.commit(of([put("z", "1"), put("a", "1")])).unwrap();
    one.commit(of([delete("z")])).unwrap();
    let day = 24 * 3600 * SECOND;
    one.wait(7 * day);
    one.commit(of([delete("a")])).unwrap();
    // This one hears of both deletions at once, and of the one that is forgotten then.
    two.now = one.now;
    two.step(Event::Changed);
    one.wait(day / 2);
    one.compact(None);
    assert_eq!(one.store.counts(), (0, 1));
    two.step(Event::Changed);
    assert_eq!(two.store.counts(), (0, 1));
    two.commit(of([put("z", "2")])).unwrap();
    assert_clean(&two);
}

/// Nothing is found by a check of the store.
fn assert_clean(server: &Server) {
    let mut found = Vec::new();
    xds_store::check::check_store(&*server.engine.view().unwrap(), &mut |finding| found.push(finding))
        .unwrap();
    assert_eq!(found, []);
}

#[test]
fn st20_a_commit_that_was_applied_is_found_although_the_engine_did_not_report_it() {
    let mut server = Server::new();
    server.fates.push_back(Fate::WrittenUnknown);
    let committed = server.commit(of([put("a", "1")])).unwrap();
    assert_eq!((committed.revision, server.published.len()), (1, 1));
    // The next one follows it.
    assert_eq!(server.commit(of([put("a", "2")])).unwrap().revision, 2);
}

#[test]
fn st20_a_commit_that_was_not_applied_is_written_once_more() {
    let mut server = Server::new();
    server.fates.extend([Fate::LostUnknown, Fate::LostUnknown]);
    assert_eq!(server.commit(of([put("a", "1")])).unwrap().revision, 1);
    assert_eq!(server.published.len(), 1);
}

#[test]
fn st20_a_batch_that_arrives_late_is_applied_once() {
    let mut server = Server::new();
    // The first attempt is lost; of the second one, written again, the report is lost.
    server.fates.extend([Fate::LostUnknown, Fate::WrittenUnknown]);
    assert_eq!(server.commit(of([put("a", "1")])).unwrap().revision, 1);
    assert_eq!(server.commit(of([put("a", "2")])).unwrap().revision, 2);
}

#[test]
fn st20_a_commit_that_another_server_overtook_is_judged_again() {
    let (mut one, mut two) = two();
    two.commit(of([put("a", "1")])).unwrap();
    // The engine loses the batch and its report: its condition can never hold any more.
    one.fates.push_back(Fate::LostUnknown);
    let absent = only_if(proto::condition::Is::Absent(true), put("a", "2"));
    assert_eq!(one.code(of([absent])), RefusalCode::AlreadyExists);
    one.fates.push_back(Fate::LostUnknown);
    assert_eq!(one.commit(of([put("b", "1")])).unwrap().revision, 2);
}

#[test]
fn st20_after_ten_seconds_the_outcome_is_unknown_and_the_store_goes_on() {
    let mut server = Server::new();
    let unknown = std::iter::repeat_n(Fate::LostUnknown, 1);
    server.fates.extend(unknown);
    server.now += 1;
    // The machine gives up when a report comes after 10 s.
    let draft = xds_store::commit::Draft::parse(of([put("a", "1")]), "me".into()).unwrap();
    let reader = Engine::reader(&server.engine);
    let lost = || Event::Written(Err(xds_store::engine::EngineError::Unknown("lost".into())));
    let ticket = xds_store::store::Ticket(7);
    server.store.step(Event::Commit(ticket, draft), server.now, &*reader);
    server.store.step(lost(), server.now, &*reader);
    let actions = server.store.step(lost(), server.now + 11 * SECOND, &*reader);
    let [xds_store::store::Action::Answer(_, Err(refused))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(refused.code, RefusalCode::Unknown);
    server.fates.clear();
    assert_eq!(server.commit(of([put("a", "2")])).unwrap().revision, 1);
}

#[test]
fn st20_the_outcome_is_unknown_if_the_log_is_forgotten_before_it_is_read() {
    let (mut one, mut two) = two();
    let draft = xds_store::commit::Draft::parse(of([put("a", "1")]), "me".into()).unwrap();
    let reader = two.engine.reader();
    let actions = two.store.step(Event::Commit(xds_store::store::Ticket(7), draft), two.now, &*reader);
    let [xds_store::store::Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    // It is applied, and the server is paused before it gets the report, which is lost.
    two.engine.commit(batch).unwrap();
    one.commit(of([put("b", "1")])).unwrap();
    one.wait(8 * 24 * 3600 * SECOND);
    one.compact(None);
    let lost = Event::Written(Err(xds_store::engine::EngineError::Unknown("lost".into())));
    let actions = two.store.step(lost, one.now, &*reader);
    let [xds_store::store::Action::Answer(_, Err(refused))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(refused.code, RefusalCode::Unknown);
    assert!(two.store.has_lost_log());
}

#[test]
fn an_engine_that_cannot_be_reached_refuses_and_the_next_commit_succeeds() {
    let mut server = Server::new();
    server.fates.extend([Fate::Unavailable, Fate::Full]);
    assert_eq!(server.code(of([put("a", "1")])), RefusalCode::Unavailable);
    assert_eq!(server.code(of([put("a", "1")])), RefusalCode::ResourceExhausted);
    assert_eq!(server.commit(of([put("a", "1")])).unwrap().revision, 1);
}

/// An engine with the same content, such as an etcd that was restored from a snapshot.
fn copy(of: &MemoryEngine) -> MemoryEngine {
    let mut writes = Vec::new();
    let each = &mut |key: &[u8], value: Value| {
        writes.push((key.to_vec().into(), Some(value.bytes)));
        ControlFlow::Continue(())
    };
    of.view().unwrap().range(b"", b"\xff", each).unwrap();
    let mut engine = MemoryEngine::default();
    engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
    engine
}

#[test]
fn st19_a_server_that_was_away_while_the_engine_was_restored_loads_the_store_again() {
    for missed in 0..3 {
        let (mut one, mut away) = two();
        one.commit(of([put("a", "1")])).unwrap();
        let snapshot = copy(&one.engine);
        one.commit(of([put("b", "lost")])).unwrap();
        away.step(Event::Changed);
        assert_eq!(away.store.revision(), 2);
        // It goes on from the snapshot, at the same revisions.
        let mut one = Server::on(snapshot.clone(), 3, one.now);
        one.commit(of([put("c", "1")])).unwrap();
        for _ in 0..missed {
            one.commit(of([put(&format!("d{}", one.store.revision()), "1")])).unwrap();
        }
        away.engine = snapshot;
        away.step(Event::Changed);
        assert!(away.store.has_lost_log(), "{missed}");
        assert_eq!(away.code(of([put("e", "1")])), RefusalCode::Unavailable);
        assert_eq!(
            (away.published.len(), away.store.read_only()),
            (2, None),
            "what it has is of another history"
        );
    }
}

#[test]
fn st19_a_server_that_was_restarted_or_compacted_knows_the_history_it_has() {
    let mut one = Server::new();
    one.commit(of([put("a", "1")])).unwrap();
    one.now += 7 * 24 * 3600 * SECOND + SECOND;
    let mut two = Server::on(one.engine.clone(), 2, one.now);
    one.commit(of([put("a", "2")])).unwrap();
    one.compact(Some(1));
    two.step(Event::Changed);
    one.commit(of([put("a", "3")])).unwrap();
    two.step(Event::Changed);
    assert_eq!((two.store.revision(), two.store.has_lost_log()), (3, false));
    two.commit(of([put("a", "4")])).unwrap();
    one.step(Event::Changed);
    assert_eq!((one.store.revision(), one.store.has_lost_log()), (4, false));
}

#[test]
fn st22_after_a_full_disk_the_store_finds_out_by_itself_that_there_is_room() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.fates.extend([Fate::Full, Fate::Full, Fate::Unavailable]);
    assert_eq!(server.code(of([put("a", "2")])), RefusalCode::ResourceExhausted);
    let before = server.engine_revision();
    server.wait(29 * SECOND);
    assert_eq!((server.fates.len(), server.engine_revision()), (0, before));
    server.wait(2 * SECOND);
    assert_eq!(server.engine_revision().0, before.0 + 1);
    assert_eq!((server.store.revision(), server.store.due()), (1, None), "it is no commit");
    assert_eq!(server.commit(of([put("a", "2")])).unwrap().revision, 2);
}

#[test]
fn st20_st41_a_clock_that_went_back_does_not_keep_an_outcome_unknown() {
    let mut server = Server::new();
    server.now = 10_000 * SECOND;
    server.commit(of([put("a", "1")])).unwrap();
    server.now -= 600 * SECOND;
    server.fates.extend([Fate::LostUnknown, Fate::Full]);
    let ticket = server.request(of([put("a", "2")])).unwrap();
    assert!(!server.answers.contains_key(&ticket));
    server.wait(SECOND);
    assert_eq!(server.answers[&ticket].as_ref().unwrap().revision, 2);
}

#[test]
fn st22_a_full_disk_while_an_outcome_is_unknown_is_not_for_ever() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.fates.push_back(Fate::LostUnknown);
    server.fates.extend([Fate::Full; 200]);
    let ticket = server.request(of([put("a", "2")])).unwrap();
    server.wait(11 * SECOND);
    assert_eq!(server.answers[&ticket].as_ref().unwrap_err().code, RefusalCode::Unknown);
    server.fates.clear();
    let before = server.engine_revision();
    server.wait(11 * SECOND);
    assert_eq!(server.engine_revision().0, before.0 + 1, "it has found out that there is room");
}

#[test]
fn st43_a_commit_that_is_too_large_for_the_engine_is_refused_and_others_go_into_batches_of_their_own() {
    let one = Server::new();
    let mut server = Server::with(one.engine, one.now, |config| config.engine.operations = 8);
    let many =
        |count: usize| of((0..count).map(|number| put(&format!("n{number}"), "1")).collect::<Vec<_>>());
    assert_eq!(server.code(many(7)), RefusalCode::ResourceExhausted);
    assert_eq!(server.commit(many(6)).unwrap().revision, 1);
    // Each of these takes two writes, so they need more than one batch.
    let reader = Engine::reader(&server.engine);
    let mut writes = Vec::new();
    for number in 0..6 {
        let draft =
            xds_store::commit::Draft::parse(of([put(&format!("m{number}"), "1")]), "me".into()).unwrap();
        let event = Event::Commit(xds_store::store::Ticket(100 + number), draft);
        writes.extend(server.store.step(event, server.now, &*reader));
    }
    let [xds_store::store::Action::Write(batch)] = &writes[..] else { panic!("{writes:?}") };
    let written = Engine::commit(&mut server.engine, batch);
    server.step(Event::Written(written));
    assert_eq!((server.answers.len(), server.store.revision()), (6, 7));
}

#[test]
fn st18_a_store_that_is_halted_accepts_no_commits() {
    let mut server = Server::new();
    server.step(Event::Halt("the cache refused".into()));
    let refused = server.commit(of([put("a", "1")])).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Unavailable);
    assert!(refused.message.contains("the cache refused"));
}

#[test]
fn st20_an_error_after_a_lost_report_is_no_refusal() {
    let mut server = Server::new();
    // The first attempt was applied, and its report is lost; nothing is known of it meanwhile.
    server.fates.extend([Fate::LostUnknown, Fate::Unavailable]);
    let ticket = server.request(of([put("a", "1")])).unwrap();
    assert!(server.answers.is_empty(), "the first attempt may still be applied");
    server.wait(SECOND);
    assert!(server.answers.remove(&ticket).unwrap().is_ok());
    assert_eq!(server.store.revision(), 1);
}
