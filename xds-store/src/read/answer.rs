//! Records as users get them.

use std::time::Duration;

use xds_core::{Resource, ResourceName};
use xds_proto::xds::store::v1 as proto;

use super::filter::is_configuration;
use super::{ReadError, Reads, RecordVersion};
use crate::record::{RecordRevision, RecordState, Uid};

/// Whether answers have payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// They have them.
    With,
    /// The request does not want them.
    Without,
}

impl Payload {
    /// As a request says it.
    #[must_use]
    pub fn unless(is_without: bool) -> Self {
        if is_without { Self::Without } else { Self::With }
    }

    /// The content with or without its payload.
    pub(super) fn of(self, content: &proto::Content) -> proto::Content {
        match self {
            Self::With => content.clone(),
            Self::Without => proto::Content {
                payload: bytes::Bytes::new(),
                schema: content.schema.clone(),
                labels: content.labels.clone(),
                ttl: content.ttl,
                aliases: content.aliases.clone(),
                do_not_cache: content.do_not_cache,
                metadata: content.metadata.clone(),
                redirect: content.redirect,
            },
        }
    }
}

/// The part of a log entry that records are answered with.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct EntryTime {
    #[prost(int64, tag = "4")]
    time: i64,
}

impl Reads<'_> {
    /// A record as users get it. A deleted one has no content.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn answer(&self, version: &RecordVersion, payload: Payload) -> Result<proto::Record, ReadError> {
        let RecordVersion { key, changed_at, state } = version;
        let shown = shown_state(state);
        let content = state.content.as_ref().filter(|_| shown != proto::State::Deleted);
        let quarantined = state.quarantined.as_ref().map(|quarantined| proto::Quarantined {
            at: quarantined.at,
            reason: quarantined.reason.clone(),
            serve: quarantined.serve.as_ref().map(|serve| payload.of(serve)),
        });
        let owners = state.owners.iter().filter(|owner| owner.is_present);
        Ok(proto::Record {
            key: Some(key.to_proto()),
            revision: RecordRevision::of(state).to_string(),
            uid: Uid::of(key, state.incarnation).to_string(),
            state: shown.into(),
            content: content.map(|content| payload.of(content)),
            version: served(state).and_then(|content| content_version(key, content)).unwrap_or_default(),
            generation: state.generation,
            created_at: state.created_at,
            changed_at: self.time(*changed_at)?.map(timestamp),
            expires_at: state.expires_at,
            lease: state.lease,
            quarantined,
            owners: owners.filter_map(|owner| owner.owner.clone()).collect(),
            origin: state.origin.clone(),
            mirror_of: state.mirror_of.clone(),
            store_revision: self.printed(*changed_at),
            ..proto::Record::default()
        })
    }

    /// When a revision was committed; `None` if that is forgotten.
    fn time(&self, revision: u64) -> Result<Option<i64>, ReadError> {
        if let Some(time) = self.times.borrow().get(&revision) {
            return Ok(*time);
        }
        let entry: Option<EntryTime> = self.entry(revision)?;
        let time = entry.map(|entry| entry.time);
        self.times.borrow_mut().insert(revision, time);
        Ok(time)
    }
}

/// The state of a record, quarantine included.
pub(super) fn shown_state(state: &RecordState) -> proto::State {
    match state.lifecycle() {
        proto::State::Live | proto::State::Unspecified if state.quarantined.is_some() => {
            proto::State::Quarantined
        }
        proto::State::Unspecified => proto::State::Live,
        lifecycle => lifecycle,
    }
}

/// The named owners of a record.
pub(super) fn named_owners(state: &RecordState) -> impl Iterator<Item = &str> {
    let present = state.owners.iter().filter(|owner| owner.is_present);
    present.filter_map(|owner| match owner.owner.as_ref()?.who.as_ref()? {
        proto::owner::Who::Name(name) => Some(&**name),
        proto::owner::Who::Resource(_) => None,
    })
}

/// The content that clients get.
fn served(state: &RecordState) -> Option<&proto::Content> {
    match (&state.quarantined, state.lifecycle()) {
        (_, proto::State::Deleted) => None,
        (Some(quarantined), _) => quarantined.serve.as_ref(),
        (None, _) => state.content.as_ref(),
    }
}

/// The version of a content as delta clients get it; `None` for configuration, which they do not
/// get.
fn content_version(key: &super::RecordKey, content: &proto::Content) -> Option<String> {
    let (type_url, name) = (key.type_url(), key.name());
    if is_configuration(type_url.as_str()) {
        return None;
    }
    let payload = content.payload.clone();
    let made = if content.redirect { Resource::redirect } else { Resource::new };
    let mut resource = made(type_url, name, payload).ok()?;
    if let Some(ttl) = content.ttl {
        resource = resource.with_ttl(Duration::try_from(ttl).ok()?);
    }
    if !content.aliases.is_empty() {
        resource = resource.with_aliases(content.aliases.iter().map(|alias| ResourceName::from(&**alias)));
    }
    if content.do_not_cache {
        resource = resource.with_do_not_cache();
    }
    if !content.metadata.is_empty() {
        resource = resource.with_metadata(content.metadata.clone());
    }
    Some(resource.version().to_string())
}

/// Nanoseconds since 1970.
pub(super) fn nanoseconds(time: &prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(SECOND).saturating_add(time.nanos.into())
}

pub(super) fn timestamp(time: i64) -> prost_types::Timestamp {
    let nanos = i32::try_from(time.rem_euclid(SECOND)).unwrap_or_default();
    prost_types::Timestamp { seconds: time.div_euclid(SECOND), nanos }
}

/// A second in nanoseconds.
const SECOND: i64 = 1_000_000_000;
