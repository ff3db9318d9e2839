//! Owners of other regions: the region of an owner says whether it exists (SG20).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;

use super::calls::{AGAIN, Call};
use super::{REFERENCES_LIMIT, RegionRequest, RegionResponse, Unanswered};
use crate::commit::{ForeignOwner, Forms};
use crate::index::{Pending, Records};
use crate::key::RecordKey;
use crate::record::owner_key;
use crate::store::{Action, Store};

/// What is known of owners of other regions.
#[derive(Debug, Default)]
pub(in crate::store) struct ForeignOwners {
    /// Those that are asked about next, with their regions.
    next: BTreeMap<(String, ForeignOwner), proto::OwnerCheck>,
    /// Those that do not exist. A uid is never used again, so that stays so.
    pub(in crate::store) gone: BTreeSet<ForeignOwner>,
}

impl ForeignOwners {
    pub(in crate::store) fn ask(&mut self, owners: Vec<(String, ForeignOwner, proto::OwnerCheck)>) {
        self.next.extend(owners.into_iter().map(|(region, owner, check)| ((region, owner), check)));
    }

    /// The owners of these records were dropped, as far as they do not exist.
    pub(in crate::store) fn dropped(&mut self, owned: &[RecordKey]) {
        self.gone.retain(|owner| owned.binary_search(&owner.owned).is_err());
    }
}

impl Store {
    /// Asks other regions about owners, as far as that is due.
    pub(super) fn call_about_owners(&mut self, actions: &mut Vec<Action>) {
        let mut asked: BTreeMap<String, Vec<(ForeignOwner, proto::OwnerCheck)>> = BTreeMap::new();
        for ((region, owner), check) in mem::take(&mut self.across.owners.next) {
            asked.entry(region).or_default().push((owner, check));
        }
        for (region, all) in asked {
            for part in all.chunks(REFERENCES_LIMIT) {
                let (node, owners) = (self.head.node.clone(), part.iter().map(|(_, check)| check.clone()));
                let request =
                    proto::CheckReferencesRequest { owners: owners.collect(), node, ..Default::default() };
                let call = Call::Owners(part.to_vec());
                self.call((region.clone(), String::new()), call, RegionRequest::Check(request), actions);
            }
        }
    }

    /// Takes what a region says of its owners. Each is asked about again in time, as nobody tells this node of the
    /// end of a record of which its region has no copy.
    pub(super) fn on_owners(
        &mut self,
        asked: Vec<(ForeignOwner, proto::OwnerCheck)>,
        answer: Result<RegionResponse, Unanswered>,
    ) {
        let answers: Vec<_> = match &answer {
            Ok(RegionResponse::Check(response)) if response.owners.len() == asked.len() => {
                response.owners().collect()
            }
            _ => vec![Answer::Unknown; asked.len()],
        };
        let now = self.wall.time();
        for ((owner, check), answer) in asked.into_iter().zip(answers) {
            let owned = owner.owned.clone();
            match answer {
                Answer::Holds => {
                    self.index.check_owners(owned, now.saturating_add(self.config.owner_grace));
                }
                // A writer that was promoted may not have heard of it yet.
                Answer::Gone if !self.has_owner(&check) => {
                    self.across.owners.gone.insert(owner);
                    self.index.check_owners(owned, now);
                }
                Answer::Gone | Answer::Pending | Answer::Unknown | Answer::Unspecified => {
                    self.index.check_owners(owned, now.saturating_add(AGAIN));
                }
            }
        }
    }

    /// What this node says of an owner. It speaks for records that it may change.
    pub(super) fn answer_owner(&self, check: &proto::OwnerCheck) -> Answer {
        let owner = check.owner.as_ref().and_then(owner_key);
        let owner_region = owner.as_ref().and_then(|owner| self.index.policies().owner_of(owner));
        if owner_region != Some(&*self.head.region) || self.head.is_replica {
            return Answer::Unknown;
        }
        if self.has_owner(check) { Answer::Holds } else { Answer::Gone }
    }

    fn has_owner(&self, check: &proto::OwnerCheck) -> bool {
        let nothing = Pending::default();
        let forms: Forms<'_> = self.forms(Records { index: &self.index, batch: &nothing });
        let owned = check.owned.as_ref().and_then(|owned| RecordKey::parse(owned).ok());
        check.owner.as_ref().zip(owned).is_some_and(|(owner, owned)| forms.owns(owner, &owned, true))
    }
}
