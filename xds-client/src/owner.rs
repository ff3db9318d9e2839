//! The interface through which a client calls the proxy that owns it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xds_core::client::{Client as Machine, Effects, Protocol};
use xds_core::proxy::health::Status;
use xds_core::{ClientOutcome, Delivery};

/// Receives the outcomes of one client of a proxy. The proxy holds its clients; the client knows
/// the proxy only through this trait.
///
/// Where a method gets a machine, the lock of its client is held. So the lock of the proxy is
/// always the inner lock.
pub(crate) trait Owner: Send + Sync {
    /// The start of the times of the proxy and its clients.
    fn start(&self) -> Instant;

    /// The path of the next stream; `None` is the aggregated service.
    fn path(&self, protocol: Protocol) -> Option<String>;

    /// A stream ended. Called before the machine of the client is notified.
    fn on_stream_end(&self, now: Duration, server: usize, status: Option<Status>);

    /// An event at the client had this outcome.
    fn on_effects(&self, now: Duration, client: &Machine, effects: &Effects);

    /// Starts a trial: some clients of the proxy try the response first. `None` if none do.
    fn try_first(&self, client: &mut Machine, server: usize, frame: &Bytes) -> Option<Delivery>;

    /// How long a trial may take.
    fn canary_timeout(&self) -> Duration;

    /// The trial ends: the clients have answered, or its time is over.
    fn conclude(&self, client: &mut Machine, results: &[ClientOutcome]);

    /// Cancels the trial: the stream of the response ended before the clients answered.
    fn abandon(&self, client: &mut Machine);
}
