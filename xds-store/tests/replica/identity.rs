//! Snapshots, and ids that two nodes have.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::record::RecordState;
use xds_store::replica::*;
use xds_store::store::{Stopped, Ticket};

use crate::fixture::*;
use crate::sim::SECOND;

fn out_of_sync(origin: &str, floor: u64) -> proto::PullResponse {
    let out = proto::OutOfSync { origin: origin.into(), floor, must_replace: true };
    proto::PullResponse { out_of_sync: vec![out], ..last(&[(origin, floor)]) }
}

fn snapshot(actions: &[Action]) -> Option<(String, bool)> {
    actions.iter().find_map(|action| match action {
        Action::TakeSnapshot { address, must_replace, .. } => Some((address.clone(), *must_replace)),
        _ => None,
    })
}

#[test]
fn sr19_a_snapshot_is_taken_when_no_answering_peer_can_serve_an_origin() {
    let (mut one, calls) = One::start(&["a", "b", "c"]);
    let of_a = pulls(&one.greet(calls[0], "p", "1", &[]))[0].0;
    // The others were not reached yet, and may be able to serve.
    assert_eq!(snapshot(&one.step(Event::PullPart(of_a, out_of_sync("x", 5)))), None);
    one.step(Event::HelloAnswered(calls[1], Err(Failure::Unreachable)));
    let of_c = pulls(&one.greet(calls[2], "q", "1", &[]))[0].0;
    // A peer that serves it.
    assert_eq!(snapshot(&one.step(Event::PullPart(of_c, last(&[("x", 6)])))), None);
    let again = |one: &mut One, answer: proto::PullResponse, address: &str| {
        let call = one.wait_for(|action| match action {
            Action::CallPull(call, at, _) if at == address => Some(*call),
            _ => None,
        });
        one.step(Event::PullPart(call, answer))
    };
    assert_eq!(snapshot(&again(&mut one, out_of_sync("x", 5), "a")), None);
    // One that does not name the origin serves nothing of it.
    again(&mut one, last(&[]), "c");
    let actions = again(&mut one, out_of_sync("x", 5), "a");
    assert_eq!(snapshot(&actions), Some(("a".to_owned(), true)));
    // No pulls until it ends, and no second snapshot.
    assert_eq!(pulls(&one.step(Event::Due)), []);
    let actions = one.step(Event::SnapshotEnded(Ok(clock(&[("x", 6)]))));
    assert!(!pulls(&actions).is_empty());
    assert_eq!(one.replica.clock().get("x").counter, 6);
}

#[test]
fn sr19_a_new_node_starts_with_a_snapshot_and_tries_again_after_a_failure() {
    let mut config = config();
    config.is_joining = true;
    let (mut one, calls) = One::with(config, &clock(&[]), &["a"]);
    let actions = one.greet(calls[0], "p", "1", &[("p", 3)]);
    assert_eq!((snapshot(&actions), pulls(&actions).len()), (Some(("a".to_owned(), false)), 0));
    assert_eq!(one.step(Event::SnapshotEnded(Err(Failure::Unreachable))), []);
    let call = one.wait_for(|action| hellos(std::slice::from_ref(action)).first().copied());
    assert!(INTERVAL.contains(&one.now));
    assert_eq!(snapshot(&one.greet(call, "p", "1", &[("p", 3)])), Some(("a".to_owned(), false)));
    assert_eq!(pulls(&one.step(Event::SnapshotEnded(Ok(clock(&[("p", 3)]))))).len(), 1);
}

