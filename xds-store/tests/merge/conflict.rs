//! What merges lost (SR44).

use std::collections::BTreeSet;

use prost_types::Duration;
use quickcheck::{Arbitrary, Gen};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::conflict::Kind;
use xds_store::conflict::{Conflict, ConflictId, lost};
use xds_store::merge::merge;
use xds_store::record::{RecordRevision, RecordState};

use super::{check, shuffled, triples};
use crate::states::*;

#[test]
fn sr44_of_two_contents_of_one_generation_the_one_with_the_greater_digest_is_lost() {
    let of = |text, origin: &str| RecordState { generation: 4, origin: origin.into(), ..with(text) };
    let (one, other) = (of("a", "n1"), of("b", "n2"));
    let (winner, loser) = if one.digest < other.digest { (one, other) } else { (other, one) };
    let conflict = found(&winner, &loser).unwrap();
    let wanted = proto::Conflict {
        kind: Kind::Content.into(),
        key: winner.key.clone(),
        at: None,
        winner_revision: RecordRevision::of(&winner).to_string(),
        loser_revision: RecordRevision::of(&loser).to_string(),
        winner_origin: winner.origin.clone(),
        loser_origin: loser.origin.clone(),
        loser: loser.content.clone(),
        detail: "generation 4 was written twice".into(),
    };
    assert_eq!(conflict.entry, wanted);

    // It arrives again, and meanwhile the record has another owner.
    let owned = RecordState { owners: vec![named("shop")], ..winner };
    assert_eq!(found(&owned, &loser).unwrap().id, conflict.id);
    let later = RecordState { generation: 5, ..loser };
    assert_eq!(kind(&owned, &later), None, "a later generation saw it");
    assert_ne!(found(&RecordState { generation: 5, ..owned }, &later).unwrap().id, conflict.id);
}

#[test]
fn sr44_a_later_state_of_the_same_content_and_a_later_generation_lose_nothing() {
    let present = RecordState { generation: 4, ..with("a") };
    let lease = Some(Duration { seconds: 9, nanos: 0 });
    let later = [
        RecordState { generation: 5, ..with("b") },
        // Not of the writer: a stamp, an owner, a quarantine, and where the content was made too.
        digested(RecordState { mirror_of: "revision".into(), ..present.clone() }),
        RecordState { owners: vec![named("shop")], ..present.clone() },
        RecordState { quarantined: Some(quarantined(at(2), "bad", None)), ..present.clone() },
        RecordState { origin: "z".into(), created_at: at(7), ..present.clone() },
        RecordState { renewal: 2, expires_at: at(9), renewed_by: "b".into(), ..present.clone() },
        // The deletion of what is there, and of a later generation.
        RecordState { lifecycle: proto::State::Deleted.into(), ..present.clone() },
        RecordState { lifecycle: proto::State::Deleting.into(), generation: 5, ..with("b") },
    ];
    for state in later {
        assert_eq!(kind(&present, &state), None, "{state:?}");
    }
    // A lease is set by a writer.
    let leased = digested(RecordState { lease, ..present.clone() });
    assert_eq!(kind(&present, &leased), Some(Kind::Content));
    // What is sealed is not compared with what is open.
    let sealed = RecordState { is_sealed: true, generation: 4, ..with("ciphertext") };
    assert_eq!(kind(&present, &sealed), None);
}

#[test]
fn sr44_of_two_creations_the_one_that_does_not_count_is_lost() {
    let (one, other) = (with("a"), with("b"));
    assert_eq!(kind(&one, &other), Some(Kind::Creation));
    assert_eq!(kind(&one, &one), None);

    let higher = RecordState { incarnation: 3, created_at: at(5), ..with("b") };
    let conflict = found(&one, &higher).unwrap();
    assert_eq!(conflict.entry.kind(), Kind::Creation);
    assert_eq!(conflict.entry.loser, one.content);
    // What else the losing creation wrote is the same conflict.
    let went_on = RecordState { generation: 2, ..with("c") };
    assert_eq!(found(&higher, &went_on).unwrap().id, conflict.id);

    let deleted = RecordState { lifecycle: proto::State::Deleted.into(), ..one.clone() };
    assert_eq!(kind(&deleted, &higher), None, "it was created again");
    let expires = |seconds| RecordState { expires_at: at(seconds), ..one.clone() };
    assert_eq!(kind(&expires(5), &higher), None, "it was created again after the end");
    assert_eq!(kind(&expires(6), &higher), Some(Kind::Creation));
    let lease = Some(Duration { seconds: 9, nanos: 0 });
    let leased = digested(RecordState { lease, ..expires(5) });
    assert_eq!(kind(&leased, &higher), Some(Kind::Creation), "a lease ends with a deletion");
    let same = RecordState { content: one.content.clone(), ..higher };
    assert_eq!(kind(&one, &same), None);
    let both = RecordState { lifecycle: proto::State::Deleted.into(), ..same };
    assert_eq!(kind(&one, &both), Some(Kind::Creation), "no record has this content now");
}

