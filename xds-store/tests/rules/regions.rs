//! Regions that own names, and their copies.

use std::collections::BTreeMap;

use prost::Message as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Counters;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::Engine as _;
use xds_store::entry::Foreign;
use xds_store::phase::Phase;
use xds_store::read::{Filter, Payload, Reads};
use xds_store::region::POLICY_TYPE;
use xds_store::store::{Event, Stopped, Ticket};

use crate::driven::envoy::*;
use crate::driven::migrating::{go_to, new_key, schemas};
use crate::driven::*;

fn policy_key(prefix: &str) -> proto::Key {
    proto::Key { type_url: POLICY_TYPE.into(), name: prefix.into(), when: String::new() }
}

fn policy(prefix: &str, owner: &str, regions: &[&str]) -> proto::Change {
    disabling(prefix, owner, regions, &[])
}

fn disabling(prefix: &str, owner: &str, regions: &[&str], disabled: &[proto::DisabledSync]) -> proto::Change {
    let policy = proto::RegionPolicy {
        owner_region: owner.into(),
        regions: regions.iter().map(ToString::to_string).collect(),
        disabled: disabled.to_vec(),
    };
    let content = proto::Content { payload: policy.encode_to_vec().into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    let act = Some(proto::change::Act::Put(put));
    proto::Change { key: Some(policy_key(prefix)), act, condition: None }
}

fn without_policy(prefix: &str) -> proto::Change {
    let act = Some(proto::change::Act::Delete(proto::Delete::default()));
    proto::Change { key: Some(policy_key(prefix)), act, condition: None }
}

/// Writers of two regions and a replica of the first one.
fn nodes() -> [Server; 3] {
    [
        Server::node_in("eu", "e1", false),
        Server::node_in("eu", "e2", true),
        Server::node_in("us", "u1", false),
    ]
}

/// Lets all nodes take from all others until nobody lacks anything.
fn exchange(nodes: &mut [Server]) {
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].entries_for(&nodes[to], 3);
                has_changed |= !entries.is_empty();
                assert_eq!(nodes[to].merge(entries), BTreeMap::new());
            }
        }
    }
    for node in nodes {
        node.wait(10 * SECOND);
    }
}

