//! What a client has from one ADS stream, and what a server sends it again without a change.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use prost::Message;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
    ResourceLocator, ResourceName,
};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, SCOPED_ROUTE_CONFIGURATION};

/// A stream between a client and a server: all of its requests and responses, in their order.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    types: BTreeMap<String, TypeHolding>,
    /// How many responses there were.
    pub(crate) responses: usize,
    /// How many resources they had.
    pub(crate) resources: usize,
    /// How many of these were unchanged, in responses with the full state (S25).
    pub(crate) with_others: usize,
    /// How many of these were unchanged, where clients need them again (S15, S34, D9).
    pub(crate) repeated: usize,
    /// What was sent although nothing had changed.
    pub(crate) unchanged: Vec<String>,
}

#[derive(Debug, Default)]
struct TypeHolding {
    /// In SotW: what the last request listed.
    listed: BTreeSet<String>,
    /// In SotW: the version that the client has from an earlier stream.
    version_before: String,
    requested: bool,
    answered: bool,
    held: BTreeMap<Key, Content>,
    /// Names that the client had and subscribed to again, so it gets them again (S15, D9).
    again: BTreeSet<String>,
    /// In delta: names whose absence the server may say (D10).
    unanswered: BTreeSet<String>,
    /// Endpoints whose cluster was sent (S34).
    warming: BTreeSet<String>,
}

/// A name and encoded constraints.
type Key = (String, Vec<u8>);

#[derive(Debug, Clone)]
struct Content {
    version: String,
    /// `None` if it is from an earlier stream.
    payload: Option<Bytes>,
}

impl Holding {
    pub(crate) fn on_sotw_request(&mut self, request: &DiscoveryRequest) {
        let state = self.types.entry(request.type_url.clone()).or_default();
        let listed: BTreeSet<_> =
            names(&request.resource_names, &request.resource_locators).cloned().collect();
        for name in state.listed.difference(&listed).cloned().collect::<Vec<_>>() {
            state.unsubscribe(&name);
        }
        for name in listed.difference(&state.listed).cloned().collect::<Vec<_>>() {
            state.subscribe(&name);
        }
        state.listed = listed;
        if !state.requested {
            state.version_before.clone_from(&request.version_info);
        }
        state.requested = true;
    }

    pub(crate) fn on_delta_request(&mut self, request: &DeltaDiscoveryRequest) {
        let state = self.types.entry(request.type_url.clone()).or_default();
        // D3.
        names(&request.resource_names_unsubscribe, &request.resource_locators_unsubscribe)
            .for_each(|name| state.unsubscribe(name));
        names(&request.resource_names_subscribe, &request.resource_locators_subscribe)
            .for_each(|name| state.subscribe(name));
        // D21: it has these, so it does not get them by its subscription.
        for (name, version) in request.initial_resource_versions.iter().filter(|_| !state.requested) {
            let content = Content { version: version.clone(), payload: None };
            state.held.insert((name.clone(), Vec::new()), content);
        }
        state.requested = true;
    }

    pub(crate) fn on_sotw_response(&mut self, response: &DiscoveryResponse) {
        let resources: Vec<_> = response.resources.iter().map(unwrapped).collect();
        let type_url = &*response.type_url;
        let state = self.types.entry(type_url.to_owned()).or_default();
        if !matches!(type_url, LISTENER | CLUSTER | SCOPED_ROUTE_CONFIGURATION) {
            // T34: it has one variant of a name, unless it gets several at once.
            state.held.retain(|key, _| {
                let of_name = || resources.iter().filter(|(sent, _)| sent.0 == key.0);
                of_name().next().is_none() || of_name().any(|(sent, _)| sent == key)
            });
            let errors = !response.resource_errors.is_empty();
            for error in &response.resource_errors {
                state.remove(&error.resource_name.clone().unwrap_or_default());
            }
            return self.on_partial(type_url, resources, errors);
        }
        self.responses += 1;
        self.resources += resources.len();
        // S25: all that the client shall have.
        let before = std::mem::take(&mut state.held);
        let same = |(key, content): &(Key, Content)| before.get(key).is_some_and(|had| had.is_same(content));
        let unchanged = resources.iter().filter(|resource| same(resource)).count();
        if state.answered && unchanged == resources.len() && unchanged == before.len() {
            self.unchanged.push(format!("S7: all of {type_url}"));
        }
        // S32: the client says which version it has.
        if !state.answered
            && !response.version_info.is_empty()
            && response.version_info == state.version_before
        {
            self.unchanged.push(format!("S32: all of {type_url}, which it has from an earlier stream"));
        }
        self.with_others += unchanged;
        state.answered = true;
        let changed: Vec<_> = resources.iter().filter(|resource| !same(resource)).cloned().collect();
        state.held = resources.into_iter().collect();
        self.warm(type_url, &changed);
    }

