//! Which region owns a name, and which regions have copies of it: the policies of prefixes of names (SG21).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::clock::Counters;
pub use crate::key::POLICY_TYPE;
use crate::key::{RecordKey, is_configuration};
use crate::log::StoredFetching;
use crate::record::RecordState;

pub(crate) use fetching::{FetchingChanges, key_of, read_fetching};

mod fetching;

/// The policies of a store, by their prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policies {
    by_prefix: BTreeMap<Box<[u8]>, Policy>,
    /// The prefixes of names that are not all here, with the regions that gave them to that of this node (SG27).
    fetching: BTreeMap<Box<str>, StoredFetching>,
    /// Of each node, the last commit that wrote a policy (SG42).
    commits: Counters,
    /// The commits that wrote the policies, by prefixes. Those that deleted one, too.
    written_by: BTreeMap<Box<str>, proto::WrittenBy>,
    /// How many states of policies were taken.
    changes: u64,
}

/// What holds for the names with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    prefix: Box<str>,
    owner: Box<str>,
    /// Besides the owner.
    regions: BTreeSet<Box<str>>,
    disabled: Vec<proto::DisabledSync>,
    /// The region of the node that wrote it (SG42); empty: none, or not known.
    author: Box<str>,
}

/// A policy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadPolicy {
    /// The field of the policy that is wrong; empty: it is no policy at all.
    pub field: &'static str,
    /// For people.
    pub message: String,
}

impl Policy {
    /// The prefix, which names the policy.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The region whose writer accepts writes of these names.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The region of the node that wrote the policy (SG42); empty if that is not known.
    #[must_use]
    pub fn author(&self) -> &str {
        &self.author
    }

    /// Whether nobody has names by the other policy, which is about the same names, that does not have them by this
    /// one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let has = |region: &str| self.regions().any(|own| own == region);
        other.regions().all(has) && self.disabled.iter().all(|disabled| other.disabled.contains(disabled))
    }

    /// The regions that have these names: the owner, and those with copies.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        [&self.owner].into_iter().chain(&self.regions).map(|region| &**region)
    }

    pub(crate) fn parse(prefix: &str, payload: &[u8]) -> Result<Self, BadPolicy> {
        let bad = |field, message: String| BadPolicy { field, message };
        let policy = proto::RegionPolicy::decode(payload);
        let policy = policy.map_err(|error| bad("", format!("the payload is no region policy: {error}")))?;
        let proto::RegionPolicy { owner_region: owner, regions: copies, disabled } = policy;
        for (field, count) in [("regions", copies.len()), ("disabled", disabled.len())] {
            if count > ITEMS_LIMIT {
                return Err(bad(field, format!("{count} items exceed the limit of {ITEMS_LIMIT}")));
            }
        }
        check_region("owner_region", &owner)?;
        let mut regions = BTreeSet::new();
        for region in copies {
            check_region("regions", &region)?;
            if region == owner {
                return Err(bad("regions", format!("{region:?} is the owner, which is not listed again")));
            }
            if regions.contains(&*region) {
                return Err(bad("regions", format!("{region:?} is there twice")));
            }
            regions.insert(region.into());
        }
        for proto::DisabledSync { type_url, source_region, target_region } in &disabled {
            if type_url.contains(char::is_control) || is_configuration(type_url) {
                return Err(bad("disabled.type_url", format!("{type_url:?} is no type of resources")));
            }
            for (field, region) in
                [("disabled.source_region", source_region), ("disabled.target_region", target_region)]
            {
                if !region.is_empty() {
                    check_region(field, region)?;
                }
            }
        }
        let author = Box::default();
        Ok(Self { prefix: prefix.into(), owner: owner.into(), regions, disabled, author })
    }

    /// SG25.
    fn is_for(&self, type_url: &str, source: &str, target: &str) -> bool {
        let is_all_or = |text: &str, value: &str| text.is_empty() || text == value;
        let is_disabled = |disabled: &proto::DisabledSync| {
            is_all_or(&disabled.type_url, type_url)
                && is_all_or(&disabled.source_region, source)
                && is_all_or(&disabled.target_region, target)
        };
        self.regions().any(|region| region == target) && !self.disabled.iter().any(is_disabled)
    }
}

impl Policies {
    /// Whether there is none: all names are global.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// Equal for policies that give the same names to the same regions.
    pub(crate) fn digest(&self) -> Bytes {
        let mut hasher = blake3::Hasher::new();
        for policy in self.iter() {
            hasher.update(policy.prefix.as_bytes()).update(&[0]).update(policy.owner.as_bytes()).update(&[0]);
        }
        Bytes::copy_from_slice(&hasher.finalize().as_bytes()[..DIGEST_BYTES])
    }

