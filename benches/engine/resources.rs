//! The resources of the load benchmark's server, byte for byte, and caches with them.

use std::sync::Arc;

use prost::encoding::{WireType, encode_key, encode_varint};
use xds_core::{Cache, Constraints, Formula, Resource, Transaction};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};

pub(crate) fn name(index: usize) -> String {
    format!("cluster-{index:06}")
}

pub(crate) fn variant_name(variant: usize) -> String {
    format!("v{variant:03}")
}

/// A cluster whose endpoints come over the same stream.
pub(crate) fn cluster(index: usize, round: u64) -> Resource {
    let ads = [message(3, &[]), number(6, 2)].concat();
    let payload = [
        message(1, name(index).as_bytes()),
        number(2, 3),
        message(3, &message(1, &ads)),
        message(4, &number(1, 1 + round)),
    ];
    Resource::new(CLUSTER, name(index).as_str(), payload.concat()).unwrap()
}

/// Ten endpoints with the number of the last round that changed them.
pub(crate) fn assignment(index: usize, round: u64) -> Resource {
    assignment_of(index, round, 0)
}

/// The same for clients whose parameters select the variant.
pub(crate) fn variant(index: usize, round: u64, variant: usize) -> Resource {
    let value = variant_name(variant).as_str().into();
    let only = Formula::Equals { key: "variant".into(), value };
    assignment_of(index, round, variant).with_constraints(Constraints::from_formula(only).unwrap())
}

fn assignment_of(index: usize, round: u64, variant: usize) -> Resource {
    let sub_zone = variant_name(variant);
    let locality = [message(1, b"region-1"), message(2, b"zone-1"), message(3, sub_zone.as_bytes())].concat();
    let mut endpoints = message(1, &locality);
    for endpoint in 0..10 {
        let address = format!("10.{}.{}.{endpoint}", index >> 8 & 255, index & 255);
        let socket = [message(2, address.as_bytes()), number(3, 8080)].concat();
        let endpoint = message(1, &message(1, &message(1, &socket)));
        endpoints.extend(message(2, &[endpoint, number(2, 1), message(4, &number(1, 100))].concat()));
    }
    let policy = message(3, &number(1, 1000 + round));
    let payload = [message(1, name(index).as_bytes()), message(2, &endpoints), message(4, &policy)].concat();
    Resource::new(CLUSTER_LOAD_ASSIGNMENT, name(index).as_str(), payload).unwrap()
}

/// A field with a message or a text.
fn message(field: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(field, &value.to_vec(), &mut bytes);
    bytes
}

fn number(field: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(field, WireType::Varint, &mut bytes);
    encode_varint(value, &mut bytes);
    bytes
}

/// The changes of a source, one after the other, always to new content.
pub(crate) struct Changes<F> {
    round: u64,
    among: usize,
    changed: F,
}

impl<F: Fn(usize, u64) -> Resource> Changes<F> {
    pub(crate) fn new(among: usize, changed: F) -> Self {
        Self { round: 0, among, changed }
    }

    pub(crate) fn next(&mut self) -> Resource {
        self.round += 1;
        // A prime, so that changes that follow each other are not neighbours in any table.
        (self.changed)(self.round as usize * 7919 % self.among, self.round)
    }
}

/// Puts the resources into one transaction and commits it; building the transaction is part of the
/// cost.
pub(crate) fn commit(cache: &Cache, resources: impl IntoIterator<Item = Resource>) {
    let mut transaction = Transaction::new();
    for resource in resources {
        transaction.put(resource);
    }
    cache.commit(transaction).unwrap();
}

/// A cache of these resources.
pub(crate) fn cache(resources: impl IntoIterator<Item = Resource>) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, resources);
    cache
}
