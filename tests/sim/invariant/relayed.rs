//! A proxy sends only content that its origin had, for the parameters that it was for, and removes
//! only what the origin did not have (T35, T43). An outage, a restart, the absence of another
//! client's resource and a change of keys are no removal. In delta a variant switch is one response
//! (T31).
//!
//! This is checked when a client applies a response, against all states of the origin, through any
//! number of proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xds_core::server::Protocol;
use xds_core::{Parameters, Snapshot};

use super::Violation;
use crate::client::Client;
use crate::connection::Envelope;
use crate::content::{Content, Kind, selected};
use crate::exceptions::is_split_switch;
use crate::known::{Asked, Known, stands_for};
use crate::relay::Relay;
use crate::wire::{Item, NOT_FOUND};
use crate::world::World;

/// A response of a proxy that a client has just applied.
struct Taken<'a> {
    client: &'a Client,
    envelope: &'a Envelope,
    before: &'a Known,
    after: &'a Known,
    chain: Vec<&'a Relay>,
    /// For each proxy of the chain, the client in front of it on the way to this client.
    below: Vec<String>,
    /// All states of the origin.
    history: &'a [Arc<Snapshot>],
}

pub(crate) fn check(
    world: &World,
    at: usize,
    replica: usize,
    envelope: &Envelope,
    before: &BTreeMap<Kind, Known>,
) -> Result<(), Violation> {
    let (chain, kind, client) = (world.chain_of(replica), envelope.received.kind, &world.clients[at]);
    if chain.is_empty() {
        return Ok(());
    }
    let Some((before, after)) = before.get(&kind).zip(client.types.get(&kind)) else { return Ok(()) };
    let history = &world.replicas[0].history;
    let proxies = std::iter::successors(Some(replica), |replica| {
        world.chain_of(*replica).first().map(|relay| relay.profile.home)
    });
    let below = std::iter::once(format!("c{at}")).chain(proxies.map(|proxy| format!("p{proxy}"))).collect();
    let taken = Taken { client, envelope, before, after, chain, below, history };
    // A proxy on the way may have received lies.
    let checked = match world.is_honest(replica) {
        true => is_genuine(&taken).and_then(|()| nothing_is_lost(&taken)),
        false => Ok(()),
    };
    checked
        .and_then(|()| is_one_switch(&taken))
        .map_err(|what| Violation::new("relayed", format!("{what}: c{at} takes {}", envelope.received)))
}

/// T43: each resource is for the parameters of a subscription, and the origin had it for them.
fn is_genuine(taken: &Taken<'_>) -> Result<(), String> {
    let (kind, asked) = (taken.after.kind, &taken.envelope.asked);
    for item in &taken.envelope.received.resources {
        let locators = locators(asked, &item.name, &taken.after.node);
        let is_of_origin = |params: &Parameters| {
            taken.history.iter().any(|snapshot| {
                let variant = selected(snapshot, kind, &item.name, params);
                variant.is_some_and(|variant| {
                    let is_it =
                        item.sent_with.as_ref().is_none_or(|sent_with| sent_with == variant.constraints());
                    is_it && is_content(kind, variant.payload(), item)
                })
            })
        };
        if !locators.iter().any(is_of_origin) {
            return Err(format!("T43: the origin never had this {} for a subscription", item.name));
        }
    }
    Ok(())
}

fn is_content(kind: Kind, payload: &[u8], item: &Item) -> bool {
    Content::of(kind, payload).is_ok_and(|content| content == item.content)
}

