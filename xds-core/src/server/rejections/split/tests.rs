//! Splits without a stream: a client that rejects each part with a bad name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quickcheck::quickcheck;

use super::*;

fn key(at: usize) -> ResourceKey {
    ResourceKey::of_name(&format!("n{at:04}").into())
}

fn split(names: usize, text: &str) -> Split {
    let nack = Nack { detail: text.into(), ..Nack::default() };
    Split::of(SplitId(1), (0..names).map(key).collect(), Vec::new(), nack, Duration::ZERO)
}

fn take(of: &mut Split, standing: &impl Fn(&ResourceKey) -> Standing) -> Option<BTreeSet<ResourceKey>> {
    let nonce = Nonce::nth(of.sent.keys().count() as u64 + 1);
    of.take(nonce, standing).map(|part| part.keys)
}

/// The client rejects the newest part; the keys of a name that is found.
fn reject(of: &mut Split) -> Vec<ResourceKey> {
    let nonce = *of.sent.keys().next_back().unwrap();
    let part = of.answered(nonce).unwrap();
    of.on_nack(part).into_iter().flatten().collect()
}

/// How often each name is sent, after the response that was rejected first, and the names that are found.
fn run(
    mut split: Split,
    is_bad: impl Fn(&ResourceKey) -> bool,
) -> (BTreeMap<ResourceKey, u32>, BTreeSet<ResourceKey>) {
    let (mut times, mut found) = (BTreeMap::new(), BTreeSet::new());
    while let Some(keys) = take(&mut split, &|_| Standing::Live) {
        keys.iter().for_each(|key| *times.entry(key.clone()).or_default() += 1);
        if keys.iter().any(&is_bad) {
            found.extend(reject(&mut split));
        } else {
            split.sent.clear();
        }
    }
    (times, found)
}

quickcheck! {
    fn s6c_s6d_each_bad_name_is_found_and_each_name_is_sent_at_most_log_n_times(bad: Vec<u8>, names: u8, mentioned: Vec<u8>) -> bool {
        let names = usize::from(names).max(2);
        let bad: BTreeSet<_> = bad.iter().take(FOUND_LIMIT - 1).map(|at| key(usize::from(*at) % names)).collect();
        let text = mentioned.iter().map(|at| format!("'n{at:04}': bad")).collect::<Vec<_>>().join(", ");
        let (times, found) = run(split(names, &text), |key| bad.contains(key));
        let limit = names.next_power_of_two().ilog2();
        found == bad && times.len() == names && times.values().all(|times| *times <= limit)
    }
}

#[test]
fn s6c_g15_names_that_the_text_mentions_come_apart_first() {
    let mut of = split(8, "Error adding n0003: no, and (n0005).");
    let part = take(&mut of, &|_| Standing::Live).unwrap();
    // S6d: six in one part would be sent once too often.
    assert_eq!(part, [0, 1, 2].into_iter().map(key).collect());
    let part = take(&mut of, &|_| Standing::Live).unwrap();
    assert_eq!(part, [4, 6, 7].into_iter().map(key).collect());
    let part = take(&mut of, &|_| Standing::Live).unwrap();
    assert_eq!(part, [3, 5].into_iter().map(key).collect());
}

#[test]
fn s6c_removals_are_one_unit_and_go_first() {
    let mut of = split(4, "bad");
    let standing = |of: &ResourceKey| match [key(1), key(3)].contains(of) {
        true => Standing::Removed,
        false => Standing::Live,
    };
    let parts = std::iter::from_fn(|| take(&mut of, &standing));
    let expected = [vec![1, 3], vec![0, 2]].map(|part| part.into_iter().map(key).collect::<BTreeSet<_>>());
    assert_eq!(parts.collect::<Vec<_>>(), [&expected[0], &expected[1]].map(Clone::clone).to_vec());
}

#[test]
fn s6c_s33_a_name_whose_change_waits_stays() {
    let mut of = split(3, "bad");
    let standing = |of: &ResourceKey| if *of == key(0) { Standing::Waits } else { Standing::Live };
    let parts: Vec<_> = std::iter::from_fn(|| take(&mut of, &standing)).collect();
    assert_eq!(parts, [BTreeSet::from([key(1)]), BTreeSet::from([key(2)])]);
    assert!(!of.is_due(&standing) && of.is_running());
    assert_eq!(take(&mut of, &|_| Standing::Live).unwrap(), BTreeSet::from([key(0)]));
}

#[test]
fn s6d_a_split_stops_after_sixteen_names_and_goes_on_when_one_is_corrected() {
    let mut of = split(64, "bad");
    let mut found = Vec::new();
    while take(&mut of, &|_| Standing::Live).is_some() {
        found.extend(reject(&mut of));
    }
    assert_eq!(found, (0..16).map(key).collect::<Vec<_>>());
    assert!(of.has_stopped() && !of.is_running() && !of.has_ended());
    of.forget_found(&key(3).name);
    assert!(of.is_running() && take(&mut of, &|_| Standing::Live).is_some());
}
