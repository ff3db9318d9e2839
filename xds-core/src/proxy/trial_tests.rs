//! Responses that a few clients try first.

use std::time::Duration;

use super::fixture::World;
use super::view::View;
use super::{Notice, ProxyConfig, Route};
use crate::ClientName;
use crate::client::{Protocol, ReadRoute};
use crate::server::fixture::wildcard::Wildcard;
use crate::server::fixture::{Delta, commit, parameters, payload, type_url};

fn trying(content: &str) -> World {
    World::new(Protocol::Delta, content, ProxyConfig { canaries: 1, ..ProxyConfig::default() })
}

fn leaves<const N: usize>(world: &World) -> [Delta; N] {
    std::array::from_fn(|pod| {
        let leaf = world.leaf("X", &format!("r?env=a&pod={pod}"));
        leaf.watch.name_client(ClientName { id: format!("pod-{pod}").as_str().into(), cluster: "".into() });
        leaf
    })
}

/// The responses of all clients, of which at most one tries something: the index and the response
/// of this client.
fn canary(leaves: &mut [Delta]) -> (usize, String) {
    let sent: Vec<_> = leaves.iter_mut().map(Delta::sent).collect();
    let got: Vec<_> = sent.iter().enumerate().filter(|(_, sent)| !sent.is_empty()).collect();
    let [(at, sent)] = got[..] else { panic!("{sent:?}") };
    (at, sent.clone())
}

fn answer(leaf: &mut Delta, nonce: &str, is_good: bool) {
    match is_good {
        true => leaf.ack("X", nonce),
        false => leaf.nack("X", nonce),
    };
    assert_eq!(leaf.sent(), "");
}

/// All have `r[env=a]=A`, each by its first response.
fn settled<const N: usize>(world: &mut World) -> [Delta; N] {
    let mut leaves = leaves::<N>(world);
    world.run();
    let (at, sent) = canary(&mut leaves);
    assert_eq!(sent, "n1 X r[env=a]=A");
    answer(&mut leaves[at], "1", true);
    world.conclude();
    for (other, leaf) in leaves.iter_mut().enumerate().filter(|(other, _)| *other != at) {
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A", "{other}");
        answer(leaf, "1", true);
    }
    assert_eq!(leaves[at].sent(), "", "it has that already");
    leaves
}

#[test]
fn what_one_client_accepts_the_others_are_sent() {
    let mut world = trying("X r[env=a]=A");
    let mut leaves = settled::<3>(&mut world);
    world.commit("X r[env=a]=B");
    let (at, sent) = canary(&mut leaves);
    assert_eq!(sent, "n2 X r[env=a]=B");
    answer(&mut leaves[at], "2", true);
    assert!(leaves.iter_mut().all(|leaf| leaf.sent().is_empty()), "nothing was decided yet");
    world.conclude();
    for (_, leaf) in leaves.iter_mut().enumerate().filter(|(other, _)| *other != at) {
        assert_eq!(leaf.sent(), "n2 X r[env=a]=B");
    }
    assert_eq!((world.rejected.len(), world.proxy.counts().tried), (0, 2));
}

#[test]
fn t45_what_one_client_rejects_is_rejected_upstream_by_name_and_nobody_else_is_sent_it() {
    let mut world = trying("X r[env=a]=A");
    let mut leaves = settled::<3>(&mut world);
    world.commit("X r[env=a]=B");
    let (at, _) = canary(&mut leaves);
    answer(&mut leaves[at], "2", false);
    world.conclude();
    assert_eq!(world.rejected, [format!("\"r\" [env=a]: client \"pod-{at}\" of the proxy rejected it: bad")]);
    world.rejected.clear();
    assert_eq!(canary(&mut leaves), (at, "n3 X r[env=a]=A".to_owned()), "it had something else");
    answer(&mut leaves[at], "3", true);
    assert_eq!(world.proxy.counts().refused_by_clients, 1);
    let notices = world.proxy.take_notices();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Refused { .. })), "{notices:?}");
    // A restarted upstream sends the same content again. The proxy knows that a client rejected it.
    world.lose();
    world.is_up = true;
    world.pass(Duration::from_secs(60));
    assert!(world.trying.is_none());
    assert!(leaves.iter_mut().all(|leaf| leaf.sent().is_empty()));
    world.rejected.clear();
    // And then it is mended.
    world.commit("X r[env=a]=C");
    let (at, sent) = canary(&mut leaves);
    assert!(sent.ends_with("X r[env=a]=C"), "{sent}");
    let nonce = sent[1..].split(' ').next().unwrap().to_owned();
    answer(&mut leaves[at], &nonce, true);
    world.conclude();
    let sent: Vec<_> = leaves.iter_mut().map(Delta::sent).filter(|sent| !sent.is_empty()).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|sent| sent.ends_with("X r[env=a]=C")), "{sent:?}");
}

