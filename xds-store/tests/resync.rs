//! Snapshots of other nodes, and new ids (SR18 to SR24, SR27, SR29 to SR31).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::ControlFlow;

use bytes::Bytes;

use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, History};
use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::{Batch, Engine as _, MemoryEngine, Value};
use xds_store::log::Head;
use xds_store::read::{Reads, SnapshotError};
use xds_store::replica::Counters;
use xds_store::restore::{NewIds, restore};
use xds_store::store::{Event, Identity, Resynced, Staged, Store, Ticket};

use driven::*;

#[path = "resync/clock.rs"]
mod clock;
#[expect(dead_code, reason = "other tests use the rest")]
mod driven;
#[path = "resync/endless.rs"]
mod endless;
#[path = "resync/journal.rs"]
mod journal;
#[path = "resync/numbers.rs"]
mod numbers;
#[path = "resync/phases.rs"]
mod phases;
#[path = "replica/random.rs"]
mod random;
#[path = "resync/reid.rs"]
mod reid;
#[path = "resync/replaced.rs"]
mod replaced;
#[path = "resync/rolling.rs"]
mod rolling;

impl Server {
    /// The pages of a snapshot of this node.
    pub(crate) fn snapshot(&self, max_bytes: usize) -> Vec<proto::SnapshotResponse> {
        let view = self.engine.view().unwrap();
        let (reads, mut pages) = (Reads::new(&*view).unwrap(), Vec::<proto::SnapshotResponse>::new());
        while pages.last().is_none_or(|page| !page.is_last) {
            let resume = pages.last().map_or("", |page| &page.resume);
            pages.push(reads.snapshot(resume, max_bytes).unwrap());
        }
        pages
    }

    /// Takes a snapshot of another node.
    pub(crate) fn resync(&mut self, from: &Self, must_replace: bool, new_id: &str) -> Resynced {
        self.step(Event::BeginResync { must_replace, new_id: new_id.into() });
        for page in from.snapshot(200) {
            self.step(Event::Stage(Ticket(0), page));
            if let Staged::Merged(resynced) = self.staged.pop().expect("the page is answered").unwrap() {
                return resynced;
            }
        }
        panic!("the last page ends the snapshot");
    }

    pub(crate) fn take_id(&mut self, id: &str) {
        self.step(Event::TakeId(Ticket(0), id.into()));
        self.took_ids.pop().expect("it is answered").unwrap();
    }
}

/// A node that forgets early.
fn node(id: &str) -> Server {
    on(Server::node(id).engine, SECOND)
}

fn on(engine: MemoryEngine, now: i64) -> Server {
    Server::with(engine, now, |config| {
        config.is_replicated = true;
        config.tombstones = 20 * SECOND;
    })
}

fn commit(node: &mut Server, changes: impl IntoIterator<Item = proto::Change>) {
    node.commit(of(changes.into_iter().collect::<Vec<_>>())).unwrap();
}

fn pull(to: &mut Server, from: &Server) {
    let lacking = from.store.lacking(&to.store.clock(), 1_000);
    assert!(lacking.out_of_sync.is_empty() && lacking.forked.is_empty(), "{lacking:?}");
    let entries = from.entries_for(to, 1_000);
    assert_eq!(to.merge(entries), BTreeMap::new());
}

/// Forgets the log, and what was deleted in it.
fn forget_all(node: &mut Server) {
    node.wait(301 * SECOND);
    let upto = node.store.revision();
    node.compact(Some(upto));
    node.compact(Some(upto));
}

fn payload(node: &Server, name: &str) -> Option<String> {
    let content = node.record(name, "")?.content?;
    Some(String::from_utf8(content.payload.to_vec()).unwrap())
}

fn counters(node: &Server) -> Counters {
    node.store.clock().counters()
}

/// An engine that has the same.
fn copy_of(engine: &MemoryEngine) -> MemoryEngine {
    let mut copy = Batch::default();
    let each = &mut |key: &[u8], value: Value| {
        copy.writes.push((Bytes::copy_from_slice(key), Some(value.bytes)));
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"a", b"{", each).unwrap();
    let mut engine = MemoryEngine::default();
    engine.commit(&copy).unwrap();
    engine
}

