//! The machine of a store on the engine in memory: conditions, group commits, watches.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::engine::{Batch, Engine, EngineError, MemoryEngine};
use xds_store::store::{Action, Committed, Config, Event, Identity, LoadError, Store, Ticket};
use xds_store::watch::{Watch, WatchError};

/// A store whose engine answers when the test says so.
struct Held {
    engine: MemoryEngine,
    store: Store,
    writing: Option<Batch>,
    answers: Vec<(Ticket, Result<Committed, Refused>)>,
    published: Vec<u64>,
}

impl Held {
    fn new() -> Self {
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init(&Identity::default())).unwrap();
        let config = Config::new(engine.limits(), 1);
        let store = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
        Self { engine, store, writing: None, answers: Vec::new(), published: Vec::new() }
    }

    fn step(&mut self, event: Event) {
        let reader = self.engine.reader();
        for action in self.store.step(event, 0, &*reader) {
            match action {
                Action::Write(batch) => assert_eq!(self.writing.replace(batch), None, "one batch at a time"),
                Action::Publish(commits) => {
                    self.published.extend(commits.iter().map(|commit| commit.revision));
                }
                Action::Answer(ticket, answer) => self.answers.push((ticket, answer)),
                Action::Merged(..) | Action::Staged(..) | Action::TookId(..) | Action::Compacted(..) => {}
                Action::AnswerRegion(..) | Action::CallRegion { .. } => {}
            }
        }
    }

    fn request(&mut self, ticket: u64, changes: Vec<proto::Change>) {
        self.step(Event::Commit(Ticket(ticket), draft(changes)));
    }

    fn write(&mut self) {
        let batch = self.writing.take().unwrap();
        let written = self.engine.commit(&batch);
        self.step(Event::Written(written));
    }

    /// Commits and returns the answer.
    fn commit(&mut self, changes: Vec<proto::Change>) -> Result<Committed, Refused> {
        self.request(99, changes);
        if self.writing.is_some() {
            self.write();
        }
        self.answers.pop().unwrap().1
    }

    fn code(&mut self, changes: Vec<proto::Change>) -> RefusalCode {
        self.commit(changes).unwrap_err().code
    }
}

fn draft(changes: Vec<proto::Change>) -> Draft {
    let request = proto::CommitRequest { changes, ..proto::CommitRequest::default() };
    Draft::parse(request, "test".to_owned()).unwrap()
}

fn key(name: &str) -> proto::Key {
    proto::Key { type_url: "example.com/acme.Thing".into(), name: name.into(), when: String::new() }
}

fn put(name: &str, payload: &'static str) -> proto::Change {
    let content = proto::Content { payload: payload.into(), ..proto::Content::default() };
    let put = proto::Put { content: Some(content), ..proto::Put::default() };
    proto::Change { key: Some(key(name)), act: Some(proto::change::Act::Put(put)), condition: None }
}

fn delete(name: &str) -> proto::Change {
    let act = proto::change::Act::Delete(proto::Delete::default());
    proto::Change { key: Some(key(name)), act: Some(act), condition: None }
}

fn only_if(change: proto::Change, is: proto::condition::Is) -> proto::Change {
    proto::Change { condition: Some(proto::Condition { is: Some(is) }), ..change }
}

fn revision(committed: &Committed) -> proto::condition::Is {
    proto::condition::Is::Revision(committed.results[0].record.unwrap().0.to_string())
}

#[test]
fn st8_st9_conditions_are_judged_on_the_state_before_the_commit() {
    use proto::condition::Is;
    let mut store = Held::new();
    let exists = || only_if(put("a", "2"), Is::Exists(true));
    let absent = || only_if(put("a", "1"), Is::Absent(true));
    assert_eq!(store.code(vec![exists()]), RefusalCode::NotFound);
    assert_eq!(store.code(vec![only_if(put("a", "2"), Is::Uid("x".into()))]), RefusalCode::Aborted);
    let first = store.commit(vec![absent()]).unwrap();
    assert_eq!(store.code(vec![absent()]), RefusalCode::AlreadyExists);
    assert_eq!(store.commit(vec![exists()]).unwrap().revision, 2);
    // All violations of the stage are reported; the first one gives the code (ST8).
    let changes = vec![only_if(put("a", "3"), revision(&first)), only_if(put("b", "1"), Is::Exists(true))];
    let refused = store.commit(changes).unwrap_err();
    assert_eq!((refused.code, refused.violations.len()), (RefusalCode::Aborted, 2));
}

