//! Random commits, candidates and clients against a model.

use super::tests::{IDS, named};
use super::*;
use crate::server::fixture::{Delta, Sotw, commit, parameters, transaction, type_url};

/// What one client does and has in the random test.
struct Model {
    client: Client,
    /// The resources that it has, by name, with their content.
    has: BTreeMap<String, String>,
    /// What it had before the responses that it did not answer.
    had: BTreeMap<String, String>,
    unanswered: Vec<(String, String)>,
}

enum Client {
    Delta(Delta),
    Sotw(Sotw),
}

impl Model {
    fn new(cache: &Arc<Cache>, at: usize) -> Self {
        let (id, is_delta) = (id_of(at), at.is_multiple_of(2));
        let client = if is_delta {
            let mut client = Delta::new(cache);
            named(&client.watch, id);
            client.stream.on_node(parameters(&format!("id={id}")));
            client.ask("LDS", "*");
            Client::Delta(client)
        } else {
            let mut client = Sotw::new(cache);
            named(&client.watch, id);
            client.stream.on_node(parameters(&format!("id={id}")));
            client.ask("LDS", "*", "");
            Client::Sotw(client)
        };
        Self { client, has: BTreeMap::new(), had: BTreeMap::new(), unanswered: Vec::new() }
    }

    fn read(&mut self) -> bool {
        let (sent, is_full) = match &mut self.client {
            Client::Delta(client) => (client.sent(), false),
            Client::Sotw(client) => (client.sent(), true),
        };
        for response in sent.split("; ").filter(|sent| !sent.is_empty()) {
            let mut words = response.split(' ');
            let nonce = words.next().unwrap()[1..].to_owned();
            if self.unanswered.is_empty() {
                self.had.clone_from(&self.has);
            }
            self.unanswered.push((words.next().unwrap().to_owned(), nonce));
            if is_full {
                self.has.clear();
            }
            for word in words {
                match word.strip_prefix('-') {
                    Some(name) => _ = self.has.remove(name),
                    None => {
                        let (name, content) = word.split_once('=').unwrap();
                        self.has.insert(name.to_owned(), content.to_owned());
                    }
                }
            }
        }
        !sent.is_empty()
    }

    /// Answers the last response. Rejects it if it is the only one without an answer and has content
    /// of the candidate that the client rejects.
    fn answer(&mut self, rejects: Option<&str>) -> bool {
        let Some((type_name, nonce)) = self.unanswered.last().cloned() else { return false };
        let has_it = |of: &BTreeMap<String, String>| of.values().any(|content| Some(&**content) == rejects);
        let is_rejected = self.unanswered.len() == 1 && has_it(&self.has) && !has_it(&self.had);
        self.unanswered.clear();
        match (&mut self.client, is_rejected) {
            (Client::Delta(client), false) => _ = client.ack(&type_name, &nonce),
            (Client::Sotw(client), false) => _ = client.ack(&type_name, &nonce),
            (Client::Delta(client), true) => _ = client.nack(&type_name, &nonce),
            (Client::Sotw(client), true) => _ = client.nack(&type_name, &nonce),
        }
        if is_rejected {
            self.has.clone_from(&self.had);
        }
        is_rejected
    }

    fn watch(&self) -> &crate::Watch {
        match &self.client {
            Client::Delta(client) => &client.watch,
            Client::Sotw(client) => &client.watch,
        }
    }

    /// What the state that it sees has for it.
    fn should_have(&self, at: usize) -> BTreeMap<String, String> {
        let parameters = parameters(&format!("id={}", id_of(at)));
        self.watch().read(|snapshot| {
            let resources = snapshot.of_type(&type_url("LDS"));
            let names = resources.into_iter().flat_map(TypeSnapshot::iter);
            let found = names.filter_map(|(name, variants)| {
                let variant = variants.resolve(&parameters)?;
                let payload = String::from_utf8_lossy(variant.payload()).into_owned();
                Some((name.as_str().to_owned(), payload.trim_start_matches(|c: char| c.is_control()).into()))
            });
            found.collect::<BTreeMap<_, String>>()
        })
    }
}

const CLIENTS: usize = 5;

/// The last client is a twin of the first.
fn id_of(at: usize) -> &'static str {
    let at = at % (CLIENTS - 1);
    &IDS[at..=at]
}

