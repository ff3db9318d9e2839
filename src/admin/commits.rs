//! `/api/commits`: the latest commits, and which clients ACKed them.

use std::sync::Arc;

use axum::extract::{Path, State};
use serde_json::{Value, json};
use xds_core::{ChangedVariant, ClientOutcome, CommitOrigin, Outcome, TypeUrl, Version, shortened};

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, at_ms, paged, when};
use super::clients::path;
use super::query::RequestQuery;
use super::recent::{CommitRecord, RecordedOutcome};

/// The latest commits and refused commits, the newest first.
pub(super) async fn list(State(state): State<Arc<AdminState>>) -> JsonBody {
    JsonBody(
        state
            .work(|state| {
                let rows: Vec<_> = state.recent.list().iter().map(|entry| row(entry)).collect();
                json!({ "revision": state.cache.snapshot().revision().to_string(), "total": rows.len(), "rows": rows })
            })
            .await,
    )
}

/// One commit with a page of the clients that it affected: first those that rejected it, then those
/// that did not answer. `outcome=pending` and so on selects some of them.
pub(super) async fn one(
    State(state): State<Arc<AdminState>>,
    Path(revision): Path<String>,
    query: RequestQuery,
) -> JsonAnswer {
    query.only(&["changes_page", "outcome", "page", "search"])?;
    let (page, search, outcome) = (query.page()?, query.search(), query.text("outcome").to_owned());
    let changes_page = query.number("changes_page")?;
    if !outcome.is_empty() && !OUTCOMES.contains(&&*outcome) {
        return Err(ApiError::bad(format!("outcome={outcome}: expected one of {}", OUTCOMES.join(", "))));
    }
    let is_it = |entry: &Arc<CommitRecord>| matches!(&entry.outcome, RecordedOutcome::Committed { commit, .. } if commit.revision.to_string() == revision);
    let entry = state.recent.list().into_iter().find(is_it);
    let entry = entry
        .ok_or_else(|| ApiError::missing(format!("revision {revision} is not among the latest commits")))?;
    let answer = state.work(move |_| {
        let mut answer = row(&entry);
        let RecordedOutcome::Committed { commit, variants, .. } = &entry.outcome else { return answer };
        answer["changes"] = paged(variants, changes_page, change).into();
        let mut results = commit.applied(|client| search.finds(&client.id)).results();
        results.retain(|delivered| outcome.is_empty() || word(&delivered.outcome) == outcome);
        results.sort_by_key(|delivered| weight(&delivered.outcome));
        answer["clients"] = paged(&results, page, client).into();
        answer
    });
    Ok(JsonBody(answer.await))
}

fn row(entry: &CommitRecord) -> Value {
    let (number, at, repeats) = (entry.number, at_ms(entry.at), entry.repeats());
    let (count, last_at) = (repeats.count, at_ms(repeats.last_at));
    let origin = origin(&entry.origin);
    match &entry.outcome {
        RecordedOutcome::Committed { commit, changed, .. } => {
            let counts = entry.counts();
            let changed = changed.iter().take(TYPES_SHOWN);
            let changed = changed.map(
                |(type_url, names): &(TypeUrl, usize)| json!({ "type": type_url.as_str(), "names": names }),
            );
            json!({
                "number": number, "at_ms": at, "last_at_ms": last_at, "count": count, "origin": origin,
                "revision": commit.revision.to_string(), "refused": null,
                "changed": changed.collect::<Vec<_>>(),
                "acked": counts.acked, "nacked": counts.nacked, "pending": counts.pending, "gone": counts.gone,
            })
        }
        RecordedOutcome::Refused { revision, error } => json!({
            "number": number, "at_ms": at, "last_at_ms": last_at, "count": count, "origin": origin,
            "revision": revision.to_string(), "refused": error.to_string(),
            "changed": [], "acked": 0, "nacked": 0, "pending": 0, "gone": 0,
        }),
    }
}

/// Where a commit comes from: null for each part that its source did not give.
fn origin(origin: &CommitOrigin) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| shortened(text, TEXT_LIMIT_BYTES).into_owned());
    let files = origin.files.iter().take(FILES_SHOWN).map(|file| shortened(file, TEXT_LIMIT_BYTES));
    json!({
        "source": text(&origin.source), "author": text(&origin.author), "message": text(&origin.message),
        "label": text(&origin.label), "files": files.collect::<Vec<_>>(), "file_count": origin.file_count,
    })
}

fn change(changed: &ChangedVariant) -> Value {
    let version = |version: Option<Version>| version.map(|version| version.to_string());
    json!({
        "type": changed.id.type_url.as_str(),
        "name": shortened(changed.id.name.as_str(), TEXT_LIMIT_BYTES),
        "when": when(&changed.id.constraints).map(|when| shortened(&when, TEXT_LIMIT_BYTES).into_owned()),
        "before": version(changed.before),
        "after": version(changed.after),
    })
}

fn client(delivered: &ClientOutcome) -> Value {
    let (type_url, detail, names) = match &delivered.outcome {
        Outcome::Nacked { type_url, detail, names } => (Some(type_url.as_str()), Some(&**detail), &**names),
        _ => (None, None, [].as_slice()),
    };
    let names = names.iter().map(|name| shortened(name.as_str(), TEXT_LIMIT_BYTES));
    let name = &delivered.client;
    json!({
        "id": &*name.id, "cluster": &*name.cluster,
        "path": (!name.id.is_empty()).then(|| path(name, "", None)),
        "outcome": word(&delivered.outcome), "type": type_url, "detail": detail,
        // What the client rejected in a response of its own; empty if that is not known.
        "rejected": names.collect::<Vec<_>>(),
    })
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Acked => "acked",
        Outcome::Nacked { .. } => "nacked",
        Outcome::Disconnected => "gone",
        Outcome::Pending | Outcome::Splitting | Outcome::Late => "pending",
    }
}

/// All words that [`word`] returns.
const OUTCOMES: [&str; 4] = ["nacked", "pending", "gone", "acked"];

/// The order of clients: those that need attention come first.
fn weight(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Nacked { .. } => 0,
        Outcome::Pending | Outcome::Splitting | Outcome::Late => 1,
        Outcome::Disconnected => 2,
        Outcome::Acked => 3,
    }
}

/// Types of one commit in a list.
const TYPES_SHOWN: usize = 20;

/// Files of one commit in an answer.
const FILES_SHOWN: usize = 20;

/// The longest name, condition or text of an origin.
const TEXT_LIMIT_BYTES: usize = 256;
