//! Nodes of regions that lose what they had, and come back (SG26 to SG28, SG32, SR31).

use super::*;

/// It comes back with the same id, and a peer of another region shows that it lacks commits of its own.
#[test]
fn sr31_sg26_the_only_node_of_a_region_gets_back_what_its_disk_lost_from_another_region() {
    let mut nodes = Nodes::new(&["eu", "us"], 50);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    let before = nodes.copy(0);
    nodes.put(0, "n-a", "2").unwrap();
    nodes.put(0, "n-b", "1").unwrap();
    nodes.run(20);
    nodes.set_back(0, before);
    nodes.run(100);
    for name in ["n-a", "n-b"] {
        assert!(nodes.state(1, name).is_some(), "{name}");
        assert_eq!(nodes.state(0, name), nodes.state(1, name), "{name}");
    }
    assert_eq!(nodes.state(0, "n-a").map(|state| state.generation), Some(2));
}

/// Another node has taken its place: it joins by a region without copies, and a third region has them.
#[test]
fn sg27_sg28_a_new_only_node_of_a_region_fetches_its_names_from_a_region_with_copies() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 51);
    nodes.policy(0, "n-", "eu", &["ap"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![0, 2];
    nodes.add_writer("eu");
    nodes.run(40);
    assert_eq!(nodes.put(3, "n-a", "2"), Err(RefusalCode::Unavailable), "the other node may come back");
    nodes.cut = vec![0];
    nodes.run(40);
    nodes.forget(3, 0);
    nodes.run(60);
    assert!(!nodes.is_fetching(3) && nodes.state(3, "n-a").is_some());
    assert_eq!(nodes.state(3, "n-a"), nodes.state(2, "n-a"));
    nodes.put(3, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(2, "n-a"), nodes.state(3, "n-a"));
}

/// Nobody else had the names.
#[test]
fn sg27_sg28_a_new_only_node_of_a_region_goes_on_without_names_that_nobody_has() {
    let mut nodes = Nodes::new(&["eu", "us"], 52);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![0];
    nodes.add_writer("eu");
    nodes.run(40);
    nodes.forget(2, 0);
    nodes.run(60);
    assert!(!nodes.is_fetching(2));
    nodes.put(2, "n-a", "2").unwrap();
}

/// Only the lost node, and a node of another region, had the last version of the policy (SG26).
#[test]
fn sg27_a_new_only_node_of_a_region_takes_the_policy_of_names_that_it_fetches_from_another_region() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 56);
    nodes.policy(0, "n-", "eu", &["us", "ap"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![2];
    nodes.policy(0, "n-", "us", &["eu", "ap"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![0, 1];
    nodes.add_writer("eu");
    nodes.run(20);
    nodes.cut = vec![0];
    nodes.forget(3, 0);
    nodes.run(60);
    assert!(!nodes.is_fetching(3));
    assert_eq!(nodes.put(3, "n-a", "2"), Err(RefusalCode::FailedPrecondition));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(20);
    let states = [1, 2, 3].map(|node| nodes.state(node, "n-a"));
    assert!(states.iter().all(|state| state.is_some() && *state == states[0]), "{states:?}");
}

/// The region with copies would wait for the owner, which lacks the names itself.
#[test]
fn sg27_sg28_a_new_only_node_of_a_region_and_a_region_that_fetches_from_it_do_not_wait_for_each_other() {
    let mut nodes = Nodes::new(&["eu", "us"], 53);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cannot_compare = true;
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![0];
    nodes.cannot_compare = false;
    nodes.add_writer("eu");
    nodes.run(40);
    nodes.forget(2, 0);
    nodes.run(60);
    assert!(!nodes.is_fetching(1) && !nodes.is_fetching(2));
    nodes.put(2, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(1, "n-a"), nodes.state(2, "n-a"));
}

/// The only node of the region that gives the names is lost, and the one in its place waits for the new owner.
#[test]
fn sg27_sg28_a_new_owner_does_not_wait_for_a_node_that_joined_in_place_of_the_one_that_gave_the_names() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "us"], &[], 55);
    nodes.give_away(|nodes| nodes.policy(0, "n-", "us", &["eu"]).unwrap(), 0);
    nodes.add_writer("eu");
    nodes.run(40);
    assert!(nodes.is_fetching(1) && nodes.is_fetching(3));
    nodes.forget(1, 0);
    nodes.run(60);
    assert!((1..4).all(|node| !nodes.is_fetching(node)));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(3, "n-a"), nodes.state(1, "n-a"));
}
