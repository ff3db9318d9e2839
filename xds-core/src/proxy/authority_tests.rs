//! Names of authorities, with servers for some of them or for none (C16, X15).

use std::sync::Arc;
use std::time::Duration;

use super::fixture::{OWN, Refusal, World, by_node};
use super::view::View;
use super::{ProxyConfig, Route, RouteKind};
use crate::Code;
use crate::client::health::SyncState;
use crate::client::{Protocol, ReadRoute};
use crate::server::fixture::{Delta, type_url};

const LISTENER: &str = "xdstp://b/envoy.config.listener.v3.Listener";
const OTHER: &str = "xdstp://a/envoy.config.listener.v3.Listener/o";
const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

/// One server, which the proxy also uses as the server of this authority.
fn with_servers_for_a() -> ProxyConfig {
    ProxyConfig { authorities: ["a".to_owned()].into(), ..ProxyConfig::default() }
}

#[test]
fn x15_without_servers_for_authorities_the_upstream_serves_all_of_them() {
    for protocol in PROTOCOLS {
        let content = format!("X xdstp://b/X/d/a=1 xdstp://b/X/e=2; LDS {LISTENER}/c=1");
        let mut world = World::new(protocol, &content, ProxyConfig::default());
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("LDS", &format!("{LISTENER}/c"));
        world.run();
        assert_eq!([named.sent(), glob.sent()], ["n1 X xdstp://b/X/e=2", "n1 X xdstp://b/X/d/a=1"]);
        let expected = ["n1 X xdstp://b/X/e=2".to_owned(), format!("n1 LDS {LISTENER}/c=1")];
        assert_eq!([sotw.sent(), state.sent()], expected, "{protocol:?}");
    }
}

/// Regression: a full state (LDS, LDS) just lacked it, and a client took that for an absence.
#[test]
fn x15_an_authority_without_servers_beside_one_with_servers_is_an_error_and_no_absence() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "X s=1; LDS s=1", with_servers_for_a());
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("LDS", &format!("{LISTENER}/c s"));
        let mut state_glob = world.sotw_leaf("LDS", &format!("{LISTENER}/d/*"));
        world.run();
        let errors = [r#"n1 X !"xdstp://b/X/e"(3)"#, r#"n1 X !"xdstp://b/X/d/*"(3)"#];
        assert_eq!([named.sent(), glob.sent()], errors);
        assert_eq!(sotw.sent(), errors[0], "{protocol:?}");
        assert_eq!(state.sent(), format!(r#"n1 LDS s=1 !"{LISTENER}/c"(3)"#), "{protocol:?}");
        assert_eq!(state_glob.sent(), format!(r#"n1 LDS !"{LISTENER}/d/*"(3)"#), "{protocol:?}");
    }
}

/// Regression: a wildcard got the resources that other clients subscribed to by name.
#[test]
fn c16_a_wildcard_does_not_stand_for_names_of_authorities_with_servers_of_their_own() {
    for protocol in PROTOCOLS {
        let content = format!("LDS c=1 {LISTENER}/d=1 {OTHER}=1");
        let mut world = World::new(protocol, &content, with_servers_for_a());
        let mut named = world.leaf("LDS", OTHER);
        let mut lists =
            ["", "*", "*?env=a"].map(|list| (world.leaf("LDS", list), world.sotw_leaf("LDS", list)));
        world.run();
        assert_eq!(named.sent(), format!("n1 LDS {OTHER}=1"));
        named.ack("LDS", "1");
        let by_name = format!("n1 LDS c=1 {LISTENER}/d=1");
        let located = format!("n1 LDS c[]=1 {LISTENER}/d[]=1");
        for (at, (delta, sotw)) in lists.iter_mut().enumerate() {
            let expected = if at < 2 { &by_name } else { &located };
            assert_eq!([delta.sent(), sotw.sent()], [expected.as_str(); 2], "{protocol:?} {at}");
            delta.ack("LDS", "1");
            sotw.ack("LDS", "1");
        }
        world.commit(&format!("LDS {OTHER}=2"));
        assert_eq!(named.sent(), format!("n2 LDS {OTHER}=2"));
        named.ack("LDS", "2");
        lists.iter_mut().for_each(|(delta, sotw)| assert_eq!([delta.sent(), sotw.sent()], ["", ""]));
        world.commit(&format!("LDS -{OTHER}"));
        for second in 0..30 {
            let time = Duration::from_secs(1);
            world.pass(time);
            for (delta, sotw) in &mut lists {
                delta.pass(time);
                sotw.pass(time);
                assert_eq!([delta.sent(), sotw.sent()], ["", ""], "{second}");
            }
        }
    }
}

#[test]
fn c16_d18_s22_a_name_beside_the_wildcard_comes_and_goes_with_who_lists_it() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, &format!("LDS c=1 {OTHER}=1"), with_servers_for_a());
        let (mut delta, mut sotw) = (world.leaf("LDS", &format!("* {OTHER}")), world.sotw_leaf("LDS", "*"));
        let mut located = world.leaf("LDS", &format!("*?env=a {OTHER}?env=a"));
        world.run();
        assert_eq!(delta.sent(), format!("n1 LDS c=1 {OTHER}=1"), "{protocol:?}");
        assert_eq!(located.sent(), format!("n1 LDS c[]=1 {OTHER}[]=1"));
        assert_eq!(sotw.sent(), "n1 LDS c=1");
        sotw.ask("LDS", &format!("* {OTHER}"), "1");
        world.run();
        assert_eq!(sotw.sent(), format!("n2 LDS c=1 {OTHER}=1"));
        delta.ack("LDS", "1");
        located.ack("LDS", "1");
        world.commit(&format!("LDS {OTHER}=2"));
        assert_eq!(
            [delta.sent(), located.sent()],
            [format!("n2 LDS {OTHER}=2"), format!("n2 LDS {OTHER}[]=2")]
        );
        delta.ack("LDS", "2");
        located.ack("LDS", "2");
        delta.ask("LDS", &format!("-{OTHER}"));
        located.ask("LDS", &format!("-{OTHER}?env=a"));
        sotw.ask("LDS", "*", "2");
        world.run();
        assert_eq!(
            [delta.sent(), located.sent()],
            [format!("n3 LDS -{OTHER}"), format!("n3 LDS -{OTHER}[]")]
        );
        assert_eq!(sotw.sent(), "n3 LDS c=1");
    }
}

