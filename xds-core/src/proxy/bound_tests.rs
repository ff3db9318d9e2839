//! Resources for one locator alone (T43c), and resources that must not be kept.

use std::time::Duration;

use prost::Message;
use xds_proto::envoy::service::discovery::v3::DeltaDiscoveryResponse;

use super::fixture::World;
use super::{Route, RouteKind};
use crate::client::Protocol;
use crate::server::Next;
use crate::server::fixture::{parameters, payload, type_url};

fn alone(text: &str) -> Route {
    Route::SHARED.with(RouteKind::Alone(parameters(text)))
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

#[test]
fn t43c_what_comes_under_a_plain_name_is_for_its_own_locator_alone() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut one = world.leaf("X", "r?env=a");
        world.run();
        world.requested();
        world.get("X v1 n1: r=A");
        let sent = world.requested();
        assert!(sent.contains("r{env=a}"), "{sent}: a subscription of its own");
        assert_eq!(one.sent(), "");
        world.get_from(&alone("env=a"), "X v1 n1: r=A");
        assert_eq!(one.sent(), "n1 X r=A", "as it came");
        // Exactly these parameters: a client with more keys or fewer keys does not get it.
        let mut others = ["r?env=a&pod=1", "r?", "r?env=b", "r"].map(|list| world.leaf("X", list));
        world.run();
        others.iter_mut().for_each(|leaf| assert_eq!(leaf.sent(), ""));
        let mut same = world.leaf("X", "r?env=a");
        assert_eq!(same.sent(), "n1 X r=A");
        world.get_from(&alone("env=b"), "X v1 n1: r=B");
        assert_eq!(others[2].sent(), "n1 X r=B");
        assert_eq!((others[0].sent(), others[1].sent(), one.sent()), Default::default());
        assert_eq!(world.proxy.counts().unshared, 1);
    }
}

#[test]
fn t43c_unset_constraints_inside_resource_name_are_for_everyone() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut one = world.leaf("X", "r?env=a");
        world.run();
        world.requested();
        world.get("X v1 n1: r[]=A");
        let mut other = world.leaf("X", "r?env=b");
        assert_eq!((one.sent(), other.sent()), ("n1 X r[]=A".into(), "n1 X r[]=A".into()));
        world.run();
        assert_eq!((world.requested(), world.proxy.counts().unshared), (String::new(), 0));
    }
}

#[test]
fn t43c_a_wildcard_that_is_answered_by_plain_names_is_asked_for_alone() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut one = world.sotw_leaf("CDS", "*?env=a");
        world.run();
        world.get("CDS v1 n1: c=1 d[]=2");
        assert_eq!(one.sent(), "", "{protocol:?}: without c it is not all there is");
        world.get_from(&alone("env=a"), "CDS v1 n1: c=1 d[]=2");
        assert_eq!(one.sent(), "n1 CDS c=1 d=2");
    }
}

#[test]
fn t44_what_must_not_be_cached_is_passed_on_to_who_asked_and_to_nobody_else() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut one = world.leaf("X", "r?env=a&pod=1");
        let _keeps_the_stream = world.leaf("X", "s");
        world.run();
        world.get("X v1 n1: r[env=a]=A*");
        let (first, second) = (alone("env=a pod=1"), alone("env=a pod=2"));
        world.get_from(&first, "X v1 n1: r[env=a]=A*");
        assert_eq!(one.sent(), "n1 X r=A");
        assert!(one.last.resources[0].cache_control.as_ref().is_some_and(|control| control.do_not_cache));
        let mut other = world.leaf("X", "r?env=a&pod=2");
        world.run();
        assert_eq!(other.sent(), "");
        world.get_from(&second, "X v1 n1: r[env=a]=A*");
        assert_eq!(other.sent(), "n1 X r=A");
        assert_eq!(world.upstreams(), 3);
        drop(one);
        world.run();
        let held = |world: &World| {
            let snapshot = world.proxy.cache().snapshot();
            snapshot.get(&type_url("X"), &"r".into()).map_or(0, |variants| variants.len())
        };
        assert_eq!((held(&world), world.upstreams()), (1, 2), "{protocol:?}: nothing is kept");
        drop(other);
        world.run();
        assert_eq!((held(&world), world.upstreams()), (0, 1));
    }
}

