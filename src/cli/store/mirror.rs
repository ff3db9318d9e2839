//! `xds store mirror`: copies one store into another until stopped (ST62).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::{Code, Status};
use xds::client::bootstrap::{ChannelCredentials, IdentityFiles, Server, TlsFiles};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::watch_response::Part;

use super::connection::{Connection, read_token};
use super::error::StoreError;
use super::write::print_error;
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, say};
use target::Target;

mod target;

/// Copy a store into another one, and then each change, until interrupted
///
/// This moves a store to another engine or machine. Start a server with a new store, mirror the old
/// store into it, and wait for `in sync`. Move the readers: they get the same versions, so nothing is
/// sent again. Then stop the writers, and let them write to the new store. A mirror in the other
/// direction is the way back.
///
/// TO ends up with the same resources, named owners and leases as FROM, and without any others. Of a
/// quarantined resource it gets what is served in its place. The history is not copied. Nothing else
/// may write to TO meanwhile. The client of FROM must have the right to read all resources. The mirror
/// deletes from TO every resource that this client cannot read.
///
/// A FROM without any commit says nothing yet: the mirror waits for the first one. If FROM has no
/// resources and TO has some, the mirror ends, except with --allow-empty.
///
/// A lease in TO starts when the mirror copies it. The mirror renews the lease while FROM has the
/// resource, and while FROM cannot be reached.
///
/// What one commit of FROM changed is changed by one commit of TO. If TO does not take so many changes
/// at once, there are several commits, with puts before deletions. A mirror that was interrupted, or
/// started again, writes only what differs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Mirror {
    /// The store to copy: its folder on this machine, or HOST:PORT or https://HOST:PORT of the admin
    /// port of its server
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
    /// Delete all resources of TO if FROM has none
    #[arg(long)]
    allow_empty: bool,
    /// End as soon as both are in sync
    #[arg(long)]
    once: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// What is copied.
#[derive(Debug, Default)]
struct Copied {
    /// The revision of FROM that TO has; empty if that is not known.
    after: String,
    /// FROM and TO, as their revisions name them; empty at the start.
    stores: [String; 2],
}

