//! Contents that clients rejected alone, for all streams of a cache (S6d).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Snapshot, lock};
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::variants::Variant;

/// Contents that some client rejected in a response of their own. Other clients get them after the rest,
/// each in a response of its own, so that only the first client of a fleet has to find them.
#[derive(Debug, Default)]
pub(crate) struct RejectedContents {
    count: AtomicUsize,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    by_type: BTreeMap<TypeUrl, Arc<RejectedOfType>>,
    /// Oldest first.
    order: VecDeque<(TypeUrl, ResourceName, Constraints)>,
}

/// Those of one type. Another one after each change, so that what is made from it can be shared.
#[derive(Debug, Default, Clone)]
pub(crate) struct RejectedOfType(BTreeMap<(ResourceName, Constraints), Version>);

impl RejectedContents {
    /// A client rejected this content alone. The newest content of a variant counts: a late NACK, of what is
    /// not in the `view` of the client any more, changes nothing.
    pub(crate) fn note(&self, view: &Snapshot, type_url: &TypeUrl, variant: &Variant) {
        let newest = view.get(type_url, variant.name()).and_then(|of| of.get(variant.constraints()));
        if newest.is_none_or(|newest| newest.version() != variant.version()) {
            return;
        }
        let mut list = lock(&self.list);
        let List { by_type, order } = &mut *list;
        let of_type = by_type.entry(type_url.clone()).or_default();
        let key = (variant.name().clone(), variant.constraints().clone());
        if of_type.0.get(&key) == Some(&variant.version()) {
            return;
        }
        if Arc::make_mut(of_type).0.insert(key.clone(), variant.version()).is_none() {
            order.push_back((type_url.clone(), key.0, key.1));
        }
        if order.len() > LIMIT
            && let Some((type_url, name, constraints)) = order.pop_front()
            && let Some(of_type) = by_type.get_mut(&type_url)
        {
            Arc::make_mut(of_type).0.remove(&(name, constraints));
            if of_type.0.is_empty() {
                by_type.remove(&type_url);
            }
        }
        self.count.store(order.len(), Ordering::Release);
    }

    /// The contents of a type; `None` without any.
    pub(crate) fn of_type(&self, type_url: &TypeUrl) -> Option<Arc<RejectedOfType>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.list).by_type.get(type_url).cloned()
    }
}

impl RejectedOfType {
    /// Whether exactly this content was rejected.
    pub(crate) fn has(&self, variant: &Variant) -> bool {
        let key = (variant.name().clone(), variant.constraints().clone());
        self.0.get(&key) == Some(&variant.version())
    }

    /// Those that `find` has, in order. Costs O(contents of the type).
    pub(crate) fn found<'v>(
        &self,
        find: impl Fn(&ResourceName, &Constraints) -> Option<&'v Arc<Variant>>,
    ) -> impl Iterator<Item = &'v Arc<Variant>> {
        self.0.iter().filter_map(move |((name, constraints), version)| {
            find(name, constraints).filter(|variant| variant.version() == *version)
        })
    }
}

/// S6d: how many contents are kept. The oldest ones are forgotten; then a client finds them again.
const LIMIT: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cache;
    use crate::server::fixture::{commit, type_url};

    #[test]
    fn s6d_the_newest_content_of_a_variant_counts_and_the_oldest_ones_are_forgotten() {
        let (cache, rejected) = (Cache::new(), RejectedContents::default());
        let eds = type_url("EDS");
        let content = |name: &str| {
            let snapshot = cache.snapshot();
            let variant = snapshot.get(&eds, &name.into()).unwrap().get(&Constraints::NONE).unwrap();
            Arc::clone(variant)
        };
        commit(&cache, "EDS a=1");
        let first = content("a");
        rejected.note(&cache.snapshot(), &eds, &first);
        assert!(rejected.of_type(&eds).unwrap().has(&first) && rejected.of_type(&type_url("CDS")).is_none());
        commit(&cache, "EDS a=2");
        rejected.note(&cache.snapshot(), &eds, &content("a"));
        let of_type = rejected.of_type(&eds).unwrap();
        assert!(of_type.has(&content("a")) && !of_type.has(&first));
        rejected.note(&cache.snapshot(), &eds, &first);
        assert!(rejected.of_type(&eds).unwrap().has(&content("a")), "a late NACK");
        for at in 0..LIMIT {
            commit(&cache, &format!("EDS n{at}=1"));
            rejected.note(&cache.snapshot(), &eds, &content(&format!("n{at}")));
        }
        let of_type = rejected.of_type(&eds).unwrap();
        assert_eq!((of_type.0.len(), of_type.has(&content("a"))), (LIMIT, false));
    }
}
