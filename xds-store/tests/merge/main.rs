//! The merge of two states of one key, by its rules (SR35 to SR43) and with random states.
//!
//!     XDS_TRIPLES=1000000 cargo test --release -p xds-store --test merge
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use at_once::all_at_once;
use prost::Message;
use prost_types::{Duration, Timestamp};
use quickcheck::{Arbitrary, Gen, QuickCheck, Testable};
use states::*;
use xds_proto::xds::store::v1 as proto;
use xds_store::merge::merge;
use xds_store::record::{RecordRevision, RecordState};

mod at_once;
mod conflict;
mod states;

#[test]
fn sr35_a_merge_is_commutative_and_associative() {
    fn holds(a: Picks, b: Picks, c: Picks) -> bool {
        let [a, b, c] = [a, b, c].map(Picks::state);
        let (ab, bc) = (merge(&a, &b), merge(&b, &c));
        ab == merge(&b, &a) && merge(&ab, &c) == merge(&a, &bc)
    }
    check(triples(), holds as fn(Picks, Picks, Picks) -> bool);
}

#[test]
fn sr35_a_merge_is_idempotent() {
    fn holds(a: Picks, b: Picks) -> bool {
        let [a, b] = [a, b].map(Picks::state);
        let ab = merge(&a, &b);
        merge(&ab, &b) == ab && merge(&ab, &ab) == ab
    }
    check(triples() / 3, holds as fn(Picks, Picks) -> bool);
}

#[test]
fn sr35_sr43_a_merge_is_what_the_rules_say_byte_for_byte() {
    fn holds(a: Picks, b: Picks) -> bool {
        let states = [a, b].map(Picks::state);
        let [a, b] = &states;
        let (ab, wanted) = (merge(a, b), all_at_once(&states));
        ab == wanted && ab.encode_to_vec() == merge(b, a).encode_to_vec()
    }
    check(triples() / 10, holds as fn(Picks, Picks) -> bool);
}

#[test]
fn sr35_nodes_that_got_the_same_states_in_any_order_hold_the_same_bytes() {
    fn holds(delivery: Delivery) -> bool {
        let states: Vec<_> = delivery.states.iter().map(|picks| picks.state()).collect();
        let wanted = all_at_once(&states);
        delivery.nodes().iter().all(|node| node.encode_to_vec() == wanted.encode_to_vec())
    }
    check(triples() / 30, holds as fn(Delivery) -> bool);
}

#[test]
fn sr36_the_higher_incarnation_counts_whole() {
    let old = RecordState {
        lifecycle: proto::State::Deleted.into(),
        generation: 7,
        created_at: at(0),
        quarantined: Some(quarantined(at(2), "bad", None)),
        renewal: 3,
        owners: vec![named("b")],
        ..with("a")
    };
    let new = RecordState { incarnation: 2, created_at: at(9), ..with("b") };
    assert_eq!(merged(&old, &new), new);
}

#[test]
fn sr37_the_later_lifecycle_and_the_earlier_creation_count() {
    use proto::State::{Deleted, Deleting, Live};
    let later = |a: i32, b: i32| {
        let [a, b] = [a, b].map(|lifecycle| RecordState { lifecycle, ..with("a") });
        merged(&a, &b).lifecycle
    };
    assert_eq!(later(Live.into(), Deleting.into()), i32::from(Deleting));
    assert_eq!(later(Deleting.into(), Deleted.into()), i32::from(Deleted));
    assert_eq!(later(Live.into(), Deleted.into()), i32::from(Deleted));
    // A number that this version does not know ends no deletion.
    assert_eq!(later(9, Deleted.into()), i32::from(Deleted));
    assert_eq!(later(9, Deleting.into()), 9);

    let created = |at| RecordState { created_at: at, ..with("a") };
    assert_eq!(merged(&created(at(5)), &created(at(4))).created_at, at(4));
    let nanos = |nanos| Some(Timestamp { seconds: 5, nanos });
    assert_eq!(merged(&created(nanos(2)), &created(nanos(1))).created_at, nanos(1));
    assert_eq!(merged(&created(at(5)), &created(None)).created_at, at(5));
}

