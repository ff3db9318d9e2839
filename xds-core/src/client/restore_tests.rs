//! Resources from an earlier run of the program.

use super::fixture::{Fixture, payload, url};
use super::*;
use crate::resource::VariantId;

fn restored(f: &mut Fixture, type_name: &str, name: &str, ttl: Option<Duration>) {
    let id = VariantId::unconstrained(url(type_name), name);
    let one = Restored { id, payload: payload(name, "old"), version: "v0".into(), ttl, aliases: Vec::new() };
    assert_eq!(f.client.restore(f.now, vec![one]), 1);
}

#[test]
fn c14b_what_is_restored_is_used_and_asked_for_as_if_it_were_not_there() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        restored(&mut f, "EDS", "a", None);
        restored(&mut f, "EDS", "b", None);
        let (a, b) = (f.watch("EDS", "a"), f.watch("EDS", "b"));
        assert_eq!((f.view(a).as_str(), f.statuses()), ("old?", vec![ResourceStatus::Requested; 2]));
        assert!(!f.sent(0).contains("v0"));
        assert_eq!(f.get("EDS v1 n1: a=old"), "a: old", "it is confirmed");
        assert_eq!(f.pass(15), "b: old? beside NOT_FOUND");
        assert_eq!(f.view(b), "old? beside NOT_FOUND");
    }
}

#[test]
fn s38_what_is_restored_ends_with_its_ttl() {
    let mut f = Fixture::new(Protocol::Sotw);
    restored(&mut f, "EDS", "a", Some(Duration::from_secs(5)));
    let a = f.watch("EDS", "a");
    f.sent(0);
    assert_eq!(f.pass(5), "a: NOT_FOUND");
    assert_eq!(f.view(a), "NOT_FOUND");
}
