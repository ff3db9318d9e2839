//! Checks of a store on an engine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread;

use xds_proto::xds::store::v1 as proto;

use super::Subject;
use crate::commit::{Draft, RefusalCode, Refused};
use crate::engine::{Engine, Reader};
use crate::store::{Action, Committed, Config, Event, Identity, Store, Ticket};

/// All checks of a store on the engine.
///
/// # Panics
/// If a check fails.
pub fn check_store(subject: &mut dyn Subject) {
    a_store_that_is_loaded_again_is_the_same(subject.empty());
    a_commit_that_an_engine_cannot_take_names_its_limit(subject.empty());
    commits_that_wait_are_written_in_batches_that_the_engine_takes(subject.empty());
    let engine = subject.empty();
    if let Some(other) = subject.another() {
        two_servers_of_one_store_see_all_commits_in_one_order(engine, other);
    }
}

/// A store with its engine.
struct Driven {
    engine: Box<dyn Engine>,
    reader: Arc<dyn Reader>,
    store: Store,
    /// Counts the steps, in nanoseconds.
    now: i64,
    /// The revision that changed each record last, as the store published it.
    published: Vec<(u64, Vec<String>)>,
}

impl Driven {
    fn init(mut engine: Box<dyn Engine>) -> Self {
        engine.commit(&Store::init(&Identity::default())).unwrap();
        Self::load(engine, 1)
    }

    fn load(engine: Box<dyn Engine>, server: u64) -> Self {
        let config = Config::new(engine.limits(), server);
        let store = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
        Self { reader: engine.reader(), engine, store, now: 0, published: Vec::new() }
    }

    /// Makes commits that arrive while another one is written. The answers are in their order.
    fn commit(&mut self, drafts: impl IntoIterator<Item = Draft>) -> Vec<Result<Committed, Refused>> {
        let events = (0..).map(Ticket).zip(drafts);
        let events = events.map(|(ticket, draft)| Event::Commit(ticket, draft)).collect();
        self.drive(events).into_values().collect()
    }

    /// Gives events to the store, and then performs its batches.
    fn drive(&mut self, mut events: VecDeque<Event>) -> BTreeMap<Ticket, Result<Committed, Refused>> {
        let mut answers = BTreeMap::new();
        let mut writing = None;
        while let Some(event) = events.pop_front().or_else(|| {
            let written = writing.take().map(|batch| self.engine.commit(&batch))?;
            Some(Event::Written(written))
        }) {
            self.now += 1;
            for action in self.store.step(event, self.now, &*self.reader) {
                match action {
                    Action::Write(batch) => writing = Some(batch),
                    Action::Publish(commits) => self.published.extend(commits.into_iter().map(|commit| {
                        let names = commit.changed.iter().map(|(key, _)| key.name().as_str().to_owned());
                        (commit.revision, names.collect())
                    })),
                    Action::Answer(ticket, answer) => assert!(answers.insert(ticket, answer).is_none()),
                    Action::Merged(..) | Action::Staged(..) | Action::TookId(..) | Action::Compacted(..) => {}
                    Action::AnswerRegion(..) | Action::CallRegion { .. } => {}
                }
            }
        }
        answers
    }

    fn commit_one(&mut self, draft: Draft) -> Result<Committed, Refused> {
        self.commit([draft]).pop().unwrap()
    }
}

fn draft(changes: impl IntoIterator<Item = (String, Vec<u8>, Option<proto::condition::Is>)>) -> Draft {
    let changes = changes.into_iter().map(|(name, payload, condition)| {
        let key = proto::Key { type_url: "example.com/acme.Thing".into(), name, when: String::new() };
        let content = proto::Content { payload: payload.into(), ..proto::Content::default() };
        let put = proto::Put { content: Some(content), ..proto::Put::default() };
        proto::Change {
            key: Some(key),
            act: Some(proto::change::Act::Put(put)),
            condition: condition.map(|is| proto::Condition { is: Some(is) }),
        }
    });
    let request = proto::CommitRequest { changes: changes.collect(), ..proto::CommitRequest::default() };
    Draft::parse(request, "kit".to_owned()).unwrap()
}

fn puts(names: impl IntoIterator<Item = String>) -> Draft {
    draft(names.into_iter().map(|name| (name, b"1".to_vec(), None)))
}

