//! What the commands that serve export on the port for monitoring.

use std::sync::Arc;

use xds::client::prometheus::{self as client, Target, register_proxy};
use xds::client::proxy::Proxy;
use xds::metrics::{Metrics, Registry};
use xds::{Cache, ServerConfig};

/// Counts what happens on the streams of a server that is about to be served.
pub(super) fn watch_server(registry: &mut Registry, cache: &Arc<Cache>, config: &mut ServerConfig) {
    let metrics = Metrics::register(registry, cache);
    tokio::spawn(metrics.measure(cache));
    config.add_observer(metrics);
}

/// What the clients of a proxy count, to be given to them before they start.
pub(super) fn upstream_recorder(registry: &mut Registry) -> Arc<Target> {
    client::Metrics::register(registry).proxy_target("upstream")
}

/// What a proxy tells of itself, and the resources of the clients that it starts with.
pub(super) fn watch_proxy(registry: &mut Registry, proxy: &Proxy, target: &Target) {
    register_proxy(registry, proxy);
    for (_, client) in proxy.clients() {
        target.count_resources_of(&client);
    }
}
