//! `domains.yaml` at the top of a folder: the values that clients have, for `xds check`.
//!
//! The file contains no resources. A key with a list is always present, with one of the values. In
//! the longer form, `absent: true` means that clients may not have the key, and `other: true` that
//! they may have any other value too. A key that is not in the file can have any value, or be
//! absent.
//!
//! ```yaml
//! env: [prod, canary, test]
//! version: { values: [v1, v2], absent: true }
//! pod-name: { other: true }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use xds_core::matching::coverage::Domains;
use xds_core::matching::value_set::ValueSet;

use super::FILE_LIMIT_BYTES;
use super::contents::Location;
use super::error::{FolderError, Position, Problem};
use super::format::FileFormat;
use super::tree::{self, Entry, Node, Tree};

/// Reads `domains.yaml` at the top of a folder; empty if there is none, or if it cannot be read.
#[must_use]
pub fn domains(root: &Path) -> Domains {
    let read_file = |file: &&str| read(file, &xds_file::read(&root.join(file), FILE_LIMIT_BYTES).ok()?).ok();
    FILES.iter().find_map(read_file).unwrap_or_default().domains
}

/// The content of `domains.yaml`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct DomainsFile {
    pub(super) domains: Domains,
    /// The places of the keys.
    pub(super) locations: BTreeMap<Arc<str>, Location>,
}

/// Whether a file of the folder contains domains rather than resources.
pub(super) fn is_domains(file: &str) -> bool {
    FILES.contains(&file)
}

/// Reads the file.
///
/// # Errors
/// All errors in the file.
pub(super) fn read(file: &str, content: &[u8]) -> Result<DomainsFile, Vec<FolderError>> {
    let mut reader = DomainsReader { file, found: DomainsFile::default(), errors: Vec::new() };
    match str::from_utf8(content) {
        Ok(text) => reader.text(text),
        Err(error) => {
            let valid = content.get(..error.valid_up_to()).unwrap_or_default();
            reader.error(Some(Position::after(valid)), "", Problem::NotUtf8);
        }
    }
    if reader.errors.is_empty() { Ok(reader.found) } else { Err(reader.errors) }
}

struct DomainsReader<'a> {
    file: &'a str,
    found: DomainsFile,
    errors: Vec<FolderError>,
}

impl DomainsReader<'_> {
    fn text(&mut self, text: &str) {
        if text.trim_ascii().is_empty() {
            return self.error(None, "", Problem::NotDomains);
        }
        let is_json = FileFormat::of(self.file) == Some(FileFormat::Json);
        let documents = if is_json { vec![tree::json(text)] } else { tree::yaml(text) };
        for (number, document) in documents.into_iter().enumerate() {
            match document {
                Err(error) => self.error(error.at, "", error.problem),
                Ok(node) if number > 0 => self.error(Some(node.at), "", Problem::NotDomains),
                Ok(node) => self.document(&node),
            }
        }
    }

    fn document(&mut self, node: &Node) {
        let Some(entries) = node.entries() else {
            return self.error(Some(node.at), "", Problem::NotDomains);
        };
        // A folder may have a file of this name with resources, from before the name was reserved.
        if entries.iter().any(|entry| entry.key == "@type") {
            return self.error(Some(node.at), "", Problem::ResourceInDomains);
        }
        let mut seen = BTreeSet::new();
        for entry in entries {
            if !seen.insert(&entry.key) {
                self.error(Some(entry.at), &entry.key, Problem::GivenTwice);
                continue;
            }
            if let Some(set) = self.domain(entry) {
                let key: Arc<str> = entry.key.as_str().into();
                let location = Location { file: self.file.into(), line: entry.at.line };
                self.found.locations.insert(Arc::clone(&key), location);
                self.found.domains.insert(key, set);
            }
        }
    }

    /// The values that a key can have; `None` after an error.
    fn domain(&mut self, entry: &Entry) -> Option<ValueSet<Arc<str>>> {
        let (key, node) = (&*entry.key, &entry.value);
        let (mut values, mut absent, mut other) = (Vec::new(), false, false);
        match &node.tree {
            Tree::List(items) => values = self.values(key, items)?,
            Tree::Map(parts) => {
                let mut seen = BTreeSet::new();
                for part in parts {
                    let field = format!("{key}.{}", part.key);
                    if !seen.insert(&part.key) {
                        self.error(Some(part.at), &field, Problem::GivenTwice);
                        return None;
                    }
                    match part.key.as_str() {
                        "values" => match &part.value.tree {
                            Tree::List(items) => values = self.values(&field, items)?,
                            _ => return self.wrong(&part.value, &field, "a list of strings"),
                        },
                        "absent" => absent = self.flag(&field, &part.value)?,
                        "other" => other = self.flag(&field, &part.value)?,
                        _ => {
                            let problem = Problem::UnknownDomainField { field: part.key.clone() };
                            self.error(Some(part.at), key, problem);
                            return None;
                        }
                    }
                }
            }
            _ => return self.wrong(node, key, "a list of strings"),
        }
        if values.is_empty() && !absent && !other {
            self.error(Some(node.at), key, Problem::NoValues);
            return None;
        }
        // Any other value includes the listed ones, so with `other: true` the list only informs the
        // reader.
        let set = if other { ValueSet::present() } else { ValueSet::of(values, false, false) };
        Some(if absent { set.or(ValueSet::present().complement()) } else { set })
    }

    fn values(&mut self, field: &str, items: &[Node]) -> Option<Vec<Arc<str>>> {
        let mut values = Vec::<Arc<str>>::new();
        let mut seen = BTreeSet::new();
        let errors_before = self.errors.len();
        for (number, item) in items.iter().enumerate() {
            let field = format!("{field}[{number}]");
            match &item.tree {
                Tree::Text(text) if !seen.insert(text) => {
                    self.error(Some(item.at), &field, Problem::RepeatedValue { value: text.clone() });
                }
                Tree::Text(text) => values.push(text.as_str().into()),
                Tree::Null => {
                    _ = self.wrong::<()>(
                        item,
                        &field,
                        "a string (`absent: true` says that a key may be absent)",
                    );
                }
                // A parameter is a string: as YAML numbers, the two values 1.10 and 1.1 would be
                // equal.
                _ => _ = self.wrong::<()>(item, &field, "a string in quotes"),
            }
        }
        (self.errors.len() == errors_before).then_some(values)
    }

    fn flag(&mut self, field: &str, node: &Node) -> Option<bool> {
        if let Tree::Bool(value) = node.tree { Some(value) } else { self.wrong(node, field, "true or false") }
    }

    fn wrong<T>(&mut self, node: &Node, field: &str, expected: &'static str) -> Option<T> {
        self.error(Some(node.at), field, Problem::WrongValue { expected, found: node.describe() });
        None
    }

    fn error(&mut self, at: Option<Position>, field: &str, problem: Problem) {
        self.errors.push(FolderError { at, field: field.into(), ..FolderError::new(self.file, problem) });
    }
}

