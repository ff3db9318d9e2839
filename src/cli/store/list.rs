//! `xds list`: shows the records of a store, once or as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use xds::printable;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::document::{Documents, duration, protobuf};
use super::error::StoreError;
use super::names::{self, NamePattern, NameSelection};
use super::{records, run};
use crate::cli::check::ReportFormat;
use crate::cli::resolve::pair;
use crate::cli::shown::now;
use crate::cli::{Failure, NOTHING, descriptors, type_name};

/// Show the resources of a store
///
/// Without NAME and --match: a line per resource. With one of them: also the content, as YAML.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct List {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL; without it, all types
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Whole names of resources
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// All resources whose names begin like this: the beginning with `*` behind it, such as 'shop-*'. May
    /// be repeated
    #[arg(long = "match", value_name = "PATTERN")]
    patterns: Vec<NamePattern>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Only resources of this named owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Only resources with this label. May be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Then show each change, until interrupted
    #[arg(long)]
    watch: bool,
    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ListFormat::Text)]
    format: ListFormat,
    /// Types of your own: a FileDescriptorSet, as
    /// `protoc --include_imports --descriptor_set_out=FILE` writes it
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    /// A line per resource; with NAME or --match, also the content as YAML
    Text,
    /// A JSON object per line and resource
    Json,
    /// YAML documents with `@type` and `when`, as `xds apply` and `xds serve` read them
    Yaml,
    /// A binary DiscoveryResponse, as they read it from a .pb file: also for types without
    /// descriptors
    Pb,
}

/// Writes records to standard output.
struct Writer<'a> {
    format: ListFormat,
    selection: NameSelection<'a>,
    documents: Documents,
    /// The names that no record has yet: their canonical form, and as they were given.
    missing: BTreeMap<&'a str, &'a str>,
    /// Types whose documents could not be read back.
    unknown: BTreeSet<String>,
    /// For [`ListFormat::Pb`], which is one message.
    collected: Vec<(proto::Key, proto::Content)>,
}

impl List {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let type_url = self.type_name.as_deref().map(type_name::parse_any).transpose();
        let type_url = type_url.map_err(Failure::Type)?;
        if self.watch && self.format == ListFormat::Pb {
            let error = StoreError::Input("--watch has no format pb: a .pb file is one message".to_owned());
            return Err(Failure::Store(error));
        }
        let names: Vec<_> = self.names.iter().map(|name| names::canonical(name)).collect();
        let selection = NameSelection { names: &names, patterns: &self.patterns };
        let filter = proto::Filter {
            type_urls: type_url.iter().map(|type_url| type_url.as_str().to_owned()).collect(),
            names: selection.filter(),
            owner: self.owner.clone().unwrap_or_default(),
            labels: self.label.iter().cloned().collect(),
            ..proto::Filter::default()
        };
        let given = self.names.iter().map(String::as_str);
        let mut writer = Writer {
            format: self.format,
            selection,
            documents: Documents::new(descriptors(&self.descriptors)?),
            missing: names.iter().map(String::as_str).zip(given).collect(),
            unknown: BTreeSet::new(),
            collected: Vec::new(),
        };
        let format = if self.format == ListFormat::Json { ReportFormat::Json } else { ReportFormat::Text };
        let without_payload = self.format == ListFormat::Text && selection.is_everything();
        run(&self.connection, format, async |connection| {
            let shown = if self.watch {
                writer.watch(&self.connection, connection, filter, without_payload).await
            } else {
                let each = |record| writer.record('+', &record, None);
                records::list(&connection, filter, without_payload, each).await.and_then(|_| writer.end())
            };
            match shown {
                // The reader closed the pipe, as `head` does: that is not an error.
                Err(StoreError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                    Ok(ExitCode::SUCCESS)
                }
                shown => shown,
            }
        })
    }
}

