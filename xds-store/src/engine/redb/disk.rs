//! What lies below a database: the file, and a copy of its last durable state after a failure.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The file below the databases that the engine opens on it one after another, and its lock (ST3).
#[derive(Debug, Clone)]
pub(super) struct Disk(Arc<State>);

#[derive(Debug)]
struct State {
    backend: Box<dyn StorageBackend>,
    /// Where the file is; `None` in tests.
    place: Option<Place>,
    /// How long the database made it.
    len: AtomicU64,
    header: Mutex<Header>,
    has_failed_sync: AtomicBool,
}

/// Where the file is, and which file that was when it was opened.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    file: FileId,
}

/// The device and the number of a file on it.
type FileId = Option<(u64, u64)>;

impl Place {
    fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { path: path.into(), file: file_id(&file.metadata()?) })
    }

    /// Whatever else prevents a look at the path says nothing about the file.
    fn check(&self) -> io::Result<()> {
        let what = match fs::metadata(&self.path) {
            Ok(metadata) if file_id(&metadata) != self.file => "is another one now: it was replaced",
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "is not there any more: it was moved or removed"
            }
            Ok(_) | Err(_) => return Ok(()),
        };
        Err(io::Error::other(format!(
            "the file {} {what} while this server has it open",
            self.path.display()
        )))
    }
}

