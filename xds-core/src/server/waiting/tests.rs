//! Streams of a cache on demand, in both protocols: unknown resources are waited for, and absent
//! ones are reported.

use std::sync::Arc;
use std::time::Duration;

use super::{Unknown, Waiting};
use crate::cache::OnDemandSubscription;
use crate::code::Code;
use crate::server::SotwRequest;
use crate::server::fixture::{Delta, Sotw, commit, is_woken, parameters, type_url, version};
use crate::subscription::{Locator, Locators};
use crate::{Cache, OnDemandSubscriptions, Parameters};

fn delta(cache: &Arc<Cache>, type_name: &str, list: &str) -> Delta {
    let mut client = Delta::new(cache);
    client.ask(type_name, list);
    client
}

fn sotw(cache: &Arc<Cache>, type_name: &str, list: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    client.ask(type_name, list, "");
    client
}

/// The changed subscriptions, as `name{parameters}:count`.
fn taken(subscriptions: &OnDemandSubscriptions) -> String {
    let show = |OnDemandSubscription { locator: Locator { name, parameters }, streams, .. }| {
        format!(
            "{}{{{}}}:{streams}",
            name.as_str(),
            parameters.unbound().iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
        )
    };
    let mut taken: Vec<_> = subscriptions.take().into_iter().map(show).collect();
    taken.sort();
    taken.join(" ")
}

#[test]
fn a_source_hears_of_each_locator_that_comes_or_goes_once() {
    let cache = Cache::on_demand();
    let subscriptions = cache.on_demand_subscriptions().unwrap();
    let mut one = delta(&cache, "X", "a a?env=prod");
    let two = delta(&cache, "X", "a?env=prod *");
    assert_eq!(taken(&subscriptions), "*{}:1 a{env=prod}:2 a{}:1");
    assert_eq!(taken(&subscriptions), "");
    one.ask("X", "-a -a?env=prod b");
    assert_eq!(taken(&subscriptions), "a{}:0 b{}:1", "somebody else still asks for a in prod");
    drop(two);
    assert_eq!(taken(&subscriptions), "*{}:0 a{env=prod}:0");
    one.ask("X", "-b");
    one.ask("X", "b");
    assert_eq!(taken(&subscriptions), "b{}:1", "as it stands now");
    assert!(Cache::new().on_demand_subscriptions().is_none(), "what a cache does not hold does not exist");
}

#[test]
fn t46_what_is_asked_for_by_name_is_wanted_with_the_parameters_of_the_node() {
    let cache = Cache::on_demand();
    let subscriptions = cache.on_demand_subscriptions().unwrap();
    let mut client = Sotw::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("CDS", "", "");
    assert_eq!(taken(&subscriptions), "*{env=prod}:1", "S19: nothing in particular is everything");
}

#[test]
fn an_unknown_name_is_waited_for_and_an_absent_one_is_told() {
    let cache = Cache::on_demand();
    let (mut one, mut other) = (delta(&cache, "X", "a b"), sotw(&cache, "X", "a b"));
    assert_eq!((one.sent(), other.sent()), (String::new(), String::new()));
    commit(&cache, "X a=1");
    assert!(is_woken(&one.watch));
    assert_eq!((one.sent(), other.sent()), ("n1 X a[]=1".replace("[]", ""), "n1 X a=1".into()));
    assert_eq!(one.waits_until(), Some(10_000), "then the client gets an error (G13)");
    is_woken(&one.watch);
    commit(&cache, "X !b");
    assert!(is_woken(&one.watch), "a stream that waits for the status is woken");
    assert_eq!((one.sent(), other.sent()), ("n2 X -b".into(), String::new()));
    commit(&cache, "X b=1");
    one.ack("X", "2");
    other.ack("X", "1");
    assert_eq!((one.sent(), other.sent()), ("n3 X b=1".into(), "n2 X b=1".into()));
}

