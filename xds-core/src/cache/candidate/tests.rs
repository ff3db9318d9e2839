use std::time::Duration;

use super::*;
use crate::server::fixture::{Delta, Sotw, commit, parameters, transaction, type_url};
use crate::subscription::ExcludedAuthorities;
use crate::{ClientName, Outcome};

pub(super) fn named(watch: &crate::Watch, id: &str) {
    watch.name_client(ClientName { id: id.into(), cluster: "c".into() });
    watch.describe_client(parameters(&format!("id={id}")));
}

/// Clients `a`, `b` and so on, each with an ACKed subscription to these names of a type.
fn deltas<const N: usize>(cache: &Arc<Cache>, type_name: &str, names: &str) -> [Delta; N] {
    std::array::from_fn(|at| {
        let mut client = Delta::new(cache);
        named(&client.watch, &IDS[at..=at]);
        client.ask(type_name, names);
        let sent = client.sent();
        if !sent.is_empty() {
            client.ack(type_name, "1");
            assert_eq!(client.sent(), "");
        }
        client
    })
}

fn sotws<const N: usize>(cache: &Arc<Cache>, type_name: &str, names: &str) -> [Sotw; N] {
    std::array::from_fn(|at| {
        let mut client = Sotw::new(cache);
        named(&client.watch, &IDS[at..=at]);
        client.ask(type_name, names, "");
        client.sent();
        client.ask(type_name, names, "1");
        assert_eq!(client.sent(), "");
        client
    })
}

pub(super) const IDS: &str = "abcdefgh";

fn begin(cache: &Arc<Cache>, text: &str, audience: &str) -> Candidate {
    cache.begin(transaction(text), &audience.parse().unwrap()).unwrap()
}

#[test]
fn the_chosen_are_sent_the_candidate_and_nobody_else_is_sent_a_byte() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1; CDS c=1");
    let mut clients = deltas::<3>(&cache, "LDS", "*");
    let candidate = begin(&cache, "LDS l=2 m=2", "id=b");
    assert_eq!(clients.each_mut().map(Delta::sent), ["", "n2 LDS l=2 m=2", ""]);
    // A client with the same name that connects later tries it too. The others do not.
    let mut late = deltas::<3>(&cache, "CDS", "*");
    late.iter_mut().for_each(|client| _ = client.ask("LDS", "*"));
    assert_eq!(late.each_mut().map(Delta::sent), ["n2 LDS l=1", "n2 LDS l=2 m=2", "n2 LDS l=1"]);
    clients[1].ack("LDS", "2");
    assert_eq!(clients[1].sent(), "");
    assert!(cache.snapshot().get(&type_url("LDS"), &"m".into()).is_none());
    let commit = candidate.promote().unwrap();
    assert_eq!(commit.changed, 2);
    assert_eq!(clients.each_mut().map(Delta::sent), ["n2 LDS l=2 m=2", "", "n2 LDS l=2 m=2"]);
    assert!(!cache.has_views() || clients[1].watch.read(Snapshot::view) == ViewId::STABLE);
}

#[test]
fn after_the_end_the_chosen_are_sent_what_they_had() {
    for audience in ["id=b", "100%"] {
        let cache = Cache::new();
        commit(&cache, "LDS l=1 k=1");
        let mut clients = deltas::<2>(&cache, "LDS", "*");
        let candidate = begin(&cache, "LDS l=2 m=2 -k", audience);
        assert_eq!(clients[1].sent(), "n2 LDS l=2 m=2 -k");
        clients[1].nack("LDS", "2");
        assert_eq!(clients[1].sent(), "n3 LDS -k");
        clients[1].ack("LDS", "3");
        candidate.end();
        assert_eq!(clients[1].sent(), "n4 LDS k=1 l=1 -m");
        // A stream that slept meanwhile may be sent the removal of a resource that came and went.
        let slept = if audience == "100%" { "n2 LDS -m" } else { "" };
        assert_eq!(clients[0].sent(), slept, "{audience}");
        clients[1].ack("LDS", "4");
        assert_eq!(clients[1].sent(), "");
        commit(&cache, "LDS l=3");
        clients[0].ack("LDS", "2");
        assert_eq!(clients.each_mut().map(|client| client.sent().split_off(3)), ["LDS l=3"; 2]);
        assert!(!cache.has_views());
    }
}

