//! Why parameters get a variant, or none: what `xds resolve` and the admin page tell.
//!
//! [`VariantSet::explain`](crate::VariantSet::explain) tells which keys decided. [`near_miss`]
//! tells of a variant that some parameters do not get what they lack, and [`rows`] draw whom it is
//! for.

pub use near_miss::{Condition, NearMiss, near_miss};
pub use table::{Row, rows};

mod near_miss;
mod table;
