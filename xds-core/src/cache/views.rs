//! The states that streams see: the stable state, and those of candidates.
//!
//! A [candidate](super::Candidate) is seen by the streams that try it. They see a *view*: a state
//! of its own, which began as a copy of the stable state and then took the changes of the
//! candidate. Each later commit is applied to all views under the same revision, so a cursor means
//! the same in the stable state and in a view, except for what the candidate changed. When the
//! candidate ends, its view takes back what is not stable. From then on the view equals the stable
//! state, and each of its streams returns as soon as it was sent everything.
//!
//! The streams of a view are in selection classes of their own, so they share updates and bodies
//! with each other and with no other stream. Without candidates, a stream pays one load for this.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use super::audience::{Chosen, ClientKey, client_key};
use super::delivery::{Affected, Awaited, Ledger};
use super::interest::{RegisteredStream, Watch};
use super::on_demand::LocatorStatus;
use super::snapshot::Snapshot;
use super::transaction::{VariantChange, difference, is_in};
use super::{Cache, Changed, CommitError, Step, Writer, apply, apply_statuses, lock};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::subscription::Locator;

/// The number of a view. Numbers are not used again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ViewId(pub(super) u32);

impl ViewId {
    /// The stable state, which all streams see that try nothing.
    pub(crate) const STABLE: Self = Self(0);
}

/// All views but the stable one.
#[derive(Debug, Default)]
pub(super) struct Views {
    last: u32,
    views: BTreeMap<ViewId, View>,
}

/// What the streams that try a candidate see.
#[derive(Debug)]
pub(super) struct View {
    pub(super) snapshot: Arc<Snapshot>,
    /// The commit of the candidate in this view.
    tried_at: Revision,
    streams: BTreeMap<u64, Weak<RegisteredStream>>,
    /// What the candidate changes.
    names: Names,
    /// Which streams see it. `None` after the end of the candidate: no more streams come.
    chosen: Option<Chosen>,
    /// The streams and types that the candidate affects.
    affected: BTreeMap<(ClientKey, TypeUrl), Vec<Arc<Ledger>>>,
    /// How many of them belong to ended streams.
    kept_ended: usize,
    /// Why the cache ended the candidate.
    refusal: Refusal,
}

/// The changes and the statuses of a transaction.
pub(super) type Changes =
    (BTreeMap<TypeUrl, Vec<VariantChange>>, Vec<(TypeUrl, Locator, Option<LocatorStatus>)>);

/// Set when the cache ends a candidate by itself.
pub(super) type Refusal = Arc<OnceLock<CommitError>>;

/// Names of each type.
pub(super) type Names = BTreeMap<TypeUrl, BTreeSet<ResourceName>>;

impl Views {
    pub(super) fn next_id(&mut self) -> ViewId {
        self.last += 1;
        ViewId(self.last)
    }

    pub(super) fn get(&self, id: ViewId) -> Option<&View> {
        self.views.get(&id)
    }

