use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use xds_proto::type_url::VIRTUAL_HOST;

use crate::access::{Access, NamePatterns};
use crate::server::fixture::{Delta, commit, is_woken, parameters, transaction, type_url, version};
use crate::server::{ClientGroup, DeltaRequest, Next, StreamConfig, StreamError};
use crate::subscription::Requested;
use crate::{Cache, ClientName};

/// A listener of each kind, and a host in each name space.
const UNASKED: &str = "LDS l=1>rc; RDS rc=1>vhds:ads rc2=1>vhds:ads; VHDS rc/a=1 rc/b=1 rc2/a=1 other/a=1";
const ON_DEMAND: &str = "LDS l=1>demand:rc; RDS rc=1>vhds:ads; VHDS rc/a=1 rc/b=1";

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// An Envoy that has its listeners and the route configuration `rc`, and now asks for virtual hosts.
fn envoy(cache: &Arc<Cache>) -> Delta {
    envoy_with(Delta::new(cache), "rc", "", &[])
}

fn envoy_with(mut client: Delta, routes: &str, hosts: &str, brought: &[(&str, &str)]) -> Delta {
    for (type_name, list) in [("LDS", ""), ("RDS", routes)] {
        client.ask(type_name, list);
        sent(&mut client);
        ack(&mut client, type_name);
    }
    client.ask_with("VHDS", hosts, "", brought);
    client
}

/// ACKs the last response.
fn ack(client: &mut Delta, type_name: &str) {
    let nonce = client.last.nonce.clone();
    client.ack(type_name, &nonce);
}

