//! What a client may still use of a type besides what it was sent last, and what that names (S33).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::responses::Open;
use super::retained::Gone;
use super::type_state::TypeState;
use crate::cache::{Membership, Position, Snapshot, TypeSnapshot};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::references::{Reference, References, Target};
use crate::variants::Variant;

/// Of which resources of a type a client may use another version than the newest, or one that is
/// gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// Of none.
    Nothing,
    /// Of these.
    Some(Arc<Which>),
    /// Nobody can say of which.
    Unknown,
}

/// Some resources of a type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Which {
    /// Those that stand in a response that was rejected, or not answered yet.
    open: Open,
    /// What is gone and may be in use, with what it named last.
    gone: Vec<(ResourceName, References)>,
    /// What the client used at this revision, or came after it.
    since: Revision,
}

/// A type whose resources name those of another one, as a client uses it.
#[derive(Debug)]
pub(super) struct Referrer {
    type_url: TypeUrl,
    position: Position,
    unsettled: Unsettled,
}

impl Unsettled {
    pub(super) fn of(state: &TypeState) -> Self {
        if state.is_clean() {
            return Self::Nothing;
        }
        // What a client had before it accepted anything here comes from elsewhere.
        let is_known = state.settled_at > Revision::ZERO && !state.is_switching() && !state.is_retelling;
        if !is_known || state.gone.len() > UNSETTLED_LIMIT {
            return Self::Unknown;
        }
        let Some(open) = state.responses.open(UNSETTLED_LIMIT) else { return Self::Unknown };
        let gone = state.gone.iter().map(|(key, gone)| (key.name.clone(), gone.references()));
        Self::Some(Arc::new(Which { open, gone: gone.collect(), since: state.settled_at }))
    }

    /// The names in responses that were rejected, or not answered yet; `None` when they are not
    /// known.
    pub(super) fn open_names(&self) -> Option<BTreeSet<ResourceName>> {
        match self {
            Self::Nothing => Some(BTreeSet::new()),
            Self::Some(which) => match &which.open {
                Open::Names(names) => Some(names.clone()),
                Open::State => None,
            },
            Self::Unknown => None,
        }
    }

    /// The same for others who do not look at it now.
    pub(super) fn unread(state: &TypeState) -> Self {
        if state.is_clean() { Self::Nothing } else { Self::Unknown }
    }
}

impl Referrer {
    /// `None` when nothing of the type is asked for.
    pub(super) fn of(state: &TypeState) -> Option<Self> {
        let position = state.membership.as_ref().map(Membership::position);
        Self::new(&state.type_url, position, || Unsettled::of(state))
    }

    pub(super) fn new(
        type_url: &TypeUrl,
        position: Option<&Position>,
        unsettled: impl FnOnce() -> Unsettled,
    ) -> Option<Self> {
        let position = position?.clone();
        Some(Self { type_url: type_url.clone(), position, unsettled: unsettled() })
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
        resources.len() > UNSETTLED_LIMIT
            || resources.iter().any(|(name, _)| chosen(name).iter().any(names_any))
    }

    /// Adds what of the held removals of a type it may still use; whether that is all that can be.
    fn find(&self, search: &mut Search<'_>, snapshot: &Snapshot) -> Found {
        if self.position.is_behind(snapshot) {
            return Found::Anything;
        }
        let which = match &self.unsettled {
            Unsettled::Nothing => return Found::These,
            Unsettled::Unknown => return Found::Anything,
            Unsettled::Some(which) => which,
        };
        let resources = snapshot.of_type(&self.type_url);
        let dropped = |search: &mut Search<'_>, name: &ResourceName| {
            let dropped = |of: &TypeSnapshot| search.add(of.dropped_after(name, which.since, search.target));
            resources.map_or(Found::These, dropped)
        };
        for (name, references) in &which.gone {
            if search.add_all(name, references) == Found::Anything || dropped(search, name) == Found::Anything
            {
                return Found::Anything;
            }
        }
        let names: Box<dyn Iterator<Item = &ResourceName>> = match (&which.open, resources) {
            (Open::Names(names), _) => Box::new(names.iter()),
            (Open::State, Some(resources)) if resources.len() > UNSETTLED_LIMIT => return Found::Anything,
            (Open::State, Some(of)) => Box::new(of.iter().map(|(name, _)| name).chain(of.dropping_names())),
            (Open::State, None) => Box::new(std::iter::empty()),
        };
        for name in names {
            let chosen = self.position.chosen(name, snapshot);
            let is_any = chosen.iter().any(|of| search.add_all(name, &of.references) == Found::Anything);
            if is_any || dropped(search, name) == Found::Anything {
                return Found::Anything;
            }
            if search.held.is_empty() {
                break;
            }
        }
        Found::These
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
    let is_settled = |referrer: &Referrer| {
        referrer.unsettled == Unsettled::Nothing && !referrer.position.is_behind(snapshot)
    };
    let target = Target::of(state.type_url.as_str())?;
    let mut held: BTreeSet<_> = state.gone.keys().map(|key| &key.name).collect();
    if state.selects_all() {
        // Who asks by name is told after the grace time that what it uses is gone; nobody can tell
        // that to Envoy.
        let live = held.iter().filter(|name| is_named(target, name, referrers, snapshot));
        used.extend(live.map(|name| (*name).clone()));
        held.retain(|name| !used.contains(*name));
    }
    if referrers.iter().all(is_settled) {
        return Some(used);
    }
    let mut search = Search { target, held, used: &mut used };
    let is_known = referrers.iter().all(|referrer| referrer.find(&mut search, snapshot) == Found::These);
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
struct Search<'a> {
    target: Target,
    /// The names that are held and not found yet.
    held: BTreeSet<&'a ResourceName>,
    used: &'a mut BTreeSet<ResourceName>,
}

/// What a referrer may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// What was added.
    These,
    Anything,
}

impl Search<'_> {
    fn add<'n>(&mut self, named: impl Iterator<Item = Reference<'n>>) -> Found {
        for naming in named {
            match naming {
                Reference::Any => return Found::Anything,
                Reference::Name(name) if self.held.remove(name) => _ = self.used.insert(name.clone()),
                Reference::Name(_) => {}
            }
        }
        Found::These
    }

    fn add_all(&mut self, own: &ResourceName, references: &References) -> Found {
        if references.unknown().has(self.target) {
            return Found::Anything;
        }
        // A route configuration may name thousands of clusters, of which a few are held, or the
        // other way round.
        if references.len() <= self.held.len() {
            return self.add(references.of_type(self.target, own));
        }
        let is_named = |name: &&ResourceName| references.has(own, self.target, name);
        let (found, rest): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.held).into_iter().partition(is_named);
        self.held = rest;
        self.used.extend(found.into_iter().cloned());
        Found::These
    }
}

impl Gone {
    /// What it named last.
    pub(super) fn references(&self) -> References {
        match self {
            Self::Held { variant: Some(variant), .. } => variant.references.clone(),
            Self::Held { variant: None, .. } => References::Unknown,
            Self::Told { references } => references.clone(),
        }
    }
}

/// Resources of a type that are looked at one by one; past it anything may be in use.
const UNSETTLED_LIMIT: usize = 1000;
