//! Filters of lists and watches.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use xds_core::{NamePatterns, XdstpName};
use xds_proto::xds::store::v1 as proto;

use crate::key::{RecordKey, is_configuration, stored};
use crate::phase::{Form, Plan};
use crate::record::{RecordState, named_owners};
use crate::region::Policies;

/// Selects records. Everything that is set has to match.
#[derive(Debug, Clone)]
pub struct Filter {
    type_urls: BTreeSet<String>,
    /// `None`: all names.
    names: Option<NamePatterns>,
    /// As in `names`, for the ranges of keys.
    patterns: Vec<String>,
    owner: String,
    labels: std::collections::BTreeMap<String, String>,
    states: BTreeSet<proto::State>,
    region: String,
    digest: [u8; 16],
}

/// Why a filter is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A type or a name is empty.
    #[error("filter.{0} has an empty text")]
    Empty(&'static str),
    /// Deleted records are in history and events, and not in lists.
    #[error("filter.states: deleted records cannot be selected")]
    State,
    /// A list in the filter is too long.
    #[error("filter.{field} has {found} entries, more than the limit of {limit}")]
    TooMany {
        /// The list.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

impl Filter {
    /// The filter of a message.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn parse(filter: Option<proto::Filter>) -> Result<Self, FilterError> {
        let filter = filter.unwrap_or_default();
        let digest = blake3::hash(&filter.encode_to_vec());
        let digest = *digest.as_bytes().first_chunk().expect("a hash has 32 bytes");
        let lists = [
            ("type_urls", filter.type_urls.len()),
            ("names", filter.names.len()),
            ("labels", filter.labels.len()),
            ("states", filter.states.len()),
        ];
        for (field, found) in lists {
            if found > ENTRIES_LIMIT {
                return Err(FilterError::TooMany { field, found, limit: ENTRIES_LIMIT });
            }
        }
        for (field, list) in [("type_urls", &filter.type_urls), ("names", &filter.names)] {
            if list.iter().any(String::is_empty) {
                return Err(FilterError::Empty(field));
            }
        }
        let states = filter.states.iter().map(|state| proto::State::try_from(*state));
        let states = states.collect::<Result<BTreeSet<_>, _>>().map_err(|_| FilterError::State)?;
        if states.contains(&proto::State::Deleted) || states.contains(&proto::State::Unspecified) {
            return Err(FilterError::State);
        }
        let patterns: Vec<_> = filter.names.into_iter().map(canonical).collect();
        Ok(Self {
            type_urls: filter.type_urls.into_iter().collect(),
            names: (!patterns.is_empty()).then(|| patterns.iter().collect()),
            patterns,
            owner: filter.owner,
            labels: filter.labels,
            states,
            region: filter.region,
            digest,
        })
    }

    /// Equal filters have equal digests.
    #[must_use]
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }

    /// Whether a key matches, with these policies. Configuration records match only by their type (ST55).
    #[must_use]
    pub fn matches_key(&self, key: &RecordKey, policies: &Policies) -> bool {
        let type_url = key.type_url();
        let is_type = match self.type_urls.is_empty() {
            true => !is_configuration(type_url.as_str()),
            false => self.type_urls.contains(type_url.as_str()),
        };
        is_type
            && self.names.as_ref().is_none_or(|names| names.matches(&key.name()))
            && (self.region.is_empty() || policies.owner_of(key) == Some(&*self.region))
    }

    /// Whether records of a form of a plan may match: by the type, and the names if all of them are whole.
    pub(super) fn can_match(&self, plan: &Plan, form: Form) -> bool {
        let type_url = plan.type_url(form);
        let of_type = self.type_urls.is_empty() || self.type_urls.contains(type_url);
        let is_whole = |name: &String| !name.contains('*');
        let has_name = |name: &String| plan.has_name(form, type_url, name);
        let names = &self.patterns;
        of_type && (names.is_empty() || !names.iter().all(is_whole) || names.iter().any(has_name))
    }

    /// Whether the state of a record with a matching key matches. A deleted one never does.
    #[must_use]
    pub fn matches(&self, state: &RecordState) -> bool {
        let shown = super::answer::shown_state(state);
        let is_state = match self.states.is_empty() {
            true => shown != proto::State::Deleted,
            false => self.states.contains(&shown),
        };
        let labels = state.content.as_ref().map(|content| &content.labels);
        let has_label = |(key, value): (&String, &String)| labels.and_then(|of| of.get(key)) == Some(value);
        is_state
            && (self.owner.is_empty() || named_owners(state).any(|owner| owner == self.owner))
            && self.labels.iter().all(has_label)
    }

    /// Ranges of stored keys that have all matching ones, in order and disjoint, behind a key.
    pub(super) fn ranges(&self, after: Option<&RecordKey>) -> Vec<(Bytes, Bytes)> {
        let mut prefixes = Vec::new();
        let is_by_name = (1..=RANGES_LIMIT).contains(&(self.type_urls.len() * self.patterns.len()));
        for type_url in &self.type_urls {
            if !is_by_name {
                prefixes.push(stored_prefix(&[type_url, "\0"]));
            }
            let patterns = self.patterns.iter().filter(|_| is_by_name);
            prefixes.extend(patterns.map(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => stored_prefix(&[type_url, "\0", prefix]),
                None => stored_prefix(&[type_url, "\0", pattern, "\0"]),
            }));
        }
        if self.type_urls.is_empty() {
            prefixes.push(stored_prefix(&[]));
        }
        prefixes.sort_unstable();
        // A prefix before another one that begins with it covers it.
        prefixes.dedup_by(|later, earlier| later.starts_with(earlier));
        let start = after.map(stored::after);
        let ranges = prefixes.into_iter().map(|from| {
            let to = stored::end_of(&from);
            (start.clone().filter(|start| *start > from).unwrap_or(from), to)
        });
        ranges.filter(|(from, to)| from < to).collect()
    }
}

/// A whole new-style name in its canonical text; patterns and other names as they are.
fn canonical(name: String) -> String {
    match XdstpName::of(&name) {
        Ok(Some(new_style)) if !name.ends_with('*') => new_style.canonical().as_str().to_owned(),
        _ => name,
    }
}

fn stored_prefix(parts: &[&str]) -> Bytes {
    let mut prefix = BytesMut::from(stored::RECORDS.0);
    parts.iter().for_each(|part| prefix.put_slice(part.as_bytes()));
    prefix.freeze()
}

/// The longest list in a filter.
const ENTRIES_LIMIT: usize = 1_000;
/// With more pairs of types and names, a list reads all names of the types.
const RANGES_LIMIT: usize = 1_000;
