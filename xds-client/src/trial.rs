//! Waits for the clients of a proxy that try a response before the proxy applies it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use xds_core::client::{Client as Machine, Effects};
use xds_core::{ClientOutcome, Delivery};

use crate::hub::Hub;

/// A response that some clients try. If it is dropped before [`conclude`](Self::conclude), the
/// trial is cancelled.
pub(crate) struct Trial<'h> {
    hub: &'h Hub,
    delivery: Delivery,
    results: Vec<ClientOutcome>,
    is_concluded: bool,
}

impl<'h> Trial<'h> {
    /// Starts a trial; `None` if no client tries the response.
    pub(crate) fn begin(hub: &'h Hub, server: usize, frame: &Bytes) -> Option<Self> {
        let delivery = hub.owner.try_first(server, frame)?;
        Some(Self { hub, delivery, results: Vec::new(), is_concluded: false })
    }

    /// Returns when all these clients have answered, or the time is over.
    pub(crate) async fn finished(&mut self) {
        let finished = timeout(self.hub.owner.canary_timeout(), self.delivery.decided()).await;
        self.results = finished.unwrap_or_else(|_| self.delivery.results());
    }

    /// Ends the trial, and gives the response to the machine.
    pub(crate) fn conclude<R>(
        mut self,
        event: impl FnOnce(&mut Machine, Duration) -> (R, Effects),
    ) -> Option<(R, Effects)> {
        self.is_concluded = true;
        self.hub.conclude(&self.results, event)
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.is_concluded {
            self.hub.owner.abandon();
        }
    }
}
