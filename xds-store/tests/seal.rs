//! A store whose secrets are sealed in the engine and in backups (ST49).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Cursor;
use std::ops::ControlFlow;

use base64::Engine as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, History};
use xds_store::commit::{Draft, Refused};
use xds_store::engine::{Engine, EngineError, MemoryEngine, SealedEngine};
use xds_store::key::RecordKey;
use xds_store::read::Reads;
use xds_store::restore::{NewIds, restore};
use xds_store::seal::{Seal, SealKeys, UnsealError};
use xds_store::store::{Action, Committed, Config, Event, Identity, LoadError, Store, Ticket};

const SECRET: &str = "the password";

fn seal(ids: &[&str]) -> Seal {
    let line = |id: &&str| {
        let key = base64::engine::general_purpose::STANDARD.encode(blake3::hash(id.as_bytes()).as_bytes());
        format!("{id} {key}\n")
    };
    Seal::new(SealKeys::parse(&ids.iter().map(line).collect::<String>()).unwrap(), ["t/Secret".into()])
}

/// An engine with a store in memory, and with these keys.
fn with_keys(memory: &MemoryEngine, ids: &[&str]) -> SealedEngine {
    SealedEngine::new(Box::new(memory.clone()), seal(ids), [7; 32])
}

fn new_store() -> MemoryEngine {
    let mut memory = MemoryEngine::default();
    memory.commit(&Store::init(&Identity { node: "n".into(), ..Identity::default() })).unwrap();
    memory
}

fn load(engine: &dyn Engine) -> Result<(Store, Vec<String>), LoadError> {
    let mut contents = Vec::new();
    let config = Config::new(engine.limits(), 1);
    let store = Store::load(&*engine.view().unwrap(), config, 0, |loaded| {
        let content = loaded.state.content.unwrap_or_default();
        contents.push(String::from_utf8_lossy(&content.payload).into_owned());
    })?;
    Ok((store, contents))
}

