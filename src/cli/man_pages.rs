//! `xds man-pages`: the manual as man pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::{Cli, Failure};

/// Write the man pages of all commands into a folder
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  xds man-pages ~/.local/share/man/man1")]
pub(super) struct ManPages {
    /// The folder; it is created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManPages {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let write = || {
            fs::create_dir_all(&self.folder)?;
            clap_mangen::generate_to(Cli::command(), &self.folder)
        };
        write().map_err(|error| Failure::ManPages { folder: self.folder.clone(), error })
    }
}