const OWN_Y: &str = "xdstp://own/Y/y";
const OWN_LDS: &str = "xdstp://own/envoy.config.listener.v3.Listener";

/// A proxy that has a server for the authority `own`, and one for all other names.
fn with_two_servers(protocol: Protocol, of_nodes: bool) -> World {
    let content = format!("LDS c=1 {OWN_LDS}/o=1 {OWN_LDS}/g/m=1; Y y=1 {OWN_Y}=1");
    let upstream = if of_nodes { by_node(&["env"]).upstream } else { ProxyConfig::default().upstream };
    World::new(
        protocol,
        &content,
        ProxyConfig { upstream, authorities: [OWN.to_owned()].into(), ..ProxyConfig::default() },
    )
}

fn settle(world: &mut World) {
    world.run();
    for _ in 0..10 {
        world.pass(Duration::from_secs(5));
    }
}

/// The type URL, or its state, in the health of the server of an authority.
fn is_rejected(world: &World, authority: Option<&str>, type_name: &str) -> bool {
    let route = Route { authority: authority.map(Into::into), kind: RouteKind::Shared };
    let health = world.proxy.health(&route).expect("it has subscriptions");
    matches!(health.state(&type_url(type_name)), Some(SyncState::Rejected(..)))
}

/// G4b: a type that one control plane does not serve is served for the names of the other one, whichever way it
/// refuses, and its other types go on.
#[test]
fn g4b_c16_a_type_that_the_servers_of_one_authority_refuse_is_served_for_the_others() {
    for protocol in PROTOCOLS {
        for refusal in
            [Refusal::Always, Refusal::ByErrors, Refusal::AmongOthers, Refusal::With(Code::INVALID_ARGUMENT)]
        {
            let mut world = with_two_servers(protocol, false);
            world.refused_by_own.insert("Y", refusal);
            let mut of_default = world.leaf("Y", "y");
            let mut of_own = world.leaf("Y", OWN_Y);
            let mut other = world.leaf("LDS", &format!("{OWN_LDS}/o"));
            settle(&mut world);
            assert_eq!(of_default.sent(), "n1 Y y=1", "{protocol:?} {refusal:?}");
            assert_eq!(other.sent(), format!("n1 LDS {OWN_LDS}/o=1"), "{protocol:?} {refusal:?}");
            let sent = of_own.sent();
            match refusal {
                Refusal::AmongOthers => {
                    assert_eq!(sent, format!("n1 Y {OWN_Y}=1"), "from the side stream");
                }
                _ => assert_eq!(sent, format!("n1 Y !{OWN_Y:?}(12)"), "{protocol:?} {refusal:?}"),
            }
            // Of two types that only end a stream together, either may be found.
            let refused = ["Y", "LDS"].map(|of| is_rejected(&world, Some(OWN), of));
            let expected = if refusal == Refusal::AmongOthers {
                refused[0] != refused[1]
            } else {
                refused == [true, false]
            };
            assert!(expected && !is_rejected(&world, None, "Y"), "{protocol:?} {refusal:?}: {refused:?}");
            of_default.ack("Y", "1");
            world.commit("Y y=2");
            assert_eq!(of_default.sent(), "n2 Y y=2", "{protocol:?} {refusal:?}");
            // It comes back with a newer server.
            world.refused_by_own.clear();
            world.set_own_up(false);
            settle(&mut world);
            of_default.ack("Y", "2");
            assert_eq!(of_default.sent(), "", "nothing of the default server goes with the other one");
            world.set_own_up(true);
            for _ in 0..30 {
                settle(&mut world);
            }
            assert!(!is_rejected(&world, Some(OWN), "Y"), "{protocol:?} {refusal:?}");
            of_own.ack("Y", "1");
            world.commit(&format!("Y {OWN_Y}=2"));
            assert!(of_own.sent().ends_with(&format!("Y {OWN_Y}=2")), "{protocol:?} {refusal:?}");
            assert_eq!(of_default.sent(), "", "{protocol:?} {refusal:?}");
            assert_eq!(world.routes().len(), 2, "no side stream is left: {protocol:?} {refusal:?}");
        }
    }
}

