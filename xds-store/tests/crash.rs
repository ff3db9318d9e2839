//! Failures at every operation of the disk: power cuts, errors, no room. An acknowledged commit is
//! there whole, every other one whole or absent (ST7, ST16, ST21, ST22).
#![cfg(feature = "redb")]
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::{Engine, EngineError, MemoryEngine, Reader, RedbEngine};
use xds_store::store::{Action, Config, Event, Identity, Loaded, Store, Ticket};

/// A disk that keeps what was synced, and what was written since.
#[derive(Debug, Default, Clone)]
struct Disk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    synced: Vec<u8>,
    /// Writes since the last sync, in order; a change of the length has no bytes.
    unsynced: Vec<(u64, Option<Vec<u8>>)>,
    current: Vec<u8>,
    operations: usize,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// From this operation on, all fail.
    Stops(usize),
    /// This operation fails.
    FailsOnce(usize),
    /// From this operation on there is no room to write, and with `false` neither for a longer file.
    /// Syncs succeed.
    Full(usize, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    SetLen,
    Sync,
}

impl DiskState {
    fn operation(&mut self, operation: Operation) -> io::Result<()> {
        self.operations += 1;
        let now = self.operations - 1;
        match self.fault {
            Some(Fault::Stops(at)) if now >= at => Err(io::Error::other("the power is cut")),
            Some(Fault::FailsOnce(at)) if now == at => Err(io::Error::other("the disk failed")),
            Some(Fault::Full(at, is_sparse)) if now >= at => match operation {
                Operation::Sync => Ok(()),
                Operation::SetLen if is_sparse => Ok(()),
                Operation::Write | Operation::SetLen => Err(io::ErrorKind::StorageFull.into()),
            },
            _ => Ok(()),
        }
    }

