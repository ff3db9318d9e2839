//! Several servers, and several authorities (C15, C16, P4).

use super::fixture::{Fixture, url};
use super::*;

const SOTW: (Protocol, ErrorPolicy) =
    (Protocol::Sotw, ErrorPolicy { fail_on_data_errors: false, resource_timer_is_transient_error: false });

const DELTA: (Protocol, ErrorPolicy) = (Protocol::Delta, SOTW.1);

#[test]
fn c15_p4_1_only_the_first_server_is_asked() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    assert_eq!(f.wanted(), [0; 0]);
    f.watch("CDS", "a");
    assert_eq!(f.wanted(), [0]);
    assert_eq!(f.client.connect_at(1), None);
}

#[test]
fn c15_p4_2_p4_5_the_next_server_is_asked_for_everything_and_nobody_is_told() {
    let mut f = Fixture::of(&[SOTW, SOTW, SOTW]);
    let a = f.watch("CDS", "a");
    f.watch("EDS", "b");
    assert_eq!(f.fail(0), "");
    assert_eq!(f.wanted(), [0, 1]);
    assert_eq!(f.fail(1), "");
    assert_eq!(f.connect(2), "node CDS [a]\nEDS [b]");
    assert_eq!(f.get_from(2, "CDS v1 n1: a=1"), "a: 1");
    assert_eq!(f.view(a), "1");
}

#[test]
fn c15_p4_5_watchers_are_told_when_all_servers_failed() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "a");
    assert_eq!(f.fail(0), "");
    assert_eq!(f.fail(1), "a: UNAVAILABLE");
    // A response from any of the servers ends the outage.
    f.connect(0);
    assert_eq!(f.get("CDS v1 n1: a=1"), "a: 1");
}

#[test]
fn c15_p4_3_with_everything_cached_no_other_server_is_asked() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "a");
    let absent = f.watch("EDS", "b");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.pass(15);
    assert_eq!(f.view(absent), "NOT_FOUND", "known not to exist");
    f.end(0);
    assert_eq!(f.fail(0), "a: 1 beside UNAVAILABLE\nb: UNAVAILABLE");
    assert_eq!(f.wanted(), [0]);
}

/// Regression: the outage of the first server did not end when the second server answered.
#[test]
fn c15_p4_7_what_is_newly_needed_falls_back_and_the_outage_ends() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "a");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.end(0);
    assert_eq!(f.fail(0), "a: 1 beside UNAVAILABLE");
    let b = f.watch("CDS", "b");
    assert_eq!((f.wanted(), f.view(b).as_str()), (vec![0, 1], "-"));
    assert_eq!(f.connect(1), "node CDS [a b]");
    assert_eq!(f.get_from(1, "CDS x n1: a=1 b=1"), "a: 1\nb: 1");
}

#[test]
fn c15_p4_6_a_resource_of_a_higher_server_ends_the_lower_ones() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let a = f.watch("CDS", "a");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "CDS x n1: a=1");
    assert_eq!(f.connect(0), "node CDS [a]");
    assert_eq!(f.wanted(), [0, 1]);
    assert_eq!(f.get("CDS v1 n1: a=2"), "a: 2");
    assert_eq!(f.wanted(), [0]);
    // A late response of the server is dropped.
    assert_eq!(f.get_from(1, "CDS y n2:"), "");
    f.client.on_closed(f.now, 1);
    assert_eq!(f.view(a), "2");
}

/// Regression: a resource that only the second server had stayed for ever.
#[test]
fn c15_s17_what_only_the_lower_server_had_is_given_up_in_time() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("EDS", "a");
    f.watch("EDS", "b");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "EDS x n1: a=1 b=1");
    f.connect(0);
    assert_eq!(f.get("EDS v1 n1: a=1"), "");
    assert_eq!(f.pass(15), "b: 1 beside NOT_FOUND");
}

/// Regression: the timer for the second server went on after the client had returned to the first
/// one, and took away what that server had sent and confirmed by its silence (seed 703419).
#[test]
fn c5_p4_6_a_timer_ends_with_the_server_that_it_waits_for() {
    let mut f = Fixture::of(&[DELTA, SOTW]);
    let a = f.watch("CDS", "a");
    f.watch("EDS", "e");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    assert_eq!(f.connect(1), "node CDS [a]\nEDS [e]");
    assert_eq!(f.connect(0), "node CDS +a (a:?)\nEDS +e");
    assert_eq!(f.get("EDS v1 n1: e=1"), "e: 1");
    assert_eq!(f.wanted(), [0]);
    assert_eq!(f.pass(30), "");
    assert_eq!(f.view(a), "1");
}

