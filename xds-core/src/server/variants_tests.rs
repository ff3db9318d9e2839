//! Clients that subscribe by name get the variant that their parameters select, in both protocols.

use std::sync::Arc;
use std::time::Duration;

use super::Body;
use super::fixture::{Delta, Sotw, commit, parameters, payload, version};
use crate::Cache;

/// TP2's worked example: four variants instead of nine resources.
const FOUR: &str = "RDS r[env=prod,version=v1]=A r[env=prod,version!=v1]=B r[env!=prod,version=v1]=C \
                    r[env!=prod,version!=v1]=D";

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

fn sotw(cache: &Arc<Cache>, node: &str, type_name: &str, list: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    client.stream.on_node(parameters(node));
    client.ask(type_name, list, "");
    client
}

fn delta(cache: &Arc<Cache>, node: &str, type_name: &str, list: &str) -> Delta {
    let mut client = Delta::new(cache);
    client.stream.on_node(parameters(node));
    client.ask(type_name, list);
    client
}

#[test]
fn t3_t46_each_client_gets_the_variant_of_its_parameters_v4() {
    let cache = cache(FOUR);
    let of = |node: &str| {
        let sent = delta(&cache, node, "RDS", "r").sent();
        assert_eq!(sotw(&cache, node, "RDS", "r").sent(), sent);
        sent
    };
    assert_eq!(of("env=prod version=v1 pod=x1"), "n1 RDS r=A");
    assert_eq!(of("env=prod version=v2 pod=x2"), "n1 RDS r=B");
    assert_eq!(of("env=test version=v1"), "n1 RDS r=C");
    assert_eq!(of(""), "n1 RDS r=D");
}

#[test]
fn t4_without_a_match_the_resource_does_not_exist() {
    let cache = cache("RDS r[env=prod]=A r[env=test]=B");
    assert_eq!(delta(&cache, "env=qa", "RDS", "r").sent(), "n1 RDS -r");
    let mut client = sotw(&cache, "env=qa", "RDS", "r");
    assert_eq!(client.sent(), "");
    commit(&cache, "RDS r[env=qa]=C");
    assert_eq!(client.sent(), "n1 RDS r=C");
}

#[test]
fn t32_a_variant_switch_is_an_ordinary_update_for_who_asks_by_name_v17() {
    let cache = cache("RDS r[env=prod]=A");
    let mut clients =
        [delta(&cache, "env=prod version=v1", "RDS", "r"), delta(&cache, "env=prod", "RDS", "r")];
    for client in &mut clients {
        assert_eq!(client.sent(), "n1 RDS r=A");
        client.ack("RDS", "1");
    }
    commit(&cache, "RDS -r[env=prod] r[env=prod,version=v1]=B r[env=prod,version=v2]=C");
    assert_eq!(clients[0].sent(), "n2 RDS r=B");
    // No variant is for this client any more. The removal is sent after the grace time, since the
    // resource may be in use.
    assert_eq!((clients[1].sent().as_str(), clients[1].waits_until()), ("", Some(5000)));
    clients[1].pass(Duration::from_secs(5));
    assert_eq!(clients[1].sent(), "n2 RDS -r");
}

#[test]
fn v29_a_key_migration_that_leaves_the_payload_sends_nothing() {
    let cache = cache("RDS r[env=prod]=A r[env=test]=B");
    let mut stays = delta(&cache, "env=prod", "RDS", "r");
    let mut moves = sotw(&cache, "env=prod version=v1", "RDS", "r");
    assert_eq!((stays.sent().as_str(), moves.sent().as_str()), ("n1 RDS r=A", "n1 RDS r=A"));
    stays.ack("RDS", "1");
    moves.ack("RDS", "1");
    commit(
        &cache,
        "RDS -r[env=prod] -r[env=test] r[env=prod,!version]=A r[env=prod,version]=A2 r[env=test,(version||!version)]=B",
    );
    assert_eq!((stays.sent().as_str(), stays.waits_until()), ("", None));
    assert_eq!(moves.sent(), "n2 RDS r=A2");
    // The variant stays subscribed under its new constraints.
    commit(&cache, "RDS r[env=prod,!version]=A3");
    assert_eq!(stays.sent(), "n2 RDS r=A3");
}

#[test]
fn t19_t48_a_new_key_on_the_server_first_needs_a_default_for_clients_without_it() {
    let cache = cache("RDS r[env=prod]=A");
    let mut old = delta(&cache, "env=prod", "RDS", "r");
    old.sent();
    old.ack("RDS", "1");
    commit(&cache, "RDS -r[env=prod] r[env=prod,!version]=A r[env=prod,version=v2]=B");
    assert_eq!((old.sent().as_str(), old.waits_until()), ("", None));
    assert_eq!(delta(&cache, "env=prod version=v2", "RDS", "r").sent(), "n1 RDS r=B");
}

