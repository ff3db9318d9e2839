//! What watchers see after each event: the table of gRFC A88 (C8-C11, P1).

use super::fixture::{Fixture, refuse_bad};
use super::*;

const BOTH: [Protocol; 2] = [Protocol::Sotw, Protocol::Delta];

/// The change of the view of `a`, and its status afterwards.
type Row = (String, String, ResourceStatus);

/// A watcher of a cluster, with a copy or without.
fn watched(protocol: Protocol, errors: ErrorPolicy, has_copy: bool) -> (Fixture, WatchId) {
    let mut f = Fixture::with(protocol, errors);
    refuse_bad(&mut f.client, "CDS");
    let a = f.watch("CDS", "a");
    f.sent(0);
    if has_copy {
        f.get("CDS v1 n1: a=1");
        f.sent(0);
    }
    (f, a)
}

fn row(protocol: Protocol, fail: bool, has_copy: bool, event: impl Fn(&mut Fixture) -> String) -> Row {
    let errors = ErrorPolicy { fail_on_data_errors: fail, ..ErrorPolicy::default() };
    let (mut f, a) = watched(protocol, errors, has_copy);
    let told = event(&mut f);
    (told, f.view(a), f.statuses()[0])
}

/// The same for both protocols.
fn check(fail: bool, has_copy: bool, event: fn(&mut Fixture) -> String, view: &str, status: ResourceStatus) {
    for protocol in BOTH {
        let told = format!("a: {view}");
        assert_eq!(row(protocol, fail, has_copy, event), (told, view.to_owned(), status), "{protocol:?}");
    }
}

fn delete(f: &mut Fixture) -> String {
    match f.client.servers[0].config.protocol {
        Protocol::Sotw => f.get("CDS v2 n2:"),
        Protocol::Delta => f.get("CDS v2 n2: -a"),
    }
}

fn unreachable(f: &mut Fixture) -> String {
    f.end(0);
    f.fail(0)
}

fn unanswered(f: &mut Fixture) -> String {
    f.end(0);
    f.open(0);
    f.sent(0);
    f.end(0)
}

#[test]
fn c8_c10_p1_1_to_p1_4_a_connectivity_failure_is_told_and_changes_no_state() {
    for fail in [false, true] {
        for protocol in BOTH {
            let (mut f, a) = watched(protocol, ErrorPolicy::default(), false);
            assert_eq!(f.end(0), "a: UNAVAILABLE", "P1.3");
            assert_eq!(f.statuses(), [ResourceStatus::Requested]);
            assert_eq!(f.fail(0), "", "P1.1: the same again is no news");
            assert_eq!(f.view(a), "UNAVAILABLE");
        }
        check(fail, true, unreachable, "1 beside UNAVAILABLE", ResourceStatus::Acked);
        check(fail, true, unanswered, "1 beside UNAVAILABLE", ResourceStatus::Acked);
    }
}

#[test]
fn c9_p1_5_p1_6_p1_7_a_rejected_resource() {
    let nack = |f: &mut Fixture| f.get("CDS v2 n2: a=bad");
    check(false, false, nack, "INVALID_ARGUMENT", ResourceStatus::Nacked);
    check(true, false, nack, "INVALID_ARGUMENT", ResourceStatus::Nacked);
    check(false, true, nack, "1 beside INVALID_ARGUMENT", ResourceStatus::Nacked);
    check(true, true, nack, "INVALID_ARGUMENT", ResourceStatus::Nacked);
}

#[test]
fn c5_c6_p1_8_a_resource_that_does_not_come() {
    check(false, false, |f| f.pass(15), "NOT_FOUND", ResourceStatus::DoesNotExist);
    let errors = ErrorPolicy { resource_timer_is_transient_error: true, ..ErrorPolicy::default() };
    for protocol in BOTH {
        let (mut f, a) = watched(protocol, errors, false);
        assert_eq!(f.pass(29), "");
        assert_eq!(f.pass(1), "a: UNAVAILABLE");
        assert_eq!((f.view(a).as_str(), f.statuses()), ("UNAVAILABLE", vec![ResourceStatus::Timeout]));
    }
}

#[test]
fn c9_p1_9_p1_10_a_deletion_keeps_the_copy_or_drops_it() {
    check(false, true, delete, "1 beside NOT_FOUND", ResourceStatus::DoesNotExist);
    check(true, true, delete, "NOT_FOUND", ResourceStatus::DoesNotExist);
}