#[test]
fn st7_a_key_is_in_a_commit_once() {
    let request = proto::CommitRequest { changes: vec![put("a", "1"), delete("a")], ..Default::default() };
    let refused = Draft::parse(request, String::new()).unwrap_err();
    assert_eq!((refused.code, refused.violations[0].change), (RefusalCode::InvalidArgument, 1));
}

#[test]
fn st11_of_two_commits_that_require_one_revision_one_succeeds() {
    let mut store = Held::new();
    let first = store.commit(vec![put("a", "1")]).unwrap();
    // Both are judged after a batch that is being written when they arrive.
    store.request(1, vec![put("b", "1")]);
    store.request(2, vec![only_if(put("a", "2"), revision(&first))]);
    store.request(3, vec![only_if(put("a", "3"), revision(&first))]);
    store.write();
    store.write();
    let codes: Vec<_> = store
        .answers
        .iter()
        .map(|(ticket, answer)| (ticket.0, answer.as_ref().err().map(|refused| refused.code)))
        .collect();
    assert_eq!(codes, [(1, None), (2, None), (3, Some(RefusalCode::Aborted))]);
}

#[test]
fn st12_st13_what_changes_nothing_takes_no_revision_and_writes_nothing() {
    let mut store = Held::new();
    store.commit(vec![put("a", "1")]).unwrap();
    for (change, outcome) in
        [(put("a", "1"), proto::Outcome::Unchanged), (delete("b"), proto::Outcome::Absent)]
    {
        store.request(1, vec![change]);
        assert_eq!(store.writing, None);
        let committed = store.answers.pop().unwrap().1.unwrap();
        assert_eq!((committed.revision, committed.results[0].outcome), (1, outcome));
    }
}

#[test]
fn st14_a_key_that_is_created_again_is_another_one() {
    let mut store = Held::new();
    let first = store.commit(vec![put("a", "1")]).unwrap().results[0].record.unwrap();
    assert_eq!(store.commit(vec![delete("a")]).unwrap().results[0].record, None);
    let again = store.commit(vec![put("a", "1")]).unwrap();
    assert_eq!(again.results[0].outcome, proto::Outcome::Created);
    let again = again.results[0].record.unwrap();
    assert!(again.0 != first.0 && again.1 != first.1);
}