/// Regression: the clients of a wildcard were told that the resource does not exist, when one of them
/// rejected the variant in its place and another wildcard had none (seed 14997).
#[test]
fn t31_t45_a_wildcard_keeps_a_member_whose_new_variant_is_refused() {
    for (then, told) in [
        ("X r[env=a]=C", "1: X r[env=a]=C, 0: X r[env=a]=C -r[]"),
        ("X -r[env=a]", "0: X -r[], 1: X -r[env=a]"),
    ] {
        let mut world = trying("X r=A");
        let mut leaves = ["*?env=a", "*?env=a", "*?env=b"].map(|list| world.leaf("X", list));
        for (pod, leaf) in leaves.iter().enumerate() {
            let id = format!("pod-{pod}");
            leaf.watch.name_client(ClientName { id: id.as_str().into(), cluster: "".into() });
        }
        settle(&mut world, &mut leaves, true);
        world.commit("X -r r[env=a]=B");
        let sent = settle(&mut world, &mut leaves, false);
        assert_eq!(sent, "1: X r[env=a]=B -r[], 2: X -r[]");
        world.commit(then);
        assert_eq!(settle(&mut world, &mut leaves, true), told);
    }
}

/// Lets all clients answer, and trials end. Returns what each client was sent.
fn settle(world: &mut World, leaves: &mut [Delta], is_good: bool) -> String {
    let mut all = Vec::new();
    for _ in 0..4 {
        world.run();
        for (at, leaf) in leaves.iter_mut().enumerate() {
            let sent = leaf.sent();
            if let Some((nonce, content)) = sent.strip_prefix('n').and_then(|sent| sent.split_once(' ')) {
                answer(leaf, nonce, is_good);
                all.push(format!("{at}: {content}"));
            }
        }
        if world.trying.is_some() {
            world.conclude();
        }
    }
    all.join(", ")
}

#[test]
fn who_does_not_answer_in_time_rejects_nothing() {
    let mut world = trying("X r[env=a]=A");
    let mut leaves = settled::<2>(&mut world);
    world.commit("X r[env=a]=B");
    let (at, _) = canary(&mut leaves);
    world.conclude();
    assert_eq!(leaves[1 - at].sent(), "n2 X r[env=a]=B");
    assert_eq!(world.rejected, [""; 0]);
}

#[test]
fn a_new_resource_that_is_rejected_is_not_absent_for_the_others() {
    let mut world = trying("X r[env=a]=A");
    let mut leaves = leaves::<2>(&world);
    world.run();
    let (at, _) = canary(&mut leaves);
    answer(&mut leaves[at], "1", false);
    world.conclude();
    let sent = leaves[1 - at].sent();
    assert!(!sent.contains("-r") && !sent.contains("=A"), "{sent}");
    // The proxy subscribed for the other client, and the upstream sent the same content.
    let by_name = format!("\"r\" [env=a]: client \"pod-{at}\" of the proxy rejected it: bad");
    assert!(!world.rejected.is_empty() && world.rejected.iter().all(|text| *text == by_name));
    assert_eq!(world.proxy.cache().snapshot().get(&type_url("X"), &"r".into()).map(|of| of.len()), None);
}

#[test]
fn a_response_whose_stream_ends_while_it_is_tried_was_never_there() {
    let mut world = trying("X r[env=a]=A");
    let mut leaves = settled::<2>(&mut world);
    world.commit("X r[env=a]=B");
    let (at, _) = canary(&mut leaves);
    answer(&mut leaves[at], "2", true);
    world.lose();
    assert_eq!(canary(&mut leaves), (at, "n3 X r[env=a]=A".to_owned()));
    answer(&mut leaves[at], "3", true);
    world.is_up = true;
    world.pass(Duration::from_secs(60));
    let (at, sent) = canary(&mut leaves);
    assert!(sent.ends_with("X r[env=a]=B"), "{at}: {sent}");
}