#[test]
fn sr44_a_change_that_a_deletion_did_not_see_is_lost() {
    let live = RecordState { generation: 4, ..with("a") };
    for lifecycle in [proto::State::Deleting, proto::State::Deleted] {
        let deletion = RecordState { lifecycle: lifecycle.into(), ..live.clone() };
        let changed = RecordState { generation: 5, origin: "b".into(), ..with("b") };
        let conflict = found(&deletion, &changed).unwrap();
        let Conflict { entry, id, .. } = &conflict;
        assert_eq!((entry.kind(), &entry.loser), (Kind::Deletion, &changed.content));
        assert_eq!((&*entry.winner_origin, &*entry.loser_origin), ("", "b"));
        let merged = merge(&deletion, &changed);
        assert_eq!(kind(&merged, &changed), None, "it arrives again");
        assert_eq!(kind(&merged, &deletion), None, "it arrives again");
        // The deletion of another content of this generation: the same content is lost.
        let twice = RecordState { generation: 5, ..deletion.clone() };
        assert_eq!(found(&twice, &changed).unwrap().id, *id);

        let joined = RecordState { owners: vec![named("shop")], ..live.clone() };
        assert_eq!(kind(&deletion, &joined), Some(Kind::Deletion), "the owner needs it");
        let left = proto::OwnerState { epoch: 2, is_present: false, ..named("shop") };
        let saw = RecordState { owners: vec![left], ..deletion.clone() };
        assert_eq!(kind(&saw, &joined), None);
        let older = RecordState { generation: 3, ..with("b") };
        assert_eq!(kind(&deletion, &older), None);
        let touched =
            RecordState { renewal: 9, quarantined: Some(quarantined(at(2), "bad", None)), ..live.clone() };
        assert_eq!(kind(&deletion, &touched), None);
    }
    let ended = |lifecycle: proto::State, generation| RecordState {
        lifecycle: lifecycle.into(),
        generation,
        ..live.clone()
    };
    let both = (ended(proto::State::Deleting, 5), ended(proto::State::Deleted, 4));
    assert_eq!(kind(&both.0, &both.1), None, "both say that it ends");
}

/// Of any two states, and if one of them arrives again.
#[test]
fn sr44_a_repeated_state_is_the_same_conflict_or_none() {
    fn holds(a: Picks, b: Picks) -> bool {
        let [a, b] = [a, b].map(Picks::state);
        let merged = merge(&a, &b);
        let first = lost(&a, &b, &merged);
        let is_known = |again: Option<Conflict>| again.is_none_or(|again| Some(again.id) == id(&first));
        first == lost(&b, &a, &merged)
            && is_known(lost(&merged, &a, &merged))
            && is_known(lost(&merged, &b, &merged))
            && lost(&merged, &merged, &merged).is_none()
    }
    check(triples() / 10, holds as fn(Picks, Picks) -> bool);
}

/// In each round, nodes with equal states change them and exchange that, in any order and with repeats.
/// Then each node has journaled each content that nobody has any more.
#[test]
fn sr44_each_node_journals_once_what_was_lost() {
    fn holds(rounds: Vec<Round>) -> bool {
        let mut nodes = [const { Node::new() }; 3];
        nodes.iter_mut().for_each(|node| node.state = Some(with("a")));
        rounds.iter().enumerate().all(|(number, round)| round.runs(number, &mut nodes))
    }
    check(triples() / 150, holds as fn(Vec<Round>) -> bool);
}

