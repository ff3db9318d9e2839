//! Nodes that take a snapshot while a plan is under way (SV41).

use driven::migrating::{new_key, put_new, schemas, shown, step};
use xds_store::phase::{PeerPhases, Phase};

use super::*;

const PHASES: [Phase; 6] = [Phase::F0, Phase::F1, Phase::F2, Phase::F3, Phase::F4, Phase::F5];

/// A node of this engine that knows the plan.
pub(super) fn knowing(engine: MemoryEngine, now: i64) -> Server {
    Server::with(engine, now, |config| {
        config.is_replicated = true;
        config.schemas = schemas().into();
    })
}

pub(super) fn node_in(id: &str, phase: Phase) -> Server {
    let mut node = knowing(node(id).engine, SECOND);
    for number in 1..=phase.number() {
        step(&mut node, number - 1, number).unwrap();
        node.wait(61 * SECOND);
    }
    node
}

pub(super) fn joining(id: &str) -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init_joining(&Identity { node: id.into(), ..Identity::default() })).unwrap();
    engine
}

pub(super) fn phase_of(node: &Server) -> Phase {
    node.store.plans()[0].phase
}

/// What a reader of the form that counts gets.
pub(super) fn read(node: &Server, name: &str) -> String {
    let (key, is_new) = match phase_of(node) {
        Phase::F0 | Phase::F1 => (key(name, ""), false),
        Phase::F2 | Phase::F3 | Phase::F4 | Phase::F5 => (new_key(name), true),
    };
    let (payload, _) = shown(node, &key, "2.0");
    if is_new { payload.strip_prefix("new:").unwrap_or(&payload).to_owned() } else { payload }
}

fn write(node: &mut Server, name: &str, payload: &str) {
    let change = match phase_of(node) {
        Phase::F0 | Phase::F1 => put(name, payload),
        Phase::F2 | Phase::F3 | Phase::F4 | Phase::F5 => put_new(name, &format!("new:{payload}")),
    };
    node.commit(of([change])).unwrap();
}

#[test]
fn sv41_a_node_that_joins_is_in_the_phases_of_its_peer_before_it_accepts_commits() {
    for phase in PHASES {
        let mut a = node_in("a", Phase::F0);
        write(&mut a, "a1", "before");
        for number in 1..=phase.number() {
            step(&mut a, number - 1, number).unwrap();
            a.wait(61 * SECOND);
        }
        write(&mut a, "a2", "in");
        let mut b = knowing(joining("b"), a.now);
        b.resync(&a, false, "other");
        assert_eq!(phase_of(&b), phase);
        // SR24: from here on both accept commits, and neither hides what the other one writes.
        write(&mut b, "a3", "of b");
        write(&mut b, "a2", "again");
        write(&mut a, "a4", "of a");
        pull(&mut a, &b);
        pull(&mut b, &a);
        for node in [&a, &b] {
            let read = ["a1", "a2", "a3", "a4"].map(|name| read(node, name));
            assert_eq!(read, ["before", "again", "of b", "of a"], "{phase:?}");
        }
        // The plan goes on to its end, and back.
        for to in phase.number() + 1..=5 {
            for node in [&mut a, &mut b] {
                node.wait(122 * SECOND);
                step(node, to - 1, to).unwrap();
                node.wait(122 * SECOND);
            }
            pull(&mut a, &b);
            pull(&mut b, &a);
        }
        for to in (0..5).rev() {
            for node in [&mut a, &mut b] {
                node.wait(122 * SECOND);
                step(node, to + 1, to).unwrap();
                node.wait(122 * SECOND);
            }
            pull(&mut a, &b);
            pull(&mut b, &a);
        }
        for node in [&a, &b] {
            let read = ["a1", "a2", "a3", "a4"].map(|name| read(node, name));
            assert_eq!(read, ["before", "again", "of b", "of a"], "{phase:?}, and back");
        }
    }
}