/// What is bound has other constraints here than upstream calls it by.
#[test]
fn t43c_what_is_bound_goes_when_upstream_removes_it_by_the_constraints_it_gave() {
    let mut world = World::scripted(Protocol::Delta);
    let mut one = world.leaf("X", "r?env=a");
    world.run();
    world.get("X v1 n1: r[env=a]=A*");
    let own = alone("env=a");
    world.get_from(&own, "X v1 n1: r[env=a]=A*");
    assert_eq!(one.sent(), "n1 X r=A");
    one.ack("X", "1");
    world.get_from(&own, "X v1 n2: r[env=a,ver=1]=A* r[env=a,!ver]=B* -r[env=a]");
    assert_eq!(one.sent(), "n2 X r=B");
    one.ack("X", "2");
    world.get_from(&own, "X v1 n3: r[env=a]=B* -r[env=a,!ver]");
    one.pass(Duration::from_secs(5));
    assert_eq!(one.sent(), "");
    world.get_from(&own, "X v1 n4: -r[env=a]");
    one.pass(Duration::from_secs(5));
    assert_eq!(one.sent(), "n3 X -r[]");
}

/// Two clients of upstreams must not fill one cache with the same variant: the one that ends would
/// remove it from the other.
#[test]
fn t43c_of_a_name_that_is_not_shared_nothing_is() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut one = world.leaf("X", "r?env=a&pod=1");
        let mut other = world.leaf("X", "r?env=a&pod=2");
        world.run();
        world.get("X v1 n1: r=A");
        for route in ["env=a pod=1", "env=a pod=2"] {
            world.get_from(&alone(route), "X v1 n1: r[env=a]=A");
        }
        assert_eq!((one.sent(), other.sent()), ("n1 X r=A".into(), "n1 X r=A".into()));
        drop(one);
        world.run();
        let mut late = world.leaf("X", "r?env=a&pod=2");
        assert_eq!(late.sent(), "n1 X r=A", "{protocol:?}");
        other.ack("X", "1");
        world.get_from(&alone("env=a pod=2"), "X v2 n2: r[env=a]=B");
        assert_eq!(other.sent(), "n2 X r=B");
    }
}

#[test]
fn t35_what_is_absent_for_one_locator_does_not_take_what_is_bound_to_another() {
    let mut world = World::scripted(Protocol::Delta);
    let mut leaf = world.leaf("X", "r?env=a r?env=b");
    world.run();
    world.get("X v1 n1: r=A");
    world.get_from(&alone("env=a"), "X v1 n1: r=A");
    assert_eq!(leaf.sent(), "n1 X r=A");
    leaf.ack("X", "1");
    world.get_from(&alone("env=b"), "X v1 n1: -r");
    assert_eq!(leaf.sent(), "n2 X -r[env=b]");
}

#[test]
fn x14_a_redirect_is_passed_on() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let name = "xdstp://a/X/r";
        let mut leaf = world.leaf("X", &format!("{name}?env=a"));
        world.run();
        world.get(&format!("X v1 n1: {name}[env=a]=>xdstp://b/X/r"));
        let Next::Send(response) = leaf.stream.next(leaf.now, &leaf.cache.snapshot()) else {
            panic!("it is in the cache");
        };
        let chunks = response.bodies.iter().flat_map(|body| body.chunks());
        let bytes = chunks.fold(response.head().to_vec(), |all, chunk| [&all, chunk.as_ref()].concat());
        let resource = DeltaDiscoveryResponse::decode(bytes.as_slice()).unwrap().resources.remove(0);
        assert!(resource.resource_name.unwrap().dynamic_parameter_constraints.is_some(), "{protocol:?}");
        let redirect = resource.resource.unwrap();
        assert_eq!(redirect.type_url, "type.googleapis.com/xds.core.v3.ResourceLocator");
        assert_eq!(redirect.value, payload("X", ">xdstp://b/X/r", ""), "to the byte");
    }
}
