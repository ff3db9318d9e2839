//! The one cache of all three doors: transactions in, immutable snapshots out.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use atomic_waker::AtomicWaker;

use crate::constraint::Constraints;
use crate::matching::{KeySetRule, SetError};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::{ExcludedAuthorities, Locator};
use crate::variants::{Variant, Variants};

use commits::CommitLog;
use interest::Interest;
use transaction::{Change, VariantChange};
use trial::Trial;

pub use commits::{CommitCounts, CommitEvent, CommitOutcome, Commits};
pub(crate) use delivery::{AckState, Ledger, Spans};
pub use delivery::{ClientName, Decided, Delivered, Delivery, Followed, Follower, Outcome};
pub(crate) use interest::{Membership, Position};
pub use interest::{Watch, Watched};
pub use on_demand::{LocatorStatus, OnDemandSubscription, OnDemandSubscriptions};
pub(crate) use snapshot::Removed;
pub use snapshot::{Snapshot, TypeSnapshot};
pub use transaction::{Commit, CommitError, Transaction};
pub(crate) use type_selection::TypeSelection;
pub(crate) use update::Update;

mod by_parameters;
mod class;
mod commits;
mod delivery;
mod dropped;
mod interest;
mod on_demand;
mod other_names;
mod readers;
mod snapshot;
mod transaction;
mod trial;
mod type_selection;
mod update;

/// Holds the resources and knows which streams want which of them.
///
/// Reading never waits for a writer. A commit costs O(changed variants x those who asked for them).
#[derive(Debug, Default)]
pub struct Cache {
    snapshot: ArcSwap<Snapshot>,
    writer: Mutex<Writer>,
    interest: Mutex<Interest>,
    key_sets: KeySetRule,
    commit_log: CommitLog,
    /// Who brings what is asked for.
    on_demand_waker: AtomicWaker,
    trial: Mutex<Option<Trial>>,
    /// How often one began or ended.
    trials: AtomicU64,
    epoch: OnceLock<Instant>,
}

/// What only commits need; its lock makes them one at a time.
#[derive(Debug, Default)]
struct Writer {
    /// Per type, how many removals it may remember before the next look at which are still needed.
    prune_above: BTreeMap<TypeUrl, usize>,
}

impl Cache {
    /// An empty cache that nothing was committed to (G13: everything counts as unknown, not as
    /// absent).
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The same with another rule for the keys that the variants of a name write down (T15). That
    /// no two of them match the same parameters cannot be relaxed.
    #[must_use]
    pub fn with_key_sets(key_sets: KeySetRule) -> Arc<Self> {
        Arc::new(Self { key_sets, ..Self::default() })
    }

    /// An empty cache whose source brings what is [asked for](Self::on_demand_subscriptions), as a proxy does.
    ///
    /// What it does not hold is unknown, not absent: until its source
    /// [sets the status](Transaction::set_status) of a locator, who asks for it waits, and what leaves the cache
    /// stays with those who have it. The variants of a name may name different keys (T34).
    #[must_use]
    pub fn on_demand() -> Arc<Self> {
        Self::on_demand_but(None)
    }

    /// The same, where no wildcard stands for some names (C16).
    #[must_use]
    pub fn on_demand_but(apart: Option<ExcludedAuthorities>) -> Arc<Self> {
        let cache = Self { key_sets: KeySetRule::Free, ..Self::default() };
        let snapshot = Snapshot::on_demand(apart);
        let mut interest = lock(&cache.interest);
        interest.begin_on_demand(snapshot.revision());
        drop(interest);
        cache.snapshot.store(Arc::new(snapshot));
        Arc::new(cache)
    }

    /// The moment from which the times of all who share this cache count, its sources and its
    /// streams alike, so that what one says of the end of a TTL the other can tell on. It is that
    /// of who asks first: each says what is now.
    pub fn epoch(&self, now: Instant) -> Instant {
        *self.epoch.get_or_init(|| now)
    }

    /// The newest state.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Hands out the newest state for a short time: without a count of its holders, which all who
    /// read it would write to. For long looks there is [`snapshot`](Self::snapshot).
    pub fn read<R>(&self, look: impl FnOnce(&Snapshot) -> R) -> R {
        look(&self.snapshot.load())
    }

    /// Makes the changes visible, all at once, and wakes the streams they concern.
    ///
    /// The first commit also says that what it does not bring does not exist (G13), so it counts
    /// even when it is empty; later ones that change nothing leave the revision as it is.
    ///
    /// # Errors
    /// See [`CommitError`]; the cache is then unchanged.
    pub fn commit(&self, transaction: Transaction) -> Result<Commit, CommitError> {
        let done = self.try_commit(transaction);
        if let Err(error) = &done {
            self.commit_log.refused(self.read(Snapshot::revision), error);
        }
        done
    }

