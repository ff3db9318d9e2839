//! `xds apply`: commits a folder to a store.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use prost::Message;
use xds::store_changes::{self, FolderChange};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::error::StoreError;
use super::owner_record::{OwnerRecordOptions, keeps_owners};
use super::report::Report;
use super::write::{WriteOptions, change, commit};
use super::{records, run, while_waiting};
use crate::cli::check::ReportFormat;
use crate::cli::progress::Spinner;
use crate::cli::{DescriptorOptions, Failure, FolderOptions, counted, load};

/// Commit a folder to a store, as one change that happens whole or not at all
///
/// Prints a line per change, and a summary. Applying the same folder again changes nothing.
///
/// If somebody changes one of the resources while the command runs, the command changes nothing and
/// ends with exit code 4. Run it again. The content of a resource of another owner is not changed
/// without --take-over.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("isolate", |isolate| isolate.hide(true)))]
pub(in crate::cli) struct Apply {
    #[command(flatten)]
    options: ApplyOptions,
    #[command(flatten)]
    owner_record: OwnerRecordOptions,
}

/// The options of `xds apply` and `xds diff`.
#[derive(Debug, Args)]
pub(super) struct ApplyOptions {
    #[command(flatten)]
    pub(super) source: FolderOptions,
    #[command(flatten)]
    pub(super) descriptors: DescriptorOptions,
    #[command(flatten)]
    pub(super) connection: ConnectionOptions,
    #[command(flatten)]
    pub(super) write: WriteOptions,
    /// Release --owner from what it owns and the folder does not have; a resource without other owners
    /// is deleted
    #[arg(long, requires = "owner")]
    pub(super) prune: bool,
    /// Change the content of resources of other owners too; --owner becomes their only named owner
    #[arg(long, requires = "owner")]
    take_over: bool,
    /// Put resources although they name others that do not exist, such as clusters in the bootstrap of
    /// clients. Each is a warning
    #[arg(long)]
    allow_missing: bool,
    /// Make several commits of at most so many changes, for a folder that exceeds a limit of the
    /// server [default with --split: 1000]
    ///
    /// Resources are put before those that refer to them. If a commit is refused, those before it
    /// stay.
    #[arg(long, value_name = "CHANGES", conflicts_with = "rollout",
        num_args = 0..=1, require_equals = true, default_missing_value = "1000",
        value_parser = crate::cli::serve::count)]
    pub(super) split: Option<usize>,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    pub(super) format: ReportFormat,
}

/// The changes that make of the present records those of a folder.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Each on the condition that the record is as it was read.
    pub(super) changes: Vec<proto::Change>,
    /// The places of the changes in files.
    pub(super) places: Vec<Option<String>>,
    /// Resources of the folder that the store has already.
    unchanged: usize,
    /// For people.
    warnings: Vec<String>,
}

/// The records of a store that matter for a folder, by type, name and constraints.
pub(super) type Present = BTreeMap<Tuple, proto::Record>;

/// The type, name and constraints of a key, in the order of a store.
pub(super) type Tuple = (String, String, String);

impl Apply {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let options = &self.options;
        let folder = options.folder()?;
        run(&options.connection, options.format, async |connection| {
            let spinner = Spinner::hidden();
            let mut report = Report::default();
            let mut changes = folder;
            self.owner_record.add(&connection, changes.iter_mut().map(|put| &mut put.change)).await?;
            let applied = while_waiting(&spinner, async {
                let present = options.present(&connection, &changes, true, &spinner).await?;
                let plan = Plan::of(&changes, &present, options)?;
                options.commit(&connection, plan, options.write.dry_run, &mut report, &spinner).await
            });
            let applied = applied.await;
            drop(spinner);
            if applied.is_ok() || !report.is_empty() {
                options.write.print(&report, &options.source.folder.display().to_string(), options.format);
            }
            applied.map(|()| ExitCode::SUCCESS)
        })
    }
}

impl ApplyOptions {
    /// The puts of the folder.
    pub(super) fn folder(&self) -> Result<Vec<FolderChange>, Failure> {
        let contents = load::contents(&self.source.open(self.descriptors.read()?));
        if let Some(errors) = contents.errors() {
            return Err(Failure::Folder { folder: self.source.folder.clone(), errors });
        }
        Ok(store_changes::changes(&contents))
    }

