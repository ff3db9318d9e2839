use std::time::Duration;

use xds_core::{Cache, Resource, ResourceName, Transaction};

use super::*;

const TYPE: &str = "type.googleapis.com/acme.Thing";

fn put(cache: &Cache, name: &str, content: &str) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(TYPE, name, content.to_owned()).unwrap());
    cache.commit(transaction).unwrap();
}

fn variants(cache: &Cache, names: &[&str]) -> Vec<Arc<Variant>> {
    let snapshot = cache.snapshot();
    let of_name = |name: &&str| {
        let set = snapshot.get(&TYPE.into(), &ResourceName::new(*name)).unwrap();
        set.get(&xds_core::Constraints::NONE).unwrap().clone()
    };
    names.iter().map(of_name).collect()
}

/// A log with a time of its own.
struct Case {
    nacks: NackLog,
    start: Instant,
}

impl Case {
    fn new() -> Self {
        Self { nacks: NackLog::default(), start: Instant::now() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn nack(&self, seconds: u64, node: &str, variants: &[Arc<Variant>], detail: &str) -> (Key, LogAction) {
        let client = ClientName { id: node.into(), cluster: "".into() };
        let type_url = TYPE.into();
        let found = Found::InResponse;
        let nack = Nack { client: &client, identity: "", type_url: &type_url, variants, detail, found };
        self.nacks.note(nack, self.at(seconds))
    }

    fn sums(&self, key: &Key, seconds: u64) -> Option<(usize, u64)> {
        self.nacks.take(key, self.at(seconds))?.sums
    }
}

#[test]
fn g15_the_nacks_of_all_clients_with_the_same_message_are_one_line_and_later_a_sum() {
    let (case, cache) = (Case::new(), Cache::new());
    put(&cache, "good", "");
    put(&cache, "bad", "1");
    let all = variants(&cache, &["good", "bad"]);
    let (key, first) = case.nack(0, "node 0", &all, "bad is bad");
    assert_eq!(first, LogAction::Log);
    for node in 1..400 {
        // Some clients subscribe to less.
        let some = if node % 2 == 0 { &all } else { &all[1..] };
        let (same, action) = case.nack(1, &format!("node {node}"), some, "bad is bad");
        assert_eq!(same, key);
        assert_eq!(action, if node == 1 { LogAction::LogAt(case.at(10)) } else { LogAction::Nothing });
    }
    let version = all[1].version();
    let line = case.nacks.take(&key, case.at(10)).unwrap();
    assert_eq!((&*line.client.id, line.sums), ("node 0", Some((400, 399))));
    assert_eq!(
        line.resources,
        format!("bad version {version}"),
        "the others rejected it without this one, too"
    );
    assert_eq!(case.sums(&key, 40), None, "nothing since");
}

/// The first client finds what is bad in parts of the response; later ones get it alone.
#[test]
fn s6c_g15_what_is_found_has_a_line_of_its_own_and_is_summed_up() {
    let (case, cache) = (Case::new(), Cache::new());
    put(&cache, "good", "");
    put(&cache, "bad", "1");
    let bad = variants(&cache, &["bad"]);
    let (response, _) = case.nack(0, "a", &variants(&cache, &["good", "bad"]), "no");
    let found = |seconds, node: &str| {
        let client = ClientName { id: node.into(), cluster: "".into() };
        let (type_url, found) = (TYPE.into(), Found::Alone);
        let nack =
            Nack { client: &client, identity: "", type_url: &type_url, variants: &bad, detail: "no", found };
        case.nacks.note(nack, case.at(seconds))
    };
    let (key, first) = found(0, "a");
    assert!(key != response && first == LogAction::Log);
    assert_eq!(found(1, "b").1, LogAction::LogAt(case.at(10)), "a client that was at work, too");
    assert_eq!(case.nack(2, "c", &bad, "no"), (response, LogAction::LogAt(case.at(10))));
}

#[test]
fn g15_a_rejection_of_newer_content_is_logged_soon() {
    let (case, cache) = (Case::new(), Cache::new());
    put(&cache, "bad", "1");
    let old = variants(&cache, &["bad"]);
    let (key, _) = case.nack(0, "a", &old, "no");
    case.nack(1, "b", &old, "no");
    assert_eq!(case.sums(&key, 10), Some((2, 1)));
    assert_eq!(case.nack(11, "a", &old, "no").1, LogAction::LogAt(case.at(30)));
    put(&cache, "bad", "2");
    let new = variants(&cache, &["bad"]);
    assert_eq!(case.nack(12, "a", &new, "no").1, LogAction::LogAt(case.at(20)));
    let line = case.nacks.take(&key, case.at(20)).unwrap();
    assert_eq!(line.sums, Some((1, 2)), "one client rejects the newer content");
    assert!(line.resources.contains(&new[0].version().to_string()));
}

#[test]
fn g15_messages_that_differ_for_each_client_are_summed_up_by_resources() {
    let (case, cache) = (Case::new(), Cache::new());
    put(&cache, "bad", "1");
    put(&cache, "other", "1");
    let (bad, other) = (variants(&cache, &["bad"]), variants(&cache, &["other"]));
    let said = |number: usize| format!("no, says 10.0.0.{number}");
    let logged =
        (0..400).filter(|number| case.nack(0, &number.to_string(), &bad, &said(*number)).1 == LogAction::Log);
    assert_eq!(logged.count(), DETAILS_LIMIT + 1);
    let (key, _) = case.nack(0, "again", &bad, "no, again");
    assert_eq!(case.sums(&key, 10), Some((400 - DETAILS_LIMIT + 1, 400 - DETAILS_LIMIT as u64)));
    assert_eq!(case.nack(0, "a", &other, "no").1, LogAction::Log, "another resource is another line");
}

#[test]
fn g15_memory_for_nacks_is_bounded_and_ended_ones_make_room() {
    let (case, cache) = (Case::new(), Cache::new());
    let names: Vec<_> = (0..=LIMIT).map(|number| format!("r{number:03}")).collect();
    names.iter().for_each(|name| put(&cache, name, "1"));
    for name in &names {
        let variants = variants(&cache, &[name]);
        let (key, action) = case.nack(0, name, &variants, &format!("{name} is bad"));
        assert_eq!((key == Key::Others, action), (*name == names[LIMIT], LogAction::Log));
    }
    assert_eq!(case.nack(1, "x", &[], "unknown").0, Key::Others);
    let (key, action) = case.nack(60, "x", &[], "unknown");
    assert_eq!((key != Key::Others, action), (true, LogAction::Log));
    // The sum of the others waits for its line.
    assert_eq!(case.nacks.sums().by_key.len(), 2);
    for number in 0..CLIENTS_LIMIT + 10 {
        case.nack(61, &number.to_string(), &[], "unknown");
    }
    assert_eq!(case.sums(&key, 70), Some((CLIENTS_LIMIT - 2, CLIENTS_LIMIT as u64 + 10)));
}

#[test]
fn g15_a_line_names_few_resources_and_cuts_long_names() {
    let cache = Cache::new();
    let long = "x".repeat(5000);
    for name in ["a", "b", "c", "d", &long] {
        put(&cache, name, "1");
    }
    let line = resources(&variants(&cache, &["a", "b", "c", "d", &long]), Found::InResponse);
    assert!(line.starts_with("xxx") && line.ends_with(" and 2 more in the same response"), "{line}");
    assert!(line.contains(", d version ") && line.contains(", c version ") && line.len() < 500, "{line}");
}