#[test]
fn a_commit_beside_a_candidate_reaches_all_clients() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let mut clients = deltas::<2>(&cache, "LDS", "*");
    let candidate = begin(&cache, "LDS l=2", "id=b");
    assert_eq!(clients[1].sent(), "n2 LDS l=2");
    clients[1].ack("LDS", "2");
    commit(&cache, "LDS other=1");
    assert_eq!(clients.each_mut().map(Delta::sent), ["n2 LDS other=1", "n3 LDS other=1"]);
    clients[0].ack("LDS", "2");
    clients[1].ack("LDS", "3");
    // The client of a later step has the newest stable state, and lacks only the candidate.
    let mut candidate = candidate;
    candidate.widen(&Audience::Percent(100)).unwrap();
    assert_eq!(clients.each_mut().map(Delta::sent), ["n3 LDS l=2", ""]);
    clients[0].ack("LDS", "3");
    candidate.end();
    assert_eq!(clients.each_mut().map(Delta::sent), ["n4 LDS l=1", "n4 LDS l=1"]);
}

#[test]
fn a_commit_to_what_a_candidate_changes_ends_it() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let mut clients = deltas::<2>(&cache, "LDS", "*");
    let candidate = begin(&cache, "LDS l=2 m=2", "id=b");
    assert_eq!(clients[1].sent(), "n2 LDS l=2 m=2");
    clients[1].ack("LDS", "2");
    commit(&cache, "LDS l=3");
    assert_eq!(clients.each_mut().map(Delta::sent), ["n2 LDS l=3", "n3 LDS l=3 -m"]);
    assert!(matches!(candidate.refusal(), Some(CommitError::Superseded { .. })));
    assert!(candidate.promote().is_err());
    assert!(!cache.has_views());
}

/// A stream may read only the state of its view: SotW, where the version is that of the content.
#[test]
fn t38_the_version_follows_the_content_of_the_view() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1");
    let mut clients = sotws::<2>(&cache, "CDS", "*");
    let stable = clients[0].last.version_info.clone();
    let candidate = begin(&cache, "CDS b=2", "id=b");
    assert_eq!(clients.each_mut().map(Sotw::sent), ["", "n2 CDS a=1 b=2"]);
    let tried = clients[1].last.version_info.clone();
    assert_ne!(tried, stable);
    clients[1].ack("CDS", "2");
    candidate.end();
    assert_eq!(clients.each_mut().map(Sotw::sent), ["", "n3 CDS a=1 b=1"]);
    assert_eq!(clients[1].last.version_info, stable);
    clients[1].ack("CDS", "3");
    commit(&cache, "CDS b=2");
    assert_eq!(clients.each_mut().map(Sotw::sent), ["n2 CDS a=1 b=2", "n4 CDS a=1 b=2"]);
    assert!(clients.iter().all(|client| client.last.version_info == tried));
}

#[test]
fn the_clients_of_a_step_share_one_body() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1");
    let mut clients = deltas::<3>(&cache, "CDS", "*");
    let _candidate = begin(&cache, "CDS a=2", "100%");
    assert!(clients.iter_mut().all(|client| client.sent() == "n2 CDS a=2"));
    let [one, two, three] = clients.each_ref().map(|client| client.last_bodies.last().unwrap());
    assert!(Arc::ptr_eq(one, two) && Arc::ptr_eq(two, three));
}

#[test]
fn s33_a_candidate_is_made_before_it_is_broken() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; LDS l=1>tcp:c");
    let mut client = Delta::new(&cache);
    named(&client.watch, "a");
    for type_name in ["CDS", "LDS"] {
        client.ask(type_name, "*");
    }
    assert_eq!(client.sent(), "n1 CDS c=1; n2 LDS l=1>tcp:c");
    client.ack("CDS", "1");
    client.ack("LDS", "2");
    let candidate = begin(&cache, "CDS d=1 -c; LDS l=2>tcp:d", "1 client");
    assert_eq!(client.sent(), "n3 CDS d=1");
    client.ack("CDS", "3");
    assert_eq!(client.sent(), "n4 LDS l=2>tcp:d");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "n5 CDS -c");
    client.ack("CDS", "5");
    candidate.end();
    assert_eq!(client.sent(), "n6 CDS c=1");
    client.ack("CDS", "6");
    assert_eq!(client.sent(), "n7 LDS l=1>tcp:c");
    client.ack("LDS", "7");
    assert_eq!(client.sent(), "n8 CDS -d");
}

