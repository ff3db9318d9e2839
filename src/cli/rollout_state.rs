//! The folder of `--rollout-state`: the stable state, what goes on, and the orders of operators.
//!
//! | file | content |
//! | --- | --- |
//! | `stable` | what all clients have: a restarted server serves it, and rolls out the difference again |
//! | `refused` | the changes that are not tried again, also after a restart; no file if there is none |
//! | `requested` | the number of the last commit with steps of its own that all clients have |
//! | `status.json` | the rollout that runs, or why there is none |
//! | `source` | the folder or the store of which this is the state |
//! | `lock` | locked by the server |
//! | `order` | `promote`, `promote-refused` or `abort`, and how many rollouts were promoted, refused and replaced when `xds rollout` wrote it; the server removes it |
//!
//! Only the user of the server, and root, can read the state and steer. Files are replaced as a whole, by a rename.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use xds::admin;
use xds_core::{
    Constraints, RefusedChange, Resource, ResourceName, RolloutCounts, Snapshot, Transaction, VariantId,
    Version,
};
use xds_server::RolloutStatus;

mod source;

pub(super) use source::StateSource;

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
    PromoteRefused,
    Abort,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::PromoteRefused => "promote-refused",
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
    #[error(
        "{}: the file is damaged ({reason}), so the server cannot tell which change was refused. \
         Restore the file, or remove it: then the refused change is tried again when the server starts",
        path.display()
    )]
    DamagedRefusal { path: PathBuf, reason: &'static str },
    #[error(
        "{}: this state is of {before}, and this server serves {now}: its clients would be sent the state of another \
         source. Give the server an empty folder as --rollout-state. If it is the same source in another place, remove \
         this file, and `requested`",
        path.display()
    )]
    OtherSource { path: PathBuf, before: String, now: String },
    #[error("{}: nothing to abort: no rollout runs", path.display())]
    NothingToAbort { path: PathBuf },
    #[error("{}: nothing to promote: no change is refused", path.display())]
    NothingRefused { path: PathBuf },
    #[error("{}: nothing to promote: no rollout runs, and no change is refused", path.display())]
    NothingToPromote { path: PathBuf },
    #[error("{}: no server has used this folder as its --rollout-state", path.display())]
    NoState { path: PathBuf },
    #[error(
        "{}: the server did not carry out the order within 5 s: the rollout may have ended; see `xds rollout status`",
        path.display()
    )]
    TooLate { path: PathBuf },
    #[error("{}: another server uses this folder; give each server its own --rollout-state", path.display())]
    Used { path: PathBuf },
    #[error("{}: no server uses this folder now, so nobody can take the order", path.display())]
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