#[test]
fn sr37_a_deletion_wins_over_a_later_generation_and_keeps_its_content() {
    let deleted = RecordState { lifecycle: proto::State::Deleted.into(), ..with("a") };
    let deleting = RecordState { lifecycle: proto::State::Deleting.into(), ..with("a") };
    let changed = RecordState { generation: 2, origin: "b".into(), ..with("b") };
    assert_eq!(merged(&deleted, &changed), RecordState { lifecycle: deleted.lifecycle, ..changed.clone() });
    assert_eq!(merged(&deleting, &changed), RecordState { lifecycle: deleting.lifecycle, ..changed });
}

#[test]
fn sr38_the_higher_generation_counts_with_expiry_lease_and_quarantine() {
    let old = digested(RecordState {
        expires_at: at(5),
        lease: Some(Duration { seconds: 9, nanos: 0 }),
        renewal: 8,
        renewed_by: "a".into(),
        quarantined: Some(quarantined(at(2), "bad", None)),
        mirror_of: "revision".into(),
        ..with("a")
    });
    let new = RecordState { generation: 2, origin: "b".into(), ..with("b") };
    assert_eq!(merged(&old, &new), new);
    let new = RecordState { expires_at: at(60), renewed_by: "b".into(), ..new };
    assert_eq!(merged(&old, &new), new, "a minimum would let no lease be renewed");
}

#[test]
fn sr39_of_one_generation_the_content_lease_and_stamp_with_the_smaller_digest_count() {
    let texts = ["a", "b", "c", "d"];
    for (one, other) in texts.iter().flat_map(|one| texts.map(|other| (*one, other))) {
        let leased = digested(RecordState {
            lease: Some(Duration { seconds: 9, nanos: 0 }),
            mirror_of: "revision".into(),
            origin: "z".into(),
            ..with(other)
        });
        let (plain, both) = (with(one), merged(&with(one), &leased));
        let winner = if plain.digest < leased.digest { plain } else { leased };
        assert_eq!(both, winner, "{one} and {other}");
    }
}

#[test]
fn sr40_of_one_generation_more_renewals_count_then_the_earlier_end_then_the_smaller_node() {
    let expiry = |renewal, expires_at, by: &str| RecordState {
        renewal,
        expires_at,
        renewed_by: by.into(),
        ..with("a")
    };
    let wins = |winner: &RecordState, other: &RecordState| assert_eq!(merged(winner, other), *winner);
    // A renewal moves the end to a later time, and another node renewed more often.
    wins(&expiry(2, at(50), "b"), &expiry(1, at(40), "a"));
    wins(&expiry(2, at(40), "b"), &expiry(1, at(50), "a"));
    wins(&expiry(1, at(40), "b"), &expiry(1, at(50), "a"));
    wins(&expiry(0, at(40), "b"), &expiry(0, None, ""));
    wins(&expiry(1, at(40), "a"), &expiry(1, at(40), "b"));
    wins(&expiry(0, None, ""), &expiry(0, None, "a"));
}

/// The renewals and the quarantine are those of the generation, whichever of its contents they were
/// made on. So a content that wins may end with the lease of the one that lost.
#[test]
fn sr40_sr41_of_two_contents_of_one_generation_the_expiry_and_the_quarantine_are_judged_alone() {
    let (small, great) =
        if with("a").digest < with("b").digest { (with("a"), with("b")) } else { (with("b"), with("a")) };
    let renewed = RecordState {
        expires_at: at(40),
        renewal: 1,
        renewed_by: "b".into(),
        quarantined: Some(quarantined(at(2), "bad", Some("c"))),
        ..great
    };
    let both = merged(&small, &renewed);
    assert_eq!((&both.content, &both.digest), (&small.content, &small.digest));
    assert_eq!((both.expires_at, both.renewal, &*both.renewed_by), (at(40), 1, "b"));
    assert_eq!(both.quarantined, renewed.quarantined);
}

#[test]
fn sr41_a_quarantine_wins_then_the_earlier_time_the_smaller_reason_and_digest() {
    let state = |quarantined| RecordState { quarantined, ..with("a") };
    let wins = |winner: Option<proto::Quarantined>, other| {
        assert_eq!(merged(&state(winner.clone()), &state(other)).quarantined, winner);
    };
    wins(Some(quarantined(at(3), "bad", None)), None);
    wins(Some(quarantined(at(2), "worse", None)), Some(quarantined(at(3), "bad", Some("a"))));
    wins(Some(quarantined(at(3), "bad", None)), Some(quarantined(at(3), "worse", Some("a"))));
    let served = |text| Some(quarantined(at(3), "bad", text));
    let digest = |text: Option<&str>| {
        digested(RecordState { content: text.map(content), ..Default::default() }).digest
    };
    let texts = [None, Some(""), Some("a"), Some("b"), Some("c")];
    for (one, other) in texts.iter().flat_map(|one| texts.map(|other| (*one, other))) {
        let winner = if digest(one) < digest(other) { one } else { other };
        assert_eq!(merged(&state(served(one)), &state(served(other))).quarantined, served(winner));
    }
}

