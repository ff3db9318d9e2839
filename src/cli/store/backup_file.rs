//! Files with backups of a store.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use xds_store::backup::{BackupError, BackupHeader, BackupReader, ReadError};
use xds_store::restore::RestoreError;

use super::place::{PlaceError, causes};
use crate::cli::counted;
use crate::cli::progress::{LONG, Spinner};

/// A backup while it is written: a file of another name beside its own. The file gets its name when
/// the backup is whole and on the disk; until then another file of that name stays.
#[derive(Debug)]
pub(in crate::cli) struct NewBackup {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    is_finished: bool,
}

/// Why there is no backup, or why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum BackupFileError {
    #[error("{} cannot be written: {error}", file.display())]
    Unwritable { file: PathBuf, error: io::Error },
    #[error("{} cannot be read: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("{}: {}", file.display(), causes(error))]
    Unusable { file: PathBuf, error: ReadError },
    #[error("there is no backup: {}", causes(.0))]
    Store(BackupError),
    #[error("there is no backup: the written file is not whole: {}", causes(.0))]
    NotWhole(ReadError),
    #[error("the backup is not restored: {}", causes(.0))]
    NotRestored(RestoreError),
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl NewBackup {
    /// Creates the unfinished file, readable for its user alone: the store may have secrets.
    pub(in crate::cli) fn create(path: &Path) -> Result<Self, BackupFileError> {
        Self::create_as(path, "")
    }

    /// The same, with a mark in the name of the unfinished file: two programs may write a backup of
    /// the same name at the same time.
    pub(in crate::cli) fn create_as(path: &Path, mark: &str) -> Result<Self, BackupFileError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(mark);
        name.push(UNFINISHED);
        let unfinished = path.with_file_name(name);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&unfinished);
        let file = file.map_err(|error| BackupFileError::Unwritable { file: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), unfinished, file, is_finished: false })
    }

    pub(in crate::cli) fn write(&mut self, part: &[u8]) -> Result<(), BackupFileError> {
        self.file.write_all(part).map_err(|error| self.unwritable(error))
    }

    /// Verifies what was written by reading it, and gives the file its name.
    pub(in crate::cli) fn finish(mut self) -> Result<BackupHeader, BackupFileError> {
        self.file.sync_all().map_err(|error| self.unwritable(error))?;
        let written = File::open(&self.unfinished).map_err(|error| self.unwritable(error))?;
        let header = verified(written).map_err(BackupFileError::NotWhole)?;
        fs::rename(&self.unfinished, &self.path).map_err(|error| self.unwritable(error))?;
        self.is_finished = true;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced =
            File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| self.unwritable(error))?;
        Ok(header)
    }

    fn unwritable(&self, error: io::Error) -> BackupFileError {
        BackupFileError::Unwritable { file: self.path.clone(), error }
    }
}

impl Drop for NewBackup {
    fn drop(&mut self) {
        if !self.is_finished {
            _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// The header of a backup that is whole.
fn verified(file: File) -> Result<BackupHeader, ReadError> {
    let mut reader = BackupReader::new(BufReader::new(file))?;
    let header = reader.header().clone();
    reader.try_for_each(|entry| entry.map(drop))?;
    Ok(header)
}

impl BackupFileError {
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::Unwritable { .. } | Self::Unreadable { .. } | Self::Store(_) | Self::NotWhole(_) => 1,
            Self::Unusable { error: ReadError::Io(_), .. } => 1,
            Self::Unusable { .. } => 2,
            Self::NotRestored(RestoreError::Engine(_) | RestoreError::Backup(ReadError::Io(_))) => 1,
            Self::NotRestored(_) => 2,
            Self::Place(error) => error.exit_code(),
        }
    }
}

/// Shows how far a long step is: what is done, how fast, and the time left.
#[derive(Debug)]
pub(super) struct Pace {
    spinner: Spinner,
    is_shown: bool,
    what: &'static str,
    begun: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { spinner: Spinner::hidden(), is_shown: false, what: "", begun: Instant::now() }
    }

    /// Reports a step. Its time begins with the first report.
    pub(super) fn report(&mut self, what: &'static str, done: u64, all: u64) {
        if self.what != what {
            (self.what, self.begun) = (what, Instant::now());
        }
        let elapsed = self.begun.elapsed();
        if elapsed >= LONG && !self.is_shown {
            self.spinner.show();
            self.is_shown = true;
        }
        if self.is_shown {
            self.spinner.say(format!("{what}: {}", pace(done, all, elapsed)));
        }
    }
}

fn pace(done: u64, all: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let mut text = format!("{done} of {}, {rate:.0}/s", counted(all as usize, "record"));
    if done > 0 && done < all {
        text += &format!(", {:.0} s left", (all - done) as f64 / rate);
    }
    text
}

/// The end of the name of an unfinished backup.
pub(in crate::cli) const UNFINISHED: &str = ".unfinished";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_has_rate_and_time_left() {
        assert_eq!(pace(200, 1000, Duration::from_secs(2)), "200 of 1000 records, 100/s, 8 s left");
        assert_eq!(pace(0, 1, Duration::ZERO), "0 of 1 record, 0/s");
        assert_eq!(pace(5, 5, Duration::from_secs(1)), "5 of 5 records, 5/s");
    }
}
