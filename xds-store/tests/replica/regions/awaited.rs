//! What a region that fetches names waits for (SG27), and what it does not wait for.

use super::*;

/// A write of a global name is answered before its node hears that a region owns the name. The next owner left it out,
/// and so did the region that gives it the names.
#[test]
fn sg27_names_that_a_region_committed_while_they_were_global_are_fetched_too() {
    let mut nodes = Nodes::with_name_that_0_lacks(&["eu", "us", "ap"], 20);
    assert_eq!(nodes.state(1, "n-x"), None, "it came, and was dropped");
    nodes.cut = vec![2];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(60);
    assert!(nodes.is_fetching(1) && nodes.state(0, "n-x").is_none());
    assert_eq!(nodes.awaited(1), "0 lacks commits that this node has, of 2");
    nodes.cut = vec![0, 2];
    nodes.run(60);
    assert_eq!(nodes.awaited(1), "no node of region eu answers");
    nodes.cut.clear();
    nodes.run(60);
    assert!(nodes.state(1, "n-x").is_some());
    assert_eq!((nodes.state(1, "n-x"), nodes.is_fetching(1)), (nodes.state(0, "n-x"), false));
    nodes.put(1, "n-x", "2").unwrap();
    assert_eq!(nodes.alarms, Vec::<String>::new());
}

