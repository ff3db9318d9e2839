//! Which subscriptions the proxy makes, in front of our own server.

use std::time::Duration;

use super::fixture::{World, by_node};
use super::linger::IDLE_COST;
use super::{ProxyConfig, ProxyLoad, Sharing, UpstreamKind};
use crate::client::Protocol;
use crate::server::fixture::{Delta, Sotw, parameters};

#[test]
fn t43_who_asks_for_what_is_at_hand_is_answered_without_a_word_upstream() {
    let mut world = World::delta("X r[env=prod]=A r[env=test]=B");
    let mut one = world.leaf("X", "r?env=prod&pod=1");
    world.run();
    assert_eq!(one.sent(), "n1 X r[env=prod]=A");
    assert_eq!(world.requested(), "+r{env=prod,pod=1}", "T44: as the client subscribed");
    let mut other = world.leaf("X", "r?env=prod&pod=2");
    assert_eq!(other.sent(), "n1 X r[env=prod]=A", "at once");
    world.run();
    assert_eq!(world.requested(), "");
    let mut third = world.leaf("X", "r?env=test&pod=3");
    world.run();
    assert_eq!((third.sent(), world.requested()), ("n1 X r[env=test]=B".into(), "+r{env=test,pod=3}".into()));
    let counts = world.proxy.counts();
    assert_eq!((counts.hits, counts.misses), (1, 2));
}

#[test]
fn v18_v19_two_locators_on_one_stream_have_a_life_of_their_own() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let config = ProxyConfig::default();
        let mut world = World::new(protocol, "X r[env=prod]=A r[env=test]=B", config);
        let mut leaf = world.leaf("X", "r?env=prod r?env=test");
        world.run();
        world.pass(Duration::from_millis(50));
        assert_eq!(leaf.sent(), "n1 X r[env=prod]=A r[env=test]=B", "{protocol:?}");
        leaf.ack("X", "1");
        leaf.ask("X", "-r?env=test");
        world.commit("X r[env=test]=C");
        assert_eq!(leaf.sent(), "");
        leaf.ask("X", "r?env=test");
        world.run();
        assert_eq!(leaf.sent(), "n2 X r[env=test]=C");
    }
}

#[test]
fn t35_an_absence_is_answered_for_its_own_locator_only() {
    let mut world = World::delta("X r[env=prod]=A");
    let mut one = world.leaf("X", "r?env=prod r?env=qa&pod=1");
    world.run();
    assert_eq!(world.requested(), "+r{env=prod} +r{env=qa,pod=1}");
    assert_eq!(one.sent(), "n1 X r[env=prod]=A -r[env=qa]");
    let mut other = world.leaf("X", "r?env=qa&pod=2");
    world.run();
    assert_eq!((other.sent(), world.requested()), ("n1 X -r".into(), "+r{env=qa,pod=2}".into()));
    world.commit("X r[env=qa]=B");
    one.ack("X", "1");
    other.ack("X", "1");
    assert_eq!((one.sent(), other.sent()), ("n2 X r[env=qa]=B".into(), "n2 X r[env=qa]=B".into()));
}

/// A fleet starts: all clients come at once, and the proxy knows no keys yet.
#[test]
fn misses_wait_for_the_first_answer_and_then_one_of_each_kind_is_asked_for() {
    let mut world = World::delta("X r[env=a]=A r[env=b]=B r[env=c]=C");
    world.is_slow = true;
    let mut leaves: Vec<_> = (0..300)
        .map(|pod| world.leaf("X", &format!("r?env={}&pod={pod}", ["a", "b", "c"][pod % 3])))
        .collect();
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=0}");
    assert_eq!(world.reported(), 1, "one of all that may get the same variant");
    world.is_slow = false;
    world.run();
    assert_eq!(
        world.requested(),
        "+r{env=b,pod=1} +r{env=c,pod=2}",
        "one for each set of the keys that count"
    );
    for (pod, leaf) in leaves.iter_mut().enumerate() {
        let (env, content) = [("a", "A"), ("b", "B"), ("c", "C")][pod % 3];
        assert_eq!(leaf.sent(), format!("n1 X r[env={env}]={content}"));
    }
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 300, upstream: 3 });
    assert_eq!(world.reported(), 3);
}

