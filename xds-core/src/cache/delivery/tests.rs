use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::*;
use crate::cache::{Cache, Watch};
use crate::server::fixture::{Delta, Sotw, commit, type_url};
use crate::server::{ClientGroup, Service};

fn named(watch: &Watch, id: &str) {
    watch.name_client(ClientName { id: id.into(), cluster: "c".into() });
}

fn sotw(cache: &Arc<Cache>, id: &str) -> Sotw {
    let client = Sotw::new(cache);
    named(&client.watch, id);
    client
}

fn delta(cache: &Arc<Cache>, id: &str) -> Delta {
    let client = Delta::new(cache);
    named(&client.watch, id);
    client
}

/// A word per client: `id:outcome`.
fn shown(results: &[ClientOutcome]) -> String {
    let words = results.iter().map(|ClientOutcome { client, outcome }| {
        let outcome = match outcome {
            Outcome::Acked => "acked".to_owned(),
            Outcome::Nacked { detail, .. } => detail.to_string(),
            Outcome::Disconnected => "gone".to_owned(),
            Outcome::Pending => "pending".to_owned(),
            Outcome::Splitting => "splitting".to_owned(),
            Outcome::Late => "late".to_owned(),
        };
        format!("{}:{outcome}", client.id)
    });
    words.collect::<Vec<_>>().join(" ")
}

fn results(commit: &Commit) -> String {
    shown(&commit.applied(|_| true).results())
}

#[test]
fn sotw_a_commit_is_acked_with_a_response_that_was_built_from_it() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let mut client = sotw(&cache, "n");
    client.ask("EDS", "a", "");
    client.sent();
    client.ack("EDS", "1");
    client.sent();
    let (second, other) = (commit(&cache, "EDS a=2"), commit(&cache, "EDS b=2"));
    assert_eq!((results(&second).as_str(), results(&other).as_str()), ("n:pending", ""));
    assert_eq!(client.sent(), "n2 EDS a=2");
    assert_eq!(results(&second), "n:pending");
    client.ack("EDS", "2");
    client.sent();
    assert_eq!(results(&second), "n:acked");
}

#[test]
fn delta_a_commit_is_acked_with_all_that_is_in_flight_of_it() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let mut client = delta(&cache, "n");
    client.ask("EDS", "a b");
    client.sent();
    client.ack("EDS", "1");
    client.sent();
    let second = commit(&cache, "EDS a=2");
    client.sent();
    let third = commit(&cache, "EDS b=2");
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n3 EDS b=2");
    // D6: in any order.
    client.ack("EDS", "3");
    client.sent();
    assert_eq!((results(&second).as_str(), results(&third).as_str()), ("n:pending", "n:acked"));
    client.ack("EDS", "2");
    client.sent();
    assert_eq!(results(&second), "n:acked");
}

#[test]
fn sotw_whoever_acks_the_newest_response_has_taken_those_before() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1");
    let mut client = sotw(&cache, "n");
    client.ask("CDS", "", "");
    client.sent();
    let second = commit(&cache, "CDS a=2");
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n2 CDS a=2");
    client.ack("CDS", "2");
    client.sent();
    assert_eq!(results(&second), "n:acked");
}