/// Everything that a snapshot has, which other nodes merge.
fn states(node: &Server) -> Vec<proto::RecordState> {
    node.snapshot(1 << 20).into_iter().flat_map(|page| page.records).collect()
}

/// The store is sound, and is the same after a restart.
fn check(node: &mut Server) {
    let findings = &mut |finding| panic!("{finding:?}");
    check_store(&*node.engine.view().unwrap(), findings).unwrap();
    let (clock, counts) = (node.store.clock(), node.store.counts());
    node.restart();
    assert_eq!((node.store.clock(), node.store.counts()), (clock, counts));
}

/// Both nodes get all entries of the other one, and have the same then.
fn converge(a: &mut Server, b: &mut Server) {
    pull(a, b);
    pull(b, a);
    assert_eq!(states(a), states(b));
    assert_eq!(a.store.clock(), b.store.clock());
    check(a);
    check(b);
}

/// A and B were equal, B was cut off from A, and A has forgotten its log.
fn cut_off() -> (Server, Server) {
    cut_off_as(node)
}

fn cut_off_as(node: fn(&str) -> Server) -> (Server, Server) {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut a, [put("kept", "1"), put("both", "1"), put("gone", "1")]);
    pull(&mut b, &a);
    commit(&mut b, [put("of-b", "1")]);
    pull(&mut a, &b);
    commit(&mut a, [put("both", "of a"), put("new", "1")]);
    commit(&mut a, [delete("gone")]);
    (a, b)
}

#[test]
fn sr19_a_snapshot_has_all_that_other_nodes_get_in_pages_of_one_batch() {
    let mut a = node("a");
    let mut dated = put("dated", "1");
    if let Some(proto::change::Act::Put(put)) = &mut dated.act {
        put.expires_at = Some(prost_types::Timestamp { seconds: 40, nanos: 0 });
    }
    commit(&mut a, [put("x", "1"), put("y", "1"), put("z", "1"), dated, forget("lost")]);
    commit(&mut a, [delete("y"), put("x", "2")]);
    a.wait(60 * SECOND);
    let pages = a.snapshot(1);
    assert_eq!(pages.len(), 5, "each page has one record at least");
    let (last, first) = pages.split_last().unwrap();
    assert!(first.iter().all(|page| !page.is_last && page.clock.is_empty() && page.records.len() == 1));
    assert!(last.is_last && last.resume.is_empty());
    assert_eq!(last.clock, a.store.clock().to_wire());
    let all: Vec<_> = pages.iter().flat_map(|page| page.records.clone()).collect();
    assert_eq!(all, states(&a));
    let found: Vec<_> =
        all.iter().map(|state| (&*state.key.as_ref().unwrap().name, state.lifecycle())).collect();
    let (live, deleted) = (proto::State::Live, proto::State::Deleted);
    // SR5: the clock of this node has ended `dated`, and other nodes end it by theirs.
    assert!(
        found.contains(&("dated", live))
            && found.contains(&("y", deleted))
            && found.contains(&("lost", live))
    );
    // A batch may forget what was deleted, so the rest would be of another state.
    commit(&mut a, [put("w", "1")]);
    let view = a.engine.view().unwrap();
    for token in [&*first[0].resume, "0", "00"] {
        let gone = Reads::new(&*view).unwrap().snapshot(token, 1);
        assert!(matches!(gone, Err(SnapshotError::Gone)), "{token}");
    }
}

