//! Responses that are too large for one message (D32, G10, T39).

use std::sync::Arc;

use super::fixture::{Delta, Sotw, payload, type_url};
use super::{Continuation, Next};
use crate::{Cache, Constraints, Resource, Transaction, VariantId};

const MIB: usize = 1 << 20;

/// Puts resources of one type with contents of this size, each with constraints or none.
fn put(cache: &Cache, type_name: &str, names: &[(&str, &str)], size: usize) {
    let mut transaction = Transaction::new();
    for (name, when) in names {
        let content = "x".repeat(size);
        let resource = Resource::new(type_url(type_name), *name, payload(type_name, name, &content)).unwrap();
        let constraints: Constraints =
            if when.is_empty() { Constraints::NONE } else { when.parse().unwrap() };
        transaction.put(resource.with_constraints(constraints));
    }
    cache.commit(transaction).unwrap();
}

/// The responses, without the contents.
fn short(sent: &str) -> String {
    sent.chars().filter(|character| *character != 'x').collect::<String>().replace('=', "")
}

fn large(cache: &Arc<Cache>, type_name: &str) {
    put(cache, type_name, &[("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", "")], 3 * MIB / 2);
}

#[test]
fn d32_g10_a_large_answer_goes_in_parts_by_name_and_each_is_answered_for_itself() {
    let cache = Cache::new();
    large(&cache, "EDS");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a b c d e missing");
    assert_eq!(short(&client.sent()), "n1 EDS a b; n2 EDS c d; n3 EDS e -missing");
    client.ack("EDS", "1");
    client.nack("EDS", "2");
    client.ack("EDS", "3");
    // S6c: the resources of the second part were rejected.
    put(&cache, "EDS", &[("c", "")], 1);
    assert_eq!(short(&client.sent()), "n4 EDS d");
    client.ack("EDS", "4");
    assert_eq!(short(&client.sent()), "n5 EDS c");
}

#[test]
fn d32_each_part_but_the_last_says_that_more_follows() {
    let cache = Cache::new();
    large(&cache, "CDS");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    let mut marks = Vec::new();
    while let Next::Send(response) = client.stream.next(client.now, &cache.snapshot()) {
        marks.push(response.continuation == Continuation::Part);
        // The first field, with its tag and length before it.
        let head = response.head();
        let version = &head[2..2 + usize::from(head[1])];
        assert_eq!(version.last() == Some(&b'+'), response.continuation == Continuation::Part);
    }
    assert_eq!(marks, [true, true, false]);
}

#[test]
fn g10_parts_share_the_payloads_of_the_cache() {
    let cache = Cache::new();
    large(&cache, "EDS");
    let body = || {
        let mut client = Delta::new(&cache);
        client.ask("EDS", "a b c d e");
        client.sent();
        let chunks = client.last_bodies[0].chunks().iter();
        chunks.max_by_key(|chunk| chunk.len()).unwrap().as_ptr()
    };
    assert_eq!(body(), body(), "the payload is that of the cache");
}

#[test]
fn g10_in_sotw_types_that_may_be_sent_in_part_are_parted_and_others_are_not() {
    let cache = Cache::new();
    large(&cache, "EDS");
    large(&cache, "LDS");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a b c d e", "");
    assert_eq!(short(&client.sent()), "n1 EDS a b; n2 EDS c d; n3 EDS e");
    client.ask("LDS", "", "");
    assert_eq!(short(&client.sent()), "n4 LDS a b c d e", "a part would delete the rest (T39)");
}

#[test]
fn t39_t31_d32_the_variants_of_a_name_and_what_they_replace_are_never_parted() {
    let cache = Cache::new();
    put(&cache, "X", &[("r", "")], MIB);
    put(&cache, "X", &[("a", ""), ("z", "")], 3 * MIB);
    let mut client = Delta::new(&cache);
    client.ask("X", "a r?env=prod r?env=test z");
    assert_eq!(short(&client.sent()), "n1 X a[]; n2 X r[]; n3 X z[]");
    for nonce in ["1", "2", "3"] {
        client.ack("X", nonce);
    }
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(type_url("X"), "r"));
    for (name, when) in [("r", "env=prod"), ("r", "env=test"), ("a", ""), ("z", "")] {
        let content = "x".repeat(5 * MIB / 2) + "y";
        let resource = Resource::new(type_url("X"), name, payload("X", name, &content)).unwrap();
        let constraints: Constraints =
            if when.is_empty() { Constraints::NONE } else { when.parse().unwrap() };
        transaction.put(resource.with_constraints(constraints));
    }
    cache.commit(transaction).unwrap();
    let sent = short(&client.sent()).replace('y', "");
    assert_eq!(sent, "n4 X a[]; n5 X r[envprod] r[envtest] -r[]; n6 X z[]");
}

#[test]
fn s24_parts_of_what_is_no_longer_asked_for_are_not_sent() {
    let cache = Cache::new();
    large(&cache, "EDS");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a b c d e");
    let first = client.stream.next(client.now, &cache.snapshot());
    assert!(matches!(first, Next::Send(_)));
    client.ask("EDS", "-a -b -c -d -e");
    assert_eq!(client.sent(), "");
}
