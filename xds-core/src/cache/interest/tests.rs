use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::*;
use crate::access::NamePatterns;
use crate::matching::KeySetRule;
use crate::server::fixture::{is_woken, parameters, try_commit, type_url};
use crate::subscription::{Locator, Requested, Subscription};
use crate::variants::{KeyedBy, Variant};

/// One step of a test, as positions in the tables below.
#[derive(Debug, Clone)]
enum Step {
    /// A stream starts, or an existing one changes its selection.
    Ask {
        stream: usize,
        asked: usize,
        node: usize,
    },
    Leave {
        stream: usize,
    },
    /// Puts or removes a variant, and another one in the same commit.
    Commit([(usize, usize, Option<u8>); 2]),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut below = |limit: usize| usize::arbitrary(g) % limit;
        match below(8) {
            0..3 => Self::Ask { stream: below(6), asked: below(ASKED.len()), node: below(NODES.len()) },
            3 => Self::Leave { stream: below(6) },
            _ => Self::Commit([(); 2].map(|()| {
                let content = (below(3) > 0).then(|| below(3) as u8);
                (below(NAMES.len()), below(WHEN.len()), content)
            })),
        }
    }
}

const NAMES: [&str; 4] = ["a", "b", "b{alias=n}", "c{alias=n|alias=m}"];

const WHEN: [&str; 10] = [
    "",
    "[env=p]",
    "[env=q]",
    "[(env=q||env=r)]",
    "[env!=p]",
    "[!env]",
    "[env=p,zone=x]",
    "[env=p,zone!=x]",
    "[(zone=x,env=r)||env=q]",
    "[zone]",
];

const NODES: [&str; 6] = ["", "env=p", "env=q", "env=p zone=x", "env=r zone=x", "zone=y"];

const ASKED: [&[&str]; 9] = [
    &["a"],
    &["a", "b"],
    &["*"],
    &["n"],
    &["m", "c", "b"],
    &["a?env=p", "b?env=q"],
    &["a?env=p&zone=x", "a?env=p&zone=y", "n?env=p&zone=x"],
    &["*?env=q", "a?zone=x&env=r", "b"],
    &["*?env=p&zone=x", "a?env=p"],
];

fn selection(asked: usize, node: usize) -> (TypeSelection, KeyedBy) {
    let (located, plain): (Vec<&str>, Vec<&str>) =
        ASKED[asked].iter().copied().partition(|word| word.contains('?'));
    let keyed_by = if located.is_empty() { KeyedBy::Name } else { KeyedBy::Locator };
    let locator = |word: &str| {
        let (name, pairs) = word.split_once('?').unwrap();
        Locator { name: name.into(), parameters: parameters(&pairs.replace('&', " ")) }
    };
    let asked = Requested {
        names: plain.into_iter().map(|name: &str| name.into()).collect(),
        locators: located.into_iter().map(locator).collect(),
    };
    let mut subscription = Subscription::new(parameters(NODES[node]));
    subscription.replace(asked, true);
    (TypeSelection::of(&subscription, false, None).unwrap(), keyed_by)
}

struct Watcher {
    watch: Arc<Watch>,
    membership: Membership,
    keyed_by: KeyedBy,
}

impl Watcher {
    fn new(cache: &Arc<Cache>, selection: TypeSelection, keyed_by: KeyedBy) -> Self {
        let watch = cache.watch();
        let membership = watch.join(&type_url("EDS"), selection);
        Self { watch, membership, keyed_by }
    }

    /// The variants that it selects, as its client would see them.
    fn gets(&self, snapshot: &Snapshot) -> Vec<(ResourceName, crate::Version, Option<Constraints>)> {
        let told = |variant: &&Arc<Variant>| {
            let constraints = (self.keyed_by == KeyedBy::Locator).then(|| variant.constraints().clone());
            (variant.name().clone(), variant.version(), constraints)
        };
        let names = ["a", "b", "c"].map(ResourceName::new);
        names
            .iter()
            .flat_map(|name| self.membership.chosen(name, snapshot).iter().map(told).collect::<Vec<_>>())
            .collect()
    }
}

