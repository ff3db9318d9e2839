//! The open file: appending to it, and writing it anew.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use xds_core::VariantId;

use super::beside;
use super::frame::{self, ENTRY_LIMIT_BYTES, HEADER};
use super::record::{Change, Entry};
use super::replay::Place;

/// A file, and where in it lies what still counts.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    places: BTreeMap<VariantId, Place>,
    /// Where the next entry goes. What the file has past it is left over from a write that failed.
    end: u64,
    live_bytes: u64,
    /// Only a longer file is compacted.
    compact_past: u64,
}

/// What an append did, to be [taken](Log::take) once it is certain.
#[derive(Debug)]
pub(super) struct Appended {
    changed: Vec<(VariantId, Option<Place>)>,
    end: u64,
}

impl Log {
    pub(super) fn new(path: PathBuf, file: File, places: BTreeMap<VariantId, Place>, end: u64) -> Self {
        let live_bytes = places.values().map(|place| place.size_bytes).sum();
        Self { path, file, places, end, live_bytes, compact_past: COMPACTION_MIN_BYTES }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn holds(&self, id: &VariantId) -> bool {
        self.places.contains_key(id)
    }

    /// Cuts off what is past the end.
    pub(super) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.end)
    }

    /// Writes the changes that make a difference. Until they are taken, the next append overwrites them.
    pub(super) fn append<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> io::Result<Appended> {
        self.cut()?;
        (&self.file).seek(SeekFrom::Start(self.end))?;
        let mut out = BufWriter::with_capacity(WRITE_BYTES, &self.file);
        let mut appended = Appended { changed: Vec::new(), end: self.end };
        for change in changes {
            let id = change.id();
            let known = self.places.get(id);
            let (body, place) = match (stored(change), known) {
                (None, None) => continue,
                (None, Some(_)) => (Entry::removal(id).encode_to_vec(), None),
                (Some(body), known) => {
                    let place = Place::new(appended.end, &body);
                    if known.is_some_and(|known| known.digest == place.digest) {
                        continue;
                    }
                    (body, Some(place))
                }
            };
            let head = frame::head(&body);
            out.write_all(&head)?;
            out.write_all(&body)?;
            appended.end += (head.len() + body.len()) as u64;
            appended.changed.push((id.clone(), place));
        }
        out.flush()?;
        if !appended.changed.is_empty() {
            self.file.sync_data()?;
        }
        Ok(appended)
    }

    pub(super) fn take(&mut self, appended: Appended) {
        for (id, place) in appended.changed {
            let before = match place {
                Some(place) => {
                    self.live_bytes += place.size_bytes;
                    self.places.insert(id, place)
                }
                None => self.places.remove(&id),
            };
            self.live_bytes -= before.map_or(0, |before| before.size_bytes);
        }
        self.end = appended.end;
    }

    pub(super) fn compact_if_bloated(&mut self) -> io::Result<()> {
        if self.end <= self.compact_past || self.end / 2 <= self.live_bytes {
            return Ok(());
        }
        // A full disk does not make every flush copy the file.
        self.compact_past = self.end.saturating_mul(2);
        self.rewrite(None)?;
        self.compact_past = COMPACTION_MIN_BYTES;
        Ok(())
    }

    /// Puts a new file with the live entries in place of this one, which gets the other name if there is one.
    ///
    /// A crash at any moment leaves the one or the other file under the path.
    pub(super) fn rewrite(&mut self, aside: Option<&Path>) -> io::Result<()> {
        let new_path = beside(&self.path, ".new");
        // One may be left over from a crash, with other permissions even.
        match fs::remove_file(&new_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let replaced = self.replace_by(&new_path, aside);
        if replaced.is_err() {
            // A full disk has no room for half a copy. What was renamed already is not there any more.
            fs::remove_file(&new_path).ok();
        }
        replaced
    }

    fn replace_by(&mut self, new_path: &Path, aside: Option<&Path>) -> io::Result<()> {
        let file = owner_only().read(true).write(true).create_new(true).open(new_path)?;
        let places = self.copy_live(&file)?;
        file.sync_all()?;
        if let Some(aside) = aside {
            // Not every file system has links; without them, a crash just here costs the records.
            fs::hard_link(&self.path, aside).or_else(|_| fs::rename(&self.path, aside))?;
        }
        fs::rename(new_path, &self.path)?;
        let live_bytes = places.values().map(|place| place.size_bytes).sum();
        (self.file, self.places, self.live_bytes) = (file, places, live_bytes);
        self.end = HEADER.len() as u64 + live_bytes;
        sync_directory(&self.path)
    }

    /// Writes a header and the live entries, in the order in which they lie.
    fn copy_live(&self, file: &File) -> io::Result<BTreeMap<VariantId, Place>> {
        let mut live: Vec<_> = self.places.iter().collect();
        live.sort_unstable_by_key(|(_, place)| place.at);
        let mut out = BufWriter::with_capacity(WRITE_BYTES, file);
        out.write_all(&HEADER)?;
        let mut places = BTreeMap::new();
        let (mut at, mut entry) = (HEADER.len() as u64, Vec::new());
        for (id, place) in live {
            entry.clear();
            (&self.file).seek(SeekFrom::Start(place.at))?;
            (&self.file).take(place.size_bytes).read_to_end(&mut entry)?;
            if frame::body(&entry).is_none() {
                tracing::warn!(
                    path = %self.path.display(),
                    at = place.at,
                    r#type = id.type_url.message_name(),
                    name = id.name.as_str(),
                    "an entry of the last-known-good file was damaged since it was written, and is dropped"
                );
                continue;
            }
            out.write_all(&entry)?;
            places.insert(id.clone(), Place { at, ..*place });
            at += place.size_bytes;
        }
        out.flush()?;
        Ok(places)
    }
}

