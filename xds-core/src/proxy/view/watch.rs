//! Reports of changes to some types: the Init of each generation, then what changed.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::{Present, SharedView};
use crate::cache::TypeSnapshot;
use crate::client::ServedNames;
use crate::client::health::{Generation, Init, Status, SyncState};
use crate::name::{Revision, TypeUrl};
use crate::resource::VariantId;
use crate::variants::{Variant, Variants};

/// The types to watch, and what to do with types that the upstream does not serve.
#[derive(Debug, Default, Clone)]
pub struct ViewRequest {
    /// The types, at least one. Of several rejected types, the first one in this order ends the
    /// watch.
    pub types: Vec<TypeUrl>,
    /// Whether the watch continues with the other types when some are rejected. Otherwise the first
    /// rejection ends it, with the original status.
    pub allow_rejected_types: bool,
    /// Types that a layer above found rejected before, with the original status; only with
    /// `allow_rejected_types`, and none of `types`. Each [`Init`] lists them with the types that
    /// this upstream rejects.
    pub previously_rejected: Vec<(TypeUrl, Status)>,
}

/// Why a watch failed, at once or at an Init.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The request has no types.
    #[error("the request has no types")]
    NoTypes,
    /// A type is rejected and the request does not allow that, or no type is left to watch. The
    /// text is that of the status.
    #[error("{status}")]
    Rejected {
        /// The first such type.
        type_url: TypeUrl,
        /// The original status, unchanged.
        status: Status,
    },
    /// A type is both requested and listed as previously rejected.
    #[error("{} is requested, and is listed as previously rejected: {status}", type_url.message_name())]
    Contradiction {
        /// The type.
        type_url: TypeUrl,
        /// The status of its rejection.
        status: Status,
    },
}

/// A report of a watch.
#[derive(Debug, Clone)]
pub enum ViewEvent {
    /// The state of each type in a generation; comes before its other events. Earlier reports of
    /// types that it rejects are void.
    Init(Init),
    /// A type has another state than in the Init. If it is rejected now, earlier reports of it are
    /// void.
    Reclassified {
        /// The type.
        type_url: TypeUrl,
        /// Its state now; pending unless it is synced or rejected.
        state: SyncState,
    },
    /// The variants that changed since the last such event, all of one moment, in the order of
    /// type, name and constraints.
    Changes(Vec<ViewChange>),
}

/// A change of one variant.
#[derive(Debug, Clone)]
pub enum ViewChange {
    /// The variant is new, or has other content.
    Put {
        /// Its type.
        type_url: TypeUrl,
        /// The variant.
        variant: Arc<Variant>,
    },
    /// The variant was removed.
    Removed(VariantId),
}

/// A program's watch of some types, with all variants of all names. Dropping it ends it.
///
/// It keeps the state that it reported last, which shares memory with the cache where nothing
/// changed since. A slow watch reports the newest state, without the states in between.
#[derive(Debug)]
pub struct ViewWatch {
    shared: Arc<SharedView>,
    waker: Arc<AtomicWaker>,
    request: ViewRequest,
    stage: Stage,
    /// The resources that it reported last.
    resources: BTreeMap<TypeUrl, TypeSnapshot>,
}

#[derive(Debug)]
enum Stage {
    /// The watch was made while a generation replaced this one. It reports the Init of the next
    /// one.
    Provisional(Generation),
    /// It reports the Init of the present generation first.
    New,
    /// It reported the states of its types.
    Reporting(ReportedStates),
    /// It failed.
    Ended,
}

/// The states that a watch reported, besides the resources.
#[derive(Debug)]
struct ReportedStates {
    generation: Generation,
    states: BTreeMap<TypeUrl, SyncState>,
    /// The revision of the cache that it compared last; `None` if other types can be read since.
    compared: Option<Revision>,
}

impl ViewError {
    /// The original status; `None` if the request itself is wrong.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::NoTypes => None,
            Self::Rejected { status, .. } | Self::Contradiction { status, .. } => Some(status),
        }
    }
}