    /// The states of all views.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = Arc<Snapshot>> {
        self.views.values().map(|view| Arc::clone(&view.snapshot))
    }

    /// Adds the view of a candidate, for the streams that try it. Ends the oldest view if there are
    /// too many: its streams do not read, and reconnect.
    ///
    /// Returns the streams of that view, to be woken.
    pub(super) fn add(
        &mut self,
        mut view: View,
        streams: &[Arc<RegisteredStream>],
    ) -> Vec<Arc<RegisteredStream>> {
        let id = view.snapshot.view();
        streams.iter().for_each(|stream| stream.view.store(id.0, Ordering::SeqCst));
        view.streams = streams.iter().map(|stream| (stream.id, Arc::downgrade(stream))).collect();
        self.views.insert(id, view);
        let ended = self.views.iter().find(|(_, view)| view.chosen.is_none());
        let oldest = ended.map(|(oldest, _)| *oldest).filter(|_| self.views.len() > VIEWS_LIMIT);
        let removed = oldest.and_then(|oldest| self.views.remove(&oldest));
        removed.iter().flat_map(|view| view.streams.values().filter_map(Weak::upgrade)).collect()
    }

    /// Replaces the state of a view.
    pub(super) fn store(&mut self, next: Snapshot, refusal: Option<CommitError>) {
        let Some(view) = self.views.get_mut(&next.view()) else { return };
        if next.has_ended() {
            view.chosen = None;
            if let Some(refusal) = refusal {
                _ = view.refusal.set(refusal);
            }
        }
        view.snapshot = Arc::new(next);
    }

    /// Lets a stream that sees the stable state see the view of the candidate that its client tries.
    /// Returns the last stable revision in this view: what came later is sent to the stream, even if
    /// it has it.
    pub(super) fn place(&mut self, stream: &Arc<RegisteredStream>) -> Option<Revision> {
        let is_for = |view: &&mut View| view.chosen.as_ref().is_some_and(|chosen| chosen.includes(stream));
        let ids = self.views.iter_mut().map(|(id, view)| (*id, view));
        let (id, view) = ids.into_iter().find(|(_, view)| is_for(view))?;
        view.streams.insert(stream.id, Arc::downgrade(stream));
        stream.view.store(id.0, Ordering::SeqCst);
        Some(Revision(view.tried_at.0 - 1))
    }

    /// A stream subscribes to a type.
    pub(super) fn note_subscription(&mut self, ledger: &Arc<Ledger>) {
        let view = self.views.get_mut(&ledger.stream().view());
        if let Some(view) = view.filter(|view| view.names.contains_key(ledger.type_url())) {
            view.add_subscriber(Arc::clone(ledger));
        }
    }

    /// A stream leaves its view. A view without streams goes at the end of its candidate.
    pub(super) fn leave(&mut self, stream: &RegisteredStream) {
        let id = stream.view();
        if let Some(view) = self.views.get_mut(&id) {
            view.streams.remove(&stream.id);
            view.note_end(stream);
            if view.streams.is_empty() && view.chosen.is_none() {
                self.views.remove(&id);
            }
        }
        stream.view.store(ViewId::STABLE.0, Ordering::SeqCst);
    }

    /// The streams of a view whose candidate ended, to be woken. Without streams the view goes.
    pub(super) fn streams_of_ended(&mut self, id: ViewId) -> Vec<Arc<RegisteredStream>> {
        let Some(view) = self.views.get(&id).filter(|view| view.chosen.is_none()) else { return Vec::new() };
        let streams: Vec<_> = view.streams.values().filter_map(Weak::upgrade).collect();
        if streams.is_empty() {
            self.views.remove(&id);
        }
        streams
    }
}

impl View {
    /// A view without streams.
    pub(super) fn new(
        snapshot: Snapshot,
        names: Names,
        chosen: Chosen,
        affected: Vec<Arc<Ledger>>,
        refusal: Refusal,
    ) -> Self {
        let (tried_at, streams) = (snapshot.revision(), BTreeMap::new());
        let (snapshot, chosen) = (Arc::new(snapshot), Some(chosen));
        let (affected_by, kept_ended) = (BTreeMap::new(), 0);
        let mut view =
            Self { snapshot, tried_at, streams, names, chosen, affected: affected_by, kept_ended, refusal };
        affected.into_iter().for_each(|ledger| view.add_subscriber(ledger));
        view
    }

    pub(super) fn has_ended(&self) -> bool {
        self.chosen.is_none()
    }

    /// The clients that the candidate affects.
    pub(super) fn affected(&self) -> impl Iterator<Item = Affected> {
        let awaited = Awaited { revision: self.tried_at, withheld: false };
        self.affected.values().flatten().map(move |ledger| (awaited, Arc::clone(ledger)))
    }

