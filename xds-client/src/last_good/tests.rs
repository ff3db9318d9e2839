use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use xds_core::{Constraints, ResourceName};

use super::frame::{HEADER_BYTES, MARK};
use super::record::Entry;
use super::*;

/// The temporary folder of one test.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("xds-last-good-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("last_good")
    }

    pub(super) fn contents(&self) -> Contents {
        read(&*fs::read(self.file()).unwrap()).unwrap()
    }

    pub(super) fn holding(image: &[u8]) -> Self {
        let folder = Self::new();
        fs::write(folder.file(), image).unwrap();
        folder
    }

    pub(super) fn open(&self) -> (LastGood, Restored) {
        LastGood::open(self.file(), Secrets::LeftOut).unwrap()
    }

    fn size_bytes(&self) -> u64 {
        fs::metadata(self.file()).unwrap().len()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

pub(super) fn id(name: &str) -> VariantId {
    VariantId::unconstrained("example.com/acme.Thing", name)
}

pub(super) fn record(name: &str, payload: &str) -> Record {
    Record::new(id(name), payload.to_owned().into(), format!("v{payload}"), "upstream:443".into())
}

pub(super) fn secret(payload: &str) -> Record {
    Record { id: VariantId::unconstrained(SECRET, "key"), ..record("key", payload) }
}

/// A record with all fields.
fn full() -> Record {
    let constraints = "env=prod,!beta".parse().unwrap();
    Record {
        id: VariantId { constraints, ..id("full") },
        ttl: Some(Duration::new(90, 5)),
        aliases: vec![ResourceName::new("other"), ResourceName::new("another")],
        ..record("full", "0")
    }
}

fn reopened(folder: &Folder) -> Vec<Record> {
    folder.open().1.records
}

/// A file with entries of these bodies.
fn image(bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut image = vec![0; HEADER_BYTES as usize];
    for body in bodies {
        image.extend(frame::head(body, image.len() as u64));
        image.extend(body);
    }
    let length = image.len() as u64;
    set_length(&mut image, length);
    image
}

pub(super) fn set_length(image: &mut [u8], length: u64) {
    image[..MARK.len()].copy_from_slice(&MARK);
    image[MARK.len()..HEADER_BYTES as usize].copy_from_slice(&frame::length(length));
}

fn put(record: &Record) -> Vec<u8> {
    Entry::put(record).encode_to_vec()
}

/// A small file with puts, a replacement and a removal. For each entry it has the end of the entry
/// and the records up to there.
fn small() -> (Vec<u8>, Vec<(usize, Vec<Record>)>) {
    let (a1, a2, b) = (record("a", "1"), record("a", "2"), record("b", "1"));
    let removal = Entry::of(&Change::Remove(id("b"))).encode_to_vec();
    let bodies = [put(&a1), put(&b), put(&a2), removal, put(&full())];
    let states: [&[&Record]; 6] = [&[], &[&a1], &[&a1, &b], &[&a2, &b], &[&a2], &[&a2, &full()]];
    let ends = (0..=bodies.len()).map(|count| image(&bodies[..count]).len());
    let states = states.iter().map(|state| state.iter().copied().cloned().collect());
    (image(&bodies), ends.zip(states).collect())
}

#[test]
fn what_was_flushed_is_restored() {
    let folder = Folder::new();
    let (mut file, restored) = folder.open();
    assert_eq!(restored.records, []);
    assert_eq!((restored.cut_bytes, restored.skipped, restored.set_aside), (0, 0, None));
    for record in [record("a", "1"), record("b", "1"), full()] {
        file.put(record);
    }
    file.flush().unwrap();
    file.remove(id("b"));
    file.flush().unwrap();
    file.put(record("never", "flushed"));
    assert!(file.has_pending());
    drop(file);
    assert_eq!(reopened(&folder), [record("a", "1"), full()]);
}

#[test]
fn t23_constraints_are_restored_as_received() {
    // In another order, and with an unknown field: equal, but with other bytes.
    let written: Constraints = "a,b".parse().unwrap();
    let swapped: Constraints = "b,a".parse().unwrap();
    let future = Constraints::from_wire(&[written.wire(), &[0x78, 1][..]].concat()).unwrap();
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    for constraints in [&written, &swapped, &future] {
        assert_eq!(constraints, &written);
        file.put(Record {
            id: VariantId { constraints: constraints.clone(), ..id("a") },
            ..record("a", "1")
        });
        file.flush().unwrap();
        let records = folder.contents().records;
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].id.constraints.wire(), constraints.wire());
    }
}

