//! Types that end the main stream whenever it subscribes to them.

use super::fixture::{Fixture, UNIMPLEMENTED, shown, status, url};
use super::*;
use crate::client::Code;

/// Which of the types on a stream have a response before the server ends the stream.
#[derive(Debug, Clone, Copy)]
enum Manner {
    AnswersNone,
    AnswersTheOthers,
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|at| format!("t{at:02}")).collect()
}

/// Reconnects to a server that ends each stream with a culprit, until a stream stays open. Returns
/// how many streams ended.
fn settle(f: &mut Fixture, culprits: &[String], manner: Manner) -> usize {
    for ends in 0..1000 {
        f.open();
        loop {
            let askable = f.askable();
            let asked = askable.split_whitespace();
            let (bad, good): (Vec<&str>, Vec<&str>) = asked.partition(|of| culprits.iter().any(|c| c == of));
            if bad.is_empty() || matches!(manner, Manner::AnswersTheOthers) {
                f.respond(&good.join(" "));
            }
            if !bad.is_empty() {
                f.end(UNIMPLEMENTED);
                break;
            }
            // An answer may have allowed more.
            if f.askable() == askable {
                return ends;
            }
        }
    }
    panic!("it never stands");
}

fn rejected(f: &Fixture) -> Vec<String> {
    let rejected = f.health.states().filter(|(_, state)| matches!(state, SyncState::Rejected(..)));
    rejected.map(|(of, _)| of.message_name().to_owned()).collect()
}

#[test]
fn one_culprit_of_n_types_is_isolated_within_log2_n_plus_1_reconnects() {
    for n in 1..=40 {
        let names = names(n);
        for culprit in &names {
            for manner in [Manner::AnswersNone, Manner::AnswersTheOthers] {
                let mut f = Fixture::of(&names.join(" "));
                let reconnects = settle(&mut f, std::slice::from_ref(culprit), manner);
                let limit = n.ilog2() as usize + 1;
                assert!(reconnects <= limit, "{culprit} of {n}: {reconnects} > {limit}, {manner:?}");
                assert_eq!(rejected(&f), std::slice::from_ref(culprit));
                assert!(f.health.is_init());
                let confirmed = |of: &String| matches!(f.health.state(&url(of)), Some(SyncState::Synced(_)));
                assert!(names.iter().filter(|of| *of != culprit).all(confirmed));
            }
        }
    }
}

/// Regression: a proxy waited up to two minutes for each stream of a search among types without resources, although
/// the server had kept each of the streams for a while.
#[test]
fn g4b_a_server_that_keeps_a_stream_without_a_response_works() {
    let mut f = Fixture::of(&names(8).join(" "));
    for end in 0..7 {
        f.open();
        f.pass(16);
        f.end(UNIMPLEMENTED);
        assert!(f.health.explains_end(), "end {end}");
    }
}

#[test]
fn several_culprits_are_found_one_after_the_other_and_nobody_else() {
    fn prop(n: u8, which: u32, answers: bool) {
        let names = names(usize::from(n % 20) + 1);
        let is_culprit = |(at, _): &(usize, &String)| which & (1 << at) != 0;
        let culprits: Vec<_> =
            names.iter().enumerate().filter(is_culprit).map(|(_, of)| of.clone()).collect();
        let mut f = Fixture::of(&names.join(" "));
        let manner = if answers { Manner::AnswersTheOthers } else { Manner::AnswersNone };
        let reconnects = settle(&mut f, &culprits, manner);
        assert_eq!(rejected(&f), culprits);
        assert!(reconnects <= culprits.len() * (names.len().ilog2() as usize + 1));
    }
    quickcheck::QuickCheck::new().tests(1000).quickcheck(prop as fn(u8, u32, bool));
}

