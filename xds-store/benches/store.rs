//! Claim: the engine alone takes at least 0.6 of the time of a commit of one writer for one put, and
//! at least 0.85 for the same bytes; with 64 writers at least 0.5 for one put of each. The CPU of a
//! commit with 1,000,000 records is at most 1.5 of that with 10 in the machine (1.2), and more with the
//! search of the engine in memory (1.8).
//!
//! Size: payloads of 1 KiB on redb, in a file of the target folder. Peer: the engine's library
//! alone, which writes one put in each transaction, or the keys and bytes of the store's batch.
//! Rounds of each are made in turn; the figures are medians.
//!
//!     cargo bench -p xds-store --features redb --bench store [-- ROUNDS]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench may panic, and reads the clock")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::{Database, TableDefinition};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::{Batch, Engine, MemoryEngine, RedbEngine};
use xds_store::store::{Action, Config, Event, Identity, Store, Ticket};

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(15);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("store");
    fs::remove_dir_all(&folder).unwrap_or_default();
    fs::create_dir_all(&folder).unwrap();
    let only = std::env::args().any(|word| word == "cpu");
    for writers in [1, 64].into_iter().filter(|_| !only) {
        synced(&folder, writers, rounds);
    }
    cpu(rounds);
    fs::remove_dir_all(&folder).unwrap();
}

/// Durable commits beside those of the engine alone.
fn synced(folder: &Path, writers: u64, rounds: usize) {
    let mut store = Driven::new(RedbEngine::open(&folder.join(format!("store-{writers}"))).unwrap());
    let mut same = RedbEngine::open(&folder.join(format!("same-{writers}"))).unwrap();
    let raw = Database::create(folder.join(format!("raw-{writers}"))).unwrap();
    let mut times = [const { Vec::new() }; 3];
    for number in 0..rounds as u64 {
        let batches = (0..COMMITS).map(|at| number * COMMITS + at);
        let begun = Instant::now();
        batches.clone().for_each(|at| put(&raw, at, writers));
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        let written: Vec<Batch> = batches.map(|at| store.commit(at, writers)).collect();
        times[1].push(begun.elapsed());
        let begun = Instant::now();
        for batch in &written {
            same.commit(&Batch { compares: Vec::new(), writes: batch.writes.clone() }).unwrap();
        }
        times[2].push(begun.elapsed());
    }
    let [raw, store, same] = times.map(|times| median(times) / u32::try_from(COMMITS).unwrap());
    let ratio = |of: Duration| of.as_secs_f64() / store.as_secs_f64();
    println!(
        "{writers} writers: a batch takes {store:.1?}; one put each {raw:.1?}, {:.2}x; \
         the same bytes {same:.1?}, {:.2}x",
        ratio(raw),
        ratio(same)
    );
}

/// The time of a commit without any sync.
fn cpu(rounds: usize) {
    let mut stores = [10, 1_000_000].map(|records| {
        let mut store = Driven::new(MemoryEngine::default());
        for at in 0..records / 10 {
            store.commit(at, 10);
        }
        (records, store)
    });
    let mut times = [const { Vec::new() }; 2];
    let mut of_machine = [const { Vec::new() }; 2];
    for round in 0..rounds as u64 {
        for (at, (records, store)) in stores.iter_mut().enumerate() {
            store.in_engine = Duration::ZERO;
            let begun = Instant::now();
            for at in 0..1000 {
                let spread = (round * 1000 + at) * 7919 % (*records / 10);
                store.commit(spread, 1);
            }
            let elapsed = begun.elapsed();
            times[at].push(elapsed / 1000);
            of_machine[at].push((elapsed - store.in_engine) / 1000);
        }
    }
    for (what, times) in [("a commit on the engine in memory", times), ("the machine alone", of_machine)] {
        let [few, many] = times.map(median);
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("CPU of {what}: {few:.1?} with 10 records, {many:.1?} with 1,000,000: {ratio:.2}x");
    }
}

/// A store and its engine, driven in turn.
struct Driven<E> {
    engine: E,
    store: Store,
    /// The batch that is being written while commits arrive.
    writing: Option<Batch>,
    round: u32,
    /// How long the engine took.
    in_engine: Duration,
}

impl<E: Engine> Driven<E> {
    fn new(mut engine: E) -> Self {
        engine.commit(&Store::init(&Identity::default())).unwrap();
        let config = Config::new(engine.limits(), 1);
        let store = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
        Self { engine, store, writing: None, round: 0, in_engine: Duration::ZERO }
    }

    /// Each of `writers` makes a commit while the batch of the last call is written.
    fn commit(&mut self, at: u64, writers: u64) -> Batch {
        self.round = self.round.wrapping_add(1);
        let mut actions = Vec::new();
        let reader = self.engine.reader();
        for writer in 0..writers {
            let draft = draft(at * writers + writer, self.round);
            actions.extend(self.store.step(Event::Commit(Ticket(writer), draft), 0, &*reader));
        }
        if let Some(batch) = self.writing.take() {
            let begun = Instant::now();
            let result = self.engine.commit(&batch);
            self.in_engine += begun.elapsed();
            actions.extend(self.store.step(Event::Written(result), 0, &*reader));
        }
        for action in actions {
            match action {
                Action::Write(batch) => self.writing = Some(batch),
                Action::Answer(_, answer) => drop(answer.unwrap()),
                Action::Publish(_) | Action::Compacted(..) => {}
            }
        }
        self.writing.clone().unwrap()
    }
}

fn draft(number: u64, round: u32) -> Draft {
    let name = format!("name-{number}");
    // A cluster with this name (field 1) and an unknown field of 1 KiB (field 1000).
    let mut payload = vec![0x0a, u8::try_from(name.len()).unwrap()];
    payload.extend_from_slice(name.as_bytes());
    payload.extend_from_slice(&[0xc2, 0x3e, 0x80, 0x08]);
    payload.extend_from_slice(&round.to_be_bytes().repeat(256));
    let key = proto::Key { type_url: TYPE.into(), name, when: String::new() };
    let content = proto::Content { payload: payload.into(), ..proto::Content::default() };
    let put = proto::Put { content: Some(content), ..proto::Put::default() };
    let change = proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..proto::CommitRequest::default() };
    Draft::parse(request, "bench".to_owned()).unwrap()
}

/// One transaction with one put for each writer.
fn put(raw: &Database, at: u64, writers: u64) {
    let transaction = raw.begin_write().unwrap();
    {
        let mut table = transaction.open_table(TABLE).unwrap();
        for writer in 0..writers {
            let key = format!("{TYPE} name-{}", at * writers + writer);
            table.insert(key.as_bytes(), [7; 1024].as_slice()).unwrap();
        }
    }
    transaction.commit().unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("store");
const TYPE: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// In a round.
const COMMITS: u64 = 100;