#[test]
fn what_the_file_holds_already_is_not_written_again() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(full());
    file.flush().unwrap();
    let before = folder.size_bytes();
    file.put(full());
    file.remove(id("unknown"));
    file.flush().unwrap();
    drop(file);
    let (mut file, _) = folder.open();
    file.put(full());
    file.flush().unwrap();
    assert_eq!(folder.size_bytes(), before);

    for changed in [
        Record { version: "v2".into(), ..full() },
        Record { origin: "backup:443".into(), ..full() },
        Record { ttl: None, ..full() },
    ] {
        let before = folder.size_bytes();
        file.put(changed.clone());
        file.flush().unwrap();
        assert!(folder.size_bytes() > before);
        assert_eq!(folder.contents().records, [changed]);
    }
}

#[test]
fn the_file_is_written_anew_when_most_of_it_is_outdated() {
    let folder = Folder::new();
    // Files that a crash during this left behind do not disturb.
    fs::write(beside(&folder.file(), ".new"), "half a file").unwrap();
    let (mut file, _) = folder.open();
    file.put(full());
    let payload = |nth: usize| nth.to_string().repeat(1000);
    for nth in 0..100 {
        file.put(record("a", &payload(nth)));
        file.flush().unwrap();
        assert!(folder.size_bytes() <= COMPACTION_MIN_BYTES, "{nth}");
    }
    assert_eq!(folder.contents().records, [record("a", &payload(99)), full()]);
    // It continues with the new file.
    drop(file);
    assert_eq!(reopened(&folder), [record("a", &payload(99)), full()]);
    assert!(!beside(&folder.file(), ".new").exists());
}

#[test]
fn a_file_that_cannot_be_written_anew_still_gets_what_changes() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    let in_the_way = beside(&folder.file(), ".new");
    fs::create_dir(&in_the_way).unwrap();
    let large = |fill: &str| record("a", &fill.repeat(50_000));
    let mut flush = |fill| {
        file.put(large(fill));
        let flushed = file.flush();
        assert_eq!(folder.contents().records, [large(fill)]);
        flushed
    };
    flush("1").unwrap();
    let error = flush("2").unwrap_err();
    assert!(matches!(error, FlushError::Compact { .. }), "{error}");
    // It is not tried again before the file has doubled.
    flush("3").unwrap();
    flush("4").unwrap();
    fs::remove_dir(&in_the_way).unwrap();
    flush("5").unwrap();
    assert!(folder.size_bytes() < 150_000);
}

#[test]
fn an_entry_damaged_since_it_was_written_does_not_get_into_the_new_file() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.put(record("b", "1"));
    file.flush().unwrap();
    let mut disk = OpenOptions::new().write(true).open(folder.file()).unwrap();
    disk.seek(SeekFrom::Start(HEADER_BYTES + 20)).unwrap();
    disk.write_all(b"?").unwrap();

    for fill in ["1", "2", "3"] {
        file.put(record("c", &fill.repeat(50_000)));
        file.flush().unwrap();
    }
    let contents = folder.contents();
    assert_eq!(contents.ending, Ending::Whole);
    assert_eq!(contents.records, [record("b", "1"), record("c", &"3".repeat(50_000))]);
    // It no longer counts as stored, so it is written again.
    file.put(record("a", "1"));
    file.flush().unwrap();
    assert_eq!(folder.contents().records[0], record("a", "1"));
}

#[test]
fn a_file_cut_at_any_byte_has_all_whole_entries_before_it() {
    let (mut image, states) = small();
    // Only the header was ever synced: a crash during an append.
    set_length(&mut image, HEADER_BYTES);
    for length in 0..=image.len() {
        let cut = &image[..length];
        let found = read(cut).unwrap();
        let state = states.iter().rfind(|(end, _)| *end <= length);
        let (end, records) = state.cloned().unwrap_or((0, Vec::new()));
        let cut_bytes = (length - end) as u64;
        let ending = if cut_bytes == 0 { Ending::Whole } else { Ending::Torn { bytes: cut_bytes } };
        assert_eq!((found.ending, found.end, found.skipped), (ending, end as u64, 0), "cut at {length}");
        assert_eq!(found.records, records, "cut at {length}");

        let folder = Folder::holding(cut);
        let (mut file, restored) = folder.open();
        assert_eq!((&restored.records, restored.cut_bytes), (&records, cut_bytes), "cut at {length}");
        assert_eq!(restored.set_aside, None);
        file.put(record("c", "1"));
        file.flush().unwrap();
        let after = folder.contents();
        assert_eq!((after.ending, after.records.len()), (Ending::Whole, records.len() + 1));
    }
}

