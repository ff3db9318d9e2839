//! The durable store of `xds serve --store`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use clap::Args;
use tokio::runtime::Handle;
use xds::Cache;
use xds::admin::{Trouble, Troubles};
use xds_store::read::{HistoryQuery, Payload, Reads};
use xds_store_server::{Condition, Standing, StoreAuthorizer, StoreConfig, StoreHandle};

use super::backups::{BackupOptions, Backups};
use super::sealing::SealOptions;
use super::server_file::{LocalToken, ServerFile};
use super::store_api::{ApiAccess, ApiOptions};
use super::store_limits::StoreLimits;
use crate::cli::Failure;
use crate::cli::store::etcd::EtcdOptions;
use crate::cli::store::init::new_identity;
use crate::cli::store::place::Place;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct StoreOptions {
    /// Serve the durable store in this folder, which `xds store init` creates; or in
    /// etcd://HOST:PORT,HOST:PORT/PREFIX; `memory:` for a store that is lost when the process ends
    ///
    /// A folder is served by one process. An etcd can be shared by several servers, which all accept
    /// commits. Let etcd compact its history (--auto-compaction-retention of etcd): the store keeps its
    /// own history, and never compacts etcd. If etcd has other limits than its defaults, write them
    /// into the address: etcd://HOST:PORT/PREFIX?max-txn-ops=N&max-request-bytes=N.
    ///
    /// Clients get the resources that the API of the store writes. Everything that the API answered
    /// with OK survives a restart, a crash and a power cut.
    #[arg(long, value_name = "STORE")]
    store: Option<Place>,
    /// The owner as which DIR is applied to the store
    ///
    /// At the start and at each change the records of this owner become what DIR has, in one
    /// commit. Records that DIR does not have any more are deleted. Records of others, and changes
    /// that others made, are never overwritten: that is an error of the file.
    #[arg(long, value_name = "NAME", default_value = "folder", value_parser = owner)]
    pub(super) owner: String,
    #[command(flatten)]
    limits: StoreLimits,
    #[command(flatten)]
    api: ApiOptions,
    #[command(flatten)]
    sealing: SealOptions,
    #[command(flatten)]
    backups: BackupOptions,
    #[command(flatten)]
    etcd: EtcdOptions,
}

/// A store that is served.
#[derive(Debug, Clone)]
pub(super) struct ServedStore {
    pub(super) place: Place,
    pub(super) handle: StoreHandle,
    pub(super) backups: Option<Backups>,
    /// What commands on the same machine present.
    token: LocalToken,
}

impl StoreOptions {
    /// Opens the store and commits its records to the cache. `None` without `--store`.
    pub(super) fn start(&self, cache: &Arc<Cache>, runtime: &Handle) -> Result<Option<ServedStore>, Failure> {
        let Some(place) = &self.store else { return Ok(None) };
        if *place == Place::Memory {
            tracing::warn!("--store memory: keeps nothing: all commits are lost when this process ends");
        }
        let engine = place.open(&new_identity()?, &self.etcd, runtime).map_err(Failure::Place)?;
        let engine = self.sealing.sealed(engine)?;
        let mut config = StoreConfig::default();
        config.cache = Arc::clone(cache);
        self.limits.apply(&mut config);
        let handle = StoreHandle::start(engine, config);
        let handle = handle.map_err(|error| Failure::Place(place.not_started(error)))?;
        let backups = self.backups.start(&handle).map_err(Failure::System)?;
        Ok(Some(ServedStore { place: place.clone(), handle, backups, token: LocalToken::new()? }))
    }
}

impl ServedStore {
    /// The summary of what it serves.
    pub(super) fn summary(&self, cache: &Cache) -> Vec<String> {
        let snapshot = cache.snapshot();
        let variants = |of_type| {
            let names = snapshot.of_type(of_type).into_iter().flat_map(|resources| resources.iter());
            names.map(|(_, variants)| variants.len()).sum::<usize>()
        };
        let types: Vec<_> = snapshot.counts().map(|(of_type, _)| (of_type, variants(of_type))).collect();
        let all: usize = types.iter().map(|(_, variants)| variants).sum();
        let revision = self.handle.standing().borrow().revision_text();
        let place = self.place.to_string();
        let place = place.trim_end_matches(':');
        let mut lines = vec![format!("{place}: {all} resources at revision {revision}")];
        let types = types.into_iter().filter(|(_, variants)| *variants > 0);
        lines.extend(types.map(|(of_type, variants)| format!("{variants:>9} {}", of_type.message_name())));
        if self.handle.standing().borrow().condition == Condition::Waiting {
            lines.push(format!("{place}: no commit yet; clients wait for the first one"));
        }
        lines
    }

