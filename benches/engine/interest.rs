//! The cost of a commit with subscribed streams.

use std::cell::{LazyCell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode};
use xds_core::server::Protocol;
use xds_core::{Cache, Resource, ResourceName};
use xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT;

use crate::client::Client;
use crate::resources;

/// Shows the cost of finding and waking the streams that a change affects. It may grow with their
/// number, not with that of the others.
pub(crate) fn group(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("interest");
    // Between two commits the streams catch up, which takes much longer than the commits.
    group.sampling_mode(SamplingMode::Flat);
    for streams in [10, 1_000, 10_000] {
        let fleet = LazyCell::new(|| RefCell::new(Fleet::of_one_class(streams)));
        group.bench_function(BenchmarkId::new("all in one class", streams), |bencher| {
            let mut fleet = fleet.borrow_mut();
            bencher.iter_custom(|commits| fleet.time(commits, resources::assignment));
        });
    }
    for variants in [1, 1_000] {
        let fleet = LazyCell::new(|| RefCell::new(Fleet::of_variants(variants)));
        let id = BenchmarkId::new("ten concerned of streams", variants * OF_VARIANT);
        group.bench_function(id, |bencher| {
            let mut fleet = fleet.borrow_mut();
            let change = |name, round| resources::variant(name, round, 0);
            bencher.iter_custom(|commits| fleet.time(commits, change));
        });
    }
    group.finish();
}

/// Streams that subscribe to one name.
struct Fleet {
    cache: Arc<Cache>,
    clients: Vec<Client>,
    round: u64,
}

impl Fleet {
    fn of_one_class(streams: usize) -> Self {
        let cache = resources::cache([resources::assignment(0, 0)]);
        let client = || Client::new(&cache, Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT);
        let clients = std::iter::repeat_with(client).take(streams).collect();
        Self::new(cache, clients)
    }

    /// Ten streams for each of these variants; the name has more variants.
    fn of_variants(variants: usize) -> Self {
        let cache = resources::cache((0..NAME_HAS).map(|at| resources::variant(0, 0, at)));
        let client = |at| {
            let variant = resources::variant_name(at % variants);
            Client::of_variant(&cache, CLUSTER_LOAD_ASSIGNMENT, &variant)
        };
        let clients = (0..variants * OF_VARIANT).map(client).collect();
        Self::new(cache, clients)
    }

    fn new(cache: Arc<Cache>, clients: Vec<Client>) -> Self {
        let name = ResourceName::new(resources::name(0));
        let ask = |client: Client| client.subscribe(vec![name.clone()]).caught_up();
        Self { cache, clients: clients.into_iter().map(ask).collect(), round: 0 }
    }

    /// The time of commits, each of which finds all streams up to date and waiting.
    fn time(&mut self, commits: u64, change: impl Fn(usize, u64) -> Resource) -> Duration {
        let mut took = Duration::ZERO;
        for _ in 0..commits {
            self.round += 1;
            let changed = change(0, self.round);
            let started = Instant::now();
            resources::commit(&self.cache, [changed]);
            took += started.elapsed();
            self.clients.iter_mut().for_each(Client::follow);
        }
        took
    }
}

const OF_VARIANT: usize = 10;

const NAME_HAS: usize = 1_000;
