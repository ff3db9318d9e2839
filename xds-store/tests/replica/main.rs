//! The machine that replicates: its rules, and simulators of several nodes.
//!
//!     SEEDS=20000 cargo test --release -p xds-store --test replica
//!     FROM=2000 SEEDS=500 cargo test -p xds-store --test replica
//!     SEED=17 cargo test -p xds-store --test replica -- --nocapture
//!     SEED=17 LINES=100000 WIDTH=3000 cargo test -p xds-store --test replica sg22
//!     SEED=17 WITHOUT=losses,restores,twins cargo test -p xds-store --test replica
//!     SEED=17 WITHOUT=losses,gone,deleted,disabled cargo test -p xds-store --test replica sg22
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use nodes::Counts;
use sim::Sim;

#[path = "../merge/at_once.rs"]
mod at_once;
mod comparing;
#[expect(dead_code, reason = "shared with the tests of rules")]
#[path = "../driven/mod.rs"]
mod driven;
mod fixture;
mod identity;
mod lying;
mod nodes;
mod random;
mod regions;
mod rules;
mod sim;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = number("FROM").unwrap_or(0);
            from..from + number("SEEDS").unwrap_or(default)
        }
    }
}

#[test]
fn sr7_sr13_sr17_sr43_sr47_sr48_nodes_with_stores_are_safe_in_any_trouble_and_equal_after_it() {
    let mut all = Counts::default();
    for seed in seeds(2000) {
        let counts = nodes::run(seed).unwrap_or_else(|problem| panic!("SEED={seed}: {problem}"));
        all.add(&counts);
    }
    println!("{all:?}");
    // A simulator in which these do not happen shows nothing about them.
    if number("SEED").is_none() {
        assert!(all.committed > all.refused && all.compactions > 0 && all.acks[0] > 0 && all.acks[1] > 0);
        assert!(all.peeks > 0);
        assert!(all.shown > 0);
        assert!(all.losses > 0 && all.restores > 0 && all.twins > 0 || std::env::var("WITHOUT").is_ok());
        let has_snapshots = all.snapshots[0] > 0 && all.snapshots[1] > 0;
        assert!(has_snapshots || number("SEEDS").is_some_and(|seeds| seeds < 500));
    }
}

#[test]
fn sg22_sg27_sg28_sg32_regions_are_safe_in_any_trouble_and_equal_after_it() {
    let mut all = Counts::default();
    for seed in seeds(2000) {
        let counts = nodes::run_regions(seed).unwrap_or_else(|problem| panic!("SEED={seed}: {problem}"));
        all.add(&counts);
    }
    println!("{all:?}");
    if number("SEED").is_none() {
        assert!(all.committed > 0 && all.refused > 0 && all.compactions > 0);
        let has_losses = all.losses > 0 && all.restores > 0 && all.snapshots[0] > 0;
        assert!(
            has_losses
                || number("SEEDS").is_some_and(|seeds| seeds < 100)
                || std::env::var("WITHOUT").is_ok()
        );
        let has_promotions = all.promotions[0] > 0 && all.promotions[1] > 0;
        assert!(has_promotions || number("SEEDS").is_some_and(|seeds| seeds < 100));
    }
}

#[test]
fn nodes_are_safe_in_any_trouble_and_equal_after_it() {
    let (mut calls, mut snapshots, mut acks) = (0, 0, [0, 0]);
    for seed in seeds(200) {
        let (sim, outcome) = Sim::run(seed);
        if let Err(problem) = outcome {
            let from = sim.trace.len().saturating_sub(if number("SEED").is_some() { usize::MAX } else { 40 });
            panic!("SEED={seed}: {problem}\n{}", sim.trace[from..].join("\n"));
        }
        calls += sim.calls;
        snapshots += sim.snapshots;
        acks = [acks[0] + sim.acks[0], acks[1] + sim.acks[1]];
    }
    println!("{calls} calls, {snapshots} snapshots, {} acks in time, {} not", acks[1], acks[0]);
    // A simulator in which these do not happen shows nothing about them.
    if number("SEED").is_none() {
        assert!(calls > 0 && snapshots > 0 && acks[0] > 0 && acks[1] > 0);
    }
}
