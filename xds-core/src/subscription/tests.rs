use std::collections::BTreeSet;

use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::*;

fn names(list: &[&str]) -> Vec<ResourceName> {
    list.iter().map(|name| ResourceName::new(*name)).collect()
}

/// A SotW subscription after these lists.
fn after(lists: &[&[&str]]) -> Subscription {
    let mut subscription = Subscription::default();
    for list in lists {
        subscription.replace(names(list), true);
    }
    subscription
}

fn describe(subscription: &Subscription) -> String {
    let mut words: Vec<_> = subscription.names().iter().map(|name| name.as_str().to_owned()).collect();
    if subscription.is_wildcard() {
        words.insert(0, "*".to_owned());
    }
    words.join(",")
}

#[test]
fn s20_the_wildcard_vector_of_sotw() {
    assert_eq!(describe(&after(&[&[]])), "*");
    assert_eq!(describe(&after(&[&[], &["*", "A"]])), "*,A");
    assert_eq!(describe(&after(&[&[], &["*", "A"], &["A"]])), "A");
    assert_eq!(describe(&after(&[&[], &["*", "A"], &["A"], &[]])), "");
}

#[test]
fn s19_the_first_list_that_is_not_empty_ends_the_legacy_wildcard_for_good() {
    assert_eq!(describe(&after(&[&[], &[]])), "*");
    assert_eq!(describe(&after(&[&[], &["*"], &[]])), "");
    assert_eq!(describe(&after(&[&[], &["A"], &[]])), "");
}

#[test]
fn s21_without_the_legacy_wildcard_an_empty_list_asks_for_nothing() {
    let mut subscription = Subscription::default();
    assert_eq!(subscription.replace(Vec::new(), false), Added::default());
    assert_eq!(subscription.selection(), None);
    assert_eq!(subscription.replace(names(&["*"]), false), Added { names: Vec::new(), wildcard: true });
}

#[test]
fn s23_a_name_counts_once() {
    assert_eq!(after(&[&["b", "a", "b"]]).names().len(), 2);
}

#[test]
fn s14_what_a_list_adds_is_the_difference_to_the_one_before() {
    let mut subscription = after(&[&["a", "b"]]);
    assert_eq!(
        subscription.replace(names(&["c", "b"]), true),
        Added { names: names(&["c"]), wildcard: false }
    );
}

#[test]
fn d17_the_wildcard_vector_of_delta() {
    let mut subscription = Subscription::default();
    assert_eq!(subscription.edit(Vec::new(), Vec::new(), true), Added { names: Vec::new(), wildcard: true });
    assert_eq!(describe(&subscription), "*");
    subscription.edit(names(&["A"]), Vec::new(), true);
    assert_eq!(describe(&subscription), "*,A");
    subscription.edit(Vec::new(), names(&["*"]), true);
    assert_eq!(describe(&subscription), "A");
    subscription.edit(Vec::new(), names(&["A"]), true);
    assert_eq!(describe(&subscription), "");
    subscription.edit(Vec::new(), Vec::new(), true);
    assert_eq!(describe(&subscription), "");
}

#[test]
fn d16_a_first_request_that_only_unsubscribes_means_nothing() {
    let mut subscription = Subscription::default();
    subscription.edit(Vec::new(), names(&["A"]), true);
    assert_eq!(subscription.selection(), None);
}

#[test]
fn d9_a_name_subscribed_again_is_answered_again() {
    let mut subscription = Subscription::default();
    subscription.edit(names(&["A"]), Vec::new(), true);
    assert_eq!(subscription.edit(names(&["A"]), Vec::new(), true).names, names(&["A"]));
}

#[test]
fn d3_a_name_in_both_lists_ends_subscribed_and_is_answered() {
    let mut subscription = Subscription::default();
    subscription.edit(names(&["A"]), Vec::new(), true);
    assert_eq!(subscription.edit(names(&["A"]), names(&["A"]), true).names, names(&["A"]));
    assert_eq!(describe(&subscription), "A");
}

#[test]
fn d18_a_name_unsubscribed_under_the_wildcard_is_answered() {
    let mut subscription = Subscription::default();
    subscription.edit(names(&["*", "A"]), Vec::new(), true);
    assert_eq!(subscription.edit(Vec::new(), names(&["A", "unknown"]), true).names, names(&["A"]));
}

#[derive(Debug, Clone)]
struct Names(BTreeSet<u8>);

impl Arbitrary for Names {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(Vec::<u8>::arbitrary(g).into_iter().map(|n| n % 16).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.iter().copied().collect::<Vec<_>>().shrink().map(|v| Self(v.into_iter().collect())))
    }
}

impl Names {
    fn list(&self) -> Vec<ResourceName> {
        self.0.iter().map(|n| ResourceName::new(format!("r{n:02}"))).collect()
    }
}

#[test]
fn d2_delta_edits_agree_with_a_set_and_with_the_sotw_list() {
    fn agrees(steps: Vec<(Names, Names)>) -> bool {
        let mut model = BTreeSet::new();
        let (mut delta, mut sotw) = (Subscription::default(), Subscription::default());
        steps.into_iter().all(|(subscribe, unsubscribe)| {
            model = &(&model - &unsubscribe.0) | &subscribe.0;
            let before = sotw.names().clone();
            let added = delta.edit(subscribe.list(), unsubscribe.list(), false);
            let sotw_added = sotw.replace(Names(model.clone()).list(), false);
            delta.names() == sotw.names()
                && added.names == subscribe.list()
                && sotw_added.names == difference(&delta.names().0, &before.0)
        })
    }
    QuickCheck::new().quickcheck(agrees as fn(Vec<(Names, Names)>) -> bool);
}
