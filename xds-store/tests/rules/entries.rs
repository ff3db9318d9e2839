//! The entries that other nodes get of a store.

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Chain;
use xds_store::record::PROBE_TYPE;

use crate::driven::migrating::{in_phase, put_new};
use crate::driven::*;
use xds_store::phase::Phase;

fn probe(payload: &str) -> proto::Change {
    let mut probe = put("probe", payload);
    probe.key.as_mut().unwrap().type_url = PROBE_TYPE.into();
    probe
}

#[test]
fn sr4_sr5_sr8_commits_that_others_get_are_numbered_and_chained_and_no_others_are() {
    let mut server = in_phase(Phase::F2);
    let first = server.published.len();
    server.commit(of([put("a", "1"), put_when("b", "env=prod", "1")])).unwrap();
    server.commit(of([probe("1")])).unwrap();
    server.commit(of([put("a", "1")])).unwrap();
    server.code(of([put_new("a", "not convertible")]));
    server.commit(of([put("a", "2"), probe("2")])).unwrap();
    server.commit(of([delete("b")])).unwrap();
    server.commit(of([delete("a")])).unwrap();
    let (mut chain, mut counter) = (Chain::default(), 0);
    for commit in &server.published[first..] {
        let is_probe = |(key, _): &(xds_store::key::RecordKey, _)| key.type_url().as_str() == PROBE_TYPE;
        let states: Vec<_> = commit
            .changed
            .iter()
            .filter(|record| !is_probe(record))
            .map(|(_, state)| state.clone())
            .collect();
        if states.is_empty() {
            assert_eq!((commit.entry.counter, commit.entry.chain.len()), (0, 0));
            continue;
        }
        counter += 1;
        chain = chain.after("node", counter, states);
        assert_eq!((commit.entry.counter, &commit.entry.chain), (counter, &chain.to_wire()));
    }
    let head = server.store.head();
    assert_eq!((counter, head.counter, &head.chain), (3, 3, &chain.to_wire()));
}