#[test]
fn clients_are_chosen_among_those_that_the_change_affects() {
    let cache = Cache::new();
    commit(&cache, "EDS x=1 y=1");
    let mut of_x = deltas::<2>(&cache, "EDS", "x");
    let mut of_y: [Delta; 2] = std::array::from_fn(|at| {
        let mut client = Delta::new(&cache);
        named(&client.watch, &format!("y{at}"));
        client.ask("EDS", "y");
        client.sent();
        client.ack("EDS", "1");
        client
    });
    let candidate = begin(&cache, "EDS y=2", "1 client");
    assert!(of_x.iter_mut().all(|client| client.sent().is_empty()));
    let mut sent = of_y.each_mut().map(Delta::sent);
    sent.sort();
    assert_eq!(sent, ["", "n2 EDS y=2"]);
    assert_eq!(candidate.delivery().results().len(), 1);
    // Whoever reconnects under the chosen name is the client that is counted.
    let chosen = candidate.delivery().results()[0].client.clone();
    let at = usize::from(chosen.id.ends_with('1'));
    of_y[at] = Delta::new(&cache);
    named(&of_y[at].watch, &chosen.id);
    of_y[at].ask("EDS", "y");
    assert_eq!(of_y[at].sent(), "n1 EDS y=2");
    of_y[at].nack("EDS", "1");
    of_y[at].sent();
    let [result] = &candidate.delivery().results()[..] else { panic!("one client") };
    assert!(matches!(result.outcome, Outcome::Nacked { .. }), "{result:?}");
}

#[test]
fn the_first_variant_of_a_key_is_tried_by_clients_that_it_is_for() {
    let cache = Cache::new();
    commit(&cache, "EDS x=1");
    let clients = deltas::<3>(&cache, "EDS", "z");
    let candidate = begin(&cache, "EDS z[id=b]=1", "1 client");
    assert_eq!(candidate.delivery().results()[0].client.id, "b".into());
    drop(clients);
    let _clients = deltas::<3>(&cache, "EDS", "z");
    assert_eq!(candidate.delivery().results().len(), 1);
}

/// The end of a candidate and the next one come right after each other, when a rollout is replaced.
#[test]
fn a_client_goes_from_one_candidate_to_the_next() {
    for audience in ["id=b", "100%"] {
        let cache = Cache::new();
        commit(&cache, "LDS l=1");
        let mut clients = deltas::<2>(&cache, "LDS", "*");
        let candidate = begin(&cache, "LDS l=2", audience);
        let tried = clients.each_mut().map(Delta::sent);
        clients.iter_mut().for_each(|client| _ = client.ack("LDS", "2"));
        candidate.end();
        let candidate = begin(&cache, "LDS l=3", audience);
        commit(&cache, "LDS other=1");
        for (client, tried) in clients.iter_mut().zip(&tried).filter(|(_, tried)| !tried.is_empty()) {
            assert_eq!((client.sent(), tried.as_str()), ("n3 LDS l=1 other=1".into(), "n2 LDS l=2"));
            client.ack("LDS", "3");
            assert_eq!(client.sent(), "n4 LDS l=3 other=1", "{audience}");
            client.ack("LDS", "4");
            assert_eq!(client.sent(), "");
        }
        let acked = candidate.delivery().results();
        assert_eq!(acked.len(), tried.iter().filter(|tried| !tried.is_empty()).count(), "{audience}");
        assert!(acked.iter().all(|result| result.outcome == Outcome::Acked));
    }
}

/// A source may put all that it has, as a folder that was read again.
#[test]
fn what_changes_nothing_in_the_stable_state_changes_nothing_in_a_view() {
    let cache = Cache::new();
    commit(&cache, "LDS a=1 b=1");
    let mut clients = deltas::<2>(&cache, "LDS", "*");
    let candidate = begin(&cache, "LDS a=2 c=1", "id=b");
    assert_eq!(clients[1].sent(), "n2 LDS a=2 c=1");
    clients[1].ack("LDS", "2");
    commit(&cache, "LDS a=1 b=2 -c");
    assert_eq!(clients.each_mut().map(Delta::sent), ["n2 LDS b=2", "n3 LDS b=2"]);
    assert_eq!(candidate.refusal(), None);
}

#[test]
fn a_promotion_does_not_undo_a_commit_to_what_the_candidate_did_not_change() {
    let cache = Cache::new();
    commit(&cache, "LDS a=1 b=1");
    let mut clients = deltas::<2>(&cache, "LDS", "*");
    let mut candidate = begin(&cache, "LDS a=2 b=1", "id=b");
    commit(&cache, "LDS b=2");
    candidate.widen(&Audience::Percent(100)).unwrap();
    assert_eq!(clients.each_mut().map(Delta::sent), ["n2 LDS a=2 b=2", "n2 LDS a=2 b=2"]);
    candidate.promote().unwrap();
    clients.iter_mut().for_each(|client| _ = client.ack("LDS", "2"));
    assert_eq!(clients.each_mut().map(Delta::sent), ["", ""]);
}

