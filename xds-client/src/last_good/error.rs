//! Errors of the last-known-good file.

use std::io;
use std::path::{Path, PathBuf};

/// Why the last-known-good file is not usable. A client can run without it; the operator has to
/// correct the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the file open, or this process a second time.
    #[error(
        "last-known-good file is in use by another process, which holds {}; give each process a file of its own",
        path.display()
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory of the file does not exist.
    #[error("no directory for the last-known-good file {}; create it or name another", path.display())]
    MissingDirectory {
        /// The path of the file, or of its lock.
        path: PathBuf,
    },
    /// The user of this process has no permission.
    #[error(
        "no permission for the last-known-good file {}; it has to be readable and writable, and so does its directory",
        path.display()
    )]
    Denied {
        /// The path of the file, or of its lock.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path leads to something else, such as a directory.
    #[error("{} is not a regular file; name another last-known-good file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Any other error.
    #[error("last-known-good file {} cannot be used: {source}", path.display())]
    Io {
        /// The path of the file, or of its lock.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::MissingDirectory { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path, source },
            io::ErrorKind::IsADirectory => Self::NotAFile { path },
            _ => Self::Io { path, source },
        }
    }
}

/// Why a flush failed. The file is as valid as before; later flushes may succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The changes are not in the file. They are kept, and the next flush writes them.
    #[error("cannot append to the last-known-good file {}: {source}", path.display())]
    Append {
        /// The file.
        path: PathBuf,
        /// The error of the system, usually a full disk.
        source: io::Error,
    },
    /// The changes are in the file, but the rewrite that would shorten it failed. It is tried again
    /// when the file has doubled.
    #[error("cannot rewrite the last-known-good file {}: {source}", path.display())]
    Compact {
        /// The file.
        path: PathBuf,
        /// The error of the system, usually a full disk.
        source: io::Error,
    },
}
