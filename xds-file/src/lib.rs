//! Reads files that operators name.
//!
//! A path may lead to anything: opening a FIFO without a writer blocks, a device has no end, and a
//! file may grow while it is read. [`read`] accepts only regular files, and all functions have a
//! size limit. They do not protect against a file system that hangs: call them on a thread that may
//! block, as [`Reloads::blocking`] does.
//!
//! [`Reloads`] has the state of a source that is read repeatedly.
//!
//! ```
//! use xds_file::{Refused, read, refused};
//!
//! let text = read("Cargo.toml".as_ref(), 1 << 20)?;
//! assert!(!text.is_empty());
//! let error = read("src".as_ref(), 1 << 20).unwrap_err();
//! assert!(matches!(refused(&error), Some(Refused::NotRegular { .. })));
//! # std::io::Result::Ok(())
//! ```
#![forbid(unsafe_code)]

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

pub use reloads::{Reading, Refusal, Reloads};

mod reloads;

/// The kind of a path that is not a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device, such as `/dev/zero`.
    Device,
    /// Something else.
    Other,
}

/// Why a file was refused although the system allows the read. It is inside the [`io::Error`]; see
/// [`refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The path does not lead to a regular file; links are followed.
    #[error("is {}; it must be a regular file", .kind.words())]
    NotRegular {
        /// What the path leads to.
        kind: FileKind,
    },
    /// The file is too large, or became too large during the read.
    #[error("has {size_bytes} bytes, more than the limit of {limit_bytes}")]
    TooLarge {
        /// Its size, as far as it is known.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

/// Reads a regular file of up to `limit_bytes`.
///
/// # Errors
/// Those of the system, and [`Refused`].
pub fn read(path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
    // Check before the open: some devices react to an open.
    check_kind(std::fs::metadata(path)?.file_type())?;
    let file = open(path)?;
    // The file may have been replaced meanwhile.
    let metadata = file.metadata()?;
    check_kind(metadata.file_type())?;
    let limit = limit_bytes as u64;
    if metadata.len() > limit {
        return Err(Refused::TooLarge { size_bytes: metadata.len(), limit_bytes: limit }.into());
    }
    up_to(limit, &file, usize::try_from(metadata.len()).unwrap_or_default())
}

/// Reads any file up to `limit_bytes`, also a pipe: for files that are read once at the start,
/// where a shell may give a pipe (`--config <(generate)`). Blocks until a pipe ends.
///
/// # Errors
/// Those of the system, and [`Refused::TooLarge`].
pub fn read_once(path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
    up_to(limit_bytes as u64, &File::open(path)?, 0)
}

/// The same as [`read_once`] for a text.
///
/// # Errors
/// Those of [`read_once`], and if the content is not UTF-8.
pub fn read_once_to_string(path: &Path, limit_bytes: usize) -> io::Result<String> {
    text(read_once(path, limit_bytes)?)
}

/// The same as [`read`] for a text.
///
/// # Errors
/// Those of [`read`], and if the content is not UTF-8.
pub fn read_to_string(path: &Path, limit_bytes: usize) -> io::Result<String> {
    text(read(path, limit_bytes)?)
}

/// The [`Refused`] inside an error; `None` for an error of the system.
#[must_use]
pub fn refused(error: &io::Error) -> Option<Refused> {
    error.get_ref()?.downcast_ref().copied()
}

/// Whether a write failed because the disk lets nobody write, which may end by itself: it is full, a quota is reached, or
/// it became read-only after an error.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | ReadOnlyFilesystem)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

fn up_to(limit_bytes: u64, file: &File, expected: usize) -> io::Result<Vec<u8>> {
    // One byte more than expected; otherwise the end would be found only after another allocation.
    let mut content = Vec::with_capacity(expected + 1);
    file.take(limit_bytes.saturating_add(1)).read_to_end(&mut content)?;
    let size_bytes = content.len() as u64;
    if size_bytes > limit_bytes {
        return Err(Refused::TooLarge { size_bytes, limit_bytes }.into());
    }
    Ok(content)
}

/// Opens without waiting: a FIFO may never get a writer.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// # Errors
/// [`Refused::NotRegular`].
fn check_kind(file_type: FileType) -> Result<(), Refused> {
    if file_type.is_file() { Ok(()) } else { Err(Refused::NotRegular { kind: FileKind::of(file_type) }) }
}

impl FileKind {
    /// The kind of something that is not a regular file.
    #[must_use]
    pub fn of(file_type: FileType) -> Self {
        if file_type.is_dir() {
            return Self::Directory;
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt as _;
            if file_type.is_fifo() {
                return Self::Fifo;
            }
            if file_type.is_socket() {
                return Self::Socket;
            }
            if file_type.is_char_device() || file_type.is_block_device() {
                return Self::Device;
            }
        }
        Self::Other
    }

    fn words(self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Other => "no file",
        }
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        let kind = match refused {
            Refused::NotRegular { .. } => io::ErrorKind::InvalidInput,
            Refused::TooLarge { .. } => io::ErrorKind::FileTooLarge,
        };
        Self::new(kind, refused)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::process::Command;
    use std::{env, fs, process};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let path = env::temp_dir().join(format!("xds-file-{}-{test}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    fn why(path: &Path) -> String {
        read(path, 100).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_blocks_nobody() {
        let scratch = Scratch::new("kinds");
        let path = |name: &str| scratch.0.join(name);
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink("/dev/zero", path("zero")).unwrap();
        symlink("fifo", path("link")).unwrap();
        assert_eq!(why(&path("fifo")), "is a FIFO; it must be a regular file");
        assert_eq!(why(&path("link")), "is a FIFO; it must be a regular file");
        assert_eq!(why(&path("socket")), "is a socket; it must be a regular file");
        assert_eq!(why(&path("zero")), "is a device; it must be a regular file");
        assert_eq!(why(&scratch.0), "is a directory; it must be a regular file");
        // As if the file became a FIFO after the first check.
        assert!(check_kind(open(&path("fifo")).unwrap().metadata().unwrap().file_type()).is_err());
    }

    #[test]
    fn a_size_over_the_limit_is_refused_whether_the_system_tells_it_or_not() {
        let scratch = Scratch::new("sizes");
        let path = scratch.0.join("file");
        fs::write(&path, [b'x'; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap(), [b'x'; 100]);
        let too_large = |size_bytes, limit_bytes| Some(Refused::TooLarge { size_bytes, limit_bytes });
        assert_eq!(refused(&read(&path, 99).unwrap_err()), too_large(100, 99));
        // The file grew: its length was 50 at the check.
        assert_eq!(refused(&up_to(60, &open(&path).unwrap(), 50).unwrap_err()), too_large(61, 60));
        assert_eq!(refused(&read_once(Path::new("/dev/zero"), 1000).unwrap_err()), too_large(1001, 1000));
        assert_eq!(refused(&read(Path::new("nowhere"), 1).unwrap_err()), None);
    }
}
