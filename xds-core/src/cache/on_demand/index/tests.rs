use std::collections::BTreeSet;

use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::*;
use crate::cache::Cache;
use crate::server::fixture::{commit, type_url};
use crate::subscription::WILDCARD;

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
    let stable = cache.snapshot();
    let watches: Vec<_> = std::iter::repeat_with(|| cache.watch()).take(3).collect();
    let mut held = vec![Locators::default(); watches.len()];
    let (mut index, mut known) = (SubscriptionIndex::default(), BTreeMap::new());
    let mut read = |index: &mut SubscriptionIndex| {
        for OnDemandSubscription { locator, streams, .. } in index.take(usize::MAX) {
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
        index.change(&type_url, watches[stream].stream(), (&held[stream], &after), &stable, &waker);
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
        index.change(&type_url, watch.stream(), (&held[stream], &Locators::default()), &stable, &waker);
    }
    read(&mut index).is_empty() && index.types.is_empty()
}

#[test]
fn a_reader_knows_what_streams_subscribe_to_after_any_changes() {
    QuickCheck::new().tests(300).quickcheck(agrees as fn(Vec<(u8, u16, bool)>) -> bool);
}

fn taken(index: &mut SubscriptionIndex) -> Vec<(ResourceName, usize)> {
    index.take(usize::MAX).into_iter().map(|of| (of.locator.name, of.streams)).collect()
}

#[test]
fn streams_with_equal_names_are_one_list_and_a_locator_that_stays_is_not_reported() {
    let (cache, type_url, waker) = (Cache::on_demand(), TypeUrl::from("t/T"), AtomicWaker::new());
    let stable = cache.snapshot();
    let (one, other) = (cache.watch(), cache.watch());
    let (few, more, none) = (locators(0b110), locators(0b1110), Locators::default());
    let mut index = SubscriptionIndex::default();
    index.change(&type_url, one.stream(), (&none, &few), &stable, &waker);
    index.change(&type_url, other.stream(), (&none, &few), &stable, &waker);
    assert_eq!(index.types[&type_url].groups(), 1);
    assert_eq!(index.take(usize::MAX).len(), 2);
    // One of two streams leaves the list, and then the other one follows.
    index.change(&type_url, one.stream(), (&few, &more), &stable, &waker);
    assert_eq!(index.types[&type_url].groups(), 2);
    assert_eq!(taken(&mut index), [("c".into(), 1)]);
    index.change(&type_url, other.stream(), (&few, &more), &stable, &waker);
    assert_eq!((index.types[&type_url].groups(), index.take(usize::MAX).len()), (1, 0));
    // A stream that is alone in its list.
    index.change(&type_url, other.stream(), (&more, &none), &stable, &waker);
    index.change(&type_url, one.stream(), (&more, &few), &stable, &waker);
    assert_eq!(index.types[&type_url].groups(), 1);
    assert_eq!(taken(&mut index), [("c".into(), 0)]);
}

/// What a step of [`Grouped`] does.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A stream subscribes to names, as bits, with its parameters.
    Subscribe(usize, u8),
    /// Constraints use other keys.
    Keys(usize),
    ListAll(usize, usize),
    ListFurther(usize, usize),
    HasFurther(usize),
    Read,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut below = |bound: usize| usize::arbitrary(g) % bound;
        match below(16) {
            0..8 => Self::Subscribe(below(PODS), [0, below(32)][below(4).min(1)] as u8),
            8..10 => Self::Keys(below(3)),
            10 => Self::ListAll(below(PODS), below(NAMES.len())),
            11 => Self::ListFurther(1 + below(NAMES.len() - 1), below(3)),
            12 => Self::HasFurther(1 + below(NAMES.len() - 1)),
            _ => Self::Read,
        }
    }
}

const PODS: usize = 7;

/// What streams have and what the source was reported, beside an index by groups.
struct Grouped {
    index: SubscriptionIndex,
    held: Vec<Locators>,
    known: BTreeSet<Locator>,
    /// Listed by name and projected parameters, for each set of keys.
    all: BTreeSet<(usize, ResourceName, Parameters)>,
    /// The number of keys in use.
    keys: usize,
}

/// The parameters of a stream; two streams have the same.
fn of_pod(pod: usize) -> Parameters {
    let env = ["a", "b"][pod % 2];
    Parameters::from_iter([("env", env.to_owned()), ("pod", (pod % (PODS - 1)).to_string())])
}

fn projected(parameters: &Parameters, keys: usize) -> Parameters {
    parameters.project(|key| ["env", "pod"][..keys].contains(&key))
}

impl Grouped {
    fn read(&mut self) {
        for OnDemandSubscription { locator, streams, .. } in self.index.take(usize::MAX) {
            let holding = self.held.iter().filter(|held| held.contains(&locator)).count();
            assert_eq!(streams, holding, "{locator:?}");
            match streams {
                0 => _ = self.known.remove(&locator),
                _ => _ = self.known.insert(locator),
            }
        }
    }