    pub(crate) fn on_delta_response(&mut self, response: &DeltaDiscoveryResponse) {
        let type_url = &*response.type_url;
        let state = self.types.entry(type_url.to_owned()).or_default();
        for name in &response.removed_resources {
            let had = state.remove(&ResourceName { name: name.clone(), ..ResourceName::default() });
            if !state.unanswered.remove(name) && !had {
                self.unchanged.push(format!("D11: the removal of {name} of {type_url}"));
            }
        }
        for name in &response.removed_resource_names {
            state.remove(name);
        }
        let says_more = !response.removed_resources.is_empty()
            || !response.removed_resource_names.is_empty()
            || !response.resource_errors.is_empty();
        let resources = response.resources.iter().map(named).collect();
        self.on_partial(type_url, resources, says_more);
    }

    /// A response that has changed resources only (S26, D12).
    fn on_partial(&mut self, type_url: &str, resources: Vec<(Key, Content)>, says_more: bool) {
        let state = self.types.entry(type_url.to_owned()).or_default();
        self.responses += 1;
        self.resources += resources.len();
        if state.answered && resources.is_empty() && !says_more {
            self.unchanged.push(format!("S7: an empty response of {type_url}"));
        }
        state.answered = true;
        for (key, content) in &resources {
            let warms = state.warming.remove(&key.0);
            state.unanswered.remove(&key.0);
            let same = state.held.get(key).is_some_and(|had| had.is_same(content));
            if same && (warms || state.again.remove(&key.0)) {
                self.repeated += 1;
            } else if same {
                self.unchanged.push(format!("D12: {} of {type_url}", key.0));
            }
            state.held.insert(key.clone(), content.clone());
        }
        self.warm(type_url, &resources);
    }

    /// S34: with a new or changed cluster its endpoints are sent again.
    fn warm(&mut self, type_url: &str, clusters: &[(Key, Content)]) {
        if type_url != CLUSTER {
            return;
        }
        let endpoints = self.types.entry(CLUSTER_LOAD_ASSIGNMENT.to_owned()).or_default();
        for (_, content) in clusters {
            let payload = content.payload.clone().unwrap_or_default();
            let cluster = Cluster::decode(payload).expect("a cluster");
            let service = cluster.eds_cluster_config.map(|eds| eds.service_name);
            endpoints.warming.extend(service.map(|name| if name.is_empty() { cluster.name } else { name }));
        }
    }
}

impl TypeHolding {
    fn subscribe(&mut self, name: &str) {
        self.unanswered.insert(name.to_owned());
        if self.held.keys().any(|(held, _)| held == name) {
            self.again.insert(name.to_owned());
        }
    }

    fn unsubscribe(&mut self, name: &str) {
        self.held.retain(|(held, _), _| held != name);
        self.unanswered.remove(name);
        self.again.remove(name);
    }

    /// T30b: one variant, or without constraints all of the name. Whether the client had one.
    fn remove(&mut self, removed: &ResourceName) -> bool {
        let (name, constraints) = key(removed);
        let before = self.held.len();
        self.held.retain(|(held, when), _| *held != name || !constraints.is_empty() && *when != constraints);
        self.held.len() < before
    }
}

