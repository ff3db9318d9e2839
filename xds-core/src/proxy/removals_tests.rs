//! How long a removal takes through proxies: as long as from the control plane itself (S33).

use std::time::Duration;

use super::ProxyConfig;
use super::fixture::World;
use crate::client::Protocol;
use crate::server::fixture::{Delta, Sotw, commit};

const CONTENT: &str = "LDS l=1>r,s; RDS r=1>c s=1; CDS c=static d=static e=1 g=1; EDS e=1 g=1";

/// A control plane, a proxy and one before that.
struct Tiers {
    worlds: [World; 2],
    now: Duration,
}

impl Tiers {
    fn new(protocol: Protocol) -> Self {
        let first = World::new(protocol, CONTENT, ProxyConfig::default());
        let worlds = [World::behind(&first), first];
        Self { worlds, now: Duration::ZERO }
    }

    fn pass(&mut self, millis: u64) {
        let time = Duration::from_millis(millis);
        self.now += time;
        // What comes down goes on at once.
        self.worlds[1].pass(time);
        self.worlds[0].pass(time);
        self.worlds.iter_mut().for_each(World::run);
        self.worlds[0].run();
    }

    fn commit(&mut self, text: &str) {
        commit(&self.worlds[1].origin, text);
        self.pass(0);
    }

    /// The three places where a client may be.
    fn caches(&self) -> [std::sync::Arc<crate::Cache>; 3] {
        let [second, first] = &self.worlds;
        [&first.origin, first.proxy.cache(), second.proxy.cache()].map(std::sync::Arc::clone)
    }
}

/// What a client is sent, which it ACKs unless it is slow.
fn read(leaf: &mut Delta, now: Duration, is_slow: bool) -> String {
    leaf.now = now;
    let sent = leaf.sent();
    for line in sent.split("; ").filter(|line| !line.is_empty() && !is_slow) {
        let (nonce, rest) = line[1..].split_once(' ').unwrap();
        leaf.ack(rest.split(' ').next().unwrap(), nonce);
    }
    sent
}

/// Clients at the three places that subscribe to this and have it.
fn leaves(tiers: &mut Tiers, asked: &[(&str, &str)]) -> Vec<Delta> {
    let mut leaves: Vec<_> = tiers.caches().iter().map(Delta::new).collect();
    for leaf in &mut leaves {
        asked.iter().for_each(|(type_name, list)| _ = leaf.ask(type_name, list));
    }
    for _ in 0..100 {
        tiers.pass(100);
        leaves.iter_mut().for_each(|leaf| _ = read(leaf, tiers.now, false));
    }
    leaves
}

/// After how many milliseconds each of them is sent a line that ends so.
fn times(tiers: &mut Tiers, leaves: &mut [Delta], end: &str) -> Vec<Option<u64>> {
    let mut times = vec![None; leaves.len()];
    for millis in (0..30_000).step_by(100) {
        for (leaf, time) in leaves.iter_mut().zip(&mut times) {
            if read(leaf, tiers.now, false).split("; ").any(|line| line.ends_with(end)) {
                assert_eq!(time.replace(millis), None, "{end}: sent once");
            }
        }
        tiers.pass(100);
    }
    times
}

#[test]
fn s33_a_removal_takes_one_grace_time_through_however_many_proxies() {
    // The subscriptions of gRPC, and those of Envoy.
    let by_name = [("LDS", "l"), ("RDS", "r"), ("CDS", "c")];
    let wildcard = [("CDS", "*"), ("EDS", "e g"), ("LDS", "*"), ("RDS", "r s")];
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut tiers = Tiers::new(protocol);
        let mut clients = leaves(&mut tiers, &by_name);
        tiers.commit("RDS r=2>d; CDS -c");
        let got = times(&mut tiers, &mut clients, "CDS -c");
        assert_eq!(got, [Some(5000); 3], "{protocol:?}: a cluster by name");
        if protocol == Protocol::Sotw {
            // In SotW no response removes routes or endpoints.
            continue;
        }

        let mut tiers = Tiers::new(protocol);
        let mut clients = leaves(&mut tiers, &wildcard);
        tiers.commit("CDS -e; EDS -e");
        assert_eq!(times(&mut tiers, &mut clients, "EDS -e"), [Some(5000); 3], "endpoints");
        tiers.commit("LDS l=2>r; RDS -s");
        assert_eq!(times(&mut tiers, &mut clients, "RDS -s"), [Some(5000); 3], "routes");
    }
}

