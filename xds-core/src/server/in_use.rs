//! Resources of a type that a client may still use, although it was sent newer ones or their
//! removal, and the resources that they name (S33).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::responses::Unaccepted;
use super::type_state::TypeState;
use crate::cache::{Membership, Position, Snapshot, TypeSnapshot};
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::references::{Reference, References, Target};
use crate::variants::Variant;

/// The resources of a type of which a client may use another version than the newest, or which it
/// may use although the cache removed them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum InUse {
    /// The client uses the newest version of all of them.
    #[default]
    NewestOnly,
    /// The client may use older versions of these.
    Older(Arc<OlderInUse>),
    /// It is not known which.
    Unknown,
}

/// Resources of a type of which a client may use an older version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OlderInUse {
    /// Those in a response that was rejected or not answered yet.
    unaccepted: Unaccepted,
    /// Removed resources that the client may still use, with the references of their last content.
    retained: Vec<(ResourceName, References)>,
    /// The older versions are those that the client used at this revision, or that came after it.
    since: Revision,
}

/// A type whose resources name those of another type, as a client uses it.
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
        // Before the client ACKed anything on this stream, it may use resources from another
        // stream.
        let is_known = state.holding.clean_at() > Revision::ZERO && !state.holding.is_switching();
        if !is_known || state.holding.removed().count() > IN_USE_LIMIT {
            return Self::Unknown;
        }
        let Some(unaccepted) = state.responses.unaccepted(IN_USE_LIMIT) else { return Self::Unknown };
        let retained =
            state.holding.removed().map(|(key, retained)| (key.name.clone(), retained.references()));
        Self::Older(Arc::new(OlderInUse {
            unaccepted,
            retained: retained.collect(),
            since: state.holding.clean_at(),
        }))
    }

    /// The names in responses that were rejected or not answered yet; `None` when the names are not
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

    /// The same without names, which costs less, for a stream that no other stream depends on.
    pub(super) fn coarse(state: &TypeState) -> Self {
        if state.is_clean() { Self::NewestOnly } else { Self::Unknown }
    }
}

impl Referrer {
    /// `None` when the client does not subscribe to the type.
    pub(super) fn of(state: &TypeState) -> Option<Self> {
        let position = state.holding.selection().map(Membership::position);
        Self::new(&state.terms.type_url, position, || InUse::of(state))
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

    /// Whether some resource of this type names a resource of the target type, as far as that is
    /// known.
    pub(super) fn may_name(&self, target: Target, snapshot: &Snapshot) -> bool {
        let Some(resources) = snapshot.of_type(&self.type_url) else { return false };
        let names_any =
            |variant: &&Arc<Variant>| variant.references.of_type(target, variant.name()).next().is_some();
        let chosen = |name| self.position.chosen(name, snapshot);
        resources.len() > IN_USE_LIMIT || resources.iter().any(|(name, _)| chosen(name).iter().any(names_any))
    }

    /// Adds the withheld removals that resources of this type may still name.
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
            let dropped =
                |of: &TypeSnapshot| search.add(of.dropped().after(name, older.since, search.target));
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
                Box::new(of.iter().map(|(name, _)| name).chain(of.dropped().names()))
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

/// The names with a withheld removal that a client may still use, because resources of these
/// referrers name them; `None` when that may be any name.
pub(super) fn used(
    state: &TypeState,
    referrers: &[Referrer],
    snapshot: &Snapshot,
) -> Option<BTreeSet<ResourceName>> {
    let mut used = BTreeSet::new();
    let is_newest_only =
        |referrer: &Referrer| referrer.in_use == InUse::NewestOnly && !referrer.position.is_behind(snapshot);
    let target = Target::of(state.terms.type_url.as_str())?;
    let mut withheld: BTreeSet<_> = state.holding.removed().map(|(key, _)| &key.name).collect();
    if state.subscription.is_wildcard() {
        // A client that subscribes by name gets the removal after the grace time. Envoy, which has
        // a wildcard, must not get it while a live resource names the removed one.
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

/// Whether a current resource of the referrers that the client gets names a resource that was
/// removed.
fn is_named(target: Target, name: &ResourceName, referrers: &[Referrer], snapshot: &Snapshot) -> bool {
    referrers.iter().any(|referrer| {
        let resources = snapshot.of_type(&referrer.type_url);
        let mut naming = resources.into_iter().flat_map(|resources| resources.referrers(target, name));
        naming.any(|own| {
            let chosen = referrer.position.chosen(own, snapshot);
            chosen.iter().any(|variant| variant.references.has(own, target, name))
        })
    })
}

/// A search for the withheld removals that referrers may still name.
#[derive(Debug)]
struct UseSearch<'a> {
    target: Target,
    /// Names with a withheld removal that were not found yet.
    withheld: BTreeSet<&'a ResourceName>,
    used: &'a mut BTreeSet<ResourceName>,
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchResult {
    /// Every name that may be in use was added.
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
        // A route configuration may name thousands of clusters while few removals are withheld, or
        // the other way round.
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

/// Past this number of resources of a type, the search does not look at each: any name may be in
/// use.
const IN_USE_LIMIT: usize = 1000;
