//! A client that answers every response at once has each resource that exists for it within two
//! seconds, whatever other clients with its node id do, and however silent they are (S33b).

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use crate::client::Client;
use crate::content::{Content, Kind, names, selected};
use crate::known::Known;
use crate::script::Identity;
use crate::world::World;

pub(crate) fn check(world: &mut World, at: usize) -> Result<(), Violation> {
    let (now, client) = (world.now, &world.clients[at]);
    let mut lacks = BTreeMap::new();
    for (kind, known) in &client.types {
        let Some(connection) = client.connections.get(&client.slot(*kind)) else { continue };
        let snapshot = connection.watch.snapshot();
        for name in names(&snapshot, *kind).filter(|_| snapshot.is_synced()) {
            for params in known.locators(name) {
                let Some(variant) = selected(&snapshot, *kind, name, &params) else { continue };
                let content = Content::of(*kind, variant.payload()).ok();
                if known.serves(name, &params).map(|held| &held.content) == content.as_ref() {
                    continue;
                }
                let key = (*kind, name.to_owned(), params);
                let since = client.lacks.get(&key).copied().unwrap_or(now);
                if now > since + patience(world, client) {
                    let what = format!("c{at} lacks {kind} {name} for {{{}}} since {since:?}", key.2);
                    return Err(Violation::new("prompt", what));
                }
                lacks.insert(key, since);
            }
        }
    }
    world.clients[at].lacks = lacks;
    Ok(())
}

/// S35: on streams per type, this client does not subscribe to the endpoints of each cluster that
/// it is sent, and servers wait for them as long as for an answer. The same is true if a proxy
/// sends the streams of its twin over the same connection (S33b).
fn patience(world: &World, client: &Client) -> Duration {
    let profile = &client.profile;
    let asks_for_all = |known: &Known| known.asked.iter().any(|(name, _)| name.is_none());
    let has_clusters = client.types.contains_key(&Kind::Cluster);
    let owes_endpoints = has_clusters && !client.types.get(&Kind::Endpoints).is_some_and(asks_for_all);
    let is_twin =
        |other: &Client| matches!(other.profile.identity, Identity::Twin { shares_connection: true, .. });
    let is_grouped = !profile.is_aggregated && (owes_endpoints || world.clients.iter().any(is_twin));
    if is_grouped { SOON + ORDER_WAIT } else { SOON }
}

const SOON: Duration = Duration::from_secs(2);

/// The time that servers wait for an answer before they send what depends on it.
const ORDER_WAIT: Duration = Duration::from_secs(16);
