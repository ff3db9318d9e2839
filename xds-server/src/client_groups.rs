//! Which streams belong to one client (S33b): the streams per type of one connection whose nodes
//! have the same id and cluster.
//!
//! A node id alone does not prove that streams have the same client. During a hot restart two
//! Envoys have the same id. gRPC processes with the same bootstrap file have it too. And a
//! connection that the client has lost may still look alive to the server. A client must not wait
//! for another process, so only streams that can belong to one process form a group.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xds_core::server::{ClientGroup, Service};

use crate::peer::Peer;
use crate::skim::Client;

/// The groups of all clients that have streams per type.
#[derive(Debug, Default)]
pub(crate) struct ClientGroups(Mutex<HashMap<Key, ClientGroup>>);

/// The connection, and the id and the cluster of the node: a proxy brings many clients over one
/// connection.
type Key = (u64, String, String);

/// Keeps one stream in the group of its client. When the last stream leaves, the group is removed,
/// so drop this after the machine.
#[derive(Debug)]
pub(crate) struct Membership {
    clients: Arc<ClientGroups>,
    key: Key,
}

impl ClientGroups {
    /// Adds a stream to the group of its client (S33b).
    ///
    /// An aggregated stream is alone. So are streams of clients without a node id (G6), and of
    /// connections that another server accepted.
    pub(crate) fn join(
        self: &Arc<Self>,
        service: &Service,
        client: &Client,
        peer: &Peer,
        join: impl FnOnce(&ClientGroup),
    ) -> Option<Membership> {
        let connection = peer.connection?;
        if *service == Service::Aggregated || client.id.is_empty() {
            return None;
        }
        let key = (connection, client.id.clone(), client.cluster.clone());
        // Locked until the stream has joined, because a group without streams is removed.
        join(self.groups().entry(key.clone()).or_default());
        Some(Membership { clients: Arc::clone(self), key })
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn groups(&self) -> MutexGuard<'_, HashMap<Key, ClientGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
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
    use xds_core::server::{Protocol, Stream, StreamConfig};

    use super::*;

    fn client() -> Client {
        Client { id: "n".into(), cluster: "c".into(), ..Client::default() }
    }

    fn peer() -> Peer {
        Peer { connection: Some(7), ..Peer::default() }
    }

    fn clusters() -> Service {
        Service::Single(xds_proto::type_url::CLUSTER.into())
    }

    #[test]
    fn a_group_is_forgotten_with_its_last_stream() {
        let (clients, cache) = (Arc::new(ClientGroups::default()), Cache::new());
        let stream = || Stream::new(cache.watch(), clusters(), Protocol::Delta, StreamConfig::default());
        let (mut one, mut other) = (stream(), stream());
        let first = clients.join(&clusters(), &client(), &peer(), |group| one.join(group));
        let second = clients.join(&clusters(), &client(), &peer(), |group| other.join(group));
        assert_eq!(clients.groups().len(), 1);
        drop((one, first));
        assert_eq!(clients.groups().len(), 1);
        drop((other, second));
        assert_eq!(clients.groups().len(), 0);
    }

    #[test]
    fn s33b_g6_what_cannot_be_proved_to_be_one_client_is_alone() {
        let clients = Arc::new(ClientGroups::default());
        let alone = |service, client: &Client, peer: &Peer| {
            assert!(clients.join(&service, client, peer, |_| panic!("no group")).is_none());
        };
        alone(clusters(), &Client::default(), &peer());
        alone(clusters(), &client(), &Peer::default());
        alone(Service::Aggregated, &client(), &peer());
    }
}
