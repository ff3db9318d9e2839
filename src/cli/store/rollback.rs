//! `xds rollback`: writes old content again (ST35, ST69).

use std::process::ExitCode;

use clap::Args;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::error::StoreError;
use super::history::commits;
use super::names::{self, RecordName};
use super::report::Report;
use super::write::{WriteOptions, change, commit};
use super::{records, run};
use crate::cli::Failure;
use crate::cli::check::ReportFormat;

/// Write the content that a resource had before, or undo a commit
///
/// The old content becomes the newest one; the history keeps what was there between. What others
/// change while the command runs is not overwritten: the command then ends with exit code 4, and
/// nothing is changed.
///
/// A resource that exists keeps its owners, and its lease or time of expiry. The history has neither
/// leases nor times of expiry, so a resource that was deleted comes back without them. A deleted
/// resource comes back with one owner: with --commit, the owner of that commit; with --to, the owner
/// of the commit that wrote that content. --owner sets another one.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES,
    override_usage = "xds rollback [OPTIONS] <TYPE> <NAME> --to <REV>\n       xds rollback [OPTIONS] --commit <REV>")]
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
    /// The whole name of the resource
    #[arg(value_name = "NAME", required_unless_present = "commit")]
    name: Option<String>,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN", requires = "name")]
    when: Option<String>,
    /// The revision of the resource to go back to, as `xds history TYPE NAME` shows it
    #[arg(long, value_name = "REV", requires = "name")]
    to: Option<String>,
    /// Undo this commit: its store revision, as `xds history` shows it
    ///
    /// Refused if any of its resources was changed later.
    #[arg(long, value_name = "REV")]
    commit: Option<String>,
    /// Undo the commit although resources were changed later: they get the content from before it, too
    #[arg(long, requires = "commit")]
    force: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    write: WriteOptions,
    /// Make --owner the only named owner of what is put
    #[arg(long, requires = "owner")]
    take_over: bool,
    /// Write content although it names resources that do not exist, such as clusters in the bootstrap of
    /// clients. Each is a warning
    #[arg(long)]
    allow_missing: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Rollback {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let record = RecordName::of(self.type_name.as_ref(), self.name.as_ref(), self.when.as_ref());
        let type_url = record.as_ref().map(RecordName::type_url).transpose()?;
        run(&self.connection, self.format, async |connection| {
            let (changes, owner) = match (&self.commit, record.as_ref().zip(type_url.as_ref()), &self.to) {
                (Some(revision), _, _) => self.undo(&connection, revision).await?,
                (None, Some((record, type_url)), Some(to)) => {
                    let key = record.key(&connection, type_url).await?;
                    let present = records::get(&connection, &key).await?;
                    let (put, writer) = put_again(&connection, key, to, present.as_ref()).await?;
                    (vec![put], if present.is_none() { writer } else { String::new() })
                }
                _ => return Err(StoreError::Input("give TYPE NAME --to REV, or --commit REV".to_owned())),
            };
            let mut request = self.write.request(changes);
            // Without an owner, the owners of what exists stay.
            request.take_over = self.take_over || (self.write.owner.is_none() && owner.is_empty());
            request.allow_missing = self.allow_missing;
            if self.write.owner.is_none() {
                request.owner = owner;
            }
            let mut report = Report::default();
            let response = commit(&connection, request).await;
            report.add(response.map_err(|error| error.at(Vec::new(), Some(AGAIN)))?, &[]);
            self.write.print(&report, "rollback", self.format);
            Ok(ExitCode::SUCCESS)
        })
    }

    /// The changes that undo a commit, and its owner: what the owner deleted belongs to it again, and
    /// what it created loses this owner only.
    async fn undo(
        &self,
        connection: &Connection,
        revision: &str,
    ) -> Result<(Vec<proto::Change>, String), StoreError> {
        let is_it = |entry: &proto::CommitEntry| entry.revision == revision;
        let is_found = |entries: &[proto::CommitEntry]| entries.iter().any(is_it);
        let found = commits(connection, None, true, is_found).await?;
        let Some(entry) = found.entries.iter().find(|entry| is_it(entry)) else {
            // A digest of a content; that of a commit has the form NODE-COUNTER.
            let hint = match revision.contains('-') {
                true => "",
                false => {
                    "\n  hint: this is the revision of a resource: give it as TYPE NAME --to; `xds history` shows \
                          those of commits"
                }
            };
            let end = end(&found.floor);
            return Err(StoreError::Missing(format!("no commit {revision} in the history{end}{hint}")));
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
                let (put, _) = put_again(connection, key, &undone.revision_before, present.as_ref()).await?;
                changes.push(put);
            }
        }
        if later.is_empty() {
            Ok((changes, entry.owner.clone()))
        } else {
            Err(StoreError::ChangedLater(later))
        }
    }
}

/// The put of the content that a record had at a revision, and the owner as which it was written.
async fn put_again(
    connection: &Connection,
    key: proto::Key,
    revision: &str,
    present: Option<&proto::Record>,
) -> Result<(proto::Change, String), StoreError> {
    let is_it = |change: &proto::CommitChange| change.revision_after == revision;
    let is_found =
        |entries: &[proto::CommitEntry]| entries.iter().flat_map(|entry| &entry.changes).any(is_it);
    let found = commits(connection, Some(&key), false, is_found).await?;
    let mut changes = found.entries.into_iter().flat_map(|entry| {
        let proto::CommitEntry { changes, owner, .. } = entry;
        changes.into_iter().map(move |change| (change, owner.clone()))
    });
    let found_change = changes.find(|(change, _)| is_it(change));
    let Some((content, owner)) = found_change.and_then(|(change, owner)| Some((change.content?, owner)))
    else {
        let (label, end) = (records::label(&key), end(&found.floor));
        let hint = match revision.contains('-') {
            true => format!(
                "\n  hint: this is the revision of a commit: `xds rollback --commit {revision}` takes it back; \
                 `xds history TYPE NAME` shows the revisions of a resource"
            ),
            false => names::pattern_hint(&key.name),
        };
        return Err(StoreError::Missing(format!(
            "no revision {revision} in the history of {label}{end}{hint}"
        )));
    };
    // SV7.
    if content.schema.ends_with(DOWNGRADED) {
        let text = format!("{} at {revision} is known only in a downgraded form", records::label(&key));
        return Err(StoreError::Input(text));
    }
    // A put without a lease would end the one that the record has.
    let lease = present.and_then(|record| record.lease);
    let expires_at = present.and_then(|record| record.expires_at).filter(|_| lease.is_none());
    let put =
        proto::Put { content: Some(content), expires_at, lease, owners: records::resource_owners(present) };
    Ok((change(key, Some(records::as_read(present)), proto::change::Act::Put(put)), owner))
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
  4  refused by the state: changed later or meanwhile, overlapping variants";
