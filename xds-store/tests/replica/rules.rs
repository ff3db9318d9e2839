//! One test for each rule.

use xds_proto::xds::store::v1 as proto;
use xds_store::entry::Foreign;
use xds_store::phase::PeerPhases;
use xds_store::replica::*;
use xds_store::store::{Stopped, Ticket};

use crate::fixture::*;
use crate::sim::{MS, SECOND};

#[test]
fn sr2_each_address_is_a_peer_and_one_that_is_gone_is_called_no_more() {
    let (mut one, calls) = One::start(&["b", "a", "a"]);
    assert_eq!(calls.len(), 2);
    let actions = one.peers(&["b", "c"]);
    assert_eq!(actions[0], Action::Cancel(calls[0]));
    assert!(matches!(&actions[1..], [Action::CallHello(_, address, _)] if address == "c"));
    assert_eq!(one.greet(calls[0], "p", "1", &[]), []);

    let many: Vec<_> = (0..PEERS + 1).map(|number| number.to_string()).collect();
    let actions = one.step(Event::Peers(many));
    assert!(actions.contains(&Action::Raise(Alarm::TooManyPeers)));
    assert_eq!(one.replica.peer_count(), PEERS);
}

#[test]
fn sr3_nodes_say_hello_first_and_refuse_those_that_they_cannot_replicate_with() {
    let (mut one, calls) = One::start(&["a"]);
    let refused = |one: &mut One, hello| refused(&one.greeted(hello));
    let other = proto::HelloRequest { cluster: "d".into(), ..hello("p", "1") };
    assert_eq!(refused(&mut one, other.clone()), Some(Refusal::OtherCluster));
    assert_eq!(refused(&mut one, hello("", "1")), Some(Refusal::Malformed));
    one.step(Event::Forgotten(["gone".to_owned()].into()));
    assert_eq!(refused(&mut one, hello("gone", "1")), Some(Refusal::Forgotten));
    let wrong = proto::Position { counter: 1, chain: vec![1; 3].into() };
    let wrong = proto::HelloRequest { clock: [("p".to_owned(), wrong)].into(), ..hello("p", "1") };
    assert_eq!(refused(&mut one, wrong), Some(Refusal::Malformed));

    let answers = one.pulled("p", &[]);
    assert_eq!(answers, [Action::AnswerPull(Ticket(7), Err(Refusal::NoHello))]);
    assert_eq!(refused(&mut one, hello("p", "1")), None);
    assert!(matches!(&one.pulled("p", &[])[..], [Action::AnswerPull(_, Ok(_))]));

    // The caller judges the callee in the same way.
    let response = proto::HelloResponse { protocol: 1, callee: Some(other) };
    let actions = one.step(Event::HelloAnswered(calls[0], Ok(response)));
    assert_eq!(actions, [Action::Raise(Alarm::Refused("a".into(), Refusal::OtherCluster))]);
}

#[test]
fn sr58_a_store_that_is_being_made_learns_the_cluster_and_is_no_node_yet() {
    let (mut one, _) = One::start(&[]);
    let question = proto::HelloRequest { cluster: String::new(), ..hello("new", "1") };
    let [Action::AnswerHello(_, Ok(answer))] = &one.step(Event::Hello(Ticket(1), question, Vec::new()))[..]
    else {
        panic!("it is answered")
    };
    assert_eq!(answer.callee.as_ref().unwrap().cluster, "c");
    assert_eq!(one.replica.known().count(), 0);
    let old =
        proto::HelloRequest { cluster: String::new(), protocol: 0, lowest_protocol: 0, ..hello("new", "1") };
    let refused = one.step(Event::Hello(Ticket(2), old, Vec::new()));
    assert_eq!(refused, [Action::AnswerHello(Ticket(2), Err(Refusal::NoCommonProtocol))]);
}

