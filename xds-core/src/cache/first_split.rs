//! Clients that reject the same response: the first one finds what is bad, the others wait for it (S6d).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Watch, lock};
use crate::name::{ResourceName, TypeUrl};

/// The splits that others wait for, by type. Dead ones leave when the next one begins.
#[derive(Debug, Default)]
pub(crate) struct FirstSplits(Mutex<BTreeMap<TypeUrl, Vec<Weak<FirstSplit>>>>);

/// The split of the client that rejected these names first. When its owner drops it, what can be found
/// is found, and the streams that wait are woken.
#[derive(Debug)]
pub(crate) struct FirstSplit {
    names: BTreeSet<ResourceName>,
    /// The streams that wait, by number.
    waiting: Mutex<BTreeMap<u64, Weak<Watch>>>,
}

/// Whose split of a rejected response goes first.
#[derive(Debug)]
pub(crate) enum SplitTurn {
    /// This one. The split keeps it while it runs.
    First(#[expect(dead_code, reason = "the others wait until it is dropped")] Arc<FirstSplit>),
    /// Another client's. It is dead when that one has ended.
    After(Weak<FirstSplit>),
    /// Nobody waits for this one, and it waits for nobody.
    Own,
}

impl FirstSplits {
    /// The client of a stream rejected these names. If another one already looks for what is bad among
    /// them, it goes first.
    pub(crate) fn begin(
        &self,
        type_url: &TypeUrl,
        names: BTreeSet<ResourceName>,
        watch: &Arc<Watch>,
    ) -> SplitTurn {
        let mut types = lock(&self.0);
        types.retain(|_, of_type| {
            of_type.retain(|first| first.strong_count() > 0);
            !of_type.is_empty()
        });
        let of_type = types.entry(type_url.clone()).or_default();
        for weak in &*of_type {
            // If it is dropped here, this stream is woken, too.
            let Some(first) = weak.upgrade() else { continue };
            if first.names.is_superset(&names) {
                lock(&first.waiting).insert(watch.id(), Arc::downgrade(watch));
                return SplitTurn::After(Weak::clone(weak));
            }
        }
        if of_type.len() >= LIMIT {
            return SplitTurn::Own;
        }
        let first = Arc::new(FirstSplit { names, waiting: Mutex::default() });
        of_type.push(Arc::downgrade(&first));
        SplitTurn::First(first)
    }
}

impl Drop for FirstSplit {
    fn drop(&mut self) {
        let waiting = std::mem::take(self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner));
        for watch in waiting.into_values().filter_map(|watch| watch.upgrade()) {
            watch.wake();
        }
    }
}

/// How many splits of a type others may wait for.
const LIMIT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cache;
    use crate::server::fixture::type_url;

    fn names(names: &[&str]) -> BTreeSet<ResourceName> {
        names.iter().map(|name| ResourceName::from(*name)).collect()
    }

    #[test]
    fn s6d_who_rejects_the_same_names_waits_for_the_first_until_it_has_ended() {
        let (cache, splits, eds) = (Cache::new(), FirstSplits::default(), type_url("EDS"));
        let watches: Vec<_> = (0..3).map(|_| cache.watch()).collect();
        let is_woken = |at: usize| {
            let context = std::task::Context::from_waker(std::task::Waker::noop());
            watches[at].poll_woken(&context).is_ready()
        };
        let first = splits.begin(&eds, names(&["a", "b"]), &watches[0]);
        assert!(matches!(first, SplitTurn::First(_)));
        let SplitTurn::After(other) = splits.begin(&eds, names(&["b"]), &watches[1]) else { panic!() };
        // What the first one does not have, it cannot find. Another type is another matter.
        let of_other_names = splits.begin(&eds, names(&["b", "c"]), &watches[2]);
        assert!(matches!(of_other_names, SplitTurn::First(_)));
        let of_other_type = splits.begin(&type_url("RDS"), names(&["b"]), &watches[2]);
        assert!(matches!(of_other_type, SplitTurn::First(_)));
        assert!(other.strong_count() > 0 && !is_woken(1));
        drop(first);
        assert!(other.strong_count() == 0 && is_woken(1) && !is_woken(2));
        assert!(matches!(splits.begin(&eds, names(&["b"]), &watches[1]), SplitTurn::After(_)), "b, c");
        drop(of_other_names);
        assert!(matches!(splits.begin(&eds, names(&["b"]), &watches[1]), SplitTurn::First(_)));
    }

    #[test]
    fn s6d_more_splits_than_others_may_wait_for_go_on_their_own() {
        let (cache, splits, eds) = (Cache::new(), FirstSplits::default(), type_url("EDS"));
        let watch = cache.watch();
        let one_of = |at: usize| splits.begin(&eds, names(&[&format!("n{at}")]), &watch);
        let first: Vec<_> = (0..LIMIT).map(one_of).collect();
        assert!(first.iter().all(|turn| matches!(turn, SplitTurn::First(_))));
        assert!(matches!(one_of(LIMIT), SplitTurn::Own));
        drop(first);
        assert!(matches!(one_of(LIMIT), SplitTurn::First(_)));
    }
}
