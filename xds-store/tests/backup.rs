//! Backups of a store, and what is restored from them.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, BackupError, BackupReader, History, PART_BYTES, ReadError};
use xds_store::clock::Clock;
use xds_store::commit::Draft;
use xds_store::engine::{
    Batch, Changes, Engine, EngineError, EngineLimits, EngineRevision, MemoryEngine, Reader,
};
use xds_store::log::{Head, RevisionError, StoreRevision};
use xds_store::restore::{NewIds, Progress, RestoreError, Step, restore};
use xds_store::store::{Action, Config, Event, Identity, LoadError, Store, Ticket};

fn config() -> Config {
    Config::new(MemoryEngine::default().limits(), 1)
}

/// Records, deleted ones and a few versions of each.
fn engine() -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    let identity = Identity { node: "old".into(), cluster: "c".into(), region: "r".into(), is_replica: true };
    engine.commit(&Store::init(&identity)).unwrap();
    for round in 0..3_u8 {
        commit(&mut engine, (0..20).map(|at| (at, Some(vec![round; 100]))).collect());
    }
    commit(&mut engine, vec![(3, None), (4, None)]);
    engine
}

fn commit(engine: &mut MemoryEngine, changes: Vec<(usize, Option<Vec<u8>>)>) {
    let change = |(at, payload): (usize, Option<Vec<u8>>)| {
        let key = proto::Key { type_url: "t/T".into(), name: format!("n{at}"), when: String::new() };
        let act = match payload {
            Some(payload) => proto::change::Act::Put(proto::Put {
                content: Some(proto::Content { payload: payload.into(), ..Default::default() }),
                ..Default::default()
            }),
            None => proto::change::Act::Delete(proto::Delete::default()),
        };
        proto::Change { key: Some(key), act: Some(act), condition: None }
    };
    let changes = changes.into_iter().map(change).collect();
    let request = proto::CommitRequest { changes, ..Default::default() };
    let mut store = Store::load(&*engine.view().unwrap(), config(), 0, |_| {}).unwrap();
    let draft = Draft::parse(request, "token:me".into()).unwrap();
    for action in store.step(Event::Commit(Ticket(1), draft), 1, &*engine.reader()) {
        let Action::Write(batch) = action else { panic!("{action:?}") };
        engine.commit(&batch).unwrap();
    }
}

fn backup(engine: &dyn Engine, history: History) -> Vec<u8> {
    let parts = Backup::new(engine.view().unwrap(), history).unwrap().map(Result::unwrap);
    parts.flat_map(|part| part.data).collect()
}

fn restored(backup: &[u8], engine: &mut dyn Engine) -> Result<Head, RestoreError> {
    restore(&mut Cursor::new(backup), engine, &ids("new"), &mut |_| {})
}

fn ids(node: &str) -> NewIds {
    NewIds { node: node.to_owned(), cluster: None }
}

/// Everything but the head and the origins.
fn content(engine: &dyn Engine) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut content = BTreeMap::new();
    let keep = &mut |key: &[u8], value: xds_store::engine::Value| {
        content.insert(key.to_vec(), value.bytes.to_vec());
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"a", b"{", keep).unwrap();
    content.retain(|key, _| !key.starts_with(b"h") && !key.starts_with(b"c"));
    content
}

fn records(engine: &dyn Engine) -> BTreeMap<String, String> {
    let mut records = BTreeMap::new();
    Store::load(&*engine.view().unwrap(), config(), 0, |loaded| {
        records.insert(format!("{:?}", loaded.key), format!("{:?}", loaded.state));
    })
    .unwrap();
    records
}

/// An engine with limits, of which the commits from a number on fail.
#[derive(Debug)]
struct Limited {
    engine: MemoryEngine,
    limits: EngineLimits,
    commits: usize,
    fails_from: usize,
}

impl Limited {
    fn new(operations: usize, value_bytes: usize) -> Self {
        let limits = EngineLimits { operations, bytes: 10_000, value_bytes, ..EngineLimits::default() };
        Self { engine: MemoryEngine::default(), limits, commits: 0, fails_from: usize::MAX }
    }
}

impl Engine for Limited {
    fn reader(&self) -> Arc<dyn Reader> {
        self.engine.reader()
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        self.limits.check(batch)?;
        self.commits += 1;
        if self.commits > self.fails_from {
            return Err(EngineError::Full);
        }
        self.engine.commit(batch)
    }

    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        self.engine.changes(key)
    }
}