/// The body of what is stored after the change, if anything is.
fn stored(change: &Change) -> Option<Vec<u8>> {
    let Change::Put(record) = change else { return None };
    let entry = Entry::put(record);
    let (size_bytes, limit_bytes) = (entry.encoded_len(), ENTRY_LIMIT_BYTES);
    if size_bytes > limit_bytes {
        let (r#type, name) = (record.id.type_url.message_name(), record.id.name.as_str());
        tracing::warn!(r#type, name, size_bytes, limit_bytes, "too large for the last-known-good file");
        return None;
    }
    Some(entry.encode_to_vec())
}

/// Of files that are created, only their owner may read them.
pub(super) fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Has the disk confirm what names there are. Only Unix opens directories.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if cfg!(unix) => File::open(directory)?.sync_all(),
        Some(_) | None => Ok(()),
    }
}

/// A shorter file is not compacted: what it wastes costs less than the copying. Default 64 KiB.
pub const COMPACTION_MIN_BYTES: u64 = 64 << 10;

/// How much is written at once, so that a large batch is not in memory a second time.
const WRITE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, id, record};
    use super::super::{FlushError, LastGood, Secrets};
    use super::*;

    #[test]
    fn changes_that_cannot_be_written_are_kept_until_they_can() {
        let folder = Folder::new();
        let path = folder.file();
        let (mut file, _) = LastGood::open(&path, Secrets::LeftOut).unwrap();
        let read_only = File::open(&path).unwrap();
        let writable = std::mem::replace(&mut file.log.file, read_only);
        file.put(record("a", "1"));
        let error = file.flush().unwrap_err();
        assert!(matches!(error, FlushError::Append { .. }), "{error}");

        file.log.file = writable;
        file.flush().unwrap();
        assert_eq!(folder.contents().records, [record("a", "1")]);
    }

    #[test]
    fn what_a_failed_write_left_behind_is_overwritten() {
        let folder = Folder::new();
        let (mut file, _) = LastGood::open(folder.file(), Secrets::LeftOut).unwrap();
        file.log.append([Change::Put(record("a", &"1".repeat(1000)))].iter()).unwrap();
        file.put(record("b", "2"));
        file.flush().unwrap();
        let contents = folder.contents();
        assert_eq!(contents.records, [record("b", "2")]);
        assert_eq!(fs::metadata(folder.file()).unwrap().len(), contents.end);
    }

    #[test]
    fn a_record_past_the_limit_is_not_kept_and_neither_is_the_one_before() {
        let folder = Folder::new();
        let (mut file, _) = LastGood::open(folder.file(), Secrets::LeftOut).unwrap();
        file.put(record("a", "1"));
        file.flush().unwrap();
        let mut large = record("a", "2");
        large.payload = vec![0; ENTRY_LIMIT_BYTES].into();
        file.put(large);
        file.flush().unwrap();
        assert_eq!(folder.contents().records, []);
        assert!(!file.log.places.contains_key(&id("a")));
    }
}
