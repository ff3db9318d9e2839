//! Nodes of regions whose policies change (SG27, SG28): with real stores, lost calls, crashes, and nodes that join
//! late.

use prost::Message as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine as _;
use xds_store::key::RecordKey;
use xds_store::read::Reads;
use xds_store::replica::Event;

use crate::fixture::{One, a_pull, clock, config, counters, entry, given, last, pulls, skip};
use fixture::{Nodes, delete, key, policy_key, put};

mod awaited;
mod fixture;
mod lost;
mod snapshots;

#[test]
fn sg27_a_region_that_a_policy_adds_fetches_the_names_and_changes_none() {
    let mut nodes = Nodes::new(&["eu", "us", "eu", "us"], 1);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    for at in 0..9 {
        nodes.put(0, &format!("n-{at}"), "1").unwrap();
    }
    nodes.put(0, "n-3", "2").unwrap();
    nodes.commit(0, key("n-4"), delete()).unwrap();
    nodes.run(20);
    assert_eq!((nodes.state(1, "n-3"), nodes.state(2, "n-3")), (None, nodes.state(0, "n-3")));
    let before: Vec<_> = (0..9).map(|at| nodes.state(0, &format!("n-{at}"))).collect();
    let counters = |nodes: &Nodes| -> Vec<_> {
        nodes.processes.iter().map(|process| process.store.head().counter).collect()
    };
    let of_before = counters(&nodes);
    nodes.cannot_compare = true;
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(20);
    assert!(nodes.is_fetching(1), "the policy has come");
    nodes.crash(1);
    assert!(nodes.is_fetching(1) && nodes.state(1, "n-3").is_none(), "a crash forgets nothing");
    nodes.cannot_compare = false;
    nodes.run(20);
    for node in 0..4 {
        let here: Vec<_> = (0..9).map(|at| nodes.state(node, &format!("n-{at}"))).collect();
        assert_eq!((here, nodes.is_fetching(node)), (before.clone(), false), "{node}");
    }
    // The policy is the only entry, and nothing was lost.
    assert_eq!(counters(&nodes), [of_before[0] + 1, 0, 0, 0]);
    assert_eq!(nodes.alarms, Vec::<String>::new());
}

#[test]
fn sg28_a_new_owner_without_copies_accepts_writes_once_it_has_all_names() {
    let mut nodes = Nodes::new(&["eu", "us", "us"], 2);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(10);
    assert_eq!(
        nodes.policy(0, "n-", "us", &[]),
        Err(RefusalCode::FailedPrecondition),
        "nobody would have them"
    );
    nodes.cannot_compare = true;
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    assert_eq!(nodes.put(0, "n-a", "2"), Err(RefusalCode::FailedPrecondition));
    nodes.run(20);
    // It has the policy, and not what the policy is about.
    for name in ["n-a", "n-b"] {
        assert_eq!(nodes.put(1, name, "2"), Err(RefusalCode::Unavailable));
    }
    assert_eq!(nodes.policy(1, "n-", "us", &[]), Err(RefusalCode::Unavailable));
    assert_eq!(nodes.policy(1, "n-b", "us", &[]), Err(RefusalCode::Unavailable));
    nodes.put(1, "global", "1").unwrap();
    (nodes.cut, nodes.cannot_compare) = (vec![0], false);
    nodes.run(100);
    assert_eq!(nodes.put(1, "n-b", "2"), Err(RefusalCode::Unavailable), "nobody gives it the names");
    nodes.cut.clear();
    nodes.run(40);
    nodes.put(1, "n-a", "2").unwrap();
    nodes.put(1, "n-b", "1").unwrap();
    nodes.run(20);
    let states: Vec<_> = (0..3).map(|node| nodes.state(node, "n-a").unwrap()).collect();
    assert!(states.iter().all(|state| state.generation == 2 && *state == states[0]));
    // The former owner drops its copies once the new one says so.
    nodes.policy(1, "n-", "us", &[]).unwrap();
    nodes.run(20);
    assert_eq!((nodes.state(0, "n-a"), nodes.state(2, "n-b").is_some()), (None, true));
}