    fn try_commit(&self, mut transaction: Transaction) -> Result<Commit, CommitError> {
        let (base, statuses) = (transaction.base, std::mem::take(&mut transaction.statuses));
        let changes = transaction.into_sorted()?;
        let mut writer = lock(&self.writer);
        let current = self.snapshot();
        if let Some(required) = base
            && required != current.revision()
        {
            return Err(CommitError::Superseded { required, actual: current.revision() });
        }
        let mut next = Snapshot::clone(&current);
        let changed = apply(changes, &mut next, current.revision().next(), self.key_sets)?;
        let status_changes = apply_statuses(statuses, &mut next, current.revision().next());
        if changed.is_empty() && status_changes.is_empty() && current.is_synced() {
            self.commit_log.unchanged();
            return Ok(Commit { revision: current.revision(), changed: 0, concerned: Arc::default() });
        }
        writer.forget_removals(&mut next, &changed, &lock(&self.interest));
        let revision = next.revision();
        let concerned = self.publish(&current, next, &changed, &status_changes).into();
        let count = changed.values().map(|variants| by_name(variants).count()).sum();
        let commit = Commit { revision, changed: count, concerned };
        self.commit_log.committed(&commit, &changed);
        Ok(commit)
    }

    /// Registers a stream: what it wants, and how it is woken.
    #[must_use]
    pub fn watch(self: &Arc<Self>) -> Arc<Watch> {
        Watch::new(Arc::clone(self))
    }

    /// How much its streams ask for; all zero when the last has ended. Costs a walk over the
    /// classes.
    #[must_use]
    pub fn watched(&self) -> Watched {
        lock(&self.interest).watched()
    }

    /// The same of each type that they ask for, whether or not there is anything of it.
    #[must_use]
    pub fn watched_by_type(&self) -> BTreeMap<TypeUrl, Watched> {
        lock(&self.interest)
            .watched_by_type()
            .map(|(type_url, watched)| (type_url.clone(), watched))
            .collect()
    }

    /// How many classes its streams form.
    #[cfg(test)]
    pub(crate) fn classes(&self) -> usize {
        lock(&self.interest).classes()
    }

    /// Marks, swaps and wakes; what those it concerns answer. A stream that registers meanwhile
    /// does so wholly before or wholly after.
    fn publish(
        &self,
        current: &Snapshot,
        next: Snapshot,
        changed: &Changed,
        status_changes: &[(TypeUrl, Locator)],
    ) -> Vec<Arc<Ledger>> {
        let (concerned, waiting) = {
            let mut interest = lock(&self.interest);
            let concerned = interest.mark(current, &next, changed);
            self.pick(&interest, &next, changed, &concerned);
            self.snapshot.store(Arc::new(next));
            (concerned, interest.subscribers_of(status_changes))
        };
        waiting.iter().for_each(|stream| stream.wake());
        for of_stream in concerned.chunk_by(|one, other| Arc::ptr_eq(one.stream(), other.stream())) {
            of_stream[0].stream().wake();
        }
        concerned
    }
}

impl Writer {
    /// Forgets removals that every stream has heard of; looks only when their number has doubled.
    fn forget_removals(&mut self, next: &mut Snapshot, changed: &Changed, interest: &Interest) {
        let revision = next.revision();
        for type_url in changed.keys() {
            let Some(resources) = next.edit(revision).get_mut(type_url) else { continue };
            let limit = self.prune_above.entry(type_url.clone()).or_insert(REMOVALS_BEFORE_FIRST_LOOK);
            // Those of this commit stay: a stream may join, and be answered, before the commit is
            // published.
            let before_this = Revision(revision.0 - 1);
            if !interest.has_streams(type_url) {
                resources.forget_removals(before_this, revision);
            }
            if resources.remembered_removals() <= *limit {
                continue;
            }
            let heard =
                interest.oldest_cursor(type_url).map_or(before_this, |cursor| cursor.min(before_this));
            resources.forget_removals(heard, revision);
            if resources.remembered_removals() > REMOVALS_LIMIT {
                resources.forget_removals(before_this, revision);
            }
            let remembered = resources.remembered_removals();
            *limit = (remembered * 2).clamp(REMOVALS_BEFORE_FIRST_LOOK, REMOVALS_LIMIT.max(remembered));
        }
    }
}

/// The variants that came, went or have another content, by type; those of a name stand together.
type Changed = BTreeMap<TypeUrl, Vec<(ResourceName, Constraints)>>;