#[test]
fn sg27_a_later_policy_of_its_region_does_not_end_what_a_node_fetches() {
    let mut nodes = [
        Server::node_in("eu", "e1", false),
        Server::node_in("us", "u1", false),
        Server::node_in("us", "u2", true),
    ];
    nodes[0].commit(of([policy("eu/", "eu", &[])])).unwrap();
    nodes[0].commit(of([put("eu/x", "1")])).unwrap();
    nodes[0].commit(of([policy("eu/", "eu", &["us"])])).unwrap();
    exchange(&mut nodes);
    let names =
        |node: &Server| -> Vec<_> { node.store.fetching().into_iter().map(|fetch| fetch.names).collect() };
    assert_eq!((names(&nodes[1]).len(), names(&nodes[2]).len()), (1, 1));
    // The writer has all of them, and the replica none.
    let fetched = names(&nodes[1]);
    nodes[1].step(Event::Fetched { names: fetched, incarnation_floor: 0 });
    nodes[0].commit(of([policy("eu/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    nodes[1].commit(of([policy("eu/", "us", &["eu", "ap"])])).unwrap();
    exchange(&mut nodes);
    assert_eq!(names(&nodes[1]), []);
    let fetch = &nodes[2].store.fetching()[0];
    assert_eq!((&*fetch.names.prefix, fetch.regions.contains_key("eu")), ("eu/", true));
}

/// It may have left out names in what it has, or dropped them, whoever wrote them.
#[test]
fn sg27_a_node_that_fetches_names_waits_for_what_it_had_when_it_had_all_before_the_policy() {
    // Whether the handover gives the region something, or it only hears of it.
    for regions in [&["eu", "us"][..], &["eu"]] {
        let mut nodes = [
            Server::node_in("eu", "e1", false),
            Server::node_in("us", "u1", false),
            Server::node_in("ap", "a1", false),
            Server::node_in("sa", "s1", false),
        ];
        nodes[0].commit(of([policy("n-", "eu", &["ap"])])).unwrap();
        nodes[0].commit(of([put("n-x", "1")])).unwrap();
        exchange(&mut nodes);
        nodes[0].commit(of([policy("n-", "ap", regions)])).unwrap();
        nodes[3].commit(of([put("g", "1")])).unwrap();
        exchange(&mut nodes);
        nodes[2].commit(of([policy("n-", "us", &["eu", "ap"])])).unwrap();
        nodes[1].commit(of([put("g", "2")])).unwrap();
        exchange(&mut nodes);
        let needed = |node: &Server| node.store.fetching()[0].upto.clone().unwrap_or_default();
        let counters = [("a1", 1), ("e1", 3), ("s1", 1), ("u1", 1)];
        let counters: Counters = counters.map(|(node, counter)| (node.to_owned(), counter)).into();
        assert_eq!(needed(&nodes[1]), counters);
        for node in [0, 1, 3] {
            nodes[node].commit(of([put("g", &format!("by {node}"))])).unwrap();
        }
        exchange(&mut nodes);
        nodes[1].restart();
        assert_eq!(needed(&nodes[1]), counters);
    }
}

/// What is refused: the region that owns the name, and others.
fn owners(refused: Result<impl std::fmt::Debug, Refused>) -> (RefusalCode, String, Vec<String>) {
    let refused = refused.unwrap_err();
    match refused.violations[0].why.clone() {
        Some(proto::violation::Why::Region(owned)) => (refused.code, owned.owner_region, owned.other_regions),
        why => panic!("{why:?}: {}", refused.message),
    }
}

fn of_eu() -> (RefusalCode, String, Vec<String>) {
    (RefusalCode::FailedPrecondition, "eu".into(), Vec::new())
}

fn names(server: &Server) -> Vec<String> {
    let clients = server.clients();
    clients.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn sg24_a_policy_has_the_beginning_of_new_style_names() {
    let mut server = Server::node_in("eu", "e1", false);
    for prefix in ["xdstp://acme/acme.Thing/a/%", "xdstp://acme/", "xdstp:"] {
        server.commit(of([policy(prefix, "us", &["eu"])])).unwrap();
    }
    server.restart();
    let name = "xdstp://acme/acme.Thing/a";
    assert_eq!(owners(server.commit(of([put(name, "x")]))).1, "us");
}

#[test]
fn sg22_only_the_writer_of_the_owner_region_accepts_writes_of_its_names() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), put("x", "1")])).unwrap();
    exchange(&mut nodes);
    nodes[0].commit(of([put("eu/a", "1")])).unwrap();
    exchange(&mut nodes);
    let [writer, replica, other] = &mut nodes;
    for node in [replica, other] {
        for change in [put("eu/a", "2"), delete("eu/a"), touch("eu/a"), quarantine("eu/a"), put("eu/b", "1")]
        {
            assert_eq!(owners(node.commit(of([change]))), of_eu());
        }
        assert_eq!(names(node), ["eu/a", "x"]);
        // A condition on a copy is none of its writes, and global names are accepted.
        let check = change("eu/a", "", proto::change::Act::Check(proto::Check {}));
        node.commit(of([check, put(&node.store.head().node.clone(), "1")])).unwrap();
    }
    writer.commit(of([put("eu/a", "2"), put("global", "1")])).unwrap();
}

#[test]
fn sg22_what_goes_with_a_change_is_not_written_in_another_region_either() {
    let mut nodes = nodes();
    let owned = |changes: Vec<proto::Change>| proto::CommitRequest { owner: "team".into(), ..of(changes) };
    nodes[2].commit(owned(vec![put("eu/a", "1"), put("x", "1")])).unwrap();
    nodes[2].commit(of([policy("eu/", "eu", &["us"])])).unwrap();
    exchange(&mut nodes);
    // A prune would release the copy.
    let prune = proto::CommitRequest { prune: true, ..owned(vec![put("x", "2")]) };
    assert_eq!(owners(nodes[2].commit(prune.clone())), of_eu());
    nodes[0].commit(prune).unwrap();
    exchange(&mut nodes);
    assert_eq!(names(&nodes[2]), ["x"]);
}

