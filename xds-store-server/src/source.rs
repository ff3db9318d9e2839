//! The source of the cache: what clients get of the records.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xds_core::{Cache, CommitError, RequestedRollout, Resource, Transaction, VariantId, shortened};
use xds_proto::xds::store::v1::State;
use xds_store::content::{self, ContentError};
use xds_store::key::RecordKey;
use xds_store::log::{Head, StoreRevision};
use xds_store::record::{RecordState, served};
use xds_store::rollout::requested_by;
use xds_store::store::{Loaded, Published, Store};
use xds_store::time;

/// Commits what the store publishes to a cache.
#[derive(Debug)]
pub(crate) struct Source {
    cache: Arc<Cache>,
    /// The last request for a rollout of a commit that changed the cache.
    requested: Mutex<Option<RequestedRollout>>,
}

/// All records of a store, for the first transaction (ST57).
#[derive(Debug)]
pub(crate) struct Start {
    transaction: Transaction,
    refused: Option<Refusal>,
    now: i64,
}

/// Why the cache does not take what the store has. That is a defect: the store accepts only what
/// the cache accepts (ST18).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A record is no resource.
    #[error("{key:?} cannot be served: {error}")]
    Record {
        /// The record.
        key: RecordKey,
        /// Why.
        error: ContentError,
    },
    /// The records do not go together.
    #[error(transparent)]
    Together(#[from] CommitError),
}

/// What a record is for the cache.
#[derive(Debug)]
enum CacheChange {
    Put(Box<Resource>),
    Remove(VariantId),
    /// SR45: it is quarantined, with this reason, and nothing is served in its place.
    Withhold(VariantId, String),
    /// ST55: configuration is not served.
    Nothing,
}

impl Source {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        Self { cache, requested: Mutex::default() }
    }

    /// Begins the first transaction.
    pub(crate) fn start(now: i64) -> Start {
        Start { transaction: Transaction::new(), refused: None, now }
    }

    /// Commits all records of a store in one transaction. A store without any commit says nothing
    /// to clients: all resources are unknown, and not absent (ST5, G13).
    pub(crate) fn load(&self, head: &Head, start: Start) -> Result<(), Refusal> {
        let Start { mut transaction, refused, .. } = start;
        if let Some(refusal) = refused {
            return Err(refusal);
        }
        if head.revision > 0 {
            let origin = transaction.origin();
            origin.source = SOURCE.into();
            origin.label = StoreRevision::of(head, head.revision).to_string().into();
            origin.message = "all records of the store".into();
            origin.rollout = head.requested_rollout();
            self.requested().clone_from(&origin.rollout);
            self.cache.commit(transaction)?;
        }
        Ok(())
    }

    /// SR20, G13: while the store takes a snapshot, a resource that it lacks is unknown, and not absent.
    pub(crate) fn set_resyncing(&self, is_resyncing: bool) {
        self.cache.set_outdated(is_resyncing);
    }

    /// Commits all records of a store that was loaded again, and removes those that are gone, in one
    /// transaction. What did not change is not sent to clients again.
    pub(crate) fn load_again(&self, start: Start, before: &Store, after: &Store) -> Result<(), Refusal> {
        let mut start = start;
        let snapshot = self.cache.snapshot();
        for (type_url, _) in snapshot.counts() {
            let variants = snapshot.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
            for variant in variants.flat_map(|(_, variants)| variants.iter()) {
                let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
                let id = VariantId { type_url: type_url.clone(), name, constraints };
                let key = RecordKey::of(&id);
                // The cache may have resources of other sources.
                if before.has(&key) && !after.serves(&key) {
                    start.transaction.remove(id);
                }
            }
        }
        self.load(after.head(), start)
    }

    /// Commits durable commits in one transaction (ST57). A commit that changes nothing that is
    /// served leaves the revision of the cache (ST58).
    pub(crate) fn publish(&self, store: &Store, published: &[Published], now: i64) -> Result<(), Refusal> {
        let head = store.head();
        let Some(last) = published.last() else { return Ok(()) };
        let mut transaction = Transaction::new();
        // The order of changes has no meaning in a transaction, so only the last state of each
        // record is in it.
        let changed: Vec<_> = published.iter().map(|commit| store.served(commit)).collect();
        let states: BTreeMap<_, _> =
            changed.iter().flat_map(|of| of.iter()).map(|(key, state)| (key, state)).collect();
        for (key, state) in states {
            add(&mut transaction, key, change_of(key, state, now))?;
        }
        let origin = transaction.origin();
        origin.source = SOURCE.into();
        origin.label = StoreRevision::of(head, last.revision).to_string().into();
        // Not that of the head, which may be ahead of these commits.
        let asked = |commit: &Published| Some(requested_by(commit.revision, commit.entry.rollout.as_ref()?));
        let mut requested = self.requested();
        origin.rollout = published.iter().rev().find_map(asked).or_else(|| requested.clone());
        let rollout = origin.rollout.clone();
        let is_by_one = published.iter().all(|commit| commit.entry.identity == last.entry.identity);
        if is_by_one {
            origin.author = shortened(&last.entry.identity, TEXT_LIMIT_BYTES).into();
        }
        origin.message = match published {
            [one] => shortened(&one.entry.message, TEXT_LIMIT_BYTES).into(),
            several => format!("{} commits of the store", several.len()).into(),
        };
        // Without a change there is nothing to roll out, now or with the next commit.
        if self.cache.commit(transaction)?.changed > 0 {
            *requested = rollout;
        }
        Ok(())
    }

    fn requested(&self) -> MutexGuard<'_, Option<RequestedRollout>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start {
    /// Adds a record.
    pub(crate) fn add(&mut self, loaded: Loaded) {
        if self.refused.is_none() {
            let (key, state) = (loaded.key.clone(), loaded.for_clients().clone());
            let change = change_to(&key, &state, self.now, || loaded.resource);
            self.refused = add(&mut self.transaction, &key, change).err();
        }
    }
}

