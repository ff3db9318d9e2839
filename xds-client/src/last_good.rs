//! The last-known-good file: what a client or proxy was sent, so that it can start while its
//! control plane is down.
//!
//! A [`LastGood`] is a log that is appended to and now and then written anew with what still
//! counts. It is keyed by type URL, name and canonical constraints ([`VariantId`]). What it
//! restores may be old: whoever opens it marks the records as stale until an upstream confirms or
//! replaces them.
//!
//! Deliberately not here: a runtime. [`LastGood::open`] and [`LastGood::flush`] block on files, so
//! async code calls them from a blocking task; [`LastGood::put`] and [`LastGood::remove`] only note
//! a change in memory.
//!
//! The file holds configuration and may hold secrets, so on Unix only its owner may read it.
//! Resources of the type [`SECRET`] are left out unless asked for ([`Secrets`]); private keys
//! inlined in other types are not noticed.
//!
//! What went wrong with the file never keeps a client from starting:
//!
//! | seen when opening | done |
//! | --- | --- |
//! | the last entry is cut short, or the file ends in zeros (a crash while appending) | cut off and reported as [`Restored::cut_bytes`] |
//! | entries are damaged | all whole entries are restored and go into a new file, the damaged file is [set aside](SetAside) |
//! | the header is damaged, or the file is shorter than it says | the same |
//! | another kind of file, or a format unknown here | set aside, and an empty one begun |
//! | the format before | written anew in this one |
//! | an entry whose name or constraints cannot be read (any more) | [skipped](Restored::skipped) |
//!
//! Damage can undo what came later: a removal whose entry is damaged is forgotten, an older payload
//! may come back. Both are stale like everything restored, and the first answer of an upstream
//! corrects them.
//!
//! **A set** (a wildcard or glob of a caching proxy) is another matter: where a full state lacks a
//! member, clients delete it. So a set has an entry of its own, written after its members and
//! synced with them, with the number of its members and a digest of their entries. It is
//! [restored](Restored::sets) only when the members in the file are exactly these, nothing after
//! that entry is damaged, and the file is as long as its header says. The digest includes the
//! contents: were only the names counted, a damaged entry could take a member back to what it was
//! before, while a client that runs has the newer. A set that is not restored waits for an
//! upstream; its members can be used by name all the same.
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
//! let id = VariantId::unconstrained("example.com/acme.Thing".into(), "a".into());
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
//! | `record` | a record, and the message it is stored as |
//! | `frame` | how entries lie in the file and are found again |
//! | `replay` | what the entries of a file amount to |
//! | `sets` | which sets are whole, and the proof of it |
//! | `log` | the open file: appending, writing it anew |
//! | `disk` | where its bytes are |

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use xds_core::proxy::{SetChange, SetId};
use xds_core::{TypeUrl, VariantId};
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

/// An open last-known-good file and the changes that are not yet in it.
///
/// Payloads are held only until they are written: what stays in memory per record is its id and a
/// place in the file, about 150 bytes beside the texts. One process at a time has the file open, by
/// a lock on `<path>.lock`, as the file itself is replaced from time to time.
#[derive(Debug)]
pub struct LastGood {
    log: Log,
    /// Newest change per id that the file holds or the caller has, so it is bounded however long no
    /// flush succeeds.
    pending: BTreeMap<Key, Change>,
    sets: Sets,
    /// What is to be done before anything else is written, as it could not be when it was opened.
    repair: Option<Repair>,
    secrets: Secrets,
    /// Unlocked when it is closed.
    _lock: Option<File>,
}

