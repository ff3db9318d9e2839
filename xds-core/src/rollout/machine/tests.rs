use super::*;
use crate::constraint::Constraints;
use crate::rollout::RolloutSteps;
use crate::server::fixture::{Delta, commit, transaction, type_url};

/// A change of this many variants began.
fn began_with(variants: usize) -> RolloutEvent {
    RolloutEvent::Began { audience: Audience::Clients(1), variants }
}

fn machine(steps: &str) -> RolloutMachine {
    let RolloutSteps(steps) = steps.parse().unwrap();
    let plan = RolloutPlan::new(steps, Duration::from_secs(1));
    RolloutMachine::new(Cache::new(), Cache::new(), plan, OnChange::Wait)
}

/// The source commits. What the machine does then.
fn events(machine: &mut RolloutMachine, text: &str) -> Vec<RolloutEvent> {
    commit(&machine.source, text);
    std::iter::from_fn(|| machine.advance(Duration::ZERO)).collect()
}

/// An operator aborts what runs.
fn abort(machine: &mut RolloutMachine) {
    assert!(machine.order(RolloutOrder::Abort));
    assert_eq!(events(machine, ""), [RolloutEvent::Refused("an operator aborted it".into())]);
}

#[test]
fn what_was_refused_is_tried_again_when_its_resource_changes() {
    let mut machine = machine("1 client");
    assert_eq!(events(&mut machine, "LDS a[env=a]=1 b=1"), [RolloutEvent::Committed]);
    assert_eq!(events(&mut machine, "LDS -a[env=a]"), [began_with(1)]);
    abort(&mut machine);
    // Other resources go on without it.
    assert_eq!(events(&mut machine, "LDS b=2"), [began_with(1)]);
    assert!(machine.order(RolloutOrder::Promote));
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted]);
    assert_eq!(machine.refused().len(), 1);
    // The removal is still a part of it, but the resource is another one now.
    assert_eq!(events(&mut machine, "LDS a=1"), [began_with(2)]);
    assert_eq!(machine.refused(), []);
}

#[test]
fn each_refused_change_is_refused_until_its_own_resources_change() {
    let mut machine = machine("1 client");
    events(&mut machine, "LDS a=1 b=1 c=1");
    assert_eq!(events(&mut machine, "LDS a=2"), [began_with(1)]);
    abort(&mut machine);
    assert_eq!(events(&mut machine, "LDS b=2 c=2"), [began_with(2)]);
    abort(&mut machine);
    let refused =
        |machine: &RolloutMachine| machine.refused().iter().map(|of| of.contents().len()).collect::<Vec<_>>();
    assert_eq!(refused(&machine), [1, 2]);
    // The source takes a part of the second one back; the rest of it is another change.
    assert_eq!(events(&mut machine, "LDS b=1"), [began_with(1)]);
    assert_eq!(refused(&machine), [1]);
    abort(&mut machine);
    assert_eq!(refused(&machine), [1, 1]);
    assert!(machine.order(RolloutOrder::Promote));
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted]);
    assert_eq!((refused(&machine).len(), machine.counts().refused), (0, 3));
}

