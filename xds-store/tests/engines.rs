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

    /// Regression: commits were acknowledged without end, and gone after a restart.
    #[test]
    fn st21_a_file_that_is_moved_removed_replaced_or_cut_takes_no_commit() {
        type Disturb = fn(&std::path::Path);
        let disturb: [(&str, Disturb); 4] = [
            ("removed", |path| fs::remove_file(path).unwrap()),
            ("moved", |path| fs::rename(path, path.with_extension("away")).unwrap()),
            ("replaced", |path| {
                let other = path.with_extension("other");
                fs::copy(path, &other).unwrap();
                fs::rename(other, path).unwrap();
            }),
            ("bytes", |path| {
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
            }),
        ];
        for (what, disturb) in disturb {
            let file = Scratch::new(what);
            let mut engine = RedbEngine::open(&file.0).unwrap();
            let before = engine.commit(&writes(&[("a", Some("1"))])).unwrap();
            disturb(&file.0);
            let refused = engine.commit(&writes(&[("a", Some("2"))]));
            let Err(EngineError::Broken(cause)) = refused else { panic!("{what}: {refused:?}") };
            assert!(cause.to_string().contains(what), "{what}: {cause}");
            let again = engine.commit(&writes(&[("a", Some("3"))]));
            assert!(matches!(again, Err(EngineError::Broken(_))), "{what}: until a restart");
            // The pages of the file that was opened are there, unless it was cut.
            if what != "bytes" {
                let view = engine.view().unwrap();
                assert_eq!((view.revision(), &*view.get(b"a").unwrap().unwrap().bytes), (before, &b"1"[..]));
            }
            _ = fs::remove_file(file.0.with_extension("away"));
        }
    }

    /// Regression: the library panics on most pages that are zero.
    #[test]
    fn st47_a_page_that_is_zero_is_an_error_and_never_a_panic() {
        let file = Scratch::new("zeroed");
        let mut engine = RedbEngine::open(&file.0).unwrap();
        for batch in 0..40 {
            let writes = (0..20).map(|key| {
                let value = Bytes::from(format!("{batch:04}").repeat(100));
                (Bytes::from(format!("{:04}", batch * 20 + key)), Some(value))
            });
            engine.commit(&Batch { compares: Vec::new(), writes: writes.collect() }).unwrap();
        }
        drop(engine);
        let whole = fs::read(&file.0).unwrap();
        let (mut damaged, mut fine) = (0, 0);
        for page in 0..whole.len() / 4096 {
            let mut bytes = whole.clone();
            bytes[page * 4096..][..4096].fill(0);
            if bytes == whole {
                continue;
            }
            for open in [RedbEngine::open_unchanged, RedbEngine::open] {
                fs::write(&file.0, &bytes).unwrap();
                let done = open(&file.0).map_err(|_| ()).and_then(|mut engine| {
                    let view = engine.view().map_err(|_| ())?;
                    let mut keys = 0;
                    let each = &mut |_: &[u8], _| {
                        keys += 1;
                        ControlFlow::Continue(())
                    };
                    let read = view.range(b"0", b"9", each);
                    _ = view.last(b"0", b"9");
                    let all = (0..800).all(|key| view.get(format!("{key:04}").as_bytes()).is_ok());
                    drop(view);
                    _ = engine.commit(&writes(&[("0400", Some("1"))]));
                    assert!(read.is_err() || keys == 800, "page {page}: {keys} keys, and no error");
                    if read.is_ok() && all { Ok(()) } else { Err(()) }
                });
                if done.is_ok() { fine += 1 } else { damaged += 1 }
            }
        }
        assert!(damaged > 20, "{damaged} damaged, {fine} fine");
    }

    #[test]
    fn a_file_that_is_no_store_is_refused() {
        let file = Scratch::new("other");
        fs::write(&file.0, [7; 10_000]).unwrap();
        assert!(matches!(RedbEngine::open(&file.0), Err(OpenError::Damaged(_))));
    }
}
