//! Delta (D).

use super::fixture::{Fixture, refuse_bad, url};
use super::*;

fn delta() -> Fixture {
    Fixture::new(Protocol::Delta)
}

#[test]
fn d1_t37_c14b_only_what_is_in_use_and_alone_is_brought_to_a_new_stream() {
    let mut f = delta();
    refuse_bad(&mut f.client, "EDS");
    for name in ["a", "kept", "gone", "error", "never", "two{env=prod}", "two{env=test}"] {
        f.watch("EDS", name);
    }
    f.sent(0);
    f.get("EDS v1 n1: a=1 kept=1 gone=1 error=1 two[env=prod]=1 two[env=test]=2");
    f.get("EDS v2 n2: kept=bad -gone error!14");
    f.end(0);
    f.open(0);
    let sent = f.sent(0);
    let (_, versions) = sent.split_once('(').expect("it has initial versions");
    let mut versions: Vec<_> = versions.split_whitespace().map(|one| one.trim_matches(['(', ')'])).collect();
    versions.sort_unstable();
    // D21b: one of them has the server answer.
    assert_eq!(versions, ["a:?", "kept:v1"]);
    // Later requests have no initial versions.
    f.watch("EDS", "b");
    assert_eq!(f.sent(0), "EDS +b");
}

/// Regression: the answer to a name, on its way when the wildcard was subscribed to, counted as the
/// answer to the wildcard. A proxy then reported resources of the wildcard as absent.
#[test]
fn c12_the_answer_to_an_earlier_name_is_not_that_of_a_wildcard() {
    for (answer, of_name) in [("-a", "a: NOT_FOUND"), ("a=1", "*/a: 1\na: 1")] {
        let mut f = delta();
        f.watch("EDS", "a");
        f.sent(0);
        f.watch("EDS", "*");
        f.sent(0);
        assert_eq!(f.get(&format!("EDS v1 n1: {answer}")), of_name);
        let of_all = f.get("EDS v2 n2: a=1 b=1");
        assert!(of_all.lines().any(|line| line == "*: -"), "after {answer}: {of_all}");
        // One answer to both is not told from that to the name, so a timer decides.
        let mut f = delta();
        f.watch("EDS", "a");
        f.sent(0);
        f.watch("EDS", "*");
        f.sent(0);
        f.get(&format!("EDS v1 n1: {answer}"));
        assert_eq!(f.pass(60), "*: -");
    }
}

/// Regression: the same, if the timer of the name had ended. A proxy then sent its clients a full state
/// without resources (seed 26508).
#[test]
fn c12_the_late_answer_to_an_earlier_name_is_not_that_of_a_wildcard() {
    for (answer, of_name) in [("a!14", "a: UNAVAILABLE"), ("a=1", "*/a: 1\na: 1")] {
        let mut f = delta();
        f.watch("EDS", "a");
        f.sent(0);
        assert_eq!(f.pass(20), "a: NOT_FOUND");
        f.watch("EDS", "*");
        f.sent(0);
        assert_eq!(f.get(&format!("EDS v1 n1: {answer}")), of_name);
        let of_all = f.get("EDS v2 n2: b=1");
        assert!(of_all.lines().any(|line| line == "*: -"), "after {answer}: {of_all}");
    }
}

/// The same, if nobody watches the name any more.
#[test]
fn c12_the_answer_to_a_name_that_was_given_up_is_not_that_of_a_wildcard() {
    let mut f = delta();
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.client.on_unwatch(a);
    f.watch("EDS", "*");
    assert_eq!(f.sent(0), "EDS +* -a");
    assert_eq!(f.get("EDS v1 n1: -a"), "");
    assert_eq!(f.get("EDS v2 n2: b=1"), "*/b: 1\n*: -");
}

#[test]
fn p1_23_an_unchanged_member_ends_the_error_of_a_wildcard_too() {
    let mut f = delta();
    let all = f.watch("EDS", "*");
    f.sent(0);
    f.get("EDS v1 n1: a=1");
    f.get("EDS v2 n2: *!7");
    assert_eq!(f.view(all), "PERMISSION_DENIED");
    f.get("EDS v1 n3: a=1");
    assert_eq!(f.view(all), "-");
}