#[test]
fn the_next_streams_ask_what_answered_and_half_of_the_suspects() {
    let mut f = Fixture::of("a b c d e");
    f.open();
    f.respond("e");
    f.end(Code::NOT_FOUND);
    assert_eq!(f.askable(), "a b e");
    f.open();
    // The half with responses is no suspect any more, and the same stream subscribes to half of the
    // others.
    assert_eq!(f.respond("a"), "");
    assert_eq!(f.askable(), "a b e");
    f.respond("b");
    assert_eq!(f.askable(), "a b c e");
    f.end(Code::NOT_FOUND);
    assert_eq!(f.state("c"), "rejected 2 NOT_FOUND");
    // Of d nothing is known yet.
    assert_eq!(f.askable(), "a b d e");
    f.open();
    assert_eq!(f.respond("a b d e"), "3: a b d e !c");
}

#[test]
fn the_codes_by_which_servers_refuse_a_type_make_suspects_and_others_do_not() {
    for code in (0..=16).map(Code) {
        let mut f = Fixture::of("a b");
        f.open();
        f.end(code);
        let is_blamed = [UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::NOT_FOUND].contains(&code);
        assert_eq!(f.askable(), if is_blamed { "a" } else { "a b" }, "{code}");
    }
    let mut f = Fixture::of("a b");
    f.open();
    f.health.on_end(f.now, None);
    assert_eq!(f.askable(), "a b");
}

#[test]
fn a_new_type_that_ends_a_stream_on_which_all_others_answered_is_known_at_once() {
    let mut f = Fixture::of("a b c");
    f.open();
    f.respond("a b c");
    f.request("d");
    assert_eq!(f.end(Code::INVALID_ARGUMENT), "!d");
    assert_eq!(f.askable(), "a b c");
    f.open();
    assert_eq!(f.respond("a b c"), "2: a b c !d");
}

#[test]
fn a_type_that_was_not_asked_or_did_answer_is_no_suspect() {
    let mut f = Fixture::of("a b");
    f.health.on_open(f.now);
    f.health.on_subscribe(f.now, &url("a"), false);
    f.health.on_response(&url("a"));
    f.end(UNIMPLEMENTED);
    assert_eq!((rejected(&f), f.askable().as_str()), (vec![], "a b"));
}

#[test]
fn a_type_that_was_silent_for_long_is_a_suspect_only_if_there_is_no_other() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    assert_eq!(f.pass(15), "1: a ?b");
    f.request("c");
    assert_eq!(f.end(UNIMPLEMENTED), "!c");
    f.open();
    f.respond("a");
    f.pass(15);
    assert_eq!(f.end(UNIMPLEMENTED), "!b");
}

#[test]
fn a_suspect_that_is_silent_is_pending_and_no_suspect_any_more() {
    let mut f = Fixture::of("a b c d");
    f.open();
    f.end(UNIMPLEMENTED);
    f.open();
    assert_eq!(f.askable(), "a b");
    assert_eq!(f.pass(15), "2: ?a ?b ?c ?d", "a search does not keep a generation from its Init");
    assert_eq!(f.askable(), "a b c", "who was not asked could not answer");
    assert_eq!(f.respond("a c"), "a, c");
    assert_eq!(f.end(UNIMPLEMENTED), "!d");
    assert_eq!(f.state("b"), "requested");
}

#[test]
fn a_suspect_that_is_rejected_by_an_answer_is_no_suspect_any_more() {
    let mut f = Fixture::of("a b");
    f.open();
    f.end(UNIMPLEMENTED);
    f.open();
    assert_eq!(f.reject("a"), "");
    assert_eq!(f.respond("b"), "2: b !a");
}

#[test]
fn what_is_requested_during_a_search_waits_for_its_end() {
    let mut f = Fixture::of("a b");
    f.open();
    f.end(UNIMPLEMENTED);
    f.request("c");
    f.open();
    assert_eq!(f.askable(), "a");
    f.respond("a");
    assert_eq!(f.askable(), "a b");
    f.respond("b");
    assert_eq!(f.askable(), "a b c");
}

#[test]
fn the_release_of_a_suspect_goes_on_with_the_others() {
    let mut f = Fixture::of("a b c");
    f.open();
    f.end(UNIMPLEMENTED);
    assert_eq!(f.askable(), "a");
    f.health.release(&url("a"));
    assert_eq!(f.askable(), "b");
    f.health.release(&url("b"));
    assert_eq!(f.askable(), "c");
}

