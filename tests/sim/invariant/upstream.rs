//! A proxy subscribes upstream to what its clients subscribed to, with their parameters, and to no
//! more of it than it needs (T43, T43b, T44): at rest one locator for each variant, and one for
//! each locator without a variant.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::proxy::Sharing;
use xds_core::{Constraints, Parameters, Snapshot, VariantId};

use super::Violation;
use crate::content::{Kind, selected};
use crate::link::Locator;
use crate::relay::{Relay, is_of_liar};
use crate::world::World;

/// Checks a proxy that has just read the subscriptions of its clients.
pub(crate) fn check(world: &mut World, at: usize) -> Result<(), Violation> {
    let wanted = world.ever_wanted_of(at);
    world.relays[at].ever_wanted.extend(wanted);
    let relay = &world.relays[at];
    let mut subscribed = relay.links().flat_map(|link| link.subscribed.keys());
    match subscribed.find(|locator| !relay.ever_wanted.contains(*locator)) {
        Some(locator) => violation(world, at, format!("T44: no client ever subscribed to {locator:?}")),
        None => Ok(()),
    }
}

/// Checks all proxies when nothing happened for longer than they keep unused upstream
/// subscriptions.
pub(crate) fn check_at_rest(world: &World) -> Result<(), Violation> {
    for (at, relay) in world.relays.iter().enumerate() {
        let (wanted, load) = (world.wanted_of(at), relay.proxy.load());
        if load.downstream != wanted.len() {
            return violation(
                world,
                at,
                format!("it counts {} downstream subscriptions, and there are {wanted:?}", load.downstream),
            );
        }
        let subscribed: BTreeSet<_> =
            relay.links().flat_map(|link| link.subscribed.keys().cloned()).collect();
        let names: BTreeSet<_> = wanted.iter().chain(&subscribed).map(|(of, name, _)| (of, name)).collect();
        let snapshot = relay.cache().snapshot();
        for (of, name) in names {
            let of_name = |all: &BTreeSet<Locator>| -> BTreeSet<Parameters> {
                let all = all.iter().filter(|(of_one, one, _)| (of_one, one) == (of, name));
                all.map(|(.., params)| params.clone()).collect()
            };
            let kind = Kind::of_url(of).expect("it is subscribed to");
            check_name(relay, kind, name, &of_name(&wanted), &of_name(&subscribed), &snapshot)
                .or_else(|what| violation(world, at, format!("{kind} {name}: {what}")))?;
        }
        keeps_nothing_else(relay, &subscribed, &snapshot).or_else(|what| violation(world, at, what))?;
    }
    Ok(())
}

fn check_name(
    relay: &Relay,
    kind: Kind,
    name: &str,
    wanted: &BTreeSet<Parameters>,
    subscribed: &BTreeSet<Parameters>,
    snapshot: &Snapshot,
) -> Result<(), String> {
    if name == "*" || relay.profile.sharing == Sharing::Off {
        return if wanted == subscribed {
            Ok(())
        } else {
            Err(format!("wanted {wanted:?}, subscribed to {subscribed:?}"))
        };
    }
    let mut variants = BTreeMap::<_, Vec<_>>::new();
    let mut absent = BTreeSet::new();
    for params in wanted {
        match selected(snapshot, kind, name, params) {
            Some(variant) => variants.entry(variant.constraints().clone()).or_default().push(params),
            None => _ = absent.insert(params),
        }
    }
    if let Some(params) = absent.iter().find(|params| !subscribed.contains(**params)) {
        return Err(format!("T35: it does not subscribe for {{{params}}}, for which it has no variant"));
    }
    let is_brought = |constraints: &Constraints| subscribed.iter().any(|params| constraints.matches(params));
    if let Some(constraints) = variants.keys().find(|constraints| !is_brought(constraints)) {
        return Err(format!("T43b: no upstream subscription covers [{constraints}]"));
    }
    // If an audit found that variants overlap, the proxy subscribes for each locator.
    let is_audited = matches!(relay.profile.sharing, Sharing::Audit { .. });
    // T43c: a resource without constraints (from a liar) is not shared, so each locator has its own
    // upstream subscription.
    let is_alone = is_of_liar(name);
    if subscribed.len() > variants.len() + absent.len() && !is_audited && !is_alone && !relay.is_deceived {
        return Err(format!(
            "T43: it subscribes to {subscribed:?}, and has {variants:?}, but none for {absent:?}"
        ));
    }
    Ok(())
}

/// The cache has no resource that no upstream subscription covers.
fn keeps_nothing_else(
    relay: &Relay,
    subscribed: &BTreeSet<Locator>,
    snapshot: &Snapshot,
) -> Result<(), String> {
    for kind in Kind::ALL {
        let of_type = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
        for (name, variant) in of_type.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
            let is_asked = subscribed.iter().any(|(of, asked, params)| {
                let is_it = asked == "*" || asked == name.as_str();
                is_it && of == kind.url() && variant.constraints().matches(params)
            });
            let (type_url, constraints) = (kind.url().into(), variant.constraints().clone());
            let id = VariantId { type_url, name: name.clone(), constraints };
            // T43c: a resource for one locator alone is stored under that locator.
            let is_alone = is_of_liar(name.as_str()) && !subscribed.is_empty();
            if !is_asked && !is_alone && !relay.restored.contains(&id) {
                return Err(format!("it keeps {kind} {name}[{}]", variant.constraints()));
            }
        }
    }
    match relay.proxy.load().upstream {
        questions if questions == subscribed.len() => Ok(()),
        questions => {
            Err(format!("it counts {questions} upstream subscriptions, and has {}", subscribed.len()))
        }
    }
}

/// Checks all proxies when all clients have been disconnected for long enough.
pub(crate) fn check_empty(world: &World) -> Result<(), Violation> {
    for (at, relay) in world.relays.iter().enumerate() {
        let load = relay.proxy.load();
        if (load.downstream, load.upstream) != (0, 0) {
            return violation(world, at, format!("it has no clients: {load:?}"));
        }
        if let Some(locator) = relay.links().flat_map(|link| link.subscribed.keys()).next() {
            return violation(world, at, format!("it never unsubscribed from {locator:?}"));
        }
        let nothing = BTreeSet::new();
        keeps_nothing_else(relay, &nothing, &relay.cache().snapshot())
            .or_else(|what| violation(world, at, what))?;
    }
    Ok(())
}

fn violation(world: &World, at: usize, what: String) -> Result<(), Violation> {
    Err(Violation::new("upstream", format!("p{}: {what}", world.relayed(at))))
}