/// Regression: while the client was disconnected, one of several variants under a wildcard was
/// deleted, and the server never sent the removal.
#[test]
fn d21_t37_members_that_cannot_be_compared_are_brought_without_a_version() {
    let mut f = delta();
    f.watch("EDS", "*{env=prod}");
    f.watch("EDS", "*{env=test}");
    f.sent(0);
    f.get("EDS v1 n1: a[]=1 two[env=prod]=1 two[env=test]=2");
    f.end(0);
    f.open(0);
    let sent = f.sent(0);
    assert!(sent.contains("(a:v1)") && sent.contains("(two:?)"), "{sent}");
    assert_eq!(f.get("EDS v2 n1: -two"), "*{env=prod}/two: -\n*{env=test}/two: -");
}

#[test]
fn d3_a_name_never_stands_in_both_lists() {
    let mut f = delta();
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.client.on_unwatch(a);
    let a = f.watch("EDS", "a");
    f.client.on_unwatch(a);
    f.watch("EDS", "a");
    assert_eq!(f.sent(0), "");
}

#[test]
fn d4_d15_an_empty_response_is_acked() {
    let mut f = delta();
    f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1:"), "");
    assert_eq!(f.sent(0), "EDS n1");
}

#[test]
fn d10_d11_a_removal_ends_the_timer_and_the_resource_and_keeps_the_subscription() {
    let mut f = delta();
    f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: -a"), "a: NOT_FOUND");
    assert_eq!(f.pass(60), "");
    assert_eq!(f.get("EDS v2 n2: a=1"), "a: 1");
    assert_eq!(f.get("EDS v3 n3: -a"), "a: 1 beside NOT_FOUND");
    assert_eq!(f.get("EDS v4 n4: a=1"), "a: 1");
    assert_eq!(f.sent(0), "EDS n1\nEDS n2\nEDS n3\nEDS n4");
}

#[test]
fn d13_t30b_c4_a_name_that_is_brought_and_removed_is_neither() {
    let mut f = delta();
    for name in ["a", "b", "r{env=prod}"] {
        f.watch("EDS", name);
    }
    f.sent(0);
    f.get("EDS v1 n1: a=1 b=1 r[env=prod]=1");
    f.sent(0);
    let told = f.get("EDS v2 n2: a=2 -a b=2 r[env=prod]=2 -r[env=prod]");
    assert_eq!(told, "a: 1 beside INVALID_ARGUMENT\nb: 2\nr{env=prod}: 1 beside INVALID_ARGUMENT");
    let error = "!\"a\": the response also removes it; \"r\" [env=prod]: the response also removes it";
    assert_eq!(f.sent(0), format!("EDS n2 {error}"));
}

#[test]
fn d13_a_name_twice_is_rejected() {
    let mut f = delta();
    f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: a=1 a=2"), "a: 1 beside INVALID_ARGUMENT");
    assert_eq!(f.sent(0), "EDS n1 !\"a\": the response contains it twice");
}

#[test]
fn d14_the_removal_of_what_is_not_known_is_ignored_and_acked() {
    let mut f = delta();
    f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: -b -b[env=prod] -xdstp://broken"), "");
    assert_eq!(f.sent(0), "EDS n1");
}

#[test]
fn d18_a_name_given_up_under_a_wildcard_stays_until_that_is_answered() {
    let mut f = delta();
    f.watch("EDS", "*");
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.get("EDS v1 n1: a=1");
    f.client.on_unwatch(a);
    assert_eq!(f.sent(0), "EDS -a n1");
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"a".into()).is_some());
    assert_eq!(f.get("EDS v2 n2: -a"), "*/a: -");
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"a".into()).is_none());
}

