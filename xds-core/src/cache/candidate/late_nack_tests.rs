//! A client ACKs what it tries, and rejects it later (S8d).

use super::tests::named;
use super::*;
use crate::Outcome;
use crate::server::Verdict;
use crate::server::fixture::{Delta, Sotw, commit, transaction};

fn begin(cache: &Arc<Cache>, text: &str) -> Candidate {
    cache.begin(transaction(text), &"id=a".parse().unwrap()).unwrap()
}

fn delta(cache: &Arc<Cache>, type_name: &str, names: &str) -> Delta {
    let mut client = Delta::new(cache);
    named(&client.watch, "a");
    client.ask(type_name, names);
    client.sent();
    client.ack(type_name, "1");
    assert_eq!(client.sent(), "");
    client
}

fn sotw(cache: &Arc<Cache>, type_name: &str, names: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    named(&client.watch, "a");
    client.ask(type_name, names, "");
    client.sent();
    client.ask(type_name, names, "1");
    assert_eq!(client.sent(), "");
    client
}

/// `acked`, `splitting`, or the names that the client rejected.
fn outcome(candidate: &Candidate) -> String {
    let [result] = &candidate.delivery().results()[..] else { panic!("one client") };
    match &result.outcome {
        Outcome::Nacked { detail, names, .. } => format!("{detail}: {}", names.join(" ")),
        outcome => format!("{outcome:?}").to_lowercase(),
    }
}

#[test]
fn s8d_delta_a_nack_takes_the_ack_of_its_nonce_back() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1");
    let mut client = delta(&cache, "CDS", "*");
    let candidate = begin(&cache, "CDS c=2");
    assert_eq!(client.sent(), "n2 CDS c=2");
    client.ack("CDS", "2");
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "acked".into()));
    assert!(matches!(client.nack("CDS", "2"), Some(Verdict::Nacked { is_repeat: false, .. })));
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "bad: c".into()));
    // A further answer is none, as after a NACK that came first.
    assert_eq!(client.nack("CDS", "2"), None);
    assert_eq!(client.ack("CDS", "2"), None);
    assert_eq!(outcome(&candidate), "bad: c");
    candidate.end();
    assert_eq!(client.sent(), "n3 CDS c=1");
}

#[test]
fn s8d_sotw_a_nack_takes_the_ack_of_its_nonce_back() {
    for (type_name, names, sent, again) in
        [("CDS", "*", "n2 CDS c=2 d=1", "n3 CDS c=2 d=1"), ("EDS", "c d", "n2 EDS c=2", "")]
    {
        let cache = Cache::new();
        commit(&cache, &format!("{type_name} c=1 d=1"));
        let mut client = sotw(&cache, type_name, names);
        let candidate = begin(&cache, &format!("{type_name} c=2"));
        assert_eq!(client.sent(), sent);
        client.ask(type_name, names, "2");
        assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "acked".into()));
        // A request with the same nonce that changes the subscription is no NACK.
        client.ask(type_name, &format!("{names} other"), "2");
        assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "acked".into()));
        assert!(matches!(client.nack(type_name, "2"), Some(Verdict::Nacked { .. })), "{type_name}");
        // S6e: a full state that changed something is repeated once, as after a NACK that came first.
        assert_eq!(client.sent(), again);
        client.nack(type_name, "3");
        assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "bad: c".into()), "{type_name}");
    }
}

/// As after a NACK that came first: the parts show what is bad.
#[test]
fn s8d_s6c_what_was_acked_among_others_is_sent_again_in_parts() {
    let cache = Cache::new();
    commit(&cache, "EDS c=1 d=1");
    let mut client = delta(&cache, "EDS", "c d");
    let candidate = begin(&cache, "EDS c=2 d=2");
    assert_eq!(client.sent(), "n2 EDS c=2 d=2");
    client.ack("EDS", "2");
    client.nack("EDS", "2");
    assert_eq!((client.sent(), outcome(&candidate)), ("n3 EDS c=2".into(), "splitting".into()));
    client.ack("EDS", "3");
    assert_eq!((client.sent(), outcome(&candidate)), ("n4 EDS d=2".into(), "splitting".into()));
    client.nack("EDS", "4");
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "bad: d".into()));
    // Also a part may be rejected after its ACK.
    client.nack("EDS", "3");
    client.sent();
    assert_eq!(outcome(&candidate), "bad: c d");
}

/// What a later response has is left to the answer of that.
#[test]
fn s8d_a_later_response_with_the_name_decides() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; EDS c=1");
    let mut client = delta(&cache, "EDS", "c d");
    let candidate = begin(&cache, "EDS c=2 d=2");
    assert_eq!(client.sent(), "n2 EDS c=2 d=2");
    client.ack("EDS", "2");
    client.ask("EDS", "-c");
    client.sent();
    client.ask("EDS", "c");
    assert_eq!(client.sent(), "n3 EDS c=2");
    client.ack("EDS", "3");
    client.nack("EDS", "2");
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "bad: d".into()));
}

/// The answer to what all clients have is final, and so is that to what came before the candidate.
#[test]
fn s8d_without_a_candidate_the_first_answer_counts() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; EDS c=1");
    let mut client = delta(&cache, "CDS", "*");
    assert_eq!(client.nack("CDS", "1"), None);
    let candidate = begin(&cache, "CDS c=2");
    assert_eq!(client.sent(), "n2 CDS c=2");
    assert_eq!(client.nack("CDS", "1"), None);
    client.ack("CDS", "2");
    candidate.promote().unwrap();
    // It leaves the candidate, is woken, and sees the stable state.
    assert_eq!([client.sent(), client.sent()], ["", ""]);
    assert_eq!(client.nack("CDS", "2"), None);
    assert_eq!(client.sent(), "");
}

/// A client that connects while the candidate is tried.
#[test]
fn s8d_the_first_responses_of_a_stream_may_be_rejected_late_too() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; EDS c=1");
    let _first = delta(&cache, "CDS", "*");
    let candidate = begin(&cache, "CDS c=2; EDS c=2");
    drop(_first);
    let mut client = delta(&cache, "CDS", "*");
    client.ask("EDS", "c");
    assert_eq!(client.sent(), "n2 EDS c=2");
    client.ack("EDS", "2");
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "acked".into()));
    client.nack("CDS", "1");
    assert_eq!((client.sent(), outcome(&candidate)), (String::new(), "bad: c".into()));
    client.nack("EDS", "2");
    assert_eq!(client.sent(), "");
}

/// The server remembers the newest responses only.
#[test]
fn s8d_the_newest_16_acks_of_a_type_can_be_taken_back() {
    let cache = Cache::new();
    commit(&cache, "EDS c=1");
    let mut client = delta(&cache, "EDS", "*");
    let _candidate = begin(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n2 EDS c=2");
    client.ack("EDS", "2");
    for nonce in 3..=18 {
        commit(&cache, &format!("EDS other{nonce}=1"));
        client.sent();
        client.ack("EDS", &nonce.to_string());
    }
    client.sent();
    assert_eq!(client.nack("EDS", "2"), None);
    assert!(client.nack("EDS", "3").is_some());
}
