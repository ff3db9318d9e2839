//! At rest each watcher of our clients uses the resource that the origin has for it, and knows
//! which resources do not exist. The client uses the stream of its preferred server (P4.6).
//!
//! S26: where no response can report a removal, a SotW client keeps the resource.

use std::collections::BTreeMap;

use xds_core::Snapshot;
use xds_core::client::{Code, ResourceView};
use xds_core::server::Protocol;

use super::Violation;
use crate::agent::{Agent, Watcher};
use crate::content::{Kind, names, selected};
use crate::liar::AUTHORITY;
use crate::script::Home;
use crate::world::World;

pub(crate) fn check(world: &World) -> Result<(), Violation> {
    check_all(world, |_, _| false)
}

/// The same without the types that a server refuses.
pub(crate) fn check_all(world: &World, is_refused: impl Fn(&Agent, Kind) -> bool) -> Result<(), Violation> {
    for (at, agent) in world.agents.iter().enumerate() {
        for watcher in agent.watchers.iter().filter(|watcher| !is_refused(agent, watcher.kind)) {
            let server = match watcher.is_of_liar {
                true => agent.profile.liar,
                false => agent.profile.order.first().copied(),
            };
            let server = server.expect("something is asked for it");
            let (mut snapshot, hears) = match agent.profile.homes[server] {
                Home::Replica(replica) => {
                    (world.truth_of(replica), world.learns_of_removals(replica, watcher.kind))
                }
                Home::Liar => (world.truth.snapshot(), true),
            };
            if watcher.is_of_liar {
                snapshot = world.truth.snapshot();
            }
            let homes = &agent.profile.homes;
            let is_unheard = |name: &str| match homes[server] {
                Home::Replica(replica) => {
                    !hears && world.is_unheard(replica, watcher.kind, name, &watcher.parameters)
                }
                Home::Liar => false,
            };
            let checked = compare(agent, watcher, server, &snapshot, hears, is_unheard);
            checked.map_err(|what| {
                Violation::new("settled", format!("a{at}: {watcher} {what}: {}", watcher.sight))
            })?;
        }
    }
    Ok(())
}

fn compare(
    agent: &Agent,
    watcher: &Watcher,
    server: usize,
    snapshot: &Snapshot,
    hears: bool,
    is_unheard: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let Watcher { kind, name, parameters, sight, .. } = watcher;
    let chosen = |name: &str| selected(snapshot, *kind, name, parameters);
    let learns = agent.profile.protocols[server] == Protocol::Delta || kind.is_full_state();
    let is_heard = hears;
    let hears = hears && learns && !is_used(agent, *kind);
    if name != "*" {
        return match chosen(name) {
            Some(_) if is_unheard(name) => Ok(()),
            Some(variant) => is_it(&sight.own, variant.payload()),
            None if sight.own.copy.is_some() && !hears => Ok(()),
            // A proxy that does not know of the removal cannot report it either.
            None if !is_heard => Ok(()),
            None if agent.profile.policy.fail_on_data_errors && hears && sight.own.copy.is_some() => {
                Err("uses a removed resource".to_owned())
            }
            None => {
                let code = sight.own.error.as_ref().map(|error| error.code);
                let is_silent = agent.profile.policy.resource_timer_is_transient_error;
                let knows = code == Some(Code::NOT_FOUND) || (is_silent && code == Some(Code::UNAVAILABLE));
                if knows { Ok(()) } else { Err("does not know that the resource does not exist".to_owned()) }
            }
        };
    }
    // C16: names of an authority with its own servers are no members of the wildcard.
    let expected: BTreeMap<_, _> = names(snapshot, *kind)
        .filter(|name| !name.contains(AUTHORITY) && !is_unheard(name))
        .filter_map(|name| Some((name, chosen(name)?)))
        .collect();
    for (name, variant) in &expected {
        let Some(view) = sight.members.get(*name) else { return Err(format!("does not have {name}")) };
        is_it(view, variant.payload()).map_err(|what| format!("{what} of {name}"))?;
    }
    let mut gone = sight.members.keys().filter(|name| !expected.contains_key(name.as_str()));
    if let Some(name) = gone.next().filter(|_| hears) {
        return Err(format!("has {name}, which was removed"));
    }
    match &sight.own.error {
        Some(error) if !expected.is_empty() => Err(format!("has the error {error} for the wildcard")),
        Some(_) | None => Ok(()),
    }
}

fn is_it(view: &ResourceView, payload: &bytes::Bytes) -> Result<(), String> {
    match (&view.copy, &view.error) {
        (Some(copy), None) if copy.payload() == payload => Ok(()),
        (Some(copy), None) if copy.payload() != payload => {
            Err("uses other content than the origin has".to_owned())
        }
        (_, Some(error)) => Err(format!("has the error {error}")),
        (_, None) => Err("has none".to_owned()),
    }
}

/// S33: a client keeps the clusters and endpoints that its routes may still use, even if they are
/// removed.
fn is_used(agent: &Agent, kind: Kind) -> bool {
    let mut watchers = agent.watchers.iter();
    matches!(kind, Kind::Cluster | Kind::Endpoints) && watchers.any(|watcher| watcher.kind == Kind::Route)
}