#[test]
fn sr61_the_highest_protocol_that_both_speak_is_used() {
    let mut config = config();
    (config.hello.protocol, config.hello.lowest_protocol) = (4, 2);
    let (mut one, _) = One::with(config, &clock(&[]), &[]);
    let mut answer = |protocol, lowest_protocol| {
        let hello = proto::HelloRequest { protocol, lowest_protocol, ..hello("p", "1") };
        match &one.greeted(hello)[0] {
            Action::AnswerHello(_, Ok(response)) => Ok(response.protocol),
            Action::AnswerHello(_, Err(refusal)) => Err(*refusal),
            action => panic!("{action:?}"),
        }
    };
    assert_eq!((answer(3, 1), answer(9, 4), answer(4, 4)), (Ok(3), Ok(4), Ok(4)));
    assert_eq!(answer(1, 1), Err(Refusal::NoCommonProtocol));
    assert_eq!(answer(9, 5), Err(Refusal::NoCommonProtocol));
}

#[test]
fn sr9_known_clocks_only_grow_are_passed_on_and_survive_a_restart() {
    let (mut one, pull) = One::pulling(&[("p", 3)]);
    let of_q = proto::Clock { counters: counters(&[("p", 2), ("q", 9)]) };
    let others = [("q".to_owned(), of_q), ("me".to_owned(), proto::Clock::default())].into();
    let actions = one.step(Event::PullPart(pull, proto::PullResponse { others, ..last(&[("p", 3)]) }));
    // A node that is new is remembered at once.
    assert!(actions.contains(&Action::Remember("q".into(), counters(&[("p", 2), ("q", 9)]))));
    // What an answer leaves out says nothing, and an older one neither.
    one.greeted(hello("q", "1"));
    one.pulled("q", &[("p", 1)]);
    let known: Vec<_> =
        one.replica.known().map(|(node, counters)| (node.to_owned(), counters.clone())).collect();
    let expected =
        [("p".to_owned(), counters(&[("p", 3)])), ("q".to_owned(), counters(&[("p", 2), ("q", 9)]))];
    assert_eq!(known, expected);
    let passed_on = proto::Clock { counters: counters(&[("p", 3)]) };
    let answer = Action::AnswerPull(Ticket(7), Ok([("p".to_owned(), passed_on)].into()));
    assert_eq!(one.pulled("q", &[]), [answer]);

    // Further news of a node are remembered once a minute.
    assert!(!one.pulled("q", &[("q", 10)]).iter().any(|action| matches!(action, Action::Remember(..))));
    let remembered =
        |action: &Action| matches!(action, Action::Remember(node, _) if node == "q").then_some(());
    one.wait_for(remembered);
    assert_eq!(one.now, 60 * SECOND);
    // SR60: also that it lives, each ten minutes.
    assert!(!one.pulled("q", &[("q", 10)]).iter().any(|action| remembered(action).is_some()));
    one.now += 600 * SECOND;
    assert!(one.pulled("q", &[("q", 10)]).iter().any(|action| remembered(action).is_some()));

    let mut config = config();
    config.known = expected.into();
    let (mut one, _) = One::with(config, &clock(&[]), &[]);
    assert!(matches!(&one.pulled("q", &[])[..], [Action::AnswerPull(_, Ok(_)), Action::Remember(..)]));
    assert_eq!(one.replica.known().count(), 2);
}

