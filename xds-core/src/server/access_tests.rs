//! A client is never sent a resource that it may not read, whatever it subscribes to.

use std::sync::Arc;
use std::time::Duration;

use quickcheck::{Arbitrary, Gen, TestResult, quickcheck};

use super::fixture::{Delta, Sotw, commit, type_url};
use crate::access::{Access, NamePatterns};
use crate::cache::Cache;
use crate::parameters::Parameters;

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

fn may(short: &str, names: &[&str]) -> Arc<Access> {
    Arc::new(Access::nothing().with_type(type_url(short), names.iter().collect()))
}

fn delta(cache: &Arc<Cache>, access: &Arc<Access>) -> Delta {
    let mut client = Delta::new(cache);
    client.stream.on_access(Arc::clone(access));
    client
}

fn sotw(cache: &Arc<Cache>, access: &Arc<Access>) -> Sotw {
    let mut client = Sotw::new(cache);
    client.stream.on_access(Arc::clone(access));
    client
}

#[test]
fn g12_a_denied_name_gets_an_error_and_all_others_are_sent() {
    let cache = cache("RDS a=1 b=1");
    let access = may("RDS", &["a", "c*"]);
    let mut client = delta(&cache, &access);
    client.ask("RDS", "a b cc");
    assert_eq!(client.sent(), "n1 RDS a=1 -b -cc !\"b\"(7)", "the client need not wait for a denied name");
    client.ack("RDS", "1");
    let mut client = sotw(&cache, &access);
    client.ask("RDS", "a b", "");
    assert_eq!(client.sent(), "n1 RDS a=1 !\"b\"(7)");
    client.ack("RDS", "1");
    commit(&cache, "RDS a=2 b=2");
    assert_eq!(client.sent(), "n2 RDS a=2", "reported once");
}

#[test]
fn g15_denied_names_are_reported_once_with_their_number() {
    let cache = cache("RDS a=1");
    let access = may("RDS", &["a"]);
    let taken =
        |client: &mut Sotw| client.stream.take_denied_names().map(|names| (names.count, names.reason));
    let denied = |count, name: &str| {
        let routes = type_url("RDS");
        Some((count, format!("this client may not read {} {name:?}", routes.message_name())))
    };
    let mut client = sotw(&cache, &access);
    client.ask("RDS", "a b c", "");
    assert_eq!(taken(&mut client), denied(2, "b"));
    assert_eq!(taken(&mut client), None);
    client.ask("RDS", "a b c d", "");
    assert_eq!(taken(&mut client), denied(1, "d"), "each request repeats all names");
    client.ask("EDS", "a", "");
    assert_eq!(taken(&mut client).unwrap().0, 1, "a type of which it may read nothing");
    let mut client = delta(&cache, &access);
    client.ask("RDS", "a b c");
    let names = client.stream.take_denied_names().unwrap();
    assert_eq!((names.count, names.type_url), (2, type_url("RDS")));
    client.ask("RDS", "a");
    assert_eq!(client.stream.take_denied_names(), None);
}

#[test]
fn d24_aliases_that_may_not_be_read_are_left_out() {
    let cache = cache("CDS a{alias=b|alias=c}=1");
    let all = Arc::new(Access::everything());
    let mut clients = [may("CDS", &["a"]), may("CDS", &["a"]), may("CDS", &["a", "c"]), all]
        .map(|access| delta(&cache, &access));
    for client in &mut clients {
        client.ask("CDS", "*");
    }
    let sent = clients.each_mut().map(Delta::sent);
    let (none, one, both) = ("n1 CDS a=1", "n1 CDS a{alias=c}=1", "n1 CDS a{alias=b|alias=c}=1");
    assert_eq!(sent, [none, none, one, both]);
    // A client does not get a resource by an alias that it may read, if it may not read the name.
    let mut client = delta(&cache, &may("CDS", &["b"]));
    client.ask("CDS", "b");
    assert_eq!(client.sent(), "n1 CDS -b");
}

#[test]
fn a_wildcard_is_of_what_may_be_read() {
    let access = may("CDS", &["team/*"]);
    let cache = cache("CDS team/a=1 other=1");
    let (mut one, mut two) = (delta(&cache, &access), sotw(&cache, &access));
    one.ask("CDS", "*");
    two.ask("CDS", "*", "");
    assert_eq!((one.sent(), two.sent()), ("n1 CDS team/a=1".into(), "n1 CDS team/a=1".into()));
    one.ack("CDS", "1");
    two.ack("CDS", "1");
    commit(&cache, "CDS other=2 new=1");
    assert_eq!((one.sent(), two.sent()), (String::new(), String::new()), "and no stream is woken again");
    commit(&cache, "CDS -other team/b=1");
    assert_eq!((one.sent(), two.sent()), ("n2 CDS team/b=1".into(), "n2 CDS team/a=1 team/b=1".into()));
}

#[test]
fn of_a_denied_type_every_name_is_denied_and_what_the_client_has_it_keeps() {
    let cache = cache("CDS a=1");
    let access = may("RDS", &["*"]);
    let mut client = delta(&cache, &access);
    client.ask("CDS", "a b");
    assert_eq!(client.sent(), "n1 CDS -a -b !\"a\"(7) !\"b\"(7)");
    let mut client = sotw(&cache, &access);
    client.ask("CDS", "a", "");
    assert_eq!(client.sent(), "", "a full state without resources would take what it has (G4)");
}