    /// The present records of the types of the folder and, with `--prune`, those of the owner.
    pub(super) async fn present(
        &self,
        connection: &Connection,
        changes: &[FolderChange],
        without_payload: bool,
        spinner: &Spinner,
    ) -> Result<Present, StoreError> {
        let types = changes.iter().filter_map(|put| Some(put.change.key.as_ref()?.type_url.clone()));
        let mut type_urls: Vec<_> = types.collect();
        type_urls.dedup();
        let of_types = proto::Filter { type_urls, ..proto::Filter::default() };
        let of_owner = self.pruned().map(|owner| proto::Filter { owner, ..proto::Filter::default() });
        let filters = [(!changes.is_empty()).then_some(of_types), of_owner];
        let mut present = Present::new();
        for filter in filters.into_iter().flatten() {
            let mut read = |record: proto::Record| {
                if let Some(key) = &record.key {
                    present.insert(tuple(key), record);
                }
                if present.len().is_multiple_of(RECORDS_PER_TICK) {
                    spinner.say(format!("reading the store: {}", counted(present.len(), "record")));
                }
                Ok(())
            };
            records::list(connection, filter, without_payload, &mut read).await?;
        }
        // Their version is that of what is served in their place.
        for record in present.values_mut().filter(|record| record.quarantined.is_some()) {
            let Some(key) = &record.key else { continue };
            if let Some(whole) = records::get(connection, key).await? {
                *record = whole;
            }
        }
        Ok(present)
    }

    /// The owner whose other records end.
    fn pruned(&self) -> Option<String> {
        self.write.owner.clone().filter(|_| self.prune)
    }

    pub(super) async fn commit(
        &self,
        connection: &Connection,
        plan: Plan,
        dry_run: bool,
        report: &mut Report,
        spinner: &Spinner,
    ) -> Result<(), StoreError> {
        report.unchanged(plan.unchanged);
        report.warn(&plan.warnings);
        let total = plan.changes.len();
        let parts = match self.split {
            Some(limit) => plan.split(limit),
            None => vec![plan],
        };
        let mut done = 0;
        for part in parts {
            spinner.say(format!("committing: {done} of {} done", counted(total, "change")));
            done += part.changes.len();
            let request = proto::CommitRequest {
                take_over: self.take_over,
                allow_missing: self.allow_missing,
                dry_run,
                ..self.write.request(part.changes)
            };
            match commit(connection, request).await {
                Ok(response) => report.add(response, &part.places),
                Err(error) => return Err(error.at(part.places, Some(AGAIN))),
            }
        }
        Ok(())
    }
}

impl Plan {
    /// The changes from the present records to those of a folder.
    pub(super) fn of(
        changes: &[FolderChange],
        present: &Present,
        apply: &ApplyOptions,
    ) -> Result<Self, StoreError> {
        let owner = apply.write.owner.as_deref();
        let (mut plan, mut foreign) = (Self::default(), Vec::new());
        let mut missing: BTreeMap<_, _> = present.iter().collect();
        for FolderChange { change: put, version, location } in changes {
            let Some(key) = &put.key else { continue };
            let record = missing.remove(&tuple(key));
            let owners = record.map(records::owners).unwrap_or_default();
            let has_content = record.is_some_and(|record| {
                let has_payload = match &record.quarantined {
                    None => record.version == version.to_string(),
                    Some(_) => is_same(record.content.as_ref(), put.act.as_ref()),
                };
                has_payload
                    && record.lease.is_none()
                    && record.expires_at.is_none()
                    && record.content.as_ref().is_some_and(|content| content.labels.is_empty())
            });
            let place = format!("{}/{location}", apply.source.folder.display());
            let others: Vec<_> = owners.iter().copied().filter(|name| Some(*name) != owner).collect();
            // SG15. The server judges it, too; here the file and line are known, and all mistakes.
            if !has_content && !others.is_empty() && !apply.take_over {
                foreign.push(format!("{place}: {} belongs to {}", records::label(key), others.join(", ")));
                continue;
            }
            let is_equal = has_content && owner.is_none_or(|owner| owners.contains(&owner));
            let is_equal = is_equal && keeps_owners(record, put.act.as_ref());
            let quarantined = record.filter(|_| has_content).and_then(|record| record.quarantined.as_ref());
            if let Some(proto::Quarantined { reason, .. }) = quarantined {
                let label = records::label(key);
                plan.warnings.push(format!("{label} stays quarantined until its content changes: {reason}"));
            }
            // A put by a further owner would serve it again.
            if (is_equal || quarantined.is_some()) && !apply.take_over {
                plan.unchanged += 1;
                continue;
            }
            let condition = Some(records::as_read(record));
            let act = match quarantined {
                // A put of the same content would serve it again.
                Some(proto::Quarantined { reason, .. }) => {
                    let reason = reason.clone();
                    let again = proto::Quarantine { reason, ..proto::Quarantine::default() };
                    Some(proto::change::Act::Quarantine(again))
                }
                None => put.act.clone(),
            };
            plan.changes.push(proto::Change { condition, act, ..put.clone() });
            plan.places.push(Some(place));
        }
        // Not by `prune` of the commit, which would also release what others have added as this owner
        // since it was read.
        if let Some(owner) = owner.filter(|_| apply.prune) {
            for record in missing.into_values().filter(|record| records::owners(record).contains(&owner)) {
                let act = proto::change::Act::Delete(proto::Delete::default());
                let key = record.key.clone().unwrap_or_default();
                plan.changes.push(change(key, Some(records::as_read(Some(record))), act));
                plan.places.push(None);
            }
        }
        if foreign.is_empty() { Ok(plan) } else { Err(StoreError::Foreign(foreign)) }
    }