/// The locators of a list are found part by part, for all streams with the list. What was sent may
/// change meanwhile, and what is found waits for the ACK.
#[test]
fn g13_a_list_is_answered_part_by_part() {
    let cache = Cache::on_demand();
    let mut clients = [(); 3].map(|()| delta(&cache, "X", "a b c d e"));
    let mut state = sotw(&cache, "CDS", "a b c d e");
    let all_sent = |clients: &mut [Delta; 3]| {
        let sent = clients.each_mut().map(|client| client.sent());
        assert!(sent.iter().all(|of| *of == sent[0]), "{sent:?}");
        sent[0].clone()
    };
    commit(&cache, "X b=1 d=1; CDS b=1 d=1");
    assert_eq!(all_sent(&mut clients), "n1 X b=1 d=1");
    commit(&cache, "X a=1; CDS a=1 b=2");
    assert_eq!(all_sent(&mut clients), "", "no ACK yet");
    clients.iter_mut().for_each(|client| _ = client.ack("X", "1"));
    commit(&cache, "X b=2; CDS c=1");
    assert_eq!(all_sent(&mut clients), "n2 X a=1 b=2");
    clients.iter_mut().for_each(|client| _ = client.ack("X", "2"));
    // One goes again before it could be sent; the others are there.
    commit(&cache, "X c=1; CDS -d");
    commit(&cache, "X -c e=1");
    assert_eq!((clients[0].sent(), state.sent()), ("n3 X e=1".into(), String::new()));
    commit(&cache, "X !c; CDS d=2 e=1");
    clients[0].ack("X", "3");
    assert_eq!((clients[0].sent(), state.sent()), ("n4 X -c".into(), "n1 CDS a=1 b=2 c=1 d=2 e=1".into()));
    assert_eq!(clients[1].sent(), "n3 X e=1 -c");
    assert_eq!(clients[1].waits_until(), None);
}

/// Streams with the same projected parameters are answered separately.
#[test]
fn t35_what_is_absent_for_one_locator_stays_unknown_for_another() {
    let cache = Cache::on_demand();
    commit(&cache, "X r[env=prod]=A");
    let mut one = delta(&cache, "X", "r?env=qa&pod=1");
    let mut other = delta(&cache, "X", "r?env=qa&pod=2");
    commit(&cache, "X !r?env=qa&pod=1");
    assert_eq!((one.sent(), other.sent()), ("n1 X -r".into(), String::new()));
    commit(&cache, "X !r?env=qa&pod=2");
    assert_eq!(other.sent(), "n1 X -r");
}

#[test]
fn t35_of_two_locators_of_one_stream_one_is_told_by_its_parameters_while_the_other_is_unknown() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "X", "r?env=prod r?env=qa");
    commit(&cache, "X !r?env=qa");
    assert_eq!(client.sent(), "n1 X -r[env=qa]");
    commit(&cache, "X r[env=prod]=A");
    client.ack("X", "1");
    assert_eq!(client.sent(), "n2 X r[env=prod]=A");
}

#[test]
fn t43_what_leaves_the_cache_stays_with_who_has_it_until_its_own_locator_is_answered() {
    let cache = Cache::on_demand();
    commit(&cache, "X r[env=prod]=A");
    let mut one = delta(&cache, "X", "r?env=prod&pod=1");
    let mut other = delta(&cache, "X", "r?env=prod&pod=2");
    let mut state = sotw(&cache, "CDS", "c");
    commit(&cache, "CDS c=1");
    assert_eq!((one.sent(), other.sent()), ("n1 X r[env=prod]=A".into(), "n1 X r[env=prod]=A".into()));
    assert_eq!(state.sent(), "n1 CDS c=1");
    one.ack("X", "1");
    other.ack("X", "1");
    state.ack("CDS", "1");
    commit(&cache, "X -r[env=prod] !r?env=prod&pod=1; CDS -c");
    assert_eq!((one.sent(), other.sent()), ("n2 X -r[env=prod]".into(), String::new()));
    assert_eq!(state.sent(), "", "the source has not said that it does not exist");
    // C9b: streams that subscribe from now on do not get it.
    assert_eq!(delta(&cache, "X", "r?env=prod&pod=3").sent(), "");
    commit(&cache, "X r[env=prod,pod=2]=B");
    assert_eq!(other.sent(), "n2 X r[env=prod,pod=2]=B -r[env=prod]", "T31: in one response");
    commit(&cache, "CDS !c");
    state.pass(Duration::from_secs(5));
    assert_eq!(state.sent(), "n2 CDS");
}

#[test]
fn t32_by_name_a_variant_that_takes_the_place_of_one_that_left_is_an_update() {
    let cache = Cache::on_demand();
    commit(&cache, "CDS c[env=prod]=1");
    let (mut one, mut other) = (Delta::new(&cache), Sotw::new(&cache));
    one.stream.on_node(parameters("env=prod ver=2"));
    other.stream.on_node(parameters("env=prod ver=2"));
    one.ask("CDS", "c");
    other.ask("CDS", "c", "");
    assert_eq!((one.sent(), other.sent()), ("n1 CDS c=1".into(), "n1 CDS c=1".into()));
    one.ack("CDS", "1");
    other.ack("CDS", "1");
    commit(&cache, "CDS -c[env=prod] c[env=prod,ver=1]=1");
    assert_eq!((one.sent(), other.sent()), (String::new(), String::new()));
    commit(&cache, "CDS c[env=prod,ver=2]=2");
    assert_eq!((one.sent(), other.sent()), ("n2 CDS c=2".into(), "n2 CDS c=2".into()));
}