#[test]
fn a_forced_parameter_cannot_be_claimed() {
    let cache = cache("RDS r[env=prod]=P r[env=test]=T");
    let forced = Access::everything().with_parameters(Parameters::from_iter([("env", "prod")]));
    let access = Arc::new(forced);
    let mut client = delta(&cache, &access);
    client.stream.on_node(Parameters::from_iter([("env", "test")]));
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 RDS r=P");
    let mut client = delta(&cache, &access);
    client.ask("RDS", "r?env=test r?");
    assert_eq!(client.sent(), "n1 RDS !\"r\"(7)", "one error for one name");
    let mut client = delta(&cache, &access);
    client.ask("RDS", "r?env=prod&zone=a r?env=test");
    assert_eq!(client.sent(), "n1 RDS r[env=prod]=P !\"r\"(7)");
}

#[test]
fn x12_of_a_glob_only_what_may_be_read_is_a_member() {
    let prefix = "xdstp://a/envoy.config.route.v3.RouteConfiguration/";
    let cache = cache(&format!("RDS {prefix}t/one=1 {prefix}t/two=1"));
    let mut client = delta(&cache, &may("RDS", &[&format!("{prefix}t/o*")]));
    client.ask("RDS", &format!("{prefix}t/*"));
    assert_eq!(client.sent(), format!("n1 RDS {prefix}t/one=1"));
}

/// Commits of a few names; the client may read some of them.
#[derive(Debug, Clone)]
struct Commits(Vec<Vec<(u8, Option<u8>)>>);

impl Arbitrary for Commits {
    fn arbitrary(g: &mut Gen) -> Self {
        let name = |g: &mut Gen| u8::arbitrary(g) % 6;
        let change = |g: &mut Gen| (name(g), bool::arbitrary(g).then(|| u8::arbitrary(g) % 3));
        let commit = |g: &mut Gen| (0..=u8::arbitrary(g) % 3).map(|_| change(g)).collect();
        Self((0..=u8::arbitrary(g) % 6).map(|_| commit(g)).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().map(Self))
    }
}

quickcheck! {
    /// The oracle: a server that has only resources which the client may read.
    fn who_may_read_a_part_is_told_what_a_server_of_that_part_tells(
        commits: Commits,
        list: u8,
        is_full_state: bool
    ) -> TestResult {
        let short = if is_full_state { "CDS" } else { "EDS" };
        let list = ["*", "a0 a1 b0", "* a0", "b1 a2"][usize::from(list % 4)];
        let (whole, part) = (cache(short), cache(short));
        let access = may(short, &["a*"]);
        let allowed: Vec<_> = list.split(' ').filter(|name| !name.starts_with('b')).collect();
        let mut restricted = delta(&whole, &access);
        let mut free = Delta::new(&part);
        restricted.ask(short, list);
        free.ask(short, &allowed.join(" "));
        let denied = list.split(' ').filter(|name| name.starts_with('b')).count();
        let mut errors_told = 0;
        let (mut restricted_sotw, mut free_sotw) = (sotw(&whole, &access), Sotw::new(&part));
        restricted_sotw.ask(short, list, "");
        free_sotw.ask(short, &allowed.join(" "), "");
        let is_plain = |text: &str| {
            let words = text.split(' ').filter(|word| !word.contains("(7)") && !word.starts_with("-b"));
            let words: Vec<_> = words.skip(1).map(str::to_owned).collect();
            if words.len() < 2 { Vec::new() } else { words }
        };
        for changes in std::iter::once(Vec::new()).chain(commits.0) {
            let word = |(name, content): &(u8, Option<u8>)| {
                let name = format!("{}{}", if *name < 3 { "a" } else { "b" }, name % 3);
                content.map_or_else(|| format!("-{name}"), |content| format!("{name}={content}"))
            };
            let mut words: Vec<_> = changes.iter().map(word).collect();
            words.sort_unstable_by_key(|word| word.trim_start_matches('-')[..2].to_owned());
            words.dedup_by_key(|word| word.trim_start_matches('-')[..2].to_owned());
            commit(&whole, &format!("{short} {}", words.join(" ")));
            let of_part: Vec<_> = words.into_iter().filter(|word| word.contains('a')).collect();
            commit(&part, &format!("{short} {}", of_part.join(" ")));
            // Nobody ACKs the other responses in this test.
            let wait = Duration::from_secs(2);
            [&mut restricted, &mut free].into_iter().for_each(|client| client.pass(wait));
            [&mut restricted_sotw, &mut free_sotw].into_iter().for_each(|client| client.pass(wait));
            let (one, other) = (restricted.sent(), free.sent());
            errors_told += one.matches("(7)").count();
            if is_plain(&one) != is_plain(&other) {
                return TestResult::error(format!("delta: {one:?} but {other:?}"));
            }
            let (one, other) = (restricted_sotw.sent(), free_sotw.sent());
            if is_plain(&one) != is_plain(&other) {
                return TestResult::error(format!("SotW: {one:?} but {other:?}"));
            }
        }
        if errors_told != denied {
            return TestResult::error(format!("{errors_told} errors for {denied} denied names"));
        }
        TestResult::passed()
    }
}

#[test]
fn equal_access_is_one_class_and_other_access_another() {
    let cache = cache("CDS a=1 b=1");
    let all = Arc::new(Access::everything());
    let mut clients: Vec<_> = [&may("CDS", &["a"]), &may("CDS", &["a"]), &all]
        .into_iter()
        .map(|access| delta(&cache, access))
        .chain([Delta::new(&cache)])
        .collect();
    for client in &mut clients {
        client.ask("CDS", "*");
    }
    let sent: Vec<_> = clients.iter_mut().map(Delta::sent).collect();
    assert_eq!(sent, ["n1 CDS a=1", "n1 CDS a=1", "n1 CDS a=1 b=1", "n1 CDS a=1 b=1"]);
    assert_eq!(cache.subscription_counts().classes, 2);
    assert!(NamePatterns::everything().is_everything());
}
