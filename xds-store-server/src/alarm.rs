//! What keeps a running store from accepting commits (ST72).

use std::fmt;

/// Why a store accepts no commits although it runs. It lasts until its cause ends; its text is one
/// line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// ST18, ST21: a write failed, or there is a defect. It lasts until the server restarts.
    ReadOnly {
        /// What happened.
        reason: String,
    },
    /// ST22: there was no room for the last write. The store tries again by itself.
    Full,
    /// The engine cannot be reached. The store tries again by itself.
    Unavailable {
        /// What the last attempt met.
        reason: String,
    },
}

impl Alarm {
    /// Its name in metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ReadOnly { .. } => "store_read_only",
            Self::Full => "store_full",
            Self::Unavailable { .. } => "store_unavailable",
        }
    }
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly { reason } => {
                write!(f, "the store accepts no commits until the server restarts: {reason}")
            }
            Self::Full => {
                f.write_str("the disk of the store is full: commits are refused until there is room")
            }
            Self::Unavailable { reason } => {
                write!(
                    f,
                    "the engine of the store cannot be reached: {reason}: commits are refused until it can"
                )
            }
        }
    }
}