#[test]
fn s27_d15_a_wildcard_is_answered_when_all_that_there_is_has_come() {
    let cache = Cache::on_demand();
    let (mut one, mut other) = (delta(&cache, "CDS", ""), sotw(&cache, "CDS", ""));
    commit(&cache, "CDS a=1 b=1");
    assert_eq!((one.sent(), other.sent()), (String::new(), String::new()), "there may be more");
    commit(&cache, "CDS c=1 !*");
    assert_eq!((one.sent(), other.sent()), ("n1 CDS a=1 b=1 c=1".into(), "n1 CDS a=1 b=1 c=1".into()));
    one.ack("CDS", "1");
    other.ack("CDS", "1");
    commit(&cache, "CDS -a");
    assert_eq!((one.sent(), other.sent()), (String::new(), String::new()), "S33: the grace time");
    one.pass(Duration::from_secs(5));
    other.pass(Duration::from_secs(5));
    assert_eq!((one.sent(), other.sent()), ("n2 CDS -a".into(), "n2 CDS b=1 c=1".into()));
    let empty = Cache::on_demand();
    let (mut one, mut other) = (delta(&empty, "CDS", ""), sotw(&empty, "CDS", ""));
    commit(&empty, "CDS !*");
    assert_eq!((one.sent(), other.sent()), ("n1 CDS".into(), "n1 CDS".into()));
}

#[test]
fn s25_a_full_state_waits_for_all_that_is_asked_for() {
    let cache = Cache::on_demand();
    commit(&cache, "LDS a=1");
    let mut client = sotw(&cache, "LDS", "a b");
    assert_eq!(client.sent(), "", "without b it would say that there is none");
    client.pass(Duration::from_secs(60));
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS !b");
    assert_eq!(client.sent(), "n1 LDS a=1");
}

/// Regression: while a full state waited, its stream stayed in the class of the constraint keys at its
/// subscription. The variant of one locator did not wake it, if that of the other had brought the
/// key, so the client got nothing (seed 33291).
#[test]
fn s25_a_full_state_that_waits_follows_the_keys_of_constraints() {
    let cache = Cache::on_demand();
    let mut client = sotw(&cache, "CDS", "c?env=a c?env=b");
    commit(&cache, "CDS c[env=a]=1");
    assert!(is_woken(&client.watch), "the key is new");
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS c[env=b]=2");
    assert!(is_woken(&client.watch), "nothing is unknown any more");
    assert_eq!(client.sent(), "n1 CDS c[env=a]=1 c[env=b]=2");
}

#[test]
fn g13_who_waits_long_is_told_that_nobody_knows_and_answered_when_somebody_does() {
    let cache = Cache::on_demand();
    let (mut one, mut other) = (delta(&cache, "X", "a?env=prod a?env=qa"), sotw(&cache, "X", "a"));
    for client in [&mut one.now, &mut other.now] {
        *client += Duration::from_secs(10);
    }
    assert_eq!(one.sent(), "", "it waits since the first subscription");
    one.pass(Duration::from_secs(10));
    assert_eq!(one.sent(), "n1 X !a[env=qa](14) !a[env=prod](14)");
    assert_eq!(other.sent(), "");
    other.pass(Duration::from_secs(10));
    assert_eq!(other.sent(), "n1 X !\"a\"(14)");
    one.ack("X", "1");
    one.pass(Duration::from_secs(100));
    assert_eq!(one.sent(), "", "once");
    commit(&cache, "X a=1 !a?env=qa");
    assert_eq!(one.sent(), "n2 X a[]=1");
}

#[test]
fn s37_what_a_source_cannot_say_is_told_with_its_code_and_keeps_what_a_client_has() {
    let cache = Cache::on_demand();
    commit(&cache, "X b=1");
    let (mut one, mut other) = (delta(&cache, "X", "a b"), sotw(&cache, "X", "a b"));
    commit(&cache, "X !a/12 -b !b/7");
    assert_eq!(
        (one.sent(), other.sent()),
        ("n1 X !\"a\"(12) !\"b\"(7)".into(), "n1 X !\"a\"(12) !\"b\"(7)".into())
    );
    let mut late = delta(&cache, "X", "a");
    assert_eq!(late.sent(), "n1 X !\"a\"(12)", "a later subscription gets the error at once");
    one.ack("X", "1");
    commit(&cache, "X b=2");
    assert_eq!(one.sent(), "n2 X b=2");
    commit(&cache, "X -b");
    one.ack("X", "2");
    assert_eq!(one.sent(), "n3 X !\"b\"(7)", "it keeps the resource, and has the error beside it");
}

