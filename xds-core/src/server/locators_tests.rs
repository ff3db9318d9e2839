//! Clients that send locators get constraints, in both protocols. The vectors V15 to V28 of TP2.
//!
//! `X` is a type that nothing refers to, so its removals do not wait (S33).

use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Delta, Sotw, commit, parameters, type_url, version};
use crate::Cache;

pub(super) fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A delta client with this subscription.
pub(super) fn delta(cache: &Arc<Cache>, type_name: &str, list: &str) -> Delta {
    let mut client = Delta::new(cache);
    client.ask(type_name, list);
    client
}

pub(super) fn sotw(cache: &Arc<Cache>, type_name: &str, list: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    client.ask(type_name, list, "");
    client
}

#[test]
fn v15_t24_t25_a_locator_gets_its_variant_with_constraints_and_without_the_plain_name() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    assert_eq!(delta(&cache, "X", "r?env=prod").sent(), "n1 X r[env=prod]=A");
    assert_eq!(delta(&cache, "X", "r?env=test").sent(), "n1 X r[env=test]=B");
    assert_eq!(delta(&cache, "X", "r?env=qa").sent(), "n1 X -r");
    assert_eq!(sotw(&cache, "X", "r?env=test").sent(), "n1 X r[env=test]=B");
    assert_eq!(sotw(&cache, "X", "r?env=qa").sent(), "");
}

#[test]
fn t5_t25_parameters_that_no_constraint_names_do_not_matter_and_the_unconstrained_say_so() {
    let cache = cache("X r=A");
    assert_eq!(delta(&cache, "X", "r?env=prod&zone=b").sent(), "n1 X r[]=A");
    assert_eq!(sotw(&cache, "X", "r?env=prod").sent(), "n1 X r[]=A");
}

#[test]
fn t24_who_sent_no_locator_of_the_type_is_told_plain_names() {
    let cache = cache("X r[env=prod]=A; Y r[env=prod]=B");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("X", "r?env=prod");
    client.ask("Y", "r");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A; n2 Y r=B");
}

#[test]
fn v16_t31_a_switch_is_one_response_and_without_another_variant_a_removal() {
    let cache = cache("X r[env=prod]=A");
    let mut moves = delta(&cache, "X", "r?env=prod&version=v1");
    let mut loses = delta(&cache, "X", "r?env=prod");
    assert_eq!([moves.sent(), loses.sent()], ["n1 X r[env=prod]=A", "n1 X r[env=prod]=A"]);
    commit(&cache, "X -r[env=prod] r[env=prod,version=v1]=B r[env=prod,version=v2]=C");
    moves.ack("X", "1");
    loses.ack("X", "1");
    assert_eq!(moves.sent(), "n2 X r[env=prod,version=v1]=B -r[env=prod]");
    assert_eq!(loses.sent(), "n2 X -r[env=prod]");
}

#[test]
fn v16_s33_of_what_others_refer_to_a_switch_is_told_at_once_and_a_loss_later() {
    let cache = cache("RDS r[env=prod]=A");
    let mut moves = delta(&cache, "RDS", "r?env=prod&version=v1");
    let mut loses = delta(&cache, "RDS", "r?env=prod");
    for client in [&mut moves, &mut loses] {
        client.sent();
        client.ack("RDS", "1");
    }
    commit(&cache, "RDS -r[env=prod] r[env=prod,version=v1]=B r[env=prod,version=v2]=C");
    assert_eq!(moves.sent(), "n2 RDS r[env=prod,version=v1]=B -r[env=prod]");
    assert_eq!((loses.sent().as_str(), loses.waits_until()), ("", Some(5000)));
    loses.pass(Duration::from_secs(5));
    assert_eq!(loses.sent(), "n2 RDS -r[env=prod]");
}

