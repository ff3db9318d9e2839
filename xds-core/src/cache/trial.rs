//! Content that a few streams try before the others see it.
//!
//! While a trial runs, streams read by [`Watch::read`]: those that try it see the newest state, the
//! others what was there before. That is an older snapshot, as any stream may read that is slow to
//! look, so nothing else is different for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::delivery::{Delivery, Ledger};
use super::interest::{Interest, RegisteredStream, Watch};
use super::snapshot::Snapshot;
use super::{Cache, Changed, lock};
use crate::name::Revision;
use crate::variants::Variants;

/// A trial that runs.
#[derive(Debug)]
pub(super) struct Trial {
    /// What the others see.
    before: Arc<Snapshot>,
    /// How many streams try each variant; zero when no more are picked.
    limit: usize,
    /// Those who try something, by the number of their stream.
    tried_by: BTreeMap<u64, Arc<Ledger>>,
    /// Those who looked meanwhile, and have to look again.
    waiting: BTreeMap<u64, Arc<RegisteredStream>>,
}

impl Cache {
    /// What is committed from now on is tried by so many streams of each variant.
    pub(crate) fn begin_trial(&self, limit: usize) {
        let before = self.snapshot();
        let (tried_by, waiting) = (BTreeMap::new(), BTreeMap::new());
        *lock(&self.trial) = Some(Trial { before, limit, tried_by, waiting });
        self.trials.fetch_add(1, Ordering::SeqCst);
    }

    /// All is committed: who tries it, and what becomes of that. `None` when nobody asks for it.
    pub(crate) fn tried(&self) -> Option<Delivery> {
        let mut trial = lock(&self.trial);
        let Trial { limit, tried_by, .. } = trial.as_mut()?;
        *limit = 0;
        (!tried_by.is_empty()).then(|| Delivery::of(self.snapshot().revision(), tried_by.values().cloned()))
    }

    /// The newest state, without content that only some streams try at the moment.
    pub(crate) fn accepted(&self) -> Arc<Snapshot> {
        match lock(&self.trial).as_ref() {
            Some(trial) => Arc::clone(&trial.before),
            None => self.snapshot(),
        }
    }

    /// Everybody sees the newest state.
    pub(crate) fn end_trial(&self) {
        let Some(Trial { waiting, .. }) = lock(&self.trial).take() else { return };
        self.trials.fetch_add(1, Ordering::SeqCst);
        waiting.values().for_each(|stream| stream.wake());
    }

    /// Picks who tries the variants of a commit, of those whom it concerns.
    pub(super) fn pick(
        &self,
        interest: &Interest,
        next: &Snapshot,
        changed: &Changed,
        concerned: &[Arc<Ledger>],
    ) {
        let mut trial = lock(&self.trial);
        let Some(Trial { limit, tried_by, .. }) = trial.as_mut().filter(|trial| trial.limit > 0) else {
            return;
        };
        for (type_url, variants) in changed {
            for (name, constraints) in variants {
                let is_there = |variants: &Variants| variants.get(constraints).is_some();
                if !next.get(type_url, name).is_some_and(is_there) {
                    continue;
                }
                let asking = interest.subscribers_to(type_url, name, constraints);
                let of_stream = |stream: &Arc<RegisteredStream>| {
                    let is_it = |ledger: &&Arc<Ledger>| {
                        Arc::ptr_eq(ledger.stream(), stream) && ledger.type_url() == type_url
                    };
                    concerned.iter().find(is_it)
                };
                let picked = asking.filter_map(of_stream).take(*limit);
                tried_by.extend(picked.map(|ledger| (ledger.stream().id, Arc::clone(ledger))));
            }
        }
    }

    /// What a stream may see while a trial runs.
    fn seen_by(&self, stream: &Arc<RegisteredStream>) -> Arc<Snapshot> {
        let mut trial = lock(&self.trial);
        match trial.as_mut() {
            Some(trial) if !trial.tried_by.contains_key(&stream.id) => {
                trial.waiting.insert(stream.id, Arc::clone(stream));
                Arc::clone(&trial.before)
            }
            _ => self.snapshot(),
        }
    }
}

impl Watch {
    /// Hands out the newest state that this stream may see, for a short time, as [`Cache::read`]
    /// does.
    pub fn read<R>(&self, look: impl FnOnce(&Snapshot) -> R) -> R {
        let cache = self.cache();
        // Odd while one runs. One that begins in between is noticed, as what it brings is stored
        // after its beginning.
        let trials = cache.trials.load(Ordering::SeqCst);
        if trials.is_multiple_of(2) {
            let snapshot = cache.snapshot.load();
            if cache.trials.load(Ordering::SeqCst) == trials {
                return look(&snapshot);
            }
        }
        look(&cache.seen_by(self.stream()))
    }

    /// The newest revision of that.
    pub(super) fn seen_revision(&self) -> Revision {
        self.read(Snapshot::revision)
    }
}