/// The error of a name waited for the answers to other names, and came beside the resource (seed 852 of the simulator).
#[test]
fn s37_an_error_that_waits_for_other_names_is_not_sent_beside_the_resource_or_its_absence() {
    for (list, failures, answers) in [("* a", "CDS !*/12 !a/12", "CDS !* "), ("a b", "CDS !a/12", "CDS b=1 ")]
    {
        for (answer, sent) in [("a=1", "a=1"), ("!a", "")] {
            let cache = Cache::on_demand();
            let mut client = sotw(&cache, "CDS", list);
            commit(&cache, failures);
            assert_eq!(client.sent(), "", "{list}");
            commit(&cache, &format!("{answers}{answer}"));
            let others = if list == "a b" { " b=1" } else { "" };
            let sent = if sent.is_empty() { String::new() } else { format!(" {sent}") };
            assert_eq!(client.sent(), format!("n1 CDS{sent}{others}"), "{list} {answer}");
            client.ack("CDS", "1");
            assert_eq!(client.sent(), "", "{list} {answer}");
        }
    }
}

/// An error whose message changed while it waited came with the resource in its first words (seed 8217).
#[test]
fn s37_an_error_that_changes_while_it_waits_is_not_sent_beside_the_resource() {
    let cache = Cache::on_demand();
    let mut client = sotw(&cache, "CDS", "a b");
    commit(&cache, "CDS !a/12");
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS !a/14");
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS a=1 b=1");
    assert_eq!(client.sent(), "n1 CDS a=1 b=1");
}

/// A client that came back got a full state without resources, which deletes what it has (seed 1170 of the simulator).
#[test]
fn g4_a_client_that_brings_a_version_gets_no_full_state_with_errors_alone() {
    let cache = Cache::on_demand();
    commit(&cache, "CDS !a/12 !b/12");
    assert_eq!(sotw(&cache, "CDS", "a").sent(), "n1 CDS !\"a\"(12)", "it has nothing");
    let mut client = Sotw::new(&cache);
    let names = ["a".into(), "b".into()];
    client.send(SotwRequest {
        type_url: type_url("CDS").to_string(),
        version_info: "of another stream".into(),
        requested: Some(Vec::from(names).into()),
        ..SotwRequest::default()
    });
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS a=1");
    assert_eq!(client.sent(), "n1 CDS a=1 !\"b\"(12)", "S37");
}

/// Regression: after an error, a stream was forgotten and never got the absence.
#[test]
fn d10_after_an_error_an_absence_is_told_all_the_same() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "X", "a");
    assert_eq!(client.sent(), "");
    commit(&cache, "X !a/14");
    assert_eq!(client.sent(), "n1 X !\"a\"(14)");
    client.ack("X", "1");
    assert_eq!(client.sent(), "");
    commit(&cache, "X !a");
    assert_eq!(client.sent(), "n2 X -a");
}

/// Regression: the error came with the absence, and the client kept the error.
#[test]
fn g13_an_error_that_has_to_wait_for_a_wildcard_is_not_told_beside_what_came_meanwhile() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "X", "* a?env=prod");
    assert_eq!(client.sent(), "");
    client.pass(Duration::from_secs(10));
    assert_eq!(client.sent(), "");
    commit(&cache, "X !* !a?env=prod");
    assert_eq!(client.sent(), "n1 X -a");
}

#[test]
fn d1_what_a_client_brings_is_kept_while_nobody_knows() {
    let cache = Cache::on_demand();
    let mut client = Delta::new(&cache);
    let version = version("X", "a", "1");
    client.ask_with("X", "a b", "", &[("a", &version), ("b", "old")]);
    assert_eq!(client.sent(), "");
    commit(&cache, "X !b");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n1 X -b");
    commit(&cache, "X !a");
    assert_eq!(client.sent(), "n2 X -a");
}

#[test]
fn what_was_answered_and_asked_for_anew_is_answered_at_once() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "X", "a");
    commit(&cache, "X !a");
    assert_eq!(client.sent(), "n1 X -a");
    client.ask("X", "a");
    assert_eq!(client.sent(), "n2 X -a", "D10");
    client.ask("X", "-a");
    commit(&cache, "X !a/");
    client.ask("X", "a");
    assert_eq!(client.sent(), "", "the status is unknown again");
}