/// A node that is lost wrote it, so nobody gives its commit to another region (SG26).
#[test]
fn sr51_sg27_a_fetch_that_waits_does_not_hold_back_what_a_comparison_alone_brings() {
    let mut nodes = Nodes::with_name_that_0_lacks(&["eu", "us", "ap", "sa"], 23);
    nodes.cut = vec![1, 2];
    nodes.put(3, "g-a", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![2, 3];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.forget(0, 3);
    nodes.run(60);
    assert!(nodes.is_fetching(1), "what node 2 wrote is left");
    assert!(nodes.state(1, "g-a").is_some());
}

/// The node that gives the names cannot reach the new owner, which dropped what it had committed itself.
#[test]
fn sg27_names_that_the_new_owner_committed_while_they_were_global_are_fetched_too() {
    let mut nodes = Nodes::new(&["eu", "us"], 21);
    nodes.run(20);
    nodes.mute = vec![(0, 1)];
    nodes.put(1, "n-x", "1").unwrap();
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.run(20);
    assert_eq!((nodes.state(0, "n-x"), nodes.state(1, "n-x")), (None, None));
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(60);
    assert!(nodes.is_fetching(1));
    nodes.mute.clear();
    nodes.run(60);
    assert!(nodes.state(1, "n-x").is_some());
    assert_eq!((nodes.state(1, "n-x"), nodes.is_fetching(1)), (nodes.state(0, "n-x"), false));
}

/// The last region hears of the last handovers one after another. What a region committed that owned the names long ago
/// was left out there.
#[test]
fn sg27_sg28_names_of_all_owners_before_are_fetched_when_the_handovers_come_one_by_one() {
    let mut nodes = Nodes::new(&["sa", "sa", "eu", "ap", "us"], 22);
    nodes.policy(0, "n-", "sa", &["eu"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1, 4];
    nodes.policy(0, "n-", "eu", &["sa", "ap"]).unwrap();
    nodes.run(40);
    // A former owner commits without knowing of the handover, and nobody but the last region hears of it.
    nodes.cut = vec![0, 2, 3];
    nodes.promote(1);
    nodes.put(1, "n-x", "1").unwrap();
    nodes.run(40);
    assert_eq!((nodes.state(1, "n-x").is_some(), nodes.state(4, "n-x")), (true, None));
    nodes.cut = vec![0, 1, 4];
    nodes.policy(2, "n-", "ap", &["eu", "sa"]).unwrap();
    nodes.run(40);
    // The last region has nothing to fetch at this handover.
    nodes.cut = vec![0, 1, 3];
    nodes.run(40);
    assert!(nodes.processes[4].store.policies().policy_of("n-").unwrap().owner() == "ap");
    assert!(!nodes.is_fetching(4));
    nodes.cut = vec![0, 1, 4];
    nodes.policy(3, "n-", "us", &["ap", "eu", "sa"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![0, 1];
    nodes.run(60);
    assert!(nodes.is_fetching(4) && nodes.state(3, "n-x").is_none());
    nodes.cut.clear();
    nodes.run(60);
    assert!(nodes.state(4, "n-x").is_some());
    for node in [3, 4] {
        assert_eq!((nodes.state(node, "n-x"), nodes.is_fetching(node)), (nodes.state(2, "n-x"), false));
    }
}

/// The region that gives the names hears of each commit after the next one has reached the new owner.
#[test]
fn sg27_a_former_owner_that_goes_on_writing_does_not_delay_a_fetch_for_ever() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 23);
    nodes.policy(2, "n-", "ap", &["eu"]).unwrap();
    nodes.put(2, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.policy(2, "n-", "eu", &["ap"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(20);
    let mut turns = 0;
    while turns == 0 || nodes.is_fetching(1) {
        turns += 1;
        assert!(turns <= 3, "the second turn gives the node what it waits for");
        nodes.cut = vec![0];
        nodes.put(2, "g", &turns.to_string()).unwrap();
        nodes.run(20);
        assert_eq!(nodes.state(1, "g"), nodes.state(2, "g"));
        nodes.cut = vec![2];
        nodes.run(20);
        nodes.cut = vec![1];
        nodes.run(20);
    }
    assert_eq!(nodes.state(1, "n-a"), nodes.state(0, "n-a"));
}

/// A new node takes the snapshot of one that fetches, which has heard of more than the one that gives the names.
#[test]
fn sg27_a_node_that_joins_waits_for_what_the_node_of_its_snapshot_waits_for() {
    let mut nodes = Nodes::with_name_that_0_lacks(&["eu", "us", "ap"], 24);
    nodes.cut = vec![2];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![0, 2];
    nodes.add("us", true);
    nodes.run(40);
    nodes.cut = vec![2];
    nodes.run(60);
    assert!(nodes.is_fetching(1) && nodes.is_fetching(3));
    nodes.crash(3);
    nodes.cut.clear();
    nodes.run(60);
    for node in [1, 3] {
        assert!(nodes.state(node, "n-x").is_some());
        assert_eq!((nodes.state(node, "n-x"), nodes.is_fetching(node)), (nodes.state(0, "n-x"), false));
    }
}

/// Its commits that only one of the others has never come to the third one: across regions nobody relays them.
#[test]
fn sr51_a_region_that_is_forgotten_does_not_delay_comparisons_of_others() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 25);
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.put(2, "g", "1").unwrap();
    nodes.run(40);
    nodes.cut = vec![2];
    nodes.run(20);
    assert_eq!((nodes.state(0, "g").is_some(), nodes.state(1, "g")), (true, None));
    nodes.forget(1, 2);
    nodes.run(700);
    assert!(nodes.state(0, "g").is_some());
    assert_eq!(nodes.state(1, "g"), nodes.state(0, "g"));
}

/// What a node of the owner lacks goes, though that node lacks commits of a forgotten one, too.
#[test]
fn sr51_a_copy_that_the_owner_does_not_hold_goes_also_after_a_third_region_was_forgotten() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 26);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    nodes.cut = vec![0];
    nodes.put(2, "g", "1").unwrap();
    nodes.run(40);
    nodes.cut = vec![2];
    nodes.forget(1, 2);
    nodes.lose(0, "n-a");
    nodes.run(700);
    assert_eq!(nodes.state(1, "n-a"), None);
    assert_eq!(nodes.state(0, "g"), nodes.state(1, "g"));
}

/// What only a forgotten node of the owner wrote is nowhere else: no node gives it to the owner (SG26).
#[test]
fn sr51_a_copy_that_a_forgotten_node_wrote_stays() {
    let mut nodes = Nodes::new(&["eu", "eu", "us"], 27);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    assert!(nodes.state(2, "n-a").is_some());
    nodes.cut = vec![0];
    nodes.forget(1, 0);
    nodes.run(700);
    assert!(nodes.state(2, "n-a").is_some());
}

/// Such a node leaves out what a policy gives that it does not know, also if it has other states for the region.
#[test]
fn sg25_the_rest_of_an_entry_that_a_node_with_older_policies_left_out_comes_later() {
    let mut nodes = Nodes::new(&["eu", "eu", "us"], 27);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(40);
    assert!(!nodes.is_fetching(2));
    nodes.cut = vec![0];
    nodes.promote(1);
    nodes.put_all(1, &["n-a", "g"]).unwrap();
    nodes.run(40);
    assert_eq!((nodes.state(1, "n-a").is_some(), nodes.state(2, "n-a")), (true, None));
    nodes.cut.clear();
    nodes.run(60);
    for name in ["n-a", "g"] {
        assert!(nodes.state(2, name).is_some(), "{name}");
        assert_eq!(nodes.state(2, name), nodes.state(1, name));
    }
}

/// Another node of the region had fetched the names before their owner was lost.
#[test]
fn sg27_names_that_no_region_gives_any_more_come_from_another_node_of_the_region() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "us"], &[], 35);
    nodes.give_away(|nodes| nodes.policy(0, "n-", "us", &["eu"]).unwrap(), 1);
    assert!(nodes.is_fetching(1) && !nodes.is_fetching(2));
    nodes.cut = vec![0, 1];
    nodes.forget(1, 0);
    nodes.run(20);
    assert!(nodes.is_fetching(1), "the other node may have them");
    assert_eq!(nodes.put(1, "n-a", "2"), Err(RefusalCode::Unavailable));
    nodes.cut = vec![0];
    nodes.run(60);
    assert!(!nodes.is_fetching(1) && nodes.state(1, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(2, "n-a"));
}

