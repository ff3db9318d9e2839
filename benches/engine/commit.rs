//! The cost of a commit without streams.

use std::cell::LazyCell;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use xds_core::{Cache, Resource};

use crate::resources::{self, Changes};

/// Shows the cost of changes alone. The cost of one change must not grow with the size of the
/// cache. The cost of many at once limits how fast a server starts.
pub(crate) fn group(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commit");
    for count in [1_000, 10_000, 100_000] {
        let cache = LazyCell::new(|| resources::cache((0..count).map(|at| resources::assignment(at, 0))));
        let mut changes = Changes::new(count, resources::assignment);
        group.bench_function(BenchmarkId::new("one of resources", count), |bencher| {
            let cache = LazyCell::force(&cache);
            let change = |one| resources::commit(cache, [one]);
            bencher.iter_batched(|| changes.next(), change, BatchSize::SmallInput);
        });
    }
    for count in [1_000, 100_000] {
        let variants = (0..count).map(|at| resources::variant(0, 0, at));
        let cache = LazyCell::new(|| resources::cache(variants));
        let mut changes = Changes::new(count, |at, round| resources::variant(0, round, at));
        group.bench_function(BenchmarkId::new("one of variants", count), |bencher| {
            let cache = LazyCell::force(&cache);
            let change = |one| resources::commit(cache, [one]);
            bencher.iter_batched(|| changes.next(), change, BatchSize::SmallInput);
        });
    }
    let count = 100_000;
    let all = LazyCell::new(|| (0..count).map(|at| resources::assignment(at, 0)).collect::<Vec<_>>());
    group.throughput(Throughput::Elements(count as u64));
    group.measurement_time(Duration::from_secs(4));
    group.bench_function(BenchmarkId::new("into nothing", count), |bencher| {
        let all = LazyCell::force(&all);
        let fill = |all: Vec<Resource>| {
            let cache = Cache::new();
            resources::commit(&cache, all);
            cache
        };
        bencher.iter_batched(|| all.clone(), fill, BatchSize::PerIteration);
    });
    group.finish();
}
