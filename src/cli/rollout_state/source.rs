//! The file `source`: of which folder or store the state is, and whether there is a stable state. The state of another
//! source is not served, and a start without the stable state that there was is not a first start.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::{RolloutState, RolloutStateError};

/// What brings the changes that are rolled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum StateSource {
    /// A folder, with its absolute path. Where a link leads may change with each update.
    Folder(PathBuf),
    /// A store, wherever it is.
    Store { cluster: String, node: String },
    /// A store in memory, into which a folder may be applied: it is another one after each start.
    Memory { applied: Option<PathBuf> },
}

impl fmt::Display for StateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) | Self::Memory { applied: Some(path) } => {
                write!(f, "folder {}", path.display())
            }
            Self::Store { cluster, node } => write!(f, "store {cluster} {node}"),
            Self::Memory { applied: None } => f.write_str("store in memory"),
        }
    }
}

impl RolloutState {
    /// Notes that the state is that of this source, before any of it is read.
    ///
    /// # Errors
    /// It is the state of another source.
    pub(in crate::cli) fn take_source(&self, source: &StateSource) -> Result<(), RolloutStateError> {
        let (path, noted) = self.noted()?;
        let (text, had_stable) = (source.to_string(), noted.as_ref().is_some_and(|noted| noted.has_stable));
        let before = noted.map(|noted| noted.source);
        let (has_stable, is_same) = (self.folder.join("stable").exists(), before.as_ref() == Some(&text));
        if had_stable && !has_stable && *source != (StateSource::Memory { applied: None }) {
            return Err(RolloutStateError::Lost { path: self.folder.join("stable") });
        }
        if let Some(before) = before.filter(|before| has_stable && !is_same && !is_like(before, source)) {
            return Err(RolloutStateError::OtherSource { path, before, now: text });
        }
        match source {
            StateSource::Folder(_) => {}
            StateSource::Store { .. } if is_same => {}
            // The numbers of commits come again: a request may have the number of one that is done.
            StateSource::Store { .. } | StateSource::Memory { applied: Some(_) } => {
                self.remove("requested")?;
            }
            StateSource::Memory { applied: None } if has_stable && !is_same => {
                return Err(RolloutStateError::OtherSource {
                    path,
                    before: "another source".to_owned(),
                    now: text,
                });
            }
            StateSource::Memory { applied: None } => {
                tracing::warn!(
                    "--rollout-state keeps nothing for --store memory:, which is another store after each start"
                );
                ["stable", "refused", "requested"].into_iter().try_for_each(|name| self.remove(name))?;
            }
        }
        let has_stable = self.folder.join("stable").exists();
        if is_same && had_stable == has_stable {
            return Ok(());
        }
        let noted = self.note(&Noted { source: text, has_stable });
        // The first start of this version may meet a full disk. The next stable state is noted, or else is a trouble.
        match noted {
            Err(error) if is_same => {
                tracing::warn!(%error, "cannot note that there is a stable state; trying again with the next one");
                Ok(())
            }
            // Without a stable state there is none of another source. The file comes before the first one.
            Err(error) if !has_stable && is_full(&error) => {
                tracing::warn!(%error, "cannot note the source of the state; trying again with the first stable state");
                _ = self.owed_source.set(source.to_string());
                Ok(())
            }
            noted => noted,
        }
    }

    pub(super) fn note_owed_source(&self) -> Result<(), RolloutStateError> {
        match (self.owed_source.get(), self.noted()?.1) {
            (Some(owed), noted) if noted.as_ref().is_none_or(|noted| noted.source != *owed) => {
                self.note(&Noted { source: owed.clone(), has_stable: false })
            }
            _ => Ok(()),
        }
    }

    /// Notes that there is a stable state, which is durable already: a server that is killed in between finds it.
    pub(super) fn note_stable(&self) -> Result<(), RolloutStateError> {
        match self.noted()?.1 {
            Some(noted) if !noted.has_stable => self.note(&Noted { has_stable: true, ..noted }),
            _ => Ok(()),
        }
    }

    fn noted(&self) -> Result<(PathBuf, Option<Noted>), RolloutStateError> {
        let (path, bytes) = self.read("source")?;
        let noted = bytes.map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end_matches('\n');
            let source = text.strip_suffix(HAS_STABLE);
            Noted { source: source.unwrap_or(text).to_owned(), has_stable: source.is_some() }
        });
        Ok((path, noted))
    }

    fn note(&self, noted: &Noted) -> Result<(), RolloutStateError> {
        let has_stable = if noted.has_stable { HAS_STABLE } else { "" };
        self.replace("source", format!("{}{has_stable}\n", noted.source).as_bytes(), true)
    }
}

