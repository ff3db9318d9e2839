//! `/api/store`: the durable store, its commits, and the history of a record.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, State};
use serde_json::{Value, json};
use xds_core::shortened;
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::phase::Form;
use xds_store::read::{HistoryQuery, Payload, ReadError, Reads};
use xds_store::store::PlanProgress;
use xds_store_server::StoreHandle;

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, PAGE_ROWS, at_ms};
use super::query::{RequestQuery, type_url};
use super::store_regions;

/// The store that the page shows.
pub(super) struct ShownStore {
    pub(super) handle: StoreHandle,
    pub(super) size_bytes: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// Its condition.
pub(super) async fn store(State(state): State<Arc<AdminState>>) -> JsonAnswer {
    shown(&state)?;
    let answer = state.work(|state| {
        let shown = state.store.as_ref().expect("it was there");
        let standing = shown.handle.standing().borrow().clone();
        let (commits, bytes) = shown.handle.waiting_commits();
        let condition = standing.condition.as_str_name();
        let regions = store_regions::regions(&shown.handle, &standing.head);
        let regions = regions.map_err(|error| ApiError::busy(error.to_string()))?;
        Ok(json!({
            "condition": condition.strip_prefix("CONDITION_").unwrap_or(condition),
            "reason": (!standing.reason.is_empty()).then_some(&standing.reason),
            "accepts_commits": shown.handle.refuses_commits().is_none(),
            "is_full": shown.handle.statistics().is_full(),
            "node": standing.head.node, "cluster": standing.head.cluster, "format": standing.head.format,
            "revision": standing.revision_text(),
            "floor": standing.head.floor,
            "records": standing.records, "deleted": standing.tombstones,
            "deleting": standing.deleting, "deleting_since_ms": standing.deleting_since.map(at_ms),
            "size_bytes": (shown.size_bytes)(),
            "waiting_commits": commits, "waiting_bytes": bytes,
            "plans": plans(&shown.handle, &standing.plans),
            // SR2: none of a store that does not replicate.
            "peers": shown.handle.peers().map(|status| status.peers.iter().map(peer).collect::<Vec<_>>()),
            "regions": regions,
        }))
    });
    answer.await.map(JsonBody)
}

/// A node that this one replicates with, and how far this one is behind it.
fn peer(peer: &proto::PeerStatus) -> Value {
    let heard_at = peer.last_contact.and_then(|at| SystemTime::try_from(at).ok());
    let lag = peer.lag.and_then(|lag| Duration::try_from(lag).ok());
    let text = |text: &str| (!text.is_empty()).then(|| shortened(text, TEXT_LIMIT_BYTES).into_owned());
    json!({
        "address": peer.address, "node": text(&peer.node), "region": text(&peer.region), "build": text(&peer.build),
        "is_up": peer.is_up, "error": text(&peer.error), "is_duplicate": peer.is_duplicate,
        "entries_behind": peer.entries_behind, "lag_ms": lag.map(|lag| lag.as_millis() as u64),
        "heard_at_ms": heard_at.map(at_ms),
    })
}

/// How far the migrations are.
fn plans(store: &StoreHandle, plans: &[PlanProgress]) -> Vec<Value> {
    let schemas = store.schemas();
    let plan = |progress: &PlanProgress| {
        let plan = schemas.plans().iter().find(|plan| plan.number() == progress.number)?;
        let ms = |time: Option<i64>| time.map(|time| time / NANOSECONDS_PER_MS);
        Some(json!({
            "number": progress.number, "name": plan.name(), "phase": progress.phase.number(),
            "phase_name": progress.phase.name(), "clients_get": progress.phase.clients_get(),
            "old_form": plan.shown(Form::Old), "new_form": plan.shown(Form::New),
            "started_at_ms": ms(progress.started_at), "done_at_ms": ms(progress.done_at),
            "old_records": progress.counts.old, "new_records": progress.counts.new, "behind": progress.counts.behind,
            "looked_at": progress.pass.looked_at, "failed": progress.pass.failed, "clean": progress.pass.is_clean,
        }))
    };
    plans.iter().filter_map(plan).collect()
}

/// The commits, newest first.
pub(super) async fn commits(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    query.only(&["before"])?;
    history(state, None, query.text("before").to_owned()).await
}

/// The commits that changed a record, newest first.
pub(super) async fn record_history(
    State(state): State<Arc<AdminState>>,
    Path(path): Path<(String, String)>,
    query: RequestQuery,
) -> JsonAnswer {
    query.only(&["before", "when"])?;
    let key = key_of(path, &state, &query)?;
    history(state, Some(key), query.text("before").to_owned()).await
}

async fn history(state: Arc<AdminState>, key: Option<RecordKey>, before: String) -> JsonAnswer {
    shown(&state)?;
    let read = move |state: &AdminState| -> Result<Value, ReadError> {
        let view = state.store.as_ref().expect("it was there").handle.view()?;
        let reads = Reads::new(&*view)?;
        let before = if before.is_empty() { None } else { Some(reads.parse(&before)?) };
        let page = reads.history(HistoryQuery {
            key: key.as_ref(),
            before,
            may_read: &|_| true,
            payload: Payload::Without,
            limit: PAGE_ROWS,
            limit_bytes: BYTES_LIMIT,
            scan_limit: SCAN_LIMIT,
        })?;
        Ok(json!({
            "revision": reads.printed(reads.head().revision),
            "floor": reads.printed(reads.head().floor),
            "next": page.next.map(|next| reads.printed(next)),
            "rows": page.commits.iter().map(row).collect::<Vec<_>>(),
        }))
    };
    state.work(read).await.map(JsonBody).map_err(|error| match error {
        ReadError::Damaged(_) | ReadError::Engine(_) => ApiError::busy(error.to_string()),
        error => ApiError::bad(error.to_string()),
    })
}

fn row(commit: &proto::CommitEntry) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| shortened(text, TEXT_LIMIT_BYTES).into_owned());
    let at = commit.at.and_then(|at| SystemTime::try_from(at).ok());
    let changes = commit.changes.iter().take(CHANGES_SHOWN).map(|change| {
        let key = change.key.clone().unwrap_or_default();
        let outcome = change.outcome().as_str_name();
        json!({
            "type": key.type_url, "name": shortened(&key.name, TEXT_LIMIT_BYTES),
            "when": text(&key.when), "outcome": outcome.strip_prefix("OUTCOME_").unwrap_or(outcome),
            "before": text(&change.revision_before), "after": text(&change.revision_after),
        })
    });
    json!({
        "revision": commit.revision, "at_ms": at.map(at_ms), "identity": text(&commit.identity),
        "owner": text(&commit.owner), "message": text(&commit.message),
        "change_count": commit.changes.len(), "changes": changes.collect::<Vec<_>>(),
    })
}

pub(super) fn shown(state: &AdminState) -> Result<&ShownStore, ApiError> {
    state.store.as_ref().ok_or_else(|| ApiError::missing("this server has no durable store"))
}

/// The key of a path and its query.
pub(super) fn key_of(
    (word, name): (String, String),
    state: &AdminState,
    query: &RequestQuery,
) -> Result<RecordKey, ApiError> {
    let of_type = type_url(&word, &state.cache.snapshot())?;
    let when = query.text("when").to_owned();
    let key = RecordKey::parse(&proto::Key { type_url: of_type.as_str().to_owned(), name, when });
    key.map_err(|error| ApiError::bad(error.to_string()))
}

impl fmt::Debug for ShownStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShownStore").field(&self.handle).finish()
    }
}

const NANOSECONDS_PER_MS: i64 = 1_000_000;
/// Changes of a commit that are listed.
const CHANGES_SHOWN: usize = 20;
/// The longest text.
const TEXT_LIMIT_BYTES: usize = 256;
/// The most bytes of the commits of a page, as the store has them.
const BYTES_LIMIT: usize = 8 << 20;
/// The most commits that are read for a page.
const SCAN_LIMIT: usize = 1000;
