//! New content that a few streams try before the others see it.
//!
//! Streams read the cache with [`Watch::read`]. While a trial runs, the streams that try it see the
//! newest state, and the others see the snapshot from before the trial. Any slow stream may read an
//! older snapshot, so nothing else is different for the others.

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
    /// The snapshot that the other streams see.
    before: Arc<Snapshot>,
    /// How many streams try each variant; zero after [`Cache::tried`].
    limit: usize,
    /// The ledgers of the streams that try something, by the id of the stream.
    tried_by: BTreeMap<u64, Arc<Ledger>>,
    /// The streams that read the old snapshot during the trial, by their id. They are woken when it
    /// ends.
    waiting: BTreeMap<u64, Arc<RegisteredStream>>,
}

impl Cache {
    /// Begins a trial: of each variant that is committed from now on, `limit` streams see the new
    /// content.
    pub(crate) fn begin_trial(&self, limit: usize) {
        let before = self.snapshot();
        let (tried_by, waiting) = (BTreeMap::new(), BTreeMap::new());
        *lock(&self.trial) = Some(Trial { before, limit, tried_by, waiting });
        self.trials.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the commits of a trial. Returns the delivery to the streams that try them; `None` when
    /// no stream selects any of the content.
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

    /// Ends a trial: all streams see the newest state.
    pub(crate) fn end_trial(&self) {
        let Some(Trial { waiting, .. }) = lock(&self.trial).take() else { return };
        self.trials.fetch_add(1, Ordering::SeqCst);
        waiting.values().for_each(|stream| stream.wake());
    }

    /// Picks the streams that try the variants of a commit, from those that the commit affects.
    pub(super) fn pick_for_trial(
        &self,
        interest: &Interest,
        next: &Snapshot,
        changed: &Changed,
        affected: &[Arc<Ledger>],
    ) {
        let mut trial = lock(&self.trial);
        let Some(Trial { limit, tried_by, .. }) = trial.as_mut().filter(|trial| trial.limit > 0) else {
            return;
        };
        for (type_url, variants) in changed {
            for (name, constraints) in variants {
                let is_present = |variants: &Variants| variants.get(constraints).is_some();
                if !next.get(type_url, name).is_some_and(is_present) {
                    continue;
                }
                let subscribers = interest.subscribers_to(type_url, name, constraints);
                let of_stream = |stream: &Arc<RegisteredStream>| {
                    let is_it = |ledger: &&Arc<Ledger>| {
                        Arc::ptr_eq(ledger.stream(), stream) && ledger.type_url() == type_url
                    };
                    affected.iter().find(is_it)
                };
                let picked = subscribers.filter_map(of_stream).take(*limit);
                tried_by.extend(picked.map(|ledger| (ledger.stream().id, Arc::clone(ledger))));
            }
        }
    }

    /// The snapshot that a stream sees while a trial runs.
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
    /// Reads, for a short time, the newest state that this stream may see, as [`Cache::read`] does.
    pub fn read<R>(&self, look: impl FnOnce(&Snapshot) -> R) -> R {
        let cache = self.cache();
        // The count is odd while a trial runs. The second load notices a trial that began in
        // between: its content is stored after its beginning.
        let trials = cache.trials.load(Ordering::SeqCst);
        if trials.is_multiple_of(2) {
            let snapshot = cache.snapshot.load();
            if cache.trials.load(Ordering::SeqCst) == trials {
                return look(&snapshot);
            }
        }
        look(&cache.seen_by(self.stream()))
    }

    /// The newest revision that this stream may see.
    pub(super) fn seen_revision(&self) -> Revision {
        self.read(Snapshot::revision)
    }
}