#[test]
fn st16_st17_commits_are_published_and_then_answered_when_their_batch_is_durable() {
    let mut store = Held::new();
    store.request(1, vec![put("a", "1")]);
    store.request(2, vec![put("b", "1")]);
    store.request(3, vec![put("b", "2")]);
    assert!(store.answers.is_empty() && store.published.is_empty());
    store.write();
    assert_eq!((store.published.as_slice(), store.answers.len()), ([1].as_slice(), 1));
    store.write();
    assert_eq!(store.published, [1, 2, 3], "each has its own revision");
    assert_eq!(store.answers.iter().map(|(ticket, _)| ticket.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(store.writing, None);
}

#[test]
fn st21_after_a_failed_write_the_store_accepts_no_commits() {
    let mut store = Held::new();
    store.request(1, vec![put("a", "1")]);
    store.writing = None;
    store.step(Event::Written(Err(EngineError::Broken("the sync failed".into()))));
    // It may have been applied all the same.
    assert_eq!(store.answers.pop().unwrap().1.unwrap_err().code, RefusalCode::Unknown);
    assert_eq!(store.code(vec![put("b", "1")]), RefusalCode::Unavailable);
    assert_eq!(store.store.revision(), 0);
}

#[test]
fn st22_a_full_disk_refuses_a_commit_and_the_next_one_succeeds() {
    let mut store = Held::new();
    store.request(1, vec![put("a", "1")]);
    store.writing = None;
    store.step(Event::Written(Err(EngineError::Full)));
    assert_eq!(store.answers.pop().unwrap().1.unwrap_err().code, RefusalCode::ResourceExhausted);
    assert_eq!(store.commit(vec![put("a", "1")]).unwrap().revision, 1);
}

#[test]
fn st27_st30_a_watch_delivers_whole_revisions_in_order_each_once() {
    let mut store = Held::new();
    store.commit(vec![put("a", "1"), put("b", "1")]).unwrap();
    store.commit(vec![put("a", "2")]).unwrap();
    let mut watch = Watch::after(0);
    let mut seen = Vec::new();
    for limit in [1, 10, 10] {
        let commits = watch.next(&*store.engine.view().unwrap(), limit).unwrap();
        seen.push(commits.iter().map(|commit| (commit.revision, commit.changes.len())).collect::<Vec<_>>());
    }
    assert_eq!(seen, [vec![(1, 2)], vec![(2, 1)], vec![]]);
    store.commit(vec![delete("a")]).unwrap();
    let commits = watch.next(&*store.engine.view().unwrap(), 10).unwrap();
    assert_eq!(commits[0].changes[0].1.lifecycle(), proto::State::Deleted);
    let ahead = Watch::after(9).next(&*store.engine.view().unwrap(), 1);
    assert!(matches!(ahead, Err(WatchError::Ahead { after: 9, last: 3 })));
}

#[test]
fn st1_a_store_is_made_in_an_empty_engine_only() {
    let mut store = Held::new();
    assert!(matches!(store.engine.commit(&Store::init(&Identity::default())), Err(EngineError::Conflict)));
}

#[test]
fn st41_time_never_goes_back() {
    let mut store = Held::new();
    for now in [7, 3] {
        let draft = draft(vec![put("a", if now == 7 { "1" } else { "2" })]);
        let reader = store.engine.reader();
        for action in store.store.step(Event::Commit(Ticket(0), draft), now, &*reader) {
            let Action::Write(batch) = action else { panic!("{action:?}") };
            store.writing = Some(batch);
        }
        store.write();
    }
    // It goes on, slowly.
    assert!((7..10).contains(&store.store.time()), "{}", store.store.time());
}

#[test]
fn st64_the_first_commit_is_a_change_even_when_it_is_empty() {
    let mut store = Held::new();
    assert_eq!(store.commit(Vec::new()).unwrap().revision, 1);
    assert_eq!(store.commit(Vec::new()).unwrap().revision, 1);
}

#[test]
fn st2_an_empty_engine_is_no_store() {
    let engine = MemoryEngine::default();
    let config = Config::new(engine.limits(), 1);
    let loaded = Store::load(&*engine.view().unwrap(), config, 0, |_| {});
    assert!(matches!(loaded, Err(LoadError::NoStore)));
}

#[test]
fn st47_a_damaged_value_is_named_and_nothing_is_loaded() {
    let mut store = Held::new();
    store.commit(vec![put("a", "1")]).unwrap();
    let mut found = Vec::new();
    let view = store.engine.view().unwrap();
    view.range(b"v", b"w", &mut |key, value| {
        found.push((key.to_vec(), value.bytes.to_vec()));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let (key, mut value) = found.pop().unwrap();
    *value.last_mut().unwrap() ^= 1;
    store
        .engine
        .commit(&Batch { writes: vec![(key.clone().into(), Some(value.into()))], ..Batch::default() })
        .unwrap();
    let config = Config::new(store.engine.limits(), 1);
    match Store::load(&*store.engine.view().unwrap(), config, 0, |_| {}) {
        Err(LoadError::Damaged(damaged)) => assert_eq!(damaged.key, key),
        other => panic!("{other:?}"),
    }
}
