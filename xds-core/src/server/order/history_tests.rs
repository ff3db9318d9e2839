//! In any history, no cluster is removed from a client that may still route to it.
//!
//! A model client remembers the version of each route that it accepted last, and the versions that
//! it got later. It may use any of these, so the clusters that they name must stay. The one
//! exception is a cluster that only the last accepted version names: the source that removes it
//! takes it away knowingly.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quickcheck::{Arbitrary, Gen, QuickCheck};

use crate::Cache;
use crate::server::ClientGroup;
use crate::server::fixture::{Delta, Sotw, commit};

#[derive(Debug, Clone)]
enum Step {
    /// Gives routes other clusters, or removes routes, and removes clusters too, in one commit.
    Commit {
        routes: Vec<(u8, u8)>,
        clusters: Vec<(u8, bool)>,
    },
    /// The client answers the oldest response of its routes.
    Answer {
        accept: bool,
    },
    /// The client unsubscribes from a route that was removed.
    GiveUp {
        route: u8,
    },
    Pass,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 8 {
            0..3 => {
                let mut routes = Vec::arbitrary(g);
                let mut clusters = Vec::arbitrary(g);
                routes.truncate(2);
                clusters.truncate(3);
                Self::Commit { routes, clusters }
            }
            3..6 => Self::Answer { accept: u8::arbitrary(g) % 3 > 0 },
            6 => Self::GiveUp { route: u8::arbitrary(g) },
            _ => Self::Pass,
        }
    }
}

enum Streams {
    Delta(Delta),
    PerType { clusters: Box<Delta>, routes: Box<Delta> },
    Sotw(Sotw),
}

impl Streams {
    fn new(cache: &Arc<Cache>, kind: u8) -> Self {
        let mut streams = match kind {
            0 => Self::Delta(Delta::new(cache)),
            1 => {
                let group = ClientGroup::new();
                let [clusters, routes] = [(); 2].map(|()| {
                    let mut stream = Box::new(Delta::new(cache));
                    stream.stream.join(&group);
                    stream
                });
                Self::PerType { clusters, routes }
            }
            _ => Self::Sotw(Sotw::new(cache)),
        };
        for (type_name, list) in [("CDS", ""), ("RDS", "r0 r1 r2")] {
            match &mut streams {
                Self::Sotw(sotw) => _ = sotw.ask(type_name, list, ""),
                other => _ = other.delta(type_name).ask(type_name, list),
            }
        }
        streams
    }

    fn delta(&mut self, type_name: &str) -> &mut Delta {
        match self {
            Self::Delta(delta) => delta,
            Self::PerType { clusters, .. } if type_name == "CDS" => clusters,
            Self::PerType { routes, .. } => routes,
            Self::Sotw(_) => unreachable!("that is the other protocol"),
        }
    }

    fn sent(&mut self) -> String {
        match self {
            Self::Delta(delta) => delta.sent(),
            Self::Sotw(sotw) => sotw.sent(),
            Self::PerType { clusters, routes } => {
                let lines = [clusters.sent(), routes.sent(), clusters.sent()];
                lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
            }
        }
    }

    fn answer(&mut self, type_name: &str, nonce: &str, accept: bool) {
        match (self, accept) {
            (Self::Sotw(sotw), true) => _ = sotw.ack(type_name, nonce),
            (Self::Sotw(sotw), false) => _ = sotw.nack(type_name, nonce),
            (other, true) => _ = other.delta(type_name).ack(type_name, nonce),
            (other, false) => _ = other.delta(type_name).nack(type_name, nonce),
        }
    }

    fn pass(&mut self, time: Duration) {
        match self {
            Self::Delta(delta) => delta.pass(time),
            Self::Sotw(sotw) => sotw.pass(time),
            Self::PerType { clusters, routes } => [clusters, routes].iter_mut().for_each(|of| of.pass(time)),
        }
    }
}

type Clusters = BTreeSet<String>;

