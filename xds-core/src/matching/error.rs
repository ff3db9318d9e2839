//! Why a set of variants is refused.

use std::sync::Arc;

use super::normal::TooComplex;
use crate::parameters::Parameters;

/// Why an edit was refused. The set is unchanged in every case. The author of the variants can fix
/// it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError<V> {
    /// T13, T14: both variants match the witness, so a client could get either of them.
    #[error("two variants match the parameters {witness}")]
    Overlap {
        /// One variant. If one of the two was in the set before, it is this one.
        first: V,
        /// A variant to be inserted.
        second: V,
        /// Parameters that both variants match, with only keys that one of the two names.
        witness: Parameters,
    },
    /// T12: the variants of a name must name the same keys.
    #[error("two variants name different keys: only one has {only_first:?}, only the other {only_second:?}")]
    KeySets {
        /// One variant.
        first: V,
        /// Another variant.
        second: V,
        /// Keys that only the first variant names.
        only_first: Vec<Arc<str>>,
        /// Keys that only the second variant names.
        only_second: Vec<Arc<str>>,
    },
    /// T17: no parameters can match the variant.
    #[error("no parameters can match the variant")]
    Unsatisfiable {
        /// The variant.
        variant: V,
    },
    /// The variant, or its overlap with another one, needs more than the budget of a check.
    #[error("cannot check the constraints: {reason}")]
    TooComplex {
        /// The variant.
        variant: V,
        /// The budget and how much of it was used.
        reason: TooComplex,
    },
}
