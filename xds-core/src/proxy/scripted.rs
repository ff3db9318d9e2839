//! Responses of an upstream that need not keep to any rule.

use bytes::Bytes;
use prost::Message;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::resource::CacheControl;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
use xds_proto::type_url as url;

use crate::client::Protocol;
use crate::server::fixture::{payload, type_url};

/// A response in the [notation](crate::client::fixture) of the client's tests: `X v1 n1: r=A
/// r[env=prod]=B -c c!5`. Here the content `A*` must not be cached, the payload of `A~s` has the
/// name `s`, and `>xdstp://..` is a redirect to that resource.
pub(super) fn response(text: &str, protocol: Protocol) -> Bytes {
    let (short, rest) = text.split_once(' ').expect("a type and more");
    let full = type_url(short);
    let frame = crate::client::fixture::response(&format!("{} {rest}", full.as_str()), protocol);
    match protocol {
        Protocol::Delta => {
            let mut response = DeltaDiscoveryResponse::decode(frame).unwrap();
            response.resources.iter_mut().for_each(|resource| fill(resource, short));
            response.encode_to_vec().into()
        }
        Protocol::Sotw => {
            let mut response = DiscoveryResponse::decode(frame).unwrap();
            for any in &mut response.resources {
                if any.type_url == url::RESOURCE {
                    let mut resource = Resource::decode(any.value.clone()).unwrap();
                    fill(&mut resource, short);
                    any.value = resource.encode_to_vec().into();
                } else {
                    let mut resource = Resource { resource: Some(any.clone()), ..Resource::default() };
                    fill(&mut resource, short);
                    *any = resource.resource.unwrap();
                }
            }
            response.encode_to_vec().into()
        }
    }
}

/// Puts the content where the tests of the server look for it.
fn fill(resource: &mut Resource, short: &str) {
    let Some(any) = &mut resource.resource else { return };
    let field = |number| {
        let text = crate::wire::fields::text(&any.value, number).unwrap_or_default();
        String::from_utf8(text.to_vec()).unwrap()
    };
    let (name, content) = (field(1), field(2));
    if content.starts_with('>') {
        *any = Any {
            type_url: "type.googleapis.com/xds.core.v3.ResourceLocator".to_owned(),
            value: payload(short, &content, ""),
        };
        return;
    }
    if let Some((content, other)) = content.split_once('~') {
        any.value = payload(short, other, content);
        return;
    }
    let kept = content.strip_suffix('*');
    if kept.is_some() {
        resource.cache_control = Some(CacheControl { do_not_cache: true });
    }
    any.value = payload(short, &name, kept.unwrap_or(&content));
}
