//! The folder of `--rollout-state`: the stable state, what goes on, and the orders of operators.
//!
//! | file | content |
//! | --- | --- |
//! | `stable` | what all clients have: a restarted server serves it, and rolls out the difference again |
//! | `refused` | the changes that are not tried again, also after a restart; no file if there is none |
//! | `requested` | the number of the last commit with steps of its own that all clients have |
//! | `status.json` | the rollout that runs, or why there is none |
//! | `source` | the folder or the store of which this is the state; in a second line `stable`, once there is one |
//! | `lock` | locked by the server |
//! | `order` | `promote`, `promote-refused` or `abort`, and how many rollouts were promoted, refused and replaced when `xds rollout` wrote it; the server removes it |
//!
//! Only the user of the server, and root, can read the state and steer. Files are replaced as a whole, by a rename.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use prost::bytes::Bytes;
use xds::admin;
use xds_core::{RefusedChange, RolloutCounts, Snapshot, Transaction};
use xds_server::RolloutStatus;

use stored::{read_refused, read_stable, refused_bytes, stable_bytes};

mod source;
mod stored;

pub(super) use source::StateSource;

#[derive(Debug, Clone)]
pub(super) struct RolloutState {
    folder: PathBuf,
    /// The content of `source`, if the disk was full when the server started.
    owed_source: Arc<OnceLock<String>>,
}

/// Keeps other servers from the folder, as long as it is not dropped.
#[derive(Debug)]
pub(super) struct RolloutLock {
    _file: File,
}

/// An order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Promote,
    PromoteRefused,
    Abort,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::PromoteRefused => "promote-refused",
            Self::Abort => "abort",
        }
    }
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutStateError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(
        "{}: the stored stable state is damaged ({reason}), so the server cannot tell which state clients have. \
         Restore the file, or remove it and `source`: then all clients get the newest state when the server starts",
        path.display()
    )]
    Damaged { path: PathBuf, reason: &'static str },
    #[error(
        "{}: the stable state was stored here and is gone, so the server cannot tell which state clients have. Restore \
         it, or remove `source`: then all clients get the newest state when the server starts",
        path.display()
    )]
    Lost { path: PathBuf },
    #[error(
        "{}: the file is damaged ({reason}), so the server cannot tell which change was refused. \
         Restore the file, or remove it: then the refused change is tried again when the server starts",
        path.display()
    )]
    DamagedRefusal { path: PathBuf, reason: &'static str },
    #[error(
        "{}: this state is of {before}, and this server serves {now}: its clients would be sent the state of another \
         source. Give the server an empty folder as --rollout-state. If it is the same source in another place, remove \
         this file, and `requested`",
        path.display()
    )]
    OtherSource { path: PathBuf, before: String, now: String },
    #[error("{}: nothing to abort: no rollout runs", path.display())]
    NothingToAbort { path: PathBuf },
    #[error("{}: nothing to promote: no change is refused", path.display())]
    NothingRefused { path: PathBuf },
    #[error("{}: nothing to promote: no rollout runs, and no change is refused", path.display())]
    NothingToPromote { path: PathBuf },
    #[error("{}: no server has used this folder as its --rollout-state", path.display())]
    NoState { path: PathBuf },
    #[error(
        "{}: the server did not carry out the order within 5 s: the rollout may have ended; see `xds rollout status`",
        path.display()
    )]
    TooLate { path: PathBuf },
    #[error("{}: another server uses this folder; give each server its own --rollout-state", path.display())]
    Used { path: PathBuf },
    #[error("{}: no server uses this folder now, so nobody can take the order", path.display())]
    NoServer { path: PathBuf },
}

impl RolloutState {
    /// Makes the folder if there is none.
    pub(super) fn open(folder: &Path) -> Result<Self, RolloutStateError> {
        fs::create_dir_all(folder)
            .map_err(|error| RolloutStateError::File { path: folder.to_owned(), error })?;
        Ok(Self { folder: folder.to_owned(), owed_source: Arc::default() })
    }