#[test]
fn sr26_a_clock_counts_together_with_the_nodes_that_are_known_at_its_node() {
    let (mut one, pull) = One::pulling(&[("p", 3)]);
    let known = |one: &One| -> Vec<_> {
        one.replica.known().map(|(node, counters)| (node.to_owned(), counters.clone())).collect()
    };
    let of = |node: &str, at: &[(&str, u64)]| (node.to_owned(), counters(at));
    // A node that p knows may have written before p had these entries, and this node has not heard of it.
    assert_eq!(known(&one), [of("p", &[])], "a Hello");
    let of_peer =
        |at: &[(&str, u64)]| Ok(proto::NudgeResponse { clock: clock(at).to_wire(), node: "p".into() });
    let nudge =
        proto::NudgeRequest { node: "p".into(), clock: clock(&[("p", 4)]).to_wire(), ..Default::default() };
    one.step(Event::Nudge(Ticket(1), nudge, Vec::new()));
    let calls = one.commit(1);
    let nudged = calls.iter().find_map(|action| match action {
        Action::CallNudge(call, ..) => Some(*call),
        _ => None,
    });
    one.step(Event::NudgeAnswered(nudged.expect("p lacks the commit"), of_peer(&[("p", 5)])));
    // An earlier version of this program does not say which nodes it knows.
    one.pulled_knowing("p", &[("p", 6)], &[]);
    assert_eq!(known(&one), [of("p", &[])]);
    // What is missing here is known by any of them.
    assert_eq!(one.replica.peers().next().unwrap().behind, 6);

    one.pulled_knowing("p", &[("p", 7)], &["me", "q"]);
    assert_eq!(known(&one), [of("p", &[("p", 7)]), of("q", &[])]);
    // An answer has the others, with the clocks on which their nodes count.
    let others = [("r".to_owned(), proto::Clock { counters: counters(&[("r", 2)]) })].into();
    one.step(Event::PullPart(pull, proto::PullResponse { others, ..last(&[("p", 8)]) }));
    assert_eq!(known(&one), [of("p", &[("p", 8)]), of("q", &[]), of("r", &[("r", 2)])]);
}

#[test]
fn sr9_what_is_known_of_others_has_limits() {
    let (mut one, pull) = One::pulling(&[]);
    let others = (0..NODES + 1).map(|number| (number.to_string(), proto::Clock::default())).collect();
    let actions = one.step(Event::PullPart(pull, proto::PullResponse { others, ..last(&[]) }));
    assert!(actions.contains(&Action::Raise(Alarm::Malformed("a".into(), Malformed::TooLarge))));
    assert_eq!(one.replica.known().count(), 1);
    for node in 1..NODES {
        assert_eq!(refused(&one.greeted(hello(&node.to_string(), "1"))), None);
    }
    assert_eq!(refused(&one.greeted(hello("more", "1"))), Some(Refusal::TooManyNodes));
    assert!(one.replica.alarms().any(|alarm| *alarm == Alarm::TooManyNodes));
    // What an answer says of origins is bounded, too.
    let many: Vec<_> = (0..ORIGINS + 1).map(|number| number.to_string()).collect();
    let clock: Vec<_> = many.iter().map(|origin| (origin.as_str(), 1)).collect();
    let hello = proto::HelloRequest { clock: crate::fixture::clock(&clock).to_wire(), ..hello("1", "1") };
    assert_eq!(refused(&one.greeted(hello)), Some(Refusal::Malformed));
}

#[test]
fn sr10_a_peer_is_pulled_from_each_interval_and_one_call_runs_at_a_time() {
    let (mut one, pull) = One::pulling(&[]);
    assert_eq!(one.step(Event::PullPart(pull, last(&[]))), []);
    let mut starts = Vec::new();
    for _ in 0..20 {
        let before = one.now;
        let (pull, _) = one.wait_for(a_pull);
        assert!(INTERVAL.contains(&(one.now - before)), "{}", one.now - before);
        starts.push(one.now - before);
        // A nudge does not start another one beside it.
        assert_eq!(pulls(&one.step(Event::Due)), []);
        one.step(Event::PullPart(pull, last(&[])));
    }
    starts.sort_unstable();
    assert!(starts[19] - starts[0] > SECOND / 2, "it is not spread: {starts:?}");
}

#[test]
fn sr10_a_call_without_news_for_ten_seconds_fails_and_delays_no_other_peer() {
    let (mut one, calls) = One::start(&["a", "b"]);
    let actions = one.greet(calls[1], "q", "1", &[]);
    assert_eq!(pulls(&actions).len(), 1);
    one.step(Event::PullPart(pulls(&actions)[0].0, last(&[])));
    let (pull, _) = one.wait_for(a_pull);
    assert!(INTERVAL.contains(&one.now));
    one.now = 10 * SECOND;
    let actions = one.step(Event::PullPart(pull, last(&[])));
    assert_eq!(actions, [Action::Cancel(calls[0])]);
    // Its late answer has no effect.
    assert_eq!(one.greet(calls[0], "p", "1", &[]), []);
}

