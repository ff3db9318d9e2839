//! Waits with a deadline until clients have ACKed a commit. The cache cannot do it, because it has
//! no clock.

use std::time::Duration;

use tokio::time::timeout;
use xds_core::{ClientName, ClientOutcome, Commit, Outcome};

/// Waits until each client that the commit affects and that `selects` accepts has ACKed it,
/// rejected it or disconnected. It waits for `deadline` at most; the outcome of a client that has
/// not answered by then is [`Outcome::Late`].
///
/// ```no_run
/// # async fn example(cache: &xds_core::Cache, transaction: xds_core::Transaction) -> Result<(), xds_core::CommitError> {
/// use std::time::Duration;
/// use xds_core::Outcome;
///
/// let commit = cache.commit(transaction)?;
/// let results = xds_server::applied(&commit, |client| &*client.cluster == "edge", Duration::from_secs(10)).await;
/// let is_everywhere = results.iter().all(|result| result.outcome == Outcome::Acked);
/// # Ok(())
/// # }
/// ```
pub async fn applied(
    commit: &Commit,
    selects: impl Fn(&ClientName) -> bool,
    deadline: Duration,
) -> Vec<ClientOutcome> {
    let delivery = commit.applied(selects);
    if let Ok(results) = timeout(deadline, delivery.decided()).await {
        return results;
    }
    let mut results = delivery.results();
    for result in &mut results {
        if matches!(result.outcome, Outcome::Pending | Outcome::Splitting) {
            result.outcome = Outcome::Late;
        }
    }
    results
}