#[test]
fn c11_s37_p1_11_p1_12_p1_13_a_data_error_of_the_server() {
    for (event, code) in [
        ((|f| f.get("CDS v2 n2: a!5")) as fn(&mut Fixture) -> String, "NOT_FOUND"),
        (|f| f.get("CDS v2 n2: a!7"), "PERMISSION_DENIED"),
    ] {
        check(false, false, event, code, ResourceStatus::ReceivedError);
        check(true, false, event, code, ResourceStatus::ReceivedError);
        check(false, true, event, &format!("1 beside {code}"), ResourceStatus::ReceivedError);
        check(true, true, event, code, ResourceStatus::ReceivedError);
    }
}

#[test]
fn c10_c11_p1_14_p1_15_another_error_of_the_server_keeps_the_copy() {
    for (event, code) in [
        ((|f| f.get("CDS v2 n2: a!14")) as fn(&mut Fixture) -> String, "UNAVAILABLE"),
        (|f| f.get("CDS v2 n2: a!13"), "INTERNAL"),
        (|f| f.get("CDS v2 n2: a!99"), "code 99"),
    ] {
        for fail in [false, true] {
            check(fail, false, event, code, ResourceStatus::ReceivedError);
            check(fail, true, event, &format!("1 beside {code}"), ResourceStatus::ReceivedError);
        }
    }
}

#[test]
fn c11_p1_16_an_error_stops_the_timer() {
    for protocol in BOTH {
        let (mut f, a) = watched(protocol, ErrorPolicy::default(), false);
        f.get("CDS v1 n1: a!13");
        assert_eq!((f.pass(60).as_str(), f.view(a).as_str()), ("", "INTERNAL"));
    }
}

#[test]
fn p1_17_a_valid_resource_clears_what_was_wrong() {
    for protocol in BOTH {
        for event in ["a=bad", "a!5", "a!14"] {
            let (mut f, _) = watched(protocol, ErrorPolicy::default(), true);
            f.get(&format!("CDS v2 n2: {event}"));
            assert_eq!(f.get("CDS v3 n3: a=1"), "a: 1", "{event}");
            assert_eq!(f.statuses(), [ResourceStatus::Acked]);
        }
    }
}

#[test]
fn c8_p1_18_a_watcher_that_comes_later_sees_copy_and_error() {
    let (mut f, a) = watched(Protocol::Delta, ErrorPolicy::default(), true);
    f.get("CDS v2 n2: a!14");
    let later = f.watch("CDS", "a");
    assert_eq!((later, f.view(later)), (a, "1 beside UNAVAILABLE".to_owned()));
}

#[test]
fn c12_p1_19_what_never_came_is_not_deleted_and_an_absence_is_told_once() {
    let (mut f, a) = watched(Protocol::Sotw, ErrorPolicy::default(), false);
    f.watch("CDS", "b");
    f.sent(0);
    assert_eq!(f.get("CDS v1 n1: b=1"), "b: 1");
    assert_eq!(f.view(a), "-");
    assert_eq!(f.get("CDS v2 n2:"), "b: 1 beside NOT_FOUND");
    assert_eq!(f.get("CDS v3 n3:"), "");
    assert_eq!(f.pass(15), "a: NOT_FOUND");
}

#[test]
fn c19_p1_20_p1_21_the_report_agrees_with_the_view() {
    let (mut f, _) = watched(Protocol::Delta, ErrorPolicy::default(), true);
    f.get("CDS v2 n2: a!7");
    let report = f.client.report().remove(0);
    assert_eq!((report.status, report.copy.is_some()), (ResourceStatus::ReceivedError, true));
    assert_eq!(report.version.as_deref(), Some("v1"));
    assert_eq!(report.error.map(|error| error.code), Some(Code::PERMISSION_DENIED));
}

#[test]
fn c9c_an_error_beats_the_removal_of_the_same_name() {
    for fail in [false, true] {
        let event = |f: &mut Fixture| f.get("CDS v2 n2: -a a!7");
        let expected = if fail { "PERMISSION_DENIED" } else { "1 beside PERMISSION_DENIED" };
        let found = row(Protocol::Delta, fail, true, event);
        assert_eq!(found, (format!("a: {expected}"), expected.to_owned(), ResourceStatus::ReceivedError));
    }
}

/// Regression: a client that fell back to a server that did not serve the type dropped its copy.
#[test]
fn c9c_g4_a_removal_beside_the_error_of_a_type_that_is_not_served_removes_nothing() {
    for fail in [false, true] {
        let found = row(Protocol::Delta, fail, true, |f: &mut Fixture| f.get("CDS v2 n2: -a a!12"));
        let expected = "1 beside UNIMPLEMENTED";
        assert_eq!(found, (format!("a: {expected}"), expected.to_owned(), ResourceStatus::ReceivedError));
    }
}

