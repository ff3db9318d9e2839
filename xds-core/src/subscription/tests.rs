use std::collections::BTreeSet;

use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::*;

/// Plain names, and locators as `name?key=value`.
fn requested(list: &[&str]) -> Requested {
    let (by_locator, plain): (Vec<&str>, Vec<&str>) = list.iter().partition(|word| word.contains('?'));
    Requested {
        names: plain.into_iter().map(ResourceName::new).collect(),
        locators: by_locator.into_iter().map(locator).collect(),
    }
}

fn locator(word: &str) -> Locator {
    let (name, pairs) = word.split_once('?').unwrap_or((word, ""));
    let parameters = pairs.split('&').filter_map(|pair| pair.split_once('=')).collect();
    Locator { name: name.into(), parameters }
}

fn locators(list: &[&str]) -> Locators {
    list.iter().map(|word| locator(word)).collect()
}

/// A SotW subscription after these lists.
fn after(lists: &[&[&str]]) -> Subscription {
    let mut subscription = Subscription::default();
    for list in lists {
        subscription.replace(requested(list), true);
    }
    subscription
}

fn covers(subscription: &Subscription, word: &str) -> bool {
    let locator = locator(word);
    subscription.covering(&locator.name).any(|parameters| *parameters == locator.parameters)
}

fn describe(subscription: &Subscription) -> String {
    let mut words: Vec<_> = subscription.by_name.names.iter().map(|name| name.as_str().to_owned()).collect();
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
fn s21_without_the_legacy_wildcard_an_empty_list_subscribes_to_nothing() {
    let mut subscription = Subscription::default();
    assert_eq!(subscription.replace(Requested::default(), false), SubscriptionChange::default());
    assert!(subscription.is_empty());
    assert_eq!(
        subscription.replace(requested(&["*"]), false),
        SubscriptionChange { wildcard: true, ..SubscriptionChange::default() }
    );
}

#[test]
fn s23_a_name_counts_once() {
    assert_eq!(after(&[&["b", "a", "b"]]).len(), 2);
}

#[test]
fn s14_what_a_list_adds_is_the_difference_to_the_one_before() {
    let mut subscription = after(&[&["a", "b"]]);
    assert_eq!(
        subscription.replace(requested(&["c", "b"]), true),
        SubscriptionChange { locators: locators(&["c"]), ..SubscriptionChange::default() }
    );
}

#[test]
fn d17_the_wildcard_vector_of_delta() {
    let mut subscription = Subscription::default();
    assert_eq!(
        subscription.edit(Requested::default(), Requested::default(), true),
        SubscriptionChange { wildcard: true, ..SubscriptionChange::default() }
    );
    assert_eq!(describe(&subscription), "*");
    subscription.edit(requested(&["A"]), Requested::default(), true);
    assert_eq!(describe(&subscription), "*,A");
    subscription.edit(Requested::default(), requested(&["*"]), true);
    assert_eq!(describe(&subscription), "A");
    subscription.edit(Requested::default(), requested(&["A"]), true);
    assert_eq!(describe(&subscription), "");
    subscription.edit(Requested::default(), Requested::default(), true);
    assert_eq!(describe(&subscription), "");
}

#[test]
fn d16_a_first_request_that_only_unsubscribes_means_nothing() {
    let mut subscription = Subscription::default();
    subscription.edit(Requested::default(), requested(&["A"]), true);
    assert!(subscription.is_empty());
}

#[test]
fn d9_a_name_subscribed_again_is_answered_again() {
    let mut subscription = Subscription::default();
    subscription.edit(requested(&["A"]), Requested::default(), true);
    assert_eq!(subscription.edit(requested(&["A"]), Requested::default(), true).locators, locators(&["A"]));
}

#[test]
fn d3_a_name_in_both_lists_ends_subscribed_and_is_answered() {
    let mut subscription = Subscription::default();
    subscription.edit(requested(&["A"]), Requested::default(), true);
    assert_eq!(subscription.edit(requested(&["A"]), requested(&["A"]), true).locators, locators(&["A"]));
    assert_eq!(describe(&subscription), "A");
}

#[test]
fn d18_a_name_unsubscribed_under_the_wildcard_is_answered() {
    let mut subscription = Subscription::default();
    subscription.edit(requested(&["*", "A"]), Requested::default(), true);
    assert_eq!(
        subscription.edit(Requested::default(), requested(&["A", "unknown"]), true).unsubscribed,
        locators(&["A"])
    );
}

#[derive(Debug, Clone)]
struct Few(BTreeSet<u8>);

impl Arbitrary for Few {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(Vec::<u8>::arbitrary(g).into_iter().map(|n| n % 16).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.iter().copied().collect::<Vec<_>>().shrink().map(|v| Self(v.into_iter().collect())))
    }
}

impl Few {
    fn list(&self) -> Vec<ResourceName> {
        self.0.iter().map(|n| ResourceName::new(format!("r{n:02}"))).collect()
    }
}

fn plain(names: Vec<ResourceName>) -> Locators {
    names.into_iter().map(|name| Locator { name, parameters: Parameters::new() }).collect()
}

