//! `xds put`: commits single resources to a store.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use xds::folder::{Contents, FILE_LIMIT_BYTES};
use xds::store_changes::{self, FolderChange};
use xds_core::PAYLOAD_LIMIT_BYTES;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::error::StoreError;
use super::owner_record::OwnerRecordOptions;
use super::report::Report;
use super::run;
use super::write::{WriteOptions, commit};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, descriptors, serve};

/// Commit the resources of files to a store, all of them or none
///
/// The files have the form that `xds serve` reads: *.yaml, *.yml, *.json and *.pb. `-` is standard
/// input, as YAML or JSON. Each resource is created or replaced: use --create or --if-revision to keep
/// what others wrote. The content of a resource of another owner is not changed without --take-over.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Put {
    /// Files with resources; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Create only: refuse what exists already
    #[arg(long, conflicts_with = "if_revision")]
    create: bool,
    /// Replace the resource only if it has this revision, as `xds list` shows it
    #[arg(long, value_name = "REV")]
    if_revision: Option<String>,
    /// Delete the resource this long after its last put, such as 30s; at least 5s
    ///
    /// To put the same again renews the lease. A put without --lease ends it.
    #[arg(long, value_name = "DURATION", value_parser = serve::wait)]
    lease: Option<Duration>,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    owner_record: OwnerRecordOptions,
    /// Make --owner the only named owner of what is put
    #[arg(long, requires = "owner")]
    take_over: bool,
    /// Put resources although they name others that do not exist, such as clusters in the bootstrap of
    /// clients. Each is a warning
    #[arg(long)]
    allow_missing: bool,
    /// Types of your own: a FileDescriptorSet, as
    /// `protoc --include_imports --descriptor_set_out=FILE` writes it
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Put {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let puts = self.puts()?;
        if self.if_revision.is_some() && puts.len() != 1 {
            let text = format!("--if-revision is for one resource; the files have {}", puts.len());
            return Err(Failure::Store(StoreError::Input(text)));
        }
        let is = match &self.if_revision {
            Some(revision) => Some(proto::condition::Is::Revision(revision.clone())),
            None => self.create.then_some(proto::condition::Is::Absent(true)),
        };
        let condition = is.map(|is| proto::Condition { is: Some(is) });
        let lease = self.lease.and_then(|lease| lease.try_into().ok());
        let (mut changes, mut places) = (Vec::new(), Vec::new());
        for FolderChange { mut change, location, .. } in puts {
            change.condition.clone_from(&condition);
            if let Some(proto::change::Act::Put(put)) = &mut change.act {
                put.lease = lease;
            }
            changes.push(change);
            places.push(Some(location.to_string()));
        }
        run(&self.connection, self.format, async |connection| {
            let (subject, mut changes) = (counted(changes.len(), "resource"), changes);
            self.owner_record.add(&connection, &mut changes).await?;
            let request = proto::CommitRequest {
                take_over: self.take_over,
                allow_missing: self.allow_missing,
                ..self.write.request(changes)
            };
            let response = commit(&connection, request).await;
            let response = response.map_err(|error| error.at(places.clone(), None))?;
            let mut report = Report::default();
            report.add(response, &places);
            self.write.print(&report, &subject, self.format);
            Ok(ExitCode::SUCCESS)
        })
    }

    /// The resources of all files.
    fn puts(&self) -> Result<Vec<FolderChange>, Failure> {
        let mut files = BTreeMap::new();
        for file in &self.files {
            let content =
                read(file).map_err(|error| Failure::Store(StoreError::File { file: file.clone(), error }))?;
            files.insert(file.display().to_string().into(), content);
        }
        let descriptors = Arc::new(descriptors(&self.descriptors)?);
        let contents = Contents::of_files(files, descriptors, PAYLOAD_LIMIT_BYTES);
        if let Some(errors) = contents.errors() {
            return Err(Failure::Folder { folder: PathBuf::from("xds put"), errors });
        }
        Ok(store_changes::changes(&contents))
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return xds_file::read(file, FILE_LIMIT_BYTES);
    }
    let mut content = Vec::new();
    io::stdin().lock().take(FILE_LIMIT_BYTES as u64).read_to_end(&mut content)?;
    Ok(content)
}

const EXAMPLES: &str = "\
Examples:
  xds put web.yaml --store data
  xds put web.yaml --store data --create
  xds put web.yaml --store data --owner-record LDS main       deleted with the listener main
  xds put web.yaml --store data --if-revision 4b2c..     only if nobody changed it since
  xds list CDS web --store data --format yaml | sed 's/1s/2s/' | xds put - --store data

JSON is that of `xds apply`.

Exit codes:
  0  committed, or nothing to change
  1  the server cannot be reached, or refuses; a file cannot be read
  2  invalid input: arguments, files
  3  a resource of --owner-record does not exist
  4  refused by the state: it exists with --create, another revision, overlapping variants";