#[test]
fn c9b_d28_what_was_removed_is_kept_for_those_who_had_it_only() {
    for gone in ["-r", "r!5"] {
        let mut f = Fixture::new(Protocol::Delta);
        let old = f.watch("RDS", "r{env=prod}");
        f.sent(0);
        f.get("RDS v1 n1: r[env=prod]=A");
        f.get(&format!("RDS v2 n2: {gone}"));
        let new = f.watch("RDS", "r{env=prod,version=v1}");
        assert_eq!((f.view(old).as_str(), f.view(new).as_str()), ("A beside NOT_FOUND", "-"), "{gone}");
        assert!(f.client.cache().snapshot().get(&fixture::url("RDS"), &"r".into()).is_none());
    }
}

/// Regression: a change of one variant cleared the error of another variant.
#[test]
fn s37_an_error_of_one_locator_stands_when_another_variant_comes() {
    let mut f = Fixture::new(Protocol::Delta);
    let test = f.watch("RDS", "r{env=test}");
    f.watch("RDS", "r{env=prod}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A r[env=test]=B");
    assert_eq!(f.get("RDS v2 n2: r[env=test]!14"), "r{env=test}: B beside UNAVAILABLE");
    assert_eq!(f.get("RDS v3 n3: r[env=prod]=A2"), "r{env=prod}: A2");
    assert_eq!(f.view(test), "B beside UNAVAILABLE");
}

/// P6.4: CSDS shows the last rejection, although it is no news for watchers.
#[test]
fn c19_p6_4_a_second_rejection_in_the_same_words_is_the_newer_one_and_told_to_nobody() {
    let mut f = Fixture::new(Protocol::Sotw);
    refuse_bad(&mut f.client, "CDS");
    f.watch("CDS", "a");
    f.sent(0);
    assert_eq!(f.get("CDS v1 n1: a=bad"), "a: INVALID_ARGUMENT");
    f.pass(1);
    assert_eq!(f.get("CDS v2 n2: a=bad"), "");
    let error = f.client.report()[0].error.clone().expect("it is rejected");
    assert_eq!((error.rejected_version.as_deref(), error.at), (Some("v2"), Duration::from_secs(1)));
}

/// A copy is kept after the deletion of its resource (P1.9). The resource counts as deleted again
/// after an invalid one came and was deleted.
#[test]
fn p1_7_s25_what_was_rejected_and_is_not_in_the_next_full_state_does_not_exist() {
    let mut f = Fixture::new(Protocol::Sotw);
    refuse_bad(&mut f.client, "CDS");
    f.watch("CDS", "a");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    assert_eq!(f.get("CDS v2 n2:"), "a: 1 beside NOT_FOUND");
    assert_eq!(f.get("CDS v3 n3: a=bad"), "a: 1 beside INVALID_ARGUMENT");
    assert_eq!(f.get("CDS v4 n4:"), "a: 1 beside NOT_FOUND");
}

/// Regression: the error of an earlier stream stayed although the server answered on the new one. A
/// proxy then withheld removals for ever (seed 109662).
#[test]
fn p1_23_d15_an_error_of_a_wildcard_ends_with_the_answer_on_a_new_stream() {
    for answer in ["EDS v2 n1: -a", "EDS v2 n1:"] {
        let mut f = Fixture::new(Protocol::Delta);
        let all = f.watch("EDS", "*");
        f.sent(0);
        f.get("EDS v1 n1: a=1");
        f.get("EDS v1 n2: *!14");
        assert_eq!(f.view(all), "UNAVAILABLE");
        f.end(0);
        assert_eq!(f.connect(0), "node EDS +* (a:?)");
        assert_eq!(f.view(all), "UNAVAILABLE");
        f.get(answer);
        assert_eq!(f.view(all), "-");
    }
    // Without a response there is nothing new (D21). A wildcard without members is not empty: its
    // server has not said so.
    for (members, view) in [("a=1", "-"), ("", "UNAVAILABLE")] {
        let mut f = Fixture::new(Protocol::Delta);
        let all = f.watch("EDS", "*");
        f.sent(0);
        f.get(&format!("EDS v1 n1: {members}"));
        f.get("EDS v1 n2: *!14");
        f.pass(1);
        f.end(0);
        f.pass(1);
        f.connect(0);
        f.pass(15);
        assert_eq!(f.view(all), view);
        assert_eq!(f.client.members(all).expect("it is a set").count(), usize::from(!members.is_empty()));
    }
}
