use std::io::Cursor;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, History};
use xds_store::commit::Draft;
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::read::{Filter, Knows, ListQuery, Payload, Reads, RecordVersion};
use xds_store::restore::{NewIds, restore};
use xds_store::store::{Action, Event, Ticket};
use xds_store::watch::{Watch, WatchError};

use crate::driven::*;

const DAY: i64 = 24 * 3600 * SECOND;

/// How many keys the engine has.
fn keys(server: &Server) -> usize {
    let mut keys = 0;
    let count = &mut |_: &[u8], _| {
        keys += 1;
        std::ops::ControlFlow::Continue(())
    };
    server.engine.view().unwrap().range(b"a", b"z", count).unwrap();
    keys
}

#[test]
fn st44_revisions_are_kept_for_their_time_and_the_floor_only_rises() {
    let mut server = Server::new();
    for number in 0..10 {
        server.commit(of([put("a", &number.to_string()), put("b", "1")])).unwrap();
        server.wait(DAY);
    }
    // Ten versions of one record, one of the other, ten entries, the head.
    assert_eq!(keys(&server), 22);
    // The entries that are 7 days old and older: those of the first four days.
    assert_eq!(server.compact(None), 4);
    assert_eq!(server.compact(None), 4);
    // One more says what is forgotten of the log of the node (SR18).
    assert_eq!(keys(&server), 22 - 4 - 3 + 1);
    assert_eq!(server.record("a", "").unwrap().content.unwrap().payload, "9");
    let view = server.engine.view().unwrap();
    assert!(matches!(Watch::after(3).next(&*view, 1), Err(WatchError::Compacted { floor: 4 })));
    assert_eq!(Watch::after(4).next(&*view, 1).unwrap()[0].revision, 5);
    // On request, earlier: but the state of the revision can still be read.
    assert_eq!(server.compact(Some(9)), 9);
    assert_eq!(
        keys(&server),
        1 + 1 + 2 + 1 + 1,
        "entry and version of revision 10, the one before, b, the floor"
    );
}

#[test]
fn sr27_a_server_that_restarts_each_night_forgets_deleted_records_too() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.commit(of([delete("a"), put("b", "1")])).unwrap();
    for _ in 0..9 {
        server.wait(DAY * 9 / 10);
        server = Server::on(server.engine.clone(), 1, server.now);
        server.compact(None);
    }
    assert_eq!(server.store.counts(), (1, 0));
}

/// Get of each record, and a list, as they are sent.
fn answers(server: &Server) -> Vec<Vec<u8>> {
    let view = server.engine.view().unwrap();
    let reads = Reads::new(&*view).unwrap();
    let filter = Filter::parse(None).unwrap();
    let query = ListQuery {
        filter: &filter,
        at: reads.head().revision,
        now: server.now,
        may_read: &|_| true,
        knows: Knows::ALL,
        after: None,
        taken: 0,
        limit: 100,
        limit_bytes: 1 << 20,
        scan_limit: 1_000,
    };
    let answer = |version: &RecordVersion| {
        let record = reads.answer(version, Payload::With).unwrap();
        assert!(record.changed_at.is_some(), "{record:?}");
        record.encode_to_vec()
    };
    let list = reads.list(query).unwrap().records;
    let get = list.iter().map(|version| answer(&reads.get(&version.key, server.now).unwrap().unwrap()));
    get.chain(list.iter().map(answer)).collect()
}