/// The same without any response: the first server has nothing to send (D21).
#[test]
fn c5_d21_a_server_that_knows_the_version_of_a_copy_is_not_waited_for() {
    let mut f = Fixture::of(&[DELTA, SOTW]);
    let a = f.watch("CDS", "a");
    f.watch("EDS", "e");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    f.connect(1);
    f.connect(0);
    f.pass(30);
    assert_eq!(f.view(a), "1");
}

/// Regression: after a server had reported an error for the wildcard, a timer for members of another server set the
/// status to Acked and left the error, so the error stayed when the server sent the members (seed 37546).
#[test]
fn p1_23_p4_6_an_error_of_a_wildcard_ends_with_its_members_also_after_a_timer() {
    let transient = ErrorPolicy { resource_timer_is_transient_error: true, ..ErrorPolicy::default() };
    let mut f = Fixture::of(&[(Protocol::Delta, transient), SOTW]);
    let all = f.watch("EDS", "*");
    f.watch("CDS", "c");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "EDS x n1: a=1");
    f.connect(0);
    f.get("EDS v1 n1: *!7");
    assert_eq!(f.view(all), "PERMISSION_DENIED");
    f.get("CDS v1 n2: c=1");
    f.pass(30);
    assert_eq!(f.view(all), "PERMISSION_DENIED");
    f.get("EDS v1 n3: a=1");
    assert_eq!(f.view(all), "-");
}

/// The client told the server that it has `a`, so this server would not send again what the next one
/// replaced (D21).
#[test]
fn c15_p4_7_a_server_has_not_failed_while_a_new_stream_to_it_is_open() {
    let mut f = Fixture::of(&[DELTA, SOTW]);
    let a = f.watch("CDS", "a");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    assert_eq!(f.connect(0), "node CDS +a (a:?)");
    f.watch("EDS", "e");
    assert_eq!((f.sent(0).as_str(), f.wanted()), ("EDS +e", vec![0]));
    f.end(0);
    assert_eq!(f.wanted(), [0, 1]);
    assert_eq!(f.connect(1), "node CDS [a]\nEDS [e]");
    assert_eq!(f.get_from(1, "CDS x n1: a=2"), "a: 2\ne: -");
    assert_eq!(f.connect(0), "node CDS +a\nEDS +e");
    assert_eq!(f.get("EDS v1 n1: e=1"), "e: 1");
    assert_eq!(f.get("CDS v1 n2: a=1"), "a: 1");
    assert_eq!((f.pass(30).as_str(), f.view(a).as_str()), ("", "1"));
}

/// Regression: a watch that came while a new stream was open lost the outage, and its end for the same
/// reason was no news.
#[test]
fn c15_p4_5_a_new_watch_sees_an_outage_that_goes_on() {
    let mut f = Fixture::of(&[DELTA]);
    f.watch("CDS", "a");
    f.connect(0);
    assert_eq!(f.end(0), "a: UNAVAILABLE");
    f.connect(0);
    let b = f.watch("CDS", "b");
    assert_eq!(f.view(b), "UNAVAILABLE");
    f.sent(0);
    f.end(0);
    assert_eq!(f.view(b), "UNAVAILABLE");
}

/// G13: a server that loads its resources is slow. Names need no version, so the timer of S32 does not
/// take them away.
#[test]
fn c15_s32_names_on_a_sotw_stream_keep_their_version() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let a = f.watch("CDS", "a");
    f.watch("EDS", "e");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    assert_eq!(f.wanted(), [0, 1]);
    assert_eq!(f.connect(0), "node CDS [a] v1\nEDS [e]");
    f.pass(30);
    assert_eq!(f.view(a), "1");
}

/// A SotW server of clusters reports a removal, too: its full state is without the resource (S25).
#[test]
fn c5_s25_what_the_next_server_has_stays_while_the_first_one_is_silent() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let a = f.watch("CDS", "a");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "CDS x n1: a=1");
    assert_eq!(f.connect(0), "node CDS [a]");
    f.pass(30);
    assert_eq!(f.view(a), "1");
}

