//! What takes the content of a folder before the cache does.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::{Contents, FolderError};

/// Takes or refuses each new content of a folder: see [`Folder::with_gate`](super::Folder::with_gate).
pub(super) struct Gate(Mutex<Box<Take>>);

type Take = dyn FnMut(&Contents, &str) -> Result<(), Vec<FolderError>> + Send;

impl Gate {
    pub(super) fn new(
        take: impl FnMut(&Contents, &str) -> Result<(), Vec<FolderError>> + Send + 'static,
    ) -> Self {
        Self(Mutex::new(Box::new(take)))
    }

    pub(super) fn take(&self, contents: &Contents, label: &str) -> Result<(), Vec<FolderError>> {
        let mut take = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        take(contents, label)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}
