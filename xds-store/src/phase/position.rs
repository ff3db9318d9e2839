//! Where a pass over the records of a plan is.

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::Form;
use crate::key::RecordKey;

/// The place behind a key: a pass looks at the old forms first, at the new ones then, and at the records that
/// name them last, if the plan rewrites references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassPosition {
    pub(crate) form: Form,
    pub(crate) after: Option<RecordKey>,
    pub(crate) is_rewriting: bool,
}

/// A position as it is stored.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredPosition {
    #[prost(bool, tag = "1")]
    is_new: bool,
    #[prost(message, optional, tag = "2")]
    after: Option<proto::Key>,
    #[prost(bool, tag = "3")]
    is_rewriting: bool,
}

impl Default for PassPosition {
    fn default() -> Self {
        Self { form: Form::Old, after: None, is_rewriting: false }
    }
}

impl PassPosition {
    /// The beginning of the last part.
    pub(crate) fn rewriting() -> Self {
        Self { form: Form::New, after: None, is_rewriting: true }
    }

    pub(crate) fn to_proto(&self) -> StoredPosition {
        StoredPosition {
            is_new: self.form == Form::New,
            after: self.after.as_ref().map(RecordKey::to_proto),
            is_rewriting: self.is_rewriting,
        }
    }

    /// `None` if its key cannot be read: the pass begins again.
    pub(crate) fn of_proto(stored: &StoredPosition) -> Option<Self> {
        let form = if stored.is_new { Form::New } else { Form::Old };
        let after = stored.after.as_ref().map(|key| RecordKey::parse(key).ok());
        let at = |after| Self { form, after, is_rewriting: stored.is_rewriting };
        match after {
            None => Some(at(None)),
            Some(after) => after.map(|after| at(Some(after))),
        }
    }
}
