//! Names of a plan that is more than one phase further at a peer than here, or less far (SV42).

use xds_proto::xds::store::v1 as proto;

use super::effect::Judging;
use super::form::{Act, Draft};
use super::refused::{RefusalCode, Refused, Violations};

impl Judging<'_> {
    /// Nodes that are two phases apart have no form that both read and write: what one of them accepts would be
    /// invisible at the other one. What other nodes accepted is merged all the same.
    pub(super) fn check_apart(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, change) in draft.changes.iter().enumerate().filter(|_| !draft.is_copy) {
            if !matches!(change.act, Act::Put(_) | Act::Delete { .. } | Act::Touch | Act::Quarantine(_)) {
                continue;
            }
            let Some((plan, _)) = self.schemas.form(&change.key) else { continue };
            let phase = self.records.index.phases().phase(plan);
            if let Some(gap) = self.peer_phases.gap(plan, phase) {
                let (node, message) = (gap.peer.clone(), gap.to_string());
                let gate = proto::ClosedGate { gate: "peer_phase".to_owned(), node, count: 1 };
                let (at, why) = ((number, Some(change.key.to_proto())), proto::violation::Why::Gate(gate));
                violations.add(RefusalCode::FailedPrecondition, at, message, why);
            } else if self.head.owes_reissue && self.peer_phases.is_silent() {
                let message = format!(
                    "this node has another id since it was restored or copied, and no peer has said yet how far the \
                     plan {} is: wait for one, or take the peers away that are gone",
                    plan.name()
                );
                return Err(Refused::whole(RefusalCode::Unavailable, message));
            }
        }
        violations.into_result()
    }
}
