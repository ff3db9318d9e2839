//! A candidate is tried, widened, promoted and ended. The server removes nothing from a client that subscribes to
//! `*` and should have it (D16, S25).

use super::*;
use crate::server::fixture::wildcard::{Client, Wildcard};
use crate::server::fixture::{commit, transaction};

/// Of both types.
fn of_both(text: &str) -> String {
    format!("CDS {text}; X {text}")
}

const STABLE: [&str; 3] = ["a=1", "b=1", "k=1"];
const TRIED: [&str; 3] = ["a=2", "b=1", "m=1"];

#[test]
fn d16_s25_no_wildcard_loses_anything_when_a_candidate_begins_widens_and_is_promoted_or_ends() {
    for is_promoted in [true, false] {
        let cache = Cache::new();
        commit(&cache, &of_both("a=1 b=1 k=1"));
        let mut clients: Vec<(bool, Wildcard)> = Vec::new();
        let connect = |clients: &mut Vec<(bool, Wildcard)>| {
            for (id, is_first) in [("a", false), ("b", true)] {
                clients.extend(Wildcard::all(&cache, id).into_iter().map(|client| (is_first, client)));
            }
        };
        let check = |clients: &mut Vec<(bool, Wildcard)>, keeps: &[&str], of: [&[&str]; 2], step: &str| {
            for (at, (is_first, client)) in clients.iter_mut().enumerate() {
                let what = format!("{step}, promoted: {is_promoted}, client {at}, first: {is_first}");
                client.check(keeps, of[usize::from(*is_first)], &what);
            }
        };
        connect(&mut clients);
        check(&mut clients, &["a", "b", "k"], [&STABLE, &STABLE], "before");
        let mut candidate =
            cache.begin(transaction(&of_both("a=2 m=1 -k")), &"id=b".parse().unwrap()).unwrap();
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&STABLE, &TRIED], "begun");
        candidate.widen(&Audience::Percent(100)).unwrap();
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&TRIED, &TRIED], "widened");
        let after = if is_promoted {
            candidate.promote().unwrap();
            TRIED
        } else {
            candidate.end();
            STABLE
        };
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&after, &after], "after");
        commit(&cache, &of_both("-b"));
        let after: Vec<_> = after.into_iter().filter(|word| *word != "b=1").collect();
        check(&mut clients, &["a"], [&after, &after], "a later removal");
    }
}

#[test]
fn g4_s37_a_candidate_does_not_answer_a_wildcard_that_cannot_be_answered() {
    for status in ["", " !*/14", " !*/12"] {
        let cache = Cache::on_demand();
        commit(&cache, &of_both(&format!("a=1{status}")));
        let mut clients: Vec<_> = ["a", "b"].into_iter().flat_map(|id| Wildcard::all(&cache, id)).collect();
        let silent = |clients: &mut Vec<Wildcard>, step: &str| {
            for (at, client) in clients.iter_mut().enumerate() {
                let sent = client.sent();
                let is_full = client.type_name == "CDS" && matches!(client.client, Client::Sotw(_));
                let what = format!("{status:?} {step}, client {at}: {sent}");
                assert!(!is_full || sent.is_empty(), "{what}");
                for line in sent.split("; ").filter(|line| !line.is_empty()) {
                    let says_so = status.is_empty() || line.contains("!\"*\"(");
                    assert!(says_so && !line.contains(" -"), "{what}");
                    client.apply(line, &[], &what);
                }
            }
        };
        silent(&mut clients, "before");
        let mut candidate = cache.begin(transaction(&of_both("a=2 m=1")), &"id=b".parse().unwrap()).unwrap();
        clients.extend(Wildcard::all(&cache, "b"));
        silent(&mut clients, "begun");
        candidate.widen(&Audience::Percent(100)).unwrap();
        silent(&mut clients, "widened");
        candidate.end();
        silent(&mut clients, "ended");
        // The source answers: now it is known what is gone.
        commit(&cache, &of_both("!*"));
        for (at, client) in clients.iter_mut().enumerate() {
            client.check(&["a"], &["a=1"], &format!("{status:?} answered, client {at}"));
        }
    }
}

/// SR20: the source of the cache takes a snapshot from another one meanwhile.
#[test]
fn g13_while_the_source_is_outdated_a_new_wildcard_gets_nothing_in_any_view() {
    let cache = Cache::new();
    commit(&cache, &of_both("a=1 b=1 k=1"));
    let candidate = cache.begin(transaction(&of_both("a=2 m=1 -k")), &"id=b".parse().unwrap()).unwrap();
    cache.set_outdated(true);
    let mut clients: Vec<_> = ["a", "b"].into_iter().flat_map(|id| Wildcard::all(&cache, id)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.read(&[], &format!("outdated, client {at}"));
        assert!(!client.is_answered, "client {at}");
    }
    candidate.end();
    for client in &mut clients {
        client.read(&[], "ended");
        assert!(!client.is_answered);
    }
    cache.set_outdated(false);
    for (at, client) in clients.iter_mut().enumerate() {
        client.check(&["a", "b", "k"], &STABLE, &format!("client {at}"));
    }
}
