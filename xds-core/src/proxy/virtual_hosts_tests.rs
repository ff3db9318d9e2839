//! Virtual hosts (VHDS) through two proxies, one behind the other (D33).

use std::collections::BTreeSet;
use std::time::Duration;

use super::ProxyConfig;
use super::fixture::World;
use crate::Code;
use crate::client::Protocol;
use crate::server::fixture::{Delta, payload, type_url, version};
use crate::{Resource, Transaction};

/// A listener with the filter that demands hosts, and one without it.
const ON_DEMAND: &str = "LDS l=1>demand:rc; RDS rc=1>vhds:ads; VHDS rc/a=1 rc/b=1";
const UNASKED: &str = "LDS l=1>rc; RDS rc=1>vhds:ads rc2=1>vhds:ads; VHDS rc/a=1 rc/b=1 rc2/a=1";

/// An origin, and two proxies.
struct Chain([World; 2]);

impl Chain {
    fn new(content: &str) -> Self {
        let first = World::new(Protocol::Delta, content, ProxyConfig::default());
        let second = World::behind(&first);
        Self([first, second])
    }

    fn settle(&mut self) {
        for _ in 0..40 {
            self.0.iter_mut().for_each(|world| world.pass(Duration::from_millis(50)));
            while self.0.iter_mut().map(World::run_once).fold(false, |one, other| one | other) {}
        }
    }

    /// What the client is sent until nothing is left, without nonces. It ACKs each response.
    fn sent(&mut self, client: &mut Delta) -> Vec<String> {
        let mut lines = Vec::new();
        let mut is_over = false;
        while !is_over {
            self.settle();
            client.now = self.0[1].now;
            is_over = true;
            for line in client.sent().split("; ").filter(|line| !line.is_empty()) {
                let (nonce, rest) = line.split_once(' ').unwrap();
                client.ack(rest.split(' ').next().unwrap(), &nonce[1..]);
                lines.push(rest.to_owned());
                is_over = false;
            }
        }
        lines
    }

    /// The same of virtual hosts, in one set.
    fn hosts(&mut self, client: &mut Delta) -> BTreeSet<String> {
        let lines = self.sent(client);
        let of_hosts = lines.iter().filter_map(|line| line.strip_prefix("VHDS"));
        of_hosts.flat_map(|line| line.split_whitespace().map(str::to_owned)).collect()
    }

    /// An Envoy that has its listeners and `rc`, and now asks for virtual hosts.
    fn envoy(&mut self, hosts: &str, brought: &[(&str, &str)]) -> Delta {
        let mut client = Delta::new(self.0[1].proxy.cache());
        for (type_name, list) in [("LDS", ""), ("RDS", "rc")] {
            client.ask(type_name, list);
            assert_eq!(self.sent(&mut client).len(), 1, "{type_name}");
        }
        client.ask_with("VHDS", hosts, "", brought);
        client
    }

    fn commit(&mut self, text: &str) {
        self.0[0].commit(text);
    }
}

fn set<const COUNT: usize>(words: [&str; COUNT]) -> BTreeSet<String> {
    words.into_iter().map(str::to_owned).collect()
}

#[test]
fn d33_hosts_come_unasked_through_two_proxies_with_later_changes_and_removals() {
    let mut chain = Chain::new(UNASKED);
    let mut client = chain.envoy("", &[]);
    assert_eq!(chain.hosts(&mut client), set(["rc/a=1", "rc/b=1", "-rc/"]));
    chain.commit("VHDS rc/a=2 rc/c=1 -rc/b rc2/a=2");
    assert_eq!(chain.hosts(&mut client), set(["rc/a=2", "rc/c=1", "-rc/b"]));
    client.ask("RDS", "rc2");
    assert_eq!(chain.hosts(&mut client), set(["rc2/a=2", "-rc2/"]), "a later route configuration");
    chain.commit("RDS rc=3>vhds:other");
    assert_eq!(chain.hosts(&mut client), set(["-rc/"]), "it subscribes anew");
}

#[test]
fn d33_on_demand_only_what_is_asked_for_comes_through_two_proxies() {
    let mut chain = Chain::new(ON_DEMAND);
    let mut client = chain.envoy("", &[]);
    assert_eq!(chain.hosts(&mut client), set(["-rc/"]));
    client.ask("VHDS", "rc/a rc/none");
    let hosts = chain.hosts(&mut client);
    assert_eq!(hosts, set(["rc/a=1", "rc/none{alias=rc/none}"]), "D24: Envoy waits for the answer");
    chain.commit("VHDS rc/a=2 rc/b=2");
    assert_eq!(chain.hosts(&mut client), set(["rc/a=2"]));
    chain.commit("VHDS -rc/a rc/none=1");
    assert_eq!(chain.hosts(&mut client), set(["-rc/a", "rc/none=1"]));
}