#[test]
fn a_rejected_commit_stays_so_until_its_correction_is_acked() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1; EDS a=1 b=1");
    for (type_name, is_delta) in [("CDS", false), ("EDS", false), ("EDS", true)] {
        let (bad, other, good);
        let names = if type_name == "CDS" { "" } else { "a b" };
        let unique = format!("{type_name}{is_delta}");
        if is_delta {
            let mut client = delta(&cache, "n");
            client.ask(type_name, names);
            client.sent();
            client.ack(type_name, "1");
            client.sent();
            bad = commit(&cache, &format!("{type_name} a=bad{unique}"));
            client.sent();
            client.nack(type_name, "2");
            client.sent();
            assert_eq!(results(&bad), "n:bad", "{unique}");
            other = commit(&cache, &format!("{type_name} b=other{unique}"));
            client.sent();
            client.ack(type_name, "3");
            client.sent();
            // D8: an ACK of other content does not correct it.
            assert_eq!((results(&bad).as_str(), results(&other).as_str()), ("n:bad", "n:acked"));
            good = commit(&cache, &format!("{type_name} a=good{unique}"));
            client.sent();
            assert_eq!((results(&bad).as_str(), results(&good).as_str()), ("n:bad", "n:pending"));
            client.ack(type_name, "4");
            client.sent();
        } else {
            let mut client = sotw(&cache, "n");
            client.ask(type_name, names, "");
            client.sent();
            client.ack(type_name, "1");
            client.sent();
            bad = commit(&cache, &format!("{type_name} a=bad{unique}"));
            client.sent();
            client.nack(type_name, "2");
            // S6e: a full state that changed something is repeated once.
            if !client.sent().is_empty() {
                assert_eq!(results(&bad), "n:splitting", "{unique}");
                client.nack(type_name, "3");
                client.sent();
            }
            assert_eq!(results(&bad), "n:bad", "{unique}");
            good = commit(&cache, &format!("{type_name} a=good{unique}"));
            client.sent();
            assert_eq!((results(&bad).as_str(), results(&good).as_str()), ("n:bad", "n:pending"));
            let nonce = client.last.nonce.clone();
            client.ack(type_name, &nonce);
            client.sent();
        }
        assert_eq!((results(&bad).as_str(), results(&good).as_str()), ("n:acked", "n:acked"), "{unique}");
    }
}

#[test]
fn s6f_a_rejected_commit_is_undecided_until_its_parts_are_answered() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let mut client = delta(&cache, "n");
    client.ask("EDS", "a b");
    client.sent();
    client.ack("EDS", "1");
    client.sent();
    let bad = commit(&cache, "EDS a=2 b=2");
    client.sent();
    client.nack("EDS", "2");
    assert_eq!(client.sent(), "n3 EDS a=2");
    commit(&cache, "EDS a=3");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS a=3");
    client.ack("EDS", "4");
    assert_eq!(client.sent(), "n5 EDS b=2");
    assert_eq!(results(&bad), "n:splitting");
    client.ack("EDS", "5");
    client.sent();
    assert_eq!(results(&bad), "n:acked");
    // S6f: after 16 s it counts as rejected, and is acked when nothing in it was bad.
    let slow = commit(&cache, "EDS a=5 b=5");
    client.sent();
    client.nack("EDS", "6");
    assert_eq!((client.sent().as_str(), results(&slow).as_str()), ("n7 EDS a=5", "n:splitting"));
    client.pass(DECIDE_WITHIN);
    client.sent();
    assert_eq!(results(&slow), "n:bad");
    client.ack("EDS", "7");
    client.ack("EDS", "8");
    client.sent();
    assert_eq!(results(&slow), "n:acked");
}

#[test]
fn s33_a_removal_that_is_held_is_applied_when_it_was_told_and_acked() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1>tcp:b; RDS r=a");
    for is_delta in [false, true] {
        if is_delta {
            commit(&cache, "CDS a=1 b=1; LDS l=1>tcp:b");
            let mut client = delta(&cache, "n");
            client.ask("CDS", "*");
            client.ask("LDS", "*");
            client.sent();
            client.ack("CDS", "1");
            client.ack("LDS", "2");
            client.sent();
            let removed = commit(&cache, "CDS -b; LDS l=delta>tcp:a");
            assert_eq!(client.sent(), "n3 LDS l=delta>tcp:a");
            // A withheld removal does not keep other commits pending.
            let other = commit(&cache, "CDS a=delta");
            assert_eq!(client.sent(), "n4 CDS a=delta");
            client.ack("CDS", "4");
            assert_eq!(client.sent(), "");
            assert_eq!((results(&removed).as_str(), results(&other).as_str()), ("n:pending", "n:acked"));
            client.ack("LDS", "3");
            assert_eq!(client.sent(), "n5 CDS -b");
            assert_eq!((results(&removed).as_str(), results(&other).as_str()), ("n:pending", "n:acked"));
            client.ack("CDS", "5");
            client.sent();
            assert_eq!(results(&removed), "n:acked");
        } else {
            let mut client = sotw(&cache, "n");
            client.ask("CDS", "", "");
            client.ask("LDS", "", "");
            client.sent();
            client.ack("CDS", "1");
            client.ack("LDS", "2");
            client.sent();
            let removed = commit(&cache, "CDS -b; LDS l=2>tcp:a");
            client.sent();
            client.ack("CDS", "3");
            client.sent();
            assert_eq!(results(&removed), "n:pending");
            client.ack("LDS", "3");
            let told = client.sent();
            assert!(told.contains("CDS") && !told.contains("b=1"), "{told}");
            let nonce = client.last.nonce.clone();
            assert_eq!(results(&removed), "n:pending");
            client.ack("CDS", &nonce);
            client.sent();
            assert_eq!(results(&removed), "n:acked");
        }
    }
}