/// A [`RefusedChange`].
#[derive(Clone, PartialEq, Message)]
struct StoredRefusal {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(uint64, tag = "2")]
    ms_since_1970: u64,
    #[prost(message, repeated, tag = "3")]
    variants: Vec<StoredRefusedVariant>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredRefusedVariant {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// Encoded `DynamicParameterConstraints`.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    /// None if the variant was to be removed.
    #[prost(string, optional, tag = "4")]
    version: Option<String>,
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
        let mut locked = file.try_lock();
        if let Err(TryLockError::WouldBlock) = locked {
            // `is_used` may have it for a moment.
            sleep(Duration::from_millis(100));
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {
                // An order that nobody took was for the server before.
                _ = fs::remove_file(self.0.join("order"));
                Ok(RolloutLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(RolloutStateError::Used { path: self.0.clone() }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Whether a server uses the folder now.
    pub(super) fn is_used(&self) -> bool {
        let lock = File::open(self.0.join("lock"));
        lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The stored stable state, to be committed; `None` before the first one.
    pub(super) fn stable(&self) -> Result<Option<Transaction>, RolloutStateError> {
        let (path, bytes) = self.read("stable")?;
        let stable = bytes.map(read_stable).transpose();
        stable.map_err(|reason| RolloutStateError::Damaged { path, reason })
    }

    /// The changes that are refused.
    pub(super) fn refused(&self) -> Result<Vec<RefusedChange>, RolloutStateError> {
        let (path, bytes) = self.read("refused")?;
        let refused = bytes.map_or_else(|| Ok(Vec::new()), read_refused);
        refused.map_err(|reason| RolloutStateError::DamagedRefusal { path, reason })
    }

    fn read(&self, name: &str) -> Result<(PathBuf, Option<Bytes>), RolloutStateError> {
        let path = self.0.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok((path, Some(bytes.into()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((path, None)),
            Err(error) => Err(RolloutStateError::File { path, error }),
        }
    }

    pub(super) fn store_refused(&self, refused: &[RefusedChange]) -> Result<(), RolloutStateError> {
        match refused {
            [] => self.remove("refused"),
            _ => self.replace("refused", &refused_bytes(refused), true),
        }
    }

    fn remove(&self, name: &str) -> Result<(), RolloutStateError> {
        let path = self.0.join(name);
        match fs::remove_file(&path).and_then(|()| File::open(&self.0)?.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RolloutStateError::File { path, error })
            }
            _ => Ok(()),
        }
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
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RolloutStateError::NoState { path: self.0.clone() },
            _ => RolloutStateError::File { path, error },
        })
    }

    /// Orders what is to become of the rollout that runs, or that was refused, when so many ended before.
    pub(super) fn store_order(&self, order: Order, ended: RolloutCounts) -> Result<(), RolloutStateError> {
        let (word, RolloutCounts { promoted, refused, replaced, .. }) = (order.word(), ended);
        let text = format!("{word} {promoted} {refused} {replaced}\n");
        self.replace_with_mode("order", text.as_bytes(), false, READABLE)
    }

    pub(super) fn remove_order(&self) {
        _ = fs::remove_file(self.0.join("order"));
    }

    /// Whether an order was not taken yet.
    pub(super) fn has_order(&self) -> bool {
        self.0.join("order").exists()
    }

    /// Takes the order, if there is one, with how many rollouts had ended when it was given.
    pub(super) fn take_order(&self) -> io::Result<Option<(Order, [u64; 3])>> {
        // Renamed first: an order that is written meanwhile is another one.
        let taken = self.0.join("order.taken");
        match fs::rename(self.0.join("order"), &taken) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => renamed?,
        }
        // A pipe or a device would be read for ever.
        let text = xds_file::read_to_string(&taken, ORDER_BYTES)?;
        let order = parse_order(&text);
        if order.is_none() {
            tracing::warn!(order = text.trim().escape_debug().to_string(), "this is no order of xds rollout");
        }
        Ok(order)
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
            // One of another user, or a link, is not written to.
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&next)?;
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

/// An order is shorter.
const ORDER_BYTES: usize = 100;

fn parse_order(text: &str) -> Option<(Order, [u64; 3])> {
    let mut words = text.split_ascii_whitespace();
    let order = match words.next()? {
        "promote" => Order::Promote,
        "promote-refused" => Order::PromoteRefused,
        "abort" => Order::Abort,
        _ => return None,
    };
    let mut number = || words.next()?.parse().ok();
    Some((order, [number()?, number()?, number()?]))
}

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
    seal(bytes)
}

/// Sets the digest, for which the first bytes have room.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let digest = blake3::hash(&bytes[blake3::OUT_LEN..]);
    bytes[..blake3::OUT_LEN].copy_from_slice(digest.as_bytes());
    bytes
}

/// What follows the digest.
fn sealed(mut bytes: Bytes) -> Result<Bytes, &'static str> {
    if bytes.len() < blake3::OUT_LEN {
        return Err("it is too short");
    }
    let digest = bytes.split_to(blake3::OUT_LEN);
    if blake3::hash(&bytes) != *<&[u8; 32]>::try_from(&*digest).map_err(|_| "it is too short")? {
        return Err("its digest differs");
    }
    Ok(bytes)
}

/// A digest of the rest, then each change with its length before it.
fn refused_bytes(refused: &[RefusedChange]) -> Vec<u8> {
    let mut bytes = vec![0; blake3::OUT_LEN];
    for refused in refused {
        stored_refusal(refused).encode_length_delimited(&mut bytes).expect("a vector has room");
    }
    seal(bytes)
}

fn stored_refusal(refused: &RefusedChange) -> StoredRefusal {
    let variants = refused.contents().map(|(id, version)| StoredRefusedVariant {
        type_url: id.type_url.as_str().to_owned(),
        name: id.name.as_str().to_owned(),
        constraints: id.constraints.wire().clone(),
        version: version.map(|version| version.to_string()),
    });
    StoredRefusal {
        reason: refused.reason.to_string(),
        ms_since_1970: u64::try_from(refused.at.as_millis()).unwrap_or(u64::MAX),
        variants: variants.collect(),
    }
}