/// Names of a longer prefix have a policy of their own (SG21): who fetches these has all others.
#[test]
fn sg27_regions_that_give_each_other_nested_names_do_not_wait_for_each_other() {
    let mut nodes = Nodes::new(&["eu", "us"], 34);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.policy(0, "n-a-", "us", &["eu"]).unwrap();
    nodes.run(60);
    nodes.policy(1, "n-a-", "us", &[]).unwrap();
    nodes.run(20);
    nodes.put(0, "n-x", "1").unwrap();
    nodes.put(1, "n-a-x", "1").unwrap();
    nodes.cut = vec![0];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.policy(1, "n-a-", "eu", &["us"]).unwrap();
    nodes.run(20);
    nodes.cut.clear();
    nodes.run(100);
    assert!(!nodes.is_fetching(0) && !nodes.is_fetching(1));
    for name in ["n-x", "n-a-x"] {
        assert!(nodes.state(0, name).is_some(), "{name}");
        assert_eq!(nodes.state(0, name), nodes.state(1, name));
    }
}

/// A policy that gives a region nothing is not waited for: else the entries of these three wait for each other.
#[test]
fn sg25_regions_that_claim_names_at_the_same_time_do_not_wait_for_each_other() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 33);
    nodes.run(20);
    nodes.cut = vec![0, 1, 2];
    for (node, region) in ["eu", "us", "ap"].into_iter().enumerate() {
        let policy = proto::RegionPolicy { owner_region: region.into(), ..Default::default() };
        let change = |key: proto::Key, payload: Vec<u8>| proto::Change {
            key: Some(key),
            act: Some(put(payload)),
            condition: None,
        };
        let prefix = format!("{region}-");
        let changes = vec![
            change(policy_key(&prefix), policy.encode_to_vec()),
            change(key(&format!("{region}-a")), b"1".to_vec()),
            change(key(&format!("g-{region}")), b"1".to_vec()),
        ];
        nodes.commit_all(node, changes).unwrap();
    }
    // In a circle first: each knows the policy of the next one when it hears the third.
    (nodes.cut, nodes.mute) = (vec![], vec![(0, 2), (1, 0), (2, 1)]);
    nodes.run(20);
    assert_eq!((nodes.state(0, "g-us").is_some(), nodes.state(0, "g-ap")), (true, None));
    nodes.mute.clear();
    nodes.run(100);
    for name in ["g-eu", "g-us", "g-ap"] {
        for node in [0, 1, 2] {
            assert!(nodes.state(node, name).is_some(), "{name} at {node}");
        }
    }
}