    /// Takes the folder for one server.
    pub(super) fn lock(&self) -> Result<RolloutLock, RolloutStateError> {
        let path = self.folder.join("lock");
        let unusable = |error| RolloutStateError::File { path: path.clone(), error };
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
        let mut locked = file.try_lock();
        if let Err(TryLockError::WouldBlock) = locked {
            // `is_used` may have it for a moment.
            sleep(Duration::from_millis(100));
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {
                // An order that nobody took was for the server before.
                _ = fs::remove_file(self.folder.join("order"));
                Ok(RolloutLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(RolloutStateError::Used { path: self.folder.clone() }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Whether a server uses the folder now.
    pub(super) fn is_used(&self) -> bool {
        let lock = File::open(self.folder.join("lock"));
        lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The stored stable state, to be committed; `None` before the first one.
    pub(super) fn stable(&self) -> Result<Option<Transaction>, RolloutStateError> {
        let (path, bytes) = self.read("stable")?;
        let stable = bytes.map(read_stable).transpose();
        stable.map_err(|reason| RolloutStateError::Damaged { path, reason })
    }

    /// The changes that are refused.
    pub(super) fn refused(&self) -> Result<Vec<RefusedChange>, RolloutStateError> {
        let (path, bytes) = self.read("refused")?;
        let refused = bytes.map_or_else(|| Ok(Vec::new()), read_refused);
        refused.map_err(|reason| RolloutStateError::DamagedRefusal { path, reason })
    }

    fn read(&self, name: &str) -> Result<(PathBuf, Option<Bytes>), RolloutStateError> {
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok((path, Some(bytes.into()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((path, None)),
            Err(error) => Err(RolloutStateError::File { path, error }),
        }
    }

    pub(super) fn store_refused(&self, refused: &[RefusedChange]) -> Result<(), RolloutStateError> {
        match refused {
            [] => self.remove("refused"),
            _ => self.replace("refused", &refused_bytes(refused), true),
        }
    }

    fn remove(&self, name: &str) -> Result<(), RolloutStateError> {
        let path = self.folder.join(name);
        match fs::remove_file(&path).and_then(|()| File::open(&self.folder)?.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RolloutStateError::File { path, error })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn store_stable(&self, stable: &Snapshot) -> Result<(), RolloutStateError> {
        self.note_owed_source()?;
        self.replace("stable", &stable_bytes(stable), true)?;
        self.note_stable()?;
        match &stable.origin().rollout {
            Some(requested) => self.replace("requested", format!("{}\n", requested.number).as_bytes(), true),
            None => Ok(()),
        }
    }

    /// The number of the last request whose change is stable; 0 if none is known.
    pub(super) fn requested(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join("requested")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    pub(super) fn store_status(&self, status: &RolloutStatus) -> Result<(), RolloutStateError> {
        self.replace("status.json", format!("{:#}\n", admin::rollout_status(status)).as_bytes(), false)
    }

    pub(super) fn status(&self) -> Result<String, RolloutStateError> {
        let path = self.folder.join("status.json");
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RolloutStateError::NoState { path: self.folder.clone() },
            _ => RolloutStateError::File { path, error },
        })
    }

    /// Orders what is to become of the rollout that runs, or that was refused, when so many ended before.
    pub(super) fn store_order(&self, order: Order, ended: RolloutCounts) -> Result<(), RolloutStateError> {
        let (word, RolloutCounts { promoted, refused, replaced, .. }) = (order.word(), ended);
        let text = format!("{word} {promoted} {refused} {replaced}\n");
        self.replace_with_mode("order", text.as_bytes(), false, READABLE)
    }

    pub(super) fn remove_order(&self) {
        _ = fs::remove_file(self.folder.join("order"));
    }

    /// Whether an order was not taken yet.
    pub(super) fn has_order(&self) -> bool {
        self.folder.join("order").exists()
    }

    /// Takes the order, if there is one, with how many rollouts had ended when it was given.
    pub(super) fn take_order(&self) -> io::Result<Option<(Order, [u64; 3])>> {
        // Renamed first: an order that is written meanwhile is another one.
        let taken = self.folder.join("order.taken");
        match fs::rename(self.folder.join("order"), &taken) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => renamed?,
        }
        // A pipe or a device would be read for ever.
        let text = xds_file::read_to_string(&taken, ORDER_BYTES)?;
        let order = parse_order(&text);
        if order.is_none() {
            tracing::warn!(order = text.trim(), "this is no order of xds rollout");
        }
        Ok(order)
    }

    /// The stable state may contain secrets.
    fn replace(&self, name: &str, content: &[u8], is_durable: bool) -> Result<(), RolloutStateError> {
        self.replace_with_mode(name, content, is_durable, 0o600)
    }

    fn replace_with_mode(
        &self,
        name: &str,
        content: &[u8],
        is_durable: bool,
        mode: u32,
    ) -> Result<(), RolloutStateError> {
        let (path, next) = (self.folder.join(name), self.folder.join(format!("{name}.next")));
        let write = || {
            // One of another user, or a link, is not written to.
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&next)?;
            // Whatever the umask is, and whoever made the file.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(content)?;
            if is_durable {
                file.sync_all()?;
            }
            fs::rename(&next, &path)?;
            if is_durable { File::open(&self.folder)?.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| RolloutStateError::File { path: path.clone(), error })
    }
}

/// The server may run as another user than the operator who gives an order.
const READABLE: u32 = 0o644;

/// An order is shorter.
const ORDER_BYTES: usize = 100;

fn parse_order(text: &str) -> Option<(Order, [u64; 3])> {
    let mut words = text.split_ascii_whitespace();
    let order = match words.next()? {
        "promote" => Order::Promote,
        "promote-refused" => Order::PromoteRefused,
        "abort" => Order::Abort,
        _ => return None,
    };
    let mut number = || words.next()?.parse().ok();
    Some((order, [number()?, number()?, number()?]))
}

#[cfg(test)]
mod tests;