#[test]
fn d33_s37_while_the_origin_is_away_hosts_stay_behind_two_proxies_and_a_client_is_still_answered() {
    let mut chain = Chain::new(UNASKED);
    let mut client = chain.envoy("", &[]);
    chain.hosts(&mut client);
    chain.0[0].lose();
    assert_eq!(chain.hosts(&mut client), set([]));
    // A client that reconnects meanwhile has one host of an older version, and one that is gone.
    let (a, b) = (version("VHDS", "rc/a", "1"), version("VHDS", "rc/b", "0"));
    let mut back = chain.envoy("", &[("rc/a", &a), ("rc/b", &b), ("rc/gone", "x")]);
    assert_eq!(chain.hosts(&mut back), set(["rc/b=1", "-rc/"]), "nobody knows what is gone");
    crate::server::fixture::commit(&chain.0[0].origin, "VHDS rc/a=2 -rc/b");
    chain.0[0].pass(Duration::from_secs(30));
    chain.0[0].is_up = true;
    assert_eq!(chain.hosts(&mut client), set(["rc/a=2", "-rc/b"]));
    assert_eq!(chain.hosts(&mut back), set(["rc/a=2", "-rc/b", "-rc/gone"]));
}

#[test]
fn d33_g4_hosts_that_the_origin_refuses_are_no_removals_behind_two_proxies() {
    use super::fixture::Refusal;
    for refusal in [Refusal::ByErrors, Refusal::Always, Refusal::With(Code::NOT_FOUND)] {
        let mut chain = Chain::new(UNASKED);
        chain.0[0].refused.insert("VHDS", refusal);
        let a = version("VHDS", "rc/a", "1");
        let mut client = chain.envoy("", &[("rc/a", &a), ("rc/b", "x")]);
        let hosts = chain.hosts(&mut client);
        let removed: Vec<_> = hosts.iter().filter(|word| word.starts_with('-') && *word != "-rc/").collect();
        assert!(removed.is_empty(), "{refusal:?}: {hosts:?}");
        chain.0[0].refused.clear();
        chain.0[0].lose();
        chain.0[0].pass(Duration::from_secs(30));
        chain.0[0].is_up = true;
        let hosts = chain.hosts(&mut client);
        assert!(hosts.contains("rc/b=1") && !hosts.contains("-rc/a"), "{refusal:?}: {hosts:?}");
    }
}

/// Hosts of 5 x 1.5 MiB.
#[test]
fn d33_d32_s6c_hosts_of_more_than_a_message_come_in_parts_and_a_bad_one_stays_out_alone() {
    let mut chain = Chain::new("LDS l=1>rc; RDS rc=1>vhds:ads");
    let mut transaction = Transaction::new();
    for name in ["rc/a", "rc/b", "rc/c", "rc/d", "rc/e"] {
        let content = payload("VHDS", name, &"x".repeat(3 << 19));
        transaction.put(Resource::new(type_url("VHDS"), name, content).unwrap());
    }
    chain.0[0].origin.commit(transaction).unwrap();
    let mut client = chain.envoy("", &[]);
    // It rejects each response with `rc/d`.
    let (mut has, mut responses) = (BTreeSet::new(), Vec::new());
    for _ in 0..20 {
        chain.settle();
        client.now = chain.0[1].now;
        let sent = client.sent().replace(['x', '='], "");
        for line in sent.split("; ").filter(|line| !line.is_empty()) {
            let (nonce, rest) = line.split_once(' ').unwrap();
            let names = rest.strip_prefix("VHDS").expect("nothing else is sent");
            assert!(names.matches(" rc/").count() <= 2, "4 MiB hold two of them: {names}");
            if names.contains(" rc/d") {
                client.nack("VHDS", &nonce[1..]);
            } else {
                client.ack("VHDS", &nonce[1..]);
                has.extend(names.split_whitespace().map(str::to_owned));
            }
            responses.push(names.to_owned());
        }
    }
    assert_eq!(has, set(["rc/a", "rc/b", "rc/c", "rc/e", "-rc/"]), "{responses:?}");
    chain.commit("VHDS rc/d=good");
    assert_eq!(chain.hosts(&mut client), set(["rc/d=good"]), "the last one is in use, too");
}
