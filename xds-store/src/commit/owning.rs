//! Records that other records own: they go with their last owner (SG17, SG18).

use std::collections::BTreeSet;

use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::owner::Who;

use super::changed::Changed;
use super::effect::{Effect, Judged, Judging, tombstone};
use super::form::CommitLimits;
use super::forms::Forms;
use super::refused::Refused;
use super::{cascade, drain, owner};
use crate::key::RecordKey;
use crate::number;
use crate::record::{Present, Uid, owner_key, resource_owners};
use crate::refs;
use crate::stored::ReadError;

impl Judging<'_> {
    /// Drops the owners of these records that own them no longer; `None` if there are none. An owner
    /// that was never seen, or that does not refer to the record, is dropped only if it is late. One of another region
    /// is dropped if that region does not have it.
    ///
    /// # Errors
    /// The engine cannot be read, or the changes do not go together with other records.
    pub(crate) fn drop_owners(
        &self,
        keys: &[RecordKey],
        is_late: bool,
        gone: &BTreeSet<ForeignOwner>,
    ) -> Result<Option<Judged>, Refused> {
        let mut changed = Changed::default();
        let mut effects: Vec<Effect> = Vec::new();
        for key in keys {
            let record = self.records.get(key).filter(|record| record.exists(self.now));
            // SG22: the region that owns the record does it.
            let may_drop = |record: &&Present| !record.owned_by.is_empty() && self.accepts(key);
            let Some(record) = record.filter(may_drop) else { continue };
            let mut state = self.state(key, record)?;
            let (mut has_dropped, mut stays) = (false, false);
            for found in state.owners.iter_mut().filter(|owner| owner.is_present) {
                let Some(Who::Resource(owner)) = found.owner.as_ref().and_then(|owner| owner.who.as_ref())
                else {
                    continue;
                };
                // SG20: this node may lack it, or have an earlier copy.
                let is_kept = match self.region_of_owner(owner) {
                    Some(_) => !gone.contains(&ForeignOwner::of(owner, key)),
                    None => self.forms().owns(owner, key, is_late),
                };
                if is_kept {
                    continue;
                }
                (has_dropped, stays) = (true, stays || owner.unset_on_delete);
                (found.is_present, found.epoch) = (false, number::after(found.epoch));
            }
            if !has_dropped {
                continue;
            }
            let mut result = if owner::has_any(&state) || stays {
                changed.set(self, key, state, proto::Outcome::Released)
            } else {
                // Under SG4 to SG7: what blocks it makes it wait.
                changed.may_wait.insert(key.clone());
                changed.set(self, key, tombstone(state), proto::Outcome::Deleted)
            };
            if let Some(mirror) = self.mirror_of(key) {
                result = self.mirror(key, &mirror, result, &mut changed, &mut effects)?;
            }
            effects.push(Effect { key: key.clone(), result });
        }
        if changed.is_empty() {
            return Ok(None);
        }
        cascade::cascade(self, None, &mut changed)?;
        changed.may_wait.extend(changed.causes.keys().cloned());
        drain::begin(self, &mut changed);
        self.follow_references(None, &mut changed)?;
        let unlimited = CommitLimits { changes: usize::MAX, ..self.limits };
        let judging = Judging { limits: unlimited, ..*self };
        Ok(Some(judging.finish(changed, Vec::new(), Vec::new(), None)?))
    }

    /// The owners of these records that other regions own, with their regions. Before they are late, only those
    /// that seem to have ended.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn foreign_owners(
        &self,
        keys: &[RecordKey],
        is_late: bool,
    ) -> Result<Vec<(String, ForeignOwner, proto::OwnerCheck)>, ReadError> {
        let mut found = Vec::new();
        for key in keys {
            let record = self.records.get(key).filter(|record| record.exists(self.now) && self.accepts(key));
            let is_foreign =
                |record: &&Present| record.owned_by.iter().any(|owner| self.elsewhere(owner).is_some());
            let Some(record) = record.filter(is_foreign) else { continue };
            let state = self.state(key, record)?;
            for owner in resource_owners(&state) {
                let Some(region) = self.region_of_owner(owner) else { continue };
                if is_late || !self.forms().owns(owner, key, false) {
                    let check = proto::OwnerCheck { owner: Some(owner.clone()), owned: Some(key.to_proto()) };
                    found.push((region.to_owned(), ForeignOwner::of(owner, key), check));
                }
            }
        }
        Ok(found)
    }

    fn region_of_owner(&self, owner: &proto::ResourceOwner) -> Option<&str> {
        owner_key(owner).and_then(|owner| self.elsewhere(&owner))
    }
}

/// An owner of another region, as the owner of one record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ForeignOwner {
    pub(crate) owned: RecordKey,
    owner: Option<RecordKey>,
    uid: String,
}

impl ForeignOwner {
    fn of(owner: &proto::ResourceOwner, owned: &RecordKey) -> Self {
        Self { owned: owned.clone(), owner: owner_key(owner), uid: owner.uid.clone() }
    }
}

impl<'a> Forms<'a> {
    /// Whether a record owns another one. Where it is migrated, its other form stands for it (SG20).
    pub(crate) fn owns(self, owner: &proto::ResourceOwner, owned: &RecordKey, is_late: bool) -> bool {
        let Some(key) = owner_key(owner) else { return false };
        let present = self.records.get(&key);
        let other_key = self.side(&key).and_then(|side| side.other.ok());
        let other = other_key.as_ref().and_then(|other| Some((other, self.records.get(other)?)));
        let is_it = |key: &RecordKey, record: &Present| uid(key, record) == owner.uid;
        // SG19: a record that was created again is another owner. A reader of one form may have the uid of
        // the other one.
        if present.is_some_and(|record| !is_it(&key, record))
            && other.is_none_or(|(other, record)| !is_it(other, record))
        {
            return false;
        }
        let live = |record: Option<&'a Present>| record.filter(|record| !record.is_deleted());
        let Some(record) = live(present).or_else(|| live(other.map(|(_, record)| record))) else {
            return present.is_none() && !is_late;
        };
        let refers = || {
            let mut names = self.all(owned);
            names.any(|form| refs::find(&record.references, form.name_digest()).is_some())
        };
        !owner.requires_reference || !is_late || refers()
    }
}

/// The printed uid of a record.
pub(super) fn uid(key: &RecordKey, record: &Present) -> String {
    Uid::of(key, record.incarnation).to_string()
}
