//! The resources of a rejected response are sent again in parts (S6c, S6d, D8, V27).

use std::sync::Arc;
use std::time::Duration;

use super::super::Verdict;
use super::super::fixture::{Delta, commit, parameters};
use super::tests::{cache, settled};
use crate::Cache;

/// V27: `a` and `b` were ACKed, and a change of both was rejected.
fn rejected(cache: &Arc<Cache>) -> Delta {
    commit(cache, "EDS a=1 b=1 c=1");
    let mut client = settled(cache, "EDS", "a b c");
    commit(cache, "EDS a=2 b=2");
    assert_eq!(client.sent(), "n2 EDS a=2 b=2");
    client.nack("EDS", "2");
    client
}

#[test]
fn s6c_v27_d8_each_name_goes_alone_and_the_bad_one_is_not_repeated_until_it_changes() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    assert_eq!(client.sent(), "n3 EDS a=2");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS b=2");
    client.nack("EDS", "4");
    client.pass(Duration::from_secs(600));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n5 EDS c=2");
    client.ack("EDS", "5");
    commit(&cache, "EDS b=1");
    assert_eq!(client.sent(), "n6 EDS b=1", "a return to the content before is a change");
    client.ack("EDS", "6");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s6c_what_changes_is_sent_as_a_change_and_leaves_the_parts() {
    for content in ["1", "3"] {
        let cache = Cache::new();
        let mut client = rejected(&cache);
        commit(&cache, &format!("EDS a={content}"));
        assert_eq!(client.sent(), "n3 EDS b=2");
        client.ack("EDS", "3");
        assert_eq!(client.sent(), format!("n4 EDS a={content}"));
        client.ack("EDS", "4");
        assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    }
}

#[test]
fn s6c_a_deletion_is_sent_though_it_was_never_acked_and_leaves_the_parts() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS -b");
    assert_eq!(client.sent(), "n3 EDS a=2");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "", "a removal without known referrers waits for the grace time (S33)");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n4 EDS -b");
    client.ack("EDS", "4");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// S9b: Envoy does not ACK clusters while one of them warms.
#[test]
fn s6c_s9b_a_part_waits_for_the_answer_to_the_part_before_for_a_second() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    assert_eq!(client.sent(), "n3 EDS a=2");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(1000)));
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n4 EDS b=2");
    client.nack("EDS", "3");
    client.ack("EDS", "4");
    assert_eq!(client.sent(), "", "answers count by nonce");
    commit(&cache, "EDS b=1");
    assert_eq!(client.sent(), "n5 EDS b=1");
}

#[test]
fn s6c_a_part_has_no_other_change_and_changes_do_not_starve() {
    let cache = cache("EDS a=1 b=1 c=1 d=1 e=1");
    let mut client = settled(&cache, "EDS", "a b c d e");
    commit(&cache, "EDS a=2 b=2 c=2 d=2");
    assert_eq!(client.sent(), "n2 EDS a=2 b=2 c=2 d=2");
    client.nack("EDS", "2");
    commit(&cache, "EDS e=2");
    assert_eq!(client.sent(), "n3 EDS a=2 b=2");
    client.nack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS e=2");
    commit(&cache, "EDS e=3");
    client.ack("EDS", "4");
    assert_eq!(client.sent(), "n5 EDS a=2");
    client.ack("EDS", "5");
    assert_eq!(client.sent(), "n6 EDS e=3");
}

/// The unit is the name.
#[test]
fn s6c_t31_all_variants_of_a_name_go_together_and_removals_go_first() {
    let cache = cache("LDS a[env=a]=1 a[env=b]=1 b=1 d=1");
    let mut client = settled(&cache, "LDS", "a?env=a a?env=b b?env=a d?env=a");
    commit(&cache, "LDS a[env=a]=2 a[env=b]=2 b=2 -d");
    assert_eq!(client.sent(), "n2 LDS a[env=a]=2 a[env=b]=2 b[]=2 -d[]");
    client.nack("LDS", "2");
    assert_eq!(client.sent(), "n3 LDS -d[]");
    client.ack("LDS", "3");
    assert_eq!(client.sent(), "n4 LDS a[env=a]=2 a[env=b]=2 b[]=2");
    client.nack("LDS", "4");
    assert_eq!(client.sent(), "n5 LDS a[env=a]=2 a[env=b]=2");
}

