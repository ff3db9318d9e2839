//! `xds check`: all mistakes of a folder, without serving it.

use clap::Args;
use xds::Cache;

use super::{Failure, Source, load};

/// Check a folder: report every mistake in it, or count its resources per type
///
/// Exit code 0 when `xds serve` would serve the folder, 2 when a file has a mistake, 1 when something cannot be read.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  xds check config && git push")]
pub(super) struct Check {
    #[command(flatten)]
    source: Source,
}

impl Check {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let cache = Cache::new();
        let loaded = load::load(&self.source, &mut self.source.open()?, &cache)?;
        for line in load::summary(&self.source, &loaded, &cache) {
            println!("{line}");
        }
        Ok(())
    }
}
