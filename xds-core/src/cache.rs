//! The cache of the server, the client and the proxy. Sources commit transactions; readers take
//! immutable snapshots.

use std::borrow::Cow;
use std::collections::BTreeMap;
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
use first_split::FirstSplits;
use interest::Interest;
use on_demand::SubscriptionIndex;
use rejected::RejectedContents;
use transaction::{Change, VariantChange};
use views::Views;

pub use audience::{Audience, AudienceError};
pub use candidate::Candidate;
pub use commits::{ChangedVariant, CommitCounts, CommitEvent, CommitOutcome, Commits, VARIANTS_LISTED};
pub(crate) use delivery::{AckState, Ledger, RejectedRevisions, Spans};
pub use delivery::{
    ClientName, ClientOutcome, DECIDE_WITHIN, Delivery, FollowedCommit, Follower, NAMES_LISTED, Outcome,
    StreamOutcome,
};
pub(crate) use first_split::SplitTurn;
pub(crate) use interest::{Membership, Position};
pub use interest::{SubscriptionCounts, Watch};
pub use on_demand::{LocatorStatus, OnDemandSubscription, OnDemandSubscriptions};
pub use plan::{RequestedRollout, RolloutPlan};
pub(crate) use rejected::RejectedOfType;
pub(crate) use removals::Removed;
pub use snapshot::{Snapshot, TypeSnapshot};
pub use source::Source;
pub use transaction::{Commit, CommitError, CommitOrigin, Transaction};
pub(crate) use type_selection::TypeSelection;
pub(crate) use update::{LEFT_OUT_LIMIT, Update};
pub(crate) use views::ViewId;

mod audience;
mod by_parameters;
mod candidate;
mod class;
mod clients_of;
mod commits;
mod delivery;
mod dropped;
mod first_split;
mod id_set;
mod interest;
mod on_demand;
mod other_names;
mod plan;
mod readers;
mod referrers;
mod rejected;
mod removals;
mod snapshot;
mod source;
mod transaction;
mod ttls;
mod type_selection;
mod update;
mod views;

/// Holds the resources, and an index of the streams that select them.
///
/// Reading never waits for a writer. A commit costs O(changed variants x streams that select them).
#[derive(Debug, Default)]
pub struct Cache {
    snapshot: ArcSwap<Snapshot>,
    writer: Mutex<Writer>,
    interest: Mutex<Interest>,
    key_sets: KeySetRule,
    commit_log: CommitLog,
    /// Wakes the source of a cache on demand when subscriptions change.
    on_demand_waker: AtomicWaker,
    /// What the streams see that try a candidate.
    views: Mutex<Views>,
    rejected: RejectedContents,
    first_splits: FirstSplits,
    epoch: OnceLock<Instant>,
}

/// State that only commits use. Its lock lets one commit run at a time.
#[derive(Debug, Default)]
struct Writer {
    /// For each type, the weight of remembered removals above which the next commit checks which of
    /// them are still needed.
    prune_above: BTreeMap<TypeUrl, usize>,
    /// The newest revision, of the stable state or of a view. No revision is used twice.
    newest: Revision,
}

impl Cache {
    /// An empty cache without a commit. Until the first commit every resource is unknown, not
    /// absent (G13).
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// As [`new`](Self::new), with another rule for the keys that the constraints of the variants
    /// of a name must use (T15). The rule that no two variants match the same parameters cannot be
    /// relaxed.
    #[must_use]
    pub(crate) fn with_key_sets(key_sets: KeySetRule) -> Arc<Self> {
        Arc::new(Self { key_sets, ..Self::default() })
    }

    /// An empty cache whose source loads only resources that streams
    /// [subscribe to](Self::on_demand_subscriptions), as a proxy does.
    ///
    /// A resource that is not in this cache is unknown, not absent. Streams that subscribe to it
    /// wait until the source commits it or [sets the status](Transaction::set_status) of their
    /// locator. When a resource leaves the cache, clients keep it until the status of their locator
    /// is [`Complete`](LocatorStatus::Complete). The constraints of the variants of a name may use
    /// different keys (T34).
    #[must_use]
    pub fn on_demand() -> Arc<Self> {
        Self::indexed_by(SubscriptionIndex::default(), None)
    }

    /// As [`on_demand`](Self::on_demand), but the source is reported one locator of those that get the same
    /// variants, until it [asks for more](OnDemandSubscriptions::list_all). A wildcard does not select names of the
    /// `excluded` authorities (C16).
    pub(crate) fn on_demand_in_groups(excluded: Option<ExcludedAuthorities>) -> Arc<Self> {
        Self::indexed_by(SubscriptionIndex::grouped(), excluded)
    }