impl Content {
    /// Another version of the same payload is no change.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.payload, &other.payload) {
            (Some(one), Some(other)) => one == other,
            _ => self.version == other.version,
        }
    }
}

fn names<'m>(names: &'m [String], locators: &'m [ResourceLocator]) -> impl Iterator<Item = &'m String> {
    names.iter().chain(locators.iter().map(|locator| &locator.name))
}

fn key(name: &ResourceName) -> Key {
    let constraints = name.dynamic_parameter_constraints.as_ref();
    (name.name.clone(), constraints.map(Message::encode_to_vec).unwrap_or_default())
}

fn named(resource: &Resource) -> (Key, Content) {
    let key = resource.resource_name.as_ref().map_or_else(|| (resource.name.clone(), Vec::new()), key);
    let payload = resource.resource.clone().unwrap_or_default().value;
    (key, Content { version: resource.version.clone(), payload: Some(payload) })
}

/// A resource of a SotW response: in a wrapper, or with its name in field 1.
fn unwrapped(any: &Any) -> (Key, Content) {
    if any.type_url == RESOURCE {
        return named(&Resource::decode(any.value.clone()).expect("a wrapper"));
    }
    let name = Named::decode(any.value.clone()).expect("a message").name;
    ((name, Vec::new()), Content { version: String::new(), payload: Some(any.value.clone()) })
}

const RESOURCE: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

#[derive(Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

mod tests {
    use super::*;

    const OWN: &str = "type.googleapis.com/acme.v1.Thing";

    fn subscribe(type_url: &str, names: &[&str]) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            type_url: type_url.into(),
            resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn delta(type_url: &str, name: &str, payload: impl Message) -> DeltaDiscoveryResponse {
        let value = payload.encode_to_vec().into();
        let resource = Resource {
            name: name.into(),
            version: "1".into(),
            resource: Some(Any { type_url: type_url.into(), value }),
            ..Resource::default()
        };
        let type_url = type_url.to_owned();
        DeltaDiscoveryResponse { type_url, resources: vec![resource], ..DeltaDiscoveryResponse::default() }
    }

    fn thing(name: &str) -> Named {
        Named { name: name.into() }
    }

    fn sotw(type_url: &str, names: &[&str]) -> DiscoveryResponse {
        let any = |name: &&str| Any { type_url: type_url.into(), value: thing(name).encode_to_vec().into() };
        DiscoveryResponse {
            type_url: type_url.into(),
            version_info: "1".into(),
            resources: names.iter().map(any).collect(),
            ..DiscoveryResponse::default()
        }
    }

    fn list(type_url: &str, names: &[&str]) -> DiscoveryRequest {
        let resource_names = names.iter().map(ToString::to_string).collect();
        DiscoveryRequest { type_url: type_url.into(), resource_names, ..DiscoveryRequest::default() }
    }

    #[test]
    fn d12_a_delta_response_with_an_unchanged_resource_is_noticed_unless_the_client_wants_it_again() {
        let mut holding = Holding::default();
        holding.on_delta_request(&subscribe(OWN, &["a"]));
        holding.on_delta_response(&delta(OWN, "a", thing("a")));
        holding.on_delta_response(&delta(OWN, "a", thing("changed")));
        // D9: once.
        holding.on_delta_request(&subscribe(OWN, &["a"]));
        holding.on_delta_response(&delta(OWN, "a", thing("changed")));
        assert_eq!((holding.repeated, holding.unchanged.len()), (1, 0));
        holding.on_delta_response(&delta(OWN, "a", thing("changed")));
        assert_eq!(holding.unchanged, [format!("D12: a of {OWN}")]);
        // D11.
        let removal = DeltaDiscoveryResponse {
            type_url: OWN.into(),
            removed_resources: vec!["a".into()],
            ..DeltaDiscoveryResponse::default()
        };
        holding.on_delta_response(&removal);
        holding.on_delta_response(&delta(OWN, "a", thing("changed")));
        assert_eq!(holding.unchanged.len(), 1);
        holding.on_delta_response(&removal);
        holding.on_delta_response(&removal);
        assert_eq!(holding.unchanged[1..], [format!("D11: the removal of a of {OWN}")]);
        holding.on_delta_response(&DeltaDiscoveryResponse { removed_resources: Vec::new(), ..removal });
        assert_eq!(holding.unchanged[2..], [format!("S7: an empty response of {OWN}")]);
        assert_eq!((holding.responses, holding.resources), (9, 5));
    }

