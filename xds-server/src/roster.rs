//! Which streams are open, how to ask them what their clients have, and how to tell them to end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use xds_core::server::TypeReport;
use xds_core::{ClientName, Watch};

use crate::peer::Peer;

/// All streams of a server.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    streams: Mutex<Streams>,
    /// Once it is known over how long the streams are to end.
    stopping: OnceLock<Duration>,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, Arc<Listed>>,
}

/// One stream.
///
/// What it is asked from outside waits here, and its task is woken by the one waker that it has anyway: a channel each,
/// looked at with every update, would cost more than the update.
#[derive(Debug)]
pub(crate) struct Listed {
    watch: Arc<Watch>,
    /// What it is for, for people.
    pub(crate) label: String,
    is_asked: AtomicBool,
    desk: Mutex<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    /// `None` before the first request.
    about: Option<Arc<About>>,
    asks: Vec<Ask>,
    has_ended: bool,
}

/// Where the answer goes.
pub(crate) type Ask = oneshot::Sender<Vec<TypeReport>>;

/// Whose stream it is.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) client: ClientName,
    /// `node.user_agent_name`.
    pub(crate) user_agent: String,
    /// What it showed, beside what it says.
    pub(crate) peer: Peer,
}

/// A stream's place in the roster; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Listing {
    roster: Arc<Roster>,
    stream: Arc<Listed>,
    id: u64,
}

impl Roster {
    pub(crate) fn list(self: &Arc<Self>, watch: Arc<Watch>, label: String) -> Listing {
        let (is_asked, desk) = (AtomicBool::new(false), Mutex::default());
        let stream = Arc::new(Listed { watch, label, is_asked, desk });
        let mut streams = self.streams();
        streams.last_id += 1;
        let id = streams.last_id;
        streams.streams.insert(id, Arc::clone(&stream));
        Listing { roster: Arc::clone(self), stream, id }
    }

    /// The streams of each client whose id passes, by its name; those without an id are clients of their own (G6).
    pub(crate) fn clients(&self, who: impl Fn(&str) -> bool) -> Vec<Vec<Arc<Listed>>> {
        let mut clients = BTreeMap::<_, Vec<_>>::new();
        for (id, stream) in &self.streams().streams {
            let Some(about) = stream.about() else { continue };
            let client = &about.client;
            if who(&client.id) {
                let alone = client.id.is_empty().then_some(*id);
                clients.entry((client.clone(), alone)).or_default().push(Arc::clone(stream));
            }
        }
        clients.into_values().collect()
    }

    /// Tells all streams to end, those that open later too: so many in a second, if that is done in time.
    pub(crate) fn stop(&self, within: Duration, per_second: usize) {
        let streams = self.streams();
        let time = Duration::from_secs_f64(streams.streams.len() as f64 / per_second.max(1) as f64);
        // A few need not be spread.
        let time = if time < SHORTEST_SPREAD { Duration::ZERO } else { time.min(within) };
        _ = self.stopping.set(time);
        for stream in streams.streams.values() {
            stream.watch.wake();
        }
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    /// Whose it is; `None` before the first request.
    pub(crate) fn about(&self) -> Option<Arc<About>> {
        self.desk().about.clone()
    }

    /// Asks what its client has. It answers also when its client neither reads nor writes.
    pub(crate) fn ask(&self, ask: Ask) {
        let mut desk = self.desk();
        if desk.has_ended {
            return;
        }
        desk.asks.push(ask);
        drop(desk);
        self.is_asked.store(true, Ordering::Release);
        self.watch.wake();
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listing {
    /// Says whose stream it is.
    pub(crate) fn name(&self, about: About) {
        self.stream.desk().about = Some(Arc::new(about));
    }

    /// Within which time the stream has to end because the server does.
    pub(crate) fn stops_within(&self) -> Option<Duration> {
        self.roster.stopping.get().copied()
    }

    /// What it was asked since the last call.
    pub(crate) fn take_asks(&self) -> Vec<Ask> {
        if !self.stream.is_asked.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.stream.desk().asks)
    }
}

/// Less is not worth a wait.
const SHORTEST_SPREAD: Duration = Duration::from_millis(100);

impl Drop for Listing {
    fn drop(&mut self) {
        self.roster.streams().streams.remove(&self.id);
        // Nobody must wait for an answer that cannot come.
        let mut desk = self.stream.desk();
        desk.has_ended = true;
        desk.asks.clear();
    }
}
