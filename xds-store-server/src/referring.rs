//! The call References: what a record names, what names it, and what blocks its deletion.

use std::sync::Arc;

use tonic::{Code, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::key::RecordKey;
use xds_store::read::Reads;

use crate::access::Caller;
use crate::handle::StoreHandle;
use crate::queue::Referrers;
use crate::reading::{Reading, failed, now};
use crate::status::{invalid_key, lacks, not_ready, refusal};

/// Which records a client may read.
type MayRead = Arc<dyn Fn(&RecordKey) -> bool + Send + Sync>;

impl StoreHandle {
    /// What a record names, what names it, and what blocks its deletion (SG10); `None` if it does not exist
    /// and nothing names it.
    ///
    /// # Errors
    /// The store cannot be read, or has ended.
    pub async fn references(&self, key: RecordKey) -> Result<Option<proto::ReferencesResponse>, Status> {
        found(&Reading::new(self.clone()), Arc::new(|_| true), key, 0).await
    }
}

/// Answers a request of a client.
pub(crate) async fn references(
    reading: &Reading,
    caller: Caller,
    request: proto::ReferencesRequest,
) -> Result<proto::ReferencesResponse, Status> {
    let wire_key = request.key.unwrap_or_default();
    let key = RecordKey::parse(&wire_key).map_err(|error| invalid_key(wire_key, &error))?;
    if !caller.may_read(&key) {
        return Err(lacks("read", Some(key.to_proto()), format!("this client may not read {key:?}")));
    }
    let may_read = Arc::new(move |key: &RecordKey| caller.may_read(key));
    let found = found(reading, may_read, key.clone(), request.depth).await?;
    found.ok_or_else(|| {
        let why = Why::Condition(proto::ConditionFailed::default());
        refusal(Code::NotFound, format!("{key:?} does not exist"), Some(key.to_proto()), why)
    })
}

async fn found(
    reading: &Reading,
    may_read: MayRead,
    key: RecordKey,
    depth: u32,
) -> Result<Option<proto::ReferencesResponse>, Status> {
    let depth = match depth {
        0 => DEPTH,
        depth => usize::try_from(depth).unwrap_or(usize::MAX).min(LARGEST_DEPTH),
    };
    let (standing, of_record) = (reading.standing(), key.clone());
    let targets = reading.local(move |reads: &Reads<'_>| {
        let record = reads.get(&of_record, now()).map_err(|error| failed(&error, &standing))?;
        let targets = record.map(|record| reads.targets(&record, LISTED));
        targets.transpose().map_err(|error| failed(&error, &standing))
    });
    let record = targets.await?;
    let exists = record.is_some();
    let targets = record.unwrap_or_default();
    let query = Referrers {
        key,
        targets: targets.iter().map(|(target, _)| target.clone()).collect(),
        may_read: Box::new(move |key| may_read(key)),
        limit: LISTED,
        depth,
    };
    let found = reading.store.referrers(query).await;
    let found = found.ok_or_else(|| not_ready(&reading.standing(), "the server is stopping"))?;
    // Something may refer to what does not exist.
    if !exists && found.count == 0 {
        return Ok(None);
    }
    let targets = targets.into_iter().map(|(target, reference)| proto::Reference {
        is_missing: found.missing.contains(&target),
        ..reference
    });
    let targets = targets.collect();
    let standing = reading.standing();
    let answer = move |reads: &Reads<'_>| {
        let blockers = found.blockers.iter().map(|(source, target)| (source, target));
        let pairs = blockers.chain(found.referrers.iter().map(|(source, form)| (source, form)));
        let references = reads.references(pairs, FIELDS_READ).map_err(|error| failed(&error, &standing))?;
        let mut blocked_by = references;
        let mut referrers = found.elsewhere.clone();
        referrers.extend(blocked_by.split_off(found.blockers.len()));
        blocked_by.extend(found.blocked_elsewhere.clone());
        referrers.iter_mut().for_each(|reference| reference.is_missing = !found.exists);
        let (referrer_count, is_cycle) = (found.count, found.is_cycle);
        Ok(proto::ReferencesResponse { targets, referrers, referrer_count, blocked_by, is_cycle })
    };
    reading.local(answer).await.map(Some)
}

/// What a record that is being deleted waits for (SG10): the first blockers that the client may read.
pub(crate) async fn blockers(
    reading: &Reading,
    caller: Caller,
    key: proto::Key,
) -> Result<Vec<proto::Reference>, Status> {
    let found = references(reading, caller, proto::ReferencesRequest { key: Some(key), depth: 1 }).await?;
    // It waits for what should go with it, too.
    let blocks = |reference: &proto::Reference| reference.on_delete() != proto::OnDelete::Allow;
    Ok(found.referrers.into_iter().filter(blocks).take(BLOCKERS).collect())
}

/// Blockers of a record.
const BLOCKERS: usize = 20;
/// Targets and referrers of an answer.
const LISTED: usize = 1_000;
/// Fields that one call reads from payloads of referrers, each of which costs a pass over the payload.
const FIELDS_READ: usize = 200;
/// Steps of blockers.
const DEPTH: usize = 10;
const LARGEST_DEPTH: usize = 100;