#[test]
fn sr59_a_failing_peer_is_called_after_at_most_15_s_and_at_once_when_it_calls() {
    let (mut one, calls) = One::start(&["a"]);
    one.greet(calls[0], "p", "1", &[]);
    let mut waits = Vec::new();
    let mut call = CallId(1);
    for _ in 0..8 {
        one.step(Event::PullFailed(call, Failure::Unreachable));
        one.step(Event::HelloAnswered(call, Err(Failure::Unreachable)));
        let before = one.now;
        call = one.wait_for(|action| hellos(std::slice::from_ref(action)).first().copied());
        waits.push((one.now - before + SECOND / 2) / SECOND);
    }
    assert_eq!(waits[..4], [1, 2, 4, 8]);
    assert!(waits[4..].iter().all(|wait| (13..=17).contains(wait)), "{waits:?}");
    one.step(Event::HelloAnswered(call, Err(Failure::Unreachable)));
    assert_eq!(hellos(&one.greeted(hello("other", "1"))), []);
    assert_eq!(hellos(&one.greeted(hello("p", "1"))).len(), 1);
    // An address that never answered is known by what the caller says of itself.
    let (mut one, calls) = One::start(&["p:1"]);
    one.step(Event::HelloAnswered(calls[0], Err(Failure::Unreachable)));
    let from = proto::HelloRequest { address: "p:1".into(), ..hello("p", "1") };
    assert_eq!(hellos(&one.greeted(from)).len(), 1);
}