/// S17, S26: a SotW server of endpoints never says that one is gone, so its silence confirms nothing.
#[test]
fn c5_s26_a_sotw_server_does_not_confirm_endpoints_by_its_silence() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let a = f.watch("EDS", "a");
    f.watch("CDS", "c");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "EDS x n1: a=1");
    f.connect(0);
    f.get("CDS v1 n1: c=1");
    f.client.on_closed(f.now, 1);
    f.lose(0);
    f.connect(0);
    f.watch("EDS", "b");
    f.connect(1);
    f.pass(15);
    assert_eq!(f.view(a), "1 beside NOT_FOUND");
}

/// An error that the second server reported ends when the client has returned to the first one.
#[test]
fn p4_6_the_error_of_a_server_that_is_not_used_any_more_ends_with_the_timer() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let all = f.watch("EDS", "*");
    f.watch("CDS", "c");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "EDS x n1: *!13");
    f.connect(0);
    f.get("CDS v1 n1: c=1");
    f.client.on_closed(f.now, 1);
    f.pass(15);
    assert_eq!(f.view(all), "UNAVAILABLE");
}

/// A timer dropped what the second server had sent, so its version does not cover what the client has.
#[test]
fn s32_p4_6_a_version_is_not_brought_after_a_timer_dropped_members() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "*");
    f.watch("EDS", "e");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "CDS x n1: a=1");
    f.connect(0);
    f.get("EDS v1 n1: e=1");
    f.pass(15);
    f.client.on_closed(f.now, 1);
    f.lose(0);
    f.watch("EDS", "f");
    assert_eq!(f.connect(1), "node CDS []\nEDS [e f]");
}

/// The timer starts again on a new stream, if only the second server has sent the members.
#[test]
fn c5_s26_members_of_a_server_that_is_not_used_any_more_are_given_up_on_the_next_stream_too() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let all = f.watch("EDS", "*");
    f.watch("CDS", "c");
    f.fail(0);
    f.connect(1);
    f.get_from(1, "EDS x n1: a=1");
    f.connect(0);
    f.get("CDS v1 n1: c=1");
    f.client.on_closed(f.now, 1);
    f.pass(5);
    f.end(0);
    f.connect(0);
    f.pass(60);
    assert_eq!(f.client.members(all).expect("it is a set").count(), 0);
}

/// Regression: the client sent the version of the first server, although the second server had
/// changed resources in the meantime.
#[test]
fn c14_s32_a_version_is_not_brought_when_another_server_changed_what_is_held() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "*");
    f.watch("CDS", "b");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    f.connect(1);
    f.get_from(1, "CDS x n1: a=2 b=1");
    assert_eq!(f.connect(0), "node CDS [* b]");
}

/// Regression: the first server got the version that it had sent. The second one replaced the
/// resource, and the first one did not send it again (D21). So it counted as absent.
#[test]
fn c15_d21_s32_a_server_gets_no_version_that_the_next_one_may_replace() {
    for first in [DELTA, SOTW] {
        let mut f = Fixture::of(&[first, SOTW]);
        let a = f.watch("CDS", "a");
        let all = f.watch("CDS", "*");
        f.watch("EDS", "e");
        f.connect(0);
        f.get("CDS v1 n1: a=1 b=1");
        f.lose(0);
        f.connect(1);
        f.open(0);
        let is_delta = first == DELTA;
        let versions = if is_delta { "+* +a (a:?) (b:?)" } else { "[* a]" };
        let endpoints = if is_delta { "+e" } else { "[e]" };
        assert_eq!(f.sent(0), format!("node CDS {versions}\nEDS {endpoints}"));
        f.get_from(1, "CDS x n1: a=2 b=2");
        // The first server works again, and is the only one in use.
        f.get("EDS v1 n1: e=1");
        assert_eq!(f.get("CDS v1 n2: a=1 b=1"), "*/a: 1\n*/b: 1\na: 1");
        assert_eq!((f.pass(30).as_str(), f.view(a).as_str()), ("", "1"));
        assert_eq!(f.client.members(all).expect("it is a set").count(), 2);
    }
}

