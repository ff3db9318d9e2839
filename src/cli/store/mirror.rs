//! `xds store mirror`: copies one store into another until stopped (ST62).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use prost::Message;
use serde_json::json;
use tonic::{Code, Status};
use xds::client::bootstrap::{ChannelCredentials, IdentityFiles, Server, TlsFiles};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::watch_response::Part;

use super::apply::tuple;
use super::connection::{Connection, read_token};
use super::error::StoreError;
use super::records;
use super::write::{change, commit, print_error};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, say};

/// Copy a store into another one, and then each change, until interrupted
///
/// This moves a store to another engine or machine. Start a new store, mirror the old one into it,
/// and wait for `in sync`. Move readers: they get the same versions, so nothing is sent again. Then
/// stop the writers, and let them write to the new store. A mirror in the other direction is the way
/// back.
///
/// The other store ends up with the same resources, named owners and leases, and without any others.
/// Nothing else may write to it meanwhile. Of a quarantined resource it gets what is served in its
/// place. The history is not copied.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Mirror {
    /// The store to copy: DIR on this machine, or HOST:PORT of the admin port of its server
    #[arg(value_name = "FROM")]
    from: String,
    /// The store to write to, in the same form
    #[arg(value_name = "TO")]
    to: String,
    /// A file with the token for FROM
    #[arg(long, value_name = "FILE")]
    from_token_file: Option<PathBuf>,
    /// A file with the token for TO
    #[arg(long, value_name = "FILE")]
    to_token_file: Option<PathBuf>,
    /// Connect to FROM with TLS, and trust these certificates (PEM)
    #[arg(long, value_name = "FILE")]
    from_ca: Option<PathBuf>,
    /// Connect to TO with TLS, and trust these certificates (PEM)
    #[arg(long, value_name = "FILE")]
    to_ca: Option<PathBuf>,
    /// Present this certificate (PEM) to both; needs --key
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// End as soon as both are in sync
    #[arg(long)]
    once: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// A copy in progress.
struct Copy<'a> {
    to: &'a Connection,
    format: ReportFormat,
    /// Keys in TO that no record of FROM has had yet.
    extra: BTreeSet<(String, String, String)>,
    copied: usize,
    warned: BTreeSet<String>,
}

