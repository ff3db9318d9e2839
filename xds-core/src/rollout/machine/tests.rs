use super::*;
use crate::constraint::Constraints;
use crate::rollout::RolloutSteps;
use crate::server::fixture::{Delta, commit, type_url};

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

#[test]
fn what_was_refused_is_tried_again_when_its_resource_changes() {
    let began = |variants| [began_with(variants)];
    let mut machine = machine("1 client");
    assert_eq!(events(&mut machine, "LDS a[env=a]=1 b=1"), [RolloutEvent::Committed]);
    assert_eq!(events(&mut machine, "LDS -a[env=a]"), began(1));
    assert!(machine.order(RolloutOrder::Abort));
    assert_eq!(events(&mut machine, "LDS b=2"), [RolloutEvent::Refused("an operator aborted it".into())]);
    assert_eq!(events(&mut machine, "LDS b=3"), []);
    // The removal is still a part of it, but the resource is another one now.
    assert_eq!(events(&mut machine, "LDS a=1"), began(3));
}

#[test]
fn what_was_refused_is_promoted_without_the_changes_since_then() {
    let began = [began_with(1)];
    let promoted_refusal = |before: &str, refused: &str, since: &str| {
        let mut machine = machine("1 client");
        events(&mut machine, before);
        assert_eq!(events(&mut machine, refused).len(), 1);
        assert!(machine.order(RolloutOrder::Abort));
        events(&mut machine, "");
        assert_eq!(events(&mut machine, since), []);
        assert!(machine.order(RolloutOrder::Promote));
        let events = events(&mut machine, "");
        assert_eq!(events.first(), Some(&RolloutEvent::Promoted));
        assert!(machine.refused().is_none());
        events[1..].to_vec()
    };
    assert_eq!(promoted_refusal("LDS a=1 b=1", "LDS a=2", "LDS b=2"), began);
    assert_eq!(promoted_refusal("LDS a=1 b=1", "LDS -a", "LDS b=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; RDS r=1", "RDS r=2>c", "CDS c=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; EDS c=1", "CDS c=2", "EDS c=2"), began);
    assert_eq!(promoted_refusal("CDS c=1; LDS l=1", "LDS l=2", "CDS -c"), began);
    // It names what came since then, or was named until then.
    assert_eq!(promoted_refusal("RDS r=1", "RDS r=2>c", "CDS c=1")[..], []);
    assert_eq!(promoted_refusal("CDS c=1 d=1; RDS r=1>c", "CDS -c", "RDS r=2>d")[..], []);
    assert_eq!(promoted_refusal("CDS d=1", "CDS d=2", "EDS d=1")[..], []);
    // It may name anything.
    assert_eq!(promoted_refusal("LDS l=1", "LDS l=2", "CDS c=1")[..], []);
    assert_eq!(promoted_refusal("CDS c=1; LDS l=1", "CDS -c", "LDS l=2")[..], []);
}

#[test]
fn what_was_refused_before_a_restart_stays_refused() {
    let began = [began_with(1)];
    let aborted = [RolloutEvent::Refused("an operator aborted it".into())];
    let mut before = machine("1 client");
    events(&mut before, "LDS a=1 b=1");
    assert_eq!(events(&mut before, "LDS a=2"), began);
    assert!(before.order(RolloutOrder::Abort));
    assert_eq!(events(&mut before, ""), aborted);
    let restart = || {
        let mut after = machine("1 client");
        commit(&after.served, "LDS a=1 b=1");
        after.refused_before(before.refused().unwrap().clone());
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
    assert!(matches!(events[..], [RolloutEvent::Refused(_)]), "{events:?}");
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
