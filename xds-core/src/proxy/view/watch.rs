//! What a program is told of some types: the Init of each generation, then what changes.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use super::{Present, SharedView};
use crate::cache::TypeSnapshot;
use crate::name::{Revision, TypeUrl};
use crate::proxy::health::{Generation, Init, Status, SyncState};
use crate::resource::VariantId;
use crate::variants::{Variant, Variants};

/// What to watch, and what to do with types that the upstream does not serve.
#[derive(Debug, Default, Clone)]
pub struct ViewRequest {
    /// The types, at least one. Their order decides which of several rejections is the first.
    pub types: Vec<TypeUrl>,
    /// Whether the watch goes on with the other types when some are rejected. Without it the first
    /// rejection ends the watch, with the original status.
    pub allow_rejected_types: bool,
    /// What a layer above wanted too and found rejected, with the original status; only with
    /// `allow_rejected_types`, and none of `types`. Each [`Init`] lists these with our own
    /// rejections.
    pub previously_rejected: Vec<(TypeUrl, Status)>,
}

/// Why something is not watched, at once or from some Init on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// Nothing was requested.
    #[error("a watch of no types")]
    NoTypes,
    /// A type is rejected which may not be, or with which nothing is left to watch. Says what its
    /// status says.
    #[error("{status}")]
    Rejected {
        /// The first such type.
        type_url: TypeUrl,
        /// The original status, unchanged.
        status: Status,
    },
    /// A type is requested and was previously rejected.
    #[error("{} is watched and was previously rejected: {status}", type_url.message_name())]
    Contradiction {
        /// The type.
        type_url: TypeUrl,
        /// With what it was rejected.
        status: Status,
    },
}

/// What a watch is told.
#[derive(Debug, Clone)]
pub enum ViewEvent {
    /// How each type stands in a generation; comes before anything else of it. What was told of
    /// types that it rejects is void.
    Init(Init),
    /// A type changed since the Init. What was told of a type that is rejected now is void.
    Reclassified {
        /// The type.
        type_url: TypeUrl,
        /// How it stands now; pending unless it is synced or rejected.
        state: SyncState,
    },
    /// What changed since the last such event, all of one moment, in the order of type, name and
    /// constraints.
    Changes(Vec<ViewChange>),
}

/// What became of one variant.
#[derive(Debug, Clone)]
pub enum ViewChange {
    /// It came, or has another content.
    Put {
        /// Its type.
        type_url: TypeUrl,
        /// The variant.
        variant: Arc<Variant>,
    },
    /// It is gone.
    Removed(VariantId),
}

/// A program's watch of some types, with all variants of all names. Dropping it ends it.
///
/// It holds what it was told last, which shares what did not change since with the cache, and
/// nothing else: a slow watch is told the newest state, not what was in between.
#[derive(Debug)]
pub struct ViewWatch {
    shared: Arc<SharedView>,
    waker: Arc<AtomicWaker>,
    request: ViewRequest,
    stage: Stage,
    /// The resources it was told of.
    resources: BTreeMap<TypeUrl, TypeSnapshot>,
}

#[derive(Debug)]
enum Stage {
    /// Its first Init is that of another generation than this, which was being replaced when the
    /// watch was made.
    Provisional(Generation),
    /// Its first Init is that of the present.
    New,
    /// It was told how its types stand.
    Reporting(ReportedStates),
    /// It failed.
    Ended,
}

/// What a watch was told of its types, besides their resources.
#[derive(Debug)]
struct ReportedStates {
    generation: Generation,
    states: BTreeMap<TypeUrl, SyncState>,
    /// With which state of the cache it has caught up; `None` when other types can be read since.
    compared: Option<Revision>,
}

impl ViewError {
    /// The original status; `None` when there is none, because the request itself is wrong.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::NoTypes => None,
            Self::Rejected { status, .. } | Self::Contradiction { status, .. } => Some(status),
        }
    }
}

impl ViewRequest {
    /// Whether the request by itself may be: something is requested; the second list comes only
    /// with the flag; the lists are disjoint.
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

    /// Whether the request still may be when what is rejected now goes from the first list to the
    /// second.
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

    /// How each of its types stands.
    fn states(&self, present: &Present) -> BTreeMap<TypeUrl, SyncState> {
        let state =
            |type_url: &TypeUrl| present.states.get(type_url).cloned().unwrap_or(SyncState::Requested);
        self.types.iter().map(|type_url| (type_url.clone(), state(type_url))).collect()
    }
}

impl ViewWatch {
    /// To be called while nothing can be swapped.
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

    /// The next event: the Init of a generation, then what changes. An error is the last one;
    /// `None` comes after it, or when the view is gone. Needs no runtime, and dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> Option<Result<ViewEvent, ViewError>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The same for a future that is written out. Costs a walk over the resources of its types when
    /// the cache changed.
    pub fn poll_event(&mut self, cx: &Context<'_>) -> Poll<Option<Result<ViewEvent, ViewError>>> {
        self.waker.register(cx.waker());
        // After registering: a change in between is seen here or wakes us. Read before the state,
        // so that the last one is told.
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

    /// Tells of the first type that does not stand as it was told.
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

    /// How its types stand, unless that ends it.
    fn checked(&mut self, present: &Present) -> Result<BTreeMap<TypeUrl, SyncState>, ViewError> {
        let checked = self.request.check_against(&present.states);
        if checked.is_err() {
            self.stage = Stage::Ended;
            self.resources.clear();
        }
        checked.map(|()| self.request.states(present))
    }

    /// Tells what is other than it was told, if anything is. Of types that cannot be read nothing
    /// changes.
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
            compare(type_url, &before, now, &mut changes);
        }
        (!changes.is_empty()).then_some(ViewEvent::Changes(changes))
    }
}

/// What leads from one state of a type to another: nothing for a variant that came back with the
/// version it had.
fn compare(type_url: &TypeUrl, before: &TypeSnapshot, now: &TypeSnapshot, changes: &mut Vec<ViewChange>) {
    let has = |variants: Option<&Variants>, variant: &Arc<Variant>| {
        let other = variants.and_then(|variants| variants.get(variant.constraints()));
        other.map(|other| Arc::ptr_eq(other, variant) || other.version() == variant.version())
    };
    let mut found: Vec<(&Arc<Variant>, bool)> = Vec::new();
    for (name, variants) in now.iter() {
        let known = before.get(name);
        let is_new = |variant: &&Arc<Variant>| has(known, variant) != Some(true);
        found.extend(variants.iter().filter(is_new).map(|variant| (variant, true)));
    }
    for (name, variants) in before.iter() {
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
