//! Events in any order: each client ends up with the content that the origin has for it, and loses
//! nothing on the way that the origin had all the time.

use std::collections::BTreeSet;
use std::time::Duration;

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::fixture::World;
use super::{ProxyConfig, ProxyLoad, Sharing};
use crate::Parameters;
use crate::client::Protocol;
use crate::server::fixture::{Delta, commit, parameters, type_url};

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask { leaf: usize, name: usize, locator: usize },
    Leave { leaf: usize },
    Put { name: usize, variants: usize },
    Slow(bool),
    Up(bool),
    Pass(u64),
    Lie(usize),
    Run,
    Read { leaf: usize },
}

/// What a name may consist of: the same keys, no two for the same parameters.
const VARIANTS: [&[&str]; 7] = [
    &[],
    &[""],
    &["[env=a]", "[env=b]"],
    &["[env=a]"],
    &["[env=a,ver=1]", "[env=a,ver=2]", "[env=b,!ver]"],
    &["[env=b,ver=1]"],
    &["[ver=2]", "[!ver]"],
];

const LOCATORS: [&str; 8] = [
    "",
    "env=a",
    "env=a&pod=1",
    "env=a&ver=1&pod=2",
    "env=a&ver=2&pod=3",
    "env=b&ver=1",
    "env=b&pod=4",
    "ver=2&pod=5",
];

/// What an upstream may say that keeps to no rule.
const LIES: [&str; 8] = [
    "CDS v1 n9: r[env=a]=L1 r[env=b]=L2",
    "CDS v1 n9: r=L3 s[env=a]=L4",
    "CDS v1 n9: s[ver=1]=L5 -r[env=a]",
    "CDS v1 n9: -r -s",
    "CDS v1 n9: r[env=a]=L6 r[env=a,ver=1]=L7",
    "CDS v1 n9: r!5 s!14",
    "CDS v1 n9: s[env=a]=L8* s[!env]=L9",
    "CDS v1 n9: s[env!=c]=L10",
];

const NAMES: [&str; 2] = ["r", "s"];

const LEAVES: usize = 5;

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut below = |bound: usize| usize::arbitrary(g) % bound;
        match below(17) {
            0..4 => Self::Ask { leaf: below(LEAVES), name: below(2), locator: below(LOCATORS.len()) },
            4 => Self::Leave { leaf: below(LEAVES) },
            5..8 => Self::Put { name: below(2), variants: below(VARIANTS.len()) },
            8 => Self::Slow(below(2) == 0),
            9 => Self::Up(below(3) > 0),
            10 => Self::Pass([1, 40, 60, 900][below(4)]),
            11..14 => Self::Run,
            14 => Self::Lie(below(LIES.len())),
            _ => Self::Read { leaf: below(LEAVES) },
        }
    }
}

/// A client of one locator, and what it has: constraints and content.
struct Leaf {
    client: Delta,
    name: usize,
    locator: usize,
    had_always: bool,
    has: Option<(String, String)>,
}

struct Run {
    world: World,
    leaves: Vec<Option<Leaf>>,
    content: [(usize, usize); 2],
    puts: usize,
    has_lied: bool,
}

impl Run {
    fn origin(&self, name: usize, locator: usize) -> Option<String> {
        let (variants, number) = self.content[name];
        let bound = parameters(&LOCATORS[locator].replace('&', " "));
        let is_for = |when: &&&str| {
            let text = when.trim_start_matches('[').trim_end_matches(']');
            text.is_empty() || text.parse::<crate::Constraints>().unwrap().matches(&bound)
        };
        VARIANTS[variants].iter().find(is_for).map(|when| format!("{number}{}", when.len()))
    }

    fn put(&mut self, name: usize, variants: usize) {
        self.puts += 1;
        let (before, after) = (VARIANTS[self.content[name].0], VARIANTS[variants]);
        let text = NAMES[name];
        let gone = before.iter().filter(|when| !after.contains(when)).map(|when| format!("-{text}{when}"));
        let put = after.iter().map(|when| format!("{text}{when}={}{}", self.puts, when.len()));
        let words: Vec<_> = gone.chain(put).collect();
        if !words.is_empty() {
            commit(&self.world.origin, &format!("CDS {}", words.join(" ")));
        }
        self.content[name] = (variants, self.puts);
        for at in 0..LEAVES {
            let Some(leaf) = &self.leaves[at] else { continue };
            let has = self.origin(leaf.name, leaf.locator).is_some();
            self.leaves[at].as_mut().unwrap().had_always &= has;
        }
    }