#[test]
fn d24_an_alias_is_followed_and_may_stand_for_nothing() {
    let mut f = delta();
    let alias = f.watch("VHDS", "alias");
    let other = f.watch("VHDS", "other");
    f.sent(0);
    assert_eq!(f.get("VHDS v1 n1: real=1/alias"), "alias: 1");
    assert_eq!(f.get("VHDS v2 n2: real=2/alias"), "alias: 2");
    assert_eq!(f.get("VHDS v2 n3: other/other"), "other: NOT_FOUND");
    assert_eq!((f.view(alias).as_str(), f.view(other).as_str()), ("2", "NOT_FOUND"));
    assert_eq!(f.sent(0), "VHDS n1\nVHDS n2\nVHDS n3");
}

/// Regression: a watcher by an alias was not notified of the removal of the resource, and the
/// resource stayed in the cache for ever.
#[test]
fn d24_who_watches_by_an_alias_shares_the_fate_of_the_resource() {
    let mut f = delta();
    let alias = f.watch("VHDS", "alias");
    f.sent(0);
    f.get("VHDS v1 n1: real=1/alias");
    assert_eq!(f.get("VHDS v2 n2: -real"), "alias: 1 beside NOT_FOUND");
    f.get("VHDS v3 n3: real=3/alias");
    assert_eq!(f.view(alias), "3");
    f.client.on_unwatch(alias);
    f.sent(0);
    assert!(f.client.cache().snapshot().get(&url("VHDS"), &"real".into()).is_none());
    assert!(f.client.store.types[0].names.is_empty() && f.client.store.types[0].aliases.is_empty());
}

#[test]
fn d30_t33_a_change_of_parameters_is_one_message() {
    let mut f = delta();
    let prod = f.watch("RDS", "r{env=prod}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A");
    f.sent(0);
    f.client.on_unwatch(prod);
    let test = f.watch("RDS", "r{env=test}");
    assert_eq!(f.sent(0), "RDS +r{env=test} -r{env=prod}");
    assert!(f.client.cache().snapshot().get(&url("RDS"), &"r".into()).is_none());
    // T33b: a late response to the old locator matches no watch, and is ACKed.
    assert_eq!(f.get("RDS v2 n2: r[env=prod]=A2"), "");
    assert_eq!(f.get("RDS v3 n3: r[env=test]=B"), "r{env=test}: B");
    assert_eq!((f.sent(0).as_str(), f.view(test).as_str()), ("RDS n2\nRDS n3", "B"));
}

#[test]
fn t33b_a_late_response_to_a_locator_that_was_dropped_is_acked() {
    let mut f = delta();
    f.watch("RDS", "r{env=test}");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[env=prod]=A"), "");
    assert_eq!(f.sent(0), "RDS n1");
}

#[test]
fn d32_each_response_is_applied_by_itself() {
    let mut f = delta();
    f.watch("RDS", "*");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: a=1"), "*/a: 1\n*: -");
    assert_eq!(f.get("RDS v1 n2: b=1"), "*/b: 1");
}

#[test]
fn d2_g9_a_large_subscription_goes_out_in_pieces() {
    let mut f = delta();
    for number in 0..3 {
        f.watch("EDS", &format!("{number}{}", "x".repeat(900_000)));
    }
    let frames: Vec<_> = std::iter::from_fn(|| f.client.next_request(f.now, 0)).collect();
    assert_eq!(frames.len(), 2);
    assert!(frames.iter().all(|frame| frame.len() < 4 << 20));
}

/// Regression: a parameter counted as 32 bytes, so a client of a proxy chose the size of its requests.
#[test]
fn d2_g9_large_parameters_go_out_in_pieces() {
    let mut f = delta();
    for number in 0..8 {
        f.watch("EDS", &format!("a{{env={number}{}}}", "x".repeat(900_000)));
    }
    let frames: Vec<_> = std::iter::from_fn(|| f.client.next_request(f.now, 0)).collect();
    assert_eq!(frames.len(), 4);
    assert!(frames.iter().all(|frame| frame.len() < 4 << 20));
}

