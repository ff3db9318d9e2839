//! One commit: what was requested, and what becomes of it (ST8).
//!
//! | stage | module |
//! | --- | --- |
//! | 1 form and size | `form`; `forget` for nodes that are forgotten |
//! | 2 rights | `rights` |
//! | 3 region | `region` |
//! | 4 conditions | `condition` |
//! | 5 schema version | `schema`; `forms` and `mirror` for records that are migrated |
//! | 6 owners | `owner`; `owning` for those that are records |
//! | 7 ambiguity | `ambiguity`, `aliases` |
//! | 8 references | `reference`, `reread`; to other authorities `authority`; to other regions `across` |
//! | | for further records `cascade`, `collect`, `drain`, `rewrite` |
//! | 9 size of the result | `effect`, and the store, which adds the limits of the engine |
//!
//! `shown` says what clients get where states do not say it, and `held` which deleted records they get.
//!
//! No stage judges what the store does itself: records end (`ending`), and entries of other nodes are
//! merged (`merging`).

pub(crate) use across::{Needs, TargetState};
pub(crate) use ambiguity::check as check_ambiguity;
pub(crate) use copy::Copied;
pub use effect::{ChangeResult, Effect};
pub(crate) use effect::{Judged, Judging};
pub(crate) use ending::expiry;
pub use form::{CommitLimits, Draft};
pub(crate) use forms::Forms;
pub(crate) use held::{held, held_of};
pub(crate) use merging::MergedEntry;
pub(crate) use owning::ForeignOwner;
pub(crate) use refused::Limit;
pub use refused::{RefusalCode, Refused};
pub(crate) use reread::reread;
pub use rights::WriteAccess;
pub(crate) use shown::{Shown, drained, hidden, shown, without_aliases};

mod across;
mod aliases;
mod ambiguity;
mod apart;
mod authority;
mod cascade;
mod ceiling;
mod changed;
mod collect;
mod condition;
mod copy;
mod drain;
mod effect;
mod ending;
mod forget;
mod form;
mod forms;
mod held;
mod merging;
mod mirror;
mod owner;
mod owning;
mod phase;
mod reference;
mod refused;
mod region;
mod reread;
mod rewrite;
mod rights;
mod schema;
mod shown;
