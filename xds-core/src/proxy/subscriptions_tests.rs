//! How upstream subscriptions come and go: in batches, at the limit, while other locators wait for
//! them.

use std::time::Duration;

use super::fixture::World;
use super::{ProxyConfig, ProxyLoad, SetChange, SetId, Sharing};
use crate::client::{Protocol, Restored};
use crate::known_type::KnownType;
use crate::resource::VariantId;
use crate::server::fixture::{Delta, payload, type_url};
use crate::{Constraints, Parameters};

/// The subscription that ended and the one that replaced it have one watch of the client. The proxy
/// must not forget it.
#[test]
fn a_client_that_subscribes_again_when_an_upstream_subscription_ends_is_answered() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS r=A", ProxyConfig::default());
        let _keeps_the_stream = world.leaf("CDS", "s");
        let one = world.leaf("CDS", "r");
        world.run();
        drop(one);
        world.run();
        world.requested();
        let mut other = world.leaf("CDS", "r");
        world.pass(Duration::from_secs(60));
        assert_eq!((other.sent(), world.requested()), ("n1 CDS r=A".into(), String::new()), "{protocol:?}");
        other.ack("CDS", "1");
        world.commit("CDS -r");
        world.pass(Duration::from_secs(20));
        assert_eq!(other.sent(), "", "S33");
        other.pass(Duration::from_secs(5));
        assert_eq!(other.sent(), "n2 CDS -r", "{protocol:?}");
    }
}

#[test]
fn who_was_refused_is_asked_for_when_others_leave() {
    let config =
        ProxyConfig { upstream_subscriptions_limit: 2, sharing: Sharing::Off, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X r[env=a]=A", config);
    let mut leaves: Vec<_> = (0..3).map(|pod| world.leaf("X", &format!("r?env=b&pod={pod}"))).collect();
    let mut served = world.leaf("X", "r?env=a&pod=9");
    world.run();
    assert_eq!(leaves[0].sent(), "n1 X -r");
    assert_eq!(leaves[2].sent(), "n1 X !\"r\"(8)");
    assert_eq!(served.sent(), "n1 X !\"r\"(8)");
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 4, upstream: 2 });
    leaves.remove(0);
    world.run();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.proxy.load(), ProxyLoad { downstream: 3, upstream: 2 });
    leaves[1].ack("X", "1");
    assert_eq!(leaves[1].sent(), "n2 X -r", "what lingers gives way");
}

/// G9: a control plane ends the stream of a client that asks for too much, here that of all clients.
#[test]
fn g9_the_names_and_types_of_one_client_do_not_end_the_stream_of_all() {
    let config = ProxyConfig { upstream_names_limit: 2, upstream_types_limit: 2, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "CDS a=1 b=1 c=1; RDS r=1; EDS e=1 f=1", config);
    let mut first = world.leaf("CDS", "a");
    let mut attacker = world.leaf("CDS", "b");
    world.run();
    assert_eq!((first.sent(), attacker.sent()), ("n1 CDS a=1".into(), "n1 CDS b=1".into()));
    let mut routes = world.leaf("RDS", "r");
    world.run();
    let mut of_type = [world.leaf("CDS", "c"), world.leaf("CDS", "a")];
    let mut assignments = world.leaf("EDS", "e f");
    world.run();
    assert_eq!(of_type[0].sent(), "n1 CDS !\"c\"(8)");
    assert_eq!(of_type[1].sent(), "n1 CDS a=1", "what is cached is served");
    assert_eq!(routes.sent(), "n1 RDS r=1");
    assert_eq!(assignments.sent(), "n1 EDS !\"e\"(8) !\"f\"(8)");
    drop(attacker);
    world.run();
    world.pass(Duration::from_secs(60));
    of_type[0].ack("CDS", "1");
    assert_eq!(of_type[0].sent(), "n2 CDS c=1", "there is room now");
    assignments.ack("EDS", "1");
    assert_eq!(assignments.sent(), "");
    drop(routes);
    world.run();
    world.pass(Duration::from_secs(60));
    assert_eq!(assignments.sent(), "", "the server does not forget the type before the stream ends");
    reopen(&mut world);
    assert_eq!(assignments.sent(), "n2 EDS e=1 f=1");
    // Both names of a type end in one event, and two others wait.
    let mut late = ["r", "s"].map(|name| world.leaf("RDS", name));
    world.run();
    assert_eq!(late.each_mut().map(Delta::sent), ["n1 RDS !\"r\"(8)", "n1 RDS !\"s\"(8)"]);
    drop(assignments);
    world.run();
    world.pass(Duration::from_secs(60));
    reopen(&mut world);
    let [r, s] = &mut late;
    r.ack("RDS", "1");
    s.ack("RDS", "1");
    assert_eq!([r.sent(), s.sent()], ["n2 RDS r=1", "n2 RDS -s"]);
}