/// T43: cost grows with names and with the values of the keys that decide, not with clients times names.
#[test]
fn clients_with_parameters_of_their_own_cost_the_proxy_no_more_than_the_variants_that_they_share() {
    const NAMES: usize = 40;
    let content = (0..NAMES).map(|name| format!(" n{name}[env=a]=A n{name}[env=b]=B")).collect::<String>();
    let mut world = World::delta(&format!("X{content}"));
    let names = |pod: usize| {
        let name = |name| format!(" n{name}?env={}&pod={pod}", ["a", "b"][pod % 2]);
        (0..NAMES).map(name).collect::<String>()
    };
    world.is_slow = true;
    let mut leaves: Vec<_> = (0..50).map(|pod| world.leaf("X", names(pod).trim())).collect();
    world.run();
    // The upstream is late: a second one of each name waits no longer.
    world.pass(Duration::from_millis(50));
    world.is_slow = false;
    world.run();
    leaves.extend((50..100).map(|pod| world.leaf("X", names(pod).trim())));
    world.run();
    for leaf in &mut leaves {
        assert_eq!(leaf.sent().matches('=').count(), 2 * NAMES, "each has all names");
    }
    assert_eq!(world.proxy.load().downstream, 100 * NAMES);
    assert!(world.reported() <= 4 * NAMES, "{}", world.reported());
    // One after the other leaves, until one is left of each kind.
    leaves.drain(..98);
    world.run();
    // Which ones it asks about depends on whose turn it was.
    assert!(world.reported() <= 3 * NAMES, "{}", world.reported());
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 2 * NAMES, upstream: 2 * NAMES });
}

#[test]
fn while_a_first_answer_is_slow_each_round_asks_twice_as_many_and_waits_twice_as_long() {
    let mut world = World::delta("X r[env=a]=A");
    world.is_slow = true;
    let mut leaves: Vec<_> = (0..9).map(|pod| world.leaf("X", &format!("r?env=a&pod={pod}"))).collect();
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=0}");
    world.pass(Duration::from_millis(49));
    assert_eq!(world.requested(), "");
    world.pass(Duration::from_millis(1));
    assert_eq!(world.requested(), "+r{env=a,pod=1}");
    world.pass(Duration::from_millis(99));
    assert_eq!(world.requested(), "");
    world.pass(Duration::from_millis(1));
    assert_eq!(world.requested(), "+r{env=a,pod=2} +r{env=a,pod=3}");
    world.is_slow = false;
    world.run();
    let given_up = "-r{env=a,pod=1} -r{env=a,pod=2} -r{env=a,pod=3}";
    assert_eq!(world.requested(), given_up, "T43b: one that stays covers it");
    leaves.iter_mut().for_each(|leaf| assert_eq!(leaf.sent(), "n1 X r[env=a]=A"));
    world.commit("X r[env=a]=B");
    for leaf in &mut leaves {
        leaf.ack("X", "1");
        assert_eq!(leaf.sent(), "n2 X r[env=a]=B");
    }
}

/// T43, T31: keys change. The proxy subscribes for the clients that shared the removed variant, and
/// they see one change.
#[test]
fn t43_who_loses_a_shared_variant_keeps_it_until_its_own_answer() {
    let mut world = World::delta("X r[env=a]=A");
    let mut leaves: Vec<_> =
        (0..4).map(|at| world.leaf("X", &format!("r?env=a&ver={}&pod={at}", at % 2))).collect();
    world.run();
    world.requested();
    for leaf in &mut leaves {
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A");
        leaf.ack("X", "1");
    }
    world.is_slow = true;
    world.commit("X -r[env=a] r[env=a,ver=0]=B r[env=a,ver=1]=C");
    world.is_slow = false;
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=1,ver=1}", "one of those that it is not for");
    for (at, leaf) in leaves.iter_mut().enumerate() {
        let (ver, content) = [(0, "B"), (1, "C")][at % 2];
        assert_eq!(leaf.sent(), format!("n2 X r[env=a,ver={ver}]={content} -r[env=a]"));
    }
    assert_eq!(world.reported(), 2, "one for each set of the keys that count");
}

