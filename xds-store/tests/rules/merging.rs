//! Entries of other nodes, merged into a store.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::entry::Foreign;
use xds_store::store::{Event, Stopped, Ticket};

use crate::driven::envoy::*;
use crate::driven::*;

fn nodes() -> [Server; 3] {
    ["a", "b", "c"].map(Server::node)
}

/// One node takes all that another one has. Whether it took something.
fn pull(to: &mut Server, from: &Server) -> bool {
    let entries = from.entries_for(to, 100);
    let is_some = !entries.is_empty();
    assert_eq!(to.merge(entries), BTreeMap::new());
    is_some
}

/// Lets all nodes take from all others until nobody lacks anything.
fn exchange(nodes: &mut [Server]) {
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].entries_for(&nodes[to], 3);
                has_changed |= !entries.is_empty();
                assert_eq!(nodes[to].merge(entries), BTreeMap::new());
            }
        }
    }
}

fn payload(server: &Server, name: &str) -> Option<String> {
    let content = server.record(name, "")?.content.unwrap();
    Some(String::from_utf8(content.payload.to_vec()).unwrap())
}

fn assert_equal(nodes: &[Server], names: &[&str]) {
    for name in names {
        let states: Vec<_> = nodes.iter().map(|node| node.state(&key(name, ""))).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {states:#?}");
    }
    assert!(nodes.windows(2).all(|pair| pair[0].store.clock() == pair[1].store.clock()));
}
/// A batch of entries that are here already has the head alone, which does not say who wrote it.
#[test]
fn sr12_st20_entries_are_answered_whatever_becomes_of_their_batch() {
    for fate in [Fate::Full, Fate::LostUnknown, Fate::WrittenUnknown, Fate::Unavailable] {
        let (mut a, mut b) = (Server::node("a"), Server::node("b"));
        a.commit(of([put("x", "1")])).unwrap();
        let entries = a.entries_for(&b, 9);
        assert!(b.merge(entries.clone()).is_empty());
        b.now += 3600 * SECOND;
        b.fates.push_back(fate);
        b.step(Event::Merge(Ticket(1), entries, None));
        b.wait(60 * SECOND);
        assert_eq!((b.merged.len(), b.fates.len()), (1, 0), "{fate:?}");
        a.commit(of([put("x", "2")])).unwrap();
        assert!(b.merge(a.entries_for(&b, 9)).is_empty());
        assert_eq!(b.clients(), ["x [] 2"]);
    }
}

#[test]
fn sr6_sr7_sr9_sr13_an_entry_is_merged_whole_at_one_revision_and_relayed_as_its_origin_wrote_it() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "1"), put("y", "1")])).unwrap();
    a.commit(of([delete("y")])).unwrap();
    assert!(pull(&mut b, &a) && !pull(&mut b, &a));
    assert_eq!((payload(&b, "x"), payload(&b, "y")), (Some("1".into()), None));
    assert_eq!((b.store.revision(), b.store.head().counter), (2, 0), "no number of its own");
    assert_eq!(b.published[0].changed, a.published[0].changed);
    assert_eq!(b.published[0].entry.identity, a.published[0].entry.identity);
    // Through a node in between, also after its restart.
    b.restart();
    assert!(pull(&mut c, &b));
    assert_equal(&[a, b, c], &["x", "y"]);
}

#[test]
fn sr7_sr39_a_state_that_lost_is_relayed_as_it_was_written() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "of a")])).unwrap();
    b.commit(of([put("x", "of b"), put("z", "1")])).unwrap();
    pull(&mut b, &a);
    pull(&mut a, &b);
    // One of the two contents won at both. Whoever relays the other entry has it as it was.
    assert_eq!(payload(&a, "x"), payload(&b, "x"));
    let before = c.store.revision();
    assert!(pull(&mut c, &a) && !pull(&mut c, &b));
    assert_eq!(c.store.revision() - before, 2);
    assert_equal(&[a, b, c], &["x", "z"]);
}

