//! The label of a folder's content, such as a Git revision.

use std::io;
use std::path::PathBuf;

use xds_core::shortened;
use xds_file::Reloads;

/// What labels the content of a folder, for people: a commit, the log, metrics and the admin page
/// show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// This text.
    Text(String),
    /// The first line of this file, which is read with each load of the folder.
    File(PathBuf),
}

impl Label {
    /// The label now, shortened to [`LABEL_LIMIT_BYTES`].
    pub(super) fn read(&self, reloads: &Reloads) -> io::Result<Box<str>> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => {
                let _reading = reloads.reading(&path.to_string_lossy());
                String::from_utf8_lossy(&xds_file::read(path, FILE_LIMIT_BYTES)?).into_owned()
            }
        };
        Ok(shortened(text.lines().next().unwrap_or_default().trim(), LABEL_LIMIT_BYTES).into())
    }
}

/// The longest label. A longer one is shortened.
pub const LABEL_LIMIT_BYTES: usize = 200;

/// The largest file of a label.
const FILE_LIMIT_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_one_line_and_short() {
        let read = |text: &str| Label::Text(text.into()).read(&Reloads::default()).unwrap();
        assert_eq!(&*read(" 1a2b3c \nmore"), "1a2b3c");
        assert_eq!(read(&"x".repeat(1000)).len(), LABEL_LIMIT_BYTES);
        let missing = Label::File("/nonexistent/label".into());
        assert_eq!(missing.read(&Reloads::default()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
