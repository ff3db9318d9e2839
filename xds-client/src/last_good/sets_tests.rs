//! A set is restored completely or not at all, whatever happens to the file.

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::frame::{BEHIND, HEADER_BYTES};
use super::tests::{Folder, id, record, secret, set_length};
use super::*;

/// The sets that a file may restore: with their members and contents at a moment when they were
/// complete.
type Whole = BTreeSet<(SetId, BTreeMap<VariantId, String>)>;

fn set(name: &str, parameters: &[(&str, &str)]) -> SetId {
    let type_url = "example.com/acme.Thing".into();
    SetId { type_url, name: name.into(), parameters: parameters.iter().copied().collect() }
}

fn all() -> SetId {
    set("*", &[])
}

fn prod() -> SetId {
    set("*", &[("env", "prod")])
}

fn of_prod(name: &str, payload: &str) -> Record {
    let constraints = "env=prod".parse().unwrap();
    Record { id: VariantId { constraints, ..id(name) }, ..record(name, payload) }
}

fn members(set: &SetId, records: &[Record]) -> BTreeMap<VariantId, String> {
    let members = records.iter().filter(|record| set.covers(&record.id));
    members.map(|record| (record.id.clone(), record.version.clone())).collect()
}

/// The restored sets with their restored members.
fn whole(contents: &Contents) -> Whole {
    contents.sets.iter().map(|set| (set.clone(), members(set, &contents.records))).collect()
}

fn image(folder: &Folder) -> Vec<u8> {
    fs::read(folder.file()).unwrap()
}

/// A file written in several flushes, with its sets after each flush, oldest first.
fn written() -> Vec<Vec<u8>> {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    let mut images = Vec::new();
    let mut flush = |file: &mut LastGood| {
        file.flush().unwrap();
        images.push(image(&folder));
    };
    for name in ["a", "b", "c", "d"] {
        file.put(record(name, "1"));
    }
    file.put(of_prod("p", "1"));
    file.note_set(SetChange::Complete(all()));
    file.note_set(SetChange::Complete(prod()));
    flush(&mut file);
    file.put(record("e", "1"));
    flush(&mut file);
    file.put(record("a", "2"));
    file.remove(id("b"));
    flush(&mut file);
    file.put(of_prod("q", "1"));
    flush(&mut file);
    images
}

/// Regression: 22 of 23 clusters were restored as a complete set.
#[test]
fn s25_whatever_bit_is_flipped_no_set_lacks_a_member_and_names_without_damage_stay() {
    let image = written().pop().unwrap();
    let truth = read(&*image).unwrap();
    assert_eq!((truth.sets.clone(), truth.unproved), (vec![all(), prod()], 0));
    for at in 0..image.len() {
        for bit in 0..8 {
            let mut damaged = image.clone();
            damaged[at] ^= 1 << bit;
            let found = read(&*damaged).unwrap();
            assert!(whole(&found).is_subset(&whole(&truth)), "byte {at} bit {bit}");
            if at >= MARKED {
                let lost = truth.records.iter().filter(|record| !found.records.contains(record)).count();
                assert!(lost <= 1, "byte {at} bit {bit}: {lost} names are lost");
            }
        }
    }
}

/// Damage after this position does not make it another kind of file.
const MARKED: usize = 12;

#[test]
fn s25_wherever_a_file_is_cut_no_set_lacks_a_member() {
    let image = written().pop().unwrap();
    for length in 0..image.len() {
        let found = read(&image[..length]).unwrap();
        assert_eq!(found.sets, [], "cut at {length}");
    }
}

#[test]
fn s25_a_lost_block_or_an_entry_in_the_place_of_another_makes_no_set_of_a_part() {
    let image = written().pop().unwrap();
    let truth = whole(&read(&*image).unwrap());
    let header = HEADER_BYTES as usize;
    for size in [1, 12, 40, 100, 300] {
        for at in (header..image.len()).step_by(3) {
            let end = (at + size).min(image.len());
            let mut lost = image.clone();
            lost[at..end].fill(0);
            assert!(whole(&read(&*lost).unwrap()).is_subset(&truth), "{size} zeros at {at}");
            // A write at the wrong position, and a repeated write.
            for from in (header..image.len() - size).step_by(17) {
                let mut moved = image.clone();
                moved.copy_within(from..from + (end - at), at);
                let found = whole(&read(&*moved).unwrap());
                assert!(found.is_subset(&truth), "{size} bytes of {from} at {at}");
            }
        }
    }
}