#[test]
fn t31_what_is_held_goes_with_the_variant_that_comes_in_its_place() {
    let cache = cache("RDS r[env=prod]=A");
    let mut client = delta(&cache, "RDS", "r?env=prod&version=v1");
    client.sent();
    client.ack("RDS", "1");
    commit(&cache, "RDS -r[env=prod]");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    commit(&cache, "RDS r[env=prod,version=v1]=B");
    assert_eq!(client.sent(), "n2 RDS r[env=prod,version=v1]=B -r[env=prod]");
    client.ack("RDS", "2");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn v28_an_unconstrained_variant_is_removed_with_its_constraints_unset() {
    let cache = cache("X r=A");
    let mut client = delta(&cache, "X", "r?env=prod");
    assert_eq!(client.sent(), "n1 X r[]=A");
    client.ack("X", "1");
    commit(&cache, "X -r r[env=prod]=B r[env!=prod]=C");
    assert_eq!(client.sent(), "n2 X r[env=prod]=B -r[]");
}

#[test]
fn v18_t29_several_parameter_sets_of_a_name_are_followed_apart() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    let mut client = delta(&cache, "X", "r?env=prod r?env=test r?env=test&zone=b");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A r[env=test]=B");
    client.ack("X", "1");
    client.ask("X", "-r?env=prod");
    commit(&cache, "X r[env=prod]=A2 r[env=test]=B2");
    assert_eq!(client.sent(), "n2 X r[env=test]=B2");
    client.ack("X", "2");
    client.ask("X", "r?env=prod");
    assert_eq!(client.sent(), "n3 X r[env=prod]=A2");
    client.ack("X", "3");
    client.ask("X", "r?env=test&zone=c");
    assert_eq!(client.sent(), "n4 X r[env=test]=B2");
}

#[test]
fn v19_t35_what_is_not_there_is_told_by_the_parameters_when_another_variant_is() {
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "X", "r?env=prod r?env=qa r?zone=b r?env=qa&zone=c");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A -r[env=qa] -r[!env]");
    client.ack("X", "1");
    client.ask("X", "r?env=new&zone=d r?env=new");
    assert_eq!(client.sent(), "n2 X -r[env=new]");
    client.ack("X", "2");
    commit(&cache, "X r[env=qa]=B");
    assert_eq!(client.sent(), "n3 X r[env=qa]=B");
}

#[test]
fn t30_a_bare_name_says_that_no_locator_has_a_variant() {
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "X", "r?env=qa r?env=test");
    assert_eq!(client.sent(), "n1 X -r");
    client.ack("X", "1");
    client.ask("X", "r?env=prod");
    assert_eq!(client.sent(), "n2 X r[env=prod]=A");
    client.ack("X", "2");
    commit(&cache, "X -r[env=prod]");
    assert_eq!(client.sent(), "n3 X -r[env=prod]");
    client.ack("X", "3");
    client.ask("X", "r?env=other");
    assert_eq!(client.sent(), "n4 X -r");
}

#[test]
fn t35_asked_anew_while_its_removal_waits_a_locator_is_told_and_another_is_not() {
    let cache = cache("RDS r[env=prod]=A r[env=test]=B");
    let mut client = delta(&cache, "RDS", "r?env=prod r?env=test");
    client.sent();
    client.ack("RDS", "1");
    commit(&cache, "RDS -r[env=prod] -r[env=test]");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.ask("RDS", "r?env=qa");
    assert_eq!(client.sent(), "n2 RDS -r[env=qa]");
    client.ask("RDS", "r?env=test");
    assert_eq!(client.sent(), "n3 RDS -r[env=test]");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n4 RDS -r[env=prod]");
}

#[test]
fn v20_t33_other_parameters_are_another_locator_and_the_old_variant_is_not_removed() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    let mut client = delta(&cache, "X", "r?env=prod");
    client.sent();
    client.ask("X", "-r?env=prod r?env=test");
    assert_eq!(client.sent(), "n2 X r[env=test]=B");
    let mut client = sotw(&cache, "X", "r?env=prod");
    client.sent();
    client.ask("X", "r?env=test", "1");
    assert_eq!(client.sent(), "n2 X r[env=test]=B");
}

#[test]
fn t33_a_new_locator_is_answered_though_its_variant_was_sent() {
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "X", "r?env=prod&zone=a");
    client.sent();
    client.ask("X", "-r?env=prod&zone=a r?env=prod&zone=b");
    assert_eq!(client.sent(), "n2 X r[env=prod]=A");
}

#[test]
fn v21_t28_a_wildcard_selects_of_each_name_the_variant_for_its_parameters() {
    let cache = cache("X a[env=prod]=A a[env=test]=B b=C c[env=test]=D");
    let mut client = delta(&cache, "X", "*?env=prod");
    assert_eq!(client.sent(), "n1 X a[env=prod]=A b[]=C");
    client.ack("X", "1");
    commit(&cache, "X -a[env=prod] c[env=prod]=E d[env=test]=F");
    assert_eq!(client.sent(), "n2 X c[env=prod]=E -a[env=prod]");
    client.ack("X", "2");
    client.ask("X", "*?env=test");
    assert_eq!(client.sent(), "n3 X a[env=test]=B b[]=C c[env=prod]=E c[env=test]=D d[env=test]=F");
}

