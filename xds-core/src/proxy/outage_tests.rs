//! Upstreams that go away, come back with other content, or let resources expire.

use std::time::Duration;

use super::fixture::World;
use super::{ProxyConfig, Route, Sharing};
use crate::client::Protocol;
use crate::server::fixture::{Delta, commit};

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

fn settle(one: &mut World, other: &mut World) {
    for _ in 0..10 {
        one.run();
        other.run();
    }
}

#[test]
fn v26_c9b_a_chain_passes_constraints_and_versions_on_and_outlives_its_origin() {
    for protocol in PROTOCOLS {
        let content = "X r[env=a]=A r[env=b]=B r[env=c]=C s=S";
        let mut first = World::new(protocol, content, ProxyConfig::default());
        let mut second = World::behind(&first);
        let mut direct = Delta::new(&first.origin);
        direct.ask("X", "r?env=a r?env=b s?");
        let mut leaf = second.leaf("X", "r?env=a r?env=b s?");
        settle(&mut first, &mut second);
        for world in [&mut first, &mut second] {
            world.pass(Duration::from_millis(50));
        }
        settle(&mut first, &mut second);
        assert_eq!(direct.sent(), "n1 X r[env=a]=A r[env=b]=B s[]=S");
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A r[env=b]=B s[]=S", "{protocol:?}");
        assert_eq!(leaf.last.resources, direct.last.resources, "to the byte, versions too");
        leaf.ack("X", "1");
        first.lose();
        settle(&mut first, &mut second);
        let mut hit = second.leaf("X", "r?env=b&pod=7 s?");
        let mut miss = second.leaf("X", "r?env=c");
        settle(&mut first, &mut second);
        assert_eq!((hit.sent(), miss.sent()), ("n1 X r[env=b]=B s[]=S".into(), String::new()));
        hit.ack("X", "1");
        for seconds in [1, 14, 1000] {
            let time = Duration::from_secs(seconds);
            first.pass(time);
            second.pass(time);
            settle(&mut first, &mut second);
            for leaf in [&mut leaf, &mut hit] {
                leaf.pass(time);
                assert_eq!(leaf.sent(), "", "{protocol:?}: nothing is taken away");
            }
        }
        miss.pass(Duration::from_secs(1015));
        let sent = miss.sent();
        assert!(
            sent.is_empty() || sent == "n1 X !\"r\"(14)",
            "{protocol:?}: never that there is none: {sent}"
        );
    }
}

#[test]
fn d32_the_first_part_of_a_wildcard_is_no_full_state() {
    let mut world = World::scripted(Protocol::Delta);
    let mut leaf = world.sotw_leaf("CDS", "*");
    world.run();
    world.get("CDS v1+ n1: a[]=1");
    assert_eq!(leaf.sent(), "", "a client that comes back would delete the rest");
    world.get("CDS v1+ n2: b[]=1");
    assert_eq!(leaf.sent(), "");
    world.get("CDS v1 n3: c[]=1");
    assert_eq!(leaf.sent(), "n1 CDS a=1 b=1 c=1");
}

