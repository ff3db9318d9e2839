//! The bytes of a file: on disk, or in memory.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

/// A file with an optional size limit.
#[derive(Debug)]
pub(super) struct Disk {
    bytes: Bytes,
    /// Writes past this byte fail; for simulations.
    pub(super) room_bytes: Option<u64>,
}

#[derive(Debug)]
enum Bytes {
    OnDisk(File),
    InMemory(RefCell<Cursor<Vec<u8>>>),
}

impl Disk {
    pub(super) fn of_file(file: File) -> Self {
        Self { bytes: Bytes::OnDisk(file), room_bytes: None }
    }

    pub(super) fn in_memory(image: Vec<u8>) -> Self {
        Self { bytes: Bytes::InMemory(RefCell::new(Cursor::new(image))), room_bytes: None }
    }

    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.bytes, Bytes::InMemory(_))
    }

    /// The whole content, if it is in memory.
    pub(super) fn image(&self) -> Option<Vec<u8>> {
        match &self.bytes {
            Bytes::OnDisk(_) => None,
            Bytes::InMemory(bytes) => Some(bytes.borrow().get_ref().clone()),
        }
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        match &self.bytes {
            Bytes::OnDisk(file) => Ok(file.metadata()?.len()),
            Bytes::InMemory(bytes) => Ok(bytes.borrow().get_ref().len() as u64),
        }
    }

    pub(super) fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        match &self.bytes {
            Bytes::OnDisk(file) => file.set_len(size_bytes),
            Bytes::InMemory(bytes) => {
                let size = usize::try_from(size_bytes).map_err(io::Error::other)?;
                bytes.borrow_mut().get_mut().resize(size, 0);
                Ok(())
            }
        }
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        match &self.bytes {
            Bytes::OnDisk(file) => file.sync_data(),
            Bytes::InMemory(_) => Ok(()),
        }
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        match &self.bytes {
            Bytes::OnDisk(file) => file.sync_all(),
            Bytes::InMemory(_) => Ok(()),
        }
    }

    /// The part of the bytes for which there is room.
    fn fitting<'b>(&self, bytes: &'b [u8]) -> io::Result<&'b [u8]> {
        let Some(room_bytes) = self.room_bytes else { return Ok(bytes) };
        let mut at = self;
        let room = room_bytes.saturating_sub(at.stream_position()?);
        match usize::try_from(room) {
            Ok(0) => Err(io::ErrorKind::StorageFull.into()),
            Ok(room) if room < bytes.len() => Ok(&bytes[..room]),
            Ok(_) | Err(_) => Ok(bytes),
        }
    }
}

impl Read for &Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.bytes {
            Bytes::OnDisk(file) => (&*file).read(buffer),
            Bytes::InMemory(bytes) => bytes.borrow_mut().read(buffer),
        }
    }
}

impl Write for &Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = self.fitting(bytes)?;
        match &self.bytes {
            Bytes::OnDisk(file) => (&*file).write(fitting),
            Bytes::InMemory(bytes) => bytes.borrow_mut().write(fitting),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &self.bytes {
            Bytes::OnDisk(file) => (&*file).seek(to),
            Bytes::InMemory(bytes) => bytes.borrow_mut().seek(to),
        }
    }
}
