//! The last-known-good file.

use std::io::{self, Read};

use xds_client::last_good::{self, Contents, Ending};
use xds_core::Constraints;

/// Reads a last-known-good file, and one whose only entry has the input as its body: no mutation finds a check sum.
///
/// # Panics
/// When a property does not hold.
pub fn last_good_file(raw: &[u8]) -> bool {
    let found = check(raw);
    let entry = check(&file(raw));
    assert_eq!(entry.ending, Ending::Whole, "an entry is whole whatever its body is");
    assert!(entry.records.len() + entry.skipped <= 1);
    !found.records.is_empty() || !entry.records.is_empty()
}

fn check(raw: &[u8]) -> Contents {
    let found = read(raw);
    assert!(found.records.is_sorted_by(|one, other| one.id < other.id), "one record of each id");
    for record in &found.records {
        let wire = record.id.constraints.wire();
        let again = Constraints::from_wire(wire).expect("what was restored can be stored");
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
    assert_eq!(whole.ending, Ending::Whole, "what is left after cutting is whole");
    assert_eq!((&whole.records, whole.skipped, whole.end), (&found.records, found.skipped, found.end));
    let zeros = read(&[&raw[..end], &[0; 100]].concat());
    assert_eq!((&zeros.records, zeros.ending), (&found.records, Ending::Torn { bytes: 100 }));
    found
}

fn read(raw: &[u8]) -> Contents {
    last_good::read(raw).expect("no bytes are an error")
}

fn assert_equal(one: &Contents, other: &Contents) {
    assert_eq!(one.records, other.records);
    assert_eq!((one.skipped, &one.ending, one.end), (other.skipped, &other.ending, other.end));
}

/// A file written down a second time: header, head, body.
fn file(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("inputs are short").to_le_bytes();
    let sum = crc32fast::hash(body).to_le_bytes();
    let head = [length, sum].concat();
    let head_sum = crc32fast::hash(&head).to_le_bytes();
    [&b"xdsgood\n\x01\0\0\0"[..], &head, &head_sum, body].concat()
}

/// Gives a few bytes at a time.
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
    b"\x4a\0",
];
