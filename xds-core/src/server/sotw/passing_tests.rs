//! Resources that changed, appeared or disappeared before a response was sent, or while it was on
//! its way (S25, S32).

use std::time::Duration;

use super::super::fixture::{Sotw, commit, type_url};
use super::SotwRequest;
use super::tests::cache;
use crate::Cache;

#[test]
fn s32_a_version_stands_for_what_its_request_asked_for() {
    let cache = cache("CDS a=1 d=1");
    let mut fresh = Sotw::new(&cache);
    fresh.ask("CDS", "*", "");
    let version = fresh.sent_version();
    let mut client = Sotw::new(&cache);
    client.send(SotwRequest {
        type_url: type_url("CDS").as_str().into(),
        version_info: version,
        requested: Some(vec!["d".into()].into()),
        ..SotwRequest::default()
    });
    client.ask("CDS", "*", "");
    assert_eq!(client.sent(), "n1 CDS a=1 d=1");
}

#[test]
fn s25_what_went_through_other_variants_with_its_content_is_gone_in_the_end() {
    let cache = Cache::new();
    let mut client = Sotw::new(&cache);
    commit(&cache, "LDS r[env=a]=0 r[env!=a]=0");
    client.ask("LDS", "*", "");
    assert_eq!(client.sent(), "n1 LDS r=0");
    client.ack("LDS", "1");
    // V29: by name this is no change.
    commit(&cache, "LDS -r[env=a] -r[env!=a] r[ver=1]=0 r[!ver]=0");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS -r[ver=1] -r[!ver] r[env=a]=0 r[env!=a]=0");
    commit(&cache, "LDS -r[env=a] -r[env!=a]");
    assert_eq!(client.sent(), "n2 LDS");
}

#[test]
fn s25_a_name_asked_for_while_a_state_with_it_is_on_its_way_is_told_to_be_gone() {
    let cache = cache("LDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "*", "");
    assert_eq!(client.sent(), "n1 LDS a=1");
    // The client sent all these requests before it got the response.
    client.ask("LDS", "", "");
    commit(&cache, "LDS -a");
    client.ask("LDS", "a", "");
    client.pass(Duration::from_secs(2));
    assert_eq!(client.sent(), "n2 LDS");
}

#[test]
fn s8b_a_name_given_up_while_a_state_with_it_is_on_its_way_and_wanted_again_is_told_to_be_gone() {
    let cache = cache("CDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "a b", "");
    assert_eq!(client.sent(), "n1 CDS a=1 b=1");
    client.ack("CDS", "1");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n2 CDS a=2 b=1");
    // The client sent this request before it got the response.
    client.ask("CDS", "a", "1");
    commit(&cache, "CDS -b");
    assert_eq!(client.sent(), "");
    // The client has b from n2, if it subscribed again before n2 came.
    client.ask("CDS", "a b", "2");
    assert_eq!(client.sent(), "n3 CDS a=2");
    // S17: a name that the client unsubscribed from after it got n3 is not in its resources any
    // more.
    client.ask("CDS", "a", "3");
    client.ask("CDS", "a b", "3");
    assert_eq!(client.sent(), "");
}
