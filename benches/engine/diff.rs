//! The cost of bringing a stream to the newest state.

use std::cell::{LazyCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, SamplingMode};
use xds_core::server::Protocol;
use xds_core::{Cache, Resource, ResourceName};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};

use crate::client::Client;
use crate::resources::{self, Changes};

/// Shows the cost of finding the resources that a stream lacks. It may grow with their number, not
/// with the size of the subscription. Exceptions: a full state, which SotW sends for clusters, has
/// all resources, and a client that reconnects sends all its versions. The longest of many runs
/// shows what the mean hides.
pub(crate) fn group(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("diff");
    // Each response follows a commit, and is ACKed.
    group.sampling_mode(SamplingMode::Flat);
    let ways = [
        ("delta, by name", Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT, Names::Listed),
        ("delta, wildcard", Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT, Names::Wildcard),
        ("SotW, by name", Protocol::Sotw, CLUSTER_LOAD_ASSIGNMENT, Names::Listed),
        ("SotW, wildcard", Protocol::Sotw, CLUSTER_LOAD_ASSIGNMENT, Names::Wildcard),
        ("SotW, full state", Protocol::Sotw, CLUSTER, Names::Wildcard),
    ];
    for (way, protocol, type_url, names) in ways {
        for count in [1_000, 10_000] {
            let follower = || Follower::new(protocol, type_url, names.of(count), count);
            let follower = LazyCell::new(|| RefCell::new(follower()));
            group.bench_function(BenchmarkId::new(format!("one changed, {way}"), count), |bencher| {
                let mut follower = follower.borrow_mut();
                bencher.iter_custom(|responses| (0..responses).map(|_| follower.follow()).sum());
            });
        }
    }
    let ways = [("by name", Names::Listed, 10_000), ("wildcard", Names::Wildcard, 100_000)];
    group.measurement_time(Duration::from_secs(2));
    for (way, names, count) in ways {
        let follower = || Follower::new(Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT, names.of(count), count);
        let follower = LazyCell::new(|| RefCell::new(follower()));
        let name = format!("longest of {MANY}, delta, {way}");
        group.bench_function(BenchmarkId::new(name, count), |bencher| {
            let mut follower = follower.borrow_mut();
            let mut longest = || (0..MANY).map(|_| follower.follow()).max().unwrap();
            bencher.iter_custom(|times| (0..times).map(|_| longest()).sum());
        });
    }
    for (way, names) in [("by name", Names::Listed), ("wildcard", Names::Wildcard)] {
        let count = 10_000;
        let returning = LazyCell::new(|| Returning::new(names.of(count), count));
        group.bench_function(BenchmarkId::new(format!("reconnect, one changed, {way}"), count), |bencher| {
            let returning = LazyCell::force(&returning);
            let resume = |(mut client, names, versions): (Client, _, _)| {
                client.resume(names, versions);
                (client.response(), client)
            };
            bencher.iter_batched(|| returning.again(), resume, BatchSize::PerIteration);
        });
    }
    group.finish();
}

#[derive(Clone, Copy)]
enum Names {
    Listed,
    Wildcard,
}

impl Names {
    fn of(self, count: usize) -> Vec<ResourceName> {
        match self {
            Self::Listed => (0..count).map(|at| resources::name(at).as_str().into()).collect(),
            Self::Wildcard => vec!["*".into()],
        }
    }
}

/// One stream, and changes of its resources.
struct Follower {
    cache: Arc<Cache>,
    client: Client,
    changes: Changes<fn(usize, u64) -> Resource>,
}

impl Follower {
    fn new(protocol: Protocol, type_url: &'static str, names: Vec<ResourceName>, count: usize) -> Self {
        let changed = if type_url == CLUSTER { resources::cluster } else { resources::assignment };
        let cache = resources::cache((0..count).map(|at| changed(at, 0)));
        let client = Client::new(&cache, protocol, type_url).subscribe(names).caught_up();
        Self { cache, client, changes: Changes::new(count, changed) }
    }

    /// The time to make the response to one commit.
    fn follow(&mut self) -> Duration {
        resources::commit(&self.cache, [self.changes.next()]);
        let started = Instant::now();
        let response = self.client.response();
        let took = started.elapsed();
        self.client.ack(&response);
        took
    }
}

/// A client that reconnects with all but one of its resources.
struct Returning {
    cache: Arc<Cache>,
    names: Vec<ResourceName>,
    versions: BTreeMap<ResourceName, String>,
}

impl Returning {
    fn new(names: Vec<ResourceName>, count: usize) -> Self {
        let all: Vec<_> = (0..count).map(|at| resources::assignment(at, 0)).collect();
        let version = |one: &Resource| (one.name().clone(), one.version().to_string());
        let versions = all.iter().map(version).collect();
        let cache = resources::cache(all);
        resources::commit(&cache, [resources::assignment(count / 2, 1)]);
        Self { cache, names, versions }
    }

    /// A new stream and its first request; no other stream has the same subscription.
    fn again(&self) -> (Client, Vec<ResourceName>, BTreeMap<ResourceName, String>) {
        let client = Client::new(&self.cache, Protocol::Delta, CLUSTER_LOAD_ASSIGNMENT);
        (client, self.names.clone(), self.versions.clone())
    }
}

/// More changes than the log of the cache has.
const MANY: usize = 5_000;
