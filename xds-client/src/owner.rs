//! What owns the machine of a client: the client itself, or the proxy that the client belongs to.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xds_core::client::health::Status;
use xds_core::client::{Client as Machine, Effects, Protocol};
use xds_core::{ClientOutcome, Delivery};

/// An event of a machine, and the time when it comes.
pub(crate) type Event<'e> = dyn FnMut(&mut Machine, Duration) -> Effects + 'e;

/// Owns the machine of a client, under a lock. A proxy has one lock for itself and all its clients.
/// The client knows the proxy only through this trait.
pub(crate) trait Owner: Send + Sync {
    /// The start of the times of the machine.
    fn start(&self) -> Instant;

    /// Reads the machine, unless a proxy does not need the client any more.
    fn read(&self, look: &mut dyn FnMut(&Machine));

    /// Gives the machine an event. Returns the effects; `None` if a proxy does not need the client
    /// any more.
    fn change(&self, event: &mut Event<'_>) -> Option<Effects>;

    /// The same for the end of a stream, with the status if there is one.
    fn end(&self, server: usize, status: Option<Status>, event: &mut Event<'_>) -> Option<Effects> {
        _ = (server, status);
        self.change(event)
    }

    /// The path of the next stream; `None` is the aggregated service.
    fn path(&self, protocol: Protocol) -> Option<String> {
        _ = protocol;
        None
    }

    /// Starts a trial: some clients of the proxy try the response first. `None` if none do.
    fn try_first(&self, server: usize, frame: &Bytes) -> Option<Delivery> {
        _ = (server, frame);
        None
    }

    /// How long a trial may take.
    fn canary_timeout(&self) -> Duration {
        Duration::ZERO
    }

    /// As [`change`](Self::change), for the response of a trial: the clients have answered, or its
    /// time is over.
    fn conclude(&self, results: &[ClientOutcome], event: &mut Event<'_>) -> Option<Effects> {
        _ = results;
        self.change(event)
    }

    /// Cancels the trial: the stream of the response ended before the clients answered.
    fn abandon(&self) {}
}

/// Owns the machine of a client that belongs to no proxy.
pub(crate) struct Own {
    machine: Mutex<Machine>,
    start: Instant,
}

impl Own {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine: Mutex::new(machine), start: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        // A panic of the machine would be a defect; its state is still the newest.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner for Own {
    fn start(&self) -> Instant {
        self.start
    }

    fn read(&self, look: &mut dyn FnMut(&Machine)) {
        look(&self.lock());
    }

    fn change(&self, event: &mut Event<'_>) -> Option<Effects> {
        let mut machine = self.lock();
        // Read the time under the lock, so that the time of the machine never goes back.
        Some(event(&mut machine, self.start.elapsed()))
    }
}
