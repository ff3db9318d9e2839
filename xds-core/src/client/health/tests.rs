//! Generations, Init and rejections that are answered.

use super::fixture::{Fixture, UNIMPLEMENTED, shown, status, url};
use super::*;
use crate::client::Code;

#[test]
fn init_is_told_once_when_each_type_has_its_first_response() {
    let mut f = Fixture::of("a b");
    assert_eq!(f.open(), "");
    assert_eq!(f.respond("a a"), "");
    assert!(!f.health.is_init());
    assert_eq!(f.respond("b"), "1: a b");
    assert!(f.health.is_init());
    assert_eq!(f.respond("a b"), "");
    assert_eq!(f.pass(60), "");
}

#[test]
fn g4_init_lists_a_rejected_type_with_its_original_status_and_the_others_are_healthy() {
    let mut f = Fixture::of("a b");
    f.open();
    assert_eq!(f.respond("a"), "");
    let original = Status { code: UNIMPLEMENTED, message: "what is a b?".into() };
    let events = f.health.on_rejected(&url("b"), original.clone());
    let [Event::Init(init)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(init.rejected, BTreeMap::from([(url("b"), original.clone())]));
    assert_eq!(init.confirmed, BTreeSet::from([url("a")]));
    assert!(init.pending.is_empty());
    // A later status of the same type does not replace the first one.
    assert_eq!(f.reject("b"), "");
    let SyncState::Rejected(_, status) = f.health.state(&url("b")).unwrap() else { panic!("rejected") };
    assert_eq!(*status, original);
}

#[test]
fn a_silent_type_is_pending_when_its_timer_ends_and_never_rejected() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(f.pass(14), "");
    assert_eq!(f.pass(1), "1: a ?b");
    assert_eq!(f.pass(3600), "");
    assert_eq!(f.state("b"), "requested");
    assert_eq!(f.askable(), "a b");
}

#[test]
fn a_pending_type_is_reclassified_by_a_response_or_a_rejection() {
    let mut f = Fixture::of("a b c");
    f.open();
    assert_eq!(f.pass(15), "1: ?a ?b ?c");
    assert_eq!(f.respond("a"), "a");
    assert_eq!(f.reject("b"), "!b");
    assert_eq!([f.state("a"), f.state("b")], ["synced 1", "rejected 1 UNIMPLEMENTED"]);
}

#[test]
fn the_newest_word_of_the_upstream_counts() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(f.reject("b"), "1: a !b");
    assert_eq!(f.respond("b"), "b");
    assert_eq!(f.reject("a"), "!a");
}

#[test]
fn a_type_requested_after_init_is_pending_and_told_when_it_is_known() {
    let mut f = Fixture::of("a");
    f.open();
    assert_eq!(f.respond("a"), "1: a");
    f.request("b");
    f.request("c");
    assert_eq!(f.state("b"), "requested");
    assert_eq!(f.respond("b"), "b");
    assert_eq!(f.pass(15), "", "it is pending as it was");
    assert_eq!(f.reject("c"), "!c");
}

#[test]
fn the_time_of_silence_begins_when_the_type_is_asked() {
    let mut health = Health::new(Duration::from_secs(10));
    health.request(Duration::ZERO, &url("a"));
    assert_eq!(health.next_deadline(), None, "timers run only on a stream");
    health.on_open(Duration::from_secs(1));
    health.on_subscribe(Duration::from_secs(4), &url("a"), false);
    assert_eq!(health.next_deadline(), Some(Duration::from_secs(14)));
    health.on_end(Duration::from_secs(5), None);
    assert_eq!(health.next_deadline(), None);
}

#[test]
fn without_a_requested_type_there_is_no_init_and_nothing_to_ask() {
    let mut f = Fixture::default();
    assert_eq!((f.open().as_str(), f.pass(60).as_str(), f.askable().as_str()), ("", "", ""));
    assert!(!f.health.is_init());
    f.request("a");
    assert_eq!(f.respond("a"), "1: a");
}

#[test]
#[should_panic(expected = "which it may not")]
fn asking_for_what_is_not_requested_breaks_an_invariant() {
    let mut f = Fixture::of("a");
    f.open();
    f.health.on_subscribe(f.now, &url("b"), false);
}

#[test]
fn the_release_of_the_last_type_that_kept_silent_ends_the_wait() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(shown(&f.health.release(&url("b"))), "1: a");
    assert_eq!((f.state("b").as_str(), f.respond("b").as_str()), ("-", ""));
    assert_eq!(shown(&f.health.release(&url("a"))), "");
}

#[test]
fn a_new_stream_is_a_new_generation_that_is_built_aside_of_the_one_before() {
    let mut f = Fixture::of("a b");
    f.open();
    assert_eq!(f.respond("a b"), "1: a b");
    f.end(Code::UNAVAILABLE);
    assert!(f.health.is_init(), "until there is a stream nothing is built");
    assert_eq!(f.open(), "");
    assert!(!f.health.is_init());
    assert_eq!([f.state("a"), f.state("b")], ["stale 1", "stale 1"]);
    assert_eq!(f.respond("a"), "");
    assert_eq!([f.state("a"), f.state("b")], ["synced 2", "stale 1"]);
    assert_eq!(f.pass(15), "2: a ?b");
    f.end(Code::UNAVAILABLE);
    f.open();
    assert_eq!([f.state("a"), f.state("b")], ["stale 2", "stale 1"]);
}

