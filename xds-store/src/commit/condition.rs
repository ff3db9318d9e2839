//! Stage 4: conditions (ST9).

use xds_proto::xds::store::v1 as proto;

use super::form::{Act, Draft, Expected};
use super::forms::Forms;
use super::refused::{RefusalCode, Refused, Violations};
use crate::record::Uid;

/// ST9, ST11: conditions are judged on the state before the commit, which predecessors in the same
/// batch have changed already.
pub(super) fn check(draft: &Draft, forms: Forms<'_>) -> Result<(), Refused> {
    let mut violations = Violations::default();
    for (number, change) in draft.changes.iter().enumerate() {
        let key = &change.key;
        let (seen, record) = forms.seen(key).unzip();
        let uid = || match (&seen, record) {
            (Some(key), Some(record)) => Uid::of(key, record.incarnation).to_string(),
            (None, _) | (Some(_), None) => String::new(),
        };
        let failed = match (&change.expected, record) {
            // ST38: a touch of nothing.
            (_, None) if matches!(change.act, Act::Touch) => RefusalCode::NotFound,
            (_, Some(record)) if matches!(change.act, Act::Touch) && record.lease.is_none() => {
                RefusalCode::FailedPrecondition
            }
            // ST14: the deletion is never undone (SG9).
            (_, Some(record)) if matches!(change.act, Act::Put(_)) && record.is_deleting() => {
                RefusalCode::FailedPrecondition
            }
            (None, _) | (Some(Expected::Absent), None) | (Some(Expected::Exists), Some(_)) => continue,
            (Some(Expected::Revision(text)), Some(record)) if record.revision.to_string() == *text => {
                continue;
            }
            (Some(Expected::Uid(text)), Some(_)) if uid() == *text => continue,
            (Some(Expected::Absent), Some(_)) => RefusalCode::AlreadyExists,
            (Some(Expected::Exists), None) => RefusalCode::NotFound,
            // What the caller has read is gone: it reads again.
            (Some(_), _) => RefusalCode::Aborted,
        };
        let message = match failed {
            RefusalCode::NotFound => format!("{key:?} does not exist"),
            RefusalCode::AlreadyExists => format!("{key:?} exists"),
            RefusalCode::FailedPrecondition if matches!(change.act, Act::Touch) => {
                format!("{key:?} has no lease")
            }
            RefusalCode::FailedPrecondition => format!("{key:?} is being deleted: put it again after that"),
            _ if record.is_none() => format!("{key:?} does not exist any more: read it again"),
            _ => format!("{key:?} was changed: read it again"),
        };
        let revision = record.map_or_else(String::new, |record| record.revision.to_string());
        let why = proto::violation::Why::Condition(proto::ConditionFailed { revision, uid: uid() });
        violations.add(failed, (number, Some(key.to_proto())), message, why);
    }
    violations.into_result()
}
