//! `xds rollback`: writes old content again (ST35, ST69).

use std::process::ExitCode;

use clap::Args;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::error::StoreError;
use super::history::commits;
use super::report::Report;
use super::write::{WriteOptions, change, commit};
use super::{RecordName, records, run};
use crate::cli::Failure;
use crate::cli::check::ReportFormat;

/// Write the content that a resource had before, or undo a commit
///
/// The old content is a new generation; the history keeps what was there between. What others change
/// while the command runs is not overwritten: the command then ends with exit code 4.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Rollback {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL
    #[arg(
        value_name = "TYPE",
        required_unless_present = "commit",
        conflicts_with = "commit",
        requires = "to"
    )]
    type_name: Option<String>,
    /// The name of the resource
    #[arg(value_name = "NAME", required_unless_present = "commit")]
    name: Option<String>,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN", requires = "name")]
    when: Option<String>,
    /// The revision of the record to go back to, as `xds history TYPE NAME` shows it
    #[arg(long, value_name = "REV", requires = "name")]
    to: Option<String>,
    /// Undo this commit: its store revision, as `xds history` shows it
    ///
    /// Refused if any of its resources was changed later.
    #[arg(long, value_name = "REV")]
    commit: Option<String>,
    /// Undo the commit also where its resources were changed later
    #[arg(long, requires = "commit")]
    force: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    write: WriteOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Rollback {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let record = RecordName::of(self.type_name.as_ref(), self.name.as_ref(), self.when.as_ref());
        let type_url = record.as_ref().map(RecordName::type_url).transpose()?;
        run(&self.connection, self.format, async |connection| {
            let changes = match (&self.commit, record.as_ref().zip(type_url.as_ref()), &self.to) {
                (Some(revision), _, _) => self.undo(&connection, revision).await?,
                (None, Some((record, type_url)), Some(to)) => {
                    let key = record.key(&connection, type_url).await?;
                    vec![back(&connection, key, to).await?]
                }
                _ => return Err(StoreError::Input("give TYPE NAME --to REV, or --commit REV".to_owned())),
            };
            let mut report = Report::default();
            let response = commit(&connection, self.write.request(changes)).await;
            report.add(response.map_err(|error| error.at(Vec::new(), Some(AGAIN)))?, &[]);
            self.write.print(&report, "rollback", self.format);
            Ok(ExitCode::SUCCESS)
        })
    }

    /// The changes that undo a commit.
    async fn undo(&self, connection: &Connection, revision: &str) -> Result<Vec<proto::Change>, StoreError> {
        let is_it = |entry: &proto::CommitEntry| entry.revision == revision;
        let is_found = |entries: &[proto::CommitEntry]| entries.iter().any(is_it);
        let found = commits(connection, None, true, is_found).await?;
        let Some(entry) = found.entries.iter().find(|entry| is_it(entry)) else {
            return Err(StoreError::Missing(format!(
                "no commit {revision} in the history{}",
                end(&found.floor)
            )));
        };
        let mut changes = Vec::new();
        let mut later = Vec::new();
        for undone in &entry.changes {
            let key = undone.key.clone().unwrap_or_default();
            let present = records::get(connection, &key).await?;
            let revision = present.as_ref().map_or("", |record| &record.revision);
            if revision != undone.revision_after && !self.force {
                later.push(records::label(&key));
                continue;
            }
            if undone.revision_before.is_empty() {
                if present.is_some() {
                    let act = proto::change::Act::Delete(proto::Delete::default());
                    changes.push(change(key, Some(records::as_read(present.as_ref())), act));
                }
            } else {
                changes.push(put_again(connection, key, &undone.revision_before, present).await?);
            }
        }
        if later.is_empty() { Ok(changes) } else { Err(StoreError::ChangedLater(later)) }
    }
}

/// The put of the content that a record had at a revision.
async fn back(connection: &Connection, key: proto::Key, to: &str) -> Result<proto::Change, StoreError> {
    let present = records::get(connection, &key).await?;
    put_again(connection, key, to, present).await
}

async fn put_again(
    connection: &Connection,
    key: proto::Key,
    revision: &str,
    present: Option<proto::Record>,
) -> Result<proto::Change, StoreError> {
    let is_it = |change: &proto::CommitChange| change.revision_after == revision;
    let is_found =
        |entries: &[proto::CommitEntry]| entries.iter().flat_map(|entry| &entry.changes).any(is_it);
    let found = commits(connection, Some(&key), false, is_found).await?;
    let mut changes = found.entries.into_iter().flat_map(|entry| entry.changes);
    let Some(content) = changes.find(is_it).and_then(|change| change.content) else {
        let label = records::label(&key);
        return Err(StoreError::Missing(format!(
            "no revision {revision} in the history of {label}{}",
            end(&found.floor)
        )));
    };
    // SV7.
    if content.schema.ends_with(DOWNGRADED) {
        let text = format!("{} at {revision} is known only in a downgraded form", records::label(&key));
        return Err(StoreError::Input(text));
    }
    let put = proto::Put { content: Some(content), ..proto::Put::default() };
    let condition = Some(records::as_read(present.as_ref()));
    Ok(change(key, condition, proto::change::Act::Put(put)))
}

fn end(floor: &str) -> String {
    if floor.is_empty() { String::new() } else { format!("; commits up to {floor} are forgotten") }
}

const AGAIN: &str =
    "somebody else changed it while this command ran; look at `xds history`, and run it again";
const DOWNGRADED: &str = "+downgraded";

const EXAMPLES: &str = "\
Examples:
  xds rollback RDS web --to 4b2c.. --store data         a revision of `xds history RDS web`
  xds rollback --commit s7f3a-48 --store data           all that this commit changed

JSON is that of `xds apply`.

Exit codes:
  0  done
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  the history does not have the revision
  4  refused by the state: changed later, owned by others, in use";
