//! Streams, subscriptions and answers (C1-C5, C13, C14, S, D).

use super::fixture::{Fixture, refuse_bad};
use super::*;

#[test]
fn s1_s3_s11_s14_requests_name_all_and_repeat_version_and_nonce_of_what_is_accepted() {
    let mut f = Fixture::new(Protocol::Sotw);
    let a = f.watch("CDS", "a");
    f.watch("CDS", "b{env=prod}");
    assert_eq!(f.sent(0), "node CDS [a b{env=prod}]");
    assert_eq!(f.get("CDS v1 n1: a=1"), "a: 1");
    assert_eq!(f.view(a), "1");
    assert_eq!(f.sent(0), "CDS [a b{env=prod}] v1 n1");
    f.watch("CDS", "c");
    assert_eq!(f.sent(0), "CDS [a c b{env=prod}] v1 n1");
}

#[test]
fn s4_c2_what_is_valid_in_a_rejected_response_is_used_and_the_version_stays() {
    let mut f = Fixture::new(Protocol::Sotw);
    refuse_bad(&mut f.client, "CDS");
    let (a, b) = (f.watch("CDS", "a"), f.watch("CDS", "b"));
    f.sent(0);
    f.get("CDS v1 n1: a=1 b=1");
    assert_eq!(f.sent(0), "CDS [a b] v1 n1");
    assert_eq!(f.get("CDS v2 n2: a=2 b=bad"), "a: 2\nb: 1 beside INVALID_ARGUMENT");
    assert_eq!(f.sent(0), "CDS [a b] v1 n2 !\"b\": it is bad");
    assert_eq!((f.view(a), f.view(b)), ("2".into(), "1 beside INVALID_ARGUMENT".into()));
    // P1.17: a valid one clears it.
    assert_eq!(f.get("CDS v3 n3: a=2 b=1"), "b: 1");
}

#[test]
fn d1_d2_d4_delta_tells_changes_and_answers_each_nonce() {
    let mut f = Fixture::new(Protocol::Delta);
    let a = f.watch("EDS", "a");
    f.watch("EDS", "b{env=prod}");
    assert_eq!(f.sent(0), "node EDS +a +b{env=prod}");
    assert_eq!(f.get("EDS v1 n1: a=1"), "a: 1");
    f.watch("EDS", "c");
    f.client.on_unwatch(a);
    assert_eq!(f.sent(0), "EDS +c -a n1");
    assert_eq!(f.sent(0), "");
}

#[test]
fn t31_v16_a_switch_of_variants_is_one_update() {
    let mut f = Fixture::new(Protocol::Delta);
    f.watch("RDS", "r{env=prod,version=v1}");
    f.watch("RDS", "r{env=prod}");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[env=prod]=A"), "r{env=prod,version=v1}: A\nr{env=prod}: A");
    let switched = f.get("RDS v2 n2: r[env=prod,version=v1]=B -r[env=prod]");
    assert_eq!(switched, "r{env=prod,version=v1}: B\nr{env=prod}: A beside NOT_FOUND");
    assert_eq!(f.sent(0), "RDS n1\nRDS n2");
}

#[test]
fn c5_what_does_not_come_in_time_does_not_exist() {
    let mut f = Fixture::new(Protocol::Sotw);
    let a = f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.pass(14), "");
    assert_eq!(f.pass(1), "a: NOT_FOUND");
    assert_eq!(f.view(a), "NOT_FOUND");
    assert_eq!(f.get("EDS v1 n1: a=1"), "a: 1");
    assert_eq!(f.pass(60), "");
}

#[test]
fn c7_c14_p5_5_a_stream_that_was_answered_is_opened_again_at_once_with_its_version() {
    let mut f = Fixture::new(Protocol::Sotw);
    let a = f.watch("CDS", "a");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.pass(5);
    assert_eq!(f.end(0), "");
    assert_eq!(f.client.connect_at(0), Some(f.now));
    f.open(0);
    assert_eq!(f.sent(0), "node CDS [a] v1");
    assert_eq!((f.pass(20).as_str(), f.view(a).as_str()), ("", "1"));
}
