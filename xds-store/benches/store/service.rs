//! Services of Envoy: resources that name each other.

use xds_proto::xds::store::v1 as proto;

use envoy::{cluster_key, delete_at, eds_cluster, endpoints, key_of, listener, routes_key};

#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/driven/envoy.rs"]
mod envoy;

/// A cluster, its endpoints, routes to it, and a listener with the routes.
pub(crate) fn all(number: u64) -> [proto::Change; 4] {
    let name = &name(number);
    [eds_cluster(name, name), endpoints(name), routes(number, number), listener(name, name)]
}

/// The routes of a service, to the cluster of a service.
pub(crate) fn routes(of: u64, to: u64) -> proto::Change {
    envoy::routes(&name(of), &[&name(to)])
}

pub(crate) fn delete_cluster(number: u64) -> proto::Change {
    delete_at(cluster_key(&name(number)))
}

/// The endpoints go with the cluster.
pub(crate) fn delete_all(number: u64) -> Vec<proto::Change> {
    let name = &name(number);
    let listener = key_of(xds_proto::type_url::LISTENER, name);
    [cluster_key(name), routes_key(name), listener].map(delete_at).into()
}

fn name(number: u64) -> String {
    format!("service-{number}")
}