    /// A stream of this view subscribes to a type. A client that reconnects replaces its former
    /// stream, unless that one rejected the candidate.
    fn add_subscriber(&mut self, ledger: Arc<Ledger>) {
        let tried_at = self.tried_at;
        let of_client = (client_key(ledger.stream()), ledger.type_url().clone());
        let of_client = self.affected.entry(of_client).or_default();
        of_client.retain(|other| !Arc::ptr_eq(other, &ledger));
        let before = of_client.len();
        of_client.retain(|other| !other.is_replaceable(tried_at));
        self.kept_ended = self.kept_ended.saturating_sub(before - of_client.len());
        of_client.push(ledger);
    }

    /// A stream ended. Without a node id no other one takes its place: it is forgotten, unless it ended before it
    /// could ACK the candidate, as a client that crashes does.
    fn note_end(&mut self, stream: &RegisteredStream) {
        let client = client_key(stream);
        let (tried_at, is_full) = (self.tried_at, self.kept_ended >= KEPT_ENDED_LIMIT);
        let is_forgotten = |ledger: &Ledger| {
            ledger.is_replaceable(tried_at) && (is_full || client.1.is_some() && ledger.has_acked(tried_at))
        };
        for type_url in self.names.keys() {
            let of_client = (client.clone(), type_url.clone());
            let Some(ledgers) = self.affected.get_mut(&of_client) else { continue };
            ledgers.retain(|ledger| ledger.stream().id != stream.id || !is_forgotten(ledger));
            self.kept_ended += ledgers.iter().filter(|ledger| ledger.stream().id == stream.id).count();
            if ledgers.is_empty() {
                self.affected.remove(&of_client);
            }
        }
    }

    /// Whether a commit to the stable state changed names that the candidate changes too.
    pub(super) fn meets(&self, changed: &Changed) -> bool {
        self.names.iter().any(|(type_url, names)| {
            changed.get(type_url).is_some_and(|of| of.iter().any(|(name, _)| names.contains(name)))
        })
    }
}

/// The changes that make these names in a view what they are in the stable state.
fn differences(view: &Snapshot, stable: &Snapshot, names: &Names) -> BTreeMap<TypeUrl, Vec<VariantChange>> {
    let of_type = |(type_url, names): (&TypeUrl, &BTreeSet<ResourceName>)| {
        let of_name = |name: &ResourceName| {
            difference(type_url, name, view.get(type_url, name), stable.get(type_url, name))
        };
        (type_url.clone(), names.iter().flat_map(of_name).collect())
    };
    names.iter().map(of_type).collect()
}

impl Cache {
    /// The state of a view; the stable state when the view is gone.
    pub(super) fn state(&self, id: ViewId) -> Arc<Snapshot> {
        if id == ViewId::STABLE {
            return self.snapshot();
        }
        let views = lock(&self.views);
        views.get(id).map_or_else(|| self.snapshot(), |view| Arc::clone(&view.snapshot))
    }

    pub(super) fn has_views(&self) -> bool {
        !lock(&self.views).views.is_empty()
    }