/// The process or the machine fails during a flush: any part of the append may be on the disk, and
/// the header is the old or the new one.
#[test]
fn s25_a_crash_at_any_byte_of_a_flush_leaves_the_sets_of_before_or_after_or_none() {
    let images = written();
    for pair in images.windows(2) {
        let [before, after] = pair else { unreachable!() };
        let may_be: Whole =
            [before, after].iter().flat_map(|image| whole(&read(&***image).unwrap())).collect();
        for length in before.len()..=after.len() {
            let mut old = after[..length].to_vec();
            set_length(&mut old, before.len() as u64);
            let mut zeros = after[..length].to_vec();
            zeros.resize(after.len(), 0);
            for image in [old, after[..length].to_vec(), zeros] {
                let found = whole(&read(&*image).unwrap());
                assert!(found.is_subset(&may_be), "cut at {length}");
                if length % 10 > 0 {
                    continue;
                }
                // A later flush of such a file proves no older state.
                let folder = Folder::holding(&image);
                let (mut file, restored) = folder.open();
                file.put(record("z", "1"));
                file.flush().unwrap();
                assert_eq!(folder.contents().sets, [], "{:?}", restored.sets);
            }
        }
    }
}

#[test]
fn a_set_that_was_proved_after_the_damage_by_other_members_is_restored() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.put(of_prod("p", "1"));
    file.note_set(SetChange::Complete(all()));
    file.note_set(SetChange::Complete(prod()));
    file.flush().unwrap();
    let damage = image(&folder).windows(3).position(|bytes| bytes == b"\x12\x01p").unwrap() + 2;
    // After the damage: a change for which only one of them writes a new proof, and one for which
    // both do.
    for (changed, sets) in [(record("a", "2"), vec![all()]), (of_prod("q", "1"), vec![all()])] {
        file.put(changed);
        file.flush().unwrap();
        let mut damaged = image(&folder);
        damaged[damage] ^= 0x10;
        assert_eq!(read(&*damaged).unwrap().sets, sets);
    }
}

#[test]
fn a_set_that_is_not_proved_is_not_proved_by_what_comes_later() {
    let images = written();
    let mut image = images[0].clone();
    set_length(&mut image, BEHIND);
    let folder = Folder::holding(&image);
    let (mut file, restored) = folder.open();
    assert_eq!((restored.sets, restored.unproved, restored.records.len()), (Vec::new(), 2, 5));
    assert_eq!(restored.set_aside, None, "it is not damaged");
    file.flush().unwrap();
    assert_eq!((folder.contents().sets, folder.contents().unproved), (Vec::new(), 0));
    file.note_set(SetChange::Complete(prod()));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [prod()]);
}

#[test]
fn what_cannot_be_written_leaves_no_set_that_may_be_old() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.note_set(SetChange::Complete(all()));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [all()]);

    file.limit(Some(image(&folder).len() as u64 + 10));
    for name in ["b", "c"] {
        file.put(record(name, "1"));
        let error = file.flush().unwrap_err();
        assert!(matches!(error, FlushError::Append { .. }), "{error}");
        let contents = folder.contents();
        assert_eq!((contents.sets, contents.records), (Vec::new(), vec![record("a", "1")]));
    }
    file.limit(None);
    file.flush().unwrap();
    let contents = folder.contents();
    assert_eq!(whole(&contents), Whole::from([(all(), members(&all(), &contents.records))]));
    assert_eq!(contents.records.len(), 3);
}

#[test]
fn a_damaged_file_on_a_full_disk_is_used_and_written_anew_when_there_is_room() {
    let full = io::Error::from(io::ErrorKind::StorageFull);
    assert!(is_full(&full) && !is_full(&io::ErrorKind::PermissionDenied.into()));
    let mut image = written().pop().unwrap();
    image[30] ^= 1;
    let folder = Folder::holding(&image);
    let (mut file, _) = folder.open();
    file.repair = Some(Repair { aside: None });
    assert!(file.has_pending(), "it is tried without a change");
    file.flush().unwrap();
    assert_eq!(folder.contents().ending, Ending::Whole);
}