    /// Who may use the API: commands on the same machine, and the clients of the options.
    pub(super) fn access(
        &self,
        options: &StoreOptions,
        policy: Option<Arc<dyn StoreAuthorizer>>,
    ) -> Result<Arc<ApiAccess>, Failure> {
        options.api.open(self.token.access(), policy).map(Arc::new).map_err(Failure::Tokens)
    }

    /// The API of the store, for the admin port.
    pub(super) fn api(&self, access: &ApiAccess) -> Router {
        let engine = match self.place {
            Place::Memory => "memory",
            Place::Folder(_) => "redb",
            Place::Etcd(_) => "etcd",
        };
        access.routes(self.handle.clone(), engine)
    }

    /// Writes how commands on the same machine reach the admin port. `None` for a store in memory.
    pub(super) fn write_server_file(&self, admin: SocketAddr) -> Result<Option<ServerFile>, Failure> {
        let Place::Folder(folder) = &self.place else { return Ok(None) };
        ServerFile::write(folder, admin, &self.token).map(Some).map_err(Failure::System)
    }

    /// The size of the file of the store; `None` if it has none.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.place.file().and_then(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len())
    }

    /// When the oldest commit that is kept was made. Reads the store.
    pub(super) fn oldest_kept(&self) -> Option<SystemTime> {
        let view = self.handle.view().ok()?;
        let reads = Reads::new(&*view).ok()?;
        let query = HistoryQuery {
            key: None,
            before: Some(reads.head().floor + 2),
            may_read: &|_| true,
            payload: Payload::Without,
            limit: 1,
            limit_bytes: usize::MAX,
            scan_limit: 1,
        };
        let commit = reads.history(query).ok()?.commits.pop()?;
        SystemTime::try_from(commit.at?).ok()
    }

    /// Adds what an operator has to act on.
    pub(super) fn add_troubles(&self, troubles: &Troubles) {
        let store = self.clone();
        troubles.add(move || store.trouble().into_iter().collect());
    }

    fn trouble(&self) -> Option<Trouble> {
        let standing = self.handle.standing().borrow().clone();
        if standing.condition == Condition::ReadOnly {
            return Some(Trouble {
                detail: standing.reason,
                cure: "Clients keep being served. Restart the server: it reads the store again. If that does not help, \
                       restore a backup."
                    .into(),
                ..Trouble::error("store_read_only", "The store accepts no commits")
            });
        }
        if self.handle.statistics().is_full() {
            return Some(Trouble {
                cure: "Make room on the disk of the store. Then commits succeed without a restart.".into(),
                ..Trouble::error("store_full", "The disk of the store is full: commits are refused")
            });
        }
        (standing.condition == Condition::Waiting).then(|| Trouble {
            cure: "Write to it with `xds apply` or `xds put`. If the store had content, it is another one: look \
                   whether its volume is mounted, or restore a backup."
                .into(),
            ..Trouble::warning("store_waiting", "The store has no commit yet: clients wait for the first one")
        })
    }

    /// `/readyz/store`: whether commits are accepted (ST59).
    pub(super) fn routes(&self) -> Router {
        let standing = self.handle.standing();
        let answer = move || {
            let answer = ready_to_commit(&standing.borrow());
            async { answer }
        };
        Router::new().route("/readyz/store", get(answer))
    }
}

fn owner(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let is_valid = (1..=OWNER_LIMIT_BYTES).contains(&text.len()) && text.chars().all(is_name);
    let wrong = "write letters, digits and . _ / - (at most 128), such as team-a";
    if is_valid { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

/// The longest name of an owner.
const OWNER_LIMIT_BYTES: usize = 128;

fn ready_to_commit(standing: &Standing) -> (StatusCode, String) {
    if standing.accepts_commits() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", standing.reason))
    }
}
