//! Content that some clients try before the others see it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::audience::{Audience, Chosen};
use super::class::Class;
use super::delivery::{Delivery, Ledger};
use super::interest::{Interest, RegisteredStream};
use super::snapshot::{NO_RESOURCES, Snapshot, TypeSnapshot};
use super::views::{Names, Refusal, View, ViewId};
use super::{Cache, Changed, Commit, CommitError, Transaction, apply, apply_statuses, by_name, lock};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::WILDCARD;

/// A transaction that some clients try. All others keep the stable state, and are sent nothing.
///
/// [`promote`](Self::promote) commits it. [`end`](Self::end), or dropping the candidate, sends the
/// clients that tried it what they had before.
///
/// Other commits stay possible: they reach all clients, also those that try the candidate. A commit
/// to a resource that the candidate changes too, or that it does not fit, ends the candidate, see
/// [`refusal`](Self::refusal).
///
/// ```
/// use xds_core::{Audience, Cache, Resource, Transaction};
///
/// let resource = |payload: &'static [u8]| {
///     Resource::new("example.com/acme.Thing", "a", payload)
/// };
/// let cache = Cache::new();
/// let mut transaction = Transaction::new();
/// transaction.put(resource(b"stable")?);
/// cache.commit(transaction)?;
/// let mut transaction = Transaction::new();
/// transaction.put(resource(b"new")?);
/// let mut candidate = cache.begin(transaction, &Audience::Clients(2))?;
/// // Two clients try it, until it is clear that they accept it: see `candidate.delivery()`.
/// candidate.widen(&Audience::Percent(10))?;
/// let commit = candidate.promote()?;
/// assert_eq!(commit.changed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Candidate {
    cache: Arc<Cache>,
    transaction: Transaction,
    /// One view for each step; the clients of a step share what is sent.
    views: Vec<ViewId>,
    refusal: Refusal,
}

impl Cache {
    /// Lets some clients try a transaction. Clients of the audience that connect later try it too,
    /// but for [`Audience::Clients`] only those that were chosen now. The condition of
    /// [`Transaction::require`] is checked now, and not again by [`Candidate::promote`].
    ///
    /// Costs O(streams) once, and each later commit is applied once more per step.
    ///
    /// # Errors
    /// See [`CommitError`]; nothing is changed then.
    pub fn begin(
        self: &Arc<Self>,
        mut transaction: Transaction,
        audience: &Audience,
    ) -> Result<Candidate, CommitError> {
        let base = transaction.base.take();
        let (cache, views, refusal) = (Arc::clone(self), Vec::new(), Refusal::default());
        let mut candidate = Candidate { cache, transaction, views, refusal };
        candidate.fork(audience, base)?;
        Ok(candidate)
    }
}

impl Candidate {
    /// Lets more clients try it, beside those that try it already.
    ///
    /// # Errors
    /// See [`CommitError`]: a commit since then may be in the way. Those that try it go on.
    pub fn widen(&mut self, audience: &Audience) -> Result<(), CommitError> {
        self.fork(audience, None)
    }