    /// Applies a commit to all views. A candidate ends that it meets, or that it does not fit.
    pub(super) fn follow(
        &self,
        writer: &mut Writer,
        commit: Option<Changes>,
        stable: &Snapshot,
        changed: &Changed,
    ) -> Vec<Step<'static>> {
        let Some((mut changes, statuses)) = commit else { return Vec::new() };
        // What changed nothing in the stable state must not undo a candidate either.
        for (type_url, of_type) in &mut changes {
            let kept = changed.get(type_url).map_or(&[][..], Vec::as_slice);
            of_type.retain(|change| is_in(change, kept));
        }
        let follow = |view: &View| {
            let (current, revision) = (Arc::clone(&view.snapshot), stable.revision());
            let mut before = Snapshot::clone(&current);
            apply_statuses(statuses.clone(), &mut before, revision);
            let mut next = before.clone();
            let applied = match view.meets(changed) && !view.has_ended() {
                true => Err(CommitError::Superseded { required: view.tried_at, actual: revision }),
                false => apply(changes.clone(), &mut next, revision, self.key_sets),
            };
            match applied {
                Ok((changed, _)) => Step { current, next, changed: Cow::Owned(changed), refusal: None },
                Err(error) => self.end_view(view, before, stable, changed, Some(error)),
            }
        };
        let mut steps: Vec<_> = lock(&self.views).views.values().map(follow).collect();
        let interest = lock(&self.interest);
        for Step { next, changed, .. } in &mut steps {
            writer.forget_removals(next, changed, &interest);
        }
        steps
    }

    /// Ends candidates: their views become equal to the stable state.
    pub(super) fn end_views(&self, ids: &[ViewId]) {
        let mut writer = lock(&self.writer);
        let stable = self.snapshot();
        let stable = Snapshot::clone(&stable).at(writer.next_revision(&stable));
        let end = |id: &ViewId| {
            let views = lock(&self.views);
            let view = views.get(*id).filter(|view| !view.has_ended())?;
            Some(self.end_view(view, Snapshot::clone(&view.snapshot), &stable, &Changed::new(), None))
        };
        let steps = ids.iter().filter_map(end).collect();
        self.publish(&mut writer, steps, &[]);
    }

    /// Makes `next`, the state of a view, equal to the stable state in the names that the candidate
    /// or this commit changed.
    fn end_view(
        &self,
        view: &View,
        mut next: Snapshot,
        stable: &Snapshot,
        changed: &Changed,
        refusal: Option<CommitError>,
    ) -> Step<'static> {
        let current = Arc::clone(&view.snapshot);
        let mut names = view.names.clone();
        for (type_url, of_type) in changed {
            names.entry(type_url.clone()).or_default().extend(of_type.iter().map(|(name, _)| name.clone()));
        }
        let changes = differences(&current, stable, &names);
        let (changed, _) = apply(changes, &mut next, stable.revision(), self.key_sets)
            .expect("what the stable state has fits together");
        for (type_url, resources) in next.edit(stable.revision()) {
            if let Some(stable) = stable.of_type(type_url) {
                Arc::make_mut(resources).answer_as(stable);
            }
        }
        next.end();
        Step { current, next, changed: Cow::Owned(changed), refusal }
    }
}

impl Watch {
    /// Reads, for a short time, the newest state that this stream may see, as [`Cache::read`] does.
    pub fn read<R>(&self, look: impl FnOnce(&Snapshot) -> R) -> R {
        let stream = self.stream();
        while stream.view() == ViewId::STABLE {
            let snapshot = self.cache().snapshot.load();
            // When the stream was chosen for a candidate in between, the stable state may be newer
            // than the beginning of the candidate.
            if stream.view() == ViewId::STABLE {
                return look(&snapshot);
            }
        }
        let views = lock(&self.cache().views);
        let snapshot = views.get(stream.view()).map(|view| Arc::clone(&view.snapshot));
        drop(views);
        match snapshot {
            Some(snapshot) => look(&snapshot),
            None => {
                // The stream did not read for so long that its view is gone.
                stream.is_lost.store(true, Ordering::Relaxed);
                stream.view.store(ViewId::STABLE.0, Ordering::SeqCst);
                self.cache().read(look)
            }
        }
    }

    /// The newest state that this stream may see.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.cache().state(self.stream().view())
    }

    /// Leaves the view of a candidate that ended, because the stream was sent everything in it.
    /// Another candidate may have chosen the client meanwhile: then the stream has to go back to the
    /// returned revision.
    pub(crate) fn leave_view(&self) -> Option<Revision> {
        let mut views = lock(&self.cache().views);
        views.leave(self.stream());
        let before = views.place(self.stream());
        if before.is_some() {
            self.ledgers().iter().for_each(|ledger| views.note_subscription(ledger));
        }
        drop(views);
        // Commits since then are not recorded for this stream before it has joined its classes.
        self.wake();
        before
    }
}

/// How many views there are at most. More than one per step of a rollout come only from clients
/// that do not read.
const VIEWS_LIMIT: usize = 16;
/// How many subscriptions of ended streams a candidate remembers. Without a limit, clients with ever new node ids
/// would fill the memory.
const KEPT_ENDED_LIMIT: usize = 10_000;