#[test]
fn sv41_sv13_a_node_that_lacks_the_plan_of_its_peer_does_not_join_and_says_so() {
    let mut a = node_in("a", Phase::F4);
    write(&mut a, "a1", "1");
    let mut b = on(joining("b"), SECOND);
    b.step(Event::BeginResync { must_replace: false, new_id: "other".into() });
    b.step(Event::Stage(Ticket(0), a.snapshot(1 << 20).remove(0)));
    let refused = b.staged.pop().unwrap().unwrap_err();
    assert!(refused.message.contains("the plan 1 (thing-v2) in the phase F4"), "{refused:?}");
    assert!(b.store.head().is_joining);
    // With the plan it joins.
    let mut b = knowing(b.engine, SECOND);
    b.resync(&a, false, "other");
    assert_eq!((phase_of(&b), &*read(&b, "a1")), (Phase::F4, "1"));
}

/// What a node hears of its peers.
fn hears(node: &mut Server, peers: &[(&str, Option<Phase>)]) {
    let mut phases = PeerPhases::default();
    for (peer, phase) in peers {
        phases.insert(peer, true, phase.map(|phase| BTreeMap::from([(1, phase.number())])));
    }
    node.step(Event::PeerPhases(phases));
}

/// Both nodes get all entries of the other one; first they hear how far its plan is.
fn meet(a: &mut Server, b: &mut Server) {
    let (of_a, of_b) = (phase_of(a), phase_of(b));
    hears(a, &[("b", Some(of_b))]);
    hears(b, &[("a", Some(of_a))]);
    pull(a, b);
    pull(b, a);
}

/// Lets both nodes step to the end of the plan, and checks what they read on the way.
fn go_on(a: &mut Server, b: &mut Server, expected: &[(&str, &str)]) {
    for to in 0..=5 {
        for _ in 0..2 {
            meet(a, b);
            for node in [&mut *a, &mut *b] {
                node.wait(122 * SECOND);
            }
        }
        meet(a, b);
        for node in [&mut *a, &mut *b] {
            for (name, payload) in expected {
                assert_eq!(&read(node, name), payload, "{name} at {} in {to}", node.store.head().node);
            }
            if phase_of(node).number() < to {
                step(node, to - 1, to).unwrap();
            }
        }
    }
}

#[test]
fn sv41_a_restored_node_and_one_with_another_id_are_in_the_phases_of_their_peer() {
    for (of_backup, of_peer) in PHASES.into_iter().flat_map(|phase| PHASES.map(|other| (phase, other))) {
        let mut a = node_in("a", Phase::F0);
        write(&mut a, "a1", "before");
        let mut b = knowing(node("b").engine, a.now);
        pull(&mut b, &a);
        for number in 1..=of_backup.number() {
            step(&mut a, number - 1, number).unwrap();
            a.wait(61 * SECOND);
        }
        // The copy has this that nobody pulled.
        write(&mut a, "a2", "of the copy");
        let engine = copy_of(&a.engine);
        let (batch, _) = Store::rename(&*engine.view().unwrap(), "c", false).unwrap();
        let mut engine = engine;
        engine.commit(&batch).unwrap();
        for number in 1..=of_peer.number() {
            step(&mut b, number - 1, number).unwrap();
            b.wait(61 * SECOND);
        }
        write(&mut b, "a3", "of the peer");
        let mut c = knowing(engine, a.now.max(b.now));
        // It accepts no write that the peer could not see.
        hears(&mut c, &[("b", None)]);
        assert_eq!(c.code(of([put("a4", "1")])), RefusalCode::Unavailable);
        hears(&mut c, &[("b", Some(of_peer))]);
        let is_far = of_peer.number().abs_diff(of_backup.number()) > 1;
        let refused =
            c.commit(of([put("a4", "1")])).err().is_some_and(|refused| refused.message.contains("towards"));
        assert_eq!(refused, is_far, "{of_backup:?} {of_peer:?}");
        c.resync(&b, false, "other");
        // Its own records are neither hidden nor removed.
        let of_c = match of_backup.ignores_old() {
            false => of_peer.min(Phase::F3),
            true => of_peer.max(Phase::F2),
        };
        assert_eq!(phase_of(&c), of_c, "{of_backup:?} {of_peer:?}");
        let mut expected = vec![("a1", "before"), ("a2", "of the copy"), ("a3", "of the peer")];
        hears(&mut c, &[("b", Some(of_peer))]);
        match of_c.number().abs_diff(of_peer.number()) {
            0 | 1 => {
                write(&mut c, "a5", "of c");
                expected.push(("a5", "of c"));
            }
            _ => assert_eq!(c.code(of([put("a5", "1")])), RefusalCode::FailedPrecondition),
        }
        go_on(&mut b, &mut c, &expected);
    }
}