    /// Of each node, the last commit that wrote a policy (SG42).
    #[must_use]
    pub fn commits(&self) -> &Counters {
        &self.commits
    }

    /// A number that grows whenever a policy changes.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Of each node, the last commit of a policy that may give a region something, or that deleted one: a clock that
    /// covers these is of a node that leaves out no more than it may (SG25). A policy that keeps names from the region
    /// does not count, as a node that lacks it leaves out less.
    #[must_use]
    pub fn commits_for(&self, region: &str) -> Counters {
        let mut commits = Counters::new();
        for (prefix, by) in &self.written_by {
            let policy = self.by_prefix.get(prefix.as_bytes());
            if policy.is_none_or(|policy| policy.regions().any(|of| of == region)) {
                let last = commits.entry(by.origin.clone()).or_default();
                *last = by.counter.max(*last);
            }
        }
        commits
    }

    /// The commit that wrote the policy of this very prefix, or deleted it (SG42).
    pub(crate) fn written_by(&self, prefix: &str) -> Option<&proto::WrittenBy> {
        self.written_by.get(prefix)
    }

    /// Of each prefix that has a policy, or had one, the commit that wrote or deleted it.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&str, &proto::WrittenBy)> {
        self.written_by.iter().map(|(prefix, by)| (&**prefix, by))
    }

    /// The policies, in the order of their prefixes.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.by_prefix.values()
    }

    /// The policy of a name: that of the longest prefix (SG21). `None`: the name is global. It costs a look-up
    /// for each policy whose prefix has a beginning in common with the name, in the worst case.
    #[must_use]
    pub fn policy_of(&self, name: &str) -> Option<&Policy> {
        let name = name.as_bytes();
        let mut upto = name;
        loop {
            let below = (Bound::Unbounded, Bound::Included(upto));
            let (prefix, policy) = self.by_prefix.range::<[u8], _>(below).next_back()?;
            if name.starts_with(prefix) {
                return Some(policy);
            }
            // All longer beginnings of the name are behind this prefix, and have no policy.
            let common = prefix.iter().zip(name).take_while(|(one, other)| one == other).count();
            upto = name.get(..common)?;
        }
    }

    /// The policy of a record; `None` if it is global. The store's own records are always global.
    #[must_use]
    pub fn of(&self, key: &RecordKey) -> Option<&Policy> {
        if self.by_prefix.is_empty() {
            return None;
        }
        let (type_url, name) = key.type_and_name();
        if is_configuration(type_url) { None } else { self.policy_of(name) }
    }

    /// The region that owns a record (SG24); `None` if it is global.
    #[must_use]
    pub fn owner_of(&self, key: &RecordKey) -> Option<&str> {
        self.of(key).map(Policy::owner)
    }

    /// The regions that have names with a beginning; `None`: each may, as some of the names are global.
    pub(crate) fn regions_of(&self, beginning: &str) -> Option<BTreeSet<&str>> {
        let of_all = self.policy_of(beginning)?;
        let below =
            self.by_prefix.range::<[u8], _>((Bound::Excluded(beginning.as_bytes()), Bound::Unbounded));
        let below = below.take_while(|(prefix, _)| prefix.starts_with(beginning.as_bytes()));
        let policies = [of_all].into_iter().chain(below.map(|(_, policy)| policy));
        Some(policies.flat_map(Policy::regions).collect())
    }

    /// Whether nodes of a region get the record from nodes of another region (SG25). Nodes of one region have
    /// the same.
    #[must_use]
    pub fn is_for(&self, key: &RecordKey, source: &str, target: &str) -> bool {
        let of_type = |policy: &Policy| policy.is_for(key.type_and_name().0, source, target);
        source == target || self.of(key).is_none_or(of_type)
    }

    /// Whether a region has the record: it is global, or the region owns it or has copies (SG25).
    pub(crate) fn keeps(&self, key: &RecordKey, region: &str) -> bool {
        let type_url = key.type_and_name().0;
        let has =
            |policy: &Policy| policy.owner() == region || policy.is_for(type_url, policy.owner(), region);
        self.of(key).is_none_or(has)
    }

    /// Whether a snapshot of a node of a region has the record for a node of another one: both regions have it, and the
    /// first one may give it to the second one. Its owner does not count: the entries that the snapshot stands for may
    /// be older than the policy (SG26).
    pub(crate) fn is_shared(&self, key: &RecordKey, source: &str, target: &str) -> bool {
        let is_of_both = || self.keeps(key, source) && self.keeps(key, target);
        source == target || (is_of_both() && self.is_for(key, source, target))
    }

    /// Whether a node of a region tells a node of another one of the record when they compare records: it is global, or
    /// of the region of the first one, and for that of the second one. Nodes of one region tell each other of all.
    #[must_use]
    pub fn is_told(&self, key: &RecordKey, source: &str, target: &str) -> bool {
        let of_source = |owner: &str| owner == source;
        source == target || (self.owner_of(key).is_none_or(of_source) && self.is_for(key, source, target))
    }

    /// Whether a record is a policy.
    #[must_use]
    pub fn is_policy(key: &RecordKey) -> bool {
        key.has_type(POLICY_TYPE)
    }

    /// Whether this payload is a policy that can be used.
    ///
    /// # Errors
    /// A region is no region or is there twice, a type is none of resources, or there are more than 256 items.
    pub fn check(payload: &[u8]) -> Result<(), BadPolicy> {
        Policy::parse("", payload).map(drop)
    }

    /// Those without the policy of this very prefix.
    pub(crate) fn without(&self, prefix: &str) -> Self {
        let mut others = self.clone();
        others.by_prefix.remove(prefix.as_bytes());
        others
    }

    /// Takes the state of a record, if it is a policy.
    pub fn note(&mut self, key: &RecordKey, state: &RecordState) {
        if !Self::is_policy(key) {
            return;
        }
        self.changes += 1;
        let prefix = key.type_and_name().1;
        if let Some(by) = &state.written_by {
            let last = self.commits.entry(by.origin.clone()).or_default();
            *last = by.counter.max(*last);
            self.written_by.insert(prefix.into(), by.clone());
        }
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted);
        // Neither a commit nor an entry brings a policy that cannot be used.
        let policy = content.and_then(|content| Policy::parse(prefix, &content.payload).ok());
        let author = state.written_by.as_ref().map(|by| by.region.as_str().into()).unwrap_or_default();
        match policy.map(|policy| Policy { author, ..policy }) {
            Some(policy) => _ = self.by_prefix.insert(prefix.as_bytes().into(), policy),
            None => _ = self.by_prefix.remove(prefix.as_bytes()),
        }
    }
}