#[test]
fn sr14_sr54_entries_behind_a_gap_are_dropped_and_other_origins_go_on() {
    let [mut a, mut b, mut c] = nodes();
    for payload in ["1", "2", "3"] {
        a.commit(of([put("x", payload)])).unwrap();
        b.commit(of([put("y", payload)])).unwrap();
    }
    let (of_a, of_b) = (a.entries_for(&c, 9), b.entries_for(&c, 9));
    let entries = [of_a[0].clone(), of_b[0].clone(), of_a[2].clone(), of_b[1].clone()];
    let stopped = c.merge(entries.into());
    assert_eq!(stopped, BTreeMap::from([("a".to_owned(), Stopped::Gap { next: 2, found: 3 })]));
    assert_eq!((payload(&c, "x"), payload(&c, "y")), (Some("1".into()), Some("2".into())));
    // What came by another way before is nothing new.
    let revision = c.store.revision();
    assert_eq!(c.merge(vec![of_a[0].clone(), of_b[1].clone()]), BTreeMap::new());
    assert_eq!(c.store.revision(), revision);
    exchange(&mut [a, b, c]);
}

#[test]
fn sr14_a_skip_advances_the_clock_and_is_relayed_as_a_skip() {
    let [mut a, mut b, mut c] = nodes();
    for payload in ["1", "2", "3"] {
        a.commit(of([put("x", payload)])).unwrap();
    }
    let of_a = a.entries_for(&b, 9);
    let Foreign::Entry(second) = &of_a[1] else { panic!("{of_a:?}") };
    let chain = second.chain.clone();
    let skip =
        Foreign::Skip(proto::Skip { origin: "a".into(), first: 1, last: 2, chain, region: String::new() });
    assert_eq!(b.merge(vec![skip.clone(), of_a[2].clone()]), BTreeMap::new());
    assert_eq!(b.store.clock(), a.store.clock());
    b.restart();
    assert_eq!(b.entries_for(&c, 9)[0], skip);
    assert!(pull(&mut c, &b));
    assert_eq!((payload(&c, "x"), c.store.clock()), (Some("3".into()), a.store.clock()));
}

#[test]
fn sr54_an_entry_whose_chain_does_not_follow_is_not_applied() {
    let [mut a, mut b, _] = nodes();
    a.commit(of([put("x", "1")])).unwrap();
    a.commit(of([put("x", "2")])).unwrap();
    // A twin of the node.
    let mut twin = Server::node("a");
    twin.commit(of([put("x", "other")])).unwrap();
    b.merge(twin.entries_for(&b, 9));
    let mut entries = a.entries_for(&twin, 9);
    assert_eq!(a.store.lacking(&twin.store.clock(), 9).forked, ["a"]);
    entries.extend(a.entries_for(&Server::node("new"), 9).split_off(1));
    let stopped = b.merge(entries);
    assert_eq!(stopped, BTreeMap::from([("a".to_owned(), Stopped::Forked { counter: 2 })]));
    assert_eq!(payload(&b, "x"), Some("other".into()));
    // Entries of the own id that this node does not have.
    let stopped = twin.merge(a.entries_for(&Server::node("new"), 9));
    assert_eq!(stopped, BTreeMap::from([("a".to_owned(), Stopped::Own { counter: 2 })]));
}

#[test]
fn sr15_an_entry_that_can_never_be_right_stops_its_origin_alone() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "1"), put("y", "1")])).unwrap();
    b.commit(of([put("z", "1")])).unwrap();
    let of_a = a.entries_for(&c, 9);
    let Foreign::Entry(good) = &of_a[0] else { panic!("{of_a:?}") };
    type Change = fn(&mut proto::Entry);
    let changes: [(&str, Change); 9] = [
        ("no key", |entry| entry.states[0].key = None),
        ("a key", |entry| entry.states[0].key.as_mut().unwrap().name.clear()),
        ("canonical", |entry| entry.states[0].key.as_mut().unwrap().when = "b=1,  a=1".into()),
        ("not replicated", |entry| {
            entry.states[0].key.as_mut().unwrap().type_url = xds_store::record::PROBE_TYPE.into();
        }),
        ("no incarnation", |entry| entry.states[0].incarnation = 0),
        ("lifecycle", |entry| entry.states[0].lifecycle = 77),
        ("no content", |entry| entry.states[0].content = None),
        ("digest", |entry| entry.states[0].content.as_mut().unwrap().payload = "2".into()),
        ("order of keys", |entry| entry.states.swap(0, 1)),
    ];
    for (expected, change) in changes {
        let mut entry = good.clone();
        change(&mut entry);
        let entries = vec![
            Foreign::Entry(entry),
            b.entries_for(&c, 9)[..].first().cloned().unwrap_or_else(|| of_a[0].clone()),
        ];
        let stopped = c.merge(entries);
        let Some(Stopped::Invalid { counter: 1, reason }) = stopped.get("a") else { panic!("{stopped:?}") };
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
    assert_eq!((payload(&c, "x"), payload(&c, "z")), (None, Some("1".into())));
    // It is refused as a whole, and nothing of it was kept.
    assert_eq!(c.merge(of_a), BTreeMap::new());
    assert_eq!(payload(&c, "y"), Some("1".into()));
}

