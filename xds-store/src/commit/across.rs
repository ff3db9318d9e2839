//! References between regions, as commits and blocks are judged on them (SG30 to SG35).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use xds_core::Resource;
use xds_proto::xds::store::v1 as proto;

use super::effect::Judging;
use super::form::Draft;
use super::refused::{RefusalCode, Refused, Violations};
use crate::blocks::{Block, BlockKey, BlockState};
use crate::key::{RecordKey, is_configuration};
use crate::read;
use crate::refs::ReferrerChanges;
use crate::rules::{Acts, Named};

/// What a commit needs to know of other regions, and needs from them. The stages note it while they judge, because
/// a refusal has no room for it.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// The regions that did not answer whether their references hold.
    pub(crate) silent: BTreeSet<String>,
    /// What keeps the targets that the commit deletes.
    pub(crate) blocked: Vec<(BlockKey, Arc<Block>)>,
    /// The references that the commit adds to names of other regions, with these.
    pub(crate) added: Vec<(String, proto::Reference)>,
}

impl Refused {
    /// The refusal of another region, for the client of the commit that asked.
    pub(crate) fn across(self, region: &str, draft: &Draft) -> Self {
        let number = |key: &proto::Key| draft.changes.iter().position(|change| change.key.to_proto() == *key);
        let violation = |violation: proto::Violation| {
            let change =
                violation.key.as_ref().and_then(number).and_then(|number| u32::try_from(number).ok());
            proto::Violation { change: change.unwrap_or(violation.change), ..violation }
        };
        let violations = self.violations.into_iter().map(violation).collect();
        // SG3.
        let code = match self.code {
            RefusalCode::NotFound => RefusalCode::FailedPrecondition,
            code => code,
        };
        Self { code, violations, message: format!("region {region} refuses: {}", self.message) }
    }
}