/// The contents of a route that a client knows.
#[derive(Default)]
struct Route {
    accepted: Option<Clusters>,
    /// The contents since then, in order.
    open: Vec<(String, Clusters)>,
    is_gone: bool,
}

struct Model {
    streams: Streams,
    routes: BTreeMap<String, Route>,
    clusters: Clusters,
    /// Responses with routes: nonce and contents.
    inbox: VecDeque<(String, Vec<(String, String)>)>,
    last_nonce: String,
}

impl Model {
    /// Takes all responses that the server sends now.
    fn receive(&mut self) -> Result<(), String> {
        loop {
            let sent = self.streams.sent();
            if sent.is_empty() {
                return Ok(());
            }
            for line in sent.split("; ") {
                let mut words = line.split(' ');
                let nonce = words.next().unwrap()[1..].to_owned();
                match words.next() {
                    Some("CDS") => self.clusters(&nonce, &words.collect::<Vec<_>>())?,
                    _ => self.routes(nonce, words),
                }
            }
        }
    }

    fn clusters(&mut self, nonce: &str, words: &[&str]) -> Result<(), String> {
        let name_of = |word: &&str| word.split_once('=').map(|(name, _)| name.to_owned());
        let there: Clusters = words.iter().filter_map(name_of).collect();
        let before = self.clusters.clone();
        match self.streams {
            Streams::Sotw(_) => self.clusters = there,
            _ => {
                self.clusters.extend(there);
                self.clusters.retain(|name| !words.contains(&format!("-{name}").as_str()));
            }
        }
        for lost in before.difference(&self.clusters) {
            if let Some((name, _)) = self.routes.iter().find(|(_, route)| route.may_use(lost)) {
                return Err(format!("{name} may use {lost}, which {words:?} takes away"));
            }
        }
        self.streams.answer("CDS", nonce, true);
        Ok(())
    }

    fn routes<'a>(&mut self, nonce: String, words: impl Iterator<Item = &'a str>) {
        let mut brought = Vec::new();
        for word in words {
            // D29: the client uses a removed route until it unsubscribes.
            let Some((name, content)) = word.split_once('=') else { continue };
            let route = self.routes.entry(name.to_owned()).or_default();
            let named = content.split_once('>').unwrap().1.split(',').map(str::to_owned).collect();
            // D8: a rejected resource may be sent again.
            route.open.retain(|(of, _)| of != content);
            route.open.push((content.to_owned(), named));
            brought.push((name.to_owned(), content.to_owned()));
        }
        self.last_nonce.clone_from(&nonce);
        self.inbox.push_back((nonce, brought));
    }

    fn answer(&mut self, accept: bool) -> bool {
        let Some((nonce, brought)) = self.inbox.pop_front() else { return false };
        self.streams.answer("RDS", &nonce, accept);
        for (name, content) in brought.into_iter().filter(|_| accept) {
            let route = self.routes.get_mut(&name).unwrap();
            if let Some(at) = route.open.iter().position(|(of, _)| *of == content) {
                route.accepted = route.open.drain(..=at).next_back().map(|(_, named)| named);
            }
        }
        true
    }

    fn give_up(&mut self, name: &str) {
        if matches!(self.streams, Streams::Sotw(_)) {
            // A new list answers the newest response.
            while self.answer(true) {}
        }
        self.routes.remove(name);
        match &mut self.streams {
            Streams::Sotw(sotw) => {
                let names: Vec<_> = self.routes.keys().cloned().collect();
                sotw.ask("RDS", &names.join(" "), &self.last_nonce);
            }
            other => _ = other.delta("RDS").ask("RDS", &format!("-{name}")),
        }
        self.inbox.iter_mut().for_each(|(_, brought)| brought.retain(|(of, _)| of != name));
    }
}

impl Route {
    fn may_use(&self, cluster: &str) -> bool {
        let older = self.open.split_last().map_or(&[][..], |(_, older)| older);
        let is_accepted_used = self.accepted.as_ref().is_some_and(|named| named.contains(cluster));
        let is_changing = !self.open.is_empty() || self.is_gone;
        is_changing && is_accepted_used || older.iter().any(|(_, named)| named.contains(cluster))
    }
}