#[test]
fn sg23_sg40_a_commit_changes_names_of_one_policy() {
    let mut server = Server::node_in("eu", "e1", false);
    server.commit(of([policy("a/", "eu", &[]), policy("b/", "eu", &["us"])])).unwrap();
    let refused = owners(server.commit(of([put("a/x", "1"), put("b/x", "1"), put("x", "1")])));
    assert_eq!(refused, (RefusalCode::FailedPrecondition, "eu".into(), vec!["eu".into()]));
    let message = server.commit(of([put("b/x", "1"), put("a/x", "1")])).unwrap_err().message;
    assert!(message.contains("a/ (region eu)") && message.contains("b/ (region eu)"), "{message}");
    server.commit(of([put("a/x", "1"), put("a/y", "1"), put("x", "1")])).unwrap();
}

#[test]
fn sg21_policies_of_a_wrong_form_are_refused_by_a_commit_and_by_a_merge() {
    let mut server = Server::node_in("eu", "e1", false);
    for change in [policy("a/", "", &[]), policy("a/", "eu", &["eu"]), policy("a/", "e u", &[])] {
        assert_eq!(server.code(of([change])), RefusalCode::InvalidArgument);
    }
    let mut leased = policy("a/", "eu", &[]);
    if let Some(proto::change::Act::Put(put)) = &mut leased.act {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    assert_eq!(server.code(of([leased])), RefusalCode::InvalidArgument);
    let mut other = Server::node_in("eu", "e2", true);
    server.commit(of([policy("a/", "eu", &[])])).unwrap();
    let mut entries = server.entries_for(&other, 9);
    let Foreign::Entry(entry) = &mut entries[0] else { panic!("{entries:?}") };
    entry.states[0].content.as_mut().unwrap().payload = b"\x0a\x00".to_vec().into();
    let hashed = proto::RecordState { content: entry.states[0].content.clone(), ..Default::default() };
    entry.states[0].digest = blake3::hash(&hashed.encode_to_vec()).as_bytes().to_vec().into();
    entry.is_partial = true;
    assert!(matches!(other.merge(entries).remove("e1"), Some(Stopped::Invalid { counter: 1, .. })));
}

/// Entries were on their way to the store when a policy came that says more.
#[test]
fn sg25_what_policies_left_out_that_have_changed_since_is_missing() {
    let [mut eu, _, mut us] = nodes();
    eu.commit(of([policy("eu/", "eu", &[])])).unwrap();
    let entries = eu.entries_for(&us, 9);
    us.merge(entries);
    let of_us = |us: &Server| us.store.policies().commits_for("us");
    let before = of_us(&us);
    eu.commit(of([put("eu/a", "1")])).unwrap();
    let skips = eu.entries_for(&us, 9);
    assert!(matches!(skips[..], [Foreign::Skip(_)]));
    let mut other = Server::node_in("ap", "a1", false);
    other.commit(of([policy("x/", "ap", &["us"])])).unwrap();
    let entries = other.entries_for(&us, 9);
    us.merge(entries);
    assert_ne!(of_us(&us), before);
    for (policies, is_taken) in [(before, false), (of_us(&us), true)] {
        us.step(Event::Merge(Ticket(0), skips.clone(), Some(policies)));
        let stopped = us.merged.pop().unwrap().unwrap().stopped;
        let expected = (!is_taken).then(|| ("e1".to_owned(), Stopped::Policies));
        assert_eq!(stopped, expected.into_iter().collect());
        assert_eq!(us.store.clock().get("e1").counter, 1 + u64::from(is_taken));
    }
}

#[test]
fn sg24_a_record_has_its_region_by_the_policies_and_says_whether_it_is_a_copy() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), put("eu/a", "1"), put("x", "1")])).unwrap();
    exchange(&mut nodes);
    let shown = |server: &Server, name: &str| {
        let view = server.engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let key = xds_store::key::RecordKey::parse(&key(name, "")).unwrap();
        let version = reads.last(&key).unwrap().unwrap();
        let record = reads.answer(&version, Payload::Without).unwrap();
        let of_eu = Filter::parse(Some(proto::Filter { region: "eu".into(), ..Default::default() })).unwrap();
        let matches = of_eu.matches_key(&key, reads.policies().unwrap());
        (record.region, record.is_copy, matches)
    };
    assert_eq!(shown(&nodes[0], "eu/a"), ("eu".into(), false, true));
    assert_eq!(shown(&nodes[2], "eu/a"), ("eu".into(), true, true));
    assert_eq!(shown(&nodes[2], "x"), (String::new(), false, false));
}

