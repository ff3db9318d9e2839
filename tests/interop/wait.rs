//! Waiting for a condition of a foreign program, which tells us nothing by itself.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::time;

/// Asks `probe` until it answers, and returns the answer with the time it took.
///
/// # Panics
/// When `limit` has passed, with `what` in the message.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> F,
) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return (found, start.elapsed());
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        time::sleep(BETWEEN_PROBES).await;
    }
}

/// How long anything may take that takes about a second on a quiet machine; below the 15 s after
/// which Envoy and gRPC go on without an answer, so that a missing answer cannot pass for a slow
/// one.
pub(crate) const SOON: Duration = Duration::from_secs(12);

const BETWEEN_PROBES: Duration = Duration::from_millis(20);
