//! What a server knows of schema versions, and migrations: a plan maps records of an old form to a new one, in phases.
//!
//! ```text
//! F0 <-> F1 <-> F2 <-> F3 <-> F4 <-> F5
//! ```
//!
//! | phase | write | read |
//! | --- | --- | --- |
//! | F0 | old | old |
//! | F1 | old and new | old |
//! | F2, F3 | old and new | new, else old |
//! | F4, F5 | new | new |
//!
//! Only an operator changes a phase, one step at a time, and each step can be taken back (SV14, SV27).
//! In F3 and F5, and on the way back in F2 and F0, the store works through all records of the plan in the
//! background ([`Store::passes`](crate::store::Store::passes)).
//!
//! ```
//! use xds_store::commit::Draft;
//! use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
//!
//! let plan = Plan::new(PlanSpec {
//!     number: 1,
//!     name: "new-names".into(),
//!     from_type: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(),
//!     from_names: vec!["shop-*".into()],
//!     to_type: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(),
//!     to_name: "xdstp://acme/envoy.config.cluster.v3.Cluster/{name}".into(),
//!     to_version: "2.0".parse()?,
//!     up: Converter::Identity,
//!     down: Converter::Identity,
//!     heartbeat: false,
//!     rewrite_references: false,
//! })?;
//! // The schemas of `store::Config`: all servers of the store have the same plans.
//! let schemas = Schemas::default().with_plans(vec![plan])?;
//! // A commit that begins the migration, for `store::Event::Commit`.
//! let begin = Draft::set_phase(PhaseStep { plan: 1, from: Phase::F0, to: Phase::F1 }, "operator".into(), false);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;

pub use ceiling::Ceiling;
pub use converter::{Convert, ConvertError, Converter};
pub(crate) use live::{LEASE, LiveServer, LiveServers};
pub use peers::{PeerPhases, PhaseGap};
pub use plan::{Plan, PlanError, PlanSpec};
pub(crate) use position::PassPosition;
pub(crate) use record::{PhaseRecord, Phases, Taking};
pub use schemas::{SchemaError, Schemas};
pub use step::PhaseStep;
pub(crate) use step::StepTime;

use crate::key::RecordKey;
use crate::record::{PROBE_TYPE, RecordRevision, RecordState};

mod ceiling;
mod converter;
mod live;
mod names;
mod peers;
mod plan;
mod position;
mod record;
mod schemas;
mod step;
mod variant;

/// Whether a record is one of the store's own, which users do not write.
pub(crate) fn is_own(key: &RecordKey) -> bool {
    key.starts_with(OWN)
        && (PhaseRecord::plan(key).is_some() || Ceiling::is_key(key) || LiveServer::is_key(key))
}

/// Whether a record is of this store alone: its own ones, and those of probes. Other nodes do not get it
/// (SR5).
pub(crate) fn is_local(key: &RecordKey) -> bool {
    is_own(key) || key.has_type(PROBE_TYPE)
}

const OWN: &str = "type.googleapis.com/xds.store.v1.";

/// How far a plan is. A store without a record of the plan is in F0. Shown as `F2 (serves both forms)`.
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
    /// Only the new form is written. Readers of the old form get it converted.
    F4,
    /// The old form cannot be written. Old records are removed.
    F5,
}

/// Which record of a resource counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The resource does not exist.
    Nothing,
    /// The old one. A new one is missing, outdated, or not read in this phase.
    Old,
    /// They belong together.
    Both,
    /// The new one, which is newer than an old one.
    New,
}

/// The stamp of a new record that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// The revision of the old record that exists.
    Current,
    /// Another revision.
    Outdated,
    /// It has none: it was written in F4 or F5.
    Missing,
}

impl Stamp {
    /// That of a new record that exists, beside the old one, if that exists.
    pub(crate) fn of(old: Option<&RecordState>, new: &RecordState) -> Self {
        let is_current = |old: &RecordState| new.mirror_of == RecordRevision::of(old).to_string();
        match old {
            _ if new.mirror_of.is_empty() => Self::Missing,
            Some(old) if is_current(old) => Self::Current,
            Some(_) | None => Self::Outdated,
        }
    }
}

impl Counts {
    /// SV17, SV25: of these records, which exist.
    pub(crate) fn of(phase: Phase, has_old: bool, new: Option<Stamp>) -> Self {
        match (phase, has_old, new) {
            (Phase::F0 | Phase::F1, true, _) => Self::Old,
            (Phase::F0 | Phase::F1, false, _) => Self::Nothing,
            (Phase::F4 | Phase::F5, _, Some(_)) => Self::New,
            (Phase::F4 | Phase::F5, _, None) => Self::Nothing,
            (Phase::F2 | Phase::F3, true, Some(Stamp::Current)) => Self::Both,
            (Phase::F2 | Phase::F3, _, Some(Stamp::Missing)) => Self::New,
            (Phase::F2 | Phase::F3, true, Some(Stamp::Outdated) | None) => Self::Old,
            (Phase::F2 | Phase::F3, false, Some(Stamp::Current | Stamp::Outdated) | None) => Self::Nothing,
        }
    }
}

/// The two forms of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The form that the plan migrates from.
    Old,
    /// The form that the plan migrates to.
    New,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "F{} ({})", self.number(), self.name())
    }
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
            Self::F4 => 4,
            Self::F5 => 5,
        }
    }

    /// The phase with this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        [Self::F0, Self::F1, Self::F2, Self::F3, Self::F4, Self::F5]
            .into_iter()
            .find(|phase| phase.number() == number)
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F0 => "not begun",
            Self::F1 => "writes both forms",
            Self::F2 => "serves both forms",
            Self::F3 => "copies",
            Self::F4 => "writes the new form",
            Self::F5 => "new form only",
        }
    }

    /// What clients of xDS get (SV29), for people.
    #[must_use]
    pub fn clients_get(self) -> &'static str {
        match self {
            Self::F0 | Self::F1 => "the old form",
            Self::F2 | Self::F3 => "both forms",
            Self::F4 => "both forms, the old one converted from the new one",
            Self::F5 => "the new form",
        }
    }

    /// Whether writes change both forms.
    #[must_use]
    pub fn writes_both(self) -> bool {
        matches!(self, Self::F1 | Self::F2 | Self::F3)
    }

    /// Whether the new form can be read and written.
    #[must_use]
    pub fn shows_new(self) -> bool {
        !matches!(self, Self::F0 | Self::F1)
    }

    /// Whether old records are not read any more.
    #[must_use]
    pub fn ignores_old(self) -> bool {
        matches!(self, Self::F4 | Self::F5)
    }

    /// Whether clients of xDS get something else in these phases although no record changed.
    pub(crate) fn serves_as(self, other: Self) -> bool {
        let served = |phase: Self| (phase.shows_new(), phase.ignores_old(), phase == Self::F5);
        served(self) == served(other)
    }
}