    /// Parts of at most so many changes. Targets of references are put before and deleted after those
    /// that refer to them.
    fn split(self, limit: usize) -> Vec<Self> {
        let mut changes: Vec<_> = self.changes.into_iter().zip(self.places).collect();
        changes.sort_by_key(|(change, _)| {
            let depth = change.key.as_ref().map_or(0, |key| depth(&key.type_url));
            match change.act {
                Some(proto::change::Act::Delete(_)) => (true, -depth),
                _ => (false, depth),
            }
        });
        let mut parts = Vec::new();
        let (mut part, mut bytes) = (Self::default(), 0);
        for (change, place) in changes {
            let size = change.encoded_len();
            if part.changes.len() == limit || (bytes + size > PART_BYTES && !part.changes.is_empty()) {
                parts.push(std::mem::take(&mut part));
                bytes = 0;
            }
            bytes += size;
            part.changes.push(change);
            part.places.push(place);
        }
        parts.push(part);
        parts
    }
}

/// Whether a put has the same content.
fn is_same(content: Option<&proto::Content>, act: Option<&proto::change::Act>) -> bool {
    let Some(proto::change::Act::Put(proto::Put { content: Some(put), .. })) = act else { return false };
    content.is_some_and(|content| proto::Content { schema: put.schema.clone(), ..content.clone() } == *put)
}

pub(super) fn tuple(key: &proto::Key) -> Tuple {
    (key.type_url.clone(), key.name.clone(), key.when.clone())
}

/// How far a type is from those that refer to nothing.
pub(super) fn depth(of: &str) -> i8 {
    match of {
        type_url::SECRET | type_url::CLUSTER_LOAD_ASSIGNMENT | type_url::LB_ENDPOINT => 0,
        type_url::CLUSTER => 1,
        type_url::TYPED_EXTENSION_CONFIG | type_url::VIRTUAL_HOST => 3,
        type_url::ROUTE_CONFIGURATION => 4,
        type_url::SCOPED_ROUTE_CONFIGURATION => 5,
        type_url::LISTENER => 6,
        _ => 2,
    }
}

const AGAIN: &str = "somebody else changed it while this command ran; run it again";

const RECORDS_PER_TICK: usize = 1000;

/// Below the limit of a commit of etcd's and of the server.
const PART_BYTES: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  xds apply config --store data
  xds apply config --store data --owner shop --prune      and delete what the folder no longer has
  xds apply config --server 10.0.0.1:18001 --tls --token-file token --message 'JIRA-1'
  xds apply config --store data --dry-run                 see also xds diff

JSON: one object with
  revision  of the store after the commit
  dry_run   whether nothing was changed
  changes   [{outcome, type, name, when, revision, uid, at}], without the unchanged ones
  counts    {OUTCOME: number}
  warnings  [text]
  or error  {code, message, violations: [{type, name, when, message, at, reason}], floor}
  Fields may be added.

Exit codes:
  0  committed, or nothing to change
  1  the server cannot be reached, or refuses
  2  invalid input: arguments, the folder
  3  a resource of --owner-record does not exist
  4  refused by the state: changed meanwhile, owned by others, overlapping variants";
