//! Records of nodes that will not come back (SR33).

use prost::Message;
use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::effect::Judging;
use super::form::{Act, Draft, DraftChange, Wrong};
use super::refused::{RefusalCode, Refused, Violations};
use crate::forgotten::FORGOTTEN_TYPE;

/// What such a record can be. It ends with nothing: once deleted records are forgotten without the node, what
/// the node still has could bring them back. So it needs another id.
pub(super) fn check_form(id: &VariantId, act: Option<&proto::change::Act>) -> Result<(), Wrong> {
    if !id.constraints.is_unconstrained() {
        return Err(Wrong::new("key.when", "a forgotten node has no constraints"));
    }
    match act {
        Some(proto::change::Act::Put(put)) if put.lease.is_some() => {
            Err(Wrong::new("put.lease", "a forgotten node has no lease"))
        }
        Some(proto::change::Act::Put(put)) if !put.owners.is_empty() => {
            Err(Wrong::new("put.owners", "a forgotten node is not owned by a record"))
        }
        Some(proto::change::Act::Put(put)) if put.expires_at.is_some() => {
            Err(Wrong::new("put.expires_at", "a forgotten node does not expire"))
        }
        Some(proto::change::Act::Put(put)) => {
            let payload = put.content.as_ref().map(|content| proto::ForgottenNode::decode(&*content.payload));
            match payload {
                Some(Err(error)) => {
                    let text = format!("the payload is no forgotten node: {error}");
                    Err(Wrong::new("put.content.payload", text))
                }
                Some(Ok(_)) | None => Ok(()),
            }
        }
        Some(proto::change::Act::Check(_)) | None => Ok(()),
        Some(
            proto::change::Act::Delete(_) | proto::change::Act::Touch(_) | proto::change::Act::Quarantine(_),
        ) => Err(Wrong::new("act", "a forgotten node stays forgotten: it comes back with another id")),
    }
}

impl Draft {
    /// Whether all that it does is to forget nodes.
    pub(crate) fn only_forgets(&self) -> bool {
        let is_forget =
            |change: &DraftChange| change.key.has_type(FORGOTTEN_TYPE) && matches!(change.act, Act::Put(_));
        !self.changes.is_empty() && !self.prune && self.changes.iter().all(is_forget)
    }
}

impl Judging<'_> {
    /// A node that forgets itself would be alone.
    pub(super) fn check_forgotten(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, change) in draft.changes.iter().enumerate() {
            let is_own = || change.key.name().as_str() == self.head.node;
            if matches!(change.act, Act::Put(_)) && change.key.has_type(FORGOTTEN_TYPE) && is_own() {
                let message = "this is the node of this store: ask another node to forget it".to_owned();
                let why = proto::violation::Why::Invalid(proto::Invalid { field: "key.name".to_owned() });
                let at = (number, Some(change.key.to_proto()));
                violations.add(RefusalCode::FailedPrecondition, at, message, why);
            }
        }
        violations.into_result()
    }
}
