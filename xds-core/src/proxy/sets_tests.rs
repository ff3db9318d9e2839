//! Wildcards, globs, aliases, and errors of the upstream.

use std::time::Duration;

use super::ProxyConfig;
use super::fixture::World;
use crate::client::Protocol;
use crate::server::fixture::Delta;

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

#[test]
fn t28_each_set_of_parameters_has_its_own_members_of_a_wildcard() {
    for protocol in PROTOCOLS {
        let content = "X a[env=p]=1 a[env=q]=2 b[env=p]=3 c=4";
        let mut world = World::new(protocol, content, Default::default());
        let mut leaves = ["*?env=p", "*?env=q", "*?", "*?env=p *?env=q"].map(|list| world.leaf("X", list));
        world.run();
        let got = leaves.each_mut().map(Delta::sent);
        assert_eq!(got[0], "n1 X a[env=p]=1 b[env=p]=3 c[]=4", "{protocol:?}");
        assert_eq!(got[1], "n1 X a[env=q]=2 c[]=4");
        assert_eq!(got[2], "n1 X c[]=4");
        assert_eq!(got[3], "n1 X a[env=p]=1 a[env=q]=2 b[env=p]=3 c[]=4");
    }
}

#[test]
fn x12_a_glob_has_the_members_that_its_parameters_choose() {
    for protocol in PROTOCOLS {
        let content = "X xdstp://a/X/d/a[env=p]=1 xdstp://a/X/d/b=2 xdstp://a/X/e=3";
        let mut world = World::new(protocol, content, Default::default());
        let mut leaves = ["p", "q"].map(|env| world.leaf("X", &format!("xdstp://a/X/d/*?env={env}")));
        world.run();
        let got = leaves.each_mut().map(Delta::sent);
        assert_eq!(got[0], "n1 X xdstp://a/X/d/a[env=p]=1 xdstp://a/X/d/b[]=2", "{protocol:?}");
        assert_eq!(got[1], "n1 X xdstp://a/X/d/b[]=2");
        leaves.iter_mut().for_each(|leaf| _ = leaf.ack("X", "1"));
        world.commit("X xdstp://a/X/d/c[env=q]=4");
        assert_eq!(leaves.each_mut().map(Delta::sent), ["", "n2 X xdstp://a/X/d/c[env=q]=4"]);
    }
}

/// Regression: each wildcard got a stream of its own when a name of another authority had come
/// without constraints.
#[test]
fn c16_t43c_a_wildcard_is_shared_whatever_comes_of_another_authority() {
    for protocol in PROTOCOLS {
        let config = ProxyConfig { authorities: ["a".to_owned()].into(), ..ProxyConfig::default() };
        let mut world = World::scripted_for(protocol, config);
        let leaves = ["*?env=p", "xdstp://a/X/e?env=p"].map(|list| world.leaf("X", list));
        world.run();
        world.get("X v1 n1: b[]=1 xdstp://a/X/e=2");
        assert_eq!(world.proxy.counts().unshared, 1, "{protocol:?}");
        drop(leaves);
    }
}

#[test]
fn d24_an_alias_is_answered_with_its_resource() {
    let mut world = World::delta("X r{alias=q}[env=a]=A r[env=b]=B");
    let mut leaf = world.leaf("X", "q?env=a");
    world.run();
    assert_eq!(leaf.sent(), "n1 X r[env=a]{alias=q}=A");
    leaf.ack("X", "1");
    let mut other = world.leaf("X", "q?env=b");
    world.run();
    assert_eq!(other.sent(), "n1 X -q");
    world.commit("X r{alias=q}[env=a]=C");
    assert_eq!(leaf.sent(), "n2 X r[env=a]{alias=q}=C");
}

#[test]
fn s37_an_error_of_the_upstream_reaches_whom_it_is_about_with_its_code() {
    for protocol in PROTOCOLS {
        for code in [3, 5, 7, 9, 12, 13, 14] {
            let mut world = World::scripted(protocol);
            let mut leaf = world.leaf("X", "r? s?");
            world.run();
            world.get(&format!("X v1 n1: s[]=S r!{code}"));
            let sent = leaf.sent();
            match code {
                5 => assert_eq!(sent, "n1 X s[]=S -r", "{protocol:?}"),
                _ => assert_eq!(sent, format!("n1 X s[]=S !\"r\"({code})"), "{protocol:?}"),
            }
            leaf.ack("X", "1");
            world.pass(Duration::from_secs(20));
            leaf.pass(Duration::from_secs(20));
            assert_eq!(leaf.sent(), "", "once");
            world.get("X v2 n2: r[]=R s[]=S");
            assert_eq!(leaf.sent(), "n2 X r[]=R");
        }
    }
}

#[test]
fn t36_an_error_with_constraints_is_for_those_that_it_names() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaves = ["r?env=a", "r?env=b"].map(|list| world.leaf("X", list));
        world.run();
        world.pass(Duration::from_millis(50));
        world.get("X v1 n1: r[env=a]=A r[env=b]!7");
        assert_eq!(leaves.each_mut().map(Delta::sent), ["n1 X r[env=a]=A", "n1 X !\"r\"(7)"], "{protocol:?}");
    }
}

/// An error for a cached resource that does not report its absence removes nothing.
#[test]
fn s37_a_transient_error_of_what_is_held_keeps_it() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = world.leaf("X", "r?");
        world.run();
        world.get("X v1 n1: r[]=A");
        assert_eq!(leaf.sent(), "n1 X r[]=A");
        leaf.ack("X", "1");
        world.get("X v1 n2: r!14");
        leaf.pass(Duration::from_secs(5));
        assert_eq!((leaf.sent(), world.leaf("X", "r?pod=1").sent()), (String::new(), "n1 X r[]=A".into()));
    }
}

/// Of what upstream cannot say a full state does not wait. It lacks that, which would say that
/// there is none, so an error goes with it. What a client has it keeps.
#[test]
fn s25_s37_a_full_state_has_an_error_for_what_upstream_cannot_say_unless_the_client_has_it() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = world.sotw_leaf("CDS", "c? d?");
        world.run();
        world.get("CDS v1 n1: c[]=1 d!14");
        assert_eq!(leaf.sent(), r#"n1 CDS c[]=1 !"d"(14)"#, "{protocol:?}");
        leaf.ack("CDS", "1");
        world.get("CDS v2 n2: c[]=1 d[]=1");
        assert_eq!(leaf.sent(), "n2 CDS c[]=1 d[]=1");
        leaf.ack("CDS", "2");
        world.get("CDS v3 n3: c[]=2 d!7");
        leaf.pass(Duration::from_secs(60));
        assert_eq!(leaf.sent(), "n3 CDS c[]=2 d[]=1");
    }
}