/// The upstream removes at once, as other control planes do.
#[test]
fn s33_behind_an_upstream_that_does_not_wait_a_proxy_does() {
    for order in [["RDS v2 n3: r[]=2>d", "CDS v2 n4: -c[]"], ["CDS v2 n4: -c[]", "RDS v2 n3: r[]=2>d"]] {
        let mut world = World::scripted(Protocol::Delta);
        let mut leaf = world.leaf("CDS", "c");
        leaf.ask("RDS", "r");
        world.run();
        world.get("CDS v1 n1: c[]=static");
        world.get("RDS v1 n2: r[]=1>c");
        for _ in 0..100 {
            world.pass(Duration::from_millis(100));
            read(&mut leaf, world.now, false);
        }
        order.iter().for_each(|text| _ = world.get(text));
        let since = world.now;
        let sent = loop {
            if read(&mut leaf, world.now, false).ends_with("CDS -c") {
                break world.now - since;
            }
            world.pass(Duration::from_millis(100));
        };
        assert_eq!(sent, Duration::from_secs(5), "{order:?}");
    }
}

#[test]
fn s33_what_was_never_named_or_is_still_waits_for_all_of_the_grace_time() {
    let mut tiers = Tiers::new(Protocol::Delta);
    let mut clients = leaves(&mut tiers, &[("RDS", "r s"), ("CDS", "c d")]);
    tiers.commit("CDS -d");
    assert_eq!(times(&mut tiers, &mut clients, "CDS -d"), [Some(5000), Some(10_000), Some(15_000)]);
    tiers.commit("CDS -c");
    assert_eq!(times(&mut tiers, &mut clients, "CDS -c"), [Some(5000), Some(10_000), Some(15_000)]);
}

/// The ACK of what named it is waited for at each proxy, however long its upstream waited.
#[test]
fn s33_a_client_that_did_not_ack_the_routes_keeps_the_cluster_behind_proxies() {
    let mut tiers = Tiers::new(Protocol::Delta);
    let mut clients = leaves(&mut tiers, &[("RDS", "r"), ("CDS", "c")]);
    tiers.commit("RDS r=2>d; CDS -c");
    for _ in 0..200 {
        tiers.pass(100);
        clients.iter_mut().for_each(|leaf| assert!(!read(leaf, tiers.now, true).contains("CDS")));
    }
    for (at, leaf) in clients.iter_mut().enumerate() {
        leaf.ack("RDS", "3");
        assert_eq!(read(leaf, tiers.now, false), "n4 CDS -c", "{at}: the grace time is over");
    }
}

/// SotW clients of a full state are sent it without the cluster.
#[test]
fn s33_a_sotw_client_is_not_kept_waiting_behind_proxies_either() {
    let mut tiers = Tiers::new(Protocol::Delta);
    let mut clients: Vec<_> = tiers.caches().iter().map(Sotw::new).collect();
    let mut sent = [None; 3];
    for leaf in &mut clients {
        leaf.ask("RDS", "r", "");
        leaf.ask("CDS", "c d", "");
    }
    for step in 0..300_u64 {
        if step == 100 {
            tiers.commit("RDS r=2>d; CDS -c");
        }
        for (at, leaf) in clients.iter_mut().enumerate() {
            leaf.now = tiers.now;
            for line in leaf.sent().split("; ").filter(|line| !line.is_empty()) {
                let (nonce, rest) = line[1..].split_once(' ').unwrap();
                leaf.ack(rest.split(' ').next().unwrap(), nonce);
                if rest == "CDS d=static" {
                    sent[at] = Some((step - 100) * 100);
                }
            }
        }
        tiers.pass(100);
    }
    assert_eq!(sent, [Some(5000); 3]);
}

