//! Schema versions: what contents are labelled with, and what may be written and read (SV).

pub use read::{ReadEffect, judge_read};
pub use refusal::{SchemaRefusal, SchemaRule};
pub use version::{MarkedVersion, SchemaVersion, VersionError};
pub use write::{Force, StoredForms, WriteEffect, judge_write};

mod read;
mod refusal;
mod version;
mod write;