#[test]
fn sg27_names_are_fetched_of_a_node_that_has_all_that_came_before_the_policy() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 6);
    nodes.policy(0, "n-", "eu", &["ap"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1];
    nodes.policy(0, "n-", "ap", &["eu", "us"]).unwrap();
    nodes.run(40);
    // It hears of a name before the policy that gives it the name, and of the policy from a node without that name.
    nodes.cut = vec![0];
    nodes.put(2, "n-a", "1").unwrap();
    nodes.run(40);
    assert_eq!(nodes.state(1, "n-a"), None);
    nodes.cut = vec![2];
    nodes.run(60);
    assert!(nodes.is_fetching(1) && nodes.state(0, "n-a").is_none());
    nodes.cut.clear();
    nodes.run(60);
    assert_eq!((nodes.state(1, "n-a"), nodes.is_fetching(1)), (nodes.state(2, "n-a"), false));
    assert_eq!((nodes.state(1, "n-a").is_some(), &*nodes.alarms), (true, &[][..]));
}

/// A deletion was left out here, and a node that was promoted does not know it (SG22). It does not bring the record
/// back.
#[test]
fn sg27_a_name_that_was_deleted_does_not_come_from_a_node_that_lacks_the_deletion() {
    let mut nodes = Nodes::with_deletion_that_1_lacks(8);
    nodes.cut = vec![0];
    nodes.promote(1);
    nodes.policy(1, "n-", "eu", &["us"]).unwrap();
    nodes.run(60);
    assert_eq!((nodes.state(1, "n-a").is_some(), nodes.state(2, "n-a")), (true, None));
    assert!(nodes.is_fetching(2));
    nodes.cut.clear();
    nodes.run(60);
    assert_eq!((nodes.state(1, "n-a"), nodes.state(2, "n-a")), (None, None));
    assert!(!nodes.is_fetching(2));
}

/// A node that lacks a deletion may tell of the record later.
#[test]
fn sg27_names_are_fetched_with_their_deletions() {
    let mut nodes = Nodes::with_deletion_that_1_lacks(12);
    let key = RecordKey::parse(&key("n-a")).unwrap();
    let lifecycle_at_2 = |nodes: &Nodes| {
        let view = nodes.engines[2].view().unwrap();
        Reads::new(&*view).unwrap().last(&key).unwrap().map(|version| version.state.lifecycle())
    };
    assert_eq!(lifecycle_at_2(&nodes), None);
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(40);
    assert_eq!((nodes.is_fetching(2), lifecycle_at_2(&nodes)), (false, Some(proto::State::Deleted)));
}

/// A replica is promoted that has not heard that the names of its region were handed over, and commits one of them. The
/// region that gets the names later left it out when it came, and does not fetch them from a node that lacks it.
#[test]
fn sg27_sg28_names_that_a_former_owner_committed_after_a_handover_are_fetched_too() {
    let mut nodes = Nodes::new(&["eu", "eu", "us", "ap"], 10);
    nodes.policy(0, "n-", "eu", &["ap"]).unwrap();
    nodes.run(20);
    nodes.cut = vec![1, 2];
    nodes.policy(0, "n-", "ap", &["eu"]).unwrap();
    nodes.run(40);
    nodes.cut = vec![0, 3];
    nodes.promote(1);
    nodes.put(1, "n-a", "1").unwrap();
    nodes.run(40);
    assert!(nodes.state(1, "n-a").is_some() && nodes.state(2, "n-a").is_none());
    nodes.cut = vec![0, 1];
    nodes.policy(3, "n-", "us", &["eu", "ap"]).unwrap();
    nodes.run(60);
    assert!(nodes.is_fetching(2) && nodes.state(3, "n-a").is_none());
    // A node that takes a snapshot of the one that fetches waits, too.
    nodes.add("us", true);
    nodes.run(60);
    assert!(nodes.is_fetching(4));
    nodes.cut.clear();
    nodes.run(60);
    for node in [2, 4] {
        assert_eq!((nodes.state(node, "n-a"), nodes.is_fetching(node)), (nodes.state(3, "n-a"), false));
        assert!(nodes.state(node, "n-a").is_some());
    }
}