    #[test]
    fn d21_a_delta_response_with_what_the_client_had_before_the_stream_is_noticed() {
        let mut holding = Holding::default();
        let initial_resource_versions = BTreeMap::from([("a".into(), "1".into()), ("b".into(), "0".into())]);
        let request = DeltaDiscoveryRequest { initial_resource_versions, ..subscribe(OWN, &["a", "b"]) };
        holding.on_delta_request(&request);
        holding.on_delta_response(&delta(OWN, "b", thing("b")));
        assert!(holding.unchanged.is_empty());
        holding.on_delta_response(&delta(OWN, "a", thing("a")));
        assert_eq!(holding.unchanged, [format!("D12: a of {OWN}")]);
    }

    #[test]
    fn s34_endpoints_are_sent_again_once_for_each_time_that_their_cluster_is_sent() {
        let eds = |service_name: &str| {
            let mut cluster = Cluster { name: "c".into(), ..Cluster::default() };
            cluster.eds_cluster_config.get_or_insert_default().service_name = service_name.into();
            cluster
        };
        for (cluster, endpoints) in [(eds(""), "c"), (eds("e"), "e")] {
            let mut holding = Holding::default();
            holding.on_delta_request(&subscribe(CLUSTER_LOAD_ASSIGNMENT, &["c", "e"]));
            for _ in 0..2 {
                let changed = Cluster { alt_stat_name: holding.responses.to_string(), ..cluster.clone() };
                holding.on_delta_response(&delta(CLUSTER, "c", changed));
                holding.on_delta_response(&delta(CLUSTER_LOAD_ASSIGNMENT, endpoints, thing(endpoints)));
            }
            assert_eq!((holding.repeated, holding.unchanged.len()), (1, 0));
            holding.on_delta_response(&delta(CLUSTER_LOAD_ASSIGNMENT, endpoints, thing(endpoints)));
            assert_eq!(holding.unchanged, [format!("D12: {endpoints} of {CLUSTER_LOAD_ASSIGNMENT}")]);
        }
    }

    #[test]
    fn s7_s15_s32_a_sotw_response_without_a_change_is_noticed() {
        let mut holding = Holding::default();
        holding.on_sotw_request(&DiscoveryRequest { version_info: "1".into(), ..list(LISTENER, &[]) });
        holding.on_sotw_response(&sotw(LISTENER, &["a", "b"]));
        assert_eq!(holding.unchanged.len(), 1, "it has this version");
        // S25: the unchanged one is sent with the full state.
        holding.on_sotw_response(&sotw(LISTENER, &["a"]));
        assert_eq!((holding.with_others, holding.unchanged.len()), (1, 1));
        holding.on_sotw_response(&sotw(LISTENER, &["a"]));
        assert_eq!(holding.unchanged[1..], [format!("S7: all of {LISTENER}")]);

        let mut holding = Holding::default();
        holding.on_sotw_request(&list(OWN, &["a"]));
        holding.on_sotw_response(&sotw(OWN, &["a"]));
        holding.on_sotw_request(&list(OWN, &["a", "b"]));
        holding.on_sotw_response(&sotw(OWN, &["b"]));
        // S16.
        holding.on_sotw_request(&list(OWN, &["b"]));
        holding.on_sotw_request(&list(OWN, &["a", "b"]));
        holding.on_sotw_response(&sotw(OWN, &["a"]));
        assert!(holding.unchanged.is_empty());
        holding.on_sotw_response(&sotw(OWN, &["a"]));
        assert_eq!(holding.unchanged, [format!("D12: a of {OWN}")]);
    }
}
