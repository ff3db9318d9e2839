//! Clients that subscribe to `*` while a candidate is tried, widened, promoted and ended (D16, S25): none is told
//! that something is absent which it should have.

use std::collections::BTreeSet;
use std::time::Duration;

use super::tests::named;
use super::*;
use crate::ResourceName;
use crate::server::SotwRequest;
use crate::server::fixture::{Delta, Sotw, commit, transaction, type_url, version};

/// A subscription to `*`, and what the client has.
struct Wildcard {
    client: Client,
    type_name: &'static str,
    has: BTreeSet<String>,
    /// Whether it was sent any response.
    is_answered: bool,
}

enum Client {
    Delta(Delta),
    Sotw(Sotw),
}

/// What a client that reconnects has.
const BROUGHT: [&str; 2] = ["a", "gone"];

impl Wildcard {
    /// One of each kind with this node id: delta and SotW, of a type with full states and of another one, new
    /// and reconnecting.
    fn all(cache: &Arc<Cache>, id: &str) -> Vec<Self> {
        let kinds = ["CDS", "X"].into_iter().flat_map(|of| [(of, false), (of, true)]);
        kinds
            .flat_map(|(of, is_back)| {
                [Self::delta(cache, id, of, is_back), Self::sotw(cache, id, of, is_back)]
            })
            .collect()
    }

    fn delta(cache: &Arc<Cache>, id: &str, type_name: &'static str, is_back: bool) -> Self {
        let mut client = Delta::new(cache);
        named(&client.watch, id);
        let brought = BROUGHT.map(|name| (name, version(type_name, name, "1")));
        let brought: Vec<_> = brought.iter().map(|(name, version)| (*name, version.as_str())).collect();
        client.ask_with(type_name, "*", "", if is_back { &brought } else { &[] });
        Self::new(Client::Delta(client), type_name, is_back)
    }

    fn sotw(cache: &Arc<Cache>, id: &str, type_name: &'static str, is_back: bool) -> Self {
        let mut client = Sotw::new(cache);
        named(&client.watch, id);
        client.send(SotwRequest {
            type_url: type_url(type_name).as_str().into(),
            version_info: if is_back { "1".into() } else { String::new() },
            requested: Some(vec![ResourceName::new("*")].into()),
            ..SotwRequest::default()
        });
        Self::new(Client::Sotw(client), type_name, is_back)
    }

    fn new(client: Client, type_name: &'static str, is_back: bool) -> Self {
        let has = if is_back { BROUGHT.map(|name| format!("{name}=1")).into() } else { BTreeSet::new() };
        Self { client, type_name, has, is_answered: false }
    }

    /// Reads and ACKs everything. No response takes from it what is in `keeps`, by name.
    fn read(&mut self, keeps: &[&str], what: &str) {
        loop {
            let sent = self.sent();
            if sent.is_empty() {
                return;
            }
            sent.split("; ").for_each(|line| self.apply(line, keeps, what));
        }
    }

    fn sent(&mut self) -> String {
        match &mut self.client {
            Client::Delta(client) => client.sent(),
            Client::Sotw(client) => client.sent(),
        }
    }

    fn apply(&mut self, line: &str, keeps: &[&str], what: &str) {
        self.is_answered = true;
        let before = self.has.clone();
        let mut words = line.split(' ');
        let (nonce, type_name) = (&words.next().unwrap()[1..], words.next().unwrap());
        let is_full = type_name == "CDS" && matches!(self.client, Client::Sotw(_));
        if is_full {
            self.has.clear();
        }
        for word in words.filter(|word| !word.starts_with('!')) {
            let name = word.trim_start_matches('-').split('=').next().unwrap();
            self.has.retain(|had| had.split('=').next() != Some(name));
            if word.contains('=') {
                self.has.insert(word.to_owned());
            }
        }
        match &mut self.client {
            Client::Delta(client) => _ = client.ack(type_name, nonce),
            Client::Sotw(client) => _ = client.ack(type_name, nonce),
        }
        let has =
            |set: &BTreeSet<String>, name: &str| set.iter().any(|word| word.split('=').next() == Some(name));
        for name in keeps {
            assert!(has(&self.has, name) || (!is_full && !has(&before, name)), "{what}: {line} lacks {name}");
        }
    }

    /// Reads everything, and has what is expected after the grace time of removals (S33). SotW without full states
    /// does not say what is gone.
    fn check(&mut self, keeps: &[&str], expected: &[&str], what: &str) {
        self.read(keeps, what);
        match &mut self.client {
            Client::Delta(client) => client.pass(GRACE),
            Client::Sotw(client) => client.pass(GRACE),
        }
        self.read(keeps, what);
        let is_certain = self.type_name == "CDS" || matches!(self.client, Client::Delta(_));
        let has = self.has.iter().map(String::as_str).filter(|has| is_certain || expected.contains(has));
        assert_eq!(has.collect::<Vec<_>>(), expected, "{what}");
    }
}