/// Random commits, candidates, steps, promotions, ends, reads, answers and reconnects.
fn run(seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |count: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % 1_000_003).unwrap() % count
    };
    let cache = Cache::new();
    commit(&cache, "LDS a=0 b=0 c=0");
    let mut clients: Vec<_> = (0..CLIENTS).map(|at| Model::new(&cache, at)).collect();
    // The candidate, its content, whether clients reject it, and whether one did.
    let mut candidate: Option<(Candidate, String, bool, bool)> = None;
    // The clients that may hold each candidate.
    let mut may_hold = BTreeMap::<String, BTreeSet<usize>>::new();
    for step in 0..60 {
        let change = |draw: &mut dyn FnMut(usize) -> usize, content: &str| {
            let names = ["a", "b", "c", "d"];
            let when = ["", "", "", "[id=a]", "[id!=a]"][draw(5)];
            match draw(4) {
                0 => format!("LDS -{}{when}", names[draw(4)]),
                _ => format!("LDS {}{when}={content}", names[draw(4)]),
            }
        };
        let audience = |draw: &mut dyn FnMut(usize) -> usize| {
            let audiences = ["1 client", "2 clients", "30%", "100%", "id=b", "id in (a,c)"];
            audiences[draw(6)].parse::<Audience>().unwrap()
        };
        match draw(12) {
            0 => _ = crate::server::fixture::try_commit(&cache, &change(&mut draw, &format!("s{step}"))),
            1 if candidate.is_none() => {
                let content = format!("x{step}");
                let text = change(&mut draw, &content);
                if let Ok(began) = cache.begin(transaction(&text), &audience(&mut draw)) {
                    candidate = Some((began, content, draw(2) == 0, false));
                }
            }
            2 => {
                if let Some((candidate, ..)) = &mut candidate {
                    _ = candidate.widen(&audience(&mut draw));
                }
            }
            3 => {
                if let Some((candidate, content, _, was_rejected)) = candidate.take()
                    && !was_rejected
                    && draw(2) == 0
                    && candidate.promote().is_ok()
                {
                    may_hold.insert(content, (0..CLIENTS).collect());
                }
            }
            4 => {
                let at = draw(CLIENTS);
                clients[at] = Model::new(&cache, at);
            }
            5 | 6 => {
                let rejected = candidate.as_ref().filter(|(_, _, is_bad, _)| *is_bad);
                let rejected = rejected.map(|(_, content, ..)| content.clone());
                let is_rejected = clients[draw(CLIENTS)].answer(rejected.as_deref());
                if let Some((.., was_rejected)) = &mut candidate {
                    *was_rejected |= is_rejected;
                }
            }
            _ => {
                let at = draw(CLIENTS);
                clients[at].read();
            }
        }
        // A client that is chosen now may hold the candidate.
        if let Some((_, content, ..)) = &candidate {
            let chosen = clients.iter().enumerate().filter(|(_, model)| {
                model.watch().read(|snapshot| snapshot.view() != ViewId::STABLE && !snapshot.has_ended())
            });
            may_hold.entry(content.clone()).or_default().extend(chosen.map(|(at, _)| at));
        }
        for (at, model) in clients.iter().enumerate() {
            for content in model.has.values().filter(|content| content.starts_with('x')) {
                let is_allowed = may_hold.get(content).is_some_and(|clients| clients.contains(&at));
                assert!(is_allowed, "seed {seed}: client {at} was sent {content} in step {step}");
            }
        }
    }
    for _ in 0..2 {
        while (0..CLIENTS).any(|at| {
            let is_busy = clients[at].read() || !clients[at].unanswered.is_empty();
            clients[at].answer(None);
            is_busy
        }) {}
        // A client lacks what it rejected, as long as it sees it.
        let was_rejected = candidate.as_ref().is_some_and(|(.., was_rejected)| *was_rejected);
        for (at, model) in clients.iter().enumerate().filter(|_| !was_rejected) {
            let should_have = model.should_have(at);
            let names = |of: &BTreeMap<String, String>| of.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&model.has), names(&should_have), "seed {seed}: client {at}");
            for (name, content) in &model.has {
                assert!(
                    should_have[name].ends_with(content.as_str()),
                    "seed {seed}: client {at} {name}={content}"
                );
            }
        }
        drop(candidate.take());
    }
    assert!(!cache.has_views(), "seed {seed}: all streams returned");
}

#[test]
fn only_the_chosen_hold_a_candidate_and_all_have_what_they_should_in_the_end() {
    let seeds = std::env::var("SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    (0..seeds).for_each(run);
}
