//! `/api/events`: a notification that something changed. The page then requests again what it
//! shows.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::IntervalStream;

use super::AdminState;
use super::answer::ApiError;
use super::troubles::Trouble;

/// Server-sent events, at most two per second. There is no queue: each event has the state at the
/// time it is written.
pub(super) async fn events(State(state): State<Arc<AdminState>>) -> Response {
    let Ok(permit) = Arc::clone(&state.event_streams).try_acquire_owned() else {
        let text =
            format!("more than {STREAMS_LIMIT} pages listen already: close some, or poll the API instead");
        return ApiError::busy(text).into_response();
    };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut sent, mut ticks_since) = (None, 0);
    let marks = move |_| {
        let state = Arc::clone(&state);
        // To look for troubles may take milliseconds.
        async move { state.trouble_work(Marks::of).await }
    };
    let events = IntervalStream::new(ticks).take(TICKS).then(marks).filter_map(move |now| {
        let _permit = &permit;
        if sent.as_ref() == Some(&now) {
            ticks_since += 1;
            // A proxy in between may close a silent connection.
            return (ticks_since % SILENT_TICKS == 0)
                .then(|| Ok::<_, Infallible>(Bytes::from_static(b":\n\n")));
        }
        ticks_since = 0;
        let text = format!("event: changed\ndata: {}\n\n", now.json());
        sent = Some(now);
        Some(Ok(text.into()))
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream")];
    (StatusCode::OK, head, Body::from_stream(events)).into_response()
}

/// The counters whose change makes a page request its data again.
#[derive(Debug, PartialEq, Eq)]
struct Marks {
    revision: String,
    commits: u64,
    clients: u64,
    /// A digest of the troubles. Not of their beginnings: some are computed from a duration.
    troubles: u64,
    /// Of the rollout that runs: its step, and how many clients try the change and ACKed it.
    rollout: Option<(usize, usize, usize)>,
}

impl Marks {
    fn of(state: &AdminState) -> Self {
        Self {
            revision: state.cache.read(|snapshot| snapshot.revision().to_string()),
            commits: state.recent.count(),
            clients: state.clients.changes(),
            troubles: digest(&state.troubles.list()),
            rollout: state.rollouts.as_ref().and_then(|rollouts| {
                rollouts.status().running.map(|running| (running.step, running.affected, running.acked))
            }),
        }
    }

    fn json(&self) -> String {
        json!({ "revision": self.revision, "commits": self.commits, "clients": self.clients }).to_string()
    }
}

fn digest(troubles: &[Trouble]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for Trouble { kind, what, detail, last_at, count, .. } in troubles {
        (kind, what, detail, last_at, count).hash(&mut hasher);
    }
    hasher.finish()
}

/// Pages that may listen at the same time.
pub(super) const STREAMS_LIMIT: usize = 64;

/// After this many ticks (5 minutes) the stream ends, and the page reconnects by itself. So
/// forgotten pages do not fill the limit, and the policy is checked again.
const TICKS: usize = 600;

/// The shortest time between two events.
const TICK: Duration = Duration::from_millis(500);

/// After this many ticks without a change, an empty comment keeps the connection alive.
const SILENT_TICKS: u32 = 30;