#[test]
fn a_set_with_a_member_that_is_not_kept_is_not_kept_either() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.put(of_prod("p", "1"));
    file.note_set(SetChange::Complete(all()));
    file.note_set(SetChange::Complete(prod()));
    file.flush().unwrap();
    // One must not be stored; another is too large.
    file.leave_out(of_prod("q", "1").id);
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [all()]);
    let mut large = record("r", "1");
    large.payload = vec![0; ENTRY_LIMIT_BYTES].into();
    file.put(large);
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, []);
    // They are removed.
    file.remove(id("r"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [all()]);
    file.remove(of_prod("q", "1").id);
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [all(), prod()]);
    // T43c: no set of that name is restored either.
    let (type_url, name) = (all().type_url, all().name);
    file.note_set(SetChange::Unkept { type_url, name });
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, []);

    let of_secrets = SetId { type_url: SECRET.into(), ..all() };
    file.put(secret("hush"));
    file.note_set(SetChange::Complete(of_secrets));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, []);
}

#[test]
fn x12_a_set_that_nobody_asks_for_holds_until_one_of_its_members_changes() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    let glob = set("xdstp://a/acme.Thing/d/*", &[]);
    let member = "xdstp://a/acme.Thing/d/x";
    file.put(record(member, "1"));
    file.note_set(SetChange::Complete(glob.clone()));
    file.note_set(SetChange::Complete(prod()));
    file.flush().unwrap();
    file.note_set(SetChange::Left(glob.clone()));
    file.put(record("a", "1"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [prod(), glob]);
    // By another upstream subscription.
    file.put(record(member, "2"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [prod()]);
    drop(file);
    // The member that came back has other content.
    let (mut file, restored) = folder.open();
    assert_eq!((restored.sets, restored.unproved), (vec![prod()], 1));
    file.put(record(member, "1"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, []);
}

#[test]
fn a_member_that_is_lost_when_the_file_is_written_anew_is_missed() {
    let folder = Folder::new();
    let (mut file, _) = folder.open();
    file.put(record("a", "1"));
    file.put(record("b", "1"));
    file.note_set(SetChange::Complete(all()));
    file.flush().unwrap();
    let mut damaged = image(&folder);
    damaged[HEADER_BYTES as usize + 20] ^= 1;
    fs::write(folder.file(), &damaged).unwrap();
    for fill in ["1", "2", "3"] {
        file.put(record("c", &fill.repeat(50_000)));
        file.flush().unwrap();
    }
    assert_eq!((folder.contents().ending, folder.contents().sets), (Ending::Whole, Vec::new()));
    file.put(record("d", "1"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, []);
    file.put(record("a", "1"));
    file.flush().unwrap();
    assert_eq!(folder.contents().sets, [all()]);
}

/// In a file of the former format, records are valid, but no set is proved.
#[test]
fn the_format_before_is_read_for_its_names() {
    // Type, name, constraints; content with payload, version and origin.
    let body = |name: &str, content: &[u8]| {
        let type_url = b"example.com/acme.Thing";
        let fields = [(0x0a, &type_url[..]), (0x12, name.as_bytes()), (0x22, content)];
        let fields = fields.map(|(tag, bytes)| [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat());
        fields.concat()
    };
    let mut old = b"xdsgood\n\x01\0\0\0".to_vec();
    for body in [body("a", b"\x0a\x011\x12\x02v1\x1a\x0cupstream:443"), body("*", b"")] {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        let head = [length, crc32fast::hash(&body).to_le_bytes()].concat();
        old.extend([&head[..], &crc32fast::hash(&head).to_le_bytes(), &body].concat());
    }
    let folder = Folder::holding(&old);
    let (file, restored) = folder.open();
    assert_eq!(restored.records, [record("a", "1")]);
    assert_eq!((restored.sets, restored.unproved, restored.skipped), (Vec::new(), 1, 0));
    assert_eq!(restored.set_aside, None);
    drop(file);
    let (_, restored) = folder.open();
    assert_eq!((restored.records, restored.unproved), (vec![record("a", "1")], 0));
}

#[derive(Debug, Clone)]
enum Step {
    Put {
        name: u8,
        env: u8,
        fill: u8,
        size_bytes: usize,
    },
    Remove {
        name: u8,
        env: u8,
    },
    LeaveOut {
        name: u8,
        env: u8,
    },
    Complete(u8),
    Left(u8),
    Flush,
    /// The disk is limited.
    Full {
        bytes: u64,
    },
    Reopen,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let [name, env] = [4, 3].map(|count| u8::arbitrary(g) % count);
        match u8::arbitrary(g) % 16 {
            0..5 => {
                let sizes = [0, 1, 5_000, 20_000];
                Self::Put { name, env, fill: u8::arbitrary(g) % 3, size_bytes: *g.choose(&sizes).unwrap() }
            }
            5 => Self::Remove { name, env },
            6 => Self::LeaveOut { name, env },
            7..10 => Self::Complete(env),
            10 => Self::Left(env),
            11..14 => Self::Flush,
            14 => Self::Full { bytes: u64::arbitrary(g) % 3_000 },
            _ => Self::Reopen,
        }
    }
}

/// The existing variants, and the sets that were complete at some moment. Only those may be
/// restored, and the complete ones are.
#[test]
fn s25_whatever_happens_to_a_set_what_is_restored_of_it_was_all_there_was() {
    fn holds(steps: Vec<Step>, flip: usize) {
        let envs = ["prod", "test", "stage"];
        let set_of = |env: u8| set("*", &[("env", envs[usize::from(env)])]);
        let id_of = |name: u8, env: u8| {
            let constraints = format!("env={}", envs[usize::from(env)]).parse().unwrap();
            VariantId { constraints, ..id(&name.to_string()) }
        };
        let folder = Folder::new();
        let (mut file, _) = folder.open();
        let mut exists = BTreeMap::<VariantId, String>::new();
        let (mut held, mut unkept) = (BTreeSet::new(), BTreeSet::new());
        let mut were = Whole::new();
        for step in steps {
            match step {
                Step::Put { name, env, fill, size_bytes } => {
                    let id = id_of(name, env);
                    let version = format!("{fill} {size_bytes}");
                    exists.insert(id.clone(), version.clone());
                    unkept.remove(&id);
                    let payload = vec![fill; size_bytes].into();
                    file.put(Record::new(id, payload, version, "upstream".into()));
                }
                Step::Remove { name, env } => {
                    exists.remove(&id_of(name, env));
                    unkept.remove(&id_of(name, env));
                    file.remove(id_of(name, env));
                }
                Step::LeaveOut { name, env } => {
                    exists.insert(id_of(name, env), "unkept".into());
                    unkept.insert(id_of(name, env));
                    file.leave_out(id_of(name, env));
                }
                Step::Complete(env) => {
                    held.insert(set_of(env));
                    file.note_set(SetChange::Complete(set_of(env)));
                }
                Step::Left(env) => {
                    held.remove(&set_of(env));
                    file.note_set(SetChange::Left(set_of(env)));
                }
                Step::Full { bytes } => file.limit(Some(image(&folder).len() as u64 + bytes)),
                Step::Flush => {
                    let flushed = file.flush();
                    let of = |set: &SetId| {
                        exists
                            .iter()
                            .filter(|(id, _)| set.covers(id))
                            .map(|(a, b)| (a.clone(), b.clone()))
                            .collect()
                    };
                    were.extend(held.iter().map(|set| (set.clone(), of(set))));
                    let found = folder.contents();
                    match flushed {
                        Err(FlushError::Append { .. }) => assert_eq!(found.sets, []),
                        Err(FlushError::Compact { .. }) | Ok(()) => {
                            let is_kept = |set: &&SetId| !unkept.iter().any(|id| set.covers(id));
                            let whole: Vec<_> = held.iter().filter(is_kept).collect();
                            assert!(
                                whole.iter().all(|set| found.sets.contains(set)),
                                "{whole:?} of {found:?}"
                            );
                        }
                    }
                }
                Step::Reopen => {
                    drop(file);
                    let restored;
                    (file, restored) = folder.open();
                    // For a set without an upstream subscription, this is the last known state.
                    exists = restored.records.into_iter().map(|record| (record.id, record.version)).collect();
                    held.clear();
                    unkept.clear();
                }
            }
            assert!(whole(&folder.contents()).is_subset(&were));
        }
        let mut damaged = image(&folder);
        let at = flip % (damaged.len() * 8);
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(whole(&read(&*damaged).unwrap()).is_subset(&were));
    }
    QuickCheck::new().tests(100).quickcheck(holds as fn(Vec<Step>, usize));
}
