//! The durable store of `xds serve --store`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use clap::Args;
use tokio::runtime::Handle;
use xds::admin::{Trouble, Troubles};
use xds::folder::Descriptors;
use xds::{Cache, ClientList, Readiness, ResourceName, TypeUrl};
use xds_proto::xds::store::v1 as proto;
use xds_store::phase::PhaseGap;
use xds_store::read::{HistoryQuery, Payload, Reads};
use xds_store::rules::FieldSource;
use xds_store_server::{
    Alarm, Condition, StatusAdditions, StatusSource, StoreAuthorizer, StoreConfig, StoreHandle, StreamsSource,
};

use super::backups::{BackupOptions, Backups};
use super::migrate::MigrateOptions;
use super::peers::PeersOptions;
use super::schemas::SchemaOptions;
use super::sealing::SealOptions;
use super::server_file::{KeptServerFile, LocalToken};
use super::store_api::{ApiAccess, ApiOptions};
use super::store_limits::StoreLimits;
use crate::cli::store::etcd::EtcdOptions;
use crate::cli::store::init::new_identity;
use crate::cli::store::place::Place;
use crate::cli::{Failure, counted};

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
    /// Apply DIR to the store as this owner
    ///
    /// The server commits DIR at the start and at each change. It releases records of this owner that
    /// DIR does not have; a record is deleted with its last owner. It does not overwrite changes and
    /// deletions by others: they are errors, and nothing is applied.
    #[arg(long, value_name = "NAME", default_value = "folder", value_parser = owner)]
    pub(super) owner: String,
    /// Quarantine a content when this many clients rejected it and no connected client accepted it (1
    /// to 1000; off by default)
    ///
    /// The last good content is served until somebody puts another one. Without an older content, the
    /// resource is removed from clients. The reason has the message of a client. Clients with the same
    /// certificate and address count as one (IPv6: the same /64 network), whatever nodes they claim to
    /// be. A NACK counts only if no other resource can be meant: the client rejected the resource in a
    /// response of its own, which the server sends after a NACK. Each server counts the clients that are
    /// connected to it.
    #[arg(long, value_name = "CLIENTS", requires = "store", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) quarantine_nacks: Option<u16>,
    #[command(flatten)]
    limits: StoreLimits,
    #[command(flatten)]
    pub(super) api: ApiOptions,
    #[command(flatten)]
    sealing: SealOptions,
    #[command(flatten)]
    schemas: SchemaOptions,
    #[command(flatten)]
    pub(super) migrate: MigrateOptions,
    #[command(flatten)]
    peers: PeersOptions,
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
    /// SR17: how many peers a commit waits for.
    ack_peers: usize,
    /// What commands on the same machine present.
    token: LocalToken,
}

impl StoreOptions {
    /// Opens the store and commits its records to the cache. `None` without `--store`.
    pub(super) fn start(
        &self,
        cache: &Arc<Cache>,
        descriptors: &Arc<Descriptors>,
        runtime: &Handle,
    ) -> Result<Option<ServedStore>, Failure> {
        let Some(place) = &self.store else { return Ok(None) };
        if *place == Place::Memory {
            tracing::warn!("--store memory: keeps nothing: all commits are lost when this process ends");
        }
        let schemas = self.schemas.read(descriptors)?;
        let engine = place.open(&new_identity()?, &self.etcd, runtime).map_err(Failure::Place)?;
        let engine = self.sealing.sealed(engine)?;
        let mut config = StoreConfig::default();
        config.cache = Arc::clone(cache);
        config.schemas = Arc::new(schemas);
        config.says_alive = matches!(place, Place::Etcd(_));
        let types = Arc::clone(descriptors);
        config.fields = FieldSource::new(move |type_url, field| types.field_path(type_url, field));
        config.peers = self.peers.config(place, runtime).map_err(Failure::Peers)?;
        self.limits.apply(&mut config);
        let handle = StoreHandle::start(engine, config);
        let handle = handle.map_err(|error| Failure::Place(place.not_started(error)))?;
        let backups = self.backups.start(&handle).map_err(Failure::System)?;
        let (place, ack_peers) = (place.clone(), self.peers.ack);
        Ok(Some(ServedStore { place, handle, backups, ack_peers, token: LocalToken::new()? }))
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
        let mut lines = vec![format!("{place}: {} at revision {revision}", counted(all, "resource"))];
        let types = types.into_iter().filter(|(_, variants)| *variants > 0);
        lines.extend(types.map(|(of_type, variants)| format!("{variants:>9} {}", of_type.message_name())));
        match self.handle.standing().borrow() {
            standing if standing.head.is_joining => {
                lines.push(format!("{place}: no snapshot of a peer yet; clients wait for it"));
            }
            standing if standing.condition == Condition::Waiting => {
                lines.push(format!("{place}: no commit yet; clients wait for the first one"));
            }
            _ => {}
        }
        lines
    }

