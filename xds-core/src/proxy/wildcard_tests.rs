//! A wildcard that cannot be answered is not answered with an empty set (G4, G13, S37): for each reason, in
//! each protocol, in chains of proxies.

use std::time::Duration;

use super::ProxyConfig;
use super::fixture::{Refusal, World};
use crate::client::Protocol;
use crate::server::SotwRequest;
use crate::server::fixture::{Delta, Sotw, type_url, version};
use crate::{Code, ResourceName};

/// Why a wildcard cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// By the origin.
    Refused(Refusal),
    /// A proxy subscribes to no further name, or type.
    NamesLimit,
    TypesLimit,
    /// The origin is away, and was never there.
    Away,
}

const REASONS: [Reason; 7] = [
    Reason::Refused(Refusal::ByErrors),
    Reason::Refused(Refusal::Always),
    Reason::Refused(Refusal::With(Code::INVALID_ARGUMENT)),
    Reason::Refused(Refusal::With(Code::NOT_FOUND)),
    Reason::NamesLimit,
    Reason::TypesLimit,
    Reason::Away,
];

/// An origin, and proxies behind each other. The last one has the clients.
struct Chain(Vec<World>);

impl Chain {
    fn new(protocol: Protocol, reason: Reason, length: usize) -> Self {
        let mut config = ProxyConfig::default();
        match reason {
            Reason::NamesLimit => config.upstream_names_limit = 1,
            Reason::TypesLimit => config.upstream_types_limit = 1,
            Reason::Refused(_) | Reason::Away => {}
        }
        let content = "CDS a=1 other=1; X a=1 other=1; EDS other=1";
        let mut worlds = vec![World::new(protocol, content, config)];
        if let Reason::Refused(refusal) = reason {
            worlds[0].refused.extend([("CDS", refusal), ("X", refusal)]);
        }
        worlds[0].is_up = reason != Reason::Away;
        for _ in 1..length {
            let last = worlds.last().unwrap();
            let next = World::behind(last);
            worlds.push(next);
        }
        Self(worlds)
    }

    fn last(&self) -> &World {
        self.0.last().unwrap()
    }

    fn pass(&mut self, time: Duration) {
        self.0.iter_mut().for_each(|world| world.pass(time));
        while self.0.iter_mut().map(World::run_once).fold(false, |one, other| one | other) {}
    }

    fn settle(&mut self) {
        (0..30).for_each(|_| self.pass(Duration::from_secs(1)));
    }
}

/// Whether a client was not told that there is nothing else than what it was sent: no full state, and in
/// each response the error.
fn is_unknown(sent: &str, is_full_state: bool) -> bool {
    let says_so = |response: &str| response.contains("!\"*\"(") && !response.contains(" -");
    sent.is_empty() || (!is_full_state && sent.split("; ").all(says_so))
}

#[test]
fn g4_g13_s37_nobody_is_told_that_there_is_nothing_when_nobody_knows() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        for reason in REASONS {
            for length in 1..=3 {
                for type_name in ["CDS", "X"] {
                    check(protocol, reason, length, type_name);
                }
            }
        }
    }
}

fn check(protocol: Protocol, reason: Reason, length: usize, type_name: &str) {
    let what = format!("{protocol:?} {reason:?} {length} {type_name}");
    let mut chain = Chain::new(protocol, reason, length);
    // It takes the place, or makes others of the refused type.
    let other_type = if reason == Reason::NamesLimit { type_name } else { "EDS" };
    let mut other = (reason != Reason::Away).then(|| chain.last().leaf(other_type, "other"));
    chain.settle();
    let brought = [("a", version(type_name, "a", "1")), ("gone", "1".into())];
    let brought = brought.each_ref().map(|(name, version)| (*name, version.as_str()));
    let mut fresh = chain.last().leaf(type_name, "*");
    let mut reconnecting = Delta::new(chain.last().proxy.cache());
    reconnecting.now = chain.last().now;
    reconnecting.ask_with(type_name, "*", "", &brought);
    let mut of_sotw = chain.last().sotw_leaf(type_name, "*");
    let mut back_in_sotw = Sotw::new(chain.last().proxy.cache());
    back_in_sotw.now = chain.last().now;
    let everything = SotwRequest {
        type_url: type_url(type_name).as_str().into(),
        version_info: "1".into(),
        requested: Some(vec![ResourceName::new("*")].into()),
        ..SotwRequest::default()
    };
    back_in_sotw.send(everything);
    let mut all = <[String; 4]>::default();
    for step in 0..8 {
        let is_over = step >= 3;
        if step == 3 {
            drop(other.take());
            let first = &mut chain.0[0];
            first.refused.clear();
            first.lose();
            first.pass(Duration::from_secs(30));
            first.is_up = true;
        }
        chain.settle();
        for (leaf, all) in [&mut fresh, &mut reconnecting].into_iter().zip(&mut all) {
            leaf.now = chain.last().now;
            let sent = leaf.sent();
            assert!(is_over || is_unknown(&sent, false), "{what}, delta: {sent}");
            *all += &sent;
            let nonce = leaf.last.nonce.clone();
            leaf.ack(type_name, &nonce);
        }
        for (leaf, all) in [&mut of_sotw, &mut back_in_sotw].into_iter().zip(&mut all[2..]) {
            leaf.now = chain.last().now;
            let sent = leaf.sent();
            assert!(is_over || is_unknown(&sent, type_name == "CDS"), "{what}, SotW: {sent}");
            *all += &sent;
        }
    }
    let expected = [["a=1", "other=1"], ["other=1", "-gone"], ["a=1", "other=1"], ["a=1", "other=1"]];
    for (all, expected) in all.iter().zip(expected) {
        assert!(
            expected.iter().all(|content| all.contains(content)),
            "{what}, {expected:?} at the end: {all}"
        );
    }
}

/// A control plane that does not know a type may end the stream with NOT_FOUND.
#[test]
fn g4_d28_the_status_of_a_stream_is_no_error_of_a_resource() {
    for length in 1..=2 {
        let refusal = Refusal::With(Code::NOT_FOUND);
        let mut chain = Chain::new(Protocol::Delta, Reason::Refused(refusal), length);
        let mut leaf = chain.last().leaf("X", "a");
        chain.settle();
        leaf.now = chain.last().now;
        assert_eq!(leaf.sent(), "n1 X !\"a\"(12)");
    }
}
