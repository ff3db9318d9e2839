use xds_store::engine::Engine;
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
    assert_eq!(keys(&server), 22 - 4 - 3);
    assert_eq!(server.record("a", "").unwrap().content.unwrap().payload, "9");
    let view = server.engine.view().unwrap();
    assert!(matches!(Watch::after(3).next(&*view, 1), Err(WatchError::Compacted { floor: 4 })));
    assert_eq!(Watch::after(4).next(&*view, 1).unwrap()[0].revision, 5);
    // On request, earlier: but the state of the revision can still be read.
    assert_eq!(server.compact(Some(9)), 9);
    assert_eq!(keys(&server), 1 + 1 + 2 + 1, "the entry and the version of revision 10, the one before, b");
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
    assert_eq!(keys(&server), 2);
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
    assert_eq!((server.store.counts(), keys(&server)), ((0, 0), 1));
    server.commit(of([put("a", "1"), put("b", "1")])).unwrap();
    assert_eq!(server.record("a", "").unwrap().incarnation, 4);
    assert_eq!(server.record("b", "").unwrap().incarnation, 4);
}