/// T35: if a client loses a resource or gets an absence, this was true at the origin at some time
/// since the subscription began.
fn nothing_is_lost(taken: &Taken<'_>) -> Result<(), String> {
    let Taken { before, after, envelope, .. } = taken;
    let absent = after.absent.difference(&before.absent).cloned();
    let names: BTreeSet<_> = before.held.keys().map(|(name, _)| name).collect();
    let with_locators = names
        .into_iter()
        .flat_map(|name| after.locators(name).into_iter().map(move |params| (name.clone(), params)));
    let is_lost = |(name, params): &(String, Parameters)| {
        before.serves(name, params).is_some() && after.serves(name, params).is_none()
    };
    let not_found = envelope.received.errors.iter().filter(|error| error.code == NOT_FOUND);
    let not_found = not_found
        .map(|error| &error.name)
        .flat_map(|name| after.locators(name).into_iter().map(move |params| (name.clone(), params)));
    for (name, params) in absent.chain(with_locators.filter(is_lost)).chain(not_found) {
        let mut since = since(taken, &name, &params);
        if before.serves(&name, &params).is_none() {
            since = since.min(shared_since(taken, &name));
        }
        let mut states = taken.history[since..].iter().filter(|snapshot| snapshot.is_synced());
        if !is_split_switch(envelope, after, &name)
            && !is_silent(taken, &name, &params)
            && !is_overtaken(taken, &name, &params)
            && !is_taken_back(taken, &name, &params)
            && !is_unknown(taken, &name, &params)
            && states.all(|snapshot| selected(snapshot, after.kind, &name, &params).is_some())
        {
            return Err(format!("T35: the origin always had {name} for {{{params}}} since state {since}"));
        }
    }
    Ok(())
}

/// C5: whether a proxy on the way got no response in time.
///
/// T35: a variant from an earlier stream goes with the first of its locators that is reported as
/// absent, because the client does not know the constraints that the server has for it (seed 5721).
fn is_silent(taken: &Taken<'_>, name: &str, params: &Parameters) -> bool {
    let is_old = taken.before.serves(name, params).is_some_and(|held| !held.is_of_this_stream());
    let shared = taken.after.locators(name).into_iter().filter(|_| is_old);
    std::iter::once(params.clone()).chain(shared).any(|params| is_silent_for(taken, name, &params))
}

fn is_silent_for(taken: &Taken<'_>, name: &str, params: &Parameters) -> bool {
    let url = taken.after.kind.url();
    let locators = [name, "*"].map(|name| (url.to_owned(), name.to_owned(), params.clone()));
    let mut asked = locators.iter().flat_map(|locator| taken.chain.iter().map(move |relay| (relay, locator)));
    asked.any(|(relay, locator)| {
        !relay.profile.policy.resource_timer_is_transient_error && relay.silent.contains(locator)
    })
}

/// T30b: a removed name exists for no locator of the receiver, also for one whose subscription was
/// on its way when the server made the response (D10). The answer to that subscription follows
/// (seeds 3951 and 11385).
fn is_overtaken(taken: &Taken<'_>, name: &str, params: &Parameters) -> bool {
    let locator = (taken.after.kind.url().to_owned(), name.to_owned(), params.clone());
    let asked = locators(&taken.envelope.asked, name, &taken.after.node);
    !asked.contains(params) || taken.chain.iter().any(|relay| relay.overtaken.contains(&locator))
}

/// T45: when a client of a trial rejects the content, the others of the trial get back the content
/// from before, or nothing. The same is true for all clients behind a proxy of the trial. P1.7: with
/// `fail_on_data_errors` the proxy drops what it had, for all. A client that comes with what it has
/// from elsewhere gets what the proxy has, so what was refused is absent for it (seed 43905).
fn is_taken_back(taken: &Taken<'_>, name: &str, params: &Parameters) -> bool {
    let comes = taken.before.serves(name, params).is_none_or(|held| !held.is_of_this_stream());
    let tried_by = taken.chain.iter().zip(&taken.below);
    let mut refused = tried_by.flat_map(|(relay, below)| {
        let drops = relay.profile.policy.fail_on_data_errors;
        relay.ever_refused.iter().map(move |it| (it, below, drops))
    });
    refused.any(|(((kind, refused, constraints), refusal), below, drops)| {
        (*kind, refused.as_str()) == (taken.after.kind, name)
            && constraints.matches(params)
            && (refusal.chosen.contains(below) || drops || comes)
    })
}