#[test]
fn sv42_nodes_that_are_far_apart_refuse_writes_of_the_plan_merge_and_meet_again() {
    let (mut a, mut b) = (node_in("a", Phase::F0), node_in("b", Phase::F0));
    write(&mut a, "a1", "of both");
    pull(&mut b, &a);
    // A goes on without B, as an operator can say of a peer that is down.
    for number in 1..=4 {
        step(&mut a, number - 1, number).unwrap();
        a.wait(61 * SECOND);
    }
    write(&mut a, "a2", "of a");
    hears(&mut a, &[("b", Some(Phase::F0))]);
    step(&mut a, 4, 5).unwrap();
    meet(&mut a, &mut b);
    for (node, peer) in [(&mut a, "b"), (&mut b, "a")] {
        let gap = &node.store.phase_gaps()[0];
        assert_eq!((&*gap.peer, gap.plan, &*gap.name), (peer, 1, "thing-v2"));
        for change in [put("a3", "1"), delete("a1"), touch("a1"), quarantine("a1"), put_new("a3", "new:1")] {
            let refused = node.commit(of([change])).unwrap_err();
            assert_eq!(refused.code, RefusalCode::FailedPrecondition);
            assert!(refused.message.contains("move one of them towards the other"), "{refused:?}");
        }
        // Names of no plan are written.
        node.commit(of([put("other", peer)])).unwrap();
    }
    // F5 removes nothing that B reads.
    a.wait(200 * SECOND);
    meet(&mut a, &mut b);
    assert_eq!((read(&b, "a1"), read(&a, "a2")), ("of both".into(), "of a".into()));
    // While B is down, A accepts writes as before, and still removes nothing.
    let mut down = PeerPhases::default();
    down.insert("b", false, Some([(1, 0)].into()));
    a.step(Event::PeerPhases(down));
    write(&mut a, "a4", "beside B");
    a.wait(200 * SECOND);
    assert_eq!(
        (a.state(&key("a1", "")).unwrap().lifecycle(), a.store.phase_gaps()),
        (proto::State::Live, Vec::new())
    );
    // The new records are those of A, and no reason not to begin (SV9).
    for number in 1..=4 {
        assert!(!b.store.phase_gaps().is_empty() || number > 3);
        step(&mut b, number - 1, number).unwrap();
        b.wait(122 * SECOND);
        meet(&mut a, &mut b);
    }
    assert_eq!((a.store.phase_gaps(), b.store.phase_gaps()), (Vec::new(), Vec::new()));
    write(&mut b, "a3", "of b");
    a.wait(200 * SECOND);
    meet(&mut a, &mut b);
    for node in [&a, &b] {
        assert_eq!(["a1", "a2", "a3"].map(|name| read(node, name)), ["of both", "of a", "of b"]);
        let old = node.state(&key("a1", "")).unwrap();
        assert_eq!(old.lifecycle(), proto::State::Deleted, "its old form is removed then");
    }
}

#[test]
fn sv41_a_node_of_a_new_region_is_in_the_phases_of_its_peer() {
    for phase in PHASES {
        let mut a = knowing(Server::node_in("east", "a", false).engine, SECOND);
        write(&mut a, "a1", "1");
        for number in 1..=phase.number() {
            step(&mut a, number - 1, number).unwrap();
            a.wait(61 * SECOND);
        }
        let mut engine = MemoryEngine::default();
        let identity = Identity { node: "b".into(), region: "west".into(), ..Identity::default() };
        engine.commit(&Store::init_joining(&identity)).unwrap();
        let mut b = knowing(engine, a.now);
        b.step(Event::BeginResync { must_replace: false, new_id: "other".into() });
        let view = a.engine.view().unwrap();
        let page = Reads::new(&*view).unwrap().snapshot_in("west", "", 1 << 20).unwrap();
        b.step(Event::Stage(Ticket(0), page));
        b.staged.pop().unwrap().unwrap();
        assert_eq!((phase_of(&b), &*read(&b, "a1")), (phase, "1"));
    }
}