    fn check(&self) {
        let held: BTreeSet<_> = self.held.iter().flat_map(Locators::iter).collect();
        assert!(self.known.is_subset(&held), "{:?} of {held:?}", self.known);
        let kind = |of: &Locator| (of.name.clone(), projected(&of.parameters, self.keys));
        let known: BTreeSet<_> = self.known.iter().map(kind).collect();
        for locator in held.difference(&self.known) {
            let (name, projected) = kind(locator);
            assert!(known.contains(&(name.clone(), projected.clone())), "nobody stands for {locator:?}");
            let is_all = name.as_str() == WILDCARD || self.all.contains(&(self.keys, name, projected));
            assert!(!is_all, "all are listed, but not {locator:?}");
        }
        assert_eq!(self.index.locators(), held.len());
    }
}

fn follows(steps: Vec<Step>) -> bool {
    let (cache, waker) = (Cache::on_demand(), AtomicWaker::new());
    let type_url = type_url("X");
    let stable = ["", "X r[env=a]=A", "X r[env=a,pod=1]=A"].map(|content| {
        let cache = Cache::on_demand();
        commit(&cache, content);
        cache.snapshot()
    });
    let watches: Vec<_> = std::iter::repeat_with(|| cache.watch()).take(PODS).collect();
    let (index, held) = (SubscriptionIndex::grouped(), vec![Locators::default(); PODS]);
    let mut grouped = Grouped { index, held, known: BTreeSet::new(), all: BTreeSet::new(), keys: 0 };
    let last = (0..PODS).map(|pod| Step::Subscribe(pod, 0));
    for step in steps.into_iter().chain(last) {
        let locator = |pod, name: usize| Locator { name: NAMES[name].into(), parameters: of_pod(pod) };
        match step {
            Step::Subscribe(pod, bits) => {
                let names = (0..NAMES.len()).filter(|at| bits >> at & 1 == 1);
                let after = names.map(|at| locator(pod, at)).collect();
                let (stream, before) = (watches[pod].stream(), &grouped.held[pod]);
                let stable = &stable[grouped.keys];
                grouped.index.change(&type_url, stream, (before, &after), stable, &waker);
                grouped.held[pod] = after;
                // What was listed with a name that nobody has any more is forgotten.
                let held: BTreeSet<_> = grouped.held.iter().flat_map(Locators::iter).collect();
                grouped.all.retain(|(keys, name, of)| {
                    *keys == grouped.keys
                        && held
                            .iter()
                            .any(|one| one.name == *name && projected(&one.parameters, *keys) == *of)
                });
            }
            Step::Keys(keys) => {
                grouped.index.follow_keys(&stable[keys], &waker);
                let all = grouped.all.iter().flat_map(|(before, name, of)| {
                    let kinds = (0..PODS).map(of_pod).filter(|one| projected(one, *before) == *of);
                    kinds.map(|one| (keys, name.clone(), projected(&one, keys)))
                });
                let all: BTreeSet<_> = all.collect();
                grouped.keys = keys;
                let held: BTreeSet<_> = grouped.held.iter().flat_map(Locators::iter).collect();
                let is_held = |(keys, name, of): &(usize, ResourceName, Parameters)| {
                    held.iter().any(|one| one.name == *name && projected(&one.parameters, *keys) == *of)
                };
                grouped.all = all.into_iter().filter(is_held).collect();
            }
            Step::ListAll(pod, name) => {
                let locator = locator(pod, name);
                if !grouped.held.iter().any(|held| held.contains(&locator)) {
                    continue;
                }
                let all = grouped.index.list_all(&type_url, &locator);
                let Locator { name, parameters } = locator;
                let of_name = |parameters| Locator { name: name.clone(), parameters };
                grouped.known.extend(all.into_iter().map(of_name));
                grouped.all.insert((grouped.keys, name.clone(), projected(&parameters, grouped.keys)));
            }
            Step::ListFurther(name, count) => {
                let name = ResourceName::from(NAMES[name]);
                let further = grouped.index.list_further(&type_url, &name, count);
                assert!(further.len() <= count);
                let of_name = |parameters| Locator { name: name.clone(), parameters };
                grouped.known.extend(further.into_iter().map(of_name));
            }
            Step::HasFurther(name) => {
                let name = ResourceName::from(NAMES[name]);
                grouped.read();
                let held: BTreeSet<_> = grouped.held.iter().flat_map(Locators::iter).collect();
                let has_unknown = held.difference(&grouped.known).any(|locator| locator.name == name);
                assert_eq!(grouped.index.has_further(&type_url, &name), has_unknown);
            }
            Step::Read => {
                grouped.read();
                grouped.check();
            }
        }
    }
    grouped.read();
    grouped.known.is_empty() && grouped.index.types.is_empty()
}

#[test]
fn of_locators_that_get_the_same_variants_one_is_listed_and_all_where_the_source_wants_it() {
    QuickCheck::new().tests(1000).quickcheck(follows as fn(Vec<Step>) -> bool);
}
