//! V29 behind proxies: keys that migrate upstream while all payloads stay reach no client by name,
//! in whatever order things come.

use std::sync::Arc;
use std::time::Duration;

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::fixture::World;
use super::{ProxyConfig, Sharing};
use crate::Cache;
use crate::client::Protocol;
use crate::server::fixture::{Delta, Sotw, commit, parameters};

/// A content for each value of `env`; the clients that have other keys, too, stay with it.
const SHAPES: [&[(&str, u8)]; 4] = [
    &[("env=a", 1), ("env=b", 2)],
    &[("env=a,version=v1", 1), ("env=a,version!=v1", 1), ("env=b,(version||!version)", 2)],
    &[("env=a,version", 1), ("env=a,!version", 1), ("env=b,version", 2), ("env=b,!version", 2)],
    &[("env=a,pod=1", 1), ("env=a,pod!=1", 1), ("env=b,(pod||!pod)", 2)],
];

const NODES: [&str; 5] =
    ["env=a version=v1 pod=1", "env=a version=v2 pod=2", "env=a pod=3", "env=b version=v1 pod=4", "env=b"];

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Clusters, routes or both.
    Migrate {
        shape: usize,
        types: u8,
    },
    Run {
        tier: usize,
    },
    Slow {
        tier: usize,
        is_slow: bool,
    },
    Read {
        leaf: usize,
    },
    Pass(u64),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut below = |bound: usize| usize::arbitrary(g) % bound;
        match below(12) {
            0 => Self::Migrate { shape: below(SHAPES.len()), types: [1, 2, 3, 3][below(4)] },
            1..5 => Self::Run { tier: below(2) },
            5 => Self::Slow { tier: below(2), is_slow: below(2) == 0 },
            6 => Self::Pass([10, 100, 2000][below(3)]),
            _ => Self::Read { leaf: below(4 * NODES.len()) },
        }
    }
}

enum Leaf {
    Sotw(Sotw),
    Delta(Delta),
}

impl Leaf {
    fn all(cache: &Arc<Cache>) -> Vec<Self> {
        let of_node = |node: &&str| {
            let (mut sotw, mut delta) = (Sotw::new(cache), Delta::new(cache));
            sotw.stream.on_node(parameters(node));
            delta.stream.on_node(parameters(node));
            for (type_name, list) in [("CDS", ""), ("RDS", "r")] {
                sotw.ask(type_name, list, "");
                delta.ask(type_name, list);
            }
            [Self::Sotw(sotw), Self::Delta(delta)]
        };
        NODES.iter().flat_map(of_node).collect()
    }

    /// What comes now, which is ACKed.
    fn sent(&mut self, now: Duration) -> String {
        let sent = match self {
            Self::Sotw(sotw) => {
                sotw.now = now;
                sotw.sent()
            }
            Self::Delta(delta) => {
                delta.now = now;
                delta.sent()
            }
        };
        for line in sent.split("; ").filter(|line| !line.is_empty()) {
            let mut words = line[1..].split(' ');
            let (nonce, type_name) = (words.next().unwrap(), words.next().unwrap());
            match self {
                Self::Sotw(sotw) => _ = sotw.ack(type_name, nonce),
                Self::Delta(delta) => _ = delta.ack(type_name, nonce),
            }
        }
        sent
    }
}

/// A client of one type in both protocols.
struct Single {
    sotw: Sotw,
    delta: Delta,
}

impl Single {
    fn new(cache: &Arc<Cache>, type_name: &str) -> Self {
        let (mut sotw, mut delta) = (Sotw::new(cache), Delta::new(cache));
        sotw.stream.on_node(parameters(NODES[0]));
        delta.stream.on_node(parameters(NODES[0]));
        let list = if type_name == "CDS" { "" } else { "r" };
        sotw.ask(type_name, list, "");
        delta.ask(type_name, list);
        Self { sotw, delta }
    }

    fn versions(&mut self) -> [String; 2] {
        assert_ne!((self.sotw.sent(), self.delta.sent()), (String::new(), String::new()));
        [self.sotw.last.version_info.clone(), self.delta.last.resources[0].version.clone()]
    }
}

fn content(shape: usize, of: &str) -> String {
    let variants = SHAPES[shape].iter();
    variants.map(|(when, content)| format!(" {of}[{when}]={content}")).collect()
}

fn migrate(world: &World, has: &mut [usize; 2], shape: usize, types: u8) {
    let mut lines = Vec::new();
    for (at, (type_name, name)) in [("CDS", "c"), ("RDS", "r")].into_iter().enumerate() {
        if types & 1 << at == 0 || has[at] == shape {
            continue;
        }
        let gone: String = SHAPES[has[at]].iter().map(|(when, _)| format!(" -{name}[{when}]")).collect();
        lines.push(format!("{type_name}{gone}{}", content(shape, name)));
        has[at] = shape;
    }
    commit(&world.origin, &lines.join(";"));
}

