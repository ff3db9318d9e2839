//! The open file: appends and rewrites.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use xds_core::proxy::SetId;
use xds_core::{Constraints, VariantId};

use super::beside;
use super::disk::Disk;
use super::frame::{self, BEHIND, ENTRY_LIMIT_BYTES, HEADER_BYTES, Header, MARK};
use super::record::{Change, Entry, Key, Record};
use super::replay::EntryLocation;

/// A file, and the locations of its live entries.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Disk,
    header: Header,
    locations: BTreeMap<Key, EntryLocation>,
    /// The position of the next entry. Bytes after it are left over from a failed write.
    end: u64,
    live_bytes: u64,
    /// Only a longer file is compacted; see [`COMPACTION_MIN_BYTES`].
    compact_past: u64,
}

/// Entries that are being written.
#[derive(Debug)]
pub(super) struct Batch<'l> {
    log: &'l Log,
    out: BufWriter<&'l Disk>,
    appended: Appended,
}

/// The result of an append, to be [taken](Log::take) after its sync.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) changed: Vec<(Key, Option<EntryLocation>)>,
    /// Variants that are too large for an entry.
    pub(super) left_out: Vec<VariantId>,
    end: u64,
}

impl Log {
    pub(super) fn new(
        path: PathBuf,
        file: Disk,
        header: Header,
        locations: BTreeMap<Key, EntryLocation>,
        end: u64,
    ) -> Self {
        let live_bytes = locations.values().map(|location| location.size_bytes).sum();
        Self { path, file, header, locations, end, live_bytes, compact_past: COMPACTION_MIN_BYTES }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.locations.contains_key(key)
    }

    pub(super) fn location(&self, key: &Key) -> Option<&EntryLocation> {
        self.locations.get(key)
    }

    /// The members of a set in the file.
    pub(super) fn members<'l>(&'l self, set: &'l SetId) -> impl Iterator<Item = &'l EntryLocation> {
        let (type_url, name) = (set.type_url.clone(), "".into());
        let first = Key::Variant(VariantId { type_url, name, constraints: Constraints::NONE });
        let variants = self.locations.range(first..).map_while(|(key, location)| match key {
            Key::Variant(id) if id.type_url == set.type_url => Some((id, location)),
            Key::Variant(_) | Key::Set(_) => None,
        });
        variants.filter(|(id, _)| set.covers(id)).map(|(_, location)| location)
    }

    /// The sets with an entry.
    pub(super) fn sets(&self) -> impl Iterator<Item = &SetId> {
        self.locations.keys().rev().map_while(|key| match key {
            Key::Set(id) => Some(id),
            Key::Variant(_) => None,
        })
    }

    /// Limits the size of this file, and of files that replace it.
    pub(super) fn limit(&mut self, room_bytes: Option<u64>) {
        self.file.room_bytes = room_bytes;
    }

    /// The whole content, if it is in memory.
    pub(super) fn image(&self) -> Option<Vec<u8>> {
        self.file.image()
    }