/// The only node of the region that gives the names does not come back. Another region has copies of all of them.
#[test]
fn sg27_sg28_names_of_a_region_that_is_forgotten_are_fetched_from_a_region_with_copies() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "ap"], &["ap"], 28);
    nodes.give_away(|nodes| nodes.policy(0, "n-", "us", &["eu", "ap"]).unwrap(), 0);
    assert!(nodes.is_fetching(1), "the other region may come back");
    assert_eq!(nodes.put(1, "n-b", "1"), Err(RefusalCode::Unavailable));
    nodes.forget(1, 0);
    nodes.run(100);
    assert!(!nodes.is_fetching(1) && nodes.state(1, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(2, "n-a"));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.put(1, "n-b", "1").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(2, "n-a"), nodes.state(1, "n-a"));
}

/// Nobody else has copies, so what only that region had is lost.
#[test]
fn sg27_sg28_a_fetch_ends_when_no_region_is_left_that_has_the_names() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "us"], &[], 29);
    nodes.give_away(|nodes| nodes.policy(0, "n-", "us", &["eu"]).unwrap(), 0);
    assert!(nodes.is_fetching(1) && nodes.is_fetching(2));
    nodes.forget(1, 0);
    nodes.run(60);
    assert!(!nodes.is_fetching(1) && !nodes.is_fetching(2));
    assert_eq!(nodes.state(1, "n-a"), None);
    for node in [1, 2] {
        let journal = nodes.journal(node);
        assert_eq!(journal.len(), 1);
        assert_eq!(journal[0].key.as_ref(), Some(&policy_key("n-")));
        assert!(journal[0].detail.contains("region eu"), "{}", journal[0].detail);
    }
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(2, "n-a"), nodes.state(1, "n-a"));
}

/// The new owner and a region with copies would wait for each other: the region that gave both of them the names does
/// not come back.
#[test]
fn sg27_sg28_a_fetch_ends_when_all_regions_that_are_left_lack_the_names() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "ap"], &[], 30);
    nodes.give_away(|nodes| nodes.policy(0, "n-", "us", &["eu", "ap"]).unwrap(), 0);
    assert!(nodes.is_fetching(1) && nodes.is_fetching(2));
    nodes.forget(1, 0);
    nodes.run(100);
    assert!(!nodes.is_fetching(1) && !nodes.is_fetching(2));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(20);
    assert_eq!(nodes.state(2, "n-a"), nodes.state(1, "n-a"));
}

/// The same of names that became global, of which one region had copies.
#[test]
fn sg27_names_that_became_global_come_from_a_region_with_copies_when_their_owner_is_forgotten() {
    let mut nodes = Nodes::with_names_of_eu(&["eu", "us", "ap"], &["ap"], 31);
    nodes.policy(0, "m-", "eu", &[]).unwrap();
    nodes.put(0, "m-a", "1").unwrap();
    nodes.run(20);
    nodes.give_away(
        |nodes| {
            for prefix in ["n-", "m-"] {
                nodes.commit(0, policy_key(prefix), delete()).unwrap();
            }
        },
        0,
    );
    assert!(nodes.is_fetching(1) && nodes.is_fetching(2));
    nodes.forget(1, 0);
    nodes.run(100);
    assert!(!nodes.is_fetching(1) && !nodes.is_fetching(2));
    assert!(nodes.state(1, "n-a").is_some());
    assert_eq!(nodes.state(1, "n-a"), nodes.state(2, "n-a"));
    for (node, name) in [(1, "n-a"), (2, "m-a")] {
        nodes.put(node, name, "2").unwrap();
    }
}

/// A node of the new owner left out a name before it knew of the handover, and another one hears of that from it after
/// it has fetched the names.
#[test]
fn sg25_sg27_what_a_node_of_the_own_region_left_out_before_a_policy_is_not_taken_from_it() {
    let mut nodes = Nodes::new(&["eu", "eu", "us", "us"], 32);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.run(20);
    nodes.cut = vec![0, 2];
    nodes.promote(1);
    nodes.put(1, "n-x", "1").unwrap();
    nodes.run(40);
    nodes.cut = vec![1, 3];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(60);
    assert!(!nodes.is_fetching(2));
    nodes.cut = vec![1];
    nodes.run(60);
    assert!(nodes.is_fetching(3));
    nodes.cut.clear();
    nodes.run(100);
    assert!(nodes.state(0, "n-x").is_some());
    for node in [2, 3] {
        assert_eq!((nodes.state(node, "n-x"), nodes.is_fetching(node)), (nodes.state(0, "n-x"), false));
    }
}
