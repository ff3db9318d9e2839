//! The last-known-good file.

use std::io::{self, Read};

use xds_client::last_good::{self, Contents, Ending};
use xds_core::{Constraints, Version};

/// Reads the input as a last-known-good file, and a file whose only entry has the input as its
/// body, because mutations do not find a valid checksum. Then reads a file with a set, damaged as
/// the input says: the set is restored with all of its members or not at all (S25).
///
/// # Panics
/// When a property does not hold.
pub fn last_good_file(raw: &[u8]) -> bool {
    let found = check(raw);
    let entry = check(&file(&[raw.to_vec()]));
    assert_eq!(entry.ending, Ending::Whole, "an entry is whole whatever its body is");
    assert!(entry.records.len() + entry.skipped + entry.sets.len() + entry.unproved <= 1);
    check_set(raw);
    !found.records.is_empty() || !entry.records.is_empty()
}

fn check(raw: &[u8]) -> Contents {
    let found = read(raw);
    assert!(found.records.is_sorted_by(|one, other| one.id < other.id), "one record of each id");
    for record in &found.records {
        let wire = record.id.constraints.wire();
        let again = Constraints::from_wire(wire).expect("restored constraints can be stored");
        assert_eq!((&again, again.wire()), (&record.id.constraints, wire));
        assert!(!record.id.name.as_str().is_empty() && !record.id.type_url.message_name().is_empty());
    }

    let pieces = last_good::read(Pieces(raw)).expect("no input fails");
    assert_equal(&found, &pieces);

    let size_bytes = raw.len() as u64;
    let end = usize::try_from(found.end).expect("it is in the input");
    match found.ending {
        Ending::Whole => assert_eq!(found.end, size_bytes),
        Ending::Torn { bytes } => assert_eq!(found.end + bytes, size_bytes),
        Ending::Broken(_) => {
            assert!(found.end <= size_bytes);
            return found;
        }
    }
    let whole = read(&raw[..end]);
    assert_eq!(whole.ending, Ending::Whole, "the rest after cutting is whole");
    let state = |found: &Contents| {
        (found.records.clone(), found.sets.clone(), found.unproved, found.skipped, found.end)
    };
    assert_eq!(state(&whole), state(&found));
    let zeros = read(&[&raw[..end], &[0; 100]].concat());
    assert_eq!((state(&zeros), &zeros.ending), (state(&found), &Ending::Torn { bytes: 100 }));
    found
}

/// Four bytes are one damage: kind, source, target, length.
fn check_set(damage: &[u8]) {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut bodies: Vec<_> = names.iter().map(|name| entry(name, b"\x22\x03\x0a\x01p")).collect();
    let sum = bodies.iter().fold(0_u128, |sum, body| sum.wrapping_add(Version::of_payload(body).as_u128()));
    let proof = [&b"\x32\x14\x10\x06\x1a\x10"[..], &sum.to_le_bytes()].concat();
    bodies.push(entry("*", &proof));
    // Old entries, from before and after the set was complete.
    bodies.insert(0, entry("b", b"\x22\x03\x0a\x01q"));
    bodies.insert(3, entry("a", b"\x2a\0"));
    bodies.insert(4, entry("a", b"\x22\x03\x0a\x01p"));
    let image = file(&bodies);
    let truth = read(&image);
    assert_eq!((truth.sets.len(), truth.records.len()), (1, names.len()));

    let mut damaged = image;
    for damage in damage.chunks_exact(4) {
        let size = damaged.len();
        let place = |byte: u8| (usize::from(byte) * 3).min(size);
        let (at, from) = (place(damage[1]), place(damage[2]));
        let count = usize::from(damage[3]).min(size - at.max(from));
        match damage[0] % 8 {
            0..4 if at < size => damaged[at] ^= 1 << (damage[3] % 8),
            4 => damaged[at..at + count].fill(0),
            5 => damaged.copy_within(from..from + count, at),
            6 => drop(damaged.drain(at..at + count)),
            7 => {
                let again = damaged[from..from + count].to_vec();
                drop(damaged.splice(at..at, again));
            }
            _ => {}
        }
    }
    let found = check(&damaged);
    assert!(
        found.sets.is_empty() || (found.sets == truth.sets && found.records == truth.records),
        "part of a set"
    );
}

fn entry(name: &str, kind: &[u8]) -> Vec<u8> {
    [&b"\x0a\x07acme/.T\x12\x01"[..], name.as_bytes(), kind].concat()
}

fn read(raw: &[u8]) -> Contents {
    last_good::read(raw).expect("no bytes are an error")
}

fn assert_equal(one: &Contents, other: &Contents) {
    assert_eq!((&one.records, &one.sets, one.unproved), (&other.records, &other.sets, other.unproved));
    assert_eq!((one.skipped, &one.ending, one.end), (other.skipped, &other.ending, other.end));
}

/// A second, independent writer of files: header with its length, then heads and bodies.
fn file(bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut entries = Vec::new();
    for body in bodies {
        let at = (HEADER_BYTES + entries.len()) as u64;
        let length = u32::try_from(body.len()).expect("inputs are short").to_le_bytes();
        let head = [length, crc32fast::hash(body).to_le_bytes()].concat();
        let head_sum = crc32fast::hash(&[&head[..], &at.to_le_bytes()].concat());
        entries.extend([&head, &head_sum.to_le_bytes()[..], body].concat());
    }
    let length = ((HEADER_BYTES + entries.len()) as u64).to_le_bytes();
    [&b"xdsgood\n\x02\0\0\0"[..], &length, &crc32fast::hash(&length).to_le_bytes(), &entries].concat()
}

const HEADER_BYTES: usize = 24;

/// A reader that returns a few bytes at a time.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.0.len() % 7 + 1);
        self.0.read(&mut buffer[..count])
    }
}

pub(crate) const WORDS: &[&[u8]] = &[
    b"xdsgood\n\x01\0\0\0",
    b"xdsgood\n\x02\0\0\0",
    b"xdsgood\n\x03\0\0\0",
    b"\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x0a\x07acme/.T",
    b"\x12\x01a",
    b"\x12\x02a\n",
    b"\x12\x08xdstp://",
    b"\x1a\0",
    b"\x1a\x08\x0a\x06\x0a\x01a\x12\x011",
    b"\x1a\x02\x78\x01",
    b"\x22\0",
    b"\x22\x03\x0a\x01p",
    b"\x22\x04\x22\x02\x08\x1e",
    b"\x22\x03\x2a\x01b",
    b"\x2a\0",
    b"\x12\x01*",
    b"\x32\x02\x10\x01",
    b"\x3a\0",
    b"\x4a\0",
];