fn put(engine: &mut dyn Engine, type_url: &str, content: &str) -> Result<Committed, Refused> {
    let key = proto::Key { type_url: type_url.into(), name: "a".into(), when: String::new() };
    let content = proto::Content { payload: content.to_owned().into(), ..Default::default() };
    let act = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
    let change = proto::Change { key: Some(key), act: Some(act), condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
    let draft = Draft::parse(request, "token:me".into()).unwrap();
    let (mut store, _) = load(engine).unwrap();
    let mut actions = store.step(Event::Commit(Ticket(1), draft), 1, &*engine.reader());
    if let [Action::Write(batch)] = &actions[..] {
        let written = engine.commit(batch);
        actions = store.step(Event::Written(written), 1, &*engine.reader());
    }
    let answer = actions.into_iter().find_map(|action| match action {
        Action::Answer(_, answer) => Some(answer),
        _ => None,
    });
    answer.unwrap()
}

fn outcome(committed: Result<Committed, Refused>) -> proto::Outcome {
    committed.unwrap().results[0].outcome
}

/// Whether the bytes of the engine, or of a backup, have this text.
fn shows(engine: &dyn Engine, text: &str) -> bool {
    let has = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let mut found = false;
    let look = &mut |_: &[u8], value: xds_store::engine::Value| {
        found |= has(&value.bytes);
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"a", b"{", look).unwrap();
    found
}

#[test]
fn st49_a_secret_is_sealed_in_the_engine_and_open_in_the_store() {
    let memory = new_store();
    let mut engine = with_keys(&memory, &["k1"]);
    assert_eq!(outcome(put(&mut engine, "t/Secret", SECRET)), proto::Outcome::Created);
    assert_eq!(outcome(put(&mut engine, "t/Other", "public")), proto::Outcome::Created);
    assert!(!shows(&memory, SECRET));
    assert!(shows(&memory, "public") && shows(&engine, SECRET));
    assert_eq!(load(&engine).unwrap().1, ["public", SECRET]);
    assert_eq!(outcome(put(&mut engine, "t/Secret", SECRET)), proto::Outcome::Unchanged);
    assert_eq!(outcome(put(&mut engine, "t/Secret", "another")), proto::Outcome::Updated);
    assert!(!shows(&memory, "another"));
}

#[test]
fn st44_st49_a_sealed_record_keeps_the_time_of_its_commit() {
    let memory = new_store();
    let mut engine = with_keys(&memory, &["k1"]);
    put(&mut engine, "t/Secret", SECRET).unwrap();
    let key = proto::Key { type_url: "t/Secret".into(), name: "a".into(), when: String::new() };
    let view = engine.view().unwrap();
    let record = Reads::new(&*view).unwrap().get(&RecordKey::parse(&key).unwrap(), 1).unwrap();
    assert_eq!(record.unwrap().committed_at, Some(1));
}

#[test]
fn st49_a_start_without_a_needed_key_fails_and_names_it() {
    let memory = new_store();
    put(&mut with_keys(&memory, &["k1"]), "t/Secret", SECRET).unwrap();
    put(&mut with_keys(&memory, &["k2", "k1"]), "t/Secret", "newer").unwrap();
    let needed = |engine: &dyn Engine| match load(engine) {
        Err(LoadError::Engine(EngineError::Sealed(UnsealError::NoKey { id, .. }))) => id,
        other => panic!("{other:?}"),
    };
    // The history needs the old key.
    assert_eq!(needed(&with_keys(&memory, &["k2"])), "k1");
    assert_eq!(needed(&with_keys(&memory, &["k1"])), "k2");
    assert_eq!(needed(&memory), "k1", "without any keys");
    assert_eq!(load(&with_keys(&memory, &["k3", "k1", "k2"])).unwrap().1, ["newer"]);
}

#[test]
fn st49_another_first_key_changes_no_record() {
    let memory = new_store();
    let first = put(&mut with_keys(&memory, &["k1"]), "t/Secret", SECRET).unwrap();
    let mut engine = with_keys(&memory, &["k2", "k1"]);
    let same = put(&mut engine, "t/Secret", SECRET).unwrap();
    assert_eq!((same.results[0].outcome, same.revision), (proto::Outcome::Unchanged, first.revision));
    assert_eq!(same.results[0].record, first.results[0].record, "revision and uid stay");
}

#[test]
fn st49_what_was_in_the_clear_stays_until_it_is_written_again() {
    let mut memory = new_store();
    put(&mut memory, "t/Secret", SECRET).unwrap();
    let mut engine = with_keys(&memory, &["k1"]);
    assert_eq!(load(&engine).unwrap().1, [SECRET]);
    assert_eq!(outcome(put(&mut engine, "t/Secret", SECRET)), proto::Outcome::Unchanged);
    put(&mut engine, "t/Secret", "the next one").unwrap();
    assert!(!shows(&memory, "the next one"));
}

#[test]
fn st49_a_backup_has_secrets_sealed_and_is_restored_with_the_same_keys() {
    let memory = new_store();
    let mut engine = with_keys(&memory, &["k1"]);
    put(&mut engine, "t/Secret", SECRET).unwrap();
    for history in [History::Whole, History::LeftOut] {
        let parts = Backup::new(engine.view().unwrap(), history).unwrap();
        let file: Vec<u8> = parts.flat_map(|part| part.unwrap().data).collect();
        let ids = NewIds { node: "m".into(), cluster: None };
        let mut target = MemoryEngine::default();
        restore(&mut Cursor::new(file), &mut target, &ids, &mut |_| {}).unwrap();
        assert!(!shows(&target, SECRET));
        assert!(load(&target).is_err());
        assert_eq!(load(&with_keys(&target, &["k1"])).unwrap().1, [SECRET]);
    }
}

#[test]
fn st49_a_secret_that_is_moved_to_another_record_is_damage() {
    let mut memory = new_store();
    put(&mut with_keys(&memory, &["k1"]), "t/Secret", SECRET).unwrap();
    let mut moved = None;
    let look = &mut |key: &[u8], value: xds_store::engine::Value| {
        moved = Some((key.to_vec(), value.bytes.to_vec()));
        ControlFlow::Break(())
    };
    memory.view().unwrap().range(b"v", b"w", look).unwrap();
    let (key, value) = moved.unwrap();
    // With a checksum that fits the other key.
    let at = key.windows(2).position(|two| two == b"\0a").unwrap() + 1;
    let mut other = key.clone();
    other[at] = b"b"[0];
    let message: Vec<u8> = value[4..].to_vec();
    let checksum = crc32fast::hash(&[&other[..], &message].concat());
    let value = [&checksum.to_be_bytes()[..], &message].concat();
    let writes = vec![(key.into(), None), (other.into(), Some(value.into()))];
    memory.commit(&xds_store::engine::Batch { compares: Vec::new(), writes }).unwrap();
    let loaded = load(&with_keys(&memory, &["k1"]));
    let changed = matches!(&loaded, Err(LoadError::Engine(EngineError::Sealed(UnsealError::Changed { .. }))));
    assert!(changed, "{loaded:?}");
}