impl Mirror {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let done = runtime.block_on(self.copy());
        runtime.shutdown_background();
        done.map(|()| ExitCode::SUCCESS).map_err(|error| {
            print_error(self.format, &error);
            Failure::Store(error)
        })
    }

    async fn copy(&self) -> Result<(), StoreError> {
        let from = self.open(&self.from, self.from_token_file.as_deref(), self.from_ca.as_ref()).await?;
        let to = self.open(&self.to, self.to_token_file.as_deref(), self.to_ca.as_ref()).await?;
        let mut after = String::new();
        loop {
            let mut copy = Copy {
                to: &to,
                format: self.format,
                extra: BTreeSet::new(),
                copied: 0,
                warned: BTreeSet::new(),
            };
            let error = match copy.follow(&from, &mut after, self.once).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match &error {
                // FROM has forgotten the revision: start again with all records.
                StoreError::Refused(refused) if refused.code == Code::OutOfRange => after.clear(),
                error if error.is_away() && !self.once => {}
                _ => return Err(error),
            }
            eprintln!("{error}; trying again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn open(
        &self,
        place: &str,
        token: Option<&Path>,
        ca: Option<&PathBuf>,
    ) -> Result<Connection, StoreError> {
        if Path::new(place).is_dir() {
            return Connection::open_local(Path::new(place), TIMEOUT).await;
        }
        let identity = self.cert.clone().zip(self.key.clone());
        let is_tls = ca.is_some() || identity.is_some() || place.starts_with("https:");
        let identity = identity
            .map(|(certificate_file, private_key_file)| IdentityFiles { certificate_file, private_key_file });
        let files = TlsFiles {
            ca_certificate_file: ca.cloned(),
            identity,
            refresh_interval: Duration::from_secs(600),
        };
        let credentials = if is_tls { ChannelCredentials::Tls(files) } else { ChannelCredentials::Insecure };
        let server = Server { credentials, ..Server::insecure(place) };
        Connection::open(server, token.map(read_token).transpose()?, TIMEOUT).await
    }
}

impl Copy<'_> {
    /// Copies what FROM has, and then each change. `after` is the revision that TO has.
    async fn follow(
        &mut self,
        from: &Connection,
        after: &mut String,
        is_once: bool,
    ) -> Result<(), StoreError> {
        if after.is_empty() {
            let mut extra = BTreeSet::new();
            let all = proto::Filter::default();
            let here = records::list(self.to, all, true, |record| {
                extra.extend(record.key.as_ref().map(tuple));
                Ok(())
            });
            let here = here.await?;
            self.extra = extra;
            let first = proto::ListRequest { page_size: 1, without_payload: true, ..Default::default() };
            let there = from.answer(from.store.clone().list(first)).await?.revision;
            if store_of(&here) == store_of(&there) {
                return Err(StoreError::Input("FROM and TO are one store".to_owned()));
            }
        }
        let request = proto::WatchRequest { after: after.clone(), ..proto::WatchRequest::default() };
        let mut client = from.store.clone();
        let mut changes = from.answer(client.watch(request)).await?;
        let mut waiting: Vec<proto::Event> = Vec::new();
        loop {
            let response = match changes.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return Err(StoreError::of(&Status::unavailable("the watch ended"), &from.name)),
                Err(status) => return Err(StoreError::of(&status, &from.name)),
            };
            let (part, is_whole) = (response.part(), !response.more);
            waiting.extend(response.events);
            match part {
                Part::Snapshot => self.write(std::mem::take(&mut waiting)).await?,
                Part::SnapshotEnd => {
                    self.delete_extra().await?;
                    self.in_sync(&response.revision);
                    if is_once {
                        return Ok(());
                    }
                }
                // A revision that comes in several messages is written with the last one.
                Part::Changes if is_whole => self.write(std::mem::take(&mut waiting)).await?,
                Part::Changes | Part::Bookmark | Part::Unspecified => {}
            }
            if !response.revision.is_empty() {
                *after = response.revision;
            }
        }
    }

    /// Writes the newest state of each record, a commit for each set of owners.
    async fn write(&mut self, events: Vec<proto::Event>) -> Result<(), StoreError> {
        let mut newest = BTreeMap::new();
        for event in events {
            let Some(record) = event.record else { continue };
            let Some(key) = record.key.clone() else { continue };
            let is_put = event.kind == i32::from(proto::event::Kind::Put);
            newest.insert(tuple(&key), is_put.then_some(record).ok_or(key));
        }
        // The owners of the records, and what becomes of them.
        let mut commits: BTreeMap<Vec<String>, Vec<proto::Change>> = BTreeMap::new();
        for (key, state) in newest {
            self.extra.remove(&key);
            let (key, put, owners) = match state {
                Err(key) => (key, None, Vec::new()),
                Ok(record) => {
                    let owners = records::owners(&record).into_iter().map(str::to_owned).collect();
                    (record.key.clone().unwrap_or_default(), self.put(record), owners)
                }
            };
            let act = match put {
                Some(put) => proto::change::Act::Put(put),
                None => proto::change::Act::Delete(proto::Delete::default()),
            };
            self.copied += 1;
            commits.entry(owners).or_default().push(change(key, None, act));
        }
        for (owners, changes) in commits {
            self.commit(&owners, changes).await?;
        }
        Ok(())
    }

    /// The put of what is served of a record; `None` if that is nothing.
    fn put(&mut self, record: proto::Record) -> Option<proto::Put> {
        let label = record.key.as_ref().map(records::label).unwrap_or_default();
        let content = match record.quarantined {
            None => record.content,
            Some(quarantined) => {
                let what = if quarantined.serve.is_some() {
                    "gets its last good content"
                } else {
                    "does not get it"
                };
                if self.warned.insert(label.clone()) {
                    eprintln!("warning: {label} is quarantined; TO {what}");
                }
                quarantined.serve
            }
        };
        let is_over = record
            .expires_at
            .is_some_and(|at| SystemTime::try_from(at).is_ok_and(|at| at <= SystemTime::now()));
        let content = content.filter(|_| !is_over)?;
        let expires_at = record.expires_at.filter(|_| record.lease.is_none());
        Some(proto::Put { content: Some(content), expires_at, lease: record.lease, owners: Vec::new() })
    }

    async fn commit(&self, owners: &[String], changes: Vec<proto::Change>) -> Result<(), StoreError> {
        let nobody = [String::new()];
        let owners = if owners.is_empty() { &nobody } else { owners };
        for part in parts(changes) {
            for (number, owner) in owners.iter().enumerate() {
                let request = proto::CommitRequest {
                    changes: part.clone(),
                    owner: owner.clone(),
                    // The first owner replaces those that the record had before; the others join.
                    take_over: number == 0 && !owner.is_empty(),
                    message: "mirror".to_owned(),
                    allow_missing: true,
                    ..proto::CommitRequest::default()
                };
                commit(self.to, request).await?;
            }
        }
        Ok(())
    }

    /// Deletes what TO has and FROM does not.
    async fn delete_extra(&mut self) -> Result<(), StoreError> {
        let extra = std::mem::take(&mut self.extra);
        let changes = extra.into_iter().map(|(type_url, name, when)| {
            let act = proto::change::Act::Delete(proto::Delete::default());
            change(proto::Key { type_url, name, when }, None, act)
        });
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() && self.copied > 0 { Ok(()) } else { self.commit(&[], changes).await }
    }

    fn in_sync(&self, revision: &str) {
        match self.format {
            ReportFormat::Json => {
                say(json!({ "event": "in_sync", "revision": revision, "records": self.copied }));
            }
            ReportFormat::Text => {
                say(format_args!("in sync at {revision}: {} copied", counted(self.copied, "record")));
            }
        }
    }
}

/// Parts that keep the limits of a commit. An empty commit is one part: it is the first of a store.
fn parts(changes: Vec<proto::Change>) -> Vec<Vec<proto::Change>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for change in changes {
        let size = change.encoded_len();
        let last = parts.last().map_or(0, Vec::len);
        if last > 0 && (last == PART_CHANGES || bytes + size > PART_BYTES) {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        parts.last_mut().expect("there is a first part").push(change);
    }
    parts
}

/// The store of a revision such as `s7f3a-48`.
fn store_of(revision: &str) -> &str {
    revision.split_once('-').map_or(revision, |(store, _)| store)
}

const TIMEOUT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(1);
const PART_CHANGES: usize = 100;
const PART_BYTES: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  xds store mirror data new-data
  xds store mirror data 10.0.0.2:18001 --to-ca ca.pem --to-token-file token

JSON: one object per line: {event: in_sync, revision, records}. Fields may be added.

Exit codes:
  0  in sync, with --once; otherwise it runs until interrupted
  1  a server cannot be reached at the start, or refuses
  2  invalid input: arguments
  4  refused by the state of TO";
