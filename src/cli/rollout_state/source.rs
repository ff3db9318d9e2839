//! The file `source`: whose state the folder has. The state of another source is not served.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::{RolloutState, RolloutStateError};

/// What brings the changes that are rolled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum StateSource {
    /// A folder. Links are not resolved: where one leads may change with each update.
    Folder(PathBuf),
    /// A store, wherever it is.
    Store { cluster: String, node: String },
    /// A store in memory: it is another one after each start.
    Memory,
}

impl fmt::Display for StateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "folder {}", path.display()),
            Self::Store { cluster, node } => write!(f, "store {cluster} {node}"),
            Self::Memory => f.write_str("store in memory"),
        }
    }
}

impl RolloutState {
    /// Notes that the state is that of this source, before any of it is read.
    ///
    /// # Errors
    /// It is the state of another source.
    pub(in crate::cli) fn take_source(&self, source: &StateSource) -> Result<(), RolloutStateError> {
        if *source == StateSource::Memory {
            tracing::warn!(
                "--rollout-state keeps nothing for --store memory:, which is another store after each start"
            );
            return ["stable", "refused", "requested", "source"]
                .into_iter()
                .try_for_each(|name| self.remove(name));
        }
        let (path, bytes) = self.read("source")?;
        let text = source.to_string();
        let before = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        match before {
            Some(before) if before == text => return Ok(()),
            Some(before) if !is_other_node(&before, source) => {
                return Err(RolloutStateError::OtherSource { path, before, now: text });
            }
            // The revisions of a restored store come again: a request may have the number of one that is done.
            Some(_) => self.remove("requested")?,
            None => {}
        }
        self.replace("source", format!("{text}\n").as_bytes(), true)
    }

    fn remove(&self, name: &str) -> Result<(), RolloutStateError> {
        let path = self.0.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RolloutStateError::File { path, error })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the text is of another node of the same store, for example before a restore (SR29).
fn is_other_node(text: &str, source: &StateSource) -> bool {
    let StateSource::Store { cluster, .. } = source else { return false };
    let words: Vec<_> = text.split(' ').collect();
    matches!(words[..], ["store", before, _] if before == cluster)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_state_of_another_source_is_refused() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-source-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        let store =
            |cluster: &str, node: &str| StateSource::Store { cluster: cluster.into(), node: node.into() };
        let of_folder = |path: &str| StateSource::Folder(Path::new(path).to_owned());
        let write = |name: &str| fs::write(folder.join(name), "5\n").unwrap();
        write("requested");
        // A folder of an earlier version has no such file.
        state.take_source(&of_folder("/etc/a b")).unwrap();
        state.take_source(&of_folder("/etc/a b")).unwrap();
        assert_eq!(state.requested(), 5);
        for other in [of_folder("/etc/a"), store("c", "n")] {
            let error = state.take_source(&other).unwrap_err().to_string();
            assert!(error.contains("of folder /etc/a b, and this server serves"), "{error}");
        }
        fs::remove_file(folder.join("source")).unwrap();
        state.take_source(&store("c", "n")).unwrap();
        assert_eq!(state.requested(), 5);
        state.take_source(&store("d", "n")).unwrap_err();
        // SR29: a store that was restored.
        state.take_source(&store("c", "m")).unwrap();
        assert_eq!(state.requested(), 0);
        write("stable");
        state.take_source(&StateSource::Memory).unwrap();
        assert_eq!(state.stable().unwrap().map(drop), None);
        state.take_source(&of_folder("/etc/a")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
