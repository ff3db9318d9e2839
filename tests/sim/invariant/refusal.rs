//! A server refuses a rollout only for a content that a client cannot use: the other contents of a
//! rejected response do not count, nor does a listener for which room is made in time (S6f).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xds_core::server::Protocol;

use super::Violation;
use crate::client::Client;
use crate::content::{Content, Kind};
use crate::known::Rejects;
use crate::trying::Variation;
use crate::world::World;

/// Checks a refusal of the rollout that tried these contents since `began`, and changed or removed
/// these names.
pub(crate) fn check(
    world: &World,
    replica: usize,
    (tried, changed): (&BTreeMap<Variation, Content>, &BTreeSet<(Kind, String)>),
    began: Duration,
) -> Result<(), Violation> {
    // S6f: a split that takes longer counts as it is. What a proxy refuses, its own clients rejected.
    if world.now > began + SPLIT_LIMIT || !world.relays.is_empty() || tried.values().any(|of| of.is_bad) {
        return Ok(());
    }
    let clients = world
        .clients
        .iter()
        .filter(|client| client.connections.values().any(|connection| connection.replica == replica));
    // S6c: of a rollout that removes, a full state has the other contents (seeds 1346, 14617).
    let is_unclear = |client: &Client| {
        let mut types = client.types.values();
        types.any(|known| known.takes_full_state() && client.has_unused(known.kind))
    };
    // S6c: the same of a full state that our own client rejects (seed 4580), also if the rollout only removes
    // something of its type (seed 13850).
    let has_full_state = changed.iter().any(|(kind, _)| kind.is_full_state());
    let mut agents = world.agents.iter().map(|agent| &agent.profile);
    if has_full_state && agents.any(|of| of.rejects && of.protocols.contains(&Protocol::Sotw)) {
        return Ok(());
    }
    // S6f: the NACK of a name with several variants may be about each of them (seed 4006).
    let is_unclear = |client: &Client| is_unclear(client) || client.has_unused_variants();
    let cannot_use = |client: &Client| tried.iter().any(|(of, content)| cannot_use(client, of, content));
    if clients.into_iter().any(|client| is_unclear(client) || cannot_use(client)) {
        return Ok(());
    }
    let what = format!("S6f: replica {replica} refused what each of its clients can use");
    Err(Violation::new("refusal", what))
}

fn cannot_use(client: &Client, (kind, name, _): &Variation, content: &Content) -> bool {
    let Some(known) = client.types.get(kind) else { return false };
    // S6c: a full state is not split, so nobody knows which of its contents the client rejects.
    if known.takes_full_state() && client.has_unused(*kind) {
        return true;
    }
    let mut others = known.held.iter().filter(|((other, _), _)| other != name);
    client.profile.rejects == Rejects::Envoy
        && *kind == Kind::Listener
        && content.address != 0
        && others.any(|(_, held)| held.content.address == content.address)
}

/// How long the revisions of a rejected response may stay without a verdict.
const SPLIT_LIMIT: Duration = Duration::from_secs(16);