impl LastGood {
    /// Opens the file, begins it if there is none, and mends it if it has to be. Blocks.
    ///
    /// # Errors
    /// Only when the file cannot be used at all, see [`OpenError`]; what the file holds is never an
    /// error. Where it can be read but not written, such as on a full disk, [`read`] gives what it
    /// holds.
    pub fn open(path: impl AsRef<Path>, secrets: Secrets) -> Result<(Self, Restored), OpenError> {
        // A link and what it points to are one file with one lock; the working directory may change
        // later.
        let path = fs::canonicalize(&path)
            .or_else(|_| std::path::absolute(&path))
            .map_err(|source| OpenError::new(path.as_ref(), source))?;
        // Before anything is created; and reading a pipe would wait for ever.
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(OpenError::NotAFile { path });
        }
        let lock = lock(&beside(&path, ".lock"))?;
        let at_path = |source| OpenError::new(&path, source);
        let file = log::owner_only().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(at_path)?;
        Self::over(Disk::of_file(file), path.clone(), Some(lock), secrets).map_err(at_path)
    }

    /// One in memory, that begins as this image of a file: for those who simulate what becomes of
    /// it.
    ///
    /// # Errors
    /// None that a file in memory could have.
    pub fn in_memory(image: Vec<u8>, secrets: Secrets) -> io::Result<(Self, Restored)> {
        Self::over(Disk::in_memory(image), PathBuf::new(), None, secrets)
    }

    /// The bytes of one that is in memory, as a crash would leave them.
    #[must_use]
    pub fn image(&self) -> Option<Vec<u8>> {
        self.log.image()
    }

    /// From now on writes fail that need more room than this, as on a disk that is full. For those
    /// who try what comes of it.
    pub fn limit(&mut self, room_bytes: Option<u64>) {
        self.log.limit(room_bytes);
    }

    fn over(disk: Disk, path: PathBuf, lock: Option<File>, secrets: Secrets) -> io::Result<(Self, Restored)> {
        let read = Replay::of(BufReader::new(&disk), secrets)?;
        let (whole, unproved, skipped) = (read.whole_sets(), read.unproved, read.skipped);
        let mut locations = BTreeMap::new();
        let mut pending = BTreeMap::new();
        for (id, (location, holds)) in read.sets {
            locations.insert(Key::Set(id.clone()), location);
            if !holds {
                // What does not hold now could hold again after the next write.
                pending.insert(Key::Set(id.clone()), Change::Void(id));
            }
        }
        let mut records = Vec::with_capacity(read.live.len());
        for (id, (location, record)) in read.live {
            locations.insert(Key::Variant(id), location);
            records.push(record);
        }
        let is_in_memory = disk.is_in_memory();
        let log = Log::new(path.clone(), disk, read.header, locations, read.end);
        let mut opened = Self { log, pending, sets: Sets::default(), repair: None, secrets, _lock: lock };

        let has_header = matches!(read.header, Header::Known { .. }) && !read.found_secrets;
        let (mut cut_bytes, mut set_aside) = (0, None);
        opened.repair = match read.ending {
            Ending::Whole if has_header => None,
            // The header of a file that was just created is written like this too.
            Ending::Whole => Some(Repair { aside: None }),
            Ending::Torn { bytes } => {
                cut_bytes = bytes;
                if has_header {
                    opened.log.cut()?;
                }
                Some(Repair { aside: None }).filter(|_| !has_header)
            }
            Ending::Broken(reason) => {
                let aside = if is_in_memory { None } else { free_name(&path) };
                let SetAside { path, .. } = set_aside.insert(SetAside { path: aside, reason });
                Some(Repair { aside: path.clone() })
            }
        };
        match opened.repair() {
            // The disk may have room later, and what was read is good to start with.
            Err(error) if is_full(&error) => {
                tracing::warn!(path = %path.display(), "the last-known-good file cannot be written yet: {error}");
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

    /// Notes that this is the newest of its id. It is written by the next [`Self::flush`], unless
    /// the file holds exactly that already.
    ///
    /// Not kept are secrets where they are left out, and records of more than [`ENTRY_LIMIT_BYTES`]
    /// as stored; of the latter's id nothing is kept then.
    pub fn put(&mut self, record: Record) {
        if !self.secrets.leave_out(&record.id.type_url) {
            self.sets.no_longer_lack(&record.id);
            self.pending.insert(Key::Variant(record.id.clone()), Change::Put(record));
        }
    }

    /// Notes that there is no such variant any more. The next [`Self::flush`] writes it down.
    pub fn remove(&mut self, id: VariantId) {
        self.sets.no_longer_lack(&id);
        let key = Key::Variant(id.clone());
        if self.log.holds(&key) {
            self.pending.insert(key, Change::Remove(id));
        } else {
            self.pending.remove(&key);
        }
    }

    /// Notes that there is such a variant, and that it must not be kept: sets that it is a member
    /// of are not either.
    pub fn leave_out(&mut self, id: VariantId) {
        self.remove(id.clone());
        self.sets.lack([id]);
    }

    /// Notes what became of a set. While one is complete, each flush that changes its members
    /// proves it anew.
    pub fn note_set(&mut self, change: SetChange) {
        match change {
            SetChange::Complete(id) if self.secrets.leave_out(&id.type_url) => {}
            SetChange::Complete(id) => self.sets.hold(id),
            SetChange::Left(id) => self.sets.release(&id),
            SetChange::Unkept { type_url, name } => {
                self.sets.release_all(&type_url, &name);
                let is_it = |id: &&SetId| id.type_url == type_url && id.name == name;
                let voided: Vec<_> = self.log.sets().filter(is_it).cloned().collect();
                for id in voided {
                    self.pending.insert(Key::Set(id.clone()), Change::Void(id));
                }
            }
        }
    }

    /// Whether a flush has something to look at.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.sets.is_changed() || self.repair.is_some()
    }

    /// Writes down what changed, and has the disk confirm it. Blocks.
    ///
    /// When the file has more than [`COMPACTION_MIN_BYTES`] and is more than twice what counts, it
    /// is then written anew.
    ///
    /// # Errors
    /// See [`FlushError`], which says what became of the changes. The names in the file are intact
    /// in every case. When the changes could not be written, the header says so, as far as the disk
    /// lets it: then no set is restored from it.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        if !self.has_pending() {
            return Ok(());
        }
        if let Err(source) = self.append() {
            if let Err(error) = self.log.mark_behind() {
                tracing::error!(
                    path = %self.log.path().display(),
                    "cannot mark the last-known-good file as outdated, so sets in it may be old: {error}"
                );
            }
            return Err(FlushError::Append { path: self.log.path().to_path_buf(), source });
        }
        match self.log.compact_if_bloated() {
            Ok(lost) => {
                self.lose(lost);
                Ok(())
            }
            Err(source) => Err(FlushError::Compact { path: self.log.path().to_path_buf(), source }),
        }
    }

    fn append(&mut self) -> io::Result<()> {
        self.repair()?;
        let mut batch = self.log.begin()?;
        let is_proved_anew = |change: &Change| matches!(change, Change::Void(id) if self.sets.holds(id));
        for change in self.pending.values().filter(|change| !is_proved_anew(change)) {
            batch.push(change)?;
        }
        self.sets.lack(batch.appended().left_out.iter().cloned());
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

    /// Writes the file anew, if it has to be before it is used.
    fn repair(&mut self) -> io::Result<()> {
        if let Some(Repair { aside }) = &self.repair {
            let lost = self.log.rewrite(aside.as_deref())?;
            self.repair = None;
            self.lose(lost);
        }
        Ok(())
    }

    /// Entries of these were damaged since they were written.
    fn lose(&mut self, lost: Vec<VariantId>) {
        if !lost.is_empty() {
            self.sets.lack(lost);
            self.sets.look_up_all();
        }
    }
}