/// Regression: a peer whose snapshots hang was asked again and again, 10 s each time.
#[test]
fn sr19_a_peer_whose_snapshot_came_to_no_end_is_asked_again_after_the_others() {
    let asked = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::TakeSnapshot { address, has_other, .. } => Some((address.clone(), *has_other)),
            _ => None,
        })
    };
    // The next calls to both peers, in whatever order they come.
    let both = |one: &mut One| {
        let mut calls = BTreeMap::new();
        one.wait_for(|action| {
            if let Action::CallHello(call, at, _) | Action::CallPull(call, at, _) = action {
                calls.insert(at.clone(), *call);
            }
            Some((*calls.get("a")?, *calls.get("b")?))
        })
    };
    // A node that joins.
    let mut joining = config();
    joining.is_joining = true;
    let (mut one, calls) = One::with(joining, &clock(&[]), &["a", "b", "c"]);
    one.step(Event::HelloAnswered(calls[2], Err(Failure::Unreachable)));
    assert_eq!(asked(&one.greet(calls[0], "p", "1", &[])), Some(("a".to_owned(), true)));
    one.step(Event::SnapshotEnded(Err(Failure::Unreachable)));
    let (of_a, of_b) = both(&mut one);
    assert_eq!(asked(&one.greet(of_a, "p", "1", &[])), None, "b was not asked");
    assert_eq!(asked(&one.greet(of_b, "q", "1", &[])), Some(("b".to_owned(), false)));
    one.step(Event::SnapshotEnded(Err(Failure::Unreachable)));
    // Both were asked, so each has the whole time; one that is down is not waited for.
    let (of_a, of_b) = both(&mut one);
    one.step(Event::HelloAnswered(of_a, Err(Failure::Unreachable)));
    assert_eq!(asked(&one.greet(of_b, "q", "1", &[])), Some(("b".to_owned(), false)));
    // A node that lacks entries.
    let (mut one, calls) = One::start(&["a", "b"]);
    let of_a = pulls(&one.greet(calls[0], "p", "1", &[]))[0].0;
    let of_b = pulls(&one.greet(calls[1], "q", "1", &[]))[0].0;
    one.step(Event::PullPart(of_a, out_of_sync("x", 5)));
    assert_eq!(asked(&one.step(Event::PullPart(of_b, out_of_sync("x", 5)))), Some(("b".to_owned(), true)));
    one.step(Event::SnapshotEnded(Err(Failure::Unreachable)));
    let (of_a, of_b) = both(&mut one);
    one.step(Event::PullPart(of_a, out_of_sync("x", 5)));
    assert_eq!(asked(&one.step(Event::PullPart(of_b, out_of_sync("x", 5)))), Some(("a".to_owned(), false)));
}

#[test]
fn sr31_a_node_with_a_new_id_takes_one_snapshot_after_its_first_round_with_a_peer() {
    let mut config = config();
    config.owes_reissue = true;
    let (mut one, calls) = One::with(config, &clock(&[]), &["a", "b"]);
    let pull = |actions: &[Action]| pulls(actions)[0].0;
    let call = pull(&one.greet(calls[0], "p", "1", &[]));
    // What the peer has comes before, and says whether deletions are forgotten there (SR21).
    let actions = one.step(Event::PullPart(call, out_of_sync("x", 5)));
    assert_eq!(snapshot(&actions), Some(("a".to_owned(), true)));
    // It is owed until one is taken.
    one.step(Event::SnapshotEnded(Err(Failure::Unreachable)));
    let round = |one: &mut One, counter| {
        let call = one.wait_for(|action| match action {
            Action::CallPull(call, at, _) if at == "a" => Some(*call),
            _ => None,
        });
        snapshot(&one.step(Event::PullPart(call, last(&[("x", counter)]))))
    };
    assert_eq!(round(&mut one, 5), Some(("a".to_owned(), false)));
    let call = pull(&one.step(Event::SnapshotEnded(Ok(clock(&[("x", 5)])))));
    assert_eq!(snapshot(&one.step(Event::PullPart(call, last(&[("x", 5)])))), None);
    // An id that is new again owes again.
    one.step(Event::Renamed { node: "new".into(), clock: clock(&[("x", 5)]), owes_reissue: true });
    assert!(one.replica.is_in_sync());
    assert_eq!(round(&mut one, 5), Some(("a".to_owned(), false)));
}

/// SR20, SR33: it serves on. Nobody could give it the snapshot any more.
#[test]
fn sr20_sr33_a_node_does_not_wait_for_the_snapshot_of_a_forgotten_peer() {
    let (mut one, calls) = One::with(config(), &clock(&[("p", 1)]), &["a"]);
    let call = pulls(&one.greet(calls[0], "p", "1", &[("p", 9)]))[0].0;
    let actions = one.step(Event::PullPart(call, out_of_sync("p", 5)));
    assert_eq!(snapshot(&actions), Some(("a".to_owned(), true)));
    one.step(Event::SnapshotEnded(Err(Failure::Unreachable)));
    assert!(!one.replica.is_in_sync());
    one.step(Event::Forgotten(["p".to_owned()].into()));
    assert!(one.replica.is_in_sync());
}