impl Writer<'_> {
    /// Shows the present records, then each change until interrupted. It resumes after the last
    /// change if the server stops.
    async fn watch(
        &mut self,
        server: &ConnectionOptions,
        mut connection: Connection,
        filter: proto::Filter,
        without_payload: bool,
    ) -> Result<ExitCode, StoreError> {
        let mut request =
            proto::WatchRequest { filter: Some(filter), without_payload, ..proto::WatchRequest::default() };
        loop {
            let error = match self.watch_once(&connection, &mut request).await {
                Ok(()) => StoreError::Input("the server ended the watch".to_owned()),
                Err(error) => error,
            };
            if !error.is_away() || request.after.is_empty() {
                return Err(error);
            }
            eprintln!("{error}; trying again");
            // A server that was started again may have another address and token.
            connection = loop {
                tokio::time::sleep(AGAIN).await;
                match server.connect().await {
                    Err(error) if error.is_away() => {}
                    connected => break connected?,
                }
            };
        }
    }

    /// Shows the changes after a revision, which moves on, until the watch ends.
    async fn watch_once(
        &mut self,
        connection: &Connection,
        request: &mut proto::WatchRequest,
    ) -> Result<(), StoreError> {
        let mut client = connection.store.clone();
        let mut changes = connection.answer(client.watch(request.clone())).await?;
        loop {
            let message = changes.message().await;
            let message = message.map_err(|status| StoreError::of(&status, &connection.name))?;
            let Some(response) = message else { return Ok(()) };
            for event in &response.events {
                let Some(record) = &event.record else { continue };
                let sign = match event.kind() {
                    proto::event::Kind::Put => '+',
                    proto::event::Kind::Deleted | proto::event::Kind::Left => '-',
                    proto::event::Kind::Unspecified => '?',
                };
                self.record(sign, record, Some(&now()))?;
            }
            if !response.revision.is_empty() {
                request.after = response.revision;
            }
        }
    }

    /// Writes a record; `at` is the time of a change.
    fn record(&mut self, sign: char, record: &proto::Record, at: Option<&str>) -> Result<(), StoreError> {
        let Some(key) = record.key.as_ref().filter(|key| self.selection.selects(&key.name)) else {
            return Ok(());
        };
        self.missing.remove(&*key.name);
        let text = match self.format {
            ListFormat::Pb => {
                self.collected.push((key.clone(), record.content.clone().unwrap_or_default()));
                return Ok(());
            }
            ListFormat::Json => format!("{}\n", self.object(sign, key, record, at)),
            ListFormat::Text => self.text(sign, key, record, at),
            ListFormat::Yaml => match &record.content {
                Some(content) if sign == '+' && self.is_readable(key, content) => {
                    format!("---\n{}", self.documents.yaml(key, content))
                }
                _ => format!("# {sign} {}\n", records::label(key)),
            },
        };
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(StoreError::Output)
    }

    /// Whether its document can be read back.
    fn is_readable(&mut self, key: &proto::Key, content: &proto::Content) -> bool {
        let is_known = content.redirect || self.documents.knows(&key.type_url);
        if !is_known {
            self.unknown.insert(key.type_url.clone());
        }
        is_known
    }

    fn text(&mut self, sign: char, key: &proto::Key, record: &proto::Record, at: Option<&str>) -> String {
        let mut line = at.map_or_else(String::new, |at| format!("{at} "));
        line.push_str(&format!("{sign} {}", records::label(key)));
        for fact in facts(record) {
            line.push_str("  ");
            line.push_str(&printable(&fact));
        }
        line.push('\n');
        if let Some(content) =
            record.content.as_ref().filter(|_| !self.selection.is_everything() && sign == '+')
        {
            let document = self.documents.yaml(key, content);
            let lines = document.lines().filter(|line| !line.starts_with("\"@type\": "));
            lines.for_each(|text| line.push_str(&format!("  {text}\n")));
        }
        line
    }

    fn object(&mut self, sign: char, key: &proto::Key, record: &proto::Record, at: Option<&str>) -> Value {
        let content = record.content.as_ref();
        let resource_owners = records::resource_owners(Some(record));
        let resource_owners = resource_owners.iter().map(|owner| {
            let proto::Key { type_url, name, when } = owner.key.clone().unwrap_or_default();
            json!({ "type": type_url, "name": name, "when": when, "uid": owner.uid })
        });
        let resource_owners: Vec<_> = resource_owners.collect();
        let mut object = json!({
            "type": key.type_url, "name": key.name, "when": key.when,
            "revision": record.revision, "uid": record.uid, "state": state(record),
            "version": record.version, "generation": record.generation,
            "created_at": record.created_at.map(|at| at.to_string()),
            "changed_at": record.changed_at.map(|at| at.to_string()),
            "expires_at": record.expires_at.map(|at| at.to_string()),
            "lease": record.lease.map(duration),
            "owners": records::owners(record), "resource_owners": resource_owners,
            "quarantined": record.quarantined.as_ref().map(|quarantined| json!({
                "at": quarantined.at.map(|at| at.to_string()), "reason": quarantined.reason,
                "serves": quarantined.serve.is_some(),
            })),
            "region": record.region, "is_copy": record.is_copy,
            "store_revision": record.store_revision,
            "labels": content.map(|content| &content.labels),
            "schema": content.map(|content| &content.schema),
            "resource": content.map(|content| Value::Object(self.documents.payload(key, content))),
        });
        if let (Some(content), Some(fields)) = (content, object.as_object_mut()) {
            fields.extend(self.documents.extras(content));
        }
        if let Some(at) = at {
            object["at"] = at.into();
            object["event"] = if sign == '+' { "put".into() } else { "deleted".into() };
        }
        object
    }

    fn end(&self) -> Result<ExitCode, StoreError> {
        if self.format == ListFormat::Pb {
            let collected = self.collected.iter().map(|(key, content)| (key, content));
            io::stdout().lock().write_all(&protobuf(collected)).map_err(StoreError::Output)?;
        }
        for name in self.missing.values() {
            eprintln!("error: {} does not exist{}", printable(name), names::pattern_hint(name));
        }
        if let Some(type_url) = self.unknown.first() {
            let text = format!("no descriptor for {type_url}: use --descriptors, or --format pb");
            return Err(StoreError::Input(text));
        }
        Ok(if self.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
    }
}

