//! An origin that refuses a type, in each of the ways that servers have, and one that learns to
//! serve it.

use std::time::Duration;

use super::fixture::{Refusal, World, by_node};
use super::{Notice, ProxyConfig, Route};
use crate::client::Protocol;
use crate::client::health::{Event, SyncState};
use crate::server::fixture::{Delta, type_url};

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

fn world(protocol: Protocol, refusal: Refusal) -> World {
    let mut world = World::new(protocol, "CDS c=1; X x=1; Y y[env=a]=1", ProxyConfig::default());
    world.refused.insert("Y", refusal);
    world
}

/// One of each type.
fn leaves(world: &World) -> [Delta; 3] {
    [world.leaf("CDS", "c"), world.leaf("X", "x"), world.leaf("Y", "y?env=a")]
}

/// Time enough for some reconnects.
fn settle(world: &mut World) {
    world.run();
    for _ in 0..10 {
        world.pass(Duration::from_secs(5));
    }
}

fn sent(leaves: &mut [Delta; 3]) -> [String; 3] {
    let mut types = ["CDS", "X", "Y"].into_iter();
    leaves.each_mut().map(|leaf| {
        let sent = leaf.sent();
        let nonce = leaf.last.nonce.clone();
        leaf.ack(types.next().unwrap(), &nonce);
        sent
    })
}

fn state(world: &World, type_name: &str) -> Option<SyncState> {
    world.proxy.health(&Route::SHARED)?.state(&type_url(type_name)).cloned()
}

#[test]
fn a_type_that_ends_the_stream_among_others_passes_through_on_its_own() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::AmongOthers);
        let mut leaves = leaves(&world);
        settle(&mut world);
        assert_eq!(sent(&mut leaves), ["n1 CDS c=1", "n1 X x=1", "n1 Y y[env=a]=1"], "{protocol:?}");
        assert!(matches!(state(&world, "CDS"), Some(SyncState::Synced(_))));
        assert!(matches!(state(&world, "Y"), Some(SyncState::Rejected(..))));
        world.commit("CDS c=2; X x=2; Y y[env=a]=2");
        assert_eq!(sent(&mut leaves), ["n2 CDS c=2", "n2 X x=2", "n2 Y y[env=a]=2"]);
        // The main stream is left alone from now on.
        world.requested();
        settle(&mut world);
        settle(&mut world);
        assert_eq!(world.requested(), "", "{protocol:?}");
        // A newer server: the type comes back to the main stream, and no client is sent a resource
        // twice.
        world.refused.clear();
        world.lose();
        world.pass(Duration::from_secs(30));
        world.is_up = true;
        settle(&mut world);
        assert!(matches!(state(&world, "Y"), Some(SyncState::Synced(_))));
        assert_eq!(sent(&mut leaves), ["", "", ""]);
        world.commit("Y y[env=a]=3");
        assert_eq!(sent(&mut leaves), ["", "", "n3 Y y[env=a]=3"]);
        assert_eq!(world.routes(), [Route::SHARED]);
    }
}

/// D21: a delta upstream has nothing to send on the new stream, so the states of the other types
/// are known only after the resource timeout.
#[test]
fn the_side_stream_of_a_type_starts_when_the_type_is_found_and_not_when_all_others_answered() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::AmongOthers);
        let mut leaves = leaves(&world);
        // Each attempt to find the type takes a second.
        for _ in 0..5 {
            world.run();
            world.pass(Duration::from_secs(1));
        }
        assert_eq!(sent(&mut leaves), ["n1 CDS c=1", "n1 X x=1", "n1 Y y[env=a]=1"], "{protocol:?}");
    }
}

#[test]
fn g4_a_type_that_is_refused_on_every_stream_is_answered_with_the_original_status() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::Always);
        let mut leaves = leaves(&world);
        settle(&mut world);
        assert_eq!(sent(&mut leaves), ["n1 CDS c=1", "n1 X x=1", "n1 Y !\"y\"(12)"], "{protocol:?}");
        assert_eq!(leaves[2].last.resource_errors[0].error_detail.as_ref().unwrap().message, "no such type");
        world.commit("CDS c=2");
        assert_eq!(sent(&mut leaves), ["n2 CDS c=2", "", ""]);
        let mut late = world.leaf("Y", "z");
        world.run();
        assert_eq!(late.sent(), "n1 Y !\"z\"(12)");
        world.refused.clear();
        world.lose();
        world.is_up = true;
        for _ in 0..30 {
            settle(&mut world);
        }
        assert_eq!(sent(&mut leaves)[2], "n2 Y y[env=a]=1", "{protocol:?}");
        assert!(matches!(state(&world, "Y"), Some(SyncState::Synced(_))), "{protocol:?}: it came back, too");
        assert_eq!(world.routes(), [Route::SHARED], "{protocol:?}");
    }
}

