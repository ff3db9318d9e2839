//! A type that an upstream served, refuses later, and serves again (G4, G4b): clients keep what they have, nobody
//! is told of an absence, and nobody new gets stale content.

use std::time::Duration;

use super::fixture::{Refusal, World};
use super::{ProxyConfig, Route, RouteKind};
use crate::Code;
use crate::client::Protocol;
use crate::client::health::SyncState;
use crate::server::fixture::{Delta, Sotw, commit, parameters, type_url};

const REFUSALS: [Refusal; 4] = [
    Refusal::Always,
    Refusal::With(Code::INVALID_ARGUMENT),
    Refusal::With(Code::NOT_FOUND),
    Refusal::ByErrors,
];

/// What clients subscribe to, and what they are sent at first.
const LISTS: [&str; 3] = ["a", "xdstp://d/Y/g/*", "*"];

/// A delta and a SotW client of the last proxy.
struct Clients {
    delta: Delta,
    sotw: Sotw,
    type_name: &'static str,
}

impl Clients {
    fn new(world: &World, type_name: &'static str, list: &str) -> Self {
        Self { delta: world.leaf(type_name, list), sotw: world.sotw_leaf(type_name, list), type_name }
    }

    /// What they were sent since the last call, which they accept.
    fn sent(&mut self, now: Duration) -> [String; 2] {
        (self.delta.now, self.sotw.now) = (now, now);
        let sent = [self.delta.sent(), self.sotw.sent()];
        if !sent[0].is_empty() {
            let nonce = self.delta.last.nonce.clone();
            self.delta.ack(self.type_name, &nonce);
        }
        sent
    }
}

fn settle(chain: &mut [World]) {
    for _ in 0..60 {
        chain.iter_mut().for_each(|world| world.pass(Duration::from_secs(1)));
        while chain.iter_mut().map(World::run_once).fold(false, |one, other| one | other) {}
    }
}

#[test]
fn g4_g4b_a_type_that_is_refused_later_becomes_no_absence_and_is_not_served_stale() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        for refusal in REFUSALS {
            for length in 1..=3 {
                for (type_name, list) in
                    LISTS.iter().map(|list| ("Y", *list)).chain([("CDS", "a"), ("CDS", "*")])
                {
                    check(protocol, refusal, length, type_name, list);
                }
            }
        }
    }
}

fn check(protocol: Protocol, refusal: Refusal, length: usize, type_name: &'static str, list: &str) {
    let what = format!("{protocol:?} {refusal:?} {length} {type_name} {list}");
    let content = "CDS a=1; X x=1; Y a=1 xdstp://d/Y/g/m=1";
    let mut chain = vec![World::new(protocol, content, ProxyConfig::default())];
    while chain.len() < length {
        chain.push(World::behind(chain.last().unwrap()));
    }
    let member = if list.starts_with("xdstp") { "xdstp://d/Y/g/m" } else { "a" };
    let mut first = Clients::new(chain.last().unwrap(), type_name, list);
    let mut others = chain.last().unwrap().leaf("X", "x");
    settle(&mut chain);
    let now = chain[0].now;
    assert!(first.sent(now).iter().all(|sent| sent.contains(&format!("{member}=1"))), "{what}");
    others.sent();
    others.ack("X", "1");
    // The control plane is replaced by an older one.
    chain[0].refused.insert(type_name, refusal);
    chain[0].lose();
    settle(&mut chain);
    chain[0].is_up = true;
    settle(&mut chain);
    let now = chain[0].now;
    let of_first = first.sent(now);
    assert!(of_first.iter().all(|sent| !sent.contains(&format!("-{member}"))), "{what}: {of_first:?}");
    // A full state without it would be an absence.
    assert!(type_name != "CDS" || of_first[1].is_empty(), "{what}: {of_first:?}");
    let mut late = Clients::new(chain.last().unwrap(), type_name, list);
    settle(&mut chain);
    let of_late = late.sent(chain[0].now);
    // A full state cannot say that the type is not served (G4), so nobody after it knows.
    let is_silent =
        protocol == Protocol::Sotw && type_name == "CDS" && (length > 1 || refusal == Refusal::ByErrors);
    assert!(
        is_silent || of_late.iter().all(|sent| !sent.contains("=1") && !sent.contains(&format!("-{member}"))),
        "{what}: {of_late:?}"
    );
    others.now = chain[0].now;
    chain[0].commit("X x=2");
    settle(&mut chain);
    assert_eq!(others.sent(), "n2 X x=2", "{what}");
    let health = chain[0].proxy.health(&Route::SHARED).unwrap();
    let state = health.state(&type_url(type_name));
    assert!(is_silent || matches!(state, Some(SyncState::Rejected(..))), "{what}: {state:?}");
    // It comes back with a newer one, and something changed meanwhile.
    chain[0].refused.clear();
    chain[0].commit(&format!("{type_name} {member}=2"));
    chain[0].lose();
    settle(&mut chain);
    chain[0].is_up = true;
    for _ in 0..10 {
        settle(&mut chain);
    }
    let now = chain[0].now;
    for (of, clients) in [("first", &mut first), ("late", &mut late)] {
        let sent = clients.sent(now);
        assert!(sent.iter().all(|sent| sent.contains(&format!("{member}=2"))), "{what} {of}: {sent:?}");
    }
}

