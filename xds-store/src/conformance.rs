//! Checks of an engine, and of a store on it, for those who write one.
//!
//! A check panics if the engine does something else than [`Engine`] says.

#![expect(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use crate::engine::{Batch, Changes, Engine, EngineError, EngineRevision, Value, View};

pub use store::check_store;

mod store;

/// Makes the engines that are checked.
pub trait Subject {
    /// An engine without keys.
    fn empty(&mut self) -> Box<dyn Engine>;

    /// One more engine with the keys of the last [`empty`](Self::empty); `None` if there can be one
    /// only.
    fn another(&mut self) -> Option<Box<dyn Engine>>;
}

/// All checks of the engine itself.
///
/// # Panics
/// If a check fails.
pub fn check_engine(subject: &mut dyn Subject) {
    keys_are_ordered(&mut *subject.empty());
    a_range_of_many_and_of_large_values_is_whole(&mut *subject.empty());
    a_comparison_that_does_not_hold_refuses_the_whole_batch(&mut *subject.empty());
    a_view_does_not_change(&mut *subject.empty());
    readers_see_whole_commits_and_never_go_back(&mut *subject.empty());
    a_batch_within_the_limits_is_written_and_a_larger_one_changes_nothing(&mut *subject.empty());
    let mut engine = subject.empty();
    match subject.another() {
        Some(mut other) => {
            commits_of_another_process_are_seen_and_reported(&*engine, &mut *other);
            of_two_commits_with_one_comparison_one_succeeds(&mut *engine, &mut *other);
        }
        None => assert!(engine.changes(b"k").is_none(), "no other process can commit"),
    }
}

