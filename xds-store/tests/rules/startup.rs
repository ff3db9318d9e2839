use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::engine::MemoryEngine;
use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store::store::{Committed, Event, Ticket};

use crate::driven::migrating::*;
use crate::driven::*;

/// A server whose plan has no way down.
fn one_way(engine: &MemoryEngine, number: u64) -> Server {
    let plan = Plan::new(PlanSpec { down: Converter::Missing, ..spec() }).unwrap();
    let schemas = Schemas::default().with_plans(vec![plan]).unwrap();
    Server::with(engine.clone(), SECOND, |config| {
        config.schemas = schemas.into();
        config.server = number;
    })
}

/// One step forward, as at a startup.
fn step_at_startup(server: &mut Server, from: u32) -> Result<Committed, Refused> {
    let phase = |number| Phase::of_number(number).unwrap();
    let step = PhaseStep { plan: 1, from: phase(from), to: phase(from + 1) };
    server.step(Event::Commit(Ticket(1 << 41), Draft::set_phase_at_startup(step)));
    server.answers.remove(&(1 << 41)).expect("the commit is answered")
}

fn gate(refused: &Refused) -> &proto::ClosedGate {
    match &refused.violations[0].why {
        Some(Why::Gate(gate)) => gate,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sv32_a_plan_without_a_way_down_goes_forward_at_a_startup_only() {
    let mut server = one_way(&Server::new().engine, 1);
    server.commit(of([put("a", "1"), put("b", "1")])).unwrap();
    assert_eq!(gate(&step(&mut server, 0, 1).unwrap_err()).gate, "runs_at_startup");
    for from in 0..3 {
        step_at_startup(&mut server, from).unwrap();
    }
    assert_eq!(gate(&step_at_startup(&mut server, 3).unwrap_err()).gate, "pass_not_clean");
    server.wait(2 * SECOND);
    for from in 3..5 {
        step_at_startup(&mut server, from).unwrap();
    }
    server.wait(2 * SECOND);
    assert!(server.store.plans()[0].done_at.is_some());
    assert_eq!(shown(&server, &new_key("a"), ""), ("new:1".into(), "2.0".into()));
    assert!(server.state(&key("a", "")).unwrap().lifecycle() == proto::State::Deleted);
    // Nobody reads the old form any more, and there is no way to it.
    assert!(get(&server, &key("a", ""), "").is_err());
    assert_eq!(step(&mut server, 5, 4).unwrap_err().code, RefusalCode::FailedPrecondition);
    assert_eq!(shown(&server, &key("b", ""), "").0, "1");
}

#[test]
fn sv32_before_f5_a_plan_without_a_way_down_is_taken_back_with_all_records() {
    let mut server = one_way(&Server::new().engine, 1);
    server.commit(of([put("a", "1")])).unwrap();
    for from in 0..3 {
        step_at_startup(&mut server, from).unwrap();
    }
    server.wait(2 * SECOND);
    step_at_startup(&mut server, 3).unwrap();
    for from in [4, 3] {
        step(&mut server, from, from - 1).unwrap();
    }
    server.wait(2 * SECOND);
    for from in [2, 1] {
        step(&mut server, from, from - 1).unwrap();
    }
    server.wait(2 * SECOND);
    assert_eq!((shown(&server, &key("a", ""), "").0, server.store.counts().0), ("1".into(), 1));
}

#[test]
fn sv32_no_step_is_made_at_a_startup_while_another_server_is_alive() {
    let mut one = one_way(&Server::new().engine, 1);
    one.commit(of([put("a", "1")])).unwrap();
    let mut two = one_way(&one.engine, 2);
    for server in [&mut one, &mut two] {
        let says_alive = server.store.liveness(true).unwrap();
        server.draft(says_alive);
    }
    let refused = step_at_startup(&mut one, 0).unwrap_err();
    let closed = gate(&refused);
    assert_eq!((&*closed.gate, &*closed.node), ("other_server", "0000000000000002"));
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    // The other one ends, and this one is alive itself.
    let says_dead = two.store.liveness(false).unwrap();
    two.draft(says_dead);
    step_at_startup(&mut one, 0).unwrap();
    // One that ended without a word counts for its lease.
    let says_alive = two.store.liveness(true).unwrap();
    two.draft(says_alive);
    assert_eq!(gate(&step_at_startup(&mut one, 1).unwrap_err()).gate, "other_server");
    one.wait(31 * SECOND);
    step_at_startup(&mut one, 1).unwrap();
}