#[test]
fn a_type_that_was_never_heard_of_is_waited_for() {
    let cache = Cache::on_demand();
    let cluster = type_url("CDS");
    let mut client = sotw(&cache, "CDS", "");
    assert_eq!((client.sent(), client.waits_until()), (String::new(), None));
    assert!(cache.snapshot().of_type(&cluster).is_none());
}

/// Found by the simulator: the client brought the name, and one of its two locators gets nothing.
#[test]
fn t35_what_a_client_brought_is_not_gone_while_another_of_its_locators_is_unknown() {
    let cache = Cache::on_demand();
    let mut client = Delta::new(&cache);
    client.ask_with("X", "r?env=a r?env=b", "", &[("r", "old")]);
    assert_eq!(client.sent(), "");
    commit(&cache, "X !r?env=a !r?env=b/14");
    assert_eq!(client.sent(), "n1 X -r[env=a] !r[env=b](14)");
}

/// Found by the simulator: an answer removed a resource that the client had brought, while its
/// variant waited for the endpoints.
#[test]
fn t31_what_a_client_brought_is_not_gone_while_what_takes_its_place_waits() {
    let cache = Cache::on_demand();
    commit(&cache, "EDS e=1");
    let mut client = Delta::new(&cache);
    client.ask_with("LDS", "c?env=a d?env=a", "", &[("d", &version("LDS", "d", "1"))]);
    assert_eq!(client.sent(), "");
    client.ask("EDS", "e");
    assert_eq!(client.sent(), "n1 EDS e=1");
    commit(&cache, "LDS d[env=a]=1");
    client.pass(Duration::from_secs(11));
    assert_eq!(client.sent(), "n2 LDS !\"c\"(14)");
    client.ack("LDS", "2");
    client.ack("EDS", "1");
    assert_eq!(client.sent(), "n3 LDS d[env=a]=1 -d[]");
}

/// Both locators get one variant, and it is removed from the cache. The source has answered one of
/// them that there is nothing in its place.
#[test]
fn t43_what_two_locators_of_a_stream_share_stays_until_both_are_answered() {
    let cache = Cache::on_demand();
    commit(&cache, "X r[env=a]=A");
    let mut client = delta(&cache, "X", "r?env=a&pod=1 r?env=a&pod=2");
    assert_eq!(client.sent(), "n1 X r[env=a]=A");
    client.ack("X", "1");
    commit(&cache, "X -r[env=a] !r?env=a&pod=1");
    assert_eq!(client.sent(), "");
    client.ask("X", "r?env=a&pod=1");
    let sent = client.sent();
    assert!(!sent.contains("-r[env=a] ") && !sent.ends_with("-r[env=a]") && !sent.ends_with("-r"), "{sent}");
}

#[test]
fn s37_an_absence_that_comes_after_an_error_is_told() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "X", "a");
    commit(&cache, "X !a/8");
    assert_eq!(client.sent(), "n1 X !\"a\"(8)");
    client.ack("X", "1");
    commit(&cache, "X !a/");
    assert_eq!(client.sent(), "");
    commit(&cache, "X !a");
    assert_eq!(client.sent(), "n2 X -a", "it waited for an answer all the time");
    client.ask("X", "a");
    commit(&cache, "X !a/8");
    assert_eq!(client.sent(), "n3 X !\"a\"(8)");
}

/// The version stays the same (seed 3348).
#[test]
fn s37_s25_a_full_state_without_the_error_says_that_a_resource_does_not_exist() {
    let cache = Cache::on_demand();
    commit(&cache, "CDS a=1");
    let mut client = sotw(&cache, "CDS", "a d");
    commit(&cache, "CDS !d/14");
    assert_eq!(client.sent(), "n1 CDS a=1 !\"d\"(14)");
    client.ack("CDS", "1");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n2 CDS a=2 !\"d\"(14)", "without it there would be no d");
    client.ack("CDS", "2");
    commit(&cache, "CDS !d");
    assert_eq!(client.sent(), "n3 CDS a=2");
    client.ack("CDS", "3");
    assert_eq!(client.sent(), "");
}