fn keys_are_ordered(engine: &mut dyn Engine) {
    assert!(engine.view().unwrap().get(b"k").unwrap().is_none());
    let keys: [&[u8]; 9] = [b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"aa", b"b", b"b\xff", b"\xff\xff"];
    let mut unordered = keys.map(|key| put(key, key));
    unordered.reverse();
    unordered.swap(0, 4);
    let revision = write(engine, unordered.to_vec());
    let view = engine.view().unwrap();
    assert_eq!(found(&*view, b"\0", b"\xff\xff\xff"), keys);
    assert_eq!(found(&*view, b"a", b"b"), keys[2..6], "the end of a range is not in it");
    assert_eq!(found(&*view, b"a\0", b"a\0a"), keys[3..4]);
    for (from, to) in [(b"b", b"a"), (b"c", b"d"), (b"a", b"a")] {
        assert!(found(&*view, from, to).is_empty());
        assert_eq!(view.last(from, to).unwrap(), None);
    }
    let mut seen = 0;
    let mut each = |_: &[u8], _| {
        seen += 1;
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    view.range(b"a", b"z", &mut each).unwrap();
    assert_eq!(seen, 2, "a range ends when it is broken");
    let value = Value { bytes: Bytes::from_static(b"b\xff"), revision };
    assert_eq!(view.last(b"a", b"c").unwrap(), Some((Bytes::from_static(b"b\xff"), value.clone())));
    assert_eq!(view.get(b"b\xff").unwrap(), Some(value));

    // An empty value is one. The deletion of what does not exist is nothing.
    let later = write(
        engine,
        vec![put(b"a", b""), (Bytes::from_static(b"b"), None), (Bytes::from_static(b"x"), None)],
    );
    assert!(later > revision);
    let view = engine.view().unwrap();
    assert_eq!(view.get(b"a").unwrap(), Some(Value { bytes: Bytes::new(), revision: later }));
    assert_eq!(view.get(b"aa").unwrap().map(|value| value.revision), Some(revision), "it was not written");
    assert_eq!((view.get(b"b").unwrap(), view.get(b"x").unwrap()), (None, None));
    assert!(view.revision() >= later);
}

fn a_range_of_many_and_of_large_values_is_whole(engine: &mut dyn Engine) {
    let limits = engine.limits();
    let large = limits.value_bytes.min(limits.bytes / 2).min(200_000);
    let mut expected: Vec<(Bytes, usize)> =
        (0..3_000_u32).map(|number| (Bytes::copy_from_slice(&number.to_be_bytes()), 8)).collect();
    // Large ones follow small ones, as a page of many small ones must not become one of many large.
    expected.extend((3_000..3_030_u32).map(|number| (Bytes::copy_from_slice(&number.to_be_bytes()), large)));
    for some in expected.chunks(limits.operations.min(100)) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (key, len) in some {
            let write = (key.clone(), Some(Bytes::from(vec![7; *len])));
            if bytes + len > limits.bytes / 2 {
                self::write(engine, std::mem::take(&mut batch));
                bytes = 0;
            }
            bytes += len + 200;
            batch.push(write);
        }
        write(engine, batch);
    }
    let mut read = Vec::new();
    let view = engine.view().unwrap();
    view.range(b"\0", b"\xff", &mut |key, value| {
        read.push((Bytes::copy_from_slice(key), value.bytes.len()));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(read.len(), expected.len());
    assert_eq!(read, expected);
}

fn a_comparison_that_does_not_hold_refuses_the_whole_batch(engine: &mut dyn Engine) {
    let one = write(engine, vec![put(b"a", b"1"), put(b"b", b"1")]);
    let two = write(engine, vec![put(b"a", b"2"), (Bytes::from_static(b"b"), None)]);
    let batch = |compares: &[(&'static [u8], Option<EngineRevision>)]| Batch {
        compares: compares.iter().map(|(key, revision)| (Bytes::from_static(key), *revision)).collect(),
        writes: vec![put(b"a", b"3"), put(b"c", b"3")],
    };
    let refused: [&[(&[u8], _)]; 6] = [
        &[(b"a", Some(one))],
        &[(b"a", None)],
        &[(b"b", Some(one))],
        &[(b"b", Some(two))],
        &[(b"a", Some(two)), (b"c", Some(two))],
        &[(b"c", None), (b"a", Some(one))],
    ];
    for compares in refused {
        let result = engine.commit(&batch(compares));
        assert!(matches!(result, Err(EngineError::Conflict)), "{compares:?}: {result:?}");
        let view = engine.view().unwrap();
        assert_eq!(view.get(b"c").unwrap(), None, "{compares:?}");
        assert_eq!(view.get(b"a").unwrap().map(|value| value.revision), Some(two), "{compares:?}");
    }
    let three = engine.commit(&batch(&[(b"a", Some(two)), (b"b", None), (b"c", None)])).unwrap();
    assert!(three > two);
    assert_eq!(engine.view().unwrap().get(b"c").unwrap().map(|value| value.revision), Some(three));
}

fn a_view_does_not_change(engine: &mut dyn Engine) {
    let empty = engine.view().unwrap();
    write(engine, vec![put(b"a", b"1"), put(b"b", b"1")]);
    let one = engine.view().unwrap();
    for number in 0..20_u8 {
        write(
            engine,
            vec![put(b"a", &[number]), put(&[b'c', number], b"2"), (Bytes::from_static(b"b"), None)],
        );
    }
    assert_eq!(found(&*empty, b"a", b"z"), [[]; 0]);
    assert_eq!(found(&*one, b"a", b"z"), [b"a", b"b"]);
    assert_eq!(one.get(b"a").unwrap().map(|value| value.bytes), Some(Bytes::from_static(b"1")));
    let view = engine.view().unwrap();
    assert!(view.revision() > one.revision() && one.revision() > empty.revision());
    assert_eq!(found(&*view, b"a", b"z").len(), 21);
}

fn readers_see_whole_commits_and_never_go_back(engine: &mut dyn Engine) {
    let reader = engine.reader();
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let reads = scope.spawn(move || {
            let (mut last, mut views) = ((0, EngineRevision::default()), 0);
            while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) || views == 0 {
                let view = reader.view().unwrap();
                let [a, b] = [b"a", b"b"].map(|key| view.get(key).unwrap());
                assert_eq!(a, b, "a view has a commit whole");
                let number = a.map_or(0, |value| value.bytes[0]);
                assert!((number, view.revision()) >= last, "no view goes back");
                (last, views) = ((number, view.revision()), views + 1);
            }
            views
        });
        for number in 0..100 {
            write(engine, vec![put(b"a", &[number]), put(b"b", &[number])]);
        }
        drop(stop);
        assert!(reads.join().unwrap() > 0);
    });
}

