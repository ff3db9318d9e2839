//! Waits for the clients of a proxy that try a response before the proxy applies it.

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
        let owner = hub.owner.as_ref()?;
        let delivery =
            hub.change(|machine, _| (owner.try_first(machine, server, frame), Effects::default()))?;
        Some(Self { hub, delivery, results: Vec::new(), is_concluded: false })
    }

    /// Returns when all these clients have answered, or the time is over.
    pub(crate) async fn finished(&mut self) {
        let limit = self.hub.owner.as_ref().map(|owner| owner.canary_timeout()).unwrap_or_default();
        let finished = timeout(limit, self.delivery.decided()).await;
        self.results = finished.unwrap_or_else(|_| self.delivery.results());
    }

    /// Ends the trial. Call it right before the machine gets the response.
    pub(crate) fn conclude(mut self, machine: &mut Machine) {
        self.is_concluded = true;
        if let Some(owner) = &self.hub.owner {
            owner.conclude(machine, &self.results);
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.hub.owner.as_ref().filter(|_| !self.is_concluded) {
            self.hub.change(|machine, _| (owner.abandon(machine), Effects::default()));
        }
    }
}