/// What the file says.
struct Noted {
    source: String,
    has_stable: bool,
}

fn is_full(error: &RolloutStateError) -> bool {
    matches!(error, RolloutStateError::File { error, .. } if xds_file::is_full(error))
}

/// The second line, once there is a stable state.
const HAS_STABLE: &str = "\nstable";

/// Whether the text is of another node of the same store, for example before a restore (SR29), or of another path to
/// the same folder.
fn is_like(text: &str, source: &StateSource) -> bool {
    match source {
        StateSource::Store { cluster, .. } => {
            let words: Vec<_> = text.split(' ').collect();
            matches!(words[..], ["store", before, _] if before == cluster)
        }
        StateSource::Folder(path) | StateSource::Memory { applied: Some(path) } => {
            let before = text.strip_prefix("folder ").and_then(|before| fs::canonicalize(before).ok());
            before.is_some_and(|before| fs::canonicalize(path).is_ok_and(|now| now == before))
        }
        StateSource::Memory { applied: None } => false,
    }
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
        let memory = |applied: Option<&str>| StateSource::Memory { applied: applied.map(Into::into) };
        let write = |name: &str| fs::write(folder.join(name), "5\n").unwrap();
        // Nothing is stable yet: a mistake in the command does no harm.
        state.take_source(&of_folder("/etc/typo")).unwrap();
        state.take_source(&of_folder("/etc/a b ")).unwrap();
        write("stable");
        write("requested");
        state.take_source(&of_folder("/etc/a b ")).unwrap();
        assert_eq!(state.requested(), 5);
        for other in [of_folder("/etc/a"), store("c", "n"), memory(None)] {
            let error = state.take_source(&other).unwrap_err().to_string();
            assert!(error.contains("of folder /etc/a b , and this server serves"), "{error}");
        }
        state.take_source(&memory(Some("/etc/a b "))).unwrap();
        assert_eq!(state.requested(), 0);
        fs::remove_file(folder.join("source")).unwrap();
        state.take_source(&memory(None)).unwrap_err();
        // A folder of an earlier version has no such file.
        state.take_source(&store("c", "n")).unwrap();
        state.take_source(&store("d", "n")).unwrap_err();
        write("requested");
        state.take_source(&store("c", "n")).unwrap();
        assert_eq!(state.requested(), 5);
        // SR29: a store that was restored.
        state.take_source(&store("c", "m")).unwrap();
        assert_eq!(state.requested(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_is_the_same_by_any_path_and_a_store_in_memory_keeps_nothing() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-paths-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        let path = |path: &str| StateSource::Folder(folder.join(path));
        state.take_source(&path("")).unwrap();
        fs::write(folder.join("stable"), "5").unwrap();
        state.take_source(&path(&format!("../{}", folder.file_name().unwrap().display()))).unwrap();
        state.take_source(&path("..")).unwrap_err();
        fs::remove_file(folder.join("stable")).unwrap();
        state.take_source(&path("")).unwrap_err();
        let memory = StateSource::Memory { applied: None };
        state.take_source(&memory).unwrap();
        fs::write(folder.join("stable"), "5").unwrap();
        state.take_source(&memory).unwrap();
        assert!(!folder.join("stable").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A server that is killed at any step of its first start starts again. One whose stable state is gone does not:
    /// all clients would get what only some of them tried.
    #[test]
    fn only_a_stable_state_that_was_there_and_is_gone_is_damage() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-lost-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        let sources =
            [StateSource::Folder("/a".into()), StateSource::Store { cluster: "c".into(), node: "n".into() }];
        for source in &sources {
            let starts = || state.take_source(source).unwrap();
            starts();
            starts();
            // Before the first commit.
            fs::write(folder.join("refused"), "").unwrap();
            fs::write(folder.join("requested"), "5\n").unwrap();
            starts();
            let stable = xds_core::Cache::new();
            state.replace("stable", b"of a server that was killed before it noted that", true).unwrap();
            starts();
            state.store_stable(&stable.snapshot()).unwrap();
            starts();
            for file in ["refused", "requested"] {
                _ = fs::remove_file(folder.join(file));
                starts();
            }
            fs::remove_file(folder.join("stable")).unwrap();
            for source in &sources {
                let error = state.take_source(source).unwrap_err().to_string();
                assert!(error.contains("stable: ") && error.contains("Restore it"), "{error}");
            }
            assert!(!folder.join("stable").exists(), "it does not start again by itself");
            fs::remove_file(folder.join("source")).unwrap();
            starts();
            fs::remove_dir_all(&folder).unwrap();
            fs::create_dir(&folder).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
