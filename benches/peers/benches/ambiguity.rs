//! Claim: for a new variant with exact values, the proof that it overlaps no other variant of its
//! name takes 0.5 us, and so do parameters that prove the opposite, with 1,000 variants and with
//! 100,000. A formula made to be hard is refused within 50 ms and 16 MB.
//!
//! Size: 10, 1,000 and 100,000 variants of one name; random alternatives 1,000; for single edits
//! also 100,000 names. Peers: the same check of each variant in turn, with our own normal forms and
//! with diagrams of `biodivine-lib-bdd`, and one look-up in a hash table of exact values. `a-tree`
//! checks nothing.
//!
//! The variants without an overlap were taken out of each set, so they do not overlap; the
//! overlapping ones are in the set. A check starts from the formula, except for the hash table,
//! which starts from numbers; nothing is built for it. The builds of the peers with 100,000
//! variants are timed in the benchmark `matching`.
//!
//!     cargo bench --bench ambiguity
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use peers::bdd::Diagrams;
use peers::dice::Dice;
use peers::tuple::TupleHash;
use peers::workload::{Term, Workload, random_alternatives};
use xds_core::matching::KeySetRule;
use xds_core::matching::normal::Normal;
use xds_core::{Cache, Constraints, Formula, Resource, ResourceName, Transaction, TypeUrl, VariantSet};

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1_000)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    targets = checks, single_edits, hostile_formulas
}
criterion_main!(benches);

fn checks(criterion: &mut Criterion) {
    for count in [10, 1_000, 100_000] {
        check(criterion, Workload::exact(count));
        check(criterion, Workload::exact_and_few(count));
        check(criterion, Workload::or_sets(count));
        check(criterion, Workload::sparse(count));
        check(criterion, Workload::one_key(count));
    }
    check(criterion, Workload::random_tree(1_000));
    check(criterion, Workload::random_terms(1_000));
}

fn check(criterion: &mut Criterion, mut workload: Workload) {
    let count = workload.variants.len();
    let heading = format!("{} {count}", workload.name);
    let mut group = criterion.benchmark_group(&heading);

    let every = (count / 64).max(5);
    let (held, kept): (Vec<_>, Vec<_>) =
        workload.variants.into_iter().enumerate().partition(|(at, _)| at % every == every / 2);
    workload.variants = kept.into_iter().map(|(_, terms)| terms).collect();
    let fresh: Vec<_> =
        held.into_iter().map(|(_, terms)| (Arc::new(workload.spell(&terms)), terms)).collect();
    let count = workload.variants.len();
    let taken = (0..count).step_by(every);
    let taken: Vec<_> = taken.map(|at| (workload.formula(at), workload.variants[at].clone())).collect();

    let formulas: Vec<_> = (0..count).map(|at| workload.formula(at)).collect();
    let set = build(&formulas).unwrap();
    if count < 50_000 {
        group.bench_function("build with all checks", |bencher| bencher.iter(|| build(&formulas)));
    }

    let overlaps = |formula: &Formula| set.reachable(formula).unwrap().len();
    assert!(
        fresh.iter().all(|(formula, _)| overlaps(formula) == 0),
        "{heading}: what was taken out overlaps"
    );
    for (formula, _) in &taken {
        let found = set.reachable(formula).unwrap();
        let [(other, witness)] = &*found else {
            panic!("{heading}: one variant is the same, not {}", found.len())
        };
        let matches = |formula: &Formula| formula.matches(witness);
        assert!(matches(formula) && matches(&formulas[**other as usize]), "{heading}: a wrong witness");
    }
    let mut ask = |engine: &str,
                   probes: &[(Arc<Formula>, Vec<Term>)],
                   expected: usize,
                   judge: &dyn Fn(&Formula) -> usize| {
        each(&mut group, engine, probes, |(formula, _)| assert_eq!(judge(formula), expected));
        println!(
            "{heading}: {engine}, p50 {} ns",
            median(probes, |(formula, _)| _ = black_box(judge(formula)))
        );
    };
    ask("check, disjoint", &fresh, 0, &overlaps);
    ask("check, overlap with witness", &taken, 1, &overlaps);
    ask("normal form alone", &fresh, 1, &|formula| {
        usize::from(!Normal::of(formula).unwrap().is_unsatisfiable())
    });
    let edit = |formula: &Arc<Formula>| set.edit([], [(Arc::clone(formula), 0)], KeySetRule::Free);
    each(&mut group, "edit, refused", &taken, |(formula, _)| _ = edit(formula).unwrap_err());
    each(&mut group, "edit, accepted", &fresh, |(formula, _)| _ = edit(formula).unwrap());

    let normals: Vec<_> = formulas.iter().map(|formula| Normal::of(formula).unwrap()).collect();
    each(&mut group, "each in turn, disjoint", &fresh, |(formula, _)| {
        let normal = Normal::of(formula).unwrap();
        assert!(!normals.iter().any(|other| normal.meet(other).unwrap().is_some()));
    });
    let diagrams = Diagrams::of(&workload);
    each(&mut group, "biodivine, disjoint", &fresh, |(_, terms)| {
        assert_eq!(diagrams.overlapped(terms), None);
    });
    if let Some(table) = TupleHash::<4>::of(&workload) {
        look_up(&mut group, &table, &fresh);
    }
    if let Some(table) = TupleHash::<1>::of(&workload) {
        look_up(&mut group, &table, &fresh);
    }
    group.finish();
}