impl ViewRequest {
    /// Whether the request by itself is valid: it has a type, the second list comes only with the
    /// flag, and the lists are disjoint.
    fn check(&self) -> Result<(), ViewError> {
        let first = self.previously_rejected.first();
        let is_refused = self.types.is_empty() || !self.allow_rejected_types;
        if let Some((type_url, status)) = first.filter(|_| is_refused) {
            return Err(ViewError::Rejected { type_url: type_url.clone(), status: status.clone() });
        }
        if self.types.is_empty() {
            return Err(ViewError::NoTypes);
        }
        let both = self.previously_rejected.iter().find(|(type_url, _)| self.types.contains(type_url));
        both.map_or(Ok(()), |(type_url, status)| {
            Err(ViewError::Contradiction { type_url: type_url.clone(), status: status.clone() })
        })
    }

    /// Whether the request is still valid if the types that are rejected now move from the first
    /// list to the second.
    fn check_against(&self, states: &BTreeMap<TypeUrl, SyncState>) -> Result<(), ViewError> {
        let mut rejected = self.types.iter().filter_map(|type_url| match states.get(type_url)? {
            SyncState::Rejected(_, status) => Some((type_url, status)),
            SyncState::Requested | SyncState::Synced(_) | SyncState::Stale(_) => None,
        });
        let Some((type_url, status)) = rejected.next() else { return Ok(()) };
        let is_left = rejected.count() + 1 < self.types.len();
        match self.allow_rejected_types && is_left {
            true => Ok(()),
            false => Err(ViewError::Rejected { type_url: type_url.clone(), status: status.clone() }),
        }
    }

    /// The state of each of its types.
    fn states(&self, present: &Present) -> BTreeMap<TypeUrl, SyncState> {
        let state =
            |type_url: &TypeUrl| present.states.get(type_url).cloned().unwrap_or(SyncState::Requested);
        self.types.iter().map(|type_url| (type_url.clone(), state(type_url))).collect()
    }
}

impl ViewWatch {
    /// To be called while the present state cannot be replaced.
    pub(super) fn new(shared: &Arc<SharedView>, request: ViewRequest) -> Result<Self, ViewError> {
        request.check()?;
        let present = shared.present.load();
        let stage = match present.is_building {
            true => Stage::Provisional(present.generation()),
            false => {
                request.check_against(&present.states)?;
                Stage::New
            }
        };
        let (shared, waker) = (Arc::clone(shared), Arc::default());
        Ok(Self { shared, waker, request, stage, resources: BTreeMap::new() })
    }

    pub(super) fn listener(&self) -> Weak<AtomicWaker> {
        Arc::downgrade(&self.waker)
    }

