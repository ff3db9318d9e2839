//! Why a set of variants is refused.

use std::fmt;
use std::sync::Arc;

use super::normal::TooComplex;
use crate::parameters::Parameters;

/// Why an edit was refused. The set is unchanged in every case, and whoever wrote the variants can
/// fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError<V> {
    /// T13, T14: both variants match the witness, so a client could get either.
    #[error("two variants match {}", Listed(witness))]
    Overlap {
        /// One variant; one that was there before, if it is one.
        first: V,
        /// A variant that was to be inserted.
        second: V,
        /// Parameters that both match; no key that neither names.
        witness: Parameters,
    },
    /// T12: the variants of a name must write down the same keys.
    #[error("two variants name different keys: only one has {only_first:?}, only the other {only_second:?}")]
    KeySets {
        /// One variant.
        first: V,
        /// Another one.
        second: V,
        /// Keys that only the first one names.
        only_first: Vec<Arc<str>>,
        /// Keys that only the second one names.
        only_second: Vec<Arc<str>>,
    },
    /// T17: no parameters can match the variant.
    #[error("no parameters can match the variant")]
    Unsatisfiable {
        /// The variant.
        variant: V,
    },
    /// The variant, or how it goes together with another one, is too entangled to be judged.
    #[error("the constraints cannot be judged: {reason}")]
    TooComplex {
        /// The variant.
        variant: V,
        /// How far the budget went.
        reason: TooComplex,
    },
}

/// Parameters as `key=value`, comma separated.
struct Listed<'a>(&'a Parameters);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("empty parameters");
        }
        for (at, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value:?}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
