//! Deletions of a node whose records a snapshot replaces (SR21).

use xds_store::engine::EngineError;
use xds_store::store::Action;

use super::*;

/// A node that has forgotten a deletion of its own.
fn forgetful(id: &str) -> Server {
    let mut node = node(id);
    commit(&mut node, [put("y", "1")]);
    commit(&mut node, [delete("y")]);
    forget_all(&mut node);
    node
}

#[test]
fn sr18_a_node_with_a_snapshot_says_which_deletions_are_forgotten_as_the_node_of_the_snapshot_does() {
    let says = |node: &Server| {
        let of = node.store.lacking(&Default::default(), 9).out_of_sync.into_iter();
        of.map(|origin| (origin.origin, origin.must_replace)).collect::<Vec<_>>()
    };
    let expected = |must_replace| vec![("d".to_owned(), must_replace)];
    let (mut d, mut c, mut other) = (node("d"), node("c"), node("e"));
    commit(&mut d, [put("y", "1")]);
    forget_all(&mut d);
    c.resync(&d, false, "c2");
    assert_eq!((says(&d), says(&c)), (expected(false), expected(false)));
    other.resync(&forgetful("d"), false, "e2");
    assert_eq!(says(&other), expected(true));
    // A node of an earlier version may have forgotten all.
    let mut c = node("c");
    c.step(Event::BeginResync { must_replace: false, new_id: "c2".into() });
    let [page] = &d.snapshot(1_000)[..] else { panic!("it is small") };
    let page = proto::SnapshotResponse { deletion_floors: None, ..page.clone() };
    c.step(Event::Stage(Ticket(0), page));
    assert_eq!(says(&c), expected(true));
}

#[test]
fn sr21_a_deletion_that_the_snapshot_does_not_cover_is_none_for_records_that_others_create() {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut b, [put("x", "of b")]);
    commit(&mut b, [delete("x")]);
    assert!(b.resync(&forgetful("d"), true, "b2").has_replaced);
    assert!(b.snapshot(1_000).iter().all(|page| page.records.is_empty()));
    check(&mut b);
    commit(&mut a, [put("x", "of a")]);
    pull(&mut b, &a);
    assert_eq!(payload(&b, "x").as_deref(), Some("of a"));
    check(&mut b);
}

#[test]
fn sr23_remains_that_cannot_be_dropped_do_not_end_the_next_snapshot() {
    let (a, mut b) = cut_off();
    let begin = || Event::BeginResync { must_replace: false, new_id: "b2".into() };
    let pages = a.snapshot(1);
    b.step(begin());
    b.step(Event::Stage(Ticket(0), pages[0].clone()));
    let (reader, now) = (b.engine.reader(), b.now);
    let drops = b.store.step(Event::EndResync, now, &*reader);
    assert!(matches!(&drops[..], [Action::Write(_)]), "{drops:?}");
    b.store.step(begin(), now, &*reader);
    b.store.step(Event::Written(Err(EngineError::Full)), now, &*reader);
    b.staged.clear();
    b.step(Event::Stage(Ticket(0), pages[0].clone()));
    assert_eq!(b.staged, [Ok(Staged::Kept)]);
}

#[test]
fn sr21_sr44_a_deletion_of_what_the_snapshot_has_otherwise_is_reported() {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut a, [put("x", "of a")]);
    commit(&mut a, [put("y", "1")]);
    commit(&mut a, [delete("y")]);
    for _ in 0..2 {
        commit(&mut b, [put("x", "of b")]);
        commit(&mut b, [delete("x")]);
    }
    forget_all(&mut a);
    let resynced = b.resync(&a, true, "b2");
    assert_eq!(payload(&b, "x").as_deref(), Some("of a"));
    let [(key, state)] = &resynced.dropped[..] else { panic!("{resynced:?}") };
    assert_eq!((key.name().as_str().to_owned(), state.incarnation), ("x".to_owned(), 2));
    converge(&mut a, &mut b);
}