/// Regression: what changed was sent before the client had ACKed the clusters that came with it, and then
/// a second time (seed 37403).
#[test]
fn s6c_s33_a_name_whose_change_waits_for_other_types_is_sent_once() {
    let cache = cache("LDS c=1 e=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    client.ask("LDS", "c e");
    assert_eq!(client.sent(), "n1 CDS; n2 LDS c=1 e=1");
    client.ack("CDS", "1");
    client.nack("LDS", "2");
    commit(&cache, "CDS x=1; LDS e=2");
    assert_eq!(client.sent(), "n3 CDS x=1; n4 LDS c=1");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "3");
    assert_eq!(client.sent(), "n5 LDS e=2");
    client.ack("LDS", "5");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// What changed, and changed back before it could be sent, is still in the parts.
#[test]
fn s6c_s33_a_name_that_changed_back_is_sent_once_more() {
    let cache = cache("LDS c=1 d=1");
    let mut client = settled(&cache, "LDS", "c d");
    client.ask("CDS", "*");
    assert_eq!(client.sent(), "n2 CDS");
    client.ack("CDS", "2");
    commit(&cache, "LDS c=2 d=2");
    assert_eq!(client.sent(), "n3 LDS c=2 d=2");
    client.nack("LDS", "3");
    commit(&cache, "CDS x=1; LDS d=3");
    assert_eq!(client.sent(), "n4 CDS x=1; n5 LDS c=2");
    client.ack("LDS", "5");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS d=2");
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n6 LDS d=2");
    client.ack("LDS", "6");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// V29: the client may have the content before the one that comes back.
#[test]
fn s6c_v29_a_name_that_comes_back_before_its_removal_is_sent() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS -b");
    assert_eq!(client.sent(), "n3 EDS a=2");
    client.ack("EDS", "3");
    commit(&cache, "EDS b=2");
    assert_eq!(client.sent(), "n4 EDS b=2");
}

/// Regression: a client gave up a name while a response with it was on its way, and subscribed to it with other
/// parameters. While changes waited for clusters, the wildcard lost the variant that it had (seed 50372).
#[test]
fn s8b_t31_a_wildcard_keeps_what_it_has_while_changes_wait() {
    let cache = cache("LDS a=1");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=a"));
    client.ask("CDS", "d");
    client.ask("LDS", "* a b?env=a");
    assert_eq!(client.sent(), "n1 CDS -d; n2 LDS a[]=1 -b");
    client.ack("CDS", "1");
    commit(&cache, "CDS d=1; LDS -a a[env=a]=2");
    assert_eq!(client.sent(), "n3 CDS d=1");
    client.ask("LDS", "a?env=b -a -b?env=a");
    assert_eq!(client.sent(), "n4 LDS -a[env=b]");
    client.ack("CDS", "3");
    client.ack("LDS", "2");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "n5 LDS a[env=a]=2 -a[]");
}

/// Regression: names were sent once more although a newer response with them was on its way (seed 16249).
#[test]
fn s6c_names_that_a_newer_unanswered_response_has_wait_for_the_answer_to_that() {
    for is_rejected in [false, true] {
        let cache = cache("EDS a=1 b=1");
        let mut client = settled(&cache, "EDS", "a b");
        for (contents, expected) in [("a=2 b=2", "n2"), ("a=3", "n3"), ("a=4 b=4", "n4")] {
            commit(&cache, &format!("EDS {contents}"));
            assert_eq!(client.sent(), format!("{expected} EDS {contents}"));
            client.pass(Duration::from_secs(1));
        }
        client.nack("EDS", "2");
        client.ack("EDS", "3");
        assert_eq!(client.sent(), "");
        if is_rejected {
            client.nack("EDS", "4");
            assert_eq!(client.sent(), "n5 EDS a=4");
        } else {
            client.ack("EDS", "4");
            assert_eq!(client.sent(), "");
        }
    }
}

