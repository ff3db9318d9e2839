//! A process with a store is killed (SIGKILL) while it commits, again and again. Every commit that
//! was answered OK is there whole afterwards, every other one whole or absent (ST7, ST16).
//!
//! `XDS_KILLS=50` sets how often. The process is this program itself.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::Draft;
use xds_store::engine::{Engine, RedbEngine};
use xds_store::store::{Config, Identity, Store};
use xds_store_server::{StoreConfig, StoreHandle};

#[test]
fn st7_st16_after_a_kill_every_acknowledged_commit_is_there_whole_and_every_other_whole_or_absent() {
    let kills = env::var("XDS_KILLS").map_or(5, |kills| kills.parse().unwrap());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("killed-{}", std::process::id()));
    _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    let file = folder.join("store.redb");
    RedbEngine::open(&file).unwrap().commit(&Store::init(&Identity::default())).unwrap();
    let mut acknowledged = [0; WRITERS];
    let mut all = 0;
    for kill in 0..kills {
        let (mut child, answers) = start(&file);
        // Not always at the same place of a batch.
        for answer in answers.iter().take(20 + 13 * (kill % 7)) {
            note(&answer, &mut acknowledged);
        }
        thread::sleep(Duration::from_micros(173 * (kill as u64 % 11)));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it was killed.
        answers.iter().for_each(|answer| note(&answer, &mut acknowledged));
        let found = contents(&file);
        for (writer, acknowledged) in acknowledged.iter_mut().enumerate() {
            let of_writer = &found[&writer];
            assert!(of_writer.iter().all(|content| *content == of_writer[0]), "kill {kill}: {found:?}");
            // A writer has one commit at a time.
            let expected = *acknowledged..=*acknowledged + 1;
            assert!(
                expected.contains(&of_writer[0]),
                "kill {kill}, writer {writer}: {expected:?}, {found:?}"
            );
            *acknowledged = of_writer[0];
        }
        let sum: u64 = acknowledged.iter().sum();
        assert!(sum > all, "kill {kill}: nothing was committed");
        all = sum;
    }
    println!("{kills} kills, {all} commits");
    fs::remove_dir_all(&folder).unwrap();
}

/// The process that is killed: each writer puts its records with the next number, and says so when
/// that is acknowledged.
#[test]
fn the_process_that_is_killed() {
    let Ok(file) = env::var(FILE) else { return };
    let file = Path::new(&file);
    let found = contents(file);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = RedbEngine::open(file).unwrap();
        let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
        for writer in 0..WRITERS {
            let (store, first) = (store.clone(), found[&writer][0] + 1);
            tokio::spawn(async move {
                for number in first.. {
                    store.commit(draft(writer, number)).await.unwrap();
                    let mut output = std::io::stdout().lock();
                    writeln!(output, "{ACKNOWLEDGED} {writer} {number}").unwrap();
                    output.flush().unwrap();
                }
            });
        }
        loop {
            store.compact(None).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

fn start(file: &Path) -> (Child, Receiver<String>) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_process_that_is_killed", "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, answers) = mpsc::channel();
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            // The last line may be cut.
            if line.starts_with(ACKNOWLEDGED) && sender.send(line).is_err() {
                return;
            }
        }
    });
    (child, answers)
}

fn note(answer: &str, acknowledged: &mut [u64; WRITERS]) {
    let words: Vec<u64> = answer.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
    let [writer, number] = words[..] else { return };
    let writer = usize::try_from(writer).unwrap();
    // A cut number is smaller.
    acknowledged[writer] = acknowledged[writer].max(number);
}

fn draft(writer: usize, number: u64) -> Draft {
    let change = |record| {
        let key =
            proto::Key { type_url: "t/T".into(), name: format!("{writer}/{record}"), when: String::new() };
        // Of several pages.
        let payload = format!("{number} {}", "x".repeat(3_000)).into();
        let content = proto::Content { payload, ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None }
    };
    let changes = (0..RECORDS).map(change).collect();
    Draft::parse(proto::CommitRequest { changes, ..Default::default() }, "token:me".into()).unwrap()
}

/// The numbers in the records of each writer, 0 for those that are absent. Fails if the store has any
/// damage.
fn contents(file: &Path) -> BTreeMap<usize, Vec<u64>> {
    let engine = RedbEngine::open(file).unwrap();
    let view = engine.view().unwrap();
    check_store(&*view, &mut |finding| panic!("{finding}")).unwrap();
    let mut found: BTreeMap<_, _> = (0..WRITERS).map(|writer| (writer, vec![0; RECORDS])).collect();
    Store::load(&*view, Config::new(engine.limits(), 1), 0, |loaded| {
        let name = loaded.key.name();
        let (writer, record) = name.as_str().split_once('/').unwrap();
        let content = loaded.state.content.unwrap().payload;
        let number = std::str::from_utf8(&content).unwrap().split(' ').next().unwrap().parse().unwrap();
        found.get_mut(&writer.parse().unwrap()).unwrap()[record.parse::<usize>().unwrap()] = number;
    })
    .unwrap();
    found
}

const FILE: &str = "XDS_KILLED_STORE";
const ACKNOWLEDGED: &str = "acknowledged";
const WRITERS: usize = 8;
const RECORDS: usize = 3;
