//! An agent with typed getters, whose control plane lacks one kind of resource.
//!
//! The agent watches all clusters and one secret, and reads them from the cache of its client:
//! `get_cluster` and `get_secret` send nothing and wait for nothing. The older
//! control plane of this program has no secrets, and ends each stream that subscribes to them. The
//! clusters are read all the same, and `get_secret` returns the status of the control plane, so that
//! the agent can do without. After an upgrade the secrets are there.
//!
//! ```text
//! cargo run --example typed_getters
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use xds::client::bootstrap::Bootstrap;
use xds::client::health::Status;
use xds::client::{
    CachedResource, Client, Event, ReadError, ReadRoute, ResourceType, SetEvent, SetWatcher, Watcher,
};
use xds::{Cache, Resource, Server, ServerConfig, Serving, Transaction, TypeConfig, TypeUrl};

/// Reads what it watches. A getter for one more kind is one more line.
pub(crate) struct Agent {
    client: Client,
    pub(crate) clusters: SetWatcher<Cluster>,
    pub(crate) secret: Watcher<Secret>,
}

/// Why a getter has no answer. A resource that does not exist is an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    /// The control plane does not serve the kind, or has not answered yet.
    #[error("{0}")]
    Kind(Status),
    #[error(transparent)]
    Resource(#[from] ReadError),
}

impl Agent {
    pub(crate) fn start(control_plane: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let client = Client::start(Bootstrap::to_server(format!("http://{control_plane}")))?;
        let (clusters, secret) = (client.watch_all()?, client.watch("web")?);
        Ok(Self { client, clusters, secret })
    }

    pub(crate) fn get_cluster(&self, name: &str) -> Result<Option<CachedResource<Cluster>>, GetError> {
        self.get(name)
    }

    pub(crate) fn get_secret(&self, name: &str) -> Result<Option<CachedResource<Secret>>, GetError> {
        self.get(name)
    }

    fn get<T: ResourceType>(&self, name: &str) -> Result<Option<CachedResource<T>>, GetError> {
        match self.client.read::<T>().route() {
            ReadRoute::Cache(resources) => Ok(resources.get(name)?),
            ReadRoute::Upstream(status) => Err(GetError::Kind(status)),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::new();
    put(&cache, Resource::of(&Cluster { name: "web".into(), ..Cluster::default() })?)?;
    put(&cache, Resource::of(&Secret { name: "web".into(), ..Secret::default() })?)?;
    let (address, old) = control_plane(&cache, "127.0.0.1:0", Serving::Refused).await?;

    let mut agent = Agent::start(address)?;
    println!("before the first response: {}", shown(agent.get_cluster("web")));
    complete(&mut agent.clusters).await;
    refused(&mut agent.secret).await;
    println!("cluster web: {}", shown(agent.get_cluster("web")));
    println!("cluster shop: {}", shown(agent.get_cluster("shop")));
    println!("secret web: {}", shown(agent.get_secret("web")));

    put(&cache, Resource::of(&Cluster { name: "shop".into(), ..Cluster::default() })?)?;
    _ = agent.clusters.next().await;
    println!("after a change, cluster shop: {}", shown(agent.get_cluster("shop")));

    old.stop().await?;
    let (_, new) = control_plane(&cache, &address.to_string(), Serving::Served).await?;
    changed(&mut agent.secret).await;
    println!("after the upgrade, secret web: {}", shown(agent.get_secret("web")));
    println!("after the upgrade, cluster web: {}", shown(agent.get_cluster("web")));
    new.stop().await
}

fn shown<T>(got: Result<Option<CachedResource<T>>, GetError>) -> String {
    match got {
        Ok(Some(resource)) => format!("{} is there", resource.name()),
        Ok(None) => "there is none".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Waits until all members of a set are known.
pub(crate) async fn complete<T: ResourceType>(watcher: &mut SetWatcher<T>) {
    while !matches!(watcher.next().await, None | Some(SetEvent::Complete)) {}
}

/// Waits until the server has refused the kind of a resource.
pub(crate) async fn refused<T: ResourceType>(watcher: &mut Watcher<T>) {
    while !matches!(watcher.next().await, None | Some(Event::Absent(_))) {}
}

/// Waits until a resource is there.
pub(crate) async fn changed<T: ResourceType>(watcher: &mut Watcher<T>) {
    while !matches!(watcher.next().await, None | Some(Event::Changed(_))) {}
}

fn put(cache: &Cache, resource: Resource) -> Result<(), xds::CommitError> {
    let mut transaction = Transaction::new();
    transaction.put(resource);
    cache.commit(transaction)?;
    Ok(())
}

struct Running {
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), xds::ServeError>>,
}

impl Running {
    async fn stop(self) -> Result<(), Box<dyn Error>> {
        _ = self.stop.send(());
        Ok(self.server.await??)
    }
}

/// Starts a control plane that treats secrets like this. `xds serve --refuse SDS` does the same as
/// `Serving::Refused`.
async fn control_plane(
    cache: &Arc<Cache>,
    address: &str,
    secrets: Serving,
) -> Result<(SocketAddr, Running), Box<dyn Error>> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let mut config = ServerConfig::default();
    let type_url = TypeUrl::of::<Secret>();
    let of_type = TypeConfig { serving: secrets, ..TypeConfig::of(type_url.as_str()) };
    config.stream.types.insert(type_url, of_type);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::new(Arc::clone(cache)).with_config(config);
    let server = tokio::spawn(server.serve(listener, async { _ = stopped.await }));
    Ok((address, Running { stop, server }))
}