fn a_store_that_is_loaded_again_is_the_same(engine: Box<dyn Engine>) {
    let mut store = Driven::init(engine);
    let again = store.engine.commit(&Store::init(&Identity::default()));
    assert!(matches!(again, Err(crate::engine::EngineError::Conflict)), "ST1: {again:?}");
    for number in 0..20 {
        store.commit_one(puts((0..5).map(|name| format!("{}", number * 3 + name)))).unwrap();
    }
    let absent = |name: &str| draft([(name.to_owned(), vec![2], Some(proto::condition::Is::Absent(true)))]);
    assert_eq!(store.commit_one(absent("1")).unwrap_err().code, RefusalCode::AlreadyExists);
    let (revision, counts) = (store.store.revision(), store.store.counts());
    let mut store = Driven::load(store.engine, 2);
    assert_eq!((store.store.revision(), store.store.counts()), (revision, counts));
    assert_eq!(store.commit_one(absent("1")).unwrap_err().code, RefusalCode::AlreadyExists);
    assert_eq!(store.commit_one(absent("new")).unwrap().revision, revision + 1);
}

fn a_commit_that_an_engine_cannot_take_names_its_limit(engine: Box<dyn Engine>) {
    let limits = engine.limits();
    let mut store = Driven::init(engine);
    // A batch has the head and the entry of the log as well.
    let records = limits.operations.saturating_sub(2);
    if records < 5_000 {
        let names = |count: usize| puts((0..count).map(|number| number.to_string()));
        let refused = store.commit_one(names(records + 1)).unwrap_err();
        assert_eq!(refused.code, RefusalCode::ResourceExhausted);
        assert!(refused.message.contains(limits.operations_option), "{refused:?}");
        assert_eq!(store.commit_one(names(records)).unwrap().revision, 1);
    }
    if limits.bytes < 3 << 20 {
        let large = |bytes: usize| draft([("large".to_owned(), vec![7; bytes], None)]);
        let refused = store.commit_one(large(limits.bytes)).unwrap_err();
        assert_eq!(refused.code, RefusalCode::ResourceExhausted);
        assert!(refused.message.contains(limits.bytes_option), "{refused:?}");
        store.commit_one(large(limits.bytes - 8_000)).unwrap();
    }
}

fn commits_that_wait_are_written_in_batches_that_the_engine_takes(engine: Box<dyn Engine>) {
    let mut store = Driven::init(engine);
    let many = (0..400).map(|number| puts([format!("{number}")]));
    let large = (0..20).map(|number| draft([(format!("large{number}"), vec![7; 300_000], None)]));
    let revisions: Vec<u64> =
        store.commit(many.chain(large)).into_iter().map(|answer| answer.unwrap().revision).collect();
    assert_eq!(revisions, (1..=420).collect::<Vec<_>>(), "each commit has its own revision, in order");
    assert_eq!(Driven::load(store.engine, 2).store.counts().0, 420);
}

/// Both increment one record on condition of the value that they saw, and put others.
fn two_servers_of_one_store_see_all_commits_in_one_order(engine: Box<dyn Engine>, other: Box<dyn Engine>) {
    let one = Driven::init(engine);
    let two = Driven::load(other, 2);
    let run = |mut store: Driven, server: u8| {
        let mut succeeded = 0;
        let mut last: Option<String> = None;
        for number in 0..COMMITS {
            store.commit_one(puts([format!("{server}-{number}")])).unwrap();
            let condition = match &last {
                Some(revision) => proto::condition::Is::Revision(revision.clone()),
                None => proto::condition::Is::Absent(true),
            };
            match store.commit_one(draft([("shared".to_owned(), vec![server, number], Some(condition))])) {
                Ok(committed) => {
                    succeeded += 1;
                    last = committed.results[0].record.map(|(revision, _)| revision.to_string());
                }
                Err(refused) => {
                    let expected = [RefusalCode::AlreadyExists, RefusalCode::Aborted];
                    assert!(expected.contains(&refused.code), "{refused:?}");
                    let Some(proto::violation::Why::Condition(present)) = &refused.violations[0].why else {
                        panic!("{refused:?}");
                    };
                    last = Some(present.revision.clone());
                }
            }
        }
        (store, succeeded)
    };
    let ((mut one, first), (mut two, second)) = thread::scope(|scope| {
        let other = scope.spawn(|| run(two, 2));
        (run(one, 1), other.join().unwrap())
    });
    // Each finds the last commits of the other.
    for store in [&mut one, &mut two] {
        store.drive([Event::Changed].into());
    }
    let total = 2 * u64::from(COMMITS) + first + second;
    assert_eq!((one.store.revision(), two.store.revision()), (total, total));
    assert_eq!(one.published, two.published, "both publish the same commits");
    assert!(one.published.iter().map(|(revision, _)| *revision).eq(1..=total), "in order, each once");
    let of_shared = one.published.iter().filter(|(_, names)| names.contains(&"shared".to_owned())).count();
    assert_eq!(of_shared as u64, first + second);
}

/// Of each server.
const COMMITS: u8 = 50;