/// Endpoints that go away must not stay at clients because somebody else's listener is refused.
#[test]
fn changes_that_need_nothing_of_what_was_refused_are_rolled_out_without_it() {
    let promoted_refusal = |before: &str, refused: &str, since: &str| {
        let mut machine = machine("1 client");
        events(&mut machine, before);
        assert_eq!(events(&mut machine, refused).len(), 1);
        abort(&mut machine);
        assert_eq!(events(&mut machine, since), [began_with(1)], "{refused}, then {since}");
        assert_eq!(machine.waiting(), 0);
        assert!(machine.order(RolloutOrder::PromoteRefused));
        let events = events(&mut machine, "");
        assert_eq!(events[..2], [RolloutEvent::Overtaken, RolloutEvent::Promoted]);
        assert_eq!(machine.refused(), []);
        events[2..].to_vec()
    };
    let began = [began_with(1)];
    assert_eq!(promoted_refusal("LDS a=1 b=1", "LDS a=2", "LDS b=2"), began);
    assert_eq!(promoted_refusal("LDS a=1 b=1", "LDS -a", "LDS b=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; RDS r=1", "RDS r=2>c", "CDS c=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; EDS c=1", "CDS c=2", "EDS c=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; EDS c=1", "CDS c=2", "EDS -c"), began);
    // What was refused names what came since then, or was named until then: it goes to all with these changes.
    assert_eq!(promoted_refusal("RDS r=1", "RDS r=2>c", "CDS c=1")[..], []);
    assert_eq!(promoted_refusal("CDS c=1 d=1; RDS r=1>c", "CDS -c", "RDS r=2>d")[..], []);
    assert_eq!(promoted_refusal("CDS d=1", "CDS d=2", "EDS d=1")[..], []);
    // It may name anything.
    assert_eq!(promoted_refusal("LDS l=1", "LDS l=2", "CDS c=1")[..], []);
    assert_eq!(promoted_refusal("CDS c=1; LDS l=1", "CDS -c", "LDS l=2")[..], []);
}

#[test]
fn changes_that_need_what_was_refused_wait_for_it() {
    let waits = |before: &str, refused: &str, since: &str, waiting: usize| {
        let mut machine = machine("1 client");
        events(&mut machine, before);
        assert_eq!(events(&mut machine, refused).len(), 1);
        abort(&mut machine);
        assert_eq!(events(&mut machine, since), [], "{refused}, then {since}");
        assert_eq!(machine.waiting(), waiting);
        // Endpoints go on.
        assert_eq!(events(&mut machine, "EDS other=1"), [began_with(1)]);
        assert!(machine.order(RolloutOrder::Promote));
        assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted]);
        assert!(machine.order(RolloutOrder::Promote));
        assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted, began_with(waiting)]);
        assert_eq!(machine.waiting(), 0);
    };
    // They name what it adds.
    waits("RDS r=1", "CDS c=1", "RDS r=2>c", 1);
    // They remove what only the stable version of it names, or may name.
    waits("CDS c=1 d=1; RDS r=1>c", "RDS r=2>d", "CDS -c", 1);
    waits("CDS c=1; LDS l=1", "LDS l=2", "CDS -c", 1);
    // They remove what has another name there now.
    waits("RDS a=1", "CDS c=1", "RDS -a b{alias=a}=2>c", 2);
    // They need what needs it.
    waits("CDS d=1; RDS r=1>d", "CDS c=1", "RDS r=2>c; CDS -d", 2);
}

/// The steps of a request hold until all that it brought is stable, also for what comes meanwhile.
#[test]
fn the_steps_of_a_request_hold_while_a_part_of_it_is_refused() {
    let mut machine = machine("1 client");
    machine.plan = RolloutPlan::new(Vec::new(), Duration::ZERO);
    let request = |machine: &RolloutMachine, text: &str, number| {
        let mut transaction = transaction(text);
        let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(1));
        transaction.origin().rollout = Some(RequestedRollout { number, plan });
        machine.source.commit(transaction).unwrap();
    };
    events(&mut machine, "LDS a=1 b=1");
    request(&machine, "LDS a=2", 1);
    assert_eq!(events(&mut machine, ""), [began_with(1)]);
    abort(&mut machine);
    request(&machine, "LDS b=2", 1);
    assert_eq!(events(&mut machine, ""), [began_with(1)]);
    assert!(machine.order(RolloutOrder::Promote));
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted]);
    request(&machine, "LDS a=3", 1);
    assert_eq!(events(&mut machine, ""), [began_with(1)], "nobody tried it yet");
    assert!(machine.order(RolloutOrder::Promote));
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Promoted]);
    request(&machine, "LDS a=4", 1);
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Committed]);
}