fn add(
    transaction: &mut Transaction,
    key: &RecordKey,
    change: Result<CacheChange, ContentError>,
) -> Result<(), Refusal> {
    match change.map_err(|error| Refusal::Record { key: key.clone(), error })? {
        CacheChange::Put(resource) => transaction.put(*resource),
        CacheChange::Remove(id) => transaction.remove(id),
        CacheChange::Withhold(id, reason) => transaction.remove_because(id, &reason),
        CacheChange::Nothing => {}
    }
    Ok(())
}

/// What a record in this state is for the cache at this time, in nanoseconds since 1970.
fn change_of(key: &RecordKey, state: &RecordState, now: i64) -> Result<CacheChange, ContentError> {
    let resource = || served(state).map(|content| content::resource(&key.id(), content));
    change_to(key, state, now, resource)
}

/// The same, with the resource that is served unless the record has ended.
fn change_to(
    key: &RecordKey,
    state: &RecordState,
    now: i64,
    resource: impl FnOnce() -> Option<Result<Resource, ContentError>>,
) -> Result<CacheChange, ContentError> {
    let id = key.id();
    if id.type_url.message_name().starts_with("xds.store.v1.") {
        return Ok(CacheChange::Nothing);
    }
    // The end of a lease is a commit.
    let end = state.expires_at.as_ref().filter(|_| state.lease.is_none()).map(time::from_proto);
    let has_ended = end.is_some_and(|end| end <= now) || state.lifecycle() == State::Deleted;
    match if has_ended { None } else { resource() } {
        Some(resource) => Ok(CacheChange::Put(Box::new(resource?))),
        None => Ok(match state.quarantined.as_ref().filter(|_| !has_ended) {
            Some(quarantined) => CacheChange::Withhold(id, quarantined.reason.clone()),
            None => CacheChange::Remove(id),
        }),
    }
}

const SOURCE: &str = "store";
/// The longest author or message in the origin of a transaction.
const TEXT_LIMIT_BYTES: usize = 256;

#[cfg(test)]
mod tests;