#[test]
fn v27_d8_a_single_rejected_resource_is_not_repeated_until_it_changes() {
    let cache = cache("EDS a=1 c=1");
    let mut client = settled(&cache, "EDS", "a c");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n2 EDS a=2");
    client.nack("EDS", "2");
    commit(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n3 EDS c=2");
    client.ack("EDS", "3");
    client.pass(Duration::from_secs(60));
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n4 EDS a=1");
}

#[test]
fn s6c_d9_a_name_that_the_client_subscribes_to_again_leaves_the_parts() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    client.ask("EDS", "b");
    assert_eq!(client.sent(), "n3 EDS a=2; n4 EDS b=2");
    client.nack("EDS", "4");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "");
    client.ask("EDS", "b");
    assert_eq!(client.sent(), "n5 EDS b=2");
}

#[test]
fn s6c_d8_a_name_with_a_new_locator_goes_with_the_answer_and_not_as_a_rejected_removal() {
    let cache = cache("EDS b[env=a]=1 d=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "b?env=b d");
    assert_eq!(client.sent(), "n1 EDS d[]=1 -b");
    client.ask("EDS", "b?env=a -b?env=b");
    client.nack("EDS", "1");
    assert_eq!(client.sent(), "n2 EDS d[]=1; n3 EDS b[env=a]=1");
}

/// Regression: the removal went alone, and said that there is no `b` for the wildcard (seed 16897).
#[test]
fn s6c_d8_t35_a_rejected_removal_of_what_a_new_wildcard_gets_goes_with_the_answer() {
    let cache = cache("X b[env=a]=1 b[env!=a]=1 d=1");
    let mut client = settled(&cache, "X", "*?env=b");
    commit(&cache, "X b[env=a]=2 -b[env!=a] b[env=b]=2 b[!env]=2 d=2");
    assert_eq!(client.sent(), "n2 X b[env=b]=2 d[]=2 -b[env!=a]");
    client.ask("X", "*?pod=x -*?env=b");
    client.nack("X", "2");
    assert_eq!(client.sent(), "n3 X b[!env]=2 d[]=2 -b[env!=a]");
}

/// Regression: what had been left out went as a part, and again after the answer (seed 13832).
#[test]
fn s6d_d8_what_was_left_out_goes_once_after_the_answer_to_a_new_wildcard() {
    let cache = cache("X c=1 f=1 h=1");
    let mut other = settled(&cache, "X", "f");
    commit(&cache, "X f=2");
    other.sent();
    other.nack("X", "2");
    other.sent();
    let mut client = settled(&cache, "X", "c");
    client.ask("X", "f h");
    assert_eq!(client.sent(), "n2 X h=1");
    client.ask("X", "* -f -h");
    client.ack("X", "2");
    assert_eq!(client.sent(), "n3 X c=1 h=1");
    client.ack("X", "3");
    assert_eq!(client.sent(), "n4 X f=2");
    client.ack("X", "4");
    assert_eq!(client.sent(), "");
}

#[test]
fn s33_what_is_rejected_after_it_was_given_up_holds_no_removal() {
    let cache = cache("CDS a=static b=static; EDS e=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "a");
    client.ask("EDS", "e");
    client.sent();
    client.ack("EDS", "2");
    client.ask("CDS", "-a b");
    client.sent();
    client.ack("CDS", "3");
    client.nack("CDS", "1");
    commit(&cache, "EDS -e");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n4 EDS -e");
}

#[test]
fn s6c_a_name_that_is_given_up_leaves_the_parts() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    client.ask("EDS", "-b");
    assert_eq!(client.sent(), "n3 EDS a=2");
    client.ack("EDS", "3");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s6d_each_name_is_sent_three_times_of_four_and_sixteen_names_are_found() {
    let names: Vec<_> = (0..40).map(|at| format!("n{at:02}")).collect();
    let all =
        |version: u32| names.iter().map(|name| format!("{name}={version}")).collect::<Vec<_>>().join(" ");
    let cache = cache(&format!("EDS {}", all(1)));
    let mut client = settled(&cache, "EDS", &names.join(" "));
    commit(&cache, &format!("EDS {}", all(2)));
    let (mut responses, mut alone) = (0, 0);
    loop {
        let sent = client.sent();
        if sent.is_empty() {
            break;
        }
        responses += 1;
        alone += usize::from(sent.matches('=').count() == 1);
        let nonce = client.last.nonce.clone();
        client.nack("EDS", &nonce);
    }
    assert_eq!((responses, alone), (34, 16), "all are bad");
    commit(&cache, "EDS n00=3");
    assert_eq!(client.sent(), "n36 EDS n00=3");
    client.ack("EDS", "36");
    assert_ne!(client.sent(), "", "one of the sixteen was corrected, so the split goes on");
}

/// The first client finds what is bad, so that the others get it last.
#[test]
fn s6d_d32_contents_that_other_clients_rejected_go_alone_after_the_rest() {
    let cache = Cache::new();
    let mut first = rejected(&cache);
    first.sent();
    first.ack("EDS", "3");
    first.sent();
    first.nack("EDS", "4");
    assert_eq!(first.sent(), "");
    let mut second = Delta::new(&cache);
    second.ask("EDS", "a b c");
    assert_eq!(second.sent(), "n1 EDS a=2 c=1");
    assert!(is_continued(&second), "the client must not count b as absent");
    second.ack("EDS", "1");
    assert_eq!(second.sent(), "n2 EDS b=2");
    assert!(!is_continued(&second));
    assert_eq!(second.nack("EDS", "2").map(|verdict| is_repeat(&verdict)), Some(false));
    assert_eq!((second.sent().as_str(), second.waits_until()), ("", None));
    // Another content is not known.
    commit(&cache, "EDS a=3 b=3");
    assert_eq!(second.sent(), "n3 EDS a=3 b=3");
}

/// A removal that waits (S33) is not in the response, so that the response has one resource.
#[test]
fn s6d_a_content_that_was_rejected_beside_a_withheld_removal_was_rejected_alone() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut first = settled(&cache, "EDS", "a b c");
    commit(&cache, "EDS a=2 -b");
    assert_eq!(first.sent(), "n2 EDS a=2");
    first.nack("EDS", "2");
    let mut second = Delta::new(&cache);
    second.ask("EDS", "a c");
    assert_eq!(second.sent(), "n1 EDS c=1");
}

#[test]
fn s6d_d32_what_was_announced_ends_when_the_client_gives_it_up() {
    let cache = Cache::new();
    let mut first = rejected(&cache);
    first.sent();
    first.ack("EDS", "3");
    first.sent();
    first.nack("EDS", "4");
    first.sent();
    let mut second = Delta::new(&cache);
    second.ask("EDS", "a b c");
    assert_eq!(second.sent(), "n1 EDS a=2 c=1");
    second.ask_with("EDS", "-b", "1", &[]);
    assert_eq!(second.sent(), "n2 EDS");
    assert!(!is_continued(&second));
    second.ack("EDS", "2");
    assert_eq!((second.sent().as_str(), second.waits_until()), ("", None));
}

/// What is left out is bounded, so that its end can always be announced.
#[test]
fn s6d_d32_contents_of_at_most_eight_responses_are_left_out_at_a_time() {
    let names: Vec<_> = (0..9).map(|at| format!("g{at}=1 b{at}=1")).collect();
    let cache = cache(&format!("EDS {}", names.join(" ")));
    let (mut first, mut second) = (Delta::new(&cache), Delta::new(&cache));
    for at in 0..9 {
        first.ask("EDS", &format!("b{at}"));
        first.sent();
        let nonce = first.last.nonce.clone();
        first.nack("EDS", &nonce);
        second.ask("EDS", &format!("b{at} g{at}"));
        let left_out = if at < 8 { format!("n{} EDS g{at}=1", at + 1) } else { "n9 EDS b8=1 g8=1".into() };
        assert_eq!((second.sent(), is_continued(&second)), (left_out, true));
    }
    for at in 1..=9 {
        second.ack("EDS", &at.to_string());
    }
    for at in 0..8 {
        let nonce = (at + 10).to_string();
        assert_eq!(second.sent(), format!("n{nonce} EDS b{at}=1"));
        assert_eq!(is_continued(&second), at < 7);
        second.nack("EDS", &nonce);
    }
    assert_eq!((second.sent().as_str(), second.waits_until()), ("", None));
}

/// Two clients rejected a change of `a` to `f`, of which the last one is bad.
fn rejected_by_two(cache: &Arc<Cache>) -> [Delta; 2] {
    commit(cache, "EDS a=1 b=1 c=1 d=1 e=1 f=1");
    let mut clients = [settled(cache, "EDS", "a b c d e f"), settled(cache, "EDS", "a b c d e f")];
    commit(cache, "EDS a=2 b=2 c=2 d=2 e=2 f=2");
    for client in &mut clients {
        assert_eq!(client.sent(), "n2 EDS a=2 b=2 c=2 d=2 e=2 f=2");
        client.nack("EDS", "2");
    }
    clients
}

/// A fleet rejects a change at the same time: one client finds what is bad, and is not asked by all.
#[test]
fn s6d_of_clients_that_reject_the_same_the_first_one_finds_what_is_bad() {
    let cache = Cache::new();
    let [mut first, mut second] = rejected_by_two(&cache);
    assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n3 EDS a=2 b=2 c=2", ""));
    first.ack("EDS", "3");
    assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n4 EDS d=2 e=2 f=2", ""));
    first.nack("EDS", "4");
    assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n5 EDS d=2", ""));
    first.ack("EDS", "5");
    assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n6 EDS e=2 f=2", ""));
    first.nack("EDS", "6");
    assert_eq!(first.sent(), "n7 EDS e=2");
    first.ack("EDS", "7");
    assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n8 EDS f=2", ""));
    first.nack("EDS", "8");
    for (nonce, part) in [("3", "a=2 b=2 c=2"), ("4", "d=2 e=2")] {
        assert_eq!((first.sent(), second.sent()), (String::new(), format!("n{nonce} EDS {part}")));
        second.ack("EDS", nonce);
    }
    assert_eq!(second.sent(), "n5 EDS f=2");
    second.nack("EDS", "5");
    for client in [&mut first, &mut second] {
        assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    }
}

#[test]
fn s6d_nobody_waits_more_than_a_second_for_a_client_that_does_not_answer_or_has_ended() {
    for ends in [false, true] {
        let cache = Cache::new();
        let [first, mut second] = rejected_by_two(&cache);
        assert_eq!(second.sent(), "");
        let mut first = Some(first).filter(|_| !ends);
        if let Some(first) = &mut first {
            assert_eq!((first.sent().as_str(), second.sent().as_str()), ("n3 EDS a=2 b=2 c=2", ""));
            assert_eq!(second.waits_until(), Some(1000));
            second.pass(Duration::from_secs(1));
        }
        assert_eq!(second.sent(), "n3 EDS a=2 b=2 c=2");
    }
}

#[test]
fn s6e_what_was_rejected_alone_is_sent_once_more_when_something_was_removed() {
    let cache = cache("LDS old=1 other=1");
    let mut client = settled(&cache, "LDS", "*");
    commit(&cache, "LDS new=1");
    assert_eq!(client.sent(), "n2 LDS new=1");
    client.nack("LDS", "2");
    client.pass(Duration::from_secs(60));
    commit(&cache, "LDS another=1");
    assert_eq!(client.sent(), "n3 LDS another=1");
    client.ack("LDS", "3");
    assert_eq!(client.sent(), "", "an addition makes no room");
    commit(&cache, "LDS -old");
    assert_eq!(client.sent(), "n4 LDS -old");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "n5 LDS new=1");
    client.nack("LDS", "5");
    assert_eq!(client.sent(), "", "once for each removal");
    for (at, wait) in [(6, 2), (8, 4), (10, 8)] {
        commit(&cache, &format!("LDS other={at}"));
        assert_eq!(client.sent(), format!("n{at} LDS other={at}"));
        client.ack("LDS", &at.to_string());
        assert_eq!(client.sent(), "");
        client.pass(Duration::from_secs(wait) - Duration::from_millis(1));
        assert_eq!(client.sent(), "");
        client.pass(Duration::from_millis(1));
        assert_eq!(client.sent(), format!("n{} LDS new=1", at + 1));
        client.nack("LDS", &(at + 1).to_string());
    }
}

