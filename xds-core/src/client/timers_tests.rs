//! Timers, backoff and reconnects (C5, C7, C14, P5).

use super::fixture::Fixture;
use super::*;

#[test]
fn c7_p5_1_p5_2_backoff_grows_by_1_6_up_to_120_s_within_a_fifth_and_ends_with_a_response() {
    for (jitter, share) in [(0, 0.8), (u32::MAX / 2, 1.0), (u32::MAX, 1.2)] {
        let mut f = Fixture::of(&[(Protocol::Sotw, ErrorPolicy::default())]);
        f.watch("CDS", "a");
        let mut base: f64 = 1.0;
        for _ in 0..15 {
            f.client.on_connecting(0);
            f.client.on_end(Duration::ZERO, 0, StreamEnd::lost("down", jitter));
            let delay = f.client.connect_at(0).expect("it is wanted").as_secs_f64();
            assert!((delay - base * share).abs() < 1e-6, "{delay} is not {base} x {share}");
            base = (base * 1.6).min(120.0);
        }
        assert!((base - 120.0).abs() < 1e-9);
        f.open(0);
        f.sent(0);
        f.get("CDS v1 n1: a=1");
        assert_eq!(f.end(0), "");
        f.client.on_connecting(0);
        f.client.on_end(Duration::ZERO, 0, StreamEnd::lost("down", jitter));
        let delay = f.client.connect_at(0).expect("it is wanted").as_secs_f64();
        assert!((delay - share).abs() < 1e-6, "P5.2: it begins anew");
    }
}

#[test]
fn c7_p4_4_p5_1_a_stream_that_was_answered_may_end() {
    let mut f = Fixture::new(Protocol::Delta);
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.get("EDS v1 n1: a=1");
    assert_eq!((f.end(0).as_str(), f.view(a).as_str()), ("", "1"));
    // A server that answers and then ends each stream is not flooded with new streams.
    assert_eq!(f.client.connect_at(0), Some(Duration::from_secs(1)));
}

#[test]
fn p5_3_a_failure_names_the_server_and_the_reason() {
    let mut f = Fixture::of(&[(Protocol::Sotw, ErrorPolicy::default())]);
    let a = f.watch("CDS", "a");
    assert_eq!(f.fail(0), "a: UNAVAILABLE");
    let error = f.client.view(a).error.expect("it failed");
    assert_eq!(&*error.message, "s0 cannot be reached: gone");
    assert!(!f.client.is_connected(0));
}

#[test]
fn c5_p5_4_the_timer_starts_when_the_request_is_written() {
    let mut f = Fixture::of(&[(Protocol::Sotw, ErrorPolicy::default())]);
    f.watch("CDS", "a");
    f.client.on_connecting(0);
    assert_eq!((f.pass(20), f.client.next_deadline()), (String::new(), None));
    f.open(0);
    assert_eq!(f.client.next_deadline(), None);
    f.sent(0);
    assert_eq!(f.client.next_deadline(), Some(f.now + Duration::from_secs(15)));
}

#[test]
fn c5_p5_5_a_new_stream_starts_full_timers_for_what_is_not_cached() {
    let mut f = Fixture::new(Protocol::Sotw);
    f.watch("CDS", "a");
    f.watch("CDS", "b");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.pass(10);
    f.end(0);
    assert_eq!(f.pass(10), "", "it stopped with the stream");
    f.open(0);
    assert_eq!(f.sent(0), "node CDS [a b] v1");
    assert_eq!(f.pass(14), "");
    assert_eq!(f.pass(1), "b: NOT_FOUND");
}

/// Regression: a wildcard has no copy, so it counted as absent after each reconnect.
#[test]
fn p5_5_a_wildcard_that_is_known_needs_no_timer() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        let all = f.watch("CDS", "*");
        f.sent(0);
        assert_eq!(f.get("CDS v1 n1: a=1"), "*/a: 1\n*: -");
        f.end(0);
        f.pass(1);
        f.open(0);
        f.sent(0);
        assert_eq!((f.pass(60).as_str(), f.view(all).as_str()), ("", "-"));
    }
}

#[test]
fn c5_p5_6_the_timer_ends_with_the_resource() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        let a = f.watch("EDS", "a");
        f.sent(0);
        f.pass(14);
        f.get("EDS v1 n1: a=1");
        assert_eq!((f.pass(60).as_str(), f.view(a).as_str()), ("", "1"));
    }
}

/// Regression: watchers were notified of the same absence again after each reconnect.
#[test]
fn c5_p1_19_what_does_not_come_again_is_no_news() {
    let mut f = Fixture::new(Protocol::Sotw);
    f.watch("EDS", "a");
    f.watch("EDS", "b");
    f.sent(0);
    f.get("EDS v1 n1: b=1");
    assert_eq!(f.pass(15), "a: NOT_FOUND");
    f.end(0);
    f.open(0);
    f.sent(0);
    assert_eq!(f.pass(15), "");
}

#[test]
fn d21_a_stream_on_which_nothing_is_to_be_said_counts_as_working_in_the_end() {
    let mut f = Fixture::new(Protocol::Delta);
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.get("EDS v1 n1: a=1");
    f.end(0);
    assert_eq!(f.fail(0), "a: 1 beside UNAVAILABLE");
    f.open(0);
    assert_eq!(f.sent(0), "node EDS +a (a:?)");
    assert_eq!(f.pass(15), "a: 1");
    assert_eq!(f.view(a), "1");
}