/// What a line says of a record.
fn facts(record: &proto::Record) -> Vec<String> {
    let mut facts = Vec::new();
    if !record.revision.is_empty() {
        facts.push(format!("revision {}", record.revision));
    }
    let owners = records::owners(record);
    if !owners.is_empty() {
        facts.push(format!("owner {}", owners.join(", ")));
    }
    for owner in records::resource_owners(Some(record)) {
        facts.push(format!("owned by {}", records::label(&owner.key.unwrap_or_default())));
    }
    let labels = record.content.iter().flat_map(|content| &content.labels);
    facts.extend(labels.map(|(key, value)| format!("{key}={value}")));
    if let Some(at) = record.expires_at {
        facts.push(format!("until {at}"));
    }
    if let Some(quarantined) = &record.quarantined {
        facts.push(format!("quarantined: {}", quarantined.reason));
    }
    if record.state() == proto::State::Deleting {
        facts.push("deleted once nothing refers to it".to_owned());
    }
    facts
}

fn state(record: &proto::Record) -> &'static str {
    match record.state() {
        proto::State::Unspecified => "unknown",
        proto::State::Live => "live",
        proto::State::Quarantined => "quarantined",
        proto::State::Deleting => "deleting",
        proto::State::Deleted => "deleted",
    }
}

const AGAIN: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  xds list --store data                        all resources
  xds list CDS web --store data                one, with its content
  xds list RDS --match 'shop-*' --store data --owner shop --watch
  xds list --store data --format yaml > config/all.yaml

JSON: one object per line, with type, name, when, revision, uid, state, version, generation,
created_at, changed_at, expires_at, lease, owners, resource_owners, quarantined {at, reason, serves},
region, is_copy, store_revision, labels, schema, resource, and ttl, aliases, cache_control, metadata
where the resource has them. With --watch also `at` and `event` (put, deleted). Fields may be added.

Exit codes:
  0  done
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; a type without descriptor in YAML
  3  a resource does not exist; the others were shown";
