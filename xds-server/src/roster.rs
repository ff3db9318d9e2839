//! Which streams are open, and how to ask them what their clients have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use xds_core::ClientName;
use xds_core::server::TypeReport;

/// All streams whose first request came.
#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<Streams>);

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, Listed>,
}

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) client: ClientName,
    /// `node.user_agent_name`.
    pub(crate) user_agent: String,
    /// What it is for, for people.
    pub(crate) label: Arc<str>,
    /// Its task answers between two other things it does, also when its client neither reads nor writes.
    pub(crate) reports: mpsc::Sender<oneshot::Sender<Vec<TypeReport>>>,
}

/// A stream's place in the roster; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Listing {
    roster: Arc<Roster>,
    id: u64,
}

impl Roster {
    pub(crate) fn list(self: &Arc<Self>, stream: Listed) -> Listing {
        let mut streams = self.streams();
        streams.last_id += 1;
        let id = streams.last_id;
        streams.streams.insert(id, stream);
        Listing { roster: Arc::clone(self), id }
    }

    /// The streams of each client whose id passes, by its name; those without an id are clients of their own (G6).
    pub(crate) fn clients(&self, who: impl Fn(&str) -> bool) -> Vec<Vec<Listed>> {
        let mut clients = BTreeMap::<_, Vec<_>>::new();
        for (id, stream) in &self.streams().streams {
            if who(&stream.client.id) {
                let alone = stream.client.id.is_empty().then_some(*id);
                clients.entry((stream.client.clone(), alone)).or_default().push(stream.clone());
            }
        }
        clients.into_values().collect()
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.roster.streams().streams.remove(&self.id);
    }
}