#[test]
fn s33_what_an_answer_brought_ahead_of_its_turn_is_open_until_it_is_acked() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1; EDS a=1; RDS r=1");
    let mut client = delta(&cache, "n");
    client.ask("CDS", "*");
    client.ask("RDS", "r");
    client.sent();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    client.sent();
    let both = commit(&cache, "CDS a=static; RDS r=2");
    assert_eq!(client.sent(), "n3 CDS a=static");
    // After a new subscription it does not wait for the cluster.
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n4 RDS r=2");
    client.ack("CDS", "3");
    assert_eq!(client.sent(), "");
    assert_eq!(results(&both), "n:pending");
    client.ack("RDS", "4");
    client.sent();
    assert_eq!(results(&both), "n:acked");
}

#[test]
fn s26_a_removal_that_cannot_be_told_is_applied() {
    let cache = Cache::new();
    commit(&cache, "RDS r=1 s=1");
    let mut client = sotw(&cache, "n");
    client.ask("RDS", "r s", "");
    client.sent();
    client.ack("RDS", "1");
    client.sent();
    let removed = commit(&cache, "RDS -r");
    assert_eq!(results(&removed), "n:pending");
    assert_eq!(client.sent(), "");
    assert_eq!(results(&removed), "n:acked");
}

#[test]
fn v29_who_needs_nothing_sent_has_applied_it() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let (mut one, mut other) = (sotw(&cache, "one"), delta(&cache, "other"));
    one.ask("EDS", "a", "");
    other.ask("EDS", "a");
    one.sent();
    other.sent();
    one.ack("EDS", "1");
    other.ack("EDS", "1");
    // Other keys are used now, so each stream has to compare before it knows that nothing changed.
    let migrated = commit(&cache, "EDS -a a[env=prod]=1 a[!env=prod]=1");
    assert_eq!(results(&migrated), "one:pending other:pending");
    assert_eq!((one.sent().as_str(), other.sent().as_str()), ("", ""));
    assert_eq!(results(&migrated), "one:acked other:acked");
}

#[test]
fn streams_of_one_client_count_together() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1; EDS a=1");
    let group = ClientGroup::new();
    let on = |type_name: &str| {
        let client = Sotw::on(&cache, Service::Single(type_url(type_name)));
        named(&client.watch, "n");
        client
    };
    let (mut clusters, mut endpoints) = (on("CDS"), on("EDS"));
    clusters.stream.join(&group);
    endpoints.stream.join(&group);
    clusters.ask("CDS", "", "");
    endpoints.ask("EDS", "a", "");
    clusters.sent();
    endpoints.sent();
    clusters.ack("CDS", "1");
    endpoints.ack("EDS", "1");
    clusters.sent();
    endpoints.sent();
    let both = commit(&cache, "CDS a=static; EDS a=2");
    clusters.sent();
    endpoints.sent();
    endpoints.ack("EDS", &endpoints.last.nonce.clone());
    endpoints.sent();
    assert_eq!(results(&both), "n:pending");
    let nonce = clusters.last.nonce.clone();
    clusters.nack("CDS", &nonce);
    clusters.sent();
    assert_eq!(results(&both), "n:splitting", "S6e: the full state is repeated once");
    let nonce = clusters.last.nonce.clone();
    clusters.nack("CDS", &nonce);
    clusters.sent();
    assert_eq!(results(&both), "n:bad");
    // A stream that answered and then ended keeps its outcome.
    drop(endpoints);
    let one = commit(&cache, "CDS a=3");
    clusters.sent();
    drop(clusters);
    assert_eq!((results(&both).as_str(), results(&one).as_str()), ("n:bad", "n:gone"));
}