#[test]
fn p4_7_a_timer_that_fires_is_no_reason_to_fall_back() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    f.watch("CDS", "a");
    f.connect(0);
    assert_eq!(f.pass(15), "a: NOT_FOUND");
    assert_eq!(f.wanted(), [0]);
}

#[test]
fn p4_8_two_clients_fall_back_each_by_itself() {
    let (mut one, mut other) = (Fixture::of(&[SOTW, SOTW]), Fixture::of(&[SOTW, SOTW]));
    one.watch("CDS", "a");
    other.watch("CDS", "a");
    one.fail(0);
    assert_eq!((one.wanted(), other.wanted()), (vec![0, 1], vec![0]));
}

/// Regression: after the last watch ended, the next watch began at the second server.
#[test]
fn p4_1_what_is_needed_next_begins_at_the_first_server() {
    let mut f = Fixture::of(&[SOTW, SOTW]);
    let a = f.watch("CDS", "a");
    f.fail(0);
    f.client.on_unwatch(a);
    assert_eq!(f.wanted(), [0; 0]);
    f.client.on_closed(f.now, 0);
    f.watch("CDS", "a");
    assert_eq!(f.wanted(), [0]);
}

/// Servers 0 and 1; old names at 0, `one` at 0 with parameters, `two` at 1.
pub(super) fn of_authorities() -> Fixture {
    of_authorities_with(Protocol::Sotw, ErrorPolicy::default())
}

fn of_authorities_with(protocol: Protocol, errors: ErrorPolicy) -> Fixture {
    let server = |name: &str| ServerConfig { name: name.into(), protocol, errors };
    let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x04node"), server("s0"));
    config.servers.push(server("s1"));
    config.default_authority.speaks_locators = true;
    config.default_authority.parameters = [("old", "1")].into_iter().collect();
    let authority = |servers: Vec<usize>, parameters: Parameters| AuthorityConfig {
        servers,
        parameters,
        speaks_locators: true,
        ..AuthorityConfig::default()
    };
    let one = authority(vec![0], [("env", "prod")].into_iter().collect());
    config.authorities = [("one".into(), one), ("two".into(), authority(vec![1], Parameters::new()))].into();
    Fixture::of_config(config)
}

const ONE: &str = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
const TWO: &str = "xdstp://two/envoy.config.endpoint.v3.ClusterLoadAssignment/e";

#[test]
fn c16_x15_x17_t40_authorities_share_a_stream_and_have_their_own_parameters() {
    let mut f = of_authorities();
    f.watch("EDS", "e");
    f.watch("EDS", ONE);
    f.watch("EDS", TWO);
    f.open(0);
    f.open(1);
    assert_eq!(f.sent(0), format!("node EDS [e{{old=1}} {ONE}{{env=prod}}]"));
    assert_eq!(f.sent(1), format!("node EDS [{TWO}]"));
}

#[test]
fn c16_x15_an_unknown_authority_is_an_error() {
    let mut f = of_authorities();
    let name = "xdstp://three/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let error = f.client.on_watch(&url("EDS"), name, None).expect_err("its authority has no servers");
    assert!(matches!(error, WatchError::UnknownAuthority { authority, .. } if authority == "three"));
    let nobody = "xdstp:///envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    assert!(f.client.on_watch(&url("EDS"), nobody, None).is_err(), "the empty one has to be configured too");
}

/// Regression: a full state of one server removed resources of another authority.
#[test]
fn c16_s25_a_full_state_speaks_for_its_own_authorities() {
    let mut f = of_authorities();
    let name = "xdstp://two/envoy.config.cluster.v3.Cluster/c";
    let two = f.watch("CDS", name);
    let all = f.watch("CDS", "*");
    f.open(0);
    f.open(1);
    assert_eq!((f.sent(0).as_str(), f.sent(1)), ("node CDS [*{old=1}]", format!("node CDS [{name}]")));
    assert_eq!(f.get_from(1, &format!("CDS v1 n1: {name}=1")), format!("{name}: 1"));
    assert_eq!(f.get("CDS v1 n1: a=1"), "*{old=1}/a: 1\n*{old=1}: -");
    assert_eq!(f.view(two), "1");
    assert_eq!(f.client.members(all).expect("it is a set").count(), 1);
}

