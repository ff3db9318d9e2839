//! ST41: a clock that is set back while a store runs, or while it is down.

use prost_types::Timestamp;
use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine;
use xds_store::store::Event;

use super::leases::ended;
use super::nodes::HOUR;
use crate::driven::*;

/// How far the clock is set back: an hour, and a year.
const STEPS_BACK: [i64; 2] = [HOUR, 365 * 24 * HOUR];

/// A node whose clock shows ten years after 1970.
fn server() -> Server {
    let mut server = Server::node("a");
    server.now = 10 * 365 * 24 * HOUR;
    server
}

/// The clock is set back, while the process runs or while it is down.
fn set_back(server: &mut Server, by: i64, is_down: bool) {
    server.now -= by;
    if is_down {
        server.restart();
    }
    // The machine is called once a minute at least, and notices it then.
    server.step(Event::Due);
}

/// What happens to each of both steps, while the process runs and while it is down.
fn each(test: impl Fn(Server, i64, bool)) {
    for by in STEPS_BACK {
        [false, true].into_iter().for_each(|is_down| test(server(), by, is_down));
    }
}

fn until(name: &str, end: i64) -> proto::CommitRequest {
    let expires_at = Some(Timestamp { seconds: end / SECOND, nanos: 0 });
    let put = proto::Put { content: Some(content("1")), expires_at, ..Default::default() };
    of([change(name, "", proto::change::Act::Put(put))])
}

#[test]
fn st41_commits_are_kept_in_their_order_and_their_times_never_go_back() {
    each(|mut server, by, is_down| {
        for number in 1..=12 {
            let committed =
                server.commit(of([put("x", &number.to_string()), put(&format!("n{number}"), "1")]));
            assert_eq!(committed.unwrap().revision, number);
            if number % 4 == 0 {
                set_back(&mut server, by, is_down);
            }
            server.wait(SECOND);
        }
        server.restart();
        let times: Vec<_> = server.published.iter().map(|commit| commit.entry.time).collect();
        assert!(times.len() == 12 && times.is_sorted(), "{times:?}");
        assert_eq!((server.store.revision(), server.store.counts()), (12, (13, 0)));
        assert_eq!(server.record("x", "").unwrap().content.unwrap().payload, "12");
        check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
        // The clock is set right again.
        server.now += 4 * by;
        server.commit(of([put("x", "last")])).unwrap();
        assert_eq!(server.published.last().unwrap().entry.time, server.now);
    });
}

#[test]
fn st36_st41_st44_a_clock_that_is_wrong_for_a_moment_ends_no_date_and_forgets_no_history() {
    each(|mut server, by, is_down| {
        server.commit(until("dated", server.now + by / 4)).unwrap();
        server.commit(of([put("a", "1")])).unwrap();
        server.commit(of([put("a", "2")])).unwrap();
        for _ in 0..3 {
            set_back(&mut server, by, is_down);
            server.wait(SECOND);
            set_back(&mut server, -by, is_down);
            server.wait(SECOND);
        }
        assert_eq!((server.compact(None), ended(&server)), (0, Vec::new()), "{by} {is_down}");
        assert!(server.record("dated", "").is_some(), "{by} {is_down}");
        assert!(server.store.time() <= server.now + 120 * SECOND, "{by} {is_down}");
    });
}

#[test]
fn st37_st41_a_lease_lasts_its_time_after_the_clock_was_set_back_and_ends_within_twice_of_it() {
    each(|mut server, by, is_down| {
        server.commit(of([put_lease("left", "1", 30), put_lease("renewed", "1", 30)])).unwrap();
        server.wait(10 * SECOND);
        set_back(&mut server, by, is_down);
        for _ in 0..19 {
            server.wait(SECOND);
            assert_eq!(ended(&server), [], "{by} {is_down}");
        }
        // 29 s after it was made, or a restart began it anew.
        assert_eq!(server.outcome(of([touch("renewed")])), proto::Outcome::Touched);
        server.wait(29 * SECOND);
        assert!(server.record("renewed", "").is_some(), "{by} {is_down}");
        server.wait(40 * SECOND);
        assert_eq!(server.store.counts(), (0, 2), "{by} {is_down}");
        assert_eq!(server.code(of([touch("renewed")])), RefusalCode::NotFound);
    });
}

