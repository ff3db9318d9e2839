//! The boolean tree of constraints, and how it matches parameters (T6-T8).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::parameters::Parameters;

/// A condition on parameters, as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Formula {
    /// The key exists and has exactly this value (T6, T10).
    Equals {
        /// The key.
        key: Arc<str>,
        /// The value. The empty string is a value like any other.
        value: Arc<str>,
    },
    /// The key exists, with any value (T6).
    Exists {
        /// The key.
        key: Arc<str>,
    },
    /// All parts hold. Without parts it is true (T7).
    All(Vec<Self>),
    /// At least one part holds. Without parts it is false (T7).
    Any(Vec<Self>),
    /// The part does not hold.
    Not(Box<Self>),
}

impl Formula {
    /// Whether the parameters satisfy it. Keys that it does not name make no difference (T5).
    #[must_use]
    pub fn matches(&self, parameters: &Parameters) -> bool {
        match self {
            Self::Equals { key, value } => parameters.get(key) == Some(value),
            Self::Exists { key } => parameters.get(key).is_some(),
            Self::All(parts) => parts.iter().all(|part| part.matches(parameters)),
            Self::Any(parts) => parts.iter().any(|part| part.matches(parameters)),
            Self::Not(part) => !part.matches(parameters),
        }
    }

    /// Every key that occurs in it, even if it makes no difference (T12).
    #[must_use]
    pub fn keys(&self) -> BTreeSet<&Arc<str>> {
        let mut keys = BTreeSet::new();
        self.collect_keys(&mut keys);
        keys
    }

    fn collect_keys<'a>(&'a self, keys: &mut BTreeSet<&'a Arc<str>>) {
        match self {
            Self::Equals { key, .. } | Self::Exists { key } => {
                keys.insert(key);
            }
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.collect_keys(keys)),
            Self::Not(part) => part.collect_keys(keys),
        }
    }
}
