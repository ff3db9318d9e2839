//! The dynamic parameters of a subscription, which describe its client (T2).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::hash::{constant_hash, digest};

/// The dynamic parameters of one subscription: keys with values, compared byte for byte (T10).
///
/// Clones share memory. The pairs are in one list, because there are few keys. The order compares a
/// digest first, because many parameter sets differ in few of their values; so it has no meaning.
///
/// ```
/// use xds_core::Parameters;
///
/// let parameters = Parameters::from_iter([("env", "prod"), ("version", "")]);
/// assert_eq!(parameters.get("env").map(AsRef::as_ref), Some("prod"));
/// // Present and empty is not absent.
/// assert!(parameters.get("version").is_some() && parameters.get("zone").is_none());
/// assert_eq!(parameters.project(|key| key == "env"), Parameters::from_iter([("env", "prod")]));
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Parameters {
    digest: u64,
    /// Sorted by key, each key once.
    pairs: Arc<[Pair]>,
}

type Pair = (Arc<str>, Arc<str>);

impl Parameters {
    /// No parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a key; `None` when the key is absent. An empty value is not absent (T6).
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        if self.pairs.len() <= LINEAR_KEYS {
            return self.pairs.iter().find(|(mine, _)| **mine == *key).map(|(_, value)| value);
        }
        let at = self.pairs.binary_search_by(|(mine, _)| (**mine).cmp(key)).ok()?;
        Some(&self.pairs[at].1)
    }

    /// The keys in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.pairs.iter().map(|(key, value)| (key, value))
    }

    /// The same parameters without the keys for which `is_kept` is false.
    #[must_use]
    pub fn project(&self, mut is_kept: impl FnMut(&str) -> bool) -> Self {
        if self.iter().all(|(key, _)| is_kept(key)) {
            return self.clone();
        }
        let kept = self.iter().filter(|(key, _)| is_kept(key));
        kept.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
    }

    /// The same parameters with one more key, [`WHOLE`], whose value is a digest of all of them.
    /// Constraints on this key match exactly these parameters.
    pub(crate) fn bound(&self) -> Self {
        let mut all = Vec::new();
        for text in self.iter().flat_map(|(key, value)| [key, value]) {
            all.extend_from_slice(&(text.len() as u64).to_be_bytes());
            all.extend_from_slice(text.as_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&all);
        let whole = (Arc::from(WHOLE), Arc::from(format!("{:032x}", digest(&hasher))));
        let own = self.iter().map(|(key, value)| (Arc::clone(key), Arc::clone(value)));
        std::iter::once(whole).chain(own).collect()
    }

    /// The same parameters without that key.
    pub(crate) fn unbound(&self) -> Self {
        self.project(|key| key != WHOLE)
    }

    /// The pairs without the key [`WHOLE`].
    pub(crate) fn own(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.iter().filter(|(key, _)| ***key != *WHOLE)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

impl Ord for Parameters {
    fn cmp(&self, other: &Self) -> Ordering {
        let is_same = || Arc::ptr_eq(&self.pairs, &other.pairs);
        let by_pairs = || if is_same() { Ordering::Equal } else { self.pairs.cmp(&other.pairs) };
        self.digest.cmp(&other.digest).then_with(by_pairs)
    }
}

impl PartialOrd for Parameters {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Parameters {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Not the digest: a peer can choose parameters with equal digests, because its seed is
        // constant.
        self.pairs.hash(state);
    }
}

/// As `key="value"`, separated by commas. No parameters are `{}`.
impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("{}");
        }
        for (at, (key, value)) in self.iter().enumerate() {
            write!(f, "{}{key}={value:?}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// For a key that occurs twice the last value counts, as in a protobuf map (T9).
impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.into()));
        let mut pairs: Vec<Pair> = pairs.collect();
        if pairs.is_empty() {
            return Self::default();
        }
        if !pairs.is_sorted_by(|(left, _), (right, _)| left < right) {
            // The sort is stable: after the reversal, the last value of each key comes first and is
            // kept.
            pairs.reverse();
            pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
            pairs.dedup_by(|(left, _), (right, _)| left == right);
        }
        Self { digest: constant_hash(&pairs), pairs: pairs.into() }
    }
}

/// The key of [bound](Parameters::bound) parameters. It cannot come from a peer, because keys with
/// control characters are refused (W2).
pub(crate) const WHOLE: &str = "\u{0}";

/// Up to this many keys are compared one by one: nearly always their lengths differ, or their text
/// is in the CPU's cache.
const LINEAR_KEYS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t9_of_a_key_given_twice_the_last_value_counts() {
        for keys in [3, 40] {
            let twice = (0..2 * keys).rev().map(|at| (format!("k{:02}", at % keys), at.to_string()));
            let parameters = Parameters::from_iter(twice);
            let expected = (0..keys).map(|at| (format!("k{at:02}"), at.to_string()));
            assert_eq!(parameters, Parameters::from_iter(expected));
            assert_eq!(parameters.len(), keys);
            assert_eq!(parameters.get("k02").map(AsRef::as_ref), Some("2"));
            assert_eq!((parameters.get("k"), parameters.get("k99")), (None, None));
        }
    }
}