#[test]
fn c4b_a_full_state_does_not_hold_what_is_unknown_beside_what_overlaps_it() {
    let cache = Cache::on_demand();
    commit(&cache, "CDS d[ver!=9]=A");
    let mut client = sotw(&cache, "CDS", "d?env=a d?env=b");
    assert_eq!(client.sent(), "n1 CDS d[ver!=9]=A");
    client.ack("CDS", "1");
    commit(&cache, "CDS -d[ver!=9] d[env=a]=B");
    assert_eq!(client.sent(), "", "the status of env=b is unknown");
    commit(&cache, "CDS !d?env=b");
    assert_eq!(client.sent(), "n2 CDS d[env=a]=B");
    client.ack("CDS", "2");
    // A variant that does not overlap is sent with it.
    commit(&cache, "CDS d[env=b]=C");
    assert_eq!(client.sent(), "n3 CDS d[env=a]=B d[env=b]=C");
    client.ack("CDS", "3");
    commit(&cache, "CDS -d[env=b] d[env=a]=D");
    assert_eq!(client.sent(), "n4 CDS d[env=a]=D d[env=b]=C");
}

#[test]
fn t43_what_one_locator_has_another_variant_for_goes_when_the_other_is_answered() {
    let cache = Cache::on_demand();
    commit(&cache, "LDS a[ver!=9]=A");
    let mut client = delta(&cache, "LDS", "a?env=a&ver=1 a?ver=1");
    assert_eq!(client.sent(), "n1 LDS a[ver!=9]=A");
    client.ack("LDS", "1");
    commit(&cache, "LDS -a[ver!=9] a[env=a,ver=1]=B");
    assert_eq!(client.sent(), "n2 LDS a[env=a,ver=1]=B");
    client.ack("LDS", "2");
    commit(&cache, "LDS !a?ver=1");
    assert_eq!(client.sent(), "n3 LDS -a[ver!=9]");
}

/// Found by the simulator: the new content seemed to overlap a removed variant, and the client was
/// never sent anything again.
#[test]
fn c4b_what_left_and_comes_back_with_other_content_is_sent_in_a_full_state() {
    for is_accepted in [true, false] {
        let cache = Cache::on_demand();
        commit(&cache, "LDS b[env=a]=1");
        let mut client = sotw(&cache, "LDS", "b?env=a");
        assert_eq!(client.sent(), "n1 LDS b[env=a]=1");
        match is_accepted {
            true => client.ack("LDS", "1"),
            false => client.nack("LDS", "1"),
        };
        commit(&cache, "LDS -b[env=a]");
        assert_eq!(client.sent(), "", "the source has not confirmed the removal");
        commit(&cache, "LDS b[env=a]=2");
        assert_eq!(client.sent(), "n2 LDS b[env=a]=2");
    }
}

/// Regression: the resource had the version that the client brought, so it was not sent, and the
/// client kept the error (seed 2397).
#[test]
fn s37_g13_d21_what_was_brought_is_sent_after_an_error_although_it_is_equal() {
    for cache in [Cache::new(), Cache::on_demand()] {
        if cache.snapshot().is_on_demand() {
            commit(&cache, "EDS b=1");
        }
        let mut client = Delta::new(&cache);
        client.ask_with("EDS", "a", "", &[("a", &version("EDS", "a", "1"))]);
        assert_eq!(client.sent(), "");
        client.pass(Duration::from_secs(10));
        assert_eq!(client.sent(), "n1 EDS !\"a\"(14)");
        commit(&cache, "EDS a=1");
        assert_eq!(client.sent(), "n2 EDS a=1");
    }
}

/// Regression: a name was found while another type had to go first. Then its resource went, and the
/// client got no answer at all (seed 6324).
#[test]
fn d10_s33_what_goes_before_it_could_be_sent_is_answered_all_the_same() {
    let cache = Cache::on_demand();
    commit(&cache, "CDS c=static");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "c");
    assert_eq!(client.sent(), "n1 CDS c=static");
    client.ask("LDS", "a");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS a=1>r");
    assert_eq!(client.sent(), "", "it waits for the ACK of the cluster");
    commit(&cache, "LDS -a !a");
    assert_eq!(client.sent(), "n2 LDS -a");
}

/// Regression: a client gave a resource up and subscribed to it again while its source was unknown.
/// The same content came back, which counted as no change, so the client got no answer.
#[test]
fn d9_d3_what_comes_back_unchanged_is_the_answer_to_a_subscription_that_waits() {
    for is_seen in [true, false] {
        let cache = Cache::on_demand();
        commit(&cache, "X a=1");
        let mut client = Delta::new(&cache);
        client.ask("X", "a");
        assert_eq!(client.sent(), "n1 X a=1");
        client.ack("X", "1");
        commit(&cache, "X -a !a/");
        if is_seen {
            assert_eq!(client.sent(), "", "its removal is not known");
        }
        client.ask("X", "-a a");
        assert_eq!(client.sent(), "");
        commit(&cache, "X a=1");
        assert_eq!(client.sent(), "n2 X a=1", "{is_seen}");
    }
}