/// As above, but all names were fetched before: it is compared with a node that lacks the deletion (SR51).
#[test]
fn sg25_a_comparison_does_not_bring_back_what_a_node_of_another_region_did_not_hear_is_deleted() {
    let mut nodes = Nodes::with_deletion_that_1_lacks(9);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.run(40);
    assert!(!nodes.is_fetching(2));
    nodes.cut = vec![0];
    nodes.promote(1);
    nodes.policy(1, "n-", "eu", &["us"]).unwrap();
    nodes.put(1, "n-b", "1").unwrap();
    nodes.crash(2);
    nodes.run(60);
    assert_eq!((nodes.state(1, "n-a").is_some(), nodes.state(2, "n-a")), (true, None));
    nodes.cut.clear();
    nodes.run(60);
    assert_eq!((nodes.state(1, "n-a"), nodes.state(2, "n-a")), (None, None));
    assert!(nodes.state(2, "n-b").is_some());
}

#[test]
fn sg27_sg28_names_are_fetched_while_a_third_region_is_out_of_reach() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 7);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(20);
    // The giver has commits of that region which the new owner lacks.
    nodes.cut = vec![1];
    nodes.put(2, "global", "1").unwrap();
    nodes.run(40);
    nodes.cut = vec![2];
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(40);
    assert_eq!((nodes.state(1, "global"), nodes.is_fetching(1)), (None, false));
    nodes.put(1, "n-a", "2").unwrap();
    // All other records are compared soon after.
    nodes.cut.clear();
    nodes.run(40);
    assert_eq!(nodes.state(1, "global"), nodes.state(2, "global"));
    assert_eq!(nodes.alarms, Vec::<String>::new());
}

#[test]
fn sg25_what_a_node_with_older_policies_leaves_out_comes_once_it_knows_the_newer_ones() {
    let (mut one, calls) = One::with(config(), &clock(&[("q", 7)]), &["a"]);
    let mut pull = pulls(&one.greet(calls[0], "p", "1", &[("p", 4)]))[0].0;
    one.step(Event::Policies(counters(&[("q", 7), ("me", 9), ("r", 3)])));
    let answer = |of: &[(&str, u64)]| proto::PullResponse { skips: vec![skip("p", 1, 2)], ..last(of) };
    // The peer does not know the last policy of `q`. That of `r` is not known to be whole here, either.
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 6)])));
    assert_eq!(given(&actions), []);
    pull = one.wait_for(a_pull).0;
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 7)])));
    assert_eq!(given(&actions), [], "the answer may be of the time before");
    pull = pulls(&actions)[0].0;
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 7)])));
    assert_eq!(given(&actions), [("p".to_owned(), 1, 2)]);
}

#[test]
fn sg25_what_a_node_with_older_policies_leaves_out_of_an_entry_comes_once_it_knows_the_newer_ones() {
    let (mut one, calls) = One::with(config(), &clock(&[("q", 7)]), &["a"]);
    let mut pull = pulls(&one.greet(calls[0], "p", "1", &[("p", 4)]))[0].0;
    one.step(Event::Policies(counters(&[("q", 7)])));
    let answer = |of: &[(&str, u64)]| proto::PullResponse {
        entries: vec![
            entry("p", 1),
            proto::Entry { is_partial: true, ..entry("p", 2) },
            entry("p", 3),
            entry("r", 1),
        ],
        ..last(of)
    };
    // The others of that node are after it.
    let whole = [("p".to_owned(), 1, 1), ("r".to_owned(), 1, 1)];
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 6)])));
    assert_eq!(given(&actions), whole);
    one.applied(pull, &[("p", 1), ("q", 7), ("r", 1)]);
    pull = one.wait_for(a_pull).0;
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 7)])));
    assert_eq!(given(&actions), [], "the answer may be of the time before");
    pull = pulls(&actions)[0].0;
    let actions = one.step(Event::PullPart(pull, answer(&[("p", 4), ("q", 7)])));
    assert_eq!(given(&actions), [("p".to_owned(), 2, 2), ("p".to_owned(), 3, 3)]);
}

