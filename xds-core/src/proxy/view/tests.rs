//! Generations as they are read, and where reads go.

use super::fixture::{Viewed, shown_read, status_of};
use super::*;
use crate::client::ReadRoute;
use crate::client::health::fixture::url;

#[test]
fn before_the_first_init_every_read_goes_upstream() {
    let mut f = Viewed::of("a b");
    assert_eq!(f.read("a", "x", ""), "upstream UNAVAILABLE");
    f.open();
    f.commit("a x=1");
    f.respond("a");
    assert_eq!(f.read("a", "x", ""), "upstream UNAVAILABLE", "b was not answered");
    assert_eq!(f.view.generation(), Generation::ZERO);
    f.respond("b");
    assert_eq!([f.read("a", "x", ""), f.read("a", "y", "")], ["1", "-"]);
}

#[test]
fn t3_a_guard_reads_the_variant_for_the_parameters_of_its_type_alone() {
    let f = Viewed::healthy("a b", "a x[env=p]=1 x[env=q]=2 y=3; b x=4");
    assert_eq!([f.read("a", "x", "env=q"), f.read("a", "x", "env=r"), f.read("b", "x", "")], ["2", "-", "4"]);
    let guard = f.guard("a");
    let ReadRoute::Cache(resources) = guard.route() else { panic!("it is synced") };
    let mut names: Vec<_> = resources.iter().map(|read| read.unwrap().name().as_str().to_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ["x", "x", "y"]);
}

#[test]
fn a_healthy_view_follows_the_cache() {
    let f = Viewed::healthy("a", "a x=1");
    f.commit("a x=2");
    assert_eq!(f.read("a", "x", ""), "2");
    f.commit("a -x");
    assert_eq!(f.read("a", "x", ""), "-");
}

#[test]
fn the_next_generation_is_built_aside_and_swapped_in_at_once() {
    let mut f = Viewed::healthy("a b", "a x=1; b x=1");
    f.lose();
    f.open();
    f.commit("a x=2");
    f.respond("a");
    f.commit("b x=2");
    assert_eq!([f.read("a", "x", ""), f.read("b", "x", "")], ["1", "1"]);
    assert_eq!(f.view.generation().to_string(), "1");
    f.respond("b");
    assert_eq!([f.read("a", "x", ""), f.read("b", "x", "")], ["2", "2"]);
    assert_eq!(f.view.generation().to_string(), "2");
}

#[test]
fn a_generation_that_never_got_its_init_is_never_read() {
    let mut f = Viewed::healthy("a b", "a x=1");
    for content in 2..5 {
        f.lose();
        f.open();
        f.commit(&format!("a x={content}"));
        f.respond("a");
        assert_eq!(f.read("a", "x", ""), "1");
    }
    f.respond("b");
    assert_eq!((f.read("a", "x", "").as_str(), f.view.generation().to_string().as_str()), ("4", "4"));
}

#[test]
fn s38_while_no_stream_stands_what_ends_by_itself_is_gone() {
    let mut f = Viewed::healthy("a", "a x=1");
    f.lose();
    f.commit("a -x");
    assert_eq!(f.read("a", "x", ""), "-");
}

#[test]
fn g4_nothing_of_a_rejected_type_is_readable_after_init_though_it_is_in_the_cache() {
    let mut f = Viewed::healthy("a b", "a x=1; b x=1");
    f.lose();
    f.open();
    f.upstream.health.on_rejected(&url("b"), status_of("b"));
    f.respond("a");
    let guard = f.guard("b");
    let ReadRoute::Upstream(status) = guard.route() else { panic!("it is rejected") };
    assert_eq!(status, status_of("b"), "unchanged");
    assert_eq!(f.read("a", "x", ""), "1", "others have nothing to do with it");
    // Nor is anything of it readable before the next generation knows of it.
    f.lose();
    f.open();
    assert_eq!(f.read("b", "x", ""), "upstream UNIMPLEMENTED");
    f.respond("a");
    f.pass();
    assert_eq!(f.read("b", "x", ""), "upstream UNAVAILABLE");
    f.respond("b");
    assert_eq!(f.read("b", "x", ""), "1");
}

#[test]
fn a_type_rejected_after_init_is_unreadable_at_once() {
    let mut f = Viewed::healthy("a b", "a x=1; b x=1");
    f.reject("b");
    assert_eq!([f.read("a", "x", ""), f.read("b", "x", "")], ["1", "upstream UNIMPLEMENTED"]);
}

#[test]
fn g13_of_a_pending_type_what_was_known_before_stays_and_else_nothing_counts_as_absent() {
    let mut f = Viewed::of("a b");
    f.open();
    f.commit("a x=1");
    f.respond("a");
    f.pass();
    assert_eq!([f.read("a", "x", ""), f.read("b", "x", "")], ["1", "upstream UNAVAILABLE"]);
    f.lose();
    f.open();
    f.pass();
    assert_eq!(f.view.generation().to_string(), "2");
    assert_eq!([f.read("a", "x", ""), f.read("b", "x", "")], ["1", "upstream UNAVAILABLE"]);
    f.respond("b");
    assert_eq!(f.read("b", "x", ""), "-");
}

#[test]
fn a_type_that_nobody_asked_for_is_read_upstream() {
    let f = Viewed::healthy("a", "b x=1");
    assert_eq!(f.read("b", "x", ""), "upstream UNAVAILABLE");
}

#[test]
fn a_guard_stays_where_it_was_and_lets_go_of_its_generation_when_dropped() {
    let mut f = Viewed::healthy("a b", "a x=1");
    let readers = |f: &Viewed| {
        let readers = f.view.readers();
        readers
            .iter()
            .map(|(generation, count)| format!("{generation}: {count}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    assert_eq!(readers(&f), "");
    let (first, other) = (f.guard("a"), f.guard("b"));
    f.commit("a x=2");
    assert_eq!(readers(&f), "1: 2");
    f.lose();
    f.open();
    f.reject("a");
    f.respond("b");
    let second = f.guard("a");
    assert_eq!(readers(&f), "1: 2, 2: 1");
    assert_eq!([shown_read(&first, "x", ""), shown_read(&second, "x", "")], ["1", "upstream UNIMPLEMENTED"]);
    assert_eq!((first.generation().to_string(), second.generation().to_string()), ("1".into(), "2".into()));
    drop(first);
    assert_eq!(readers(&f), "1: 1, 2: 1");
    drop((other, second));
    assert_eq!(readers(&f), "");
}

#[test]
fn of_a_generation_that_nobody_reads_nothing_is_kept() {
    let mut f = Viewed::healthy("a", "a x=1");
    let guard = f.guard("a");
    let ReadRoute::Cache(resources) = guard.route() else { panic!("it is synced") };
    let variant = Arc::downgrade(resources.get("x").unwrap().unwrap().variant());
    f.lose();
    f.open();
    f.commit("a x=2");
    f.respond("a");
    assert!(variant.upgrade().is_some());
    drop(guard);
    // The history of the new variant has versions, not contents.
    assert!(variant.upgrade().is_none());
}

#[test]
fn following_what_is_known_already_changes_nothing() {
    let f = Viewed::healthy("a", "a x=1");
    let before = f.view.0.present.load_full();
    f.view.follow(&f.upstream.health);
    assert!(Arc::ptr_eq(&before, &f.view.0.present.load_full()));
}