#[test]
fn t28_v9_wildcards_and_names_of_other_parameters_go_into_one_full_state() {
    let cache = cache("CDS a[env=prod]=A a[env=test]=B b=C");
    let mut client = sotw(&cache, "CDS", "*?env=prod a?env=test");
    assert_eq!(client.sent(), "n1 CDS a[env=prod]=A a[env=test]=B b[]=C");
    client.ask("CDS", "*?env=prod", "1");
    // S22: the wildcard does not cover it.
    assert_eq!(client.sent(), "n2 CDS a[env=prod]=A b[]=C");
    client.ask("CDS", "a?env=test", "2");
    assert_eq!(client.sent(), "n3 CDS a[env=test]=B");
}

#[test]
fn d18_a_locator_given_up_under_a_wildcard_is_answered() {
    let cache = cache("X a[env=prod]=A a[env=test]=B");
    let mut client = delta(&cache, "X", "*?env=prod a?env=test a?env=prod&zone=b");
    assert_eq!(client.sent(), "n1 X a[env=prod]=A a[env=test]=B");
    client.ack("X", "1");
    client.ask("X", "-a?env=test");
    assert_eq!(client.sent(), "n2 X -a[env=test]");
    client.ask("X", "-a?env=prod&zone=b");
    assert_eq!(client.sent(), "n3 X a[env=prod]=A");
}

#[test]
fn v22_t37_who_comes_back_is_compared_with_the_variant_it_gets_now() {
    let cache = cache("X r[env=prod]=A r[env=test]=A");
    let version = |locator: &str| {
        let mut client = delta(&cache, "X", locator);
        client.sent();
        client.last.resources[0].version.clone()
    };
    let (prod, test) = (version("r?env=prod"), version("r?env=test"));
    // V: the payload is the same, but the variant is another.
    assert_ne!(prod, test);
    let back = |version: &str| {
        let mut client = Delta::new(&cache);
        client.ask_with("X", "r?env=test", "", &[("r", version)]);
        client.sent()
    };
    assert_eq!(back(&prod), "n1 X r[env=test]=A");
    assert_eq!(back(&test), "");
}

#[test]
fn t37_without_constraints_the_version_is_that_of_the_payload() {
    let cache = cache("X r=A");
    let mut client = Delta::new(&cache);
    client.ask_with("X", "r?env=test", "", &[("r", &version("X", "r", "A"))]);
    assert_eq!(client.sent(), "");
}

#[test]
fn v23_t27_t38_in_sotw_each_variant_is_wrapped_and_the_version_is_that_of_the_selection() {
    let cache = cache("CDS r[env=prod]=A r[env=test]=B");
    let mut both = sotw(&cache, "CDS", "r?env=prod r?env=test");
    assert_eq!(both.sent(), "n1 CDS r[env=prod]=A r[env=test]=B");
    let mut one = sotw(&cache, "CDS", "r?env=prod");
    assert_eq!(one.sent(), "n1 CDS r[env=prod]=A");
    assert_ne!(both.last.version_info, one.last.version_info);
    let mut same = sotw(&cache, "CDS", "r?env=test&zone=b r?env=prod");
    same.sent();
    assert_eq!(same.last.version_info, both.last.version_info);
    let mut plain = Sotw::new(&cache);
    plain.stream.on_node(parameters("env=prod"));
    plain.ask("CDS", "r", "");
    assert_eq!(plain.sent(), "n1 CDS r=A");
}

#[test]
fn t31_in_sotw_the_full_state_brings_the_other_variant_and_not_the_old_one() {
    let cache = cache("CDS r[env=prod]=A");
    let mut client = sotw(&cache, "CDS", "r?env=prod&version=v1");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -r[env=prod] r[env=prod,version=v1]=B");
    assert_eq!(client.sent(), "n2 CDS r[env=prod,version=v1]=B");
}

#[test]
fn t46_a_locator_without_parameters_means_none_whatever_the_node_says() {
    let cache = cache("X r[env=prod]=A r[!env]=B");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("X", "r?");
    assert_eq!(client.sent(), "n1 X r[!env]=B");
}