#[test]
fn sr28_a_node_finds_that_its_id_or_its_entries_are_not_its_own() {
    let start = || {
        let (mut one, _) = One::with(config(), &clock(&[("me", 4)]), &["a"]);
        one.greeted(hello("p", "1"));
        one
    };
    let lost = |actions: &[Action]| {
        actions.iter().find_map(|action| if let Action::TakeNewId(why) = action { Some(*why) } else { None })
    };
    assert_eq!(lost(&start().greeted(hello("me", "2"))), Some(IdLost::Twin));
    assert_eq!(lost(&start().pulled("p", &[("me", 5)])), Some(IdLost::Behind));
    let mut forked = clock(&[]);
    forked.set("me", position(4, 2));
    let request = proto::PullRequest { node: "p".into(), clock: forked.to_wire(), ..Default::default() };
    assert_eq!(lost(&start().step(Event::Pull(Ticket(1), request, Vec::new()))), Some(IdLost::Forked));
    let request = proto::PullRequest { node: "p".into(), ..Default::default() };
    let forked = Event::Pull(Ticket(1), request, vec!["me".to_owned()]);
    assert_eq!(lost(&start().step(forked)), Some(IdLost::Forked));
    // A clock that is older, or that does not name this node, proves nothing.
    assert_eq!(lost(&start().pulled("p", &[("me", 3)])), None);
    assert_eq!(lost(&start().pulled("p", &[("p", 9)])), None);

    // Its own calls show the same.
    let (mut one, calls) = One::start(&["a"]);
    assert_eq!(lost(&one.greet(calls[0], "me", "2", &[])), Some(IdLost::Twin));
    let (mut one, pull) = One::pulling(&[]);
    let answer = proto::PullResponse { forked: vec!["me".to_owned()], ..last(&[]) };
    assert_eq!(lost(&one.step(Event::PullPart(pull, answer))), Some(IdLost::Forked));
}

#[test]
fn sr28_two_processes_that_answer_in_turn_are_twins_and_a_restart_is_none() {
    let (mut one, calls) = One::start(&["a", "b"]);
    let next = |one: &mut One, address: &str| {
        one.wait_for(|action| match action {
            Action::CallHello(call, at, _) if at == address => Some(*call),
            _ => None,
        })
    };
    // The process at `a` is another one than that at `b`, whose call was sent before: not a proof.
    one.greet(calls[0], "p", "1", &[]);
    let actions = one.greet(calls[1], "p", "2", &[]);
    assert_eq!(one.replica.alarms().count(), 0, "{actions:?}");
    for call in 0..2 {
        let call = CallId(calls[1].0 + 1 + call);
        one.step(Event::PullFailed(call, Failure::Unreachable));
    }
    let mut alarms = Vec::new();
    for boot in ["1", "2", "1"] {
        let address = if boot == "1" { "a" } else { "b" };
        let call = next(&mut one, address);
        let actions = one.greet(call, "p", boot, &[]);
        alarms.push(actions.contains(&Action::Raise(Alarm::Twins("p".into()))));
        if let Some((pull, _)) = pulls(&actions).first() {
            one.step(Event::PullFailed(*pull, Failure::Unreachable));
        }
    }
    assert_eq!(alarms, [false, false, true]);
    // SR55: both of them hear it.
    assert_eq!(refused(&one.greeted(hello("p", "1"))), Some(Refusal::TwoNodes));
    assert_eq!(refused(&one.greeted(hello("p", "2"))), Some(Refusal::TwoNodes));

    // One that was restarted answers with another boot at both addresses.
    let (mut one, calls) = One::start(&["a"]);
    let mut call = calls[0];
    for boot in ["1", "2", "3"] {
        let pull = pulls(&one.greet(call, "p", boot, &[]))[0].0;
        one.step(Event::PullFailed(pull, Failure::Unreachable));
        call = next(&mut one, "a");
    }
    assert_eq!(one.replica.alarms().count(), 0);
}

