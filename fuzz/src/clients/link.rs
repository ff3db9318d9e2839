//! One stream as its server sees it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use prost::Message;
use xds_core::client::{Applied, Protocol};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, ResourceLocator,
};

/// The messages of a stream.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The types that the client subscribed to, with the nonces that it has not answered; `None`
    /// for a response that could not be decoded here.
    asked: BTreeMap<String, VecDeque<Option<String>>>,
    /// The subscriptions of the requests: type, name, parameters.
    pub(super) subscribed: BTreeSet<Locator>,
    has_node: bool,
    /// The last nonce of each type.
    last: BTreeMap<String, Option<String>>,
}

type Locator = (String, String, BTreeMap<String, String>);

impl Link {
    pub(super) fn ask(&mut self, protocol: Protocol, request: &Bytes) {
        let (type_url, nonce, has_error, has_node) = match protocol {
            Protocol::Sotw => {
                let request = DiscoveryRequest::decode(request.clone()).expect("a request decodes");
                self.subscribed.retain(|locator| locator.0 != request.type_url);
                for locator in
                    locators(&request.type_url, &request.resource_names, &request.resource_locators)
                {
                    assert!(self.subscribed.insert(locator.clone()), "{locator:?} is subscribed to twice");
                }
                let has_error = request.error_detail.is_some();
                (request.type_url, request.response_nonce, has_error, request.node.is_some())
            }
            Protocol::Delta => {
                let request = DeltaDiscoveryRequest::decode(request.clone()).expect("a request decodes");
                let (names, located) =
                    (&request.resource_names_unsubscribe, &request.resource_locators_unsubscribe);
                for locator in locators(&request.type_url, names, located) {
                    assert!(self.subscribed.remove(&locator), "{locator:?} was not subscribed to");
                }
                let (names, located) =
                    (&request.resource_names_subscribe, &request.resource_locators_subscribe);
                for locator in locators(&request.type_url, names, located) {
                    assert!(self.subscribed.insert(locator.clone()), "{locator:?} is subscribed to twice");
                }
                let is_first = !self.asked.contains_key(&request.type_url);
                assert!(is_first || request.initial_resource_versions.is_empty(), "D1");
                let has_error = request.error_detail.is_some();
                (request.type_url, request.response_nonce, has_error, request.node.is_some())
            }
        };
        // S11
        assert_eq!(has_node, !std::mem::replace(&mut self.has_node, true), "the node is sent once");
        match self.asked.entry(type_url.clone()).or_default().pop_front() {
            Some(Some(owed)) => assert_eq!(nonce, owed, "C1: responses are answered in order"),
            Some(None) => {}
            None => {
                assert!(!has_error, "an error is about a response");
                let none = Some(String::new());
                let last = self.last.get(&type_url).filter(|_| protocol == Protocol::Sotw).unwrap_or(&none);
                assert!(last.as_ref().is_none_or(|last| *last == nonce), "S3, D4: {nonce}, not {last:?}");
            }
        }
    }

    pub(super) fn receive(&mut self, protocol: Protocol, frame: &Bytes, applied: Option<&Applied>) {
        let read = match protocol {
            Protocol::Sotw => {
                DiscoveryResponse::decode(frame.clone()).map(|read| (read.type_url, read.nonce))
            }
            Protocol::Delta => {
                DeltaDiscoveryResponse::decode(frame.clone()).map(|read| (read.type_url, read.nonce))
            }
        };
        let (type_url, nonce) = match (read, applied) {
            (Ok((type_url, nonce)), _) => (type_url, Some(nonce)),
            // Fields that are not used are not checked.
            (Err(_), Some(applied)) => (applied.type_url.as_str().to_owned(), None),
            (Err(_), None) => return,
        };
        let owed = self.asked.get_mut(&type_url);
        assert_eq!(applied.is_some(), owed.is_some(), "C1, C3: {type_url:?}");
        if let Some(owed) = owed {
            owed.push_back(nonce.clone());
            self.last.insert(type_url, nonce);
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.asked.values().all(VecDeque::is_empty)
    }
}

fn locators(type_url: &str, names: &[String], located: &[ResourceLocator]) -> impl Iterator<Item = Locator> {
    let names = names.iter().map(|name| (type_url.to_owned(), name.clone(), BTreeMap::new()));
    let located = located.iter().map(|locator| {
        let parameters = locator.dynamic_parameters.clone().into_iter().collect();
        (type_url.to_owned(), locator.name.clone(), parameters)
    });
    names.chain(located)
}
