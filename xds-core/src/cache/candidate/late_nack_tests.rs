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
