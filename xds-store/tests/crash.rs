//! Power cuts at every operation of the disk: an acknowledged commit is there whole, every other
//! one whole or absent (ST7, ST16).
#![cfg(feature = "redb")]
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::{Engine, RedbEngine};
use xds_store::store::{Action, Event, Identity, Store, Ticket};

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
    /// The operation at which the power is cut.
    stops_at: Option<usize>,
}

impl DiskState {
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.stops_at {
            Some(at) if self.operations > at => Err(io::Error::other("the power is cut")),
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
        state.operation()?;
        DiskState::apply(&mut state.current, len, None);
        state.unsynced.push((len, None));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation()?;
        state.synced = state.current.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation()?;
        DiskState::apply(&mut state.current, offset, Some(data));
        state.unsynced.push((offset, Some(data.to_vec())));
        Ok(())
    }
}

impl Disk {
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
        for (name, payload) in commit {
            match payload {
                Some(byte) => _ = next.insert(name.to_owned(), vec![byte; 300]),
                None => _ = next.remove(name),
            }
        }
        contents.push(next);
    }
    contents
}

/// Runs the history; returns the number of acknowledged commits, and `None` if there is no store.
fn run(disk: &Disk) -> Option<u64> {
    let mut engine = RedbEngine::on_backend(disk.clone()).ok()?;
    engine.commit(&Store::init(&Identity::default())).ok()?;
    let mut store = Store::load(&*engine.view().ok()?, |_, _| {}).ok()?;
    let mut acked = 0;
    for (number, commit) in history().into_iter().enumerate() {
        let ticket = Ticket(number as u64);
        let mut actions = store.step(Event::Commit(ticket, draft(&commit)), number as i64);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Write(batch) => actions = store.step(Event::Written(engine.commit(&batch)), 0),
                    Action::Answer(_, Ok(_)) => acked += 1,
                    Action::Answer(_, Err(_)) | Action::Publish(_) => {}
                }
            }
        }
    }
    Some(acked)
}

#[test]
fn st7_st16_a_power_cut_at_each_operation_leaves_whole_commits_and_loses_none_that_was_acknowledged() {
    let whole = Disk::default();
    assert_eq!(run(&whole), Some(history().len() as u64));
    let operations = whole.0.lock().unwrap().operations;
    let models = model();
    let mut recovered = 0;
    for stops_at in 0..operations {
        let disk = Disk::default();
        disk.0.lock().unwrap().stops_at = Some(stops_at);
        let acked = run(&disk);
        let cuts: [(&dyn Fn(usize) -> bool, bool); 5] = [
            (&|_| false, false),
            (&|_| true, false),
            (&|_| true, true),
            (&|number| number % 2 == 0, false),
            (&|number| number % 2 == 1, true),
        ];
        for (cut, (keeps, is_torn)) in cuts.into_iter().enumerate() {
            let disk = disk.after_power_cut(keeps, is_torn);
            let mut contents = Contents::new();
            let loaded = RedbEngine::on_backend(disk).ok().and_then(|engine| {
                let view = engine.view().ok()?;
                let mut each = |key: &xds_store::key::RecordKey, state: proto::RecordState| {
                    if state.lifecycle() == proto::State::Live {
                        let payload = state.content.unwrap_or_default().payload;
                        contents.insert(key.name().as_str().to_owned(), payload.into());
                    }
                };
                Store::load(&*view, &mut each).ok()
            });
            let Some(store) = loaded else {
                assert_eq!(acked, None, "stop {stops_at}, cut {cut}: the store is gone");
                continue;
            };
            let revision = store.revision();
            assert!(revision >= acked.unwrap_or(0), "stop {stops_at}, cut {cut}: a commit is lost");
            let expected = &models[usize::try_from(revision).unwrap()];
            assert_eq!(&contents, expected, "stop {stops_at}, cut {cut}, revision {revision}");
            recovered += 1;
        }
    }
    assert!(recovered > 100, "only {recovered} of {operations} operations");
}
