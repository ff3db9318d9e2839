//! `xds store upgrade`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use xds_store::engine::Engine as _;
use xds_store::store::Store;

use super::place::Place;
use crate::cli::{Failure, say};

/// Write a store in the newest format that this version has
///
/// A version reads the format that it writes and the one before, and keeps writing the one before
/// until this command runs, so that a downgrade stays possible. There is one format so far, so
/// every store has it, and the command changes nothing.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct Upgrade {
    /// The folder of the store; no server may have it open
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Upgrade {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let place = Place::Folder(self.folder.clone());
        let engine = Place::read(&self.folder).map_err(Failure::Place)?;
        let view = engine.view().map_err(|error| Failure::Place(place.not_loaded(error.into())))?;
        let head = Store::read_head(&*view).map_err(|error| Failure::Place(place.not_loaded(error)))?.0;
        say(format_args!("{place}: format {}, which is the newest", head.format));
        Ok(ExitCode::SUCCESS)
    }
}

const AFTER: &str = "\
Exit codes:
  0  the store has the newest format
  1  the store is in use, or cannot be read
  2  there is no store, or it has a format of a newer version; arguments";
