//! `/api/store/records` and `/api/store/deletions`: a record with what belongs to it, and deletions in progress.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Path, State};
use serde_json::{Value, json};
use xds_core::shortened;
use xds_proto::xds::store::v1 as proto;
use xds_store::read::{ReadError, Reads};
use xds_store::record::{RecordRevision, RecordState, named_owners, resource_owners};
use xds_store::store::DeletionInProgress;

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, PAGE_ROWS, at_ms};
use super::query::RequestQuery;
use super::store::{key_of, shown};

/// The deletions in progress, the one that has waited the longest first (SG10).
pub(super) async fn deletions(State(state): State<Arc<AdminState>>) -> JsonAnswer {
    let store = shown(&state)?.handle.clone();
    let rows = store.deletions(PAGE_ROWS, BLOCKERS_SHOWN).await;
    let total = store.standing().borrow().deleting;
    let row = |deletion: &DeletionInProgress| {
        let blockers: Vec<_> = deletion.blocked_by.iter().map(|key| key_row(&key.to_proto())).collect();
        let mut row = key_row(&deletion.key.to_proto());
        row["since_ms"] = (deletion.since / NANOSECONDS_PER_MS).into();
        row["blocked_by"] = blockers.into();
        row["blocker_count"] = deletion.blockers.into();
        row
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    Ok(JsonBody(json!({ "total": total, "rows": rows })))
}

/// A record: its owners, what it names, what names it, and what blocks its deletion (SG10).
pub(super) async fn record(
    State(state): State<Arc<AdminState>>,
    Path(path): Path<(String, String)>,
    query: RequestQuery,
) -> JsonAnswer {
    query.only(&["when"])?;
    let store = shown(&state)?.handle.clone();
    let key = key_of(path, &state, &query)?;
    let permit = Arc::clone(&state.work).acquire_owned().await.expect("the semaphore is never closed");
    let found = store.references(key.clone()).await;
    drop(permit);
    let found = found.map_err(|error| ApiError::busy(error.message()))?;
    let found = found.ok_or_else(|| ApiError::missing(format!("{key:?} does not exist")))?;
    let of_record = key.clone();
    let read = move |_: &AdminState| -> Result<(Option<RecordState>, Option<String>, bool), ReadError> {
        let view = store.view()?;
        let reads = Reads::new(&*view)?;
        let owner = reads.policies()?.owner_of(&of_record).map(str::to_owned);
        let is_copy = owner.as_ref().is_some_and(|owner| *owner != reads.head().region);
        Ok((reads.get(&of_record, now())?.map(|version| version.state), owner, is_copy))
    };
    let (record, region, is_copy) =
        state.work(read).await.map_err(|error| ApiError::busy(error.to_string()))?;
    let listed = |references: &[proto::Reference]| -> Vec<_> {
        references.iter().take(PAGE_ROWS).map(reference_row).collect()
    };
    let mut answer = key_row(&key.to_proto());
    answer["record"] = record.as_ref().map(record_row).into();
    answer["region"] = region.into();
    answer["is_copy"] = is_copy.into();
    answer["targets"] = listed(&found.targets).into();
    answer["referrers"] = listed(&found.referrers).into();
    answer["referrer_count"] = found.referrer_count.into();
    answer["blocked_by"] = listed(&found.blocked_by).into();
    answer["is_cycle"] = found.is_cycle.into();
    Ok(JsonBody(answer))
}

fn record_row(state: &RecordState) -> Value {
    let named: Vec<_> = named_owners(state).map(|name| shortened(name, TEXT_LIMIT_BYTES)).collect();
    let records: Vec<_> =
        resource_owners(state).filter_map(|owner| owner.key.as_ref()).map(key_row).collect();
    let lifecycle = state.lifecycle().as_str_name();
    json!({
        "state": lifecycle.strip_prefix("STATE_").unwrap_or(lifecycle),
        "revision": RecordRevision::of(state).to_string(),
        "owners": named, "resource_owners": records,
    })
}

fn key_row(key: &proto::Key) -> Value {
    json!({
        "type": key.type_url, "name": shortened(&key.name, TEXT_LIMIT_BYTES),
        "when": (!key.when.is_empty()).then(|| shortened(&key.when, TEXT_LIMIT_BYTES)),
    })
}

fn reference_row(reference: &proto::Reference) -> Value {
    let key = |key: &Option<proto::Key>| key.as_ref().map(key_row);
    json!({
        "source": key(&reference.source), "field": reference.field, "target": key(&reference.target),
        "blocks": reference.on_delete() == proto::OnDelete::Block, "is_missing": reference.is_missing,
    })
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    i64::try_from(at_ms(SystemTime::now())).unwrap_or(i64::MAX).saturating_mul(NANOSECONDS_PER_MS)
}

const NANOSECONDS_PER_MS: i64 = 1_000_000;
/// Blockers of a deletion in progress that are listed.
const BLOCKERS_SHOWN: usize = 5;
/// The longest text.
const TEXT_LIMIT_BYTES: usize = 256;
