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

/// Regression: of two restored variants that overlap, the older one stayed in the file of a proxy, and
/// came back at a later start (seed 106488). A damaged file may have such variants: a record that
/// removed one is lost.
#[test]
fn t34_a_restored_variant_that_another_one_replaces_is_reported_as_removed() {
    let mut f = Fixture::new(Protocol::Delta);
    let [older, newer] = ["env=prod", "env in (prod,qa)"].map(|constraints| VariantId {
        type_url: url("EDS"),
        name: "a".into(),
        constraints: constraints.parse().expect("constraints"),
    });
    let of = |id: &VariantId| Restored {
        id: id.clone(),
        payload: payload("a", "old"),
        version: "v0".into(),
        ttl: None,
        aliases: Vec::new(),
    };
    assert_eq!(f.client.restore(f.now, vec![of(&older), of(&newer)]), 2);
    f.watch("EDS", "a{env=prod}");
    f.sent(0);
    let frame = fixture::response("EDS v1 n1: a[env in (prod,qa)]=old", Protocol::Delta);
    let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
    assert_eq!(effects.removed, [older]);
    let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
    assert_eq!(effects.removed, []);
}
