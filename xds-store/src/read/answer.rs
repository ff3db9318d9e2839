//! Records as users get them.

use xds_proto::xds::store::v1 as proto;

use super::{Knows, ReadError, Reads, RecordVersion};
use crate::content;
use crate::key::is_configuration;
use crate::record::{RecordRevision, RecordState, Uid, served};
use crate::time;

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

    /// The content with or without its payload, and with this text of its version.
    pub(super) fn of(self, content: &proto::Content, schema: String) -> proto::Content {
        match self {
            Self::With => proto::Content { schema, ..content.clone() },
            Self::Without => proto::Content {
                payload: bytes::Bytes::new(),
                schema,
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

impl Reads<'_> {
    /// A record as a caller gets it that understands all versions of the server.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn answer(&self, version: &RecordVersion, payload: Payload) -> Result<proto::Record, ReadError> {
        self.answer_to(version, payload, Knows::ALL)
    }

    /// A record as a caller gets it. A deleted one has no content.
    ///
    /// # Errors
    /// See [`ReadError`]. SV6: the caller or the server does not know its version.
    pub fn answer_to(
        &self,
        version: &RecordVersion,
        payload: Payload,
        knows: &Knows,
    ) -> Result<proto::Record, ReadError> {
        let RecordVersion { key, state, .. } = version;
        let schema = match (&state.content, shown_state(state)) {
            (None, _) | (_, proto::State::Deleted) => String::new(),
            (Some(_), _) => self.shown_version(key, state, knows)?,
        };
        self.answer_as(version, payload, schema)
    }

    /// A record whose content has this text of its version.
    pub(super) fn answer_as(
        &self,
        version: &RecordVersion,
        payload: Payload,
        schema: String,
    ) -> Result<proto::Record, ReadError> {
        let RecordVersion { key, changed_at, committed_at, state, .. } = version;
        let shown = shown_state(state);
        let content = state.content.as_ref().filter(|_| shown != proto::State::Deleted);
        let content = content.map(|content| payload.of(content, schema));
        let quarantined = state.quarantined.as_ref().map(|quarantined| proto::Quarantined {
            at: quarantined.at,
            reason: quarantined.reason.clone(),
            serve: quarantined.serve.as_ref().map(|serve| payload.of(serve, serve.schema.clone())),
        });
        let owners = state.owners.iter().filter(|owner| owner.is_present);
        let mut owners: Vec<_> = owners.filter_map(|owner| owner.owner.clone()).collect();
        // For people. The state has them in another order.
        owners.sort_by(|one, other| name(one).cmp(name(other)));
        // ST44: the time stays when the entry of the log is forgotten.
        let time = match committed_at {
            Some(time) => Some(*time),
            None => self.summary(*changed_at)?.map(|entry| entry.time),
        };
        // SG24: both follow from the policies, and are not stored.
        let owner = self.policies()?.owner_of(key);
        Ok(proto::Record {
            key: Some(key.to_proto()),
            revision: RecordRevision::of(state).to_string(),
            uid: Uid::of(key, state.incarnation).to_string(),
            state: shown.into(),
            content,
            version: served(state).and_then(|content| content_version(key, content)).unwrap_or_default(),
            generation: state.generation,
            created_at: state.created_at,
            changed_at: time.map(time::to_proto),
            expires_at: state.expires_at,
            lease: state.lease,
            quarantined,
            owners,
            origin: state.origin.clone(),
            mirror_of: state.mirror_of.clone(),
            store_revision: self.printed(*changed_at),
            region: owner.unwrap_or_default().to_owned(),
            is_copy: owner.is_some_and(|owner| owner != self.head().region),
            ..proto::Record::default()
        })
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

/// The version of a content as delta clients get it; `None` for configuration, which they do not
/// get.
fn content_version(key: &super::RecordKey, content: &proto::Content) -> Option<String> {
    if is_configuration(key.type_url().as_str()) {
        return None;
    }
    content::resource(&key.id(), content).ok().map(|resource| resource.version().to_string())
}

/// Empty for a record.
fn name(owner: &proto::Owner) -> &str {
    match &owner.who {
        Some(proto::owner::Who::Name(name)) => name,
        Some(proto::owner::Who::Resource(_)) | None => "",
    }
}
