//! Content that a few clients try, of a proxy or in a rollout of a server, is sent to others only
//! after it was accepted. Content that one of them rejected is not sent again to any client until
//! other content was in its place (T45).

use std::collections::BTreeMap;
use std::sync::Arc;

use xds_core::Parameters;
use xds_core::server::Protocol;

use super::Violation;
use crate::content::Content;
use crate::rollouts::Rollouts;
use crate::trying::{Refusal, Refused, Variation, contents};
use crate::wire::Received;
use crate::world::World;

/// Checks a response that a replica has just sent to a client.
pub(crate) fn check(
    world: &mut World,
    replica: usize,
    at: usize,
    received: &Received,
) -> Result<(), Violation> {
    let client = format!("c{at}");
    let profile = &world.clients[at].profile;
    let is_full_state = profile.protocol == Protocol::Sotw && received.kind.is_full_state();
    let of = (&*client, &profile.node, is_full_state);
    if let Some(relay) = replica.checked_sub(world.origins).map(|at| &world.relays[at]) {
        // G4b: what came on a stream of its own for the type meanwhile is not tried.
        let tried = relay.trying.as_ref().map(|trying| {
            let (mut tried, present) = (trying.tried.clone(), contents(&relay.cache().snapshot()));
            tried.retain(|variation, content| present.get(variation) != Some(content));
            (tried, trying.chosen().contains(&client))
        });
        let tried = tried.as_ref().map(|(tried, is_chosen)| (tried, *is_chosen));
        let keeps = |_: &_, _: &_| false;
        return check_items(of, tried, (&relay.refused, keeps), received).map(drop);
    }
    let Some(rollouts) = &mut world.replicas[replica].rollouts else { return Ok(()) };
    let tried = rollouts.tried.as_ref().map(|on| (&on.contents, on.is_for(&client, &profile.node)));
    let keeps = |variation: &_, content: &_| rollouts.may_keep(&client, variation, content);
    let tries = check_items(of, tried, (&rollouts.refused, keeps), received)?;
    if let Some(tried) = &mut rollouts.tried {
        tried.sent_to.extend(Some(client).filter(|_| tries));
        if tried.is_for_too_many() {
            return violation(format!("too many clients try something: {received}"));
        }
    }
    Ok(())
}

/// Returns whether some of it is tried.
fn check_items(
    (client, node, is_full_state): (&str, &Parameters, bool),
    tried: Option<(&BTreeMap<Variation, Content>, bool)>,
    (refused, keeps): (&Refused, impl Fn(&Variation, &Content) -> bool),
    received: &Received,
) -> Result<bool, Violation> {
    let mut tries = false;
    for item in &received.resources {
        // A client that subscribes by name is not sent the constraints, so it is not known for sure which
        // variant this is.
        let Some(constraints) = &item.sent_with else {
            let is_it = |(of, content): (&Variation, &Content)| {
                (of.0, &of.1) == (received.kind, &item.name) && of.2.matches(node) && *content == item.content
            };
            tries |= tried.is_some_and(|(contents, is_chosen)| is_chosen && contents.iter().any(is_it));
            continue;
        };
        let variation = (received.kind, item.name.clone(), constraints.clone());
        let is_it = |of: Option<&_>| of == Some(&item.content);
        if let Some((_, is_chosen)) = tried.filter(|(contents, _)| is_it(contents.get(&variation))) {
            // S6b: a full state still has what the client tried before, until its removal may be sent.
            if !is_chosen && is_full_state && keeps(&variation, &item.content) {
                continue;
            }
            if !is_chosen {
                return violation(format!("{client} is sent what others try: {received}"));
            }
            tries = true;
        }
        // S6b: a full state for another reason still has what the client itself tried, in this rollout
        // or in one before, until its removal may be sent (seeds 4647 and 250).
        let has_tried = |of: &Refusal| of.chosen.contains(client) || keeps(&variation, &item.content);
        let refusal = refused.get(&variation).filter(|refusal| !(is_full_state && has_tried(refusal)));
        if is_it(refusal.map(|refusal| &refusal.content)) {
            return violation(format!("{client} is sent what was rejected: {received}"));
        }
    }
    Ok(tries)
}

/// Checks at rest that all trials ended, for all streams.
pub(crate) fn check_at_rest(world: &World) -> Result<(), Violation> {
    for (at, relay) in world.relays.iter().enumerate() {
        if relay.trying.is_some() {
            return violation(format!("p{} still has a trial", world.relayed(at)));
        }
    }
    for (at, replica) in world.replicas.iter().enumerate() {
        if replica.rollouts.as_ref().is_some_and(Rollouts::is_running) {
            return violation(format!("replica {at} still has a rollout"));
        }
        if replica.rollouts.as_ref().is_some_and(Rollouts::is_behind) {
            return violation(format!("replica {at} does not serve what its source has"));
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

fn violation<T>(what: String) -> Result<T, Violation> {
    Err(Violation::new("trials", what))
}