#[test]
fn sr46_a_late_quarantine_of_an_older_generation_has_no_effect_and_the_first_one_stays() {
    let quarantine = |seconds, reason| Some(quarantined(at(seconds), reason, None));
    let first = RecordState { quarantined: quarantine(3, "first"), ..with("a") };
    let again = RecordState { quarantined: quarantine(4, "again"), ..with("a") };
    assert_eq!(merged(&first, &again), first);
    let new = RecordState { generation: 2, ..with("b") };
    assert_eq!(merged(&new, &first), new);
}

#[test]
fn sr42_each_owner_counts_by_itself_with_the_higher_epoch_then_as_present() {
    let state = |owners: &[(&str, u64, bool)]| {
        let owners = owners.iter().map(|(name, epoch, is_present)| proto::OwnerState {
            epoch: *epoch,
            is_present: *is_present,
            ..named(name)
        });
        // Owners are those of the incarnation, not of the generation.
        RecordState { generation: 1 + owners.len() as u64, owners: owners.collect(), ..with("a") }
    };
    let owners = |a: &[_], b: &[_]| merged(&state(a), &state(b)).owners;
    assert_eq!(owners(&[("b", 1, true)], &[("b", 2, false)]), state(&[("b", 2, false)]).owners);
    assert_eq!(owners(&[("b", 3, true)], &[("b", 2, false)]), state(&[("b", 3, true)]).owners);
    assert_eq!(owners(&[("b", 2, true)], &[("b", 2, false)]), state(&[("b", 2, true)]).owners);
    assert_eq!(
        owners(&[("b", 1, true), ("c", 2, false)], &[("c", 1, true), ("a", 1, true)]),
        state(&[("a", 1, true), ("b", 1, true), ("c", 2, false)]).owners
    );
}

#[test]
fn sr53_owners_are_in_the_order_of_their_encoded_bytes_whichever_state_wins() {
    let sorted: Vec<_> = OWNERS
        .iter()
        .map(|owner| proto::OwnerState { owner: owner.clone(), epoch: 1, is_present: true })
        .collect();
    let bytes = |owner: &proto::OwnerState| owner.owner.as_ref().map(Message::encode_to_vec);
    assert!(sorted.is_sorted_by_key(bytes), "{sorted:?}");
    let reverse: Vec<_> = sorted.iter().rev().cloned().collect();
    let unsorted = RecordState { owners: reverse, ..with("a") };
    let older = RecordState { incarnation: 0, owners: vec![named("c")], ..with("a") };
    assert_eq!(merged(&unsorted, &unsorted).owners, sorted);
    assert_eq!(merged(&unsorted, &older).owners, sorted);
}

#[test]
fn sr56_the_origin_is_that_of_the_content_that_wins_and_the_smaller_one_of_equal_contents() {
    let by = |text, origin: &str| RecordState { origin: origin.to_owned(), ..with(text) };
    let wins = with("a").digest < with("b").digest;
    assert_eq!(merged(&by("a", "z"), &by("b", "y")).origin, if wins { "z" } else { "y" });
    assert_eq!(merged(&by("a", "z"), &by("a", "y")).origin, "y");
}

/// Both ciphertexts are right, but bytes that depend on the order of arrival are not.
#[test]
fn sr43_a_content_that_was_sealed_twice_has_one_ciphertext_after_a_merge() {
    let sealed = |nonce: &str, origin: &str| RecordState {
        content: Some(content(nonce)),
        digest: with("secret").digest,
        is_sealed: true,
        origin: origin.to_owned(),
        ..state()
    };
    let (one, two) = (sealed("nonce 1", "b"), sealed("nonce 2", "a"));
    // SR56: the origin does not follow the ciphertext.
    assert_eq!(merged(&one, &two), sealed("nonce 1", "a"));
    // What is open and what is sealed has no common digest: never a part of each.
    let mut open = RecordState { quarantined: Some(quarantined(at(3), "bad", Some("c"))), ..with("a") };
    open.digest = vec![0xff; 32].into();
    let quarantined = RecordState { quarantined: Some(quarantined(at(2), "bad", Some("nonce 3"))), ..two };
    assert_eq!(merged(&open, &quarantined), open);
}