#[test]
fn sr29_a_node_takes_a_new_id_at_once_and_goes_on() {
    let (mut one, pull) = One::pulling(&[]);
    one.step(Event::Await { ticket: Ticket(1), counter: 1, peers: 1, until: SECOND });
    let actions = one.greeted(hello("me", "2"));
    assert_eq!(actions[..2], [Action::TakeNewId(IdLost::Twin), Action::Cancel(pull)]);
    assert_eq!(refused(&actions), Some(Refusal::TwoNodes));
    // Until the store has it, nothing goes on under the former id.
    assert_eq!(refused(&one.greeted(hello("p", "1"))), Some(Refusal::ChangingId));
    one.now = SECOND / 2;
    assert_eq!(one.step(Event::Due), []);
    let actions =
        one.step(Event::Renamed { node: "new".into(), clock: clock(&[("me", 1)]), owes_reissue: false });
    assert!(actions.contains(&Action::Acked { ticket: Ticket(1), peers: 0, is_enough: false }));
    let said = actions.iter().find_map(|action| match action {
        Action::CallHello(_, _, hello) => Some((hello.node.clone(), hello.formerly.clone())),
        _ => None,
    });
    assert_eq!(said, Some(("new".to_owned(), vec!["me".to_owned()])));
    // The twin is a node like others now. A peer that is wrong costs one id each ten minutes.
    assert_eq!(refused(&one.greeted(hello("me", "2"))), None);
    assert_eq!(one.greeted(hello("new", "2"))[0], Action::Raise(Alarm::IdLostAgain));
    one.now = 601 * SECOND;
    assert_eq!(one.greeted(hello("new", "2"))[0], Action::TakeNewId(IdLost::Twin));
}

#[test]
fn sr28_a_store_that_lacks_entries_of_its_own_node_takes_a_new_id() {
    let (mut one, calls) = One::start(&["a"]);
    let pull = pulls(&one.greet(calls[0], "p", "1", &[]))[0].0;
    one.part(pull, vec![entry("me", 7)]);
    let stopped = [("me".to_owned(), Stopped::Own { counter: 7 })].into();
    let actions = one.step(Event::Applied { call: pull, clock: clock(&[]), stopped });
    assert!(actions.contains(&Action::TakeNewId(IdLost::Behind)), "{actions:?}");
}

#[test]
fn sr30_sr54_an_origin_whose_chain_differs_stops_for_that_peer_alone() {
    let (mut one, calls) = One::start(&["a", "b"]);
    let of_a = pulls(&one.greet(calls[0], "p", "1", &[]))[0].0;
    let of_b = pulls(&one.greet(calls[1], "q", "1", &[]))[0].0;
    one.part(of_a, vec![entry("x", 1)]);
    let stopped = [("x".to_owned(), Stopped::Forked { counter: 1 })].into();
    let actions = one.step(Event::Applied { call: of_a, clock: clock(&[]), stopped });
    assert_eq!(actions, [Action::Raise(Alarm::Forked("a".into(), "x".into()))]);
    assert_eq!(given(&one.part(of_a, vec![entry("x", 2)])), []);
    assert_eq!(given(&one.part(of_b, vec![entry("x", 1)])).len(), 1);
    one.applied(of_b, &[("x", 1)]);
    one.step(Event::PullPart(of_a, last(&[])));
    // What the callee finds counts in the same way, until a round without it.
    let (pull, _) = one.wait_for(a_pull);
    let answer = proto::PullResponse { forked: vec!["y".to_owned()], ..last(&[]) };
    let actions = one.step(Event::PullPart(pull, answer));
    let alarm = |origin: &str| Alarm::Forked("a".into(), origin.into());
    assert_eq!(actions, [Action::End(alarm("x")), Action::Raise(alarm("y"))]);
}