#[test]
fn sr20_a_node_that_fell_behind_gets_the_records_in_one_commit_and_keeps_its_own() {
    let (mut a, mut b) = cut_off_as(Server::node);
    commit(&mut b, [put("unpulled", "1"), put("kept", "of b")]);
    forget_all(&mut a);
    let out_of_sync = a.store.lacking(&b.store.clock(), 9).out_of_sync;
    assert!(out_of_sync.iter().all(|origin| !origin.must_replace) && !out_of_sync.is_empty(), "SR18");
    let (counter, published) = (b.store.head().counter, b.published.len());
    let resynced = b.resync(&a, false, "b2");
    assert!(!resynced.has_replaced && resynced.dropped.is_empty());
    assert_eq!(b.published.len(), published + 1, "one difference, in one commit");
    assert_eq!((b.store.head().counter, &*b.store.head().node), (counter, "b"));
    assert_eq!(payload(&b, "both").as_deref(), Some("of a"));
    assert_eq!(payload(&b, "unpulled").as_deref(), Some("1"));
    assert!(b.record("gone", "").is_none());
    // What nobody pulled is pulled now.
    converge(&mut a, &mut b);
    commit(&mut b, [put("later", "1")]);
    commit(&mut a, [put("later-too", "1")]);
    converge(&mut a, &mut b);
    assert_eq!(payload(&a, "unpulled").as_deref(), Some("1"));
    // SR18: entries that B never had are not answered as if they were none. A has forgotten no deletion.
    let of_a = b.store.lacking(&Default::default(), 9).out_of_sync;
    assert!(of_a.iter().any(|origin| origin.origin == "a" && !origin.must_replace), "{of_a:?}");
}

#[test]
fn sr47_a_snapshot_brings_variants_that_overlap() {
    for must_replace in [false, true] {
        let (mut a, mut b) = cut_off();
        commit(&mut b, [put_when("v", "env=1", "of b")]);
        commit(&mut a, [put_when("v", "", "of a")]);
        b.resync(&a, must_replace, "b2");
        check(&mut b);
        pull(&mut a, &b);
        assert_eq!(a.clients(), b.clients());
        assert_eq!(a.clients().iter().filter(|client| client.starts_with("v ")).count(), 1);
    }
}

#[test]
fn sr20_commits_wait_for_the_end_of_a_resync() {
    let (a, mut b) = cut_off();
    b.step(Event::BeginResync { must_replace: false, new_id: "b2".into() });
    assert!(b.store.is_resyncing());
    assert_eq!(b.code(of([put("x", "1")])), RefusalCode::Unavailable);
    let of_a = a.entries_for(&b, 9);
    // They are on their way, and go together with the snapshot.
    b.step(Event::Merge(Ticket(0), of_a, None));
    assert!(b.merged.pop().unwrap().unwrap().stopped.is_empty());
    b.wait(700 * SECOND);
    b.resync(&a, false, "b2");
    assert!(!b.store.is_resyncing());
    commit(&mut b, [put("x", "1")]);
}

/// The nodes that have what it lacks may be lost.
#[test]
fn sr33_a_node_that_takes_a_snapshot_forgets_others_at_once() {
    for must_replace in [false, true] {
        let (a, mut b) = cut_off();
        b.step(Event::BeginResync { must_replace, new_id: "b2".into() });
        commit(&mut b, [forget("y"), forget("z")]);
        assert_eq!(b.code(of([forget("x"), put("x", "1")])), RefusalCode::Unavailable);
        assert!(b.store.forgotten().eq(["y", "z"]));
        b.resync(&a, must_replace, "b2");
        assert!(b.store.forgotten().eq(["y", "z"]));
        check(&mut b);
    }
}

#[test]
fn sr23_a_crash_before_the_end_leaves_the_records_as_they_were() {
    let (a, mut b) = cut_off();
    let before = states(&b);
    let pages = a.snapshot(1);
    b.step(Event::BeginResync { must_replace: false, new_id: "b2".into() });
    for page in &pages[..pages.len() - 1] {
        b.step(Event::Stage(Ticket(0), page.clone()));
        assert_eq!(b.staged.pop().unwrap().unwrap(), Staged::Kept);
    }
    assert_eq!(states(&b), before);
    check(&mut b);
    assert!(b.store.head().has_staged && !b.store.is_resyncing());
    // What the crash left does not count for the next one.
    let mut c = node("c");
    commit(&mut c, [put("of-c", "1")]);
    b.resync(&c, false, "b2");
    let names: Vec<_> = states(&b).into_iter().map(|state| state.key.unwrap().name).collect();
    assert_eq!(names, ["both", "gone", "kept", "of-b", "of-c"]);
    b.wait(SECOND);
    assert!(!b.store.head().has_staged, "what was staged is dropped");
    check(&mut b);
}