#[test]
fn each_variant_of_a_response_is_tried_by_clients_that_it_is_for() {
    let mut world = trying("X r[env=a]=A r[env=b]=B s[env=a]=S");
    let mut leaves: Vec<_> = ["r?env=a&pod=0", "r?env=b&pod=1", "r?env=a&pod=2", "r?env=b&pod=3"]
        .map(|list| world.leaf("X", list))
        .into();
    for _ in 0..4 {
        world.run();
        leaves.iter_mut().for_each(|leaf| _ = leaf.sent());
        if world.trying.is_some() {
            world.conclude();
        }
    }
    leaves.iter_mut().for_each(|leaf| _ = leaf.ack("X", "1"));
    world.commit("X r[env=a]=C r[env=b]=D");
    let sent: Vec<_> = leaves.iter_mut().map(Delta::sent).filter(|sent| !sent.is_empty()).collect();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(["=C", "=D"].iter().all(|content| sent.iter().any(|sent| sent.ends_with(content))), "{sent:?}");
}

/// A stream subscribes to more while it may not see the newest state yet.
#[test]
fn who_asks_for_something_else_while_others_try_misses_nothing() {
    let mut world = trying("X r[env=a]=A s[env=a]=S");
    let mut leaves = settled::<2>(&mut world);
    world.commit("X r[env=a]=B");
    let (at, _) = canary(&mut leaves);
    let other = &mut leaves[1 - at];
    other.ask("X", "-r?env=a&pod=0 -r?env=a&pod=1");
    other.ask("X", "s?env=a r?env=a");
    assert_eq!(other.sent(), "n2 X r[env=a]=A", "as before");
    other.ack("X", "2");
    answer(&mut leaves[at], "2", true);
    world.conclude();
    let mut sent = leaves[1 - at].sent();
    while world.trying.is_some() {
        sent += &leaves[1 - at].sent();
        world.conclude();
    }
    sent += &leaves[1 - at].sent();
    assert!(sent.contains("r[env=a]=B"), "{sent}");
}

#[test]
fn without_canaries_nothing_is_tried() {
    let mut world = World::delta("X r[env=a]=A");
    let mut leaf = world.leaf("X", "r?env=a");
    world.run();
    assert!(world.trying.is_none());
    assert_eq!(leaf.sent(), "n1 X r[env=a]=A");
}

/// D13: a variant that one response brings and removes does neither, also if no client subscribes
/// to it any more.
#[test]
fn d13_what_nobody_tries_and_the_judge_refuses_does_not_stay() {
    let mut world = trying("X r[env=a]=A");
    let leaves = settled::<2>(&mut world);
    drop(leaves);
    world.run();
    world.try_lie("X v9 n9: r[env=a]=L -r[env=a]");
    assert!(world.trying.is_none());
    let mut late = world.leaf("X", "r?env=a&pod=9");
    world.run();
    assert_eq!(late.sent(), "n1 X r[env=a]=A");
}

/// T43: an upstream subscription whose variant came by a trial is matched again when the variant is
/// taken back.
#[test]
fn t43_who_asked_while_others_tried_and_the_upstream_was_lost_is_asked_for_after_all() {
    let mut world = trying("X");
    let mut first = world.leaf("X", "r?env=a&pod=0");
    world.run();
    assert_eq!(first.sent(), "n1 X -r");
    first.ack("X", "1");
    world.commit("X r=A");
    world.run();
    assert!(world.trying.is_some());
    let mut late = world.leaf("X", "r?env=a&pod=1");
    world.run();
    world.lose();
    world.commit("X -r r[pod=1]=B");
    world.is_up = true;
    for _ in 0..3 {
        world.pass(Duration::from_secs(5));
        while world.trying.is_some() {
            world.conclude();
        }
    }
    assert_eq!(late.sent(), "n1 X r[pod=1]=B");
}

/// The view showed new content as soon as it was in the cache, although clients still tried it.
#[test]
fn a_program_reads_content_that_clients_try_first_only_when_it_is_accepted() {
    let mut world = trying("X r[env=a]=A");
    let view = View::new(world.proxy.cache());
    let read = |world: &World| {
        view.follow(world.proxy.health(&Route::SHARED).unwrap());
        let guard = view.read_raw(&type_url("X"));
        let ReadRoute::Cache(resources) = guard.route() else { panic!("it is synced") };
        resources.get_with("r", &parameters("env=a")).unwrap().unwrap().0.clone()
    };
    let mut leaves = settled::<2>(&mut world);
    assert_eq!(read(&world), payload("X", "r", "A"));
    for (content, is_good, then) in [("B", false, "A"), ("C", true, "C")] {
        world.commit(&format!("X r[env=a]={content}"));
        let (at, sent) = canary(&mut leaves);
        assert_eq!(read(&world), payload("X", "r", "A"), "one client tries {content}");
        answer(&mut leaves[at], sent[1..].split(' ').next().unwrap(), is_good);
        world.conclude();
        assert_eq!(read(&world), payload("X", "r", then));
        for leaf in &mut leaves {
            let sent = leaf.sent();
            if let Some((nonce, _)) = sent.strip_prefix('n').and_then(|sent| sent.split_once(' ')) {
                answer(leaf, nonce, true);
            }
        }
        world.rejected.clear();
    }
}

