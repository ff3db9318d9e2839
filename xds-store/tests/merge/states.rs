//! States of one key, by hand and at random. Random ones have few values for each field, so that they
//! often differ in one of them only.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use prost_types::{Duration, Timestamp};
use quickcheck::{Arbitrary, Gen};
use xds_proto::xds::store::v1 as proto;
use xds_store::record::RecordState;

/// A state as numbers: each one selects the value of a part. Smaller numbers are more common values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picks([u8; PARTS]);

const PARTS: usize = 15;

impl Arbitrary for Picks {
    fn arbitrary(g: &mut Gen) -> Self {
        let random = u128::from(u64::arbitrary(g)) << 64 | u128::from(u64::arbitrary(g));
        Self(std::array::from_fn(|at| random.to_le_bytes()[at]))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let picks = self.0;
        let simpler = move |at: usize| {
            let values = [0, picks[at] / 2, picks[at].saturating_sub(1)].into_iter();
            values.filter(move |value| *value < picks[at]).map(move |value| {
                let mut simpler = picks;
                simpler[at] = value;
                Self(simpler)
            })
        };
        Box::new((0..PARTS).flat_map(simpler))
    }
}

impl Picks {
    pub(super) fn state(self) -> RecordState {
        let [
            incarnation,
            lifecycle,
            created_at,
            generation,
            content,
            end,
            renewal,
            by,
            quarantine,
            origin,
            writer,
            owners @ ..,
        ] = self.0;
        let content = pick(&CONTENTS, content);
        RecordState {
            incarnation: *pick(&[1, 1, 1, 2], incarnation),
            lifecycle: *pick(&[1, 1, 1, 3, 3, 4, 4, 0, 2, 9, -1], lifecycle),
            created_at: *pick(&[at(1), at(2), None], created_at),
            generation: *pick(&[1, 1, 1, 2], generation),
            expires_at: *pick(&[None, at(5), at(6), at(-1)], end),
            renewal: *pick(&[0, 0, 1, 2], renewal),
            renewed_by: (*pick(&["", "a", "b"], by)).to_owned(),
            quarantined: pick(&QUARANTINES, quarantine).clone(),
            origin: (*pick(&["", "a", "b"], origin)).to_owned(),
            written_by: writer_of(*pick(&[0, 0, 1, 2, 3, 4], writer)),
            owners: owners.iter().filter_map(|pick| owner_of(*pick)).collect(),
            ..content.clone()
        }
    }
}

fn pick<T>(values: &[T], number: u8) -> &T {
    &values[usize::from(number) % values.len()]
}

/// Those with a counter of one share it; the last one has the greater epoch.
fn writer_of(pick: u8) -> Option<proto::WrittenBy> {
    let (origin, counter) =
        ((*["", "a", "b", "a", "b"].get(usize::from(pick))?).to_owned(), [0, 1, 1, 2, 1][usize::from(pick)]);
    (pick > 0).then(|| proto::WrittenBy {
        origin,
        counter,
        region: String::new(),
        epoch: u64::from(pick / 4),
    })
}

/// In no order, and the same one twice.
fn owner_of(pick: u8) -> Option<proto::OwnerState> {
    let pick = usize::from(pick) % 64;
    let owner = OWNERS.get(pick / 4)?.clone();
    Some(proto::OwnerState { owner, epoch: 1 + (pick as u64) % 4 / 2, is_present: pick.is_multiple_of(2) })
}

/// With content, digest, lease, stamp and seal.
static CONTENTS: LazyLock<Vec<RecordState>> = LazyLock::new(|| {
    let lease = |state: RecordState| {
        digested(RecordState { lease: Some(Duration { seconds: 5, nanos: 0 }), ..state })
    };
    let stamp = |state: RecordState| digested(RecordState { mirror_of: "revision".to_owned(), ..state });
    let sealed = |nonce: &'static str, text: &str| RecordState {
        content: Some(content(nonce)),
        digest: Bytes::copy_from_slice(blake3::hash(text.as_bytes()).as_bytes()),
        is_sealed: true,
        ..state()
    };
    let (a, b) = (with("a"), with("b"));
    vec![
        a.clone(),
        b.clone(),
        with("c"),
        lease(a.clone()),
        stamp(b.clone()),
        // A content that was sealed twice, and another one.
        sealed("nonce 1", "secret"),
        sealed("nonce 2", "secret"),
        sealed("nonce 1", "other secret"),
        // What no store writes: a digest of something else, and no content.
        RecordState { digest: b.digest.clone(), ..a.clone() },
        RecordState { lease: lease(b).lease, ..a.clone() },
        RecordState { content: None, ..a },
        state(),
    ]
});

static QUARANTINES: LazyLock<Vec<Option<proto::Quarantined>>> = LazyLock::new(|| {
    let quarantine = |(at, reason, serve)| Some(quarantined(at, reason, serve));
    let made = [
        (at(3), "bad", None),
        (at(3), "bad", Some("a")),
        (at(3), "bad", Some("b")),
        (at(3), "worse", Some("a")),
        (at(4), "bad", Some("a")),
        (None, "bad", None),
    ];
    [const { None }; 6].into_iter().chain(made.map(quarantine)).collect()
});

/// In the order of their encoded bytes, which is not that of names.
pub(super) static OWNERS: LazyLock<[Option<proto::Owner>; 5]> = LazyLock::new(|| {
    let record = |uid: &str| {
        let owner = proto::ResourceOwner { uid: uid.to_owned(), ..Default::default() };
        Some(proto::Owner { who: Some(proto::owner::Who::Resource(owner)) })
    };
    [None, named("b").owner, named("aa").owner, record("1"), record("2")]
});

/// A live state without content.
pub(super) fn state() -> RecordState {
    RecordState {
        key: Some(proto::Key { type_url: "t/acme.T".into(), name: "n".into(), when: String::new() }),
        incarnation: 1,
        lifecycle: proto::State::Live.into(),
        created_at: at(1),
        generation: 1,
        ..RecordState::default()
    }
}

/// A live state with this content.
pub(super) fn with(text: &str) -> RecordState {
    digested(RecordState { content: Some(content(text)), origin: "a".into(), ..state() })
}

pub(super) fn content(text: &str) -> proto::Content {
    proto::Content { payload: text.to_owned().into(), ..Default::default() }
}

/// With the digest that SR53 says.
pub(super) fn digested(state: RecordState) -> RecordState {
    let digested = RecordState {
        content: state.content.clone(),
        lease: state.lease,
        mirror_of: state.mirror_of.clone(),
        ..Default::default()
    };
    let digest = blake3::hash(&digested.encode_to_vec());
    RecordState { digest: Bytes::copy_from_slice(digest.as_bytes()), ..state }
}

pub(super) fn quarantined(at: Option<Timestamp>, reason: &str, serve: Option<&str>) -> proto::Quarantined {
    proto::Quarantined { at, reason: reason.to_owned(), serve: serve.map(content) }
}

/// A named owner that is present.
pub(super) fn named(name: &str) -> proto::OwnerState {
    let owner = proto::Owner { who: Some(proto::owner::Who::Name(name.to_owned())) };
    proto::OwnerState { owner: Some(owner), epoch: 1, is_present: true }
}

pub(super) fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}