#[test]
fn c9b_a_removed_variant_is_for_nobody_new_and_no_removal_for_who_was_not_asked_about() {
    let mut world = World::delta("X r[env=a]=A");
    let (mut one, mut other) = (world.leaf("X", "r?env=a&pod=1"), world.leaf("X", "r?env=a&pod=2"));
    world.run();
    for leaf in [&mut one, &mut other] {
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A");
        leaf.ack("X", "1");
    }
    // The answer for the other is on its way.
    crate::server::fixture::commit(&world.origin, "X -r[env=a]");
    world.is_slow = true;
    world.run();
    world.is_slow = false;
    world.run();
    assert_eq!((one.sent(), other.sent()), ("n2 X -r[env=a]".into(), "n2 X -r[env=a]".into()));
    assert_eq!(world.requested(), "+r{env=a,pod=1} +r{env=a,pod=2}");
    let mut late = world.leaf("X", "r?env=a&pod=3");
    assert_eq!(late.sent(), "");
    world.run();
    assert_eq!(late.sent(), "n1 X -r");
}

#[test]
fn t43b_what_others_share_stays_when_who_asked_for_it_leaves_and_goes_30_s_after_the_last() {
    let mut world = World::delta("X r[env=a]=A");
    let one = world.leaf("X", "r?env=a&pod=1");
    let _keeps_the_stream = world.leaf("X", "s");
    world.run();
    let mut other = world.leaf("X", "r?env=a&pod=2");
    world.run();
    drop(one);
    world.run();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.requested(), "+r{env=a,pod=1} +s{}");
    world.commit("X r[env=a]=B");
    assert_eq!(other.sent(), "n1 X r[env=a]=B");
    drop(other);
    world.run();
    world.pass(Duration::from_secs(26));
    assert_eq!(world.requested(), "");
    // Who comes back in time finds it.
    let mut back = world.leaf("X", "r?env=a&pod=3");
    assert_eq!(back.sent(), "n1 X r[env=a]=B");
    world.run();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.requested(), "");
    drop(back);
    world.run();
    world.pass(Duration::from_secs(34));
    assert_eq!(world.requested(), "-r{env=a,pod=1}");
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 1, upstream: 1 });
    assert!(world.proxy.cache().snapshot().get(&"type.googleapis.com/X".into(), &"r".into()).is_none());
}