/// Regression: what was rejected was sent again after each new subscription of the client.
#[test]
fn s6e_the_answer_to_a_new_subscription_makes_no_room() {
    let cache = cache("LDS other=1 new=1");
    let mut client = Delta::new(&cache);
    client.ask("LDS", "new");
    assert_eq!(client.sent(), "n1 LDS new=1");
    client.nack("LDS", "1");
    client.pass(Duration::from_secs(1));
    client.ask("LDS", "other");
    assert_eq!(client.sent(), "n2 LDS other=1");
    client.ack("LDS", "2");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS other=2");
    assert_eq!(client.sent(), "n3 LDS other=2");
    client.ack("LDS", "3");
    assert_eq!(client.sent(), "n4 LDS new=1");
}

/// T32: by name, another variant is another content of the resource (seed 18325).
#[test]
fn s6e_t32_a_variant_in_the_place_of_another_one_makes_room() {
    let cache = cache("LDS a[env]=1 a[!env]=1");
    let mut client = settled(&cache, "LDS", "*");
    commit(&cache, "LDS new=1");
    assert_eq!(client.sent(), "n2 LDS new=1");
    client.nack("LDS", "2");
    client.pass(Duration::from_secs(1));
    commit(&cache, "LDS -a[env] -a[!env] a=2");
    assert_eq!(client.sent(), "n3 LDS a=2");
    client.ack("LDS", "3");
    assert_eq!(client.sent(), "n4 LDS new=1");
}

