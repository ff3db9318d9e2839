//! Snapshots with numbers that no node reaches (SR62).

use super::*;

const LAST: u64 = i64::MAX as u64;

#[test]
fn sr62_a_snapshot_with_numbers_that_no_node_reaches_is_refused() {
    type Page = fn(&mut proto::SnapshotResponse);
    let pages: [(&str, Page); 6] = [
        ("incarnation_floor", |page| page.incarnation_floor = LAST),
        ("clock", |page| page.clock.values_mut().for_each(|position| position.counter = u64::MAX)),
        ("counters", |page| _ = page.counters.insert("liar".into(), LAST + 1)),
        ("deletion_floors", |page| {
            let counters = [("liar".to_owned(), u64::MAX)].into();
            page.deletion_floors = Some(proto::Clock { counters });
        }),
        ("rollout.counter", |page| {
            page.rollout = Some(proto::RolloutOfEntry { counter: u64::MAX, ..Default::default() });
        }),
        ("its generation", |page| page.records[0].generation = LAST + 1),
    ];
    let mut giver = node("giver");
    commit(&mut giver, [put("x", "1")]);
    for (name, change) in pages {
        let mut taker = node("a");
        commit(&mut taker, [put("own", "1")]);
        taker.step(Event::BeginResync { must_replace: true, new_id: "another".into() });
        let mut page = giver.snapshot(1 << 20).remove(0);
        change(&mut page);
        taker.step(Event::Stage(Ticket(0), page));
        let refused = taker.staged.pop().expect("it is answered").expect_err(name);
        assert!(refused.message.contains(name), "{name}: {refused:?}");
        assert!(taker.record("own", "").is_some() && taker.record("x", "").is_none(), "{name}");
        commit(&mut taker, [put("own", "2")]);
    }
}
