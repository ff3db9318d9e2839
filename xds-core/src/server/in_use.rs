//! What a client may still use of a type besides what it was sent last, and what that names (S33).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::responses::Unaccepted;
use super::retained::Retained;
use super::type_state::TypeState;
use crate::cache::{Membership, Position, Snapshot, TypeSnapshot};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::references::{Reference, References, Target};
use crate::variants::Variant;

/// Of which resources of a type a client may use another version than the newest, or one that is
/// gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InUse {
    /// Of none.
    NewestOnly,
    /// Of these.
    Older(Arc<OlderInUse>),
    /// Nobody can say of which.
    Unknown,
}

/// Some resources of a type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OlderInUse {
    /// Those that stand in a response that was rejected, or not answered yet.
    unaccepted: Unaccepted,
    /// What is gone and may be in use, with what it named last.
    retained: Vec<(ResourceName, References)>,
    /// What the client used at this revision, or came after it.
    since: Revision,
}

/// A type whose resources name those of another one, as a client uses it.
#[derive(Debug)]
pub(super) struct Referrer {
    type_url: TypeUrl,
    position: Position,
    in_use: InUse,
}

impl InUse {
    pub(super) fn of(state: &TypeState) -> Self {
        if state.is_clean() {
            return Self::NewestOnly;
        }
        // What a client had before it accepted anything here comes from elsewhere.
        let is_known = state.clean_at > Revision::ZERO && !state.is_switching() && !state.is_resending;
        if !is_known || state.retained.len() > IN_USE_LIMIT {
            return Self::Unknown;
        }
        let Some(unaccepted) = state.responses.unaccepted(IN_USE_LIMIT) else { return Self::Unknown };
        let retained = state.retained.iter().map(|(key, retained)| (key.name.clone(), retained.references()));
        Self::Older(Arc::new(OlderInUse { unaccepted, retained: retained.collect(), since: state.clean_at }))
    }

    /// The names in responses that were rejected, or not answered yet; `None` when they are not
    /// known.
    pub(super) fn unaccepted_names(&self) -> Option<BTreeSet<ResourceName>> {
        match self {
            Self::NewestOnly => Some(BTreeSet::new()),
            Self::Older(older) => match &older.unaccepted {
                Unaccepted::Names(names) => Some(names.clone()),
                Unaccepted::FullState => None,
            },
            Self::Unknown => None,
        }
    }

    /// The same for others who do not look at it now.
    pub(super) fn coarse(state: &TypeState) -> Self {
        if state.is_clean() { Self::NewestOnly } else { Self::Unknown }
    }
}

impl Referrer {
    /// `None` when nothing of the type is asked for.
    pub(super) fn of(state: &TypeState) -> Option<Self> {
        let position = state.membership.as_ref().map(Membership::position);
        Self::new(&state.type_url, position, || InUse::of(state))
    }

    pub(super) fn new(
        type_url: &TypeUrl,
        position: Option<&Position>,
        in_use: impl FnOnce() -> InUse,
    ) -> Option<Self> {
        let position = position?.clone();
        Some(Self { type_url: type_url.clone(), position, in_use: in_use() })
    }

    pub(super) fn is_of(&self, type_url: &str) -> bool {
        self.type_url.as_str() == type_url
    }

    /// Whether some resource of it names one of that type, as far as can be said.
    pub(super) fn may_name(&self, target: Target, snapshot: &Snapshot) -> bool {
        let Some(resources) = snapshot.of_type(&self.type_url) else { return false };
        let names_any =
            |variant: &&Arc<Variant>| variant.references.of_type(target, variant.name()).next().is_some();
        let chosen = |name| self.position.chosen(name, snapshot);
        resources.len() > IN_USE_LIMIT || resources.iter().any(|(name, _)| chosen(name).iter().any(names_any))
    }