fn check(steps: &[Step], protocol: Protocol, sharing: Sharing) {
    let config = ProxyConfig { sharing, ..ProxyConfig::default() };
    let text = format!("CDS{}; RDS{}", content(0, "c"), content(0, "r"));
    let first = World::new(protocol, &text, config);
    let second = World::behind(&first);
    let mut worlds = [first, second];
    let mut leaves: Vec<_> = worlds.iter().flat_map(|world| Leaf::all(world.proxy.cache())).collect();
    let mut direct = Leaf::all(&worlds[0].origin);
    let mut now = Duration::ZERO;
    for _ in 0..20 {
        now += Duration::from_millis(100);
        worlds.iter_mut().for_each(|world| world.pass(Duration::from_millis(100)));
    }
    let first: Vec<_> = direct.iter_mut().map(|leaf| leaf.sent(now)).collect();
    for (at, leaf) in leaves.iter_mut().enumerate() {
        assert_eq!(leaf.sent(now), first[at % first.len()], "{at}");
    }
    let (mut has, mut migrations) = ([0, 0], 0);
    for step in steps {
        match *step {
            // What changed more often than a variant remembers counts as changed.
            Step::Migrate { shape, types } if migrations < 2 => {
                migrations += 1;
                migrate(&worlds[0], &mut has, shape, types);
            }
            Step::Migrate { .. } => {}
            Step::Run { tier } => _ = worlds[tier].run_once(),
            Step::Slow { tier, is_slow } => worlds[tier].is_slow = is_slow,
            Step::Read { leaf } => assert_eq!(leaves[leaf].sent(now), "", "{leaf}"),
            Step::Pass(millis) => {
                let time = Duration::from_millis(millis);
                now += time;
                worlds.iter_mut().for_each(|world| world.pass(time));
            }
        }
    }
    worlds.iter_mut().for_each(|world| world.is_slow = false);
    for _ in 0..20 {
        now += Duration::from_secs(1);
        worlds.iter_mut().for_each(|world| world.pass(Duration::from_secs(1)));
        for (at, leaf) in leaves.iter_mut().chain(&mut direct).enumerate() {
            assert_eq!(leaf.sent(now), "", "{at}");
        }
    }
}

/// What a client by name calls what it has: versions depend on the content alone, so moving between
/// servers and proxies sends nothing.
#[test]
fn d22_v29_versions_by_name_are_the_same_behind_proxies_and_stay_when_keys_migrate() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let text = "CDS c{alias=x}[env=a]=1 c[env=b]=2; RDS r[env=a]=1 r[env=b]=2";
        let first = World::new(protocol, text, ProxyConfig::default());
        let second = World::behind(&first);
        let mut worlds = [first, second];
        let versions = |worlds: &mut [World; 2]| {
            let caches =
                [&worlds[0].origin, worlds[0].proxy.cache(), worlds[1].proxy.cache()].map(Arc::clone);
            let mut leaves: Vec<_> =
                caches.iter().map(|cache| ["CDS", "RDS"].map(|of| Single::new(cache, of))).collect();
            for _ in 0..20 {
                worlds.iter_mut().for_each(|world| world.pass(Duration::from_millis(100)));
            }
            leaves.iter_mut().map(|leaves| leaves.each_mut().map(Single::versions)).collect::<Vec<_>>()
        };
        let before = versions(&mut worlds);
        assert_eq!((&before[0], &before[0]), (&before[1], &before[2]), "{protocol:?}");
        commit(
            &worlds[0].origin,
            "CDS -c[env=a] -c[env=b] c{alias=x}[env=a,version]=1 c[env=a,!version]=3 c[env=b,(version||!version)]=2; RDS -r[env=a] -r[env=b] r[env=a,version]=1 r[env=a,!version]=3 r[env=b,(version||!version)]=2",
        );
        assert_eq!(versions(&mut worlds), before, "{protocol:?}");
    }
}

quickcheck! {
    fn v29_keys_that_migrate_send_nothing_to_clients_by_name(steps: Vec<Step>, is_delta: bool, kind: u8) -> bool {
        let protocol = if is_delta { Protocol::Delta } else { Protocol::Sotw };
        let modes = [Sharing::Trust, Sharing::Trust, Sharing::Off, Sharing::Audit { one_in: 2 }];
        let sharing = modes[usize::from(kind % 4)];
        check(&steps, protocol, sharing);
        true
    }
}
