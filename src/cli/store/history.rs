//! `xds history`: who changed what, and when.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use xds::printable;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::diff::difference;
use super::document::Documents;
use super::error::StoreError;
use super::names::{self, RecordName};
use super::report::outcome;
use super::{records, run};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, descriptors, say, serve};

/// Show the commits of a store, newest first
///
/// With TYPE and NAME: the commits that changed this resource, each with a diff. A commit begins with
/// its store revision, for `xds rollback --commit`. Each change shows the revision of the resource after
/// that commit, for `xds rollback --to`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "xds history [OPTIONS] [TYPE NAME]")]
pub(in crate::cli) struct History {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL; without it, all commits
    #[arg(value_name = "TYPE", requires = "name")]
    type_name: Option<String>,
    /// The whole name of the resource
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN", requires = "name")]
    when: Option<String>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Show at most so many commits
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = serve::count)]
    limit: usize,
    /// Types of your own: a FileDescriptorSet, as
    /// `protoc --include_imports --descriptor_set_out=FILE` writes it
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// Commits, newest first.
pub(super) struct Commits {
    pub(super) entries: Vec<proto::CommitEntry>,
    /// Commits up to this one are forgotten; empty: none are.
    pub(super) floor: String,
    /// Whether there are no older ones.
    pub(super) is_complete: bool,
}

impl History {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let record = RecordName::of(self.type_name.as_ref(), self.name.as_ref(), self.when.as_ref());
        let type_url = record.as_ref().map(RecordName::type_url).transpose()?;
        let mut documents = Documents::new(descriptors(&self.descriptors)?);
        run(&self.connection, self.format, async |connection| {
            let key = match record.as_ref().zip(type_url.as_ref()) {
                Some((record, type_url)) => Some(record.key(&connection, type_url).await?),
                None => None,
            };
            // A diff needs the content before the oldest commit that is shown.
            let wanted = self.limit.saturating_add(usize::from(key.is_some()));
            let is_enough = |entries: &[proto::CommitEntry]| entries.len() >= wanted;
            let commits = commits(&connection, key.as_ref(), key.is_none(), is_enough).await?;
            for (number, entry) in commits.entries.iter().take(self.limit).enumerate() {
                let older = commits.entries.get(number + 1);
                match self.format {
                    ReportFormat::Json => say(object(&mut documents, entry)),
                    ReportFormat::Text => text(&mut documents, entry, key.as_ref(), older),
                }
            }
            if self.format == ReportFormat::Text {
                let is_rest = commits.entries.len() > self.limit || !commits.is_complete;
                match (is_rest, &*commits.floor) {
                    (true, _) => say("older commits: use a larger --limit"),
                    (false, "") => {}
                    (false, floor) => say(format_args!("commits up to {floor} are forgotten")),
                }
            }
            let is_nothing = commits.entries.is_empty() && key.is_some();
            if let Some(key) = key.filter(|_| is_nothing) {
                return Err(names::missing(&key, "has no history"));
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Reads commits page by page until there are enough.
pub(super) async fn commits(
    connection: &Connection,
    key: Option<&proto::Key>,
    without_payload: bool,
    is_enough: impl Fn(&[proto::CommitEntry]) -> bool,
) -> Result<Commits, StoreError> {
    let mut client = connection.store.clone();
    let mut request = proto::HistoryRequest {
        key: key.cloned(),
        limit: COMMITS_PER_PAGE,
        without_payload,
        ..proto::HistoryRequest::default()
    };
    let mut commits = Commits { entries: Vec::new(), floor: String::new(), is_complete: false };
    loop {
        let page = connection.answer(client.history(request.clone())).await?;
        commits.entries.extend(page.commits);
        commits.floor = page.floor;
        commits.is_complete = page.next.is_empty();
        if commits.is_complete || is_enough(&commits.entries) {
            return Ok(commits);
        }
        request.before = page.next;
    }
}

fn text(
    documents: &mut Documents,
    entry: &proto::CommitEntry,
    key: Option<&proto::Key>,
    older: Option<&proto::CommitEntry>,
) {
    let mut line = entry.revision.clone();
    let at = entry.at.map(|at| at.to_string()).unwrap_or_default();
    let owner = if entry.owner.is_empty() { String::new() } else { format!("owner {}", entry.owner) };
    for fact in [at, entry.identity.clone(), owner, entry.message.clone()] {
        if !fact.is_empty() {
            line.push_str("  ");
            line.push_str(&printable(&fact));
        }
    }
    say(line);
    for change in entry.changes.iter().take(CHANGES_SHOWN) {
        let changed = change.key.clone().unwrap_or_default();
        let mut line = format!("  {:<10} {}", outcome(change.outcome()), records::label(&changed));
        if !change.revision_after.is_empty() {
            line.push_str(&format!("  revision {}", change.revision_after));
        }
        say(line);
        if key.is_none() {
            continue;
        }
        let before = older.and_then(|older| older.changes.first());
        let before = before.filter(|before| before.revision_after == change.revision_before);
        if before.is_none() && !change.revision_before.is_empty() {
            say("    (the content before it is forgotten)");
            continue;
        }
        let before = before.and_then(|before| before.content.as_ref());
        let diff = difference(documents, &changed, before, change.content.as_ref(), None);
        // The names of both sides are in the line above.
        diff.lines().skip(2).for_each(|line| say(format_args!("    {line}")));
    }
    let more = entry.changes.len().saturating_sub(CHANGES_SHOWN);
    if more > 0 {
        say(format_args!("  and {more} more"));
    }
}

fn object(documents: &mut Documents, entry: &proto::CommitEntry) -> Value {
    let changes = entry.changes.iter().map(|change| {
        let key = change.key.clone().unwrap_or_default();
        let content = change.content.as_ref().filter(|content| !content.payload.is_empty());
        let resource = content.map(|content| Value::Object(documents.payload(&key, content)));
        json!({
            "outcome": outcome(change.outcome()), "type": key.type_url, "name": key.name, "when": key.when,
            "revision_before": change.revision_before, "revision_after": change.revision_after,
            "resource": resource,
        })
    });
    let changes: Vec<_> = changes.collect();
    json!({
        "revision": entry.revision, "at": entry.at.map(|at| at.to_string()), "identity": entry.identity,
        "owner": entry.owner, "message": entry.message, "origin": entry.origin, "counter": entry.counter,
        "changes": changes,
    })
}

const COMMITS_PER_PAGE: u32 = 100;

/// How many changes of a commit a person gets; JSON has all.
const CHANGES_SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  xds history --store data
  xds history RDS web --store data             with a diff for each commit

JSON: one object per line and commit, with revision, at, identity, owner, message, origin, counter,
changes [{outcome, type, name, when, revision_before, revision_after, resource}]; `resource` only
with TYPE and NAME. Fields may be added.

Exit codes:
  0  done
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  the resource has no history";