/// Why copying ended.
enum End {
    /// With `--once`.
    InSync,
    /// FROM has forgotten the revision, or TO lacks a record: all records are compared again.
    Differs,
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
        let (mut from, mut target, mut copied) = (from, Target::new(to), Copied::default());
        loop {
            match self.follow(&from, &mut target, &mut copied).await {
                Ok(End::InSync) => return Ok(()),
                Ok(End::Differs) => {
                    copied.after.clear();
                    sleep(AGAIN).await;
                }
                Err(error) if error.is_away() && !self.once => {
                    eprintln!("{error}; trying again");
                    from = self.open_again(&mut target, &mut copied.after).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for both servers. One that was started again may have another address and token.
    async fn open_again(&self, target: &mut Target, after: &mut String) -> Result<Connection, StoreError> {
        loop {
            sleep(AGAIN).await;
            match self.open(&self.to, self.to_token_file.as_deref(), self.to_ca.as_ref()).await {
                Err(error) if error.is_away() => continue,
                to => target.to = to?,
            }
            let error = tokio::select! {
                from = self.open_from() => return from,
                error = target.renew_always(after) => error,
            };
            after.clear();
            if !error.is_away() {
                return Err(error);
            }
        }
    }

    /// Waits until FROM answers.
    async fn open_from(&self) -> Result<Connection, StoreError> {
        loop {
            let from = self.open(&self.from, self.from_token_file.as_deref(), self.from_ca.as_ref()).await;
            let answered = match from {
                Ok(from) => revision(&from).await.map(|_| from),
                Err(error) => Err(error),
            };
            match answered {
                Err(error) if error.is_away() => sleep(AGAIN).await,
                done => return done,
            }
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
        if !place.contains(':') {
            return Err(StoreError::Input(format!("{place} is neither a folder nor HOST:PORT")));
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

    /// Refuses stores that cannot be copied, and waits until FROM has a commit.
    async fn check(&self, from: &Connection, to: &Connection, copied: &mut Copied) -> Result<(), StoreError> {
        let here = revision(to).await?;
        let mut there = revision(from).await?;
        let stores = [&there, &here].map(|revision| parts(revision).0.to_owned());
        if stores[0] == stores[1] {
            return Err(StoreError::Input("FROM and TO are one store".to_owned()));
        }
        if !copied.stores[0].is_empty() && copied.stores != stores {
            let which = if copied.stores[0] == stores[0] { "TO" } else { "FROM" };
            return Err(StoreError::State(format!("{which} is another store than before")));
        }
        copied.stores = stores;
        // ST5: it says nothing yet.
        if parts(&there).1 == NO_COMMIT && !self.once {
            eprintln!("FROM has no commit yet; waiting for the first one");
        }
        while parts(&there).1 == NO_COMMIT {
            if self.once {
                return Err(StoreError::State("FROM has no commit yet".to_owned()));
            }
            sleep(AGAIN).await;
            there = revision(from).await?;
        }
        Ok(())
    }

    /// Copies what FROM has, and then each change.
    async fn follow(
        &self,
        from: &Connection,
        target: &mut Target,
        copied: &mut Copied,
    ) -> Result<End, StoreError> {
        self.check(from, &target.to, copied).await?;
        let after = &mut copied.after;
        let mut snapshot = if after.is_empty() { Some(target.snapshot().await?) } else { None };
        let request = proto::WatchRequest { after: after.clone(), ..proto::WatchRequest::default() };
        let mut changes = match from.answer(from.store.clone().watch(request)).await {
            Err(StoreError::Refused(refused)) if refused.code == Code::OutOfRange => {
                return Ok(End::Differs);
            }
            changes => changes?,
        };
        let mut waiting: Vec<proto::Event> = Vec::new();
        let mut renewed_at = None;
        loop {
            let renew_at = match (renewed_at, target.renew_every()) {
                (_, None) => None,
                (None, Some(_)) => Some(Instant::now()),
                (Some(at), Some(every)) => Some(at + every),
            };
            let is_renewed = renew_at.is_some() && snapshot.is_none();
            let message = tokio::select! {
                message = changes.message() => message,
                () = sleep_until(renew_at.unwrap_or_else(Instant::now)), if is_renewed => {
                    renewed_at = Some(Instant::now());
                    match target.renew().await {
                        Ok(true) => continue,
                        Ok(false) => return Ok(End::Differs),
                        Err(error) => {
                            after.clear();
                            return Err(error);
                        }
                    }
                }
            };
            let response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return Err(StoreError::of(&Status::unavailable("the watch ended"), &from.name)),
                Err(status) if status.code() == Code::OutOfRange => return Ok(End::Differs),
                Err(status) => return Err(StoreError::of(&status, &from.name)),
            };
            let is_whole = !response.more;
            match (response.part(), &mut snapshot) {
                (Part::Snapshot, Some(snapshot)) => snapshot.add(response.events, target).await?,
                (Part::SnapshotEnd, present) => {
                    if let Some(snapshot) = present.take() {
                        // ST53: what FROM does not show may exist there.
                        let missing = snapshot.missing();
                        if response.left_out && missing > 0 {
                            return Err(StoreError::NotShown(missing));
                        }
                        let emptied = snapshot.emptied();
                        if emptied > 0 && !self.allow_empty {
                            return Err(StoreError::EmptyFrom(emptied));
                        }
                        snapshot.end(target).await?;
                    }
                    self.in_sync(&response.revision, target.copied);
                    if self.once {
                        return Ok(End::InSync);
                    }
                }
                // A revision that comes in several messages is written with the last one.
                (Part::Changes, _) => {
                    waiting.extend(response.events);
                    if is_whole {
                        // If only a part is written, to begin again would write old states.
                        after.clear();
                        target.write(std::mem::take(&mut waiting)).await?;
                    }
                }
                (Part::Snapshot | Part::Bookmark | Part::Unspecified, _) => {}
            }
            if !response.revision.is_empty() {
                *after = response.revision;
            }
        }
    }

    fn in_sync(&self, revision: &str, copied: usize) {
        match self.format {
            ReportFormat::Json => {
                say(json!({ "event": "in_sync", "revision": revision, "records": copied }));
            }
            ReportFormat::Text => {
                say(format_args!("in sync at {revision}: {} copied", counted(copied, "record")));
            }
        }
    }
}

/// The revision of a store.
async fn revision(of: &Connection) -> Result<String, StoreError> {
    let first = proto::ListRequest { page_size: 1, without_payload: true, ..Default::default() };
    Ok(of.answer(of.store.clone().list(first)).await?.revision)
}

/// The store and the number of a revision such as `s7f3a-48`.
fn parts(revision: &str) -> (&str, &str) {
    revision.split_once('-').unwrap_or((revision, ""))
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// The number of the revision of a store without any commit.
const NO_COMMIT: &str = "0";
const AGAIN: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  xds store mirror data new-data
  xds store mirror data 10.0.0.2:18001 --to-ca ca.pem --to-token-file token

JSON: one object per line: {event: in_sync, revision, records}. Fields may be added.

Exit codes:
  0  in sync, with --once; otherwise it runs until interrupted
  1  a server cannot be reached at the start, or refuses
  2  invalid input: arguments
  4  refused by the state of TO; another store than before; FROM has no resources, or with --once no
     commit";
