//! Redirects, in both protocols (X14).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as Wrapper,
};
use xds_proto::type_url::{RESOURCE, ROUTE_CONFIGURATION};

use super::{DeltaRequest, Next, Protocol, Service, SotwRequest, Stream, StreamConfig};
use crate::{Cache, Resource, Transaction};

const NAME: &str = "xdstp://a/envoy.config.route.v3.RouteConfiguration/web/r";
const LOCATOR: &[u8] = b"\x12\x01x";

fn cache() -> Arc<Cache> {
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    let locator = Bytes::from_static(LOCATOR);
    transaction.put(Resource::redirect(ROUTE_CONFIGURATION.into(), NAME.into(), locator).unwrap());
    cache.commit(transaction).unwrap();
    cache
}

fn message<M: Message + Default>(next: Next) -> M {
    let Next::Send(response) = next else { panic!("{next:?} sends nothing") };
    let chunks = response.bodies.iter().flat_map(|body| body.chunks());
    let bytes = chunks.fold(response.head().to_vec(), |bytes, chunk| [&bytes, chunk.as_ref()].concat());
    M::decode(bytes.as_slice()).unwrap()
}

fn expect_redirect(wrapper: &Wrapper) {
    let any = Any {
        type_url: "type.googleapis.com/xds.core.v3.ResourceLocator".into(),
        value: Bytes::from_static(LOCATOR),
    };
    assert_eq!((wrapper.name.as_str(), &wrapper.resource), (NAME, &Some(any)));
}

#[test]
fn x14_a_redirect_is_passed_on() {
    let cache = cache();
    let mut stream =
        Stream::new(cache.watch(), Service::Aggregated, Protocol::Delta, StreamConfig::default());
    let request = DeltaRequest {
        type_url: ROUTE_CONFIGURATION.into(),
        subscribe: vec![NAME.into()].into(),
        ..DeltaRequest::default()
    };
    stream.on_request(Duration::ZERO, request).unwrap();
    let response: DeltaDiscoveryResponse = message(stream.next(Duration::ZERO, &cache.snapshot()));
    assert_eq!(response.type_url, ROUTE_CONFIGURATION);
    let [resource] = &*response.resources else { panic!("{response:?}") };
    expect_redirect(resource);
}

#[test]
fn x14_in_sotw_a_redirect_is_told_in_a_wrapper_as_it_has_no_name_of_its_own() {
    let cache = cache();
    let mut stream = Stream::new(cache.watch(), Service::Aggregated, Protocol::Sotw, StreamConfig::default());
    let request = SotwRequest {
        type_url: ROUTE_CONFIGURATION.into(),
        requested: Some(vec![NAME.into()].into()),
        ..SotwRequest::default()
    };
    stream.on_request(Duration::ZERO, request).unwrap();
    let response: DiscoveryResponse = message(stream.next(Duration::ZERO, &cache.snapshot()));
    assert_eq!(response.type_url, ROUTE_CONFIGURATION);
    let [any] = &*response.resources else { panic!("{response:?}") };
    assert_eq!(any.type_url, RESOURCE);
    expect_redirect(&Wrapper::decode(any.value.clone()).unwrap());
}