    /// The next event: the Init of a generation, then changes. An error is the last event. `None`
    /// comes after it, or when the view was dropped. Needs no runtime, and dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> Option<Result<ViewEvent, ViewError>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The same as [`next`](Self::next) for a future that is written out. Costs a walk over the
    /// resources of its types if the cache changed.
    pub fn poll_event(&mut self, cx: &Context<'_>) -> Poll<Option<Result<ViewEvent, ViewError>>> {
        self.waker.register(cx.waker());
        // After registering: a change in between is seen here or wakes us. The flag is read before
        // the state, so that the last state is reported.
        let is_closed = self.shared.is_closed.load(Ordering::Acquire);
        match self.next_event() {
            Some(event) => Poll::Ready(Some(event)),
            None if is_closed || matches!(self.stage, Stage::Ended) => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn next_event(&mut self) -> Option<Result<ViewEvent, ViewError>> {
        let present = self.shared.present.load_full();
        match &self.stage {
            Stage::Ended => None,
            Stage::Provisional(before) if *before == present.generation() => None,
            Stage::Reporting(reported) if reported.generation == present.generation() => {
                self.reclassify(&present).transpose().or_else(|| self.changes(&present).map(Ok))
            }
            Stage::New | Stage::Provisional(_) | Stage::Reporting(_) => Some(self.init(&present)),
        }
    }

    fn init(&mut self, present: &Present) -> Result<ViewEvent, ViewError> {
        let states = self.checked(present)?;
        let mut init = Init::new(present.generation(), &states);
        self.resources.retain(|type_url, _| !init.rejected.contains_key(type_url));
        init.rejected.extend(self.request.previously_rejected.iter().cloned());
        self.stage =
            Stage::Reporting(ReportedStates { generation: present.generation(), states, compared: None });
        Ok(ViewEvent::Init(init))
    }

    /// Reports the first type whose state is not the reported one.
    fn reclassify(&mut self, present: &Present) -> Result<Option<ViewEvent>, ViewError> {
        let now = self.checked(present)?;
        let Stage::Reporting(reported) = &mut self.stage else { return Ok(None) };
        let changed = now.into_iter().find(|(type_url, state)| reported.states.get(type_url) != Some(state));
        let Some((type_url, state)) = changed else { return Ok(None) };
        reported.states.insert(type_url.clone(), state.clone());
        reported.compared = None;
        if matches!(state, SyncState::Rejected(..)) {
            self.resources.remove(&type_url);
        }
        Ok(Some(ViewEvent::Reclassified { type_url, state }))
    }

    /// The states of its types, unless they end the watch.
    fn checked(&mut self, present: &Present) -> Result<BTreeMap<TypeUrl, SyncState>, ViewError> {
        let checked = self.request.check_against(&present.states);
        if checked.is_err() {
            self.stage = Stage::Ended;
            self.resources.clear();
        }
        checked.map(|()| self.request.states(present))
    }

    /// Reports the variants that differ from the reported ones, if any. Types that cannot be read
    /// have no changes.
    fn changes(&mut self, present: &Present) -> Option<ViewEvent> {
        let Stage::Reporting(reported) = &mut self.stage else { return None };
        let revision = present.snapshot.revision();
        if reported.compared.replace(revision) == Some(revision) {
            return None;
        }
        let nothing = TypeSnapshot::default();
        let mut changes = Vec::new();
        for (type_url, _) in reported.states.iter().filter(|(_, state)| state.is_readable()) {
            let now = present.snapshot.of_type(type_url).unwrap_or(&nothing);
            let before = self.resources.insert(type_url.clone(), now.clone()).unwrap_or_default();
            compare(type_url, &self.shared.names, &before, now, &mut changes);
        }
        (!changes.is_empty()).then_some(ViewEvent::Changes(changes))
    }
}

/// The changes from one state of a type to another. A variant that was removed and came back with
/// the same version is no change.
fn compare(
    type_url: &TypeUrl,
    names: &ServedNames,
    before: &TypeSnapshot,
    now: &TypeSnapshot,
    changes: &mut Vec<ViewChange>,
) {
    let has = |variants: Option<&Variants>, variant: &Arc<Variant>| {
        let other = variants.and_then(|variants| variants.get(variant.constraints()));
        other.map(|other| Arc::ptr_eq(other, variant) || other.version() == variant.version())
    };
    let mut found: Vec<(&Arc<Variant>, bool)> = Vec::new();
    for (name, variants) in now.iter().filter(|(name, _)| names.has(name)) {
        let known = before.get(name);
        let is_new = |variant: &&Arc<Variant>| has(known, variant) != Some(true);
        found.extend(variants.iter().filter(is_new).map(|variant| (variant, true)));
    }
    for (name, variants) in before.iter().filter(|(name, _)| names.has(name)) {
        let is_gone = |variant: &&Arc<Variant>| has(now.get(name), variant).is_none();
        found.extend(variants.iter().filter(is_gone).map(|variant| (variant, false)));
    }
    found.sort_unstable_by_key(|(variant, _)| (variant.name(), variant.constraints()));
    changes.extend(found.into_iter().map(|(variant, is_there)| match is_there {
        true => ViewChange::Put { type_url: type_url.clone(), variant: Arc::clone(variant) },
        false => ViewChange::Removed(VariantId {
            type_url: type_url.clone(),
            name: variant.name().clone(),
            constraints: variant.constraints().clone(),
        }),
    }));
}