    /// The option with which commands find the store.
    pub(super) fn commands_option(&self) -> String {
        match &self.place {
            Place::Folder(folder) => format!("--store {}", folder.display()),
            Place::Memory | Place::Etcd(_) => "--server HOST:PORT".to_owned(),
        }
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
    pub(super) fn api(
        &self,
        access: &ApiAccess,
        troubles: Troubles,
        clients: ClientList,
        rolls_out: bool,
    ) -> Router {
        let engine = match self.place {
            Place::Memory => "memory",
            Place::Folder(_) => "redb",
            Place::Etcd(_) => "etcd",
        };
        let store = self.clone();
        // SV26.
        let streams = StreamsSource::new(move |is_it| {
            let clients = clients.clone();
            async move {
                let is_it =
                    |of: &TypeUrl, name: &ResourceName, is_named| is_it(of.as_str(), name.as_str(), is_named);
                clients.with_resource(is_it).await as u64
            }
        });
        access.routes(self.handle.clone(), engine, move |config| {
            config.streams = streams;
            config.rolls_out = rolls_out;
            config.ack_peers = store.ack_peers;
            config.additions = StatusSource::new(move || store.additions(&troubles));
        })
    }

    /// Writes how commands on the same machine reach the API. `None` for a store that is in no folder.
    pub(super) fn write_server_file(&self, api: SocketAddr, troubles: &Troubles) -> Option<KeptServerFile> {
        let Place::Folder(folder) = &self.place else { return None };
        Some(KeptServerFile::write(folder.clone(), api, self.token.clone(), troubles))
    }

    /// The size of the file of the store; `None` if it has none.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.place.file().and_then(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len())
    }

    /// When the oldest commit that is kept was made. Reads the store, unless its engine cannot be
    /// reached: then a read takes seconds, and the metrics have to show that.
    pub(super) fn oldest_kept(&self) -> Option<SystemTime> {
        if self.handle.statistics().unreachable().is_some() {
            return None;
        }
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

    /// ST72: what the status has besides what the store itself knows.
    fn additions(&self, troubles: &Troubles) -> StatusAdditions {
        let mut additions = StatusAdditions::default();
        additions.size_bytes = self.size_bytes();
        additions.last_backup_at = self.backups.as_ref().and_then(Backups::last);
        let troubles = troubles.list();
        let alarms = troubles.iter().filter(|trouble| ALARMS.contains(&trouble.kind));
        additions.alarms = alarms.map(alarm_line).collect();
        additions
    }

    /// Adds what an operator has to act on.
    pub(super) fn add_troubles(&self, troubles: &Troubles) {
        let store = self.clone();
        troubles.add(move || {
            let of_backups = store.backups.as_ref().and_then(Backups::trouble);
            let of_others = store
                .peer_troubles()
                .into_iter()
                .chain(store.import_troubles())
                .chain(store.phase_troubles());
            store.trouble().into_iter().chain(of_backups).chain(of_others).collect()
        });
    }

    fn trouble(&self) -> Option<Trouble> {
        if let Some(alarm) = self.handle.alarm() {
            let kind = alarm.kind();
            return Some(match alarm {
                Alarm::ReadOnly { reason } => Trouble {
                    detail: reason,
                    cure: "Clients keep being served. Restart the server: it reads the store again. If that does not \
                           help, restore a backup."
                        .into(),
                    ..Trouble::error(kind, "The store accepts no commits")
                },
                Alarm::Full => Trouble {
                    cure: "Make room on the disk of the store. Then commits succeed without a restart, after at most \
                           10 s."
                        .into(),
                    ..Trouble::error(kind, "The disk of the store is full: commits are refused")
                },
                Alarm::Unavailable { reason } => Trouble {
                    detail: reason,
                    cure: "Clients keep what they have. Look whether the members of etcd run, and can be reached from \
                           here."
                        .into(),
                    ..Trouble::error(kind, "etcd cannot be reached: commits are refused")
                },
            });
        }
        let (standing, kind) = (self.handle.standing(), "store_waiting");
        if standing.borrow().head.is_joining {
            return Some(Trouble {
                cure: "Look at `xds store peers`: a peer of --peer has to answer. \
                       Until then the node accepts no commits."
                    .into(),
                ..Trouble::warning(kind, "The store has no snapshot of a peer yet: clients wait for it")
            });
        }
        (standing.borrow().condition == Condition::Waiting).then(|| Trouble {
            cure: "Write to it with `xds apply` or `xds put`. If the store had content, it is another one: look \
                   whether its volume is mounted, or restore a backup."
                .into(),
            ..Trouble::warning(kind, "The store has no commit yet: clients wait for the first one")
        })
    }

    /// What concerns the nodes that it replicates with.
    fn peer_troubles(&self) -> Vec<Trouble> {
        let Some(status) = self.handle.peers() else { return Vec::new() };
        let now = SystemTime::now();
        let is_silent = |peer: &&proto::PeerStatus| {
            let heard = peer.last_contact.and_then(|at| SystemTime::try_from(at).ok());
            !peer.is_up && heard.is_none_or(|at| now.duration_since(at).is_ok_and(|since| since > SILENT))
        };
        let silent = status.peers.iter().filter(is_silent).map(|peer| Trouble {
            detail: peer.error.clone(),
            cure: "Clients of this node keep what they have, and commits are accepted. The node gets the commits of \
                   the peer once it can be reached. Look at `xds store peers`."
                .into(),
            ..Trouble::warning("store_peer_down", format!("The peer {} does not answer", peer.address))
        });
        let alarms = status.alarms.iter().map(|alarm| Trouble {
            cure: "Look at `xds store peers` at this node and at the other one.".into(),
            ..Trouble::error("store_replication", alarm.clone())
        });
        alarms.chain(silent).collect()
    }

    /// SG37: what nodes registered at once, and no commit could.
    fn import_troubles(&self) -> Vec<Trouble> {
        let standing = self.handle.standing();
        let circles = &standing.borrow().import_circles;
        let trouble = |circle: &String| Trouble {
            detail: "None of them counts for new references.".into(),
            cure: "Put one of these authorities again with other imports, or delete it.".into(),
            ..Trouble::error("store_imports", format!("The imports {circle} of authorities are a circle"))
        };
        circles.iter().take(CIRCLES_SHOWN).map(trouble).collect()
    }

    /// SV42: nodes that do not see all that the other one writes.
    fn phase_troubles(&self) -> Vec<Trouble> {
        let standing = self.handle.standing();
        let gaps = &standing.borrow().phase_gaps;
        let trouble = |gap: &PhaseGap| Trouble {
            detail: gap.to_string(),
            cure: "Commits of these names are refused here until then. Look at `xds store migrate list` at \
                   both nodes."
                .into(),
            ..Trouble::error("store_phases", format!("{} is far away in the plan {}", gap.peer, gap.name))
        };
        gaps.iter().map(trouble).collect()
    }

    /// Whether it can serve clients.
    pub(super) fn readiness(&self) -> Arc<dyn Readiness> {
        Arc::new(StoreReadiness(self.handle.clone()))
    }

    /// `/readyz/store`: whether commits are accepted (ST59).
    pub(super) fn routes(&self) -> Router {
        let handle = self.handle.clone();
        let answer = move || {
            let answer = ready_to_commit(handle.refuses_commits());
            async { answer }
        };
        Router::new().route("/readyz/store", get(answer))
    }
}

#[derive(Debug)]
struct StoreReadiness(StoreHandle);

impl Readiness for StoreReadiness {
    fn is_ready(&self, _: Option<&TypeUrl>) -> bool {
        self.refuses_streams().is_none()
    }

