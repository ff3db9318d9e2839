//! The TTLs of the resources of one type (S38 to S40).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::snapshot::NameMap;
use crate::hash::empty_map;
use crate::name::ResourceName;
use crate::variants::{Variant, Variants};

/// The TTLs of all variants of one type. Most types have none.
#[derive(Debug, Clone)]
pub(crate) struct Ttls {
    /// Names that have a variant with a TTL.
    names: NameMap<()>,
    /// Each TTL with its number of variants.
    counts: Arc<BTreeMap<Duration, usize>>,
}

impl Ttls {
    /// The shortest one; `None` when no variant has one.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.counts.keys().next().copied()
    }

    /// The names that have a variant with a TTL.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.keys()
    }

    /// Counts the TTLs after a commit replaced the variants `removed` of a name by the variants
    /// `inserted`. The name has the variants `present` now.
    pub(super) fn count(
        &mut self,
        name: &ResourceName,
        removed: &[Arc<Variant>],
        inserted: &[Arc<Variant>],
        present: Option<&Variants>,
    ) {
        if removed.iter().chain(inserted).all(|variant| variant.ttl().is_none()) {
            return;
        }
        let counts = Arc::make_mut(&mut self.counts);
        for ttl in inserted.iter().filter_map(|variant| variant.ttl()) {
            *counts.entry(ttl).or_default() += 1;
        }
        for ttl in removed.iter().filter_map(|variant| variant.ttl()) {
            let count = counts.get_mut(&ttl).expect("the TTL of a variant is counted");
            *count -= 1;
            if *count == 0 {
                counts.remove(&ttl);
            }
        }
        let is_timed = |variants: &Variants| variants.iter().any(|variant| variant.ttl().is_some());
        match present.is_some_and(is_timed) {
            true => self.names.insert_mut(name.clone(), ()),
            false => _ = self.names.remove_mut(name),
        }
    }
}

impl Default for Ttls {
    fn default() -> Self {
        Self { names: empty_map(), counts: Arc::default() }
    }
}