#[test]
fn sg25_sg26_sr14_another_region_gets_what_is_for_it_and_skips_for_the_rest() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), policy("own/", "eu", &[])])).unwrap();
    nodes[0].commit(of([put("own/a", "1"), put("x", "1")])).unwrap();
    nodes[0].commit(of([put("own/b", "1")])).unwrap();
    nodes[0].commit(of([put("eu/a", "1")])).unwrap();
    let kinds = |from: &Server, to: &Server| -> Vec<_> {
        let entries = from.entries_for(to, 9);
        let kind = |entry: &Foreign| match entry {
            Foreign::Entry(entry) => (entry.states.len(), entry.is_partial),
            Foreign::Skip(_) => (0, false),
        };
        entries.iter().map(kind).collect()
    };
    assert_eq!(kinds(&nodes[0], &nodes[2]), [(2, false), (1, true), (0, false), (1, false)]);
    assert_eq!(kinds(&nodes[0], &nodes[1]), [(2, false), (2, false), (1, false), (1, false)]);
    // Within its region, a node relays a part as it came, also after a restart.
    let mut second = Server::node_in("us", "u2", true);
    let entries = nodes[0].entries_for(&nodes[2], 9);
    assert_eq!(nodes[2].merge(entries), BTreeMap::new());
    nodes[2].restart();
    assert_eq!(kinds(&nodes[2], &second), [(2, false), (1, true), (0, false), (1, false)]);
    let entries = nodes[2].entries_for(&second, 9);
    assert_eq!(second.merge(entries), BTreeMap::new());
    assert_eq!(second.store.clock(), nodes[0].store.clock());
    assert_eq!(names(&second), ["eu/a", "x"]);
    // A third region gets what each region wrote from that region alone.
    let third = Server::node_in("ap", "a1", false);
    assert_eq!(kinds(&second, &third), []);
    assert_eq!(kinds(&nodes[0], &third), [(2, false), (1, true), (0, false), (0, false)]);
    exchange(&mut nodes);
    assert_eq!(names(&nodes[1]), ["eu/a", "own/a", "own/b", "x"]);
}

#[test]
fn sg25_a_disabled_type_is_not_sent_from_one_region_to_another() {
    let mut nodes = nodes();
    let disabled =
        proto::DisabledSync { type_url: TYPE.into(), source_region: "eu".into(), target_region: "us".into() };
    nodes[0].commit(of([disabling("eu/", "eu", &["us"], &[disabled]), put("eu/a", "1")])).unwrap();
    exchange(&mut nodes);
    assert_eq!((names(&nodes[1]), names(&nodes[2])), (vec!["eu/a".to_owned()], vec![]));
}

#[test]
fn sg26_a_snapshot_and_a_peek_of_another_region_have_what_is_for_it() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("own/", "eu", &[]), policy("us/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    nodes[0].commit(of([put("own/a", "1"), put("x", "1")])).unwrap();
    nodes[2].commit(of([put("us/a", "1"), put("y", "1")])).unwrap();
    exchange(&mut nodes);
    let read = |region: &str| {
        let view = nodes[0].engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let page = reads.snapshot_in(region, "", 1 << 20).unwrap();
        let of_tests = |state: &&proto::RecordState| state.key.as_ref().unwrap().type_url == TYPE;
        let name = |state: &proto::RecordState| state.key.as_ref().unwrap().name.clone();
        let records: Vec<_> = page.records.iter().filter(of_tests).map(name).collect();
        let keys =
            ["own/a", "us/a", "x"].map(|name| xds_store::key::RecordKey::parse(&key(name, "")).unwrap());
        let peeked: Vec<_> = reads.peek_in((region, &[]), &keys).unwrap().records.iter().map(name).collect();
        (records, page.clock.into_keys().collect::<Vec<_>>(), peeked)
    };
    let of = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    assert_eq!(
        read("eu"),
        (of(&["own/a", "us/a", "x", "y"]), of(&["e1", "u1"]), of(&["own/a", "us/a", "x"]))
    );
    // What the other region owns, this one may have written before it handed it over.
    assert_eq!(read("us"), (of(&["us/a", "x", "y"]), of(&["e1"]), of(&["x"])));
    assert_eq!(read("ap"), (of(&["x", "y"]), of(&["e1"]), of(&["x"])));
}