#[test]
fn a_file_with_any_bit_flipped_restores_only_what_was_put() {
    let (image, _) = small();
    let put = [record("a", "1"), record("a", "2"), record("b", "1"), full()];
    for at in 0..image.len() {
        for bit in 0..8 {
            let mut damaged = image.clone();
            damaged[at] ^= 1 << bit;
            let found = read(&*damaged).unwrap();
            assert!(matches!(found.ending, Ending::Broken(_)), "byte {at}");
            assert!(
                found.records.iter().all(|record| put.contains(record)),
                "byte {at}: {:?}",
                found.records
            );
        }
    }
}

#[test]
fn a_damaged_file_is_set_aside_and_what_is_whole_goes_into_a_new_one() {
    let (mut image, states) = small();
    // The body of the third entry, which put `a` a second time.
    image[states[2].0 + 20] ^= 1;
    let folder = Folder::holding(&image);
    let (file, restored) = folder.open();
    let records = [record("a", "1"), full()];
    let aside = beside(&folder.file(), ".bad").canonicalize().unwrap();
    let reason = Broken::Entry { at: states[2].0 as u64 };
    assert_eq!(restored.records, records);
    assert_eq!(restored.set_aside, Some(SetAside { path: Some(aside.clone()), reason }));
    assert_eq!(fs::read(aside).unwrap(), image);
    drop(file);
    let (_file, restored) = folder.open();
    assert_eq!((restored.set_aside, restored.records), (None, records.to_vec()));
}

#[test]
fn what_comes_after_a_damaged_head_or_a_lost_block_is_found_again() {
    let (whole, states) = small();
    let records = [record("a", "1"), full()];
    for lost in [0..1, 0..12, 0..20, 5..states[3].0 - states[2].0] {
        // The third entry, which put `a` a second time.
        let mut image = whole.clone();
        image[states[2].0..][lost.clone()].fill(0);
        image[states[2].0] ^= u8::from(lost == (0..1));
        let (_file, restored) = Folder::holding(&image).open();
        assert_eq!(restored.records, records, "{lost:?}");
        let reason = Broken::Entry { at: states[2].0 as u64 };
        assert_eq!(restored.set_aside.unwrap().reason, reason, "{lost:?}");
    }
}

#[test]
fn a_file_that_was_cut_between_two_entries_is_damaged() {
    let (image, states) = small();
    let (_file, restored) = Folder::holding(&image[..states[3].0]).open();
    assert_eq!(restored.records, states[3].1);
    let reason = Broken::Short { found: states[3].0 as u64, written: image.len() as u64 };
    assert_eq!(restored.set_aside.unwrap().reason, reason);
}

#[test]
fn an_entry_that_lies_elsewhere_is_damage() {
    let (mut image, states) = small();
    let [second, third, fourth] = [1, 2, 3].map(|nth| states[nth].0);
    assert_eq!(fourth - third, third - second, "for this test");
    image.copy_within(second..third, third);
    assert_eq!(read(&*image).unwrap().ending, Ending::Broken(Broken::Entry { at: third as u64 }));
}

#[test]
fn an_absurd_length_is_damage() {
    let mut head = [0; 12];
    head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let sum = crc32fast::hash(&[&head[..8], &HEADER_BYTES.to_le_bytes()].concat());
    head[8..].copy_from_slice(&sum.to_le_bytes());
    let found = read(&*[&image(&[])[..], &head].concat()).unwrap();
    assert_eq!(found.ending, Ending::Broken(Broken::Entry { at: HEADER_BYTES }));
}

#[test]
fn zeros_at_the_end_are_cut_off() {
    let (mut image, states) = small();
    image.resize(image.len() + 20_000, 0);
    let folder = Folder::holding(&image);
    let (_file, restored) = folder.open();
    assert_eq!((restored.cut_bytes, restored.set_aside), (20_000, None));
    assert_eq!(restored.records, states[5].1);
    let (_file, restored) = Folder::holding(&[0; 4096]).open();
    assert_eq!((restored.cut_bytes, restored.set_aside), (4096, None));
}

#[test]
fn foreign_files_and_unknown_formats_are_set_aside_and_never_overwritten() {
    let folder = Folder::new();
    let mut newer = image(&[put(&record("a", "1"))]);
    newer[8] = 3;
    let files: [(&[u8], Broken); 2] =
        [(b"listeners: []\n", Broken::Foreign), (&newer, Broken::UnknownFormat { found: 3 })];
    let path = folder.file();
    for nth in 0..SET_ASIDE_LIMIT + 2 {
        let (content, reason) = &files[nth % 2];
        fs::write(&path, content).unwrap();
        let (_file, restored) = folder.open();
        let set_aside = restored.set_aside.unwrap();
        assert_eq!((&set_aside.reason, restored.records), (reason, Vec::new()));
        assert_eq!(set_aside.path.is_some(), nth < SET_ASIDE_LIMIT);
    }
    for nth in 0..SET_ASIDE_LIMIT {
        let name = if nth == 0 { ".bad".to_owned() } else { format!(".bad.{nth}") };
        assert_eq!(fs::read(beside(&path, &name)).unwrap(), files[nth % 2].0);
    }
    assert_eq!(reopened(&folder), []);
}