impl Judging<'_> {
    /// The references of other regions to a resource, by any of its forms, in the order of forms.
    pub(crate) fn blocks(&self, target: &RecordKey) -> Vec<(BlockKey, Arc<Block>)> {
        let forms = self.forms().all(target);
        let blocks = forms.flat_map(|form| self.records.blocks(form.name_digest()));
        blocks.map(|(key, block)| (key, Arc::clone(block))).collect()
    }

    /// The other region that owns a resource; `None`: this one does, or every node may write it.
    pub(crate) fn elsewhere(&self, key: &RecordKey) -> Option<&str> {
        self.policies.owner_of(key).filter(|owner| *owner != self.head.region)
    }

    /// SG30: notes a reference that a put adds to a name of another region.
    pub(super) fn note_added(
        &self,
        (source, target): (&RecordKey, &RecordKey),
        (field, acts): (String, Acts),
    ) {
        let (Some(region), Some(needs)) = (self.elsewhere(target), self.needs) else { return };
        let source_region = self.head.region.clone();
        let reference = proto::Reference { source_region, ..read::reference(source, target, (field, acts)) };
        needs.borrow_mut().added.push((region.to_owned(), reference));
    }

    /// What a payload names and another region owns, each with the first field that needs it.
    pub(crate) fn needed_elsewhere(&self, resource: &Resource) -> Vec<(RecordKey, (String, Acts))> {
        let named = self.rules.named(resource).into_iter().filter(|named| named.acts.needs_target());
        let target = |Named { type_url, name, acts }: Named<'_>| {
            let target = self.forms().named(type_url, &name).into_iter().next()?;
            self.elsewhere(&target)?;
            let fields = self.rules.fields(resource, type_url, &name).into_iter();
            let field = fields.filter(|(_, acts)| acts.needs_target()).map(|(field, _)| field).next();
            Some((target, (field.unwrap_or_default(), acts)))
        };
        named.filter_map(target).collect()
    }

    pub(super) fn is_blocked(&self, target: &RecordKey) -> bool {
        let mut forms = self.forms().all(target);
        self.may_be_referred(target)
            || forms.any(|form| self.records.blocks(form.name_digest()).next().is_some())
    }

    /// SG32: whether other regions may refer to a resource though that is not known here: this node became the writer
    /// of its region, and has not heard of all references yet.
    pub(super) fn may_be_referred(&self, target: &RecordKey) -> bool {
        !self.unheard.is_empty() && self.policies.owner_of(target) == Some(&*self.head.region)
    }

    /// The nodes that may have such references, for people, and their regions, as far as these are known.
    pub(super) fn unheard_nodes(&self) -> (String, Vec<String>) {
        let node = |(node, region): (&String, &String)| match region.is_empty() {
            true => node.clone(),
            false => format!("{node} of region {region}"),
        };
        let nodes: Vec<_> = self.unheard.iter().take(NODES_NAMED).map(node).collect();
        let more = self.unheard.len() - nodes.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let regions: BTreeSet<_> = self.unheard.values().filter(|region| !region.is_empty()).collect();
        (nodes.join(", ") + &more, regions.into_iter().cloned().collect())
    }

    /// Notes what keeps a target. Whether a region is known to hold a reference: it answered, or the reference is too
    /// young to be asked about (SG31).
    pub(super) fn note_blocked(&self, blocks: &[(BlockKey, Arc<Block>)]) -> bool {
        let Some(needs) = self.needs else { return true };
        let mut needs = needs.borrow_mut();
        needs.blocked.extend(blocks.iter().cloned());
        blocks.iter().any(|(_, block)| {
            let is_young = block.state() == BlockState::Tentative && self.now < block.until;
            is_young || !needs.silent.contains(&block.reference.source_region)
        })
    }

    /// The regions of these references that did not answer.
    pub(super) fn silent(&self, blocks: &[(BlockKey, Arc<Block>)]) -> Vec<String> {
        let Some(needs) = self.needs.map(RefCell::borrow) else { return Vec::new() };
        let regions: BTreeSet<_> = blocks.iter().map(|(_, block)| &block.reference.source_region).collect();
        regions.into_iter().filter(|region| needs.silent.contains(*region)).cloned().collect()
    }

    /// SG30: whether a node of another region may refer to these targets. All or none.
    ///
    /// # Errors
    /// One that is malformed, or whose target does not exist or is being deleted.
    pub(crate) fn check_blocks(&self, references: &[proto::Reference]) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, reference) in references.iter().enumerate() {
            self.check_block(number, reference, &mut violations);
        }
        violations.into_result()
    }

    fn check_block(&self, number: usize, reference: &proto::Reference, violations: &mut Violations) {
        let target = reference.target.as_ref().and_then(|target| RecordKey::parse(target).ok());
        let is_malformed = BlockKey::of(reference, &[0; 16]).is_none()
            || reference.source_region.is_empty()
            || reference.source_region == self.head.region;
        let Some(target) = target.filter(|_| !is_malformed) else {
            let why = proto::violation::Why::Invalid(proto::Invalid { field: "references".to_owned() });
            let message =
                "a reference needs a source, a target, and another region as that of the source".to_owned();
            return violations.add(RefusalCode::InvalidArgument, (number, None), message, why);
        };
        // SG22: only the writer of the region deletes the record.
        if self.policies.of(&target).is_none() || !self.accepts(&target) {
            let owner_region = self.elsewhere(&target).unwrap_or_default().to_owned();
            let why = proto::RegionOwned { owner_region, ..Default::default() };
            let why = proto::violation::Why::Region(why);
            let message = format!("{target:?} does not belong to this node of region {:?}", self.head.region);
            let at = (number, reference.source.clone());
            return violations.add(RefusalCode::FailedPrecondition, at, message, why);
        }
        // The policy of each region is that of its own store, so SG37 is judged here, too.
        let source = reference.source.as_ref().map(|source| &*source.name).unwrap_or_default();
        if let Some(reason) = self.authorities.refuses(source, target.type_and_name().1) {
            let message = format!("{target:?} in region {:?}: {reason}", self.head.region);
            let refused = (target.to_proto(), reference.field.clone());
            return violations.add_not_imported((number, reference.source.clone()), refused, message);
        }
        let (code, what) = match self.target_state(&target) {
            TargetState::Missing => (RefusalCode::NotFound, "does not exist"),
            TargetState::Deleting => (RefusalCode::FailedPrecondition, "is being deleted"),
            TargetState::Exists => return,
        };
        let why = proto::MissingTarget {
            target: reference.target.clone(),
            field: reference.field.clone(),
            is_deleting: code == RefusalCode::FailedPrecondition,
            ..Default::default()
        };
        let message = format!("{target:?} {what} in region {:?}", self.head.region);
        let why = proto::violation::Why::MissingTarget(why);
        violations.add(code, (number, reference.source.clone()), message, why);
    }

    /// Whether a resource exists, by any of its forms.
    pub(crate) fn target_state(&self, target: &RecordKey) -> TargetState {
        let unchanged = ReferrerChanges::default();
        let forms: Vec<_> = self.forms().all(target).map(|form| form.name_digest()).collect();
        if is_configuration(target.type_url().as_str())
            || !forms.iter().any(|name| self.records.exists(*name))
        {
            return TargetState::Missing;
        }
        // All its variants are being deleted.
        let is_deleting = forms.iter().all(|name| {
            let deleting = self.records.deleting(&unchanged, *name).filter(|key| key.name_digest() == *name);
            deleting.count() == self.records.variants(*name).len()
        });
        if is_deleting { TargetState::Deleting } else { TargetState::Exists }
    }
}

/// How many nodes a refusal names.
const NODES_NAMED: usize = 10;

/// What a resource is for new references (SG3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetState {
    Missing,
    Deleting,
    Exists,
}
