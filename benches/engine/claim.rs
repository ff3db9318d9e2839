//! The claim of this benchmark, in CPU time and bytes.

use std::alloc::System;
use std::fs;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use xds_core::Resource;

use crate::resources::{self, Changes};

/// Counts allocated bytes, which makes allocations a little slower in all groups.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Prints the figures of the claim.
///
/// # Panics
/// When one of them is missed.
pub(crate) fn check() {
    let all: Vec<_> = (0..COUNT).map(|at| resources::assignment(at, 0)).collect();
    let mut cache = None;
    let fill = Cost::of(|| cache = Some(resources::cache(all)));
    let cache = cache.unwrap();
    let mut changes = Changes::new(COUNT, resources::assignment);
    let changed: Vec<Resource> = (0..COMMITS).map(|_| changes.next()).collect();
    let commits = Cost::of(|| changed.into_iter().for_each(|one| resources::commit(&cache, [one])));

    let per_second = COUNT as f64 / fill.cpu.as_secs_f64();
    let (cpu, bytes) = (commits.cpu / COMMITS, commits.bytes / COMMITS as usize);
    println!("{COUNT} into nothing   {per_second:.0} resources/s of CPU (claim: more than {MIN_PER_SECOND})");
    println!(
        "1 into {COUNT}         {cpu:?} of CPU, {bytes} B allocated (claim: less than {MAX_CPU:?}, {MAX_BYTES} B)"
    );
    let holds = per_second > MIN_PER_SECOND && cpu < MAX_CPU && bytes < MAX_BYTES;
    assert!(holds, "a claim does not hold");
}

/// The resources that this thread used.
struct Cost {
    cpu: Duration,
    bytes: usize,
}

impl Cost {
    fn of(work: impl FnOnce()) -> Self {
        let (started, region) = (cpu(), Region::new(ALLOCATOR));
        work();
        let bytes = region.change().bytes_allocated;
        Self { cpu: cpu() - started, bytes }
    }
}

/// While the thread runs, the kernel updates this time in steps of a few milliseconds.
fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

const COUNT: usize = 100_000;

const COMMITS: u32 = 5_000;

const MIN_PER_SECOND: f64 = 300_000.0;

const MAX_CPU: Duration = Duration::from_micros(100);

const MAX_BYTES: usize = 64 << 10;