    fn indexed_by(index: SubscriptionIndex, excluded: Option<ExcludedAuthorities>) -> Arc<Self> {
        let interest = Mutex::new(Interest::on_demand(index));
        let cache = Self { key_sets: KeySetRule::Free, interest, ..Self::default() };
        cache.snapshot.store(Arc::new(Snapshot::on_demand(excluded)));
        Arc::new(cache)
    }

    /// The splits that other streams wait for (S6d).
    pub(crate) fn first_splits(&self) -> &FirstSplits {
        &self.first_splits
    }

    /// Contents that clients rejected alone (S6d).
    pub(crate) fn rejected(&self) -> &RejectedContents {
        &self.rejected
    }

    /// The moment at which the clock of this cache is zero. Sources and streams of this cache
    /// measure time from it, so that a stream can use the end of a TTL which a source computed. The
    /// first call sets it to its own `now`; later calls return that moment.
    pub fn epoch(&self, now: Instant) -> Instant {
        *self.epoch.get_or_init(|| now)
    }

    /// The newest state.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Reads the newest state for a short time. This does not change the reference count of the
    /// snapshot, which all readers would contend for. To read for longer, take a
    /// [`snapshot`](Self::snapshot).
    pub fn read<R>(&self, look: impl FnOnce(&Snapshot) -> R) -> R {
        look(&self.snapshot.load())
    }

    /// Makes all changes visible at once, and wakes the streams that they affect.
    ///
    /// After the first commit, a resource that is not in the cache counts as absent (G13). So the
    /// first commit makes a new revision even when it is empty. A later commit that changes nothing
    /// keeps the revision.
    ///
    /// # Errors
    /// See [`CommitError`]; the cache is then unchanged.
    pub fn commit(&self, transaction: Transaction) -> Result<Commit, CommitError> {
        let origin = Arc::clone(&transaction.origin);
        let done = self.try_commit(transaction);
        if let Err(error) = &done {
            self.commit_log.refused(self.read(Snapshot::revision), error, origin);
        }
        done
    }

    fn try_commit(&self, mut transaction: Transaction) -> Result<Commit, CommitError> {
        let (base, statuses) = (transaction.base, std::mem::take(&mut transaction.statuses));
        let origin = Arc::clone(&transaction.origin);
        let mut writer = lock(&self.writer);
        let current = self.snapshot();
        transaction.resolve(&current);
        let changes = transaction.into_sorted()?;
        if let Some(required) = base
            && required != current.revision()
        {
            return Err(CommitError::Superseded { required, actual: current.revision() });
        }
        let mut next = Snapshot::clone(&current);
        let revision = writer.next_revision(&current);
        let for_views = self.has_views().then(|| (changes.clone(), statuses.clone()));
        let (changed, has_reasons) = apply(changes, &mut next, revision, self.key_sets)?;
        let status_changes = apply_statuses(statuses, &mut next, revision);
        if changed.is_empty() && !has_reasons && status_changes.is_empty() && current.has_commit() {
            self.commit_log.unchanged();
            let (variants, affected) = (Arc::default(), Arc::default());
            return Ok(Commit { revision: current.revision(), changed: 0, variants, affected });
        }
        next.origin = Arc::clone(&origin);
        writer.forget_removals(&mut next, &changed, &lock(&self.interest));
        let mut steps = self.follow(&mut writer, for_views, &next, &changed);
        let of_step = Cow::Borrowed(&changed);
        steps.push(Step { current: Arc::clone(&current), next, changed: of_step, refusal: None });
        let affected = self.publish(&mut writer, steps, &status_changes).into();
        let count = changed.values().map(|variants| by_name(variants).count()).sum();
        let commit = Commit { revision, changed: count, variants: Arc::default(), affected };
        self.commit_log.committed(&commit, &changed, (&current, &self.snapshot()), origin);
        Ok(Commit { variants: Arc::new(changed), ..commit })
    }