fn build(formulas: &[Arc<Formula>]) -> Result<VariantSet<u32>, xds_core::matching::SetError<u32>> {
    let insertions = formulas.iter().zip(0..).map(|(formula, at)| (Arc::clone(formula), at));
    VariantSet::new().edit([], insertions, KeySetRule::Free)
}

fn look_up<const N: usize>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    table: &TupleHash<N>,
    fresh: &[(Arc<Formula>, Vec<Term>)],
) {
    let points = fresh.iter().map(|(_, terms)| {
        let mut point = [0; N];
        terms[0].iter().for_each(|test| point[test.key] = test.values[0]);
        point
    });
    let points: Vec<_> = points.collect();
    each(group, "tuple hash, disjoint", &points, |point| assert_eq!(table.find(point), None));
}

/// Endless repetition of a list.
fn each<T>(group: &mut BenchmarkGroup<'_, WallTime>, engine: &str, all: &[T], mut act: impl FnMut(&T)) {
    let mut at = 0;
    group.bench_function(engine, |bencher| {
        bencher.iter(|| {
            act(&all[at]);
            at = if at + 1 < all.len() { at + 1 } else { 0 };
        });
    });
}

/// The median over probes, in nanoseconds, each measured alone and counted with the least of its
/// times.
fn median<T>(probes: &[T], mut act: impl FnMut(&T)) -> u128 {
    let times = probes.iter().map(|probe| {
        let times = (0..9).map(|_| {
            let started = Instant::now();
            act(probe);
            started.elapsed().as_nanos()
        });
        times.min().unwrap()
    });
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The cost of one more variant in a large set.
fn single_edits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("single edits");
    let mut number = 0;
    let mut payload = || {
        number += 1;
        Bytes::from(format!("payload {number}"))
    };

    let cache = Cache::new();
    let mut all = Transaction::new();
    for at in 0..MANY {
        all.put(resource(&format!("name-{at}"), payload()));
    }
    cache.commit(all).unwrap();
    let mut dice = Dice(8);
    group.bench_function("100,000 names: commit of one", |bencher| {
        bencher.iter(|| {
            let mut one = Transaction::new();
            one.put(resource(&format!("name-{}", dice.below(MANY)), payload()));
            assert_eq!(cache.commit(one).unwrap().changed, 1);
        });
    });
    drop(cache);

    let workload = Workload::exact(MANY + 1);
    let constraints = (0..=MANY).map(|at| Constraints::from_formula(workload.spell(&workload.variants[at])));
    let mut constraints: Vec<_> = constraints.collect::<Result<_, _>>().unwrap();
    let extra = constraints.pop().unwrap();

    let set = VariantSet::of(constraints.iter().zip(0..)).unwrap();
    let mut exchange = |of: &Constraints| {
        let put = (Arc::<Formula>::from(of), dice.below(MANY));
        set.edit([of.formula()], [put], KeySetRule::Equal).unwrap()
    };
    let mut at = 0;
    group.bench_function("one name of 100,000: value in a set", |bencher| {
        bencher.iter(|| {
            at = (at + 7_919) % MANY;
            exchange(&constraints[at])
        });
    });
    group.bench_function("one name of 100,000: insertion into a set", |bencher| {
        bencher.iter(|| set.edit([], [((&extra).into(), 0)], KeySetRule::Equal).unwrap());
    });
    drop(set);

    let cache = Cache::new();
    let mut all = Transaction::new();
    for constraints in &constraints {
        all.put(resource("name", payload()).with_constraints(constraints.clone()));
    }
    cache.commit(all).unwrap();
    group.bench_function("one name of 100,000: commit of one", |bencher| {
        bencher.iter(|| {
            at = (at + 7_919) % MANY;
            let mut one = Transaction::new();
            one.put(resource("name", payload()).with_constraints(constraints[at].clone()));
            assert_eq!(cache.commit(one).unwrap().changed, 1);
        });
    });
    group.finish();
}

