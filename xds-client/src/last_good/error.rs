//! What the file system can refuse.

use std::io;
use std::path::{Path, PathBuf};

/// Why there is no last-known-good file. A client can go on without one; its operator has to change
/// something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open, or this one a second time.
    #[error(
        "last-known-good file is in use by another process, which holds {}; give each process a file of its own",
        path.display()
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// There is no directory to put it in.
    #[error("no directory for the last-known-good file {}; create it or name another", path.display())]
    MissingDirectory {
        /// The file that was asked for, or its lock.
        path: PathBuf,
    },
    /// The user of this process may not do what it takes.
    #[error(
        "no permission for the last-known-good file {}; it has to be readable and writable, and so does its directory",
        path.display()
    )]
    Denied {
        /// The file that was asked for, or its lock.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is something else of that name, such as a directory.
    #[error("{} is not a regular file; name another last-known-good file", path.display())]
    NotAFile {
        /// What was asked for.
        path: PathBuf,
    },
    /// Anything else.
    #[error("last-known-good file {} cannot be used: {source}", path.display())]
    Io {
        /// The file that was asked for, or its lock.
        path: PathBuf,
        /// What the system says.
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

/// What a flush could not do. The file is as good as it was before; later flushes may succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The changes are not in the file. They are kept, and the next flush writes them.
    #[error("cannot append to the last-known-good file {}: {source}", path.display())]
    Append {
        /// The file.
        path: PathBuf,
        /// What the system says, above all that the disk is full.
        source: io::Error,
    },
    /// The changes are in the file, but it is longer than it has to be. It is tried again when the
    /// file has doubled.
    #[error("cannot write the last-known-good file {} anew: {source}", path.display())]
    Compact {
        /// The file.
        path: PathBuf,
        /// What the system says, above all that the disk is full.
        source: io::Error,
    },
}
