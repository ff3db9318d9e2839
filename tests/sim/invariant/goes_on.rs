//! While servers refuse some types, clients get all others, and open only a few streams in vain (G4b).

use xds_core::VariantId;
use xds_core::client::Code;
use xds_core::client::health::Health;
use xds_core::server::Protocol;

use super::{Violation, converge, settled};
use crate::agent::Agent;
use crate::content::Kind;
use crate::known::Known;
use crate::refusing::{Refusal, Refusals};
use crate::relay::is_of_liar;
use crate::script::Home;
use crate::world::World;

/// Checks that no type is refused any more, when each was tried again.
pub(crate) fn is_served(world: &World) -> Result<(), Violation> {
    match isolated(world) {
        None => Ok(()),
        Some(who) => Err(Violation::new("goes_on", format!("G4b: {who}, although the origin serves it"))),
    }
}

/// A client or a proxy that subscribes to a type not at all, or on a stream of its own, because the type was
/// refused.
pub(crate) fn isolated(world: &World) -> Option<String> {
    for (at, agent) in world.agents.iter().enumerate() {
        let healths = (0..agent.client.servers()).filter_map(|server| agent.client.health(server));
        if let Some(type_url) = healths.flat_map(Health::isolated).next() {
            return Some(format!("a{at} does not subscribe to {type_url}"));
        }
    }
    for (at, relay) in world.relays.iter().enumerate() {
        // A liar also ends streams that subscribe to nothing wrong, and then has the type on its next one.
        let mut routes = relay.routes();
        routes.retain(|route| route.authority.is_none());
        let healths = routes.iter().filter_map(|route| relay.proxy.health(route));
        if let Some(type_url) = healths.flat_map(Health::isolated).next() {
            return Some(format!("p{} has a stream of its own for {type_url}", world.relayed(at)));
        }
    }
    None
}

/// Checks all clients a while after the last commit.
pub(crate) fn check(world: &World) -> Result<(), Violation> {
    // One end of a search halves the types. Then a type is tried again after 30 s, 60 s, 120 s, ... A stream for
    // refused types alone backs off as from a server that serves nothing (C7).
    let refused = world.replicas.iter().map(|replica| replica.refusals.len()).max().unwrap_or_default();
    let ends = world.ends.iter().find(|(_, ends)| **ends > ENDS * refused);
    if let Some((stream, ends)) = ends {
        let what = format!("G4b: {ends} streams of {stream} ended because of a type");
        return Err(Violation::new("goes_on", what));
    }
    let of_relays = &world.replicas[0].refusals;
    (0..world.relays.len()).try_for_each(|at| keeps_nothing_stale(world, at))?;
    (0..world.agents.len()).try_for_each(|at| has_errors(world, at))?;
    for (at, client) in world.clients.iter().enumerate() {
        // Clients by the rules have refused types only behind a proxy.
        let is_skipped = |known: &Known| !world.relays.is_empty() && is_refused(of_relays, known.kind);
        converge::check_client(world, client, is_skipped, |_, _| false)
            .map_err(|what| Violation::new("goes_on", format!("c{at}: {what}")))?;
    }
    settled::check_all(world, |agent, kind| is_refused(refusals_of(world, agent), kind))
}

/// Whether nobody gets the type. One that is refused beside others has a stream of its own.
fn is_refused(refusals: &Refusals, kind: Kind) -> bool {
    refusals.get(&kind).is_some_and(|refusal| !matches!(refusal, Refusal::AmongOthers(_)))
}

/// G4: a proxy drops its copies of a refused type, so that nobody gets stale content later.
fn keeps_nothing_stale(world: &World, at: usize) -> Result<(), Violation> {
    let relay = &world.relays[at];
    for (kind, refusal) in &world.replicas[0].refusals {
        let is_partial = matches!(refusal, Refusal::AmongOthers(_));
        if is_partial || relay.is_deceived || !can_know(world, at, *kind, *refusal) {
            continue;
        }
        let snapshot = relay.cache().snapshot();
        let of_type = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
        for (name, variant) in of_type.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
            let (type_url, constraints) = (kind.url().into(), variant.constraints().clone());
            let id = VariantId { type_url, name: name.clone(), constraints };
            // Nobody subscribed yet to what is only on its disk.
            if !is_of_liar(name.as_str()) && !relay.restored.contains(&id) {
                let what = format!("G4: p{} keeps {kind} {name}, which is refused", world.relayed(at));
                return Err(Violation::new("goes_on", what));
            }
        }
    }
    Ok(())
}

/// G4: whether a proxy can know that the origin refuses a type. A full state cannot say it.
fn can_know(world: &World, at: usize, kind: Kind, refusal: Refusal) -> bool {
    let mut chain = world.chain_of(world.relayed(at));
    // The end of a stream says it.
    if refusal != Refusal::ByErrors {
        chain.pop();
    }
    !kind.is_full_state() || chain.iter().all(|relay| relay.profile.protocol == Protocol::Delta)
}

/// G4b: the watchers of a refused type have the status of the server, which is no absence.
fn has_errors(world: &World, at: usize) -> Result<(), Violation> {
    let agent = &world.agents[at];
    // C15: another server may have the type.
    let &[server] = &agent.profile.order[..] else { return Ok(()) };
    if agent.profile.is_relayed {
        return Ok(());
    }
    for watcher in agent.watchers.iter().filter(|watcher| !watcher.is_of_liar) {
        let refusal = refusals_of(world, agent).get(&watcher.kind);
        let is_full_state = agent.profile.protocols[server] == Protocol::Sotw && watcher.kind.is_full_state();
        let can_know = refusal.is_some_and(|refusal| *refusal != Refusal::ByErrors || !is_full_state);
        let code = watcher.sight.own.error.as_ref().map(|error| error.code);
        let is_told = code.is_some_and(|code| code != Code::NOT_FOUND);
        if can_know && !is_told {
            let what = format!("G4b: a{at}: {watcher} has no error of its type: {}", watcher.sight);
            return Err(Violation::new("goes_on", what));
        }
    }
    Ok(())
}

/// What the preferred server of a client refuses, or the origin behind it.
fn refusals_of<'w>(world: &'w World, agent: &Agent) -> &'w Refusals {
    let preferred = agent.profile.order.first().map(|server| agent.profile.homes[*server]);
    match preferred {
        Some(Home::Replica(replica)) if replica < world.origins => &world.replicas[replica].refusals,
        _ => &world.replicas[0].refusals,
    }
}

const ENDS: usize = 12;