fn resource(name: &str, payload: Bytes) -> Resource {
    let type_url = TypeUrl::new("type.googleapis.com/bench.Thing");
    Resource::new(type_url, ResourceName::new(name), payload).unwrap()
}

fn hostile_formulas(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hostile formulas");
    let workload = Workload::random_terms(1);
    let mut dice = Dice(9);
    let terms: Vec<_> = (0..170).flat_map(|_| random_alternatives(&mut dice)).collect();
    let short = |literals: usize, count: usize| {
        terms.iter().take(count).map(|term| term[..literals].to_vec()).collect::<Vec<_>>()
    };
    let formulas = [
        ("eight pairs of equal keys", equal_pairs(8)),
        ("ten pigeons in nine holes", pigeons(10)),
        ("256 random terms of 4", workload.spell(&short(4, 256))),
        ("170 random terms of 6", workload.spell(&short(6, 170))),
        ("340 random terms of 3", workload.spell(&short(3, 340))),
    ];
    for (name, formula) in &formulas {
        assert!(
            Constraints::from_formula(formula.clone()).is_ok(),
            "{name} is within the limits of a formula"
        );
        let (outcome, peak) = peak_bytes_of(|| Normal::of(formula).map(drop));
        let outcome = outcome.map_or_else(|error| error.to_string(), |()| "accepted".to_owned());
        println!("{name}: {outcome}, {:.1} MB at most", peak as f64 / 1e6);
        group.bench_function(*name, |bencher| bencher.iter(|| Normal::of(formula).map(drop)));
    }
    group.finish();
}

/// `a0 == b0 and a1 == b1 and ..` over 16 values, with all `a` before all `b`.
fn equal_pairs(pairs: usize) -> Formula {
    let equal = |pair: usize| {
        let both = |value: usize| {
            let is = |side: &str| equals(&format!("{side}{pair}"), &format!("v{value}"));
            Formula::All(vec![is("a"), is("b")])
        };
        Formula::Any((0..16).map(both).collect())
    };
    Formula::All((0..pairs).map(equal).collect())
}

/// The pigeonhole formula: each pigeon in a hole, and no two in the same. It is impossible with one
/// hole fewer, which is hard to prove.
fn pigeons(count: usize) -> Formula {
    let is_in = |pigeon: usize, hole: usize| equals(&format!("p{pigeon}h{hole}"), "1");
    let housed = |pigeon: usize| Formula::Any((0..count - 1).map(|hole| is_in(pigeon, hole)).collect());
    let mut all: Vec<_> = (0..count).map(housed).collect();
    for hole in 0..count - 1 {
        for second in 0..count {
            let clash = |first: usize| Formula::All(vec![is_in(first, hole), is_in(second, hole)]);
            all.extend((0..second).map(|first| Formula::Not(Box::new(clash(first)))));
        }
    }
    Formula::All(all)
}

fn equals(key: &str, value: &str) -> Formula {
    Formula::Equals { key: key.into(), value: value.into() }
}

/// The peak of additional bytes in use while `act` runs.
fn peak_bytes_of<T>(act: impl FnOnce() -> T) -> (T, usize) {
    COUNTER.used.store(0, Ordering::Relaxed);
    COUNTER.peak.store(0, Ordering::Relaxed);
    COUNTER.is_counting.store(true, Ordering::Relaxed);
    let outcome = act();
    COUNTER.is_counting.store(false, Ordering::Relaxed);
    (outcome, COUNTER.peak.load(Ordering::Relaxed))
}

struct Counter {
    is_counting: AtomicBool,
    used: AtomicUsize,
    peak: AtomicUsize,
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.is_counting.load(Ordering::Relaxed) {
            let used = self.used.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if self.is_counting.load(Ordering::Relaxed) {
            self.used.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTER: Counter =
    Counter { is_counting: AtomicBool::new(false), used: AtomicUsize::new(0), peak: AtomicUsize::new(0) };

const MANY: usize = 100_000;