#[test]
fn sr43_equal_states_have_equal_revisions() {
    let renewed = |renewal, by: &str| RecordState {
        lease: Some(Duration { seconds: 9, nanos: 0 }),
        expires_at: at(40),
        renewal,
        renewed_by: by.into(),
        ..with("a")
    };
    let (one, two) = (renewed(1, "a"), renewed(1, "b"));
    assert_eq!(RecordRevision::of(&merge(&one, &two)), RecordRevision::of(&merge(&two, &one)));
    // A touch changes no revision, so a merge with it does not either.
    assert_eq!(RecordRevision::of(&merge(&one, &renewed(2, "b"))), RecordRevision::of(&one));
}

/// The merge in both orders.
#[track_caller]
fn merged(a: &RecordState, b: &RecordState) -> RecordState {
    let merged = merge(a, b);
    assert_eq!(merged, merge(b, a), "the order matters");
    merged
}

/// States, and the order in which three nodes get them.
#[derive(Debug, Clone)]
struct Delivery {
    states: Vec<Picks>,
    steps: Vec<Step>,
    /// At the end each node gets all of them, in the order with this number.
    orders: [usize; 3],
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A node gets the state with this number: an entry.
    Entry { node: usize, state: usize },
    /// A node gets what another one has: a part of a snapshot.
    Snapshot { node: usize, from: usize },
}

impl Arbitrary for Delivery {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut number = |below: usize| usize::arbitrary(g) % below;
        let states = 1 + number(8);
        let steps = (0..number(30)).map(|_| match number(4) {
            0 => Step::Snapshot { node: number(3), from: number(3) },
            _ => Step::Entry { node: number(3), state: number(states) },
        });
        let (steps, orders) = (steps.collect(), std::array::from_fn(|_| number(FACTORIAL_8)));
        Self { states: (0..states).map(|_| Picks::arbitrary(g)).collect(), steps, orders }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let all = self.clone();
        let without_step = (0..all.steps.len()).map({
            let all = all.clone();
            move |at| {
                let mut fewer = all.clone();
                fewer.steps.remove(at);
                fewer
            }
        });
        let states = self.states.shrink().filter(|states| !states.is_empty());
        Box::new(without_step.chain(states.map(move |states| Self { states, ..all.clone() })))
    }
}

impl Delivery {
    /// What the nodes have at the end.
    fn nodes(&self) -> [RecordState; 3] {
        let states: Vec<_> = self.states.iter().map(|picks| picks.state()).collect();
        let mut nodes = [const { None }; 3];
        for step in &self.steps {
            match *step {
                Step::Entry { node, state } => receive(&mut nodes[node], &states[state % states.len()]),
                Step::Snapshot { node, from } => {
                    let state = nodes[from].clone();
                    state.iter().for_each(|state| receive(&mut nodes[node], state));
                }
            }
        }
        for (node, order) in nodes.iter_mut().zip(self.orders) {
            shuffled(states.iter().collect(), order).into_iter().for_each(|state| receive(node, state));
        }
        nodes.map(|node| node.expect("it got all states"))
    }
}

/// The items in the order with this number.
fn shuffled<T>(mut items: Vec<T>, mut order: usize) -> Vec<T> {
    for at in (1..items.len()).rev() {
        items.swap(at, order % (at + 1));
        order /= at + 1;
    }
    items
}

/// How many orders eight states have.
const FACTORIAL_8: usize = 40_320;

fn receive(node: &mut Option<RecordState>, state: &RecordState) {
    let present = node.take();
    *node = Some(merge(present.as_ref().unwrap_or(state), state));
}

fn triples() -> u64 {
    std::env::var("XDS_TRIPLES").map_or(300_000, |text| text.parse().unwrap())
}

fn check(tests: u64, property: impl Testable) {
    let passed = QuickCheck::new().rng(Gen::new(10)).tests(tests).max_tests(tests).quicktest(property);
    assert_eq!(passed.map_err(|failed| format!("{failed:?}")), Ok(tests));
}
