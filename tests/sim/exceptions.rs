//! Known: what a client is told once too often, which is harmless, and what our own client does not
//! do yet. Delete a function with its cause: what then fails to compile is where it was excused.

use xds_core::client::ResourceView;

use crate::agent::{Event, Turn, is_same};
use crate::connection::Envelope;
use crate::content::{Kind, selected};
use crate::invariant::Sent;
use crate::known::Known;
use crate::script::Protocol;
use crate::world::World;

/// D11: what was gone when a locator for it came or was given up is told then (D10, D18), and a
/// second time with what waited meanwhile (S33). The client ignores that (D14).
pub(crate) fn is_removed_twice(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    let mut removed = sent.received.removed.iter().chain(variants);
    sent.received.resources.is_empty() && removed.all(|name| sent.before.removed.contains_key(name))
}

/// P4.5: who begins to watch while nobody can be reached hears nothing of that if it makes the
/// client fall back; that the outage is over he is told all the same. P1.19: a timer that ends on a
/// later stream tells the absence again.
pub(crate) fn is_told_again(turn: &Turn<'_>) -> bool {
    matches!(turn.event, Event::Answered { .. } | Event::Passed) && is_same(&turn.before.own, &turn.after.own)
}

/// P4.5: a new watch has the client fall back to a server that cannot be reached either; the
/// others, who now see another outage, are not told.
pub(crate) fn is_other_outage(turn: &Turn<'_>) -> bool {
    let is_outage = |view: &ResourceView| {
        view.error.as_ref().is_some_and(|error| error.message.contains("cannot be reached"))
    };
    turn.event == Event::Watched && is_outage(&turn.before.own) && is_outage(&turn.after.own)
}

/// T31, T43: of several locators of one stream that share a variant one gets another in its place
/// before the proxy knows what there is for the rest, which lose theirs by that (T34) until it does
/// (seed 1233).
pub(crate) fn is_split_switch(envelope: &Envelope, known: &Known, name: &str) -> bool {
    let received = &envelope.received;
    let brings = received.resources.iter().any(|item| item.name == name);
    // T35: one that is known to be absent is told by the bare name (seed 2187), or for its
    // parameters alone (seed 675), beside the error for one that is not known.
    let variants = received.removed_variants.iter().map(|(gone, _)| gone);
    let removes = received.removed.iter().chain(variants).any(|gone| gone == name);
    let is_unknown = received.errors.iter().any(|(of, _)| of == name);
    (brings || (removes && is_unknown)) && known.locators(name).len() > 1
}

/// S33, T43: in SotW nobody says that a route is gone, so the clusters of a proxy that asks for it
/// stay as they are. Of those that share such a cluster nobody hears that by now another one is for
/// its parameters (seed 24).
pub(crate) fn is_kept_for_routes(world: &World, replica: usize, kind: Kind) -> bool {
    let snapshot = world.truth_of(replica);
    let is_gone = |(url, name, params): &(String, String, _)| {
        url == Kind::Route.url() && name != "*" && selected(&snapshot, Kind::Route, name, params).is_none()
    };
    let mut chain = world.chain_of(replica).into_iter();
    matches!(kind, Kind::Cluster | Kind::Endpoints)
        && chain
            .any(|relay| relay.profile.protocol == Protocol::Sotw && relay.asked_since.keys().any(is_gone))
}