#[test]
fn sr12_a_node_that_is_behind_pulls_again_once_the_entries_are_applied() {
    let (mut one, pull) = One::pulling(&[("p", 3)]);
    assert_eq!(given(&one.part(pull, vec![entry("p", 1), entry("p", 2)])).len(), 2);
    let behind = || proto::PullResponse { is_behind: true, ..last(&[("p", 3)]) };
    assert_eq!(one.step(Event::PullPart(pull, behind())), []);
    let actions = one.applied(pull, &[("p", 2)]);
    let [(next, at)] = &pulls(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(at["p"].counter, 2);
    // An answer that moved nothing would come again, so it is not requested at once.
    assert_eq!(one.step(Event::PullPart(*next, behind())), []);
    assert_eq!(pulls(&one.wait()).len(), 1);
    assert!(INTERVAL.contains(&one.now));
}

#[test]
fn sr13_an_entry_in_several_messages_is_applied_with_the_last_one() {
    let (mut one, pull) = One::pulling(&[]);
    let state = |generation| proto::RecordState { generation, ..Default::default() };
    let part = |generation, more| proto::Entry { states: vec![state(generation)], more, ..entry("p", 2) };
    let actions = one.part(pull, vec![entry("p", 1), part(1, true)]);
    assert_eq!(given(&actions), [("p".to_owned(), 1, 1)]);
    assert_eq!(one.part(pull, vec![part(2, true)]), []);
    let actions = one.part(pull, vec![part(3, false), entry("p", 3)]);
    let [Action::Apply(_, pieces, _)] = &actions[..] else { panic!("{actions:?}") };
    let whole = proto::Entry { states: vec![state(1), state(2), state(3)], ..entry("p", 2) };
    assert_eq!(pieces[..], [Foreign::Entry(whole), Foreign::Entry(entry("p", 3))]);
}

#[test]
fn sr13_sr14_answers_that_no_node_gives_fail_the_call_and_nothing_else() {
    let more = |counter| proto::Entry { more: true, ..entry("p", counter) };
    let many = (0..ORIGINS as u64 + 1).map(|number| entry(&number.to_string(), 1)).collect();
    let cases = [
        (vec![more(1), entry("q", 1)], Malformed::Parts),
        (vec![proto::Entry { chain: vec![1; 3].into(), ..entry("p", 1) }], Malformed::Chain),
        (vec![proto::Entry { chain: Vec::new().into(), ..entry("p", 1) }], Malformed::Chain),
        (vec![entry("p", 0)], Malformed::Counter),
        (vec![entry("p", u64::MAX)], Malformed::Counter),
        (vec![entry("", 1)], Malformed::Id),
        (vec![entry(&"p".repeat(65), 1)], Malformed::Id),
        (many, Malformed::TooLarge),
    ];
    for (entries, malformed) in cases {
        let (mut one, pull) = One::pulling(&[]);
        let actions = one.part(pull, entries);
        let alarm = Alarm::Malformed("a".into(), malformed);
        assert_eq!(actions, [Action::Cancel(pull), Action::Raise(alarm.clone())]);
        // The next good answer ends the alarm.
        let hello = one.wait_for(|action| hellos(std::slice::from_ref(action)).first().copied());
        let pull = pulls(&one.greet(hello, "p", "1", &[]))[0].0;
        assert_eq!(one.step(Event::PullPart(pull, last(&[]))), [Action::End(alarm)]);
    }
    // An entry without its end.
    let (mut one, pull) = One::pulling(&[]);
    one.part(pull, vec![more(1)]);
    let actions = one.step(Event::PullPart(pull, last(&[])));
    assert!(actions.contains(&Action::Raise(Alarm::Malformed("a".into(), Malformed::Parts))));
}

#[test]
fn sr14_sr54_after_a_gap_the_rest_of_that_origin_is_dropped_and_no_other() {
    let (mut one, pull) = One::pulling(&[]);
    let actions = one.part(pull, vec![entry("p", 1), entry("p", 3), entry("p", 4), entry("q", 1)]);
    let gap = Gap { origin: "p".into(), expected: 2, found: 3 };
    assert_eq!(actions[0], Action::Dropped("a".into(), vec![gap]));
    assert_eq!(given(&actions), [("p".to_owned(), 1, 1), ("q".to_owned(), 1, 1)]);
    // Not even what would fit, because its order is wrong.
    assert_eq!(given(&one.part(pull, vec![entry("p", 2), entry("q", 2)])), [("q".to_owned(), 2, 2)]);
}

#[test]
fn sr14_skips_and_entries_of_an_origin_come_in_the_order_of_counters() {
    let (mut one, pull) = One::pulling(&[]);
    let skips = vec![skip("p", 2, 4), skip("p", 6, 9), skip("q", 1, 2), skip("r", 2, 3)];
    let entries = vec![entry("p", 1), entry("p", 5), entry("q", 2), entry("q", 3)];
    let actions =
        one.step(Event::PullPart(pull, proto::PullResponse { entries, skips, ..Default::default() }));
    let of = |origin: &str| -> Vec<_> {
        let of = given(&actions).into_iter().filter(|piece| piece.0 == origin);
        of.map(|(_, first, last)| (first, last)).collect()
    };
    assert_eq!(of("p"), [(1, 1), (2, 4), (5, 5), (6, 9)]);
    // What the node has by the skip does not come twice.
    assert_eq!(of("q"), [(1, 2), (3, 3)]);
    assert_eq!(of("r"), []);
}

#[test]
fn sr15_an_origin_that_stops_raises_an_alarm_and_affects_no_other() {
    let (mut one, pull) = One::pulling(&[("p", 3), ("q", 1)]);
    one.part(pull, vec![entry("p", 1), entry("p", 2)]);
    let stopped = [("p".to_owned(), Stopped::Invalid { counter: 2, reason: "an odd key".into() })].into();
    let actions = one.step(Event::Applied { call: pull, clock: clock(&[("p", 1)]), stopped });
    assert_eq!(actions, [Action::Raise(Alarm::Stopped("p".into()))]);
    let at = one.replica.stopped_at("p").unwrap();
    assert_eq!((at.counter, &*at.reason, at.since), (2, "an odd key", one.now));
    let actions = one.part(pull, vec![entry("p", 3), entry("q", 1)]);
    assert_eq!(given(&actions), [("q".to_owned(), 1, 1)]);
    one.applied(pull, &[("p", 1), ("q", 1)]);
    one.step(Event::PullPart(pull, last(&[("p", 3), ("q", 1)])));
    // Nobody waits for an origin that stopped: this nudge is answered at once.
    one.greeted(hello("n", "1"));
    let wait = Some(prost_types::Duration { seconds: 5, nanos: 0 });
    let request = proto::NudgeRequest { node: "n".into(), wait, clock: clock(&[("p", 3)]).to_wire() };
    assert!(matches!(&one.step(Event::Nudge(Ticket(1), request, Vec::new()))[..], [Action::AnswerNudge(..)]));
    // The next round tries again, and this time it can be applied.
    let (pull, _) = one.wait_for(a_pull);
    assert_eq!(given(&one.part(pull, vec![entry("p", 2)])).len(), 1);
    let actions = one.applied(pull, &[("p", 2), ("q", 1)]);
    assert_eq!(actions, [Action::End(Alarm::Stopped("p".into()))]);
    assert_eq!(one.replica.stopped_at("p"), None);
}

#[test]
fn sr16_peers_are_nudged_after_a_commit_at_most_every_50_ms() {
    let (mut one, pull) = One::pulling(&[]);
    one.step(Event::PullPart(pull, last(&[])));
    one.now = SECOND;
    let first = nudges(&one.commit(1));
    assert_eq!((first.len(), first[0].1), (1, false));
    let mut sent = vec![one.now];
    let mut running = Some((first[0].0, 1));
    for counter in 2..200 {
        one.now += MS;
        if let Some((call, counter)) = running.take() {
            let clock = clock(&[("me", counter)]).to_wire();
            let answer = proto::NudgeResponse { clock, ..Default::default() };
            one.step(Event::NudgeAnswered(call, Ok(answer)));
        }
        running = nudges(&one.commit(counter)).first().map(|(call, _)| (*call, counter));
        sent.extend(running.map(|_| one.now));
    }
    let times: Vec<_> = sent.iter().map(|at| (at - SECOND) / MS).collect();
    assert_eq!(times, [0, 50, 100, 150]);
    // A peer that has the commit already is not nudged.
    let (mut one, calls) = One::with(config(), &clock(&[("me", 3)]), &["a"]);
    assert_eq!(nudges(&one.greet(calls[0], "p", "1", &[("me", 3)])), []);
    assert_eq!(nudges(&one.commit(4)).len(), 1);
}

#[test]
fn sr16_a_nudge_makes_the_callee_pull_and_a_lost_one_costs_an_interval() {
    let (mut one, pull) = One::pulling(&[]);
    let request =
        || proto::NudgeRequest { node: "p".into(), clock: clock(&[("p", 1)]).to_wire(), wait: None };
    // While a pull runs, another one follows it.
    let actions = one.step(Event::Nudge(Ticket(1), request(), Vec::new()));
    assert!(matches!(&actions[..], [Action::AnswerNudge(Ticket(1), Ok(_))]), "{actions:?}");
    let pull = pulls(&one.step(Event::PullPart(pull, last(&[]))))[0].0;
    one.step(Event::PullPart(pull, last(&[])));
    // While none runs, it starts one.
    let actions = one.step(Event::Nudge(Ticket(2), request(), Vec::new()));
    let pull = pulls(&actions)[0].0;
    one.step(Event::PullPart(pull, last(&[])));
    // Without a nudge, the interval does.
    let before = one.now;
    one.wait_for(a_pull);
    assert!(INTERVAL.contains(&(one.now - before)));
}

#[test]
fn sr17_a_commit_waits_until_so_many_peers_say_that_they_have_it() {
    let (mut one, calls) = One::start(&["a", "b"]);
    one.greet(calls[0], "p", "1", &[]);
    one.greet(calls[1], "q", "1", &[]);
    one.commit(4);
    let nudged = one.step(Event::Await { ticket: Ticket(1), counter: 4, peers: 2, until: 5 * SECOND });
    assert_eq!(nudged, []);
    let acked = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Acked { .. }));
    // An older clock, one that another node passes on, and the same node twice are not enough.
    assert!(!acked(&one.pulled("p", &[("me", 3)])));
    let of_q = proto::Clock { counters: counters(&[("me", 4)]) };
    let others = [("q".to_owned(), of_q)].into();
    assert!(!acked(&one.step(Event::PullPart(CallId(2), proto::PullResponse { others, ..last(&[]) }))));
    assert!(!acked(&one.pulled("p", &[("me", 4)])));
    assert!(!acked(&one.pulled("p", &[("me", 4)])));
    let actions = one.pulled("q", &[("me", 4)]);
    assert!(actions.contains(&Action::Acked { ticket: Ticket(1), peers: 2, is_enough: true }));

    // One that has another id is not two.
    one.commit(5);
    one.step(Event::Await { ticket: Ticket(3), counter: 5, peers: 2, until: 5 * SECOND });
    assert!(!acked(&one.pulled("p", &[("me", 5)])));
    let clock = clock(&[("me", 5)]).to_wire();
    let renamed = proto::HelloRequest { formerly: vec!["p".into()], clock, ..hello("p2", "1") };
    assert!(!acked(&one.greeted(renamed)));
    assert!(acked(&one.pulled("q", &[("me", 5)])));

    one.commit(6);
    one.step(Event::Await { ticket: Ticket(2), counter: 6, peers: 1, until: 5 * SECOND });
    one.now = 5 * SECOND;
    let actions = one.step(Event::Due);
    assert!(actions.contains(&Action::Acked { ticket: Ticket(2), peers: 0, is_enough: false }));
}