#[test]
fn what_nobody_asks_for_is_kept_up_to_a_sum_of_bytes() {
    let config = ProxyConfig { linger_bytes: 10, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X a=12345678 b=12345678", config);
    let (one, other) = (world.leaf("X", "a"), world.leaf("X", "b"));
    let _keeps_the_stream = world.leaf("X", "s");
    world.run();
    assert_eq!(world.requested(), "+a{} +b{} +s{}");
    drop((one, other));
    world.run();
    assert_eq!(world.requested(), "-a{} -b{}");
    let config = ProxyConfig {
        linger_bytes: IDLE_COST + 20,
        linger: Duration::from_secs(1000),
        ..ProxyConfig::default()
    };
    let mut world = World::new(Protocol::Delta, "X a=12345678 b=12345678", config);
    let (one, mut other) = (world.leaf("X", "a"), world.leaf("X", "b"));
    world.run();
    drop(one);
    world.run();
    assert_eq!(
        (other.sent(), world.requested()),
        ("n1 X b[]=12345678".replace("[]", ""), "+a{} +b{}".into())
    );
}

#[test]
fn absent_names_without_end_leave_nothing_behind() {
    let config = ProxyConfig { linger: Duration::from_secs(1000), ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X s=1", config);
    let mut leaf = world.leaf("X", "s");
    world.run();
    for round in 0..3 {
        let names = |sign: &str| (0..2_000).map(|n| format!(" {sign}n{round}-{n}")).collect::<String>();
        leaf.ask("X", &names(""));
        world.run();
        assert_eq!(world.proxy.load(), ProxyLoad { downstream: 2_001, upstream: 2_001 });
        leaf.ask("X", &names("-"));
        world.run();
        assert_eq!(world.proxy.load(), ProxyLoad { downstream: 1, upstream: 1 });
    }
    assert_eq!(world.proxy.next_deadline(), None, "no timer stays");
}

/// Regression: each time that nobody subscribed any more, another timer came, which stayed for 30 s.
#[test]
fn a_resource_that_is_dropped_and_wanted_again_without_end_has_one_timer() {
    let mut world = World::delta("X a=1 s=1");
    let mut leaf = world.leaf("X", "s a");
    world.run();
    for _ in 0..100 {
        world.now += Duration::from_millis(1);
        for list in ["-a", "a"] {
            leaf.ask("X", list);
            world.run();
        }
    }
    assert!(world.proxy.timers.len() <= 1, "{}", world.proxy.timers.len());
    leaf.ask("X", "-a");
    world.run();
    world.pass(Duration::from_secs(34));
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 1, upstream: 1 });
    assert_eq!(world.proxy.next_deadline(), None, "no timer stays");
}

/// Regression: parameters did not count, and a wildcard is subscribed to with each set of them.
#[test]
fn parameters_of_what_nobody_asks_for_count_among_its_bytes() {
    let config = ProxyConfig { linger_bytes: 100_000, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X a=1", config);
    let _keeps_the_stream = world.leaf("X", "s");
    for pod in 0..30 {
        let leaf = world.leaf("X", &format!("*?pod={pod}{}", "x".repeat(20_000)));
        world.run();
        drop(leaf);
        world.run();
    }
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 1, upstream: 1 + 4 });
}

#[test]
fn names_that_are_dropped_before_their_answer_linger_up_to_a_sum_and_end_with_it() {
    let (linger, linger_bytes) = (Duration::from_secs(1000), 100 * (IDLE_COST + 10));
    let config = ProxyConfig { linger, linger_bytes, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X s=1", config);
    let mut leaf = world.leaf("X", "s");
    world.run();
    world.is_slow = true;
    let names = |sign: &str| (0..500).map(|n| format!(" {sign}n{n}")).collect::<String>();
    leaf.ask("X", &names(""));
    world.run();
    leaf.ask("X", &names("-"));
    world.run();
    assert!((100..=110).contains(&world.proxy.load().upstream), "{:?}", world.proxy.load());
    world.is_slow = false;
    world.run();
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 1, upstream: 1 });
}

#[test]
fn a_wildcard_is_asked_for_by_each_set_of_parameters_and_shares_what_it_brings() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS c[env=a]=1 c[env=b]=2 d=3", ProxyConfig::default());
        let mut one = world.sotw_leaf("CDS", "*?env=a&pod=1");
        world.run();
        assert_eq!(one.sent(), "n1 CDS c[env=a]=1 d[]=3");
        let mut other = world.leaf("CDS", "*?env=a&pod=2");
        assert_eq!(other.sent(), "", "there may be what is only for pod 2");
        world.run();
        assert_eq!(other.sent(), "n1 CDS c[env=a]=1 d[]=3");
        one.ack("CDS", "1");
        other.ack("CDS", "1");
        world.commit("CDS -d e=4");
        one.pass(Duration::from_secs(5));
        other.pass(Duration::from_secs(5));
        world.pass(Duration::from_secs(5));
        assert_eq!(
            (one.sent(), other.sent()),
            ("n2 CDS c[env=a]=1 e[]=4 d[]=3".into(), "n2 CDS e[]=4".into())
        );
        one.ack("CDS", "2");
        other.ack("CDS", "2");
        one.pass(Duration::from_secs(5));
        other.pass(Duration::from_secs(5));
        assert_eq!((one.sent(), other.sent()), ("n3 CDS c[env=a]=1 e[]=4".into(), "n3 CDS -d[]".into()));
    }
}