/// Regression: a proxy kept each type that a client had ever made up.
#[test]
fn types_without_end_are_forgotten_with_the_stream() {
    let mut f = delta();
    f.watch("CDS", "a");
    for round in 0..100 {
        let watch = f.watch(&format!("T{round}"), "b");
        f.sent(0);
        f.client.on_unwatch(watch);
        f.sent(0);
        f.end(0);
        f.pass(10);
        f.open(0);
    }
    assert_eq!(f.client.store.types.len(), 2);
    let one = f.watch("One", "c");
    assert_eq!(f.sent(0), "node CDS +a\nOne +c");
    f.get("One v1 n1: c=1");
    assert_eq!(f.view(one), "1");
}

/// A client of a proxy mostly waits for all names with the same parameters.
#[test]
fn d2_g9_names_with_the_same_parameters_go_out_together() {
    let mut f = delta();
    let names = ["a", "b", "c"].map(|name| name.repeat(300_000));
    for (name, env) in names.iter().flat_map(|name| ["prod", "qa"].map(|env| (name, env))) {
        f.watch("EDS", &format!("{name}{{env={env}}}"));
    }
    let lines = f.sent(0);
    let envs: Vec<_> =
        lines.split("env=").skip(1).map(|rest| rest.split_once('}').expect("a brace").0).collect();
    assert_eq!((lines.lines().count(), envs.len()), (2, 6));
    assert!(envs.chunk_by(PartialEq::eq).count() == 2, "{envs:?}");
}

/// Regression: after its removal the alias could not become the name of a resource.
#[test]
fn d24_an_alias_that_is_removed_is_a_name_like_others() {
    let mut f = Fixture::new(Protocol::Delta);
    let d = f.watch("EDS", "d");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: a=1/d"), "d: 1");
    assert_eq!(f.get("EDS v1 n2: -d"), "d: 1 beside NOT_FOUND");
    assert_eq!(f.get("EDS v1 n3: d=2"), "d: 2");
    assert_eq!(f.view(d), "2");
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"a".into()).is_none(), "nobody watches it");
}

/// Regression: a resource that lost its alias to another resource stayed in the cache for ever.
#[test]
fn d24_c13_an_alias_that_moves_leaves_nothing_behind() {
    let mut f = Fixture::new(Protocol::Delta);
    let a = f.watch("EDS", "a");
    f.sent(0);
    f.get("EDS v1 n1: b=1/a");
    assert_eq!(f.get("EDS v1 n2: c=1/a -b"), "a: 1");
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"b".into()).is_none());
    f.client.on_unwatch(a);
    f.sent(0);
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"c".into()).is_none());
}

#[test]
fn x12_no_resource_is_named_like_a_set() {
    let mut f = Fixture::new(Protocol::Delta);
    f.watch("EDS", "*");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: *=1"), "*: -");
    assert_eq!(f.sent(0), "EDS n1 !\"*\": a resource cannot have the name of a wildcard or glob");
}

/// Regression: an alias could not become the name of a resource while the resource with the alias
/// was in the cache.
#[test]
fn d24_t34_a_resource_takes_its_name_from_what_came_earlier() {
    let mut f = delta();
    let (a, d) = (f.watch("EDS", "a"), f.watch("EDS", "d"));
    f.sent(0);
    f.get("EDS v1 n1: a=1/d");
    assert_eq!(f.get("EDS v1 n2: d=2"), "d: 2");
    assert_eq!((f.view(a).as_str(), f.view(d).as_str(), f.sent(0).as_str()), ("1", "2", "EDS n1\nEDS n2"));
}

/// Regression: the name has its own resource, but watchers saw the resource that it had been an
/// alias of, whenever that one changed.
#[test]
fn d24_a_name_with_a_resource_of_its_own_is_no_alias() {
    let mut f = delta();
    let (a, b) = (f.watch("EDS", "a"), f.watch("EDS", "b"));
    f.sent(0);
    f.get("EDS v1 n1: b=1/a");
    f.get("EDS v1 n2: a=2 b=3");
    assert_eq!((f.view(a).as_str(), f.view(b).as_str()), ("2", "3"));
    assert_eq!(f.get("EDS v1 n3: b=4"), "b: 4");
    assert_eq!(f.view(a), "2");
}