#[test]
fn sr23_a_page_that_cannot_be_used_ends_the_resync() {
    let (a, mut b) = cut_off();
    let before = states(&b);
    let mut page = a.snapshot(1 << 20).remove(0);
    page.records[0].digest = Default::default();
    b.step(Event::BeginResync { must_replace: false, new_id: "b2".into() });
    b.step(Event::Stage(Ticket(0), page));
    assert!(b.staged.pop().unwrap().is_err());
    assert!(!b.store.is_resyncing());
    assert_eq!(states(&b), before);
    b.fates.extend([Fate::WrittenUnknown, Fate::LostUnknown, Fate::WrittenUnknown]);
    b.resync(&a, false, "b2");
    assert_eq!(payload(&b, "both").as_deref(), Some("of a"), "ST20: the outcome of a batch was not reported");
    check(&mut b);
}

#[test]
fn sr21_sr22_a_snapshot_that_replaces_keeps_what_revives_nothing() {
    let (mut a, mut b) = cut_off();
    commit(&mut b, [put("created", "of b"), put("gone", "of b"), put("kept", "of b")]);
    commit(&mut b, [put("deleted", "1")]);
    commit(&mut b, [delete("deleted")]);
    forget_all(&mut a);
    assert_eq!(a.store.counts().1, 0);
    let out_of_sync = a.store.lacking(&b.store.clock(), 9).out_of_sync;
    assert!(out_of_sync.iter().any(|origin| origin.must_replace), "SR18");
    assert!(a.store.may_revive(&counters(&b)), "nobody takes its entries before");
    let resynced = b.resync(&a, true, "b2");
    assert!(!a.store.may_revive(&counters(&b)));
    assert!(resynced.has_replaced);
    let dropped: Vec<_> = resynced.dropped.iter().map(|(key, _)| key.name().as_str().to_owned()).collect();
    assert_eq!(dropped, ["gone"], "a change of what was deleted meanwhile");
    let Head { node, former_nodes, counter, .. } = b.store.head().clone();
    assert_eq!((&*node, &*former_nodes, counter), ("b2", &["b".to_owned()][..], 1));
    assert!(b.record("gone", "").is_none());
    assert_eq!(payload(&b, "created").as_deref(), Some("of b"));
    assert_eq!(payload(&b, "kept").as_deref(), Some("of b"));
    assert_eq!(payload(&b, "both").as_deref(), Some("of a"));
    check(&mut b);
    pull(&mut a, &b);
    assert_eq!(payload(&a, "created").as_deref(), Some("of b"));
    assert_eq!(payload(&a, "kept").as_deref(), Some("of b"));
    assert!(a.record("gone", "").is_none());
    // SR27: a record that is created again is not one that was deleted.
    let created = a.record("created", "").unwrap().incarnation;
    commit(&mut b, [put("gone", "2")]);
    assert!(b.record("gone", "").unwrap().incarnation > 1 && created > 1);
    pull(&mut a, &b);
    assert_eq!(payload(&a, "gone").as_deref(), Some("2"));
}

#[test]
fn sr21_sr22_what_a_snapshot_replaces_is_no_deletion_for_others() {
    let (mut a, mut c, mut d) = (node("a"), node("c"), node("d"));
    commit(&mut a, [put("x", "of a")]);
    // So the log of C does not say who made it.
    c.resync(&a, false, "c2");
    commit(&mut c, [put("of-c", "1")]);
    commit(&mut d, [put("y", "1")]);
    commit(&mut d, [delete("y")]);
    forget_all(&mut d);
    let resynced = c.resync(&d, true, "c2");
    assert!(resynced.has_replaced && c.record("x", "").is_none(), "D never had it");
    let records = c.snapshot(1_000).into_iter().flat_map(|page| page.records);
    assert_eq!(records.map(|state| state.key.unwrap().name).collect::<Vec<_>>(), ["of-c"]);
    check(&mut c);
    c.restart();
    pull(&mut c, &a);
    a.resync(&c, true, "a2");
    for node in [&a, &c] {
        assert_eq!(
            payload(node, "x").as_deref(),
            Some("of a"),
            "it comes back from A, and nothing ended it there"
        );
    }
    check(&mut c);
}

#[test]
fn sr21_a_node_without_anything_of_its_own_keeps_its_id() {
    let (mut a, _) = cut_off();
    forget_all(&mut a);
    let mut c = node("c");
    assert!(!c.resync(&a, true, "c2").has_replaced);
    assert_eq!(&*c.store.head().node, "c");
    converge(&mut a, &mut c);
}