fn name(number: u8) -> String {
    format!("r{}", number % 3)
}

fn cluster(number: u8) -> String {
    format!("c{}", number % 4)
}

/// Runs the steps. Then the client accepts everything, and gets everything that was withheld.
fn keeps_clusters(kind: u8, steps: &[Step]) -> Result<(), String> {
    let cache = Cache::new();
    commit(&cache, "CDS c0=static c1=static c2=static c3=static; RDS r0=0>c0 r1=0>c1,c2 r2=0>c3");
    let (routes, clusters) = (BTreeMap::new(), Clusters::new());
    let streams = Streams::new(&cache, kind);
    let mut model = Model { streams, routes, clusters, inbox: VecDeque::new(), last_nonce: String::new() };
    model.receive()?;
    model.answer(true);
    model.receive()?;
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Commit { routes, clusters } => {
                let mut text = BTreeMap::new();
                for (number, named) in routes {
                    let name = name(*number);
                    let named: Vec<_> = (0..4).filter(|of| named & 1 << of != 0).map(cluster).collect();
                    let is_gone = named.is_empty();
                    if let Some(route) = model.routes.get_mut(&name) {
                        route.is_gone = is_gone;
                    }
                    let change = if is_gone {
                        format!("-{name}")
                    } else {
                        format!("{name}={}>{}", at + 1, named.join(","))
                    };
                    text.insert(name, format!("RDS {change}"));
                }
                for (number, is_there) in clusters {
                    let name = cluster(*number);
                    let change = if *is_there { format!("{name}=static") } else { format!("-{name}") };
                    text.insert(name, format!("CDS {change}"));
                }
                commit(&cache, &text.into_values().collect::<Vec<_>>().join("; "));
            }
            Step::Answer { accept } => _ = model.answer(*accept),
            Step::GiveUp { route } => {
                let name = name(*route);
                if model.routes.get(&name).is_some_and(|route| route.is_gone) {
                    model.give_up(&name);
                }
            }
            Step::Pass => model.streams.pass(Duration::from_secs(6)),
        }
        model.receive()?;
    }
    let last: Vec<_> = model.routes.keys().map(|name| format!("{name}=last>c0")).collect();
    model.routes.values_mut().for_each(|route| route.is_gone = false);
    commit(&cache, &format!("CDS c0=static -c1 -c2 -c3; RDS {}", last.join(" ")));
    for _ in 0..8 {
        model.receive()?;
        while model.answer(true) {
            model.receive()?;
        }
        model.streams.pass(Duration::from_secs(20));
    }
    match model.clusters.iter().eq(["c0"]) {
        true => Ok(()),
        false => Err(format!("{:?} are left", model.clusters)),
    }
}

fn check(kind: u8, steps: &[Step]) -> bool {
    keeps_clusters(kind, steps).inspect_err(|error| eprintln!("{error}")).is_ok()
}

/// The same histories in each run, so that a failure is that of a change; `SEED` and `TESTS` choose
/// others.
fn quick() -> QuickCheck {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    QuickCheck::new().rng(Gen::from_size_and_seed(30, number("SEED", 0))).tests(number("TESTS", 1000))
}

#[test]
fn s33_no_cluster_is_taken_from_a_delta_client_that_may_use_it() {
    fn holds(steps: Vec<Step>) -> bool {
        check(0, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>) -> bool);
}

#[test]
fn s33_no_cluster_is_taken_from_a_client_with_streams_per_type_that_may_use_it() {
    fn holds(steps: Vec<Step>) -> bool {
        check(1, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>) -> bool);
}

#[test]
fn s33_no_cluster_is_taken_from_a_sotw_client_that_may_use_it() {
    fn holds(steps: Vec<Step>) -> bool {
        check(2, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>) -> bool);
}