/// The stream to the origin ends, and the next one is opened.
fn reopen(world: &mut World) {
    world.lose();
    world.is_up = true;
    world.pass(Duration::from_secs(10));
}

/// Regression: the types of the past did not count, so a client that went from type to type ended the stream of all.
#[test]
fn g9_types_without_end_do_not_end_the_stream_of_all() {
    let mut world = World::delta("CDS a=1; RDS r=1");
    let mut honest = world.leaf("CDS", "a");
    world.run();
    assert_eq!(honest.sent(), "n1 CDS a=1");
    honest.ack("CDS", "1");
    let limit = ProxyConfig::default().upstream_types_limit;
    for round in 0..2 * limit {
        let type_name = format!("T{round}");
        let mut attacker = world.leaf(&type_name, "b");
        world.run();
        let refused = if round < limit - KnownType::COUNT { "-b" } else { "!\"b\"(8)" };
        assert_eq!(attacker.sent(), format!("n1 {type_name} {refused}"));
        drop(attacker);
        world.run();
    }
    world.commit("CDS a=2");
    assert_eq!(honest.sent(), "n2 CDS a=2");
    let mut routes = world.leaf("RDS", "r");
    world.run();
    assert_eq!(routes.sent(), "n1 RDS r=1", "there is room for the types of the protocol");
    let mut own = world.leaf("Own", "b");
    world.run();
    assert_eq!(own.sent(), "n1 Own !\"b\"(8)");
    reopen(&mut world);
    own.ack("Own", "1");
    assert_eq!(own.sent(), "n2 Own -b", "the next stream has room");
}

/// Regression: such a locator made the request of all clients too large.
#[test]
fn g9_a_locator_that_no_control_plane_would_read_is_refused_alone() {
    let mut world = World::delta("X a=1");
    let mut honest = world.leaf("X", "a");
    let long = format!("b?pod={}", "x".repeat(1 << 20));
    let mut attacker = world.leaf("X", &long);
    world.run();
    assert_eq!((honest.sent(), world.requested()), ("n1 X a=1".into(), "+a{}".into()));
    assert_eq!(attacker.sent(), "n1 X !\"b\"(8)");
}

/// T35: absence for one locator says nothing about the others, but no locator has to wait for the
/// responses to all others.
#[test]
fn an_absent_name_is_asked_for_by_all_who_waited_at_once() {
    for content in ["X s=S", "X r[env=b]=B s=S"] {
        let mut world = World::delta(content);
        world.is_slow = true;
        let mut seen = world.leaf("X", "r?env=b");
        world.run();
        let mut leaves: Vec<_> = (0..20).map(|pod| world.leaf("X", &format!("r?env=a&pod={pod}"))).collect();
        world.run();
        let mut turns = 0;
        while leaves.iter_mut().any(|leaf| leaf.last.nonce.is_empty() && leaf.sent().is_empty()) {
            world.is_slow = false;
            world.run_once();
            turns += 1;
            assert!(turns < 100);
        }
        assert!(turns <= 5, "{turns}");
        seen.sent();
    }
}

fn restored(type_name: &str, name: &str, content: &str) -> Restored {
    let constraints = Constraints::NONE;
    let id = VariantId { type_url: type_url(type_name), name: name.into(), constraints };
    let payload = payload(type_name, name, content);
    Restored { id, payload, version: "1".into(), ttl: None, aliases: Vec::new() }
}

#[test]
fn a_restored_wildcard_is_complete_only_as_long_as_its_members_are_kept() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS a=1 b=1", ProxyConfig::default());
        restore_set(&mut world, vec![restored("CDS", "a", "0")]);
        world.is_up = false;
        let mut one = world.sotw_leaf("CDS", "*?");
        world.run();
        assert_eq!(one.sent(), "n1 CDS a[]=0", "{protocol:?}");
        one.ack("CDS", "1");
        world.is_up = true;
        world.run();
        assert_eq!(one.sent(), "n2 CDS a[]=1 b[]=1", "{protocol:?}");
        drop(one);
        world.run();
        world.pass(Duration::from_secs(60));
        world.lose();
        let mut late = world.sotw_leaf("CDS", "*?");
        world.run();
        assert_eq!(late.sent(), "", "nobody knows any more");
    }
}

