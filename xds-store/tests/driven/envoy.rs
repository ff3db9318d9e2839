//! Resources of Envoy that name each other.

use prost::encoding::{WireType, encode_key, encode_varint};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

/// A length-delimited field.
fn field(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.as_ref().len() as u64, &mut bytes);
    bytes.extend_from_slice(value.as_ref());
    bytes
}

pub(crate) fn path(numbers: &[u32], value: impl AsRef<[u8]>) -> Vec<u8> {
    numbers.iter().rev().fold(value.as_ref().to_vec(), |value, number| field(*number, value))
}

pub(crate) fn key_of(type_url: &str, name: &str) -> proto::Key {
    proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() }
}

pub(crate) fn cluster_key(name: &str) -> proto::Key {
    key_of(type_url::CLUSTER, name)
}

pub(crate) fn routes_key(name: &str) -> proto::Key {
    key_of(type_url::ROUTE_CONFIGURATION, name)
}

pub(crate) fn endpoints_key(name: &str) -> proto::Key {
    key_of(type_url::CLUSTER_LOAD_ASSIGNMENT, name)
}

/// Endpoints of clusters.
pub(crate) fn endpoints(name: &str) -> proto::Change {
    put_at(endpoints_key(name), field(1, name))
}

pub(crate) fn put_at(key: proto::Key, payload: Vec<u8>) -> proto::Change {
    let content = proto::Content { payload: payload.into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None }
}

pub(crate) fn delete_at(key: proto::Key) -> proto::Change {
    let act = proto::change::Act::Delete(proto::Delete::default());
    proto::Change { key: Some(key), act: Some(act), condition: None }
}

/// A deletion that waits until nothing blocks it.
pub(crate) fn drain_at(key: proto::Key) -> proto::Change {
    let act = proto::change::Act::Delete(proto::Delete { drain: true });
    proto::Change { key: Some(key), act: Some(act), condition: None }
}

/// A cluster that names nothing.
pub(crate) fn cluster(name: &str) -> proto::Change {
    put_at(cluster_key(name), field(1, name))
}

/// A cluster whose endpoints have this name.
pub(crate) fn eds_cluster(name: &str, endpoints: &str) -> proto::Change {
    let payload = [field(1, name), vec![2 << 3, 3], path(&[3, 2], endpoints)].concat();
    put_at(cluster_key(name), payload)
}

/// A cluster of this one.
pub(crate) fn aggregate(name: &str, cluster: &str) -> proto::Change {
    let config = "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig";
    let config = [field(1, config), field(2, field(1, cluster))].concat();
    put_at(cluster_key(name), [field(1, name), path(&[38, 2], config)].concat())
}

/// A listener with these routes.
pub(crate) fn listener(name: &str, routes: &str) -> proto::Change {
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                   HttpConnectionManager";
    let manager = [field(1, manager), field(2, path(&[3, 2], routes))].concat();
    put_at(key_of(type_url::LISTENER, name), [field(1, name), path(&[3, 3, 4], manager)].concat())
}

/// Routes to these clusters.
pub(crate) fn routes(name: &str, clusters: &[&str]) -> proto::Change {
    routes_when(name, "", clusters)
}

pub(crate) fn routes_when(name: &str, when: &str, clusters: &[&str]) -> proto::Change {
    let to = clusters.iter().flat_map(|cluster| path(&[2, 3, 2, 1], cluster));
    let payload = field(1, name).into_iter().chain(to).collect();
    put_at(proto::Key { when: when.into(), ..routes_key(name) }, payload)
}

/// A reference rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule<'a> {
    pub(crate) type_url: &'a str,
    pub(crate) field: &'a str,
    pub(crate) target: &'a str,
    pub(crate) on_delete: proto::OnDelete,
    pub(crate) external: &'a [&'a str],
    pub(crate) collect: bool,
}

impl Rule<'_> {
    /// Of the clusters in routes.
    pub(crate) fn of_routes(on_delete: proto::OnDelete) -> Self {
        let field = "virtual_hosts.routes.route.cluster";
        let (type_url, target) = (type_url::ROUTE_CONFIGURATION, type_url::CLUSTER);
        Self { type_url, field, target, on_delete, external: &[], collect: false }
    }

    /// Of the routes of listeners.
    pub(crate) fn of_listeners(on_delete: proto::OnDelete) -> Self {
        let field = "filter_chains.filters.typed_config.rds.route_config_name";
        let (type_url, target) = (type_url::LISTENER, type_url::ROUTE_CONFIGURATION);
        Self { type_url, field, target, on_delete, external: &[], collect: false }
    }

    pub(crate) fn put(self, name: &str) -> proto::Change {
        let Self { type_url, field, target, on_delete, external, collect } = self;
        let rule = proto::ReferenceRule {
            type_url: type_url.into(),
            field: field.into(),
            target_type_url: target.into(),
            on_delete: on_delete.into(),
            external: external.iter().map(ToString::to_string).collect(),
            collect,
        };
        put_at(rule_key(name), prost::Message::encode_to_vec(&rule))
    }
}

pub(crate) fn rule_key(name: &str) -> proto::Key {
    key_of(xds_store::rules::RULE_TYPE, name)
}
