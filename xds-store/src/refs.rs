//! Which records refer to which resources (SG1), and what the deletion of a target does.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::{Resource, ResourceName};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

use crate::key::{NameDigest, RecordKey};
use crate::{content, looks};

/// What the deletion of a target does to the records that refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDelete {
    /// The target cannot be deleted, and a new reference must lead to a record.
    Block,
    /// Nothing. The target goes with its last referrer.
    Collect,
    /// Nothing. The target need not exist either.
    Allow,
}

impl OnDelete {
    /// What holds for references of records of one type to another type.
    pub(crate) fn of(source: &str, target: &str) -> Self {
        match (source, target) {
            (type_url::ROUTE_CONFIGURATION | type_url::VIRTUAL_HOST, type_url::CLUSTER)
            | (type_url::LISTENER | type_url::SCOPED_ROUTE_CONFIGURATION, type_url::ROUTE_CONFIGURATION)
            | (_, type_url::SECRET) => Self::Block,
            (type_url::CLUSTER, type_url::CLUSTER_LOAD_ASSIGNMENT) => Self::Collect,
            // Static and dynamic configuration are often mixed.
            _ => Self::Allow,
        }
    }

    /// As the API has it. A collected target does not block either.
    pub(crate) fn to_proto(self) -> proto::OnDelete {
        match self {
            Self::Block => proto::OnDelete::Block,
            Self::Collect | Self::Allow => proto::OnDelete::Allow,
        }
    }
}

/// The resources that the payloads of a record name, in order: that of its content, and that of the
/// content that is served in place of a quarantined one (SG2).
///
/// `served` is the resource that clients get.
pub(crate) fn named_by(
    key: &RecordKey,
    state: &proto::RecordState,
    served: Option<&Resource>,
) -> BTreeSet<NameDigest> {
    let mut named = BTreeSet::new();
    if state.lifecycle() == proto::State::Deleted {
        return named;
    }
    let mut add = |resource: &Resource| {
        named.extend(resource.named_resources().map(|(of, name)| NameDigest::of(of, name.as_str())));
    };
    served.into_iter().for_each(&mut add);
    if state.quarantined.is_some() {
        let withheld = state.content.as_ref().and_then(|content| content::resource(&key.id(), content).ok());
        withheld.iter().for_each(add);
    }
    named
}

/// The referrers of each target.
#[derive(Debug, Default)]
pub(crate) struct Referrers(BTreeSet<(NameDigest, RecordKey)>);

impl Referrers {
    /// Those of an engine, all at once.
    pub(crate) fn load(all: Vec<(NameDigest, RecordKey)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// A record referred to some targets, and refers to others now.
    pub(crate) fn replace(&mut self, key: &RecordKey, before: &[NameDigest], after: &[NameDigest]) {
        for target in before.iter().filter(|target| after.binary_search(target).is_err()) {
            self.0.remove(&(*target, key.clone()));
        }
        for target in after.iter().filter(|target| before.binary_search(target).is_err()) {
            self.0.insert((*target, key.clone()));
        }
    }

    /// Those of a target.
    pub(crate) fn of(&self, target: NameDigest) -> impl Iterator<Item = &RecordKey> {
        let from = (target, RecordKey::before_all());
        let of_target = self.0.range(from..).take_while(move |(of, _)| *of == target);
        of_target.map(|(_, source)| source).inspect(|_| looks::look())
    }

    pub(crate) fn has(&self, target: NameDigest, source: &RecordKey) -> bool {
        self.0.contains(&(target, source.clone()))
    }
}

/// References that were added or removed, and are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct ReferrerChanges(BTreeMap<(NameDigest, RecordKey), bool>);

impl ReferrerChanges {
    /// A record referred to some targets, and refers to others now.
    pub(crate) fn replace(&mut self, key: &RecordKey, before: &[NameDigest], after: &[NameDigest]) {
        for target in before.iter().filter(|target| after.binary_search(target).is_err()) {
            self.0.insert((*target, key.clone()), false);
        }
        for target in after.iter().filter(|target| before.binary_search(target).is_err()) {
            self.0.insert((*target, key.clone()), true);
        }
    }

    /// The targets that lost a referrer.
    pub(crate) fn removed(&self) -> impl Iterator<Item = NameDigest> {
        self.0.iter().filter(|(_, is_added)| !**is_added).map(|((target, _), _)| *target)
    }

    /// Adds the changes of one more commit.
    pub(crate) fn extend(&mut self, commit: Self) {
        self.0.extend(commit.0);
    }

    pub(crate) fn get(&self, target: NameDigest, source: &RecordKey) -> Option<bool> {
        self.0.get(&(target, source.clone())).copied()
    }

    pub(crate) fn added(&self, target: NameDigest) -> impl Iterator<Item = &RecordKey> {
        let all = self.0.range((target, RecordKey::before_all())..);
        let of_target = all.take_while(move |((of, _), _)| *of == target);
        let of_target = of_target.inspect(|_| looks::look());
        of_target.filter(|(_, is_added)| **is_added).map(|((_, source), _)| source)
    }
}

/// The fields of a record that name a resource, in order.
pub(crate) fn fields(
    key: &RecordKey,
    state: &proto::RecordState,
    target_type: &str,
    target: &ResourceName,
) -> BTreeSet<String> {
    resources(key, state).flat_map(|resource| resource.fields_that_name(target_type, target)).collect()
}

/// What the payloads of a record are (SG2), also of a deleted one.
pub(crate) fn resources(key: &RecordKey, state: &proto::RecordState) -> impl Iterator<Item = Resource> {
    let served = state.quarantined.as_ref().and_then(|quarantined| quarantined.serve.as_ref());
    let contents = state.content.iter().chain(served);
    contents.filter_map(|content| content::resource(&key.id(), content).ok())
}
