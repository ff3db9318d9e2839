//! Migrations: a plan maps records of an old form to a new one, in phases.
//!
//! ```text
//! F0 <-> F1 <-> F2 <-> F3
//! ```
//!
//! | phase | write | read |
//! | --- | --- | --- |
//! | F0 | old | old |
//! | F1 | old and new | old |
//! | F2, F3 | old and new | new, else old |
//!
//! Only an operator changes a phase, one step at a time, and each step can be taken back (SV14, SV27).

pub use converter::{Convert, ConvertError, Converter};
pub use plan::{Plan, PlanError, PlanSpec};
pub(crate) use position::PassPosition;
pub(crate) use record::{PhaseRecord, Phases};
pub use step::PhaseStep;

mod converter;
mod names;
mod plan;
mod position;
mod record;
mod step;

/// How far a plan is. A store without a record of the plan is in F0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The plan has not begun.
    F0,
    /// Each write changes both forms. Nobody sees the new form.
    F1,
    /// Both forms are read.
    F2,
    /// As F2. Records that nobody writes are copied.
    F3,
}

/// The two forms of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The form that the plan migrates from.
    Old,
    /// The form that the plan migrates to.
    New,
}

impl Phase {
    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::F0 => 0,
            Self::F1 => 1,
            Self::F2 => 2,
            Self::F3 => 3,
        }
    }

    /// The phase with this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        [Self::F0, Self::F1, Self::F2, Self::F3].into_iter().find(|phase| phase.number() == number)
    }

    /// Whether writes change both forms.
    #[must_use]
    pub fn writes_both(self) -> bool {
        self != Self::F0
    }

    /// Whether the new form can be read and written.
    #[must_use]
    pub fn shows_new(self) -> bool {
        matches!(self, Self::F2 | Self::F3)
    }
}