#[test]
fn d9_a_locator_waits_once_and_after_an_error_it_begins_again() {
    let locators = |names: &str| -> Locators {
        let of = |name: &str| Locator { name: name.into(), parameters: Parameters::new() };
        names.split(' ').map(of).collect()
    };
    let failed = Waiting { failure: Some((Code::UNAVAILABLE, "away".into())), ..Waiting::new(SECOND) };
    let mut unknown = Unknown::default();
    unknown.begin(SECOND, locators("a b"), |_| true);
    unknown.add(failed.clone(), locators("d e"));
    unknown.begin(2 * SECOND, locators("b c d"), |waiting| waiting.failure.is_none());
    let expected = [(Waiting::new(SECOND), "a b"), (failed, "e"), (Waiting::new(2 * SECOND), "c d")];
    assert_eq!(unknown.waiting, expected.map(|(waiting, names)| (waiting, locators(names))).into());
    unknown.keep(|locator| locator.name.as_str() == "e");
    assert_eq!(unknown.waiting.into_values().collect::<Vec<_>>(), [locators("e")]);
}

const SECOND: Duration = Duration::from_secs(1);

/// Regression: the error was sent with the answer to another name, when the client had given up its own.
#[test]
fn s24_s37_an_error_that_waits_is_not_for_a_name_that_the_client_gives_up() {
    let cache = Cache::on_demand();
    let mut sotw = sotw(&cache, "CDS", "* a");
    commit(&cache, "CDS !*/12 !a/12");
    assert_eq!(sotw.sent(), "");
    sotw.ask("CDS", "c", "");
    assert_eq!(sotw.sent(), "");
    commit(&cache, "CDS c=1");
    assert_eq!(sotw.sent(), "n1 CDS c=1");
}

/// Regression: a name that a client gave up beside a wildcard that was refused came as removed, although the wildcard
/// may have the resource.
#[test]
fn d18_a_name_that_is_given_up_beside_a_refused_wildcard_waits_for_the_answer_to_the_wildcard() {
    for (answer, expected) in [("X a=1 !*", "n4 X a=1"), ("X !*", "n4 X -a")] {
        let cache = Cache::on_demand();
        let mut client = delta(&cache, "X", "* a");
        commit(&cache, "X a=1 !*");
        assert_eq!(client.sent(), "n1 X a=1");
        client.ack("X", "1");
        commit(&cache, "X -a !a/12 !*/12");
        assert_eq!(client.sent(), r#"n2 X !"*"(12); n3 X !"a"(12) !"*"(12)"#);
        client.ack("X", "2");
        client.ack("X", "3");
        client.ask("X", "-a");
        assert_eq!(client.sent(), "");
        commit(&cache, answer);
        assert_eq!(client.sent(), expected);
    }
}

/// Regression: an answer that did not wait for the clusters came without the withheld removal of the variant that it
/// replaces (seed 4395).
#[test]
fn t31_an_answer_that_does_not_wait_goes_with_the_withheld_removal_of_what_it_replaces() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "RDS", "a?env=b");
    client.ask("CDS", "c");
    commit(&cache, "RDS a[env!=a]=1>c; CDS c=static");
    client.sent();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "RDS -a[env!=a] !a?env=b/14");
    assert_eq!(client.sent(), r#"n3 RDS !"a"(14)"#);
    client.ack("RDS", "3");
    commit(&cache, "CDS c=static2; RDS a=2>c !a?env=b");
    assert_eq!(client.sent(), "n4 CDS c=static2; n5 RDS a[]=2>c -a[env!=a]");
}

/// Regression: the resource was sent as news, and again when the wildcard was answered (seed 14751).
#[test]
fn d18_a_resource_that_is_sent_while_the_wildcard_is_refused_is_the_answer_that_waits() {
    for list in ["* a", "*?env=a a?env=a"] {
        let cache = Cache::on_demand();
        let mut client = delta(&cache, "X", list);
        let refused = if list == "* a" { "!a !*/14" } else { "!a?env=a !*?env=a/14" };
        commit(&cache, &format!("X b=1 {refused}"));
        client.sent();
        client.ack("X", "1");
        client.ask("X", if list == "* a" { "-a" } else { "-a?env=a" });
        assert_eq!(client.sent(), "", "{list}");
        commit(&cache, "X a=1");
        let sent = client.sent();
        assert!(sent.contains(" a") && sent.contains("=1 !"), "{list}: {sent}");
        client.ack("X", "2");
        commit(&cache, if list == "* a" { "X !*" } else { "X !*?env=a" });
        let sent = client.sent();
        assert!(!sent.contains(" a"), "{list}: {sent}");
    }
}