    /// Cuts off the bytes after the end.
    pub(super) fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.end)
    }

    /// Starts an append. If the result is not taken, the next append overwrites it.
    pub(super) fn begin(&self) -> io::Result<Batch<'_>> {
        self.cut()?;
        (&self.file).seek(SeekFrom::Start(self.end))?;
        let out = BufWriter::with_capacity(WRITE_BYTES, &self.file);
        let appended = Appended { changed: Vec::new(), left_out: Vec::new(), end: self.end };
        Ok(Batch { log: self, out, appended })
    }

    /// Continues with the file of the path, which this process can write from now on.
    ///
    /// # Errors
    /// It is not as it was read.
    pub(super) fn take_file(&mut self, file: File, read_bytes: u64) -> io::Result<()> {
        if file.metadata()?.len() != read_bytes {
            let text = "another process has written it since it was read: restart this one";
            return Err(io::Error::other(text));
        }
        self.file = Disk::of_file(file);
        Ok(())
    }

    pub(super) fn take(&mut self, appended: Appended) {
        for (key, location) in appended.changed {
            let before = match location {
                Some(location) => {
                    self.live_bytes += location.size_bytes;
                    self.locations.insert(key, location)
                }
                None => self.locations.remove(&key),
            };
            self.live_bytes -= before.map_or(0, |before| before.size_bytes);
        }
        self.end = appended.end;
    }

    /// Marks the file in its header: a change could not be written, so its sets may be incomplete.
    /// The mark needs no space, so it works on a full disk.
    pub(super) fn mark_behind(&self) -> io::Result<()> {
        if !matches!(self.header, Header::Known { .. }) {
            return Ok(());
        }
        self.write_length(&self.file, BEHIND)?;
        self.file.sync_data()
    }

    fn write_length(&self, mut file: &Disk, length: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(MARK.len() as u64))?;
        file.write_all(&frame::length(length))
    }

    /// Returns the lost variants, as [`rewrite`](Self::rewrite) does.
    pub(super) fn compact_if_bloated(&mut self) -> io::Result<Vec<VariantId>> {
        if self.end <= self.compact_past || self.end / 2 <= self.live_bytes {
            return Ok(Vec::new());
        }
        // A full disk must not make every flush copy the file.
        self.compact_past = self.end.saturating_mul(2);
        let lost = self.rewrite(None)?;
        self.compact_past = COMPACTION_MIN_BYTES;
        Ok(lost)
    }

    /// Replaces the file by a new one with the live entries. The former file gets the name `aside`,
    /// if there is one. Returns the variants whose entries were damaged after they were written.
    ///
    /// After a crash at any moment, the path has the former or the new file.
    pub(super) fn rewrite(&mut self, aside: Option<&Path>) -> io::Result<Vec<VariantId>> {
        if self.file.is_in_memory() {
            let (file, locations, lost) = self.copy(Disk::in_memory(Vec::new()))?;
            self.replace(file, locations);
            return Ok(lost);
        }
        let new_path = beside(&self.path, ".new");
        // One may be left over from a crash, even with other permissions.
        match fs::remove_file(&new_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let replaced = self.replace_by(&new_path, aside);
        if replaced.is_err() {
            // A full disk has no room for half a copy. A file that was renamed already no longer
            // exists under this name.
            fs::remove_file(&new_path).ok();
        }
        replaced
    }

    fn replace_by(&mut self, new_path: &Path, aside: Option<&Path>) -> io::Result<Vec<VariantId>> {
        let file = owner_only().read(true).write(true).create_new(true).open(new_path)?;
        let (file, locations, lost) = self.copy(Disk::of_file(file))?;
        if let Some(aside) = aside {
            // Some file systems have no hard links; there, a crash at this moment loses the
            // records.
            fs::hard_link(&self.path, aside).or_else(|_| fs::rename(&self.path, aside))?;
        }
        fs::rename(new_path, &self.path)?;
        self.replace(file, locations);
        sync_directory(&self.path)?;
        Ok(lost)
    }

    /// Continues with another file and these entries.
    fn replace(&mut self, file: Disk, locations: BTreeMap<Key, EntryLocation>) {
        self.live_bytes = locations.values().map(|location| location.size_bytes).sum();
        self.end = HEADER_BYTES + self.live_bytes;
        self.header = Header::Known { length: Some(self.end) };
        (self.file, self.locations) = (file, locations);
    }

    /// Copies the live entries to another file and syncs it.
    fn copy(&self, mut file: Disk) -> io::Result<(Disk, BTreeMap<Key, EntryLocation>, Vec<VariantId>)> {
        file.room_bytes = self.file.room_bytes;
        let (locations, lost) = self.copy_live(&file)?;
        let live_bytes: u64 = locations.values().map(|location| location.size_bytes).sum();
        self.write_length(&file, HEADER_BYTES + live_bytes)?;
        file.sync_all()?;
        Ok((file, locations, lost))
    }

    /// Writes a header and the live entries, in the order of the file.
    fn copy_live(&self, file: &Disk) -> io::Result<(BTreeMap<Key, EntryLocation>, Vec<VariantId>)> {
        let mut live: Vec<_> = self.locations.iter().collect();
        live.sort_unstable_by_key(|(_, location)| location.at);
        let mut out = BufWriter::with_capacity(WRITE_BYTES, file);
        out.write_all(&MARK)?;
        out.write_all(&frame::length(BEHIND))?;
        let (mut locations, mut lost) = (BTreeMap::new(), Vec::new());
        let (mut at, mut entry) = (HEADER_BYTES, Vec::new());
        for (key, location) in live {
            entry.clear();
            (&self.file).seek(SeekFrom::Start(location.at))?;
            (&self.file).take(location.size_bytes).read_to_end(&mut entry)?;
            let known = Some(location.at).filter(|_| self.header != Header::Old);
            let Some(body) = frame::body(&entry, known) else {
                tracing::warn!(
                    path = %self.path.display(),
                    at = location.at,
                    r#type = key.type_url().message_name(),
                    name = key.name().as_str(),
                    "dropped an entry of the last-known-good file: it was damaged after it was written"
                );
                lost.extend(match key {
                    Key::Variant(id) => Some(id.clone()),
                    Key::Set(_) => None,
                });
                continue;
            };
            out.write_all(&frame::head(body, at))?;
            out.write_all(body)?;
            locations.insert(key.clone(), EntryLocation { at, ..*location });
            at += location.size_bytes;
        }
        out.flush()?;
        Ok((locations, lost))
    }
}