#[test]
fn entries_that_cannot_be_understood_are_skipped_and_counted() {
    // If a field occurs twice, the last value counts.
    let with = |field: &[u8]| [&put(&record("a", "1")), field].concat();
    let constraints_without_type = with(&[0x1a, 2, 0x78, 1]);
    let name_with_control_character = with(&[0x12, 2, b'a', b'\n']);
    let no_name = with(&[0x12, 0]);
    let bad_new_style_name = with(b"\x12\x0cxdstp://a/b/");
    let negative_ttl = with(b"\x22\x0d\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    let kind_from_the_future =
        [&Entry::of(&Change::Remove(id("a"))).encode_to_vec()[..27], &[0x4a, 0]].concat();
    let no_message = vec![0x0a, 0x7f];
    let field_from_the_future = with(&[0x78, 1]);
    let bodies = [
        constraints_without_type,
        name_with_control_character,
        no_name,
        bad_new_style_name,
        negative_ttl,
        kind_from_the_future,
        no_message,
        field_from_the_future,
    ];
    let folder = Folder::holding(&image(&bodies));
    let (_file, restored) = folder.open();
    assert_eq!((restored.skipped, restored.set_aside), (7, None));
    assert_eq!(restored.records, [record("a", "1")]);
}

#[test]
fn secrets_are_not_stored_unless_asked_for() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(secret("hush"));
    file.put(record("a", "1"));
    file.flush().unwrap();
    drop(file);
    assert_eq!(reopened(&folder), [record("a", "1")]);

    let (mut file, _) = LastGood::open(folder.file(), Secrets::Kept).unwrap();
    file.put(secret("hush"));
    file.flush().unwrap();
    drop(file);
    let (_file, restored) = LastGood::open(folder.file(), Secrets::Kept).unwrap();
    assert_eq!(restored.records, [record("a", "1"), secret("hush")]);
}

#[test]
fn secrets_from_before_are_erased_when_they_are_to_be_left_out() {
    let folder = Folder::holding(&image(&[put(&secret("hush")), put(&record("a", "1"))]));
    let holds_secret = || fs::read(folder.file()).unwrap().windows(4).any(|text| text == b"hush");
    assert!(holds_secret());
    assert_eq!(reopened(&folder), [record("a", "1")]);
    assert!(!holds_secret());
    assert_eq!(reopened(&folder), [record("a", "1")]);
}

#[test]
fn what_comes_and_goes_between_two_flushes_leaves_nothing_to_write() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.remove(id("a"));
    assert!(!file.has_pending());
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_what_is_written() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::holding(b"foreign");
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.flush().unwrap();
    for suffix in ["", ".lock"] {
        let mode = fs::metadata(beside(&folder.file(), suffix)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{suffix}");
    }
}