fn commit(cache: &Cache, changes: &[(usize, usize, Option<u8>); 2]) {
    let word = |(name, when, content): &(usize, usize, Option<u8>)| match content {
        Some(content) => format!("{}{}={content}", NAMES[*name], WHEN[*when]),
        None => format!("-{}{}", NAMES[*name].split('{').next().unwrap(), WHEN[*when]),
    };
    // An invalid commit is refused, and then wakes no stream.
    _ = try_commit(cache, &format!("EDS {} {}", word(&changes[0]), word(&changes[1])));
}

/// A simple model of the streams that a commit affects: each stream whose variants change, and all
/// streams when the used keys change.
fn wakes_whom_it_concerns(steps: Vec<Step>) -> bool {
    let cache = Cache::with_key_sets(KeySetRule::Free);
    try_commit(&cache, "EDS x=1").unwrap();
    let mut watchers = BTreeMap::<usize, Watcher>::new();
    for step in steps {
        match step {
            Step::Ask { stream, asked, node } => {
                let (selection, keyed_by) = selection(asked, node);
                match watchers.get_mut(&stream) {
                    Some(watcher) => {
                        watcher.membership.select(selection);
                        watcher.keyed_by = keyed_by;
                    }
                    None => _ = watchers.insert(stream, Watcher::new(&cache, selection, keyed_by)),
                }
            }
            Step::Leave { stream } => _ = watchers.remove(&stream),
            Step::Commit(changes) => {
                let before = cache.snapshot();
                commit(&cache, &changes);
                let after = cache.snapshot();
                let keys_at =
                    |snapshot: &Snapshot| snapshot.of_type(&type_url("EDS")).unwrap().keys().changed_at();
                let all = keys_at(&before) != keys_at(&after);
                for watcher in watchers.values_mut() {
                    let is_concerned = all || watcher.gets(&before) != watcher.gets(&after);
                    if is_woken(&watcher.watch) != is_concerned {
                        return false;
                    }
                    watcher.membership.refresh(&after);
                }
            }
        }
        let interest = lock(&cache.interest);
        let mut rebuilt = ByParameters::default();
        for class in interest.types.values().flat_map(|of_type| of_type.classes.values()) {
            rebuilt.insert(class.id, &class.selection);
        }
        let kept = interest.types.values().next();
        if kept.is_some_and(|kept| kept.by_parameters != rebuilt) {
            return false;
        }
    }
    true
}

#[test]
fn a_commit_wakes_exactly_those_who_get_something_else_whatever_constraints_and_parameters() {
    QuickCheck::new().tests(300).quickcheck(wakes_whom_it_concerns as fn(Vec<Step>) -> bool);
}

#[test]
fn of_many_classes_that_ask_for_a_name_only_those_are_looked_at_that_a_changed_variant_can_be_for() {
    let cache = Cache::new();
    let variants: String = (0..100).map(|at| format!(" a[env=p,own={at}]=1 b[env=p,own={at}]=1")).collect();
    try_commit(&cache, &format!("EDS{variants}")).unwrap();
    let watchers: Vec<_> = (0..100)
        .map(|at| {
            let mut subscription = Subscription::new(parameters(&format!("env=p own={at}")));
            // Some select with a wildcard.
            let name = if at % 2 == 0 { "a" } else { "*" };
            subscription.replace(vec![ResourceName::new(name)].into(), true);
            Watcher::new(&cache, TypeSelection::of(&subscription, false, None).unwrap(), KeyedBy::Name)
        })
        .collect();
    let interest = lock(&cache.interest);
    let of_type = &interest.types[&type_url("EDS")];
    let candidates = |when: &str| {
        let asking = [&of_type.by_name["a"], &of_type.wildcards];
        let variants = [(ResourceName::new("a"), when.parse().unwrap())];
        of_type.candidates(&asking, &variants).len()
    };
    assert_eq!(candidates("env=p,own=7"), 1);
    assert_eq!(candidates("env=p,own=none"), 0);
    assert_eq!(candidates("env=p,own in (7,8,9)"), 3);
    // Classes are found by name when the constraints require no value.
    assert_eq!(candidates("env=p"), 100);
    assert_eq!(candidates("env=p,own!=7"), 100);
    drop(interest);
    drop(watchers);
}

