//! Writes events: as text for people, as JSON lines, or as YAML documents for a folder.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};

use bytes::Bytes;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use xds::client::{Raw, Resource, ResourceFailure};
use xds::folder::Descriptors;
use xds::{TypeUrl, printable, printable_lines};

use super::Differences;
use crate::cli::check::when;
use crate::cli::shown::{WRAPPER, YamlDocument, difference, now, resource_label, yaml};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A line per event, and under it the resource as YAML
    Text,
    /// A JSON object per line and event
    Json,
    /// YAML documents with `@type` and `when`, as `xds serve` reads them
    Yaml,
}

/// An event of one name, in the form to show.
#[derive(Debug)]
pub(super) enum ShownEvent<'a> {
    Changed(&'a Resource<Raw>),
    Absent(&'a ResourceFailure),
    Ambient(Option<&'a ResourceFailure>),
    /// All members of a glob or wildcard were sent.
    Complete,
}

/// Writes events of one type to standard output.
#[derive(Debug)]
pub(super) struct EventWriter {
    pub(super) format: OutputFormat,
    /// Whether each event has the time.
    pub(super) shows_times: bool,
    pub(super) differences: Differences,
    pub(super) descriptors: Descriptors,
    pub(super) type_url: TypeUrl,
    /// Fields that a warning has named already.
    pub(super) left_out: BTreeSet<String>,
}

impl EventWriter {
    /// Writes one event. `before` is the last version of the resource, if there is one.
    ///
    /// # Errors
    /// Writing to standard output fails.
    pub(super) fn event(
        &mut self,
        name: &str,
        event: &ShownEvent<'_>,
        before: Option<&Resource<Raw>>,
    ) -> io::Result<()> {
        let at = self.shows_times.then(now);
        let text = match (self.format, at) {
            (OutputFormat::Text, None) => self.text(name, event, before),
            (OutputFormat::Text, Some(at)) => format!("{at} {}", self.text(name, event, before)),
            (OutputFormat::Json, at) => {
                let mut object = self.object(name, event);
                if let Some(at) = at {
                    object["at"] = at.into();
                }
                format!("{object}\n")
            }
            (OutputFormat::Yaml, None) => self.yaml(name, event),
            // A comment, so that the output stays a folder's file.
            (OutputFormat::Yaml, Some(at)) => format!("# {at}\n{}", self.yaml(name, event)),
        };
        let text = if self.format == OutputFormat::Yaml { text.into() } else { printable_lines(&text) };
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes())?;
        output.flush()
    }

    /// The type and name, for people.
    pub(super) fn label(&self, name: &str) -> String {
        resource_label(&self.type_url, name)
    }

    fn text(&mut self, name: &str, event: &ShownEvent<'_>, before: Option<&Resource<Raw>>) -> String {
        let mut text = self.line(name, event);
        if let ShownEvent::Changed(resource) = event {
            let shown = match before.filter(|_| self.differences == Differences::Lines) {
                None => self.payload_lines(resource),
                Some(before) => difference(&self.payload_lines(before), &self.payload_lines(resource)),
            };
            for line in shown.lines() {
                _ = writeln!(text, "  {line}");
            }
        }
        text
    }

    /// The payload as YAML.
    fn payload_lines(&mut self, resource: &Resource<Raw>) -> String {
        let mut payload = self.payload(resource);
        payload.remove("@type");
        yaml(&YamlDocument { when: None, fields: &payload })
    }

    /// The fields as lines of YAML; with `@type` only in the format YAML.
    pub(super) fn lines_of(&self, fields: &Map<String, Value>) -> Vec<String> {
        let mut fields = fields.clone();
        if self.format != OutputFormat::Yaml {
            fields.remove("@type");
        }
        yaml(&YamlDocument { when: None, fields: &fields }).lines().map(String::from).collect()
    }

    fn line(&self, name: &str, event: &ShownEvent<'_>) -> String {
        let label = self.label(name);
        match event {
            ShownEvent::Changed(resource) => {
                let mut line = format!("+ {label}  version {}", printable(resource.version()));
                if let Some(when) = when(resource.constraints()) {
                    _ = write!(line, "  [{}]", printable(&when));
                }
                line + if resource.is_stale() { "  stale\n" } else { "\n" }
            }
            ShownEvent::Absent(why) => format!("- {label}  gone: {}\n", printable(&why.to_string())),
            ShownEvent::Ambient(Some(why)) => format!("! {label}  {}\n", printable(&why.to_string())),
            ShownEvent::Ambient(None) => format!("! {label}  the error is over\n"),
            ShownEvent::Complete => format!("= {label}  complete\n"),
        }
    }

    fn object(&mut self, name: &str, event: &ShownEvent<'_>) -> Value {
        let type_url = self.type_url.as_str().to_owned();
        let failure = |event, why: Option<&ResourceFailure>| {
            let (code, message) = (why.map(|why| why.code.to_string()), why.map(|why| &*why.message));
            json!({ "event": event, "type": type_url, "name": name, "code": code, "message": message })
        };
        match event {
            ShownEvent::Changed(resource) => json!({
                "event": "changed",
                "type": type_url,
                "name": name,
                "version": resource.version(),
                "constraints": when(resource.constraints()),
                "generation": resource.generation(),
                "stale": resource.is_stale(),
                "resource": self.payload(resource),
            }),
            ShownEvent::Absent(why) => failure("gone", Some(why)),
            ShownEvent::Ambient(why) => failure("ambient", *why),
            ShownEvent::Complete => json!({ "event": "complete", "type": type_url, "name": name }),
        }
    }

    fn yaml(&mut self, name: &str, event: &ShownEvent<'_>) -> String {
        let ShownEvent::Changed(resource) = event else {
            return format!("# {}", self.line(name, event));
        };
        let (payload, when) = (self.payload(resource), when(resource.constraints()));
        let own = ["name", "cluster_name"].into_iter().find_map(|field| payload.get(field)?.as_str());
        let document = if own == Some(resource.name().as_str()) {
            yaml(&YamlDocument { when: when.as_deref(), fields: &payload })
        } else {
            // The resource has another name than its payload, or the folder would not find the name
            // in the payload.
            let mut wrapper = Map::new();
            wrapper.insert("@type".into(), WRAPPER.into());
            wrapper.insert("name".into(), resource.name().as_str().into());
            wrapper.insert("resource".into(), payload.into());
            yaml(&YamlDocument { when: when.as_deref(), fields: &wrapper })
        };
        format!("---\n{document}")
    }

    fn payload(&mut self, resource: &Resource<Raw>) -> Map<String, Value> {
        self.fields(resource.payload())
    }

    /// The fields of a payload of the writer's type.
    pub(super) fn fields(&mut self, payload: &Bytes) -> Map<String, Value> {
        let readable = self.descriptors.readable(self.type_url.as_str(), payload);
        for field in readable.left_out {
            if !self.left_out.contains(&field) {
                eprintln!("warning: field left out because no descriptor has it: {field}");
                self.left_out.insert(field);
            }
        }
        match readable.json {
            Value::Object(fields) => fields,
            other => Map::from_iter([("value".to_owned(), other)]),
        }
    }
}
