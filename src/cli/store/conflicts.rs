//! `xds store conflicts`: what merges lost (SR44).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use xds::printable;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::conflict::Kind;

use super::connection::ConnectionOptions;
use super::document::Documents;
use super::{records, run};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, descriptors, say, serve};

/// Show what was lost when this node merged changes of other nodes, newest first
///
/// The content that lost is in the JSON, so that it can be put again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Conflicts {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Show at most so many conflicts
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = serve::count)]
    limit: usize,
    /// Types of your own: a FileDescriptorSet, as
    /// `protoc --include_imports --descriptor_set_out=FILE` writes it
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Conflicts {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let mut documents = Documents::new(descriptors(&self.descriptors)?);
        run(&self.connection, self.format, async |connection| {
            let mut client = connection.maintenance.clone();
            let (mut before, mut shown) = (String::new(), 0);
            loop {
                let limit = u32::try_from(self.limit - shown).unwrap_or(u32::MAX);
                let request = proto::ConflictsRequest { limit, before };
                let page = connection.answer(client.conflicts(request)).await?;
                for conflict in &page.conflicts {
                    match self.format {
                        ReportFormat::Json => say(object(&mut documents, conflict)),
                        ReportFormat::Text => say(text(conflict)),
                    }
                }
                shown += page.conflicts.len();
                before = page.next;
                if before.is_empty() || shown >= self.limit {
                    break;
                }
            }
            if self.format == ReportFormat::Text {
                match (shown, &*before) {
                    (0, _) => say("no conflicts"),
                    (_, "") => {}
                    _ => say("older conflicts: use a larger --limit"),
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn text(conflict: &proto::Conflict) -> String {
    let key = conflict.key.clone().unwrap_or_default();
    let at = conflict.at.map(|at| at.to_string()).unwrap_or_default();
    let origin = if conflict.loser_origin.is_empty() { "-" } else { &conflict.loser_origin };
    format!(
        "{at}  {:<8}  {}  written at {}: {}",
        kind(conflict.kind()),
        records::label(&key),
        printable(origin),
        printable(&conflict.detail)
    )
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Unspecified => "other",
        Kind::Content => "content",
        Kind::Creation => "creation",
        Kind::Deletion => "deletion",
        Kind::Dangling => "dangling",
        Kind::Overlap => "overlap",
        Kind::Region => "region",
        Kind::Dropped => "dropped",
    }
}

fn object(documents: &mut Documents, conflict: &proto::Conflict) -> Value {
    let key = conflict.key.clone().unwrap_or_default();
    let resource = conflict.loser.as_ref().map(|content| Value::Object(documents.payload(&key, content)));
    json!({
        "kind": kind(conflict.kind()), "type": key.type_url, "name": key.name, "when": key.when,
        "at": conflict.at.map(|at| at.to_string()), "winner_revision": conflict.winner_revision,
        "loser_revision": conflict.loser_revision, "winner_origin": conflict.winner_origin,
        "loser_origin": conflict.loser_origin, "detail": conflict.detail, "resource": resource,
    })
}

const EXAMPLES: &str = "\
Examples:
  xds store conflicts --store data
    2026-11-25T22:10:04Z  content   Cluster one  written at 5f2c9a01..: generation 3 was written twice

Kinds: content (two nodes changed one record), creation (two nodes created one record), deletion (a
change beside a deletion), overlap (variants that match the same clients: this one is not served).

JSON: one object per line and conflict, with kind, type, name, when, at, winner_revision,
loser_revision, winner_origin, loser_origin, detail and resource, the content that lost (null if you
may not read it). Fields may be added.

Exit codes:
  0  done, also if there are none
  1  the server cannot be reached, or refuses
  2  invalid input: arguments";
