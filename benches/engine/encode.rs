//! The cost of encoding a first response.

use std::cell::LazyCell;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use xds_core::Cache;
use xds_core::server::Protocol;
use xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT;

use crate::client::Client;
use crate::resources;

/// Shows the cost of encoding, which the first stream of a class pays for all others.
pub(crate) fn group(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for count in [1_000, 10_000] {
        let cache = LazyCell::new(|| resources::cache((0..count).map(|at| resources::assignment(at, 0))));
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("first stream", count), |bencher| {
            let cache = LazyCell::force(&cache);
            let respond = |[mut first, second]: [Client; 2]| (first.response(), first, second);
            bencher.iter_batched(|| class(cache), respond, BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("second stream", count), |bencher| {
            let cache = LazyCell::force(&cache);
            let first_told = || {
                let [mut first, second] = class(cache);
                (first.response(), first, second)
            };
            let respond =
                |(told, first, mut second): (_, Client, Client)| (second.response(), second, first, told);
            bencher.iter_batched(first_told, respond, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Two streams that subscribe to the wildcard and were not answered yet.
fn class(cache: &Arc<Cache>) -> [Client; 2] {
    [(); 2].map(|()| Client::new(cache, Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT).subscribe(vec!["*".into()]))
}
