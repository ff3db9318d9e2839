//! Waits for a condition in a foreign program that does not report it.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::time;

/// Calls `probe` until it returns a value; returns the value and the time that it took.
///
/// # Panics
/// After `limit`, with `what` in the message.
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

/// The limit for steps that take about a second on an idle machine. It is below the 15 s after
/// which Envoy and gRPC go on without an answer, so that a missing answer does not look like a slow
/// one.
pub(crate) const SOON: Duration = Duration::from_secs(12);

const BETWEEN_PROBES: Duration = Duration::from_millis(20);
/// The limit for nodes to reach each other again: a call that hangs ends after 10 s (SR10), and the next one
/// follows after at most 15 s (SR59).
pub(crate) const CONTACT: Duration = Duration::from_secs(40);
