//! What merges lost, in the journal of each node (SR44).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::conflict::Kind;
use xds_store::check::check_store;
use xds_store::engine::{Batch, Engine, MemoryEngine, SealedEngine};
use xds_store::read::{ConflictsPage, ConflictsQuery, Reads};
use xds_store::seal::{Seal, SealKeys};

use crate::driven::*;

fn nodes() -> [Server; 3] {
    ["a", "b", "c"].map(Server::node)
}

fn pull(to: &mut Server, from: &Server) {
    assert_eq!(to.merge(from.entries_for(to, 10_000)), BTreeMap::new());
}

fn page(node: &Server, before: Option<u64>, limit: usize) -> ConflictsPage {
    let view = node.engine.view().unwrap();
    let query = ConflictsQuery { before, may_read: &|_| true, limit, limit_bytes: 1 << 20 };
    Reads::new(&*view).unwrap().conflicts(query).unwrap()
}

/// Kind, name, content and node of each conflict, the newest one first.
pub(crate) fn journal(node: &Server) -> Vec<(Kind, String, String, String)> {
    let show = |conflict: proto::Conflict| {
        let proto::Key { name, when, .. } = conflict.key.clone().unwrap();
        let content = String::from_utf8(conflict.loser.as_ref().unwrap().payload.to_vec()).unwrap();
        (conflict.kind(), format!("{name} [{when}]"), content, conflict.loser_origin)
    };
    page(node, None, 100).conflicts.into_iter().map(show).collect()
}

fn of_content(kind: Kind, content: &str, origin: &str) -> Vec<(Kind, String, String, String)> {
    vec![(kind, "x []".into(), content.into(), origin.into())]
}

#[test]
fn sr44_each_node_journals_a_lost_content_once() {
    let mut won = [0, 0];
    for number in 0..40 {
        let [mut a, mut b, mut c] = nodes();
        let (of_a, of_others) = (format!("of a {number}"), format!("of others {number}"));
        a.commit(of([put("x", &of_a)])).unwrap();
        // The same loss comes with two entries.
        b.commit(of([put("x", &of_others)])).unwrap();
        c.commit(of([put("x", &of_others)])).unwrap();
        pull(&mut a, &b);
        a.restart();
        pull(&mut a, &c);
        pull(&mut b, &a);
        pull(&mut c, &a);
        let has_won = a.record("x", "").unwrap().content == Some(content(&of_a));
        won[usize::from(has_won)] += 1;
        for node in [&mut a, &mut b, &mut c] {
            let expected = if has_won { (&of_others, "b") } else { (&of_a, "a") };
            let mut found = journal(node);
            // Both of the others made this content, and each node found that of one of them first.
            if found[0].3 == "c" {
                found[0].3 = "b".into();
            }
            assert_eq!(found, of_content(Kind::Creation, expected.0, expected.1));
            node.restart();
            assert_eq!((node.store.conflicts(), journal(node).len()), (1, 1));
            check_store(&*node.engine.view().unwrap(), &mut |finding| panic!("{finding:?}")).unwrap();
        }
    }
    assert!(won[0] > 0 && won[1] > 0, "the contents of the test have such digests");
}

#[test]
fn sr44_a_change_beside_a_deletion_and_a_second_content_are_journaled_with_what_lost() {
    let [mut a, mut b, _] = nodes();
    a.commit(of([put("x", "1")])).unwrap();
    pull(&mut b, &a);
    a.commit(of([delete("x")])).unwrap();
    b.commit(of([put("x", "2")])).unwrap();
    pull(&mut a, &b);
    pull(&mut b, &a);
    for node in [&a, &b] {
        assert_eq!(journal(node), of_content(Kind::Deletion, "2", "b"));
    }
    // What follows a deletion loses nothing, although the deletion may come last.
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "1")])).unwrap();
    pull(&mut b, &a);
    pull(&mut c, &a);
    a.commit(of([delete("x")])).unwrap();
    pull(&mut b, &a);
    b.commit(of([put("x", "2")])).unwrap();
    let mut entries = b.entries_for(&c, 9);
    entries.reverse();
    assert_eq!(c.merge(entries), BTreeMap::new());
    assert_eq!((c.clients(), c.store.conflicts()), (vec!["x [] 2".to_owned()], 0));
}