/// The default server refuses, and the authority has its own.
#[test]
fn g4b_c16_a_type_that_the_default_servers_refuse_is_served_for_an_authority_with_its_own() {
    for protocol in PROTOCOLS {
        for (refusal, of_nodes) in
            [(Refusal::Always, false), (Refusal::ByErrors, false), (Refusal::Always, true)]
        {
            if protocol == Protocol::Sotw && refusal == Refusal::ByErrors {
                // An error would come with a full state (G4), so there is no answer.
                continue;
            }
            let mut world = with_two_servers(protocol, of_nodes);
            world.refused.insert("LDS", refusal);
            let mut of_default = world.leaf("LDS", "c");
            let mut wildcard = world.leaf("LDS", "*");
            let mut state = world.sotw_leaf("LDS", "");
            let mut of_own = world.leaf("LDS", &format!("{OWN_LDS}/o"));
            let mut glob = world.leaf("LDS", &format!("{OWN_LDS}/g/*"));
            settle(&mut world);
            assert_eq!(of_own.sent(), format!("n1 LDS {OWN_LDS}/o=1"), "{protocol:?} {refusal:?}");
            assert_eq!(glob.sent(), format!("n1 LDS {OWN_LDS}/g/m=1"), "{protocol:?} {refusal:?}");
            assert_eq!(of_default.sent(), "n1 LDS !\"c\"(12)", "{protocol:?} {refusal:?}");
            assert_eq!(wildcard.sent(), "n1 LDS !\"*\"(12)", "{protocol:?} {refusal:?}");
            assert_eq!(state.sent(), "", "a full state would be an absence: {protocol:?} {refusal:?}");
        }
    }
}

/// Each of them has its own stream, so the loss of one is no loss of the other.
#[test]
fn c16_the_loss_of_the_servers_of_one_authority_leaves_the_others_alone() {
    for protocol in PROTOCOLS {
        let mut world = with_two_servers(protocol, false);
        let mut of_default = world.leaf("LDS", "c");
        let mut of_own = world.leaf("LDS", &format!("{OWN_LDS}/o"));
        settle(&mut world);
        _ = (of_default.sent(), of_own.sent());
        of_default.ack("LDS", "1");
        of_own.ack("LDS", "1");
        world.set_own_up(false);
        settle(&mut world);
        let route =
            |authority: Option<&str>| Route { authority: authority.map(Into::into), kind: RouteKind::Shared };
        assert_eq!(world.proxy.response_due_since(world.now, &route(None)), None, "{protocol:?}");
        assert!(world.proxy.response_due_since(world.now, &route(Some(OWN))).is_some(), "{protocol:?}");
        world.commit(&format!("LDS c=2 {OWN_LDS}/o=2"));
        assert_eq!(of_default.sent(), "n2 LDS c=2", "{protocol:?}");
        assert_eq!(of_own.sent(), "", "{protocol:?}");
        world.set_own_up(true);
        settle(&mut world);
        assert_eq!(of_own.sent(), format!("n2 LDS {OWN_LDS}/o=2"), "{protocol:?}");
    }
}

