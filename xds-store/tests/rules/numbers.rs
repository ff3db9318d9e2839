//! Numbers of a record that another node made as large as they get (SR62).

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Chain;
use xds_store::entry::Foreign;
use xds_store::store::Stopped;

use crate::driven::*;

const LAST: u64 = i64::MAX as u64;

type Change = fn(&mut proto::RecordState, u64);

const NUMBERS: [(&str, Change); 6] = [
    ("incarnation", |state, number| state.incarnation = number),
    ("generation", |state, number| state.generation = number),
    ("renewal", |state, number| state.renewal = number),
    ("owners.epoch", |state, number| {
        let owner = proto::Owner { who: Some(proto::owner::Who::Name("team".into())) };
        state.owners = vec![proto::OwnerState { owner: Some(owner), epoch: number, is_present: false }];
    }),
    ("written_by.epoch", |state, number| {
        state.written_by = Some(proto::WrittenBy { epoch: number, ..proto::WrittenBy::default() });
    }),
    ("written_by.counter", |state, number| {
        state.written_by = Some(proto::WrittenBy { counter: number, ..proto::WrittenBy::default() });
    }),
];

/// The first entry of a node whose record `x` has another number.
fn lie(change: Change, number: u64) -> Vec<Foreign> {
    let mut liar = Server::node("liar");
    liar.commit(of([put("x", "1")])).unwrap();
    let Some(Foreign::Entry(mut entry)) = liar.entries_for(&Server::node("new"), 9).pop() else {
        panic!("it has one commit")
    };
    change(&mut entry.states[0], number);
    entry.chain = Chain::default().after("liar", 1, &entry.states).to_wire();
    vec![Foreign::Entry(entry)]
}

/// A node takes what another one has, without a word.
fn pull(to: &mut Server, from: &Server) {
    assert_eq!(to.merge(from.entries_for(to, 100)), BTreeMap::new());
}

#[test]
fn sr62_a_number_above_the_last_one_stops_the_origin_that_sent_it_alone() {
    for (name, change) in NUMBERS {
        for number in [LAST + 1, u64::MAX] {
            let mut node = Server::node("a");
            let stopped = node.merge(lie(change, number));
            let Some(Stopped::Invalid { counter: 1, reason }) = stopped.get("liar") else {
                panic!("{stopped:?}")
            };
            assert!(reason.contains(&format!("its {name} is above")), "{reason}");
            node.commit(of([put("x", "2")])).unwrap();
            assert_eq!(node.record("x", "").unwrap().generation, 1);
        }
    }
}

/// Regression: the next honest write wrapped to 0, and all other nodes stopped at it for good.
#[test]
fn sr62_what_an_honest_node_writes_after_the_last_number_is_taken_by_all() {
    for (name, change) in NUMBERS {
        let mut nodes = ["a", "b"].map(Server::node);
        for node in &mut nodes {
            assert_eq!(node.merge(lie(change, LAST)), BTreeMap::new(), "{name}");
        }
        let [mut a, mut b] = nodes;
        let refused = a.commit(of([put("x", "2")]));
        // A content of its own ends a stamp, and a lease that nobody has.
        let is_refused = !matches!(name, "renewal" | "written_by.epoch" | "written_by.counter");
        assert_eq!(refused.is_err(), is_refused, "{name}: {refused:?}");
        if let Err(refused) = refused {
            assert!(refused.message.contains(name) && refused.message.contains("delete"), "{refused:?}");
            a.commit(of([delete("x")])).unwrap();
            pull(&mut b, &a);
            let again = a.commit(of([put("x", "3")]));
            assert_eq!(again.is_err(), name == "incarnation", "{again:?}");
        }
        a.commit(of([put("y", "1")])).unwrap();
        pull(&mut b, &a);
        assert_eq!(a.state(&key("x", "")), b.state(&key("x", "")), "{name}");
        assert!(b.record("y", "").is_some(), "{name}");
    }
}

/// Regression: new records follow the incarnations that are forgotten, so none could be made any more.
#[test]
fn sr27_sr62_a_deleted_record_whose_incarnation_nothing_can_follow_is_not_forgotten() {
    let mut node = Server::node("a");
    node.merge(lie(|state, number| state.incarnation = number, LAST));
    node.commit(of([put("z", "1")])).unwrap();
    node.commit(of([delete("x"), delete("z")])).unwrap();
    for _ in 0..30 {
        node.wait(3600 * SECOND);
        node.compact(Some(node.store.revision()));
    }
    assert_eq!(node.store.counts().1, 1, "z is forgotten, and x is not");
    node.commit(of([put("new", "1")])).unwrap();
    assert_eq!(node.record("new", "").unwrap().incarnation, 2);
}
