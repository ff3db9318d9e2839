//! Nodes that replicate over a network that cuts, delays and loses: real stores with real tonic, on the
//! simulated network of turmoil.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use world::World;
use xds_store::commit::RefusalCode;

mod wire;
mod world;

#[test]
fn sr10_sr24_nodes_that_are_cut_off_go_on_and_end_in_one_state() {
    let mut world = World::new(3);
    world.dial_all();
    world.until("all are connected", World::is_up);
    world.sim.partition("a", "b");
    world.sim.partition("a", "c");
    for round in 0..20 {
        world.commit(0, "both", &format!("a {round}"));
        world.commit(1, "both", &format!("b {round}"));
        world.commit(0, &format!("a {round}"), "1");
        world.commit(2, &format!("c {round}"), "1");
        world.run(Duration::from_millis(20));
    }
    world.until("B and C have one state", |world| world.records(1) == world.records(2));
    assert_eq!(
        (world.records(0).len(), world.records(1).len()),
        (21, 21),
        "nothing came from the other side"
    );
    world.sim.repair("a", "b");
    world.sim.repair("a", "c");
    world.until("all have one state", |world| world.agree(41));
}

#[test]
fn sr10_sr16_messages_that_are_lost_in_one_direction_alone_end_in_one_state() {
    let mut world = World::new(2);
    world.dial_all();
    world.until("both are connected", World::is_up);
    // B hears A and cannot answer: its calls and its answers are lost.
    world.sim.partition_oneway("b", "a");
    world.commit(0, "of-a", "1");
    world.commit(1, "of-b", "1");
    world.run(Duration::from_secs(2));
    assert!(!world.records(0).contains_key("of-b"));
    world.sim.repair_oneway("b", "a");
    world.until("both have one state", |world| world.agree(2));
}

#[test]
fn sr10_a_slow_peer_delays_no_other() {
    let mut world = World::new(3);
    world.dial_all();
    world.until("all are connected", World::is_up);
    world.sim.set_link_latency("a", "c", SLOW);
    world.sim.set_link_latency("b", "c", SLOW);
    let began = world.sim.elapsed();
    for number in 0..50 {
        world.commit(0, &format!("n{number}"), "1");
    }
    world.until("B has all", |world| world.records(1).len() == 50);
    assert!(!world.agree(50), "nothing reaches C that fast");
    let lag = world.sim.elapsed() - began;
    assert!(lag < SLOW, "{lag:?}: as fast as the slow peer");
    world.until("C has all, later", |world| world.agree(50));
}

/// What a message to the slow peer takes.
const SLOW: Duration = Duration::from_millis(1_500);

#[test]
fn sr16_a_lost_nudge_costs_one_interval() {
    let mut world = World::new(2);
    // A has no peer, so it nudges nobody.
    world.dial(1, &["a"]);
    world.until("B is connected", |world| world.peers(1).iter().any(|peer| peer.is_up));
    for number in 0..3 {
        world.commit(0, &format!("n{number}"), "1");
        let began = world.sim.elapsed();
        world.until("B has it", |world| world.records(1).len() == number + 1);
        let lag = world.sim.elapsed() - began;
        assert!(lag < 8 * world::PULL_INTERVAL, "{lag:?}");
    }
}

#[test]
fn sr17_a_confirmation_that_is_lost_is_no_confirmation_and_may_be_asked_again() {
    let mut world = World::new(2);
    world.dial_all();
    world.until("both are connected", World::is_up);
    world.sim.hold("a", "b");
    let late = world.commit_acked(0, "x", "1", Duration::from_secs(1));
    assert_eq!((late.peers, late.is_enough), (0, false));
    assert_eq!(world.records(0).len(), 1, "it is committed here");
    world.sim.release("a", "b");
    let acked = world.commit_acked(0, "x", "1", Duration::from_secs(30));
    assert_eq!((acked.peers, acked.is_enough), (1, true));
    assert!(world.agree(1));
}

#[test]
fn sr10_sr50_a_node_with_a_wrong_token_gets_nothing_until_it_has_the_right_one() {
    let mut world = World::new(2);
    world.set_token(1, "wrong");
    world.commit(0, "x", "1");
    world.dial(1, &["a"]);
    world.until("B hears why", |world| world.peers(1).iter().any(|peer| peer.error.contains("token")));
    world.run(Duration::from_secs(1));
    assert!(world.records(1).is_empty() && !world.peers(1)[0].is_up);
    world.set_token(1, world::TOKEN);
    world.until("B has it", |world| world.agree(1));
}

#[test]
fn sr10_sr12_a_node_that_was_unreachable_for_long_gets_many_commits_at_once() {
    let mut world = World::new(3);
    world.dial_all();
    world.until("all are connected", World::is_up);
    world.sim.partition("a", "c");
    world.sim.partition("b", "c");
    // Longer than a call may take.
    world.until("C is known to be down", |world| {
        world.peers(0).iter().any(|peer| peer.node == "c" && !peer.is_up)
    });
    for number in 0..3_000 {
        world.commit(number % 2, &format!("n{number}"), "1");
    }
    world.commit(2, "of-c", "1");
    world.until("A and B go on", |world| {
        world.records(0).len() == 3_000 && world.records(0) == world.records(1)
    });
    assert_eq!(world.records(2).len(), 1);
    world.sim.repair("a", "c");
    world.sim.repair("b", "c");
    world.until("all have one state", |world| world.agree(3_001));
}

#[test]
fn sr19_sr23_sr24_a_node_joins_while_all_go_on_and_links_hang() {
    let mut world = World::joining(3);
    world.dial(0, &["b"]);
    world.dial(1, &["a"]);
    world.until("A and B are connected", |world| world.peers(0).iter().any(|peer| peer.is_up));
    // Some pages of a snapshot.
    let large = "x".repeat(20_000);
    for number in 0..200 {
        world.commit(number % 2, &format!("n{number}"), &large);
    }
    world.dial_all();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..40 {
        for node in [0, 1] {
            world.commit(node, &format!("round {round}"), &format!("of {node}"));
        }
        match world.try_commit(2, &format!("c {round}"), "1") {
            Ok(()) => accepted += 1,
            Err(why) => {
                assert_eq!((why.code, accepted), (RefusalCode::Unavailable, 0), "{why:?}");
                refused += 1;
            }
        }
        let stuck = ["a", "b"][round / 4 % 2];
        match round % 4 {
            1 => world.sim.hold(stuck, "c"),
            3 => world.sim.release(stuck, "c"),
            _ => {}
        }
        world.run(Duration::from_millis(30));
    }
    assert!(refused > 0, "it had no snapshot when it was asked first");
    world.until("all have one state", |world| world.agree(200 + 40 + accepted));
    world.commit(2, "after", "1");
    world.until("and go on", |world| world.agree(200 + 40 + accepted + 1));
}