    /// Notes whether the source lacks changes, and does not know which, as a store that takes a snapshot
    /// from another one. Meanwhile streams keep what they have, and what they subscribe to is unknown:
    /// they are answered afterwards (G13). A cache [on demand](Self::on_demand) has no such state.
    pub fn set_outdated(&self, is_outdated: bool) {
        let mut writer = lock(&self.writer);
        let current = self.snapshot();
        if current.is_outdated == is_outdated {
            return;
        }
        let states: Vec<_> = lock(&self.views).snapshots().chain([Arc::clone(&current)]).collect();
        if is_outdated || !current.has_commit() {
            // A stream joins a class under this lock.
            let _interest = lock(&self.interest);
            for state in states {
                let mut next = Snapshot::clone(&state);
                next.is_outdated = is_outdated;
                match next.view() {
                    ViewId::STABLE => self.snapshot.store(Arc::new(next)),
                    _ => lock(&self.views).store(next, None),
                }
            }
        } else {
            let revision = writer.next_revision(&current);
            let step = |current: Arc<Snapshot>| {
                let next = current.up_to_date(revision);
                Step { current, next, changed: Cow::Owned(Changed::new()), refusal: None }
            };
            let affected = self.publish(&mut writer, states.into_iter().map(step).collect(), &[]).into();
            // Readers of commits wait for this: now it is known what exists.
            let commit = Commit { revision, changed: 0, variants: Arc::default(), affected };
            self.commit_log.committed(&commit, &Changed::new(), (&current, &current), Arc::default());
        }
    }

    /// Registers a stream, so that commits can wake it.
    #[must_use]
    pub fn watch(self: &Arc<Self>) -> Arc<Watch> {
        Watch::new(Arc::clone(self))
    }

    /// How many streams, classes and names there are; all are zero after the last stream has ended.
    /// Costs O(classes).
    #[must_use]
    pub fn subscription_counts(&self) -> SubscriptionCounts {
        lock(&self.interest).subscription_counts()
    }

    /// As [`subscription_counts`](Self::subscription_counts), for each type that streams subscribe
    /// to, also types without resources.
    #[must_use]
    pub fn subscription_counts_by_type(&self) -> BTreeMap<TypeUrl, SubscriptionCounts> {
        lock(&self.interest)
            .subscription_counts_by_type()
            .map(|(type_url, watched)| (type_url.clone(), watched))
            .collect()
    }

    /// How many selection classes there are.
    #[cfg(test)]
    pub(crate) fn classes(&self) -> usize {
        lock(&self.interest).classes()
    }

    /// Records the changes in the classes that they affect, makes the next snapshots visible, and
    /// wakes the affected streams. Returns the ledgers of these streams.
    ///
    /// The lock on the index makes this one step: a stream that joins a class meanwhile joins
    /// before the commit or after it.
    fn publish(
        &self,
        writer: &mut Writer,
        steps: Vec<Step<'_>>,
        status_changes: &[(TypeUrl, Locator)],
    ) -> Vec<Arc<Ledger>> {
        writer.newest = steps.iter().map(|step| step.next.revision()).max().unwrap_or(writer.newest);
        let ended = steps.iter().filter(|step| step.next.has_ended() && !step.current.has_ended());
        let ended: Vec<_> = ended.map(|step| step.next.view()).collect();
        let (affected, waiting) = {
            let mut interest = lock(&self.interest);
            let mut affected = Vec::new();
            for Step { current, next, changed, refusal } in steps {
                affected.extend(interest.mark(&current, &next, &changed));
                match next.view() {
                    ViewId::STABLE => {
                        if let Some(index) = &mut interest.subscriptions {
                            index.follow_keys(&next, &self.on_demand_waker);
                        }
                        self.snapshot.store(Arc::new(next));
                    }
                    _ => lock(&self.views).store(next, refusal),
                }
            }
            (affected, interest.subscribers_of(status_changes))
        };
        waiting.iter().for_each(|stream| stream.wake());
        for stream in ended.into_iter().flat_map(|id| lock(&self.views).streams_of_ended(id)) {
            stream.wake();
        }
        for of_stream in affected.chunk_by(|one, other| Arc::ptr_eq(one.stream(), other.stream())) {
            of_stream[0].stream().wake();
        }
        affected
    }
}

/// The commit of one view.
struct Step<'c> {
    current: Arc<Snapshot>,
    next: Snapshot,
    changed: Cow<'c, Changed>,
    /// Why the cache ends the candidate of the view with this commit.
    refusal: Option<CommitError>,
}

impl Writer {
    /// The revision of the next commit, which needs `current`, the stable state, to know where a
    /// cache began.
    fn next_revision(&self, current: &Snapshot) -> Revision {
        self.newest.max(current.revision()).next()
    }