/// Regression: after a restart, a proxy served the variant that it had before its upstream refused the type.
#[test]
fn g4_what_a_proxy_drops_of_a_type_that_is_refused_later_leaves_its_file() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::scripted(protocol);
        let mut leaf = world.leaf("X", "a?env=prod");
        world.run();
        world.get("X v1 n1: a[env=prod]=1");
        assert_eq!(leaf.sent(), "n1 X a[env=prod]=1", "{protocol:?}");
        leaf.ack("X", "1");
        world.get("X v2 n2: a!12");
        let dropped = world.proxy.take_dropped();
        assert_eq!(dropped.iter().map(|id| id.name.as_str()).collect::<Vec<_>>(), ["a"], "{protocol:?}");
        assert_eq!(leaf.sent(), r#"n2 X !"a"(12)"#, "{protocol:?}: it keeps what it has");
    }
}

/// Regression: after a restart, a proxy served the variant that it had before the type got a stream of its own.
#[test]
fn g4b_what_a_main_stream_had_of_a_type_leaves_the_file_when_the_type_gets_a_stream_of_its_own() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "Y a[env=prod]=1 b=1", ProxyConfig::default());
        commit(&world.origin, "X x=1");
        let mut leaves = [world.leaf("Y", "*?env=prod"), world.leaf("X", "x")];
        world.run();
        leaves.iter_mut().for_each(|leaf| _ = leaf.sent());
        assert_eq!(world.proxy.take_dropped(), [], "{protocol:?}");
        world.refused.insert("Y", Refusal::AmongOthers);
        world.lose();
        world.is_up = true;
        (0..5).for_each(|_| world.pass(Duration::from_secs(1)));
        assert_eq!(leaves.each_mut().map(Delta::sent), ["", ""], "{protocol:?}");
        let dropped = world.proxy.take_dropped();
        let mut dropped: Vec<_> = dropped.iter().map(|id| id.name.as_str()).collect();
        dropped.sort_unstable();
        assert_eq!(dropped, ["a", "b"], "{protocol:?}");
    }
}

/// Regression: what had come on a stream of its own for a type was served for ever after that stream was refused, too.
#[test]
fn g4_what_came_on_a_stream_of_its_own_goes_when_that_stream_is_refused_too() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut chain = [World::new(protocol, "X x=1", ProxyConfig::default())];
        commit(&chain[0].origin, "Y y=1");
        chain[0].refused.insert("Y", Refusal::AmongOthers);
        let [mut x, mut y] = [chain[0].leaf("X", "x"), chain[0].leaf("Y", "y")];
        settle(&mut chain);
        (x.now, y.now) = (chain[0].now, chain[0].now);
        assert_eq!([x.sent(), y.sent()], ["n1 X x=1", "n1 Y y=1"], "{protocol:?}");
        y.ack("Y", "1");
        chain[0].refused.insert("Y", Refusal::Always);
        chain[0].lose();
        chain[0].is_up = true;
        settle(&mut chain);
        y.now = chain[0].now;
        assert_eq!(y.sent(), r#"n2 Y !"y"(12)"#, "{protocol:?}");
        let mut late = chain[0].leaf("Y", "y");
        settle(&mut chain);
        late.now = chain[0].now;
        assert_eq!(late.sent(), r#"n1 Y !"y"(12)"#, "{protocol:?}");
    }
}

/// Regression: what a server without constraints refused ended the stream of its parameters for ever, a second after
/// each response.
#[test]
fn t43c_g4b_a_type_that_is_refused_on_a_stream_for_parameters_alone_leaves_the_others_alone() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::scripted(protocol);
        let (mut x, mut y) = (world.leaf("X", "x?env=a"), world.leaf("Y", "y?env=a"));
        world.run();
        // Plain names: the server does not say which clients the resources are for.
        world.get("X v1 n1: x=1");
        world.get("Y v1 n1: y=1");
        let alone = Route::SHARED.with(RouteKind::Alone(parameters("env=a")));
        world.get_from(&alone, "X v1 n1: x=1");
        world.get_from(&alone, "Y v1 n1: y=1");
        assert_eq!([x.sent(), y.sent()], ["n1 X x=1", "n1 Y y=1"], "{protocol:?}");
        x.ack("X", "1");
        y.ack("Y", "1");
        world.refused.insert("Y", Refusal::Always);
        world.lose();
        world.is_up = true;
        let mut opened = 0;
        for second in 1..=150 {
            let before = world.opened;
            world.pass(Duration::from_secs(1));
            (x.now, y.now) = (world.now, world.now);
            opened += world.opened - before;
            if second == 5 {
                world.get_from(&alone, "X v2 n1: x=2");
            }
        }
        assert_eq!(x.sent(), "n2 X x=2", "{protocol:?}");
        assert_eq!(y.sent(), r#"n2 Y !"y"(12)"#, "{protocol:?}");
        y.ack("Y", "2");
        // The search, and tries after 30 and 60 s.
        assert!((4..=7).contains(&opened), "{protocol:?}: {opened} streams");
        world.refused.clear();
        world.lose();
        world.is_up = true;
        for _ in 0..2 {
            world.pass(Duration::from_secs(1));
        }
        world.get_from(&alone, "Y v3 n2: y=3");
        y.now = world.now;
        assert_eq!(y.sent(), "n3 Y y=3", "{protocol:?}");
        // Others of the type have not ended with this one.
        world.requested();
        y.ask("Y", "-y?env=a");
        world.run();
        assert!(!world.requested().contains('x'), "{protocol:?}");
    }
}