/// S37: a full state has the errors of names that the source of a proxy cannot answer, and clients by the rules
/// here read none. A server knows what a client has from another stream by the version alone, which a client does
/// not bring after it subscribed to more (S32). G4: with a version, there is no full state with errors alone.
fn is_unknown(taken: &Taken<'_>, name: &str, params: &Parameters) -> bool {
    let received = &taken.envelope.received;
    let comes = taken.before.serves(name, params).is_some_and(|held| !held.is_of_this_stream());
    let may_be_sent = taken.before.version.is_empty() || !received.resources.is_empty();
    taken.before.takes_full_state() && comes && may_be_sent && received.has_error(name)
}

/// Since when the client, or a proxy on the way, has had the subscription without a break.
fn since(taken: &Taken<'_>, name: &str, params: &Parameters) -> usize {
    let kind = taken.after.kind;
    let asked = taken.client.since.iter().filter(|((of, (asked, with)), _)| {
        let is_it = stands_for(asked, name);
        *of == kind && is_it && with.as_ref().unwrap_or(&taken.after.node) == params
    });
    let of_proxies = taken.chain.iter().flat_map(|relay| {
        let locators = [name, "*"].map(|name| (kind.url().to_owned(), name.to_owned(), params.clone()));
        locators.into_iter().filter_map(|locator| relay.asked_since.get(&locator))
    });
    asked.map(|(_, since)| since).chain(of_proxies).copied().min().unwrap_or(0)
}

/// T43: a proxy answers a new subscription with the absence that it knows of a locator with equal
/// values of the keys in use. Since when any proxy on the way has subscribed to the name (seed 20493).
fn shared_since(taken: &Taken<'_>, name: &str) -> usize {
    let url = taken.after.kind.url();
    let asked = taken.chain.iter().flat_map(|relay| relay.asked_since.iter());
    let of_name = asked.filter(|((of, asked, _), _)| of == url && asked == name);
    of_name.map(|(_, since)| *since).min().unwrap_or(usize::MAX)
}

/// T31: if another variant replaces a variant for all its locators, its removal is in the same
/// response.
fn is_one_switch(taken: &Taken<'_>) -> Result<(), String> {
    let Taken { before, envelope, .. } = taken;
    let received = &envelope.received;
    if before.protocol != Protocol::Delta || !before.knows_locators || envelope.is_first {
        return Ok(());
    }
    for ((name, constraints), held) in &before.held {
        let others: Vec<_> = received
            .resources
            .iter()
            .filter(|item| item.name == *name && item.sent_with.as_ref() != Some(constraints))
            .collect();
        // The server does not know the constraints of resources from an earlier stream, or sent
        // under a plain name.
        if held.is_plain || !held.is_of_this_stream() || others.is_empty() {
            continue;
        }
        let locators = locators(&envelope.asked, name, &before.node);
        let users: Vec<_> = locators.iter().filter(|params| constraints.matches(params)).collect();
        let is_taken = |params: &&Parameters| {
            others
                .iter()
                .any(|item| item.sent_with.as_ref().is_some_and(|sent_with| sent_with.matches(params)))
        };
        let is_removed = received.removed_variants.contains(&(name.clone(), constraints.clone()));
        if !users.is_empty() && users.iter().all(is_taken) && !is_removed {
            return Err(format!("T31: {name}[{constraints}] is not removed"));
        }
    }
    Ok(())
}

/// The parameters with which the client subscribed to a name.
fn locators(asked: &BTreeSet<Asked>, name: &str, node: &Parameters) -> BTreeSet<Parameters> {
    let of_name = asked.iter().filter(|(asked, _)| stands_for(asked, name));
    of_name.map(|(_, params)| params.as_ref().unwrap_or(node).clone()).collect()
}
