//! Which records refer to which resources (SG1), and what the deletion of a target does to them.

use std::collections::BTreeMap;

use xds_core::{Resource, ResourceName};
use xds_proto::xds::store::v1 as proto;

use crate::key::{NameDigest, RecordKey};
use crate::rules::{Acts, Named, Rules};
use crate::{content, looks};

/// A resource that a record refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) target: NameDigest,
    /// Of all fields that name it.
    pub(crate) acts: Acts,
}

/// The resources that the payloads of a record name, in order: that of its content, and that of the
/// content that is served in place of a quarantined one (SG2).
///
/// `served` is the resource that clients get.
pub(crate) fn named_by(
    key: &RecordKey,
    state: &proto::RecordState,
    served: Option<&Resource>,
    rules: &Rules,
) -> Box<[Reference]> {
    if state.lifecycle() == proto::State::Deleted {
        return Box::default();
    }
    let mut named: BTreeMap<NameDigest, Acts> = BTreeMap::new();
    let mut add = |resource: &Resource| {
        for Named { type_url, name, acts } in rules.named(resource) {
            let known = named.entry(NameDigest::of(type_url, name.as_str())).or_default();
            *known = known.and(acts);
        }
    };
    served.into_iter().for_each(&mut add);
    if state.quarantined.is_some() {
        let withheld = state.content.as_ref().and_then(|content| content::resource(&key.id(), content).ok());
        withheld.iter().for_each(add);
    }
    named.into_iter().map(|(target, acts)| Reference { target, acts }).collect()
}

/// The reference to a target among those of a record.
pub(crate) fn find(references: &[Reference], target: NameDigest) -> Option<Acts> {
    let at = references.binary_search_by(|reference| reference.target.cmp(&target)).ok()?;
    references.get(at).map(|reference| reference.acts)
}

/// The referrers of each target, with what its deletion does to them.
#[derive(Debug, Default)]
pub(crate) struct Referrers(BTreeMap<(NameDigest, RecordKey), Acts>);

impl Referrers {
    /// Those of an engine, all at once.
    pub(crate) fn load(all: Vec<((NameDigest, RecordKey), Acts)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// A record referred to some targets, and refers to others now.
    pub(crate) fn replace(&mut self, key: &RecordKey, before: &[Reference], after: &[Reference]) {
        for (target, acts) in differing(before, after) {
            match acts {
                Some(acts) => _ = self.0.insert((target, key.clone()), acts),
                None => _ = self.0.remove(&(target, key.clone())),
            }
        }
    }

    /// Those of a target.
    pub(crate) fn of(&self, target: NameDigest) -> impl Iterator<Item = (&RecordKey, Acts)> {
        let from = (target, RecordKey::before_all());
        let of_target = self.0.range(from..).take_while(move |((of, _), _)| *of == target);
        of_target.map(|((_, source), acts)| (source, *acts)).inspect(|_| looks::look())
    }

    /// All targets, those of several referrers several times.
    pub(crate) fn targets(&self) -> impl Iterator<Item = NameDigest> {
        self.0.keys().map(|(target, _)| *target)
    }

    /// What the end of a target does to a record that refers to it.
    pub(crate) fn acts(&self, target: NameDigest, source: &RecordKey) -> Option<Acts> {
        self.0.get(&(target, source.clone())).copied()
    }

    pub(crate) fn has(&self, target: NameDigest, source: &RecordKey) -> bool {
        self.0.contains_key(&(target, source.clone()))
    }
}

/// References that were added, changed or removed, and are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct ReferrerChanges(BTreeMap<(NameDigest, RecordKey), Option<Acts>>);

impl ReferrerChanges {
    /// A record referred to some targets, and refers to others now.
    pub(crate) fn replace(&mut self, key: &RecordKey, before: &[Reference], after: &[Reference]) {
        for (target, acts) in differing(before, after) {
            self.0.insert((target, key.clone()), acts);
        }
    }

    /// The targets whose referrers changed, those of several referrers several times.
    pub(crate) fn targets(&self) -> impl Iterator<Item = NameDigest> {
        self.0.keys().map(|(target, _)| *target)
    }

    /// The references that need their targets no longer.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (NameDigest, &RecordKey)> {
        let ended = self.0.iter().filter(|(_, acts)| acts.is_none_or(|acts| !acts.needs_target()));
        ended.map(|((target, source), _)| (*target, source))
    }

    /// Adds the changes of one more commit.
    pub(crate) fn extend(&mut self, commit: Self) {
        self.0.extend(commit.0);
    }

    /// What a reference is now, if it changed; the inner `None`: it was removed.
    pub(crate) fn get(&self, target: NameDigest, source: &RecordKey) -> Option<Option<Acts>> {
        self.0.get(&(target, source.clone())).copied()
    }

    pub(crate) fn added(&self, target: NameDigest) -> impl Iterator<Item = (&RecordKey, Acts)> {
        let all = self.0.range((target, RecordKey::before_all())..);
        let of_target = all.take_while(move |((of, _), _)| *of == target);
        let of_target = of_target.inspect(|_| looks::look());
        of_target.filter_map(|((_, source), acts)| Some((source, (*acts)?)))
    }
}

/// The targets whose references differ, with those after the change.
fn differing<'a>(
    before: &'a [Reference],
    after: &'a [Reference],
) -> impl Iterator<Item = (NameDigest, Option<Acts>)> + 'a {
    let removed = before.iter().filter(|reference| find(after, reference.target).is_none());
    let changed = after.iter().filter(|one| find(before, one.target) != Some(one.acts));
    removed.map(|one| (one.target, None)).chain(changed.map(|one| (one.target, Some(one.acts))))
}

/// The fields of a record that name a resource, with what each does, the strictest one first.
pub(crate) fn fields(
    key: &RecordKey,
    state: &proto::RecordState,
    (target_type, target): (&str, &ResourceName),
    rules: &Rules,
) -> Vec<(String, Acts)> {
    let fields = resources(key, state).flat_map(|resource| rules.fields(&resource, target_type, target));
    let mut fields: Vec<_> = fields.collect();
    fields.sort_by(|(one, one_acts), (other, other_acts)| {
        one_acts.to_proto().cmp(&other_acts.to_proto()).then_with(|| one.cmp(other))
    });
    fields
}

/// What the payloads of a record are (SG2), also of a deleted one.
pub(crate) fn resources(key: &RecordKey, state: &proto::RecordState) -> impl Iterator<Item = Resource> {
    let served = state.quarantined.as_ref().and_then(|quarantined| quarantined.serve.as_ref());
    let contents = state.content.iter().chain(served);
    contents.filter_map(|content| content::resource(&key.id(), content).ok())
}

/// Clears the fields that name a target and are unset with it, in the payloads of a record (SG2). Whether
/// there are any.
pub(crate) fn clear(
    key: &RecordKey,
    state: &mut proto::RecordState,
    target: &RecordKey,
    rules: &Rules,
) -> bool {
    let (of_type, name) = (target.type_url(), target.name());
    let served = state.quarantined.as_mut().and_then(|quarantined| quarantined.serve.as_mut());
    let mut has_cleared = false;
    for content in state.content.iter_mut().chain(served) {
        let Ok(resource) = content::resource(&key.id(), content) else { continue };
        if let Some(payload) = rules.without(&resource, of_type.as_str(), &name) {
            content.payload = payload;
            has_cleared = true;
        }
    }
    has_cleared
}