    /// The clients that it affects of those that try it. Clients that connect later are missing.
    /// A removal that is withheld (S33), because a client may still use what is removed, needs no ACK.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        let views = lock(&self.cache.views);
        Delivery::of(self.views.iter().filter_map(|id| views.get(*id)).flat_map(View::affected))
    }

    /// The newest state that the clients see which try it.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.cache.state(self.views.last().copied().unwrap_or_default())
    }

    /// Why the cache ended it by itself, if it did: a commit was in the way.
    #[must_use]
    pub fn refusal(&self) -> Option<&CommitError> {
        self.refusal.get()
    }

    /// Commits the transaction, for all clients.
    ///
    /// # Errors
    /// See [`CommitError`]: a commit since then may be in the way. Then the candidate ends.
    pub fn promote(mut self) -> Result<Commit, CommitError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal.clone());
        }
        let transaction = std::mem::take(&mut self.transaction);
        self.cache.commit(transaction)
    }

    /// Ends it: those that tried it are sent what is stable.
    pub fn end(self) {}

    /// Adds a view for the streams of the audience that see the stable state.
    fn fork(&mut self, audience: &Audience, base: Option<Revision>) -> Result<(), CommitError> {
        let Self { cache, transaction, views, refusal } = self;
        let statuses = transaction.statuses.clone();
        let mut writer = lock(&cache.writer);
        let current = cache.snapshot();
        transaction.resolve(&current);
        let changes = transaction.clone().into_sorted()?;
        if let Some(required) = base.filter(|required| *required != current.revision()) {
            return Err(CommitError::Superseded { required, actual: current.revision() });
        }
        let id = lock(&cache.views).next_id();
        let mut next = Snapshot::clone(&current).of_view(id);
        let revision = writer.next_revision(&current);
        let (changed, _) = apply(changes, &mut next, revision, cache.key_sets)?;
        next.edit(revision);
        writer.newest = revision;
        apply_statuses(statuses, &mut next, revision);
        // What changes nothing now must not undo a later commit.
        transaction.keep_only(&changed);
        let names: Names = changed.iter().map(|(of, names)| (of.clone(), names_of(names))).collect();
        let interest = lock(&cache.interest);
        let fork = Fork { current: &current, next: &next, changed: &changed };
        let chosen = fork.choose(&interest, audience);
        let (streams, affected) = fork.members(&interest, &chosen);
        let view = View::new(next, names, chosen, affected, Arc::clone(refusal));
        let lost = lock(&cache.views).add(view, &streams);
        drop((interest, writer));
        views.push(id);
        streams.iter().chain(&lost).for_each(|stream| stream.wake());
        Ok(())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.cache.end_views(&self.views);
    }
}

fn names_of(variants: &[(ResourceName, Constraints)]) -> BTreeSet<ResourceName> {
    variants.iter().map(|(name, _)| name.clone()).collect()
}

/// The beginning of a view.
struct Fork<'f> {
    /// The stable state.
    current: &'f Snapshot,
    next: &'f Snapshot,
    changed: &'f Changed,
}

