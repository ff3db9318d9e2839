//! Whether waiting changes name any resource that the client has not ACKed (S33b); if not, they
//! need not wait.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::{Membership, Position, Snapshot};
use crate::name::ResourceName;
use crate::references::{References, Target, Targets};
use crate::server::type_state::TypeState;
use crate::variants::Variant;

/// What a client has of a type that other types name.
#[derive(Debug)]
pub(in crate::server) struct TargetStatus<'a> {
    pub(in crate::server) target: Target,
    pub(in crate::server) position: Cow<'a, Position>,
    /// The names that were sent and not answered, or are still to be sent; `None` when the names
    /// are not known.
    pub(in crate::server) unanswered: Option<BTreeSet<ResourceName>>,
}

impl<'a> TargetStatus<'a> {
    /// `None` when the client subscribes to nothing of the type.
    pub(in crate::server) fn of(state: &'a TypeState, snapshot: &Snapshot) -> Option<Self> {
        let target = Target::of(state.terms.type_url.as_str())?;
        let position = state.holding.selection().map(Membership::position)?;
        // The names of unanswered routes are not used.
        let unanswered = if target == Target::Routes { None } else { unanswered(state, snapshot) };
        Some(Self { target, position: Cow::Borrowed(position), unanswered })
    }
}

/// Whether the changes of a type name no resource that the client has not ACKed, directly or
/// through its routes.
///
/// True only if all names are known: a listener that names routes to which the client does not
/// subscribe yet may lead to any cluster that those routes name.
pub(in crate::server) fn is_unrelated(
    state: &TypeState,
    targets: &[TargetStatus<'_>],
    snapshot: &Snapshot,
) -> bool {
    // A client with a stream per cluster for endpoints waits: looking at all these streams for each
    // cluster would cost more.
    if targets.len() > TARGETS_LIMIT {
        return false;
    }
    let Some(acked) = AckedResources::new(targets, snapshot) else { return false };
    let Some(update) = state.holding.selection().and_then(|membership| membership.update(snapshot)) else {
        return false;
    };
    let changed = update.changed.iter().map(|variant| (variant.name(), &variant.references));
    let Some(named) = ReferencedNames::of(changed) else { return false };
    let of_routes = || {
        let mut all = ReferencedNames::default();
        for name in named.routes.iter() {
            let mut routes = acked.chosen(Target::Routes, name).peekable();
            routes.peek()?;
            let named = ReferencedNames::of(routes.map(|routes| (routes.name(), &routes.references)))?;
            // Routes name no routes.
            all.clusters.extend(named.clusters);
        }
        Some(all)
    };
    let Some(by_routes) = of_routes() else { return false };
    named.clusters.union(&by_routes.clusters).all(|name| acked.has_cluster(name))
}

/// The clusters and routes that some resources name, each once.
#[derive(Debug, Default)]
struct ReferencedNames<'a> {
    clusters: BTreeSet<&'a ResourceName>,
    routes: BTreeSet<&'a ResourceName>,
}

impl<'a> ReferencedNames<'a> {
    /// `None` when the resources may name other types, or any name.
    fn of(resources: impl Iterator<Item = (&'a ResourceName, &'a References)>) -> Option<Self> {
        let mut named = Self::default();
        for (own, references) in resources {
            if references.unknown() != Targets::NONE {
                return None;
            }
            for (target, name) in references.iter(own) {
                match target {
                    Target::Cluster => _ = named.clusters.insert(name),
                    Target::Routes => _ = named.routes.insert(name),
                    Target::Secret | Target::Extension => {}
                    _ => return None,
                }
            }
        }
        Some(named)
    }
}

/// The clusters, endpoints and routes that the client has ACKed.
struct AckedResources<'a> {
    targets: &'a [TargetStatus<'a>],
    unanswered_clusters: BTreeSet<&'a ResourceName>,
    unanswered_endpoints: BTreeSet<&'a ResourceName>,
    snapshot: &'a Snapshot,
}

impl<'a> AckedResources<'a> {
    /// `None` when that is not known, or when the client does not subscribe to clusters.
    fn new(targets: &'a [TargetStatus<'a>], snapshot: &'a Snapshot) -> Option<Self> {
        let unanswered = |target: Target| {
            let mut names = BTreeSet::new();
            for of in targets.iter().filter(|of| of.target == target) {
                names.extend(of.unanswered.as_ref()?);
            }
            Some(names)
        };
        let (unanswered_clusters, unanswered_endpoints) =
            (unanswered(Target::Cluster)?, unanswered(Target::Assignment)?);
        let acked = Self { targets, unanswered_clusters, unanswered_endpoints, snapshot };
        acked.of(Target::Cluster).next()?;
        Some(acked)
    }

    fn has_cluster(&self, name: &ResourceName) -> bool {
        let mut chosen = self.chosen(Target::Cluster, name).peekable();
        let is_usable = |references: &References| {
            let is_simple = !references.unknown().has(Target::Cluster)
                && references.of_type(Target::Cluster, name).next().is_none();
            is_simple && references.endpoints(name).is_none_or(|assignment| self.has_endpoints(assignment))
        };
        !self.unanswered_clusters.contains(name)
            && chosen.peek().is_some()
            && chosen.all(|cluster| is_usable(&cluster.references))
    }

    /// A client that does not subscribe to endpoints here gets them from elsewhere.
    fn has_endpoints(&self, name: &ResourceName) -> bool {
        let mut all = self.of(Target::Assignment).peekable();
        let is_subscribed = all.peek().is_none() || all.any(|of| of.position.covers(name));
        is_subscribed && !self.unanswered_endpoints.contains(name)
    }

    fn chosen(&self, target: Target, name: &ResourceName) -> impl Iterator<Item = &'a Arc<Variant>> {
        self.of(target).flat_map(move |of| of.position.chosen(name, self.snapshot))
    }

    fn of(&self, target: Target) -> impl Iterator<Item = &'a TargetStatus<'a>> {
        self.targets.iter().filter(move |of| of.target == target)
    }
}

/// The names of a type that were sent and not answered, or are still to be sent; `None` when the
/// names are not known.
fn unanswered(state: &TypeState, snapshot: &Snapshot) -> Option<BTreeSet<ResourceName>> {
    let mut names: BTreeSet<_> =
        state.responses.in_flight().names(UNANSWERED_LIMIT)?.into_iter().cloned().collect();
    let waiting = state.responses.rejections().waiting();
    names.extend(waiting.take(UNANSWERED_LIMIT).map(|key| key.name.clone()));
    if state.holding.is_behind(snapshot) {
        let update = state.holding.selection()?.update(snapshot)?;
        if state.holding.is_switching() || update.changed.len() > UNANSWERED_LIMIT {
            return None;
        }
        names.extend(update.changed.iter().map(|variant| variant.name().clone()));
    }
    Some(names)
}

/// Past this number of unanswered clusters or endpoints, the search for references stops and
/// changes wait.
const UNANSWERED_LIMIT: usize = 1000;

/// Past this number of types on the streams of one client, changes wait.
const TARGETS_LIMIT: usize = 16;
