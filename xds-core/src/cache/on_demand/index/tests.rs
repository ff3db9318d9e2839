use std::collections::BTreeSet;

use quickcheck::QuickCheck;

use super::*;
use crate::cache::Cache;

const NAMES: [&str; 5] = ["*", "a", "b", "c", "d"];

/// The locators of a number: eight bits for the names under no parameters, eight for those of `env=prod`.
fn locators(bits: u16) -> Locators {
    let sets = [(Parameters::new(), bits & 0xff), (Parameters::from_iter([("env", "prod")]), bits >> 8)];
    let locators = sets.into_iter().flat_map(|(parameters, bits)| {
        let names = NAMES.into_iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1);
        names.map(move |(_, name)| Locator { name: name.into(), parameters: parameters.clone() })
    });
    locators.collect()
}

/// The reader knows each locator that a stream has, and no other; and who subscribes to it.
fn agrees(steps: Vec<(u8, u16, bool)>) -> bool {
    let (cache, type_url, waker) = (Cache::on_demand(), TypeUrl::from("t/T"), AtomicWaker::new());
    let watches: Vec<_> = std::iter::repeat_with(|| cache.watch()).take(3).collect();
    let mut held = vec![Locators::default(); watches.len()];
    let (mut index, mut known) = (SubscriptionIndex::default(), BTreeMap::new());
    let mut read = |index: &mut SubscriptionIndex| {
        for OnDemandSubscription { locator, streams, .. } in index.take() {
            match streams {
                0 => _ = known.remove(&locator),
                _ => _ = known.insert(locator, ()),
            }
        }
        known.keys().cloned().collect::<BTreeSet<Locator>>()
    };
    for (stream, bits, is_read) in steps {
        let stream = usize::from(stream) % watches.len();
        let after = locators(bits);
        index.change(&type_url, watches[stream].stream(), &held[stream], &after, &waker);
        held[stream] = after;
        if is_read && read(&mut index) != held.iter().flat_map(Locators::iter).collect() {
            return false;
        }
        for locator in locators(u16::MAX).iter() {
            let subscribers: Vec<_> = index.subscribers(&type_url, &locator).map(|of| of.id).collect();
            let holds = |at: &usize| held[*at].contains(&locator);
            let expected: BTreeSet<_> =
                (0..held.len()).filter(holds).map(|at| watches[at].stream().id).collect();
            if subscribers.len() != expected.len()
                || subscribers.into_iter().collect::<BTreeSet<_>>() != expected
            {
                return false;
            }
        }
    }
    for (stream, watch) in watches.iter().enumerate() {
        index.change(&type_url, watch.stream(), &held[stream], &Locators::default(), &waker);
    }
    read(&mut index).is_empty() && index.types.is_empty()
}

#[test]
fn a_reader_knows_what_streams_subscribe_to_after_any_changes() {
    QuickCheck::new().tests(300).quickcheck(agrees as fn(Vec<(u8, u16, bool)>) -> bool);
}

fn taken(index: &mut SubscriptionIndex) -> Vec<(ResourceName, usize)> {
    index.take().into_iter().map(|of| (of.locator.name, of.streams)).collect()
}

#[test]
fn streams_with_equal_names_are_one_list_and_a_locator_that_stays_is_not_reported() {
    let (cache, type_url, waker) = (Cache::on_demand(), TypeUrl::from("t/T"), AtomicWaker::new());
    let (one, other) = (cache.watch(), cache.watch());
    let (few, more, none) = (locators(0b110), locators(0b1110), Locators::default());
    let mut index = SubscriptionIndex::default();
    index.change(&type_url, one.stream(), &none, &few, &waker);
    index.change(&type_url, other.stream(), &none, &few, &waker);
    assert_eq!(index.types[&type_url].lists.len(), 1);
    assert_eq!(index.take().len(), 2);
    // One of two streams leaves the list, and then the other one follows.
    index.change(&type_url, one.stream(), &few, &more, &waker);
    assert_eq!(index.types[&type_url].lists.len(), 2);
    assert_eq!(taken(&mut index), [("c".into(), 1)]);
    index.change(&type_url, other.stream(), &few, &more, &waker);
    assert_eq!((index.types[&type_url].lists.len(), index.take().len()), (1, 0));
    // A stream that is alone in its list.
    index.change(&type_url, other.stream(), &more, &none, &waker);
    index.change(&type_url, one.stream(), &more, &few, &waker);
    assert_eq!(index.types[&type_url].lists.len(), 1);
    assert_eq!(taken(&mut index), [("c".into(), 0)]);
}