#[test]
fn st45_st46_a_restored_store_has_the_same_records_and_history() {
    let from = engine();
    let file = backup(&from, History::Whole);
    let mut to = MemoryEngine::default();
    let mut steps = Vec::new();
    let head =
        restore(&mut Cursor::new(&file), &mut to, &ids("new"), &mut |progress| steps.push(progress)).unwrap();
    assert_eq!(content(&to), content(&from));
    assert_eq!(records(&to), records(&from));
    assert_eq!((head.revision, head.cluster.as_str(), head.region.as_str()), (4, "c", "r"));
    // 4 commits, 62 versions.
    let done = Progress { step: Step::Write, entries_done: 66, entries: 66 };
    assert_eq!(steps.last(), Some(&done));
    commit(&mut to, vec![(1, Some(b"after".to_vec()))]);
}

#[test]
fn sr31_a_restored_store_has_a_new_node_and_other_revisions() {
    let from = engine();
    let old = Store::load(&*from.view().unwrap(), config(), 0, |_| {}).unwrap().head().clone();
    let mut to = MemoryEngine::default();
    let head = restored(&backup(&from, History::Whole), &mut to).unwrap();
    assert_eq!((head.node.as_str(), &head.former_nodes[..], head.counter), ("new", &["old".into()][..], 0));
    let revision = StoreRevision::of(&old, 4).to_string();
    assert_eq!(StoreRevision::parse(&head, &revision), Err(RevisionError::OtherStore));
    let mut again = MemoryEngine::default();
    let head = restore(&mut Cursor::new(backup(&to, History::Whole)), &mut again, &ids("newer"), &mut |_| {})
        .unwrap();
    assert_eq!((&head.former_nodes[..], head.cluster.as_str()), (&["old".into(), "new".into()][..], "c"));
    let ids = NewIds { cluster: Some("other".into()), ..ids("newest") };
    let file = backup(&to, History::Whole);
    let head = restore(&mut Cursor::new(file), &mut MemoryEngine::default(), &ids, &mut |_| {}).unwrap();
    assert_eq!(head.cluster, "other");
}