#[test]
fn d21_v22_a_client_that_comes_back_is_compared_with_the_variant_it_gets_now() {
    let cache = cache("LDS l[env=prod]=A l[env=test]=B");
    let back = |node: &str| {
        let mut client = Delta::new(&cache);
        client.stream.on_node(parameters(node));
        client.ask_with("LDS", "", "", &[("l", &version("LDS", "l", "A"))]);
        client.sent()
    };
    assert_eq!(back("env=prod"), "");
    assert_eq!(back("env=test"), "n1 LDS l=B");
    assert_eq!(back("env=qa"), "n1 LDS -l");
}

#[test]
fn t28_a_wildcard_selects_of_each_name_the_variant_for_its_client() {
    let cache = cache("CDS a[env=prod]=static a[env!=prod]=other b=static c[env=test]=static");
    let mut client = sotw(&cache, "env=prod", "CDS", "");
    assert_eq!(client.sent(), "n1 CDS a=static b=static");
    client.ack("CDS", "1");
    commit(&cache, "CDS a[env!=prod]=changed");
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS c[env=prod]=static");
    assert_eq!(client.sent(), "n2 CDS a=static b=static c=static");
    let fresh = sotw(&cache, "env=prod more=keys", "CDS", "").sent_version();
    assert_eq!(client.last.version_info, fresh);
}

#[test]
fn clients_with_entries_of_their_own_share_the_classes_of_their_variants() {
    let cache = cache("RDS r[variant=v0]=A0 r[variant=v1]=A1");
    let mut clients: Vec<_> = (0..1000)
        .map(|number| {
            let node = format!("variant=v{} pod=pod-{number} ip=10.0.0.{number}", number % 2);
            let mut client = delta(&cache, &node, "RDS", "r");
            client.sent();
            client.ack("RDS", "1");
            client
        })
        .collect();
    assert_eq!(cache.classes(), 2);
    commit(&cache, "RDS r[variant=v1]=A2");
    let bodies: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            client.sent();
            Arc::as_ptr(&client.last_bodies[0])
        })
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    // The first stream of each class answered its client before there was another stream to share
    // with.
    assert!(bodies.len() <= 4, "{}", bodies.len());
    // A key that matters from now on puts them into different classes, and only those streams that
    // it concerns.
    commit(
        &cache,
        "RDS -r[variant=v1] r[variant=v1,(pod=pod-1||!pod)]=A2 -r[variant=v0] r[variant=v0,(pod||!pod)]=A0",
    );
    assert_eq!(clients[0].sent(), "");
    assert_eq!(clients[1].sent(), "");
    clients[3].pass(Duration::from_secs(1));
    clients[3].ack("RDS", "2");
    clients[3].sent();
    clients[3].pass(Duration::from_secs(10));
    assert_eq!(clients[3].sent(), "n3 RDS -r");
}

#[test]
fn d11_the_last_variant_that_names_a_key_is_removed_from_who_had_it() {
    // Regression: when the streams looked for removals, the key no longer mattered, so it no longer
    // distinguished them.
    let cache = cache("X r[env=prod]=A");
    let (mut had, mut had_not) = (delta(&cache, "env=prod", "X", "r"), delta(&cache, "env=test", "X", "r"));
    assert_eq!([had.sent(), had_not.sent()], ["n1 X r=A", "n1 X -r"]);
    commit(&cache, "X -r[env=prod]");
    had.ack("X", "1");
    assert_eq!([had.sent(), had_not.sent()], ["n2 X -r", ""]);
    // The removal is forgotten when all streams have sent it: the key then no longer divides the
    // clients.
    let many =
        |word: &str| (0..5000).fold("X".to_owned(), |line, at| line + &word.replace('#', &at.to_string()));
    commit(&cache, &many(" t#=1"));
    commit(&cache, &many(" -t#"));
    commit(&cache, "X t=1");
    had.ack("X", "2");
    assert_eq!([had.sent(), had_not.sent()], ["", ""]);
    assert_eq!(cache.classes(), 1);
}

#[test]
fn v29_a_content_that_was_never_sent_is_not_what_the_client_has() {
    // The variant that was removed had the payload of the new one, but only since a commit that the
    // client did not see.
    let cache = cache("X r[env=prod]=A");
    let mut client = delta(&cache, "env=prod", "X", "r");
    assert_eq!(client.sent(), "n1 X r=A");
    commit(&cache, "X r[env=prod]=B");
    commit(&cache, "X -r[env=prod] r[env=prod,!version]=B");
    client.ack("X", "1");
    assert_eq!(client.sent(), "n2 X r=B");
}

