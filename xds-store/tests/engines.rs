//! What the store needs of an engine, on each engine.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::ControlFlow;

use bytes::Bytes;
use xds_store::engine::{Batch, Engine, EngineError, EngineRevision, MemoryEngine, View};

fn writes(of: &[(&'static str, Option<&'static str>)]) -> Batch {
    let writes = of.iter().map(|(key, value)| (Bytes::from(*key), value.map(Bytes::from)));
    Batch { compares: Vec::new(), writes: writes.collect() }
}

fn keys(view: &dyn View, from: &str, to: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut each = |key: &[u8], _| {
        keys.push(String::from_utf8(key.to_vec()).unwrap());
        ControlFlow::Continue(())
    };
    view.range(from.as_bytes(), to.as_bytes(), &mut each).unwrap();
    keys
}

fn keeps_its_promises(engine: &mut impl Engine) {
    let before = engine.view().unwrap();
    assert_eq!(before.get(b"a").unwrap(), None);
    let one = engine.commit(&writes(&[("b", Some("1")), ("a", Some("1")), ("ab", Some("1"))])).unwrap();
    let two = engine.commit(&writes(&[("a", Some("2")), ("b", None)])).unwrap();
    assert!(one > before.revision() && two > one);
    let view = engine.view().unwrap();
    assert_eq!(view.revision(), two);

    // Keys are in order, and the end of a range is not in it.
    assert_eq!(keys(&*view, "a", "z"), ["a", "ab"]);
    assert_eq!(keys(&*view, "a", "ab"), ["a"]);
    assert_eq!(keys(&*view, "z", "a"), [""; 0]);
    let last = |from: &str, to: &str| {
        let last = view.last(from.as_bytes(), to.as_bytes()).unwrap();
        last.map(|(key, value)| [key, value.bytes].map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
    };
    assert_eq!(last("a", "z"), Some(["ab", "1"].map(str::to_owned)));
    assert_eq!(last("a", "ab"), Some(["a", "2"].map(str::to_owned)));
    assert_eq!([last("b", "z"), last("z", "a"), last("a", "a")], [None, None, None]);
    let a = view.get(b"a").unwrap().unwrap();
    assert_eq!((&*a.bytes, a.revision), (&b"2"[..], two));
    assert_eq!(view.get(b"ab").unwrap().unwrap().revision, one);

    // A comparison that does not hold refuses the whole batch.
    let compare = |key: &'static str, revision: Option<EngineRevision>| Batch {
        compares: vec![(key.into(), revision)],
        ..writes(&[("a", Some("3")), ("c", Some("3"))])
    };
    for (key, revision) in [("a", Some(one)), ("a", None), ("b", Some(one))] {
        assert!(matches!(engine.commit(&compare(key, revision)), Err(EngineError::Conflict)), "{key}");
    }
    assert_eq!(engine.view().unwrap().revision(), two);
    assert_eq!(engine.view().unwrap().get(b"c").unwrap(), None);
    engine.commit(&compare("b", None)).unwrap();

    // Another thread reads what was committed, while the engine commits.
    let reader = engine.reader();
    let (started, begins) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut last = EngineRevision::default();
            while last < EngineRevision(53) {
                let view = reader.view().unwrap();
                assert!(view.revision() >= last, "no view goes back");
                last = view.revision();
                let d = view.get(b"d").unwrap().map(|value| value.revision);
                assert_eq!(d.unwrap_or(EngineRevision(3)), last, "a view is the state of one commit");
                _ = started.send(());
            }
        });
        begins.recv().unwrap();
        for _ in 0..50 {
            engine.commit(&writes(&[("d", Some("1"))])).unwrap();
        }
    });
    engine.commit(&writes(&[("d", None)])).unwrap();

    // A view does not change.
    assert_eq!(keys(&*view, "a", "z"), ["a", "ab"]);
    assert_eq!(keys(&*before, "a", "z"), [""; 0]);
    assert_eq!(keys(&*engine.view().unwrap(), "a", "z"), ["a", "ab", "c"]);
}

#[test]
fn the_engine_in_memory_keeps_its_promises() {
    keeps_its_promises(&mut MemoryEngine::default());
}

#[test]
fn commits_of_a_clone_of_the_engine_in_memory_are_reported() {
    let mut engine = MemoryEngine::default();
    let mut other = engine.clone();
    let mut changes = engine.changes(b"h").unwrap();
    let mut changed = || changes.wait(std::time::Duration::ZERO).unwrap();
    assert!(!changed());
    engine.commit(&writes(&[("h", Some("1"))])).unwrap();
    assert_eq!([changed(), changed()], [true, false]);
    other.commit(&writes(&[("a", Some("1"))])).unwrap();
    assert!(!changed(), "another key");
    other.commit(&writes(&[("h", Some("2"))])).unwrap();
    assert_eq!([changed(), changed()], [true, false]);
}

#[cfg(feature = "redb")]
mod on_a_file {
    use std::fs;
    use std::path::PathBuf;

    use xds_store::engine::{OpenError, RedbEngine};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
            _ = fs::remove_file(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_engine_on_a_file_keeps_its_promises_and_what_was_written() {
        let file = Scratch::new("promises");
        keeps_its_promises(&mut RedbEngine::open(&file.0).unwrap());
        let engine = RedbEngine::open(&file.0).unwrap();
        let view = engine.view().unwrap();
        assert_eq!(
            (keys(&*view, "a", "z"), view.revision()),
            (vec!["a".into(), "ab".into(), "c".into()], EngineRevision(54))
        );
    }

    #[test]
    fn st3_a_file_is_open_once() {
        let file = Scratch::new("once");
        let _engine = RedbEngine::open(&file.0).unwrap();
        assert!(matches!(RedbEngine::open(&file.0), Err(OpenError::Locked)));
    }

    #[test]
    fn a_reader_does_not_keep_the_file_open() {
        let file = Scratch::new("reader");
        let reader = RedbEngine::open(&file.0).unwrap().reader();
        assert!(matches!(reader.view(), Err(EngineError::Unavailable(_))));
        RedbEngine::open(&file.0).unwrap();
    }

    #[test]
    fn a_file_that_is_no_store_is_refused() {
        let file = Scratch::new("other");
        fs::write(&file.0, [7; 10_000]).unwrap();
        assert!(matches!(RedbEngine::open(&file.0), Err(OpenError::Damaged(_))));
    }
}
