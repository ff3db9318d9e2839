//! The source of the cache: what clients get of the records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use xds_core::{
    Cache, CommitError, Constraints, Resource, ResourceError, ResourceName, Transaction, VariantId, shortened,
};
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::log::{Head, StoreRevision};
use xds_store::record::RecordState;
use xds_store::store::Published;

/// Commits what the store publishes to a cache.
#[derive(Debug)]
pub(crate) struct Source {
    cache: Arc<Cache>,
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

/// Why a content is no resource.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// The payload or the name.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The TTL.
    #[error("the ttl is not a positive duration")]
    Ttl,
}

/// What a record is for the cache.
#[derive(Debug)]
enum CacheChange {
    Put(Box<Resource>),
    Remove(VariantId),
    /// ST55: configuration is not served.
    Nothing,
}

impl Source {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        Self { cache }
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
            self.cache.commit(transaction)?;
        }
        Ok(())
    }

    /// Commits durable commits in one transaction (ST57). A commit that changes nothing that is
    /// served leaves the revision of the cache (ST58).
    pub(crate) fn publish(&self, head: &Head, published: &[Published], now: i64) -> Result<(), Refusal> {
        let Some(last) = published.last() else { return Ok(()) };
        let mut transaction = Transaction::new();
        // The order of changes has no meaning in a transaction, so only the last state of each
        // record is in it.
        let changed = published.iter().flat_map(|commit| &commit.changed);
        let states: BTreeMap<_, _> = changed.map(|(key, state)| (key, state)).collect();
        for (key, state) in states {
            add(&mut transaction, key, state, now)?;
        }
        let origin = transaction.origin();
        origin.source = SOURCE.into();
        origin.label = StoreRevision::of(head, last.revision).to_string().into();
        let is_by_one = published.iter().all(|commit| commit.entry.identity == last.entry.identity);
        if is_by_one {
            origin.author = shortened(&last.entry.identity, TEXT_LIMIT_BYTES).into();
        }
        origin.message = match published {
            [one] => shortened(&one.entry.message, TEXT_LIMIT_BYTES).into(),
            several => format!("{} commits of the store", several.len()).into(),
        };
        self.cache.commit(transaction)?;
        Ok(())
    }
}

impl Start {
    /// Adds a record.
    pub(crate) fn add(&mut self, key: &RecordKey, state: &RecordState) {
        if self.refused.is_none() {
            self.refused = add(&mut self.transaction, key, state, self.now).err();
        }
    }
}

fn add(transaction: &mut Transaction, key: &RecordKey, state: &RecordState, now: i64) -> Result<(), Refusal> {
    match change_of(key, state, now).map_err(|error| Refusal::Record { key: key.clone(), error })? {
        CacheChange::Put(resource) => transaction.put(*resource),
        CacheChange::Remove(id) => transaction.remove(id),
        CacheChange::Nothing => {}
    }
    Ok(())
}

/// What a record in this state is for the cache at this time, in nanoseconds since 1970.
fn change_of(key: &RecordKey, state: &RecordState, now: i64) -> Result<CacheChange, ContentError> {
    let id = id_of(key);
    if id.type_url.message_name().starts_with("xds.store.v1.") {
        return Ok(CacheChange::Nothing);
    }
    match served(state, now) {
        Some(content) => Ok(CacheChange::Put(Box::new(resource(id, content)?))),
        None => Ok(CacheChange::Remove(id)),
    }
}

/// The content that clients get: that of the record, or what is served in place of a quarantined
/// one.
fn served(state: &RecordState, now: i64) -> Option<&proto::Content> {
    // The end of a lease is a commit.
    let end = state.expires_at.as_ref().filter(|_| state.lease.is_none()).map(nanoseconds);
    if state.lifecycle() == proto::State::Deleted || end.is_some_and(|end| end <= now) {
        return None;
    }
    match &state.quarantined {
        Some(quarantined) => quarantined.serve.as_ref(),
        None => state.content.as_ref(),
    }
}

fn resource(id: VariantId, content: &proto::Content) -> Result<Resource, ContentError> {
    let VariantId { type_url, name, constraints } = id;
    let payload = content.payload.clone();
    let mut resource = match content.redirect {
        true => Resource::redirect(type_url, name, payload)?,
        false => Resource::new(type_url, name, payload)?,
    };
    if let Some(ttl) = &content.ttl {
        let ttl = Duration::try_from(*ttl).ok().filter(|ttl| !ttl.is_zero());
        resource = resource.with_ttl(ttl.ok_or(ContentError::Ttl)?);
    }
    if !content.aliases.is_empty() {
        resource = resource.with_aliases(content.aliases.iter().map(|alias| ResourceName::from(&**alias)));
    }
    if content.do_not_cache {
        resource = resource.with_do_not_cache();
    }
    if !content.metadata.is_empty() {
        resource = resource.with_metadata(content.metadata.clone());
    }
    Ok(resource.with_constraints(constraints))
}

fn id_of(key: &RecordKey) -> VariantId {
    let when = key.to_proto().when;
    let constraints = if when.is_empty() { Ok(Constraints::NONE) } else { when.parse() };
    let constraints = constraints.expect("the text of a key can be read");
    VariantId { type_url: key.type_url(), name: key.name(), constraints }
}

fn nanoseconds(time: &prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
}

const SOURCE: &str = "store";
/// The longest author or message in the origin of a transaction.
const TEXT_LIMIT_BYTES: usize = 256;

#[cfg(test)]
mod tests;