#[test]
fn sr9_sr31_a_restored_store_has_all_entries_of_the_node_that_it_was_and_none_of_its_own() {
    let engine = engine();
    let load = |engine: &MemoryEngine| Store::load(&*engine.view().unwrap(), config(), 0, |_| {}).unwrap();
    let position = load(&engine).clock().get("old");
    assert_eq!(position.counter, 4);
    for (history, lacked) in [(History::Whole, 4), (History::LeftOut, 0)] {
        let mut target = MemoryEngine::default();
        restored(&backup(&engine, history), &mut target).unwrap();
        let check = |target: &MemoryEngine, counters: [u64; 2]| {
            let store = load(target);
            assert_eq!(["old", "new"].map(|node| store.clock().get(node).counter), counters);
            assert_eq!(store.clock().get("old"), position);
            store.lacking(&Clock::default(), 100)
        };
        let lacking = check(&target, [4, 0]);
        // What is forgotten is said to be: a node that lacks it takes a snapshot.
        assert_eq!(lacking.revisions.len(), lacked);
        assert_eq!(lacking.out_of_sync.len(), usize::from(lacked == 0));
        commit(&mut target, vec![(1, Some(vec![9]))]);
        check(&target, [4, 1]);
        // Once more, with an origin that is no longer the node.
        let mut again = MemoryEngine::default();
        let backup = backup(&target, history);
        restore(&mut Cursor::new(&backup), &mut again, &ids("newest"), &mut |_| {}).unwrap();
        check(&again, [4, 1]);
        let mut found = Vec::new();
        xds_store::check::check_store(&*again.view().unwrap(), &mut |finding| found.push(finding)).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn st45_a_backup_has_the_revision_of_its_view_whatever_is_committed_meanwhile() {
    let mut from = engine();
    let expected = content(&from);
    let parts = Backup::new(from.view().unwrap(), History::Whole).unwrap();
    commit(&mut from, vec![(1, Some(b"later".to_vec())), (30, Some(b"new".to_vec()))]);
    let file: Vec<u8> = parts.flat_map(|part| part.unwrap().data).collect();
    let mut to = MemoryEngine::default();
    restored(&file, &mut to).unwrap();
    assert_eq!(content(&to), expected);
}

#[test]
fn st45_without_history_a_backup_has_the_present_state_of_each_record() {
    let from = engine();
    let mut to = MemoryEngine::default();
    let file = backup(&from, History::LeftOut);
    let header = BackupReader::new(&file[..]).unwrap().header().clone();
    assert_eq!((header.entries, header.records, header.has_history), (20, 20, false));
    let head = restored(&file, &mut to).unwrap();
    assert_eq!((head.revision, head.floor), (4, 4));
    assert_eq!(records(&to), records(&from));
    assert_eq!(content(&to).len(), 20);
    commit(&mut to, vec![(4, Some(b"again".to_vec()))]);
}

#[test]
fn st45_parts_are_bounded_and_end_with_the_digest() {
    let mut from = engine();
    // What cannot be compressed.
    let mut noise = 1_u64;
    let mut random = || {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (noise >> 56) as u8
    };
    for at in 0..3 {
        commit(&mut from, vec![(at, Some((0..1_500_000).map(|_| random()).collect()))]);
    }
    for history in [History::Whole, History::LeftOut] {
        let parts: Vec<_> = Backup::new(from.view().unwrap(), history).unwrap().map(Result::unwrap).collect();
        assert!(parts.len() >= 5 && parts.iter().all(|part| part.data.len() <= PART_BYTES));
        let file: Vec<u8> = parts.iter().flat_map(|part| part.data.clone()).collect();
        let (before, digest) = file.split_last_chunk().unwrap();
        assert_eq!(blake3::hash(before).as_bytes(), digest);
        let digests: Vec<_> = parts.iter().filter_map(|part| part.digest).collect();
        assert_eq!((digests, parts.last().unwrap().digest), (vec![*digest], Some(*digest)));
        restored(&file, &mut MemoryEngine::default()).unwrap();
    }
}

#[test]
fn st45_a_damaged_value_fails_the_backup() {
    let mut engine = engine();
    let damaged = content(&engine).into_keys().nth(30).unwrap();
    let writes = vec![(damaged.clone().into(), Some("damage".into()))];
    engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
    for history in [History::Whole, History::LeftOut] {
        let failed = Backup::new(engine.view().unwrap(), history);
        assert!(matches!(failed, Err(BackupError::Damaged(error)) if error.key == damaged));
    }
    let empty = Backup::new(MemoryEngine::default().view().unwrap(), History::Whole);
    assert!(matches!(empty, Err(BackupError::NoStore)));
}

#[test]
fn st46_a_backup_that_is_cut_or_changed_anywhere_is_refused_before_anything_is_written() {
    let file = backup(&engine(), History::LeftOut);
    let refuse = |file: &[u8], what: &str| {
        let mut to = MemoryEngine::default();
        assert!(matches!(restored(file, &mut to), Err(RestoreError::Backup(_))), "{what}");
        assert_eq!(to.view().unwrap().revision(), EngineRevision::default(), "{what}");
    };
    for at in 0..file.len() {
        refuse(&file[..at], &format!("cut at {at}"));
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 8);
        refuse(&changed, &format!("changed at {at}"));
    }
    refuse(&[&file[..], b"x"].concat(), "longer");
    let cut = BackupReader::new(&file[..file.len() - 1]).unwrap().last();
    assert!(matches!(cut, Some(Err(ReadError::Cut))));
    assert!(matches!(BackupReader::new(&b"cluster: a"[..]), Err(ReadError::NoBackup)));
}

#[test]
fn st46_a_restore_writes_only_to_an_empty_engine() {
    let file = backup(&engine(), History::Whole);
    let mut other = engine();
    let before = content(&other);
    assert!(matches!(restored(&file, &mut other), Err(RestoreError::NotEmpty { is_incomplete: false })));
    assert_eq!(content(&other), before);
}

#[test]
fn st46_batches_are_within_the_limits_of_the_engine_and_a_value_that_is_not_is_refused_at_once() {
    let file = backup(&engine(), History::Whole);
    let mut to = Limited::new(5, 10_000);
    restored(&file, &mut to).unwrap();
    assert_eq!(content(&to), content(&engine()));
    let mut to = Limited::new(5, 100);
    assert!(matches!(restored(&file, &mut to), Err(RestoreError::TooLarge { .. })));
    assert_eq!(to.commits, 0);
}

#[test]
fn st46_what_a_restore_leaves_that_fails_at_any_batch_is_no_store() {
    let file = backup(&engine(), History::Whole);
    let mut whole = Limited::new(5, 10_000);
    restored(&file, &mut whole).unwrap();
    assert!(whole.commits > 20);
    for fails_from in 0..whole.commits {
        let mut to = Limited { fails_from, ..Limited::new(5, 10_000) };
        assert!(matches!(restored(&file, &mut to), Err(RestoreError::Engine(EngineError::Full))));
        let loaded = Store::load(&*to.view().unwrap(), config(), 0, |_| {});
        if fails_from == 0 {
            assert!(matches!(loaded, Err(LoadError::NoStore)));
            continue;
        }
        assert!(matches!(loaded, Err(LoadError::Incomplete)), "{fails_from}");
        let again = restored(&file, &mut to.engine);
        assert!(matches!(again, Err(RestoreError::NotEmpty { is_incomplete: true })));
        // Neither can a new store begin beside the remains.
        assert!(to.engine.commit(&Store::init(&Identity::default())).is_err());
        assert!(matches!(Backup::new(to.view().unwrap(), History::Whole), Err(BackupError::NoStore)));
    }
}
