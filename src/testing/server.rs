//! A server whose connections are pairs in memory.

use std::io;
use std::sync::Arc;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use xds_client::{Connector, Io};
use xds_server::{ServeError, Server};

/// A server for clients in the same process, over connections in memory.
///
/// It is the server that the program runs, with its tasks, HTTP/2 and gRPC, but without sockets. So it
/// also runs while the clock of tokio is paused (`start_paused = true`): time then moves on when all
/// tasks wait, and a test that waits for a TTL, a retry or a grace time takes milliseconds.
///
/// Dropping it begins a shutdown; [`stop`](Self::stop) waits for its end.
///
/// ```
/// use std::sync::Arc;
///
/// use envoy_types::pb::envoy::config::cluster::v3::Cluster;
/// use xds::client::bootstrap::Bootstrap;
/// use xds::client::{Client, Event};
/// use xds::testing::TestServer;
/// use xds::{Cache, Resource, Server};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cache = Cache::new();
/// let server = TestServer::start(Server::new(Arc::clone(&cache)));
/// let bootstrap = Bootstrap::to_server("memory:1");
/// let client = Client::builder(bootstrap).connector(server.connector()).start()?;
/// let mut shop = client.watch::<Cluster>("shop")?;
///
/// let cluster = Cluster { name: "shop".into(), ..Cluster::default() };
/// cache.source("test").set([Resource::of(&cluster)?])?;
/// let Some(Event::Changed(got)) = shop.next().await else { panic!("it exists") };
/// assert_eq!(*got, cluster);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestServer {
    connections: mpsc::Sender<io::Result<DuplexStream>>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl TestServer {
    /// Starts the server.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(server: Server) -> Self {
        let (connections, incoming) = mpsc::channel(CONNECTIONS);
        let (stop, stopped) = oneshot::channel::<()>();
        // The sender is dropped with the server, which is a reason to stop, too.
        let shutdown = async { _ = stopped.await };
        let serving = tokio::spawn(server.serve_with_incoming(ReceiverStream::new(incoming), shutdown));
        Self { connections, stop, serving }
    }

    /// Connects a [client](xds_client::ClientBuilder::connector), or a
    /// [proxy](xds_client::proxy::ProxyBuilder::connector), to this server, whatever the address in its
    /// bootstrap document is. After the end of the server, connections are refused.
    #[must_use]
    pub fn connector(&self) -> Connector {
        let connections = self.connections.clone();
        Arc::new(move |_| {
            let connections = connections.clone();
            Box::pin(async move {
                let (client, server) = duplex(BUFFER_BYTES);
                let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
                connections.send(Ok(server)).await.map_err(refused)?;
                Ok(Box::new(client) as Box<dyn Io>)
            })
        })
    }

    /// Closes all streams as [`Server::serve`] does at its end, and waits until the clients have left.
    ///
    /// # Errors
    /// Those of [`Server::serve`].
    ///
    /// # Panics
    /// If the server panicked.
    pub async fn stop(self) -> Result<(), ServeError> {
        let Self { connections, stop, serving } = self;
        drop((connections, stop));
        crate::source::finished(serving.await).await
    }
}

/// Connections that wait to be accepted.
const CONNECTIONS: usize = 16;

/// What one end of a connection may write before the other one reads.
const BUFFER_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prost::Message;
    use tokio::time::{Instant, timeout};
    use xds_client::bootstrap::Bootstrap;
    use xds_client::{Client, Event, Protocol, Watcher};
    use xds_core::{Cache, Resource};
    use xds_proto::envoy::config::core::v3::Locality;
    use xds_server::{NodeParameters, ServerConfig};

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Thing {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        content: String,
    }

    impl prost::Name for Thing {
        const NAME: &'static str = "Thing";
        const PACKAGE: &'static str = "acme";
    }

    fn thing(name: &str, content: &str) -> Resource {
        Resource::of_named(name, &Thing { name: name.into(), content: content.into() }).unwrap()
    }

    async fn changed(watcher: &mut Watcher<Thing>) -> String {
        match timeout(Duration::from_secs(20), watcher.next()).await.expect("in time") {
            Some(Event::Changed(thing)) => thing.content.clone(),
            other => panic!("expected a change, got {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_outlives_its_server_and_is_served_by_the_next_one() {
        let (cache, began) = (Cache::new(), Instant::now());
        let mut source = cache.source("test");
        source.set([thing("a", "1")]).unwrap();
        let server = TestServer::start(Server::new(Arc::clone(&cache)));
        let builder = Client::builder(Bootstrap::to_server("memory:1")).protocol(Protocol::Delta);
        let client = builder.connector(server.connector()).start().unwrap();
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        tokio::time::sleep(Duration::from_secs(1800)).await;
        source.set([thing("a", "2")]).unwrap();
        assert_eq!(changed(&mut a).await, "2");
        server.stop().await.unwrap();
        assert!(matches!(a.next().await, Some(Event::Ambient(Some(_)))));
        assert_eq!(a.borrow().unwrap().content, "2");
        assert!(began.elapsed() < Duration::from_secs(1830), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn t46_a_function_chooses_the_variant_of_a_client_by_its_node() {
        let cache = Cache::new();
        let variant = |zone: &str| thing("a", zone).with_constraints(format!("zone={zone}").parse().unwrap());
        cache.source("test").set([variant("b"), variant("c")]).unwrap();
        let parameters = NodeParameters::by(|node, peer| {
            assert_eq!(peer.address, None, "the connection is in memory");
            [("zone", node.locality.as_ref().map_or("", |locality| &locality.zone))].into_iter().collect()
        });
        let config = ServerConfig { parameters, ..ServerConfig::default() };
        let server = TestServer::start(Server::new(cache).with_config(config));
        for zone in ["b", "c"] {
            let mut bootstrap = Bootstrap::to_server("memory:1");
            bootstrap.node.locality = Some(Locality { zone: zone.into(), ..Locality::default() });
            let client = Client::builder(bootstrap).connector(server.connector()).start().unwrap();
            assert_eq!(changed(&mut client.watch::<Thing>("a").unwrap()).await, zone);
        }
    }
}