/// What the client is sent, without what the contents name.
fn sent(client: &mut Delta) -> String {
    let sent = client.sent();
    let words = sent.split(' ').map(|word| {
        let (content, _) = word.split_once('>').unwrap_or((word, ""));
        if word.ends_with(';') && content != word { format!("{content};") } else { content.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The same after it ACKed the answer.
fn settled(cache: &Arc<Cache>) -> Delta {
    let mut client = envoy(cache);
    sent(&mut client);
    client.ack("VHDS", "3");
    client
}

#[test]
fn d33_hosts_are_sent_unasked_to_a_client_without_the_filter() {
    let cache = cache(UNASKED);
    let mut client = envoy(&cache);
    assert_eq!(sent(&mut client), "n3 VHDS rc/a=1 rc/b=1 -rc/");
    client.ack("VHDS", "3");
    commit(&cache, "VHDS rc/a=2 rc/c=1 -rc/b rc2/a=2 other/a=2");
    assert!(is_woken(&client.watch));
    assert_eq!(sent(&mut client), "n4 VHDS rc/a=2 rc/c=1 -rc/b", "as if the client had subscribed to them");
    commit(&cache, "VHDS -other/a -rc2/a");
    assert_eq!(sent(&mut client), "");
}

#[test]
fn d33_on_demand_only_what_is_asked_for_is_sent() {
    let cache = cache(ON_DEMAND);
    let mut client = envoy(&cache);
    assert_eq!(sent(&mut client), "n3 VHDS -rc/");
    client.ack("VHDS", "3");
    client.ask("VHDS", "rc/a");
    assert_eq!(sent(&mut client), "n4 VHDS rc/a=1");
    client.ack("VHDS", "4");
    commit(&cache, "VHDS rc/a=2 rc/b=2");
    assert_eq!(sent(&mut client), "n5 VHDS rc/a=2");
}

#[test]
fn d33_each_later_route_configuration_gets_its_answer_once() {
    let cache = cache(UNASKED);
    let mut client = settled(&cache);
    client.ask("RDS", "rc2");
    assert_eq!(sent(&mut client), "n4 RDS rc2=1; n5 VHDS rc2/a=1 -rc2/", "rc is not sent again (D12)");
    client.ack("RDS", "4");
    client.ack("VHDS", "5");
    commit(&cache, "RDS rc=2>vhds:ads");
    assert_eq!(sent(&mut client), "n6 RDS rc=2");
    client.ack("RDS", "6");
    commit(&cache, "RDS rc=3>vhds:other");
    assert_eq!(sent(&mut client), "n7 RDS rc=3; n8 VHDS -rc/", "Envoy subscribes anew");
}

#[test]
fn d33_a_route_configuration_with_its_hosts_inside_needs_no_answer() {
    let cache = cache("LDS l=1>rc; RDS rc=1>c; VHDS rc/a=1");
    let mut client = envoy(&cache);
    assert_eq!(sent(&mut client), "n3 VHDS", "an empty response (S21)");
    client.ack("VHDS", "3");
    commit(&cache, "RDS rc=2>vhds:ads");
    assert_eq!(sent(&mut client), "n4 RDS rc=2; n5 VHDS rc/a=1 -rc/");
    client.ack("RDS", "4");
    client.ack("VHDS", "5");
    commit(&cache, "RDS rc=3>c; VHDS rc/a=2");
    assert_eq!(sent(&mut client), "n6 RDS rc=3");
}

#[test]
fn d33_a_client_that_unsubscribes_and_subscribes_again_has_no_hosts() {
    let cache = cache(UNASKED);
    let mut client = settled(&cache);
    client.ask("RDS", "-rc");
    assert_eq!(sent(&mut client), "");
    commit(&cache, "VHDS rc/a=2");
    assert_eq!(sent(&mut client), "", "the route configuration is gone");
    client.ask("RDS", "rc");
    assert_eq!(sent(&mut client), "n4 RDS rc=1; n5 VHDS rc/a=2 rc/b=1 -rc/");
    client.ack("VHDS", "5");
    // Without a response in between.
    client.ask("RDS", "-rc");
    client.ask("RDS", "rc");
    assert_eq!(sent(&mut client), "n6 RDS rc=1; n7 VHDS rc/a=2 rc/b=1 -rc/");
}

#[test]
fn d29_hosts_of_a_removed_route_configuration_are_kept_up_to_date() {
    let cache = cache(UNASKED);
    let mut client = settled(&cache);
    commit(&cache, "RDS -rc; VHDS -rc/b");
    assert_eq!(sent(&mut client), "n4 VHDS -rc/b", "Envoy keeps both while its listener names them");
}

#[test]
fn d33_unknown_is_all() {
    // The listener names other routes; a scope names them; the listener comes from elsewhere.
    for (resources, scopes) in [
        ("LDS l=1>demand:rc2; RDS rc=1>vhds:ads; VHDS rc/a=1", false),
        ("LDS l=1>demand:rc l2=1>rc; RDS rc=1>vhds:ads; VHDS rc/a=1", false),
        ("LDS l=1>demand:rc; RDS rc=1>vhds:ads; SRDS s=1>rc; VHDS rc/a=1", true),
    ] {
        let cache = cache(resources);
        let mut client = Delta::new(&cache);
        if scopes {
            client.ask("SRDS", "");
            sent(&mut client);
        }
        let mut client = envoy_with(client, "rc", "", &[]);
        assert!(sent(&mut client).ends_with("VHDS rc/a=1 -rc/"), "{resources}");
    }
    let cache = cache(ON_DEMAND);
    let mut client = Delta::new(&cache);
    client.ask("RDS", "rc");
    sent(&mut client);
    client.ask("VHDS", "");
    assert_eq!(sent(&mut client), "n2 VHDS rc/a=1 rc/b=1 -rc/", "no listeners");
    let mut client = Delta::new(&cache);
    client.ask("VHDS", "");
    assert_eq!(sent(&mut client), "n1 VHDS rc/a=1 rc/b=1 -rc/", "no route configurations");
    client.ack("VHDS", "1");
    commit(&cache, "VHDS x/a=1");
    assert_eq!(sent(&mut client), "n2 VHDS x/a=1");
    let mut client = Delta::new(&cache);
    client.ask("VHDS", "rc/a");
    assert_eq!(sent(&mut client), "n1 VHDS rc/a=1", "its names show that it has the filter");
}

#[test]
fn d33_the_hosts_follow_when_a_listener_loses_the_filter_and_stay_when_it_gets_it() {
    let cache = cache(ON_DEMAND);
    let mut client = settled(&cache);
    commit(&cache, "LDS l=2>rc");
    assert_eq!(sent(&mut client), "n4 LDS l=2; n5 VHDS rc/a=1 rc/b=1");
    client.ack("LDS", "4");
    client.ack("VHDS", "5");
    commit(&cache, "LDS l=3>demand:rc");
    assert_eq!(sent(&mut client), "n6 LDS l=3");
    commit(&cache, "VHDS rc/a=2 -rc/b");
    assert_eq!(sent(&mut client), "n7 VHDS rc/a=2 -rc/b", "what was sent is kept up to date");
}

#[test]
fn d21_of_the_hosts_that_a_client_brought_only_the_difference_is_sent() {
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:ads; VHDS rc/a=1 rc/b=2 rc/c=1");
    let (a, b) = (version("VHDS", "rc/a", "1"), version("VHDS", "rc/b", "1"));
    let brought = [("rc/a", a.as_str()), ("rc/b", &b), ("rc/gone", "x"), ("old/a", "x")];
    let mut client = envoy_with(Delta::new(&cache), "rc", "", &brought);
    assert_eq!(sent(&mut client), "n3 VHDS rc/b=2 rc/c=1 -rc/ -rc/gone");
    // It also subscribes by name, and its route configuration comes later than the answer.
    commit(&cache, "RDS -rc");
    let mut client = envoy_with(Delta::new(&cache), "rc", "on/demand", &brought);
    assert_eq!(sent(&mut client), "n3 VHDS on/demand{alias=on/demand}");
    commit(&cache, "RDS rc=1>vhds:ads");
    assert_eq!(sent(&mut client), "n4 RDS rc=1; n5 VHDS rc/b=2 rc/c=1 -rc/ -rc/gone");
    // It brings hosts of a route configuration that it does not have any more: their versions do not count.
    let mut client = envoy_with(Delta::new(&cache), "other", "", &brought);
    assert_eq!(sent(&mut client), "n3 VHDS");
    ack(&mut client, "VHDS");
    client.ask("RDS", "rc");
    assert_eq!(sent(&mut client), "n4 RDS rc=1; n5 VHDS rc/a=1 rc/b=2 rc/c=1 -rc/ -rc/gone");
}

#[test]
fn g12_a_host_that_the_client_may_not_read_is_not_sent_unasked() {
    let cache = cache(UNASKED);
    let all = NamePatterns::everything();
    let access = Access::nothing().with_type(type_url("LDS"), all.clone()).with_type(type_url("RDS"), all);
    let some = access.clone().with_type(type_url("VHDS"), NamePatterns::from_iter(["rc/a"]));
    for (access, expected) in [(some, "n3 VHDS rc/a=1 -rc/"), (access, "n3 VHDS -rc/")] {
        let mut client = Delta::new(&cache);
        client.stream.on_access(Arc::new(access));
        let mut client = envoy_with(client, "rc", "", &[]);
        assert_eq!(sent(&mut client), expected);
        commit(&cache, "VHDS rc/b=2");
        assert_eq!(sent(&mut client), "");
    }
}

#[test]
fn t46_unasked_hosts_are_chosen_by_the_parameters_of_the_node() {
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:ads; VHDS rc/a[env=x]=1 rc/a[env=y]=2 rc/b[env=y]=1");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=x"));
    let mut client = envoy_with(client, "rc", "", &[]);
    assert_eq!(sent(&mut client), "n3 VHDS rc/a=1 -rc/");
    client.ack("VHDS", "3");
    commit(&cache, "VHDS rc/b[env=y]=2 rc/c[env=x]=1");
    assert_eq!(sent(&mut client), "n4 VHDS rc/c=1");
}

#[test]
fn d24_a_host_that_comes_unasked_and_by_its_alias_is_sent_once() {
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:ads; VHDS rc/h{alias=rc/a.example}=1");
    let mut client = envoy_with(Delta::new(&cache), "rc", "rc/a.example rc/none", &[]);
    assert_eq!(sent(&mut client), "n3 VHDS rc/h{alias=rc/a.example}=1 rc/none{alias=rc/none} -rc/");
    client.ack("VHDS", "3");
    commit(&cache, "VHDS rc/h{alias=rc/a.example}=2");
    assert_eq!(sent(&mut client), "n4 VHDS rc/h{alias=rc/a.example}=2");
    client.ack("VHDS", "4");
    client.ask("VHDS", "-rc/a.example");
    sent(&mut client);
    ack(&mut client, "VHDS");
    commit(&cache, "VHDS -rc/h");
    assert!(sent(&mut client).ends_with(" -rc/h"), "still sent without a subscription");
}

#[test]
fn s6c_a_rejected_answer_is_sent_again_in_parts() {
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:ads; VHDS rc/a=1 rc/b=1");
    let mut client = envoy(&cache);
    assert_eq!(sent(&mut client), "n3 VHDS rc/a=1 rc/b=1 -rc/");
    client.nack("VHDS", "3");
    assert_eq!(sent(&mut client), "n4 VHDS -rc/");
    client.ack("VHDS", "4");
    assert_eq!(sent(&mut client), "n5 VHDS rc/a=1 rc/b=1");
    client.nack("VHDS", "5");
    assert_eq!(sent(&mut client), "n6 VHDS rc/a=1");
    client.nack("VHDS", "6");
    assert_eq!(sent(&mut client), "n7 VHDS rc/b=1", "the good host is in use");
    client.ack("VHDS", "7");
    commit(&cache, "VHDS rc/a=2");
    assert_eq!(sent(&mut client), "n8 VHDS rc/a=2");
}

#[test]
fn t44_a_proxy_that_subscribes_by_locator_gets_nothing_unasked() {
    let cache = cache(UNASKED);
    let mut client = envoy_with(Delta::new(&cache), "rc", "rc/b?env=x", &[]);
    assert_eq!(sent(&mut client), "n3 VHDS rc/b[]=1");
    commit(&cache, "VHDS rc/a=2");
    assert_eq!(sent(&mut client), "");
}

#[test]
fn s21_a_wildcard_covers_hosts_of_later_route_configurations_that_envoy_ignored_before() {
    let cache = cache(UNASKED);
    let mut client = envoy_with(Delta::new(&cache), "rc", "*", &[]);
    assert_eq!(sent(&mut client), "n3 VHDS other/a=1 rc/a=1 rc/b=1 rc2/a=1 -rc/");
    client.ack("VHDS", "3");
    client.ask("RDS", "rc2");
    assert_eq!(sent(&mut client), "n4 RDS rc2=1; n5 VHDS rc2/a=1 -rc2/");
}

#[test]
fn s33b_over_streams_per_type_the_other_streams_say_what_the_client_has() {
    for (listener, hosts) in [("l=1>rc", " rc/a=1"), ("l=1>demand:rc", "")] {
        let cache = cache(&format!("LDS {listener}; RDS rc=1>vhds:own; VHDS rc/a=1 x/a=1"));
        let group = ClientGroup::new();
        let mut streams = [("LDS", ""), ("RDS", "rc"), ("VHDS", "")].map(|(type_name, list)| {
            let mut stream = Delta::new(&cache);
            stream.stream.join(&group);
            stream.ask(type_name, list);
            let first = sent(&mut stream);
            stream.ack(type_name, "1");
            sent(&mut stream);
            (stream, first)
        });
        assert_eq!(streams[2].1, format!("n1 VHDS{hosts} -rc/"));
        // The listener loses the filter.
        is_woken(&streams[2].0.watch);
        commit(&cache, "LDS l=2>rc");
        let [(listeners, _), _, (hosts_stream, _)] = &mut streams;
        assert_eq!(sent(listeners), "n2 LDS l=2");
        assert!(!hosts.is_empty() || is_woken(&hosts_stream.watch));
        assert_eq!(sent(hosts_stream), if hosts.is_empty() { "n2 VHDS rc/a=1" } else { "" });
    }
}

#[test]
fn s33b_a_stream_of_hosts_waits_a_little_for_the_routes_of_a_client_that_reconnects() {
    let cache = cache("LDS l=1>demand:rc; RDS rc=1>vhds:own; VHDS rc/a=1");
    let group = ClientGroup::new();
    let mut streams = [("VHDS", ""), ("LDS", ""), ("RDS", "rc")].map(|(type_name, list)| {
        let mut stream = Delta::new(&cache);
        stream.stream.join(&group);
        stream.ask(type_name, list);
        let first = sent(&mut stream);
        stream.ack(type_name, "1");
        sent(&mut stream);
        (stream, first)
    });
    assert_eq!(streams[0].1, "n1 VHDS");
    assert_eq!(sent(&mut streams[0].0), "n2 VHDS -rc/", "the listener has the filter");
    // It never gets route configurations from this server.
    let mut alone = Delta::new(&cache);
    alone.stream.join(&ClientGroup::new());
    alone.ask("VHDS", "");
    assert_eq!((sent(&mut alone).as_str(), alone.waits_until()), ("n1 VHDS", Some(1000)));
    alone.pass(Duration::from_secs(1));
    assert_eq!(sent(&mut alone), "n2 VHDS rc/a=1 -rc/");
}

/// A stream of an Envoy that has one for each subscription. It ACKs what it is sent.
fn stream(cache: &Arc<Cache>, group: &ClientGroup) -> Delta {
    let mut stream = Delta::new(cache);
    stream.stream.join(group);
    stream
}

fn ask(stream: &mut Delta, type_name: &str, list: &str, brought: &[(&str, &str)]) -> String {
    stream.ask_with(type_name, list, "", brought);
    took(stream, type_name)
}

fn took(stream: &mut Delta, type_name: &str) -> String {
    let lines = sent(stream);
    ack(stream, type_name);
    lines
}

#[test]
fn d33_hosts_that_went_while_the_server_was_away_are_removed_however_late_the_routes_come() {
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:own rc2=1>vhds:own; VHDS rc/a=1 rc/b=2 rc2/a=1");
    let a = version("VHDS", "rc/a", "1");
    let brought = [("rc/a", a.as_str()), ("rc/b", "1"), ("rc/gone", "x")];
    // What has come before the stream of the hosts, and how much later the route configuration comes.
    for first in ["", "LDS", "rc2", "LDS rc2"] {
        for late in [0_u64, 500, 1_500, 30_000] {
            let (group, mut streams) = (ClientGroup::new(), Vec::new());
            for word in first.split_whitespace() {
                let (type_name, list) = if word == "LDS" { ("LDS", "") } else { ("RDS", word) };
                let mut other = stream(&cache, &group);
                ask(&mut other, type_name, list, &[]);
                streams.push(other);
            }
            let mut hosts = stream(&cache, &group);
            let mut lines = vec![ask(&mut hosts, "VHDS", "", &brought)];
            for step in [late.min(1_000), late.saturating_sub(1_000)] {
                hosts.pass(Duration::from_millis(step));
                lines.push(took(&mut hosts, "VHDS"));
            }
            let mut routes = stream(&cache, &group);
            routes.now = hosts.now;
            ask(&mut routes, "RDS", "rc", &[("rc", &version("RDS", "rc", "1>vhds:own"))]);
            lines.push(took(&mut hosts, "VHDS"));
            let lines = lines.join("; ");
            assert_eq!(lines.matches(" -rc/gone").count(), 1, "{first} {late}: {lines}");
            // After 1 s it is not certain that the client still has what it brought.
            let is_in_time = late < 1_000;
            assert_eq!(!lines.contains(" rc/a=1"), is_in_time, "{first} {late}: {lines}");
        }
    }
}

#[test]
fn d29_hosts_that_go_while_the_stream_of_their_routes_is_away_are_removed() {
    for others in [&["rc2"][..], &[]] {
        let cache =
            cache("LDS l=1>rc; RDS rc=1>vhds:own rc2=1>vhds:own; VHDS rc/a=1 rc/gone=1 rc2/a=1 x/a=1");
        let group = ClientGroup::new();
        let mut streams: Vec<_> = others.iter().map(|_| stream(&cache, &group)).collect();
        streams.iter_mut().zip(others).for_each(|(stream, name)| _ = ask(stream, "RDS", name, &[]));
        let mut routes = stream(&cache, &group);
        ask(&mut routes, "RDS", "rc", &[]);
        let mut hosts = stream(&cache, &group);
        assert!(ask(&mut hosts, "VHDS", "", &[]).contains(" rc/gone=1 "));
        hosts.pass(Duration::from_secs(5));
        drop(routes);
        let mut lines = took(&mut hosts, "VHDS");
        commit(&cache, "VHDS -rc/gone rc/new=1");
        lines += &took(&mut hosts, "VHDS");
        hosts.pass(Duration::from_secs(5));
        let mut routes = stream(&cache, &group);
        routes.now = hosts.now;
        ask(&mut routes, "RDS", "rc", &[("rc", &version("RDS", "rc", "1>vhds:own"))]);
        lines += &took(&mut hosts, "VHDS");
        assert!(lines.contains(" -rc/gone") && lines.contains(" rc/new=1"), "{others:?}: {lines}");
        assert!(!lines.contains(" x/a"), "the route configurations are known: {lines}");
    }
}

/// Streams of two clients, `a` and `b`, which has the parameter `id=b`.
fn two_clients(cache: &Arc<Cache>, routes: &str) -> [Delta; 2] {
    ["a", "b"].map(|id| {
        let client = Delta::new(cache);
        name(&client, id);
        let mut client = envoy_with(client, routes, "", &[]);
        took(&mut client, "VHDS");
        client
    })
}

fn name(client: &Delta, id: &str) {
    client.watch.name_client(ClientName { id: id.into(), cluster: "c".into() });
    client.watch.describe_client(parameters(&format!("id={id}")));
}

fn acked(client: &mut Delta, nonces: &[(&str, &str)]) {
    nonces.iter().for_each(|(type_name, nonce)| _ = client.ack(type_name, nonce));
}

#[test]
fn d33_each_client_gets_the_hosts_of_the_view_that_it_sees_and_those_before_after_the_end() {
    const HOSTS: &str = "VHDS rc/a=1 rc/b=1 rc2/a=1";
    // Routes before and in the candidate, what the client that tries it is sent, and what after its end.
    for (before, candidate, tries, after) in [
        // It begins to use VHDS, uses it no more, and subscribes anew to other sources.
        ("rc=1>c", "RDS rc=2>vhds:ads", "RDS rc=2; VHDS rc/a=1 rc/b=1 -rc/", "RDS rc=1"),
        ("rc=1>vhds:ads", "RDS rc=2>c", "RDS rc=2", "RDS rc=1; VHDS rc/a=1 rc/b=1 -rc/"),
        ("rc=1>vhds:ads", "RDS rc=2>vhds:own", "RDS rc=2; VHDS -rc/", "RDS rc=1; VHDS -rc/"),
        // The hosts change with the routes, or alone.
        (
            "rc=1>vhds:ads",
            "RDS rc=2>vhds:ads; VHDS rc/a=2 rc/new=1 -rc/b",
            "RDS rc=2; VHDS rc/a=2 rc/new=1 -rc/b",
            "RDS rc=1; VHDS rc/a=1 rc/b=1 -rc/new",
        ),
        ("rc=1>vhds:ads", "VHDS rc/a=2 -rc/b", "VHDS rc/a=2 -rc/b", "VHDS rc/a=1 rc/b=1"),
        // The listener gets the filter, and what was sent stays up to date.
        ("rc=1>vhds:ads", "LDS l=2>demand:rc; VHDS rc/a=2", "LDS l=2; VHDS rc/a=2", "LDS l=1; VHDS rc/a=1"),
    ] {
        let cache = cache(&format!("LDS l=1>rc; RDS {before} rc2=1>vhds:ads; {HOSTS}"));
        let [mut a, mut b] = two_clients(&cache, "rc");
        let trial = cache.begin(transaction(candidate), &"id=b".parse().unwrap()).unwrap();
        assert_eq!((sent(&mut a), all(&mut b)), (String::new(), tries.to_owned()), "{candidate}");
        trial.end();
        assert_eq!((sent(&mut a), all(&mut b)), (String::new(), after.to_owned()), "{candidate}: after");
        // Both see the same again.
        commit(&cache, "VHDS rc/a=9 rc2/a=9");
        let hosts = if before.ends_with("ads") { "VHDS rc/a=9" } else { "" };
        assert_eq!([all(&mut a), all(&mut b)], [hosts; 2], "{candidate}: a later commit");
    }
}

/// What a client is sent until nothing is left, with an ACK of each response, without nonces.
fn all(client: &mut Delta) -> String {
    let mut lines = Vec::new();
    loop {
        let sent = sent(client);
        if sent.is_empty() {
            return lines.join("; ");
        }
        for line in sent.split("; ") {
            let (nonce, rest) = line.split_once(' ').unwrap();
            acked(client, &[(rest.split(' ').next().unwrap(), &nonce[1..])]);
            lines.push(rest.to_owned());
        }
    }
}

#[test]
fn d33_over_streams_per_type_a_rollout_moves_the_hosts_with_the_routes() {
    let cache = cache("LDS l=1>rc; RDS rc=1>c; VHDS rc/a=1 x/a=1");
    let group = ClientGroup::new();
    let mut streams = [("LDS", ""), ("RDS", "rc"), ("VHDS", "")].map(|(type_name, list)| {
        let mut stream = stream(&cache, &group);
        name(&stream, "b");
        ask(&mut stream, type_name, list, &[]);
        stream
    });
    let trial = cache.begin(transaction("RDS rc=2>vhds:own"), &"id=b".parse().unwrap()).unwrap();
    assert_eq!(streams.each_mut().map(all), ["", "RDS rc=2", "VHDS rc/a=1 -rc/"]);
    trial.end();
    assert_eq!(streams.each_mut().map(all), ["", "RDS rc=1", ""]);
    commit(&cache, "VHDS rc/a=2");
    assert_eq!(streams.each_mut().map(all), ["", "", ""], "the routes have their hosts inside again");
}

#[test]
fn g9_hosts_that_are_sent_unasked_count_for_no_limit_of_names() {
    let config = StreamConfig { names_limit: 2, ..StreamConfig::default() };
    let cache = cache("LDS l=1>rc; RDS rc=1>vhds:ads rc2=1>vhds:ads; VHDS rc/a=1 rc/b=1 rc/c=1 rc2/a=1");
    let brought = ["rc/1", "rc/2", "rc/3"].map(|name| (name, "x"));
    let mut client = envoy_with(Delta::with(&cache, config), "rc", "", &brought);
    // The response has no room yet, and the client sends more requests.
    _ = client.stream.until_due(client.now, &cache.snapshot());
    client.ask("VHDS", "rc/a");
    assert_eq!(sent(&mut client), "n3 VHDS rc/a=1 rc/b=1 rc/c=1 -rc/ -rc/1 -rc/2 -rc/3");
    client.ack("VHDS", "3");
    client.ask("VHDS", "rc/b");
    assert_eq!(sent(&mut client), "n4 VHDS rc/b=1", "its own two names");
    client.ack("VHDS", "4");
    commit(&cache, "VHDS rc/d=1 rc/e=1 -rc/c");
    assert_eq!(sent(&mut client), "n5 VHDS rc/d=1 rc/e=1 -rc/c");
    let error = client.stream.on_request(client.now, third_name()).unwrap_err();
    assert!(matches!(error, StreamError::TooManyNames { found: 3, limit: 2, .. }), "{error}");
}

fn third_name() -> DeltaRequest {
    let subscribe = Requested::from(vec!["rc/d".into()]);
    DeltaRequest { type_url: VIRTUAL_HOST.into(), subscribe, ..DeltaRequest::default() }
}

#[test]
fn d33_a_cache_on_demand_answers_at_once_and_sends_hosts_when_its_source_knows_all() {
    let cache = Cache::on_demand();
    commit(&cache, "LDS l=1>rc !*; RDS rc=1>vhds:ads !rc");
    let mut client = envoy(&cache);
    assert_eq!(sent(&mut client), "n3 VHDS -rc/");
    client.ack("VHDS", "3");
    commit(&cache, "VHDS rc/a=1 x/a=1 !*");
    assert_eq!(sent(&mut client), "n4 VHDS rc/a=1");
}

/// A client with streams per type, of which those of many route configurations end.
struct Away {
    cache: Arc<Cache>,
    group: ClientGroup,
    names: Vec<String>,
    /// The streams of the listeners, of a route configuration that stays, and of the hosts.
    listeners: Delta,
    stays: Delta,
    hosts: Delta,
}

impl Away {
    /// Of an Envoy with this listener.
    fn new(count: usize, listener: &str) -> Self {
        let names: Vec<_> = (0..count).map(|number| format!("rc{number}")).collect();
        let routes: String = names.iter().map(|name| format!(" {name}=1>vhds:own")).collect();
        let hosts: String = names.iter().map(|name| format!(" {name}/a=1 {name}/gone=1")).collect();
        let demands: Vec<_> = names.iter().map(|name| format!("demand:{name}")).collect();
        let listener = listener.replace("ALL", &demands.join(","));
        let cache =
            cache(&format!("LDS l={listener}; RDS stays=1>vhds:own{routes}; VHDS stays/a=1 x/a=1{hosts}"));
        let group = ClientGroup::new();
        let mut listeners = stream(&cache, &group);
        ask(&mut listeners, "LDS", "", &[]);
        let mut stays = stream(&cache, &group);
        ask(&mut stays, "RDS", "stays", &[]);
        let hosts = stream(&cache, &group);
        let mut away = Self { cache, group, names, listeners, stays, hosts };
        let streams = away.routes();
        let first = ask(&mut away.hosts, "VHDS", "", &[]);
        let unasked = if listener.contains("demand") { 0 } else { count };
        assert_eq!(first.matches("/gone=1").count(), unasked, "{first}");
        away.hosts.pass(Duration::from_secs(5));
        drop(streams);
        away
    }

    /// A stream of each route configuration.
    fn routes(&self) -> Vec<Delta> {
        let open = |name: &String| {
            let mut routes = stream(&self.cache, &self.group);
            routes.now = self.hosts.now;
            ask(&mut routes, "RDS", name, &[(name, &version("RDS", name, "1>vhds:own"))]);
            routes
        };
        self.names.iter().map(open).collect()
    }
}

const WHILE_AWAY: &str = "VHDS -rc0/gone rc1/a=2 rc2/new=1 stays/a=2 x/a=2";

#[test]
fn d33_hosts_of_64_route_configurations_whose_streams_ended_are_kept_up_to_date() {
    let mut away = Away::new(64, "1>stays");
    commit(&away.cache, WHILE_AWAY);
    let lines = took(&mut away.hosts, "VHDS");
    assert_eq!(lines, "n2 VHDS rc1/a=2 rc2/new=1 stays/a=2 -rc0/gone");
    let _streams = away.routes();
    let lines = took(&mut away.hosts, "VHDS");
    assert_eq!((lines.matches("/a=").count(), lines.matches(" -").count()), (64, 64), "{lines}");
}

#[test]
fn d33_with_65_of_them_the_stream_of_the_hosts_ends_and_the_next_one_sends_what_changed() {
    let mut away = Away::new(65, "1>stays");
    commit(&away.cache, WHILE_AWAY);
    assert_eq!(away.hosts.stream.until_due(away.hosts.now, &away.cache.snapshot()), None, "not idle");
    let next = away.hosts.stream.next(away.hosts.now, &away.cache.snapshot());
    let Next::Close(error) = next else { panic!("{next:?}") };
    assert_eq!(error, StreamError::TooManyRoutesAway { limit: 64 });
    // The client brings what it has, and its other streams come.
    let brought: Vec<_> =
        away.names.iter().flat_map(|name| ["a", "gone"].map(|host| format!("{name}/{host}"))).collect();
    let version = |name: &String| (name.clone(), version("VHDS", name, "1"));
    let mut brought: Vec<_> = brought.iter().map(version).collect();
    brought.push(version(&"stays/a".to_owned()));
    let brought: Vec<_> = brought.iter().map(|(name, version)| (name.as_str(), version.as_str())).collect();
    let mut hosts = stream(&away.cache, &away.group);
    hosts.now = away.hosts.now;
    away.hosts = hosts;
    let mut lines = ask(&mut away.hosts, "VHDS", "", &brought);
    let _streams = away.routes();
    lines += "; ";
    lines += &took(&mut away.hosts, "VHDS");
    let is_host = |word: &&str| word.contains('=') || (word.starts_with('-') && !word.ends_with('/'));
    let hosts: BTreeSet<_> = lines.split([' ', ';']).filter(is_host).collect();
    assert_eq!(hosts, BTreeSet::from(["rc1/a=2", "rc2/new=1", "stays/a=2", "-rc0/gone"]));
    assert_eq!(lines.matches(" -rc").count(), 66, "each waits for an answer: {lines}");
    assert_eq!([sent(&mut away.listeners), sent(&mut away.stays)], ["", ""]);
}

#[test]
fn d33_with_65_of_them_on_demand_the_stream_of_the_hosts_goes_on() {
    let mut away = Away::new(65, "1>stays,ALL");
    ask(&mut away.hosts, "VHDS", "rc0/gone rc1/a", &[]);
    commit(&away.cache, WHILE_AWAY);
    assert_eq!(took(&mut away.hosts, "VHDS"), "n3 VHDS rc1/a=2 stays/a=2 -rc0/gone");
    let _streams = away.routes();
    let lines = took(&mut away.hosts, "VHDS");
    assert_eq!((lines.matches('=').count(), lines.matches(" -").count()), (0, 65), "{lines}");
}
