//! The licences of the packages in the binary, which ask for their texts to go with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::DistError;
use super::packages::Packages;

/// Each text once, below the names of the packages that have it.
pub(super) fn render(packages: &Packages) -> Result<String, DistError> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut listed = String::new();
    for package in packages.all().into_iter().filter(|package| !packages.is_ours(package)) {
        let title = format!("{} {}", package.name, package.version);
        let license = package.license.as_deref().unwrap_or("in its files");
        let found =
            texts_of(package.manifest_path.parent().map(AsRef::as_ref), package.license_file.as_deref())?;
        let without = if found.is_empty() { ", without a text of its own" } else { "" };
        _ = writeln!(listed, "{title}: {license}{without}");
        for text in found {
            texts.entry(text).or_default().push(title.clone());
        }
    }
    let mut all =
        format!("The packages in the program xds that other people wrote, and their licences.\n\n{listed}");
    for (text, titles) in texts {
        _ = write!(all, "\n{}\n{}\n\n{}\n", "=".repeat(80), titles.join(", "), text.trim_end());
    }
    Ok(all)
}

/// The texts at the top of a package.
fn texts_of(
    folder: Option<&Path>,
    named: Option<&cargo_metadata::camino::Utf8Path>,
) -> Result<Vec<String>, DistError> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(DistError::file(folder))? {
        let entry = entry.map_err(DistError::file(folder))?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let is_text = NAMES.iter().any(|start| name.starts_with(start)) && entry.path().is_file();
        if is_text || named.is_some_and(|named| entry.path() == folder.join(named.as_str())) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    // Some are not UTF-8, in the name of an author.
    let read = |path: &Path| fs::read(path).map_err(DistError::file(path));
    paths.iter().map(|path| Ok(String::from_utf8_lossy(&read(path)?).into_owned())).collect()
}

/// What the names of such files begin with.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