#[test]
fn s25_what_came_and_went_does_not_hide_what_the_client_had() {
    // Regression: the variant that was removed last was newer than the client's, so the client kept
    // its own.
    let cache = cache("CDS r[env=prod]=A k=static");
    let mut client = sotw(&cache, "env=prod", "CDS", "*");
    assert_eq!(client.sent(), "n1 CDS k=static r=A");
    commit(&cache, "CDS -r[env=prod] r[env=prod,!version]=B");
    commit(&cache, "CDS -r[env=prod,!version]");
    client.ack("CDS", "1");
    assert_eq!(client.sent(), "");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 CDS k=static");
}

#[test]
fn v29_what_was_answered_while_routes_wait_counts_as_what_the_client_has() {
    // The removal of the route was sent while its type waited for clusters (S33), and it came back
    // with the same payload.
    let cache = cache("CDS c=static; RDS r[env=prod]=A");
    let mut client = delta(&cache, "env=prod", "CDS", "*");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 CDS c=static; n2 RDS r=A");
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS c=2; RDS -r[env=prod]");
    assert_eq!(client.sent(), "n3 CDS c=2");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n4 RDS -r");
    commit(&cache, "RDS r[env=prod,!version]=A");
    client.ack("CDS", "3");
    client.ack("RDS", "4");
    assert_eq!(client.sent(), "n5 RDS r=A");
}

#[test]
fn s25_a_name_that_is_gone_when_it_is_asked_for_beside_the_wildcard_is_not_kept() {
    // The removal was not withheld, because the name was new, and it was not sent either.
    let cache = cache("CDS r=static k=static");
    let mut client = sotw(&cache, "", "CDS", "*");
    assert_eq!(client.sent(), "n1 CDS k=static r=static");
    commit(&cache, "CDS -r");
    client.ask("CDS", "r", "1");
    assert_eq!(client.sent(), "n2 CDS");
}

/// The distinct pieces of memory behind the payloads of some bodies, and their bytes.
fn payload_memory<'a>(bodies: impl Iterator<Item = &'a Arc<Body>>) -> (usize, usize) {
    let large = bodies.flat_map(|body| body.chunks()).filter(|chunk| chunk.len() > 4096);
    let distinct: std::collections::BTreeMap<_, _> =
        large.map(|chunk| (chunk.as_ptr(), chunk.len())).collect();
    (distinct.len(), distinct.values().sum())
}

#[test]
fn a_thousand_clients_of_ten_variants_have_the_memory_of_ten() {
    let content = |variant: usize| format!("{variant}{}", "x".repeat(10_000));
    let put = |variant: usize| format!(" r[variant=v{variant}]={}", content(variant));
    let cache = cache(&format!("RDS{}", (0..10).map(put).collect::<String>()));
    let node = |number: usize| {
        let own: String = (0..20).map(|entry| format!(" own{entry}=x{number}")).collect();
        format!("variant=v{}{own}", number % 10)
    };
    let mut deltas: Vec<_> = (0..500).map(|number| delta(&cache, &node(number), "RDS", "r")).collect();
    let mut sotws: Vec<_> = (500..1000).map(|number| sotw(&cache, &node(number), "RDS", "r")).collect();
    for (number, client) in deltas.iter_mut().enumerate() {
        assert_eq!(client.sent(), format!("n1 RDS r={}", content(number % 10)));
    }
    for (number, client) in sotws.iter_mut().enumerate() {
        assert_eq!(client.sent(), format!("n1 RDS r={}", content(number % 10)));
    }
    let bodies = deltas.iter().flat_map(|client| &client.last_bodies);
    let (payloads, bytes) = payload_memory(bodies.chain(sotws.iter().flat_map(|client| &client.last_bodies)));
    let all: usize = (0..10).map(|variant| payload("RDS", "r", &content(variant)).len()).sum();
    assert_eq!((payloads, bytes, cache.classes()), (10, all, 10));
}

#[test]
fn c4b_what_overlaps_something_new_is_not_held_beside_it() {
    let cache = cache("CDS s[ver=2]=A s[!ver]=B");
    let mut client = sotw(&cache, "", "CDS", "s?ver=2&pod=5");
    assert_eq!(client.sent(), "n1 CDS s[ver=2]=A");
    client.ack("CDS", "1");
    commit(&cache, "CDS -s[ver=2] -s[!ver] s[env=a]=C s[env=b]=D");
    assert_eq!(client.sent(), "", "S33: routes may name it");
    client.ask("CDS", "s?ver=2&pod=5 s?env=a&pod=1", "1");
    assert_eq!(client.sent(), "n2 CDS s[env=a]=C");
}