#[test]
fn v29_t32_constraints_that_migrate_with_an_equal_payload_reach_locators_in_one_response() {
    let cache = cache("X r[env=prod]=A");
    let mut located = delta(&cache, "X", "r?env=prod");
    let mut plain = Delta::new(&cache);
    plain.stream.on_node(parameters("env=prod"));
    plain.ask("X", "r");
    assert_eq!([located.sent(), plain.sent()], ["n1 X r[env=prod]=A", "n1 X r=A"]);
    located.ack("X", "1");
    plain.ack("X", "1");
    commit(&cache, "X -r[env=prod] r[env=prod,!version]=A");
    assert_eq!(located.sent(), "n2 X r[env=prod,!version]=A -r[env=prod]");
    assert_eq!(plain.sent(), "");
}

#[test]
fn s34_every_variant_of_the_endpoints_follows_its_cluster() {
    let cache = cache("CDS c=1; EDS c[env=prod]=A c[env=test]=B");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*?");
    client.ask("EDS", "c?env=prod c?env=test");
    assert_eq!(client.sent(), "n1 CDS c[]=1; n2 EDS c[env=prod]=A c[env=test]=B");
    client.ack("CDS", "1");
    client.ack("EDS", "2");
    commit(&cache, "CDS c=2");
    assert_eq!(client.sent(), "n3 CDS c[]=2; n4 EDS c[env=prod]=A c[env=test]=B");
}

#[test]
fn clients_with_equal_effective_parameters_share_a_class_and_its_bytes() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    let mut clients: Vec<_> =
        (0..4).map(|pod| delta(&cache, "X", &format!("r?env=prod&pod={pod}"))).collect();
    let sent: Vec<_> = clients.iter_mut().map(Delta::sent).collect();
    assert!(sent.iter().all(|sent| sent == "n1 X r[env=prod]=A"), "{sent:?}");
    assert!(clients.iter().all(|client| Arc::ptr_eq(&client.last_bodies[0], &clients[0].last_bodies[0])));
    assert_eq!(cache.classes(), 1);
    // A client that subscribes by name gets other bytes.
    let mut plain = Delta::new(&cache);
    plain.stream.on_node(parameters("env=prod"));
    plain.ask("X", "r");
    plain.sent();
    assert_eq!(cache.classes(), 2);
}

#[test]
fn a_key_that_begins_to_count_parts_the_locators_that_were_alike() {
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "X", "r?env=prod&zone=a r?env=prod&zone=b");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A");
    client.ack("X", "1");
    commit(&cache, "X -r[env=prod] r[env=prod,zone=a]=B r[env=prod,zone=b]=C");
    assert_eq!(client.sent(), "n2 X r[env=prod,zone=a]=B r[env=prod,zone=b]=C -r[env=prod]");
    client.ack("X", "2");
    commit(&cache, "X -r[env=prod,zone=b]");
    assert_eq!(client.sent(), "n3 X -r[env=prod,zone=b]");
}

#[test]
fn t38_the_version_under_a_wildcard_and_a_name_is_that_of_a_fresh_stream() {
    let cache = cache("CDS a[env=prod]=A a[env=test]=B");
    let list = "*?env=prod a?env=test";
    let mut client = sotw(&cache, "CDS", list);
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS a[env=test]=B2");
    assert_eq!(client.sent(), "n2 CDS a[env=prod]=A a[env=test]=B2");
    let kept = client.last.version_info.clone();
    drop(client);
    assert_eq!(kept, sotw(&cache, "CDS", list).sent_version());
}

#[test]
fn s41_the_version_of_a_selection_is_known_before_it_is_sent() {
    let cache = cache("CDS a[env=prod]=A a[env=test]=B b=static; EDS a=1 b=2");
    for (type_name, list) in
        [("CDS", ""), ("CDS", "a?env=test"), ("CDS", "*?env=prod"), ("EDS", "a b"), ("EDS", "b c")]
    {
        let mut client = sotw(&cache, type_name, list);
        let version = client.stream.version(&type_url(type_name), &cache.snapshot()).to_string();
        assert_eq!(client.sent_version(), version, "{type_name} {list}");
    }
    // S17: a selection without resources has a version too, whatever names it has.
    let nothing = |list| sotw(&cache, "EDS", list).stream.version(&type_url("EDS"), &cache.snapshot());
    assert_eq!(nothing("c"), nothing("d e"));
    assert_ne!(nothing("c"), nothing("a"));
}