/// Authorities with equal servers share a stream.
#[test]
fn c16_authorities_with_equal_servers_share_a_stream() {
    let authorities = ["a", "b", OWN].map(str::to_owned).into();
    let mut world = World::new(
        Protocol::Delta,
        "X xdstp://a/X/x=1 xdstp://b/X/x=1 xdstp://own/X/x=1 x=1",
        ProxyConfig { authorities, ..ProxyConfig::default() },
    );
    let names = ["x", "xdstp://a/X/x", "xdstp://b/X/x", "xdstp://own/X/x"];
    let mut leaves = names.map(|name| world.leaf("X", name));
    world.run();
    assert_eq!(leaves.each_mut().map(Delta::sent), names.map(|name| format!("n1 X {name}=1")));
    let routes: Vec<_> = world.routes().iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["shared", "shared for authority own"]);
}

/// A proxy behind another one has one upstream for all names.
#[test]
fn g4_c16_behind_a_proxy_a_type_that_one_control_plane_refuses_is_served_for_the_names_of_others() {
    for protocol in PROTOCOLS {
        for late_first in [false, true] {
            let mut first = with_two_servers(protocol, false);
            first.refused_by_own.insert("Y", Refusal::Always);
            let mut second = World::new(protocol, "", ProxyConfig::default());
            second.origin = Arc::clone(first.proxy.cache());
            let names = if late_first { [OWN_Y, "y"] } else { ["y", OWN_Y] };
            let mut leaves = Vec::new();
            for name in names {
                leaves.push(second.leaf("Y", name));
                for _ in 0..20 {
                    first.pass(Duration::from_secs(1));
                    second.pass(Duration::from_secs(1));
                    while first.run_once() | second.run_once() {}
                }
            }
            let sent: Vec<_> = leaves.iter_mut().map(Delta::sent).collect();
            let expected = ["n1 Y y=1".to_owned(), format!("n1 Y !{OWN_Y:?}(12)")];
            assert!(expected.iter().all(|expected| sent.contains(expected)), "{protocol:?}: {sent:?}");
            assert!(!is_rejected(&second, None, "Y"), "{protocol:?} {late_first}");
            assert_eq!(second.leaf("Y", "y").sent(), "n1 Y y=1", "{protocol:?}");
        }
    }
}

/// A reader in the process has the health of the servers of the names that it reads.
#[test]
fn c16_each_list_of_servers_has_a_view_of_its_own_names() {
    let mut world = with_two_servers(Protocol::Delta, false);
    world.refused_by_own.insert("Y", Refusal::Always);
    let views = [None, Some(Arc::from(OWN))].map(|authority| (world.proxy.view(&authority), authority));
    let leaves = [("Y", "y"), ("Y", OWN_Y), ("LDS", "c"), ("LDS", &format!("{OWN_LDS}/o"))];
    let _leaves = leaves.map(|(of, name)| world.leaf(of, name));
    settle(&mut world);
    for (view, authority) in &views {
        let route = Route { authority: authority.clone(), kind: RouteKind::Shared };
        view.follow(world.proxy.health(&route).unwrap());
    }
    let names = |view: &View, of: &str| match view.read_raw(&type_url(of)).route() {
        ReadRoute::Cache(resources) => {
            resources.iter().map(|resource| resource.unwrap().name().to_string()).collect::<Vec<_>>()
        }
        ReadRoute::Upstream(status) => vec![format!("!{}", status.code)],
    };
    let [(of_default, _), (of_own, _)] = &views;
    assert_eq!(
        (names(of_default, "Y"), names(of_own, "Y")),
        (vec!["y".into()], vec!["!UNIMPLEMENTED".into()])
    );
    let own = format!("{OWN_LDS}/o");
    assert_eq!((names(of_default, "LDS"), names(of_own, "LDS")), (vec!["c".into()], vec![own.clone()]));
    let guard = of_default.read_raw(&type_url("LDS"));
    let ReadRoute::Cache(resources) = guard.route() else { panic!("it is served") };
    assert!(resources.get(&own).is_err(), "it is no absence: another view has it");
}