#[test]
fn sr30_sr51_records_of_the_other_log_of_an_id_come_by_a_comparison() {
    let mut config = config();
    // Before the next round.
    config.compare_interval = Some(SECOND);
    let (mut one, calls) = One::with(config, &clock(&[("x", 4)]), &["a"]);
    let pull = pulls(&one.greet(calls[0], "p", "1", &[("x", 5)]))[0].0;
    one.step(Event::PullPart(pull, proto::PullResponse { forked: vec!["x".into()], ..last(&[("x", 5)]) }));
    let digest = one.wait_for(|action| match action {
        Action::CallDigest(call, ..) => Some(*call),
        _ => None,
    });
    let key = proto::Key { name: "c".into(), ..Default::default() };
    let buckets = |byte: u8| vec![vec![byte].into(); 256];
    let of_all = |byte| proto::DigestResponse { buckets: buckets(byte), ..Default::default() };
    let actions =
        one.step(Event::DigestAnswered(digest, Ok(Box::new(Digests { own: of_all(1), theirs: of_all(2) }))));
    let Action::CallDigest(records, ..) = &actions[0] else { panic!("{actions:?}") };
    let record = proto::RecordDigest { key: Some(key.clone()), revision: vec![1].into() };
    let theirs = proto::DigestResponse { records: vec![record], ..Default::default() };
    let digests = Digests { own: proto::DigestResponse::default(), theirs };
    let actions = one.step(Event::DigestAnswered(*records, Ok(Box::new(digests))));
    let Action::CallPeek(peek, ..) = &actions[0] else { panic!("{actions:?}") };
    let state = RecordState { key: Some(key), ..Default::default() };
    // Its fifth entry of x never comes. Those of p do.
    let clock = clock(&[("x", 5), ("p", 1)]).to_wire();
    let answer = proto::PeekResponse { keys_done: 1, records: vec![state.clone()], clock };
    let waits = one.step(Event::PeekAnswered(*peek, Ok(answer)));
    assert!(!waits.iter().any(|action| matches!(action, Action::Mend(..))), "{waits:?}");
    let pull = pulls(&waits)[0].0;
    one.part(pull, vec![entry("p", 1)]);
    one.applied(pull, &[("x", 4), ("p", 1)]);
    let answer = proto::PullResponse { forked: vec!["x".into()], ..last(&[("x", 5), ("p", 1)]) };
    let actions = one.step(Event::PullPart(pull, answer));
    let mends = |action: &Action| matches!(action, Action::Mend(_, states, _) if *states == [state.clone()]);
    assert!(actions.iter().any(mends), "{actions:?}");
}

#[test]
fn sr55_a_node_whose_entries_differ_from_those_under_its_id_hears_it_and_one_that_hears_it_obeys() {
    let (mut one, calls) = One::start(&["a"]);
    let actions = one.step(Event::Hello(Ticket(8), hello("p", "1"), vec!["p".to_owned()]));
    assert_eq!(refused(&actions), Some(Refusal::TwoNodes));
    // Those of a third node prove nothing about the caller.
    let actions = one.step(Event::Hello(Ticket(8), hello("p", "1"), vec!["x".to_owned()]));
    assert_eq!(refused(&actions), None);
    let told = Err(Failure::Refused(Refusal::TwoNodes));
    assert_eq!(one.step(Event::HelloAnswered(calls[0], told))[0], Action::TakeNewId(IdLost::Told));
}

#[test]
fn sr57_a_node_that_reaches_itself_drops_that_address_until_the_list_changes() {
    let (mut one, calls) = One::start(&["a", "self"]);
    assert_eq!(refused(&one.greeted(hello("me", "1"))), Some(Refusal::Yourself));
    one.greet(calls[1], "me", "1", &[]);
    assert_eq!(one.replica.peer_count(), 1);
    assert_eq!(one.peers(&["self", "a"]), []);
    assert_eq!(hellos(&one.peers(&["self", "a", "b"])).len(), 2);
}

#[test]
fn sr3_sr17_what_another_node_answers_at_an_address_counts_once_it_has_said_hello() {
    let acked = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Acked { .. }));
    // `p` came back as `q`.
    let of_pull = |one: &mut One, call, _: CallId| {
        let answer = proto::PullResponse { node: "q".into(), ..last(&[("me", 4)]) };
        one.step(Event::PullPart(call, answer))
    };
    let of_nudge = |one: &mut One, pull, call| {
        one.step(Event::PullPart(pull, last(&[])));
        let clock = clock(&[("me", 4)]).to_wire();
        one.step(Event::NudgeAnswered(call, Ok(proto::NudgeResponse { clock, node: "q".into() })))
    };
    for answer in [of_pull, of_nudge] {
        let (mut one, pull) = One::pulling(&[]);
        let (call, _) = nudges(&one.commit(4))[0];
        one.step(Event::Await { ticket: Ticket(1), counter: 4, peers: 1, until: 60 * SECOND });
        let actions = answer(&mut one, pull, call);
        assert!(!acked(&actions), "{actions:?}");
        assert!(one.replica.known().all(|(_, counters)| counters.is_empty()));
        let hello = hellos(&actions)[0];
        assert!(acked(&one.greet(hello, "q", "2", &[("me", 4)])));
        assert_eq!(one.replica.counters_at("a"), counters(&[("me", 4)]));
    }
}