#[test]
fn g4_a_type_that_is_refused_by_errors_is_answered_so_until_a_new_stream_brings_it() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::ByErrors);
        let mut leaves = leaves(&world);
        settle(&mut world);
        assert_eq!(sent(&mut leaves), ["n1 CDS c=1", "n1 X x=1", "n1 Y !\"y\"(12)"], "{protocol:?}");
        let notices = world.proxy.take_notices();
        let init = notices.iter().find_map(|notice| match notice {
            Notice::Health { event: Event::Init(init), .. } => Some(init),
            _ => None,
        });
        let init = init.expect("all types are known");
        assert!(init.rejected.contains_key(&type_url("Y")) && init.confirmed.contains(&type_url("X")));
        world.refused.clear();
        world.lose();
        world.is_up = true;
        settle(&mut world);
        assert_eq!(sent(&mut leaves), ["", "", "n2 Y y[env=a]=1"], "{protocol:?}");
    }
}

/// Another type may have no response on the new stream, because nothing of it changed. No client
/// waits for that.
#[test]
fn a_type_that_came_back_leaves_its_own_stream_at_once() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::AmongOthers);
        // The request has no version for a name with two variants, so the upstream sends these
        // again.
        world.commit("Y y[env=b]=2");
        let _leaves = (leaves(&world), world.leaf("Y", "y?env=b"));
        settle(&mut world);
        assert_eq!(world.routes().len(), 2, "{protocol:?}");
        world.refused.clear();
        world.lose();
        world.is_up = true;
        world.pass(Duration::from_secs(120));
        assert!(matches!(state(&world, "Y"), Some(SyncState::Synced(_))), "{protocol:?}");
        assert_eq!(world.routes(), [Route::SHARED], "{protocol:?}");
    }
}

/// A stream of its own without any response counted for nothing, so no later one proved that the upstream serves the
/// type (seed 870 of the simulator).
#[test]
fn a_type_without_a_response_on_its_own_stream_comes_back_too() {
    let mut world = World::new(Protocol::Sotw, "CDS c=1; X x=1", ProxyConfig::default());
    world.refused.insert("Y", Refusal::AmongOthers);
    let _leaves = leaves(&world);
    settle(&mut world);
    assert!(matches!(state(&world, "Y"), Some(SyncState::Rejected(..))));
    world.refused.clear();
    world.lose();
    settle(&mut world);
    world.is_up = true;
    world.commit("Y y[env=a]=2");
    for _ in 0..20 {
        settle(&mut world);
    }
    assert!(matches!(state(&world, "Y"), Some(SyncState::Synced(_))), "{:?}", state(&world, "Y"));
    assert_eq!(world.routes(), [Route::SHARED]);
}

/// What is isolated and not wanted any more is not tried again: its time would be over at every
/// look.
#[test]
fn a_type_that_nobody_wants_any_more_is_forgotten_though_it_was_isolated() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::AmongOthers);
        let [_cds, _x, y] = leaves(&world);
        settle(&mut world);
        assert!(matches!(state(&world, "Y"), Some(SyncState::Rejected(..))), "{protocol:?}");
        drop(y);
        settle(&mut world);
        assert_eq!(state(&world, "Y"), None, "{protocol:?}");
        for _ in 0..20 {
            settle(&mut world);
            assert!(world.proxy.next_deadline().is_none_or(|at| at > world.now), "{protocol:?}");
        }
        assert_eq!(world.routes(), [Route::SHARED]);
    }
}

/// A subscription without users went upstream, the type ended the stream, and stayed refused for ever (seed 282 of the
/// simulator).
#[test]
fn a_type_that_is_refused_when_nobody_wants_it_any_more_is_forgotten() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::Always);
        world.is_up = false;
        let [_cds, _x, y] = leaves(&world);
        world.run();
        drop(y);
        world.run();
        world.is_up = true;
        for _ in 0..20 {
            settle(&mut world);
        }
        assert_eq!(state(&world, "Y"), None, "{protocol:?}");
        assert!(matches!(state(&world, "X"), Some(SyncState::Synced(_))), "{protocol:?}");
    }
}

/// The subscriptions of the side stream began a second time, and one of the two never ended (seed 135 of the
/// simulator).
#[test]
fn a_side_stream_that_was_about_to_go_and_stays_has_each_subscription_once() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::AmongOthers);
        let [_cds, _x, y] = leaves(&world);
        settle(&mut world);
        // The main stream tries the type again after an outage, and the type ends it again.
        world.lose();
        world.pass(Duration::from_secs(30));
        world.is_up = true;
        settle(&mut world);
        assert!(matches!(state(&world, "Y"), Some(SyncState::Rejected(..))), "{protocol:?}");
        drop(y);
        settle(&mut world);
        settle(&mut world);
        assert_eq!(world.routes(), [Route::SHARED], "{protocol:?}");
        assert_eq!(state(&world, "Y"), None, "{protocol:?}");
    }
}