    /// Forgets removals that every stream has seen. Checks this only when the weight of the
    /// remembered removals has doubled since the last check.
    fn forget_removals(&mut self, next: &mut Snapshot, changed: &Changed, interest: &Interest) {
        let revision = next.revision();
        for type_url in changed.keys() {
            let Some(resources) = next.edit(revision).get_mut(type_url).map(Arc::make_mut) else { continue };
            let limit = self.prune_above.entry(type_url.clone()).or_insert(REMOVALS_BEFORE_FIRST_LOOK);
            // Keep the removals of this commit: a stream may join and get its first response before
            // the commit is published.
            let before_this = Revision(revision.0 - 1);
            if !interest.has_streams(type_url) {
                resources.forget_removals(before_this, revision);
            }
            if resources.removals().weight() <= *limit {
                continue;
            }
            let seen_by_all =
                interest.oldest_cursor(type_url).map_or(before_this, |cursor| cursor.min(before_this));
            resources.forget_removals(seen_by_all, revision);
            if resources.removals().weight() > REMOVALS_LIMIT {
                resources.forget_removals(before_this, revision);
            }
            let remembered = resources.removals().weight();
            *limit = (remembered * 2).clamp(REMOVALS_BEFORE_FIRST_LOOK, REMOVALS_LIMIT.max(remembered));
        }
    }
}

/// Variants that a commit added, changed or removed, by type. The variants of a name are adjacent.
type Changed = BTreeMap<TypeUrl, Vec<(ResourceName, Constraints)>>;

/// Groups changed variants by name.
fn by_name(
    changed: &[(ResourceName, Constraints)],
) -> impl Iterator<Item = (&ResourceName, &[(ResourceName, Constraints)])> {
    let of_name = changed.chunk_by(|(one, _), (other, _)| one == other);
    of_name.map(|variants| (&variants[0].0, variants))
}

/// Applies the changes to the next snapshot. Returns the variants that changed.
fn apply(
    changes: BTreeMap<TypeUrl, Vec<VariantChange>>,
    next: &mut Snapshot,
    revision: Revision,
    key_sets: KeySetRule,
) -> Result<(Changed, bool), CommitError> {
    let types = next.edit(revision);
    let (mut changed, mut has_reasons) = (Changed::new(), false);
    for (type_url, mut of_type) in changes {
        if !types.contains_key(&type_url)
            && of_type.iter().all(|change| matches!(change.change, Change::Remove))
        {
            continue;
        }
        share_names(&mut of_type, types);
        let resources = Arc::make_mut(types.entry(type_url.clone()).or_default());
        has_reasons |= resources.note_reasons(&of_type);
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
    Ok((changed, has_reasons))
}

/// Stores the statuses that the source sets. Returns the locators whose status changed.
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
        let of_type = Arc::make_mut(types.entry(type_url.clone()).or_default());
        if of_type.set_status(&locator, status) {
            // Clients choose the types, and each stored type costs every commit. So do not keep a
            // type without content.
            if of_type.is_blank() {
                types.remove(&type_url);
            }
            changed.push((type_url, locator));
        }
    }
    changed
}

/// Lets references share the string of the resource that they name: many routes may name one
/// cluster.
fn share_names(changes: &mut [VariantChange], types: &BTreeMap<TypeUrl, Arc<TypeSnapshot>>) {
    for VariantChange { change, .. } in changes {
        if let Change::Put(resource) = change {
            resource.references.share(|target, name| types.get(target.type_url())?.known_name(name));
        }
    }
}

/// Applies the changes of one type. Returns the variants that changed.
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
        // The rules for variants (T15, T17) hold for the result of all changes of a name.
        let others = std::iter::from_fn(|| changes.next_if(|other| other.name == name));
        let variants = resources.edit(&name, std::iter::once(change).chain(others), revision, key_sets)?;
        changed.extend(variants.into_iter().map(|constraints| (name.clone(), constraints)));
    }
    Ok(changed)
}

/// Checks that a name and each of its aliases belong to one resource only (D24).
fn check_aliases(
    type_url: &TypeUrl,
    name: &ResourceName,
    resources: &TypeSnapshot,
) -> Result<(), CommitError> {
    let has = |name: &ResourceName, alias: &ResourceName| {
        let mut variants = resources.get(name).into_iter().flat_map(Variants::iter);
        variants.any(|variant| name == alias || variant.aliases().contains(alias))
    };
    // A glob is one of the other names too, but many resources may be members of it.
    let aliases = resources.other_names().of(name).iter().filter(|alias| has(name, alias));
    for alias in aliases.chain(Some(name).filter(|name| resources.get(name).is_some())) {
        let mut others = resources.selected_by(alias).filter(|other| *other != name && has(other, alias));
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

/// Locks also a poisoned mutex: no code panics while it holds one of our locks, so the data is
/// consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Below this weight of remembered removals of a type, no commit checks which of them are still
/// needed.
const REMOVALS_BEFORE_FIRST_LOOK: usize = 4096;

/// The largest weight of remembered removals of one type. When a stream missed a removal that is
/// forgotten, it is ended, and its client compares in full when it reconnects. So a client that
/// stops reading costs a bounded amount of memory.
const REMOVALS_LIMIT: usize = 1 << 18;

#[cfg(test)]
mod tests;