#[test]
fn s33_a_held_removal_is_not_told_by_a_new_wildcard() {
    let cache = cache("CDS a[env=prod]=static b[env=prod]=static");
    let mut client = delta(&cache, "CDS", "a?env=prod b?env=prod");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -b[env=prod]");
    assert_eq!(client.sent(), "");
    client.ask("CDS", "*?env=test");
    assert_eq!(client.sent(), "n2 CDS a[env=prod]=static");
    client.ack("CDS", "2");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 CDS -b[env=prod]");
}

#[test]
fn s33_in_sotw_a_new_locator_does_not_end_the_hold_of_another_of_its_name() {
    let cache = cache("CDS r[env=prod]=static");
    let mut client = sotw(&cache, "CDS", "r?env=prod");
    client.sent();
    commit(&cache, "CDS -r[env=prod] r[env=qa]=static");
    client.ask("CDS", "r?env=prod r?env=qa", "1");
    assert_eq!(client.sent(), "n2 CDS r[env=qa]=static r[env=prod]=static");
}

#[test]
fn s33_in_sotw_a_new_wildcard_does_not_end_the_hold_of_a_locator() {
    let cache = cache("CDS r[env=prod]=static s=static");
    let mut client = sotw(&cache, "CDS", "r?env=prod");
    client.sent();
    commit(&cache, "CDS -r[env=prod]");
    client.ask("CDS", "r?env=prod *?env=qa", "1");
    assert_eq!(client.sent(), "n2 CDS s[]=static r[env=prod]=static");
}

#[test]
fn d18_given_up_while_its_variant_goes_it_is_told() {
    let cache = cache("X a[env=prod]=A a[env=test]=B");
    let mut client = delta(&cache, "X", "*?env=prod a?env=test");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X -a[env=test]");
    client.ask("X", "-a?env=test");
    assert_eq!(client.sent(), "n2 X -a[env=test]");
}

#[test]
fn d18_given_up_while_its_variant_is_replaced_the_one_it_had_is_told() {
    let cache = cache("X a[env=prod]=A a[env=test]=B");
    let mut client = delta(&cache, "X", "*?env=prod a?env=test&zone=b");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X -a[env=test] -a[env=prod] a[env=test,zone=b]=C a[env=prod,!zone]=A");
    client.ask("X", "-a?env=test&zone=b");
    let sent = client.sent();
    assert!(sent.contains(" -a[env=test]"), "{sent}");
}

#[test]
fn d18_given_up_while_its_removal_is_held_it_is_told() {
    let cache = cache("CDS a[env=prod]=static a[env=test]=static");
    let mut client = delta(&cache, "CDS", "*?env=prod a?env=test");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -a[env=test]");
    assert_eq!(client.sent(), "");
    client.ask("CDS", "-a?env=test");
    let first = client.sent();
    client.pass(Duration::from_secs(10));
    assert_eq!(first + &client.sent(), "n2 CDS -a[env=test]");
}

#[test]
fn d21_what_was_brought_and_held_is_told_to_the_locator_that_still_has_none() {
    let cache = cache("RDS z=Z");
    let mut client = Delta::new(&cache);
    client.ask_with("RDS", "r?env=test r?env=prod", "", &[("r", "of-test")]);
    assert_eq!(client.sent(), "");
    commit(&cache, "RDS r[env=prod]=P");
    let sent = client.sent();
    client.pass(Duration::from_secs(10));
    let sent = sent + &client.sent();
    assert!(sent.contains("-r[env=test]"), "{sent}");
}

#[test]
fn s22_a_name_given_up_that_the_wildcard_covers_sends_nothing() {
    let cache = cache("CDS a[env=prod]=static");
    let mut client = sotw(&cache, "CDS", "*?env=prod a?env=prod&zone=b");
    client.sent();
    client.ask("CDS", "*?env=prod", "1");
    assert_eq!(client.sent(), "");
}

#[test]
fn g9_wildcards_count() {
    use super::{DeltaRequest, Protocol, Service, Stream, StreamConfig};
    use crate::subscription::Locator;
    let config = StreamConfig { names_limit: 3, ..StreamConfig::default() };
    let mut stream = Stream::new(cache("X a=A").watch(), Service::Aggregated, Protocol::Delta, config);
    let locator = |k| Locator { name: "*".into(), parameters: parameters(&format!("k={k}")) };
    let subscribe = (0..4).map(locator).collect();
    assert!(
        stream
            .on_request(
                Duration::ZERO,
                DeltaRequest { type_url: "X".into(), subscribe, ..DeltaRequest::default() }
            )
            .is_err()
    );
}