/// A new resource may take the address, key or domain of a removed one.
#[test]
fn s33_a_proxy_passes_additions_and_removals_of_one_response_on_in_one() {
    for (type_name, list) in ["LDS", "SRDS", "VHDS"].into_iter().flat_map(|of| [(of, "*"), (of, "*?env=a")]) {
        // A variant without constraints, as the client is sent it.
        let any = if list == "*" { "" } else { "[]" };
        for protocol in [Protocol::Delta, Protocol::Sotw] {
            let is_delta_only = type_name == "VHDS";
            if is_delta_only && protocol == Protocol::Sotw {
                continue;
            }
            let mut world = World::scripted(protocol);
            let mut leaf = world.leaf(type_name, list);
            let mut state = world.sotw_leaf(type_name, list);
            world.run();
            world.get(&format!("{type_name} v1 n1: a[]=1 b[]=1"));
            assert_eq!(leaf.sent(), format!("n1 {type_name} a{any}=1 b{any}=1"), "{protocol:?}");
            leaf.ack(type_name, "1");
            state.sent();
            state.ack(type_name, "1");
            world.get(&match protocol {
                Protocol::Delta => format!("{type_name} v2 n2: c[]=1 -a"),
                Protocol::Sotw => format!("{type_name} v2 n2: b[]=1 c[]=1"),
            });
            assert_eq!(leaf.sent(), format!("n2 {type_name} c{any}=1 -a{any}"), "{protocol:?}");
            if !is_delta_only {
                assert_eq!(state.sent(), format!("n2 {type_name} b{any}=1 c{any}=1"), "{protocol:?}");
            }
            leaf.ack(type_name, "2");
            state.ack(type_name, "2");
            world.lose();
            world.pass(Duration::from_secs(1000));
            assert_eq!((leaf.sent(), state.sent()), Default::default(), "without an upstream nothing goes");
        }
    }
}

/// The same on demand, where the client subscribes to a domain.
#[test]
fn s33_d24_a_proxy_replaces_a_virtual_host_of_an_alias_in_one_response() {
    let mut world = World::delta("VHDS rc/a{alias=rc/a.example}=1");
    let mut leaf = world.leaf("VHDS", "rc/a.example");
    world.run();
    assert_eq!(leaf.sent(), "n1 VHDS rc/a{alias=rc/a.example}=1");
    leaf.ack("VHDS", "1");
    world.commit("VHDS -rc/a rc/b{alias=rc/a.example}=1");
    assert_eq!(leaf.sent(), "n2 VHDS rc/b{alias=rc/a.example}=1 -rc/a");
    leaf.ack("VHDS", "2");
    world.commit("VHDS -rc/b");
    assert_eq!(leaf.sent(), "n3 VHDS -rc/b");
}

/// T43: what the upstream takes from one client is not known to be gone for another one.
#[test]
fn t43_d24_what_goes_for_one_client_of_an_alias_stays_with_another_until_its_own_answer() {
    for type_name in ["X", "VHDS"] {
        let mut world = World::scripted(Protocol::Delta);
        let mut leaves = ["q?env=a&pod=1", "q?env=a&pod=2"].map(|list| world.leaf(type_name, list));
        world.run();
        world.get(&format!("{type_name} v1 n1: r[env=a]=A/q"));
        world.requested();
        let sent = format!("n1 {type_name} r[env=a]{{alias=q}}=A");
        assert_eq!(leaves.each_mut().map(Delta::sent), [sent.as_str(); 2]);
        leaves.iter_mut().for_each(|leaf| _ = leaf.ack(type_name, "1"));
        world.get(&format!("{type_name} v2 n2: -r[env=a]"));
        assert_eq!(world.requested(), "+q{env=a,pod=2}");
        let removed = format!("n2 {type_name} -r[env=a]");
        assert_eq!(leaves.each_mut().map(Delta::sent), [removed.as_str(), ""], "only for the first one");
        world.get(&format!("{type_name} v3 n3: -q[env=a,pod=2]"));
        assert_eq!(leaves.each_mut().map(Delta::sent), ["", removed.as_str()]);
    }
}
