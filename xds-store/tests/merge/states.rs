//! States of one key.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use prost_types::{Duration, Timestamp};
use xds_proto::xds::store::v1 as proto;
use xds_store::record::RecordState;

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