#[test]
fn the_rejected_list_is_of_one_generation_and_learnt_anew() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(f.reject("b"), "1: a !b");
    assert_eq!(f.askable(), "a");
    f.end(Code::UNAVAILABLE);
    assert_eq!(f.askable(), "a b", "the next stream may be to an upgraded server");
    f.open();
    assert_eq!(f.state("b"), "requested");
    assert_eq!(f.respond("a b"), "2: a b");
}

#[test]
fn with_every_type_rejected_the_next_stream_is_still_wanted() {
    let mut f = Fixture::of("a");
    f.open();
    assert_eq!(f.reject("a"), "1: !a");
    f.end(Code::UNAVAILABLE);
    assert_eq!(f.askable(), "a");
}

#[test]
fn a_stream_that_ends_before_init_leaves_the_generation_untold() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(f.end(Code::UNAVAILABLE), "");
    assert_eq!(shown(&f.health.release(&url("b"))), "", "there is no stream of which to tell");
    f.open();
    assert_eq!(f.respond("a"), "2: a");
}

#[test]
fn what_comes_for_a_stream_that_ended_changes_nothing() {
    let mut f = Fixture::of("a b");
    f.open();
    f.end(Code::UNAVAILABLE);
    assert_eq!((f.respond("a").as_str(), f.reject("b").as_str()), ("", ""));
    assert_eq!([f.state("a"), f.state("b")], ["requested", "requested"]);
}

/// Whatever happens, each requested type is in exactly one list of each Init, generations only
/// grow, and an Init comes in bounded time. The machine itself asserts its invariants in each step.
#[test]
fn whatever_happens_a_type_is_in_one_list_of_an_init() {
    fn prop(steps: Vec<(u8, u8)>) {
        let mut f = Fixture::default();
        let mut last = Generation::ZERO;
        for (step, of) in steps {
            let of = url(["a", "b", "c", "d", "e"][usize::from(of % 5)]);
            let events = match step % 10 {
                0 | 1 => {
                    f.health.request(f.now, &of);
                    Vec::new()
                }
                2 => f.health.release(&of),
                3 | 4 => f.health.on_open(f.now),
                5 | 6 => f.health.on_response(&of),
                7 => f.health.on_rejected(&of, status(UNIMPLEMENTED)),
                8 => f.health.on_end(f.now, Some(status(Code::INVALID_ARGUMENT))),
                _ => f.health.on_probe(
                    f.now,
                    &of,
                    if step < 128 { Ok(()) } else { Err(status(UNIMPLEMENTED)) },
                ),
            };
            f.ask();
            f.now += Duration::from_secs(1);
            for event in events {
                let Event::Init(init) = event else { continue };
                assert!(init.generation > last);
                last = init.generation;
                let listed = init.confirmed.iter().chain(init.rejected.keys()).chain(&init.pending);
                let mut listed: Vec<_> = listed.cloned().collect();
                listed.sort();
                let requested: Vec<_> = f.health.states().map(|(of, _)| of.clone()).collect();
                assert!(!requested.is_empty());
                assert_eq!(listed, requested);
            }
        }
        let is_open = f.health.to_subscribe().next().is_some() || f.health.next_deadline().is_some();
        f.pass(60);
        assert!(!is_open || f.health.is_init());
    }
    quickcheck::QuickCheck::new().tests(2000).quickcheck(prop as fn(Vec<(u8, u8)>));
}

/// SotW: a server that has nothing new sends nothing, so nobody waits for it.
#[test]
fn a_stream_that_begins_with_versions_is_known_within_a_second() {
    let (now, second) = (Duration::ZERO, Duration::from_secs(1));
    let mut health = Health::default();
    for of in ["a", "b"] {
        health.request(now, &url(of));
    }
    health.on_open(now);
    for of in ["a", "b"] {
        health.on_subscribe(now, &url(of), false);
        health.on_response(&url(of));
    }
    health.on_end(now, None);
    health.on_open(now);
    for of in ["a", "b"] {
        health.on_subscribe(now, &url(of), true);
    }
    assert!(health.on_response(&url("a")).is_empty(), "the other one may have news");
    assert!(health.next_deadline().is_some_and(|at| at < second));
    let events = health.on_timeout(second);
    let [Event::Init(init)] = &events[..] else { panic!("{events:?}") };
    assert!(init.confirmed.contains(&url("a")) && init.pending.contains(&url("b")), "{init:?}");
    assert!(health.state(&url("b")).unwrap().is_readable(), "what it has stays in use");
}

#[test]
fn g4b_a_type_that_is_pending_for_lack_of_news_is_a_suspect_until_the_resource_timeout() {
    for (after, is_suspect) in [(2, true), (16, false)] {
        let mut f = Fixture::of("a b");
        f.health.on_open(f.now);
        f.health.on_subscribe(f.now, &url("a"), true);
        f.health.on_subscribe(f.now, &url("b"), true);
        assert_eq!(f.pass(1), "1: ?a ?b");
        f.pass(after);
        f.request("c");
        assert_eq!(f.end(UNIMPLEMENTED), if is_suspect { "" } else { "!c" });
        assert_eq!(f.health.is_searching(), is_suspect);
    }
}

#[test]
fn g4b_the_statuses_that_mean_a_type_are_those_of_the_table() {
    let means_a_type = |code| Status { code: Code(code), message: "".into() }.may_mean_a_type();
    let codes: Vec<_> = (0..=16).filter(|code| means_a_type(*code)).collect();
    assert_eq!(codes, [3, 5, 12], "INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED");
}