#[test]
fn sr17_a_nudge_for_a_waiting_commit_is_answered_when_the_entries_are_here() {
    // The caller asks the callee to wait, and asks again if it could not.
    let (mut one, pull) = One::pulling(&[]);
    one.step(Event::PullPart(pull, last(&[])));
    one.step(Event::Await { ticket: Ticket(1), counter: 1, peers: 1, until: 60 * SECOND });
    let (call, waits) = one.step(Event::Committed(position(1, 1))).iter().find_map(nudge).unwrap_or_default();
    let (call, waits) = if waits { (call, waits) } else { one.wait_for(nudge) };
    assert!(waits);
    one.step(Event::NudgeAnswered(call, Err(Failure::Unreachable)));
    let (call, _) = one.wait_for(nudge);
    let answer = proto::NudgeResponse { clock: clock(&[("me", 1)]).to_wire(), ..Default::default() };
    let actions = one.step(Event::NudgeAnswered(call, Ok(answer)));
    assert!(actions.contains(&Action::Acked { ticket: Ticket(1), peers: 1, is_enough: true }));

    // The callee answers when it has the entries, or when the time is over.
    let (mut one, pull) = One::pulling(&[]);
    let wait = Some(prost_types::Duration { seconds: 3, nanos: 0 });
    let request = || proto::NudgeRequest { node: "p".into(), clock: clock(&[("p", 1)]).to_wire(), wait };
    assert_eq!(one.step(Event::Nudge(Ticket(1), request(), Vec::new())), []);
    one.part(pull, vec![entry("p", 1)]);
    let answer = |at: &[(&str, u64)], ticket| {
        Action::AnswerNudge(
            ticket,
            Ok(proto::NudgeResponse { clock: clock(at).to_wire(), node: "me".into() }),
        )
    };
    assert_eq!(one.applied(pull, &[("p", 1)]), [answer(&[("p", 1)], Ticket(1))]);
    let request = proto::NudgeRequest { clock: clock(&[("p", 2)]).to_wire(), ..request() };
    one.step(Event::Nudge(Ticket(2), request, Vec::new()));
    one.now = 3 * SECOND;
    assert!(one.step(Event::Due).contains(&answer(&[("p", 1)], Ticket(2))));
}

