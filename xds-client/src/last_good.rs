//! The last-known-good file: the accepted resources of a client or proxy, so that it can start
//! while its control plane is down.
//!
//! A [`LastGood`] is an append-only log. From time to time it is rewritten with its live entries
//! only. Its key is the type URL, the name and the canonical constraints ([`VariantId`]). Restored
//! resources may be old: the caller marks them as stale until an upstream confirms or replaces
//! them.
//!
//! This module has no runtime on purpose. [`LastGood::open`] and [`LastGood::flush`] block on
//! files, so async code calls them on a blocking task. [`LastGood::put`] and [`LastGood::remove`]
//! only note a change in memory.
//!
//! The file contains configuration and perhaps secrets, so on Unix only its owner may read it.
//! Resources of the type [`SECRET`] are not stored by default ([`Secrets`]). Private keys inside
//! other types are not detected.
//!
//! A damaged file never prevents a start:
//!
//! | found at opening | reaction |
//! | --- | --- |
//! | the last entry is incomplete, or the file ends in zeros (a crash during an append) | the end is cut off and reported as [`Restored::cut_bytes`] |
//! | entries are damaged | all intact entries are restored and written to a new file; the damaged file is [set aside](SetAside) |
//! | the header is damaged, or the file is shorter than its header says | the same |
//! | another kind of file, or an unknown format | the file is set aside, and an empty one is created |
//! | the former format | the file is rewritten in this format |
//! | an entry with an unreadable name or constraints | the entry is [skipped](Restored::skipped) |
//!
//! Damage can undo later changes: if the entry of a removal is damaged, the removal is lost, and an
//! older payload may come back. Both are stale like everything restored, and the first response of
//! an upstream corrects them.
//!
//! **A set** (a wildcard or glob of a caching proxy) needs more care: if a full state lacks a
//! member, clients delete it. So a set has its own entry, written after its members and synced with
//! them. It contains the number of members and a digest of their entries. The set is
//! [restored](Restored::sets) only if the file has exactly these members, nothing after that entry
//! is damaged, and the file is as long as its header says. The digest includes the contents. With
//! names alone, a damaged entry could reset a member to older content, while running clients have
//! the newer one. A set that is not restored waits for an upstream; its members are still served to
//! clients that subscribe by name.
//!
//! ```
//! use xds_client::last_good::{LastGood, Record, Secrets};
//! use xds_core::VariantId;
//!
//! # let folder = std::env::temp_dir().join(format!("xds-last-good-example-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let path = folder.join("last_good");
//! let (mut file, restored) = LastGood::open(&path, Secrets::LeftOut)?;
//! assert!(restored.records.is_empty());
//! let id = VariantId::unconstrained("example.com/acme.Thing", "a");
//! file.put(Record::new(id, "payload".into(), "v1".into(), "xds.example.com:443".into()));
//! file.flush()?;
//! drop(file);
//!
//! let (_file, restored) = LastGood::open(&path, Secrets::LeftOut)?;
//! assert_eq!(restored.records[0].version, "v1");
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `record` | a record, and its encoding |
//! | `frame` | the file format: finds entries again, also after damage |
//! | `replay` | reads a file: its records, sets and damage |
//! | `sets` | which sets are complete, and their proofs |
//! | `log` | the open file: appends and rewrites |
//! | `disk` | its bytes, on disk or in memory |

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use xds_core::proxy::{SetChange, SetId};
use xds_core::{TypeUrl, VariantId};
use xds_file::is_full;
use xds_proto::type_url::SECRET;

use disk::Disk;
use frame::Header;
use log::{Appended, Log};
use record::{Change, Key};
use replay::Replay;
use sets::Sets;

pub use error::{FlushError, OpenError};
pub use frame::{Broken, ENTRY_LIMIT_BYTES, Ending};
pub use log::COMPACTION_MIN_BYTES;
pub use record::Record;

mod disk;
mod error;
mod frame;
mod log;
mod record;
mod replay;
mod sets;
#[cfg(test)]
mod sets_tests;
#[cfg(test)]
mod tests;

/// An open last-known-good file and the changes that are not written yet.
///
/// Payloads are in memory only until they are written. Each record keeps its id and its location in
/// the file in memory, about 150 bytes beside the texts. Only one process can have the file open.
/// The lock is on `<path>.lock`, because the file itself is replaced from time to time.
#[derive(Debug)]
pub struct LastGood {
    log: Log,
    /// The newest change per id. It is bounded by the ids of the file and the caller, however long
    /// flushes fail.
    pending: BTreeMap<Key, Change>,
    sets: Sets,
    /// A repair that has to come before any other write; set if it failed at opening.
    repair: Option<Repair>,
    secrets: Secrets,
    /// Released when it is closed. A file that the disk does not let this process write has none yet: each flush tries
    /// to take it.
    lock: Option<File>,
    /// How long the file was when it was read.
    read_bytes: u64,
}