#[test]
fn sr3_a_refusal_is_the_same_on_the_other_side() {
    let all = [
        Refusal::OtherCluster,
        Refusal::NoCommonProtocol,
        Refusal::Yourself,
        Refusal::TwoNodes,
        Refusal::Forgotten,
        Refusal::NoHello,
        Refusal::ChangingId,
        Refusal::TooManyNodes,
        Refusal::Malformed,
    ];
    for refusal in all {
        assert_eq!(Refusal::from_wire(refusal.to_wire()), Some(refusal));
    }
    // A peer of a later version has other reasons.
    assert_eq!(Refusal::from_wire(proto::PeerRefused { reason: 99 }), None);
}

#[test]
fn sr34_a_second_writer_of_the_region_raises_an_alarm() {
    let of = |node: &str, region: &str, is_replica| proto::HelloRequest {
        region: region.into(),
        is_replica,
        ..hello(node, "1")
    };
    let two_writers = |actions: &[Action]| actions.contains(&Action::Raise(Alarm::TwoWriters("a".into())));
    let greeted = |own: (&str, bool), theirs: (&str, bool)| {
        let config = ReplicaConfig::new(of("me", own.0, own.1), 1);
        let (mut one, calls) = One::with(config, &clock(&[]), &["a"]);
        let callee = Some(of("p", theirs.0, theirs.1));
        let response = proto::HelloResponse { protocol: 1, callee };
        (two_writers(&one.step(Event::HelloAnswered(calls[0], Ok(response)))), one)
    };
    let (is_raised, mut one) = greeted(("eu", false), ("eu", false));
    assert!(is_raised);
    // Its address is no peer any more.
    one.peers(&[]);
    assert_eq!(one.replica.alarms().count(), 0);
    // SR33: it is dead, and does not come back as this node.
    let (_, mut one) = greeted(("eu", false), ("eu", false));
    let ended = one.step(Event::Forgotten(["p".to_owned()].into()));
    assert!(ended.contains(&Action::End(Alarm::TwoWriters("a".into()))), "{ended:?}");
    assert_eq!(one.replica.alarms().count(), 0);
    assert!(!greeted(("eu", false), ("eu", true)).0);
    assert!(!greeted(("eu", true), ("eu", false)).0);
    assert!(!greeted(("eu", false), ("us", false)).0);
    // Without regions there are no writers.
    assert!(!greeted(("", false), ("", false)).0);
}

#[test]
fn sg26_sr19_a_peer_of_another_region_serves_its_own_origins_and_replaces_no_records() {
    let taken = |region_of_b: &str, must_replace| {
        let mut config = config();
        config.hello.region = "eu".into();
        let (mut one, calls) = One::with(config, &clock(&[]), &["a", "b"]);
        let mut greet = |at: usize, node: &str, region: &str, counters: &[(&str, u64)]| {
            let callee = proto::HelloRequest {
                region: region.into(),
                clock: clock(counters).to_wire(),
                ..hello(node, "1")
            };
            let response = proto::HelloResponse { protocol: 1, callee: Some(callee) };
            pulls(&one.step(Event::HelloAnswered(calls[at], Ok(response))))[0].0
        };
        let of_b = greet(1, "q", region_of_b, &[("x", 9)]);
        let of_a = greet(0, "p", "us", &[("x", 9)]);
        one.step(Event::PullPart(of_b, last(&[("x", 9)])));
        let out = proto::OutOfSync { origin: "x".into(), floor: 5, must_replace };
        let part = proto::PullResponse { out_of_sync: vec![out], ..last(&[("x", 9)]) };
        snapshot(&one.step(Event::PullPart(of_a, part)))
    };
    assert_eq!(taken("ap", false), Some(("a".into(), false)));
    // Another node of the region of the origin, or of this one, may have its entries.
    assert_eq!(taken("us", false), None);
    assert_eq!(taken("eu", false), None);
    assert_eq!(taken("ap", true), None);
}

#[test]
fn sg22_a_late_answer_of_a_replaced_process_does_not_count() {
    let (mut one, calls) = One::start(&["a"]);
    // The node says Hello as its writer, after the process that answers was stopped.
    assert_eq!(refused(&one.greeted(hello("p", "2"))), None);
    assert_eq!(refused(&one.greeted(hello("p", "1"))), None);
    let actions = one.greet(calls[0], "p", "1", &[]);
    assert_eq!(pulls(&actions), [], "{actions:?}");
    let again = hellos(&actions);
    let actions = one.greet(again[0], "p", "2", &[]);
    assert_eq!(pulls(&actions).len(), 1, "{actions:?}");
    assert!(one.replica.peers().next().unwrap().is_up);
}
