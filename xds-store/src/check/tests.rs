use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::*;
use crate::engine::{Batch, Engine, MemoryEngine};
use crate::log::{FORMAT, LogChange};

/// A store with these words: `l3:a,b<1` is the log entry of revision 3, which changed `a` for the
/// first time and `b` after revision 1; `a@3` is a state of `a`, `-a@3` its deletion. A name may
/// have constraints: `a[env=p]@3`.
struct Fixture {
    head: Head,
    engine: MemoryEngine,
}

impl Fixture {
    fn new(revision: u64, floor: u64, words: &str) -> Self {
        let head = Head { revision, floor, format: FORMAT, ..Head::default() };
        let mut fixture = Self { head: head.clone(), engine: MemoryEngine::default() };
        fixture.put(stored::HEAD, &head);
        words.split_whitespace().for_each(|word| fixture.add(word));
        fixture
    }

    fn add(&mut self, word: &str) {
        if let Some((revision, changes)) = word.strip_prefix('l').and_then(|rest| rest.split_once(':')) {
            let counter = revision.parse().unwrap();
            let change = |text: &str| {
                let (name, previous) = text.split_once('<').unwrap_or((text, "0"));
                let previous = previous.parse().unwrap();
                LogChange { key: key(name).to_proto(), previous, outcome: proto::Outcome::Created.into() }
            };
            let changes = changes.split(';').filter(|text| !text.is_empty()).map(change).collect();
            self.put(&stored::log(counter), &LogEntry { counter, changes, ..LogEntry::default() });
        } else {
            let (name, revision) = word.trim_start_matches('-').split_once('@').unwrap();
            let revision = revision.parse().unwrap();
            let state = state(name, revision, word.starts_with('-'));
            self.put(&stored::record(&key(name), revision), &state);
        }
    }

    fn put(&mut self, key: &[u8], message: &impl Message) {
        self.write(key, Some(checked::encode(key, message)));
    }

    fn write(&mut self, key: &[u8], value: Option<Bytes>) {
        let writes = vec![(Bytes::copy_from_slice(key), value)];
        self.engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
    }

    fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let checked =
            check_store(&*self.engine.view().unwrap(), &mut |finding| found.push(finding.to_string()));
        let checked = checked.unwrap();
        assert_eq!((checked.findings, checked.revision), (found.len() as u64, self.head.revision));
        found
    }
}

fn key(name: &str) -> RecordKey {
    let (name, when) = name.trim_end_matches(']').split_once('[').unwrap_or((name, ""));
    RecordKey::parse(&proto::Key { type_url: "t/T".into(), name: name.into(), when: when.into() }).unwrap()
}

fn state(name: &str, generation: u64, is_deleted: bool) -> RecordState {
    let lifecycle = if is_deleted { proto::State::Deleted } else { proto::State::Live };
    let mut state = RecordState {
        key: Some(key(name).to_proto()),
        incarnation: 1,
        generation,
        lifecycle: lifecycle.into(),
        content: Some(proto::Content { payload: name.to_owned().into(), ..Default::default() }),
        ..RecordState::default()
    };
    state.digest = record::content_digest(&state);
    state
}

#[test]
fn st48_a_store_as_commits_leave_it_has_no_findings() {
    let whole = "l1:a;b l2: l3:a<1 l4:b<1;c a@1 a@3 b@1 -b@4 c@4";
    assert_eq!(Fixture::new(4, 0, whole).findings(), [""; 0]);
    // Compacted up to 3: what was current then is kept.
    assert_eq!(Fixture::new(4, 3, "l4:b<1;c a@3 b@1 -b@4 c@4").findings(), [""; 0]);
    let variants = "l1:a[env=p];a[env!=p];b a[env=p]@1 a[env!=p]@1 b@1";
    assert_eq!(Fixture::new(1, 0, variants).findings(), [""; 0]);
    // A variant that was deleted cannot overlap.
    assert_eq!(
        Fixture::new(2, 0, "l1:a[env=p] l2:a;a[env=p]<1 a[env=p]@1 -a[env=p]@2 a@2").findings(),
        [""; 0]
    );
    assert_eq!(Fixture::new(0, 0, "").findings(), [""; 0]);
}

