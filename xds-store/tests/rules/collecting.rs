//! When a store forgets deleted records.

use std::io::Cursor;

use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, History};
use xds_store::clock::{Chain, Clock, Position};
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::restore::{NewIds, restore};
use xds_store::store::Event;

use super::nodes::{HOUR, counters, remember};
use crate::driven::*;

/// How many deleted records a store still has, once it has forgotten what it may.
fn kept(server: &mut Server) -> usize {
    server.compact(Some(server.store.revision()));
    server.store.counts().1
}

/// A node with one deleted record, at its revision 2.
fn with_deleted(change: proto::Change) -> Server {
    let mut server = Server::node("a");
    server.commit(of([change])).unwrap();
    server.commit(of([delete("x"), put("y", "1")])).unwrap();
    server.wait(600 * SECOND);
    server
}

fn put_until(name: &str, seconds: i64) -> proto::Change {
    let mut change = put(name, "1");
    if let Some(proto::change::Act::Put(put)) = &mut change.act {
        put.expires_at = Some(prost_types::Timestamp { seconds, nanos: 0 });
    }
    change
}

#[test]
fn sr25_sr26_a_deleted_record_is_kept_while_the_node_runs_for_24_h() {
    let mut server = with_deleted(put("x", "1"));
    assert_eq!(kept(&mut server), 1);
    // A cluster that was stopped for months starts as it stopped.
    for _ in 0..3 {
        server.now += 60 * 24 * HOUR;
        server.restart();
        assert_eq!(kept(&mut server), 1);
    }
    // One that is restarted each hour, while it does nothing, comes forward all the same.
    let mut hours = 0;
    while kept(&mut server) == 1 {
        server.wait(HOUR);
        server.restart();
        hours += 1;
    }
    assert!((24..=29).contains(&hours), "{hours}");
    // SR27.
    server.commit(of([put("x", "2")])).unwrap();
    assert_eq!(server.record("x", "").unwrap().incarnation, 2);
}

#[test]
fn sr25_deleted_records_beyond_the_limit_are_forgotten_before_their_time_but_not_before_other_nodes_have_them()
 {
    let limited = |is_replicated: bool, known: &[(&str, u64)]| {
        let engine = Server::node("a").engine;
        let mut server = Server::with(engine, SECOND, |config| {
            (config.is_replicated, config.tombstone_limit) = (is_replicated, 10);
        });
        if is_replicated {
            remember(&mut server, "b", known);
        }
        for number in 0..25 {
            server.commit(of([put(&format!("x{number}"), "1")])).unwrap();
            server.commit(of([delete(&format!("x{number}"))])).unwrap();
        }
        server.wait(600 * SECOND);
        server
    };
    for is_replicated in [true, false] {
        let mut server = limited(is_replicated, &[("a", 50)]);
        assert_eq!(kept(&mut server), 10);
        server.restart();
        assert_eq!(kept(&mut server), 10);
        // Those that were deleted last are left. SR27: new records start above the incarnations of those that are gone.
        server.commit(of([put("x14", "2")])).unwrap();
        assert_eq!(server.store.counts(), (1, 10));
        server.commit(of([put("x15", "2")])).unwrap();
        assert_eq!(server.store.counts(), (2, 9));
        assert!(["x14", "x15"].iter().all(|name| server.record(name, "").unwrap().incarnation == 2));
    }
    // SR26: another node lacks all deletions but the first two.
    let mut server = limited(true, &[("a", 4)]);
    assert_eq!(kept(&mut server), 23);
    remember(&mut server, "b", &[("a", 50)]);
    assert_eq!(kept(&mut server), 10);
}

#[test]
fn sr25_sr61_a_deleted_record_is_kept_no_longer_than_it_would_have_lived() {
    let mut server = with_deleted(put_until("x", 2000));
    assert_eq!(kept(&mut server), 1);
    server.wait(2000 * SECOND);
    assert_eq!(kept(&mut server), 0);
    let mut server = with_deleted(put_lease("x", "1", 3000));
    assert_eq!(kept(&mut server), 1);
    server.wait(3000 * SECOND);
    assert_eq!(kept(&mut server), 0);
    // Other nodes have it until their clocks say so, too.
    let mut server = with_deleted(put_until("x", 2000));
    remember(&mut server, "b", &[("a", 1)]);
    server.wait(2000 * SECOND);
    assert_eq!(kept(&mut server), 1);
}

#[test]
fn sr26_a_deleted_record_is_kept_until_all_known_nodes_have_the_deletion() {
    let mut server = with_deleted(put("x", "1"));
    remember(&mut server, "b", &[("a", 1)]);
    remember(&mut server, "c", &[("a", 2)]);
    for _ in 0..3 {
        server.wait(24 * HOUR);
        // SR60: the log forgets it, the record stays.
        assert_eq!(kept(&mut server), 1);
        server.restart();
    }
    assert_eq!(server.store.head().floor, 2);
    remember(&mut server, "b", &[("a", 2)]);
    assert_eq!(kept(&mut server), 0);
}