/// When the type is tried again, the clients of a wildcard lost its error before there was an answer, as if nothing
/// existed (seed 87 of the simulator).
#[test]
fn s37_a_wildcard_of_a_type_that_is_tried_again_is_not_complete_before_it_is_answered() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, Refusal::Always);
        let mut all = world.leaf("Y", "*?env=a");
        settle(&mut world);
        assert_eq!(all.sent(), "n1 Y !\"*\"(12)", "{protocol:?}");
        all.ack("Y", "1");
        world.refused.clear();
        world.is_slow = true;
        for _ in 0..100 {
            world.pass(Duration::from_secs(10));
            all.now = world.now;
            let sent = all.sent();
            assert!(sent.is_empty() || sent.contains("!\"*\""), "{protocol:?}: {sent}");
        }
        world.is_slow = false;
        world.run();
        // In between it had the error that there is no answer (C5).
        assert_eq!(all.sent(), "n3 Y y[env=a]=1", "{protocol:?}");
    }
}

/// Each node has streams of its own, and one cache.
#[test]
fn by_node_a_type_comes_back_to_each_stream_without_loss_or_duplicate() {
    for protocol in PROTOCOLS {
        let content = "CDS c[env=a]=1 c[env=b]=2; Y y[env=a]=1 y[env=b]=2";
        let mut world = World::new(protocol, content, by_node(&["env"]));
        world.refused.insert("Y", Refusal::AmongOthers);
        let asked = ["a", "b"].map(|env| {
            let leaf = |type_name, name: &str| world.leaf(type_name, &format!("{name}?env={env}"));
            (leaf("CDS", "c"), leaf("Y", "y"))
        });
        let [(_one, mut a), (_other, mut b)] = asked;
        settle(&mut world);
        assert_eq!(
            (a.sent(), b.sent()),
            ("n1 Y y[env=a]=1".into(), "n1 Y y[env=b]=2".into()),
            "{protocol:?}"
        );
        a.ack("Y", "1");
        b.ack("Y", "1");
        world.refused.clear();
        world.lose();
        world.is_up = true;
        for _ in 0..120 {
            world.now += Duration::from_secs(1);
            world.proxy.on_timeout(world.now);
            // They look at each step in between.
            while world.run_once() {
                assert_eq!((a.sent(), b.sent()), (String::new(), String::new()), "{protocol:?}");
            }
        }
        assert_eq!(world.routes().len(), 2, "nothing goes aside any more");
        assert_eq!(world.leaf("Y", "y?env=b&pod=1").sent(), "n1 Y y[env=b]=2");
        world.commit("Y y[env=b]=3");
        assert_eq!((a.sent(), b.sent()), (String::new(), "n2 Y y[env=b]=3".into()), "{protocol:?}");
    }
}

/// At a cold start nothing is known of any type, so each stream of the search shows half as many.
#[test]
fn g4b_a_cold_start_with_one_refused_type_of_ten_takes_a_second() {
    const TYPES: [&str; 10] = ["CDS", "EDS", "LDS", "RDS", "SDS", "X", "Y", "Z", "V", "W"];
    for protocol in PROTOCOLS {
        for refused in TYPES {
            let content = TYPES.map(|type_name| format!("{type_name} a=1")).join("; ");
            let mut world = World::new(protocol, &content, ProxyConfig::default());
            world.refused.insert(refused, Refusal::Always);
            let mut leaves = TYPES.map(|type_name| world.leaf(type_name, "a"));
            for _ in 0..10 {
                world.pass(Duration::from_millis(100));
            }
            for (type_name, leaf) in TYPES.iter().zip(&mut leaves) {
                leaf.now = world.now;
                let expected = if *type_name == refused {
                    format!("n1 {type_name} !\"a\"(12)")
                } else {
                    format!("n1 {type_name} a=1")
                };
                assert_eq!(leaf.sent(), expected, "{protocol:?}, without {refused}");
            }
        }
    }
}

/// The normal restart of a control plane: nothing has changed.
#[test]
fn d21b_all_types_are_known_right_after_a_reconnect_without_changes() {
    let content = "CDS c=1 d=2; X x=1; Y a=1 b=1";
    let mut world = World::new(Protocol::Delta, content, ProxyConfig::default());
    let mut leaves = [world.leaf("CDS", "*"), world.leaf("X", "x"), world.leaf("Y", "a b none")];
    world.run();
    world.pass(Duration::from_secs(20));
    sent(&mut leaves);
    world.proxy.take_notices();
    world.lose();
    world.is_up = true;
    world.pass(Duration::from_secs(2));
    for type_name in ["CDS", "X", "Y"] {
        let state = state(&world, type_name);
        assert!(matches!(state, Some(SyncState::Synced(_))), "{type_name}: {state:?}");
    }
    let notices = world.proxy.take_notices();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Health { event: Event::Init(_), .. })));
    assert_eq!(sent(&mut leaves), ["", "", ""], "nobody is told of it");
}