#[test]
fn sg27_a_region_that_a_policy_leaves_out_drops_its_copies_and_tells_no_other_one() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), put("eu/a", "1"), put("x", "1")])).unwrap();
    exchange(&mut nodes);
    assert_eq!(names(&nodes[2]), ["eu/a", "x"]);
    let before = nodes[2].store.head().counter;
    nodes[0].commit(of([policy("eu/", "eu", &[])])).unwrap();
    exchange(&mut nodes);
    assert_eq!((names(&nodes[0]), names(&nodes[2])), (vec!["eu/a".into(), "x".into()], vec!["x".to_owned()]));
    assert_eq!(nodes[2].store.head().counter, before, "no entry of its own");
    assert_eq!(nodes[0].state(&key("eu/a", "")).unwrap().generation, 1);
    nodes[2].restart();
    assert_eq!(names(&nodes[2]), ["x"]);
    // A store that was down finds them after its start.
    let mut late = Server::node_in("us", "u2", true);
    let entries = nodes[2].entries_for(&late, 9);
    late.merge(entries);
    late.restart();
    late.wait(10 * SECOND);
    assert_eq!(names(&late), ["x"]);
}

#[test]
fn sg27_copies_go_though_the_engine_refuses_the_batch_that_drops_them() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), put("eu/a", "1"), put("x", "1")])).unwrap();
    exchange(&mut nodes);
    nodes[0].commit(of([policy("eu/", "eu", &[])])).unwrap();
    nodes[2].fates.extend([Fate::Written, Fate::Full]);
    let entries = nodes[0].entries_for(&nodes[2], 9);
    nodes[2].merge(entries);
    assert_eq!((names(&nodes[2]), nodes[2].fates.len()), (vec!["eu/a".into(), "x".into()], 0));
    nodes[2].wait(10 * SECOND);
    assert_eq!(names(&nodes[2]), ["x"]);
}

#[test]
fn sg22_sg28_the_new_owner_finishes_deletions_in_progress() {
    let (mut eu, mut us) = (Server::node_in("eu", "e", false), Server::node_in("us", "u", false));
    eu.commit(of([policy("n/", "eu", &["us"]), cluster("n/c")])).unwrap();
    eu.commit(of([routes("r", &["n/c"])])).unwrap();
    eu.commit(of([drain_at(cluster_key("n/c"))])).unwrap();
    us.merge(eu.entries_for(&us, 9));
    us.commit(of([delete_at(routes_key("r"))])).unwrap();
    // Before it hears of that.
    eu.commit(of([policy("n/", "us", &["eu"])])).unwrap();
    eu.merge(us.entries_for(&eu, 9));
    us.merge(eu.entries_for(&us, 9));
    for node in [&mut eu, &mut us] {
        node.wait(10 * SECOND);
    }
    let lifecycle = |node: &Server| node.state(&cluster_key("n/c")).unwrap().lifecycle();
    assert_eq!((lifecycle(&us), lifecycle(&eu)), (proto::State::Deleted, proto::State::Deleting));
    eu.merge(us.entries_for(&eu, 9));
    assert_eq!(lifecycle(&eu), proto::State::Deleted);
}