#[test]
fn sr9_a_view_says_what_a_peer_has_that_is_missing_here_and_since_when() {
    let (mut one, pull) = One::pulling(&[("p", 3), ("q", 2)]);
    let view = |one: &One| one.replica.peers().next().unwrap();
    one.now = SECOND;
    one.step(Event::PullPart(pull, last(&[("p", 3), ("q", 2)])));
    let seen = view(&one);
    assert_eq!((&*seen.address, &*seen.node, seen.is_up), ("a", "p", true));
    assert_eq!((seen.behind, seen.behind_since, seen.heard_at), (5, Some(SECOND), Some(SECOND)));
    one.now = 2 * SECOND;
    let next = one.wait_for(|action| match action {
        Action::CallPull(call, ..) => Some(*call),
        _ => None,
    });
    one.part(next, (1..=3).map(|counter| entry("p", counter)).collect());
    one.part(next, (1..=2).map(|counter| entry("q", counter)).collect());
    one.applied(next, &[("p", 3)]);
    assert_eq!((view(&one).behind, view(&one).behind_since), (2, Some(SECOND)), "without a break");
    one.applied(next, &[("p", 3), ("q", 2)]);
    assert_eq!((view(&one).behind, view(&one).behind_since), (0, None));
    one.step(Event::PullFailed(next, Failure::Unreachable));
    assert!(!view(&one).is_up);
}