#[test]
fn sr24_a_new_node_of_a_cluster_waits_for_its_first_snapshot() {
    let (mut a, _) = cut_off();
    forget_all(&mut a);
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init_joining(&Identity { node: "c".into(), ..Identity::default() })).unwrap();
    let mut c = on(engine, SECOND);
    assert_eq!(c.code(of([put("x", "1")])), RefusalCode::Unavailable);
    c.restart();
    assert_eq!(c.code(of([put("x", "1")])), RefusalCode::Unavailable);
    let resynced = c.resync(&a, false, "c2");
    assert!(!resynced.has_replaced && c.store.revision() == 1);
    commit(&mut c, [put("x", "1")]);
    converge(&mut a, &mut c);
    // SR18: no node that had less hears that there is nothing.
    assert!(!c.store.lacking(&Default::default(), 9).out_of_sync.is_empty());
}

#[test]
fn sr24_the_first_snapshot_may_be_that_of_an_empty_cluster() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init_joining(&Identity { node: "c".into(), ..Identity::default() })).unwrap();
    let mut c = on(engine, SECOND);
    c.resync(&node("a"), false, "c2");
    assert_eq!(c.store.revision(), 0, "it waits for its first commit as any store (ST5)");
    commit(&mut c, []);
    assert_eq!(c.store.revision(), 1);
}

#[test]
fn sr27_new_keys_start_above_what_the_node_of_a_snapshot_has_forgotten() {
    let mut a = node("a");
    for _ in 0..3 {
        commit(&mut a, [put("x", "1")]);
        commit(&mut a, [delete("x")]);
    }
    forget_all(&mut a);
    assert_eq!((a.store.counts().1, a.store.head().incarnation_floor), (0, 3));
    let mut b = node("b");
    b.resync(&a, false, "b2");
    commit(&mut b, [put("x", "1")]);
    assert_eq!(b.record("x", "").unwrap().incarnation, 4);
}

#[test]
fn sr29_sr31_a_node_with_a_new_id_gives_others_what_they_lack() {
    let mut a = node("a");
    commit(&mut a, [put("x", "1"), put("y", "1")]);
    let mut b = node("b");
    pull(&mut b, &a);
    // Two processes run with one id: both write, and B follows one of them.
    let mut twin = on(copy_of(&a.engine), a.now);
    commit(&mut a, [put("x", "of a"), put("of-a", "1")]);
    commit(&mut twin, [put("y", "of twin"), put("of-twin", "1")]);
    pull(&mut b, &a);
    assert_eq!(b.store.lacking(&twin.store.clock(), 9).forked, ["a"]);
    for (node, id) in [(&mut a, "a2"), (&mut twin, "a3")] {
        node.take_id(id);
        assert_eq!((&*node.store.head().node, node.store.head().counter), (id, 0), "SR4");
        assert!(node.store.owes_reissue());
        // SR29: it goes on at once.
        commit(node, [put(&format!("after-{id}"), "1")]);
        check(node);
        assert!(node.store.owes_reissue());
        node.step(Event::BeginResync { must_replace: false, new_id: "other".into() });
        assert!(!node.store.is_resyncing(), "it keeps serving");
        let resynced = node.resync(&b, false, "other");
        assert!(!resynced.has_replaced && resynced.reissued > 0);
        assert!(!node.store.owes_reissue() && &*node.store.head().node == id);
        check(node);
    }
    for (to, from) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (0, 1), (0, 2)] {
        let all = [&mut a, &mut b, &mut twin];
        let entries = all[from].entries_for(all[to], 1_000);
        let stopped = all[to].merge(entries);
        assert!(stopped.keys().all(|origin| origin == "a"), "SR30: {stopped:?}");
    }
    let expected = states(&a);
    assert_eq!(states(&b), expected);
    assert_eq!(states(&twin), expected);
    for name in ["of-a", "of-twin", "after-a2", "after-a3"] {
        assert_eq!(payload(&b, name).as_deref(), Some("1"), "{name}");
    }
    assert_eq!(payload(&b, "y").as_deref(), Some("of twin"));
}

