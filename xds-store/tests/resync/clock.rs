//! Snapshots of nodes whose clocks were set back (ST41).

use super::*;

const HOUR: i64 = 3600 * SECOND;

#[test]
fn sr20_sr22_st41_a_snapshot_loses_no_commit_and_revives_nothing_when_a_clock_was_set_back() {
    for by in [HOUR, 365 * 24 * HOUR] {
        for (of_a, of_b) in [(by, 0), (0, by), (by, by)] {
            let late = |id: &str| on(Server::node(id).engine, 2 * 365 * 24 * HOUR);
            let (mut a, mut b) = cut_off_as(late);
            a.now -= of_a;
            b.now -= of_b;
            commit(&mut a, [put("after", "of a")]);
            commit(&mut b, [put("unpulled", "of b")]);
            let before = (a.store.time(), b.store.time());
            // Twice as long, as the time goes on at half speed.
            a.wait(700 * SECOND);
            forget_all(&mut a);
            // SR21: A has forgotten a deletion that B lacks.
            b.resync(&a, true, "b2");
            commit(&mut b, [put("later", "of b")]);
            pull(&mut a, &b);
            let what = format!("{by} {of_a} {of_b}");
            for node in [&mut a, &mut b] {
                let found = ["both", "new", "after", "unpulled", "later", "gone"];
                let found = found.map(|name| payload(node, name));
                let expected = ["of a", "1", "of a", "of b", "of b"].map(|text| Some(text.to_owned()));
                assert_eq!(found[..5], expected, "{what}");
                assert_eq!(found[5], None, "{what}");
                check(node);
            }
            assert!(a.store.time() >= before.0 && b.store.time() >= before.1, "{what}");
        }
    }
}