impl Fork<'_> {
    fn choose(&self, interest: &Interest, audience: &Audience) -> Chosen {
        let Audience::Clients(count) = audience else { return Chosen::by_rule(audience.clone()) };
        let mut by_variant = BTreeMap::<_, Vec<Arc<RegisteredStream>>>::new();
        for (type_url, variants) in self.changed {
            for (name, of_name) in by_name(variants) {
                for (constraints, mut streams) in self.selecting(interest, type_url, name, of_name) {
                    // The others try something already, or return from it.
                    streams.retain(|stream| {
                        stream.view() == ViewId::STABLE && !stream.keeps_stable.load(Ordering::Relaxed)
                    });
                    by_variant.insert((type_url, name, constraints), streams);
                }
            }
        }
        Chosen::of_each(by_variant.into_values(), *count)
    }

    /// For each changed variant of a name, the streams that select it before or after the change.
    fn selecting<'c>(
        &self,
        interest: &Interest,
        type_url: &TypeUrl,
        name: &ResourceName,
        of_name: &'c [(ResourceName, Constraints)],
    ) -> Vec<(&'c Constraints, Vec<Arc<RegisteredStream>>)> {
        let constraints = of_name.iter().map(|(_, constraints)| constraints);
        if let Some(index) = &interest.subscriptions {
            let subscribers = |constraints| {
                let names = self.selecting_names(type_url, name, constraints);
                index.subscribers_to(type_url, &names, constraints).cloned().collect()
            };
            return constraints.map(|of| (of, subscribers(of))).collect();
        }
        let Some(of_type) = interest.types.get(type_url) else { return Vec::new() };
        let (before, after) = self.of_type(type_url);
        if before.keys().changed_at() != after.keys().changed_at() {
            // The classes do not know the parameters that are new in constraints.
            let classes = of_type.classes().filter(|class| class.selection.covering(name).next().is_some());
            let streams: Vec<_> = classes.flat_map(|class| class.streams()).collect();
            let matching = |constraints: &Constraints| {
                let is_for = |stream: &&Arc<RegisteredStream>| constraints.matches(&stream.parameters());
                streams.iter().filter(is_for).cloned().collect()
            };
            return constraints.map(|of| (of, matching(of))).collect();
        }
        let affected = of_type.affected(of_name, (before, after));
        let affected: Vec<_> = affected.into_iter().flat_map(|(_, classes)| classes).collect();
        let having = |constraints: &Constraints| {
            let has = |class: &&&Arc<Class>| {
                let chosen = [before, after].map(|resources| class.selection.chosen(name, resources));
                chosen.iter().flatten().any(|chosen| chosen.constraints() == constraints)
            };
            affected.iter().filter(has).flat_map(|class| class.streams()).collect()
        };
        constraints.map(|of| (of, having(of))).collect()
    }

    /// On demand: the streams that subscribe to changed variants.
    fn subscribers(
        &self,
        interest: &Interest,
        type_url: &TypeUrl,
        variants: &[(ResourceName, Constraints)],
    ) -> BTreeSet<u64> {
        let Some(index) = &interest.subscriptions else { return BTreeSet::new() };
        let of_variant = |(name, constraints): &(ResourceName, Constraints)| {
            let names = self.selecting_names(type_url, name, constraints);
            index.subscribers_to(type_url, &names, constraints).map(|stream| stream.id).collect::<Vec<_>>()
        };
        variants.iter().flat_map(of_variant).collect()
    }

    /// The names by which streams select a variant before or after the change: its own, its aliases
    /// (D24) and glob (X12), and the wildcard, if that covers the resource (C16).
    fn selecting_names(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
        constraints: &Constraints,
    ) -> BTreeSet<ResourceName> {
        let (before, after) = self.of_type(type_url);
        let others = [before, after].map(|resources| {
            let variant = resources.get(name).and_then(|variants| variants.get(constraints));
            let others = resources.other_names().of(name).iter();
            others.filter(move |other| variant.is_some_and(|variant| variant.is_named(other)))
        });
        let excluded = self.next.excluded.as_ref();
        let wildcard = (!excluded.is_some_and(|of| of.contains(name))).then(|| WILDCARD.into());
        let own = std::iter::once(name.clone()).chain(wildcard);
        others.into_iter().flatten().cloned().chain(own).collect()
    }

    fn of_type(&self, type_url: &TypeUrl) -> (&TypeSnapshot, &TypeSnapshot) {
        let [before, after] = [self.current, self.next];
        (before.of_type(type_url).unwrap_or(&NO_RESOURCES), after.of_type(type_url).unwrap_or(&NO_RESOURCES))
    }

    /// The chosen streams that see the stable state, and the ledgers of those that the change
    /// affects.
    fn members(
        &self,
        interest: &Interest,
        chosen: &Chosen,
    ) -> (Vec<Arc<RegisteredStream>>, Vec<Arc<Ledger>>) {
        let (mut streams, mut affected) = (BTreeMap::new(), Vec::new());
        for (type_url, of_type) in &interest.types {
            let (before, after) = self.of_type(type_url);
            let variants = self.changed.get(type_url).map_or(&[][..], Vec::as_slice);
            let concerned = of_type.affected(variants, (before, after));
            let concerned: BTreeSet<_> =
                concerned.into_iter().flat_map(|(_, classes)| classes).map(|class| class.id).collect();
            let has_new_keys = before.keys().changed_at() != after.keys().changed_at();
            // The class of a stream that has not run since the keys changed does not tell what it selects.
            let subscribers = self.subscribers(interest, type_url, variants);
            for class in of_type.classes() {
                let is_affected = concerned.contains(&class.id) || has_new_keys && !variants.is_empty();
                for ledger in class.leave_to(self.current.revision(), chosen) {
                    let stream = ledger.stream();
                    streams.entry(stream.id).or_insert_with(|| Arc::clone(stream));
                    let is_affected = is_affected || subscribers.contains(&stream.id);
                    affected.extend(Some(ledger).filter(|_| is_affected));
                }
            }
        }
        (streams.into_values().collect(), affected)
    }
}

#[cfg(test)]
mod late_nack_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wildcard_tests;
