//! The folder of `--rollout-state`: the stable state, what goes on, and the orders of operators.
//!
//! | file | content |
//! | --- | --- |
//! | `stable` | what all clients have: a restarted server serves it, and rolls out the difference again |
//! | `requested` | the number of the last commit with steps of its own that all clients have |
//! | `status.json` | the rollout that runs, or why there is none |
//! | `lock` | locked by the server |
//! | `order` | `promote` or `abort`, written by `xds rollout`; the server removes it |
//!
//! Who may write to the folder may steer the rollouts. Files are replaced as a whole, by a rename.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use xds::admin;
use xds_core::{Constraints, Resource, ResourceName, Snapshot, Transaction};
use xds_server::RolloutStatus;

#[derive(Debug, Clone)]
pub(super) struct RolloutState(PathBuf);

/// Keeps other servers from the folder, as long as it is not dropped.
#[derive(Debug)]
pub(super) struct RolloutLock {
    _file: File,
}

/// An order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Promote,
    Abort,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Abort => "abort",
        }
    }
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutStateError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(
        "{}: the stored stable state is damaged ({reason}), so the server cannot tell which state clients have. \
         Restore the file, or remove it: then all clients get the newest state when the server starts",
        path.display()
    )]
    Damaged { path: PathBuf, reason: &'static str },
    #[error("{}: nothing to {word}: no rollout runs, and only a refused change can be promoted then", path.display())]
    Nothing { path: PathBuf, word: &'static str },
    #[error("{}: another server uses this folder; give each server its own --rollout-state", path.display())]
    Used { path: PathBuf },
    #[error("{}: no server took the order within 5 s; is it the --rollout-state of a running server?", path.display())]
    NoServer { path: PathBuf },
}

/// One variant of the stable state.
#[derive(Clone, PartialEq, Message)]
struct StoredVariant {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// Encoded `DynamicParameterConstraints`.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    #[prost(uint64, optional, tag = "5")]
    ttl_ns: Option<u64>,
    #[prost(string, repeated, tag = "6")]
    aliases: Vec<String>,
    #[prost(bool, tag = "7")]
    do_not_cache: bool,
    /// An encoded `envoy.config.core.v3.Metadata`.
    #[prost(bytes = "bytes", tag = "8")]
    metadata: Bytes,
    #[prost(bool, tag = "9")]
    is_redirect: bool,
}

impl RolloutState {
    /// Makes the folder if there is none.
    pub(super) fn open(folder: &Path) -> Result<Self, RolloutStateError> {
        fs::create_dir_all(folder)
            .map_err(|error| RolloutStateError::File { path: folder.to_owned(), error })?;
        Ok(Self(folder.to_owned()))
    }

    /// Takes the folder for one server.
    pub(super) fn lock(&self) -> Result<RolloutLock, RolloutStateError> {
        let path = self.0.join("lock");
        let unusable = |error| RolloutStateError::File { path: path.clone(), error };
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {
                // An order that nobody took was for the server before.
                _ = self.take_order();
                Ok(RolloutLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(RolloutStateError::Used { path: self.0.clone() }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// The stored stable state, to be committed; `None` before the first one.
    pub(super) fn stable(&self) -> Result<Option<Transaction>, RolloutStateError> {
        let path = self.0.join("stable");
        let bytes = match fs::read(&path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RolloutStateError::File { path, error }),
        };
        read_stable(bytes).map(Some).map_err(|reason| RolloutStateError::Damaged { path, reason })
    }

    pub(super) fn store_stable(&self, stable: &Snapshot) -> Result<(), RolloutStateError> {
        self.replace("stable", &stable_bytes(stable), true)?;
        match &stable.origin().rollout {
            Some(requested) => self.replace("requested", format!("{}\n", requested.number).as_bytes(), true),
            None => Ok(()),
        }
    }

    /// The number of the last request whose change is stable; 0 if none is known.
    pub(super) fn requested(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("requested")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    pub(super) fn store_status(&self, status: &RolloutStatus) -> Result<(), RolloutStateError> {
        self.replace("status.json", format!("{:#}\n", admin::rollout_status(status)).as_bytes(), false)
    }

    pub(super) fn status(&self) -> Result<String, RolloutStateError> {
        let path = self.0.join("status.json");
        fs::read_to_string(&path).map_err(|error| RolloutStateError::File { path, error })
    }

    pub(super) fn store_order(&self, order: Order) -> Result<(), RolloutStateError> {
        let word = order.word();
        self.replace_with_mode("order", format!("{word}\n").as_bytes(), false, READABLE)
    }

    /// Whether an order was not taken yet.
    pub(super) fn has_order(&self) -> bool {
        self.0.join("order").exists()
    }

    /// Takes the order, if there is one.
    pub(super) fn take_order(&self) -> Option<Order> {
        // Renamed first: an order that is written meanwhile is another one.
        let taken = self.0.join("order.taken");
        let read = match fs::rename(self.0.join("order"), &taken) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error),
            Ok(()) => fs::read_to_string(&taken),
        };
        let text =
            read.inspect_err(|error| tracing::error!(%error, "an order of xds rollout cannot be read"));
        match text.ok()?.trim() {
            "promote" => Some(Order::Promote),
            "abort" => Some(Order::Abort),
            other => {
                tracing::warn!(order = other.escape_debug().to_string(), "this is no order of xds rollout");
                None
            }
        }
    }

    /// The stable state may contain secrets.
    fn replace(&self, name: &str, content: &[u8], is_durable: bool) -> Result<(), RolloutStateError> {
        self.replace_with_mode(name, content, is_durable, 0o600)
    }

    fn replace_with_mode(
        &self,
        name: &str,
        content: &[u8],
        is_durable: bool,
        mode: u32,
    ) -> Result<(), RolloutStateError> {
        let (path, next) = (self.0.join(name), self.0.join(format!("{name}.next")));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&next)?;
            // Whatever the umask is, and whoever made the file.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(content)?;
            if is_durable {
                file.sync_all()?;
            }
            fs::rename(&next, &path)?;
            if is_durable { File::open(&self.0)?.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| RolloutStateError::File { path: path.clone(), error })
    }
}

/// The server may run as another user than the operator who gives an order.
const READABLE: u32 = 0o644;

/// A digest of the rest, then each variant with its length before it.
fn stable_bytes(stable: &Snapshot) -> Vec<u8> {
    let mut bytes = vec![0; blake3::OUT_LEN];
    for (type_url, _) in stable.counts() {
        let names = stable.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
        let mut variants: Vec<_> = names.flat_map(|(_, variants)| variants.iter()).collect();
        variants.sort_by_key(|variant| (variant.name(), variant.constraints()));
        for variant in variants {
            let resource = variant.resource(type_url);
            let stored = StoredVariant {
                type_url: type_url.as_str().to_owned(),
                name: resource.name().as_str().to_owned(),
                constraints: resource.id().constraints.wire().clone(),
                payload: resource.payload().clone(),
                ttl_ns: resource.ttl().map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)),
                aliases: resource.aliases().iter().map(|alias| alias.as_str().to_owned()).collect(),
                do_not_cache: variant.do_not_cache(),
                metadata: resource.metadata(),
                is_redirect: resource.is_redirect(),
            };
            stored.encode_length_delimited(&mut bytes).expect("a vector has room");
        }
    }
    let digest = blake3::hash(&bytes[blake3::OUT_LEN..]);
    bytes[..blake3::OUT_LEN].copy_from_slice(digest.as_bytes());
    bytes
}