/// Regression: a proxy that dropped what it had of a type that was refused was not sent again what had not changed.
#[test]
fn g4_a_wildcard_that_was_refused_is_answered_with_everything() {
    for (code, delta_expected, sotw_expected) in
        [(12, "n3 X a=1 b=2", "n3 X a=1 b=2"), (14, "n3 X b=2", "n3 X b=2")]
    {
        let cache = Cache::on_demand();
        let (mut delta, mut sotw) = (delta(&cache, "X", "*"), sotw(&cache, "X", "*"));
        commit(&cache, "X a=1 b=1 !*");
        assert_eq!([delta.sent(), sotw.sent()], ["n1 X a=1 b=1"; 2]);
        delta.ack("X", "1");
        sotw.ack("X", "1");
        commit(&cache, &format!("X -a -b !*/{code}"));
        let error = format!(r#"n2 X !"*"({code})"#);
        assert_eq!([delta.sent(), sotw.sent()], [&*error; 2]);
        delta.ack("X", "2");
        sotw.ack("X", "2");
        commit(&cache, "X a=1 b=2 !*");
        assert_eq!([delta.sent(), sotw.sent()], [delta_expected, sotw_expected]);
    }
}

/// Clients of both protocols, with these locators of a route.
fn of_both(cache: &Arc<Cache>, list: &str) -> (Delta, Sotw) {
    (delta(cache, "RDS", list), sotw(cache, "RDS", list))
}

/// What the two are sent, which they ACK.
fn both_sent((delta, sotw): &mut (Delta, Sotw)) -> (String, String) {
    let sent = (delta.sent(), sotw.sent());
    let nonce = |sent: &str| sent.split_once(' ').map(|(nonce, _)| nonce[1..].to_owned());
    nonce(&sent.0).iter().for_each(|nonce| _ = delta.ack("RDS", nonce));
    nonce(&sent.1).iter().for_each(|nonce| _ = sotw.ack("RDS", nonce));
    sent
}

/// What another locator is to get is not known when the first one gets another variant, so the removal
/// is withheld. When the variant comes back, the first locator needs it again, whether the other
/// variant is replaced or was removed before.
#[test]
fn v29_t34_what_comes_back_is_sent_to_a_locator_that_got_another_variant_meanwhile() {
    for is_removed_before in [false, true] {
        let cache = Cache::on_demand();
        let mut clients = of_both(&cache, "a?env=prod a?env=test");
        commit(&cache, "RDS a=1");
        assert_eq!(both_sent(&mut clients), ("n1 RDS a[]=1".into(), "n1 RDS a[]=1".into()));
        commit(&cache, "RDS -a a[env=prod]=2");
        let other = "n2 RDS a[env=prod]=2";
        assert_eq!(both_sent(&mut clients), (other.into(), other.into()));
        if is_removed_before {
            commit(&cache, "RDS -a[env=prod] !a?env=prod");
            both_sent(&mut clients);
            clients.0.pass(Duration::from_secs(5));
            assert_eq!(both_sent(&mut clients).0, "n3 RDS -a[env=prod]");
            commit(&cache, "RDS a=1");
            assert_eq!(both_sent(&mut clients), ("n4 RDS a[]=1".into(), "n3 RDS a[]=1".into()));
        } else {
            commit(&cache, "RDS -a[env=prod] a=1");
            let back = ("n3 RDS a[]=1 -a[env=prod]".into(), "n3 RDS a[]=1".into());
            assert_eq!(both_sent(&mut clients), back);
        }
    }
}

/// The removal is withheld for one locator. Another one, subscribed to meanwhile, is told that there is
/// nothing for it.
#[test]
fn v29_t35_what_comes_back_is_sent_to_a_locator_that_was_told_its_absence_meanwhile() {
    let cache = Cache::on_demand();
    let mut client = delta(&cache, "RDS", "a?env=test");
    commit(&cache, "RDS a=1");
    assert_eq!(client.sent(), "n1 RDS a[]=1");
    client.ack("RDS", "1");
    commit(&cache, "RDS -a !a?env=prod");
    assert_eq!(client.sent(), "");
    client.ask("RDS", "a?env=prod");
    assert_eq!(client.sent(), "n2 RDS -a[env=prod]");
    client.ack("RDS", "2");
    commit(&cache, "RDS a=1");
    assert_eq!(client.sent(), "n3 RDS a[]=1");
}
