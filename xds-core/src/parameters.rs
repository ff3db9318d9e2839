//! What a subscription says about its client (T2).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The dynamic parameters of one subscription: keys with values, compared byte for byte (T10).
///
/// Clones are shared.
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
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parameters(Arc<BTreeMap<Arc<str>, Arc<str>>>);

impl Parameters {
    /// No parameters at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a key; `None` when the key is absent, which differs from the empty value (T6).
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        self.0.get(key)
    }

    /// The keys in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter()
    }

    /// The same without the keys that the filter refuses.
    #[must_use]
    pub fn project(&self, mut is_kept: impl FnMut(&str) -> bool) -> Self {
        if self.iter().all(|(key, _)| is_kept(key)) {
            return self.clone();
        }
        let kept = self.iter().filter(|(key, _)| is_kept(key));
        kept.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As `key=value`, comma separated, values quoted; no parameters are `{}`.
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

/// A key given twice has the value that was given last, as in a protobuf map (T9).
impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(Arc::new(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()))
    }
}
