//! Links of a page to files of this repository, and to headings in them.

use std::fs;
use std::path::Path;

/// The broken links of a page.
pub(super) fn broken(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let of_line = |(at, line)| links(line).into_iter().map(move |link| (at, link));
    let all = prose(&text).flat_map(of_line).filter(|(_, link)| !link.contains("://"));
    let broken = all.filter(|(_, link)| !leads_somewhere(page, link));
    broken.map(|(at, link)| format!("{}, line {at}: ({link}) leads nowhere", page.display())).collect()
}

/// Whether the file exists, and has the heading.
fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let folder = page.parent().unwrap();
    let path = if file.is_empty() { page.to_owned() } else { folder.join(file) };
    let has = |heading: &str| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        prose(&text).any(|(_, line)| line.starts_with('#') && anchor(line) == heading)
    };
    path.exists() && heading.is_none_or(has)
}

/// The lines of a page that are not code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).collect()
}

/// The anchor of a heading: lower case, hyphens for spaces, only letters and digits.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
