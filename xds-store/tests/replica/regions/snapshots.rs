//! Snapshots between regions (SG26), and within a region beside others.

use super::*;

#[test]
fn sr19_sg26_a_node_does_not_wait_for_another_region_to_serve_what_its_own_region_wrote() {
    let mut nodes = Nodes::new(&["eu", "eu", "us"], 40);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.forget_log(0);
    nodes.cut.clear();
    nodes.run(100);
    assert!(nodes.state(2, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(0, "n-a"));
}

/// The entries that wrote the name are forgotten, and the name belongs to the region that takes the snapshot.
#[test]
fn sg26_sg28_a_snapshot_for_a_new_owner_has_what_the_former_one_wrote_before() {
    let mut nodes = Nodes::new(&["eu", "us"], 41);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.put(0, "n-a", "1").unwrap();
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.forget_log(0);
    nodes.cut.clear();
    nodes.run(100);
    assert!(nodes.state(0, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(0, "n-a"));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(0, "n-a").map(|state| state.generation), Some(2));
}

#[test]
fn sg26_a_snapshot_has_what_a_former_owner_wrote_also_for_a_third_region() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 42);
    nodes.policy(0, "n-", "eu", &["us", "ap"]).unwrap();
    nodes.put(0, "n-b", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![2];
    nodes.put(0, "n-a", "1").unwrap();
    nodes.commit(0, key("n-b"), delete()).unwrap();
    nodes.policy(0, "n-", "us", &["eu", "ap"]).unwrap();
    nodes.run(20);
    nodes.forget_log(0);
    nodes.cut = vec![1];
    nodes.run(100);
    assert!(nodes.state(0, "n-a").is_some());
    assert_eq!(nodes.state(2, "n-a"), nodes.state(0, "n-a"));
    assert_eq!(nodes.state(2, "n-b"), None);
}

/// A replica that has not heard of the handover is promoted, and its snapshot leaves the names out.
#[test]
fn sg25_sg27_names_that_a_snapshot_leaves_out_by_older_policies_are_fetched() {
    let mut nodes = Nodes::new(&["eu", "eu", "ap"], 44);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.policy(0, "n-", "ap", &["eu"]).unwrap();
    nodes.run(40);
    assert!(!nodes.is_fetching(2));
    nodes.cut = vec![0, 2];
    nodes.promote(1);
    nodes.put(1, "n-a", "1").unwrap();
    nodes.forget_log(1);
    nodes.cut = vec![0];
    nodes.run(60);
    assert!(nodes.is_fetching(2) && nodes.state(2, "n-a").is_none());
    nodes.cut.clear();
    nodes.run(100);
    assert!(!nodes.is_fetching(2) && nodes.state(2, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(2, "n-a"));
}

/// The region that gives the names takes a snapshot of the one that fetches them.
#[test]
fn sg27_a_snapshot_of_a_node_that_fetches_does_not_make_the_one_that_gives_the_names_wait_for_it() {
    let mut nodes = Nodes::new(&["eu", "us"], 43);
    nodes.policy(1, "n-", "us", &[]).unwrap();
    nodes.put(1, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cannot_compare = true;
    nodes.policy(1, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.mute = vec![(1, 0)];
    nodes.put(0, "g", "1").unwrap();
    nodes.forget_log(0);
    nodes.mute.clear();
    nodes.run(20);
    assert!(nodes.is_fetching(0) && nodes.state(1, "g").is_some());
    nodes.cannot_compare = false;
    nodes.run(60);
    assert!(!nodes.is_fetching(0) && !nodes.is_fetching(1));
    assert!(nodes.state(0, "n-a").is_some());
    assert_eq!(nodes.state(0, "n-a"), nodes.state(1, "n-a"));
}
