//! Services of Envoy: resources that name each other.

use prost::encoding::{WireType, encode_key, encode_varint};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

const MANAGER: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// A cluster, its endpoints, routes to it, and a listener with the routes.
pub(crate) fn all(number: u64) -> [proto::Change; 4] {
    let name = format!("service-{number}");
    let cluster = [vec![2 << 3, 3], path(&[3, 2], &name)].concat();
    let manager = [field(1, MANAGER), field(2, path(&[3, 2], &name))].concat();
    [
        put(type_url::CLUSTER, &name, cluster),
        put(type_url::CLUSTER_LOAD_ASSIGNMENT, &name, Vec::new()),
        routes(number, number),
        put(type_url::LISTENER, &name, path(&[3, 3, 4], manager)),
    ]
}

/// The routes of a service, to the cluster of a service.
pub(crate) fn routes(of: u64, to: u64) -> proto::Change {
    let to = path(&[2, 3, 2, 1], format!("service-{to}"));
    put(type_url::ROUTE_CONFIGURATION, &format!("service-{of}"), to)
}

pub(crate) fn delete_cluster(number: u64) -> proto::Change {
    delete(type_url::CLUSTER, number)
}

/// The endpoints go with the cluster.
pub(crate) fn delete_all(number: u64) -> Vec<proto::Change> {
    let types = [type_url::CLUSTER, type_url::ROUTE_CONFIGURATION, type_url::LISTENER];
    types.map(|type_url| delete(type_url, number)).into()
}

fn delete(type_url: &str, number: u64) -> proto::Change {
    let act = proto::change::Act::Delete(proto::Delete::default());
    change(type_url, format!("service-{number}"), act)
}

fn put(type_url: &str, name: &str, payload: Vec<u8>) -> proto::Change {
    let content = proto::Content { payload: [field(1, name), payload].concat().into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    change(type_url, name.to_owned(), proto::change::Act::Put(put))
}

fn change(type_url: &str, name: String, act: proto::change::Act) -> proto::Change {
    let key = proto::Key { type_url: type_url.into(), name, when: String::new() };
    proto::Change { key: Some(key), condition: None, act: Some(act) }
}

fn path(numbers: &[u32], value: impl AsRef<[u8]>) -> Vec<u8> {
    numbers.iter().rev().fold(value.as_ref().to_vec(), |value, number| field(*number, value))
}

/// A length-delimited field.
fn field(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.as_ref().len() as u64, &mut bytes);
    bytes.extend_from_slice(value.as_ref());
    bytes
}
