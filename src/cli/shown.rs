//! Shows resources to people: labels, YAML of a folder, differences.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use similar::TextDiff;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use xds::{TypeUrl, printable};

use super::type_name::short;

/// The type and name of a resource.
pub(super) fn resource_label(type_url: &TypeUrl, name: &str) -> String {
    let is_plain = !name.is_empty() && !name.contains(char::is_whitespace);
    let name = if is_plain { name.to_owned() } else { format!("{name:?}") };
    printable(&format!("{} {name}", short(type_url))).into_owned()
}

/// A unified diff; a note if nothing differs, as when another variant with the same content
/// matches.
pub(super) fn difference(before: &str, after: &str) -> String {
    let diff = unified(before, after, None);
    if diff.is_empty() { "(the content is the same)".to_owned() } else { diff }
}

/// A unified diff with the names of both sides; empty if nothing differs.
pub(super) fn unified(before: &str, after: &str, names: Option<(&str, &str)>) -> String {
    let diff = TextDiff::configure().timeout(DIFF_WITHIN).diff_lines(before, after);
    let mut diff = diff.unified_diff();
    diff.context_radius(CONTEXT_LINES);
    if let Some((before, after)) = names {
        diff.header(before, after);
    }
    diff.to_string()
}

/// The time in UTC, in the form of the log.
pub(super) fn now() -> String {
    let mut text = String::new();
    _ = SystemTime.format_time(&mut fmt::format::Writer::new(&mut text));
    text
}

/// A map with the most important keys first.
pub(super) struct YamlDocument<'a> {
    pub(super) when: Option<&'a str>,
    pub(super) fields: &'a Map<String, Value>,
}

impl Serialize for YamlDocument<'_> {
    fn serialize<S>(&self, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
    {
        let mut map = serializer.serialize_map(None)?;
        let first = ["@type", "name", "cluster_name"];
        for key in first {
            if let Some(value) = self.fields.get(key) {
                map.serialize_entry(key, value)?;
            }
            if key == "@type"
                && let Some(when) = self.when
            {
                map.serialize_entry("when", when)?;
            }
        }
        for (key, value) in self.fields.iter().filter(|(key, _)| !first.contains(&key.as_str())) {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Ends with a line break.
pub(super) fn yaml(document: &YamlDocument<'_>) -> String {
    // Do not fold long lines: a search would not find a folded type URL.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let text = serde_saphyr::to_string_with_options(document, options).expect("JSON has a form in YAML");
    format!("{}\n", text.trim_end_matches('\n'))
}

/// After this time a diff is correct, but may be longer than necessary.
const DIFF_WITHIN: Duration = Duration::from_secs(1);
const CONTEXT_LINES: usize = 3;

/// The type of a resource with its TTL, aliases and metadata around it.
pub(super) const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