#[test]
fn st36_st41_a_date_comes_no_earlier_than_the_time_that_was_left_and_within_twice_of_it() {
    each(|mut server, by, is_down| {
        let end = server.now + 60 * SECOND;
        server.commit(until("dated", end)).unwrap();
        set_back(&mut server, by, is_down);
        server.wait(59 * SECOND);
        assert!(ended(&server).is_empty() && server.record("dated", "").is_some(), "{by} {is_down}");
        server.wait(62 * SECOND);
        let names: Vec<_> = ended(&server).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["dated"], "{by} {is_down}");
        // A date that the store has acted on is refused, and no record ends at once.
        let between = server.now + by / 2;
        assert_eq!(server.code(until("between", between)), RefusalCode::InvalidArgument);
        assert!(server.record("between", "").is_none());
    });
}

#[test]
fn st26_st44_st41_a_compaction_keeps_what_a_list_may_read_after_the_clock_was_set_back() {
    each(|mut server, by, is_down| {
        server.commit(of([put("a", "1"), put("gone", "1")])).unwrap();
        server.commit(of([put("a", "2")])).unwrap();
        server.commit(of([delete("gone")])).unwrap();
        set_back(&mut server, by, is_down);
        server.wait(299 * SECOND);
        assert_eq!((server.compact(None), server.compact(Some(3))), (0, 0), "{by} {is_down}");
        server.wait(302 * SECOND);
        assert_eq!(server.compact(Some(3)), 3, "{by} {is_down}");
        // The deletion is not forgotten with its commit (SR25): the next record of that name is another one.
        assert_eq!(server.state(&key("gone", "")).unwrap().lifecycle(), proto::State::Deleted);
        server.commit(of([put("gone", "2")])).unwrap();
        assert_eq!(server.record("gone", "").unwrap().incarnation, 2);
        server.restart();
        assert_eq!(server.record("a", "").unwrap().content.unwrap().payload, "2");
        check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
    });
}

#[test]
fn sr26_sr27_st41_a_deletion_is_kept_for_its_time_and_forgotten_after_it() {
    each(|mut server, by, is_down| {
        server.commit(of([put("gone", "1"), put("kept", "1")])).unwrap();
        server.commit(of([delete("gone")])).unwrap();
        set_back(&mut server, by, is_down);
        server.wait(23 * HOUR);
        server.compact(Some(2));
        assert_eq!(server.store.counts(), (1, 1), "{by} {is_down}");
        // 24 h of a store whose time goes on at half speed until the clock has caught up.
        server.wait(26 * HOUR);
        server.compact(Some(2));
        assert_eq!(server.store.counts(), (1, 0), "{by} {is_down}");
    });
}

#[test]
fn sr37_st41_the_later_commit_wins_at_all_nodes_although_its_clock_was_set_back() {
    each(|mut a, by, is_down| {
        let mut b = Server::node("b");
        b.now = a.now - by;
        a.commit(of([put("x", "of a"), put("gone", "1")])).unwrap();
        assert!(b.merge(a.entries_for(&b, 10)).is_empty());
        b.commit(of([put("x", "of b"), delete("gone")])).unwrap();
        set_back(&mut b, by, is_down);
        b.commit(of([put("y", "of b")])).unwrap();
        assert!(a.merge(b.entries_for(&a, 10)).is_empty());
        for node in [&mut a, &mut b] {
            node.restart();
            assert_eq!(node.record("x", "").unwrap().content.unwrap().payload, "of b", "{by} {is_down}");
            assert!(node.record("gone", "").is_none() && node.record("y", "").is_some(), "{by} {is_down}");
            check_store(&*node.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
        }
    });
}