fn read_refused(bytes: Bytes) -> Result<Vec<RefusedChange>, &'static str> {
    let (mut bytes, mut refused) = (sealed(bytes)?, Vec::new());
    while !bytes.is_empty() {
        let stored =
            StoredRefusal::decode_length_delimited(&mut bytes).map_err(|_| "a change is unreadable")?;
        refused.push(refused_change(stored)?);
    }
    Ok(refused)
}

fn refused_change(stored: StoredRefusal) -> Result<RefusedChange, &'static str> {
    let variant = |stored: &StoredRefusedVariant| {
        let constraints = Constraints::from_wire(&stored.constraints).ok()?;
        let version = match &stored.version {
            Some(version) => Some(Version::parse(version)?),
            None => None,
        };
        let (type_url, name) = (stored.type_url.as_str().into(), stored.name.as_str().into());
        Some((VariantId { type_url, name, constraints }, version))
    };
    let variants: Option<Vec<_>> = stored.variants.iter().map(variant).collect();
    let variants = variants.ok_or("a variant is invalid")?;
    Ok(RefusedChange::new(variants, stored.reason.into(), Duration::from_millis(stored.ms_since_1970)))
}

fn read_stable(bytes: Bytes) -> Result<Transaction, &'static str> {
    let mut bytes = sealed(bytes)?;
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
        let folder = std::env::temp_dir().join(format!("xds-rollout-order-of-others-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        fs::write(folder.join("stable.next"), "of an earlier version").unwrap();
        state.store_stable(&Cache::new().snapshot()).unwrap();
        state.store_order(Order::Abort, RolloutCounts::default()).unwrap();
        let mode = |name| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("order"), mode("stable")), (0o644, 0o600));
        assert_eq!(state.take_order().unwrap(), Some((Order::Abort, [0; 3])));
        assert_eq!(state.take_order().unwrap(), None);
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
    fn what_is_refused_is_read_as_it_was_and_damage_is_seen() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-refused-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        let variant = |name: &str, when: &str| VariantId {
            constraints: when.parse().unwrap(),
            ..VariantId::unconstrained("example.com/acme.Thing", name)
        };
        let version = Version::of_payload(b"one");
        let contents = [(variant("a", "env=prod"), Some(version)), (variant("b", "env"), None)];
        let refused = RefusedChange::new(contents, "they reject it".into(), Duration::from_millis(1500));
        let other = RefusedChange::new([(variant("c", "env"), None)], "aborted".into(), Duration::ZERO);
        let refused = [refused, other];
        assert_eq!(state.refused().unwrap(), []);
        state.store_refused(&[]).unwrap();
        state.store_refused(&refused).unwrap();
        assert_eq!(RolloutState::open(&folder).unwrap().refused().unwrap(), refused);
        let bytes = refused_bytes(&refused);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(read_refused(damaged.into()).is_err());
            assert!(read_refused(bytes[..at].to_vec().into()).is_err());
        }
        fs::write(folder.join("refused"), &bytes[1..]).unwrap();
        assert!(matches!(state.refused(), Err(RolloutStateError::DamagedRefusal { .. })));
        state.store_refused(&[]).unwrap();
        assert_eq!(state.refused().unwrap(), []);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_order_is_taken_once() {
        let folder = std::env::temp_dir().join(format!("xds-rollout-order-{}", std::process::id()));
        let state = RolloutState::open(&folder).unwrap();
        assert_eq!(state.take_order().unwrap(), None);
        let mut ended = RolloutCounts::default();
        (ended.promoted, ended.refused, ended.replaced) = (3, 2, 1);
        for order in [Order::Promote, Order::PromoteRefused, Order::Abort] {
            state.store_order(order, ended).unwrap();
            assert!(state.has_order());
            assert_eq!(state.take_order().unwrap(), Some((order, [3, 2, 1])));
            assert_eq!(state.take_order().unwrap(), None);
        }
        assert!(!state.is_used());
        let lock = state.lock().unwrap();
        assert!(state.is_used());
        assert!(matches!(state.lock(), Err(RolloutStateError::Used { .. })));
        drop(lock);
        state.lock().unwrap();
        fs::write(folder.join("order"), "delete everything").unwrap();
        assert_eq!((state.take_order().unwrap(), state.has_order()), (None, false));
        // What would be read for ever, or leads elsewhere.
        std::os::unix::fs::symlink("/dev/zero", folder.join("order")).unwrap();
        state.take_order().unwrap_err();
        let elsewhere = folder.join("elsewhere");
        fs::write(&elsewhere, "of others").unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.join("order.next")).unwrap();
        state.store_order(Order::Abort, ended).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of others");
        assert!(state.take_order().unwrap().is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