/// Regression: with `fail_on_data_errors`, a data error removed a resource although it came from a
/// server that the authority of the name does not use.
#[test]
fn c16_what_a_server_says_wrongly_of_the_names_of_another_takes_nothing_away() {
    let errors = ErrorPolicy { fail_on_data_errors: true, ..ErrorPolicy::default() };
    let mut f = of_authorities_with(Protocol::Delta, errors);
    let old = f.watch("EDS", "e");
    f.watch("EDS", TWO);
    f.open(0);
    f.open(1);
    _ = (f.sent(0), f.sent(1));
    assert_eq!(f.get("EDS v1 n1: e=1"), "e{old=1}: 1");
    assert_eq!(f.get_from(1, "EDS v1 n1: e=2 -e"), "");
    assert_eq!(f.view(old), "1");
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"e".into()).is_some());
}

/// Regression: a resource whose alias was the name of a resource of another authority took that
/// resource away (seed 9571).
#[test]
fn c16_d24_an_alias_takes_nothing_of_another_authority_away() {
    let mut f = of_authorities_with(Protocol::Delta, ErrorPolicy::default());
    let all = f.watch("EDS", "*");
    f.watch("EDS", TWO);
    f.open(0);
    f.open(1);
    _ = (f.sent(0), f.sent(1));
    assert_eq!(f.get("EDS v1 n1: e=1"), "*{old=1}/e: 1\n*{old=1}: -");
    assert_eq!(f.get_from(1, &format!("EDS v1 n1: {TWO}=1/e")), format!("{TWO}: 1"));
    assert_eq!(f.client.members(all).expect("it is a set").count(), 1);
    assert!(f.client.cache().snapshot().get(&url("EDS"), &"e".into()).is_some());
}

#[test]
fn c15_a_failure_of_one_authority_is_not_told_to_another() {
    let mut f = of_authorities();
    let old = f.watch("EDS", "e");
    let two = f.watch("EDS", TWO);
    assert_eq!(f.fail(0), "e{old=1}: UNAVAILABLE");
    assert_eq!((f.view(old).as_str(), f.view(two).as_str()), ("UNAVAILABLE", "-"));
}

/// Regression: when the last watcher of a resource left, a wildcard of another authority kept the
/// resource in the cache.
#[test]
fn c13_c16_the_wildcard_keeps_nothing_of_other_authorities() {
    let mut f = of_authorities();
    f.watch("EDS", "*");
    let one = f.watch("EDS", ONE);
    f.connect(0);
    assert_eq!(f.get(&format!("EDS v1 n1: {ONE}=1")), format!("*{{old=1}}: -\n{ONE}{{env=prod}}: 1"));
    f.client.on_unwatch(one);
    f.sent(0);
    assert!(f.client.cache().snapshot().get(&url("EDS"), &ONE.into()).is_none());
}

#[test]
fn c15_p4_9_by_choice_the_next_server_is_asked_though_nothing_is_missing() {
    for on_reachability_only in [false, true] {
        let server = |name: &str| ServerConfig {
            name: name.into(),
            protocol: Protocol::Sotw,
            errors: ErrorPolicy::default(),
        };
        let mut config = ClientConfig::new(Bytes::new(), server("s0"));
        config.servers.push(server("s1"));
        config.default_authority.servers.push(1);
        config.default_authority.fallback_on_reachability_only = on_reachability_only;
        let mut f = Fixture::of_config(config);
        f.watch("EDS", "a");
        f.connect(0);
        f.get("EDS v1 n1: a=1");
        f.end(0);
        f.open(0);
        f.end(0);
        assert_eq!(f.client.is_needed(1), on_reachability_only);
    }
}

#[test]
fn c10_an_outage_names_each_server_with_its_own_error() {
    let mut f = Fixture::of(&[DELTA, SOTW]);
    let a = f.watch("CDS", "a");
    let status = Status { code: Code::UNAUTHENTICATED, message: "who are you?".into() };
    for (server, status, reason) in [(0, None, "refused"), (1, Some(status), "who are you?")] {
        f.client.on_connecting(server);
        f.client.on_end(f.now, server, StreamEnd { status, reason, jitter: 0 });
    }
    let error = f.client.view(a).error.unwrap();
    let text = "s0 cannot be reached: refused; s1 cannot be reached: who are you?";
    assert_eq!((error.code, &*error.message), (Code::UNAUTHENTICATED, text));
}
