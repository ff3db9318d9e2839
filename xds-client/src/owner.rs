//! The proxy that a client belongs to, as its client sees it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xds_core::client::{Client as Machine, Effects, Protocol};
use xds_core::proxy::health::Status;
use xds_core::{Delivered, Delivery};

/// Takes what becomes of the requests of one client. The client does not know the proxy otherwise:
/// the proxy holds its clients.
///
/// Where a machine is given, the lock of its client is held, so the lock of the proxy is always the
/// inner one.
pub(crate) trait Owner: Send + Sync {
    /// The moment from which the times of the proxy and its clients count.
    fn start(&self) -> Instant;

    /// Where the next stream is opened, if not on the aggregated service.
    fn path(&self, protocol: Protocol) -> Option<String>;

    /// A stream ended. Called before the client hears of it.
    fn on_stream_end(&self, now: Duration, server: usize, status: Option<Status>);

    /// An event of the client had this outcome.
    fn on_effects(&self, now: Duration, client: &Machine, effects: &Effects);

    /// The clients that try a response first; `None` when none do.
    fn try_first(&self, client: &mut Machine, server: usize, frame: &Bytes) -> Option<Delivery>;

    /// How long they may take.
    fn canary_timeout(&self) -> Duration;

    /// They answered, or the time is over.
    fn conclude(&self, client: &mut Machine, results: &[Delivered]);

    /// The stream of the response ended before they answered.
    fn abandon(&self, client: &mut Machine);
}
