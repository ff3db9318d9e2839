//! The names of all types in order. The cache does not keep them in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use xds_core::{ResourceName, Revision, Snapshot, TypeUrl};

/// Computed on request, and kept until the cache has another revision. Costs a pointer per name.
#[derive(Debug, Default)]
pub(super) struct SortedNames(Mutex<Option<Arc<Sorted>>>);

/// The names at one revision.
#[derive(Debug)]
pub(super) struct Sorted {
    revision: Revision,
    pub(super) types: BTreeMap<TypeUrl, Vec<ResourceName>>,
}

impl SortedNames {
    /// The names of a snapshot. A second request at the same time waits for the first.
    pub(super) fn of(&self, snapshot: &Snapshot) -> Arc<Sorted> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(sorted) if sorted.revision == snapshot.revision() => Arc::clone(sorted),
            _ => Arc::clone(kept.insert(Arc::new(Sorted::of(snapshot)))),
        }
    }
}

impl Sorted {
    fn of(snapshot: &Snapshot) -> Self {
        let names = |type_url| {
            let all = snapshot.of_type(type_url).into_iter().flat_map(|of_type| of_type.iter());
            let mut names: Vec<_> = all.map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names
        };
        let types = snapshot.counts().map(|(type_url, _)| (type_url.clone(), names(type_url)));
        Self { revision: snapshot.revision(), types: types.collect() }
    }
}