#[test]
fn st48_a_log_with_holes_or_without_the_states_that_it_names_is_found() {
    let found = |revision, floor, words| Fixture::new(revision, floor, words).findings();
    assert_eq!(found(4, 0, "l1: l4:"), ["the log lacks revisions 2 to 3"]);
    assert_eq!(found(2, 0, "l1:a a@1"), ["the log lacks revision 2"]);
    assert_eq!(found(1, 0, ""), ["the log lacks revision 1"]);
    assert_eq!(found(1, 0, "l1: l2:"), ["there is a revision 2, which the store does not have"]);
    assert_eq!(found(2, 1, "l1: l2:"), ["there is a revision 1, which the store does not have"]);
    assert_eq!(found(2, 0, "l1:a;b l2:a<1 b@1 a@1"), ["t/T a: the state of revision 2 is missing"]);
    assert_eq!(found(1, 0, "l1:a"), ["t/T a: the state of revision 1 is missing"]);
    assert_eq!(
        found(2, 0, "l1:a l2:a<1 a@2"),
        [
            "t/T a: the state of revision 1 is missing",
            "t/T a: the log of revision 2 names 1 as the one before, which is wrong"
        ]
    );
    assert_eq!(found(2, 0, "l1:a l2: a@1 a@2"), ["t/T a: the log of revision 2 does not name it"]);
    assert_eq!(
        found(2, 0, "l1:a l2:a a@1 a@2"),
        ["t/T a: the log of revision 2 names 0 as the one before, which is wrong"]
    );
}

#[test]
fn st48_states_that_no_commit_makes_are_found() {
    let mut f = Fixture::new(2, 0, "l1:a;b;c;d l2:d<1 a@1 b@1 c@1 d@2 d@1");
    let at = |name: &str| stored::record(&key(name), 1);
    f.write(&at("a"), Some("damage".into()));
    f.put(&at("b"), &state("a", 1, false));
    f.put(&at("c"), &RecordState { digest: "other".into(), ..state("c", 1, false) });
    f.put(&at("d"), &state("d", 3, false));
    f.write(b"x", Some("?".into()));
    assert_eq!(
        f.findings(),
        [
            "the stored value of b\"vt/T\\0a\\0\\0\\0\\0\\0\\0\\0\\0\\0\\x01\" is damaged",
            "t/T b: the state of revision 1 has a wrong key",
            "t/T c: the content of revision 1 does not have its digest",
            "t/T d: revision 2 has a smaller generation than the one before",
            "b\"x\" is no key of a store",
        ]
    );
}

#[test]
fn st48_g16_variants_that_both_match_are_found_with_parameters() {
    let words = "l1:a[env=p];a;b[env=p];b[zone=x] a[env=p]@1 a@1 b[env=p]@1 b[zone=x]@1";
    let found = Fixture::new(1, 0, words).findings();
    assert_eq!(
        found,
        [
            "t/T a: it and t/T a [env=p] both match env=\"p\"",
            "t/T b [env=p]: it and t/T b [zone=x] both match env=\"p\", zone=\"x\"",
        ]
    );
}

#[test]
fn st48_what_is_no_store_is_an_error() {
    let check = |engine: &MemoryEngine| check_store(&*engine.view().unwrap(), &mut |_| {});
    assert!(matches!(check(&MemoryEngine::default()), Err(LoadError::NoStore)));
    let mut f = Fixture::new(1, 0, "l1:");
    f.put(stored::HEAD, &Head { is_incomplete: true, ..f.head.clone() });
    assert!(matches!(check(&f.engine), Err(LoadError::Incomplete)));
    f.put(stored::HEAD, &Head { format: FORMAT + 1, ..f.head.clone() });
    assert!(matches!(check(&f.engine), Err(LoadError::Newer { .. })));
}

#[test]
fn st48_a_backup_is_checked_like_its_store() {
    use crate::backup::{Backup, History};
    let f = Fixture::new(2, 0, "l1:a l2: a@1 a@2");
    let backup = |history| -> Vec<u8> {
        let parts = Backup::new(f.engine.view().unwrap(), history).unwrap();
        parts.flat_map(|part| part.unwrap().data).collect()
    };
    let mut found = Vec::new();
    let checked = check_backup(&*backup(History::Whole), &mut |finding| found.push(finding.to_string()));
    assert_eq!(found, f.findings());
    let expected = Checked { revision: 2, floor: 0, records: 1, versions: 2, log_entries: 2, findings: 1 };
    assert_eq!(checked.unwrap(), expected);
    let left_out = check_backup(&*backup(History::LeftOut), &mut |finding| panic!("{finding}"));
    assert_eq!(left_out.unwrap().versions, 1);
    assert!(check_backup(&backup(History::Whole)[..50], &mut |_| {}).is_err());
}