/// The reserved names at the top of a folder. A folder may have one of these files.
pub(super) const FILES: [&str; 3] = ["domains.json", "domains.yaml", "domains.yml"];

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(text: &str) -> Domains {
        read("domains.yaml", text.as_bytes()).unwrap().domains
    }

    fn errors(file: &str, text: &str) -> Vec<String> {
        read(file, text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn set(values: &[&str], inverted: bool, absent: bool) -> ValueSet<Arc<str>> {
        ValueSet::of(values.iter().map(|value| Arc::from(*value)).collect(), inverted, absent)
    }

    #[test]
    fn t18_a_key_has_the_values_listed_and_is_absent_or_different_only_when_said() {
        let read = domains(
            "env: [prod, \"\", 'true']\nversion: {values: [v1], absent: true}\npod: {other: true}\n\
             zone: {other: true, absent: true}\nold: {absent: true}\n\"\": [x]\n",
        );
        let expected = [
            ("", set(&["x"], false, false)),
            ("env", set(&["prod", "", "true"], false, false)),
            ("old", set(&[], false, true)),
            ("pod", set(&[], true, false)),
            ("version", set(&["v1"], false, true)),
            ("zone", set(&[], true, true)),
        ];
        assert_eq!(read, Domains::from(expected.map(|(key, set)| (key.into(), set))));
        assert_eq!(domains("{}"), Domains::new());
    }

    #[test]
    fn mistakes_are_told_with_their_places() {
        let text = "env: [prod, 1, test, prod, null]\nversion: []\nzone: b\na: {absent: yes, values: x}\n\
                    b: {valeus: [x]}\nc: {absent: false}\n";
        assert_eq!(
            errors("domains.yaml", text),
            [
                "domains.yaml:1:13: env[1]: expected a string in quotes, found the number 1",
                "domains.yaml:1:22: env[3]: \"prod\" is listed already",
                "domains.yaml:1:28: env[4]: expected a string (`absent: true` says that a key may be absent), found nothing",
                "domains.yaml:2:10: version: no value: list the values of clients, or write `absent: true` or `other: true`",
                "domains.yaml:3:7: zone: expected a list of strings, found the string \"b\"",
                "domains.yaml:4:13: a.absent: expected true or false, found the string \"yes\"",
                "domains.yaml:5:5: b: no field `valeus`; the fields are `values`, `absent` and `other`",
                "domains.yaml:6:4: c: no value: list the values of clients, or write `absent: true` or `other: true`",
            ]
        );
    }

    #[test]
    fn what_is_no_map_of_keys_is_refused() {
        let expected = "expected a map from keys to their values, such as `env: [prod, test]`";
        assert_eq!(errors("domains.yaml", " \n"), [format!("domains.yaml: {expected}")]);
        assert_eq!(errors("domains.yml", "- env"), [format!("domains.yml:1:1: {expected}")]);
        assert_eq!(
            errors("domains.yaml", "env: [a]\n---\nversion: [b]\n"),
            [format!("domains.yaml:3:1: {expected}")]
        );
        let json = errors("domains.json", r#"{"env": ["a"], "env": ["b"]}"#);
        assert_eq!(json, ["domains.json:1:16: env: given twice"]);
        let resource = errors("domains.yaml", "'@type': type.googleapis.com/x\nname: a\n");
        assert!(resource[0].contains("put resources into another file"), "{resource:?}");
        assert!(errors("domains.yaml", "env: [a")[0].starts_with("domains.yaml:"));
        assert_eq!(read("domains.yaml", b"\xff").unwrap_err()[0].problem, Problem::NotUtf8);
    }
}
