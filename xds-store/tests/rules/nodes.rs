//! What a store knows of other nodes, and keeps for them.

use xds_store::replica::Counters;
use xds_store::store::Event;

use crate::driven::*;

pub(crate) const HOUR: i64 = 3600 * SECOND;

pub(crate) fn counters(of: &[(&str, u64)]) -> Counters {
    of.iter().map(|(origin, counter)| ((*origin).to_owned(), *counter)).collect()
}

pub(crate) fn remember(server: &mut Server, node: &str, of: &[(&str, u64)]) {
    server.step(Event::Remember(node.to_owned(), counters(of)));
}

pub(crate) fn known(server: &Server) -> Vec<(String, Counters)> {
    server.store.known().map(|(node, counters)| (node.to_owned(), counters.clone())).collect()
}

#[test]
fn sr9_the_clocks_of_known_nodes_survive_a_restart_and_never_go_back() {
    let mut server = Server::node("a");
    server.commit(of([put("x", "1")])).unwrap();
    let before = server.engine_revision();
    remember(&mut server, "b", &[("a", 1), ("b", 7)]);
    remember(&mut server, "b", &[("b", 3), ("c", 2)]);
    // It knows itself.
    remember(&mut server, "a", &[("a", 1)]);
    let expected = vec![("b".to_owned(), counters(&[("a", 1), ("b", 7), ("c", 2)]))];
    assert_eq!((known(&server), server.store.revision()), (expected.clone(), 1), "no revision");
    assert!(server.engine_revision() > before, "an idle store writes it at once");
    server.restart();
    assert_eq!(known(&server), expected);
    let view = xds_store::engine::Engine::view(&server.engine).unwrap();
    assert!(xds_store::check::check_store(&*view, &mut |found| panic!("{found:?}")).is_ok());
}

#[test]
fn sg29_when_a_region_was_heard_last_survives_a_restart() {
    let mut server = Server::node("a");
    remember(&mut server, "b", &[]);
    server.step(Event::OfRegion("b".into(), "eu".into()));
    let first = server.now;
    server.wait(HOUR);
    // One of another region, and one that did not say its region.
    remember(&mut server, "c", &[]);
    server.step(Event::OfRegion("c".into(), "us".into()));
    remember(&mut server, "d", &[]);
    let expected = [("eu".to_owned(), first), ("us".to_owned(), server.now)].into();
    server.wait(HOUR);
    assert_eq!(server.store.regions_heard(), expected);
    server.restart();
    server.wait(HOUR);
    assert_eq!(server.store.regions_heard(), expected);
    remember(&mut server, "b", &[]);
    assert_eq!(server.store.regions_heard()["eu"], server.now);
}

#[test]
fn sr9_what_a_full_disk_did_not_take_is_written_once_there_is_room() {
    for fate in [Fate::Full, Fate::LostUnknown, Fate::WrittenUnknown, Fate::Unavailable] {
        let mut server = Server::node("a");
        server.commit(of([put("x", "1")])).unwrap();
        server.fates.push_back(fate);
        remember(&mut server, "b", &[("a", 1)]);
        server.wait(20 * SECOND);
        server.restart();
        assert_eq!(known(&server), [("b".to_owned(), counters(&[("a", 1)]))], "{fate:?}");
    }
}

#[test]
fn sr60_entries_that_a_known_node_lacks_are_kept_for_24_h_after_it_was_heard() {
    let mut server = Server::node("a");
    for payload in ["1", "2", "3"] {
        server.commit(of([put("x", payload)])).unwrap();
    }
    server.wait(HOUR);
    remember(&mut server, "b", &[("a", 1)]);
    // A node that lacks nothing holds nothing back.
    remember(&mut server, "c", &[("a", 3)]);
    assert_eq!(server.compact(Some(3)), 1, "the answer says what is forgotten");
    server.restart();
    server.wait(23 * HOUR);
    assert_eq!(server.compact(Some(3)), 1);
    // A cluster that was stopped goes on as it stopped: time counts while the node runs.
    server.now += 90 * 24 * HOUR;
    server.restart();
    assert_eq!(server.compact(None), 1);
    assert_eq!(server.store.lacking(&clock(1, &server), 9).revisions, [2, 3]);
    server.wait(2 * HOUR);
    assert_eq!(server.compact(Some(3)), 3);
}

/// The clock of a node that has so many entries of this one.
fn clock(counter: u64, server: &Server) -> xds_store::clock::Clock {
    let mut clock = xds_store::clock::Clock::default();
    let entry = &server.published[usize::try_from(counter).unwrap() - 1].entry;
    let chain = xds_store::clock::Chain::from_wire(&entry.chain).unwrap();
    clock.set("a", xds_store::clock::Position { counter, chain });
    clock
}