impl LastGood {
    /// Opens the file, creates it if it does not exist, and repairs it if necessary. Blocks.
    ///
    /// # Errors
    /// Only if the file is not usable at all, see [`OpenError`]; its content is never an error, nor is a disk that is
    /// full or lets nobody write: what can be read is restored, and each [`flush`](Self::flush) tries again.
    pub fn open(path: impl AsRef<Path>, secrets: Secrets) -> Result<(Self, Restored), OpenError> {
        // A link and its target are the same file with the same lock. The working directory may
        // change later.
        let path = fs::canonicalize(&path)
            .or_else(|_| std::path::absolute(&path))
            .map_err(|source| OpenError::new(path.as_ref(), source))?;
        // Check before anything is created; and the read of a pipe could block forever.
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(OpenError::NotAFile { path });
        }
        let taken = take(&path);
        Self::begin(path, taken, secrets)
    }

    /// Opens a file that was taken, or that the disk does not let this process take yet.
    fn begin(
        path: PathBuf,
        taken: Result<(File, File), OpenError>,
        secrets: Secrets,
    ) -> Result<(Self, Restored), OpenError> {
        let at_path = |source| OpenError::new(&path, source);
        let (disk, lock) = match taken {
            Ok((lock, file)) => (Disk::of_file(file), Some(lock)),
            Err(OpenError::Io { source, .. }) if is_full(&source) => {
                tracing::warn!(
                    path = %path.display(),
                    "cannot write the last-known-good file yet; trying again: {source}"
                );
                match File::open(&path) {
                    Ok(file) => (Disk::of_file(file), None),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        (Disk::in_memory(Vec::new()), None)
                    }
                    Err(error) => return Err(at_path(error)),
                }
            }
            Err(error) => return Err(error),
        };
        Self::over(disk, path.clone(), lock, secrets).map_err(at_path)
    }

    /// A file in memory that starts with this image, for simulations.
    ///
    /// # Errors
    /// Does not fail for a file in memory.
    pub fn in_memory(image: Vec<u8>, secrets: Secrets) -> io::Result<(Self, Restored)> {
        Self::over(Disk::in_memory(image), PathBuf::new(), None, secrets)
    }

    /// The bytes of a file in memory, as a crash would leave them.
    #[must_use]
    pub fn image(&self) -> Option<Vec<u8>> {
        self.log.image()
    }

    /// Limits the size of the file, as a full disk would: larger writes fail from now on. For
    /// simulations.
    pub fn limit(&mut self, room_bytes: Option<u64>) {
        self.log.limit(room_bytes);
    }

    fn over(disk: Disk, path: PathBuf, lock: Option<File>, secrets: Secrets) -> io::Result<(Self, Restored)> {
        let read_bytes = disk.len()?;
        let read = Replay::of(BufReader::new(&disk), secrets)?;
        let (whole, unproved, skipped) = (read.whole_sets(), read.unproved, read.skipped);
        let mut locations = BTreeMap::new();
        let mut pending = BTreeMap::new();
        for (id, (location, is_valid)) in read.sets {
            locations.insert(Key::Set(id.clone()), location);
            if !is_valid {
                // A proof that does not hold now could hold again after the next write.
                pending.insert(Key::Set(id.clone()), Change::Void(id));
            }
        }
        let mut records = Vec::with_capacity(read.live.len());
        for (id, (location, record)) in read.live {
            locations.insert(Key::Variant(id), location);
            records.push(record);
        }
        let log = Log::new(path.clone(), disk, read.header, locations, read.end);
        let mut opened =
            Self { log, pending, sets: Sets::default(), repair: None, secrets, lock, read_bytes };

        let has_header = matches!(read.header, Header::Known { .. }) && !read.found_secrets;
        let (mut cut_bytes, mut set_aside) = (0, None);
        opened.repair = match read.ending {
            Ending::Whole if has_header => None,
            // The header of a new file is written in the same way.
            Ending::Whole => Some(Repair { aside: None }),
            Ending::Torn { bytes } => {
                cut_bytes = bytes;
                if has_header && opened.is_taken() {
                    opened.log.cut()?;
                }
                Some(Repair { aside: None }).filter(|_| !has_header)
            }
            Ending::Broken(reason) => {
                let aside = if path.as_os_str().is_empty() { None } else { free_name(&path) };
                let SetAside { path, .. } = set_aside.insert(SetAside { path: aside, reason });
                Some(Repair { aside: path.clone() })
            }
        };
        let repaired = if opened.is_taken() { opened.repair() } else { Ok(()) };
        match repaired {
            // The disk may have room later, and the content that was read is usable.
            Err(error) if is_full(&error) => {
                tracing::warn!(
                    path = %path.display(),
                    "cannot write the last-known-good file yet; trying again: {error}"
                );
            }
            repaired => repaired?,
        }
        if let Some(SetAside { path: aside, reason }) = &set_aside {
            tracing::warn!(
                path = %path.display(),
                aside = aside.as_ref().map(|aside| tracing::field::display(aside.display())),
                restored = records.len(),
                "the last-known-good file was damaged: {reason}"
            );
        }
        Ok((opened, Restored { records, sets: whole, unproved, skipped, cut_bytes, set_aside }))
    }

    /// Notes the newest record of its id. The next [`Self::flush`] writes it, unless the file
    /// already contains exactly this record.
    ///
    /// Secrets are ignored unless they are [kept](Secrets::Kept). A record that takes more than
    /// [`ENTRY_LIMIT_BYTES`] is not stored, and the former record of its id is removed.
    pub fn put(&mut self, record: Record) {
        if !self.secrets.leave_out(&record.id.type_url) {
            self.sets.remove_missing(&record.id);
            self.pending.insert(Key::Variant(record.id.clone()), Change::Put(record));
        }
    }

    /// Notes the removal of a variant. The next [`Self::flush`] writes it.
    pub fn remove(&mut self, id: VariantId) {
        self.sets.remove_missing(&id);
        let key = Key::Variant(id.clone());
        if self.log.contains(&key) {
            self.pending.insert(key, Change::Remove(id));
        } else {
            self.pending.remove(&key);
        }
    }

    /// Notes that a variant exists and must not be stored. Sets with this member are not stored
    /// either.
    pub fn leave_out(&mut self, id: VariantId) {
        self.remove(id.clone());
        self.sets.add_missing([id]);
    }

    /// Notes a change of a set. While a set is complete, each flush that changes its members writes
    /// a new proof.
    pub fn note_set(&mut self, change: SetChange) {
        match change {
            SetChange::Complete(id) if self.secrets.leave_out(&id.type_url) => {}
            SetChange::Complete(id) => self.sets.add_complete(id),
            SetChange::Left(id) => self.sets.remove_complete(&id),
            SetChange::Unkept { type_url, name } => {
                self.sets.remove_all_named(&type_url, &name);
                let is_it = |id: &&SetId| id.type_url == type_url && id.name == name;
                let voided: Vec<_> = self.log.sets().filter(is_it).cloned().collect();
                for id in voided {
                    self.pending.insert(Key::Set(id.clone()), Change::Void(id));
                }
            }
        }
    }

    /// Whether a flush would write something.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.sets.is_changed() || self.repair.is_some() || !self.is_taken()
    }

    /// Whether this process has the lock of the file. One in memory, without a path, needs none.
    fn is_taken(&self) -> bool {
        self.lock.is_some() || self.log.path().as_os_str().is_empty()
    }

    /// Writes the changes, and syncs them to the disk. Blocks.
    ///
    /// If the file is larger than [`COMPACTION_MIN_BYTES`] and more than twice its live entries, it
    /// is rewritten afterwards.
    ///
    /// # Errors
    /// See [`FlushError`], which says whether the changes are in the file. The records in the file
    /// are intact in every case. If the changes could not be written, the header is marked, if the
    /// disk allows it; then no set is restored from the file.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        if !self.has_pending() {
            return Ok(());
        }
        if let Err(source) = self.append() {
            if let Err(error) = self.log.mark_behind() {
                tracing::error!(
                    path = %self.log.path().display(),
                    "cannot mark the last-known-good file as outdated: wildcards that a restart restores from it may \
                     lack newer resources: {error}"
                );
            }
            return Err(FlushError::Append { path: self.log.path().to_path_buf(), source });
        }
        match self.log.compact_if_bloated() {
            Ok(lost) => {
                self.note_lost(lost);
                Ok(())
            }
            Err(source) => Err(FlushError::Compact { path: self.log.path().to_path_buf(), source }),
        }
    }

    fn append(&mut self) -> io::Result<()> {
        if !self.is_taken() {
            let (lock, file) = take(self.log.path()).map_err(|error| match error {
                OpenError::Io { source, .. } => source,
                error => io::Error::other(error),
            })?;
            self.log.take_file(file, self.read_bytes)?;
            self.lock = Some(lock);
        }
        self.repair()?;
        let mut batch = self.log.begin()?;
        let is_proved_anew =
            |change: &Change| matches!(change, Change::Void(id) if self.sets.is_complete(id));
        for change in self.pending.values().filter(|change| !is_proved_anew(change)) {
            batch.push(change)?;
        }
        self.sets.add_missing(batch.appended().left_out.iter().cloned());
        let of_sets = self.sets.changes(&self.log, &batch.appended().changed);
        for change in &of_sets {
            batch.push(change)?;
        }
        let appended: Appended = batch.commit()?;
        self.log.take(appended);
        self.sets.take(of_sets);
        self.pending.clear();
        Ok(())
    }

    /// Rewrites the file if it needs a repair.
    fn repair(&mut self) -> io::Result<()> {
        if let Some(Repair { aside }) = &self.repair {
            let lost = self.log.rewrite(aside.as_deref())?;
            self.repair = None;
            self.note_lost(lost);
        }
        Ok(())
    }

    /// Notes variants whose entries were damaged after they were written.
    fn note_lost(&mut self, lost: Vec<VariantId>) {
        if !lost.is_empty() {
            self.sets.add_missing(lost);
            self.sets.recompute_all();
        }
    }
}