    fn apply(content: &mut Vec<u8>, offset: u64, bytes: Option<&[u8]>) {
        let offset = usize::try_from(offset).unwrap();
        match bytes {
            Some(bytes) => content[offset..offset + bytes.len()].copy_from_slice(bytes),
            None => content.resize(offset, 0),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let state = self.0.lock().unwrap();
        let found = state.current.get(offset..offset + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation(Operation::SetLen)?;
        DiskState::apply(&mut state.current, len, None);
        state.unsynced.push((len, None));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation(Operation::Sync)?;
        state.synced = state.current.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let done = state.operation(Operation::Write);
        // What fails may be written in part; without room by whole blocks.
        let data = match &done {
            Ok(()) => data,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => &data[..data.len() / 2 / 4096 * 4096],
            Err(_) => &data[..data.len() / 2],
        };
        DiskState::apply(&mut state.current, offset, Some(data));
        state.unsynced.push((offset, Some(data.to_vec())));
        done
    }
}

impl Disk {
    fn with(fault: Fault) -> Self {
        let disk = Self::default();
        disk.set(Some(fault));
        disk
    }

    fn set(&self, fault: Option<Fault>) {
        self.0.lock().unwrap().fault = fault;
    }

    /// The disk after the power cut: what was synced, and those of the later writes that `keeps`
    /// selects by their number; of the last one only the first half, with `is_torn`.
    fn after_power_cut(&self, keeps: impl Fn(usize) -> bool, is_torn: bool) -> Self {
        let state = self.0.lock().unwrap();
        let mut content = state.synced.clone();
        // The length of a file is kept in order with its data by no file system; the longest counts.
        content.resize(content.len().max(state.current.len()), 0);
        for (number, (offset, bytes)) in state.unsynced.iter().enumerate() {
            let Some(bytes) = bytes.as_deref().filter(|_| keeps(number)) else { continue };
            let is_last = number + 1 == state.unsynced.len();
            let bytes = if is_last && is_torn { &bytes[..bytes.len() / 2] } else { bytes };
            let end = usize::try_from(*offset).unwrap() + bytes.len();
            content.resize(content.len().max(end), 0);
            DiskState::apply(&mut content, *offset, Some(bytes));
        }
        let state = DiskState { synced: content.clone(), current: content, ..DiskState::default() };
        Self(Arc::new(Mutex::new(state)))
    }
}

/// The contents of all records by name.
type Contents = BTreeMap<String, Vec<u8>>;

fn draft(changes: &[(&str, Option<u8>)]) -> Draft {
    let changes = changes.iter().map(|(name, payload)| {
        let key = proto::Key {
            type_url: "example.com/acme.Thing".into(),
            name: (*name).into(),
            when: String::new(),
        };
        let act = match payload {
            Some(byte) => {
                let content =
                    proto::Content { payload: vec![*byte; 300].into(), ..proto::Content::default() };
                proto::change::Act::Put(proto::Put { content: Some(content), ..proto::Put::default() })
            }
            None => proto::change::Act::Delete(proto::Delete::default()),
        };
        proto::Change { key: Some(key), act: Some(act), ..proto::Change::default() }
    });
    let request = proto::CommitRequest { changes: changes.collect(), ..proto::CommitRequest::default() };
    Draft::parse(request, "test".to_owned()).unwrap()
}

/// The commits of a history: each changes two or three records, so that a part of it is seen.
fn history() -> Vec<Vec<(&'static str, Option<u8>)>> {
    (0..6u8)
        .map(|number| {
            let third = if number % 2 == 0 { Some(number) } else { None };
            vec![("a", Some(number)), ("b", Some(100 + number)), ("c", third)]
        })
        .collect()
}

/// The contents after each number of commits.
fn model() -> Vec<Contents> {
    let mut contents = vec![Contents::new()];
    for commit in history() {
        let mut next = contents.last().unwrap().clone();
        apply(&mut next, &commit);
        contents.push(next);
    }
    contents
}

fn apply(contents: &mut Contents, commit: &[(&'static str, Option<u8>)]) {
    for (name, payload) in commit {
        match payload {
            Some(byte) => _ = contents.insert((*name).to_owned(), vec![*byte; 300]),
            None => _ = contents.remove(*name),
        }
    }
}

/// A store on a disk, which is driven until it answers.
struct Driven {
    engine: RedbEngine,
    store: Store,
    reader: Arc<dyn Reader>,
}

impl Driven {
    /// `None` if the disk fails before there is a store.
    fn init(disk: &Disk) -> Option<Self> {
        let mut engine = RedbEngine::on_backend(disk.clone()).ok()?;
        engine.commit(&Store::init(&Identity::default())).ok()?;
        let config = Config::new(engine.limits(), 1);
        let store = Store::load(&*engine.view().ok()?, config, 0, |_| {}).ok()?;
        let reader = engine.reader();
        Some(Self { engine, store, reader })
    }

    fn commit(&mut self, changes: &[(&str, Option<u8>)]) -> Result<u64, RefusalCode> {
        let mut events = vec![Event::Commit(Ticket(0), draft(changes))];
        let mut answers = Vec::new();
        while let Some(event) = events.pop() {
            for action in self.store.step(event, 0, &*self.reader) {
                match action {
                    Action::Write(batch) => events.push(Event::Written(self.engine.commit(&batch))),
                    Action::Answer(_, answer) => answers.push(answer),
                    Action::Publish(_)
                    | Action::Merged(..)
                    | Action::Staged(..)
                    | Action::TookId(..)
                    | Action::AnswerRegion(..)
                    | Action::CallRegion { .. }
                    | Action::Compacted(..) => {}
                }
            }
        }
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        answer.as_ref().map(|committed| committed.revision).map_err(|refused| refused.code)
    }

    /// What a reader sees.
    fn contents(&self) -> Contents {
        contents_of(&*self.reader.view().unwrap()).unwrap().1
    }
}

/// The store revision and the contents.
fn contents_of(view: &dyn xds_store::engine::View) -> Option<(u64, Contents)> {
    let mut contents = Contents::new();
    let each = |loaded: Loaded| {
        if loaded.state.lifecycle() == proto::State::Live {
            let payload = loaded.state.content.unwrap_or_default().payload;
            contents.insert(loaded.key.name().as_str().to_owned(), payload.into());
        }
    };
    let config = Config::new(MemoryEngine::default().limits(), 1);
    let revision = Store::load(view, config, 0, each).ok()?.revision();
    Some((revision, contents))
}

/// What a process finds that opens the disk; `None` if there is no store.
fn reopened(disk: Disk) -> Option<(u64, Contents)> {
    let engine = RedbEngine::on_backend(disk).ok()?;
    contents_of(&*engine.view().ok()?)
}

/// Runs the history; returns the number of acknowledged commits, and `None` if there is no store.
fn run(disk: &Disk) -> Option<u64> {
    let mut store = Driven::init(disk)?;
    let acked = history().into_iter().filter(|commit| store.commit(commit).is_ok()).count();
    Some(acked as u64)
}

/// The number of operations of the whole history.
fn operations() -> usize {
    let whole = Disk::default();
    assert_eq!(run(&whole), Some(history().len() as u64));
    let state = whole.0.lock().unwrap();
    state.operations
}

/// The disk after each kind of power cut.
fn power_cuts(disk: &Disk) -> impl Iterator<Item = (usize, Disk)> {
    let cuts: [(&dyn Fn(usize) -> bool, bool); 5] = [
        (&|_| false, false),
        (&|_| true, false),
        (&|_| true, true),
        (&|number| number % 2 == 0, false),
        (&|number| number % 2 == 1, true),
    ];
    cuts.map(|(keeps, is_torn)| disk.after_power_cut(keeps, is_torn)).into_iter().enumerate()
}

#[test]
fn st7_st16_a_power_cut_at_each_operation_leaves_whole_commits_and_loses_none_that_was_acknowledged() {
    let models = model();
    let mut recovered = 0;
    for stops_at in 0..operations() {
        let disk = Disk::with(Fault::Stops(stops_at));
        let acked = run(&disk);
        for (cut, disk) in power_cuts(&disk) {
            let Some((revision, contents)) = reopened(disk) else {
                assert_eq!(acked, None, "stop {stops_at}, cut {cut}: the store is gone");
                continue;
            };
            assert!(revision >= acked.unwrap_or(0), "stop {stops_at}, cut {cut}: a commit is lost");
            let expected = &models[usize::try_from(revision).unwrap()];
            assert_eq!(&contents, expected, "stop {stops_at}, cut {cut}, revision {revision}");
            recovered += 1;
        }
    }
    assert!(recovered > 100, "only {recovered}");
}

#[test]
fn st16_st21_after_a_failure_readers_go_on_and_no_commit_is_accepted_until_the_process_restarts() {
    let models = model();
    let mut failed = 0;
    for fails_at in 0..operations() {
        let disk = Disk::with(Fault::FailsOnce(fails_at));
        let Some(mut store) = Driven::init(&disk) else { continue };
        let old = store.reader.view().unwrap();
        let acks: Vec<bool> = history().iter().map(|commit| store.commit(commit).is_ok()).collect();
        let acked = acks.iter().filter(|ack| **ack).count();
        assert!(acks.is_sorted_by_key(|ack| !ack), "stop {fails_at}: {acks:?}");
        assert_eq!(store.contents(), models[acked], "stop {fails_at}: nobody sees what is not durable");
        if acked < models.len() - 1 {
            failed += 1;
            let batch = Store::init(&Identity::default());
            let again = store.engine.commit(&batch);
            assert!(matches!(again, Err(EngineError::Broken(_))), "stop {fails_at}: {again:?}");
            // A view from before the failure is right, or has to be opened again.
            match old.get(b"h") {
                Ok(Some(_)) | Err(EngineError::Compacted) => {}
                other => panic!("stop {fails_at}: {other:?}"),
            }
        }
        drop(store);
        let restarted = reopened(disk.after_power_cut(|_| true, false));
        for (cut, found) in power_cuts(&disk).map(|(cut, disk)| (cut, reopened(disk))).chain([(9, restarted)])
        {
            let (revision, contents) = found.unwrap();
            let revision = usize::try_from(revision).unwrap();
            assert!(revision >= acked, "stop {fails_at}, cut {cut}: a commit is lost");
            assert_eq!(contents, models[revision], "stop {fails_at}, cut {cut}");
        }
    }
    assert!(failed > 20, "only {failed}");
}

#[test]
fn st22_a_full_disk_refuses_commits_and_changes_nothing_and_later_ones_succeed() {
    let mut refusals = 0;
    for (full_at, is_sparse) in (0..operations()).flat_map(|at| [(at, true), (at, false)]) {
        let disk = Disk::with(Fault::Full(full_at, is_sparse));
        let Some(mut store) = Driven::init(&disk) else { continue };
        let mut expected = Contents::new();
        let mut revision = 0;
        let mut has_refused = false;
        for (number, commit) in history().into_iter().chain(history()).enumerate() {
            if number == history().len() {
                disk.set(None);
            }
            match store.commit(&commit) {
                Ok(at) => {
                    revision = at;
                    apply(&mut expected, &commit);
                }
                Err(code) => {
                    assert_eq!(code, RefusalCode::ResourceExhausted, "full {full_at}, commit {number}");
                    assert!(number < history().len(), "full {full_at}: there is room again");
                    has_refused = true;
                }
            }
            assert_eq!(store.contents(), expected, "full {full_at}, commit {number}");
        }
        refusals += usize::from(has_refused);
        drop(store);
        for (cut, disk) in power_cuts(&disk) {
            assert_eq!(reopened(disk), Some((revision, expected.clone())), "full {full_at}, cut {cut}");
        }
    }
    assert!(refusals > 20, "only {refusals}");
}

#[test]
fn st22_after_a_crash_with_a_full_disk_no_refused_commit_is_there() {
    for full_at in 0..operations() {
        let disk = Disk::with(Fault::Full(full_at, true));
        let Some(mut store) = Driven::init(&disk) else { continue };
        let acked = history().iter().filter(|commit| store.commit(commit).is_ok()).count();
        let found = power_cuts(&disk).map(|(_, disk)| reopened(disk).unwrap()).collect::<Vec<_>>();
        for (cut, (revision, contents)) in found.into_iter().enumerate() {
            assert_eq!(revision, acked as u64, "full {full_at}, cut {cut}");
            assert_eq!(contents, model()[acked], "full {full_at}, cut {cut}");
        }
    }
}