/// A store that was made from a backup of this one.
fn restored(backup: &[u8], id: &str, cluster: Option<&str>, now: i64) -> Server {
    let mut engine = MemoryEngine::default();
    let ids = NewIds { node: id.into(), cluster: cluster.map(str::to_owned) };
    restore(&mut Cursor::new(backup), &mut engine, &ids, &mut |_| {}).unwrap();
    on(engine, now)
}

fn backup(node: &Server, history: History) -> Vec<u8> {
    let parts = Backup::new(node.engine.view().unwrap(), history).unwrap();
    parts.flat_map(|part| part.unwrap().data.to_vec()).collect()
}

#[test]
fn sr31_a_restored_node_loses_nothing_that_peers_have_and_gives_them_what_they_lack() {
    for history in [History::Whole, History::LeftOut] {
        let (mut a, mut b) = (node("a"), node("b"));
        commit(&mut a, [put("x", "1"), put("y", "1")]);
        pull(&mut b, &a);
        // B never gets this one from A.
        commit(&mut a, [put("unpulled", "1"), delete("y")]);
        let file = backup(&a, history);
        commit(&mut b, [put("x", "of b")]);
        let mut a = restored(&file, "a2", None, a.now);
        assert!(a.store.owes_reissue());
        commit(&mut a, [put("after", "1")]);
        assert_eq!((&*a.store.head().node, a.store.head().counter), ("a2", 1), "SR4");
        a.resync(&b, false, "a3");
        assert!(!a.store.owes_reissue());
        assert_eq!(payload(&a, "x").as_deref(), Some("of b"));
        match history {
            History::Whole => pull(&mut b, &a),
            // The log of the former id is gone, so its entries are those of a snapshot.
            History::LeftOut => _ = b.resync(&a, false, "b2"),
        }
        for name in ["unpulled", "after"] {
            assert_eq!(payload(&b, name).as_deref(), Some("1"), "{name}");
        }
        assert!(b.record("y", "").is_none());
        assert_eq!(states(&a), states(&b));
        check(&mut a);
    }
}

#[test]
fn sr31_a_backup_that_is_older_than_what_was_forgotten_revives_nothing() {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut a, [put("x", "1"), put("y", "1")]);
    let file = backup(&a, History::Whole);
    commit(&mut a, [delete("y")]);
    pull(&mut b, &a);
    forget_all(&mut b);
    assert_eq!(b.store.counts(), (1, 0));
    let mut a = restored(&file, "a2", None, a.now);
    commit(&mut a, [put("after", "1")]);
    let out_of_sync = b.store.lacking(&a.store.clock(), 9).out_of_sync;
    assert!(out_of_sync[0].must_replace);
    assert!(a.resync(&b, true, "a3").has_replaced);
    assert!(!a.store.owes_reissue());
    pull(&mut b, &a);
    assert_eq!(b.record("y", ""), None);
    assert_eq!(payload(&b, "after").as_deref(), Some("1"));
    check(&mut a);
}

#[test]
fn sr32_a_new_cluster_owes_nobody_anything() {
    let (a, _) = cut_off();
    let of_new_cluster = restored(&backup(&a, History::Whole), "a2", Some("other"), a.now);
    assert!(!of_new_cluster.store.owes_reissue());
    assert_eq!(&*of_new_cluster.store.head().cluster, "other");
}

/// The snapshot brings the rollout of a commit to a node that has not heard of the commit, and to no other node.
#[test]
fn a_snapshot_brings_the_steps_of_a_commit_that_is_new_here() {
    let asking = |name: &str, step: &str| {
        let rollout = proto::Rollout { steps: vec![step.to_owned()], wait: None };
        proto::CommitRequest { rollout: Some(rollout), ..of([put(name, "1")]) }
    };
    let number = |node: &Server| node.store.head().requested_rollout().map(|requested| requested.number);
    let (mut one, mut other, mut third) = (node("one"), node("other"), node("third"));
    one.commit(asking("a", "1 client")).unwrap();
    pull(&mut other, &one);
    assert_eq!(number(&other), Some(1));
    commit(&mut one, [put("b", "1")]);
    other.resync(&one, false, "");
    third.resync(&one, false, "");
    assert_eq!((number(&other), number(&third)), (Some(1), Some(third.store.revision())));
}