#[test]
fn a_file_is_open_once_at_a_time() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    // The lock stays valid after the file is replaced.
    for fill in ["1", "2", "3"] {
        file.put(record("a", &fill.repeat(50_000)));
        file.flush().unwrap();
    }
    let error = LastGood::open(folder.file(), Secrets::LeftOut).unwrap_err();
    let OpenError::InUse { path } = &error else { panic!("{error}") };
    assert_eq!(path, &beside(&folder.file(), ".lock").canonicalize().unwrap());
    drop(file);
    folder.open();
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_is_that_file() {
    let folder = Folder::new();
    let (file, _) = folder.open();
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(folder.file(), &link).unwrap();
    let error = LastGood::open(&link, Secrets::LeftOut).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(file);
    LastGood::open(&link, Secrets::LeftOut).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// Regression: a proxy whose disk was full, or read-only after an error, did not start.
#[test]
fn a_disk_that_lets_nobody_write_costs_nothing_that_can_be_read() {
    let begin = |folder: &Folder, kind: io::ErrorKind| {
        let path = fs::canonicalize(&folder.0).unwrap().join(folder.file().file_name().unwrap());
        let full = OpenError::Io { path: path.clone(), source: kind.into() };
        LastGood::begin(path, Err(full), Secrets::LeftOut)
    };
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
        // No file yet, a file, and one that a crash left torn.
        for torn in [None, Some(0), Some(3)] {
            let folder = Folder::new();
            let count = usize::from(torn.is_some());
            if let Some(torn) = torn {
                let (mut file, _) = folder.open();
                file.put(record("a", "1"));
                file.flush().unwrap();
                drop(file);
                let bytes = fs::read(folder.file()).unwrap();
                fs::write(folder.file(), [&bytes[..], &vec![1; torn]].concat()).unwrap();
            }
            let before = fs::read(folder.file()).ok();
            let (mut file, restored) = begin(&folder, kind).unwrap();
            assert_eq!(restored.records.len(), count);
            assert_eq!(fs::read(folder.file()).ok(), before, "nothing is written");
            // Another process has it meanwhile.
            assert!(file.has_pending());
            let (other, _) = folder.open();
            file.put(record("b", "2"));
            file.flush().unwrap_err();
            drop(other);
            if fs::read(folder.file()).ok() != before {
                // It repaired the file, or made one.
                let error = file.flush().unwrap_err();
                assert!(format!("{error:?}").contains("another process"), "{error:?}");
                drop(file);
                let (again, restored) = begin(&folder, kind).unwrap();
                assert_eq!(restored.records.len(), count);
                file = again;
                file.put(record("b", "2"));
            }
            // The disk has room again.
            file.flush().unwrap();
            assert!(!file.has_pending());
            LastGood::open(folder.file(), Secrets::LeftOut).unwrap_err();
            drop(file);
            assert_eq!(folder.open().1.records.len(), count + 1);
        }
    }
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let folder = Folder::new();
    let error = |path: PathBuf| LastGood::open(path, Secrets::LeftOut).unwrap_err();
    let missing = folder.0.join("missing").join("file");
    let text = error(missing.clone()).to_string();
    assert!(text.contains(&*missing.to_string_lossy()) && text.contains("create it"), "{text}");
    assert!(matches!(error(folder.0.clone()), OpenError::NotAFile { .. }));
    assert!(matches!(error(PathBuf::new()), OpenError::Io { .. }));
    let denied = OpenError::new(&missing, io::ErrorKind::PermissionDenied.into());
    assert!(denied.to_string().contains("readable and writable"), "{denied}");
}

#[derive(Debug, Clone)]
enum Step {
    Put { name: u8, fill: u8, size_bytes: usize },
    Remove { name: u8 },
    Flush,
    Reopen,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let name = u8::arbitrary(g) % 4;
        match u8::arbitrary(g) % 10 {
            0..5 => {
                let sizes = [0, 1, 5_000, 20_000];
                Self::Put { name, fill: u8::arbitrary(g) % 3, size_bytes: *g.choose(&sizes).unwrap() }
            }
            5 => Self::Remove { name },
            6..9 => Self::Flush,
            _ => Self::Reopen,
        }
    }
}

thread_local! {
    static COMPACTIONS: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_file_is_a_map_that_a_flush_saves() {
    fn holds(steps: Vec<Step>) {
        let folder = Folder::new();
        let (mut file, _) = folder.open();
        let (mut saved, mut current) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Put { name, fill, size_bytes } => {
                    let mut record = record(&name.to_string(), &fill.to_string());
                    record.payload = vec![fill; size_bytes].into();
                    current.insert(name, record.clone());
                    file.put(record);
                }
                Step::Remove { name } => {
                    current.remove(&name);
                    file.remove(id(&name.to_string()));
                }
                Step::Flush => {
                    let before = folder.size_bytes();
                    file.flush().unwrap();
                    saved.clone_from(&current);
                    let size_bytes = folder.size_bytes();
                    COMPACTIONS.set(COMPACTIONS.get() + usize::from(size_bytes < before));
                    let live: usize = saved.values().map(|record| record.payload.len() + 100).sum();
                    assert!(size_bytes <= COMPACTION_MIN_BYTES.max(2 * live as u64 + 2));
                }
                Step::Reopen => {
                    drop(file);
                    let restored;
                    (file, restored) = folder.open();
                    current.clone_from(&saved);
                    assert_eq!((restored.cut_bytes, restored.set_aside), (0, None));
                    assert_eq!(restored.records, saved.values().cloned().collect::<Vec<_>>());
                }
            }
            assert_eq!(folder.contents().records, saved.values().cloned().collect::<Vec<_>>());
        }
    }
    QuickCheck::new().tests(50).quickcheck(holds as fn(Vec<Step>));
    assert!(COMPACTIONS.get() > 0, "no case was long enough to be written anew");
}