#[test]
fn g6_streams_without_an_id_are_clients_of_their_own() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut clients = [Sotw::new(&cache), Sotw::new(&cache)];
    for client in &mut clients {
        client.ask("EDS", "a", "");
        client.sent();
    }
    let second = commit(&cache, "EDS a=2");
    clients[0].ack("EDS", "1");
    clients[0].sent();
    clients[0].ack("EDS", "2");
    clients[0].sent();
    let [_, other] = clients;
    drop(other);
    assert_eq!(results(&second), ":acked :gone");
}

#[test]
fn who_gives_a_type_up_has_applied_what_it_was_sent_of_it() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut client = delta(&cache, "n");
    client.ask("EDS", "a");
    client.sent();
    let second = commit(&cache, "EDS a=2");
    client.ask("EDS", "-a");
    client.sent();
    assert_eq!(results(&second), "n:acked");
    // Later commits count again.
    client.ask("EDS", "a");
    let third = commit(&cache, "EDS a=3");
    assert_eq!(results(&third), "n:pending");
    client.sent();
    let nonce = client.last.nonce.clone();
    assert_eq!(results(&third), "n:pending");
    client.ack("EDS", &nonce);
    client.sent();
    assert_eq!(results(&third), "n:acked");
}

/// Counts how many times it is woken.
#[derive(Debug, Default)]
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_is_woken_once_when_the_last_client_is_decided() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut clients: Vec<_> = ["one", "two", "three"].iter().map(|id| sotw(&cache, id)).collect();
    for client in &mut clients {
        client.ask("EDS", "a", "");
        client.sent();
        client.ack("EDS", "1");
        client.sent();
    }
    let second = commit(&cache, "EDS a=2");
    let some = second.applied(|client| &*client.id != "three");
    let alarm = Arc::new(Alarm::default());
    let waker = Waker::from(Arc::clone(&alarm));
    let mut context = Context::from_waker(&waker);
    let mut settled = pin!(some.decided());
    assert!(settled.as_mut().poll(&mut context).is_pending());
    let mut clients = clients.into_iter();
    let (mut one, two) = (clients.next().unwrap(), clients.next().unwrap());
    one.sent();
    one.nack("EDS", "2");
    one.sent();
    assert_eq!(alarm.0.load(Ordering::SeqCst), 0);
    drop(two);
    assert_eq!(alarm.0.load(Ordering::SeqCst), 1);
    let Poll::Ready(results) = settled.poll(&mut context) else { panic!("both are decided") };
    assert_eq!(shown(&results), "one:bad two:gone");
}

#[test]
fn spans_stay_few() {
    let mut spans = Spans::default();
    for revision in 1..=100 {
        spans.add_one(Revision(revision * 2));
    }
    assert_eq!(spans.0.len(), SPANS_KEPT);
    assert!((1..=100).all(|revision| spans.cover(Revision(revision * 2))));
    assert!(!spans.cover(Revision(199)) && spans.cover(Revision(3)));
}

#[test]
fn what_waited_in_parts_counts_when_it_was_sent_in_another_form() {
    let cache = Cache::new();
    commit(&cache, "X a=1 b=1");
    let mut client = delta(&cache, "n");
    client.ask("X", "a b");
    client.sent();
    client.ack("X", "1");
    client.sent();
    let large = "x".repeat(3 << 20);
    let commit = commit(&cache, &format!("X a={large} b={large}"));
    assert!(matches!(client.stream.next(client.now, &cache.snapshot()), crate::server::Next::Send(_)));
    // The part with b is not sent any more: both are sent again, with their constraints.
    client.ask("X", "c?env=prod");
    client.ack("X", "2");
    client.sent();
    assert_eq!(results(&commit), "n:pending");
    ["3", "4", "5"].into_iter().for_each(|nonce| _ = client.ack("X", nonce));
    client.sent();
    assert_eq!(results(&commit), "n:acked");
}