fn read_stable(mut bytes: Bytes) -> Result<Transaction, &'static str> {
    if bytes.len() < blake3::OUT_LEN {
        return Err("it is too short");
    }
    let digest = bytes.split_to(blake3::OUT_LEN);
    if blake3::hash(&bytes) != *<&[u8; 32]>::try_from(&*digest).map_err(|_| "it is too short")? {
        return Err("its digest differs");
    }
    let mut transaction = Transaction::new();
    transaction.origin().source = "rollout-state".into();
    while !bytes.is_empty() {
        let stored =
            StoredVariant::decode_length_delimited(&mut bytes).map_err(|_| "a variant is unreadable")?;
        transaction.put(resource(stored).ok_or("a variant is invalid")?);
    }
    Ok(transaction)
}

fn resource(stored: StoredVariant) -> Option<Resource> {
    let (type_url, name) = (stored.type_url.as_str().into(), ResourceName::from(stored.name.as_str()));
    let resource = match stored.is_redirect {
        true => Resource::redirect(type_url, name, stored.payload),
        false => Resource::new_within(usize::MAX, type_url, name, stored.payload),
    };
    let mut resource = resource.ok()?.with_constraints(Constraints::from_wire(&stored.constraints).ok()?);
    if let Some(ttl) = stored.ttl_ns {
        resource = resource.with_ttl(Duration::from_nanos(ttl));
    }
    if !stored.aliases.is_empty() {
        resource = resource.with_aliases(stored.aliases.iter().map(|alias| alias.as_str().into()));
    }
    if stored.do_not_cache {
        resource = resource.with_do_not_cache();
    }
    if !stored.metadata.is_empty() {
        resource = resource.with_metadata(stored.metadata);
    }
    Some(resource)
}