fn a_batch_within_the_limits_is_written_and_a_larger_one_changes_nothing(engine: &mut dyn Engine) {
    let limits = engine.limits();
    // What exceeds these is not tried, as it would only take memory.
    let operations = limits.operations.min(100_000);
    let bytes = limits.bytes.min(limits.value_bytes).min(16 << 20);
    let many =
        |count: usize| (0..count as u32).map(|number| put(&number.to_be_bytes(), b"")).collect::<Vec<_>>();
    let large = |extra: usize| {
        let mut batch =
            Batch { compares: vec![(Bytes::from_static(b"absent"), None)], writes: vec![put(b"l", b"")] };
        let value = Bytes::from(vec![7; bytes - batch.bytes() + extra]);
        batch.writes[0].1 = Some(value);
        batch
    };
    write(engine, many(operations));
    engine.commit(&large(0)).unwrap();
    let before = engine.view().unwrap();
    if operations == limits.operations {
        let result = engine.commit(&Batch { compares: Vec::new(), writes: many(operations + 1) });
        assert!(matches!(result, Err(EngineError::TooLarge { .. })), "{result:?}");
    }
    if bytes == limits.bytes {
        let result = engine.commit(&large(1));
        assert!(matches!(result, Err(EngineError::TooLarge { .. })), "{result:?}");
    }
    let after = engine.view().unwrap();
    assert_eq!(after.get(b"l").unwrap(), before.get(b"l").unwrap());
    write(engine, vec![put(b"l", b"it goes on")]);
}

fn commits_of_another_process_are_seen_and_reported(engine: &dyn Engine, other: &mut dyn Engine) {
    let mut changes = engine.changes(b"k").unwrap();
    // A change is reported once or twice, and nothing when there was none.
    let rest = |changes: &mut dyn Changes| while changes.wait(Duration::from_millis(200)).unwrap() {};
    rest(&mut *changes);
    other.commit(&Batch { compares: Vec::new(), writes: vec![put(b"k", b"1")] }).unwrap();
    // A view that is opened after an answer has it.
    assert!(engine.view().unwrap().get(b"k").unwrap().is_some());
    wait(&mut *changes);
    rest(&mut *changes);
    write(other, vec![put(b"l", b"1")]);
    rest(&mut *changes);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(&mut *changes));
        write(other, vec![put(b"k", b"2")]);
        waiting.join().unwrap();
    });
    rest(&mut *changes);
    write(other, vec![(Bytes::from_static(b"k"), None)]);
    wait(&mut *changes);
}

fn of_two_commits_with_one_comparison_one_succeeds(engine: &mut dyn Engine, other: &mut dyn Engine) {
    let count = |engine: &mut dyn Engine| {
        let mut conflicts = 0;
        for _ in 0..COUNTED {
            loop {
                let view = engine.view().unwrap();
                let value = view.get(b"n").unwrap();
                let revision = value.as_ref().map(|value| value.revision);
                let number = value.map_or(0, |value| value.bytes[0]) + 1;
                let batch = Batch {
                    compares: vec![(Bytes::from_static(b"n"), revision)],
                    writes: vec![put(b"n", &[number])],
                };
                match engine.commit(&batch) {
                    Ok(_) => break,
                    Err(EngineError::Conflict) => conflicts += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        conflicts
    };
    thread::scope(|scope| {
        let counting = scope.spawn(|| count(other));
        count(engine);
        counting.join().unwrap();
    });
    let value = engine.view().unwrap().get(b"n").unwrap().unwrap();
    assert_eq!(value.bytes[0], 2 * COUNTED, "each commit counted the one before it");
}

/// Waits until a change is reported.
fn wait(changes: &mut dyn Changes) {
    assert!((0..WAITS).any(|_| changes.wait(Duration::from_secs(1)).unwrap()), "a change is not reported");
}

fn put(key: &[u8], value: &[u8]) -> (Bytes, Option<Bytes>) {
    (Bytes::copy_from_slice(key), Some(Bytes::copy_from_slice(value)))
}

fn write(engine: &mut dyn Engine, writes: Vec<(Bytes, Option<Bytes>)>) -> EngineRevision {
    engine.commit(&Batch { compares: Vec::new(), writes }).unwrap()
}

fn found(view: &dyn View, from: &[u8], to: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    view.range(from, to, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    keys
}

/// Commits of each of two engines.
const COUNTED: u8 = 50;
/// Seconds, after which a change counts as missing.
const WAITS: u32 = 30;
