//! Content that a few clients try is sent to others only after it was accepted. Content that one of
//! them rejected is not sent again to any client until other content was in its place (T45).

use std::sync::Arc;

use xds_core::server::Protocol;

use super::Violation;
use crate::wire::Received;
use crate::world::World;

/// Checks a response that a proxy has just sent to a client.
pub(crate) fn check(
    world: &World,
    at: usize,
    (client, protocol): (&str, Protocol),
    received: &Received,
) -> Result<(), Violation> {
    let relay = &world.relays[at];
    let is_full_state = protocol == Protocol::Sotw && received.kind.is_full_state();
    for item in &received.resources {
        // A client that subscribes by name is not sent the constraints, so the variant is unknown
        // here.
        let Some(constraints) = &item.sent_with else { continue };
        let variation = (received.kind, item.name.clone(), constraints.clone());
        let is_it = |of: Option<&_>| of == Some(&item.content);
        if let Some(trying) = &relay.trying {
            let is_tried = is_it(trying.tried.get(&variation));
            if is_tried && !trying.chosen().contains(client) {
                return violation(format!("{client} is sent what others try: {received}"));
            }
        }
        // S6b: a full state for another reason still has what the client itself rejected, until its
        // removal may be sent (seed 4647).
        let refusal = relay.refused.get(&variation);
        let refusal = refusal.filter(|refusal| !(is_full_state && refusal.chosen.contains(client)));
        if is_it(refusal.map(|refusal| &refusal.content)) {
            return violation(format!("{client} is sent what was rejected: {received}"));
        }
    }
    Ok(())
}

/// Checks at rest that all trials ended, for all streams.
pub(crate) fn check_at_rest(world: &World) -> Result<(), Violation> {
    for (at, relay) in world.relays.iter().enumerate() {
        if relay.trying.is_some() {
            return violation(format!("p{} still has a trial", world.relayed(at)));
        }
    }
    for (at, client) in world.clients.iter().enumerate() {
        for connection in client.connections.values() {
            let replica = &world.replicas[connection.replica];
            if !Arc::ptr_eq(&connection.watch.snapshot(), &replica.cache.snapshot()) {
                return violation(format!("c{at} does not see the stable state"));
            }
        }
    }
    Ok(())
}

fn violation(what: String) -> Result<(), Violation> {
    Err(Violation::new("trials", what))
}