#[test]
fn sr44_sr47_a_variant_that_is_withheld_is_journaled() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put_when("x", "env=1", "of a")])).unwrap();
    b.commit(of([put("x", "1")])).unwrap();
    b.commit(of([put("x", "of b")])).unwrap();
    for (to, from) in [(&mut a, &b), (&mut c, &b)] {
        pull(to, from);
    }
    pull(&mut b, &a);
    pull(&mut c, &a);
    for node in [&a, &b, &c] {
        let expected = (Kind::Overlap, "x [env=1]".into(), "of a".into(), "a".into());
        assert!(journal(node).contains(&expected), "{:?}", journal(node));
        let conflict = page(node, None, 1).conflicts.remove(0);
        assert_eq!((&*conflict.winner_origin, conflict.at.is_some()), ("b", true));
        assert_eq!(conflict.detail, "the variant for all clients is served instead");
    }
    // The next generation is withheld like the one before.
    a.commit(of([put_when("x", "env=1", "2")])).unwrap();
    a.commit(of([put("x", "3")])).unwrap();
    assert_eq!(a.store.conflicts(), page(&a, None, 100).conflicts.len() as u64);
}

#[test]
fn sr44_the_newest_ten_thousand_are_kept_and_read_in_pages() {
    let [mut a, mut b, _] = nodes();
    for part in 0..2 {
        let puts = |of: &str| (0..5_010).map(|at| put(&format!("{part} {at}"), of)).collect::<Vec<_>>();
        a.commit(of(puts("of a"))).unwrap();
        b.commit(of(puts("of b"))).unwrap();
        pull(&mut a, &b);
    }
    a.restart();
    assert_eq!(a.store.conflicts(), 10_020);
    let (mut before, mut numbers) = (None, Vec::new());
    loop {
        let page = page(&a, before, 700);
        numbers.push(page.conflicts.len());
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!((numbers.iter().sum::<usize>(), numbers[0]), (10_000, 700));
    check_store(&*a.engine.view().unwrap(), &mut |finding| panic!("{finding:?}")).unwrap();
}

#[test]
fn sr44_st49_contents_in_the_journal_are_sealed_like_those_of_records() {
    let [mut a, mut b, _] = nodes();
    a.commit(of([put("x", "a secret of a")])).unwrap();
    b.commit(of([put("x", "a secret of b")])).unwrap();
    pull(&mut a, &b);
    let journaled = |view: &dyn xds_store::engine::View, is_stored: bool| {
        let mut found = Vec::new();
        let each = &mut |key: &[u8], value: xds_store::engine::Value| {
            found.push((bytes::Bytes::copy_from_slice(key), Some(value.bytes)));
            ControlFlow::Continue(())
        };
        if is_stored { view.range_stored(b"j", b"k", each) } else { view.range(b"j", b"k", each) }.unwrap();
        found
    };
    let writes = journaled(&*a.engine.view().unwrap(), false);
    assert_eq!(writes.len(), 1);
    let keys = SealKeys::parse("k AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
    let seal = Seal::new(keys, [TYPE.into()]);
    let mut sealed = SealedEngine::new(Box::new(MemoryEngine::default()), seal, [7; 32]);
    sealed.commit(&Batch { compares: Vec::new(), writes: writes.clone() }).unwrap();
    let view = sealed.reader().view().unwrap();
    assert_eq!(journaled(&*view, false), writes);
    let stored = journaled(&*view, true).remove(0).1.unwrap();
    assert!(!stored.windows(8).any(|part| part == b"a secret"), "{stored:?}");
}