#[test]
fn s6e_t32_a_part_with_a_variant_in_the_place_of_another_one_makes_room() {
    let cache = cache("LDS old[env]=1 old[!env]=1");
    let mut client = settled(&cache, "LDS", "*");
    commit(&cache, "LDS -old[env] -old[!env] old=2 new=1");
    assert_eq!(client.sent(), "n2 LDS new=1 old=2");
    client.nack("LDS", "2");
    assert_eq!(client.sent(), "n3 LDS new=1");
    client.nack("LDS", "3");
    assert_eq!(client.sent(), "n4 LDS old=2");
    client.ack("LDS", "4");
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n5 LDS new=1");
}

#[test]
fn s6e_a_part_that_replaces_what_the_client_brought_makes_room() {
    let cache = cache("LDS a=1 h=2");
    let mut client = Delta::new(&cache);
    client.ask_with("LDS", "*", "", &[("h", "1")]);
    assert_eq!(client.sent(), "n1 LDS a=1 h=2");
    client.nack("LDS", "1");
    assert_eq!(client.sent(), "n2 LDS a=1");
    // The client's own h has the address of a.
    client.nack("LDS", "2");
    assert_eq!(client.sent(), "n3 LDS h=2");
    client.ack("LDS", "3");
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n4 LDS a=1");
}

#[test]
fn s6e_clusters_do_not_conflict_so_a_removal_makes_no_room() {
    let cache = cache("CDS old=1");
    let mut client = settled(&cache, "CDS", "*");
    commit(&cache, "CDS new=1");
    assert_eq!(client.sent(), "n2 CDS new=1");
    client.nack("CDS", "2");
    commit(&cache, "CDS -old");
    assert_eq!(client.sent(), "");
    client.pass(Duration::from_secs(60));
    assert_eq!(client.sent(), "n3 CDS -old");
    client.ack("CDS", "3");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

fn is_repeat(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Nacked { is_repeat: true, .. })
}

/// D32: whether the last response announces others.
fn is_continued(client: &Delta) -> bool {
    client.last.system_version_info.ends_with('+')
}