    fn read(&mut self, at: usize) {
        let now = self.world.now;
        let Some(leaf) = &mut self.leaves[at] else { return };
        leaf.client.now = now;
        for line in leaf.client.sent().split("; ").filter(|line| !line.is_empty()) {
            let (nonce, rest) = line[1..].split_once(" CDS").unwrap();
            leaf.client.ack("CDS", nonce);
            let before = leaf.has.take();
            let mut puts = rest.split_whitespace().filter(|word| !word.starts_with(['-', '!']));
            leaf.has = puts.next().map(|word| {
                let (name, content) = word.rsplit_once('=').unwrap();
                (name.to_owned(), content.to_owned())
            });
            assert!(puts.next().is_none(), "one variant for one locator (T3): {line}");
            let is_gone = |name: &str| {
                let plain = name.split('[').next().unwrap();
                // T43c: what came by name alone has no constraints.
                let removals = [format!("-{name}"), format!("-{plain}"), format!("-{name}[]")];
                rest.split_whitespace().any(|word| removals.iter().any(|removal| removal == word))
            };
            if leaf.has.is_none() {
                leaf.has = before.filter(|(name, _)| !is_gone(name));
            }
            if rest.contains(" -") && leaf.has.is_none() {
                assert!(!leaf.had_always || self.has_lied, "{line}: the origin had it all the time");
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { leaf, name, locator } => {
                let client = self.world.leaf("CDS", &format!("{}?{}", NAMES[name], LOCATORS[locator]));
                self.leaves[leaf] = Some(Leaf { client, name, locator, had_always: false, has: None });
                // The proxy may still send content that it received earlier.
                if !self.world.is_slow {
                    self.world.run();
                    self.read(leaf);
                    let origin = self.origin(name, locator);
                    let leaf = self.leaves[leaf].as_mut().unwrap();
                    leaf.had_always = leaf.has.as_ref().is_some_and(|(_, has)| Some(has) == origin.as_ref());
                }
            }
            Step::Leave { leaf } => self.leaves[leaf] = None,
            Step::Put { name, variants } => self.put(name, variants),
            Step::Slow(is_slow) => self.world.is_slow = is_slow,
            Step::Up(true) => self.world.is_up = true,
            Step::Up(false) => self.world.lose(),
            Step::Lie(lie) => {
                self.has_lied = true;
                self.world.lie(LIES[lie]);
            }
            Step::Pass(millis) => self.world.pass(Duration::from_millis(millis)),
            Step::Run if self.world.trying.is_some() => self.world.conclude(),
            Step::Run => self.world.run(),
            Step::Read { leaf } => self.read(leaf),
        }
    }

    fn heal(&mut self) {
        if self.has_lied {
            // An honest one takes its place.
            self.world.lose();
        }
        (self.world.is_slow, self.world.is_up) = (false, true);
        for _ in 0..30 {
            self.world.pass(Duration::from_secs(5));
            while self.world.trying.is_some() {
                self.world.conclude();
            }
            (0..LEAVES).for_each(|at| self.read(at));
        }
    }
}

fn check(steps: &[Step], protocol: Protocol, config: ProxyConfig) {
    let sharing = config.sharing;
    let world = World::new(protocol, "", config);
    let leaves = (0..LEAVES).map(|_| None).collect();
    let mut run = Run { world, leaves, content: [(0, 0); 2], puts: 0, has_lied: false };
    steps.iter().for_each(|step| run.step(*step));
    run.heal();
    for leaf in run.leaves.iter().flatten() {
        let has = leaf.has.as_ref().map(|(_, content)| content.clone());
        let place = (NAMES[leaf.name], LOCATORS[leaf.locator]);
        assert_eq!(has, run.origin(leaf.name, leaf.locator), "{place:?}");
    }
    if sharing == Sharing::Trust && !run.has_lied {
        check_upstream_subscriptions(&run.world);
    }
    run.leaves.clear();
    run.world.run();
    for _ in 0..3 {
        run.world.pass(Duration::from_secs(40));
    }
    assert_eq!((run.world.proxy.load(), run.world.reported()), (ProxyLoad::default(), 0));
    let snapshot = run.world.proxy.cache().snapshot();
    let left = snapshot.of_type(&type_url("CDS")).map_or(0, |of| of.iter().count());
    assert_eq!(left, 0, "nobody asks for it");
}

/// T43b, T35: one upstream subscription for each set of the keys that decide, and one for each
/// locator without a variant.
fn check_upstream_subscriptions(world: &World) {
    for (name, of_name) in world.proxy.names.iter() {
        let project = |bound: &Parameters| bound.project(|key| of_name.keys.contains(key));
        let is_shared = !of_name.is_unshared && !of_name.is_eager && !of_name.keys.is_empty();
        let (found, missing): (Vec<_>, Vec<_>) =
            of_name.downstream.iter().partition(|(_, downstream)| downstream.has_variant && is_shared);
        let sharing = of_name.sharing.keys().map(|number| world.proxy.parameters.get(*number));
        let found = found.into_iter().map(|(number, _)| world.proxy.parameters.get(*number));
        let found = found.chain(sharing.filter(|_| is_shared));
        let kinds: BTreeSet<_> = found.map(project).collect();
        let used = of_name.upstream.values().filter(|subscription| subscription.users > 0).count();
        let alone = missing.len() + if is_shared { 0 } else { of_name.sharing.len() };
        assert!(used <= kinds.len() + alone, "{name:?}: {used} upstream subscriptions");
    }
}

quickcheck! {
    fn clients_end_up_with_what_the_origin_has(steps: Vec<Step>, is_delta: bool, kind: u8) -> bool {
        let protocol = if is_delta { Protocol::Delta } else { Protocol::Sotw };
        let modes = [Sharing::Trust, Sharing::Trust, Sharing::Off, Sharing::Audit { one_in: 2 }];
        let sharing = modes[usize::from(kind % 4)];
        let linger = Duration::from_millis([30_000, 500][usize::from(kind / 4 % 2)]);
        let upstream_subscriptions_limit = [10_000, 2][usize::from(kind / 8 % 2)];
        // Who was refused has nothing.
        let upstream_subscriptions_limit = if sharing == Sharing::Off || !kind.is_multiple_of(16) { 10_000 } else { upstream_subscriptions_limit };
        let canaries = usize::from(kind / 16 % 3);
        let config = ProxyConfig { sharing, linger, upstream_subscriptions_limit, canaries, ..ProxyConfig::default() };
        check(&steps, protocol, config);
        true
    }
}