#[test]
fn what_changed_while_an_upstream_was_away_is_told_when_it_is_back() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "CDS a=1 b=1 c[env=p]=1", ProxyConfig::default());
        let mut leaf = world.leaf("CDS", "a? b? c?env=p&pod=1");
        let mut other = world.leaf("CDS", "c?env=p&pod=2");
        let mut state = world.sotw_leaf("CDS", "*?env=p");
        world.run();
        leaf.sent();
        leaf.ack("CDS", "1");
        assert_eq!(other.sent(), "n1 CDS c[env=p]=1");
        other.ack("CDS", "1");
        assert_eq!(state.sent(), "n1 CDS a[]=1 b[]=1 c[env=p]=1");
        state.ack("CDS", "1");
        world.lose();
        commit(&world.origin, "CDS a=2 -b -c[env=p] c[env=p,!ver]=2 d=1");
        world.is_up = true;
        world.pass(Duration::from_secs(10));
        world.pass(Duration::from_secs(20));
        let sent = leaf.sent();
        assert_eq!(sent, "n2 CDS a[]=2 c[env=p,!ver]=2 -c[env=p]", "{protocol:?}");
        leaf.ack("CDS", "2");
        leaf.pass(Duration::from_secs(5));
        assert_eq!(leaf.sent(), "n3 CDS -b[]", "{protocol:?}");
        assert_eq!(other.sent(), "n2 CDS c[env=p,!ver]=2 -c[env=p]", "{protocol:?}");
        let mut last = state.sent();
        for nonce in 2..5 {
            state.ack("CDS", &nonce.to_string());
            state.pass(Duration::from_secs(5));
            let sent = state.sent();
            last = if sent.is_empty() { last } else { sent };
        }
        assert!(last.ends_with("CDS a[]=2 c[env=p,!ver]=2 d[]=1"), "{protocol:?}: {last}");
    }
}

#[test]
fn s38_d26_who_comes_late_is_told_what_is_left_of_a_ttl_and_nobody_more_than_upstream_said() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let [mut early, mut late, mut shared] = [(); 3].map(|()| {
            let mut leaf = Delta::new(world.proxy.cache());
            leaf.stream.on_ttl_support();
            leaf
        });
        early.ask("X", "r?");
        world.run();
        world.get("X v1 n1: r[]=A@10");
        assert_eq!(early.sent(), "n1 X r[]{ttl=10}=A", "{protocol:?}");
        early.ack("X", "1");
        world.pass(Duration::from_secs(4));
        for (leaf, list) in [(&mut late, "r?"), (&mut shared, "r?pod=2")] {
            leaf.now = world.now;
            leaf.ask("X", list);
            // The whole TTL is content, of which every stream has the same bytes and the same
            // version.
            assert_eq!(leaf.sent(), "n1 X r[]{ttl=10}=A; n2 X r[]{ttl=6}", "{protocol:?}");
            leaf.ack("X", "1");
            leaf.ack("X", "2");
            leaf.pass(Duration::from_secs(2));
            assert_eq!(leaf.sent(), "");
        }
        world.pass(Duration::from_secs(3));
        late.now = world.now;
        assert_eq!(late.sent(), "n3 X r[]{ttl=3}", "at half of what was left");
        late.ack("X", "3");
        world.get("X v1 n2: r[]@10");
        late.pass(Duration::from_secs(2));
        assert_eq!(late.sent(), "n4 X r[]{ttl=8}", "what upstream extended is extended here");
    }
}

#[test]
fn s38_s39_a_ttl_that_ends_upstream_takes_the_resource_from_clients_and_heartbeats_keep_it() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let [mut leaf, mut shared] = ["r?", "r?pod=2"].map(|list| {
            let mut leaf = Delta::new(world.proxy.cache());
            leaf.stream.on_ttl_support();
            leaf.ask("X", list);
            leaf
        });
        world.run();
        world.get("X v1 n1: r[]=A@10");
        for leaf in [&mut leaf, &mut shared] {
            assert_eq!(leaf.sent(), "n1 X r[]{ttl=10}=A", "{protocol:?}");
            leaf.ack("X", "1");
        }
        for beat in 2..6 {
            world.pass(Duration::from_secs(8));
            world.get(&format!("X v1 n{beat}: r[]@10"));
            assert_eq!(world.leaf("X", "r?").sent(), "n1 X r[]=A");
            for leaf in [&mut leaf, &mut shared] {
                leaf.now = world.now;
                assert_eq!(leaf.sent(), format!("n{beat} X r[]{{ttl=10}}"), "sent again at half of it");
                leaf.ack("X", &beat.to_string());
            }
        }
        world.pass(Duration::from_secs(10));
        (leaf.now, shared.now) = (world.now, world.now);
        assert_eq!(leaf.sent(), "n6 X -r[]", "{protocol:?}");
        // The proxy subscribes for the client that shared it. That client is sent no heartbeat
        // meanwhile, so its own clock ends the resource.
        shared.pass(Duration::from_secs(100));
        assert_eq!(shared.sent(), "");
        assert!(world.requested().contains("r{pod=2}"));
        assert_eq!(world.leaf("X", "r?pod=9").sent(), "", "C9b");
    }
}