const GRACE: Duration = Duration::from_secs(60);

/// Of both types.
fn of_both(text: &str) -> String {
    format!("CDS {text}; X {text}")
}

const STABLE: [&str; 3] = ["a=1", "b=1", "k=1"];
const TRIED: [&str; 3] = ["a=2", "b=1", "m=1"];

#[test]
fn d16_s25_no_wildcard_loses_anything_when_a_candidate_begins_widens_and_is_promoted_or_ends() {
    for is_promoted in [true, false] {
        let cache = Cache::new();
        commit(&cache, &of_both("a=1 b=1 k=1"));
        let mut clients: Vec<(bool, Wildcard)> = Vec::new();
        let connect = |clients: &mut Vec<(bool, Wildcard)>| {
            for (id, is_first) in [("a", false), ("b", true)] {
                clients.extend(Wildcard::all(&cache, id).into_iter().map(|client| (is_first, client)));
            }
        };
        let check = |clients: &mut Vec<(bool, Wildcard)>, keeps: &[&str], of: [&[&str]; 2], step: &str| {
            for (at, (is_first, client)) in clients.iter_mut().enumerate() {
                let what = format!("{step}, promoted: {is_promoted}, client {at}, first: {is_first}");
                client.check(keeps, of[usize::from(*is_first)], &what);
            }
        };
        connect(&mut clients);
        check(&mut clients, &["a", "b", "k"], [&STABLE, &STABLE], "before");
        let mut candidate =
            cache.begin(transaction(&of_both("a=2 m=1 -k")), &"id=b".parse().unwrap()).unwrap();
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&STABLE, &TRIED], "begun");
        candidate.widen(&Audience::Percent(100)).unwrap();
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&TRIED, &TRIED], "widened");
        let after = if is_promoted {
            candidate.promote().unwrap();
            TRIED
        } else {
            candidate.end();
            STABLE
        };
        connect(&mut clients);
        check(&mut clients, &["a", "b"], [&after, &after], "after");
        commit(&cache, &of_both("-b"));
        let after: Vec<_> = after.into_iter().filter(|word| *word != "b=1").collect();
        check(&mut clients, &["a"], [&after, &after], "a later removal");
    }
}

#[test]
fn g4_s37_a_candidate_does_not_answer_a_wildcard_that_cannot_be_answered() {
    for status in ["", " !*/14", " !*/12"] {
        let cache = Cache::on_demand();
        commit(&cache, &of_both(&format!("a=1{status}")));
        let mut clients: Vec<_> = ["a", "b"].into_iter().flat_map(|id| Wildcard::all(&cache, id)).collect();
        let silent = |clients: &mut Vec<Wildcard>, step: &str| {
            for (at, client) in clients.iter_mut().enumerate() {
                let sent = client.sent();
                let is_full = client.type_name == "CDS" && matches!(client.client, Client::Sotw(_));
                let what = format!("{status:?} {step}, client {at}: {sent}");
                assert!(!is_full || sent.is_empty(), "{what}");
                for line in sent.split("; ").filter(|line| !line.is_empty()) {
                    let says_so = status.is_empty() || line.contains("!\"*\"(");
                    assert!(says_so && !line.contains(" -"), "{what}");
                    client.apply(line, &[], &what);
                }
            }
        };
        silent(&mut clients, "before");
        let mut candidate = cache.begin(transaction(&of_both("a=2 m=1")), &"id=b".parse().unwrap()).unwrap();
        clients.extend(Wildcard::all(&cache, "b"));
        silent(&mut clients, "begun");
        candidate.widen(&Audience::Percent(100)).unwrap();
        silent(&mut clients, "widened");
        candidate.end();
        silent(&mut clients, "ended");
        // The source answers: now it is known what is gone.
        commit(&cache, &of_both("!*"));
        for (at, client) in clients.iter_mut().enumerate() {
            client.check(&["a"], &["a=1"], &format!("{status:?} answered, client {at}"));
        }
    }
}

/// SR20: the source of the cache takes a snapshot from another one meanwhile.
#[test]
fn g13_while_the_source_is_outdated_a_new_wildcard_gets_nothing_in_any_view() {
    let cache = Cache::new();
    commit(&cache, &of_both("a=1 b=1 k=1"));
    let candidate = cache.begin(transaction(&of_both("a=2 m=1 -k")), &"id=b".parse().unwrap()).unwrap();
    cache.set_outdated(true);
    let mut clients: Vec<_> = ["a", "b"].into_iter().flat_map(|id| Wildcard::all(&cache, id)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.read(&[], &format!("outdated, client {at}"));
        assert!(!client.is_answered, "client {at}");
    }
    candidate.end();
    for client in &mut clients {
        client.read(&[], "ended");
        assert!(!client.is_answered);
    }
    cache.set_outdated(false);
    for (at, client) in clients.iter_mut().enumerate() {
        client.check(&["a", "b", "k"], &STABLE, &format!("client {at}"));
    }
}
