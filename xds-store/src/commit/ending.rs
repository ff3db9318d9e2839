//! When records end, by their dates or with their leases (ST36, ST37, ST39).

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{Judged, Judging, tombstone};
use super::form::CommitLimits;
use super::refused::Refused;
use super::{cascade, drain};
use crate::index::Renewed;
use crate::key::RecordKey;
use crate::number;
use crate::record::{Present, RecordState};
use crate::stored::ReadError;
use crate::time;

impl Judging<'_> {
    /// ST37: a renewal is written once a third of the lease has passed.
    pub(super) fn renew(
        &self,
        key: &RecordKey,
        record: &Present,
        changed: &mut Changed,
    ) -> Result<(), Refused> {
        let Some(lease) = record.lease else { return Ok(()) };
        if self.records.batch.renewed.contains_key(key) {
            return Ok(());
        }
        let passed = self.now.saturating_sub(lease.stored_end.saturating_sub(lease.length));
        // A renewal in the future was by the clock of another node.
        if (0..lease.length / 3).contains(&passed) {
            return Ok(());
        }
        let (mut state, local) = self.version(key, record)?;
        self.extend(&mut state, lease.length);
        changed.renewed.insert(key.clone(), Renewed { at: record.changed_at, state, local });
        Ok(())
    }

    /// Lets a lease of this length, in nanoseconds, start again.
    pub(super) fn extend(&self, state: &mut RecordState, length: i64) {
        state.expires_at = Some(time::to_proto(self.now.saturating_add(length)));
        state.renewal = number::after(state.renewal);
        state.renewed_by.clone_from(&self.head.node);
    }
}

/// The end of those of the records that have ended by expiry, or with their leases (ST36, ST39);
/// `None` if there are none. Records that another server renewed are added to `renewed`.
///
/// # Errors
/// The engine cannot be read.
pub(crate) fn expiry(
    judging: &Judging<'_>,
    ended: &[RecordKey],
    with_lease: bool,
    renewed: &mut Vec<(RecordKey, RecordState)>,
) -> Result<Option<Judged>, ReadError> {
    let mut changed = Changed::default();
    for key in ended {
        let has_ended = |record: &&Present| {
            let is_of_kind = record.lease.is_some() == with_lease && !record.is_deleted();
            is_of_kind && record.expires_at.is_some_and(|end| end <= judging.now)
        };
        let Some(record) = judging.records.get(key).filter(has_ended) else { continue };
        let state = judging.stored.state(key, record.changed_at)?;
        // Another server of this store may have renewed it, which makes no entry in the log.
        if record.lease.is_some_and(|lease| state.renewal > lease.renewal) {
            renewed.push((key.clone(), state));
            continue;
        }
        // SV26. If the new form cannot be read, the old one ends later.
        if judging.unstamp(key, &mut changed).is_ok() {
            if !with_lease {
                changed.ended_by_date.insert(key.clone(), state.lifecycle());
            }
            changed.set(judging, key, tombstone(state), proto::Outcome::Expired);
        }
    }
    if changed.states.is_empty() {
        return Ok(None);
    }
    cascade::cascade(judging, None, &mut changed)?;
    // Time cannot be refused: a record that goes with an ended one, and that others block, waits.
    changed.may_wait.extend(changed.causes.keys().cloned());
    drain::begin(judging, &mut changed);
    judging.follow_references(None, &mut changed)?;
    ended.iter().for_each(|key| judging.note_lost(key, &mut changed));
    let unlimited = CommitLimits { changes: usize::MAX, ..judging.limits };
    let judging = Judging { limits: unlimited, ..*judging };
    // Removals make nothing ambiguous.
    Ok(judging.finish(changed, Vec::new(), Vec::new(), None).ok())
}