#[test]
fn d2_delta_edits_agree_with_a_set_and_with_the_sotw_list() {
    fn agrees(steps: Vec<(Few, Few)>) -> bool {
        let mut model = BTreeSet::new();
        let (mut delta, mut sotw) = (Subscription::default(), Subscription::default());
        steps.into_iter().all(|(subscribe, unsubscribe)| {
            model = &(&model - &unsubscribe.0) | &subscribe.0;
            let before = sotw.by_name.names.clone();
            let change = delta.edit(subscribe.list().into(), unsubscribe.list().into(), false);
            let sotw_change = sotw.replace(Few(model.clone()).list().into(), false);
            delta.by_name.names == sotw.by_name.names
                && change.locators == plain(subscribe.list())
                && sotw_change.locators
                    == plain(difference(delta.by_name.names.as_slice(), before.as_slice()))
        })
    }
    QuickCheck::new().quickcheck(agrees as fn(Vec<(Few, Few)>) -> bool);
}

#[test]
fn t2_a_plain_name_does_not_cancel_a_locator() {
    let mut subscription = Subscription::default();
    subscription.edit(requested(&["a", "a?env=prod"]), Requested::default(), true);
    subscription.edit(Requested::default(), requested(&["a"]), true);
    assert!(covers(&subscription, "a?env=prod") && !covers(&subscription, "a"));
}

#[test]
fn t2_without_parameters_a_locator_is_the_plain_name_where_nothing_is_derived() {
    let mut subscription = Subscription::default();
    subscription.edit(requested(&["a"]), Requested::default(), true);
    subscription.edit(Requested::default(), requested(&["a?"]), true);
    assert!(subscription.is_empty());
}

#[test]
fn t46_a_locator_without_parameters_is_not_the_name_under_derived_ones() {
    let mut subscription = Subscription::new([("env", "prod")].into_iter().collect());
    let change = subscription.edit(requested(&["a", "a?"]), Requested::default(), true);
    assert_eq!(change.locators, locators(&["a?", "a?env=prod"]));
    subscription.edit(Requested::default(), requested(&["a"]), true);
    assert!(covers(&subscription, "a") && !covers(&subscription, "a?env=prod"));
}

#[test]
fn t28_locators_count_as_names_for_the_legacy_wildcard() {
    let mut sotw = Subscription::default();
    sotw.replace(Requested::default(), true);
    assert!(sotw.is_wildcard());
    sotw.replace(requested(&["a?env=prod"]), true);
    assert!(!sotw.is_wildcard());
    let mut delta = Subscription::default();
    delta.edit(requested(&["a?env=prod"]), Requested::default(), true);
    assert!(!delta.is_wildcard());
}

#[test]
fn t28_a_wildcard_covers_every_name_under_its_own_parameters() {
    let mut subscription = Subscription::default();
    assert!(subscription.edit(requested(&["*?env=prod"]), Requested::default(), true).wildcard);
    assert!(covers(&subscription, "a?env=prod") && !covers(&subscription, "a"));
    assert!(!subscription.edit(Requested::default(), requested(&["*"]), true).wildcard);
    assert!(subscription.is_wildcard());
    subscription.edit(Requested::default(), requested(&["*?env=prod"]), true);
    assert!(subscription.is_empty());
}

#[test]
fn s14_a_locator_with_other_parameters_is_another_one() {
    let mut subscription = Subscription::default();
    subscription.replace(requested(&["a?env=prod", "b"]), true);
    let change = subscription.replace(requested(&["a?env=test", "b"]), true);
    assert_eq!(
        change,
        SubscriptionChange { locators: locators(&["a?env=test"]), ..SubscriptionChange::default() }
    );
}

#[test]
fn s23_a_set_of_names_is_edited_as_a_set_of_texts_is() {
    fn is_equal(names: Vec<u8>, add: Vec<u8>, remove: Vec<u8>, is_shared: bool) -> bool {
        // Some are new-style names, which are not plain.
        let name = |number: &u8| match number % 16 {
            0 => ResourceName::new(format!("xdstp://a/t/{number}")),
            _ => ResourceName::new(format!("n{number}")),
        };
        let set = |numbers: &[u8]| numbers.iter().map(name).collect::<NameSet>();
        let [names_of, add_of, remove_of] = [&names, &add, &remove].map(|numbers| set(numbers));
        let all: BTreeSet<_> = names.iter().chain(&add).map(name).collect();
        let left = names.iter().map(name).filter(|name| !remove_of.contains(name));
        let added = add_of.without(&names_of);
        let edited: BTreeSet<_> = left.chain(added.iter().cloned()).collect();
        let other = is_shared.then(|| names_of.clone());
        names_of.edited(added.as_slice(), remove_of.as_slice()) == edited.into_iter().collect()
            && names_of.union(&add_of) == all.into_iter().collect()
            && other.is_none_or(|other| other == set(&names))
    }
    QuickCheck::new().quickcheck(is_equal as fn(Vec<u8>, Vec<u8>, Vec<u8>, bool) -> bool);
}