/// Its node may have committed less than the one that wrote the policy.
#[test]
fn sg42_the_commit_that_deletes_a_policy_counts_at_all_nodes() {
    let mut nodes = nodes();
    (0..5).for_each(|at| _ = nodes[0].commit(of([put("x", &at.to_string())])).unwrap());
    nodes[0].commit(of([policy("us/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    nodes[2].commit(of([without_policy("us/")])).unwrap();
    exchange(&mut nodes);
    let states = nodes.each_ref().map(|node| node.state(&policy_key("us/")).unwrap());
    assert_eq!(states[2].written_by.as_ref().map(|by| &*by.origin), Some("u1"));
    assert!(states.iter().all(|state| *state == states[2]), "{states:?}");
}

#[test]
fn sg42_a_policy_keeps_the_commit_that_wrote_it_and_any_clock_says_whether_it_covers_that() {
    let mut nodes = nodes();
    nodes[0].commit(of([put("x", "1")])).unwrap();
    nodes[0].commit(of([policy("n/", "eu", &["us"])])).unwrap();
    exchange(&mut nodes);
    let written_by = |node: &Server| node.state(&policy_key("n/")).unwrap().written_by;
    let by = proto::WrittenBy { origin: "e1".into(), counter: 2, region: "eu".into(), epoch: 0 };
    assert!(nodes.iter().all(|node| written_by(node).as_ref() == Some(&by)));
    assert!(nodes[2].store.clock().get("e1").counter >= by.counter);
    // The same policy once more is no change, and no other record has it.
    nodes[0].commit(of([policy("n/", "eu", &["us"])])).unwrap();
    assert_eq!((written_by(&nodes[0]), nodes[0].state(&key("x", "")).unwrap().written_by), (Some(by), None));
    nodes[0].commit(of([put("x", "2"), policy("n/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    assert_eq!(written_by(&nodes[2]).map(|by| by.counter), Some(3));
    nodes[2].commit(of([policy("n/b/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    let by = nodes[0].state(&policy_key("n/b/")).unwrap().written_by.unwrap();
    assert_eq!((&*by.origin, &*by.region), ("u1", "us"));
    nodes[2].commit(of([without_policy("n/b/")])).unwrap();
    exchange(&mut nodes);
    let deleted = nodes[0].state(&policy_key("n/b/")).unwrap();
    assert_eq!(
        (deleted.lifecycle(), deleted.written_by.unwrap().counter),
        (proto::State::Deleted, by.counter + 1)
    );
}

#[test]
fn sg27_what_nodes_with_older_policies_send_to_a_region_that_is_left_out_does_not_stay() {
    let (mut eu, mut us) = (Server::node_in("eu", "e", false), Server::node_in("us", "u", false));
    let mut ap = Server::node_in("ap", "a", false);
    eu.commit(of([policy("n/", "eu", &["us", "ap"]), put("n/a", "1")])).unwrap();
    eu.commit(of([policy("n/", "us", &["eu", "ap"])])).unwrap();
    us.merge(eu.entries_for(&us, 9));
    us.commit(of([policy("n/", "us", &["eu"])])).unwrap();
    // The node in eu has not heard of that.
    ap.merge(us.entries_for(&ap, 9));
    ap.wait(SECOND);
    ap.merge(eu.entries_for(&ap, 9));
    assert_eq!(ap.state(&key("n/a", "")).unwrap().lifecycle(), proto::State::Deleted, "it came, and went");
    assert!(names(&ap).is_empty());
    // Nor does it come by a comparison.
    ap.step(Event::Mend(Ticket(0), vec![eu.state(&key("n/a", "")).unwrap()], None));
    assert!(names(&ap).is_empty());
}

#[test]
fn sg28_the_writer_hands_names_over_to_a_region_that_has_them() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("n/", "eu", &["us"]), put("n/a", "1")])).unwrap();
    exchange(&mut nodes);
    for node in &mut nodes[1..] {
        let refused = node.commit(of([policy("n/", "us", &["eu"])]));
        assert_eq!(owners(refused), of_eu(), "only the writer of the owner does it");
        assert_eq!(owners(node.commit(of([policy("n/b/", "us", &[])]))), of_eu());
    }
    // Regions that get the names fetch them from this one, which has to keep them.
    let off = |source: &str, target: &str| proto::DisabledSync {
        type_url: String::new(),
        source_region: source.into(),
        target_region: target.into(),
    };
    let wrong = [
        policy("n/", "ap", &["us"]),
        // It has copies, but may have been added just before.
        policy("n/", "us", &[]),
        disabling("n/", "ap", &["eu", "us"], &[off("", "eu")]),
        disabling("n/", "ap", &["eu", "us"], &[off("eu", "")]),
    ];
    for wrong in wrong {
        assert_eq!(owners(nodes[0].commit(of([wrong]))), of_eu());
    }
    nodes[0].commit(of([policy("n/", "us", &["eu"])])).unwrap();
    let us = (RefusalCode::FailedPrecondition, "us".to_owned(), Vec::new());
    assert_eq!(owners(nodes[0].commit(of([put("n/a", "2")]))), us);
    assert_eq!(owners(nodes[2].commit(of([put("n/a", "2")]))), of_eu(), "it does not know yet");
    exchange(&mut nodes);
    nodes[2].commit(of([put("n/a", "2")])).unwrap();
    exchange(&mut nodes);
    let states: Vec<_> = nodes.iter().map(|node| node.state(&key("n/a", "")).unwrap()).collect();
    assert!(states.iter().all(|state| state.generation == 2 && *state == states[0]));
}

#[test]
fn st39_sg22_a_lease_ends_at_the_writer_of_the_owner_also_after_a_handover() {
    let mut nodes = nodes();
    nodes[0].commit(of([policy("n/", "eu", &["us"])])).unwrap();
    nodes[0]
        .commit(of([put_lease("n/a", "1", 100), put_lease("n/b", "1", 100), put_lease("x", "1", 100)]))
        .unwrap();
    exchange(&mut nodes);
    nodes[0].commit(of([policy("n/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    let lives = |node: &Server| {
        ["n/a", "n/b", "x"].map(|name| {
            let state = node.state(&key(name, "")).unwrap();
            state.lifecycle() == proto::State::Live
        })
    };
    // The former owner ends that of a global name alone.
    nodes[0].wait(300 * SECOND);
    nodes[1].wait(300 * SECOND);
    assert_eq!((lives(&nodes[0]), lives(&nodes[1])), ([true, true, false], [true; 3]));
    nodes[2].wait(60 * SECOND);
    nodes[2].commit(of([touch("n/a")])).unwrap();
    nodes[2].wait(80 * SECOND);
    assert_eq!(lives(&nodes[2]), [true, false, true]);
    exchange(&mut nodes);
    assert!(nodes.iter().all(|node| lives(node) == [true, false, false]));
    // A node that is started again knows it, too.
    nodes[0].restart();
    nodes[0].wait(300 * SECOND);
    assert_eq!(lives(&nodes[0]), [true, false, false]);
    nodes[2].restart();
    nodes[2].wait(300 * SECOND);
    assert_eq!(lives(&nodes[2]), [false; 3]);
}

#[test]
fn sv21_sg22_the_writer_of_its_region_converts_a_record_and_other_nodes_wait_for_that() {
    let [mut eu, _, mut us] = nodes();
    for node in [&mut eu, &mut us] {
        *node = Server::with(node.engine.clone(), SECOND, |config| {
            (config.schemas, config.is_replicated) = (schemas().into(), true);
        });
    }
    let mut nodes = [eu, us];
    nodes[0].commit(of([policy("a", "eu", &["us"]), put("a1", "1"), put("a2", "1")])).unwrap();
    exchange(&mut nodes);
    let is_clean = |node: &Server| node.store.passes().iter().all(|pass| pass.is_clean && pass.failed == 0);
    go_to(&mut nodes[1], Phase::F3);
    nodes[1].wait(10 * SECOND);
    assert_eq!((nodes[1].state(&new_key("a1")), is_clean(&nodes[1])), (None, false));
    let why = nodes[1].store.passes()[0].failures[0].1.clone();
    assert!(why.contains("has not converted it yet"), "{why}");
    go_to(&mut nodes[0], Phase::F3);
    nodes[0].wait(10 * SECOND);
    assert!(is_clean(&nodes[0]));
    exchange(&mut nodes);
    nodes[1].wait(130 * SECOND);
    assert!(is_clean(&nodes[1]));
    assert_eq!(nodes[1].state(&new_key("a1")), nodes[0].state(&new_key("a1")));
    assert_eq!(nodes[1].store.head().counter, 0, "it wrote nothing");
}
