//! Stage 6: named owners protect their records (SG15).

use xds_proto::xds::store::v1 as proto;

use super::effect::Judging;
use super::form::{Act, Draft};
use super::refused::{RefusalCode, Refused, Violations};

/// Refuses changes of records that belong to others. Touches and quarantines need no ownership.
pub(super) fn check(judging: &Judging<'_>, draft: &Draft) -> Result<(), Refused> {
    let mut violations = Violations::default();
    if draft.take_over || draft.is_copy {
        return Ok(());
    }
    for (number, change) in draft.changes.iter().enumerate() {
        let key = &change.key;
        let record = judging.records.get(key).filter(|record| record.exists(judging.now));
        let Some(record) = record.filter(|record| !record.owners.is_empty()) else { continue };
        let is_owner = |name: &str| name == draft.owner;
        let is_foreign = match &change.act {
            // A put of what is there joins the owners, and changes nothing for them.
            Act::Put(put) => {
                let has_others = record.owners.iter().any(|name| !is_owner(name));
                let shares = draft.is_sharing && record.owners.iter().any(|name| is_owner(name));
                has_others
                    && !shares
                    && !judging.is_same(&judging.content_of(key, put, Some(record)), put, record)
            }
            Act::Delete { .. } => !record.owners.iter().any(|name| is_owner(name)),
            Act::Touch | Act::Quarantine(_) | Act::Check | Act::Phase(_) | Act::Ceiling(_) => false,
        };
        if is_foreign {
            let owners: Vec<_> = record.owners.iter().map(ToString::to_string).collect();
            let message = format!("{key:?} belongs to {}", owners.join(", "));
            let why = proto::violation::Why::Owned(proto::OwnedByOthers { owners });
            let at = (number, Some(key.to_proto()));
            violations.add(RefusalCode::FailedPrecondition, at, message, why);
        }
    }
    violations.into_result()
}