    /// Adds what of the held removals of a type it may still use; whether that is all that can be.
    fn find(&self, search: &mut UseSearch<'_>, snapshot: &Snapshot) -> SearchResult {
        if self.position.is_behind(snapshot) {
            return SearchResult::AnyName;
        }
        let older = match &self.in_use {
            InUse::NewestOnly => return SearchResult::Complete,
            InUse::Unknown => return SearchResult::AnyName,
            InUse::Older(older) => older,
        };
        let resources = snapshot.of_type(&self.type_url);
        let dropped = |search: &mut UseSearch<'_>, name: &ResourceName| {
            let dropped = |of: &TypeSnapshot| search.add(of.dropped_after(name, older.since, search.target));
            resources.map_or(SearchResult::Complete, dropped)
        };
        for (name, references) in &older.retained {
            if search.add_all(name, references) == SearchResult::AnyName
                || dropped(search, name) == SearchResult::AnyName
            {
                return SearchResult::AnyName;
            }
        }
        let names: Box<dyn Iterator<Item = &ResourceName>> = match (&older.unaccepted, resources) {
            (Unaccepted::Names(names), _) => Box::new(names.iter()),
            (Unaccepted::FullState, Some(resources)) if resources.len() > IN_USE_LIMIT => {
                return SearchResult::AnyName;
            }
            (Unaccepted::FullState, Some(of)) => {
                Box::new(of.iter().map(|(name, _)| name).chain(of.dropping_names()))
            }
            (Unaccepted::FullState, None) => Box::new(std::iter::empty()),
        };
        for name in names {
            let chosen = self.position.chosen(name, snapshot);
            let is_any =
                chosen.iter().any(|of| search.add_all(name, &of.references) == SearchResult::AnyName);
            if is_any || dropped(search, name) == SearchResult::AnyName {
                return SearchResult::AnyName;
            }
            if search.withheld.is_empty() {
                break;
            }
        }
        SearchResult::Complete
    }
}

/// Of what a type holds, the names that a client may still use because of these; `None` when that
/// may be any.
pub(super) fn used(
    state: &TypeState,
    referrers: &[Referrer],
    snapshot: &Snapshot,
) -> Option<BTreeSet<ResourceName>> {
    let mut used = BTreeSet::new();
    let is_newest_only =
        |referrer: &Referrer| referrer.in_use == InUse::NewestOnly && !referrer.position.is_behind(snapshot);
    let target = Target::of(state.type_url.as_str())?;
    let mut withheld: BTreeSet<_> = state.retained.keys().map(|key| &key.name).collect();
    if state.selects_all() {
        // Who asks by name is told after the grace time that what it uses is gone; nobody can tell
        // that to Envoy.
        let live = withheld.iter().filter(|name| is_named(target, name, referrers, snapshot));
        used.extend(live.map(|name| (*name).clone()));
        withheld.retain(|name| !used.contains(*name));
    }
    if referrers.iter().all(is_newest_only) {
        return Some(used);
    }
    let mut search = UseSearch { target, withheld, used: &mut used };
    let is_known =
        referrers.iter().all(|referrer| referrer.find(&mut search, snapshot) == SearchResult::Complete);
    is_known.then_some(used)
}

/// Whether what a client gets of the referrers names a resource, which is gone nevertheless.
fn is_named(target: Target, name: &ResourceName, referrers: &[Referrer], snapshot: &Snapshot) -> bool {
    referrers.iter().any(|referrer| {
        let resources = snapshot.of_type(&referrer.type_url);
        let mut naming = resources.into_iter().flat_map(|resources| resources.naming(target, name));
        naming.any(|own| {
            let chosen = referrer.position.chosen(own, snapshot);
            chosen.iter().any(|variant| variant.references.has(own, target, name))
        })
    })
}

/// What is looked for, and what was found.
#[derive(Debug)]
struct UseSearch<'a> {
    target: Target,
    /// The names that are held and not found yet.
    withheld: BTreeSet<&'a ResourceName>,
    used: &'a mut BTreeSet<ResourceName>,
}

/// What a referrer may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchResult {
    /// What was added.
    Complete,
    AnyName,
}

impl UseSearch<'_> {
    fn add<'n>(&mut self, named: impl Iterator<Item = Reference<'n>>) -> SearchResult {
        for naming in named {
            match naming {
                Reference::Any => return SearchResult::AnyName,
                Reference::Name(name) if self.withheld.remove(name) => _ = self.used.insert(name.clone()),
                Reference::Name(_) => {}
            }
        }
        SearchResult::Complete
    }

    fn add_all(&mut self, own: &ResourceName, references: &References) -> SearchResult {
        if references.unknown().has(self.target) {
            return SearchResult::AnyName;
        }
        // A route configuration may name thousands of clusters, of which a few are held, or the
        // other way round.
        if references.len() <= self.withheld.len() {
            return self.add(references.of_type(self.target, own));
        }
        let is_named = |name: &&ResourceName| references.has(own, self.target, name);
        let (found, rest): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.withheld).into_iter().partition(is_named);
        self.withheld = rest;
        self.used.extend(found.into_iter().cloned());
        SearchResult::Complete
    }
}

impl Retained {
    /// What it named last.
    pub(super) fn references(&self) -> References {
        match self {
            Self::Withheld { variant: Some(variant), .. } => variant.references.clone(),
            Self::Withheld { variant: None, .. } => References::Unknown,
            Self::RemovalSent { references } => references.clone(),
        }
    }
}

/// Resources of a type that are looked at one by one; past it anything may be in use.
const IN_USE_LIMIT: usize = 1000;
