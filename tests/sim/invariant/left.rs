//! When there are no watchers any more, our client has no resources, no server has a subscription
//! of it, and nothing is due (C13).

use super::{Violation, upstream};
use crate::agent::Agent;
use crate::world::World;

/// Ends all watches, and checks what remains.
pub(crate) fn check(world: &mut World) -> Result<(), Violation> {
    world.trace.note(world.now, || "there are no watchers any more".to_owned());
    let now = world.now;
    for at in 0..world.agents.len() {
        while !world.agents[at].watchers.is_empty() {
            world.agents[at].unwatch(now, 0)?;
        }
        while world.exchange_once(at)? {}
        holds_nothing(&world.agents[at], at)?;
        for link in world.agents[at].links.iter().flatten() {
            if let Some(locator) = link.subscribed.keys().next() {
                return violation(format!("a{at} never unsubscribed from {locator:?}"));
            }
        }
    }
    world.clients.iter_mut().for_each(|client| client.connections.clear());
    world.pass_linger()?;
    upstream::check_empty(world)?;
    for at in 0..world.relays.len() {
        world.drive_relay(at)?;
    }
    for (at, replica) in world.replicas.iter().enumerate() {
        let watched = replica.cache.subscription_counts();
        if watched.names > 0 {
            return violation(format!("replica {at} still has {watched:?}"));
        }
    }
    for at in 0..world.agents.len() {
        for server in 0..world.agents[at].links.len() {
            world.agents[at].leave(now, server)?;
        }
        holds_nothing(&world.agents[at], at)?;
        world.agents[at].drive(now)?;
        if let Some(due) = world.agents[at].next_deadline() {
            return violation(format!("a{at} has something due at {due:?}"));
        }
    }
    Ok(())
}

fn holds_nothing(agent: &Agent, at: usize) -> Result<(), Violation> {
    let snapshot = agent.client.cache().snapshot();
    let types = snapshot.counts().flat_map(|(type_url, _)| snapshot.of_type(type_url));
    let mut names = types.flat_map(|names| names.iter()).map(|(name, _)| name);
    match names.next() {
        Some(name) => violation(format!("a{at} keeps {name}")),
        None if agent.client.report().is_empty() => Ok(()),
        None => violation(format!("a{at} reports a resource without a watcher")),
    }
}

fn violation(what: String) -> Result<(), Violation> {
    Err(Violation::new("left", what))
}