#[test]
fn st44_a_compaction_changes_no_answer() {
    let mut server = Server::new();
    let month = 30 * 24 * 3600;
    server.commit(of([put("a", "1"), put_lease("leased", "1", month), put("bad", "1")])).unwrap();
    server.wait(DAY);
    server.commit(of([put("b", "1"), quarantine("bad")])).unwrap();
    server.wait(12 * DAY);
    // It writes the version of the first commit again, whose time stays.
    assert_eq!(server.outcome(of([touch("leased")])), proto::Outcome::Touched);
    let before = answers(&server);
    assert_eq!(before.len(), 2 * 4);
    assert_eq!(server.compact(None), 2);
    assert_eq!(answers(&server), before);
    // A backup without the log has the times, too.
    let parts = Backup::new(server.engine.view().unwrap(), History::LeftOut).unwrap();
    let file: Vec<u8> = parts.flat_map(|part| part.unwrap().data).collect();
    let mut target = MemoryEngine::default();
    let ids = NewIds { node: "node".into(), cluster: None };
    restore(&mut Cursor::new(file), &mut target, &ids, &mut |_| {}).unwrap();
    server.engine = target;
    assert_eq!(answers(&server), before);
}

#[test]
fn st26_st44_what_a_list_may_read_is_kept_whatever_is_requested() {
    let mut server = Server::new();
    for number in 0..4 {
        server.commit(of([put("a", &number.to_string())])).unwrap();
        server.wait(2 * 60 * SECOND);
    }
    // Revision 1 was replaced 6 minutes ago, revision 2 was still current 4 minutes ago.
    assert_eq!(server.compact(Some(4)), 2);
}

#[test]
fn st44_the_number_of_revisions_is_limited() {
    let one = Server::new();
    let mut server = Server::with(one.engine, one.now, |config| config.history_revisions = 3);
    for number in 0..10 {
        server.commit(of([put("a", &number.to_string())])).unwrap();
    }
    server.wait(3600 * SECOND);
    assert_eq!(server.compact(None), 7);
}

#[test]
fn st44_a_compaction_goes_on_in_steps_and_lets_commits_through() {
    let one = Server::new();
    let mut server = Server::with(one.engine, one.now, |config| config.engine.operations = 10);
    for number in 0..30 {
        server.commit(of([put("a", &number.to_string())])).unwrap();
    }
    server.wait(10 * DAY);
    let before = server.engine_revision().0;
    assert_eq!(server.compact(None), 30);
    assert!(server.engine_revision().0 - before > 5, "several steps");
    assert_eq!(keys(&server), 3);
}

#[test]
fn sr27_a_deleted_record_is_forgotten_and_its_uid_is_never_used_again() {
    let mut server = Server::new();
    for _ in 0..3 {
        server.commit(of([put("a", "1")])).unwrap();
        server.commit(of([delete("a")])).unwrap();
    }
    assert_eq!(server.store.counts(), (0, 1));
    server.wait(8 * DAY);
    server.compact(None);
    assert_eq!((server.store.counts(), keys(&server)), ((0, 0), 2));
    server.commit(of([put("a", "1"), put("b", "1")])).unwrap();
    assert_eq!(server.record("a", "").unwrap().incarnation, 4);
    assert_eq!(server.record("b", "").unwrap().incarnation, 4);
}

#[test]
fn st43_the_batch_of_a_deletion_is_no_larger_than_the_store_has_counted() {
    let new = || {
        let mut server = Server::node("a-node-with-an-id-of-32-characters");
        let names: Vec<_> = (0..50).map(|number| number.to_string()).collect();
        server.commit(of(names.iter().map(|name| put(name, "1")).collect::<Vec<_>>())).unwrap();
        (server, of(names.iter().map(|name| delete(name)).collect::<Vec<_>>()))
    };
    let mut refused = 0;
    for limit in (16_000..48_000).step_by(500) {
        let (server, deletion) = new();
        let mut server = Server::with(server.engine, server.now, |config| {
            config.is_replicated = true;
            config.engine.bytes = limit;
        });
        let draft = Draft::parse(deletion, "test".into()).unwrap();
        let event = Event::Commit(Ticket(1), draft);
        let reader = server.engine.reader();
        for action in server.store.step(event, server.now, &*reader) {
            match action {
                Action::Write(batch) => assert!(batch.bytes() <= limit, "{limit}"),
                Action::Answer(_, answer) => refused += usize::from(answer.is_err()),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((1..64).contains(&refused), "{refused}");
}