#[test]
fn t31_an_answer_while_pushes_wait_does_not_split_a_switch() {
    let cache = cache("CDS c=static; RDS r[env=prod]=A");
    let mut client = delta(&cache, "CDS", "c?");
    client.ask("RDS", "r?env=prod&version=v1");
    assert_eq!(client.sent(), "n1 CDS c[]=static; n2 RDS r[env=prod]=A");
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS c=2; RDS -r[env=prod] r[env=prod,version=v1]=B");
    assert_eq!(client.sent(), "n3 CDS c[]=2");
    client.ask("RDS", "r?env=prod&version=v1");
    assert_eq!(client.sent(), "n4 RDS r[env=prod,version=v1]=B -r[env=prod]");
}

#[test]
fn t28_two_wildcards_and_versions_follow() {
    let cache = cache("CDS a[env=prod]=A a[env=test]=B b=C");
    let list = "*?env=prod *?env=test b?env=qa";
    let mut client = sotw(&cache, "CDS", list);
    client.sent();
    client.ack("CDS", "1");
    for (n, text) in
        ["CDS a[env=test]=B2", "CDS b=D", "CDS -a[env=test]", "CDS -b", "CDS b[env=qa]=x b[env=prod]=x"]
            .iter()
            .enumerate()
    {
        commit(&cache, text);
        client.pass(Duration::from_secs(6));
        client.sent();
        client.sent();
        let nonce = client.last.nonce.clone();
        client.ack("CDS", &nonce);
        client.pass(Duration::from_secs(6));
        client.sent();
        let nonce = client.last.nonce.clone();
        client.ack("CDS", &nonce);
        let fresh = sotw(&cache, "CDS", list).sent_version();
        assert_eq!(client.last.version_info, fresh, "{n}");
    }
}

#[test]
fn s24_what_is_asked_for_and_given_up_before_the_answer_is_not_answered() {
    // Regression: an answer was owed and nothing was selected, which caused a panic.
    let cache = cache("LDS a=A");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "a", "");
    client.ask("LDS", "*?env=prod", "");
    client.ask("LDS", "", "");
    assert_eq!(client.sent(), "");
}

#[test]
fn d30_locators_are_added_answered_and_given_up_by_name_and_parameters() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    let mut client = delta(&cache, "X", "r?env=prod r?env=test r?env=qa");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A r[env=test]=B -r[env=qa]");
    client.ack("X", "1");
    // D2, D19: one of them is removed, without an answer.
    client.ask("X", "-r?env=test");
    assert_eq!(client.sent(), "");
    commit(&cache, "X r[env=prod]=C r[env=test]=D");
    assert_eq!(client.sent(), "n2 X r[env=prod]=C");
    client.ack("X", "2");
    // D9: a resource that the client has is sent again.
    client.ask("X", "r?env=prod");
    assert_eq!(client.sent(), "n3 X r[env=prod]=C");
    client.ack("X", "3");
    // D11: sent once.
    commit(&cache, "X -r[env=prod]");
    assert_eq!(client.sent(), "n4 X -r[env=prod]");
    client.ack("X", "4");
    assert_eq!(client.sent(), "");
}

#[test]
fn t33b_what_was_sent_before_a_locator_was_given_up_is_forgotten() {
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "X", "r?env=prod");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A");
    // In one message, and while the answer is on its way: the client ignores that answer.
    client.ask("X", "-r?env=prod r?env=prod");
    assert_eq!(client.sent(), "n2 X r[env=prod]=A");
    client.ack("X", "1");
    client.ack("X", "2");
    client.ask("X", "-r?env=prod");
    client.ask("X", "r?env=prod");
    assert_eq!(client.sent(), "n3 X r[env=prod]=A");
}

/// G6: the first request may have no node.
#[test]
fn t46_g6_a_node_that_comes_later_counts_for_later_types() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; EDS e[env=prod]=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "c");
    assert_eq!(client.sent(), "n1 CDS c=1");
    client.stream.on_node(parameters("env=prod"));
    client.ask("EDS", "e");
    assert_eq!(client.sent(), "n2 EDS e=1");
}
