//! Stage 3: which node accepts a write (SG22, SG23, SG28).

use std::collections::BTreeMap;

use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::Judging;
use super::form::{Act, Draft, DraftChange, Wrong, check_lasting};
use super::refused::{RefusalCode, Refused, Violations};
use crate::key::RecordKey;
use crate::number;
use crate::region::{Policies, Policy};

/// SG21: what a policy can be. It holds as long as it is there, at all nodes.
pub(super) fn check_form(id: &VariantId, act: Option<&proto::change::Act>) -> Result<(), Wrong> {
    check_lasting("a region policy", id, act)?;
    let Some(proto::change::Act::Put(proto::Put { content: Some(content), .. })) = act else { return Ok(()) };
    Policies::check(&content.payload).map_err(|bad| match bad.field {
        "" => Wrong::new("put.content.payload", bad.message),
        field => Wrong::new("put.content.payload", format!("{field}: {}", bad.message)),
    })
}

impl Judging<'_> {
    /// Whether this node accepts writes of a record: its name is global, or this is the writer of the region
    /// that owns it, and has all names that came to the region with it (SG28).
    pub(crate) fn accepts(&self, key: &RecordKey) -> bool {
        let is_owner = self.policies.of(key).is_none_or(|policy| self.is_writer_of(policy));
        is_owner && self.policies.fetching_record(key).is_none()
    }

    /// SG42: what identifies the commit that is judged, at all nodes. It comes after the one that wrote the policy
    /// before.
    pub(super) fn next_commit(&self, before: Option<&proto::WrittenBy>) -> proto::WrittenBy {
        let (origin, region) = (self.head.node.clone(), self.head.region.clone());
        let epoch = before.map_or(0, |by| number::after(by.epoch));
        proto::WrittenBy { origin, counter: self.head.counter + 1, region, epoch }
    }

    fn is_writer_of(&self, policy: &Policy) -> bool {
        policy.owner() == self.head.region && !self.head.is_replica
    }

    /// The names that the request changes.
    pub(super) fn check_regions(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        let mut used: BTreeMap<&str, &Policy> = BTreeMap::new();
        let changes = draft.changes.iter().enumerate();
        // A check changes nothing.
        for (number, change) in changes.filter(|(_, change)| !matches!(change.act, Act::Check)) {
            if Policies::is_policy(&change.key) {
                self.check_policy(number, change, &mut violations);
            }
            let Some(policy) = self.policies.of(&change.key) else { continue };
            used.insert(policy.prefix(), policy);
            if !self.is_writer_of(policy) {
                self.refuse((number, &change.key), policy, &mut violations);
            }
        }
        violations.into_result()?;
        self.check_fetched(draft)?;
        let mut policies = used.into_values();
        let (Some(first), Some(second)) = (policies.next(), policies.next()) else { return Ok(()) };
        // SG23, SG40: a handover of one of them would divide the commit.
        let mut violations = Violations::default();
        let named = |policy: &Policy| format!("{} (region {})", policy.prefix(), policy.owner());
        let message = format!(
            "a commit changes names of one region policy at most, and this one of {} and {}: commit them one after \
             the other",
            named(first),
            named(second)
        );
        let owned = owned_by(first, vec![second.owner().to_owned()]);
        violations.add(RefusalCode::FailedPrecondition, (0, None), message, owned);
        violations.into_result()
    }

    /// SG28: a name that this node has not fetched yet may exist elsewhere, and so may one that was created here.
    fn check_fetched(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        let changes = draft.changes.iter().enumerate();
        for (number, change) in changes.filter(|(_, change)| !matches!(change.act, Act::Check)) {
            let key = &change.key;
            let fetching = match Policies::is_policy(key) {
                true => self.policies.fetching_of(key.type_and_name().1),
                false => self.policies.fetching_record(key),
            };
            if let Some((prefix, giver)) = fetching {
                let message = format!(
                    "this node is still fetching the names with {prefix} from region {giver}: retry later; \
                     xds store peers says what it waits for"
                );
                let owner_region = self.policies.policy_of(prefix).map_or("", Policy::owner).to_owned();
                let why = proto::RegionOwned { owner_region, ..proto::RegionOwned::default() };
                let at = (number, Some(key.to_proto()));
                violations.add(RefusalCode::Unavailable, at, message, proto::violation::Why::Region(why));
            }
        }
        violations.into_result()
    }

    /// The names that a commit changes besides: what a prune releases, the other forms of records, and what goes
    /// with a deletion.
    pub(super) fn check_regions_of(&self, changed: &Changed) -> Result<(), Refused> {
        let mut violations = Violations::default();
        let is_owned_elsewhere = |policy: &&Policy| !self.is_writer_of(policy);
        let of = |key| Some((key, self.policies.of(key).filter(is_owned_elsewhere)?));
        for (key, policy) in changed.states.keys().filter_map(of) {
            self.refuse((usize::MAX, key), policy, &mut violations);
        }
        violations.into_result()
    }

    fn refuse(&self, (number, key): (usize, &RecordKey), policy: &Policy, violations: &mut Violations) {
        let owner = policy.owner();
        let message = match owner == self.head.region {
            true => format!(
                "it belongs to region {owner} by the policy {}, and this node is a replica: commit at the writer \
                 of the region",
                policy.prefix()
            ),
            false => format!(
                "it belongs to region {owner} by the policy {}, and is read-only here: commit there",
                policy.prefix()
            ),
        };
        let at = (number, Some(key.to_proto()));
        violations.add(RefusalCode::FailedPrecondition, at, message, owned_by(policy, Vec::new()));
    }

    /// SG28: only the writer of the owner region changes the owner and the regions with copies. Regions that get names
    /// by that fetch them from this one (SG27), so it has to keep them.
    fn check_policy(&self, number: usize, change: &DraftChange, violations: &mut Violations) {
        let (_, prefix) = change.key.type_and_name();
        let Some(present) = self.policies.policy_of(prefix) else { return };
        if !self.is_writer_of(present) {
            return self.refuse((number, &change.key), present, violations);
        }
        let without;
        let next = match &change.act {
            Act::Put(put) => Policy::parse(prefix, &put.content.payload).ok(),
            Act::Delete { .. } if present.prefix() == prefix => {
                without = self.policies.without(prefix);
                without.policy_of(prefix).cloned()
            }
            _ => return,
        };
        // Without a policy, all regions have them.
        let region = &self.head.region;
        let is_kept = |next: &Policy| next.lets_give(region);
        // A region that got copies by the policy before may not have all of them yet.
        let is_given = |next: &Policy| next.owner() != region || !present.covers(next);
        if next.is_none_or(|next| is_kept(&next) || !is_given(&next)) {
            return;
        }
        let message = format!(
            "a region gets the names with {prefix}, or their writes, and this region would not keep them until then: \
             name {region} in its regions, without an exception in disabled, and take it out later",
        );
        let at = (number, Some(change.key.to_proto()));
        violations.add(RefusalCode::FailedPrecondition, at, message, owned_by(present, Vec::new()));
    }
}

/// The server adds the node and its address.
fn owned_by(policy: &Policy, other_regions: Vec<String>) -> proto::violation::Why {
    proto::violation::Why::Region(proto::RegionOwned {
        owner_region: policy.owner().to_owned(),
        other_regions,
        ..proto::RegionOwned::default()
    })
}