/// T35: absence is sent for each locator by itself, and not for the constraints of the removed
/// variant.
#[test]
fn t35_what_several_locators_had_goes_when_it_went_while_the_upstream_was_away() {
    let content = "CDS s[env=a]=1 s[env=b]=2";
    let config = ProxyConfig { sharing: Sharing::Off, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, content, config);
    let mut leaves = ["s?env=a", "s?env=a&ver=2", "s?env=b&ver=1"].map(|list| world.leaf("CDS", list));
    world.run();
    for (leaf, sent) in leaves.iter_mut().zip(["[env=a]=1", "[env=a]=1", "[env=b]=2"]) {
        assert_eq!(leaf.sent(), format!("n1 CDS s{sent}"));
        leaf.ack("CDS", "1");
    }
    world.lose();
    commit(&world.origin, "CDS -s[env=a] -s[env=b] s[env=b,ver=1]=3");
    world.is_up = true;
    world.pass(Duration::from_secs(10));
    world.pass(Duration::from_secs(20));
    for (leaf, sent) in leaves.iter_mut().zip(["", "", "n2 CDS s[env=b,ver=1]=3 -s[env=b]"]) {
        assert_eq!(leaf.sent(), sent);
        leaf.pass(Duration::from_secs(5));
    }
    assert_eq!(leaves[0].sent(), "n2 CDS -s[env=a]");
    assert_eq!(leaves[1].sent(), "n2 CDS -s[env=a]");
}

#[test]
fn a_response_is_due_from_the_end_of_a_stream_and_never_because_a_healthy_upstream_has_no_news() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "X r=A", ProxyConfig::default());
        let due = |world: &World| {
            world.proxy.response_due_since(world.now, &Route::SHARED).map(|since| world.now - since)
        };
        let seconds = Duration::from_secs;
        assert_eq!(due(&world), None, "nothing is subscribed");
        let _leaf = world.leaf("X", "r?");
        world.run();
        world.pass(seconds(3600));
        assert_eq!(due(&world), None, "{protocol:?}: the upstream has nothing new");
        world.lose();
        assert_eq!(due(&world), Some(Duration::ZERO));
        world.now += seconds(60);
        assert_eq!(due(&world), Some(seconds(60)), "{protocol:?}");
        // A new stream that brings nothing, and ends: the first outage still counts.
        world.is_up = true;
        world.is_slow = true;
        world.run();
        world.now += seconds(1);
        assert_eq!(due(&world), Some(seconds(61)), "{protocol:?}");
        world.lose();
        world.now += seconds(1);
        assert_eq!(due(&world), Some(seconds(62)), "{protocol:?}");
        (world.is_up, world.is_slow) = (true, false);
        world.run();
        world.pass(seconds(16));
        assert_eq!(due(&world), None, "{protocol:?}: it is back, with a response or nothing new");
    }
}

#[test]
fn a_response_is_due_from_the_first_subscription_of_a_type_that_never_had_one() {
    let mut world = World::scripted(Protocol::Delta);
    let due = |world: &World| {
        world.proxy.response_due_since(world.now, &Route::SHARED).map(|since| world.now - since)
    };
    let _leaf = world.leaf("X", "r?");
    world.run();
    world.pass(Duration::from_secs(20));
    assert_eq!(due(&world), Some(Duration::from_secs(20)), "not even after the timeout");
    world.get("X v1 n1: r[]=A");
    assert_eq!(due(&world), None);
}
