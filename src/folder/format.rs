//! The formats of files.

use std::path::Path;

/// The format of a file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    Yaml,
    Json,
    Protobuf,
}

impl FileFormat {
    /// The format of a file; `None` if a folder does not read such files.
    pub(super) fn of(file: &str) -> Option<Self> {
        match Path::new(file).extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            "pb" => Some(Self::Protobuf),
            _ => None,
        }
    }
}