#[test]
fn sr7_sr18_the_states_of_forgotten_entries_are_forgotten_with_them() {
    let [mut a, mut b, c] = nodes();
    a.commit(of([put("x", "of a")])).unwrap();
    b.commit(of([put("x", "of b")])).unwrap();
    pull(&mut a, &b);
    pull(&mut b, &a);
    for node in [&mut a, &mut b] {
        node.wait(600 * SECOND);
        assert_eq!(node.compact(Some(2)), 2);
        let lacking = node.store.lacking(&c.store.clock(), 9);
        let floors: Vec<_> = lacking.out_of_sync.iter().map(|of| (&*of.origin, of.floor)).collect();
        assert_eq!(floors, [("a", 1), ("b", 1)]);
        let mut originals = 0;
        let count = &mut |_: &[u8], _| {
            originals += 1;
            std::ops::ControlFlow::Continue(())
        };
        xds_store::engine::Engine::view(&node.engine).unwrap().range(b"o", b"p", count).unwrap();
        assert_eq!(originals, 0);
        assert!(
            xds_store::check::check_store(
                &*xds_store::engine::Engine::view(&node.engine).unwrap(),
                &mut |finding| { panic!("{finding:?}") }
            )
            .is_ok()
        );
    }
    assert_equal(&[a, b], &["x"]);
}

/// The node that merges wrote another content of the same generation. A rule in the entry makes it read the
/// references of the record again, which once counted the generation up.
#[test]
fn sr7_sr43_a_state_that_comes_with_a_rule_of_its_type_stays_as_it_was_written() {
    let [mut a, mut b, _] = nodes();
    let clusters = || [cluster("x"), cluster("y")];
    a.commit(of(clusters())).unwrap();
    b.commit(of(clusters())).unwrap();
    let unset = Rule::of_routes(proto::OnDelete::Unset).put("rule");
    a.commit(of([routes("r", &["x"]), unset])).unwrap();
    b.commit(of([routes("r", &["y"])])).unwrap();
    pull(&mut a, &b);
    pull(&mut b, &a);
    let states = [&a, &b].map(|node| node.state(&routes_key("r")).unwrap());
    assert_eq!(states[0], states[1]);
    assert_eq!(states[0].generation, 1);
}

#[test]
fn st26_st44_an_entry_is_as_old_as_its_revision_here_whatever_the_clock_of_its_origin_says() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "1")])).unwrap();
    c.now += 30 * 24 * 3600 * SECOND;
    c.commit(of([put("y", "1")])).unwrap();
    b.now += 10 * 24 * 3600 * SECOND;
    pull(&mut b, &a);
    pull(&mut b, &c);
    // The pages of a list may still be read.
    assert_eq!((b.compact(None), b.compact(Some(2))), (0, 0));
    b.wait(600 * SECOND);
    assert_eq!((b.compact(None), b.compact(Some(2))), (0, 2));
}

/// The end by date, the deletion and the late change are in one batch.
#[test]
fn sr5_sr37_a_deletion_stays_although_its_date_has_ended_the_record_here_in_the_same_batch() {
    let [mut a, mut b, mut c] = nodes();
    let mut dated = put("x", "1");
    if let Some(proto::change::Act::Put(put)) = &mut dated.act {
        put.expires_at = Some(xds_store::time::to_proto(a.now + 60 * SECOND));
    }
    a.commit(of([dated])).unwrap();
    pull(&mut b, &a);
    pull(&mut c, &a);
    a.commit(of([delete("x")])).unwrap();
    c.commit(of([put("x", "2")])).unwrap();
    b.now += 61 * SECOND;
    let late = a.entries_for(&b, 100).into_iter().chain(c.entries_for(&b, 100)).collect();
    assert_eq!(b.merge(late), BTreeMap::new());
    pull(&mut a, &c);
    pull(&mut c, &a);
    assert_eq!(payload(&b, "x"), None);
    assert_equal(&[a, b, c], &["x"]);
}
