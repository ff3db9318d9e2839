//! Which streams belong to one client (S33): those of nodes with the same id and cluster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xds_core::server::ClientGroup;

use crate::skim::Client;

/// The groups of all clients that have a stream.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<HashMap<Key, ClientGroup>>);

/// The id and the cluster of a node, and what its connection showed: who says the same of itself and shows another identity is
/// another client.
type Key = (String, String, String);

/// A stream's hold on the group of its client. The group is forgotten with its last stream, so drop it after the machine.
#[derive(Debug)]
pub(crate) struct Place {
    clients: Arc<Clients>,
    key: Key,
}

impl Clients {
    /// Has a stream join its client, unless that did not say who it is (G6).
    pub(crate) fn join(
        self: &Arc<Self>,
        client: &Client,
        identity: &str,
        join: impl FnOnce(&ClientGroup),
    ) -> Option<Place> {
        if client.id.is_empty() {
            return None;
        }
        let key = (client.id.clone(), client.cluster.clone(), identity.to_owned());
        // Locked until it has joined: a group without streams is forgotten.
        join(self.groups().entry(key.clone()).or_default());
        Some(Place { clients: Arc::clone(self), key })
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn groups(&self) -> MutexGuard<'_, HashMap<Key, ClientGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut groups = self.clients.groups();
        if groups.get(&self.key).is_some_and(ClientGroup::is_empty) {
            groups.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use xds_core::Cache;
    use xds_core::server::{DeltaStream, Service, StreamConfig};

    use super::*;

    #[test]
    fn a_group_is_forgotten_with_its_last_stream() {
        let (clients, cache) = (Arc::new(Clients::default()), Cache::new());
        let client = Client { id: "n".into(), cluster: "c".into(), ..Client::default() };
        let stream = || DeltaStream::new(cache.watch(), Service::Aggregated, StreamConfig::default());
        let (mut one, mut other) = (stream(), stream());
        let first = clients.join(&client, "", |group| one.join(group));
        let second = clients.join(&client, "", |group| other.join(group));
        assert_eq!(clients.groups().len(), 1);
        drop((one, first));
        assert_eq!(clients.groups().len(), 1);
        drop((other, second));
        assert_eq!(clients.groups().len(), 0);
    }

    #[test]
    fn g6_who_has_no_id_is_alone() {
        let clients = Arc::new(Clients::default());
        assert!(clients.join(&Client::default(), "", |_| panic!("no group")).is_none());
    }
}