#[derive(Debug, Clone)]
struct Round {
    acts: [Act; 3],
    orders: [usize; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Nothing,
    Put(&'static str),
    Delete(proto::State),
    Join,
    Quarantine,
}

#[derive(Debug)]
struct Node {
    state: Option<RecordState>,
    journal: BTreeSet<ConflictId>,
    /// The journaled conflicts of this round.
    new: Vec<proto::Conflict>,
}

impl Node {
    const fn new() -> Self {
        Self { state: None, journal: BTreeSet::new(), new: Vec::new() }
    }

    fn receive(&mut self, incoming: &RecordState) {
        let present = self.state.take().unwrap();
        let merged = merge(&present, incoming);
        let found = lost(&present, incoming, &merged);
        let new = found.filter(|conflict| self.journal.insert(conflict.id));
        self.new.extend(new.map(|conflict| conflict.entry));
        self.state = Some(merged);
    }
}

impl Round {
    fn runs(&self, number: usize, nodes: &mut [Node; 3]) -> bool {
        let before = nodes[0].state.clone().unwrap();
        let acted: Vec<_> = (0..3).map(|node| self.acts[node].on(&before, node, number)).collect();
        for ((node, state), order) in nodes.iter_mut().zip(&acted).zip(self.orders) {
            node.state = Some(state.clone());
            node.new.clear();
            let twice = acted.iter().chain(&acted).collect();
            shuffled(twice, order).into_iter().for_each(|state| node.receive(state));
        }
        let after = nodes[0].state.clone().unwrap();
        // Of what was written in this round, a live record has one content, and a deleted one none.
        let is_live = |state: &RecordState| state.lifecycle() == proto::State::Live;
        let is_new = |state: &RecordState| {
            (state.incarnation, state.generation) != (before.incarnation, before.generation)
        };
        let written: Vec<_> = acted.iter().filter(|state| is_new(state)).collect();
        let lost = written.iter().filter(|state| !is_live(&after) || state.digest != after.digest);
        let lost: BTreeSet<_> = lost.map(|state| text(state.content.as_ref())).collect();
        let has_joined = acted.iter().any(|state| is_live(state) && state.owners != before.owners);
        let joined = (has_joined && !is_live(&after)).then(|| text(before.content.as_ref()));
        // An owner whose join arrives behind a new content has the loss of that one.
        let is_right = |mut new: BTreeSet<_>| {
            let is_joined = joined.as_ref().is_some_and(|joined| new.remove(joined));
            new == lost && (is_joined || !has_joined || is_live(&after) || !written.is_empty())
        };
        nodes.iter().all(|node| {
            let new: BTreeSet<_> = node.new.iter().map(|conflict| text(conflict.loser.as_ref())).collect();
            node.state.as_ref() == Some(&after) && new.len() == node.new.len() && is_right(new)
        })
    }
}

impl Act {
    fn on(self, before: &RecordState, node: usize, round: usize) -> RecordState {
        let origin = ["n1", "n2", "n3"][node].to_owned();
        match (self, before.lifecycle()) {
            (Self::Put(text), proto::State::Deleted) => RecordState {
                incarnation: before.incarnation + 1,
                created_at: at((10 * round + node) as i64),
                origin,
                ..with(text)
            },
            (Self::Put(text), proto::State::Live) if with(text).digest != before.digest => RecordState {
                generation: before.generation + 1,
                content: with(text).content,
                digest: with(text).digest,
                quarantined: None,
                origin,
                ..before.clone()
            },
            (Self::Delete(lifecycle), proto::State::Live) => {
                RecordState { lifecycle: lifecycle.into(), ..before.clone() }
            }
            (Self::Join, proto::State::Live) => {
                merge(before, &RecordState { owners: vec![named(&origin)], ..before.clone() })
            }
            (Self::Quarantine, proto::State::Live) => {
                let bad = quarantined(at(round as i64), &origin, None);
                merge(before, &RecordState { quarantined: Some(bad), ..before.clone() })
            }
            (Self::Nothing | Self::Put(_) | Self::Delete(_) | Self::Join | Self::Quarantine, _) => {
                before.clone()
            }
        }
    }
}

impl Arbitrary for Round {
    fn arbitrary(g: &mut Gen) -> Self {
        let acts = [
            Act::Nothing,
            Act::Put("a"),
            Act::Put("b"),
            Act::Put("c"),
            Act::Delete(proto::State::Deleting),
            Act::Delete(proto::State::Deleted),
            Act::Join,
            Act::Quarantine,
        ];
        Self {
            acts: std::array::from_fn(|_| *g.choose(&acts).unwrap()),
            orders: std::array::from_fn(|_| usize::arbitrary(g)),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let round = self.clone();
        let acting = (0..3).filter(|node| self.acts[*node] != Act::Nothing).collect::<Vec<_>>().into_iter();
        Box::new(acting.map(move |node| {
            let mut fewer = round.clone();
            fewer.acts[node] = Act::Nothing;
            fewer
        }))
    }
}

fn text(content: Option<&proto::Content>) -> Vec<u8> {
    content.unwrap().payload.to_vec()
}

/// The conflict of two states in both orders.
#[track_caller]
fn found(a: &RecordState, b: &RecordState) -> Option<Conflict> {
    let merged = merge(a, b);
    let found = lost(a, b, &merged);
    assert_eq!(found, lost(b, a, &merged), "the order matters");
    found
}

#[track_caller]
fn kind(a: &RecordState, b: &RecordState) -> Option<Kind> {
    found(a, b).map(|conflict| conflict.entry.kind())
}

fn id(conflict: &Option<Conflict>) -> Option<ConflictId> {
    conflict.as_ref().map(|conflict| conflict.id)
}