#[test]
fn with_declared_keys_a_wildcard_is_asked_for_once_for_all_that_agree_on_them() {
    let upstream = UpstreamKind::Locators { set_keys: Some(["env".into()].into()) };
    let config = ProxyConfig { upstream, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "CDS c[env=a]=1", config);
    let mut leaves: Vec<_> = (0..3).map(|pod| world.leaf("CDS", &format!("*?env=a&pod={pod}"))).collect();
    world.run();
    assert_eq!(world.requested(), "+*{env=a}");
    leaves.iter_mut().for_each(|leaf| assert_eq!(leaf.sent(), "n1 CDS c[env=a]=1"));
}

#[test]
fn with_sharing_off_each_locator_is_asked_for() {
    let config = ProxyConfig { sharing: Sharing::Off, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X r[env=a]=A", config);
    let mut leaves: Vec<_> = (0..3).map(|pod| world.leaf("X", &format!("r?env=a&pod={pod}"))).collect();
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=0} +r{env=a,pod=1} +r{env=a,pod=2}");
    leaves.iter_mut().for_each(|leaf| assert_eq!(leaf.sent(), "n1 X r[env=a]=A"));
}

#[test]
fn an_audit_asks_for_one_hit_in_so_many_and_gives_it_up_when_the_upstream_agrees() {
    let config = ProxyConfig { sharing: Sharing::Audit { one_in: 2 }, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X r[env=a]=A", config);
    let mut leaves = vec![world.leaf("X", "r?env=a&pod=0")];
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=0}");
    for pod in 1..=4 {
        leaves.push(world.leaf("X", &format!("r?env=a&pod={pod}")));
        world.run();
    }
    assert_eq!(world.requested(), "+r{env=a,pod=2} +r{env=a,pod=4}");
    world.pass(Duration::from_secs(5));
    assert_eq!(world.requested(), "-r{env=a,pod=2} -r{env=a,pod=4}");
    let counts = world.proxy.counts();
    assert_eq!((counts.audited, counts.disagreed), (2, 0));
}

/// Regression: an upstream subscription of an audit never ended if a locator relied on it, because
/// only audits with an end were checked.
#[test]
fn t43b_an_audited_upstream_subscription_ends_after_the_last_client_that_relies_on_it() {
    let config = ProxyConfig { sharing: Sharing::Audit { one_in: 1 }, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "CDS c[env=a]=1", config);
    let _keeps_what_is_at_hand = world.leaf("CDS", "*?env=a");
    world.run();
    let one = world.leaf("CDS", "c?env=a&pod=1");
    world.run();
    assert_eq!(world.requested(), "+*{env=a} +c{env=a,pod=1}");
    world.pass(Duration::from_secs(5));
    drop(one);
    world.run();
    world.pass(Duration::from_secs(34));
    assert_eq!((world.requested(), world.proxy.load().upstream), ("-c{env=a,pod=1}".into(), 1));
}

