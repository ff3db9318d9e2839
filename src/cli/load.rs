//! Loading a folder with a progress bar, and saying what was loaded.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use xds::Cache;
use xds::folder::{Folder, Loaded, Progress};

use super::{Failure, Source};

/// Loads the folder into the cache. On a terminal, a load that takes a while shows how far it is.
pub(super) fn load(source: &Source, folder: &mut Folder, cache: &Cache) -> Result<Loaded, Failure> {
    let started_at = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let show = |Progress { files_read, files }: Progress| {
        if bar.is_none() && started_at.elapsed() > LONG {
            // Draws on standard error, and only where that is a terminal.
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} files, {eta} left");
            bar = style.ok().map(|style| ProgressBar::new(files as u64).with_style(style));
        }
        if let Some(bar) = &bar {
            bar.set_position(files_read as u64);
        }
    };
    let loaded = folder.load(cache, show);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    loaded.map_err(|errors| Failure::Folder { folder: source.folder.clone(), errors })
}

/// What was loaded: a line in total and one per type.
pub(super) fn summary(source: &Source, loaded: &Loaded, cache: &Cache) -> Vec<String> {
    let Loaded { files, resources, .. } = loaded;
    let mut lines = vec![format!("{}: {resources} resources in {files} files", source.folder.display())];
    let snapshot = cache.snapshot();
    for (type_url, names) in snapshot.counts().filter(|(_, names)| *names > 0) {
        let resources = snapshot.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
        let variants: usize = resources.map(|(_, variants)| variants.len()).sum();
        let names_of = if variants > names { format!(" of {names} names") } else { String::new() };
        lines.push(format!("{variants:>9} {}{names_of}", type_url.message_name()));
    }
    lines
}

/// Loads that are shorter show no bar.
const LONG: Duration = Duration::from_millis(500);