#[test]
fn a_stream_that_ends_before_it_could_answer_tries_nothing() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let poll = |cache: &Arc<Cache>| {
        let mut poll = Sotw::new(cache);
        poll.watch.keep_stable();
        poll.ask("LDS", "*", "");
        poll
    };
    let mut before = poll(&cache);
    let candidate = begin(&cache, "LDS l=2", "100%");
    let mut after = poll(&cache);
    assert_eq!([before.sent(), after.sent()], ["n1 LDS l=1", "n1 LDS l=1"]);
    let outcomes = || {
        let results = candidate.delivery().results();
        results.into_iter().map(|of| of.outcome).collect::<Vec<_>>()
    };
    let unnamed = || {
        let mut unnamed = Sotw::new(&cache);
        unnamed.ask("LDS", "*", "");
        assert_eq!(unnamed.sent(), "n1 LDS l=2");
        unnamed
    };
    // A stream without a node id that ACKed counts as long as it is open. Another one may have crashed.
    let mut acked = unnamed();
    acked.ack("LDS", "1");
    assert_eq!(acked.sent(), "");
    assert_eq!(outcomes(), [Outcome::Acked]);
    drop(acked);
    assert_eq!(outcomes(), []);
    drop(unnamed());
    assert_eq!(outcomes(), [Outcome::Disconnected]);
}

#[test]
fn clients_with_ever_new_node_ids_do_not_fill_the_memory() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let candidate = begin(&cache, "LDS l=2", "100%");
    let crash = |id: &str| {
        let mut client = Delta::new(&cache);
        named(&client.watch, id);
        client.ask("LDS", "*");
    };
    let affected = || candidate.delivery().results().len();
    // One client counts once, however often it comes back.
    (0..10_050).for_each(|_| crash("again"));
    assert_eq!(affected(), 1);
    (0..10_050).for_each(|at| crash(&format!("n{at}")));
    assert_eq!(affected(), 10_000);
}

/// A client keeps a cluster as long as it subscribes to a route that named it, which may be for ever.
#[test]
fn s33_a_withheld_removal_needs_no_ack_of_those_that_try_it() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; RDS r=1>c");
    let [mut client] = deltas::<1>(&cache, "CDS", "*");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n2 RDS r=1>c");
    client.ack("RDS", "2");
    let candidate = begin(&cache, "CDS -c; RDS -r", "100%");
    assert_eq!(client.sent(), "", "without a listener on the stream the route waits for the grace time");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 RDS -r");
    let outcome = |delivery: Delivery| delivery.results()[0].outcome.clone();
    assert_eq!(outcome(candidate.delivery()), Outcome::Pending);
    client.ack("RDS", "3");
    assert_eq!(client.sent(), "");
    assert_eq!(outcome(candidate.delivery()), Outcome::Acked);
}

/// A client that would only lose what it may still use has tried nothing.
#[test]
fn s33_a_client_that_is_sent_nothing_is_none_of_those_that_ack() {
    let cache = Cache::new();
    commit(&cache, "CDS c=1; RDS r=1>c");
    let [mut client] = deltas::<1>(&cache, "CDS", "*");
    client.ask("RDS", "r");
    client.sent();
    client.ack("RDS", "2");
    let candidate = begin(&cache, "CDS -c", "100%");
    assert_eq!(candidate.delivery().results().len(), 1, "it is not known yet that nothing is sent");
    assert_eq!(client.sent(), "");
    assert_eq!(candidate.delivery().results(), []);
}

#[test]
fn st63_a_nack_is_about_the_content_that_the_stream_sees() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let [mut client] = deltas::<1>(&cache, "LDS", "*");
    let _candidate = begin(&cache, "LDS l=2", "1 client");
    assert_eq!(client.sent(), "n2 LDS l=2");
    client.nack("LDS", "2");
    let Delta { stream, watch, .. } = &mut client;
    let rejected = watch.read(|snapshot| stream.rejected(&type_url("LDS"), snapshot));
    let candidate = watch.snapshot();
    let variant = candidate.get(&type_url("LDS"), &"l".into()).unwrap().iter().next().unwrap();
    assert!(matches!(&rejected.variants[..], [only] if Arc::ptr_eq(only, variant)), "{rejected:?}");
}