/// A server without TP2 that selects by the node of its client: our own, with subscriptions by
/// name.
#[test]
fn a_server_without_tp2_is_asked_on_one_stream_for_each_set_of_the_declared_keys() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS c[env=a]=1 c[env=b]=2 c[!env]=3", by_node(&["env"]));
        let leaf = |world: &World, node: &str| {
            let mut leaf = Sotw::new(world.proxy.cache());
            leaf.stream.on_node(parameters(node));
            leaf.ask("CDS", "", "");
            leaf
        };
        let (mut one, mut other) = (leaf(&world, "env=a pod=1"), leaf(&world, "env=a pod=2"));
        let (mut third, mut fourth) = (leaf(&world, "env=b pod=3"), leaf(&world, "pod=4"));
        world.run();
        assert_eq!((one.sent(), other.sent()), ("n1 CDS c=1".into(), "n1 CDS c=1".into()), "{protocol:?}");
        assert_eq!((third.sent(), fourth.sent()), ("n1 CDS c=2".into(), "n1 CDS c=3".into()));
        assert_eq!(world.proxy.load().upstream, 3, "one for each value of env, and one without");
        // Clients with TP2 get the constraints, from the same cache.
        let mut located = world.leaf("CDS", "c?env=a&pod=9");
        world.run();
        assert_eq!(located.sent(), "n1 CDS c[env=a]=1");
        world.commit("CDS -c[env=b]");
        third.ack("CDS", "1");
        third.pass(Duration::from_secs(5));
        world.pass(Duration::from_secs(5));
        assert_eq!(third.sent(), "");
        third.pass(Duration::from_secs(5));
        assert_eq!(third.sent(), "n2 CDS");
        one.ack("CDS", "1");
        assert_eq!(one.sent(), "");
    }
}

/// Regression: each client chose whether there was one more stream to the server.
#[test]
fn nodes_without_end_have_a_limit_of_streams_and_those_beyond_it_begin_when_others_end() {
    let config = ProxyConfig { upstream_streams_limit: 3, ..by_node(&["env"]) };
    let mut world = World::new(Protocol::Delta, "CDS c=1", config);
    let mut leaves: Vec<_> = (0..4).map(|env| world.leaf("CDS", &format!("c?env={env}"))).collect();
    world.run();
    assert_eq!(world.upstreams(), 3);
    let mut sent: Vec<_> = leaves.iter_mut().map(Delta::sent).collect();
    let refused = sent.iter().position(|sent| sent.contains('!')).unwrap();
    assert_eq!(sent.remove(refused), "n1 CDS !\"c\"(8)");
    assert!(sent.iter().all(|sent| sent.starts_with("n1 CDS c")), "{sent:?}");
    let mut waiting = leaves.remove(refused);
    drop(leaves);
    world.run();
    world.pass(Duration::from_secs(34));
    waiting.ack("CDS", "1");
    assert!(waiting.sent().starts_with("n2 CDS c"), "there is a stream for it now");
}

#[test]
fn an_outage_takes_nothing_away_and_a_miss_waits_for_its_end() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS c=1; X r[env=a]=A", ProxyConfig::default());
        let (mut state, mut leaf) = (world.sotw_leaf("CDS", ""), world.leaf("X", "r?env=a"));
        world.run();
        assert_eq!((state.sent(), leaf.sent()), ("n1 CDS c=1".into(), "n1 X r[env=a]=A".into()));
        state.ack("CDS", "1");
        leaf.ack("X", "1");
        world.lose();
        world.pass(Duration::from_secs(100));
        let mut hit = world.leaf("X", "r?env=a&pod=2");
        let mut miss = world.leaf("X", "r?env=b s");
        world.run();
        assert_eq!((hit.sent(), miss.sent()), ("n1 X r[env=a]=A".into(), String::new()));
        miss.pass(Duration::from_secs(10));
        assert_eq!(miss.sent(), "n1 X !\"r\"(14) !\"s\"(14)", "never that there is none");
        for leaf in [&mut hit, &mut leaf] {
            leaf.pass(Duration::from_secs(1000));
            assert_eq!(leaf.sent(), "");
        }
        state.pass(Duration::from_secs(1000));
        assert_eq!(state.sent(), "");
        world.is_up = true;
        world.commit("X r[env=b]=B");
        world.pass(Duration::from_secs(100));
        miss.ack("X", "1");
        world.pass(Duration::from_secs(15));
        assert_eq!(miss.sent(), "n2 X r[env=b]=B -s");
    }
}
