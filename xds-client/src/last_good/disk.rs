//! The disk, which tests can fill.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// A file on it.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    #[cfg(test)]
    room_bytes: u64,
}

impl Disk {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(test)]
            room_bytes: u64::MAX,
        }
    }

    /// Another file on the same disk.
    pub(super) fn beside(&self, file: File) -> Self {
        Self {
            file,
            #[cfg(test)]
            room_bytes: self.room_bytes,
        }
    }

    pub(super) fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    #[cfg(test)]
    pub(super) fn fail_past(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
    }

    /// As much as there is room for.
    #[cfg(test)]
    fn fitting<'b>(&self, bytes: &'b [u8]) -> io::Result<&'b [u8]> {
        let room = self.room_bytes.saturating_sub((&self.file).stream_position()?);
        match usize::try_from(room) {
            Ok(0) => Err(io::ErrorKind::StorageFull.into()),
            Ok(room) if room < bytes.len() => Ok(&bytes[..room]),
            Ok(_) | Err(_) => Ok(bytes),
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "it is for tests")]
    fn fitting<'b>(&self, bytes: &'b [u8]) -> io::Result<&'b [u8]> {
        Ok(bytes)
    }
}

impl Read for &Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }
}

impl Write for &Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.file).write(self.fitting(bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.file).flush()
    }
}

impl Seek for &Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&self.file).seek(to)
    }
}