#[test]
fn a_loss_during_a_search_changes_nothing_in_it() {
    let mut f = Fixture::of("a b c d");
    f.open();
    f.end(UNIMPLEMENTED);
    f.open();
    f.end(Code::UNAVAILABLE);
    assert_eq!(f.askable(), "a b");
}

#[test]
fn with_every_type_isolated_init_is_told_without_a_stream() {
    let mut f = Fixture::of("a");
    f.open();
    assert_eq!(f.end(UNIMPLEMENTED), "1: !a");
    assert!(f.health.is_init());
    assert_eq!(f.askable(), "", "the main stream is not wanted");
}

fn isolated() -> Fixture {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    f.end(UNIMPLEMENTED);
    f.open();
    assert_eq!(f.respond("a"), "2: a !b");
    f
}

#[test]
fn an_isolated_type_is_probed_with_backoff_and_stays_away_from_the_main_stream() {
    let mut f = isolated();
    let mut probes = Vec::new();
    for _ in 0..7 {
        let at = f.health.probe_at(&url("b")).unwrap();
        probes.push((at - f.now).as_secs());
        f.now = at;
        assert_eq!(shown(&f.health.on_probe(at, &url("b"), Err(status(Code::UNAVAILABLE)))), "");
    }
    assert_eq!(probes, [30, 60, 120, 240, 480, 600, 600]);
    assert_eq!(f.state("b"), "rejected 2 UNIMPLEMENTED");
    assert_eq!(f.askable(), "a");
    assert_eq!(f.health.probe_at(&url("a")), None);
}

#[test]
fn a_probe_that_succeeds_brings_the_type_back_at_once() {
    let mut f = isolated();
    assert_eq!(shown(&f.health.on_probe(f.now, &url("b"), Ok(()))), "?b");
    f.ask();
    assert_eq!(f.respond("b"), "b");
    assert_eq!(f.health.probe_at(&url("b")), None);
}

#[test]
fn a_type_that_ends_the_main_stream_though_its_probe_succeeded_backs_off_further() {
    let mut f = isolated();
    f.health.on_probe(f.now, &url("b"), Ok(()));
    f.ask();
    assert_eq!(f.end(UNIMPLEMENTED), "!b");
    assert_eq!(f.health.probe_at(&url("b")), Some(f.now + Duration::from_secs(60)));
}

#[test]
fn a_type_that_comes_back_during_a_search_waits_for_its_end() {
    let mut f = isolated();
    f.request("c");
    f.request("d");
    f.end(UNIMPLEMENTED);
    assert_eq!(f.askable(), "a c");
    assert_eq!(shown(&f.health.on_probe(f.now, &url("b"), Ok(()))), "?b");
    assert_eq!(f.askable(), "a c");
    f.open();
    f.respond("a c d");
    assert_eq!(f.respond("b"), "3: a b c d");
}

#[test]
fn after_another_loss_an_isolated_type_is_probed_when_the_stream_is_back() {
    let mut f = isolated();
    assert_eq!(
        f.health.probe_at(&url("b")),
        Some(Duration::from_secs(30)),
        "not when it was isolated itself"
    );
    f.now = Duration::from_secs(5);
    f.end(Code::UNAVAILABLE);
    f.open();
    assert_eq!(f.health.probe_at(&url("b")), Some(f.now));
    // Without it the generation is whole.
    assert_eq!(f.respond("a"), "3: a !b");
}

#[test]
fn an_outage_after_a_search_ended_the_stream_counts_as_a_loss() {
    let mut f = Fixture::of("a b");
    f.open();
    f.respond("a");
    f.end(UNIMPLEMENTED);
    // The next attempt fails.
    f.end(Code::UNAVAILABLE);
    f.open();
    assert_eq!(f.health.probe_at(&url("b")), Some(f.now));
}

#[test]
fn a_response_on_the_main_stream_says_nothing_of_an_isolated_type() {
    let mut f = isolated();
    assert_eq!((f.respond("b").as_str(), f.reject("b").as_str()), ("", ""));
    assert!(f.health.probe_at(&url("b")).is_some());
}