/// How a file has to be written anew, and where to the one before goes.
#[derive(Debug)]
struct Repair {
    aside: Option<PathBuf>,
}

/// Whether it may go away by itself: there is no room.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Whether resources of the type [`SECRET`] are stored, which SDS serves: keys, tokens and
/// certificates.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// They are not, and those that a file holds from before are not restored but erased from it.
    #[default]
    LeftOut,
    /// They are, as they came: not encrypted.
    Kept,
}

impl Secrets {
    fn leave_out(self, type_url: &TypeUrl) -> bool {
        self == Self::LeftOut && type_url.as_str() == SECRET
    }
}

/// What a file held when it was opened.
#[derive(Debug)]
pub struct Restored {
    /// The newest of each id, in their order. All are stale until an upstream says otherwise.
    pub records: Vec<Record>,
    /// Sets whose members are all among the records.
    pub sets: Vec<SetId>,
    /// How many sets were whole once, and are not proved to be: something is damaged, came from
    /// another time, or could not be written.
    pub unproved: usize,
    /// How many entries were left alone because their name or constraints cannot be read here. They
    /// go when the file is next written anew.
    pub skipped: usize,
    /// How much was cut off the end after a crash, in bytes.
    pub cut_bytes: u64,
    /// Told when the file was damaged; the records are then those that were not.
    pub set_aside: Option<SetAside>,
}

/// A damaged file that was moved out of the way, for whoever wants to know what happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it is now: `<path>.bad`, then `.bad.1` and so on. `None` when there are
    /// [`SET_ASIDE_LIMIT`] already, which are never overwritten: then it is gone.
    pub path: Option<PathBuf>,
    /// What is wrong with it.
    pub reason: Broken,
}

/// What [`read`] finds.
#[derive(Debug)]
pub struct Contents {
    /// The newest of each id, in their order.
    pub records: Vec<Record>,
    /// As [`Restored::sets`].
    pub sets: Vec<SetId>,
    /// As [`Restored::unproved`].
    pub unproved: usize,
    /// How many entries have a name or constraints that cannot be read here.
    pub skipped: usize,
    /// Whether the file is whole.
    pub ending: Ending,
    /// Where its last whole entry ends, in bytes from the start. Zero without a header.
    pub end: u64,
}

/// Reads such a file as it stands, secrets too; it is neither locked nor mended.
///
/// # Errors
/// Only those of the input; no bytes are an error.
pub fn read(input: impl Read) -> io::Result<Contents> {
    let replay = Replay::of(input, Secrets::Kept)?;
    let sets = replay.whole_sets();
    let Replay { live, unproved, skipped, ending, end, .. } = replay;
    let records = live.into_values().map(|(_, record)| record).collect();
    Ok(Contents { records, sets, unproved, skipped, ending, end })
}

/// Takes the lock that a file is used under. The lock file stays: were it removed, two processes
/// could hold locks of that name at once.
fn lock(path: &Path) -> Result<File, OpenError> {
    let file = log::owner_only().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|source| OpenError::new(path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(OpenError::new(path, source)),
    }
}

/// The first name for a damaged file that is not taken.
fn free_name(path: &Path) -> Option<PathBuf> {
    let names = (0..SET_ASIDE_LIMIT).map(|nth| match nth {
        0 => beside(path, ".bad"),
        _ => beside(path, &format!(".bad.{nth}")),
    });
    // A link that leads nowhere takes a name too.
    names.into_iter().find(|name| fs::symlink_metadata(name).is_err())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// How many damaged files are kept; they can be as large as the file was, and hold what it held.
pub const SET_ASIDE_LIMIT: usize = 8;
