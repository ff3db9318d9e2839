//! Whether what waits names anything that the client has yet to answer (S33): if not, it need not wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::refs::{References, Target, Targets};
use crate::cache::{Membership, Position, Snapshot};
use crate::name::ResourceName;
use crate::server::progress::Progress;
use crate::variants::Variant;

/// How far a client is with a type that others name.
#[derive(Debug)]
pub(in crate::server) struct Reached {
    pub(in crate::server) target: Target,
    pub(in crate::server) position: Position,
    /// The names that were sent and not answered, or are yet to be sent; `None` when these are not known.
    pub(in crate::server) unanswered: Option<BTreeSet<ResourceName>>,
}

impl Reached {
    /// `None` when the client subscribes to nothing of the type.
    pub(in crate::server) fn of(progress: &Progress, snapshot: &Snapshot) -> Option<Self> {
        let target = Target::of(progress.type_url.as_str())?;
        let position = progress.membership.as_ref().map(Membership::position)?.clone();
        Some(Self { target, position, unanswered: unanswered(progress, snapshot) })
    }
}

/// Whether what is new of a type names nothing that the client has yet to take, directly or through its routes.
///
/// Only where all of it is known: a listener that names routes to which the client does not subscribe yet
/// may bring whatever clusters those name.
pub(in crate::server) fn is_unrelated(
    progress: &Progress,
    reached: Vec<Reached>,
    snapshot: &Snapshot,
) -> bool {
    let has_clusters = reached.iter().any(|of| of.target == Target::Cluster);
    let is_unknown = |of: &Reached| of.target != Target::Routes && of.unanswered.is_none();
    if !has_clusters || reached.iter().any(is_unknown) {
        return false;
    }
    let Some(update) = progress.membership.as_ref().and_then(|membership| membership.update(snapshot)) else {
        return false;
    };
    let client = Client { reached, snapshot };
    update.changed.iter().all(|variant| client.has_all(variant.name(), &variant.references, true))
}

/// What the client has of all these types.
struct Client<'a> {
    reached: Vec<Reached>,
    snapshot: &'a Snapshot,
}

impl Client<'_> {
    /// Whether the client took all clusters that a listener or routes name; of a listener also those of its routes.
    fn has_all(&self, own: &ResourceName, references: &References, follows_routes: bool) -> bool {
        let is_taken = |(target, name): (Target, &ResourceName)| match target {
            Target::Cluster => self.has_cluster(name),
            Target::Routes if follows_routes => {
                let mut chosen = self.chosen(Target::Routes, name).peekable();
                chosen.peek().is_some() && chosen.all(|routes| self.has_all(name, &routes.references, false))
            }
            Target::Secret | Target::Extension => true,
            _ => false,
        };
        references.unknown() == Targets::NONE && references.iter(own).all(is_taken)
    }

    fn has_cluster(&self, name: &ResourceName) -> bool {
        let mut chosen = self.chosen(Target::Cluster, name).peekable();
        let is_usable = |references: &References| {
            let is_simple = !references.unknown().has(Target::Cluster)
                && references.of_type(Target::Cluster, name).next().is_none();
            is_simple && references.endpoints(name).is_none_or(|assignment| self.has_endpoints(assignment))
        };
        !self.is_unanswered(Target::Cluster, name)
            && chosen.peek().is_some()
            && chosen.all(|cluster| is_usable(&cluster.references))
    }

    /// A client that subscribes to no endpoints here has them from elsewhere.
    fn has_endpoints(&self, name: &ResourceName) -> bool {
        let mut all = self.of(Target::Assignment).peekable();
        let is_followed = all.peek().is_none() || all.any(|of| of.position.covers(name));
        is_followed && !self.is_unanswered(Target::Assignment, name)
    }

    fn is_unanswered(&self, target: Target, name: &ResourceName) -> bool {
        self.of(target).any(|of| of.unanswered.as_ref().is_none_or(|names| names.contains(name)))
    }

    fn chosen(&self, target: Target, name: &ResourceName) -> impl Iterator<Item = &Arc<Variant>> {
        self.of(target).flat_map(move |of| of.position.chosen(name, self.snapshot))
    }

    fn of(&self, target: Target) -> impl Iterator<Item = &Reached> {
        self.reached.iter().filter(move |of| of.target == target)
    }
}

/// The names of a type that were sent and not answered, or are yet to be sent; `None` when these are not known.
fn unanswered(progress: &Progress, snapshot: &Snapshot) -> Option<BTreeSet<ResourceName>> {
    let mut names: BTreeSet<_> =
        progress.responses.in_flight_names(UNANSWERED_LIMIT)?.into_iter().cloned().collect();
    if progress.is_behind(snapshot) {
        let update = progress.membership.as_ref()?.update(snapshot)?;
        if progress.is_switching() || update.changed.len() > UNANSWERED_LIMIT {
            return None;
        }
        names.extend(update.changed.iter().map(|variant| variant.name().clone()));
    }
    Some(names)
}

/// Clusters or endpoints without an answer of which it is looked up whether something names them.
const UNANSWERED_LIMIT: usize = 1000;