/// The stream read the snapshot of the first commit, which brought a new key, and joined its class
/// only after the second commit. No stream waited for the second variant at that moment, so the
/// second commit woke none.
#[test]
fn a_commit_between_the_snapshot_of_a_stream_and_its_class_wakes_the_stream() {
    let cache = Cache::new();
    try_commit(&cache, "EDS x=1").unwrap();
    let watchers = ["env=p", "env=q"].map(|node| {
        let mut subscription = Subscription::new(parameters(node));
        subscription.replace(vec![ResourceName::new("a")].into(), true);
        let selection = TypeSelection::of(&subscription, false, None).unwrap();
        Watcher::new(&cache, selection, KeyedBy::Name)
    });
    try_commit(&cache, "EDS a[env=p]=1").unwrap();
    let first = cache.snapshot();
    assert!(watchers.iter().all(|watcher| is_woken(&watcher.watch)));
    try_commit(&cache, "EDS a[env=q]=1").unwrap();
    assert!(!watchers.iter().any(|watcher| is_woken(&watcher.watch)), "both are in a class without env");
    for mut watcher in watchers {
        assert!(watcher.membership.refresh(&first));
        assert!(is_woken(&watcher.watch), "it has to read a newer snapshot");
        assert!(!watcher.membership.refresh(&cache.snapshot()));
        assert!(!is_woken(&watcher.watch));
    }
}

/// A list is looked up name by name only in a type without other names. So the alias of a further
/// resource makes the same list take the general path.
#[test]
fn d10_a_plain_list_finds_the_same_with_one_look_up_for_each_name() {
    let scope: NamePatterns = ["a", "b", "c", "d", "missing"].into_iter().collect();
    for (node, scope) in NODES.into_iter().flat_map(|node| [(node, None), (node, Some(scope.clone()))]) {
        let found = ["", " z{alias=y}=1"].map(|other| {
            let cache = Cache::new();
            let content = "a=1 b[env=p]=1 b[env=q]=2 c[env=q]=1 d=1 hidden=1";
            try_commit(&cache, &format!("EDS {content}{other}")).unwrap();
            try_commit(&cache, "EDS a=2 -d").unwrap();
            let mut subscription = Subscription::new(parameters(node));
            let names = ["missing", "hidden", "d", "c", "b", "a"].map(ResourceName::new);
            subscription.replace(names.to_vec().into(), true);
            let selection = TypeSelection::of(&subscription, false, scope.clone()).unwrap();
            let watcher = Watcher::new(&cache, selection, KeyedBy::Name);
            let update = watcher.membership.everything(&cache.snapshot());
            let changed = update.changed.iter().map(|variant| (variant.name().clone(), variant.version()));
            (changed.collect::<Vec<_>>(), update.absent.clone())
        });
        assert_eq!(found[0], found[1], "node {node:?}");
        assert_eq!(found[0].0.len() + found[0].1.len(), 6);
    }
}

/// Regression: names that all clients left kept their memory as long as one client of the type stayed.
#[test]
fn the_index_gives_memory_back_when_most_names_have_left() {
    let names = |count: usize| (0..count).map(|at| ResourceName::new(format!("n{at}"))).collect::<NameSet>();
    let mut interest = TypeInterest::default();
    interest.index_names(1, names(10));
    interest.index_names(2, names(100_000));
    let full = interest.by_name.capacity();
    interest.unindex(2, names(100_000).as_slice());
    assert_eq!(interest.by_name.len(), 10);
    assert!(
        full >= 100_000 && interest.by_name.capacity() <= 8 * SMALL_TABLE,
        "{}",
        interest.by_name.capacity()
    );
}
