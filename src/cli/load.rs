//! Loads a folder with a progress bar, and summarizes it.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use xds::folder::{Contents, Folder, Loaded, Progress};
use xds::{Cache, TypeUrl};

use super::progress::LONG;
use super::{Failure, FolderOptions, counted};

/// Loads the folder into the cache.
pub(super) fn load(source: &FolderOptions, folder: &mut Folder, cache: &Cache) -> Result<Loaded, Failure> {
    let loaded = with_bar(|progress| folder.load(cache, progress));
    loaded.map_err(|errors| Failure::Folder { folder: source.folder.clone(), errors })
}

/// Reads the folder without a cache.
pub(super) fn contents(folder: &Folder) -> Contents {
    with_bar(|progress| folder.contents(progress))
}

/// Shows a progress bar on a terminal if reading takes long.
fn with_bar<T>(read: impl FnOnce(&mut dyn FnMut(Progress)) -> T) -> T {
    let started_at = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let mut show = |Progress { files_read, files }: Progress| {
        if bar.is_none() && started_at.elapsed() > LONG {
            // The bar draws on standard error, and only if that is a terminal.
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} files, {eta} left");
            bar = style.ok().map(|style| ProgressBar::new(files as u64).with_style(style));
        }
        if let Some(bar) = &bar {
            bar.set_position(files_read as u64);
        }
    };
    let done = read(&mut show);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    done
}

/// The summary of a load: a line with the total and one line per type.
pub(super) fn summary(source: &FolderOptions, loaded: &Loaded, cache: &Cache) -> Vec<String> {
    let snapshot = cache.snapshot();
    let types = snapshot.counts().map(|(type_url, names)| {
        let resources = snapshot.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
        (type_url, resources.map(|(_, variants)| variants.len()).sum(), names)
    });
    lines(source, loaded.files, loaded.resources, types)
}

/// The same summary for a folder that was read without a cache.
pub(super) fn summary_of(source: &FolderOptions, contents: &Contents) -> Vec<String> {
    let types = contents.types().map(|type_url| {
        let (variants, names) = contents.count(type_url);
        (type_url, variants, names)
    });
    lines(source, contents.files(), contents.resources(), types)
}

fn lines<'a>(
    source: &FolderOptions,
    files: usize,
    resources: usize,
    types: impl Iterator<Item = (&'a TypeUrl, usize, usize)>,
) -> Vec<String> {
    let (resources, files) = (counted(resources, "resource"), counted(files, "file"));
    let mut lines = vec![format!("{}: {resources} in {files}", source.folder.display())];
    for (type_url, variants, names) in types.filter(|(_, _, names)| *names > 0) {
        let names_of = if variants > names { format!(" of {names} names") } else { String::new() };
        lines.push(format!("{variants:>9} {}{names_of}", type_url.message_name()));
    }
    lines
}