#[cfg(unix)]
fn file_id(metadata: &fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_id(_: &fs::Metadata) -> FileId {
    None
}

#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    let of_disk = rustix::fs::statvfs(path).ok()?;
    Some(of_disk.f_bavail.saturating_mul(of_disk.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The first bytes of the file: they lead to the pages of the last commit, and are the only ones
/// that are overwritten in place.
///
/// They are written by the sync that follows, when all pages are: so a commit of which a page could
/// not be written is not there after a crash, whatever of it was (ST22).
#[derive(Debug)]
struct Header {
    /// As the database wrote it.
    written: [u8; HEADER_BYTES],
    /// As of the last sync that succeeded.
    synced: [u8; HEADER_BYTES],
    /// Whether the file may have another one than was synced, as writing it failed.
    is_torn: bool,
}

impl Disk {
    /// Locks the file. `None`: another process has it open.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let place = Place::of(path, &file)?;
        let backend = FileBackend::new(file).map_err(io::Error::other)?;
        match backend.try_lock_range(Bound::Unbounded, Bound::Unbounded) {
            Ok(true) => Self::of(backend, Some(place)).map(Some),
            Ok(false) => Ok(None),
            Err(BackendError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// On something that one process has.
    pub(super) fn of(backend: impl StorageBackend, place: Option<Place>) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        let len = backend.len()?;
        if len >= HEADER_BYTES as u64 {
            backend.read(0, &mut header)?;
        }
        Ok(Self(Arc::new(State {
            backend: Box::new(backend),
            place,
            len: AtomicU64::new(len),
            header: Mutex::new(Header { written: header, synced: header, is_torn: false }),
            has_failed_sync: AtomicBool::new(false),
        })))
    }

    /// How many bytes others than root can still write.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.0.place.as_ref()?.path)
    }

    /// Whether a sync failed: a later one may report success although data is lost (ST21).
    pub(super) fn has_failed_sync(&self) -> bool {
        self.0.has_failed_sync.load(Ordering::Acquire)
    }

    /// Fails if the file system has no room for so many bytes.
    pub(super) fn probe(&self, bytes: usize) -> io::Result<()> {
        let Some(place) = &self.0.place else { return Ok(()) };
        let path = place.path.with_extension("probe");
        let mut file = File::create(&path)?;
        // It has no name while it is written, so a crash leaves nothing that takes room.
        fs::remove_file(path)?;
        for _ in 0..bytes.div_ceil(PAGE_BYTES) {
            file.write_all(&[0; PAGE_BYTES])?;
        }
        Ok(())
    }

    /// The state as of the last sync that succeeded. What is written to it is kept in memory. The
    /// database on this disk is closed.
    pub(super) fn frozen(&self) -> io::Result<Frozen> {
        let mut header = self.header();
        header.written = header.synced;
        let synced = header.synced;
        drop(header);
        let len = self.0.backend.len()?;
        let frozen =
            Frozen { disk: self.clone(), overlay: Mutex::new(Overlay { len, pages: BTreeMap::new() }) };
        frozen.write(0, &synced)?;
        Ok(frozen)
    }

    /// ST21: fails if the file is not the one that was opened, as a restart would show.
    fn check_file(&self) -> io::Result<()> {
        if let Some(place) = &self.0.place {
            place.check()?;
        }
        let (expected, found) = (self.0.len.load(Ordering::Acquire), self.0.backend.len()?);
        if found == expected {
            return Ok(());
        }
        let text = format!("the file of the store has {found} bytes, and was written with {expected}");
        Err(io::Error::other(text))
    }

    /// Unlocks the file. All databases on it are closed.
    pub(super) fn close(&self) {
        // An error here loses nothing: the process ends, or the next one to open the file reports it.
        _ = self.0.backend.close();
    }

    fn header(&self) -> MutexGuard<'_, Header> {
        self.0.header.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)?;
        if let Some(at) = usize::try_from(offset).ok().filter(|at| *at < HEADER_BYTES) {
            out.iter_mut().zip(&self.header().written[at..]).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = self.0.backend.set_len(len);
        let is_of = if set.is_ok() { len } else { self.0.backend.len().unwrap_or(len) };
        self.0.len.store(is_of, Ordering::Release);
        set
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check_file()?;
        let mut header = self.header();
        if header.written != header.synced || header.is_torn {
            header.is_torn = true;
            self.0.backend.write(0, &header.written)?;
        }
        self.0.backend.sync_data().inspect_err(|_| self.0.has_failed_sync.store(true, Ordering::Release))?;
        header.synced = header.written;
        header.is_torn = false;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(at) = usize::try_from(offset).ok().filter(|at| *at < HEADER_BYTES) else {
            return self.0.backend.write(offset, data);
        };
        let (of_header, rest) = data.split_at(data.len().min(HEADER_BYTES - at));
        self.header().written[at..at + of_header.len()].copy_from_slice(of_header);
        if rest.is_empty() { Ok(()) } else { self.0.backend.write(HEADER_BYTES as u64, rest) }
    }

    /// [`Disk`] keeps the lock while one database is closed and the next one is opened.
    fn try_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

/// The last durable state of a [`Disk`], for readers. Nothing writes to the disk meanwhile.
///
/// A commit overwrites no page that the one before it uses, so those pages are there, and the
/// header as of then leads to them.
#[derive(Debug)]
pub(super) struct Frozen {
    disk: Disk,
    overlay: Mutex<Overlay>,
}

#[derive(Debug)]
struct Overlay {
    len: u64,
    /// The pages that were written, by their number.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Frozen {
    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the disk; what lies behind its end is zero.
    fn read_disk(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.disk.len()?.saturating_sub(offset).min(out.len() as u64);
        let (there, behind) = out.split_at_mut(usize::try_from(there).unwrap_or(usize::MAX));
        behind.fill(0);
        if there.is_empty() { Ok(()) } else { self.disk.read(offset, there) }
    }
}

/// The parts of a range by page: the number of the page, and the part within it and in the range.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = usize::try_from(at % PAGE_BYTES as u64).expect("it is below the size of a page");
        let part = done..len.min(done + PAGE_BYTES - within);
        done = part.end;
        (!part.is_empty()).then_some((at / PAGE_BYTES as u64, within, part))
    })
}

impl StorageBackend for Frozen {
    fn len(&self) -> io::Result<u64> {
        Ok(self.overlay().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let overlay = self.overlay();
        if offset.saturating_add(out.len() as u64) > overlay.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_disk(offset, out)?;
        for (number, within, part) in pages(offset, out.len()) {
            if let Some(page) = overlay.pages.get(&number) {
                let len = part.len();
                out[part].copy_from_slice(&page[within..within + len]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.overlay().len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut overlay = self.overlay();
        for (number, within, part) in pages(offset, data.len()) {
            let page = match overlay.pages.entry(number) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut page = vec![0; PAGE_BYTES].into_boxed_slice();
                    self.read_disk(number * PAGE_BYTES as u64, &mut page)?;
                    entry.insert(page)
                }
            };
            page[within..within + part.len()].copy_from_slice(&data[part]);
        }
        Ok(())
    }

    fn try_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

/// At least the header of redb, within its first page.
const HEADER_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
