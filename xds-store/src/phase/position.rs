//! Where a pass over the records of a plan is.

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::Form;
use crate::key::RecordKey;

/// The place behind a key: a pass looks at the old forms first, and at the new ones then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassPosition {
    pub(crate) form: Form,
    pub(crate) after: Option<RecordKey>,
}

/// A position as it is stored.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredPosition {
    #[prost(bool, tag = "1")]
    is_new: bool,
    #[prost(message, optional, tag = "2")]
    after: Option<proto::Key>,
}

impl Default for PassPosition {
    fn default() -> Self {
        Self { form: Form::Old, after: None }
    }
}

impl PassPosition {
    pub(crate) fn to_proto(&self) -> StoredPosition {
        StoredPosition { is_new: self.form == Form::New, after: self.after.as_ref().map(RecordKey::to_proto) }
    }

    /// `None` if its key cannot be read: the pass begins again.
    pub(crate) fn of_proto(stored: &StoredPosition) -> Option<Self> {
        let form = if stored.is_new { Form::New } else { Form::Old };
        let after = stored.after.as_ref().map(|key| RecordKey::parse(key).ok());
        match after {
            None => Some(Self { form, after: None }),
            Some(after) => after.map(|after| Self { form, after: Some(after) }),
        }
    }
}
