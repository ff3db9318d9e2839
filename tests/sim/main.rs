//! Simulated worlds (`cargo sim --help`). One seed gives replicas, clients of both protocols, our
//! own client library, caching proxies, commits, delays, lost streams, crashes, servers that lie or
//! refuse a type, and the time that passes. After each step all invariants hold. When faults stop, the world
//! reaches a correct state.
//!
//! | file | contents |
//! | --- | --- |
//! | `script` | the events of a world, from a seed; `twins`: clients without a node id of their own; `rejecting`: they reject much |
//! | `content` | types, payloads, variants, commits |
//! | `world`, `connection` | replicas, their streams run in the way of drivers, the messages in flight |
//! | `client`, `known`, `wire` | clients by the rules of the protocol |
//! | `rejections` | what a server may send again because a client rejected it |
//! | `agent`, `agents`, `link`, `liar` | our own client in such a world, its streams, and servers that lie |
//! | `relay`, `relays` | caching proxies between the origin and all clients, in every third world; some receive lies |
//! | `disk` | the cache file of a proxy, on a disk that may be full or damage it |
//! | `refusing` | servers that refuse types for a while, in every fourth world |
//! | `rollouts` | what more and more clients try of a server |
//! | `trying` | responses that a few clients of a proxy try first |
//! | `exceptions` | known deviations that are excused |
//! | `heal` | the end of a world, after the last step |
//! | `invariant/` | the invariants, one file each |
//! | `run`, `trace` | running scripts, shortening those that fail, traces |
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod agent;
mod agents;
mod args;
mod client;
mod connection;
mod content;
mod disk;
mod exceptions;
mod heal;
mod invariant;
mod known;
mod liar;
mod link;
mod random;
mod refusing;
mod rejections;
mod relay;
mod relays;
mod rollouts;
mod run;
mod script;
mod trace;
mod trying;
mod wire;
mod world;

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use args::{HELP, Mode};
use invariant::Violation;
use run::{Outcome, catch_panics, run, shrink};
use script::Script;
use trace::{Stats, Trace};

fn main() -> ExitCode {
    let random = RandomState::new().hash_one(std::process::id());
    let mode = Mode::of(std::env::args().skip(1), std::env::var("XDS_SIM_SEED").ok(), random >> 16);
    catch_panics();
    match mode {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Ok(Mode::Help) => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Mode::List) => {
            println!("sim: test");
            ExitCode::SUCCESS
        }
        Ok(Mode::Nothing) => ExitCode::SUCCESS,
        Ok(Mode::Seeds { first, count, goes_on }) => seeds(first, count, goes_on),
        Ok(Mode::Forever { first }) => seeds(first, u64::MAX - first, false),
        Ok(Mode::Replay { seed }) => replay(seed),
    }
}

fn seeds(first: u64, count: u64, goes_on: bool) -> ExitCode {
    let (start, mut printed, mut stats) = (Instant::now(), Instant::now(), Stats::default());
    let (is_long, mut failed) = (count > u64::from(u32::MAX), 0);
    let violated = thread::scope(|scope| {
        for (done, (seed, of_seed, violation)) in (1..=count).zip(outcomes(scope, first, count)) {
            stats += &of_seed;
            match violation {
                Some(violation) if goes_on => {
                    failed += 1;
                    println!("sim: seed {seed} violates `{}`: {}", violation.invariant, violation.what);
                }
                Some(violation) => return Some((seed, violation)),
                None => {}
            }
            if printed.elapsed().as_secs() >= if is_long { 10 } else { 1 }
                && (is_long || std::io::stderr().is_terminal())
            {
                printed = Instant::now();
                eprint!("\rsim: {done} seeds from {first} in {} s", start.elapsed().as_secs());
                _ = std::io::stderr().flush();
            }
        }
        None
    });
    if let Some((seed, violation)) = violated {
        return fail(seed, Script::of(seed), &violation);
    }
    if failed > 0 {
        println!("sim: {failed} of {count} seeds failed");
        return ExitCode::FAILURE;
    }
    println!("sim: {count} seeds in {:.1} s, all invariants hold: {stats}", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Runs the seeds on all cores. The outcomes come as they are ready; without a receiver the threads end.
fn outcomes<'s>(
    scope: &'s thread::Scope<'s, '_>,
    first: u64,
    count: u64,
) -> mpsc::IntoIter<(u64, Stats, Option<Violation>)> {
    let (sender, outcomes) = mpsc::channel();
    let next = Arc::new(AtomicU64::new(0));
    for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
        let (sender, next) = (sender.clone(), Arc::clone(&next));
        scope.spawn(move || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return;
                }
                let seed = first + at;
                let Outcome { trace, violation } = run(&Script::of(seed), Trace::default());
                if sender.send((seed, trace.stats, violation)).is_err() {
                    return;
                }
            }
        });
    }
    outcomes.into_iter()
}

fn replay(seed: u64) -> ExitCode {
    let script = Script::of(seed);
    let outcome = run(&script, Trace::written());
    print_trace(&script, &outcome.trace);
    match outcome.violation {
        Some(violation) => fail(seed, script, &violation),
        None => {
            println!("sim: seed {seed}, all invariants hold: {}", outcome.trace.stats);
            ExitCode::SUCCESS
        }
    }
}

fn fail(seed: u64, script: Script, violation: &Violation) -> ExitCode {
    let steps = script.steps.len();
    let shortest = shrink(script, violation.invariant);
    let outcome = run(&shortest, Trace::written());
    println!("\nsim: seed {seed}, {} of {steps} steps are enough:", shortest.steps.len());
    print_trace(&shortest, &outcome.trace);
    let shown = outcome.violation.as_ref().unwrap_or(violation);
    println!("sim: seed {seed} violates `{}`: {}", shown.invariant, shown.what);
    println!("replay: cargo sim --seed {seed}");
    ExitCode::FAILURE
}

fn print_trace(script: &Script, trace: &Trace) {
    println!("replicas: {}", script.replicas);
    script.clients.iter().enumerate().for_each(|(at, client)| println!("c{at}: {client}"));
    script.agents.iter().enumerate().for_each(|(at, agent)| println!("a{at}: {agent}"));
    script.rollouts.iter().for_each(|rollouts| println!("rollouts: {rollouts}"));
    let relays = script.relays.iter().zip(script.replicas..);
    relays.for_each(|(relay, replica)| println!("replica {replica}, a proxy: {relay}"));
    trace.lines().iter().for_each(|line| println!("{line}"));
}