/// A rewrite, and the name for the former file, if it is set aside.
#[derive(Debug)]
struct Repair {
    aside: Option<PathBuf>,
}

/// Whether resources of the type [`SECRET`] are stored: keys, tokens and certificates of SDS.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// They are not stored. Those in an older file are not restored but erased.
    #[default]
    LeftOut,
    /// They are stored unencrypted.
    Kept,
}

impl Secrets {
    fn leave_out(self, type_url: &TypeUrl) -> bool {
        self == Self::LeftOut && type_url.as_str() == SECRET
    }
}

/// The content of a file at opening.
#[derive(Debug)]
pub struct Restored {
    /// The newest record of each id, sorted by id. All are stale until an upstream confirms or
    /// replaces them.
    pub records: Vec<Record>,
    /// Sets whose members are all in the records.
    pub sets: Vec<SetId>,
    /// The number of sets that were complete once and are not proved to be now: an entry is
    /// damaged, has an older state, or could not be written.
    pub unproved: usize,
    /// The number of entries that were ignored because their name or constraints are not readable.
    /// They disappear with the next rewrite.
    pub skipped: usize,
    /// The number of bytes that were cut off the end after a crash.
    pub cut_bytes: u64,
    /// Set if the file was damaged; the records are then the intact ones.
    pub set_aside: Option<SetAside>,
}