    fn refuses_streams(&self) -> Option<String> {
        refusal(self.0.standing().borrow().condition)
    }
}

/// SR20: its records are not those that clients shall get, so they use another server.
fn refusal(condition: Condition) -> Option<String> {
    let text = "the store takes a snapshot from a peer: use another server, or try again";
    (condition == Condition::Resyncing).then(|| text.to_owned())
}

/// ST72.
fn alarm_line(Trouble { what, detail, .. }: &Trouble) -> String {
    if detail.is_empty() { what.clone() } else { format!("{what}: {detail}") }
}

fn owner(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let is_valid = (1..=OWNER_LIMIT_BYTES).contains(&text.len()) && text.chars().all(is_name);
    let wrong = "write letters, digits and . _ / - (at most 128), such as team-a";
    if is_valid { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

/// The longest name of an owner.
const OWNER_LIMIT_BYTES: usize = 128;

fn ready_to_commit(refusal: Option<String>) -> (StatusCode, String) {
    match refusal {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Troubles of the program that are alarms of the store, too.
const ALARMS: [&str; 8] = [
    "store_backup_failed",
    "store_backup_overdue",
    "folder_refused",
    "tokens_refused",
    "store_imports",
    "store_phases",
    "rollout_refused",
    "rollout_not_stored",
];

/// The page and the alarms show this many circles of imports.
const CIRCLES_SHOWN: usize = 10;

/// How long a peer may not answer before that is a trouble.
const SILENT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sr20_new_streams_are_refused_while_the_store_takes_a_snapshot_and_else_never() {
        assert!(refusal(Condition::Resyncing).is_some());
        for other in [Condition::Waiting, Condition::Serving, Condition::ReadOnly, Condition::Stopping] {
            assert_eq!(refusal(other), None, "{other:?}");
        }
    }

    #[test]
    fn st72_an_alarm_without_detail_ends_with_its_sentence() {
        let overdue = Trouble::error("store_backup_overdue", "A backup is overdue");
        assert_eq!(alarm_line(&overdue), "A backup is overdue");
        let failed = Trouble { detail: "no space".into(), ..overdue };
        assert_eq!(alarm_line(&failed), "A backup is overdue: no space");
    }
}