/// A name of a region, which people write and options have.
fn check_region(field: &'static str, region: &str) -> Result<(), BadPolicy> {
    if is_region(region) {
        return Ok(());
    }
    let message =
        format!("{region:?} is no region: it has 1 to {REGION_LIMIT_BYTES} letters, digits, and . _ -");
    Err(BadPolicy { field, message })
}

/// Whether this can be the name of a region: 1 to 64 letters, digits, and `.`, `_` and `-`.
#[must_use]
pub fn is_region(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=REGION_LIMIT_BYTES).contains(&name.len()) && name.bytes().all(is_letter)
}

const DIGEST_BYTES: usize = 16;
const REGION_LIMIT_BYTES: usize = 64;
/// Of the regions and of the exceptions of a policy, each.
const ITEMS_LIMIT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(type_url: &str, name: &str) -> RecordKey {
        let key = proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() };
        RecordKey::parse(&key).unwrap()
    }

    fn policies(all: &[(&str, &str, &[&str])]) -> Policies {
        let mut policies = Policies::default();
        for (prefix, owner, regions) in all {
            note(&mut policies, prefix, &policy(owner, regions));
        }
        policies
    }

    fn policy(owner: &str, regions: &[&str]) -> proto::RegionPolicy {
        let regions = regions.iter().map(ToString::to_string).collect();
        proto::RegionPolicy { owner_region: owner.into(), regions, disabled: Vec::new() }
    }

    fn note(policies: &mut Policies, prefix: &str, policy: &proto::RegionPolicy) {
        let content = proto::Content { payload: policy.encode_to_vec().into(), ..Default::default() };
        let state = RecordState {
            lifecycle: proto::State::Live.into(),
            content: Some(content),
            ..Default::default()
        };
        policies.note(&key(POLICY_TYPE, prefix), &state);
    }

    #[test]
    fn sg21_the_longest_prefix_counts() {
        let mut policies = policies(&[("a/", "one", &[]), ("a/b/c", "two", &[]), ("a/b/", "three", &[])]);
        let owners = |policies: &Policies| {
            ["a/", "a/x", "a/b/d", "a/b/cd", "a/b", "b", "A/b", "a"]
                .map(|name| policies.owner_of(&key("t", name)).unwrap_or("-").to_owned())
        };
        assert_eq!(owners(&policies), ["one", "one", "three", "two", "one", "-", "-", "-"]);
        let mut deleted = RecordState::default();
        deleted.set_lifecycle(proto::State::Deleted);
        policies.note(&key(POLICY_TYPE, "a/b/"), &deleted);
        assert_eq!(owners(&policies), ["one", "one", "one", "two", "one", "-", "-", "-"]);
    }

    #[test]
    fn sg21_the_look_up_finds_what_a_walk_over_all_prefixes_finds() {
        fn found(prefixes: Vec<Vec<bool>>, name: Vec<bool>) -> bool {
            let text = |letters: &[bool]| -> String {
                letters.iter().map(|is_b| if *is_b { 'b' } else { '\u{e4}' }).collect()
            };
            let prefixes: Vec<_> = prefixes.iter().map(|prefix| text(prefix)).collect();
            let (mut policies, name) = (Policies::default(), text(&name));
            for prefix in prefixes.iter().filter(|prefix| !prefix.is_empty()) {
                note(&mut policies, prefix, &policy("one", &[]));
            }
            let longest = prefixes.iter().filter(|prefix| !prefix.is_empty() && name.starts_with(*prefix));
            let longest = longest.max_by_key(|prefix| prefix.len()).map(|prefix| &**prefix);
            policies.policy_of(&name).map(Policy::prefix) == longest
        }
        quickcheck::QuickCheck::new().tests(2_000).quickcheck(found as fn(_, _) -> _);
    }

    #[test]
    fn sg24_a_policy_owns_new_style_names_by_the_beginning_of_their_text() {
        let policies = policies(&[("xdstp://acme/t/eu/", "eu", &[])]);
        assert_eq!(policies.owner_of(&key("t", "xdstp://acme/t/eu/x")), Some("eu"));
        assert_eq!(policies.owner_of(&key("t", "xdstp://acme/t/us/x")), None);
    }

    #[test]
    fn sg25_records_are_for_the_owner_and_the_regions_of_the_policy_except_what_is_disabled() {
        let mut policies = policies(&[("a/", "eu", &["us", "ap"])]);
        let to = |policies: &Policies, type_url, name, source| {
            let key = key(type_url, name);
            ["eu", "us", "ap", "sa", ""].map(|target| policies.is_for(&key, source, target))
        };
        assert_eq!(to(&policies, "t", "a/x", "eu"), [true, true, true, false, false]);
        assert_eq!(to(&policies, "t", "global", "eu"), [true; 5]);
        assert_eq!(to(&policies, POLICY_TYPE, "a/x", "eu"), [true; 5]);
        let off = |type_url: &str, source_region: &str, target_region: &str| proto::DisabledSync {
            type_url: type_url.into(),
            source_region: source_region.into(),
            target_region: target_region.into(),
        };
        let disabled = vec![off("s", "", "us"), off("", "sa", "ap")];
        note(&mut policies, "a/", &proto::RegionPolicy { disabled, ..policy("eu", &["us", "ap"]) });
        assert_eq!(to(&policies, "s", "a/x", "eu"), [true, false, true, false, false]);
        assert_eq!(to(&policies, "t", "a/x", "eu"), [true, true, true, false, false]);
        assert_eq!(to(&policies, "t", "a/x", "sa"), [true, true, false, true, false]);
        // A region that keeps its own.
        assert_eq!(to(&policies, "s", "a/x", "us"), [true, true, true, false, false]);
    }

    #[test]
    fn sg21_policies_that_cannot_be_used_are_refused_by_their_fields() {
        let wrong =
            |policy: &proto::RegionPolicy| Policies::check(&policy.encode_to_vec()).map_err(|bad| bad.field);
        assert_eq!(wrong(&policy("eu", &["us"])), Ok(()));
        assert_eq!(wrong(&policy("", &[])), Err("owner_region"));
        assert_eq!(wrong(&policy("e u", &[])), Err("owner_region"));
        assert_eq!(wrong(&policy("eu", &["us", "us"])), Err("regions"));
        assert_eq!(wrong(&policy("eu", &["eu"])), Err("regions"));
        assert_eq!(wrong(&policy("eu", &[""])), Err("regions"));
        let disabled = |type_url: &str, target: &str| {
            let off = proto::DisabledSync {
                type_url: type_url.into(),
                target_region: target.into(),
                ..Default::default()
            };
            wrong(&proto::RegionPolicy { disabled: vec![off], ..policy("eu", &[]) })
        };
        assert_eq!(disabled("", ""), Ok(()));
        assert_eq!(disabled(POLICY_TYPE, ""), Err("disabled.type_url"));
        assert_eq!(disabled("t", "/"), Err("disabled.target_region"));
        assert_eq!(
            wrong(&proto::RegionPolicy { disabled: vec![Default::default(); 257], ..policy("eu", &[]) }),
            Err("disabled")
        );
        assert_eq!(Policies::check(&[0xff]).map_err(|bad| bad.field), Err(""));
    }
}