#[cfg(test)]
mod tests {
    use xds_core::Cache;

    use super::*;

    fn commit(cache: &Cache, text: &[(&str, &str, &str)]) {
        let mut transaction = Transaction::new();
        for (name, when, payload) in text {
            let payload = payload.to_owned().to_owned();
            let resource = Resource::new("example.com/acme.Thing", *name, payload).unwrap();
            let resource =
                resource.with_constraints(when.parse().unwrap()).with_ttl(Duration::from_millis(1500));
            transaction.put(resource.with_aliases([format!("{name}{when}-alias").as_str().into()]));
        }
        cache.commit(transaction).unwrap();
    }

    #[test]
    fn the_stable_state_is_read_as_it_was_and_damage_is_seen() {
        let cache = Cache::new();
        commit(&cache, &[("a", "env=prod", "one"), ("a", "env=test", "two"), ("b", "env", "three")]);
        let bytes = stable_bytes(&cache.snapshot());
        let other = Cache::new();
        other.commit(read_stable(bytes.clone().into()).unwrap()).unwrap();
        assert!(Transaction::between(&cache.snapshot(), &other.snapshot()).is_empty());
        assert!(Transaction::between(&other.snapshot(), &cache.snapshot()).is_empty());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(read_stable(damaged.into()).is_err());
        }
        assert!(read_stable(bytes[..bytes.len() - 1].to_vec().into()).is_err());
        assert!(read_stable(Bytes::new()).is_err());
        let empty = read_stable(stable_bytes(&Cache::new().snapshot()).into()).unwrap();
        assert!(empty.is_empty());
    }

    #[test]
    fn the_server_can_read_the_order_of_another_user_and_nobody_reads_the_state() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-order-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        fs::write(folder.join("stable.next"), "of an earlier version").unwrap();
        state.store_stable(&Cache::new().snapshot()).unwrap();
        state.store_order(Order::Abort).unwrap();
        let mode = |name| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("order"), mode("stable")), (0o644, 0o600));
        assert_eq!(state.take_order(), Some(Order::Abort));
        assert_eq!(state.take_order(), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_request_that_is_stable_is_stored_with_the_state() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-requested-{}", std::process::id()));
        let (state, cache) = (RolloutState::open(&folder).unwrap(), Cache::new());
        assert_eq!(state.requested(), 0);
        let mut transaction = Transaction::new();
        transaction.put(Resource::new("example.com/acme.Thing", "a", "one").unwrap());
        let plan = xds_core::RolloutPlan::new(Vec::new(), Duration::ZERO);
        transaction.origin().rollout = Some(xds_core::RequestedRollout { number: 7, plan });
        cache.commit(transaction).unwrap();
        state.store_stable(&cache.snapshot()).unwrap();
        assert_eq!(RolloutState::open(&folder).unwrap().requested(), 7);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_order_is_taken_once() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-order-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        assert_eq!(state.take_order(), None);
        for order in [Order::Promote, Order::Abort] {
            state.store_order(order).unwrap();
            assert!(state.has_order());
            assert_eq!((state.take_order(), state.take_order()), (Some(order), None));
        }
        let lock = state.lock().unwrap();
        assert!(matches!(state.lock(), Err(RolloutStateError::Used { .. })));
        drop(lock);
        state.lock().unwrap();
        fs::write(folder.join("order"), "delete everything").unwrap();
        assert_eq!((state.take_order(), state.has_order()), (None, false));
        fs::remove_dir_all(folder).unwrap();
    }
}
