//! Responses, read in the way of a client; a response that a client would reject fails the test.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::Constraints;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource, ResourceError, ResourceName,
};
use xds_proto::type_url;

/// The key of a resource in a client: its name, and its constraints if they were sent (T29).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) canon: Option<Vec<u8>>,
}

/// One received resource.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) constraints: Option<Constraints>,
    pub(super) payload: Vec<u8>,
    /// Empty in SotW.
    pub(super) version: String,
}

/// The contents of a SotW response: its resources, and the names of its errors.
pub(super) fn state(response: DiscoveryResponse) -> (BTreeMap<Key, Received>, Vec<String>) {
    let mut resources = BTreeMap::new();
    for any in response.resources {
        let (key, received) = if any.type_url == type_url::RESOURCE {
            let wrapper = prost::Message::decode(&*any.value).expect("a wrapper decodes");
            let (key, received) = resource(wrapper, &response.type_url);
            assert!(key.canon.is_some(), "only who knows locators gets a wrapper (S30)");
            (key, received)
        } else {
            let payload = payload(any, &response.type_url);
            let name = name_of(&payload).to_owned();
            (Key { name, canon: None }, Received { constraints: None, payload, version: String::new() })
        };
        // S28, T29
        assert!(!resources.contains_key(&key), "{key:?} is there twice");
        resources.insert(key, received);
    }
    (resources, errors(response.resource_errors))
}

/// The contents of a delta response: its resources, its removals, and the names of its errors.
pub(super) fn changes(
    response: DeltaDiscoveryResponse,
) -> (BTreeMap<Key, Received>, BTreeSet<Key>, Vec<String>) {
    let mut resources = BTreeMap::new();
    for wrapper in response.resources {
        let (key, received) = resource(wrapper, &response.type_url);
        assert!(!received.version.is_empty(), "{key:?} has no version (D22)");
        // D13
        assert!(!resources.contains_key(&key), "{key:?} is there twice");
        resources.insert(key, received);
    }
    let bare = response.removed_resources.into_iter().map(|name| Key { name, canon: None });
    let located = response.removed_resource_names.into_iter().map(|name| key(name).0);
    let mut removed = BTreeSet::new();
    for key in bare.chain(located) {
        assert!(!resources.contains_key(&key), "{key:?} is there and removed");
        // T30: the removal of a bare name says that the name has no variant.
        let is_there = || resources.keys().any(|other| other.name == key.name);
        assert!(key.canon.is_some() || !is_there(), "{key:?} is removed, and a variant of it is there");
        assert!(!removed.contains(&key), "{key:?} is removed twice");
        removed.insert(key);
    }
    (resources, removed, errors(response.resource_errors))
}

fn resource(wrapper: Resource, type_url: &str) -> (Key, Received) {
    let Resource { name, resource_name, version, resource, .. } = wrapper;
    let payload = payload(resource.expect("a resource has a payload"), type_url);
    let (key, constraints) = match resource_name {
        None => (Key { name, canon: None }, None),
        Some(located) => {
            assert!(name.is_empty(), "{name:?} stands there in both forms (T25)");
            let (key, constraints) = key(located);
            (key, Some(constraints))
        }
    };
    assert_eq!(key.name, name_of(&payload));
    (key, Received { constraints, payload, version })
}

fn key(located: ResourceName) -> (Key, Constraints) {
    let constraints = located.dynamic_parameter_constraints.unwrap_or_default();
    let constraints = Constraints::from_proto(&constraints).expect("constraints are good (T8)");
    (Key { name: located.name, canon: Some(constraints.canon().to_vec()) }, constraints)
}

fn payload(any: Any, type_url: &str) -> Vec<u8> {
    assert_eq!(any.type_url, type_url, "S29");
    any.value.into()
}

/// Field 1.
fn name_of(payload: &[u8]) -> &str {
    let name = payload.get(2..2 + usize::from(payload[1])).expect("a payload starts with the name");
    str::from_utf8(name).expect("a name is text")
}

fn errors(errors: Vec<ResourceError>) -> Vec<String> {
    let name = |error: ResourceError| {
        assert!(error.error_detail.is_some_and(|status| status.code != 0), "an error is none");
        error.resource_name.expect("an error is about a name").name
    };
    errors.into_iter().map(name).collect()
}
