//! Claim: if all variants name exact values, a search takes at most twice the time of a bare hash
//! table of them. From 1,000 variants of a name to 100,000 a search gets at most six times slower.
//! Of the queries of one set, 99 in 100 take at most five times the median, whatever the
//! constraints.
//!
//! Size: 10, 1,000 and 100,000 variants of one name; random alternatives 1,000. Peers: a scan of
//! the formulas, a scan with numbers for strings, the crates `a-tree` and `biodivine-lib-bdd`, and
//! the hash table where it can represent the set. All but `text scan` and `from strings` start from
//! parameters that were looked up before. First the answers of all are compared with those of the
//! text scan.
//!
//!     cargo bench --bench matching

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use peers::atree::ATree;
use peers::bdd::Diagrams;
use peers::scan::{NumberScan, TextScan};
use peers::tuple::TupleHash;
use peers::workload::{Query, Workload};
use xds_core::VariantSet;
use xds_core::matching::KeySetRule;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1_000)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    targets = matching
}
criterion_main!(benches);

fn matching(criterion: &mut Criterion) {
    for count in [10, 1_000, 100_000] {
        compare(criterion, &Workload::exact(count));
        compare(criterion, &Workload::exact_and_few(count));
        compare(criterion, &Workload::or_sets(count));
        compare(criterion, &Workload::sparse(count));
        compare(criterion, &Workload::one_key(count));
    }
    compare(criterion, &Workload::random_tree(1_000));
    compare(criterion, &Workload::random_terms(1_000));
}

fn compare(criterion: &mut Criterion, workload: &Workload) {
    let count = workload.variants.len();
    // Enough queries that they do not all hit the same few places of a large table, which would
    // then be in the CPU cache.
    let queries = workload.queries(if count < 50_000 { 16_384 } else { 65_536 });
    let heading = format!("{} {count}", workload.name);
    let mut group = criterion.benchmark_group(&heading);

    let set = ours(workload);
    let prepared: Vec<_> = queries.iter().map(|query| set.prepare(&query.parameters)).collect();
    let ours = |at: usize| prepared[at].resolve().copied();
    let text = TextScan::of(workload);
    let sampled = &queries[..(10_000_000 / count).min(queries.len())];
    let expected: Vec<_> = sampled.iter().map(|query| text.find(&query.parameters)).collect();
    let agree = |engine: &str, find: &dyn Fn(usize) -> Option<u32>, among: usize| {
        for (at, expected) in expected.iter().enumerate().take(among) {
            assert_eq!(find(at), *expected, "{engine} and text scan differ on {:?}", queries[at].parameters);
        }
    };

    agree("ours", &ours, queries.len());
    time(&mut group, "ours", queries.len(), ours);
    let cold = |at: usize| set.resolve(&queries[at].parameters).copied();
    agree("from strings", &cold, queries.len());
    time(&mut group, "ours, from strings", queries.len(), cold);
    if let Some(table) = TupleHash::<4>::of(workload) {
        compare_tuple(&mut group, &heading, &table, &queries, &ours);
    }
    if let Some(table) = TupleHash::<1>::of(workload) {
        compare_tuple(&mut group, &heading, &table, &queries, &ours);
    }
    let (median, tail) = tail(queries.len(), &ours);
    println!("{heading}: ours p50 {median} ns, p99 {tail} ns, each query alone");

    time(&mut group, "text scan", sampled.len(), |at| text.find(&queries[at].parameters));
    let numbers = NumberScan::of(workload);
    agree("number scan", &|at| numbers.find(&queries[at].point), 256);
    time(&mut group, "number scan", sampled.len(), |at| numbers.find(&queries[at].point));

    let few = &queries[..256.min(sampled.len())];
    let started = Instant::now();
    let atree = ATree::of(workload);
    println!("{heading}: a-tree built in {:?}", started.elapsed());
    let events: Vec<_> = few.iter().map(|query| atree.event(query)).collect();
    agree("a-tree", &|at| atree.find(&events[at]), few.len());
    time(&mut group, "a-tree", few.len(), |at| atree.find(&events[at]));

    let started = Instant::now();
    let diagrams = Diagrams::of(workload);
    let bytes = diagrams.bytes() / count;
    println!("{heading}: diagrams built in {:?}, {bytes} B per variant", started.elapsed());
    let valuations: Vec<_> = few.iter().map(|query| diagrams.valuation(&query.point)).collect();
    agree("biodivine", &|at| diagrams.find(&valuations[at]), few.len());
    time(&mut group, "biodivine", few.len(), |at| diagrams.find(&valuations[at]));
    group.finish();
}

