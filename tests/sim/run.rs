//! Runs scripts, and shortens those that fail.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use crate::heal::heal;
use crate::invariant::Violation;
use crate::script::{Action, Script};
use crate::trace::Trace;
use crate::world::World;

/// The result of a script.
pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) trace: Trace,
}

pub(crate) fn run(script: &Script, trace: Trace) -> Outcome {
    let mut world = World::new(script, trace);
    // The machines assert their own invariants.
    let result = catch_unwind(AssertUnwindSafe(|| {
        script.steps.iter().try_for_each(|step| world.step(step))?;
        heal(&mut world, script.salt)
    }));
    let violation = match result {
        Ok(result) => result.err(),
        Err(_) => Some(Violation::new("panic", PANIC.take())),
    };
    Outcome { violation, trace: world.trace }
}

/// The shortest script found that violates the same invariant.
pub(crate) fn shrink(script: Script, invariant: &str) -> Script {
    let mut budget = SHRINK_RUNS;
    let mut fails = |candidate: &Script| {
        budget = usize::saturating_sub(budget, 1);
        budget > 0
            && run(candidate, Trace::default()).violation.is_some_and(|found| found.invariant == invariant)
    };
    let mut shortest = script;
    loop {
        let length = (shortest.steps.len(), weight(&shortest));
        shortest = without_steps(shortest, &mut fails);
        shortest = without_parts(shortest, &mut fails);
        if (shortest.steps.len(), weight(&shortest)) == length {
            return shortest;
        }
    }
}

/// Leaves out sequences of steps, long ones first.
fn without_steps(mut script: Script, fails: &mut impl FnMut(&Script) -> bool) -> Script {
    let mut length = script.steps.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        while at < script.steps.len() {
            let mut candidate = script.clone();
            candidate.steps.drain(at..(at + length).min(candidate.steps.len()));
            if fails(&candidate) {
                script = candidate;
            } else {
                at += length;
            }
        }
        length /= 2;
    }
    script
}

/// Leaves out single changes of commits, and single names of subscriptions.
fn without_parts(mut script: Script, fails: &mut impl FnMut(&Script) -> bool) -> Script {
    for at in 0..script.steps.len() {
        let mut part = 0;
        while part < parts(&script.steps[at].action) {
            let mut candidate = script.clone();
            drop_part(&mut candidate.steps[at].action, part);
            if fails(&candidate) {
                script = candidate;
            } else {
                part += 1;
            }
        }
    }
    script
}

fn parts(action: &Action) -> usize {
    match action {
        Action::Commit { changes, .. } => changes.len(),
        Action::Ask { asked, .. } => asked.len(),
        Action::CatchUp { .. }
        | Action::Crash { .. }
        | Action::Deliver { .. }
        | Action::Take { .. }
        | Action::Exchange { .. }
        | Action::Silence { .. }
        | Action::Reconnect { .. }
        | Action::Pass { .. }
        | Action::Order { .. }
        | Action::Refuse { .. }
        | Action::Agent { .. }
        | Action::Relay { .. } => 0,
    }
}

fn drop_part(action: &mut Action, part: usize) {
    match action {
        Action::Commit { changes, .. } => _ = changes.remove(part),
        Action::Ask { asked, .. } => {
            let dropped = asked.iter().nth(part).cloned();
            dropped.iter().for_each(|dropped| _ = asked.remove(dropped));
        }
        _ => {}
    }
}

fn weight(script: &Script) -> usize {
    script.steps.iter().map(|step| parts(&step.action)).sum()
}

/// Makes a panic a violation like others, so that it is reported once, with its trace.
pub(crate) fn catch_panics() {
    set_hook(Box::new(|panic| PANIC.set(panic.to_string())));
}

thread_local! {
    /// The message of the last panic of this thread.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The largest number of scripts that are tried to shorten one.
const SHRINK_RUNS: usize = 5_000;
