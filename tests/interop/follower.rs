//! A program that consumes xDS by our client as gRPC does: from a listener to the port of an
//! endpoint.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use prost::Message;
use xds_client::bootstrap::Bootstrap;
use xds_client::{Client, Protocol, ResourceType, Watcher};

use crate::wait::SOON;

/// Follows a listener.
#[derive(Debug)]
pub(crate) struct Follower {
    client: Client,
    listener: Watcher<Listener>,
    routes: Option<(String, Watcher<RouteConfiguration>)>,
    cluster: Option<(String, Watcher<Cluster>)>,
    endpoints: Option<(String, Watcher<ClusterLoadAssignment>)>,
}

impl Follower {
    pub(crate) fn start(port: u16, protocol: Protocol) -> Self {
        let mut bootstrap = Bootstrap::to_server(format!("127.0.0.1:{port}"));
        bootstrap.node.id = "follower".into();
        Self::of(bootstrap, "svc", protocol)
    }

    /// Follows the listener `target`.
    pub(crate) fn of(mut bootstrap: Bootstrap, target: &str, protocol: Protocol) -> Self {
        // As gRPC does it: what is deleted is used no longer.
        bootstrap.servers[0].features.fail_on_data_errors = true;
        let client = Client::builder(bootstrap).protocol(protocol).start().expect("it starts");
        let listener = client.watch(target).expect("a name");
        Self { client, listener, routes: None, cluster: None, endpoints: None }
    }

    /// Waits until it has come to this port, or to none.
    pub(crate) async fn until(&mut self, what: &str, port: Option<u16>) {
        let what = format!("{what}: our client comes to {port:?}");
        // The watchers are looked at anew each time, as each may lead to others.
        let start = std::time::Instant::now();
        while self.port() != port {
            assert!(start.elapsed() < SOON, "waited {SOON:?} in vain: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The port that its resources lead to now.
    fn port(&mut self) -> Option<u16> {
        let listener = self.listener.borrow()?;
        let manager = listener.api_listener.as_ref()?.api_listener.as_ref()?;
        let manager = HttpConnectionManager::decode(&*manager.value).ok()?;
        let RouteSpecifier::Rds(rds) = manager.route_specifier? else { return None };
        let routes = follow(&self.client, &mut self.routes, &rds.route_config_name)?.borrow()?;
        let Action::Route(route) = routes.virtual_hosts.first()?.routes.first()?.action.clone()? else {
            return None;
        };
        let ClusterSpecifier::Cluster(cluster) = route.cluster_specifier? else { return None };
        let cluster = follow(&self.client, &mut self.cluster, &cluster)?.borrow()?;
        let service = &cluster.eds_cluster_config.as_ref()?.service_name;
        let service = if service.is_empty() { &cluster.name } else { service };
        let endpoints = follow(&self.client, &mut self.endpoints, service)?.borrow()?;
        let endpoint = endpoints.endpoints.first()?.lb_endpoints.first()?.host_identifier.clone()?;
        let HostIdentifier::Endpoint(endpoint) = endpoint else { return None };
        let Address::SocketAddress(address) = endpoint.address?.address? else { return None };
        let PortSpecifier::PortValue(port) = address.port_specifier? else { return None };
        u16::try_from(port).ok()
    }
}

/// The watcher of a name, in the place of that of another name.
fn follow<'w, T>(
    client: &Client,
    watcher: &'w mut Option<(String, Watcher<T>)>,
    name: &str,
) -> Option<&'w Watcher<T>>
where
    T: ResourceType,
{
    if watcher.as_ref().is_none_or(|(watched, _)| watched != name) {
        *watcher = Some((name.to_owned(), client.watch(name).expect("a name")));
    }
    watcher.as_ref().map(|(_, watcher)| watcher)
}
