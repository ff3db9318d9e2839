//! Why parameters get a variant, or none. `xds resolve` and the admin page show it.
//!
//! [`VariantSet::explain`](crate::VariantSet::explain) returns the keys that decided. If parameters
//! do not match a variant, [`near_miss`] returns what they lack. [`rows`] returns the clients of a
//! variant as a table.

pub use near_miss::{Condition, NearMiss, near_miss};
pub use table::{Row, rows};

mod near_miss;
mod table;