#[test]
fn sv42_the_store_hears_how_far_peers_are_and_those_that_are_down_stay_where_they_were() {
    let said = |phases: &[(&str, bool, Option<u32>)]| {
        let mut all = PeerPhases::default();
        for (peer, is_up, phase) in phases {
            all.insert(peer, *is_up, phase.map(|phase| [(1, phase)].into()));
        }
        vec![Action::PeerPhases(all)]
    };
    let (mut one, calls) = One::start(&["a", "b"]);
    assert_eq!(std::mem::take(&mut one.phases), said(&[("a", true, None), ("b", true, None)]));
    let pull = pulls(&one.greet(calls[0], "p", "1", &[]))[0].0;
    assert_eq!(std::mem::take(&mut one.phases), said(&[("p", true, None), ("b", true, None)]));
    // Before its entries are given to the store.
    let part = proto::PullResponse { phases: [(1, 3)].into(), ..Default::default() };
    let entries = vec![entry("p", 1)];
    let actions =
        one.replica.step(Event::PullPart(pull, proto::PullResponse { entries, ..part.clone() }), one.now);
    assert_eq!(actions[..1], said(&[("p", true, Some(3)), ("b", true, None)]));
    assert!(matches!(actions[1], Action::Apply(..)));
    // The same again is no news.
    one.step(Event::PullPart(pull, part));
    assert_eq!(one.phases, []);
    one.step(Event::PullFailed(pull, Failure::Unreachable));
    assert_eq!(std::mem::take(&mut one.phases), said(&[("p", false, Some(3)), ("b", true, None)]));
    assert!(one.replica.peers().all(|peer| peer.phases.is_none()), "a peer that is down");
    // Another node at the address has said nothing.
    let hello = one.wait_for(|action| hellos(std::slice::from_ref(action)).first().copied());
    one.greet(hello, "q", "1", &[]);
    assert_eq!(std::mem::take(&mut one.phases), said(&[("q", false, None), ("b", true, None)]));
    // One that is forgotten reads nothing any more.
    one.step(Event::Forgotten(["q".into()].into()));
    assert_eq!(std::mem::take(&mut one.phases), said(&[("b", true, None)]));
    one.peers(&[]);
    assert_eq!(one.phases, said(&[]));
}