/// A damaged file that was renamed, for an analysis of the damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Its new path: `<path>.bad`, then `.bad.1` and so on. `None` if [`SET_ASIDE_LIMIT`] such
    /// files exist, which are never overwritten; then the damaged file is lost.
    pub path: Option<PathBuf>,
    /// The damage.
    pub reason: Broken,
}

/// The content of a file as [`read`] returns it.
#[derive(Debug)]
pub struct Contents {
    /// The newest record of each id, sorted by id.
    pub records: Vec<Record>,
    /// As [`Restored::sets`].
    pub sets: Vec<SetId>,
    /// As [`Restored::unproved`].
    pub unproved: usize,
    /// The number of entries whose name or constraints are not readable.
    pub skipped: usize,
    /// Whether the file is intact.
    pub ending: Ending,
    /// The end of its last intact entry, in bytes from the start. Zero without a header.
    pub end: u64,
}

/// Reads such a file without a change to it, including secrets. It is neither locked nor repaired.
///
/// # Errors
/// Only those of the input; content is never an error.
pub fn read(input: impl Read) -> io::Result<Contents> {
    let replay = Replay::of(input, Secrets::Kept)?;
    let sets = replay.whole_sets();
    let Replay { live, unproved, skipped, ending, end, .. } = replay;
    let records = live.into_values().map(|(_, record)| record).collect();
    Ok(Contents { records, sets, unproved, skipped, ending, end })
}

/// Takes a file for this process: its lock, and the file, which is made if there is none.
fn take(path: &Path) -> Result<(File, File), OpenError> {
    let lock = lock(&beside(path, ".lock"))?;
    let file = log::owner_only().read(true).write(true).create(true).truncate(false).open(path);
    Ok((lock, file.map_err(|source| OpenError::new(path, source))?))
}

/// Takes the lock of a file. The lock file stays: if it were removed, two processes could hold
/// locks of that name at once.
fn lock(path: &Path) -> Result<File, OpenError> {
    let file = log::owner_only().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|source| OpenError::new(path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(OpenError::new(path, source)),
    }
}

/// The first free name for a damaged file.
fn free_name(path: &Path) -> Option<PathBuf> {
    let names = (0..SET_ASIDE_LIMIT).map(|nth| match nth {
        0 => beside(path, ".bad"),
        _ => beside(path, &format!(".bad.{nth}")),
    });
    // A broken link also takes a name.
    names.into_iter().find(|name| fs::symlink_metadata(name).is_err())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// How many damaged files are kept. They can be as large as the file was, and have the same
/// content.
pub const SET_ASIDE_LIMIT: usize = 8;
