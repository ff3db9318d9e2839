//! What becomes of all commits, as a bounded stream of events.

use std::sync::Arc;

use super::Cache;
use super::delivery::{ClientName, Outcome};
use super::readers::{Queue, Readers};
use crate::name::{Revision, TypeUrl};

/// Something that one stream of a client said about what it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryEvent {
    /// How many events were dropped before this one because nobody read them.
    pub lost: u64,
    /// The client.
    pub client: ClientName,
    /// The type it is about.
    pub type_url: TypeUrl,
    /// The commit up to which all is ACKed; of a [`Outcome::Nacked`] the last one that was
    /// rejected.
    pub revision: Revision,
    /// Never pending or late.
    pub outcome: Outcome,
}

/// A reader of [`DeliveryEvent`]s; dropping it ends them. Made by [`Cache::deliveries`].
#[derive(Debug)]
pub struct Deliveries(Arc<Queue<DeliveryEvent>>);

/// The readers.
pub(super) type Hub = Readers<DeliveryEvent>;

impl Cache {
    /// Tells of every ACK that completes something, every NACK and every stream that ends, from now
    /// on. Holds `capacity` events (at least one) for who is slow to read them, then drops the
    /// oldest.
    #[must_use]
    pub fn deliveries(&self, capacity: usize) -> Deliveries {
        Deliveries(self.hub.add(capacity))
    }
}

impl Deliveries {
    /// The next event; `None` when there will be none, because the cache is gone. Needs no runtime,
    /// and dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<DeliveryEvent> {
        let (lost, event) = self.0.next().await?;
        Some(DeliveryEvent { lost, ..event })
    }
}