#[test]
fn what_was_refused_before_a_restart_stays_refused() {
    let began = [began_with(1)];
    let mut before = machine("1 client");
    events(&mut before, "LDS a=1 b=1");
    assert_eq!(events(&mut before, "LDS a=2"), began);
    abort(&mut before);
    let restart = || {
        let mut after = machine("1 client");
        commit(&after.served, "LDS a=1 b=1");
        after.refused_before(before.refused().to_vec());
        after
    };
    assert_eq!(events(&mut restart(), "LDS a=2 b=1"), []);
    // Another change, and an order, are as without the restart.
    assert_eq!(events(&mut restart(), "LDS a=3 b=1"), began);
    let mut after = restart();
    assert_eq!(events(&mut after, "LDS a=2 b=1"), []);
    assert!(after.order(RolloutOrder::Promote));
    assert_eq!(events(&mut after, ""), [RolloutEvent::Promoted]);
}

/// SR45: a store may say why a resource is not there, which no client can reject.
#[test]
fn what_only_brings_a_reason_reaches_all_clients_at_once() {
    let mut machine = machine("1 client");
    assert_eq!(events(&mut machine, "LDS a=1"), [RolloutEvent::Committed]);
    let mut transaction = Transaction::new();
    let (lds, constraints) = (type_url("LDS"), Constraints::NONE);
    let gone = VariantId { type_url: lds.clone(), name: "b".into(), constraints };
    transaction.remove_because(gone.clone(), "it is quarantined");
    machine.source.commit(transaction).unwrap();
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Committed]);
    let has_reasons =
        |machine: &RolloutMachine| machine.served.snapshot().of_type(&lds).unwrap().has_reasons();
    assert!(has_reasons(&machine));
    // The store no longer says why.
    let mut transaction = Transaction::new();
    transaction.remove(gone);
    machine.source.commit(transaction).unwrap();
    assert_eq!(events(&mut machine, ""), [RolloutEvent::Committed]);
    assert!(!has_reasons(&machine));
}

#[test]
fn what_the_source_takes_back_is_tried_by_nobody_else() {
    let mut machine = machine("1 client, 100%");
    events(&mut machine, "LDS a=1 b=1");
    assert_eq!(events(&mut machine, "LDS a=2 b=2").len(), 1);
    assert_eq!(events(&mut machine, "LDS a=3 c=1"), []);
    assert_eq!(events(&mut machine, "LDS b=1"), [RolloutEvent::Overtaken, began_with(2)]);
    assert_eq!(events(&mut machine, "LDS a=1 -c"), [RolloutEvent::Overtaken]);
    // A part that comes and goes does not keep the rest from its end.
    assert_eq!(events(&mut machine, "LDS a=2 b=2"), [began_with(2)]);
    assert_eq!(events(&mut machine, "LDS b=1"), [RolloutEvent::Overtaken, began_with(1)]);
    assert_eq!(events(&mut machine, "LDS a=1 b=2"), [RolloutEvent::Overtaken, began_with(1)]);
    assert_eq!(events(&mut machine, "LDS b=1"), []);
}

#[test]
fn a_rejection_counts_also_when_the_source_changed_meanwhile() {
    let mut machine = machine("1 client");
    machine.on_change = OnChange::Replace;
    events(&mut machine, "LDS a=1 b=1");
    let mut client = Delta::new(&machine.served);
    client.ask("LDS", "*");
    client.sent();
    client.ack("LDS", "1");
    assert_eq!(events(&mut machine, "LDS a=2"), [began_with(1)]);
    assert_eq!(client.sent(), "n2 LDS a=2");
    client.nack("LDS", "2");
    client.sent();
    let events = events(&mut machine, "LDS b=2");
    assert!(matches!(events[..], [RolloutEvent::Refused(_), RolloutEvent::Began { .. }]), "{events:?}");
}

#[test]
fn a_rollout_that_is_stopped_begins_again() {
    let began = [began_with(1)];
    let mut machine = machine("1 client");
    events(&mut machine, "LDS a=1");
    assert_eq!(events(&mut machine, "LDS a=2"), began);
    machine.stop();
    assert!(machine.running().is_none());
    assert_eq!(events(&mut machine, ""), began);
}