/// A client that does not read would keep the view of each candidate for ever.
#[test]
fn a_stream_whose_view_is_gone_is_ended() {
    let cache = Cache::new();
    commit(&cache, "LDS l=1");
    let mut silent: Vec<_> = (0..20)
        .map(|at| {
            let mut client = Delta::new(&cache);
            named(&client.watch, &format!("c{at}"));
            client.ask("LDS", "*");
            client.sent();
            client.ack("LDS", "1");
            client.sent();
            begin(&cache, "LDS l=2", &format!("id=c{at}")).end();
            client
        })
        .collect();
    let mut ended = 0;
    for Delta { stream, watch, now, .. } in &mut silent {
        let next = watch.read(|snapshot| stream.next(*now, snapshot));
        ended += usize::from(matches!(next, crate::server::Next::Close(_)));
    }
    assert_eq!(ended, 4);
}

/// Regression: a stream that had not run since a constraint key came into use was chosen, but its answer did not
/// count: what it rejected was committed for all (seed 12993).
#[test]
fn c2_t45_the_answer_of_a_stream_counts_that_has_not_seen_the_newest_keys() {
    let cache = Cache::on_demand();
    let [mut client] = deltas::<1>(&cache, "X", "c?env=a d?env=b");
    commit(&cache, "X d[env=b]=1");
    let candidate = begin(&cache, "X c[env=a]=1", "1 client");
    assert_eq!(candidate.delivery().results().len(), 1);
    assert_eq!(client.sent(), "n1 X c[env=a]=1 d[env=b]=1");
    client.nack("X", "1");
    assert_eq!(client.sent(), "n2 X c[env=a]=1");
    assert_eq!(candidate.delivery().results()[0].outcome, Outcome::Splitting);
    client.nack("X", "2");
    assert_eq!(client.sent(), "n3 X d[env=b]=1");
    client.ack("X", "3");
    assert_eq!(client.sent(), "");
    let names = [ResourceName::new("c")].into();
    let nacked = Outcome::Nacked { type_url: type_url("X"), detail: "bad".into(), names };
    assert_eq!(candidate.delivery().results()[0].outcome, nacked);
}

#[test]
fn t45_d24_c16_a_client_tries_what_it_selects_by_an_alias_and_not_what_a_wildcard_excludes() {
    let excluded = ExcludedAuthorities::new(["two".to_owned()].into());
    let cache = Cache::on_demand_in_groups(excluded);
    let [mut by_alias] = deltas::<1>(&cache, "X", "z");
    commit(&cache, "X c{alias=z}=1");
    by_alias.sent();
    by_alias.ack("X", "1");
    let candidate = begin(&cache, "X c{alias=z}=2", "1 client");
    assert_eq!(candidate.delivery().results().len(), 1);
    assert_eq!(by_alias.sent(), "n2 X c{alias=z}=2");
    candidate.end();
    commit(&cache, "X d[env=a]{alias=y}=1 d[env=b]=1");
    let [_of_another_variant] = deltas::<1>(&cache, "X", "y?env=b");
    assert!(begin(&cache, "X d[env=b]=2", "1 client").delivery().is_empty(), "that variant has no alias");
    drop(by_alias);
    let two = "xdstp://two/X/c";
    let [_all] = deltas::<1>(&cache, "X", "*");
    assert!(begin(&cache, &format!("X {two}=1"), "1 client").delivery().is_empty());
    let [_one] = deltas::<1>(&cache, "X", two);
    assert_eq!(begin(&cache, &format!("X {two}=1"), "1 client").delivery().results().len(), 1);
}

/// Otherwise it would see the view of a candidate that ended for as long as a source does not answer, and no other
/// candidate; and there may be 16 views.
#[test]
fn a_client_that_waits_for_a_source_leaves_a_candidate_that_ended() {
    let cache = Cache::on_demand();
    let mut client = Sotw::new(&cache);
    named(&client.watch, "a");
    client.ask("EDS", "e", "");
    client.ask("LDS", "l unknown", "");
    let candidate = begin(&cache, "EDS e=1", "1 client");
    assert_eq!(client.sent(), "n1 EDS e=1");
    client.ask("EDS", "e", "1");
    candidate.promote().unwrap();
    assert_eq!(client.sent(), "");
    let candidate = begin(&cache, "EDS e=2", "1 client");
    assert_eq!(client.sent(), "n2 EDS e=2", "it tries the next one");
    drop(candidate);
    commit(&cache, "LDS l=1 unknown=1");
    client.ask("EDS", "e", "2");
    assert_eq!(client.sent(), "n3 EDS e=1");
    client.ask("EDS", "e", "3");
    assert_eq!(client.sent(), "n4 LDS l=1 unknown=1");
}