#[test]
fn sr26_a_deleted_record_is_kept_until_no_older_write_can_arrive() {
    let (mut a, mut b) = (with_deleted(put("x", "1")), Server::node("b"));
    let first = a.entries_for(&b, 1);
    b.merge(first);
    // Made before the deletion was there.
    b.commit(of([put("x", "of b")])).unwrap();
    let late = b.entries_for(&a, 9);
    b.merge(a.entries_for(&b, 9));
    a.wait(25 * HOUR);
    // By another node, the clock of this one came before its entries.
    remember(&mut a, "b", &[("a", 2), ("b", 1)]);
    assert_eq!(kept(&mut a), 1);
    a.merge(late);
    assert!(a.record("x", "").is_none());
    remember(&mut a, "b", &[("a", 2), ("b", 1)]);
    a.wait(25 * HOUR);
    assert_eq!(kept(&mut a), 0);
}

/// The clock of a node that has so many entries of this one.
fn clock(counter: u64) -> Clock {
    let mut clock = Clock::default();
    clock.set("a", Position { counter, chain: Chain::from_wire(&[7; 16]).unwrap() });
    clock
}

#[test]
fn sr18_a_node_that_lacks_a_deletion_whose_record_is_forgotten_has_to_replace_its_records() {
    let mut a = with_deleted(put("x", "1"));
    a.commit(of([put("z", "1")])).unwrap();
    let replaced = |server: &Server| -> Vec<_> {
        let of = |counter| server.store.lacking(&clock(counter), 9).out_of_sync.pop();
        (0..3).map(|counter| of(counter).map(|of| (of.floor, of.must_replace))).collect()
    };
    a.wait(600 * SECOND);
    assert_eq!((kept(&mut a), replaced(&a)), (1, vec![Some((3, false)); 3]));
    a.wait(24 * HOUR);
    assert_eq!(kept(&mut a), 0);
    // The deletion is the second entry.
    let expected = [Some((3, true)), Some((3, true)), Some((3, false))];
    assert_eq!(replaced(&a), expected);
    a.restart();
    assert_eq!(replaced(&a), expected);
    // What follows keeps it.
    a.commit(of([put("z", "2")])).unwrap();
    a.wait(600 * SECOND);
    a.compact(Some(4));
    a.restart();
    assert_eq!(replaced(&a), expected.map(|of| of.map(|(_, must_replace)| (4, must_replace))));
}

#[test]
fn sr18_a_deletion_of_another_node_counts_there_also_if_the_record_changes_later() {
    let (mut a, mut b) = (with_deleted(put("x", "1")), Server::node("b"));
    b.merge(a.entries_for(&b, 1));
    b.commit(of([put("x", "of b")])).unwrap();
    // The content of the later generation is that of the deleted record.
    a.merge(b.entries_for(&a, 9));
    b.merge(a.entries_for(&b, 9));
    for server in [&mut a, &mut b] {
        server.step(Event::Remember("c".into(), counters(&[("a", 2), ("b", 1)])));
        server.wait(25 * HOUR);
        assert_eq!(kept(server), 0);
        let lacking = server.store.lacking(&clock(1), 9).out_of_sync;
        let lacking: Vec<_> = lacking.iter().map(|of| (&*of.origin, of.must_replace)).collect();
        assert_eq!(lacking, [("a", true), ("b", false)]);
    }
}

#[test]
fn sr5_sr18_what_a_date_has_ended_here_is_no_deletion_for_others() {
    let mut a = Server::node("a");
    a.commit(of([put_until("x", 100)])).unwrap();
    a.wait(1000 * SECOND);
    assert_eq!(kept(&mut a), 0);
    let lacking = a.store.lacking(&Clock::default(), 9).out_of_sync;
    assert!(!lacking[0].must_replace);
}

#[test]
fn sr9_sr18_a_restored_store_knows_the_nodes_of_its_cluster_and_which_deletions_it_has_forgotten() {
    let mut a = with_deleted(put("x", "1"));
    a.wait(25 * HOUR);
    assert_eq!(kept(&mut a), 0);
    remember(&mut a, "b", &[("a", 2)]);
    let backup = Backup::new(a.engine.view().unwrap(), History::Whole).unwrap();
    let file: Vec<u8> = backup.flat_map(|part| part.unwrap().data).collect();
    for (cluster, known) in [(None, vec!["b"]), (Some("other".to_owned()), vec![])] {
        let mut target = MemoryEngine::default();
        let ids = NewIds { node: "new".into(), cluster };
        restore(&mut Cursor::new(&file), &mut target, &ids, &mut |_| {}).unwrap();
        let restored = Server::with(target, a.now, |config| config.is_replicated = true);
        assert_eq!(restored.store.known().map(|(node, _)| node).collect::<Vec<_>>(), known);
        let lacking = restored.store.lacking(&clock(1), 9).out_of_sync;
        assert_eq!((lacking.len(), &*lacking[0].origin, lacking[0].must_replace), (1, "a", true));
        // The new node has run for as long as the old one.
        assert_eq!(restored.store.head().running, a.store.head().running);
    }
}