fn wildcard() -> SetId {
    SetId { type_url: type_url("CDS"), name: "*".into(), parameters: Parameters::new() }
}

fn restore_set(world: &mut World, members: Vec<Restored>) {
    world.proxy.restore(world.now, [wildcard()], members);
}

/// Regression: members of a restored set were missing in a full state, because the response to
/// another subscription had removed them.
#[test]
fn s25_a_restored_wildcard_that_lost_a_member_before_it_is_asked_for_waits_for_the_upstream() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let mut world = World::new(protocol, "CDS b=0", ProxyConfig::default());
        restore_set(&mut world, vec![restored("CDS", "a", "0"), restored("CDS", "b", "0")]);
        let named = world.leaf("CDS", "a?");
        world.run();
        world.pass(Duration::from_secs(60));
        world.lose();
        drop(named);
        let mut late = world.sotw_leaf("CDS", "*?");
        world.run();
        assert_eq!(late.sent(), "", "{protocol:?}");
        world.is_up = true;
        world.run();
        world.pass(Duration::from_secs(60));
        assert_eq!(late.sent(), "n1 CDS b[]=0", "{protocol:?}");
    }
}

#[test]
fn a_set_is_for_the_file_while_it_is_asked_for_and_all_of_it_may_be_kept() {
    let mut world = World::scripted(Protocol::Delta);
    let leaf = world.leaf("CDS", "*?");
    world.run();
    assert_eq!(world.proxy.take_set_changes(), []);
    world.get("CDS v1 n1: a[]=1");
    assert_eq!(world.proxy.take_set_changes(), [SetChange::Complete(wildcard())]);
    drop(leaf);
    world.run();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.proxy.take_set_changes(), [SetChange::Left(wildcard())]);

    // T43c: it comes without constraints.
    let _leaf = world.leaf("CDS", "*?");
    world.run();
    world.get("CDS v2 n2: a[]=1 b=1");
    let unkept = SetChange::Unkept { type_url: type_url("CDS"), name: "*".into() };
    assert!(world.proxy.take_set_changes().contains(&unkept));
}

#[test]
fn an_upstream_subscription_that_a_client_joined_before_its_response_lingers_anew() {
    let config = ProxyConfig { linger: Duration::from_millis(40), ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X r=A", config);
    world.is_slow = true;
    let _keeps_the_stream = world.leaf("X", "s");
    let one = world.leaf("X", "r?pod=1");
    world.run();
    drop(one);
    world.run();
    world.pass(Duration::from_millis(30));
    let other = world.leaf("X", "r?pod=2");
    world.run();
    world.pass(Duration::from_millis(15));
    drop(other);
    world.run();
    assert_eq!(world.requested(), "+r{pod=1} +s{}");
    world.pass(Duration::from_millis(44));
    assert_eq!(world.requested(), "-r{pod=1}");
}

#[test]
fn an_audit_that_somebody_relies_on_ends_all_the_same() {
    let config = ProxyConfig { sharing: Sharing::Audit { one_in: 1 }, ..ProxyConfig::default() };
    let mut world = World::new(Protocol::Delta, "X r=A", config);
    let one = world.leaf("X", "r?pod=1");
    world.run();
    let other = world.leaf("X", "r?pod=2");
    world.run();
    world.commit("X -r");
    drop((one, other));
    world.run();
    world.pass(Duration::from_secs(60));
    world.pass(Duration::from_secs(60));
    assert_eq!(world.proxy.load(), ProxyLoad::default());
}

/// The wait has an end also where the upstream was connected all the time.
#[test]
fn who_joins_on_a_stream_that_stands_waits_50_ms_and_then_asks() {
    let mut world = World::delta("X r[env=a]=A");
    let _keeps_the_stream = world.leaf("X", "s");
    world.run();
    world.requested();
    world.is_slow = true;
    let _leaves: Vec<_> = (0..2).map(|pod| world.leaf("X", &format!("r?env=a&pod={pod}"))).collect();
    world.run();
    assert_eq!(world.requested(), "+r{env=a,pod=0}");
    world.pass(Duration::from_millis(50));
    assert_eq!(world.requested(), "+r{env=a,pod=1}");
}