/// Each name with its changed variants.
fn by_name(
    changed: &[(ResourceName, Constraints)],
) -> impl Iterator<Item = (&ResourceName, &[(ResourceName, Constraints)])> {
    let of_name = changed.chunk_by(|(one, _), (other, _)| one == other);
    of_name.map(|variants| (&variants[0].0, variants))
}

/// Edits the snapshot; what changed.
fn apply(
    changes: BTreeMap<TypeUrl, Vec<VariantChange>>,
    next: &mut Snapshot,
    revision: Revision,
    key_sets: KeySetRule,
) -> Result<Changed, CommitError> {
    let types = next.edit(revision);
    let mut changed = Changed::new();
    for (type_url, mut of_type) in changes {
        if !types.contains_key(&type_url)
            && of_type.iter().all(|change| matches!(change.change, Change::Remove))
        {
            continue;
        }
        share_names(&mut of_type, types);
        let resources = types.entry(type_url.clone()).or_default();
        let variants = edit(of_type, resources, revision, key_sets);
        let variants = variants.map_err(|error| CommitError::of_set(&type_url, error))?;
        if !variants.is_empty() {
            changed.insert(type_url, variants);
        }
    }
    for (type_url, variants) in &changed {
        let resources = &types[type_url];
        by_name(variants).try_for_each(|(name, _)| check_aliases(type_url, name, resources))?;
    }
    Ok(changed)
}

/// Notes what the source says of locators; those of which it says something else than before.
fn apply_statuses(
    statuses: Vec<(TypeUrl, Locator, Option<LocatorStatus>)>,
    next: &mut Snapshot,
    revision: Revision,
) -> Vec<(TypeUrl, Locator)> {
    let mut changed = Vec::new();
    for (type_url, locator, status) in statuses {
        let types = next.edit(revision);
        if status.is_none() && !types.contains_key(&type_url) {
            continue;
        }
        let of_type = types.entry(type_url.clone()).or_default();
        if of_type.set_status(&locator, status) {
            // Clients choose which types are asked for, and each that stays costs every commit.
            if of_type.is_blank() {
                types.remove(&type_url);
            }
            changed.push((type_url, locator));
        }
    }
    changed
}

/// Of many routes to one cluster none needs a string of its own.
fn share_names(changes: &mut [VariantChange], types: &BTreeMap<TypeUrl, TypeSnapshot>) {
    for VariantChange { change, .. } in changes {
        if let Change::Put(resource) = change {
            resource.references.share(|target, name| types.get(target.type_url())?.known_name(name));
        }
    }
}

/// Edits the resources of one type; what changed.
fn edit(
    changes: Vec<VariantChange>,
    resources: &mut TypeSnapshot,
    revision: Revision,
    key_sets: KeySetRule,
) -> Result<Vec<(ResourceName, Constraints)>, SetError<Arc<Variant>>> {
    let mut changed = Vec::new();
    let mut changes = changes.into_iter().peekable();
    while let Some(change) = changes.next() {
        let name = change.name.clone();
        // All changes of one name are judged together.
        let others = std::iter::from_fn(|| changes.next_if(|other| other.name == name));
        let variants = resources.edit(&name, std::iter::once(change).chain(others), revision, key_sets)?;
        changed.extend(variants.into_iter().map(|constraints| (name.clone(), constraints)));
    }
    Ok(changed)
}

/// D24: who asks by an alias gets one resource.
fn check_aliases(
    type_url: &TypeUrl,
    name: &ResourceName,
    resources: &TypeSnapshot,
) -> Result<(), CommitError> {
    let has = |name: &ResourceName, alias: &ResourceName| {
        let mut variants = resources.get(name).into_iter().flat_map(Variants::iter);
        variants.any(|variant| name == alias || variant.aliases().contains(alias))
    };
    // Of a glob there may be many.
    let aliases = resources.others_of(name).iter().filter(|alias| has(name, alias));
    for alias in aliases.chain(Some(name).filter(|name| resources.get(name).is_some())) {
        let mut others = resources.asked_by(alias).filter(|other| *other != name && has(other, alias));
        if let Some(other) = others.next() {
            let (type_url, alias) = (type_url.clone(), alias.clone());
            return Err(CommitError::AliasTaken {
                type_url,
                alias,
                first: other.clone(),
                second: name.clone(),
            });
        }
    }
    Ok(())
}

/// No code panics while it holds one of our locks, so what a poisoned lock guards is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Below this weight of remembered removals nobody looks which can be forgotten.
const REMOVALS_BEFORE_FIRST_LOOK: usize = 4096;

/// Weight of the removals of one type that are remembered at most. A stream that missed more than
/// these is ended and has to compare in full when it comes back, so a client that stopped reading
/// costs a bounded amount of memory.
const REMOVALS_LIMIT: usize = 1 << 18;

#[cfg(test)]
mod tests;