fn ours(workload: &Workload) -> VariantSet<u32> {
    let variants = (0..workload.variants.len()).map(|at| (workload.formula(at), at as u32));
    let variants: Vec<_> = variants.collect();
    let count = variants.len();
    let started = Instant::now();
    let set = VariantSet::new().edit([], variants, KeySetRule::Free).expect("no two variants overlap");
    let (took, size) = (started.elapsed(), set.size());
    println!(
        "{} {count}: built and checked in {took:?}, {} B per variant, {} nodes branch",
        workload.name,
        size.tree_bytes / count,
        size.wild_nodes
    );
    set
}

/// A hash table of exact values, where it can represent the set, in turns with ours.
fn compare_tuple<const N: usize>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    heading: &str,
    table: &TupleHash<N>,
    queries: &[Query],
    ours: &impl Fn(usize) -> Option<u32>,
) {
    let find = |at: usize| table.find(&queries[at].point);
    let cold = |at: usize| table.resolve(&queries[at].parameters);
    for (at, query) in queries.iter().enumerate() {
        assert_eq!((find(at), cold(at)), (ours(at), ours(at)), "{:?}", query.parameters);
    }
    time(group, "tuple hash", queries.len(), find);
    time(group, "tuple hash, from strings", queries.len(), cold);
    let mut ratios = Vec::new();
    let mut medians = Vec::new();
    for _ in 0..ROUNDS {
        let (mine, theirs) =
            (median_of_batches(queries.len(), ours), median_of_batches(queries.len(), &find));
        ratios.push(mine / theirs);
        medians.push((mine, theirs));
    }
    let (mine, theirs) = middle(&mut medians);
    println!(
        "{heading}: ours {mine:.1} ns, tuple hash {theirs:.1} ns and {} B per variant, ratio {:.2}",
        table.bytes() / table.len(),
        middle(&mut ratios)
    );
}

fn time(
    group: &mut BenchmarkGroup<'_, WallTime>,
    engine: &str,
    count: usize,
    find: impl Fn(usize) -> Option<u32>,
) {
    let mut at = 0;
    group.bench_function(engine, |bencher| {
        bencher.iter_custom(|matches| {
            let started = Instant::now();
            for _ in 0..matches {
                black_box(find(at));
                at = if at + 1 < count { at + 1 } else { 0 };
            }
            started.elapsed()
        });
    });
}

/// Nanoseconds of a match: the median over batches.
fn median_of_batches(count: usize, find: &impl Fn(usize) -> Option<u32>) -> f64 {
    let batches = (0..count / BATCH).map(|batch| {
        let started = Instant::now();
        for at in batch * BATCH..(batch + 1) * BATCH {
            black_box(find(at));
        }
        started.elapsed().as_nanos() as f64 / BATCH as f64
    });
    middle(&mut batches.collect::<Vec<_>>())
}

/// The median and the 99th percentile over queries, in nanoseconds, each query measured alone. The
/// least of its times counts, which leaves out other work of the machine. The time of reading the
/// clock is subtracted.
fn tail(count: usize, find: &impl Fn(usize) -> Option<u32>) -> (u128, u128) {
    let alone = |find: &dyn Fn(usize) -> Option<u32>| {
        let mut least = vec![u128::MAX; count];
        for _ in 0..ROUNDS {
            for (at, least) in least.iter_mut().enumerate() {
                let started = Instant::now();
                black_box(find(at));
                *least = started.elapsed().as_nanos().min(*least);
            }
        }
        least.sort_unstable();
        least
    };
    let (clock, times) = (alone(&|_| None)[count / 2], alone(find));
    (times[count / 2].saturating_sub(clock), times[count * 99 / 100].saturating_sub(clock))
}

fn middle<T: PartialOrd + Copy>(numbers: &mut [T]) -> T {
    numbers.sort_unstable_by(|left, right| left.partial_cmp(right).expect("times are numbers"));
    numbers[numbers.len() / 2]
}

/// Queries that are timed together, because one takes hardly longer than reading the clock.
const BATCH: usize = 32;
/// The number of turns of the compared engines.
const ROUNDS: usize = 7;
