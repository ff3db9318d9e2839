//! A content that a client rejected alone is sent to each stream in a response of its own, so only the
//! first client of a fleet has to find out which content is bad (S6d). A full state has everything.

use xds_core::server::Protocol;
use xds_core::{Parameters, Snapshot};

use super::Violation;
use crate::content::{Content, selected};
use crate::known::Key;
use crate::trying::Variation;
use crate::wire::{Item, Received};
use crate::world::World;

/// Checks a response that a replica has just sent to a client.
pub(crate) fn check(
    world: &World,
    (replica, at): (usize, usize),
    received: &Received,
    snapshot: &Snapshot,
) -> Result<(), Violation> {
    let client = &world.clients[at];
    let takes_full_state = client.types.get(&received.kind).is_none_or(|known| known.takes_full_state());
    if takes_full_state || received.names().len() == 1 {
        return Ok(());
    }
    // S6d, T31: a name with several variants, or with a removal of one, goes as a whole.
    let is_switch = |name: &String| {
        received.resources.iter().filter(|item| item.name == *name).count() > 1
            || received.removed_variants.iter().any(|(removed, _)| removed == name)
            || received.removed.contains(name)
    };
    // S6d: what the client tried may not be in the view that its NACK is read in.
    let seen = client.connections.get(&client.slot(received.kind)).and_then(|of| of.seen.get(&received.kind));
    let is_tried = |name: &String| seen.is_some_and(|seen| seen.tried.contains_key(name));
    // The same in SotW, which sends no removals.
    let known = client.types.get(&received.kind).filter(|known| known.protocol == Protocol::Sotw);
    let is_sotw_switch = |item: &Item| {
        let is_other = |(name, constraints): &Key| {
            *name == item.name && item.sent_with.as_ref().is_some_and(|sent| sent != constraints)
        };
        known.is_some_and(|known| known.locators(&item.name).len() > 1 || known.held.keys().any(is_other))
    };
    let is_exempt = |item: &&Item| is_switch(&item.name) || is_sotw_switch(item) || is_tried(&item.name);
    for item in received.resources.iter().filter(|item| !is_exempt(item)) {
        let Some(of) = variation(received, item, snapshot, &client.profile.node) else { continue };
        if world.replicas[replica].known_bad.get(&of) == Some(&item.content) {
            let what = format!("S6d: {} was rejected alone before: c{at} {received}", item.name);
            return Err(Violation::new("known_bad", what));
        }
    }
    Ok(())
}

/// S6d: the server notes a content that was rejected alone if it is still in the view of the client.
pub(crate) fn is_newest(view: &Snapshot, (kind, name, constraints): &Variation, content: &Content) -> bool {
    let newest = view.get(&kind.url().into(), &name.as_str().into()).and_then(|of| of.get(constraints));
    newest.is_some_and(|newest| Content::of(*kind, newest.payload()).as_ref() == Ok(content))
}

/// The variant of an item. If it was sent under the plain name, it is the one for the node.
pub(crate) fn variation(
    received: &Received,
    item: &Item,
    snapshot: &Snapshot,
    node: &Parameters,
) -> Option<Variation> {
    let selected = || selected(snapshot, received.kind, &item.name, node).map(|of| of.constraints().clone());
    Some((received.kind, item.name.clone(), item.sent_with.clone().or_else(selected)?))
}