#[test]
fn sg27_names_of_a_policy_that_is_deleted_come_to_all_regions() {
    let mut nodes = Nodes::new(&["eu", "us"], 3);
    nodes.policy(0, "n-", "eu", &[]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(10);
    nodes.cannot_compare = true;
    nodes.commit(0, policy_key("n-"), delete()).unwrap();
    nodes.run(20);
    // Each node accepts writes of global names, and this one would create what exists.
    assert_eq!(nodes.put(1, "n-a", "2"), Err(RefusalCode::Unavailable));
    nodes.cannot_compare = false;
    nodes.run(20);
    assert_eq!(nodes.state(1, "n-a"), nodes.state(0, "n-a"));
    nodes.put(1, "n-a", "2").unwrap();
    nodes.run(10);
    assert_eq!(nodes.state(0, "n-a").unwrap().generation, 2);
}

#[test]
fn sg28_sg42_a_node_that_joins_with_a_policy_alone_fetches_the_names() {
    let mut nodes = Nodes::new(&["eu", "us", "ap"], 4);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.run(10);
    nodes.policy(0, "n-", "us", &["eu"]).unwrap();
    nodes.run(10);
    // It takes its snapshot from `ap`, which has no copies.
    nodes.cut = vec![0, 1];
    nodes.add("us", true);
    nodes.run(60);
    assert!(nodes.processes[3].store.head().revision > 0 && nodes.state(3, "n-a").is_none());
    assert!(nodes.is_fetching(3));
    nodes.cut = vec![2];
    nodes.run(100);
    assert_eq!((nodes.state(3, "n-a"), nodes.is_fetching(3)), (nodes.state(1, "n-a"), false));
}

#[test]
fn sr51_a_copy_that_the_owner_does_not_hold_goes_and_the_owner_does_not_change() {
    let mut nodes = Nodes::new(&["eu", "us", "eu"], 5);
    nodes.policy(0, "n-", "eu", &["us"]).unwrap();
    nodes.put(0, "n-a", "1").unwrap();
    nodes.put(0, "n-b", "1").unwrap();
    nodes.put(0, "x-a", "1").unwrap();
    nodes.run(20);
    let kept = nodes.state(1, "n-a").unwrap();
    // One node of the owner loses a record, and gets it back from the other one there.
    nodes.lose(0, "n-a");
    for _ in 0..30 {
        nodes.run(1);
        assert_eq!(nodes.state(1, "n-a").as_ref(), Some(&kept));
    }
    assert_eq!(nodes.state(0, "n-a"), Some(kept));
    // Both lose it. What is global comes from the region that has it.
    for node in [0, 2] {
        nodes.lose(node, "n-a");
        nodes.lose(node, "x-a");
    }
    nodes.run(60);
    let have = |name: &str| [0, 1, 2].map(|node| nodes.state(node, name).is_some());
    assert_eq!((have("n-a"), have("n-b"), have("x-a")), ([false; 3], [true; 3], [true; 3]));
    let counters = [0, 1, 2].map(|node| nodes.processes[node].store.head().counter);
    assert_eq!(counters, [4, 0, 0], "nobody tells others of it");
}

/// Changes policies and names at random, while calls fail and nodes crash. At the end each node has what its policies
/// say, and the owner writes on.
fn run_at_random(seed: u64) -> (usize, usize) {
    const REGIONS: [&str; 3] = ["eu", "us", "ap"];
    const PREFIXES: [&str; 3] = ["n-", "n-x-", "m-"];
    let mut nodes = Nodes::new(&["eu", "us", "ap", "us"], seed);
    let (mut committed, mut fetched) = (0, 0);
    let writers = [nodes.random.below(3) as usize, nodes.random.below(3) as usize];
    for (prefix, writer) in PREFIXES.into_iter().zip([writers[0], writers[0], writers[1]]) {
        nodes.policy(writer, prefix, REGIONS[writer], &[]).unwrap();
        nodes.run(30);
    }
    nodes.failing = 30;
    for _ in 0..60 {
        let node = nodes.random.below(nodes.engines.len() as u64) as usize;
        let prefix = PREFIXES[nodes.random.below(3) as usize];
        match nodes.random.below(12) {
            0 => nodes.crash(node),
            1..=2 => {
                let owner = REGIONS[nodes.random.below(3) as usize];
                let own = nodes.regions[node];
                let mut copies: Vec<_> = REGIONS.into_iter().filter(|_| nodes.random.below(2) == 0).collect();
                copies.extend((!copies.contains(&own)).then_some(own));
                copies.retain(|copy| *copy != owner);
                committed += usize::from(nodes.policy(node, prefix, owner, &copies).is_ok());
            }
            3 if nodes.random.below(3) == 0 && prefix == "n-x-" => {
                committed += usize::from(nodes.commit(node, policy_key(prefix), delete()).is_ok());
            }
            _ => {
                let name = format!("{prefix}{}", nodes.random.below(5));
                let act = match nodes.random.below(4) {
                    0 => delete(),
                    _ => put(nodes.random.below(9).to_string().into_bytes()),
                };
                committed += usize::from(nodes.commit(node, key(&name), act).is_ok());
            }
        }
        let seconds = nodes.random.below(8) as i64;
        nodes.run(seconds);
        fetched += (0..nodes.engines.len()).filter(|node| nodes.is_fetching(*node)).count();
        if nodes.engines.len() == 4 && nodes.random.below(40) == 0 {
            let region = REGIONS[nodes.random.below(3) as usize];
            nodes.add(region, true);
        }
    }
    nodes.failing = 0;
    nodes.run(100);
    for prefix in PREFIXES {
        for name in (0..5).map(|at| format!("{prefix}{at}")) {
            let policies = nodes.processes[0].store.policies();
            let Some(policy) = policies.policy_of(&name) else { panic!("n- is never deleted") };
            let regions: Vec<_> = policy.regions().map(str::to_owned).collect();
            let owner = (0..3).find(|node| nodes.regions[*node] == policy.owner()).unwrap();
            let of_owner = nodes.state(owner, &name);
            for node in 0..nodes.engines.len() {
                let wanted =
                    of_owner.clone().filter(|_| regions.iter().any(|region| *region == nodes.regions[node]));
                assert_eq!(nodes.state(node, &name), wanted, "SEED={seed} node {node}: {name}");
                assert!(!nodes.is_fetching(node), "SEED={seed} node {node}");
            }
            let before = of_owner.map_or(0, |state| state.generation);
            nodes
                .put(owner, &name, "at the end")
                .unwrap_or_else(|code| panic!("SEED={seed} {name}: {code:?}"));
            assert_eq!(
                nodes.state(owner, &name).map(|state| state.generation),
                Some(before + 1),
                "SEED={seed}"
            );
        }
    }
    (committed, fetched)
}

#[test]
fn sg27_sg28_regions_come_and_go_while_calls_fail_and_nodes_crash_and_none_lacks_a_name() {
    let (mut committed, mut fetched) = (0, 0);
    for seed in crate::seeds(8) {
        let counts = run_at_random(seed);
        (committed, fetched) = (committed + counts.0, fetched + counts.1);
    }
    println!("{committed} commits, {fetched} times a node was fetching");
    assert!(committed > 0 && fetched > 0);
}