/// A new listener may have the address of the removed one.
#[test]
fn s33_additions_and_removals_of_one_response_are_tried_together() {
    for type_name in ["LDS", "SRDS", "VHDS"] {
        for parameters in ["", "?env=a"] {
            let mut world = trying(&format!("{type_name} a=1"));
            let mut leaves = ["one", "other"].map(|id| {
                let leaf = world.leaf(type_name, &format!("*{parameters}"));
                leaf.watch.name_client(ClientName { id: id.into(), cluster: "".into() });
                leaf
            });
            world.run();
            // Nobody can try the first response, as it completes the wildcard.
            world.conclude();
            leaves.iter_mut().for_each(|leaf| {
                leaf.sent();
                leaf.ack(type_name, "1");
            });
            world.commit(&format!("{type_name} -a b=1"));
            let (at, sent) = canary(&mut leaves);
            let any = if parameters.is_empty() { "" } else { "[]" };
            let both = format!("n2 {type_name} b{any}=1 -a{any}");
            assert_eq!(sent, both);
            leaves[at].ack(type_name, "2");
            world.conclude();
            assert_eq!((leaves[1 - at].sent(), leaves[at].sent()), (both, String::new()));
            leaves[1 - at].ack(type_name, "2");
            // D1: after a reconnect, the server removes the whole name.
            world.lose();
            world.commit(&format!("{type_name} -b c=1"));
            world.is_up = true;
            world.pass(Duration::from_secs(5));
            let (at, sent) = canary(&mut leaves);
            let both = format!("n3 {type_name} c{any}=1 -b{any}");
            assert_eq!(sent, both);
            leaves[at].ack(type_name, "3");
            world.conclude();
            assert_eq!((leaves[1 - at].sent(), leaves[at].sent()), (both, String::new()));
        }
    }
}

#[test]
fn t45_g4_no_client_of_a_wildcard_is_told_of_an_absence_while_one_tries_a_response_rejects_it_or_loses_it() {
    for is_lost in [true, false] {
        let what = format!("lost: {is_lost}");
        let mut world = trying("CDS a=1 b=1 k=1; X a=1 b=1 k=1");
        let (mut clients, mut trials) = (Vec::new(), 0);
        // Each step has more clients. They reject `a=2`.
        for step in ["", "", "a=2 -k", "", "", "a=3 m=1"] {
            let mut new = Wildcard::all(world.proxy.cache(), &format!("{}", clients.len()));
            new.iter_mut().for_each(|client| client.rejects = Some("a=2"));
            clients.append(&mut new);
            commit(&world.origin, &format!("CDS {step}; X {step}"));
            for _ in 0..4 {
                world.run();
                clients.iter_mut().for_each(|client| client.read(&["a", "b"], &format!("{what}, {step}")));
                if world.trying.is_some() && step.contains("a=2") && is_lost {
                    trials += 1;
                    world.lose();
                } else if world.trying.is_some() {
                    trials += 1;
                    world.conclude();
                }
                world.pass(Duration::from_secs(1));
            }
            if !world.is_up {
                world.pass(Duration::from_secs(60));
                world.is_up = step.is_empty();
            }
            world.rejected.clear();
        }
        for _ in 0..4 {
            world.pass(Duration::from_secs(60));
            for (at, client) in clients.iter_mut().enumerate() {
                client.read(&["a", "b"], &format!("{what}, {at}"));
            }
            if world.trying.is_some() {
                trials += 1;
                world.conclude();
            }
        }
        assert!(trials > 1, "{what}: {trials}");
        for (at, client) in clients.iter_mut().enumerate() {
            client.check(&["a", "b"], &["a=3", "b=1", "m=1"], &format!("{what}, {at}"));
        }
    }
}