impl Batch<'_> {
    /// Writes the change, unless the file already has it.
    pub(super) fn push(&mut self, change: &Change) -> io::Result<()> {
        let key = change.key();
        let known = self.log.locations.get(&key);
        let body = match change {
            Change::Remove(_) | Change::Void(_) => None,
            Change::Prove(..) => Some(Entry::of(change).encode_to_vec()),
            Change::Put(record) => {
                let body = stored(record);
                if body.is_none() {
                    self.appended.left_out.push(record.id.clone());
                }
                body
            }
        };
        let location = body.as_ref().map(|body| EntryLocation::new(self.appended.end, body));
        let body = match (body, known, &key) {
            (None, None, _) => return Ok(()),
            (None, Some(_), Key::Variant(id)) => Entry::of(&Change::Remove(id.clone())).encode_to_vec(),
            (None, Some(_), Key::Set(id)) => Entry::of(&Change::Void(id.clone())).encode_to_vec(),
            (Some(_), Some(known), _) if location.is_some_and(|location| location.digest == known.digest) => {
                return Ok(());
            }
            (Some(body), ..) => body,
        };
        let head = frame::head(&body, self.appended.end);
        self.out.write_all(&head)?;
        self.out.write_all(&body)?;
        self.appended.end += (head.len() + body.len()) as u64;
        self.appended.changed.push((key, location));
        Ok(())
    }

    pub(super) fn appended(&self) -> &Appended {
        &self.appended
    }

    /// Writes the new length and syncs everything.
    pub(super) fn commit(mut self) -> io::Result<Appended> {
        self.out.flush()?;
        let Self { log, appended, .. } = self;
        log.write_length(&log.file, appended.end)?;
        log.file.sync_data()?;
        Ok(appended)
    }
}

/// The encoded entry of a record, unless it is too large.
fn stored(record: &Record) -> Option<Vec<u8>> {
    let entry = Entry::put(record);
    let (size_bytes, limit_bytes) = (entry.encoded_len(), ENTRY_LIMIT_BYTES);
    if size_bytes > limit_bytes {
        let (r#type, name) = (record.id.type_url.message_name(), record.id.name.as_str());
        tracing::warn!(
            r#type,
            name,
            size_bytes,
            limit_bytes,
            "did not store a resource: it is too large for the last-known-good file"
        );
        return None;
    }
    Some(entry.encode_to_vec())
}

/// Options for new files that only their owner may read.
pub(super) fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Syncs the names in the directory. Only Unix can open directories.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if cfg!(unix) => File::open(directory)?.sync_all(),
        Some(_) | None => Ok(()),
    }
}

/// A shorter file is not compacted: the space costs less than the copy. Default 64 KiB.
pub const COMPACTION_MIN_BYTES: u64 = 64 << 10;

/// The size of the write buffer, so that a large batch is not in memory twice.
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
        let read_only = Disk::of_file(File::open(&path).unwrap());
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
        let mut batch = file.log.begin().unwrap();
        batch.push(&Change::Put(record("a", &"1".repeat(1000)))).unwrap();
        batch.commit().unwrap();
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
        assert!(!file.log.contains(&Key::Variant(id("a"))));
    }
}
